"""Scores of rows under a released model, block by block, lazily on Dask; the kind of rows decides that of outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import xarray as xr
import zarr
from dask._task_spec import Alias
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from dpgb_dask.cf_decoding import dims_of
from dpgb_dask.contracts.model import Model
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.contracts.scores import scores_by_codes
from dpgb_dask.encoding.codes import encode
from dpgb_dask.encoding.columns import as_array
from dpgb_dask.encoding.frames import projected
from dpgb_dask.encoding.structure import (
    check_beside,
    check_columns,
    check_one_axis,
    match_names,
    no_table,
)
from dpgb_dask.errors import StructureError, in_our_words
from dpgb_dask.graph_parts import sent_once
from dpgb_dask.lazy_decoding import total_collection, total_values
from dpgb_dask.zarr_arrays import all_arrays_of, from_zarr

BLOCK_ROWS = 1 << 14  # so that the codes of a block stay in the second-level cache

Codes = NDArray[np.uint8]  # (n_features, n_rows)
OfCodes = Callable[[Codes], NDArray[Any]]


def scorer(model: Model) -> Callable[[Codes], NDArray[np.int32]]:
    """Return a function from (n_features, n_rows) uint8 codes to (n_rows, n_scores) int32 scores."""
    score = scores_by_codes(model)
    return lambda codes: np.ascontiguousarray(score(codes).T)


@dataclass(frozen=True, eq=False)
class RowFunction:
    """A picklable function of one in-memory block of rows.

    Parameters
    ----------
    model : Model
    schema : Schema
    prepare : callable
        Turns the model into a function from codes to one output per row; called once per block.
    task : str
        Name of its tasks on Dask's dashboard, and beginning of the names of its collections.
    told : (str, str)
        In xarray, the name of the output, and the dimension of several outputs per row.
    """

    model: Model
    schema: Schema
    prepare: Callable[[Model], OfCodes]
    task: str = "dpgb-predict"
    told: tuple[str, str] = ("prediction", "class")

    def __repr__(self) -> str:
        return f"<{self.task}>"  # of short names; a model is long

    @in_our_words()
    def __call__(self, block: Any) -> NDArray[Any]:
        """Encode the rows of a block, piece by piece, and compute their outputs."""
        of_codes = self.prepare(self.model)
        n_rows = len(block[0]) if isinstance(block, tuple) else len(block)
        parts = []
        for start in range(0, max(n_rows, 1), BLOCK_ROWS):
            rows = _slice(block, slice(start, start + BLOCK_ROWS))
            parts.append(of_codes(encode(rows, self.schema, self.model.bins)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _slice(block: Any, part: slice) -> Any:
    if isinstance(block, tuple):
        return tuple(column[part] for column in block)
    return block.iloc[part] if isinstance(block, pd.DataFrame) else block[part]


def as_read(rows: Any, schema: Schema) -> Any:
    """Return rows, in whose tasks no value ends what Dask or xarray makes of them as they are read.

    Of a Dask DataFrame, they are the features alone, so that a reader skips all other columns.

    Raises
    ------
    SchemaError, StructureError
        If the columns of a Dask DataFrame do not match the schema.
    """
    if isinstance(rows, dd.DataFrame):
        positions = check_columns(rows._meta, schema)  # noqa: SLF001 - dask has no public name for it
        if len(positions) < len(rows.columns):
            rows = projected(rows, [rows.columns[k] for k in positions])
    return total_collection(rows, as_given=True)


def apply(
    function: RowFunction, rows: Any, dtype: np.dtype[Any], columns: tuple[Any, ...] | None = None
) -> Any:
    """Apply a function of row blocks to any collection; its kind decides that of the output.

    Parameters
    ----------
    function : RowFunction
        Maps a block of rows to (n_rows,) or, with ``columns``, to (n_rows, len(columns)).
    rows : collection
    dtype : dtype of the output
    columns : tuple, optional
        Labels of the output's second axis; None for one value per row.

    Returns
    -------
    ndarray for NumPy, pandas and lists; dask Array (row chunks kept) for dask and Zarr arrays, dask Series "prediction"
    or DataFrame (index and divisions kept) for dask frames, DataArray for xarray. Columns of a frame are named by the
    labels as text, as Parquet has no other names.

    Raises
    ------
    SchemaError, StructureError, UnsupportedCollectionError
        If the structure of ``rows`` does not fit the schema.
    """
    if isinstance(rows, zarr.Group):
        return _on_group(function, rows, dtype, columns)
    if isinstance(rows, zarr.Array):
        rows = from_zarr(rows)
    if isinstance(rows, xr.Dataset):
        return _on_dataset(function, rows, dtype, columns)
    if isinstance(rows, xr.DataArray):
        return _on_dataarray(function, rows, dtype, columns)
    if isinstance(rows, dd.DataFrame):
        rows = as_read(rows, function.schema)
        empty = np.empty((0,) if columns is None else (0, len(columns)), dtype)
        return rows.map_partitions(
            _on_partition,
            sent_once(function, "model"),
            columns,
            meta=_frame(empty, rows._meta.index[:0], columns),  # noqa: SLF001 - as in `as_read`
            token=function.task,
        )
    if isinstance(rows, da.Array):
        if rows.ndim != 2:
            raise no_table(rows)
        check_columns(np.empty((0, rows.shape[1]), rows.dtype), function.schema)
        rows = total_collection(rows.rechunk({1: -1}) if rows.numblocks[1] > 1 else rows)
        made = da.map_blocks(
            _on_block,
            sent_once(function, "model"),
            rows,
            chunks=(rows.chunks[0], (1 if columns is None else len(columns),)),
            meta=np.empty((0, 0), dtype),
            dtype=dtype,
            token=function.task,
        )
        return _of_one_axis(made, function.task) if columns is None else made
    if not isinstance(rows, pd.DataFrame):
        given = rows
        if not isinstance(rows, np.ma.MaskedArray):  # whose mask says what is missing
            rows = np.asarray(rows, dtype=object if isinstance(rows, list | tuple) else None)
        if rows.ndim != 2:
            raise no_table(given)
    check_columns(rows, function.schema)
    return function(rows)


def _on_block(function: RowFunction, block: NDArray[Any]) -> NDArray[Any]:
    return function(block)


def _of_one_axis(made: da.Array, task: str) -> da.Array:
    """Return blocks of one axis, which Dask takes for columns, as an array of one axis.

    Dask fuses no task that drops an axis with what makes its rows.
    """
    name = f"{task}-{tokenize(made.name)}"
    named: dict[Any, Any] = {
        (name, k): Alias((name, k), (made.name, k, 0)) for k in range(made.numblocks[0])
    }
    below: Any = [made]
    graph = HighLevelGraph.from_collections(name, named, dependencies=below)
    return da.Array(graph, name, made.chunks[:1], meta=np.empty(0, made.dtype))


def _on_group(
    function: RowFunction, rows: zarr.Group, dtype: np.dtype[Any], columns: tuple[Any, ...] | None
) -> da.Array:
    columns_there, beside = all_arrays_of(rows)
    check_beside(columns_there, beside, function.schema)
    match_names(columns_there, function.schema, ordered=False)
    stored = {name: columns_there[name] for name in function.schema.names}
    check_one_axis({name: dims for name, array in stored.items() if (dims := dims_of(array))})
    arrays = [from_zarr(array) for array in stored.values()]
    if any(array.ndim != 1 for array in arrays):
        raise StructureError(
            "Every array of a Zarr group must have one axis: rows. Give a matrix alone, such as group['X']."
        )
    check_columns(tuple(np.empty(0, a.dtype) for a in arrays), function.schema)
    if any(array.shape != arrays[0].shape for array in arrays):
        raise StructureError(
            "The arrays of the Zarr group have different numbers of rows. Line them up first."
        )
    return _of_arrays(function, arrays, dtype, columns)


def _of_arrays(
    function: RowFunction,
    arrays: list[da.Array],
    dtype: np.dtype[Any],
    columns: tuple[Any, ...] | None,
) -> da.Array:
    """Apply a function to columns, one array each; the first one's chunks are kept."""
    arrays = [total_collection(array.rechunk(arrays[0].chunks)) for array in arrays]
    given = (sent_once(function, "model"), *arrays)
    same: dict[str, Any] = {"dtype": dtype, "token": function.task}
    if columns is None:
        return da.map_blocks(_on_columns, *given, meta=np.empty(0, dtype), **same)
    shape = {"new_axis": 1, "chunks": (arrays[0].chunks[0], (len(columns),))}
    return da.map_blocks(_on_columns, *given, meta=np.empty((0, 0), dtype), **shape, **same)


