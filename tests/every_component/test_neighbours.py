"""Every recipe on neighbouring rows, with released answers replayed: no sums change by more than their sensitivity."""

import numpy as np
import pytest
from neighbours import SCHEMAS, drive, open_local, rows_to_add, some_rows
from outside.expectile import Expectile, Exponential
from plans import OUTSIDE, PLANS

from dpgb_dask import recipes
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.private.sensitivity import sensitivity

SERVED = [(name, kind) for name, plan in sorted(PLANS.items()) for kind in sorted(plan.kinds)]
WEIGHTS = [4.0, 1e300, np.inf, np.nan, -1.0, 0.3]


def check_neighbours(plan, kind, shape, weight=None, added_weights=(1.0,)):
    """Ask both data sets every query of a run; return how many queries there were."""
    x, y = some_rows(kind, 300)
    w = None if weight is None else weight(len(y))
    alone = open_local(x, y, kind, shape, w)
    others = []
    for k, (row, label) in enumerate(rows_to_add(kind)):
        x2 = np.vstack([x, np.array(row, dtype=object)])
        y2 = np.append(np.asarray(y, dtype=object), label)
        y2 = y2.astype(float) if kind == "numeric" else y2
        w2 = None if w is None else np.append(w, added_weights[k % len(added_weights)])
        others.append(open_local(x2, y2, kind, shape, w2))
    n_queries, moved_at_all = 0, 0

    def check(query, bound, sums, changed):
        nonlocal n_queries, moved_at_all
        assert bound == sensitivity(query, shape)
        n_queries += 1
        for theirs in changed:
            change = theirs - sums
            assert sum(int(d) ** 2 for d in change) <= bound.l2_squared, query.label
            assert sum(abs(int(d)) for d in change) <= bound.l1, query.label
            moved_at_all += any(change)

    drive(plan, shape, alone, others, check)
    for rounds in (alone, *others):
        rounds.close()
    assert moved_at_all  # the test sees the rows it adds
    return n_queries


@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_one_row_moves_no_query_of_a_recipe_beyond_its_sensitivity(name, kind):
    plan = recipes.get(PLANS[name], kind=kind).brief()
    assert check_neighbours(plan, kind, Shape(schema=SCHEMAS[kind])) <= 14


@pytest.mark.parametrize(("loss", "kind"), [(Expectile(0.9), "numeric"), (Exponential(), "binary")])
@pytest.mark.parametrize("name", ["fdp-tr-newton", "fdp-tr-gradient", "dp-ebm", "dp-xgboost"])
def test_one_row_moves_no_query_of_an_outside_loss_beyond_its_sensitivity(name, loss, kind):
    plan = recipes.get(name, kind=kind).brief()
    check_neighbours(plan, kind, Shape(schema=SCHEMAS[kind], loss=loss))


@pytest.mark.parametrize(
    "name", ["auto", "fdp-tr-newton-ih", "feverless", "dpboost", "dp-xgboost", *OUTSIDE]
)
def test_a_heavy_row_moves_no_query_beyond_its_sensitivity(name):
    plan = recipes.get(PLANS[name], kind="binary").brief()
    shape = Shape(schema=SCHEMAS["binary"], max_weight=4, weight_bits=8)
    rng = np.random.default_rng(5)
    check_neighbours(plan, "binary", shape, lambda n: rng.uniform(0, 5, n), WEIGHTS)


@pytest.mark.parametrize("weight", [None, lambda n: np.random.default_rng(5).uniform(0, 5, n)])
@pytest.mark.parametrize("name", ["auto", "fdp-tr-newton"])
def test_a_row_of_a_heavy_class_moves_no_query_beyond_its_sensitivity(name, weight):
    plan = recipes.get(PLANS[name], kind="binary").brief()
    shape = Shape(schema=SCHEMAS["binary"], max_weight=4, weight_bits=8, class_weight=(0.3, 4.0))
    check_neighbours(plan, "binary", shape, weight, WEIGHTS)


def test_a_sensitivity_that_is_too_small_is_seen():
    plan = recipes.get("fdp-tr-newton", kind="binary").brief()
    shape = Shape(schema=SCHEMAS["binary"])
    x, y = some_rows("binary", 300)
    twice = open_local(np.vstack([x, x[:3]]), np.append(y, y[:3]), "binary", shape)
    alone = open_local(x, y, "binary", shape)
    beyond = []

    def check(_query, bound, sums, theirs):
        beyond.append(sum(int(d) ** 2 for d in theirs[0] - sums) > bound.l2_squared)

    drive(plan, shape, alone, [twice], check)
    assert any(beyond)  # three rows move more than one may
