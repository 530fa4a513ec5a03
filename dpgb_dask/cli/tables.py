"""Reading the data of a command (Parquet, text, Zarr and data sets) and their schema."""
# ruff: noqa: N803 - X is scikit-learn's name

import argparse
from collections import Counter
from collections.abc import Container, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import fsspec
import pandas as pd
import zarr

from dpgb_dask.cf_decoding import dims_of
from dpgb_dask.cli.parquet import Parquet, read_parquet
from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.columns import exact_ids, numbers, with_read
from dpgb_dask.encoding.frames import in_partitions
from dpgb_dask.encoding.structure import (
    check_beside,
    check_file_types,
    check_one_axis,
    match_names,
)
from dpgb_dask.errors import SchemaError, StructureError, first_few, listed
from dpgb_dask.io.opening import is_dataset, not_kept, open_dataset
from dpgb_dask.io.text import read_csv, reading
from dpgb_dask.names import WEIGHT
from dpgb_dask.parameters import with_unit
from dpgb_dask.private.reading.parquet_files import not_below_each, not_in_each
from dpgb_dask.remote import is_there, is_url
from dpgb_dask.zarr_arrays import all_arrays_of, from_zarr, whole_from_zarr

KNOWN_FILES = "Give a Parquet file or directory, text (.csv, .tsv or .txt), or a .zarr."
DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": ","}  # delimiters of text files, by suffix
# names for delimiters that are hard to type
WORDS_OF_DELIMITERS = {
    "tab": "\t",
    "\\t": "\t",
    "space": " ",
}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def schema_of(options: argparse.Namespace) -> Schema:
    """Load the schema; another target, a weight column or a unit changes which columns it ignores."""
    check_there(options.data)
    weight = getattr(options, "weight", None)
    if options.schema is not None:
        facts = Schema.load(options.schema).to_dict()
    elif is_zarr(options.data) and is_dataset(options.data):
        facts = open_dataset(options.data).schema.to_dict()
        weight = None  # a data set keeps its weights apart from the features
    else:
        raise SchemaError(
            f"{options.data!r} holds no schema. Give --schema FILE, the public facts of its columns."
        )
    ignore = {*facts["ignore"], *(() if weight is None else (weight,))}
    if options.target is not None and options.target != facts["target"]["name"]:
        ignore.add(facts["target"]["name"])
        facts["target"]["name"] = options.target
    if weight is not None and weight in (*facts["features"], facts["target"]["name"]):
        what = "a feature" if weight in facts["features"] else "the target"
        raise SchemaError(
            f"--weight {weight!r} is {what} of the schema. Name a column that is neither, or change the schema."
        )
    facts["ignore"] = sorted(ignore - {facts["target"]["name"]})
    # here and not later: the units of a file are read as they stand in it
    unit, most = getattr(options, "unit", None), getattr(options, "max_rows_per_unit", 1)
    return with_unit(Schema.from_dict(facts), unit, most)


def check_there(path: str) -> None:
    """Refuse a path without data, before a reader raises an error of its own.

    Raises
    ------
    StructureError
        If nothing exists at the path, or nothing matches the pattern.
    """
    if is_url(path) and is_there(path):
        return
    with reading(path, KNOWN_FILES):
        files, root = fsspec.core.url_to_fs(path)
        if files.exists(root) or files.glob(root):
            return
    raise StructureError(
        f"{path!r} does not exist. Give a Parquet file or directory, a .csv or a .zarr that does."
    )


