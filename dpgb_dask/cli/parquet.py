"""Parquet as a Dask DataFrame, whatever index pandas or Dask wrote beside its columns."""

from collections.abc import Set
from typing import Any, NamedTuple

import dask.dataframe as dd
import fsspec
from dask.utils import natural_sort_key

# how columns of an index without a name begin, of pandas and of Dask
UNNAMED = ("__index_level_", "__null_dask_index__")
SUFFIXES = (".parquet", ".parq", ".pq")  # of files in a folder; Dask skips the others


class Parquet(NamedTuple):
    """A Parquet file or folder; nothing is computed.

    Parameters
    ----------
    frame : Dask DataFrame
        Its columns, a named index among them; it has no index.
    stored : set of str
        The column of ``frame`` that is such an index, if there is one.
    lost : set of str
        Names of an index that Dask cannot read as columns: pandas wrote it as a range into the file's metadata, or it
        has several levels.
    """

    frame: dd.DataFrame
    stored: Set[str]
    lost: Set[str]


def read_parquet(path: str, dtype_backend: str | None = None) -> Parquet:
    """Open a Parquet file or folder; of its files, only footers are read."""
    # index=False: else Dask fails, when it computes rows, on an index that pandas wrote as a range, or that has another
    # name in another file
    frame = dd.read_parquet(path, dtype_backend=dtype_backend, index=False)
    levels = _index_in(path)
    names = {str(name) for level in levels if (name := _name_of(level)) is not None}
    if len(levels) == 1:
        stored = names & {*frame.columns}
        return Parquet(frame, stored, names - stored)
    # Dask finds levels only where all of them are read, and those without a name nowhere; it names them as pandas does
    aside = names | {f"level_{k}" for k, level in enumerate(levels) if _name_of(level) is None}
    left = [name for name in frame.columns if name not in aside]
    return Parquet(frame if len(left) == len(frame.columns) else frame[left], frozenset(), names)


def _index_in(path: str) -> list[Any]:
    """Return what pandas wrote of the index into the first file: the column of each level, or the facts of a range."""
    from pyarrow.parquet import read_schema  # noqa: PLC0415 - comes with Dask

    files, _, paths = fsspec.get_fs_token_paths(path, mode="rb")
    if files.isdir(paths[0]):
        paths = [one for one in files.find(paths[0]) if one.endswith(SUFFIXES)]
    with files.open(min(paths, key=natural_sort_key)) as file:
        metadata = read_schema(file).pandas_metadata or {}
    return list(metadata.get("index_columns", ()))


def _name_of(level: Any) -> str | None:
    """Return the name of a level of an index; None if it has none."""
    if isinstance(level, dict):
        return level.get("name")
    return None if level.startswith(UNNAMED) else level
