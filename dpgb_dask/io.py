"""Reading and writing what people have: data sets of rows as Zarr, and files of text (`read_csv`).

A data set lies on disk or in an object store, aligned to the shards of Zarr, with its schema beside it.

A fit reads its source once or twice; what is slow to read or to line up (many small files, CSV, a pipeline) is better
put into one data set first. It is laid out as

- a group with the attribute ``dpgb_dask``: the format, the schema, the features' names, and whether it is complete;
- ``X`` (rows, features), ``y``, ``sample_weight`` and ``unit`` (rows): one shard per block of rows in each;
- in the attribute, too, the size and digest of every shard, and digests of the arrays' metadata and of the attribute
  itself: sizes are checked as the data set is opened, digests as a shard is read. They tell damage, not a forger.

Features that are declared categories are kept as their place in the schema's list; as the numbers they are, if all of
the list are numbers. A model fitted from the data set is the same, bit for bit, as one fitted from its source.
"""
# ruff: noqa: N803, N806 - X is scikit-learn's name

import hashlib
import itertools
import json
import math
import operator
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import xarray as xr
import zarr
from dask.base import compute
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, Crc32cCodec

from dpgb_dask.columns import Columns, in_order
from dpgb_dask.contracts.schema import Categorical, Schema
from dpgb_dask.encode import (
    category_cells,
    n_rows,
    numbers,
    one_column,
    split_columns,
)
from dpgb_dask.errors import ChunkError, SchemaError, StructureError, in_our_words
from dpgb_dask.private.ingest import (
    Inputs,
    Rows,
    Source,
    check_inputs,
    failed_to_load,
    line_up,
    source_of,
)
from dpgb_dask.private.parsers import warn_of_parsers
from dpgb_dask.private.survey import slice_block
from dpgb_dask.private.units import distinct_names
from dpgb_dask.stored import Recorded, Shards
from dpgb_dask.text import read_csv
from dpgb_dask.values import ExactId, cells, is_missing

__all__ = ["Dataset", "open_dataset", "read_csv", "write_dataset"]

FORMAT = 2  # 1 recorded no shards
CHECKED = {"arrays", "shards", "check"}
ATTRIBUTE = "dpgb_dask"
METADATA = "zarr.json"  # of a group or an array
MOST_ROWS = 1 << 18  # of a shard …
SHARD_BYTES = 1 << 25  # … which a task holds a few times over while it writes
LEAST_ROWS = 1 << 10
SINGLE = frozenset(
    {"bool", "int8", "uint8", "int16", "uint16", "float16", "float32"}
)  # exact in it
INFERRED = frozenset({"bool", "int64", "uint64"})  # which a missing value elsewhere makes another
WEIGHT = "sample_weight"
REPLACE = "overwrite=True (on the command line: --overwrite)"
AGAIN = f"Write it again, with {REPLACE}."


