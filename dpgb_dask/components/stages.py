"""The stages of `auto`: Bins, Start, MainEffects, Pairs, Forest (DESIGN §7, notes/default-method.md §3).

A stage is a frozen record of options. It asks queries and turns released answers into the model; it never sees a row.
What changes between rounds is the stage's memory, a frozen record in `State`.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import binning, constants, schedules, smoothing
from dpgb_dask.components.answers import Sums, l2_norm, natural, noise_sd, sums
from dpgb_dask.components.options import check_rate, check_whole
from dpgb_dask.components.smoothing import Block, Intercept, Observation
from dpgb_dask.contracts.boundary import Released
from dpgb_dask.contracts.grid import COARSE, FINE, Grid
from dpgb_dask.contracts.model import SCORE_ONE, Model, PairTable, Splits, no_trees
from dpgb_dask.contracts.plan import Demand, Shape, State
from dpgb_dask.contracts.queries import (
    PRICE_ONE,
    CellCountsQuery,
    CountQuery,
    MainSumsQuery,
    PairCells,
    PairSumsQuery,
    Query,
    ResidualQuery,
    TargetSumQuery,
    TreeSumsQuery,
)
from dpgb_dask.losses import (
    GRAD_ONE,
    Gradient,
    SquaredGradient,
    logistic_gradient,
    softmax_gradient,
)

Answer = Released[NDArray[np.int64]]

RESIDUAL_EDGES = np.rint(2.0 ** np.arange(-10, 1.01, 0.25) * SCORE_ONE).astype(np.int64)


# ------------------------------------------------------------------------------------------------------------ shared


def gradient_of(kind: str, clip: float, n_classes: int) -> Gradient:
    """Return the loss's integer gradient at a clip (1 is no clip for a numeric target scaled to [-1, 1])."""
    if kind == "binary":
        return logistic_gradient(constants.CLIP, constants.HESS_SCALE)
    if kind == "multiclass":
        return softmax_gradient(n_classes)
    return SquaredGradient(round(clip * SCORE_ONE), round(constants.HESS_SCALE * clip * GRAD_ONE))


def largest_hess(kind: str) -> float:
    """Return the largest Hessian of a row."""
    return 1.0 if kind == "numeric" else 0.25


def on_grid(values: Any) -> NDArray[np.float64]:
    """Round to the grid of score steps, so that the filter knows the model exactly as the shards do."""
    rounded: NDArray[np.float64] = np.rint(np.asarray(values) * SCORE_ONE) / SCORE_ONE
    return rounded


def steps(values: Any) -> NDArray[np.int32]:
    """Return values on the grid as int32 score steps."""
    return np.rint(np.asarray(values) * SCORE_ONE).astype(np.int32)


def coarsen(mass: NDArray[np.float64], categorical: bool, n: int) -> NDArray[np.uint8]:
    """Map bins to at most ``n`` levels, never decreasing: equal noisy mass, or the heaviest categories and the rest.

    Categorical bins are sorted by mass, so levels are ordered for both kinds.
    """
    if len(mass) <= n:
        return np.arange(len(mass), dtype=np.uint8)
    if categorical:
        return np.minimum(np.arange(len(mass)), n - 1).astype(np.uint8)
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    level = np.minimum((middle * n).astype(int), n - 1)
    return np.unique(level, return_inverse=True)[1].astype(np.uint8)


