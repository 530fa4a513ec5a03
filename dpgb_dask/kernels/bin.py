"""From values to codes: the exact number of edges below each value, by table look-up.

Each column has a table: cells of equal width over the range of its edges, and for each cell the number of edges in
earlier cells. ``cell(x)`` is monotone in x, since it subtracts, multiplies, clamps and truncates, which are all
monotone, rounding included. So an edge in an earlier cell is below x, an edge in a later cell is not, and only the
edges in x's own cell have to be compared. No rounding can change a code, as long as edges and values go through the
same arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpgb_dask.kernels import inner, kernel, readable, writable

COUNTED_BYTES = 136  # 33 float32 or 16 float64 edges: up to this, all are compared, by a SIMD loop
MAX_STEPS = 2  # edges of a cell compared without branches; with more, a binary search comes first
CELLS_PER_EDGE = 8  # most cells then hold one edge or none, and the table stays in L1
MAX_CELLS = 1 << 14
TILE = 1024  # rows of a row-major matrix that are transposed at a time


@dataclass(frozen=True, eq=False, slots=True)
class EdgeTable:
    """Look-up tables of some columns, made once by `edge_table`; T is the dtype of the values.

    Parameters
    ----------
    edges : (n,) T
        All columns' edges, each column closed by +inf.
    cells : (n,) uint16
        All columns' cells: number of edges in earlier cells of the column.
    first : (n_columns, 2) int64
        Where a column's edges and cells start.
    size : (n_columns, 3) int64
        Number of edges (-1: skip the column), number of cells (0: compare every edge), most edges in one cell.
    grid : (n_columns, 3) T
        Lower end of the cells, cells per unit, largest cell.
    """

    edges: NDArray[Any]
    cells: NDArray[np.uint16]
    first: NDArray[np.int64]
    size: NDArray[np.int64]
    grid: NDArray[Any]


@inner
def _cell(x: Any, low: Any, scale: Any, top: Any, zero: Any) -> Any:
    """Return the cell of a value; NaN and values below the grid get cell 0. Monotone in x."""
    t = (x - low) * scale
    # NaN becomes 0 too: like a float outside the range of an int, it must not be converted
    t = t if t > zero else zero
    t = t if t < top else top
    return np.int32(t)


@kernel
def _fill_cells(
    edges: NDArray[Any],  # IN one column, with its +inf
    grid: NDArray[Any],  # IN (3,)
    cells: NDArray[np.uint16],  # OUT (n_cells,)
) -> int:
    """Count the edges in earlier cells; return the most edges in one cell."""
    zero = edges.dtype.type(0)
    count = np.zeros(cells.shape[0], np.int64)
    for k in range(edges.shape[0] - 1):
        count[_cell(edges[k], grid[0], grid[1], grid[2], zero)] += 1
    before = 0
    for q in range(cells.shape[0]):
        cells[q] = before
        before += count[q]
    most = count[0]
    for q in range(1, count.shape[0]):
        most = max(most, count[q])
    return int(most)


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
    grid = np.zeros((len(edges), 3), dtype)
    n_edges = n_cells = 0
    for j, column in enumerate(edges):
        first[j] = n_edges, n_cells
        if column is None:
            size[j, 0] = -1
            continue
        rounded = _round_down(np.asarray(column, np.float64), dtype)
        if rounded.nbytes <= COUNTED_BYTES:
            size[j] = len(column), 0, 0
            parts.append(rounded)
            n_edges += len(rounded)
            continue
        n_column = min(1 << max(CELLS_PER_EDGE * len(column) - 1, 1).bit_length(), MAX_CELLS)
        # a width of 0 or inf puts all edges in one cell: slow, still exact
        with np.errstate(all="ignore"):
            width = rounded[-2] - rounded[0]
            grid[j] = rounded[0], n_column / width if width > 0 else 0.0, n_column - 1
        table = np.empty(n_column, np.uint16)
        size[j] = len(column), n_column, _fill_cells(rounded, grid[j], table)
        parts.append(rounded)
        cells.append(table)
        n_edges += len(rounded)
        n_cells += n_column
    return EdgeTable(
        np.concatenate([*parts, np.empty(0, dtype)]),
        np.concatenate([*cells, np.empty(0, np.uint16)]),
        first,
        size,
        grid,
    )


def _round_down(edges: NDArray[np.float64], dtype: DTypeLike) -> NDArray[Any]:
    """Return for each edge the largest value of ``dtype`` that is not above it, and +inf at the end."""
    with np.errstate(over="ignore"):
        rounded = edges.astype(dtype)
    lowered = np.nextafter(rounded, rounded.dtype.type(-np.inf))
    rounded = np.where(rounded > edges, lowered, rounded)
    return np.append(rounded, rounded.dtype.type(np.inf))


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
    edges: NDArray[Any],  # IN (n_edges + 1,), the last one +inf
    cells: NDArray[np.uint16],  # IN (n_cells,)
    grid: NDArray[Any],  # IN (3,)
    steps: int,  # most edges in one cell
    out: NDArray[Any],  # OUT (n,)
) -> None:
    """Look up the first possible code and compare the edges of one cell, without a branch."""
    missing = edges.shape[0]
    low, scale, top = grid[0], grid[1], grid[2]
    zero = edges.dtype.type(0)
    if steps <= 1:
        for i in range(x.shape[0]):
            v = x[i]
            k = np.uint32(cells[_cell(v, low, scale, top, zero)])
            k += np.uint32(edges[k] < v)
            out[i] = k if not np.isnan(v) else missing
    else:
        for i in range(x.shape[0]):
            v = x[i]
            k = np.uint32(cells[_cell(v, low, scale, top, zero)])
            for _ in range(steps):
                # stops by itself: edges increase, and the last is +inf
                k += np.uint32(edges[k] < v)
            out[i] = k if not np.isnan(v) else missing


@inner
def _search(
    x: NDArray[Any],  # IN (n,)
    edges: NDArray[Any],  # IN (n_edges + 1,), the last one +inf
    cells: NDArray[np.uint16],  # IN (n_cells,)
    grid: NDArray[Any],  # IN (3,)
    out: NDArray[Any],  # OUT (n,)
) -> None:
    """Look up the first possible code, then search the edges of the cell: for cells with many edges, which are rare."""
    missing = edges.shape[0]
    low, scale, top = grid[0], grid[1], grid[2]
    zero = edges.dtype.type(0)
    last = cells.shape[0] - 1
    for i in range(x.shape[0]):
        v = x[i]
        q = _cell(v, low, scale, top, zero)
        k = np.uint32(cells[q])
        stop = np.uint32(cells[q + 1]) if q < last else np.uint32(missing - 1)
        while stop - k > MAX_STEPS:
            middle = (k + stop) >> np.uint32(1)
            if edges[middle] < v:
                k = middle + np.uint32(1)
            else:
                stop = middle
        for _ in range(MAX_STEPS):
            k += np.uint32(edges[k] < v)
        out[i] = k if not np.isnan(v) else missing


@inner
def _bin(
    x: NDArray[Any],  # IN (n,)
    j: int,  # column of the table
    edges: NDArray[Any],
    cells: NDArray[np.uint16],
    first: NDArray[np.int64],
    size: NDArray[np.int64],
    grid: NDArray[Any],
    out: NDArray[np.uint16],  # OUT (n,)
) -> None:
    """Bin a tile of one column by the fastest of the exact ways.

    All callers copy into contiguous tiles, so that this function, most of the code, is compiled once per dtype.
    """
    n_edges, n_cells, steps = size[j, 0], size[j, 1], size[j, 2]
    e = edges[first[j, 0] : first[j, 0] + n_edges + 1]
    c = cells[first[j, 1] : first[j, 1] + n_cells]
    if n_cells == 0:
        _count(x, e[:n_edges], out)
    elif steps <= MAX_STEPS:
        _look_up(x, e, c, grid[j], steps, out)
    else:
        _search(x, e, c, grid[j], out)


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
    grid: NDArray[Any],
    codes: NDArray[np.uint8],  # OUT (n_columns, n), or without rows
    wide: NDArray[np.uint16],  # OUT (n_columns, n), or without rows: one of the two is written
) -> None:
    """Bin a column-major block. Compiled once for codes and for cells, as all but the copy is the same."""
    n = x.shape[1]
    values, tile = np.empty(TILE, x.dtype), np.empty(TILE, np.uint16)
    for j in range(x.shape[0]):
        if size[j, 0] >= 0:
            for lo in range(0, n, TILE):
                hi = min(n, lo + TILE)
                v, c = values[: hi - lo], tile[: hi - lo]
                _copy(x[j, lo:hi], v)
                _bin(v, j, edges, cells, first, size, grid, c)
                if wide.shape[0] > 0:
                    _copy(c, wide[j, lo:hi])
                else:
                    _copy(c, codes[j, lo:hi])


@inner
def _turn(rows: NDArray[Any], j: int, x: NDArray[Any]) -> None:
    """Copy one column of a row-major tile."""
    for i in range(x.shape[0]):
        x[i] = rows[i, j]


@kernel
def _bin_rows(
    rows: NDArray[Any],  # IN (n, n_columns)
    edges: NDArray[Any],
    cells: NDArray[np.uint16],
    first: NDArray[np.int64],
    size: NDArray[np.int64],
    grid: NDArray[Any],
    codes: NDArray[np.uint8],  # OUT (n_columns, n), or without rows
    wide: NDArray[np.uint16],  # OUT (n_columns, n), or without rows: one of the two is written
) -> None:
    """Bin a row-major block, tile by tile, so that each cache line of it is loaded once."""
    n = rows.shape[0]
    values, tile = np.empty(TILE, rows.dtype), np.empty(TILE, np.uint16)
    for lo in range(0, n, TILE):
        hi = min(n, lo + TILE)
        v, c = values[: hi - lo], tile[: hi - lo]
        for j in range(rows.shape[1]):
            if size[j, 0] >= 0:
                _turn(rows[lo:hi], j, v)
                _bin(v, j, edges, cells, first, size, grid, c)
                if wide.shape[0] > 0:
                    _copy(c, wide[j, lo:hi])
                else:
                    _copy(c, codes[j, lo:hi])


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
    _bin_columns(
        column, table.edges, table.cells, table.first, table.size, table.grid, *_both(out[None])
    )


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
        _bin_columns(
            columns, table.edges, table.cells, table.first, table.size, table.grid, *_both(out)
        )
    else:
        rows = readable("x", np.ascontiguousarray(x), x.dtype, 2)
        _bin_rows(rows, table.edges, table.cells, table.first, table.size, table.grid, *_both(out))


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
