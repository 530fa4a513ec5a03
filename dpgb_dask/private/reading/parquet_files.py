"""Parquet files that a graph of Dask reads: their columns are compared before a fit is charged, by their footers.

Dask looks at one file. Another that lacks a column would end the fit once it is read; and where Arrow reads all files
in the types of that one, so would a value that such a type cannot hold.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
from dask._task_spec import Task
from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine

from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.kinds import VIEWS
from dpgb_dask.errors import StructureError, first_few, in_our_words

STRANGE = (
    "columns of lists, dictionaries or others whose type pandas noted by a name that it cannot read"
)
UNNOTED = "Write them without what pandas noted, as pyarrow.Table.replace_schema_metadata(None) gives them."
AT_ONCE = 16  # footers that are read at once: each waits for its store
BYTES = frozenset({"binary", "large_binary", "binary_view"})
TEXT = frozenset({"string", "large_string", "string_view"})
SAME_VALUES = (TEXT, BYTES)
UNITS = ("s", "ms", "us", "ns")  # of Arrow, each a thousandth of the one before
DAY = 86_400
FAR = 4_000_000  # days: a date beyond the calendar of Python
MOST = 1 << 62
Key: TypeAlias = tuple[str, int]  # a path, and the number of its file system


class _Making(NamedTuple):
    """How Dask makes columns of pandas of Arrow's.

    Parameters
    ----------
    given : mapping or None
        What the caller says to `pyarrow.Table.to_pandas`: ``arrow_to_pandas``.
    backend : str or None
        ``dtype_backend``.
    strings : bool
        Whether text stays Arrow's, and dates too.
    """

    given: Mapping[str, Any] | None
    backend: str | None
    strings: bool

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "_Making":
        strings = told.get("convert_string") or told.get("pyarrow_strings_enabled")
        return cls(told.get("arrow_to_pandas"), told.get("dtype_backend"), bool(strings))

    def may_fail(self, kind: pa.DataType, noted: str | None) -> bool:
        """Return whether values become of a type that may not hold them: Arrow is asked.

        Such are dates of a calendar that ends before theirs, times of day, text of bytes, intervals, and whole numbers
        of others. Without options of the caller and ``noted``, the type that pandas wrote into the file, dates with a
        time stay NumPy's.
        """
        odd = self._odd(kind, noted)
        if odd is None:
            return False
        table = pa.table({"odd": odd})
        if noted is not None:
            column = {"name": "odd", "field_name": "odd", "pandas_type": "", "numpy_type": noted}
            facts = {"columns": [column], "index_columns": [], "column_indexes": []}
            table = table.replace_schema_metadata({"pandas": json.dumps(facts)})
        return self._fails(table)

    def fails(self, stored: pa.Schema, columns: set[str]) -> bool:
        """Return whether no row of a file can be read, for what pandas noted in it: Arrow is asked."""
        fields = [one for one in stored if one.name in columns]
        return self._fails(pa.schema(fields, stored.metadata).empty_table())

    def _stays(self, kind: pa.DataType) -> bool:
        """Return whether values of a type stay Arrow's, whatever they are: Arrow is asked."""
        made = self._made(pa.schema([("odd", kind)]).empty_table())
        return isinstance(made["odd"].dtype, pd.ArrowDtype)

    def _fails(self, table: pa.Table) -> bool:
        try:
            self._made(table)
        except Exception:  # of values that are no row's
            return True
        return False

    def _made(self, table: pa.Table) -> pd.DataFrame:
        return ArrowDatasetEngine._arrow_table_to_pandas(  # noqa: SLF001
            table,
            None,
            dtype_backend=self.backend,
            convert_string=self.strings,
            arrow_to_pandas=dict(self.given or {}),
        )

    def _odd(self, kind: pa.DataType, noted: str | None) -> pa.Array | None:
        """Return values of a type that what it becomes may not hold; None if it stays what it is."""
        if is_interval(kind):  # one that ends before it begins
            ends = pa.array([{"left": 1, "right": 0}], kind.storage_type)
            return pa.ExtensionArray.from_storage(kind, ends)
        if pa.types.is_time(kind):
            return odd_times(kind)
        if pa.types.is_nested(kind):
            odd = odd_times(kind, text=True)
            return None if odd is None or self._stays(kind) else odd
        if (extremes := _extremes(kind)) is not None:
            return extremes if _is_bytes(kind) or noted is not None else None
        told = bool(self.given) or noted is not None
        if not (pa.types.is_date(kind) or (told and pa.types.is_timestamp(kind))):
            return None
        return odd_times(kind)


