"""Make the parts of a model monotone: tables of a feature, tables of pairs, trees.

A sum of monotone parts is monotone, so each part is made so by itself. Tables take the nearest monotone values
(isotonic regression). Where that is no simple problem, for trees and for tables with two monotone axes, a value becomes
the mean of two monotone functions: the largest value that must not exceed it, and the smallest that it must not exceed.
What is monotone already stays as it is. Missing values are in no order with the others.

All of this is post-processing (docs/privacy.md P4).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import FeatureBins, Model, Splits, TreeEnsemble
from dpgb_dask.errors import PlanError

Order = NDArray[np.int64]  # positions, in the order in which values must not fall


def isotonic(values: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nearest values that never fall, in weighted squares: pooling of adjacent violators.

    Parameters
    ----------
    values : (n,) float64
    weight : (n,) float64, >= 0
        Where all are 0, they count equally.
    """
    least = max(float(weight.max(initial=0.0)) * 1e-9, 1e-300)
    pools: list[tuple[float, float, int]] = []  # mean, weight, number of values
    for value, mass in zip(values.tolist(), np.maximum(weight, least).tolist(), strict=True):
        mean, total, n = value, mass, 1
        while pools and pools[-1][0] > mean:
            before, held, n_before = pools.pop()
            mean = (before * held + mean * total) / (held + total)
            total, n = held + total, n_before + n
        pools.append((mean, total, n))
    return np.repeat([mean for mean, _, _ in pools], [n for _, _, n in pools])


def ordered_table(
    table: NDArray[np.float64], weight: NDArray[np.float64], direction: int
) -> NDArray[np.float64]:
    """Return the table of a numeric feature, made monotone; its last bin, missing values, stays.

    Parameters
    ----------
    table, weight : (n_bins,) float64
    direction : int
        1 or -1.
    """
    order = np.arange(len(table) - 1)[::direction]
    out = table.copy()
    out[order] = isotonic(table[order], weight[order])
    return out


def order_of_cells(cell_of_bin: NDArray[np.uint8], direction: int) -> Order:
    """Return the rows or columns of a pair table that values of a numeric feature reach, in the feature's order.

    A cell that missing values share with others is among them.

    Raises
    ------
    PlanError
        If the cells do not follow the feature's order.
    """
    reached = cell_of_bin[:-1].astype(np.int64)
    if (np.diff(reached) < 0).any():
        raise PlanError(
            "A pair table whose cells do not follow the order of a feature cannot be monotone in it."
        )
    return np.unique(reached)[::direction]


def ordered_pair(
    table: NDArray[np.float64],
    weight: NDArray[np.float64],
    rows: Order | None,
    columns: Order | None,
) -> NDArray[np.float64]:
    """Return a pair table, made monotone along its rows, its columns or both.

    Parameters
    ----------
    table, weight : (n_i, n_j) float64
    rows, columns : Order or None
        None where the feature is not constrained.
    """
    out = table.copy()
    for axis, order in enumerate((rows, columns)):
        if order is not None:
            lines, masses = np.moveaxis(out, axis, 1), np.moveaxis(weight, axis, 1)
            for line, mass in zip(lines, masses, strict=True):
                line[order] = isotonic(line[order], mass[order])
    if rows is None or columns is None:
        return out
    # lines along the columns, which came last, need not have left the rows in order; and stay in order themselves in
    # every maximum and minimum of some
    above, below = out.copy(), out.copy()
    above[rows] = np.maximum.accumulate(above[rows], axis=0)
    below[rows[::-1]] = np.minimum.accumulate(below[rows[::-1]], axis=0)
    return np.asarray((above + below) / 2)


def ordered_leaves(
    splits: Splits,
    value: NDArray[np.int32],
    directions: NDArray[np.int8],
    bins: Sequence[FeatureBins],
) -> NDArray[np.int32]:
    """Return leaf values with which every tree is monotone.

    Parameters
    ----------
    splits : Splits
    value : (n_scores, n_trees, n_leaves) int32, score steps
    directions : (n_columns,) int8
        Per column -1, 0 or 1; not 0 for numeric columns alone.
    bins : sequence of FeatureBins
    """
    constrained = np.flatnonzero(directions)
    out = value.copy()
    for t in range(splits.n_trees):
        if not np.isin(splits.feature[t], constrained).any():
            continue
        below = leaves_below(splits, t, directions, bins)
        for leaf in out[:, t]:
            leaf[:] = _between(leaf.astype(np.int64), below)
    return out


