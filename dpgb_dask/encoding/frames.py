"""Dask DataFrames with the values that the user gave: without Dask's conversion of object columns to text.

Below an operation that may depend on the conversion, such as a filter, it stays; but no value makes it fail.
"""

import contextlib
import datetime
import decimal
import gc
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.array.core import concatenate3, concatenate_axes, concatenate_shaped
from dask.base import tokenize
from dask.core import flatten
from dask.dataframe._pyarrow import to_pyarrow_string
from dask.dataframe.core import _concat as join_parts
from dask.dataframe.core import apply_and_enforce
from dask.dataframe.dask_expr._expr import ArrowStringConversion
from dask.dataframe.dask_expr.io.parquet import (
    _STATS_CACHE,
    ReadParquet,
    ReadParquetFSSpec,
    ReadParquetPyarrowFS,
    _extract_stats,
)
from dask.dataframe.dispatch import concat
from dask.dataframe.utils import check_meta
from dask.delayed import delayed
from dask.typing import no_default
from numpy.typing import NDArray

from dpgb_dask.encoding.columns import existing, native, objects
from dpgb_dask.graph_parts import rebuilt
from dpgb_dask.values import BYTES, MOST_LEVELS, MOST_PARTS, cells, is_a, parts_of_text, plain_bytes

# operations that do not change values
THROUGH = frozenset({
    "Projection", "Drop", "RenameFrame", "RenameSeries", "ColumnsSetter", "Partitions", "Concat", "StackPartition",
    "Repartition", "ResetIndex",
})  # fmt: skip

# types whose values hold no others, or whose text does not tell them
FLAT = (
    *(
        str,
        bytes,
        int,
        float,
        complex,
        type(None),
        np.generic,
        decimal.Decimal,
        datetime.date,
        datetime.time,
    ),
    *(datetime.timedelta, type, FunctionType, BuiltinFunctionType, ModuleType),
)

FILES_PER_TASK = 20  # whose statistics a task reads, as in Dask

# objects of which pandas makes columns of another type, if there are no others, and bytes of other types; their own
# text is read otherwise
TYPED = (datetime.date, np.datetime64, datetime.timedelta, np.timedelta64, np.floating, *BYTES)

# types of NumPy that pandas holds as they are, whatever the values
HELD = "biufc"
HELD_DATES = frozenset({("s", 1), ("ms", 1), ("us", 1), ("ns", 1)})


def in_partitions(array: da.Array, names: Any = None) -> Any:
    """Return a Dask Array as a Dask Series or DataFrame with a partition for each chunk of rows, without divisions.

    Dask's `from_dask_array` converts texts and objects, and fails on values that cannot be converted; and by its
    divisions `concat` joins a last chunk of one row with the chunk before.

    Parameters
    ----------
    array : (n,) Dask Array, or (n, m) of numbers in one chunk of columns
    names : str or None, or list of m str

    Privacy
    -------
    Computes nothing. Each value is taken as it is, and none raises.
    """
    make = delayed(_partition, pure=False)
    parts = [make(block, names) for block in array.to_delayed().ravel()]
    meta = _partition(np.empty((0, *array.shape[1:]), array.dtype), names)
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_delayed(parts, meta=meta, verify_meta=False)


def _partition(block: NDArray[Any], names: Any) -> pd.Series | pd.DataFrame:
    block = native(block)  # Arrow has no other byte order, and pandas cannot choose rows of one
    if block.ndim == 2:
        return pd.DataFrame(block, columns=names)
    dtype = block.dtype
    if dtype.kind in HELD or (dtype.kind == "M" and np.datetime_data(dtype) in HELD_DATES):
        return pd.Series(block, name=names)
    return pd.Series(_as_objects(block), dtype=object, name=names)


def as_given(frame: dd.DataFrame | dd.Series) -> Any:
    """Return a frame without Dask's own conversion of objects to text (``dataframe.convert-string``).

    If one odd value makes a column of a partition a column of objects, Dask converts the whole column to ``str(x)``,
    and it raises on a value that is not UTF-8: one row would decide how others are read. Where an operation may depend
    on the conversion (``frame[frame.c == "5"]``, the user's own functions), it stays, as one that never raises.

    Privacy
    -------
    Reads the expression and no value.
    """
    return type(frame)(given_expr(frame.expr))


