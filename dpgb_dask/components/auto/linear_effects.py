"""The stage `LinearEffects`: a line of every numeric feature, all fitted together (docs/default-method.md §2).

Main effects learn each table as if no other knew of it, and features that tell nearly the same move little apart in a
few rounds. Here one release says how features vary together, so that their directions of little variance can be asked
about at the scale that they have.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.answers import natural, sums
from dpgb_dask.components.auto import schedules
from dpgb_dask.components.auto.noise import LinearTables
from dpgb_dask.components.auto.posterior import (
    AutoFacts,
    current_gradient,
    curvature_of,
    round_price,
    sampling_variance,
    scale_of_effects,
    sd_of_run,
    split_of,
)
from dpgb_dask.components.options import check_rate, check_whole
from dpgb_dask.components.prices import share_of
from dpgb_dask.contracts.model import SCORE_ONE
from dpgb_dask.contracts.plan import Answer, Demand, Shape, Stage, State
from dpgb_dask.contracts.queries import DirectionSumsQuery, ProductSumsQuery, Query
from dpgb_dask.frozen import frozen

VALUE_ONE = 256  # steps of a feature's number, and of a factor of it in a direction
LEAST_VARIANCE = 1e-4  # of a rank: features that nearly all rows share a value of have no line
CLEAR_SD = 2.0  # standard deviations of its noise that a feature's second moment has to be
ITERATIONS = 50  # of the shares of the prior's scales


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Directions:
    """Combinations of features that vary independently of each other, as far as noise lets them be known.

    Parameters
    ----------
    matrix : (n_directions, n_features) int32
        Steps of 1 / `VALUE_ONE`.
    norm : int
        Largest norm of a row, in steps of 1 / `VALUE_ONE` ².
    unsure : (n_directions,) float64
        Standard deviation of the noise on a covariance, over the variance that a direction counts as: the error of the
        covariance of two directions is the root of the product of theirs.
    """

    matrix: NDArray[np.int32]
    norm: int
    unsure: NDArray[np.float64]

    @classmethod
    def of(cls, moments: NDArray[np.float64], sd: float) -> Self:
        """Return directions of variance 1, or less where noise hides it.

        Parameters
        ----------
        moments : (n, n) float64
            Second moments of the features, with noise.
        sd : float
            Standard deviation of the noise on each outside of the diagonal.
        """
        variance, axes = np.linalg.eigh(moments)
        hidden = schedules.hidden_variance(len(moments), sd)
        scale = np.maximum(variance, max(hidden, constants.LINEAR_SPREAD))
        square = constants.LINEAR_NORM * max(float(np.sum(np.maximum(variance, 0) / scale)), 1.0)
        return cls(
            matrix=np.rint((axes / np.sqrt(scale)).T * VALUE_ONE).astype(np.int32),
            norm=int(np.ceil(np.sqrt(square) * VALUE_ONE**2)),
            unsure=sd / scale,
        )

    def variance_by(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what coefficients of other directions may seem to be of each, as covariances have errors."""
        of_each = self.unsure[:, None] * coefficients**2
        return self.unsure[:, None] * (of_each.sum(0) - of_each)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LinearMemory:
    """Memory of the stage.

    Parameters
    ----------
    features : (n,) uint16
    values : tuple of ((n_bins,) int32)
        Each bin's rank from -1 to 1, less the mean, in steps of 1 / `VALUE_ONE`.
    variance : (n,) float64
        Of the ranks, by released rows.
    price : int
    round : int
    directions : Directions or None
        None before they are known.
    told : (n_directions, n_scores) float64
        Mean of the rounds' estimates of the coefficients, by the number of the round.
    coefficients : (n_directions, n_scores) float64
    """

    features: NDArray[np.uint16]
    values: tuple[NDArray[np.int32], ...]
    variance: NDArray[np.float64]
    price: int
    round: int = 0
    directions: Directions | None = None
    told: NDArray[np.float64]
    coefficients: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearEffects(Stage):
    """Lines of numeric features, in their ranks, fitted together: where main effects begin.

    Parameters
    ----------
    rounds : int
    rate : float
        How far a round moves the coefficients towards what it tells, as a fraction of the distance.
    """

    rounds: int = constants.LINEAR_ROUNDS
    rate: float = constants.LINEAR_RATE

    gives = (LinearTables,)
    uses = (AutoFacts,)
    keeps_monotonic = True  # it does not run under such constraints
    keeps_interactions = True

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("rounds", self.rounds, 1, 10_000)
        check_rate("rate", self.rate)

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask."""
        return ProductSumsQuery, DirectionSumsQuery

    def declare(self, shape: Shape) -> Demand:  # noqa: ARG002
        """Declare between nothing (the gate is closed) and its share."""
        return Demand(0.0, constants.LINEAR_SHARE, 1 + self.rounds)

    def most_queries(self, state: State) -> int:
        """Return the most queries that it asks: none if the gate is closed."""
        return 0 if split_of(state) is not None and not _price(state) else 1 + self.rounds

    def brief(self) -> Self:
        """Return the stage with two rounds, for tests."""
        return replace(self, rounds=2)

    def begin(self, state: State) -> State:
        """Give each bin of a numeric feature its rank, if the gate is open."""
        assert state.model is not None
        price = _price(state)
        if not price:
            return state
        found = []
        for j, (bins, mass) in enumerate(zip(state.model.bins, state.counts, strict=True)):
            if bins.categorical:
                continue
            rows = np.maximum(mass, 0)
            value = centred_ranks(rows)
            variance = float(rows @ (value / VALUE_ONE) ** 2 / max(rows.sum(), 1e-9))
            if variance > LEAST_VARIANCE:
                found.append((j, value, variance))
        if len(found) < 2:
            return state
        features, values, variances = zip(*found, strict=True)
        nothing = np.zeros((len(found), state.shape.n_scores))
        memory = LinearMemory(
            features=np.array(features, np.uint16),
            values=values,
            variance=np.array(variances),
            price=price,
            told=nothing,
            coefficients=nothing,
        )
        return replace(_with_main(state, -price), memory=memory)

    def next_query(self, state: State) -> Query | None:
        """Ask how features vary together, then for sums of gradients in directions of equal variance."""
        memory: LinearMemory | None = state.memory
        if memory is None or memory.round == self.rounds:
            return None
        of_products = share_of(memory.price, constants.LINEAR_PRODUCTS)
        if memory.directions is None:
            square = constants.LINEAR_NORM * float(memory.variance.sum())
            return ProductSumsQuery(
                label="linear effects: products",
                price=of_products,
                weight_bits=state.shape.weight_bits,
                features=memory.features,
                values=memory.values,
                norm=int(np.ceil(np.sqrt(square) * VALUE_ONE)),
            )
        return DirectionSumsQuery(
            label=f"linear effects {memory.round + 1}/{self.rounds}",
            price=round_price(memory.price - of_products, memory.round, self.rounds),
            weight_bits=state.shape.weight_bits,
            gradient=current_gradient(state),
            n_scores=state.shape.n_scores,
            features=memory.features,
            values=memory.values,
            matrix=memory.directions.matrix,
            norm=memory.directions.norm,
        )

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Find the directions, or move the coefficients towards their posterior means."""
        memory: LinearMemory = state.memory
        if isinstance(query, ProductSumsQuery):
            values, sd = natural(query, released)
            unit = (query.norm / VALUE_ONE) ** 2 / state.n_rows
            n = len(memory.features)
            moments, upper = np.empty((n, n)), np.triu_indices(n)
            moments[upper] = values * unit
            moments.T[upper] = moments[upper]
            moments[np.diag_indices(n)] *= np.sqrt(2)  # squares are asked for times √½
            return self._with_directions(state, moments, sd * unit)
        assert isinstance(query, DirectionSumsQuery)
        assert memory.directions is not None
        answer = sums(query, released)
        each = state.n_rows * curvature(state)  # the curvature along a direction of variance 1
        unit = query.norm / VALUE_ONE**2
        t = memory.round + 1
        step = answer.grad * unit / each
        told = memory.told + 2 / (t + 1) * (memory.coefficients - step - memory.told)
        # of weights 1, 2, …, t, over the square of their sum
        weights = 2 * (2 * t + 1) / (3 * t * (t + 1))
        noise = weights * (answer.grad_sd * unit / each) ** 2
        noise = noise + memory.directions.variance_by(memory.coefficients)
        variance = noise + sampling_variance(state) / each
        kept = shrinkage(told, variance, largest_scale(state))
        coefficients = memory.coefficients + self.rate * (kept * told - memory.coefficients)
        if state.shape.n_scores > 1:
            coefficients = coefficients - coefficients.mean(1, keepdims=True)
        coefficients = np.clip(coefficients, -constants.LARGEST_EFFECT, constants.LARGEST_EFFECT)
        memory = replace(memory, round=t, told=told, coefficients=coefficients)
        linear = linear_tables(state, memory, kept * np.sqrt(noise))
        assert state.model is not None
        model = replace(state.model, tables=linear.tables)
        return replace(state, model=model, memory=memory).with_fact(linear)

    def _with_directions(self, state: State, moments: NDArray[np.float64], sd: float) -> State:
        """Return the state with the directions of features whose second moment stands out of its noise."""
        memory: LinearMemory = state.memory
        seen = np.flatnonzero(np.diag(moments) > CLEAR_SD * np.sqrt(2) * sd)
        if len(seen) < 2:
            rest = memory.price - share_of(memory.price, constants.LINEAR_PRODUCTS)
            return replace(_with_main(state, rest), memory=None)
        nothing = np.zeros((len(seen), state.shape.n_scores))
        memory = replace(
            memory,
            features=memory.features[seen],
            values=tuple(memory.values[j] for j in seen),
            variance=memory.variance[seen],
            directions=Directions.of(moments[np.ix_(seen, seen)], sd),
            told=nothing,
            coefficients=nothing,
        )
        return replace(state, memory=memory)


