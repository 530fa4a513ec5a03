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
    hess_of_trees,
    look_of,
    look_signal,
    on_grid,
    on_grid_intercept,
    residual_query,
    set_intercept,
    steps,
)
from dpgb_dask.components.auto.residuals import RESOLUTION, Residuals
from dpgb_dask.components.auto.smoothing import Intercept
from dpgb_dask.components.prices import share_of
from dpgb_dask.contracts.constraints import UNCONSTRAINED
from dpgb_dask.contracts.plan import Answer, Demand, Shape, Stage, State
from dpgb_dask.contracts.queries import PRICE_ONE, Query, ResidualQuery, TargetSumQuery
from dpgb_dask.losses import CLASS_CLIP, LINKS_OF, clip_multipliers, sigmoid

STEPS_TO_BALANCE = 100  # halve the distance to the balance at least every second step


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Stage):
    """Noisy base rate (classification), or mean and residual scale from histograms (regression).

    Parameters
    ----------
    rich_from : float
        Signal (`schedules.tree_signal`) from which trees have most of what the main effects leave. The share of these
        follows the signal itself (`schedules.main_share`), whatever this says.
    chosen_from : float or None
        Signal from which, if it is at least ``rich_from``, trees are chosen. None for 1,500, or 2,200 for several
        classes.
    trees : bool
        Whether stages of trees follow: without, tables of one and two features share the budget.
    """

    rich_from: float = constants.RICH_SIGNAL
    chosen_from: float | None = None
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
        """Declare a look at 1 % of what `Bins` left, and for a numeric target 3 more at up to 5 %."""
        more = constants.START_LOOKS - 1 if shape.kind == "numeric" else 0
        least = 0.8 * constants.START_SHARE
        share = constants.START_SHARE + more * constants.LOOK_SHARE
        return Demand(least, share, 1 + more, extra=share - least)

    def begin(self, state: State) -> State:
        """Fix the price of the first release of this stage.

        The stage's memory is "target" or, for a numeric target, its looks so far; "done" in the end.
        """
        price = share_of(state.left, constants.START_SHARE)
        found = AutoFacts(start_price=price)
        if state.shape.kind != "numeric":
            return replace(state, memory="target").with_fact(found)
        totals = Totals(intercepts=(Intercept(0.0),), hess=(1.0,))
        return replace(state, memory=()).with_fact(replace(found, totals=totals))

    def next_query(self, state: State) -> Query | None:
        """Ask for the rows of each class; of a numeric target, for residuals until the mean is found."""
        if state.memory == "target":
            return TargetSumQuery(
                label="start",
                price=state.fact(AutoFacts).start_price,
                weight_bits=state.shape.weight_bits,
                kind=state.shape.kind,
                n_classes=len(state.shape.schema.target.classes),
            )
        if state.memory == "done":
            return None
        return residual_query(state, f"start {len(state.memory) + 1}/{constants.START_LOOKS}")

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Set the intercept, and decide which later stages run."""
        if isinstance(query, ResidualQuery):
            return self._centre(state, query, released)
        values, sd = natural(query, released)
        kind, n_rows = state.shape.kind, state.n_rows
        hess: tuple[float, ...]
        if kind == "binary":
            intercept, mean_hess = binary_start(rate_posterior(float(values[0]), sd, n_rows, 2))
            hess = (mean_hess,)
        else:
            rate_of = np.array([rate_posterior(float(v), sd, n_rows, len(values)) for v in values])
            intercept, of_class = multiclass_start(rate_of / rate_of.sum())
            hess = tuple(np.maximum(of_class, 0.005))
        assert state.model is not None
        intercept = on_grid(intercept)
        # scores of clipped gradients need their own link
        link = LINKS_OF[kind][0]
        intercepts = tuple(Intercept(float(f), centre=float(f)) for f in intercept)
        totals = Totals(intercepts=intercepts, hess=hess)
        model = replace(state.model, intercept=steps(intercept), link=link)
        found = replace(state.fact(AutoFacts), totals=totals)
        state = replace(state, model=model).with_fact(found)
        return self._divide(replace(state, memory="done"))

    def _centre(self, state: State, query: Query, released: Answer) -> State:
        """Move the intercept to the mean that all looks show, and look again from there if they do not settle it.

        They do not where that was far, where noise hides how far the target spreads, or where that is so little that
        the price of a look has to rise.
        """
        assert state.model is not None
        found = state.fact(AutoFacts)
        was = found.totals.intercepts[0].f
        looks = (*state.memory, look_of(query, released, was))
        seen = Residuals.of_target(looks, state.n_rows)
        mean = float(np.clip(seen.start + seen.mean, -1, 1))
        near = constants.NEAR * max(seen.spread, RESOLUTION)
        intercept = on_grid_intercept(Intercept(mean, centre=mean, prior=near**-2))
        totals = replace(found.totals, intercepts=(intercept,))
        model = set_intercept(state.model, totals)
        unsettled = seen.octaves > constants.SETTLED_OCTAVES
        price = found.start_price
        if unsettled or seen.spread < constants.WIDE_SPREAD:
            price = max(price, _price_of_look(state))
        again = unsettled or price > constants.DEARER * found.start_price or abs(mean - was) > near
        found = replace(found, totals=totals, start_price=price, scales=seen.scales)
        state = replace(state, model=model).with_fact(found)
        if again and len(looks) < constants.START_LOOKS:
            return replace(state, memory=looks)
        clip = min(seen.clip(constants.RESIDUAL_QUANTILE), 1.0)
        spread = max(seen.typical, RESOLUTION)
        reach = seen.reach(clip, look_signal(state, share_of(state.left, constants.MEAN_SHARE)))
        # a target that spreads less than the finest cells lies within few score steps
        price = _price_of_mean(state, reach / spread) if spread > RESOLUTION else 0
        found = replace(found, clip=clip, spread=spread, mean_price=price, reach=reach)
        return self._divide(replace(state.with_fact(found), memory="done"))

    def _divide(self, state: State) -> State:
        """Divide what is left among the later stages, by public rules."""
        kind = state.shape.kind
        found = state.fact(AutoFacts)
        scale = found.start_price if kind == "numeric" else 0
        n_rows = state.n_rows / state.shape.max_weight
        # an interaction worth finding is smaller in bounds that are far too wide alone
        worth = min(found.spread / constants.WIDE_SPREAD, 1.0)
        of_pairs = schedules.pair_signal(
            kind,
            state.shape.n_pairs,
            n_rows,
            float(np.mean(found.totals.hess)),
            max(found.clip / worth, constants.PAIR_LEAST_CLIP),
            max(state.left - (constants.RESIDUAL_REFRESHES - 1) * scale, 0) / PRICE_ONE,
        )
        found = replace(found, most_candidates=schedules.most_candidates(kind, of_pairs))
        clip = CLASS_CLIP if kind == "multiclass" else constants.CLIP
        signal = schedules.tree_signal(n_rows, hess_of_trees(state), clip, state.left / PRICE_ONE)
        # without a pair that they may draw, trees would hold nothing but main effects
        trees = self.trees and state.shape.n_free_pairs > 0
        if trees and state.shape.constraints == UNCONSTRAINED and signal >= self.rich_from:
            least = constants.CHOSEN_FROM[kind] if self.chosen_from is None else self.chosen_from
            chosen = signal >= least
            clear = constants.PAIR_CLEAR if chosen else constants.PAIR_LIKELY
            pairs = of_pairs >= clear[kind]
            left = max(state.left - (2 + chosen + pairs) * scale - found.mean_price, 0)
            split = schedules.split_rich(kind, signal, left, chosen=chosen, pairs=pairs)
            return state.with_fact(replace(found, split=split))
        # each later stage that runs releases the residual scale once more
        forest = trees and signal >= constants.FOREST_SIGNAL
        run = schedules.split_budget(of_pairs, state.left, forest=forest)
        refreshes = 1 + (run.screen > 0) + (run.forest > 0)
        left = max(state.left - refreshes * scale - found.mean_price, 0)
        split = schedules.split_budget(of_pairs, left, forest=forest)
        return state.with_fact(replace(found, split=split))


def _price_of_look(state: State) -> int:
    """Return the price from which all rows stand out of the noise on a cell of residuals, within limits."""
    share = (constants.LOOK_SIGNAL / look_signal(state, state.left)) ** 2
    return share_of(state.left, float(np.clip(share, constants.START_SHARE, constants.LOOK_SHARE)))


def _price_of_mean(state: State, reach: float) -> int:
    """Return what is kept for the mean error of a target; 0 if noise would hide it.

    Parameters
    ----------
    state : State
    reach : float
        Bound of its residuals, in standard deviations of the target.
    """
    all_left = reach / max(look_signal(state, state.left), 1e-300)  # the noise for all that is left
    if all_left**2 > (constants.MEAN_ERROR / 2) ** 2 * constants.MEAN_SHARE:
        return 0
    share = (all_left / constants.MEAN_SD) ** 2
    return share_of(state.left, min(max(share, constants.MEAN_LOWEST), constants.MEAN_SHARE))


def multiclass_start(rate: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores at which gradients clipped in norm sum to zero at some rates, and the mean Hessian per class.

    The sum is zero where p_k ∝ q_k w_k, which is solved by iteration: w changes little with p.
    """
    p = rate
    for _ in range(STEPS_TO_BALANCE):
        balanced = rate * clip_multipliers(p[None])[0]
        p = (p + balanced / balanced.sum()) / 2
    scores = np.log(p) - np.log(p).mean()
    weight = float(rate @ clip_multipliers(p[None])[0])
    return scores, constants.CLASS_CURVATURE * weight * p * (1 - p)


