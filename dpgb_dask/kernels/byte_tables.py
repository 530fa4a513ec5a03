"""Tables of bytes in registers, where AVX-512 looks up those of 64 rows by one or two instructions; maps, and scores.

To add tables to scores, entries are taken apart into planes: the lowest bytes of all, the second lowest, … A plane of
256 entries fills four registers. Bytes are added up in words of 16 bits, of which a register holds half as many; as
words, the bytes that were looked up for rows 0, 1, 2, … are

    found             row 0 + 2⁸ · row 1    row 2 + 2⁸ · row 3    …
    found >> 8        row 1                 row 3                 …

Both are added up for all tables, the first modulo 2¹⁶. The second is the sums of odd rows; the first, less 2⁸ times the
second, those of even rows. They are added to the scores in the end, times 2⁸ᵖ where they are of plane p. Without such
registers tables are joined, so that a row looks up one entry for several (`predict`).
"""

from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dpgb_dask.kernels import AVX512_VBMI, inner, readable

BYTES = 64  # of a register
REGISTERS = 2  # of rows that are looked up at once: planes are loaded once for both
TWO = 2  # planes that are looked up at once: codes are loaded once for both
PLANE_SIZES = (BYTES, 2 * BYTES, 4 * BYTES)
MOST_TABLES = 257  # whose largest bytes add up to 16 bits
_cgutils: Any = cgutils  # which has no types
_CODES = ir.VectorType(ir.IntType(8), BYTES)  # of 64 rows; or bytes that were looked up for them
_SUMS = ir.VectorType(ir.IntType(16), BYTES // 2)  # of every other row
_SCORES = ir.VectorType(ir.IntType(32), BYTES)  # of 64 rows, in four registers


def planes_of(
    entries: NDArray[np.int32], size: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the planes of tables, and the sums of their least entries, which are left out of them.

    Parameters
    ----------
    entries : (n_scores, n) int32
        Of all tables, one after the other.
    size : (n_tables,) int64
        Entries of each, 1 to 256; the last is repeated to the end of the planes.

    Returns
    -------
    planes : (n_scores, n_tables, 2 or 4, 64, 128 or 256) uint8
        As few as hold all entries.
    least : (n_scores,) int32
        Modulo 2³².
    """
    longest = next(own for own in PLANE_SIZES if size.max(initial=0) <= own)
    first = np.cumsum(size) - size
    tables = entries[:, np.minimum(np.arange(longest), size[:, None] - 1) + first[:, None]]
    low = tables.min(axis=2, keepdims=True)
    above = np.ascontiguousarray(tables - low, "<i4").view("<u4")  # exact, as int32 wraps around
    n_planes = TWO if above.max(initial=0) < 1 << 8 * TWO else 2 * TWO
    planes = np.moveaxis(above.view(np.uint8).reshape(*above.shape, 4)[..., :n_planes], 3, 2)
    least = low.sum(axis=(1, 2), dtype=np.int64).astype(np.int32)
    return readable("planes", np.ascontiguousarray(planes), np.uint8, 4), least


def _in_registers(_: Any, codes: Any, lo: Any, column: Any, planes: Any, score: Any) -> Any:
    """Return how Numba types and compiles `_add_whole`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        code, order, byte, out = (
            context.make_array(kinds[k])(context, builder, arguments[k]) for k in (0, 2, 3, 4)
        )
        first = context.cast(builder, arguments[1], kinds[1], types.intp)
        _, stride = _cgutils.unpack_tuple(builder, code.shape)
        n_tables, n_planes, size = _cgutils.unpack_tuple(builder, byte.shape)
        (n,) = _cgutils.unpack_tuple(builder, out.shape)
        zero = n.type(0)
        # rows that fill all registers of a loop, and that fill one
        many, whole = (builder.and_(n, n.type(-BYTES * k)) for k in (REGISTERS, 1))
        # LLVM keeps them in registers; two for each plane and register of rows
        memory = [_cgutils.alloca_once(builder, _SUMS) for _ in range(2 * TWO * REGISTERS)]

        def add(own_size: int, at: Any, plane: Any, n_registers: int) -> None:
            """Add two planes of all tables, from ``plane`` on, to the scores of registers of rows, from ``at`` on."""
            each = [(p, k) for p in range(TWO) for k in range(n_registers)]
            sums = {own: memory[2 * j : 2 * j + 2] for j, own in enumerate(each)}
            for place in memory[: 2 * len(each)]:
                builder.store(ir.Constant(_SUMS, [0] * _SUMS.count), place)
            with _cgutils.for_range(builder, n_tables) as loop:
                row = builder.add(builder.mul(loop.index, n_planes), plane)
                data = builder.gep(byte.data, [builder.mul(row, size)])
                registers = range(0, TWO * own_size, BYTES)  # the two planes lie side by side
                parts = [_load(builder, data, k, _CODES) for k in registers]
                of_table = builder.load(builder.gep(order.data, [loop.index]))
                begin = builder.add(builder.mul(of_table, stride), builder.add(first, at))
                data = builder.gep(code.data, [begin])
                rows = [
                    _within(builder, _load(builder, data, k * BYTES, _CODES), own_size)
                    for k in range(n_registers)
                ]
                for p, k in each:
                    of_plane = parts[p * len(parts) // TWO : (p + 1) * len(parts) // TWO]
                    found = _look_up(builder, of_plane, rows[k])
                    for own, place in zip(_two_rows(builder, found), sums[p, k], strict=True):
                        builder.store(builder.add(builder.load(place), own), place)
            to = builder.gep(out.data, [at])
            for k in range(n_registers):
                total = _load(builder, to, k * BYTES, _SCORES)
                for p in range(TWO):
                    bits = builder.mul(builder.add(plane, n.type(p)), n.type(8))
                    shift = _all(builder, builder.trunc(bits, ir.IntType(32)))
                    both, odd = (builder.load(place) for place in sums[p, k])
                    total = builder.add(total, builder.shl(_beside(builder, both, odd), shift))
                place = builder.gep(to, [ir.Constant(ir.IntType(64), k * BYTES)])
                builder.store(total, builder.bitcast(place, _SCORES.as_pointer()), align=4)

        # LLVM must know how many registers a plane has: there is a loop for each size
        for own_size in PLANE_SIZES:
            with builder.if_then(builder.icmp_signed("==", size, n.type(own_size))):
                for start, stop, k in ((zero, many, REGISTERS), (many, whole, 1)):
                    step = n.type(k * BYTES)
                    with (
                        _cgutils.for_range_slice(builder, start, stop, step) as (at, _),
                        _cgutils.for_range_slice(builder, zero, n_planes, n.type(TWO)) as (p, _),
                    ):
                        add(own_size, at, p, k)
        return whole

    return types.intp(codes, lo, column, planes, score), build


def _load(builder: Any, data: Any, index: int, vector: Any) -> Any:
    """Return a vector that begins with some element of an array, wherever this lies."""
    place = builder.gep(data, [ir.Constant(ir.IntType(64), index)])
    place = builder.bitcast(place, vector.as_pointer())
    return builder.load(place, align=vector.element.width // 8)


def _within(builder: Any, code: Any, size: int) -> Any:
    """Return codes, of which those beyond a plane are its last one."""
    last = ir.Constant(_CODES, [size - 1] * BYTES)
    return builder.select(builder.icmp_unsigned("<", code, last), code, last)


def _look_up(builder: Any, parts: list[Any], code: Any) -> Any:
    """Return the bytes of codes, from 1, 2 or 4 registers."""
    if len(parts) == 1:
        return _call(builder, "permvar", parts[0], code)
    found = [_from_two(builder, parts[k : k + 2], code) for k in range(0, len(parts), 2)]
    if len(found) == 1:
        return found[0]
    upper = builder.icmp_signed("<", code, ir.Constant(_CODES, [0] * BYTES))
    return builder.select(upper, found[1], found[0])


def _from_two(builder: Any, parts: list[Any], code: Any) -> Any:
    """Return the bytes of codes modulo 128."""
    return _call(builder, "vpermi2var", parts[0], code, parts[1])


def _call(builder: Any, name: str, *vectors: Any) -> Any:
    kind = ir.FunctionType(_CODES, [_CODES] * len(vectors))
    name = f"llvm.x86.avx512.{name}.qi.512"
    return builder.call(_cgutils.get_or_insert_function(builder.module, kind, name), vectors)


def _two_rows(builder: Any, found: Any) -> tuple[Any, Any]:
    """Return the bytes of two rows as one number of 16 bits, and the second of them alone."""
    words = builder.bitcast(found, _SUMS)
    return words, builder.lshr(words, ir.Constant(_SUMS, [8] * _SUMS.count))


def _beside(builder: Any, both: Any, odd: Any) -> Any:
    """Return sums in the order of rows, 32 bits each, from those of `_two_rows`, of which the first are modulo 2¹⁶."""
    # exact, as the sums of at most `MOST_TABLES` bytes have 16 bits
    even = builder.sub(both, builder.shl(odd, ir.Constant(_SUMS, [8] * _SUMS.count)))
    order = [k // 2 + k % 2 * _SUMS.count for k in range(BYTES)]
    mask = ir.Constant(ir.VectorType(ir.IntType(32), BYTES), order)
    return builder.zext(builder.shuffle_vector(even, odd, mask), _SCORES)


def _all(builder: Any, number: Any) -> Any:
    """Return a number in all places of a vector."""
    one = builder.insert_element(ir.Constant(_SCORES, ir.Undefined), number, ir.IntType(32)(0))
    return builder.shuffle_vector(one, one, ir.Constant(_SCORES, [0] * BYTES))


# Add the bytes of all planes to rows that fill registers, and return how many rows these are: arguments as of
# `add_planes`, but at most `MOST_TABLES` tables. All arrays are C-contiguous; nothing is checked. Numba's own loops
# would look up byte by byte
_add_whole = cast(Any, intrinsic(_in_registers))


def _map_in_registers(_: Any, code: Any, map_: Any, out: Any) -> Any:
    """Return how Numba types and compiles `_map_whole`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, entries, found = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        (n,) = _cgutils.unpack_tuple(builder, found.shape)
        whole, step = builder.and_(n, n.type(-BYTES)), n.type(BYTES)
        parts = [_load(builder, entries.data, k, _CODES) for k in range(0, PLANE_SIZES[-1], BYTES)]
        with _cgutils.for_range_slice(builder, n.type(0), whole, step) as (at, _):
            own = _load(builder, builder.gep(codes.data, [at]), 0, _CODES)
            place = builder.bitcast(builder.gep(found.data, [at]), _CODES.as_pointer())
            builder.store(_look_up(builder, parts, own), place, align=1)
        return whole

    return types.intp(code, map_, out), build


# Write the entries of codes, as many as fill registers, and return how many these are: arguments as of `look_up`
_map_whole = cast(Any, intrinsic(_map_in_registers))


@inner
def look_up(
    codes: NDArray[np.uint8],  # IN (>= n,)
    map_: NDArray[np.uint8],  # IN (256,)
    out: NDArray[np.uint8],  # OUT (n,)
) -> None:
    """Write the entry of each code."""
    done = _map_whole(codes, map_, out) if AVX512_VBMI else 0
    for i in range(done, out.shape[0]):
        out[i] = map_[codes[i]]


@inner
def add_planes(
    codes: NDArray[np.uint8],  # IN (n_columns, >= n rows from ``lo`` on)
    lo: int | np.int64,
    column: NDArray[np.int64],  # IN (n_tables,), of each table
    planes: NDArray[np.uint8],  # IN (n_tables, n_planes, size), from `planes_of`
    least: np.int32,  # the sum of the tables' least entries
    score: NDArray[np.int32],  # OUT (n,), added to
) -> None:
    """Add the entries of tables; a code beyond its table takes the last one."""
    n_tables, n_planes, size = planes.shape
    n, last, done = score.shape[0], np.uint8(size - 1), 0
    for i in range(n):
        score[i] += least
    if AVX512_VBMI:
        for t in range(0, n_tables, MOST_TABLES):
            some = slice(t, min(n_tables, t + MOST_TABLES))
            done = _add_whole(codes, lo, column[some], planes[some], score)
    for t in range(n_tables):
        for i in range(done, n):
            code = min(codes[column[t], lo + i], last)
            for p in range(n_planes):
                score[i] += np.int32(planes[t, p, code]) << np.int32(8 * p)
