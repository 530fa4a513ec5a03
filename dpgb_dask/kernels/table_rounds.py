"""A round of trees of one feature in one loop over the rows: update scores by one table, look up gradients, sum them.

It does what `predict.add_tables`, `gradient.logistic`, `histogram.joint_sums` and `route.sums_of_leaves` do one after
the other, for rounds so short that preparing four loops takes longer than the loops.
"""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable, same_rows, writable
from dpgb_dask.kernels.gradient import table_index
from dpgb_dask.kernels.histogram import HALF, MAX_CELLS, PACKED, unload
from dpgb_dask.kernels.predict import gather_one
from dpgb_dask.kernels.route import leaf_of_code, one_feature_of
from dpgb_dask.losses import TABLE_SIZE

BLOCK = 8192  # rows per inner loop: they stay in L2
MOST_ROWS = HALF >> 15  # of a packed sum, whose rows have |g| and h of at most 2¹⁵ steps


@inner
def _sum_entries(
    code: NDArray[np.uint8],
    index: NDArray[np.uint16],
    table: NDArray[np.int64],
    sums: NDArray[np.int64],  # OUT (4, 256), packed, added to
) -> None:
    """Add each row's entry to its bin, in four accumulators in turn, as `histogram.joint_sums` does."""
    a, b, c, d = sums[0], sums[1], sums[2], sums[3]
    n = index.shape[0]
    four = n & ~3
    for i in range(0, four, 4):
        a[code[i]] += table[index[i]]
        b[code[i + 1]] += table[index[i + 1]]
        c[code[i + 2]] += table[index[i + 2]]
        d[code[i + 3]] += table[index[i + 3]]
    for i in range(four, n):
        a[code[i]] += table[index[i]]


@kernel
def _table_round(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    label: NDArray[np.uint8],  # IN (n_rows,)
    changed: int,
    change: NDArray[np.int32],  # IN (n_bins of ``changed``, 1)
    lookup: NDArray[np.int64],  # IN (2, TABLE_SIZE)
    n_bins: NDArray[np.int64],  # IN (n_features,)
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    score: NDArray[np.int32],  # OUT (n_rows,), added to
    out: NDArray[np.int64],  # OUT (n_trees, leaves, 2), added to
) -> bool:
    """Return whether the trees are of one feature that exists; if not, nothing is done."""
    only = one_feature_of(feature, threshold, mask_of)
    if only < 0 or feature.max() >= n_bins.shape[0]:
        return False
    added = np.empty(MAX_CELLS, np.int32)
    for c in range(MAX_CELLS):
        added[c] = change[min(c, change.shape[0] - 1), 0]
    entries, n = lookup.reshape(-1), score.shape[0]
    indices, sums = np.empty(BLOCK, np.uint16), np.zeros((4, MAX_CELLS), np.int64)
    total, rows = np.zeros((MAX_CELLS, 2), np.int64), 0
    for lo in range(0, n, BLOCK):
        hi = min(n, lo + BLOCK)
        index = indices[: hi - lo]
        gather_one(codes[changed, lo:hi], added, score[lo:hi])
        table_index(score[lo:hi], label[lo:hi], index)
        _sum_entries(codes[only, lo:hi], index, entries, sums)
        rows += hi - lo
        if rows + BLOCK > MOST_ROWS or hi == n:
            unload(sums[0] + sums[1] + sums[2] + sums[3], PACKED, total)
            sums[:] = 0
            rows = 0
    last = n_bins[only] - 1
    for c in range(MAX_CELLS):
        for t in range(out.shape[0]):
            leaf = leaf_of_code(min(c, last), threshold[t], mask_of[t], masks)
            out[t, leaf, 0] += total[c, 0]
            out[t, leaf, 1] += total[c, 1]
    return True


def table_round(
    codes: NDArray[np.uint8],
    label: NDArray[np.uint8],
    changed: int,
    change: NDArray[np.int32],
    lookup: NDArray[np.int64],
    n_bins: NDArray[np.int64],
    splits: tuple[NDArray[np.uint16], NDArray[np.uint8], NDArray[np.int32], NDArray[np.uint8]],
    score: NDArray[np.int32],
    out: NDArray[np.int64],
) -> bool:
    """Add a table's entries to the scores, and each row's gradient at its new score to its leaves.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
    label : (n_rows,) uint8
    changed : int
        Feature of the table.
    change : (n_bins, 1) int32, score steps
    lookup : (2, TABLE_SIZE) int64
        As for `gradient.logistic`; no |g| or h is above 2¹⁵.
    n_bins : (n_features,) int64
    splits : arrays of `contracts.model.Splits`
        Trees that are known to be whole.
    score : (n_rows,) int32, score steps
        Added to in place, modulo 2³².
    out : (n_trees, leaves, 2) int64
        Added to in place: sums of (g, h).

    Returns
    -------
    bool
        False if the trees are not all of one feature, have no splits, or name a feature that rows do not have: then
        nothing is done.

    Raises
    ------
    ValueError
        If a dtype, layout or shape is wrong; never because of a row.

    Privacy
    -------
    Private side. One row changes one leaf of each tree, by its own (g, h). Exact: a packed sum holds at most
    `MOST_ROWS` rows.
    """
    same_rows(codes=codes, label=label, score=score)
    if lookup.shape != (2, TABLE_SIZE) or change.shape[1:] != (1,) or len(n_bins) != len(codes):
        raise ValueError("lookup, change or n_bins has another shape than rows of one score need.")
    feature, threshold, mask_of, masks = splits
    return _table_round(
        readable("codes", codes, np.uint8, 2),
        readable("label", label, np.uint8, 1),
        changed,
        readable("change", change, np.int32, 2),
        readable("lookup", lookup, np.int64, 2),
        readable("n_bins", n_bins, np.int64, 1),
        readable("feature", feature, np.uint16, 2),
        readable("threshold", threshold, np.uint8, 2),
        readable("mask_of", mask_of, np.int32, 2),
        readable("masks", masks, np.uint8, 2),
        writable("score", score, np.int32, 1),
        writable("out", out, np.int64, 3),
    )