@dataclass(eq=False)
class _File:
    """What tasks ask of a file: columns, how each is made, the types of reading if not the file's own, and filters."""

    path: str
    filesystem: Any
    columns: set[str] = field(default_factory=set)
    made: list[tuple[_Making, set[str]]] = field(default_factory=list)
    types: dict[str, pa.DataType] = field(default_factory=dict)
    filtered: bool = False


def reading_of(tasks: Sequence[Task], schema: Schema) -> Callable[[Task], Task] | None:
    """Return what makes of each task one that no value makes fail where it reads Parquet; None if none has to change.

    Parameters
    ----------
    tasks : sequence of Task
        The files are those that they read.
    schema : Schema

    Raises
    ------
    StructureError
        If a file lacks a column, does not lie below the folders that the others lie below, or has a column in a type by
        which a value could fail. It names columns of the schema, and no file: names of folders are values.

    Privacy
    -------
    Private side. Reads footers, and of them names and types of columns: no value, no statistic, no number of rows.
    """
    reads = _Reads(tasks)
    if reads.apart:
        raise not_below_each(reads.apart, schema)
    places = [(file.path, file.filesystem) for file in reads.files.values()]
    stored = dict(zip(reads.files, _footers(places), strict=True))
    each = [(file, stored[key]) for key, file in reads.files.items()]
    lacking = {name for file, own in each for name in file.columns.difference(own.names)}
    if by_folder := lacking & reads.folders:
        raise not_below_each(by_folder, schema)
    if lacking:
        raise not_in_each(lacking, schema)
    _refuse_kinds(each, schema)
    _refuse_filters(each, schema)
    unlike = {
        name
        for file, own in each
        for name, kind in file.types.items()
        if not _always_fits(own.field(name).type, kind)
    }
    for first, *others in reads.joined:
        columns = reads.files[first].columns
        alike, *parts = [_columns_of(stored[key], columns) for key in (first, *others)]
        for part in parts:
            if part != alike:  # of other types, or else in another order
                unlike |= {name for name, _ in {*alike} ^ {*part}} or columns
    if unlike:
        raise StructureError(
            "Parquet files that are read in one type hold others, to which a value may not fit:"
            f" {_named(unlike, schema)}. Write these files again with one type, or read them by"
            " dask.dataframe.read_parquet(…, filesystem='fsspec') without filters: then each keeps its types."
        )
    kinds = {own.field(name).type for file, own in each for name in file.columns}
    listed = any(_of_text(kind) or _of_nothing(kind) for kind in kinds)
    told = any(making.given for file in reads.files.values() for making, _ in file.made)
    return partial(_rewritten, reads, stored) if listed or told or reads.by_folder else None


def not_in_each(lacking: Iterable[str], schema: Schema) -> StructureError:
    """Return the error for files of which some lack a column."""
    return StructureError(
        f"Parquet files that are read as one table differ: not each has {_named(lacking, schema)}."
        " pyarrow.parquet.read_schema(path).names tells which lack it: leave them out, or write them again with the"
        " column, with missing values if that is what they mean. An index that pandas wrote is not read with"
        " index=False."
    )


def not_below_each(lacking: Iterable[str], schema: Schema) -> StructureError:
    """Return the error for files of which some do not lie below a folder that is named by a column."""
    return StructureError(
        "Parquet files that are read as one table differ: not each lies below a folder that is named by"
        f" {_named(lacking, schema)}, as in 'column=value/part.parquet'. Move the others to such folders, or leave them"
        " out."
    )


def columns_of_folders(path: str) -> set[str]:
    """Return the names of the columns that the folders ``column=value`` of a file's path hold, as Hive writes them."""
    return {unquote(one.partition("=")[0]) for one in path.split("/")[:-1] if "=" in one}


