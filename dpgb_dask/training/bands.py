"""The noise in the terms of a model, for the bands of explanations (docs/explanations.md §3).

The stages of `auto` leave their filters (`components/auto/noise.py`). Here noise of the known scale is drawn and sent
through them, round by round, linearised at what was released. Post-processing of released values.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.auto.noise import Filter, ForestNoise, MainNoise, PairNoise
from dpgb_dask.contracts.model import SCORE_ONE, BinShares, Model, NoiseBands
from dpgb_dask.contracts.plan import F, State
from dpgb_dask.released.explain.boxes import Boxes

DRAWS = 100  # of the noise; their standard deviation is known to 7 %
# what the linearised filter leaves out, above all that features depend on each other, so that errors of one table show
# in the sums of others: measured on development data (docs/explanations.md §3)
MAIN_WIDTH, PAIR_WIDTH = 1.5, 1.2
UNKNOWN = (
    "the noise of the terms is known for the recipe 'auto' alone, once its main effects are fitted"
)
DIVERGED = "the noise of this fit is too large for its linearised rounds, which do not settle"
WIDEST = 64.0  # score units; a score of this size is as certain as one can be
PROJECTED = "monotonic_cst makes the tables monotone after each round, and what this does to their noise is not known"

Draws = NDArray[np.float64]  # (n_bins, DRAWS)


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
        where the linearised rounds do not settle.
    """
    mains = _fact(state, MainNoise)
    if mains is None:
        return NoiseBands(why=UNKNOWN)
    if state.shape.directions is not None:
        return NoiseBands(why=PROJECTED)
    pairs, forest = _fact(state, PairNoise), _fact(state, ForestNoise)
    boxes = None if forest is None else Boxes.of(model.trees.splits, shares)
    main_sd, pair_sd = [], []
    for k in range(model.n_scores):
        rng = state.rng.stream("bands", k)
        filters = [own[k] for own in mains.filters]
        drawn = through_rounds(filters, mains.damping, rng)
        if boxes is not None and forest is not None:
            # what leaves answer to are sums of Hessians
            weights = BinShares.of(model.bins, [own.seen[-1].weight for own in filters])
            heavy = Boxes.of(model.trees.splits, weights)
            drawn = through_forest(drawn, boxes, heavy, forest, weights, k, rng)
        main_sd.append([MAIN_WIDTH * part.std(1) for part in drawn])
        if pairs is not None:
            own = [table[k] for table in pairs.filters]
            tables = through_rounds(own, pairs.damping, rng)
            pair_sd.append([PAIR_WIDTH * part.std(1) for part in tables])
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


def _fact(state: State, kind: type[F]) -> F | None:
    return next((fact for fact in state.facts if isinstance(fact, kind)), None)


def _steps(sd: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(sd * SCORE_ONE).astype(np.int64)


def through_rounds(
    filters: Sequence[Filter], damping: float, rng: np.random.Generator
) -> list[Draws]:
    """Return draws of the noise in tables at the end of a stage.

    The observation of a round is the table plus the noise of this round, so a table's own errors do not build up.
    """
    tables = [np.zeros((len(own.response.basis), DRAWS)) for own in filters]
    known = [np.zeros_like(table) for table in tables]
    n_rounds = len(filters[0].seen) if filters else 0
    t = np.arange(n_rounds)
    total = (t + 1) * (t + 4) / (2 * (t + 2))  # of the information after each round, in rounds
    for r in range(n_rounds):
        seen = [own.seen[r] for own in filters]
        noise = [rng.normal(0, one.grad_sd, (one.n_leaves, DRAWS)) for one in seen]
        precision = np.array([1 / one.n_leaves for one in seen])
        whole = np.einsum("j,jd->d", precision, [part.sum(0) for part in noise]) / precision.sum()
        for j, (one, own) in enumerate(zip(seen, filters, strict=True)):
            mass = np.bincount(one.leaf, one.weight, one.n_leaves)
            pull = noise[j] - whole * (mass / mass.sum())[:, None]
            certainty = 1 / (one.grad_sd**2 + one.sampling * mass)
            keep = 1 - 1 / (r + 2)
            known[j] = keep * known[j] + one.weight[:, None] * (certainty[:, None] * pull)[one.leaf]
            target = own.response.change(known[j], total[r] / total[-1])
            tables[j] = tables[j] + damping * (target - tables[j])
    return tables


def through_forest(
    tables: Sequence[Draws],
    boxes: Boxes,
    heavy: Boxes,
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
    boxes, heavy : Boxes
        Under the shares of rows, and of Hessians.
    weights : BinShares
        Shares of Hessians.
    """
    means = [mean_of_groups(g, w) for g, w in zip(boxes.groups, weights.weights, strict=True)]
    before = [mean @ table for mean, table in zip(means, tables, strict=True)]
    now = list(before)
    sides = [boxes.of_feature(j) for j in range(len(tables))]
    # the mean error in a leaf, given the error of each group
    found = [
        side.inside * mass / np.where(side.share > 0, side.share, 1)[:, None]
        for side, mass in zip(map(heavy.of_feature, range(len(tables))), heavy.weights, strict=True)
    ]
    _, n_trees, n_leaves = forest.gain.shape
    gain = forest.gain[k].reshape(-1)
    # Σh of a leaf by the shares: the noisy part of its own would count as signal
    hess = forest.hess[k] * heavy.share.prod(1)
    sd = np.repeat(forest.grad_sd, n_leaves)
    for rows in batches(n_trees, n_leaves, forest.batch):
        error = np.zeros((rows.stop - rows.start, DRAWS))
        here = [(side.leaf >= rows.start) & (side.leaf < rows.stop) for side in sides]
        for part, inside, side, group in zip(here, found, sides, now, strict=True):
            error[side.leaf[part] - rows.start] += inside[part] @ group  # each leaf once
        noise = rng.normal(0, 1, error.shape) * sd[rows, None]
        step = -gain[rows, None] * (hess[rows, None] * error + noise)
        now = [
            group + side.effect[part].T @ step[side.leaf[part] - rows.start]
            for part, side, group in zip(here, sides, now, strict=True)
        ]
    return [
        table + (after - old)[group]
        for table, old, after, group in zip(tables, before, now, boxes.groups, strict=True)
    ]


def mean_of_groups(group: NDArray[np.uint8], share: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the matrix that averages a table over groups of its bins, (n_groups, n_bins)."""
    mass, count = np.bincount(group, share), np.bincount(group)
    out = np.zeros((len(mass), len(group)))
    part = np.where(mass > 0, 1 / np.where(mass > 0, mass, 1), 0)[group] * share
    out[group, np.arange(len(group))] = np.where(mass[group] > 0, part, 1 / count[group])
    return out


def batches(n_trees: int, n_leaves: int, batch: int) -> Iterator[slice]:
    """Yield the leaves of the trees that share a gradient."""
    for start in range(0, n_trees, batch):
        yield slice(start * n_leaves, min(start + batch, n_trees) * n_leaves)
