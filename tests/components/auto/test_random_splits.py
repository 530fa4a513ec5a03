"""The random splits of the forest: where features may be split, where a node may be, and how often it is."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from rich_parts import answered, leaf_of, places_at, state_of

from dpgb_dask.components import constants
from dpgb_dask.components.auto.forest import Forest
from dpgb_dask.components.auto.random_splits import (
    Places,
    draw_splits,
    heaviest,
    weights_between,
)
from dpgb_dask.components.auto.schedules import effects_known
from dpgb_dask.contracts.model import Splits
from dpgb_dask.kernels.splits import NOWHERE

CHANCE = np.array([0.5, 0.3, 0.2, 0.0])
CUTS = [[0, 3, 4, 9, 20, 21], [0], [1, 2], [5]]


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
    todo = [(0, [list(own) for own in CUTS])]
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
    splits = draw_splits(CHANCE, places_at(CUTS), 40, depth, rng, first)
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


def test_features_and_places_follow_their_chances():
    weights = [np.array([1, 2, 3, 2, 1, 3]), np.ones(1), np.ones(2), np.ones(1)]
    splits = draw_splits(CHANCE, places_at(CUTS, weights), 30_000, 2, np.random.default_rng(0))
    root, at = splits.feature[:, 0], splits.threshold[:, 0]
    np.testing.assert_allclose(np.bincount(root, minlength=4) / 30_000, CHANCE, atol=0.01)
    for j, own in enumerate(CUTS[:3]):
        share = np.bincount(at[root == j], minlength=22)[own] / (root == j).sum()
        np.testing.assert_allclose(share, weights[j] / weights[j].sum(), atol=0.02)
    # a feature of two values is not drawn again below itself; the others share what it had
    below = splits.feature[root == 1, 1:]
    share = np.bincount(below.ravel(), minlength=4) / below.size
    np.testing.assert_allclose(share, [5 / 7, 0, 2 / 7, 0], atol=0.02)
    # to the right of its fourth place of six, a feature has two left
    right = splits.threshold[(root == 0) & (at == 9), 2][
        splits.feature[(root == 0) & (at == 9), 2] == 0
    ]
    np.testing.assert_allclose(np.bincount(right)[20:] / len(right), [0.25, 0.75], atol=0.05)


def test_nothing_to_divide_makes_trees_of_one_leaf():
    places = places_at([[3], [1]])
    splits = draw_splits(np.array([0.0, 1.0]), places, 4, 3, np.random.default_rng(0))
    assert (splits.threshold[:, 0] == 1).all()
    assert (splits.threshold[:, 1:] == NOWHERE).all()
    splits = draw_splits(np.ones(2), places_at([[], []]), 4, 3, np.random.default_rng(0))
    assert (splits.threshold == NOWHERE).all()


def ranks(state, effects, rows):
    """The state with these effects, and rows, of the categories of its second feature."""
    tables = list(state.model.tables)
    tables[1] = np.array(effects, np.int32)[:, None]
    counts = (state.counts[0], np.array(rows, float), state.counts[2])
    return replace(state, model=replace(state.model, tables=tuple(tables)), counts=counts)


@pytest.mark.parametrize("flip", [1, -1])
def test_categories_are_split_in_the_order_of_their_effects(flip):
    """From the end where the heaviest is, however signs are; below a split, on either side, in the same order."""
    state = ranks(state_of(), flip * np.array([-50, 40, -10, 0, 0]), [90, 50, 30, 1, 1])
    places = Places.of(state, 32)
    assert not places.ordered[1]
    order = [0, 2, 3, 4, 1] if flip > 0 else [0, 2, 4, 3, 1]
    sides = [places.masks[k, :5] if k >= 0 else np.arange(5) > t
             for k, t in zip(places.mask_of[1, :4], places.threshold[1, :4], strict=True)]  # fmt: skip
    for place, right in enumerate(sides):
        assert {c for c in range(5) if not right[c]} == set(order[: place + 1])
    assert places.mask_of[1, 0] == -1  # the heaviest against all others needs no mask
    splits = draw_splits(np.array([0.0, 1, 0]), places, 400, 3, np.random.default_rng(1))
    codes = np.stack([np.zeros(5, int), np.arange(5), np.zeros(5, int)])
    rank = np.argsort(order)
    for t in range(400):
        leaf = leaf_of(splits.part(t, t + 1), codes)[np.argsort(rank)]
        assert (np.diff(leaf) >= 0).all()  # along the order, leaves increase
        assert len(set(leaf)) > 2
    assert len(splits.masks) == len({mask.tobytes() for mask in splits.masks}) <= 3
    for seed in range(5):  # a message has no mask that its trees do not use
        one = draw_splits(np.array([0.0, 1, 0]), places, 1, 1, np.random.default_rng(seed))
        assert len(one.masks) == (one.mask_of[0, 0] >= 0)


def test_below_a_chosen_split_of_categories_all_their_places_are_left():
    """It may be in another order, even where a threshold tells its sides."""
    places = Places.of(ranks(state_of(), [-50, 40, -10, 20, 5], [60, 50, 40, 30, 20]), 32)
    n = 200
    feature, threshold = np.ones((n, 3), np.uint16), np.full((n, 3), NOWHERE, np.uint8)
    threshold[:, 0] = 1
    first = Splits.plain(feature, threshold)
    splits = draw_splits(np.array([0.0, 1, 0]), places, n, 2, np.random.default_rng(0), first)
    assert (splits.threshold[:, 0] == 1).all()
    for child in (1, 2):
        by_threshold = splits.mask_of[:, child] < 0
        sides = {splits.masks[k].tobytes() for k in splits.mask_of[~by_threshold, child]}
        told = set(splits.threshold[by_threshold, child].tolist())
        assert len(sides) + len(told) == places.n[1]
        assert NOWHERE not in told


def test_places_are_by_rows_and_by_what_effects_differ():
    """Shares of rows and of variation; the missing bin, whose effect is no neighbour's, by its rows alone."""
    mass = np.array([10.0, 30, 40, 20])
    table = np.array([[0], [6], [-3], [100]], np.int32)
    found = weights_between(mass, table, 1.0, missing_last=True)
    share = constants.FOREST_BY_EFFECT
    rows, effect = np.array([20, 35, 20]) / 75, np.array([6, 9, 0]) / 15
    np.testing.assert_allclose(found, (1 - share) * rows + share * effect)
    found = weights_between(mass, table, 1.0, missing_last=False)
    rows, effect = np.array([20, 35, 30]) / 85, np.array([6, 9, 103]) / 118
    np.testing.assert_allclose(found, (1 - share) * rows + share * effect)
    # of several scores the differences add up; without any effect rows alone count
    both = weights_between(mass, np.hstack([table, -table]), 1.0, missing_last=False)
    np.testing.assert_allclose(both, found)
    none = weights_between(mass, 0 * table, 1.0, missing_last=False)
    np.testing.assert_allclose(none, rows)
    # what is not known is alike for all
    half = weights_between(mass, table, 0.5, missing_last=False)
    np.testing.assert_allclose(half, found / 2 + 1 / 6)
    np.testing.assert_allclose(weights_between(mass, table, 0.0, missing_last=True), 1 / 3)
    assert weights_between(mass[:1], table[:1], 1.0, missing_last=True).shape == (0,)


