"""Opening a data set: only its structure is read; every shard is checked when it is read later."""
# ruff: noqa: N806 - X is scikit-learn's name

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import xarray as xr
import zarr
from dask.delayed import delayed

from dpgb_dask.calls import spoken
from dpgb_dask.contracts.features import Datetime, Feature, Grouped, Hashed
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.columns import category_cells
from dpgb_dask.errors import StructureError, in_our_words
from dpgb_dask.io.layout import Layout, are_numbers, lists_of, metadata_of
from dpgb_dask.io.place import AGAIN, ATTRIBUTE, Place, damaged_facts, lacks_parts
from dpgb_dask.io.rows import classes_at, frame_of, weight_name
from dpgb_dask.names import WEIGHT
from dpgb_dask.zarr_arrays import Recorded, Shards

ALONE = {Datetime, Grouped, Hashed}  # types of features that are stored as no other type is


class Dataset(NamedTuple):
    """A lazily opened data set, in the form that ``fit`` takes.

    Parameters
    ----------
    X : DataArray of a Dask Array with the features' names, or Dask DataFrame
        A DataFrame if features are text or rows have units; the unit is one of its columns.
    y : Dask Array or Series
    sample_weight : Dask Array, Series or None
    schema : Schema
    """

    X: Any
    y: Any
    sample_weight: Any
    schema: Schema

    def __repr__(self) -> str:
        return f"Dataset({self.schema!r})"


