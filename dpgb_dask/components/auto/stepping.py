"""How far all tables of a stage move at once, learnt from released sums (docs/default-method.md §2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.auto.reference import LeafSums

# per table (n_bins, n_scores) or, of leaves, (n_leaves, n_scores)
Tables = Sequence[NDArray[np.float64]]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Step:
    """How the loss curved along the last moves of all tables, beside what each table saw of itself.

    Tables that tell the same of a row move it together. If the last move of all tables was Δ, the sums of gradients
    before and after it give the curvature Δ'HΔ of the loss along it; the tables' own Hessians give Δ'DΔ, as if no table
    knew of another. Their ratio says how many tables act as one, and so by what factor whole steps of all would add up.

    Parameters
    ----------
    moved : tuple of ((n_bins, n_scores) float64)
        The last move of each table, score units.
    slope : float
        Σ gΔ before it, without what the move makes of the noise of these sums.
    joint, own : float
        Running sums of Δ'HΔ and Δ'DΔ.
    """

    moved: tuple[NDArray[np.float64], ...] = ()
    slope: float = 0.0
    joint: float = 0.0
    own: float = 0.0

    def seen(self, sums: LeafSums, moved: Tables, sd: float) -> "Step":
        """Return the step once the sums after the last move are released.

        Parameters
        ----------
        sums : LeafSums
        moved : per table (n_leaves, n_scores) float64
            The last move, averaged over the bins of each leaf.
        sd : float
            Standard deviation of the noise on a sum of gradients.
        """
        joint = inner(sums.grad, moved) - self.slope
        if joint <= constants.STEP_SD * sd * np.sqrt(2 * noise_along(moved, sums.omitted)):
            return self
        own = weighed(moved, [np.maximum(h, 0) for h in sums.hess])
        keep = constants.STEP_KEEP
        return replace(self, joint=keep * self.joint + joint, own=keep * self.own + own)

    def damping(self, whole: Tables, weight: Tables, unexplained: float, *, most: float) -> float:
        """Return how far the tables move next, as a fraction of the whole moves to their posterior means.

        As long as no curvature is known, all tables might be copies of one. By the Cauchy-Schwarz inequality the sum of
        their moves is then at most m ΣΔ'DΔ, which is kept below a share of what is to be explained.

        Parameters
        ----------
        whole : per table (n_bins, n_scores) float64
            Distances to the posterior means.
        weight : per table (n_bins, n_scores) float64
            Σh per bin.
        unexplained : float
            Variance of the gradients of all rows: no model explains more.
        most : float
        """
        if self.joint > 0:
            rate = constants.STEP * self.own / self.joint
        else:
            own = weighed(whole, weight)
            rate = float(
                np.sqrt(constants.FIRST_STEP * unexplained / max(len(whole) * own, 1e-300))
            )
        return float(np.clip(rate, constants.LEAST_STEP, most))


NO_STEP = Step()


def inner(one: Tables, other: Tables) -> float:
    """Return the inner product of two values per table."""
    return sum(float((a * b).sum()) for a, b in zip(one, other, strict=True))


def weighed(moves: Tables, weights: Tables) -> float:
    """Return Σ weight · move²."""
    return sum(float((w * m**2).sum()) for m, w in zip(moves, weights, strict=True))


def noise_along(moved: Tables, omitted: Sequence[int]) -> float:
    """Return the variance of Σ(sum · move) over leaves, if each released sum has noise of variance 1.

    A leaf that was kept back has the noise of the total less that of the others.
    """
    variance, through_total = 0.0, 0.0
    for move, leaf in zip(moved, omitted, strict=True):
        kept_back = move[leaf] if leaf >= 0 else 0.0
        variance += float(((move - kept_back) ** 2).sum())
        through_total += kept_back
    return variance + float(np.sum(through_total**2))


def averaged(
    values: NDArray[np.float64], weight: NDArray[np.float64], leaf: NDArray[np.integer]
) -> NDArray[np.float64]:
    """Return the weighted mean of a table's values in each leaf: (n_leaves, n_scores) from (n_bins, n_scores)."""
    n = int(leaf.max()) + 1
    return np.stack(
        [
            np.bincount(leaf, w * v, n) / np.maximum(np.bincount(leaf, w, n), 1e-9)
            for v, w in zip(values.T, weight.T, strict=True)
        ],
        axis=1,
    )
