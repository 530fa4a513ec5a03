"""How a value is read: its normal form, which depends on the value alone.

Readers and collections infer types from all values of a column, file or partition: one "unknown" makes text of the
numbers beside it, one missing value makes floats of whole numbers, one ``1j`` makes them complex. So the type that a
value arrives in says nothing: `cell` reads 7, 7.0, ``Decimal(7)``, "7" and "007" as one number, and numbers, labels,
categories and units all compare what it returns. Whatever one row holds, every other row is read as before
(docs/design.md §1).
"""

import datetime
import decimal
import numbers as number_types
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# what pandas' readers take for missing
MISSING_WORDS = frozenset((
    "", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "<NA>", "#N/A", "#N/A N/A", "#NA",
    "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN",
))  # fmt: skip
# what pandas' readers take for booleans, in any case of the letters
TRUTH = {"true": 1.0, "false": 0.0}
MOST_DIGITS = 400  # of a decimal that is a unit: more could fill the memory
FEW_DIGITS = (
    4000  # of a number in a text: Python, and so pandas outside its CSV reader, refuses more
)
EXACT = 2.0**53  # whole numbers below are exact as floats


class ExactId(str):
    """A text or whole number as it stands in a file that this library read itself, so that nothing has rounded it.

    As a unit it keeps what other text of numbers has not: of 2⁵³ and above, too, each is another unit. Everywhere else
    it is its text.
    """

    __slots__ = ()


# Types whose equality is exact and agrees with their hash: a set or a parser of such values can confuse no two of them.
# Values of any other type never meet each other, as a foreign __eq__ may claim anything.
PLAIN = frozenset({str, ExactId, bytes, int, float, bool, type(None)})
TEXTS = (str, ExactId, bytes)  # hashes of the three meet
UNREADABLE = object()  # stands for a value that fails when it is read from its column


class _NoForm:
    """The normal form of what has none: no missing value, and equal to no other."""

    def __repr__(self) -> str:
        return "<no form>"


NO_FORM = _NoForm()
Cell: TypeAlias = float | str | _NoForm | None

