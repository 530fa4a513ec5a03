"""The tasks that run on workers: they encode chunks, make a shard of them that stays there, and answer queries."""

import asyncio
import atexit
import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from distributed import Status, Worker, WorkerPlugin, get_worker
from numpy.typing import NDArray

from dpgb_dask.contracts.grid import FINE, Grid
from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.plan import Execution
from dpgb_dask.encoding.codes import bins_of_cells
from dpgb_dask.errors import (
    DPGBError,
    LackingPartsError,
    LostCodesError,
    ScratchError,
    kind_of,
    rows_failed,
)
from dpgb_dask.kernels.warming import warm
from dpgb_dask.private.answering.shards import Shard, sum_arrays
from dpgb_dask.private.keeping.scratch import lost
from dpgb_dask.private.keeping.store import Keeping, Kept, LostPiece, Store, codes_version, store_of
from dpgb_dask.private.reading.chunks import (
    MARKS,
    Reading,
    Survey,
    Surveyor,
    add_surveys,
    encode_piece,
    encode_rows,
    survey_rows,
    unbinned_pieces,
)
from dpgb_dask.private.reading.load_lock import bytes_of, end_turn
from dpgb_dask.private.reading.rows import (
    Piece,
    Rows,
    count_rows,
    failed_to_load,
    line_up,
    merge_pieces,
)
from dpgb_dask.private.reading.units import UnitCounts, count_units
from dpgb_dask.private.rounds.messages import Parts
from dpgb_dask.warning_filters import SILENCE

T = TypeVar("T")

# of one shard for one query: a disk that damages everything would do so again
MOST_REMAKES = 3


class WarmKernels(WorkerPlugin):
    """Loads kernels from where they are kept, or compiles them, when a worker starts, so that no round waits for it.

    Parameters
    ----------
    names : tuple of str or None
        Names of `kernels.warming.GROUPS`; None for all.
    """

    name = "dpgb-warm-kernels"

    def __init__(self, names: tuple[str, ...] | None = None) -> None:
        self._names = names

    async def setup(self, worker: Worker) -> None:  # noqa: ARG002
        """Compile in a thread: a cold start takes seconds, and the worker's heartbeat has to go on."""
        # Python ends by looking for garbage among all objects: with compiled kernels for close to a second, while the
        # nanny waits
        atexit.unregister(gc.freeze)  # of an earlier fit
        atexit.register(gc.freeze)
        await asyncio.to_thread(warm, self._names)


class FreeRows(WorkerPlugin):
    """Drops rows when a worker closes: in a process that goes on, a closed worker may stay in memory for long."""

    name = "dpgb-free-rows"

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:  # noqa: ARG002
        """Drop a shard that was set aside, once its task is released."""
        if finish in ("released", "forgotten"):
            SET_ASIDE.pop(key, None)

    def teardown(self, worker: Worker) -> None:
        """Drop this library's data, unless only the plugin is removed, or replaced by that of the next fit."""
        if worker.status in (Status.running, Status.paused):
            return
        for key in [key for key in worker.data if str(key).startswith("dpgb-")]:
            del worker.data[key]


@dataclass(frozen=True, slots=True)
class Failure:
    """The result of a failed task. If the task raised instead, Dask would write its rows into the worker's log.

    Parameters
    ----------
    error : DPGBError
    shard : int or None
        The number of the shard that failed; None if the task was not about a shard.
    """

    error: DPGBError
    shard: int | None = None

    def __post_init__(self) -> None:
        self.error.__traceback__ = None  # its frames hold rows

    @property
    def lost(self) -> bool:
        """Whether the rows have to be encoded again."""
        return isinstance(self.error, LostCodesError)

    @property
    def lacks_parts(self) -> bool:
        """Whether a shard has to be asked again, with all parts of the message."""
        return isinstance(self.error, LackingPartsError)


def failure_of(value: Any) -> Failure | None:
    """Return ``value`` if it is a failure, else None."""
    return value if isinstance(value, Failure) else None


def first_failure(parts: Sequence[Any]) -> Failure | None:
    """Return the first failure among some parts, or None."""
    return next((part for part in parts if isinstance(part, Failure)), None)


# ---- chunks ----------------------------------------------------------------------------------------------------------


