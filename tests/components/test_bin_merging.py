"""Bins made from noisy cells."""

import numpy as np
import pytest

from dpgb_dask.components import bin_merging
from dpgb_dask.components.bin_merging import Cells


def ones(counts):
    return np.ones(len(counts))


def test_merge_cells_without_noise_gives_equal_mass():
    last, mass = bin_merging.merge_cells(np.full(1000, 10.0), 0.01, 10_000, 100, 1.5, np.ones(1000))
    assert len(last) == 100
    assert last[-1] == 999
    np.testing.assert_allclose(mass, 100.0)


def test_merge_cells_keeps_an_atom_alone():
    counts = np.full(200, 5.0)
    counts[70] = 4000.0
    last, mass = bin_merging.merge_cells(counts, 1.0, counts.sum(), 50, 1.5, ones(counts))
    assert 69 in last
    assert 70 in last
    assert mass[list(last).index(70)] == 4000.0


@pytest.mark.parametrize("cell", [0, 1, 100, 198, 199])
def test_find_atoms_sees_a_heavy_cell_anywhere(cell):
    counts = np.full(200, 5.0)
    counts[cell] = 4000.0
    assert list(np.flatnonzero(bin_merging.find_atoms(counts, 1.0, counts.sum()))) == [cell]


def test_merge_cells_keeps_zero_apart_from_a_tail_lost_in_noise():
    counts = np.append(
        30_000.0, np.full(350, 7.0)
    )  # 2,450 rows above zero, noise of their sum 1,780
    last, mass = bin_merging.merge_cells(counts, 95.0, counts.sum(), 128, 1.5, ones(counts))
    assert list(last) == [0, 350]
    assert mass[1] == pytest.approx(2450)


@pytest.mark.parametrize("seed", range(5))
def test_merge_cells_keeps_every_cell_and_all_mass(seed):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.exponential(20, 300)) + rng.normal(0, 15, 300)
    last, mass = bin_merging.merge_cells(counts, 15.0, max(counts.sum(), 1), 64, 1.5, ones(counts))
    assert np.all(np.diff(last) > 0)
    assert last[-1] == 299
    assert mass.sum() == pytest.approx(counts.sum())


def test_noise_counts_cell_by_cell():
    """A bin of 1.5 standard deviations: 20 rows a cell and sd 5 take one cell, and sd 20 take three."""
    noise = np.repeat([1.0, 16.0], 30)
    counts = np.full(60, 20.0)
    last, _ = bin_merging.merge_cells(counts, 5.0, counts.sum(), 1000, 1.5, noise)
    assert list(last) == [*range(30), *range(32, 60, 3)]
    edges = np.arange(1.0, 60.0)
    cells = Cells(edges, np.append(counts, 0.0), np.append(noise, 1.0))
    _, mass = bin_merging.numeric_bins(cells, 5.0, counts.sum(), 1000, 1.5)
    sds = np.append(np.repeat([5.0, 20 * np.sqrt(3)], [30, 10]), 5.0)
    held = np.append(np.repeat([20.0, 60.0], [30, 10]), 0.0)
    np.testing.assert_array_equal(mass, bin_merging.row_estimates(held, sds, counts.sum()))


def test_numeric_bins_are_unions_of_cells():
    edges = np.linspace(0, 1, 101)[1:-1]
    counts = np.append(np.random.default_rng(0).poisson(30, 100).astype(float), 3.0)
    bins, mass = bin_merging.numeric_bins(
        Cells(edges, counts, ones(counts)), 2.0, counts.sum(), 20, 1.5
    )
    assert np.all(np.isin(bins.edges, edges))
    assert bins.n_bins == len(bins.edges) + 2 == len(mass)
    assert bins.missing_bin == bins.n_bins - 1
    assert mass.sum() == pytest.approx(counts.sum())
    assert mass.min() > 0


def test_row_estimates_are_means_of_normal_laws_cut_at_zero():
    counts = np.array([-12.0, -3.0, 0.0, 1.0, 8.0, 400.0])
    n = 1e6  # large enough that scaling shows
    estimate = bin_merging.row_estimates(counts * 10, np.full(6, 10.0), n)
    x = np.linspace(0, 600, 600_001)
    wanted = []
    for c in counts:
        weight = np.exp(-((x - c) ** 2) / 2 + min(c, 0) ** 2 / 2)
        wanted.append(10 * (weight @ x) / weight.sum())
    wanted = np.maximum(wanted, 1)
    np.testing.assert_allclose(estimate, wanted * n / wanted.sum(), rtol=0.02)


