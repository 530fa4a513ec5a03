"""A stage outside the package that is deterministic, makes its own bins, and is a plan of pure privacy all alone.

Each round releases one histogram of every feature, and moves every table by a part of a Newton step: nothing is drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.answers import sums
from dpgb_dask.components.bins import empty_model
from dpgb_dask.components.options import check_whole
from dpgb_dask.components.trees.leaves import GradientStep, LeafSums
from dpgb_dask.contracts.boundary import Released
from dpgb_dask.contracts.features import Categorical
from dpgb_dask.contracts.model import SCORE_ONE, FeatureBins
from dpgb_dask.contracts.plan import Demand, Needs, Plan, Shape, Stage, State
from dpgb_dask.contracts.queries import MainSumsQuery, Query


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables(Stage):
    """Bins of equal width, and a table over them for every feature.

    Parameters
    ----------
    rounds : int
    n_bins : int
        Of a numeric feature.
    step : GradientStep
        Turns the sums of a bin into a step of its value.
    """

    rounds: int = 10
    n_bins: int = 8
    step: GradientStep = field(default_factory=lambda: GradientStep(learning_rate=0.5))

    makes_bins = True
    starts = True
    estimator_options: ClassVar[Mapping[str, str]] = {
        "n_estimators": "rounds",
        "max_bins": "n_bins",
    }

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("rounds", self.rounds, 1, 1000)
        check_whole("n_bins", self.n_bins, 2, 250)

    def brief(self) -> Self:
        """Return it with two rounds."""
        return replace(self, rounds=2)

    def public_bins(self, shape: Shape) -> tuple[FeatureBins, ...]:
        """Return bins from declared bounds and categories."""
        made = []
        for feature in shape.schema.features.values():
            if isinstance(feature, Categorical):
                n = len(feature.categories) + 2
                made.append(FeatureBins(None, np.arange(n, dtype=np.uint8), n))
            else:
                edges = np.unique(np.linspace(feature.low, feature.high, self.n_bins + 1)[1:-1])
                made.append(FeatureBins(edges, None, len(edges) + 2))
        return tuple(made)

    def declare(self, shape: Shape) -> Demand:  # noqa: ARG002
        """Ask for everything."""
        return Demand(0.99, 1.0, self.rounds)

    def needs(self, shape: Shape, most_bins: Sequence[int]) -> Needs:
        """Return the memory of one answer."""
        return Needs(n_sums=2 * shape.n_scores * sum(most_bins))

    def begin(self, state: State) -> State:
        """Make the bins."""
        model = empty_model(self.public_bins(state.shape), state.shape)
        return replace(state, model=model, memory=0)

    def next_query(self, state: State) -> Query | None:
        """Ask for a histogram of every feature."""
        done: int = state.memory
        if done == self.rounds:
            return None
        assert state.model is not None
        return MainSumsQuery(
            label=f"tables {done + 1}/{self.rounds}",
            price=state.total // self.rounds,
            weight_bits=state.shape.weight_bits,
            gradient=self.step.gradient(state.shape),
            n_scores=state.shape.n_scores,
            leaf_of_bin=tuple(np.arange(b.n_bins, dtype=np.uint8) for b in state.model.bins),
            n_leaves=tuple(b.n_bins for b in state.model.bins),
        )

    def update(self, state: State, query: Query, released: Released[NDArray[np.int64]]) -> State:
        """Move every bin by a part of its step: all features step at once."""
        assert isinstance(query, MainSumsQuery)
        assert state.model is not None
        answer = sums(query, released)
        seen = LeafSums(answer.grad, answer.hess, answer.grad_sd, answer.hess_sd)
        step = self.step.value(seen, kind=state.shape.kind) / len(query.n_leaves)
        moved = np.rint(step * SCORE_ONE).astype(np.int32)
        parts = np.split(moved, np.cumsum(query.n_leaves)[:-1])
        tables = tuple(old + new for old, new in zip(state.model.tables, parts, strict=True))
        return replace(state, model=replace(state.model, tables=tables), memory=state.memory + 1)


TABLES = Plan(
    name="outside-tables",
    source="a test: a table of every feature",
    stages=(Tables(),),
    pure=True,
)
