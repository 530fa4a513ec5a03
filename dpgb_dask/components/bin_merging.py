"""Bins from a released histogram over the public grid: heavy single cells stay alone, the other cells are merged.

Post-processing of releases (docs/default-method.md §0).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.contracts.model import FeatureBins

FAR_BELOW = -8.0  # standard deviations


class Cells(NamedTuple):
    """Released counts of the cells of a feature.

    Parameters
    ----------
    edges : (n_edges,) float64, or None
        None for a categorical feature.
    counts : (n_cells,) float64
        Noisy rows; missing values last.
    noise : (n_cells,) float64
        Variance of the noise on each, as a multiple of that of the first release.
    """

    edges: NDArray[np.float64] | None
    counts: NDArray[np.float64]
    noise: NDArray[np.float64]


def evened(cells: Cells, sd: float, n_rows: float, low: float, high: float) -> Cells:
    """Return the cells of a numeric feature, moved towards rows that spread evenly between the bounds.

    By the rule of James and Stein (1961, "Estimation with quadratic loss"), positive part: hardly anything is left of
    deviations that are no larger than their noise, and nearly all of those that are far beyond it. The noise is then
    that of the moved counts, as if the even ones were known.

    Parameters
    ----------
    cells : Cells
    sd : float
        Standard deviation of the noise on each.
    n_rows : float
        Noisy number of rows.
    low, high : float
        Bounds of the feature.
    """
    edges, counts, missing = cells.edges, cells.counts[:-1], cells.counts[-1]
    assert edges is not None
    if len(edges) == 0:
        return cells
    width = np.diff(np.clip(np.concatenate(([low], edges, [high])), low, high))
    known = np.clip(n_rows - missing, n_rows / 2, n_rows)
    even = known * (width / width.sum())  # bounds may be as far apart as numbers go
    away = counts - even
    noise = len(counts) * sd**2
    kept = max(1 - noise / max(float(away @ away), noise), constants.LEAST_KEPT)
    moved, left = np.append(even + kept * away, missing), np.append(np.full(len(away), kept**2), 1)
    return Cells(edges, moved, cells.noise * left)


def find_atoms(
    counts: NDArray[np.float64], sd: float | NDArray[np.float64], n_rows: float
) -> NDArray[np.bool_]:
    """Return which cells hold one frequent value, such as zero or a round number (atoms)."""
    n = len(counts)
    # three cells on each side, fewer at the ends, so that a heavy first cell (zero) is not its own neighbour
    padded = np.pad(counts, 3, constant_values=np.nan)
    around = np.sort([padded[i : i + n] for i in (0, 1, 2, 4, 5, 6)], axis=0)
    n_around = 6 - np.isnan(around).sum(0)  # NaN comes last
    middle = np.stack([(n_around - 1) // 2, n_around // 2])
    median = np.take_along_axis(around, middle, axis=0).sum(0) / 2 if n > 1 else counts
    around = np.maximum(median, 0)
    threshold = np.maximum(constants.ATOM_SD * sd, constants.ATOM_SHARE * n_rows)
    sticks_out: NDArray[np.bool_] = (counts - around > threshold) & (
        counts > constants.ATOM_RATIO * around
    )
    return sticks_out


def merge_cells(
    counts: NDArray[np.float64],
    sd: float,
    n_rows: float,
    max_bins: int,
    mass_sd: float,
    noise: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Merge consecutive cells into bins of enough noisy mass.

    Parameters
    ----------
    counts : (n_cells,) float64
        Noisy rows per cell, without the missing values.
    sd : float
        Standard deviation of the noise on a cell of the first release.
    n_rows : float
        Noisy number of rows.
    max_bins : int
        Wanted number of bins: a bin is complete when it holds ``n_rows / max_bins``.
    mass_sd : float
        Least mass of a bin, in standard deviations of its own noise.
    noise : (n_cells,) float64
        As in `Cells`.

    Returns
    -------
    last : (n_bins,) int64
        Last cell of each bin, increasing.
    mass : (n_bins,) float64
        Noisy rows per bin.
    """
    wanted = n_rows / max_bins
    least = mass_sd * sd
    atoms = find_atoms(counts, sd * np.sqrt(noise), n_rows)
    last: list[int] = []
    mass: list[float] = []
    joinable = False  # whether a remainder may join the newest bin (it may not join an atom)
    held, variance = 0.0, 0.0

    def close(cell: int) -> None:
        nonlocal held, variance, joinable
        if variance == 0:
            return
        if held < max(constants.LAST_SHARE * wanted, least * math.sqrt(variance)) and joinable:
            last[-1] = cell
            mass[-1] += held
        else:
            last.append(cell)
            mass.append(held)
            joinable = True
        held, variance = 0.0, 0.0

    # as Python's numbers, which cost a fifth of NumPy's here
    cells = zip(counts.tolist(), noise.tolist(), atoms.tolist(), strict=True)
    for cell, (count, own, is_atom) in enumerate(cells):
        if is_atom:
            close(cell - 1)
            last.append(cell)
            mass.append(count)
            joinable = False
            continue
        held += count
        variance += own
        if held >= wanted and held >= least * math.sqrt(variance):
            close(cell)
    close(len(counts) - 1)
    return np.array(last, dtype=np.int64), np.array(mass)


