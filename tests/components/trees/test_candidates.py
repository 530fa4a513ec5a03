"""Where features may be cut."""

import numpy as np
import pytest
from helpers import naive_codes, naive_leaves

from dpgb_dask.components.trees.candidates import (
    MOST_EDGES,
    IterativeHessian,
    PublicBins,
    Sketch,
    all_cuts,
    log_edges,
    refine,
    uniform_edges,
    with_edges,
)
from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.model import FeatureBins, Model, PairTable, Splits, TreeEnsemble
from dpgb_dask.contracts.plan import Budget, Shape, State
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import PlanError


def state_of(schema):
    return State.first(Shape(schema=schema), 0, Budget(epsilon=1.0, delta=1e-6), PRICE_ONE)


# ---- public edges


@pytest.mark.parametrize("make", [uniform_edges, log_edges])
@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize(
    "bounds", [(0, 1), (-3, 8), (0, 1000), (-1e9, 1e9), (7, 8), (1e16, 1e16 + 4)]
)
@pytest.mark.parametrize("n", [2, 32, 255])
def test_edges_increase_within_the_bounds(make, integer, bounds, n):
    feature = Numeric(*bounds, integer=integer)
    edges = make(feature, n)
    assert len(edges) <= n - 1
    assert np.all(np.diff(edges) > 0)
    assert np.all((edges >= feature.low) & (edges <= feature.high))


@pytest.mark.parametrize("make", [uniform_edges, log_edges])
def test_a_constant_feature_has_no_edges(make):
    assert not len(make(Numeric(3, 3), 32))


def test_uniform_edges_part_the_range_evenly():
    np.testing.assert_allclose(uniform_edges(Numeric(-2, 6), 5), [-2, 0, 2, 4])
    np.testing.assert_array_equal(
        uniform_edges(Numeric(0, 4, integer=True), 8), [0.5, 1.5, 2.5, 3.5]
    )


def test_log_edges_are_even_after_a_logarithm():
    edges = log_edges(Numeric(10, 10 + np.e**4 - 1), 5)
    np.testing.assert_allclose(np.log1p(edges - 10), [0, 1, 2, 3], atol=1e-12)
    whole = log_edges(Numeric(0, 1000, integer=True), 8)
    np.testing.assert_array_equal(whole % 1, 0.5)  # between whole numbers


@pytest.mark.parametrize("make", [uniform_edges, log_edges])
@pytest.mark.parametrize("n", [2, 3, 32])
def test_edges_begin_at_the_lowest_value(make, n):
    assert make(Numeric(-3, 1000), n)[0] == -3
    assert make(Numeric(0, 1000, integer=True), n)[0] == 0.5
    assert len(make(Numeric(-3, 1000), n)) == n - 1


@pytest.mark.parametrize("spacing", ["uniform", "log"])
@pytest.mark.parametrize("integer", [False, True])
def test_the_zeros_of_a_count_have_their_own_bin(spacing, integer):
    schema = Schema({"a": Numeric(0, 5000, integer=integer)}, classes=[0, 1])
    edges = PublicBins(n_bins=16, spacing=spacing).begin(state_of(schema)).model.bins[0].edges
    smallest = 1.0 if integer else 5e-324
    codes = naive_codes([0.0, smallest, 5000.0], edges)
    assert list(codes) == [0, 1, len(edges)]


@pytest.mark.parametrize("spacing", ["uniform", "log"])
def test_public_bins_ask_nothing(spacing):
    schema = Schema({"a": (0, 9), "b": ["u", "v"], "c": (2, 2)}, classes=[0, 1])
    stage = PublicBins(n_bins=4, spacing=spacing)
    state = stage.begin(state_of(schema))
    assert stage.next_query(state) is None
    assert stage.declare(state.shape).n_queries == 0
    assert [b.n_bins for b in state.model.bins] == [5, 4, 2]
    assert [len(cuts) for cuts in all_cuts(state.model.bins)] == [3, 0, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PublicBins(n_bins=1), "n_bins=1"),
        (lambda: PublicBins(n_bins=256), "n_bins=256"),
        (lambda: PublicBins(spacing="cubic"), "spacing='cubic'.*log.*uniform"),
        (lambda: IterativeHessian(rounds=-1), "rounds=-1"),
        (lambda: IterativeHessian(n_bins=1000), "n_bins=1000"),
        (lambda: Sketch(n_bins=0), "n_bins=0"),
    ],
)
def test_options_out_of_range_raise(make, message):
    with pytest.raises(PlanError, match=message):
        make()


# ---- iterative Hessian splitting, algorithm 2 by hand


def test_refine_merges_light_bins_and_halves_heavy_ones():
    # Q = 4 bins of 16 / 4 = 4 each. From the left: 1 + 1 + 6 = 8 up to 4; 8 up to 8. Both are above 4: midpoints 2, 6
    new = refine((0.0, 8.0), np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 6.0, 8.0]), 4)
    np.testing.assert_array_equal(new, [2, 4, 6])


