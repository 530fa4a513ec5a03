import numpy as np
import pytest
from helpers import naive_leaves, naive_tree_sums, pack

from dpgb_dask.kernels import histogram, route


def forest(n_trees, depth, n_features, seed=0):
    rng = np.random.default_rng(seed)
    shape = (n_trees, (1 << depth) - 1)
    return rng.integers(0, n_features, shape, np.uint16), rng.integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("depth", range(1, 9))
@pytest.mark.parametrize("n", [0, 1, 600])
def test_tree_sums_equals_walking_down(n, depth):
    rng = np.random.default_rng(depth)
    codes = rng.integers(0, 256, (6, n), np.uint8)
    feature, threshold = forest(5, depth, 6)
    for max_abs in (
        1 << 15,
        1 << 22,
        1 << 27,
    ):  # no flush, flush at 511 (wide) and at 15 rows (wide)
        g, h = rng.integers(-max_abs, max_abs + 1, n), rng.integers(0, max_abs + 1, n)
        got = route.tree_sums(codes, feature, threshold, pack(g, h), max_abs)
        np.testing.assert_array_equal(got, naive_tree_sums(codes, feature, threshold, g, h))


def test_tree_sums_flush_within_a_call():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (6, 2500), np.uint8)
    feature, threshold = forest(3, 3, 6)
    g, h = np.full(2500, 1 << 21), np.full(2500, 1 << 21)  # 1023 rows between flushes
    got = route.tree_sums(codes, feature, threshold, pack(g, h), 1 << 21)
    np.testing.assert_array_equal(got, naive_tree_sums(codes, feature, threshold, g, h))


def test_each_leaf_has_the_number_of_its_path():
    codes = np.arange(8, dtype=np.uint8)[None]
    feature = np.zeros((1, 7), np.uint16)
    threshold = np.array([[3, 1, 5, 0, 2, 4, 6]], np.uint8)
    got = route.tree_sums(codes, feature, threshold, pack(np.arange(8), np.ones(8)), 8)
    assert got[0].tolist() == [[k, 1] for k in range(8)]
    assert naive_leaves(codes, feature[0], threshold[0]).tolist() == list(range(8))


# max_abs, rows: exactly at the bound, one past it, several bounds
@pytest.mark.parametrize(
    ("max_abs", "n"), [(1 << 18, 8191), (1 << 18, 8192), (1 << 21, 1024), (1 << 28, 8)]
)
@pytest.mark.parametrize("sign", [-1, 1])
def test_tree_sums_hold_at_the_flush_bound(max_abs, n, sign):
    g, h = np.full(n, sign * max_abs), np.full(n, max_abs)
    codes = np.ones((1, n), np.uint8)
    feature, threshold = np.zeros((2, 3), np.uint16), np.zeros((2, 3), np.uint8)
    got = route.tree_sums(codes, feature, threshold, pack(g, h), max_abs)
    want = np.zeros((2, 4, 2), np.int64)
    want[:, 3] = sign * max_abs * n, max_abs * n
    np.testing.assert_array_equal(got, want)


def test_a_flush_one_row_too_late_is_seen(monkeypatch):
    max_abs, n = 1 << 21, 1024
    g = np.full(n, max_abs)
    codes = np.ones((1, n), np.uint8)
    feature, threshold = np.zeros((2, 3), np.uint16), np.zeros((2, 3), np.uint8)
    monkeypatch.setattr(histogram, "flush_rows", lambda bound: ((1 << 31) - 1) // bound + 1)
    with np.errstate(over="ignore"):
        got = route.tree_sums(codes, feature, threshold, pack(g, g), max_abs)
    assert got[0, 3, 0] != max_abs * n


def test_tree_sums_of_no_trees_is_empty():
    feature, threshold = forest(0, 5, 1)
    out = route.tree_sums(np.zeros((1, 2), np.uint8), feature, threshold, np.zeros(2, np.int64), 1)
    assert out.shape == (0, 32, 2)


def test_trees_name_what_does_not_fit():
    codes, packed = np.zeros((2, 3), np.uint8), np.zeros(3, np.int64)
    feature, threshold = forest(2, 2, 2)
    with pytest.raises(ValueError, match="depth in"):
        route.tree_sums(codes, feature[:, :2].copy(), threshold[:, :2].copy(), packed, 1)
    with pytest.raises(ValueError, match="depth in"):
        route.tree_sums(codes, *forest(1, 9, 2), packed, 1)
    with pytest.raises(ValueError, match="feature that codes"):
        route.tree_sums(codes, feature + np.uint16(2), threshold, packed, 1)
    with pytest.raises(ValueError, match="feature has dtype=int64"):
        route.tree_sums(codes, feature.astype(np.int64), threshold, packed, 1)
