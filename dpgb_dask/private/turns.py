"""Turns: where memory is limited, a process loads one chunk of the source at a time, and holds few that are loaded.

A reader takes several times a chunk's size to decode it, which nothing tells in advance; threads that did so together
would take several times that. What follows, encoding, goes on beside the next one's turn, as long as all chunks that
are held for it together have room.
"""

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

OBJECT_BYTES = 64  # of what an object column points to: a short text


@dataclass(slots=True)
class _Chunks:
    """What the threads of this process load and hold; change it with the lock of ``changed`` held."""

    loading: bool = False
    held: int = 0
    last: int = 0  # bytes of the newest one: the next will be alike
    changed: threading.Condition = field(default_factory=threading.Condition)


_trim: Callable[[int], Any] | None = None
with suppress(OSError, AttributeError):  # another C library than GNU's
    _trim = ctypes.CDLL(None).malloc_trim

_CHUNKS = _Chunks()
_MINE = threading.local()


def in_turn(room: int, work: Callable[..., Any], *args: Any) -> Any:
    """Call a function that loads a chunk and uses it, in this thread's turn.

    Parameters
    ----------
    room : int
        Bytes that chunks which are held at once may take together; a single one always may be held.
    work : function
        It may call `end_turn` once the chunk is loaded.
    """
    chunks = _CHUNKS
    with chunks.changed:
        while chunks.loading or (chunks.held and chunks.held + chunks.last > room):
            chunks.changed.wait()
        chunks.loading = True
    _MINE.turn, _MINE.held = True, 0
    try:
        return work(*args)
    finally:
        end_turn()
        if _trim is not None:
            _trim(0)  # what a thread freed, GNU's allocator keeps for this thread
        with chunks.changed:
            chunks.held -= _MINE.held
            _MINE.held = 0
            chunks.changed.notify_all()


def end_turn(n_bytes: int = 0) -> None:
    """Let the next thread load a chunk, if there is room beside this one; nothing in a thread whose turn it is not.

    Parameters
    ----------
    n_bytes : int
        What this thread goes on to hold.
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
    """Return about how many bytes a chunk takes: arrays, columns or frames, and tuples of them."""
    if parts is None:
        return 0
    if isinstance(parts, tuple | list):
        return sum(bytes_of(part) for part in parts)
    if isinstance(parts, pd.DataFrame):
        return sum(bytes_of(parts.iloc[:, k]) for k in range(parts.shape[1]))
    one = OBJECT_BYTES if parts.dtype == np.dtype(object) else 0
    return int(parts.nbytes) + one * len(parts)
