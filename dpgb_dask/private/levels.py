"""Sums of one level of a growing tree, per node, feature and bin; of siblings only the smaller is summed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import Splits
from dpgb_dask.contracts.queries import ChoiceQuery, NodeSumsQuery
from dpgb_dask.kernels.nodes import NodeSums
from dpgb_dask.kernels.route import find_nodes
from dpgb_dask.private.pieces import Piece

SAMPLE = 16  # every so many rows decide which sibling is summed: either gives the same bits
LevelQuery = NodeSumsQuery | ChoiceQuery
Read = Callable[[int], tuple[Piece, NDArray[np.int32]]]  # block k and its scores
Deal = Callable[[Callable[[int, int], NDArray[np.int64]]], NDArray[np.int64]]
# runs work(first, step) on every thread, and adds what they return


@dataclass(frozen=True, eq=False, slots=True)
class Level:
    """The sums of a level, kept for the next one. Private.

    Parameters
    ----------
    key : bytes
        Hash of everything but the rows and their scores that the sums depend on.
    sums : (n_nodes, n_cells, n_scores, 2) int64
    """

    key: bytes
    sums: NDArray[np.int64]

    def __repr__(self) -> str:
        return "<level>"


class LevelSums:
    """One query of a level, prepared for all blocks.

    Parameters
    ----------
    query : NodeSumsQuery or ChoiceQuery
    pack : function of (piece, score)
        Returns each row's (g, h), packed, as (n_scores, n) int64.
    max_abs : int
        Bound on |g| and h of one row, weights included.

    Notes
    -----
    Memory: about 24 · n_nodes · sum(sizes) · n_scores bytes per thread, 16 for the level that is kept, and 2 bytes per
    row while siblings are told apart.
    """

    def __init__(
        self,
        query: LevelQuery,
        pack: Callable[[Piece, NDArray[np.int32]], NDArray[np.int64]],
        max_abs: int,
    ) -> None:
        self.query = query
        self.n_nodes = query.splits.n_leaves
        self._pack = pack
        self._max_abs = max_abs
        s = query.splits
        self._tree = s.feature[0], s.threshold[0], s.mask_of[0], s.masks

    def level(self, n_blocks: int, read: Read, deal: Deal, before: Level | None) -> Level:
        """Return the sums of the level; those of a sibling by subtraction, if ``before`` is the level above.

        Parameters
        ----------
        n_blocks : int
        read : function of a block's number
        deal : function of work(first, step)
            Any number of threads gives the same bits.
        before : Level or None
            What the last query left, at the same scores.

        Privacy
        -------
        Private side. The same integers on either path: a parent's rows are those of its two children.
        """
        key = _key(self.query, self.query.splits)
        above = None
        if self.n_nodes > 1 and before is not None:
            if before.key == key:
                return before
            if before.key == _key(self.query, _upper(self.query.splits)):
                above = before.sums
        if above is None:
            return Level(key, self._sums(n_blocks, read, deal))
        nodes: list[NDArray[np.uint16]] = [np.empty(0, np.uint16)] * n_blocks

        def count(first: int, step: int) -> NDArray[np.int64]:
            rows = np.zeros(self.n_nodes, np.int64)
            for k in range(first, n_blocks, step):
                nodes[k] = self._route(read(k)[0])
                rows += np.bincount(nodes[k][::SAMPLE], minlength=self.n_nodes)
            return rows

        rows = deal(count).reshape(-1, 2)
        only = np.stack([rows[:, 0] <= rows[:, 1], rows[:, 0] > rows[:, 1]], axis=1)
        sums = self._sums(n_blocks, read, deal, nodes, only.ravel())
        pairs = sums.reshape(len(above), 2, *sums.shape[1:])
        pairs[~only] = above - pairs[only]
        return Level(key, sums)

    def answer(self, level: Level) -> NDArray[np.int64]:
        """Return the sums as the query lays them out."""
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

    def _sums(
        self,
        n_blocks: int,
        read: Read,
        deal: Deal,
        nodes: list[NDArray[np.uint16]] | None = None,
        only: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        query = self.query

        def work(first: int, step: int) -> NDArray[np.int64]:
            sums = [
                NodeSums(query.features, query.sizes, self.n_nodes, self._max_abs, only)
                for _ in range(query.n_scores)
            ]
            for k in range(first, n_blocks, step):
                piece, score = read(k)
                node = self._route(piece) if nodes is None else nodes[k]
                for part, packed in zip(sums, self._pack(piece, score), strict=True):
                    part.add(piece.codes, node, packed)
            totals = [part.total() for part in sums]
            return totals[0][:, :, None] if len(totals) == 1 else np.stack(totals, axis=2)

        return deal(work)

    def _route(self, piece: Piece) -> NDArray[np.uint16]:
        node = np.empty(len(piece), np.uint16)
        find_nodes(piece.codes, *self._tree, node)
        return node


def _key(query: LevelQuery, splits: Splits) -> bytes:
    """Hash what the sums of a level depend on: histograms and choices of one tree share them, whatever they cost."""
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
    return shared.digest()


def _upper(splits: Splits) -> Splits:
    """Return the tree without its lowest splits."""
    n = splits.feature.shape[1] // 2
    return Splits(
        splits.feature[:, :n], splits.threshold[:, :n], splits.mask_of[:, :n], splits.masks
    )


def _plain(splits: Splits) -> Splits:
    """Return the same tree with one mask per node that has one: masks are shared and kept in any order."""
    masked = splits.mask_of >= 0
    mask_of = np.full(splits.mask_of.shape, -1, np.int32)
    mask_of[masked] = np.arange(masked.sum())
    return Splits(splits.feature, splits.threshold, mask_of, splits.masks[splits.mask_of[masked]])
