"""A model as intercept + main effects + pairs + remainder, exactly, in whole score steps.

Functional ANOVA under the released shares of bins, features taken as independent of each other (docs/explanations.md
§1). Main effects have mean zero, pairs have mean zero along both features. What the forest adds to them is its
conditional means, rounded to score steps; the remainder is the forest without these, row by row.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import SHARE_ONE, BinShares, Model, NoiseBands, PairTable
from dpgb_dask.released.explain.boxes import Boxes
from dpgb_dask.released.predict import Codes, scorer

MOST_PAIRS = 32  # pairs that are shown of a forest, beside those of pair tables


@dataclass(frozen=True, eq=False, slots=True)
class PairEffect:
    """The joint effect of two features beyond their main effects, over groups of their bins.

    Parameters
    ----------
    i, j : int
        Features, i < j.
    map_i, map_j : (n_bins of the feature,) uint8
        Bin to row or column of the table.
    table : (n_scores, n_i, n_j) int64, score steps
    """

    i: int
    j: int
    map_i: NDArray[np.uint8]
    map_j: NDArray[np.uint8]
    table: NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Decomposition:
    """Intercept, main effects and pairs of a model; what is left of the score is the remainder.

    Parameters
    ----------
    intercept : (n_scores,) int64, score steps
    mains : tuple of ((n_bins, n_scores) int64), score steps
    pairs : tuple of PairEffect
    remains : bool
        Whether there is a remainder: the model has trees.
    """

    intercept: NDArray[np.int64]
    mains: tuple[NDArray[np.int64], ...]
    pairs: tuple[PairEffect, ...]
    remains: bool

    def contributions(self, model: Model, k: int) -> Callable[[Codes], NDArray[np.int64]]:
        """Return a function from codes to (n_rows, n_terms) int64 score steps, for score column ``k``.

        With the intercept they sum to the model's score. The columns are main effects, pairs and the remainder, if any.
        """
        score = scorer(model)

        def of_codes(codes: Codes) -> NDArray[np.int64]:
            out = np.empty(
                (codes.shape[1], len(self.mains) + len(self.pairs) + self.remains), np.int64
            )
            for j, main in enumerate(self.mains):
                out[:, j] = main[codes[j], k]
            for t, pair in enumerate(self.pairs, start=len(self.mains)):
                out[:, t] = pair.table[k, pair.map_i[codes[pair.i]], pair.map_j[codes[pair.j]]]
            if self.remains:
                out[:, -1] = score(codes)[:, k] - self.intercept[k] - out[:, :-1].sum(1)
            return out

        return of_codes


def rounded(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return values rounded to whole score steps."""
    return np.rint(values).astype(np.int64)


def decompose(model: Model, shares: BinShares) -> Decomposition:
    """Decompose a model under the released shares of its bins.

    Parameters
    ----------
    model : Model
    shares : BinShares

    Returns
    -------
    Decomposition
        Its pairs are those of pair tables, in their order, then those of the forest: at most `MOST_PAIRS`, those of the
        largest variance.

    Privacy
    -------
    Post-processing of released values.
    """
    weights = [part / SHARE_ONE for part in shares.weights]
    intercept = model.intercept.astype(np.int64)
    tables = [table.astype(np.int64) for table in model.tables]
    for own_pair in (pair for pair in model.pairs if pair.i == pair.j):
        tables[own_pair.i] += own_pair.table[:, own_pair.map_i, own_pair.map_j].T
    mains = []
    for table, own in zip(tables, weights, strict=True):
        mean = rounded(own @ table)
        mains.append(table - mean)
        intercept = intercept + mean
    pairs: dict[tuple[int, int], PairEffect] = {}
    for pair in (_ordered(pair) for pair in model.pairs if pair.i != pair.j):
        w_i, w_j = (
            np.bincount(pair.map_i, weights[pair.i]),
            np.bincount(pair.map_j, weights[pair.j]),
        )
        mean = rounded((pair.table @ w_j) @ w_i)
        pure = pair.table - mean[:, None, None]
        rows, columns = rounded(pure @ w_j), rounded(w_i @ pure)
        intercept = intercept + mean
        mains[pair.i] = mains[pair.i] + rows.T[pair.map_i]
        mains[pair.j] = mains[pair.j] + columns.T[pair.map_j]
        table = pure - rows[:, :, None] - columns[:, None, :]
        _add(pairs, PairEffect(pair.i, pair.j, pair.map_i, pair.map_j, table))
    remains = model.trees.n_trees > 0
    if remains:
        boxes = Boxes.of(model.trees.splits, shares)
        value = model.trees.value.reshape(model.n_scores, -1).astype(np.float64)
        intercept = intercept + rounded(boxes.mean(value))
        for j, effect in enumerate(boxes.mains(value)):
            mains[j] = mains[j] + rounded(effect)[boxes.groups[j]]
        for effect_of_pair in _strongest(boxes, value, set(pairs)):
            _add(pairs, effect_of_pair)
    return Decomposition(intercept, tuple(mains), tuple(pairs.values()), remains)


