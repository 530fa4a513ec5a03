"""The stage `Mean`: the mean error, which clipped residuals do not tell (the last stage of the default method)."""

from dataclasses import dataclass, replace

import numpy as np

from dpgb_dask.components import constants
from dpgb_dask.components.answers import sums
from dpgb_dask.components.auto.posterior import AutoFacts, gradient_of, steps
from dpgb_dask.components.prices import share_of
from dpgb_dask.components.trees.splits import root
from dpgb_dask.contracts.plan import Answer, Demand, Shape, Stage, State
from dpgb_dask.contracts.queries import Query, TreeSumsQuery


@dataclass(frozen=True, slots=True)
class Mean(Stage):
    """One release of the mean residual of a numeric target, widely clipped; the intercept moves by what noise leaves.

    Every stage before clips residuals, so that of a skewed target the model fits a mean of clipped ones. The mean error
    is normal around 0 a priori, with a standard deviation in proportion to that of the target.
    """

    uses = (AutoFacts,)
    keeps_monotonic = True  # no part of the model depends on a feature
    keeps_interactions = True

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask."""
        return (TreeSumsQuery,)

    def declare(self, shape: Shape) -> Demand:
        """Declare one release for what earlier stages leave, of numbers; nothing for classes."""
        return Demand(0.0, 1.0, 1) if shape.kind == "numeric" else Demand(0.0, 0.0, 0)

    def begin(self, state: State) -> State:
        """Ask once, if what was kept for it is left, or more than a little of the rest."""
        if state.shape.kind != "numeric":
            return state
        least = state.fact(AutoFacts).mean_price or share_of(state.total, constants.MEAN_LEAST)
        return replace(state, memory=state.left >= least > 0)

    def next_query(self, state: State) -> Query | None:
        """Ask for the sum of all residuals."""
        if not state.memory:
            return None
        reach = state.fact(AutoFacts).reach
        return TreeSumsQuery(
            label="mean",
            price=state.left,
            weight_bits=state.shape.weight_bits,
            n_scores=1,
            gradient=gradient_of(state.shape.kind, reach, 1),
            splits=root(),
        )

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Move the intercept by the posterior mean of the error."""
        assert isinstance(query, TreeSumsQuery)
        assert state.model is not None
        answer = sums(query, released)
        spread = state.fact(AutoFacts).spread
        error = -float(answer.grad[0, 0]) / state.n_rows
        noise = (answer.grad_sd / state.n_rows) ** 2 + spread**2 / state.n_rows
        prior = (constants.MEAN_ERROR * spread) ** 2
        intercept = state.model.intercept + steps(error * prior / (prior + noise))
        most = steps(1.0)
        model = replace(state.model, intercept=np.clip(intercept, -most, most).astype(np.int32))
        return replace(state, model=model, memory=False)
