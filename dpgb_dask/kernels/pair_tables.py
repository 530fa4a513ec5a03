"""Sums per cell of tables over pairs of features, whose bins are mapped to few levels.

Tables share accumulators as features do (`histogram`): a group is over the product of the levels of some columns, which
hold every table between two of them. Four columns hold up to six tables, which then cost one addition a row, and 74
groups all 378 tables of 28 features.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable, same_rows, writable
from dpgb_dask.kernels.byte_tables import look_up
from dpgb_dask.kernels.histogram import (
    BLOCK,
    GROUP_CELLS,
    LANES_BLOCK,
    MAX_CELLS,
    beside,
    runs,
    scatter_joint,
    scatter_joint_scores,
    scores_at_once,
    scratch_codes,
    take_score,
    unload,
)
from dpgb_dask.kernels.lanes import LANES

FIVE = 5  # cuts that a loop counts
MOST_CUTS = 15  # with more, a look-up is faster


class PairLike(Protocol):
    """The attributes that a pair table needs; `contracts.queries.PairCells` has them."""

    @property
    def i(self) -> int:
        """First feature."""

    @property
    def j(self) -> int:
        """Second feature."""

    @property
    def map_i(self) -> NDArray[np.uint8]:
        """Row of the table, per bin of the first feature."""

    @property
    def map_j(self) -> NDArray[np.uint8]:
        """Column of the table, per bin of the second feature."""

    @property
    def n_i(self) -> int:
        """Rows."""

    @property
    def n_j(self) -> int:
        """Columns."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A plain `PairLike`."""

    i: int
    j: int
    map_i: NDArray[np.uint8]
    map_j: NDArray[np.uint8]
    n_i: int
    n_j: int


@dataclass(frozen=True, slots=True, eq=False)
class PairSet:
    """Pair tables, packed once by `pack_pairs`.

    Parameters
    ----------
    feature : (n_columns,) int64
        Feature of each distinct (feature, map).
    map : (n_columns, 256) uint8
        Its map, padded with the last entry.
    cut : (n_columns, MOST_CUTS) uint8
        Where the map rises, if it never falls and rises seldom: the level of a code is that of 0, and one more for each
        cut below the code. 255 is below none.
    n_cuts : (n_columns,) int64
        Up to the next multiple of `FIVE`; -1 for a map that is looked up.
    order : (n,) int64
        Columns, group after group: a group's joint cell is that of its columns.
    size : (n,) int64
        Levels of each, in that order.
    start : (n_groups + 1,) int64
        Where each group starts in ``order``.
    cells : (n_groups,) int64
        Product of the group's levels.
    tables : (n_groups + 1,) int64
        Where each group's tables start in what follows.
    pair : (n_pairs,) int64
        Which pair each table is.
    first, second : (n_pairs,) int64
        Its columns, as positions in the group.
    offset : (n_pairs,) int64
        Where its cells start in the answer.
    n_cells : int
        Of all tables.
    """

    feature: NDArray[np.int64]
    map: NDArray[np.uint8]
    cut: NDArray[np.uint8]
    n_cuts: NDArray[np.int64]
    order: NDArray[np.int64]
    size: NDArray[np.int64]
    start: NDArray[np.int64]
    cells: NDArray[np.int64]
    tables: NDArray[np.int64]
    pair: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    offset: NDArray[np.int64]
    n_cells: int

    @property
    def n_groups(self) -> int:
        """Groups."""
        return len(self.cells)

    @property
    def width(self) -> int:
        """Cells of the largest group."""
        return int(self.cells.max(initial=1))


def pack_pairs(pairs: Sequence[PairLike], most_cells: int = MAX_CELLS) -> PairSet:
    """Pack pair tables; if several pairs map a feature in the same way, it is mapped only once per row.

    Raises
    ------
    ValueError
        If a table has more than ``most_cells`` cells or a map points outside it.
    """
    if any(p.n_i * p.n_j > most_cells for p in pairs):
        raise ValueError(f"A pair table has more than {most_cells} cells. Give coarser maps.")
    return _packed(
        tuple(
            (int(p.i), int(p.j), _bytes(p.map_i), _bytes(p.map_j), int(p.n_i), int(p.n_j))
            for p in pairs
        )
    )