def rate_posterior(count: float, sd: float, n_rows: float, n_classes: int) -> float:
    """Return the posterior mean of a class's rate, given the noise.

    The prior is a Laplace law around equal rates: rare classes are plausible.

    Parameters
    ----------
    count : float
        Noisy rows of the class.
    sd : float
        Standard deviation of its noise.
    n_rows : float
        Noisy rows in all.
    n_classes : int
    """
    logit = np.linspace(-constants.LARGEST_LOGIT, constants.LARGEST_LOGIT, 601)
    rate = sigmoid(logit)
    even = -np.log(max(n_classes - 1, 1))
    variance = sd**2 + n_rows * rate * (1 - rate)
    fit = -((count - n_rows * rate) ** 2) / (2 * variance) - np.log(variance) / 2
    fit -= np.abs(logit - even) / constants.LOGIT_SCALE
    odds = np.exp(fit - fit.max())
    return float(odds @ rate / odds.sum())


def binary_start(rate: float) -> tuple[NDArray[np.float64], float]:
    """Return the score at which clipped gradients sum to zero at ``rate``, and the mean Hessian there.

    With c = ½ and rate <= ½, rate · ½ = (1 - rate) · p gives p = rate / (2 (1 - rate)); the other half is symmetric.
    """
    small = min(rate, 1 - rate)
    p = small / (2 * (1 - small))
    score = np.log(p / (1 - p))
    hess = p * (1 - p) * (1 - small)  # rows of the rarer class are clipped, so their Hessian is 0
    return np.array([score if rate <= 0.5 else -score]), float(max(hess, 1e-3))
