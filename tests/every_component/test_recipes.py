"""The same checks of every recipe: it charges what it declares, and decides the same with the same seed."""

from dataclasses import replace

import numpy as np
import pytest
from plans import PLANS
from thinned import one_of_each, thinned

from dpgb_dask import recipes
from dpgb_dask.components.auto.pairs import Pairs
from dpgb_dask.components.trees.stage import Trees
from dpgb_dask.contracts.boundary import Receipt, Released
from dpgb_dask.contracts.plan import Budget, Shape, State
from dpgb_dask.contracts.queries import PRICE_ONE, ChoiceQuery, Query, SharedChoiceQuery
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import LOSSES
from dpgb_dask.recipes import RECIPES
from dpgb_dask.released.export import model_to_dict
from dpgb_dask.training import loop

BUDGET = Budget(epsilon=1.0, delta=1e-6)
FEATURES = {"a": (0, 1), "b": (-3.0, 8.0), "c": ["x", "y", "z"], "d": (0, 40)}
SCHEMAS = {
    "binary": Schema(FEATURES, classes=["no", "yes"]),
    "multiclass": Schema(FEATURES, classes=[1, 2, 3]),
    "numeric": Schema(FEATURES, target_bounds=(0, 10)),
    "categories alone": Schema({"a": ["x", "y"], "b": [1, 2, 3]}, classes=["no", "yes"]),
}


def answer(query: Query, n_rows: float, rng: np.random.Generator) -> Released[np.ndarray]:
    """Noise around the scale of a data set of ``n_rows``: any answer must be handled."""
    if isinstance(query, ChoiceQuery | SharedChoiceQuery):
        shared = isinstance(query, SharedChoiceQuery)
        n = len(query.candidates[0]) if shared else len(query.candidate_bin)
        chosen = rng.integers(0, n, query.n_values)
        return Released(
            chosen, Receipt("fit", "query", 0, query.label, query.price, 0, 0, "choice")
        )
    sd = 2.0**query.step_bits
    value = rng.normal(n_rows / 10, 3.0, query.n_values) * sd
    receipt = Receipt("fit", "query", 0, query.label, query.price, int(3 * sd) + 1, 0)
    return Released(value.astype(np.int64), receipt)


def run(plan, kind, total, n_rows, seed=0, answers=0):
    """Run a plan over answers of a seed; return the last state, each stage's price and queries, and all digests."""
    rng = np.random.default_rng(answers)
    left = [[] for _ in plan.stages]
    digests = []

    def ask(stage, state, query):
        assert query.price > 0
        assert state.left >= 0
        # their kernels are compiled before the fit; None: all
        assert stage.queries is None or type(query) in stage.queries
        digests.append(query.digest())
        left[next(k for k, known in enumerate(plan.stages) if known is stage)].append(state.left)
        return answer(query, n_rows, rng)

    plan = replace(plan, stops_on_few_rows=False)  # every stage has to handle any answers
    first = State.first(Shape(schema=SCHEMAS[kind]), seed, BUDGET, total)
    state = loop.run(plan, first, ask).state
    spent, before = [], total
    for after in left:
        spent.append((before - (after or [before])[-1], len(after)))
        before = (after or [before])[-1]
    return state, spent, digests


SERVED = [(name, kind) for name, plan in sorted(PLANS.items()) for kind in sorted(plan.kinds)]
# trees per feature, instead of 300, or trees: the same questions, fewer times
LONG = {"dp-ebm": 20, "dp-ebm-classic": 20, "rich": 20}


def plan_of(name, kind):
    return recipes.get(PLANS[name], kind=kind, n_estimators=LONG.get(name))


CHARGES = [
    (name, (kind, n_rows, mu))
    for name, kind in SERVED
    for n_rows, mu in ((0.0, 0.3), (300.0, 0.03), (1e6, 2.0))
]


@pytest.mark.parametrize(("name", "kind", "n_rows", "mu"), one_of_each(CHARGES))
def test_recipe_charges_what_it_declares(name, kind, n_rows, mu):
    plan = plan_of(name, kind)
    total = int(mu**2 * PRICE_ONE)
    state, spent, _ = run(plan, kind, total, n_rows)
    assert 0 <= state.left <= total
    for stage, (price, n_queries) in zip(plan.stages, spent, strict=True):
        demand = stage.declare(state.shape)
        assert demand.at_least * total * 0.999 <= price <= demand.at_most * total * 1.001, stage
        assert n_queries <= demand.n_queries
    frugal = any(isinstance(s, Trees) and not s.budget.spends_all for s in plan.stages)
    asking = [k for k, stage in enumerate(plan.stages) if stage.declare(state.shape).at_most]
    last = asking[-1]
    frugal |= isinstance(plan.stages[last], Pairs) and not state.model.pairs  # none has an effect
    if spent[last][0] > 0 and not frugal:  # the last stage takes all that is left
        assert state.left <= 0.01 * total
    for table in state.model.tables:
        assert np.all(np.isfinite(table))