class Dataset(NamedTuple):
    """A data set, lazily: what ``fit`` takes.

    Parameters
    ----------
    X : DataArray of a Dask Array with the features' names, or Dask DataFrame
        A frame where features are text or rows have units; the unit is one of its columns.
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
    """Write rows of any kind that ``fit`` takes as a data set; the whole is never in memory.

    Dask collections are written by the current Dask client, each task whole shards, which it reads back and compares.
    The mark that the data set is complete comes last: one that was interrupted cannot be opened.

    Parameters
    ----------
    path : str or Path
        A folder that does not exist yet, or a URL that fsspec knows, such as ``s3://bucket/people.zarr``. Workers of a
        cluster write there too: give them a file system that they share.
    X, y, sample_weight
        As for ``fit``. ``y=None``: the column of X with the target's name. A schema with a ``unit_id`` takes the units
        from that column of X.
    schema : Schema, its JSON form, or the path of its file
    columns : "position", list of str, optional
        What the columns of an array without names are, as for the estimators.
    shard_rows : int, optional
        Rows of a shard; by default at most 2**18, and 32 MiB.
    overwrite : bool
        Replace a data set, whole or interrupted: it is removed first. Anything else is never replaced, nor is what X
        or y read.
    storage_options : mapping, optional
        For fsspec; by default it takes them from the environment.

    Raises
    ------
    SchemaError, StructureError, UnsupportedCollectionError
        If the structure does not fit, the path is taken, or the folder around it does not exist.
    ChunkError
        If a chunk cannot be read, or a shard cannot be written, or reads back otherwise.
    OSError
        If the path cannot be made.

    Privacy
    -------
    The data owner's own tool: the data set holds rows. Local folders are closed to other users. No message carries a
    value or a length.

    Examples
    --------
    >>> write_dataset("people.zarr", frame, schema=schema)  # doctest: +SKIP
    >>> data = open_dataset("people.zarr")  # doctest: +SKIP
    >>> DPGBClassifier(schema=data.schema).fit(data.X, data.y)  # doctest: +SKIP
    """
    declared = _schema_of(schema)
    X = in_order(X, declared, columns, beside=True)
    inputs = check_inputs(X, y, sample_weight, declared, declared.unit_id)
    warn_of_parsers(inputs)
    layout = Layout.of(inputs, declared)
    source = source_of(inputs, declared)
    rows = _shard_rows(layout, shard_rows)
    place = _Place(str(path), dict(storage_options or {}))
    if overwrite and place.exists():
        _check_replaced(place, source)
    place.take(overwrite=overwrite)
    try:
        group = place.create(layout)
        lengths = _lengths(source)
        names = _create_arrays(group, layout, sum(lengths), rows)
        shards = _write(source, lengths, rows, _Writer(place, layout, names))
        group.attrs[ATTRIBUTE] = _recorded(layout, group, shards)
        place.close()
    except BaseException:
        place.remove()
        raise


def open_dataset(path: str | Path, *, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """Open a data set; nothing is read but its structure.

    Parameters
    ----------
    path : str or Path
        As for `write_dataset`.
    storage_options : mapping, optional
        For fsspec; by default it takes them from the environment.

    Raises
    ------
    StructureError
        If the path does not exist, or it is none, was not written to its end, or parts of it are gone or damaged. A
        shard that is damaged within its size raises `ChunkError` as it is read.
    """
    place = _Place(str(path), dict(storage_options or {}))
    group = place.open("r")
    facts = group.attrs.get(ATTRIBUTE)
    layout = Layout.read(place, facts)
    arrays: dict[str, da.Array] = {}
    for name, shards in _checked(place, group, layout, facts).items():
        # named by what was written, not by where: Dask would take two data sets of one path for the same
        chunks = shards.array.shards
        arrays[name] = da.from_array(shards, chunks=chunks, name=f"{name}-{layout.id}")
    if layout.named:
        return _as_frame(arrays, layout)
    names = {"feature": list(layout.schema.names)}
    X = xr.DataArray(arrays["X"], dims=("row", "feature"), coords=names)
    y = arrays["y"]
    if layout.target_coded:
        y = da.map_blocks(_labels, y, layout.schema.target.classes, dtype=object)
    return Dataset(X, y, arrays.get(WEIGHT), layout.schema)


def is_dataset(path: str | Path, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Whether there is a data set at a path, or one that was not written to its end."""
    place = _Place(str(path), dict(storage_options or {}))
    return place.exists() and place.is_ours()


def not_kept(data: Dataset, schema: Schema) -> tuple[str, ...]:
    """Return the columns of which a schema asks what a data set did not keep.

    A data set keeps what the schema that it was written with tells apart, whatever its rows hold. Of a column declared
    as numbers, another schema may declare other bounds; of one declared as categories or classes that are numbers,
    other numbers; of other categories and classes those alone, in any order. Labels that are numbers may also be read
    as a target with bounds, and such a target as labels.

    Parameters
    ----------
    data : Dataset
        With the features of the schema.
    schema : Schema
    """
    asked, kept = _lists(schema), _lists(data.schema)
    target = schema.target.name, data.schema.target.name
    lost = [name for name in schema.names if not _keeps(kept[name], asked[name], both=False)]
    if not _keeps(kept[target[1]], asked[target[0]], both=True):
        lost.append(target[0])
    return tuple(lost)


