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
MOST = 1 << 27  # a combination's largest number: squares of 256 of them add up below 2**62
MOST_DIRECTIONS = 256
NO_WEIGHT = np.empty(0, np.int32)  # all are 1
# rows whose numbers and vectors stay in L2; their products, each at most 2**16, add up below 2**31
BLOCK = 1024


@inner
def _magnitude(number: np.int64, sign: np.int64) -> np.int64:
    """Return |number|, or give a size its sign back; ``sign`` is 0, or -1 of what is negative."""
    return (number ^ sign) - sign


@inner
def _add_squares(
    number: NDArray[np.int32],  # IN (n_rows,)
    square: NDArray[np.int64],  # IN OUT (n_rows,)
) -> None:
    for i in range(number.shape[0]):
        square[i] += np.int64(number[i]) * number[i]


@inner
def _factors(
    square: NDArray[np.int64],  # IN OUT (n_rows,)
    least: np.int64,
) -> None:
    """Turn squares of norms into 2**(UNIT_BITS + SPARE_BITS) over the norms, rounded up, or over a larger ``least``."""
    for i in range(square.shape[0]):
        norm = least
        if square[i] > least * least:
            norm = np.int64(np.sqrt(np.float64(square[i])))
            while norm * norm < square[i]:
                norm += 1
        square[i] = np.int64(1 << (UNIT_BITS + SPARE_BITS)) // norm


@inner
def _multiply(
    number: NDArray[np.int32],  # IN OUT (n_rows,)
    factor: NDArray[np.int64],  # IN (n_rows,)
) -> None:
    for i in range(number.shape[0]):
        # |number| is at most the norm, so its product with the factor is below 2**48
        sign = np.int64(number[i] >> 31)
        size = (_magnitude(np.int64(number[i]), sign) * factor[i]) >> SPARE_BITS
        number[i] = np.int32(_magnitude(size, sign))


@inner
def _to_unit_ball(
    vectors: NDArray[np.int32],  # IN OUT (n, n_rows)
    norm: np.int64,
    factor: NDArray[np.int64],  # OUT (n_rows,)
) -> None:
    """Divide vectors by their norms, rounded up, or by ``norm`` if that is larger; steps of 2**-UNIT_BITS."""
    factor[:] = 0
    for k in range(vectors.shape[0]):
        _add_squares(vectors[k], factor)
    _factors(factor, norm)
    for k in range(vectors.shape[0]):
        _multiply(vectors[k], factor)


@inner
def _look_up(
    codes: NDArray[np.uint8],  # IN (n_rows,)
    value: NDArray[np.int32],  # IN (256,)
    number: NDArray[np.int32],  # OUT (n_rows,)
) -> None:
    for i in range(codes.shape[0]):
        number[i] = value[codes[i]]


@inner
def _rounded(product: np.int64) -> np.int64:
    """Return a product of two numbers, times a weight, in steps of 2**-PRODUCT_BITS, rounded towards 0."""
    sign = product >> 63
    return _magnitude(_magnitude(product, sign) >> (2 * UNIT_BITS - PRODUCT_BITS), sign)


@inner
def _square(product: np.int64) -> np.int64:
    """Return a square, times a weight and √½, in the same steps."""
    return _rounded((product * ROOT_HALF) >> PRODUCT_BITS)


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


@inner
def _weighted_products(
    weight: NDArray[np.int32],  # IN (n_rows,)
    one: NDArray[np.int32],  # IN (n_rows,)
    other: NDArray[np.int32],  # IN (n_rows,)
) -> np.int64:
    total = np.int64(0)
    for i in range(one.shape[0]):
        total += _rounded(np.int64(weight[i]) * one[i] * other[i])  # at most 2**16 · 2**30
    return total


