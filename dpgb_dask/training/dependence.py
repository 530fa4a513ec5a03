"""How features depend on each other, as far as the screening of pairs released it (docs/explanations.md §3).

Errors of one table show in the sums of every feature that depends on it. Post-processing of released values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.auto.noise import Screened
from dpgb_dask.components.auto.smoothing import Seen
from dpgb_dask.kernels.posterior import add_errors


@dataclass(frozen=True, eq=False, slots=True)
class Dependence:
    """The excess of Hessian in the cells of pairs over that of independent features.

    Parameters
    ----------
    level : tuple of ((n_bins,) uint8)
        Level of each bin, per feature; one level for a feature that was not screened.
    start : tuple of int
        First row of each feature in ``excess``.
    excess : (n_levels of all, n_levels of all) float64
        Excess of two levels over the product of their shares, as a ratio; 0 for levels of one feature.
    """

    level: tuple[NDArray[np.uint8], ...]
    start: tuple[int, ...]
    excess: NDArray[np.float64]

    @classmethod
    def of(cls, screened: Screened, seen: Sequence[Seen], k: int) -> "Dependence":
        """Return what is known for score ``k``, given the last round of each feature.

        The Hessian of all levels is positive semi-definite. What noise makes negative is cut off, or errors would grow
        from round to round.
        """
        level = [np.zeros(len(one.leaf), np.uint8) for one in seen]
        for cell in screened.cells:
            level[cell.i], level[cell.j] = cell.map_i, cell.map_j
        share = [
            np.bincount(own, one.weight) / one.weight.sum()
            for own, one in zip(level, seen, strict=True)
        ]
        ends = np.cumsum([len(part) for part in share]).tolist()
        places = [slice(end - len(part), end) for end, part in zip(ends, share, strict=True)]
        # all matrices over the roots of both shares, where the Hessian of independent levels is the identity
        own = np.zeros((ends[-1], ends[-1]))
        for place, part in zip(places, share, strict=True):
            own[place, place] = np.eye(len(part)) - np.sqrt(np.outer(part, part))
        whole = own.copy()
        total = max(float(np.mean([hess[:, k].sum() for hess in screened.hess])), 1.0)
        for cell, hess in zip(screened.cells, screened.hess, strict=True):
            a, b = share[cell.i], share[cell.j]
            excess = hess[:, k].reshape(cell.n_i, cell.n_j) / total - np.outer(a, b)
            excess -= np.outer(a, excess.sum(0))
            excess -= np.outer(excess.sum(1), b)
            block = without_noise(excess, a, b, screened.hess_sd / total)
            whole[places[cell.i], places[cell.j]] = block
            whole[places[cell.j], places[cell.i]] = block.T
        values, vectors = np.linalg.eigh(whole)
        whole = (vectors * np.maximum(values, 0)) @ vectors.T
        for place in places:
            whole[place, place] = 0
        size = np.sqrt(np.concatenate(share))
        return cls(
            tuple(level), tuple(place.start for place in places), whole / np.outer(size, size)
        )

    def carried(
        self, tables: Sequence[NDArray[np.float64]], seen: Sequence[Seen]
    ) -> list[NDArray[np.float64]]:
        """Return what errors in other tables add to each bin's gradient, per unit of its Hessian, (n_bins, n_draws)."""
        means = np.zeros((len(self.excess), tables[0].shape[1]))
        for level, start, one, table in zip(self.level, self.start, seen, tables, strict=True):
            add_errors(level, one.weight, table, means[start:], own=1 / float(one.weight.sum()))
        moved = self.excess @ means
        return [
            moved[start + level.astype(np.int64)]
            for level, start in zip(self.level, self.start, strict=True)
        ]


def without_noise(
    excess: NDArray[np.float64], a: NDArray[np.float64], b: NDArray[np.float64], sd: float
) -> NDArray[np.float64]:
    """Return an excess, over the roots of both shares, shrunken by what is noise; 0 if all of it may be noise.

    Cells are normal with one variance a priori, estimated from them; noise is larger in small cells.
    """
    free = (len(a) - 1) * (len(b) - 1)
    noise = free * sd**2
    variance = float((excess**2).sum()) - noise
    # two standard deviations of a sum of squares of noise
    if variance <= 2 * np.sqrt(2 * free) * sd**2:
        return np.zeros_like(excess)
    size = np.outer(a, b)
    return np.asarray(variance * excess * np.sqrt(size) / (variance * size + sd**2))
