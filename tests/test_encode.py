"""From a block of rows to codes: every value has a code, and only structure raises."""

import datetime
import decimal
import fractions
import uuid
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpgb_dask.contracts.grid import FINE, Grid
from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.schema import Categorical, Numeric, Schema
from dpgb_dask.encoding.codes import cells_of, encode, read_values
from dpgb_dask.encoding.columns import category_cells, numbers
from dpgb_dask.encoding.structure import check_columns, check_file_types
from dpgb_dask.encoding.target import encode_target, encode_weight
from dpgb_dask.errors import SchemaError, StructureError
from dpgb_dask.private.reading.units import hash_units

EDGES = np.array([-1.0, 0.0, 1.5])
NAN = np.nan
ONE = Schema({"x": (-3, 3)}, classes=[0, 1])
BINS = (FeatureBins(EDGES, None, 5),)


def code_of(values):
    """Codes of one numeric column, as a list."""
    return encode(pd.DataFrame({"x": values}), ONE, BINS)[0].tolist()


NUMBER_COLUMNS = {
    "float64": (np.array([-5, -1, 0, 1, 2, NAN]), [0, 0, 1, 2, 3, 4]),
    "float32": (np.array([-5, -1, 0, 1, 2, NAN], np.float32), [0, 0, 1, 2, 3, 4]),
    "float16": (np.array([-np.inf, 1.5, np.inf], np.float16), [0, 2, 3]),
    "inf": (np.array([np.inf, -np.inf]), [3, 0]),
    "longdouble": (np.array(["1e4000", "-1e4000", "0.5"], np.longdouble), [3, 0, 2]),
    "big-endian": (np.array([-5, 1, 2], ">f8"), [0, 2, 3]),
    "int64": (np.array([-5, 0, 2]), [0, 1, 3]),
    "uint8": (np.array([0, 1, 255], np.uint8), [1, 2, 3]),
    "bool": (np.array([False, True]), [1, 2]),
    "Int64": (pd.array([-5, None, 2], "Int64"), [0, 4, 3]),
    "Float64": (pd.array([-5, None, 2], "Float64"), [0, 4, 3]),
    "boolean": (pd.array([False, None, True], "boolean"), [1, 4, 2]),
    "arrow int": (pd.array([-5, None, 2], pd.ArrowDtype(pa.int64())), [0, 4, 3]),
    "arrow bool": (pd.array([False, None, True], pd.ArrowDtype(pa.bool_())), [1, 4, 2]),
    "arrow decimal": (
        pd.array([decimal.Decimal("1.50"), None], pd.ArrowDtype(pa.decimal128(5, 2))),
        [2, 4],
    ),
    "arrow null": (pd.array([None, None], pd.ArrowDtype(pa.null())), [4, 4]),
    "categorical of numbers": (pd.Categorical([2, 0, None, 2]), [3, 1, 4, 3]),
    "sparse": (pd.arrays.SparseArray([0.0, 2.0, NAN]), [1, 3, 4]),
    "object": (
        np.array([1, "0.5", None, "many", b"2", True, decimal.Decimal(1), pd.NA, [1]], object),
        [2, 2, 4, 4, 3, 2, 2, 4, 4],
    ),
    "huge": (np.array([10**400, -(10**400), 1, "x", 2**63, 1j], object), [3, 0, 2, 4, 3, 4]),
}


@pytest.mark.parametrize("name", NUMBER_COLUMNS)
def test_numbers_have_a_total_map(name):
    values, expected = NUMBER_COLUMNS[name]
    dtype = object if values.dtype == object else None  # pandas would make text of it
    assert code_of(pd.Series(values, dtype=dtype)) == expected


@pytest.mark.parametrize("name", ["object", "huge"])
def test_a_value_is_read_the_same_alone_and_among_others(name):
    values, expected = NUMBER_COLUMNS[name]
    alone = [code_of(pd.Series(values[k : k + 1], dtype=object))[0] for k in range(len(values))]
    assert alone == expected


