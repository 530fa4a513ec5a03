"""Rounds on a Dask cluster: one resident shard per worker, one ``client.map`` per round, integer replies.

Nothing here recovers from a lost worker. Dask makes its shard again from the source's tasks, the shard catches up to
the model in the message, and its sums are the same.
"""

import asyncio
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import dask
import numpy as np
import pandas as pd
from dask.delayed import delayed
from distributed import Future, Worker, WorkerPlugin, as_completed, get_worker, wait
from numpy.typing import NDArray

from dpgb_dask import kernels
from dpgb_dask.contracts.boundary import Raw
from dpgb_dask.contracts.model import FeatureBins, Model
from dpgb_dask.contracts.plan import Execution
from dpgb_dask.contracts.queries import Query
from dpgb_dask.encode import n_rows
from dpgb_dask.errors import ChunkError, DPGBError, PlanError, ShardError
from dpgb_dask.private.ingest import Chunk, Rows, Source, failed_to_load, line_up
from dpgb_dask.private.pieces import Piece, encode_rows, merge_pieces
from dpgb_dask.private.quantize import sensitivity
from dpgb_dask.private.rounds.clients import Connection
from dpgb_dask.private.scores import same_bins
from dpgb_dask.private.shards import Shard, sum_arrays
from dpgb_dask.private.survey import (
    Reading,
    Survey,
    Surveyed,
    add_surveys,
    count_rows,
    slice_block,
    starts_of,
    survey_rows,
)
from dpgb_dask.private.units import UnitCounts, add_unit_counts, count_units

T = TypeVar("T")

GATHER_WORKERS = 64  # below this many replies …
GATHER_BYTES = (
    1 << 20
)  # … or this size of one, a plain gather is faster than a tree of tasks (notes/performance §3)
GRAPH_BYTES = 4 << 20  # in-memory rows travel in graphs below the 10 MB that Dask warns about
# Dask turns a keyword of more than 100 kB into a task under the keyword's bare name; distributed 2026.8 gives that task
# no priority, and the scheduler fails on it
MESSAGE_BYTES = 90_000
GRAPH_LOCK = threading.Lock()
SOONER = 10  # priority of sums over the chunk tasks that feed them, so that parts do not pile up


class WarmKernels(WorkerPlugin):
    """Compiles the kernels, or loads them from their cache, when a worker starts: never inside a round."""

    name = "dpgb-warm-kernels"

    async def setup(self, worker: Worker) -> None:  # noqa: ARG002
        """Warm in a thread: a cold start takes seconds, and the worker's heart has to beat."""
        await asyncio.to_thread(kernels.warm)


# ---- tasks: these run on workers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed task, as a value: an exception would put the task's rows into the worker's log."""

    error: DPGBError


class Encoded(NamedTuple):
    """One chunk as codes. Private."""

    number: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Encoding:
    """How chunks become codes."""

    reading: Reading
    bins: tuple[FeatureBins, ...]
    block_rows: int


class Reply(NamedTuple):
    """Sums, and which shards and chunks they are made of. Private."""

    shards: tuple[int, ...]
    chunks: tuple[int, ...]
    sums: NDArray[np.int64]

    def __repr__(self) -> str:
        return "<reply>"


def _on_rows(function: Callable[[Rows], T], number: int, parts: Sequence[Any]) -> T | Failure:
    """Apply a function to a chunk's rows; an error names the chunk and its type, never a value."""
    try:
        return function(line_up(*parts))
    except DPGBError as error:
        return Failure(error)
    except Exception as error:
        return Failure(failed_to_load(number, error))


def _count_chunk(
    number: int, parts: list[Any], reading: Reading, _units: None
) -> UnitCounts | Failure:
    return _on_rows(lambda rows: count_units(rows.unit, reading.key), number, parts)


def _length_of_chunk(
    number: int, parts: list[Any], _reading: Reading, _units: None
) -> NDArray[np.int64] | Failure:
    return _on_rows(count_rows, number, parts)


def _survey_chunk(
    number: int, parts: list[Any], reading: Reading, units: UnitCounts | None
) -> Survey | Failure:
    reading = replace(reading, units=units)
    return _on_rows(lambda rows: survey_rows(rows, reading, number), number, parts)


def _encode_chunk(
    number: int, parts: list[Any], job: Encoding, units: UnitCounts | None
) -> Encoded | Failure:
    reading = replace(job.reading, units=units)

    def encode(rows: Rows) -> Encoded:
        return Encoded(number, encode_rows(rows, reading, job.bins, job.block_rows, number))

    return _on_rows(encode, number, parts)


