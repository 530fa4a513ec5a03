"""Leaves of many trees whose nodes share few splits: each split is made once, and the sides of rows are kept as bits.

Bit k of byte p is of row k · (bytes) + p of a block, so that sides are found, and leaves read off them, by whole
registers: with 32 bytes each, a node takes three instructions for 256 rows, where comparing codes takes as many for 32;
with the 64 bytes of AVX-512, one instruction for 512.
Comparing (`route`) is better for a few trees, which share little.
"""

from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dpgb_dask.kernels import AVX512, LINE, inner, kernel, readable
from dpgb_dask.kernels.byte_tables import look_up
from dpgb_dask.kernels.histogram import MAX_CELLS

BYTE_DEPTH = 8  # up to this depth leaf numbers are uint8
BLOCK = 1 << 14  # rows per inner loop: with fewer, the beginnings of loops cost more than L2 spares
MOST_SPLITS = 1 << 11  # whose sides are kept: 4 MB for the rows of a block
PLACES = 4093  # of the hash that splits are looked up by: at least half stay free; a prime
BEGIN = 8192  # the time that a split takes whatever the rows are, in rows whose codes are compared
UNIT = 512 if AVX512 else 256  # rows of a register, and of which a block has some times as many
BITS = 8  # rows in a byte of sides
LOW = 0x0101010101010101  # the lowest bit of each byte of a word
_config: Any = numba.config
_cgutils: Any = cgutils  # which has no types
_WORDS = ir.VectorType(ir.IntType(64), UNIT // 64)


def shared_splits(
    n: int,
    feature: NDArray[np.uint16],
    threshold: NDArray[np.uint8],
    mask_of: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.int64]] | None:
    """Return which of the different splits each node has, and a node of each; None if rows or shared splits are few.

    Parameters
    ----------
    n : int
        Rows.
    feature, threshold, mask_of
        Of trees, as `route.check_trees` returns them.

    Returns
    -------
    number : (n_trees, nodes) int32
    node : (n_splits, 2) int64
        Tree and node.
    """
    if n < UNIT:
        return None
    most = min(3 * feature.size * n // (4 * (n + BEGIN)), MOST_SPLITS)
    number, node = np.empty(feature.shape, np.int32), np.empty((most, 2), np.int64)
    n_splits = number_splits(feature, threshold, mask_of, number, node)
    if n_splits > most:
        return None
    return readable("number", number, np.int32, 2), readable("node", node[:n_splits], np.int64, 2)


@kernel
def number_splits(
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes); 0 where there is a mask
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    number: NDArray[np.int32],  # OUT (n_trees, nodes), which of the splits a node has
    node: NDArray[np.int64],  # OUT (most, 2), tree and node of each split; most <= `MOST_SPLITS`
) -> int:
    """Give each different split of some trees a number; return how many there are, ``most`` + 1 if there are more.

    They are looked up by a hash: if features and masks are many, no memory holds a place for each pair of them.
    """
    split = np.full(PLACES, -1, np.int64)  # whose number is at the same place of ``known``
    known = np.empty(PLACES, np.int32)
    n = 0
    for t in range(feature.shape[0]):
        for j in range(feature.shape[1]):
            mask = np.int64(max(mask_of[t, j], -1) + 1)
            own = (mask << 24) + (np.int64(feature[t, j]) << 8) + np.int64(threshold[t, j])
            place = own % PLACES
            while split[place] != own and split[place] >= 0:
                place = (place + 1) % PLACES
            if split[place] < 0:
                if n == node.shape[0]:
                    return n + 1
                split[place], known[place] = own, n
                node[n, 0], node[n, 1] = t, j
                n += 1
            number[t, j] = known[place]
    return n


