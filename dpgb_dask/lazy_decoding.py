"""What xarray and Dask make of rows as they are read, such as dates of files that `xarray.open_dataset` opens.

xarray decodes a block at once: for one date that it cannot hold, or one text that its encoding does not have, it fails,
or makes objects of the dates of the whole block. So its functions are replaced where they stand, in its lazy arrays and
in the tasks that Dask makes of them, by others that decode each value by itself; and Dask's functions on which a value
has it fail, such as those that join partitions, by those of `encoding/frames.py`.
"""

import contextlib
import copy
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, Protocol

import dask.array as da
import dask.dataframe as dd
import numpy as np
import xarray as xr
from dask._task_spec import Alias, DataNode, GraphNode, Task, convert_legacy_graph
from dask.base import is_dask_collection
from dask.blockwise import Blockwise
from dask.dataframe.dask_expr._expr import Blockwise as FrameBlockwise
from dask.dataframe.dask_expr._expr import Expr, Projection
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from numpy.typing import NDArray

from dpgb_dask.cf_decoding import FARTHEST, alike, span_of
from dpgb_dask.encoding.columns import series_of
from dpgb_dask.encoding.frames import (
    as_it_is,
    given_expr,
    is_check,
    is_conversion,
    joining,
    to_text,
)
from dpgb_dask.errors import StructureError
from dpgb_dask.graph_parts import parts_in, rebuilt, rewritten
from dpgb_dask.warning_filters import SILENCE

TEXT = "decode_bytes_array"
NUMBERS = ("_apply_mask", "_scale_offset_decoding")
DECODERS = ("decode_cf_datetime", "decode_cf_timedelta", TEXT, *NUMBERS)  # xarray's
LAZY = ("xarray.core.indexing", "xarray.coding")  # where xarray has its lazy arrays
CALENDARS = ("standard", "gregorian", "proleptic_gregorian")  # NumPy's, as CF names it
LEAST = np.iinfo(np.int64).min  # xarray's mark of a missing date among whole numbers


