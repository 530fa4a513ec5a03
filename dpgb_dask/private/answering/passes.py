"""One pass over the blocks of a shard: several threads work on them, and another reads ahead from scratch."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.private.answering.scores import Scores, Update
from dpgb_dask.private.keeping.pieces import Piece
from dpgb_dask.private.keeping.scratch import Extent
from dpgb_dask.private.keeping.store import READ_AHEAD, Kept, LostPiece, StoredPiece

T = TypeVar("T")
Deal = Callable[[Callable[[Iterator["RowBlock"]], Any]], list[Any]]
# runs a function on every thread, each with an iterator over its share of the blocks, and returns the results


class Threads:
    """Threads of a pool that share some work.

    Parameters
    ----------
    pool : ThreadPoolExecutor or None
        None to work in the caller's thread.
    n_threads : int
    """

    def __init__(self, pool: ThreadPoolExecutor | None, n_threads: int) -> None:
        self._pool = pool
        self.n = 1 if pool is None else n_threads

    def run(self, work: Callable[[], T], n_blocks: int) -> list[T]:
        """Run a function on every thread, but on at most one thread per block, and return the results.

        If a call raises, the others are waited for before the error is raised, since they write to scores.
        """
        n = min(self.n, n_blocks)
        if n <= 1 or self._pool is None:
            return [work()]
        futures = [self._pool.submit(work) for _ in range(n)]
        wait(futures)
        return [future.result() for future in futures]

    def each(self, work: Callable[[int], None], n_blocks: int) -> None:
        """Call a function with the number of every block."""
        turns = iter(range(n_blocks))

        def take() -> None:
            for k in turns:
                work(k)

        self.run(take, n_blocks)


class RowBlock(NamedTuple):
    """A block of rows as kernels take it, and their scores. Private.

    Parameters
    ----------
    number : int
        The piece's number in the shard.
    piece : Piece
        The codes of features that the pass did not ask for are undefined.
    score : (n_scores, n) int32
    """

    number: int
    piece: Piece
    score: NDArray[np.int32]

    def __repr__(self) -> str:
        return "<block>"


class _Read(NamedTuple):
    """A block that was read from scratch and not yet checked."""

    number: int
    buffer: NDArray[np.uint8]


class Pass:
    """Yields every block once, in any order, to the threads that iterate over it; use it in a ``with`` statement.

    Parameters
    ----------
    pieces : sequence of Kept
    scores : Scores
        Updated during the pass, block by block.
    update : Update or None
        Added to the scores; None if they are up to date.
    columns : function
        Returns the features that are needed, in increasing order, including those that the update reads; only called if
        blocks are on scratch.
    n_threads : int
    identity : bool
        Whether to read the identities of rows too, where they are on scratch.

    Notes
    -----
    A block from scratch is taken as soon as it is read; a block in memory is taken when none from scratch is ready.
    Integer sums are the same for any order. A block is valid until its thread asks for the next one, which may reuse
    the buffer.

    Raises
    ------
    LostCodesError
        From the iterators, if rows cannot be read back.
    """

    def __init__(
        self,
        pieces: Sequence[Kept],
        scores: Scores,
        update: Update | None,
        columns: Callable[[], Sequence[int]],
        n_threads: int,
        *,
        identity: bool = False,
    ) -> None:
        self.waited = 0.0  # seconds that threads waited for blocks, summed over threads
        self._scores = scores
        self._update = update
        self._identity = identity
        self._pieces = pieces
        self._memory: deque[tuple[int, Piece]] = deque()
        self._stored: list[int] = []
        for k, kept in enumerate(pieces):
            assert not isinstance(kept, LostPiece)
            # a reference is kept, so that codes which move to scratch meanwhile stay in memory until they are used
            piece = kept if isinstance(kept, Piece) else kept.in_memory
            if piece is not None:
                self._memory.append((k, piece))
            else:
                self._stored.append(k)
        self._changed = threading.Condition()
        self._ready: deque[_Read] = deque()
        self._spare: list[NDArray[np.uint8]] = []
        self._unread = len(self._stored)
        self._failure: BaseException | None = None
        self._stopped = False
        self._reader: threading.Thread | None = None
        if self._stored:
            self._columns = columns()
            self._borrow(min(n_threads + READ_AHEAD, len(self._stored)))

    def __enter__(self) -> Self:
        if self._stored:
            self._reader = threading.Thread(target=self._read_ahead, name="dpgb-read", daemon=True)
            self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._reader is not None:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            self._reader.join()
            if kind is None:  # after Ctrl-C, a thread may still be working on a buffer
                self._give_back()

    def __iter__(self) -> Iterator[RowBlock]:
        try:
            while (taken := self._take()) is not None:
                if isinstance(taken, _Read):
                    yield self._block(taken)
                    with self._changed:
                        self._spare.append(taken.buffer)
                        self._changed.notify_all()
                else:
                    k, piece = taken
                    score = self._scores.memory(k)
                    if self._update is not None:
                        self._update.add(k, piece.codes, score)
                    yield RowBlock(k, piece, score)
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """Wake the threads that wait for a block: there may be no more."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _take(self) -> "_Read | tuple[int, Piece] | None":
        """Return a block that is ready, or wait for one; None when all are taken."""
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._stopped:
                    return None
                if self._ready:
                    return self._ready.popleft()
                if self._memory:
                    return self._memory.popleft()
                if not self._unread:
                    return None
                start = time.monotonic()
                self._changed.wait()
                self.waited += time.monotonic() - start

    def _block(self, read: _Read) -> RowBlock:
        """Check a block that was read, and update its scores."""
        k, buffer = read
        kept, extent = self._stored_piece(k)
        room = self._scores.room(k)
        codes = buffer[room : room + extent.size]
        extent.check(kept.parts(self._columns, identity=self._identity), codes)
        piece = kept.view(codes)
        score = self._scores.view(k, buffer)
        if self._update is not None:
            self._update.add(k, piece.codes, score)
            self._scores.save(k, score)
        return RowBlock(k, piece, score)

    def _read_ahead(self) -> None:
        try:
            for k in self._stored:
                with self._changed:
                    while not self._spare and not self._stopped:
                        self._changed.wait()
                    if self._stopped:
                        return
                    buffer = self._spare.pop()
                kept, extent = self._stored_piece(k)
                room = self._scores.room(k)
                parts = kept.parts(self._columns, identity=self._identity)
                extent.read(parts, buffer[room : room + extent.size])
                self._scores.read(k, buffer)
                with self._changed:
                    self._ready.append(_Read(k, buffer))
                    self._unread -= 1
                    self._changed.notify()
        except BaseException as error:
            self._fail(error)

    def _stored_piece(self, k: int) -> tuple[StoredPiece, Extent]:
        kept = self._pieces[k]
        assert isinstance(kept, StoredPiece)
        assert kept.extent is not None
        return kept, kept.extent

    def _borrow(self, n_buffers: int) -> None:
        sizes = [self._scores.room(k) + self._stored_piece(k)[1].size for k in self._stored]
        scratch = self._stored_piece(self._stored[0])[1].scratch
        self._spare = [scratch.borrow(max(sizes)) for _ in range(n_buffers)]
        self._buffers = list(self._spare)

    def _give_back(self) -> None:
        scratch = self._stored_piece(self._stored[0])[1].scratch
        for buffer in self._buffers:
            scratch.give_back(buffer)