def given_expr(expr: Any) -> Any:
    """Return an expression without Dask's own conversion of objects to text, as `as_given`."""
    return _given(expr, {}, {})


def _given(node: Any, given: dict[str, Any], total: dict[str, Any]) -> Any:
    """Return an expression without the conversion; the dicts hold what became of each expression, by its name."""
    if node._name not in given:  # noqa: SLF001 - dask has no public name for it
        name = type(node).__name__
        if name == "ArrowStringConversion":
            new = _given(node.frame, given, total)
        elif name == "FromDelayed":
            new = _unchecked(node)
        elif name.startswith("FromMap"):
            new = _with_meta(node)
        elif name.startswith("FromPandas"):
            new = node.substitute_parameters({"pyarrow_strings_enabled": False})
        elif name in THROUGH or (name == "MapPartitions" and node.func is existing):
            new = rebuilt(node, lambda below: _given(below, given, total))
        else:
            new = _total(node, total)
        given[node._name] = new  # noqa: SLF001
    return given[node._name]  # noqa: SLF001


def _total(node: Any, total: dict[str, Any]) -> Any:
    """Return an expression whose conversions never raise."""
    if node._name not in total:  # noqa: SLF001
        new = rebuilt(node, lambda below: _total(below, total))
        name = type(node).__name__
        if name == "ArrowStringConversion":
            new = _with_conversion(new.frame)
        elif name.startswith("FromPandas") and new.pyarrow_strings_enabled:
            bare = new.substitute_parameters({"pyarrow_strings_enabled": False})
            new = _with_conversion(bare)
        elif name == "FromDelayed":
            new = _unchecked(new)
        elif name.startswith("FromMap"):
            new = _with_meta(new)
        elif name == "ReadParquetPyarrowFS":
            new = ParquetOfAnyValues(*node.operands)  # type: ignore[no-untyped-call]
        total[node._name] = new  # noqa: SLF001
    return total[node._name]  # noqa: SLF001


def projected(data: Any, columns: list[Any]) -> Any:
    """Return some columns of a frame; a reader that can skip the other columns does so.

    If no reader can, Dask would select the columns in each partition, and raise for a partition that lacks one. Which
    columns a partition has may depend on its values (`get_dummies`), so only those that exist are selected, and all
    values of the others count as missing.
    """
    chosen = data[columns]
    if isinstance(data, pd.DataFrame):
        return chosen
    kinds = {type(node).__name__ for node in chosen.optimize(fuse=False).expr.walk()}
    # a function of the caller's may skip them too; but where it reads both X and y, Dask reads the columns of both at
    # once, and selects in each partition
    if not any(kind == "Projection" or kind.startswith("FromMap") for kind in kinds):
        return chosen
    return data.map_partitions(existing, columns, meta=chosen._meta, enforce_metadata=False)  # noqa: SLF001 - as above


def _unchecked(node: Any) -> Any:
    """Return the caller's partitions, whose types Dask does not compare with those of `meta`: values make them."""
    return node.substitute_parameters({"verify_meta": False})


def _with_meta(node: Any) -> Any:
    """Return the caller's partitions, of which Dask does not make the first one again to know the columns of some."""
    if node.operand("user_meta") is not no_default:
        return node
    told = node._meta  # noqa: SLF001 - as above; made when the caller made the frame
    return node.substitute_parameters({"user_meta": vars(node).get("_meta", told)})


def knows_meta(node: Any) -> bool:
    """Return whether Dask knows the columns of what `from_map` makes, or has to make the first partition for that."""
    given = node.operand("user_meta") is not no_default
    return given or not {"_meta", "frame_meta"}.isdisjoint(vars(node))


def to_text(part: Any) -> Any:
    """Convert a frame, series or index as Dask does; a value that it cannot convert changes itself alone.

    Objects that pandas would hold in a type of their own, were they alone in their column, become a text that is read
    as they are there. Bytes and text that are not UTF-8 are converted with marks in place of what cannot be read;
    anything else is missing, and so are tuples, lists and their like that have no normal form for their size: of one
    that holds another twice, which holds another twice, and so on, no memory holds the text. Never raises on a value.
    """
    part = _told(part)
    try:
        if not _is_vast(part):
            return to_pyarrow_string(part)
    except Exception:  # of the text of a value, or of the value's own making: then look for it
        pass
    return to_pyarrow_string(_convertible(part))


