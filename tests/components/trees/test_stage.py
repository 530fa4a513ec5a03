"""The stage of trees: sums of children, trees from known sums, options that do not go together."""

from dataclasses import fields, replace

import numpy as np
import pytest
from helpers import naive_leaves
from thinned import thinned

from dpgb_dask.components.trees import stage
from dpgb_dask.components.trees.budgets import Even, Shares
from dpgb_dask.components.trees.candidates import IterativeHessian, PublicBins, Sketch, all_cuts
from dpgb_dask.components.trees.leaves import (
    Averaging,
    BinCountStep,
    GradientStep,
    Leaf,
    LeafSums,
    NewtonStep,
)
from dpgb_dask.components.trees.sampling import AllFeatures, Cyclic, Ensembles, PoissonRows
from dpgb_dask.components.trees.splits import (
    NOWHERE,
    Candidates,
    ExponentialSplit,
    HistogramSplit,
    LevelSplits,
    NodeHistogram,
    PartiallyRandom,
    TotallyRandom,
)
from dpgb_dask.components.trees.stage import Trees, children_of, pooled
from dpgb_dask.contracts.boundary import Receipt, Released
from dpgb_dask.contracts.model import SCORE_ONE, FeatureBins, Splits, join_splits
from dpgb_dask.contracts.plan import Budget, Plan, PublicRng, Shape, State
from dpgb_dask.contracts.queries import (
    PRICE_ONE,
    ChoiceQuery,
    NodeSumsQuery,
    RowDraw,
    TreeSumsQuery,
)
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels.gradient import write
from dpgb_dask.losses import GRAD_ONE, unpack
from dpgb_dask.training import loop

# ---- sums of children


def menu_of(*sizes):
    bins = tuple(FeatureBins(np.arange(n - 2) + 0.5, None, n) for n in sizes)
    cuts = tuple(np.arange(n - 2, dtype=np.uint8) for n in sizes)
    return Candidates(
        features=np.arange(len(sizes)), bins=bins, cuts=cuts, missing=(False,) * len(sizes)
    )


def random_level(rng, candidates, n_nodes):
    level = LevelSplits.unsplit(n_nodes)
    for k in range(n_nodes):
        j = int(rng.integers(len(candidates.bins)))
        level.set(k, j, rng.integers(0, 2, candidates.bins[j].n_bins) == 1)
    return level


