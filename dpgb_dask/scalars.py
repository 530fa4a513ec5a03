"""Plain values of what a caller gives: converted first, checked afterwards, so that what was checked is what is kept.

An object of a subclass of int, float or str can compare as one value and convert to another, and a process that lacks
its class cannot read it.
"""

import math
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np

_NUMBERS = (int, float, np.integer, np.floating)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number of Python or NumPy, NaN and infinities too; a bool is none."""
    return issubclass(type(value), _NUMBERS) and type(value) is not bool


def finite_float(value: Any) -> float | None:
    """Return a real number as a Python float; None if it is no number, or none that is finite as a float."""
    if not is_number(value):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole_number(value: Any) -> int | None:
    """Return a whole number as a Python int; None if it is of another type, or a bool."""
    whole = issubclass(type(value), (int, np.integer)) and type(value) is not bool
    return int(value) if whole else None


def is_listing(value: Any) -> TypeGuard[Iterable[Any]]:
    """Return whether items can be taken from a value one by one; an array without a dimension only seems so."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) != 0


def python_scalar(value: Any) -> Any:
    """Return a scalar of NumPy as Python's own, which JSON can hold, and anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def plain_text(value: Any) -> str | None:
    """Return a text as a str of no subclass, whatever its own ``__str__`` says; None if it is no text."""
    return str.__str__(value) if issubclass(type(value), str) else None


def same_text(value: Any, known: Iterable[str]) -> str | None:
    """Return the known text that a text is equal to, not the given object; None if there is none."""
    text = plain_text(value)
    return next((own for own in known if own == text), None)
