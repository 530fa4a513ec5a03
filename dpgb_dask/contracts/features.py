"""The kinds of features: how each is declared, written as JSON, and encoded as columns of numbers or categories.

Everything here is public; nothing in this module sees a row. How a value is read as a kind is said in ``encoding/``.
"""

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dpgb_dask.calls import spoken_init
from dpgb_dask.display import exact
from dpgb_dask.errors import SchemaError, did_you_mean, listed, short
from dpgb_dask.frozen import settle
from dpgb_dask.scalars import python_scalar, whole_number
from dpgb_dask.values import (
    ISO_DATE,
    NO_FORM,
    as_text,
    cell,
    cells,
    form_text,
    is_declaration,
    is_missing,
    is_real,
    listed_values,
)

MAX_CATEGORIES = 250  # codes are uint8; "other" and "missing" take two more
PARTS = ("days", "year", "month", "weekday", "hour")
USUAL_PARTS = ("days", "month", "weekday")


@spoken_init
@dataclass(frozen=True, slots=True)
class Numeric:
    """A numeric feature with public bounds.

    Parameters
    ----------
    low, high : float
        Public bounds; values outside are clipped in silence.
    integer : bool
        Whether every value is a whole number.
    missing : bool
        Whether missing values are expected. They are always allowed: every feature has a missing bin.
    """

    low: float
    high: float
    integer: bool = False
    missing: bool = False


@spoken_init
@dataclass(frozen=True, slots=True)
class Categorical:
    """A categorical feature with its public list of categories; any other value is "other".

    Parameters
    ----------
    categories : tuple
        1 to 250 texts, numbers or truth values. They are compared by their normal forms: ``"01"`` is 1.
    missing : bool
        Whether missing values are expected. They are always allowed.
    """

    categories: tuple[Any, ...]
    missing: bool = False


@spoken_init
@dataclass(frozen=True, slots=True)
class Bool:
    """A feature that is true or false: True, 1, "true" and "1" are the same; any other value is "other".

    Parameters
    ----------
    missing : bool
        Whether missing values are expected. They are always allowed.
    """

    missing: bool = False


@spoken_init
@dataclass(frozen=True, slots=True)
class Datetime:
    """Dates, or dates with times, between a public first and a public last day.

    Each part is one encoded column, so a feature of three parts costs as much privacy as three features.

    Parameters
    ----------
    first, last : str or datetime.date
        Public bounds: whole days, in ISO form (``"2015-01-01"``). An earlier time counts as the first second of the
        first day, a later one as the last second of the last day.
    parts : sequence of str
        Any of ``days`` (since the first day), ``year``, ``month`` (1–12), ``weekday`` (0 is Monday) and ``hour`` (0–23,
        UTC). The column of a part is named ``feature.part``.
    missing : bool
        Whether missing values are expected.
    """

    first: Any
    last: Any
    parts: tuple[str, ...] = USUAL_PARTS
    missing: bool = False


@spoken_init
@dataclass(frozen=True, slots=True, repr=False)
class Grouped:
    """A categorical feature of many values, which a public mapping takes to at most 250 groups.

    The groups are its categories. A value that the mapping does not name is "other".

    Parameters
    ----------
    mapping : mapping of value to group, or sequence of such pairs
        Values are compared by their normal forms: ``"01067"`` is 1067.
    missing : bool
        Whether missing values are expected.
    """

    mapping: Any
    missing: bool = False

    def __post_init__(self) -> None:
        """Keep the pairs of a mapping, so that a feature is hashable."""
        if isinstance(self.mapping, Mapping):
            settle(self, mapping=tuple(self.mapping.items()))

    def __repr__(self) -> str:
        try:
            said = f"{len(self.mapping)} values in {len(self.groups)} groups"
        except (TypeError, ValueError):  # no pairs, or lists for groups: a schema refuses it
            said = short(self.mapping)
        return f"Grouped({said}, missing={self.missing})"

    @property
    def groups(self) -> tuple[Any, ...]:
        """The groups, in the order in which the mapping first names them."""
        return tuple(dict.fromkeys(group for _, group in self.mapping))


@spoken_init
@dataclass(frozen=True, slots=True)
class Hashed:
    """A categorical feature of unlisted values, which a fixed hash takes to at most 250 buckets (docs/schema.md §4).

    The buckets are its categories: "bucket 0", "bucket 1" and so on. Unrelated values share a bucket.

    Parameters
    ----------
    buckets : int
    missing : bool
        Whether missing values are expected.
    """

    buckets: int
    missing: bool = False


