"""C3: candidate thresholds. Public grids, and their refinement from released histograms."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.bins import empty_model
from dpgb_dask.components.options import check_whole
from dpgb_dask.contracts.features import Categorical, Numeric
from dpgb_dask.contracts.model import (
    MAX_BINS,
    FeatureBins,
    Model,
    PairTable,
    Splits,
    TreeEnsemble,
)
from dpgb_dask.contracts.part import Part
from dpgb_dask.contracts.plan import Answer, Budget, Demand, Shape, Stage, State
from dpgb_dask.contracts.queries import Query
from dpgb_dask.contracts.spending import Item
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import Gradient, label_gradient

MOST_EDGES = 254  # two of the 256 codes remain for the last bin and for missing values


def uniform_edges(feature: Numeric, n: int) -> NDArray[np.float64]:
    """Return n - 1 equally spaced edges from the lower bound on; if there are few whole numbers, one bin for each.

    The lowest value is an edge, as in FDP-GBDT §4.5.1: it separates the zeros of a count from all other values.
    """
    low, width = feature.low, feature.high - feature.low
    if width <= 0:
        return np.empty(0)
    if feature.integer and width < n:
        return np.unique(np.arange(np.floor(low), np.ceil(feature.high)) + 0.5).astype(np.float64)
    edges = low + width * (np.arange(n - 1) / (n - 1))
    return np.unique(np.floor(edges) + 0.5 if feature.integer else edges).astype(np.float64)


def log_edges(feature: Numeric, n: int) -> NDArray[np.float64]:
    """Return edges from the lower bound on, equally spaced after x ↦ log(1 + x - low): FDP-GBDT §4.5.1."""
    low, width = feature.low, feature.high - feature.low
    if width <= 0:
        return np.empty(0)
    edges = low + np.expm1(np.log1p(width) * (np.arange(n - 1) / (n - 1)))
    if feature.integer:
        edges = np.floor(edges) + 0.5
    edges = np.unique(edges)
    return np.asarray(edges[(edges >= low) & (edges < feature.high)], dtype=np.float64)


EDGES = {"uniform": uniform_edges, "log": log_edges}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicBins(Stage):
    """Bins from the schema alone, without a query. FDP-GBDT §4.5.1 (κ_c = 0).

    Parameters
    ----------
    n_bins : int
        Q: bins between the bounds of a numeric feature. Each category has its own bin.
    spacing : {"uniform", "log"}
    """

    n_bins: int = 32
    spacing: str = "uniform"

    makes_bins = True
    starts = True
    bills_exactly = True
    keeps_monotonic = True  # no part of the model depends on a feature
    keeps_interactions = True
    estimator_options: ClassVar[Mapping[str, str]] = {"max_bins": "n_bins"}

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("n_bins", self.n_bins, 2, MOST_EDGES + 1)
        if self.spacing not in EDGES:
            raise PlanError(f"spacing={self.spacing!r} is unknown. Choose one of {sorted(EDGES)}.")

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask."""
        return ()

    def declare(self, shape: Shape) -> Demand:  # noqa: ARG002
        """Declare nothing."""
        return Demand(0.0, 0.0, 0)

    def bill(self, shape: Shape, budget: Budget, total: int, left: int) -> tuple[Item, ...]:  # noqa: ARG002
        """Return nothing."""
        return ()

    def public_bins(self, shape: Shape) -> tuple[FeatureBins, ...]:
        """Return the bins; they depend on the schema alone."""
        bins = []
        for feature in shape.schema.encoded.values():
            if isinstance(feature, Categorical):
                n = len(feature.categories) + 2
                bins.append(FeatureBins(None, np.arange(n, dtype=np.uint8), n))
            else:
                edges = EDGES[self.spacing](feature, self.n_bins)
                bins.append(FeatureBins(edges, None, len(edges) + 2))
        return tuple(bins)

    def begin(self, state: State) -> State:
        """Make the bins and an empty model."""
        return replace(state, model=empty_model(self.public_bins(state.shape), state.shape))

    def next_query(self, state: State) -> Query | None:  # noqa: ARG002
        """Return None: there is no query."""
        return None

    def update(self, state: State, query: Query, released: Answer) -> State:  # noqa: ARG002
        """Return the state as it is; never called, as there is no query."""
        return state


