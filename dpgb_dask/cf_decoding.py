"""Zarr arrays as xarray reads them: what their attributes say of their values, and which of them are coordinates.

By attributes (CF conventions: https://cfconventions.org) a stored number stands for another: it is scaled, it marks a
missing value, or it counts days since a date. xarray writes arrays like that, and read without their attributes they
are other rows. Metadata alone decide what is decoded; xarray decodes it, block by block, each value by itself.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from xarray.backends.zarr import FillValueCoder
from xarray.coders import CFTimedeltaCoder
from xarray.conventions import decode_cf_variable

from dpgb_dask.errors import StructureError, in_our_words, kind_of
from dpgb_dask.warning_filters import ERRORS

DIMENSIONS = "_ARRAY_DIMENSIONS"  # xarray's attribute in format 2 for what is metadata in format 3
TIMES = ("units", "calendar", "dtype")  # attributes that make dates and durations
MARKS = ("_FillValue", "missing_value")
SCALES = ("scale_factor", "add_offset")
DECODED = (*MARKS, *SCALES, "_Unsigned", *TIMES)
ENCODING = "_Encoding"  # of text that is stored as bytes
DURATIONS = CFTimedeltaCoder(time_unit="ns", decode_via_units=False)
# seconds from 1970, and from the date that numbers count from: farther ones are no dates of nanoseconds
FARTHEST = 9.2e9
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# types of objects that are compared with a mark: the __eq__ of another may raise
COMPARED = frozenset({str, bytes, int, float, bool})
NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # Zarr's words


def dims_of(array: Any) -> tuple[str, ...] | None:
    """Return the names of a Zarr array's axes; None if they have no names, as xarray's always have."""
    if not array.ndim:
        return ()
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
    readings : tuple of mappings
        Attributes by which xarray decodes, once for each mark of a missing value: of several at once it warns.
    dtype : dtype
        Of what is returned.
    times : (float, float), optional
        Of dates and durations: the seconds from 1970 that the number 0 stands for, and the seconds of the number 1.

    Privacy
    -------
    Each value is decoded by itself, and none raises or warns. xarray would refuse a whole block for one date that is
    too far away, or make another type of it; here that date is missing.
    """

    readings: tuple[Mapping[str, Any], ...]
    dtype: np.dtype[Any]
    times: tuple[float, float] | None = None

    def __repr__(self) -> str:
        return "<decoding>"

    @in_our_words()
    def __call__(self, block: NDArray[Any]) -> NDArray[Any]:
        """Decode a block of any shape."""
        return self.decode(block)

    @np.errstate(all="ignore")
    def decode(self, block: NDArray[Any]) -> NDArray[Any]:
        """Decode a block; what xarray raises is raised."""
        if self.times is not None and block.dtype == np.float16:
            block = block.astype(np.float64)  # which holds the seconds of a day
        first, *others = self.readings
        out = self._read(block, first)
        for attributes in others:
            other = self._read(block, attributes)
            out = np.where(_missing(other), other, out)
        return out

    def _read(self, block: NDArray[Any], attributes: Mapping[str, Any]) -> NDArray[Any]:
        if self.times is None and block.dtype != object:
            return _values(_decoded(block, attributes))
        if self.times is None:
            parts, out = iter([_compared(block)]), block.copy()
        else:
            parts = self._alike(block, attributes)
            out = np.full(block.shape, np.array("NaT", self.dtype))
        for part in parts:
            if part.any():
                out[part] = _values(_decoded(block[part], attributes))
        return out

    def _alike(
        self, block: NDArray[Any], attributes: Mapping[str, Any]
    ) -> Iterator[NDArray[np.bool_]]:
        read = _decoded(block, attributes, decode_times=False, decode_timedelta=False)
        assert self.times is not None
        return alike(_values(read), self.times, self.dtype)


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype != object:
        return np.isnan(values)  # also of dates
    gone = [type(value) is float and math.isnan(value) for value in values.ravel().tolist()]
    return np.array(gone, bool).reshape(values.shape)


def _compared(block: NDArray[Any]) -> NDArray[np.bool_]:
    types = [type(value) in COMPARED for value in block.ravel().tolist()]
    return np.array(types, bool).reshape(block.shape)


