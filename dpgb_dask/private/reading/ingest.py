"""From NumPy, pandas, Dask, xarray or Zarr to aligned chunks of rows; reads structure only and computes nothing."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import xarray as xr
import zarr
from dask._task_spec import Alias, Task, convert_legacy_graph
from dask.base import is_dask_collection
from dask.core import flatten
from dask.dataframe.core import apply_and_enforce
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from dpgb_dask.cf_decoding import dims_of
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.columns import as_array, n_rows, series_of
from dpgb_dask.encoding.frames import (
    as_given,
    as_made,
    in_partitions,
    knows_meta,
    projected,
    read_alike,
)
from dpgb_dask.encoding.kinds import from_arrow, refuse_other_chunks, unknown_kind
from dpgb_dask.encoding.structure import (
    check_beside,
    check_columns,
    check_one_axis,
    is_numbered,
    match_names,
)
from dpgb_dask.errors import (
    ChunkError,
    PlanError,
    SchemaError,
    StructureError,
    UnsupportedCollectionError,
    in_our_words,
)
from dpgb_dask.graph_parts import parts_in, rewritten
from dpgb_dask.lazy_decoding import check_calendar, total_part
from dpgb_dask.private.reading.parquet_files import reading_of
from dpgb_dask.private.reading.parsers import warn_of_parsers
from dpgb_dask.private.reading.rows import (
    Chunk,
    Source,
    line_up,
    named_by,
    only_column,
    rows_of,
    rows_of_units,
    slice_block,
    total_getitem,
)
from dpgb_dask.warning_filters import SILENCE
from dpgb_dask.zarr_arrays import all_arrays_of, from_zarr, lazily

# inputs in memory are cut into views of this many rows, so that threads share the work
CHUNK_ROWS = 1 << 17
# P2P tasks find each other by the types and keys that a fit changes, and once alone: it reads the rows several times
BY_TASKS = {"dataframe.shuffle.method": "tasks", "array.rechunk.method": "tasks"}


def not_readable(kind: str) -> StructureError:
    """Return the error for inputs that made another library raise an error of type ``kind`` (`errors.kind_of`)."""
    return StructureError(
        f"X, y or sample_weight cannot be read: {kind}. Give NumPy, pandas, Dask, xarray or Zarr as documented for"
        " fit."
    )


class Inputs(NamedTuple):
    """The inputs of a fit as NumPy, pandas or Dask, whose structure was checked. Private.

    Parameters
    ----------
    x : ndarray, DataFrame, Dask Array or DataFrame, or tuple of columns
        The features in schema order.
    y, weight, unit : one column, or None
    """

    x: Any
    y: Any
    weight: Any
    unit: Any

    def __repr__(self) -> str:
        return "<inputs>"

    @property
    def dtypes(self) -> list[Any]:
        """Types of the features' columns; a chunk may have other types."""
        if isinstance(self.x, tuple):
            return [column.dtype for column in self.x]
        if isinstance(self.x, pd.DataFrame | dd.DataFrame):
            return list(self.x.dtypes)
        return [self.x.dtype] * self.x.shape[1]


def read_source(
    X: Any,  # noqa: N803
    y: Any,
    sample_weight: Any,
    schema: Schema,
    unit: str | None = None,
) -> Source:
    """Check the structure of the inputs and align their chunks; nothing is computed.

    Parameters
    ----------
    X, y, sample_weight, schema, unit
        As for `check_inputs`.

    Raises
    ------
    PlanError, SchemaError, StructureError, UnsupportedCollectionError
        As `check_inputs`; and if X, y and sample_weight have different lengths or numbers of chunks (which are not
        printed), or if Dask would have to read rows to tell their partitions.

    Privacy
    -------
    Private side. Reads names, widths and chunk structure only: it looks at no value and refuses no type.
    """
    for name, data in {"X": X, "y": y, "sample_weight": sample_weight}.items():
        _refuse_read_early(data, name)
    inputs = check_inputs(X, y, sample_weight, schema, unit)
    warn_of_parsers(inputs)
    return source_of(inputs, schema)


