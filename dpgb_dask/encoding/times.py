"""A block's columns as points in time, and their parts; each value is read by itself. Total maps, as all of encoding.

A point in time is the number of whole seconds since 1970 in UTC, rounded down. A date is its first second; a time
without a zone is UTC.
"""

import datetime
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpgb_dask.contracts.features import Datetime, days_of
from dpgb_dask.encoding.columns import objects
from dpgb_dask.values import as_text, is_missing

DAY = 86_400
EPOCH = datetime.date(1970, 1, 1).toordinal()
NAT = np.iinfo(np.int64).min
# a million years: farther points count as this one, which no declared day reaches
FARTHEST = 1 << 45
FARTHEST_YEARS = 1_000_000
# of cftime: Julian, or Julian before a day of the year of the reform
JULIAN = "julian"
REFORMED = ("standard", "gregorian")
REFORM = 1582
DIGITS = 6  # of the seconds of a zone that are read, as Python has them
# seconds of a unit of NumPy's dates, or parts of a second
SECONDS = {"s": 1, "m": 60, "h": 3600, "D": DAY, "W": 7 * DAY}
PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9, "ps": 10**12, "fs": 10**15, "as": 10**18}
# also what `str` writes of a date beyond four digits of years, and of a zone of a time before zones had whole minutes
ISO = re.compile(
    r"(-?\d{4,9}-\d\d-\d\d)(?:[ T]([01]\d|2[0-3])(?::([0-5]\d)(?::([0-5]\d)(?:\.(\d+))?)?)?)?"
    r"(?:Z|([+-])([01]\d|2[0-3])(?::?([0-5]\d)(?::?([0-5]\d)(?:\.(\d+))?)?)?)?",
    re.ASCII,
)


@np.errstate(all="ignore")
def parts_of(column: Any, feature: Datetime) -> list[NDArray[np.float64]]:
    """Return the parts of the points in time in a column, NaN for values that are none. Never raises or warns.

    Parameters
    ----------
    column : (n,) array or Series
    feature : Datetime
        A point before its first day, or after its last, counts as the nearest second of these days.
    """
    read = seconds(column)
    missing = np.isnan(read)
    first, last = bounds_of(feature)
    at = np.clip(np.where(missing, first, read), first, last).astype(np.int64)
    return [np.where(missing, np.nan, _PARTS[part](at, first)) for part in feature.parts]


def bounds_of(feature: Datetime) -> tuple[int, int]:
    """Return the first second of the first day, and the last second of the last day."""
    first, last = ((day.toordinal() - EPOCH) * DAY for day in days_of(feature))
    return first, last + DAY - 1


