"""Whole numbers made small for messages: tables as what they differ from those before, partitions as runs.

They are made again by integers alone: on any machine, to the bit, as they were.
"""

import zlib
from collections.abc import Sequence
from itertools import accumulate, compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.frozen import pieces

ONE = 64  # multiples of the lines before are whole numbers of 64ths
MOST = np.iinfo(np.int16).max
WORD = 64  # bits
# numbers of tables that are not packed, which would take longer than the rest of a round in which one table changes
FEW = 256


class PackedLines(NamedTuple):
    """Lines of numbers: differences of neighbours, less a multiple of those in the line before.

    What is left goes on from neighbour to neighbour, of which some halves are taken off. The lowest bits
    are noise then, which nothing makes shorter: they stand apart. The others are bytes, few of which are frequent.

    Parameters
    ----------
    multiple : bytes, int16 per line
        Of the differences in the line before, in 64ths.
    halves : bytes, uint8 per line
        How many halves of what is left at the neighbour before are taken off: 0, 1 or 2.
    n_low : bytes, uint8 per line
        How many of its lowest bits stand apart.
    low : bytes
        All lowest bits, all second lowest ones, …
    high : tuple of bytes
        The other bits: all lowest bytes, all second lowest ones, …, each compressed.
    """

    multiple: bytes
    halves: bytes
    n_low: bytes
    low: bytes
    high: tuple[bytes, ...]