def _bytes(map_: NDArray[np.uint8]) -> bytes:
    return np.asarray(map_, np.uint8).tobytes()


# rounds ask for the same tables, and the model's are those of the rounds
@lru_cache(maxsize=16)
def _packed(pairs: tuple[tuple[int, int, bytes, bytes, int, int], ...]) -> PairSet:
    columns: dict[tuple[int, bytes, int, bool], int] = {}
    of_pair: list[tuple[int, int]] = []
    for i, j, map_i, map_j, n_i, n_j in pairs:
        both: list[int] = []
        for feature, map_, n in ((i, map_i, n_i), (j, map_j, n_j)):
            if not 1 <= len(map_) <= MAX_CELLS or max(map_) >= n:
                raise ValueError(
                    "A pair's map must give a row (column) below n_i (n_j) for every bin."
                )
            key = feature, map_.ljust(MAX_CELLS, map_[-1:]), n
            again = columns.get((*key, False)) in both  # a pair has two columns, even of one map
            both.append(columns.setdefault((*key, again), len(columns)))
        of_pair.append((both[0], both[1]))
    levels = tuple(n for _, _, n, _ in columns)
    groups = _groups(tuple(of_pair), levels)
    order = [column for own, _ in groups for column in own]
    pair_of = [pair for _, tables in groups for pair in tables]
    first, second = (
        [own.index(of_pair[pair][side]) for own, tables in groups for pair in tables]
        for side in (0, 1)
    )
    sizes = np.array([n_i * n_j for *_, n_i, n_j in pairs], np.int64)
    maps = np.frombuffer(b"".join(map_ for _, map_, _, _ in columns), np.uint8)
    maps = maps.reshape(-1, MAX_CELLS)
    return PairSet(
        _whole([feature for feature, _, _, _ in columns]),
        maps,
        *_cuts(maps),
        _whole(order),
        _whole([levels[column] for column in order]),
        _whole(np.cumsum([0, *(len(own) for own, _ in groups)])),
        _whole([math.prod(levels[column] for column in own) for own, _ in groups]),
        _whole(np.cumsum([0, *(len(tables) for _, tables in groups)])),
        _whole(pair_of),
        _whole(first),
        _whole(second),
        _whole((np.cumsum(sizes) - sizes)[pair_of]),
        int(sizes.sum()),
    )


