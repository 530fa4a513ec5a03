"""What the additive stages share: noisy totals, the residual scale, and the posterior update of tables.

A table holds one value per bin of a feature, or per cell of a pair. What changes between rounds is the stage's memory,
a frozen record.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.answers import Sums, l2_norm, natural, noise_sd
from dpgb_dask.components.auto import smoothing
from dpgb_dask.components.auto.noise import DRAWS
from dpgb_dask.components.auto.reference import TableSums
from dpgb_dask.components.auto.residuals import Look, Residuals, edges_for
from dpgb_dask.components.auto.schedules import BudgetSplit
from dpgb_dask.components.auto.smoothing import Intercept, Observation, TablePosterior
from dpgb_dask.components.auto.stepping import NO_STEP, Step, averaged, inner
from dpgb_dask.contracts.model import SCORE_ONE, Model
from dpgb_dask.contracts.plan import Answer, Facts, Needs, Shape, State
from dpgb_dask.contracts.queries import PRICE_ONE, PairCells, Query, ResidualQuery
from dpgb_dask.frozen import pieces, replaced
from dpgb_dask.losses import (
    CLASS_CLIP,
    GRAD_ONE,
    FreeSquaredGradient,
    Gradient,
    clipped_softmax_gradient,
    logistic_gradient,
)

T = TypeVar("T")


def gradient_of(kind: str, clip: float, n_scores: int) -> Gradient:
    """Return the integer gradient of the default loss at a clip; for a numeric target in [-1, 1], 1 is no clip."""
    if kind == "binary":
        return logistic_gradient(constants.CLIP, constants.HESS_SCALE)
    if kind == "multiclass":
        return clipped_softmax_gradient(
            n_scores,
            clip=CLASS_CLIP,
            hess_scale=constants.HESS_SCALE,
            curvature=constants.CLASS_CURVATURE,
        )
    clip_steps = max(round(clip * SCORE_ONE), 1)
    hess_steps = max(round(constants.NUMERIC_HESS_SCALE * clip * GRAD_ONE), 1)
    return FreeSquaredGradient(clip_steps, hess_steps)


def largest_hess(kind: str) -> float:
    """Return the largest Hessian that a row can have."""
    return 1.0 if kind == "numeric" else 0.25


def on_grid(values: Any) -> NDArray[np.float64]:
    """Round to the grid of score steps, so that the filter has exactly the values that the shards hold."""
    rounded: NDArray[np.float64] = np.rint(np.asarray(values) * SCORE_ONE) / SCORE_ONE
    return rounded


def steps(values: Any) -> NDArray[np.int32]:
    """Return values on the grid as int32 score steps."""
    return np.rint(np.asarray(values) * SCORE_ONE).astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Estimates from noisy sums over the whole data set, one per score: intercepts and the mean Hessian of a row."""

    intercepts: tuple[Intercept, ...]
    hess: tuple[float, ...]


NO_TOTALS = Totals(intercepts=(), hess=())
NO_SPLIT = BudgetSplit(main=0, screen=0, pairs=0, forest=0)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AutoFacts(Facts):
    """What the stages of `auto` know about the data set once the stage `Start` has begun.

    Parameters
    ----------
    start_price : int
        Price of the next release of `Start`, and of each residual scale after it.
    totals : Totals
        Empty until a release tells of the target.
    clip : float
        Bound of a row's gradient. For a numeric target it is a quantile of the residuals, once a first residual scale
        was released.
    split : BudgetSplit
        Prices of the later stages; zero until `Start` ends.
    scales : (n_scales,) float64, or None
        What the last histogram of residuals, or all of a target, told of their scale (`Residuals`).
    spread : float
        About the standard deviation of a numeric target, in half the width of its bounds; 1 until a release tells it.
    most_candidates : int
        Pairs of features that may be candidates.
    mean_price : int
        Kept for `Mean`, the last stage.
    reach : float
        Clip at which the mean of the residuals is told best, score units.
    """

    start_price: int
    totals: Totals = NO_TOTALS
    clip: float = constants.CLIP
    split: BudgetSplit = NO_SPLIT
    scales: NDArray[np.float64] | None = None
    spread: float = 1.0
    most_candidates: int = constants.MAX_CANDIDATES
    mean_price: int = 0
    reach: float = 1.0

    @property
    def narrow(self) -> float:
        """How large effects may be, beside those of a target that spreads over its range: 1, or less."""
        return min(self.spread / constants.USUAL_SPREAD, 1.0)


