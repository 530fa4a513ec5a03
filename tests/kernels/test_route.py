import numpy as np
import pytest
from helpers import naive_leaves, naive_tree_sums, pack, some_scores

from dpgb_dask.kernels import histogram, route


def plain(feature, threshold):
    """Trees without masks."""
    return feature, threshold, np.full(feature.shape, -1, np.int32), np.empty((0, 256), np.uint8)


def forest(n_trees, depth, n_features, masked=0.0, seed=0):
    """Random trees in which a share of the nodes has a mask."""
    rng = np.random.default_rng(seed)
    shape = (n_trees, (1 << depth) - 1)
    feature = rng.integers(0, n_features, shape, np.uint16)
    threshold = rng.integers(0, 256, shape, np.uint8)
    masks = rng.integers(0, 2, (7, 256), np.uint8)
    mask_of = np.where(rng.random(shape) < masked, rng.integers(0, 7, shape), -1).astype(np.int32)
    return feature, threshold, mask_of, masks


@pytest.mark.parametrize("masked", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("depth", range(11))
@pytest.mark.parametrize("n", [0, 1, 400])
def test_tree_sums_equals_walking_down(n, depth, masked):
    rng = np.random.default_rng(depth)
    codes = rng.integers(0, 256, (6, n), np.uint8)
    trees = forest(3, depth, 6, masked)
    for max_abs in (
        1 << 15,
        1 << 22,
        1 << 27,
    ):  # no flush, flush at 511 (wide) and at 15 rows (wide)
        g, h = rng.integers(-max_abs, max_abs + 1, n), rng.integers(0, max_abs + 1, n)
        packed, want = some_scores(lambda g, h: naive_tree_sums(codes, *trees, g, h), g, h)
        np.testing.assert_array_equal(route.tree_sums(codes, *trees, packed, max_abs), want)


@pytest.mark.parametrize("masked", [0.0, 0.5])
@pytest.mark.parametrize("depth", range(11))
def test_find_nodes_is_the_leaf_of_one_tree(depth, masked):
    rng = np.random.default_rng(depth)
    codes = rng.integers(0, 256, (6, 300), np.uint8)
    feature, threshold, mask_of, masks = forest(1, depth, 6, masked)
    tree = feature[0], threshold[0], mask_of[0], masks
    out = np.full(300, 77, np.uint16)
    route.find_nodes(codes, *tree, out)
    np.testing.assert_array_equal(out, naive_leaves(codes, *tree))


@pytest.mark.parametrize("masked", [0.0, 0.5])
@pytest.mark.parametrize("depth", range(11))
def test_trees_of_one_feature_are_sums_of_its_bins(depth, masked):
    rng = np.random.default_rng(depth)
    codes = rng.integers(0, 40, (6, 300), np.uint8)
    feature, threshold, mask_of, masks = forest(3, depth, 6, masked)
    feature[:] = 4
    trees = threshold, mask_of, masks
    leaf = route.leaves_of_codes(*trees, 40)
    every = np.tile(np.arange(40), (6, 1))
    for t in range(3):
        tree = feature[t], threshold[t], mask_of[t], masks
        np.testing.assert_array_equal(leaf[t], naive_leaves(every, *tree))
    g, h = rng.integers(-99, 100, 300), rng.integers(0, 100, 300)
    packed, want = some_scores(lambda g, h: naive_tree_sums(codes, feature, *trees, g, h), g, h)
    bins = np.ascontiguousarray(histogram.joint_sums(codes[4:5], packed, 99, (40,)))
    np.testing.assert_array_equal(route.sums_of_leaves(bins, *trees), want)


def test_the_only_feature_is_that_of_all_splits():
    feature, threshold, mask_of, _ = forest(2, 2, 1)
    threshold[:] = 9
    feature[:] = 5
    assert route.only_feature(feature, threshold, mask_of) == 5
    feature[1, 2] = 3
    assert route.only_feature(feature, threshold, mask_of) is None
    threshold[1, 2] = 255  # sends every row left: it reads no feature
    assert route.only_feature(feature, threshold, mask_of) == 5
    mask_of[1, 2] = 0
    assert route.only_feature(feature, threshold, mask_of) is None
    threshold[:], mask_of[:] = 255, -1
    assert route.only_feature(feature, threshold, mask_of) is None
    assert route.only_feature(feature[:, :0], threshold[:, :0], mask_of[:, :0]) is None


def test_find_nodes_over_several_blocks():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (3, route.BLOCK + 9), np.uint8)
    feature, threshold, mask_of, masks = forest(1, 9, 3, 0.1)
    tree = feature[0], threshold[0], mask_of[0], masks
    out = np.empty(codes.shape[1], np.uint16)
    route.find_nodes(codes, *tree, out)
    np.testing.assert_array_equal(out, naive_leaves(codes, *tree))