def _whole(values: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return readable("values", np.array(values, np.int64), np.int64, 1)


def _cuts(maps: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return ``cut`` and ``n_cuts`` of a `PairSet`."""
    cut = np.full((len(maps), MOST_CUTS), MAX_CELLS - 1, np.uint8)
    n_cuts = np.full(len(maps), -1)
    for c, rises in enumerate(np.diff(maps.astype(np.int64), axis=1)):
        if rises.min() >= 0 and rises.sum() <= MOST_CUTS:
            own = np.repeat(np.arange(MAX_CELLS - 1), rises)
            cut[c, : len(own)] = own
            n_cuts[c] = -(-len(own) // FIVE) * FIVE
    return readable("cut", cut, np.uint8, 2), readable("n_cuts", n_cuts, np.int64, 1)


def _groups(
    pairs: tuple[tuple[int, int], ...], levels: tuple[int, ...]
) -> list[tuple[list[int], list[int]]]:
    """Group tables greedily: columns of each group, and the pairs that it holds.

    A group begins with the first pair that is left, and takes the column that adds most pairs, as long as it has at
    most `GROUP_CELLS` cells; if none adds any, another pair.
    """
    left = dict.fromkeys(range(len(pairs)))
    beside_of: list[dict[int, list[int]]] = [{} for _ in levels]  # pairs by column, and column
    for pair, (i, j) in enumerate(pairs):
        beside_of[i].setdefault(j, []).append(pair)
        beside_of[j].setdefault(i, []).append(pair)
    degree = [sum(map(len, others.values())) for others in beside_of]
    groups = []
    while left:
        own: list[int] = []
        gain: dict[int, int] = {}  # pairs that a column adds
        cells, new = 1, list(pairs[next(iter(left))])
        while new:
            for column in new:
                own.append(column)
                cells *= levels[column]
                for other, found in beside_of[column].items():
                    gain[other] = gain.get(other, 0) + len(found)
            may = [c for c in gain if c not in own and cells * levels[c] <= GROUP_CELLS]
            new = [max(may, key=lambda c: (gain[c], degree[c], -c))] if may else []
            if not new:
                new = next(
                    (
                        [i, j]
                        for i, j in (pairs[pair] for pair in left)
                        if i not in own
                        and j not in own
                        and cells * levels[i] * levels[j] <= GROUP_CELLS
                    ),
                    [],
                )
        tables = []
        for i, j in itertools.combinations(own, 2):
            found = beside_of[i].pop(j, [])
            beside_of[j].pop(i, None)
            degree[i] -= len(found)
            degree[j] -= len(found)
            tables += found
        for pair in tables:
            del left[pair]
        groups.append((own, tables))
    return groups


@inner
def _count_five(codes: NDArray[np.uint8], cut: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Add the number of five cuts below each code: an instruction takes 32 codes."""
    a, b, c, d, e = cut[0], cut[1], cut[2], cut[3], cut[4]
    for i in range(out.shape[0]):
        x = codes[i]
        out[i] += np.uint8(
            np.uint8(x > a) + np.uint8(x > b) + np.uint8(x > c) + np.uint8(x > d) + np.uint8(x > e)
        )


@inner
def map_columns(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int,
    hi: int,
    feature: NDArray[np.int64],
    map_: NDArray[np.uint8],
    cut: NDArray[np.uint8],
    n_cuts: NDArray[np.int64],
    out: NDArray[np.uint8],  # OUT (n_columns, >= hi - lo)
) -> None:
    """Map the features of rows lo to hi to their levels."""
    for c in range(feature.shape[0]):
        code, level = codes[feature[c], lo:hi], out[c, : hi - lo]
        if n_cuts[c] < 0:
            look_up(code, map_[c], level)
            continue
        for i in range(level.shape[0]):
            level[i] = map_[c, 0]
        for first in range(0, n_cuts[c], FIVE):
            _count_five(code, cut[c, first : first + FIVE], level)


@inner
def _add_table(
    joint: NDArray[np.int64],  # IN (cells,)
    size: NDArray[np.int64],  # IN (columns of the group,)
    first: int,  # position of the table's rows
    second: int,  # of its columns
    table: NDArray[np.int64],  # OUT (cells of the table,), added to
) -> None:
    """Sum a group's cells into those of one table."""
    low, high = min(first, second), max(first, second)
    before = between = after = 1
    for k in range(size.shape[0]):
        if k < low:
            before *= size[k]
        elif low < k < high:
            between *= size[k]
        elif k > high:
            after *= size[k]
    step_low, step_high = (size[second], 1) if first < second else (1, size[second])
    c = 0
    for _ in range(before):
        for x in range(size[low]):
            for _ in range(between):
                for y in range(size[high]):
                    sum_ = np.int64(0)
                    for k in range(c, c + after):
                        sum_ += joint[k]
                    table[x * step_low + y * step_high] += sum_
                    c += after


@inner
def _flush_pairs(
    sums: NDArray[np.int64],  # IN OUT (n_groups, >= cells), cleared
    side: int,
    size: NDArray[np.int64],
    start: NDArray[np.int64],
    cells: NDArray[np.int64],
    tables: NDArray[np.int64],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    offset: NDArray[np.int64],
    out: NDArray[np.int64],  # OUT (all cells of tables, 2), added to
) -> None:
    """Flush the tables of every group.

    The packed sum of a table's cell is over the same rows as the sums of its joint cells, so the same bound holds.
    """
    table = np.zeros(MAX_CELLS, np.int64)
    for g in range(cells.shape[0]):
        own, joint = size[start[g] : start[g + 1]], sums[g, : cells[g]]
        for t in range(tables[g], tables[g + 1]):
            n = own[first[t]] * own[second[t]]
            _add_table(joint, own, first[t], second[t], table[:n])
            unload(table[:n], side, out[offset[t] : offset[t] + n])
        for c in range(cells[g]):
            joint[c] = 0


@kernel
def _pair_sums(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    values: NDArray[np.int64],  # IN (n_rows,)
    limit: int,  # rows between flushes
    side: int,
    feature: NDArray[np.int64],
    map_: NDArray[np.uint8],
    cut: NDArray[np.uint8],
    n_cuts: NDArray[np.int64],
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],
    cells: NDArray[np.int64],
    tables: NDArray[np.int64],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    offset: NDArray[np.int64],
    width: int,
    level: NDArray[np.uint8],  # scratch (n_columns, >= rows of a block)
    level_read: NDArray[np.uint8],  # read-only view of it
    keys: NDArray[np.uint16],  # scratch (2, rows), or OUT (n_groups, n_rows); IN if known
    known: bool,
    out: NDArray[np.int64],  # OUT (all cells of tables, 2), added to
) -> None:
    n, zero = values.shape[0], np.int64(0)
    step = min(BLOCK, limit)
    sums = np.zeros((cells.shape[0], width), np.int64)
    rows = 0
    for lo in range(0, n, step):
        hi = min(n, lo + step)
        if rows + hi - lo > limit:
            _flush_pairs(sums, side, size, start, cells, tables, first, second, offset, out)
            rows = 0
        at = lo if keys.shape[1] == n else zero  # keys of all rows, or of a block
        if not known:
            map_columns(codes, lo, hi, feature, map_, cut, n_cuts, level)
        scatter_joint(
            level_read, zero, values[lo:hi], order, size, start, cells, keys, at, known, sums
        )
        rows += hi - lo
    _flush_pairs(sums, side, size, start, cells, tables, first, second, offset, out)


@kernel
def _pair_sums_of_four(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    values: NDArray[np.int64],  # IN (1 to 4 scores, n_rows)
    limit: int,  # rows between flushes
    side: int,
    feature: NDArray[np.int64],
    map_: NDArray[np.uint8],
    cut: NDArray[np.uint8],
    n_cuts: NDArray[np.int64],
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],
    cells: NDArray[np.int64],
    tables: NDArray[np.int64],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    offset: NDArray[np.int64],
    width: int,
    level: NDArray[np.uint8],  # scratch (n_columns, >= rows of a block)
    level_read: NDArray[np.uint8],  # read-only view of it
    keys: NDArray[np.uint16],  # scratch (2, rows), or OUT (n_groups, n_rows); IN if known
    known: bool,
    out: NDArray[np.int64],  # OUT (as many scores, all cells of tables, 2), added to
) -> None:
    n_scores, n = values.shape
    step = min(LANES_BLOCK, limit)
    packed = np.zeros((step, LANES), np.int64)
    n_groups, zero = cells.shape[0], np.int64(0)
    sums, one = np.zeros((n_groups, width, LANES), np.int64), np.empty((n_groups, width), np.int64)
    rows = lo = 0
    while lo < n:
        hi = min(n, lo + step)
        block = packed[: hi - lo]
        beside(values, lo, block)
        at = lo if keys.shape[1] == n else zero  # keys of all rows, or of a block
        if not known:
            map_columns(codes, lo, hi, feature, map_, cut, n_cuts, level)
        scatter_joint_scores(
            level_read, zero, block, order, size, start, n_groups, keys, at, known, sums
        )
        rows += hi - lo
        lo = hi
        if lo == n or rows + min(step, n - lo) > limit:
            for k in range(n_scores):
                take_score(sums, k, cells, 0, one)
                _flush_pairs(one, side, size, start, cells, tables, first, second, offset, out[k])
            rows = 0


