"""Exact sums per bin: counts, per-feature gradient sums of all features jointly, and pair tables.

Two techniques make this fast. Neither can change a sum, since all sums are of integers.

*Packing.* g and h of a row are stored in one int64, ``(g << 32) + h``, so that one addition adds both. A packed sum of
R rows is exact as long as R · max(|g|, h) <= 2³¹ - 1. A row *counter* enforces this bound, whatever the rows hold:
before it would be exceeded, the sum is unpacked ("flushed") into plain int64. An overflow would not be noticed, and
would make a row's influence unbounded.

*Joint cells.* Features with few bins share one accumulator over the product of their bins. A row is then added once per
group of features instead of once per feature, and the flush sums the group's cells into the bins of each feature. This
also spreads repeated hits on one bin, which would stall on store-to-load forwarding, over more cells.

*Four scores at once.* Of several scores, four lie next to each other in a cell, so that one instruction adds them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import AVX512_VBMI, inner, kernel, readable, same_rows, writable
from dpgb_dask.kernels.byte_tables import look_up
from dpgb_dask.kernels.lanes import LANES, add_row

BLOCK = 8192  # rows per inner loop: their packed values and keys stay in L1 or L2
GROUP_CELLS = 2048  # 16 KB of accumulator per group: two accumulators and the rows fit in L1
MAX_CELLS = 256  # of one feature: codes are uint8
NO_MAPS = np.empty((0, MAX_CELLS), np.uint8)
# whose mapped codes of a block's rows take 2 MB; with a thousand, mapping saves no time
MAPPED_FEATURES = 256
SMALL_CELLS = 256  # up to this size, a group that is alone in its loop has four accumulators
PACKED_ROWS = 512  # with fewer rows between flushes, plain int64 sums are faster than flushing
HALF = (1 << 31) - 1  # the largest sum that a packed half holds
PACKED = 2  # sums hold both columns of the answer
SCORE_CELLS = 1 << 20  # 8 MB of accumulators: with more for four scores, each is summed by itself
LANES_BLOCK = 4096  # rows per inner loop, of four scores


@dataclass(frozen=True, eq=False, slots=True)
class Groups:
    """Which features share an accumulator.

    Parameters
    ----------
    order : (n_features,) int64
        Features, group after group.
    size : (n_features,) int64
        Bins of each feature, in that order.
    offset : (n_features,) int64
        Where each feature's bins start in the answer, in that order.
    start : (n_groups + 1,) int64
        Where each group starts in ``order``.
    cells : (n_groups,) int64
        Product of the group's sizes.
    n_joint : int
        Groups of several features; they come first.
    width : int
        Cells that each group gets: as many as the largest has, and one for each code.
    n_bins : int
        Bins of all features.
    """

    order: NDArray[np.int64]
    size: NDArray[np.int64]
    offset: NDArray[np.int64]
    start: NDArray[np.int64]
    cells: NDArray[np.int64]
    n_joint: int
    width: int
    n_bins: int


def check_sizes(size: NDArray[np.int64]) -> None:
    """Check that features have 1 to `MAX_CELLS` bins.

    Raises
    ------
    ValueError
        If one has not.
    """
    if len(size) and not 1 <= size.min() <= size.max() <= MAX_CELLS:
        raise ValueError(f"A feature has a number of bins outside [1, {MAX_CELLS}].")


@lru_cache(maxsize=256)
def groups_of(sizes: tuple[int, ...], most_cells: int = GROUP_CELLS) -> Groups:
    """Group features of similar size: many small ones share at most ``most_cells`` cells, and a larger one is alone.

    Raises
    ------
    ValueError
        If a size is outside [1, MAX_CELLS].
    """
    size = np.array(sizes, np.int64)
    check_sizes(size)
    order = np.argsort(size, kind="stable")
    start, cells = [0], []
    product = 1
    for position, feature in enumerate(order):
        if position and product * sizes[feature] > most_cells:
            start.append(position)
            cells.append(product)
            product = 1
        product *= sizes[feature]
    if len(size):
        start.append(len(size))
        cells.append(product)
    offset = np.concatenate(([0], np.cumsum(size)))[:-1]
    order, size, offset, starts, products = (
        readable("groups", np.asarray(part, np.int64), np.int64, 1)
        for part in (order, size[order], offset[order], start, cells)
    )
    n_joint, width = int((np.diff(starts) > 1).sum()), max(MAX_CELLS, *cells, 0)
    return Groups(order, size, offset, starts, products, n_joint, width, sum(sizes))


def flush_rows(max_abs: int) -> int:
    """Return how many rows a packed sum holds without overflow: rows · max_abs <= 2³¹ - 1.

    Raises
    ------
    ValueError
        If not even one row fits.
    """
    if not 1 <= max_abs <= HALF:
        raise ValueError(
            f"max_abs={max_abs} is outside [1, 2**31 - 1]: one row must fit a packed sum."
        )
    return HALF // max_abs


@inner
def _key_one(a: NDArray[np.uint8], n_a: int, key: NDArray[np.uint16]) -> None:
    top = np.uint8(n_a - 1)
    for i in range(key.shape[0]):
        key[i] = min(a[i], top)


@inner
def _key_two(
    a: NDArray[np.uint8], n_a: int, b: NDArray[np.uint8], n_b: int, key: NDArray[np.uint16]
) -> None:
    top_a, top_b, n = np.uint8(n_a - 1), np.uint8(n_b - 1), np.uint16(n_b)
    for i in range(key.shape[0]):
        # cast at every step: with 16 bits, an instruction handles twice as many rows as with 32
        key[i] = np.uint16(min(a[i], top_a)) * n + min(b[i], top_b)


@inner
def _key_more(b: NDArray[np.uint8], n_b: int, key: NDArray[np.uint16]) -> None:
    top_b, n = np.uint8(n_b - 1), np.uint16(n_b)
    for i in range(key.shape[0]):
        key[i] = np.uint16(key[i] * n) + min(b[i], top_b)


@inner
def make_key(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int | np.int64,
    order: NDArray[np.int64],  # IN (n,), the features of one group
    size: NDArray[np.int64],  # IN (n,)
    key: NDArray[np.uint16],  # OUT (rows from lo on,)
) -> None:
    """Write each row's joint cell of one group; the last feature varies fastest.

    Codes are clamped to their feature's size, so that no code leads outside the array.
    """
    hi = lo + key.shape[0]
    if order.shape[0] == 1:
        _key_one(codes[order[0], lo:hi], size[0], key)
        return
    _key_two(codes[order[0], lo:hi], size[0], codes[order[1], lo:hi], size[1], key)
    for f in range(2, order.shape[0]):
        _key_more(codes[order[f], lo:hi], size[f], key)


@inner
def find_key(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows); not read if keys are known
    lo: int | np.int64,
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],
    g: int,  # the group
    keys: NDArray[np.uint16],  # OUT (2 or n_groups, >= rows from ``at`` on); IN if known
    at: int | np.int64,
    n: int,
    known: bool | np.bool_,
) -> NDArray[np.uint16]:
    """Return the joint cells of n rows in a group. Keys have a line of each group, or fewer, which are used in turn.

    Numba takes a plain False for ``known`` for a type of its own, and would compile what it is given to twice.
    """
    key = keys[g % keys.shape[0], at : at + n]
    if not known:
        s, t = start[g], start[g + 1]
        make_key(codes, lo, order[s:t], size[s:t], key)
    return key


@inner
def scatter_one(key: NDArray[Any], packed: NDArray[np.int64], a: NDArray[np.int64]) -> None:
    """Add each row to its cell."""
    for i in range(packed.shape[0]):
        a[key[i]] += packed[i]


@inner
def _scatter_small(
    key: NDArray[Any],
    packed: NDArray[np.int64],
    a: NDArray[np.int64],
) -> None:
    """Add rows to four accumulators in turn, and add these up.

    With one accumulator, rows that hit the same cell again and again would wait for each other's store.
    """
    n, cells = packed.shape[0], a.shape[0]
    spare = np.zeros(3 * cells, np.int64)
    b, c, d = spare[:cells], spare[cells : 2 * cells], spare[2 * cells :]
    even = n & ~3
    for i in range(0, even, 4):
        a[key[i]] += packed[i]
        b[key[i + 1]] += packed[i + 1]
        c[key[i + 2]] += packed[i + 2]
        d[key[i + 3]] += packed[i + 3]
    for i in range(even, n):
        a[key[i]] += packed[i]
    for k in range(cells):
        a[k] += b[k] + c[k] + d[k]


@inner
def _scatter_two(
    key_a: NDArray[np.uint16],
    key_b: NDArray[np.uint16],
    packed: NDArray[np.int64],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
) -> None:
    """Add each row to its cells of two groups."""
    for i in range(packed.shape[0]):
        p = packed[i]
        a[key_a[i]] += p
        b[key_b[i]] += p


@inner
def weave(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int | np.int64,
    four: NDArray[np.int64],  # IN (4,), features
    word: NDArray[np.uint32],  # OUT (rows from lo on,)
) -> None:
    """Write four codes of a row in a word, the first lowest: it is loaded at once where the cells of all are wanted."""
    hi = lo + word.shape[0]
    a, b = codes[four[0], lo:hi], codes[four[1], lo:hi]
    c, d = codes[four[2], lo:hi], codes[four[3], lo:hi]
    byte = word.view(np.uint8)
    for i in range(a.shape[0]):
        byte[4 * i], byte[4 * i + 1], byte[4 * i + 2], byte[4 * i + 3] = a[i], b[i], c[i], d[i]


@inner
def _scatter_four(
    word: NDArray[np.uint32],
    packed: NDArray[np.int64],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    c: NDArray[np.int64],
    d: NDArray[np.int64],
) -> None:
    """Add each row to its bins of four features."""
    for i in range(packed.shape[0]):
        w, p = word[i], packed[i]
        a[np.uint8(w)] += p
        b[np.uint8(w >> 8)] += p
        c[np.uint8(w >> 16)] += p
        d[np.uint8(w >> 24)] += p


@inner
def scatter_joint(
    codes: NDArray[np.uint8],  # IN (n_features, >= n_rows)
    first: int | np.int64,  # column of codes of the first row
    packed: NDArray[np.int64],  # IN (rows of the block,)
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],  # IN (> n_joint,)
    cells: NDArray[np.int64],  # IN (n_joint,)
    keys: NDArray[np.uint16],  # OUT (2 or n_joint, >= rows from ``at`` on); IN if known
    at: int | np.int64,  # column of keys of the first row
    known: bool | np.bool_,
    sums: NDArray[np.int64],  # OUT (>= n_joint, >= cells), packed, added to
) -> None:
    """Add rows to joint cells: two groups per loop, so that a row's value is loaded once for both."""
    n, n_joint = packed.shape[0], cells.shape[0]
    for g in range(0, n_joint - 1, 2):
        key_a = find_key(codes, first, order, size, start, g, keys, at, n, known)
        key_b = find_key(codes, first, order, size, start, g + 1, keys, at, n, known)
        _scatter_two(key_a, key_b, packed, sums[g], sums[g + 1])
    if n_joint % 2:
        g = n_joint - 1
        key_a = find_key(codes, first, order, size, start, g, keys, at, n, known)
        if cells[g] > SMALL_CELLS:
            scatter_one(key_a, packed, sums[g])
        else:
            _scatter_small(key_a, packed, sums[g, : cells[g]])


