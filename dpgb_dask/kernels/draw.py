"""Secret keyed draws of rows: which of them serve a query.

A draw is SipHash-2-4, a keyed pseudorandom function of short messages. Source: Aumasson and Bernstein (2012), "SipHash:
a fast short-input PRF", section 2; test vectors in its appendix A.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable, same_rows, writable

MESSAGE_BYTES = 24  # group (8), row identity (16)

# the initial state of the paper, section 2.1: "somepseudorandomlygeneratedbytes"
_V0 = np.uint64(0x736F6D6570736575)
_V1 = np.uint64(0x646F72616E646F6D)
_V2 = np.uint64(0x6C7967656E657261)
_V3 = np.uint64(0x7465646279746573)
_LAST = np.uint64(MESSAGE_BYTES << 56)  # the length closes the message; no bytes are left over
_END = np.uint64(0xFF)
_LOW = np.uint64(0xFFFFFFFF)


@inner
def _rotate(x: Any, bits: int) -> Any:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@inner
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0 += v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@inner
def _absorb(v0: Any, v1: Any, v2: Any, v3: Any, word: Any) -> Any:
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ word, v1, v2, v3


@inner
def _hash(k0: Any, k1: Any, a: Any, b: Any, c: Any) -> Any:
    """Hash three words: 24 bytes, little-endian."""
    v0, v1, v2, v3 = k0 ^ _V0, k1 ^ _V1, k0 ^ _V2, k1 ^ _V3
    v0, v1, v2, v3 = _absorb(v0, v1, v2, v3, a)
    v0, v1, v2, v3 = _absorb(v0, v1, v2, v3, b)
    v0, v1, v2, v3 = _absorb(v0, v1, v2, v3, c)
    v0, v1, v2, v3 = _absorb(v0, v1, v2, v3, _LAST)
    v2 ^= _END
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@kernel
def _draws(
    key: NDArray[np.uint64],  # IN (2,)
    group: Any,
    index: NDArray[np.uint64],  # IN (n, 2)
    out: NDArray[np.uint32],  # OUT (n,)
) -> None:
    k0, k1 = key[0], key[1]
    for i in range(out.shape[0]):
        out[i] = _hash(k0, k1, group, index[i, 0], index[i, 1]) & _LOW


def draws(key: bytes, group: int, index: NDArray[np.uint64], out: NDArray[np.uint32]) -> None:
    """Draw a number below 2³² for every row: the low 32 bits of SipHash-2-4(key, group ‖ row identity).

    Parameters
    ----------
    key : 16 bytes
        Secret.
    group : int
        Below 2⁶⁴; every group has draws of its own.
    index : (n_rows, 2) uint64
        The lasting identity of a row or of its unit: (position, 0), or a hash of the unit.
    out : (n_rows,) uint32
        Written.

    Raises
    ------
    ValueError
        If the key is not 16 bytes long, or a dtype, layout or shape is wrong; never because of a row.

    Privacy
    -------
    Private side. To anyone without the key, draws of different rows and groups are independent and uniform.
    """
    if len(key) != 16:
        raise ValueError("key must be 16 bytes long. Give the key of the fit's rows.")
    index = readable("index", index, np.uint64, 2)
    writable("out", out, np.uint32, 1)
    same_rows(index=index[:, 0], out=out)
    if index.shape[1] != 2:
        raise ValueError("index must be (n_rows, 2): two words name a row.")
    words = np.frombuffer(key, "<u8").astype(np.uint64)
    _draws(words, np.uint64(group), index, out)
