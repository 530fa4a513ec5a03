"""Samplers read an endless sequence of uniform 64-bit words, buffer by buffer.

Each sampler is a deterministic function of that sequence: value i reads words from where value i-1 stopped. When the
buffer runs out inside a value, that value is drawn again *from its first word*, with more words appended. Starting the
value over with fresh words instead would favour values that need few words.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# part of every query id: change it whenever the same words would give other values
SAMPLER_VERSION = 3
BATCH_WORDS = 1 << 15  # read at a time, into one buffer: 256 KB stay in the processor's cache
EXHAUSTED = 1 << 62  # a position beyond every buffer
# of the type that kernels compute words in
U1, U2, U32, LOW32 = np.uint64(1), np.uint64(2), np.uint64(32), np.uint64(0xFFFFFFFF)

Fill = Callable[[NDArray[np.uint64], int, NDArray[np.int64]], tuple[int, int]]


class Words(Protocol):
    """An endless sequence of uniform 64-bit words."""

    def read(self, out: NDArray[np.uint64]) -> None:
        """Write the next ``len(out)`` words into ``out``."""
        ...


def collect(n: int, stream: Words, fill: Fill, words_per_value: int) -> NDArray[np.int64]:
    """Fill ``n`` values from a stream, reading more words while a value is not complete.

    Parameters
    ----------
    n : int
    stream : Words
    fill : callable
        ``fill(words, done, out)`` fills ``out`` from ``done`` on while the words last; it returns how many values are
        done, and the first word of the next one.
    words_per_value : int
        A first guess only: the values do not depend on how many words are read at a time.
    """
    out = np.empty(n, np.int64)
    end = min(n * words_per_value + 64, BATCH_WORDS)
    words = np.empty(end, np.uint64)
    stream.read(words)
    done, used = fill(words, 0, out)
    while done < n:  # words[used:end] are left over
        left = end - used
        # at least as many as the words left over, which did not suffice: so a long value is redrawn only a few times
        fetch = max(min((n - done) * words_per_value + 64, BATCH_WORDS), left)
        before, end = words[used:end], left + fetch
        if end > len(words):
            words = np.empty(end, np.uint64)
        words[:left] = before
        stream.read(words[left:end])
        done, used = fill(words[:end], done, out)
    return out
