"""How nodes are split: drawn trees, released histograms, drawn candidates, private choices."""

from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from helpers import naive_leaves
from thinned import thinned

from dpgb_dask.components.answers import Sums
from dpgb_dask.components.trees.leaves import GradientStep, NewtonStep
from dpgb_dask.components.trees.splits import (
    NOWHERE,
    Candidates,
    ExponentialSplit,
    Frontier,
    HistogramSplit,
    LevelSplits,
    NodeHistogram,
    PartiallyRandom,
    TotallyRandom,
    grow,
    root,
    threshold_of,
)
from dpgb_dask.contracts.constraints import Interactions
from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.kernels.splits import best_splits
from dpgb_dask.losses import GRAD_ONE, label_gradient


def numeric(n_bins):
    return FeatureBins(np.arange(n_bins - 2) + 0.5, None, n_bins)


def categorical(n_bins):
    return FeatureBins(None, np.arange(n_bins, dtype=np.uint8), n_bins)


def menu_of(*bins, cuts=None, missing=None, features=None):
    """Return a menu; all cuts of numeric features, unless some are given."""
    every = [np.arange(0 if b.categorical else b.n_bins - 2, dtype=np.uint8) for b in bins]
    for j, some in (cuts or {}).items():
        every[j] = np.array(some, np.uint8)
    return Candidates(
        features=np.arange(len(bins)) if features is None else np.array(features),
        bins=bins,
        cuts=tuple(every),
        missing=missing or (False,) * len(bins),
    )


def frontier_of(candidates, splits=None):
    gradient = label_gradient("binary", 1, average=True, count_scale=1.0)
    return Frontier(
        splits=splits or root(),
        candidates=candidates,
        gradient=gradient,
        n_scores=1,
        label="",
        price=1,
        weight_bits=0,
        rows=None,
    )


def walk(splits, codes):
    """Leaf of each row of (n_features, n_rows) codes, walking down."""
    one = splits.feature[0], splits.threshold[0], splits.mask_of[0]
    return naive_leaves(np.asarray(codes), *one, splits.masks)


def goes_right(level, k, j, n_bins):
    """Which bins of feature j node k of a level sends right, by walking."""
    alone = LevelSplits(
        level.feature[[k]], level.threshold[[k]], level.mask[[k]], level.masked[[k]]
    )
    codes = np.zeros((int(level.feature.max()) + j + 1, n_bins), np.uint8)
    codes[j] = np.arange(n_bins)
    return walk(grow(root(), alone), codes) == 1


def every_row(candidates):
    """All combinations of codes but missing values."""
    return np.array(list(product(*(range(b.n_bins - 1) for b in candidates.bins)))).T


# ---- levels


@pytest.mark.parametrize("n_bins", [2, 3, 5, 17, 255, 256])
@pytest.mark.parametrize("seed", range(5))
def test_a_level_sends_right_what_it_was_given(n_bins, seed):
    rng = np.random.default_rng(seed)
    wanted = [rng.integers(0, 2, n_bins) == 1 for _ in range(4)]
    wanted += [np.arange(n_bins) >= rng.integers(1, n_bins) for _ in range(2)]
    wanted += [np.zeros(n_bins, bool), np.ones(n_bins, bool)]
    level = LevelSplits.unsplit(len(wanted))
    for k, right in enumerate(wanted):
        level.set(k, 1, right)
    for k, right in enumerate(wanted):
        np.testing.assert_array_equal(goes_right(level, k, 1, n_bins), right)
    assert not level.masked[4:7].any()  # the last ones, or none: a threshold, which routes faster
    assert level.masked[7]


@pytest.mark.parametrize("seed", range(5))
def test_grown_levels_route_like_their_parts(seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 6, (3, 200)).astype(np.uint8)
    splits, node = root(), np.zeros(200, int)
    for depth in range(4):
        level = LevelSplits.unsplit(1 << depth)
        right = rng.integers(0, 2, (1 << depth, 6)) == 1
        feature = rng.integers(0, 3, 1 << depth)
        for k in range(1 << depth):
            level.set(k, int(feature[k]), right[k])
        splits = grow(splits, level)
        node = 2 * node + [right[k, codes[feature[k], i]] for i, k in enumerate(node)]
        np.testing.assert_array_equal(walk(splits, codes), node)
    assert splits.depth == 4


def test_unsplit_nodes_send_every_code_left():
    assert not goes_right(LevelSplits.unsplit(1), 0, 0, 256).any()


# ---- totally random


def is_split(splits):
    return (splits.mask_of[0] >= 0) | (splits.threshold[0] != NOWHERE)


def draw(candidates, depth, seed, n_trees=1, **options):
    """Draw trees at once that may all use the features of the menu."""
    features = np.repeat(candidates.features[None], n_trees, axis=0)
    return TotallyRandom(**options).draw(candidates, features, depth, np.random.default_rng(seed))


def check_even(counts):
    """Counts of what is drawn with equal odds, within five standard deviations."""
    counts = np.asarray(counts)
    n, p = counts.sum(), 1 / counts.size
    np.testing.assert_allclose(counts, n * p, atol=5 * np.sqrt(n * p * (1 - p)))


