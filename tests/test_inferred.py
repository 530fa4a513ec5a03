"""``schema="infer"``: facts read from the data, marked as not private, with scikit-learn's own checks."""

import datetime
import decimal
import uuid

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from dask import delayed
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.utils.validation import check_is_fitted

from dpgb_dask import Datetime, DPGBClassifier, DPGBRegressor, PrivacyLeakWarning
from dpgb_dask.contracts.features import MAX_CATEGORIES, Numeric
from dpgb_dask.contracts.schema import MAX_WEIGHT
from dpgb_dask.encoding.columns import category_cells
from dpgb_dask.errors import StructureError, UnsupportedCollectionError
from dpgb_dask.inferred import infer, read
from dpgb_dask.testing import SeededNoise

SHORT = {"recipe": "fdp-tr-newton", "n_estimators": 3}  # which facts are inferred is the subject
SEEDED = {"noise": SeededNoise(0), "random_state": 0, **SHORT}

BAD_WEIGHTS = [(np.nan, "finite"), (-1.0, "negative"), (1e9, "at most 4096"), (0.0, "non-zero")]


def test_inferred_facts_warn_and_mark_the_model(features, labels):
    with pytest.warns(PrivacyLeakWarning, match="not private"):
        fitted = DPGBClassifier(schema="infer", **SHORT).fit(features, labels)
    assert not fitted.privacy_report_.private
    assert "NOT PRIVATE" in str(fitted.privacy_report_)
    assert set(fitted.schema_.features["color"].categories) == {"blue", "green", "red"}
    assert fitted.schema_.features["age"].integer


def test_inferred_facts_given_again_still_mark_the_model(features, labels):
    inferred = DPGBClassifier(schema="infer", **SEEDED).fit(features, labels).schema_
    again = DPGBClassifier(schema=inferred, **SHORT).fit(features, labels)
    assert not again.schema_.private
    assert not again.privacy_report_.private
    assert again.predict(features).shape == labels.shape
    unit = DPGBClassifier(schema=inferred, unit_id="person", max_rows_per_unit=2, **SHORT)
    unit.fit(features.assign(person=np.arange(len(features))), labels)
    assert not unit.schema_.private
    assert not unit.privacy_report_.private


@pytest.mark.parametrize(("weight", "match"), BAD_WEIGHTS)
def test_inferred_weights_are_checked(features, labels, weight, match):
    estimator = DPGBClassifier(schema="infer", **SEEDED)
    with pytest.raises(ValueError, match=match):
        estimator.fit(features[["x", "age"]], labels, sample_weight=np.full(len(labels), weight))


def test_inferred_fractional_weights_count(features, labels):
    estimator = DPGBClassifier(schema="infer", epsilon=20.0, **SEEDED)
    X = features[["x", "age"]]
    plain = clone(estimator).fit(X, labels)
    weighted = clone(estimator).fit(X, labels, sample_weight=np.where(labels == 1, 1.5, 0.25))
    assert weighted.predict_proba(X)[:, 1].mean() > plain.predict_proba(X)[:, 1].mean() + 0.1


@pytest.mark.parametrize("kind", ["frame", "array"])
def test_facts_of_dask_collections_are_inferred(features, labels, kind):
    table = features[["x", "age"]]
    if kind == "frame":
        X, y = (
            dd.from_pandas(table, npartitions=3),
            dd.from_pandas(pd.Series(labels), npartitions=3),
        )
    else:
        X, y = da.from_array(table.to_numpy(), chunks=(500, 1)), da.from_array(labels, chunks=500)
    lazy = DPGBClassifier(schema="infer", **SEEDED).fit(X, y)
    whole = DPGBClassifier(schema="infer", **SEEDED).fit(
        table if kind == "frame" else table.to_numpy(), labels
    )
    assert lazy.schema_.to_dict() == whole.schema_.to_dict()
    np.testing.assert_array_equal(
        np.asarray(lazy.predict(X)), whole.predict(table if kind == "frame" else X.compute())
    )


