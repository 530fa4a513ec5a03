"""Leaves of many trees as boxes, one side for each feature of a path, and how noise in them moves main effects.

A side is a set of groups of bins, mostly all from one group to another: what is summed over it is then a difference of
two running sums, and what is added to all of it, one number where it begins and one where it ends.
"""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable, writable

UNUSED = -1  # where a path has no further feature


@kernel
def _fill_boxes(
    split: NDArray[np.uint16],  # IN (n_trees, nodes)
    right: NDArray[np.uint8],  # IN (n_trees, nodes, n_groups)
    width: NDArray[np.float64],  # IN (n_features, n_groups)
    feature: NDArray[np.int32],  # OUT (n_leaves, depth)
    inside: NDArray[np.uint8],  # OUT (n_leaves, depth, n_groups)
    share: NDArray[np.float64],  # OUT (n_leaves, depth)
) -> None:
    depth, n_groups = feature.shape[1], width.shape[1]
    for row in range(feature.shape[0]):
        t, leaf, node = row >> depth, row & ((1 << depth) - 1), 0
        for level in range(depth):
            side, own = (leaf >> (depth - level - 1)) & 1, np.int32(split[t, node])
            goes, at = right[t, node], level
            for k in range(level):
                if feature[row, k] == own:
                    at = k
            held = inside[row, at]
            for g in range(n_groups):
                here = np.uint8(goes[g] == side)
                held[g] = here if at == level else held[g] & here
            feature[row, level] = own if at == level else UNUSED
            node = 2 * node + 1 + side
        for level in range(depth):
            j, total = feature[row, level], 0.0
            for g in range(n_groups):
                if inside[row, level, g]:
                    total += width[j, g]
            share[row, level] = 1.0 if j == UNUSED else total


def fill_boxes(
    split: NDArray[np.uint16], right: NDArray[np.uint8], width: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.float64]]:
    """Return the sides of all leaves; a feature that occurs again on a path narrows its side.

    Parameters
    ----------
    split : (n_trees, nodes) uint16
        Feature of each node, in heap order.
    right : (n_trees, nodes, n_groups) uint8
        1 for each group of bins of the node's feature that goes right.
    width : (n_features, n_groups) float64
        Share of rows in each group, padded with 0.

    Returns
    -------
    feature : (n_leaves, depth) int32
        Each feature of a path once; `UNUSED` elsewhere.
    inside : (n_leaves, depth, n_groups) bool
        False where there is no feature.
    share : (n_leaves, depth) float64
        Share of rows in ``inside``; 1 where there is no feature.
    """
    depth = split.shape[1].bit_length()
    feature = np.empty((len(split) << depth, depth), np.int32)
    inside = np.zeros((*feature.shape, width.shape[1]), np.uint8)
    share = np.empty(feature.shape)
    _fill_boxes(
        readable("split", split, np.uint16, 2),
        readable("right", right, np.uint8, 3),
        readable("width", width, np.float64, 2),
        feature,
        inside,
        share,
    )
    return feature, inside.view(np.bool_), share


@inner
def _begin(inside: NDArray[np.uint8], g: int, held: bool) -> int:
    """Return the first group from ``g`` on that is inside, or that is not."""
    while g < inside.shape[0] and (inside[g] != 0) != held:
        g += 1
    return g


@inner
def _running(
    mass: NDArray[np.float64],  # IN (n_groups,)
    error: NDArray[np.float32],  # IN (n_groups, n_draws)
    below: NDArray[np.float64],  # OUT (n_groups + 1,)
    sums: NDArray[np.float32],  # OUT (n_groups + 1, n_draws)
) -> None:
    """Sum masses, and errors times masses, over the groups below each."""
    below[0], sums[0] = 0.0, 0.0
    for g in range(mass.shape[0]):
        below[g + 1] = below[g] + mass[g]
        weight, last, new, own = np.float32(mass[g]), sums[g], sums[g + 1], error[g]
        for d in range(own.shape[0]):
            new[d] = last[d] + weight * own[d]


@inner
def _mean_error(
    inside: NDArray[np.uint8],  # IN (n_groups,)
    below: NDArray[np.float64],  # IN (n_groups + 1,)
    sums: NDArray[np.float32],  # IN (n_groups + 1, n_draws)
    found: NDArray[np.float32],  # OUT (n_draws,), added to
    part: NDArray[np.float32],  # scratch (n_draws,)
) -> float:
    """Add the mean error over a side; return its mass."""
    n, total = inside.shape[0], 0.0
    part[:] = 0.0
    lo = _begin(inside, 0, True)
    while lo < n:
        hi = _begin(inside, lo, False)
        total += below[hi] - below[lo]
        a, b = sums[lo], sums[hi]
        for d in range(part.shape[0]):
            part[d] += b[d] - a[d]
        lo = _begin(inside, hi, True)
    if total > 0:
        scale = np.float32(1 / total)
        for d in range(part.shape[0]):
            found[d] += scale * part[d]
    return total