class _Reads:
    """The files that tasks read.

    Parameters
    ----------
    tasks : sequence of Task
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.files: dict[Key, _File] = {}
        self._stores: list[Any] = []  # file systems
        # files that one task reads as one table, each in its own types
        self.joined: list[list[Key]] = []
        # whether a task reads a file in the types of another without need (`_in_own_types`)
        self.by_folder = False
        self.folders: set[str] = set()  # columns that are names of folders
        # those that not every file lies below a folder of: Dask fails once it reads such a file
        self.apart: set[str] = set()
        for task in tasks:
            if _is_reader(task):
                self._by_fsspec(task.func, _pieces(task))
            elif _name_of(task) in ("_table_to_pandas", "_load_multiple_files"):
                many = _name_of(task) == "_load_multiple_files"
                making = _Making.of(task.kwargs)
                for key in self._by_arrow(task if many else task.args[0]):
                    self.files[key].made.append((making, self.files[key].columns))
            else:
                self._by_arrow(task)

    def key(self, path: str, filesystem: Any) -> Key:
        """Return the key of a file; two stores of one kind may have the same path."""
        for number, store in enumerate(self._stores):
            if store is filesystem or store == filesystem:
                return path, number
        self._stores.append(filesystem)
        return path, len(self._stores) - 1

    def _by_fsspec(self, reader: Any, pieces: Sequence[Any]) -> None:
        told = reader.common_kwargs
        index = reader.index if isinstance(reader.index, list) else [reader.index]
        columns = {*reader.columns, *index}.intersection(told["schema"].names) - _folders(told)
        types = told["schema"] if told.get("filters") else None
        self.folders |= _folders(told)
        if _by_hive(told):
            for path, _, known in pieces:
                below = columns_of_folders(path) if known is None else dict(known).keys()
                self.apart |= _folders(told) - below
        keys = [self._add(path, reader.fs, columns, types) for path, *_ in pieces]
        making = _Making.of(told)
        for key in keys:
            self.files[key].made.append((making, columns))
            self.files[key].filtered |= types is not None
        if len({*keys}) > 1 and types is None:
            self.joined.append(keys)
        self.by_folder |= _by_folder(told, pieces)

    def _by_arrow(self, task: Any) -> list[Key]:
        """Add the files that a task reads by Arrow's file system; return their keys."""
        if _name_of(task) == "_load_multiple_files":
            wrappers = [wrapper for wrapper, _ in task.args[0]]
            columns, types = task.args[1:3]
            filtered = any(chosen is not None for _, chosen in task.args[0])
        elif _name_of(task) == "_fragment_to_table":
            told = task.kwargs
            wrappers, columns, types = [told["fragment_wrapper"]], told["columns"], told["schema"]
            filtered = told["filters"] is not None
        else:
            return []
        keys = []
        for fragment in (wrapper.fragment for wrapper in wrappers):
            folders = pyarrow.dataset.get_partition_keys(fragment.partition_expression)
            own = {*columns} - folders.keys()
            self.folders |= folders.keys()
            keys.append(self._add(fragment.path, fragment.filesystem, own, types))
            self.files[keys[-1]].filtered |= filtered
        return keys

    def _add(self, path: str, filesystem: Any, columns: set[str], types: pa.Schema | None) -> Key:
        key = self.key(path, filesystem)
        file = self.files.setdefault(key, _File(path, filesystem))
        file.columns |= columns
        if types is not None:
            file.types |= {name: types.field(name).type for name in columns}
        return key


def _is_reader(task: Task) -> bool:
    return type(task.func).__name__ == "ParquetFunctionWrapper"


def _name_of(task: Any) -> str:
    return str(getattr(getattr(task, "func", None), "__name__", ""))


def _pieces(task: Task) -> list[Any]:
    """Return what a task reads by fsspec: for each piece its path, row groups and folders."""
    part = task.args[0]
    return [piece["piece"] for piece in (part if isinstance(part, list) else [part])]


def _folders(told: Mapping[str, Any]) -> set[str]:
    """Return the columns that are names of folders."""
    return {one.name for one in told.get("partitions") or ()}


def _by_hive(told: Mapping[str, Any]) -> bool:
    """Return whether folders are named ``column=value``, as they are unless the caller says otherwise."""
    way = (told.get("dataset") or {}).get("partitioning")
    return way in (None, "hive") or (isinstance(way, Mapping) and way.get("flavor") == "hive")


def _by_folder(told: Mapping[str, Any], pieces: Sequence[Any]) -> bool:
    """Return whether a task reads one file in the types of another for the sake of its folders alone."""
    return bool(_folders(told)) and len(pieces) == 1 and not told.get("filters")


