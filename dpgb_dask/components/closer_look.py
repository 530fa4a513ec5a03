"""Where the public grid is too coarse: a few cells that hold nearly all rows of a feature are counted in finer ones.

Features far from 0 that fill a small part of their bounds are such, dates in seconds for example. Post-processing of
released counts (docs/default-method.md §0).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.bin_merging import Cells
from dpgb_dask.contracts.features import Numeric


@dataclass(frozen=True, slots=True)
class Window:
    """Neighbouring cells of a numeric feature.

    Parameters
    ----------
    first, last : int
        Its cells, both inside.
    low, high : float
        Their ends; of an outermost cell the bound of the feature, beyond which values belong to it too.
    n_cells : int
        All cells of the feature, without that of missing values.
    integer : bool
        Whether values are whole numbers.
    """

    first: int
    last: int
    low: float
    high: float
    n_cells: int
    integer: bool

    @classmethod
    def of(cls, feature: Numeric, edges: NDArray[np.float64], first: int, last: int) -> "Window":
        """Return the window of some cells."""
        low = edges[first - 1] if first > 0 else feature.low
        high = edges[last] if last < len(edges) else feature.high
        return cls(first, last, float(low), float(high), len(edges) + 1, feature.integer)

    def is_coarse(self, width: float) -> bool:
        """Return whether finer cells can tell more: not in a window for one value, or of one whole number a cell.

        Parameters
        ----------
        width : float
            Between the bounds of the feature.
        """
        if self.high - self.low <= constants.CLOSER_WIDTH * width:
            return False
        # an open window holds its lower end too
        n_values = np.floor(self.high) - np.floor(self.low) + self.is_open[0]
        return not self.integer or bool(n_values > self.last - self.first + 1)

    @property
    def is_open(self) -> tuple[bool, bool]:
        """Whether the outermost cell is inside, on either side: then there is no edge."""
        return self.first == 0, self.last == self.n_cells - 1

    def edges(self, n: int) -> NDArray[np.float64]:
        """Return the edges of the window and of ``n`` equal cells in it, increasing; fewer if whole numbers are."""
        edges = self.low + (self.high - self.low) * (np.arange(n + 1) / n)
        edges[0], edges[-1] = self.low, self.high
        if self.integer:
            edges = np.floor(edges) + 0.5
        below, above = self.is_open
        return np.unique(edges[int(below) : len(edges) - int(above)])


def window_of(feature: Numeric, cells: Cells, n_rows: float) -> Window | None:
    """Return the fewest neighbouring cells that hold nearly all rows whose value is known.

    Rows whose value is known are taken to be at least half of all: noise would decide otherwise. None if the cells are
    more than `constants.CLOSER_WINDOW`, or finer ones would not tell more.

    Parameters
    ----------
    feature : Numeric
    cells : Cells
    n_rows : float
        Noisy number of rows.
    """
    assert cells.edges is not None
    wanted = constants.CLOSER_ROWS * max(n_rows - float(cells.counts[-1]), n_rows / 2)
    before = np.concatenate(([0.0], np.cumsum(cells.counts[:-1])))
    for width in range(1, constants.CLOSER_WINDOW + 1):
        held = before[width:] - before[:-width]
        if len(held) and held.max() >= wanted:
            first = int(held.argmax())
            window = Window.of(feature, cells.edges, first, first + width - 1)
            return window if window.is_coarse(feature.high - feature.low) else None
    return None


def joined(cells: Cells, window: Window, finer: Cells) -> Cells:
    """Return the cells outside a window as they were, and inside as they were counted in finer ones.

    Parameters
    ----------
    cells : Cells
    window : Window
    finer : Cells
        Between the edges of the window, with a cell for all that is below them and one for all that is above.
    """
    assert cells.edges is not None
    assert finer.edges is not None
    first, last = window.first, window.last
    below, above = window.is_open
    # the outer cells of the finer ones are inside only where the window is open
    inside = slice(0 if below else 1, len(finer.edges) + (1 if above else 0))
    return Cells(
        np.concatenate((cells.edges[: max(first - 1, 0)], finer.edges, cells.edges[last + 1 :])),
        *(
            np.concatenate((was[:first], now[inside], was[last + 1 :]))
            for was, now in ((cells.counts, finer.counts), (cells.noise, finer.noise))
        ),
    )
