"""Codes and cells of a block of rows, labels and weights: every value has one, whatever holds it."""

import decimal
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpgb_dask.contracts.features import Categorical
from dpgb_dask.contracts.grid import FINE, Grid
from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.codes import cells_of, encode, encode_target, encode_weight, read_values
from dpgb_dask.encoding.structure import check_columns
from dpgb_dask.errors import SchemaError

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


@pytest.mark.parametrize(
    "column",
    [
        pd.Categorical(["1", "x"]),
        pd.Series(["1", "x"]).array,
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


def test_weights_are_rounded_and_clipped():
    w = np.array([0.0, 0.3, 1.0, 2.99, 9.0, np.inf, NAN, -1.0, -np.inf])
    steps = encode_weight(w, 3, 2)
    assert steps.dtype == np.int32
    assert steps.tolist() == [0, 1, 4, 12, 12, 12, 0, 0, 0]


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
