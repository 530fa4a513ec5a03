"""How far the forest's trees are scaled when it is complete: what later leaf sums say of earlier trees.

The sums that a round asks for are those of g at the scores so far. If the earlier trees are right, they do not move
them; if these trees are noise, their own curvature shows in the sums; if they go only part of the way, the sums still
ask for more. So the slope of the sums on the trees so far tells how long the forest should be, as far as leaves show
what trees do. No release is made for it, and no row is read: trees are averaged over the leaves of later ones on rows
made up from the released shares of bins, features taken as independent of each other (docs/default-method.md §5). Then
rows are asked (`forest_slope.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.answers import Sums
from dpgb_dask.components.auto.posterior import curvature_of, sampling_variance
from dpgb_dask.contracts.model import SCORE_ONE, Splits
from dpgb_dask.contracts.plan import State
from dpgb_dask.contracts.scores import scores_by_codes
from dpgb_dask.kernels.histogram import joint_sums
from dpgb_dask.kernels.predict import add_tables
from dpgb_dask.kernels.route import tree_leaves
from dpgb_dask.losses import LINKS
from dpgb_dask.losses.gradients import sigmoid

LARGEST = (1 << 19) - 1  # of a row's values that are summed, in score steps: 8
TINY = 1e-9  # least mean Hessian of a row

Values = Callable[[NDArray[np.float64]], NDArray[np.int32]]
# from Σg of each leaf, (n_leaves, n_scores), to values in score steps, (n_scores, n_trees, n_leaves)


@dataclass(frozen=True, eq=False, slots=True)
class ForestScale:
    """What the rounds so far tell of the forest's scale.

    Parameters
    ----------
    codes : (n_features, n_made) uint8
        Rows that are made up.
    before : (n_scores, n_made) int32, score steps
        Their scores before the forest.
    unit : (n_scores, n_made) float64
        Sampling noise of each row's g, for a Hessian that is as large as the scores say.
    forest, fitted : (n_scores, n_made) int32, score steps
        The trees so far; and what trees make of the sampling noise of the rows that are made up, which stands for how
        far the forest follows that of the real ones.
    told, followed, curved, variance : float
        Over leaves of rounds that count, the sum of Σg times the mean of the trees so far; the part of it by which
        these follow the sampling noise of the rows; the sum of their curvature; and the variance of the first by the
        noise of the releases.
    """

    codes: NDArray[np.uint8]
    before: NDArray[np.int32]
    unit: NDArray[np.float64]
    forest: NDArray[np.int32]
    fitted: NDArray[np.int32]
    told: float = 0.0
    followed: float = 0.0
    curved: float = 0.0
    variance: float = 0.0

    @classmethod
    def begin(cls, state: State, rng: np.random.Generator) -> Self:
        """Make up the rows: of each feature as many in a bin as its released share says, in random order."""
        n = constants.MADE_ROWS
        middle = (np.arange(n) + 0.5) / n
        codes = np.empty((len(state.counts), n), np.uint8)
        for own, mass in zip(codes, state.counts, strict=True):
            below = np.cumsum(np.maximum(mass, 0))
            own[:] = rng.permutation(np.searchsorted(below[:-1], middle * below[-1]))
        assert state.model is not None
        before = scores_by_codes(state.model)(codes)
        unit = noise_of(state.shape.kind, before, rng)
        return cls(codes, before, unit, np.zeros_like(before), np.zeros_like(before))

    def factor(self) -> float:
        """Return what the trees should be multiplied by: 1, moved to 1 less the slope as far as that is known."""
        if self.curved <= 0:
            return 1.0
        told = self.told - constants.SCALE_OPTIMISM * self.followed
        slope, variance = told / self.curved, self.variance / self.curved**2
        prior = constants.SCALE_SD**2
        return float(np.clip(1 - slope * prior / (prior + variance), 0, constants.LARGEST_SCALE))

    def each(self, state: State) -> float:
        """Return the number of real rows that a row stands for."""
        return state.n_rows / self.codes.shape[1]

    def noise(self, state: State, times: float) -> NDArray[np.float64]:
        """Return the sampling noise of the rows, where real Hessians are ``times`` those by the scores."""
        return self.unit * np.sqrt(times * sampling_variance(state) / self.each(state))

    def after(
        self,
        state: State,
        splits: Splits,
        answer: Sums,
        value: NDArray[np.int32],
        values: Values,
        *,
        counts: bool,
    ) -> Self:
        """Return what is known after one more batch of trees, whose sums count only if ``counts``.

        ``value`` holds the values of its leaves, which ``values`` makes of any sums.
        """
        mean_hess = answer.hess.sum() / splits.n_trees / state.n_rows
        mean_hess /= curvature_of(state.shape.kind)
        each = self.each(state)
        bend = curvature_at(state.shape.kind, self.before + self.forest)
        times = max(mean_hess, TINY) / max(bend.mean_hess, TINY)
        leaf = np.empty((splits.n_trees, self.codes.shape[1]), np.uint8)
        tree_leaves(self.codes, *splits.arrays, leaf)
        noise = self.noise(state, times)
        columns = [times * bend(self.fitted / SCORE_ONE), noise]
        if counts:
            forest = self.forest / SCORE_ONE
            columns += [forest, times * bend(forest), self.fitted / SCORE_ONE]
        halves = [_summed(leaf, splits, h, columns) for h in (0, 1)]
        rows, pull, noise, *trees = (a + b for a, b in zip(*halves, strict=True))
        follows = values(each * (pull + noise).reshape(answer.grad.shape))
        grown = np.concatenate([self.forest, self.fitted])
        _add(leaf, np.concatenate([value, follows]), grown)
        later = replace(self, forest=grown[: len(value)], fitted=grown[len(value) :])
        if not counts:
            return later
        forest, _, fitted = trees
        share = np.maximum(rows, 1)
        mean = forest / share
        # of either half times the mean of the other: the square of a mean of a few rows is too large
        (rows_a, _, _, forest_a, bent_a, _), (rows_b, _, _, forest_b, bent_b, _) = halves
        mean_a, mean_b = forest_a / np.maximum(rows_a, 1), forest_b / np.maximum(rows_b, 1)
        crossed = bent_a * mean_b + bent_b * mean_a
        return replace(
            later,
            told=self.told + float((answer.grad.reshape(mean.shape) * mean).sum()),
            followed=self.followed + float(each * (noise * fitted / share).sum()),
            curved=self.curved + float(each * crossed.sum()),
            variance=self.variance + float(answer.grad_sd**2 * (mean**2).sum()),
        )


@dataclass(frozen=True, eq=False, slots=True)
class Curvature:
    """What the curvature of rows makes of a change of their scores, up to a factor.

    Parameters
    ----------
    weight : (n_scores, n_rows) float64
        Chances of several classes; of one score the curvature itself.
    joint : bool
        Whether the scores are those of several classes: diag(p) - pp'.
    """

    weight: NDArray[np.float64]
    joint: bool

    def __call__(self, change: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the change of the rows' gradients, (n_scores, n_rows)."""
        own = self.weight * change
        return own - self.weight * own.sum(0) if self.joint else own

    @property
    def diagonal(self) -> NDArray[np.float64]:
        """The Hessian of each score, (n_scores, n_rows)."""
        return self.weight * (1 - self.weight) if self.joint else self.weight

    @property
    def mean_hess(self) -> float:
        """Mean over rows of the Hessian, summed over scores."""
        return float(self.diagonal.sum(0).mean())