def _lists(schema: Schema) -> dict[str, tuple[Any, ...]]:
    """Return the categories of each feature and of the target; none for numbers."""
    lists = {
        name: feature.categories if isinstance(feature, Categorical) else ()
        for name, feature in schema.features.items()
    }
    return lists | {schema.target.name: schema.target.classes}


def _keeps(kept: Sequence[Any], asked: Sequence[Any], *, both: bool) -> bool:
    """Whether a column that was kept as one list says by which category of another each row is."""
    if not are_numbers(kept):
        known = category_cells(pd.Series(list(asked), dtype=object), kept)
        return len(asked) > 0 and bool(np.all(known != len(kept)))
    return are_numbers(asked) and (both or (len(kept) > 0) == (len(asked) > 0))


def are_numbers(categories: Sequence[Any]) -> bool:
    """Whether each of the declared categories or classes, if there are any, is a finite number."""
    return all(isinstance(form, float) and math.isfinite(form) for form in cells(categories))


def _schema_of(schema: Any) -> Schema:
    """Return a schema that its JSON form says the whole of.

    Raises
    ------
    SchemaError
        If it does not.
    """
    if isinstance(schema, str | Path):
        return Schema.load(schema)
    declared = schema if isinstance(schema, Schema) else Schema.from_dict(schema)
    try:
        text = json.dumps(declared.to_dict())
        told = json.dumps(Schema.from_dict(json.loads(text)).to_dict()) == text
    except (TypeError, ValueError):
        told = False
    if not told:
        raise SchemaError(
            "The schema's categories or classes are of types that JSON does not know. Declare text and numbers."
        )
    return declared