@pytest.mark.parametrize("depth", [3, 9])
def test_tree_sums_flush_within_a_call(depth):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (6, 2500), np.uint8)
    trees = forest(3, depth, 6)
    g, h = np.full(2500, 1 << 21), np.full(2500, 1 << 21)  # 1023 rows between flushes
    packed, want = some_scores(lambda g, h: naive_tree_sums(codes, *trees, g, h), g, h)
    np.testing.assert_array_equal(route.tree_sums(codes, *trees, packed, 1 << 21), want)


def test_each_leaf_has_the_number_of_its_path():
    codes = np.arange(8, dtype=np.uint8)[None]
    trees = plain(np.zeros((1, 7), np.uint16), np.array([[3, 1, 5, 0, 2, 4, 6]], np.uint8))
    got = route.tree_sums(codes, *trees, pack(np.arange(8), np.ones(8))[None], 8)
    assert got[0, :, 0].tolist() == [[k, 1] for k in range(8)]
    assert naive_leaves(codes, *(part[0] for part in trees[:3]), trees[3]).tolist() == list(
        range(8)
    )


def test_a_mask_decides_alone():
    codes = np.arange(4, dtype=np.uint8)[None]
    mask = np.zeros((1, 256), np.uint8)
    mask[0, [0, 2]] = 1
    tree = np.zeros(1, np.uint16), np.full(1, 1, np.uint8), np.zeros(1, np.int32), mask
    out = np.empty(4, np.uint16)
    route.find_nodes(codes, *tree, out)
    assert out.tolist() == [1, 0, 1, 0]


# max_abs, rows: exactly at the bound, one past it, several bounds
@pytest.mark.parametrize(
    ("max_abs", "n"), [(1 << 18, 8191), (1 << 18, 8192), (1 << 21, 1024), (1 << 28, 8)]
)
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("depth", [2, 9])
def test_tree_sums_hold_at_the_flush_bound(max_abs, n, sign, depth):
    g, h = np.full(n, sign * max_abs), np.full(n, max_abs)
    codes = np.ones((1, n), np.uint8)
    shape = 2, (1 << depth) - 1
    trees = plain(np.zeros(shape, np.uint16), np.zeros(shape, np.uint8))
    got = route.tree_sums(codes, *trees, pack(g, h)[None], max_abs)[:, :, 0]
    want = np.zeros((2, 1 << depth, 2), np.int64)
    want[:, -1] = sign * max_abs * n, max_abs * n
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("depth", [2, 9])
def test_a_flush_one_row_too_late_is_seen(depth, monkeypatch):
    max_abs, n = 1 << 21, 1024
    g = np.full(n, max_abs)
    codes = np.ones((1, n), np.uint8)
    shape = 2, (1 << depth) - 1
    trees = plain(np.zeros(shape, np.uint16), np.zeros(shape, np.uint8))
    monkeypatch.setattr(histogram, "flush_rows", lambda bound: ((1 << 31) - 1) // bound + 1)
    with np.errstate(over="ignore"):
        got = route.tree_sums(codes, *trees, pack(g, g)[None], max_abs)
    assert got[0, -1, 0, 0] != max_abs * n


def test_tree_sums_of_no_trees_is_empty():
    codes, packed = np.zeros((1, 2), np.uint8), np.zeros((1, 2), np.int64)
    assert route.tree_sums(codes, *forest(0, 5, 1), packed, 1).shape == (0, 32, 1, 2)


def test_trees_name_what_does_not_fit():
    codes, packed = np.zeros((2, 3), np.uint8), np.zeros((1, 3), np.int64)
    feature, threshold, mask_of, masks = forest(2, 2, 2)
    cut = [part[:, :2].copy() for part in (feature, threshold, mask_of)]
    with pytest.raises(ValueError, match="depth in"):
        route.tree_sums(codes, *cut, masks, packed, 1)
    with pytest.raises(ValueError, match="depth in"):
        route.tree_sums(codes, *forest(1, 11, 2), packed, 1)
    with pytest.raises(ValueError, match="feature that codes"):
        route.tree_sums(codes, feature + np.uint16(2), threshold, mask_of, masks, packed, 1)
    with pytest.raises(ValueError, match="feature has dtype=int64"):
        route.tree_sums(codes, feature.astype(np.int64), threshold, mask_of, masks, packed, 1)
    for wrong in ((mask_of + np.int32(8), masks), (mask_of + np.int32(1), masks * np.uint8(2))):
        with pytest.raises(ValueError, match="mask that is not a row"):
            route.tree_sums(codes, feature, threshold, *wrong, packed, 1)