MIXED = menu_of(
    numeric(40), categorical(5), numeric(12), categorical(1), numeric(2), numeric(9),
    cuts={5: [0, 3, 4]}, missing=(True, False, False, False, True, True),
)  # fmt: skip
GROUPS = np.array([[1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1]], bool)
RULES = {
    "any": None,
    "pairs": Interactions(np.arange(6), None),
    "groups": Interactions(np.arange(6), GROUPS),
}


def cuts_within(menu, j, codes):
    """The candidates of a feature at a node that these codes can reach."""
    low, high = codes.get(j, (0, menu.bins[j].n_bins - 1))
    return [int(cut) for cut in menu.cuts[j] if low <= cut < high]


def check_node(menu, splits, features, t, k, codes, used):
    """Check what is below a node of a tree that these codes can reach.

    Returns
    -------
    int
        Number of splits.
    bool
        Whether a node was left without a split though each of its features had a candidate.
    """
    if k >= splits.feature.shape[1]:
        return 0, False
    left, right = 2 * k + 1, 2 * k + 2
    j, at, mask = int(splits.feature[t, k]), int(splits.threshold[t, k]), splits.mask_of[t, k]
    allowed = np.ones(6, bool) if menu.interactions is None else menu.interactions.allowed(used)[0]
    if at == NOWHERE and mask < 0:
        assert j == 0
        while right < splits.feature.shape[1]:  # and nobody comes here
            assert splits.threshold[t, right] == NOWHERE
            assert splits.mask_of[t, right] < 0
            right = 2 * right + 1
        among = [i for i in features if allowed[i]]
        could = all(menu.bins[i].categorical or cuts_within(menu, i, codes) for i in among)
        below, idle = check_node(menu, splits, features, t, left, codes, used)
        return below, idle or could
    assert j in features
    assert allowed[j]
    bins = np.arange(menu.bins[j].n_bins)
    side = splits.masks[mask, : len(bins)] == 1 if mask >= 0 else bins > at
    used = used | (np.arange(6) == j)
    ends = codes, codes
    if mask >= 0:
        assert at == NOWHERE
        assert not splits.masks[mask, len(bins) :].any()
        assert threshold_of(side) is None
    if not menu.bins[j].categorical:
        assert side[-1] or menu.missing[j]
        cut = int(side.argmax()) - 1
        assert cut in cuts_within(menu, j, codes)
        np.testing.assert_array_equal(side[:-1], bins[:-1] > cut)
        low, high = codes.get(j, (0, len(bins) - 1))
        ends = codes | {j: (low, cut)}, codes | {j: (cut + 1, high)}
    parts = [
        check_node(menu, splits, features, t, child, end, used)
        for child, end in zip((left, right), ends, strict=True)
    ]
    return 1 + parts[0][0] + parts[1][0], parts[0][1] or parts[1][1]


@pytest.mark.parametrize("depth", [1, 3, 6])
def test_totally_random_repeats_and_has_its_depth(depth):
    candidates = menu_of(numeric(40), categorical(5), numeric(12), missing=(True, False, False))
    tree, again, other = (draw(candidates, depth, seed) for seed in (0, 0, 1))
    assert tree.depth == depth
    for name in ("feature", "threshold", "mask_of", "masks"):
        np.testing.assert_array_equal(getattr(tree, name), getattr(again, name))
    assert not np.array_equal(tree.threshold, other.threshold)


@pytest.mark.parametrize("max_leaves", thinned([None, 3, 9, 2], every=2))
@pytest.mark.parametrize("n_used", [1, 2, 6])
@pytest.mark.parametrize("rule", RULES)
def test_each_of_many_random_trees_keeps_to_the_rules(max_leaves, n_used, rule):
    """Features of its own that may meet, cuts within reach, sides, and as many splits as there may be."""
    menu = replace(MIXED, interactions=RULES[rule])
    features = np.sort([np.roll(np.arange(6), t)[:n_used] for t in range(60)])
    for depth in (1, 2, 5):
        most = (max_leaves or 1 << depth) - 1
        rng = np.random.default_rng(depth)
        splits = TotallyRandom(max_leaves=max_leaves).draw(menu, features, depth, rng)
        assert [part.dtype for part in splits.arrays] == ["u2", "u1", "i4", "u1"]
        masked = splits.mask_of[splits.mask_of >= 0]
        np.testing.assert_array_equal(masked, np.arange(len(splits.masks)))
        for t, own in enumerate(features.tolist()):
            n_splits, idle = check_node(menu, splits, own, t, 0, {}, np.zeros((1, 6), bool))
            made = (splits.mask_of[t] >= 0) | (splits.threshold[t] != NOWHERE)
            assert n_splits == made.sum() <= most
            assert not idle or n_splits == most


def test_features_cuts_and_sides_are_drawn_evenly():
    menu = menu_of(numeric(9), categorical(3), numeric(7), missing=(True, False, False))
    trees = draw(menu, 1, 0, n_trees=9000)
    feature, threshold, mask_of = trees.feature[:, 0], trees.threshold[:, 0], trees.mask_of[:, 0]
    check_even(np.bincount(feature, minlength=3))
    check_even(np.bincount(threshold[feature == 2], minlength=5))
    masks = trees.masks[mask_of[(feature == 0) & (mask_of >= 0)]]
    right = np.bincount(threshold[(feature == 0) & (mask_of < 0)], minlength=7)
    left = np.bincount(masks.argmax(1) - 1, minlength=7)
    check_even([right, left])  # where missing values go
    sets = [trees.masks[m, :3] if m >= 0 else np.arange(3) > at
            for at, m in zip(threshold[feature == 1], mask_of[feature == 1], strict=True)]  # fmt: skip
    check_even(np.bincount(np.array(sets) @ [1, 2, 4], minlength=8))


