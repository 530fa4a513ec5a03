"""A fitted model made monotone as a whole, where no later round mends what each part loses by itself.

Made monotone one by one, the trees and pair tables of a model lose what falls and keep what rises, and all that they
keep adds up in the main effect. So the main effect is taken as an explanation shows it, and the parts make room for it:
trees that split on the feature keep their main effects and pairs, as explained, and a pair table bends as far as the
main effect rises.

Post-processing (docs/privacy.md P4).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import (
    BinShares,
    Model,
    PairTable,
    Splits,
    TreeEnsemble,
)
from dpgb_dask.contracts.monotone import order_of_cells, ordered_model, ordered_table
from dpgb_dask.released.explain.decomposition import decompose


def monotone_model(model: Model, shares: BinShares, directions: NDArray[np.int8]) -> Model:
    """Return a model of one score that follows all directions; one that does already stays as it is.

    Parameters
    ----------
    model : Model
    shares : BinShares
    directions : (n_columns,) int8
        Per column -1, 0 or 1; not 0 for numeric columns alone.

    Raises
    ------
    PlanError
        If the cells of a pair table do not follow the order of a feature.
    """
    if _same(ordered_model(model, shares.weights, directions), model):
        return model
    splits, constrained = model.trees.splits, np.flatnonzero(directions).tolist()
    bound = np.asarray((splits.splitting & np.isin(splits.feature, constrained)).any(axis=1))
    parts = decompose(replace(model, trees=_some(model.trees, bound)), shares)
    mains = list(parts.mains)
    pairs = [
        PairTable(p.i, p.j, p.map_i, p.map_j, p.table.astype(np.int32, order="C"))
        for p in parts.pairs
    ]
    for j in constrained:
        mass = shares.weights[j].astype(np.float64)
        main = ordered_table(mains[j][:, 0].astype(np.float64), mass, int(directions[j]))
        for k, pair in enumerate(pairs):
            if j in (pair.i, pair.j):
                pairs[k], main = _bent(pair, main, j, mass, int(directions[j]))
        mains[j] = np.rint(main).astype(np.int64)[:, None]
    changed = replace(
        model,
        intercept=parts.intercept.astype(np.int32),
        tables=tuple(main.astype(np.int32) for main in mains),
        pairs=tuple(pairs),
        trees=_some(model.trees, ~bound),
    )
    return ordered_model(changed, shares.weights, directions)


def _same(a: Model, b: Model) -> bool:
    return (
        all(map(np.array_equal, a.tables, b.tables))
        and all(np.array_equal(p.table, q.table) for p, q in zip(a.pairs, b.pairs, strict=True))
        and np.array_equal(a.trees.value, b.trees.value)
    )


def _bent(
    pair: PairTable, main: NDArray[np.float64], j: int, mass: NDArray[np.float64], direction: int
) -> tuple[PairTable, NDArray[np.float64]]:
    """Return a pair table that is monotone in feature ``j``, and the main effect without what it lent.

    From cell to cell, the main effect lends the table the rise that the table's steepest fall needs, or all of its own;
    if that is too little, the table's differences shrink.
    """
    first = pair.i == j
    cell_of_bin = pair.map_i if first else pair.map_j
    order = order_of_cells(cell_of_bin, direction)
    table = pair.table[0].astype(np.float64)
    lines = table.copy() if first else table.T.copy()
    n_cells = len(lines)
    held = np.bincount(cell_of_bin[:-1], mass[:-1] + 1e-9, n_cells)
    means = np.bincount(cell_of_bin[:-1], (mass[:-1] + 1e-9) * main[:-1], n_cells)
    rise = np.maximum(np.diff(means[order] / held[order]), 0)
    steps = np.diff(lines[order], axis=0)
    needed = np.maximum(-steps.min(axis=1), 0)
    share = np.minimum(1, rise / np.maximum(needed, 1e-9))
    lent = np.append(0, np.cumsum(share * needed))
    bent = np.vstack([np.zeros(lines.shape[1]), np.cumsum(share[:, None] * steps, axis=0)])
    weight = held[order] / held[order].sum()
    lent -= weight @ lent
    bent += weight @ lines[order] - weight @ bent  # means stay where they were
    loan = np.zeros(n_cells)
    loan[order] = lent
    lines[order] = bent + lent[:, None]
    left = ordered_table(main - loan[cell_of_bin], mass, direction)
    out = np.rint(lines if first else lines.T).astype(np.int32, order="C")
    return replace(pair, table=out[None]), left


def _some(trees: TreeEnsemble, kept: NDArray[np.bool_]) -> TreeEnsemble:
    s = trees.splits
    splits = Splits(s.feature[kept], s.threshold[kept], s.mask_of[kept], s.masks)
    return TreeEnsemble(splits, np.ascontiguousarray(trees.value[:, kept]))
