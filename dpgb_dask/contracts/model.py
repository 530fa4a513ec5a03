"""The released model: bins, additive tables, pair tables, trees. Integers throughout; scores are int32, 2⁻¹⁶.

One object has three uses: shards receive it to bring their scores up to date, it predicts, and it is written to disk.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.features import Categorical
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.display import brief, html_table
from dpgb_dask.errors import PlanError
from dpgb_dask.frozen import frozen, settle

SCORE_BITS = 16  # one score step is 2**-16
SCORE_ONE = 1 << SCORE_BITS
MAX_BINS = 256
SHARE_BITS = 20  # one share step is 2**-20 of the weight of all rows
SHARE_ONE = 1 << SHARE_BITS


@dataclass(frozen=True, eq=False, slots=True)
class FeatureBins:
    """Released bins of one feature.

    Parameters
    ----------
    edges : (n_edges,) float64, finite and increasing, or None
        Numeric feature: the code is the number of edges below the value; ``n_edges + 1`` is missing.
    cell_to_bin : (n_categories + 2,) uint8 or None
        Categorical feature: bin of each declared category, of "other" and of missing.
    n_bins : int
        Number of bins, missing included.
    """

    edges: NDArray[np.float64] | None
    cell_to_bin: NDArray[np.uint8] | None
    n_bins: int

    def __post_init__(self) -> None:
        if (self.edges is None) == (self.cell_to_bin is None):
            raise ValueError("Give edges (numeric) or cell_to_bin (categorical), not both.")
        settle(self, n_bins=int(self.n_bins))
        if not 1 <= self.n_bins <= MAX_BINS:
            raise ValueError(
                f"n_bins={self.n_bins} is outside [1, {MAX_BINS}]: codes are stored as uint8."
            )
        if self.edges is not None:
            edges = frozen(self.edges)
            settle(self, edges=edges)
            if edges.dtype != np.float64 or edges.ndim != 1:
                raise ValueError("edges must be a float64 array of ndim=1.")
            if self.n_bins != len(edges) + 2:
                raise ValueError(
                    "A numeric feature has one bin more than edges, and one for missing values."
                )
            if not np.isfinite(edges).all() or (edges[1:] <= edges[:-1]).any():
                raise ValueError("edges must be finite and increase.")
        if self.cell_to_bin is not None:
            settle(self, cell_to_bin=frozen(self.cell_to_bin))
            if self.cell_to_bin.dtype != np.uint8 or self.cell_to_bin.ndim != 1:
                raise ValueError("cell_to_bin must be a uint8 array of ndim=1.")
            if not self.cell_to_bin.size or self.cell_to_bin.max() >= self.n_bins:
                raise ValueError("cell_to_bin names a bin that is not there.")

    @property
    def categorical(self) -> bool:
        """Whether the feature is categorical."""
        return self.edges is None

    @property
    def missing_bin(self) -> int:
        """Code of a missing value."""
        return self.n_bins - 1 if self.cell_to_bin is None else int(self.cell_to_bin[-1])


@dataclass(frozen=True, eq=False, slots=True)
class PairTable:
    """A table over two features: ``table[k, map_i[code_i], map_j[code_j]]`` is added to score k.

    Parameters
    ----------
    i, j : int
        Features.
    map_i, map_j : (n_bins of the feature,) uint8
        Bin to row or column of the table.
    table : (n_scores, n_i, n_j) int32, score steps
    """

    i: int
    j: int
    map_i: NDArray[np.uint8]
    map_j: NDArray[np.uint8]
    table: NDArray[np.int32]

    @property
    def n_i(self) -> int:
        """Rows of the table."""
        return int(self.table.shape[1])

    @property
    def n_j(self) -> int:
        """Columns of the table."""
        return int(self.table.shape[2])


class _Checkable:
    # set by `queries.checked_splits` and `queries.told_splits`, which need not look at the same arrays again; no
    # fields, so neither pickled nor part of a hash
    __slots__ = ("checked", "told")

    checked: bool
    told: bytes


@dataclass(frozen=True, eq=False, slots=True)
class Splits(_Checkable):
    """Complete binary trees of one depth without their leaves, as flat arrays in heap order.

    A node sends a code right if ``code > threshold``, or, if it has a mask, if ``masks[mask_of][code]`` is 1. Threshold
    255 sends every row left; a node without a split is stored in this way.

    Parameters
    ----------
    feature : (n_trees, 2**depth - 1) uint16
    threshold : (n_trees, 2**depth - 1) uint8
    mask_of : (n_trees, 2**depth - 1) int32
        Row of ``masks``, or -1 for a node with a threshold.
    masks : (n_masks, 256) uint8
        1 where a code goes right. Masks are for sets of categories, and for thresholds whose missing values go left.
    """

    feature: NDArray[np.uint16]
    threshold: NDArray[np.uint8]
    mask_of: NDArray[np.int32]
    masks: NDArray[np.uint8]

    @classmethod
    def plain(cls, feature: NDArray[np.uint16], threshold: NDArray[np.uint8]) -> "Splits":
        """Return splits by threshold alone."""
        no_mask = np.full(feature.shape, -1, np.int32)
        return cls(feature, threshold, no_mask, np.empty((0, MAX_BINS), np.uint8))

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return self.feature.shape[0]

    @property
    def depth(self) -> int:
        """Depth of every tree; 0 for a single leaf."""
        return self.feature.shape[1].bit_length()

    @property
    def arrays(
        self,
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint8], NDArray[np.int32], NDArray[np.uint8]]:
        """The arrays, in the order in which kernels take them."""
        return self.feature, self.threshold, self.mask_of, self.masks

    @property
    def n_leaves(self) -> int:
        """Leaves per tree."""
        return self.feature.shape[1] + 1

    @property
    def splitting(self) -> NDArray[np.bool_]:
        """Nodes that do not send every row left, (n_trees, n_nodes)."""
        return (self.threshold < MAX_BINS - 1) | (self.mask_of >= 0)

    def part(self, start: int, stop: int | None = None) -> "Splits":
        """Return some of the trees, with all masks."""
        rows = slice(start, stop)
        return Splits(self.feature[rows], self.threshold[rows], self.mask_of[rows], self.masks)

    def only(self, trees: NDArray[np.int64]) -> "Splits":
        """Return the trees of these numbers, with the masks that they use."""
        mask_of = self.mask_of[trees]
        masked = mask_of >= 0
        used, mask_of[masked] = np.unique(mask_of[masked], return_inverse=True)
        return Splits(self.feature[trees], self.threshold[trees], mask_of, self.masks[used])

    def sharing(self, masks: NDArray[np.uint8]) -> "Splits":
        """Return the trees with these masks, and behind them those of their own that are not among them."""
        place = {mask.tobytes(): k for k, mask in enumerate(masks)}
        own = [mask.tobytes() for mask in self.masks]
        more = list(dict.fromkeys(mask for mask in own if mask not in place))
        place |= {mask: len(masks) + k for k, mask in enumerate(more)}
        moved = np.array([*(place[mask] for mask in own), -1], np.int32)
        rest = np.frombuffer(b"".join(more), np.uint8).reshape(-1, MAX_BINS)
        return Splits(
            self.feature, self.threshold, moved[self.mask_of], np.concatenate([masks, rest])
        )

    def of_feature(self, feature: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the different thresholds, increasing, and masks at which nodes split a feature."""
        own, masked = self.feature == feature, self.mask_of >= 0
        thresholds = np.unique(self.threshold[own & ~masked])
        return thresholds, self.masks[np.unique(self.mask_of[own & masked])]

    def runs(self, size: int) -> "list[Splits]":
        """Return all trees in runs of ``size``, each with the masks from the first to the last that it uses.

        Parts of arrays that were checked need no check of their own.
        """
        n, known = self.n_trees, getattr(self, "checked", False)
        starts = np.arange(0, n, size)
        used = self.mask_of.reshape(n, -1)
        first = np.where(used < 0, len(self.masks), used).min(axis=1, initial=len(self.masks))
        first = np.minimum.reduceat(first, starts)
        last = np.maximum.reduceat(used.max(axis=1, initial=-1), starts) + 1
        moved = np.maximum(used - np.repeat(first, size)[:n, None], -1).astype(np.int32)
        moved.setflags(write=False)
        found = []
        for start, low, high in zip(
            starts.tolist(), first.tolist(), np.maximum(first, last).tolist(), strict=True
        ):
            own = slice(start, start + size)
            part = Splits(self.feature[own], self.threshold[own], moved[own], self.masks[low:high])
            if known:
                settle(part, checked=True)
            found.append(part)
        return found

    def same(self, other: "Splits") -> bool:
        """Whether both send every row the same way; nodes may share a mask, and masks may stand in any order."""
        mine, masked = self.masks[self.mask_of[self.mask_of >= 0]], other.mask_of >= 0
        return (
            np.array_equal(self.feature, other.feature)
            and np.array_equal(self.threshold, other.threshold)
            and np.array_equal(self.mask_of >= 0, masked)
            and np.array_equal(mine, other.masks[other.mask_of[masked]])
        )