def test_inferred_labels_keep_their_type_in_an_object_column(features):
    labels = np.array([np.int64(k % 2) for k in range(len(features))], object)
    X, y = da.from_array(features[["x"]].to_numpy(), chunks=500), da.from_array(labels, chunks=500)
    assert DPGBClassifier(schema="infer", **SEEDED).fit(X, y).classes_.tolist() == [0, 1]


def test_inferred_model_checks_names_like_scikit_learn(features, labels):
    fitted = DPGBClassifier(schema="infer", **SEEDED).fit(features[["x", "age"]], labels)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(features[["age", "x"]])
    fitted = DPGBClassifier(schema="infer", **SEEDED).fit(features[["x", "age"]].to_numpy(), labels)
    with pytest.raises(ValueError, match="expecting 2 features"):
        fitted.predict(np.zeros((3, 3)))


def test_a_failed_fit_leaves_an_estimator_unfitted(features, labels):
    estimator = DPGBClassifier(schema="infer", **SEEDED)
    for X in (features, dd.from_pandas(features, npartitions=2)):
        with pytest.raises(StructureError, match="one class only"):
            estimator.fit(X, np.zeros_like(labels))
        with pytest.raises(NotFittedError):
            check_is_fitted(estimator)


@pytest.mark.parametrize("array", [False, True])
def test_a_failed_refit_leaves_the_model_as_it_was(features, labels, array):
    fitted = DPGBClassifier(schema="infer", **SEEDED).fit(features, labels)
    before = dict(vars(fitted))
    other = features[["age"]].to_numpy() if array else features[["age"]]
    with pytest.raises(StructureError, match="one class only"):
        fitted.fit(other, np.zeros_like(labels))
    assert vars(fitted) == before


def test_a_refit_on_an_array_forgets_names(features, labels):
    fitted = DPGBClassifier(schema="infer", **SEEDED).fit(features[["x", "age"]], labels)
    assert fitted.edit().done().feature_names_in_.tolist() == ["x", "age"]
    fitted.fit(features[["x", "age"]].to_numpy(), labels)
    assert not hasattr(fitted, "feature_names_in_")
    assert not hasattr(fitted.edit().done(), "feature_names_in_")


def test_columns_of_dates_are_inferred_as_dates():
    when = pd.to_datetime(["2020-02-29 13:00", None, "2021-12-31 23:59"] * 5).tz_localize(
        "Asia/Tokyo"
    )
    frame = pd.DataFrame(
        {
            "when": when,
            "far": np.array(["30000", "0001", "NaT"] * 5, "datetime64[Y]").astype("datetime64[s]"),
        }
    )
    y = np.arange(15) % 2
    for X in (frame, dd.from_pandas(frame, npartitions=2)):
        target = y if X is frame else dd.from_pandas(pd.Series(y), npartitions=2)
        fitted = DPGBClassifier(schema="infer", **SEEDED).fit(X, target)
        assert fitted.schema_.features == {
            "when": Datetime("2020-02-29", "2021-12-31"),
            "far": Datetime("0001-01-01", "9999-12-31"),
        }
        assert len(np.asarray(fitted.predict(X))) == 15


def test_categories_that_no_schema_declares_are_read_by_their_text():
    odd = [datetime.date(2020, 1, 2), np.inf, uuid.UUID(int=1), b"a", "b", 3]
    schema = infer(
        pd.DataFrame({"x": pd.Series(odd, dtype=object)}), np.arange(6) % 2, classification=True
    )
    listed = schema.features["x"].categories
    assert set(listed) == {"2020-01-02", "inf", str(uuid.UUID(int=1)), "a", "b", 3}
    assert sorted(category_cells(np.array(odd, object), listed).tolist()) == list(range(6))