def test_refine_goes_where_the_weight_is():
    # all of it below 8: halved to 4, then 4 to 2 (the paper spreads the second one evenly)
    new = refine((0.0, 16.0), np.array([8.0]), np.array([16.0, 0.0]), 4)
    np.testing.assert_array_equal(new, [2, 4, 8])


def test_refine_leaves_even_bins_alone():
    cuts = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(refine((0.0, 4.0), cuts, np.ones(4), 4), cuts)


def test_refine_counts_negative_noise_as_nothing():
    cuts = np.array([1.0, 2.0, 3.0])
    new = refine((0.0, 4.0), cuts, np.array([-5.0, 4.0, 4.0, -9.0]), 2)
    np.testing.assert_array_equal(new, [2.0])
    np.testing.assert_array_equal(refine((0.0, 4.0), cuts, np.full(4, -1.0), 2), cuts)


def test_refine_keeps_the_lowest_value_alone_and_halves_the_others():
    # 90 of 100 are the lowest value; its bin holds nothing to halve. The rest is even: 5 to 2 and 1, 1 and 1
    new = refine((0.0, 8.0), np.array([0.0, 4.0]), np.array([90.0, 6.0, 4.0]), 5)
    np.testing.assert_array_equal(new, [0, 2, 4, 6])


def test_refine_stops_where_no_bin_can_be_halved():
    new = refine((0.0, 1.0), np.array([0.0]), np.array([1.0, 0.0]), 5)
    assert new[0] == 0.0
    assert len(new) == 4  # the bin without weight is halved instead


@pytest.mark.parametrize("seed", range(20))
def test_refine_gives_increasing_cuts_of_even_weight(seed):
    rng = np.random.default_rng(seed)
    n_cuts, n = int(rng.integers(1, 40)), int(rng.integers(2, 40))
    cuts = np.sort(rng.uniform(0, 1, n_cuts))
    mass = rng.normal(rng.exponential(5, n_cuts + 1) ** 2, 1.0)
    new = refine((0.0, 1.0), cuts, mass, n)
    assert len(new) == n - 1
    assert np.all(np.diff([0.0, *new, 1.0]) > 0)
    # rounds converge: with the mass of a uniform density, parts become even
    for _ in range(12):
        new = refine((0.0, 1.0), new, np.diff([0.0, *new, 1.0]), n)
    widths = np.diff([0.0, *new, 1.0])
    assert widths.max() <= 4 * widths.mean()


# ---- more edges, the same function


def random_model(rng):
    """Two numeric features with a categorical one between them; tables, pairs and trees of all kinds."""
    edges = np.array([-1.0, 0.0, 0.5, 2.0])
    bins = (
        FeatureBins(edges, None, 6),
        FeatureBins(None, np.arange(5, dtype=np.uint8), 5),
        FeatureBins(np.array([0.25]), None, 3),
    )
    n_trees, nodes, n_scores = 30, 7, 2
    feature = rng.integers(0, 3, (n_trees, nodes)).astype(np.uint16)
    # all sides, nobody, and missing values alone to the right
    threshold = rng.choice([0, 1, 2, 3, 4, 5, 6, 255], (n_trees, nodes)).astype(np.uint8)
    mask_of = np.where(rng.random((n_trees, nodes)) < 0.5, -1, 0).astype(np.int32)
    mask_of[mask_of == 0] = np.arange((mask_of == 0).sum())
    masks = np.zeros((mask_of.max() + 1, 256), np.uint8)
    masks[:, :6] = rng.integers(0, 2, (len(masks), 6))
    whole = rng.integers(-1000, 1000, (n_scores, n_trees, nodes + 1)).astype(np.int32)
    tables = tuple(rng.integers(-99, 99, (b.n_bins, n_scores)).astype(np.int32) for b in bins)
    pairs = tuple(
        PairTable(
            i,
            j,
            rng.integers(0, 3, bins[i].n_bins).astype(np.uint8),
            rng.integers(0, 2, bins[j].n_bins).astype(np.uint8),
            rng.integers(-99, 99, (n_scores, 3, 2)).astype(np.int32),
        )
        for i, j in ((0, 1), (1, 2), (0, 2))
    )
    trees = TreeEnsemble(Splits(feature, threshold, mask_of, masks), whole)
    return Model(bins, np.array([5, -7], np.int32), tables, pairs, trees)


def scores(model, columns):
    """Scores of rows, term by term."""
    codes = np.stack(
        [
            c if b.edges is None else naive_codes(c, b.edges)
            for c, b in zip(columns, model.bins, strict=True)
        ]
    )
    out = np.repeat(model.intercept[None], codes.shape[1], axis=0).astype(np.int64)
    for table, code in zip(model.tables, codes, strict=True):
        out += table[code]
    for p in model.pairs:
        out += p.table[:, p.map_i[codes[p.i]], p.map_j[codes[p.j]]].T
    s = model.trees.splits
    for t in range(s.n_trees):
        leaf = naive_leaves(codes, s.feature[t], s.threshold[t], s.mask_of[t], s.masks)
        out += model.trees.value[:, t, leaf].T
    return out


