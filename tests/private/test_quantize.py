"""Sensitivities against neighbouring data sets: never exceeded, and attained within 30 %."""

import numpy as np
import pandas as pd
import pytest
from private.cases import ALL, BINS, KEY, N_BINS, model_of, opened, queries_of, rows_of, shape_of

from dpgb_dask.contracts.model import Model
from dpgb_dask.contracts.plan import Execution
from dpgb_dask.contracts.queries import Query
from dpgb_dask.errors import PlanError
from dpgb_dask.private.ingest import read_source
from dpgb_dask.private.quantize import sensitivity
from dpgb_dask.private.rounds.local import LocalRounds
from dpgb_dask.private.survey import Reading

EXECUTION = Execution(n_threads=1)


def answer(kind, rows, model, query, weight_bits, max_weight):
    shape = shape_of(kind, max_weight, weight_bits)
    rounds = LocalRounds(read_source(*rows, shape.schema), Reading(shape, KEY), EXECUTION)
    try:
        return opened(rounds.ask(model, query))
    finally:
        rounds.close()


def flat_model(kind, score):
    """A model whose score is the same for every row."""
    n_scores = 3 if kind == "multiclass" else 1
    tables = tuple(np.zeros((n, n_scores), np.int32) for n in N_BINS)
    intercept = np.zeros(n_scores, np.int32)
    intercept[0] = score
    return Model(BINS, intercept, tables)


def extreme_models(kind):
    scores = np.array([-60, -1, -0.25, 0, 0.25, 0.6103, 1, 60]) * 65536
    if kind == "numeric":
        scores = np.array([-65536, -20001, -1, 0, 40001, 40002, 65536])
    return [flat_model(kind, int(score)) for score in scores] + [model_of(kind)]


def extra_rows(kind, weight):
    """Rows to add: ordinary, extreme and broken values of everything."""
    targets = [-1.0, 1.0, 3.0, np.inf, np.nan] if kind == "numeric" else [0.0, 1.0, 2.0, np.nan]
    for target in targets:
        for a in (0.0, np.inf, np.nan):
            yield pd.DataFrame({"a": [a], "b": [7.0], "c": [9.0]}), np.array([target]), weight


@pytest.mark.parametrize(("max_weight", "weight_bits"), [(1, 0), (3, 2)])
@pytest.mark.parametrize(("kind", "name"), ALL)
def test_sensitivity_is_never_exceeded_and_nearly_attained(kind, name, max_weight, weight_bits):
    query = queries_of(kind, weight_bits)[name]
    bound = sensitivity(query, shape_of(kind, max_weight, weight_bits)).l2_squared
    x, y, w = rows_of(kind, 50)
    worst = 0
    for model in extreme_models(kind):
        before = answer(kind, (x, y, w), model, query, weight_bits, max_weight)
        for more in extra_rows(kind, np.array([np.inf])):
            rows = [pd.concat([x, more[0]]), np.append(y, more[1]), np.append(w, more[2])]
            after = answer(kind, rows, model, query, weight_bits, max_weight)
            worst = max(worst, sum(int(d) ** 2 for d in after - before))
    assert worst <= bound
    assert worst > 0.7**2 * bound


def test_a_query_in_other_weight_steps_raises():
    with pytest.raises(PlanError, match="weight_bits=2"):
        sensitivity(queries_of("binary", 2)["count"], shape_of("binary"))


def test_an_unknown_query_has_no_sensitivity():
    with pytest.raises(PlanError, match="without a stated sensitivity"):
        sensitivity(Query(label="", price=1), shape_of("binary"))
