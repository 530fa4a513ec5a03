"""What every round of small trees computes from released numbers: the steps of leaves, and tables with them.

NumPy's functions give the same bits; for a handful of numbers they take several times as long.
"""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import kernel, readable


@kernel
def _leaf_steps(
    answer: NDArray[np.int64],  # IN (n, n_scores, 2)
    rows: NDArray[np.float64],  # IN (n,) or empty
    step: float,
    hess_step: float,
    ridge: float,
    largest: float,
    rate: float,
    score_steps: float,
    out: NDArray[np.int32],  # OUT (n_scores, n)
) -> None:
    for i in range(answer.shape[0]):
        for k in range(answer.shape[1]):
            hess = rows[i] if rows.size else answer[i, k, 1] * step / hess_step
            move = 0.0
            if hess > 0.0:
                move = -(answer[i, k, 0] * step) / (hess + ridge)
            out[k, i] = np.int32(np.rint(rate * min(max(move, -largest), largest) * score_steps))


def leaf_steps(
    answer: NDArray[np.int64],
    rows: NDArray[np.float64],
    n_scores: int,
    step: float,
    hess_step: float,
    *,
    ridge: float,
    largest: float,
    rate: float,
    score_steps: float,
) -> NDArray[np.int32]:
    """Return ``rate · clip(-g / (h + ridge), ±largest)`` of released leaves in score steps; 0 where h is not positive.

    Parameters
    ----------
    answer : (n_leaves · n_scores · 2,) int64
        Released sums of (g, h).
    rows : (n_leaves,) float64
        What counts as h; if empty, the answer's own.
    n_scores : int
    step, hess_step : float
        Natural units of one step of g; by what h is divided besides.
    ridge, largest, rate : float
    score_steps : float
        Score steps of one score unit.

    Returns
    -------
    (n_scores, n_leaves) int32

    Raises
    ------
    ValueError
        If rows are those of other leaves: the kernel would read other memory.
    """
    sums = readable("answer", answer, np.int64, 1).reshape(-1, n_scores, 2)
    if rows.size not in (0, len(sums)):
        raise ValueError("rows needs a number for each leaf of the answer, or none.")
    out = np.empty((n_scores, len(sums)), np.int32)
    known = readable("rows", rows, np.float64, 1)
    _leaf_steps(
        sums,
        known,
        float(step),  # for options of other types numba compiles other versions, or knows none
        float(hess_step),
        float(ridge),
        float(largest),
        float(rate),
        float(score_steps),
        out,
    )
    return out


@kernel
def _with_leaves(
    table: NDArray[np.int32],  # IN (n_bins, n_scores)
    leaf: NDArray[np.uint16],  # IN (n_bins,)
    value: NDArray[np.int32],  # IN (n_scores, n_trees, n_leaves)
    tree: int,
    low: NDArray[np.int64],  # OUT (n_scores,), added to
    high: NDArray[np.int64],  # OUT (n_scores,), added to
    out: NDArray[np.int32],  # OUT (n_bins, n_scores)
) -> None:
    for k in range(low.size):
        for c in range(out.shape[0]):
            out[c, k] = table[c, k] + value[k, tree, leaf[c]]
            before, after = table[c, k], out[c, k]
            if c == 0:
                least, most, new_least, new_most = before, before, after, after
            least, most = min(least, before), max(most, before)
            new_least, new_most = min(new_least, after), max(new_most, after)
        low[k] += np.int64(new_least) - np.int64(least)
        high[k] += np.int64(new_most) - np.int64(most)


def with_leaves(
    table: NDArray[np.int32],
    leaf: NDArray[np.uint16],
    value: NDArray[np.int32],
    tree: int,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Return a feature's table with a tree of that feature added.

    Parameters
    ----------
    table : (n_bins, n_scores) int32, score steps
        Released.
    leaf : (n_bins,) uint16
        The tree's leaf of each bin.
    value : (n_scores, n_trees, n_leaves) int32, score steps
        Leaves of several trees.
    tree : int
        Which of them.
    low, high : (n_scores,) int64, score steps
        By how much the table's least and largest entry moved is added to them.

    Raises
    ------
    ValueError
        If the sizes differ: the kernel would read other memory.
    """
    if table.shape != (leaf.size, len(value)) or not low.size == high.size == len(value):
        raise ValueError("with_leaves needs a leaf for each bin of the table, and the same scores.")
    out = np.empty(table.shape, np.int32)
    _with_leaves(
        readable("table", table, np.int32, 2),
        readable("leaf", leaf, np.uint16, 1),
        readable("value", value, np.int32, 3),
        tree,
        low,
        high,
        out,
    )
    return out
