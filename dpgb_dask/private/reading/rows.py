"""The rows of a fit, cut into chunks: what workers hold, apart from the libraries that `ingest` takes them from."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.columns import n_rows
from dpgb_dask.encoding.structure import SourceBlock
from dpgb_dask.errors import ChunkError, StructureError


class Rows(NamedTuple):
    """One chunk in memory: a block of features, the target, weights or None, units or None. Private."""

    x: SourceBlock
    y: Any
    weight: Any
    unit: Any = None

    def __repr__(self) -> str:
        return "<rows>"  # Dask logs tasks that it cannot send, with the repr of their arguments


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


def existing(part: pd.DataFrame, columns: list[Any]) -> pd.DataFrame:
    """Return those of some columns that a partition has."""
    return part[[column for column in columns if column in part.columns]]


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
            "X, y and sample_weight have different numbers of rows in a chunk. Line them up first."
        )
    return rows


def failed_to_load(kind: str) -> ChunkError:
    """Return the error for a chunk that could not be read; ``kind`` is the type of what was raised (`errors.kind_of`).

    Privacy
    -------
    The reader's message may contain the value of a row, and which chunk failed may depend on one: both are left out.
    """
    return ChunkError(f"A chunk of the source failed to load: {kind}.")
