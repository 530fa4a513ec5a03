"""What the stages of `auto` leave about the noise in their tables and leaves, for bands (docs/explanations.md §3).

Released numbers and functions of them; `training/bands.py` draws noise and sends it through the stages again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.auto.smoothing import Seen, TablePosterior
from dpgb_dask.contracts.plan import Facts, State
from dpgb_dask.contracts.queries import PairCells

DRAWS = 50  # of the noise, for the bands; their standard deviation is known to 10 %


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Filter:
    """How a table came from the noisy sums of its rounds.

    Parameters
    ----------
    seen : tuple of Seen
        One per round.
    root : (n_bins, n_coordinates) float64
        Square root of the prior covariance at scale 1.
    """

    seen: tuple[Seen, ...]
    root: NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TableNoise(Facts):
    """The filters of a stage's tables: per table, per score.

    Parameters
    ----------
    filters : tuple of tuples of Filter
    dampings : tuple of float
        How far the tables moved in each round, as a fraction of the distance to the posterior mean.
    """

    filters: tuple[tuple[Filter, ...], ...]
    dampings: tuple[float, ...]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LinearTables(Facts):
    """What linear effects are part of the tables of main effects, and the noise in their coefficients.

    Parameters
    ----------
    tables : tuple of ((n_bins, n_scores) int32)
        Per feature, score steps.
    features : (n,) uint16
        Those that have a linear effect.
    values : tuple of ((n_bins,) float64)
        What a bin of each of them stands for.
    matrix : (n_directions, n) float64
        How much of each feature's number is in each direction.
    sd : (n_directions, n_scores) float64
        Standard deviation of the noise in the coefficient of a direction.
    """

    tables: tuple[NDArray[np.int32], ...]
    features: NDArray[np.uint16]
    values: tuple[NDArray[np.float64], ...]
    matrix: NDArray[np.float64]
    sd: NDArray[np.float64]

    def add_noise(
        self, tables: list[NDArray[np.float64]], k: int, rng: np.random.Generator
    ) -> None:
        """Add draws of the noise to tables of draws of a score, (n_bins, n_draws) each, in place."""
        n_draws = tables[0].shape[1]
        slopes = self.matrix.T @ (
            self.sd[:, k, None] * rng.standard_normal((len(self.sd), n_draws))
        )
        for j, value, slope in zip(self.features, self.values, slopes, strict=True):
            tables[j] += value[:, None] * slope


class MainNoise(TableNoise):
    """Of main effects, feature by feature."""

    __slots__ = ()


class PairNoise(TableNoise):
    """Of pair tables, in the order of the model's."""

    __slots__ = ()


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Screened(Facts):
    """What the screening of pairs released about how features depend on each other.

    Parameters
    ----------
    cells : tuple of PairCells
        Candidate tables.
    hess : tuple of ((n_cells, n_scores) float64)
        Noisy Σh of the cells of each table.
    hess_sd : float
        Standard deviation of the noise on each.
    """

    cells: tuple[PairCells, ...]
    hess: tuple[NDArray[np.float64], ...]
    hess_sd: float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ForestNoise(Facts):
    """How the leaves of chosen and random trees react to noise.

    Parameters
    ----------
    gain : (n_scores, n_trees, n_leaves) float64
        Score units that a leaf moves against a unit of its Σg; 0 where a step is clipped.
    grad_sd : tuple of float
        Per tree, the standard deviation of the noise on a leaf's Σg.
    hess : tuple of float
        Per score, the curvature of the loss over all rows.
    batches : tuple of int
        Numbers of trees that share one gradient, in order.
    scales : tuple of float
        Per batch, what its leaves were multiplied by when all trees were there.
    """

    gain: NDArray[np.float64]
    grad_sd: tuple[float, ...]
    hess: tuple[float, ...]
    batches: tuple[int, ...]
    scales: tuple[float, ...]

    def followed_by(self, later: "ForestNoise") -> "ForestNoise":
        """Return the facts about these trees, then those of later ones."""
        return ForestNoise(
            gain=np.concatenate([self.gain, later.gain], axis=1),
            grad_sd=self.grad_sd + later.grad_sd,
            hess=self.hess,
            batches=self.batches + later.batches,
            scales=self.scales + later.scales,
        )

    def after(self, state: State) -> "ForestNoise":
        """Return the facts about the trees that the model had before, if any, then these."""
        known = state.find(ForestNoise)
        return self if known is None else known.followed_by(self)

    def scaled(self, n_batches: int, factor: float) -> "ForestNoise":
        """Return the facts where the last batches are multiplied by a factor."""
        return replace(self, scales=self.scales[:-n_batches] + n_batches * (factor,))

    @property
    def sd(self) -> NDArray[np.float64]:
        """Standard deviation of each leaf's own noise, (n_scores, n_trees, n_leaves), score units."""
        return self.gain * (np.array(self.grad_sd) * np.repeat(self.scales, self.batches))[:, None]


def filters_of(
    blocks: Sequence[Sequence[TablePosterior]],
) -> tuple[tuple[Filter, ...], ...]:
    """Return the filters of tables when their stage ends."""
    return tuple(tuple(Filter(seen=block.seen, root=block.root) for block in row) for row in blocks)