def numeric_bins(
    cells: Cells,
    sd: float,
    n_rows: float,
    max_bins: int,
    mass_sd: float,
) -> tuple[FeatureBins, NDArray[np.float64]]:
    """Return the bins of a numeric feature and their noisy rows (missing values last).

    Parameters
    ----------
    cells : Cells
    sd, n_rows, max_bins, mass_sd
        As for `merge_cells`.
    """
    edges, counts, noise = cells
    assert edges is not None
    # two codes are reserved: one for missing values, and one because atoms are added to the wanted number of bins
    last, mass = merge_cells(counts[:-1], sd, n_rows, max_bins, mass_sd, noise[:-1])
    while len(last) > 254:
        keep = np.ones(len(last), dtype=bool)
        lightest = int(np.argmin(mass[:-1] + mass[1:]))
        mass[lightest + 1] += mass[lightest]
        keep[lightest] = False
        last, mass = last[keep], mass[keep]
    bins = FeatureBins(edges[last[:-1]], None, len(last) + 1)
    merged = np.add.reduceat(noise[:-1], np.append(0, last[:-1] + 1))
    sds = sd * np.sqrt(np.append(merged, noise[-1]))
    return bins, row_estimates(np.append(mass, counts[-1]), sds, n_rows)


def categorical_bins(
    counts: NDArray[np.float64], sd: float, n_rows: float
) -> tuple[FeatureBins, NDArray[np.float64]]:
    """Return the bins of a categorical feature, heaviest first, and their noisy rows.

    In this order, a tree's split ``code > threshold`` separates frequent from rare categories.
    """
    order = np.argsort(-counts, kind="stable")
    cell_to_bin = np.empty(len(counts), dtype=np.uint8)
    cell_to_bin[order] = np.arange(len(counts), dtype=np.uint8)
    sds = np.full(len(counts), sd)
    return FeatureBins(None, cell_to_bin, len(counts)), row_estimates(counts[order], sds, n_rows)


def row_estimates(
    counts: NDArray[np.float64], sd: NDArray[np.float64], n_rows: float
) -> NDArray[np.float64]:
    """Return positive estimates of the rows per bin that sum to the noisy number of rows.

    A count cannot be negative, so its estimate is the mean of the normal distribution around the noisy count, truncated
    at zero. A bin with a negative noisy count is thus estimated to hold about as many rows as noise can hide, and can
    still learn.
    """
    z = counts / sd
    tail = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    far = z < FAR_BELOW  # there the ratio is about -z, and exact to a percent
    above = np.where(far, 1 / np.maximum(-z, 1), z + density / np.maximum(tail, 1e-300))
    positive = np.maximum(sd * above, 1.0)
    scaled: NDArray[np.float64] = positive * (n_rows / positive.sum())
    return scaled
