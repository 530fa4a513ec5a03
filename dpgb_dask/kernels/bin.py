"""From values to codes: the exact number of edges below each value, by table look-up.

Each column has a table: cells, and for each cell the number of edges in earlier cells. The cell of x is read off the
bits of x − pivot: its sign, its exponent and the first digits after it. So cells widen with the distance from the
pivot, and edges that crowd there, as those of a public grid do, have cells of their own. It is monotone in x, rounding
included: an edge in an earlier cell is below x, an edge in a later cell is not, and only the edges in x's own cell have
to be compared. No rounding can change a code, as long as edges and values go through the same arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpgb_dask.kernels import LINE, inner, kernel, readable, writable

COUNTED_BYTES = 136  # 33 float32 or 16 float64 edges: up to this, all are compared, by a SIMD loop
MAX_STEPS = 2  # edges of a cell compared without branches; with more, a binary search comes first
FEW_CELLS = 16  # per edge: with at most so many cells, each should have one edge
MAX_EDGES = 65_534  # of a column: its cells and that of missing values are numbered by uint16
MAX_CELLS = 1 << 15  # of a column; those that its values fall into stay in L1
TILE = 1024  # values of a column that are binned at a time
GROUP = 8  # columns of a row-major matrix that are transposed at a time: a cache line of float64
ROWS = 2 * TILE  # … and rows, whose values stay in the cache from the first columns to the last


@dataclass(frozen=True, eq=False, slots=True)
class EdgeTable:
    """Look-up tables of some columns, made once by `edge_table`; T is the dtype of the values.

    Parameters
    ----------
    edges : (n,) T
        All columns' edges, each column closed by +inf twice.
    cells : (n,) uint16
        All columns' cells: number of edges in earlier cells of the column; the last cell is that of missing values.
    first : (n_columns, 2) int64
        Where a column's edges and cells start.
    size : (n_columns, 3) int64
        Number of edges (-1: skip the column), number of cells (0: compare every edge), most edges in one cell.
    pivot : (n_columns,) T
        Where the cells are smallest.
    scale : (n_columns, 6) int of T's size
        How `_place` reads bits: how many it drops, what the smallest distance then is, the pivot's cell, the last cell
        before that of missing values, the bits of +inf, and all bits but the sign.
    """

    edges: NDArray[Any]
    cells: NDArray[np.uint16]
    first: NDArray[np.int64]
    size: NDArray[np.int64]
    pivot: NDArray[Any]
    scale: NDArray[Any]


@inner
def _place(
    x: NDArray[Any],  # IN (n,)
    pivot: Any,
    scale: NDArray[Any],  # IN (6,)
    distance: NDArray[Any],  # (n,), scratch
    cell: NDArray[Any],  # OUT (n,), the same memory as ``distance``
) -> None:
    """Find the cell of each value, monotone in it; missing values have a cell of their own, the last: SIMD."""
    dropped, smallest, middle, last, infinity, magnitude = scale
    # Numba makes int64 of int32: each step back, and a shift that is known to be short, for registers full of int32
    integer = cell.dtype.type
    dropped &= np.iinfo(cell.dtype).bits - 1
    zero, missing = integer(0), integer(last + 1)
    for i in range(x.shape[0]):
        distance[i] = x[i] - pivot
    for i in range(x.shape[0]):
        bits = cell[i]
        size = integer(bits & magnitude)
        k = max(integer(integer(size >> dropped) - smallest), zero)
        k = integer(middle - k) if bits < zero else integer(middle + k)
        k = min(max(k, zero), last)
        cell[i] = missing if size > infinity else k


@kernel
def _places(
    x: NDArray[Any],  # IN (n,)
    pivot: Any,
    scale: NDArray[Any],  # IN (6,)
    distance: NDArray[Any],
    cell: NDArray[Any],
) -> None:
    """Find the cells of edges, by the arithmetic of values."""
    _place(x, pivot, scale, distance, cell)


def edge_table(edges: Sequence[NDArray[np.float64] | None], dtype: DTypeLike) -> EdgeTable:
    """Make the tables of some columns, for values of one dtype.

    Parameters
    ----------
    edges : sequence of ((n_edges,) float64, increasing, or None)
        None: the column is skipped.
    dtype : float32 or float64
        Of the values. Edges are rounded *down* to it: a float32 lies above an edge if and only if it lies above the
        largest float32 that is not above the edge.
    """
    parts: list[NDArray[Any]] = []
    cells: list[NDArray[np.uint16]] = []
    first = np.zeros((len(edges), 2), np.int64)
    size = np.zeros((len(edges), 3), np.int64)
    pivot = np.zeros(len(edges), dtype)
    scale = np.zeros((len(edges), 6), f"i{pivot.itemsize}")
    n_edges = n_cells = 0
    for j, column in enumerate(edges):
        first[j] = n_edges, n_cells
        if column is None:
            size[j, 0] = -1
            continue
        rounded = _round_down(np.asarray(column, np.float64), dtype)
        size[j, 0] = len(column)
        if rounded[:-1].nbytes > COUNTED_BYTES:
            pivot[j], scale[j], table, most = _cells_of(rounded[: len(column)])
            size[j, 1:] = len(table), most
            cells.append(table)
            n_cells += len(table)
        parts.append(rounded)
        n_edges += len(rounded)
    return EdgeTable(
        np.concatenate([*parts, np.empty(0, dtype)]),
        np.concatenate([*cells, np.empty(0, np.uint16)]),
        first,
        size,
        pivot,
        scale,
    )


def _cells_of(edges: NDArray[Any]) -> tuple[Any, NDArray[Any], NDArray[np.uint16], int]:
    """Return pivot, scale and cells of a column, and the most edges in one cell: few cells that keep that small.

    One edge per cell if few cells allow it: a comparison less takes a fifth off a look-up, and larger tables more.
    """
    integer = np.dtype(f"i{edges.itemsize}")
    finite = edges[np.isfinite(edges)]  # a float32 edge may be rounded down to -inf
    pivot = edges.dtype.type(0) if len(finite) == 0 or finite[0] < 0 < finite[-1] else finite[0]
    sides = 2 if edges[0] < pivot else 1
    infinity, magnitude = np.array(np.inf, edges.dtype).view(integer), np.iinfo(integer).max
    places = np.empty(len(edges), integer)
    nearest = np.sort(np.abs(finite - pivot))
    # a quarter of the edges are in the widest octave
    fewest_digits = max(len(edges).bit_length() - 3, 3)
    for steps, most_cells in ((1, min(FEW_CELLS * len(edges), MAX_CELLS)), (MAX_STEPS, MAX_CELLS)):
        # the nearest edges may share the pivot's cell: in a public grid one is much nearer to 0 than the others
        distances = nearest[steps:]
        distances = distances[distances > 0] if distances.any() else np.ones(1, edges.dtype)
        near, far = (int(bits) for bits in distances[[0, -1]].view(integer))
        digits = fewest_digits
        while True:
            dropped = np.finfo(edges.dtype).nmant - digits
            last = far >> dropped
            n = min(last - (near >> dropped) + 1, most_cells // sides)
            middle = n * (sides - 1)
            scale = np.array([dropped, last - n, middle, middle + n, infinity, magnitude], integer)
            _places(edges, pivot, scale, places.view(edges.dtype), places)
            counts = np.bincount(places, minlength=middle + n + 1)
            digits += 1
            if counts.max() <= steps or 2 * sides * n > most_cells or dropped == 0:
                break
        if counts.max() <= steps:
            break
    cells = np.append(0, np.cumsum(counts))
    cells[-1] = len(edges) + 1
    return pivot, scale, cells.astype(np.uint16), int(counts.max())


def _round_down(edges: NDArray[np.float64], dtype: DTypeLike) -> NDArray[Any]:
    """Return for each edge the largest value of ``dtype`` that is not above it, and +inf twice at the end.

    An edge of -0.0 becomes 0.0: bits tell the two apart, and a value of 0.0 is above neither.
    """
    with np.errstate(over="ignore"):
        rounded = edges.astype(dtype) + 0
    lowered = np.nextafter(rounded, rounded.dtype.type(-np.inf))
    rounded = np.where(rounded > edges, lowered, rounded)
    return np.append(rounded, np.full(2, np.inf, dtype))


@inner
def _count(
    x: NDArray[Any],  # IN (n,)
    edges: NDArray[Any],  # IN (n_edges,)
    out: NDArray[Any],  # OUT (n,)
) -> None:
    """Count the edges below each value, edge by edge: SIMD, for a few edges."""
    missing = edges.shape[0] + 1
    for i in range(x.shape[0]):
        out[i] = missing if np.isnan(x[i]) else 0
    for k in range(edges.shape[0]):
        edge = edges[k]
        for i in range(x.shape[0]):
            out[i] += x[i] > edge


@inner
def _look_up(
    x: NDArray[Any],  # IN (n,)
    edges: NDArray[Any],  # IN (n_edges + 2,), the last two +inf
    cells: NDArray[np.uint16],  # IN (n_cells,)
    cell: NDArray[Any],  # IN (n,)
    steps: int,  # at most `MAX_STEPS`
    out: NDArray[Any],  # OUT (n,)
) -> None:
    """Look up the first possible code and compare the edges of one cell, of which there are ``steps``, branch-free."""
    if steps == 1:
        for i in range(x.shape[0]):
            k = np.uint32(cells[np.uint32(cell[i])])
            out[i] = k + np.uint32(edges[k] < x[i])
        return
    for i in range(x.shape[0]):
        k = np.uint32(cells[np.uint32(cell[i])])
        for _ in range(MAX_STEPS):
            # stops by itself: edges increase, the last are +inf, and NaN is above none
            k += np.uint32(edges[k] < x[i])
        out[i] = k


@inner
def _search(
    x: NDArray[Any],  # IN (n,)
    edges: NDArray[Any],  # IN (n_edges + 2,), the last two +inf
    cells: NDArray[np.uint16],  # IN (n_cells,)
    cell: NDArray[Any],  # IN (n,)
    out: NDArray[Any],  # OUT (n,)
) -> None:
    """Look up the first possible code, then search the edges of the cell: for cells with many edges, which are rare."""
    last = np.uint32(cells.shape[0] - 2)
    end = np.uint32(edges.shape[0] - 2)
    for i in range(x.shape[0]):
        v, q = x[i], np.uint32(cell[i])
        k = np.uint32(cells[q])
        stop = np.uint32(cells[q + np.uint32(1)]) if q < last else max(k, end)
        while stop - k > MAX_STEPS:
            middle = (k + stop) >> np.uint32(1)
            if edges[middle] < v:
                k = middle + np.uint32(1)
            else:
                stop = middle
        for _ in range(MAX_STEPS):
            k += np.uint32(edges[k] < v)
        out[i] = k


@inner
def _bin(
    x: NDArray[Any],  # IN (n,)
    j: int,  # column of the table
    edges: NDArray[Any],
    cells: NDArray[np.uint16],
    first: NDArray[np.int64],
    size: NDArray[np.int64],
    pivot: NDArray[Any],
    scale: NDArray[Any],
    distance: NDArray[Any],  # (n,), scratch
    cell: NDArray[Any],  # (n,), the same memory
    out: NDArray[np.uint16],  # OUT (n,)
) -> None:
    """Bin a tile of one column by the fastest of the exact ways.

    All callers copy into contiguous tiles, so that this function, most of the code, is compiled once per dtype.
    """
    n_edges, n_cells, steps = size[j, 0], size[j, 1], size[j, 2]
    e = edges[first[j, 0] : first[j, 0] + n_edges + 2]
    if n_cells == 0:
        _count(x, e[:n_edges], out)
        return
    c = cells[first[j, 1] : first[j, 1] + n_cells]
    _place(x, pivot[j], scale[j], distance, cell)
    if steps <= MAX_STEPS:
        _look_up(x, e, c, cell, steps, out)
    else:
        _search(x, e, c, cell, out)


@inner
def _copy(a: NDArray[Any], out: NDArray[Any]) -> None:
    for i in range(out.shape[0]):
        out[i] = a[i]


@kernel
def _bin_columns(
    x: NDArray[Any],  # IN (n_columns, n)
    edges: NDArray[Any],
    cells: NDArray[np.uint16],
    first: NDArray[np.int64],
    size: NDArray[np.int64],
    pivot: NDArray[Any],
    scale: NDArray[Any],
    codes: NDArray[np.uint8],  # OUT (n_columns, n), or without rows
    wide: NDArray[np.uint16],  # OUT (n_columns, n), or without rows: one of the two is written
) -> None:
    """Bin a column-major block. Compiled once for codes and for cells, as all but the copy is the same."""
    n = x.shape[1]
    values, tile = np.empty(TILE, x.dtype), np.empty(TILE, np.uint16)
    cell = np.empty(TILE, scale.dtype)
    distance = cell.view(edges.dtype)
    for j in range(x.shape[0]):
        if size[j, 0] >= 0:
            for lo in range(0, n, TILE):
                hi = min(n, lo + TILE)
                v = values[: hi - lo]
                c = wide[j, lo:hi] if wide.shape[0] > 0 else tile[: hi - lo]
                _copy(x[j, lo:hi], v)
                _bin(v, j, edges, cells, first, size, pivot, scale, distance, cell, c)
                if wide.shape[0] == 0:
                    _copy(c, codes[j, lo:hi])


@inner
def _fetch(
    rows: NDArray[Any],  # IN (n, n_columns)
    first: int,
    last: int,
    out: NDArray[Any],  # OUT (1,): else nothing would be read
) -> None:
    """Read every line of the cache that some rows lie in, one after the other, which memory is fastest at."""
    line = LINE // rows.itemsize
    most = rows.dtype.type(0)
    for i in range(first, last):
        for j in range(0, rows.shape[1], line):
            most = max(most, rows[i, j])
    out[0] = most


@inner
def _turn(
    rows: NDArray[Any],  # IN (n, n_columns)
    start: int,
    columns: NDArray[Any],  # OUT (GROUP, n), or fewer columns
) -> None:
    """Copy neighbouring columns of a row-major tile; written out, as loops over columns are compiled to gathers."""
    if columns.shape[0] == GROUP:
        a, b, c, d = columns[0], columns[1], columns[2], columns[3]
        e, f, g, h = columns[4], columns[5], columns[6], columns[7]
        for i in range(rows.shape[0]):
            row = rows[i, start : start + GROUP]
            a[i], b[i], c[i], d[i] = row[0], row[1], row[2], row[3]
            e[i], f[i], g[i], h[i] = row[4], row[5], row[6], row[7]
    else:
        for j in range(columns.shape[0]):
            column = columns[j]
            for i in range(rows.shape[0]):
                column[i] = rows[i, start + j]


@kernel
def _bin_rows(
    rows: NDArray[Any],  # IN (n, n_columns)
    edges: NDArray[Any],
    cells: NDArray[np.uint16],
    first: NDArray[np.int64],
    size: NDArray[np.int64],
    pivot: NDArray[Any],
    scale: NDArray[Any],
    codes: NDArray[np.uint8],  # OUT (n_columns, n), or without rows
    wide: NDArray[np.uint16],  # OUT (n_columns, n), or without rows: one of the two is written
) -> None:
    """Bin a row-major block, tile by tile: a few columns are transposed at a time, as wide as a cache line."""
    n, m = rows.shape
    # the columns start in different sets of the cache
    columns = np.empty((GROUP, ROWS + 16), rows.dtype)
    tile, cell = np.empty(TILE, np.uint16), np.empty(TILE, scale.dtype)
    distance = cell.view(edges.dtype)
    for first_row in range(0, n, ROWS):
        k = min(n - first_row, ROWS)
        _fetch(rows, first_row, first_row + k, distance)
        for start in range(0, m, GROUP):
            stop = min(m, start + GROUP)
            _turn(rows[first_row : first_row + k], start, columns[: stop - start])
            for j in range(start, stop):
                if size[j, 0] >= 0:
                    for lo in range(0, k, TILE):
                        hi = min(k, lo + TILE)
                        to = slice(first_row + lo, first_row + hi)
                        c = wide[j, to] if wide.shape[0] > 0 else tile[: hi - lo]
                        v = columns[j - start, lo:hi]
                        _bin(v, j, edges, cells, first, size, pivot, scale, distance, cell, c)
                        if wide.shape[0] == 0:
                            _copy(c, codes[j, to])


@lru_cache(maxsize=256)
def _remembered(edges: tuple[bytes | None, ...], dtype: np.dtype[Any]) -> EdgeTable:
    """Make the tables that many row blocks share; cached by the content of the edges, so never out of date."""
    return edge_table([None if part is None else np.frombuffer(part) for part in edges], dtype)


def _tables(
    edges: EdgeTable | Sequence[NDArray[np.float64] | None], dtype: np.dtype[Any]
) -> EdgeTable:
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"x has dtype={dtype}, not float32 or float64. Convert it before binning.")
    if isinstance(edges, EdgeTable):
        if edges.edges.dtype != dtype:
            raise ValueError(
                f"The edge table is for {edges.edges.dtype} values, not {dtype}. Make one for that dtype."
            )
        return edges
    return shared_table(edges, dtype)


def shared_table(edges: Sequence[NDArray[np.float64] | None], dtype: np.dtype[Any]) -> EdgeTable:
    """Make the tables of some columns as `edge_table` does, or return those of another call with the same edges."""
    parts = (None if part is None else np.asarray(part, np.float64).tobytes() for part in edges)
    return _remembered(tuple(parts), dtype)


def _check_values(out: NDArray[Any], n_columns: int, table: EdgeTable) -> None:
    if len(table.size) != n_columns:
        raise ValueError(
            "x and edges differ in columns. Give the edges of each column, or None to skip it."
        )
    if table.size[:, 0].max(initial=0) + 1 > np.iinfo(out.dtype).max:
        raise ValueError(f"More edges than {out.dtype} codes can tell apart. Use fewer edges.")


def _bin_one(x: NDArray[Any], edges: NDArray[np.float64] | EdgeTable, out: NDArray[Any]) -> None:
    table = _tables(edges if isinstance(edges, EdgeTable) else [edges], x.dtype)
    _check_values(out, 1, table)
    if x.shape != out.shape:
        raise ValueError("x and out differ in rows. Pass the same row block of each.")
    column = readable("x", np.ascontiguousarray(x)[None], x.dtype, 2)
    _bin_columns(column, *_arrays(table), *_both(out[None]))


def _arrays(
    table: EdgeTable,
) -> tuple[
    NDArray[Any],
    NDArray[np.uint16],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[Any],
    NDArray[Any],
]:
    """Return what a kernel takes for a table."""
    return table.edges, table.cells, table.first, table.size, table.pivot, table.scale


def _both(out: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Return what a kernel takes for codes and for cells, one of which it writes."""
    if out.dtype == np.uint8:
        return out, np.empty((0, 0), np.uint16)
    return np.empty((0, 0), np.uint8), out