def test_only_features_that_may_meet_are_drawn_and_they_evenly():
    menu = menu_of(*[categorical(4)] * 6)
    groups = replace(menu, interactions=Interactions(np.arange(6), GROUPS))
    trees = draw(groups, 2, 0, n_trees=9000)
    check_even(np.bincount(trees.feature[:, 0], minlength=6))
    below = trees.feature[trees.feature[:, 0] == 3][:, 1:]
    for side in below.T:
        counts = np.bincount(side, minlength=6)
        assert counts[0] == 0  # of no group of feature 3
        check_even(counts[1:])
    check_even(np.bincount((below - 1) @ [5, 1], minlength=25))  # each side by itself


@pytest.mark.parametrize("n_at_once", thinned([7, 1, 1200], every=2))
@pytest.mark.parametrize("max_leaves", [None, 3])
def test_trees_drawn_at_once_have_the_law_of_one(n_at_once, max_leaves):
    """Of four bins: the cut of the root is even, then that of a child; one of two that can be split, by a coin."""
    blocks = [
        draw(menu_of(numeric(5)), 2, seed, n_at_once, max_leaves=max_leaves)
        for seed in range(1200 // n_at_once)
    ]
    thresholds, no = np.concatenate([block.threshold for block in blocks]), NOWHERE
    check_even(np.bincount(thresholds[:, 0], minlength=3))
    kinds, counts = np.unique(thresholds, axis=0, return_counts=True)
    rows = dict(zip(map(tuple, kinds.tolist()), counts.tolist(), strict=True))
    ends = [(0, no, 1), (0, no, 2), (2, 0, no), (2, 1, no)]
    middle = [(1, 0, no), (1, no, 2)] if max_leaves else [(1, 0, 2)]
    assert set(rows) == {*ends, *middle}
    check_even([rows[kind] for kind in ends])
    check_even([rows[kind] for kind in middle])


def test_below_a_node_without_a_split_its_left_child_draws_again():
    menu, n = menu_of(numeric(3), numeric(2)), 8000  # one cut, and none
    trees = draw(menu, 3, 0, n_trees=n)
    made = trees.threshold != NOWHERE
    share = np.array([1 / 2, 1 / 4, 0, 1 / 8, 0, 0, 0])
    sd = np.sqrt(n * share * (1 - share))
    assert (np.abs(made.sum(0) - n * share) <= 5 * sd).all()
    assert made.sum(1).max() == 1


def test_trees_drawn_at_once_do_not_depend_on_each_other():
    trees = draw(menu_of(numeric(5)), 1, 0, n_trees=9001)
    cut = trees.threshold[:, 0].astype(int)
    check_even(np.bincount(3 * cut[:-1] + cut[1:], minlength=9))


@pytest.mark.parametrize("seed", range(20))
def test_totally_random_leaves_no_side_empty(seed):
    candidates = menu_of(numeric(12), numeric(10))
    rows = every_row(candidates)
    tree = draw(candidates, 4, seed)
    at = np.zeros(rows.shape[1], int)  # the node of each row, in heap order
    for _ in range(4):
        for k in np.unique(at):
            right = rows[tree.feature[0, k], at == k] > tree.threshold[0, k]
            if is_split(tree)[k]:
                assert right.any()
                assert not right.all()
        at = 2 * at + 1 + (rows[tree.feature[0, at], np.arange(len(at))] > tree.threshold[0, at])


@pytest.mark.parametrize("seed", range(10))
def test_totally_random_keeps_to_the_candidates(seed):
    cuts = {0: [3, 9, 20], 2: [1]}
    candidates = menu_of(numeric(30), numeric(8), numeric(9), cuts=cuts, features=[0, 2])
    tree = draw(candidates, 3, seed)
    for j, threshold in zip(tree.feature[0], tree.threshold[0], strict=True):
        assert threshold == NOWHERE or threshold in cuts[j]


@pytest.mark.parametrize("max_leaves", [2, 3, 5, 8])
@pytest.mark.parametrize("seed", range(5))
def test_totally_random_stops_at_max_leaves(max_leaves, seed):
    tree = draw(menu_of(numeric(250), numeric(250)), 4, seed, max_leaves=max_leaves)
    assert is_split(tree).sum() == max_leaves - 1
    leaves = walk(tree, np.random.default_rng(0).integers(0, 249, (2, 5000)))
    assert len(np.unique(leaves)) <= max_leaves


def test_dp_ebm_trees_have_three_leaves_below_either_child():
    seen = set()
    for seed in range(60):  # of 7 bins: often one child has a single one, and the other is split
        tree = draw(menu_of(numeric(8)), 2, seed, max_leaves=3)
        seen.add(tuple(is_split(tree).tolist()))
        assert len(np.unique(walk(tree, np.arange(7)[None]))) == 3
    assert seen == {(True, True, False), (True, False, True)}


@pytest.mark.parametrize("seed", range(20))
def test_no_split_is_wasted_below_a_node_that_could_not_be_split(seed):
    candidates = menu_of(numeric(7))
    for max_leaves in (3, 4, 5):
        tree = draw(candidates, 5, seed, max_leaves=max_leaves)
        assert len(np.unique(walk(tree, np.arange(6)[None]))) == max_leaves
    everything = draw(candidates, 5, seed)
    assert is_split(everything).sum() == 5  # six bins: no more than five cuts, in whatever order


def test_missing_values_change_sides_only_where_declared():
    for missing, share in ((False, 0.0), (True, 0.5)):
        left = 0
        for seed in range(200):
            tree = draw(menu_of(numeric(10), missing=(missing,)), 1, seed)
            left += int(walk(tree, np.array([[9]]))[0] == 0)
        assert left / 200 == pytest.approx(share, abs=0.12)


def test_categories_go_to_random_sides():
    right = [
        walk(draw(menu_of(categorical(6)), 1, seed), np.arange(6)[None]) for seed in range(300)
    ]
    np.testing.assert_allclose(np.mean(right, axis=0), 0.5, atol=0.12)


# ---- noisy histograms


def table_of(grad, hess, sd=0.0):
    """One node, one score, no noise."""
    grad, hess = np.asarray(grad, float), np.asarray(hess, float)
    return NodeHistogram(grad[None, :, None], hess[None, :, None], sd, sd)


def plain_gain(right, grad, hess, ridge):
    """The papers' gain of gradients around the node's mean, summed over scores.

    That is G_L²/(H_L + λ) + G_R²/(H_R + λ) - G²/(H + λ), plainly, with G = 0 for the node.
    """
    grad = grad - hess * (grad.sum(0) / hess.sum(0))

    def term(part):
        return (grad[part].sum(0) ** 2 / (hess[part].sum(0) + ridge)).sum()

    return term(right) + term(~right) - term(np.ones(len(right), bool))


def random_node(rng, n_bins, n_scores=1):
    return rng.normal(size=(n_bins, n_scores)), rng.uniform(0.1, 2, (n_bins, n_scores))


def steepness(grad, hess, ridge):
    """How far each category's shrunk mean is from the node's mean."""
    return ((grad - hess * (grad.sum(0) / hess.sum(0))) / (hess + ridge))[:, 0]


def chosen_right(candidates, grad, hess, ridge, j=0):
    table = NodeHistogram(grad[None], hess[None], 0.0, 0.0)
    level = HistogramSplit(ridge=ridge).choose(table, frontier_of(candidates))
    assert level.feature[0] == j
    return goes_right(level, 0, j, candidates.bins[j].n_bins)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("n_scores", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_histogram_finds_the_best_threshold(seed, n_scores, missing):
    rng = np.random.default_rng(seed)
    grad, hess = random_node(rng, 9, n_scores)
    cuts = np.sort(rng.choice(7, 4, replace=False))
    candidates = menu_of(numeric(9), cuts={0: cuts}, missing=(missing,))
    right = chosen_right(candidates, grad, hess, 0.5)
    sides = [np.arange(9) > cut for cut in cuts]
    if missing:
        sides += [(np.arange(9) > cut) & (np.arange(9) < 8) for cut in cuts]
    best = max(plain_gain(side, grad, hess, 0.5) for side in sides)
    assert plain_gain(right, grad, hess, 0.5) == pytest.approx(best)
    assert any(np.array_equal(right, side) for side in sides)


@pytest.mark.parametrize("seed", range(10))
def test_histogram_finds_the_best_prefix_of_categories(seed):
    rng = np.random.default_rng(seed)
    grad, hess = random_node(rng, 7)
    right = chosen_right(menu_of(categorical(7)), grad, hess, 2.0)
    order = np.argsort(steepness(grad, hess, 2.0))
    sides = [np.isin(np.arange(7), order[n:]) for n in range(1, 7)]
    best = max(plain_gain(side, grad, hess, 2.0) for side in sides)
    assert plain_gain(right, grad, hess, 2.0) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(5))
def test_no_set_of_categories_beats_the_prefixes_without_a_ridge(seed):
    """Fisher 1958: for λ → 0 the best of all subsets is a prefix."""
    grad, hess = random_node(np.random.default_rng(seed), 7)
    right = chosen_right(menu_of(categorical(7)), grad, hess, 1e-9)
    subsets = [np.array(bits, bool) for bits in product([0, 1], repeat=7)][1:-1]
    best = max(plain_gain(side, grad, hess, 1e-9) for side in subsets)
    assert plain_gain(right, grad, hess, 1e-9) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(30))
