"""What runs on workers: chunks become codes, codes a shard that stays, and a shard answers."""

import asyncio
import hashlib
import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from distributed import Status, Worker, WorkerPlugin, get_worker
from numpy.typing import NDArray

from dpgb_dask import kernels
from dpgb_dask.contracts.grid import FINE, Grid
from dpgb_dask.contracts.model import FeatureBins, Model
from dpgb_dask.contracts.plan import Execution
from dpgb_dask.contracts.queries import Query
from dpgb_dask.encode import bins_of_cells
from dpgb_dask.errors import DPGBError, LostCodesError, ScratchError, kind_of, rows_failed
from dpgb_dask.private.ingest import Rows, failed_to_load, line_up
from dpgb_dask.private.pieces import Piece, encode_piece, encode_rows, merge_pieces, unbinned_pieces
from dpgb_dask.private.scratch import lost
from dpgb_dask.private.shards import Shard, sum_arrays
from dpgb_dask.private.store import Keeping, Kept, LostPiece, Store, codes_version, store_of
from dpgb_dask.private.survey import (
    MARKS,
    Reading,
    Survey,
    Surveyor,
    add_surveys,
    count_rows,
    survey_rows,
)
from dpgb_dask.private.turns import bytes_of, end_turn
from dpgb_dask.private.units import UnitCounts, count_units

T = TypeVar("T")

MOST_REMAKES = (
    3  # of one shard for one query: a disk that damages all it holds is not worth a fourth
)


class WarmKernels(WorkerPlugin):
    """Compiles the kernels, or loads them from their cache, when a worker starts: never inside a round."""

    name = "dpgb-warm-kernels"

    async def setup(self, worker: Worker) -> None:  # noqa: ARG002
        """Warm in a thread: a cold start takes seconds, and the worker's heart has to beat."""
        await asyncio.to_thread(kernels.warm)


