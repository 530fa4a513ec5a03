"""The public grids: every one is a coarsening of the finest."""

import itertools

import numpy as np
import pytest

from dpgb_dask import Schema
from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.grid import FINE, GRIDS, Grid, coarsening, numeric_edges

FEATURES = {
    "unit": Numeric(0, 1),
    "around zero": Numeric(-3, 1e6),
    "below zero": Numeric(-7e3, -2),
    "a value each": Numeric(17, 90, integer=True),
    "wide integers": Numeric(0, 100_000, integer=True),
    "constant": Numeric(2, 2),
    "without floats between": Numeric(2**53 - 10, 2**53, integer=True),
    "far whole numbers": Numeric(2**59, 2**59 + 128, integer=True),
}


@pytest.mark.parametrize("n_uniform", GRIDS)
@pytest.mark.parametrize("name", FEATURES)
def test_edges_of_a_grid_are_edges_of_the_finest(name, n_uniform):
    edges, finest = (numeric_edges(FEATURES[name], n) for n in (n_uniform, FINE))
    assert np.all(np.diff(edges) > 0)
    assert np.all(np.isin(edges, finest))


@pytest.mark.parametrize("name", FEATURES)
def test_every_edge_has_declared_values_on_both_sides(name):
    feature = FEATURES[name]
    edges = numeric_edges(feature, FINE)
    assert np.all((feature.low <= edges) & (edges < feature.high))


def test_integers_of_a_range_up_to_128_have_a_cell_each_in_every_grid():
    for n_uniform in GRIDS:
        edges = numeric_edges(Numeric(0, 128, integer=True), n_uniform)
        assert edges.tolist() == (np.arange(128) + 0.5).tolist()
    assert len(numeric_edges(Numeric(0, 129, integer=True), min(GRIDS))) < 129


@pytest.mark.parametrize("name", FEATURES)
def test_a_finer_grid_has_the_edges_of_a_coarser_one(name):
    grids = [numeric_edges(FEATURES[name], n) for n in sorted(GRIDS)]
    for coarse, fine in itertools.pairwise(grids):
        assert np.all(np.isin(coarse, fine))


def test_the_coarsest_grid_has_few_cells_and_still_resolves_wide_bounds():
    edges = numeric_edges(Numeric(0, 1e4), min(GRIDS))
    assert len(edges) <= 40
    values = edges[(edges > 0) & (edges < 10)]  # a thousandth of the range: an edge an octave
    assert np.max(np.diff(np.log2(values))) < 1.01


@pytest.mark.parametrize("n_uniform", GRIDS)
def test_grids_of_256_cells_and_more_have_four_edges_an_octave(n_uniform):
    edges = numeric_edges(Numeric(0, 1e4), n_uniform)
    few = edges[(edges > 0) & (edges < 5)]
    octaves = np.diff(np.log2(few))
    np.testing.assert_allclose(octaves, 0.25 if n_uniform >= 256 else 1.0)


@pytest.mark.parametrize("n_uniform", GRIDS)
def test_counts_of_a_grid_are_sums_of_the_finest(n_uniform):
    schema = Schema(FEATURES | {"job": ["a", "b"]}, classes=[0, 1])
    fine, grid = Grid.of(schema, FINE), Grid.of(schema, n_uniform)
    rng = np.random.default_rng(0)
    for j, feature in enumerate(schema.encoded.values()):
        if not isinstance(feature, Numeric):
            continue
        x = rng.uniform(feature.low, feature.high, 500)
        low, high = fine.offsets[j : j + 2]
        whole = np.searchsorted(fine.edges[j], x) + low
        own = np.searchsorted(grid.edges[j], x) + grid.offsets[j]
        np.testing.assert_array_equal(coarsening(fine, grid)[whole], own)
        assert coarsening(fine, grid)[high - 1] == grid.offsets[j + 1] - 1  # missing values


@pytest.mark.parametrize("feature", [Numeric(0, 10, integer=True), Numeric(3, 3), Numeric(0, 1)])
def test_remembered_edges_cannot_be_written_to(feature):
    assert not numeric_edges(feature, 16).flags.writeable


@pytest.mark.parametrize("n_uniform", GRIDS)
def test_zero_has_a_cell_of_its_own_where_bounds_are_on_both_sides(n_uniform):
    edges = numeric_edges(Numeric(-1, 1), n_uniform)
    below, zero, above = np.searchsorted(edges, [-1e-9, 0.0, 1e-9])
    assert below < zero < above
