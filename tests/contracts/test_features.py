"""The kinds of features: their forms, and the errors that name what is wrong with one."""

import datetime
import json
import uuid
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from odd_dates import UNITLESS

from dpgb_dask import Bool, Categorical, Datetime, Grouped, Hashed, Numeric, Schema
from dpgb_dask.contracts.features import in_words
from dpgb_dask.encoding.columns import category_cells
from dpgb_dask.errors import SchemaError
from dpgb_dask.scalars import python_scalar

MAPPING = {"10115": "Berlin", 1067: "Dresden", True: "odd", 2.5: 7}


def schema_of(**features):
    return Schema(features, classes=[0, 1])


CATEGORICAL = pd.Categorical(["y", "x", "y"], categories=["x", "y"])


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        (range(1, 4), [1, 2, 3]),
        (np.array(["u", "v"]), ["u", "v"]),
        (np.array(["u", 7], object), ["u", 7]),
        (np.array([1, 2, 4], np.uint8), [1, 2, 4]),
        (np.array([True, False]), [True, False]),
        (pd.Index(["u", "v"]), ["u", "v"]),
        (pd.Index(["u", "v"], dtype=object), ["u", "v"]),
        (pd.RangeIndex(3), [0, 1, 2]),
        (pd.array(["u", "v"], "string"), ["u", "v"]),
        (pd.array([1, 2, 4], "Int64"), [1, 2, 4]),
        (pd.array(["u", "v"], pd.ArrowDtype(pa.string())), ["u", "v"]),
        (CATEGORICAL.dtype, ["x", "y"]),
        (CATEGORICAL.categories, ["x", "y"]),
        (pd.CategoricalDtype([3, 1]), [3, 1]),
    ],
)
def test_lists_of_categories_may_be_arrays(given, listed):
    for short in (given, Categorical(given), {"type": "categorical", "categories": given}):
        feature = schema_of(x=short).features["x"]
        assert feature == Categorical(tuple(listed))
        assert list(map(type, feature.categories)) == list(map(type, listed))  # JSON holds them


def test_a_categorical_type_lists_classes():
    classes = Schema({"x": (0, 1)}, classes=pd.CategoricalDtype(["no", "yes"])).target.classes
    assert classes == ("no", "yes")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.array([0.5, 1.5]), "type 'ndarray' of float64"),  # bounds as well as categories
        (pd.Index([0.5, 1.5]), "type 'Index' of float64"),
        (np.array([[1, 2]]), "type 'ndarray' of int64"),
        (np.array(["2020-01-01"], "M8[ns]"), "type 'ndarray' of datetime64"),
        (np.array([17, 90]), "type 'ndarray' of int64"),
        (pd.Index([17, 90]), "type 'Index' of int64"),
        (pd.Series(["Jane Doe", "Jane Doe"]), "type 'Series' of"),  # a column of rows
        (pd.Series(["Jane Doe", "Jo"], dtype="category"), "type 'Series' of category"),
        (pd.Categorical(["Jane Doe", "Jo"]), "type 'Categorical' of category"),
        (pd.CategoricalIndex(["Jane Doe", "Jo"]), "type 'CategoricalIndex' of category"),
        (pd.DataFrame({"Jane Doe": [1]}), "type 'DataFrame'"),
        (pd.CategoricalDtype(), "type 'CategoricalDtype'"),
        ({"u", "v"}, "type 'set'"),
        ("u,v", "type 'str'"),
        (str, "the type 'str'"),
        (None, "type 'NoneType'"),
        (5, "type 'int'"),
    ],
)
def test_what_declares_no_feature_is_named_by_its_type(given, words):
    with pytest.raises(SchemaError) as raised:
        schema_of(x=given)
    text = str(raised.value)
    assert words in text
    assert "expected (low, high), a list of categories" in text
    assert "Jane" not in text


