"""The public grids: data-independent cells of every feature, from the schema alone (docs/default-method.md §0).

Cells of a numeric feature with edges e: cell k holds e[k-1] < x <= e[k]; the last cell, ``len(e) + 1``, holds missing
values. Cells of a categorical feature with K categories: 0 … K-1 in declared order, K is "other", K + 1 is missing.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.features import Categorical, Encoded, Numeric
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.frozen import frozen
from dpgb_dask.kernels.bin import EdgeTable, shared_table

FINE = 1024  # uniform cells of the finest grid
ONE_CELL_EACH = 128  # integer features with a range up to this get one cell per value
GEOMETRIC = 96  # edges low + range · 2^(-i/4), i = 1 … 96: heavy tails and zero inflation
PER_OCTAVE = 4
GRIDS = (16, 32, 64, 128, 256, 512, FINE)  # uniform cells of each grid
DENSE = 256  # grids from here on take all geometric edges, the coarser ones one an octave


@lru_cache(maxsize=1024)
def numeric_edges(feature: Numeric, n_uniform: int) -> NDArray[np.float64]:
    """Return the public edges of one numeric feature, increasing, read-only; ``n_uniform`` is one of `GRIDS`.

    Remembered, as every chunk asks for those of every feature. Every edge of a grid is an edge of the finest one to the
    bit, so its counts are sums of the finest ones.
    """
    low, high = feature.low, feature.high
    width = high - low
    if width <= 0:
        return frozen(np.empty(0))
    if feature.integer and width <= ONE_CELL_EACH:
        top = np.ceil(high)
        halves = np.arange(np.floor(low), top, dtype=np.float64) + 0.5
        # from 2⁵² on no float lies between two whole numbers: some of these are the same, or the upper bound
        return frozen(np.unique(halves[halves < top]))
    step, each = FINE // n_uniform, 1 if n_uniform >= DENSE else PER_OCTAVE
    parts = [low + width * (np.arange(step, FINE, step) / FINE)]
    geometric = 2.0 ** (-np.arange(each, GEOMETRIC + 1, each) / PER_OCTAVE)
    if low < 0 < high:
        parts += [high * geometric, low * geometric, np.array([0.0, -1e-12 * width])]
    else:
        parts += [low + width * geometric, np.array([low])]
    edges = np.concatenate(parts)
    if feature.integer:
        edges = np.floor(edges) + 0.5
    return frozen(np.unique(edges).astype(np.float64))


def n_cells(feature: Encoded, n_uniform: int) -> int:
    """Return the number of cells of a feature, missing included."""
    if isinstance(feature, Categorical):
        return len(feature.categories) + 2
    return len(numeric_edges(feature, n_uniform)) + 2


@dataclass(frozen=True, eq=False)
class Grid:
    """The cells of all features at one resolution.

    Parameters
    ----------
    edges : tuple of ((n_edges,) float64 or None)
        None for a categorical feature.
    sizes : tuple of int
        Cells per feature, missing (and "other") included.
    """

    edges: tuple[NDArray[np.float64] | None, ...]
    sizes: tuple[int, ...]
    _tables: dict[np.dtype[Any], EdgeTable] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, schema: Schema, n_uniform: int) -> "Grid":
        """Build the grid of a schema."""
        features = list(schema.encoded.values())
        edges = tuple(
            numeric_edges(f, n_uniform) if isinstance(f, Numeric) else None for f in features
        )
        return cls(edges, tuple(n_cells(f, n_uniform) for f in features))

    def table(self, dtype: np.dtype[Any]) -> EdgeTable:
        """Return the edges as kernels take them, for values of a type."""
        if dtype not in self._tables:
            self._tables[dtype] = shared_table(self.edges, dtype)
        return self._tables[dtype]

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Start of each feature in the concatenated cells; the last entry is their total."""
        return np.concatenate(([0], np.cumsum(self.sizes))).astype(np.int64)


def coarser_cells(fine: NDArray[np.float64], coarse: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return, for each cell between fine edges, the cell between coarse edges that holds it.

    Parameters
    ----------
    fine : (n_fine,) float64, increasing
    coarse : (n_coarse,) float64, increasing
        A subset of the fine edges.

    Returns
    -------
    (n_fine + 2,) int64
        The last entry is for the cell of missing values.
    """
    # the cell above fine edge k lies above as many coarse edges as are <= that edge
    above = np.searchsorted(coarse, fine, side="right")
    return np.concatenate(([0], above, [len(coarse) + 1])).astype(np.int64)


def coarsening(fine: Grid, coarse: Grid) -> NDArray[np.int64]:
    """Return, for each concatenated fine cell, the concatenated coarse cell that holds it."""
    parts = []
    for j, (e_fine, e_coarse) in enumerate(zip(fine.edges, coarse.edges, strict=True)):
        start = coarse.offsets[j]
        if e_fine is None or e_coarse is None:
            parts.append(start + np.arange(fine.sizes[j]))
            continue
        parts.append(start + coarser_cells(e_fine, e_coarse))
    return np.concatenate(parts).astype(np.int64)
