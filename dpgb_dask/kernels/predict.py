"""Scores from codes: add tables, pair tables and trees to scores in place, in prediction and on shards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import AVX512_VBMI, inner, kernel, readable, same_rows, writable
from dpgb_dask.kernels.byte_tables import add_planes, planes_of
from dpgb_dask.kernels.histogram import (
    GROUP_CELLS,
    LANES_BLOCK,
    MAX_CELLS,
    check_sizes,
    find_key,
    groups_of,
    make_key,
    scores_at_once,
    scratch_codes,
    weave,
)
from dpgb_dask.kernels.lanes import LANES, add_row
from dpgb_dask.kernels.pair_tables import (
    PairLike,
    PairSet,
    check_cells,
    check_pairs,
    map_columns,
    pack_pairs,
)
from dpgb_dask.kernels.route import (
    ASIDE,
    check_trees,
    find_deep_leaves,
    find_leaves,
)
from dpgb_dask.kernels.sides import (
    BYTE_DEPTH,
    find_leaves_of_sides,
    find_sides,
    memory_of_sides,
    rows_of_block,
    shared_splits,
    unit_block,
)

BLOCK = 8192
FOUR = 4  # groups of trees whose values are looked up in one loop
TREES = 8  # or trees whose values are added before their sums are put together


class Joint(NamedTuple):
    """Sums of tables at each joint cell, of scores that are added at once.

    Parameters
    ----------
    scores : int or slice
    table : (n_groups, cells) int32, or (n_groups, cells, 4) if there are several scores
        The entries of a cell's scores are next to each other, so that one instruction adds them.
    """

    scores: int | slice
    table: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class JointTables:
    """One joint table per group of features.

    Parameters
    ----------
    order : (n_active,) int64
        Features that have a table, group after group.
    size : (n_active,) int64
        Their bins.
    start : (n_groups + 1,) int64
        Where each group starts in ``order``.
    n_joint : int
        Groups of several features; they come first.
    joint : tuple of Joint, score steps
        A single feature has an entry for each of the 256 codes.
    """

    order: NDArray[np.int64]
    size: NDArray[np.int64]
    start: NDArray[np.int64]
    n_joint: int
    joint: tuple[Joint, ...]

    def add(self, codes: NDArray[np.uint8], score: NDArray[np.int32]) -> None:
        """Add the entries of codes."""
        for scores, table in self.joint:
            add = _add_tables if isinstance(scores, int) else _add_tables_of_four
            add(codes, self.order, self.size, self.start, self.n_joint, table, score[scores])


@dataclass(frozen=True, slots=True, eq=False)
class PlaneTables:
    """Tables as planes of bytes, where kernels look these up in registers (`byte_tables`).

    Parameters
    ----------
    order : (n_active,) int64
        Features that have a table.
    planes : (n_scores, n_active, n_planes, size) uint8
    least : (n_scores,) int32, score steps
    """

    order: NDArray[np.int64]
    planes: NDArray[np.uint8]
    least: NDArray[np.int32]

    def add(self, codes: NDArray[np.uint8], score: NDArray[np.int32]) -> None:
        """Add the entries of codes."""
        _add_planes(codes, self.order, self.planes, self.least, score)


@dataclass(frozen=True, slots=True, eq=False)
class TableSet:
    """Tables of several features, packed once by `pack_tables`.

    Parameters
    ----------
    n_features, n_scores : int
    packed : JointTables, PlaneTables or None
    """

    n_features: int
    n_scores: int
    packed: JointTables | PlaneTables | None

    @property
    def features(self) -> frozenset[int]:
        """Features that have a table."""
        return frozenset() if self.packed is None else frozenset(self.packed.order.tolist())


def pack_tables(tables: Sequence[NDArray[np.int32] | None]) -> TableSet:
    """Pack one table per feature; None and all-zero tables cost nothing.

    Parameters
    ----------
    tables : sequence of ((n_bins, n_scores) int32, score steps, or None)
        A code beyond its table takes the last entry.

    Raises
    ------
    ValueError
        If a table is not two-dimensional int32, tables differ in scores, or one has no or more than 256 entries.
    """
    active: list[int] = []
    parts: list[NDArray[np.int32]] = []
    for j, table in enumerate(tables):
        if table is None or not np.count_nonzero(table):
            continue
        if table.ndim != 2 or table.dtype != np.int32:
            raise ValueError("Every table must be (n_bins, n_scores) int32, in score steps.")
        if parts and table.shape[1] != parts[0].shape[0]:
            raise ValueError("Tables differ in scores. Give each a column per score.")
        active.append(j)
        parts.append(table.T)
    if not parts:
        return TableSet(len(tables), 0, None)
    pack = _planes if AVX512_VBMI else _joint_tables
    return TableSet(len(tables), len(parts[0]), pack(active, parts))


def _planes(active: Sequence[int], parts: Sequence[NDArray[np.int32]]) -> PlaneTables:
    size = np.array([part.shape[1] for part in parts])
    check_sizes(size)
    order = readable("order", np.array(active, np.int64), np.int64, 1)
    return PlaneTables(order, *planes_of(np.concatenate(parts, axis=1), size))


def _joint_tables(active: Sequence[int], parts: Sequence[NDArray[np.int32]]) -> JointTables:
    g = groups_of(tuple(part.shape[1] for part in parts))
    joint = np.zeros((len(parts[0]), len(g.cells), g.width), np.int32)
    position, start = g.order.tolist(), g.start.tolist()
    for k, cells in enumerate(g.cells.tolist()):
        own = [parts[p] for p in position[start[k] : start[k + 1]]]
        joint[:, k, :cells] = _sum_of(own)
        if k >= g.n_joint:
            joint[:, k, cells:] = own[0][:, -1:]
    order = readable("order", np.array([active[p] for p in position], np.int64), np.int64, 1)
    return JointTables(order, g.size, g.start, g.n_joint, _by_scores(joint))


def _sum_of(tables: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Return the sum of tables, (n_scores, bins) each, at every joint cell; the last varies fastest."""
    total = tables[0]
    for table in tables[1:]:
        total = (total[:, :, None] + table[:, None]).reshape(len(total), -1)
    return total