def _hold(rows: Rows) -> Rows:
    return rows


def _add(add: Callable[[list[T]], T], parts: list[T | Failure]) -> T | Failure:
    """Add parts, or return the first failure among them."""
    failure = next((part for part in parts if isinstance(part, Failure)), None)
    return failure or add([part for part in parts if not isinstance(part, Failure)])


def _failure_of(value: Any) -> Failure | None:
    return value if isinstance(value, Failure) else None


class ResidentShard(NamedTuple):
    """A shard and what it is made of."""

    number: int
    chunks: tuple[int, ...]
    shard: Shard

    def __sizeof__(self) -> int:
        return self.shard.__sizeof__()


def _make_shard(
    number: int, parts: list[Encoded | Failure], job: Encoding
) -> ResidentShard | Failure:
    failure = next((part for part in parts if isinstance(part, Failure)), None)
    if failure is not None:
        return failure
    encoded = [part for part in parts if isinstance(part, Encoded)]
    pieces = merge_pieces((piece for part in encoded for piece in part.pieces), job.block_rows)
    shard = Shard(pieces, job.reading.shape, job.bins, job.reading.rows_key)
    return ResidentShard(number, tuple(part.number for part in encoded), shard)


@lru_cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    """Return this worker process's threads; they live as long as it does."""
    return ThreadPoolExecutor(n_threads, thread_name_prefix="dpgb")


@lru_cache(maxsize=2)
def _read_message(packed: bytes) -> tuple[Model, Query]:
    """Return a round's message; workers that share a process read it once."""
    model, query = pickle.loads(packed)
    return model, query


def _answer(resident: ResidentShard | Failure, **message: bytes) -> Reply | Failure:
    """Answer one query; the message is pickled, and comes in parts."""
    if isinstance(resident, Failure):
        return resident
    model, query = _read_message(b"".join(message.values()))
    n_threads = get_worker().state.nthreads
    try:
        sums = resident.shard.answer(model, query, n_threads, _pool(n_threads))
    except DPGBError as error:
        return Failure(error)
    return Reply((resident.number,), resident.chunks, sums)


def _add_replies(replies: list[Reply | Failure]) -> Reply | Failure:
    failure = next((reply for reply in replies if isinstance(reply, Failure)), None)
    if failure is not None:
        return failure
    good = [reply for reply in replies if isinstance(reply, Reply)]
    return Reply(
        tuple(k for reply in good for k in reply.shards),
        tuple(k for reply in good for k in reply.chunks),
        sum_arrays([reply.sums for reply in good]),
    )


# ---- the driver ------------------------------------------------------------------------------------------------------


