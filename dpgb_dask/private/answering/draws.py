"""Row sampling: a secret draw decides which rows serve a query.

If few rows are chosen, they are copied ("gathered") once for all queries of that draw; otherwise the others are masked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.queries import DRAW_BITS, RowDraw
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels.draw import draws
from dpgb_dask.private.answering.passes import Deal, RowBlock, Scores, Threads
from dpgb_dask.private.keeping.store import Kept, copies_fit, state_of
from dpgb_dask.private.reading.rows import Piece

GATHER = 1 << (DRAW_BITS - 2)  # up to a quarter of the rows is copied, which bounds the memory


@dataclass(frozen=True, eq=False, slots=True)
class Chosen:
    """A block of chosen rows, and the places of their scores. Private.

    Parameters
    ----------
    piece : Piece
    sources : tuple of (int, (n,) int32)
        For each piece that rows come from: its number in the shard, and the rows chosen from it.
    """

    piece: Piece
    sources: tuple[tuple[int, NDArray[np.int32]], ...]

    def __repr__(self) -> str:
        return "<chosen rows>"  # which rows serve a query is secret

    def scores(self, scores: Scores) -> NDArray[np.int32]:
        """Return the chosen rows' scores, (n_scores, n)."""
        return np.concatenate(
            [np.take(scores.memory(k), rows, axis=1) for k, rows in self.sources], axis=1
        )


