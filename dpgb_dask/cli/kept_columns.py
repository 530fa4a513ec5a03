"""The columns of the data that ``dpgb-dask predict --keep`` writes beside the predictions."""

from collections.abc import Mapping, Sequence
from typing import Any

import dask.array as da
import dask.dataframe as dd
import pandas as pd
from pandas.api.types import pandas_dtype

from dpgb_dask.encoding.columns import objects
from dpgb_dask.encoding.frames import in_partitions, to_text
from dpgb_dask.errors import StructureError
from dpgb_dask.values import as_text

TEXT = "string[pyarrow]"
FLOATS = {"halffloat[pyarrow]": "f2", "float[pyarrow]": "f4", "double[pyarrow]": "f8"}
BYTES = ("binary", "large_binary", "fixed_size_binary")  # of Arrow


def kept_columns(
    names: Sequence[str], table: Any, columns: Mapping[str, Any], made: set[str], *, in_text: bool
) -> list[dd.DataFrame]:
    """Return columns of the data as frames with the same partitions as the predictions, for Parquet or for text.

    Parameters
    ----------
    names : sequence of str
        The columns to keep.
    table : DataFrame or dask Array or DataFrame
        The rows, as `open_table` returns them.
    columns : mapping of str to column
        Columns beside the table, or as they stand in the file.
    made : set of str
        The names of the predictions, which no kept column may have.
    in_text : bool
        Whether the predictions are written as text.
    """
    parts = []
    change = _for_text if in_text else _for_parquet
    known = dict.fromkeys(table.columns) if isinstance(table, dd.DataFrame) else {}
    for name in dict.fromkeys(names):
        if name in made:
            raise StructureError(f"--keep {name!r} is the name of a prediction. Rename the column.")
        if isinstance(columns.get(name), dd.Series):  # as it stands in the file
            column = columns[name]
        elif name in known:
            column = table[name]
        elif name in columns and isinstance(columns[name], da.Array):
            column = columns[name]
            if isinstance(table, da.Array):
                column = column.rechunk({0: table.chunks[0]})
            column = in_partitions(column, name)
        else:
            raise StructureError(f"--keep {name!r} is no column of the data. Name one that is.")
        bare = _without_list(column._meta)  # noqa: SLF001 - dask has no public name for it
        # Dask takes the type in the file from ``meta``: decimals are objects in the parts
        meta = bare if _is_decimal(bare) else change(bare)
        written = column.map_partitions(change, meta=meta, enforce_metadata=False)
        parts.append(written.to_frame(name))
    return parts


def _for_text(column: pd.Series) -> pd.Series:
    """Return a column as a file of text shows it: of bytes and UUIDs their text, and dates of any year."""
    column = _without_list(column)
    told = str(column.dtype)
    # pandas makes Python's of them, of which the year 9999 is the last
    if told.startswith(("date32", "date64")):
        days = pd.arrays.ArrowExtensionArray(column.array.__arrow_array__().cast("string"))
        return pd.Series(days, index=column.index, name=column.name)
    if told in FLOATS:  # which pandas writes with the digits of a float64, and NaN as text
        return column.astype(FLOATS[told])
    own = column.dtype == "object" or told.startswith((*BYTES, "extension<arrow.uuid"))
    return _as_text(column) if own else column


def _for_parquet(column: pd.Series) -> pd.Series:
    """Return a column of a type that pandas knows again in Parquet; of lists, structs and others the text."""
    column = _without_list(column)
    # in a file, pandas cannot read the name of the type of decimals, but can that of objects
    if _is_decimal(column):
        return column.astype(object).where(column.notna(), None)
    if str(column.dtype).startswith("fixed_size_binary"):
        return column.astype("binary[pyarrow]")
    try:
        plain = column.dtype.kind != "c" and pandas_dtype(str(column.dtype)) != "object"
    except (TypeError, ValueError, NotImplementedError):  # by pandas' version
        plain = False
    return column if plain else _as_text(column)


def _without_list(column: pd.Series) -> pd.Series:
    """Return the values of a column of Arrow's dictionaries, any other column as it is."""
    arrow: Any = getattr(column.dtype, "pyarrow_dtype", None)
    listed = str(arrow).startswith("dictionary")
    return column.astype(pd.ArrowDtype(arrow.value_type)) if listed else column


def _is_decimal(column: pd.Series) -> bool:
    return str(column.dtype).startswith("decimal")


def _as_text(column: pd.Series) -> pd.Series:
    given = [_text_of(v) if isinstance(v, bytes) else v for v in objects(column)]
    bare = pd.Series(given, index=column.index, dtype=object, name=column.name)
    return to_text(bare).astype(TEXT)


def _text_of(value: bytes) -> str | None:
    """Return the text of bytes; if they are none, such as a hash, how Python writes them, which tells them apart."""
    try:
        return as_text(value.decode())
    except UnicodeDecodeError:
        return str(value)