def random_partition(
    n_bins: int, categorical: bool, k: int, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Return the leaf of each bin: k ordered random intervals; every category its own."""
    if categorical or n_bins <= k:
        return np.arange(n_bins, dtype=np.uint8)
    cuts = np.sort(rng.choice(n_bins - 1, k - 1, replace=False)) + 1
    return np.searchsorted(cuts, np.arange(n_bins), side="right").astype(np.uint8)


def share_of(total: int, share: float) -> int:
    """Return a share of a price, rounded down."""
    return int(total * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the whole data set's noisy sums say, one per score: intercepts and the mean Hessian of a row."""

    intercepts: tuple[Intercept, ...]
    hess: tuple[float, ...]


def observe_totals(
    totals: Totals,
    grad: NDArray[np.float64],
    hess: NDArray[np.float64],
    n_leaves: NDArray[np.int64],
    state: State,
    seen: Observation,
    damping: float,
) -> tuple[Totals, NDArray[np.float64]]:
    """Combine every block's noisy total, weighted by its precision, and step the intercepts.

    Parameters
    ----------
    grad, hess : (n_blocks, n_scores) float64
        Noisy totals of each block: copies of the same two sums.
    n_leaves : (n_blocks,) int64
        Noise variance of a block's total is its number of leaves times that of a leaf.

    Returns
    -------
    totals : Totals
    grad_total : (n_scores,) float64
    """
    precision = 1 / (n_leaves * seen.grad_sd**2)
    variance = 1 / precision.sum()
    grad_total = precision @ grad * variance
    top = largest_hess(state.shape.kind) * state.n_rows
    hess_total = np.clip(precision @ hess * variance, 0.03 * top, top)
    mean_hess = tuple(
        old + constants.MEAN_HESS_STEP * (float(new) / state.n_rows - old)
        for old, new in zip(totals.hess, hess_total, strict=True)
    )
    intercepts = tuple(
        on_grid_intercept(i.step(float(g), h * state.n_rows, seen, float(variance), damping))
        for i, g, h in zip(totals.intercepts, grad_total, mean_hess, strict=True)
    )
    return Totals(intercepts=intercepts, hess=mean_hess), grad_total


def on_grid_intercept(intercept: Intercept) -> Intercept:
    """Round an intercept to the grid of score steps."""
    return replace(intercept, f=float(on_grid(intercept.f)))


def fresh_totals(totals: Totals) -> Totals:
    """Keep values and forget the information: each stage's filter starts anew."""
    return replace(totals, intercepts=tuple(Intercept(i.f) for i in totals.intercepts))


def sampling_variance(state: State) -> float:
    """Variance of a row's gradient per unit of Hessian: 1 for log-loss, the residual's own for squared loss."""
    if state.shape.kind != "numeric":
        return 1.0
    return float((state.notes["clip"] / constants.NORMAL_SPREAD) ** 2)


def current_gradient(state: State) -> Gradient:
    """Return the gradient at the running clip bound."""
    return gradient_of(
        state.shape.kind, state.notes.get("clip", constants.CLIP), state.shape.n_scores
    )


def sd_of_run(gradient: Gradient, n_blocks: int, price: int, max_weight: int) -> float:
    """Return the noise a sum would get if the whole price of a stage were spent on one release."""
    return noise_sd(max_weight * l2_norm(gradient) * float(np.sqrt(n_blocks)), price, PRICE_ONE)


def observation(state: State, answer: Sums, t: int, n_rounds: int, *, pair: bool) -> Observation:
    """Return how round ``t`` of a stage weighs its answer."""
    top = largest_hess(state.shape.kind)
    return Observation(
        grad_sd=answer.grad_sd,
        hess_sd=answer.hess_sd,
        round=t,
        sampling=n_rounds * sampling_variance(state),
        hess_low=0.0 if pair else constants.LEAST_HESS * top,
        hess_high=constants.PAIR_HESS_EXCESS * top if pair else top,
    )


def prior_scales(kind: str) -> NDArray[np.float64]:
    """Return the prior scales in score units; targets scaled to [-1, 1] move half as far."""
    return constants.PRIOR_SCALES * (0.5 if kind == "numeric" else 1.0)


# -------------------------------------------------------------------------------------------------------------- bins


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Private bins from one joint noisy histogram over a public fine grid (10 % of μ²), after a noisy row count.

    Parameters
    ----------
    share : float
        Of the plan's μ².
    max_bins : int or None
        Wanted bins per feature; None for 128, or 250 on the fine grid.
    """

    share: float = constants.BINS_SHARE
    max_bins: int | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        if self.max_bins is not None:
            check_whole("max_bins", self.max_bins, 2, 250)

    def declare(self, shape: Shape) -> Demand:  # noqa: ARG002
        """Row count and histogram."""
        share = constants.COUNT_SHARE + self.share
        return Demand(share, share, 2)

    def begin(self, state: State) -> State:
        """Nothing is known yet."""
        return replace(state, memory=None)

    def next_query(self, state: State) -> Query | None:
        """Ask for a rough row count, then for all cells."""
        bits = state.shape.weight_bits
        if state.model is not None:
            return None
        if state.memory is None:
            price = share_of(state.total, constants.COUNT_SHARE)
            return CountQuery(label="rows", price=price, weight_bits=bits)
        return CellCountsQuery(
            label="bins",
            price=share_of(state.total, self.share),
            weight_bits=bits,
            n_uniform=state.memory["n_uniform"],
            sizes=Grid.of(state.shape.schema, state.memory["n_uniform"]).sizes,
        )

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Choose the grid from the count; merge the cells into bins."""
        values, sd = natural(query, released)
        weight = state.shape.max_weight
        if isinstance(query, CountQuery):
            n_rows = max(float(values[0]), 1.0)
            mu = float(np.sqrt(state.total / PRICE_ONE))
            signal = n_rows / weight * mu * np.sqrt(self.share / state.shape.n_features)
            n_uniform = FINE if signal >= constants.FINE_GRID_SIGNAL else COARSE
            memory = {"n_uniform": n_uniform, "n_rows": float(values[0]), "variance": sd**2}
            return replace(state, n_rows=n_rows, memory=memory)
        assert isinstance(query, CellCountsQuery)
        return self._bins(state, query, values, sd)

    def _bins(
        self, state: State, query: CellCountsQuery, values: NDArray[np.float64], sd: float
    ) -> State:
        grid = Grid.of(state.shape.schema, query.n_uniform)
        per_feature = np.split(values, grid.offsets[1:-1])
        totals = np.array([part.sum() for part in per_feature])
        # every feature's cells sum to the same number of rows: weigh each copy by its noise
        precision = np.append(1 / (np.array(grid.sizes) * sd**2), 1 / state.memory["variance"])
        n_rows = float(precision @ np.append(totals, state.memory["n_rows"]) / precision.sum())
        n_rows = max(n_rows, 1.0)
        max_bins = self.max_bins or (
            constants.FINE_BINS if query.n_uniform == FINE else constants.COARSE_BINS
        )
        bins, counts = [], []
        for edges, cells in zip(grid.edges, per_feature, strict=True):
            if edges is None:
                feature, mass = binning.categorical_bins(cells, sd, n_rows)
            else:
                feature, mass = binning.numeric_bins(edges, cells, sd, n_rows, max_bins)
            bins.append(feature)
            counts.append(mass)
        k = state.shape.n_scores
        model = Model(
            bins=tuple(bins),
            intercept=np.zeros(k, np.int32),
            tables=tuple(np.zeros((b.n_bins, k), np.int32) for b in bins),
            trees=no_trees(n_scores=k),
            link=state.shape.loss.link(state.shape.kind),
        )
        return replace(state, n_rows=n_rows, counts=tuple(counts), model=model)


# ------------------------------------------------------------------------------------------------------------- start


def residual_query(state: State, label: str) -> ResidualQuery:
    """Return the query for the scale of the residuals."""
    return ResidualQuery(
        label=label,
        price=state.notes["start_price"],
        weight_bits=state.shape.weight_bits,
        edges=RESIDUAL_EDGES,
    )


def with_residual_scale(state: State, query: Query, released: Answer) -> State:
    """Set the clip bound to the noisy 80 % quantile of |residual|."""
    values, _ = natural(query, released)
    mass = np.cumsum(np.maximum(values, 0))
    k = min(
        int(np.searchsorted(mass, constants.RESIDUAL_QUANTILE * mass[-1])), len(RESIDUAL_EDGES) - 1
    )
    clip = min(float(RESIDUAL_EDGES[k]) / SCORE_ONE, 1.0)
    return replace(state, notes={**state.notes, "clip": clip})


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Noisy base rate (classification), or noisy mean and residual scale (regression)."""

    def declare(self, shape: Shape) -> Demand:
        """1 % of what the bins left; the same again for the first residual scale."""
        share = constants.START_SHARE * (2 if shape.kind == "numeric" else 1)
        return Demand(0.85 * share, share, 2)

    def begin(self, state: State) -> State:
        """Fix the price of each start release."""
        price = share_of(state.left, constants.START_SHARE)
        return replace(state, memory="target", notes={**state.notes, "start_price": price})

    def next_query(self, state: State) -> Query | None:
        """Ask for the target's sums, then for the residual scale."""
        if state.memory == "target":
            return TargetSumQuery(
                label="start",
                price=state.notes["start_price"],
                weight_bits=state.shape.weight_bits,
                kind=state.shape.kind,
                n_classes=len(state.shape.schema.target.classes),
            )
        return residual_query(state, "start scale") if state.memory == "scale" else None

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Set the intercept; decide which stages run."""
        if isinstance(query, ResidualQuery):
            state = with_residual_scale(state, query, released)
            return self._divide(replace(state, memory="done"))
        values, _ = natural(query, released)
        kind, n_rows = state.shape.kind, state.n_rows
        if kind == "numeric":
            intercept = np.clip(values / n_rows, -1, 1)
            hess: tuple[float, ...] = (1.0,)
        elif kind == "binary":
            low = min(0.5 / n_rows + 1e-4, 0.5)
            rate = float(np.clip(values[0] / n_rows, low, 1 - 1e-4))
            intercept, mean_hess = binary_start(rate)
            hess = (mean_hess,)
        else:
            rate_of = np.maximum(values / n_rows, 1e-4)
            rate_of = rate_of / rate_of.sum()
            intercept = np.log(rate_of) - np.log(rate_of).mean()
            hess = tuple(np.maximum(rate_of * (1 - rate_of), 0.005))
        assert state.model is not None
        intercept = on_grid(intercept)
        # gradients clipped at ½ have a link of their own
        link = "clipped_logit" if kind == "binary" else state.model.link
        totals = Totals(intercepts=tuple(Intercept(float(f)) for f in intercept), hess=hess)
        state = replace(
            state,
            model=replace(state.model, intercept=steps(intercept), link=link),
            notes={**state.notes, "totals": totals},
        )
        if kind == "numeric":
            return replace(state, memory="scale")
        return self._divide(replace(state, memory="done"))

    @staticmethod
    def _divide(state: State) -> State:
        """Spread what is left over the later stages by public rules."""
        kind = state.shape.kind
        scale = int(state.notes["start_price"]) if kind == "numeric" else 0
        signal = schedules.pair_signal(
            kind,
            state.shape.n_features,
            state.n_rows / state.shape.max_weight,
            float(np.mean(state.notes["totals"].hess)),
            state.notes.get("clip", constants.CLIP),
            max(state.left - (constants.RESIDUAL_REFRESHES - 1) * scale, 0) / PRICE_ONE,
        )
        # each stage that runs begins with, or has, one more release of the residual scale
        run = schedules.split_budget(kind, signal, state.left)
        refreshes = 1 + (run.screen > 0) + (run.forest > 0)
        split = schedules.split_budget(kind, signal, max(state.left - refreshes * scale, 0))
        return replace(state, notes={**state.notes, "split": split})


def binary_start(rate: float) -> tuple[NDArray[np.float64], float]:
    """Return the score at which clipped gradients balance at ``rate``, and the mean Hessian there.

    With c = ½ and rate <= ½, rate · ½ = (1 - rate) · p gives p = rate / (2 (1 - rate)); symmetric above.
    """
    small = min(rate, 1 - rate)
    p = small / (2 * (1 - small))
    score = np.log(p / (1 - p))
    hess = p * (1 - p) * (1 - small)  # rows of the rarer class are clipped and have none
    return np.array([score if rate <= 0.5 else -score]), float(max(hess, 1e-3))


# ------------------------------------------------------------------------------------------------------ main effects


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class BlocksMemory:
    """Rounds over blocks: ``blocks[j][k]`` is the posterior of block j for score k."""

    blocks: tuple[tuple[Block, ...], ...]
    totals: Totals
    round: int
    price: int
    n_leaves: int = 0
    cells: tuple[PairCells, ...] = ()
    rescaled: bool = False


def round_price(price: int, done: int, n_rounds: int) -> int:
    """Return the price of one of ``n_rounds`` equal rounds; they sum to ``price`` exactly."""
    return price * (done + 1) // n_rounds - price * done // n_rounds


def learn(
    memory: BlocksMemory,
    leaf_of_bin: tuple[NDArray[np.uint8], ...],
    answer: Sums,
    state: State,
    seen: Observation,
    *,
    damping: float,
    move: bool = True,
    evidence: bool = True,
) -> BlocksMemory:
    """One posterior update of every block from one joint release.

    Parameters
    ----------
    move : bool
        Whether the model moves; screening only looks.
    evidence : bool
        Whether the prior scale is averaged by evidence, or still the first guess.
    """
    sizes = np.array([int(leaf.max()) + 1 for leaf in leaf_of_bin])
    ends = np.cumsum(sizes)[:-1]
    grads, hesses = np.split(answer.grad, ends), np.split(answer.hess, ends)
    grad_sums = np.array([g.sum(0) for g in grads])
    hess_sums = np.array([h.sum(0) for h in hesses])
    totals, grad_total = observe_totals(
        memory.totals, grad_sums, hess_sums, sizes, state, seen, damping if move else 0.0
    )
    scales = prior_scales(state.shape.kind) if evidence else constants.FIRST_SCALE
    blocks = []
    for j, scores in enumerate(memory.blocks):
        row = []
        for k, block in enumerate(scores):
            told = smoothing.observe(
                block, leaf_of_bin[j], grads[j][:, k], hesses[j][:, k], float(grad_total[k]), seen
            )
            mean, log_evidence = smoothing.posterior_mean(told, scales)
            f = on_grid(told.f + damping * (mean - told.f)) if move else told.f
            row.append(replace(told, f=f, log_evidence=log_evidence))
        blocks.append(tuple(row))
    return replace(memory, blocks=tuple(blocks), totals=totals, round=memory.round + 1)


def set_intercept(model: Model, totals: Totals) -> Model:
    """Write the intercepts into the model."""
    return replace(model, intercept=steps([i.f for i in totals.intercepts]))


@dataclass(frozen=True, slots=True, kw_only=True)
class MainEffects:
    """One shape function per feature: joint rounds of random partitions and the posterior update.

    Parameters
    ----------
    rounds : int
    damping : float
        Part of the way to the posterior mean taken each round (the learning rate).
    """

    rounds: int = constants.MAIN_ROUNDS
    damping: float = constants.DAMPING

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("rounds", self.rounds, 1, 10_000)
        check_rate("damping", self.damping)

    def declare(self, shape: Shape) -> Demand:  # noqa: ARG002
        """Ask for what pairs and forest leave of the rest."""
        return Demand(0.25, 0.95, self.rounds + 1)

    def begin(self, state: State) -> State:
        """Build the prior of every feature; choose the leaves per partition."""
        assert state.model is not None
        totals: Totals = state.notes["totals"]
        blocks = []
        for bins, mass in zip(state.model.bins, state.counts, strict=True):
            ordered = not bins.categorical
            root = smoothing.square_root(
                smoothing.prior(mass, ordered=ordered, missing_last=ordered)
            )
            blocks.append(tuple(smoothing.new_block(mass, root, h) for h in totals.hess))
        price = state.notes["split"].main
        gradient = current_gradient(state)
        noise = sd_of_run(gradient, len(blocks), price, state.shape.max_weight)
        effect = state.notes["clip"] if state.shape.kind == "numeric" else 1.0
        n_leaves = schedules.leaves_per_partition(
            state.n_rows, float(np.mean(totals.hess)), noise, effect
        )
        memory = BlocksMemory(
            blocks=tuple(blocks), totals=totals, round=0, price=price, n_leaves=n_leaves
        )
        return replace(state, memory=memory)

    def next_query(self, state: State) -> Query | None:
        """Ask for one random partition of every feature; a third of the way, for the residual scale anew."""
        memory: BlocksMemory = state.memory
        t = memory.round
        if t >= self.rounds:
            return None
        if state.shape.kind == "numeric" and t == self.rounds // 3 and not memory.rescaled:
            return residual_query(state, "main scale")
        assert state.model is not None
        rng = state.rng.stream("main", t)
        leaves = tuple(
            random_partition(b.n_bins, b.categorical, memory.n_leaves, rng)
            for b in state.model.bins
        )
        return MainSumsQuery(
            label=f"main effects {t + 1}/{self.rounds}",
            price=round_price(memory.price, t, self.rounds),
            weight_bits=state.shape.weight_bits,
            gradient=current_gradient(state),
            n_scores=state.shape.n_scores,
            leaf_of_bin=leaves,
            n_leaves=tuple(int(leaf.max()) + 1 for leaf in leaves),
        )

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Move every shape function towards its posterior mean."""
        memory: BlocksMemory = state.memory
        if isinstance(query, ResidualQuery):
            state = with_residual_scale(state, query, released)
            return replace(state, memory=replace(memory, rescaled=True))
        assert isinstance(query, MainSumsQuery)
        assert state.model is not None
        answer = sums(query, released)
        t = memory.round
        seen = observation(state, answer, t, self.rounds, pair=False)
        memory = learn(
            memory, query.leaf_of_bin, answer, state, seen, damping=self.damping, evidence=t >= 2
        )
        tables = tuple(steps(np.stack([b.f for b in scores], axis=1)) for scores in memory.blocks)
        model = replace(set_intercept(state.model, memory.totals), tables=tables)
        return replace(
            state, model=model, memory=memory, notes={**state.notes, "totals": memory.totals}
        )


# ------------------------------------------------------------------------------------------------------------- pairs


def feature_strength(state: State) -> NDArray[np.float64]:
    """Return the noisy root-mean-square effect of every feature."""
    assert state.model is not None
    return np.array(
        [
            np.sqrt((mass @ (table / SCORE_ONE) ** 2).sum() / mass.sum())
            for mass, table in zip(state.counts, state.model.tables, strict=True)
        ]
    )


def candidate_pairs(state: State) -> list[tuple[int, int]]:
    """Return all pairs of features, or those among the strongest main effects when there are too many."""
    m = state.shape.n_features
    most = constants.MAX_CANDIDATES
    features = np.arange(m)
    if m * (m - 1) // 2 > most:
        n_kept = int((1 + np.sqrt(1 + 8 * most)) / 2)
        features = np.sort(np.argsort(-feature_strength(state), kind="stable")[:n_kept])
    return [(int(i), int(j)) for i in features for j in features if j < i]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Interactions of two features: one screening release over candidate tables, then joint rounds on those kept.

    Parameters
    ----------
    rounds : int
    damping : float
    """

    rounds: int = constants.PAIR_ROUNDS
    damping: float = constants.DAMPING

    def declare(self, shape: Shape) -> Demand:  # noqa: ARG002
        """Ask for nothing, or for up to half of what the forest leaves."""
        return Demand(0.0, 0.5, self.rounds + 2)

    def begin(self, state: State) -> State:
        """Build the candidate tables, if the gate lets them in."""
        split = state.notes["split"]
        if split.screen == 0 or state.shape.n_features < 2:
            return replace(state, memory=None)
        assert state.model is not None
        levels = [
            coarsen(mass, bins.categorical, constants.PAIR_CELLS)
            for mass, bins in zip(state.counts, state.model.bins, strict=True)
        ]
        totals: Totals = fresh_totals(state.notes["totals"])
        kernels = []
        for mass, bins, level in zip(state.counts, state.model.bins, levels, strict=True):
            coarse = np.bincount(level, mass).astype(np.float64)
            kernels.append(
                (
                    coarse,
                    smoothing.prior(coarse, ordered=not bins.categorical, missing_last=False),
                )
            )
        cells, blocks = [], []
        for i, j in candidate_pairs(state):
            (mass_i, prior_i), (mass_j, prior_j) = kernels[i], kernels[j]
            cells.append(PairCells(i, j, levels[i], levels[j], len(mass_i), len(mass_j)))
            # rows per cell as if independent; the measured Hessian corrects it
            mass = np.outer(mass_i, mass_j).ravel() / state.n_rows
            root = smoothing.square_root(np.kron(prior_i, prior_j).astype(np.float64))
            blocks.append(tuple(smoothing.new_block(mass, root, h) for h in totals.hess))
        memory = BlocksMemory(
            blocks=tuple(blocks),
            totals=totals,
            round=-1,
            price=split.pairs,
            cells=tuple(cells),
            rescaled=state.shape.kind != "numeric",
        )
        return replace(state, memory=memory)

    def next_query(self, state: State) -> Query | None:
        """Ask for the residual scale, all candidate tables, then the kept ones each round."""
        memory: BlocksMemory | None = state.memory
        if memory is None or not memory.blocks or memory.round >= self.rounds:
            return None
        if not memory.rescaled:
            return residual_query(state, "pairs scale")
        t = memory.round
        screening = t < 0
        return PairSumsQuery(
            label="pair screening" if screening else f"pairs {t + 1}/{self.rounds}",
            price=state.notes["split"].screen
            if screening
            else round_price(memory.price, t, self.rounds),
            weight_bits=state.shape.weight_bits,
            gradient=current_gradient(state),
            n_scores=state.shape.n_scores,
            pairs=memory.cells,
        )

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Keep the tables with positive evidence; then move them towards their posterior mean."""
        memory: BlocksMemory = state.memory
        if isinstance(query, ResidualQuery):
            state = with_residual_scale(state, query, released)
            return replace(state, memory=replace(memory, rescaled=True))
        assert isinstance(query, PairSumsQuery)
        assert state.model is not None
        answer = sums(query, released)
        every_cell = tuple(np.arange(c.n_i * c.n_j, dtype=np.uint8) for c in memory.cells)
        screening = memory.round < 0
        n_rounds = 1 if screening else self.rounds
        seen = observation(state, answer, max(memory.round, 0), n_rounds, pair=True)
        before = memory.totals
        memory = learn(
            memory, every_cell, answer, state, seen, damping=self.damping, move=not screening
        )
        if screening:
            evidence = np.array([sum(b.log_evidence for b in scores) for scores in memory.blocks])
            order = np.argsort(-evidence, kind="stable")[: state.shape.n_features]
            kept = [int(i) for i in order if evidence[i] > 0]
            memory = replace(
                memory,
                blocks=tuple(memory.blocks[i] for i in kept),
                cells=tuple(memory.cells[i] for i in kept),
                totals=replace(fresh_totals(memory.totals), intercepts=before.intercepts),
            )
            return replace(state, memory=memory)
        pairs = tuple(
            PairTable(
                c.i,
                c.j,
                c.map_i,
                c.map_j,
                np.stack([steps(b.f).reshape(c.n_i, c.n_j) for b in scores]),
            )
            for c, scores in zip(memory.cells, memory.blocks, strict=True)
        )
        model = replace(set_intercept(state.model, memory.totals), pairs=pairs)
        return replace(
            state, model=model, memory=memory, notes={**state.notes, "totals": memory.totals}
        )


# ------------------------------------------------------------------------------------------------------------ forest


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestMemory:
    """Batches of trees so far."""

    round: int
    price: int
    rescaled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Totally random trees in batches, on top of the additive model: splits are public, only leaf sums are paid.

    Parameters
    ----------
    rounds : int
    batch : int
        Trees per round, all on the same gradients.
    depth : int
    learning_rate : float
    levels : int
        Thresholds per feature to draw from, of equal noisy mass.
    """

    rounds: int = constants.FOREST_ROUNDS
    batch: int = constants.FOREST_BATCH
    depth: int = constants.FOREST_DEPTH
    learning_rate: float = constants.FOREST_RATE
    levels: int = constants.FOREST_LEVELS

    def __post_init__(self) -> None:
        """Check the options."""
        check_whole("depth", self.depth, 1, 8)
        check_rate("learning_rate", self.learning_rate)

    def declare(self, shape: Shape) -> Demand:  # noqa: ARG002
        """Ask for nothing, or for its share and what the stages before it left."""
        return Demand(0.0, 1.0, self.rounds + 1)

    def begin(self, state: State) -> State:
        """Start with all that is left, if the gate lets it in."""
        assert state.model is not None
        if state.notes["split"].forest == 0:
            return replace(state, memory=None)
        numeric = state.shape.kind == "numeric"
        price = state.left - (int(state.notes["start_price"]) if numeric else 0)
        model = replace(state.model, trees=no_trees(self.depth, state.shape.n_scores))
        return replace(
            state, model=model, memory=ForestMemory(round=0, price=price, rescaled=not numeric)
        )

    def next_query(self, state: State) -> Query | None:
        """Ask for the residual scale, then the leaf sums of the next batch of random trees."""
        memory: ForestMemory | None = state.memory
        if memory is None or memory.round >= self.rounds:
            return None
        if not memory.rescaled:
            return residual_query(state, "forest scale")
        feature, threshold = self._draw(state, state.rng.stream("forest", memory.round))
        return TreeSumsQuery(
            label=f"forest {memory.round + 1}/{self.rounds}",
            price=round_price(memory.price, memory.round, self.rounds),
            weight_bits=state.shape.weight_bits,
            gradient=current_gradient(state),
            n_scores=state.shape.n_scores,
            splits=Splits.plain(feature, threshold),
        )

    def _draw(
        self, state: State, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
        """Draw random splits: features mostly by released strength, thresholds evenly over noisy ranks."""
        assert state.model is not None
        strength = feature_strength(state)
        m = len(strength)
        chance = np.full(m, 1 / m)
        if strength.sum() > 0:
            even = constants.FOREST_EVEN
            chance = even / m + (1 - even) * strength / strength.sum()
        last_bins = []  # per feature: last bin of every level but the highest
        for mass, bins in zip(state.counts, state.model.bins, strict=True):
            level = coarsen(mass, bins.categorical, self.levels)
            ends = np.flatnonzero(np.diff(level.astype(np.int64)))
            last_bins.append(ends if len(ends) else np.zeros(1, np.int64))
        shape = (self.batch, (1 << self.depth) - 1)
        feature = rng.choice(m, shape, p=chance).astype(np.uint16)
        draw = rng.random(shape)
        n_ends = np.array([len(ends) for ends in last_bins])
        pick = (draw * n_ends[feature]).astype(np.int64)
        padded = np.zeros((m, int(n_ends.max())), np.uint8)
        for j, ends in enumerate(last_bins):
            padded[j, : len(ends)] = ends
        return feature, padded[feature, pick]

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Turn noisy leaf sums into shrunken Newton leaves and append the trees."""
        memory: ForestMemory = state.memory
        if isinstance(query, ResidualQuery):
            state = with_residual_scale(state, query, released)
            return replace(state, memory=replace(memory, rescaled=True))
        assert isinstance(query, TreeSumsQuery)
        assert state.model is not None
        answer = sums(query, released)
        grad, hess = answer.grad, np.maximum(answer.hess, 0)
        sd, hess_sd = answer.grad_sd, answer.hess_sd
        n_trees = self.rounds * self.batch
        ridge = sd**2 / (n_trees * 0.1) / (hess + sd) + 2 * hess_sd
        # softmax scores move against each other: the diagonal Hessian overshoots twice as far
        rate = self.learning_rate / (2 if state.shape.kind == "multiclass" else 1)
        leaf = rate * np.clip(
            -grad / (hess + ridge), -constants.LARGEST_LEAF, constants.LARGEST_LEAF
        )
        value = steps(leaf.T).reshape(state.shape.n_scores, self.batch, -1)
        trees = state.model.trees.with_more(query.splits, value)
        model = replace(state.model, trees=trees)
        return replace(state, model=model, memory=replace(memory, round=memory.round + 1))