def flaw_of(splits: Splits) -> str | None:
    """Return what trees must be and are not; None if they are whole. Their arrays have the right types."""
    nodes, masks = splits.feature.shape, splits.masks
    # 2**depth and 2**depth - 1 share no bit
    complete = splits.n_leaves & nodes[1] == 0
    if not complete or not nodes == splits.threshold.shape == splits.mask_of.shape:
        return "must be complete trees: 2**depth - 1 nodes each"
    if masks.shape[1] != MAX_BINS or (masks.size and masks.max() > 1):
        return f"must have masks that hold 0 or 1 for each of {MAX_BINS} codes"
    named = splits.mask_of
    if named.size and not (  # as min() and max(), in half the time: every query of trees is checked
        -1
        <= np.minimum.reduce(named, axis=None)
        <= np.maximum.reduce(named, axis=None)
        < len(masks)
    ):
        return "must not name a mask that is not there"
    return None


def join_splits(a: Splits, b: Splits) -> Splits:
    """Return the trees of ``a``, then those of ``b``; both of the same depth.

    Masks that ``b`` begins with, if they are all of ``a``, are kept once.
    """
    if np.array_equal(a.masks, b.masks[: len(a.masks)]):
        moved, masks = b.mask_of, b.masks
    else:
        moved = np.where(b.mask_of < 0, -1, b.mask_of + len(a.masks)).astype(np.int32)
        masks = np.concatenate([a.masks, b.masks])
    return Splits(
        np.concatenate([a.feature, b.feature]),
        np.concatenate([a.threshold, b.threshold]),
        np.concatenate([a.mask_of, moved]),
        masks,
    )