@pytest.mark.parametrize("n_scores", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_children_add_up_to_their_node(seed, n_scores):
    rng = np.random.default_rng(seed)
    candidates, n_nodes, sizes = menu_of(5, 9, 7), 4, [5, 9, 7]
    level = random_level(rng, candidates, n_nodes)
    grad, hess = rng.normal(size=(2, n_nodes, 21, n_scores))
    children, nodes = children_of(NodeHistogram(grad, hess, 2.0, 3.0), level, candidates)
    for name in ("grad", "hess"):
        both = getattr(children, name).reshape(n_nodes, 2, n_scores).sum(1)
        np.testing.assert_allclose(both, getattr(nodes, name))
    totals = np.add.reduceat(grad, np.cumsum([0, *sizes[:-1]]), axis=1)
    weight = 1 / np.array(sizes)
    mean = (weight[:, None] * totals).sum(1) / weight.sum()
    np.testing.assert_allclose(nodes.grad, mean)
    assert nodes.grad_sd == pytest.approx(2.0 / np.sqrt(weight.sum()))


def test_children_of_noiseless_cells_are_their_sums():
    candidates = menu_of(5, 4)
    rows = np.stack([np.arange(5).repeat(4), np.tile(np.arange(4), 5)])
    g = np.random.default_rng(0).normal(size=20)
    cells = np.concatenate([np.bincount(c, g, n) for c, n in zip(rows, (5, 4), strict=True)])
    level = LevelSplits.unsplit(1)
    level.set(0, 1, np.array([False, True, True, False]))
    table = NodeHistogram(cells[None, :, None], cells[None, :, None], 0.0, 0.0)
    children, nodes = children_of(table, level, candidates)
    right = np.isin(rows[1], [1, 2])
    np.testing.assert_allclose(children.grad[:, 0], [g[~right].sum(), g[right].sum()])
    np.testing.assert_allclose(nodes.grad, g.sum())


def test_other_features_make_children_less_noisy():
    """With m features the node's total is known m times; the noise of both children falls, none is biased."""
    rng = np.random.default_rng(0)
    candidates, n = menu_of(*[8] * 10), 2000
    level = LevelSplits.unsplit(n)
    for k in range(n):
        level.set(k, 3, np.arange(8) > 3)
    noise = rng.normal(size=(n, 80, 1))
    children, nodes = children_of(NodeHistogram(noise, noise, 1.0, 1.0), level, candidates)
    raw = noise[:, 24:32, 0].reshape(n, 2, 4).sum(2)
    improved = children.grad.reshape(n, 2)
    assert raw.var() == pytest.approx(4.0, rel=0.1)
    # half of the total's own noise (variance 8 to 0.8) leaves each child: 4 - 8/4 + 0.8/4
    assert improved.var() == pytest.approx(2.2, rel=0.1)
    assert improved.mean() == pytest.approx(0, abs=0.1)
    assert nodes.grad.var() == pytest.approx(nodes.grad_sd**2, rel=0.1)


# ---- small leaves


def test_leaves_that_hold_too_little_take_the_part_above_them():
    hess = np.array([[5.0, 1.0, 9.0, 8.0, 0.0, 1.0, 2.0, -1.0]])[:, :, None]
    grad = np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]])[:, :, None]
    out = pooled(LeafSums(grad, hess, 3.0, 2.0), 4.0)
    # leaf 1 takes (0, 1): 6. Leaves 4 to 7 hold 2 in all: they take the root, 25
    np.testing.assert_array_equal(out.hess[0, :, 0], [5, 6, 9, 8, 25, 25, 25, 25])
    np.testing.assert_array_equal(out.grad[0, :, 0], [1, 3, 3, 4, 36, 36, 36, 36])
    n_leaves = np.array([1, 2, 1, 1, 8, 8, 8, 8])
    np.testing.assert_allclose(out.grad_sd[0, :, 0], 3 * np.sqrt(n_leaves))
    np.testing.assert_allclose(out.hess_sd[0, :, 0], 2 * np.sqrt(n_leaves))


def test_pooled_leaves_add_up_the_noise_of_each():
    hess = np.array([9.0, 1.0, 9.0, 9.0])[None, :, None]
    sd = np.array(
        [[1.0], [2.0], [5.0], [7.0]]
    )  # leaves of a histogram hold unlike numbers of cells
    out = pooled(LeafSums(hess, hess, sd, 3 * sd), 4.0)
    np.testing.assert_allclose(out.grad_sd[0, :, 0] ** 2, [1, 1 + 4, 25, 49])
    np.testing.assert_allclose(out.hess_sd[0, :, 0] ** 2, [9, 9 + 36, 225, 441])


def test_leaves_are_pooled_by_their_sum_over_scores_in_each_tree():
    hess = np.array([[[1.0, 2.0], [0.5, 0.5]], [[3.0, 3.0], [3.0, 3.0]]])
    out = pooled(LeafSums(np.zeros_like(hess), hess, 1.0, 1.0), 3.0)
    np.testing.assert_array_equal(out.hess[0], [[1, 2], [1.5, 2.5]])
    np.testing.assert_array_equal(out.hess[1], hess[1])
    np.testing.assert_allclose(out.grad_sd[:, :, 0] ** 2, [[1, 2], [1, 1]])