Feature: TypeAlias = Numeric | Categorical | Bool | Datetime | Grouped | Hashed
Encoded: TypeAlias = Numeric | Categorical  # what a column of codes is binned as

TRUTHS = (False, True)  # the categories of `Bool`
# what a class is called in JSON
TYPES: dict[type, str] = {
    Numeric: "numeric",
    Categorical: "categorical",
    Bool: "bool",
    Datetime: "datetime",
    Grouped: "grouped",
    Hashed: "hashed",
}


# ---- as columns ------------------------------------------------------------------------------------------------------


def encoded_as(name: str, feature: Feature) -> dict[str, Encoded]:
    """Return the columns that a feature is encoded as, by name.

    Parts of dates are numbers, not categories: neighbouring months then share what is known of them, a bin may span
    several, and a threshold expresses a split in every runtime.
    """
    match feature:
        case Datetime():
            bounds = part_bounds(feature)
            return {
                f"{name}.{part}": Numeric(*bounds[part], integer=True, missing=feature.missing)
                for part in feature.parts
            }
        case Bool():
            return {name: Categorical(TRUTHS, feature.missing)}
        case Grouped():
            return {name: Categorical(feature.groups, feature.missing)}
        case Hashed():
            labels = tuple(f"bucket {k}" for k in range(feature.buckets))
            return {name: Categorical(labels, feature.missing)}
        case _:
            return {name: feature}


def part_bounds(feature: Datetime) -> dict[str, tuple[int, int]]:
    """Return the least and the largest value of every part that a date may have."""
    first, last = days_of(feature)
    return {
        "days": (0, (last - first).days),
        "year": (first.year, last.year),
        "month": (1, 12),
        "weekday": (0, 6),
        "hour": (0, 23),
    }


def days_of(feature: Datetime) -> tuple[datetime.date, datetime.date]:
    """Return the first and the last day."""
    return datetime.date.fromisoformat(feature.first), datetime.date.fromisoformat(feature.last)


def in_words(feature: Feature) -> str:
    """Return what is declared of a feature in words: every category, but of a mapping only how large it is."""
    match feature:
        case Categorical(categories):
            return (
                f"{len(categories)} declared categories: {list(categories)}; all others are 'other'"
            )
        case Bool():
            return "true or false, all others are 'other'"
        case Datetime(first, last, parts):
            return f"dates from {first} to {last}, read as {', '.join(parts)}"
        case Grouped(mapping):
            return f"{len(mapping)} declared values in {len(feature.groups)} groups; all others are 'other'"
        case Hashed(buckets):
            return f"any values, by a fixed hash in {buckets} buckets"
        case Numeric(low, high, integer):
            return f"{'whole numbers ' if integer else ''}in [{exact(low)}, {exact(high)}]"


# ---- as JSON ---------------------------------------------------------------------------------------------------------


def to_json(feature: Feature) -> dict[str, Any]:
    """Return the JSON form of a feature (docs/schema.md §2)."""
    out = _fields(feature)
    if "from" in out:
        out["from"] = dict(out["from"])
    return {k: list(map(python_scalar, v)) if isinstance(v, tuple) else v for k, v in out.items()}


def _fields(feature: Feature) -> dict[str, Any]:
    """Return the type and the fields of a feature, whose values are as they were given."""
    given = {field: getattr(feature, field) for field in type(feature).__slots__}
    keys = {"mapping": "from"}
    return {"type": TYPES[type(feature)]} | {keys.get(k, k): value for k, value in given.items()}


def feature_of(name: str, spec: Any) -> Feature:
    """Return a feature from one of the classes above, its short form, or its JSON form.

    Raises
    ------
    SchemaError
        If anything of it is missing or contradictory; the message names the feature and the way out.
    """
    given = spec
    spec = _as_mapping(name, spec)
    kind = _type_of(spec)
    if not isinstance(kind, str) or kind not in _KINDS:
        if isinstance(spec, Mapping):
            wrong = "no 'type'" if kind is None else f"type={short(kind)} is unknown"
        else:  # of an array the type alone, as it may be a column of rows
            wrong = f"{_type_in_words(spec)} declares no feature"
        raise SchemaError(
            f"feature {name!r}: {wrong}; expected (low, high), a list of categories, bool, Datetime(first, last),"
            " {'from': mapping}, {'buckets': number}, or in its JSON a 'type' that is one of"
            f" {', '.join(map(repr, _KINDS))}.{did_you_mean(kind, _KINDS)}"
        )
    fields, make = _KINDS[kind]
    _refuse_other_kind(name, kind, spec)
    refuse_unknown(spec, {"type", "missing", *fields}, f"feature {name!r}")
    made = make(name, spec, _truth(name, spec, "missing"))
    if isinstance(given, list) and _may_be_bounds(given):
        both = short([*map(python_scalar, given)])
        raise SchemaError(
            f"feature {name!r}: a list of two numbers or days may be bounds or categories. Say which, as in {{'type':"
            f" 'categorical', 'categories': {both}}}, {{'type': 'numeric', 'low': …, 'high': …}} or {{'type':"
            " 'datetime', 'first': …, 'last': …}; in Python, Categorical, Numeric or Datetime."
        )
    return made