@dataclass(frozen=True, eq=False, slots=True)
class TreeEnsemble:
    """Complete binary trees of one depth and their leaves.

    Parameters
    ----------
    splits : Splits
    value : (n_scores, n_trees, 2**depth) int32, score steps
    """

    splits: Splits
    value: NDArray[np.int32]

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return self.splits.n_trees

    @property
    def depth(self) -> int:
        """Depth of every tree."""
        return self.splits.depth

    def only(self, trees: NDArray[np.int64]) -> "TreeEnsemble":
        """Return the trees of these numbers."""
        return TreeEnsemble(self.splits.only(trees), np.ascontiguousarray(self.value[:, trees]))

    def with_more(self, splits: Splits, value: NDArray[np.int32]) -> "TreeEnsemble":
        """Return these trees, followed by the given ones."""
        both = np.concatenate([self.value, value], axis=1)
        # NumPy keeps the order in memory of its parts, and kernels need C's
        return TreeEnsemble(join_splits(self.splits, splits), np.ascontiguousarray(both))


def no_trees(depth: int = 5, n_scores: int = 1) -> TreeEnsemble:
    """Return an empty forest."""
    nodes = (1 << depth) - 1
    splits = Splits.plain(np.empty((0, nodes), np.uint16), np.empty((0, nodes), np.uint8))
    return TreeEnsemble(splits, np.empty((n_scores, 0, nodes + 1), np.int32))