def test_nothing_is_pooled_above_the_root():
    ones = np.ones((1, 4, 1))
    given = LeafSums(ones, ones, 1.0, 1.0)
    out = pooled(given, 100.0)
    np.testing.assert_array_equal(out.hess, 4.0)
    np.testing.assert_array_equal(out.grad_sd, 2.0)
    np.testing.assert_array_equal(given.hess, 1.0)  # what was given stays


# ---- the stage, answered without noise


def state_of(schema, n_bins=9):
    budget = Budget(epsilon=1.0, delta=1e-6)
    state = State.first(Shape(schema=schema), 0, budget, PRICE_ONE)
    return PublicBins(n_bins=n_bins).begin(state)


def encode(model, columns):
    """Codes of columns without missing values; of a category, its position."""
    return np.stack(
        [
            c if b.edges is None else np.searchsorted(b.edges, c)
            for b, c in zip(model.bins, columns, strict=True)
        ]
    ).astype(np.uint8)


def score_of(model, columns):
    """(n_scores, n_rows) int32 scores, tables and trees."""
    codes = encode(model, columns)
    out = np.zeros((model.n_scores, codes.shape[1]), np.int32)
    for table, code in zip(model.tables, codes, strict=True):
        out += table[code].T
    s = model.trees.splits
    for t in range(s.n_trees):
        leaf = naive_leaves(codes, s.feature[t], s.threshold[t], s.mask_of[t], s.masks)
        out += model.trees.value[:, t, leaf]
    return out


def exact_answer(query, state, columns, label):
    """Sums over all rows, without noise; the draws of rows are not looked at."""
    codes = encode(state.model, columns)
    score = score_of(state.model, columns)
    packed = np.empty(score.shape, np.int64)
    write(query.gradient, score, label, None, packed)
    g, h = unpack(packed)
    s = query.splits
    cells = np.zeros((query.n_cells, query.n_scores, 2), np.int64)
    for t in range(s.n_trees):
        node = naive_leaves(codes, s.feature[t], s.threshold[t], s.mask_of[t], s.masks)
        times = [1] * 99  # how often a row adds to each of its cells
        if isinstance(query, TreeSumsQuery):
            places = [t * s.n_leaves + node]
        else:
            assert isinstance(query, NodeSumsQuery)
            starts = np.cumsum([0, *query.sizes])
            bins = [start + codes[j] for j, start in zip(query.features, starts, strict=False)]
            if query.sides is None:
                places = [node * starts[-1] + b for b in bins]
            else:
                first = node * (1 + len(query.features))
                places = [first + k for k in range(1 + len(bins))]
                sides = [query.sides[node, b] for b in bins]
                times = [query.total_times, *(np.where(side == 1, 1, -1) for side in sides)]
        for n, place in zip(times, places, strict=False):
            for k in range(query.n_scores):
                np.add.at(cells[:, k, 0], place, n * g[k])
                np.add.at(cells[:, k, 1], place, n * h[k])
    receipt = Receipt("fit", "query", 0, query.label, query.price, 0, 0)
    return Released(cells.ravel(), receipt)


def fit(trees, schema, columns, label):
    """Return the model of trees whose answers are exact, whatever the draws of rows."""
    plan = Plan("mine", "a test", (PublicBins(n_bins=9), trees), pure=True, draws_rows=True)
    budget = Budget(epsilon=1.0, delta=1e-6)
    first = State.first(Shape(schema=schema), 0, budget, PRICE_ONE)
    ran = loop.run(plan, first, lambda _, state, query: exact_answer(query, state, columns, label))
    return ran.state.model


SCHEMA = Schema({"a": (0, 8), "b": (0, 8), "c": ["u", "v", "w"]}, classes=[0, 1])


