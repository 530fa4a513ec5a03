"""Points in time: every value has one, or is missing, and no other value changes that."""

import datetime
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_dates import UNITLESS

from dpgb_dask import Datetime, Schema
from dpgb_dask.encoding.codes import read_values
from dpgb_dask.encoding.times import FARTHEST, parts_of, seconds

NAT = -(1 << 63)
UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "10D", "25s", "7us"]
ALL = Datetime("2015-01-01", "2024-12-31", ("days", "year", "month", "weekday", "hour"))
UTC = datetime.UTC


def column(values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


def one(value):
    return seconds(column([value]))[0]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("2020-02-29", "2020-02-29T00:00:00"),
        (b"2020-02-29 13", "2020-02-29T13:00:00"),
        ("2020-02-29\x00", "2020-02-29T00:00:00"),  # as NumPy's text of fixed width has it
        ("2020-02-29T13:00", "2020-02-29T13:00:00"),
        ("2020-02-29 13:00:59.999999999", "2020-02-29T13:00:59"),
        ("2020-02-29T13:00:00Z", "2020-02-29T13:00:00"),
        ("2020-02-29T13:00:00-05:30", "2020-02-29T18:30:00"),
        ("2020-02-29T13:00+0200", "2020-02-29T11:00:00"),
        ("0000-01-01", "0000-01-01T00:00:00"),
        ("9999-12-31 23:59:59.9999999999", "9999-12-31T23:59:59"),
        (datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999), "9999-12-31T23:59:59"),
        ("1850-01-01 00:00:00+00:53:28", "1849-12-31T23:06:32"),
        ("29999-01-01T00:00:00", "29999-01-01T00:00:00"),
        ("-0001-01-01", "-0001-01-01T00:00:00"),
        (datetime.date(2020, 2, 29), "2020-02-29T00:00:00"),
        (datetime.datetime(1969, 12, 31, 23, 59, 59, 1), "1969-12-31T23:59:59"),
        (datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=-3))), "2020-01-01T03:00:00"),
        (pd.Timestamp("2020-07-01 10:00", tz="Europe/Berlin"), "2020-07-01T08:00:00"),
        (pd.Timestamp(np.datetime64("29999-01-01", "s")), "29999-01-01T00:00:00"),
        (pd.Period("2020-02-29"), "2020-02-29T00:00:00"),
        (np.datetime64("2020"), "2020-01-01T00:00:00"),
        (np.datetime64(-1, "ns"), "1969-12-31T23:59:59"),
    ],
)  # fmt: skip
def test_a_date_is_its_second_in_utc(value, said):
    assert one(value) == np.datetime64(said, "s").astype(np.int64)


@pytest.mark.parametrize(
    "value",
    [
        None, np.nan, pd.NaT, pd.NA, UNITLESS, "", "NA", "2020-02-30", "2020-1-1", "1/2/2020",
        "2020-01-01T24:00", "2020-01-01T10:60", "soon", 20200101, 1.5e9, True, 1j, 10**400, datetime.time(10),
        datetime.timedelta(1), pd.Period("2020-01"), [1], {}, "2020-01-01 ", "２０２０-01-01", "2020-01-01\ud800",
    ],
)  # fmt: skip
def test_anything_else_is_missing(value):
    assert np.isnan(one(value))


class Hostile(datetime.datetime):
    """A date whose methods fail, or give what they should not."""

    answer = None

    def utcoffset(self):
        raise OverflowError("private")

    def toordinal(self):
        return self.answer


@pytest.mark.parametrize("answer", [None, "x", 1e308, float("nan"), 10**400, [1]])
def test_a_foreign_class_neither_raises_nor_warns(answer):
    kind = type("Odd", (Hostile,), {"answer": answer, "utcoffset": lambda _: None})
    for value in (kind(2020, 1, 1), Hostile(2020, 1, 1)):
        parts = parts_of(column([value, "2020-02-29"]), ALL)
        assert [part[1] for part in parts] == [1885, 2020, 2, 5, 0]
        assert all(part[0] != part[0] or part[0] >= 0 for part in parts)