def _rewritten(reads: _Reads, stored: Mapping[Key, pa.Schema], task: Task) -> Task:
    """Return a task that no value makes fail, and that reads a file in its own types."""
    task = _in_own_types(reads, stored, task)
    if _is_reader(task):
        reader: Any = copy(task.func)
        reader.common_kwargs = _with_categories(reader.common_kwargs)
        return Task(task.key, reader, *task.args, **task.kwargs)
    if "arrow_to_pandas" in task.kwargs:
        return Task(task.key, task.func, *task.args, **_with_categories(task.kwargs))
    return task


def _with_categories(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of reading by which categories may hold text that is no UTF-8, or nothing but missing values."""
    given = told.get("arrow_to_pandas") or {}
    return {**told, "arrow_to_pandas": Options(_Types(given.get("types_mapper")), given)}


class Options(dict[str, Any]):
    """``arrow_to_pandas``: what Arrow is told, with one ``types_mapper`` however many partitions are read by it.

    Dask writes into it a function that asks the ``types_mapper`` it finds there, and does so for every partition: those
    of a thousand call each other until Python refuses.
    """

    def __init__(
        self, types_mapper: Callable[[pa.DataType], Any], others: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__({**(others or {}), "types_mapper": types_mapper})
        self._types_mapper = types_mapper

    def get(self, key: str, default: Any = None) -> Any:
        """Return what is told of something; the ``types_mapper`` as it was given."""
        return self._types_mapper if key == "types_mapper" else super().get(key, default)


def _of_text(kind: pa.DataType) -> bool:
    """Return whether a type is Arrow's of categories that are text."""
    return pa.types.is_dictionary(kind) and str(kind.value_type) in TEXT


def _of_nothing(kind: pa.DataType) -> bool:
    """Return whether a type is Arrow's of columns that hold no value, as pandas writes categories if all are missing.

    Where pandas noted that they are categories, Arrow fails: a missing value is none.
    """
    return bool(pa.types.is_null(kind))


@dataclass(frozen=True)
class _Types:
    """Arrow's ``types_mapper``: that of the caller, if there is one, and `_TextCategories`; no values stay Arrow's."""

    given: Callable[[pa.DataType], Any] | None

    def __call__(self, kind: pa.DataType) -> Any:
        told = None if self.given is None else self.given(kind)
        if told is None and _of_nothing(kind):
            return pd.ArrowDtype(kind)
        return _TextCategories() if told is None and _of_text(kind) else told


class _TextCategories:
    """Stands where Arrow asks for a type of pandas: categories of text, of which those that are no UTF-8 stay bytes.

    Arrow decodes the list of a whole chunk at once, and one of them makes it fail.
    """

    def __from_arrow__(self, values: pa.ChunkedArray) -> pd.Categorical:
        try:
            return values.to_pandas().array
        except Exception:  # of one text or more: each is then read by itself
            pass
        places: dict[Any, int] = {}
        codes = [np.empty(0, np.int64)]
        for chunk in values.chunks:
            listed = chunk.dictionary.cast(pa.large_binary()).to_pylist()
            place = [
                -1 if text is None else places.setdefault(_decoded(text), len(places))
                for text in listed
            ]
            own = chunk.indices.cast(pa.int64()).fill_null(len(listed)).to_numpy()
            codes.append(np.array([*place, -1])[own])
        categories = pd.Index([*places], dtype=object)
        return pd.Categorical.from_codes(np.concatenate(codes), categories, values.type.ordered)


def _decoded(text: bytes) -> str | bytes:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def _in_own_types(reads: _Reads, stored: Mapping[Key, pa.Schema], task: Task) -> Task:
    """Return a task that reads a file of a folder in the types of another as one that reads it in its own.

    Dask reads a single file so; beside columns that are names of folders Arrow casts the values, and some have no cast.
    """
    reader: Any = task.func
    if not _is_reader(task) or not _by_folder(
        told := reader.common_kwargs, pieces := _pieces(task)
    ):
        return task
    own = stored[reads.key(pieces[0][0], reader.fs)]
    folders = [one for one in told["schema"] if one.name not in own.names]
    reader = copy(reader)
    reader.common_kwargs = {**told, "schema": pa.schema([*own, *folders], own.metadata)}
    return Task(task.key, reader, *task.args, **task.kwargs)


def schemas_of(places: Iterable[tuple[str, Any]]) -> list[pa.Schema]:
    """Return the schema of each of many files, given by path and file system; errors are those of Arrow."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda place: pq.read_schema(place[0], filesystem=place[1]), places))


@in_our_words(
    lambda kind: StructureError(
        f"A Parquet file has no footer that can be read ({kind}). Write it again, or leave it out."
    )
)
def _footers(places: Iterable[tuple[str, Any]]) -> list[pa.Schema]:
    return schemas_of(places)


def _named(columns: Iterable[str], schema: Schema) -> str:
    """Return columns in words; those that the schema does not name may have names that are values."""
    unit = [] if schema.unit_id is None else [schema.unit_id]
    known = {*schema.names, *unit, schema.target.name, *schema.ignore}
    named = sorted(known.intersection(columns))
    others = [] if known.issuperset(columns) else ["columns that the schema does not declare"]
    return first_few([*map(repr, named), *others], " and ")


def _refuse_kinds(each: Sequence[tuple[_File, pa.Schema]], schema: Schema) -> None:
    """Refuse files with columns of which pandas is to make a type that cannot hold all of their values."""
    kinds: dict[Any, bool] = {}  # whether a type may fail, as it is made
    dates: set[str] = set()
    times: set[str] = set()
    texts: set[str] = set()
    nested: set[str] = set()
    falsely: set[str] = set()
    strangely: set[str] = set()
    for file, own in each:
        # else by what pandas noted in another file, which Dask has read
        strange = set() if file.types else noted_strangely(own)
        if strange and any(making.fails(own, columns) for making, columns in file.made):
            strangely |= strange
        for making, columns in file.made:
            for name in columns.intersection(own.names):
                kind = own.field(name).type
                noted = _noted(own, name)
                key = id(making.given), making.backend, making.strings, kind, noted
                if key not in kinds:
                    kinds[key] = making.may_fail(kind, noted)
                if kinds[key]:
                    timed = "time32" in str(kind) or "time64" in str(kind)
                    odd = texts if _is_bytes(kind) else falsely
                    odd = dates if pa.types.is_temporal(kind) else odd
                    (nested if pa.types.is_nested(kind) else times if timed else odd).add(name)
    if strangely:
        raise StructureError(
            f"Parquet files hold {STRANGE}: {_named(strangely, schema)}. {UNNOTED}"
        )
    if dates:
        raise StructureError(
            "Parquet files hold dates that are read as Python's or others, whose calendar ends before theirs:"
            f" {_named(dates, schema)}. Read them by dask.dataframe.read_parquet(…, dtype_backend='pyarrow'), without"
            " arrow_to_pandas, or without dask.config dataframe.convert-string=False."
        )
    if times:
        raise StructureError(
            "Parquet files hold times of day that are read as Python's, which have no nanoseconds and end with the day:"
            f" {_named(times, schema)}. Read them by dask.dataframe.read_parquet(…, dtype_backend='pyarrow')."
        )
    if nested:
        raise StructureError(
            "Parquet files hold lists or structs that are read as Python's, which cannot hold every date, time or text"
            f" of theirs: {_named(nested, schema)}. Read them by dask.dataframe.read_parquet(…,"
            " dtype_backend='pyarrow')."
        )
    if texts:
        raise StructureError(
            f"Parquet files hold bytes that are read as text, which not all bytes are: {_named(texts, schema)}. Read"
            " them by dask.dataframe.read_parquet(…, dtype_backend='pyarrow'), without arrow_to_pandas; or write them"
            " as text."
        )
    if falsely:
        raise StructureError(
            "Parquet files hold columns that pandas noted as of another type, which cannot hold every value of theirs:"
            f" {_named(falsely, schema)}. Read them by dask.dataframe.read_parquet(…, dtype_backend='pyarrow'); or"
            " write them without what pandas noted, as pyarrow.Table.replace_schema_metadata(None) gives them."
        )


def _refuse_filters(each: Sequence[tuple[_File, pa.Schema]], schema: Schema) -> None:
    """Refuse filters of files with columns of which Arrow can choose no rows."""
    whole = {
        name
        for file, own in each
        if file.filtered
        for name in file.columns
        if str(file.types.get(name, own.field(name).type)) in VIEWS
    }
    if whole:
        raise StructureError(
            "Parquet files that are read with filters hold views of text or bytes, of which Arrow chooses no rows:"
            f" {_named(whole, schema)}. Read them by dask.dataframe.read_parquet without filters, and choose rows of"
            " the frame; or write them again as text."
        )


def noted_strangely(stored: pa.Schema) -> set[str]:
    """Return the columns beside which pandas wrote a type whose name it cannot read: by it, some read nothing."""
    strange = set()
    for told in (stored.pandas_metadata or {}).get("columns", ()):
        try:
            pd.api.types.pandas_dtype(str(told.get("numpy_type")))
        except (TypeError, ValueError, NotImplementedError):  # by pandas' version
            strange.add(str(told.get("field_name", told.get("name"))))
    return strange


def _is_bytes(kind: pa.DataType) -> bool:
    return str(kind) in BYTES or pa.types.is_fixed_size_binary(kind)


def is_interval(kind: pa.DataType) -> bool:
    """Return whether a type of Arrow is pandas' of intervals."""
    return str(kind).startswith("extension<pandas.interval")


def odd_times(kind: pa.DataType, *, text: bool = False) -> pa.Array | None:
    """Return two values that are, or hold, dates or times beyond Python's; None if a type has no such.

    All lists are plain ones, and maps are lists of their entries: pandas makes the same of what is in them. With
    ``text`` also those that hold text that is no UTF-8.
    """
    if pa.types.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return odd_times(pa.list_(entry), text=text)
    if pa.types.is_struct(kind):
        held = [odd_times(one.type, text=text) for one in kind]
        if all(part is None for part in held):
            return None
        whole = [
            pa.nulls(2, one.type) if part is None else part
            for one, part in zip(kind, held, strict=True)
        ]
        return pa.StructArray.from_arrays(whole, names=[one.name for one in kind])
    if pa.types.is_nested(kind):
        inner = odd_times(kind.value_type, text=text)
        return None if inner is None else pa.ListArray.from_arrays([0, 1, 2], inner)
    if text and str(kind) in TEXT:
        return pa.array([b"\xff", b""], str(kind).replace("string", "binary")).view(kind)
    return _odd_time(kind)


def _odd_time(kind: pa.DataType) -> pa.Array | None:
    if pa.types.is_time(kind):  # one before midnight: Arrow has such, and also nanoseconds
        ticks = [-1, np.iinfo(f"int{kind.bit_width}").max]
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        day = {"date32[day]": 1, "date64[ms]": DAY * 10**3}.get(str(kind))
        day = day or DAY * 10 ** (3 * UNITS.index(kind.unit))
        ticks = [min(FAR * day, MOST), -min(FAR * day, MOST)]
    else:
        return None
    return pa.array(ticks, f"int{kind.bit_width}").view(kind)


def _extremes(kind: pa.DataType) -> pa.Array | None:
    """Return values that another type may not hold: bytes that are no text, large numbers, parts of whole ones."""
    if _is_bytes(kind):
        width = kind.byte_width if pa.types.is_fixed_size_binary(kind) else 1
        return pa.array([b"\xff" * width, None], kind)
    if pa.types.is_integer(kind):
        ends = np.iinfo(kind.to_pandas_dtype())
        return pa.array([ends.min, ends.max, None], kind)
    if pa.types.is_floating(kind):
        return pa.array(np.array([0.5, np.inf, np.nan], kind.to_pandas_dtype()))
    if pa.types.is_dictionary(kind):
        held = _extremes(kind.value_type)
        return None if held is None else held.dictionary_encode().cast(kind)
    return None


def _noted(stored: pa.Schema, column: str) -> str | None:
    """Return the type of a column that pandas wrote into a file, which Arrow makes; None if it wrote none."""
    for told in (stored.pandas_metadata or {}).get("columns", ()):
        if told.get("field_name", told.get("name")) == column:
            return str(told.get("numpy_type"))
    return None


def _columns_of(stored: pa.Schema, columns: set[str]) -> list[tuple[str, pa.DataType]]:
    """Return what Dask reads of a file, in the file's order: some columns, and an index that pandas wrote."""
    index = {str(level) for level in (stored.pandas_metadata or {}).get("index_columns", ())}
    return [(one.name, one.type) for one in stored if one.name in columns | index]


def _always_fits(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether Arrow casts every value of a type to another, whatever the value."""
    if stored == wanted or pa.types.is_null(stored):
        return True
    if any({str(stored), str(wanted)} <= alike for alike in SAME_VALUES):
        return True
    both = stored, wanted
    if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in both):
        return False
    small, large = (np.dtype(kind.to_pandas_dtype()) for kind in both)
    # NumPy takes a float64 for every whole number of 64 bits, and Arrow does not
    return np.can_cast(small, large) and small.itemsize < large.itemsize
