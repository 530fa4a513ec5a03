"""The boosting loop: stage after stage, question after question. Who asks the rows is the caller's business."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from threadpoolctl import threadpool_limits

from dpgb_dask.contracts.boundary import Released
from dpgb_dask.contracts.plan import Plan, Stage, State
from dpgb_dask.contracts.queries import Query
from dpgb_dask.contracts.spending import Spending

Ask = Callable[[Stage, State, Query], Released[Any]]


@dataclass(frozen=True, eq=False, slots=True)
class Ran:
    """Where a plan ended.

    Parameters
    ----------
    state : State
    stopped : bool
        Whether it ended with the start model, as the number of rows could not be told from none.
    """

    state: State
    stopped: bool


def run(plan: Plan, state: State, ask: Ask) -> Ran:
    """Run the stages of a plan.

    Parameters
    ----------
    plan : Plan
    state : State
        What is known before the first question; nothing is spent.
    ask : callable
        Called with (stage, state, query), the price of the query taken off ``state.left``; returns its released answer,
        at the scores of ``state.model``. What it raises ends the run.

    Notes
    -----
    Linear algebra runs on one thread meanwhile: several would add in another order, and give other bits.
    """
    spending = Spending(pure=plan.pure)
    with threadpool_limits(limits=1, user_api="blas"):
        for stage in plan.stages:
            if plan.stops_before(stage, state):
                return Ran(state, stopped=True)
            state = replace(state, memory=None)  # freed before the next one is made
            state = stage.begin(state)
            while (query := stage.next_query(state)) is not None:
                spending = spending.after(query)
                state = replace(state, left=state.total - spending.spent)
                state = stage.update(state, query, ask(stage, state, query))
    return Ran(state, stopped=False)