def _as_mapping(name: str, spec: Any) -> Any:
    """Return the JSON form of a feature that is given as a class or in a short form."""
    if isinstance(spec, tuple):
        if len(spec) != 2:
            raise SchemaError(
                f"feature {name!r} has no bounds: a tuple is (low, high), from public knowledge. Categories go in a"
                " list."
            )
        return {"type": "numeric", "low": spec[0], "high": spec[1]}
    if isinstance(spec, range) or isinstance(listed_values(spec), list):
        return {"type": "categorical", "categories": spec}
    if spec is bool or spec is np.bool_:
        return {"type": "bool"}
    return _fields(spec) if type(spec) in TYPES else spec


def _may_be_bounds(given: list[Any]) -> bool:
    """Return whether a list may have been meant as bounds: of two days, or two numbers, not one apart as codes are."""
    if len(given) != 2:
        return False
    a, b = map(python_scalar, given)
    if isinstance(a, str) or isinstance(b, str):  # numbers in quotes are codes
        return all(isinstance(value, str) and ISO_DATE.fullmatch(value) for value in (a, b))
    return None not in (finite(a), finite(b)) and abs(a - b) != 1


def _type_in_words(given: Any) -> str:
    """Return what type a value is of, and what type of values an array holds."""
    if isinstance(given, type):
        return f"the type {given.__name__!r}"
    dtype = getattr(given, "dtype", None)
    return f"a value of type {type(given).__name__!r}" + ("" if dtype is None else f" of {dtype}")


def _refuse_other_kind(name: str, kind: str, spec: Mapping[str, Any]) -> None:
    """Raise if a feature has the key of a mapping or a hash, and says that it is of another type."""
    for key, meant in (("from", "grouped"), ("buckets", "hashed")):
        if key in spec and kind != meant:
            raise SchemaError(
                f"feature {name!r}: type={kind!r} has no {key!r}. Say 'type': {meant!r}, or leave {key!r} out."
            )


def _type_of(spec: Any) -> Any:
    """Return the type that a JSON form states, or that its only other key implies; None if there is none."""
    if not isinstance(spec, Mapping):
        return None
    if "type" in spec:
        return spec["type"]
    return "grouped" if "from" in spec else "hashed" if "buckets" in spec else None


def _numeric(name: str, spec: Mapping[str, Any], missing: bool) -> Numeric:
    integer = _truth(name, spec, "integer")
    if any(isinstance(spec.get(side), str) and spec[side] == "private" for side in ("low", "high")):
        raise SchemaError(
            f"feature {name!r}: private bounds are not available yet. Give public numbers."
        )
    low, high = finite(spec.get("low")), finite(spec.get("high"))
    if low is None or high is None:
        refuse_quoted(f"feature {name!r}", spec)
        if spec.get("low") is not None and spec.get("high") is not None:
            raise SchemaError(
                f"feature {name!r}: bounds must be two finite numbers; of dates, give Datetime(first, last), and of"
                " categories, a list."
            )
        raise SchemaError(
            f"feature {name!r} has no bounds. Give (low, high) from public knowledge, not from the data."
        )
    if low > high:
        raise SchemaError(
            f"feature {name!r}: low={exact(low)} is above high={exact(high)}. Swap them."
        )
    if not math.isfinite(high - low):
        raise SchemaError(f"feature {name!r}: high - low overflows a float. Give narrower bounds.")
    return Numeric(low, high, integer, missing)


