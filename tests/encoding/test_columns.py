"""Columns read as numbers or categories: every value has a place, which no other value changes."""

import datetime
import decimal
import fractions
import hashlib
import uuid
import weakref
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from odd_dates import UNITLESS
from thinned import thinned

from dpgb_dask.contracts.features import Categorical, Hashed, feature_of
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.codes import encode_target
from dpgb_dask.encoding.columns import (
    Buckets,
    Places,
    _mapped,
    as_columns,
    category_cells,
    cells_by,
    feature_cells,
    numbers,
    split_columns,
)
from dpgb_dask.encoding.columns import objects as objects_of
from dpgb_dask.encoding.structure import family
from dpgb_dask.encoding.times import seconds
from dpgb_dask.errors import SchemaError
from dpgb_dask.kernels.bin import MAX_EDGES
from dpgb_dask.private.reading.rows import slice_block
from dpgb_dask.private.reading.units import hash_units
from dpgb_dask.released.runtimes import scorer
from dpgb_dask.values import NO_FORM, cells, unit_names

NAN = np.nan
CATEGORIES = ("a", "b", "c")

DENSE = [
    np.array(["2020-01-01", "NaT", "2021-01-01"], "M8[ns]"), np.array(["2020-01-01", "NaT"], "M8[s]"),
    np.array([1, 2], "m8[ns]"), np.array([0, 1, 7]), np.array([0, 1.5, NAN]), np.array([True, False]),
    np.array([1j, 1]), np.array(["b", None, "1"], object),
]  # fmt: skip


@pytest.mark.parametrize("dense", DENSE, ids=lambda values: str(values.dtype))
def test_a_sparse_column_is_read_as_its_values_are(dense):
    column, same = pd.Series(pd.arrays.SparseArray(dense)), pd.Series(dense)
    assert np.array_equal(numbers(column), numbers(same), equal_nan=True)
    assert np.array_equal(seconds(column), seconds(same), equal_nan=True)
    for index in (Places.of(["b", 1]), Buckets(9)):
        assert np.array_equal(cells_by(column, index), cells_by(same, index))
    assert family(column.dtype) == family(dense.dtype)


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrow_floats_are_read_where_they_lie(dtype):
    values = np.array([1.5, np.nan, -0.0, np.inf], dtype)
    whole = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([values])))
    with_null = pa.array([1.5, None, -0.0, np.inf], pa.from_numpy_dtype(dtype))
    split = pa.chunked_array([with_null[:2], with_null[2:]])
    frame = pd.DataFrame(
        {"a": whole, "b": pd.Series(pd.arrays.ArrowExtensionArray(with_null))}
    ).assign(c=pd.Series(pd.arrays.ArrowExtensionArray(split)), d=values, e=["x", "1", None, "2"])
    schema = Schema({name: (0.0, 1.0) for name in frame}, classes=[0, 1])
    for block in (frame, as_columns(frame, schema)):
        for rows in (slice(0, 4), slice(1, 3)):
            columns = split_columns(slice_block(block, rows), schema)
            read = [numbers(column) for column in columns]
            for got in read[:4]:
                np.testing.assert_array_equal(got, values[rows])
            np.testing.assert_array_equal(read[4], [np.nan, 1, np.nan, 2][rows])
            assert {column.dtype for column in read[:4]} == {np.dtype(dtype)}
            words = {column.tobytes() for column in read[1:3]}
            assert len(words) == 1  # a mark is of the bits
            assert np.shares_memory(read[0], values)
            assert np.shares_memory(read[3], frame["d"].to_numpy())


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


class Pair:
    """A value that compares part by part, as data classes do from Python 3.13 on."""

    def __init__(self, left, right):
        self.left, self.right = left, right

    def __eq__(self, other):
        return self.left == other.left and self.right == other.right

    __hash__ = object.__hash__


class Unnamed:
    """A value that does not tell its class, as a proxy of what is gone."""

    @property
    def __class__(self):
        raise RuntimeError("secret-value-4711")


class Liar:
    """A value that says that it is of another class."""

    def __init__(self, kind):
        self.kind = kind

    @property
    def __class__(self):
        return self.kind


