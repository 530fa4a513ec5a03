"""Parts of a model that are made monotone: nearest values, whole orders, and what is monotone stays."""

import itertools

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from dpgb_dask.contracts.model import FeatureBins, Splits
from dpgb_dask.contracts.monotone import (
    isotonic,
    leaves_below,
    order_of_cells,
    ordered_leaves,
    ordered_pair,
    ordered_table,
)
from dpgb_dask.errors import PlanError


@pytest.mark.parametrize("seed", range(5))
def test_isotonic_is_the_nearest_in_weighted_squares(seed):
    rng = np.random.default_rng(seed)
    values, weight = rng.normal(size=40) + np.arange(40) / 20, rng.exponential(size=40)
    np.testing.assert_allclose(
        isotonic(values, weight), isotonic_regression(values, weights=weight).x, atol=1e-12
    )
    np.testing.assert_array_equal(isotonic(np.sort(values), weight), np.sort(values))


def test_isotonic_takes_weights_of_zero():
    np.testing.assert_allclose(isotonic(np.array([3.0, 1.0]), np.zeros(2)), [2, 2])
    np.testing.assert_allclose(isotonic(np.array([3.0, 1.0]), np.array([0.0, 1.0])), [1, 1])


def test_a_table_keeps_its_missing_bin():
    table = np.array([3.0, 1.0, 2.0, -9.0])
    np.testing.assert_allclose(ordered_table(table, np.ones(4), 1), [2, 2, 2, -9])
    np.testing.assert_allclose(ordered_table(table, np.ones(4), -1), [3, 1.5, 1.5, -9])


@pytest.mark.parametrize("directions", [(1, 0), (0, -1), (1, -1), (-1, -1)])
def test_a_pair_is_ordered_along_its_axes(directions):
    rng = np.random.default_rng(3)
    table, weight = rng.normal(size=(6, 5)), rng.exponential(size=(6, 5))
    rows, columns = (
        np.arange(n - 1)[::d] if d else None for n, d in zip((6, 5), directions, strict=True)
    )
    out = ordered_pair(table, weight, rows, columns)
    if rows is not None:
        assert (np.diff(out[rows], axis=0) >= 0).all()
        assert not (np.diff(out, axis=0) >= 0).all()
    if columns is not None:
        assert (np.diff(out[:, columns], axis=1) >= 0).all()
    np.testing.assert_allclose(ordered_pair(out, weight, rows, columns), out, atol=1e-12)


def test_the_cells_of_a_pair_follow_the_feature():
    shared = np.array([0, 0, 1, 2, 2], np.uint8)  # missing values share the highest cell
    np.testing.assert_array_equal(order_of_cells(shared, 1), [0, 1, 2])
    np.testing.assert_array_equal(order_of_cells(np.array([0, 1, 2], np.uint8), -1), [1, 0])
    with pytest.raises(PlanError, match="cannot be monotone"):
        order_of_cells(np.array([0, 1, 0, 2], np.uint8), 1)


BINS = (
    FeatureBins(np.arange(3.0), None, 5),
    FeatureBins(np.arange(2.0), None, 4),
    FeatureBins(None, np.arange(4, dtype=np.uint8), 4),
)


def random_trees(rng, n_trees, depth):
    """Trees with masks, nodes without a split and ranges that no row reaches."""
    shape = (n_trees, (1 << depth) - 1)
    feature = rng.integers(0, 3, shape).astype(np.uint16)
    threshold = rng.integers(0, 3, shape).astype(np.uint8)
    threshold[rng.random(shape) < 0.1] = 255
    mask_of = np.where(rng.random(shape) < 0.3, rng.integers(0, 6, shape), -1).astype(np.int32)
    masks = np.zeros((6, 256), np.uint8)
    masks[:, :5] = rng.integers(0, 2, (6, 5))
    return Splits(feature, threshold, mask_of, masks)


def leaf_of(splits, t, codes):
    node = 0
    for _ in range(splits.depth):
        code, mask = codes[splits.feature[t, node]], splits.mask_of[t, node]
        right = splits.masks[mask, code] if mask >= 0 else code > splits.threshold[t, node]
        node = 2 * node + 1 + int(right)
    return node - splits.feature.shape[1]


EVERY_CODE = list(itertools.product(*(range(b.n_bins) for b in BINS)))


@pytest.mark.parametrize("directions", [(1, 0, 0), (-1, 0, 0), (1, -1, 0)])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_leaves_is_that_of_all_rows(seed, directions):
    splits = random_trees(np.random.default_rng(seed), 6, 3)
    for t in range(splits.n_trees):
        wanted = np.eye(8, dtype=bool)
        for codes in EVERY_CODE:
            for j, direction in enumerate(directions):
                for code in range(codes[j] + 1, BINS[j].missing_bin) if direction else ():
                    ends = [
                        leaf_of(splits, t, c) for c in (codes, (*codes[:j], code, *codes[j + 1 :]))
                    ]
                    a, b = ends[::direction]
                    wanted[a, b] = True
        found = leaves_below(splits, t, np.array(directions, np.int8), BINS)
        np.testing.assert_array_equal(found | np.eye(8, dtype=bool), wanted)


@pytest.mark.parametrize("directions", [(1, 0, 0), (1, -1, 0)])
def test_trees_become_monotone_and_stay_so(directions):
    rng = np.random.default_rng(7)
    directions = np.array(directions, np.int8)
    splits = random_trees(rng, 20, 4)
    value = rng.integers(-1000, 1000, (2, 20, 16)).astype(np.int32)
    out = ordered_leaves(splits, value, directions, BINS)
    for t in range(20):
        for score in range(2):
            table = np.array([out[score, t, leaf_of(splits, t, c)] for c in EVERY_CODE])
            table = table.reshape([b.n_bins for b in BINS])
            for j in np.flatnonzero(directions):
                steps = np.diff(np.take(table, range(BINS[j].missing_bin), axis=j), axis=j)
                assert (steps * directions[j] >= 0).all()
    assert out.dtype == np.int32
    assert (out != value).any()
    np.testing.assert_array_equal(ordered_leaves(splits, out, directions, BINS), out)


def test_a_mean_between_steps_is_rounded_down():
    stumps = Splits.plain(np.zeros((2, 1), np.uint16), np.zeros((2, 1), np.uint8))
    value = np.array([[[1, 0], [0, -1]]], np.int32)
    out = ordered_leaves(stumps, value, np.array([1, 0, 0], np.int8), BINS)
    assert out.tolist() == [[[0, 0], [-1, -1]]]


def test_a_tree_without_the_feature_stays():
    rng = np.random.default_rng(2)
    splits = Splits.plain(np.full((3, 7), 1, np.uint16), np.full((3, 7), 1, np.uint8))
    value = rng.integers(-9, 9, (1, 3, 8)).astype(np.int32)
    out = ordered_leaves(splits, value, np.array([1, 0, 0], np.int8), BINS)
    np.testing.assert_array_equal(out, value)