@dataclass(frozen=True, eq=False, slots=True)
class Model:
    """An additive model over binned features: intercept + tables + pair tables + trees.

    Parameters
    ----------
    bins : tuple of FeatureBins
    intercept : (n_scores,) int32, score steps
    tables : tuple of ((n_bins, n_scores) int32), score steps
        One shape function per feature; ``n_scores`` is the number of classes for multiclass, else 1.
    pairs : tuple of PairTable
    trees : TreeEnsemble
    link : str
        How a score becomes a prediction: a key of `losses.LINKS`.
    """

    bins: tuple[FeatureBins, ...]
    intercept: NDArray[np.int32]
    tables: tuple[NDArray[np.int32], ...]
    pairs: tuple[PairTable, ...] = ()
    trees: TreeEnsemble = field(default_factory=no_trees)
    link: str = "identity"

    def with_tables(self, tables: Iterable[NDArray[np.int32]]) -> "Model":
        """Return this model with other tables."""
        kept = self.pairs, self.trees, self.link
        return Model(self.bins, self.intercept, tuple(tables), *kept)

    def __repr__(self) -> str:
        parts = [f"{name}={value!r}" for name, value in self._shown().items()]
        return f"Model({', '.join(parts)})"

    def _repr_html_(self) -> str:
        return html_table("Model", list(self._shown().items()))

    def _shown(self) -> dict[str, object]:
        """Return what a reader may want to know of the model's size."""
        return {
            "features": self.n_features,
            "bins": sum(own.n_bins for own in self.bins),
            "scores": self.n_scores,
            "pairs": len(self.pairs),
            "trees": self.trees.n_trees,
            "depth": self.trees.depth,
            "link": brief(self.link),
        }

    @property
    def n_scores(self) -> int:
        """Number of score columns."""
        return self.intercept.shape[0]

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.bins)


@dataclass(frozen=True, eq=False, slots=True)
class BinShares:
    """Shares of the weight of all rows that the bins of each feature hold, by released counts: never a count.

    A row counts by its weight: its sample weight times that of its class, or its part of its unit. Without these,
    shares are of rows. Explanations are averages under these shares, features taken as independent of each other.

    Parameters
    ----------
    weights : tuple of ((n_bins,) int64)
        Per feature, not negative; they sum to ``SHARE_ONE``.
    released : tuple of bool
        Per feature, whether the shares come from released counts. If not, all bins have equal shares, the missing bin
        included, because the recipe released no counts.

    Raises
    ------
    ValueError
    """

    weights: tuple[NDArray[np.int64], ...]
    released: tuple[bool, ...]

    def __post_init__(self) -> None:
        weights = tuple(frozen(part) for part in self.weights)
        settle(self, weights=weights, released=tuple(self.released))
        if len(weights) != len(self.released):
            raise ValueError("released needs one entry per feature.")
        if not all(type(known) is bool for known in self.released):
            raise ValueError("released must hold True and False.")
        for part in weights:
            if part.dtype != np.int64 or part.ndim != 1 or not part.size:
                raise ValueError("weights must be int64 arrays of ndim=1.")
            # each of at most 256 is checked first, so the sum cannot overflow
            if part.min() < 0 or part.max() > SHARE_ONE or part.sum() != SHARE_ONE:
                raise ValueError(
                    f"Weights of a feature must sum to {SHARE_ONE}, and none be negative."
                )

    def __repr__(self) -> str:
        return f"BinShares({len(self.weights)} features, of which {sum(self.released)} by released counts)"

    @classmethod
    def of(cls, bins: Sequence[FeatureBins], counts: Sequence[NDArray[np.float64]]) -> "BinShares":
        """Return the shares of released counts; equal ones for a feature without a count for each of its bins.

        Parameters
        ----------
        bins : sequence of FeatureBins
        counts : sequence of ((n_bins,) float64)
            Noisy rows per bin of each feature, positive; empty if the recipe released none.
        """
        weights, released = [], []
        for j, own in enumerate(bins):
            known = j < len(counts) and counts[j].shape == (own.n_bins,)
            released.append(known)
            weights.append(whole_shares(counts[j] if known else np.ones(own.n_bins)))
        return cls(tuple(weights), tuple(released))


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class NoiseBands:
    """Standard deviations of the noise in a model's parts, as far as they are known; functions of released numbers.

    What they cover: the difference to the model that the same procedure would make with the same bins, gates and public
    draws if no noise were added (docs/explanations.md §3).

    Parameters
    ----------
    why : str
        Why nothing is known; empty if it is.
    mains : tuple of ((n_bins, n_scores) int64), score steps
        Of the main effect of each feature, that of the forest included.
    pairs : tuple of ((n_scores, n_i, n_j) int64), score steps
        Of each pair table.
    leaves : (n_scores, n_trees, n_leaves) int64, score steps
        Of the trees' leaves.

    Raises
    ------
    ValueError
    """

    why: str = ""
    mains: tuple[NDArray[np.int64], ...] = ()
    pairs: tuple[NDArray[np.int64], ...] = ()
    leaves: NDArray[np.int64] = field(default_factory=lambda: np.empty((1, 0, 0), np.int64))

    def __repr__(self) -> str:
        known = f"{len(self.mains)} features, {len(self.pairs)} pair tables, {self.leaves.shape[1]} trees"
        return f"NoiseBands(none: {self.why})" if self.why else f"NoiseBands({known})"

    def __post_init__(self) -> None:
        settle(
            self,
            mains=tuple(map(frozen, self.mains)),
            pairs=tuple(map(frozen, self.pairs)),
            leaves=frozen(self.leaves),
        )
        if type(self.why) is not str:
            raise ValueError("why must be a text.")
        for part, ndim in ((self.mains, 2), (self.pairs, 3), ((self.leaves,), 3)):
            for sd in part:
                if sd.dtype != np.int64 or sd.ndim != ndim or (sd < 0).any():
                    raise ValueError(
                        f"Standard deviations must be int64 arrays of ndim={ndim}, none negative."
                    )