def curvature(state: State) -> NDArray[np.float64]:
    """Return the mean curvature of a row, per score."""
    if state.shape.kind == "numeric":  # residuals beyond the clip have none
        return np.array([constants.RESIDUAL_QUANTILE])
    hess = np.array(state.fact(AutoFacts).totals.hess)
    return hess / curvature_of(state.shape.kind)


def largest_scale(state: State) -> float:
    """Return the largest prior scale of a coefficient, score units."""
    return constants.LINEAR_SCALE * scale_of_effects(state)


def _price(state: State) -> int:
    """Return the stage's price, out of that of the main effects; 0 if it does not run."""
    assert state.model is not None
    if state.shape.directions is not None:  # lines against a constraint would have to be bent
        return 0
    n_numeric = sum(not bins.categorical for bins in state.model.bins)
    n_rows = state.n_rows / state.shape.max_weight
    main = state.fact(AutoFacts).split.main
    price = schedules.linear_price(n_numeric, len(state.model.bins), n_rows, main)
    if not price:
        return 0
    noise = sd_of_run(current_gradient(state), 1, price, state.shape.max_weight)
    noise *= float(np.sqrt(constants.LINEAR_NORM * n_numeric))
    each = state.n_rows * curvature(state)
    # else even the largest coefficient is less than its noise: of a rare class, or of many
    return price if noise < largest_scale(state) * float(each.mean()) else 0