def test_masked_values_are_missing():
    column = np.ma.masked_array([[1.0], [2.0]], [[True], [False]])
    assert encode(column, ONE, BINS).tolist() == [[4, 3]]


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


def test_encode_gives_the_same_codes_for_every_kind_of_block():
    rng = np.random.default_rng(0)
    schema = Schema({"x": (-3, 3), "c": Categorical((0, 1, 2)), "k": (0, 5)}, classes=[0, 1])
    bins = (
        FeatureBins(EDGES, None, 5),
        FeatureBins(None, np.array([1, 0, 1, 2, 3], np.uint8), 4),
        FeatureBins(np.array([2.5]), None, 3),
    )
    n = 1000
    matrix = np.stack(
        [rng.normal(size=n), rng.integers(0, 5, n), rng.integers(0, 6, n)], axis=1
    ).astype(np.float32)
    matrix[::7] = NAN
    frame = pd.DataFrame(matrix, columns=["x", "c", "k"])
    blocks = [
        matrix,
        np.asfortranarray(matrix),
        matrix.astype(np.float64),
        matrix.astype(">f4"),
        matrix.astype(object),
        np.repeat(matrix, 2, axis=0)[::2],
        frame,
        frame.astype({"c": "Int64", "k": "Float32"}),
        tuple(matrix.T),
    ]
    expected = encode(frame, schema, bins)
    assert expected.flags.c_contiguous
    for block in blocks:
        np.testing.assert_array_equal(encode(block, schema, bins), expected)


def test_cells_follow_the_public_grid():
    schema = Schema({"x": (-1, 1), "c": ["a", "b"]}, classes=[0, 1])
    grid = Grid.of(schema, FINE)
    frame = pd.DataFrame({"x": [-9.0, 9.0, NAN, 0.3], "c": ["b", "z", None, "a"]})
    out = cells_of(read_values(frame, schema), grid)
    edges = grid.edges[0]
    assert out[0].tolist() == [0, len(edges), len(edges) + 1, np.searchsorted(edges, 0.3)]
    assert out[1].tolist() == [1, 2, 3, 0]


def test_labels_unknown_are_invalid():
    schema = Schema({"x": (0, 1)}, classes=["no", "yes", "maybe"])
    label, valid = encode_target(pd.Series(["yes", "?", None, "maybe"]), schema)
    assert label.dtype == np.uint8
    assert label[valid].tolist() == [1, 2]
    assert valid.tolist() == [True, False, False, True]


@pytest.mark.parametrize("bounds", [(-2.0, 6.0), (-1.7e308, 1.7e308), (0.0, 1e-300)])
def test_numeric_targets_are_clipped_to_public_bounds(bounds):
    schema = Schema({"x": (0, 1)}, target_bounds=bounds)
    low, high = bounds
    y = np.array([low, high, low / 2 + high / 2, np.inf, -np.inf, NAN])
    steps, valid = encode_target(y, schema)
    assert steps.dtype == np.int32
    assert steps[:5].tolist() == [-65536, 65536, 0, 65536, -65536]
    assert valid.tolist() == [True] * 5 + [False]


def test_weights_are_rounded_down_and_clipped():
    w = np.array([0.0, 0.3, 1.0, 2.99, 9.0, np.inf, NAN, -1.0, -np.inf])
    steps = encode_weight(w, 3, 2)
    assert steps.dtype == np.int32
    assert steps.tolist() == [0, 1, 4, 11, 12, 12, 0, 0, 0]


# ---- structure -------------------------------------------------------------------------------------------------------

SCHEMA = Schema(
    {"x": Numeric(0, 1), "c": Categorical(("a", "b"))}, classes=[0, 1], target="y", ignore=["id"]
)


def frame_of(**columns):
    return pd.DataFrame({name: pd.Series(values) for name, values in columns.items()})


def test_declared_columns_that_are_no_features_may_stay():
    frame = frame_of(id=[1], x=[0.5], y=[1], c=["a"])
    assert check_columns(frame, SCHEMA) == (1, 3)


