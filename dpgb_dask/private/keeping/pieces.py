"""Pieces: encoded rows (uint8 codes), each piece small enough for one kernel call."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.encoding.codes import Values, encode_cells, encode_values, read_values
from dpgb_dask.encoding.columns import as_columns, n_rows
from dpgb_dask.private.reading.rows import Rows
from dpgb_dask.private.reading.survey import (
    Labels,
    Marker,
    Reading,
    Surveyor,
    read_labels,
    slice_block,
)


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """Encoded rows. Private.

    Parameters
    ----------
    codes : (n_features, n) uint8, C-order
    label : (n,) uint8, or int32 target steps
    weight : (n,) int32 or None
        In steps; None when every row weighs one step.
    identity : (n,) or (n, 2) uint64, or None
        What decides a row's draw: its position in the source, or the hash of its unit; None if no rows are drawn.
    """

    codes: NDArray[np.uint8]
    label: NDArray[Any]
    weight: NDArray[np.int32] | None
    identity: NDArray[np.uint64] | None = None

    def __repr__(self) -> str:
        return "<piece>"

    def __len__(self) -> int:
        return len(self.label)

    def __sizeof__(self) -> int:
        return self.nbytes + 128

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.codes)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        parts = self.codes, self.label, self.weight, self.identity
        return sum(part.nbytes for part in parts if part is not None)

    def load(self) -> "Piece":
        """Return this piece, as it is in memory."""
        return self

    def keep_alike(self, joined: "Piece") -> "Piece":
        """Return ``joined``, a piece that contains this one: it stays in memory, as this one does."""
        return joined


class Keepable(Protocol):
    """A piece in memory or on scratch: a `Piece`, or a `store.StoredPiece`."""

    def __len__(self) -> int: ...
    def load(self) -> Piece:
        """Return the whole piece in memory."""

    def keep_alike(self, joined: Piece) -> Any:
        """Keep ``joined``, a piece that contains this one, in the same place as this one."""


K = TypeVar("K", bound=Keepable)


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


def merge_pieces(pieces: Iterable[K], block_rows: int) -> list[K]:
    """Join neighbouring pieces until they exceed half a block: small chunks then cost no more kernel calls than large.

    Raises
    ------
    LostCodesError
        If a piece that has to be read back is damaged.
    ScratchError
        If a joined piece cannot be written.
    """
    merged: list[K] = []
    group: list[K] = []
    total = 0

    def flush() -> None:
        if len(group) == 1:
            merged.append(group[0])
        elif group:
            merged.append(group[0].keep_alike(join_pieces([piece.load() for piece in group])))
        group.clear()

    for piece in pieces:
        if not len(piece):
            continue
        if group and total + len(piece) > block_rows:
            flush()
            total = 0
        group.append(piece)
        total += len(piece)
        if total > block_rows // 2:
            flush()
            total = 0
    flush()
    return merged


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """Return the rows of several pieces as one."""
    weights = [p.weight for p in pieces if p.weight is not None]
    names = [p.identity for p in pieces if p.identity is not None]
    return Piece(
        np.concatenate([p.codes for p in pieces], axis=1),
        np.concatenate([p.label for p in pieces]),
        np.concatenate(weights) if weights else None,
        np.concatenate(names) if names else None,
    )