class Total(Protocol):
    """A picklable function from the stored values of a block to those that they stand for, which none makes fail."""

    def __call__(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Decode a block of any shape."""


@dataclass(frozen=True, eq=False)
class _Decoding:
    """What takes the place of a decoding function in a task.

    Parameters
    ----------
    decode : function of an array
        xarray's, with the options that the file names, or its caller chose.
    """

    decode: Callable[[NDArray[Any]], NDArray[Any]]

    def __repr__(self) -> str:
        return "<decoding>"


@dataclass(frozen=True, eq=False, repr=False)
class TotalTimes(_Decoding):
    """Dates or durations: xarray's own function decodes those that are near, each as it decodes it alone.

    Parameters
    ----------
    span : (float, float)
        As `cf_decoding.span_of` returns it.
    dtype : dtype
        Of what it returns.

    Privacy
    -------
    Each value is decoded by itself, and none raises or warns. A date of nanoseconds that is more than 291 years from
    1970 is missing, as one of Zarr is (`cf_decoding`); one of a coarser unit is what its number says.
    """

    span: tuple[float, float]
    dtype: np.dtype[Any]

    @SILENCE
    @np.errstate(all="ignore")
    def __call__(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Decode a block of any shape."""
        stored = np.asarray(stored)
        out = np.full(stored.shape, np.array("NaT", self.dtype))
        known = stored != LEAST if stored.dtype.kind == "i" else ~np.isnan(stored)
        for part in alike(stored, self.span, self.dtype):
            if part.any():
                out[part] = self._read(stored[part])
        far = known & np.isnat(out)
        if far.any() and np.datetime_data(self.dtype)[0] != "ns":
            zero, one = self.span
            after = stored[far].astype(np.float64) * one
            seconds = np.clip(zero + after, -FARTHEST * 1000, FARTHEST * 1000)
            out[far] = np.floor(seconds).astype(np.int64).view(f"{self.dtype.kind}8[s]")
        return out

    def _read(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return what xarray makes of numbers; NaT of each of which it makes nothing, or an object."""
        # it raises, such as of a fraction of a second after a date that nanoseconds do not reach
        with contextlib.suppress(Exception):
            read = self.decode(numbers)
            if read.dtype.kind == self.dtype.kind:
                return read
        if len(numbers) == 1:
            return np.full(1, np.array("NaT", self.dtype))
        return np.concatenate([self._read(one) for one in numbers[:, None]])


@dataclass(frozen=True, eq=False, repr=False)
class TotalText(_Decoding):
    """Bytes as text of an encoding; those that it does not have stay bytes."""

    def __call__(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Decode a block of any shape."""
        stored = np.asarray(stored)
        try:
            return self.decode(stored)
        except Exception:  # of one value or more: then look for them
            each = [self._one(stored.ravel()[k : k + 1]) for k in range(stored.size)]
        out = np.empty(stored.size, object)
        out[:] = each
        return out.reshape(stored.shape)

    def _one(self, value: NDArray[Any]) -> Any:
        try:
            return self.decode(value)[0]
        except Exception:
            return value[0]


@dataclass(frozen=True, eq=False, repr=False)
class SilentNumbers(_Decoding):
    """Marks of missing values, or scales: xarray reads each value by itself, and of an infinite one NumPy warns."""

    @np.errstate(all="ignore")
    def __call__(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Decode a block of any shape."""
        return self.decode(stored)


def total_decoder(function: Any) -> Total | None:
    """Return what takes the place of one of xarray's decoding functions; None for any other function.

    Raises
    ------
    StructureError
        If it makes dates of another calendar.
    """
    inner: Any = getattr(function, "func", None)
    name, module = getattr(inner, "__name__", ""), str(getattr(inner, "__module__", ""))
    if name not in DECODERS or not module.startswith("xarray."):
        return None
    if name == TEXT:
        return TotalText(function)
    if name in NUMBERS:
        return SilentNumbers(function)
    if function.keywords.get("use_cftime"):  # which makes objects, of dates that NumPy may hold
        function = partial(inner, *function.args, **function.keywords | {"use_cftime": None})
    try:
        first = np.asarray(function(np.arange(2)))
        if first.dtype.kind in "mM":
            return TotalTimes(function, span_of(first), first.dtype)
    except Exception:  # by its options alone
        pass
    raise other_calendar(function.keywords.get("units"), function.keywords.get("calendar"))


def other_calendar(units: Any, calendar: Any) -> StructureError:
    """Return the error for dates that are said to be of a calendar that is not NumPy's."""
    return StructureError(
        f"Dates of X, y or sample_weight count {units!r} by the calendar {calendar!r}, which is not NumPy's. Convert"
        " them first: data.convert_calendar('standard')."
    )


def check_calendar(data: xr.DataArray) -> None:
    """Refuse dates that xarray has decoded already, if it notes beside them that they are of another calendar.

    Raises
    ------
    StructureError

    Privacy
    -------
    Reads the type and the notes of a variable, and no value: of objects without a note, each is read by itself.
    """
    told = {**data.attrs, **data.encoding}
    calendar = told.get("calendar")
    if data.dtype == object and isinstance(calendar, str) and calendar.lower() not in CALENDARS:
        raise other_calendar(told.get("units"), calendar)


def total_array(array: Any) -> Any:
    """Return a lazy array of xarray whose decoding no value ends; anything else as it is."""
    if not type(array).__module__.startswith(LAZY) or not hasattr(array, "array"):
        return array
    inner = total_array(array.array)
    decoder = total_decoder(getattr(array, "func", None))
    if inner is array.array and decoder is None:
        return array
    changed = copy.copy(array)
    changed.array = inner
    if decoder is not None:
        changed.func = decoder
    return changed


def total_part(part: Any) -> Any:
    """Return a node of a graph, or an argument of a task, that no value makes fail; the same one if none does.

    Decoding by xarray is in arrays that it opened; Dask's conversion to text, its comparison of types, and what joins
    partitions are in frames, and in arrays that were made of them. The parts that are in it are not looked at
    (`graph_parts`).
    """
    if isinstance(part, DataNode):
        array = total_array(part.value)
        return part if array is part.value else DataNode(part.key, array)
    if not isinstance(part, Task):
        return joining(part) or total_array(part)
    if is_conversion(part.func):
        return Task(part.key, to_text, *part.args)
    if is_check(part.func):
        return Task(part.key, as_it_is, *part.args)
    function = joining(part.func) or total_decoder(part.func)
    return part if function is None else Task(part.key, function, *part.args, **part.kwargs)


def total_values(data: xr.DataArray) -> Any:
    """Return the values of an xarray variable, as `ingest` does; what decodes them as they are read, no value ends.

    Raises
    ------
    StructureError
        If they are said to be dates of another calendar.
    """
    check_calendar(data)
    variable = data.variable
    if (column := series_of(variable)) is not None:
        return column
    if variable.chunks is None:
        loaded = getattr(variable, "_in_memory", True)
        return data.to_numpy() if loaded else np.asarray(total_array(variable._data))  # noqa: SLF001
    return total_collection(variable.data)


def total_collection(data: Any, *, as_given: bool = False) -> Any:
    """Return a collection of Dask or xarray, in whose tasks no value makes Dask or xarray fail; others as they are.

    Parameters
    ----------
    data : any
    as_given : bool
        Whether a frame has the values that the user gave (`encoding.frames.as_given`).
    """
    if isinstance(data, dd.DataFrame | dd.Series):
        done = type(data.expr) is TotalRows and data.expr.as_given >= as_given
        return data if done else type(data)(TotalRows(data.expr, as_given))  # type: ignore[no-untyped-call]
    lazy = isinstance(data, da.Array | xr.DataArray | xr.Dataset) and is_dask_collection(data)
    if not lazy:
        return data
    graph = data.__dask_graph__()
    keys = cache(lambda: set(graph))  # which Dask makes all tasks for
    layers = {name: _total_layer(layer, keys) for name, layer in graph.layers.items()}
    if all(layers[name] is layer for name, layer in graph.layers.items()):
        return data
    rebuild, options = data.__dask_postpersist__()
    return rebuild(HighLevelGraph(layers, graph.dependencies), *options)


def total_whole(data: Any) -> Any:
    """Return a collection that is to be computed, as `total_collection`: of a frame, its partitions joined to one."""
    # Dask's own joining of one partition, chosen from several, fails
    if isinstance(data, dd.DataFrame | dd.Series) and data.npartitions > 1:
        data = data.repartition(npartitions=1)
    return total_collection(data)


class TotalRows(FrameBlockwise):
    """A frame or series of Dask whose tasks are looked at once Dask has optimised what they are made by.

    What joins partitions, and tasks that the caller has made (`from_delayed`), stand in no expression.

    It depends on the caller's own expression, and has its partitions: so Dask puts what is made of it beside what else
    is made of that, partition by partition. It would align the two by their index instead, which files start anew.
    """

    _parameters = ["frame", "as_given"]  # noqa: RUF012 - as Dask declares them
    _defaults = {"as_given": False}  # noqa: RUF012 - as above

    @property
    def _meta(self) -> Any:
        return self._read._meta  # noqa: SLF001 - Dask's expressions have these names

    def _divisions(self) -> Any:
        return self.frame.divisions

    @cached_property
    def _read(self) -> Any:
        """The expression with the values that the user gave, if it is to have them."""
        return given_expr(self.frame) if self.as_given else self.frame

    def _simplify_up(self, parent: Any, dependents: Any) -> Any:  # noqa: ARG002
        if type(parent) is Projection:  # so that a reader skips columns
            columns = Projection(self.frame, *parent.operands[1:])
            return type(self)(columns, self.as_given)
        return None

    def _tune_down(self) -> Any:
        """Return it without what Dask may ask of its readers then, and which values make fail."""
        return type(self)(self._read) if self.as_given else None

    def __dask_graph__(self) -> Any:
        """Return no tasks: there are none before it is lowered, and Dask before 2026 asks whether there may be some."""
        return {}

    def _lower(self) -> Any:
        frame = _bare(self._read, {}).lower_completely()
        nodes = convert_legacy_graph(dict(frame.__dask_graph__()))
        if _total_nodes(nodes) is nodes:
            return frame
        return _TotalTasks(_Fused(frame.fuse()))  # type: ignore[no-untyped-call]

    def _layer(self) -> dict[Any, Any]:
        return _renamed(self, self.frame)


@dataclass(frozen=True)
class _Fused:
    """A frame whose tasks Dask has fused; were it an operand, Dask would lower and fuse it again, and lose tasks."""

    frame: Any

    def __dask_tokenize__(self) -> str:
        return str(self.frame._name)  # noqa: SLF001 - as above


class _TotalTasks(Expr):
    """The tasks of a frame, made such that no value makes them fail."""

    _parameters = ["fused"]  # noqa: RUF012 - as above

    @property
    def _meta(self) -> Any:
        return self.fused.frame._meta  # noqa: SLF001 - as above

    def _divisions(self) -> Any:
        return self.fused.frame.divisions

    def _layer(self) -> dict[Any, Any]:
        frame = self.fused.frame
        made = convert_legacy_graph(dict(frame.__dask_graph__()))
        return {**_total_nodes(made), **_renamed(self, frame)}


def _renamed(node: Any, frame: Any) -> dict[Any, Any]:
    """Return tasks by which an expression has the partitions of a frame."""
    pairs = enumerate(frame.__dask_keys__())
    return {(node._name, k): Alias((node._name, k), source) for k, source in pairs}  # noqa: SLF001 - as above


def _bare(node: Any, bare: dict[str, Any]) -> Any:
    """Return an expression without `TotalRows` in it, as the tasks of all that it is made of are looked at together.

    If each looked at its own, predictions made of predictions would take twice as long for each that they are made of.
    The dict holds what became of each expression, by its name.
    """
    name = node._name  # noqa: SLF001 - dask has no public name for it
    if name not in bare:
        if type(node) is TotalRows:
            bare[name] = _bare(node._read, bare)  # noqa: SLF001 - its own
        else:
            bare[name] = rebuilt(node, lambda below: _bare(below, bare))
    return bare[name]


def _total_layer(layer: Any, keys: Callable[[], Container[Any]]) -> Any:
    """Return a layer of a graph that has these keys."""
    if isinstance(layer, Blockwise):
        return _total_blockwise(layer)
    if not isinstance(layer, MaterializedLayer):
        return layer  # what Dask makes of other arrays, such as their parts
    given = layer.mapping
    if not all(isinstance(node, GraphNode) for node in given.values()):
        given = convert_legacy_graph(given, keys())
    nodes = _total_nodes(given)
    return layer if nodes is given else MaterializedLayer(nodes, annotations=layer.annotations)


def _total_nodes(nodes: Mapping[Any, Any]) -> Mapping[Any, Any]:
    if all(total_part(part) is part for part in parts_in(nodes.values())):
        return nodes
    return {key: rewritten(node, total_part) for key, node in nodes.items()}


def _total_blockwise(layer: Blockwise) -> Blockwise:
    """Return a layer that makes its tasks of one; its arguments without an index are values."""
    nodes = _total_nodes({None: layer.task})
    indices = tuple(
        (given if index is not None else total_part(given), index) for given, index in layer.indices
    )
    if nodes[None] is layer.task and all(
        new is old for (new, _), (old, _) in zip(indices, layer.indices, strict=True)
    ):
        return layer
    return Blockwise(
        layer.output,
        layer.output_indices,
        nodes[None],
        indices,
        layer.numblocks,
        concatenate=layer.concatenate,
        new_axes=layer.new_axes,
        output_blocks=layer.output_blocks,
        annotations=layer.annotations,
        io_deps=layer.io_deps,
    )
