"""The stage `ChosenTrees`: boosted trees whose splits are chosen, one charge a level (docs/default-method.md §4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.answers import Sums, sums
from dpgb_dask.components.auto import schedules
from dpgb_dask.components.auto.levels import levels_of
from dpgb_dask.components.auto.noise import ForestNoise
from dpgb_dask.components.auto.posterior import (
    AutoFacts,
    current_gradient,
    curvature_of,
    hess_of_rows,
    hess_of_trees,
    large_step,
    prior_scales,
    residual_query,
    round_price,
    sampling_variance,
    split_of,
    steps,
    with_residual_scale,
)
from dpgb_dask.components.auto.random_splits import weights_between
from dpgb_dask.components.auto.strength import split_chance
from dpgb_dask.components.options import check_rate, check_whole
from dpgb_dask.components.prices import share_of
from dpgb_dask.components.trees.splits import LevelSplits, grow, root
from dpgb_dask.contracts.model import Splits, no_trees
from dpgb_dask.contracts.plan import Answer, Demand, Shape, Stage, State
from dpgb_dask.contracts.queries import (
    SLOPE_BITS,
    Query,
    ResidualQuery,
    SharedChoiceQuery,
    TreeSumsQuery,
)
from dpgb_dask.kernels.sides import BYTE_DEPTH

# of all candidates, but for one more of each: so many proposals are made at most, on the average
ODDS_ONE = 1 << 20


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ChosenMemory:
    """The trees so far, and the one that grows.

    Parameters
    ----------
    n_trees, depth, n_groups : int
        As the signal allows.
    tree : int
        Number of the tree that grows; ``n_trees`` when there is none.
    splits : Splits
        Of this tree, as deep as it is.
    slope : (n_nodes, n_scores) int64, or None
        Of the nodes of its lowest level; None until it is released.
    gains : tuple of float
        What each tree gained, by its released leaf sums.
    rescaled : bool
    features : (n_used,) uint16
        That can be split.
    level_of_bin : tuple of ((n_bins,) uint8)
        Their levels: bins in order, and categories in the order of their released effects.
    chance : (n_used,) float64
        Of each of them to be split, before any tree.
    places : tuple of ((n_levels - 1,) float64)
        Of each place between its levels, if the feature is.
    """

    n_trees: int
    depth: int
    n_groups: int
    tree: int
    splits: Splits
    slope: NDArray[np.int64] | None
    gains: tuple[float, ...]
    rescaled: bool
    features: NDArray[np.uint16]
    level_of_bin: tuple[NDArray[np.uint8], ...]
    chance: NDArray[np.float64]
    places: tuple[NDArray[np.float64], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTrees(Stage):
    """Trees one after the other, whose splits are chosen by the exponential mechanism on sums of absolute values.

    Parameters
    ----------
    trees : int
        The most trees; there are fewer where the signal is weak or nothing is left to find.
    depth : int
        The largest depth.
    learning_rate : float
    levels : int or None
        Levels per feature between which it can be split; they divide its noisy mass evenly. None for 32, or 16 for
        several classes.

    Notes
    -----
    A level of a tree costs one charge, whatever the number of features, thresholds and nodes (docs/privacy.md P6).
    Where several nodes share a split, they keep the signal of all their rows against this one charge. Before the rows
    are asked, splits are likely by what main effects and the trees so far tell, which costs nothing.
    """

    trees: int = constants.MOST_CHOSEN
    depth: int = constants.RICH_DEPTH
    learning_rate: float = constants.CHOSEN_RATE
    levels: int | None = None

    gives = (ForestNoise,)
    uses = (AutoFacts,)
    keeps_monotonic = True  # it does not run under these constraints
    keeps_interactions = True
    estimator_options: ClassVar[Mapping[str, str]] = {"n_estimators": "trees", "max_depth": "depth"}

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("trees", self.trees, 1, 10_000)
        check_whole("depth", self.depth, 1, BYTE_DEPTH)
        check_rate("learning_rate", self.learning_rate)
        if self.levels is not None:
            check_whole("levels", self.levels, 2, 255)

    @property
    def deepest(self) -> int:
        """Depth of the deepest trees that it grows."""
        return self.depth

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask."""
        return SharedChoiceQuery, TreeSumsQuery, ResidualQuery

    def declare(self, shape: Shape) -> Demand:
        """Declare between nothing, where the signal is too weak, and its share of what the main effects leave."""
        most = (1 - constants.LEAST_MAIN) * constants.CHOSEN_SHARE[shape.kind]
        return Demand(0.0, most, self._queries_of(self.trees))

    def most_queries(self, state: State) -> int:
        """Return the most queries that it asks: none if the signal is too weak."""
        split = split_of(state)
        if split is None:
            return self.declare(state.shape).n_queries
        return self._queries_of(self._trees_at(state, split.signal)) if split.chosen else 0

    def _queries_of(self, n_trees: int) -> int:
        """Return the most queries that trees ask: two a level, and once for the residual scale."""
        return 2 * self.depth * n_trees + 1

    def _trees_at(self, state: State, signal: float) -> int:
        """Return the most trees at a signal."""
        return min(schedules.chosen_trees(state.shape.kind, signal, state.n_rows), self.trees)

    def brief(self) -> Self:
        """Return the stage with one tree of two levels, for tests."""
        return replace(self, trees=1, depth=2)

    def begin(self, state: State) -> State:
        """Choose number and depth of the trees, if the signal is strong enough."""
        assert state.model is not None
        found = state.fact(AutoFacts)
        if found.split.chosen == 0:
            return state
        tables = zip(state.counts, state.model.bins, state.model.tables, strict=True)
        n_levels = self.levels or constants.TREE_LEVELS[state.shape.kind]
        levels = [levels_of(bins, mass, table, n_levels) for mass, bins, table in tables]
        used = [j for j, level_of_bin in enumerate(levels) if level_of_bin.any()]
        if not used:
            return state
        signal = found.split.signal
        rows = state.n_rows / state.shape.max_weight * hess_of_trees(state)
        leaves = min(rows / constants.CHOSEN_LEAF, signal / constants.CHOSEN_LEAF_SIGNAL)
        depth = _power_of_two(leaves).bit_length() - 1
        memory = ChosenMemory(
            n_trees=self._trees_at(state, signal),
            depth=min(max(depth, constants.CHOSEN_LEAST_DEPTH), self.depth),
            n_groups=min(constants.CHOSEN_GROUPS, _power_of_two(signal / constants.GROUP_SIGNAL)),
            tree=0,
            splits=root(),
            slope=np.zeros((1, state.shape.n_scores), np.int64),
            gains=(),
            rescaled=state.shape.kind != "numeric",
            features=np.array(used, np.uint16),
            level_of_bin=tuple(levels[j] for j in used),
            chance=_chance(state, used),
            places=tuple(_places(state, j, levels[j]) for j in used),
        )
        model = replace(state.model, trees=no_trees(self.depth, state.shape.n_scores))
        return replace(state, model=model, memory=memory)

    def next_query(self, state: State) -> Query | None:
        """Ask for the residual scale; then, level by level, for the nodes' sums and the splits; then for the leaves."""
        memory: ChosenMemory | None = state.memory
        if memory is None or memory.tree >= memory.n_trees:
            return None
        if not memory.rescaled:
            return residual_query(state, "chosen scale")
        at = memory.splits.depth
        told = f"chosen tree {memory.tree + 1}/{memory.n_trees}"
        asked: dict[str, Any] = {
            "weight_bits": state.shape.weight_bits,
            "gradient": current_gradient(state),
            "n_scores": state.shape.n_scores,
            "splits": memory.splits,
        }
        whole = round_price(state.fact(AutoFacts).split.chosen, memory.tree, memory.n_trees)
        choice = share_of(whole, constants.CHOSEN_CHOICE_SHARE / memory.depth)
        centre = share_of(whole, constants.CHOSEN_CENTRE_SHARE / max(memory.depth - 1, 1))
        if at == memory.depth:
            left = whole - memory.depth * choice - (memory.depth - 1) * centre
            return TreeSumsQuery(label=f"{told}: leaves", price=left, **asked)
        if memory.slope is None:
            return TreeSumsQuery(label=f"{told}: nodes {at}", price=centre, **asked)
        return SharedChoiceQuery(
            label=f"{told}: splits {at + 1}",
            price=choice,
            features=memory.features,
            sizes=tuple(map(len, memory.level_of_bin)),
            level_of_bin=memory.level_of_bin,
            n_levels=tuple(int(part.max()) + 1 for part in memory.level_of_bin),
            slope=memory.slope,
            n_groups=min(1 << at, memory.n_groups),
            odds=_odds(state, memory),
            **asked,
        )

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Set the scale, add a level to the tree, set its nodes' slopes, or add the tree to the model."""
        memory: ChosenMemory = state.memory
        if isinstance(query, ResidualQuery):
            state = with_residual_scale(state, query, released, constants.CHOSEN_QUANTILE)
            return replace(state, memory=replace(memory, rescaled=True))
        if isinstance(query, SharedChoiceQuery):
            level = _level(query, released.value)
            splits = grow(memory.splits, level)
            return replace(state, memory=replace(memory, splits=splits, slope=None))
        assert isinstance(query, TreeSumsQuery)
        answer = sums(query, released)
        if query.splits.depth < memory.depth:
            slope = _slopes(state, answer, query.gradient.hess_scale)
            return replace(state, memory=replace(memory, slope=slope))
        return self._add_tree(state, answer)

    def _add_tree(self, state: State, answer: Sums) -> State:
        """Add the tree with its leaves, as deep as all trees of the model; stop if the last ones gained too little."""
        memory: ChosenMemory = state.memory
        assert state.model is not None
        step, reach = leaf_steps(state, answer, memory.depth)
        slower = schedules.chosen_rate(state.fact(AutoFacts).split.signal, memory.n_trees)
        rate = self.learning_rate * slower * curvature_of(state.shape.kind)
        value = rate * np.clip(step, -constants.LARGEST_LEAF, constants.LARGEST_LEAF)
        repeat = 1 << (self.depth - memory.depth)

        def of_tree(per_leaf: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.repeat(per_leaf, repeat, axis=0).T[:, None]

        trees = state.model.trees.with_more(
            deepened(memory.splits, self.depth), steps(of_tree(value))
        )
        gains = (*memory.gains, _gain(state, answer))
        # the gain of one tree varies as much as it is large
        recent = gains[-max(constants.CHOSEN_PATIENCE, len(gains) // 2) :]
        ends = (
            len(gains) >= constants.CHOSEN_PATIENCE
            and memory.n_trees * float(np.mean(recent)) < constants.CHOSEN_LEAST_GAIN
        )
        noise = ForestNoise(
            gain=of_tree(rate * reach),
            grad_sd=(answer.grad_sd,),
            hess=hess_of_rows(state),
            batches=(1,),
            scales=(1.0,),
        )
        memory = replace(
            memory,
            tree=memory.n_trees if ends else memory.tree + 1,
            splits=root(),
            slope=np.zeros((1, state.shape.n_scores), np.int64),
            gains=gains,
        )
        state = replace(state, model=replace(state.model, trees=trees), memory=memory)
        return state.with_fact(noise.after(state))


def _power_of_two(most: float) -> int:
    """Return the largest power of two that is at most ``most``, and at least 1."""
    return 1 << (max(int(most), 1).bit_length() - 1)


def _chance(state: State, used: Sequence[int]) -> NDArray[np.float64]:
    """Return how likely a split is on each feature before any tree: partly alike, partly by strength."""
    strong, even = split_chance(state)[used], constants.CHOSEN_EVEN
    return even / len(used) + (1 - even) * strong / strong.sum()


def _places(state: State, j: int, level_of_bin: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return how likely a split of a feature is at each place between its levels, by rows and effects."""
    assert state.model is not None
    mass, table = np.maximum(state.counts[j], 1e-9), state.model.tables[j]
    rows = np.bincount(level_of_bin, mass).astype(np.float64)
    effect = [np.bincount(level_of_bin, mass * of_score) / rows for of_score in table.T]
    weight = weights_between(rows, np.stack(effect, axis=1), 1.0, missing_last=False)
    return weight / weight.sum()


def _odds(state: State, memory: ChosenMemory) -> NDArray[np.int64]:
    """Return the odds of the candidates: of a feature, by its splits in the trees so far, and some before any tree."""
    assert state.model is not None
    splits = state.model.trees.splits
    counts = np.bincount(splits.feature[splits.splitting], minlength=len(state.model.bins))
    seen = counts[memory.features]
    likely = seen + constants.CHOSEN_ODDS * memory.chance
    each = zip(likely / likely.sum(), memory.places, strict=True)
    share = np.concatenate([of_feature * places for of_feature, places in each])
    return 1 + (share * ODDS_ONE).astype(np.int64)


def _level(query: SharedChoiceQuery, chosen: NDArray[np.int64]) -> LevelSplits:
    """Return the splits of a level from the choices of its groups."""
    feature, cut = query.candidates
    level = LevelSplits.unsplit(query.splits.n_leaves)
    for k, pick in enumerate(np.repeat(chosen, len(level.feature) // query.n_groups)):
        j = int(feature[pick])
        level.set(k, int(query.features[j]), query.level_of_bin[j] > cut[pick])
    return level


def _spread(state: State) -> NDArray[np.float64]:
    """Return the Σh that a released sum over all rows would have, per score."""
    return np.asarray(state.fact(AutoFacts).totals.hess) * state.n_rows


def _slopes(state: State, answer: Sums, hess_scale: float) -> NDArray[np.int64]:
    """Return the shrunk Newton steps of every node, in steps of the query: what its gradients have in common."""
    grad, hess, n = answer.grad, answer.hess, len(answer.grad)
    expected = _spread(state) / n
    largest = constants.CHOSEN_SLOPE * large_step(state)
    noise = answer.grad_sd**2 + sampling_variance(state) * np.maximum(hess, 0.1 * expected)
    hess = np.maximum(hess, 0.3 * expected) + 0.5 * answer.hess_sd
    signal = constants.CHOSEN_NODE_SD**2 * hess**2
    slope = np.clip(grad / hess * signal / (signal + noise), -largest, largest)
    return np.rint(slope / hess_scale * (1 << SLOPE_BITS)).astype(np.int64)


def _gain(state: State, answer: Sums) -> float:
    """Return how much a tree lowers the loss of a row by its released leaf sums, less what noise and chance seem to."""
    grad, hess = answer.grad, answer.hess
    hess = np.maximum(hess, 0.2 * _spread(state) / len(hess))
    chance = constants.CHOSEN_OPTIMISM * sampling_variance(state) * hess
    gain = (grad**2 - answer.grad_sd**2 - chance) / (2 * hess)
    return float(gain.sum() / state.n_rows / large_step(state) ** 2)


def leaf_steps(
    state: State, answer: Sums, depth: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the posterior means of the leaves of a tree, and how far each moves against a unit of its noise.

    The prior is of random effects on every level: leaves that part late are alike. Its scale, and how fast the effects
    fall with depth, are averaged by their evidence.

    Returns
    -------
    step : (n_leaves, n_scores) float64, score units
    reach : (n_leaves, n_scores) float64
        Score units per unit of Σg.
    """
    parts = [_steps_of_score(state, answer, k, depth) for k in range(state.shape.n_scores)]
    step, reach = zip(*parts, strict=True)
    return np.stack(step, axis=1), np.stack(reach, axis=1)


def _steps_of_score(
    state: State, answer: Sums, k: int, depth: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return `leaf_steps` of one score."""
    grad, hess = answer.grad[:, k], answer.hess[:, k]
    expected = _spread(state)[k] / len(grad)
    # a noisy Σh shrinks to what the leaf would have if all leaves were alike
    own = expected**2 / (expected**2 + answer.hess_sd**2)
    hess = np.maximum(own * hess + (1 - own) * expected, max(0.1 * expected, 0.25 * answer.hess_sd))
    variance = (answer.grad_sd**2 + sampling_variance(state) * hess) / hess**2
    weight = 1 / np.sqrt(variance)
    target = -grad / hess * weight
    evidence, maps = [], []
    scales = prior_scales(state) ** 2
    for kernel in level_kernels(depth):
        values, vectors = np.linalg.eigh(weight[:, None] * kernel * weight)
        values = np.maximum(values, 0)
        q = vectors.T @ target
        spread = 1 + scales[:, None] * values
        evidence.append(-0.5 * (np.log(spread) + q * q / spread).sum(1))
        maps.append((scales[:, None] * values / spread, vectors))
    odds = np.exp(np.array(evidence) - np.max(evidence))
    odds /= odds.sum()
    step, reach = np.zeros(len(grad)), np.zeros(len(grad))
    for own_odds, (shrink, vectors) in zip(odds, maps, strict=True):
        mean = own_odds @ shrink
        step += vectors @ (mean * (vectors.T @ target))
        reach += (vectors**2) @ mean
    return step / weight, reach / hess


@lru_cache
def level_kernels(depth: int) -> tuple[NDArray[np.float64], ...]:
    """Return prior covariances of leaves, (n_leaves, n_leaves) with ones on the diagonal, one for each decay.

    Two leaves share the effects of the levels above the node where they part; the effect of a level has a share of the
    variance that falls with depth.
    """
    leaf = np.arange(1 << depth)
    parts = leaf[:, None] ^ leaf
    shared = depth - np.where(parts > 0, np.floor(np.log2(np.maximum(parts, 1))) + 1, 0).astype(int)
    kernels = []
    for decay in constants.CHOSEN_DECAYS:
        share = decay ** np.arange(1, depth + 1)
        kernels.append(np.concatenate([[0], np.cumsum(share / share.sum())])[shared])
    return tuple(kernels)


def deepened(splits: Splits, depth: int) -> Splits:
    """Return trees with more levels, which send every row left."""
    while splits.depth < depth:
        splits = grow(splits, LevelSplits.unsplit(splits.n_leaves))
    return splits