@pytest.mark.parametrize(
    "pair",
    [[18, 90], [0, 0.5], [0.0, np.float64(10)], ["2015-01-31", "2020-12-31"], [90, 18], [-1, 1]],
    ids=str,
)
def test_a_list_of_two_that_may_be_bounds_is_refused_and_both_ways_out_work(pair):
    """In JSON, whose only lists these are, ``[18, 90]`` is nearly always meant as bounds."""
    data = schema_of(x=(0, 1)).to_dict()
    for make in (
        lambda: schema_of(x=pair),
        lambda: Schema.from_dict(data | {"features": {"x": pair}}),
    ):
        with pytest.raises(SchemaError, match=r"'x': a list of two .* Say which") as refused:
            make()
        assert f"'categories': {[*map(python_scalar, pair)]}" in str(refused.value)
    for sure in (Categorical(pair), {"type": "categorical", "categories": pair}):
        assert schema_of(x=sure).features["x"] == Categorical(tuple(pair))


@pytest.mark.parametrize(
    "sure",
    [
        [True, False],
        ["1", "2"],
        ["true", "false"],
        [1, "many"],
        [1, 2, 3],
        ["NA", "b"],
        range(2),
        [0, 1],
        [2, 1],
        [0.0, 1.0],
        [2**53 + 1, 2**53 + 2],
    ],
)
def test_a_list_that_cannot_be_bounds_is_one_of_categories(sure):
    assert schema_of(x=sure).features["x"] == Categorical(tuple(sure))


@pytest.mark.parametrize("none", [[], (), range(0), np.array([], str), pd.CategoricalDtype([])])
def test_a_feature_without_categories_is_refused_but_where_facts_are_inferred(none):
    for given in (none, Categorical(none), {"type": "categorical", "categories": none}):
        with pytest.raises(SchemaError, match=r"no (categories|bounds)"):
            schema_of(x=given)
    empty = Schema({"x": Categorical(())}, classes=[0, 1], private=False)
    assert Schema.from_dict(empty.to_dict()) == empty


@pytest.mark.parametrize("missing", [None, float("nan"), np.nan, pd.NA, pd.NaT])
def test_a_category_that_is_missing_is_refused(missing):
    spec = {"type": "categorical", "categories": ["x", missing]}
    for given in ([missing, "x"], Categorical(("x", missing)), spec):
        with pytest.raises(SchemaError, match="missing value, which has a bin of its own"):
            schema_of(x=given)
    for pair in ((missing, "x"), ("x", missing)):
        with pytest.raises(SchemaError, match=r"bin of its own|no name of a group"):
            schema_of(x={"from": [pair]})
    with pytest.raises(SchemaError, match="classes hold a missing value"):
        Schema({"x": (0, 1)}, classes=[missing, "x"])


def test_files_from_before_keep_the_place_of_a_category_that_is_missing():
    data = schema_of(x=["a", "b"], y=(0, 1)).to_dict()
    data["features"]["x"]["categories"] = ["a", None, "b"]
    with pytest.raises(SchemaError, match="None stands for a missing value"):
        Schema.from_dict(data)
    kept = Schema.of_file(data)
    assert kept.to_dict() == data
    cells = category_cells(pd.Series(["a", None, "b", "c"]), kept.features["x"].categories)
    assert cells.tolist() == [0, 4, 2, 3]  # None is missing
    for malformed in (None, [], {}, {"features": [None]}, {"features": {"x": {"categories": 5}}}):
        with pytest.raises(SchemaError):
            Schema.of_file(malformed)


@pytest.mark.parametrize("twice", [["x", "x"], [1, 2, 1], [0.5, np.float64(0.5)]])
def test_a_category_that_is_there_twice_is_said_to_be(twice):
    for make in (lambda: schema_of(x=twice), lambda: Schema({"x": (0, 1)}, classes=list(twice))):
        with pytest.raises(SchemaError, match=r"is there twice\. Leave one out"):
            make()
    for alike in (["1", 1], [True, 1], [1, 1.0]):
        with pytest.raises(SchemaError, match="read as the same value"):
            schema_of(x=alike)