@in_our_words(not_readable)
@SILENCE
def _refuse_read_early(data: Any, name: str) -> None:
    """Refuse a frame whose partitions or columns Dask can only tell from its rows: it would read them uncharged."""
    if not isinstance(data, dd.DataFrame | dd.Series):
        return
    # what a node is made of comes first: to know how many partitions that has, Dask may have to read rows for it
    waiting, seen = [(data.expr, False)], set()
    while waiting:
        node, is_last = waiting.pop()
        if is_last and (told := _told_by_rows(node)):
            what, way_out = told
            raise StructureError(
                f"To know the {what} of {name}, Dask would have to read rows before the fit is charged. {way_out}"
            )
        if not is_last and id(node) not in seen:
            seen.add(id(node))
            waiting.append((node, True))
            waiting += ((below, False) for below in node.dependencies())


NAME_DIVISIONS = (
    "Name them: set_index(…, divisions=[…]), or repartition(npartitions=…) instead of partition_size=…; or persist()"
    " the collection, or write it to Parquet first. A fit needs no order of rows: leave out sort_values."
)


def _told_by_rows(node: Any) -> tuple[str, str] | None:
    """Return what Dask reads rows for to know it of a node, and the way out; None if it reads none.

    It reads none for what the node is made of.
    """
    by_rows = False
    match type(node).__name__:
        case "Repartition":
            by_rows = node.partition_size is not None
        case "SetIndex":
            several = (node.operand("npartitions") or node.frame.npartitions) != 1
            by_rows = node.user_divisions is None and several
        case "SortValues":
            by_rows = node.frame.npartitions > 1
        case "FromMap" | "FromMapProjectable":
            if not knows_meta(node):  # as after pickling
                return "columns", "Name them: from_map(…, meta=…)."
    return ("partitions", NAME_DIVISIONS) if by_rows else None


@in_our_words(not_readable)
@SILENCE
def check_inputs(
    X: Any,  # noqa: N803
    y: Any,
    sample_weight: Any,
    schema: Schema,
    unit: str | None = None,
) -> Inputs:
    """Check the structure of each input of a fit; nothing is computed.

    Parameters
    ----------
    X : ndarray, DataFrame, Dask Array or DataFrame, xarray DataArray or Dataset, Zarr Array or Group
    y : the target, one column of any of these kinds; or None, if it is the column of X with the target's name
    sample_weight : None or one column
    schema : Schema
    unit : str or None
        Column of X with each row's privacy unit: the schema's ``unit_id``, which is never a feature.

    Raises
    ------
    PlanError
        If sample weights are given together with a unit.
    SchemaError
        If columns are missing, renamed, reordered or not declared.
    StructureError
        If an input has the wrong number of columns.
    UnsupportedCollectionError
        If an input is sparse or of an unknown kind, or Dask's array query planning is switched on.

    Privacy
    -------
    Private side. Reads names and widths only: it looks at no value, and refuses no type, as readers infer types from
    values.
    """
    _refuse_array_expr()
    X = _native_kind(X, "X")  # noqa: N806
    if isinstance(X, _Columns):
        beside = {schema.target.name if y is None else None, unit} - {None}
        X.check([*schema.names, *map(str, beside)], schema)
    y = _column(_target_column(X, schema), "y") if y is None else native_column(y, "y")
    weight = None if sample_weight is None else native_column(sample_weight, "sample_weight")
    units = None if unit is None else _unit_column(X, unit, schema)
    X = _select(X, schema)  # noqa: N806
    check_columns(_meta(y), schema, target=True)
    if weight is not None and unit is not None:
        raise PlanError(
            "sample_weight together with unit_id is not available: a unit's rows share one weight."
        )
    return Inputs(X, y, weight, units)