def all_cuts(bins: tuple[FeatureBins, ...]) -> tuple[NDArray[np.uint8], ...]:
    """Return all thresholds of every numeric feature; no threshold of a categorical one."""
    return tuple(np.arange(0 if b.edges is None else len(b.edges), dtype=np.uint8) for b in bins)


def refine(
    bounds: tuple[float, float], cuts: NDArray[np.float64], mass: NDArray[np.float64], n: int
) -> NDArray[np.float64]:
    """Run one round of iterative Hessian splitting: FDP-GBDT algorithm 2.

    Parameters
    ----------
    bounds : (low, high)
        Public bounds of the feature.
    cuts : (n_cuts,) float64, increasing
        Candidates so far.
    mass : (n_cuts + 1,) float64
        Noisy Hessian between neighbouring candidates.
    n : int
        Wanted number of bins, Q.

    Returns
    -------
    (at most n - 1,) float64
        New candidates, increasing; the old ones if the noisy Hessian sums to nothing positive.

    Notes
    -----
    Bins are merged from the left until each holds 1/Q of the total. Then the heaviest bin that can be halved is halved,
    until there are Q bins (the published algorithm halves every heavy bin once and spreads the remaining candidates
    evenly). Post-processing.
    """
    mass = np.maximum(mass, 0)
    target = mass.sum() / n
    if target <= 0:
        return cuts
    edges, held, running = [bounds[0]], [], 0.0
    for cut, part in zip([*cuts, bounds[1]], mass, strict=True):
        running += part
        if running >= target or cut == bounds[1]:
            edges.append(cut)
            held.append(running)
            running = 0.0
    if len(held) > n:  # n bins hold everything, and the last one nothing
        del edges[-2], held[-1]
    while len(held) < n:
        middles = np.array(edges[:-1]) / 2 + np.array(edges[1:]) / 2
        # a bin that holds only the lowest value is not split
        splits = (middles > edges[:-1]) & (middles < edges[1:])
        k = int(np.argmax(np.where(splits, held, -1.0)))
        middle = float(middles[k])
        if not splits[k]:
            break
        edges.insert(k + 1, middle)
        held[k] /= 2
        held.insert(k + 1, held[k])
    return np.array(edges[1:-1])


def with_edges(model: Model, j: int, edges: NDArray[np.float64]) -> Model:
    """Return a model with more edges for feature ``j`` and the same predictions: tables and trees are rewritten."""
    old = model.bins[j].edges
    assert old is not None
    merged = np.union1d(old, edges)
    bins = FeatureBins(merged, None, len(merged) + 2)
    # old bin of each new bin; the last code is missing values
    inside = np.append(np.searchsorted(old, np.append(merged, np.inf)), len(old) + 1)
    new_code = np.append(np.searchsorted(merged, old), len(merged)).astype(np.uint8)
    table = model.tables[j][inside]
    splits = model.trees.splits
    here = (splits.feature == j) & (splits.mask_of < 0) & (splits.threshold <= len(old))
    threshold = splits.threshold.copy()
    threshold[here] = new_code[splits.threshold[here]]
    nowhere = (splits.feature == j) & (splits.mask_of < 0) & (splits.threshold > len(old))
    threshold[nowhere] = MAX_BINS - 1  # missing values did not go right either
    masks = splits.masks.copy()
    for k in np.unique(splits.mask_of[(splits.feature == j) & (splits.mask_of >= 0)]):
        masks[k, : bins.n_bins] = splits.masks[k, inside]
    moved = Splits(splits.feature, threshold, splits.mask_of, masks)
    return replace(
        model,
        bins=(*model.bins[:j], bins, *model.bins[j + 1 :]),
        tables=(*model.tables[:j], table, *model.tables[j + 1 :]),
        pairs=tuple(_with_bins(pair, j, inside) for pair in model.pairs),
        trees=TreeEnsemble(moved, model.trees.value),
    )