def _kind_of_text(path: str) -> str | None:
    """Return the suffix of a text file without that of its compression; None if it is no text file."""
    suffixes = [one.lower() for one in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in DELIMITERS else None


def open_table(
    options: argparse.Namespace, schema: Schema, *, strict: bool = False, as_text: bool = False
) -> tuple[Any, Mapping[str, Any]]:
    """Return X and the other columns; nothing is computed.

    The columns of a file have names, so their order is no matter: X has the features in the schema's.

    Parameters
    ----------
    options : Namespace
        Options with the path of the data and the form of text files.
    schema : Schema
    strict : bool
        For predictions: a malformed line of a text file raises when it is read, where it is otherwise a row of missing
        values, and the other columns are as they stand in the file, such as text in a file of text.
    as_text : bool
        Whether numbers of a file of text stay text, so that what is no number can be shown.

    Raises
    ------
    StructureError
        If the data cannot be opened; the message names the path and never its content.
    """
    path, kind = options.data, _checked_kind(options)
    with reading(path, KNOWN_FILES):
        if is_zarr(path):
            if is_dataset(path):
                return _open_set(path, schema)
            return _open_zarr(path, schema, strict=strict)
        if kind is None:
            source, index = _open_parquet(options, schema, strict=strict)
            frame = source
        else:
            source, index = _text_frame(options, kind, strict=strict), frozenset()
            _check_delimiter(options, source, schema)
            frame = source if as_text else _with_numbers(source, schema)
        frame = _keep_units(frame, schema)
    shown = source if strict else frame
    return _in_order(frame, schema, index), {str(name): shown[name] for name in shown.columns}


def _check_delimiter(options: argparse.Namespace, frame: dd.DataFrame, schema: Schema) -> None:
    """Refuse a file of text without any feature: most likely its first line was not split."""
    if not any(name in schema.features for name in frame.columns):
        raise StructureError(
            f"no feature of the schema is a column of {options.data!r}: missing={listed(schema.names)}. Is it the"
            " --delimiter, or a title above the names? Else, give the file a first line of names."
        )


def _in_order(frame: dd.DataFrame, schema: Schema, index: Set[str]) -> dd.DataFrame:
    """Return a frame with its features in the schema's order, and without an index that the schema does not name."""
    features = [name for name in schema.names if name in frame.columns]
    aside = index - {*features, schema.unit_id}
    if features == [n for n in frame.columns if n in schema.features] and not aside:
        return frame
    # a reader skips columns only in the order of its file, so those that a fit leaves out go here; what the schema does
    # not declare stays, and is refused later
    aside |= {*features, *schema.ignore, schema.target.name}
    return frame[[*features, *(name for name in frame.columns if name not in aside)]]


def open_names(options: argparse.Namespace) -> dd.DataFrame | None:
    """Return a file of text as a frame of text, of which only the first line is read; None for another file."""
    kind = _checked_kind(options)
    return None if kind is None else _text_frame(options, kind, strict=False)


def _checked_kind(options: argparse.Namespace) -> str | None:
    """Return the suffix of a text file, None for another file; refuse options of text for that."""
    kind = _kind_of_text(options.data)
    for flag in ("delimiter", "encoding", "decimal"):
        if kind is None and getattr(options, flag) is not None:
            raise StructureError(
                f"--{flag} is for files of text, which end in {' or '.join(DELIMITERS)}; {options.data!r} is none."
            )
    return kind


def _keep_units(frame: dd.DataFrame, schema: Schema) -> dd.DataFrame:
    """Return rows whose units are exactly as in their file."""
    if schema.unit_id not in frame.columns:
        return frame
    if schema.unit_id == "self":
        raise StructureError("unit_id='self': Dask assigns no column of that name. Rename it.")
    return frame.assign(**{str(schema.unit_id): _exact(frame[schema.unit_id])})


def _exact(ids: Any) -> dd.Series:
    """Return a column of ids exactly as in its file."""
    return ids.map_partitions(exact_ids, meta=pd.Series([], name=ids.name, dtype=object))


def is_zarr(path: str) -> bool:
    """Whether a path's name is that of a Zarr store, or in a chain of addresses that of a part."""
    return any(part.rstrip("/").endswith(".zarr") for part in path.split("::"))


def _open_set(path: str, schema: Schema) -> tuple[Any, Mapping[str, Any]]:
    """Open a data set that ``convert`` wrote."""
    data = open_dataset(path)
    if {*data.schema.names} != {*schema.names}:
        lacks = [name for name in schema.names if name not in data.schema.features]
        how = f"it lacks {listed(lacks)}" if lacks else "it has others too"
        raise SchemaError(
            f"{path!r} holds other features than the schema: {how}. Convert the source again."
        )
    if lost := not_kept(data, schema):
        raise SchemaError(
            f"{path!r} was written under a schema with other categories, and keeps what that one lacks as one category:"
            f" {first_few(map(repr, lost))} would be misread under this schema. Convert the source again with this"
            " schema, or fit with the one in the data set."
        )
    columns = {data.schema.target.name: data.y}
    if data.sample_weight is not None:
        columns[WEIGHT] = data.sample_weight
    if data.schema.names == schema.names:
        return data.X, columns
    if isinstance(data.X, dd.DataFrame):
        return _in_order(data.X, schema, frozenset()), columns
    return data.X.sel(feature=list(schema.names)), columns


def _open_zarr(path: str, schema: Schema, *, strict: bool) -> tuple[Any, Mapping[str, Any]]:
    """Open a matrix, a group of columns, or a group of a matrix "X" and its target "y"."""
    store = zarr.open(path, mode="r")
    if isinstance(store, zarr.Array):
        matrix = from_zarr(store)
        check_file_types(dict.fromkeys(schema.names, matrix.dtype), schema)
        return matrix, {}
    arrays, beside = all_arrays_of(store)
    place = {name: k for k, name in enumerate(schema.names)}  # the arrays of a group have no order
    order = sorted(
        _of_rows(arrays, schema, strict=strict), key=lambda name: place.get(name, len(place))
    )
    columns = {name: from_zarr(arrays[name]) for name in order}
    types = {key: array.dtype for key, array in columns.items()}
    if "X" in types:
        types = dict.fromkeys(schema.names, types["X"])
    else:
        check_beside(columns, beside, schema)
    check_file_types(types, schema)
    if not columns:
        raise StructureError(
            f"{path!r} holds no arrays. Give a Zarr array, a group of columns, or a data set that convert wrote."
        )
    if "X" in columns:
        matrix = columns.pop("X")
        return matrix, _whole(columns, arrays, matrix.chunks[0]) if strict else columns
    first = next(iter(columns.values()))
    # a coordinate of the rows is no feature, but may be kept beside predictions, or be the target
    ids = {key: from_zarr(array) for key, array in beside.items() if array.shape == first.shape}
    aligned = {key: c.rechunk({0: first.chunks[0]}) for key, c in (ids | columns).items()}
    series: dict[str, Any] = {key: in_partitions(aligned[key], key) for key in columns}
    if schema.unit_id in series:
        unit = str(schema.unit_id)
        series[unit] = _exact(_whole({unit: series[unit]}, arrays, first.chunks[0])[unit])
    shown = _whole(aligned, beside | arrays, first.chunks[0]) if strict else aligned
    return dd.concat(list(series.values()), axis=1, ignore_unknown_divisions=True), shown


def _whole(
    columns: Mapping[str, Any], arrays: Mapping[str, Any], chunks: tuple[int, ...]
) -> dict[str, Any]:
    """Return columns, those of whole numbers exactly as in their arrays: a missing one would make them floats."""
    out = dict(columns)
    for name in columns:
        one_axis = arrays[name].shape == (sum(chunks),)
        whole = whole_from_zarr(arrays[name]) if one_axis else None
        if whole is not None:
            column = in_partitions(whole.values.rechunk({0: chunks}), name)
            out[name] = column.astype("UInt64" if whole.dtype.kind == "u" else "Int64")
    return out


def _of_rows(arrays: Mapping[str, Any], schema: Schema, *, strict: bool) -> list[str]:
    """Return the names of a group's arrays that may be columns; those along another axis than the features are none.

    Axes without names are told apart by their lengths.

    Raises
    ------
    SchemaError, StructureError
        If features lie along different axes, or along several, or none is there. So for the target and the unit, which
        predictions do not need.
    """
    if "X" in arrays or not arrays:
        return list(arrays)
    axes = {name: dims for name, array in arrays.items() if (dims := dims_of(array)) is not None}
    rows = {name: axes[name] for name in schema.names if name in axes}
    if rows:
        check_one_axis(rows)
        return [name for name in arrays if axes.get(name) in (None, *rows.values())]
    needed = [*schema.names, *(() if strict else (schema.target.name, schema.unit_id))]
    shapes = {name: arrays[name].shape for name in needed if name in arrays}
    if not shapes:
        match_names(arrays, schema, ordered=False)
    most = Counter(shape for shape in shapes.values() if len(shape) == 1).most_common(1)
    whole = most[0][0] if most else ()
    if odd := [name for name, shape in shapes.items() if not shape or shape != whole]:
        raise StructureError(
            f"arrays of a Zarr group are no columns of one table: {listed(odd)} have not one axis, of as many rows as"
            " the others. Write them so."
        )
    return [name for name in arrays if arrays[name].shape == whole]


def _open_parquet(
    options: argparse.Namespace, schema: Schema, *, strict: bool
) -> tuple[dd.DataFrame, Set[str]]:
    """Open Parquet, whose types are those in the file; also return which of its columns are an index of pandas."""
    # a missing value would turn NumPy integers into floats, which are rounded: units, and columns that are copied
    exact = schema.unit_id is not None or bool(getattr(options, "keep", ()))
    table = read_parquet(options.data, "pyarrow" if exact else None)
    _refuse_lost(options, schema, table, strict=strict)
    if table.apart:
        raise not_below_each(table.apart, schema)
    # a fit compares what it reads itself
    needed = {*schema.names, *_kept(options, table)} - table.folders if strict else set()
    lacking = {
        n for n in needed.intersection(table.frame.columns) for t in table.types if n not in t
    }
    if lacking:
        raise not_in_each(lacking, schema)
    beside = table.folders | ({schema.target.name} if strict else set())
    for types in table.types:
        check_file_types({n: t for n, t in types.items() if n not in beside}, schema)
    return table.frame, table.stored


def names_in(given: str, columns: Container[str]) -> list[str]:
    """Return the columns that one --keep names: a column with commas in its name, or several between commas."""
    return [given] if given in columns else [name.strip() for name in given.split(",")]


def _kept(options: argparse.Namespace, table: Parquet) -> list[str]:
    """Return the columns that --keep names."""
    known = {*table.frame.columns, *table.lost}
    return [name for given in getattr(options, "keep", ()) for name in names_in(given, known)]


def _refuse_lost(
    options: argparse.Namespace, schema: Schema, table: Parquet, *, strict: bool
) -> None:
    """Raise if the command needs an index that cannot be read as a column; pandas shows it, so it seems to be there.

    Raises
    ------
    StructureError
        If it does.
    """
    weight = getattr(options, "weight", None)
    beside = _kept(options, table) if strict else [schema.target.name, schema.unit_id, weight]
    if met := [name for name in (*schema.names, *beside) if name in table.lost]:
        raise StructureError(
            f"{options.data!r} has no column {met[0]!r}: it is an index, which pandas wrote as a range or with several"
            " levels. Write the file again with the index as a column: frame.reset_index().to_parquet(…)."
        )


def _with_numbers(frame: dd.DataFrame, schema: Schema) -> dd.DataFrame:
    """Return text whose columns declared as numbers are parsed when they are read, as numbers take less memory."""
    numeric = {name for name, f in schema.features.items() if isinstance(f, Numeric)}
    if not schema.target.classes:
        numeric.add(schema.target.name)
    read = partial(_parsed, numeric=numeric)
    return frame.map_partitions(read, meta=read(frame._meta), enforce_metadata=False)  # noqa: SLF001


def _text_frame(options: argparse.Namespace, kind: str, *, strict: bool) -> dd.DataFrame:
    given = options.delimiter
    delimiter = DELIMITERS[kind] if given is None else WORDS_OF_DELIMITERS.get(given, given)
    return read_csv(
        options.data,
        delimiter=delimiter,
        encoding=options.encoding or "utf-8",
        decimal=options.decimal or ".",
        strict=strict,
    )


def _parsed(frame: pd.DataFrame, *, numeric: Set[str]) -> pd.DataFrame:
    """Return a frame with some of its text columns parsed as numbers."""
    return with_read(frame, [name for name in frame.columns if name in numeric], numbers)


def beside(
    options: argparse.Namespace, schema: Schema, X: Any, columns: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return the target and the weights, the columns besides the features; a table needs that of the unit, too."""
    target = schema.target.name
    y = column("--target", columns, target, *(() if isinstance(X, dd.DataFrame) else ("y",)))
    weight = None if options.weight is None else column("--weight", columns, options.weight)
    if schema.unit_id is not None and isinstance(X, dd.DataFrame):
        column("--unit", dict.fromkeys(X.columns), schema.unit_id)
    return y, weight


def column(flag: str, columns: Mapping[str, Any], *names: str) -> Any:
    """Return the first of some columns that is in the data; the error mentions ``flag``, which names another."""
    for name in names:
        if name in columns:
            return columns[name]
    raise StructureError(
        f"column {names[0]!r} is not in the data. Name another with {flag}; of a file of text, is it the --delimiter?"
    )
