"""Parquet as a Dask DataFrame, whatever index pandas or Dask wrote beside its columns or its folders are named."""

from collections.abc import Set
from contextlib import nullcontext
from typing import Any, NamedTuple

import dask.dataframe as dd
import fsspec
import pandas as pd
from dask.utils import natural_sort_key

from dpgb_dask.encoding.kinds import VIEWS
from dpgb_dask.errors import StructureError
from dpgb_dask.io.text import check_once, reading, shown
from dpgb_dask.private.reading.parquet_files import (
    STRANGE,
    UNNOTED,
    Options,
    columns_of_folders,
    is_interval,
    noted_strangely,
    odd_times,
    schemas_of,
)

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
    folders : set of str
        Columns whose values are the names of folders, as text; no file declares their type.
    apart : set of str
        Those of them that not every file lies below a folder of: Dask cannot read such a file.
    types : list of mappings
        The types of the columns, as each file declares them; files that are alike once.
    """

    frame: dd.DataFrame
    stored: Set[str]
    lost: Set[str]
    folders: Set[str]
    apart: Set[str]
    types: list[dict[str, Any]]


def read_parquet(path: str, dtype_backend: str | None = None) -> Parquet:
    """Open a Parquet file or folder; of its files, only footers are read."""
    import pyarrow as pa  # noqa: PLC0415 - comes with Dask

    files, paths, as_dask = _files_of(path)
    if not paths:
        raise StructureError(
            f"{path!r} is a folder without files that end in {', '.join(SUFFIXES)}. Name files of text by a pattern,"
            f" such as {path.rstrip('/') + '/*.csv'!r}."
        )
    check_once(files, paths, path)
    schemas = schemas_of((one, files) for one in paths)
    if any(len(set(one.names)) < len(one.names) for one in schemas):
        raise StructureError(
            f"{path!r} has several columns of one name. Write it again, each column by another name."
        )
    stored_schema = schemas[0]
    below = [columns_of_folders(one) for one in paths]
    named = set[str]().union(*below)
    folders = named - {*stored_schema.names}
    apart = {name for one in below for name in folders - one}
    # as text: else the names of folders, which are values, decide a type, and one without a value makes Dask fail
    fields = pa.schema([(name, pa.string()) for name in sorted(folders)])
    # of views pandas cannot take rows
    views = {getattr(pa, v)(): getattr(pa, t)() for v, t in VIEWS.items() if hasattr(pa, v)}
    written_out = {view: pd.ArrowDtype(plain) for view, plain in views.items()}
    # what pandas noted beside bytes may be that they are text, which not all are; beside no values, that they are
    # categories
    written_out |= {one: pd.ArrowDtype(one) for one in (pa.binary(), pa.large_binary(), pa.null())}
    # of periods Arrow has no values of its own, but their numbers; of intervals pandas refuses some values, and of
    # times of day, and of dates in lists and structs, Python does
    for kind in {kind for one in schemas for kind in one.types}:
        nested = pa.types.is_nested(kind) and odd_times(kind) is not None
        if str(kind).startswith("extension<pandas.period"):
            written_out[kind] = kind.to_pandas_dtype()
        elif is_interval(kind) or pa.types.is_time(kind) or nested:
            written_out[kind] = pd.ArrowDtype(kind)
    # what pandas noted may be that other columns have categories: Dask looks for them in a folder's text, and Arrow
    # makes none of decimals, of days, or of no values
    listed = {one.name for one in stored_schema if pa.types.is_dictionary(one.type)}
    options: dict[str, Any] = {
        "arrow_to_pandas": Options(written_out.get),
        "categories": sorted(listed - folders),
    }
    if named:
        options["dataset"] = {"partitioning": {"flavor": "hive", "schema": fields}}
    # index=False: else Dask fails, when it computes rows, on an index that pandas wrote as a range, or that has another
    # name in another file
    strange = any(map(noted_strangely, schemas))
    with reading(path, f"It has {STRANGE}. {UNNOTED}") if strange else nullcontext():
        # Dask would read hidden files too, and no folders of a pattern
        places = {"path": path} if as_dask else {"path": paths, "filesystem": files}
        frame = dd.read_parquet(**places, dtype_backend=dtype_backend, index=False, **options)
    # Arrow's own: of dates, times, lists and bytes pandas makes objects
    kinds = {tuple(zip(one.names, one.types, strict=True)) for one in schemas}
    types = [{name: written_out.get(t, pd.ArrowDtype(t)) for name, t in kind} for kind in kinds]
    # what pandas wrote of the index into the first file: the column of each level, or the facts of a range
    levels = list((stored_schema.pandas_metadata or {}).get("index_columns", ()))
    names = {str(name) for level in levels if (name := _name_of(level)) is not None}
    if len(levels) == 1:
        stored = names & {*frame.columns}
        return Parquet(frame, stored, names - stored, folders, apart, types)
    # Dask finds levels only where all of them are read, and those without a name nowhere; it names them as pandas does
    aside = names | {f"level_{k}" for k, level in enumerate(levels) if _name_of(level) is None}
    left = [name for name in frame.columns if name not in aside]
    taken = frame if len(left) == len(frame.columns) else frame[left]
    return Parquet(taken, frozenset(), names, folders, apart, types)


def _files_of(path: str) -> tuple[Any, list[str], bool]:
    """Return the file system of a path, its files in Dask's order, and whether Dask would find the same."""
    files, _, places = fsspec.get_fs_token_paths(path, mode="rb")
    of_folders = not places  # a pattern, which fsspec and Dask take for files alone
    if of_folders:
        places = files.glob(fsspec.core.url_to_fs(path)[1])
    roots = shown(places, [path.rstrip("/")], {})
    as_dask = len(roots) == len(places) and not of_folders
    if not of_folders and not (len(roots) == 1 and files.isdir(roots[0])):
        return files, sorted(roots, key=natural_sort_key), as_dask
    below = [(root, one) for root in roots for one in files.find(root) if one.endswith(SUFFIXES)]
    own = [one for root, one in below if not _is_hidden(one.removeprefix(root.rstrip("/")))]
    return files, sorted(own, key=natural_sort_key), as_dask and len(own) == len(below)


def _is_hidden(below: str) -> bool:
    """Whether a file below a folder holds no rows of it, by the names that Spark and Arrow skip.

    Such are parts of a job that runs or was killed (``_temporary``), logs (``_delta_log``), and what macOS writes
    beside a file (``._part.parquet``).
    """
    parts = below.split("/")
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)


def _name_of(level: Any) -> str | None:
    """Return the name of a level of an index; None if it has none."""
    if isinstance(level, dict):
        return level.get("name")
    return None if level.startswith(UNNAMED) else level