class HostileList(list):
    """A list that fails whatever is done with it."""

    def fail(self, *_):
        raise RuntimeError("secret-value-4711")

    __eq__ = __hash__ = __len__ = __iter__ = __getitem__ = fail


GONE = weakref.proxy(Pair(1, 2))
RELEASED = memoryview(b"a")
RELEASED.release()

WILD = [
    *(None, NAN, pd.NA, pd.NaT, 1, 1.5, True, "a", "1", " 2", "1e5", "\x00", "\ud800", b"a", b"\xff"),
    *(10**400, -(10**400), 2**63, 2**64, 1j, "9" * 500, "-inf", "nan", [1], {}, (1, 2), len, ...),
    *(decimal.Decimal("NaN"), decimal.Decimal("sNaN"), decimal.Decimal("1e999999")),
    *(UNITLESS, np.datetime64("2020"), np.timedelta64(1, "s"), pd.Timestamp("2020")),
    *(np.float16(np.inf), np.int8(3), np.str_("a"), np.bytes_(b"a"), np.bool_(True), np.arange(2)),
    *(pd.Interval(0, 1), pd.Period("2020"), Hostile(), HostileText("a"), EqualsAll(), np.array([NAN]), "a\x00"),
    *("'\\ud800'", np.str_("7"), np.int64(2**53 + 1), 2.0**53, fractions.Fraction(1, 3), 0.0, -1),
    *(uuid.UUID(int=3), (1.0, 2), datetime.date(2020, 1, 1), np.datetime64(0, "as"), 10**5000),
    *(bytearray(b"a"), memoryview(b"a"), memoryview(np.arange(2.0)), RELEASED),
    *(GONE, Unnamed(), HostileList([1]), *map(Liar, (str, bytes, int, float, tuple, list, complex))),
    *map(Liar, (decimal.Decimal, pd.Timestamp, datetime.date, uuid.UUID, np.datetime64, np.ndarray)),
]  # fmt: skip


RECORD = np.dtype([("left", object), ("right", object)])
PAIRS = {
    "tuples": lambda x: (x, x),
    "lists": lambda x: [x, x],
    "sets": lambda x: frozenset([(x, 1), (x, 2)]),
    "mappings": lambda x: {1: x, 2: x},
    "objects": lambda x: Pair(x, x),
    "records": lambda x: np.array([(x, x)], RECORD)[0],
    "arrays": lambda x: objects([x, x]),
    "tuples of lists": lambda x: ([x], [x]),
    "a tuple of long texts": lambda x: (x, x) if isinstance(x, tuple) else ("x" * 100_000,) * 500,
}


def shared(kind, levels=60):
    """A small value that leads to its parts in 2 to the power of ``levels`` ways."""
    value = 1
    for _ in range(levels):
        value = PAIRS[kind](value)
    return value


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


def test_bytes_of_other_types_are_read_as_bytes():
    column = objects(
        [b"7", bytearray(b"7"), memoryview(b"7"), memoryview(np.frombuffer(b"7", np.uint8))]
    )
    assert unit_names(column) == ["7"] * 4
    assert numbers(column).tolist() == [7.0] * 4
    assert len(set(hash_units(column, bytes(32)).tolist())) == 1


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", thinned(READERS, every=12))
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


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("name", READERS)
def test_what_shares_its_parts_is_read_at_once(name, kind):
    read = READERS[name]
    value = shared(kind)
    got = read(objects([value, 7, "a"]))
    check_equal(got[1:], read(objects([7, "a"])))
    check_equal(got[:1], read(objects([[1]])))  # no number, no unit, an unknown category


@pytest.mark.parametrize("kind", PAIRS)
def test_the_exported_scorer_reads_what_shares_its_parts_at_once(kind):
    assert scorer.form_of(shared(kind)) is scorer.NO_FORM
    assert scorer.seconds_of(shared(kind)) is None
    assert np.isnan(seconds(objects([shared(kind)])))


