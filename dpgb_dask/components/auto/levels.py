"""Groups of a feature's bins, between which pairs and trees divide it, and the order of categories for them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import FeatureBins


def coarsen(mass: NDArray[np.float64], categorical: bool, n: int) -> NDArray[np.uint8]:
    """Map bins to at most ``n`` groups, in order: groups of equal noisy mass, or the heaviest categories and the rest.

    Categorical bins are sorted by mass, so groups are ordered for both types of feature.
    """
    if len(mass) <= n:
        return np.arange(len(mass), dtype=np.uint8)
    if categorical:
        return np.minimum(np.arange(len(mass)), n - 1).astype(np.uint8)
    return np.unique(runs_of(mass, n), return_inverse=True)[1].astype(np.uint8)


def runs_of(weight: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """Return in which of ``n`` runs of equal weight the middle of each of some neighbours lies."""
    middle = (np.cumsum(weight) - weight / 2) / weight.sum()
    return np.minimum((middle * n).astype(np.int64), n - 1)


def levels_of(
    bins: FeatureBins, mass: NDArray[np.float64], table: NDArray[np.int32], n: int
) -> NDArray[np.uint8]:
    """Return the levels of a feature's bins, (n_bins,), between which it can be split."""
    if not bins.categorical:
        return coarsen(mass, False, n)
    order = np.argsort(order_of(table, mass), kind="stable")
    level = np.empty(len(mass), np.uint8)
    level[order] = coarsen(mass[order], False, n)
    return level


def order_of(table: NDArray[np.int32], mass: NDArray[np.float64]) -> NDArray[Any]:
    """Return what categories are ordered by, (n_bins,): their effect; of several scores, where effects differ most."""
    if table.shape[1] == 1:
        return table[:, 0]
    share = np.maximum(mass, 0) / max(mass.sum(), 1)
    effects = table - share @ table
    _, vectors = np.linalg.eigh(effects.T @ (share[:, None] * effects))
    return np.asarray(effects @ vectors[:, -1])
