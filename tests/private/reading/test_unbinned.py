"""Rows that are kept until there are bins: their codes equal those made from the rows of the source."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from private.cases import BINS, GRID_BINS, KEY, KINDS, ROWS_KEY, rows_of, shape_of, unit_shape

from dpgb_dask.contracts.features import Categorical, Numeric
from dpgb_dask.contracts.grid import FINE, Grid, coarser_cells, numeric_edges
from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.codes import (
    bins_of_cells,
    cells_of,
    encode_cells,
    encode_values,
    read_values,
)
from dpgb_dask.private.reading.chunks import (
    STRIP_ROWS,
    Reading,
    Surveyor,
    encode_piece,
    encode_rows,
    survey_rows,
    unbinned_pieces,
)
from dpgb_dask.private.reading.rows import Rows
from dpgb_dask.private.reading.units import count_units

WEIGHT = {"max_weight": 3, "weight_bits": 2}
SCHEMA = Schema(
    {
        "wide": Numeric(-1e6, 1e6),
        "near zero": Numeric(0, 1),
        "count": Numeric(0, 1000, integer=True),
        "few": Numeric(0, 9, integer=True),
        "constant": Numeric(2, 2),
        "name": Categorical(("a", "b")),
    },
    classes=[0, 1],
)
GRID = Grid.of(SCHEMA, FINE)


def bins_on_grid(rng):
    """Bins that use some of the edges of the grid."""
    bins = []
    for edges in GRID.edges:
        if edges is None:
            bins.append(FeatureBins(None, rng.permutation(4).astype(np.uint8), 4))
        else:
            some = np.sort(rng.choice(edges, min(len(edges), int(rng.integers(0, 255))), False))
            bins.append(FeatureBins(some, None, len(some) + 2))
    return bins


def odd_rows(rng, dtype, n=400):
    """Values on, beside and far from edges, infinite values and missing ones."""
    columns = {}
    for name, edges in zip(SCHEMA.names, GRID.edges, strict=True):
        if edges is None:
            columns[name] = rng.choice(["a", "b", "c", None], n)
            continue
        near = edges.astype(dtype) if len(edges) else np.array([2], dtype)
        known = np.concatenate(
            [near, np.nextafter(near, dtype(np.inf)), np.nextafter(near, dtype(-np.inf))]
        )
        odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30], dtype)
        columns[name] = rng.permutation(np.concatenate([rng.choice(known, n - 70), *[odd] * 10]))
    return pd.DataFrame(columns)


@given(st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=30, deadline=None)
def test_codes_of_cells_are_the_codes_of_values(seed, dtype):
    rng = np.random.default_rng(seed)
    values = read_values(odd_rows(rng, dtype), SCHEMA)
    bins = bins_on_grid(rng)
    table = bins_of_cells(GRID, bins)
    np.testing.assert_array_equal(
        encode_cells(cells_of(values, GRID), table), encode_values(values, bins)
    )


@pytest.mark.parametrize(
    "edge",
    [np.mean(GRID.edges[0][3:5]), GRID.edges[0][0] - 1e-9, GRID.edges[0][-1] + 1e-9],
    ids=["inside", "below all", "above all"],
)
def test_bins_that_end_inside_a_cell_have_no_table(edge):
    bins = bins_on_grid(np.random.default_rng(0))
    bins[0] = FeatureBins(np.array([edge]), None, 3)
    assert bins_of_cells(GRID, bins) is None
    assert bins_of_cells(Grid.of(shape_of("binary").schema, FINE), BINS) is None


def test_a_cell_lies_in_the_coarse_cell_around_it():
    fine = numeric_edges(Numeric(0, 10), FINE)
    np.testing.assert_array_equal(coarser_cells(fine, fine), np.arange(len(fine) + 2))
    assert set(coarser_cells(fine, fine[:0])) == {0, 1}


def same_pieces(rows, reading, bins, block_rows, as_values=False):
    surveyor = Surveyor(rows, reading, 0)
    table = None if as_values else bins_of_cells(Grid.of(reading.shape.schema, FINE), bins)
    unbinned = list(unbinned_pieces(surveyor, block_rows, as_values=as_values))
    made = [encode_piece(piece, bins, table) for piece in unbinned]
    want = list(encode_rows(rows, reading, bins, block_rows))
    assert len(made) == len(want)
    for one, other in zip(made, want, strict=True):
        for part in ("codes", "label", "weight", "identity"):
            np.testing.assert_array_equal(getattr(one, part), getattr(other, part))
            a, b = getattr(one, part), getattr(other, part)
            assert a is b is None or a.dtype == b.dtype
    survey = survey_rows(rows, reading, 0)
    np.testing.assert_array_equal(surveyor.survey.sums, survey.sums)
    assert surveyor.survey[1:] == survey[1:]


@pytest.mark.parametrize("as_values", [False, True])
@pytest.mark.parametrize("block_rows", [97, 1 << 16])
@pytest.mark.parametrize("kind", KINDS)
def test_unbinned_pieces_become_the_pieces_of_rows(kind, block_rows, as_values):
    x, y, w = rows_of(kind, 1001)
    reading = Reading(shape_of(kind, **WEIGHT), KEY, rows_key=ROWS_KEY, starts=np.array([0, 1001]))
    bins = BINS if as_values else GRID_BINS
    for block in (x, x.to_numpy(np.float32), x.to_numpy(), tuple(x.to_numpy().T)):
        same_pieces(Rows(block, y, w), reading, bins, block_rows, as_values)


@pytest.mark.parametrize("as_values", [False, True])
def test_pieces_longer_than_a_strip(as_values):
    x, y, w = rows_of("binary", 2 * STRIP_ROWS + 5)
    reading = Reading(shape_of("binary", **WEIGHT), KEY)
    same_pieces(Rows(x, y, w), reading, GRID_BINS, 1 << 16, as_values)


def test_pieces_of_categories_alone():
    schema = Schema({"c": Categorical(("a", "b")), "d": Categorical((1, 2, 3))}, classes=[0, 1])
    frame = pd.DataFrame({"c": list("abxb"), "d": [3.0, 7.0, np.nan, 1.0]})
    bins = [FeatureBins(None, np.arange(n, dtype=np.uint8), n) for n in (4, 5)]
    rows = Rows(frame, np.array([0, 1, 1, 0]), None)
    for as_values in (False, True):
        same_pieces(rows, Reading(Shape(schema=schema), KEY), bins, 3, as_values)


def test_values_of_float32_are_kept_as_such():
    x, y, _ = rows_of("binary", 10)
    reading = Reading(shape_of("binary"), KEY)
    for dtype in (np.float32, np.float64):
        surveyor = Surveyor(Rows(x.to_numpy(dtype), y, None), reading, 0)
        (piece,) = unbinned_pieces(surveyor, 100, as_values=True)
        assert len(piece.codes) == 3 * np.dtype(dtype).itemsize


def test_cells_in_which_bins_end_are_not_encoded():
    x, y, _ = rows_of("binary", 10)
    (piece,) = unbinned_pieces(Surveyor(Rows(x, y, None), Reading(shape_of("binary"), KEY), 0), 10)
    assert encode_piece(piece, BINS, None) is None


def test_pieces_of_units():
    x, y, _ = rows_of("binary", 500)
    people = np.arange(500) % 123
    shape = unit_shape(shape_of("binary").schema, 2, 4)
    reading = Reading(shape, KEY, count_units(people, KEY), ROWS_KEY)
    same_pieces(Rows(x, y, None, people), reading, GRID_BINS, 128)


def test_a_chunk_in_which_no_row_weighs_anything():
    x, y, w = rows_of("binary", 50)
    reading = Reading(shape_of("binary", **WEIGHT), KEY)
    same_pieces(Rows(x, y, np.zeros_like(w)), reading, GRID_BINS, 16)
    same_pieces(Rows(x, y, np.zeros_like(w)), reading, GRID_BINS, 16, as_values=True)
    same_pieces(Rows(x[:0], y[:0], w[:0]), reading, GRID_BINS, 16)
