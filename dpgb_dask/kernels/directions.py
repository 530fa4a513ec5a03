"""Sums over rows of products with vectors of the unit ball: of two of a vector's numbers, and of each with (g, h).

A row's vector has one number for each of some features, by its code, or fixed combinations of these. It is divided by
its own norm, or by a given one if that is larger, so its norm is at most 1 whatever the row is. All of it is done in
integers, rounded towards 0.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable, same_rows, writable
from dpgb_dask.kernels.histogram import padded
from dpgb_dask.kernels.shrink import times

UNIT_BITS = 15  # a number of a vector is a whole number of steps of 2**-15
SPARE_BITS = 32  # … of which so many more are kept until it is rounded
PRODUCT_BITS = 16  # so is the product of two, of 2**-16
ROOT_HALF = 46340  # √½ in the same steps, rounded down: squares have this weight beside products
MOST = 1 << 28  # a combination's largest number: squares of 64 of them add up below 2**62
MOST_DIRECTIONS = 64
# rows whose vectors stay in L2; their products, each at most 2**16, add up below 2**31
BLOCK = 2048


@inner
def _magnitude(number: np.int64, sign: np.int64) -> np.int64:
    """Return |number|, or give a size its sign back; ``sign`` is 0, or -1 of what is negative."""
    return (number ^ sign) - sign


@inner
def _to_unit_ball(vector: NDArray[np.int64], norm: np.int64) -> None:
    """Divide a vector by its norm, rounded up, or by ``norm`` if that is larger; steps of 2**-UNIT_BITS."""
    square = np.int64(0)
    for k in range(vector.shape[0]):
        square += vector[k] * vector[k]
    if square > norm * norm:
        norm = np.int64(np.sqrt(np.float64(square)))
        while norm * norm < square:
            norm += 1
    # |number| <= norm, so its product with this is below 2**48
    factor = np.int64(1 << (UNIT_BITS + SPARE_BITS)) // norm
    for k in range(vector.shape[0]):
        sign = vector[k] >> 63
        vector[k] = _magnitude((_magnitude(vector[k], sign) * factor) >> SPARE_BITS, sign)


@inner
def _look_up(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    row: int,
    feature: NDArray[np.int64],  # IN (n,)
    value: NDArray[np.int32],  # IN (n, 256)
    vector: NDArray[np.integer],  # OUT (n,)
) -> None:
    for j in range(feature.shape[0]):
        vector[j] = value[j, codes[feature[j], row]]


@inner
def _rounded(product: np.int64) -> np.int64:
    """Return a product of two numbers, times a weight, in steps of 2**-PRODUCT_BITS, rounded towards 0."""
    sign = product >> 63
    return _magnitude(_magnitude(product, sign) >> (2 * UNIT_BITS - PRODUCT_BITS), sign)


@inner
def _square(product: np.int64) -> np.int64:
    """Return a square, times a weight and √½, in the same steps."""
    return _rounded((product * ROOT_HALF) >> PRODUCT_BITS)


@kernel
def _add_products(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.int64],  # IN (n,)
    value: NDArray[np.int32],  # IN (n, 256)
    norm: int,
    weight: NDArray[np.int32],  # IN (n_rows,)
    sums: NDArray[np.int64],  # IN OUT (n * (n + 1) / 2,)
) -> None:
    n = feature.shape[0]
    vector = np.empty(n, np.int64)
    for i in range(codes.shape[1]):
        _look_up(codes, i, feature, value, vector)
        _to_unit_ball(vector, np.int64(norm))
        own = np.int64(weight[i])
        at = 0
        for j in range(n):
            sums[at] += _square(own * vector[j] * vector[j])  # at most 2**16 · 2**30
            at += 1
            for k in range(j + 1, n):
                sums[at] += _rounded(own * vector[j] * vector[k])
                at += 1


@inner
def _products(
    one: NDArray[np.int32],  # IN (n,)
    other: NDArray[np.int32],  # IN (n,)
) -> np.int64:
    total = np.int32(0)
    for i in range(one.shape[0]):
        product = np.int32(one[i] * other[i])
        sign = np.int32(product >> 31)
        size = np.int32(np.int32((product ^ sign) - sign) >> (2 * UNIT_BITS - PRODUCT_BITS))
        total = np.int32(total + np.int32((size ^ sign) - sign))
    return np.int64(total)


@kernel
def _add_products_of_one(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.int64],  # IN (n,)
    value: NDArray[np.int32],  # IN (n, 256)
    norm: int,
    sums: NDArray[np.int64],  # IN OUT (n * (n + 1) / 2,)
) -> None:
    """As `_add_products`, where all rows weigh 1: products are below 2**30, and many rows are multiplied at once."""
    n = feature.shape[0]
    vector = np.empty(n, np.int64)
    block = np.empty((n, BLOCK), np.int32)
    for low in range(0, codes.shape[1], BLOCK):
        size = min(BLOCK, codes.shape[1] - low)
        for i in range(size):
            _look_up(codes, low + i, feature, value, vector)
            _to_unit_ball(vector, np.int64(norm))
            for j in range(n):
                block[j, i] = vector[j]
        at = 0
        for j in range(n):
            for i in range(size):
                sums[at] += _square(np.int64(block[j, i]) * block[j, i])
            at += 1
            for k in range(j + 1, n):
                sums[at] += _products(block[j, :size], block[k, :size])
                at += 1


@kernel
def _add_directions(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.int64],  # IN (n,)
    value: NDArray[np.int32],  # IN (n, 256)
    matrix: NDArray[np.int32],  # IN (n_directions, n)
    norm: int,
    packed: NDArray[np.int64],  # IN (n_scores, n_rows)
    sums: NDArray[np.int64],  # IN OUT (n_directions, n_scores, 2)
) -> None:
    n, n_directions = feature.shape[0], matrix.shape[0]
    own = np.empty(n, np.int32)
    vector = np.empty(n_directions, np.int64)
    for i in range(codes.shape[1]):
        _look_up(codes, i, feature, value, own)
        for k in range(n_directions):
            total = np.int32(0)
            for j in range(n):
                total += matrix[k, j] * own[j]
            vector[k] = total
        _to_unit_ball(vector, np.int64(norm))
        for s in range(packed.shape[0]):
            pair = packed[s, i]
            for k in range(n_directions):
                sign = vector[k] >> 63
                part = times(pair, _magnitude(vector[k], sign), UNIT_BITS)
                sums[k, s, 0] += _magnitude(part >> 32, sign)
                sums[k, s, 1] += _magnitude(part & 0xFFFFFFFF, sign)


def _values(value: Sequence[NDArray[np.integer]]) -> NDArray[np.int32]:
    """Return values by code, (n, 256): a code that a feature does not have counts as its last."""
    return np.stack([padded(part) for part in value]).astype(np.int32)


def fits(matrix: NDArray[np.integer], value: Sequence[NDArray[np.integer]]) -> bool:
    """Return whether no row can have a number of `MOST` or more in any direction, nor too many of them."""
    # as floats, as the least int32 has no absolute value; sums below 2**53 are exact
    largest = np.array([np.abs(part.astype(np.float64)).max() for part in value])
    numbers = np.abs(matrix.astype(np.float64)) @ largest
    return len(matrix) <= MOST_DIRECTIONS and bool((numbers < MOST).all())


def add_products(
    codes: NDArray[np.uint8],
    feature: NDArray[np.int64],
    value: Sequence[NDArray[np.integer]],
    norm: int,
    weight: NDArray[np.int32] | None,
    sums: NDArray[np.int64],
) -> None:
    """Add the products of every two numbers of each row's vector, and their squares times √½, to sums, in place.

    Parameters
    ----------
    codes : (n_features, n_rows) uint8
    feature : (n,) int64
        The features that have a number, at most `MOST_DIRECTIONS`.
    value : sequence of (n_bins,) integers
        That number by code, below `MOST`.
    norm : int
        From 1 on; vectors are divided by it, or by their norm.
    weight : (n_rows,) int32 or None
        From 0 to 2**16; None if all are 1.
    sums : (n · (n + 1) / 2,) int64
        Of (0, 0), (0, 1), …, (1, 1), …, in steps of 2**-`PRODUCT_BITS`.

    Raises
    ------
    ValueError
        If a dtype, layout or shape is wrong, or a value is too large; never because of a row.

    Privacy
    -------
    Private side; nothing leaves. A row adds at most its weight times √½ in norm, as Σ_{j<k} u_j² u_k² + Σ u_j⁴ / 2 =
    ‖u‖⁴ / 2 (docs/privacy.md P16).
    """
    _check(codes, feature, np.eye(len(feature), dtype=np.int64), value, norm)
    n = len(feature)
    if sums.shape != (n * (n + 1) // 2,):
        raise ValueError(f"sums has shape {sums.shape}, not one number for each two of {n}.")
    if weight is not None and weight.shape != codes.shape[1:]:
        raise ValueError("weight must have one number for each row.")
    rows = (
        readable("codes", codes, np.uint8, 2),
        readable("feature", feature, np.int64, 1),
        _values(value),
        norm,
    )
    out = writable("sums", sums, np.int64, 1)
    if weight is None:
        _add_products_of_one(*rows, out)
    else:
        _add_products(*rows, readable("weight", weight, np.int32, 1), out)


def add_directions(
    codes: NDArray[np.uint8],
    feature: NDArray[np.int64],
    value: Sequence[NDArray[np.integer]],
    matrix: NDArray[np.int32],
    norm: int,
    packed: NDArray[np.int64],
    sums: NDArray[np.int64],
) -> None:
    """Add each row's (g, h) times its number in every direction to sums, in place.

    Parameters
    ----------
    codes, feature, value, norm
        As for `add_products`.
    matrix : (n_directions, n) int32
        A row's number in a direction is the sum of its features' numbers times these, and `fits` holds.
    packed : (n_scores, n_rows) int64
        ``(g << 32) + h`` in steps, |g| < 2³¹ and 0 <= h < 2³².
    sums : (n_directions, n_scores, 2) int64
        In the steps of g and h.

    Raises
    ------
    ValueError
        If a dtype, layout or shape is wrong, or a number could be too large; never because of a row.

    Privacy
    -------
    Private side; nothing leaves. A row adds at most (g, h) in norm, however many directions there are: its numbers are
    those of a vector of norm 1 or less, and are rounded towards 0 (docs/privacy.md P16).
    """
    same_rows(codes=codes, packed=packed)
    _check(codes, feature, matrix, value, norm)
    if sums.shape != (len(matrix), len(packed), 2):
        raise ValueError(f"sums has shape {sums.shape}, not (g, h) for each direction and score.")
    _add_directions(
        readable("codes", codes, np.uint8, 2),
        readable("feature", feature, np.int64, 1),
        _values(value),
        readable("matrix", matrix, np.int32, 2),
        norm,
        readable("packed", packed, np.int64, 2),
        writable("sums", sums, np.int64, 3),
    )


def _check(
    codes: NDArray[np.uint8],
    feature: NDArray[np.int64],
    matrix: NDArray[np.integer],
    value: Sequence[NDArray[np.integer]],
    norm: int,
) -> None:
    if not 1 <= norm < MOST:
        raise ValueError(f"norm={norm} must be from 1 to 2**28: vectors are divided by it.")
    if len(feature) and not 0 <= feature.min() <= feature.max() < len(codes):
        raise ValueError("feature names a feature that codes does not have.")
    if not len(value) == len(feature) == matrix.shape[1] or not fits(matrix, value):
        raise ValueError("A row could have a number of 2**28 or more in a direction.")