class Encoded(NamedTuple):
    """Some chunks, encoded or unbinned: their numbers, the pieces of each, and their survey or None. Private."""

    chunks: tuple[int, ...]
    pieces: tuple[tuple[Kept, ...], ...]
    survey: Survey | None = None

    def __repr__(self) -> str:
        return "<encoded>"


@dataclass(frozen=True, eq=False, slots=True)
class Encoding:
    """How chunks are encoded.

    Parameters
    ----------
    fit : str
        Name of the fit, under which a process finds its store.
    reading : Reading
    bins : tuple of FeatureBins, released, or None
        None as long as there are none: rows are then kept unbinned, if there is room for them.
    block_rows : int
    keeping : Keeping
    with_survey : bool
        Whether to make the survey in the same pass; without bins it is always made.
    refines : bool
        Whether other bins will follow: unbinned rows are then kept as values, which any bins can be applied to, and not
        as cells of the grid.
    """

    fit: str
    reading: Reading
    bins: tuple[FeatureBins, ...] | None
    block_rows: int
    keeping: Keeping
    with_survey: bool
    refines: bool = False

    @classmethod
    def of(
        cls,
        fit: str,
        reading: Reading,
        bins: Sequence[FeatureBins] | None,
        execution: Execution,
        with_survey: bool,
        *,
        refines: bool = False,
    ) -> "Encoding":
        """Return how the chunks of a fit are encoded."""
        keeping = Keeping(
            cache=execution.cache,
            memory_limit=execution.memory_limit,
            folder=None,
            key=reading.key,
            n_features=reading.shape.n_features,
            n_scores=reading.shape.n_scores,
            block_rows=execution.block_rows,
            n_threads=execution.n_threads,
        )
        known = None if bins is None else tuple(bins)
        return cls(fit, reading, known, execution.block_rows, keeping, with_survey, refines)

    @property
    def _store(self) -> Store:
        return store_of(self.fit, self.keeping)

    def encode(self, rows: Rows, number: int) -> Encoded:
        """Encode a chunk, or survey it unbinned if there are no bins, and keep it in this process's store."""
        if self.bins is None:
            surveyor = Surveyor(rows, self.reading, number)
            pieces = unbinned_pieces(surveyor, self.block_rows, as_values=self.refines)
            kept = tuple(self._store.keep_unbinned(piece) for piece in pieces if len(piece))
            return Encoded((number,), (kept,), surveyor.survey)
        survey = survey_rows(rows, self.reading, number) if self.with_survey else None
        pieces = encode_rows(rows, self.reading, self.bins, self.block_rows, number)
        version = self._version(number, survey)
        return Encoded((number,), (self._store.keep(pieces, number, version),), survey)

    def recall(self, number: int) -> Encoded | None:
        """Return the codes of a chunk from a Zarr store; None if it has none for the rows that the survey saw."""
        if self.with_survey or self.reading.marks is None:
            return None
        kept = self._store.recall(number, self._version(number))
        return None if kept is None else Encoded((number,), (kept,))

    def encode_unbinned(self, unbinned: Encoded) -> Encoded:
        """Encode chunks that were read before bins were known.

        Raises
        ------
        ChunkError
            If a chunk is not what the survey saw: it was lost, and the source returned other rows the second time.
        LostCodesError
            If there is no room for the chunks and their codes together, the chunks are damaged, or they are cells and a
            bin ends inside a cell.
        """
        assert self.bins is not None
        if any(isinstance(piece, LostPiece) for pieces in unbinned.pieces for piece in pieces):
            raise lost()
        grid = Grid.of(self.reading.shape.schema, FINE)
        bins_of_cell = None if self.refines else bins_of_cells(grid, self.bins)

        def encode(piece: Kept) -> Piece:
            assert self.bins is not None
            codes = encode_piece(piece.load(), self.bins, bins_of_cell)
            if codes is None:
                raise lost()
            return codes

        chunks = []
        for number, pieces in zip(unbinned.chunks, unbinned.pieces, strict=True):
            # on a cluster, which keeps the survey, Dask may have made the chunk again
            if unbinned.survey is not None:
                self.reading.check(unbinned.survey.marks[number], number)
            version = self._version(number)
            kept = self._store.recall(number, version)
            if kept is None:
                try:
                    kept = self._store.keep(map(encode, pieces), number, version)
                except ScratchError:  # there may be room once the unbinned rows are gone
                    raise lost() from None
            chunks.append(kept)
        return Encoded(unbinned.chunks, tuple(chunks))

    def _version(self, number: int, survey: Survey | None = None) -> bytes:
        """Return a hash of what a chunk's codes depend on: bins, rows and, if rows are drawn by position, its start."""
        assert self.bins is not None
        marks = self.reading.marks if survey is None else survey.marks
        assert marks is not None
        mark = int(marks[number])
        if self.reading.starts is not None:
            mark |= int(self.reading.starts[number]) << 64
        return codes_version(self.reading.key, self.bins, self.block_rows, mark)

    def shard(self, whole: Encoded) -> Shard:
        """Make one shard of some chunks."""
        assert self.bins is not None
        kept = [piece for pieces in whole.pieces for piece in pieces]
        pieces = merge_pieces(kept, self.block_rows)
        return Shard(pieces, self.reading.shape, self.bins, self.reading.rows_key)