@pytest.mark.parametrize("kind", [np.array, pd.Index, pd.array])
def test_of_an_array_that_may_be_a_column_neither_a_value_nor_its_length_is_told(kind):
    for column in (["Jane Doe", "Jo", "Jane Doe"], [f"Jane {k}" for k in range(1234)]):
        for make in (lambda c: schema_of(x=c), lambda c: Schema({"x": (0, 1)}, classes=c)):
            with pytest.raises(SchemaError) as raised:
                make(kind(column))
            text = str(raised.value)
            assert "Jane" not in text
            assert "1234" not in text
            assert "column of rows" in text or "250" in text


def test_a_long_range_is_counted_before_it_is_listed():
    with pytest.raises(SchemaError, match="10000000000 categories, more than 250"):
        schema_of(x=range(10**10))


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ((0, 1), Numeric(0, 1)),
        (["a", 1], Categorical(("a", 1))),
        (bool, Bool()),
        ({"from": MAPPING}, Grouped(MAPPING)),
        ({"from": MAPPING}, Grouped(tuple(MAPPING.items()))),
        ({"buckets": 9}, Hashed(9)),
        (Datetime("2020-01-01", "2020-01-31"), {"type": "datetime", "first": "2020-01-01", "last": "2020-01-31"}),
        (Datetime(datetime.date(2020, 1, 1), pd.Timestamp("2020-01-31")), Datetime("2020-01-01", "2020-01-31")),
        (Datetime(np.datetime64("2020-01-01"), "2020-01-31"), Datetime("2020-01-01", "2020-01-31")),
        (Datetime("2020-01-01", np.datetime64("2020-01-31", "ns")), Datetime("2020-01-01", "2020-01-31")),
        (Hashed(np.int64(9)), Hashed(9)),
        (Datetime("2020-01-01", "2020-01-31", ["hour"]), Datetime("2020-01-01", "2020-01-31", ("hour",))),
    ],
)  # fmt: skip
def test_short_and_long_forms_are_one(short, long):
    schema = schema_of(x=short)
    assert schema == schema_of(x=long)
    assert hash(schema) == hash(schema_of(x=long))
    again = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert again == schema
    assert again.features == schema.features
    assert again.encoded == schema.encoded


def test_features_are_encoded_as_columns_of_numbers_and_categories():
    schema = schema_of(
        a=(0, 1),
        when=Datetime("2019-12-30", "2020-01-02", ("days", "year", "month", "weekday", "hour"), missing=True),
        zip=Grouped(MAPPING),
        b=bool,
        h={"buckets": 2},
    )  # fmt: skip
    dated = {"days": (0, 3), "year": (2019, 2020), "month": (1, 12), "weekday": (0, 6), "hour": (0, 23)}  # fmt: skip
    assert schema.encoded == {
        "a": Numeric(0, 1),
        **{f"when.{part}": Numeric(*bounds, True, True) for part, bounds in dated.items()},
        "zip": Categorical(("Berlin", "Dresden", "odd", 7)),
        "b": Categorical((False, True)),
        "h": Categorical(("bucket 0", "bucket 1")),
    }
    assert schema.sources == ("a", *["when"] * 5, "zip", "b", "h")
    assert schema.encoded_names == tuple(schema.encoded)
    assert schema.n_features == 5


