"""Random splits of the forest: where each feature may be split, and trees drawn level by level."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.auto.levels import order_of
from dpgb_dask.components.auto.posterior import AutoFacts
from dpgb_dask.contracts.constraints import Interactions
from dpgb_dask.contracts.model import MAX_BINS, FeatureBins, Splits
from dpgb_dask.contracts.plan import State
from dpgb_dask.kernels.random_splits import left_below, split_nodes
from dpgb_dask.kernels.splits import NOWHERE


@dataclass(frozen=True, eq=False, slots=True)
class Places:
    """Where each feature may be split: between bins in their order, or between categories in that of their effects.

    Parameters
    ----------
    n : (n_features,) int16
        Number of places.
    below : (n_features, most + 1) float64
        Chance of the places before each one, and of all behind the last.
    threshold : (n_features, most) uint8
        Of each place, the last code on the left; `NOWHERE` where a mask tells the sides.
    mask_of : (n_features, most) int32
        Row of ``masks``; -1 where there is a threshold.
    ordered : (n_features,) bool
        Whether places are in the order of the codes.
    masks : (n_masks, 256) uint8
    """

    n: NDArray[np.int16]
    below: NDArray[np.float64]
    threshold: NDArray[np.uint8]
    mask_of: NDArray[np.int32]
    ordered: NDArray[np.bool_]
    masks: NDArray[np.uint8]

    @classmethod
    def of(cls, state: State, most: int) -> Self:
        """Return the places of a model's features by their released rows and effects, fewer than ``most`` of each."""
        assert state.model is not None
        known = effects_known(state.fact(AutoFacts).split.signal)
        tables = zip(state.model.bins, state.counts, state.model.tables, strict=True)
        found = [_places_of(*own, known, most) for own in tables]
        return cls.from_sides(found, [not bins.categorical for bins in state.model.bins])

    @classmethod
    def from_sides(
        cls,
        found: list[tuple[NDArray[np.bool_], NDArray[np.float64]]],
        ordered: list[bool],
    ) -> Self:
        """Return places, given which codes each sends right, (n_places, n_bins), and its weight, (n_places,)."""
        m, widest = len(found), max(1, *(len(weight) for _, weight in found))
        masks: list[NDArray[np.bool_]] = []
        below = np.ones((m, widest + 1))
        threshold = np.full((m, widest), NOWHERE, np.uint8)
        mask_of = np.full(threshold.shape, -1, np.int32)
        for j, (right, weight) in enumerate(found):
            below[j, 0] = 0
            below[j, 1 : len(weight) + 1] = np.cumsum(weight) / weight.sum()
            n_left = np.count_nonzero(~right, axis=1)
            by_threshold = (right == (np.arange(right.shape[1]) >= n_left[:, None])).all(1)
            threshold[j, np.flatnonzero(by_threshold)] = n_left[by_threshold] - 1
            own = np.flatnonzero(~by_threshold)
            mask_of[j, own] = len(masks) + np.arange(len(own))
            masks += list(np.pad(right[own], ((0, 0), (0, MAX_BINS - right.shape[1]))))
        return cls(
            n=np.array([len(weight) for _, weight in found], np.int16),
            below=below,
            threshold=threshold,
            mask_of=mask_of,
            ordered=np.array(ordered),
            masks=np.array(masks, np.uint8).reshape(-1, MAX_BINS),
        )


