"""Sums of one level of a growing tree, per node, feature and bin.

Of two siblings only the smaller is summed: the sums of the other are those of the parent minus those of the first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import MAX_BINS, Splits
from dpgb_dask.contracts.queries import ChoiceQuery, NodeSumsQuery, SharedChoiceQuery
from dpgb_dask.kernels.bin import map_cells
from dpgb_dask.kernels.nodes import NodeSums
from dpgb_dask.kernels.route import find_nodes
from dpgb_dask.private.answering.passes import RowBlock
from dpgb_dask.private.keeping.pieces import Piece

LevelQuery = NodeSumsQuery | ChoiceQuery | SharedChoiceQuery
Deal = Callable[[Callable[[Iterator[RowBlock]], NDArray[np.int64]]], NDArray[np.int64]]
# makes a pass: runs a function on every thread over its share of the blocks, and adds the results


@dataclass(frozen=True, eq=False, slots=True)
class KeptLevel:
    """The sums of a level, kept for the next one. Private.

    Parameters
    ----------
    key : bytes
        Hash of everything that the sums depend on, except the rows and their scores.
    sums : (n_nodes, n_cells, n_scores, 2) int64
    """

    key: bytes
    sums: NDArray[np.int64]

    def __repr__(self) -> str:
        return "<level>"


class LevelSums:
    """One query about a level, prepared once for all blocks.

    Parameters
    ----------
    query : NodeSumsQuery, ChoiceQuery or SharedChoiceQuery
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
        self.sizes = query.sizes
        self._levels: NDArray[np.uint8] | None = None  # of each bin; None where bins are summed
        if isinstance(query, SharedChoiceQuery):
            self.sizes = query.n_levels
            self._levels = np.zeros((len(query.sizes), MAX_BINS), np.uint8)
            for row, level_of_bin in zip(self._levels, query.level_of_bin, strict=True):
                row[: len(level_of_bin)] = level_of_bin
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
        key = _key(self.query, self.query.splits)
        above = None
        if self.n_nodes > 1 and before is not None:
            if before.key == key:
                return before
            if before.key == _key(self.query, _upper(self.query.splits)):
                above = before.sums
        if above is None:
            return KeptLevel(key, self._sums(deal))
        only = self._smaller(above)
        sums = self._sums(deal, only.ravel())
        pairs = sums.reshape(len(above), 2, *sums.shape[1:])
        pairs[~only] = above - pairs[only]
        return KeptLevel(key, sums)

    def _smaller(self, above: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which child of each node has the smaller sum of h, and so about fewer rows, as (n_nodes above, 2).

        Either choice gives the same bits. The sums of h come from the bins of the feature that the node was split by;
        if that feature was not summed, the left child is taken.
        """
        query, splits = self.query, self.query.splits
        n_above = len(above)
        start = np.cumsum([0, *self.sizes])
        place = {int(f): k for k, f in enumerate(query.features)}
        left = np.ones(n_above, np.bool_)
        for p in range(n_above):
            node = n_above - 1 + p
            k = place.get(int(splits.feature[0, node]))
            if k is None:
                continue
            h = above[p, start[k] : start[k + 1], :, 1].sum(axis=1)
            mask = splits.mask_of[0, node]
            bins = np.arange(query.sizes[k])
            right = bins > splits.threshold[0, node] if mask < 0 else splits.masks[mask, bins] == 1
            if self._levels is not None:  # the bins of a level go to one side
                level = self._levels[k, bins]
                right = np.isin(np.arange(len(h)), level[right])
            left[p] = 2 * h[right].sum() >= h.sum()
        return np.stack([left, ~left], axis=1)

    def answer(self, level: KeptLevel) -> NDArray[np.int64]:
        """Return the sums in the order that the query asks for."""
        query = self.query
        if not isinstance(query, NodeSumsQuery) or query.sides is None:
            return level.sums.ravel().copy()
        out = np.empty((self.n_nodes, len(query.sizes), 2, query.n_scores, 2), np.int64)
        stop = np.cumsum(query.sizes)
        for j, (end, size) in enumerate(zip(stop, query.sizes, strict=True)):
            bins = level.sums[:, end - size : end]
            right = query.sides[:, end - size : end, None, None] != 0
            out[:, j, 1] = np.where(right, bins, 0).sum(axis=1)
            out[:, j, 0] = bins.sum(axis=1) - out[:, j, 1]
        return out.ravel()

    def _sums(self, deal: Deal, only: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        query = self.query
        # levels are written for the features of the query alone
        used = np.arange(len(query.features), dtype=np.uint16)
        features = query.features if self._levels is None else used

        def work(blocks: Iterator[RowBlock]) -> NDArray[np.int64]:
            sums = [
                NodeSums(features, self.sizes, self.n_nodes, self._max_abs, only)
                for _ in range(query.n_scores)
            ]
            for _, piece, score in blocks:
                node = self._route(piece)
                codes = self._codes(piece)
                for part, packed in zip(sums, self._pack(piece, score), strict=True):
                    part.add(codes, node, packed)
            totals = [part.total() for part in sums]
            return totals[0][:, :, None] if len(totals) == 1 else np.stack(totals, axis=2)

        return deal(work)

    def _codes(self, piece: Piece) -> NDArray[np.uint8]:
        """Return the bins of a piece, or the levels of the query's features."""
        if self._levels is None:
            return piece.codes
        levels = np.empty((len(self._levels), len(piece)), np.uint8)
        map_cells(piece.codes[self.query.features], self._levels, levels)
        return levels

    def _route(self, piece: Piece) -> NDArray[np.uint16]:
        node = np.empty(len(piece), np.uint16)
        find_nodes(piece.codes, *self._tree, node)
        return node


def _key(query: LevelQuery, splits: Splits) -> bytes:
    """Hash what the sums of a level depend on; not the price, so histograms and choices of one tree share the sums."""
    shared = NodeSumsQuery(
        label="",
        price=0,
        weight_bits=query.weight_bits,
        gradient=query.gradient,
        n_scores=query.n_scores,
        rows=query.rows,
        splits=_plain(splits),
        features=query.features,
        sizes=query.sizes,
    )
    levels = query.level_of_bin if isinstance(query, SharedChoiceQuery) else ()
    return shared.digest() + b"".join(part.tobytes() for part in levels)


def _upper(splits: Splits) -> Splits:
    """Return the tree without its lowest splits."""
    n = splits.feature.shape[1] // 2
    return Splits(
        splits.feature[:, :n], splits.threshold[:, :n], splits.mask_of[:, :n], splits.masks
    )


def _plain(splits: Splits) -> Splits:
    """Return the same tree with masks in a fixed form: one for each masked node, in node order.

    In ``splits`` nodes may share a mask, and masks may stand in any order.
    """
    masked = splits.mask_of >= 0
    mask_of = np.full(splits.mask_of.shape, -1, np.int32)
    mask_of[masked] = np.arange(masked.sum())
    return Splits(splits.feature, splits.threshold, mask_of, splits.masks[splits.mask_of[masked]])