def rows(rng, edges, n=200):
    near = np.concatenate([edges, np.nextafter(edges, np.inf), [np.nan, np.inf, -np.inf, 0.0]])
    return [
        np.concatenate([near, rng.uniform(-2, 3, n)]),
        rng.integers(0, 5, n + len(near)),
        np.concatenate([rng.choice([np.nan, 0.25, 1.0], len(near)), rng.uniform(0, 1, n)]),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_more_edges_keep_the_function(seed):
    rng = np.random.default_rng(seed)
    model = random_model(rng)
    more = model
    for j in (0, 2, 0):
        new = np.append(rng.uniform(-2, 3, rng.integers(0, 5)), more.bins[j].edges[:1])
        more = with_edges(more, j, np.sort(new))
    assert more.bins[0].n_bins > 6
    columns = rows(rng, more.bins[0].edges)
    np.testing.assert_array_equal(scores(more, columns), scores(model, columns))


def test_refinement_stops_when_codes_run_out():
    schema = Schema({"a": (0, 1)}, classes=[0, 1])
    state = PublicBins(n_bins=250).begin(state_of(schema))
    cuts = all_cuts(state.model.bins)[0]
    hess = np.zeros(251)
    hess[2] = 100.0
    model, kept = IterativeHessian(n_bins=32).refine(state, cuts, 0, hess)
    assert model is state.model
    np.testing.assert_array_equal(kept, model.bins[0].edges)
    # a few more fit
    model, kept = IterativeHessian(n_bins=4).refine(state, cuts, 0, hess)
    assert len(state.model.bins[0].edges) < len(model.bins[0].edges) <= MOST_EDGES
    assert np.isin(kept, model.bins[0].edges).all()


def test_refined_cuts_of_whole_numbers_lie_between_them():
    schema = Schema({"a": Numeric(0, 100, integer=True)}, classes=[0, 1])
    state = PublicBins(n_bins=8).begin(state_of(schema))
    # zeros, 1 to 14, 15 to 28, …; missing values do not count
    for hess in ([0.0, 90, 1, 1, 1, 1, 1, 1, 50], [200.0, 90, 1, 1, 1, 1, 1, 1, 50]):
        cuts = np.arange(7, dtype=np.uint8)
        _, kept = IterativeHessian(n_bins=8).refine(state, cuts, 0, np.array(hess))
        np.testing.assert_array_equal(kept % 1, 0.5)
        assert np.all(np.diff(kept) >= 1)
        assert (kept < 15).sum() >= 2  # where the weight is
    assert kept[0] == 0.5  # zeros that weigh most stay apart


def test_only_candidates_are_refined_not_all_edges():
    """The mass between candidates is summed over the finer bins of older trees."""
    schema = Schema({"a": (0, 8)}, classes=[0, 1])
    state = PublicBins(n_bins=9).begin(state_of(schema))  # edges 0, …, 7
    cuts = np.array([2, 4], np.uint8)  # 2 and 4
    hess = np.array([0.5, 0.5, 0.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 99.0])
    _, kept = IterativeHessian(n_bins=4).refine(state, cuts, 0, hess)
    # bins hold 1, 6, 8: up to 4 there are 7, above 8; both are halved
    np.testing.assert_array_equal(kept, [2, 4, 6])


# ---- sketches


def test_sketch_cuts_at_quantiles():
    mass = np.append(np.ones(100), 1e9)  # missing values do not count
    np.testing.assert_array_equal(Sketch(n_bins=4).cuts(mass), [24, 49, 74])


def test_sketch_takes_heavy_bins_once():
    mass = np.array([1.0, 50.0, 1.0, 1.0, 47.0, 0.0, 0.0])
    np.testing.assert_array_equal(Sketch(n_bins=10).cuts(mass), [1, 4])


@pytest.mark.parametrize("n_bins", [2, 32])
def test_sketch_of_a_heavy_last_bin_cuts_below_it(n_bins):
    mass = np.array([0.0, 0.0, 0.0, 9.0, 0.0])
    np.testing.assert_array_equal(Sketch(n_bins=n_bins).cuts(mass), [2])


def test_sketch_of_noise_keeps_every_cut():
    np.testing.assert_array_equal(Sketch().cuts(np.full(6, -1.0)), [0, 1, 2, 3])
    assert not len(Sketch().cuts(np.array([5.0, 1.0])))  # a constant


@pytest.mark.parametrize("seed", range(10))
def test_sketch_parts_hold_about_as_much(seed):
    rng = np.random.default_rng(seed)
    mass = rng.normal(10, 3, 200)
    cuts = Sketch(n_bins=8).cuts(mass)
    parts = np.add.reduceat(np.maximum(mass[:-1], 0), [0, *(cuts.astype(int) + 1)])
    assert parts.max() - parts.min() <= 2 * mass.max()