class TaskRounds:
    """Rows resident on the workers of a Dask cluster, one shard each.

    Parameters
    ----------
    source : Source
    reading : Reading
    execution : Execution
    connection : Connection

    Privacy
    -------
    Private side. The cluster is trusted; answers leave sealed, with the sensitivity of their query. Task names carry
    positions of chunks and nothing of their content.
    """

    def __init__(
        self, source: Source, reading: Reading, execution: Execution, connection: Connection
    ) -> None:
        self._reading = reading
        self._execution = execution
        self._connection = connection
        self._client = connection.client
        self._id = uuid.uuid4().hex[:12]
        self._surveyed: Surveyed | None = None
        self._with_units = source.units
        self._units: Future[UnitCounts] | None = None  # stays on the cluster
        self._bins: tuple[FeatureBins, ...] | None = None
        self._shards: list[Future[Any]] = []
        self._client.register_plugin(WarmKernels())
        self._chunks = source.chunks if source.lazy else self._hold_rows(source.chunks)

    def ask(self, model: Model | None, query: Query) -> Raw[NDArray[np.int64]]:
        """Return the sealed sums of a query at the scores of ``model``."""
        bound = sensitivity(query, self._reading.shape)
        # Dask's wait and as_completed take the current client, which may be an asynchronous one
        with self._client.as_current():
            sums = self._survey().answer(query)
            if sums is None:
                if model is None:
                    raise PlanError(f"{type(query).__name__} needs a model: release bins first.")
                sums = self._round(model, query)
        return Raw(sums, bound)

    def fingerprint(self) -> int:
        """Return the keyed fingerprint of the rows. Private."""
        with self._client.as_current():
            return self._survey().fingerprint

    def close(self) -> None:
        """Release what the cluster holds for this fit."""
        self._shards = []
        self._chunks = ()
        self._surveyed = None
        self._units = None
        self._connection.close()

    # ---- passes over the source

    def _hold_rows(self, chunks: Sequence[Chunk]) -> tuple[Chunk, ...]:
        """Put rows of this process on the cluster, as tasks that Dask can run again.

        Raises
        ------
        ChunkError
            If an object among the values cannot be pickled.
        """
        held: list[Chunk] = []
        for chunk in chunks:
            n = n_rows(chunk.x)
            size = sum(
                _n_bytes(part) for part in (*_columns(chunk.x), chunk.y, chunk.weight, chunk.unit)
            )
            step = max(1, n * GRAPH_BYTES // max(size, GRAPH_BYTES))
            for start in range(0, max(n, 1), step):
                part = slice(start, start + step)
                weight = None if chunk.weight is None else chunk.weight[part]
                unit = None if chunk.unit is None else chunk.unit[part]
                rows = Rows(slice_block(chunk.x, part), chunk.y[part], weight, unit)
                held.append(Chunk(self._hold_part(rows, len(held)), None, None))
        return tuple(held)

    def _hold_part(self, rows: Rows, number: int) -> Future[Rows]:
        key = f"dpgb-rows-{self._id}-{number}"
        try:
            with _quiet_graphs():
                held: Future[Rows] = self._client.submit(_hold, rows, key=key)
        except Exception as error:
            failure = failed_to_load(number, error)
        else:
            return held
        raise failure

    def _each_chunk(
        self, function: Callable[..., Any], numbers: Sequence[int], shared: Any, **where: Any
    ) -> list[Future[Any]]:
        """Run a task per chunk; ``shared`` is sent once."""
        name = f"dpgb-{function.__name__.strip('_').replace('_', '-')}-{self._id}"
        common = delayed(shared, name=f"dpgb-shared-{uuid.uuid4().hex}", traverse=False)
        task = delayed(function, pure=False, traverse=True)
        calls = []
        for k in numbers:
            chunk = self._chunks[k]
            x = list(chunk.x) if isinstance(chunk.x, tuple) else chunk.x
            key = f"{name}-{uuid.uuid4().hex[:8]}-{k}"
            parts = [x, chunk.y, chunk.weight, chunk.unit]
            calls.append(task(k, parts, common, self._units, dask_key_name=key))
        try:
            with _quiet_graphs():
                futures: list[Future[Any]] = self._client.compute(calls, **where)
        except Exception as error:
            failed = ChunkError(
                f"The source cannot be sent to the cluster: {type(error).__name__}."
            )
        else:
            return futures
        raise failed

    def _survey(self) -> Surveyed:
        if self._surveyed is None:
            if self._with_units:
                self._units = self._sum_chunks(_count_chunk, add_unit_counts)
                self._values([self._client.submit(_failure_of, self._units, pure=False)])
            elif self._reading.rows_key is not None:
                lengths = self._values([self._sum_chunks(_length_of_chunk, np.concatenate)])
                self._reading = replace(self._reading, starts=starts_of(lengths))
            survey = self._sum_chunks(_survey_chunk, add_surveys)
            self._surveyed = Surveyed(self._values([survey])[0], self._reading.shape)
        return self._surveyed

    def _sum_chunks(
        self, function: Callable[..., Any], add: Callable[[list[Any]], Any]
    ) -> Future[Any]:
        """Run a task per chunk and add the results by a tree of tasks."""
        parts = self._each_chunk(function, range(len(self._chunks)), self._reading)
        fan_in = self._execution.fan_in
        while True:
            groups = [parts[k : k + fan_in] for k in range(0, len(parts), fan_in)]
            parts = self._client.map(
                partial(_add, add), groups, key="dpgb-add", pure=False, priority=SOONER
            )
            place = {future.key: k for k, future in enumerate(parts)}
            for future in as_completed(parts):
                k = place[future.key]
                if future.status != "finished":
                    self._raise_failed(groups[k], k * fan_in)
                groups[k] = []  # release the parts as soon as they are added
            if len(parts) == 1:
                return parts[0]

    def _encode(self, bins: tuple[FeatureBins, ...]) -> None:
        """Make one shard per worker, of neighbouring chunks; placed softly, so that a lost worker is no obstacle."""
        self._shards = []
        job = Encoding(self._reading, bins, self._execution.block_rows)
        workers = sorted(self._client.nthreads()) or [""]
        n_chunks, n_shards = len(self._chunks), min(len(workers), len(self._chunks))
        made = []
        for k in range(n_shards):
            numbers = range(k * n_chunks // n_shards, (k + 1) * n_chunks // n_shards)
            where = {"workers": [workers[k]], "allow_other_workers": True} if workers[k] else {}
            parts = self._each_chunk(_encode_chunk, numbers, job, **where)
            key = f"dpgb-shard-{self._id}-{uuid.uuid4().hex[:8]}-{k}"
            made.append(
                (numbers, parts, self._client.submit(_make_shard, k, parts, job, key=key, **where))
            )
        shards = [shard for _, _, shard in made]
        wait(shards)
        for numbers, parts, shard in made:
            if shard.status != "finished":
                self._raise_failed(parts, numbers.start)
        self._shards = shards
        self._bins = bins

    # ---- one round

    def _round(self, model: Model, query: Query) -> NDArray[np.int64]:
        if self._bins is None or not same_bins(self._bins, model.bins):
            self._encode(model.bins)
        replies = self._client.map(_answer, self._shards, pure=False, **self._message(model, query))
        if len(replies) >= GATHER_WORKERS and 8 * query.n_sums >= GATHER_BYTES:
            fan_in = self._execution.fan_in
            while len(replies) > 1:
                groups = [replies[k : k + fan_in] for k in range(0, len(replies), fan_in)]
                replies = self._client.map(_add_replies, groups, pure=False, priority=SOONER)
        return self._checked(self._values(replies))

    def _message(self, model: Model, query: Query) -> dict[str, Any]:
        """Return the keywords of a round: the message in parts, or as one task if every worker's copy is too much."""
        packed = pickle.dumps((model, query))
        if len(packed) * len(self._shards) > GRAPH_BYTES:
            return {"message": self._client.submit(bytes, packed, pure=False)}
        parts = range(0, len(packed), MESSAGE_BYTES)
        return {f"part_{k}": packed[k : k + MESSAGE_BYTES] for k in parts}

    def _checked(self, replies: list[Reply]) -> NDArray[np.int64]:
        """Add replies, each shard and each chunk exactly once.

        Raises
        ------
        ShardError
            If one is missing or there twice: the sum would not have the stated sensitivity.
        """
        shards = sorted(k for reply in replies for k in reply.shards)
        chunks = sorted(k for reply in replies for k in reply.chunks)
        if shards != list(range(len(self._shards))) or chunks != list(range(len(self._chunks))):
            raise ShardError(
                "A shard or a chunk is missing from the sums, or is in them twice. Nothing was released."
            )
        return sum_arrays([reply.sums for reply in replies])

    def _values(self, futures: list[Future[Any]]) -> list[Any]:
        """Return the results of tasks; what the cluster or a reader says is reduced to its type."""
        try:
            values: list[Any] = self._client.gather(futures)
        except Exception as error:
            failed: DPGBError = ChunkError(f"The cluster failed to answer: {type(error).__name__}.")
        else:
            failure = next((value for value in values if isinstance(value, Failure)), None)
            if failure is None:
                return values
            failed = failure.error
        raise failed  # outside the except block, which would keep the other error as its context

    def _raise_failed(self, parts: Sequence[Future[Any]], first: int) -> None:
        """Raise for the first failed chunk; a reader's message may hold a row's value, so only its type is said."""
        for k, part in enumerate(parts):
            if part.status == "error":
                raise failed_to_load(first + k, part.exception())
        raise ChunkError("The source failed to load.")


def _columns(block: Any) -> tuple[Any, ...]:
    if isinstance(block, pd.DataFrame):
        return tuple(block.iloc[:, k] for k in range(block.shape[1]))
    return block if isinstance(block, tuple) else (block,)


def _n_bytes(column: Any) -> int:
    """Return how many bytes a column takes in a graph; those of an object say nothing of what it points to."""
    if column is None:
        return 0
    if isinstance(column.dtype, np.dtype) and column.dtype != object:
        return int(column.nbytes)
    try:
        return len(pickle.dumps(column, protocol=5))
    except (
        Exception
    ):  # what only Dask's own pickle can write is as large as its references, at least
        return int(column.nbytes)


@contextmanager
def _quiet_graphs() -> Iterator[None]:
    """Keep Dask from warning of a large graph: its message holds the size, which tells how many rows there are.

    One thread at a time, as the configuration is the whole process's.
    """
    with GRAPH_LOCK, dask.config.set({"distributed.admin.large-graph-warning-threshold": 1 << 60}):
        yield
