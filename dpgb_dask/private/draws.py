"""Rows that a secret draw lets serve a query: few are gathered, once for all queries of that draw; many are masked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.queries import DRAW_BITS, RowDraw
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels.draw import draws
from dpgb_dask.private.pieces import Piece, join_pieces

GATHER = 1 << (DRAW_BITS - 2)  # up to a quarter of the rows is copied, which bounds the memory
Deal = Callable[[Callable[[int, int], None]], object]  # runs work(first, step) on every thread


@dataclass(frozen=True, eq=False, slots=True)
class Chosen:
    """A block of chosen rows, and where their scores are. Private.

    Parameters
    ----------
    piece : Piece
    sources : tuple of (int, (n,) int32)
        Number of a piece of the shard, and the rows chosen from it.
    """

    piece: Piece
    sources: tuple[tuple[int, NDArray[np.int32]], ...]

    def __repr__(self) -> str:
        return "<chosen rows>"  # which rows serve a query is secret

    def scores(self, scores: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
        """Return the chosen rows' scores, (n_scores, n)."""
        return np.concatenate(
            [np.take(scores[k], rows, axis=1) for k, rows in self.sources], axis=1
        )


class Draws:
    """The draws of a shard's rows.

    Parameters
    ----------
    pieces : sequence of Piece
    key : bytes or None
        16 secret bytes of the fit; None if the plan draws no rows.

    Notes
    -----
    Kept between queries: the draws of the last group (4 bytes per row) and copies of the rows of the last interval, if
    it is at most `GATHER` long. Both are pure functions of the rows and the key.

    Privacy
    -------
    Private side. Which rows serve a query is as secret as the rows.
    """

    def __init__(self, pieces: Sequence[Piece], key: bytes | None) -> None:
        self._pieces = pieces
        self._key = key
        self._group = -1
        self._draws: list[NDArray[np.uint32]] = []
        self._draw: RowDraw | None = None
        self._chosen: list[Chosen] = []

    def choose(self, draw: RowDraw, deal: Deal) -> int:
        """Choose the rows whose draw lies in ``[draw.low, draw.high)``, and return in how many blocks they are.

        Raises
        ------
        PlanError
            If the fit was opened without a key for draws.
        """
        if self._key is None:
            raise PlanError(f"{draw!r} needs a key for draws: the plan must say draws_rows=True.")
        if draw.group != self._group:
            self._draw_group(draw.group, self._key, deal)
        if draw != self._draw:
            self._draw, self._chosen = None, []
            if draw.high - draw.low <= GATHER:
                self._gather(draw, deal)
            self._draw = draw
        return len(self._pieces if self._is_masked else self._chosen)

    @property
    def _is_masked(self) -> bool:
        return self._draw is not None and self._draw.high - self._draw.low > GATHER

    def read(self, k: int, scores: Sequence[NDArray[np.int32]]) -> tuple[Piece, NDArray[np.int32]]:
        """Return block k of the chosen rows, and their scores from those of all rows; other rows weigh nothing."""
        if not self._is_masked:
            return self._chosen[k].piece, self._chosen[k].scores(scores)
        assert self._draw is not None
        piece = self._pieces[k]
        one = np.int32(1) if piece.weight is None else piece.weight
        weight = np.where(_between(self._draws[k], self._draw), one, np.int32(0))
        return replace(piece, weight=weight), scores[k]

    def _draw_group(self, group: int, key: bytes, deal: Deal) -> None:
        self._group = -1  # if a thread fails half-way, the next query draws anew
        self._draw, self._chosen = None, []
        self._draws = [np.empty(len(piece), np.uint32) for piece in self._pieces]

        def work(first: int, step: int) -> None:
            for piece, out in zip(self._pieces[first::step], self._draws[first::step], strict=True):
                assert piece.identity is not None
                draws(key, group, _pairs(piece.identity), out)

        deal(work)
        self._group = group

    def _gather(self, draw: RowDraw, deal: Deal) -> None:
        rows = [np.flatnonzero(_between(d, draw)).astype(np.int32) for d in self._draws]
        groups = _groups([len(r) for r in rows], max(map(len, self._pieces), default=0))
        chosen: list[Chosen | None] = [None] * len(groups)

        def work(first: int, step: int) -> None:
            for k in range(first, len(groups), step):
                piece = join_pieces([self._pieces[j].take(rows[j]) for j in groups[k]])
                chosen[k] = Chosen(piece, tuple((j, rows[j]) for j in groups[k]))

        deal(work)
        self._chosen = [block for block in chosen if block is not None]


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
    """Return neighbours whose sizes add up to at most ``most``; empty ones are left out."""
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
