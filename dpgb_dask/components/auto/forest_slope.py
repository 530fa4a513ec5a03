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
from dpgb_dask.components.auto.forest_scale import TINY, ForestScale, curvature_at
from dpgb_dask.components.auto.posterior import curvature_of, hess_of_rows, sampling_variance
from dpgb_dask.contracts.model import SCORE_ONE, TreeEnsemble
from dpgb_dask.contracts.plan import State
from dpgb_dask.contracts.queries import ContributionSumsQuery
from dpgb_dask.kernels.predict import add_trees


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


UNKNOWN = Slope(value=0.0, variance=1 / TINY, doubt=0.0)  # of a forest without steps


def numbers_of(trees: TreeEnsemble, start: int, n_rows: float) -> NDArray[np.int64]:
    """Return the trees that rows are asked about: all from number ``start`` on, or evenly fewer of many rows."""
    most = max(int(constants.SLOPE_WORK / n_rows), constants.SLOPE_TREES)
    n = trees.n_trees - start
    return start + np.unique(np.linspace(0, n - 1, min(most, n)).astype(np.int64))


def added_by(
    trees: TreeEnsemble, numbers: NDArray[np.int64], codes: NDArray[np.uint8]
) -> NDArray[np.int32]:
    """Return what some trees add to the scores of rows, (n_scores, n), score steps."""
    value = np.ascontiguousarray(trees.value[:, numbers])
    out = np.zeros((len(value), codes.shape[1]), np.int32)
    add_trees(codes, *trees.splits.only(numbers).arrays, value, out)
    return out


def edges_of(added: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return edges of cells that divide rows evenly, by what is added to each score: (n_scores, n_cells - 1)."""
    n = constants.SLOPE_CELLS
    return np.quantile(added, np.arange(1, n) / n, axis=1, method="nearest").T.astype(np.int32)


def slope_of(state: State, scale: ForestScale, query: ContributionSumsQuery, answer: Sums) -> Slope:
    """Return how the rows' gradients go along the forest, from their sums by what some trees add to a row.

    The curvature is that of the released Hessians and that of the rows that are made up, by how far each is known.
    """
    assert state.model is not None
    kind = state.shape.kind
    each = state.n_rows / scale.codes.shape[1]  # rows that a row stands for
    bend = curvature_at(kind, scale.before + scale.forest)
    times = sum(hess_of_rows(state)) / state.n_rows / max(bend.mean_hess, TINY)
    added = added_by(state.model.trees, query.trees, scale.codes)
    forest = scale.forest / SCORE_ONE
    bent = times * bend(forest)
    made = each * float((forest * bent).sum())
    share = each * float((added / SCORE_ONE * bent).sum()) / max(made, TINY)
    if made <= TINY or share <= TINY:
        return UNKNOWN
    # means of these trees, and of all, where these add as much; as if these were all
    own = _means(query.edges, added, added) / share
    whole = _means(query.edges, added, scale.forest)
    noise = answer.grad_sd**2 * float((own**2).sum())
    # released Hessians are those of single scores
    joint = made / (each * times * float((forest**2 * bend.diagonal).sum())) / curvature_of(kind)
    told = joint * float((answer.hess * own * whole).sum())
    of_told = (joint * answer.hess_sd) ** 2 * float(((own * whole) ** 2).sum())
    ratio, spread = constants.MADE_CURVATURE
    expected = made * ratio
    of_expected = (expected * spread) ** 2
    curved = (told * of_expected + expected * of_told) / (of_expected + of_told)
    curved = max(curved, expected / 10)
    drawn = scale.unit * np.sqrt(times * sampling_variance(state) / each)
    followed = each * float((drawn * scale.fitted).sum()) / SCORE_ONE / made
    followed *= constants.SCALE_OPTIMISM
    return Slope(
        value=float((answer.grad * own).sum()) / curved - followed,
        variance=noise / curved**2 + sampling_variance(state) / curved + followed**2,
        doubt=of_expected * of_told / (of_expected + of_told) / curved**2,
    )


def _means(
    edges: NDArray[np.int32], added: NDArray[np.int32], column: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Return the means of a column over the cells, (n_cells, n_scores), in natural units; 0 of an empty cell."""
    found = []
    for own_edges, own, values in zip(edges, added, column, strict=True):
        cell = np.searchsorted(own_edges, own, side="left")
        n = np.bincount(cell, minlength=len(own_edges) + 1)
        total = np.bincount(cell, values / SCORE_ONE, minlength=len(own_edges) + 1)
        found.append(total / np.maximum(n, 1))
    return np.stack(found, axis=1)
