"""The stage `Bins`: private bins from a released histogram, and a closer look (docs/default-method.md §0)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import bin_merging, closer_look, constants
from dpgb_dask.components.answers import natural
from dpgb_dask.components.bin_merging import Cells
from dpgb_dask.components.closer_look import Window
from dpgb_dask.components.options import check_decay, check_rate, check_whole
from dpgb_dask.components.prices import share_of
from dpgb_dask.contracts.features import Categorical, Numeric
from dpgb_dask.contracts.grid import DENSE, FINE, GRIDS, Grid
from dpgb_dask.contracts.model import MAX_BINS, FeatureBins, Model, no_trees
from dpgb_dask.contracts.plan import Answer, Demand, NoisyCount, Shape, Stage, State, Unread
from dpgb_dask.contracts.queries import (
    PRICE_ONE,
    BinCountsQuery,
    CellCountsQuery,
    CountQuery,
    Query,
)
from dpgb_dask.frozen import pieces


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


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Looked:
    """What the histogram told: what bins are merged from, and where some features are looked at more closely.

    Parameters
    ----------
    cells : tuple of Cells
        Of each feature.
    sd : float
        Standard deviation of the noise on each.
    windows : dict of {int: Window}
        By feature, where to look.
    max_bins : int
    mass_sd : float
    """

    cells: tuple[Cells, ...]
    sd: float
    windows: Mapping[int, Window]
    max_bins: int
    mass_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins(Stage):
    """Private bins from one joint noisy histogram over a public grid (10 % of μ²), after a noisy row count.

    Where a few cells hold nearly all rows of some features, these cells are counted once more, in finer ones.

    Parameters
    ----------
    share : float
        Share of the plan's μ².
    max_bins : int or None
        Wanted number of bins per feature; None for 128, or 250 on the finest grid.
    closer : float
        Share of the plan's μ² for a closer look (`constants.CLOSER_SHARE` in `auto`), spent only if there is one; 0 for
        none. Later stages have to leave it.
    """

    share: float = constants.BINS_SHARE
    max_bins: int | None = None
    closer: float = 0.0

    makes_bins = True
    starts = True
    keeps_monotonic = True  # no part of the model depends on a feature
    keeps_interactions = True
    estimator_options: ClassVar[Mapping[str, str]] = {"max_bins": "max_bins"}

    def __post_init__(self) -> None:
        """Check the options."""
        check_rate("share", self.share)
        check_decay("closer", self.closer)
        if self.max_bins is not None:
            check_whole("max_bins", self.max_bins, 2, 250)

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask."""
        return (CountQuery, CellCountsQuery, *([BinCountsQuery] if self.closer else []))

    def declare(self, shape: Shape) -> Demand:  # noqa: ARG002
        """Declare the row count, the histogram, and a closer look."""
        share = constants.COUNT_SHARE + self.share
        n_queries = 3 if self.closer else 2
        return Demand(share, share + self.closer, n_queries, extra=self.closer)

    def most_queries(self, state: State) -> int:
        """Return 3 queries until the histogram has told whether there is a closer look."""
        unknown = state.model is None or isinstance(state.memory, Looked)
        return 3 if self.closer and unknown else 2

    def most_bins(self, shape: Shape) -> tuple[int, ...]:
        """Return the most bins of each feature: its categories, "other" and missing; `MAX_BINS` for a numeric one."""
        return tuple(
            len(f.categories) + 2 if isinstance(f, Categorical) else MAX_BINS
            for f in shape.schema.encoded.values()
        )

    def next_query(self, state: State) -> Query | None:
        """Ask for a rough row count, then for the histogram over all cells, then for a closer look at some."""
        bits = state.shape.weight_bits
        memory: Counted | Looked | None = state.memory
        if isinstance(memory, Looked):
            assert state.model is not None
            features = np.array(list(memory.windows), np.uint16)
            return BinCountsQuery(
                label="closer bins",
                price=share_of(state.total, self.closer),
                weight_bits=bits,
                features=features,
                sizes=tuple(state.model.bins[j].n_bins for j in features),
            )
        if state.model is not None:
            return None
        if memory is None:
            price = share_of(state.total, constants.COUNT_SHARE)
            return CountQuery(label="rows", price=price, weight_bits=bits)
        return CellCountsQuery(
            label="bins",
            price=share_of(state.total, self.share),
            weight_bits=bits,
            n_uniform=memory.n_uniform,
            sizes=Grid.of(state.shape.schema, memory.n_uniform).sizes,
        )

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Choose the grid from the count, then merge the cells into bins, once no closer look is due."""
        values, sd = natural(query, released)
        if isinstance(query, CountQuery):
            n_rows = max(float(values[0]), 1.0)
            signal = _signal(state, n_rows, self.share, state.shape.n_features)
            memory = Counted(n_uniform=finest_grid(signal), n_rows=float(values[0]), variance=sd**2)
            return replace(state, n_rows=n_rows, memory=memory)
        if isinstance(query, BinCountsQuery):
            return self._joined(state, query, values, sd)
        assert isinstance(query, CellCountsQuery)
        return self._counted(state, query, values, sd)

    def _counted(
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
        cells = tuple(
            Cells(edges, part, np.ones(len(part)))
            for edges, part in zip(grid.edges, per_feature, strict=True)
        )
        if n_rows * float(np.sqrt(len(cells))) < constants.EVEN_SIGNAL * sd:
            features = state.shape.schema.encoded.values()
            cells = tuple(
                bin_merging.evened(own, sd, n_rows, feature.low, feature.high)
                if isinstance(feature, Numeric)
                else own
                for feature, own in zip(features, cells, strict=True)
            )
        unread = tuple(_unread(own, sd) for own in cells)
        looked = Looked(
            cells=cells,
            sd=sd,
            windows={},
            max_bins=self.max_bins
            or (constants.FINE_BINS if query.n_uniform == FINE else constants.COARSE_BINS),
            mass_sd=constants.MASS_SD if query.n_uniform >= DENSE else constants.COARSE_MASS_SD,
        )
        state = replace(state, n_rows=n_rows, count=count, unread=unread)
        merged = _merged(state, looked)
        coarsest = query.n_uniform == min(GRIDS)
        windows, n_finer = ({}, 0) if coarsest else self._windows(state, cells)
        if not n_finer:
            return merged
        assert merged.model is not None
        bins = list(merged.model.bins)
        for j, window in windows.items():
            edges = window.edges(n_finer)
            bins[j] = FeatureBins(edges, None, len(edges) + 2)
        looked = replace(looked, windows=windows)
        return replace(state, model=empty_model(bins, state.shape), memory=looked)

    def _windows(self, state: State, cells: tuple[Cells, ...]) -> tuple[dict[int, Window], int]:
        """Return where to look more closely, by feature, and in how many cells: in none if noise would hide it all."""
        features = state.shape.schema.encoded.values()
        windows = {
            j: window
            for j, (feature, own) in enumerate(zip(features, cells, strict=True))
            if isinstance(feature, Numeric)
            and (window := closer_look.window_of(feature, own, state.n_rows)) is not None
        }
        signal = _signal(state, state.n_rows, self.closer, max(len(windows), 1))
        return windows, n_finer_cells(signal) if windows else 0

    def _joined(
        self, state: State, query: BinCountsQuery, values: NDArray[np.float64], sd: float
    ) -> State:
        looked: Looked = state.memory
        assert state.model is not None
        cells = list(looked.cells)
        parts = pieces(values, query.sizes)
        for (j, window), part in zip(looked.windows.items(), parts, strict=True):
            noise = np.full(len(part), (sd / looked.sd) ** 2)
            finer = Cells(state.model.bins[j].edges, part, noise)
            cells[j] = closer_look.joined(cells[j], window, finer)
        return _merged(state, replace(looked, cells=tuple(cells)))


def finest_grid(signal: float) -> int:
    """Return the uniform cells of the finest grid that a signal reaches, else of the coarsest."""
    return max(n for n, least in constants.GRID_SIGNALS.items() if signal >= least)


def n_finer_cells(signal: float) -> int:
    """Return in how many cells a window is counted, by its signal; 0 for none."""
    n_uniform = finest_grid(signal)
    return 0 if n_uniform == min(GRIDS) else min(n_uniform, constants.CLOSER_CELLS)


def _unread(cells: Cells, sd: float) -> Unread:
    """Return how many rows have a missing value, and how many no declared category."""
    other = None if cells.edges is not None else float(cells.counts[-2])
    return Unread(float(cells.counts[-1]), other, sd, len(cells.counts))


def _signal(state: State, n_rows: float, share: float, n_features: int) -> float:
    """Return the rows over the standard deviation of the noise on a cell of a joint histogram of some features."""
    mu = float(np.sqrt(state.total / PRICE_ONE))
    return float(n_rows / state.shape.max_weight * mu * np.sqrt(share / n_features))


def _merged(state: State, looked: Looked) -> State:
    """Return the state at the end: a model over bins that are merged cells."""
    bins, counts = [], []
    for j, cells in enumerate(looked.cells):
        if cells.edges is None:
            feature, mass = bin_merging.categorical_bins(cells.counts, looked.sd, state.n_rows)
        else:
            # nearly all rows are in finer cells, which are as few as those of a coarse grid
            mass_sd = constants.COARSE_MASS_SD if j in looked.windows else looked.mass_sd
            feature, mass = bin_merging.numeric_bins(
                cells, looked.sd, state.n_rows, looked.max_bins, mass_sd
            )
        bins.append(feature)
        counts.append(mass)
    return replace(state, counts=tuple(counts), model=empty_model(bins, state.shape), memory=None)