def data(n=600):
    """Rows of a known tree: columns (a and b lie in the middle of eight bins) and labels."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(0, n_bins, n) for n_bins in (8, 8, 3))
    label = np.where(a > 3, b <= 1, c == 1)
    # the root's gain must be seen: one side has more ones
    flip = rng.random(n) < np.where(a > 3, 0.0, 0.2)
    return [a + 0.5, b + 0.5, c], (label | flip).astype(np.uint8)


def test_histograms_recover_a_known_tree():
    columns, label = data()
    leaf = NewtonStep(learning_rate=1.0, largest=10.0)
    trees = Trees(n_trees=3, depth=3, split=HistogramSplit(), leaf=leaf)
    model = fit(trees, SCHEMA, columns, label)
    score = score_of(model, columns)[0]
    a, _, c = columns
    sure = a > 4
    assert np.array_equal(score[sure] > 0, label[sure] == 1)
    rest = ~sure & (c == 1)
    assert score[rest].min() > score[~sure & (c != 1)].max()


def last_cuts(_, candidates, features, depth, __):
    """Trees that are split once, at their first feature's last candidate: whatever stream, and however many at once."""
    feature = np.zeros((len(features), (1 << depth) - 1), np.uint16)
    threshold = np.full(feature.shape, NOWHERE, np.uint8)
    feature[:, 0] = features[:, 0]
    threshold[:, 0] = [
        candidates.cuts[j][-1] if len(candidates.cuts[j]) else 0 for j in features[:, 0]
    ]
    return Splits.plain(feature, threshold)


@pytest.mark.parametrize("features", [{}, {"features": Cyclic(k=1)}])
@pytest.mark.parametrize("candidates", [None, IterativeHessian(rounds=2, n_bins=4)])
@pytest.mark.parametrize("turns", [{}, {"batch": 3}, {"batch": 3, "n_trees": 2}])
def test_trees_drawn_ahead_are_asked_in_their_turn(features, candidates, turns, monkeypatch):
    """As if each batch were drawn when it is asked: from the candidates of then, at the scores of then."""
    monkeypatch.setattr(TotallyRandom, "draw", last_cuts)
    trees = Trees(**{"n_trees": 11, "depth": 2} | features | turns, candidates=candidates)
    asked = []
    for ahead in (1, 4 << 2, 64 << 2):
        monkeypatch.setattr(stage, "AHEAD", ahead)
        queries, state = asked_by(trees)
        asked.append([(query.label, query.price, query.digest()) for query in queries])
        assert not state.memory.drawn
    assert asked[0] == asked[1] == asked[2]


class LateRows(PoissonRows):
    """From its second tree on it says that rows are drawn more rarely than they are."""

    def draw(self, tree, n_trees):
        own = PoissonRows.draw(self, tree, n_trees)
        if tree == 0:
            return own
        rare = type("Rare", (RowDraw,), {"rate": 1e-6})
        return rare(**{part.name: getattr(own, part.name) for part in fields(own)})


class NumPyPrice(Even):
    """Prices are NumPy's numbers, which may overflow."""

    def unit(self, view, part):
        return np.int64(Even().unit(view, part) >> 8)


class Backwards(TotallyRandom):
    """Masks stand in another order than their nodes."""

    def draw(self, candidates, features, depth, rng):
        own = TotallyRandom.draw(self, candidates, features, depth, rng)
        turned = np.where(own.mask_of < 0, -1, len(own.masks) - 1 - own.mask_of).astype(np.int32)
        return Splits(own.feature, own.threshold, turned, own.masks[::-1].copy())


class Broken(TotallyRandom):
    """A node names a mask that is not there."""

    def draw(self, candidates, features, depth, rng):
        own = TotallyRandom.draw(self, candidates, features, depth, rng)
        return Splits(own.feature, own.threshold, own.mask_of + len(own.masks) + 1, own.masks)


def asked_by(trees):
    columns, label = data(60)
    state, queries = trees.begin(state_of(SCHEMA)), []
    while (query := trees.next_query(state)) is not None:
        queries.append(query)
        state = trees.update(state, query, exact_answer(query, state, columns, label))
    return queries, state


