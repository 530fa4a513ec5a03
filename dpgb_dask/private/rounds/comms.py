"""Rounds over Dask's own comms: one message down a tree of workers, integer sums up, no tasks.

A round enters through the scheduler, which hands it to one worker; each worker passes it on to the workers below,
answers from the shards that it holds, and adds what comes back. Only connections that Dask has open anyway are used, so
its TLS and its ports hold here too.

This back end repairs nothing. If a shard is not where it was, a worker left or a connection broke, there is no answer,
and `tasks` answers that round: Dask makes the shard again, and the next tree is formed of where the shards are then. A
worker that hangs, or that is cut off, ends the wait when Dask's scheduler gives it up (``distributed.scheduler.worker-
ttl``, five minutes), or its connection does (``distributed.comm.timeouts.tcp``, 30 seconds).
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from distributed import Client, Future, Worker, WorkerPlugin

from dpgb_dask.private.rounds.clients import register
from dpgb_dask.private.rounds.resident import Failure, Reply, add_replies, answer

OP = "dpgb_round"
FAN_OUT = 8  # workers below one worker
SECONDS_SAVED = 1.0  # by going over to comms: below that a fit does not notice
ROUNDS_SEEN = 3  # before the overhead of a round is known
LOOK = 2.0  # seconds between two looks at where the shards are, while a round takes its time
MOST_FAILURES = 3  # in a row: what breaks every tree breaks the next one too

Share = tuple[str, tuple[str, ...]]  # address of a worker, keys of the shards it holds

logger = logging.getLogger(__name__)


def pays(n_left: int | None, overheads: Sequence[float]) -> bool:
    """Return whether ``backend="auto"`` leaves tasks for comms: where they would cost the rounds left a second or more.

    Parameters
    ----------
    n_left : int or None
        Most rounds still to come; None if nobody knows, then tasks stay.
    overheads : sequence of float
        Seconds that each round so far took beyond its slowest shard. The least counts: other rounds waited for
        something else too.
    """
    if n_left is None or len(overheads) < ROUNDS_SEEN:
        return False
    return n_left * min(overheads) >= SECONDS_SAVED


class AnswerRounds(WorkerPlugin):
    """Lets a worker answer rounds that come over a comm."""

    name = "dpgb-answer-rounds"

    def setup(self, worker: Worker) -> None:
        """Add the handler; it stays, as it holds nothing of a fit."""
        self._worker = worker
        worker.handlers[OP] = self.answer_round

    async def answer_round(self, shares: Sequence[Any], message: bytes) -> list[Any] | None:
        """Return the sums of the shards named, this worker's own and those of the workers below.

        Privacy
        -------
        Private side. An error is answered with its type alone, and raised nowhere: Dask would log it.
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
        except Exception as error:
            logger.debug("No answer to a round: %s.", type(error).__name__)
            return None

    async def _answer_own(self, keys: Sequence[str], message: bytes) -> Reply:
        """Answer from this worker's shards, in a thread: the worker's heart has to beat."""
        held = [self._worker.data[key] for key in keys]
        return await asyncio.to_thread(_answer_all, held, message, self._worker.state.nthreads)

    async def _pass_on(self, branch: Sequence[Any], message: bytes) -> Reply:
        worker = self._worker.rpc(branch[0][0])
        return _unpack(await getattr(worker, OP)(shares=branch, message=message))


class NoAnswerError(Exception):
    """A part of the tree has no answer."""


def _answer_all(held: Sequence[Any], message: bytes, n_threads: int) -> Reply:
    replies = [answer(resident, message, n_threads) for resident in held]
    good = [reply for reply in replies if not isinstance(reply, Failure)]
    if len(good) < len(held):
        raise NoAnswerError
    return good[0] if len(good) == 1 else add_replies(good)


def _pack(reply: Reply) -> list[Any]:
    """Return a reply as what every comm carries alike: in a process, and between two."""
    sums = reply.sums.tobytes()
    return [list(reply.shards), list(reply.chunks), reply.mark, sums, reply.asked, reply.busy]


def _unpack(packed: Sequence[Any] | None) -> Reply:
    if packed is None:
        raise NoAnswerError
    shards, chunks, mark, sums, asked, busy = packed
    return Reply(tuple(shards), tuple(chunks), mark, np.frombuffer(sums, np.int64), asked, busy)


class CommTree:
    """The driver's end of the tree.

    Parameters
    ----------
    client : Client
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ready = False
        self._shares: tuple[Share, ...] = ()
        self._failures = 0

    def ask(self, shards: Sequence[Future[Any]], message: bytes) -> Reply | None:
        """Return the sums over some shards; None if they must be asked in another way.

        Privacy
        -------
        Private side. Which shards and chunks are in the sums is for the caller to check.
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
                self._shares = await self._find(keys)
            if not self._shares:
                return None
            return await self._send(message)
        except Exception as error:
            logger.debug("A round over comms failed: %s.", type(error).__name__)
            return None

    def _scheduler(self) -> Any:
        """Return the scheduler's remote calls."""
        return self._client.scheduler

    async def _find(self, keys: tuple[str, ...]) -> tuple[Share, ...]:
        """Return which worker holds which shards; nothing if one of them is nowhere."""
        who_has = await self._scheduler().who_has(keys=keys)
        held: dict[str, list[str]] = {}
        for key in keys:
            holders = who_has.get(key, ())
            if not holders:
                return ()
            held.setdefault(min(holders), []).append(key)
        return tuple((address, tuple(own)) for address, own in sorted(held.items()))

    async def _are_there(self) -> bool:
        """Whether the shards are still where the tree looks for them."""
        who_has = await self._scheduler().who_has(keys=self._keys())
        return all(
            address in who_has.get(key, ()) for address, keys in self._shares for key in keys
        )

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
                if not await self._are_there():
                    return None
            return _unpack(round_trip.result().get(root))
        finally:
            round_trip.cancel()