def _on_columns(function: RowFunction, *columns: NDArray[Any]) -> NDArray[Any]:
    return function(columns)


def _on_dataarray(
    function: RowFunction, rows: xr.DataArray, dtype: np.dtype[Any], columns: tuple[Any, ...] | None
) -> xr.DataArray:
    if rows.ndim != 2:
        raise no_table(rows)
    _check_dim(function, rows.dims[0], columns)
    features = rows.dims[1]
    if features in rows.coords and rows.coords[features].dtype.kind in "OUST":
        positions = match_names(rows.coords[features].to_index(), function.schema)
        rows = rows[:, list(positions)]
    values = apply(function, total_values(rows), dtype, columns)
    return _labelled(function, values, rows, columns)


def _on_dataset(
    function: RowFunction, rows: xr.Dataset, dtype: np.dtype[Any], columns: tuple[Any, ...] | None
) -> xr.DataArray:
    names = [str(name) for name in rows.data_vars]
    check_beside(names, rows.coords, function.schema)
    match_names(names, function.schema, ordered=False)
    variables = [rows[name] for name in function.schema.names]
    check_one_axis({str(v.name): v.dims for v in variables})
    _check_dim(function, variables[0].dims[0], columns)
    check_columns(tuple(v.variable for v in variables), function.schema)
    chunks = next((v.chunks for v in variables if v.chunks is not None), None)
    if chunks is not None:  # variables of a store may have other chunks than the first
        arrays = [total_collection(_lazy(v).rechunk(chunks)) for v in variables]
        values: Any = _of_arrays(function, arrays, dtype, columns)
    else:
        values = function(tuple(map(total_values, variables)))  # each by itself, as in a fit
    return _labelled(function, values, variables[0], columns)


