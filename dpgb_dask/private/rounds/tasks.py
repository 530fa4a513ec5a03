"""Rounds on a Dask cluster: one resident shard per worker, one ``client.map`` per round, integer replies.

There is no code here to recover from a lost worker: Dask makes its shard again from the source's tasks, the shard
updates its scores to the model in the message, and its sums are the same. If a worker has lost its codes or finds them
damaged, it replies so, and the shard is made again in the same way.
"""

import gc
import logging
import pickle
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial, wraps
from itertools import count
from typing import Any, Concatenate, ParamSpec, TypeVar

import dask
import numpy as np
import pandas as pd
from dask.base import annotate
from dask.delayed import delayed
from distributed import Future, get_worker
from distributed.client import ClosedClientError
from numpy.typing import NDArray

from dpgb_dask.clients import Connection
from dpgb_dask.contracts.boundary import Raw
from dpgb_dask.contracts.model import FeatureBins, Model, same_bins
from dpgb_dask.contracts.plan import Execution
from dpgb_dask.contracts.queries import Query
from dpgb_dask.encoding.columns import n_rows
from dpgb_dask.errors import (
    ChunkError,
    DPGBError,
    LackingPartsError,
    ShardError,
    in_our_words,
    kind_of,
)
from dpgb_dask.kernels.cache import quietly
from dpgb_dask.kernels.warming import warm
from dpgb_dask.private.answering.shards import sum_arrays
from dpgb_dask.private.keeping.durable import is_durable
from dpgb_dask.private.keeping.store import room_to_read
from dpgb_dask.private.reading.chunks import MARKS, Reading, Survey, add_surveys
from dpgb_dask.private.reading.graph_fusion import fuse_calls
from dpgb_dask.private.reading.rows import (
    Chunk,
    Rows,
    Source,
    changed,
    chunk_rows,
    failed_to_load,
    starts_of,
)
from dpgb_dask.private.reading.units import UnitCounts, add_unit_counts
from dpgb_dask.private.rounds.comms import CommTree, is_slower, pays
from dpgb_dask.private.rounds.messages import Message, Sender
from dpgb_dask.private.rounds.sealed import SealedRounds, Surveyed
from dpgb_dask.private.rounds.waiting import LOST, NoWorkersError, Waiting, dying
from dpgb_dask.private.rounds.worker_tasks import (
    MOST_REMAKES,
    Encoding,
    Failure,
    FreeRows,
    Reply,
    ResidentShard,
    WarmKernels,
    add_parts,
    add_replies,
    answer,
    count_chunk,
    encode_chunk,
    encode_unbinned,
    failure_of,
    forget_survey,
    join_encoded,
    length_of_chunk,
    lies_on_scratch,
    loading,
    make_shard,
    mark_of,
    pass_on,
    recall_chunk,
    survey_of,
)
from dpgb_dask.private.rounds.workers import register

T = TypeVar("T")
P = ParamSpec("P")
EncodedChunks = tuple[Sequence[int], Future[Any]]  # the numbers of some chunks, and their `Encoded`

# with fewer replies, or smaller ones, a plain gather is faster than a tree of tasks (docs/performance.md §3)
GATHER_WORKERS = 64
GATHER_BYTES = 1 << 20
GRAPH_BYTES = 4 << 20  # rows in memory are sent in graphs below the 10 MB that Dask warns about
# Dask turns a keyword of more than 100 kB into a task whose key is the keyword's name alone; distributed 2026.8 gives
# that task no priority, and the scheduler fails on it
MESSAGE_BYTES = 90_000
GRAPH_LOCK = threading.Lock()
WRITERS_OF_GRAPHS = [
    logging.getLogger(f"distributed.{module}")
    for module in ("protocol.pickle", "protocol.core", "comm.utils")
]
SOONER = 10  # priority of tasks that add parts, above the tasks that make parts, so that parts do not pile up


def answer_round(resident: ResidentShard | Failure, **message: bytes) -> Reply | Failure:
    """Answer one query; the message arrives in pieces, as keywords."""
    return answer(resident, b"".join(message.values()), get_worker().state.nthreads)


def _hold(rows: Rows) -> Rows:
    return rows