def _categorical(name: str, spec: Mapping[str, Any], missing: bool) -> Categorical:
    given = spec.get("categories")
    values = listed_values(given)
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise SchemaError(
            f"feature {name!r}: categories={short(given)} must be a list, such as ['office', 'field']."
        )
    if len(values) > MAX_CATEGORIES:
        told = f"{len(values)} categories, " if is_declaration(given) else "categories, "
        raise SchemaError(
            f"feature {name!r} has {told}more than {MAX_CATEGORIES}: codes are stored as uint8. Leave out the rarest,"
            " which then count as 'other'; or take all to fewer groups, by a mapping, {'type': 'grouped', 'from':"
            " {category: group}}, or by a hash, {'type': 'hashed', 'buckets': 100}."
        )
    check_labels(f"categories of feature {name!r}", given, values)
    return Categorical(tuple(values), missing)


def check_labels(where: str, given: Any, values: Sequence[Any]) -> None:
    """Raise as `refuse_meeting` does; of an array, without a value of it."""
    try:
        return refuse_meeting(where, values)
    except SchemaError:
        if is_declaration(given):
            raise
    raise SchemaError(
        f"{where}: {_type_in_words(given)} holds a value that is missing, is there twice, or is read as another one. If"
        " it is a column of rows, declare the values from public knowledge; else give them in a list, each once."
    )


def _bool(_name: str, _spec: Mapping[str, Any], missing: bool) -> Bool:
    return Bool(missing)


def _datetime(name: str, spec: Mapping[str, Any], missing: bool) -> Datetime:
    first, last = (_day(name, side, spec.get(side)) for side in ("first", "last"))
    if first > last:
        raise SchemaError(f"feature {name!r}: first={first} is after last={last}. Swap them.")
    parts = spec.get("parts", USUAL_PARTS)
    listed = isinstance(parts, Sequence) and not isinstance(parts, str) and len(parts) > 0
    if not listed or any(not isinstance(part, str) or part not in PARTS for part in parts):
        raise SchemaError(
            f"feature {name!r}: parts={short(parts)} must be a list of some of {', '.join(PARTS)}."
        )
    if len(set(parts)) < len(parts):
        raise SchemaError(f"feature {name!r}: parts={short(parts)} names a part twice.")
    return Datetime(first.isoformat(), last.isoformat(), tuple(map(str, parts)), missing)


def _day(name: str, side: str, given: Any) -> datetime.date:
    if given is None:
        raise SchemaError(
            f"feature {name!r} has no {side} day. Give first and last, such as '2015-01-01', from public knowledge, not"
            " from the data."
        )
    dated = isinstance(given, datetime.date | np.datetime64)
    text = str(given).replace(" ", "T") if dated else given
    try:
        # a time of day is refused, as bounds are whole days; midnight is what pandas and NumPy make of a day
        day, _, time = text.partition("T")
        if len(day) == len("2015-01-01") and not time.strip("0:."):
            return datetime.date.fromisoformat(day)
    except (AttributeError, TypeError, ValueError):
        pass
    raise SchemaError(
        f"feature {name!r}: {side}={short(given)} must be a day in the form '2015-01-01'."
    )


def _grouped(name: str, spec: Mapping[str, Any], missing: bool) -> Grouped:
    given = spec.get("from")
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    paired = isinstance(pairs, Sequence) and all(
        isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        for pair in pairs
    )
    if not paired or not pairs:
        raise SchemaError(
            f"feature {name!r}: 'from' must map each value to its group, as in {{'10115': 'Berlin'}}."
        )
    mapping = tuple((_key(name, value), _group(name, group)) for value, group in pairs)
    out = Grouped(mapping, missing)
    if len(out.groups) > MAX_CATEGORIES:
        raise SchemaError(
            f"feature {name!r}: the mapping has {len(out.groups)} groups, more than {MAX_CATEGORIES}: codes are stored"
            " as uint8. Map to fewer."
        )
    refuse_meeting(f"groups of feature {name!r}", out.groups)
    refuse_meeting(f"values that feature {name!r} maps", [value for value, _ in mapping])
    return out


def _key(name: str, value: Any) -> str:
    """Return a mapped value as text, as JSON's keys are; its normal form stays the same."""
    text = as_text(value)
    if text is None and is_real(value) and not is_missing(value):
        refuse_meeting(f"values that feature {name!r} maps", [value])
        form = cell(value)
        text = None if not isinstance(form, float) else form_text(form)
    if text is None:
        raise SchemaError(
            f"feature {name!r}: {short(value)} cannot be mapped: values are text, numbers or booleans, and a missing"
            " value has a bin of its own."
        )
    return text


