"""Zarr arrays as Dask Arrays that detect damage: Zarr itself reads a shard of zero bytes as zeros.

For arrays that this library writes, the size and a digest of each object are recorded, and checked when it is read. In
other arrays, an empty object is refused, and a folder in the place of one; values that stand for others are decoded
(`cf_decoding`).
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import zarr
from dask.base import tokenize
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath

from dpgb_dask.cf_decoding import coordinates_among, decoding_of, whole_numbers_of
from dpgb_dask.errors import ChunkError, StructureError, in_our_words


class Recorded(NamedTuple):
    """Size and digest of a stored object.

    Parameters
    ----------
    size : int
        Bytes.
    digest : str
        SHA-256, in hexadecimal digits.
    """

    size: int
    digest: str

    @classmethod
    def of(cls, data: bytes) -> "Recorded":
        """Return the record of an object's bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


def damaged(kind: str = "") -> ChunkError:
    """Return the error for a stored object that is not what was written; ``kind`` is the type of the exception."""
    reason = f" ({kind})" if kind else ""
    return ChunkError(
        f"A stored part of a Zarr array is damaged or gone{reason}: it would be read as other rows. Write the data set"
        " again, or put a copy of it back."
    )


@dataclass(frozen=True, eq=False)
class Shards:
    """An array whose shards lie along its first axis, each one object; has what `dask.array.from_array` needs.

    Parameters
    ----------
    array : zarr.Array
        With one shard, or chunk, per block of rows.
    recorded : tuple of Recorded, or None
        The record of each shard; None for data sets of format 1, and for arrays written by other software.

    Raises
    ------
    ChunkError
        When indexed, if a shard is damaged or missing.
    """

    array: Any
    recorded: tuple[Recorded, ...] | None = None

    def __repr__(self) -> str:
        return "<shards>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """Type of the array."""
        return self.array.dtype

    @cached_property
    def _grid(self) -> tuple[int, ...]:
        return tuple(self.array.shards or self.array.chunks)

    def key(self, k: int) -> str:
        """Return the name of shard k within the array's folder."""
        return str(self.array.metadata.encode_chunk_key((k, *(0 for _ in self.shape[1:]))))

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return -(-self.shape[0] // self._grid[0])

    @in_our_words(damaged)
    def read(self, k: int) -> tuple[NDArray[Any], Recorded]:
        """Return the rows of shard k and its record; the object is fetched only once.

        Raises
        ------
        ChunkError
            If the object is damaged or missing.
        """
        place, prototype = self.array.store_path, default_buffer_prototype()
        buffer = sync((place / self.key(k)).get(prototype))
        if buffer is None:
            raise damaged()
        seen = Recorded.of(buffer.to_bytes())
        if not seen.size or (self.recorded is not None and seen != self.recorded[k]):
            raise damaged()
        # decode the bytes in memory, which are those that were checked
        memory = StorePath(MemoryStore({self.key(k): buffer}, read_only=True))
        start = k * self._grid[0]
        rows = zarr.Array.from_dict(memory, self.array.metadata.to_dict())
        return np.asarray(rows[start : start + self._grid[0]]), seen

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Return rows, from the shards that hold them."""
        first, *rest = index if isinstance(index, tuple) else (index,)
        n = self.shape[0]  # what is as long may not fit into memory
        wanted = np.arange(*first.indices(n)) if isinstance(first, slice) else np.arange(n)[first]
        if not np.size(wanted):
            return np.empty((0, *self.shape[1:]), self.dtype)[(slice(None), *rest)]
        low, high = int(np.min(wanted)) // self._grid[0], int(np.max(wanted)) // self._grid[0]
        parts = [self.read(k)[0] for k in range(low, high + 1)]
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if isinstance(first, slice) and len(wanted) == len(rows):
            return rows[(slice(None), *rest)]
        return rows[(wanted - low * self._grid[0], *rest)]


@dataclass(frozen=True, eq=False)
class _Whole:
    """An array written by other software: what is no object, or one of zero bytes, is refused before it is read.

    Parameters
    ----------
    array : zarr.Array
    grid : tuple of int
        What one object holds along each axis: a shard, or a chunk.
    """

    array: Any
    grid: tuple[int, ...]

    def __repr__(self) -> str:
        return "<array>"

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "ndim", "dtype"):
            return getattr(self.array, name)
        raise AttributeError(name)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Return a part of the array; an object that does not exist holds the fill value, as Zarr defines."""
        axes = zip(self.array.shape, index, self.grid, strict=True)
        corners = [_objects_along(*axis) for axis in axes]
        for place in np.ndindex(*map(len, corners)):
            corner = tuple(int(c[k]) for c, k in zip(corners, place, strict=True))
            if _size_of(self.array.store_path / self.array.metadata.encode_chunk_key(corner)) == 0:
                raise damaged()
        return np.asarray(self.array[index])


def _objects_along(length: int, part: Any, size: int) -> NDArray[np.int64]:
    """Return which objects hold a part of an axis; what is as long as the axis may not fit into memory."""
    chosen = range(length)[part] if isinstance(part, slice) else part
    return np.unique(np.asarray(chosen, np.int64) // size)


def _size_of(stored: StorePath) -> int | None:
    """Return the bytes of an object, None if there is none; Zarr takes a folder, or a link to nothing, for none too.

    Raises
    ------
    ChunkError
        If such lies in its place, or a file in that of a folder around it.
    """
    path = _on_disk(stored)
    try:
        if path is None:
            return int(sync(stored.store.getsize(stored.path)))
        found = path.stat()
    except FileNotFoundError:
        if path is None or not os.path.lexists(path):
            return None
        raise damaged() from None
    except NotADirectoryError:
        raise damaged() from None
    if stat.S_ISDIR(found.st_mode):
        raise damaged()
    return found.st_size


def _on_disk(stored: StorePath) -> Path | None:
    """Return the path of a place in a folder of this machine; None in any other store."""
    store = stored.store
    if isinstance(store, LocalStore):
        return store.root / stored.path
    if isinstance(store, FsspecStore) and "file" in np.atleast_1d(store.fs.protocol):
        return Path(store.path) / stored.path
    return None


class Arrays(NamedTuple):
    """The arrays of a group by name, in the order of their names: a store lists them in any order.

    Parameters
    ----------
    columns : dict of str to zarr.Array
    coordinates : dict of str to zarr.Array
        What xarray keeps beside the columns, such as an index: they are no data variables of its Dataset.
    """

    columns: dict[str, Any]
    coordinates: dict[str, Any]


def not_listed(kind: str) -> StructureError:
    """Return the error for a group that Zarr cannot list; ``kind`` is the type of the exception."""
    return StructureError(
        f"The arrays of a Zarr group cannot be listed ({kind}). If one is of a type that Zarr does not have here, such"
        " as pickled objects, write it as text or numbers, or give the arrays that are needed as a group of their own."
    )


@in_our_words(not_listed)
def all_arrays_of(group: zarr.Group) -> Arrays:
    """Return the columns and the coordinates of a group.

    Raises
    ------
    StructureError
        If Zarr cannot list it.
    """
    arrays = dict(sorted(group.arrays()))
    beside = coordinates_among(arrays, group.attrs)
    return Arrays(
        {name: array for name, array in arrays.items() if name not in beside},
        {name: array for name, array in arrays.items() if name in beside},
    )


def arrays_of(group: zarr.Group) -> dict[str, Any]:
    """Return the arrays of a group that are columns, by name and in the order of their names."""
    return all_arrays_of(group).columns


def from_zarr(array: Any) -> da.Array:
    """Return a Zarr Array as a Dask Array, with one chunk per shard, and the values that `xarray.open_zarr` gives.

    Raises
    ------
    StructureError
        If attributes say that its values stand for others, which cannot be decoded.
    ChunkError
        When a chunk is computed, if an object of a sharded array has no bytes, or of an array on a disk is a folder;
        Zarr would read the fill value.
    """
    decoding, stored = decoding_of(array), _as_stored(array)
    if decoding is None:
        return stored
    meta = np.empty((0,) * stored.ndim, decoding.dtype)
    return da.map_blocks(decoding, stored, dtype=decoding.dtype, meta=meta, token="dpgb-decode")


def lazily(data: Any) -> Any:
    """Return a Zarr Array as `from_zarr` reads it; anything else as it is."""
    return from_zarr(data) if isinstance(data, zarr.Array) else data


class Whole(NamedTuple):
    """Whole numbers as they stand in a Zarr Array with a mark of missing values.

    Parameters
    ----------
    values : Dask Array of objects
        Each an int, or None where it is missing.
    dtype : dtype
        Of the numbers.
    """

    values: da.Array
    dtype: np.dtype[Any]


def whole_from_zarr(array: Any) -> Whole | None:
    """Return whole numbers that `from_zarr` would give as floats, in which those of 2⁵³ and above are rounded.

    Returns
    -------
    Whole, or None if `from_zarr` gives the values as they are.

    Raises
    ------
    StructureError, ChunkError
        As `from_zarr`.
    """
    read = whole_numbers_of(array)
    if read is None:
        return None
    stored = _as_stored(array)
    meta = np.empty((0,) * stored.ndim, object)
    values = da.map_blocks(read, stored, dtype=object, meta=meta, token="dpgb-whole")
    return Whole(values, read.dtype)


def _as_stored(array: Any) -> da.Array:
    shards = getattr(array, "shards", None)
    if shards is None and _on_disk(array.store_path) is None:
        # of a chunk without bytes Zarr itself raises, and other stores have no folders
        return da.from_zarr(array, chunks=array.chunks)
    grid = tuple(shards or array.chunks)
    name = f"from-zarr-{tokenize(array, grid)}"
    return da.from_array(_Whole(array, grid), chunks=grid, name=name)
