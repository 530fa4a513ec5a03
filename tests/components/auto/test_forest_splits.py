"""The random splits of the forest: where a node may split, and how often it does so there."""

from itertools import product

import numpy as np
import pytest

from dpgb_dask.components.auto.forest import draw_splits, padded
from dpgb_dask.components.trees.splits import NOWHERE
from dpgb_dask.contracts.model import Splits

CHANCE = np.array([0.5, 0.3, 0.2, 0.0])
PLACES = [np.array([0, 3, 4, 9, 20, 21]), np.array([0]), np.array([1, 2]), np.array([5])]


def begun(n_trees, depth):
    """Trees that split on two levels alone: at a threshold, and below that on a set of categories."""
    feature = np.zeros((n_trees, (1 << depth) - 1), np.uint16)
    threshold = np.full(feature.shape, NOWHERE, np.uint8)
    mask_of = np.full(feature.shape, -1, np.int32)
    threshold[:, 0] = 7  # of feature 0, between two of its places
    feature[:, 1:3], mask_of[:, 1] = 2, 0
    threshold[:, 2] = 1
    return Splits(feature, threshold, mask_of, np.eye(1, 256, dtype=np.uint8))


def walked(splits, tree):
    """Every node of a tree with the places that are left to it, by a walk from the root."""
    n_nodes = splits.feature.shape[1]
    todo = [(0, [list(own) for own in PLACES])]
    while todo:
        node, left = todo.pop()
        yield node, left
        if 2 * node + 1 >= n_nodes:
            continue
        j, cut = splits.feature[tree, node], splits.threshold[tree, node]
        below, above = [list(own) for own in left], [list(own) for own in left]
        if cut != NOWHERE:
            below[j], above[j] = [c for c in left[j] if c < cut], [c for c in left[j] if c > cut]
        todo += [(2 * node + 1, below), (2 * node + 2, above)]


@pytest.mark.parametrize(("depth", "n_begun"), [*product([1, 4, 6], [0, 5])])
def test_a_node_splits_where_something_is_left_to_divide(depth, n_begun):
    rng = np.random.default_rng(depth)
    first = begun(n_begun, depth) if n_begun and depth > 1 else None
    splits = draw_splits(CHANCE, padded(PLACES), 40, depth, rng, first)
    without = 0
    for tree in range(40):
        given = first is not None and tree < n_begun
        for node, left in walked(splits, tree):
            j, cut = splits.feature[tree, node], splits.threshold[tree, node]
            if given and node < 3:
                assert (j, cut) == (first.feature[tree, node], first.threshold[tree, node])
                assert splits.mask_of[tree, node] == first.mask_of[tree, node]
                continue
            assert splits.mask_of[tree, node] == -1
            if cut == NOWHERE:
                without += 1
                assert not any(left[:3])  # nothing is left but what is never drawn
            else:
                assert j != 3
                assert cut in left[j]
    assert (without > 0) == (depth > 1)
    assert splits.masks.shape == (1 if first is not None else 0, 256)


def test_features_follow_their_chances_and_places_are_alike():
    splits = draw_splits(CHANCE, padded(PLACES), 30_000, 2, np.random.default_rng(0))
    root, at = splits.feature[:, 0], splits.threshold[:, 0]
    np.testing.assert_allclose(np.bincount(root, minlength=4) / 30_000, CHANCE, atol=0.01)
    for j, own in enumerate(PLACES[:3]):
        share = np.bincount(at[root == j], minlength=22)[own] / (root == j).sum()
        np.testing.assert_allclose(share, 1 / len(own), atol=0.02)
    # a feature of two values is not drawn again below itself; the others share what it had
    below = splits.feature[root == 1, 1:]
    share = np.bincount(below.ravel(), minlength=4) / below.size
    np.testing.assert_allclose(share, [5 / 7, 0, 2 / 7, 0], atol=0.02)
    # to the right of its fourth place of six, a feature has two left
    right = splits.threshold[(root == 0) & (at == 9), 2][
        splits.feature[(root == 0) & (at == 9), 2] == 0
    ]
    np.testing.assert_allclose(np.bincount(right)[20:] / len(right), 0.5, atol=0.05)


def test_nothing_to_divide_makes_trees_of_one_leaf():
    places = padded([np.array([3]), np.array([1])])
    splits = draw_splits(np.array([0.0, 1.0]), places, 4, 3, np.random.default_rng(0))
    assert (splits.threshold[:, 0] == 1).all()
    assert (splits.threshold[:, 1:] == NOWHERE).all()
