"""The noise in the terms of a model, for the bands of explanations (docs/explanations.md §3).

The stages of `auto` leave their filters (`components/auto/noise.py`). Here noise of the known scale is drawn and sent
through them, round by round: a parametric bootstrap with the released tables as the truth. Post-processing of released
values.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.auto.noise import (
    DRAWS,
    Filter,
    ForestNoise,
    LinearTables,
    MainNoise,
    PairNoise,
    Screened,
)
from dpgb_dask.components.auto.smoothing import Seen
from dpgb_dask.contracts.model import SCORE_ONE, BinShares, Model, NoiseBands
from dpgb_dask.contracts.plan import State
from dpgb_dask.kernels.boxes import forest_moves
from dpgb_dask.kernels.posterior import add_errors, moves, tell
from dpgb_dask.released.explain.boxes import Boxes, shares_of_groups
from dpgb_dask.training import blas
from dpgb_dask.training.dependence import Dependence

# What the draws leave out, above all what the coarse and noisy tables of pairs do not tell of how features depend on
# each other: measured on development data (docs/explanations.md §3).
MAIN_WIDTH = 1.5
UNKNOWN = (
    "the noise of the terms is known for the recipes 'auto' and 'additive' alone, once their main"
    " effects are fitted"
)
DIVERGED = "the noise of this fit is too large for its repeated rounds, which do not settle"
WIDEST = 64.0  # score units; a score of this size is as certain as one can be
# posterior means of the draws are found in so many first rounds, in every third one, and in the last; in between tables
# move towards those of before: they change little from round to round, and cost most of a band. With fewer first rounds
# features that copy each other get other bands
FIRST_ROUNDS, EVERY = 5, 3
PROJECTED = "monotonic_cst makes the tables monotone after each round, and what this does to their noise is not known"

Draws = NDArray[np.float64]  # (n_bins, DRAWS)
REAL = np.float32  # of draws in the forest, which are single


@np.errstate(all="ignore")  # rounds that do not settle overflow, and are noticed by their result
def bands_of(state: State, model: Model, shares: BinShares) -> NoiseBands:
    """Return the standard deviations of the noise in a fitted model.

    Parameters
    ----------
    state : State
        At the end of the fit.
    model : Model
    shares : BinShares

    Returns
    -------
    NoiseBands
        None, with the reason, if the noise of the terms is not known: of another recipe, under ``monotonic_cst``, or
        where the repeated rounds do not settle.

    Notes
    -----
    Linear algebra runs on one thread, as in the fit: the same fit has the same bands.
    """
    with blas.one_thread():
        return _bands_of(state, model, shares)


def _bands_of(state: State, model: Model, shares: BinShares) -> NoiseBands:
    mains = state.find(MainNoise)
    if mains is None:
        return NoiseBands(why=UNKNOWN)
    if state.shape.directions is not None:
        return NoiseBands(why=PROJECTED)
    linear, pairs = state.find(LinearTables), state.find(PairNoise)
    forest = state.find(ForestNoise)
    if model.trees.n_trees != (0 if forest is None else forest.gain.shape[1]):
        return NoiseBands(why=UNKNOWN)  # trees of another stage
    screened = state.find(Screened)
    boxes = None if forest is None else Boxes.of(model.trees.splits, shares)
    main_sd, pair_sd = [], []
    for k in range(model.n_scores):
        rng = state.rng.stream("bands", k)
        filters = [own[k] for own in mains.filters]
        dependence = None
        if screened is not None:
            dependence = Dependence.of(screened, [own.seen[-1] for own in filters], k)
        drawn = through_rounds(filters, mains.dampings, rng, dependence)
        if linear is not None:
            linear.add_noise(drawn, k, state.rng.stream("linear bands", k))
        if boxes is not None and forest is not None:
            # what leaves answer to are sums of Hessians
            weights = BinShares.of(model.bins, [own.seen[-1].weight for own in filters])
            drawn = through_forest(drawn, boxes, forest, weights, k, rng)
        main_sd.append([MAIN_WIDTH * size_of(part) for part in drawn])
        if pairs is not None:
            own = [table[k] for table in pairs.filters]
            tables = through_rounds(own, pairs.dampings, rng, passed=True)
            pair_sd.append([size_of(part) for part in tables])
    leaves = np.zeros(model.trees.value.shape) if forest is None else forest.sd
    every = [sd for row in (*main_sd, *pair_sd) for sd in row]
    # not finite, or wider than any score: NaN compares false
    if not all((sd <= WIDEST).all() for sd in (*every, leaves)):
        return NoiseBands(why=DIVERGED)
    return NoiseBands(
        mains=tuple(_steps(np.stack(part, axis=1)) for part in zip(*main_sd, strict=True)),
        pairs=tuple(
            _steps(np.stack(part)).reshape(pair.table.shape)
            for pair, part in zip(model.pairs, zip(*pair_sd, strict=True), strict=True)
        ),
        leaves=_steps(leaves),
    )


def size_of(draws: Draws) -> NDArray[np.float64]:
    """Return the root mean square of draws: their spread, and how far they move on the average."""
    return np.asarray(np.sqrt((draws**2).mean(1)))


def _steps(sd: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(sd * SCORE_ONE).astype(np.int64)


def through_rounds(
    filters: Sequence[Filter],
    dampings: Sequence[float],
    rng: np.random.Generator,
    dependence: Dependence | None = None,
    *,
    passed: bool = False,
) -> list[Draws]:
    """Return draws of how far noise moves tables in the rounds of a stage.

    The observation of a round is the table plus the noise of this round, so a table's own errors do not build up, but
    for what the filter's Hessians differ from those that were released. Each draw has its own evidence for the prior
    scales.

    Parameters
    ----------
    filters : sequence of Filter
        One per table.
    dampings : sequence of float
        How far the tables moved in each round, as a fraction of the distance to the posterior mean.
    rng : numpy.random.Generator
    dependence : Dependence or None
        How errors of one table show in the sums of others, as far as it is known.
    passed : bool
        Whether the tables passed a gate by their evidence. Then the information itself is taken as the truth; otherwise
        what the posterior mean makes of it, which has no more effect than the evidence speaks for.
    """
    tables = [np.zeros((len(own.root), DRAWS)) for own in filters]
    known = [np.zeros((own.root.shape[1], DRAWS)) for own in filters]  # change of the information
    targets = [np.zeros_like(table) for table in tables]
    precision = [np.zeros((len(part), len(part))) for part in known]
    n_rounds = len(dampings) if filters else 0
    for r in range(n_rounds):
        seen = [own.seen[r] for own in filters]
        steps = seen[0].scales is not None
        sums, total = (
            sums_of(tables, seen, rng, dependence)
            if steps
            else ([np.empty((one.n_leaves, 0)) for one in seen], np.empty(0))
        )
        for j, (one, own) in enumerate(zip(seen, filters, strict=True)):
            tell(
                one.leaf,
                one.weight,
                own.root,
                sums[j],
                total,
                grad_sd=one.grad_sd,
                sampling=one.sampling,
                omitted=one.omitted,
                keep=one.keep,
                rank=one.rank,
                precision=precision[j],
                known=known[j],
            )
            if one.scales is None:
                continue
            if is_found(r, n_rounds):
                moved = moves(
                    precision[j], one.shift, known[j], one.scales,
                    log_odds=one.log_odds, passed=passed,
                )  # fmt: skip
                targets[j] = own.root[:, : one.rank] @ moved
            tables[j] += dampings[r] * (targets[j] - tables[j])
    return tables


def is_found(r: int, n_rounds: int) -> bool:
    """Return whether the posterior means of the draws are found anew in a round."""
    return r < FIRST_ROUNDS or r % EVERY == 0 or r == n_rounds - 1


def sums_of(
    tables: Sequence[Draws],
    seen: Sequence[Seen],
    rng: np.random.Generator,
    dependence: Dependence | None,
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Return draws of the change of the sums of a round, per table (n_leaves, DRAWS), and of the total, (DRAWS,).

    It is the noise of the round, the table's own error times what the filter's Hessians are too large by, and the
    errors of other tables as far as they are known to show.
    """
    others = None if dependence is None else dependence.carried(tables, seen)
    sizes = [one.n_leaves for one in seen]
    starts = np.cumsum([0, *sizes[:-1]])
    # one release: all cells have the same noise
    every = seen[0].grad_sd * rng.standard_normal((sum(sizes), DRAWS))
    sums = [every[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    for j, (one, table) in enumerate(zip(seen, tables, strict=True)):
        add_errors(
            one.leaf,
            one.weight,
            table,
            sums[j],
            own=1 - one.curvature,
            others=None if others is None else others[j],
            other=-one.curvature,
        )
    # estimates of the total: of every table that kept no leaf back, and the released one, if any did
    own = np.array([one.omitted < 0 for one in seen])
    whole, n_summed = np.add.reduceat(every, starts)[own], np.array(sizes)[own]
    if not own.all():
        whole = np.vstack([whole, rng.normal(0, seen[0].grad_sd, DRAWS)])
        n_summed = np.append(n_summed, 1)
    precision = 1 / n_summed
    return sums, precision @ whole / precision.sum()


def through_forest(
    tables: Sequence[Draws],
    boxes: Boxes,
    forest: ForestNoise,
    weights: BinShares,
    k: int,
    rng: np.random.Generator,
) -> list[Draws]:
    """Return draws of the noise in main effects after the forest, which takes back a part of the errors it finds.

    Parameters
    ----------
    tables : sequence of (n_bins, DRAWS) float64
        Noise before the forest.
    boxes : Boxes
        Of the forest's leaves, under the shares of rows.
    forest : ForestNoise
    weights : BinShares
        Shares of Hessians.
    k : int
        Score column.
    rng : numpy.random.Generator
    """
    _, mass = shares_of_groups(boxes.groups, weights)
    now = np.zeros((*mass.shape, DRAWS), REAL)
    for own, group, weight, table in zip(now, boxes.groups, weights.weights, tables, strict=True):
        mean = mean_of_groups(group, weight)
        own[: len(mean)] = mean @ table
    moved = np.zeros_like(now)
    n_leaves = forest.gain.shape[2]
    gain = forest.gain[k].reshape(-1)
    # Σh of a leaf by the shares: the noisy part of its own would count as signal
    of_error = -gain * forest.hess[k]
    of_noise = (gain * np.repeat(forest.grad_sd, n_leaves)).astype(REAL)
    for scale, rows in zip(forest.scales, slices(forest.batches, n_leaves), strict=True):
        noise = of_noise[rows, None] * signs((rows.stop - rows.start, DRAWS), rng)
        move = forest_moves(
            boxes.feature[rows],
            boxes.inside[rows],
            boxes.share[rows],
            mass,
            of_error[rows],
            noise,
            now,
        )
        # later rounds answered to the trees as they were then
        now += move
        moved += REAL(scale) * move
    return [
        table + part[group] for table, part, group in zip(tables, moved, boxes.groups, strict=True)
    ]


def signs(shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return 1 or -1 at random: for a variance as good as normal noise, and drawn several times as fast."""
    n = shape[0] * shape[1]
    bits = np.unpackbits(rng.integers(0, 256, -(-n // 8), np.uint8), count=n)
    return (2 * bits.astype(REAL) - 1).reshape(shape)


def mean_of_groups(group: NDArray[np.uint8], share: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the matrix that averages a table over groups of its bins, (n_groups, n_bins)."""
    mass, count = np.bincount(group, share), np.bincount(group)
    out = np.zeros((len(mass), len(group)))
    part = np.where(mass > 0, 1 / np.where(mass > 0, mass, 1), 0)[group] * share
    out[group, np.arange(len(group))] = np.where(mass[group] > 0, part, 1 / count[group])
    return out


def slices(batches: Sequence[int], n_leaves: int) -> Iterator[slice]:
    """Yield the leaves of the trees that share a gradient."""
    start = 0
    for n_trees in batches:
        yield slice(start, start := start + n_trees * n_leaves)
