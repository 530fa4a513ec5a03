"""Find the leaves of rows in complete trees, and sum gradients per leaf of several trees.

A node sends a code right if ``code > threshold``; a node with a mask, if the mask is 1 at the code.
"""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable, same_rows, writable
from dpgb_dask.kernels.byte_tables import look_up
from dpgb_dask.kernels.histogram import joint_sums, runs, scatter_one, unload
from dpgb_dask.kernels.sides import (
    BYTE_DEPTH,
    find_leaves_of_sides,
    find_sides,
    memory_of_sides,
    rows_of_block,
    shared_splits,
    unit_block,
)
from dpgb_dask.kernels.splits import NOWHERE

BLOCK = 8192  # rows per inner loop: its 2^(depth - 2) leaf buffers stay in L2
MAX_DEPTH = 10
ASIDE = 3  # rows of the scratch buffer that hold the sides of masked nodes


@inner
def _stump(c: NDArray[np.uint8], t: np.uint8, leaf: NDArray[np.uint8]) -> None:
    for i in range(leaf.shape[0]):
        leaf[i] = 1 if c[i] > t else 0


@inner
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
    """Choose among the four leaves under a node; the loop is SIMD only as long as every load is unconditional."""
    for i in range(leaf.shape[0]):
        right = c0[i] > t0
        low = np.uint8(c1[i] > t1)
        high = np.uint8(np.uint8(c2[i] > t2) + np.uint8(2))
        leaf[i] = base + (high if right else low)


@inner
def _choose(
    c: NDArray[np.uint8], t: np.uint8, right: NDArray[np.uint8], leaf: NDArray[np.uint8]
) -> None:
    """Keep the left subtree's leaf, or take the right one's."""
    for i in range(leaf.shape[0]):
        r, left = right[i], leaf[i]
        leaf[i] = r if c[i] > t else left


@inner
def _fork_twice(
    c0: NDArray[np.uint8],
    t0: np.uint8,
    c1: NDArray[np.uint8],
    t1: np.uint8,
    c2: NDArray[np.uint8],
    t2: np.uint8,
    c3: NDArray[np.uint8],
    t3: np.uint8,
    c4: NDArray[np.uint8],
    t4: np.uint8,
    c5: NDArray[np.uint8],
    t5: np.uint8,
    c6: NDArray[np.uint8],
    t6: np.uint8,
    base: np.uint8,
    leaf: NDArray[np.uint8],
) -> None:
    """Choose among the eight leaves under a node; its seven nodes are in heap order."""
    for i in range(leaf.shape[0]):
        right, left_right, right_right = c0[i] > t0, c1[i] > t1, c2[i] > t2
        a, b = np.uint8(c3[i] > t3), np.uint8(np.uint8(c4[i] > t4) + np.uint8(2))
        c = np.uint8(np.uint8(c5[i] > t5) + np.uint8(4))
        d = np.uint8(np.uint8(c6[i] > t6) + np.uint8(6))
        low, high = (b if left_right else a), (d if right_right else c)
        leaf[i] = base + (high if right else low)


@inner
def _choose_twice(
    c0: NDArray[np.uint8],
    t0: np.uint8,
    c1: NDArray[np.uint8],
    t1: np.uint8,
    c2: NDArray[np.uint8],
    t2: np.uint8,
    second: NDArray[np.uint8],
    third: NDArray[np.uint8],
    fourth: NDArray[np.uint8],
    leaf: NDArray[np.uint8],
) -> None:
    """Keep the leaf of the first of four subtrees, or take that of another."""
    for i in range(leaf.shape[0]):
        w, x, y, z = leaf[i], second[i], third[i], fourth[i]
        low, high = (x if c1[i] > t1 else w), (z if c2[i] > t2 else y)
        leaf[i] = high if c0[i] > t0 else low


