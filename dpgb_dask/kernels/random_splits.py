"""Random splits of the nodes of a level: on features that still vary in a node, at the places left to it."""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import kernel, readable, writable

# of every feature and node, (n_nodes, n_features) each: the first of the places left, and one behind the last
Left = tuple[NDArray[np.int16], NDArray[np.int16]]


@kernel
def _split_nodes(
    chance: NDArray[np.float64],  # IN (m,)
    below: NDArray[np.float64],  # IN (m, most + 1)
    allowed: NDArray[np.bool_],  # IN (n, m) or (0, m)
    draws: NDArray[np.float64],  # IN (2, n)
    begun: NDArray[np.bool_],  # IN (n,)
    low: NDArray[np.int16],  # IN (n, m)
    high: NDArray[np.int16],  # IN (n, m)
    feature: NDArray[np.uint16],  # INOUT (n,)
    place: NDArray[np.int16],  # OUT (n,)
) -> None:
    ruled = allowed.shape[0] > 0
    for i in range(place.shape[0]):
        place[i] = -1
        if begun[i]:
            continue
        total = 0.0
        for j in range(chance.shape[0]):
            if low[i, j] < high[i, j] and (not ruled or allowed[i, j]):
                total += chance[j]
        if total > 0:
            edge, passed = draws[0, i] * total, 0.0
            for j in range(chance.shape[0]):
                if low[i, j] < high[i, j] and (not ruled or allowed[i, j]) and chance[j] > 0:
                    passed += chance[j]
                    feature[i] = j
                    if passed > edge:
                        break
            own, at, end = below[feature[i]], low[i, feature[i]], high[i, feature[i]]
            edge = own[at] + draws[1, i] * (own[end] - own[at])
            while at + 1 < end and own[at + 1] <= edge:
                at += 1
            place[i] = at


def split_nodes(
    chance: NDArray[np.float64],
    below: NDArray[np.float64],
    allowed: NDArray[np.bool_] | None,
    draws: NDArray[np.float64],
    begun: NDArray[np.bool_],
    left: Left,
    feature: NDArray[np.uint16],
) -> NDArray[np.int16]:
    """Split the nodes of a level.

    Parameters
    ----------
    chance : (n_features,) float64
        Of a feature to be drawn, where all may be.
    below : (n_features, most + 1) float64
        Chance of the places of a feature before each one.
    allowed : (n_nodes, n_features) bool, or None
        Features that a node may split on; None for all.
    draws : (2, n_nodes) float64
        Uniform in [0, 1): for the feature and for the place of each node.
    begun : (n_nodes,) bool
        Nodes that keep the split that they have.
    left : Left
    feature : (n_nodes,) uint16
        Changed in place where a split is drawn.

    Returns
    -------
    (n_nodes,) int16
        The place of each split that is drawn. -1 of a node that has begun, or that has no place left on any feature
        that it may split on.
    """
    rule = (
        np.empty((0, len(chance)), np.bool_) if allowed is None else np.ascontiguousarray(allowed)
    )
    place = np.empty(len(begun), np.int16)
    _split_nodes(
        readable("chance", chance, np.float64, 1),
        readable("below", below, np.float64, 2),
        readable("allowed", rule, np.bool_, 2),
        readable("draws", draws, np.float64, 2),
        readable("begun", begun, np.bool_, 1),
        readable("left", left[0], np.int16, 2),
        readable("left", left[1], np.int16, 2),
        writable("feature", feature, np.uint16, 1),
        place,
    )
    return place


@kernel
def _left_below(
    low: NDArray[np.int16],  # IN (n, m)
    high: NDArray[np.int16],  # IN (n, m)
    feature: NDArray[np.uint16],  # IN (n,)
    end: NDArray[np.int16],  # IN (n,)
    begin: NDArray[np.int16],  # IN (n,)
    low_below: NDArray[np.int16],  # OUT (2n, m)
    high_below: NDArray[np.int16],  # OUT (2n, m)
) -> None:
    for i in range(feature.shape[0]):
        for child in range(2 * i, 2 * i + 2):
            for j in range(low.shape[1]):
                low_below[child, j], high_below[child, j] = low[i, j], high[i, j]
        j = feature[i]
        high_below[2 * i, j] = min(high[i, j], end[i])
        low_below[2 * i + 1, j] = max(low[i, j], begin[i])


def left_below(
    left: Left, feature: NDArray[np.uint16], end: NDArray[np.int16], begin: NDArray[np.int16]
) -> Left:
    """Return the places left to the nodes below those of a level: to the children of the first node, and so on.

    Parameters
    ----------
    left : Left
        Of the nodes.
    feature : (n_nodes,) uint16
        Feature of each node's split.
    end : (n_nodes,) int16
        One behind the last place of that feature that is left to the left child.
    begin : (n_nodes,) int16
        The first place that is left to the right child.
    """
    n, m = left[0].shape
    below = np.empty((2 * n, m), np.int16), np.empty((2 * n, m), np.int16)
    _left_below(
        readable("left", left[0], np.int16, 2),
        readable("left", left[1], np.int16, 2),
        readable("feature", feature, np.uint16, 1),
        readable("end", end, np.int16, 1),
        readable("begin", begin, np.int16, 1),
        below[0],
        below[1],
    )
    return below