@pytest.mark.parametrize("unit", UNITS)
def test_a_column_of_any_unit_is_read_as_its_values_are(unit):
    rng = np.random.default_rng(1)
    ends = [0, 1, -1, 1 << 62, -1 << 62, (1 << 63) - 1, -(1 << 63) + 1, NAT]
    ticks = np.array([*ends, *rng.integers(-(10**6), 10**6, 50)], np.int64)
    values = ticks.view(f"datetime64[{unit}]")
    read = seconds(values)
    assert np.array_equal(read, [one(value) for value in values], equal_nan=True)
    assert np.array_equal(read, seconds(values.astype(values.dtype.newbyteorder())), equal_nan=True)
    assert np.isnan(read[7])
    assert np.nanmax(abs(read)) <= FARTHEST
    if unit not in ("ps", "fs", "as"):  # NumPy does not convert them to seconds
        assert np.array_equal(read[8:], values[8:].astype("datetime64[s]").astype(np.int64))


DATES = ["2020-02-29T13:00:00", None, "1850-01-01T00:00:00", "2300-07-01T00:00:30"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("s", "Asia/Tokyo"), pa.date32(), pa.date64(),
        pa.dictionary(pa.int8(), pa.timestamp("s")), pa.string(), pa.dictionary(pa.int8(), pa.string()),
    ],
)  # fmt: skip
def test_arrow_s_dates_are_read_also_beyond_other_calendars(kind):
    plain = pa.array(np.array(DATES, "datetime64[s]"))
    if "string" in str(kind):
        told = pa.array(DATES).cast(kind)
    else:
        plain = plain if "date" not in str(kind) else plain.cast(pa.date32())
        told = plain.cast(kind) if "dictionary" not in str(kind) else plain.dictionary_encode()
    read = seconds(pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([told]))))
    expected = seconds(np.array(DATES, "datetime64[D]" if "date" in str(kind) else "datetime64[s]"))
    assert np.array_equal(read, expected, equal_nan=True)


def test_arrow_s_dates_of_the_year_30000_are_clipped_as_numpy_s_are():
    days = pa.array([10_000_000, None, -10_000_000], pa.int32()).cast(pa.date32())
    read = seconds(pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([days]))))
    assert np.array_equal(read, [864e9, np.nan, -864e9], equal_nan=True)


def test_other_columns_have_no_dates():
    for values in (
        np.arange(3),
        np.ones(3, bool),
        pd.array([1, None, 2], "Int64"),
        np.ones(3, "m8[s]"),
    ):
        assert np.isnan(
            seconds(values if isinstance(values, np.ndarray) else pd.Series(values))
        ).all()
    masked = np.ma.MaskedArray(np.array(["2020-01-01"] * 2, "datetime64[D]"), [False, True])
    assert np.array_equal(seconds(masked), [1577836800, np.nan], equal_nan=True)
    dates = pd.Series(pd.Categorical(pd.to_datetime(["2020-01-01", None])))
    assert np.array_equal(seconds(dates), [1577836800, np.nan], equal_nan=True)


def test_parts_are_what_a_calendar_says_and_are_clipped():
    days = pd.Series(pd.date_range("2014-12-30", "2025-01-02", freq="7h"))
    clipped = days.clip(pd.Timestamp("2015-01-01"), pd.Timestamp("2024-12-31 23:59:59"))
    clipped = pd.DatetimeIndex(clipped)
    expected = [
        (clipped.normalize() - pd.Timestamp("2015-01-01")).days,
        clipped.year, clipped.month, clipped.day_of_week, clipped.hour,
    ]  # fmt: skip
    for own, said in zip(parts_of(days, ALL), expected, strict=True):
        assert own.tolist() == said.tolist()


# ---- any value, alone and among others -------------------------------------------------------------------------------


def tick(count, unit):
    return np.array([count], np.int64).view(f"datetime64[{unit}]")[0]


ZONES = st.timezones() | st.builds(
    datetime.timezone,
    st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23)),
)
VALUES = (
    st.datetimes(timezones=st.none() | ZONES)
    | st.dates()
    | st.builds(tick, st.integers(NAT, -NAT - 1), st.sampled_from(UNITS))
    | st.datetimes().map(pd.Timestamp)
    | st.datetimes(timezones=st.none() | ZONES).map(str)
    | st.from_regex(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d*)?)?([+-]\d\d(:?\d\d)?)?")
    | st.text() | st.binary() | st.integers() | st.floats() | st.booleans() | st.none() | st.complex_numbers()
    | st.sampled_from([pd.NaT, pd.NA, [1], {}, (1, "2020-01-01"), object(), np.float32(3), "NA", "\ud800"])
)  # fmt: skip
SCHEMA = Schema(
    {
        "when": ALL,
        "zip": {"from": {"1": "a", "2020-01-01": "b", "None": "b", "x": "a"}},
        "hash": {"buckets": 7},
        "flag": bool,
    },
    classes=[0, 1],
)