@inner
def _find_plain_leaves(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int,
    feature: NDArray[np.uint16],  # IN (nodes,), heap order
    threshold: NDArray[np.uint8],  # IN (nodes,)
    buffer: NDArray[np.uint8],  # scratch (>= nodes // 8 + 1, >= rows)
    leaf: NDArray[np.uint8],  # OUT (rows from lo on,)
) -> None:
    """Find the leaf of each row in one tree, from the lowest nodes up: every row is compared at every node.

    With 32 rows per instruction or more this is faster than walking down. ``leaf`` is the buffer of the leftmost
    subtree. A loop takes as many nodes as the compiler can tell apart from what it writes.
    """
    n = leaf.shape[0]
    hi = lo + n
    nodes = feature.shape[0]
    f, t = feature, threshold
    if nodes == 1:
        _stump(codes[f[0], lo:hi], t[0], leaf)
        return
    if nodes == 3:
        c0, c1, c2 = codes[f[0], lo:hi], codes[f[1], lo:hi], codes[f[2], lo:hi]
        _fork(c0, t[0], c1, t[1], c2, t[2], np.uint8(0), leaf)
        return
    width = (nodes + 1) // 8
    for k in range(width):
        p = width - 1 + k
        a, b = 2 * p + 1, 2 * p + 2
        c, d, e, g = 2 * a + 1, 2 * a + 2, 2 * b + 1, 2 * b + 2
        _fork_twice(
            codes[f[p], lo:hi], t[p], codes[f[a], lo:hi], t[a], codes[f[b], lo:hi], t[b],
            codes[f[c], lo:hi], t[c], codes[f[d], lo:hi], t[d], codes[f[e], lo:hi], t[e],
            codes[f[g], lo:hi], t[g], np.uint8(8 * k), leaf if k == 0 else buffer[k, :n],
        )  # fmt: skip
    step = 1
    while width > 2:
        width //= 4
        for k in range(width):
            p = width - 1 + k
            a, b, first = 2 * p + 1, 2 * p + 2, 4 * k * step
            _choose_twice(
                codes[f[p], lo:hi], t[p], codes[f[a], lo:hi], t[a], codes[f[b], lo:hi], t[b],
                buffer[first + step, :n], buffer[first + 2 * step, :n], buffer[first + 3 * step, :n],
                leaf if k == 0 else buffer[first, :n],
            )  # fmt: skip
        step *= 4
    if width == 2:
        _choose(codes[f[0], lo:hi], t[0], buffer[step, :n], leaf)


@inner
def _column(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int,
    feature: int,
    mask_of: int,
    masks: NDArray[np.uint8],
    side: NDArray[np.uint8],  # scratch (rows,)
) -> NDArray[np.uint8]:
    """Return what a node compares with its threshold: the codes, or, if it has a mask, 0 (left) and 1 (right)."""
    c = codes[feature, lo : lo + side.shape[0]]
    if mask_of < 0:
        return c
    look_up(c, masks[mask_of], side)
    return side


