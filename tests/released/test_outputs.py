"""What predict and its kin return of each row, for every link, kind of target and collection."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema
from dpgb_dask.contracts.model import FeatureBins, Model
from dpgb_dask.losses import clipped_probability
from dpgb_dask.released.outputs import Labels
from dpgb_dask.testing import SeededNoise

SEEDED = {"noise": SeededNoise(0), "random_state": 0}
SHORT = {"recipe": "fdp-tr-newton", "n_estimators": 3}  # where the model itself is not the subject


def fit_numbers(schema, features, numbers, **settings):
    return DPGBRegressor(epsilon=20.0, schema=schema, **settings, **SEEDED).fit(features, numbers)


def test_probability_inverts_the_clipped_link(classifier, features):
    decision = classifier.decision_function(features)
    p = classifier.predict_proba(features)
    np.testing.assert_allclose(p[:, 1], clipped_probability(decision))
    np.testing.assert_array_equal(classifier.predict(features), (decision > 0).astype(int))


def test_predictions_follow_their_input(classifier, features):
    want = classifier.predict_proba(features)
    frame = dd.from_pandas(features, npartitions=3)
    proba = classifier.predict_proba(frame)
    assert isinstance(proba, dd.DataFrame)
    assert list(proba.columns) == ["0", "1"]
    np.testing.assert_array_equal(proba.compute(), want)
    label = classifier.predict(frame)
    assert isinstance(label, dd.Series)
    assert label.divisions == frame.divisions
    np.testing.assert_array_equal(label.compute(), classifier.predict(features))
    assert isinstance(classifier.decision_function(frame), dd.Series)
    assert isinstance(want, np.ndarray)


def group_of(table):
    group = zarr.group()
    for name in table:
        group.create_array(name, data=table[name].to_numpy(), chunks=(400,))
    return group


KINDS = {
    "NumPy": (lambda x: x.to_numpy(), np.ndarray),
    "lists": (lambda x: x.to_numpy().tolist(), np.ndarray),
    "pandas": (lambda x: x.set_index(np.arange(len(x))[::-1]), np.ndarray),
    "Arrow": (pa.Table.from_pandas, np.ndarray),
    "a Dask frame": (lambda x: dd.from_pandas(x, npartitions=3), dd.Series),
    "a Dask array": (lambda x: da.from_array(x.to_numpy(), chunks=(400, 2)), da.Array),
    "a Zarr array": (lambda x: zarr.array(x.to_numpy(), chunks=(400, 2)), da.Array),
    "a Zarr group": (group_of, da.Array),
    "a dataset": (xr.Dataset.from_dataframe, xr.DataArray),
    "a data array": (lambda x: xr.DataArray(x.to_numpy()), xr.DataArray),
}


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_have_the_kind_that_the_docs_say(kind, features, numbers):
    """docs/schema.md §3 has the table."""
    given, kind_of_output = KINDS[kind]
    schema = Schema({"x": (-3, 3), "z": (-3, 3)}, target_bounds=(-15, 15))
    table = features[["x", "z"]].astype(np.float64)
    fitted = DPGBRegressor(schema=schema, columns="position", **SHORT, **SEEDED).fit(table, numbers)
    got = fitted.predict(given(table))
    assert type(got) is kind_of_output
    np.testing.assert_array_equal(np.asarray(got), fitted.predict(table))


def test_predictions_of_a_cluster_are_the_same(classifier, features, client):
    frame = dd.from_pandas(features, npartitions=3)
    assert client is not None
    np.testing.assert_array_equal(
        classifier.predict_proba(frame).compute(), classifier.predict_proba(features)
    )


def test_dask_arrays_stay_lazy_and_keep_chunks(features, numbers):
    schema = Schema({name: (-3, 90) for name in "abc"}, target_bounds=(-15, 15))
    X = features[["x", "z", "age"]].to_numpy(np.float64)
    fitted = DPGBRegressor(schema=schema, **SHORT, **SEEDED).fit(
        da.from_array(X, chunks=(400, 2)), da.from_array(numbers)
    )
    same = DPGBRegressor(schema=schema, **SHORT, **SEEDED).fit(X, numbers)
    np.testing.assert_array_equal(fitted.predict(X), same.predict(X))
    lazy = fitted.predict(da.from_array(X, chunks=(400, 2)))
    assert lazy.chunks == ((400, 400, 400, 300),)
    np.testing.assert_array_equal(lazy.compute(), same.predict(X))
    assert fitted.score(
        da.from_array(X, chunks=(400, 2)), da.from_array(numbers, chunks=400)
    ) == fitted.score(X, numbers)


@pytest.mark.parametrize("recipe", ["fdp-tr-newton", "dpboost", "dp-rf"])
def test_predictions_go_by_the_link(recipe, binary_schema, features, labels):
    settings = {"recipe": recipe, "n_estimators": 5, **SEEDED}
    fitted = DPGBClassifier(epsilon=8.0, schema=binary_schema, **settings).fit(features, labels)
    link = fitted.model_.link
    assert link == ("probability" if recipe == "dp-rf" else "logit")
    decision, p = fitted.decision_function(features), fitted.predict_proba(features)
    want = np.clip(decision + 0.5, 0, 1) if recipe == "dp-rf" else 1 / (1 + np.exp(-decision))
    np.testing.assert_allclose(p[:, 1], want, atol=1e-12)
    np.testing.assert_array_equal(fitted.predict(features), (decision > 0).astype(int))
    np.testing.assert_allclose(p.sum(axis=1), 1)


def test_classes_of_a_forest_are_probabilities(multiclass_schema, features, names_of_class):
    fitted = DPGBClassifier(epsilon=8.0, schema=multiclass_schema, recipe="dp-rf", **SEEDED)
    p = fitted.fit(features, names_of_class).predict_proba(features)
    assert fitted.model_.link == "probability"
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert p.min() >= 0
    best = fitted.classes_[fitted.decision_function(features).argmax(axis=1)]
    np.testing.assert_array_equal(fitted.predict(features), best)


def test_poisson_predicts_inside_its_bounds(binary_schema, features, signal):
    schema = Schema(binary_schema.features, target_bounds=(0, 20))
    counts = np.random.default_rng(3).poisson(np.exp(signal.clip(-3, 2.5) / 2)).clip(0, 20)
    fitted = fit_numbers(schema, features, counts, recipe="fdp-tr-newton", loss="poisson")
    assert fitted.model_.link == "log"
    predicted = fitted.predict(features)
    assert predicted.min() >= 0
    assert predicted.max() <= 20
    assert np.corrcoef(predicted, counts)[0, 1] > 0.3
    told = fitted.explain_local(features)
    total = told.intercept[0] + told.scores.sum(axis=1)
    np.testing.assert_allclose(predicted, np.exp(total).clip(0, 20))
    np.testing.assert_array_equal(told.intercept, fitted.explain_global().intercept)
    assert told.data(0)["perf"]["predicted"] == pytest.approx(predicted[0])


@pytest.mark.parametrize(("link", "even"), [("clipped_logit", 0), ("probability", 1 << 15)])
def test_of_two_classes_as_probable_the_first_is_predicted(link, even):
    bins = (FeatureBins(np.array([0.5]), None, 3),)
    table = (np.array([[-1], [0], [1]], np.int32),)
    model = Model(bins, np.array([even], np.int32), table, link=link)
    found = Labels(np.array(["first", "second"]))(model)(np.array([[0, 1, 2]], np.uint8))
    assert found.tolist() == ["first", "first", "second"]
