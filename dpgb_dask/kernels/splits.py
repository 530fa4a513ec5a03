"""The best split of every node, from noisy sums of gradients per cell. Cells of a feature are its bins, or two sides.

The gain of a split says how much better two means fit than one: Σ D² (1/(H_l + λ) + 1/(H_r + λ)) over the scores.
D = w_r G_l - w_l G_r, with w the sides' shares of H, is how far the left side's sum is from its share of the whole.
Without noise and with λ = 0 the gain equals the papers' G_l²/H_l + G_r²/H_r - G²/H; with λ, a common offset of G still
cancels. Noise makes D² larger by its variance on average, so this variance is subtracted. A noisy H near 0 would make
any gain large, so λ is at least `NOISE_RIDGE` standard deviations of the noise on H. Where cells were ordered, and so
picked, by their own noise, that noise adds up and is taken into account. All of it is post-processing.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable
from dpgb_dask.kernels.histogram import MAX_CELLS

NOISE_RIDGE = 4.0  # the ridge of a gain is at least this many standard deviations of the noise on H
PICKED = 0.8  # mean of the larger half of many standard normal values
NOWHERE = 255  # no cell exceeds this threshold


class Best(NamedTuple):
    """The best split of each node.

    Parameters
    ----------
    gain : (n_nodes,) float64
        -inf where there is no candidate.
    feature : (n_nodes,) int64
        Position among the features; -1 where there is no candidate.
    threshold : (n_nodes,) uint8
        The last cell on the left; `NOWHERE` where there is none such.
    masked : (n_nodes,) bool
        Whether the mask says which cells go right, since they are not the last ones.
    mask : (n_nodes, MAX_CELLS) uint8
    """

    gain: NDArray[np.float64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.uint8]
    masked: NDArray[np.bool_]
    mask: NDArray[np.uint8]


@inner
def _add_gains(
    g: NDArray[np.float64],  # IN (n_cells + 1,): of the first cells
    h: NDArray[np.float64],  # IN (n_cells + 1,)
    more_g: float,  # what goes left besides
    more_h: float,
    more: int,
    variance: NDArray[np.float64],  # IN (2, MAX_CELLS + 1): by cells on a side, and backwards
    ridge: NDArray[np.float64],  # IN (2, MAX_CELLS + 1)
    grad_var: float,
    hess_sd: float,
    gain: NDArray[np.float64],  # OUT (n_cells + 1,), added to; the last ``more`` are left
) -> None:
    n_cells = g.shape[0] - 1
    total_g, total_h = g[n_cells], h[n_cells]
    n_gains = n_cells + 1 - more
    # slices of one length, and divisions without a test for 0: then the loop takes four cells at once
    g, h, gain = g[:n_gains], h[:n_gains], gain[:n_gains]
    left_variance, left_ridge = variance[0, more:][:n_gains], ridge[0, more:][:n_gains]
    first = MAX_CELLS - n_cells + more
    right_variance, right_ridge = variance[1, first:][:n_gains], ridge[1, first:][:n_gains]
    for n in range(gain.shape[0]):
        left_g = g[n] + more_g
        left_h = max(h[n] + more_h, 0.0)
        right_g = total_g - left_g
        right_h = max(total_h - (h[n] + more_h), 0.0)
        whole = max(left_h + right_h, 1e-9)
        share = np.divide(1.0, whole)
        w_left, w_right = left_h * share, right_h * share
        differs = w_right * left_g - w_left * right_g
        of_mean = np.divide(left_g + right_g, max(whole, hess_sd)) * hess_sd
        cells = w_right * w_right * left_variance[n] + w_left * w_left * right_variance[n]
        left_h, right_h = left_h + left_ridge[n], right_h + right_ridge[n]
        weight = np.divide(left_h + right_h, left_h * right_h)
        gain[n] += (differs * differs - cells * (grad_var + of_mean * of_mean)) * weight


@inner
def _sort(
    grad: NDArray[np.float64],  # IN (n_cells, n_scores)
    hess: NDArray[np.float64],  # IN (n_cells, n_scores)
    mean: float,
    ridge: float,
    key: NDArray[np.float64],  # OUT (>= n_cells,)
    order: NDArray[np.int64],  # OUT (>= n_cells,)
) -> None:
    # relative to the node's mean, so that the ridge shrinks small categories towards it; a common offset changes no
    # order
    for i in range(grad.shape[0]):
        held = max(hess[i, 0], 0.0)
        steepness = (grad[i, 0] - held * mean) / (held + ridge)
        at = i
        while at > 0 and key[at - 1] > steepness:
            key[at], order[at] = key[at - 1], order[at - 1]
            at -= 1
        key[at], order[at] = steepness, i


@inner
def _add_up(
    grad: NDArray[np.float64],  # IN (n_cells, n_scores)
    hess: NDArray[np.float64],  # IN (n_cells, n_scores)
    order: NDArray[np.int64],  # IN (>= n_cells,)
    sums: NDArray[np.float64],  # OUT (2, n_scores, > n_cells): of the first cells
) -> None:
    for s in range(grad.shape[1]):
        g = h = 0.0
        for i in range(grad.shape[0]):
            g += grad[order[i], s]
            h += hess[order[i], s]
            sums[0, s, i + 1], sums[1, s, i + 1] = g, h


@inner
def _split(
    order: NDArray[np.int64],  # IN (>= n_cells,)
    n_left: int,
    n_cells: int,
    moved: int,  # whether the last cell goes left too
    right: NDArray[np.uint8],  # OUT (>= n_cells,)
    mask: NDArray[np.uint8],  # OUT (>= n_cells,): if the cells on the right are not the last
) -> bool:
    for i in range(n_cells):
        right[order[i]] = i >= n_left
    if moved:
        right[n_cells - 1] = 0
    if not right[: n_left + moved].any():
        return False
    mask[:n_cells] = right[:n_cells]
    return True


@kernel
def _best_splits(
    grad: NDArray[np.float64],  # IN (n_nodes, n_cells, n_scores)
    hess: NDArray[np.float64],  # IN (n_nodes, n_cells, n_scores)
    ends: NDArray[np.int64],  # IN (n_features,): of each feature's cells
    cuts: NDArray[np.int64],  # IN (n_cuts,): the last cell on the left
    cut_ends: NDArray[np.int64],  # IN (n_features,)
    ordered: NDArray[np.bool_],  # IN (n_features,): by their sums, as categories are
    missing: NDArray[np.bool_],  # IN (n_features,): the last cell may go to either side
    allowed: NDArray[np.bool_],  # IN (n_nodes, n_features)
    ridge: float,
    grad_sd: float,
    hess_sd: float,
    best: NDArray[np.float64],  # OUT (n_nodes,)
    feature: NDArray[np.int64],  # OUT (n_nodes,)
    threshold: NDArray[np.uint8],  # OUT (n_nodes,)
    masked: NDArray[np.bool_],  # OUT (n_nodes,)
    mask: NDArray[np.uint8],  # OUT (n_nodes, MAX_CELLS)
) -> None:
    n_scores = grad.shape[2]
    sums = np.zeros((2, n_scores, MAX_CELLS + 1))
    gains, key = np.empty(MAX_CELLS + 1), np.empty(MAX_CELLS)
    order, numbered = np.empty(MAX_CELLS, np.int64), np.arange(MAX_CELLS)
    right = np.empty(MAX_CELLS, np.uint8)
    ridges, cells, picked = np.empty((3, 2, MAX_CELLS + 1))
    for n in range(MAX_CELLS + 1):
        ridges[0, n] = max(ridge, NOISE_RIDGE * hess_sd * np.sqrt(n))
        cells[0, n] = n
        picked[0, n] = max(n, (PICKED * n) * (PICKED * n))
    for table in (ridges, cells, picked):
        table[1] = table[0, ::-1]
    for k in range(grad.shape[0]):
        best[k], feature[k], threshold[k], masked[k] = -np.inf, -1, NOWHERE, False
        end, cut_end = 0, 0
        for j in range(ends.shape[0]):
            start, cut_start = end, cut_end
            end, cut_end = ends[j], cut_ends[j]
            if not allowed[k, j] or cut_start == cut_end:
                continue
            g, h, n_cells = grad[k, start:end], hess[k, start:end], end - start
            _add_up(g, h, numbered, sums)
            at, variance = numbered, cells
            if ordered[j]:
                at, variance = order, picked
                lowest = max(hess_sd * np.sqrt(n_cells), 1e-9)
                mean = sums[0, 0, n_cells] / max(sums[1, 0, n_cells], lowest)
                _sort(g, h, mean, ridge, key, order)
                _add_up(g, h, order, sums)
            n_left, moved = -1, 0
            for more in range(1 + missing[j]):
                gains[:] = 0.0
                for s in range(n_scores):
                    _add_gains(
                        sums[0, s, : n_cells + 1],
                        sums[1, s, : n_cells + 1],
                        more * g[n_cells - 1, s],
                        more * h[n_cells - 1, s],
                        more,
                        variance,
                        ridges,
                        grad_sd * grad_sd,
                        hess_sd,
                        gains[: n_cells + 1],
                    )
                for c in range(cut_start, cut_end):
                    if gains[cuts[c] + 1] > best[k]:
                        best[k] = gains[cuts[c] + 1]
                        n_left, moved = cuts[c] + 1, more
            if n_left >= 0:
                feature[k] = j
                masked[k] = _split(at, n_left, n_cells, moved, right, mask[k])
                threshold[k] = NOWHERE if masked[k] else n_left + moved - 1


def best_splits(
    grad: NDArray[np.float64],
    hess: NDArray[np.float64],
    ends: NDArray[np.int64],
    cuts: list[NDArray[np.int64]],
    ordered: NDArray[np.bool_],
    missing: NDArray[np.bool_],
    allowed: NDArray[np.bool_] | None,
    ridge: float,
    grad_sd: float,
    hess_sd: float,
) -> Best:
    """Return the split of most gain in every node; of equal ones, the first feature and cut.

    Parameters
    ----------
    grad, hess : (n_nodes, n_cells, n_scores) float64, natural units
        Noisy sums; cells of all features, concatenated.
    ends : (n_features,) int64
        Where each feature's cells end.
    cuts : list of ((n_cuts,) int64)
        Candidates per feature: how many cells, less one, go left.
    ordered : (n_features,) bool
        Features whose cells are first ordered by gradient over Hessian of the first score.
    missing : (n_features,) bool
        Features whose last cell, which stays right else, is also tried on the left; not with ``ordered``.
    allowed : (n_nodes, n_features) bool, or None
        Which features may split each node; None if all may.
    ridge : float
        λ, > 0.
    grad_sd, hess_sd : float
        Standard deviations of the noise of one cell.
    """
    n_nodes = len(grad)
    best = Best(
        np.empty(n_nodes),
        np.empty(n_nodes, np.int64),
        np.empty(n_nodes, np.uint8),
        np.empty(n_nodes, bool),
        np.zeros((n_nodes, MAX_CELLS), np.uint8),
    )
    _best_splits(
        readable("grad", np.ascontiguousarray(grad), np.float64, 3),
        readable("hess", np.ascontiguousarray(hess), np.float64, 3),
        readable("ends", ends, np.int64, 1),
        readable("cuts", np.concatenate(cuts), np.int64, 1),
        np.cumsum([len(some) for some in cuts]),
        readable("ordered", ordered, np.bool_, 1),
        readable("missing", missing, np.bool_, 1),
        np.ones((n_nodes, len(ends)), bool) if allowed is None else np.ascontiguousarray(allowed),
        float(ridge),
        float(grad_sd),
        float(hess_sd),
        *best,
    )
    return best
