"""Points in time that are hard to read, in every form: texts, and dates of Python, NumPy and pandas."""

import datetime

import numpy as np
import pandas as pd

from dpgb_dask.contracts.features import Datetime
from dpgb_dask.contracts.model import FeatureBins, Model
from dpgb_dask.contracts.schema import Schema

datetime_, zone = datetime.datetime, datetime.timezone
hours, span = (lambda n: zone(span(hours=n))), datetime.timedelta


class Failing(datetime.tzinfo):
    """A zone that has no offset, but an error."""

    def utcoffset(self, _when):
        raise OverflowError("private")


TEXTS = [
    "29999-01-01", "29999-01-01T00:00:00", "-0001-01-01", "-0001-12-31 23:59:59.5Z", "0000-01-01", "0000-02-29",
    "0000-02-30", "-0004-02-29", "-0001-02-29", "999999999-12-31", "9999999999-01-01", "-999999999-01-01",
    "002020-01-01", "00002020-05-05", "000000000-01-01", "-0000-01-01", "-00001-03-01", "10000-02-29", "12000-02-29",
    "12001-02-29", "100000-13-01", "12000-00-10", "12000-01-00", "12000-04-31", "1850-01-01 00:00:00+00:53:28",
    "1850-01-01 00:00:00+00:53:28.5", "1850-01-01 00:00:00.4+00:53:28.5", "1850-01-01 00:00:00.6-00:53:28.5",
    "1850-01-01 00:00:00.6-005328", "2020-01-01T00:00:00+00:53:28.9999999", "2020-01-01T00:00:00-00:00:00.0000001",
    "2020-01-01T00:00:00.9999999-00:53:28.9999999", "0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:00",
    "0001-01-01", "9999-12-31T23:59:59.999999999Z", "2020-01-01T00Z", "2020-01-01Z", "2020-01-01+01", "2020-01-01+0130",
    "2020-01-01T10:00:00.", "2020-01-01T24:00", "2020-01-01 10:00:60", "2020-01-01+24:00", "2020-01-01T10+01:60",
    "2020-01-01T10+23:99",
    "2020-01-01 ", "1e5", "20200101", "2020-01-01\x00", "2020-01-01T10:00\x00\x00", "2020-01-01\x00x", "2020\x00-01-01",
    "2020-01-01\\x00", "0044-03-15 (BC)", "infinity", "２０２０-01-01", "2020-02-29T13:00", "2020-02-30",
    "1677-09-21T00:12:43.1234567", "1677-09-21T00:12:44.1234567", "2262-04-11T23:47:16.8547758",
    "2262-04-11T23:47:17.1234567", "1500-01-01 00:00:00.000000001", "9999-12-31T23:59:59.1234567",
    "2020-01-01T00:00:00.1", "2020-01-01T00:00:00.123456", "2020-01-01T00:00:00.1234567", "2020-06-15T07:08:09.000000",
    "2020-01-01T00:00:00.1234567890", "1969-12-31T23:59:59.9", "1950-01-01T00:00:00.000001", "2000-02-29T23:59:59-2359",
    "1900-02-29", "2100-02-28T23:59:59+00:00", "2015-01-01", "2014-12-31T23:30:00-01:00", "2024-12-31T23:59:59.9+00:00",
    "2024-12-31 23:30:00-02", "soon", "", "NA", "12:30", "2020-W01-1", "2020-001", "+2020-01-01", "2020-1-1",
]  # fmt: skip
OF_PYTHON = [
    datetime_.min, datetime_.max, datetime_.min.replace(tzinfo=hours(23)), datetime_.max.replace(tzinfo=hours(-23)),
    datetime_.min.replace(tzinfo=hours(-23)), datetime_(1850, 1, 1, tzinfo=zone(span(minutes=53, seconds=28))),
    datetime_(1850, 1, 1, 0, 0, 0, 400_000, zone(span(seconds=28, microseconds=500_000))),
    datetime_(2020, 1, 1, 0, 0, 0, 400_000, zone(span(microseconds=1))), datetime_(2020, 1, 1, tzinfo=hours(-3)),
    datetime_(2020, 1, 1, tzinfo=Failing()), type("Own", (datetime_,), {})(2020, 5, 5),
    datetime_(1969, 12, 31, 23, 59, 59, 1), datetime.date.min, datetime.date.max, datetime.date(2020, 2, 29),
    datetime.time(10, 30), datetime.time(10, 30, tzinfo=hours(1)),
]  # fmt: skip
UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "10D", "25s", "10as"]  # fmt: skip
TICKS = [
    0, 1, -1, 50, -719_162 * 24, 10**6, -(10**6), 123_456_789_012_345, -123_456_789_012_345, 1 << 62, -(1 << 62),
    (1 << 63) - 1, -(1 << 63) + 1, -(1 << 63),
]  # fmt: skip
OF_NUMPY = [np.int64(ticks).view(f"M8[{unit}]") for unit in UNITS for ticks in TICKS]
UNITLESS = np.int64(-(1 << 63)).view("M8")  # np.datetime64("NaT"), which newer NumPys warn of
OF_PANDAS = [
    pd.NaT, pd.Timestamp("2020-07-01 10:00", tz="Europe/Berlin"), pd.Timestamp(np.datetime64("29999-01-01", "s")),
    pd.Timestamp(np.datetime64("-0001-01-01", "s")), pd.Timestamp(np.datetime64("29999-01-01T01:02:03.5", "ms")),
    pd.Timestamp("2020-01-01 00:00:00.123456789"), pd.Timestamp("1969-12-31 23:59:59.999999999"), pd.Timestamp.min,
    pd.Timestamp.max, pd.Timestamp(np.datetime64("29999-01-01", "s")).tz_localize("UTC"),
    pd.Timestamp("2020-01-01 00:00:00.123456789", tz="Asia/Kolkata"), pd.Period("2020-02-29"), pd.Period("2020-01"),
    pd.Period("2020-02-29 10:00:01", "s"), UNITLESS,
]  # fmt: skip
ALL = [*TEXTS, *(text.encode() for text in TEXTS), *OF_PYTHON, *OF_NUMPY, *OF_PANDAS]