@in_our_words(not_readable)
def native_column(data: Any, name: str) -> Any:
    """Return a target or weights, of any kind that a fit takes, as one column of NumPy, pandas or Dask.

    Parameters
    ----------
    data : collection of (n,) or (n, 1)
    name : str
        "y" or "sample_weight".

    Raises
    ------
    StructureError, UnsupportedCollectionError
        If it is not one column, or of an unknown kind.

    Privacy
    -------
    Private side, or the caller's own rows. Reads structure only.
    """
    return _column(_native_kind(data, name), name)


@in_our_words(not_readable)
@SILENCE
def source_of(inputs: Inputs, schema: Schema) -> Source:
    """Align the chunks of checked inputs; nothing is computed, but by Dask itself where it has to see the rows.

    So it does for new divisions (`set_index` without them), and for partitions of a given size: in silence. A fit
    refuses such frames (`read_source`).

    Raises
    ------
    StructureError
        If they have different lengths or numbers of chunks (which are not printed).
    """
    x, y, weight, unit = inputs
    third = _Third("sample_weight", weight) if unit is None else _Third("unit", unit)
    parts = [*x, y, third.column] if isinstance(x, tuple) else [x, y, third.column]
    lazy = any(is_dask_collection(part) for part in parts)
    lengths: tuple[int, ...] | None = None
    if not lazy:
        chunks, lengths = _memory_chunks(x, y, third)
    elif isinstance(x, dd.DataFrame):
        chunks = _frame_chunks(x, y, third, schema)
    else:
        chunks, lengths = _array_chunks(x, y, third, schema)
    narrow = any(dtype == np.float32 or str(dtype) == "float[pyarrow]" for dtype in inputs.dtypes)
    matrix = not isinstance(x, tuple | pd.DataFrame | dd.DataFrame)
    return Source(
        schema, chunks, weight is not None, lazy, unit is not None, lengths, narrow, matrix
    )


# ---- kinds -----------------------------------------------------------------------------------------------------------


def _refuse_array_expr() -> None:
    if dask.config.get("array.query-planning", None) or da.ARRAY_EXPR_ENABLED:
        raise UnsupportedCollectionError(
            "Dask's array query planning is switched on (array.query-planning=True), which this library cannot read. "
            "Start Python with DASK_ARRAY__QUERY_PLANNING=False, or call "
            "dask.config.set({'array.query-planning': False}) before dask.array is imported."
        )


def _native_kind(data: Any, name: str) -> Any:
    """Turn xarray, Zarr and Arrow into NumPy, pandas or Dask; a tuple of named columns becomes `_Columns`."""
    data = from_arrow(data)
    if isinstance(data, xr.Dataset):
        data = _Columns.of_dataset(data)
    elif isinstance(data, xr.DataArray):
        data = _from_dataarray(data)
    elif isinstance(data, zarr.Group):
        data = _Columns.of_group(data)
    elif isinstance(data, zarr.Array):
        data = from_zarr(data)
    elif isinstance(data, list | tuple) and name != "X":
        data = column_of(data)
    elif isinstance(data, np.matrix):
        data = np.asarray(data)
    elif isinstance(data, dd.DataFrame | dd.Series):
        data = as_given(data)
    refuse_other_chunks(data, name)
    known = _Columns, _Named, np.ndarray, pd.DataFrame, pd.Series, da.Array, dd.DataFrame, dd.Series
    if not isinstance(data, known):
        raise unknown_kind(data, name)
    return data


def column_of(values: Sequence[Any]) -> NDArray[np.object_]:
    """Return a list as a column of objects; an item that is a list of one value stands for that value.

    A list has no type of its own, and NumPy would choose one from all of its values.
    """
    cells = (v[0] if type(v) in (list, tuple) and len(v) == 1 else v for v in values)
    return np.fromiter(cells, dtype=object, count=len(values))