def _by_scores(joint: NDArray[np.int32]) -> tuple[Joint, ...]:
    """Return tables, (n_scores, n_groups, cells), by the scores that are added at once."""
    found = []
    for scores in scores_at_once(len(joint)):
        table = joint[scores]
        if isinstance(scores, slice):
            n, *size = table.shape
            padded = np.zeros((*size, LANES), np.int32)
            padded[:, :, :n] = table.transpose(1, 2, 0)
            table = padded
        found.append(Joint(scores, readable("table", table, np.int32, table.ndim)))
    return tuple(found)


@inner
def gather_one(key: NDArray[Any], table: NDArray[np.int32], score: NDArray[np.int32]) -> None:
    """Add a table's entries to rows."""
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
def _gather_four(
    key_a: NDArray[Any],
    key_b: NDArray[Any],
    key_c: NDArray[Any],
    key_d: NDArray[Any],
    a: NDArray[np.int32],
    b: NDArray[np.int32],
    c: NDArray[np.int32],
    d: NDArray[np.int32],
    score: NDArray[np.int32],
) -> None:
    for i in range(score.shape[0]):
        score[i] += a[key_a[i]] + b[key_b[i]] + c[key_c[i]] + d[key_d[i]]


@inner
def _gather_woven(
    word: NDArray[np.uint32],  # IN (n,), four codes of a row in each (`weave`)
    a: NDArray[np.int32],
    b: NDArray[np.int32],
    c: NDArray[np.int32],
    d: NDArray[np.int32],
    score: NDArray[np.int32],
) -> None:
    for i in range(score.shape[0]):
        w = word[i]
        score[i] += (
            a[np.uint8(w)] + b[np.uint8(w >> 8)] + c[np.uint8(w >> 16)] + d[np.uint8(w >> 24)]
        )


