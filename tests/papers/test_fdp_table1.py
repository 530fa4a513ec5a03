"""FDP-GBDT's table 1, line by line: queries for candidates, splits and leaf weights; declared = charged.

T trees of depth d, m features, all numeric, k of them in a tree, s rounds of iterative Hessian splitting.
"""

import numpy as np
import pytest
from every_component.test_recipes import answer
from thinned import thinned

from dpgb_dask.components.trees.candidates import IterativeHessian, PublicBins
from dpgb_dask.components.trees.leaves import Averaging, GradientStep, NewtonStep
from dpgb_dask.components.trees.sampling import AllFeatures, Cyclic, RandomFeatures
from dpgb_dask.components.trees.splits import HistogramSplit, PartiallyRandom, TotallyRandom
from dpgb_dask.components.trees.stage import Kappa, Trees
from dpgb_dask.contracts.plan import Budget, Plan, Shape, State
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.recipes import RECIPES
from dpgb_dask.training import loop

T, M, D, S, K = 12, 6, 3, 2, 3  # S rounds of IH; T is enough for S cycles of one feature a tree
SPLITS = {"Hist": HistogramSplit(), "PR": PartiallyRandom(), "TR": TotallyRandom()}
CANDIDATES = {"fixed": None, "IH": IterativeHessian(rounds=S, n_bins=8)}
FEATURES = {
    "all": AllFeatures(),
    "cyclic-k": Cyclic(k=K),
    "random-k": RandomFeatures(k=K),
    "cyclic-1": Cyclic(k=1),
    "random-1": RandomFeatures(k=1),
}
TABLE_1 = [  # split, candidates, features: κ_c, κ_s, κ_w
    # C1, C2: Hist and PR κ_s = Tmd, κ_w = 0; TR κ_s = 0, κ_w = T. C3: uniform and log candidates κ_c = 0.
    ("Hist", "fixed", "all", 0, T * M * D, 0),
    ("PR", "fixed", "all", 0, T * M * D, 0),
    ("TR", "fixed", "all", 0, 0, T),
    # A1: of Hist and PR, κ_s = Tkd, and T if k = 1
    ("Hist", "fixed", "cyclic-k", 0, T * K * D, 0),
    ("Hist", "fixed", "random-k", 0, T * K * D, 0),
    ("Hist", "fixed", "cyclic-1", 0, T, 0),
    ("Hist", "fixed", "random-1", 0, T, 0),
    ("PR", "fixed", "cyclic-k", 0, T * K * D, 0),
    ("PR", "fixed", "random-k", 0, T * K * D, 0),
    ("PR", "fixed", "cyclic-1", 0, T, 0),
    ("PR", "fixed", "random-1", 0, T, 0),
    ("TR", "fixed", "cyclic-k", 0, 0, T),
    ("TR", "fixed", "cyclic-1", 0, 0, T),
    ("TR", "fixed", "random-1", 0, 0, T),
    # C3, iterative Hessian: of Hist κ_c = 0; of TR κ_c = sm
    ("Hist", "IH", "all", 0, T * M * D, 0),
    ("Hist", "IH", "cyclic-1", 0, T, 0),
    ("TR", "IH", "all", S * M, 0, T),
    # the table has no IH with PR: like TR, its trees hold no histograms
    ("PR", "IH", "all", S * M, T * M * D, 0),
    # A1: of TR with IH, κ_c = sk: the first s trees refine the features that they draw
    ("TR", "IH", "random-k", S * K, 0, T),
    ("TR", "IH", "random-1", S, 0, T),
    # Features in turn: κ_c = sm, as in §5.3.3 (DP-TR Newton IH EBM), not the table's sk, which refines sk of them only
    ("TR", "IH", "cyclic-k", S * M, 0, T),
    ("TR", "IH", "cyclic-1", S * M, 0, T),
]
LEAVES = [NewtonStep(), GradientStep(), Averaging()]  # C2: the rule does not change the cost
BATCHES = [1, 0.25, 1.0]  # A2: post-processing, no effect on privacy


def shape_of(n_features):
    return Shape(schema=Schema({f"x{j}": (0, j + 1) for j in range(n_features)}, classes=[0, 1]))


