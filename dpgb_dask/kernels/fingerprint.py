"""Hashes of rows, added up: NH of a row's columns, and SipHash-1-3 of its words (`private.reading.fingerprint`)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel

STRIP = 512  # rows hashed together: their four state words stay in the L1 cache


@inner
def _nh(word: Any, key: Any) -> Any:
    """Return (low half of the word + low half of the key) · (high half of the word + high half of the key)."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    return (((word & low) + (key & low)) & low) * (((word >> half) + (key >> half)) & low)


@kernel
def add_rows(
    words: NDArray[Any],  # IN (n, m), unsigned
    keys: NDArray[np.uint64],  # IN (m,)
    out: NDArray[np.uint64],  # OUT (n,), added to
) -> None:
    """Add the products of a matrix, row by row."""
    for i in range(words.shape[0]):
        total = np.uint64(0)
        for j in range(words.shape[1]):
            total += _nh(np.uint64(words[i, j]), keys[j])
        out[i] += total


@kernel
def add_column(
    words: NDArray[np.uint64],  # IN (n,)
    key: Any,  # uint64
    out: NDArray[np.uint64],  # OUT (n,), added to
) -> None:
    """Add the products of one column."""
    for i in range(words.shape[0]):
        out[i] += _nh(words[i], key)


@kernel
def pack_cells(
    cells: NDArray[np.uint16],  # IN (m, n)
    words: NDArray[np.uint64],  # OUT (>= ⌈m / 4⌉, n): the first of these are written
) -> None:
    """Write four cells to a word, the first in its lowest bits; zeros where there are none."""
    m, n = cells.shape
    for w in range((m + 3) // 4):
        a, word = cells[4 * w], words[w]
        b, c, d = (
            cells[min(4 * w + 1, m - 1)],
            cells[min(4 * w + 2, m - 1)],
            cells[min(4 * w + 3, m - 1)],
        )
        has = m - 4 * w
        second, third = np.uint64(0xFFFF if has > 1 else 0), np.uint64(0xFFFF if has > 2 else 0)
        fourth = np.uint64(0xFFFF if has > 3 else 0)
        for i in range(n):
            low = np.uint64(a[i]) | (np.uint64(b[i]) & second) << np.uint64(16)
            high = (np.uint64(c[i]) & third) | (np.uint64(d[i]) & fourth) << np.uint64(16)
            word[i] = low | high << np.uint64(32)


@kernel
def add_siphash(
    words: NDArray[np.uint64],  # IN (n_words, n)
    key: NDArray[np.uint64],  # IN (2,)
    init: NDArray[np.uint64],  # IN (4,)
    halves: NDArray[np.uint64],  # OUT (2,): sums of the low and high 32 bits, exact for n < 2**32
) -> None:
    """Add the SipHash-1-3 of each row."""
    v, zero = np.empty((4, STRIP), np.uint64), np.empty(STRIP, np.uint64)
    _put(np.uint64(0), zero)  # `zero[:] = 0` would be compiled with all of broadcasting
    for start in range(0, words.shape[1], STRIP):
        k = min(STRIP, words.shape[1] - start)
        for i in range(4):
            _put(init[i] ^ key[i % 2], v[i])
        for w in range(words.shape[0]):
            _round(v[0, :k], v[1, :k], v[2, :k], v[3, :k], words[w, start : start + k])
        for i in range(k):
            v[2, i] ^= np.uint64(0xFF)
        for _ in range(3):
            _round(v[0, :k], v[1, :k], v[2, :k], v[3, :k], zero[:k])
        for i in range(k):
            out = v[0, i] ^ v[1, i] ^ v[2, i] ^ v[3, i]
            halves[0] += out & np.uint64(0xFFFFFFFF)
            halves[1] += out >> np.uint64(32)


@inner
def _put(value: Any, out: NDArray[np.uint64]) -> None:
    for i in range(out.shape[0]):
        out[i] = value


@inner
def _round(
    v0: NDArray[np.uint64],
    v1: NDArray[np.uint64],
    v2: NDArray[np.uint64],
    v3: NDArray[np.uint64],  # all four IN and OUT (k,)
    word: NDArray[np.uint64],  # IN (k,)
) -> None:
    """Absorb one word per row by one SipRound; a plain loop over rows, so that it becomes SIMD."""
    for i in range(word.shape[0]):
        m = word[i]
        a, b, c, d = v0[i], v1[i], v2[i], v3[i] ^ m
        a += b
        c += d
        b = (b << np.uint64(13) | b >> np.uint64(51)) ^ a
        d = (d << np.uint64(16) | d >> np.uint64(48)) ^ c
        a = a << np.uint64(32) | a >> np.uint64(32)
        c += b
        a += d
        b = (b << np.uint64(17) | b >> np.uint64(47)) ^ c
        d = (d << np.uint64(21) | d >> np.uint64(43)) ^ a
        c = c << np.uint64(32) | c >> np.uint64(32)
        v0[i], v1[i], v2[i], v3[i] = a ^ m, b, c, d