def pair_noise(
    model: Model, found: Decomposition, shares: BinShares, bands: NoiseBands
) -> list[NDArray[np.float64] | None]:
    """Return the standard deviation of the noise in each pair, (n_scores, n_i, n_j) score steps, or None if unknown.

    The noise of pair tables and that of leaves are independent. What later trees take back of the noise of earlier ones
    is left out, which makes it a little too large.
    """
    if bands.why:
        return [None] * len(found.pairs)
    variances = [np.zeros(pair.table.shape) for pair in found.pairs]
    place = {(pair.i, pair.j): k for k, pair in enumerate(found.pairs)}
    for table, sd in zip(model.pairs, bands.pairs, strict=True):
        if table.i == table.j:
            continue
        own = _ordered(replace(table, table=sd.astype(np.int32)))
        variances[place[own.i, own.j]] += spread_out(
            own.table.astype(np.float64) ** 2,
            own.map_i,
            own.map_j,
            found.pairs[place[own.i, own.j]],
        )
    if model.trees.n_trees:
        boxes = Boxes.of(model.trees.splits, shares)
        leaves = bands.leaves.reshape(model.n_scores, -1).astype(np.float64) ** 2
        for i, j, variance in boxes.pairs(leaves, power=2):
            if (i, j) in place:
                pair = found.pairs[place[i, j]]
                variances[place[i, j]] += spread_out(
                    variance, boxes.groups[i], boxes.groups[j], pair
                )
    return [np.sqrt(variance) for variance in variances]


def spread_out(
    table: NDArray[np.float64],
    map_i: NDArray[np.uint8],
    map_j: NDArray[np.uint8],
    pair: PairEffect,
) -> NDArray[np.float64]:
    """Return a table over groups of bins as one over the finer groups of a pair."""
    of_i = np.unique(pair.map_i, return_index=True)[1]
    of_j = np.unique(pair.map_j, return_index=True)[1]
    return table[:, map_i[of_i][:, None], map_j[of_j]]


def _ordered(pair: PairTable) -> PairEffect:
    """Return the table of a pair with its features in order, without rows and columns that no bin is in."""
    rows, place_i = np.unique(pair.map_i, return_inverse=True)
    columns, place_j = np.unique(pair.map_j, return_inverse=True)
    map_i, map_j = place_i.astype(np.uint8), place_j.astype(np.uint8)
    table = pair.table[:, rows[:, None], columns].astype(np.int64)
    if pair.i < pair.j:
        return PairEffect(pair.i, pair.j, map_i, map_j, table)
    return PairEffect(pair.j, pair.i, map_j, map_i, np.swapaxes(table, 1, 2))


def _strongest(
    boxes: Boxes, value: NDArray[np.float64], kept: set[tuple[int, int]]
) -> list[PairEffect]:
    """Return the forest's part of the kept pairs, then the strongest of the others."""
    ranked = []
    for i, j, effect in boxes.pairs(value):
        strength = float(np.einsum("sij,i,j->", effect**2, boxes.weights[i], boxes.weights[j]))
        ranked.append(((i, j) not in kept, -strength, i, j, effect))
    ranked.sort(key=lambda part: part[:4])
    n = sum(not new for new, *_ in ranked) + MOST_PAIRS
    return [
        PairEffect(i, j, boxes.groups[i], boxes.groups[j], rounded(effect))
        for _, strength, i, j, effect in ranked[:n]
        if strength < 0
    ]


def _add(pairs: dict[tuple[int, int], PairEffect], new: PairEffect) -> None:
    """Add an effect to the one of the same features, over the groups that both tell apart."""
    key = (new.i, new.j)
    old = pairs.get(key)
    if old is None:
        pairs[key] = new
        return
    map_i, of_i = _joined(old.map_i, new.map_i)
    map_j, of_j = _joined(old.map_j, new.map_j)
    table = (
        old.table[:, old.map_i[of_i][:, None], old.map_j[of_j]]
        + new.table[:, new.map_i[of_i][:, None], new.map_j[of_j]]
    )
    pairs[key] = PairEffect(new.i, new.j, map_i, map_j, table)


def _joined(
    a: NDArray[np.uint8], b: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
    """Return the group of each bin in the common refinement, numbered by first bins, and the first bin of each."""
    _, first, group = np.unique(
        a.astype(np.int64) * 256 + b, return_index=True, return_inverse=True
    )
    order = np.argsort(first)
    rank = np.empty(len(first), np.uint8)
    rank[order] = np.arange(len(first))
    return rank[group.reshape(-1)], first[order]