def bin_column(
    x: NDArray[Any], edges: NDArray[np.float64] | EdgeTable, out: NDArray[np.uint8]
) -> None:
    """Write each value's code: the number of edges below it, or ``n_edges + 1`` for a missing value.

    Parameters
    ----------
    x : (n_rows,) float32 or float64, any stride
        A float32 gets the code of the same value in float64. -inf gets code 0, +inf code n_edges.
    edges : (n_edges,) float64, increasing, or an `EdgeTable` of one column
        At most 254.
    out : (n_rows,) uint8
        Written.

    Raises
    ------
    ValueError
        If a dtype is wrong, lengths differ or edges are too many; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. Total: every value has a code and none raises or warns.
    """
    _bin_one(x, edges, writable("out", out, np.uint8, 1))


def cell_column(
    x: NDArray[Any], edges: NDArray[np.float64] | EdgeTable, out: NDArray[np.uint16]
) -> None:
    """Write each value's cell in the fine grid: like `bin_column`, but with up to 65,534 edges.

    Parameters
    ----------
    x : (n_rows,) float32 or float64, any stride
    edges : (n_edges,) float64, increasing, or an `EdgeTable` of one column
    out : (n_rows,) uint16
        Written.

    Raises
    ------
    ValueError
        If a dtype is wrong, lengths differ or edges are too many; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. Total: every value has a cell.
    """
    _bin_one(x, edges, writable("out", out, np.uint16, 1))