def _with_bins(pair: PairTable, j: int, inside: NDArray[np.int64]) -> PairTable:
    """Return the same pair table over the new bins of feature ``j``, each of which lies inside an old bin."""
    map_i = pair.map_i[inside] if pair.i == j else pair.map_i
    map_j = pair.map_j[inside] if pair.j == j else pair.map_j
    return replace(pair, map_i=map_i, map_j=map_j)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterativeHessian(Part):
    """Refine candidates with a released Hessian histogram in each of the first rounds. FDP-GBDT §4.5.2.

    Parameters
    ----------
    rounds : int
        s: how often each feature is refined; 0 means never.
    n_bins : int
        Q.
    """

    rounds: int = 5
    n_bins: int = 32

    estimator_options: ClassVar[Mapping[str, str]] = {"max_bins": "n_bins"}

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("rounds", self.rounds, 0, 20)
        check_whole("n_bins", self.n_bins, 2, 128)

    @property
    def refines_bins(self) -> bool:
        """Whether the bins change during a fit."""
        return self.rounds > 0

    def brief(self) -> Self:
        """Return the part with one round, for tests."""
        return replace(self, rounds=1)

    def refine(
        self, state: State, cuts: NDArray[np.uint8], j: int, hess: NDArray[np.float64]
    ) -> tuple[Model, NDArray[np.float64]]:
        """Return the model with new edges and the feature's new candidates, from its noisy Hessian per bin.

        Trees that are already grown keep their edges. When all codes are used, the candidates stay as they are.
        """
        assert state.model is not None
        bins = state.model.bins[j]
        feature = list(state.shape.schema.encoded.values())[j]
        assert bins.edges is not None
        assert isinstance(feature, Numeric)
        kept = bins.edges[cuts]
        starts = np.concatenate([[0], cuts.astype(np.int64) + 1])
        mass = np.add.reduceat(hess[: bins.missing_bin], starts)
        wanted = refine((feature.low, feature.high), kept, mass, self.n_bins)
        if feature.integer:
            # cuts between the same two whole numbers count as one. So the cut beside a heavy value stays likely to be
            # drawn; many cuts among the few rows near it would make it unlikely (-.015 AUC on counts with many zeros)
            wanted = np.unique(np.floor(wanted) + 0.5)
            wanted = wanted[(wanted > feature.low) & (wanted < feature.high)]
        if len(np.union1d(bins.edges, wanted)) > MOST_EDGES:
            return state.model, kept
        return with_edges(state.model, j, wanted), wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch(Part):
    """Candidates of one tree: quantiles of the row weights, from a histogram released at its root. DP-XGBoost §3.2.

    Parameters
    ----------
    n_bins : int
        Number of parts of equal noisy weight.
    """

    n_bins: int = 32

    estimator_options: ClassVar[Mapping[str, str]] = {"max_bins": "n_bins"}
    refines_bins = False

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("n_bins", self.n_bins, 2, MOST_EDGES + 1)

    def gradient(self, shape: Shape) -> Gradient:
        """Return (0, 1) for every row: a histogram of weights."""
        return label_gradient(shape.kind, shape.n_scores, average=False, count_scale=1.0)

    def cuts(self, mass: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Return thresholds that divide the noisy weight evenly; missing values, in the last bin, do not count.

        A quantile that falls in the last bin gives the cut below it, so there is always a cut if the feature has one.
        """
        n_cuts = len(mass) - 2
        inside = np.cumsum(np.maximum(mass[:-1], 0))
        if inside[-1] <= 0 or n_cuts == 0:
            return np.arange(n_cuts, dtype=np.uint8)
        wanted = inside[-1] * np.arange(1, self.n_bins) / self.n_bins
        found = np.searchsorted(inside, wanted)
        return np.unique(np.minimum(found, n_cuts - 1)).astype(np.uint8)