def split_of(state: State) -> BudgetSplit | None:
    """Return the prices of the later stages; None as long as `Start` has not divided the budget."""
    found = state.find(AutoFacts)
    return None if found is None or found.split == NO_SPLIT else found.split


def observe_totals(
    totals: Totals,
    grad: NDArray[np.float64],
    hess: NDArray[np.float64],
    n_summed: NDArray[np.int64],
    state: State,
    observed: Observation,
    damping: float,
) -> tuple[Totals, NDArray[np.float64]]:
    """Combine estimates of the totals, weighted by their precision, and move the intercepts.

    Parameters
    ----------
    totals : Totals
        Before the round.
    grad, hess : (n_estimates, n_scores) float64
        Noisy estimates of the same two sums, such as the totals of each table.
    n_summed : (n_estimates,) int64
        Released cells that each adds up: the variance of its noise, as a multiple of a cell's.
    state : State
    observed : Observation
    damping : float
        How far the intercepts move, as a fraction of the distance.

    Returns
    -------
    totals : Totals
    grad_total : (n_scores,) float64
    """
    precision = 1 / (n_summed * observed.grad_sd**2)
    variance = 1 / precision.sum()
    grad_total = precision @ grad * variance
    top = largest_hess(state.shape.kind) * state.n_rows
    hess_total = np.clip(precision @ hess * variance, 0.03 * top, top)
    mean_hess = tuple(
        old + constants.MEAN_HESS_STEP * (float(new) / state.n_rows - old)
        for old, new in zip(totals.hess, hess_total, strict=True)
    )
    intercepts = tuple(
        on_grid_intercept(i.step(float(g), h * state.n_rows, observed, float(variance), damping))
        for i, g, h in zip(totals.intercepts, grad_total, mean_hess, strict=True)
    )
    return Totals(intercepts=intercepts, hess=mean_hess), grad_total


def on_grid_intercept(intercept: Intercept) -> Intercept:
    """Round an intercept to the grid of score steps."""
    return replace(intercept, f=float(on_grid(intercept.f)))


def fresh_totals(totals: Totals) -> Totals:
    """Keep the values and drop the information about them: the filter of each stage starts anew, from there."""
    anew = tuple(Intercept(i.f, centre=i.f, prior=i.prior) for i in totals.intercepts)
    return replace(totals, intercepts=anew)


def sampling_variance(state: State) -> float:
    """Variance of a row's gradient per unit of Hessian: 1 for log-loss, that of the residuals for squared loss."""
    if state.shape.kind != "numeric":
        return 1.0
    return float((state.fact(AutoFacts).clip / constants.NORMAL_SPREAD) ** 2)


def hess_of_trees(state: State) -> float:
    """Return the mean Hessian of a row that trees have for their signal; over all scores, as a split serves all."""
    if state.shape.kind == "numeric":
        return constants.NUMERIC_HESS
    return float(np.sum(state.fact(AutoFacts).totals.hess))


def curvature_of(kind: str) -> float:
    """Return what Hessians are of the curvature: Newton steps of leaves are multiplied by it."""
    return constants.CLASS_CURVATURE if kind == "multiclass" else 1.0


def hess_of_rows(state: State) -> tuple[float, ...]:
    """Return the curvature of the loss over all rows, per score."""
    times = state.n_rows / curvature_of(state.shape.kind)
    return tuple(mean * times for mean in state.fact(AutoFacts).totals.hess)


def current_gradient(state: State) -> Gradient:
    """Return the gradient with the current clip bound."""
    return gradient_of(state.shape.kind, state.fact(AutoFacts).clip, state.shape.n_scores)


def sd_of_run(gradient: Gradient, n_blocks: int, price: int, max_weight: int) -> float:
    """Return the standard deviation of the noise on a sum if the whole price of a stage were spent on one release."""
    return noise_sd(max_weight * l2_norm(gradient) * float(np.sqrt(n_blocks)), price, PRICE_ONE)


