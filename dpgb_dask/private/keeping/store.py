"""The encoded rows that a process keeps of a fit: in memory up to a limit, then on scratch.

A process may hold half of what remains of its limit after subtracting the memory it already uses and the memory of a
pass over rows; the other half is for reading and encoding the source. Memory goes first to the state of the rows
(label, weight, identity for draws, scores): state is read in every round, and scores are also written. So codes move to
scratch first, then the state of further rows. The number of rows decides where they are kept, and is never an error.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask.config
import numpy as np
import psutil
from dask.system import cpu_count
from dask.utils import format_bytes
from distributed import Worker, get_worker
from distributed.core import Status
from distributed.system import MEMORY_LIMIT
from distributed.worker import _global_workers
from numpy.typing import NDArray

from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.plan import NO_NEEDS, Execution, Needs, Shape
from dpgb_dask.errors import LostCodesError, PlanError, ScratchError
from dpgb_dask.private.keeping.durable import Durable, check_protocol, is_durable, version_of
from dpgb_dask.private.keeping.scratch import Extent, Scratch, lost
from dpgb_dask.private.reading.rows import Piece
from dpgb_dask.whole_files import path_of

# Above 0.7 of a worker's memory limit, Dask itself writes results to disk; above 0.8 the worker pauses
SHARE = 0.6  # of Dask's limit, or of the machine's memory, when no limit is given
MOST_SHARE = 0.7
PROCESS_BYTES = 416 << 20  # a worker with this library and its kernels loaded
CONTROL_BYTES = 464 << 20  # a process that controls a cluster, and may run its scheduler
SLACK_BYTES = 64 << 20  # sums, messages and memory that the allocator keeps
# memory that the allocator keeps per thread: measured 3 to 5 MiB with 16 reading threads
THREAD_BYTES = 6 << 20
READ_AHEAD = 2  # buffers in addition to those that threads work on
IDENTITY, WEIGHT, LABEL = range(3)  # first parts of an extent with a whole piece; features follow


@dataclass(frozen=True, slots=True)
class Keeping:
    """How the encoded rows of a fit are kept; the same for all its processes.

    Parameters
    ----------
    cache : str
        "auto", "memory", "disk", a folder, or the URL of a Zarr store.
    memory_limit : int or None
        Total bytes of one process; None for a share of the worker's limit, or of the machine's memory.
    folder : str or None
        Folder for scratch; None for the worker's own folder, or where there is no worker for `configured_folder`, or
        else the folder of temporary files.
    key : bytes
        32 secret bytes of the fit.
    n_features : int
    n_scores : int
        Scores per row, which a shard holds in addition to the codes.
    block_rows : int
        Most rows of a piece.
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
    """Return a hash that identifies a chunk's codes in a Zarr store: other rows, bins or pieces give another hash.

    Parameters
    ----------
    key : bytes
        32 secret bytes of the fit.
    bins : sequence of FeatureBins, released
    block_rows : int
    mark : int
        Mark of the chunk: a keyed hash of its rows.
    """
    arrays = [array for one in bins for array in (one.edges, one.cell_to_bin)]
    parts = [b"" if array is None else array.tobytes() for array in arrays]
    return version_of(key, b"%d %d" % (block_rows, mark), *parts)


