"""Where a process keeps the encoded rows of a fit: in memory while they fit its limit, then on scratch.

What a process may hold is its limit less what it already uses and less what a pass over rows needs; half of that, as
reading and encoding the source need the other half. The state of a row (label, weight, what it is drawn by, scores)
goes before its codes: state is read in every round and scores are written. So codes move to scratch first, then the
state of further rows. How many rows there are decides where they go, and is never an error.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
from dask.system import CPU_COUNT
from dask.utils import format_bytes
from distributed import Worker, get_worker
from distributed.system import MEMORY_LIMIT
from distributed.worker import _global_workers
from numpy.typing import NDArray

from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.plan import NO_NEEDS, Execution, Needs, Shape
from dpgb_dask.errors import LostCodesError, PlanError, ScratchError
from dpgb_dask.private.durable import Durable, check_protocol, is_durable, version_of
from dpgb_dask.private.pieces import Piece
from dpgb_dask.private.scratch import Extent, Scratch, lost

# Above 0.7 of what it grants a worker, Dask writes results to disk in its own way; above 0.8 the worker pauses
SHARE = 0.6  # of what Dask grants, or the machine has, when no limit is given
MOST_SHARE = 0.7
PROCESS_BYTES = 416 << 20  # a worker with this library and its kernels loaded
SLACK_BYTES = 64 << 20  # sums, messages and what the allocator keeps
THREAD_BYTES = (
    6 << 20
)  # what the allocator keeps of each thread: measured, 3 to 5 MiB where 16 threads read
READ_AHEAD = 2  # buffers beyond those that threads work on
IDENTITY, WEIGHT, LABEL = range(3)  # parts of an extent that holds all of a piece; then features


@dataclass(frozen=True, slots=True)
class Keeping:
    """How the encoded rows of a fit are kept; the same for all its processes.

    Parameters
    ----------
    cache : str
        "auto", "memory", "disk", a folder, or the URL of a Zarr store.
    memory_limit : int or None
        Bytes of one process, everything included; None for a share of what Dask grants it, or the machine has.
    folder : str or None
        Where scratch goes; None for the worker's own folder, or the folder of temporary files.
    key : bytes
        32 secret bytes of the fit.
    n_features : int
    n_scores : int
        Scores of a row: what a shard will hold beside the codes.
    block_rows : int
        Rows of a piece at most.
    n_threads : int or None
        Threads of the local back end; None for as many as there are cores.
    """

    cache: str
    memory_limit: int | None
    folder: str | None
    key: bytes = field(repr=False)
    n_features: int = 1
    n_scores: int = 1
    block_rows: int = 1 << 16
    n_threads: int | None = None


def codes_version(key: bytes, bins: Sequence[FeatureBins], block_rows: int, mark: int) -> bytes:
    """Return what tells a chunk's codes in a Zarr store from those of other rows or bins, or cut otherwise.

    Parameters
    ----------
    key : bytes
        32 secret bytes of the fit.
    bins : sequence of FeatureBins, released
    block_rows : int
    mark : int
        Keyed fingerprint of the chunk's rows as the source has them.
    """
    arrays = [array for one in bins for array in (one.edges, one.cell_to_bin)]
    parts = [b"" if array is None else array.tobytes() for array in arrays]
    return version_of(key, b"%d %d" % (block_rows, mark), *parts)


def remove_saved(cache: str, key: bytes) -> None:
    """Remove what a fit saved in a Zarr store, or warn that it cannot; other caches need no removal.

    Call it when all answers are in the fit's journal, before the fit ends and its key is erased: nothing else knows
    where it is.

    Parameters
    ----------
    cache : str
        As in `Execution`.
    key : bytes
        32 secret bytes of the fit.
    """
    if is_durable(cache):
        Durable(cache, key, b"").remove()


def room_to_read(execution: Execution) -> int | None:
    """Return how many bytes of loaded chunks a process may hold to encode them; None where nothing limits it.

    Of what a limit leaves beside the library itself, half is for codes, a quarter for chunks, a quarter to encode them.
    """
    limit = execution.memory_limit
    return None if limit is None else max(0, limit - PROCESS_BYTES) // 4


def check_limit(
    execution: Execution,
    shape: Shape,
    n_threads: int,
    needs: Needs = NO_NEEDS,
    n_deciding: int | None = None,
) -> None:
    """Raise what is wrong with ``cache`` and ``memory_limit``, from public numbers alone; call it before any charge.

    Parameters
    ----------
    execution : Execution
    shape : Shape
    n_threads : int
        That answer, of the process that has most.
    needs : Needs
        Of the plan.
    n_deciding : int or None
        Threads that decide, where another process controls the fit than those that hold rows; None where one does both.

    Raises
    ------
    PlanError
        If cache is no place, the two contradict each other, or the limit is too small for one pass, or for what the
        plan decides between two.
    """
    cache, limit = execution.cache, execution.memory_limit
    if cache not in ("auto", "memory", "disk") and os.path.basename(cache) == cache:
        raise PlanError(
            f"cache={cache!r} is unknown. Choose 'auto', 'memory', 'disk', a folder (./{cache}), or a Zarr URL."
        )
    if is_durable(cache):
        check_protocol(cache)
    if limit is None:
        return
    if cache == "memory":
        raise PlanError(
            f"cache='memory' keeps all codes in memory, and memory_limit={limit} may not. Choose cache='auto'."
        )
    n_features = len(shape.schema.features)
    least = PROCESS_BYTES + needs.to_sum(n_threads)
    least += pass_bytes(n_features, shape.n_scores, execution.block_rows, n_threads)
    words = (
        f"one block of {execution.block_rows} rows of {n_features} features on {n_threads} threads"
    )
    if n_deciding is None:
        least += needs.to_decide(n_threads)
        words += ", and for what is decided between two rounds"
    elif (controls := PROCESS_BYTES + needs.to_decide(n_deciding)) > least:
        least = controls
        words = f"the process that controls the fit, which decides on {n_deciding} threads"
    if limit < least:
        raise PlanError(
            f"memory_limit={limit} is too small for {words}: it must be at least {least} ({format_bytes(least)}). Raise"
            " it, or lower dpgb-dask.n-threads or dpgb-dask.block-rows in Dask's configuration, or the threads of a"
            " worker."
        )


def pass_bytes(n_features: int, n_scores: int, block_rows: int, n_threads: int) -> int:
    """Return what one pass over rows needs beside them: buffers, packed gradients and sums."""
    buffer = block_rows * (n_features + 24 + 4 * n_scores)
    work = block_rows * (8 * n_scores + 16)
    return (n_threads + READ_AHEAD) * buffer + n_threads * (work + THREAD_BYTES) + SLACK_BYTES


class Store:
    """The encoded rows that one process keeps of one fit.

    Parameters
    ----------
    fit : str
    keeping : Keeping

    Privacy
    -------
    Private side. What is held where depends on how many rows there are, never on their values, and nobody is told.
    """

    def __init__(self, fit: str, keeping: Keeping) -> None:
        self.fit = fit
        self.keeping = keeping
        self._lock = threading.Lock()
        self._scratch: weakref.WeakValueDictionary[bool, Scratch] = (
            weakref.WeakValueDictionary()  # their extents keep them alive
        )
        self._room: int | None = None
        self._held = 0
        self._promised = 0  # to the codes of rows that wait in memory for their bins
        self._freed: deque[int] = deque()  # by finalizers, which may not wait for a lock
        self._warm: deque[weakref.ref[StoredPiece]] = deque()  # codes in memory, the oldest first

    def __repr__(self) -> str:
        return "<store>"

    def keep(
        self, pieces: Iterable[Piece], number: int, version: bytes | None = None
    ) -> tuple["Kept", ...]:
        """Return the pieces of a chunk as they are kept; an iterator is drawn piece by piece.

        Parameters
        ----------
        pieces : iterable of Piece
        number : int
            Of the chunk in the source.
        version : bytes or None
            `codes_version` of the chunk; None if it is not to be found again in a Zarr store.

        Raises
        ------
        ScratchError
            If scratch or the Zarr store cannot be written.
        """
        kept: list[Kept] = []
        durable = None if version is None else self._durable(version)
        if durable is not None:
            durable.begin(number)
        for piece in pieces:
            if len(piece):
                if durable is not None:
                    durable.save(number, len(kept), piece)
                kept.append(self.keep_piece(piece))
        if durable is not None:
            durable.finish(number, len(kept))
        return tuple(kept)

    def recall(self, number: int, version: bytes) -> tuple["Kept", ...] | None:
        """Return the pieces of a chunk that a Zarr store has; None if it has none, or none of these rows and bins.

        Parameters
        ----------
        number : int
        version : bytes
            `codes_version` of the chunk.

        Raises
        ------
        ScratchError
            If scratch is needed and cannot be written.
        """
        durable = self._durable(version)
        pieces = None if durable is None else durable.load(number)
        if pieces is None:
            return None
        try:
            return tuple(self.keep_piece(piece) for piece in pieces)
        except LostCodesError:
            return None

    def _durable(self, version: bytes) -> Durable | None:
        keeping = self.keeping
        return Durable(keeping.cache, keeping.key, version) if is_durable(keeping.cache) else None

    def keep_piece(self, piece: Piece) -> "Kept":
        """Return one piece as it is kept."""
        if self.keeping.cache == "memory":
            return piece
        with self._lock:
            kept = self._place(piece, self._left(piece))
            self._held += kept.held
        return kept

    def keep_unbinned(self, piece: Piece) -> "Kept":
        """Return a piece as it is kept until there are bins.

        It is several times as large as codes. Where there is no room for it in memory, with its codes beside it, it
        goes to scratch if that is where codes were said to go, and is lost otherwise: the source is read again.
        """
        with self._lock:
            state = _state_bytes(piece, self.keeping)
            codes = self.keeping.n_features * len(piece)
            if self._left(piece) - self._promised >= piece.codes.nbytes + codes + state:
                kept = StoredPiece(self, piece)
                self._promised += codes + state
            elif self.keeping.cache in ("auto", "memory"):
                return LostPiece(len(piece))
            else:
                try:
                    kept = StoredPiece(self, piece, on_scratch="all", unbinned=True)
                except ScratchError:  # codes may have room where this has not
                    return LostPiece(len(piece))
            self._held += kept.held
        return kept

    def release(self, size: int) -> None:
        """Note that memory is free again; called when a piece is collected, so it takes no lock."""
        self._freed.append(size)

    def copies_fit(self, size: int) -> bool:
        """Whether copies of rows of some size fit beside what is kept: in half the room left for encoding."""
        return self._room is None or size <= self._room // 2

    def _left(self, piece: Piece) -> int:
        """Return how many bytes are left for the codes of a piece; below 0 if there are none even for its state."""
        if self._room is None:
            self._room = self._measure_room(piece)
        while self._freed:
            self._held -= self._freed.popleft()
        return self._room - self._held - _state_bytes(piece, self.keeping)

    def _place(self, piece: Piece, left: int) -> "StoredPiece":
        if self.keeping.cache != "disk" and left >= piece.codes.nbytes:
            kept = StoredPiece(self, piece)
            self._warm.append(weakref.ref(kept))
            return kept
        while left < 0 and self._warm:
            other = self._warm.popleft()()
            if other is not None:
                moved = other.move_codes()
                self._held -= moved
                left += moved
        return StoredPiece(self, piece, on_scratch="codes" if left >= 0 else "all")

    def scratch(self, *, unbinned: bool = False) -> Scratch:
        """Return this process's scratch file for the fit; call it with the lock held.

        Rows that wait for their bins have a file of their own, which is gone when they are.
        """
        scratch = self._scratch.get(unbinned)
        if scratch is None:
            scratch = self._scratch[unbinned] = Scratch(self._folder())
        return scratch

    def _folder(self) -> str | None:
        cache = self.keeping.cache
        if cache not in ("auto", "disk") and not is_durable(cache):
            return os.path.expanduser(cache)
        worker = _worker()
        local = None if worker is None else worker.local_directory
        return self.keeping.folder or local

    def _measure_room(self, piece: Piece) -> int:
        """Return how many bytes may be held, from what this process uses before the first piece is kept."""
        used = psutil.Process().memory_info().rss
        worker = _worker()
        own = self.keeping.n_threads or CPU_COUNT
        n_threads = own if worker is None else worker.state.nthreads
        granted = None if worker is None else worker.memory_manager.memory_limit
        if granted is None:
            free = (
                psutil.virtual_memory().available
            )  # of the machine, which may grant a container less
            limit = min(int(SHARE * MEMORY_LIMIT), used + int(SHARE * free))
        else:
            limit = int(SHARE * granted)
        if self.keeping.memory_limit is not None:
            limit = self.keeping.memory_limit
            if granted is not None:
                limit = min(limit, int(MOST_SHARE * granted))
        rows = max(len(piece), self.keeping.block_rows)
        passes = pass_bytes(self.keeping.n_features, self.keeping.n_scores, rows, n_threads)
        return max(0, limit - used - passes) // 2


class StoredPiece:
    """A piece of which the codes, or all, may be on scratch. Private.

    Parameters
    ----------
    store : Store
    piece : Piece
    on_scratch : {"", "codes", "all"}
    unbinned : bool
        Whether it waits for its bins, and its "codes" are something else.

    Raises
    ------
    ScratchError
        If it cannot be written.

    Notes
    -----
    On scratch a block is one extent: identity, weight and label if they are there too, then a run of rows per feature,
    so that a query that needs few features reads few. Codes never change, but may move to scratch later.
    """

    __slots__ = (
        "__weakref__",
        "_like",
        "_n",
        "_piece",
        "_state",
        "extent",
        "held",
        "n_features",
        "store",
    )

    def __init__(
        self, store: Store, piece: Piece, on_scratch: str = "", *, unbinned: bool = False
    ) -> None:
        self.store = store
        self._n = len(piece)
        self.n_features = len(piece.codes)
        self._like = [
            None if part is None else np.empty((0, *part.shape[1:]), part.dtype)
            for part in _state(piece)
        ]
        self._state = None if on_scratch == "all" else _state(piece)
        self._piece = None if on_scratch else piece
        self.extent: Extent | None = None
        self.held = 0
        if on_scratch:
            self.extent = self._write(piece, store.scratch(unbinned=unbinned))
        if on_scratch != "all":
            self.held = _state_bytes(piece, store.keeping)
        if not on_scratch:
            self.held += piece.codes.nbytes

    def __repr__(self) -> str:
        return "<piece>"

    def __del__(self) -> None:
        if hasattr(self, "held"):
            self.store.release(self.held)

    def __len__(self) -> int:
        return self._n

    def __sizeof__(self) -> int:
        return self.nbytes + 256

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            piece = self.load()
        except LostCodesError:
            piece = None
        return _arrive, (self.store.fit, self.store.keeping, self._n, piece)

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        piece = self._piece
        state = () if self._state is None else self._state
        codes = 0 if piece is None else piece.codes.nbytes
        return codes + sum(part.nbytes for part in state if part is not None)

    @property
    def in_memory(self) -> Piece | None:
        """The piece, if none of it is on scratch."""
        return self._piece

    @property
    def state(self) -> "State | None":
        """Identity, weight and label; None if they are on scratch."""
        return self._state

    def load(self) -> Piece:
        """Return the whole piece in memory.

        Raises
        ------
        LostCodesError
            If it is damaged.
        """
        piece = self._piece
        if piece is not None:
            return piece
        parts = self.parts(range(self.n_features), identity=True)
        assert self.extent is not None
        buffer = np.empty(self.extent.size, np.uint8)
        self.extent.read(parts, buffer)
        self.extent.check(parts, buffer)
        return self.view(buffer)

    def keep_alike(self, joined: Piece) -> "Kept":
        """Keep a piece that this one is a part of where this one is kept."""
        return self.store.keep_piece(joined)

    def move_codes(self) -> int:
        """Move codes to scratch and return the bytes that they took; a pass that reads them now may go on."""
        piece = self._piece
        assert piece is not None
        self.extent = self._write(piece, self.store.scratch())
        self._piece = None
        self.held -= piece.codes.nbytes
        return piece.codes.nbytes

    def parts(self, columns: Iterable[int], identity: bool) -> list[int]:
        """Return the parts of the extent that hold some features, label and weight, and maybe identity."""
        if self._state is not None:
            return list(columns)
        head = [IDENTITY] if identity else []
        return [*head, WEIGHT, LABEL, *(LABEL + 1 + j for j in columns)]

    def view(self, buffer: NDArray[np.uint8]) -> Piece:
        """Return the piece over what was read; features that were not read hold anything.

        Parameters
        ----------
        buffer : (extent.size,) uint8
        """
        m, n = self.n_features, self._n
        identity: Any
        weight: Any
        label: Any
        if self._state is not None:
            identity, weight, label = self._state
            return Piece(buffer.reshape(m, n), label, weight, identity)
        assert self.extent is not None
        bounds = self.extent.bounds
        identity, weight, label = (
            None
            if like is None
            else buffer[bounds[k] : bounds[k + 1]].view(like.dtype).reshape(n, *like.shape[1:])
            for k, like in enumerate(self._like)
        )
        codes = buffer[bounds[LABEL + 1] :].reshape(m, n)
        return Piece(codes, label, weight, identity)

    def _write(self, piece: Piece, scratch: Scratch) -> Extent:
        codes = list(np.ascontiguousarray(piece.codes))
        if self._state is not None:
            return scratch.write(codes)
        state = [np.empty(0, np.uint8) if p is None else _bytes_of(p) for p in _state(piece)]
        return scratch.write(state + codes)


class LostPiece:
    """A piece that was left behind in another process: whoever reads it learns that it is lost."""

    __slots__ = ("_n",)

    def __init__(self, n: int) -> None:
        self._n = n

    def __repr__(self) -> str:
        return "<piece>"

    def __len__(self) -> int:
        return self._n

    @property
    def nbytes(self) -> int:
        """Nothing is held."""
        return 0

    @property
    def n_features(self) -> int:
        """No features."""
        return 0

    def load(self) -> Piece:
        """Raise.

        Raises
        ------
        LostCodesError
            Always.
        """
        raise lost()

    def keep_alike(self, joined: Piece) -> Piece:
        """Return a piece that this one cannot be a part of: to join, it would have been loaded."""
        return joined


Kept = Piece | StoredPiece | LostPiece
State = tuple[NDArray[np.uint64] | None, NDArray[np.int32] | None, NDArray[Any]]


def state_of(piece: Kept) -> State | None:
    """Return identity, weight and label of a piece; None if they are on scratch, or lost."""
    if isinstance(piece, Piece):
        return _state(piece)
    return piece.state if isinstance(piece, StoredPiece) else None


def _state(piece: Piece) -> State:
    return piece.identity, piece.weight, piece.label


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _state_bytes(piece: Piece, keeping: Keeping) -> int:
    """Return what rows take beside their codes, with what a shard adds: scores, and draws if rows are drawn."""
    added = 4 * keeping.n_scores + (0 if piece.identity is None else 4)
    return added * len(piece) + sum(part.nbytes for part in _state(piece) if part is not None)


def _arrive(fit: str, keeping: Keeping, n: int, piece: Piece | None) -> Kept:
    """Keep a piece that comes from another process; what could not be sent or kept is lost, and made again."""
    if piece is not None:
        try:
            return store_of(fit, keeping).keep_piece(piece)
        except ScratchError:
            pass  # who makes the rows again meets it where it can be told
    return LostPiece(n)


def _worker() -> Worker | None:
    """Return the worker of this task, or one of this process."""
    try:
        return get_worker()
    except ValueError:
        return next(iter(_global_workers), None)


_STORES: weakref.WeakValueDictionary[tuple[str, Keeping], Store] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def store_of(fit: str, keeping: Keeping) -> Store:
    """Return this process's store for a fit: one as long as anything holds it, its pieces for example."""
    with _LOCK:
        store = _STORES.get((fit, keeping))
        if store is None:
            store = _STORES[fit, keeping] = Store(fit, keeping)
        return store
