"""Turns: if memory is limited, the threads of a process load chunks of the source one after the other.

To decode a chunk, a reader needs several times the chunk's size, an amount that is not known in advance; several
threads loading at once would need a multiple of that. Once a chunk is loaded, its thread ends its turn: it encodes the
chunk while another thread loads the next one, as long as there is room for all loaded chunks together.
"""

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

OBJECT_BYTES = 64  # assumed for each value that an object column points to: a short text


@dataclass(slots=True)
class _Chunks:
    """The chunks that the threads of this process load and hold; change it with the lock of ``changed`` held."""

    loading: bool = False
    held: int = 0
    last: int = 0  # bytes of the last loaded chunk; the next one is assumed to be as large
    changed: threading.Condition = field(default_factory=threading.Condition)


_trim: Callable[[int], Any] | None = None
with suppress(OSError, AttributeError):  # another C library than GNU's
    _trim = ctypes.CDLL(None).malloc_trim

_CHUNKS = _Chunks()
_MINE = threading.local()


def in_turn(room: int, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function that loads a chunk and uses it, once it is this thread's turn.

    Parameters
    ----------
    room : int
        Bytes that all chunks held at once may take together; a single chunk may always be held.
    work : function
        It may call `end_turn` once the chunk is loaded.
    *args, **kwargs
        Of ``work``.
    """
    chunks = _CHUNKS
    with chunks.changed:
        while chunks.loading or (chunks.held and chunks.held + chunks.last > room):
            chunks.changed.wait()
        chunks.loading = True
    _MINE.turn, _MINE.held = True, 0
    try:
        return work(*args, **kwargs)
    finally:
        end_turn()
        if _trim is not None:
            _trim(0)  # GNU's allocator keeps freed memory for the thread that freed it
        with chunks.changed:
            chunks.held -= _MINE.held
            _MINE.held = 0
            chunks.changed.notify_all()


def end_turn(n_bytes: int = 0) -> None:
    """End this thread's turn, so that the next thread loads a chunk if there is room; without a turn, do nothing.

    Parameters
    ----------
    n_bytes : int
        Bytes of the chunk that this thread still holds.
    """
    if not getattr(_MINE, "turn", False):
        return
    _MINE.turn, _MINE.held = False, n_bytes
    with _CHUNKS.changed:
        _CHUNKS.loading = False
        if n_bytes:
            _CHUNKS.held += n_bytes
            _CHUNKS.last = n_bytes
        _CHUNKS.changed.notify_all()


def bytes_of(parts: Any) -> int:
    """Return an estimate of the bytes of a chunk: of arrays, columns or frames, or tuples of them."""
    if parts is None:
        return 0
    if isinstance(parts, tuple | list):
        return sum(bytes_of(part) for part in parts)
    if isinstance(parts, pd.DataFrame):
        return sum(bytes_of(parts.iloc[:, k]) for k in range(parts.shape[1]))
    one = OBJECT_BYTES if parts.dtype == np.dtype(object) else 0
    return int(parts.nbytes) + one * len(parts)