def test_tuples_have_a_form_up_to_a_size():
    for small, large in (
        ((1,) * 1000, (1,) * 1001),
        (((1,) * 499,) * 2, ((1,) * 499, (1,) * 500)),
        (((((((((1,),),),),),),),), (((((((((1,),),),),),),),),)),
        (("x" * 99_999,), ("x" * 100_000,)),
        ((b"x" * 99_999,), (b"x" * 100_000,)),
    ):
        assert isinstance(cells([small])[0], str)
        assert cells([large]) == [NO_FORM]
        assert unit_names([large]) == [None]
    assert cells([((1, 2), "3")]) == cells([(("1", 2.0), 3)]) == ["\x00t8:\x00t1:11:21:3"]
    texts = cells([(), ((),), (1, (2,)), ((1,), 2), (1, 2), (12,), ("a", ""), ((1, None),)])
    assert len({*map(str, texts)}) == 7  # the last two have no form


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


# ---- groups and buckets ----------------------------------------------------------------------------------------------

GROUPED = feature_of(
    "x", {"from": {"1": "n", "b": "t", "0a": "n", "NA": "namibia", "2020-01-01": "t"}}
)


@pytest.mark.parametrize(
    ("values", "cells"),
    [
        (
            [1, 1.0, True, "01", "b", b"b", "c", None, np.nan, "0a", 2],
            [0, 0, 0, 0, 1, 1, 3, 4, 4, 0, 3],
        ),
        (["NA", "N/A", "2020-01-01", datetime.date(2020, 1, 1), [1]], [2, 4, 1, 1, 3]),
    ],
)
def test_a_mapping_takes_values_to_their_groups_by_their_normal_forms(values, cells):
    column = np.empty(len(values), object)
    column[:] = values
    assert feature_cells(column, GROUPED).tolist() == cells
    if all(isinstance(value, str | None) for value in values):
        for dtype in ("str", "category", pd.ArrowDtype(pa.string())):
            assert feature_cells(pd.Series(values, dtype=dtype), GROUPED).tolist() == cells
    assert feature_cells(np.array([1.0, np.nan, 7]), GROUPED).tolist() == [0, 4, 3]


def test_a_mapping_of_thousands_of_values_is_indexed_once():
    feature = feature_of("x", {"from": {f"{k:05}": k // 400 for k in range(40_000)}})
    column = pd.Series([f"{k:05}" for k in range(0, 40_000, 7)])
    expected = (np.arange(0, 40_000, 7) // 400).tolist()
    assert feature_cells(column, feature).tolist() == expected
    assert feature_cells(column.astype(object), feature).tolist() == expected
    assert feature_cells(column.astype(int), feature).tolist() == expected
    assert _mapped.cache_info().hits >= 2


# pinned: the same in every process, version and runtime
BUCKETS = [
    ("a", 50), ("Berlin", 58), ("münchen", 83), ("007", 30), (7, 30), (7.0, 30), ("2.5", 30), ("1e300", 65), (True, 13),
    ("TRUE", 13), (None, 101), ("NA", 101), ([1], 100),
]  # fmt: skip


@pytest.mark.parametrize("n", [0, 1, 2, 40, 3000, MAX_EDGES + 1])
def test_numbers_have_the_cells_that_their_forms_have(n):
    rng = np.random.default_rng(n)
    declared = np.unique(np.concatenate([np.arange(n // 2), rng.normal(0, 1e6, n - n // 2)]))
    extremes = [np.inf, -np.inf] if n == 40 else []
    declared = [*rng.permutation(declared).tolist(), *extremes]
    index = Places.of(declared, [k % 7 for k in range(len(declared))])
    some = np.array(declared[:2000], np.float64)
    values = np.concatenate([some, np.nextafter(some, 9.0), [0.0, -0.0, np.nan, np.inf, -np.inf]])
    np.testing.assert_array_equal(index.of_numbers(values), index.each(values.tolist()))


def test_buckets_are_those_that_the_docs_define():
    feature = feature_of("x", {"buckets": 100})
    column = np.empty(len(BUCKETS), object)
    column[:] = [value for value, _ in BUCKETS]
    assert feature_cells(column, feature).tolist() == [bucket for _, bucket in BUCKETS]
    for text, bucket in (("Berlin", 58), ("7", 30), ("2.5", 30), ("1e+300", 65)):
        digest = hashlib.sha256(text.encode()).digest()
        assert int.from_bytes(digest[:8], "big") % 100 == bucket
    assert feature_cells(np.array([7, np.nan, 2.5]), feature).tolist() == [30, 101, 30]
    assert feature_cells(pd.Series(["a", None], dtype="category"), feature).tolist() == [50, 101]


@pytest.mark.parametrize("odd", [None, (0.5, 1), (-np.inf, 0)])
def test_an_interval_is_read_alike_whatever_the_others_of_its_column_are(odd):
    """Of one that is missing, or has a fraction, pandas makes floats of the ends of all."""
    told = [(0, 10), (10, 20), (20, 30), (5, 7)]
    whole, other = (pd.Series(pd.arrays.IntervalArray.from_tuples(t)) for t in (told, [*told, odd]))
    assert str(whole[0]) != str(other[0])
    for declared in (
        ["(0, 10]", "(10, 20]", "(20, 30]"],
        ["(0.0, 10.0]", "(10.0, 2e+1]", "(20.0, 30]"],
    ):
        categories = Categorical(declared)
        for column in (whole, other, other.astype(object), other.astype(str)):
            assert feature_cells(column, categories)[:4].tolist() == [0, 1, 2, 3]
    buckets = [feature_cells(column, Hashed(200))[:4].tolist() for column in (whole, other)]
    assert buckets[0] == buckets[1]
    assert len({*buckets[0]}) == 4
    assert unit_names(whole.tolist()) == unit_names(other.tolist())[:4]


@pytest.mark.parametrize("null", [None, "a"])
def test_lists_of_arrow_that_hold_a_null_are_read(null):
    """Arrow joins no lists of several chunks, of which one holds a null; a part without any value makes such."""
    one = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 1], pa.int32()), pa.array(["b", null])
    )
    parts = [one, pa.array(["c", "a", None]).dictionary_encode()]
    column = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array(parts)))
    at = 3 if null is None else 0
    cells = feature_cells(column, Categorical(["a", "b"]))
    assert cells.tolist() == [1, at, 3, at, 2, 0, 3]
    numbers_ = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array([7, None]))
    column = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([numbers_, numbers_[:1]])))
    assert feature_cells(column, Categorical(["a", 7])).tolist() == [1, 3, 3, 1]
    assert feature_cells(column[:0], Categorical(["a", 7])).tolist() == []


