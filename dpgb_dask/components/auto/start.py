"""The stage `Start` (stage 1 of the default method): base rate or mean, residual scale, and which stages run."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.answers import natural
from dpgb_dask.components.auto import schedules
from dpgb_dask.components.auto.posterior import (
    AutoFacts,
    Totals,
    on_grid,
    residual_query,
    steps,
    with_residual_scale,
)
from dpgb_dask.components.auto.smoothing import Intercept
from dpgb_dask.components.bins import share_of
from dpgb_dask.contracts.constraints import UNCONSTRAINED
from dpgb_dask.contracts.plan import Answer, Demand, Shape, Stage, State
from dpgb_dask.contracts.queries import PRICE_ONE, Query, ResidualQuery, TargetSumQuery
from dpgb_dask.losses import LINKS_OF, class_weights

STEPS_TO_BALANCE = 100  # halve the distance to the balance at least every second step


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Stage):
    """Noisy base rate (classification), or noisy mean and residual scale (regression).

    Parameters
    ----------
    rich_from : float
        Signal (`schedules.tree_signal`) from which trees replace the pairs.
    trees : bool
        Whether stages of trees follow: without, tables of one and two features share the budget.
    """

    rich_from: float = constants.RICH_SIGNAL
    trees: bool = True

    starts = True
    keeps_monotonic = True  # no part of the model depends on a feature
    keeps_interactions = True
    gives = (AutoFacts,)

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask."""
        return TargetSumQuery, ResidualQuery

    def declare(self, shape: Shape) -> Demand:
        """Declare 1 % of what `Bins` left; for a numeric target as much again for the first residual scale."""
        share = constants.START_SHARE * (2 if shape.kind == "numeric" else 1)
        return Demand(0.85 * share, share, 2 if shape.kind == "numeric" else 1)

    def begin(self, state: State) -> State:
        """Fix the price of each release of this stage."""
        price = share_of(state.left, constants.START_SHARE)
        return replace(state, memory="target").with_fact(AutoFacts(start_price=price))

    def next_query(self, state: State) -> Query | None:
        """Ask for the sums of the target, then for the residual scale."""
        if state.memory == "target":
            return TargetSumQuery(
                label="start",
                price=state.fact(AutoFacts).start_price,
                weight_bits=state.shape.weight_bits,
                kind=state.shape.kind,
                n_classes=len(state.shape.schema.target.classes),
            )
        return residual_query(state, "start scale") if state.memory == "scale" else None

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Set the intercept, and decide which later stages run."""
        if isinstance(query, ResidualQuery):
            state = with_residual_scale(state, query, released)
            return self._divide(replace(state, memory="done"))
        values, _ = natural(query, released)
        kind, n_rows = state.shape.kind, state.n_rows
        if kind == "numeric":
            intercept = np.clip(values / n_rows, -1, 1)
            hess: tuple[float, ...] = (1.0,)
        elif kind == "binary":
            low = min(0.5 / n_rows + 1e-4, 0.5)
            rate = float(np.clip(values[0] / n_rows, low, 1 - 1e-4))
            intercept, mean_hess = binary_start(rate)
            hess = (mean_hess,)
        else:
            rate_of = np.maximum(values / n_rows, 1e-4)
            rate_of = rate_of / rate_of.sum()
            intercept, of_class = multiclass_start(rate_of)
            hess = tuple(np.maximum(of_class, 0.005))
        assert state.model is not None
        intercept = on_grid(intercept)
        # scores of clipped gradients need their own link
        link = LINKS_OF[kind][0]
        totals = Totals(intercepts=tuple(Intercept(float(f)) for f in intercept), hess=hess)
        model = replace(state.model, intercept=steps(intercept), link=link)
        found = replace(state.fact(AutoFacts), totals=totals)
        state = replace(state, model=model).with_fact(found)
        if kind == "numeric":
            return replace(state, memory="scale")
        return self._divide(replace(state, memory="done"))

    def _divide(self, state: State) -> State:
        """Divide what is left among the later stages, by public rules."""
        kind = state.shape.kind
        found = state.fact(AutoFacts)
        scale = found.start_price if kind == "numeric" else 0
        n_rows = state.n_rows / state.shape.max_weight
        if self.trees and kind != "multiclass" and state.shape.constraints == UNCONSTRAINED:
            hess = constants.NUMERIC_HESS if kind == "numeric" else found.totals.hess[0]
            signal = schedules.tree_signal(n_rows, hess, state.left / PRICE_ONE)
            if signal >= self.rich_from:
                chosen = signal >= constants.CHOSEN_SIGNAL * self.rich_from
                left = max(state.left - (2 + chosen) * scale, 0)
                split = schedules.split_rich(signal, left, chosen=chosen)
                return state.with_fact(replace(found, split=split))
        signal = schedules.pair_signal(
            kind,
            state.shape.n_pairs,
            n_rows,
            float(np.mean(found.totals.hess)),
            found.clip,
            max(state.left - (constants.RESIDUAL_REFRESHES - 1) * scale, 0) / PRICE_ONE,
        )
        # each later stage that runs releases the residual scale once more
        directions = state.shape.directions
        forest = self.trees and (directions is None or not directions.all())
        run = schedules.split_budget(kind, signal, state.left, forest=forest)
        refreshes = 1 + (run.screen > 0) + (run.forest > 0)
        left = max(state.left - refreshes * scale, 0)
        split = schedules.split_budget(kind, signal, left, forest=forest)
        return state.with_fact(replace(found, split=split))


def multiclass_start(rate: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores at which gradients clipped in norm sum to zero at some rates, and the mean Hessian per class.

    The sum is zero where p_k ∝ q_k w_k, which is solved by iteration: w changes little with p.
    """
    p = rate
    for _ in range(STEPS_TO_BALANCE):
        balanced = rate * class_weights(p[None])[0]
        p = (p + balanced / balanced.sum()) / 2
    scores = np.log(p) - np.log(p).mean()
    weight = float(rate @ class_weights(p[None])[0])
    return scores, constants.CLASS_CURVATURE * weight * p * (1 - p)


def binary_start(rate: float) -> tuple[NDArray[np.float64], float]:
    """Return the score at which clipped gradients sum to zero at ``rate``, and the mean Hessian there.

    With c = ½ and rate <= ½, rate · ½ = (1 - rate) · p gives p = rate / (2 (1 - rate)); the other half is symmetric.
    """
    small = min(rate, 1 - rate)
    p = small / (2 * (1 - small))
    score = np.log(p / (1 - p))
    hess = p * (1 - p) * (1 - small)  # rows of the rarer class are clipped, so their Hessian is 0
    return np.array([score if rate <= 0.5 else -score]), float(max(hess, 1e-3))