def _group(name: str, group: Any) -> Any:
    own = python_scalar(group)
    if isinstance(own, str | int | float) and not is_missing(own):
        return own
    raise SchemaError(
        f"feature {name!r}: {short(group)} is no name of a group: give text, a number or a boolean."
    )


def _hashed(name: str, spec: Mapping[str, Any], missing: bool) -> Hashed:
    buckets = whole_number(spec.get("buckets"))
    if buckets is None or not 2 <= buckets <= MAX_CATEGORIES:
        raise SchemaError(
            f"feature {name!r}: buckets={short(spec.get('buckets'))} must be a whole number in [2, {MAX_CATEGORIES}]."
        )
    return Hashed(buckets, missing)


_Make: TypeAlias = Callable[[str, Mapping[str, Any], bool], Feature]

# by type: its keys besides "type" and "missing", and what makes it
_KINDS: dict[str, tuple[tuple[str, ...], _Make]] = {
    "numeric": (("low", "high", "integer"), _numeric),
    "categorical": (("categories",), _categorical),
    "bool": ((), _bool),
    "datetime": (("first", "last", "parts"), _datetime),
    "grouped": (("from",), _grouped),
    "hashed": (("buckets",), _hashed),
}


def _truth(name: str, spec: Mapping[str, Any], field: str) -> bool:
    value = spec.get(field, False)
    if not isinstance(value, bool | np.bool_):
        raise SchemaError(f"feature {name!r}: {field}={short(value)} must be true or false.")
    return bool(value)


# ---- checks that the schema shares -----------------------------------------------------------------------------------


def finite(value: Any) -> float | None:
    """Return a finite float, -0.0 as 0.0, or None for anything else (booleans and text included)."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError, TypeError):  # 10**400, a signalling NaN, an array
        return None
    return number + 0.0 if math.isfinite(number) else None


def refuse_quoted(where: str, spec: Mapping[str, Any]) -> None:
    """Raise if a bound is a text that spells a finite number: in a JSON file, it is in quotes."""
    for side in ("low", "high"):
        given = spec.get(side)
        number = cell(given) if isinstance(given, str) else None
        if isinstance(number, float) and math.isfinite(number):
            bound = int(number) if number.is_integer() else number
            raise SchemaError(
                f"{where}: {side}={short(given)} is text, not a number. Drop the quotes: {side} is {bound}."
            )


def refuse_unknown(given: Mapping[str, Any], known: set[str], where: str) -> None:
    """Raise on unknown keys, because a misspelt key would otherwise be ignored."""
    if unknown := sorted(str(key) for key in set(given) - known):
        meant = did_you_mean(unknown[0], known)
        raise SchemaError(
            f"{where}: unknown keys {listed(unknown)}. Known: {sorted(known)}.{meant}"
        )


def refuse_meeting(where: str, declared: Sequence[Any]) -> None:
    """Raise if two categories or classes are read as the same value: they could not be told apart in a row.

    What JSON cannot hold is refused as well, as no model file can hold it: NaN and infinite numbers, dates, bytes. A
    text that spells them is a text.
    """
    seen: dict[Any, Any] = {}
    for value, form in zip(declared, cells(declared), strict=True):
        # words for a missing value are compared as text
        known: Any = as_text(value) if form is None else form
        if known is None:
            raise SchemaError(
                f"{where}: {short(value)} stands for a missing value, which has a bin of its own. Leave it out."
            )
        if known is NO_FORM or not isinstance(python_scalar(value), str | int | float):
            raise SchemaError(
                f"{where} must be text, numbers or booleans, not lists or objects; of a date, give its text, such as"
                " '2015-01-31'."
            )
        if isinstance(known, float) and math.isinf(known) and as_text(value) is None:
            raise SchemaError(
                f"{where}: {short(value)} is no finite number, and a model file can hold no other. Give a text, such as"
                f" '{known}', which is read as the same value."
            )
        if known in seen and _is_same_label(seen[known], value):
            raise SchemaError(f"{where}: {short(value)} is there twice. Leave one out.")
        if known in seen:
            raise SchemaError(
                f"{where}: {short(seen[known])} and {short(value)} are read as the same value, as readers make"
                " numbers of text and text of numbers. Declare one of them; codes that differ only so need a mark,"
                " as in 'A007'."
            )
        seen[known] = value


def _is_same_label(one: Any, other: Any) -> bool:
    """Whether two labels are the same value of one type, so that no reader has to confuse them."""
    one, other = python_scalar(one), python_scalar(other)
    return type(one) is type(other) and bool(one == other)
