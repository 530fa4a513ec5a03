"""Scores of rows at a released model, updated by adding the difference between a new model and the old one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import MAX_BINS, FeatureBins, Model, PairTable, Splits, TreeEnsemble
from dpgb_dask.kernels.predict import (
    add_pair_tables,
    add_tables,
    add_trees,
    pack_pair_tables,
    pack_tables,
)
from dpgb_dask.kernels.route import BYTE_DEPTH, tree_leaves
from dpgb_dask.private.answering.kept_bytes import KeptBytes
from dpgb_dask.private.keeping.store import Kept, StoredPiece

ALIGNED = 16  # bytes
KEPT_TREES = 32  # leaves of so many trees at most are kept: as many bytes per row


class Leaves(KeptBytes):
    """Leaves of a shard's rows in a query's trees: found for its sums, kept until the trees join the model. Private.

    Parameters
    ----------
    splits : Splits
        1 to `BYTE_DEPTH` levels deep.
    """

    def __init__(self, splits: Splits) -> None:
        super().__init__(splits.n_trees)
        self.splits = splits

    @staticmethod
    def can_hold(splits: Splits) -> bool:
        """Whether the numbers of these trees' leaves are bytes."""
        return 1 <= splits.depth <= BYTE_DEPTH

    def write(self, codes: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Write the leaves of rows."""
        tree_leaves(codes, *self.splits.arrays, out)


class Update:
    """The difference of two models: added to the scores of ``old``, it gives the scores of ``new``.

    Parameters
    ----------
    old : Model or None
    new : Model
    leaves : Leaves or None
        Of the last query's trees; they serve if these are the trees to add.
    """

    def __init__(self, old: Model | None, new: Model, leaves: Leaves | None = None) -> None:
        self.intercept = new.intercept if old is None else new.intercept - old.intercept
        self._moves = bool(self.intercept.any())
        self._tables = pack_tables(_table_deltas(old, new))
        pairs = _pair_deltas(() if old is None else old.pairs, new.pairs)
        self._pairs = pack_pair_tables(pairs, [pair.table for pair in pairs]) if pairs else None
        start = 0 if old is None else old.trees.n_trees
        self._trees: TreeEnsemble | None = None
        self._leaves: Leaves | None = None
        if new.trees.n_trees > start:
            value = np.ascontiguousarray(new.trees.value[:, start:])
            self._trees = TreeEnsemble(new.trees.splits.part(start), value)
            if leaves is not None and leaves.splits.same(self._trees.splits):
                self._leaves = leaves
                self._values = pack_tables(list(value.transpose(1, 2, 0)))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is added."""
        tables = len(self._tables.order) or self._pairs is not None
        return not (self._moves or tables or self._trees is not None)

    @property
    def columns(self) -> frozenset[int]:
        """Features whose codes are read."""
        columns = self._tables.order.tolist()
        if self._pairs is not None:
            columns += self._pairs.pairs.feature.tolist()
        if self._trees is not None:
            columns += split_features(self._trees.splits)
        return frozenset(columns)

    def add(self, k: int, codes: NDArray[np.uint8], score: NDArray[np.int32]) -> None:
        """Add the difference to the scores of block ``k``, (n_scores, n), in place; int32 wraps around identically."""
        if self._moves:
            score += self.intercept[:, None]
        add_tables(codes, self._tables, score)
        if self._pairs is not None:
            add_pair_tables(codes, self._pairs, score)
        leaves = None if self._leaves is None else self._leaves.take(k)
        if leaves is not None:  # trees are like features whose bins are their leaves
            add_tables(leaves, self._values, score)
        elif self._trees is not None:
            add_trees(codes, *self._trees.splits.arrays, self._trees.value, score)


class Scores:
    """The scores of all rows of a shard, block by block: on scratch if the state of the rows is, else in memory.

    Parameters
    ----------
    pieces : sequence of Kept
    n_scores : int

    Raises
    ------
    ScratchError
        If scratch has no room for them.

    Notes
    -----
    Only one thread at a time works on a block, so there are no locks. A blank block has scores of 0, whatever is stored
    for it.
    """

    def __init__(self, pieces: Sequence[Kept], n_scores: int) -> None:
        self._shapes = [(n_scores, len(piece)) for piece in pieces]
        self._blank = [True] * len(pieces)
        self._memory: dict[int, NDArray[np.int32]] = {}
        self._extents = {
            k: piece.extent.scratch.reserve(4 * n_scores * len(piece))
            for k, piece in enumerate(pieces)
            if isinstance(piece, StoredPiece) and piece.state is None and piece.extent is not None
        }

    @property
    def in_memory(self) -> bool:
        """Whether no scores are on scratch."""
        return not self._extents

    def start_over(self) -> None:
        """Set all scores to 0."""
        self._blank = [True] * len(self._blank)

    def memory(self, k: int) -> NDArray[np.int32]:
        """Return the scores of a block that are in memory."""
        score = self._memory.get(k)
        if score is None:
            score = self._memory[k] = np.zeros(self._shapes[k], np.int32)
        elif self._blank[k]:
            score[:] = 0
        self._blank[k] = False
        return score

    def room(self, k: int) -> int:
        """Return how many bytes the scores of a block take at the start of a buffer; 0 if they are in memory."""
        extent = self._extents.get(k)
        return 0 if extent is None else -(-extent.size // ALIGNED) * ALIGNED

    def read(self, k: int, buffer: NDArray[np.uint8]) -> None:
        """Read the scores of a block to the start of a buffer, if they are on scratch.

        Raises
        ------
        LostCodesError
            If they cannot be read back.
        """
        extent = self._extents.get(k)
        if extent is not None and not self._blank[k]:
            extent.read((0,), buffer[: extent.size])

    def view(self, k: int, buffer: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the scores of a block: from the buffer that `read` filled, or from memory.

        Raises
        ------
        LostCodesError
            If they are damaged.
        """
        extent = self._extents.get(k)
        if extent is None:
            return self.memory(k)
        stored = buffer[: extent.size]
        score = stored.view(np.int32).reshape(self._shapes[k])
        if self._blank[k]:
            score[:] = 0
        else:
            extent.check((0,), stored)
        return score

    def save(self, k: int, score: NDArray[np.int32]) -> None:
        """Write changed scores to scratch, if that is where they are kept.

        Raises
        ------
        ScratchError
            If the disk fails.
        """
        extent = self._extents.get(k)
        if extent is not None:
            extent.scratch.rewrite(extent, score.reshape(-1).view(np.uint8))
            self._blank[k] = False


def split_features(splits: Splits) -> list[int]:
    """Return the features that decide where a row goes; a node that sends every row left reads no feature."""
    splitting = (splits.threshold < MAX_BINS - 1) | (splits.mask_of >= 0)
    found: list[int] = np.unique(splits.feature[splitting]).tolist()
    return found


def _table_deltas(old: Model | None, new: Model) -> list[NDArray[np.int32] | None]:
    if old is None:
        return list(new.tables)
    return [
        None if table is before else table - before
        for table, before in zip(new.tables, old.tables, strict=True)
    ]


def _pair_deltas(old: tuple[PairTable, ...], new: tuple[PairTable, ...]) -> list[PairTable]:
    """Return the pair tables to add; pairs match by features and maps, and a pair only in ``old`` is subtracted."""
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
    return a is b or (
        len(a) == len(b)
        and all(
            _same(x.edges, y.edges) and _same(x.cell_to_bin, y.cell_to_bin)
            for x, y in zip(a, b, strict=True)
        )
    )


def _same(x: NDArray[Any] | None, y: NDArray[Any] | None) -> bool:
    return x is y or (x is not None and y is not None and np.array_equal(x, y))


def grew(old: Model, new: Model) -> bool:
    """Whether scores of ``old`` can be updated to ``new`` by adding: ``new`` begins with the trees of ``old``."""
    return old.n_scores == new.n_scores and (
        old.trees.n_trees == 0 or extends(new.trees, old.trees)
    )


def extends(new: TreeEnsemble, old: TreeEnsemble) -> bool:
    """Whether ``new`` begins with the trees of ``old``, one or more, and with all of their masks."""
    n = old.n_trees
    return (
        n <= new.n_trees
        and old.depth == new.depth
        and _begins_with(new.splits, old.splits)
        and np.array_equal(old.value, new.value[:, :n])
    )


def _begins_with(new: Splits, old: Splits) -> bool:
    """Whether ``new`` begins with the trees of ``old``, and with its masks too, as `join_splits` orders them."""
    n = old.n_trees
    return (
        np.array_equal(old.feature, new.feature[:n])
        and np.array_equal(old.threshold, new.threshold[:n])
        and np.array_equal(old.mask_of, new.mask_of[:n])
        and np.array_equal(old.masks, new.masks[: len(old.masks)])
    )
