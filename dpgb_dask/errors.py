"""Every exception and warning class of the library.

Only *structure* raises (names, types, shapes, parameters): with a declared schema a *value* never does, because an
error is a release (docs/design.md §1). No message may contain a row's value, a count or a length, nor any text of a
foreign error, which may quote one: `in_our_words` keeps only the type of such an error.
"""

import difflib
import errno
import json
import sys
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MOST_CHARACTERS = 80  # of a wrong value quoted in an error
MOST_NAMES = 10  # listed in an error


class DPGBError(Exception):
    """Base of every error raised by this library."""


class SchemaError(DPGBError, ValueError):
    """The schema is missing, malformed, or does not match the structure of the data."""


class UnsupportedCollectionError(DPGBError, TypeError):
    """The input is a collection that cannot be read (sparse, array query planning, …)."""


class StructureError(DPGBError, ValueError):
    """Inputs do not fit together (columns, number of rows or chunks); lengths are never printed."""


class PlanError(DPGBError, ValueError):
    """A recipe, a parameter or a budget that cannot be run; raised before anything is charged."""


class UnwritableError(PlanError):
    """A folder for scratch, which a parameter or a setting names, cannot be written now; later it may be."""


class BudgetExceededError(DPGBError, ValueError):
    """An account or a fit has too little left for a request; nothing more was charged or opened."""


class LedgerError(DPGBError, RuntimeError):
    """The ledger refuses: unknown account, broken chain, rollback, wrong state of a fit."""


class AccountError(LedgerError):
    """An account cannot be as it is asked for: one of its name has another cap, say. Again would be the same."""


class LedgerMissingError(LedgerError):
    """There is no ledger at the address: its first account makes it."""


class LedgerUnavailableError(LedgerError):
    """The ledger cannot be reached or written, so nothing more is charged or released."""


class LedgerLostError(LedgerUnavailableError):
    """The server of a ledger went away and did not come back in time; a fit that was charged can be resumed."""


class VerificationError(DPGBError, ValueError):
    """A model file does not agree with the ledger that its fit charged, or holds nothing that can be compared."""


class ResumeError(LedgerError):
    """A fit cannot be resumed: other plan, version, data or an unknown fit."""


class OtherRunError(ResumeError):
    """Fits that ``dpgb-dask fit --resume auto`` did not begin are in its way; the same command is refused again."""


class UnreleasedError(DPGBError, TypeError):
    """A sealed private value was used outside ``Controller.release``."""


class ShardError(DPGBError, RuntimeError):
    """A sum in which each shard does not appear exactly once."""


class ChunkError(DPGBError, RuntimeError):
    """A chunk of the source failed to load; the message tells neither which chunk nor what is in it."""


class RowsError(DPGBError, RuntimeError):
    """Work on rows failed with a foreign error, such as a lack of memory; the message gives only its type."""


class LackingPartsError(DPGBError, RuntimeError):
    """A worker lacks parts of a round's message that it should have; it is asked again with all of them."""


class LostCodesError(DPGBError, RuntimeError):
    """Encoded rows are gone or damaged; they have to be made again from the source."""


class ScratchError(DPGBError, RuntimeError):
    """Scratch cannot be written (a full disk, no permission); the fit can be resumed once it can."""


class ClusterError(DPGBError, RuntimeError):
    """The cluster has no workers, or its scheduler went away; the fit can be resumed on another."""


class DPGBWarning(UserWarning):
    """Base of every warning of this library; no text of one holds a row's value."""


class FewRowsWarning(DPGBWarning):
    """The released number of rows cannot be told from zero, so the fit ended with the start model."""


class UnreadValuesWarning(DPGBWarning):
    """Released counts show that most values of a feature are missing or undeclared; its type may be wrong."""


class LargeDeltaWarning(DPGBWarning):
    """delta is so large, by itself or beside the released number of rows, that the promise may fail for someone."""


class MaxWeightWarning(DPGBWarning):
    """Sample weights are given, and the schema's ``max_weight`` is 1: each weight of 1 or more counts as 1."""


class PrivacyLeakWarning(DPGBWarning):
    """An opted-in leak, such as ``schema="infer"``."""


class UnnamedColumnsWarning(DPGBWarning):
    """An array without names was matched to a schema with names by the position of its columns."""


class PrefixedColumnsWarning(DPGBWarning):
    """Columns were matched to a schema by their names without a prefix; they may hold something else."""


