"""Score rows with a model of dpgb_dask, by Python's standard library alone.

On the command line: ``python FILE < rows.csv > predictions.csv`` (``--help`` tells the rest). As a module:
``predict(row)``, ``predict_proba(row)``, ``decision(row)`` and ``scores(row)`` take a row as a mapping from the names
of the features to values: None, booleans, numbers, texts, dates. Scores are whole numbers of steps of 2**-16, the same
as those of the library, and values are read as the library reads them: none raises, an unknown category is "other", and
what cannot be read is missing.

``DOCUMENT`` is JSON with three parts: "schema" and "model" as in a model file, and "statement", the privacy report in
words. ``Scorer(json.load(open("model.json")))`` scores with a model file, if nothing was edited after the fit.
"""

import argparse
import bisect
import csv
import datetime
import decimal
import hashlib
import io
import json
import math
import numbers
import os
import re
import sys
import uuid
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, BinaryIO

DOCUMENT = ""

Row = Mapping[str, Any]

SCORE_ONE = 1 << 16  # steps of one unit of score
RATE_SHIFT = 2.0  # of the link "log"
CLASS_CLIP = 0.85  # of the link "clipped_softmax"
FLOAT32_MAX = 2.0**128 - 2.0**104
EXTRA_BINS = 2  # a numeric feature has two bins more than edges: above the last, and missing
MISSING_WORDS = frozenset((
    "", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "<NA>", "#N/A", "#N/A N/A", "#NA",
    "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN",
))  # fmt: skip
TRUTH = {"true": 1.0, "false": 0.0}
BLANKS = r"[ \t\n\v\f\r]*"
# no two ways to read a long text: it would try all of them, in the square of its length
NUMBER = re.compile(rf"{BLANKS}[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?{BLANKS}")
# pandas' CSV reader takes blanks after the e, if the number has a plus sign
PLUS = re.compile(rf"({BLANKS}\+(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE]){BLANKS}([+-]?[0-9]+{BLANKS})")
COMMA_NUMBER = re.compile(r"\s*[+-]?([0-9]+,[0-9]*|,[0-9]+)([eE][+-]?[0-9]+)?\s*")
# under a decimal comma this point may mark thousands
POINT_NUMBER = re.compile(r"\s*[+-]?[1-9][0-9]{0,2}\.[0-9]{3}\s*")
SWAPPED = str.maketrans(",.", ".,")
INFINITE = re.compile(r"([+-]?)(inf|infinity)", re.IGNORECASE)
ISO_DATE = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
ISO_TIME = re.compile(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
INTERVAL_END = r"[+-]?[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?"  # a number, as pandas writes it
INTERVAL = re.compile(rf"([\[(])({INTERVAL_END}|-inf), ({INTERVAL_END}|inf)([\])])")
ISO_POINT = re.compile(
    r"(-?\d{4,9})-(\d\d)-(\d\d)(?:[ T]([01]\d|2[0-3])(?::([0-5]\d)(?::([0-5]\d)(?:\.(\d+))?)?)?)?"
    r"(?:Z|([+-])([01]\d|2[0-3])(?::?([0-5]\d)(?::?([0-5]\d)(?:\.(\d+))?)?)?)?",
    re.ASCII,
)
DAY = 86_400  # seconds
NANO = 10**9
EPOCH = datetime.date(1970, 1, 1).toordinal()
DAYS_OF_400_YEARS = 146_097  # after which the calendar repeats itself
DIGITS = 6  # of the seconds of a zone that are read, as Python has them
# seconds of a unit of NumPy's dates, or parts of a second
SECONDS = {"s": 1, "m": 60, "h": 3600, "D": DAY, "W": 7 * DAY}
PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9, "ps": 10**12, "fs": 10**15, "as": 10**18}
UNIT = re.compile(r".M8\[(\d*)(\w+)\]")
NO_FORM = object()  # the form of a value that has none: differs from all others, and is not missing


# ---- how a value is read


def as_text(value: Any) -> str | None:
    """Return text and bytes as text without trailing NULs, and None for any other value."""
    if isinstance(value, bytes | bytearray) or (
        isinstance(value, memoryview) and value.format == "B"
    ):
        value = bytes(value).decode("utf-8", "surrogateescape")
    return str.__str__(value).rstrip("\x00") if isinstance(value, str) else None


