"""Numba row loops over integer codes, and the one decorator they share."""

from collections.abc import Callable
from typing import TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile a row loop: no GIL, cached on disk; keeps the type hints that ``njit`` drops."""
    return numba.njit(nogil=True, cache=True)(function)  # type: ignore[no-any-return]
