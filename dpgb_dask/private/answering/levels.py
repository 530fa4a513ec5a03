"""Sums of one level of a growing tree, per node, feature and bin.

Of two siblings only the smaller is summed: the sums of the other are those of the parent minus those of the first. The
sums of nodes alone, without their bins, follow from the level above, without a pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import Splits
from dpgb_dask.contracts.queries import (
    LevelQuery,
    NodeSumsQuery,
    SharedChoiceQuery,
    TreeSumsQuery,
)
from dpgb_dask.kernels.nodes import JoinedCells, NodeSums
from dpgb_dask.kernels.route import find_nodes
from dpgb_dask.private.answering.kept_bytes import KeptBytes
from dpgb_dask.private.answering.passes import RowBlock
from dpgb_dask.private.reading.rows import Piece

MOST = 2**63 - 1  # that an int64 holds

Deal = Callable[[Callable[[Iterator[RowBlock]], NDArray[np.int64]]], NDArray[np.int64]]
# makes a pass: runs a function on every thread over its share of the blocks, and adds the results


@dataclass(frozen=True, eq=False, slots=True)
class KeptLevel:
    """The sums of a level, kept for the next one. Private.

    Parameters
    ----------
    query : LevelQuery
        One that they answer.
    sums : (n_nodes, n_cells, n_scores, 2) int64
    """

    query: LevelQuery
    sums: NDArray[np.int64]

    def __repr__(self) -> str:
        return "<level>"

    def children(self, query: TreeSumsQuery) -> NDArray[np.int64] | None:
        """Return the answer to a query about the nodes below, or None if it does not follow from these sums.

        Returns
        -------
        (2 · n_nodes · n_scores · 2,) int64, or None

        Privacy
        -------
        Private side. The rows of a child are those of its parent in the bins of one side, so the integers are the same.
        """
        splits = query.splits
        follows = (
            splits.n_trees == 1
            and splits.n_leaves == 2 * len(self.sums)
            and self.query.splits.same(_upper(splits))
            and self.query.row_digest() == query.row_digest()
        )
        if not follows:
            return None
        out = np.empty((len(self.sums), 2, *self.sums.shape[2:]), np.int64)
        for p, sums in enumerate(self.sums):
            sides = _sides(self.query, splits, p)
            if sides is None:
                return None
            cells, right = sides
            out[p, 1] = sums[cells][right].sum(axis=0)
            out[p, 0] = sums[cells].sum(axis=0) - out[p, 1]
        return out.ravel()


class LevelCells(KeptBytes):
    """Cells of a shard's rows in the levels of a shared choice, kept from choice to choice if they fit. Private.

    Parameters
    ----------
    query : SharedChoiceQuery

    Notes
    -----
    Features share cells, so that a row takes about half a byte per feature.
    """

    def __init__(self, query: SharedChoiceQuery) -> None:
        joined = JoinedCells(query.features, query.level_of_bin, query.n_levels)
        super().__init__(joined.n_groups)
        self.rows = query.rows
        self.digest = query.cells_digest()
        self._joined = joined

    def serves(self, query: SharedChoiceQuery) -> bool:
        """Whether the cells are those of another query, too; drawn rows have blocks of their own."""
        return self.rows is query.rows is None and self.digest == query.cells_digest()

    def write(self, codes: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Write the joint cells of rows."""
        self._joined.join(codes, out)


