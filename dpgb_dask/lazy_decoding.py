"""Dates and text that xarray decodes as they are read, such as those of files that `xarray.open_dataset` opens.

xarray decodes a block at once: for one date that it cannot hold, or one text that its encoding does not have, it fails,
or makes objects of the dates of the whole block. So its functions are replaced where they stand, in its lazy arrays and
in the tasks that Dask makes of them, by others that decode each value by itself.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import dask.array as da
import numpy as np
import xarray as xr
from dask._task_spec import DataNode, Task
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from dpgb_dask.cf_decoding import FARTHEST, span_of
from dpgb_dask.errors import StructureError
from dpgb_dask.warning_filters import SILENCE

TEXT = "decode_bytes_array"
DECODERS = ("decode_cf_datetime", "decode_cf_timedelta", TEXT)  # xarray's
LAZY = ("xarray.core.indexing", "xarray.coding")  # where xarray has its lazy arrays
LEAST = np.iinfo(np.int64).min  # xarray's mark of a missing date among whole numbers


class Total(Protocol):
    """A picklable function from the stored values of a block to those that they stand for, which none makes fail."""

    def __call__(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Decode a block of any shape."""


@dataclass(frozen=True, eq=False)
class TotalTimes:
    """Dates or durations: xarray's own function decodes those that are near, as it decodes them without the others.

    Parameters
    ----------
    decode : function of an array
        xarray's, with the options that its caller chose.
    span : (float, float)
        The seconds from 1970 that the number 0 stands for, and the seconds of the number 1.
    dtype : dtype
        Of what it returns.

    Privacy
    -------
    Each value is decoded by itself, and none raises or warns. A date of nanoseconds that is more than 291 years from
    1970 is missing, as one of Zarr is (`cf_decoding`); one of a coarser unit is what its number says.
    """

    decode: Callable[[NDArray[Any]], NDArray[Any]]
    span: tuple[float, float]
    dtype: np.dtype[Any]

    def __repr__(self) -> str:
        return "<decoding>"

    @SILENCE
    @np.errstate(all="ignore")
    def __call__(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Decode a block of any shape."""
        stored = np.asarray(stored)
        out = np.full(stored.shape, np.array("NaT", self.dtype))
        known = stored != LEAST if stored.dtype.kind == "i" else ~np.isnan(stored)
        zero, one = self.span
        after = stored.astype(np.float64) * one
        near = known & (abs(after) < FARTHEST) & (abs(zero + after) < FARTHEST)
        if near.any():
            out[near] = self.decode(stored[near])
        far = known & ~near
        if far.any() and np.datetime_data(self.dtype)[0] != "ns":
            seconds = np.clip(zero + after[far], -FARTHEST * 1000, FARTHEST * 1000)
            out[far] = np.floor(seconds).astype(np.int64).view(f"{self.dtype.kind}8[s]")
        return out


@dataclass(frozen=True, eq=False)
class TotalText:
    """Bytes as text of an encoding; those that it does not have stay bytes.

    Parameters
    ----------
    decode : function of an array
        xarray's, with the encoding that the file names.
    """

    decode: Callable[[NDArray[Any]], NDArray[Any]]

    def __repr__(self) -> str:
        return "<decoding>"

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
    if function.keywords.get("use_cftime"):  # which makes objects, of dates that NumPy may hold
        function = partial(inner, *function.args, **function.keywords | {"use_cftime": None})
    try:
        first = np.asarray(function(np.arange(2)))
        if first.dtype.kind in "mM":
            return TotalTimes(function, span_of(first), first.dtype)
    except Exception:  # by its options alone
        pass
    raise StructureError(
        f"Dates of X, y or sample_weight count {function.keywords.get('units')!r} by the calendar"
        f" {function.keywords.get('calendar')!r}, which is not NumPy's. Convert them first:"
        " data.convert_calendar('standard')."
    )


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
    """Return a node of a graph, or an argument of a task, that no decoding ends; the same one if none does."""
    if isinstance(part, DataNode):
        array = total_array(part.value)
        return part if array is part.value else DataNode(part.key, array)
    if not isinstance(part, Task):
        return total_array(part)
    decoder = total_decoder(part.func)
    return part if decoder is None else Task(part.key, decoder, *part.args, **part.kwargs)


def total_values(data: xr.DataArray) -> Any:
    """Return the values of an xarray variable, as NumPy or Dask; what decodes them as they are read, no value ends."""
    variable = data.variable
    if variable.chunks is None:
        loaded = getattr(variable, "_in_memory", True)
        return data.to_numpy() if loaded else np.asarray(total_array(variable._data))  # noqa: SLF001
    graph = variable.data.__dask_graph__()
    layers = {name: _total_layer(layer) for name, layer in graph.layers.items()}
    changed = HighLevelGraph(layers, graph.dependencies)
    return da.Array(changed, variable.data.name, variable.chunks, meta=variable.data._meta)  # noqa: SLF001


def _total_layer(layer: Any) -> Any:
    # arrays that xarray opens are in no layer of blockwise tasks
    if isinstance(layer, Blockwise):
        return layer
    return {key: total_part(part) for key, part in layer.items()}
