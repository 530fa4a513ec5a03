"""How DPBoost, DP-XGBoost and DP-EBM spread a budget: the price of each query, and the total loss of a row."""

import math
from dataclasses import replace

import numpy as np
import pytest
from every_component.test_recipes import answer

from dpgb_dask.components.trees.budgets import BudgetView, Even, Kappa, Local
from dpgb_dask.components.trees.candidates import PublicBins
from dpgb_dask.components.trees.sampling import Ensembles
from dpgb_dask.contracts.plan import MOST_WEIGHT_STEPS, Budget, Shape, State
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.contracts.spending import Spending, amplified
from dpgb_dask.controller.accounting import sigma_for
from dpgb_dask.controller.gaussian import MAX_SIGMA
from dpgb_dask.losses import GRAD_ONE
from dpgb_dask.recipes import RECIPES
from dpgb_dask.training import loop

M = 4
SHAPE = Shape(schema=Schema({f"x{j}": (0, 1) for j in range(M)}, classes=[0, 1]))
EPSILON = 2.0
TOTAL = int(EPSILON * PRICE_ONE)


def run(plan, total=TOTAL, budget=None, n_rows=1.0):
    """Return the queries of a run of a plan, and what a row loses."""
    budget = budget or Budget(epsilon=EPSILON, delta=1e-6)
    spending, queries = Spending(pure=plan.pure), []
    rng = np.random.default_rng(0)

    def ask(_stage, _state, query):
        queries.append(query)
        return answer(query, 1e4, rng)

    loop.run(plan, replace(State.first(SHAPE, 0, budget, total), n_rows=n_rows), ask)
    for query in queries:
        spending = spending.after(query)
    return queries, spending


def prices_of_trees(queries):
    """Return, per tree, the list of prices of every part."""
    trees = {}
    for query in queries:
        tree, part = query.label.split(": ")
        trees.setdefault(tree, {}).setdefault(part, []).append(query.price)
    return list(trees.values())


def trees_alone(name, **options):
    """Return a recipe's trees without what comes before them, with other options."""
    plan = RECIPES[name]
    return replace(plan, stages=(PublicBins(n_bins=8), replace(plan.stages[-1], **options)))


def check_halves(trees, price, depth):
    """DPBoost, algorithm 1: half of a tree's ε is for its leaves, half for its levels, whose nodes are disjoint."""
    for tree in trees:
        assert len(tree["splits"]) == depth
        assert tree["splits"] == pytest.approx([price / 2 / depth] * depth)
        assert tree["leaves"] == pytest.approx([price / 2])


def test_seq_gives_every_tree_its_part():
    queries, spending = run(trees_alone("seq"))
    trees = prices_of_trees(queries)
    assert len(trees) == 50
    check_halves(trees, TOTAL / 50, 6)
    assert sum(q.price for q in queries) == spending.spent
    assert 0 <= TOTAL - spending.spent < 1e4  # units of 2⁻⁶⁴: rounding alone


@pytest.mark.parametrize("name", ["dpboost", "para"])
def test_parts_of_an_ensemble_cost_once(name):
    queries, spending = run(trees_alone(name))
    trees = prices_of_trees(queries)
    assert len(trees) == 50
    check_halves(trees, TOTAL, 6)  # disjoint rows: every tree has the whole budget
    assert sum(q.price for q in queries) == pytest.approx(50 * TOTAL)
    assert 0 <= TOTAL - spending.spent < 1e4


@pytest.mark.parametrize(("n_trees", "size", "n_ensembles"), [(8, 4, 2), (9, 4, 3), (3, 4, 1)])
def test_ensembles_share_the_budget(n_trees, size, n_ensembles):
    rows = Ensembles(size=size, decay=0.1)
    queries, spending = run(trees_alone("dpboost", n_trees=n_trees, rows=rows, depth=2))
    check_halves(prices_of_trees(queries), TOTAL / n_ensembles, 2)
    assert 0 <= TOTAL - spending.spent < 1e4


