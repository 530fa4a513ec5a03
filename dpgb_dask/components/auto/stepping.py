"""How far all tables of a stage move at once, learnt from released sums (docs/default-method.md §2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.auto.reference import TableSums

# values of the bins, or of the leaves, of all tables one after another: (n, n_scores)
Joined = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Step:
    """How the loss curved along the last moves of all tables, beside what each table saw of itself.

    Tables that tell the same of a row move it together. If the last move of all tables was Δ, the sums of gradients
    before and after it give the curvature Δ'HΔ of the loss along it; the tables' own Hessians give Δ'DΔ, as if no table
    knew of another. Their ratio says how many tables act as one, and so by what factor whole steps of all would add up.

    Parameters
    ----------
    moved : (n_bins of all tables, n_scores) float64 or None
        The last move, score units; None before the first.
    slope : float
        Σ gΔ before it, without what the move makes of the noise of these sums.
    joint, own : float
        Running sums of Δ'HΔ and Δ'DΔ.
    reach : float
        How far tables that act as one move together, as a multiple of the distance; 1 is as far as they should.
    """

    moved: Joined | None = None
    slope: float = 0.0
    joint: float = 0.0
    own: float = 0.0
    reach: float = constants.STEP

    def seen(self, sums: TableSums, moved: Joined, sd: float) -> "Step":
        """Return the step once the sums after the last move are released.

        Parameters
        ----------
        sums : TableSums
        moved : (n_leaves of all tables, n_scores) float64
            The last move, averaged over the bins of each leaf.
        sd : float
            Standard deviation of the noise on a sum of gradients.
        """
        joint = inner(np.concatenate(sums.grad), moved) - self.slope
        variance = noise_along(moved, [len(part) for part in sums.grad], sums.omitted)
        if joint <= constants.STEP_SD * sd * np.sqrt(2 * variance):
            return self
        own = weighed(moved, np.maximum(np.concatenate(sums.hess), 0))
        keep = constants.STEP_KEEP
        return replace(self, joint=keep * self.joint + joint, own=keep * self.own + own)

    def damping(
        self, whole: Joined, weight: Joined, unexplained: float, *, n_tables: int, most: float
    ) -> float:
        """Return how far the tables move next, as a fraction of the whole moves to their posterior means.

        As long as no curvature is known, all tables might be copies of one. By the Cauchy-Schwarz inequality the sum of
        their moves is then at most m ΣΔ'DΔ, which is kept below a share of what is to be explained.

        Parameters
        ----------
        whole : (n_bins of all tables, n_scores) float64
            Distances to the posterior means.
        weight : (n_bins of all tables, n_scores) float64
            Σh per bin.
        unexplained : float
            Variance of the gradients of all rows: no model explains more.
        n_tables : int
        most : float
        """
        if self.joint > 0:
            rate = self.reach * self.own / self.joint
        else:
            own = weighed(whole, weight)
            rate = float(np.sqrt(constants.FIRST_STEP * unexplained / max(n_tables * own, 1e-300)))
        return float(np.clip(rate, constants.LEAST_STEP, most))


NO_STEP = Step()


def inner(one: Joined, other: Joined) -> float:
    """Return the inner product of two values."""
    return float((one * other).sum())


def weighed(moves: Joined, weights: Joined) -> float:
    """Return Σ weight · move²."""
    return float((weights * moves**2).sum())


def noise_along(moved: Joined, sizes: Sequence[int], omitted: Sequence[int]) -> float:
    """Return the variance of Σ(sum · move) over leaves, if each released sum has noise of variance 1.

    A leaf that was kept back has the noise of the total less that of the others.

    Parameters
    ----------
    moved : (n_leaves of all tables, n_scores) float64
    sizes : sequence of int
        Leaves per table.
    omitted : sequence of int
        The leaf that was kept back, per table; -1 for none.
    """
    leaf = np.array(omitted)
    place = np.cumsum(sizes) - sizes + np.maximum(leaf, 0)
    kept_back = np.where(leaf[:, None] >= 0, moved[place], 0.0)
    own = ((moved - np.repeat(kept_back, sizes, axis=0)) ** 2).sum()
    return float(own + (kept_back.sum(0) ** 2).sum())


def averaged(values: Joined, weight: Joined, leaf: NDArray[np.integer]) -> Joined:
    """Return the weighted mean of values in each leaf: (n_leaves, n_scores) from (n_bins, n_scores)."""
    n = int(leaf.max()) + 1
    return np.stack(
        [
            np.bincount(leaf, w * v, n) / np.maximum(np.bincount(leaf, w, n), 1e-9)
            for v, w in zip(values.T, weight.T, strict=True)
        ],
        axis=1,
    )