@inner
def _squares(
    weight: NDArray[np.int32],  # IN (n_rows,), or (0,) if all are 1
    one: NDArray[np.int32],  # IN (n_rows,)
) -> np.int64:
    total = np.int64(0)
    for i in range(one.shape[0]):
        own = np.int64(weight[i]) if weight.shape[0] else np.int64(1)
        total += _square(own * one[i] * one[i])
    return total


@kernel
def _add_products(
    codes: NDArray[np.uint8],  # IN (n_features, n_rows)
    feature: NDArray[np.int64],  # IN (n,)
    value: NDArray[np.int32],  # IN (n, 256)
    norm: int,
    weight: NDArray[np.int32],  # IN (n_rows,), or (0,) if all are 1
    sums: NDArray[np.int64],  # IN OUT (n * (n + 1) / 2,)
) -> None:
    n = feature.shape[0]
    block, factor = np.empty((n, BLOCK), np.int32), np.empty(BLOCK, np.int64)
    for low in range(0, codes.shape[1], BLOCK):
        size = min(BLOCK, codes.shape[1] - low)
        for j in range(n):
            _look_up(codes[feature[j], low : low + size], value[j], block[j, :size])
        _to_unit_ball(block[:, :size], np.int64(norm), factor[:size])
        own = weight[low : low + size]
        at = 0
        for j in range(n):
            one = block[j, :size]
            sums[at] += _squares(own, one)
            at += 1
            for k in range(j + 1, n):
                if weight.shape[0]:
                    sums[at] += _weighted_products(own, one, block[k, :size])
                else:
                    sums[at] += _products(one, block[k, :size])
                at += 1


@inner
def _add(
    factor: np.int32,
    own: NDArray[np.int32],  # IN (n_rows,)
    number: NDArray[np.int32],  # IN OUT (n_rows,)
) -> None:
    for i in range(number.shape[0]):
        number[i] += factor * own[i]


@inner
def _add_times(
    packed: NDArray[np.int64],  # IN (n_rows,)
    number: NDArray[np.int32],  # IN (n_rows,)
    sums: NDArray[np.int64],  # IN OUT (2,)
) -> None:
    grad = hess = np.int64(0)
    for i in range(number.shape[0]):
        sign = np.int64(number[i] >> 31)
        part = times(packed[i], _magnitude(np.int64(number[i]), sign), UNIT_BITS)
        grad += _magnitude(part >> 32, sign)
        hess += _magnitude(part & 0xFFFFFFFF, sign)
    sums[0] += grad
    sums[1] += hess


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
    own, block = np.empty((n, BLOCK), np.int32), np.empty((n_directions, BLOCK), np.int32)
    factor = np.empty(BLOCK, np.int64)
    for low in range(0, codes.shape[1], BLOCK):
        size = min(BLOCK, codes.shape[1] - low)
        for j in range(n):
            _look_up(codes[feature[j], low : low + size], value[j], own[j, :size])
        for k in range(n_directions):
            number = block[k, :size]
            number[:] = 0
            for j in range(n):
                _add(matrix[k, j], own[j, :size], number)
        _to_unit_ball(block[:, :size], np.int64(norm), factor[:size])
        for s in range(packed.shape[0]):
            pair = packed[s, low : low + size]
            for k in range(n_directions):
                _add_times(pair, block[k, :size], sums[k, s])


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
    _add_products(
        readable("codes", codes, np.uint8, 2),
        readable("feature", feature, np.int64, 1),
        _values(value),
        norm,
        readable("weight", NO_WEIGHT if weight is None else weight, np.int32, 1),
        writable("sums", sums, np.int64, 1),
    )


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
        raise ValueError(f"norm={norm} must be from 1 to 2**27: vectors are divided by it.")
    if len(feature) and not 0 <= feature.min() <= feature.max() < len(codes):
        raise ValueError("feature names a feature that codes does not have.")
    if not len(value) == len(feature) == matrix.shape[1] or not fits(matrix, value):
        raise ValueError("A row could have a number of 2**27 or more in a direction.")