@pytest.mark.parametrize(("signal", "known"), [(0, 0), (99, 0), (200, 0.5), (400, 1), (1e6, 1)])
def test_places_follow_effects_as_far_as_the_signal_lets_them_be_known(signal, known):
    assert effects_known(signal) == known
    state = state_of(signal=signal)
    tables = list(state.model.tables)
    tables[0] = np.repeat([0, 1000], [10, 32]).astype(np.int32)[:, None]  # a step after bin 9
    state = replace(state, model=replace(state.model, tables=tuple(tables)))
    places = Places.of(state, 64)
    share = np.diff(places.below[0])[9]
    assert share == pytest.approx(known * (0.6 + 0.4 / 41) + (1 - known) / 41, rel=0.05)


def test_of_many_bins_the_heaviest_place_of_each_run_stands_for_it():
    weight = np.array([1, 1, 6, 2, 2, 4, 3, 1, 7, 1, 3, 1.0])
    place, own = heaviest(weight, 4)
    # the middles of their ranges, of 32 in all, fall into four runs of 8
    assert place.tolist() == [2, 5, 8, 10]
    assert own.tolist() == [8, 8, 11, 5]
    for most in (12, 30):
        place, own = heaviest(weight, most)
        assert place.tolist() == list(range(12))
        assert own is weight
    rng = np.random.default_rng(0)
    for _ in range(50):
        weight = rng.random(rng.integers(20, 250)) ** 8
        place, own = heaviest(weight, 15)
        assert len(place) <= 15
        assert (np.diff(place) > 0).all()
        assert own.sum() == pytest.approx(weight.sum())
        assert weight.argmax() in place