class FreeRows(WorkerPlugin):
    """Drops rows when a worker closes: one that shares its process may stay in memory long after."""

    name = "dpgb-free-rows"

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:  # noqa: ARG002
        """Drop a shard that was set aside, once nobody wants it any more."""
        if finish in ("released", "forgotten"):
            SET_ASIDE.pop(key, None)

    def teardown(self, worker: Worker) -> None:
        """Drop what is ours; but not when the plugin alone leaves, or comes again with the next fit."""
        if worker.status in (Status.running, Status.paused):
            return
        for key in [key for key in worker.data if str(key).startswith("dpgb-")]:
            del worker.data[key]


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed task, as a value: an exception would put the task's rows into the worker's log.

    Parameters
    ----------
    error : DPGBError
    shard : int or None
        The shard that failed, where one did.
    """

    error: DPGBError
    shard: int | None = None

    def __post_init__(self) -> None:
        self.error.__traceback__ = None  # its frames hold rows

    @property
    def lost(self) -> bool:
        """Whether the rows have to be encoded again."""
        return isinstance(self.error, LostCodesError)


def failure_of(value: Any) -> Failure | None:
    """Return a value that is a failure, and nothing of any other."""
    return value if isinstance(value, Failure) else None


def first_failure(parts: Sequence[Any]) -> Failure | None:
    """Return the first failure among some parts."""
    return next((part for part in parts if isinstance(part, Failure)), None)


# ---- chunks ----------------------------------------------------------------------------------------------------------


class Encoded(NamedTuple):
    """Some chunks as codes or unbinned, the pieces of each, and their survey if it was asked for. Private."""

    chunks: tuple[int, ...]
    pieces: tuple[tuple[Kept, ...], ...]
    survey: Survey | None = None

    def __repr__(self) -> str:
        return "<encoded>"


@dataclass(frozen=True, eq=False, slots=True)
class Encoding:
    """How chunks become codes.

    Parameters
    ----------
    fit : str
        Of the store.
    reading : Reading
    bins : tuple of FeatureBins, released, or None
        None while there are none: then rows are kept unbinned, if there is room for them.
    block_rows : int
    keeping : Keeping
    with_survey : bool
        Make the survey in the same pass; without bins it always is.
    refines : bool
        Other bins will follow: rows are kept as values, from which any bins can be made, not as cells of the grid.
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
        """Return how the chunks of a fit become codes."""
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
        """Return a chunk as codes, or unbinned, kept where this process keeps it."""
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
        """Return a chunk as codes that a Zarr store has of the rows that the survey saw; None if it has none."""
        if self.with_survey or self.reading.marks is None:
            return None
        kept = self._store.recall(number, self._version(number))
        return None if kept is None else Encoded((number,), (kept,))

    def encode_unbinned(self, unbinned: Encoded) -> Encoded:
        """Return chunks as codes that were read before there were bins.

        Raises
        ------
        ChunkError
            If a chunk is not what the survey saw: it was lost, and read again otherwise.
        LostCodesError
            If there was no room for them or for their codes beside them, they are damaged, or they are cells and bins
            end inside.
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
            if unbinned.survey is not None:  # else nothing reads them again behind our back
                self.reading.check(unbinned.survey.marks[number], number)
            version = self._version(number)
            kept = self._store.recall(number, version)
            if kept is None:
                try:
                    kept = self._store.keep(map(encode, pieces), number, version)
                except ScratchError:  # there may be room once rows that wait are gone
                    raise lost() from None
            chunks.append(kept)
        return Encoded(unbinned.chunks, tuple(chunks))

    def _version(self, number: int, survey: Survey | None = None) -> bytes:
        """Return what a chunk's codes depend on: bins, rows, and where it starts if that draws them."""
        assert self.bins is not None
        marks = self.reading.marks if survey is None else survey.marks
        assert marks is not None
        mark = int(marks[number])
        if self.reading.starts is not None:
            mark |= int(self.reading.starts[number]) << 64
        return codes_version(self.reading.key, self.bins, self.block_rows, mark)

    def shard(self, whole: Encoded) -> Shard:
        """Return some chunks as one shard."""
        assert self.bins is not None
        kept = [piece for pieces in whole.pieces for piece in pieces]
        pieces = merge_pieces(kept, self.block_rows)
        return Shard(pieces, self.reading.shape, self.bins, self.reading.rows_key)


def _on_rows(function: Callable[[Rows], T], parts: Sequence[Any]) -> T | Failure:
    """Apply a function to a chunk's rows; of an error only the type is said."""
    try:
        rows = line_up(*parts)
        end_turn(bytes_of(rows))
        return function(rows)
    except Exception as error:
        return _failure(error)


def _failure(error: Exception, shard: int | None = None) -> Failure:
    """Return the failure of a chunk, or of the shard it is in; of an error that is not ours only the type is said."""
    ours = error if isinstance(error, DPGBError) else failed_to_load(kind_of(error))
    return Failure(ours, shard)


def count_chunk(
    _number: int, parts: list[Any], reading: Reading, _units: None
) -> UnitCounts | Failure:
    """Return the rows of every unit of a chunk."""
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
    """Return a chunk as codes, or unbinned."""
    job = replace(job, reading=replace(job.reading, units=units))
    return _on_rows(lambda rows: job.encode(rows, number), parts)


def pass_on(job: Encoding) -> Encoding:
    """Return a job: as a task's result it is sent once."""
    return job


def recall_chunk(number: int, job: Encoding) -> Encoded | Failure:
    """Return a chunk as codes from a Zarr store; a chunk that is not there is lost, and made from the source."""
    try:
        return job.recall(number) or Failure(lost())
    except Exception as error:
        return _failure(error)


def encode_unbinned(unbinned: Encoded | Failure, job: Encoding) -> Encoded | Failure:
    """Return chunks as codes that were read before there were bins; what is lost is made from the source."""
    if isinstance(unbinned, Failure):
        return unbinned
    try:
        return job.encode_unbinned(unbinned)
    except Exception as error:
        return _failure(error)