def _on_cluster(
    method: Callable[Concatenate["TaskRounds", P], T],
) -> Callable[Concatenate["TaskRounds", P], T]:
    """Run a method with the fit's client as the current one; raise our own error if the cluster is gone."""

    @wraps(method)
    def run(self: "TaskRounds", /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            if self.client.status != "running":  # a client that has reconnected has lost its tasks
                raise ClosedClientError
            # Dask's wait and as_completed use the current client, which may be an asynchronous one; annotations around
            # the call name workers and resources, for which tasks that we place ourselves would wait for ever
            with self.client.as_current(), annotate(workers=[], resources={}):
                return method(self, *args, **kwargs)
        except DPGBError:
            raise
        except LOST as error:
            gone = self._waiting.lost(error)
        except Exception as error:
            if self.client.status == "running":
                raise
            gone = self._waiting.lost(error)
        raise gone  # outside the except block, which would keep Dask's error as its context

    return run


class TaskRounds(SealedRounds):
    """Rows resident on the workers of a Dask cluster, one shard each.

    Parameters
    ----------
    source : Source
    reading : Reading
    execution : Execution
    connection : Connection
    bins : tuple of FeatureBins or None
        Bins that are known before the rows are read: the survey's pass then encodes too.
    n_rounds : int or None
        Upper bound on the number of rounds; None if unknown.
    refines : bool
        Whether other bins will follow.
    kernels : tuple of str or None
        Kernels to compile before the first round (`Plan.kernels`); None for all.

    Privacy
    -------
    Private side. The cluster is trusted; answers leave sealed, with the sensitivity of their query. Task names contain
    the positions of chunks, and nothing of their content.
    """

    def __init__(
        self,
        source: Source,
        reading: Reading,
        execution: Execution,
        connection: Connection,
        bins: tuple[FeatureBins, ...] | None = None,
        n_rounds: int | None = None,
        *,
        refines: bool = False,
        kernels: tuple[str, ...] | None = (),
    ) -> None:
        self.client = connection.client
        super().__init__(reading, execution, bins, refines=refines)
        self._kernels = kernels
        self._connection = connection
        self._waiting = Waiting(connection.client, execution.worker_wait)
        self._with_units = source.units
        self._units: Future[UnitCounts] | None = None  # stays on the cluster
        # unbinned chunks, kept as long as they may be needed
        self._unbinned: list[EncodedChunks] = []
        self._job: Encoding | None = None
        self._shards: dict[int, Future[Any]] = {}
        self._members: dict[int, Sequence[int]] = {}  # chunks of every shard
        self._numbers = count()  # of shards: a shard that is made again has a new number
        self._given_up = 0  # how often all workers have left since the last answer
        self._n_left = n_rounds
        self._sender = Sender()
        self._tree = CommTree(self.client, self._execution.worker_wait)
        self._by_comms = execution.backend == "comms"  # in any case; or rows on scratch ask for it
        self._comms_pay = False
        self._overheads: list[float] = []  # seconds of rounds by tasks beyond the work on the rows
        self._overheads_of_comms: list[float] = []
        self._chunks, self._lengths = self._begin(source)

    @in_our_words()
    @_on_cluster
    @quietly()
    def ask(self, model: Model | None, query: Query) -> Raw[NDArray[np.int64]]:
        """Return the sealed sums of a query at the scores of ``model``."""
        raw = self._sealed(model, query)
        self._given_up = 0
        if self._n_left is not None:
            self._n_left -= 1
        return raw

    @in_our_words()
    @_on_cluster
    @quietly()
    def fingerprint(self) -> int:
        """Return the keyed fingerprint of the rows. Private."""
        return self._survey().fingerprint

    def close(self) -> None:
        """Release everything that the cluster holds for this fit."""
        self._shards = {}
        self._unbinned = []
        self._chunks = ()
        self._surveyed = None
        self._units = None
        self._job = None
        self._waiting.close()
        self._connection.close()

    @_on_cluster
    def _begin(self, source: Source) -> tuple[tuple[Chunk, ...], Sequence[int] | None]:
        """Return the chunks as tasks, and the number of rows of each, if known."""
        # here first: workers that share the folder of compiled kernels then read them
        warm(self._kernels)
        register(self.client, WarmKernels(self._kernels))
        register(self.client, FreeRows())
        if source.lazy:
            return source.chunks, source.lengths
        return self._hold_rows(source.chunks)

    # ---- passes over the source

    def _hold_rows(self, chunks: Sequence[Chunk]) -> tuple[tuple[Chunk, ...], list[int]]:
        """Send rows of this process to the cluster, as tasks that Dask can run again.

        Raises
        ------
        ChunkError
            If one of the values is an object that cannot be pickled.
        """
        held: list[Chunk] = []
        lengths = []
        for chunk in chunks:
            n = n_rows(chunk.x)
            size = sum(
                _n_bytes(part) for part in (*_columns(chunk.x), chunk.y, chunk.weight, chunk.unit)
            )
            step = max(1, n * GRAPH_BYTES // max(size, GRAPH_BYTES))
            for start in range(0, max(n, 1), step):
                part = slice(start, start + step)
                rows = chunk_rows(chunk, part)
                held.append(Chunk(self._hold_part(rows, len(held)), None, None))
                lengths.append(n_rows(rows.x))
        return tuple(held), lengths

    def _hold_part(self, rows: Rows, number: int) -> Future[Rows]:
        key = f"dpgb-rows-{self._id}-{number}"
        try:
            with _quiet_graphs():
                held: Future[Rows] = self.client.submit(_hold, rows, key=key)
        except LOST:
            raise
        except Exception as error:
            failure = failed_to_load(kind_of(error))
        else:
            return held
        raise failure

    def _each_chunk(
        self, function: Callable[..., Any], numbers: Sequence[int], shared: Any, **where: Any
    ) -> list[Future[Any]]:
        """Run a task per chunk; ``shared`` is sent once."""
        name = f"dpgb-{function.__name__.replace('_', '-')}-{self._id}-{uuid.uuid4().hex[:8]}"
        common = delayed(shared, name=f"dpgb-shared-{uuid.uuid4().hex}", traverse=False)
        task = delayed(function, pure=False, traverse=True)
        calls = []
        for k in numbers:
            key = f"{name}-{k:08d}"
            calls.append(task(k, self._chunks[k].parts(), common, self._units, dask_key_name=key))
        try:
            with _quiet_graphs():
                fused = fuse_calls(calls, room=room_to_read(self._execution), around=loading)
                futures: list[Future[Any]] = self.client.compute(fused, **where)
        except LOST:
            raise
        except Exception as error:
            failed = ChunkError(
                f"The source cannot be sent to the cluster: {type(error).__name__}."
            )
        else:
            return futures
        raise failed

    def _survey(self) -> Surveyed:
        if self._surveyed is None:
            self._waiting.workers()
            units = 0
            if self._with_units:
                self._units = self._sum_chunks(count_chunk, add_unit_counts)
                (units,) = self._waiting.values(self._map(mark_of, [self._units]))
            elif self._reading.rows_key is not None:
                if self._lengths is None:
                    lengths = self._waiting.values(
                        [self._sum_chunks(length_of_chunk, np.concatenate)]
                    )
                else:
                    lengths = [np.array(self._lengths, np.int64)]
                self._reading = replace(self._reading, starts=starts_of(lengths))
            bins = self._known_bins
            parts = self._read_unbinned() if bins is None else self._encode(bins, with_survey=True)
            self._surveyed = Surveyed(add_surveys(parts), self._reading.shape, units)
            self._reading = replace(self._reading, marks=self._surveyed.marks)
            if self._job is not None:
                self._job = replace(self._job, reading=self._reading, with_survey=False)
        return self._surveyed

    def _sum_chunks(
        self, function: Callable[..., Any], add: Callable[[list[Any]], Any]
    ) -> Future[Any]:
        """Run a task per chunk and add the results."""
        return self._sum(add, self._each_chunk(function, range(len(self._chunks)), self._reading))

    def _sum(self, add: Callable[[list[Any]], Any], parts: list[Future[Any]]) -> Future[Any]:
        """Add results by a tree of tasks; each result is released once it is added."""
        while True:
            groups = self._grouped(parts)
            parts = self._add_groups(add, groups)
            self._finish(parts, groups)
            if len(parts) == 1:
                return parts[0]

    def _grouped(self, parts: list[T]) -> list[list[T]]:
        fan_in = self._execution.fan_in
        return [parts[k : k + fan_in] for k in range(0, len(parts), fan_in)]

    def _add_groups(
        self, add: Callable[[list[Any]], Any], groups: list[list[Future[Any]]], **where: Any
    ) -> list[Future[Any]]:
        summed: list[Future[Any]] = self.client.map(
            partial(add_parts, add), groups, key="dpgb-add", pure=False, priority=SOONER, **where
        )
        return summed

    def _map(
        self, function: Callable[..., Any], items: Sequence[Any], **options: Any
    ) -> list[Future[Any]]:
        """Run a task per item, with a key that marks it as ours: a closing worker frees the results under such keys."""
        key = f"dpgb-{function.__name__.replace('_', '-')}"
        futures: list[Future[Any]] = self.client.map(
            function, items, key=key, pure=False, **options
        )
        return futures

    def _finish(
        self, made: Sequence[Future[Any]], groups: Sequence[list[Future[Any]]] = ()
    ) -> None:
        """Wait for some tasks; if each is made from a group of parts, release the group as soon as its task ends.

        A result may be lost with its worker at once. Dask then makes it again, with what it is made from.
        """
        group_of = {future.key: group for future, group in zip(made, groups, strict=False)}
        for future in self._waiting.completed(made):
            group = group_of.get(future.key, [])
            if future.status in ("error", "cancelled"):
                raise self._waiting.error_of([*group, future])
            group.clear()

    # ---- shards

    def _read_unbinned(self) -> list[Survey]:
        """Survey all rows, keep them unbinned as far as there is room, and return the survey."""
        job = self._encoding(None, with_survey=True)
        while True:
            with suppress(NoWorkersError):
                return [self._survey_unbinned(job)]
            self._give_up_shards()

    def _survey_unbinned(self, job: Encoding) -> Survey:
        own, read = zip(*self._read(range(len(self._chunks)), job), strict=True)
        summed = self._sum(add_surveys, self._map(survey_of, read))
        kept = self._map(forget_survey, read)
        del read  # so that Dask frees the surveys
        self._unbinned = list(zip(own, kept, strict=True))
        self._finish(kept)
        (survey,) = self._waiting.values([summed])
        assert isinstance(survey, Survey)
        return survey

    def _encode(self, bins: Sequence[FeatureBins], *, with_survey: bool = False) -> list[Survey]:
        """Make a shard on every worker; return the shards' surveys if ``with_survey``."""
        self._shards = {}
        self._job = self._encoding(bins, with_survey=with_survey)
        self._make_shards(range(len(self._chunks)))
        return self._ask_shards(self._survey_shards) if with_survey else []

    def _make_shards(self, chunks: Sequence[int]) -> None:
        """Make shards of some chunks; if all workers leave meanwhile, of all chunks."""
        while True:
            with suppress(NoWorkersError):
                return self._place_shards(chunks)
            chunks = self._give_up_shards()

    def _give_up_shards(self) -> range:
        """Make Dask forget every shard and the tasks that wait for one; return the numbers of all chunks.

        Raises
        ------
        ClusterError
            If all workers have left several times since the last answer: a chunk may be killing them. Dask counts how
            often workers die over a task, but forgets the count together with the task.
        """
        self._given_up += 1
        if self._given_up > MOST_REMAKES:
            raise dying()
        self._shards = {}
        self._unbinned = []
        self._waiting.homes = set()
        gc.collect()  # a wait that timed out leaves a cycle of frames, which refers to the tasks waited for
        return range(len(self._chunks))

    def _place_shards(self, chunks: Sequence[int]) -> None:
        """Make shards of some chunks, each on the worker that holds the codes, so that no codes are sent.

        Workers are preferred, not required: the work of a lost worker then runs elsewhere, and an idle worker may take
        chunks of another.
        """
        job = self._job
        assert job is not None
        self._sender.forget()  # a new shard has no part of a message
        made = self._from_unbinned(set(chunks), job)
        coded = {k for own, _ in made for k in own}
        made += self._read([k for k in chunks if k not in coded], job)
        shards = {}
        groups = self._by_worker(made)
        made.clear()  # so that parts are referred to by their group alone, which is cleared once they are joined
        for worker in sorted(groups):
            parts = groups.pop(worker)
            while job.with_survey and len(parts) > self._execution.fan_in:
                parts = self._joined(parts, _softly(worker))
            number = next(self._numbers)
            self._members[number] = [k for own, _ in parts for k in own]
            key = f"dpgb-shard-{self._id}-{uuid.uuid4().hex[:8]}-{number}"
            codes = [part for _, part in parts]
            shard = self.client.submit(make_shard, number, codes, job, key=key, **_softly(worker))
            shards[number] = shard, codes
            del parts
        self._finish(
            [shard for shard, _ in shards.values()], [codes for _, codes in shards.values()]
        )
        self._shards |= {number: shard for number, (shard, _) in shards.items()}
        if self._execution.backend == "auto" and not self._by_comms:
            # Dask may move a task to an idle worker, but rows on scratch cannot be moved; over comms nothing is moved
            told = self._map(lies_on_scratch, list(self._shards.values()))
            self._by_comms = any(self._waiting.gathered(told))

    def _read(self, chunks: Sequence[int], job: Encoding) -> list[EncodedChunks]:
        """Encode chunks, or survey them unbinned if there are no bins, an equal share on each worker."""
        if not chunks:
            return []
        workers = self._waiting.workers()
        self._waiting.look_for_homes(self._shards.values())  # before others become homes
        workers = workers[: len(chunks)]
        self._waiting.homes |= set(workers)
        shares = _shares(chunks, len(workers))
        where = [_softly(worker) for worker in workers]
        found = [
            self._recalled(own, job, **place) for own, place in zip(shares, where, strict=True)
        ]
        made: list[EncodedChunks] = []
        groups: list[list[Future[Any]]] = []
        for own, place in zip(shares, where, strict=True):
            codes = self._as_codes(own, found.pop(0), job, **place)
            parts: list[EncodedChunks] = [((k,), part) for k, part in zip(own, codes, strict=True)]
            if job.with_survey:
                groups += self._grouped(codes)
                parts = self._joined(parts, place)
            made += parts
            # chunks are then referred to by their group alone, until they are joined
            del codes, parts
        self._finish([part for _, part in made], groups)
        return made

    def _from_unbinned(self, chunks: set[int], job: Encoding) -> list[EncodedChunks]:
        """Encode the chunks that were kept unbinned, each on the worker that holds it; each is then released."""
        there = [(own, part) for own, part in self._unbinned if chunks.issuperset(own)]
        if not there:
            return []
        held = self._map(pass_on, [job])[0]
        groups = self._by_worker(there)
        self._waiting.look_for_homes([part for _, part in there])  # before others become homes
        there.clear()
        self._waiting.homes |= set(groups)
        if not self._refines:
            self._unbinned = []
        made: list[EncodedChunks] = []
        for worker in sorted(groups):
            own, parts = zip(*groups.pop(worker), strict=True)
            codes = self._map(encode_unbinned, parts, job=held, **_softly(worker))
            made += zip(own, codes, strict=True)
            del parts
        self._finish([part for _, part in made])
        failures = self._waiting.gathered(self._map(failure_of, [part for _, part in made]))
        for failure in failures:
            if failure is not None and not failure.lost:
                raise failure.error
        return [part for part, failure in zip(made, failures, strict=True) if failure is None]

    def _joined(self, parts: list[EncodedChunks], where: Mapping[str, Any]) -> list[EncodedChunks]:
        """Join neighbouring parts and add their surveys, so that there is no survey per chunk in memory."""
        groups = self._grouped(parts)
        joined = self._add_groups(
            join_encoded, [[part for _, part in group] for group in groups], **where
        )
        chunks = [[k for own, _ in group for k in own] for group in groups]
        return list(zip(chunks, joined, strict=True))

    def _by_worker(self, made: list[EncodedChunks]) -> dict[str, list[EncodedChunks]]:
        """Group parts by the worker that holds them; parts lost meanwhile are made again on the first worker."""
        default = self._waiting.workers()[0]
        keys = [part.key for _, part in made]
        holders = self._waiting.asked("who_has", keys=keys)
        groups: dict[str, list[EncodedChunks]] = {}
        for own, part in made:
            groups.setdefault(min(holders.get(part.key) or [default]), []).append((own, part))
        return groups

    def _recalled(self, numbers: Sequence[int], job: Encoding, **where: Any) -> list[Future[Any]]:
        """Start to read chunks back from the Zarr store; return an empty list if it cannot have them."""
        if not is_durable(job.keeping.cache) or job.with_survey:
            return []
        return self._map(recall_chunk, numbers, job=self._map(pass_on, [job])[0], **where)

    def _as_codes(
        self, numbers: Sequence[int], found: list[Future[Any]], job: Encoding, **where: Any
    ) -> list[Future[Any]]:
        """Return chunks as codes: those that were read back, and the others encoded from the source."""
        missing = self._waiting.gathered(self._map(failure_of, found)) if found else []
        pairs = zip(numbers, found, missing, strict=False)
        there = {k: chunk for k, chunk, failure in pairs if failure is None}
        rest = [k for k in numbers if k not in there]
        made = dict(zip(rest, self._each_chunk(encode_chunk, rest, job, **where), strict=True))
        return [there[k] if k in there else made[k] for k in numbers]

    def _survey_shards(self) -> list[Any]:
        return self._map(survey_of, list(self._shards.values()))

    # ---- one round

    def _sums(self, model: Model, query: Query) -> NDArray[np.int64]:
        if self._job is None or not same_bins(self._job.bins or (), model.bins):
            self._encode(model.bins)
        message = self._sender.message(model, query)
        sums = self._answers(message, query)
        self._sender.answered(message)
        return sums

    def _answers(self, message: Message, query: Query) -> NDArray[np.int64]:
        """Ask all shards, over comms or by tasks, and return the sum of their answers."""
        start = time.monotonic()
        if self._over_comms():
            reply = self._ask_tree(message)
            if reply is not None:
                self._overheads_of_comms.append(time.monotonic() - start - reply.busy)
                return self._checked([reply], message)
            start = time.monotonic()
        replies = self._ask_shards(lambda: self._start_round(message, query))
        sums = self._checked(replies, message)
        self._overheads.append(time.monotonic() - start - max(reply.busy for reply in replies))
        return sums

    def _over_comms(self) -> bool:
        """Whether to ask over comms; with ``backend="auto"`` once that pays, unless it was tried and is slower."""
        if self._by_comms or self._execution.backend != "auto":
            return self._by_comms
        self._comms_pay = self._comms_pay or pays(self._n_left, self._overheads)
        return self._comms_pay and not is_slower(self._overheads_of_comms, self._overheads)

    def _ask_tree(self, message: Message) -> Reply | None:
        """Ask every shard over comms; if one lacks parts of the message, ask again with all parts."""
        shards = list(self._shards.values())
        try:
            return self._tree.ask(shards, self._sender.packed(message))
        except LackingPartsError:
            if not self._sender.forget():
                raise
        return self._tree.ask(shards, self._sender.packed(message))

    def _start_round(self, message: Message, query: Query) -> list[Future[Any]]:
        """Ask every shard by one task each, all in one ``client.map``."""
        shards = list(self._shards.values())
        packed = self._sender.packed(message)
        replies = self._map(answer_round, shards, **self._keywords(packed))
        if len(replies) >= GATHER_WORKERS and 8 * query.n_sums >= GATHER_BYTES:
            while len(replies) > 1:
                replies = self._add_groups(add_replies, self._grouped(replies))
        return replies

    def _ask_shards(self, start: Callable[[], list[Future[Any]]]) -> list[Any]:
        """Return the results of tasks about the shards; if a shard has lost its codes, make it again and ask all again.

        If one lacks parts of the message, all are asked again with every part.

        Raises
        ------
        LostCodesError
            If codes are lost again and again.
        """
        remakes: Counter[int] = Counter()  # of every chunk
        while True:
            replies = None
            with suppress(NoWorkersError):
                replies = self._waiting.gathered(start())
            if replies is None:
                self._make_shards(self._give_up_shards())
                continue
            failures = [reply for reply in replies if isinstance(reply, Failure)]
            if not failures:
                return replies
            if any(failure.lacks_parts for failure in failures) and self._sender.forget():
                continue
            lost: list[int] = []
            for failure in failures:
                if failure.shard is None or not failure.lost:
                    raise failure.error
                lost += self._members.pop(failure.shard)
                del self._shards[failure.shard]  # freed before the new one is made
            remakes.update(lost)
            if max(remakes.values()) > MOST_REMAKES:
                raise failures[0].error
            self._make_shards(sorted(lost))

    def _keywords(self, message: bytes) -> dict[str, Any]:
        """Return a round's message in pieces, or as the result of a task if a copy for every shard is too large."""
        if len(message) * len(self._shards) > GRAPH_BYTES:
            key = f"dpgb-message-{uuid.uuid4().hex}"
            with _quiet_graphs():
                return {"message": self.client.submit(bytes, message, key=key)}
        starts = range(0, len(message), MESSAGE_BYTES)
        return {f"piece_{k}": message[k : k + MESSAGE_BYTES] for k in starts}

    def _checked(self, replies: list[Reply], message: Message) -> NDArray[np.int64]:
        """Add the replies to one message, after checking that each shard and each chunk is in them exactly once.

        Raises
        ------
        ShardError
            If one is missing or in them twice, or a reply answers another message: the sum would not have the stated
            sensitivity.
        ChunkError
            If a chunk is not what the survey saw: a shard that was surveyed and encoded in one pass was lost, and made
            again from other rows.
        """
        shards = sorted(k for reply in replies for k in reply.shards)
        chunks = sorted(k for reply in replies for k in reply.chunks)
        if shards != sorted(self._shards) or chunks != list(range(len(self._chunks))):
            raise ShardError(
                "A shard or a chunk is missing from the sums, or is in them twice. Nothing was released."
            )
        if any(reply.asked != message.question for reply in replies):
            raise ShardError("A sum answers another question than was asked. Nothing was released.")
        if sum(reply.mark for reply in replies) % MARKS != self._reading.mark(chunks):
            raise changed()
        return sum_arrays([reply.sums for reply in replies])


def _shares(numbers: Sequence[int], n: int) -> list[Sequence[int]]:
    """Cut a sequence into n runs of neighbours."""
    size = len(numbers)
    return [numbers[k * size // n : (k + 1) * size // n] for k in range(n)]


def _softly(worker: str) -> dict[str, Any]:
    """Return the options that make a task prefer a worker; it may run elsewhere, as the worker may leave."""
    return {"workers": [worker], "allow_other_workers": True}


def _columns(block: Any) -> tuple[Any, ...]:
    if isinstance(block, pd.DataFrame):
        return tuple(block.iloc[:, k] for k in range(block.shape[1]))
    return block if isinstance(block, tuple) else (block,)


def _n_bytes(column: Any) -> int:
    """Return how many bytes a column takes in a graph; objects are pickled, as ``nbytes`` counts only references."""
    if column is None:
        return 0
    if isinstance(column.dtype, np.dtype) and column.dtype != object:
        return int(column.nbytes)
    try:
        return len(pickle.dumps(column, protocol=5))
    except Exception:  # only Dask's own pickle can write it: count at least its references
        return int(column.nbytes)


@contextmanager
def _quiet_graphs() -> Iterator[None]:
    """Keep Dask from telling of a graph that is large or cannot be sent: the size is of rows, the error of a value.

    One thread at a time may enter, as configuration and loggers belong to the whole process.
    """
    with GRAPH_LOCK, dask.config.set({"distributed.admin.large-graph-warning-threshold": 1 << 60}):
        for logger in WRITERS_OF_GRAPHS:
            logger.addFilter(_nothing_logged)
        try:
            yield
        finally:
            for logger in WRITERS_OF_GRAPHS:
                logger.removeFilter(_nothing_logged)


def _nothing_logged(_record: logging.LogRecord) -> bool:
    return False