def _told(part: Any) -> Any:
    """Return a frame, series or index with texts, or bytes, for values that are objects of `TYPED`."""
    if isinstance(part, pd.DataFrame):
        columns = [part.iloc[:, k] for k in range(part.shape[1])]
        told = [*map(_told, columns)]
        if all(one is other for one, other in zip(told, columns, strict=True)):
            return part
        frame = pd.DataFrame(dict(enumerate(told)), index=part.index)
        return frame.set_axis(part.columns, axis=1)
    if part.dtype != object or isinstance(part, pd.MultiIndex):
        return part
    values = part.tolist()
    if not any(is_a(value, TYPED) for value in values):
        return part
    texts = np.fromiter(map(_text_of, values), object, len(values))
    if isinstance(part, pd.Index):
        return pd.Index(texts, dtype=object, name=part.name)
    return pd.Series(texts, part.index, dtype=object, name=part.name)


def _text_of(value: Any) -> Any:
    """Return what Dask makes a text of that is read as a value of a type of `TYPED`; another value as it is."""
    if type(value) in BYTES:
        return plain_bytes(value)
    if not is_a(value, TYPED) or is_a(value, float):
        return value
    try:
        own = str(value)
    except Exception:  # of a zone that fails, say
        return value
    form, read = cells([value, own])
    if form == read:
        return value
    if isinstance(form, float):
        return repr(form)
    text = form.removeprefix("\x00d") if isinstance(form, str) else None
    return text if cells([text]) == [form] else value  # such as a year of five digits


def is_conversion(function: Any) -> bool:
    """Return whether a task's function is Dask's conversion, which a value may make fail."""
    return getattr(function, "func", None) is to_pyarrow_string.func


def is_check(function: Any) -> bool:
    """Return whether a task's function is Dask's comparison of a partition's types with those that are expected."""
    return getattr(function, "func", None) is check_meta


def as_it_is(part: Any) -> Any:
    """Return a partition, in place of Dask's comparison."""
    return part


def as_made(*args: Any, _func: Callable[..., Any], _meta: Any, **kwargs: Any) -> Any:
    """Return what a caller's function makes of a partition, with the columns that Dask expects, whichever it made."""
    made = _func(*args, **kwargs)
    if not (isinstance(made, pd.DataFrame) and isinstance(_meta, pd.DataFrame) and len(made)):
        return apply_and_enforce(_func=lambda: made, _meta=_meta)
    expected = _meta.columns
    if made.columns.equals(expected) or not (made.columns.is_unique and expected.is_unique):
        return made
    return made.reindex(columns=expected)


@dataclass(frozen=True)
class TotalJoin:
    """A function of Dask that joins partitions, which it cannot do if values make columns of types that do not join.

    Categories that are numbers in one partition and texts in another are such, and dates that are too far away for the
    unit of others. Then the values of all columns but numbers are joined as they are.

    Parameters
    ----------
    join : function of a list of frames, series or indexes
        Dask's.
    """

    join: Callable[..., Any]

    def __call__(self, parts: Any, *args: Any, **kwargs: Any) -> Any:
        """Join partitions."""
        try:
            return self.join(parts, *args, **kwargs)
        except Exception:  # it may quote a value
            plain = [_plain(part) for part in parts]
        return self.join(plain, *args, **kwargs)


@dataclass(frozen=True)
class JoinOfBlocks:
    """A function of Dask that joins blocks of arrays, whose types values may have made.

    Dask gives all of them the type of the first: fractions are cut off behind a block of whole numbers, and text behind
    a block of shorter ones. Here numbers of unlike types become float64, texts have the width of the longest, and all
    else is joined as it is.

    Parameters
    ----------
    join : function of nested lists of blocks
        Dask's.
    """

    join: Callable[..., Any]

    def __call__(self, blocks: Any, *args: Any) -> Any:
        """Join blocks."""
        types = {getattr(block, "dtype", None) for block in flatten(blocks)}
        return self.join(blocks if len(types) == 1 else _mapped(_of_one_type(types), blocks), *args)


def _of_one_type(types: Set[Any]) -> Callable[[Any], Any]:
    """Return what makes of blocks of some types blocks of one."""
    kinds = {getattr(dtype, "kind", "O") for dtype in types}
    if kinds <= {*"biuf"}:
        return lambda block: np.asarray(block, np.float64)
    if kinds in ({"U"}, {"S"}):
        widest = np.result_type(*types)
        return lambda block: block.astype(widest)
    return lambda block: _as_objects(np.ravel(block)).reshape(np.shape(block))


