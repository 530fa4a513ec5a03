"""Random splits of the nodes of a level, beside NumPy."""

import numpy as np
import pytest

from dpgb_dask.kernels.random_splits import left_below, split_nodes


def plain(chance, below, allowed, draws, begun, left, feature):
    """The same for all nodes at once."""
    low, high = left
    weight = chance * (low < high)
    if allowed is not None:
        weight *= allowed
    total = np.cumsum(weight, axis=1)
    node = np.flatnonzero(~begun & (total[:, -1] > 0))
    drawn = (total <= (draws[0] * total[:, -1])[:, None]).sum(1)
    feature[node] = drawn[node]
    place = np.full(len(begun), -1, np.int16)
    for i in node:
        own, first, end = below[feature[i]], low[i, feature[i]], high[i, feature[i]]
        edge = own[first] + draws[1, i] * (own[end] - own[first])
        place[i] = np.clip(np.searchsorted(own[: end + 1], edge, "right") - 1, first, end - 1)
    return place


def plain_below(left, feature, end, begin):
    low, high = (of.repeat(2, axis=0) for of in left)
    node = np.arange(len(feature))
    high[2 * node, feature] = np.minimum(high[2 * node, feature], end)
    low[2 * node + 1, feature] = np.maximum(low[2 * node + 1, feature], begin)
    return low, high


def nodes(seed, n=60, m=7):
    """Nodes with some places left to each; features without any, some that are never drawn, and splits that exist."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 10, m)
    below = np.ones((m, 10))
    for own, size in zip(below, sizes, strict=True):
        weight = rng.random(size) ** 3
        own[: size + 1] = np.append(0, np.cumsum(weight)) / max(weight.sum(), 1e-9)
    low = rng.integers(0, sizes + 1, (n, m)).astype(np.int16)
    high = (low + rng.integers(0, sizes - low + 1)).astype(np.int16)
    low[:5] = high[:5]  # nothing left
    chance = np.where(rng.random(m) < 0.2, 0.0, rng.random(m))
    feature = rng.integers(0, m, n).astype(np.uint16)
    return chance, below, rng.random((2, n)), rng.random(n) < 0.3, (low, high), feature


@pytest.mark.parametrize("ruled", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_nodes_are_split_as_by_numpy(seed, ruled):
    chance, below, draws, begun, left, feature = nodes(seed)
    rng = np.random.default_rng(seed)
    allowed = np.asfortranarray(rng.random(left[0].shape) < 0.6) if ruled else None
    own, theirs = feature.copy(), feature.copy()
    place = split_nodes(chance, below, allowed, draws, begun, left, own)
    wanted = plain(chance, below, allowed, draws, begun, left, theirs)
    np.testing.assert_array_equal(place, wanted)
    np.testing.assert_array_equal(own, theirs)
    assert (place[:5] == -1).all()
    assert (place[5:][~begun[5:]] >= 0).any()
    np.testing.assert_array_equal(own[begun], feature[begun])
    end, begin = rng.integers(0, 10, (2, len(own))).astype(np.int16)
    for mine, plainly in zip(
        left_below(left, own, end, begin), plain_below(left, own, end, begin), strict=True
    ):
        np.testing.assert_array_equal(mine, plainly)


def test_places_follow_their_chances():
    below = np.array([[0, 0.5, 0.6, 0.9, 1.0]])
    n = 20_000
    left = np.ones((n, 1), np.int16), np.full((n, 1), 4, np.int16)  # all but the first
    draws = np.random.default_rng(0).random((2, n))
    place = split_nodes(
        np.ones(1), below, None, draws, np.zeros(n, bool), left, np.zeros(n, np.uint16)
    )
    np.testing.assert_allclose(np.bincount(place) / n, [0, 0.2, 0.6, 0.2], atol=0.02)


def test_a_draw_at_the_very_beginning_passes_places_that_may_not_be_drawn():
    left = np.zeros((1, 1), np.int16), np.full((1, 1), 3, np.int16)
    below, draws = np.array([[0.0, 0.0, 0.5, 1.0]]), np.zeros((2, 1))
    feature = np.zeros(1, np.uint16)
    place = split_nodes(np.ones(1), below, None, draws, np.zeros(1, bool), left, feature)
    assert place.tolist() == [1]


def test_a_draw_at_the_very_end_is_of_a_feature_and_a_place_that_may_be_drawn():
    """A product of a number below 1 may round up to all chances together."""
    chance, below = np.array([0.1, 0.2, 0.0]), np.tile([0, 0.5, 1.0], (3, 1))
    left = np.zeros((1, 3), np.int16), np.array([[1, 2, 1]], np.int16)
    feature, draws = np.zeros(1, np.uint16), np.ones((2, 1))
    place = split_nodes(chance, below, None, draws, np.zeros(1, bool), left, feature)
    assert (feature[0], place[0]) == (1, 1)
    low, high = left_below(left, feature, place, place + np.int16(1))
    assert low.tolist() == [[0, 0, 0], [0, 2, 0]]
    assert high.tolist() == [[1, 1, 1], [1, 2, 1]]