class LevelSums:
    """One query about a level, prepared once for all blocks.

    Parameters
    ----------
    query : LevelQuery
    pack : function of (piece, score)
        Returns each row's (g, h), packed, as (n_scores, n) int64.
    max_abs : int
        Bound on |g| and h of one row, weights included.

    Notes
    -----
    Memory: about 24 · n_nodes · sum(sizes) · n_scores bytes per thread, and 16 · n_nodes · sum(sizes) · n_scores bytes
    for the level that is kept.
    """

    def __init__(
        self,
        query: LevelQuery,
        pack: Callable[[Piece, NDArray[np.int32]], NDArray[np.int64]],
        max_abs: int,
    ) -> None:
        self.query = query
        self.n_nodes = query.splits.n_leaves
        self.cells: LevelCells | None = None  # of a shared choice, given by the shard
        self._pack = pack
        self._max_abs = max_abs
        s = query.splits
        self._tree = s.feature[0], s.threshold[0], s.mask_of[0], s.masks

    def level(self, deal: Deal, before: KeptLevel | None) -> KeptLevel:
        """Return the sums of the level, in one pass; if ``before`` is the level above, larger siblings by subtraction.

        Parameters
        ----------
        deal : Deal
            Any number of threads gives the same bits.
        before : KeptLevel or None
            The level of the last query, at the same scores.

        Privacy
        -------
        Private side. Both ways give the same integers: the rows of a parent are the rows of its two children.
        """
        query = self.query
        above = None
        if self.n_nodes > 1 and before is not None and _same_but_tree(before.query, query):
            if before.query.splits.same(query.splits):
                return before
            if before.query.splits.same(_upper(query.splits)):
                above = before.sums
        if above is None:
            return KeptLevel(query, self._sums(deal))
        only = self._smaller(above)
        sums = self._sums(deal, only.ravel())
        pairs = sums.reshape(len(above), 2, *sums.shape[1:])
        pairs[~only] = above - pairs[only]
        return KeptLevel(query, sums)

    def _smaller(self, above: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which child of each node has the smaller sum of h, and so about fewer rows, as (n_nodes above, 2).

        Either choice gives the same bits. The sums of h come from the bins of the feature that the node was split by;
        if that feature was not summed, the left child is taken.
        """
        left = np.ones(len(above), np.bool_)
        for p, sums in enumerate(above):
            sides = _sides(self.query, self.query.splits, p)
            if sides is not None:
                cells, right = sides
                h = sums[cells, :, 1].sum(axis=1)
                left[p] = 2 * h[right].sum() >= h.sum()
        return np.stack([left, ~left], axis=1)

    def answer(self, level: KeptLevel) -> NDArray[np.int64]:
        """Return the sums in the order that the query asks for."""
        query = self.query
        if not isinstance(query, NodeSumsQuery) or query.sides is None:
            return level.sums.ravel().copy()
        out = np.empty((self.n_nodes, 1 + len(query.sizes), query.n_scores, 2), np.int64)
        # every row of a node is in one bin of the first feature; clipped: no number of rows overflows the product
        most = MOST // query.total_times
        total = level.sums[:, : query.sizes[0]].sum(axis=1).clip(-most, most)
        out[:, 0] = query.total_times * total
        sign = np.where(query.sides == 0, -1, 1)[:, :, None, None]
        stop = np.cumsum(query.sizes)
        for j, (end, size) in enumerate(zip(stop, query.sizes, strict=True), start=1):
            bins = slice(end - size, end)
            out[:, j] = (sign[:, bins] * level.sums[:, bins]).sum(axis=1)
        return out.ravel()

    def _sums(self, deal: Deal, only: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        query = self.query
        sizes = query.n_levels if isinstance(query, SharedChoiceQuery) else query.sizes
        joined = self.cells is not None

        def work(blocks: Iterator[RowBlock]) -> NDArray[np.int64]:
            sums = [
                NodeSums(query.features, sizes, self.n_nodes, self._max_abs, only, joined=joined)
                for _ in range(query.n_scores)
            ]
            for k, piece, score in blocks:
                node = self._route(piece)
                codes = piece.codes if self.cells is None else self.cells.find(k, piece.codes)
                for part, packed in zip(sums, self._pack(piece, score), strict=True):
                    part.add(codes, node, packed)
            totals = [part.total() for part in sums]
            return totals[0][:, :, None] if len(totals) == 1 else np.stack(totals, axis=2)

        return deal(work)

    def _route(self, piece: Piece) -> NDArray[np.uint16]:
        node = np.empty(len(piece), np.uint16)
        find_nodes(piece.codes, *self._tree, node)
        return node


def _sides(query: LevelQuery, splits: Splits, node: int) -> tuple[slice, NDArray[np.bool_]] | None:
    """Return the cells of the feature that a node of the level is split by, and which of them go right.

    None if the feature is not summed, or if a cell is a level whose bins go to both sides.

    Parameters
    ----------
    query : LevelQuery
        About the level.
    splits : Splits
        One level more: the nodes of the level are split.
    node : int
        Of the level, from 0.
    """
    at = splits.n_leaves // 2 - 1 + node
    place = np.flatnonzero(query.features == splits.feature[0, at])
    if not len(place):
        return None
    k = int(place[0])
    bins, mask = np.arange(query.sizes[k]), splits.mask_of[0, at]
    right = bins > splits.threshold[0, at] if mask < 0 else splits.masks[mask, bins] == 1
    sizes = query.sizes
    if isinstance(query, SharedChoiceQuery):
        sizes, level = query.n_levels, query.level_of_bin[k]
        of_level = np.zeros(sizes[k], np.bool_)
        of_level[level[right]] = True
        if (of_level[level] != right).any():
            return None
        right = of_level
    start = sum(sizes[:k])
    return slice(start, start + sizes[k]), right


def _same_but_tree(a: LevelQuery, b: LevelQuery) -> bool:
    """Whether sums of two levels differ by the tree alone; not the price, so histograms and choices share the sums."""
    return a.row_digest() == b.row_digest() and a.cells_digest() == b.cells_digest()


def _upper(splits: Splits) -> Splits:
    """Return the tree without its lowest splits."""
    n = splits.feature.shape[1] // 2
    return Splits(
        splits.feature[:, :n], splits.threshold[:, :n], splits.mask_of[:, :n], splits.masks
    )