def same_bins(a: Sequence[FeatureBins], b: Sequence[FeatureBins]) -> bool:
    """Whether two sets of bins give the same codes."""
    return a is b or (
        len(a) == len(b)
        and all(
            _same(x.edges, y.edges) and _same(x.cell_to_bin, y.cell_to_bin)
            for x, y in zip(a, b, strict=True)
        )
    )


def _same(x: NDArray[Any] | None, y: NDArray[Any] | None) -> bool:
    return x is y or (x is not None and y is not None and np.array_equal(x, y))


def grew(old: Model, new: Model) -> bool:
    """Whether scores of ``old`` can be updated to ``new`` by adding: ``new`` begins with the trees of ``old``."""
    return old.n_scores == new.n_scores and (
        new.trees is old.trees or old.trees.n_trees == 0 or extends(new.trees, old.trees)
    )


def extends(new: TreeEnsemble, old: TreeEnsemble) -> bool:
    """Whether ``new`` begins with the trees of ``old``, one or more, and with all of their masks."""
    n = old.n_trees
    return (
        n <= new.n_trees
        and old.depth == new.depth
        and _begins_with(new.splits, old.splits)
        and np.array_equal(old.value, new.value[:, :n])
    )


def _begins_with(new: Splits, old: Splits) -> bool:
    """Whether ``new`` begins with the trees of ``old``, and with its masks too, as `join_splits` orders them."""
    n = old.n_trees
    return (
        np.array_equal(old.feature, new.feature[:n])
        and np.array_equal(old.threshold, new.threshold[:n])
        and np.array_equal(old.mask_of, new.mask_of[:n])
        and np.array_equal(old.masks, new.masks[: len(old.masks)])
    )