class _Columns(dict[str, Any]):
    """Named, one-dimensional and unordered columns of an xarray Dataset or a Zarr Group.

    Parameters
    ----------
    columns : mapping of str to array
    axes : mapping of str to tuple
        The names of each column's dimensions; arrays of a Zarr Group need have none.
    beside : iterable
        Names of xarray's coordinates.
    """

    def __init__(
        self, columns: Mapping[str, Any], axes: Mapping[str, tuple[Any, ...]], beside: Iterable[Any]
    ) -> None:
        super().__init__(columns)
        self._axes, self._beside = axes, beside

    @classmethod
    def of_dataset(cls, data: xr.Dataset) -> "_Columns":
        variables = {str(name): variable for name, variable in data.data_vars.items()}
        axes = {name: variable.dims for name, variable in variables.items()}
        return cls(variables, axes, data.coords)

    @classmethod
    def of_group(cls, data: zarr.Group) -> "_Columns":
        arrays, beside = all_arrays_of(data)
        axes = {name: dims for name, array in arrays.items() if (dims := dims_of(array))}
        return cls(arrays, axes, beside)

    def __getitem__(self, name: str) -> Any:
        """Return a column; arrays that nobody asks for may have attributes that cannot be decoded."""
        column = super().__getitem__(name)
        return _values_of(column) if isinstance(column, xr.DataArray) else lazily(column)

    def check(self, names: Iterable[str], schema: Schema) -> None:
        """Refuse features that are coordinates, and columns with names that lie along no one axis."""
        check_beside(self, self._beside, schema)
        check_one_axis({name: self._axes[name] for name in names if name in self._axes})


class _Named(NamedTuple):
    """A two-dimensional array whose columns have names."""

    array: Any
    names: tuple[str, ...]


def _values_of(data: xr.DataArray) -> Any:
    """Return the values of an xarray variable: NumPy, Dask, or a series where they are of a type of pandas."""
    check_calendar(data)
    variable = data.variable
    if (column := series_of(variable)) is not None:
        return column
    # xarray reads other arrays lazily from a file
    loaded = variable.chunks is not None or getattr(variable, "_in_memory", True)
    return (data if loaded else data.reset_coords(drop=True).chunk()).data


def _from_dataarray(data: xr.DataArray) -> Any:
    values = _values_of(data)
    if data.ndim == 2 and data.dims[1] in data.coords:
        names = data.coords[data.dims[1]]
        if names.dtype.kind in "OUST":
            return _Named(values, tuple(str(name) for name in names.to_index()))
    return values


def _column(data: Any, name: str) -> Any:
    """Return a target or weights as one column."""
    if isinstance(data, _Columns | _Named):
        raise _no_column(name)
    if data.ndim == 2 and data.shape[1] == 1:
        if isinstance(data, pd.DataFrame | dd.DataFrame):
            return _named_column(data, data.columns[0])
        return data[:, 0]
    if data.ndim != 1:
        raise _no_column(name)
    return data


def _no_column(name: str) -> StructureError:
    return StructureError(
        f"{name} must be one column. Give that column alone, such as data['{name}']; of xarray with several dimensions,"
        f" stack them as those of X: {name}.stack(row=[…])."
    )


def _select(data: Any, schema: Schema) -> Any:
    """Return the features of X in schema order: a frame, a 2-D array, or a tuple of columns."""
    if isinstance(data, _Columns):
        match_names(data, schema, ordered=False)
        columns = tuple(data[name] for name in schema.names)
        if any(column.ndim != 1 for column in columns):
            raise StructureError(
                "Every column of X must have one dimension: rows. Give a matrix alone, such as group['X']."
            )
        check_columns(columns, schema)
        return columns
    if isinstance(data, _Named):
        positions = match_names(data.names, schema)
        data = (
            data.array if len(positions) == data.array.shape[1] else data.array[:, list(positions)]
        )
    positions = check_columns(_meta(data), schema)
    if isinstance(data, pd.DataFrame | dd.DataFrame) and len(positions) < len(data.columns):
        return projected(data, [data.columns[k] for k in positions])
    if isinstance(data, dd.DataFrame) and is_numbered(data.columns):
        return _with_names(data, schema)
    return data


