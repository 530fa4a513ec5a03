"""Turns: where memory is limited, a process loads one chunk of the source at a time.

A reader takes several times a chunk's size to decode it, which nothing tells in advance; threads that did so together
would take several times that. What follows, encoding, goes on beside the next one's turn.
"""

import threading
from collections.abc import Callable
from typing import Any

_LOADING = threading.Lock()
_MINE = threading.local()


def in_turn(load: Callable[..., Any], *args: Any) -> Any:
    """Call a function that loads a chunk while no other thread of this process does so; `end_turn` may end the turn."""
    _LOADING.acquire()
    _MINE.turn = True
    try:
        return load(*args)
    finally:
        end_turn()


def end_turn() -> None:
    """Let the next thread load a chunk; a thread whose turn it is not does nothing."""
    if getattr(_MINE, "turn", False):
        _MINE.turn = False
        _LOADING.release()