def remove_saved(cache: str, key: bytes) -> None:
    """Remove what a fit saved in a Zarr store, or warn if that fails; other caches need no removal.

    Call it after all answers are in the fit's journal, but before the fit ends and its key is erased: the name of the
    folder is derived from the key.

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
    """Return how many bytes of loaded chunks a process may hold at once; None if there is no limit.

    Of the limit minus the memory of the library itself, half is for codes, a quarter for loaded chunks and a quarter
    for encoding them.
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
    """Raise if ``cache`` or ``memory_limit`` is wrong; uses public numbers only. Call it before any charge.

    Parameters
    ----------
    execution : Execution
    shape : Shape
    n_threads : int
        Threads that answer queries: the number of the process with most threads.
    needs : Needs
        Memory that the plan needs besides the rows.
    n_deciding : int or None
        Threads of the process that controls the fit; None if that process also holds the rows.

    Raises
    ------
    PlanError
        If cache is unknown or contradicts the limit, or the limit is too small for one pass over rows or for the
        plan's work between two passes.
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
    n_features = shape.n_features
    least = PROCESS_BYTES + needs.to_sum(n_threads)
    least += pass_bytes(n_features, shape.n_scores, execution.block_rows, n_threads)
    words = (
        f"one block of {execution.block_rows} rows of {n_features} features on {n_threads} threads"
    )
    if n_deciding is None:
        least += needs.to_decide(n_threads)
        words += ", and for what is decided between two rounds"
    elif (controls := CONTROL_BYTES + needs.to_decide(n_deciding)) > least:
        least = controls
        words = f"the process that controls the fit, which decides on {n_deciding} threads"
    if limit < least:
        raise PlanError(
            f"memory_limit={limit} is too small for {words}: it must be at least {least} ({format_bytes(least)}). Raise"
            " it, or lower dpgb-dask.n-threads or dpgb-dask.block-rows in Dask's configuration, or the threads of a"
            " worker."
        )


def pass_bytes(n_features: int, n_scores: int, block_rows: int, n_threads: int) -> int:
    """Return the bytes that one pass needs besides the rows: buffers, packed gradients and sums."""
    buffer = block_rows * (n_features + 24 + 4 * n_scores)
    work = block_rows * (8 * n_scores + 16)
    return (n_threads + READ_AHEAD) * buffer + n_threads * (work + THREAD_BYTES) + SLACK_BYTES


class Store:
    """The encoded rows of one fit in one process.

    Parameters
    ----------
    fit : str
    keeping : Keeping

    Privacy
    -------
    Private side. Where rows are kept depends on how many there are, never on their values, and is not reported.
    """

    def __init__(self, fit: str, keeping: Keeping) -> None:
        self.fit = fit
        self.keeping = keeping
        self._lock = threading.Lock()
        # scratch files, which their extents keep alive
        self._scratch: weakref.WeakValueDictionary[bool, Scratch] = weakref.WeakValueDictionary()
        self._room: int | None = None
        self._held = 0
        self._promised = 0  # bytes reserved for the codes of unbinned rows in memory
        # what was held, and promised: filled by finalizers, which must not wait for a lock
        self._freed: deque[tuple[int, int]] = deque()
        self._warm: deque[weakref.ref[StoredPiece]] = deque()  # codes in memory, the oldest first

    def __repr__(self) -> str:
        return "<store>"

    def keep(
        self, pieces: Iterable[Piece], number: int, version: bytes | None = None
    ) -> tuple["Kept", ...]:
        """Keep the pieces of a chunk and return them as they are kept; an iterator is consumed piece by piece.

        Parameters
        ----------
        pieces : iterable of Piece
        number : int
            The chunk's number in the source.
        version : bytes or None
            `codes_version` of the chunk; None to save nothing in a Zarr store.

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
        """Return the pieces of a chunk from the Zarr store; None if it has none for these rows and bins.

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
        """Keep one piece and return it as it is kept."""
        if self.keeping.cache == "memory":
            return piece
        with self._lock:
            kept = self._place(piece, self._left(piece))
            self._held += kept.held
        return kept

    def keep_unbinned(self, piece: Piece) -> "Kept":
        """Keep an unbinned piece until bins are known, and return it as it is kept.

        It is several times as large as its codes. If memory has no room for both, it is written to scratch if
        ``cache`` names a place on disk; otherwise it is lost, and the source is read again.
        """
        with self._lock:
            state = _state_bytes(piece, self.keeping)
            codes = self.keeping.n_features * len(piece)
            if self._left(piece) - self._promised >= piece.codes.nbytes + codes + state:
                kept = StoredPiece(self, piece)
                kept.promised = codes + state
                self._promised += kept.promised
            elif self.keeping.cache in ("auto", "memory"):
                return LostPiece(len(piece))
            else:
                try:
                    kept = StoredPiece(self, piece, on_scratch="all", unbinned=True)
                except ScratchError:  # there may be room for the codes, which are smaller
                    return LostPiece(len(piece))
            self._held += kept.held
        return kept

    def release(self, held: int, promised: int) -> None:
        """Note that memory is free again. Called when a piece is garbage-collected, so it takes no lock."""
        self._freed.append((held, promised))

    def copies_fit(self, size: int) -> bool:
        """Whether copies of rows of ``size`` bytes fit: they may take half of the room that is left for encoding."""
        return self._room is None or size <= self._room // 2

    def _left(self, piece: Piece) -> int:
        """Return how many bytes are left for the codes of a piece; below 0 if not even its state fits."""
        if self._room is None:
            self._room = self._measure_room(piece)
        while self._freed:
            held, promised = self._freed.popleft()
            self._held -= held
            self._promised -= promised
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

        Unbinned rows have a file of their own, which is gone once no unbinned rows are left in it.
        """
        scratch = self._scratch.get(unbinned)
        if scratch is None:
            scratch = self._scratch[unbinned] = Scratch(self._folder())
        return scratch

    def _folder(self) -> str | None:
        cache = self.keeping.cache
        if cache not in ("auto", "disk") and not is_durable(cache):
            return str(path_of(cache))
        worker = _worker()
        local = configured_folder() if worker is None else worker.local_directory
        return self.keeping.folder or local

    def _measure_room(self, piece: Piece) -> int:
        """Return how many bytes may be held, given the memory that this process uses before it keeps a piece."""
        used = psutil.Process().memory_info().rss
        worker = _worker()
        own = self.keeping.n_threads or cpu_count()
        n_threads = own if worker is None else worker.state.nthreads
        granted = None if worker is None else worker.memory_manager.memory_limit
        if granted is None:
            # free memory of the machine; a container may be granted less
            free = psutil.virtual_memory().available
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
    """A piece whose codes, or all of it, may be on scratch. Private.

    Parameters
    ----------
    store : Store
    piece : Piece
    on_scratch : {"", "codes", "all"}
    unbinned : bool
        Whether bins are not known yet, so that "codes" holds cells or values.

    Raises
    ------
    ScratchError
        If it cannot be written.

    Notes
    -----
    On scratch, a piece is one extent: first identity, weight and label, if they are on scratch too; then the codes,
    feature by feature, so that a query reads only the features that it needs. Codes never change, but may move to
    scratch later.
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
        "promised",
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
        self.promised = 0  # bytes that the store has reserved for the codes of these rows
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
            self.store.release(self.held, self.promised)

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
        """Keep ``joined``, a piece that contains this one, in the same store."""
        return self.store.keep_piece(joined)

    def move_codes(self) -> int:
        """Move codes to scratch and return the bytes that they took; a pass that is reading them can continue."""
        piece = self._piece
        assert piece is not None
        self.extent = self._write(piece, self.store.scratch())
        self._piece = None
        self.held -= piece.codes.nbytes
        return piece.codes.nbytes

    def parts(self, columns: Iterable[int], identity: bool) -> list[int]:
        """Return the numbers of the extent's parts with some features, label, weight and, if asked for, identity."""
        if self._state is not None:
            return list(columns)
        head = [IDENTITY] if identity else []
        return [*head, WEIGHT, LABEL, *(LABEL + 1 + j for j in columns)]

    def view(self, buffer: NDArray[np.uint8]) -> Piece:
        """Return the piece as views of a buffer; the codes of features that were not read are undefined.

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
    """Stands for a piece that is lost, such as one left on another process's scratch: reading it raises."""

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
        """Return ``joined``. It is never called: to be joined, a lost piece would have to be loaded."""
        return joined


