"""The stage `Trees`: boosted trees made of parts: candidates, split, leaf, features, rows and budget.

The methods of FDP-GBDT (Maddock et al. 2022, algorithm 1 and table 1), DPBoost, DP-XGBoost and DP-EBM are instances of
it. Each query costs a whole number of units: a histogram of one feature, a choice, and the leaf sums of one tree cost
one unit each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.answers import natural, step_of, sums
from dpgb_dask.components.options import check_decay, check_positive, check_rate, check_whole
from dpgb_dask.components.prices import share_of
from dpgb_dask.components.trees.budgets import BudgetView, Even, Kappa, Pricing, Shares
from dpgb_dask.components.trees.candidates import IterativeHessian, Sketch, all_cuts
from dpgb_dask.components.trees.leaves import (
    GradientStep,
    Leaf,
    LeafSums,
    NewtonStep,
    Step,
)
from dpgb_dask.components.trees.reach import Reach
from dpgb_dask.components.trees.sampling import (
    AllFeatures,
    AllRows,
    Cyclic,
    Ensembles,
    PoissonRows,
    RandomFeatures,
)
from dpgb_dask.components.trees.splits import (
    Candidates,
    ExponentialSplit,
    Frontier,
    HistogramSplit,
    LevelSplits,
    NodeHistogram,
    PartiallyRandom,
    TotallyRandom,
    grow,
    root,
)
from dpgb_dask.contracts.constraints import Interactions
from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.model import MAX_BINS, SCORE_ONE, Model, Splits, join_splits, no_trees
from dpgb_dask.contracts.monotone import ordered_leaves, ordered_table
from dpgb_dask.contracts.plan import Answer, Budget, Demand, Needs, Shape, Stage, State
from dpgb_dask.contracts.queries import (
    ChoiceQuery,
    GradientQuery,
    NodeSumsQuery,
    Query,
    TreeSumsQuery,
    checked_splits,
    told_splits,
)
from dpgb_dask.contracts.spending import Item, amplified
from dpgb_dask.errors import PlanError
from dpgb_dask.frozen import pieces, replaced
from dpgb_dask.kernels.leaf_steps import leaf_steps, with_leaves
from dpgb_dask.kernels.route import MAX_DEPTH, leaves_of_codes
from dpgb_dask.losses import Gradient, check_gradient

# the classes that each part may have. The stage tells splits, candidates, features and rows apart by class, because
# their queries differ in kind and time; a subclass makes the same queries as its base
PARTS: dict[str, tuple[type, ...]] = {
    "leaf": (Leaf,),
    "budget": (Pricing,),
    "split": (TotallyRandom, PartiallyRandom, HistogramSplit, ExponentialSplit),
    "candidates": (type(None), IterativeHessian, Sketch),
    "features": (AllFeatures, Cyclic, RandomFeatures),
    "rows": (AllRows, PoissonRows, Ensembles),
}
OPENED = 64  # bytes that a sum takes from its opening to the decision: noise, floats, gains
NOT_DRAWN = np.random.default_rng(0)  # for features that are not drawn at random
NOT_COUNTED = np.empty(0)  # rows of leaves, where the answer holds what stands for them
# feature of every tree, and the leaf of each of its bins; empty unless every tree has one feature
Where = tuple[tuple[int, NDArray[np.uint16]], ...]
AHEAD = 1 << 9  # nodes of the random trees that are drawn at once; another number gives other trees
# bytes that a node of random trees takes: a mask where it splits categories, and copies of it
MASKED = 4 * MAX_BINS
MOST_UNITS = 10**7  # the lowest price of a fit, divided by this number, still pays for one unit


class Drawn(NamedTuple):
    """A batch of trees that were drawn at random before their turn.

    Parameters
    ----------
    splits : Splits
    where : Where
    rows : (n_trees, 2**depth) float64, or None
        Noisy rows of each leaf, from the released bins; None unless the leaf rule counts so.
    """

    splits: Splits
    where: Where
    rows: NDArray[np.float64] | None


class Growing(NamedTuple):
    """Memory of the stage.

    Parameters
    ----------
    tree : int
        Number of finished trees, including those of the current batch.
    n_trees : int
        Number of trees in the end.
    total : int
        Price of the whole stage.
    kappa : Kappa
        Units that the whole stage costs.
    gradient : Gradient
        Of the leaves, over all scores.
    missing, interactions
        As in `Candidates`.
    cuts : tuple of ((n_cuts,) uint8)
        Candidate thresholds per feature.
    refined : int
        Number of refinements before the current batch.
    splits : Splits
        The tree that is growing.
    sketched : bool
        Whether the growing tree has its candidates from a sketch.
    pending : tuple of (Splits, value, Where)
        Finished trees of the current batch. They share one gradient, so they are added to the model together.
    seen : tuple of (feature, (n_bins,) float64)
        Noisy Hessians at the root of the last tree; they refine the candidates at no cost.
    reach : Reach
        Scores that the model can reach, on which the next gradient is taken.
    drawn : tuple of Drawn
        The next batches of trees that need no rows to be drawn; at least one once their candidates are final.
    """

    tree: int
    n_trees: int
    total: int
    kappa: Kappa
    gradient: Gradient
    missing: tuple[bool, ...]
    interactions: Interactions | None
    cuts: tuple[NDArray[np.uint8], ...]
    refined: int
    splits: Splits
    sketched: bool
    pending: tuple[tuple[Splits, NDArray[np.int32], Where], ...]
    reach: Reach
    seen: tuple[tuple[int, NDArray[np.float64]], ...] = ()
    drawn: tuple[Drawn, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees(Stage):
    """Boosted trees.

    Parameters
    ----------
    n_trees : int
        Number of trees; per feature if ``per_feature``.
    per_feature : bool
    depth : int
    split : TotallyRandom, PartiallyRandom, HistogramSplit or ExponentialSplit
    leaf : Leaf
        NewtonStep, GradientStep, BinCountStep, Averaging or a leaf rule of your own.
    candidates : None, IterativeHessian or Sketch
        None means all edges of the bins.
    features : AllFeatures, Cyclic or RandomFeatures
    rows : AllRows, PoissonRows or Ensembles
    batch : int or float
        Number of trees that share one gradient; as a float in (0, 1], their share of all trees. The mean of a batch is
        added to the model (FDP-GBDT §5.2).
    budget : Pricing
        How the price is divided among the queries: Even, Shares, Classic, Local or a rule of your own.
    share : float
        Share of the budget that is left when the stage begins.
    leaf_decay : float
        The leaves of tree t of an ensemble are clipped at (1 - leaf_decay)^t times the bound (DPBoost's geometric leaf
        clipping); 0 for no decay.
    least_weight : float
        A leaf whose noisy sum of Hessians is lower takes the value of the smallest subtree around it that reaches this
        sum (DP-XGBoost's min_child_weight, on noisy sums).
    reachable : bool
        Whether a row's gradient is bounded over the scores that the released model can reach, instead of over all
        scores: the same gradients, and less noise (docs/privacy.md P1).

    Raises
    ------
    PlanError
        If the parts cannot be combined.
    """

    n_trees: int = 100
    per_feature: bool = False
    depth: int = 4
    split: TotallyRandom | PartiallyRandom | HistogramSplit | ExponentialSplit = field(
        default_factory=TotallyRandom
    )
    leaf: Leaf = field(default_factory=NewtonStep)
    candidates: IterativeHessian | Sketch | None = None
    features: AllFeatures | Cyclic | RandomFeatures = field(default_factory=AllFeatures)
    rows: AllRows | PoissonRows | Ensembles = field(default_factory=AllRows)
    batch: int | float = 1
    budget: Pricing = field(default_factory=Even)
    share: float = 1.0
    leaf_decay: float = 0.0
    least_weight: float = 0.0
    reachable: bool = True

    keeps_monotonic = True
    keeps_interactions = True
    estimator_options: ClassVar[Mapping[str, str]] = {
        "n_estimators": "n_trees",
        "max_depth": "depth",
    }

    def __post_init__(self) -> None:
        """Check the options, and that the parts can be combined."""
        self._check_parts()
        check_whole("n_trees", self.n_trees, 1, 100_000)
        check_whole("depth", self.depth, 1, MAX_DEPTH)
        check_rate("share", self.share)
        check_decay("leaf_decay", self.leaf_decay)
        if self.least_weight:
            check_positive("least_weight", self.least_weight)
        if isinstance(self.batch, float):
            check_rate("batch", self.batch)
        else:
            check_whole("batch", self.batch, 1, 100_000)
        if self.leaf.counts_bins and self.features.n_used(2) != 1:
            raise PlanError(
                f"leaf={self.leaf!r} serves trees of one feature: give features=Cyclic(k=1), or another leaf."
            )
        if self.leaf.counts_bins and self.split.asks:
            raise PlanError(
                f"leaf={self.leaf!r} has no sums to split by: give split=TotallyRandom()."
            )
        if self.leaf.counts_bins and self.candidates is not None:
            raise PlanError(
                f"leaf={self.leaf!r} needs the released bins as they are: leave candidates=None."
            )
        if self.split.chooses and not isinstance(self.leaf, NewtonStep | GradientStep):
            raise PlanError(
                "split=ExponentialSplit chooses by sums of gradients: give leaf=NewtonStep() or GradientStep()."
            )
        if isinstance(self.candidates, IterativeHessian) and self.row_draw is not None:
            raise PlanError("candidates=IterativeHessian asks all rows: give rows=AllRows().")
        if isinstance(self.candidates, Sketch) and not self.split.chooses:
            raise PlanError(
                "candidates=Sketch is made for trees that choose: give split=ExponentialSplit()."
            )
        if self.leaf_decay and not isinstance(self.rows, Ensembles):
            raise PlanError("leaf_decay counts trees of an ensemble: give rows=Ensembles(...).")
        if self.leaf_decay and not isinstance(self.leaf, Step):
            raise PlanError(f"leaf_decay clips steps: leaf={self.leaf!r} takes none.")
        self._check_budget()

    def _check_parts(self) -> None:
        """Check that every part has a class that its option allows."""
        for part, kinds in PARTS.items():
            given = getattr(self, part)
            if not isinstance(given, kinds):
                names = ", ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
                raise PlanError(
                    f"{part}={given!r} is no part of trees that they know: give one of {names}, or what inherits from"
                    " it."
                )

    def _check_budget(self) -> None:
        """Check that every query has a price."""
        if not isinstance(self.budget, Shares):
            if self.row_draw is not None and self.candidates is not None:
                raise PlanError(
                    "candidates on drawn rows: give budget=Shares(...), what they may cost."
                )
            if self.row_draw is not None and not self.budget.serves_draws:
                raise PlanError(f"budget={self.budget!r} is for all rows: give rows=AllRows().")
            return
        asked = {
            "candidates": self.candidates is not None,
            "splits": self.split.asks,
            "leaves": not self.split.gives_leaves,
        }
        for part, needed in asked.items():
            if needed and getattr(self.budget, part) < 1e-6:
                raise PlanError(
                    f"budget={self.budget!r}: {part} are asked for, so their share is at least 1e-6."
                )

    # ---- what a plan asks of a stage

    @property
    def deepest(self) -> int:
        """Depth of the deepest trees that it grows."""
        return self.depth

    @property
    def is_random(self) -> bool:
        """Whether splits or features are drawn at random."""
        return self.split.is_random or self.features.is_random

    @property
    def refines_bins(self) -> bool:
        """Whether candidate refinement changes the bins."""
        return self.candidates is not None and self.candidates.refines_bins

    @property
    def row_draw(self) -> str | None:
        """Kind of the secret draw of rows for a tree; None if all rows serve it."""
        return self.rows.kind

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask; totally random trees ask for the sums of their leaves alone."""
        if self.split.asks or self.leaf.counts_bins or self.candidates is not None:
            asked = TreeSumsQuery, NodeSumsQuery
            return (*asked, ChoiceQuery) if self.split.chooses else asked
        return (TreeSumsQuery,)

    def brief(self) -> Self:
        """Return the stage with few, shallow trees, for tests; nothing else changes."""
        n_trees, depth = (2, 2) if self.split.asks else (4, 3)  # a drawn tree needs one query
        return replace(
            self,
            n_trees=n_trees,
            per_feature=False,
            depth=min(depth, self.depth),
            candidates=None if self.candidates is None else self.candidates.brief(),
            rows=self.rows.brief(),
        )

    # ---- counts and prices

    def trees_in_all(self, shape: Shape) -> int:
        """Return the number of trees."""
        return self.n_trees * (shape.n_features if self.per_feature else 1)

    def batch_size(self, n_trees: int) -> int:
        """Return how many trees share one gradient."""
        size = int(np.ceil(self.batch * n_trees)) if isinstance(self.batch, float) else self.batch
        return min(size, n_trees)

    def _refinements(self, shape: Shape) -> int:
        """Return for how many trees the candidates of their features are refined."""
        if not isinstance(self.candidates, IterativeHessian):
            return 0
        rounds = self.candidates.rounds * self.features.cycle(shape.n_features)
        return min(rounds, self.trees_in_all(shape))

    def kappa(self, shape: Shape) -> Kappa:
        """Return the units that a whole run costs; with features drawn at random, the most that it can cost."""
        n_trees, m = self.trees_in_all(shape), self.features.n_used(shape.n_features)
        numeric = np.array([isinstance(f, Numeric) for f in shape.schema.encoded.values()])
        if self.split.refines:
            refined = 0  # the histograms of the trees themselves refine
        elif self.features.is_random:
            refined = self._refinements(shape) * min(m, int(numeric.sum()))
        else:
            refined = sum(
                int(numeric[self.features.chosen(len(numeric), t, NOT_DRAWN)].sum())
                for t in range(self._refinements(shape))
            )
        sketches = (
            n_trees * min(m, int(numeric.sum())) if isinstance(self.candidates, Sketch) else 0
        )
        return Kappa(
            candidates=refined + sketches,
            splits=n_trees * self.split.n_queries(m, self.depth),
            leaves=0 if self.split.gives_leaves else n_trees,
        )

    def declare(self, shape: Shape) -> Demand:
        """Declare the stage's share of what is left.

        Raises
        ------
        PlanError
            If there are too many units to pay for one, an exponential choice would have to weigh several scores, every
            gradient is rounded to zero, or a part asks for a gradient that no kernel computes.
        """
        gradient = self.leaf.gradient(shape)
        check_gradient(gradient)
        if isinstance(self.split, ExponentialSplit):
            assert isinstance(self.leaf, Step)
            check_gradient(self.split.gradient(shape, self.leaf))
        if isinstance(self.candidates, Sketch):
            check_gradient(self.candidates.gradient(shape))
        if gradient.l2_squared == 0:
            raise PlanError(
                f"leaf={self.leaf!r} gives every row a gradient of 0 steps of 2**-15: choose a larger clip."
            )
        if self.split.chooses and shape.n_scores != 1:
            raise PlanError(
                f"split=ExponentialSplit weighs one score, not n_scores={shape.n_scores}: give another split, or a"
                " target of two classes."
            )
        n_trees = self.trees_in_all(shape)
        kappa = self.kappa(shape)
        if sum(kappa) > MOST_UNITS:
            raise PlanError(
                f"n_trees={n_trees} with depth={self.depth} asks {sum(kappa)} histograms and sums: at most {MOST_UNITS}"
                " can share a budget. Choose fewer or shallower trees."
            )
        n_values = n_trees * self._values_per_tree(shape)
        return Demand(0.0, self.share, self._most_queries(shape), n_values)

    def most_queries(self, state: State) -> int:
        """Return the most queries, as `declare` does, but without its checks: it is asked for in every round."""
        return self._most_queries(state.shape)

    def _most_queries(self, shape: Shape) -> int:
        per_tree = self.depth + 2 if self.split.asks else 1
        return self.trees_in_all(shape) * per_tree + self._refinements(shape)

    def bill(
        self,
        shape: Shape,
        budget: Budget,
        total: int,  # noqa: ARG002
        left: int,
    ) -> tuple[Item, ...] | None:
        """Return the queries of all trees that serve one row, if splits are chosen and prices are known before the fit.

        Trees differ in price by a unit of rounding; the dearest stands for all.
        """
        unknown = isinstance(self.candidates, IterativeHessian) or not self.budget.plans_ahead
        if unknown or not self.split.chooses:
            return None
        n_trees, kappa = self.trees_in_all(shape), self.kappa(shape)
        own = share_of(left, self.share)
        view = BudgetView(
            total=own,
            tree=self.rows.dearest(own, n_trees),
            n_trees=n_trees,
            kappa=kappa,
            all_rows=self.row_draw is None,
            budget=budget,
            n_rows=1.0,
        )
        asked = [
            Item(self.budget.unit(view, "splits"), self.depth, "choice"),
            Item(self.budget.unit(view, "leaves"), 1, "sums"),
        ]
        if kappa.candidates:
            units = kappa.candidates // n_trees
            asked.append(Item(units * self.budget.unit(view, "candidates"), 1, "sums"))
        times = self.rows.most_served(n_trees)
        if self.row_draw == "sample":
            draw = self.rows.draw(0, n_trees)
            assert draw is not None
            together = sum(item.price * item.times for item in asked)
            return (Item(amplified(together, draw.rate), times, "sample"),)
        return tuple(replace(item, times=item.times * times) for item in asked)

    def needs(self, shape: Shape, most_bins: Sequence[int]) -> Needs:
        """Return the memory of the last level's histograms, or of a batch's leaves and of the trees drawn ahead."""
        per_cell = 2 * shape.n_scores
        used = sorted(most_bins, reverse=True)[: self.features.n_used(len(most_bins))]
        batch = self.batch_size(self.trees_in_all(shape))
        n_sums = per_cell * max(sum(used), batch << self.depth)
        if self.split.asks:
            n_sums = max(n_sums, per_cell * sum(used) << (self.depth - 1))
            return Needs(n_sums=n_sums, held=OPENED * n_sums)
        nodes = max(batch << self.depth, AHEAD)
        return Needs(n_sums=n_sums, held=OPENED * n_sums + MASKED * nodes)

    def _values_per_tree(self, shape: Shape) -> int:
        """Return the most values that the queries of one tree release."""
        per_cell = 2 * shape.n_scores
        leaves = per_cell << self.depth
        if not self.split.n_cells:
            sketch = MAX_BINS * shape.n_features * per_cell if self.candidates is not None else 0
            return leaves + sketch
        used = self.features.n_used(shape.n_features)
        return used * self.split.n_cells * per_cell * ((1 << self.depth) - 1)

    def _unit(self, state: State, memory: Growing, part: str) -> int:
        """Return the price of one unit of a part."""
        view = BudgetView(
            total=memory.total,
            tree=self.rows.price(memory.total, memory.tree, memory.n_trees),
            n_trees=memory.n_trees,
            kappa=memory.kappa,
            all_rows=self.row_draw is None,
            budget=state.budget,
            n_rows=state.n_rows,
        )
        return self.budget.unit(view, part)

    # ---- the stage

    def begin(self, state: State) -> State:
        """Take the stage's share of what is left."""
        assert state.model is not None
        model = replace(state.model, trees=no_trees(self.depth, state.shape.n_scores))
        if self.leaf.means:
            link = "probability" if state.shape.kind != "numeric" else model.link
            model = replace(model, link=link, intercept=np.zeros_like(model.intercept))
        specs = state.shape.schema.encoded.values()
        memory = Growing(
            tree=0,
            n_trees=self.trees_in_all(state.shape),
            total=share_of(state.left, self.share),
            kappa=self.kappa(state.shape),
            gradient=self.leaf.gradient(state.shape),
            missing=tuple(isinstance(f, Numeric) and f.missing for f in specs),
            interactions=state.shape.interactions,
            cuts=all_cuts(state.model.bins),
            refined=0,
            splits=root(),
            sketched=False,
            pending=(),
            reach=Reach.of(model),
        )
        return self._ahead(replace(state, model=model, memory=memory))

    def next_query(self, state: State) -> Query | None:
        """Ask for a refinement of candidates, a level of the growing tree, or the leaves of a batch."""
        memory: Growing = state.memory
        if memory.tree >= memory.n_trees:
            return None
        if (due := self._to_refine(state, memory)) is not None:
            return self._histogram(state, memory, due[1])
        if not self.split.asks:
            return self._leaves(state, memory, memory.drawn[0].splits)
        if isinstance(self.candidates, Sketch) and not memory.sketched:
            candidates = self._candidates(state, memory)
            features = np.array(
                [j for j in candidates.features if not candidates.bins[j].categorical]
            )
            if len(features):
                return self._histogram(state, memory, features)
        if memory.splits.depth == self.depth:
            return self._leaves(state, memory, memory.splits)
        return self._level(state, memory)

    def _level(self, state: State, memory: Growing) -> Query:
        """Ask for the next level of the growing tree."""
        frontier = self._frontier(state, memory)
        if isinstance(self.split, PartiallyRandom):
            if self._one_feature(state.shape):
                return self._leaves(state, memory, self._unrivalled(state, frontier), "splits")
            return self.split.ask(frontier, self._sides(state, memory, frontier))
        assert not isinstance(self.split, TotallyRandom)
        return self.split.ask(frontier)

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Turn a released answer into candidates, splits or leaves."""
        memory: Growing = state.memory
        assert isinstance(query, GradientQuery)
        if isinstance(query, TreeSumsQuery):
            if memory.drawn:
                _, where, rows = memory.drawn[0]
            else:
                where, rows = self._leaves_of_bins(state, query.splits), None
            value = self._sums_of_leaves(state, query, released, rows)
            return self._finish(state, value, query.splits, where)
        if isinstance(query, ChoiceQuery):
            assert isinstance(self.split, ExponentialSplit)
            allowed = self._candidates(state, memory).allowed(query.splits)
            level = self.split.choose(released.value, query, allowed)
            return replace(state, memory=memory._replace(splits=grow(memory.splits, level)))
        assert isinstance(query, NodeSumsQuery)
        if (due := self._to_refine(state, memory)) is not None:
            return self._refined(state, query, released, *due)
        if isinstance(self.candidates, Sketch):  # its trees grow by choices
            return self._sketched(state, query, released)
        return self._grown(state, query, released)

    # ---- candidates

    def _to_refine(self, state: State, memory: Growing) -> tuple[int, NDArray[np.int64]] | None:
        """Return the next tree of the current batch that needs a refinement, and the features to refine; or None."""
        if self.split.refines or not isinstance(self.candidates, IterativeHessian):
            return None
        limit = self._refinements(state.shape)
        end = min(memory.tree + self.batch_size(memory.n_trees), limit)
        t = memory.tree + memory.refined
        while t < end and not memory.pending:
            assert state.model is not None
            features = [j for j in self._features(state, t) if not state.model.bins[j].categorical]
            if features:
                return t, np.array(features)
            t += 1
        return None

    def _refined(
        self,
        state: State,
        query: NodeSumsQuery,
        released: Answer,
        t: int,
        features: NDArray[np.int64],
    ) -> State:
        memory: Growing = state.memory
        parts = pieces(sums(query, released).hess.sum(1), query.sizes)
        state = self._refine(
            state, [(int(j), hess) for j, hess in zip(features, parts, strict=True)]
        )
        memory = state.memory._replace(refined=t + 1 - memory.tree)
        return self._ahead(replace(state, memory=memory))

    def _refine(self, state: State, seen: Sequence[tuple[int, NDArray[np.float64]]]) -> State:
        """Refine the candidates of some features from their noisy Hessian per bin."""
        assert isinstance(self.candidates, IterativeHessian)
        cuts = list(state.memory.cuts)
        for j, hess in seen:
            model, kept = self.candidates.refine(state, cuts[j], j, hess)
            known = model.bins[j].edges
            assert known is not None
            cuts[j] = np.searchsorted(known, kept).astype(np.uint8)
            state = replace(state, model=model)
        return replace(state, memory=state.memory._replace(cuts=tuple(cuts)))

    def _sketched(self, state: State, query: NodeSumsQuery, released: Answer) -> State:
        memory: Growing = state.memory
        assert isinstance(self.candidates, Sketch)
        values, _ = natural(query, released)
        hess = values.reshape(-1, query.n_scores, 2)[:, :, 1].sum(1)
        cuts = list(memory.cuts)
        for j, mass in zip(query.features, pieces(hess, query.sizes), strict=True):
            cuts[int(j)] = self.candidates.cuts(mass)
        return replace(state, memory=memory._replace(cuts=tuple(cuts), sketched=True))

    # ---- structure

    def _features(self, state: State, t: int) -> NDArray[np.int64]:
        rng = state.rng.stream("features", t) if self.features.is_random else NOT_DRAWN
        return self.features.chosen(state.shape.n_features, t, rng)

    def _candidates(self, state: State, memory: Growing) -> Candidates:
        assert state.model is not None
        return Candidates(
            features=self._features(state, memory.tree),
            bins=state.model.bins,
            cuts=memory.cuts,
            missing=memory.missing,
            interactions=memory.interactions,
        )

    def _ahead(self, state: State) -> State:
        """Draw the next batches of random trees, unless there are some, or their candidates are to be refined first."""
        memory: Growing = state.memory
        done = memory.tree >= memory.n_trees
        if self.split.asks or memory.drawn or done or self._to_refine(state, memory) is not None:
            return state
        size = self.batch_size(memory.n_trees)
        refined = memory.tree < self._refinements(state.shape)
        n = 1 if refined else max(1, self._at_once // size)
        trees = self._draw(state, min(n * size, memory.n_trees - memory.tree))
        where, drawn = self._leaves_of_bins(state, trees), []
        counted = self._rows_of_leaves(state, trees, where) if self.leaf.counts_bins else None
        for k, own in enumerate(trees.runs(size)):
            part = slice(k * size, (k + 1) * size)
            here, rows = where[part], None if counted is None else counted[part]
            told_splits(own)  # here, where all take half as long as in as many rounds
            drawn.append(Drawn(own, here, rows))
        return replace(state, memory=memory._replace(drawn=tuple(drawn)))

    @property
    def _at_once(self) -> int:
        """Number of random trees that are drawn at once."""
        return max(1, AHEAD >> self.depth)

    def _draw(self, state: State, n_trees: int) -> Splits:
        """Draw the next trees at random, some at once, from the stream of the first of them."""
        assert isinstance(self.split, TotallyRandom)
        memory: Growing = state.memory
        candidates, stop = self._candidates(state, memory), memory.tree + n_trees
        blocks = []
        for first in range(memory.tree, stop, self._at_once):
            turns = range(first, min(first + self._at_once, stop))
            features = np.array([self._features(state, t) for t in turns])
            rng = state.rng.stream("splits", first)
            blocks.append(self.split.draw(candidates, features, self.depth, rng))
        return checked_splits(reduce(join_splits, blocks))  # of a rule that may come from outside

    def _unrivalled(self, state: State, frontier: Frontier) -> Splits:
        """Draw a partially random tree of one feature: every node has one candidate, so only the leaves are queried."""
        rng = state.rng.stream("splits", state.memory.tree)
        candidates = frontier.candidates
        return TotallyRandom().draw(candidates, candidates.features[None], self.depth, rng)

    def _sides(self, state: State, memory: Growing, frontier: Frontier) -> NDArray[np.uint8]:
        assert isinstance(self.split, PartiallyRandom)
        rng = state.rng.stream("splits", memory.tree, memory.splits.depth)
        return self.split.draw(frontier, rng)

    def _asked(self, state: State, memory: Growing, part: str, units: int) -> dict[str, Any]:
        """Return what all queries of a tree have in common."""
        return {
            "label": f"trees {memory.tree + 1}/{memory.n_trees}: {part}",
            "price": units * self._unit(state, memory, part),
            "weight_bits": state.shape.weight_bits,
            "gradient": self._bounded(memory, memory.gradient),
            "n_scores": state.shape.n_scores,
            "rows": self.rows.draw(memory.tree, memory.n_trees),
        }

    def _bounded(self, memory: Growing, gradient: Gradient) -> Gradient:
        """Return a gradient whose bounds are over the scores that the released model can reach."""
        return gradient.within(*memory.reach.ends) if self.reachable else gradient

    def _frontier(self, state: State, memory: Growing) -> Frontier:
        candidates = self._candidates(state, memory)
        units = self.split.n_queries(len(candidates.features), self.depth)
        if len(candidates.features) > 1 or self.split.chooses:
            units //= self.depth
        if (allowed := candidates.allowed(memory.splits)) is not None:
            kept = allowed[:, candidates.features].any(0)
            candidates = replace(candidates, features=candidates.features[kept])
        asked = self._asked(state, memory, "splits", units)
        if isinstance(self.split, ExponentialSplit):
            assert isinstance(self.leaf, Step)
            asked["gradient"] = self._bounded(memory, self.split.gradient(state.shape, self.leaf))
        return Frontier(splits=memory.splits, candidates=candidates, **asked)

    def _histogram(
        self, state: State, memory: Growing, features: NDArray[np.int64]
    ) -> NodeSumsQuery:
        """Ask for the root's histogram of some features, for their candidates."""
        assert state.model is not None
        asked = self._asked(state, memory, "candidates", len(features))
        if isinstance(self.candidates, Sketch):
            asked["gradient"] = self.candidates.gradient(state.shape)
        return NodeSumsQuery(
            **asked,
            splits=root(),
            features=features.astype(np.uint16),
            sizes=tuple(state.model.bins[j].n_bins for j in features),
        )

    def _leaves(
        self, state: State, memory: Growing, splits: Splits, part: str = "leaves"
    ) -> TreeSumsQuery:
        return TreeSumsQuery(**self._asked(state, memory, part, splits.n_trees), splits=splits)

    def _grown(self, state: State, query: NodeSumsQuery, released: Answer) -> State:
        """Add a level; the histogram of the last level also contains the leaves."""
        memory: Growing = state.memory
        frontier = self._frontier(state, memory)
        answer = sums(query, released)
        n_nodes = memory.splits.n_leaves
        if isinstance(self.split, PartiallyRandom):
            assert query.sides is not None
            table = self.split.histogram(query, answer)
            level = self.split.choose(table, frontier, query.sides)
        else:
            assert isinstance(self.split, HistogramSplit)
            shape = (n_nodes, -1, query.n_scores)
            grad, hess = answer.grad.reshape(shape), answer.hess.reshape(shape)
            table = NodeHistogram(grad, hess, answer.grad_sd, answer.hess_sd)
            if n_nodes == 1 and isinstance(self.candidates, IterativeHessian):
                memory = memory._replace(seen=root_hessians(table, frontier.candidates))
                state = replace(state, memory=memory)
            if self._one_feature(state.shape):
                return self._grown_at_once(state, table, frontier)
            level = self.split.choose(table, frontier)
        splits = grow(memory.splits, level)
        if splits.depth < self.depth:
            return replace(state, memory=memory._replace(splits=splits))
        leaves = (
            self.split.leaves(query, answer, level)
            if isinstance(self.split, PartiallyRandom)
            else children_of(table, level, frontier.candidates)
        )
        value = self._values(state, splits, *leaves)
        return self._finish(state, value, splits, self._leaves_of_bins(state, splits))

    def _grown_at_once(self, state: State, table: NodeHistogram, frontier: Frontier) -> State:
        """Grow a tree of one feature from the histogram of its root alone (FDP-GBDT §5.1: κ_s = T)."""
        assert isinstance(self.split, HistogramSplit)
        candidates = frontier.candidates
        n_bins = candidates.sizes[0]
        splits = root()
        while splits.depth < self.depth:
            here = one_hot(leaf_of_code(splits)[0, :n_bins], splits.n_leaves)
            nodes = replace(
                table, grad=here[:, :, None] * table.grad, hess=here[:, :, None] * table.hess
            )
            splits = grow(splits, self.split.choose(nodes, replace(frontier, splits=splits)))
        here = one_hot(leaf_of_code(splits)[0, :n_bins], splits.n_leaves)
        sd = np.sqrt(np.maximum(here.sum(1, keepdims=True), 1.0))
        leaves = LeafSums(
            here @ table.grad[0], here @ table.hess[0], table.grad_sd * sd, table.hess_sd * sd
        )
        value = self._values(state, splits, leaves)
        return self._finish(state, value, splits, self._leaves_of_bins(state, splits))

    # ---- leaves

    def _leaves_of_bins(self, state: State, splits: Splits) -> Where:
        """Return the feature of every tree and the leaf of each of its bins; nothing if trees may have several."""
        if not self._one_feature(state.shape):
            return ()
        memory: Growing = state.memory
        assert state.model is not None
        where = []
        for t, leaf in enumerate(leaf_of_code(splits)):
            (j,) = self._features(state, memory.tree + t).tolist()
            where.append((j, leaf[: state.model.bins[j].n_bins]))
        return tuple(where)

    def _sums_of_leaves(
        self,
        state: State,
        query: TreeSumsQuery,
        released: Answer,
        rows: NDArray[np.float64] | None,
    ) -> NDArray[np.int32]:
        """Return leaf values in score steps, (n_scores, n_trees, n_leaves), from the answer to their query."""
        leaf = self.leaf
        if isinstance(leaf, Step) and self._takes_steps_alone(leaf):
            return self._clipped_steps(leaf, state, query, released, rows)
        if rows is not None:
            values, sd = natural(query, released)
            grad = values.reshape(-1, query.n_scores, 2)[:, :, 0]
            leaves = LeafSums(grad, rows, sd, 0.0)
        else:
            answer = sums(query, released)
            leaves = LeafSums(answer.grad, answer.hess, answer.grad_sd, answer.hess_sd)
        return self._values(state, query.splits, leaves)

    def _takes_steps_alone(self, leaf: Step) -> bool:
        """Whether a leaf's value is a step of its own sums, clipped, and nothing else."""
        own = type(leaf).value is Step.value and leaf.prior is None
        return own and not self.least_weight and not self.leaf_decay

    def _clipped_steps(
        self,
        leaf: Step,
        state: State,
        query: TreeSumsQuery,
        released: Answer,
        rows: NDArray[np.float64] | None,
    ) -> NDArray[np.int32]:
        """Return what `_values` returns of such leaves, in one loop over them."""
        splits, (_, size) = query.splits, self._batch(state.memory)
        value = leaf_steps(
            released.value,
            NOT_COUNTED if rows is None else rows.reshape(-1),
            query.n_scores,
            step_of(query, released),
            query.gradient.hess_scale,
            ridge=leaf.ridge,
            largest=leaf.largest,
            rate=leaf.learning_rate,
            score_steps=SCORE_ONE / size,
        )
        return self._in_order(state, splits, value.reshape(-1, splits.n_trees, splits.n_leaves))

    @staticmethod
    def _rows_of_leaves(state: State, splits: Splits, where: Where) -> NDArray[np.float64]:
        """Return the noisy number of rows in each leaf, from the released bins: (n_trees, n_leaves)."""
        first = np.arange(splits.n_trees, dtype=np.int64) * splits.n_leaves
        leaf = np.concatenate([leaf + start for start, (_, leaf) in zip(first, where, strict=True)])
        counts = np.concatenate([state.counts[j] for j, _ in where])
        rows: NDArray[Any] = np.bincount(leaf, counts, splits.n_trees * splits.n_leaves)
        return rows.reshape(splits.n_trees, splits.n_leaves)

    def _values(
        self, state: State, splits: Splits, sums: LeafSums, above: LeafSums | None = None
    ) -> NDArray[np.int32]:
        """Return leaf values in score steps, (n_scores, n_trees, n_leaves), divided by the size of their batch."""
        _, size = self._batch(state.memory)
        shape = (splits.n_trees, splits.n_leaves, -1)
        grad, hess = sums.grad.reshape(shape), sums.hess.reshape(shape)
        if hess.shape != grad.shape:  # one number of rows for all scores
            hess = np.broadcast_to(hess, grad.shape)
        sums = LeafSums(grad, hess, sums.grad_sd, sums.hess_sd)
        if self.least_weight:
            sums = pooled(sums, self.least_weight)
        leaf = self.leaf.value(sums, above, kind=state.shape.kind, batch=size)
        if np.shape(leaf) != grad.shape:  # of a rule that may come from outside
            raise PlanError(
                f"{self.leaf!r} gave values of shape {np.shape(leaf)} for sums of shape {grad.shape}."
                " Return one value for each leaf and score."
            )
        if self.leaf_decay:
            assert isinstance(self.rows, Ensembles)
            k = state.memory.tree % self.rows.size
            assert isinstance(self.leaf, Step)
            bound = self.leaf.bound(state.shape.kind)
            most = self.leaf.learning_rate * bound * (1 - self.leaf_decay) ** k
            leaf = np.clip(leaf, -most, most)
        value = np.rint(leaf.transpose(2, 0, 1) * (SCORE_ONE / size)).astype(np.int32, order="C")
        return self._in_order(state, splits, value)

    def _in_order(
        self, state: State, splits: Splits, value: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Return leaf values that keep to constrained directions; tables of one feature are put in order later."""
        directions = state.shape.directions
        if directions is None or self._one_feature(state.shape):
            return value
        assert state.model is not None
        return ordered_leaves(splits, value, directions, state.model.bins)

    def _batch(self, memory: Growing) -> tuple[int, int]:
        """Return the first tree of the current batch and its number of trees; the last batch may be smaller."""
        first = memory.tree - len(memory.pending)
        return first, min(self.batch_size(memory.n_trees), memory.n_trees - first)

    def _finish(
        self, state: State, value: NDArray[np.int32], splits: Splits, where: Where
    ) -> State:
        """Count the finished trees; add the batch to the model once it is complete."""
        memory: Growing = state.memory
        pending = (*memory.pending, (splits, value, where))
        first, size = self._batch(memory)
        done = memory.tree + splits.n_trees
        if done - first < size:
            memory = memory._replace(tree=done, splits=root(), sketched=False, pending=pending)
            return replace(state, memory=memory)
        assert state.model is not None
        if self._one_feature(state.shape):
            model, reach = self._tables_with(state, pending)
        else:
            model = state.model
            for trees, leaves, _ in pending:
                model = replace(model, trees=model.trees.with_more(trees, leaves))
            reach = memory.reach.moved(state.model, model)
        memory = memory._replace(
            tree=done,
            splits=root(),
            sketched=False,
            pending=(),
            refined=0,
            reach=reach,
            drawn=memory.drawn[1:],
        )
        state = replaced(state, model=model, memory=memory)
        if memory.seen and done <= self._refinements(state.shape):
            return self._refine(state, memory.seen)
        return self._ahead(state)

    def _tables_with(
        self, state: State, pending: Sequence[tuple[Splits, NDArray[np.int32], Where]]
    ) -> tuple[Model, Reach]:
        """Add trees of one feature each to its table, which is equivalent to trees and faster."""
        assert state.model is not None
        tables, reach = list(state.model.tables), state.memory.reach
        reach = Reach(reach.low.copy(), reach.high.copy())
        for _, value, where in pending:
            for t, (j, leaf) in enumerate(where):
                tables[j] = with_leaves(tables[j], leaf, value, t, reach.low, reach.high)
        model = state.model.with_tables(tables)
        if state.shape.directions is None:
            return model, reach
        ordered = self._ordered(state, model, state.shape.directions)
        return ordered, reach.moved(model, ordered)

    def _one_feature(self, shape: Shape) -> bool:
        """Whether every tree has one feature, and is part of its table."""
        return self.features.n_used(shape.n_features) == 1

    @staticmethod
    def _ordered(state: State, model: Model, directions: NDArray[np.int8]) -> Model:
        """Make the tables monotone whose features are constrained.

        The sum of the trees is made so, not each tree: steps of noise upwards would then add up.
        """
        tables = list(model.tables)
        for j in np.flatnonzero(directions):
            n_bins = model.bins[j].n_bins
            known = state.counts and len(state.counts[j]) == n_bins
            weight = state.counts[j] if known else np.ones(n_bins)
            column = ordered_table(tables[j][:, 0].astype(np.float64), weight, int(directions[j]))
            tables[j] = np.rint(column).astype(np.int32)[:, None]
        return model.with_tables(tables)


def root_hessians(
    table: NodeHistogram, candidates: Candidates
) -> tuple[tuple[int, NDArray[np.float64]], ...]:
    """Return the noisy Hessian per bin of every numeric feature, from the root's histogram."""
    parts = pieces(table.hess[0].sum(1), candidates.sizes)
    return tuple(
        (int(j), hess)
        for j, hess in zip(candidates.features, parts, strict=True)
        if not candidates.bins[j].categorical
    )


def leaf_of_code(splits: Splits) -> NDArray[np.uint16]:
    """Return the leaf of every code in trees of one feature each, (n_trees, 256)."""
    return leaves_of_codes(splits.threshold, splits.mask_of, splits.masks, MAX_BINS)


def one_hot(leaf: NDArray[np.uint16], n: int) -> NDArray[np.float64]:
    """Return (n, n_bins): 1 where a bin belongs to a leaf, else 0."""
    return (np.arange(n)[:, None] == leaf).astype(np.float64)


def children_of(
    table: NodeHistogram,
    level: LevelSplits,
    candidates: Candidates,
) -> tuple[LeafSums, LeafSums]:
    """Return the sums of every node and of its two children, from the histogram that split the node.

    The cells of every feature sum to the same node total, so the node's sum is estimated by the mean of these totals,
    weighted by their precision. The difference between it and the splitting feature's own total is noise; it is
    subtracted from the two children in proportion to their cells (least squares, except that the feature is itself part
    of the mean). Post-processing.
    """
    n_nodes, _, n_scores = table.grad.shape
    sizes = np.array(candidates.sizes)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    precision = 1 / sizes
    children = np.zeros((2, n_nodes, 2, n_scores))
    nodes = np.zeros((2, n_nodes, n_scores))
    n_cells = np.ones((n_nodes, 2))
    position = {int(j): k for k, j in enumerate(candidates.features)}
    for k in range(n_nodes):
        at = position.get(int(level.feature[k]), 0)
        right = level.goes_right(k, sizes[at])
        n_cells[k] = (~right).sum(), right.sum()
        share = (n_cells[k] / sizes[at])[:, None]
        for part, values in enumerate((table.grad[k], table.hess[k])):
            cells = values[starts[at] : ends[at]]
            totals = np.add.reduceat(values, starts)
            mean = precision @ totals / precision.sum()
            both = np.stack([cells[~right].sum(0), cells[right].sum(0)])
            children[part, k] = both + share * (mean - totals[at])
            nodes[part, k] = mean
    flat = children.reshape(2, 2 * n_nodes, n_scores)
    sd = np.sqrt(np.maximum(n_cells.reshape(-1, 1), 1.0))
    node_sd = 1 / np.sqrt(precision.sum())
    return (
        LeafSums(flat[0], flat[1], table.grad_sd * sd, table.hess_sd * sd),
        LeafSums(nodes[0], nodes[1], table.grad_sd * node_sd, table.hess_sd * node_sd),
    )


def pooled(sums: LeafSums, least: float) -> LeafSums:
    """Replace the sums of a leaf that holds too little by those of the smallest subtree around it that holds enough.

    Parameters
    ----------
    sums : LeafSums of (n_trees, n_leaves, n_scores)
    least : float
        Lowest noisy Hessian of a leaf, summed over scores.
    """
    n_trees, n_leaves, _ = sums.grad.shape
    ones = np.ones((n_trees, n_leaves, 1))
    parts = (sums.grad, sums.hess, (sums.grad_sd * ones) ** 2, (sums.hess_sd * ones) ** 2)
    grad, hess, grad_var, hess_var = out = [part.copy() for part in parts]
    width = 1
    while width < n_leaves and (lacking := hess.sum(2) < least).any():
        width *= 2
        blocks = (n_trees, n_leaves // width, width, -1)
        for part, wide in zip(parts, out, strict=True):
            wide[lacking] = np.repeat(part.reshape(blocks).sum(2), width, axis=1)[lacking]
    return LeafSums(grad, hess, np.sqrt(grad_var), np.sqrt(hess_var))
