"""Sums of products with vectors of the unit ball: the kernels against plain integers, and what does not fit them."""

import numpy as np
import pytest
from helpers import naive_directions, naive_products, naive_unit

from dpgb_dask.kernels.directions import (
    BLOCK,
    MOST,
    MOST_DIRECTIONS,
    PRODUCT_BITS,
    ROOT_HALF,
    UNIT_BITS,
    add_directions,
    add_products,
    fits,
)

LARGEST = (1 << 31) - 1


def some_numbers(n_rows, n=4, most=300, seed=0):
    """Codes, features among them, and a number for each of their bins."""
    rng = np.random.default_rng([seed, n_rows])
    codes = rng.integers(0, 20, (n + 2, n_rows), dtype=np.uint8)
    feature = rng.permutation(n + 2)[:n]
    value = [rng.integers(-most, most + 1, 20).astype(np.int32) for _ in range(n)]
    return codes, feature, value


def looked_up(codes, feature, value):
    return np.stack([part[codes[j]] for j, part in zip(feature, value, strict=True)])


def packed_rows(n_rows, n_scores, seed=1):
    """Any (g, h), some as large as they may be."""
    rng = np.random.default_rng([seed, n_rows])
    g = rng.integers(-LARGEST, LARGEST + 1, (n_scores, n_rows))
    h = rng.integers(0, LARGEST + 1, (n_scores, n_rows))
    g[:, ::3], h[:, ::4], g[:, ::5] = -LARGEST, LARGEST, rng.integers(-2, 3, g[:, ::5].shape)
    return (g << 32) + h