def loading(work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a task's function that reads rows, in silence.

    A foreign error becomes a failure that contains only its type, as a worker's log would quote it; a failure among the
    arguments, of a task that several chunks need, is passed on.
    """
    parts = [part for one in args for part in (one if isinstance(one, list) else [one])]
    failure = first_failure(parts)
    if failure is not None:
        return failure
    try:
        with SILENCE:
            return work(*args, **kwargs)
    except Exception as error:
        return _failure(error)


def _on_rows(function: Callable[[Rows], T], parts: Sequence[Any]) -> T | Failure:
    """Apply a function to a chunk's rows; a foreign error becomes a failure that contains only its type."""
    try:
        rows = line_up(*parts)
        end_turn(bytes_of(rows))
        return function(rows)
    except Exception as error:
        return _failure(error)


def _failure(error: Exception, shard: int | None = None) -> Failure:
    """Return the failure for a chunk or a shard; of an error that is not ours, it contains only the type."""
    ours = error if isinstance(error, DPGBError) else failed_to_load(kind_of(error))
    return Failure(ours, shard)


def count_chunk(
    _number: int, parts: list[Any], reading: Reading, _units: None
) -> UnitCounts | Failure:
    """Count the rows of every unit of a chunk."""
    return _on_rows(lambda rows: count_units(rows.unit, reading.key), parts)


def mark_of(units: UnitCounts | Failure) -> int | Failure:
    """Return the mark of counted units."""
    return units if isinstance(units, Failure) else units.mark


def length_of_chunk(
    _number: int, parts: list[Any], _reading: Reading, _units: None
) -> NDArray[np.int64] | Failure:
    """Return the number of rows of a chunk. Private."""
    return _on_rows(count_rows, parts)


def encode_chunk(
    number: int, parts: list[Any], job: Encoding, units: UnitCounts | None
) -> Encoded | Failure:
    """Encode a chunk, or survey it unbinned if there are no bins."""
    job = replace(job, reading=replace(job.reading, units=units))
    return _on_rows(lambda rows: job.encode(rows, number), parts)


def pass_on(job: Encoding) -> Encoding:
    """Return the job itself: as the result of a task it is sent to a worker once, not with every task."""
    return job


def recall_chunk(number: int, job: Encoding) -> Encoded | Failure:
    """Return the codes of a chunk from a Zarr store; if it has none, the chunk counts as lost."""
    try:
        return job.recall(number) or Failure(lost())
    except Exception as error:
        return _failure(error)


def encode_unbinned(unbinned: Encoded | Failure, job: Encoding) -> Encoded | Failure:
    """Encode chunks that were read before bins were known; lost ones are a failure, and are read again."""
    if isinstance(unbinned, Failure):
        return unbinned
    try:
        return job.encode_unbinned(unbinned)
    except Exception as error:
        return _failure(error)


def forget_survey(unbinned: Encoded | Failure) -> Encoded | Failure:
    """Return chunks without the sums of their survey, which have been added up; the marks stay."""
    if isinstance(unbinned, Failure) or unbinned.survey is None:
        return unbinned
    survey = unbinned.survey._replace(sums=np.empty(0, np.int64))
    return unbinned._replace(survey=survey)


def add_parts(add: Callable[[list[T]], T], parts: list[T | Failure]) -> T | Failure:
    """Add parts, or return the first failure among them."""
    try:
        return first_failure(parts) or add([p for p in parts if not isinstance(p, Failure)])
    except Exception as error:
        return _failure(error)


def join_encoded(parts: list[Encoded]) -> Encoded:
    """Concatenate chunks and add their surveys, so that there is no survey per chunk in memory."""
    surveys = [part.survey for part in parts if part.survey is not None]
    return Encoded(
        tuple(k for part in parts for k in part.chunks),
        tuple(piece for part in parts for piece in part.pieces),
        add_surveys(surveys) if surveys else None,
    )


# ---- shards ----------------------------------------------------------------------------------------------------------


class ResidentShard(NamedTuple):
    """A shard on a worker: its number, its chunks, and the sum of their marks as they were read for it. Private."""

    number: int
    chunks: tuple[int, ...]
    mark: int
    shard: Shard
    parts: Parts
    survey: Survey | None = None
    key: str = ""

    def __sizeof__(self) -> int:
        return self.shard.__sizeof__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle. A shard with rows on scratch is also set aside, so that it survives a spill to disk by Dask."""
        if self.shard.on_scratch:
            SET_ASIDE[self.key] = self
        return _come_back, tuple(self)

    def __repr__(self) -> str:
        return "<shard>"


# shards with rows on scratch that were pickled in this process, by the keys of their tasks
SET_ASIDE: dict[Any, ResidentShard] = {}


def _come_back(*fields: Any) -> ResidentShard:
    """Unpickle a shard: return the same object in its own process, and in another one what could be sent of it."""
    resident = ResidentShard(*fields)
    return SET_ASIDE.pop(resident.key, resident)


def make_shard(
    number: int, parts: list[Encoded | Failure], job: Encoding
) -> ResidentShard | Failure:
    """Make one shard of some chunks."""
    failure = first_failure(parts)
    if failure is not None:
        return Failure(failure.error, number)
    try:
        whole = join_encoded([part for part in parts if isinstance(part, Encoded)])
        shard = job.shard(whole)
    except Exception as error:
        return _failure(error, number)
    mark = job.reading.mark(whole.chunks) if whole.survey is None else whole.survey.mark
    key = str(get_worker().get_current_task())
    return ResidentShard(number, whole.chunks, mark, shard, Parts(), whole.survey, key)


def lies_on_scratch(resident: ResidentShard | Failure) -> bool:
    """Whether some of a shard's rows are on scratch, so that it cannot be sent to another process."""
    return isinstance(resident, ResidentShard) and resident.shard.on_scratch


def survey_of(read: ResidentShard | Encoded | Failure) -> Survey | Failure | None:
    """Return the survey of some chunks, or of a shard's chunks."""
    return read if isinstance(read, Failure) else read.survey


# ---- answers ---------------------------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """Sums over some shards, and what is needed to check them. Private.

    ``shards``, ``chunks`` and ``mark`` say what was summed; ``asked`` is the hash of the message that the sums answer
    (`Message.question`), and ``busy`` the seconds that the slowest shard worked.
    """

    shards: tuple[int, ...]
    chunks: tuple[int, ...]
    mark: int
    sums: NDArray[np.int64]
    asked: bytes
    busy: float = 0.0

    def __repr__(self) -> str:
        return "<reply>"


@lru_cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    """Return the pool of threads of this worker process; it lives as long as the process."""
    return ThreadPoolExecutor(n_threads, thread_name_prefix="dpgb")


def answer(resident: ResidentShard | Failure, message: bytes, n_threads: int) -> Reply | Failure:
    """Answer one query from one shard."""
    if isinstance(resident, Failure):
        return resident
    start = time.monotonic()
    try:
        model, query, asked = resident.parts.read(message)
        sums = resident.shard.answer(model, query, n_threads, _pool(n_threads))
    except Exception as error:
        ours = error if isinstance(error, DPGBError) else rows_failed(kind_of(error))
        return Failure(ours, resident.number)
    busy = time.monotonic() - start
    return Reply((resident.number,), resident.chunks, resident.mark, sums, asked, busy)


def add_replies(replies: list[Reply]) -> Reply:
    """Add replies; the sum lists all shards and chunks, and names a message only if all replies answer the same one."""
    asked = {reply.asked for reply in replies}
    return Reply(
        tuple(k for reply in replies for k in reply.shards),
        tuple(k for reply in replies for k in reply.chunks),
        sum(reply.mark for reply in replies) % MARKS,
        sum_arrays([reply.sums for reply in replies]),
        asked.pop() if len(asked) == 1 else b"",
        max(reply.busy for reply in replies),
    )
