"""`score` reads the target as `fit` does, whatever collection holds it; rows without a target are left out."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from dask.delayed import delayed
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import accuracy_score, r2_score

from dpgb_dask import DPGBClassifier, Schema, StructureError, UnsupportedCollectionError
from dpgb_dask.clients import compute
from dpgb_dask.io import read_csv
from dpgb_dask.scoring import score
from dpgb_dask.testing import SeededNoise

ROWS = 400

FORMS = {
    "text": lambda y: y.astype(str),
    "objects": lambda y: y.astype(object),
    "a list": lambda y: y.tolist(),
    "a column of lists": lambda y: [[value] for value in y.tolist()],
    "a frame": lambda y: pd.DataFrame({"y": y}),
    "pandas' own type": lambda y: pd.Series(y).convert_dtypes(),
    "categories": lambda y: pd.Series(y.astype(str), dtype="category"),
    "another index": lambda y: pd.Series(y, index=range(len(y), 0, -1)),
    "Arrow": lambda y: pa.chunked_array([pa.array(y)]),
    "Zarr": lambda y: zarr.array(y, chunks=(300,)),
    "xarray": lambda y: xr.DataArray(y, dims="row"),
    "xarray, lazy": lambda y: xr.DataArray(y, dims="row").chunk(300),
    "a Dask array": lambda y: da.from_array(y, chunks=700),
    "a Dask column of text": lambda y: dd.from_pandas(pd.Series(y.astype(str)), npartitions=3),
}
TABLES = {
    "pandas": lambda x: x,
    "a Dask frame": lambda x: dd.from_pandas(x, npartitions=2),
    "a lazy dataset": lambda x: xr.Dataset({name: ("row", x[name].to_numpy()) for name in x}).chunk(
        row=600
    ),
}


def test_masked_values_are_missing_in_every_method(regressor, features, numbers):
    table = features.astype(object).to_numpy()
    mask = np.random.default_rng(0).random(table.shape) < 0.3
    masked, bare = np.ma.masked_array(table, mask), np.where(mask, np.nan, table)
    model = regressor.__class__(**regressor.get_params() | {"columns": "position"})
    model.fit(bare, numbers)
    assert model.score(masked, numbers) == model.score(bare, numbers) != model.score(table, numbers)
    for name in ("predict", "explain_local"):
        one, other = (getattr(model, name)(rows) for rows in (masked, bare))
        one, other = (getattr(told, "scores", told) for told in (one, other))
        np.testing.assert_array_equal(one, other)
    target = np.ma.masked_array(numbers, np.arange(len(numbers)) < ROWS)
    weight = np.ma.masked_array(np.ones(len(numbers)), np.arange(len(numbers)) < ROWS)
    want = model.score(bare[ROWS:], numbers[ROWS:])
    assert model.score(masked, target) == model.score(masked, numbers, weight) == want


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("form", FORMS)
def test_labels_of_every_form_have_one_score(classifier, features, labels, form, table):
    want = accuracy_score(labels, classifier.predict(features))
    assert classifier.score(TABLES[table](features), FORMS[form](labels)) == want


@pytest.mark.parametrize("form", FORMS)
def test_numbers_of_every_form_have_one_score(regressor, features, numbers, form):
    want = r2_score(numbers, regressor.predict(features))
    assert regressor.score(features, FORMS[form](numbers)) == want


def test_labels_of_a_text_file_are_read(classifier, features, labels, tmp_path):
    features.assign(target=labels).to_csv(tmp_path / "rows.csv", index=False)
    rows = read_csv(tmp_path / "rows.csv")
    want = classifier.score(features, labels)
    assert classifier.score(rows[list(features.columns)], rows["target"]) == want


def test_labels_of_several_types_have_a_score(binary_schema, features, labels):
    schema = type(binary_schema)(binary_schema.features, classes=["a", 1])
    y = np.array(["a", 1], dtype=object)[labels.astype(int)]
    model = DPGBClassifier(
        schema=schema, recipe="fdp-tr-newton", n_estimators=3, noise=SeededNoise(0), random_state=0
    ).fit(features, y)
    assert model.score(features, y) == np.mean(model.predict(features) == y)


@pytest.mark.parametrize("lost", [None, pd.NA, pd.NaT, np.nan], ids=str)
def test_rows_without_a_label_are_left_out(classifier, features, labels, lost):
    y = pd.Series(labels.astype(object))
    y[:ROWS] = lost
    want = classifier.score(features[ROWS:], labels[ROWS:])
    assert classifier.score(features, y) == want
    weight = np.where(np.arange(len(y)) < ROWS, 1000.0, 1.0 + np.arange(len(y)) % 3)
    weighted = classifier.score(features[ROWS:], labels[ROWS:], weight[ROWS:])
    assert weighted != want
    assert classifier.score(features, y, weight) == weighted


@pytest.mark.parametrize("other", ["unheard of", 7, -1], ids=str)
def test_a_label_that_is_no_class_is_wrong(classifier, features, labels, other):
    """As scikit-learn has it: of labels -1 and 1, where classes are 0 and 1, only hits would be left otherwise."""
    y, predicted = labels.astype(object), classifier.predict(features)
    y[labels == 0] = other
    y[:ROWS] = None
    weight = 1.0 + np.arange(len(y)) % 3
    hit = (predicted == labels) & (labels == 1)
    assert classifier.score(features, y) == hit[ROWS:].mean() < 0.6
    want = np.average(hit[ROWS:], weights=weight[ROWS:])
    assert classifier.score(features, y, weight) == pytest.approx(want, rel=1e-12)
    weight[ROWS:] = 0
    with pytest.raises(StructureError, match="sample_weight has no number above 0"):
        classifier.score(features, y, weight)


def test_rows_without_a_number_are_left_out(regressor, features, numbers):
    y = numbers.astype(object)
    y[:ROWS] = ["none", None, np.nan, pd.NaT] * (ROWS // 4)
    want = regressor.score(features[ROWS:], numbers[ROWS:])
    assert regressor.score(features, y) == want
    lazy = dd.from_pandas(pd.Series(np.where(np.arange(len(y)) < ROWS, np.nan, numbers)), 3)
    assert regressor.score(dd.from_pandas(features, npartitions=3), lazy) == want


def test_only_an_infinite_number_counts_as_the_bound(regressor, features, numbers):
    """R² is that of scikit-learn wherever scikit-learn has one, so numbers beyond the bounds are left as they are."""
    predicted = regressor.predict(features)
    far = np.where(np.arange(len(numbers)) < 9, 40.0, numbers)
    assert regressor.score(features, far) == r2_score(far, predicted)
    endless = np.where(far == 40, np.inf, far)
    assert regressor.score(features, endless) == r2_score(np.where(far == 40, 15, far), predicted)


def test_numpy_does_not_warn_of_huge_numbers(regressor, features, numbers):
    """In memory as on Dask, although there is no score."""
    far = np.where(np.arange(len(numbers)) < 9, 1e308, numbers)
    assert np.isnan(regressor.score(features, far))
    frame = dd.from_pandas(features, npartitions=2)
    assert np.isnan(regressor.score(frame, dd.from_pandas(pd.Series(far), npartitions=2)))


def test_weights_of_every_kind_count(classifier, regressor, features, labels, numbers):
    weight = 1.0 + np.arange(len(labels)) % 5
    want = accuracy_score(labels, classifier.predict(features), sample_weight=weight)
    value = r2_score(numbers, regressor.predict(features), sample_weight=weight)
    frame = dd.from_pandas(features, npartitions=2)
    for form in FORMS.values():
        assert classifier.score(frame, zarr.array(labels), form(weight)) == want
        assert regressor.score(features, numbers, form(weight)) == value


WEIGHTLESS = (None, np.nan, "heavy", 0, -5.0, "-inf")


def test_rows_without_a_weight_are_left_out(classifier, regressor, features, labels, numbers):
    """As in a fit, where they weigh nothing; weights that fits of this schema would clip count as they are."""
    weight = (1.0 + np.arange(len(labels)) % 5).astype(object)
    kept = weight[ROWS:].astype(float)
    rest = features[ROWS:]
    want = classifier.score(rest, labels[ROWS:], kept)
    value = regressor.score(rest, numbers[ROWS:], kept)
    for lost in WEIGHTLESS:
        weight[:ROWS] = lost
        assert classifier.score(features, labels, weight) == want
        assert regressor.score(features, numbers, pd.Series(weight)) == value
    lazy = dd.from_pandas(pd.Series(np.append(np.full(ROWS, np.nan), kept)), npartitions=3)
    assert classifier.score(dd.from_pandas(features, npartitions=2), labels, lazy) == want


def test_only_an_infinite_weight_counts_as_the_largest(binary_schema, features, labels):
    schema = type(binary_schema)(binary_schema.features, classes=[0, 1], max_weight=3)
    model = DPGBClassifier(
        schema=schema, recipe="fdp-tr-newton", n_estimators=3, noise=SeededNoise(0), random_state=0
    ).fit(features, labels)
    predicted = model.predict(features)
    heavy = np.where(np.arange(len(labels)) < 9, 1e9, 1.0)
    assert model.score(features, labels, heavy) == accuracy_score(
        labels, predicted, sample_weight=heavy
    )
    endless, most = np.where(heavy > 1, np.inf, 1.0), np.where(heavy > 1, 3.0, 1.0)
    assert model.score(features, labels, endless) == model.score(features, labels, most)


def test_weights_of_an_inferred_schema_are_scikit_learns(features, labels):
    model = DPGBClassifier(
        schema="infer", recipe="fdp-tr-newton", n_estimators=3, noise=SeededNoise(0), random_state=0
    )
    numeric = features[["x", "age"]]
    model.fit(numeric, labels)
    missing, predicted = np.full(len(labels), np.nan), model.predict(numeric)
    try:
        theirs = accuracy_score(labels, predicted, sample_weight=missing)
    except ValueError:
        with pytest.raises(ValueError, match="sample_weight contains NaN"):
            model.score(numeric, labels, missing)
    else:  # of older versions
        np.testing.assert_equal(model.score(numeric, labels, missing), theirs)


def test_an_inferred_schema_scores_zarr_too(features, labels):
    model = DPGBClassifier(
        schema="infer", recipe="fdp-tr-newton", n_estimators=3, noise=SeededNoise(0), random_state=0
    )
    numeric = features[["x", "age"]]
    model.fit(numeric, labels)
    stored = zarr.array(labels, chunks=(500,))
    want = model.score(numeric, labels)
    assert model.score(numeric, stored, zarr.array(np.ones(len(labels)))) == want
    unheard = np.where(np.arange(len(labels)) < ROWS, 7, labels)  # wrong, as scikit-learn has it
    assert model.score(numeric, unheard) == accuracy_score(unheard, model.predict(numeric))


def test_what_cannot_be_scored_is_said(classifier, regressor, features, labels, numbers):
    with pytest.raises(StructureError, match=r"No row can be scored: .*classes \[0, 1\]\. Give"):
        classifier.score(features, np.full(len(labels), "unheard of"))
    with pytest.raises(StructureError, match="No row can be scored: no value in y is a number"):
        regressor.score(features, np.full(len(numbers), np.nan))
    with pytest.raises(StructureError, match="No row can be scored"):
        classifier.score(features[:0], labels[:0])
    for model, y in ((classifier, labels), (regressor, numbers)):
        for none in (np.zeros(len(y)), np.full(len(y), np.nan), ["Jane Doe"] * len(y)):
            with pytest.raises(
                StructureError, match=r"sample_weight has no number .*\. Give weig"
            ) as caught:
                model.score(features, y, none)
            assert "Jane" not in str(caught.value)
    of_unread = np.where(np.arange(len(labels)) < ROWS, 1.0, 0.0)
    with pytest.raises(
        StructureError, match="sample_weight has no number above 0 for a row whose y"
    ):
        classifier.score(features, np.where(of_unread > 0, 7, labels), of_unread)
    with pytest.raises(StructureError, match="different numbers of rows"):
        classifier.score(features, labels[1:])
    with pytest.raises(StructureError, match="different numbers of rows"):
        classifier.score(features, labels, np.ones(3))
    with pytest.raises(StructureError, match="requires y to be passed"):
        classifier.score(features, None)
    with pytest.raises(StructureError, match="y must be one column"):
        classifier.score(features, np.stack([labels, labels], axis=1))
    with pytest.raises(UnsupportedCollectionError, match="y is a set"):
        classifier.score(features, {0, 1})


def test_explained_rows_of_zarr_are_computed(features):
    group = zarr.group()
    numeric = features[["x", "z", "age"]]
    model = DPGBClassifier(
        schema={
            "version": 1,
            "features": {
                name: {"type": "numeric", "low": -3, "high": 90, "integer": False, "missing": True}
                for name in numeric
            },
            "target": {"name": "target", "type": "binary", "classes": [0, 1]},
        },
        recipe="fdp-tr-newton", n_estimators=3, noise=SeededNoise(0), random_state=0,
        columns="position",
    ).fit(numeric, features.index.to_numpy() % 2)  # fmt: skip
    for name in numeric:
        group.create_array(name, data=numeric[name].to_numpy(np.float64))
    want = model.explain_local(numeric).steps[0]
    for rows in (zarr.array(numeric.to_numpy(np.float64), chunks=(500, 3)), group):
        lazy = model.explain_local(rows)
        assert lazy.lazy
        np.testing.assert_array_equal(lazy.compute().steps[0], want)


# ---- rows of Dask, which are added up chunk by chunk ----------------------------------------------------------------

WIDE = Schema({"x": (0.0, 1.0)}, target_bounds=(-1e15, 1e15))
TEXTS = Schema({"x": (0.0, 1.0)}, classes=["no, not at all", "yes, certainly"])


def in_partitions_of(*lengths):
    """A function that makes a Dask column of partitions of these lengths, which Dask does not know."""

    def make(column):
        parts = np.split(column, np.cumsum(lengths)[:-1])
        return dd.from_map(pd.Series, parts, meta=pd.Series(column[:0]))

    return make


def of_unknown_chunks(*lengths):
    """A function that makes a Dask array of chunks of these lengths, which Dask does not know."""

    def make(column):
        parts = np.split(column, np.cumsum(lengths)[:-1])
        return da.concatenate(
            [da.from_delayed(delayed(part), (np.nan,), column.dtype) for part in parts]
        )

    return make


CUTS = {
    "one chunk": lambda column: da.from_array(column, chunks=-1),
    "chunks": lambda column: da.from_array(column, chunks=130),
    "other chunks": lambda column: da.from_array(column, chunks=(100, 7, 1, 292)),
    "unknown chunks": of_unknown_chunks(100, 0, 299, 1),
    "other unknown chunks": of_unknown_chunks(99, 1, 300, 0),
    "partitions": in_partitions_of(100, 0, 299, 1),
    "other partitions": in_partitions_of(1, 99, 299, 1),
    "fewer partitions": in_partitions_of(399, 1),
}


def numbers_around(offset):
    """Targets, predictions and weights, of which the first chunk lies apart from the others."""
    rng = np.random.default_rng(0)
    y = np.sort(rng.normal(size=ROWS)) + offset
    return y, y + rng.normal(size=ROWS) / 2, rng.random(ROWS)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("offset", [0, 1e4, 1e8, 1e12])
@pytest.mark.parametrize("cut", CUTS)
def test_lazy_numbers_have_one_score_whatever_their_offset(cut, offset, weighted):
    y, predicted, weight = numbers_around(offset)
    own = weight if weighted else None
    # differences to the offset have no rounding errors
    want = r2_score(y - offset, predicted - offset, sample_weight=own)
    for other in ("chunks", "partitions", cut):
        lazy = CUTS[cut](predicted), CUTS[other](y), CUTS[other](own) if weighted else None
        assert score(WIDE, *lazy) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_lazy_labels_have_one_score(cut, weighted):
    rng = np.random.default_rng(0)
    classes = np.array(TEXTS.target.classes)
    y, predicted = classes[rng.integers(0, 2, (2, ROWS))]
    own = rng.random(ROWS) if weighted else None
    want = accuracy_score(y, predicted, sample_weight=own)
    for other in ("chunks", "partitions", cut):
        lazy = CUTS[cut](predicted), CUTS[other](y), CUTS[other](own) if weighted else None
        assert score(TEXTS, *lazy) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("value", [0.1, 1e12 + 0.1])
@pytest.mark.parametrize("off", [0, 1])
def test_lazy_targets_that_are_all_equal_have_the_score_of_scikit_learn(value, off):
    y = np.full(ROWS, value)
    lazy = (CUTS["chunks"](column) for column in (y + off, y, np.arange(1.0, ROWS + 1)))
    assert score(WIDE, *lazy) == r2_score([1, 1], [1 + off, 1 + off]) == 1 - off


def test_one_lazy_number_has_no_score():
    y = da.from_array(np.append(np.full(ROWS, np.nan), 1.0), chunks=100)
    with pytest.warns(UndefinedMetricWarning, match="less than two samples"):
        assert np.isnan(score(WIDE, da.zeros(ROWS + 1, chunks=100), y, None))


def test_lazy_rows_that_cannot_be_scored_are_told():
    numbers = da.arange(ROWS, chunks=100)
    for y, weight, message in (
        (numbers * np.nan, None, "no value in y is a number"),
        (numbers, numbers * 0, "sample_weight has no number above 0"),
        (numbers[1:], None, "different numbers of rows"),
        (numbers[numbers > 0], None, "different numbers of rows"),
        (numbers, numbers[:-1].to_dask_dataframe(), "different numbers of rows"),
    ):
        with pytest.raises(StructureError, match=message):
            score(WIDE, numbers, y, weight)


@pytest.mark.parametrize("kind", ["chunks", "partitions"])
@pytest.mark.parametrize("schema", [WIDE, TEXTS], ids=["numbers", "texts"])
def test_what_comes_of_lazy_rows_does_not_grow_with_them(monkeypatch, schema, kind):
    def spy(*collections):
        found = compute(*collections)
        came.append([np.asarray(part).nbytes for part in found])
        return found

    monkeypatch.setattr("dpgb_dask.scoring.compute", spy)
    values = np.array(schema.target.classes or [0.0, 1.0])
    came = []
    for n_rows in (40, 4000):
        column = values[np.arange(n_rows) % 2]
        lazy = da.from_array(column, chunks=n_rows // 4)
        lazy = lazy if kind == "chunks" else in_partitions_of(*[n_rows // 4] * 4)(column)
        assert score(schema, lazy, lazy, None) == 1
    few, many = came
    assert few == many
    assert sum(few) < 4 * 100
