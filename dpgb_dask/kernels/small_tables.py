"""Tables of at most 64 entries, in registers: AVX-512 looks the entries of 16 rows up by one or two instructions.

Elsewhere tables are joined, so that a row looks up one entry for several (`predict`).
"""

from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dpgb_dask.kernels import AVX512, inner

ROWS = 2048  # to which all tables are added in turn: their scores stay in L1
LANES = 16  # numbers of a register
ENTRIES = 2 * LANES  # of a table that one instruction looks up
MOST_ENTRIES = 2 * ENTRIES
FOUR = 4  # tables that are added in one loop
_cgutils: Any = cgutils  # which has no types


def small_zeros(n_scores: int, n_tables: int, largest: int) -> NDArray[np.int32]:
    """Return zeros to write tables of at most ``largest`` entries to: (n_scores, 4 k >= n_tables, 32 or 64) int32."""
    size = ENTRIES if largest <= ENTRIES else MOST_ENTRIES
    return np.zeros((n_scores, -(-n_tables // FOUR) * FOUR, size), np.int32)


def _four_at_once(
    _: Any, codes: Any, start: Any, column: Any, table: Any, first: Any, score: Any
) -> Any:
    """Return how Numba types and compiles `_add_four`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        code, order, entries, scores = (
            context.make_array(kinds[k])(context, builder, arguments[k]) for k in (0, 2, 3, 5)
        )
        row, at_table = (context.cast(builder, arguments[k], kinds[k], types.intp) for k in (1, 4))
        _, stride = _cgutils.unpack_tuple(builder, code.shape)
        _, size = _cgutils.unpack_tuple(builder, entries.shape)
        (n,) = _cgutils.unpack_tuple(builder, scores.shape)
        whole = builder.and_(n, n.type(-LANES))
        words, bytes_ = (ir.VectorType(ir.IntType(bits), LANES) for bits in (32, 8))
        few = builder.icmp_signed("==", size, size.type(ENTRIES))
        for n_entries, wanted in ((ENTRIES, few), (MOST_ENTRIES, builder.not_(few))):
            with builder.if_then(wanted):
                columns, tables = [], []
                for t in range(FOUR):
                    own = builder.add(at_table, n.type(t))
                    column_at = builder.load(builder.gep(order.data, [own]))
                    begin = builder.add(builder.mul(column_at, stride), row)
                    columns.append(builder.gep(code.data, [begin]))
                    data = builder.gep(entries.data, [builder.mul(own, size)])
                    places = range(0, n_entries, LANES)
                    tables.append([_load(builder, data, n.type(k), words) for k in places])
                step = n.type(LANES)
                with _cgutils.for_range_slice(builder, n.type(0), whole, step) as (at, _):
                    total = _load(builder, scores.data, at, words)
                    for data, parts in zip(columns, tables, strict=True):
                        index = builder.zext(_load(builder, data, at, bytes_), words)
                        total = builder.add(total, _look_up(builder, parts, index))
                    place = builder.bitcast(builder.gep(scores.data, [at]), words.as_pointer())
                    builder.store(total, place, align=4)
        return whole

    return types.intp(codes, start, column, table, first, score), build


def _load(builder: Any, data: Any, index: Any, vector: Any) -> Any:
    place = builder.bitcast(builder.gep(data, [index]), vector.as_pointer())
    return builder.load(place, align=vector.element.width // 8)


def _look_up(builder: Any, parts: list[Any], code: Any) -> Any:
    """Return the entries of codes, from 2 or 4 registers; a permutation ignores all but the lowest five bits."""
    words = code.type
    last = ir.Constant(words, [LANES * len(parts) - 1] * LANES)
    code = builder.select(builder.icmp_unsigned("<", code, last), code, last)
    kind = ir.FunctionType(words, [words, words, words])
    permute = _cgutils.get_or_insert_function(
        builder.module, kind, "llvm.x86.avx512.vpermi2var.d.512"
    )
    found = [builder.call(permute, [parts[k], code, parts[k + 1]]) for k in range(0, len(parts), 2)]
    if len(found) == 1:
        return found[0]
    bit = builder.and_(code, ir.Constant(words, [ENTRIES] * LANES))
    upper = builder.icmp_unsigned("!=", bit, ir.Constant(words, [0] * LANES))
    return builder.select(upper, found[1], found[0])


# Add the entries of four tables, from the ``first`` on, to rows that fill registers, and return how many these are.
# codes (n_columns, >= n rows from ``start`` on) uint8, column (n_tables,) int64, table (n_tables, 32 or 64) int32,
# score (n,) int32. All are C-contiguous; nothing is checked
_add_four = cast(Any, intrinsic(_four_at_once))


@inner
def add_small_tables(
    codes: NDArray[np.uint8],  # IN (n_columns, >= n rows)
    lo: int | np.int64,
    column: NDArray[np.int64],  # IN (4 k,), of each table
    table: NDArray[np.int32],  # IN (4 k, 32 or 64), as of `small_zeros`
    score: NDArray[np.int32],  # OUT (rows from lo on,), added to
) -> None:
    """Add the entries of some columns of codes to the scores of rows; a code beyond its table takes the last entry."""
    last = np.uint8(table.shape[1] - 1)
    for first in range(0, score.shape[0], ROWS):
        block, start = score[first : first + ROWS], lo + first
        for t in range(0, column.shape[0], FOUR):
            done = _add_four(codes, start, column, table, t, block) if AVX512 else 0
            for own in range(t, t + FOUR):
                for i in range(done, block.shape[0]):
                    block[i] += table[own, min(codes[column[own], start + i], last)]
