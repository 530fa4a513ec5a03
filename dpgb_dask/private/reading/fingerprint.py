"""The fingerprint of the data: a keyed sum over rows that does not depend on their order or chunking.

Each row is hashed by SipHash-1-3 (Aumasson and Bernstein, 2012: "SipHash: a fast short-input PRF") under four keys. The
four 64-bit outputs form one number, and these numbers are added modulo 2²⁵⁶. All rows of a fit have the same length, so
the length is not hashed. If rows are drawn by their position, the position is hashed as one more word. The same rows in
another order then have another fingerprint, and a fit cannot be resumed on them: a row that moved could serve two parts
of a group.

A chunk that is read again (for the next pass, or after a worker was lost) is recognised by its mark. Each row's values,
as kernels take them, are hashed to one word by NH (Black, Halevi, Krawczyk, Krovetz and Rogaway, 1999: "UMAC"); two
different rows have the same word with a probability of at most 2⁻³² over the key. The words are then hashed by SipHash
and added up, as above.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import kernel

LANES = 4
MODULUS = 1 << 256
STRIP = 512  # rows hashed together: their four state words stay in the L1 cache
# "somepseudorandomlygeneratedbytes", as in the paper
INIT = np.array(
    [0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573], np.uint64
)


def lane_keys(key: bytes) -> NDArray[np.uint64]:
    """Derive the four SipHash keys from one key of 32 bytes, as (4, 2) uint64."""
    return _derive(key, b"dpgb-finger", 16, LANES).reshape(LANES, 2)


def mark_key(key: bytes) -> NDArray[np.uint64]:
    """Derive the SipHash key of marks from one key of 32 bytes, as (1, 2) uint64."""
    return _derive(key, b"dpgb-mark", 16, 1).reshape(1, 2)


def column_keys(key: bytes, n: int) -> NDArray[np.uint64]:
    """Derive the NH keys of n columns from one key of 32 bytes, as (n,) uint64."""
    return _derive(key, b"dpgb-columns", 64, -(-n // 8))[:n]


def _derive(key: bytes, purpose: bytes, size: int, n: int) -> NDArray[np.uint64]:
    if len(key) != 32:
        raise ValueError("A fingerprint key has 32 bytes.")
    parts = [
        hashlib.blake2b(b"%d" % k, key=key, digest_size=size, person=purpose).digest()
        for k in range(n)
    ]
    return np.frombuffer(b"".join(parts), "<u8").astype(np.uint64)


def pack_rows(
    cells: NDArray[np.uint16], label: NDArray[np.int64], weight: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return each row as 64-bit words: four cells to a word, then label and weight.

    Parameters
    ----------
    cells : (m, n) uint16
    label : (n,) int64, in [-2³¹, 2³¹)
    weight : (n,) int64, in [0, 2³²)

    Returns
    -------
    (⌈m / 4⌉ + 1, n) uint64
    """
    m, n = cells.shape
    words = np.zeros((-(-m // 4) + 1, n), np.uint64)
    for j in range(m):
        words[j // 4] |= cells[j].astype(np.uint64) << np.uint64(16 * (j % 4))
    words[-1] = ((label & 0xFFFFFFFF) << 32 | weight).view(np.uint64)
    return words


def fingerprint_rows(words: NDArray[np.uint64], keys: NDArray[np.uint64]) -> int:
    """Return the sum of the PRF over all rows, modulo 2²⁵⁶.

    Parameters
    ----------
    words : (n_words, n) uint64
    keys : (n_lanes, 2) uint64

    Privacy
    -------
    Private side. The sum is bound to the fit's key and never leaves the ledger's record of the fit.
    """
    total = 0
    for lane, key in enumerate(keys):
        halves = np.zeros(2, np.uint64)
        _add_siphash(words, key, INIT, halves)
        total += (int(halves[0]) + (int(halves[1]) << 32)) << (64 * lane)
    return total % MODULUS


def shorten_rows(parts: Sequence[NDArray[Any]], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash each row to one word, by NH.

    Parameters
    ----------
    parts : sequence of (n,) or (n, m) arrays
        Columns and matrices of numbers of at most 8 bytes.
    keys : (n_columns,) uint64
        One for each column of all parts, in order.

    Privacy
    -------
    Private side.
    """
    out = np.zeros(len(parts[0]), np.uint64)
    start = 0
    for part in parts:
        if part.ndim == 2 and part.flags.c_contiguous:
            stop = start + part.shape[1]
            _add_rows(_bits(part), keys[start:stop], out)
            start = stop
            continue
        for column in [part] if part.ndim == 1 else part.T:
            _add_column(_bits(column), keys[start], out)
            start += 1
    return out


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as unsigned integers of the same bits, read-only, so that the kernel is compiled once per size."""
    bits = values.view(f"u{values.dtype.itemsize}")
    bits.flags.writeable = False
    return bits


@kernel
def _nh(word: Any, key: Any) -> Any:
    """Return (low half of the word + low half of the key) · (high half of the word + high half of the key)."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    return (((word & low) + (key & low)) & low) * (((word >> half) + (key >> half)) & low)


@kernel
def _add_rows(
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
def _add_column(
    words: NDArray[Any],  # IN (n,), unsigned
    key: Any,  # uint64
    out: NDArray[np.uint64],  # OUT (n,), added to
) -> None:
    """Add the products of one column."""
    for i in range(words.shape[0]):
        out[i] += _nh(np.uint64(words[i]), key)


@kernel
def _add_siphash(
    words: NDArray[np.uint64],  # IN (n_words, n)
    key: NDArray[np.uint64],  # IN (2,)
    init: NDArray[np.uint64],  # IN (4,)
    halves: NDArray[
        np.uint64
    ],  # OUT (2,): sums of the low and high 32 bits; n < 2**32 keeps them exact
) -> None:
    v = np.empty((4, STRIP), np.uint64)
    zero = np.zeros(STRIP, np.uint64)
    for start in range(0, words.shape[1], STRIP):
        k = min(STRIP, words.shape[1] - start)
        for i in range(4):
            v[i, :] = init[i] ^ key[i % 2]
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


@kernel
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