def observation(state: State, answer: Sums, t: int, n_rounds: int, *, pair: bool) -> Observation:
    """Return how round ``t`` of a stage weights its answer."""
    top = largest_hess(state.shape.kind)
    return Observation(
        grad_sd=answer.grad_sd,
        hess_sd=answer.hess_sd,
        round=t,
        sampling=n_rounds * sampling_variance(state),
        hess_low=0.0 if pair else constants.LEAST_HESS * top,
        hess_high=constants.PAIR_HESS_EXCESS * top if pair else top,
    )


def large_step(state: State) -> float:
    """Return a large step of the score: the bound of residuals of a numeric target, 1 for classes."""
    return state.fact(AutoFacts).clip if state.shape.kind == "numeric" else 1.0


def scale_of_effects(state: State) -> float:
    """Return what prior scales are multiplied by: for a numeric target a half, and less if it is narrow."""
    share = 0.5 if state.shape.kind == "numeric" else 1.0
    return share * state.fact(AutoFacts).narrow


def prior_scales(state: State) -> NDArray[np.float64]:
    """Return the prior scales in score units."""
    return constants.PRIOR_SCALES * scale_of_effects(state)


def effect_odds(shape: Shape) -> float:
    """Return the logarithm of the odds of each prior scale above 0 beside no effect, for one of the tables.

    As many tables have an effect a priori as of `constants.EFFECTS` features; fewer features are all as likely to.
    """
    return min(0.0, float(np.log(constants.EFFECTS / shape.n_features)))


def residual_query(state: State, label: str) -> ResidualQuery:
    """Return the query for a histogram of the residuals."""
    price = state.fact(AutoFacts).start_price
    return ResidualQuery(
        label=label,
        price=price,
        weight_bits=state.shape.weight_bits,
        edges=edges_for(look_signal(state, price)),
    )


def look_signal(state: State, price: int) -> float:
    """Return how many standard deviations of the noise on a cell of residuals all rows are, at a price."""
    return state.n_rows / state.shape.max_weight * float(np.sqrt(price / PRICE_ONE))


def look_of(query: Query, released: Answer, start: float) -> Look:
    """Return a released histogram of residuals."""
    assert isinstance(query, ResidualQuery)
    values, sd = natural(query, released)
    return Look(edges=query.edges, values=values, sd=sd, start=start)


def with_residual_scale(
    state: State, query: Query, released: Answer, quantile: float = constants.RESIDUAL_QUANTILE
) -> State:
    """Set the clip bound to a quantile of |residual|, or wider where that would move the mean, or noise may hide it."""
    found = state.fact(AutoFacts)
    look = look_of(query, released, 0.0)
    seen = Residuals.of_model(look, state.n_rows, found.scales)
    hidden = constants.CLIP_HIDDEN * look.sd / state.n_rows
    least = min(hidden, constants.CLIP_KEPT) * found.clip
    clip = float(np.clip(seen.clip(quantile), least, 1.0))
    reach = seen.reach(clip, look_signal(state, found.mean_price))
    return state.with_fact(replace(found, clip=clip, scales=seen.scales, reach=reach))


def with_totals(state: State, totals: Totals) -> State:
    """Return the state with the totals of a round, for later stages."""
    return state.with_fact(replace(state.fact(AutoFacts), totals=totals))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PosteriorMemory:
    """Memory of a stage that updates tables in rounds: ``blocks[j][k]`` is the posterior of table j for score k.

    ``partitions[t][j]`` are the leaves of the bins of table j in round t, where they are drawn.
    """

    blocks: tuple[tuple[TablePosterior, ...], ...]
    totals: Totals
    round: int
    price: int
    partitions: tuple[tuple[NDArray[np.uint8], ...], ...] = ()
    cells: tuple[PairCells, ...] = ()
    rescaled: bool = False
    step: Step = NO_STEP
    dampings: tuple[float, ...] = ()