def bin_matrix(
    x: NDArray[Any],
    edges: Sequence[NDArray[np.float64] | None] | EdgeTable,
    out: NDArray[np.uint8],
) -> None:
    """Write the codes of a whole matrix, column-major.

    Parameters
    ----------
    x : (n_rows, n_features) float32 or float64
        Row-major or column-major; other layouts are copied.
    edges : sequence of ((n_edges,) float64 or None), or an `EdgeTable`
        A feature with None is skipped: its row of ``out`` stays as it was.
    out : (n_features, n_rows) uint8
        Written.

    Raises
    ------
    ValueError
        If a dtype is wrong, shapes differ or edges are too many; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. Total: every value has a code and none raises or warns.
    """
    _bin_all(x, edges, writable("out", out, np.uint8, 2))


def cell_matrix(
    x: NDArray[Any],
    edges: Sequence[NDArray[np.float64] | None] | EdgeTable,
    out: NDArray[np.uint16],
) -> None:
    """Write the cells of a whole matrix, column-major: like `bin_matrix`, but with up to 65,534 edges.

    Parameters
    ----------
    x : (n_rows, n_features) float32 or float64
        Row-major or column-major; other layouts are copied.
    edges : sequence of ((n_edges,) float64 or None), or an `EdgeTable`
        A feature with None is skipped: its row of ``out`` stays as it was.
    out : (n_features, n_rows) uint16
        Written.

    Raises
    ------
    ValueError
        If a dtype is wrong, shapes differ or edges are too many; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. Total: every value has a cell.
    """
    _bin_all(x, edges, writable("out", out, np.uint16, 2))