def _with_names(data: dd.DataFrame, schema: Schema) -> dd.DataFrame:
    """Return a frame of numbered columns under the schema's names, found by number in each partition.

    A partition may lack a number, as it may lack a name (`projected`): its columns are not matched by position.
    """
    names = dict(zip(data.columns, schema.names, strict=True))
    if len(names) < len(data.columns):
        return data  # a number that is there twice: by position
    meta = named_by(_meta(data), names)
    return data.map_partitions(named_by, names, meta=meta, enforce_metadata=False)


def _unit_column(data: Any, unit: str, schema: Schema) -> Any:
    """Return the column of X that names the privacy unit."""
    if unit != schema.unit_id:
        raise SchemaError(
            f"unit_id={unit!r} is not the schema's unit_id={schema.unit_id!r}. Declare it there."
        )
    if unit not in _names(data):
        raise SchemaError(
            f"unit_id={unit!r} is not a column of X. Give X with names, and this column in it."
        )
    return _named_column(data, unit)


def _target_column(data: Any, schema: Schema) -> Any:
    """Return the column of X that is the target."""
    if schema.target.name not in _names(data):
        raise SchemaError(
            f"y is not given, and the target {schema.target.name!r} is not a column of X. Give one of them."
        )
    return _named_column(data, schema.target.name)


def _names(data: Any) -> Any:
    if isinstance(data, _Columns):
        return data
    return getattr(data, "names", getattr(data, "columns", ()))


def _named_column(data: Any, name: Any) -> Any:
    """Return one column; all of its values are missing in a partition that lacks it, as those of a feature are."""
    if isinstance(data, _Named):
        return data.array[:, data.names.index(name)]
    if not isinstance(data, dd.DataFrame):
        return data[name]
    # as X is, so that a reader reads the same partitions of both
    frame = projected(data, [name])
    return frame.map_partitions(only_column, name, meta=_meta(data)[name], enforce_metadata=False)


def _meta(data: Any) -> Any:
    """Return an object with the structure of ``data``: a Dask DataFrame's empty frame, or ``data`` itself."""
    if isinstance(data, dd.DataFrame | dd.Series):
        return data._meta  # noqa: SLF001
    return data


# ---- chunks ----------------------------------------------------------------------------------------------------------


class _Third(NamedTuple):
    """The optional third input, a column of weights or of units."""

    name: str
    column: Any

    def chunk(self, x: Any, y: Any, part: Any) -> Chunk:
        return Chunk(x, y, None, part) if self.name == "unit" else Chunk(x, y, part)


def lengths_differ() -> StructureError:
    """Return the error for inputs of different lengths, which are not printed."""
    return StructureError(
        "X, y and sample_weight have different numbers of rows. Give each row one target, and one weight or none."
    )