@pytest.mark.parametrize(
    ("frame", "match"),
    [
        (frame_of(x=[0.5]), r"missing=\['c'\]"),
        (
            frame_of(x=[0.5], c=["a"], d=[1]),
            r"schema: the data have columns that .* does not declare; schema.check",
        ),
        (
            frame_of(X=[0.5], c=["a"]),
            r"missing=\['x'\], and the data have columns that the schema does",
        ),
        (frame_of(c=["a"], x=[0.5]), "another order"),
        (pd.concat([frame_of(x=[0.5], c=["a"]), frame_of(x=[1.0])], axis=1), "twice"),
    ],
)
def test_columns_that_do_not_match_raise(frame, match):
    with pytest.raises(SchemaError, match=match):
        check_columns(frame, SCHEMA)


@pytest.mark.parametrize(
    "values",
    [
        pd.array(["1"], "str"),
        pd.array(["1"], "string"),
        pd.array(["1"], pd.ArrowDtype(pa.string())),
        pd.array(["1"], pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))),
        pd.Categorical(["1"]),
        pd.Categorical(pd.Index(["1"], dtype=object)),
        np.array(["2020-01-01"], "datetime64[s]"),
        np.array([1j]),
    ],
    ids=lambda v: str(v.dtype),
)
def test_a_type_that_is_no_number_raises_in_files_alone(values):
    frame = frame_of(x=values, c=["a"])
    check_columns(frame, SCHEMA)
    with pytest.raises(SchemaError, match="'x' is declared numeric"):
        check_file_types(dict(frame.dtypes), SCHEMA)


@pytest.mark.parametrize("dtype", ["U3", "S3", np.dtypes.StringDType()])
def test_text_of_numpy_raises_in_files_alone(dtype):
    block = np.zeros((3, 2)).astype(dtype)
    check_columns(block, SCHEMA)
    with pytest.raises(SchemaError, match="'x' is declared numeric"):
        check_file_types({"x": block.dtype}, SCHEMA)


def test_untyped_columns_are_allowed_in_files():
    for column in (pd.Series(["1"], dtype=object), pd.array([None], pd.ArrowDtype(pa.null()))):
        frame = frame_of(x=column, c=["a"])
        check_columns(frame, SCHEMA)
        check_file_types(dict(frame.dtypes), SCHEMA)


def test_arrays_match_by_position_and_width():
    assert check_columns(np.zeros((0, 2)), SCHEMA) == (0, 1)
    assert check_columns(pd.DataFrame(np.zeros((3, 2))), SCHEMA) == (0, 1)
    with pytest.raises(StructureError, match="another number of columns"):
        check_columns(np.zeros((4, 3)), SCHEMA)
    with pytest.raises(StructureError, match="two dimensions"):
        check_columns(np.zeros(4), SCHEMA)


def test_a_text_target_raises_where_a_file_declares_it_and_the_schema_a_number():
    schema = Schema({"x": (0, 1)}, target_bounds=(0, 1))
    check_columns(np.zeros(3), schema, target=True)
    check_columns(np.array(["a"]), schema, target=True)
    check_file_types({"target": np.dtype(float)}, schema)
    with pytest.raises(SchemaError, match="target 'target' is declared numeric"):
        check_file_types({"target": np.array(["a"]).dtype}, schema)


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
@pytest.mark.parametrize("name", READERS)
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


@pytest.mark.parametrize(
    "column",
    [
        pd.Categorical(["1", "x"]),
        pd.array(["1", "x"], "str"),
        np.array(["2020", "2021"], "datetime64[ns]"),
        np.array([1j, 2]),
    ],
    ids=lambda c: str(c.dtype),
)
def test_dtypes_of_rows_are_not_structure(column):
    """A type depends on all values of a column: each value is read for itself, a real number also as complex."""
    frame = pd.DataFrame({"x": column})
    assert encode(frame, ONE, BINS).tolist()[0][0] == (2 if "1" in column[:1] else 4)
    assert encode(frame, ONE, BINS).tolist()[0][1] == (3 if column.dtype == complex else 4)
    assert cells_of(read_values(frame, ONE), Grid.of(ONE, FINE)).shape == (1, 2)
    check_columns(frame, ONE)