@pytest.mark.filterwarnings("ignore::dpgb_dask.PrivacyLeakWarning")
@pytest.mark.parametrize("dtype", [float, np.float32, int, object])
def test_masked_values_are_missing(dtype):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (300, 2)).astype(dtype)
    mask = np.zeros(x.shape, bool)
    mask[:50, 0] = True
    x[mask] = 1000  # not a bound
    masked = np.ma.masked_array(x, mask)
    y = np.arange(300) % 2
    options = {"schema": "infer", "noise": SeededNoise(0), "random_state": 0, "epsilon": 4.0}
    model = DPGBClassifier(**options, recipe="fdp-tr-newton", n_estimators=3).fit(masked, y)
    assert next(iter(model.schema_.features.values())).high < 1000
    bare = np.where(mask, np.nan, x)
    np.testing.assert_array_equal(model.predict_proba(masked), model.predict_proba(bare))


HALF = 30
BAD_TARGETS = {
    "text, one missing": pd.Series(["x"] * HALF + [None] + ["y"] * (HALF - 1), dtype=object),
    "text of pandas": pd.Series(["x"] * HALF + [None] + ["y"] * (HALF - 1), dtype="string"),
    "categories": pd.Series(pd.Categorical(["x"] * HALF + [None] + ["y"] * (HALF - 1))),
    "numbers": pd.Series([0.0] * HALF + [np.nan] + [1.0] * (HALF - 1)),
    "whole numbers of pandas": pd.Series([0] * HALF + [None] + [1] * (HALF - 1), dtype="Int64"),
    "truth values of pandas": pd.Series([True] * HALF + [None] * HALF, dtype="boolean"),
    "all missing": pd.Series([np.nan] * 2 * HALF),
    "infinite": pd.Series([0.0] * HALF + [np.inf] + [1.0] * (HALF - 1)),
    "text and numbers": pd.Series(["x"] * HALF + [1] * HALF, dtype=object),
    "numbers and text": pd.Series([1] * HALF + ["x"] * HALF, dtype=object),
}


@pytest.mark.parametrize("kind", [DPGBClassifier, DPGBRegressor])
@pytest.mark.parametrize("name", BAD_TARGETS)
def test_bad_targets_raise_alike_beside_text_and_beside_numbers(kind, name):
    frame = pd.DataFrame({"a": np.arange(2 * HALF), "t": ["u", "v"] * HALF})
    told = set()
    for X in (frame, frame[["a"]], frame[["a"]].to_numpy()):
        with pytest.raises(ValueError, match=r"y |could not convert") as error:
            kind(schema="infer", **SEEDED).fit(X, BAD_TARGETS[name])
        told.add(str(error.value))
    assert len(told) == 1


@pytest.mark.parametrize("kind", [DPGBClassifier, DPGBRegressor])
@pytest.mark.parametrize(
    "name", ["text, one missing", "numbers", "whole numbers of pandas", "infinite"]
)
def test_bad_targets_of_dask_raise_as_those_in_memory(kind, name):
    X = dd.from_pandas(pd.DataFrame({"a": np.arange(2 * HALF)}), npartitions=3)
    y = dd.from_pandas(BAD_TARGETS[name], npartitions=3)
    with pytest.raises(ValueError, match=r"Input y contains|Unknown label type|no number"):
        kind(schema="infer", **SEEDED).fit(X, y)


@pytest.mark.parametrize("kind", [DPGBClassifier, DPGBRegressor])
def test_a_target_of_one_column_is_taken_with_a_warning(kind):
    X = da.from_array(np.arange(2.0 * HALF)[:, None], chunks=20)
    y = np.arange(2 * HALF) % 2
    frame = pd.DataFrame({"y": y, "z": y})
    given = da.from_array(y[:, None], chunks=20), dd.from_pandas(frame[["y"]], npartitions=3)
    for column in given:
        with pytest.warns(DataConversionWarning, match="column-vector"):
            fitted = kind(schema="infer", **SEEDED).fit(X, column)
        assert fitted.predict(X).compute().shape == y.shape
    for two in (da.from_array(frame.to_numpy(), chunks=20), dd.from_pandas(frame, npartitions=3)):
        with pytest.raises(StructureError, match="one column"):
            kind(schema="infer", **SEEDED).fit(X, two)


