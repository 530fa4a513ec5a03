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

from dpgb_dask.kernels import fingerprint as kernels
from dpgb_dask.kernels import readable

LANES = 4
MODULUS = 1 << 256
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
    words = np.empty((-(-m // 4) + 1, n), np.uint64)
    kernels.pack_cells(readable("cells", cells, np.uint16, 2), words)
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
        kernels.add_siphash(words, key, INIT, halves)
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
    # one copy for all columns: new memory costs more than the hashes
    words = np.empty(len(out), np.uint64)
    start = 0
    for part in parts:
        if part.ndim == 2 and part.flags.c_contiguous:
            stop = start + part.shape[1]
            kernels.add_rows(_bits(part), keys[start:stop], out)
            start = stop
            continue
        for column in [part] if part.ndim == 1 else part.T:
            kernels.add_column(_words(column, words), keys[start], out)
            start += 1
    return out


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as unsigned integers of the same bits, read-only, so that the kernel is compiled once per size."""
    bits = values.view(f"u{values.dtype.itemsize}")
    bits.flags.writeable = False
    return bits


def _words(values: NDArray[Any], copy: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a column's bits as contiguous words, copied if they are not, so that the kernel is compiled once."""
    words = _bits(values)
    if words.dtype != np.uint64 or not words.flags.c_contiguous:
        copy[:] = words
        words = copy.view()
        words.flags.writeable = False
    return words
