"""Random splits of the forest: where each feature may be split, and trees drawn level by level."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.auto.levels import order_of, runs_of
from dpgb_dask.components.auto.posterior import AutoFacts
from dpgb_dask.components.auto.schedules import effects_known
from dpgb_dask.components.trees.splits import threshold_of
from dpgb_dask.contracts.constraints import Interactions
from dpgb_dask.contracts.model import MAX_BINS, FeatureBins, Splits
from dpgb_dask.contracts.plan import State
from dpgb_dask.kernels.random_splits import left_below, split_nodes
from dpgb_dask.kernels.splits import NOWHERE

# of a feature: the rank of each code, or None where they stand in order; the last rank on the left of each place; and
# the weight of each
Ranked = tuple[NDArray[np.int64] | None, NDArray[np.int64], NDArray[np.float64]]


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
        return cls.from_ranks([_places_of(*own, known, most) for own in tables])

    @classmethod
    def from_ranks(cls, found: Sequence[Ranked]) -> Self:
        """Return places, given the ranks of codes and which of them are the last on the left."""
        m, widest = len(found), max(1, *(len(place) for _, place, _ in found))
        masks: list[NDArray[np.bool_]] = []
        below = np.ones((m, widest + 1))
        threshold = np.full((m, widest), NOWHERE, np.uint8)
        mask_of = np.full(threshold.shape, -1, np.int32)
        for j, (rank, place, weight) in enumerate(found):
            below[j, 0] = 0
            below[j, 1 : len(weight) + 1] = np.cumsum(weight) / weight.sum()
            if rank is None:
                threshold[j, : len(place)] = place
                continue
            for k, right in enumerate(rank > place[:, None]):
                last_left = threshold_of(right)
                if last_left is None:
                    mask_of[j, k] = len(masks)
                    masks.append(np.pad(right, (0, MAX_BINS - len(right))))
                else:
                    threshold[j, k] = last_left
        return cls(
            n=np.array([len(place) for _, place, _ in found], np.int16),
            below=below,
            threshold=threshold,
            mask_of=mask_of,
            ordered=np.array([rank is None for rank, _, _ in found]),
            masks=np.array(masks, np.uint8).reshape(-1, MAX_BINS),
        )


def _places_of(
    bins: FeatureBins, mass: NDArray[np.float64], table: NDArray[np.int32], known: float, most: int
) -> Ranked:
    """Return the places of a feature."""
    if not bins.categorical:
        return None, *heaviest(weights_between(mass, table, known, missing_last=True), most - 1)
    order = np.argsort(order_of(table, mass), kind="stable")
    rank = np.argsort(order)
    if 2 * rank[0] >= len(mass):  # from the end where the heaviest is: its place needs no mask
        order, rank = order[::-1], len(mass) - 1 - rank
    weight = weights_between(mass[order], table[order], known, missing_last=False)
    return rank, *heaviest(weight, most - 1)


def weights_between(
    mass: NDArray[np.float64], table: NDArray[Any], known: float, *, missing_last: bool
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
    run = runs_of(weight, most)
    order = np.lexsort((-weight, run))
    _, first = np.unique(run[order], return_index=True)
    return order[first], np.bincount(run, weight).astype(np.float64)[run[order[first]]]


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