@spoken
def open_dataset(path: str | Path, *, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """Open a data set; only its structure is read.

    Parameters
    ----------
    path : str or Path
        As for `write_dataset`.
    storage_options : mapping, optional
        For fsspec; by default it takes them from the environment.

    Raises
    ------
    StructureError
        If the path does not exist, holds no data set or an incomplete one, or parts of it are missing or damaged. A
        shard that is damaged but has its right size raises `ChunkError` when it is read.
    """
    place = Place.named(path, storage_options)
    group = place.open("r")
    facts = group.attrs.get(ATTRIBUTE)
    layout = Layout.read(place.path, facts)
    arrays: dict[str, da.Array] = {}
    for name, shards in _checked(place, group, layout, facts).items():
        # named by its id, not by its path: else Dask would take two data sets of one path for the same
        chunks = shards.array.shards
        arrays[name] = da.from_array(shards, chunks=chunks, name=f"{name}-{layout.id}")
    if layout.named:
        return _as_frame(arrays, layout)
    names = {"feature": list(layout.schema.names)}
    X = xr.DataArray(arrays["X"], dims=("row", "feature"), coords=names)
    y = arrays["y"]
    if layout.target_coded:
        y = da.map_blocks(classes_at, y, layout.schema.target.classes, dtype=object)
    return Dataset(X, y, arrays.get(WEIGHT), layout.schema)


def is_dataset(path: str | Path) -> bool:
    """Whether there is a data set at a path, complete or not."""
    place = Place.named(path, None)
    return place.exists() and place.is_ours()


def not_kept(data: Dataset, schema: Schema) -> tuple[str, ...]:
    """Return the columns for which a schema needs distinctions that a data set did not keep.

    A data set keeps the distinctions that the schema it was written with makes, whatever its rows hold. For a column
    declared numeric, another schema may declare other bounds. For categories or classes that are numbers, it may
    declare other numbers; for all others, only the same ones, in any order. Dates may get other bounds and parts;
    a mapping or a hash must be the same. Labels that are numbers may also be read as
    a target with bounds, and the other way round.

    Parameters
    ----------
    data : Dataset
        A data set that has the features of the schema.
    schema : Schema
    """
    asked, kept = lists_of(schema), lists_of(data.schema)
    target = schema.target.name, data.schema.target.name
    lost = []
    for name, feature in schema.features.items():
        stored = data.schema.features[name]
        if {type(stored), type(feature)} & ALONE:
            keeps = _is_same(stored, feature)
        else:
            keeps = _keeps(kept[name], asked[name], both=False)
        if not keeps:
            lost.append(name)
    if not _keeps(kept[target[1]], asked[target[0]], both=True):
        lost.append(target[0])
    return tuple(lost)


def _is_same(stored: Feature, feature: Feature) -> bool:
    """Whether two features are of one type and, unless they are dates, of one mapping or number of buckets."""
    if type(stored) is not type(feature):
        return False
    bare = [replace(each, missing=False) for each in (stored, feature)]
    return isinstance(stored, Datetime) or bare[0] == bare[1]


def _keeps(kept: Sequence[Any], asked: Sequence[Any], *, both: bool) -> bool:
    """Whether a column stored by the list ``kept`` tells each row's category in the list ``asked``."""
    if not are_numbers(kept):
        known = category_cells(pd.Series(list(asked), dtype=object), kept)
        return len(asked) > 0 and bool(np.all(known != len(kept)))
    return are_numbers(asked) and (both or (len(kept) > 0) == (len(asked) > 0))


@in_our_words(lambda kind: StructureError(f"A data set's arrays are damaged ({kind}). {AGAIN}"))
def _checked(place: Place, group: zarr.Group, layout: Layout, facts: Any) -> dict[str, Shards]:
    """Return the arrays of a data set, after checking that every object exists and has its recorded size.

    Raises
    ------
    StructureError
        If an object is missing or has another size, or an array has another shape or type than the layout.
    """
    out = {}
    n_rows: set[tuple[int, int]] = set()
    for name, (dtype, wide) in layout.arrays().items():
        array: Any = group.get(name)
        if not isinstance(array, zarr.Array):
            raise lacks_parts(place.path)
        # units are text; those of format 1 may be numbers
        known = array.dtype.kind in "TOf" if dtype is str else array.dtype == np.dtype(dtype)
        fits = known and array.ndim == 1 + len(wide) and tuple(array.shape[1:]) == wide
        if not fits or array.shards is None or tuple(array.shards[1:]) != wide:
            raise damaged_facts(place.path)
        n_rows.add((array.shape[0], array.shards[0]))
        recorded = None
        if "shards" in facts:
            recorded = tuple(Recorded(size, digest) for size, digest in facts["shards"][name])
            if metadata_of(array) != facts["arrays"][name]:
                raise damaged_facts(place.path)
        shards = Shards(array, recorded)
        if recorded is not None and len(recorded) != shards.n_shards:
            raise damaged_facts(place.path)
        sizes = place.sizes(name)
        for k in range(shards.n_shards):
            size = sizes.get(shards.key(k), 0)
            if size == 0 or (recorded is not None and size != recorded[k].size):
                raise lacks_parts(place.path)
        out[name] = shards
    if len(n_rows) > 1:
        raise damaged_facts(place.path)
    return out


def _as_frame(arrays: Mapping[str, da.Array], layout: Layout) -> Dataset:
    """Return a data set as frames, whose features have their own types; a chunk's columns are read together."""
    names = list(arrays)
    blocks = [arrays[name].to_delayed().ravel() for name in names]
    make = delayed(frame_of, pure=False)
    common = delayed(layout, name=f"dpgb-layout-{layout.id}", traverse=False)
    parts = [make(names, list(block), common) for block in zip(*blocks, strict=True)]
    empty = [np.empty((0, *arrays[name].shape[1:]), arrays[name].dtype) for name in names]
    with dask.config.set({"dataframe.convert-string": False}):
        table = dd.from_delayed(parts, meta=frame_of(names, empty, layout), verify_meta=False)
    schema = layout.schema
    unit = [schema.unit_id] if layout.unit else []
    X = table[[*schema.names, *unit]]
    weight = table[weight_name(schema)] if layout.weight else None
    return Dataset(X, table[schema.target.name], weight, schema)