@inner
def _find_masked_leaves(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int,
    feature: NDArray[np.uint16],  # IN (nodes,), heap order
    threshold: NDArray[np.uint8],  # IN (nodes,); 0 where there is a mask
    mask_of: NDArray[np.int32],  # IN (nodes,)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    buffer: NDArray[np.uint8],  # scratch (>= nodes // 4 + 1 + ASIDE, >= rows)
    leaf: NDArray[np.uint8],  # OUT (rows from lo on,)
) -> None:
    """Like `_find_plain_leaves`, with masks; a separate kernel, as choosing the column takes a fifth of its time."""
    n = leaf.shape[0]
    nodes = feature.shape[0]
    last = buffer.shape[0] - ASIDE
    x, y, z = buffer[last, :n], buffer[last + 1, :n], buffer[last + 2, :n]
    if nodes == 1:
        _stump(_column(codes, lo, feature[0], mask_of[0], masks, x), threshold[0], leaf)
        return
    n_forks = (nodes + 1) // 4
    for k in range(n_forks):
        p = n_forks - 1 + k
        a, b = 2 * p + 1, 2 * p + 2
        part = leaf if k == 0 else buffer[k, :n]
        _fork(
            _column(codes, lo, feature[p], mask_of[p], masks, x),
            threshold[p],
            _column(codes, lo, feature[a], mask_of[a], masks, y),
            threshold[a],
            _column(codes, lo, feature[b], mask_of[b], masks, z),
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
            column = _column(codes, lo, feature[p], mask_of[p], masks, x)
            _choose(column, threshold[p], buffer[(2 * k + 1) * step, :n], left)
        step *= 2


@inner
def find_leaves(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int,
    feature: NDArray[np.uint16],  # IN (nodes,), heap order
    threshold: NDArray[np.uint8],  # IN (nodes,); 0 where there is a mask
    mask_of: NDArray[np.int32],  # IN (nodes,)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    buffer: NDArray[np.uint8],  # scratch (>= nodes // 4 + 1 + ASIDE, >= rows)
    leaf: NDArray[np.uint8],  # OUT (rows from lo on,)
) -> None:
    """Find the leaf of each row of one tree of at most `BYTE_DEPTH` levels."""
    if masks.shape[0] > 0:
        for q in mask_of:
            if q >= 0:
                _find_masked_leaves(codes, lo, feature, threshold, mask_of, masks, buffer, leaf)
                return
    _find_plain_leaves(codes, lo, feature, threshold, buffer, leaf)


@inner
def _descend(
    codes: NDArray[np.uint8],  # IN (n_features, rows of the block)
    feature: NDArray[np.uint16],  # IN (nodes of one level,)
    threshold: NDArray[np.uint8],
    mask_of: NDArray[np.int32],
    masks: NDArray[np.uint8],
    node: NDArray[np.uint16],  # IN OUT (rows of the block,), position in the level
) -> None:
    """Walk one level down, row by row: used for deep levels, which have many nodes."""
    for i in range(node.shape[0]):
        k = node[i]
        c = codes[feature[k], i]
        q = mask_of[k]
        right = masks[q, c] if q >= 0 else np.uint8(c > threshold[k])
        node[i] = 2 * k + right


@inner
def _widen(a: NDArray[np.uint8], out: NDArray[np.uint16]) -> None:
    for i in range(out.shape[0]):
        out[i] = a[i]


@inner
def find_deep_leaves(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int,
    feature: NDArray[np.uint16],  # IN (nodes,), heap order, any depth
    threshold: NDArray[np.uint8],  # IN (nodes,)
    mask_of: NDArray[np.int32],  # IN (nodes,)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    buffer: NDArray[np.uint8],  # scratch (>= 1 + rows that find_leaves asks for, >= rows)
    leaf: NDArray[np.uint16],  # OUT (rows from lo on,)
) -> None:
    """Find leaves whose numbers have more than 8 bits: the top of the tree by `find_leaves`, then by walking down."""
    n = leaf.shape[0]
    nodes = feature.shape[0]
    top = min(nodes, (1 << BYTE_DEPTH) - 1)  # heap order: the first nodes are the top of the tree
    if top == 0:
        for i in range(n):
            leaf[i] = 0
        return
    byte = buffer[0, :n]
    find_leaves(codes, lo, feature[:top], threshold[:top], mask_of[:top], masks, buffer[1:], byte)
    _widen(byte, leaf)
    block = codes[:, lo : lo + n]
    while top < nodes:
        level = slice(top, 2 * top + 1)
        _descend(block, feature[level], threshold[level], mask_of[level], masks, leaf)
        top = 2 * top + 1


@kernel
def _tree_leaves(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    out: NDArray[np.uint8],  # OUT (n_trees, n_rows)
) -> None:
    n_trees, n = out.shape
    buffer = np.empty((feature.shape[1] // 4 + 1 + ASIDE, min(n, BLOCK)), np.uint8)
    for lo in range(0, n, BLOCK):
        hi = min(n, lo + BLOCK)
        for t in range(n_trees):
            leaf = out[t, lo:hi]
            find_leaves(codes, lo, feature[t], threshold[t], mask_of[t], masks, buffer, leaf)


@kernel
def _sharing_tree_leaves(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    number: NDArray[np.int32],  # IN (n_trees, nodes), from `shared_splits`
    node: NDArray[np.int64],  # IN (n_splits, 2)
    rows: int,  # of a block: at most n_rows, and a multiple of `sides.UNIT`
    out: NDArray[np.uint8],  # OUT (n_trees, n_rows)
) -> None:
    """Like `_tree_leaves`, for trees that share splits: the sides of each split are found once."""
    n_trees, n = out.shape
    side, column = memory_of_sides(node.shape[0], rows), np.empty(rows, np.uint8)
    for lo in range(0, n, rows):
        first, hi = unit_block(lo, n, rows)
        find_sides(
            codes, first, feature, threshold, mask_of, masks, node, column[: hi - first], side
        )
        for t in range(n_trees):
            leaf = out[t, first:hi].view(np.uint64)
            find_leaves_of_sides(side.view(np.uint64), number[t], leaf)


@inner
def _unload_trees(sums: NDArray[np.int64], side: int, out: NDArray[np.int64]) -> None:
    for k in range(sums.shape[0]):
        for t in range(sums.shape[1]):
            unload(sums[k, t], side, out[k, t])


@kernel
def _deep_tree_sums(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    values: NDArray[np.int64],  # IN (n_scores, n_rows)
    limit: int,  # rows between flushes
    side: int,
    out: NDArray[np.int64],  # OUT (n_scores, n_trees, leaves, 2), added to
) -> None:
    """Find the leaves of a block and sum, tree by tree."""
    n_scores, n = values.shape
    n_trees, nodes = feature.shape
    step = min(BLOCK, limit)
    leaves = np.empty(step, np.uint16)
    buffer = np.empty((nodes // 4 + 2 + ASIDE, step), np.uint8)
    sums = np.zeros((n_scores, n_trees, nodes + 1), np.int64)
    rows = 0
    for lo in range(0, n, step):
        hi = min(n, lo + step)
        if rows + hi - lo > limit:
            _unload_trees(sums, side, out)
            rows = 0
        leaf = leaves[: hi - lo]
        for t in range(n_trees):
            find_deep_leaves(codes, lo, feature[t], threshold[t], mask_of[t], masks, buffer, leaf)
            for k in range(n_scores):
                scatter_one(leaf, values[k, lo:hi], sums[k, t])
        rows += hi - lo
    _unload_trees(sums, side, out)


def check_trees(
    codes: NDArray[np.uint8],
    feature: NDArray[np.uint16],
    threshold: NDArray[np.uint8],
    mask_of: NDArray[np.int32],
    masks: NDArray[np.uint8],
) -> tuple[NDArray[np.uint16], NDArray[np.uint8], NDArray[np.int32], NDArray[np.uint8]]:
    """Check that trees are complete, at most `MAX_DEPTH` deep, and name features and masks that exist.

    Returns
    -------
    feature, threshold, mask_of, masks
        Read-only; the threshold of a node with a mask is 0, since kernels compare it with the side, 0 or 1.

    Raises
    ------
    ValueError
        If one of these conditions does not hold.
    """
    feature = readable("feature", feature, np.uint16, 2)
    threshold = readable("threshold", threshold, np.uint8, 2)
    mask_of = readable("mask_of", mask_of, np.int32, 2)
    masks = readable("masks", masks, np.uint8, 2)
    leaves = feature.shape[1] + 1
    if (
        not feature.shape == threshold.shape == mask_of.shape
        or leaves & (leaves - 1)
        or leaves > 1 << MAX_DEPTH
    ):
        raise ValueError(
            "feature, threshold and mask_of must all be (n_trees, 2**depth - 1) with depth in "
            f"[0, {MAX_DEPTH}]."
        )
    if feature.size and feature.max() >= len(codes):
        raise ValueError("A tree names a feature that codes does not have.")
    masked = mask_of >= 0
    if np.count_nonzero(masked):
        if masks.shape[1] != 256 or mask_of.max() >= len(masks) or masks.max() > 1:
            raise ValueError(
                "A tree names a mask that is not a row of masks: (n_masks, 256), 0 or 1."
            )
        threshold = readable("threshold", np.where(masked, np.uint8(0), threshold), np.uint8, 2)
    return feature, threshold, mask_of, masks


def find_nodes(
    codes: NDArray[np.uint8],
    feature: NDArray[np.uint16],
    threshold: NDArray[np.uint8],
    mask_of: NDArray[np.int32],
    masks: NDArray[np.uint8],
    out: NDArray[np.uint16],
) -> None:
    """Find each row's leaf in one complete tree: its node in the next level.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
    feature, threshold, mask_of : (2**depth - 1,) uint16, uint8, int32
        Heap order, depth 0 to 10; see `tree_sums`.
    masks : (n_masks, 256) uint8
    out : (n_rows,) uint16
        Written: the leaf, counted from the left.

    Raises
    ------
    ValueError
        If a dtype, layout, shape, feature or mask is wrong; never because of a row.

    Privacy
    -------
    Private side: nothing leaves.
    """
    same_rows(codes=codes, out=out)
    codes = readable("codes", codes, np.uint8, 2)
    writable("out", out, np.uint16, 1)
    f, t, q, masks = check_trees(codes, feature[None], threshold[None], mask_of[None], masks)
    _find_nodes(codes, f[0], t[0], q[0], masks, out)


@kernel
def one_feature_of(
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
) -> int:
    """Return the feature that every split is by; -1 if there are several, or none."""
    only = -1
    for t in range(feature.shape[0]):
        for k in range(feature.shape[1]):
            if threshold[t, k] < NOWHERE or mask_of[t, k] >= 0:
                if only >= 0 and feature[t, k] != only:
                    return -1
                only = int(feature[t, k])
    return only


def only_feature(
    feature: NDArray[np.uint16], threshold: NDArray[np.uint8], mask_of: NDArray[np.int32]
) -> int | None:
    """Return the feature that every split of some trees is by; None if there are several features, or no splits."""
    only = one_feature_of(
        readable("feature", feature, np.uint16, 2),
        readable("threshold", threshold, np.uint8, 2),
        readable("mask_of", mask_of, np.int32, 2),
    )
    return None if only < 0 else only


@inner
def leaf_of_code(
    code: int,
    threshold: NDArray[np.uint8],  # IN (nodes,), heap order
    mask_of: NDArray[np.int32],  # IN (nodes,)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
) -> int:
    """Walk down from the root of a tree of one feature."""
    node = 0
    while node < threshold.shape[0]:
        q = mask_of[node]
        right = masks[q, code] == 1 if q >= 0 else code > threshold[node]
        node = 2 * node + (2 if right else 1)
    return node - threshold.shape[0]


@kernel
def _leaves_of_codes(
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    out: NDArray[np.uint16],  # OUT (n_trees, n_codes)
) -> None:
    for t in range(out.shape[0]):
        for c in range(out.shape[1]):
            out[t, c] = leaf_of_code(c, threshold[t], mask_of[t], masks)


def leaves_of_codes(
    threshold: NDArray[np.uint8],
    mask_of: NDArray[np.int32],
    masks: NDArray[np.uint8],
    n_codes: int,
) -> NDArray[np.uint16]:
    """Return the leaf of every code in trees of one feature each.

    Parameters
    ----------
    threshold, mask_of, masks
        As for `tree_sums`, of trees that are known to be whole (`contracts.model.flaw_of`).
    n_codes : int
        At most 256.

    Returns
    -------
    (n_trees, n_codes) uint16
    """
    out = np.empty((len(threshold), n_codes), np.uint16)
    _leaves_of_codes(*_one_feature_trees(threshold, mask_of, masks), out)
    return out


@kernel
def _sums_of_leaves(
    sums: NDArray[np.int64],  # IN (n_bins, n_scores, 2)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    out: NDArray[np.int64],  # OUT (n_trees, leaves, n_scores, 2), added to
) -> None:
    for t in range(out.shape[0]):
        for c in range(sums.shape[0]):
            leaf = leaf_of_code(c, threshold[t], mask_of[t], masks)
            for k in range(sums.shape[1]):
                out[t, leaf, k, 0] += sums[c, k, 0]
                out[t, leaf, k, 1] += sums[c, k, 1]


def sums_of_leaves(
    sums: NDArray[np.int64],
    threshold: NDArray[np.uint8],
    mask_of: NDArray[np.int32],
    masks: NDArray[np.uint8],
) -> NDArray[np.int64]:
    """Return the sums per leaf of trees of one feature, the same for all, from the sums per bin: no row has to walk.

    Parameters
    ----------
    sums : (n_bins, n_scores, 2) int64
        Of the feature's bins, as `joint_sums` returns them.
    threshold, mask_of, masks
        As for `leaves_of_codes`.

    Returns
    -------
    (n_trees, 2**depth, n_scores, 2) int64
    """
    out = np.zeros((len(threshold), threshold.shape[1] + 1, *sums.shape[1:]), np.int64)
    sums = readable("sums", sums, np.int64, 3)
    _sums_of_leaves(sums, *_one_feature_trees(threshold, mask_of, masks), out)
    return out


def _one_feature_trees(
    threshold: NDArray[np.uint8], mask_of: NDArray[np.int32], masks: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.uint8]]:
    return (
        readable("threshold", threshold, np.uint8, 2),
        readable("mask_of", mask_of, np.int32, 2),
        readable("masks", masks, np.uint8, 2),
    )


@kernel
def _find_nodes(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.uint16],  # IN (nodes,)
    threshold: NDArray[np.uint8],  # IN (nodes,)
    mask_of: NDArray[np.int32],  # IN (nodes,)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    out: NDArray[np.uint16],  # OUT (n_rows,)
) -> None:
    n = out.shape[0]
    buffer = np.empty((feature.shape[0] // 4 + 2 + ASIDE, min(n, BLOCK)), np.uint8)
    for lo in range(0, n, BLOCK):
        part = out[lo : min(n, lo + BLOCK)]
        find_deep_leaves(codes, lo, feature, threshold, mask_of, masks, buffer, part)


def tree_leaves(
    codes: NDArray[np.uint8],
    feature: NDArray[np.uint16],
    threshold: NDArray[np.uint8],
    mask_of: NDArray[np.int32],
    masks: NDArray[np.uint8],
    out: NDArray[np.uint8],
) -> None:
    """Find each row's leaf in several complete trees.

    Then trees are like features whose bins are their leaves: `joint_sums` sums them, `predict.add_tables` adds their
    values.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
    feature, threshold, mask_of, masks
        As for `tree_sums`, but depth 1 to `BYTE_DEPTH`.
    out : (n_trees, n_rows) uint8
        Written: the leaf, counted from the left.

    Raises
    ------
    ValueError
        If a dtype, layout, shape, feature or mask is wrong; never because of a row.

    Privacy
    -------
    Private side: nothing leaves.
    """
    same_rows(codes=codes, out=out)
    codes = readable("codes", codes, np.uint8, 2)
    writable("out", out, np.uint8, 2)
    trees = check_trees(codes, feature, threshold, mask_of, masks)
    if len(out) != len(feature) or not 1 <= feature.shape[1] < 1 << BYTE_DEPTH:
        raise ValueError(f"out must be (n_trees, n_rows), and trees 1 to {BYTE_DEPTH} levels deep.")
    shared = shared_splits(codes.shape[1], *trees[:3])
    if shared is None:
        _tree_leaves(codes, *trees, out)
    else:
        _sharing_tree_leaves(codes, *trees, *shared, rows_of_block(codes.shape[1]), out)


def tree_sums(
    codes: NDArray[np.uint8],
    feature: NDArray[np.uint16],
    threshold: NDArray[np.uint8],
    mask_of: NDArray[np.int32],
    masks: NDArray[np.uint8],
    packed: NDArray[np.int64],
    max_abs: int,
) -> NDArray[np.int64]:
    """Sum g and h per leaf of several complete trees.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
    feature : (n_trees, 2**depth - 1) uint16
    threshold : (n_trees, 2**depth - 1) uint8
        Heap order; ``code > threshold`` goes right. Depth 0 to 10.
    mask_of : (n_trees, 2**depth - 1) int32
        Row of ``masks`` of a node that sends a code right where ``masks[row, code]`` is 1; else negative.
    masks : (n_masks, 256) uint8
    packed : (n_scores, n_rows) int64
        ``(g << 32) + h`` in steps, weights included, h >= 0.
    max_abs : int
        Bound on |g| and h of one row, weights included.

    Returns
    -------
    (n_trees, 2**depth, n_scores, 2) int64
        Sums of (g, h).

    Raises
    ------
    ValueError
        If a dtype, layout, shape, feature or mask is wrong or max_abs is not in [1, 2³¹ - 1]; never because of a row.

    Privacy
    -------
    Private side. One row changes one leaf of each tree, by its own (g, h). Exact for any n_rows: no packed sum holds
    more than (2³¹ - 1) // max_abs rows.
    """
    same_rows(codes=codes, packed=packed)
    n_trees, leaves = feature.shape[0], feature.shape[1] + 1
    if 1 < leaves <= 1 << BYTE_DEPTH:
        leaf = np.empty((n_trees, codes.shape[1]), np.uint8)
        tree_leaves(codes, feature, threshold, mask_of, masks, leaf)
        sums = joint_sums(leaf, packed, max_abs, (leaves,) * n_trees)
        return sums.reshape(n_trees, leaves, *sums.shape[1:])
    parts = runs(packed, max_abs, 2)
    codes = readable("codes", codes, np.uint8, 2)
    trees = check_trees(codes, feature, threshold, mask_of, masks)
    out = np.zeros((len(packed), n_trees, leaves, 2), np.int64)
    for values, limit, side in parts:
        _deep_tree_sums(codes, *trees, values, limit, side, out)
    return out.transpose(1, 2, 0, 3)