def pair_sums(
    codes: NDArray[np.uint8],
    pairs: PairSet | Sequence[PairLike],
    packed: NDArray[np.int64],
    max_abs: int,
    kept: NDArray[np.uint16] | None = None,
    *,
    known: bool = False,
) -> NDArray[np.int64]:
    """Sum g and h per cell of several pair tables.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
    pairs : PairSet, or sequence of PairLike
        Row r falls in cell ``map_i[codes[i, r]] * n_j + map_j[codes[j, r]]`` of its table, of at most 256. Pack them
        once per query with `pack_pairs` when there are many row blocks.
    packed : (n_scores, n_rows) int64
        ``(g << 32) + h`` in steps, weights included, h >= 0.
    max_abs : int
        Bound on |g| and h of one row, weights included.
    kept : (n_groups, n_rows) uint16, or None
        Memory for the rows' joint cells, if they are to be kept.
    known : bool
        Whether ``kept`` holds them already, of the same rows and groups; else they are written to it. Not checked, as
        a look at every cell would take as long as what it saves.

    Returns
    -------
    (sum of n_i · n_j, n_scores, 2) int64
        Sums of (g, h), tables one after the other, row-major.

    Raises
    ------
    ValueError
        If a dtype, layout, shape or map is wrong or max_abs is not in [1, 2³¹ - 1]; never because of a row.

    Privacy
    -------
    Private side. One row changes one cell of each table, by its own (g, h). Exact for any n_rows, as `joint_sums`.
    """
    same_rows(codes=codes, packed=packed)
    parts = runs(packed, max_abs, 2)
    codes = readable("codes", codes, np.uint8, 2)
    s = pairs if isinstance(pairs, PairSet) else pack_pairs(pairs)
    check_pairs(codes, s)
    out = np.zeros((len(packed), s.n_cells, 2), np.int64)
    rows = min(codes.shape[1], BLOCK)
    scratch = scratch_codes(len(s.feature), rows)
    keys = np.empty((2, rows), np.uint16) if kept is None else check_cells(kept, codes, s)
    known = known and kept is not None
    for values, limit, side in parts:
        for k in scores_at_once(len(packed), len(s.cells) * s.width):
            add = _pair_sums if isinstance(k, int) else _pair_sums_of_four
            add(
                codes, values[k], limit, side, s.feature, s.map, s.cut, s.n_cuts, s.order, s.size, s.start, s.cells,
                s.tables, s.first, s.second, s.offset, s.width, *scratch, keys, known, out[k],
            )  # fmt: skip
            known = kept is not None
    return out.transpose(1, 0, 2)


def check_pairs(codes: NDArray[np.uint8], pairs: PairSet) -> None:
    """Check that pairs name features that exist.

    Raises
    ------
    ValueError
        If one does not.
    """
    feature = pairs.feature
    if len(feature) and not 0 <= feature.min() <= feature.max() < len(codes):
        raise ValueError("A pair names a feature that codes does not have.")


def check_cells(
    cells: NDArray[np.uint16], codes: NDArray[np.uint8], pairs: PairSet
) -> NDArray[np.uint16]:
    """Return memory for the joint cells of rows, if that is what it is.

    Raises
    ------
    ValueError
        If its dtype, layout or shape is another.
    """
    same_rows(codes=codes, cells=cells)
    if len(writable("cells", cells, np.uint16, 2)) != pairs.n_groups:
        raise ValueError("cells must have a line for each group of pairs.")
    return cells
