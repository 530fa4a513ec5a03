"""Small releases at the start of a plan: the number of rows, and the score that trees start from."""

from dataclasses import dataclass, replace

import numpy as np

from dpgb_dask.components.answers import natural
from dpgb_dask.components.options import check_rate
from dpgb_dask.components.prices import share_of
from dpgb_dask.contracts.model import SCORE_ONE
from dpgb_dask.contracts.plan import (
    Answer,
    Budget,
    Demand,
    NoisyCount,
    Shape,
    Stage,
    State,
)
from dpgb_dask.contracts.queries import CountQuery, Query, TargetSumQuery
from dpgb_dask.contracts.spending import Item


def counted(state: State, query: Query, released: Answer) -> State:
    """Return the state with a released number of rows; later stages calculate with at least 1."""
    values, sd = natural(query, released)
    count = NoisyCount(float(values[0]), sd)
    return replace(state, n_rows=max(count.value, 1.0), count=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCount(Stage):
    """A noisy number of rows, for later stages that need one and have no released bins.

    Parameters
    ----------
    share : float
        Of the plan's price.
    """

    share: float = 0.002

    starts = True
    bills_exactly = True
    keeps_monotonic = True  # no part of the model depends on a feature
    keeps_interactions = True

    def __post_init__(self) -> None:
        """Check the options."""
        check_rate("share", self.share)

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask."""
        return (CountQuery,)

    def declare(self, shape: Shape) -> Demand:  # noqa: ARG002
        """Declare one count."""
        return Demand(self.share, self.share, 1)

    def bill(self, shape: Shape, budget: Budget, total: int, left: int) -> tuple[Item, ...]:  # noqa: ARG002
        """Return one count."""
        return (Item(self._price(total), 1, "sums"),)

    def _price(self, total: int) -> int:
        return share_of(total, self.share)

    def begin(self, state: State) -> State:
        """Begin with no memory."""
        return replace(state, memory=False)

    def next_query(self, state: State) -> Query | None:
        """Ask for the count, once."""
        if state.memory:
            return None
        price = self._price(state.total)
        return CountQuery(label="rows", price=price, weight_bits=state.shape.weight_bits)

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Keep the count, at least 1."""
        return replace(counted(state, query, released), memory=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseScore(Stage):
    """The score that trees start from: a numeric target's noisy mean; for classes even odds, as in the papers.

    Without it, trees start in the middle of a wide range and spend their first clipped steps on reaching the mean
    (S-BDT pays for a mean too).

    Parameters
    ----------
    share : float
        Share of the plan's price: half for the number of rows, half for the sum of targets.
    """

    share: float = 0.02

    starts = True
    bills_exactly = True
    keeps_monotonic = True  # no part of the model depends on a feature
    keeps_interactions = True

    def __post_init__(self) -> None:
        """Check the options."""
        check_rate("share", self.share)

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask."""
        return CountQuery, TargetSumQuery

    def declare(self, shape: Shape) -> Demand:
        """Declare a count and a sum; nothing for classes."""
        share = self.share if shape.kind == "numeric" else 0.0
        return Demand(share, share, 2 if share else 0)

    def bill(self, shape: Shape, budget: Budget, total: int, left: int) -> tuple[Item, ...]:  # noqa: ARG002
        """Return a count and a sum of one price; nothing for classes."""
        return (Item(self._price(total), 2, "sums"),) if shape.kind == "numeric" else ()

    def _price(self, total: int) -> int:
        """Return the price of one of its two queries."""
        return share_of(total, self.share) // 2

    def begin(self, state: State) -> State:
        """Set which queries are to be asked."""
        asked = ("rows", "start") if state.shape.kind == "numeric" else ()
        return replace(state, memory=asked)

    def next_query(self, state: State) -> Query | None:
        """Ask for the number of rows, then for the sum of targets."""
        if not state.memory:
            return None
        price = self._price(state.total)
        bits = state.shape.weight_bits
        if state.memory[0] == "rows":
            return CountQuery(label="rows", price=price, weight_bits=bits)
        return TargetSumQuery(
            label="start", price=price, weight_bits=bits, kind=state.shape.kind, n_classes=0
        )

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Keep the count; set the model's start score from the mean."""
        state = replace(state, memory=state.memory[1:])
        if isinstance(query, CountQuery):
            return counted(state, query, released)
        values, _ = natural(query, released)
        assert state.model is not None
        mean = float(np.clip(values[0] / state.n_rows, -1, 1))
        score = np.rint(state.shape.loss.start(mean) * SCORE_ONE).astype(np.int32)
        return replace(state, model=replace(state.model, intercept=np.array([score], np.int32)))
