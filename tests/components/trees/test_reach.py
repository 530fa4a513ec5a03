"""Scores that a released model can reach: bounds that the stage keeps as the model grows."""

from dataclasses import replace

import numpy as np
import pytest
from neighbours import SCHEMAS
from plans import PLANS
from private.cases import KINDS, model_of
from thinned import one_of_each

from dpgb_dask import recipes
from dpgb_dask.components.trees.reach import Reach
from dpgb_dask.components.trees.stage import Trees
from dpgb_dask.contracts.boundary import Receipt, Released
from dpgb_dask.contracts.plan import Budget, Shape, State
from dpgb_dask.contracts.queries import PRICE_ONE, GradientQuery
from dpgb_dask.released.predict import scorer
from dpgb_dask.training.loop import run

GROWN = [
    (name, kind)
    for name, plan in sorted(PLANS.items())
    if any(isinstance(stage, Trees) for stage in plan.stages)
    for kind in sorted(plan.kinds)
]


def codes_of(model, n=2000):
    """Rows of random codes."""
    rng = np.random.default_rng(3)
    return np.stack([rng.integers(0, own.n_bins, n) for own in model.bins]).astype(np.uint8)


def check_reach(reach, model):
    score = scorer(model)(codes_of(model))
    assert (reach.low <= score.min(axis=0)).all()
    assert (score.max(axis=0) <= reach.high).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_scores_of_rows_stay_within_the_reach_of_every_model(kind, seed):
    check_reach(Reach.of(model_of(kind, seed)), model_of(kind, seed))


def test_reach_is_attained_by_a_table_and_a_tree():
    """Without a second part there is no slack: the least and largest scores are those of rows."""
    model = model_of("binary", n_pairs=0, n_trees=0)
    score = scorer(model)(codes_of(model, 20_000))
    reach = Reach.of(model)
    assert (reach.low[0], reach.high[0]) == (score.min(), score.max())


@pytest.mark.parametrize(("name", "kind"), one_of_each(GROWN))
def test_every_query_of_trees_is_bounded_over_what_its_model_reaches(name, kind):
    plan = replace(recipes.get(PLANS[name], kind=kind).brief(), stops_on_few_rows=False)
    shape = Shape(schema=SCHEMAS[kind])
    rng = np.random.default_rng(0)
    grown = 0

    def ask(stage, state, query):
        nonlocal grown
        if isinstance(stage, Trees) and isinstance(query, GradientQuery):
            reach, known = state.memory.reach, Reach.of(state.model)
            assert (reach.low == known.low).all()
            assert (reach.high == known.high).all()
            check_reach(reach, state.model)
            whole = stage.leaf.gradient(shape)
            if query.label.endswith("leaves"):
                assert query.gradient.l2_squared == whole.within(*reach.ends).l2_squared
                assert not stage.leaf.means or query.gradient == whole
            grown += bool((reach.low < reach.high).any())
        chosen = rng.integers(0, 3, query.n_values) if query.n_values < query.n_sums else None
        noisy = rng.integers(-(1 << 20), 1 << 20, query.n_values) if chosen is None else chosen
        return Released(noisy, Receipt("fit", "query", 0, query.label, query.price, 1 << 20, 0))

    budget = Budget(epsilon=8.0, delta=1e-5)
    run(plan, State.first(shape, 0, budget, 8 * PRICE_ONE), ask)
    means = any(isinstance(stage, Trees) and stage.leaf.means for stage in plan.stages)
    one_batch = any(isinstance(stage, Trees) and stage.batch == 1.0 for stage in plan.stages)
    assert grown or means or one_batch
