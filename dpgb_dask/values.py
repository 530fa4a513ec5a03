"""How a value is read: its normal form, which depends on the value alone.

Readers and collections infer the type of a column from all values of the column, file or partition: one "unknown" turns
its numbers into text, one missing value turns integers into floats, and one ``1j`` turns them into complex numbers. So
the type of a value carries no information: `cell` reads 7, 7.0, ``Decimal(7)``, "7" and "007" as the same number, and
numbers, labels, categories and units are all compared by what it returns. Whatever one row holds, every other row is
read as before (docs/design.md §1).
"""

import datetime
import decimal
import math
import numbers as number_types
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# words that pandas' readers take for a missing value
MISSING_WORDS = frozenset((
    "", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "<NA>", "#N/A", "#N/A N/A", "#NA",
    "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN",
))  # fmt: skip
# words that pandas' readers take for booleans, in upper or lower case
TRUTH = {"true": 1.0, "false": 0.0}
MOST_DIGITS = 400  # of a decimal that names a unit: longer ones could fill the memory
# of a number in a text: Python refuses more, and so does pandas outside its CSV reader
FEW_DIGITS = 4000
EXACT = 2.0**53  # whole numbers below this are exact as floats
# of a tuple that is read: one whose tuples hold the same ones again and again would take hours, and fill the memory
MOST_PARTS = 1000  # in all; a text in it counts once more per so many characters:
PART_TEXT = 100
MOST_LEVELS = 8


class ExactId(str):
    """A text or whole number exactly as it stands in a file that this library itself read: nothing has rounded it.

    Whole numbers of 2⁵³ and above name no unit, as readers may have rounded them; as an `ExactId` each of them names a
    unit of its own. Everywhere else an `ExactId` is treated as its text.
    """

    __slots__ = ()


# Types whose equality is exact and agrees with their hash: sets and parsers never confuse two of their values. Values
# of other types are never compared with each other, as the __eq__ of a foreign type may return anything.
PLAIN = frozenset({str, ExactId, bytes, int, float, bool, type(None)})
TEXTS = (str, ExactId, bytes)  # the same text has the same hash in all three
BYTES = (bytearray, memoryview)  # as which the readers of some databases give them: `plain_bytes`
UNREADABLE = object()  # stands for a value that raises when it is read from its column


class _NoForm:
    """The normal form of values that have none: it is not missing, and it differs from every other form."""

    def __repr__(self) -> str:
        return "<no form>"


NO_FORM = _NoForm()
Cell: TypeAlias = float | str | _NoForm | None

