"""The first pass: weighted counts in the public grid, target sums and the fingerprint, chunk by chunk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.grid import COARSE, FINE, Grid, coarsening
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import CellCountsQuery, CountQuery, Query, TargetSumQuery
from dpgb_dask.encode import Block, cells, encode_target, encode_weight, n_rows
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels.histogram import add_cells
from dpgb_dask.private.fingerprint import MODULUS, fingerprint_rows, lane_keys, pack_rows
from dpgb_dask.private.ingest import Rows
from dpgb_dask.private.units import UnitCounts, hash_units

STRIP_ROWS = 1 << 14  # rows whose cells are held at once: 32 KB per feature


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """How rows are read: what every pass over the source needs beside the rows.

    Parameters
    ----------
    shape : Shape
    key : bytes
        32 bytes, for the fingerprint.
    units : UnitCounts or None
        Rows of every privacy unit, if rows have units.
    rows_key : bytes or None
        16 bytes, for draws of rows; None if the plan draws none.
    starts : (n_chunks,) int64 or None
        Position of each chunk's first row in the source, counted before any row is left out; None if rows are not drawn
        by position.
    """

    shape: Shape
    key: bytes
    units: UnitCounts | None = None
    rows_key: bytes | None = None
    starts: NDArray[np.int64] | None = None

    def positions(self, number: int, n: int) -> NDArray[np.uint64] | None:
        """Return the positions of the n rows of a chunk; None if rows are not drawn by position."""
        if self.starts is None:
            return None
        start = int(self.starts[number])
        return np.arange(start, start + n, dtype=np.uint64)

    def __repr__(self) -> str:
        return "Reading(<key>)"


class Survey(NamedTuple):
    """Sums over rows: the count, the cells of the fine grid, the target; and the fingerprint. Private."""

    sums: NDArray[np.int64]
    fingerprint: int

    def __repr__(self) -> str:
        return "<survey>"


def add_surveys(parts: list[Survey]) -> Survey:
    """Add surveys; integers, so any order gives the same bits."""
    sums = parts[0].sums.copy()
    for part in parts[1:]:
        sums += part.sums
    return Survey(sums, sum(part.fingerprint for part in parts) % MODULUS)


def n_target_sums(shape: Shape) -> int:
    """Return how many sums of the target there are: one per class, or one."""
    return shape.n_scores if shape.kind == "multiclass" else 1


def read_labels(
    rows: Rows, reading: Reading
) -> tuple[NDArray[np.generic], NDArray[np.int32] | None, NDArray[np.bool_]]:
    """Return labels, weights in steps (None if all are one step) and which rows weigh anything.

    Privacy
    -------
    Private side. A row with an unknown label or a bad weight weighs nothing, everywhere.
    """
    shape = reading.shape
    label, keep = encode_target(rows.y, shape.schema)
    if rows.unit is not None:
        assert reading.units is not None
        weight = reading.units.weights(hash_units(rows.unit, reading.key), shape)
        return label, weight, keep & (weight > 0)
    if rows.weight is not None:
        weight = encode_weight(rows.weight, shape.max_weight, shape.weight_bits)
        return label, weight, keep & (weight > 0)
    if shape.weight_bits:
        return label, np.full(len(label), 1 << shape.weight_bits, np.int32), keep
    return label, None, keep


def slice_block(block: Block, rows: slice) -> Block:
    """Return a view of some rows of a block."""
    if isinstance(block, tuple):
        return tuple(column[rows] for column in block)
    return block.iloc[rows] if hasattr(block, "iloc") else block[rows]


def count_rows(rows: Rows) -> NDArray[np.int64]:
    """Return the number of rows of one chunk, those that weigh nothing included. Private."""
    return np.array([n_rows(rows.x)], np.int64)


def starts_of(lengths: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return where each chunk starts, from the lengths of all in order. Private."""
    joined = np.concatenate(lengths)
    return np.cumsum(joined) - joined


