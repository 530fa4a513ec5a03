"""Rows of too many blocks are shrunk: the kernel against plain integers, and what does not fit it."""

from math import isqrt

import numpy as np
import pytest

from dpgb_dask.kernels.shrink import BLOCK, shrink
from dpgb_dask.losses import unpack

BITS = 16
ONE = 1 << BITS


def pack(g, h):
    return (g << 32) + h


def weights(most, n):
    return [ONE, *(min(ONE, isqrt(most * ONE * ONE // k)) for k in range(1, n))]


def naive_shrink(codes, feature, low, high, first, weight, packed):
    """Each row in plain integers."""
    out = np.empty_like(packed)
    g, h = unpack(packed)
    for i in range(packed.shape[1]):
        outside = [not low[k] <= codes[f, i] <= high[k] for k, f in enumerate(feature)]
        w = weight[first + sum(outside)]
        for s in range(len(packed)):
            a, b = int(g[s, i]), int(h[s, i])
            out[s, i] = pack((abs(a) * w >> BITS) * (1 if a > 0 else -1), b * w >> BITS)
    return out


@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK + 5])
def test_shrink_multiplies_each_row_by_the_weight_of_its_count(n):
    rng = np.random.default_rng(n)
    codes = rng.integers(0, 256, (5, n), dtype=np.uint8)
    feature = np.array([3, 0, 4], np.int64)
    low, high = np.array([[0, 40, 1], [99, 255, 0]], np.uint8)  # no code is in the last
    weight = weights(2, 6)
    most = (1 << 31) - 1
    g, h = rng.integers(-most, most + 1, (2, n)), rng.integers(0, most + 1, (2, n))
    g[0, ::3], h[1, ::4] = -most, most  # as large as they may be
    g[1, ::5] = rng.integers(-2, 3, g[1, ::5].shape)  # where rounding shows
    packed = pack(g, h)
    expected = naive_shrink(codes, feature, low, high, 2, weight, packed)
    shrink(codes, feature, low, high, 2, weight, BITS, packed)
    np.testing.assert_array_equal(packed, expected)
    after_g, after_h = unpack(packed)
    assert (np.abs(after_g) <= np.abs(g)).all()
    assert (after_h <= h).all()


def test_shrink_leaves_rows_of_few_blocks_as_they_are():
    codes = np.zeros((1, 4), np.uint8)
    packed = pack(np.array([[-7, 7, 0, -1]]), np.array([[3, 0, 5, 1]]))
    before = packed.copy()
    ends = np.ones(1, np.uint8)
    shrink(codes, np.zeros(1, np.int64), ends, ends, 1, weights(2, 3), BITS, packed)
    np.testing.assert_array_equal(packed, before)


@pytest.mark.parametrize(
    "changes",
    [
        {"low": np.zeros(2, np.uint8)},
        {"high": np.zeros(1, np.int64)},
        {"feature": np.array([2])},
        {"feature": np.array([-1])},
        {"first": -1},
        {"first": 2},
        {"weight": [ONE, ONE, ONE + 1]},
        {"weight": [-1, ONE, ONE]},
        {"bits": 17},
        {"codes": np.zeros((2, 4), np.uint8)},
    ],
)
def test_shrink_names_what_does_not_fit(changes):
    given = {
        "codes": np.zeros((2, 3), np.uint8),
        "feature": np.zeros(1, np.int64),
        "low": np.zeros(1, np.uint8),
        "high": np.zeros(1, np.uint8),
        "first": 1,
        "weight": [ONE] * 3,
        "bits": BITS,
        "packed": np.zeros((1, 3), np.int64),
    }
    shrink(**given)
    with pytest.raises(ValueError):  # noqa: PT011
        shrink(**(given | changes))