def _mapped(change: Callable[[Any], Any], blocks: Any) -> Any:
    if isinstance(blocks, list | tuple):
        return [_mapped(change, part) for part in blocks]
    return change(blocks)


JOINS = {join: TotalJoin(join) for join in (join_parts, concat)}
BLOCK_JOINS = {
    join: JoinOfBlocks(join) for join in (concatenate3, concatenate_axes, concatenate_shaped)
}


def joining(function: Any) -> Callable[..., Any] | None:
    """Return what takes the place of Dask's functions that join partitions or blocks; None for any other function."""
    if not isinstance(function, FunctionType):
        return None
    return JOINS.get(function) or BLOCK_JOINS.get(function)


def _plain(part: Any) -> Any:
    """Return a frame, series or index whose columns are numbers of NumPy's types, or objects."""
    if isinstance(part, pd.MultiIndex):
        return part.set_levels([_plain(level) for level in part.levels], verify_integrity=False)
    if isinstance(part, pd.DataFrame):
        columns = {k: _plain(part.iloc[:, k]) for k in range(part.shape[1])}
        return pd.DataFrame(columns, index=_plain(part.index)).set_axis(part.columns, axis=1)
    if not isinstance(part, pd.Series | pd.Index):
        return part
    held = isinstance(part.dtype, np.dtype) and part.dtype.kind in HELD
    if isinstance(part, pd.Index):
        return part if held else pd.Index(_as_objects(part), dtype=object, name=part.name)
    values = part.to_numpy() if held else _as_objects(part)
    return pd.Series(values, index=_plain(part.index), dtype=values.dtype, name=part.name)


def _as_objects(column: Any) -> NDArray[np.object_]:
    # NumPy, and pandas 2.2, would look into each value of a list
    return np.fromiter(objects(column), object, len(column))


class TotalConversion(ArrowStringConversion):
    """Dask's conversion, by `to_text`.

    A filter above it chooses rows by their text. Dask takes a filter through its conversion if nothing else needs the
    frame, and then chooses by what the text was made of.
    """

    operation = staticmethod(to_text)
    _filter_passthrough = False


def _with_conversion(node: Any) -> Any:
    return TotalConversion(node)  # type: ignore[no-untyped-call]


class ParquetOfAnyValues(ReadParquetPyarrowFS):
    """Dask's reader of Parquet by Arrow, which asks statistics of values how many files to join, and how long each is.

    They may be dates that Python does not have, or text that is no UTF-8, on which it fails, with a message that may
    hold one. Then none are joined, and lengths are found by reading.
    """

    def load_statistics(self, files: Any = None, fragments: Any = None) -> None:
        """Keep statistics of files, as Dask does, by tasks that fail in none: a worker would log what it says."""
        files = self._dataset_info["all_files"] if files is None else files
        fragments = self.fragments_unsorted if fragments is None else fragments
        named = zip(map(tokenize, files), fragments, strict=False)
        asked = [part for part in named if part[0] not in _STATS_CACHE]
        starts = range(0, len(asked), FILES_PER_TASK)
        tasks = [delayed(_statistics_of)(asked[k : k + FILES_PER_TASK]) for k in starts]
        for found in dask.compute(*tasks):  # type: ignore[attr-defined, no-untyped-call]
            _STATS_CACHE.update(found)

    @property
    def _fusion_compression_factor(self) -> float:
        try:
            return float(super()._fusion_compression_factor)
        except Exception:
            return 1.0

    def _get_lengths(self) -> Any:
        try:
            return super()._get_lengths()  # type: ignore[no-untyped-call]
        except Exception:
            return None


class _NotJoined:
    """Of a reader of Parquet: each of its partitions stays one, whatever columns are read."""

    _fusion_compression_factor = 1.0


class _FilesByArrow(_NotJoined, ParquetOfAnyValues):
    pass


class _Files(_NotJoined, ReadParquetFSSpec):
    pass


def read_alike(*frames: Any) -> list[Any]:
    """Return frames of which Dask does not join the partitions of one otherwise than those of another.

    The fewer columns it reads of Parquet, the more partitions Dask joins as it optimises. Columns of one table are read
    together; those of several are joined apart, and rows would no longer lie beside their own targets.
    """
    readers = {_readers(frame.expr) for frame in frames}
    if len(readers) == 1:
        return [*frames]
    return [type(frame)(_not_joined(frame.expr)) for frame in frames]