@inner
def _scatter_single(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int | np.int64,
    packed: NDArray[np.int64],  # IN (rows of the block,), of rows from lo on
    order: NDArray[np.int64],  # IN (n_groups - n_joint,)
    word: NDArray[np.uint32],  # scratch (>= rows of the block,)
    sums: NDArray[np.int64],  # OUT (n_groups - n_joint, >= 256), packed, added to
) -> None:
    """Add rows to the bins of features that are alone in their group, four features per loop.

    Codes are not clamped: there is a cell for each of the 256, and `_flush` takes those beyond the feature's last bin.
    """
    hi, n_single = lo + packed.shape[0], order.shape[0]
    four, own = n_single & ~3, word[: packed.shape[0]]
    for f in range(0, four, 4):
        weave(codes, lo, order[f : f + 4], own)
        _scatter_four(own, packed, sums[f], sums[f + 1], sums[f + 2], sums[f + 3])
    for f in range(four, n_single):
        _scatter_small(codes[order[f], lo:hi], packed, sums[f, :MAX_CELLS])


@inner
def beside(
    values: NDArray[np.int64],  # IN (1 to 4 scores, n_rows)
    lo: int,
    out: NDArray[np.int64],  # OUT (rows from lo on, 4): columns beyond the scores are left alone
) -> None:
    """Write the values of a row's scores next to each other."""
    hi = lo + out.shape[0]
    for k in range(values.shape[0]):
        value = values[k, lo:hi]
        for i in range(out.shape[0]):
            out[i, k] = value[i]