def _memory_chunks(x: Any, y: Any, third: _Third) -> tuple[tuple[Chunk, ...], tuple[int, ...]]:
    line_up(x, y, third.column)
    n = n_rows(x)
    chunks, lengths = [], []
    for start in range(0, max(n, 1), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        own = None if third.column is None else slice_block(third.column, rows)
        chunks.append(third.chunk(slice_block(x, rows), slice_block(y, rows), own))
        lengths.append(min(n - start, CHUNK_ROWS))
    return tuple(chunks), tuple(lengths)


def _as_series(data: Any, like: dd.DataFrame, name: str) -> dd.Series:
    """Return a column as a Dask Series with as many partitions as X."""
    if isinstance(data, da.Array):
        data = in_partitions(data)
    if not isinstance(data, dd.Series):
        raise StructureError(
            f"X is a Dask DataFrame but {name} is in memory: give a Dask Series or Array."
        )
    if data.npartitions != like.npartitions:
        raise StructureError(
            f"X and {name} have different numbers of chunks. Repartition one of them; what Dask reads from Parquet it"
            f" may split otherwise for each, so repartition or persist the whole table, and take X and {name} of that."
        )
    return data


def as_one_kind(*columns: Any) -> tuple[Any, ...]:
    """Return columns with Dask Arrays as Dask Series, if one is a Series: Dask warns if both are computed together."""
    if not any(isinstance(column, dd.Series) for column in columns):
        return columns
    return tuple(in_partitions(c) if isinstance(c, da.Array) else c for c in columns)


def _frame_chunks(x: dd.DataFrame, y: Any, third: _Third, schema: Schema) -> tuple[Chunk, ...]:
    columns = [_as_series(y, x, "y")]
    if third.column is not None:
        columns.append(_as_series(third.column, x, third.name))
    rows = rows_of_units if third.name == "unit" else rows_of
    # X and y go into one expression: if Dask optimised them apart, it might split their files differently
    x, *columns = read_alike(x, *columns)
    packed = dd.map_partitions(
        rows, x, *columns, meta=x._meta, enforce_metadata=False, align_dataframes=False  # noqa: SLF001
    )  # fmt: skip
    parts = _to_delayed(packed)
    made = _delayed([part.key for part in parts], parts[0].__dask_graph__(), schema)
    return tuple(Chunk(part, None, None) for part in made)


@in_our_words(
    lambda kind: ChunkError(
        f"Dask failed to line up the partitions: {kind}. Build the DataFrame with dataframe.convert-string=False, or"
        " give X and y in memory."
    )
)
def _to_delayed(frame: dd.DataFrame) -> list[Any]:
    """Return the partitions, without Dask's conversion to text, and not shuffled by its P2P method.

    While it optimises, Dask may convert columns in memory, and an error of that conversion would quote a value.
    """
    with dask.config.set({"dataframe.convert-string": False, **BY_TASKS}):
        parts: list[Any] = frame.to_delayed()
        return parts


def _as_array(data: Any, rows: tuple[Any, ...] | None, name: str) -> Any:
    """Return data as a Dask Array with the row chunks ``rows``; None keeps the chunks it has."""
    if isinstance(data, dd.DataFrame | dd.Series):
        with dask.config.set(BY_TASKS):
            data = data.to_dask_array()
    unknown = rows is not None and any(np.isnan(n) for n in rows)
    if not isinstance(data, da.Array):
        if unknown or isinstance(data, pd.DataFrame):
            raise StructureError(
                f"{name} is in memory and another input is not: give both as Dask collections."
            )
        masked = isinstance(data, np.ma.MaskedArray)
        # Dask cannot choose chunks for objects by itself, and would name the array by a digest of its values
        data = da.from_array(data if masked else as_array(data), chunks=-1, name=False)
    if data.ndim == 2 and len(data.chunks[1]) > 1:
        data = data.rechunk({1: -1}, method="tasks")
    if rows is None or data.chunks[0] == rows:
        return data
    if unknown or any(np.isnan(n) for n in data.chunks[0]):
        if len(data.chunks[0]) != len(rows):
            raise StructureError(
                f"X and {name} have different numbers of chunks. "
                "Rechunk one of them; columns of one Dask DataFrame match if X is a DataFrame too."
            )
        return data
    if data.shape[0] != sum(rows):
        raise lengths_differ()
    return data.rechunk({0: rows}, method="tasks")


def _delayed_blocks(arrays: Sequence[da.Array], schema: Schema) -> list[list[Delayed]]:
    """Return the blocks of each array, from one graph.

    Arrays that are parts of one array then share its reads; optimised apart, each would read it again.
    """
    keys = [list(flatten(array.__dask_keys__())) for array in arrays]
    graph = _by_tasks(HighLevelGraph.merge(*(array.__dask_graph__() for array in arrays)))
    tasks = arrays[0].__dask_optimize__(graph, [key for part in keys for key in part])
    flat = iter(_delayed(list(flatten(keys)), tasks, schema))
    return [list(islice(flat, len(part))) for part in keys]


def _by_tasks(graph: HighLevelGraph) -> HighLevelGraph:
    """Return a graph whose arrays Dask does not rechunk by its P2P method, as it does by default on a cluster."""
    layers = {
        name: _rechunked(layer) if type(layer).__name__ == "P2PRechunkLayer" else layer
        for name, layer in graph.layers.items()
    }
    return HighLevelGraph(layers, graph.dependencies)


def _rechunked(layer: Any) -> dict[Any, Any]:
    """Return what makes of one array's blocks those of another, under the same keys."""
    old = da.Array({}, layer.name_input, layer.chunks_input, dtype=np.float64)
    new = old.rechunk(layer.chunks, method="tasks")
    names = {(layer.name, *key[1:]): key for key in flatten(new.__dask_keys__())}
    return {**new.__dask_graph__(), **{key: Alias(key, made) for key, made in names.items()}}


def _delayed(keys: Sequence[Any], graph: Mapping[Any, Any], schema: Schema) -> list[Delayed]:
    """Return some tasks of a graph, each as a Delayed, in which no value makes Dask fail."""
    tasks = convert_legacy_graph(dict(graph))
    parts = list(parts_in(tasks.values()))
    inner = [part for part in parts if isinstance(part, Task)]
    if any(type(task).__name__ == "P2PBarrierTask" for task in inner):
        raise StructureError(
            "Rows that Dask shuffles or rechunks by its P2P method cannot be read by a fit. Build the collection under"
            f" dask.config.set({BY_TASKS}), or persist it first."
        )
    change = reading_of(inner, schema)
    if change is not None or any(_safe(None, part) is not part for part in parts):
        tasks = {key: rewritten(node, partial(_safe, change)) for key, node in tasks.items()}
    layer = f"dpgb-source-{keys[0][0]}"
    joint = HighLevelGraph.from_collections(layer, tasks, dependencies=())
    return [Delayed(key, joint, layer=layer) for key in keys]


def _safe(change: Callable[[Task], Task] | None, part: Any) -> Any:
    """Return a node of a graph, or an argument of a task, that no value makes fail; the same one if none does."""
    part = total_part(part)
    if isinstance(part, Task) and (choose := _choosing(part.func, part.args)) is not None:
        part = Task(part.key, choose, *part.args, **part.kwargs)
    return change(part) if change is not None and isinstance(part, Task) else part


def _choosing(function: Any, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return what takes the place of a function of Dask that fails where values make columns; None for any other.

    Columns that a partition lacks, as `get_dummies` of its values may make, count as missing. Dask compares those that
    a function of the caller's makes with the expected ones, and chooses some in each partition.
    """
    if function is apply_and_enforce:
        return as_made
    return total_getitem if function is operator.getitem and _is_named(args[-1]) else None


def _is_named(key: Any) -> bool:
    """Return whether an index names columns."""
    names = key if isinstance(key, list) else [key]
    return bool(names) and all(type(name) in (str, int) for name in names)


def _array_chunks(
    x: Any, y: Any, third: _Third, schema: Schema
) -> tuple[tuple[Chunk, ...], tuple[int, ...] | None]:
    given = [*x] if isinstance(x, tuple) else [x]
    lead = next((part for part in [*given, y] if isinstance(part, da.Array)), None)
    rows = None if lead is None else lead.chunks[0]
    arrays = [_as_array(part, rows, "X") for part in given]
    rows = arrays[0].chunks[0]
    arrays.append(_as_array(y, rows, "y"))
    if third.column is not None:
        arrays.append(_as_array(third.column, rows, third.name))
    columns = _delayed_blocks(arrays, schema)
    chunks = []
    for parts in zip(*columns, strict=True):
        features = tuple(parts[: len(given)]) if isinstance(x, tuple) else parts[0]
        last = None if third.column is None else parts[-1]
        chunks.append(third.chunk(features, parts[len(given)], last))
    return tuple(chunks), None if any(np.isnan(n) for n in rows) else rows