def test_dp_xgboost_spends_thirds_that_amplify_to_the_budget():
    queries, spending = run(trees_alone("dp-xgboost"))
    trees = prices_of_trees(queries)
    assert len(trees) == 20
    # ln(1 + γ(e^ε - 1)) = ε_tree, solved for the ε of the questions on the sample
    on_sample = PRICE_ONE * math.log1p(math.expm1(EPSILON / 20) / 0.1)
    for tree in trees:
        assert tree["candidates"] == pytest.approx([on_sample / 3], rel=1e-6)  # M sketches at once
        assert tree["splits"] == pytest.approx([on_sample / 3 / 6] * 6, rel=1e-6)
        assert tree["leaves"] == pytest.approx([on_sample / 3], rel=1e-6)
        asked = sum(map(sum, tree.values()))
        assert amplified(asked, 0.1) <= TOTAL // 20
    assert 0 <= TOTAL - spending.spent <= 1e-6 * TOTAL


def test_dp_ebm_gives_a_tenth_to_bins():
    plan = RECIPES["dp-ebm"]
    plan = replace(plan, stages=(plan.stages[0], replace(plan.stages[-1], n_trees=3)))
    queries, spending = run(plan)
    trees = [q.price for q in queries if q.label.startswith("trees")]
    assert len(trees) == 3 * M
    assert len(set(trees)) == 1
    assert sum(trees) == pytest.approx(0.9 * TOTAL, rel=1e-3)
    assert 0 <= TOTAL - spending.spent <= 1e-3 * TOTAL


def test_classic_noise_is_that_of_strong_composition():
    total = PRICE_ONE // 20  # about what (1, 10⁻⁶) is worth in μ²
    queries, spending = run(RECIPES["dp-ebm-classic"], total, Budget(epsilon=1.0, delta=1e-6))
    prices = {q.price for q in queries if q.label.startswith("trees")}
    k = 300 * M
    epsilon, delta = 0.9, 0.9e-6
    sigma2 = 8 * k * math.log(math.e + epsilon / delta) / epsilon**2
    (price,) = prices
    assert price / PRICE_ONE == pytest.approx(1 / sigma2)
    assert spending.spent < total  # looser than GDP: some is left


def test_local_noise_grows_with_the_rows():
    plan = trees_alone("ldp")
    even, _ = run(replace(plan, stages=(plan.stages[0], replace(plan.stages[1], budget=Even()))))
    for n_rows in (1.0, 1e3):
        local, _ = run(plan, n_rows=n_rows)
        # every row noises its own answers, so that replacing it is hidden: 4 n times the variance
        assert [q.price for q in local] == pytest.approx([q.price / (4 * n_rows) for q in even])


@pytest.mark.parametrize("total", [1, 7, 10**6 + 3, TOTAL + 1])
@pytest.mark.parametrize("name", ["seq", "dpboost", "fdp-tr-newton-ih"])
def test_prices_never_add_up_to_more(name, total):
    """Odd totals: what does not divide stays unspent."""
    plan = trees_alone(name, n_trees=3)
    state = State.first(SHAPE, 0, Budget(epsilon=1.0, delta=1e-6), total)
    stage = plan.stages[-1]
    memory = stage.begin(plan.stages[0].begin(state)).memory
    kappa = stage.kappa(SHAPE)
    n_ensembles = 3 if name == "dpboost" else 1  # each of its three trees may spend it all
    spent = sum(
        units // 3 * stage._unit(state, memory._replace(tree=t), part)
        for t in range(3)
        for part, units in kappa._asdict().items()
        if units
    )
    assert spent <= n_ensembles * total


@pytest.mark.parametrize("n_rows", [1.0, 1e9, 1e30])
@pytest.mark.parametrize("total", [100, PRICE_ONE // 10**12, PRICE_ONE])
def test_local_noise_is_never_less_than_even_and_can_be_drawn_whatever_the_noisy_rows(
    n_rows, total
):
    view = BudgetView(
        total=total,
        tree=total // 10,
        n_trees=10,
        kappa=Kappa(0, 0, 10),
        all_rows=True,
        budget=Budget(epsilon=1.0, delta=1e-6),
        n_rows=n_rows,
    )
    price = Local().unit(view, "leaves")
    assert 0 < price <= Even().unit(view, "leaves")
    if total == PRICE_ONE:
        assert sigma_for(2 * (GRAD_ONE * MOST_WEIGHT_STEPS) ** 2, price) <= MAX_SIGMA
