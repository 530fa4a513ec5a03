"""How far the forest's trees are scaled when it is complete: what the gradients of the rows say.

Leaves of later trees show what earlier ones do on average over large parts of the data; whether the fine steps that few
leaves show are too short, or noise, only rows tell. So one last release asks for the sums of (g, h) by what the trees
add to a row: Σg along the forest, over its curvature, is 1 less what the trees should be multiplied by. The rows are
those that the trees were fitted to, and part of what these follow is the rows' own noise; how far they would follow
noise that is drawn for rows that are made up is known (`ForestScale`), and half of it counts (docs/default-method.md
§5).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.answers import Sums
from dpgb_dask.components.auto.forest_scale import TINY, Curvature, ForestScale, curvature_at
from dpgb_dask.components.auto.posterior import (
    AutoFacts,
    curvature_of,
    gradient_of,
    hess_of_rows,
    sampling_variance,
)
from dpgb_dask.contracts.model import SCORE_ONE, TreeEnsemble
from dpgb_dask.contracts.plan import State
from dpgb_dask.contracts.queries import ContributionSumsQuery
from dpgb_dask.contracts.scores import added_by
from dpgb_dask.losses.gradients import Gradient


@dataclass(frozen=True, slots=True)
class Slope:
    """How the gradients of rows go along a forest, over its curvature: 1 less what it should be multiplied by.

    Parameters
    ----------
    value, variance : float
        Without what the trees follow of the rows' own noise; and the variance of its error, were the curvature known.
    doubt : float
        Variance of the curvature, over its square.
    """

    value: float
    variance: float
    doubt: float

    def factor(self, known: float) -> float:
        """Return the likeliest factor c, given what leaves say: Σg is (1 - c) times a curvature that is in doubt."""
        times = np.linspace(0, constants.LARGEST_SCALE, 301)
        variance = self.variance + (1 - times) ** 2 * self.doubt
        misfit = (self.value - (1 - times)) ** 2 / variance + np.log(variance)
        misfit += (times - known) ** 2 / constants.SCALE_SD**2
        return float(times[np.argmin(misfit)])


UNKNOWN = Slope(value=0.0, variance=1e9, doubt=0.0)  # of a forest without steps
LEAST = 1e-9  # curvature of a forest with steps, and what part of it a sample of trees has


def numbers_of(trees: TreeEnsemble, start: int, n_rows: float) -> NDArray[np.int64]:
    """Return the trees that rows are asked about: all from number ``start`` on, or evenly fewer of many rows."""
    most = max(int(constants.SLOPE_WORK / n_rows), constants.SLOPE_TREES)
    n = trees.n_trees - start
    return start + np.unique(np.linspace(0, n - 1, min(most, n)).astype(np.int64))


def edges_of(added: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return edges of cells that divide rows evenly, by what is added to each score: (n_scores, n_cells - 1)."""
    n = constants.SLOPE_CELLS
    return np.quantile(added, np.arange(1, n) / n, axis=1, method="nearest").T.astype(np.int32)


def slope_gradient(state: State) -> Gradient:
    """Return the gradient whose sums tell the slope: with a wide clip of a number, as a multiple has to fit means."""
    wide = min(constants.SLOPE_CLIP * state.fact(AutoFacts).clip, 1.0)
    return gradient_of(state.shape.kind, wide, state.shape.n_scores)


def slope_of(state: State, scale: ForestScale, query: ContributionSumsQuery, answer: Sums) -> Slope:
    """Return how the rows' gradients go along the forest, from their sums by what some trees add to a row."""
    assert state.model is not None
    kind, each = state.shape.kind, scale.each(state)
    bend = curvature_at(kind, scale.before + scale.forest)
    times = mean_hess(state, scale, query, answer, bend) / max(bend.mean_hess, TINY)
    added = added_by(state.model.trees.only(query.trees), scale.codes)
    forest = scale.forest / SCORE_ONE
    bent = times * bend(forest)
    made = each * float((forest * bent).sum())
    share = each * float((added / SCORE_ONE * bent).sum()) / max(made, LEAST)
    if made <= LEAST or share <= LEAST:
        return UNKNOWN
    # means of these trees, and of all, where these add as much; as if these were all
    own, whole = _means(query.edges, added, added, scale.forest)
    own = own / share
    # released Hessians are those of single scores
    joint = made / (each * times * float((forest**2 * bend.diagonal).sum())) / curvature_of(kind)
    curved, doubt = mixed_curvature(
        told=joint * float((answer.hess * own * whole).sum()),
        variance=(joint * answer.hess_sd) ** 2 * float(((own * whole) ** 2).sum()),
        made=made,
    )
    followed = each * float((scale.noise(state, times) * scale.fitted).sum()) / SCORE_ONE / made
    followed *= constants.SCALE_OPTIMISM
    noise = answer.grad_sd**2 * float((own**2).sum())
    return Slope(
        value=float((answer.grad * own).sum()) / curved - followed,
        # of a sample of the trees the rows' part is larger, but there are many rows then
        variance=noise / curved**2 + sampling_variance(state) / curved + followed**2,
        doubt=doubt,
    )


def mixed_curvature(*, told: float, variance: float, made: float) -> tuple[float, float]:
    """Return the curvature along the forest, and its variance over its square.

    Of what released Hessians tell, with some variance, and what rows that are made up have; no less than its own error.
    """
    ratio, spread = constants.MADE_CURVATURE
    mixed, of_mixed = _weighed(told, variance, made * ratio, (made * ratio * spread) ** 2)
    mixed = max(mixed, float(np.sqrt(of_mixed)), LEAST)
    return mixed, of_mixed / mixed**2


def mean_hess(
    state: State,
    scale: ForestScale,
    query: ContributionSumsQuery,
    answer: Sums,
    bend: Curvature,
) -> float:
    """Return the mean curvature of a real row over all scores, after the forest.

    Of the Hessians in this answer, and of those before the forest, changed as those of rows that are made up.
    """
    before = curvature_at(state.shape.kind, scale.before).mean_hess
    known = sum(hess_of_rows(state)) / state.n_rows
    expected = known * bend.mean_hess / max(before, TINY)
    n = state.n_rows * curvature_of(state.shape.kind)
    told = float(answer.hess.sum()) / n
    noise = answer.hess_sd**2 * query.n_cells * query.n_scores / n**2
    mixed, _ = _weighed(told, noise, expected, (constants.HESS_DRIFT * expected) ** 2)
    return max(mixed, TINY)


def _weighed(told: float, noise: float, expected: float, doubt: float) -> tuple[float, float]:
    """Return the mean of what is told and what is expected by how well each is known, and its variance."""
    both = max(noise + doubt, TINY**2)
    return (told * doubt + expected * noise) / both, doubt * noise / both


def _means(
    edges: NDArray[np.int32], added: NDArray[np.int32], *columns: NDArray[np.int32]
) -> list[NDArray[np.float64]]:
    """Return the means of columns over the cells, (n_cells, n_scores), in natural units; 0 of an empty cell."""
    n = edges.shape[1] + 1
    found = [np.zeros((n, len(edges))) for _ in columns]
    for k, (own_edges, own) in enumerate(zip(edges, added, strict=True)):
        cell = np.searchsorted(own_edges, own, side="left")
        rows = np.maximum(np.bincount(cell, minlength=n), 1)
        for out, column in zip(found, columns, strict=True):
            out[:, k] = np.bincount(cell, column[k] / SCORE_ONE, n) / rows
    return found
