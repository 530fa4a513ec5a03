"""Random splits of the nodes of a level, beside NumPy."""

import numpy as np
import pytest

from dpgb_dask.kernels.random_splits import left_below, split_nodes
from dpgb_dask.kernels.splits import NOWHERE


def plain(chance, places, allowed, draws, begun, left, feature, cut):
    """The same for all nodes at once."""
    low, high = left
    weight = chance * (low < high)
    if allowed is not None:
        weight *= allowed
    total = np.cumsum(weight, axis=1)
    node = np.flatnonzero(~begun & (total[:, -1] > 0))
    drawn = (total <= (draws[0] * total[:, -1])[:, None]).sum(1)
    feature[node] = drawn[node]
    start, stop = low[node, feature[node]], high[node, feature[node]]
    at = start + (draws[1][node] * (stop - start)).astype(np.int64)
    cut[node] = places[feature[node], at]
    low, high = low.repeat(2, axis=0), high.repeat(2, axis=0)
    node = np.flatnonzero(cut != NOWHERE)
    j, of_node, edge = feature[node], places[feature[node]], cut[node, None]
    least, most = low[2 * node, j], high[2 * node, j]
    high[2 * node, j] = np.clip((of_node < edge).sum(1), least, most)
    low[2 * node + 1, j] = np.clip((of_node <= edge).sum(1), least, most)
    return low, high


def nodes(seed, n=60, m=7):
    """Nodes with some places left to each; features without any, some that are never drawn, and splits that exist."""
    rng = np.random.default_rng(seed)
    places = np.full((m, 9), NOWHERE, np.uint8)
    sizes = rng.integers(0, 10, m)
    for own, size in zip(places, sizes, strict=True):
        own[:size] = np.sort(rng.choice(250, size, replace=False))
    low = rng.integers(0, sizes + 1, (n, m)).astype(np.int16)
    high = (low + rng.integers(0, sizes - low + 1)).astype(np.int16)
    low[:5] = high[:5]  # nothing left
    chance = np.where(rng.random(m) < 0.2, 0.0, rng.random(m))
    feature, cut = rng.integers(0, m, n).astype(np.uint16), np.full(n, NOWHERE, np.uint8)
    begun = rng.random(n) < 0.3
    some = begun & (rng.random(n) < 0.7)  # the others have a mask
    cut[some] = rng.integers(0, 250, some.sum())
    return chance, places, rng.random((2, n)), begun, (low, high), feature, cut


@pytest.mark.parametrize("ruled", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_nodes_are_split_as_by_numpy(seed, ruled):
    chance, places, draws, begun, left, feature, cut = nodes(seed)
    rng = np.random.default_rng(seed)
    allowed = np.asfortranarray(rng.random(left[0].shape) < 0.6) if ruled else None
    found, wanted = (feature.copy(), cut.copy()), (feature.copy(), cut.copy())
    split_nodes(chance, places, allowed, draws, begun, left, *found)
    below = left_below(places, left, *found)
    told = plain(chance, places, allowed, draws, begun, left, *wanted)
    for mine, plainly in zip((*found, *below), (*wanted, *told), strict=True):
        np.testing.assert_array_equal(mine, plainly)
    nothing = ~begun[:5]
    assert (found[1][:5][nothing] == NOWHERE).all()
    assert (found[1][5:][~begun[5:]] != NOWHERE).any()


def test_a_draw_at_the_very_end_is_of_a_feature_that_may_be_drawn():
    """A product of a number below 1 may round up to all chances together."""
    chance, places = np.array([0.1, 0.2, 0.0]), np.array([[3], [5], [7]], np.uint8)
    left = np.zeros((1, 3), np.int16), np.array([[1, 1, 1]], np.int16)
    feature, cut = np.zeros(1, np.uint16), np.full(1, NOWHERE, np.uint8)
    draws = np.array([[1.0], [0.5]])
    split_nodes(chance, places, None, draws, np.zeros(1, bool), left, feature, cut)
    low, high = left_below(places, left, feature, cut)
    assert (feature[0], cut[0]) == (1, 5)
    assert low.tolist() == [[0, 0, 0], [0, 1, 0]]
    assert high.tolist() == [[1, 0, 1], [1, 1, 1]]