def codes(values):
    """What a fit reads in rows that hold the same value in each column."""
    block = np.empty((len(values), 4), object)
    for j in range(4):
        block[:, j] = column(values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return np.array([part.astype(np.float64) for part in read_values(block, SCHEMA).columns])


@settings(max_examples=60, deadline=None)
@given(st.datetimes(timezones=st.none() | ZONES))
def test_a_date_is_read_as_its_text_is(value):
    texts = [str(value), value.isoformat(), value.isoformat().encode()]
    naive = value.replace(tzinfo=None)
    since = naive - datetime.datetime(1970, 1, 1) - (value.utcoffset() or datetime.timedelta())
    assert [one(text) for text in (value, *texts)] == [since // datetime.timedelta(seconds=1)] * 4
    for told in (np.datetime64(naive), pd.Timestamp(naive)):
        assert one(told) == one(str(told)) == one(naive)


@settings(max_examples=25, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=6))
def test_no_value_raises_warns_or_changes_how_another_is_read(values):
    among = codes(values)
    for k, value in enumerate(values):
        alone = codes([value])[:, 0]
        assert np.array_equal(among[:, k], alone, equal_nan=True)
        for (low, high), part in zip(
            [(0, 3652), (2015, 2024), (1, 12), (0, 6), (0, 23)], alone, strict=False
        ):
            assert np.isnan(part) or low <= part <= high
    frame = pd.DataFrame({name: pd.Series(column(values), dtype=object) for name in SCHEMA.names})
    read = read_values(frame, SCHEMA).columns
    assert np.array_equal(among, np.array([p.astype(float) for p in read]), equal_nan=True)


def cftime_date(year, month, day, calendar):
    """A date of cftime, or one that answers as it does where it is not installed."""

    def turned(self, name):
        other = {(1500, "standard"): (1500, 1, 10), (2020, "julian"): (2020, 2, 16)}
        other |= {(1582, "standard"): (1582, 10, 14)}
        assert name == "proleptic_gregorian"
        return cftime_date(*other[self.year, self.calendar], name)

    facts = {"year": year, "calendar": calendar, "change_calendar": turned}
    facts["isoformat"] = lambda _: f"{year:04d}-{month:02d}-{day:02d}T00:00:00"
    return type("datetime", (), facts | {"__module__": "cftime._cftime"})()


CFTIME = [
    ((2020, 2, 3), "standard", "2020-02-03"),
    ((2567, 7, 31), "gregorian", "2567-07-31"),
    ((1500, 1, 1), "standard", "1500-01-10"),
    ((1582, 10, 4), "standard", "1582-10-14"),
    ((1500, 1, 1), "proleptic_gregorian", "1500-01-01"),
    ((2020, 2, 3), "julian", "2020-02-16"),
    ((2020, 2, 3), "noleap", "2020-02-03"),
    ((1500, 1, 1), "noleap", "1500-01-01"),
    ((2020, 2, 30), "360_day", None),
    ((2020, 2, 28), "360_day", "2020-02-28"),
    ((2019, 2, 29), "all_leap", None),
    ((2020, 2, 29), "all_leap", "2020-02-29"),
]


@pytest.mark.parametrize("real", [False, True], ids=["alike", "cftime"])
@pytest.mark.parametrize("form", ["array", "series", "categories"])
def test_dates_of_cftime_are_days_of_the_calendar_of_all_others(form, real):
    """One far date makes xarray give a whole array of them."""
    make = cftime_date
    if real:
        cftime = pytest.importorskip("cftime")
        make = lambda y, m, d, calendar: cftime.datetime(y, m, d, calendar=calendar)  # noqa: E731
    values = column([*(make(*ymd, calendar) for ymd, calendar, _ in CFTIME), None])
    want = np.array([*(day or "NaT" for *_, day in CFTIME), "NaT"], "M8[s]")
    if form == "series":
        values = pd.Series(values, dtype=object)
    if form == "categories":
        values = pd.Series(pd.Categorical.from_codes([*range(len(want) - 1), -1], values[:-1]))
    np.testing.assert_array_equal(seconds(values), seconds(want))
