"""Columns read as numbers or categories: every value has a place, which no other value changes."""

import datetime
import decimal
import fractions
import uuid
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from thinned import thinned

from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.categories import category_cells
from dpgb_dask.encoding.columns import numbers
from dpgb_dask.encoding.target import encode_target
from dpgb_dask.errors import SchemaError
from dpgb_dask.private.reading.units import hash_units

NAN = np.nan
CATEGORIES = ("a", "b", "c")

CATEGORY_COLUMNS = {
    "object": np.array(["b", "a", "z", None, NAN, 3, [1]], object),
    "unhashable": np.array(["b", ["a"], {}], object),
    "fixed": np.array(["b", "a", "z"]),
    "bytes": np.array([b"b", b"a", b"\xff"]),
    "numpy string": np.array(["b", "z"], np.dtypes.StringDType()),
    "str": pd.array(["b", None, "z"], "str"),
    "string": pd.array(["b", None, "z"], "string"),
    "arrow": pd.array(["b", None, "z"], pd.ArrowDtype(pa.string())),
    "arrow dictionary": pd.array(
        ["b", None, "z"], pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))
    ),
    "categorical": pd.Categorical(["b", "z", None, "c"]),
    "numbers": np.array([1.0, NAN]),
    "dates": np.array(["2020-01-01"], "datetime64[s]"),
}
CATEGORY_CODES = {
    "object": [1, 0, 3, 4, 4, 3, 3],
    "unhashable": [1, 3, 3],
    "fixed": [1, 0, 3],
    "bytes": [1, 0, 3],
    "numpy string": [1, 3],
    "categorical": [1, 3, 4, 2],
    "numbers": [3, 4],
    "dates": [3],
}


@pytest.mark.parametrize("name", CATEGORY_COLUMNS)
def test_categories_have_a_total_map(name):
    column = pd.Series(CATEGORY_COLUMNS[name])
    expected = CATEGORY_CODES.get(name, [1, 4, 3])
    assert category_cells(column, CATEGORIES).tolist() == expected
    if isinstance(CATEGORY_COLUMNS[name], np.ndarray):
        assert category_cells(CATEGORY_COLUMNS[name], CATEGORIES).tolist() == expected


@pytest.mark.parametrize(
    "column",
    [
        np.array([3, 1, 7]),
        np.array([3, 1, 7], np.float32),
        np.array([3, 1, 7], np.uint8),
        np.array([3, 1.0, 7], object),
        pd.array([3, 1, 7], "Int64"),
        pd.Categorical([3, 1, 7]),
    ],
    ids=lambda c: str(c.dtype),
)
def test_integer_categories_match_any_number_type(column):
    assert category_cells(pd.Series(column), (1, 2, 3)).tolist() == [2, 0, 3]


def test_booleans_match_boolean_and_number_categories():
    assert category_cells(np.array([True, False]), (False, True)).tolist() == [1, 0]
    assert category_cells(np.array([1.0, 0.0, NAN]), (False, True)).tolist() == [1, 0, 3]
    assert category_cells(pd.array([True, None], "boolean"), (0, 1)).tolist() == [1, 3]


def test_numbers_does_not_copy_floats():
    x = np.arange(4.0)
    assert numbers(x) is x


class Hostile:
    """A value that fails whatever is done with it."""

    def fail(self, *_):
        raise RuntimeError("secret-value-4711")

    __eq__ = __hash__ = __float__ = __int__ = __str__ = fail


class HostileText(str):
    """A text that fails whatever is done with it."""

    def fail(self, *_):
        raise RuntimeError("secret-value-4711")

    __eq__ = __hash__ = __str__ = endswith = rstrip = lower = strip = __len__ = __iter__ = fail