def _bin_all(
    x: NDArray[Any], edges: Sequence[NDArray[np.float64] | None] | EdgeTable, out: NDArray[Any]
) -> None:
    table = _tables(edges, x.dtype)
    _check_values(out, x.shape[1], table)
    if x.T.shape != out.shape:
        raise ValueError("x and out differ in shape. out holds one row per column of x.")
    if x.flags.f_contiguous:
        columns = readable("x", x.T, x.dtype, 2)
        _bin_columns(columns, *_arrays(table), *_both(out))
    else:
        rows = readable("x", np.ascontiguousarray(x), x.dtype, 2)
        _bin_rows(rows, *_arrays(table), *_both(out))


@kernel
def _map(
    cells: NDArray[np.uint16],  # IN (n_columns, n)
    bins: NDArray[np.uint8],  # IN (n_columns, n_cells)
    out: NDArray[np.uint8],  # OUT (n_columns, n)
) -> None:
    """Look up every cell's bin."""
    for j in range(cells.shape[0]):
        for i in range(cells.shape[1]):
            out[j, i] = bins[j, cells[j, i]]


def map_cells(cells: NDArray[Any], bins: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Write the bin of every cell.

    Parameters
    ----------
    cells : (n_features, n_rows) uint16
        Below ``n_cells``; this is not checked.
    bins : (n_features, n_cells) uint8
        Bin of each cell.
    out : (n_features, n_rows) uint8
        Written.

    Raises
    ------
    ValueError
        If a dtype is wrong or shapes differ.

    Privacy
    -------
    Private side; nothing leaves.
    """
    cells = readable("cells", cells, np.uint16, 2)
    bins = readable("bins", bins, np.uint8, 2)
    writable("out", out, np.uint8, 2)
    if cells.shape != out.shape or len(bins) != len(cells):
        raise ValueError("cells, bins and out differ in features or rows. Give the same of each.")
    _map(cells, bins, out)