def test_a_feature_of_few_bins_has_a_place_between_any_two():
    state = state_of()
    places = Places.of(state, 32)
    assert places.n.tolist() == [31, 4, 1]
    assert places.ordered.tolist() == [True, False, True]
    assert (np.diff(places.threshold[0].astype(int)) > 0).all()
    assert places.threshold[2].tolist() == [0] + [NOWHERE] * 30
    assert Places.of(state, 16).n.tolist() == [15, 4, 1]
    for own, n in zip(places.below, places.n, strict=True):
        assert own[0] == 0
        assert own[n] == pytest.approx(1)
        assert (np.diff(own[: n + 1]) > 0).all()


def test_trees_name_masks_that_others_have():
    """Every row goes where it went, and each mask is kept once, whichever there were."""
    rng = np.random.default_rng(0)
    masks = np.zeros((6, 256), np.uint8)
    masks[:, :9] = rng.random((6, 9)) < 0.5
    own = Splits(
        rng.integers(0, 2, (4, 3)).astype(np.uint16), np.full((4, 3), NOWHERE, np.uint8),
        rng.integers(-1, 4, (4, 3)).astype(np.int32), masks[[4, 1, 4, 5]],
    )  # fmt: skip
    codes = rng.integers(0, 9, (2, 50))
    before = [leaf_of(own.part(t, t + 1), codes) for t in range(4)]
    for known in (masks[:0], masks[:3], masks[[1, 1, 4]], masks):
        named = own.sharing(known)
        np.testing.assert_array_equal(named.masks[: len(known)], known)
        more = [mask.tobytes() for mask in named.masks[len(known) :]]
        assert len(set(more)) == len(more)
        assert not set(more) & {mask.tobytes() for mask in known}
        for t, leaf in enumerate(before):
            np.testing.assert_array_equal(leaf_of(named.part(t, t + 1), codes), leaf)
        assert named.mask_of.dtype == np.int32
    plain = Splits.plain(own.feature, own.threshold)
    assert (plain.sharing(masks).mask_of == -1).all()


def test_trees_of_all_rounds_share_their_masks():
    stage, state = Forest(rounds=10), ranks(state_of(), [-50, 40, -10, 20, 5], [60, 50, 40, 30, 20])
    state = stage.begin(state)
    state = replace(state, memory=replace(state.memory, chance=np.array([0.0, 1, 0])))
    for _ in range(4):
        query = stage.next_query(state)
        sums = np.ones((query.n_cells, 2)) * 100
        state = stage.update(state, query, answered(query, sums))
    masks = state.model.trees.splits.masks
    places = state.memory.places
    assert {mask.tobytes() for mask in masks} == {mask.tobytes() for mask in places.masks}
    assert len(masks) == len(places.masks) == 3