# first the one that asks for the candidates of numbers before it chooses among all
@pytest.mark.parametrize("name", thinned(sorted(RECIPES, key="dp-xgboost".__ne__), every=20))
def test_recipe_asks_of_categories_alone_what_it_declares(name):
    one = 1 if "n_estimators" in PLANS[name].parameters() else None
    plan = recipes.get(PLANS[name], kind="binary", n_estimators=one)
    state, spent, _ = run(plan, "categories alone", PRICE_ONE, 300.0)
    for stage, (price, n_queries) in zip(plan.stages, spent, strict=True):
        demand = stage.declare(state.shape)
        assert price <= demand.at_most * PRICE_ONE * 1.001
        assert n_queries <= demand.n_queries


@pytest.mark.parametrize("name", thinned(sorted(PLANS), every=8))
def test_recipe_decides_the_same_for_the_same_seed_and_answers(name):
    plan = plan_of(name, "binary")
    first, again, other = (run(plan, "binary", PRICE_ONE, 1e5, seed) for seed in (0, 0, 1))
    assert first[2] == again[2]
    assert model_to_dict(first[0].model) == model_to_dict(again[0].model)
    assert plan.is_random == (first[2] != other[2])  # who draws in public says so, nobody else


@pytest.mark.parametrize("name", sorted(PLANS))
def test_recipe_digest_changes_with_every_parameter(name):
    plan = recipes.get(PLANS[name], kind="binary")
    assert plan.digest() == recipes.get(plan, kind="binary").digest()
    for parameter in plan.parameters():
        value = 0.05 if parameter == "learning_rate" else 3
        changed = recipes.get(plan, kind="binary", **{parameter: value})
        assert changed.digest() != plan.digest()


def test_get_refuses_what_a_recipe_does_not_have():
    with pytest.raises(PlanError, match="unknown"):
        recipes.get("nothing", kind="binary")
    with pytest.raises(PlanError, match="does not have it"):
        recipes.get("auto", kind="binary", subsample=0.5)
    with pytest.raises(PlanError, match="n_estimators=0"):
        recipes.get("auto", kind="binary", n_estimators=0)
    with pytest.raises(PlanError, match=r"max_depth=11.*\[1, 10\]"):
        recipes.get("fdp-tr-newton", kind="binary", max_depth=11)
    with pytest.raises(PlanError, match="learning_rate=0"):
        recipes.get("dp-ebm", kind="binary", learning_rate=0)
    with pytest.raises(PlanError, match="max_bins=1"):
        recipes.get("fdp-tr-newton-ih", kind="binary", max_bins=1)


def test_get_names_recipes_that_can():
    with pytest.raises(PlanError, match=r"poisson.*dp-rf.*'fdp-tr-newton'"):
        recipes.get("dp-rf", kind="numeric", loss=LOSSES["poisson"])
    with pytest.raises(PlanError, match=r"dpboost.*multiclass.*'auto'"):
        recipes.get("dpboost", kind="multiclass")
    with pytest.raises(PlanError, match=r"does not fit a binary target.*log_loss"):
        recipes.get("auto", kind="binary", loss=LOSSES["poisson"])


def test_a_changed_recipe_says_so():
    plan = recipes.RECIPES["fdp-tr-newton"]
    changed = replace(plan, stages=plan.stages[:1] + plan.stages[2:])
    assert recipes.get(plan, kind="binary").name == "fdp-tr-newton"
    assert recipes.get(changed, kind="binary").name == "fdp-tr-newton (changed)"
    assert recipes.get(replace(changed, name="mine"), kind="binary").name == "mine"


def test_plans_and_trees_of_no_parts_raise():
    plan = recipes.RECIPES["fdp-tr-newton"]
    with pytest.raises(PlanError, match="makes no bins"):
        replace(plan, stages=plan.stages[1:])
    for part in ("split", "leaf", "features", "rows", "budget"):
        with pytest.raises(PlanError, match=f"{part}=3 is no part of trees"):
            replace(plan.stages[-1], **{part: 3})


def test_recipes_of_one_paper_that_differ_by_candidates_have_the_same_leaves_and_start():
    """A plan made of another by hand may lose what that was given."""
    first = RECIPES["fdp-tr-newton"].stages
    for end in ("-ih", "-log", "-quantile"):
        bins, *rest = RECIPES[f"fdp-tr-newton{end}"].stages
        assert end == "-ih" or bins != first[0]
        assert [replace(s, candidates=None) if isinstance(s, Trees) else s for s in rest] == [
            *first[1:]
        ]