@inner
def _scatter_scores(
    key: NDArray[Any],
    packed: NDArray[np.int64],  # IN (n, 4)
    a: NDArray[np.int64],  # OUT (cells, 4), added to
) -> None:
    """Add each row's four scores to its cell."""
    for i in range(packed.shape[0]):
        add_row(a, key[i], packed, i)


@inner
def _scatter_scores_two(
    key_a: NDArray[Any],
    key_b: NDArray[Any],
    packed: NDArray[np.int64],  # IN (n, 4)
    a: NDArray[np.int64],  # OUT (cells, 4), added to
    b: NDArray[np.int64],
) -> None:
    """Add each row's four scores to its cells of two groups."""
    for i in range(packed.shape[0]):
        add_row(a, key_a[i], packed, i)
        add_row(b, key_b[i], packed, i)


@inner
def scatter_joint_scores(
    codes: NDArray[np.uint8],  # IN (n_features, >= n_rows)
    first: int | np.int64,  # column of codes of the first row
    packed: NDArray[np.int64],  # IN (rows of the block, 4)
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    start: NDArray[np.int64],  # IN (> n_joint,)
    n_joint: int,
    keys: NDArray[np.uint16],  # OUT (2 or n_joint, >= rows from ``at`` on); IN if known
    at: int | np.int64,  # column of keys of the first row
    known: bool | np.bool_,
    sums: NDArray[np.int64],  # OUT (>= n_joint, >= cells, 4), packed, added to
) -> None:
    """Add the four scores of rows to joint cells, two groups per loop."""
    n = packed.shape[0]
    for g in range(0, n_joint - 1, 2):
        key_a = find_key(codes, first, order, size, start, g, keys, at, n, known)
        key_b = find_key(codes, first, order, size, start, g + 1, keys, at, n, known)
        _scatter_scores_two(key_a, key_b, packed, sums[g], sums[g + 1])
    if n_joint % 2:
        g = n_joint - 1
        key_a = find_key(codes, first, order, size, start, g, keys, at, n, known)
        _scatter_scores(key_a, packed, sums[g])


