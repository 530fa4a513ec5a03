"""C1: how a node is split. Splits are drawn at random in public, read from released histograms, or chosen privately.

A rule that needs no rows draws whole trees (`TotallyRandom`). The others grow a tree level by level: each states the
query for a level, and turns its answer into splits. Costs are counted in histograms of one feature (FDP-GBDT, table 1).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.answers import Sums
from dpgb_dask.components.options import check_positive, check_rate, check_whole
from dpgb_dask.components.trees.leaves import LeafSums, Step
from dpgb_dask.contracts.constraints import Interactions
from dpgb_dask.contracts.model import MAX_BINS, FeatureBins, Splits
from dpgb_dask.contracts.part import Part
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import ChoiceQuery, NodeSumsQuery, RowDraw
from dpgb_dask.kernels.splits import NOWHERE, best_splits
from dpgb_dask.losses import Gradient


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Candidates:
    """The features and thresholds that a tree may split on.

    Parameters
    ----------
    features : (n_features_used,) int64
    bins : tuple of FeatureBins
        Bins of all features.
    cuts : tuple of ((n_cuts,) uint8)
        Candidate thresholds per feature of the model; empty for a categorical feature.
    missing : tuple of bool
        Whether the schema declares missing values, so that the side they go to matters.
    interactions : Interactions or None
        Which features may follow each other on a path; None if any may.
    """

    features: NDArray[np.int64]
    bins: tuple[FeatureBins, ...]
    cuts: tuple[NDArray[np.uint8], ...]
    missing: tuple[bool, ...]
    interactions: Interactions | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of bins of each feature used."""
        return tuple(self.bins[j].n_bins for j in self.features)

    def allowed(self, splits: Splits) -> NDArray[np.bool_] | None:
        """Return which features may split each leaf of a growing tree, (n_leaves, n_features); None if all may."""
        if self.interactions is None:
            return None
        return self.interactions.allowed(features_above(splits, len(self.bins)))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Frontier:
    """One level of a growing tree, and everything that a query about it needs.

    Parameters
    ----------
    splits : Splits
        The levels above, as one tree whose leaves are the nodes of this level.
    candidates : Candidates
        Its features are those that some node of the level may split on.
    gradient : Gradient
    n_scores : int
    label, price, weight_bits, rows
        As in the queries.
    """

    splits: Splits
    candidates: Candidates
    gradient: Gradient
    n_scores: int
    label: str
    price: int
    weight_bits: int
    rows: RowDraw | None

    @property
    def allowed(self) -> NDArray[np.bool_] | None:
        """Return which of its features may split each node, (n_nodes, n_features used); None if all may."""
        allowed = self.candidates.allowed(self.splits)
        return None if allowed is None else allowed[:, self.candidates.features]


@dataclass(frozen=True, eq=False, slots=True)
class LevelSplits:
    """The splits of one level.

    Parameters
    ----------
    feature : (n_nodes,) uint16
    threshold : (n_nodes,) uint8
    mask : (n_nodes, 256) uint8
    masked : (n_nodes,) bool
        True if the node is split by its mask, False if by its threshold.
    """

    feature: NDArray[np.uint16]
    threshold: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    masked: NDArray[np.bool_]

    @classmethod
    def unsplit(cls, n_nodes: int) -> "LevelSplits":
        """Return splits that send every row left."""
        return cls(
            np.zeros(n_nodes, np.uint16),
            np.full(n_nodes, NOWHERE, np.uint8),
            np.zeros((n_nodes, MAX_BINS), np.uint8),
            np.zeros(n_nodes, bool),
        )

    def goes_right(self, k: int, n_bins: int) -> NDArray[np.bool_]:
        """Return which bins of its feature node ``k`` sends right."""
        code = np.arange(n_bins)
        return self.mask[k, code] == 1 if self.masked[k] else code > self.threshold[k]

    def set(self, k: int, feature: int, right: NDArray[np.bool_]) -> None:
        """Split node ``k`` by the bins that go right; by a threshold, which routes faster, if they are the last."""
        self.feature[k] = feature
        threshold = threshold_of(right)
        self.masked[k] = threshold is None
        self.threshold[k] = NOWHERE if threshold is None else threshold
        if threshold is None:
            self.mask[k, : len(right)] = right