def alike(
    numbers: NDArray[Any], span: tuple[float, float], dtype: np.dtype[Any]
) -> Iterator[NDArray[np.bool_]]:
    """Yield which numbers are dates or durations of nanoseconds, in groups that xarray may decode together.

    xarray multiplies all of a block by 1000 until each is whole, or counts nanoseconds, which rounds the others.

    Parameters
    ----------
    numbers : ndarray
    span : (float, float)
        As `span_of` returns it.
    dtype : dtype
        Of the dates or durations.
    """
    zero, one = span
    after = numbers.astype(np.float64) * one
    near = (abs(after) < FARTHEST) & (abs(zero + after) < FARTHEST)
    is_date, unit = dtype.kind == "M", np.datetime_data(dtype)[0]
    if numbers.dtype.kind != "f" or (is_date and unit == "ns"):
        yield near
        return
    # what xarray begins with: dates are float64 and count their own unit, durations keep their type and count seconds
    first = numbers.astype(np.float64) if is_date else numbers.copy()
    least = SECONDS[unit] if is_date else 1.0
    if one > least:
        first = first * np.int64(round(one / least))
    places = np.zeros(first.shape, np.int8)
    for _ in range(3):
        places += first % 1 > 0
        first *= 1000
    for k in np.unique(places):
        yield near & (places == k)


def _decoded(values: NDArray[Any], attributes: Mapping[str, Any], **options: Any) -> xr.Variable:
    """Return values as xarray decodes them, when they are asked for (`_values`)."""
    given = xr.Variable([f"axis{k}" for k in range(values.ndim)], values, dict(attributes))
    # a type that xarray wrote makes durations. Numbers in "hours" are numbers; xarray 2025 makes durations of them, and
    # 2026.9 turns their marks of missing values into the least whole number
    lasting = str(attributes.get("dtype", "")).startswith("timedelta64")
    options = {"decode_timedelta": lasting and DURATIONS, **options}
    read: xr.Variable = decode_cf_variable("column", given, stack_char_dim=False, **options)
    return read


def _values(read: xr.Variable) -> NDArray[Any]:
    return np.asarray(read.to_numpy())


@dataclass(frozen=True, eq=False)
class WholeNumbers:
    """A picklable function from the stored values of a block to whole numbers, which xarray makes floats for a mark.

    Parameters
    ----------
    marks : tuple of (str, object)
        The marks of a missing value, each with the name of its attribute.
    signs : mapping
        The attribute by which the numbers have no sign, or have one.
    dtype : dtype
        Of the numbers that are not missing.

    Privacy
    -------
    Each value is read by itself, and none raises or warns.
    """

    marks: tuple[tuple[str, Any], ...]
    signs: Mapping[str, Any]
    dtype: np.dtype[Any]

    def __repr__(self) -> str:
        return "<whole numbers>"

    @in_our_words()
    def __call__(self, block: NDArray[Any]) -> NDArray[np.object_]:
        """Return a block as objects: an int, or None where it is missing."""
        whole = _values(_decoded(block, self.signs))
        out = whole.astype(object)
        for name, mark in self.marks:
            # xarray gives this one mark the sign of the numbers
            signed = block if name == "_FillValue" and block.dtype.kind == "i" else whole
            # a whole number is compared with an array's exactly, a float after both are rounded
            whole_mark = isinstance(mark, float) and mark.is_integer()
            out[signed == (int(mark) if whole_mark else mark)] = None
        return out


def whole_numbers_of(array: Any) -> WholeNumbers | None:
    """Return how whole numbers are read as such; None of an array that holds none, or whose decoding keeps them.

    Raises
    ------
    StructureError
        As `decoding_of`.
    """
    decoding = decoding_of(array)
    if decoding is None or array.dtype.kind not in "iu" or decoding.dtype.kind != "f":
        return None
    told = decoding.readings[0]
    if not told.keys().isdisjoint(SCALES):
        return None
    signs = {name: told[name] for name in ("_Unsigned",) if name in told}
    marks = tuple(mark for reading in decoding.readings for mark in _marks(reading))
    return WholeNumbers(marks, signs, _decoded(np.empty(0, array.dtype), signs).dtype)


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
        mark = _fill_value(found.pop("_FillValue"), array.dtype)
        found |= {} if mark is None else {"_FillValue": mark}
    if str(given.get(ENCODING, "utf-8")).lower() not in ("utf-8", "utf8"):
        raise UnicodeError  # bytes are read as UTF-8, wherever they come from
    return found


def _fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a mark of format 3, None for none: xarray writes that of floats as text, others as Zarr does."""
    if dtype.kind == "f" and isinstance(value, str) and value in NO_NUMBERS:
        return NO_NUMBERS[value]
    plain = value is None or (dtype.kind == "f" and isinstance(value, int | float))
    return value if plain else FillValueCoder.decode(value, dtype)


def _marks(attributes: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the marks of a missing value, each with its attribute's name; NaN and None mark nothing."""
    given = [
        (n, mark) for n in MARKS if n in attributes for mark in np.ravel(attributes[n]).tolist()
    ]
    return [(name, mark) for name, mark in given if mark is not None and mark == mark]  # noqa: PLR0124


