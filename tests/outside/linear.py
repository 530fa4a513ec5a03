"""A stage outside the package: a boosted linear model over released sums of bins, and a plan of it.

A numeric feature has one slope over its place between its bounds, a categorical one a weight per category. Each round
sums the gradients in random intervals of every feature's bins, drawn from the public randomness.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.answers import sums
from dpgb_dask.components.counts import BaseScore
from dpgb_dask.components.options import check_whole
from dpgb_dask.components.trees.candidates import PublicBins
from dpgb_dask.components.trees.leaves import LeafSums, NewtonStep
from dpgb_dask.contracts.boundary import Released
from dpgb_dask.contracts.features import Categorical, Numeric
from dpgb_dask.contracts.model import SCORE_ONE, FeatureBins
from dpgb_dask.contracts.plan import Demand, Facts, Plan, Shape, Stage, State
from dpgb_dask.contracts.queries import MainSumsQuery, Query


@dataclass(frozen=True, eq=False, slots=True)
class Weights(Facts):
    """What the model is made of.

    Parameters
    ----------
    of_features : tuple of ((n_columns, n_scores) float64)
        A slope, or a weight per category.
    """

    of_features: tuple[NDArray[np.float64], ...]


def columns_of(bins: FeatureBins, feature: Numeric | Categorical) -> NDArray[np.float64]:
    """Return (n_bins, n_columns): where a bin lies between -1 and 1, or which category it is; 0 where missing."""
    if bins.edges is None or not isinstance(feature, Numeric):
        return np.eye(bins.n_bins)
    ends = np.concatenate([[feature.low], bins.edges, [feature.high]])
    middle = (ends[1:] + ends[:-1]) / 2
    width = max(feature.high - feature.low, 1e-300)
    return np.append(2 * (middle - feature.low) / width - 1, 0.0)[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes(Stage):
    """Newton steps along every feature at once.

    Parameters
    ----------
    rounds : int
    n_groups : int
        Intervals of a numeric feature's bins that a round sums.
    step : NewtonStep
        Turns the sums of a column into a step of its weight.
    """

    rounds: int = 20
    n_groups: int = 8
    step: NewtonStep = field(default_factory=lambda: NewtonStep(learning_rate=0.3))

    gives = (Weights,)
    is_random = True
    estimator_options: ClassVar[Mapping[str, str]] = {"n_estimators": "rounds"}

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("rounds", self.rounds, 1, 1000)
        check_whole("n_groups", self.n_groups, 2, 64)

    def brief(self) -> Self:
        """Return it with two rounds."""
        return replace(self, rounds=2)

    def declare(self, shape: Shape) -> Demand:  # noqa: ARG002
        """Ask for all that is left."""
        return Demand(0.0, 1.0, self.rounds)

    def begin(self, state: State) -> State:
        """Start from weights of 0; remember what there is to spend."""
        assert state.model is not None
        sizes = [1 if b.edges is not None else b.n_bins for b in state.model.bins]
        weights = tuple(np.zeros((n, state.shape.n_scores)) for n in sizes)
        return replace(state, memory=(0, state.left)).with_fact(Weights(weights))

    def next_query(self, state: State) -> Query | None:
        """Ask for the sums of some random groups of bins."""
        done, total = state.memory
        if done == self.rounds:
            return None
        assert state.model is not None
        rng = state.rng.stream("slopes", done)
        groups = tuple(self._groups(bins, rng) for bins in state.model.bins)
        return MainSumsQuery(
            label=f"slopes {done + 1}/{self.rounds}",
            price=total // self.rounds,
            weight_bits=state.shape.weight_bits,
            gradient=self.step.gradient(state.shape),
            n_scores=state.shape.n_scores,
            leaf_of_bin=groups,
            n_leaves=tuple(int(group.max()) + 1 for group in groups),
        )

    def _groups(self, bins: FeatureBins, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return the group of each bin; missing values and every category have their own."""
        if bins.edges is None or bins.n_bins <= self.n_groups:
            return np.arange(bins.n_bins, dtype=np.uint8)
        cuts = 1 + np.sort(rng.choice(bins.n_bins - 2, self.n_groups - 2, replace=False))
        inside = np.searchsorted(cuts, np.arange(bins.n_bins - 1), side="right")
        return np.append(inside, inside[-1] + 1).astype(np.uint8)

    def update(self, state: State, query: Query, released: Released[NDArray[np.int64]]) -> State:
        """Step every weight against its noisy gradient."""
        assert isinstance(query, MainSumsQuery)
        assert state.model is not None
        answer = sums(query, released)
        features = state.shape.schema.features.values()
        weights, tables, start = [], [], 0
        for bins, feature, group, n, weight in zip(
            state.model.bins, features, query.leaf_of_bin, query.n_leaves,
            state.fact(Weights).of_features, strict=True,
        ):  # fmt: skip
            columns = columns_of(bins, feature)
            here = np.arange(n)[:, None] == group
            mean = here @ columns / here.sum(1, keepdims=True)  # (n, n_columns), of a group
            grad, hess = answer.grad[start : start + n], answer.hess[start : start + n]
            size = np.sqrt((mean**2).sum(0))[:, None]
            along = LeafSums(
                mean.T @ grad, (mean**2).T @ hess, answer.grad_sd * size, answer.hess_sd * size
            )
            step = self.step.value(along, kind=state.shape.kind)
            new = np.clip(weight + step / len(state.model.bins), -8.0, 8.0)
            weights.append(new)
            tables.append(np.rint(columns @ new * SCORE_ONE).astype(np.int32))
            start += n
        done, total = state.memory
        model = replace(state.model, tables=tuple(tables))
        state = replace(state, model=model, memory=(done + 1, total))
        return state.with_fact(Weights(tuple(weights)))


LINEAR = Plan(
    name="outside-linear",
    source="a test: boosted linear model",
    stages=(PublicBins(n_bins=24), BaseScore(), Slopes()),
)