class Draws:
    """The draws of a shard's rows.

    Parameters
    ----------
    pieces : sequence of Kept
    key : bytes or None
        16 secret bytes of the fit; None if the plan draws no rows.

    Notes
    -----
    If the state of the rows is in memory, two things are kept between queries: the draws of the last group (4 bytes per
    row), and copies of the rows of the last interval if it is at most `GATHER` long and the copies fit. Both are pure
    functions of the rows and the key. If they are not kept, they are computed again for each query, block by block.

    Privacy
    -------
    Private side. Which rows serve a query is as secret as the rows, and depends on no other row (docs/privacy.md P7).
    """

    def __init__(self, pieces: Sequence[Kept], key: bytes | None) -> None:
        self._pieces = pieces
        self._key = key
        self._group = -1
        self._draws: dict[int, NDArray[np.uint32]] = {}
        self._draw: RowDraw | None = None
        self._chosen: list[Chosen] = []
        self._is_gathered = False

    def choose(self, draw: RowDraw, scores: Scores, threads: Threads, deal: Deal) -> bool:
        """Choose the rows whose draw lies in ``[draw.low, draw.high)``, and return whether they are gathered.

        Parameters
        ----------
        draw : RowDraw
        scores : Scores
            Of all rows; rows can be gathered only if all scores are in memory.
        threads : Threads
        deal : Deal
            Makes a pass over all features of all blocks, to gather rows.

        Raises
        ------
        PlanError
            If the fit was opened without a key for draws.
        """
        if self._key is None:
            raise PlanError(f"{draw!r} needs a key for draws: the plan must say draws_rows=True.")
        if draw.group != self._group:
            self._draw, self._chosen, self._draws = None, [], {}
            self._group = draw.group
        if draw != self._draw:
            self._draw, self._chosen = None, []
            rows = self._few_rows(draw, threads) if scores.in_memory else None
            if rows is not None:
                self._gather(rows, deal)
            self._draw = draw
            self._is_gathered = rows is not None
        return self._is_gathered

    def gathered(self, turns: Iterator[int], scores: Scores) -> Iterator[RowBlock]:
        """Yield the blocks of gathered rows that ``turns`` numbers, with their scores."""
        for k in turns:
            yield RowBlock(k, self._chosen[k].piece, self._chosen[k].scores(scores))

    @property
    def n_gathered(self) -> int:
        """Number of blocks of gathered rows."""
        return len(self._chosen)

    def masked(self, blocks: Iterator[RowBlock]) -> Iterator[RowBlock]:
        """Yield blocks in which rows that were not chosen weigh nothing."""
        assert self._draw is not None
        for block in blocks:
            piece = block.piece
            one = np.int32(1) if piece.weight is None else piece.weight
            chosen = _between(self._drawn(block.number, piece.identity), self._draw)
            yield block._replace(piece=replace(piece, weight=np.where(chosen, one, np.int32(0))))

    def _few_rows(self, draw: RowDraw, threads: Threads) -> list[NDArray[np.int32]] | None:
        """Return the chosen rows of each block, or None if there are too many to copy."""
        if draw.high - draw.low > GATHER:
            return None
        rows = [np.empty(0, np.int32)] * len(self._pieces)

        def choose(k: int) -> None:
            state = state_of(self._pieces[k])
            identity = None if state is None else state[0]
            rows[k] = np.flatnonzero(_between(self._drawn(k, identity), draw)).astype(np.int32)

        threads.each(choose, len(rows))
        if not rows:
            return rows
        # label, weight, number of the row and those of a block in flight
        per_row = self._pieces[0].n_features + 24
        return rows if copies_fit(self._pieces, per_row * sum(map(len, rows))) else None

    def _drawn(self, k: int, identity: NDArray[np.uint64] | None) -> NDArray[np.uint32]:
        """Return the draws of a block; they are kept if the state of its rows is in memory."""
        drawn = self._draws.get(k)
        if drawn is None:
            assert self._key is not None
            assert identity is not None
            drawn = np.empty(len(identity), np.uint32)
            draws(self._key, self._group, _pairs(identity), drawn)
            if state_of(self._pieces[k]) is not None:
                self._draws[k] = drawn
        return drawn

    def _gather(self, rows: list[NDArray[np.int32]], deal: Deal) -> None:
        groups = _groups([len(r) for r in rows], max(map(len, self._pieces), default=0))
        place: dict[int, tuple[Piece, slice]] = {}
        chosen = []
        for group in groups:
            ends = np.cumsum([len(rows[j]) for j in group]).tolist()
            joined = self._empty(ends[-1])
            for j, end in zip(group, ends, strict=True):
                place[j] = joined, slice(end - len(rows[j]), end)
            chosen.append(Chosen(joined, tuple((j, rows[j]) for j in group)))

        def copy(blocks: Iterator[RowBlock]) -> None:
            for k, piece, _ in blocks:
                if k in place:
                    joined, part = place[k]
                    joined.codes[:, part] = np.take(piece.codes, rows[k], axis=1)
                    joined.label[part] = piece.label[rows[k]]
                    if piece.weight is not None and joined.weight is not None:
                        joined.weight[part] = piece.weight[rows[k]]

        deal(copy)
        self._chosen = chosen

    def _empty(self, n: int) -> Piece:
        """Return an empty piece of n rows to be filled; it has no identities, as its rows are drawn already."""
        first = self._pieces[0]
        state = state_of(first)
        assert state is not None
        _, weight, label = state
        return Piece(
            np.empty((first.n_features, n), np.uint8),
            np.empty(n, label.dtype),
            None if weight is None else np.empty(n, weight.dtype),
        )


def _between(draws: NDArray[np.uint32], draw: RowDraw) -> NDArray[np.bool_]:
    return (draws >= draw.low) & (draws <= draw.high - 1)  # high may be 2**32, which is no uint32


def _pairs(identity: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return identities of 16 bytes: a unit's hash, or a position and 0."""
    if identity.ndim == 2:
        return identity
    pairs = np.zeros((len(identity), 2), np.uint64)
    pairs[:, 0] = identity
    return pairs


def _groups(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Group neighbours so that the sizes in a group add up to at most ``most``; leave out those of size 0."""
    groups: list[list[int]] = []
    total = most
    for k, size in enumerate(sizes):
        if not size:
            continue
        if total + size > most:
            groups.append([])
            total = 0
        groups[-1].append(k)
        total += size
    return groups