class ParserWarning(DPGBWarning):
    """A collection is parsed from text by pandas, whose parser infers types and may stop on a value."""


def level_outside() -> int:
    """Return the ``stacklevel`` of the caller's own code, for a warning that should point there."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 - what warnings itself does
    ours = "dpgb_dask.", "contextlib"  # by which our context managers are left
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        frame, level = frame.f_back, level + 1
    return level


def did_you_mean(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a question that names the known word closest to a misspelt one; "" if none is close. Public words only.

    Of a whole whose parts are known, as the parts of a date are features, it names these, without pairs that have them.
    """
    known = list(known)
    if parts := [name for name in known if name.startswith(f"{word}.") and " & " not in name]:
        return f" Did you mean one of its parts, {listed(parts)}?"
    close = difflib.get_close_matches(str(word), known, 1, cutoff)
    return f" Did you mean {close[0]!r}?" if close else ""


def where_json_breaks(error: ValueError) -> str:
    """Return where and why a public file is no JSON, as the end of an error message; "" if the error does not tell."""
    if isinstance(error, json.JSONDecodeError):
        return f" (line {error.lineno}, column {error.colno}: {error.msg})"
    if isinstance(error, UnicodeDecodeError):
        return f" (byte {error.start} is no UTF-8)"
    return ""


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, for `json.loads`; refuse a key that is there twice, because one value would be lost.

    Raises
    ------
    StructureError
        If a key is there twice.
    """
    out = dict(pairs)
    if len(out) != len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise StructureError(f"key {short(twice)} is there twice in one object. Remove one.")
    return out


def check_flag(name: str, value: object, error: type[DPGBError]) -> None:
    """Refuse a parameter that is neither True nor False: any other value would be taken for one of them.

    Raises
    ------
    DPGBError
        Of the given type.
    """
    if not isinstance(value, bool):
        raise error(f"{name}={short(value)} must be True or False.")


def short(value: object) -> str:
    """Return a public value as quoted in an error; a long one is cut.

    One too deep to print becomes its type, and so does a table or an array, which may hold rows.
    """
    if getattr(value, "shape", ()) != ():
        return f"<{type(value).__name__}>"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # a number of more digits than Python prints
        return f"<{type(value).__name__}>"
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def first_few(texts: Iterable[str], between: str = ", ") -> str:
    """Return texts with something between; of many, the first few and how many more there are."""
    every = list(texts)
    more = [f"and {len(every) - MOST_NAMES} more"] if len(every) > MOST_NAMES else []
    return between.join([*every[:MOST_NAMES], *more])


def listed(names: Iterable[object]) -> str:
    """Return public names as a list that an error quotes; of many, the first few and how many more there are."""
    return f"[{first_few(map(short, names))}]"


def rows_failed(kind: str) -> RowsError:
    """Return the error of work on rows that ended with an exception of this type."""
    ended = " The program's main thread has ended, and Python starts none after it: let it wait for this one (join)."
    return RowsError(
        f"Work on rows failed: {kind}. Only the type is said, as the rest may hold values. A fit that had begun can be"
        f" resumed once the reason is gone.{'' if threading.main_thread().is_alive() else ended}"
    )


def kind_of(error: BaseException) -> str:
    """Return the name of an exception's type; for a system error, such as a full disk, with the name of its code."""
    code = errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    return type(error).__name__ if code is None else f"{type(error).__name__} ({code})"


def in_our_words(
    failed: Callable[[str], DPGBError] = rows_failed,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let only our own errors out of a function; every other becomes one that names its type, and no context is kept.

    Parameters
    ----------
    failed : function of str
        Takes the name of a foreign exception's type and returns the error to raise.

    Privacy
    -------
    The text of a foreign exception, or of one that it was raised from, may quote a row's value or tell how many rows
    there are, as NumPy's does when memory is short.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            failure: BaseException
            try:
                return function(*args, **kwargs)
            except DPGBError as error:
                failure = error
            except Exception as error:
                failure = failed(kind_of(error))
            except BaseException as error:  # Ctrl-C, while some other exception was handled
                failure = error
            failure.__cause__ = failure.__context__ = None
            try:
                raise failure  # outside the except block, which would set a context
            finally:
                del failure  # the traceback holds this frame, which would keep rows alive

        return run

    return decorate
