"""Silence while chunks are read: a warning of pandas, or of the caller's own functions, may be about a value.

Shown, it would tell of the value; and under ``python -W error`` it would end the fit.
"""

import threading
import warnings
from collections.abc import Callable
from typing import Any


class _Silence:
    """A context in which this process shows no warning, until its last thread leaves it: filters are those of all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.simplefilter("ignore")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._filters.__exit__(None, None, None)


SILENCE = _Silence()


def silently(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that reads rows."""
    with SILENCE:
        return work(*args, **kwargs)
