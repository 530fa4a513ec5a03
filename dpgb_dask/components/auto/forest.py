"""The stage `Forest`: totally random trees on top of the additive model (stage 4 of the default method)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.answers import Sums, sums
from dpgb_dask.components.auto import schedules
from dpgb_dask.components.auto.forest_scale import ForestScale
from dpgb_dask.components.auto.forest_slope import edges_of, numbers_of, slope_gradient, slope_of
from dpgb_dask.components.auto.newton import newton_steps
from dpgb_dask.components.auto.noise import ForestNoise
from dpgb_dask.components.auto.posterior import (
    AutoFacts,
    current_gradient,
    curvature_of,
    hess_of_rows,
    residual_query,
    round_price,
    split_of,
    steps,
    with_residual_scale,
)
from dpgb_dask.components.auto.random_splits import Places, draw_splits
from dpgb_dask.components.auto.strength import split_chance
from dpgb_dask.components.options import check_rate, check_whole
from dpgb_dask.components.prices import share_of
from dpgb_dask.contracts.model import MAX_BINS, Splits, TreeEnsemble, no_trees
from dpgb_dask.contracts.plan import Answer, Demand, Needs, Shape, Stage, State
from dpgb_dask.contracts.queries import ContributionSumsQuery, Query, ResidualQuery, TreeSumsQuery
from dpgb_dask.contracts.scores import added_by
from dpgb_dask.kernels.sides import BYTE_DEPTH

DRAWN = 8  # bytes that `draw_splits` takes per feature and node of a level
BOX = 1100  # bytes that a leaf's box takes while it is made (released/explain/boxes.py), measured at six levels


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ForestMemory:
    """The batches of trees grown so far.

    Parameters
    ----------
    round, rounds : int
    chosen : int
        Trees that the model had before.
    batch : int
        Trees per round.
    again : int
        Trees of a batch that begin as a chosen one.
    faster : float
        What the learning rate is multiplied by.
    price : int
    rescaled : bool
    chance : (n_features,) float64
        Of a feature to be split on.
    places : Places
    scale : ForestScale
        What the trees are multiplied by in the end.
    """

    round: int
    rounds: int
    chosen: int
    batch: int
    again: int
    faster: float
    price: int
    rescaled: bool
    chance: NDArray[np.float64]
    places: Places
    scale: ForestScale


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest(Stage):
    """Totally random trees in batches, on top of the additive model: splits are public, so only leaf sums cost budget.

    Parameters
    ----------
    rounds : int
    batch : int
        Trees per round, all on the same gradients. Rich data (`BudgetSplit.rich`) have up to three times as many
        rounds, by their signal; for a numeric target up to twice.
    depth : int or None
        None for 4, or 5 or 6 where the signal of rich data is strong. After chosen trees it is theirs.
    learning_rate : float
        For several classes, and where trees begin as chosen ones, it is 1.5 times this, and about as many trees come in
        1.5 times as many rounds.
    levels : int or None
        Groups into which the places divide a feature at most. None for 128, or 64 for several classes; for a quarter of
        that where there are more than a million rows.

    Notes
    -----
    After more than the fewest chosen trees, some of each batch begin as one of them, and are random below. When all are
    there, they are multiplied by what their rounds (`forest_scale.py`) and one more release (`forest_slope.py`) tell.
    Features with a monotonic constraint are not drawn: their interactions are those of `Pairs`.
    """

    rounds: int = constants.FOREST_ROUNDS
    batch: int = constants.FOREST_BATCH
    depth: int | None = None
    learning_rate: float = constants.FOREST_RATE
    levels: int | None = None

    gives = (ForestNoise,)
    uses = (AutoFacts,)
    is_random = True
    keeps_monotonic = True
    keeps_interactions = True
    adds_to = BYTE_DEPTH  # `ForestScale` names leaves by one byte
    estimator_options: ClassVar[Mapping[str, str]] = {"max_depth": "depth"}

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("rounds", self.rounds, 1, 10_000)
        check_whole("batch", self.batch, 1, 10_000)
        if self.depth is not None:
            check_whole("depth", self.depth, 1, self.adds_to)
        check_rate("learning_rate", self.learning_rate)
        if self.levels is not None:
            check_whole("levels", self.levels, 2, 255)

    @property
    def deepest(self) -> int:
        """Depth of the deepest trees that it grows."""
        return self.depth or constants.RICH_DEPTH

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask."""
        return TreeSumsQuery, ContributionSumsQuery, ResidualQuery

    def declare(self, shape: Shape) -> Demand:
        """Declare between nothing (the gate is closed) and the stage's share plus what earlier stages left."""
        numeric = shape.kind == "numeric"
        # bins and start come before, and the mean of a number after
        most = 0.95 if numeric else 1.0
        return Demand(0.0, most, self._most_rounds(np.inf, shape.kind) + 1 + numeric)

    def needs(self, shape: Shape, most_bins: Sequence[int]) -> Needs:
        """Return the memory of a batch's sums and splits; of all trees, with their leaves' boxes; of made-up rows."""
        leaves = 1 << self.deepest
        fast = self._most_rounds(np.inf, shape.kind) * self._batch_at(constants.FOREST_FASTER)
        n_trees = max(self._rounds_at(np.inf, shape.kind) * self.batch, fast)
        per_leaf = BOX + 32 * shape.n_scores  # a value and a gain, twice while trees are appended
        n_sums = 2 * shape.n_scores * self.batch * leaves
        # codes of the rows, and what is found of them
        made = constants.MADE_ROWS * (len(most_bins) + 80 * shape.n_scores)
        # of every feature, the places left to each node of the lowest level while splits are drawn
        drawn = DRAWN * self.batch * leaves // 2 * len(most_bins)
        # one to draw from and one in the trees for each place of categories; numeric features have MAX_BINS, and none
        levels = self._levels_at(0.0, shape.kind)
        masks = 2 * MAX_BINS * sum(min(most, levels) for most in most_bins if most < MAX_BINS)
        return Needs(n_sums=n_sums, held=n_trees * leaves * per_leaf + made + drawn + masks)

    def _levels_at(self, n_rows: float, kind: str) -> int:
        """Return into how many groups places divide a feature at most: fewer of many rows, as passes take longer."""
        if self.levels is not None:
            return self.levels
        finer = constants.FOREST_FINER if n_rows <= constants.FINER_ROWS else 1
        return finer * constants.TREE_LEVELS[kind]

    def _batch_at(self, faster: float) -> int:
        """Return the trees of a round."""
        return max(int(self.batch / faster), 1)

    def _rounds_at(self, signal: float, kind: str, faster: float = 1.0) -> int:
        """Return the number of rounds: a multiple of the option, where the data are rich or steps are fast."""
        root = float(np.sqrt(signal))
        usual = max(min(times * root, most) for times, most in constants.RICH_GROWTH)
        if kind == "numeric":
            usual *= constants.NUMERIC_ROUNDS
        return int(self.rounds * max(usual / constants.FOREST_ROUNDS, 1.0) * faster)

    def _most_rounds(self, signal: float, kind: str, *, after_chosen: bool = True) -> int:
        """Return the most rounds at a signal, given whether trees may be chosen before."""
        may_be_fast = after_chosen or kind == "multiclass"
        return self._rounds_at(signal, kind, constants.FOREST_FASTER if may_be_fast else 1.0)

    def most_queries(self, state: State) -> int:
        """Return the most queries that it asks: none if the gate is closed."""
        split = split_of(state)
        if split is None:
            return self.declare(state.shape).n_queries
        kind = state.shape.kind
        if not split.forest:
            return 0
        most = self._most_rounds(split.signal, kind, after_chosen=split.chosen > 0)
        return most + 1 + (kind == "numeric")

    def brief(self) -> Self:
        """Return the stage with two rounds, for tests."""
        return replace(self, rounds=2)

    def begin(self, state: State) -> State:
        """Start with all of the budget that is left, if the gate is open."""
        assert state.model is not None
        found = state.fact(AutoFacts)
        if found.split.forest == 0:
            return state
        numeric = state.shape.kind == "numeric"
        price = state.left - (found.start_price if numeric else 0) - found.mean_price
        model = state.model
        if not model.trees.n_trees:
            usual = schedules.forest_depth(found.split.signal)
            trees = no_trees(self.depth or usual, state.shape.n_scores)
            model = replace(model, trees=trees)
        chosen = model.trees.n_trees
        # trees of another stage need not keep together with random splits below them
        free = state.shape.interactions is None and state.shape.directions is None
        fewer = self._batch_at(constants.FOREST_FASTER)
        fast = state.shape.kind == "multiclass" or (free and trees_again(chosen, fewer) > 0)
        faster, batch = (constants.FOREST_FASTER, fewer) if fast else (1.0, self.batch)
        memory = ForestMemory(
            round=0,
            rounds=self._rounds_at(found.split.signal, state.shape.kind, faster),
            chosen=chosen,
            batch=batch,
            again=trees_again(chosen, batch) if free else 0,
            faster=faster,
            price=price,
            rescaled=not numeric,
            chance=split_chance(state),
            places=Places.of(state, self._levels_at(state.n_rows, state.shape.kind)),
            scale=ForestScale.begin(state, state.rng.stream("forest scale")),
        )
        return replace(state, model=model, memory=memory)

    def next_query(self, state: State) -> Query | None:
        """Ask for the residual scale, then the leaf sums of the next batch of random trees, last for their slope."""
        memory: ForestMemory | None = state.memory
        if memory is None or memory.round > memory.rounds:
            return None
        if not memory.rescaled:
            return residual_query(state, "forest scale")
        of_slope = share_of(memory.price, constants.SLOPE_SHARE)
        asked: dict[str, Any] = {
            "weight_bits": state.shape.weight_bits,
            "n_scores": state.shape.n_scores,
        }
        if memory.round == memory.rounds:
            assert state.model is not None
            trees = state.model.trees
            numbers = numbers_of(trees, memory.chosen, state.n_rows)
            edges = edges_of(added_by(trees.only(numbers), memory.scale.codes))
            return ContributionSumsQuery(
                label="forest slope", price=of_slope, gradient=slope_gradient(state), trees=numbers, edges=edges,
                **asked,
            )  # fmt: skip
        return TreeSumsQuery(
            label=f"forest {memory.round + 1}/{memory.rounds}",
            price=round_price(memory.price - of_slope, memory.round, memory.rounds),
            splits=self._draw(state, state.rng.stream("forest", memory.round)),
            gradient=current_gradient(state),
            **asked,
        )

    def _draw(self, state: State, rng: np.random.Generator) -> Splits:
        """Draw random splits: features mostly by their released strength, places by rows and effects.

        Some trees begin as a chosen one, the chosen ones in turn.
        """
        assert state.model is not None
        memory: ForestMemory = state.memory
        trees, first = state.model.trees.splits, None
        if memory.again:
            turn = memory.round * memory.again + np.arange(memory.again)
            first = trees.only(turn % memory.chosen)
        return draw_splits(
            memory.chance, memory.places, memory.batch, trees.depth, rng, first, state.shape.interactions
        )  # fmt: skip

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Turn noisy leaf sums into shrunken Newton steps, and append the trees."""
        memory: ForestMemory = state.memory
        if isinstance(query, ResidualQuery):
            clip_at = constants.CHOSEN_QUANTILE if memory.chosen else constants.RESIDUAL_QUANTILE
            state = with_residual_scale(state, query, released, clip_at)
            return replace(state, memory=replace(memory, rescaled=True))
        if isinstance(query, ContributionSumsQuery):
            return self._rescale(state, query, sums(query, released))
        assert isinstance(query, TreeSumsQuery)
        assert state.model is not None
        answer = sums(query, released)
        hess, sd = np.maximum(answer.hess, 0), answer.grad_sd
        ridge = constants.FOREST_RIDGE * answer.hess_sd
        rate = self.learning_rate * memory.faster * curvature_of(state.shape.kind)
        largest = constants.LARGEST_LEAF

        def per_leaf(values: NDArray[np.float64]) -> NDArray[np.float64]:
            return values.T.reshape(state.shape.n_scores, memory.batch, -1)

        def moved(step: NDArray[np.float64]) -> NDArray[np.int32]:
            return steps(per_leaf(rate * np.clip(step, -largest, largest)))

        def values(grad: NDArray[np.float64]) -> NDArray[np.int32]:
            return moved(newton_steps(grad, hess, ridge)[0])

        step, reach = newton_steps(answer.grad, hess, ridge)
        value = moved(step)
        noise = ForestNoise(
            gain=per_leaf(np.where(np.abs(step) >= largest, 0, rate * reach)),
            grad_sd=(sd,) * memory.batch,
            hess=hess_of_rows(state),
            batches=(memory.batch,),
            scales=(1.0,),
        ).after(state)
        trees = state.model.trees
        trees = trees.with_more(query.splits.sharing(trees.splits.masks), value)
        # short trees ask for more than long ones: the second half of the rounds tells of all
        late = memory.round >= memory.rounds // 2
        scale = memory.scale.after(state, query.splits, answer, value, values, counts=late)
        model = replace(state.model, trees=trees)
        memory = replace(memory, round=memory.round + 1, scale=scale)
        return replace(state, model=model, memory=memory).with_fact(noise)

    def _rescale(self, state: State, query: ContributionSumsQuery, answer: Sums) -> State:
        """Multiply the trees by what rows, and later leaves, say of their length."""
        memory: ForestMemory = state.memory
        assert state.model is not None
        factor = self._factor(state, query, answer)
        trees = scaled(state.model.trees, memory.chosen, factor)
        model = replace(state.model, trees=trees)
        noise = state.fact(ForestNoise).scaled(memory.rounds, factor)
        memory = replace(memory, round=memory.round + 1)
        return replace(state, model=model, memory=memory).with_fact(noise)

    def _factor(self, state: State, query: ContributionSumsQuery, answer: Sums) -> float:
        memory: ForestMemory = state.memory
        by_leaves = memory.scale.factor()
        return slope_of(state, memory.scale, query, answer).factor(by_leaves)


def scaled(trees: TreeEnsemble, start: int, factor: float) -> TreeEnsemble:
    """Return trees with the leaves of those from ``start`` on multiplied by a factor."""
    value = trees.value.copy()
    value[:, start:] = np.rint(value[:, start:] * factor)
    return replace(trees, value=value)


def trees_again(chosen: int, batch: int) -> int:
    """Return how many trees of a batch begin as a chosen one: the more, the more of these were worth their price."""
    more = max(chosen - constants.AGAIN_BEYOND, 0)
    return min(-(-more * batch // constants.CHOSEN_AGAIN), batch // 2)