def forget_survey(unbinned: Encoded | Failure) -> Encoded | Failure:
    """Return chunks without the sums of their survey, which are added up; its marks stay."""
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
    """Put chunks in a row and add their surveys, so that a survey per chunk never piles up."""
    surveys = [part.survey for part in parts if part.survey is not None]
    return Encoded(
        tuple(k for part in parts for k in part.chunks),
        tuple(piece for part in parts for piece in part.pieces),
        add_surveys(surveys) if surveys else None,
    )


# ---- shards ----------------------------------------------------------------------------------------------------------


class ResidentShard(NamedTuple):
    """A shard, what it is made of, and the marks of its chunks as they were read for it. Private."""

    number: int
    chunks: tuple[int, ...]
    mark: int
    shard: Shard
    survey: Survey | None = None
    key: str = ""

    def __sizeof__(self) -> int:
        return self.shard.__sizeof__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle; what Dask writes to its own spill file when memory is short comes back as it was."""
        if self.shard.on_scratch:
            SET_ASIDE[self.key] = self
        return _come_back, tuple(self)

    def __repr__(self) -> str:
        return "<shard>"


SET_ASIDE: dict[
    Any, ResidentShard
] = {}  # shards on scratch that were pickled here, by the keys of their tasks


def _come_back(*fields: Any) -> ResidentShard:
    """Return a shard that was pickled: itself in its own process, what could be sent of it in another."""
    resident = ResidentShard(*fields)
    return SET_ASIDE.pop(resident.key, resident)


def make_shard(
    number: int, parts: list[Encoded | Failure], job: Encoding
) -> ResidentShard | Failure:
    """Return some chunks as one shard."""
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
    return ResidentShard(number, whole.chunks, mark, shard, whole.survey, key)


def lies_on_scratch(resident: ResidentShard | Failure) -> bool:
    """Whether some of a shard's rows are on the scratch of its process, which cannot be sent."""
    return isinstance(resident, ResidentShard) and resident.shard.on_scratch


def survey_of(read: ResidentShard | Encoded | Failure) -> Survey | Failure | None:
    """Return the survey of some chunks, or of a shard's."""
    return read if isinstance(read, Failure) else read.survey


# ---- answers ---------------------------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """Sums, what they answer, which shards and chunks they are of, and the seconds of the slowest shard. Private."""

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
    """Return this worker process's threads; they live as long as it does."""
    return ThreadPoolExecutor(n_threads, thread_name_prefix="dpgb")


@lru_cache(maxsize=2)
def _read_message(packed: bytes) -> tuple[Model, Query]:
    """Return a round's message; workers that share a process read it once."""
    model, query = pickle.loads(packed)
    return model, query


def pack_message(model: Model, query: Query) -> bytes:
    """Return a round's message."""
    return pickle.dumps((model, query))


@lru_cache(maxsize=2)
def question(message: bytes) -> bytes:
    """Return what tells a round's message from every other."""
    return hashlib.blake2b(message, digest_size=16).digest()


def answer(resident: ResidentShard | Failure, message: bytes, n_threads: int) -> Reply | Failure:
    """Answer one query from one shard."""
    if isinstance(resident, Failure):
        return resident
    start = time.monotonic()
    try:
        model, query = _read_message(message)
        sums = resident.shard.answer(model, query, n_threads, _pool(n_threads))
    except Exception as error:
        ours = error if isinstance(error, DPGBError) else rows_failed(kind_of(error))
        return Failure(ours, resident.number)
    busy = time.monotonic() - start
    return Reply((resident.number,), resident.chunks, resident.mark, sums, question(message), busy)


def add_replies(replies: list[Reply]) -> Reply:
    """Add sums; what they are made of travels with them, and what they answer if it is one question."""
    asked = {reply.asked for reply in replies}
    return Reply(
        tuple(k for reply in replies for k in reply.shards),
        tuple(k for reply in replies for k in reply.chunks),
        sum(reply.mark for reply in replies) % MARKS,
        sum_arrays([reply.sums for reply in replies]),
        asked.pop() if len(asked) == 1 else b"",
        max(reply.busy for reply in replies),
    )