def threshold_of(right: NDArray[np.bool_]) -> int | None:
    """Return the threshold above which the bins lie that go right; None if they are all bins, or not the last ones."""
    n_left = len(right) - int(np.count_nonzero(right))
    return None if n_left == 0 or np.count_nonzero(right[:n_left]) else n_left - 1


def grow(above: Splits, level: LevelSplits) -> Splits:
    """Return one tree with one more level."""
    mask_of = np.full(len(level.feature), -1, np.int32)
    mask_of[level.masked] = len(above.masks) + np.arange(level.masked.sum())
    return Splits(
        np.concatenate([above.feature, level.feature[None]], axis=1),
        np.concatenate([above.threshold, level.threshold[None]], axis=1),
        np.concatenate([above.mask_of, mask_of[None]], axis=1),
        np.concatenate([above.masks, level.mask[level.masked]]),
    )


def features_above(splits: Splits, n_features: int) -> NDArray[np.bool_]:
    """Return the features on the path to each leaf of one tree, (n_leaves, n_features) bool."""
    used, splitting = np.zeros((1, n_features), bool), splits.splitting[0]
    for depth in range(splits.depth):
        level = np.arange(1 << depth)
        node = level + len(level) - 1
        used[level, splits.feature[0, node]] |= splitting[node]
        used = np.repeat(used, 2, axis=0)
    return used


def root() -> Splits:
    """Return one tree of depth 0."""
    return _ROOT


_ROOT = Splits.plain(np.empty((1, 0), np.uint16), np.empty((1, 0), np.uint8))


class SplitRule(Part, ABC):
    """A rule that splits nodes. Holds options, no state.

    Attributes
    ----------
    asks : bool
        Whether each level needs a query; otherwise whole trees are drawn at random.
    gives_leaves : bool
        Whether its histograms also contain the sums of the leaves, which then need no query of their own.
    is_random : bool
        Whether it draws from the public randomness.
    chooses : bool
        Whether the controller chooses a candidate by its gain, and releases nothing else.
    refines : bool
        Whether its histograms at the root also refine the candidates, which then need no query of their own.
    n_cells : int
        The most cells per feature that the answer for one node releases.
    """

    __slots__ = ()

    asks: ClassVar[bool] = True
    gives_leaves: ClassVar[bool] = False
    is_random: ClassVar[bool] = False
    chooses: ClassVar[bool] = False
    refines: ClassVar[bool] = False
    n_cells: ClassVar[int] = 0

    @abstractmethod
    def n_queries(self, n_features: int, depth: int) -> int:
        """Return κ_s of one tree: the number of one-feature histograms, or of choices, that it asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TotallyRandom(SplitRule):
    """Split on a random feature at a random candidate, without a query. FDP-GBDT §4.3.2 (TR).

    A threshold is drawn from the candidates inside the node's own ranges, so that no leaf is empty by construction (the
    paper draws from all candidates). For a categorical feature a random set of bins goes right. Missing values go to a
    random side.

    Parameters
    ----------
    max_leaves : int or None
        Leaves of a tree; None for a complete tree. DP-EBM uses 3.
    """

    max_leaves: int | None = None

    asks = False
    is_random = True

    def __post_init__(self) -> None:
        """Check the options."""
        if self.max_leaves is not None:
            check_whole("max_leaves", self.max_leaves, 2, 1024)

    def n_queries(self, n_features: int, depth: int) -> int:  # noqa: ARG002
        """Return 0: the structure is public."""
        return 0

    def draw(
        self,
        candidates: Candidates,
        features: NDArray[np.int64],
        depth: int,
        rng: np.random.Generator,
    ) -> Splits:
        """Return random trees, independent of each other, drawn level by level from one stream.

        A node draws one of its features, then one of the feature's candidates there. Without a candidate it stays
        unsplit, and its left child draws again. Under ``max_leaves`` a level is split in random order, until no split
        is left.

        Parameters
        ----------
        candidates : Candidates
            Of all trees, but for the features.
        features : (n_trees, n_features_used) int64
            Those that each tree may split on.
        depth : int
        rng : Generator

        Returns
        -------
        Splits
            With masks in the order of their nodes.
        """
        n_trees, n_nodes = len(features), (1 << depth) - 1
        n_bins = np.array([own.n_bins for own in candidates.bins])
        categorical = np.array([own.categorical for own in candidates.bins])
        owner = np.repeat(np.arange(len(n_bins)), [len(cuts) for cuts in candidates.cuts])
        keys = MAX_BINS * owner + np.concatenate(candidates.cuts)  # increasing
        feature = np.zeros((n_trees, n_nodes), np.uint16)
        cut = np.full((n_trees, n_nodes), NOWHERE, np.uint8)  # also of categories
        split = np.zeros((n_trees, n_nodes), bool)
        reached = np.ones((n_trees, 1), bool)  # not to the right of a node without a split
        rule = candidates.interactions
        used = np.zeros((n_trees, 1, len(n_bins)), bool)  # above each node, where there is a rule
        left = np.full(n_trees, (self.max_leaves or 1 << depth) - 1)  # splits still to be made
        for d in range(depth):
            level = slice((1 << d) - 1, (2 << d) - 1)
            allowed = None if rule is None else rule.allowed(used.reshape(-1, len(n_bins)))
            j = _features_drawn(features, reached.shape[1], allowed, rng)
            low, high = _codes_reaching(j, n_bins[j] - 1, feature, cut)
            start, stop = keys.searchsorted(MAX_BINS * j + np.stack((low, high)))
            may = reached & (categorical[j] | (start < stop))
            rank = np.where(may, rng.random(may.shape), 1.0).argsort(1).argsort(1)
            now = may & (rank < left[:, None])
            left -= np.count_nonzero(now, axis=1)
            cuts = now & ~categorical[j]
            at = start[cuts] + rng.integers((stop - start)[cuts])
            cut[:, level][cuts] = keys[at] % MAX_BINS
            feature[:, level][now] = j[now]
            split[:, level] = now
            reached = np.stack((reached, now), axis=2).reshape(n_trees, -1)
            if rule is not None:
                used[*np.nonzero(now), j[now]] = True
                used = used.repeat(2, axis=1)
        return _sent(candidates.missing, n_bins, categorical, feature, cut, split, rng)


def _features_drawn(
    features: NDArray[np.int64],
    n_nodes: int,
    allowed: NDArray[np.bool_] | None,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw one of its tree's features for every node of a level, each of those that are allowed alike.

    Parameters
    ----------
    features : (n_trees, n_features_used) int64
    n_nodes : int
        Of the level, per tree.
    allowed : (n_trees * n_nodes, n_features) bool, or None
        Some of the tree's features, for each node; None if all are.
    rng : Generator

    Returns
    -------
    (n_trees, n_nodes) int64
    """
    n_trees, n_used = features.shape
    if allowed is None:
        at = rng.integers(n_used, size=(n_trees, n_nodes))
    else:
        each = allowed.reshape(n_trees, n_nodes, -1)
        among = np.take_along_axis(each, features[:, None], axis=2).cumsum(2)
        at = (among > rng.integers(among[:, :, -1])[:, :, None]).argmax(2)
    return np.take_along_axis(features, at, axis=1)