Kept = Piece | StoredPiece | LostPiece
State = tuple[NDArray[np.uint64] | None, NDArray[np.int32] | None, NDArray[Any]]


def state_of(piece: Kept) -> State | None:
    """Return identity, weight and label of a piece; None if they are on scratch, or lost."""
    if isinstance(piece, Piece):
        return _state(piece)
    return piece.state if isinstance(piece, StoredPiece) else None


def copies_fit(pieces: Iterable[Kept], size: int) -> bool:
    """Whether there is room for ``size`` bytes made of the rows of these pieces."""
    store = next((p.store for p in pieces if isinstance(p, StoredPiece)), None)
    return store is None or store.copies_fit(size)


def _state(piece: Piece) -> State:
    return piece.identity, piece.weight, piece.label


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _state_bytes(piece: Piece, keeping: Keeping) -> int:
    """Return the bytes of a piece besides its codes, plus what a shard adds: scores, and draws if rows are drawn."""
    added = 4 * keeping.n_scores + (0 if piece.identity is None else 4)
    return added * len(piece) + sum(part.nbytes for part in _state(piece) if part is not None)


def _arrive(fit: str, keeping: Keeping, n: int, piece: Piece | None) -> Kept:
    """Keep a piece that was sent from another process; if it could not be sent or kept, it is lost and made again."""
    if piece is not None:
        try:
            return store_of(fit, keeping).keep_piece(piece)
        except ScratchError:
            pass  # reported where the rows are made again; while Dask unpickles, it cannot be
    return LostPiece(n)


def configured_folder() -> str | None:
    """Return the folder of scratch that ``dask.config`` names where no worker runs; None if it names none.

    A worker has its own, below the one that it was started with.
    """
    folder = dask.config.get("temporary-directory", None)
    return str(path_of(folder)) if folder and _worker() is None else None


def _worker() -> Worker | None:
    """Return the worker that runs this task, or any open worker of this process; None if there is none."""
    try:
        return get_worker()
    except ValueError:
        return next((own for own in _global_workers if own.status != Status.closed), None)


_STORES: weakref.WeakValueDictionary[tuple[str, Keeping], Store] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def store_of(fit: str, keeping: Keeping) -> Store:
    """Return this process's store for a fit; it exists as long as something refers to it, such as its pieces."""
    with _LOCK:
        store = _STORES.get((fit, keeping))
        if store is None:
            store = _STORES[fit, keeping] = Store(fit, keeping)
        return store