def number_of(value: Any) -> float:
    """Return the number that a value is or spells; NaN if it is none."""
    text = as_text(value)
    if text is not None:
        if spaced := PLUS.fullmatch(text):
            text = spaced[1] + spaced[2]
        if NUMBER.fullmatch(text):
            return float(text)
        if infinite := INFINITE.fullmatch(text):
            return -math.inf if infinite[1] == "-" else math.inf
        return TRUTH.get(text.lower(), math.nan)
    try:
        if type(value).__name__ == "bool":  # that of NumPy is no number
            value = bool(value)
        if isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real):
            value = value.real if value.imag == 0 else math.nan
        real = isinstance(value, numbers.Real | decimal.Decimal) and not is_span(value)
        return float(value) if real else math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except Exception:  # a foreign number may fail
        return math.nan


def is_span(value: Any) -> bool:
    """Whether a value is a span of time of NumPy, which takes it for a whole number."""
    return type(value).__name__ == "timedelta64"


def is_missing(value: Any) -> bool:
    """Whether a value is None, pandas' NA or NaT, or a number's NaN; False if comparing it fails."""
    try:
        kind = type(value).__name__
        if value is None or kind in ("NAType", "NaTType"):
            return True
        compared = isinstance(value, numbers.Number) or kind in ("datetime64", "timedelta64")
        return compared and bool(value != value)  # noqa: PLR0124
    except Exception:
        return False


def form_of(value: Any) -> Any:
    """Return the normal form of a value: a number, a text, `NO_FORM`, or None if it is missing."""
    text = as_text(value)
    if text in MISSING_WORDS or (text is None and is_missing(value)):
        return None
    number = number_of(value)
    if not math.isnan(number):
        return number
    if text is not None:
        return text_form(text)
    if is_span(value):
        return NO_FORM
    if isinstance(value, numbers.Complex | decimal.Decimal):
        return None
    return object_form(value)


def object_form(value: Any) -> Any:
    """Return the normal form of a date, a time or a UUID, which is a text; `NO_FORM` for anything else."""
    try:
        if isinstance(value, uuid.UUID):
            return str(value)
        if isinstance(value, datetime.time):
            return f"\x00c{value.isoformat()}"
        if type(value).__name__ in ("Period", "Interval"):  # of pandas
            return form_of(str(value))
        value = getattr(value, "asm8", value)
        if found := ticks_of(value):
            return ticks_form(*found)
        stamp = stamp_of(value)
        return NO_FORM if stamp is None else date_form(*stamp)
    except Exception:  # a foreign class may redefine anything
        return NO_FORM


def text_form(text: str) -> str:
    """Return the normal form of a text that is no number: a text in ISO form is the date or time that it writes.

    The ends of an interval are written as numbers are: "(0.0, 10.0]" is "(0, 10]".
    """
    if found := INTERVAL.fullmatch(text):
        left, right = (form_text(float(end)) for end in found.group(2, 3))
        return f"{found[1]}{left}, {right}{found[4]}"
    try:
        if found := ISO_DATE.fullmatch(text):
            return iso_form(found) or text
        if ISO_TIME.fullmatch(text):
            return f"\x00c{datetime.time.fromisoformat(text).isoformat()}"
    except ValueError:  # no time, such as 24:00
        pass
    return text


def iso_form(found: re.Match[str]) -> str | None:
    """Return the normal form of a text in ISO form; None if it is no date that pandas reads."""
    year, month, day, hour, minute, second, part, zone = found.groups("0")
    days = days_of(int(year), int(month), int(day))
    if days is None or int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        return None
    at = days * DAY + int(hour) * 3600 + int(minute) * 60 + int(second)
    nanoseconds = int(part.ljust(9, "0"))
    if len(part) > DIGITS and abs(at * NANO + nanoseconds) >= 1 << 63:
        return None
    if zone not in ("0", "Z"):
        ahead = int(zone[1:3]) * 3600 + int(zone[3:].lstrip(":") or 0) * 60
        if ahead >= DAY:
            return None
        at += ahead if zone[0] == "-" else -ahead
    return date_form(at, nanoseconds)