@inner
def _scatter_single_scores(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int | np.int64,
    packed: NDArray[np.int64],  # IN (rows of the block, 4), of rows from lo on
    order: NDArray[np.int64],  # IN (n_groups - n_joint,)
    sums: NDArray[np.int64],  # OUT (n_groups - n_joint, >= 256, 4), packed, added to
) -> None:
    """Add the four scores of rows to the bins of features that are alone in their group, two per loop."""
    hi, n_single = lo + packed.shape[0], order.shape[0]
    for f in range(0, n_single - 1, 2):
        code_a, code_b = codes[order[f], lo:hi], codes[order[f + 1], lo:hi]
        _scatter_scores_two(code_a, code_b, packed, sums[f], sums[f + 1])
    if n_single % 2:
        _scatter_scores(codes[order[n_single - 1], lo:hi], packed, sums[n_single - 1])


@inner
def _add(a: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    for k in range(out.shape[0]):
        out[k] += a[k]


@inner
def total(a: NDArray[np.int64]) -> Any:
    """Return the sum."""
    sum_ = np.int64(0)
    for k in range(a.shape[0]):
        sum_ += a[k]
    return sum_


@inner
def unload(sums: NDArray[np.int64], side: int, out: NDArray[np.int64]) -> None:
    """Add sums to the answer and clear them; ``side`` as in `flush`."""
    for k in range(sums.shape[0]):
        v = sums[k]
        if side == PACKED:
            h = v & 0xFFFFFFFF
            out[k, 0] += (v - h) >> 32
            out[k, 1] += h
        else:
            out[k, side] += v
        sums[k] = 0


@inner
def flush_group(
    joint: NDArray[np.int64],  # IN OUT (cells,), cleared
    side: int,  # PACKED, or the column of the answer that plain sums belong to
    size: NDArray[np.int64],  # IN (features of the group,)
    offset: NDArray[np.int64],
    margin: NDArray[np.int64],  # scratch (256,), zeros; left so
    out: NDArray[np.int64],  # OUT (sum of sizes, 2), added to
) -> None:
    """Sum one group's cells into the bins of its features, and add them to the answer.

    The packed sum of a bin is over the same rows as the sums of its cells, so the same bound holds for it.
    """
    n_left = joint.shape[0]
    # sum over the feature that varies fastest, again and again
    for f in range(size.shape[0] - 1, 0, -1):
        n = size[f]
        n_left //= n
        bins = margin[:n]
        for k in range(n_left):
            row = joint[k * n : (k + 1) * n]
            _add(row, bins)
            joint[k] = total(row)  # position k has been read already
        unload(bins, side, out[offset[f] : offset[f] + n])
    unload(joint[:n_left], side, out[offset[0] : offset[0] + n_left])
    rest = joint[n_left:]
    for k in range(rest.shape[0]):
        rest[k] = 0


@inner
def _flush(
    sums: NDArray[np.int64],  # IN OUT (n_groups, >= cells), cleared
    side: int,
    size: NDArray[np.int64],
    offset: NDArray[np.int64],
    start: NDArray[np.int64],
    cells: NDArray[np.int64],
    out: NDArray[np.int64],  # OUT (sum of sizes, 2), added to
) -> None:
    """Flush every group; codes beyond a single feature's bins count in the last."""
    margin = np.zeros(MAX_CELLS, np.int64)
    for g in range(cells.shape[0]):
        s, t = start[g], start[g + 1]
        joint = sums[g]
        if t - s == 1:
            for c in range(cells[g], MAX_CELLS):
                joint[cells[g] - 1] += joint[c]
                joint[c] = 0
        flush_group(joint[: cells[g]], side, size[s:t], offset[s:t], margin, out)


@inner
def take_score(
    sums: NDArray[np.int64],  # IN OUT (n_groups, width, 4): score k is cleared
    k: int,
    cells: NDArray[np.int64],  # IN (n_groups,)
    least: int,  # cells of a group that may hold sums, if it has fewer
    out: NDArray[np.int64],  # OUT (n_groups, width)
) -> None:
    """Move the sums of one of four scores."""
    for g in range(out.shape[0]):
        for c in range(max(cells[g], least)):
            out[g, c] = sums[g, c, k]
            sums[g, c, k] = 0


@inner
def _map_rows(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int,
    hi: int,
    map_: NDArray[np.uint8],  # IN (n_features, 256)
    cell: NDArray[np.uint8],  # OUT (n_features, >= hi - lo)
) -> None:
    for j in range(codes.shape[0]):
        look_up(codes[j, lo:hi], map_[j], cell[j, : hi - lo])


@kernel
def _joint_sums(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    map_: NDArray[np.uint8],  # IN (n_features, 256), or (0, 256): codes are cells
    cell: NDArray[np.uint8],  # scratch (n_features, >= rows of a block), if there are maps
    cell_read: NDArray[np.uint8],  # read-only view of it
    values: NDArray[np.int64],  # IN (n_rows,)
    limit: int,  # rows between flushes
    side: int,
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    offset: NDArray[np.int64],
    start: NDArray[np.int64],
    cells: NDArray[np.int64],
    n_joint: int,
    width: int,
    out: NDArray[np.int64],  # OUT (sum of sizes, 2), added to
) -> None:
    n = values.shape[0]
    step = min(BLOCK, limit)
    keys, word = np.empty((2, step), np.uint16), np.empty(step, np.uint32)
    sums = np.zeros((cells.shape[0], width), np.int64)
    single = order[start[n_joint] :]
    zero, known = np.int64(0), np.bool_(False)
    rows = 0
    for lo in range(0, n, step):
        hi = min(n, lo + step)
        if rows + hi - lo > limit:
            _flush(sums, side, size, offset, start, cells, out)
            rows = 0
        packed = values[lo:hi]
        joint = cells[:n_joint]
        own, first = codes, np.int64(lo)
        if map_.shape[0] > 0:
            _map_rows(codes, lo, hi, map_, cell)
            own, first = cell_read, zero
        scatter_joint(own, first, packed, order, size, start, joint, keys, zero, known, sums)
        _scatter_single(own, first, packed, single, word, sums[n_joint:])
        rows += hi - lo
    _flush(sums, side, size, offset, start, cells, out)


@kernel
def _joint_sums_of_four(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    map_: NDArray[np.uint8],  # IN (n_features, 256), or (0, 256): codes are cells
    cell: NDArray[np.uint8],  # scratch (n_features, >= rows of a block), if there are maps
    cell_read: NDArray[np.uint8],  # read-only view of it
    values: NDArray[np.int64],  # IN (1 to 4 scores, n_rows)
    limit: int,  # rows between flushes
    side: int,
    order: NDArray[np.int64],
    size: NDArray[np.int64],
    offset: NDArray[np.int64],
    start: NDArray[np.int64],
    cells: NDArray[np.int64],
    n_joint: int,
    width: int,
    out: NDArray[np.int64],  # OUT (as many scores, sum of sizes, 2), added to
) -> None:
    n_scores, n = values.shape
    step = min(LANES_BLOCK, limit)
    keys, packed = np.empty((2, step), np.uint16), np.zeros((step, LANES), np.int64)
    sums = np.zeros((cells.shape[0], width, LANES), np.int64)
    one = np.empty((cells.shape[0], width), np.int64)
    single = order[start[n_joint] :]
    zero, known = np.int64(0), np.bool_(False)
    rows = lo = 0
    while lo < n:
        hi = min(n, lo + step)
        block = packed[: hi - lo]
        beside(values, lo, block)
        own, first = codes, np.int64(lo)
        if map_.shape[0] > 0:
            _map_rows(codes, lo, hi, map_, cell)
            own, first = cell_read, zero
        scatter_joint_scores(
            own, first, block, order, size, start, n_joint, keys, zero, known, sums
        )
        _scatter_single_scores(own, first, block, single, sums[n_joint:])
        rows += hi - lo
        lo = hi
        if lo == n or rows + min(step, n - lo) > limit:
            for k in range(n_scores):
                take_score(sums, k, cells, MAX_CELLS, one)
                _flush(one, side, size, offset, start, cells, out[k])
            rows = 0


def scratch_codes(n: int, rows: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return memory for codes that a kernel finds itself, and a read-only view of it, (n, rows) both.

    Keys are made from the view, as from codes that a kernel is given, so that `make_key` is compiled once. Its ``lo``
    is written ``np.int64(0)`` for the same reason: Numba takes a plain 0 for a type of its own.
    """
    codes = np.empty((n, rows), np.uint8)
    return codes, readable("codes", codes, np.uint8, 2)


def sides(max_abs: int) -> tuple[int, ...]:
    """Return which columns of the answer the runs of `runs` add to, in the same order."""
    return (PACKED,) if flush_rows(max_abs) >= PACKED_ROWS else (0, 1)


def runs(
    packed: NDArray[np.int64], max_abs: int, n_axes: int
) -> list[tuple[NDArray[np.int64], int, int]]:
    """Return the arrays to be summed, as (values, rows between flushes, side).

    This is one run with packed values; or, if weights are so large that a packed sum holds too few rows, one run with g
    and one with h as plain int64.

    Raises
    ------
    ValueError
        If ``packed`` is not int64 or has another number of axes than ``n_axes``, or max_abs is out of range.
    """
    packed = readable("packed", packed, np.int64, n_axes)
    limit = flush_rows(max_abs)
    if limit >= PACKED_ROWS:
        return [(packed, limit, PACKED)]
    h = packed & 0xFFFFFFFF
    halves = enumerate(((packed - h) >> 32, h))
    # 2**32 rows of at most 2**31 - 1 each fit an int64
    return [(readable("packed", half, np.int64, n_axes), 1 << 32, side) for side, half in halves]


def joint_sums(
    codes: NDArray[np.uint8],
    packed: NDArray[np.int64],
    max_abs: int,
    sizes: Sequence[int],
    maps: NDArray[np.uint8] | None = None,
) -> NDArray[np.int64]:
    """Sum g and h per bin of every feature, or per group of its bins.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
        Without maps, below the feature's size; a larger code would count in the last bin.
    packed : (n_scores, n_rows) int64
        ``(g << 32) + h`` in steps, weights included, h >= 0.
    max_abs : int
        Bound on |g| and h of one row, weights included: decides how often sums are unpacked.
    sizes : sequence of int
        Bins of each feature, or groups of them, at most 256.
    maps : (n_features, 256) uint8, or None
        The group of each code. It pays if features share joint cells then (`maps_pay`).

    Returns
    -------
    (sum(sizes), n_scores, 2) int64
        Sums of (g, h), features one after the other.

    Raises
    ------
    ValueError
        If a dtype, layout or shape is wrong or max_abs is not in [1, 2³¹ - 1]; never because of a row.

    Privacy
    -------
    Private side. One row changes one bin of each feature, by its own (g, h). Exact for any n_rows: no packed sum
    holds more than (2³¹ - 1) // max_abs rows.
    """
    same_rows(codes=codes, packed=packed)
    if len(codes) != len(sizes):
        raise ValueError("codes and sizes differ in features. Give the number of bins of each.")
    parts = runs(packed, max_abs, 2)
    codes = readable("codes", codes, np.uint8, 2)
    g = groups_of(tuple(sizes))
    out = np.zeros((len(packed), g.n_bins, 2), np.int64)
    maps = readable("maps", NO_MAPS if maps is None else maps, np.uint8, 2)
    if maps.shape not in ((0, MAX_CELLS), (len(codes), MAX_CELLS)):
        raise ValueError("maps must be (n_features, 256).")
    scratch = scratch_codes(len(maps), min(codes.shape[1], BLOCK))
    for values, limit, side in parts:
        for k in scores_at_once(len(packed), len(g.cells) * g.width):
            add = _joint_sums if isinstance(k, int) else _joint_sums_of_four
            add(
                codes, maps, *scratch, values[k], limit, side, g.order, g.size, g.offset, g.start, g.cells, g.n_joint,
                g.width, out[k],
            )  # fmt: skip
    return out.transpose(1, 0, 2)


def maps_pay(sizes: Sequence[int], n_bins: Sequence[int]) -> bool:
    """Return whether to map codes to groups of bins before they are added up, instead of adding up bins to groups.

    A row is added to a cell of each group of features, and registers map a code in a 16th of the time that this takes.
    Where features share cells, these are more: to save a third of the additions does not pay yet. The mapped codes of
    many features would take more memory than a pass over rows is granted for each thread.
    """
    if not AVX512_VBMI or len(sizes) > MAPPED_FEATURES:
        return False
    few, many = (len(groups_of(tuple(each)).cells) for each in (sizes, n_bins))
    return few + len(sizes) / 16 <= 0.6 * many


def scores_at_once(n_scores: int, n_cells: int = 1) -> tuple[int | slice, ...]:
    """Return the scores that are taken at once: three or four as a slice, others one by one.

    Parameters
    ----------
    n_scores : int
    n_cells : int
        Of the sums of one score.
    """
    found: list[int | slice] = []
    most = LANES if LANES * n_cells <= SCORE_CELLS else 1
    k = 0
    while k < n_scores:
        n = min(most, n_scores - k) if n_scores - k > 2 else 1
        found.append(k if n == 1 else slice(k, k + n))
        k += n
    return tuple(found)


def padded(map_: NDArray[Any]) -> NDArray[Any]:
    """Extend a map to all 256 codes by repeating its last entry, so that no code reads beyond its end."""
    full = np.empty(256, map_.dtype)
    full[: len(map_)] = map_
    full[len(map_) :] = map_[-1]
    return full


@kernel
def _add_cells(
    cells: NDArray[Any],  # IN (n,)
    out: NDArray[np.int64],  # OUT (n_cells,), added to
) -> None:
    n, top = cells.shape[0], out.shape[0] - 1
    # four counters used in turn: rows that hit the same cell again and again do not wait for each other's store
    count = np.zeros((4, out.shape[0]), np.int32)
    a, b, c, d = count[0], count[1], count[2], count[3]
    even = n & ~3
    for i in range(0, even, 4):
        a[min(cells[i], top)] += 1
        b[min(cells[i + 1], top)] += 1
        c[min(cells[i + 2], top)] += 1
        d[min(cells[i + 3], top)] += 1
    for i in range(even, n):
        a[min(cells[i], top)] += 1
    for k in range(out.shape[0]):
        out[k] += np.int64(a[k]) + b[k] + c[k] + d[k]


@kernel
def _add_weighted_cells(
    cells: NDArray[Any],  # IN (n,)
    weight: NDArray[np.int32],  # IN (n,)
    out: NDArray[np.int64],  # OUT (n_cells,), added to
) -> None:
    n, top = cells.shape[0], out.shape[0] - 1
    total = np.zeros((2, out.shape[0]), np.int64)
    a, b = total[0], total[1]
    even = n & ~1
    for i in range(0, even, 2):
        a[min(cells[i], top)] += weight[i]
        b[min(cells[i + 1], top)] += weight[i + 1]
    for i in range(even, n):
        a[min(cells[i], top)] += weight[i]
    for k in range(out.shape[0]):
        out[k] += a[k] + b[k]


def add_cells(
    cells: NDArray[Any], weight: NDArray[np.int32] | None, out: NDArray[np.int64]
) -> None:
    """Count the rows, or add their weights, in the cells that they fall in.

    Parameters
    ----------
    cells : (n_rows,) uint8 or uint16
        Below ``len(out)``; a larger one would count in the last cell.
    weight : (n_rows,) int32, or None
        Weight steps; None counts rows.
    out : (n_cells,) int64
        Added to in place.

    Raises
    ------
    ValueError
        If a dtype, layout or length is wrong; never because of a value.

    Privacy
    -------
    Private side. One row changes one cell by its weight.
    """
    same_rows(cells=cells, weight=weight)
    dtype = np.uint8 if cells.dtype == np.uint8 else np.uint16
    cells = readable("cells", cells, dtype, 1)
    writable("out", out, np.int64, 1)
    if len(out) == 0:
        raise ValueError("out is empty. Every feature has at least one cell.")
    if weight is None:
        _add_cells(cells, out)
    else:
        _add_weighted_cells(cells, readable("weight", weight, np.int32, 1), out)


@kernel
def _add_columns(
    cells: NDArray[np.uint16],  # IN (n_columns, n)
    offset: NDArray[np.int64],  # IN (n_columns + 1,)
    out: NDArray[np.int64],  # OUT (>= offset[-1],), added to
) -> None:
    for j in range(cells.shape[0]):
        _add_cells(cells[j], out[offset[j] : offset[j + 1]])


def add_columns(
    cells: NDArray[np.uint16],
    weight: NDArray[np.int32] | None,
    offset: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Count the rows, or add their weights, in the cells of several columns.

    Parameters
    ----------
    cells : (n_columns, n_rows) uint16
    weight : (n_rows,) int32, or None
        As in `add_cells`.
    offset : (n_columns + 1,) int64, increasing
        Where each column's cells start in ``out``, and where they end.
    out : (n_cells,) int64
        Added to in place.

    Raises
    ------
    ValueError
        If a dtype, layout or length is wrong; never because of a value.

    Privacy
    -------
    Private side. One row changes one cell of each column by its weight.
    """
    if weight is not None:
        for j, column in enumerate(cells):
            add_cells(column, weight, out[offset[j] : offset[j + 1]])
        return
    cells, offset = readable("cells", cells, np.uint16, 2), readable("offset", offset, np.int64, 1)
    if len(offset) != len(cells) + 1 or np.diff(offset, prepend=0).min() < 0:
        raise ValueError("offset must say where each column's cells start, and where they end.")
    if np.diff(offset).min(initial=1) < 1 or offset[-1] > len(out):
        raise ValueError("out is too short. Every column has at least one cell.")
    _add_columns(cells, offset, writable("out", out, np.int64, 1))