def _months(at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of whole months since 1970."""
    return at.view("datetime64[s]").astype("datetime64[M]").astype(np.int64)


_PARTS: dict[str, Callable[[NDArray[np.int64], int], NDArray[Any]]] = {
    "days": lambda at, first: (at - first) // DAY,
    "year": lambda at, _first: _months(at) // 12 + 1970,
    "month": lambda at, _first: _months(at) % 12 + 1,
    "weekday": lambda at, _first: (at // DAY + 3) % 7,  # 1970 began on a Thursday
    "hour": lambda at, _first: at % DAY // 3600,
}


@np.errstate(all="ignore")
def seconds(column: Any) -> NDArray[np.float64]:
    """Return a column as points in time, NaN for values that are none. Never raises or warns.

    Notes
    -----
    Read are dates of Python, NumPy, pandas and Arrow, with and without times and zones; those of cftime, of any
    calendar (`_of_cftime`); and text in ISO form, as "2020-01-31", "2020-01-31 10:00", "2020-01-31T10:00:00.5+01:00".
    Anything else is missing, numbers too.
    """
    dtype = column.dtype
    if isinstance(column, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(column), np.nan, seconds(column.data))
    if isinstance(dtype, pd.CategoricalDtype):
        values = np.append(_each(objects(column.cat.categories)), np.nan)
        return np.asarray(values[column.cat.codes.to_numpy()])
    if isinstance(dtype, pd.ArrowDtype):
        return _of_arrow(column)
    if isinstance(dtype, pd.DatetimeTZDtype):
        column = column.dt.tz_convert(None)
    if getattr(column.dtype, "kind", "") == "M":
        ticks = column.to_numpy() if isinstance(column, pd.Series) else column
        return _of_ticks(ticks)
    if getattr(dtype, "kind", "") in "biufc":
        return np.full(len(column), np.nan)
    return _each(objects(column))


def _of_arrow(column: pd.Series) -> NDArray[np.float64]:
    """Return an Arrow column, also of dates beyond Python's calendar."""
    values = column.array.__arrow_array__()
    kind = str(values.type)
    if kind.startswith("dictionary") and any(word in kind for word in ("date", "timestamp")):
        values = values.cast(values.type.value_type)
        kind = str(values.type)
    if not kind.startswith(("date", "timestamp")):
        return _each(objects(column))
    unit = {"date32[day]": "D", "date64[ms]": "ms"}.get(kind) or re.findall(r"\[(\w+)", kind)[0]
    whole = values.cast("int32" if kind.startswith("date32") else "int64")
    ticks = np.asarray(whole.fill_null(0)).astype(np.int64)
    out = _of_ticks(ticks.view(f"datetime64[{unit}]"))
    return np.where(np.asarray(values.is_null()), np.nan, out)


def _of_ticks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return dates of NumPy, of any unit."""
    unit, count = np.datetime_data(values.dtype)
    ticks = values.astype(values.dtype.newbyteorder("=")).view(np.int64)
    if count != 1:  # such as fortnights; rare, and a product may overflow
        least, most = -(1 << 62), 1 << 62
        scaled = [t if t == NAT else min(max(t * count, least), most) for t in ticks.tolist()]
        ticks = np.array(scaled, np.int64)
    if unit in PER_SECOND:
        at = ticks // PER_SECOND[unit]
    elif unit in SECONDS:
        most = FARTHEST // SECONDS[unit]
        at = np.clip(ticks, -most, most) * SECONDS[unit]
    elif unit in ("Y", "M"):
        most = FARTHEST_YEARS * (12 if unit == "M" else 1)
        whole = np.clip(ticks, -most, most).view(f"datetime64[{unit}]")
        at = whole.astype("datetime64[s]").astype(np.int64)
    else:  # dates without a unit
        return np.full(len(ticks), np.nan)
    return np.where(ticks == NAT, np.nan, np.clip(at, -FARTHEST, FARTHEST).astype(np.float64))


def _each(values: list[Any]) -> NDArray[np.float64]:
    """Return values that have their own types; a text that is there twice is read once."""
    known: dict[str, float] = {}
    out = np.empty(len(values), np.float64)
    for k, value in enumerate(values):
        if type(value) is str:
            at = known.get(value)
            if at is None:
                at = known[value] = _of_text(value)
            out[k] = at
        else:
            out[k] = _of_object(value)
    return out


def _of_object(value: Any) -> float:
    try:
        if is_missing(value):
            return np.nan
        if isinstance(value, pd.Timestamp):
            value = value.asm8  # in UTC, and of any year
        if type(value).__module__.startswith("cftime."):
            return _of_cftime(value)
        return next((read(value) for kind, read in _READERS if isinstance(value, kind)), np.nan)
    except Exception:  # never raises: a foreign class may redefine anything
        return np.nan


def _of_cftime(value: Any) -> float:
    """Return a date of any calendar, as xarray makes them where NumPy has none.

    The Julian calendar has the days of all others under other names: they are the same days here. Calendars of years of
    other lengths, as climate models have, have days of their own: such a day is that with its year, month and day, as
    for xarray's ``convert_calendar``, and missing if there is none.
    """
    old = value.calendar in REFORMED and value.year <= REFORM
    if value.calendar == JULIAN or old:
        value = value.change_calendar("proleptic_gregorian")
    return _of_text(value.isoformat())


def _of_numpy(value: np.datetime64) -> float:
    return float(_of_ticks(np.array([value]))[0])


def _of_datetime(value: datetime.datetime) -> float:
    zone = value.utcoffset()
    ahead = 0 if zone is None else zone // datetime.timedelta(microseconds=1)
    minutes = (value.toordinal() - EPOCH) * 1440 + value.hour * 60 + value.minute
    # in whole microseconds: a float holds those of far dates only roughly
    return float(((minutes * 60 + value.second) * 10**6 + value.microsecond - ahead) // 10**6)


def _of_date(value: datetime.date) -> float:
    return float((value.toordinal() - EPOCH) * DAY)


def _of_text(text: str | bytes) -> float:
    # as text without trailing NULs, which NumPy's text of fixed width drops
    found = ISO.fullmatch(as_text(text) or "")
    if found is None:
        return np.nan
    day, hour, minute, second, part, sign, hours, minutes, rest, small = found.groups("0")
    try:
        days = datetime.date.fromisoformat(day).toordinal() - EPOCH
    except ValueError:
        try:  # years beyond Python's calendar
            days = int(np.datetime64(day, "D").astype(np.int64))
        except ValueError:  # such as the 30th of February
            return np.nan
    at = days * DAY + int(hour) * 3600 + int(minute) * 60 + int(second)
    ahead = int(hours) * 3600 + int(minutes) * 60 + int(rest)
    if int(small[:DIGITS]):
        own, zone = (int(digits[:DIGITS].ljust(DIGITS, "0")) for digits in (part, small))
        at += (own + zone if sign == "-" else own - zone) // 10**DIGITS
    at = at + ahead if sign == "-" else at - ahead
    return float(min(max(at, -FARTHEST), FARTHEST))


_READERS: tuple[tuple[Any, Callable[[Any], float]], ...] = (
    ((str, bytes), _of_text),
    (np.datetime64, _of_numpy),
    (datetime.datetime, _of_datetime),
    (datetime.date, _of_date),
    (pd.Period, lambda value: _of_text(str(value))),  # as readers that make text of it
)