def needs_of_blocks(n_scores: int, sizes: Sequence[int], rounds: int) -> Needs:
    """Return the memory that rounds over tables of some numbers of cells need.

    A table holds one root, and for each score a precision and, during the update, the next precision. A thread works
    with at most eight such arrays of the largest table: products, a reduction to tridiagonal form, right-hand sides and
    solutions for every leaf, and what its allocator keeps. For the bands stay the root and, from each round and score,
    a leaf (1 byte), a weight and a shift (8 each) per cell, in about 500 bytes of objects; they are computed from
    another precision and three arrays of draws.
    """
    squares = [8 * size * size for size in sizes]
    rounds_seen = n_scores * rounds * sum(17 * size + 500 for size in sizes)
    return Needs(
        held=(1 + 2 * n_scores) * sum(squares) + rounds_seen,
        per_thread=8 * max(squares, default=0),
        kept=2 * sum(squares) + 24 * DRAWS * sum(sizes) + rounds_seen,
    )


def round_price(price: int, done: int, n_rounds: int) -> int:
    """Return the price of round ``done`` of ``n_rounds``; the prices are nearly equal and sum to ``price`` exactly."""
    return price * (done + 1) // n_rounds - price * done // n_rounds


def learn(
    memory: PosteriorMemory,
    leaf_of_bin: tuple[NDArray[np.uint8], ...],
    released: TableSums,
    state: State,
    observed: Observation,
    *,
    damping: float,
    move: bool = True,
    evidence: bool = True,
    ordered: Callable[[int, NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> PosteriorMemory:
    """Update the posterior of every table from one joint release.

    Parameters
    ----------
    memory : PosteriorMemory
    leaf_of_bin : tuple of ((n_bins,) uint8)
        Leaf of each bin, per table.
    released : TableSums
    state : State
    observed : Observation
    damping : float
        The most that a table moves, as a fraction of the distance; less where tables act together (`Step`).
    move : bool
        Whether the model moves towards the posterior mean; in the screening round it does not.
    evidence : bool
        Whether the posterior mean is averaged over prior scales by their evidence, or uses the first guess of the
        scale.
    ordered : callable or None
        Called with a table's position and its new values; returns them monotone. The posterior itself is that of the
        releases: they were made at the values that the model holds, whatever these are.
    """
    totals, grad_total = observe_totals(
        memory.totals,
        released.grad_totals,
        released.hess_totals,
        released.n_summed,
        state,
        observed,
        damping if move else 0.0,
    )
    first = constants.FIRST_SCALE * state.fact(AutoFacts).narrow
    scales = prior_scales(state) if evidence else first
    scales.flags.writeable = False
    odds = effect_odds(state.shape)
    rooms = _precisions(memory.blocks)

    def learn_block(j: int) -> list[tuple[TablePosterior, smoothing.Mean]]:
        row = []
        grad, hess = (np.ascontiguousarray(of[j].T) for of in (released.grad, released.hess))
        for k, block in enumerate(memory.blocks[j]):
            told = smoothing.observe(
                block,
                leaf_of_bin[j],
                grad[k],
                hess[k],
                float(grad_total[k]),
                observed,
                omitted=released.omitted[j],
                hess_total=totals.hess[k] * state.n_rows,
                scales=scales if move else None,
                log_odds=odds,
                out=rooms[j][k],
            )
            row.append((told, smoothing.posterior_mean(told, scales)))
        return row

    # the workers wait for these reductions between two rounds; kernels compute them without the GIL
    learnt = in_threads(learn_block, len(memory.blocks), state.n_threads)
    means = [[mean for _, mean in row] for row in learnt]
    blocks = tuple(tuple(told for told, _ in row) for row in learnt)
    memory = replace(memory, blocks=blocks, totals=totals, round=memory.round + 1)
    if not move:
        dampings = (*memory.dampings, 0.0)
        return replace(_with_values(memory, means), dampings=dampings)
    return _moved(memory, means, leaf_of_bin, released, observed, state, damping, ordered)


def in_threads(function: Callable[[int], T], n: int, n_threads: int) -> list[T]:
    """Return ``function`` of 0 to n - 1; a thread computes every so many of them, as handing each over costs more."""
    n_threads = min(n_threads, n)
    if n_threads <= 1:
        return [function(j) for j in range(n)]
    with ThreadPoolExecutor(n_threads) as pool:
        parts = pool.map(
            lambda first: [function(j) for j in range(first, n, n_threads)], range(n_threads)
        )
        out: list[T] = [None] * n  # type: ignore[list-item]
        for first, part in enumerate(parts):
            out[first::n_threads] = part
    return out


def joined(rows: Sequence[Sequence[NDArray[np.float64]]]) -> NDArray[np.float64]:
    """Return values per table and score one after another, (n_bins of all tables, n_scores)."""
    return np.stack([np.concatenate(column) for column in zip(*rows, strict=True)], axis=1)


def _with_values(
    memory: PosteriorMemory,
    means: list[list[smoothing.Mean]],
    new: NDArray[np.float64] | None = None,
) -> PosteriorMemory:
    """Return the memory with the evidence of the tables, and their new values, if they have any."""
    values = None if new is None else np.ascontiguousarray(new.T)
    if values is not None:
        values.flags.writeable = False
    blocks, start = [], 0
    for row, own in zip(memory.blocks, means, strict=True):
        here = slice(start, start := start + len(row[0].mass))
        blocks.append(
            tuple(
                replaced(
                    block,
                    f=block.f if values is None else values[k, here],
                    log_evidence=mean.log_evidence,
                )
                for k, (block, mean) in enumerate(zip(row, own, strict=True))
            )
        )
    return replace(memory, blocks=tuple(blocks))


def _moved(
    memory: PosteriorMemory,
    means: list[list[smoothing.Mean]],
    leaf_of_bin: tuple[NDArray[np.uint8], ...],
    released: TableSums,
    observed: Observation,
    state: State,
    most: float,
    ordered: Callable[[int, NDArray[np.float64]], NDArray[np.float64]] | None,
) -> PosteriorMemory:
    """Move all tables towards their means as far as `Step` says."""
    sizes = [len(leaf) for leaf in leaf_of_bin]
    n_leaves = [len(part) for part in released.grad]
    leaf = np.concatenate(leaf_of_bin) + np.repeat(np.cumsum(n_leaves) - n_leaves, sizes)
    old = joined([[block.f for block in row] for row in memory.blocks])
    weight = joined([[block.seen[-1].weight for block in row] for row in memory.blocks])
    step = memory.step
    if step.moved is not None:
        step = step.seen(released, averaged(step.moved, weight, leaf), observed.grad_sd)
    whole = joined([[mean.value for mean in row] for row in means]) - old
    unexplained = sampling_variance(state) * sum(memory.totals.hess) * state.n_rows
    rate = step.damping(whole, weight, unexplained, n_tables=len(sizes), most=most)
    new = on_grid(old + rate * whole)
    if ordered is not None:
        tables = pieces(new, sizes)
        new = np.concatenate(
            [
                np.stack([on_grid(ordered(j, f)) for f in table.T], axis=1)
                for j, table in enumerate(tables)
            ]
        )
    moved = new - old
    against = sum(mean.follows_noise for row in means for mean in row) * observed.grad_sd**2
    slope = inner(np.concatenate(released.grad), averaged(moved, weight, leaf)) + rate * against
    return replace(
        _with_values(memory, means, new),
        step=replace(step, moved=moved, slope=slope),
        dampings=(*memory.dampings, rate),
    )


def tables_of(memory: PosteriorMemory) -> tuple[NDArray[np.int32], ...]:
    """Return the values of all tables in score steps, (n_bins, n_scores) each."""
    sizes = [len(row[0].mass) for row in memory.blocks]
    values = steps(joined([[block.f for block in row] for row in memory.blocks]))
    return pieces(values, sizes)


def _precisions(blocks: Sequence[tuple[TablePosterior, ...]]) -> list[list[NDArray[np.float64]]]:
    """Return memory for the next precision of every table, in one array.

    Two rounds later its memory is freed as a whole; many arrays of half a MiB each would fragment the memory.
    """
    everything = np.empty(sum(block.precision.size for row in blocks for block in row))
    start = 0

    def room_of(block: TablePosterior) -> NDArray[np.float64]:
        nonlocal start
        start += block.precision.size
        return everything[start - block.precision.size : start].reshape(block.precision.shape)

    return [[room_of(block) for block in row] for row in blocks]


def set_intercept(model: Model, totals: Totals) -> Model:
    """Write the intercepts into the model."""
    return replace(model, intercept=steps([i.f for i in totals.intercepts]))
