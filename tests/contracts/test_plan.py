"""Plans that would fail after their charge are refused before it."""

import pytest

from dpgb_dask.components.budgets import Shares
from dpgb_dask.components.candidates import PublicBins
from dpgb_dask.components.leaves import GradientStep
from dpgb_dask.components.sampling import Ensembles, PoissonRows
from dpgb_dask.components.splits import ExponentialSplit
from dpgb_dask.components.trees import Trees
from dpgb_dask.contracts.plan import Plan, Shape
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import PlanError


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ((PoissonRows(),), {"pure": True}, "draws_rows=True"),
        ((Ensembles(),), {}, "draws_rows=True"),
        ((PoissonRows(),), {"draws_rows": True}, "gain nothing under Gaussian noise"),
        ((PoissonRows(), PoissonRows()), {"draws_rows": True, "pure": True}, "2 stages"),
        ((Ensembles(), PoissonRows()), {"draws_rows": True, "pure": True}, "2 stages"),
    ],
)
def test_draws_that_could_not_be_paid_for_raise(rows, options, message):
    stages = tuple(Trees(n_trees=2, share=0.5, rows=part) for part in rows)
    with pytest.raises(PlanError, match=message):
        Plan("mine", "here", (PublicBins(), *stages), **options)


def test_a_choice_among_several_scores_raises():
    halves = Shares(candidates=0.0, splits=0.5, leaves=0.5)
    trees = Trees(n_trees=2, split=ExponentialSplit(), leaf=GradientStep(), budget=halves)
    plan = Plan("mine", "here", (PublicBins(), trees))
    plan.demand(Shape(schema=Schema({"a": (0, 1)}, classes=[0, 1])))
    with pytest.raises(PlanError, match="n_scores=3"):
        plan.demand(Shape(schema=Schema({"a": (0, 1)}, classes=[0, 1, 2])))
