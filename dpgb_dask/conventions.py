"""Zarr arrays as xarray reads them: what their attributes say of their values, and which of them are coordinates.

By attributes (CF conventions: https://cfconventions.org) a stored number stands for another: it is scaled, it marks a
missing value, or it counts days since a date. xarray writes arrays like that, and read without their attributes they
are other rows. Metadata alone decide what is decoded; xarray decodes it, block by block, each value by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from xarray.backends.zarr import FillValueCoder
from xarray.coders import CFTimedeltaCoder
from xarray.conventions import decode_cf_variable

from dpgb_dask.errors import StructureError, in_our_words, kind_of

DIMENSIONS = "_ARRAY_DIMENSIONS"  # xarray's attribute in format 2 for what is metadata in format 3
TIMES = ("units", "calendar", "dtype")  # attributes that make dates and durations
DECODED = ("_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned", *TIMES)
ENCODING = "_Encoding"  # of text that is stored as bytes
DURATIONS = CFTimedeltaCoder(time_unit="ns", decode_via_units=False)
# seconds from 1970, and from the date that numbers count from: farther ones are no dates of nanoseconds
FARTHEST = 9.2e9


def dims_of(array: Any) -> tuple[str, ...] | None:
    """Return the names of a Zarr array's axes; None if they have no names, as xarray's always have."""
    second = array.metadata.zarr_format == 2
    names = array.attrs.get(DIMENSIONS) if second else array.metadata.dimension_names
    if not isinstance(names, list | tuple) or len(names) != array.ndim or None in names:
        return None
    return tuple(map(str, names))


def coordinates_among(arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> set[str]:
    """Return the names of the arrays that are xarray's coordinates, and no columns.

    Parameters
    ----------
    arrays : mapping of str to zarr.Array
        Of a group, by name. Those whose axes have no names, which xarray did not write, make no coordinates.
    attributes : mapping
        Of the group.
    """
    named = {name: dims for name, array in arrays.items() if (dims := dims_of(array)) is not None}
    if not named:
        return set()
    lists = [attributes.get("coordinates"), *(arrays[n].attrs.get("coordinates") for n in named)]
    listed = {name for names in lists if isinstance(names, str) for name in names.split()}
    return (listed | {axis for dims in named.values() for axis in dims}) & arrays.keys()


@dataclass(frozen=True, eq=False)
class Decoding:
    """A picklable function from the stored values of a block to those that they stand for.

    Parameters
    ----------
    attributes : mapping
        Those by which xarray decodes.
    dtype : dtype
        Of what is returned.
    times : (float, float), optional
        Of dates and durations: the seconds from 1970 that the number 0 stands for, and the seconds of the number 1.

    Privacy
    -------
    Each value is decoded by itself, and none raises or warns. xarray would refuse a whole block for one date that is
    too far away, or make another type of it; here that date is missing.
    """

    attributes: Mapping[str, Any]
    dtype: np.dtype[Any]
    times: tuple[float, float] | None = None

    def __repr__(self) -> str:
        return "<decoding>"

    @in_our_words()
    def __call__(self, block: NDArray[Any]) -> NDArray[Any]:
        """Decode a block of any shape."""
        if self.times is None:
            return _values(_decoded(block, self.attributes))
        near = self._near(block)
        out = np.full(block.shape, np.array("NaT", self.dtype))
        if near.any():
            out[near] = _values(_decoded(block[near], self.attributes))
        return out

    @np.errstate(all="ignore")
    def _near(self, block: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values are dates or durations of nanoseconds."""
        given = _decoded(block, self.attributes, decode_times=False, decode_timedelta=False)
        zero, one = self.times or (0.0, 1.0)
        after = _values(given).astype(np.float64) * one
        near: NDArray[np.bool_] = (abs(after) < FARTHEST) & (abs(zero + after) < FARTHEST)
        return near


