"""The stage `Bins`: private bins from one released histogram (docs/default-method.md §0)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import bin_merging, constants
from dpgb_dask.components.answers import natural
from dpgb_dask.components.options import check_whole
from dpgb_dask.contracts.features import Categorical
from dpgb_dask.contracts.grid import DENSE, FINE, Grid
from dpgb_dask.contracts.model import MAX_BINS, FeatureBins, Model, no_trees
from dpgb_dask.contracts.plan import Answer, Demand, NoisyCount, Shape, Stage, State, Unread
from dpgb_dask.contracts.queries import PRICE_ONE, CellCountsQuery, CountQuery, Query


def empty_model(bins: Sequence[FeatureBins], shape: Shape) -> Model:
    """Return a model over these bins that predicts nothing yet."""
    k = shape.n_scores
    return Model(
        bins=tuple(bins),
        intercept=np.zeros(k, np.int32),
        tables=tuple(np.zeros((b.n_bins, k), np.int32) for b in bins),
        trees=no_trees(n_scores=k),
        link=shape.loss.link(shape.kind),
    )


def share_of(total: int, share: float) -> int:
    """Return a share of a price, rounded down."""
    return int(total * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the noisy row count decides about the histogram.

    Parameters
    ----------
    n_uniform : int
        Cells per numeric feature.
    n_rows : float
        The noisy row count, as released.
    variance : float
        Variance of the noise on ``n_rows``.
    """

    n_uniform: int
    n_rows: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins(Stage):
    """Private bins from one joint noisy histogram over a public grid (10 % of μ²), after a noisy row count.

    Parameters
    ----------
    share : float
        Share of the plan's μ².
    max_bins : int or None
        Wanted number of bins per feature; None for 128, or 250 on the finest grid.
    """

    share: float = constants.BINS_SHARE
    max_bins: int | None = None

    makes_bins = True
    starts = True
    keeps_monotonic = True  # no part of the model depends on a feature
    keeps_interactions = True
    estimator_options: ClassVar[Mapping[str, str]] = {"max_bins": "max_bins"}

    def __post_init__(self) -> None:
        """Check the options."""
        if self.max_bins is not None:
            check_whole("max_bins", self.max_bins, 2, 250)

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask."""
        return CountQuery, CellCountsQuery

    def declare(self, shape: Shape) -> Demand:  # noqa: ARG002
        """Declare the row count and the histogram."""
        share = constants.COUNT_SHARE + self.share
        return Demand(share, share, 2)

    def most_bins(self, shape: Shape) -> tuple[int, ...]:
        """Return the most bins of each feature: its categories, "other" and missing; `MAX_BINS` for a numeric one."""
        return tuple(
            len(f.categories) + 2 if isinstance(f, Categorical) else MAX_BINS
            for f in shape.schema.encoded.values()
        )

    def next_query(self, state: State) -> Query | None:
        """Ask for a rough row count, then for the histogram over all cells."""
        bits = state.shape.weight_bits
        if state.model is not None:
            return None
        counted: Counted | None = state.memory
        if counted is None:
            price = share_of(state.total, constants.COUNT_SHARE)
            return CountQuery(label="rows", price=price, weight_bits=bits)
        return CellCountsQuery(
            label="bins",
            price=share_of(state.total, self.share),
            weight_bits=bits,
            n_uniform=counted.n_uniform,
            sizes=Grid.of(state.shape.schema, counted.n_uniform).sizes,
        )

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Choose the grid from the count, then merge the cells into bins."""
        values, sd = natural(query, released)
        weight = state.shape.max_weight
        if isinstance(query, CountQuery):
            n_rows = max(float(values[0]), 1.0)
            mu = float(np.sqrt(state.total / PRICE_ONE))
            signal = n_rows / weight * mu * np.sqrt(self.share / state.shape.n_features)
            # the finest grid that the signal reaches, else the coarsest
            n_uniform = max(n for n, least in constants.GRID_SIGNALS.items() if signal >= least)
            memory = Counted(n_uniform=n_uniform, n_rows=float(values[0]), variance=sd**2)
            return replace(state, n_rows=n_rows, memory=memory)
        assert isinstance(query, CellCountsQuery)
        return self._bins(state, query, values, sd)

    def _bins(
        self, state: State, query: CellCountsQuery, values: NDArray[np.float64], sd: float
    ) -> State:
        counted: Counted = state.memory
        grid = Grid.of(state.shape.schema, query.n_uniform)
        per_feature = np.split(values, grid.offsets[1:-1])
        totals = np.array([part.sum() for part in per_feature])
        # the cells of every feature sum to the same number of rows: average these sums, weighted by their precision
        precision = np.append(1 / (np.array(grid.sizes) * sd**2), 1 / counted.variance)
        found = float(precision @ np.append(totals, counted.n_rows) / precision.sum())
        count = NoisyCount(found, float(1 / np.sqrt(precision.sum())))
        n_rows = max(found, 1.0)
        max_bins = self.max_bins or (
            constants.FINE_BINS if query.n_uniform == FINE else constants.COARSE_BINS
        )
        mass_sd = constants.MASS_SD if query.n_uniform >= DENSE else constants.COARSE_MASS_SD
        bins, counts, unread = [], [], []
        for edges, cells in zip(grid.edges, per_feature, strict=True):
            other = None if edges is not None else float(cells[-2])
            unread.append(Unread(float(cells[-1]), other, sd, len(cells)))
            if edges is None:
                feature, mass = bin_merging.categorical_bins(cells, sd, n_rows)
            else:
                feature, mass = bin_merging.numeric_bins(
                    edges, cells, sd, n_rows, max_bins, mass_sd
                )
            bins.append(feature)
            counts.append(mass)
        model = empty_model(bins, state.shape)
        return replace(
            state,
            n_rows=n_rows,
            count=count,
            unread=tuple(unread),
            counts=tuple(counts),
            model=model,
        )
