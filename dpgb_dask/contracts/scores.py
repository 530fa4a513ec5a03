"""The scores of rows of codes under a model: one for the rows of users and for those that stages make up."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import Model, TreeEnsemble
from dpgb_dask.kernels import predict as kernels


def scores_by_codes(model: Model) -> Callable[[NDArray[np.uint8]], NDArray[np.int32]]:
    """Return a function from (n_features, n_rows) uint8 codes to (n_scores, n_rows) int32 scores."""
    # packed once, as every block of rows uses the same joint tables
    tables = kernels.pack_tables(model.tables)
    pairs = kernels.pack_pair_tables(model.pairs, [pair.table for pair in model.pairs])
    trees = model.trees

    def score(codes: NDArray[np.uint8]) -> NDArray[np.int32]:
        out = np.empty((model.n_scores, codes.shape[1]), np.int32)
        out[:] = model.intercept[:, None]
        kernels.add_tables(codes, tables, out)
        if model.pairs:  # a kernel that is not called need not be compiled
            kernels.add_pair_tables(codes, pairs, out)
        if trees.n_trees:
            kernels.add_trees(codes, *trees.splits.arrays, trees.value, out)
        return out

    return score


def added_by(trees: TreeEnsemble, codes: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return what trees add to the scores of rows: (n_scores, n_rows) int32 of (n_features, n_rows) uint8 codes."""
    out = np.zeros((len(trees.value), codes.shape[1]), np.int32)
    kernels.add_trees(codes, *trees.splits.arrays, trees.value, out)
    return out