def ask(trees, shape, total, unit):
    """Return the price of all questions, by part: the labels end with it."""
    plan = Plan("table 1", "a test", (PublicBins(n_bins=8), trees))
    rng = np.random.default_rng(0)
    prices = {"candidates": 0, "splits": 0, "leaves": 0}
    n_queries = 0

    def heard(_stage, _state, query):
        nonlocal n_queries
        # a row falls in one cell of every block: a unit buys the same noise for all questions. Of partially random
        # splits, ours tell the sides apart by contrasts, which add the node's sum to the blocks, at the same price
        of_total = query.total_times**2 if getattr(query, "sides", None) is not None else 0
        assert query.price == unit * (query.n_blocks - of_total)
        prices[query.label.rpartition(": ")[2]] += query.price
        n_queries += 1
        return answer(query, 1e4, rng)

    state = loop.run(
        plan, State.first(shape, 0, Budget(epsilon=1.0, delta=1e-6), total), heard
    ).state
    assert n_queries <= trees.declare(shape).n_queries
    return prices, state


@pytest.mark.parametrize("batch", thinned(BATCHES, every=2))
@pytest.mark.parametrize("leaf", thinned(LEAVES, every=3), ids=lambda leaf: type(leaf).__name__)
@pytest.mark.parametrize(("split", "candidates", "features", "kc", "ks", "kw"), TABLE_1)
def test_table_1(split, candidates, features, kc, ks, kw, leaf, batch):
    trees = Trees(
        n_trees=T,
        depth=D,
        split=SPLITS[split],
        leaf=leaf,
        candidates=CANDIDATES[candidates],
        features=FEATURES[features],
        batch=batch,
    )
    shape = shape_of(M)
    assert trees.kappa(shape) == Kappa(kc, ks, kw)
    total = PRICE_ONE // 3
    unit = total // (kc + ks + kw)
    prices, state = ask(trees, shape, total, unit)
    assert prices == {"candidates": unit * kc, "splits": unit * ks, "leaves": unit * kw}
    assert 0 <= state.left < kc + ks + kw  # all but what does not divide is spent


@pytest.mark.parametrize(
    ("name", "kappa"),
    [  # table 2 and §5.3.3, at the recipes' T: κ_c / m, κ_s / m, κ_w
        ("dp-ebm-newton", (0, 0, 100)),
        ("feverless", (0, 25 * 4, 0)),
        ("dp-rf", (0, 0, 100)),
        ("fdp-tr-newton", (0, 0, 100)),
        ("fdp-tr-newton-ih-ebm", (5, 0, 100)),
        ("fdp-tr-batch-25", (5, 0, 100)),
        ("fdp-tr-batch-100", (5, 0, 100)),
        ("dp-gbm", (0, 25 * 4, 0)),
    ],
)
@pytest.mark.parametrize("m", [1, 4, 10])
def test_table_2(name, kappa, m):
    trees = RECIPES[name].stages[-1]
    kc, ks, kw = kappa
    levels = 4 if m == 1 and ks else 1  # one feature: the root's histogram serves all of them
    assert trees.kappa(shape_of(m)) == Kappa(kc * m, ks * m // levels, kw)


def test_categories_ask_no_candidates():
    schema = Schema({"a": (0, 1), "b": ["u", "v"], "c": (0, 1)}, classes=[0, 1])
    trees = Trees(n_trees=T, depth=D, candidates=CANDIDATES["IH"])
    assert trees.kappa(Shape(schema=schema)) == Kappa(
        2 * S, 0, T
    )  # the paper has numeric ones only


def test_rounds_end_with_the_trees():
    trees = Trees(n_trees=1, depth=D, candidates=CANDIDATES["IH"])
    assert trees.kappa(shape_of(M)) == Kappa(M, 0, 1)


@pytest.mark.parametrize("n_trees", [1, 7, 50])
def test_per_feature_counts_trees_of_every_feature(n_trees):
    trees = Trees(n_trees=n_trees, per_feature=True, depth=D, features=Cyclic(k=1))
    assert trees.kappa(shape_of(M)) == Kappa(0, 0, n_trees * M)