def whole_shares(mass: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return masses as whole shares that sum to ``SHARE_ONE``, rounded by largest remainders."""
    exact = mass / mass.sum() * SHARE_ONE
    shares = np.floor(exact).astype(np.int64)
    lacking = SHARE_ONE - int(shares.sum())
    order = np.argsort(shares - exact, kind="stable")
    shares[order[:lacking]] += 1
    return shares


def check_shares(shares: BinShares, bins: Sequence[FeatureBins]) -> None:
    """Refuse shares that do not fit the bins.

    Raises
    ------
    PlanError
    """
    if [len(part) for part in shares.weights] != [own.n_bins for own in bins]:
        raise PlanError("The shares need one number for each bin of each feature.")


def check_bands(bands: NoiseBands, model: Model) -> None:
    """Refuse standard deviations that do not fit the model.

    Raises
    ------
    PlanError
    """
    if bands.why:
        fits = not bands.mains and not bands.pairs and not bands.leaves.size
    else:
        fits = (
            [sd.shape for sd in bands.mains] == [table.shape for table in model.tables]
            and [sd.shape for sd in bands.pairs] == [pair.table.shape for pair in model.pairs]
            and bands.leaves.shape[:2] == model.trees.value.shape[:2]
            and bands.leaves.size == model.trees.value.size
        )
    if not fits:
        raise PlanError("The bands need one number for each value of the model, or none and why.")


def check_bins(bins: Sequence[FeatureBins], schema: Schema) -> None:
    """Refuse bins that have no code for every value that a row may hold: whether rows hold it must not show.

    Raises
    ------
    PlanError
        Unless there are bins of each feature's kind, with a bin for each declared category, "other" and missing.
    """
    features = schema.encoded
    if len(bins) != len(features):
        raise PlanError(f"{len(bins)} bins for {len(features)} features: one FeatureBins for each.")
    for (name, feature), own in zip(features.items(), bins, strict=True):
        if type(own) is not FeatureBins:
            raise PlanError(f"bins of {name!r} are a {type(own).__name__}, not FeatureBins.")
        if own.categorical != isinstance(feature, Categorical):
            raise PlanError(f"bins of {name!r} need edges if numeric, cell_to_bin if categorical.")
        if isinstance(feature, Categorical) and own.cell_to_bin is not None:
            n_cells = len(feature.categories) + 2
            if len(own.cell_to_bin) != n_cells:
                raise PlanError(
                    f"cell_to_bin of {name!r} has {len(own.cell_to_bin)} entries, not {n_cells}: one for each"
                    " category, for other values and for missing ones."
                )


def check_model(model: Model, schema: Schema, known: Model | None = None) -> None:
    """Refuse a model with an index out of range: kernels do not check, and meet it only where there are rows.

    Parameters
    ----------
    model : Model
    schema : Schema
    known : Model or None
        A model that was not refused under this schema: the parts that both have in common are not looked at again.

    Raises
    ------
    PlanError
    """
    if type(model) is not Model:
        raise PlanError(f"The model is a {type(model).__name__}, not a Model.")
    # the sizes of all other parts depend on the bins and the number of scores
    if known is None or model.bins is not known.bins:
        known = None
        check_bins(model.bins, schema)
    n_scores = len(schema.target.classes) if schema.target.type == "multiclass" else 1
    n_features, bins = len(model.bins), model.bins
    fits = _is(model.intercept, np.int32, (n_scores,)) and len(model.tables) == n_features
    if fits:
        before = (None,) * n_features if known is None else known.tables
        both = zip(model.tables, before, bins, strict=True)
        new = [(table, own) for table, old, own in both if table is not old]
        fits = all(_is(table, np.int32, (own.n_bins, n_scores)) for table, own in new)
    if not fits:
        raise PlanError(
            "The model needs an intercept and a table of int32 for each feature's bins."
        )
    if known is None or model.pairs is not known.pairs:
        n_bins = [own.n_bins for own in bins]
        if not all(_pair_fits(pair, n_bins, n_scores) for pair in model.pairs):
            raise PlanError("A pair table of the model does not fit the bins of its features.")
    same = known is not None and model.trees is known.trees
    if not same and not _trees_fit(model.trees, n_features, n_scores):
        raise PlanError("The trees of the model are not whole, or name what is not there.")


def _is(array: Any, dtype: Any, shape: tuple[int, ...]) -> bool:
    return type(array) is np.ndarray and array.dtype == dtype and array.shape == shape


def _pair_fits(pair: Any, n_bins: Sequence[int], n_scores: int) -> bool:
    if type(pair) is not PairTable or not type(pair.i) is type(pair.j) is int:
        return False
    if not (0 <= pair.i < len(n_bins) and 0 <= pair.j < len(n_bins)):
        return False
    maps = _is(pair.map_i, np.uint8, (n_bins[pair.i],)) and _is(
        pair.map_j, np.uint8, (n_bins[pair.j],)
    )
    if not maps:
        return False
    table: Any = pair.table
    if type(table) is not np.ndarray or table.ndim != 3 or table.dtype != np.int32:
        return False
    cells = int(pair.map_i.max()) < table.shape[1] and int(pair.map_j.max()) < table.shape[2]
    return cells and len(table) == n_scores


def _trees_fit(trees: Any, n_features: int, n_scores: int) -> bool:
    if type(trees) is not TreeEnsemble or type(trees.splits) is not Splits:
        return False
    splits = trees.splits
    parts = zip(splits.arrays, (np.uint16, np.uint8, np.int32, np.uint8), strict=True)
    if not all(type(a) is np.ndarray and a.dtype == dtype and a.ndim == 2 for a, dtype in parts):
        return False
    shape = (n_scores, splits.n_trees, splits.n_leaves)
    if flaw_of(splits) is not None or not _is(trees.value, np.int32, shape):
        return False
    return not splits.feature.size or int(splits.feature.max()) < n_features