def _places_of(
    bins: FeatureBins, mass: NDArray[np.float64], table: NDArray[np.int32], known: float, most: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which codes the places of a feature send right, and the weight of each."""
    n = len(mass)
    rank = np.arange(n)
    if bins.categorical:
        rank[np.argsort(order_of(table, mass), kind="stable")] = np.arange(n)
        # from the end where the heaviest is: a threshold tells it from the others
        rank = n - 1 - rank if 2 * rank[0] >= n else rank
    order = np.argsort(rank)
    weight = weights_between(mass[order], table[order], known, missing_last=not bins.categorical)
    place, weight = heaviest(weight, most - 1)
    return rank > place[:, None], weight


def effects_known(signal: float) -> float:
    """Return how far places follow what is released: not where data are not rich, wholly where trees are deep."""
    ends = np.log([constants.RICH_SIGNAL, constants.DEEP_SIGNAL])
    # the same on processors whose logarithms differ in the last bit
    return round(float(np.interp(np.log(max(signal, 1.0)), ends, (0, 1))), 3)


def weights_between(
    mass: NDArray[np.float64], table: NDArray[np.int32], known: float, *, missing_last: bool
) -> NDArray[np.float64]:
    """Return how much neighbouring bins want to be parted, (n_bins - 1,): by their rows, and by how effects differ.

    As far as they are ``known``, from 0 to 1; the rest is alike for all. Missing values are not the neighbours of the
    last bin: they are parted from the others by their rows alone.
    """
    rows, differ = (mass[1:] + mass[:-1]) / 2, np.abs(np.diff(table, axis=0)).sum(1).astype(float)
    if missing_last and len(rows):
        rows[-1], differ[-1] = mass[-1], 0
    share = constants.FOREST_BY_EFFECT if differ.any() else 0.0
    told = (1 - share) * rows / rows.sum() + share * differ / max(differ.sum(), 1)
    return known * told + (1 - known) / max(len(rows), 1)


def heaviest(
    weight: NDArray[np.float64], most: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return at most so many places, and their weights: of each run of equal weight the heaviest, for all of it."""
    if len(weight) <= most:
        return np.arange(len(weight)), weight
    middle = (np.cumsum(weight) - weight / 2) / weight.sum()
    run = np.minimum((middle * most).astype(np.int64), most - 1)
    order = np.lexsort((-weight, run))
    _, first = np.unique(run[order], return_index=True)
    return order[first], np.bincount(run, weight)[run[order[first]]]


def draw_splits(
    chance: NDArray[np.float64],
    places: Places,
    n_trees: int,
    depth: int,
    rng: np.random.Generator,
    first: Splits | None = None,
    interactions: Interactions | None = None,
) -> Splits:
    """Draw trees level by level: a node splits on a feature that still varies in it, at one of the places left to it.

    Parameters
    ----------
    chance : (n_features,) float64
        Of a feature to be drawn, where all may be; a feature with chance 0 is never drawn.
    places : Places
    n_trees, depth : int
    rng : numpy.random.Generator
    first : Splits or None
        The first trees split as these do wherever these split.
    interactions : Interactions or None

    Returns
    -------
    Splits
        A node has no split where no feature that it may split on varies.
    """
    m, masks = len(chance), places.masks
    feature = np.zeros((n_trees, (1 << depth) - 1), np.uint16)
    threshold = np.full(feature.shape, NOWHERE, np.uint8)
    mask_of = np.full(feature.shape, -1, np.int32)
    if first is not None:
        n, moved = first.n_trees, np.where(first.mask_of < 0, -1, first.mask_of + len(masks))
        feature[:n], threshold[:n], mask_of[:n] = first.feature, first.threshold, moved
        masks = np.concatenate([masks, first.masks])
    # of each node of a level: the places of every feature that are left to it, and what was split on above
    left = np.zeros((n_trees, m), np.int16), np.tile(places.n, (n_trees, 1))
    used = np.zeros((n_trees, m), bool)
    for d in range(depth):
        level = slice((1 << d) - 1, (2 << d) - 1)
        j, cut, mask = (
            feature[:, level].ravel(),
            threshold[:, level].ravel(),
            mask_of[:, level].ravel(),
        )
        begun = (cut != NOWHERE) | (mask >= 0)
        allowed = None if interactions is None else interactions.allowed(used)
        place = split_nodes(chance, places.below, allowed, rng.random((2, len(j))), begun, left, j)
        drawn = place >= 0
        # the places left to the children: before the split's, and behind it
        end = np.where(drawn, place, places.n[j])
        begin = np.where(drawn, place + 1, 0).astype(np.int16)
        if begun.any():  # what a split of categories leaves is not followed
            own = np.flatnonzero(begun & (mask < 0) & places.ordered[j])
            end[own] = (places.threshold[j[own]] < cut[own, None]).sum(1)
            begin[own] = (places.threshold[j[own]] <= cut[own, None]).sum(1)
        cut[drawn] = places.threshold[j[drawn], place[drawn]]
        mask[drawn] = places.mask_of[j[drawn], place[drawn]]
        feature[:, level], threshold[:, level] = j.reshape(n_trees, -1), cut.reshape(n_trees, -1)
        mask_of[:, level] = mask.reshape(n_trees, -1)
        if interactions is not None:
            used[np.arange(len(j)), j] |= drawn | begun
            used = used.repeat(2, axis=0)
        if d + 1 < depth:
            left = left_below(left, j, end, begin)
    return Splits(feature, threshold, mask_of, masks).only(np.arange(n_trees))