def test_numeric_bins_of_a_constant_feature():
    bins, mass = bin_merging.numeric_bins(
        Cells(np.empty(0), np.array([100.0, -4.0]), np.ones(2)), 2.0, 96.0, 128, 1.5
    )
    assert bins.n_bins == 2
    assert len(mass) == 2


def test_numeric_bins_never_exceed_the_codes():
    counts = np.full(1100, 1.0)
    counts[::2] = 1e6  # an atom in every other cell
    bins, mass = bin_merging.numeric_bins(
        Cells(np.arange(1098.0), counts, ones(counts)), 0.1, counts.sum(), 250, 1.5
    )
    assert bins.n_bins == len(mass) <= 255


def test_categorical_bins_are_sorted_by_rows():
    counts = np.array([5.0, 500.0, 50.0, -2.0, 1.0])
    bins, mass = bin_merging.categorical_bins(counts, 2.0, 550.0)
    assert list(bins.cell_to_bin) == [2, 0, 1, 4, 3]
    assert np.all(np.diff(mass) <= 0)
    assert bins.missing_bin == 3


def test_cells_that_noise_hides_become_even_and_heavy_ones_stay():
    """Between edges at 1/16, 2/16, …, a feature from 0 to 1: 1,000 rows and noise of 300 a cell."""
    edges, n_rows, sd = np.arange(1, 16) / 16, 1000.0, 300.0
    noise = sd * np.random.default_rng(0).standard_normal((200, 17))
    rows = np.append(np.full(16, n_rows / 16), 0.0)
    off, own = [], []
    for drawn in noise:
        evened = bin_merging.evened(
            Cells(edges, rows + drawn, ones(rows)), sd, n_rows, low=0.0, high=1.0
        )
        assert evened.counts[-1] == rows[-1] + drawn[-1]  # missing values are as they were
        assert evened.noise[-1] == 1
        off.append(np.sqrt(np.mean((evened.counts[:-1] - rows[:-1]) ** 2)))
        own.append(np.sqrt(evened.noise[:-1]))
    assert np.mean(off) < 0.3 * sd
    assert np.mean(own) == pytest.approx(np.mean(off) / sd, abs=0.05)
    heavy = np.append([5 * n_rows, *np.zeros(15)], 0.0)
    evened = bin_merging.evened(Cells(edges, heavy, ones(heavy)), sd, 5 * n_rows, 0.0, 1.0)
    assert evened.counts[0] > 0.9 * heavy[0]
    assert evened.counts[:-1].sum() == pytest.approx(heavy.sum())


def test_even_cells_hold_what_is_known_by_their_widths():
    """Edges below and beyond the bounds are those of a grid; half of the rows at most are taken to be missing."""
    edges = np.array([-1.0, -1e-12, 0.0, 0.25, 1.0, 2.0])
    for missing, known in [(200.0, 800.0), (-50.0, 1000.0), (900.0, 500.0)]:
        counts = np.append(np.zeros(7), missing)
        evened = bin_merging.evened(Cells(edges, counts, ones(counts)), 1e6, 1000.0, 0.0, 1.0)
        even = known * np.array([0, 0, 0, 0.25, 0.75, 0, 0])
        np.testing.assert_allclose(evened.counts, np.append(0.99 * even, missing))
    counts = np.array([250.0, 250.0, 0.0])
    evened = bin_merging.evened(Cells(np.array([0.5]), counts, ones(counts)), 1.0, 500.0, 0.0, 1.0)
    np.testing.assert_array_equal(evened.counts, counts)
    far = Cells(np.array([0.0]), counts, ones(counts))
    np.testing.assert_array_equal(bin_merging.evened(far, 1.0, 500.0, -8e307, 8e307).counts, counts)
    one = Cells(np.empty(0), np.array([3.0, 4.0]), ones(range(2)))
    assert bin_merging.evened(one, 1.0, 7.0, 2.0, 2.0) is one