def test_parts_from_outside_are_checked_at_every_turn():
    late = Trees(n_trees=3, depth=2, rows=LateRows(rate=0.5))
    with pytest.raises(PlanError, match="not a RowDraw"):
        asked_by(late)
    queries, _ = asked_by(Trees(n_trees=3, depth=2, budget=NumPyPrice()))
    assert [type(query.price) for query in queries] == [int] * 3
    with pytest.raises(PlanError, match="a mask that is not there"):
        asked_by(Trees(n_trees=3, depth=2, split=Broken()))


def test_masks_of_trees_drawn_ahead_may_stand_in_any_order():
    plain, state = asked_by(Trees(n_trees=9, depth=3, split=TotallyRandom()))
    turned, other = asked_by(Trees(n_trees=9, depth=3, split=Backwards()))
    assert any(len(query.splits.masks) > 1 for query in plain)
    for one, two in zip(plain, turned, strict=True):
        assert one.splits.same(two.splits)
        assert len(two.splits.masks) == len(one.splits.masks)
        assert not any(array.flags.writeable for array in two.splits.arrays)
    assert state.model.trees.splits.same(other.model.trees.splits)


def test_trees_of_a_block_are_drawn_from_the_stream_of_its_first(monkeypatch):
    monkeypatch.setattr(stage, "AHEAD", 7 << 2)  # two batches of three trees, then one of two
    columns, label = data(60)
    trees = Trees(n_trees=8, depth=2, batch=3, split=TotallyRandom(max_leaves=3))
    model = fit(trees, SCHEMA, columns, label)
    missing = (False,) * 3
    menu = Candidates(
        features=np.arange(3), bins=model.bins, cuts=all_cuts(model.bins), missing=missing
    )
    first, second = (
        trees.split.draw(menu, np.array([[0, 1, 2]] * n), 2, PublicRng(0).stream("splits", t))
        for t, n in ((0, 6), (6, 2))
    )
    assert model.trees.splits.same(join_splits(first, second))


@pytest.mark.parametrize("split", [TotallyRandom(), PartiallyRandom(), HistogramSplit()])
@pytest.mark.parametrize(
    "leaf", thinned([NewtonStep(), GradientStep(), NewtonStep(prior=1.0)], every=3)
)
@pytest.mark.parametrize("features", [{}, {"features": Cyclic(k=1)}])
@pytest.mark.parametrize("candidates", [None, IterativeHessian(rounds=2, n_bins=4)])
def test_every_split_lowers_the_loss(split, leaf, features, candidates):
    columns, label = data()
    trees = Trees(n_trees=9, depth=3, split=split, leaf=leaf, candidates=candidates, **features)
    model = fit(trees, SCHEMA, columns, label)
    score = score_of(model, columns)[0] / SCORE_ONE
    loss = np.log1p(np.exp(-np.where(label == 1, score, -score))).mean()
    assert loss < 0.62 < np.log(2)


@pytest.mark.parametrize("split", [TotallyRandom(), PartiallyRandom(), HistogramSplit()])
def test_trees_of_one_feature_are_kept_in_tables(split):
    columns, label = data()
    trees = Trees(n_trees=6, depth=3, split=split, features=Cyclic(k=1))
    model = fit(trees, SCHEMA, columns, label)
    assert model.trees.n_trees == 0
    assert all(np.any(table) for table in model.tables)


def test_leaves_are_newton_steps_on_their_rows():
    columns, label = data()
    leaf = NewtonStep(learning_rate=0.5, ridge=1.0, largest=10.0)
    model = fit(Trees(n_trees=1, depth=2, leaf=leaf), SCHEMA, columns, label)
    s, codes = model.trees.splits, encode(model, columns)
    at = naive_leaves(codes, s.feature[0], s.threshold[0], s.mask_of[0], s.masks)
    for k in range(4):
        here = label[at == k]
        wanted = -0.5 * (0.5 - here).sum() / (0.25 * len(here) + 1) if len(here) else 0.0
        assert model.trees.value[0, 0, k] / SCORE_ONE == pytest.approx(wanted, abs=1e-3)