@pytest.mark.parametrize(("weight", "match"), BAD_WEIGHTS)
def test_weights_of_dask_are_checked(features, labels, weight, match):
    X, y = da.from_array(features[["x"]].to_numpy(), chunks=500), da.from_array(labels, chunks=500)
    weights = np.full(len(labels), max(weight, 0.0))
    weights[700] = weight
    for given in (weights, da.from_array(weights, chunks=500)):
        with pytest.raises(StructureError, match=match):
            DPGBClassifier(schema="infer", **SEEDED).fit(X, y, sample_weight=given)


def test_no_weights_of_dask_are_refused(features, labels):
    X, y = da.from_array(features[["x"]].to_numpy(), chunks=500), da.from_array(labels, chunks=500)
    with pytest.raises(StructureError, match="one number per row"):
        DPGBClassifier(schema="infer", **SEEDED).fit(X, y, sample_weight=da.zeros(0, chunks=1))


@pytest.mark.parametrize(
    ("weights", "most"),
    [([0.5, 1.5], 2), ([2.5, MAX_WEIGHT], MAX_WEIGHT), ([1.0, 3.0], None)],
    ids=["rounded up", "largest", "rows repeated"],
)
def test_the_largest_weight_is_that_of_weights_that_are_left(weights, most):
    rows = np.zeros((2, 1)), np.array([0, 1])
    found = read(DPGBClassifier(), *rows, np.array(weights), classification=True, silent=True)
    assert found.max_weight == most
    assert (found.weight is None) == (most is None)


def test_weights_of_dask_count_as_those_in_memory(features, labels):
    table, weights = features[["x", "age"]].to_numpy(), np.where(labels == 1, 1.5, 0.25)
    lazy = [da.from_array(part, chunks=len(part)) for part in (table, labels, weights)]
    models = [
        DPGBClassifier(schema="infer", **SEEDED).fit(*rows[:2], sample_weight=rows[2])
        for rows in ((table, labels, weights), lazy)
    ]
    first, second = (np.asarray(model.predict_proba(table)) for model in models)
    np.testing.assert_array_equal(first, second)


def test_arrays_of_xarray_and_zarr_are_read_as_arrays(features, labels):
    table = features[["x", "age"]].to_numpy()
    named = xr.DataArray(table, dims=("row", "column"), coords={"column": ["x", "age"]})
    stored = zarr.array(table)
    # as its convention says, values are twice those that are stored
    stored.attrs["scale_factor"] = 2.0
    plain = DPGBClassifier(schema="infer", **SEEDED).fit(table, labels)
    for rows in (named, named.chunk(row=500)):
        fitted = DPGBClassifier(schema="infer", **SEEDED).fit(rows, labels)
        assert fitted.schema_ == plain.schema_
        np.testing.assert_array_equal(np.asarray(fitted.predict(rows)), plain.predict(table))
    scaled = DPGBClassifier(schema="infer", **SEEDED).fit(stored, labels)
    assert scaled.schema_.features["x1"].high == 2 * plain.schema_.features["x1"].high


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda x: xr.Dataset({"a": ("row", x)}), "X is named arrays .* to_dask_dataframe"),
        (lambda x: xr.DataTree(xr.Dataset({"a": ("row", x)})), "to_dataset"),
        (lambda x: {"a": x}, "pandas.DataFrame"),
        (delayed, "from_delayed"),
        (dask.bag.from_sequence, "to_dataframe"),
        (lambda _: "people.parquet", "read_parquet"),
        (lambda x: da.from_array(x[:, None]).map_blocks(csr_matrix), "toarray"),
    ],
)
def test_unknown_kinds_are_refused_as_under_a_declared_schema(make, match):
    X, y = make(np.arange(2.0 * HALF)), np.arange(2 * HALF) % 2
    with pytest.raises(UnsupportedCollectionError, match=match):
        DPGBClassifier(schema="infer", **SEEDED).fit(X, y)
    fitted = DPGBClassifier(schema="infer", **SEEDED).fit(np.arange(2.0 * HALF)[:, None], y)
    with pytest.raises(UnsupportedCollectionError, match=match):
        fitted.predict(X)