def _readers(expr: Any) -> frozenset[str]:
    """Return the names of the readers of Parquet in an expression."""
    return frozenset(node._name for node in expr.walk() if isinstance(node, ReadParquet))  # noqa: SLF001 - as above


def _not_joined(node: Any) -> Any:
    if isinstance(node, ReadParquet):
        kind = _FilesByArrow if isinstance(node, ReadParquetPyarrowFS) else _Files
        return kind(*node.operands)
    return rebuilt(node, _not_joined)


def _statistics_of(files: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return Dask's statistics of those files that have no value that Python cannot hold."""
    found = {}
    for token, wrapped in files:
        fragment = getattr(wrapped, "fragment", wrapped)
        with contextlib.suppress(Exception):
            found[token] = _extract_stats(fragment.metadata.to_dict())
    return found


def _convertible(part: Any) -> Any:
    """Return a frame, series or index, of which Dask can convert every value."""
    if isinstance(part, pd.MultiIndex):
        levels = [_convertible(level) for level in part.levels]
        return part.set_levels(levels, verify_integrity=False)
    if isinstance(part, pd.Index):
        return pd.Index(_replaced(part), dtype=object, name=part.name) if _fails(part) else part
    if isinstance(part, pd.Series):
        bare = part.reset_index(drop=True)
        if _fails(bare):
            bare = pd.Series(_replaced(bare), dtype=object, name=part.name)
        return bare.set_axis(_convertible(part.index))
    columns = {k: _convertible(part.iloc[:, k]) for k in range(part.shape[1])}
    frame = pd.DataFrame(columns, index=_convertible(part.index))
    return frame.set_axis(part.columns, axis=1)


def _fails(part: Any) -> bool:
    """Return whether Dask cannot convert a frame, series or index: for the text of a value, or what it does itself."""
    try:
        if _is_vast(part):
            return True
        to_pyarrow_string(part)
    except Exception:
        return True
    return False


def _is_vast(part: Any) -> bool:
    """Return whether a frame, series or index holds a value that is too large for a text."""
    if isinstance(part, pd.DataFrame):
        columns = (part.iloc[:, k] for k in range(part.shape[1]))
        return any(map(_is_vast, columns)) or _is_vast(part.index)
    if isinstance(part, pd.MultiIndex):
        return any(map(_is_vast, part.levels))
    if isinstance(part, pd.Series) and _is_vast(part.index):
        return True
    return part.dtype == object and any(
        _room_beside(value, MOST_LEVELS, MOST_PARTS) < 0
        for value in part.tolist()
        if not is_a(value, FLAT)  # its class may say that it is of another
    )


def _room_beside(value: Any, levels: int, room: int) -> int:
    """Return the room that is left beside a value and all that it holds: below 0 beyond a limit, and no further."""
    room -= 1
    if is_a(value, FLAT):
        return room - parts_of_text(value)
    held = _held_by(value)
    if held and not levels:
        return -1
    for part in held:
        if room < 0:
            break
        room = _room_beside(part, levels - 1, room)
    return room


def _held_by(value: Any) -> list[Any]:
    """Return the values that a value holds, whatever its class says of itself."""
    if is_a(value, np.ndarray):  # which does not tell the collector
        whole = np.ndarray.view(value, np.ndarray)
        return whole.ravel().tolist() if whole.dtype.hasobject else []
    return [part for part in gc.get_referents(value) if not is_a(part, type)]


def _replaced(column: Any) -> NDArray[np.object_]:
    """Return the values of a column, but others for those that Dask cannot convert."""
    values = np.fromiter(column.tolist(), dtype=object, count=len(column))
    ahead = [(0, len(values))]
    while ahead:  # halves, as one value of many is odd
        start, stop = ahead.pop()
        if not _fails(pd.Series(values[start:stop], dtype=object)):
            continue
        if stop - start == 1:
            values[start] = _readable(values[start])
        else:
            middle = (start + stop) // 2
            ahead += [(start, middle), (middle, stop)]
    return values


def _readable(value: Any) -> str | None:
    if is_a(value, bytes):
        return bytes.decode(value, "utf-8", "replace")
    if is_a(value, str):
        return str.encode(value, "utf-8", "replace").decode()
    return None