def rows_of_block(n: int) -> int:
    """Return how many of n rows, `UNIT` or more, a block has."""
    return min(BLOCK, n // UNIT * UNIT)


@inner
def unit_block(lo: int, n: int, rows: int) -> tuple[int, int]:
    """Return the first row, and that after the last, of the block that begins with row ``lo``.

    Blocks are whole units: of the last one some rows are in the one before.
    """
    hi = min(n, lo + rows)
    return hi - -(-(hi - lo) // UNIT) * UNIT, hi


@inner
def memory_of_sides(n_splits: int, rows: int) -> NDArray[np.uint8]:
    """Return memory for sides, a line longer than they are: else all would compete for the same places of the cache."""
    return np.empty((n_splits, rows // BITS + LINE), np.uint8)


@inner
def _compare(codes: NDArray[np.uint8], t: np.uint8, side: NDArray[np.uint8]) -> None:
    """Write a bit per code; written out, as a shift by a variable is not compiled to SIMD."""
    n = side.shape[0]
    a, b, c, d = codes[:n], codes[n : 2 * n], codes[2 * n : 3 * n], codes[3 * n : 4 * n]
    e, f, g, h = codes[4 * n : 5 * n], codes[5 * n : 6 * n], codes[6 * n : 7 * n], codes[7 * n :]
    some = np.uint8(t < MAX_CELLS - 1)
    # the first code beyond the threshold; with it on the left, a comparison loads its codes by itself. LLVM must not
    # know that it is t + 1, as it would after an early return: it would compare with t again, a tenth slower
    u = np.uint8(t + some)
    for p in range(n):
        ab = np.uint8(u <= a[p]) | np.uint8(np.uint8(u <= b[p]) << 1)
        cd = np.uint8(np.uint8(u <= c[p]) << 2) | np.uint8(np.uint8(u <= d[p]) << 3)
        ef = np.uint8(np.uint8(u <= e[p]) << 4) | np.uint8(np.uint8(u <= f[p]) << 5)
        gh = np.uint8(np.uint8(u <= g[p]) << 6) | np.uint8(np.uint8(u <= h[p]) << 7)
        side[p] = np.uint8(ab | cd) | np.uint8(ef | gh)
    if not some:
        for p in range(n):
            side[p] = 0


@inner
def find_sides(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    lo: int,
    feature: NDArray[np.uint16],  # IN (n_trees, nodes)
    threshold: NDArray[np.uint8],  # IN (n_trees, nodes); 0 where there is a mask
    mask_of: NDArray[np.int32],  # IN (n_trees, nodes)
    masks: NDArray[np.uint8],  # IN (n_masks, 256)
    node: NDArray[np.int64],  # IN (n_splits, 2), tree and node of each
    column: NDArray[np.uint8],  # scratch (rows from lo on,)
    side: NDArray[np.uint8],  # OUT (n_splits, >= rows / 8)
) -> None:
    """Write the side to which each split sends the rows from ``lo`` on: 1 is right."""
    n = column.shape[0]
    for k in range(node.shape[0]):
        t, j = node[k, 0], node[k, 1]
        c, q, own = codes[feature[t, j], lo : lo + n], mask_of[t, j], side[k, : n // BITS]
        if q >= 0:
            look_up(c, masks[q], column)
            _compare(column, threshold[t, j], own)
        else:
            _compare(c, threshold[t, j], own)


def _in_python(
    side: NDArray[np.uint64], number: NDArray[np.int32], leaf: NDArray[np.uint64]
) -> None:
    of_nodes = np.unpackbits(
        side.view(np.uint8)[number, : len(leaf)].reshape(len(number), -1, 1), 2, bitorder="little"
    )
    place = np.zeros(of_nodes.shape[1:], np.intp)
    for _ in range(len(number).bit_length()):
        place = 2 * place + 1 + np.take_along_axis(of_nodes, place[None], 0)[0]
    leaf.view(np.uint8)[:] = (place - len(number)).T.reshape(-1)


def _in_registers(_: Any, side: Any, number: Any, leaf: Any) -> Any:
    """Return how Numba types and compiles `find_leaves_of_sides`; its own loops write what is between to memory."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sides, numbers, leaves = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        stride = _cgutils.unpack_tuple(builder, sides.shape)[1]
        (n_nodes,) = _cgutils.unpack_tuple(builder, numbers.shape)
        (size,) = _cgutils.unpack_tuple(builder, leaves.shape)
        n_words = builder.sdiv(size, size.type(BITS))
        for depth in range(1, BYTE_DEPTH + 1):
            nodes = (1 << depth) - 1
            with builder.if_then(builder.icmp_signed("==", n_nodes, n_nodes.type(nodes))):
                own = []
                for p in range(nodes):
                    k = builder.load(builder.gep(numbers.data, [stride.type(p)]))
                    at = builder.mul(builder.sext(k, stride.type), stride)
                    own.append(builder.gep(sides.data, [at]))
                step = n_words.type(_WORDS.count)
                with _cgutils.for_range_slice(builder, n_words.type(0), n_words, step) as (at, _):
                    bits = _bits_below(builder, own, 0, at)
                    for k in range(BITS):
                        to = builder.add(at, builder.mul(n_words, n_words.type(k)))
                        place = _words_at(builder, leaves.data, to)
                        # leaves of later rows may begin anywhere
                        builder.store(_bytes_of(builder, bits, k), place, align=1)
        return context.get_dummy_value()

    return types.void(side, number, leaf), build


def _words_at(builder: Any, data: Any, index: Any) -> Any:
    return builder.bitcast(builder.gep(data, [index]), _WORDS.as_pointer())


def _bits_below(builder: Any, own: list[Any], node: int, at: Any) -> list[Any]:
    """Return the bits of the leaves' numbers in the subtree of a node, lowest first; the highest is the node's side."""
    side = builder.load(_words_at(builder, own[node], at), align=8)
    if 2 * node + 1 >= len(own):
        return [side]
    left, right = (_bits_below(builder, own, child, at) for child in (2 * node + 1, 2 * node + 2))
    chosen = []
    for a, b in zip(left, right, strict=True):
        chosen.append(builder.xor(a, builder.and_(builder.xor(a, b), side)))
    return [*chosen, side]


def _bytes_of(builder: Any, bits: list[Any], k: int) -> Any:
    """Return numbers, a byte each, from their bits at place k of each byte."""
    number = ir.Constant(_WORDS, [0] * _WORDS.count)
    for h, bit in enumerate(bits):
        shift = ir.Constant(_WORDS, [abs(k - h)] * _WORDS.count)
        moved = builder.lshr(bit, shift) if k > h else builder.shl(bit, shift)
        only = builder.and_(moved, ir.Constant(_WORDS, [LOW << h] * _WORDS.count))
        number = builder.or_(number, only)
    return number


# Write each row's leaf in one tree of 1 to `BYTE_DEPTH` levels: side (n_splits, >= words) uint64; number (nodes,)
# int32, the split of each node in heap order; leaf (8 * words,) uint64, a byte per row. All are C-contiguous, and words
# is a multiple of `UNIT` / 64; nothing is checked
find_leaves_of_sides = _in_python if _config.DISABLE_JIT else cast(Any, intrinsic(_in_registers))