# ---- layout ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows are stored.

    Parameters
    ----------
    schema : Schema
    dtype : str
        Of X.
    coded : tuple of int
        Features that are stored as their place among the categories: K stands for any other value, K + 1 for none.
    raw : bool
        Whether X is stored as the matrix that was given; else feature by feature, as floats.
    target : str
        Type of y.
    target_coded : bool
    weight : str
        Type of the weights; "" for none.
    unit : {"", "text", "number"}
        Older data sets hold numbers.
    id : str
        Another for each data set that is written, so that Dask takes no two of them for the same.
    """

    schema: Schema
    dtype: str
    coded: tuple[int, ...]
    raw: bool
    target: str
    target_coded: bool
    weight: str
    unit: str
    id: str

    @classmethod
    def of(cls, inputs: Inputs, schema: Schema) -> "Layout":
        """Choose the layout from the schema, and types from those of columns that no reader infers from values."""
        lists = _lists(schema)
        coded = tuple(j for j, name in enumerate(schema.names) if not are_numbers(lists[name]))
        raw = _is_plain(inputs.x) and not coded
        lazy = isinstance(inputs.x, dd.DataFrame)
        single = not raw and all(
            j in coded or _is_single(dtype, lazy=lazy) for j, dtype in enumerate(inputs.dtypes)
        )
        target_coded = not are_numbers(schema.target.classes)
        return cls(
            schema=schema,
            dtype=_column_type(inputs.x) if raw else ("float32" if single else "float64"),
            coded=coded,
            raw=raw,
            target="uint8" if target_coded else _column_type(inputs.y),
            target_coded=target_coded,
            weight="" if inputs.weight is None else _column_type(inputs.weight),
            unit="" if inputs.unit is None else "text",
            id=uuid.uuid4().hex,
        )

    @classmethod
    def read(cls, place: "_Place", facts: Any) -> "Layout":
        """Return the layout of a data set from its attribute.

        Raises
        ------
        StructureError
            If it is none of ours, of a newer format, or not complete.
        """
        if not _is_said(facts):
            raise _no_data_set(place.path)
        version = facts["format"]
        if type(version) is not int or version < 1:
            raise _damaged_facts(place)
        if version > FORMAT:
            raise StructureError(
                f"path={place.path!r} has format={version}, newer than {FORMAT}. Update dpgb_dask."
            )
        if facts.get("complete") is False:
            raise StructureError(f"path={place.path!r} was not written to its end. {AGAIN}")
        # format 1 had none of what is checked
        as_written = (
            facts.get("check") == _check_of(facts) if version > 1 else not CHECKED & set(facts)
        )
        if not as_written:
            raise _damaged_facts(place)
        try:
            fields = {name: facts[name] for name in cls.__slots__}
            fields["coded"] = tuple(map(operator.index, facts["coded"]))
            fields["schema"] = Schema.from_dict(facts["schema"])
            return cls(**fields)
        except (SchemaError, KeyError, TypeError, ValueError):
            pass
        raise _damaged_facts(place)

    def facts(self, *, complete: bool) -> dict[str, Any]:
        """Return the attribute of a data set."""
        schema = self.schema.to_dict()
        stored = {name: value for name, value in asdict(self).items() if name != "schema"}
        return {
            "format": FORMAT,
            "complete": complete,
            "schema": schema,
            "feature_names": list(self.schema.names),
            **stored,
            "coded": list(self.coded),
        }

    @property
    def named(self) -> bool:
        """Whether the data set is opened as a DataFrame."""
        return bool(self.coded or self.unit)

    def arrays(self) -> dict[str, Any]:
        """Return the name and type of each array."""
        types: dict[str, Any] = {"X": self.dtype, "y": self.target}
        if self.weight:
            types[WEIGHT] = self.weight
        if self.unit:
            types["unit"] = str
        return types


def _is_plain(data: Any) -> bool:
    """Whether data are numbers of one NumPy type that Zarr has."""
    array = data._meta if isinstance(data, da.Array) else data  # noqa: SLF001
    plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
    return plain and array.dtype.kind in "biuf" and array.dtype.itemsize <= 8


def _native(dtype: Any) -> str:
    return str(dtype.newbyteorder("="))


def _column_type(column: Any) -> str:
    """Return what numbers are stored as."""
    if not _is_plain(column):
        return "float64"  # a frame's whole numbers are floats where a value is missing
    if isinstance(column, da.Array) and column.dtype.name in INFERRED:
        return "float64"
    return _native(column.dtype)


def _is_single(dtype: Any, *, lazy: bool) -> bool:
    """Whether every value of a column is a float32: of a Dask column a partition may have another type."""
    return not lazy and isinstance(dtype, np.dtype) and dtype.name in SINGLE


def _shard_rows(layout: Layout, asked: int | None) -> int:
    if asked is not None:
        if asked < 1:
            raise StructureError(f"shard_rows={asked} must be at least 1.")
        return asked
    width = layout.schema.n_features * np.dtype(layout.dtype).itemsize
    fit = max(SHARD_BYTES // width, LEAST_ROWS)
    return min(MOST_ROWS, 1 << (fit.bit_length() - 1))


# ---- rows ------------------------------------------------------------------------------------------------------------


def _store_form(rows: Rows, layout: Layout) -> dict[str, NDArray[Any]]:
    """Return rows as they are stored.

    Raises
    ------
    StructureError
        If a column's type is another than its collection says, and would lose something.
    """
    schema = layout.schema
    parts = {"X": _features(rows, layout)}
    if layout.target_coded:
        parts["y"] = category_cells(one_column(rows.y), schema.target.classes).astype(np.uint8)
    else:
        parts["y"] = _stored_column(rows.y, layout.target)
    if layout.weight:
        parts[WEIGHT] = _stored_column(rows.weight, layout.weight)
    if layout.unit:
        parts["unit"] = _tagged(rows.unit)
    return parts


def _features(rows: Rows, layout: Layout) -> NDArray[Any]:
    if layout.raw:
        assert isinstance(rows.x, np.ndarray)
        if np.can_cast(rows.x.dtype, layout.dtype, "safe"):
            return np.ascontiguousarray(rows.x, layout.dtype)
        if layout.dtype != "float64":
            raise _other_type()
    out = np.empty((n_rows(rows.x), layout.schema.n_features), layout.dtype)
    features = layout.schema.features.values()
    for j, (feature, column) in enumerate(
        zip(features, split_columns(rows.x, layout.schema), strict=True)
    ):
        if j in layout.coded:
            assert isinstance(feature, Categorical)
            out[:, j] = category_cells(column, feature.categories)
            continue
        if layout.dtype == "float32" and not _is_single(column.dtype, lazy=False):
            raise _other_type()
        with np.errstate(all="ignore"):
            out[:, j] = numbers(column)
        if isinstance(feature, Categorical):
            # what is there and no number is in no list of finite numbers
            out[np.isnan(out[:, j]) & (category_cells(column, ()) == 0), j] = np.inf
    return out


def _stored_column(column: Any, dtype: str) -> NDArray[Any]:
    column = one_column(column)
    if dtype != "float64":
        _check_type(column.dtype, dtype)
        return np.asarray(column).astype(dtype)
    with np.errstate(all="ignore"):
        return numbers(column).astype(np.float64)


def _check_type(given: Any, stored: str) -> None:
    if not np.can_cast(given, stored, "safe"):
        raise _other_type()


def _other_type() -> StructureError:
    return StructureError(
        "A chunk's columns are of other types than its collection says. Convert them first, as with astype."
    )


def _tagged(column: Any) -> NDArray[Any]:
    """Return the names of units, marked by "s"; "" for a row without one."""
    names, place = distinct_names(column)
    tags = ["" if name is None else f"s{name}" for name in [*names, None]]
    return np.array(tags, dtype=np.dtypes.StringDType())[place]


def _untag(tagged: str) -> Any:
    # older data sets mark whole numbers by "i"
    return ExactId(tagged[1:]) if tagged else None


# ---- writing ---------------------------------------------------------------------------------------------------------


class _Place:
    """A local folder, or a URL. Made by the driver and by every task."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self.path = path
        self._options = options
        is_local = "://" not in path or path.startswith(("file://", "local://"))
        self.folder = Path(path.split("://", 1)[-1]) if is_local else None

    def __repr__(self) -> str:
        return f"<place {self.path!r}>"  # options may hold a password

    def open(self, mode: Any) -> zarr.Group:
        """Open the group.

        Raises
        ------
        StructureError
            If there is none.
        """
        try:
            return zarr.open_group(self._store, mode=mode, storage_options=self._options or None)
        except OSError as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise
        except Exception:
            pass
        if not self.exists():
            raise StructureError(
                f"path={self.path!r} does not exist. Give what write_dataset or dpgb-dask convert wrote."
            )
        raise _damaged_facts(self) if self._is_wreck() else _no_data_set(self.path)

    def create(self, layout: Layout) -> zarr.Group:
        """Make the group, marked as not complete."""
        attributes = {ATTRIBUTE: layout.facts(complete=False)}
        return zarr.create_group(
            self._store, attributes=attributes, storage_options=self._options or None
        )

    @property
    def _store(self) -> str | Path:
        if self.folder is not None:
            return self.folder
        self._files()  # raises what Zarr would say less plainly
        return self.path

    def exists(self) -> bool:
        if self.folder is not None:
            return self.folder.exists()
        files, root = self._files()
        return bool(files.exists(root))

    def id(self) -> str:
        """Return the id of the data set that was begun here; "" if there is none."""
        try:
            facts = self.open("r").attrs.get(ATTRIBUTE)
        except StructureError:
            return ""
        return str(facts.get("id", "")) if isinstance(facts, Mapping) else ""

    def sizes(self, name: str) -> dict[str, int]:
        """Return the size of every object below a folder, by its name there: one listing."""
        files, root = fsspec.core.url_to_fs(str(self.folder)) if self.folder else self._files()
        base = f"{root.rstrip('/')}/{name}/"
        found = files.find(base, detail=True)
        return {path.split(base, 1)[-1]: int(info["size"]) for path, info in found.items()}

    def is_ours(self) -> bool:
        """Whether a data set was begun here, damaged or not."""
        try:
            facts = self.open("r").attrs.get(ATTRIBUTE)
        except StructureError:
            return self._is_wreck()
        return _is_said(facts)

    def _is_wreck(self) -> bool:
        """Whether what cannot be opened as a group has the parts of a data set, and nothing else."""
        files, root = fsspec.core.url_to_fs(str(self.folder)) if self.folder else self._files()
        names = {str(Path(path).relative_to(root)) for path in files.find(root, maxdepth=2)}
        tops = {name.split("/")[0] for name in names}
        parts = {METADATA, *(f"{name}/{METADATA}" for name in ("X", "y"))}
        return parts <= names and tops <= {METADATA, "X", "y", WEIGHT, "unit"}

    def take(self, *, overwrite: bool) -> None:
        """Make sure that nothing is here.

        Raises
        ------
        StructureError
            If something is, and may not be replaced; or if the folder around it is not there.
        """
        if self.exists():
            if not overwrite:
                raise StructureError(
                    f"path={self.path!r} exists already. Choose another; or replace it, if it is a data set:"
                    f" {REPLACE}."
                )
            if not self.is_ours():
                raise StructureError(
                    f"path={self.path!r} is no data set of this library, and is not replaced. Choose another."
                )
            self.remove()
        if self.folder is not None:
            if not self.folder.absolute().parent.is_dir():
                raise StructureError(
                    f"path={self.path!r}: the folder around it does not exist. Make it first."
                )
            self.folder.mkdir(mode=0o700)

    def close(self) -> None:
        """Close every local file to other users; until now the folder around them was closed."""
        if self.folder is None:
            return
        for path in self.folder.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)

    def remove(self) -> None:
        """Remove all that is here."""
        if self.folder is not None:
            shutil.rmtree(self.folder)
            return
        files, root = self._files()
        if files.exists(root):
            files.rm(root, recursive=True)

    def _files(self) -> tuple[Any, str]:
        """Return the file system and the path in it.

        Raises
        ------
        StructureError
            If fsspec does not know it, or needs a package that is not installed.
        """
        missing = None
        try:
            files, root = fsspec.core.url_to_fs(self.path, **self._options)
        except ImportError as error:
            missing = error.name
        except ValueError:
            raise StructureError(
                f"path={self.path!r}: fsspec does not know this protocol. Give a folder or a URL such as s3://."
            ) from None
        else:
            files.invalidate_cache()
            return files, root
        raise StructureError(
            f"path={self.path!r} needs {missing or 'a package'}, which is not installed; for s3://:"
            " pip install 'dpgb_dask[s3]'."
        )


