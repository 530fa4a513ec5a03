"""A pass over the blocks of a shard: it brings their scores up to a released model, and hands out rows with scores.

Scores are updated by adding the difference between a new model and the old one. Several threads work on blocks, and
another reads ahead from scratch.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import Model, PairTable, Splits, TreeEnsemble
from dpgb_dask.kernels.pair_tables import PairSet, pair_sums
from dpgb_dask.kernels.predict import (
    add_pair_tables,
    add_tables,
    add_trees,
    pack_pair_tables,
    pack_tables,
)
from dpgb_dask.kernels.route import tree_leaves
from dpgb_dask.kernels.sides import BYTE_DEPTH
from dpgb_dask.private.answering.kept_bytes import KeptBytes, KeptCells
from dpgb_dask.private.keeping.scratch import Extent
from dpgb_dask.private.keeping.store import READ_AHEAD, Kept, LostPiece, StoredPiece
from dpgb_dask.private.reading.rows import Piece

ALIGNED = 16  # bytes
KEPT_BYTES = 32  # most bytes kept of each row for a query's trees, one each

T = TypeVar("T")
Deal = Callable[[Callable[[Iterator["RowBlock"]], Any]], list[Any]]
# runs a function on every thread, each with an iterator over its share of the blocks, and returns the results


# ---- scores ----------------------------------------------------------------------------------------------------------


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


class JointCells(KeptCells[np.uint16]):
    """Joint cells of a shard's rows in a query's pairs, kept for the catch-up and further queries about them. Private.

    Those that are kept stay when they are taken.

    Parameters
    ----------
    pairs : PairSet
    """

    def __init__(self, pairs: PairSet) -> None:
        super().__init__(2 * pairs.n_groups)
        self.pairs = pairs

    def serves(self, pairs: PairSet) -> bool:
        """Whether they are the cells of these pairs: tables of the same pairs are packed once (`pack_pairs`)."""
        return pairs is self.pairs

    def take(self, k: int) -> NDArray[np.uint16] | None:
        """Return the cells of a block, (n_groups, n), None if there are none; forget them unless this ``keeps``."""
        return self._of_block.get(k) if self.keeps else self._of_block.pop(k, None)

    def sums(
        self, k: int, codes: NDArray[np.uint8], packed: NDArray[np.int64], max_abs: int
    ) -> NDArray[np.int64]:
        """Return the sums of a block, as `pair_sums` does, and keep its cells if this object ``keeps``."""
        cells = known = self.take(k)
        if known is None and self.keeps:
            cells = np.empty((self.pairs.n_groups, codes.shape[1]), np.uint16)
        found = pair_sums(codes, self.pairs, packed, max_abs, cells, known=known is not None)
        if known is None and cells is not None:
            self._of_block[k] = cells
        return found


class Update:
    """The difference of two models: added to the scores of ``old``, it gives the scores of ``new``.

    Parameters
    ----------
    old : Model or None
    new : Model
    leaves : Leaves or None
        Of the last query's trees; they serve if these are the trees to add.
    joint : JointCells or None
        Of the last query's pairs; they serve if these are the pairs that change.
    """

    def __init__(
        self,
        old: Model | None,
        new: Model,
        leaves: Leaves | None = None,
        joint: JointCells | None = None,
    ) -> None:
        self.intercept = new.intercept if old is None else new.intercept - old.intercept
        self._moves = np.count_nonzero(self.intercept) > 0
        self._tables = pack_tables(_table_deltas(old, new))
        pairs = _pair_deltas(() if old is None else old.pairs, new.pairs)
        self._pairs = pack_pair_tables(pairs, [pair.table for pair in pairs]) if pairs else None
        serves = joint is not None and self._pairs is not None and joint.serves(self._pairs.pairs)
        self._joint = joint if serves else None
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
        tables = self._tables.features or self._pairs is not None
        return not (self._moves or tables or self._trees is not None)

    @property
    def columns(self) -> frozenset[int]:
        """Features whose codes are read."""
        columns = self._tables.features
        if self._pairs is not None:
            columns |= frozenset(self._pairs.pairs.feature.tolist())
        if self._trees is not None:
            columns |= frozenset(split_features(self._trees.splits))
        return columns

    def add(self, k: int, codes: NDArray[np.uint8], score: NDArray[np.int32]) -> None:
        """Add the difference to the scores of block ``k``, (n_scores, n), in place; int32 wraps around identically."""
        if self._moves:
            score += self.intercept[:, None]
        add_tables(codes, self._tables, score)
        if self._pairs is not None:
            add_pair_tables(
                codes, self._pairs, score, None if self._joint is None else self._joint.take(k)
            )
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
    found: list[int] = np.unique(splits.feature[splits.splitting]).tolist()
    return found


def _table_deltas(old: Model | None, new: Model) -> list[NDArray[np.int32] | None]:
    if old is None:
        return list(new.tables)
    return [
        None if table is before else table - before
        for table, before in zip(new.tables, old.tables, strict=True)
    ]


def only_change(old: Model, new: Model) -> int | None:
    """Return the feature of the only table in which two models differ; None if they differ otherwise."""
    if not (new.trees is old.trees and new.pairs is old.pairs and new.intercept is old.intercept):
        return None
    both = enumerate(zip(new.tables, old.tables, strict=True))
    changed = [j for j, (table, before) in both if table is not before]
    return changed[0] if len(changed) == 1 else None


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


# ---- passes ----------------------------------------------------------------------------------------------------------


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

    These blocks are in memory; `StoredPass` reads from scratch.

    Parameters
    ----------
    scores : Scores
        Updated during the pass, block by block.
    update : Update or None
        Added to the scores; None if they are up to date.
    memory : sequence of (int, Piece)
        Blocks and their numbers.

    Notes
    -----
    Integer sums are the same for any order. A block is valid until its thread asks for the next one.

    Attributes
    ----------
    waited : float
        Seconds that threads waited for blocks, summed over threads.
    """

    def __init__(
        self, scores: Scores, update: Update | None, memory: Sequence[tuple[int, Piece]]
    ) -> None:
        self.waited = 0.0
        self._scores = scores
        self._update = update
        self._memory = deque(memory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[RowBlock]:
        try:
            while self._memory:
                try:
                    taken = self._memory.popleft()
                except IndexError:  # another thread took the last one
                    return
                yield self._in_memory(*taken)
        except BaseException:
            self._memory.clear()  # so that the other threads stop too
            raise

    def _in_memory(self, k: int, piece: Piece) -> RowBlock:
        """Bring the scores of a block up to date."""
        score = self._scores.memory(k)
        if self._update is not None:
            self._update.add(k, piece.codes, score)
        return RowBlock(k, piece, score)


class StoredPass(Pass):
    """A pass over blocks of which some are on scratch, and read ahead by another thread.

    Parameters
    ----------
    scores, update, memory
        As in `Pass`.
    stored : sequence of (int, StoredPiece)
        The blocks on scratch.
    columns : sequence of int
        Features that are needed, in increasing order, including those that the update reads.
    n_threads : int
    identity : bool
        Whether to read the identities of rows too.

    Notes
    -----
    A block from scratch is taken as soon as it is read; a block in memory is taken when none from scratch is ready.
    When its thread asks for the next block, the buffer may be reused.

    Raises
    ------
    LostCodesError
        From the iterators, if rows cannot be read back.
    """

    def __init__(
        self,
        scores: Scores,
        update: Update | None,
        memory: Sequence[tuple[int, Piece]],
        stored: Sequence[tuple[int, StoredPiece]],
        columns: Sequence[int],
        n_threads: int,
        *,
        identity: bool,
    ) -> None:
        super().__init__(scores, update, memory)
        self._stored = dict(stored)
        self._columns = columns
        self._identity = identity
        self._changed = threading.Condition()
        self._ready: deque[_Read] = deque()
        self._unread = len(stored)
        self._failure: BaseException | None = None
        self._stopped = False
        n_buffers = min(n_threads + READ_AHEAD, len(stored))
        sizes = [scores.room(k) + self._extent(k).size for k in self._stored]
        self._scratch = self._extent(next(iter(self._stored))).scratch
        self._buffers = [self._scratch.borrow(max(sizes)) for _ in range(n_buffers)]
        self._spare = list(self._buffers)

    def __enter__(self) -> Self:
        self._reader = threading.Thread(target=self._read_ahead, name="dpgb-read", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._reader.join()
        if kind is None:  # after Ctrl-C, a thread may still be working on a buffer
            for buffer in self._buffers:
                self._scratch.give_back(buffer)

    def __iter__(self) -> Iterator[RowBlock]:
        try:
            while (taken := self._take()) is not None:
                if isinstance(taken, _Read):
                    yield self._block(taken)
                    with self._changed:
                        self._spare.append(taken.buffer)
                        self._changed.notify_all()
                else:
                    yield self._in_memory(*taken)
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
        kept, extent = self._stored[k], self._extent(k)
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
                kept, extent = self._stored[k], self._extent(k)
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

    def _extent(self, k: int) -> Extent:
        extent = self._stored[k].extent
        assert extent is not None
        return extent


def open_pass(
    pieces: Sequence[Kept],
    scores: Scores,
    update: Update | None,
    columns: Callable[[], Sequence[int]],
    n_threads: int,
    *,
    identity: bool = False,
) -> Pass:
    """Return a pass over the blocks of a shard; for the parameters see `StoredPass`.

    ``columns`` is a function, as it is only called if blocks are on scratch.
    """
    memory: list[tuple[int, Piece]] = []
    stored: list[tuple[int, StoredPiece]] = []
    for k, kept in enumerate(pieces):
        assert not isinstance(kept, LostPiece)
        # a reference is kept, so that codes which move to scratch meanwhile stay in memory until they are used
        if isinstance(kept, Piece):
            memory.append((k, kept))
        elif (piece := kept.in_memory) is not None:
            memory.append((k, piece))
        else:
            stored.append((k, kept))
    if not stored:
        return Pass(scores, update, memory)
    return StoredPass(scores, update, memory, stored, columns(), n_threads, identity=identity)