@pytest.mark.parametrize("name", ["NA", "None", "null", ""])
def test_a_class_may_have_the_name_of_a_missing_value(features, name):
    x = features[["x"]]
    y = np.where(x["x"] > 0, name, "other").astype(object)
    lazy = (
        dd.from_pandas(x, npartitions=3),
        dd.from_pandas(pd.Series(y, dtype=object), npartitions=3),
    )
    for rows, given in ((x, y), lazy):
        fitted = DPGBClassifier(schema="infer", **SEEDED).fit(rows, given)
        assert sorted(fitted.classes_) == sorted([name, "other"])
        assert fitted.score(x, y) > 0.8


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (["nan", "a"], "'nan', which is read as a missing"),
        (["01", "1"], "'01' and '1', which are read alike"),
        (np.array(["2020-01-01", "2021-01-01"], "datetime64[s]"), "such as dates"),
        (np.array([1, 2], "timedelta64[s]"), "such as dates"),
    ],
)
def test_labels_that_are_not_read_as_they_are_raise(labels, match):
    X, y = np.arange(2.0 * HALF)[:, None], np.array(labels)[np.arange(2 * HALF) % 2]
    with pytest.raises(ValueError, match=match):
        DPGBClassifier(schema="infer", **SEEDED).fit(X, y)
    with pytest.raises(ValueError, match=match):
        DPGBClassifier(schema="infer", **SEEDED).fit(X, da.from_array(y, chunks=20))


def in_two_parts(first, second):
    return dd.from_map(lambda part: part, [first, second], meta=first.iloc[:0].astype(object))


