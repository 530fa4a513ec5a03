"""Waiting for tasks on a cluster that may lose its workers or its scheduler: no wait lasts for ever."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from distributed import CancelledError, Client, Future, KilledWorker, as_completed, wait
from distributed.client import ClosedClientError
from distributed.comm.core import CommClosedError

from dpgb_dask.clients import reach
from dpgb_dask.errors import ChunkError, ClusterError, DPGBError, kind_of
from dpgb_dask.private.reading.rows import failed_to_load
from dpgb_dask.private.rounds.worker_tasks import MOST_REMAKES, first_failure
from dpgb_dask.private.rounds.workers import all_paused, call_a_worker, no_worker, told

POLL = 0.01  # seconds between two checks of which tasks have ended
LOOK = 2.0  # seconds between two checks of whether there are workers, during a long wait
SECONDS = 5.0  # for a scheduler that may be gone to answer, before an error says that it is

# raised by Dask if the scheduler is gone, was restarted, or has forgotten this client
LOST = (CancelledError, asyncio.CancelledError, CommClosedError, ClosedClientError, OSError)
# of these, a cancelled task or a closed client may be the cause as well
CANCELLED = (CancelledError, asyncio.CancelledError, ClosedClientError)
RESUME = "A fit that had begun can be resumed on a cluster that runs."


class NoWorkersError(Exception):
    """Raised if all workers that shards were placed on have left.

    Dask would wait for ever: a task with preferred workers that also allows others is not scheduled again once there
    was no worker at all (distributed 2026.8, ``bulk_schedule_unrunnable_after_adding_worker``).
    """


class Waiting:
    """Waits for tasks of a fit, and looks meanwhile whether workers are there that can run them.

    Parameters
    ----------
    client : Client
    worker_wait : float
        Seconds that the cluster may be without a worker, or the scheduler without an answer.

    Attributes
    ----------
    homes : set of str
        Workers that shards were placed on.
    """

    def __init__(self, client: Client, worker_wait: float) -> None:
        self.client = client
        self.homes: set[str] = set()
        self._worker_wait = worker_wait
        self._alone_since: float | None = None
        self._call: Future[int] | None = None  # while there is no worker
        scheduler = client.scheduler
        self._address = None if scheduler is None else str(scheduler.address)
        self._scheduler = _id_of_scheduler(client)

    def close(self) -> None:
        """Call no worker any more."""
        self._call = None

    def asked(self, question: str, **about: Any) -> Any:
        """Return what the scheduler answers to a question."""
        return told(self.client, self._worker_wait, question, **about)

    def workers(self) -> list[str]:
        """Return the workers' addresses; if there is no worker, wait for one."""
        while not (workers := self._look()):
            time.sleep(0.1)
        return workers

    def _look(self) -> list[str]:
        """Return the workers' addresses. Called during every wait, so that none lasts for ever.

        Raises
        ------
        ClusterError
            If there has been no worker, or none that is not paused, or no answer of the scheduler, for ``worker_wait``
            seconds.
        """
        workers = sorted(self.asked("ncores"))
        works = bool(workers) and not all_paused(self.asked)
        now = time.monotonic()
        self._call = None if workers else self._call or call_a_worker(self.client)
        if works or self._alone_since is None:
            self._alone_since = None if works else now
        elif now - self._alone_since >= self._worker_wait:
            self._call = None
            raise no_worker(self._worker_wait, paused=bool(workers))
        return workers

    def look_for_homes(self, waiting: Iterable[Future[Any]]) -> None:
        """Check that the tasks waited for can still run; if not, make Dask forget them and the tasks that they need.

        Raises
        ------
        NoWorkersError
            If all workers that they were placed on have left, and others have come.
        """
        workers = self._look()
        if workers and self.homes and self.homes.isdisjoint(workers):
            self.client.cancel(list(waiting))
            raise NoWorkersError

    @property
    def _pulse(self) -> float:
        return min(LOOK, self._worker_wait / 2)

    def completed(self, futures: Iterable[Future[Any]]) -> Iterator[Future[Any]]:
        """Yield tasks as they end."""
        left = set(futures)
        ending = as_completed(left)  # only one: each as_completed follows its tasks until they end
        looked = time.monotonic()
        while left:
            for future in ending.next_batch(block=False):
                left.discard(future)
                yield future
            if time.monotonic() - looked > self._pulse:
                self.look_for_homes(left)
                looked = time.monotonic()
            if left and not ending.has_ready():
                time.sleep(POLL)

    def gathered(self, futures: list[Future[Any]]) -> list[Any]:
        """Return the results of tasks, including failures; of an error of the cluster or a reader only its type."""
        while not _ended(futures, self._pulse):
            self.look_for_homes(futures)
        try:
            values: list[Any] = self.client.gather(futures)
        except Exception as error:
            failed = self._in_our_words(
                error, f"The cluster failed to answer: {type(error).__name__}."
            )
        else:
            return values
        raise failed  # outside the except block, which would keep the other error as its context

    def values(self, futures: list[Future[Any]]) -> list[Any]:
        """Return the results of tasks, or raise the first failure among them."""
        values = self.gathered(futures)
        failure = first_failure(values)
        if failure is not None:
            raise failure.error
        return values

    def error_of(self, parts: Sequence[Future[Any]]) -> DPGBError:
        """Return the error of the first failed part; only its type, as a reader's message may contain a row's value."""
        for part in parts:
            if part.status == "error":
                error = part.exception()
                return self._in_our_words(error, str(failed_to_load(kind_of(error))))
        return self.lost(CancelledError())

    def lost(self, error: BaseException) -> ClusterError:
        """Return the error for tasks that are lost, or a client that is: asks the scheduler, which may be there."""
        kind = type(error).__name__
        if isinstance(error, CANCELLED):
            deadline = time.monotonic() + SECONDS
            while self.client.status == "connecting" and time.monotonic() < deadline:
                time.sleep(POLL)
            if self.client.status == "running" and _id_of_scheduler(self.client) == self._scheduler:
                return ClusterError(
                    f"Tasks of the fit, or the rows that it reads, were cancelled ({kind}), though the cluster runs: by"
                    " client.cancel or client.restart, or as the client had lost its connection; or the rows were"
                    " persisted on another cluster, or by a client that was closed. Rows that were persisted have to be"
                    " loaded again; a fit that had begun can be resumed then."
                )
            if self.client.status in ("closing", "closed") and self._answers():
                return ClusterError(
                    f"The fit's Dask client was closed ({kind}), though its cluster runs. Connect another one; rows"
                    " that were persisted have to be loaded again. A fit that had begun can be resumed then."
                )
        return ClusterError(
            f"The cluster's scheduler went away, or was restarted ({kind}). {RESUME}"
        )

    def _answers(self) -> bool:
        """Whether a scheduler is at the address where the fit began."""
        if self._address is None:
            return False
        try:
            reach(self._address, self.client.security, SECONDS)
        except Exception:  # Dask raises many kinds
            return False
        return True

    def _in_our_words(self, error: BaseException, otherwise: str) -> DPGBError:
        """Return our own error for an error of Dask or of a reader."""
        if isinstance(error, KilledWorker):
            return dying()
        if isinstance(error, CancelledError | CommClosedError | ClosedClientError):
            return self.lost(error)
        return ChunkError(otherwise)


def dying() -> ClusterError:
    """Return the error for a chunk or shard over which workers die again and again."""
    return ClusterError(
        "Workers died again and again over the same chunk or shard (more often than"
        f" distributed.scheduler.allowed-failures, or all of them {MOST_REMAKES} times), as they do when memory is"
        f" short. Give them more, or choose a smaller memory_limit or smaller chunks. {RESUME}"
    )


def _ended(futures: list[Future[Any]], seconds: float) -> bool:
    """Wait for tasks; return whether they ended in time."""
    try:
        wait(futures, timeout=seconds)
    except TimeoutError:
        return False
    return True


def _id_of_scheduler(client: Client) -> str | None:
    """Return the id of the scheduler that a client is connected to, which a restarted one has not; asks nobody."""
    told: dict[str, Any] = client._scheduler_identity  # noqa: SLF001
    return told.get("id")