def date_form(seconds: int, nanoseconds: int) -> str:
    """Return the normal form of a point in time: seconds from 1970 to it, and nanoseconds after them."""
    year, month, day = date_of(seconds // DAY)
    rest = seconds % DAY
    part = f".{nanoseconds:09}".removesuffix("000") if nanoseconds else ""
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"\x00d{year:04}-{month:02}-{day:02}T{clock}{part}"


def days_of(year: int, month: int, day: int) -> int | None:
    """Return the days from 1970 to a day of any year; None if there is no such day."""
    try:
        like = datetime.date(2000 + year % 400, month, day).toordinal() - EPOCH
    except ValueError:  # such as the 30th of February
        return None
    return like + (year // 400 - 5) * DAYS_OF_400_YEARS


def date_of(days: int) -> tuple[int, int, int]:
    """Return year, month and day of the day that is so many days after 1970 began."""
    start = EPOCH - datetime.date(2000, 1, 1).toordinal()
    rounds, rest = divmod(days + start, DAYS_OF_400_YEARS)
    like = datetime.date.fromordinal(datetime.date(2000, 1, 1).toordinal() + rest)
    return like.year + 400 * rounds, like.month, like.day


def seconds_of(value: Any) -> int | None:
    """Return the seconds from 1970 to a point in time, in UTC, rounded down; None if the value is none."""
    try:
        text = as_text(value)
        if text is None and type(value).__name__ == "Period":  # of pandas
            text = str(value)
        if text is not None:
            return text_seconds(text)
        if is_missing(value):
            return None
        value = getattr(value, "asm8", value)
        if found := ticks_of(value):
            return ticks_seconds(*found)
        stamp = stamp_of(value)
        return None if stamp is None else stamp[0]
    except Exception:  # a foreign class may redefine anything
        return None


def stamp_of(value: Any) -> tuple[int, int] | None:
    """Return the seconds from 1970 to one of Python's dates, and the nanoseconds after them; None for anything else."""
    if not isinstance(value, datetime.date):
        return None
    at = (value.toordinal() - EPOCH) * DAY
    if not isinstance(value, datetime.datetime):
        return at, 0
    at += (value.hour * 60 + value.minute) * 60 + value.second
    zone = value.utcoffset() or datetime.timedelta(0)
    # in whole microseconds: a float holds those of far dates only roughly
    micro = at * 10**6 + value.microsecond - zone // datetime.timedelta(microseconds=1)
    return micro // 10**6, micro % 10**6 * 1000


def ticks_of(value: Any) -> tuple[int, str, int] | None:
    """Return the ticks of a date of NumPy, their unit, and how many units a tick has; None for anything else."""
    if type(value).__name__ != "datetime64":
        return None
    unit = UNIT.fullmatch(value.dtype.str)
    return None if unit is None else (int(value.astype("int64")), unit[2], int(unit[1] or 1))


def ticks_seconds(ticks: int, unit: str, count: int) -> int:
    """Return the seconds from 1970 to a date of NumPy, rounded down."""
    if count != 1:
        ticks = min(max(ticks * count, -(1 << 62)), 1 << 62)  # as in the library
    if unit in ("Y", "M"):
        months = ticks * (12 if unit == "Y" else 1)
        return (days_of(1970 + months // 12, months % 12 + 1, 1) or 0) * DAY
    return ticks * SECONDS[unit] if unit in SECONDS else ticks // PER_SECOND[unit]


def ticks_form(ticks: int, unit: str, count: int) -> Any:
    """Return the normal form of a date of NumPy; `NO_FORM` where pandas has no such date."""
    at = ticks_seconds(ticks, unit, count)
    if count != 1 or unit in ("ps", "fs", "as") or abs(at) >= 1 << 63:
        return NO_FORM
    per = PER_SECOND.get(unit, 1)
    return date_form(at, ticks % per * (NANO // per))


def text_seconds(text: str) -> int | None:
    """Return the seconds from 1970 to the point in time that a text in ISO form writes."""
    found = ISO_POINT.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, part, sign, *zone, small = found.groups("0")
    days = days_of(int(year), int(month), int(day))
    if days is None:
        return None
    at = days * DAY + int(hour) * 3600 + int(minute) * 60 + int(second)
    hours, minutes, seconds = map(int, zone)
    ahead = hours * 3600 + minutes * 60 + seconds
    if int(small[:DIGITS]):
        own, later = (int(digits[:DIGITS].ljust(DIGITS, "0")) for digits in (part, small))
        at += (own + later if sign == "-" else own - later) // 10**DIGITS
    return at + ahead if sign == "-" else at - ahead


def form_text(form: float | str) -> str:
    """Return the text of a normal form that is hashed: a whole number as its digits."""
    if isinstance(form, str):
        return form
    return str(int(form)) if abs(form) < 2.0**53 and form.is_integer() else repr(form)


class Numbers:
    """A numeric feature: the code is the number of edges below the value; the last code is for a missing value."""

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = edges

    def codes(self, value: Any) -> list[int]:
        """Return the code of a value."""
        return [self.of_number(number_of(value))]

    def numbers(self, value: Any) -> list[float]:
        """Return the number that is the value of the column, NaN if it is missing."""
        return [number_of(value)]

    def of_number(self, number: float) -> int:
        """Return the code of a number; NaN is missing."""
        if math.isnan(number):
            return len(self.edges) + EXTRA_BINS - 1
        return bisect.bisect_left(self.edges, number)


class Dates:
    """A feature of dates: a numeric column for each of its parts."""

    def __init__(self, feature: Mapping[str, Any], columns: Sequence[Numbers]) -> None:
        first, last = (
            (datetime.date.fromisoformat(feature[side]).toordinal() - EPOCH) * DAY
            for side in ("first", "last")
        )
        self.first, self.last = first, last + DAY - 1
        self.parts = list(zip(feature["parts"], columns, strict=True))

    def codes(self, value: Any) -> list[int]:
        """Return the code of each part; all are missing if the value is no point in time."""
        numbers = zip(self.parts, self.numbers(value), strict=True)
        return [column.of_number(number) for (_, column), number in numbers]

    def numbers(self, value: Any) -> list[float]:
        """Return the number of each part; all are NaN if the value is no point in time."""
        at = seconds_of(value)
        if at is None:
            return [math.nan for _ in self.parts]
        second = min(max(at, self.first), self.last)
        day = datetime.date.fromordinal(second // DAY + EPOCH)
        parts = {
            "days": (second - self.first) // DAY,
            "year": day.year,
            "month": day.month,
            "weekday": day.weekday(),
            "hour": second % DAY // 3600,
        }
        return [float(parts[part]) for part, _ in self.parts]


class Cells:
    """A feature whose values fall into cells: ``n`` of its own, then one for other values and one for missing ones.

    Parameters
    ----------
    bins : sequence of int
        Bin of each cell.
    """

    def __init__(self, bins: Sequence[int]) -> None:
        self.bins, self.other, self.missing = bins, len(bins) - 2, len(bins) - 1

    def cell(self, value: Any) -> int:
        """Return the cell of a value."""
        raise NotImplementedError

    def codes(self, value: Any) -> list[int]:
        """Return the code of a value."""
        return [self.bins[self.cell(value)]]

    def numbers(self, value: Any) -> list[float]:
        """Return the cell of a value, NaN if it is missing."""
        cell = self.cell(value)
        return [math.nan if cell == self.missing else float(cell)]


class Categories(Cells):
    """A categorical feature: a cell of its own for each category.

    Parameters
    ----------
    values : sequence
        Listed values.
    cells : sequence of int
        Which of the categories each of them is.
    bins : sequence of int
        As in `Cells`.
    """

    def __init__(self, values: Sequence[Any], cells: Sequence[int], bins: Sequence[int]) -> None:
        super().__init__(bins)
        self.cell_of = {
            form: cell
            for form, cell in zip(map(form_of, values), cells, strict=True)
            if form is not None and form is not NO_FORM
        }
        # a listed value that is a word for a missing value is found as a text; "nan" is always missing
        self.cell_of_word = {
            value: cell
            for value, cell in zip(values, cells, strict=True)
            if isinstance(value, str) and value in MISSING_WORDS - {"nan"}
        }

    def cell(self, value: Any) -> int:
        """Return which category a value is."""
        word = as_text(value)
        if word is not None and word in self.cell_of_word:
            return self.cell_of_word[word]
        form = form_of(value)
        return self.missing if form is None else self.cell_of.get(form, self.other)


class Buckets(Cells):
    """A hashed feature: the bucket in which SHA-256 of a value's text falls."""

    def cell(self, value: Any) -> int:
        """Return the bucket of a value."""
        form = form_of(value)
        if form is None or form is NO_FORM:
            return self.missing if form is None else self.other
        digest = hashlib.sha256(form_text(form).encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") % self.other


# ---- the model


class Scorer:
    """A model that scores rows.

    Parameters
    ----------
    document : mapping
        With the parts "schema" and "model" of a model file.

    Raises
    ------
    ValueError
        If the document holds what this scorer does not know.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        if document.get("edits"):
            raise ValueError("The model was edited after the fit: export it with to_python.")
        schema, model = document["schema"], document["model"]
        self.model = model
        self.names = list(schema["features"])
        self.target = schema["target"]
        self.classes = self.target.get("classes", [])
        self.link = model["link"]
        bins = iter(model["bins"])
        self.features = [_feature(name, given, bins) for name, given in schema["features"].items()]
        trees = model["trees"]
        masks = [frozenset(mask) for mask in trees["masks"]]
        self.trees = [
            (feature, threshold, [None if q < 0 else masks[q] for q in mask_of])
            for feature, threshold, mask_of in zip(
                trees["feature"], trees["threshold"], trees["mask_of"], strict=True
            )
        ]

    def codes(self, row: Row) -> list[int]:
        """Return the codes of all features, one after the other; a feature of dates has one for each of its parts.

        Raises
        ------
        ValueError
            If the row lacks a feature; the message names those that it lacks.
        """
        return [code for value, feature in self._pairs(row) for code in feature.codes(value)]

    def _pairs(self, row: Row) -> Iterator[tuple[Any, Any]]:
        """Return the value of each feature in a row, and the feature."""
        if lacking := _lacking(self.names, row):
            raise ValueError(f"The row {lacking}. Give None for a missing value.")
        return zip((row[name] for name in self.names), self.features, strict=True)

    def encode(self, row: Row) -> list[float]:
        """Return what an XGBoost file of the same model takes: the number of each encoded column, NaN if missing.

        Raises
        ------
        ValueError
            If the row lacks a feature; the message names those that it lacks.
        """
        out = [number for value, feature in self._pairs(row) for number in feature.numbers(value)]
        # an infinity is no input of XGBoost; NaN stays
        return [x if math.isnan(x) else min(max(x, -FLOAT32_MAX), FLOAT32_MAX) for x in out]

    def scores(self, row: Row) -> list[int]:
        """Return the scores of a row, in steps of 2**-16: one, or one for each of several classes."""
        codes = self.codes(row)
        out = list(self.model["intercept"])
        for table, code in zip(self.model["tables"], codes, strict=True):
            for k, value in enumerate(table[code]):
                out[k] += value
        for pair in self.model["pairs"]:
            i, j = pair["map_i"][codes[pair["i"]]], pair["map_j"][codes[pair["j"]]]
            for k, table in enumerate(pair["table"]):
                out[k] += table[i][j]
        values = self.model["trees"]["value"]
        for t, (feature, threshold, masks) in enumerate(self.trees):
            node = 0
            while node < len(feature):
                code, mask = codes[feature[node]], masks[node]
                right = code > threshold[node] if mask is None else code in mask
                node = 2 * node + 1 + right
            for k in range(len(out)):
                out[k] += values[k][t][node - len(feature)]
        return [(score + 2**31) % 2**32 - 2**31 for score in out]  # as the library's 32 bits

    def decision(self, row: Row) -> Any:
        """Return the score in natural units: of two classes, above 0 for the one declared second; several: a list."""
        scores = self.scores(row)
        if len(scores) > 1:
            return [score / SCORE_ONE for score in scores]
        return (scores[0] - self._even()) / SCORE_ONE

    def predict_proba(self, row: Row) -> list[float]:
        """Return the probability of each class, in the schema's order.

        Raises
        ------
        ValueError
            If the model predicts a number.
        """
        if not self.classes:
            raise ValueError("The model predicts a number, which has no probabilities.")
        return self._probabilities(self.scores(row))

    def predict(self, row: Row) -> Any:
        """Return the most probable class, or the predicted number within the bounds of the target."""
        return self._prediction(self.scores(row))

    def _even(self) -> int:
        """Return the score at which two classes are equally probable."""
        return SCORE_ONE // 2 if self.link == "probability" and self.classes else 0

    def _prediction(self, scores: Sequence[int]) -> Any:
        if self.classes:
            if len(scores) == 1:
                return self.classes[scores[0] > self._even()]
            return self.classes[scores.index(max(scores))]
        low, high, score = self.target["low"], self.target["high"], scores[0] / SCORE_ONE
        if self.link == "log":
            value = high * math.exp(min(score - RATE_SHIFT, 0.0))
        else:
            value = low / 2 + high / 2 + (high / 2 - low / 2) * score
        return min(max(value, low), high)

    def _probabilities(self, scores: Sequence[int]) -> list[float]:
        natural = [score / SCORE_ONE for score in scores]
        if self.link == "probability":
            natural = [min(max(score, 0.0), 1.0) for score in natural]
            total = sum(natural)
            if len(natural) == 1:
                return [1 - natural[0], natural[0]]
            return [p / total if total > 0 else 1 / len(natural) for p in natural]
        if self.link in ("softmax", "clipped_softmax"):
            powers = [math.exp(score - max(natural)) for score in natural]
            shares = [power / sum(powers) for power in powers]
            return shares if self.link == "softmax" else _unclipped(shares)
        p = _sigmoid(natural[0])
        if self.link == "clipped_logit":
            up, down = min(1 - p, 0.5), min(p, 0.5)
            p = down / (up + down)
        return [1 - p, p]

    def outputs(self, row: Row) -> list[Any]:
        """Return the prediction, and for classes the probability of each."""
        scores = self.scores(row)
        probabilities = self._probabilities(scores) if self.classes else []
        return [self._prediction(scores), *probabilities]


def _lacking(features: Sequence[str], known: Container[str]) -> str:
    """Return which features are not known, in words; "" if all are."""
    lacking = [name for name in features if name not in known]
    more = f" and {len(lacking) - 10} more" if len(lacking) > 10 else ""
    return f"lacks the features {lacking[:10]}{more}" if lacking else ""


def _feature(name: str, feature: Mapping[str, Any], bins: Iterator[Mapping[str, Any]]) -> Any:
    """Return what reads a feature; takes the bins of its columns."""
    kind = feature["type"]
    if kind == "numeric":
        return Numbers(next(bins)["edges"])
    if kind == "datetime":
        return Dates(feature, [Numbers(next(bins)["edges"]) for _ in feature["parts"]])
    if kind == "hashed":
        return Buckets(next(bins)["cell_to_bin"])
    if kind == "grouped":
        groups = {group: k for k, group in enumerate(dict.fromkeys(feature["from"].values()))}
        cells = [groups[group] for group in feature["from"].values()]
        return Categories(list(feature["from"]), cells, next(bins)["cell_to_bin"])
    if kind not in ("categorical", "bool"):
        raise ValueError(f"feature {name!r} is of type {kind!r}, which this file cannot read.")
    values = [False, True] if kind == "bool" else feature["categories"]
    return Categories(values, range(len(values)), next(bins)["cell_to_bin"])


def _unclipped(shares: Sequence[float]) -> list[float]:
    """Return the rates of classes at which gradients clipped in norm balance, from a softmax."""
    squares = sum(p * p for p in shares)
    powers = [p * math.sqrt(max((1 + squares - 2 * p) / CLASS_CLIP**2, 1.0)) for p in shares]
    return [power / sum(powers) for power in powers]


def _sigmoid(score: float) -> float:
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    power = math.exp(score)
    return power / (1 + power)


@lru_cache(maxsize=1)
def scorer() -> Scorer:
    """Return the model of this file."""
    return Scorer(json.loads(DOCUMENT))


def scores(row: Row) -> list[int]:
    """Return the scores of a row, in steps of 2**-16."""
    return scorer().scores(row)


def encode(row: Row) -> list[float]:
    """Return what an XGBoost file of the same model takes."""
    return scorer().encode(row)


def decision(row: Row) -> Any:
    """Return the score of a row in natural units."""
    return scorer().decision(row)


def predict_proba(row: Row) -> list[float]:
    """Return the probability of each class, in the schema's order."""
    return scorer().predict_proba(row)


def predict(row: Row) -> Any:
    """Return the predicted class or number of a row."""
    return scorer().predict(row)


# ---- files of text


def read_rows(
    lines: BinaryIO, delimiter: str, point: str = ".", features: Sequence[str] = ()
) -> Iterator[dict[str, str]]:
    """Read delimited text in UTF-8 whose first line names the columns; each further line that is not blank is a row.

    ``point`` is what stands before the decimals of a number, ``features`` are columns that have to be there.

    Raises
    ------
    ValueError
        If a line cannot be read, or has another number of fields than the first; if two columns have one name, or one
        is not there.
    """
    names: list[str] | None = None
    for number, raw in enumerate(lines, start=1):
        text = raw.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
        if names is None:
            text = text.removeprefix("\ufeff")
        elif delimiter not in text and not text.strip():
            continue
        try:
            fields = next(csv.reader([text], delimiter=delimiter, strict=True), [])
        except csv.Error:
            fields = []
        if names is None:
            names = fields
            if len(set(names)) < len(names):
                raise ValueError("The first line must name the columns, each by another name.")
            if lacking := _lacking(features, names):
                raise ValueError(f"The first line {lacking}. Is it the --delimiter?")
        elif len(fields) != len(names):
            raise ValueError(
                f"Line {number} has another number of fields than the first, or an open quote."
            )
        else:
            if point == ",":
                # 1.234 becomes 1,234, which is no number, as different texts have to stay different
                fields = [
                    x.translate(SWAPPED)
                    if COMMA_NUMBER.fullmatch(x) or POINT_NUMBER.fullmatch(x)
                    else x
                    for x in fields
                ]
            yield dict(zip(names, fields, strict=True))
    if names is None:
        raise ValueError("There is no first line that names the columns.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Score the rows of standard input, to standard output in UTF-8; return the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    parser = argparse.ArgumentParser(
        description="Read delimited text from standard input, and write predictions to standard output."
    )
    parser.add_argument(
        "--delimiter",
        default=",",
        help="what separates columns: one character, tab or space (default: a comma)",
    )
    parser.add_argument(
        "--decimal",
        default=".",
        choices=(".", ","),
        help="what stands before the decimals of a number (default: a point)",
    )
    parser.add_argument(
        "--proba", action="store_true", help="write the probability of each class too"
    )
    parser.add_argument(
        "--statement", action="store_true", help="print the privacy report of the model instead"
    )
    options = parser.parse_args(arguments)
    words = {"tab": "\t", r"\t": "\t", "space": " "}  # as dpgb-dask's own --delimiter takes them
    delimiter = words.get(options.delimiter, options.delimiter)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        parser.error("--delimiter must be one character, tab or space, and no quote")
    if options.decimal == delimiter:
        parser.error("--decimal , needs another --delimiter, such as ';'")
    if options.statement:
        sys.stdout.write(json.loads(DOCUMENT)["statement"] + "\n")
        return 0
    model = scorer()
    if options.proba and not model.classes:
        parser.error("--proba needs classes: this model predicts a number")
    labels = [f"proba_{label}" for label in model.classes] if options.proba else []
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["prediction", *labels])
    try:
        for row in read_rows(sys.stdin.buffer, delimiter, options.decimal, model.names):
            out.writerow(model.outputs(row)[: len(labels) + 1])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough, as head; the rest must not fail at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
