"""Random splits of the nodes of a level: on features that still vary in a node, at the places left to it."""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import kernel, readable, writable
from dpgb_dask.kernels.splits import NOWHERE

# of every feature and node, (n_nodes, n_features) each: the first of the places left, and one behind the last
Left = tuple[NDArray[np.int16], NDArray[np.int16]]


@kernel
def _split_nodes(
    chance: NDArray[np.float64],  # IN (m,)
    places: NDArray[np.uint8],  # IN (m, most)
    allowed: NDArray[np.bool_],  # IN (n, m) or (0, m)
    draws: NDArray[np.float64],  # IN (2, n)
    begun: NDArray[np.bool_],  # IN (n,)
    low: NDArray[np.int16],  # IN (n, m)
    high: NDArray[np.int16],  # IN (n, m)
    feature: NDArray[np.uint16],  # INOUT (n,)
    cut: NDArray[np.uint8],  # INOUT (n,)
) -> None:
    ruled = allowed.shape[0] > 0
    for i in range(cut.shape[0]):
        if begun[i]:
            continue
        total = 0.0
        for j in range(chance.shape[0]):
            if low[i, j] < high[i, j] and (not ruled or allowed[i, j]):
                total += chance[j]
        if total > 0:
            edge, below = draws[0, i] * total, 0.0
            for j in range(chance.shape[0]):
                if low[i, j] < high[i, j] and (not ruled or allowed[i, j]) and chance[j] > 0:
                    below += chance[j]
                    feature[i] = j
                    if below > edge:
                        break
            j = feature[i]
            cut[i] = places[j, low[i, j] + int(draws[1, i] * (high[i, j] - low[i, j]))]


def split_nodes(
    chance: NDArray[np.float64],
    places: NDArray[np.uint8],
    allowed: NDArray[np.bool_] | None,
    draws: NDArray[np.float64],
    begun: NDArray[np.bool_],
    left: Left,
    feature: NDArray[np.uint16],
    cut: NDArray[np.uint8],
) -> None:
    """Split the nodes of a level.

    Parameters
    ----------
    chance : (n_features,) float64
        Of a feature to be drawn, where all may be.
    places : (n_features, most) uint8
        Thresholds to draw from, increasing; `NOWHERE` behind the last.
    allowed : (n_nodes, n_features) bool, or None
        Features that a node may split on; None for all.
    draws : (2, n_nodes) float64
        Uniform in [0, 1): for the feature and for the place of each node.
    begun : (n_nodes,) bool
        Nodes that keep the split that they have, if any.
    left : Left
    feature, cut : (n_nodes,) uint16 and uint8
        Changed in place; a node keeps `NOWHERE` where no feature that it may split on has a place left.
    """
    rule = (
        np.empty((0, len(chance)), np.bool_) if allowed is None else np.ascontiguousarray(allowed)
    )
    _split_nodes(
        readable("chance", chance, np.float64, 1),
        readable("places", places, np.uint8, 2),
        readable("allowed", rule, np.bool_, 2),
        readable("draws", draws, np.float64, 2),
        readable("begun", begun, np.bool_, 1),
        readable("left", left[0], np.int16, 2),
        readable("left", left[1], np.int16, 2),
        writable("feature", feature, np.uint16, 1),
        writable("cut", cut, np.uint8, 1),
    )


@kernel
def _left_below(
    places: NDArray[np.uint8],  # IN (m, most)
    low: NDArray[np.int16],  # IN (n, m)
    high: NDArray[np.int16],  # IN (n, m)
    feature: NDArray[np.uint16],  # IN (n,)
    cut: NDArray[np.uint8],  # IN (n,)
    low_below: NDArray[np.int16],  # OUT (2n, m)
    high_below: NDArray[np.int16],  # OUT (2n, m)
) -> None:
    for i in range(cut.shape[0]):
        for child in range(2 * i, 2 * i + 2):
            for j in range(low.shape[1]):
                low_below[child, j], high_below[child, j] = low[i, j], high[i, j]
        if cut[i] != NOWHERE:
            j = feature[i]
            end = high[i, j]
            while end > low[i, j] and places[j, end - 1] >= cut[i]:
                end -= 1
            high_below[2 * i, j] = end
            if end < high[i, j] and places[j, end] == cut[i]:
                end += 1
            low_below[2 * i + 1, j] = end


def left_below(
    places: NDArray[np.uint8], left: Left, feature: NDArray[np.uint16], cut: NDArray[np.uint8]
) -> Left:
    """Return the places left to the nodes below those of a level: to the children of the first node, and so on.

    Parameters are those of `split_nodes`. What a mask sends where is not followed.
    """
    n, m = left[0].shape
    below = np.empty((2 * n, m), np.int16), np.empty((2 * n, m), np.int16)
    _left_below(
        readable("places", places, np.uint8, 2),
        readable("left", left[0], np.int16, 2),
        readable("left", left[1], np.int16, 2),
        readable("feature", feature, np.uint16, 1),
        readable("cut", cut, np.uint8, 1),
        below[0],
        below[1],
    )
    return below
