"""Rows to leaves, for complete trees, and the gradient sums of all leaves of several trees."""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import kernel, readable, same_rows
from dpgb_dask.kernels.histogram import (
    GROUP_CELLS,
    flush,
    groups_of,
    runs,
    scatter_block,
)

BLOCK = 8192  # rows per inner loop: 2^(depth - 2) leaf buffers of it stay in L2
MAX_DEPTH = 8  # leaf numbers are uint8


@kernel
def _stump(c: NDArray[np.uint8], t: np.uint8, leaf: NDArray[np.uint8]) -> None:
    for i in range(leaf.shape[0]):
        leaf[i] = 1 if c[i] > t else 0


@kernel
def _fork(
    c0: NDArray[np.uint8],
    t0: np.uint8,
    c1: NDArray[np.uint8],
    t1: np.uint8,
    c2: NDArray[np.uint8],
    t2: np.uint8,
    base: np.uint8,
    leaf: NDArray[np.uint8],
) -> None:
    """Choose among the four leaves under a node: a SIMD loop only while every load is unconditional."""
    for i in range(leaf.shape[0]):
        right = c0[i] > t0
        low = np.uint8(c1[i] > t1)
        high = np.uint8(np.uint8(c2[i] > t2) + np.uint8(2))
        leaf[i] = base + (high if right else low)


@kernel
def _choose(
    c: NDArray[np.uint8], t: np.uint8, right: NDArray[np.uint8], leaf: NDArray[np.uint8]
) -> None:
    """Keep the left subtree's leaf, or take the right one's."""
    for i in range(leaf.shape[0]):
        r, left = right[i], leaf[i]
        leaf[i] = r if c[i] > t else left


@kernel
def find_leaves(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int,
    feature: NDArray[np.uint16],  # IN (nodes,), heap order
    threshold: NDArray[np.uint8],  # IN (nodes,)
    buffer: NDArray[np.uint8],  # scratch (>= nodes // 4 + 1, >= rows)
    leaf: NDArray[np.uint8],  # OUT (rows from lo on,)
) -> None:
    """Find the leaf of each row of one tree, from the lowest nodes up: every row compares at every node.

    With 64 rows per instruction that is faster than walking down. ``leaf`` is the buffer of the leftmost subtree.
    """
    n = leaf.shape[0]
    hi = lo + n
    nodes = feature.shape[0]
    if nodes == 1:
        _stump(codes[feature[0], lo:hi], threshold[0], leaf)
        return
    n_forks = (nodes + 1) // 4
    for k in range(n_forks):
        p = n_forks - 1 + k
        a, b = 2 * p + 1, 2 * p + 2
        part = leaf if k == 0 else buffer[k, :n]
        _fork(
            codes[feature[p], lo:hi],
            threshold[p],
            codes[feature[a], lo:hi],
            threshold[a],
            codes[feature[b], lo:hi],
            threshold[b],
            np.uint8(4 * k),
            part,
        )
    width = n_forks
    step = 1
    while width > 1:
        width //= 2
        for k in range(width):
            p = width - 1 + k
            left = leaf if k == 0 else buffer[2 * k * step, :n]
            _choose(codes[feature[p], lo:hi], threshold[p], buffer[(2 * k + 1) * step, :n], left)
        step *= 2


@kernel
def _tree_sums(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    values: NDArray[np.int64],  # IN (n_rows,)
    limit: int,  # rows between flushes
    side: int,
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    offset: NDArray[np.int64],
    start: NDArray[np.int64],
    cells: NDArray[np.int64],
    out: NDArray[np.int64],  # OUT (n_trees * leaves, 2), added to
) -> None:
    """Find the leaves of a block; sum as if each tree were a feature with its leaves as bins."""
    n = values.shape[0]
    n_trees, nodes = feature.shape
    step = min(BLOCK, limit)
    leaves = np.empty((n_trees, step), np.uint8)
    buffer = np.empty((nodes // 4 + 1, step), np.uint8)
    keys = np.empty((2, step), np.uint16)
    sums = np.zeros((cells.shape[0], GROUP_CELLS), np.int64)
    rows = 0
    for lo in range(0, n, step):
        hi = min(n, lo + step)
        if rows + hi - lo > limit:
            flush(sums, side, size, offset, start, cells, out)
            rows = 0
        for t in range(n_trees):
            find_leaves(codes, lo, feature[t], threshold[t], buffer, leaves[t, : hi - lo])
        scatter_block(leaves, 0, values[lo:hi], order, size, start, keys, sums)
        rows += hi - lo
    flush(sums, side, size, offset, start, cells, out)


def check_trees(
    codes: NDArray[np.uint8], feature: NDArray[np.uint16], threshold: NDArray[np.uint8]
) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Check that trees are complete, at most `MAX_DEPTH` deep and name features that exist.

    Raises
    ------
    ValueError
        If not.
    """
    feature = readable("feature", feature, np.uint16, 2)
    threshold = readable("threshold", threshold, np.uint8, 2)
    leaves = feature.shape[1] + 1
    if (
        feature.shape != threshold.shape
        or leaves & (leaves - 1)
        or not 2 <= leaves <= 1 << MAX_DEPTH
    ):
        raise ValueError(
            f"feature and threshold must both be (n_trees, 2**depth - 1) with depth in [1, {MAX_DEPTH}]."
        )
    if feature.size and feature.max() >= len(codes):
        raise ValueError("A tree names a feature that codes does not have.")
    return feature, threshold


def tree_sums(
    codes: NDArray[np.uint8],
    feature: NDArray[np.uint16],
    threshold: NDArray[np.uint8],
    packed: NDArray[np.int64],
    max_abs: int,
) -> NDArray[np.int64]:
    """Sum g and h per leaf of several complete trees.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
    feature : (n_trees, 2**depth - 1) uint16
    threshold : (n_trees, 2**depth - 1) uint8
        Heap order; ``code > threshold`` goes right. Depth 1 to 8.
    packed : (n_rows,) int64
        ``(g << 32) + h`` in steps, weights included, h >= 0.
    max_abs : int
        Bound on |g| and h of one row, weights included.

    Returns
    -------
    (n_trees, 2**depth, 2) int64
        Sums of (g, h).

    Raises
    ------
    ValueError
        If a dtype, layout, shape or feature is wrong or max_abs is not in [1, 2³¹ - 1]; never because of a row.

    Privacy
    -------
    Private side. One row changes one leaf of each tree, by its own (g, h). Exact for any n_rows: no packed sum holds
    more than (2³¹ - 1) // max_abs rows.
    """
    same_rows(codes=codes, packed=packed)
    parts = runs(packed, max_abs)
    codes = readable("codes", codes, np.uint8, 2)
    feature, threshold = check_trees(codes, feature, threshold)
    n_trees, leaves = feature.shape[0], feature.shape[1] + 1
    out = np.zeros((n_trees * leaves, 2), np.int64)
    g = groups_of((leaves,) * n_trees)
    for values, limit, side in parts:
        _tree_sums(
            codes, feature, threshold, values, limit, side,
            g.order, g.size, g.offset, g.start, g.cells, out,
        )  # fmt: skip
    return out.reshape(n_trees, leaves, 2)