def curvature_at(kind: str, score: NDArray[np.int32]) -> Curvature:
    """Return the curvature of rows by their scores."""
    if kind == "multiclass":
        return Curvature(chances(score), joint=True)
    if kind == "numeric":
        return Curvature(np.ones(score.shape), joint=False)
    p = sigmoid(score / SCORE_ONE)
    return Curvature(p * (1 - p), joint=False)


def chances(score: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the softmax of scores, (n_scores, n_rows)."""
    return LINKS["softmax"](score.T / SCORE_ONE).T


def noise_of(kind: str, score: NDArray[np.int32], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return sampling noise with the curvature of rows as its covariance: of several classes, p less a drawn class."""
    if kind == "multiclass":
        p = chances(score)
        drawn = (p.cumsum(0) < rng.random(p.shape[1])).sum(0).clip(max=len(p) - 1)
        p[drawn, np.arange(p.shape[1])] -= 1
        return p
    sign = np.where(rng.random(score.shape) < 0.5, -1.0, 1.0)
    return sign * np.sqrt(curvature_at(kind, score).weight)


def _summed(
    leaf: NDArray[np.uint8], splits: Splits, half: int, columns: Sequence[NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """Return the number of rows in each leaf, (n_trees, n_leaves, 1), and the sums of columns, (…, n_scores) each.

    Of one half of the rows.
    """
    n = leaf.shape[1] // 2
    own = slice(half * n, half * n + n)
    sizes = (splits.n_leaves,) * splits.n_trees
    steps = np.rint(np.concatenate([c[:, own] for c in columns]) * SCORE_ONE)
    packed = (steps.clip(-LARGEST, LARGEST).astype(np.int64) << 32) + 1
    sums = joint_sums(np.ascontiguousarray(leaf[:, own]), packed, LARGEST, sizes)
    sums = sums.reshape(splits.n_trees, splits.n_leaves, -1, 2)
    rows = sums[:, :, :1, 1].astype(np.float64)
    return [rows, *np.split(sums[..., 0] / SCORE_ONE, len(columns), axis=2)]


def _add(leaf: NDArray[np.uint8], value: NDArray[np.int32], rows: NDArray[np.int32]) -> None:
    """Add the values of leaves to rows: trees are like features whose bins are their leaves."""
    add_tables(leaf, list(np.ascontiguousarray(value.transpose(1, 2, 0))), rows)
