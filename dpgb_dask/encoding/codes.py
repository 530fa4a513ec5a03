"""From blocks of rows to integers: uint8 codes or cells of the fine grid, labels and weights. No value raises or warns.

A value out of bounds or ±inf falls in the outermost bin. NaN and any value that cannot be read as a number is missing.
An unknown category is "other". A row with an unknown label or a missing target has no weight. Only structure raises
(docs/design.md §1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.features import Datetime, Numeric
from dpgb_dask.contracts.grid import Grid, coarser_cells
from dpgb_dask.contracts.model import SCORE_ONE, FeatureBins
from dpgb_dask.contracts.schema import Schema, Target
from dpgb_dask.encoding.columns import (
    category_cells,
    feature_cells,
    native,
    numbers,
    one_column,
    split_columns,
)
from dpgb_dask.encoding.structure import SourceBlock
from dpgb_dask.encoding.times import parts_of
from dpgb_dask.kernels.bin import bin_column, bin_matrix, cell_column, cell_matrix, map_cells

Bins = Sequence[FeatureBins]


@dataclass(frozen=True, eq=False, slots=True)
class Values:
    """The encoded columns of a block as kernels take them: floats for numbers, cells for categories.

    Parameters
    ----------
    matrix : (n, m) float32 or float64, or None
        All features, if the block is such a matrix and each feature is one column.
    columns : tuple of ((n,) float32, float64 or uint16, or None)
        One per encoded column; None if its values are in the matrix.
    """

    matrix: NDArray[Any] | None
    columns: tuple[NDArray[Any] | None, ...]

    def __repr__(self) -> str:
        return "<values>"

    def __len__(self) -> int:
        return len(self.column(0))

    def column(self, j: int) -> NDArray[Any]:
        """Return the values of encoded column j."""
        column = self.columns[j]
        if column is not None:
            return column
        assert self.matrix is not None
        return self.matrix[:, j]


@np.errstate(all="ignore")
def read_values(block: SourceBlock, schema: Schema) -> Values:
    """Read the features of a block.

    Parameters
    ----------
    block : (n, m) ndarray, DataFrame, or tuple of m (n,) arrays

    Privacy
    -------
    Private side, or prediction. A total map: never raises or warns on a value, and reads each value independently of
    all others.
    """
    matrix = None
    if isinstance(block, np.ndarray) and not isinstance(block, np.ma.MaskedArray):
        is_float = block.dtype.kind == "f" and block.dtype.itemsize in (4, 8)
        as_it_is = is_float and not any(isinstance(f, Datetime) for f in schema.features.values())
        matrix = native(np.asarray(block)) if as_it_is else None
    columns: list[NDArray[Any] | None] = []
    for feature, column in zip(schema.features.values(), split_columns(block, schema), strict=True):
        if isinstance(feature, Datetime):
            columns += parts_of(column, feature)
        elif isinstance(feature, Numeric):
            columns.append(None if matrix is not None else numbers(column))
        else:
            columns.append(feature_cells(column, feature))
    return Values(matrix, tuple(columns))


def encode(block: SourceBlock, schema: Schema, bins: Bins) -> NDArray[np.uint8]:
    """Read the values of a block, and return their codes (`encode_values`)."""
    return encode_values(read_values(block, schema), bins)


@np.errstate(all="ignore")
def encode_values(values: Values, bins: Bins) -> NDArray[np.uint8]:
    """Return the codes of values.

    Parameters
    ----------
    values : Values
    bins : sequence of FeatureBins, released

    Returns
    -------
    (m, n) uint8, C-order

    Privacy
    -------
    Private side, or prediction. A total map: each code depends on its value alone.
    """
    codes = np.empty((len(bins), len(values)), np.uint8)
    if values.matrix is not None:
        # one pass over the row-major matrix skips categorical columns, which follow below
        bin_matrix(values.matrix, [b.edges for b in bins], codes)
    for j, b in enumerate(bins):
        if b.cell_to_bin is not None:
            codes[j] = b.cell_to_bin[values.column(j)]
        elif values.matrix is None:
            assert b.edges is not None
            bin_column(values.column(j), b.edges, codes[j])
    return codes


@np.errstate(all="ignore")
def cells_of(
    values: Values, grid: Grid, out: NDArray[np.uint16] | None = None
) -> NDArray[np.uint16]:
    """Return the cell of every value in the public grid, as (m, n) uint16, C-order; ``out`` if it is given.

    Privacy
    -------
    Private side. A total map: never raises or warns on a value.
    """
    out = np.empty((len(grid.edges), len(values)), np.uint16) if out is None else out
    if values.matrix is not None:
        cell_matrix(values.matrix, grid.table(values.matrix.dtype), out)
    for j, edges in enumerate(grid.edges):
        if edges is None:
            out[j] = values.column(j)
        elif values.matrix is None:
            cell_column(values.column(j), edges, out[j])
    return out


def bins_of_cells(grid: Grid, bins: Bins) -> NDArray[np.uint8] | None:
    """Return the bin of every cell of the grid, or None if a bin ends inside a cell.

    Parameters
    ----------
    grid : Grid
    bins : sequence of FeatureBins, released

    Returns
    -------
    (m, most cells of a feature) uint8, or None
    """
    out = np.zeros((len(bins), max(grid.sizes)), np.uint8)
    for row, edges, b in zip(out, grid.edges, bins, strict=True):
        if b.edges is None:
            assert b.cell_to_bin is not None
            row[: len(b.cell_to_bin)] = b.cell_to_bin
        elif edges is None or not _among(b.edges, edges):
            return None
        else:
            row[: len(edges) + 2] = coarser_cells(edges, b.edges)
    return out


def _among(few: NDArray[np.float64], edges: NDArray[np.float64]) -> bool:
    """Return whether some numbers are all among increasing edges."""
    place = np.searchsorted(edges, few)
    return bool((place < len(edges)).all() and (edges[place] == few).all())


def encode_cells(cells: NDArray[np.uint16], bins_of_cell: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the codes of values from their cells: the same codes as `encode_values` gives.

    Parameters
    ----------
    cells : (m, n) uint16, C-order
    bins_of_cell : (m, most cells of a feature) uint8
        From `bins_of_cells`.

    Returns
    -------
    (m, n) uint8, C-order

    Privacy
    -------
    Private side. A total map.
    """
    codes = np.empty(cells.shape, np.uint8)
    map_cells(cells, bins_of_cell, codes)
    return codes


