"""Boxes of leaves, and what noise in them does to main effects, beside NumPy at its dullest."""

import numpy as np
import pytest

from dpgb_dask.kernels.boxes import UNUSED, fill_boxes, forest_moves

N_FEATURES, N_GROUPS, N_DRAWS = 3, 9, 5


def sides_of(split, right, leaf, depth):
    """Return the side of each feature on the path of a leaf of one tree: feature to groups."""
    node, found = 0, {}
    for level in range(depth):
        goes_right = (leaf >> (depth - level - 1)) & 1
        j, here = split[node], right[node] == goes_right
        found[j] = found.get(j, True) & here
        node = 2 * node + 1 + goes_right
    return found


def some_trees(rng, depth, n_trees=6):
    """Random trees with features that occur again, and sides with holes; shares of which the last group has none."""
    nodes = (1 << depth) - 1
    split = rng.integers(0, N_FEATURES, (n_trees, nodes)).astype(np.uint16)
    threshold = rng.integers(0, N_GROUPS, (n_trees, nodes, 1))
    right = (np.arange(N_GROUPS) > threshold).astype(np.uint8)
    holed = rng.random(split.shape) < 0.3
    right[holed] = rng.integers(0, 2, (holed.sum(), N_GROUPS))
    width = rng.random((N_FEATURES, N_GROUPS))
    width[:, -1] = 0
    return split, right, width / width.sum(1, keepdims=True)


@pytest.mark.parametrize("depth", [1, 2, 4, 6])
def test_sides_are_those_of_each_path_by_itself(depth):
    split, right, width = some_trees(np.random.default_rng(depth), depth)
    feature, inside, share = fill_boxes(split, right, width)
    assert (feature.shape, inside.dtype) == ((len(split) << depth, depth), np.bool_)
    for row in range(len(feature)):
        t, leaf = divmod(row, 1 << depth)
        told = {j: k for k, j in enumerate(feature[row]) if j != UNUSED}
        expected = sides_of(split[t], right[t], leaf, depth)
        assert told.keys() == expected.keys()
        for j, k in told.items():
            np.testing.assert_array_equal(inside[row, k], expected[j])
            assert share[row, k] == pytest.approx(width[j] @ expected[j])
        unused = feature[row] == UNUSED
        assert (share[row, unused] == 1).all()
        assert not inside[row, unused].any()


@pytest.mark.parametrize("depth", [1, 3, 6])
def test_moves_are_those_of_each_leaf_by_itself(depth):
    rng = np.random.default_rng(depth)
    split, right, width = some_trees(rng, depth)
    feature, inside, share = fill_boxes(split, right, width)
    _, _, mass = some_trees(rng, 1)
    of_error = rng.normal(size=len(feature))
    noise = rng.normal(size=(len(feature), N_DRAWS)).astype(np.float32)
    error = rng.normal(size=(N_FEATURES, N_GROUPS, N_DRAWS)).astype(np.float32)
    found = forest_moves(feature, inside, share, mass, of_error, noise, error)

    expected = np.zeros(error.shape)
    for row in range(len(feature)):
        t, leaf = divmod(row, 1 << depth)
        sides = sides_of(split[t], right[t], leaf, depth)
        part = {j: width[j] @ side for j, side in sides.items()}
        reached, mean = 1.0, np.zeros(N_DRAWS)
        for j, side in sides.items():
            of_side = mass[j] @ side
            reached *= of_side
            if of_side > 0:
                mean += (mass[j] * side) @ error[j] / of_side
        step = of_error[row] * reached * mean + noise[row]
        for j, side in sides.items():
            others = np.prod([part[i] for i in sides if i != j])
            expected[j] += np.outer((side - part[j]) * others, step)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_no_trees_move_nothing():
    width = np.full((N_FEATURES, N_GROUPS), 1 / N_GROUPS)
    split, right = np.empty((0, 3), np.uint16), np.empty((0, 3, N_GROUPS), np.uint8)
    feature, inside, share = fill_boxes(split, right, width)
    assert feature.shape == (0, 2)
    error = np.ones((N_FEATURES, N_GROUPS, N_DRAWS), np.float32)
    none = np.empty((0, N_DRAWS), np.float32)
    found = forest_moves(feature, inside, share, width, np.empty(0), none, error)
    assert not found.any()