class RuleOfOnesOwn(NewtonStep):
    """The same steps, as a rule of one's own takes them: `Step.value`, not the kernel for small rounds."""

    def value(self, sums, above=None, **options):
        return super(NewtonStep, self).value(sums, above, **options)


@pytest.mark.parametrize("features", [AllFeatures(), Cyclic(k=1)])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_kernel_takes_the_steps_of_small_rounds_to_the_bit(features, batch):
    columns, label = data()
    options = {"ridge": 0.7, "largest": 0.3, "learning_rate": 0.3}
    one, other = (
        fit(Trees(n_trees=7, depth=2, leaf=leaf, features=features, batch=batch), SCHEMA, columns, label)
        for leaf in (NewtonStep(**options), RuleOfOnesOwn(**options))
    )  # fmt: skip
    np.testing.assert_array_equal(one.trees.value, other.trees.value)
    for table, same in zip(one.tables, other.tables, strict=True):
        np.testing.assert_array_equal(table, same)
    assert any(np.any(part) for part in (*one.tables, one.trees.value))


def test_averages_are_shares_of_classes():
    columns, label = data()
    model = fit(Trees(n_trees=5, depth=2, leaf=Averaging(), batch=1.0), SCHEMA, columns, label)
    assert model.link == "probability"
    s, total = model.trees.splits, np.zeros(len(label))
    codes = encode(model, columns)
    for t in range(5):
        at = naive_leaves(codes, s.feature[t], s.threshold[t], s.mask_of[t], s.masks)
        total += np.array([label[at == k].mean() if (at == k).any() else 0 for k in range(4)])[at]
    np.testing.assert_allclose(score_of(model, columns)[0] / SCORE_ONE, total / 5, atol=1e-3)


@pytest.mark.parametrize(
    ("batch", "sizes"), [(1, [1] * 7), (3, [3, 3, 1]), (0.5, [4, 3]), (1.0, [7]), (100, [7])]
)
@pytest.mark.parametrize("split", [TotallyRandom(), HistogramSplit()])
def test_batches_add_their_mean(batch, sizes, split):
    """Without noise, each tree of a batch sees the same gradient and is counted by its share of it."""
    columns, label = data(300)
    leaf = GradientStep(learning_rate=1.0, largest=10.0, ridge=1e-9)
    trees = Trees(n_trees=7, depth=1, split=split, leaf=leaf, batch=batch)
    model = fit(trees, SCHEMA, columns, label)
    assert model.trees.n_trees == 7
    codes = encode(model, columns)
    t = 0
    score = np.zeros(300)
    for size in sizes:
        p = 1 / (1 + np.exp(-score))
        added = np.zeros(300)
        for _ in range(size):
            s = model.trees.splits
            at = naive_leaves(codes, s.feature[t], s.threshold[t], s.mask_of[t], s.masks)
            for k in np.unique(at):
                step = -(p - label)[at == k].mean()
                value = model.trees.value[0, t, k] / SCORE_ONE
                assert value == pytest.approx(step / size, abs=2e-3)
                added[at == k] += value
            t += 1
        score += added


class Recorder(Leaf):
    """A leaf rule that says 0, and keeps the sizes of the batches and the shapes of the sums."""

    def __init__(self):
        self.seen = []

    def gradient(self, shape):
        return NewtonStep().gradient(shape)

    def value(self, sums, above=None, *, kind="binary", batch=1):  # noqa: ARG002
        self.seen.append((sums.grad.shape, kind, batch))
        return np.zeros(sums.grad.shape)


class WrongShape(NewtonStep):
    """A leaf rule of one's own that gives too few leaves, or too few scores."""

    def value(self, sums, above=None, **options):  # noqa: ARG002
        return np.zeros(sums.grad.shape)[:, :1]