@pytest.mark.parametrize("unit", ["s", "us"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "+09:00"])
def test_a_time_is_read_alike_in_a_column_of_times_and_among_others(zone, unit):
    """Also the last and first hours of Python's calendar, in zones where they are beyond it."""
    at = [
        "0001-01-01T00:00:00",
        "2020-02-29T12:30:00",
        "9999-12-31T23:59:59",
        "10000-01-01T04:59:59",
    ]
    times = pd.Series(np.array(at, f"M8[{unit}]")).dt.tz_localize("UTC").dt.tz_convert(zone)
    alone = [cells([value])[0] for value in np.array(at, f"M8[{unit}]")]
    assert len({*alone}) == 4
    arrow = times.astype(pd.ArrowDtype(pa.timestamp(unit, zone)))
    for column in (
        times,
        times.array,
        arrow,
        arrow.dt.tz_localize(None) if zone == "UTC" else arrow,
    ):
        assert cells(objects_of(column)) == alone


def test_nan_is_missing_even_where_it_is_declared():
    assert category_cells(np.array(["nan", "NA"], object), ("nan", "NA")).tolist() == [3, 1]


def test_of_columns_with_one_name_the_first_is_read():
    frame = pd.DataFrame([[1.0, 2.0, 3.0]], columns=["a", "a", "b"])
    schema = Schema({"a": (0, 9), "b": (0, 9)}, classes=[0, 1])
    assert [float(column.iloc[0]) for column in split_columns(frame, schema)] == [1.0, 3.0]


@pytest.mark.parametrize("order", ["<", ">"])
def test_numbers_that_are_no_characters_end_nothing(order):
    texts = np.array(["a", "b", "a", ""], f"{order}U3")
    texts.view(f"{order}u4").reshape(4, 3)[1] = [0x110000, 5, 0]
    assert objects_of(texts) == ["a", "\ufffd\x05", "a", ""]
    assert feature_cells(texts, Categorical(["a", "b"])).tolist() == [0, 2, 0, 3]
    assert np.isnan(numbers(texts)).all()
    hash_units(texts, b"k" * 32)
    assert objects_of(np.array(["", ""], "U0")) == ["", ""]