def _lazy(variable: xr.DataArray) -> da.Array:
    values = total_values(variable)
    if variable.chunks is not None:
        return values
    # in one chunk: of objects, Dask chooses none; and it does not take types of pandas. It would name it by a digest
    return da.from_array(as_array(values), chunks=-1, name=False)


def _check_dim(function: RowFunction, rows: Any, columns: tuple[Any, ...] | None) -> None:
    """Refuse rows along a dimension whose name the columns of the output have."""
    dim = function.told[1]
    if rows == dim and columns is not None:
        raise StructureError(
            f"the rows lie along the dimension {dim!r}, which is the name of the output's columns. Give it another"
            f" one: data.rename({{{dim!r}: 'row'}})."
        )


def _labelled(
    function: RowFunction, values: Any, like: xr.DataArray, columns: tuple[Any, ...] | None
) -> xr.DataArray:
    """Return outputs with the row coordinates of the input."""
    rows, (name, dim) = like.dims[0], function.told
    coords: dict[Any, Any] = {key: c for key, c in like.coords.items() if c.dims == (rows,)}
    if columns is None:
        return xr.DataArray(values, dims=(rows,), coords=coords, name=name)
    coords[dim] = list(columns)
    return xr.DataArray(values, dims=(rows, dim), coords=coords, name=name)


def _frame(values: NDArray[Any], index: Any, columns: tuple[Any, ...] | None) -> Any:
    if columns is None:
        return pd.Series(values, index=index, name="prediction")
    return pd.DataFrame(values, index=index, columns=[str(label) for label in columns])


def _on_partition(
    part: pd.DataFrame, function: RowFunction, columns: tuple[Any, ...] | None
) -> Any:
    if not isinstance(part, pd.DataFrame):
        raise StructureError(
            "A partition of X is no DataFrame of pandas, as Dask says that it is. Make it one."
        )
    # a fit takes the columns that a partition lacks for missing values
    check_columns(part, function.schema)
    return _frame(function(part), part.index, columns)