def _with_main(state: State, more: int) -> State:
    """Return the state with more, or less, for the main effects."""
    found = state.fact(AutoFacts)
    split = replace(found.split, main=found.split.main + more)
    return state.with_fact(replace(found, split=split))


def centred_ranks(rows: NDArray[np.float64]) -> NDArray[np.int32]:
    """Return the rank of each bin of a numeric feature, from -1 to 1, less the mean, in steps of 1 / `VALUE_ONE`.

    Parameters
    ----------
    rows : (n_bins,) float64
        Released rows, not below 0. The last bin holds missing values, which stand in the middle: they have no slope.
    """
    known = rows[:-1]
    rank = 2 * (np.cumsum(known) - known / 2) / max(float(known.sum()), 1e-9) - 1
    rank = rank - known @ rank / max(float(rows.sum()), 1e-9)
    return np.rint(np.append(rank, 0.0) * VALUE_ONE).astype(np.int32)


def shrinkage(
    told: NDArray[np.float64], variance: NDArray[np.float64], largest: float
) -> NDArray[np.float64]:
    """Return what part of each estimate is kept: its posterior mean over itself.

    A value is 0, or normal with one of seven scales; how often each occurs is what makes all estimates likeliest, with
    one more 0 than there are (adaptive shrinkage: Stephens 2017, *False discovery rates: a new deal*).

    Parameters
    ----------
    told, variance : (n, n_scores) float64
        Estimates, and the variance of their errors.
    largest : float
        The largest scale; the largest estimate, if that is smaller.
    """
    top = min(float(np.abs(told).max()), largest)
    prior = np.array([0.0, *(top * 2.0**-i for i in range(7))])[:, None, None] ** 2
    both = prior + np.maximum(variance, 1e-30)
    fit = -(told**2) / (2 * both) - np.log(both) / 2
    likely = np.exp(fit - fit.max(0))
    share = np.full(prior.shape, 1 / len(prior))
    zero = np.zeros(len(prior))
    zero[0] = 1
    for _ in range(ITERATIONS):
        odds = share * likely
        odds /= odds.sum(0)
        share = odds.sum((1, 2)) + zero
        share = (share / share.sum())[:, None, None]
    kept: NDArray[np.float64] = (odds * prior / both).sum(0)
    return kept


def linear_tables(state: State, memory: LinearMemory, sd: NDArray[np.float64]) -> LinearTables:
    """Return the tables that coefficients make, 0 for other features, and how noise of ``sd`` in them would show."""
    assert state.model is not None
    assert memory.directions is not None
    matrix = memory.directions.matrix / VALUE_ONE
    values = tuple(value / VALUE_ONE for value in memory.values)
    slopes = matrix.T @ memory.coefficients
    tables = [np.zeros_like(table) for table in state.model.tables]
    for j, value, slope in zip(memory.features, values, slopes, strict=True):
        tables[j] = np.rint(np.outer(value, slope) * SCORE_ONE).astype(np.int32)
    return LinearTables(
        tables=tuple(frozen(table) for table in tables),
        features=memory.features,
        values=values,
        matrix=matrix,
        sd=sd,
    )