def leaves_below(
    splits: Splits, t: int, directions: NDArray[np.int8], bins: Sequence[FeatureBins]
) -> NDArray[np.bool_]:
    """Return which leaf must not exceed which, in tree ``t``: (n_leaves, n_leaves) bool.

    Leaf a must not exceed leaf b if two rows that differ in one constrained column alone fall in a and in b, and the
    row in b is further in the column's direction.
    """
    regions = _regions(splits, t, bins)
    meet = {j: _meet(region) for j, region in regions.items()}
    below = np.zeros((splits.n_leaves, splits.n_leaves), bool)
    for j in regions:
        if not directions[j]:
            continue
        others = np.logical_and.reduce(
            [ones for k, ones in meet.items() if k != j] or [below | True]
        )
        values = regions[j][:, : bins[j].missing_bin]
        n = values.shape[1]
        first = np.where(values.any(1), values.argmax(1), n)
        last = np.where(values.any(1), n - 1 - values[:, ::-1].argmax(1), -1)
        rises = first[:, None] < last
        below |= others & (rises if directions[j] > 0 else rises.T)
    return below


def _regions(splits: Splits, t: int, bins: Sequence[FeatureBins]) -> dict[int, NDArray[np.bool_]]:
    """Return, for each column that tree ``t`` names, the codes that reach each leaf: (n_leaves, n_bins) bool."""
    feature, threshold, mask_of = splits.feature[t], splits.threshold[t], splits.mask_of[t]
    regions = {int(j): np.ones((1, bins[j].n_bins), bool) for j in np.unique(feature)}
    for depth in range(splits.depth):
        regions = {j: np.repeat(region, 2, axis=0) for j, region in regions.items()}
        for k in range(1 << depth):
            node = (1 << depth) - 1 + k
            region = regions[int(feature[node])]
            n_bins = region.shape[1]
            if mask_of[node] >= 0:
                right = splits.masks[mask_of[node], :n_bins] == 1
            else:
                right = np.arange(n_bins) > threshold[node]
            region[2 * k] &= ~right
            region[2 * k + 1] &= right
    return regions


def _meet(region: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which leaves have a code in common."""
    codes = region.astype(np.float32)
    return np.asarray(codes @ codes.T > 0)


def _between(value: NDArray[np.int64], below: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the mean of the largest value below each leaf and the smallest value above it, rounded down."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    largest, smallest = value, value
    while True:  # at most once per leaf: an order passes on from leaf to leaf
        up = np.maximum(largest, np.where(below, largest[:, None], low).max(0))
        down = np.minimum(smallest, np.where(below, smallest, high).min(1))
        if (up == largest).all() and (down == smallest).all():
            return np.asarray((largest + smallest) >> 1)
        largest, smallest = up, down


def ordered_model(
    model: Model, weights: Sequence[NDArray[np.int64]], directions: NDArray[np.int8]
) -> Model:
    """Return a model of one score, made monotone part by part; what is monotone already stays as it is.

    Parameters
    ----------
    model : Model
    weights : sequence of ((n_bins,) int64)
        Per column, what its bins weigh where values are averaged.
    directions : (n_columns,) int8
        Per column -1, 0 or 1; not 0 for numeric columns alone.

    Raises
    ------
    PlanError
        If the cells of a pair table do not follow the order of a feature.
    """
    tables = list(model.tables)
    for j in np.flatnonzero(directions).tolist():
        values = tables[j][:, 0].astype(np.float64)
        column = ordered_table(values, weights[j].astype(np.float64), int(directions[j]))
        tables[j] = np.rint(column).astype(np.int32)[:, None]
    pairs = []
    for pair in model.pairs:
        rows, columns = (
            order_of_cells(cell_of_bin, int(directions[j])) if directions[j] else None
            for j, cell_of_bin in ((pair.i, pair.map_i), (pair.j, pair.map_j))
        )
        if rows is not None or columns is not None:
            mass_i, mass_j = (
                np.bincount(cell_of_bin, weights[j], n).astype(np.float64)
                for j, cell_of_bin, n in (
                    (pair.i, pair.map_i, pair.table.shape[1]),
                    (pair.j, pair.map_j, pair.table.shape[2]),
                )
            )
            table = ordered_pair(
                pair.table[0].astype(np.float64), np.outer(mass_i, mass_j), rows, columns
            )
            pair = replace(pair, table=np.rint(table).astype(np.int32)[None])  # noqa: PLW2901
        pairs.append(pair)
    trees = model.trees
    value = ordered_leaves(trees.splits, trees.value, directions, model.bins)
    return replace(
        model,
        tables=tuple(tables),
        pairs=tuple(pairs),
        trees=TreeEnsemble(trees.splits, value),
    )
