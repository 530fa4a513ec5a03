"""Checks of a component's options: a bad option raises before any budget is spent."""

from typing import Any

from dpgb_dask.errors import PlanError
from dpgb_dask.scalars import is_number


def check_whole(name: str, value: Any, low: int, high: int) -> None:
    """Raise `PlanError` unless ``value`` is a Python int in [low, high]; a NumPy integer would overflow in a price."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PlanError(f"{name}={value!r} must be a whole number (int) in [{low}, {high}].")


def check_rate(name: str, value: Any) -> None:
    """Raise `PlanError` unless ``value`` is in (0, 1]."""
    if not is_number(value) or not 0 < value <= 1:
        raise PlanError(f"{name}={value!r} must be in (0, 1].")


def check_decay(name: str, value: Any) -> None:
    """Raise `PlanError` unless ``value`` is in [0, 1)."""
    if not is_number(value) or not 0 <= value < 1:
        raise PlanError(f"{name}={value!r} must be in [0, 1).")


def check_positive(name: str, value: Any) -> None:
    """Raise `PlanError` unless ``value`` is a finite number above 0."""
    if not is_number(value) or not 0 < value < float("inf"):
        raise PlanError(f"{name}={value!r} must be a finite number above 0.")