def test_types_that_differ_by_partition_are_refused_by_name():
    """Numbers beside text would all be unknown, and days beside numbers their bounds."""
    y = dd.from_pandas(pd.Series(np.arange(2 * HALF) % 2), npartitions=2)
    numbers, text = (
        pd.DataFrame({"x": column * (HALF // 2)}) for column in ([1.0, 2.0], ["a", "b"])
    )
    days = numbers.astype("datetime64[s]")
    for other in (text, days):
        X = in_two_parts(numbers, other)
        with pytest.raises(StructureError, match="'x' holds text, numbers or dates, by partition"):
            DPGBClassifier(schema="infer", **SEEDED).fit(X, y)
    X = dd.from_pandas(pd.DataFrame({"a": np.arange(2 * HALF)}), npartitions=2)
    with pytest.raises(StructureError, match="labels of several types"):
        DPGBClassifier(schema="infer", **SEEDED).fit(X, in_two_parts(numbers["x"], text["x"]))


def test_a_regressor_refuses_a_target_without_numbers():
    X = pd.DataFrame({"a": np.arange(2 * HALF)})
    y = pd.DataFrame({"y": ["u", "v"] * HALF})
    X, y = dd.from_pandas(X, npartitions=2), dd.from_pandas(y, npartitions=2)["y"]
    with pytest.raises(StructureError, match="no number"):
        DPGBRegressor(schema="infer", **SEEDED).fit(X, y)


def test_a_target_of_one_number_has_bounds_around_it():
    schema = infer(np.zeros((3, 1)), np.full(3, 7.0), classification=False)
    assert (schema.target.low, schema.target.high) == (6.0, 8.0)


def test_a_target_has_a_name_that_no_feature_has():
    frame = pd.DataFrame({"target": [0, 1], "target_": [0, 1]})
    assert infer(frame, np.arange(2), classification=True).target.name == "target__"


def test_a_column_of_as_many_texts_as_a_feature_may_have_is_inferred():
    X = pd.DataFrame({"who": [f"person {k}" for k in range(MAX_CATEGORIES)]})
    schema = infer(X, np.arange(MAX_CATEGORIES) % 2, classification=True)
    assert len(schema.features["who"].categories) == MAX_CATEGORIES


def test_a_column_of_too_many_texts_is_named_with_the_ways_out():
    X = pd.DataFrame({"a": np.arange(300), "who": [f"person {k}" for k in range(300)]})
    with pytest.raises(StructureError, match=r"'who' has 300 .* Leave it out; or declare a schema"):
        DPGBClassifier(schema="infer", **SEEDED).fit(X, np.arange(300) % 2)


def test_objects_that_are_numbers_are_read_as_numbers():
    count = [float(k) for k in range(300)]
    price = [decimal.Decimal(k) / 4 for k in range(299)] + [None]
    code = ["a", 7] * 150
    columns = {"count": count, "price": price, "code": code, "known": ["1", "2"] * 150}
    X = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in columns.items()})
    with dask.config.set({"dataframe.convert-string": False}):  # of all objects
        lazy = dd.from_pandas(X, npartitions=3)
    for rows in (X, lazy):
        schema = infer(rows, np.arange(300) % 2, classification=True)
        assert schema.features["count"] == Numeric(0, 299, True)
        assert schema.features["price"] == Numeric(0, 74.5, False)
        assert set(schema.features["code"].categories) == {"a", 7}
        assert set(schema.features["known"].categories) == {"1", "2"}
    half = pd.DataFrame({"code": pd.Series([7] * 150 + ["a"] * 150, dtype=object)})
    with dask.config.set({"dataframe.convert-string": False}):
        parts = dd.from_pandas(half, npartitions=2)
    schema = infer(parts, np.arange(300) % 2, classification=True)
    assert set(schema.features["code"].categories) == {"a", 7}


@pytest.mark.parametrize("value", [[1], {"a": 1}, object()])
def test_a_column_of_what_has_no_form_is_named(value):
    X = pd.DataFrame({"a": np.arange(300), "parts": pd.Series([value] * 300, dtype=object)})
    with pytest.raises(StructureError, match="'parts' holds values, such as lists"):
        DPGBClassifier(schema="infer", **SEEDED).fit(X, np.arange(300) % 2)


@pytest.mark.parametrize(("value", "match"), [(np.inf, "infinity"), (1j, "[Cc]omplex")])
def test_odd_numbers_raise_alike_beside_text_and_beside_numbers(value, match):
    X = pd.DataFrame({"a": np.where(np.arange(300) == 7, value, 1), "t": ["u", "v"] * 150})
    lazy = dd.from_pandas(X, npartitions=3)
    for rows in (X, X[["a"]], lazy, lazy[["a"]], lazy[["a"]].to_dask_array(lengths=True)):
        with pytest.raises(ValueError, match=match):
            DPGBClassifier(schema="infer", **SEEDED).fit(rows, np.arange(300) % 2)


def test_infinite_numbers_of_others_than_numeric_rows_in_memory_count_as_the_bound():
    X = pd.DataFrame({"a": np.arange(300.0), "t": ["u", "v"] * 150})
    y = (X["a"] > 150).astype(int)
    far, most = X.assign(a=np.inf), X.assign(a=X["a"].max())
    beside_text = DPGBClassifier(schema="infer", epsilon=20.0, **SEEDED).fit(X, y)
    np.testing.assert_array_equal(beside_text.predict_proba(far), beside_text.predict_proba(most))
    numeric = DPGBClassifier(schema="infer", epsilon=20.0, **SEEDED).fit(X[["a"]], y)
    lazy = numeric.predict_proba(dd.from_pandas(far[["a"]], npartitions=2)).compute()
    np.testing.assert_array_equal(lazy, numeric.predict_proba(most[["a"]]))
    with pytest.raises(ValueError, match="infinity"):
        numeric.predict_proba(far[["a"]])