ISO_DATE = re.compile(
    r"\d{4}-\d\d-\d\d([ T]\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?)?(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII
)
ISO_TIME = re.compile(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
INTERVAL_END = r"[+-]?[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?"  # a number, as pandas writes it
INTERVAL = re.compile(rf"([\[(])({INTERVAL_END}|-inf), ({INTERVAL_END}|inf)([\])])")
# no pattern may read a long text in two ways: it would try all of them, in the square of its length (++ and *+ never
# give back what they took)
LONG_NUMBER = re.compile(r"\s*+[+-]?(\d++\.?\d*+|\.\d++)([eE][+-]?\d++)?\s*+", re.ASCII)
BLANKS = " \t\n\v\f\r"  # beside a number they mean nothing
WHOLE = re.compile(r"([+-]?)(\d++)(\.0*+)?", re.ASCII)
# types of arrays whose values can be listed as categories
LISTED = (
    pd.api.types.is_object_dtype,
    pd.api.types.is_string_dtype,
    pd.api.types.is_integer_dtype,
    pd.api.types.is_bool_dtype,
)
# units of NumPy's dates that `pd.Timestamp` holds exactly
UNITS_OF_TIME = frozenset({"Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"})
# types that have a value for "missing", which is not equal to itself
SELF_COMPARED = (number_types.Number, np.datetime64, np.timedelta64)


# ---- one value -------------------------------------------------------------------------------------------------------


def cell(value: Any) -> Cell:
    """Return the normal form of a value: missing (None), a number, or a text. Never raises.

    - Missing: None, NaN of any type, NA, NaT, and the words of `MISSING_WORDS`.
    - A number: booleans and true/false (1 and 0), every real number, and text or bytes that pandas' CSV reader would
      read as one.
    - A text: any other text. Dates, times, UUIDs and tuples are written as texts, different ones differently. A text in
      ISO form is the same as that date, as some readers convert a column of text to dates if all of it can be read so;
      and "(0.0, 10.0]" is "(0, 10]", as pandas makes floats of the ends of all intervals of a column for one of them.
    - `NO_FORM`: anything else, such as a list, or a tuple beyond `MOST_PARTS` or `MOST_LEVELS`.
    """
    return cells([value])[0]


def cells(values: Sequence[Any]) -> list[Cell]:
    """Return the normal form (`cell`) of each value, independently of all others."""
    texts = [as_text(value) for value in values]
    spelled = spelled_numbers(texts)
    return [
        _object_cell(value) if text is None else _text_cell(text, number)
        for value, text, number in zip(values, texts, spelled.tolist(), strict=True)
    ]


def is_a(value: Any, kind: Any) -> bool:
    """Whether a value's own type is a kind, or derived from it, whatever its ``__class__`` says, or raises."""
    return issubclass(type(value), kind)


def as_text(value: Any) -> str | None:
    """Return text and bytes (UTF-8) as text without trailing NUL characters, and None for any other value."""
    if type(value) in BYTES:
        value = plain_bytes(value)
    if is_a(value, bytes):
        value = bytes.decode(value, "utf-8", "surrogateescape")
    if not is_a(value, str):
        return None
    text = str.__str__(value)  # a plain str: a subclass may redefine how it is compared
    # NumPy's text of fixed width drops trailing NULs
    return text.rstrip("\x00") if text.endswith("\x00") else text


def plain_bytes(value: bytearray | memoryview) -> bytes | None:
    """Return the bytes of a value of `BYTES`; None of a view of anything else."""
    try:
        view = memoryview(value)
        return bytes(view) if view.format == "B" else None
    except Exception:  # a view that was released
        return None


def _text_cell(text: str, number: float) -> Cell:
    if text in MISSING_WORDS:
        return None
    if number == number:  # noqa: PLR0124 - no NaN
        return number
    return _bare_text(text)


def _bare_text(text: str) -> str:
    """Return the normal form of a text that is not a number."""
    if text[:1] in ("(", "["):
        return _interval_text(text)
    if not "0" <= text[:1] <= "9":
        return text
    try:
        if ISO_DATE.fullmatch(text):
            return _date_text(pd.Timestamp(text))
        if ISO_TIME.fullmatch(text):
            return _time_text(datetime.time.fromisoformat(text))
    except Exception:  # not a date, such as the 30th of February: stays a text
        pass
    return text


def _interval_text(text: str) -> str:
    """Return a text in which the ends of an interval, if it is one, are named as numbers are."""
    found = INTERVAL.fullmatch(text)
    if found is None:
        return text
    left, right = (form_text(float(end)) for end in found.group(2, 3))
    return f"{found[1]}{left}, {right}{found[4]}"


def _object_cell(value: Any) -> Cell:
    try:
        if is_missing(value):
            return None
        if is_real(value) or isinstance(value, complex | np.complexfloating):
            number = one_number(value)
            return None if np.isnan(number) else number
        return next((write(value) for kind, write in WRITERS if isinstance(value, kind)), NO_FORM)
    except Exception:  # never raises: any operation on a foreign object may fail
        return NO_FORM


def _tuple_text(value: tuple[Any, ...]) -> Cell:
    """Return a tuple as text, made of the names of its parts; `NO_FORM` if it is too large, or if one has no name."""
    parts: list[Any] = []
    if _gathered(value, MOST_LEVELS, MOST_PARTS, parts) < 0:
        return NO_FORM
    names = [name for name in unit_names(parts) if name is not None]
    return _joined(value, iter(names)) if len(names) == len(parts) else NO_FORM


def _gathered(value: tuple[Any, ...], levels: int, room: int, parts: list[Any]) -> int:
    """Append the parts of a tuple, and of those in it; return the room left: below 0 beyond a limit, and no further."""
    room = room - tuple.__len__(value) if levels else -1
    for part in tuple.__iter__(value):  # a subclass may redefine both
        if room < 0:
            break
        if is_a(part, tuple):
            room = _gathered(part, levels - 1, room, parts)
            continue
        parts.append(part)
        room -= parts_of_text(part)
    return room


def parts_of_text(value: Any) -> int:
    """Return how many parts more a text, or bytes, counts for its length; 0 of anything else."""
    if is_a(value, str):  # a subclass may redefine its length
        return str.__len__(value) // PART_TEXT
    if is_a(value, bytes):
        return bytes.__len__(value) // PART_TEXT
    return 0


def _joined(value: tuple[Any, ...], names: Iterator[str]) -> str:
    texts = (
        _joined(part, names) if is_a(part, tuple) else next(names) for part in tuple.__iter__(value)
    )
    return "\x00t" + "".join(f"{len(text)}:{text}" for text in texts)


def _date_text(value: Any) -> str:
    stamp = pd.Timestamp(value)
    if stamp.tzinfo is not None:
        stamp = stamp.tz_convert("UTC").tz_localize(None)
    return f"\x00d{stamp.isoformat()}"


def _numpy_date(value: Any) -> Cell:
    # of some units at once, older versions of pandas make a time
    unit, count = np.datetime_data(value.dtype)
    return _date_text(value) if unit in UNITS_OF_TIME and count == 1 else NO_FORM


def _time_text(value: datetime.time) -> str:
    return f"\x00c{value.isoformat()}"


def _written_cell(value: Any) -> Cell:
    """Return the normal form of a value's text: some readers convert a whole column to text."""
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
    """Whether a value is None, NA, NaT or a number's NaN; False if comparing it fails.

    Nothing else is compared with itself: what holds itself many times over (a data class, a record of NumPy) may
    compare every path to its parts, for hours.
    """
    try:
        if value is None or value is pd.NA or value is pd.NaT:
            return True
        return isinstance(value, SELF_COMPARED) and bool(value != value)  # noqa: PLR0124
    except Exception:
        return False


def is_real(value: Any) -> bool:
    """Whether a value is a real number of Python, NumPy or `decimal`; a time span is not."""
    real = isinstance(value, number_types.Real | decimal.Decimal | np.bool_)
    return real and not isinstance(value, np.timedelta64)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def read_numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    """Return the number of each value, NaN if its normal form is not a number."""
    types = set(map(type, values))
    if types <= {int, float, bool, type(None)}:
        try:
            return np.array(values, np.float64)
        except OverflowError:
            pass  # an integer beyond the range of floats: read values one by one, by the same rules
    texts = values if types <= {str, ExactId, type(None)} else [as_text(v) for v in values]
    out = spelled_numbers(texts)
    if texts is not values:
        for k, (value, text) in enumerate(zip(values, texts, strict=True)):
            if text is None and value is not None:
                out[k] = one_number(value)
    return out


def one_number(value: Any) -> float:
    """Return the number of a value that is not text, NaN if it is not a number."""
    try:
        if isinstance(value, complex | np.complexfloating):
            # a real number becomes complex if its column holds a complex number
            value = value.real if value.imag == 0 else np.nan
        return float(value) if is_real(value) else np.nan
    except OverflowError:  # an integer beyond the range of floats
        return np.inf if value > 0 else -np.inf
    except Exception:  # never raises: a foreign object may fail when it is converted to a number
        return np.nan


def spelled_numbers(texts: Sequence[str | None]) -> NDArray[np.float64]:
    """Return the number that each text spells, NaN if it spells none or is None.

    Notes
    -----
    ``pd.to_numeric`` uses the parser of pandas' CSV reader for columns of floats. The two agree in every bit, also on
    blanks, signs (see below), "1e3" and "inf", and both refuse "1_000" and "0x10". From pandas 3.1 on, all of its
    parsers round correctly, but for a plus sign with blanks beside the number; so columns of whole numbers, of floats
    (also Arrow's) and of text agree. The parsers of older versions may differ from each other in the last bit, but only
    for numbers of more than 15 digits, which no sensible label, category or unit has; declared values are read by the
    same parser.
    """
    out = _to_numbers(texts)
    # From 3.1 on, pandas' CSV reader drops a plus sign that nothing precedes and no blank follows, and rounds
    # correctly; `pd.to_numeric` keeps it, and rounds numbers of more than 15 digits otherwise.
    plus = [k for k, text in enumerate(texts) if text and text[0] == "+" and text[-1] not in BLANKS]
    if plus:
        signed, unsigned = out[plus], _to_numbers([str(texts[k])[1:] for k in plus])
        out[plus] = np.where(np.isnan(signed) | np.isnan(unsigned), signed, unsigned)
    for k in np.flatnonzero(np.isnan(out)).tolist():
        text = texts[k]
        if text:
            if text[-1] == "\x00" and (bare := as_text(text)):
                out[k] = spelled_numbers([bare])[0]
            elif len(text) <= 5 and text.lower() in TRUTH:
                out[k] = TRUTH[text.lower()]
            elif LONG_NUMBER.fullmatch(text):
                number = float(text)
                if len(text) > FEW_DIGITS or math.isinf(number):  # which older versions refuse
                    out[k] = number
    return out


def _to_numbers(texts: Sequence[str | None]) -> NDArray[np.float64]:
    read = np.empty(len(texts) + 1, object)
    read[:-1] = texts
    read[-1] = "0.5"  # makes the result floats, whatever the other values are
    try:
        return np.array(pd.to_numeric(read, errors="coerce"), np.float64)[:-1]
    except Exception:  # such as for a lone surrogate: then read texts one by one
        return np.array([_spelled_number(text) for text in texts], np.float64)


def _spelled_number(text: str | None) -> float:
    try:
        return float(pd.to_numeric(np.array([text], object), errors="coerce")[0])
    except Exception:
        return np.nan


# ---- units -----------------------------------------------------------------------------------------------------------


def unit_names(values: Sequence[Any]) -> list[str | None]:
    """Return the name of the unit that each value stands for, None if for none; ``ExactId(name)`` has the same name.

    Numbers of 2⁵³ and above, and text that spells them, name no unit, as a missing value elsewhere in the column makes
    readers round them to floats. As an `ExactId` they name one.
    """
    return [_name(value, form) for value, form in zip(values, cells(values), strict=True)]


def _name(value: Any, form: Cell) -> str | None:
    if isinstance(form, float):
        return number_name(form) or (_exact_name(value) if isinstance(value, ExactId) else None)
    return _writable(form) if isinstance(form, str) else None


def _writable(text: str) -> str:
    """Return a text that can be written to files; a text with a lone surrogate is written as its bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"\x00x{text.encode('utf-8', 'surrogatepass').hex()}"
    return text


def number_name(number: float) -> str | None:
    """Return the name of the unit that a number stands for, None if for none."""
    if not abs(number) < EXACT:
        return None
    return str(int(number)) if number.is_integer() else repr(number)


def form_text(form: float | str) -> str:
    """Return a normal form as text, different ones differently: a whole number as its digits, "7"; a text as it is."""
    return form if isinstance(form, str) else number_name(form) or repr(form)


def _exact_name(text: str) -> str:
    """Return the name of a huge number in a text: its sign and digits if it is a whole number, else the text."""
    whole = WHOLE.fullmatch(text.strip())
    return f"{whole[1].replace('+', '')}{whole[2].lstrip('0')}" if whole else str(text)


def exact_id(value: Any) -> Any:
    """Return an id as the readers of this library do: text or a whole number as `ExactId`. Never raises."""
    if is_missing(value):
        return None
    if (text := as_text(value)) is not None:
        return ExactId(text)
    try:
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)
        if isinstance(value, decimal.Decimal):
            whole = value.adjusted() < MOST_DIGITS and value == int(value)
        return ExactId(int(value)) if whole else value
    except Exception:  # never raises: more digits than Python can write, or a signalling NaN
        return value


# ---- lists of values -------------------------------------------------------------------------------------------------


def listed_values(given: Any) -> Any:
    """Return a list of the categories of a categorical type, or of the texts, whole numbers or truths of an array.

    Anything else is returned as it is. Two numbers in an array may be bounds as well, and a series, or a column of a
    categorical type, is more likely to be one of rows: its ``dtype`` lists categories.
    """
    if isinstance(given, pd.CategoricalDtype) and given.categories is not None:
        return given.categories.tolist()
    arrays = np.ndarray | pd.Index | pd.api.extensions.ExtensionArray
    if not isinstance(given, arrays) or given.ndim != 1:
        return given
    column = isinstance(given.dtype, pd.CategoricalDtype)
    pair = len(given) == 2 and pd.api.types.is_integer_dtype(given)
    if column or pair or not any(is_of(given) for is_of in LISTED):
        return given
    return given.tolist()


def is_declaration(given: Any) -> bool:
    """Whether values were written down to declare them; an array may be a column of rows, of which none is told."""
    return isinstance(given, list | tuple | range | pd.CategoricalDtype)


def is_plain(values: Iterable[Any]) -> bool:
    """Whether all values have exactly a type in `PLAIN`, and at most one of these types is in `TEXTS`."""
    types = set(map(type, values))
    return types <= PLAIN and sum(kind in types for kind in TEXTS) <= 1
