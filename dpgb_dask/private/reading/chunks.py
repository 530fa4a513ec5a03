"""What becomes of the rows of a chunk: a survey, which needs no bins, and pieces of codes, by released bins.

The survey makes weighted counts in the public grid, sums of the target, the fingerprint, and a mark (a keyed hash) of
every chunk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.grid import FINE, Grid
from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.encoding.codes import (
    Values,
    cells_of,
    encode_cells,
    encode_target,
    encode_values,
    encode_weight,
    read_values,
)
from dpgb_dask.encoding.columns import as_columns, n_rows
from dpgb_dask.frozen import settle
from dpgb_dask.kernels.histogram import add_columns
from dpgb_dask.losses import default_loss
from dpgb_dask.private.reading.fingerprint import (
    MODULUS,
    column_keys,
    fingerprint_rows,
    lane_keys,
    mark_key,
    pack_rows,
    shorten_rows,
)
from dpgb_dask.private.reading.rows import Piece, Rows, changed, miscounted, slice_block
from dpgb_dask.private.reading.units import UnitCounts, hash_units, mark_units

STRIP_ROWS = 1 << 14  # rows whose cells are in memory at once: 32 KB per feature
MARKS = 1 << 64


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """How rows are read: everything that a pass over the source needs besides the rows.

    Parameters
    ----------
    shape : Shape
    key : bytes
        32 bytes, for the fingerprint.
    units : UnitCounts or None
        Number of rows of every privacy unit, if rows have units.
    rows_key : bytes or None
        16 bytes, for draws of rows; None if the plan draws none.
    starts : (n_chunks + 1,) int64 or None
        Position of each chunk's first row in the source, counted before any row is left out, and the end of the last
        chunk; None if rows are not drawn by position.
    marks : (n_chunks,) uint64 or None
        Mark of each chunk, from the survey; None while the survey runs.
    """

    shape: Shape
    key: bytes
    units: UnitCounts | None = None
    rows_key: bytes | None = None
    starts: NDArray[np.int64] | None = None
    marks: NDArray[np.uint64] | None = None

    def __post_init__(self) -> None:
        """Leave the loss out: no sum depends on it, and its class may be one that workers do not have."""
        settle(self, shape=replace(self.shape, loss=default_loss(self.shape.kind)))

    def positions(self, number: int, n: int) -> NDArray[np.uint64] | None:
        """Return the positions of the n rows of a chunk; None if rows are not drawn by position.

        Raises
        ------
        ChunkError
            If the number of rows is not what it was before, or what Dask is told: two rows would share a position.
        """
        if self.starts is None:
            return None
        start, stop = int(self.starts[number]), int(self.starts[number + 1])
        if n != stop - start:
            raise miscounted()
        return np.arange(start, stop, dtype=np.uint64)

    def mark(self, numbers: Sequence[int]) -> int:
        """Return the sum modulo 2⁶⁴ of the marks that the survey made of some chunks."""
        assert self.marks is not None
        return int(self.marks[np.array(numbers, np.int64)].sum(dtype=np.uint64))

    def check(self, mark: int, number: int) -> None:
        """Compare the mark of a chunk that was read again with the mark from the survey.

        Raises
        ------
        ChunkError
            If they differ.
        """
        if self.marks is not None and mark != int(self.marks[number]):
            raise changed()

    def __repr__(self) -> str:
        return "Reading(<key>)"


class Survey(NamedTuple):
    """Sums over rows (the count, the cells of the fine grid, the target), the fingerprint, and marks by chunk. Private.

    ``units`` is the sum of `mark_units` over the rows of this pass, to be compared with `UnitCounts.mark`.
    """

    sums: NDArray[np.int64]
    fingerprint: int
    marks: dict[int, int]
    units: int = 0

    @property
    def mark(self) -> int:
        """The sum of the marks of all chunks, modulo 2⁶⁴."""
        return sum(self.marks.values()) % MARKS

    def __repr__(self) -> str:
        return "<survey>"


def add_surveys(parts: list[Survey]) -> Survey:
    """Add surveys; they are integers, so any order gives the same bits."""
    sums = parts[0].sums.copy()
    for part in parts[1:]:
        sums += part.sums
    marks = {number: mark for part in parts for number, mark in part.marks.items()}
    units = sum(part.units for part in parts) % MARKS
    return Survey(sums, sum(part.fingerprint for part in parts) % MODULUS, marks, units)


def n_target_sums(shape: Shape) -> int:
    """Return the number of target sums: one per class if there are several, else one."""
    return shape.n_scores if shape.kind == "multiclass" else 1


class Labels(NamedTuple):
    """Labels, weights and units of some rows. Private.

    Parameters
    ----------
    label : (n,) uint8, or int32 target steps
    weight : (n,) int32 or None
        In steps; None if all rows weigh one.
    keep : (n,) bool
        Whether the weight of a row is above 0.
    unit : (n,) hashes or None
    """

    label: NDArray[Any]
    weight: NDArray[np.int32] | None
    keep: NDArray[np.bool_]
    unit: NDArray[np.void] | None

    def __repr__(self) -> str:
        return "<labels>"

    def at(self, rows: slice | NDArray[np.bool_]) -> "Labels":
        """Return the labels, weights and units of some of the rows."""
        weight = None if self.weight is None else self.weight[rows]
        unit = None if self.unit is None else self.unit[rows]
        return Labels(self.label[rows], weight, self.keep[rows], unit)


def read_labels(rows: Rows, reading: Reading) -> Labels:
    """Read labels, weights and units.

    Privacy
    -------
    Private side. A row with an unknown label or an invalid weight weighs nothing in every query.
    """
    shape = reading.shape
    label, keep = encode_target(rows.y, shape.schema)
    if rows.unit is not None:
        assert reading.units is not None
        unit = hash_units(rows.unit, reading.key)
        weight = reading.units.weights(unit, shape)
        return Labels(label, weight, keep & (weight > 0), unit)
    if rows.weight is not None or shape.class_weight is not None:
        # of a row's own label: a bad one is read as the first class here, and weighs nothing
        times = None if shape.class_weight is None else np.asarray(shape.class_weight)[label]
        given = np.ones(len(label)) if rows.weight is None else rows.weight
        weight = encode_weight(given, shape.max_weight, shape.weight_bits, times)
        return Labels(label, weight, keep & (weight > 0), None)
    if shape.weight_bits:
        return Labels(label, np.full(len(label), 1 << shape.weight_bits, np.int32), keep, None)
    return Labels(label, None, keep, None)


class Marker:
    """Computes the mark of a chunk, some rows at a time: a keyed sum over its rows.

    Parameters
    ----------
    reading : Reading
    labels : Labels
        Of the whole chunk.

    Notes
    -----
    The mark covers everything that is read of a row. If two chunks change places between two reads of the source, and
    one is kept while the other is read again, rows would count twice: the marks show this. If rows are drawn by their
    position, the mark also covers their order: a query's price relies on each row serving only one part of a group.

    Privacy
    -------
    Private side.
    """

    def __init__(self, reading: Reading, labels: Labels) -> None:
        self._columns = column_keys(reading.key, reading.shape.n_features + 5)
        self._key = mark_key(reading.key)
        self._ordered = reading.starts is not None
        self._labels = labels
        self._total = 0

    def add(self, values: Values, rows: slice) -> None:
        """Add the slice ``rows`` of the chunk, whose features are ``values``."""
        label, weight, keep, unit = self._labels
        parts: list[NDArray[Any]] = [label[rows].astype(np.int64), keep[rows]]
        if weight is not None:
            parts.append(weight[rows])
        if unit is not None:
            parts.append(unit[rows].view(np.uint64).reshape(-1, 2))
        features = values.columns if values.matrix is None else (values.matrix,)
        parts += [part for part in features if part is not None]
        words = [shorten_rows(parts, self._columns)]
        if self._ordered:
            words.append(np.arange(rows.start, rows.start + len(label[rows]), dtype=np.uint64))
        self._total += fingerprint_rows(np.stack(words), self._key)

    @property
    def mark(self) -> int:
        """The mark of all rows added so far, in 64 bits."""
        return self._total % MARKS


class Surveyor:
    """Surveys one chunk, some rows at a time.

    Parameters
    ----------
    rows : Rows
    reading : Reading
    number : int
        The chunk's number in the source.

    Attributes
    ----------
    reading, number
        As given.
    labels : Labels
        Of the whole chunk.

    Privacy
    -------
    Private side. One row of the largest weight W adds W to the count, W to one cell of each feature and at most W
    natural units to the target sums; `sensitivity` states it.
    """

    def __init__(self, rows: Rows, reading: Reading, number: int) -> None:
        shape = reading.shape
        self.reading = reading
        self.number = number
        self.labels = read_labels(rows, reading)
        self._block = as_columns(rows.x, shape.schema)
        self._n = n_rows(rows.x)
        self._shape = shape
        self._grid = Grid.of(shape.schema, FINE)
        self._offsets = self._grid.offsets + 1
        self._sums = np.zeros(int(self._offsets[-1]) + n_target_sums(shape), np.int64)
        # of one strip after the other: fresh memory would have to be cleared each time
        self._cells = np.empty(len(self._grid.edges) * min(STRIP_ROWS, self._n), np.uint16)
        self._keys = lane_keys(reading.key)
        self._total = 0
        self._marker = Marker(reading, self.labels)
        self._position = reading.positions(number, len(self))

    def __len__(self) -> int:
        return self._n

    def add(self, rows: slice, *, as_values: bool = False) -> NDArray[Any]:
        """Add some rows, and return those whose weight is above 0.

        Parameters
        ----------
        rows : slice
            Not empty.
        as_values : bool

        Returns
        -------
        (m, n) uint16 or float, C-order
            Their cells; if ``as_values``, the values of numeric features and the cells of categorical ones.
        """
        n, start = np.count_nonzero(self.labels.keep[rows]), 0
        added: NDArray[Any] = np.empty((0, 0))
        for strip in _strips(rows):
            part = self.add_strip(strip, as_values=as_values)
            if start == 0:
                added = np.empty((len(part), n), part.dtype)
            added[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        return added

    # columns of other types become one matrix: a signalling NaN would cause a warning
    @np.errstate(all="ignore")
    def add_strip(self, strip: slice, *, as_values: bool = False) -> NDArray[Any]:
        """Add some rows as `add` does, at most `STRIP_ROWS`; the next ones take the same memory."""
        labels = self.labels.at(strip)
        label, weight, keep, unit = labels
        values = read_values(slice_block(self._block, strip), self._shape.schema)
        self._marker.add(values, strip)
        size = (len(self._grid.edges), len(label))
        room = self._cells[: size[0] * size[1]].reshape(size)
        cells = cells_of(values, self._grid, room)
        position = None if self._position is None else self._position[strip]
        if not keep.all():
            cells = np.ascontiguousarray(cells[:, keep])
            label, weight, _, unit = labels.at(keep)
            position = None if position is None else position[keep]
        sums, offsets = self._sums, self._offsets
        add_columns(cells, weight, offsets, sums)
        steps = np.ones(len(label), np.int64) if weight is None else weight.astype(np.int64)
        sums[0] += steps.sum()
        _add_target(label, steps, self._shape, sums[offsets[-1] :])
        words = [pack_rows(cells, label.astype(np.int64), steps)]
        if unit is not None:
            words.append(unit.view(np.uint64).reshape(-1, 2).T)
        if position is not None:
            words.append(position[None])
        self._total += fingerprint_rows(np.concatenate(words), self._keys)
        if not as_values:
            return cells
        kept = np.stack([values.column(j)[keep] for j in range(len(cells))])
        return kept if kept.dtype.kind == "f" else kept.astype(np.float32)  # all are categorical

    @property
    def survey(self) -> Survey:
        """The survey of the rows added so far."""
        unit = self.labels.unit
        return Survey(
            self._sums,
            self._total % MODULUS,
            {self.number: self._marker.mark},
            0 if unit is None else mark_units(unit),
        )


def survey_rows(rows: Rows, reading: Reading, number: int) -> Survey:
    """Return the survey of one chunk, the ``number``-th of the source.

    Privacy
    -------
    Private side, as `Surveyor`.
    """
    surveyor = Surveyor(rows, reading, number)
    for strip in _strips(slice(0, len(surveyor))):
        surveyor.add_strip(strip)
    return surveyor.survey


def _strips(rows: slice) -> Iterator[slice]:
    """Cut rows into strips whose cells are held at once."""
    for start in range(rows.start, rows.stop, STRIP_ROWS):
        yield slice(start, min(start + STRIP_ROWS, rows.stop))


def _add_target(
    y: NDArray[np.generic], steps: NDArray[np.int64], shape: Shape, out: NDArray[np.int64]
) -> None:
    """Add the target sums of some rows."""
    if shape.kind == "numeric":
        # |y| · W < 2**45, so 2**18 rows of the largest weight fit
        out[0] += np.dot(y.astype(np.int64), steps)
    elif shape.kind == "binary":
        out[0] += steps[y == 1].sum()
    else:
        for k in range(shape.n_scores):
            out[k] += steps[y == k].sum()


# ---- encoding --------------------------------------------------------------------------------------------------------


def encode_rows(
    rows: Rows,
    reading: Reading,
    bins: Sequence[FeatureBins],
    block_rows: int,
    number: int = 0,
) -> Iterator[Piece]:
    """Yield one chunk as pieces of at most ``block_rows`` rows; rows that weigh nothing are left out.

    Parameters
    ----------
    rows : Rows
    reading : Reading
    bins : sequence of FeatureBins, released
    block_rows : int
    number : int
        The chunk's number in the source.

    Raises
    ------
    ChunkError
        If these are not the rows of the survey: for example, rows drawn by position must not move between passes.

    Privacy
    -------
    Private side. Deterministic in the rows and the released bins; a row's value never raises or warns.
    """
    labels = read_labels(rows, reading)
    marker = None if reading.marks is None else Marker(reading, labels)
    identity = _identities(labels, reading, number)
    block = as_columns(rows.x, reading.shape.schema)
    for part in _parts(n_rows(rows.x), block_rows):
        values = read_values(slice_block(block, part), reading.shape.schema)
        if marker is not None:
            marker.add(values, part)
        codes, keep = encode_values(values, bins), labels.keep[part]
        if not keep.all():
            codes = np.ascontiguousarray(codes[:, keep])
        yield _piece(codes, labels, identity, part)
    if marker is not None:
        reading.check(marker.mark, number)


def _parts(n: int, block_rows: int) -> Iterator[slice]:
    """Cut n rows into parts of nearly equal size, at most ``block_rows`` each."""
    n_parts = -(-n // block_rows)
    for k in range(n_parts):
        yield slice(k * n // n_parts, (k + 1) * n // n_parts)


def _piece(
    codes: NDArray[np.uint8], labels: Labels, identity: NDArray[np.uint64] | None, part: slice
) -> Piece:
    """Return a part of a chunk as a piece; ``codes`` holds only the rows whose weight is above 0."""
    own = labels.at(part)
    # indexing with bools copies: a view would keep the labels and weights of the whole chunk alive
    label, weight, _, _ = own.at(own.keep)
    return Piece(codes, label, weight, None if identity is None else identity[part][own.keep])


def unbinned_pieces(
    surveyor: Surveyor, block_rows: int, *, as_values: bool = False
) -> Iterator[Piece]:
    """Survey one chunk before bins are known, and yield it cut into the same pieces as by `encode_rows`.

    The "codes" of these pieces are the bytes of cells of the public grid, or of values (``as_values``), from which any
    bins can be made later.

    Privacy
    -------
    Private side.
    """
    identity = _identities(surveyor.labels, surveyor.reading, surveyor.number)
    for part in _parts(len(surveyor), block_rows):
        kept = surveyor.add(part, as_values=as_values)
        codes = kept.view(np.uint8).reshape(len(kept) * kept.itemsize, -1)
        yield _piece(codes, surveyor.labels, identity, part)


def encode_piece(
    piece: Piece, bins: Sequence[FeatureBins], bins_of_cell: NDArray[np.uint8] | None
) -> Piece | None:
    """Encode an unbinned piece; return None if it holds cells and some bin ends inside a cell.

    Parameters
    ----------
    piece : Piece
        From `unbinned_pieces`.
    bins : sequence of FeatureBins, released
    bins_of_cell : (m, most cells of a feature) uint8, or None
        From `bins_of_cells`.

    Privacy
    -------
    Private side.
    """
    m, n = len(bins), len(piece)
    dtype = {2: np.uint16, 4: np.float32, 8: np.float64}[len(piece.codes) // m]
    # a piece read from scratch may start at any byte, and kernels need aligned arrays
    kept = np.require(piece.codes.reshape(-1).view(dtype).reshape(m, n), requirements="A")
    if dtype is np.uint16:
        if bins_of_cell is None:
            return None
        codes = encode_cells(kept, bins_of_cell)
    else:
        cells = tuple(
            kept[j].astype(np.uint16) if b.categorical else None for j, b in enumerate(bins)
        )
        codes = encode_values(Values(kept.T, cells), bins)
    return Piece(codes, piece.label, piece.weight, piece.identity)


def _identities(labels: Labels, reading: Reading, number: int) -> NDArray[np.uint64] | None:
    """Return what decides the draw of each row of a chunk; None if no rows are drawn.

    Privacy
    -------
    Private side. Rows of a unit share one draw, so that the unit serves a query as a whole. Without units, a row is
    drawn by its position in the source, counted before any row is left out. To anyone without the key, the values of a
    PRF at distinct positions are independent, whatever the positions are; so the draws of D and D ∪ {x} can be coupled
    row by row, although x shifts the rows behind it. A hash of the row's content would not do: equal rows would share
    one draw, and whether x joins a query would depend on the other rows.
    """
    if reading.rows_key is not None and labels.unit is not None:
        return labels.unit.view(np.uint64).reshape(-1, 2)
    return reading.positions(number, len(labels.label))