def survey_rows(rows: Rows, reading: Reading, number: int) -> Survey:
    """Return the survey of one chunk, the ``number``-th of the source.

    Privacy
    -------
    Private side. One row of the largest weight W adds W to the count, W to one cell of each feature and at most W
    natural units to the target sums; `quantize.sensitivity` states it.
    """
    shape = reading.shape
    grid = Grid.of(shape.schema, FINE)
    offsets = grid.offsets + 1
    sums = np.zeros(int(offsets[-1]) + n_target_sums(shape), np.int64)
    keys = lane_keys(reading.key)
    total = 0
    label, weight, keep = read_labels(rows, reading)
    unit = None if rows.unit is None else hash_units(rows.unit, reading.key)
    position = reading.positions(number, n_rows(rows.x))
    for start in range(0, n_rows(rows.x), STRIP_ROWS):
        strip = slice(start, start + STRIP_ROWS)
        chosen = keep[strip]
        cell = cells(slice_block(rows.x, strip), shape.schema, grid)
        y = label[strip]
        w = None if weight is None else weight[strip]
        if not chosen.all():
            cell, y = np.ascontiguousarray(cell[:, chosen]), y[chosen]
            w = None if w is None else w[chosen]
        for j, column in enumerate(cell):
            add_cells(column, w, sums[offsets[j] : offsets[j + 1]])
        steps = np.ones(len(y), np.int64) if w is None else w.astype(np.int64)
        sums[0] += steps.sum()
        _add_target(y, steps, shape, sums[offsets[-1] :])
        words = pack_rows(cell, y.astype(np.int64), steps)
        if unit is not None:
            words = np.concatenate([words, unit[strip][chosen].view(np.uint64).reshape(-1, 2).T])
        if position is not None:
            words = np.concatenate([words, position[None, strip][:, chosen]])
        total += fingerprint_rows(words, keys)
    return Survey(sums, total % MODULUS)


def _add_target(
    y: NDArray[np.generic], steps: NDArray[np.int64], shape: Shape, out: NDArray[np.int64]
) -> None:
    """Add the target sums of some rows."""
    if shape.kind == "numeric":
        out[0] += np.dot(
            y.astype(np.int64), steps
        )  # |y| · W < 2**45, so 2**18 rows of the largest weight fit
    elif shape.kind == "binary":
        out[0] += steps[y == 1].sum()
    else:
        for k in range(shape.n_scores):
            out[k] += steps[y == k].sum()


class Surveyed:
    """Answers the queries that need no scores from the cached survey."""

    def __init__(self, survey: Survey, shape: Shape) -> None:
        self.fingerprint = survey.fingerprint
        self._sums = survey.sums
        self._shape = shape
        self._fine = Grid.of(shape.schema, FINE)

    def answer(self, query: Query) -> NDArray[np.int64] | None:
        """Return the sums of a count, cell or target query; None for a query that needs scores.

        Raises
        ------
        PlanError
            If the query's grid is not the schema's.
        """
        last = int(self._fine.offsets[-1]) + 1
        match query:
            case CountQuery():
                return self._sums[:1].copy()
            case TargetSumQuery():
                if query.n_values != len(self._sums) - last or query.kind != self._shape.kind:
                    raise PlanError("A target query of another kind than the schema's target.")
                return self._sums[last:].copy()
            case CellCountsQuery():
                return self._cells(query, self._sums[1:last])
            case _:
                return None

    def _cells(self, query: CellCountsQuery, fine: NDArray[np.int64]) -> NDArray[np.int64]:
        grid = (
            Grid.of(self._shape.schema, query.n_uniform)
            if query.n_uniform in (COARSE, FINE)
            else None
        )
        if grid is None or grid.sizes != tuple(query.sizes):
            raise PlanError(
                f"n_uniform={query.n_uniform} with these sizes is not a grid of the schema."
            )
        if query.n_uniform == FINE:
            return fine.copy()
        out = np.zeros(query.n_values, np.int64)
        np.add.at(out, coarsening(self._fine, grid), fine)
        return out
