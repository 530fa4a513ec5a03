"""A square root of a covariance over bins in nested coordinates: cell after cell, as cuts split them.

The first coordinate is that of the mean of all bins. Each cut then splits one cell in two, and adds the coordinate of
the mean of the lighter part, given all before. So the means of all cells that the first k cuts leave are functions of
the first k + 1 coordinates, and sums over such cells tell nothing of the others.
"""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import kernel, readable


@kernel
def _split(
    mass: NDArray[np.float64],  # IN (n,)
    cuts: NDArray[np.int64],  # IN (n - 1,)
    # OUT (n, 2): first bin, and the one after the last, of the cell that is split
    cell: NDArray[np.int64],
    light: NDArray[np.int64],  # OUT (n, 2): of its lighter part
) -> None:
    n = len(mass)
    starts = np.zeros(n + 1, np.bool_)
    starts[0] = starts[n] = True
    cell[0] = light[0] = 0, n
    for i in range(1, n):
        cut = cuts[i - 1]
        first, last = cut - 1, cut + 1
        while not starts[first]:
            first -= 1
        while not starts[last]:
            last += 1
        starts[cut] = True
        cell[i] = first, last
        if mass[first:cut].sum() <= mass[cut:last].sum():
            light[i] = first, cut
        else:
            light[i] = cut, last


@kernel
def _covariance(
    covariance: NDArray[np.float64],  # IN (n, n)
    mass: NDArray[np.float64],  # IN (n,)
    light: NDArray[np.int64],  # IN (n, 2)
    out: NDArray[np.float64],  # OUT (n, n): of the means of cells; its lower triangle
) -> None:
    n = len(mass)
    mean = np.empty(n)
    for i in range(n):
        # sums are taken bin by bin: differences of running sums lose what light cells hold
        mean[:] = 0
        for b in range(light[i, 0], light[i, 1]):
            for j in range(n):
                mean[j] += mass[b] * covariance[b, j]
        for j in range(i + 1):
            total = 0.0
            for b in range(light[j, 0], light[j, 1]):
                total += mass[b] * mean[b]
            out[i, j] = total / (
                mass[light[i, 0] : light[i, 1]].sum() * mass[light[j, 0] : light[j, 1]].sum()
            )


@kernel
def _bins(
    root: NDArray[np.float64],  # IN (n, n), lower triangular: of the means of cells
    mass: NDArray[np.float64],  # IN (n,)
    cell: NDArray[np.int64],  # IN (n, 2)
    light: NDArray[np.int64],  # IN (n, 2)
    out: NDArray[np.float64],  # OUT (n, n), zeros: of the bins
) -> None:
    n = len(mass)
    out[0, 0] = root[0, 0]  # a cell's row stands at its first bin until it is split
    for i in range(1, n):
        first, last = cell[i]
        is_left = light[i, 0] == first
        cut = light[i, 1] if is_left else light[i, 0]
        part = mass[light[i, 0] : light[i, 1]].sum()
        rest = part / (mass[first:last].sum() - part)
        for j in range(i + 1):
            lighter = root[i, j]
            heavier = out[first, j] + rest * (out[first, j] - lighter)
            out[first, j] = lighter if is_left else heavier
            out[cut, j] = heavier if is_left else lighter


def nested_root(
    covariance: NDArray[np.float64], mass: NDArray[np.float64], cuts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return a square root of a covariance over bins, whose first columns belong to the cells of the first cuts.

    Parameters
    ----------
    covariance : (n, n) float64, positive definite
    mass : (n,) float64, positive
        Weight of each bin in the mean of its cell.
    cuts : (n - 1,) int64
        Every bin but the first, each once: in this order cells are split, before the bin.

    Returns
    -------
    root : (n, n) float64
        For the cells that the first k cuts leave, sums of its rows by ``mass`` are zero from column k + 1 on, up to
        rounding.
    """
    n = len(mass)
    covariance = readable("covariance", covariance, np.float64, 2)
    mass = readable("mass", mass, np.float64, 1)
    cell, light = np.empty((n, 2), np.int64), np.empty((n, 2), np.int64)
    _split(mass, readable("cuts", cuts, np.int64, 1), cell, light)
    of_cells, out = np.zeros((n, n)), np.zeros((n, n))
    _covariance(covariance, mass, light, of_cells)
    _bins(np.asarray(np.linalg.cholesky(of_cells), np.float64), mass, cell, light, out)
    return out