@inner
def _spread(
    inside: NDArray[np.uint8],  # IN (n_groups,)
    share: float,
    factor: float,
    step: NDArray[np.float32],  # IN (n_draws,)
    ends: NDArray[np.float32],  # OUT (n_groups + 1, n_draws), added to: what begins at a group
) -> None:
    """Add to the main effect of a feature what a leaf's step adds to it: more inside its side, less everywhere."""
    n, all_less = inside.shape[0], np.float32(factor * share)
    start, size = ends[0], np.float32(factor)
    for d in range(step.shape[0]):
        start[d] -= all_less * step[d]
    lo = _begin(inside, 0, True)
    while lo < n:
        hi = _begin(inside, lo, False)
        a, b = ends[lo], ends[hi]
        for d in range(step.shape[0]):
            a[d] += size * step[d]
        for d in range(step.shape[0]):
            b[d] -= size * step[d]
        lo = _begin(inside, hi, True)


@kernel
def _forest_moves(
    feature: NDArray[np.int32],  # IN (n_leaves, depth)
    inside: NDArray[np.uint8],  # IN (n_leaves, depth, n_groups)
    share: NDArray[np.float64],  # IN (n_leaves, depth)
    mass: NDArray[np.float64],  # IN (n_features, n_groups)
    of_error: NDArray[np.float64],  # IN (n_leaves,)
    noise: NDArray[np.float32],  # IN (n_leaves, n_draws)
    error: NDArray[np.float32],  # IN (n_features, n_groups, n_draws)
    move: NDArray[np.float32],  # OUT (n_features, n_groups, n_draws)
) -> None:
    n_features, n_groups, n_draws = error.shape
    below = np.empty((n_features, n_groups + 1))
    sums = np.empty((n_features, n_groups + 1, n_draws), np.float32)
    for j in range(n_features):
        _running(mass[j], error[j], below[j], sums[j])
    ends = np.zeros_like(sums)
    found, part = np.empty(n_draws, np.float32), np.empty(n_draws, np.float32)
    for row in range(feature.shape[0]):
        found[:] = 0.0
        reached = of_error[row]
        for level in range(feature.shape[1]):
            j = feature[row, level]
            if j != UNUSED:
                reached *= _mean_error(inside[row, level], below[j], sums[j], found, part)
        size, own = np.float32(reached), noise[row]
        for d in range(n_draws):
            found[d] = size * found[d] + own[d]
        for level in range(feature.shape[1]):
            j = feature[row, level]
            if j == UNUSED:
                continue
            whole = 1.0
            for k in range(feature.shape[1]):
                if k != level:
                    whole *= share[row, k]
            _spread(inside[row, level], share[row, level], whole, found, ends[j])
    for j in range(n_features):
        last = np.zeros(n_draws, np.float32)
        for g in range(n_groups):
            begins, own = ends[j, g], move[j, g]
            for d in range(n_draws):
                last[d] += begins[d]
                own[d] = last[d]


def forest_moves(
    feature: NDArray[np.int32],
    inside: NDArray[np.bool_],
    share: NDArray[np.float64],
    mass: NDArray[np.float64],
    of_error: NDArray[np.float64],
    noise: NDArray[np.float32],
    error: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return how far leaves that answer to the errors of main effects, and to noise, move them.

    A leaf moves by its noise, and by ``of_error`` times the mass that reaches it times the sum of the mean errors in
    its sides; it moves main effects as `released.explain.boxes` says.

    Parameters
    ----------
    feature, inside, share
        As `fill_boxes` returns them, of some leaves.
    mass : (n_features, n_groups) float64
        What errors are weighted by: shares that sum to 1 for each feature, padded with 0.
    of_error : (n_leaves,) float64
    noise : (n_leaves, n_draws) float32
    error : (n_features, n_groups, n_draws) float32
        Draws of the error of each main effect, padded.

    Returns
    -------
    (n_features, n_groups, n_draws) float32
        Meaningless where ``error`` is padded.
    """
    move = np.empty_like(error)
    _forest_moves(
        readable("feature", feature, np.int32, 2),
        readable("inside", inside.view(np.uint8), np.uint8, 3),
        readable("share", share, np.float64, 2),
        readable("mass", mass, np.float64, 2),
        readable("of_error", of_error, np.float64, 1),
        readable("noise", noise, np.float32, 2),
        readable("error", error, np.float32, 3),
        writable("move", move, np.float32, 3),
    )
    return move
