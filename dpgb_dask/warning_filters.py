"""Warnings while rows are read, and while a decoding is tried: each may be about a value.

Shown, it would tell of the value; and under ``python -W error`` it would end the fit. The filters of `warnings` belong
to all threads, and `warnings.catch_warnings` puts back those of before whatever others have done since. So this library
adds two filters that stay, the first of all, and decides by their categories when they hold.
"""

import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, SupportsIndex

from dpgb_dask.errors import DPGBWarning

# a warning that is about versions is about no value
OF_VERSIONS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
_LOCK = threading.Lock()


class _While(type):
    """A category of warnings that others are in for as long as a context lasts."""

    holds: Callable[[type], bool]

    def __subclasscheck__(cls, category: type) -> bool:
        return cls.holds(category)


class _Silence(ContextDecorator):
    """A context in which this process shows no warning but those of this library, until its last thread leaves it.

    All threads are silent, as what reads a chunk may start others.
    """

    def __init__(self) -> None:
        self._inside = 0

    def holds(self, category: type) -> bool:
        return self._inside > 0 and not issubclass(category, DPGBWarning)

    def __enter__(self) -> None:
        with _LOCK:
            self._inside += 1
            _put_first()

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            self._inside -= 1


class _Errors(threading.local):
    """A context in which warnings of this thread are errors, but those about versions."""

    inside = False

    def holds(self, category: type) -> bool:
        return self.inside and not issubclass(category, OF_VERSIONS)

    def __enter__(self) -> None:
        self.inside = True
        with _LOCK:
            _put_first()

    def __exit__(self, *_: object) -> None:
        self.inside = False


SILENCE = _Silence()
ERRORS = _Errors()


class _ErrorHere(Warning, metaclass=_While):
    holds = ERRORS.holds


class _Unseen(Warning, metaclass=_While):
    holds = SILENCE.holds


# as `warnings.simplefilter` writes them
OURS = [("error", None, _ErrorHere, None, 0), ("ignore", None, _Unseen, None, 0)]


class _Filters(list[Any]):
    """Filters that begin with ours, also once others are added, and in the copies that `catch_warnings` makes."""

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return _Filters(found) if isinstance(key, slice) else found

    def insert(self, place: SupportsIndex, item: Any) -> None:
        """Insert a filter, but not before ours."""
        super().insert(max(place.__index__(), len(OURS)) if _begins(self) else place, item)


def _begins(filters: Any) -> bool:
    return list(filters[: len(OURS)]) == OURS


def _put_first() -> None:
    """Put our filters before all others, into the list in force and into the one that takes its place."""
    # newer Pythons may hold filters of a context beside `warnings.filters`
    of_context = getattr(sys.flags, "context_aware_warnings", False)
    if not of_context and isinstance(warnings.filters, _Filters) and _begins(warnings.filters):
        return
    warnings.simplefilter("ignore", _Unseen)
    warnings.simplefilter("error", _ErrorHere)
    warnings.filters = _Filters(warnings.filters)


_put_first()  # at import: the lists that other threads copy, and put back later, are then ours too