def test_histogram_finds_the_best_feature(seed):
    rng = np.random.default_rng(seed)
    candidates = menu_of(numeric(6), categorical(4), numeric(5), missing=(True, False, True))
    grad, hess = random_node(rng, 15)
    level = HistogramSplit(ridge=0.5).choose(
        NodeHistogram(grad[None], hess[None], 0.0, 0.0), frontier_of(candidates)
    )
    found = {}
    for j, (start, end) in enumerate(((0, 6), (6, 10), (10, 15))):
        g, h, code = grad[start:end], hess[start:end], np.arange(end - start)
        if candidates.bins[j].categorical:
            order = np.argsort(steepness(g, h, 0.5))
            sides = [np.isin(code, order[n:]) for n in range(1, len(code))]
        else:
            last = len(code) - 1
            sides = [code > cut for cut in candidates.cuts[j]]
            sides += [(code > cut) & (code < last) for cut in candidates.cuts[j]]
        found[j] = max(plain_gain(side, g, h, 0.5) for side in sides)
    assert level.feature[0] == max(found, key=found.get)


def test_histogram_finds_planted_splits():
    """Three features in two nodes: the split that was planted, not the features of noise-free zeros."""
    candidates = menu_of(numeric(8), categorical(5), numeric(6), missing=(False, False, True))
    grad, hess = np.zeros((3, 19, 1)), np.full((3, 19, 1), 10.0)
    grad[0, :8, 0] = [-4, -4, -4, 4, 4, 4, 4, 0]  # node 0: x0 <= 2
    grad[1, 8:13, 0] = [6, -5, 6, -5, -5]  # node 1: categories {0, 2} against {1, 3, 4}
    grad[2, 13:, 0] = [-3, -3, 5, 5, 5, -3]  # node 2: x2 <= 1 and missing values, against the rest
    level = HistogramSplit().choose(
        NodeHistogram(grad, hess, 0.0, 0.0), frontier_of(candidates, plain_tree(2))
    )
    assert list(level.feature) == [0, 1, 2]
    np.testing.assert_array_equal(goes_right(level, 0, 0, 8), [0, 0, 0, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(goes_right(level, 1, 1, 5), [1, 0, 1, 0, 0])
    np.testing.assert_array_equal(goes_right(level, 2, 2, 6), [0, 0, 1, 1, 1, 0])


def plain_tree(depth):
    splits = root()
    for d in range(depth):
        splits = grow(splits, LevelSplits.unsplit(1 << d))
    return splits


def test_missing_values_stay_right_where_none_are_declared():
    grad, hess = np.array([-3.0, -3, 5, 5, 5, -3])[:, None], np.full((6, 1), 10.0)
    right = chosen_right(menu_of(numeric(6)), grad, hess, 1.0)
    np.testing.assert_array_equal(right, [0, 0, 1, 1, 1, 1])


def test_a_feature_without_candidates_is_never_chosen():
    candidates = menu_of(numeric(5), numeric(5), cuts={0: []})
    grad, hess = np.zeros((10, 1)), np.ones((10, 1))
    grad[:2], grad[2:5] = -9, 9  # tempting, but x0 has no cut
    level = HistogramSplit().choose(
        NodeHistogram(grad[None], hess[None], 0, 0), frontier_of(candidates)
    )
    assert level.feature[0] == 1
    none = menu_of(numeric(5), cuts={0: []})
    table = NodeHistogram(grad[None, :5], hess[None, :5], 0.0, 0.0)
    level = HistogramSplit().choose(table, frontier_of(none))
    assert not goes_right(level, 0, 0, 5).any()


class Side(NamedTuple):
    """Sums of one side of some splits, (n, n_scores), and the number of cells that they are spread over."""

    grad: np.ndarray
    hess: np.ndarray
    n_cells: int


def gain_of(left, right, grad_sd, hess_sd, ridge, *, ordered=False):
    """The gains of these splits, (n,)."""
    sides = left, right
    n_cells = np.array([side.n_cells for side in sides])
    grad, hess = (
        np.repeat(np.stack([np.atleast_2d(part / n) for part, n in zip(parts, n_cells, strict=True)], 1), n_cells, 1)
        for parts in ([side.grad for side in sides], [side.hess for side in sides])
    )  # fmt: skip
    return best_splits(
        grad, hess, np.array([n_cells.sum()]), [n_cells[:1] - 1], np.array([ordered]), np.array([False]), None,
        ridge, grad_sd, hess_sd,
    ).gain  # fmt: skip


def test_gains_of_noise_alone_are_nothing():
    """The variance of noise is taken off: a gain of noise alone is 0 on average, and 3 % of it would be seen."""
    rng = np.random.default_rng(0)
    n, sd, cells = 200_000, 3.0, (5, 2)
    hess = [np.full((n, 1), 100.0), np.full((n, 1), 300.0)]
    sides = [
        Side(rng.normal(0, sd * np.sqrt(k), (n, 1)), h, k) for k, h in zip(cells, hess, strict=True)
    ]
    gain = gain_of(*sides, sd, 1.0, 1.0)
    # D = 3/4 G_l - 1/4 G_r
    variance = sd**2 * (9 / 16 * 5 + 1 / 16 * 2)
    of_noise = variance * (1 / (100 + 4 * np.sqrt(5)) + 1 / (300 + 4 * np.sqrt(2)))
    assert gain.mean() == pytest.approx(0, abs=0.02 * of_noise)


def test_gains_of_a_noisy_hessian_are_nothing_where_sides_do_not_differ():
    """A common mean m makes noise of H look like a gain: its share, m² of the variance of H, is taken off too."""
    rng = np.random.default_rng(1)
    n, sd, mean, whole = 400_000, 5.0, 2.0, (4000.0, 6000.0)
    sides = [
        Side(np.full((n, 1), mean * h), h + rng.normal(0, sd * np.sqrt(k), (n, 1)), k)
        for h, k in zip(whole, (3, 8), strict=True)
    ]
    gain = gain_of(*sides, 0.0, sd, 1.0)
    variance = (mean * sd) ** 2 * (0.6**2 * 3 + 0.4**2 * 8)
    lowest = [4 * sd * np.sqrt(k) for k in (3, 8)]
    of_noise = variance * (1 / (whole[0] + lowest[0]) + 1 / (whole[1] + lowest[1]))
    assert gain.mean() == pytest.approx(0, abs=0.03 * of_noise)


@pytest.mark.parametrize("n_scores", [1, 3])
def test_gains_without_noise_are_the_papers(n_scores):
    rng = np.random.default_rng(2)
    left, right = (
        Side(rng.normal(size=(50, n_scores)), rng.uniform(1, 9, (50, n_scores)), 4) for _ in "lr"
    )
    g, h = left.grad + right.grad, left.hess + right.hess
    papers = left.grad**2 / left.hess + right.grad**2 / right.hess - g**2 / h
    np.testing.assert_allclose(gain_of(left, right, 0, 0, 1e-12), papers.sum(1))
    # by hand: G = 6 and 2, H = 8 and 4: D = 1/3 · 6 - 2/3 · 2
    one, two = (Side(np.array([g]), np.array([h]), 1) for g, h in ((6.0, 8.0), (2.0, 4.0)))
    gain = gain_of(one, two, 0, 0, 1.0)
    assert gain == pytest.approx((2 / 3) ** 2 * (1 / 9 + 1 / 5))


def test_the_ridge_of_a_gain_grows_with_the_noise_of_its_cells():
    left, right = (Side(np.array([g]), np.array([100.0]), n) for g, n in ((9.0, 4), (-9.0, 25)))
    gain = gain_of(left, right, 0.0, 3.0, 1.0)
    # four standard deviations of 4 and 25 cells; the mean is 0, so that no variance is taken off
    assert gain == pytest.approx(81 * (1 / (100 + 24) + 1 / (100 + 60)))
    none = Side(np.array([9.0]), np.array([-50.0]), 4)
    assert np.isfinite(gain_of(none, none, 1.0, 3.0, 1.0)).all()


def test_cells_picked_by_their_noise_add_it_up():
    left, right = (Side(np.array([g]), np.array([100.0]), 25) for g in (-70.0, 70.0))
    plain, picked = (gain_of(left, right, 2.0, 0.0, 1.0, ordered=which) for which in (False, True))
    weight = 2 / 101
    assert plain == pytest.approx((70**2 - 0.5 * 25 * 4) * weight)
    assert picked == pytest.approx((70**2 - 0.5 * 20**2 * 4) * weight)
    one = [side._replace(n_cells=1) for side in (left, right)]  # a single cell has no rivals
    assert gain_of(*one, 2.0, 0.0, 1.0, ordered=True) == gain_of(*one, 2.0, 0.0, 1.0)


@pytest.mark.parametrize("offset", [-3.0, 0.5, 100.0])
@pytest.mark.parametrize("seed", range(10))
def test_a_common_offset_changes_no_split(seed, offset):
    """Gradients of rows that are all wrong by as much say nothing about where to split."""
    rng = np.random.default_rng(seed)
    candidates = menu_of(numeric(8), categorical(6), numeric(5), missing=(True, False, False))
    rows = np.stack([rng.integers(0, b.n_bins, 400) for b in candidates.bins])
    g, h = rng.normal(size=400), rng.uniform(0.1, 2, 400)

    def table(values):
        parts = [
            np.bincount(c, values, b.n_bins) for c, b in zip(rows, candidates.bins, strict=True)
        ]
        return np.concatenate(parts)[None, :, None]

    levels = [
        HistogramSplit(ridge=50.0).choose(
            NodeHistogram(table(g + c * h), table(h), 0.5, 0.0), frontier_of(candidates)
        )
        for c in (0.0, offset)
    ]
    for name in ("feature", "threshold", "masked", "mask"):
        np.testing.assert_array_equal(getattr(levels[0], name), getattr(levels[1], name))
    frontier, split = frontier_of(candidates), PartiallyRandom(ridge=50.0)
    sides = split.draw(frontier, rng)
    right = np.concatenate(
        [side[c][None] for side, c in zip(np.split(sides[0], [8, 14]), rows, strict=True)]
    )

    def both(values):
        return np.stack([np.bincount(r, values, 2) for r in right]).reshape(1, 6, 1)

    levels = [
        split.choose(NodeHistogram(both(g + c * h), both(h), 0.5, 0.0), frontier, sides)
        for c in (0.0, offset)
    ]
    assert levels[0].feature[0] == levels[1].feature[0]


def test_histogram_asks_every_feature_of_the_menu():
    candidates = menu_of(numeric(5), categorical(4), numeric(7), features=[1, 2])
    query = HistogramSplit().ask(frontier_of(candidates, plain_tree(2)))
    assert list(query.features) == [1, 2]
    assert query.sizes == (4, 7)
    assert query.n_cells == 4 * 11
    assert query.sides is None


# ---- partially random


@pytest.mark.parametrize("seed", range(10))
def test_partially_random_draws_one_candidate_per_node_and_feature(seed):
    cuts = {0: [2, 5]}
    candidates = menu_of(
        numeric(9), categorical(4), numeric(7), cuts=cuts, missing=(False, False, True)
    )
    sides = PartiallyRandom().draw(
        frontier_of(candidates, plain_tree(3)), np.random.default_rng(seed)
    )
    assert sides.shape == (8, 20)
    for row in sides:
        n_left = 9 - int(row[:9].sum())
        assert n_left - 1 in cuts[0]
        assert np.array_equal(row[:9], np.arange(9) >= n_left)
        inside = row[13:19]  # without missing values, which may go anywhere
        assert np.all(np.diff(inside.astype(int)) >= 0)
        assert 0 < inside.sum() < 6
    query = PartiallyRandom().ask(frontier_of(candidates, plain_tree(3)), sides)
    assert query.n_cells == 8 * (1 + 3)


def plain_contrasts(query, g, codes, node):
    """The node's sum, and right less left of every feature, row by row."""
    out = np.zeros((query.splits.n_leaves, 1 + len(query.sizes)))
    for i, k in enumerate(node):
        out[k, 0] += query.total_times * g[i]
        start = 0
        for j, size in enumerate(query.sizes):
            out[k, 1 + j] += g[i] if query.sides[k, start + codes[j, i]] else -g[i]
            start += size
    return out


def contrasts_of(n_features, n_nodes, seed):
    """A level of partially random splits over rows: the query, its exact answer, the frontier, and the rows."""
    rng = np.random.default_rng(seed)
    candidates = menu_of(*[numeric(7) for _ in range(n_features)])
    frontier = frontier_of(candidates, plain_tree(int(np.log2(n_nodes))))
    split = PartiallyRandom()
    query = split.ask(frontier, split.draw(frontier, rng))
    codes, node = rng.integers(0, 6, (n_features, 500)), rng.integers(0, n_nodes, 500)
    g, h = rng.normal(size=500), rng.uniform(size=500)
    cells = [plain_contrasts(query, v, codes, node).reshape(-1, 1) for v in (g, h)]
    return query, Sums(*cells, 0.0, 0.0), frontier, (codes, node, g, h)


@pytest.mark.parametrize("n_features", [2, 7, 40])
def test_sides_of_contrasts_without_noise_are_the_sums_of_their_rows(n_features):
    query, answer, frontier, (codes, node, g, h) = contrasts_of(n_features, 4, seed=3)
    split = PartiallyRandom()
    table = split.histogram(query, answer)
    level = split.choose(table, frontier, query.sides)
    children, nodes = split.leaves(query, answer, level)
    ends = np.cumsum(query.sizes)
    for k in range(4):
        here = node == k
        for j, size in enumerate(query.sizes):
            right = query.sides[k, ends[j] - size : ends[j]][codes[j]] == 1
            for at, side in ((2 * j, ~right), (2 * j + 1, right)):
                assert table.grad[k, at, 0] == pytest.approx(g[here & side].sum())
                assert table.hess[k, at, 0] == pytest.approx(h[here & side].sum())
        right = level.goes_right(k, 7)[codes[level.feature[k]]]
        assert children.grad[2 * k : 2 * k + 2, 0] == pytest.approx(
            [g[here & ~right].sum(), g[here & right].sum()]
        )
        assert nodes.hess[k, 0] == pytest.approx(h[here].sum())


def test_a_node_that_is_not_split_keeps_its_sum_on_one_side():
    query, answer, _, (_, node, g, _) = contrasts_of(3, 2, seed=4)
    level = LevelSplits.unsplit(2)
    level.set(1, 2, np.ones(7, bool))
    children, _ = PartiallyRandom.leaves(query, answer, level)
    wanted = [g[node == 0].sum(), 0, 0, g[node == 1].sum()]
    np.testing.assert_allclose(children.grad[:, 0], wanted, atol=1e-12)


@pytest.mark.parametrize("n_features", [2, 5, 14, 50])
def test_contrasts_tell_sides_apart_with_less_noise_than_two_sums(n_features):
    """Beside two sums a feature, of sensitivity √m, and their totals' mean: docs/privacy.md P1."""
    query, exact, _, _ = contrasts_of(n_features, 8, seed=0)
    rng, sd = (
        np.random.default_rng(1),
        np.sqrt(query.n_blocks),
    )  # as if a row changed one cell by one
    split, level = PartiallyRandom(), LevelSplits.unsplit(8)
    for k in range(8):
        level.set(k, 1, np.arange(7) > 2)
    errors, apart = [], []
    clean, sides = split.leaves(query, exact, level)[0], split.histogram(query, exact).grad
    for _ in range(200):
        noisy = Sums(exact.grad + sd * rng.normal(size=exact.grad.shape), exact.hess, sd, sd)
        leaves = split.leaves(query, noisy, level)[0]
        errors.append(leaves.grad - clean.grad)
        moved = split.histogram(query, noisy).grad - sides
        apart.append(moved.reshape(8, -1, 2) @ [-1.0, 1.0])
    times, m = query.total_times, n_features
    blocks = m + times**2
    assert np.var(apart) == pytest.approx(blocks, rel=0.1)  # 2 m of two sums
    assert np.var(errors) == pytest.approx(blocks * (1 + times**-2) / 4, rel=0.2)
    assert leaves.grad_sd[0, 0] == pytest.approx(np.sqrt(blocks * (1 + times**-2)) / 2)
    assert (
        np.var(errors) < 1.05 * (m + 1) / 2
    )  # of two sums, the node's total by the mean over features


@pytest.mark.parametrize("seed", range(10))
def test_partially_random_chooses_the_best_that_it_drew(seed):
    rng = np.random.default_rng(seed)
    candidates = menu_of(numeric(9), categorical(4), numeric(7), missing=(False, False, True))
    frontier = frontier_of(candidates, plain_tree(1))
    split = PartiallyRandom(ridge=0.7)
    sides = split.draw(frontier, rng)
    grad, hess = rng.normal(size=(2, 6, 1)), rng.uniform(0.1, 2, (2, 6, 1))
    level = split.choose(NodeHistogram(grad, hess, 0.0, 0.0), frontier, sides)
    starts, right = [0, 9, 13], np.array([False, True])
    for k in range(2):
        gains = [
            plain_gain(right, grad[k, 2 * j : 2 * j + 2], hess[k, 2 * j : 2 * j + 2], 0.7)
            for j in range(3)
        ]
        j = int(np.argmax(gains))
        assert level.feature[k] == j
        n_bins = candidates.bins[j].n_bins
        wanted = sides[k, starts[j] : starts[j] + n_bins]
        np.testing.assert_array_equal(goes_right(level, k, j, n_bins), wanted)


# ---- exponential choices


def test_exponential_lists_every_candidate_once():
    candidates = menu_of(
        numeric(6),
        categorical(4),
        numeric(5),
        cuts={0: [1, 3], 2: [0]},
        missing=(False, False, True),
    )
    query = ExponentialSplit().ask(frontier_of(candidates, plain_tree(1)))
    listed = list(
        zip(query.candidate_feature, query.candidate_bin, query.candidate_only, strict=True)
    )
    assert listed == [
        (0, 1, False),
        (0, 3, False),
        (1, 0, True),
        (1, 1, True),
        (1, 2, True),
        (1, 3, True),
        (2, 0, False),
        (2, 4, True),  # missing values against the others
    ]
    assert query.n_values == 2


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ({"classes": [0, 1]}, "binary"),
        ({"classes": [0, 1, 2]}, "multiclass"),
        ({"target_bounds": (0, 1)}, "numeric"),
    ],
)
@pytest.mark.parametrize("leaf", [NewtonStep(clip=0.5), GradientStep(count_scale=0.25, clip=0.5)])
def test_exponential_weighs_every_row_as_one(target, kind, leaf):
    shape = Shape(schema=Schema({"x": (0, 1)}, **target))
    assert shape.kind == kind
    gradient = ExponentialSplit().gradient(shape, leaf)
    assert gradient.counts
    assert gradient.hess_scale == 1.0
    assert gradient.largest_grad == leaf.gradient(shape).largest_grad == GRAD_ONE // 2


