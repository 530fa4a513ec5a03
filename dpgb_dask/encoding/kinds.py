"""Kinds of collections beside those that are read as they are: Arrow, which is taken, and others, which are refused."""

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
from dask.delayed import Delayed

from dpgb_dask.errors import UnsupportedCollectionError

# Arrow's views of text and bytes, and the types of the same values that pandas can take rows of
VIEWS = {"string_view": "large_string", "binary_view": "large_binary"}
RUNS = "run_end_encoded"


def from_arrow(data: Any) -> Any:
    """Return an Arrow table, batch or column as pandas, with its Arrow types; anything else as it is.

    Values are left as they are: pandas' own types would turn whole numbers beside a missing value into floats. Only
    views and run-end encoding, of which pandas cannot take rows, are written out.

    Raises
    ------
    UnsupportedCollectionError
        If pandas cannot hold a type; the message names the types.
    """
    if type(data).__module__.partition(".")[0] != "pyarrow" or not hasattr(data, "to_pandas"):
        return data
    try:
        return _as_pandas(_written_out(data))
    except Exception:  # its message may quote a value
        types = [data.type] if hasattr(data, "type") else data.schema.types
    raise UnsupportedCollectionError(
        f"pandas cannot hold a column of Arrow data, whose types are {', '.join(sorted(set(map(_outer, types))))}. Cast"
        " it to numbers, text or dates."
    )


def _as_pandas(data: Any) -> Any:
    names = data.schema.names if hasattr(data, "schema") else []
    if len({*names}) == len(names):
        return data.to_pandas(types_mapper=pd.ArrowDtype)
    # pandas would take the types of columns by their names
    apart = data.rename_columns([str(k) for k in range(len(names))]).replace_schema_metadata(None)
    return apart.to_pandas(types_mapper=pd.ArrowDtype).set_axis(names, axis=1)


def _outer(arrow: Any) -> str:
    """Return a type's name without its parts: names of fields may come from values."""
    return re.split(r"[<\[(]", str(arrow))[0]


def _written_out(data: Any) -> Any:
    """Return Arrow data without views and run-end encoding.

    Before pandas takes them: older versions cast each column to its own type, in which slices of runs lose their place.
    """
    if hasattr(data, "schema"):  # a table, or a batch
        for k, (name, column) in enumerate(zip(data.schema.names, data.columns, strict=True)):
            if _is_odd(column.type):
                data = data.set_column(k, name, _written_out(column))
        return data
    if not _is_odd(data.type):
        return data
    if not hasattr(data, "chunks"):
        return _plain(data)
    chunked_array = sys.modules["pyarrow"].chunked_array  # it is loaded where its data are
    return chunked_array([_plain(chunk) for chunk in data.chunks or [data.combine_chunks()]])


def _is_odd(arrow: Any) -> bool:
    return str(arrow) in VIEWS or str(arrow).startswith(RUNS)


def _plain(values: Any) -> Any:
    """Return Arrow values without views and run-end encoding."""
    if str(values.type).startswith(RUNS):
        rows = np.arange(len(values)) + values.offset
        run = np.searchsorted(np.asarray(values.run_ends), rows, side="right")
        return _plain(values.values).take(run)
    return values.cast(VIEWS[str(values.type)]) if str(values.type) in VIEWS else values


def unknown_kind(data: Any, name: str) -> UnsupportedCollectionError:
    """Return the error for a collection that cannot be read; ``name`` is the argument's."""
    hint = "Convert it to one of these."
    part = data[0] if isinstance(data, list | tuple) and data else data
    if isinstance(part, Delayed) or type(part).__module__ == "distributed.client":
        hint = "Make a collection of it: dask.dataframe.from_delayed, or dask.array.from_delayed."
    elif name in getattr(data, "_fields", ()):  # a data set of this library
        hint = f"Give what it holds: data.{name}."
    elif part is not data:
        hint = "Make one of its parts: pandas.concat, dask.dataframe.concat, or numpy.concatenate."
    elif hasattr(data, "to_dataset"):  # a tree of xarray's
        hint = f"Give one of its data sets: {name}.to_dataset()."
    elif isinstance(data, Mapping) and name == "X":
        hint = "Make a table of it: pandas.DataFrame(X)."
    elif hasattr(data, "to_dataframe"):  # a bag of Dask's
        hint = f"Make a table of it: {name}.to_dataframe()."
    elif hasattr(data, "toarray"):
        hint = "Convert sparse data with .toarray()."
    elif isinstance(data, str) and name != "X":
        hint = "Give the column, not its name: table['…']."
    elif isinstance(data, str | os.PathLike):
        hint = "Read the file first: dask.dataframe.read_parquet, or dpgb_dask.io.read_csv."
    elif hasattr(data, "__arrow_c_stream__"):
        one = "table: pyarrow.table(…)" if name == "X" else "column: pyarrow.chunked_array(…)"
        hint = f"Give it as an Arrow {one}, or in a pipeline of scikit-learn by set_output(transform='pandas')."
    elif hasattr(data, "collect") and hasattr(data, "lazy"):  # a lazy frame of polars
        hint = f"Compute it first: {name}.collect()."
    elif isinstance(data, pd.api.extensions.ExtensionArray | pd.Index):
        hint = "Give it as a column: pandas.Series(…)."
    # with the package: several have a DataFrame, a Series or a Dataset
    kind = f"{type(data).__module__.partition('.')[0]}.{type(data).__name__}".removeprefix(
        "builtins."
    )
    return UnsupportedCollectionError(
        f"{name} is a {kind}. Known: NumPy, pandas, Dask, xarray, Zarr, Arrow. {hint}"
    )


def refuse_other_chunks(data: Any, name: str) -> None:
    """Refuse a Dask Array whose chunks are not NumPy's, such as sparse ones.

    Raises
    ------
    UnsupportedCollectionError
    """
    if isinstance(data, da.Array) and not isinstance(data._meta, np.ndarray):  # noqa: SLF001
        raise UnsupportedCollectionError(
            f"{name} is a Dask Array of {type(data._meta).__name__}; only NumPy chunks can be read. "  # noqa: SLF001
            "Convert with X.map_blocks(lambda block: block.toarray())."
        )
