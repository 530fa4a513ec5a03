"""Scores from codes: add tables, pair tables and trees to scores in place, in prediction and on shards."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable, same_rows, writable
from dpgb_dask.kernels.histogram import (
    GROUP_CELLS,
    groups_of,
    make_key,
    padded,
    scratch_codes,
)
from dpgb_dask.kernels.route import (
    ASIDE,
    BYTE_DEPTH,
    check_trees,
    find_deep_leaves,
    find_leaves,
)

BLOCK = 8192


@dataclass(frozen=True, slots=True, eq=False)
class TableSet:
    """Tables of several features, packed once by `pack_tables`: one joint table per group of features.

    Parameters
    ----------
    n_features : int
    order : (n_active,) int64
        Features that have a table, group after group.
    size : (n_active,) int64
        Their bins.
    start : (n_groups + 1,) int64
        Where each group starts in ``order``.
    table : (n_groups, cells) int32, score steps
        Sum of the group's tables at each joint cell.
    """

    n_features: int
    order: NDArray[np.int64]
    size: NDArray[np.int64]
    start: NDArray[np.int64]
    table: NDArray[np.int32]


def pack_tables(tables: Sequence[NDArray[np.int32] | None]) -> TableSet:
    """Pack one table per feature; None and all-zero tables cost nothing.

    Parameters
    ----------
    tables : sequence of ((n_bins,) int32, score steps, or None)
        A code beyond its table takes the last entry.

    Raises
    ------
    ValueError
        If a table is not one-dimensional int32, or has no or more than 256 entries.
    """
    active = [j for j, table in enumerate(tables) if table is not None and np.any(table)]
    parts = [np.asarray(tables[j]) for j in active]
    if any(part.ndim != 1 or part.dtype != np.int32 for part in parts):
        raise ValueError("Every table must be (n_bins,) int32, in score steps.")
    g = groups_of(tuple(len(part) for part in parts))
    joint = np.zeros((len(g.cells), int(g.cells.max(initial=0))), np.int32)
    for k, cells in enumerate(g.cells):
        total = np.zeros(1, np.int32)
        for position in range(g.start[k], g.start[k + 1]):
            total = (total[:, None] + parts[g.order[position]]).ravel()
        joint[k, :cells] = total
    order = readable("order", np.array(active, np.int64)[g.order], np.int64, 1)
    return TableSet(len(tables), order, g.size, g.start, joint)


@inner
def _gather_one(
    key: NDArray[np.uint16], table: NDArray[np.int32], score: NDArray[np.int32]
) -> None:
    for i in range(score.shape[0]):
        score[i] += table[key[i]]


@inner
def _gather_two(
    key_a: NDArray[np.uint16],
    key_b: NDArray[np.uint16],
    a: NDArray[np.int32],
    b: NDArray[np.int32],
    score: NDArray[np.int32],
) -> None:
    for i in range(score.shape[0]):
        score[i] += a[key_a[i]] + b[key_b[i]]


@inner
def _gather_block(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int,
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],
    table: NDArray[np.int32],  # IN (n_groups, cells)
    keys: NDArray[np.uint16],  # scratch (2, >= rows)
    score: NDArray[np.int32],  # OUT (rows from lo on,), added to
) -> None:
    n_groups = start.shape[0] - 1
    n = score.shape[0]
    key_a, key_b = keys[0, :n], keys[1, :n]
    for g in range(0, n_groups - 1, 2):
        s, t, u = start[g], start[g + 1], start[g + 2]
        make_key(codes, lo, order[s:t], size[s:t], key_a)
        make_key(codes, lo, order[t:u], size[t:u], key_b)
        _gather_two(key_a, key_b, table[g], table[g + 1], score)
    if n_groups % 2:
        s, t = start[n_groups - 1], start[n_groups]
        make_key(codes, lo, order[s:t], size[s:t], key_a)
        _gather_one(key_a, table[n_groups - 1], score)


@kernel
def _add_tables(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],
    table: NDArray[np.int32],
    score: NDArray[np.int32],  # OUT (n_rows,), added to
) -> None:
    n = score.shape[0]
    keys = np.empty((2, BLOCK), np.uint16)
    for lo in range(0, n, BLOCK):
        hi = min(n, lo + BLOCK)
        _gather_block(codes, lo, order, size, start, table, keys, score[lo:hi])


def add_tables(
    codes: NDArray[np.uint8],
    tables: TableSet | Sequence[NDArray[np.int32] | None],
    score: NDArray[np.int32],
) -> None:
    """Add each feature's table entry to the scores.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
    tables : TableSet, or sequence of ((n_bins,) int32 or None)
        One per feature, score steps; None is skipped. Pack them once with `pack_tables` when there are many row blocks.
    score : (n_rows,) int32, score steps
        Added to in place, modulo 2³².

    Raises
    ------
    ValueError
        If a dtype, layout or shape is wrong; never because of a row.

    Privacy
    -------
    Tables are released values; scores stay where the rows are.
    """
    same_rows(codes=codes, score=score)
    s = tables if isinstance(tables, TableSet) else pack_tables(tables)
    if s.n_features != len(codes):
        raise ValueError(
            "codes and tables differ in features. Give a table, or None, for each feature."
        )
    codes = readable("codes", codes, np.uint8, 2)
    writable("score", score, np.int32, 1)
    if len(s.order):
        _add_tables(codes, s.order, s.size, s.start, s.table, score)


@kernel
def _add_pair_table(
    codes_i: NDArray[np.uint8],  # IN (n_rows,)
    codes_j: NDArray[np.uint8],  # IN (n_rows,)
    row: NDArray[np.uint16],  # IN (256,), start of the table's row
    column: NDArray[np.uint8],  # IN (256,)
    table: NDArray[np.int32],  # IN (cells,)
    score: NDArray[np.int32],  # OUT (n_rows,), added to
) -> None:
    for i in range(score.shape[0]):
        score[i] += table[np.uint32(row[codes_i[i]]) + np.uint32(column[codes_j[i]])]


def add_pair_table(
    codes_i: NDArray[np.uint8],
    codes_j: NDArray[np.uint8],
    map_i: NDArray[np.uint8],
    map_j: NDArray[np.uint8],
    table: NDArray[np.int32],
    score: NDArray[np.int32],
) -> None:
    """Add ``table[map_i[code_i], map_j[code_j]]`` to the scores.

    Parameters
    ----------
    codes_i, codes_j : (n_rows,) uint8
    map_i, map_j : (n_bins of the feature,) uint8
        A code beyond its map takes the last entry.
    table : (n_i, n_j) int32, score steps
    score : (n_rows,) int32, score steps
        Added to in place, modulo 2³².

    Raises
    ------
    ValueError
        If a dtype, layout or shape is wrong or a map points outside the table; never because of a row.

    Privacy
    -------
    The table is released; scores stay where the rows are.
    """
    same_rows(codes_i=codes_i, codes_j=codes_j, score=score)
    table = readable("table", table, np.int32, 2)
    row, column = padded(map_i).astype(np.uint16), padded(map_j)
    if row.max() >= table.shape[0] or column.max() >= table.shape[1]:
        raise ValueError("A map points outside the table.")
    row *= table.shape[1]  # at most 256 · 256 - 1
    _add_pair_table(
        readable("codes_i", codes_i, np.uint8, 1),
        readable("codes_j", codes_j, np.uint8, 1),
        row,
        column,
        table.reshape(-1),
        writable("score", score, np.int32, 1),
    )


@inner
def _join_values(
    value: NDArray[np.int32],  # IN (n_trees, leaves), trees of one group
    table: NDArray[np.int32],  # OUT (leaves ** n_trees,)
) -> None:
    """Sum the values of some trees at each joint leaf; the last tree varies fastest."""
    n_trees, leaves = value.shape
    cells = leaves
    for leaf in range(
        leaves
    ):  # a slice of an array would be compiled with its errors' texts, for seconds
        table[leaf] = value[0, leaf]
    for t in range(1, n_trees):
        # from the end, since entries that are still to be read lie before those that are written
        for k in range(cells - 1, -1, -1):
            joint = table[k]
            for leaf in range(leaves - 1, -1, -1):
                table[k * leaves + leaf] = joint + value[t, leaf]
        cells *= leaves


@kernel
def _add_trees(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    value: NDArray[np.int32],  # IN (n_trees, leaves)
    order: NDArray[np.int64],  # IN (trees per group,), 0, 1, …
    size: NDArray[np.int64],  # IN (trees per group,), leaves of each
    part: NDArray[np.uint8],  # scratch (trees per group, >= rows of a block)
    part_read: NDArray[np.uint8],  # read-only view of it
    score: NDArray[np.int32],  # OUT (n_rows,), added to
) -> None:
    """Find the leaves of some trees and add their values in one look-up, block by block."""
    n = score.shape[0]
    n_trees, leaves = value.shape
    together = order.shape[0]
    # from depth 4 on, this number of rows is odd: with one more, the loops took a sixth longer
    buffer = np.empty(((leaves - 1) // 4 + 1 + ASIDE, BLOCK), np.uint8)
    keys = np.empty(BLOCK, np.uint16)
    table = np.empty(leaves**together, np.int32)
    for first in range(0, n_trees, together):
        last = min(n_trees, first + together)
        _join_values(value[first:last], table)
        for lo in range(0, n, BLOCK):
            hi = min(n, lo + BLOCK)
            key = keys[: hi - lo]
            for t in range(first, last):
                leaf = part[t - first, : hi - lo]
                find_leaves(codes, lo, feature[t], threshold[t], mask_of[t], masks, buffer, leaf)
            make_key(part_read, np.int64(0), order[: last - first], size, key)
            _gather_one(key, table, score[lo:hi])


@kernel
def _add_deep_trees(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    value: NDArray[np.int32],  # IN (n_trees, leaves)
    score: NDArray[np.int32],  # OUT (n_rows,), added to
) -> None:
    """Find the leaves and add their values, block by block and tree by tree."""
    n = score.shape[0]
    n_trees, leaves = value.shape
    buffer = np.empty((leaves // 4 + 2 + ASIDE, BLOCK), np.uint8)
    keys = np.empty(BLOCK, np.uint16)
    for lo in range(0, n, BLOCK):
        hi = min(n, lo + BLOCK)
        leaf = keys[: hi - lo]
        for t in range(n_trees):
            find_deep_leaves(codes, lo, feature[t], threshold[t], mask_of[t], masks, buffer, leaf)
            _gather_one(leaf, value[t], score[lo:hi])


def add_trees(
    codes: NDArray[np.uint8],
    feature: NDArray[np.uint16],
    threshold: NDArray[np.uint8],
    mask_of: NDArray[np.int32],
    masks: NDArray[np.uint8],
    value: NDArray[np.int32],
    score: NDArray[np.int32],
) -> None:
    """Add each tree's leaf value to the scores.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
    feature : (n_trees, 2**depth - 1) uint16
    threshold : (n_trees, 2**depth - 1) uint8
        Heap order; ``code > threshold`` goes right. Depth 0 to 10.
    mask_of : (n_trees, 2**depth - 1) int32
        Row of ``masks`` of a node that sends a code right where ``masks[row, code]`` is 1; else negative.
    masks : (n_masks, 256) uint8
    value : (n_trees, 2**depth) int32, score steps
    score : (n_rows,) int32, score steps
        Added to in place, modulo 2³².

    Raises
    ------
    ValueError
        If a dtype, layout, shape, feature or mask is wrong; never because of a row.

    Privacy
    -------
    Trees are released values; scores stay where the rows are.
    """
    same_rows(codes=codes, score=score)
    codes = readable("codes", codes, np.uint8, 2)
    trees = check_trees(codes, feature, threshold, mask_of, masks)
    value = readable("value", value, np.int32, 2)
    writable("score", score, np.int32, 1)
    n_trees, leaves = value.shape
    if (n_trees, leaves - 1) != feature.shape:
        raise ValueError("value must hold one entry per leaf: (n_trees, 2**depth).")
    if 1 < leaves <= 1 << BYTE_DEPTH:
        depth = leaves.bit_length() - 1
        together = max(1, (GROUP_CELLS.bit_length() - 1) // depth)
        order = readable("order", np.arange(together), np.int64, 1)
        size = readable("size", np.full(together, leaves), np.int64, 1)
        part = scratch_codes(together, BLOCK)
        _add_trees(codes, *trees, value, order, size, *part, score)
    else:
        _add_deep_trees(codes, *trees, value, score)