def test_exponential_turns_positions_into_splits():
    candidates = menu_of(
        numeric(6), categorical(4), numeric(5), missing=(True, False, True), features=[1, 2]
    )
    split = ExponentialSplit()
    query = split.ask(frontier_of(candidates))
    n = len(query.candidate_bin)
    level = split.choose(np.arange(n), query)
    for k in range(n):
        j = int(query.features[query.candidate_feature[k]])
        assert level.feature[k] == j
        code = np.arange(candidates.bins[j].n_bins)
        bin_ = query.candidate_bin[k]
        wanted = code == bin_ if query.candidate_only[k] else code > bin_
        np.testing.assert_array_equal(goes_right(level, k, j, len(code)), wanted)


def test_exponential_grows_a_tree_of_choices():
    candidates = menu_of(numeric(6), categorical(4))
    split, splits = ExponentialSplit(), root()
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, 6, 300), rng.integers(0, 4, 300)])
    node = np.zeros(300, int)
    for _ in range(3):
        query = split.ask(replace(frontier_of(candidates), splits=splits))
        chosen = rng.integers(0, len(query.candidate_bin), query.n_values)
        splits = grow(splits, split.choose(chosen, query))
        c = chosen[node]
        code = codes[query.candidate_feature[c], np.arange(300)]
        at = query.candidate_bin[c]
        node = 2 * node + np.where(query.candidate_only[c], code == at, code > at)
        np.testing.assert_array_equal(walk(splits, codes), node)


def test_exponential_always_has_a_candidate():
    candidates = menu_of(
        numeric(2), numeric(2)
    )  # constants: no cut, and no missing values declared
    split = ExponentialSplit()
    query = split.ask(frontier_of(candidates))
    assert list(query.candidate_feature) == [0, 1]
    assert list(query.candidate_bin) == [1, 1]
    assert query.candidate_only.all()
    level = split.choose(np.array([1]), query)
    np.testing.assert_array_equal(goes_right(level, 0, 1, 2), [False, True])