def told(k):
    """What is said of the k-th date where it is read otherwise: pandas cannot write all of its own."""
    value = ALL[k]
    return (
        f"{k}: {value.asm8!r} of pandas" if isinstance(value, pd.Timestamp) else f"{k}: {value!r}"
    )


PARTS = ("days", "year", "month", "weekday", "hour")
DATED = Schema(
    {
        "any": Datetime("0001-01-01", "9999-12-31", PARTS),
        "few": Datetime("2015-01-01", "2024-12-31", PARTS),
        "two": Datetime("1969-12-31", "2020-02-29", ("weekday", "days")),
    },
    classes=[0, 1],
)


def dated_model():
    """A model of three dates, whose score tells all codes of a row apart."""
    rng = np.random.default_rng(0)
    bins, tables = [], []
    for own in DATED.encoded.values():
        edges = np.arange(own.low, own.high) + 0.5
        edges = edges if len(edges) < 250 else np.sort(rng.choice(edges, 250, replace=False))
        bins.append(FeatureBins(edges, None, len(edges) + 2))
        tables.append(rng.integers(-(2**26), 2**26, (len(edges) + 2, 1)).astype(np.int32))
    return Model(tuple(bins), np.zeros(1, np.int32), tuple(tables), link="logit")


def many_texts(n=3000):
    """Odd texts, random ones in ISO form, and ones with a wrong character."""
    rng = np.random.default_rng(1)
    out = list(TEXTS)
    clocks = ["", "T05", "T23:59", " 12:34:56", "T23:59:59.999999", "T00:00:00.1"]
    zones = [
        "",
        "Z",
        "+01",
        "-23:59",
        "+0530",
        "+00:53:28",
        "-00:00:00.5",
        "+00:00:00.9999999",
        "-23:5959",
    ]
    days = rng.integers(-719_162, 2_932_896, n // 2).view("M8[D]")
    out += [f"{day}{rng.choice(clocks)}{rng.choice(zones)}" for day in days]
    for k in rng.integers(0, len(out), n // 2).tolist():
        letters = [*out[k], " "]
        letters[rng.integers(len(letters))] = rng.choice(list("0123456789-+:.TZ "))
        out.append("".join(letters))
    return [*out, None]