@np.errstate(all="ignore")
def encode_target(y: Any, schema: Schema) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the label of each row, and whether it has a valid one.

    Parameters
    ----------
    y : (n,) array or Series, or (n, 1)

    Returns
    -------
    label : (n,) uint8 for classes, or int32 in [-65536, 65536] for a numeric target scaled to [-1, 1]
    valid : (n,) bool
        False for an unknown label or a missing target: the row has no weight.

    Privacy
    -------
    Private side. A total map: never raises or warns on a value; a numeric target is clipped to its public bounds.
    """
    value, valid = read_target(y, schema)
    if schema.target.type != "numeric":
        return value, valid
    return _target_steps(np.where(valid, value, schema.target.low), schema.target), valid


@np.errstate(all="ignore")
def read_target(y: Any, schema: Schema) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the target of each row as the schema reads it, and whether it has a valid one.

    Parameters
    ----------
    y : (n,) array or Series, or (n, 1)

    Returns
    -------
    target : (n,) uint8 positions of classes, or (n,) float64 numbers, which are not clipped
    valid : (n,) bool
        False for an unknown label, or a value that is missing or no number.

    Privacy
    -------
    Private side, or the caller's own rows. A total map: never raises or warns on a value.
    """
    column = one_column(y)
    if schema.target.type == "numeric":
        value = numbers(column).astype(np.float64)
        return value, ~np.isnan(value)
    cell = category_cells(column, schema.target.classes)
    valid = cell < len(schema.target.classes)
    return np.where(valid, cell, 0).astype(np.uint8), valid


def _target_steps(y: NDArray[np.float64], target: Target) -> NDArray[np.int32]:
    value = np.clip(y, target.low, target.high)
    unit = (value / 2 - target.low / 2) / target.half  # in [0, 1]
    steps = np.rint((2 * unit - 1) * SCORE_ONE)
    # enforces the bound that the sensitivity states, whatever rounding did above
    return np.clip(steps, -SCORE_ONE, SCORE_ONE).astype(np.int32)


@np.errstate(all="ignore")
def encode_weight(
    weight: Any, max_weight: int, weight_bits: int, times: NDArray[np.float64] | None = None
) -> NDArray[np.int32]:
    """Return weights in steps of ``2**-weight_bits``, clipped to [0, max_weight] and rounded; 0 if not a number.

    Parameters
    ----------
    weight : (n,) or (n, 1) column
    max_weight, weight_bits : int
    times : (n,) float64, optional
        What each weight is multiplied by before it is clipped: the weight of the row's class.

    Privacy
    -------
    Private side. Every sensitivity is multiplied by the bound ``max_weight``.
    """
    value = numbers(one_column(weight)).astype(np.float64)
    if times is not None:
        value = value * times
    steps = np.rint(
        np.clip(np.where(np.isnan(value), 0.0, value), 0.0, max_weight) * 2.0**weight_bits
    )
    return steps.astype(np.int32)