@pytest.mark.parametrize("features", [AllFeatures(), Cyclic(k=1)])
@pytest.mark.parametrize("split", [TotallyRandom(), HistogramSplit()])
def test_leaves_of_another_shape_are_refused(split, features):
    """Kernels would read beyond them."""
    trees = Trees(n_trees=2, depth=2, split=split, leaf=WrongShape(), features=features)
    columns, label = data(100)
    with pytest.raises(
        PlanError, match=r"WrongShape.* gave values of shape \(1, 1, 1\).*\(1, 4, 1\)"
    ):
        fit(trees, SCHEMA, columns, label)


@pytest.mark.parametrize("split", [TotallyRandom(), HistogramSplit()])
def test_leaves_know_their_trees_and_their_batch(split):
    columns, label = data(100)
    leaf = Recorder()
    fit(Trees(n_trees=7, depth=2, split=split, leaf=leaf, batch=3), SCHEMA, columns, label)
    if split.asks:  # a tree at a time
        assert leaf.seen == [((1, 4, 1), "binary", b) for b in (3, 3, 3, 3, 3, 3, 1)]
    else:
        assert leaf.seen == [((n, 4, 1), "binary", n) for n in (3, 3, 1)]


@pytest.mark.parametrize(
    "leaf", [NewtonStep(laplace=True, clip=0.5), GradientStep(count_scale=0.3)]
)
def test_choices_are_over_whole_counts_whatever_the_leaf(leaf):
    """The range of a gain is proved for a Hessian of 1 on every row; leaves keep their own gradient."""
    trees = Trees(n_trees=1, depth=1, split=ExponentialSplit(), leaf=leaf)
    state = trees.begin(state_of(SCHEMA))
    query = trees.next_query(state)
    assert isinstance(query, ChoiceQuery)
    assert query.gradient.counts
    assert query.gradient.hess_scale == 1.0
    assert query.gradient.largest_grad == pytest.approx(GRAD_ONE // 2, rel=2e-3)  # at even odds
    receipt = Receipt("fit", "query", 0, query.label, query.price, 0, 0)
    state = trees.update(state, query, Released(np.zeros(1, np.int64), receipt))
    query = trees.next_query(state)
    assert isinstance(query, TreeSumsQuery)
    assert query.gradient.hess_scale == leaf.gradient(state.shape).hess_scale
    assert query.gradient.l1 == leaf.gradient(state.shape).within(0, 0).l1
    query = replace(trees, reachable=False).next_query(state)
    assert query.gradient.l1 == leaf.gradient(state.shape).l1


def test_leaf_decay_bounds_later_trees_more():
    columns, label = data()
    trees = Trees(
        n_trees=4,
        depth=1,
        leaf=GradientStep(learning_rate=1.0, largest=1.0, ridge=1e-9, clip=1.0),
        rows=Ensembles(size=2, decay=0.0),
        leaf_decay=0.9,
    )
    model = fit(trees, SCHEMA, columns, np.ones_like(label))
    largest = np.abs(model.trees.value[0]).max(1) / SCORE_ONE
    assert largest[0] == pytest.approx(0.5, abs=1e-3)  # of the gradient, below the bound of 1
    assert largest[1] == pytest.approx(0.1, abs=1e-3)
    assert largest[2] > 0.3  # a new ensemble begins
    assert largest[3] == pytest.approx(0.1, abs=1e-3)


# ---- options


CHOOSE = {"split": ExponentialSplit(), "leaf": GradientStep(count_scale=1.0)}
HALVES = Shares(candidates=0.0, splits=0.5, leaves=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "depth=0"),
        ({"depth": 11}, "depth=11"),
        ({"depth": 2.5}, "depth=2.5"),
        ({"n_trees": 0}, "n_trees=0"),
        ({"n_trees": True}, "n_trees=True"),
        ({"batch": 0}, "batch=0"),
        ({"batch": 0.0}, "batch=0.0"),
        ({"batch": 1.5}, "batch=1.5"),
        ({"share": 0.0}, "share=0.0"),
        ({"share": 1.1}, "share=1.1"),
        ({"leaf_decay": 1.0}, "leaf_decay=1.0"),
        ({"leaf_decay": 0.1}, r"leaf_decay.*rows=Ensembles"),
        ({"least_weight": -1.0}, "least_weight=-1.0"),
        ({"leaf": BinCountStep()}, r"BinCountStep.*Cyclic\(k=1\)"),
        ({"leaf": BinCountStep(), "features": Cyclic(k=2)}, r"BinCountStep.*Cyclic\(k=1\)"),
        (
            {"leaf": BinCountStep(), "features": Cyclic(k=1), "split": HistogramSplit()},
            "BinCountStep.*TotallyRandom",
        ),
        (
            {"leaf": BinCountStep(), "features": Cyclic(k=1), "candidates": IterativeHessian()},
            "BinCountStep.*candidates=None",
        ),
        (
            {"split": ExponentialSplit(), "leaf": Averaging()},
            r"ExponentialSplit.*NewtonStep\(\) or GradientStep\(\)",
        ),
        ({"split": ExponentialSplit(), "leaf": Recorder()}, "ExponentialSplit.*GradientStep"),
        ({"candidates": Sketch()}, r"Sketch.*ExponentialSplit\(\)"),
        ({"candidates": Sketch(), "split": HistogramSplit()}, "Sketch.*ExponentialSplit"),
        (
            {"candidates": IterativeHessian(), "rows": PoissonRows()},
            r"IterativeHessian.*AllRows\(\)",
        ),
        ({**CHOOSE, "candidates": Sketch(), "rows": PoissonRows()}, "budget=Shares"),
        ({**CHOOSE, "candidates": Sketch(), "budget": HALVES}, "candidates.*1e-6"),
        (
            {**CHOOSE, "budget": Shares(candidates=0.5, splits=0.0, leaves=0.5)},
            "splits.*1e-6",
        ),
        ({"budget": Shares(candidates=0.0, splits=1.0, leaves=0.0)}, "leaves.*1e-6"),
    ],
)
def test_options_that_do_not_go_together_raise(options, message):
    with pytest.raises(PlanError, match=message):
        Trees(**options)