def _is_said(facts: Any) -> bool:
    """Whether the attribute is that of a data set, of whatever format."""
    return isinstance(facts, Mapping) and "format" in facts


def _no_data_set(path: str) -> StructureError:
    return StructureError(
        f"path={path!r} is no data set: neither write_dataset nor dpgb-dask convert wrote it. Write one with either;"
        " zarr.open opens other Zarr stores."
    )


def _damaged_facts(place: _Place) -> StructureError:
    return StructureError(
        f"path={place.path!r} is damaged: what it says of itself is not what was written. {AGAIN} Or put a copy back."
    )


def _check_of(facts: Mapping[str, Any]) -> str:
    """Return a digest of all that a data set says of itself, but the digest."""
    said = {name: value for name, value in facts.items() if name != "check"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _recorded(
    layout: "Layout", group: zarr.Group, shards: Mapping[str, Sequence[Recorded]]
) -> dict[str, Any]:
    """Return what a complete data set says of itself: its layout, its arrays, and each object of them."""
    facts = layout.facts(complete=True)
    facts["arrays"] = {name: _metadata_of(group[name]) for name in shards}
    facts["shards"] = {name: [list(one) for one in each] for name, each in shards.items()}
    facts = json.loads(json.dumps(facts))
    return {**facts, "check": _check_of(facts)}


def _metadata_of(array: Any) -> str:
    """Return a digest of how an array is stored."""
    said = json.dumps(array.metadata.to_dict(), sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()


@in_our_words(lambda kind: StructureError(f"A data set's arrays are damaged ({kind}). {AGAIN}"))
def _checked(place: _Place, group: zarr.Group, layout: "Layout", facts: Any) -> dict[str, Shards]:
    """Return the arrays of a data set, once each object is there and as large as it was written.

    Raises
    ------
    StructureError
        If one is not, or an array says another shape or type than the layout.
    """
    out = {}
    n_rows: set[tuple[int, int]] = set()
    for name, dtype in layout.arrays().items():
        array: Any = group.get(name)
        wide = (layout.schema.n_features,) if name == "X" else ()
        if not isinstance(array, zarr.Array):
            raise _lacks_parts(place)
        # units are text; those of format 1 may be numbers
        known = array.dtype.kind in "TOf" if dtype is str else array.dtype == np.dtype(dtype)
        fits = known and array.ndim == 1 + len(wide) and tuple(array.shape[1:]) == wide
        if not fits or array.shards is None or tuple(array.shards[1:]) != wide:
            raise _damaged_facts(place)
        n_rows.add((array.shape[0], array.shards[0]))
        recorded = None
        if "shards" in facts:
            recorded = tuple(Recorded(size, digest) for size, digest in facts["shards"][name])
            if _metadata_of(array) != facts["arrays"][name]:
                raise _damaged_facts(place)
        shards = Shards(array, recorded)
        if recorded is not None and len(recorded) != shards.n_shards:
            raise _damaged_facts(place)
        sizes = place.sizes(name)
        for k in range(shards.n_shards):
            size = sizes.get(shards.key(k), 0)
            if size == 0 or (recorded is not None and size != recorded[k].size):
                raise _lacks_parts(place)
        out[name] = shards
    if len(n_rows) > 1:
        raise _damaged_facts(place)
    return out


def _lacks_parts(place: _Place) -> StructureError:
    return StructureError(
        f"path={place.path!r} lacks parts that were written once, or parts of parts. {AGAIN}"
    )


def _create_arrays(group: zarr.Group, layout: Layout, n: int, rows: int) -> tuple[str, ...]:
    types = layout.arrays()
    for name, dtype in types.items():
        wide = (layout.schema.n_features,) if name == "X" else ()
        group.create_array(
            name,
            shape=(n, *wide),
            dtype=dtype,
            chunks=(rows, *wide),
            shards=(rows, *wide),
            compressors=[BloscCodec(cname="lz4", shuffle="shuffle"), Crc32cCodec()],
            dimension_names=("row", "feature")[: 1 + len(wide)],
        )
    return tuple(types)


def _check_replaced(place: _Place, source: Source) -> None:
    """Refuse to remove what is read.

    Raises
    ------
    StructureError
        If a chunk's tasks hold the name that `open_dataset` gave them.
    """
    known = place.id()
    parts = _parts(source, 0)
    tasks = [part for part in (*_as_list(parts[0]), *parts[1:]) if isinstance(part, Delayed)]
    if known and any(known in str(key) for part in tasks for key in part.__dask_graph__()):
        raise StructureError(
            f"path={place.path!r} is what X or y read: it would be gone before it is written. Choose another path."
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

    place: _Place
    layout: Layout
    names: tuple[str, ...]

    @in_our_words(_not_written)
    def write(self, start: int, parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, Recorded]:
        """Write one shard of every array, read it back, and return what is to be recorded of each object.

        Raises
        ------
        ChunkError
            If it cannot be written, or reads back otherwise.
        """
        group = self.place.open("r+")
        recorded = {}
        for name in self.names:
            values = np.concatenate([part[name] for part in parts])
            stored: Any = group[name]
            # a shard of zeros is stored too: one that is gone can then be told
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
    """Return the rows of each chunk, reading all of them where their number is not known."""
    if source.lengths is not None:
        return source.lengths
    count = delayed(_length, pure=False)
    return _computed([count(_parts(source, k)) for k in range(len(source.chunks))])


def _write(
    source: Source, lengths: Sequence[int], rows: int, writer: _Writer
) -> dict[str, list[Recorded]]:
    """Write all shards, and return what is to be recorded of each, by array."""
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
    chunks = [prepare(_parts(source, k), length, common) for k, length in enumerate(lengths)]
    tasks = []
    for start, cuts in shards:
        held = [chunks[cut.number] for cut in cuts]
        tasks.append(write(common, start, held, [cut.rows for cut in cuts]))
    written = _computed(tasks)
    return {name: [one[name] for one in written] for name in writer.names}


def _parts(source: Source, number: int) -> list[Any]:
    chunk = source.chunks[number]
    x = list(chunk.x) if isinstance(chunk.x, tuple) else chunk.x
    return [x, chunk.y, chunk.weight, chunk.unit]


def _cut_rows(chunk: Any, cut: Cut, layout: Layout) -> dict[str, NDArray[Any]]:
    """Return some rows of a chunk in memory as they are stored."""
    columns = (
        None if column is None else column[cut.rows]
        for column in (chunk.y, chunk.weight, chunk.unit)
    )
    return _on_rows([slice_block(chunk.x, cut.rows), *columns], layout, None)


@in_our_words(failed_to_load)
def _on_rows(parts: Sequence[Any], layout: Layout, length: int | None) -> dict[str, NDArray[Any]]:
    rows = line_up(*parts)
    if length is not None and n_rows(rows.x) != length:
        raise StructureError(
            "A chunk of the source has another number of rows than its collection says, or than it had"
            " when it was counted. Give a source that returns the same rows each time."
        )
    return _store_form(rows, layout)


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
    """Compute tasks where Dask computes; a reader's message may hold a value, so only its type is said."""
    return compute(*tasks)


# ---- reading ---------------------------------------------------------------------------------------------------------


def _labels(places: NDArray[Any], classes: Sequence[Any]) -> NDArray[Any]:
    """Return the classes of stored places as objects; another label is None, and so is a missing one."""
    table = np.empty(len(classes) + 2, object)
    table[: len(classes)] = classes
    return table[places]


def _as_frame(arrays: Mapping[str, da.Array], layout: Layout) -> Dataset:
    """Return a data set whose features have types of their own, each chunk's columns read together."""
    names = list(arrays)
    blocks = [arrays[name].to_delayed().ravel() for name in names]
    make = delayed(_frame_of, pure=False)
    common = delayed(layout, name=f"dpgb-layout-{layout.id}", traverse=False)
    parts = [make(names, list(block), common) for block in zip(*blocks, strict=True)]
    empty = [np.empty((0, *arrays[name].shape[1:]), arrays[name].dtype) for name in names]
    with dask.config.set({"dataframe.convert-string": False}):
        table = dd.from_delayed(parts, meta=_frame_of(names, empty, layout), verify_meta=False)
    schema = layout.schema
    unit = [schema.unit_id] if layout.unit else []
    X = table[[*schema.names, *unit]]
    weight = table[_weight_name(schema)] if layout.weight else None
    return Dataset(X, table[schema.target.name], weight, schema)


def _weight_name(schema: Schema) -> str:
    """Return a name for the column of weights that no other column has."""
    name = WEIGHT
    while name in {*schema.names, schema.target.name}:
        name += "_"
    return name


def _frame_of(names: Sequence[str], blocks: Sequence[NDArray[Any]], layout: Layout) -> pd.DataFrame:
    """Return stored rows as a frame."""
    stored = dict(zip(names, blocks, strict=True))
    schema = layout.schema
    columns: dict[str, Any] = {}
    for j, (name, feature) in enumerate(schema.features.items()):
        values = stored["X"][:, j]
        if j in layout.coded:
            assert isinstance(feature, Categorical)
            columns[name] = _categorical(values.astype(np.int64), feature.categories)
        else:
            columns[name] = values
    y = stored["y"]
    target = schema.target
    columns[target.name] = (
        _categorical(y.astype(np.int64), target.classes) if layout.target_coded else y
    )
    if layout.weight:
        columns[_weight_name(schema)] = stored[WEIGHT]
    if layout.unit == "number":
        columns[str(schema.unit_id)] = stored["unit"]
    elif layout.unit:
        tagged = stored["unit"].tolist()
        units = np.empty(len(tagged), object)
        units[:] = [_untag(value) for value in tagged]
        columns[str(schema.unit_id)] = pd.Series(units, dtype=object)
    return pd.DataFrame(columns)


def _categorical(places: NDArray[np.int64], declared: Sequence[Any]) -> pd.Categorical:
    """Return the categories of stored places: one more stands for any other value, none for a missing one."""
    other = "<other>"
    while other in declared:
        other += ">"
    known = [k for k, category in enumerate(declared) if not is_missing(category)]
    code = np.full(len(declared) + 2, -1, np.int64)
    code[known] = np.arange(len(known))
    code[len(declared)] = len(known)
    labels = np.empty(len(known) + 1, object)
    labels[:] = [*(declared[k] for k in known), other]
    categories = pd.Index(labels, dtype=object, tupleize_cols=False)
    return pd.Categorical.from_codes(code[places], categories=categories)