def test_messages_name_the_kind_of_a_column_not_its_length():
    text = np.full((3, 2), "secret-4711")
    with pytest.raises(SchemaError, match="kind 'text'") as caught:
        check_file_types({"x": text.dtype}, SCHEMA)
    assert "11" not in str(caught.value)


SIGNALLING = {
    "float16": np.array([0x7D00] * 2, np.uint16).view(np.float16),
    "float32": np.array([0x7FA00000] * 2, np.uint32).view(np.float32),
    "float64": np.array([0x7FF4000000000000] * 2, np.uint64).view(np.float64),
    "longdouble": np.array(["1e4000", "nan"], np.longdouble),
    "infinite": np.array([np.inf, -np.inf], np.float32),
    "object": np.array([np.longdouble("1e4000"), np.float32(1)], object),
}


@pytest.mark.parametrize("name", SIGNALLING)
def test_no_float_warns(name):
    x = SIGNALLING[name]
    schema = Schema({"x": (0, 1), "c": [0, 1]}, target_bounds=(-1e300, 1e300))
    labels = Schema({"x": (0, 1)}, classes=[0, 1])
    bins = (FeatureBins(EDGES, None, 5), FeatureBins(None, np.arange(4, dtype=np.uint8), 4))
    with np.errstate(all="raise"):
        for block in (np.stack([x, x], axis=1), pd.DataFrame({"x": x, "c": x}), (x, x)):
            encode(block, schema, bins)
            cells_of(read_values(block, schema), Grid.of(schema, FINE))
        encode_target(x, schema)
        encode_target(x, labels)
        encode_weight(x, 3, 2)


@pytest.mark.parametrize("bounds", [(0, 5e-324), (-5e-324, 5e-324), (1e-310, 2e-310)])
def test_target_bounds_too_close_to_scale_are_refused(bounds):
    with pytest.raises(SchemaError, match="closer"):
        Schema({"x": (0, 1)}, target_bounds=bounds)


@pytest.mark.parametrize("bounds", [(0, 5e-308), (1.0, np.nextafter(1.0, 2)), (-1.7e308, 1.7e308)])
def test_target_steps_never_exceed_their_bound(bounds):
    schema = Schema({"x": (0, 1)}, target_bounds=(0, 1))
    schema.target = replace(schema.target, low=bounds[0], high=bounds[1])
    steps, _ = encode_target(np.array([*bounds, 0, np.inf, -np.inf, 1e300, NAN]), schema)
    assert np.abs(steps.astype(np.int64)).max() <= 65536


@pytest.mark.parametrize(
    ("declared", "column", "good"),
    [
        (["a", "b"], pd.Series([0, 1]), False),
        (["a", "b"], pd.Series([True, False]), False),
        (["a", "b"], pd.Series([np.nan, np.nan]), True),
        (["a", "1"], pd.Series([0, 1]), True),
        ([0, 1], pd.Series(["0", "1"], dtype="str"), True),
        (["0", "1"], pd.Series([0, 1]), True),
        ([0, "a"], pd.Series(["0", "a"], dtype="str"), True),
        ([0, 1], pd.Series([0.0, 1.0]), True),
        (["a", "b"], pd.Series(["a", "b"], dtype="category"), True),
    ],
)
def test_labels_of_a_type_that_can_never_match_raise_in_files_alone(declared, column, good):
    feature = Schema({"f": declared}, classes=[0, 1])
    target = Schema({"x": (0, 1)}, classes=declared, target="f")
    check_columns(column.to_frame("f"), feature)
    check_columns(column, target, target=True)
    for schema in (feature, target):
        if good:
            check_file_types({"f": column.dtype}, schema)
        else:
            with pytest.raises(SchemaError, match="none can match"):
                check_file_types({"f": column.dtype}, schema)
