"""A block's columns as arrays of numbers or of objects; each value is read by itself.

Total maps: they never raise or warn on a value (docs/design.md §1).
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpgb_dask.contracts.schema import Schema

# a tuple holds 1-D columns in schema order
from dpgb_dask.encoding.structure import SourceBlock, family, frame_positions, is_numbered
from dpgb_dask.values import UNREADABLE, read_numbers

ARROW_FLOATS = frozenset({"float[pyarrow]", "double[pyarrow]"})


def n_rows(block: SourceBlock) -> int:
    """Return the number of rows of a block. Private."""
    return len(block[0]) if isinstance(block, tuple) else len(block)


def split_columns(block: SourceBlock, schema: Schema) -> list[Any]:
    """Return the feature columns of a block in schema order, without copying.

    The columns of the whole collection were checked, but a partition may have other ones, if they are made from values
    partition by partition. So columns are found by name, and all values of an absent column are missing.
    """
    if isinstance(block, tuple):
        return list(block)
    if isinstance(block, pd.DataFrame):
        names = [str(name) for name in block.columns]
        if is_numbered(block.columns):
            return [block.iloc[:, k] for k in frame_positions(block, schema)]
        place = {name: k for k, name in reversed(list(enumerate(names)))}
        return [
            block.iloc[:, place[name]] if name in place else np.full(len(block), np.nan)
            for name in schema.names
        ]
    return [block[:, k] for k in range(block.shape[1])]


def as_columns(block: SourceBlock, schema: Schema) -> SourceBlock:
    """Return a frame as a tuple of its feature columns, and any other block as it is, without copying.

    Whoever takes rows strip by strip calls it first: cutting and naming a frame's columns costs more than reading them.
    Columns of NumPy's types, and Arrow's floats that none is missing of, become arrays over the same memory.
    """
    if not isinstance(block, pd.DataFrame):
        return block
    return tuple(_bare(column) for column in split_columns(block, schema))


def _bare(column: Any) -> Any:
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "biufc":
        return column.to_numpy() if isinstance(column, pd.Series) else column
    values = _arrow_floats(column)
    if values is None or values.null_count or values.num_chunks != 1:
        return column
    return values.chunk(0).to_numpy()


def _arrow_floats(column: Any) -> Any:
    """Return the Arrow array, in chunks, of a column of Arrow's float32 or float64; None for any other column."""
    is_one = isinstance(column, pd.Series) and str(column.dtype) in ARROW_FLOATS
    return column.array.__arrow_array__() if is_one else None


def one_column(y: Any) -> Any:
    """Return a one-dimensional column from (n,) or (n, 1)."""
    if isinstance(y, pd.DataFrame):
        return y.iloc[:, 0]
    return y[:, 0] if y.ndim == 2 else y


def native(values: NDArray[Any]) -> NDArray[Any]:
    """Return values in this machine's byte order, which kernels require."""
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def objects(column: Any) -> list[Any]:
    """Return a column's values as Python objects: None for a masked value, `UNREADABLE` if reading a value fails."""
    if isinstance(column, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(column).tolist()
        return [None if m else value for value, m in zip(objects(column.data), masked, strict=True)]
    # tolist would turn dates into integers
    read = list if getattr(column.dtype, "kind", "") in "Mm" else type(column).tolist
    try:
        return list(read(column))
    except Exception:  # such as an Arrow date beyond Python's calendar: then read values one by one
        items = column.array if isinstance(column, pd.Series) else column
        return [_item(items, k) for k in range(len(items))]


def _item(items: Any, k: int) -> Any:
    try:
        return items[k]
    except Exception:
        return UNREADABLE


def numbers(column: Any) -> NDArray[Any]:
    """Return a column as float32 or float64, with NaN for values that are not numbers. Never raises or warns."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        values = np.append(read_numbers(objects(column.cat.categories)), np.nan)
        out = values[column.cat.codes.to_numpy()]  # code -1, missing, takes the NaN at the end
    elif isinstance(column, np.ma.MaskedArray):
        out = numbers(column.data)
        mask = np.ma.getmaskarray(column)
        out = np.where(mask, out.dtype.type(np.nan), out) if mask.any() else out
    elif isinstance(dtype, np.dtype) and dtype.kind in "biufc":
        out = _plain_numbers(column.to_numpy() if isinstance(column, pd.Series) else column)
    elif (floats := _arrow_floats(column)) is not None:
        # whatever the chunks, of Arrow's own type: a mark covers the bits; in one chunk without null no copy
        out = (floats.chunk(0) if floats.num_chunks == 1 else floats).to_numpy(zero_copy_only=False)
    elif is_typed_number(dtype):
        out = np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    else:
        out = read_numbers(objects(column))
    return out


def is_typed_number(dtype: Any) -> bool:
    """Whether a type holds only real numbers and missing values, which pandas converts to floats as they are."""
    if family(dtype) != "number" or isinstance(dtype, pd.CategoricalDtype):
        return False
    # not decimals, which are rounded one by one, and not an Arrow dictionary, which is read through its list
    arrow = str(dtype.pyarrow_dtype) if isinstance(dtype, pd.ArrowDtype) else ""
    return not arrow.startswith(("decimal", "dictionary"))


def _plain_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return a NumPy column of numbers as float32 or float64."""
    if values.dtype.kind == "f" and values.dtype.itemsize in (4, 8):
        return native(values)
    if values.dtype.kind == "c":
        # one complex number makes the whole column complex, but the other values are still real numbers
        return np.where(values.imag == 0, values.real, np.nan).astype(np.float64)
    return np.asarray(values.astype(np.float64))
