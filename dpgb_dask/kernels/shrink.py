"""Rows that fall into too many blocks are given a smaller weight, so that what each adds is bounded by few blocks."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable, same_rows, writable

BLOCK = 4096  # rows per inner loop: their numbers of blocks stay in L1


@inner
def _count(
    codes: NDArray[np.uint8],  # IN (n,)
    low: int,
    high: int,
    count: NDArray[np.uint16],  # OUT (n,), added to
) -> None:
    low8, high8 = np.uint8(low), np.uint8(high)
    for i in range(count.shape[0]):
        # comparisons of bytes: an instruction takes 16 rows or more
        count[i] += np.uint16((codes[i] < low8) | (codes[i] > high8))


@inner
def times(packed: np.int64, weight: np.int64, bits: int) -> np.int64:
    """Return a row's (g, h) times ``weight / 2**bits`` <= 1, rounded towards 0."""
    h = packed & 0xFFFFFFFF
    g = packed >> 32  # exact, as 0 <= h < 2**32
    sign = g >> 63  # 0, or -1 where g < 0
    size = (((g ^ sign) - sign) * weight) >> bits  # |g| < 2**31
    return (((size ^ sign) - sign) << 32) + ((h * weight) >> bits)


@inner
def _multiply(
    count: NDArray[np.uint16],  # IN (n,)
    weight: NDArray[np.int64],  # IN (n_counts,)
    bits: int,
    packed: NDArray[np.int64],  # IN OUT (n,)
) -> None:
    for i in range(packed.shape[0]):
        packed[i] = times(packed[i], weight[count[i]], bits)


@kernel
def _shrink(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.int64],  # IN (n,)
    low: NDArray[np.uint8],  # IN (n,)
    high: NDArray[np.uint8],  # IN (n,)
    first: int,
    weight: NDArray[np.int64],  # IN (> first + n,)
    bits: int,
    packed: NDArray[np.int64],  # IN OUT (n_scores, n_rows)
) -> None:
    n = packed.shape[1]
    counts = np.empty(BLOCK, np.uint16)
    for lo in range(0, n, BLOCK):
        hi = min(n, lo + BLOCK)
        count = counts[: hi - lo]
        for i in range(count.shape[0]):
            count[i] = first
        for f in range(feature.shape[0]):
            _count(codes[feature[f], lo:hi], low[f], high[f], count)
        for s in range(packed.shape[0]):
            _multiply(count, weight, bits, packed[s, lo:hi])


def shrink(
    codes: NDArray[np.uint8],
    feature: NDArray[np.int64],
    low: NDArray[np.uint8],
    high: NDArray[np.uint8],
    first: int,
    weight: Sequence[int],
    bits: int,
    packed: NDArray[np.int64],
) -> None:
    """Multiply what each row adds by the weight of its count, in place, rounded towards 0.

    A row's count is ``first`` plus the number of features whose code is outside of [low, high].

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
    feature : (n,) int64
        The features that are looked at.
    low, high : (n,) uint8
    first : int
    weight : sequence of int
        Per count, from 0 to 2**bits; every count up to ``first + n`` has one.
    bits : int
        At most 16.
    packed : (n_scores, n_rows) int64
        ``(g << 32) + h`` in steps, |g| < 2³¹ and 0 <= h < 2³².

    Raises
    ------
    ValueError
        If a dtype, layout or shape is wrong, or a count could have no weight; never because of a row.

    Privacy
    -------
    Private side; nothing leaves. |g| and h become at most w / 2**bits times what they were, in integers: rounding
    towards 0 makes neither larger (docs/privacy.md P14).
    """
    same_rows(codes=codes, packed=packed)
    same_rows(feature=feature, low=low, high=high)
    n = len(feature)
    if first < 0 or not first + n < len(weight) < 1 << 16:
        raise ValueError("A count has no weight. Give one for each, up to first + n.")
    if n and not 0 <= feature.min() <= feature.max() < len(codes):
        raise ValueError("feature names a feature that codes does not have.")
    weights = np.array(weight, np.int64)
    if not 0 <= bits <= 16 or not 0 <= weights.min() <= weights.max() <= 1 << bits:
        raise ValueError(
            f"A weight is outside [0, 2**bits], or bits={bits} above 16: a row may only become smaller."
        )
    _shrink(
        readable("codes", codes, np.uint8, 2),
        readable("feature", feature, np.int64, 1),
        readable("low", low, np.uint8, 1),
        readable("high", high, np.uint8, 1),
        first,
        readable("weight", weights, np.int64, 1),
        bits,
        writable("packed", packed, np.int64, 2),
    )
