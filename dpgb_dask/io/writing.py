"""Writing a data set: each task writes whole shards and reads them back; the mark of completeness comes last."""
# ruff: noqa: N803, N806 - X is scikit-learn's name

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, Crc32cCodec

from dpgb_dask.calls import spoken
from dpgb_dask.clients import compute
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.columns import n_rows
from dpgb_dask.errors import ChunkError, StructureError, check_flag, in_our_words
from dpgb_dask.io.layout import Layout, check_of, metadata_of, rows_per_shard
from dpgb_dask.io.place import ATTRIBUTE, Place, taken
from dpgb_dask.io.rows import store_form
from dpgb_dask.matching import Columns, in_order
from dpgb_dask.private.reading.ingest import check_inputs, source_of
from dpgb_dask.private.reading.parsers import warn_of_parsers
from dpgb_dask.private.reading.rows import Source, chunk_rows, failed_to_load, line_up
from dpgb_dask.zarr_arrays import Recorded, Shards


@spoken
def write_dataset(
    path: str | Path,
    X: Any,
    y: Any = None,
    *,
    schema: Schema | Mapping[str, Any] | str | Path,
    sample_weight: Any = None,
    columns: Columns = None,
    shard_rows: int | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write rows, in any form that ``fit`` takes, as a data set; they are never all in memory.

    Dask collections are written by the current Dask client. Each task writes whole shards, reads them back and
    compares. The mark that the data set is complete is written last, so an interrupted data set cannot be opened.

    Parameters
    ----------
    path : str or Path
        A folder that does not exist yet, or a URL that fsspec knows, such as ``s3://bucket/people.zarr``. The workers
        of a cluster write there too, so it must be on a file system that they share.
    X, y, sample_weight
        As for ``fit``. ``y=None`` means the column of X with the target's name. If the schema has a ``unit_id``, the
        units are that column of X.
    schema : Schema, its JSON form, or the path of its file
    columns : "position", list of str, optional
        How the columns of an array without names match the schema, as for the estimators.
    shard_rows : int, optional
        Rows of a shard; by default at most 2**18 rows and 32 MiB.
    overwrite : bool
        Whether to replace a data set, complete or interrupted. The new one is written beside it and takes its place
        when it is complete, so there must be room for both. At a URL that is a copy: if it breaks off, the new one
        stays complete where it was written, and errors say where (docs/deploy.md). Anything else is never replaced, nor
        is a data set that X or y read.
    storage_options : mapping, optional
        For fsspec; by default it takes them from the environment.

    Raises
    ------
    SchemaError, StructureError, UnsupportedCollectionError
        If the structure does not fit, the path is taken, also by another process meanwhile, or the folder around it
        does not exist.
    ChunkError
        If a chunk cannot be read, or a shard cannot be written or reads back different.
    OSError
        If the path cannot be created.

    Warns
    -----
    UserWarning
        If beside the path lies what a killed process may have left of an earlier write. On a local disk with locks that
        is known, and it is removed instead, when this write is complete.

    Privacy
    -------
    The data owner's own tool: the data set holds rows. Local folders are closed to other users. No message carries a
    value or a length.

    Examples
    --------
    >>> from dpgb_dask.datasets import make_census
    >>> from dpgb_dask.io import open_dataset, write_dataset
    >>> people, schema = make_census(2_000, chunks=1_000)
    >>> X, y = people.drop(columns="high_income"), people["high_income"]
    >>> _ = write_dataset("people.zarr", X, y, schema=schema)
    >>> data = open_dataset("people.zarr")
    >>> data.schema == schema, list(data.X.columns) == list(schema.names)
    (True, True)
    """
    check_flag("overwrite", overwrite, StructureError)
    declared = _schema_of(schema)
    X = in_order(X, declared, columns, beside=True)
    inputs = check_inputs(X, y, sample_weight, declared, declared.unit_id)
    warn_of_parsers(inputs)
    layout = Layout.of(inputs, declared)
    source = source_of(inputs, declared)
    rows = rows_per_shard(layout, shard_rows)
    place = Place.named(path, storage_options)
    for gone in (*place.parts(), *([place] if overwrite else [])):
        _check_replaced(gone, source)
    with place.to_write(layout.id, overwrite=overwrite) as written:
        group = written.create(layout.facts(complete=False))
        lengths = _lengths(source)
        names = _create_arrays(group, layout, sum(lengths), rows)
        writer = _Writer(written, layout, names)
        shards = _write(source, lengths, rows, writer)
        writer.group()
        group.attrs[ATTRIBUTE] = _recorded(layout, group, shards)
        written.close()


def _schema_of(schema: Any) -> Schema:
    """Return a schema that is given as one, as its JSON form or by the path of its file."""
    if isinstance(schema, str | Path):
        return Schema.load(schema)
    return schema if isinstance(schema, Schema) else Schema.from_dict(schema)


def _recorded(
    layout: Layout, group: zarr.Group, shards: Mapping[str, Sequence[Recorded]]
) -> dict[str, Any]:
    """Return the attribute of a complete data set: its layout, its arrays, and their objects."""
    facts = layout.facts(complete=True)
    facts["arrays"] = {name: metadata_of(group[name]) for name in shards}
    facts["shards"] = {name: [list(one) for one in each] for name, each in shards.items()}
    facts = json.loads(json.dumps(facts))
    return {**facts, "check": check_of(facts)}


def _create_arrays(group: zarr.Group, layout: Layout, n: int, rows: int) -> tuple[str, ...]:
    arrays = layout.arrays()
    for name, (dtype, wide) in arrays.items():
        group.create_array(
            name,
            shape=(n, *wide),
            dtype=dtype,
            chunks=(rows, *wide),
            shards=(rows, *wide),
            compressors=[BloscCodec(cname="lz4", shuffle="shuffle"), Crc32cCodec()],
            dimension_names=("row", "feature")[: 1 + len(wide)],
        )
    return tuple(arrays)


def _check_replaced(place: Place, source: Source) -> None:
    """Refuse to replace a data set that the source reads.

    Raises
    ------
    StructureError
        If a chunk's tasks hold the name that `open_dataset` gave them.
    """
    known = place.id()
    parts = source.chunks[0].parts()
    tasks = [part for part in (*_as_list(parts[0]), *parts[1:]) if isinstance(part, Delayed)]
    if known and any(known in str(key) for part in tasks for key in part.__dask_graph__()):
        raise StructureError(
            f"path={place.path!r} is what X or y read, and would be gone afterwards. Choose another path."
        )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class Cut(NamedTuple):
    """Some rows of a chunk."""

    number: int
    rows: slice


def _cuts(lengths: Sequence[int], rows: int) -> Iterator[list[Cut]]:
    """Yield the rows of each shard, as cuts of chunks."""
    shard: list[Cut] = []
    free = rows
    for number, length in enumerate(lengths):
        start = 0
        while start < length:
            stop = min(start + free, length)
            shard.append(Cut(number, slice(start, stop)))
            free -= stop - start
            start = stop
            if not free:
                yield shard
                shard, free = [], rows
    if shard:
        yield shard


def _not_written(kind: str) -> ChunkError:
    return ChunkError(
        f"A shard of the data set cannot be written: {kind}. Look for room and permission where it is to lie."
    )


@dataclass(frozen=True, eq=False)
class _Writer:
    """What a task needs to write a shard."""

    place: Place
    layout: Layout
    names: tuple[str, ...]

    def group(self) -> zarr.Group:
        """Open the group; raises StructureError if another process has begun one in its place."""
        group = self.place.open("r+")
        facts: Any = group.attrs.get(ATTRIBUTE)
        if facts["id"] != self.layout.id:
            raise taken(self.place.path)
        return group

    @in_our_words(_not_written)
    def write(self, start: int, parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, Recorded]:
        """Write one shard of every array, read it back, and return the record of each object.

        Raises
        ------
        ChunkError
            If a shard cannot be written, or reads back different.
        StructureError
            As `group`.
        """
        group = self.group()
        recorded = {}
        for name in self.names:
            values = np.concatenate([part[name] for part in parts])
            stored: Any = group[name]
            # a shard of zeros is stored too, so that a missing shard is noticed
            array = stored.with_config({"write_empty_chunks": True})
            rows = slice(start, start + len(values))
            array[rows] = values
            back, recorded[name] = Shards(stored).read(start // stored.shards[0])
            if not _same_bits(back, values):
                raise ChunkError(
                    "A shard of the data set reads back otherwise than it was written. Write it again,"
                    " elsewhere if the disk is at fault."
                )
        return recorded


def _same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if a.dtype.kind not in "biuf":
        return bool(np.array_equal(a, b))
    bits = f"u{b.dtype.itemsize}"  # a NaN is not equal to itself
    return a.dtype == b.dtype and np.array_equal(a.view(bits), b.view(bits))


def _lengths(source: Source) -> Sequence[int]:
    """Return the number of rows of each chunk; if it is unknown, all chunks are read to count them."""
    if source.lengths is not None:
        return source.lengths
    count = delayed(_length, pure=False)
    return _computed([count(chunk.parts()) for chunk in source.chunks])


def _write(
    source: Source, lengths: Sequence[int], rows: int, writer: _Writer
) -> dict[str, list[Recorded]]:
    """Write all shards, and return the records of their objects, by array."""
    starts = itertools.count(0, rows)
    shards = zip(starts, _cuts(lengths, rows), strict=False)
    if not source.lazy:
        written = []
        for start, cuts in shards:
            parts = [_cut_rows(source.chunks[cut.number], cut, writer.layout) for cut in cuts]
            written.append(writer.write(start, parts))
        return {name: [one[name] for one in written] for name in writer.names}
    common = delayed(writer, name=f"dpgb-writer-{writer.layout.id}", traverse=False)
    prepare, write = delayed(_prepare, pure=False), delayed(_write_shard, pure=False)
    read = zip(source.chunks, lengths, strict=True)
    chunks = [prepare(chunk.parts(), length, common) for chunk, length in read]
    tasks = []
    for start, cuts in shards:
        held = [chunks[cut.number] for cut in cuts]
        tasks.append(write(common, start, held, [cut.rows for cut in cuts]))
    written = _computed(tasks)
    return {name: [one[name] for one in written] for name in writer.names}


def _cut_rows(chunk: Any, cut: Cut, layout: Layout) -> dict[str, NDArray[Any]]:
    """Return some rows of an in-memory chunk in the form in which they are stored."""
    return _on_rows(chunk_rows(chunk, cut.rows), layout, None)


@in_our_words(failed_to_load)
def _on_rows(parts: Sequence[Any], layout: Layout, length: int | None) -> dict[str, NDArray[Any]]:
    rows = line_up(*parts)
    if length is not None and n_rows(rows.x) != length:
        raise StructureError(
            "A chunk of the source has another number of rows than its collection says, or than it had"
            " when it was counted. Give a source that returns the same rows each time."
        )
    return store_form(rows, layout)


@in_our_words(failed_to_load)
def _length(parts: Sequence[Any]) -> int:
    return n_rows(line_up(*parts).x)


def _prepare(parts: Sequence[Any], length: int, writer: _Writer) -> dict[str, NDArray[Any]]:
    return _on_rows(parts, writer.layout, length)


def _write_shard(
    writer: _Writer,
    start: int,
    held: Sequence[Mapping[str, NDArray[Any]]],
    cuts: Sequence[slice],
) -> dict[str, Recorded]:
    parts = [
        {name: values[cut] for name, values in chunk.items()}
        for chunk, cut in zip(held, cuts, strict=True)
    ]
    return writer.write(start, parts)


@in_our_words(failed_to_load)
def _computed(tasks: list[Any]) -> Any:
    """Compute tasks with Dask. An error tells only its type, as a reader's message may contain a value."""
    return compute(*tasks)
