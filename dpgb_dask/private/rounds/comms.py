"""Rounds over Dask's own comms, without tasks: a message goes down a tree of workers, and integer sums come back up.

A round goes through the scheduler to one worker. Each worker passes the message on to the workers below it, answers
from its own shards, and adds the sums that come back. Only connections that Dask uses anyway are used, so Dask's TLS
and ports apply here too.

This back end repairs nothing. If a shard has moved, a worker has left or a connection breaks, there is no answer, and
that round is asked again through `tasks`: Dask makes the shard again, and the next tree is built from the new places of
the shards. If a worker hangs or is cut off, the wait ends when Dask's scheduler removes the worker
(``distributed.scheduler.worker-ttl``, five minutes) or its connection times out (``distributed.comm.timeouts.tcp``, 30
seconds).
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
from distributed import Client, Future, Worker, WorkerPlugin

from dpgb_dask.errors import LackingPartsError
from dpgb_dask.private.rounds.messages import lacks_parts
from dpgb_dask.private.rounds.worker_tasks import Failure, Reply, add_replies, answer
from dpgb_dask.private.rounds.workers import register

OP = "dpgb_round"
FAN_OUT = 8  # workers below one worker
SECONDS_SAVED = 1.0  # switch to comms only if this saves so much in a fit: less does not matter
ROUNDS_SEEN = 3  # rounds to measure before the overhead of a round is estimated
LOOK = 2.0  # seconds between two checks of where the shards are, during a long round
AWAKE = 2.0  # seconds between two empty tasks: a scheduler that sees none is idle, and idle ones may be ended
MOST_FAILURES = 3  # failed rounds in a row, after which comms are given up: the next would fail too

Share = tuple[str, tuple[str, ...]]  # address of a worker, keys of the shards it holds

logger = logging.getLogger(__name__)


def pays(n_left: int | None, overheads: Sequence[float]) -> bool:
    """Return whether ``backend="auto"`` should switch from tasks to comms.

    It should if the overhead of tasks would cost the remaining rounds `SECONDS_SAVED` or more.

    Parameters
    ----------
    n_left : int or None
        Upper bound on the remaining rounds; None if unknown, then tasks are kept.
    overheads : sequence of float
        For each round so far, the seconds beyond the work of its slowest shard. The smallest is used: other rounds also
        waited for something else.
    """
    if n_left is None or len(overheads) < ROUNDS_SEEN:
        return False
    return n_left * min(overheads) >= SECONDS_SAVED


def is_slower(comms: Sequence[float], tasks: Sequence[float]) -> bool:
    """Return whether rounds over comms have turned out slower than rounds as tasks.

    They are where the network is slow: a message to a worker below another takes one more journey. Their overheads are
    compared as in `pays`, once there are enough of both.
    """
    if min(len(comms), len(tasks)) < ROUNDS_SEEN:
        return False
    return min(comms) > min(tasks)


class AnswerRounds(WorkerPlugin):
    """Lets a worker answer rounds that arrive over a comm."""

    name = "dpgb-answer-rounds"

    def setup(self, worker: Worker) -> None:
        """Add the handler; it is never removed, as it holds nothing of a fit."""
        self._worker = worker
        worker.handlers[OP] = self.answer_round

    async def answer_round(self, shares: Sequence[Any], message: bytes) -> list[Any] | None:
        """Return the sums over the given shards, of this worker and of the workers below it.

        None after an error, an empty list if a shard lacks parts of the message.

        Privacy
        -------
        Private side. An error is not raised, as Dask would log it: only its type is logged, at level debug.
        """
        (_, keys), *below = shares
        branches = [branch for k in range(FAN_OUT) if (branch := below[k::FAN_OUT])]
        try:
            parts = await asyncio.gather(
                self._answer_own(keys, message),
                *(self._pass_on(branch, message) for branch in branches),
            )
            if branches:
                return _pack(await asyncio.to_thread(add_replies, parts))
            return _pack(parts[0])
        except LackingPartsError:
            return []
        except Exception as error:
            logger.debug("No answer to a round: %s.", type(error).__name__)
            return None

    async def _answer_own(self, keys: Sequence[str], message: bytes) -> Reply:
        """Answer from this worker's shards, in a thread, so that the worker's heartbeat goes on."""
        held = [self._worker.data[key] for key in keys]
        return await asyncio.to_thread(_answer_all, held, message, self._worker.state.nthreads)

    async def _pass_on(self, branch: Sequence[Any], message: bytes) -> Reply:
        worker = self._worker.rpc(branch[0][0])
        return _unpack(await getattr(worker, OP)(shares=branch, message=message))


class NoAnswerError(Exception):
    """Raised if a part of the tree has no answer."""


def _nothing() -> None:
    """Compute nothing: the task is sent to be seen by the scheduler."""


def _answer_all(held: Sequence[Any], message: bytes, n_threads: int) -> Reply:
    replies = [answer(resident, message, n_threads) for resident in held]
    good = [reply for reply in replies if not isinstance(reply, Failure)]
    for failure in replies:
        if isinstance(failure, Failure) and failure.lacks_parts:
            raise failure.error
    if len(good) < len(held):
        raise NoAnswerError
    return good[0] if len(good) == 1 else add_replies(good)


def _pack(reply: Reply) -> list[Any]:
    """Return a reply as a list of plain values, which a comm inside a process and one between processes carry alike."""
    sums = reply.sums.tobytes()
    return [list(reply.shards), list(reply.chunks), reply.mark, sums, reply.asked, reply.busy]


def _unpack(packed: Sequence[Any] | None) -> Reply:
    if packed is None:
        raise NoAnswerError
    if not packed:
        raise lacks_parts()
    shards, chunks, mark, sums, asked, busy = packed
    return Reply(tuple(shards), tuple(chunks), mark, np.frombuffer(sums, np.int64), asked, busy)


class CommTree:
    """The root of the tree, in the process that controls the fit.

    Parameters
    ----------
    client : Client
    seconds : float
        After so long without an answer of the scheduler, a round goes on as tasks, which say that it is silent.
    """

    def __init__(self, client: Client, seconds: float) -> None:
        self._client = client
        self._seconds = seconds
        self._ready = False
        self._shares: tuple[Share, ...] = ()
        self._failures = 0
        self._awoken = 0.0

    def ask(self, shards: Sequence[Future[Any]], message: bytes) -> Reply | None:
        """Return the sums over some shards; None if there is no answer, and tasks have to be used.

        Raises
        ------
        LackingPartsError
            If a shard lacks parts of the message.

        Privacy
        -------
        Private side. The caller has to check which shards and chunks are in the sums.
        """
        if self._failures >= MOST_FAILURES:
            return None
        if not self._ready:
            register(self._client, AnswerRounds())
            self._ready = True
        keys = tuple(str(shard.key) for shard in shards)
        reply: Reply | None = self._client.sync(self._ask, keys, message)
        self._failures = 0 if reply is not None else self._failures + 1
        if reply is None:
            self._shares = ()
            logger.info("A round over comms had no answer; it goes on as tasks.")
        return reply

    async def _ask(self, keys: tuple[str, ...], message: bytes) -> Reply | None:
        try:
            if set(self._keys()) != set(keys):
                self._shares = await asyncio.wait_for(self._find(keys), self._seconds)
            if not self._shares:
                return None
            self._keep_awake()
            return await self._send(message)
        except LackingPartsError:
            raise
        except Exception as error:
            logger.debug("A round over comms failed: %s.", type(error).__name__)
            return None

    def _scheduler(self) -> Any:
        """Return the client's connection to the scheduler, for remote calls."""
        return self._client.scheduler

    async def _find(self, keys: tuple[str, ...]) -> tuple[Share, ...]:
        """Return which worker holds which shards; an empty tuple if no worker holds one of them."""
        who_has = await self._scheduler().who_has(keys=keys)
        held: dict[str, list[str]] = {}
        for key in keys:
            holders = who_has.get(key, ())
            if not holders:
                return ()
            held.setdefault(min(holders), []).append(key)
        return tuple((address, tuple(own)) for address, own in sorted(held.items()))

    async def _are_there(self) -> bool:
        """Whether the shards are still on the workers of the tree."""
        who_has = await self._scheduler().who_has(keys=self._keys())
        return all(
            address in who_has.get(key, ()) for address, keys in self._shares for key in keys
        )

    def _keep_awake(self) -> None:
        """Send an empty task now and then: Dask and dask-gateway end a cluster that has had none for an idle limit."""
        if time.monotonic() >= self._awoken + AWAKE:
            self._awoken = time.monotonic()
            self._client.submit(_nothing, key=f"dpgb-awake-{uuid.uuid4().hex}")

    def _keys(self) -> list[str]:
        return [key for _, keys in self._shares for key in keys]

    async def _send(self, message: bytes) -> Reply | None:
        root = self._shares[0][0]
        round_trip = asyncio.ensure_future(
            self._scheduler().broadcast(
                msg={"op": OP, "shares": self._shares, "message": message},
                workers=[root],
                on_error="ignore",
            )
        )
        try:
            while not (await asyncio.wait((round_trip,), timeout=LOOK))[0]:
                if not await asyncio.wait_for(self._are_there(), self._seconds):
                    return None
                self._keep_awake()
            return _unpack(round_trip.result().get(root))
        finally:
            round_trip.cancel()