@inner
def _gather_joint(
    codes: NDArray[np.uint8],  # IN (n_features, >= n_rows)
    first: int | np.int64,  # column of codes of the first row
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],  # IN (> n_joint,)
    n_joint: int,
    table: NDArray[np.int32],  # IN (>= n_joint, cells)
    keys: NDArray[np.uint16],  # scratch (4, rows), or IN (n_joint, n_rows) if known
    at: int | np.int64,  # column of keys of the first row
    known: bool | np.bool_,
    score: NDArray[np.int32],  # OUT (rows of the block,), added to
) -> None:
    """Add the entries of joint cells to rows, four groups per loop."""
    n, four = score.shape[0], n_joint & ~3
    for g in range(0, four, 4):
        key_a = find_key(codes, first, order, size, start, g, keys, at, n, known)
        key_b = find_key(codes, first, order, size, start, g + 1, keys, at, n, known)
        key_c = find_key(codes, first, order, size, start, g + 2, keys, at, n, known)
        key_d = find_key(codes, first, order, size, start, g + 3, keys, at, n, known)
        a, b, c, d = table[g], table[g + 1], table[g + 2], table[g + 3]
        _gather_four(key_a, key_b, key_c, key_d, a, b, c, d, score)
    if n_joint & 2:
        key_a = find_key(codes, first, order, size, start, four, keys, at, n, known)
        key_b = find_key(codes, first, order, size, start, four + 1, keys, at, n, known)
        _gather_two(key_a, key_b, table[four], table[four + 1], score)
    if n_joint & 1:
        g = n_joint - 1
        key_a = find_key(codes, first, order, size, start, g, keys, at, n, known)
        gather_one(key_a, table[g], score)


@inner
def _gather_scores(
    key: NDArray[Any],
    table: NDArray[np.int32],  # IN (cells, 4)
    score: NDArray[np.int32],  # OUT (n, 4), added to
) -> None:
    """Add the entries of four scores to each row."""
    for i in range(score.shape[0]):
        add_row(score, i, table, key[i])


@inner
def _gather_joint_scores(
    codes: NDArray[np.uint8],  # IN (n_features, >= n_rows)
    first: int | np.int64,  # column of codes of the first row
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],  # IN (> n_joint,)
    n_joint: int,
    table: NDArray[np.int32],  # IN (>= n_joint, cells, 4)
    keys: NDArray[np.uint16],  # scratch (>= 1, rows), or IN (n_joint, n_rows) if known
    at: int | np.int64,  # column of keys of the first row
    known: bool | np.bool_,
    score: NDArray[np.int32],  # OUT (rows of the block, 4), added to
) -> None:
    """Add the entries of joint cells to the four scores of rows."""
    n = score.shape[0]
    for g in range(n_joint):
        key = find_key(codes, first, order, size, start, g, keys, at, n, known)
        _gather_scores(key, table[g], score)


@inner
def _add_scores(
    added: NDArray[np.int32],  # IN (rows from lo on, 4)
    lo: int,
    score: NDArray[np.int32],  # OUT (1 to 4 scores, n_rows), added to
) -> None:
    hi = lo + added.shape[0]
    for k in range(score.shape[0]):
        own = score[k, lo:hi]
        for i in range(own.shape[0]):
            own[i] += added[i, k]


@kernel
def _add_tables(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],
    n_joint: int,
    table: NDArray[np.int32],  # IN (n_groups, >= 256)
    score: NDArray[np.int32],  # OUT (n_rows,), added to
) -> None:
    """Add joint cells by fours, then features that are alone in their group, whose codes are the cells, by fours."""
    n = score.shape[0]
    keys, word = np.empty((FOUR, BLOCK), np.uint16), np.empty(BLOCK, np.uint32)
    zero, known = np.int64(0), np.bool_(False)
    single = order[start[n_joint] :]
    four = single.shape[0] & ~3
    for lo in range(0, n, BLOCK):
        hi = min(n, lo + BLOCK)
        block = score[lo:hi]
        _gather_joint(codes, lo, order, size, start, n_joint, table, keys, zero, known, block)
        for f in range(0, four, 4):
            g, own = n_joint + f, word[: hi - lo]
            weave(codes, lo, single[f : f + 4], own)
            _gather_woven(own, table[g], table[g + 1], table[g + 2], table[g + 3], block)
        for f in range(four, single.shape[0]):
            gather_one(codes[single[f], lo:hi], table[n_joint + f], block)


@kernel
def _add_planes(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.int64],  # IN (n_tables,)
    planes: NDArray[np.uint8],  # IN (n_scores, n_tables, n_planes, size)
    least: NDArray[np.int32],  # IN (n_scores,)
    score: NDArray[np.int32],  # OUT (n_scores, n_rows), added to
) -> None:
    zero = np.int64(0)
    for k in range(score.shape[0]):
        add_planes(codes, zero, feature, planes[k], least[k], score[k])