ISO_DATE = re.compile(
    r"\d{4}-\d\d-\d\d([ T]\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?)?(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII
)
ISO_TIME = re.compile(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
LONG_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
WHOLE = re.compile(r"([+-]?)0*(\d+)(\.0*)?", re.ASCII)
UNITS_OF_TIME = frozenset(
    {"Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"}
)  # dates that `pd.Timestamp` holds exactly


# ---- one value -------------------------------------------------------------------------------------------------------


def cell(value: Any) -> Cell:
    """Return the normal form of a value: missing (None), a number, or a text. Never raises.

    - Missing: None, NaN of any type, NA, NaT, and the words of `MISSING_WORDS`.
    - A number: booleans and true/false (1 and 0), every real number, and text or bytes that spell one as pandas' CSV
      reader reads a field.
    - A text: any other. Dates, times, UUIDs and tuples have texts of their own, which tell each from every other; a
      text in ISO form is that date, as some readers make dates of text where all of a column can be read so.
    - `NO_FORM`: anything else, such as a list.
    """
    return cells([value])[0]


def cells(values: Sequence[Any]) -> list[Cell]:
    """Return the normal form of each value, as `cell` does: none depends on another."""
    texts = [as_text(value) for value in values]
    spelled = spelled_numbers(texts)
    return [
        _object_cell(value) if text is None else _text_cell(text, number)
        for value, text, number in zip(values, texts, spelled.tolist(), strict=True)
    ]


def as_text(value: Any) -> str | None:
    """Return text and bytes (UTF-8) as text, without zeros at its end; anything else as None."""
    if isinstance(value, bytes):
        value = bytes.decode(value, "utf-8", "surrogateescape")
    if not isinstance(value, str):
        return None
    text = str.__str__(value)  # a subclass may do anything where it is compared
    # NumPy's text of fixed width drops zeros at its end
    return text.rstrip("\x00") if text.endswith("\x00") else text


def _text_cell(text: str, number: float) -> Cell:
    if text in MISSING_WORDS:
        return None
    if number == number:  # noqa: PLR0124 - no NaN
        return number
    return _bare_text(text)


def _bare_text(text: str) -> str:
    """Return the normal form of a text that is no number."""
    if not "0" <= text[:1] <= "9":
        return text
    try:
        if ISO_DATE.fullmatch(text):
            return _date_text(pd.Timestamp(text))
        if ISO_TIME.fullmatch(text):
            return _time_text(datetime.time.fromisoformat(text))
    except Exception:  # the 30th of February is a text
        pass
    return text


def _object_cell(value: Any) -> Cell:
    try:
        if is_missing(value):
            return None
        if is_real(value) or isinstance(value, complex | np.complexfloating):
            number = one_number(value)
            return None if np.isnan(number) else number
        return next((write(value) for kind, write in WRITERS if isinstance(value, kind)), NO_FORM)
    except Exception:  # a total map: an object may fail in its own way, whatever is done with it
        return NO_FORM


def _tuple_text(values: tuple[Any, ...]) -> Cell:
    names = [unit_name(value) for value in values]
    if any(name is None for name in names):
        return NO_FORM
    return "\x00t" + "".join(f"{len(str(name))}:{name}" for name in names)


def _date_text(value: Any) -> str:
    stamp = pd.Timestamp(value)
    if stamp.tzinfo is not None:
        stamp = stamp.tz_convert("UTC").tz_localize(None)
    return f"\x00d{stamp.isoformat()}"


def _numpy_date(value: Any) -> Cell:
    return _date_text(value) if np.datetime_data(value.dtype)[0] in UNITS_OF_TIME else NO_FORM


def _time_text(value: datetime.time) -> str:
    return f"\x00c{value.isoformat()}"


def _written_cell(value: Any) -> Cell:
    """Return the normal form of the text that a value is written as: some readers make text of all of a column."""
    return cell(str(value))


def _span_cell(value: Any) -> Cell:
    return _written_cell(pd.Timedelta(value))


WRITERS: tuple[tuple[Any, Callable[[Any], Cell]], ...] = (
    (uuid.UUID, str),
    (tuple, _tuple_text),
    (np.datetime64, _numpy_date),
    (datetime.date, _date_text),
    ((datetime.timedelta, np.timedelta64), _span_cell),
    ((pd.Period, pd.Interval), _written_cell),
    (datetime.time, _time_text),
)


def is_missing(value: Any) -> bool:
    """Whether a value is None, NA, NaT or a NaN of any type; False if it cannot be told."""
    try:
        return value is None or value is pd.NA or bool(value != value)  # noqa: PLR0124
    except Exception:
        return False


def is_real(value: Any) -> bool:
    """Whether a value is a real number of Python, NumPy or `decimal`; a time span is not."""
    real = isinstance(value, number_types.Real | decimal.Decimal | np.bool_)
    return real and not isinstance(value, np.timedelta64)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def read_numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    """Return each value's number, NaN where its normal form is none."""
    types = set(map(type, values))
    if types <= {int, float, bool, type(None)}:
        try:
            return np.array(values, np.float64)
        except OverflowError:
            pass  # a whole number beyond every float: read one by one, by the same rules
    texts = values if types <= {str, ExactId, type(None)} else [as_text(v) for v in values]
    out = spelled_numbers(texts)
    if texts is not values:
        for k, (value, text) in enumerate(zip(values, texts, strict=True)):
            if text is None and value is not None:
                out[k] = one_number(value)
    return out


def one_number(value: Any) -> float:
    """Return the number of a value that is no text, NaN if it is none."""
    try:
        if isinstance(value, complex | np.complexfloating):
            # one complex number in a column makes all of them complex
            value = value.real if value.imag == 0 else np.nan
        return float(value) if is_real(value) else np.nan
    except OverflowError:  # an integer beyond every float: the bound
        return np.inf if value > 0 else -np.inf
    except Exception:  # a total map: an object may fail in its own way when it is read as a number
        return np.nan


def spelled_numbers(texts: Sequence[str | None]) -> NDArray[np.float64]:
    """Return the number that each text spells, NaN where it spells none, or there is no text.

    Notes
    -----
    ``pd.to_numeric`` reads a text by the same parser as pandas' CSV reader reads a field of a column of floats: they
    agree in every bit, also in blanks, signs, "1e3" and "inf", and in refusing "1_000" and "0x10". From pandas 3.1 on
    all of its parsers round correctly, so that columns of whole numbers, of floats (also Arrow's) and of text agree.
    Older ones may differ in the last bit between them, and only of more than 15 digits, which no sensible label,
    category or unit has: the declared ones are read by the same parser.
    """
    read = np.empty(len(texts) + 1, object)
    read[:-1] = texts
    read[-1] = "0.5"  # the result is floats, whatever the others are
    try:
        out = np.array(pd.to_numeric(read, errors="coerce"), np.float64)[:-1]
    except Exception:  # such as a lone surrogate: the others are read all the same
        out = np.array([_spelled_number(text) for text in texts], np.float64)
    for k in np.flatnonzero(np.isnan(out)).tolist():
        text = texts[k]
        if text:
            if text[-1] == "\x00" and (bare := as_text(text)):
                out[k] = spelled_numbers([bare])[0]
            elif len(text) <= 5:
                out[k] = TRUTH.get(text.lower(), np.nan)
            elif len(text) > FEW_DIGITS and LONG_NUMBER.fullmatch(text):
                out[k] = float(text)
    return out


def _spelled_number(text: str | None) -> float:
    try:
        return float(pd.to_numeric(np.array([text], object), errors="coerce")[0])
    except Exception:
        return np.nan


# ---- units -----------------------------------------------------------------------------------------------------------


def unit_name(value: Any) -> str | None:
    """Return the name of the unit that a value is, None if it is none; ``ExactId(name)`` has the same name.

    Numbers of 2⁵³ and above, and text that spells them, name no unit: a missing value elsewhere rounds them to floats.
    As an `ExactId` they do.
    """
    return unit_names([value])[0]


def unit_names(values: Sequence[Any]) -> list[str | None]:
    """Return the name of each value's unit."""
    return [_name(value, form) for value, form in zip(values, cells(values), strict=True)]


def _name(value: Any, form: Cell) -> str | None:
    if isinstance(form, float):
        return number_name(form) or (_exact_name(value) if isinstance(value, ExactId) else None)
    return _writable(form) if isinstance(form, str) else None


def _writable(text: str) -> str:
    """Return a text that files take; any other, which holds a lone surrogate, by its bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"\x00x{text.encode('utf-8', 'surrogatepass').hex()}"
    return text


def number_name(number: float) -> str | None:
    """Return the name of the unit that is a number, None if it is none."""
    if not abs(number) < EXACT:
        return None
    return str(int(number)) if number.is_integer() else repr(number)


def _exact_name(text: str) -> str:
    """Return the name of a huge number in a text: its digits, if it is a whole one."""
    whole = WHOLE.fullmatch(text.strip())
    return f"{whole[1].replace('+', '')}{whole[2]}" if whole else str(text)


def exact_ids(column: pd.Series) -> pd.Series:
    """Return ids as a reader of this library hands them on: text and whole numbers as `ExactId`, nothing rounded.

    Parameters
    ----------
    column : (n,) Series
        As it stands in the file: text, or integers of a type of the file's own. Of types that a reader inferred, what
        is lost is lost.

    Returns
    -------
    (n,) Series of objects

    Privacy
    -------
    Private side. Each id depends on its own value alone.
    """
    out = np.empty(len(column), object)
    out[:] = [_exact_id(value) for value in column.tolist()]
    return pd.Series(out, index=column.index, name=column.name, dtype=object)


def _exact_id(value: Any) -> Any:
    if is_missing(value):
        return None
    if (text := as_text(value)) is not None:
        return ExactId(text)
    try:
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if isinstance(value, decimal.Decimal):
            whole = value.adjusted() < MOST_DIGITS and value == int(value)
        return ExactId(int(value)) if whole else value
    except Exception:  # a total map: more digits than Python writes, a signalling NaN
        return value


# ---- lists of values -------------------------------------------------------------------------------------------------


def is_plain(values: Iterable[Any]) -> bool:
    """Whether all values are of exactly the types in `PLAIN`, of which one at most is of `TEXTS`."""
    types = set(map(type, values))
    return types <= PLAIN and sum(kind in types for kind in TEXTS) <= 1