def _decoded(values: NDArray[Any], attributes: Mapping[str, Any], **options: Any) -> xr.Variable:
    """Return values as xarray decodes them, when they are asked for (`_values`)."""
    given = xr.Variable([f"axis{k}" for k in range(values.ndim)], values, dict(attributes))
    # a type that xarray wrote makes durations. Numbers in "hours" are numbers; xarray 2025 makes durations of them, and
    # 2026.9 turns their marks of missing values into the least whole number
    lasting = str(attributes.get("dtype", "")).startswith("timedelta64")
    options = {"decode_timedelta": lasting and DURATIONS, **options}
    read: xr.Variable = decode_cf_variable("column", given, stack_char_dim=False, **options)
    return read


@np.errstate(all="ignore")
def _values(read: xr.Variable) -> NDArray[Any]:
    return np.asarray(read.to_numpy())


def decoding_of(array: Any) -> Decoding | None:
    """Return how the values of a Zarr array are decoded; None if they stand for themselves.

    Raises
    ------
    StructureError
        If its attributes are none that can be decoded here, such as dates of another calendar.
    """
    if array.dtype.kind in "mM":
        return None  # Zarr's own dates, which xarray leaves as they are
    try:
        return _decoding(_attributes(array), array.dtype)
    except Exception as error:  # of xarray, by attributes alone
        kind = kind_of(error)
    told = {name: text for name, text in array.attrs.items() if name in (*DECODED, ENCODING)}
    raise StructureError(
        f"A Zarr array says by its attributes {told!r} that its values stand for others, and these cannot be decoded"
        f" here ({kind}). Open it with xarray.open_zarr, and give numbers, text or dates of the standard calendar; or"
        " remove the attributes, if they mean nothing."
    )


def _attributes(array: Any) -> dict[str, Any]:
    """Return the attributes of a Zarr array by which xarray decodes it.

    In format 2 xarray keeps the mark of a missing value in place of Zarr's own fill value; in format 3 it is an
    attribute, and Zarr's fill value is a value like any other.
    """
    given = array.attrs.asdict()
    found = {name: given[name] for name in DECODED if name in given}
    if array.metadata.zarr_format == 2:
        if DIMENSIONS in given and array.fill_value is not None:
            found["_FillValue"] = array.fill_value
    elif "_FillValue" in found:
        found["_FillValue"] = _fill_value(found["_FillValue"], array.dtype)
    if str(given.get(ENCODING, "utf-8")).lower() not in ("utf-8", "utf8"):
        raise UnicodeError  # bytes are read as UTF-8, wherever they come from
    return found


def _fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a mark of format 3: xarray writes that of floats as text, others write a number."""
    plain = dtype.kind == "f" and isinstance(value, int | float)
    return value if plain else FillValueCoder.decode(value, dtype)


def _decoding(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> Decoding | None:
    if not attributes:
        return None
    times = {name: attributes[name] for name in TIMES if name in attributes}
    first = _decoded(np.arange(2), times)
    if first.dtype.kind in "mM":
        if dtype.kind not in "iuf":
            raise TypeError
        zero, one = _seconds(first)
        scaled = _decoded(
            np.empty(0, dtype), attributes, decode_times=False, decode_timedelta=False
        )
        _values(scaled)  # raises for a scale that is no number
        return Decoding(attributes, first.dtype, (zero, one - zero))
    if "calendar" in first.encoding:
        raise TypeError  # dates that are no dates of NumPy
    read = _decoded(np.empty(0, dtype), attributes)
    if read.attrs.keys() == attributes.keys():
        return None
    return Decoding(attributes, _values(read).dtype)


def _seconds(times: xr.Variable) -> list[float]:
    """Return dates as seconds from 1970, and durations in seconds."""
    values = _values(times)
    since = values if values.dtype.kind == "m" else values - np.datetime64(0, "s")
    return [float(part) for part in since / np.timedelta64(1, "s")]