@pytest.mark.parametrize("n_rows", [0, 1, 300, BLOCK, BLOCK + 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_products_are_those_of_plain_integers(n_rows, weighted):
    codes, feature, value = some_numbers(n_rows)
    weight = np.random.default_rng(2).integers(0, 1 << 16, n_rows).astype(np.int32)
    sums = np.arange(10, dtype=np.int64)
    add_products(codes, feature, value, 350, weight if weighted else None, sums)
    numbers = looked_up(codes, feature, value)
    expected = naive_products(numbers, 350, weight if weighted else np.ones(n_rows))
    np.testing.assert_array_equal(sums, expected + np.arange(10))


@pytest.mark.parametrize("n_rows", [0, 1, 200])
@pytest.mark.parametrize("n_scores", [1, 3])
@pytest.mark.parametrize("norm", [1, 900, MOST - 1])
def test_directions_are_those_of_plain_integers(n_rows, n_scores, norm):
    codes, feature, value = some_numbers(n_rows)
    matrix = np.random.default_rng(3).integers(-5, 6, (7, 4)).astype(np.int32)
    packed = packed_rows(n_rows, n_scores)
    sums = np.ones((7, n_scores, 2), np.int64)
    add_directions(codes, feature, value, matrix, norm, packed, sums)
    numbers = matrix.astype(np.int64) @ looked_up(codes, feature, value)
    np.testing.assert_array_equal(sums, 1 + naive_directions(numbers, norm, packed))


@pytest.mark.parametrize("most", [1, 300, (MOST - 1) // MOST_DIRECTIONS])
def test_a_row_adds_no_more_than_a_vector_of_norm_1(most):
    """The largest numbers that there may be, and single steps, which rounding could raise."""
    n = MOST_DIRECTIONS
    codes, feature, value = some_numbers(60, n, most)
    matrix = np.random.default_rng(4).choice([-1, 1], (n, n)).astype(np.int32)
    for i in range(codes.shape[1]):
        row = np.ascontiguousarray(codes[:, i : i + 1])
        products = np.zeros(n * (n + 1) // 2, np.int64)
        add_products(row, feature, value, 1, None, products)
        assert sum(int(p) ** 2 for p in products) <= 1 << (2 * PRODUCT_BITS - 1)
        assert sum(abs(int(p)) for p in products) <= ((n - 1) << (PRODUCT_BITS - 1)) + ROOT_HALF
        sums = np.zeros((n, 1, 2), np.int64)
        add_directions(row, feature, value, matrix, 1, np.array([[(-LARGEST << 32) + 9]]), sums)
        squared = sum(int(g) ** 2 for g in sums[:, 0, 0])
        assert squared <= LARGEST**2
        assert (
            squared > (0.99 if most > 1 else 0.95) * LARGEST**2
        )  # a norm of few steps is rounded up
        assert sum(int(h) ** 2 for h in sums[:, 0, 1]) <= 81


@pytest.mark.parametrize("seed", range(3))
def test_vectors_are_divided_by_their_norm_and_no_less(seed):
    rng = np.random.default_rng(seed)
    for _ in range(200):
        vector = rng.integers(-(2 ** rng.integers(1, 28)), 2 ** rng.integers(1, 28), 64)
        norm = int(2 ** rng.uniform(0, 27))
        unit = naive_unit(vector, norm)
        by = max(float(np.sqrt((vector.astype(float) ** 2).sum())), norm)
        exact = vector / by
        assert sum(u * u for u in unit) <= 1 << (2 * UNIT_BITS)
        assert (np.abs(unit) <= np.abs(exact) * 2**UNIT_BITS).all()
        np.testing.assert_allclose(np.array(unit) / 2**UNIT_BITS, exact, rtol=1 / by, atol=1e-4)


def test_a_code_that_a_feature_does_not_have_counts_as_its_last():
    codes = np.array([[250], [0]], np.uint8)
    value = [np.array([0, 3], np.int32), np.array([4], np.int32)]
    sums = np.zeros(3, np.int64)
    add_products(codes, np.arange(2), value, 5, None, sums)
    expected = [0.6**2 / 2**0.5, 0.6 * 0.8, 0.8**2 / 2**0.5]
    np.testing.assert_allclose(sums / 2**PRODUCT_BITS, expected, atol=2e-4)


def test_what_could_not_be_squared_does_not_fit():
    value = [np.array([-(2**19), 5], np.int32)] * 2
    assert fits(np.array([[255, 0], [100, -155]], np.int32), value)
    assert not fits(np.array([[255, 0], [100, -156]], np.int32), value)
    assert not fits(np.full((1, 2), -(2**31), np.int32), [np.ones(1, np.int32)] * 2)
    assert not fits(np.zeros((MOST_DIRECTIONS + 1, 2), np.int32), value)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"norm": 0}, "norm=0"),
        ({"norm": MOST}, "norm="),
        ({"feature": np.array([0, 9])}, "feature"),
        ({"feature": np.array([-1, 0])}, "feature"),
        ({"value": [np.full(3, 1 << 20, np.int32)] * 2}, "2\\*\\*27"),
        ({"value": [np.ones(3, np.int32)]}, "2\\*\\*27"),
        ({"matrix": np.ones((2, 3), np.int32)}, "2\\*\\*27"),
        ({"sums": np.zeros((2, 2, 2), np.int64)}, "shape"),
        ({"sums": np.zeros((2, 1, 2), np.int32)}, "sums"),
        ({"packed": np.zeros((1, 4), np.int64)}, "rows"),
    ],
)
def test_what_does_not_fit_is_refused(changed, match):
    asked = {
        "codes": np.zeros((2, 3), np.uint8),
        "feature": np.arange(2),
        "value": [np.ones(3, np.int32)] * 2,
        "matrix": np.full((2, 2), 256, np.int32),
        "norm": 9,
        "packed": np.zeros((1, 3), np.int64),
        "sums": np.zeros((2, 1, 2), np.int64),
    } | changed
    with pytest.raises(ValueError, match=match):
        add_directions(**asked)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"sums": np.zeros(2, np.int64)}, "shape"),
        ({"weight": np.ones(2, np.int32)}, "weight"),
        ({"weight": np.ones(3)}, "weight"),
        ({"norm": 0}, "norm=0"),
    ],
)
def test_products_that_do_not_fit_are_refused(changed, match):
    asked = {
        "codes": np.zeros((2, 3), np.uint8),
        "feature": np.arange(2),
        "value": [np.ones(3, np.int32)] * 2,
        "norm": 9,
        "weight": None,
        "sums": np.zeros(3, np.int64),
    } | changed
    with pytest.raises(ValueError, match=match):
        add_products(**asked)
