"""The rows of a fit as workers hold them: chunks of the source, and pieces, which are encoded rows.

It is apart from the libraries that `ingest` takes rows from.
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pandas as pd
from dask.sizeof import sizeof
from numpy.typing import NDArray

from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.columns import existing, n_rows
from dpgb_dask.encoding.structure import SourceBlock
from dpgb_dask.errors import ChunkError, StructureError
from dpgb_dask.private.reading.load_lock import bytes_of

# ---- chunks ----------------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """One chunk in memory: a block of features, the target, weights or None, units or None. Private."""

    x: SourceBlock
    y: Any
    weight: Any
    unit: Any = None

    def __repr__(self) -> str:
        return "<rows>"  # Dask logs tasks that it cannot send, with the repr of their arguments


@sizeof.register(Rows)  # type: ignore[untyped-decorator]
def _size(rows: Rows) -> int:
    """Return the bytes of a chunk, for Dask, which would look into the values: into one that holds others, for ever."""
    return bytes_of(tuple(rows))


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """One chunk of the source: values in memory, or Dask tasks that make them.

    Parameters
    ----------
    x : SourceBlock, Delayed, or tuple of Delayed
        A tuple holds one column per feature. The Delayed of a Dask DataFrame's partition makes the whole `Rows`.
    y, weight, unit : array, Delayed or None
    """

    x: Any
    y: Any
    weight: Any
    unit: Any = None

    def __repr__(self) -> str:
        return "<chunk>"

    def parts(self) -> list[Any]:
        """Return what `line_up` takes, as lists, into which Dask looks for tasks."""
        x = list(self.x) if isinstance(self.x, tuple) else self.x
        return [x, self.y, self.weight, self.unit]


@dataclass(frozen=True, eq=False, slots=True)
class Source:
    """The rows of a fit as chunks whose structure was checked.

    Parameters
    ----------
    schema : Schema
    chunks : tuple of Chunk
    weighted : bool
        Whether sample weights were given.
    lazy : bool
        Whether chunks are Dask tasks; else they are in this process's memory.
    units : bool
        Whether a column names the privacy unit of each row.
    lengths : tuple of int or None
        Number of rows of each chunk, if known before reading. Private.
    narrow : bool
        Whether a feature is declared as float32 by its collection, for which other kernels are compiled.
    matrix : bool
        Whether the features are one matrix, whose rows have kernels of their own too.
    """

    schema: Schema
    chunks: tuple[Chunk, ...]
    weighted: bool
    lazy: bool
    units: bool = False
    lengths: tuple[int, ...] | None = None
    narrow: bool = False
    matrix: bool = False

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names (`kernels.warming.GROUPS`) of the kernels that reading it takes, besides those of every fit."""
        own = ("matrix",) if self.matrix else ()
        return (
            (*own, "float32 values", *(f"float32 {name}" for name in own)) if self.narrow else own
        )

    def __repr__(self) -> str:
        return f"Source(lazy={self.lazy}, weighted={self.weighted}, units={self.units})"


# What tasks of a Dask DataFrame call is here too, so that workers do not import what `ingest` imports.


def rows_of(x: Any, y: Any, weight: Any = None) -> Rows:
    """Return the rows of a frame's partition."""
    return Rows(x, y, weight)


def rows_of_units(x: Any, y: Any, unit: Any) -> Rows:
    """Return the rows of a frame's partition, with the unit of each."""
    return Rows(x, y, None, unit)


def named_by(part: pd.DataFrame, names: dict[Any, str]) -> pd.DataFrame:
    """Return those of some columns that a partition has, under other names."""
    return existing(part, list(names)).rename(columns=names)


def only_column(part: pd.DataFrame, name: Any) -> pd.Series:
    """Return a column of a partition; one of missing values if there is none."""
    if name not in part.columns:
        return pd.Series(None, part.index, object, name=name)
    column = part[name]
    return column.iloc[:, 0] if isinstance(column, pd.DataFrame) else column


def total_getitem(part: Any, key: Any) -> Any:
    """Return a column, or some, of a partition; those that it lacks are left out, and a single one is missing."""
    if isinstance(part, pd.DataFrame):
        if isinstance(key, list):
            return existing(part, key)
        if key not in part.columns:
            return only_column(part, key)
    return operator.getitem(part, key)


def line_up(x: Any, y: Any, weight: Any, unit: Any = None) -> Rows:
    """Return the rows of one chunk whose parts are in memory.

    Raises
    ------
    StructureError
        If the parts have different numbers of rows (which are not printed).
    """
    rows = (
        x if isinstance(x, Rows) else Rows(tuple(x) if isinstance(x, list) else x, y, weight, unit)
    )
    n = n_rows(rows.x)
    columns = rows.x if isinstance(rows.x, tuple) else ()
    parts = [part for part in (*columns, *rows[1:]) if part is not None]
    if any(len(part) != n for part in parts):
        raise StructureError(
            "X, y and sample_weight have different numbers of rows in a chunk. Give each row one target, and one"
            " weight or none; of Dask, take all of them from one table."
        )
    return rows


def failed_to_load(kind: str) -> ChunkError:
    """Return the error for a chunk that could not be read; ``kind`` is the type of what was raised (`errors.kind_of`).

    Privacy
    -------
    The reader's message may contain the value of a row, and which chunk failed may depend on one: both are left out.
    """
    return ChunkError(
        f"A chunk of the source failed to load: {kind}. The reader's own words may hold values of rows, and are left"
        " out: load the rows without a fit to see them, as by dask.compute(X, y)."
    )


def changed() -> ChunkError:
    """Return the error for a chunk whose rows differ when they are read again; it does not tell which chunk."""
    return ChunkError(
        "A chunk of the source changed while it was being read. Give a source that returns the same rows each"
        " time it is read, and in the same order."
    )


def miscounted() -> ChunkError:
    """Return the error for a chunk that is longer or shorter than it was, or than Dask is told."""
    return ChunkError(
        "A chunk of the source changed while it was being read, or has another number of rows than Dask is told, and"
        " this recipe draws rows by their position. Give a source that returns the same rows each time it is read, and"
        " in the same order; where blocks of an array leave out rows, call compute_chunk_sizes() before the fit."
    )


def slice_block(block: SourceBlock, rows: slice) -> SourceBlock:
    """Return a view of some rows of a block."""
    if isinstance(block, tuple):
        return tuple(_sliced(column, rows) for column in block)
    return _sliced(block, rows)


def chunk_rows(chunk: Chunk, rows: slice) -> Rows:
    """Return views of some rows of a chunk in memory, by position."""
    columns = (
        None if column is None else _sliced(column, rows)
        for column in (chunk.y, chunk.weight, chunk.unit)
    )
    return Rows(slice_block(chunk.x, rows), *columns)


def _sliced(column: Any, rows: slice) -> Any:
    """Return a view of some rows, by position: pandas 2 takes numbers for labels of an index of floats."""
    return column.iloc[rows] if hasattr(column, "iloc") else column[rows]


def count_rows(rows: Rows) -> NDArray[np.int64]:
    """Return the number of rows of one chunk, including those that weigh nothing. Private."""
    return np.array([n_rows(rows.x)], np.int64)


def starts_of(lengths: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return where each chunk starts, and where the last one ends, from the lengths of all chunks in order. Private."""
    return np.concatenate([[0], *lengths]).cumsum(dtype=np.int64)


# ---- pieces ----------------------------------------------------------------------------------------------------------


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