DAY = {"type": "datetime", "first": "2020-01-01", "last": "2020-12-31"}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (Datetime(None, "2020-01-01"), "'x' has no first day.*public knowledge"),
        ({"type": "datetime", "first": "2020-01-01"}, "'x' has no last day"),
        (DAY | {"first": "2021-01-01"}, "first=2021-01-01 is after last=2020-12-31"),
        (DAY | {"first": "2020-02-30"}, "first='2020-02-30' must be a day"),
        (DAY | {"first": "20200101"}, "first='20200101' must be a day"),
        (DAY | {"first": 2020}, "first=2020 must be a day"),
        (DAY | {"first": datetime.datetime(2020, 1, 1, 5)}, "must be a day in the form"),
        (DAY | {"first": np.datetime64("2020-01-01T05")}, "must be a day in the form"),
        (DAY | {"first": np.datetime64("NaT", "s")}, "must be a day in the form"),
        (("office", "field"), "two finite numbers.*and of categories, a list"),
        (("office", "field", "home"), "a tuple is .low, high..*Categories go in a list"),
        (Categorical("ab"), "categories='ab' must be a list"),
        ({"min": 18, "max": 90}, "'x': no 'type'; expected"),
        (DAY | {"parts": []}, "parts=.* must be a list of some of days, year"),
        (DAY | {"parts": "days"}, "parts='days' must be"),
        (DAY | {"parts": ["day"]}, "parts=.'day'. must be"),
        (DAY | {"parts": ["year", "year"]}, "names a part twice"),
        (DAY | {"low": 3}, "unknown keys .'low'."),
        ({"from": {}}, "must map each value"),
        ({"from": "zip"}, "must map each value"),
        ({"from": [["a", "b"], "ab"]}, "must map each value"),
        ({"from": {"a": None}}, "None is no name of a group"),
        ({"from": {"a": ["b"]}}, "is no name of a group"),
        ({"from": {None: "a"}}, "None cannot be mapped"),
        ({"from": {float("nan"): "a"}}, "nan cannot be mapped"),
        ({"from": {"7": "a", "007": "b"}}, "values that feature 'x' maps: '7' and '007' are read as the same"),
        ({"from": {"a": "1", "b": 1}}, "groups of feature 'x': '1' and 1"),
        ({"from": {str(k): k for k in range(251)}}, "251 groups, more than 250"),
        ({"buckets": 1}, "buckets=1 must be a whole number in .2, 250."),
        ({"buckets": 251}, "buckets=251"),
        ({"buckets": True}, "buckets=True"),
        ({"type": "hashed"}, "buckets=None"),
        ({"type": "bools"}, "Did you mean 'bool'"),
        ({"type": "bool", "categories": [0]}, "unknown keys"),
        (list(range(251)), "more than 250.*'type': 'grouped', 'from'.*'type': 'hashed', 'buckets'"),
        ({"type": "categorical", "categories": ["a"] * 251}, "more than 250.*'type': 'grouped', 'from'"),
        ({"type": "categorical", "from": {"a": "b"}}, "type='categorical' has no 'from'. Say 'type': 'grouped'"),
        ({"type": "categorical", "buckets": 9}, "Say 'type': 'hashed'"),
        ({"type": "numeric", "low": "0", "high": 7}, "low='0' is text, not a number. Drop the quotes: low is 0."),
        ({"type": "numeric", "low": 0, "high": " 7.5 "}, "high=' 7.5 ' is text.*Drop the quotes"),
        ({"type": "numeric", "low": "zero", "high": 7}, "bounds must be two finite numbers"),
        (int, "expected .low, high."),
        ([1, float("inf")], "categories of feature 'x': inf is no finite number.*'inf'"),
        ([np.float32("-inf"), 1], "is no finite number.*'-inf'"),
        ({"from": {"a": float("inf")}}, "groups of feature 'x': inf is no finite number"),
        ({"from": {float("inf"): "a"}}, "values that feature 'x' maps: inf is no finite number"),
        ({"from": {"\ud800": "a"}}, "surrogate"),
        ({"from": {"a": "\ud800"}}, "surrogate"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(spec, said):
    with pytest.raises(SchemaError, match=said):
        schema_of(x=spec)


def test_classes_are_finite_and_a_text_that_is_read_as_infinite_is_a_text():
    with pytest.raises(SchemaError, match="classes: inf is no finite number"):
        Schema({"x": (0, 1)}, classes=[0, float("inf")])
    schema = schema_of(x=["inf", "b"], g={"from": {"-inf": "a"}})
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


HELD = ["inf", "nan", "1e999", np.int64(3), np.float32(0.1), np.bool_(True), np.str_("a"), 2.5]
NOT_HELD = [
    np.nan, np.float32("nan"), pd.NA, pd.NaT, Decimal("nan"), UNITLESS, np.inf, Decimal("inf"), 10**400,
    10**5000, datetime.date(2020, 1, 1), datetime.time(1), datetime.timedelta(1), pd.Timestamp("2020"),
    np.datetime64("2020"), uuid.UUID(int=1), 1j, (1, 2), [1], {}, pd.Period("2020"), pd.Interval(0, 1),
]  # fmt: skip


def declaring(value):
    """Schemas that declare a value as category, group and class, as functions."""
    return (
        lambda: schema_of(x=[value, 5, "zz"]),
        lambda: schema_of(x={"from": {"a": value, "b": "c"}}),
        lambda: Schema({"x": (0, 1)}, classes=[value, 5]),
    )


@pytest.mark.parametrize("value", HELD, ids=repr)
def test_what_a_file_can_hold_may_be_declared(value):
    for declare in declaring(value):
        schema = declare()
        held = json.loads(json.dumps(schema.to_dict(), allow_nan=False))
        assert Schema.from_dict(held).to_dict() == schema.to_dict()


@pytest.mark.parametrize("value", NOT_HELD, ids=lambda value: str(type(value)))
def test_what_a_file_cannot_hold_is_refused_where_it_is_declared(value):
    """And not when the model file of a charged fit is written."""
    for declare in declaring(value):
        with pytest.raises(SchemaError):
            declare()


def test_quoted_bounds_of_a_target_are_told_too():
    target = {"name": "y", "type": "numeric", "low": 0, "high": "50000"}
    with pytest.raises(SchemaError, match=r"the target: high='50000' is text.*high is 50000"):
        Schema.from_dict({"features": {"x": {"type": "bool"}}, "target": target})


def test_an_encoded_column_may_not_be_named_as_a_feature_is():
    with pytest.raises(
        SchemaError, match=r"'x' is encoded as a column 'x.days', which is a feature too"
    ):
        schema_of(**{"x.days": (0, 1), "x": Datetime("2020-01-01", "2020-01-31")})


def test_a_mapping_may_have_thousands_of_values():
    mapping = {f"{k:05}": f"region {k // 400}" for k in range(41_000)}
    schema = schema_of(zip={"from": mapping})
    assert len(schema.encoded["zip"].categories) == 103
    assert np.array_equal(schema.features["zip"].groups, [f"region {k}" for k in range(103)])


def test_a_schema_of_numbers_and_lists_is_written_as_ever():
    """Its JSON text, of which model files and the ledger hold digests, has nothing new."""
    schema = Schema({"a": (0, 1), "b": Numeric(0, 9, integer=True), "c": ["x", 1]}, classes=[0, 1])
    assert json.dumps(schema.to_dict()) == (
        '{"version": 1, "features": {"a": {"type": "numeric", "low": 0.0, "high": 1.0, "integer": false, "missing":'
        ' false}, "b": {"type": "numeric", "low": 0.0, "high": 9.0, "integer": true, "missing": false}, "c": {"type":'
        ' "categorical", "categories": ["x", 1], "missing": false}}, "target": {"name": "target", "type": "binary",'
        ' "classes": [0, 1]}, "ignore": [], "max_weight": 1}'
    )


def test_bounds_are_told_as_they_are_declared():
    """Six digits would make one number of both, which nobody declared."""
    near = Numeric(10**9, 10**9 + 500, integer=True)
    assert in_words(near) == "whole numbers in [1e+09, 1000000500]"
    with pytest.raises(SchemaError, match=r"low=1000000500 is above high=1e\+09"):
        schema_of(x=(10**9 + 500, 10**9))
