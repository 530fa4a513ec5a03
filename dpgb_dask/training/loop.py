"""The boosting loop: stage after stage, query after query. The caller provides the function that answers queries."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dpgb_dask.contracts.boundary import Released
from dpgb_dask.contracts.plan import Plan, Stage, State
from dpgb_dask.contracts.queries import Query
from dpgb_dask.contracts.spending import Spending
from dpgb_dask.frozen import replaced
from dpgb_dask.training import blas

Ask = Callable[[Stage, State, Query], Released[Any]]


@dataclass(frozen=True, eq=False, slots=True)
class Ran:
    """The end of a run.

    Parameters
    ----------
    state : State
    stopped : bool
        Whether the run ended with the start model because the number of rows could not be told from zero.
    """

    state: State
    stopped: bool


def run(plan: Plan, state: State, ask: Ask) -> Ran:
    """Run the stages of a plan.

    Parameters
    ----------
    plan : Plan
    state : State
        State before the first query; nothing has been spent.
    ask : callable
        Called with (stage, state, query), where the price of the query is already subtracted from ``state.left``.
        Returns the released answer at the scores of ``state.model``. An exception ends the run.

    Notes
    -----
    Linear algebra of the stages runs on one thread; several threads would add in another order and give other bits.
    """
    spending = Spending(pure=plan.pure)
    for stage in plan.stages:
        if plan.stops_before(stage, state):
            return Ran(state, stopped=True)
        state = replace(state, memory=None)  # freed before the next one is made
        with blas.one_thread():
            state = stage.begin(state)
            query = stage.next_query(state)
        while query is not None:
            spending = spending.after(query)
            state = replaced(state, left=state.total - spending.spent)
            answer = ask(stage, state, query)
            with blas.one_thread():
                state = stage.update(state, query, answer)
                query = stage.next_query(state)
    return Ran(state, stopped=False)