def _codes_reaching(
    j: NDArray[np.int64],
    last: NDArray[np.int64],
    feature: NDArray[np.uint16],
    cut: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the last code that can reach each node of a level; they say nothing of categories.

    Parameters
    ----------
    j, last : (n_trees, n_nodes of the level) int64
        A feature for each node, and its last code.
    feature, cut : (n_trees, n_nodes) uint16 and uint8
        Of the nodes above; `NOWHERE` without a cut.
    """
    n_nodes = j.shape[1]
    low, high = np.zeros_like(last), last
    node = np.arange(n_nodes) + n_nodes - 1
    while node[0]:
        is_right, node = node % 2 == 0, (node - 1) // 2
        same, edge = feature[:, node] == j, cut[:, node].astype(np.int64)
        low = np.where(same & is_right, np.maximum(low, edge + 1), low)
        high = np.where(same & ~is_right, np.minimum(high, edge), high)
    return low, high


def _sent(
    missing: tuple[bool, ...],
    n_bins: NDArray[np.int64],
    categorical: NDArray[np.bool_],
    feature: NDArray[np.uint16],
    cut: NDArray[np.uint8],
    split: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Splits:
    """Return trees whose nodes send categories, and missing values where there may be any, to random sides.

    Parameters
    ----------
    missing, n_bins, categorical : (n_features,)
    feature, cut, split : (n_trees, n_nodes)
        Feature of each node that is split, and its threshold unless it is of categories.
    rng : Generator
    """
    coin = rng.random(split.shape) < 0.5
    masked = split & (categorical[feature] | (np.array(missing)[feature] & coin))
    j, code = feature[masked], np.arange(MAX_BINS)
    n, sets = n_bins[j], categorical[j]
    drawn = rng.integers(0, 2, (len(j), MAX_BINS), dtype=np.bool_)
    right = np.where(sets[:, None], drawn, code > cut[masked][:, None])
    right &= code < np.where(sets, n, n - 1)[:, None]  # the last code of a number is missing
    n_right, first = np.count_nonzero(right, axis=1), right.argmax(1)
    plain = (n_right == 0) | ((first > 0) & (first + n_right == n))  # as `threshold_of`
    threshold, mask_of = cut.copy(), np.full(cut.shape, -1, np.int32)
    threshold[masked] = np.where(plain, n - n_right - 1, NOWHERE)
    masked[masked] = ~plain
    mask_of[masked] = np.arange(np.count_nonzero(masked))
    return Splits(feature, threshold, mask_of, right[~plain].astype(np.uint8))


@dataclass(frozen=True, eq=False, slots=True)
class NodeHistogram:
    """The released sums of one level.

    Parameters
    ----------
    grad, hess : (n_nodes, n_cells, n_scores) float64, natural units
        Cells of all features used, concatenated.
    grad_sd, hess_sd : float
        Standard deviations of the noise of one cell.
    """

    grad: NDArray[np.float64]
    hess: NDArray[np.float64]
    grad_sd: float
    hess_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSplit(SplitRule):
    """The best split of a released histogram per node. FDP-GBDT §4.3.1 (Hist), FEVERLESS.

    In each node, categories are ordered by noisy gradient over Hessian and cut once (Fisher 1958). Missing values go to
    the better side. Everything here is post-processing.

    Parameters
    ----------
    ridge : float
        λ of the gain.
    """

    ridge: float = 1.0

    gives_leaves = True
    refines = True
    n_cells = MAX_BINS

    def __post_init__(self) -> None:
        """Check the options."""
        check_positive("ridge", self.ridge)

    def n_queries(self, n_features: int, depth: int) -> int:
        """Return one histogram per feature and level; with a single feature, the root's histogram serves all levels."""
        return n_features * depth if n_features > 1 else 1

    def ask(self, frontier: Frontier) -> NodeSumsQuery:
        """Return the query for one level."""
        return _node_sums(frontier, None)

    def choose(self, answer: NodeHistogram, frontier: Frontier) -> LevelSplits:
        """Return the best split of every node, even if no gain is positive: noise then chooses a random split."""
        candidates = frontier.candidates
        bins = [candidates.bins[j] for j in candidates.features]
        categorical = np.array([b.categorical for b in bins])
        best = best_splits(
            answer.grad,
            answer.hess,
            np.cumsum(candidates.sizes),
            [
                np.arange(b.n_bins - 1) if b.categorical else candidates.cuts[j].astype(np.int64)
                for j, b in zip(candidates.features, bins, strict=True)
            ],
            categorical,
            np.array(candidates.missing)[candidates.features] & ~categorical,
            frontier.allowed,
            self.ridge,
            answer.grad_sd,
            answer.hess_sd,
        )
        feature = np.where(best.feature >= 0, candidates.features[best.feature], 0)
        return LevelSplits(feature.astype(np.uint16), best.threshold, best.mask, best.masked)


def _node_sums(frontier: Frontier, sides: NDArray[np.uint8] | None) -> NodeSumsQuery:
    return NodeSumsQuery(
        label=frontier.label,
        price=frontier.price,
        weight_bits=frontier.weight_bits,
        gradient=frontier.gradient,
        n_scores=frontier.n_scores,
        rows=frontier.rows,
        splits=frontier.splits,
        features=frontier.candidates.features.astype(np.uint16),
        sizes=frontier.candidates.sizes,
        sides=sides,
    )


def _sides(query: NodeSumsQuery, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of the left and of the right side of every feature, (n_nodes, n_features, 2, n_scores)."""
    cells = values.reshape(query.splits.n_leaves, -1, query.n_scores)
    total, contrast = cells[:, :1] / query.total_times, cells[:, 1:]
    return np.stack([total - contrast, total + contrast], axis=2) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PartiallyRandom(SplitRule):
    """The best of one random candidate per feature in every node, by released sums. FDP-GBDT §4.3.2 (PR).

    Parameters
    ----------
    ridge : float
        λ of the gain.
    """

    ridge: float = 1.0

    gives_leaves = True
    is_random = True
    n_cells = 2

    def __post_init__(self) -> None:
        """Check the options."""
        check_positive("ridge", self.ridge)

    def n_queries(self, n_features: int, depth: int) -> int:
        """Return one unit per feature and level, the price of a histogram: two sums, with far less noise on each side.

        With a single feature there is only one candidate, so the whole tree is drawn, and the only query is for its
        leaves.
        """
        return n_features * depth if n_features > 1 else 1

    def draw(self, frontier: Frontier, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return the side of every bin in every node: (n_nodes, n_cells) uint8."""
        candidates = frontier.candidates
        sides = np.zeros((frontier.splits.n_leaves, sum(candidates.sizes)), np.uint8)
        ends = np.cumsum(candidates.sizes)
        for row in sides:
            for j, end in zip(candidates.features, ends, strict=True):
                bins = candidates.bins[j]
                part = row[end - bins.n_bins : end]
                if bins.categorical:
                    part[:] = rng.integers(0, 2, bins.n_bins)
                elif len(candidates.cuts[j]):
                    part[:] = np.arange(bins.n_bins) > rng.choice(candidates.cuts[j])
                    if candidates.missing[j]:
                        part[bins.missing_bin] = rng.integers(0, 2)
        return sides

    def ask(self, frontier: Frontier, sides: NDArray[np.uint8]) -> NodeSumsQuery:
        """Return the query for one level."""
        return _node_sums(frontier, sides)

    @staticmethod
    def histogram(query: NodeSumsQuery, answer: Sums) -> NodeHistogram:
        """Return the sums of both sides of every feature, from a node's sum and contrasts.

        Two sides differ by their contrast, whose noise decides between splits: as that of two sums whose noise has half
        of its variance. That of the node's sum has no more.
        """
        grad, hess = (_sides(query, values) for values in (answer.grad, answer.hess))
        shape = (query.splits.n_leaves, -1, query.n_scores)
        sd = answer.grad_sd / np.sqrt(2), answer.hess_sd / np.sqrt(2)
        return NodeHistogram(grad.reshape(shape), hess.reshape(shape), *sd)

    @staticmethod
    def leaves(query: NodeSumsQuery, answer: Sums, level: LevelSplits) -> tuple[LeafSums, LeafSums]:
        """Return the sums of the two children of every node, and of the nodes, from what chose its split."""
        n_nodes, times = query.splits.n_leaves, query.total_times
        position = {int(j): k for k, j in enumerate(query.features)}
        at = np.array([position.get(int(j), 0) for j in level.feature])
        # whether a node has bins that go left, and bins that go right
        sent = np.zeros((n_nodes, 2), np.bool_)
        for k, a in enumerate(at):
            right = level.goes_right(k, query.sizes[a])
            sent[k] = not right.all(), right.any()
        both = sent[:, 0] & sent[:, 1]

        def children(
            values: NDArray[np.float64], total: NDArray[np.float64]
        ) -> NDArray[np.float64]:
            whole = np.where(sent[:, :, None], total[:, None], 0.0)
            sides = _sides(query, values)[np.arange(n_nodes), at]
            return np.where(both[:, None, None], sides, whole).reshape(2 * n_nodes, -1)

        grad, hess = (
            values.reshape(n_nodes, -1, query.n_scores)[:, 0] / times
            for values in (answer.grad, answer.hess)
        )
        of_child = np.where(both, np.sqrt(1 + times**-2) / 2, 1 / times).repeat(2)[:, None]
        return (
            LeafSums(
                children(answer.grad, grad),
                children(answer.hess, hess),
                answer.grad_sd * of_child,
                answer.hess_sd * of_child,
            ),
            LeafSums(grad, hess, answer.grad_sd / times, answer.hess_sd / times),
        )

    def choose(
        self, answer: NodeHistogram, frontier: Frontier, sides: NDArray[np.uint8]
    ) -> LevelSplits:
        """Return, for every node, the best of the drawn splits."""
        candidates = frontier.candidates
        n_nodes, n_features = frontier.splits.n_leaves, len(candidates.features)
        none = np.zeros(n_features, bool)
        best = best_splits(
            answer.grad,
            answer.hess,
            2 * np.arange(1, n_features + 1),
            [np.zeros(1, np.int64)] * n_features,
            none,
            none,
            frontier.allowed,
            self.ridge,
            answer.grad_sd,
            answer.hess_sd,
        )
        ends = np.cumsum(candidates.sizes)
        level = LevelSplits.unsplit(n_nodes)
        for k, at in enumerate(best.feature):
            if at >= 0:
                right = sides[k, ends[at] - candidates.sizes[at] : ends[at]] == 1
                level.set(k, int(candidates.features[at]), right)
        return level


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialSplit(SplitRule):
    """Each node's split is chosen with probability ∝ exp(ε · gain / range). DPBoost algorithm 1, DP-XGBoost §4.

    The candidates are every cut of a numeric feature, and every category (or missing) against all others.

    Parameters
    ----------
    ridge : float
        λ of the gain.
    clip : float or None
        Bound of a row's gradient in the gain, if that of the leaf is not lower: the noise of a choice grows with its
        square. Rows that a leaf filters out then count. None for the leaf's own gradient.
    """

    ridge: float = 0.1
    clip: float | None = 0.5

    chooses = True

    def __post_init__(self) -> None:
        """Check the options."""
        check_positive("ridge", self.ridge)
        if self.clip is not None:
            check_rate("clip", self.clip)

    def n_queries(self, n_features: int, depth: int) -> int:  # noqa: ARG002
        """Return one choice per level, as the nodes of a level are disjoint."""
        return depth

    def gradient(self, shape: Shape, leaf: Step) -> Gradient:
        """Return the gradient with a full count beside it: the range of a gain is proved for this."""
        bound = leaf.bound(shape.kind)
        return shape.loss.gradient(
            shape.kind,
            shape.n_scores,
            second="count",
            clip=bound if self.clip is None else min(bound, self.clip),
            filtered=leaf.filtered and self.clip is None,
            hess_scale=1.0,
        )

    def ask(self, frontier: Frontier) -> ChoiceQuery:
        """Return the query for one level."""
        candidates = frontier.candidates
        # a choice needs a candidate, so constant features offer a split on missing values, declared or not
        constant = not any(
            candidates.bins[j].categorical or len(candidates.cuts[j]) for j in candidates.features
        )
        feature, where, only = [], [], []
        for position, j in enumerate(candidates.features):
            bins = candidates.bins[j]
            cuts = np.arange(bins.n_bins) if bins.categorical else candidates.cuts[j]
            alone = np.full(len(cuts), bins.categorical)
            if not bins.categorical and (candidates.missing[j] or constant):
                cuts, alone = np.append(cuts, bins.missing_bin), np.append(alone, True)
            feature.append(np.full(len(cuts), position))
            where.append(cuts)
            only.append(alone)
        return ChoiceQuery(
            label=frontier.label,
            price=frontier.price,
            weight_bits=frontier.weight_bits,
            gradient=frontier.gradient,
            n_scores=frontier.n_scores,
            rows=frontier.rows,
            splits=frontier.splits,
            features=candidates.features.astype(np.uint16),
            sizes=candidates.sizes,
            candidate_feature=np.concatenate(feature).astype(np.uint16),
            candidate_bin=np.concatenate(where).astype(np.uint8),
            candidate_only=np.concatenate(only).astype(bool),
            ridge=self.ridge,
        )

    def choose(
        self,
        chosen: NDArray[np.int64],
        query: ChoiceQuery,
        allowed: NDArray[np.bool_] | None = None,
    ) -> LevelSplits:
        """Return the splits that were chosen.

        Parameters
        ----------
        chosen : (n_nodes,) int64
        query : ChoiceQuery
        allowed : (n_nodes, n_features) bool, or None
            Which features may split each node; None if all may. The nodes of a level choose among the same candidates,
            so a node can choose a feature that may not follow those above it: then it is not split.
        """
        level = LevelSplits.unsplit(len(chosen))
        level.feature[:] = query.features[query.candidate_feature[chosen]]
        level.threshold[:] = query.candidate_bin[chosen]
        level.masked[:] = query.candidate_only[chosen]
        if allowed is not None:
            barred = ~allowed[np.arange(len(chosen)), level.feature]
            level.threshold[barred] = NOWHERE
            level.masked[barred] = False
        level.mask[np.arange(len(chosen)), level.threshold] = level.masked
        return level