def pack_lines(
    values: NDArray[np.int32], sizes: NDArray[np.int64], before: NDArray[np.int32] | None = None
) -> PackedLines:
    """Pack lines, of which none is empty and which stand one after the other.

    Parameters
    ----------
    values : (n,) int32
    sizes : (n_lines,) int64
        Their sum is n.
    before : (n,) int32, or None
        Lines that are known where these are unpacked.
    """
    starts = np.cumsum(sizes) - sizes
    left = _steps(values, starts)
    multiple = np.zeros(len(sizes), np.int16)
    if before is not None:
        then = _steps(before, starts)
        along = np.add.reduceat(left * then.astype(np.float64), starts)
        squares = np.add.reduceat(then * then.astype(np.float64), starts)
        multiple = np.rint(ONE * along / np.maximum(squares, 1)).clip(-MOST, MOST).astype(np.int16)
        left -= _scaled(then, multiple, sizes)
    rest = [np.add.reduceat(np.abs(_less(left, starts, few)), starts) for few in (0, 1, 2)]
    halves = np.argmin(rest, axis=0)
    left = _less(left, starts, np.repeat(halves, sizes))
    left = (left << 1) ^ (left >> WORD - 1)  # the sign becomes the lowest bit
    eighth = np.add.reduceat(left, starts) // (8 * sizes)
    n_low = np.array([int(mean).bit_length() for mean in eighth], np.uint8)
    shift = np.repeat(n_low, sizes)
    low = [(left[shift > bit] >> bit & 1).astype(bool) for bit in range(n_low.max())]
    high = left >> shift
    n_planes = -(-int(high.max()).bit_length() // 8)
    planes = high.astype("<i8").view(np.uint8).reshape(-1, WORD // 8).T[:n_planes]
    return PackedLines(
        multiple.astype("<i2").tobytes(),
        halves.astype(np.uint8).tobytes(),
        n_low.tobytes(),
        np.packbits(np.concatenate(low)).tobytes() if low else b"",
        tuple(shortest(plane.tobytes()) for plane in planes),
    )


def unpack_lines(
    packed: PackedLines, sizes: NDArray[np.int64], before: NDArray[np.int32] | None = None
) -> NDArray[np.int32]:
    """Return the values that `pack_lines` was given, from the same sizes and lines before."""
    starts = np.cumsum(sizes) - sizes
    n_low = np.frombuffer(packed.n_low, np.uint8)
    shift = np.repeat(n_low, sizes)
    left = np.zeros(len(shift), np.int64)
    for place, plane in enumerate(packed.high):
        byte = np.frombuffer(zlib.decompress(plane), np.uint8)
        left |= byte.astype(np.int64) << 8 * place
    left <<= shift
    having = [shift > bit for bit in range(n_low.max())]
    counts = [int(np.count_nonzero(own)) for own in having]
    low = np.unpackbits(np.frombuffer(packed.low, np.uint8), count=sum(counts))
    for bit, (own, part) in enumerate(zip(having, pieces(low, counts), strict=True)):
        left[own] |= part.astype(np.int64) << bit
    left = (left >> 1) ^ -(left & 1)
    halves = np.frombuffer(packed.halves, np.uint8)
    if (halves == 2).any():
        left = np.where(np.repeat(halves == 2, sizes), _sums(left, starts, sizes), left)
    for line in np.flatnonzero(halves == 1):
        row = left[starts[line] : starts[line] + sizes[line]]
        row[:] = list(accumulate(row.tolist(), lambda last, step: step + (last >> 1)))
    if before is not None:
        multiple = np.frombuffer(packed.multiple, "<i2").astype(np.int16)
        left += _scaled(_steps(before, starts), multiple, sizes)
    return _sums(left, starts, sizes).astype(np.int32)


def _steps(values: NDArray[np.int32], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the differences of neighbours; a line begins with its first value."""
    return _less(values.astype(np.int64), starts, 2)


def _less(
    left: NDArray[np.int64], starts: NDArray[np.int64], halves: int | NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return numbers less some halves of the neighbour before, rounded down, in the same line."""
    last = np.concatenate([left[:1], left[:-1]])
    last[starts] = 0
    return left - (halves * last >> 1)


def _sums(
    steps: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the lines of which these are the differences."""
    sums = np.cumsum(steps)
    return sums - np.repeat(sums[starts] - steps[starts], sizes)


def _scaled(
    steps: NDArray[np.int64], multiple: NDArray[np.int16], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    return (np.repeat(multiple.astype(np.int64), sizes) * steps + ONE // 2) // ONE


def shortest(content: bytes) -> bytes:
    """Compress bytes, by what recurs in them or by how often each occurs alone."""
    recurring = zlib.compress(content)
    if 8 * len(recurring) < len(content):  # codes of single bytes take a bit each, or more
        return recurring
    by_counts = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    return min(recurring, by_counts.compress(content) + by_counts.flush(), key=len)


class PackedTables(NamedTuple):
    """Tables, (n_bins, n_scores) int32 each, as the lines of their scores.

    Parameters
    ----------
    changed : bytes, one bit per table
        Whether it is another array than the table before; none if there were no tables before.
    n_bins : bytes, uint8 per table
        Less 1; none if there were tables before, whose bins they have.
    n_scores : int
    lines : PackedLines or bytes
        Of all tables, or of those that changed; as they are, int32, if they have at most `FEW` numbers.
    """

    changed: bytes
    n_bins: bytes
    n_scores: int
    lines: PackedLines | bytes


def pack_tables(
    tables: Sequence[NDArray[np.int32]], before: Sequence[NDArray[np.int32]] | None = None
) -> PackedTables:
    """Pack tables, at least one, of 1 to 256 bins and the same scores.

    Those before have the same shapes. A table that is the same array as the one before takes a bit.

    100 tables of 182 bins, 73 KB as they are, take 15 to 23 KB where noise moves them, and 4 to 9 where they mostly go
    on as they went.
    """
    if before is None:
        return PackedTables(b"", _n_bins(tables), tables[0].shape[1], _lines_of(tables))
    changed = [table is not old for table, old in zip(tables, before, strict=True)]
    lines = _lines_of([*compress(tables, changed)], [*compress(before, changed)])
    return PackedTables(np.packbits(changed).tobytes(), b"", tables[0].shape[1], lines)


def _lines_of(
    tables: Sequence[NDArray[np.int32]], before: Sequence[NDArray[np.int32]] | None = None
) -> PackedLines | bytes:
    values = _joined(tables)
    if len(values) <= FEW:
        return values.astype("<i4").tobytes()
    known = None if before is None else _joined(before)
    return pack_lines(values, _sizes(_n_bins(tables), tables[0].shape[1]), known)


def unpack_tables(
    packed: PackedTables, before: Sequence[NDArray[np.int32]] | None
) -> tuple[NDArray[np.int32], ...]:
    """Return the tables that `pack_tables` was given, beside the same ones before."""
    if before is None:
        return _tables_of(packed, packed.n_bins)
    bits = np.frombuffer(packed.changed, np.uint8)
    changed = np.unpackbits(bits, count=len(before)).tolist()
    known = [*compress(before, changed)]
    new = iter(_tables_of(packed, _n_bins(known), known))
    return tuple(
        next(new) if other else table for table, other in zip(before, changed, strict=True)
    )


def _tables_of(
    packed: PackedTables, n_bins: bytes, before: Sequence[NDArray[np.int32]] | None = None
) -> tuple[NDArray[np.int32], ...]:
    if isinstance(packed.lines, bytes):
        values = np.frombuffer(packed.lines, "<i4").astype(np.int32)
    else:
        known = None if before is None else _joined(before)
        values = unpack_lines(packed.lines, _sizes(n_bins, packed.n_scores), known)
    tables = (
        part.reshape((-1, packed.n_scores), order="F")
        for part in pieces(values, [packed.n_scores * (last + 1) for last in n_bins])
    )
    return tuple(map(np.ascontiguousarray, tables))


def _n_bins(tables: Sequence[NDArray[np.int32]]) -> bytes:
    return bytes(len(table) - 1 for table in tables)


def _joined(tables: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    columns = [table.ravel(order="F") for table in tables]
    return np.concatenate(columns) if columns else np.empty(0, np.int32)


def _sizes(n_bins: bytes, n_scores: int) -> NDArray[np.int64]:
    return np.repeat(np.frombuffer(n_bins, np.uint8).astype(np.int64) + 1, n_scores)


class PackedPartitions(NamedTuple):
    """Maps of bins to leaves, of which neighbours mostly have the same or one and the next.

    Parameters
    ----------
    ordered : bytes, one bit per map
        Whether its leaves are 0, 1, … from its first bin to its last.
    sizes : bytes, uint8 per map
        Its leaves less 1 if it is ordered, else its bins less 1.
    runs : bytes
        Of ordered maps, the bins of each leaf less 1, compressed.
    others : bytes
        The other maps as they are, compressed.
    """

    ordered: bytes
    sizes: bytes
    runs: bytes
    others: bytes


def pack_partitions(maps: Sequence[NDArray[np.uint8]]) -> PackedPartitions:
    """Pack maps, (1 to 256 bins,) uint8 each."""
    ordered = [m[0] == 0 and bool((np.diff(m) <= 1).all()) for m in maps]
    runs = [np.bincount(m) - 1 for m, fits in zip(maps, ordered, strict=True) if fits]
    others = [m for m, fits in zip(maps, ordered, strict=True) if not fits]
    return PackedPartitions(
        np.packbits(np.array(ordered, bool)).tobytes(),  # of no map, too
        bytes((m[-1] if fits else len(m) - 1) for m, fits in zip(maps, ordered, strict=True)),
        shortest(b"".join(run.astype(np.uint8).tobytes() for run in runs)),
        shortest(b"".join(m.tobytes() for m in others)),
    )


def unpack_partitions(packed: PackedPartitions) -> tuple[NDArray[np.uint8], ...]:
    """Return the maps that `pack_partitions` was given."""
    sizes = np.frombuffer(packed.sizes, np.uint8).astype(np.int64) + 1
    ordered = np.unpackbits(np.frombuffer(packed.ordered, np.uint8), count=len(sizes)).astype(bool)
    runs, others = (
        np.frombuffer(zlib.decompress(part), np.uint8) for part in (packed.runs, packed.others)
    )
    of_runs = iter(pieces(runs.astype(np.int64) + 1, sizes[ordered].tolist()))
    rest = iter(pieces(others, sizes[~ordered].tolist()))
    return tuple(
        np.repeat(np.arange(len(own := next(of_runs)), dtype=np.uint8), own)
        if fits
        else next(rest).copy()
        for fits in ordered
    )
