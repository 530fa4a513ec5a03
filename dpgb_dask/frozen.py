"""What a frozen dataclass holds stays what its checks saw.

``frozen=True`` holds the fields still, not the arrays in them: whoever gave one may use its memory again, and then the
bound that is stated for a query would be that of another one.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


def frozen(array: NDArray[Number]) -> NDArray[Number]:
    """Return a read-only copy of an array: one that is read-only may be a view of what others write to."""
    copy = np.array(array, order="C", subok=False)
    copy.setflags(write=False)
    return copy


def frozen_parts(
    parts: Sequence[NDArray[Number]],
) -> tuple[NDArray[Number], tuple[NDArray[Number], ...]]:
    """Return a read-only copy of some vectors, joined, and the views of it that are the vectors."""
    joined = np.concatenate(parts)
    joined.setflags(write=False)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return joined, tuple(
        joined[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)
    )


def settle(owner: Any, **fields: Any) -> None:
    """Set fields of a frozen dataclass to what was checked, in its ``__post_init__``."""
    for name, value in fields.items():
        object.__setattr__(owner, name, value)