def _decoding(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> Decoding | None:
    attributes = _checked(attributes, dtype)
    if not attributes:
        return None
    times, readings = None, _readings(attributes)
    first = _decoded(np.arange(2), {n: attributes[n] for n in TIMES if n in attributes})
    if first.dtype.kind in "mM":
        if dtype.kind not in "iuf":
            raise TypeError
        times, kind = span_of(_values(first)), first.dtype
        read = _decoded(np.empty(0, dtype), readings[0], decode_times=False, decode_timedelta=False)
    elif "calendar" in first.encoding or "since" in str(attributes.get("units")):
        raise TypeError  # dates that are no dates of NumPy
    else:
        read = _decoded(np.empty(0, dtype), readings[0])
        kind = _values(read).dtype
        if read.attrs.keys() == readings[0].keys():
            return None
    if dtype.kind == "f" and read.dtype.kind in "iu":
        raise TypeError  # a whole scale makes xarray drop the fractions
    if len(readings) > 1 and kind.kind not in "fmMO":
        raise TypeError
    decoding = Decoding(readings, kind, times)
    _try(decoding, dtype)
    return decoding


def _checked(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return attributes without those that mean nothing, of which xarray warns.

    Raises
    ------
    TypeError, ValueError
        If they calculate with what are no numbers, or by what is none.
    """
    out, numbers = dict(attributes), "iuf"
    if dtype.kind not in numbers and not out.keys().isdisjoint({*SCALES, "_Unsigned"}):
        raise TypeError
    if dtype.kind not in f"b{numbers}" and out.get("dtype") == "bool":
        raise TypeError
    out |= {name: _scale(out[name]) for name in SCALES if name in out}
    if out.get("scale_factor") == 0:
        raise ValueError
    if dtype.kind == "f":
        out.pop("_Unsigned", None)
    if dtype.kind in "iu":
        marking = {name for name, _ in _marks(out)}
        out = {name: told for name, told in out.items() if name in marking or name not in MARKS}
    if not out.keys().isdisjoint(MARKS):
        # some versions of xarray make whole numbers by a whole scale, which hold no NaN
        out |= {name: float(out[name]) for name in SCALES if name in out}
    return out


def _scale(value: Any) -> int | float:
    """Return a scale or an offset, which may stand in a list."""
    number = np.asarray(value).item()
    if type(number) not in (int, float) or not math.isfinite(number):
        raise ValueError
    return number


def _readings(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return attributes as often as they have different marks, each time with one."""
    marks = _marks(attributes)
    if len({mark for _, mark in marks}) <= 1:
        return (dict(attributes),)
    others = {name: told for name, told in attributes.items() if name not in MARKS}
    return tuple(others | {name: mark} for name, mark in marks)


def _try(decoding: Decoding, dtype: np.dtype[Any]) -> None:
    """Decode the values of a type by which a decoding could raise or warn, together and each by itself.

    Raises
    ------
    Exception
        If it does: what a row could bring about is said here, of every array of this type with these attributes.
    """
    values = _extremes(dtype, [mark for told in decoding.readings for _, mark in _marks(told)])
    with ERRORS:
        for block in (values, *(values[k : k + 1] for k in range(len(values)))):
            if decoding.decode(block).dtype != decoding.dtype:
                raise TypeError


def _extremes(dtype: np.dtype[Any], marks: list[Any]) -> NDArray[Any]:
    """Return values of a type that are unlike each other, and those marks of a missing value that it holds."""
    given: list[Any]
    if dtype.kind in "iu":
        low, high = (int(edge) for edge in (np.iinfo(dtype).min, np.iinfo(dtype).max))
        given = [low, high, 0, 1]
        given += [mark for mark in marks if isinstance(mark, int) and low <= mark <= high]
    elif dtype.kind in "fc":
        given = [np.finfo(dtype).min, np.finfo(dtype).max, 0, 1, 0.1, math.nan, math.inf, -math.inf]
        given += [mark for mark in marks if isinstance(mark, int | float)]
    elif dtype.kind == "S":
        given = [b"", b"a", b"1", b"\xff", *(mark for mark in marks if isinstance(mark, bytes))]
    elif dtype.kind in "OTU":
        given = ["", "a", "1", *(mark for mark in marks if isinstance(mark, str))]
    else:
        given = [0, 1]
    with np.errstate(all="ignore"):
        return np.array(given, dtype)


def span_of(times: NDArray[Any]) -> tuple[float, float]:
    """Return, of the dates or durations of the numbers 0 and 1, the seconds of the first from 1970 and of the step."""
    since = times if times.dtype.kind == "m" else times - np.datetime64(0, "s")
    second = np.timedelta64(1, "s")
    # a step between seconds that are floats is off by up to 2^-23, which is more than a nanosecond
    return float(since[0] / second), float((times[1] - times[0]) / second)