@pytest.mark.parametrize(
    "shares", [(0.5, 0.5, 0.5), (-0.1, 0.5, 0.5), (0, 0, 0), (0, 0, float("nan"))]
)
def test_shares_are_of_one_price(shares):
    with pytest.raises(PlanError, match="sum to at most 1"):
        Shares(**dict(zip(("candidates", "splits", "leaves"), shares, strict=True)))


@pytest.mark.parametrize("split", [HistogramSplit, PartiallyRandom, ExponentialSplit])
def test_splits_refuse_a_ridge_of_nothing(split):
    with pytest.raises(PlanError, match="ridge=0"):
        split(ridge=0)


def test_random_trees_refuse_a_single_leaf():
    with pytest.raises(PlanError, match="max_leaves=1"):
        TotallyRandom(max_leaves=1)


def test_what_goes_together_is_accepted():
    for options in (
        CHOOSE,
        {"split": ExponentialSplit()},
        {"split": ExponentialSplit(), "leaf": GradientStep(count_scale=0.5)},
        {**CHOOSE, "rows": PoissonRows(), "budget": HALVES},
        {"leaf": BinCountStep(), "features": Cyclic(k=1)},
        {"rows": Ensembles(), "leaf_decay": 0.1},
        {"split": HistogramSplit(), "budget": Shares(candidates=0, splits=1, leaves=0)},
    ):
        trees = Trees(**options)
        assert replace(trees) == trees


def test_a_gradient_of_nothing_raises_before_any_charge():
    trees = Trees(leaf=NewtonStep(clip=1e-6))
    with pytest.raises(PlanError, match="gradient of 0 steps"):
        trees.declare(Shape(schema=Schema({"a": (0, 1)}, classes=[0, 1])))
