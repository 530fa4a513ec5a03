"""Scores of rows at a released model, brought up to date by adding what the model gained."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import FeatureBins, Model, PairTable, Splits, Trees
from dpgb_dask.kernels.predict import add_pair_table, add_tables, add_trees, pack_tables


class Update:
    """What to add to scores at model ``old`` so that they are the scores of model ``new``."""

    def __init__(self, old: Model | None, new: Model) -> None:
        self.intercept = new.intercept if old is None else new.intercept - old.intercept
        self.tables = [
            None if not any(table is not None for table in part) else pack_tables(part)
            for part in (_table_deltas(old, new, k) for k in range(new.n_scores))
        ]
        self.pairs = _pair_deltas(() if old is None else old.pairs, new.pairs)
        start = 0 if old is None else old.trees.n_trees
        value = np.ascontiguousarray(new.trees.value[:, start:])
        self.trees = Trees(new.trees.splits.part(start), value)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is added."""
        tables = any(table is not None for table in self.tables)
        return not (self.intercept.any() or tables or self.pairs or self.trees.n_trees)

    def add(self, codes: NDArray[np.uint8], score: NDArray[np.int32]) -> None:
        """Add to the scores of one block, (n_scores, n), in place; int32 wraps around, the same on every path."""
        for k, tables in enumerate(self.tables):
            if self.intercept[k]:
                score[k] += self.intercept[k]
            if tables is not None:
                add_tables(codes, tables, score[k])
        for pair in self.pairs:
            for table, column in zip(pair.table, score, strict=True):
                add_pair_table(codes[pair.i], codes[pair.j], pair.map_i, pair.map_j, table, column)
        if self.trees.n_trees:
            s = self.trees.splits
            for value, column in zip(self.trees.value, score, strict=True):
                add_trees(codes, *s.arrays, value, column)


def _table_deltas(old: Model | None, new: Model, k: int) -> list[NDArray[np.int32] | None]:
    deltas: list[NDArray[np.int32] | None] = []
    for j, table in enumerate(new.tables):
        delta = table[:, k] if old is None else table[:, k] - old.tables[j][:, k]
        deltas.append(np.ascontiguousarray(delta) if delta.any() else None)
    return deltas


def _pair_deltas(old: tuple[PairTable, ...], new: tuple[PairTable, ...]) -> list[PairTable]:
    """Return tables to add, matching pairs by their features and maps; a pair that is gone is subtracted."""
    sums: dict[tuple[Any, ...], PairTable] = {}
    for sign, pairs in ((-1, old), (1, new)):
        for pair in pairs:
            key = (pair.i, pair.j, pair.map_i.tobytes(), pair.map_j.tobytes())
            table = pair.table if sign > 0 else -pair.table
            if key in sums:
                table = sums[key].table + table
            sums[key] = PairTable(pair.i, pair.j, pair.map_i, pair.map_j, table)
    return [pair for pair in sums.values() if pair.table.any()]


def same_bins(a: Sequence[FeatureBins], b: Sequence[FeatureBins]) -> bool:
    """Whether two sets of bins give the same codes."""

    def same(x: NDArray[Any] | None, y: NDArray[Any] | None) -> bool:
        return x is y or (x is not None and y is not None and np.array_equal(x, y))

    return a is b or (
        len(a) == len(b)
        and all(
            same(x.edges, y.edges) and same(x.cell_to_bin, y.cell_to_bin)
            for x, y in zip(a, b, strict=True)
        )
    )


def grew(old: Model, new: Model) -> bool:
    """Whether scores at ``old`` can be brought to ``new`` by adding: its trees are the first of the new ones."""
    a, b = old.trees, new.trees
    n = a.n_trees
    return old.n_scores == new.n_scores and (
        n == 0
        or (
            n <= b.n_trees
            and a.depth == b.depth
            and _begins_with(b.splits, a.splits)
            and np.array_equal(a.value, b.value[:, :n])
        )
    )


def _begins_with(new: Splits, old: Splits) -> bool:
    """Whether the first trees of ``new`` are those of ``old``; its masks come first too, as `join_splits` puts them."""
    n = old.n_trees
    return (
        np.array_equal(old.feature, new.feature[:n])
        and np.array_equal(old.threshold, new.threshold[:n])
        and np.array_equal(old.mask_of, new.mask_of[:n])
        and np.array_equal(old.masks, new.masks[: len(old.masks)])
    )