@kernel
def _add_tables_of_four(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],
    n_joint: int,
    table: NDArray[np.int32],  # IN (n_groups, >= 256, 4)
    score: NDArray[np.int32],  # OUT (1 to 4 scores, n_rows), added to
) -> None:
    n = score.shape[1]
    keys, sums = np.empty((1, LANES_BLOCK), np.uint16), np.empty((LANES_BLOCK, LANES), np.int32)
    single = order[start[n_joint] :]
    zero, known = np.int64(0), np.bool_(False)
    for lo in range(0, n, LANES_BLOCK):
        hi = min(n, lo + LANES_BLOCK)
        added = sums[: hi - lo]
        added[:] = 0
        _gather_joint_scores(
            codes, lo, order, size, start, n_joint, table, keys, zero, known, added
        )
        for f in range(single.shape[0]):
            _gather_scores(codes[single[f], lo:hi], table[n_joint + f], added)
        _add_scores(added, lo, score)


def add_tables(
    codes: NDArray[np.uint8],
    tables: TableSet | Sequence[NDArray[np.int32] | None],
    score: NDArray[np.int32],
) -> None:
    """Add each feature's table entries to the scores.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
    tables : TableSet, or sequence of ((n_bins, n_scores) int32 or None)
        One per feature, score steps; None is skipped. Pack them once with `pack_tables` when there are many row blocks.
    score : (n_scores, n_rows) int32, score steps
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
    writable("score", score, np.int32, 2)
    if s.packed is not None:
        _check_scores(s.n_scores, score)
        s.packed.add(codes, score)


def _check_scores(n_scores: int, score: NDArray[np.int32]) -> None:
    if n_scores != len(score):
        raise ValueError("values and score differ in scores. Give values for each.")


@dataclass(frozen=True, slots=True, eq=False)
class PairTableSet:
    """Pair tables, packed once by `pack_pair_tables`.

    Parameters
    ----------
    pairs : PairSet
    n_scores : int
    joint : tuple of Joint, score steps
    """

    pairs: PairSet
    n_scores: int
    joint: tuple[Joint, ...]


def pack_pair_tables(
    pairs: Sequence[PairLike], tables: Sequence[NDArray[np.int32]]
) -> PairTableSet:
    """Pack the tables of pairs.

    Parameters
    ----------
    pairs : sequence of PairLike
    tables : sequence of ((n_scores, n_i, n_j) int32, score steps)
        One per pair.

    Raises
    ------
    ValueError
        If a table has another shape or dtype, or a map points outside it.
    """
    if any(
        t.dtype != np.int32 or t.ndim != 3 or t.shape[1:] != (p.n_i, p.n_j)
        for p, t in zip(pairs, tables, strict=True)
    ):
        raise ValueError("Every pair table must be (n_scores, n_i, n_j) int32, in score steps.")
    s = pack_pairs(pairs, MAX_CELLS**2)
    n_scores = len(tables[0]) if tables else 0
    joint = np.zeros((n_scores, len(s.cells), s.width), np.int32)
    for g, cells in enumerate(s.cells.tolist()):
        size = s.size[s.start[g] : s.start[g + 1]]
        total = np.zeros((n_scores, *size), np.int32)
        for t in range(s.tables[g], s.tables[g + 1]):
            table, first, second = tables[s.pair[t]], s.first[t], s.second[t]
            shape = np.ones(len(size), np.int64)
            shape[[first, second]] = table.shape[1:]
            total += (table if first < second else table.transpose(0, 2, 1)).reshape(-1, *shape)
        joint[:, g, :cells] = total.reshape(n_scores, -1)
    return PairTableSet(s, n_scores, _by_scores(joint))


@kernel
def _add_pair_tables(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.int64],
    map_: NDArray[np.uint8],
    cut: NDArray[np.uint8],
    n_cuts: NDArray[np.int64],
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],
    table: NDArray[np.int32],  # IN (n_groups, cells)
    level: NDArray[np.uint8],  # scratch (n_columns, >= rows of a block)
    level_read: NDArray[np.uint8],  # read-only view of it
    keys: NDArray[np.uint16],  # scratch (4, rows), or IN (n_groups, n_rows) if known
    known: bool,
    score: NDArray[np.int32],  # OUT (n_rows,), added to
) -> None:
    n, n_groups, zero = score.shape[0], start.shape[0] - 1, np.int64(0)
    for lo in range(0, n, BLOCK):
        hi, at = min(n, lo + BLOCK), lo if known else zero
        if not known:
            map_columns(codes, lo, hi, feature, map_, cut, n_cuts, level)
        _gather_joint(
            level_read, zero, order, size, start, n_groups, table, keys, at, known, score[lo:hi]
        )


@kernel
def _add_pair_tables_of_four(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.int64],
    map_: NDArray[np.uint8],
    cut: NDArray[np.uint8],
    n_cuts: NDArray[np.int64],
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],
    table: NDArray[np.int32],  # IN (n_groups, cells, 4)
    level: NDArray[np.uint8],  # scratch (n_columns, >= rows of a block)
    level_read: NDArray[np.uint8],  # read-only view of it
    keys: NDArray[np.uint16],  # scratch (>= 1, rows), or IN (n_groups, n_rows) if known
    known: bool,
    score: NDArray[np.int32],  # OUT (1 to 4 scores, n_rows), added to
) -> None:
    n, n_groups, zero = score.shape[1], start.shape[0] - 1, np.int64(0)
    sums = np.empty((LANES_BLOCK, LANES), np.int32)
    for lo in range(0, n, LANES_BLOCK):
        hi, at = min(n, lo + LANES_BLOCK), lo if known else zero
        added = sums[: hi - lo]
        added[:] = 0
        if not known:
            map_columns(codes, lo, hi, feature, map_, cut, n_cuts, level)
        _gather_joint_scores(
            level_read, zero, order, size, start, n_groups, table, keys, at, known, added
        )
        _add_scores(added, lo, score)


def add_pair_tables(
    codes: NDArray[np.uint8],
    tables: PairTableSet,
    score: NDArray[np.int32],
    cells: NDArray[np.uint16] | None = None,
) -> None:
    """Add ``table[k, map_i[code_i], map_j[code_j]]`` of each pair to score k.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
        A code beyond its map takes the last entry.
    tables : PairTableSet
    score : (n_scores, n_rows) int32, score steps
        Added to in place, modulo 2³².
    cells : (n_groups, n_rows) uint16, or None
        The rows' joint cells, as `pair_sums` wrote them for pairs of the same groups; None to find them.

    Raises
    ------
    ValueError
        If a dtype, layout or shape is wrong or a feature does not exist; never because of a row.

    Privacy
    -------
    Tables are released; scores stay where the rows are.
    """
    same_rows(codes=codes, score=score)
    codes = readable("codes", codes, np.uint8, 2)
    writable("score", score, np.int32, 2)
    p = tables.pairs
    check_pairs(codes, p)
    if len(p.order):
        _check_scores(tables.n_scores, score)
        rows = min(codes.shape[1], BLOCK)
        scratch = scratch_codes(len(p.feature), rows)
        known = cells is not None
        keys = np.empty((FOUR, rows), np.uint16) if cells is None else check_cells(cells, codes, p)
        for scores, table in tables.joint:
            add = _add_pair_tables if isinstance(scores, int) else _add_pair_tables_of_four
            add(
                codes, p.feature, p.map, p.cut, p.n_cuts, p.order, p.size, p.start, table, *scratch, keys, known,
                score[scores],
            )  # fmt: skip


@inner
def _join_values(
    value: NDArray[np.int32],  # IN (n_trees, leaves), trees of one group
    table: NDArray[np.int32],  # OUT (leaves ** n_trees,)
) -> None:
    """Sum the values of some trees at each joint leaf; the last tree varies fastest."""
    n_trees, leaves = value.shape
    cells = leaves
    # a slice of an array would be compiled with its errors' texts, for seconds
    for leaf in range(leaves):
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
    value: NDArray[np.int32],  # IN (n_scores, n_trees, leaves)
    order: NDArray[np.int64],  # IN (trees per group,), 0, 1, …
    size: NDArray[np.int64],  # IN (trees per group,), leaves of each
    part: NDArray[np.uint8],  # scratch (trees per group, >= rows of a block)
    part_read: NDArray[np.uint8],  # read-only view of it
    score: NDArray[np.int32],  # OUT (n_scores, n_rows), added to
) -> None:
    """Find the leaves of some trees and add their values in one look-up, block by block."""
    n = score.shape[1]
    n_scores, n_trees, leaves = value.shape
    together = order.shape[0]
    # from depth 4 on, this number of rows is odd: with one more, the loops took a sixth longer
    buffer = np.empty(((leaves - 1) // 4 + 1 + ASIDE, BLOCK), np.uint8)
    keys = np.empty(BLOCK, np.uint16)
    table = np.empty((n_scores, leaves**together), np.int32)
    for first in range(0, n_trees, together):
        last = min(n_trees, first + together)
        for k in range(n_scores):
            _join_values(value[k, first:last], table[k])
        for lo in range(0, n, BLOCK):
            hi = min(n, lo + BLOCK)
            key = keys[: hi - lo]
            for t in range(first, last):
                leaf = part[t - first, : hi - lo]
                find_leaves(codes, lo, feature[t], threshold[t], mask_of[t], masks, buffer, leaf)
            make_key(part_read, np.int64(0), order[: last - first], size, key)
            for k in range(n_scores):
                gather_one(key, table[k], score[k, lo:hi])


@kernel
def _add_sharing_trees(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows), at least a block's rows
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    value: NDArray[np.int32],  # IN (n_scores, n_trees, leaves)
    order: NDArray[np.int64],  # IN (trees per group,), 0, 1, …
    size: NDArray[np.int64],  # IN (trees per group,), leaves of each
    number: NDArray[np.int32],  # IN (n_trees, nodes), which of the splits a node has
    node: NDArray[np.int64],  # IN (n_splits, 2), tree and node of each
    part: NDArray[np.uint8],  # scratch (trees per group, rows of a block)
    part_read: NDArray[np.uint8],  # read-only view of it
    score: NDArray[np.int32],  # OUT (n_scores, n_rows), added to
) -> None:
    """Like `_add_trees`, for trees that share splits: the side of each split is found once; four groups in a loop."""
    n, rows = score.shape[1], part.shape[1]
    n_scores, n_trees, leaves = value.shape
    together = order.shape[0]
    side, leaf = memory_of_sides(node.shape[0], rows), part.view(np.uint64)
    keys = np.empty((FOUR, rows), np.uint16)
    table = np.empty((FOUR, leaves**together), np.int32)
    for lo in range(0, n, rows):
        first, hi = unit_block(lo, n, rows)
        wide = hi - first
        find_sides(codes, first, feature, threshold, mask_of, masks, node, part[0, :wide], side)
        for start in range(0, n_trees, FOUR * together):
            groups = 0
            for t in range(start, min(n_trees, start + FOUR * together)):
                k = (t - start) % together
                find_leaves_of_sides(side.view(np.uint64), number[t], leaf[k, : wide // 8])
                if k == together - 1 or t == n_trees - 1:
                    make_key(part_read, np.int64(0), order[: k + 1], size, keys[groups, :wide])
                    groups += 1
            for s in range(n_scores):
                own = score[s, lo:hi]
                for g in range(groups):
                    t = start + g * together
                    _join_values(value[s, t : min(n_trees, t + together)], table[g])
                if groups == FOUR:
                    a, b = keys[0, lo - first :], keys[1, lo - first :]
                    c, d = keys[2, lo - first :], keys[3, lo - first :]
                    _gather_four(a, b, c, d, table[0], table[1], table[2], table[3], own)
                else:
                    for g in range(groups):
                        gather_one(keys[g, lo - first :], table[g], own)


@kernel
def _add_trees_by_planes(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows), at least a block's rows
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    planes: NDArray[np.uint8],  # IN (n_scores, n_trees, n_planes, size), of the values
    least: NDArray[np.int32],  # IN (n_scores,)
    order: NDArray[np.int64],  # IN (trees at a time,), 0, 1, …
    number: NDArray[np.int32],  # IN (n_trees, nodes), which of the splits a node has
    node: NDArray[np.int64],  # IN (n_splits, 2), tree and node of each
    part: NDArray[np.uint8],  # scratch (trees at a time, rows of a block)
    part_read: NDArray[np.uint8],  # read-only view of it
    score: NDArray[np.int32],  # OUT (n_scores, n_rows), added to
) -> None:
    """Like `_add_sharing_trees`, by planes of the trees' values."""
    n, rows = score.shape[1], part.shape[1]
    n_scores, n_trees, _, _ = planes.shape
    side, leaf = memory_of_sides(node.shape[0], rows), part.view(np.uint64)
    together = order.shape[0]
    for lo in range(0, n, rows):
        first, hi = unit_block(lo, n, rows)
        wide = hi - first
        find_sides(codes, first, feature, threshold, mask_of, masks, node, part[0, :wide], side)
        for start in range(0, n_trees, together):
            stop = min(n_trees, start + together)
            for t in range(start, stop):
                of_tree = leaf[t - start, : wide // 8]
                find_leaves_of_sides(side.view(np.uint64), number[t], of_tree)
            for s in range(n_scores):
                low = least[s] if start == 0 else np.int32(0)
                own, of_trees = score[s, lo:hi], planes[s, start:stop]
                add_planes(part_read, lo - first, order[: stop - start], of_trees, low, own)


@kernel
def _add_deep_trees(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes)
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    value: NDArray[np.int32],  # IN (n_scores, n_trees, leaves)
    score: NDArray[np.int32],  # OUT (n_scores, n_rows), added to
) -> None:
    """Find the leaves and add their values, block by block and tree by tree."""
    n = score.shape[1]
    n_scores, n_trees, leaves = value.shape
    buffer = np.empty((leaves // 4 + 2 + ASIDE, BLOCK), np.uint8)
    keys = np.empty(BLOCK, np.uint16)
    for lo in range(0, n, BLOCK):
        hi = min(n, lo + BLOCK)
        leaf = keys[: hi - lo]
        for t in range(n_trees):
            find_deep_leaves(codes, lo, feature[t], threshold[t], mask_of[t], masks, buffer, leaf)
            for k in range(n_scores):
                gather_one(leaf, value[k, t], score[k, lo:hi])


def add_trees(
    codes: NDArray[np.uint8],
    feature: NDArray[np.uint16],
    threshold: NDArray[np.uint8],
    mask_of: NDArray[np.int32],
    masks: NDArray[np.uint8],
    value: NDArray[np.int32],
    score: NDArray[np.int32],
) -> None:
    """Add each tree's leaf values to the scores.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
    feature : (n_trees, 2**depth - 1) uint16
    threshold : (n_trees, 2**depth - 1) uint8
        Heap order; ``code > threshold`` goes right. Depth 0 to 10.
    mask_of : (n_trees, 2**depth - 1) int32
        Row of ``masks`` of a node that sends a code right where ``masks[row, code]`` is 1; else negative.
    masks : (n_masks, 256) uint8
    value : (n_scores, n_trees, 2**depth) int32, score steps
    score : (n_scores, n_rows) int32, score steps
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
    value = readable("value", value, np.int32, 3)
    writable("score", score, np.int32, 2)
    _check_scores(len(value), score)
    _, n_trees, leaves = value.shape
    if (n_trees, leaves - 1) != feature.shape:
        raise ValueError("value must hold one entry per leaf: (n_scores, n_trees, 2**depth).")
    if 1 < leaves <= 1 << BYTE_DEPTH:
        depth = leaves.bit_length() - 1
        together = max(1, (GROUP_CELLS.bit_length() - 1) // depth)
        order = readable("order", np.arange(together), np.int64, 1)
        size = readable("size", np.full(together, leaves), np.int64, 1)
        shared = shared_splits(codes.shape[1], *trees[:3])
        if shared is None:
            part = scratch_codes(together, BLOCK)
            _add_trees(codes, *trees, value, order, size, *part, score)
        elif AVX512_VBMI:
            part = scratch_codes(TREES, rows_of_block(codes.shape[1]))
            order = readable("order", np.arange(TREES), np.int64, 1)
            planes = planes_of(value.reshape(len(value), -1), np.full(n_trees, leaves))
            _add_trees_by_planes(codes, *trees, *planes, order, *shared, *part, score)
        else:
            part = scratch_codes(together, rows_of_block(codes.shape[1]))
            _add_sharing_trees(codes, *trees, value, order, size, *shared, *part, score)
    else:
        _add_deep_trees(codes, *trees, value, score)