class EqualsAll:
    """A value that claims to be any other."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash("a")


WILD = [
    *(None, NAN, pd.NA, pd.NaT, 1, 1.5, True, "a", "1", " 2", "1e5", "\x00", "\ud800", b"a", b"\xff"),
    *(10**400, -(10**400), 2**63, 2**64, 1j, "9" * 500, "-inf", "nan", [1], {}, (1, 2), len, ...),
    *(decimal.Decimal("NaN"), decimal.Decimal("sNaN"), decimal.Decimal("1e999999")),
    *(np.datetime64("NaT"), np.datetime64("2020"), np.timedelta64(1, "s"), pd.Timestamp("2020")),
    *(np.float16(np.inf), np.int8(3), np.str_("a"), np.bytes_(b"a"), np.bool_(True), np.arange(2)),
    *(pd.Interval(0, 1), pd.Period("2020"), Hostile(), HostileText("a"), EqualsAll(), np.array([NAN]), "a\x00"),
    *("'\\ud800'", np.str_("7"), np.int64(2**53 + 1), 2.0**53, fractions.Fraction(1, 3), 0.0, -1),
    *(uuid.UUID(int=3), (1.0, 2), datetime.date(2020, 1, 1), np.datetime64(0, "as"), 10**5000),
]  # fmt: skip


def objects(values):
    out = np.empty(len(values), object)
    for k, value in enumerate(values):
        out[k] = value
    return out


CATEGORY_LISTS = [
    ("a", 1, 2.5),
    ("a", "b", None),
    (0, 1, NAN),
    (pd.NA, "a", pd.NaT),
    ("\ud800", b"a", "1"),
    (True, False, 10**400),
    ((1, 2), decimal.Decimal("2.5"), 2**53),
]
READERS = {
    "numbers": numbers,
    "units": lambda column: hash_units(column, bytes(32)),
    **{str(k): partial(category_cells, categories=c) for k, c in enumerate(CATEGORY_LISTS)},
}


def check_equal(one, other):
    if one.dtype.kind == "f":
        np.testing.assert_array_equal(one, other)
    else:
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", thinned(READERS, every=3))
def test_no_value_changes_the_place_of_others(name, half):
    read = READERS[name]
    columns = [[v, v] for v in WILD] + [[v, 1.0, v, "a", None] for v in WILD]
    for k, values in enumerate(columns):
        alone = read(objects(values))
        for j, value in enumerate(WILD):
            if (j + k) % 2 == half:
                check_equal(read(objects([*values, value]))[:-1], alone)
            else:
                check_equal(read(objects([value, *values]))[1:], alone)


@pytest.mark.parametrize("name", READERS)
def test_any_object_has_a_place_that_its_neighbours_do_not_change(name):
    read = READERS[name]
    alone = [read(objects([value]))[0] for value in WILD]
    rng = np.random.default_rng(0)
    for _ in range(100):
        chosen = rng.integers(0, len(WILD), rng.integers(1, 12))
        together = read(objects([WILD[k] for k in chosen]))
        for value, k in zip(together, chosen, strict=True):
            assert value == alone[k] or (value != value and alone[k] != alone[k])


@pytest.mark.parametrize("value", [np.array(3.0), np.array(NAN), np.array([1.0])], ids=repr)
def test_an_array_in_a_cell_is_no_number(value):
    assert np.isnan(numbers(objects([value]))).all()
    assert np.isnan(numbers(objects([value, -1]))[0])


@pytest.mark.parametrize("missing", [None, NAN, pd.NA], ids=repr)
def test_a_missing_value_is_missing_even_where_it_is_listed(missing):
    categories = ("a", missing, 1)
    for values in ([missing, "a"], [missing, "a", [1]], [missing, "a", pd.Timestamp(0)]):
        assert category_cells(objects(values), categories)[:2].tolist() == [4, 0]
    assert category_cells(np.array([NAN, 1.0]), categories).tolist() == [4, 2]
    assert category_cells(pd.Series(["a", None], dtype="str"), categories).tolist() == [0, 4]
    _, valid = encode_target(objects([missing, "a"]), Schema({"x": (0, 1)}, classes=["a", 1]))
    assert valid.tolist() == [False, True]
    with pytest.raises(SchemaError, match="classes hold a missing value"):
        Schema({"x": (0, 1)}, classes=categories)


def test_a_date_that_python_cannot_hold_is_another_category():
    column = pd.Series(pd.arrays.ArrowExtensionArray(pa.array([0, 2**31 - 1], pa.date32())))
    categories = (datetime.date(1970, 1, 1), "a")
    assert category_cells(column, categories).tolist() == [0, 2]
    hash_units(column, bytes(32))
