"""Kinds of collections beside those that are read as they are: Arrow, which is taken, and others, which are refused."""

from typing import Any

import dask.array as da
import numpy as np
import pandas as pd

from dpgb_dask.errors import UnsupportedCollectionError


def from_arrow(data: Any) -> Any:
    """Return an Arrow table, batch or column as pandas, with its Arrow types; anything else as it is.

    Values are left as they are: pandas' own types would turn whole numbers beside a missing value into floats.
    """
    if type(data).__module__.partition(".")[0] == "pyarrow" and hasattr(data, "to_pandas"):
        return data.to_pandas(types_mapper=pd.ArrowDtype)
    return data


def unknown_kind(data: Any, name: str) -> UnsupportedCollectionError:
    """Return the error for a collection that cannot be read; ``name`` is the argument's."""
    hint = "Convert it to one of these."
    if hasattr(data, "toarray"):
        hint = "Convert sparse data with .toarray()."
    elif isinstance(data, str):
        hint = "Read the file first: dask.dataframe.read_parquet, or dpgb_dask.io.read_csv."
    return UnsupportedCollectionError(
        f"{name} is a {type(data).__name__}. Known: NumPy, pandas, Dask, xarray, Zarr, Arrow. {hint}"
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
