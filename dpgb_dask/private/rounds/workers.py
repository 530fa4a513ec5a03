"""What a fit asks of a cluster before it begins: whether it answers, has workers, and is of the same version."""

import asyncio
import inspect
import time
from collections.abc import Callable
from pickle import loads
from typing import Any

from distributed import Client, Future, Worker, WorkerPlugin
from distributed.comm.core import CommClosedError
from distributed.protocol.pickle import dumps

from dpgb_dask.clients import Connection, connect, unreachable
from dpgb_dask.errors import ClusterError, DPGBError
from dpgb_dask.installed import COMPARED, OWN, in_words
from dpgb_dask.private.rounds.messages import other_version

TRIES = 5  # attempts to give a plugin to all workers
PAUSE = 0.2  # seconds between two attempts, in which the scheduler notices workers that are gone
# seconds for an answer of the scheduler, which is slow while it takes in a large graph
LEAST_WAIT = 30.0


def check_workers(client: Client, seconds: float) -> int:
    """Wait until there is a worker, compare versions, and return the largest number of threads of a worker.

    Raises
    ------
    ClusterError
        If there is no worker for ``seconds``, or all are paused, or no answer of the scheduler for so long (at least
        `LEAST_WAIT`); if a worker has another version of Python, numba or this library than this process.
    """
    connection = connect(client) if client.asynchronous else Connection(client)
    try:
        return _check(connection.client, seconds)
    finally:
        connection.close()


def _check(client: Client, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    patience = max(seconds, LEAST_WAIT)
    call = None

    def asked(question: str) -> Any:
        return _asked(client, patience, getattr(client.scheduler, question))

    try:
        while not (
            workers := _asked(client, patience, client.get_versions, packages=COMPARED)["workers"]
        ) or all_paused(asked):
            call = call or call_a_worker(client)
            if time.monotonic() > deadline:
                raise no_worker(seconds, paused=bool(workers))
            time.sleep(PAUSE)
    finally:
        call = None  # an error's frames are kept for long
    packages = (process["packages"] for process in workers.values())
    others = sorted({in_words(str(p.get("python")), p) for p in packages} - {OWN})
    if others:
        raise other_version(others)
    return max(_asked(client, patience, client.nthreads).values(), default=1)


def call_a_worker(client: Client) -> Future[int]:
    """Return a task that waits for a worker while it is held: an adaptive cluster starts workers for tasks alone."""
    task: Future[int] = client.submit(int, pure=False)
    return task


def _asked(client: Client, seconds: float, method: Callable[..., Any], **options: Any) -> Any:
    """Call a client's method, which asks the scheduler; for some seconds at most."""
    try:
        return client.sync(method, callback_timeout=seconds, **options)
    except (Exception, asyncio.CancelledError) as error:  # none of rows, which nothing has read
        lost = client.status != "running"
        failed = unreachable("the connection is lost" if lost else type(error).__name__, seconds)
    raise failed  # outside the except block, which would keep Dask's error as its context


def told(client: Client, seconds: float, question: str, **about: Any) -> Any:
    """Return what the scheduler answers in mid-fit; without a time limit, Dask waits for ever if it stands still.

    Raises
    ------
    ClusterError
        If it has not answered for ``seconds`` (at least `LEAST_WAIT`).
    """
    seconds = max(seconds, LEAST_WAIT)
    try:
        return client.sync(getattr(client.scheduler, question), **about, callback_timeout=seconds)
    except TimeoutError:
        pass
    # outside the except block, which would keep Dask's error as its context
    raise ClusterError(
        f"The cluster's scheduler has not answered for {seconds:g} seconds. Look whether it is overloaded or stopped,"
        " or raise dask.config dpgb-dask.worker-wait. The fit can be resumed, on another cluster too."
    )


def on_a_worker(client: Client, check: Callable[[str], None], place: str) -> None:
    """Run a check on any worker.

    Raises
    ------
    DPGBError
        What the check raises.
    ClusterError
        If it cannot be run.
    """
    connection = connect(client)
    try:
        connection.client.submit(check, place, pure=False).result()
    except DPGBError:
        raise
    except Exception as error:
        failed = ClusterError(
            f"No worker could look at {place!r}: {type(error).__name__}. The workers' Python must have this version of"
            " dpgb_dask, and what it needs."
        )
    else:
        return
    finally:
        connection.close()
    raise failed  # outside the except block, which would keep the other error as its context


def register(client: Client, plugin: WorkerPlugin) -> None:
    """Give a plugin to all workers, now and later, even if workers leave meanwhile.

    Dask broadcasts the plugin, and fails if one worker fails, without waiting for the others. By then the scheduler has
    the plugin and gives it to new workers; so registering is repeated for the remaining ones. If workers keep leaving,
    the fit continues all the same: the plugins used here save time and memory, and do not affect results.

    The scheduler keeps it beyond the fit, for workers of whatever Python: see `LoadedAnywhere`.

    Raises
    ------
    CommClosedError, OSError
        If the scheduler is gone.
    ClusterError
        If the plugin fails on a worker, as when its Python lacks this version of the library.
    """
    for _ in range(TRIES):
        try:
            client.register_plugin(LoadedAnywhere(plugin.name, dumps(plugin)))  # type: ignore[attr-defined]
        except (CommClosedError, OSError):
            time.sleep(PAUSE)
            if client.status != "running":
                raise
        except Exception as error:
            if client.status != "running":
                raise
            failed = ClusterError(
                f"{type(plugin).__name__} failed on a worker: {type(error).__name__}. The workers' Python must have"
                " this version of dpgb_dask, and what it needs. A fit that had begun can be resumed."
            )
            break
        else:
            return
    else:
        return
    raise failed  # outside the except block, which would keep the other error as its context


def all_paused(asked: Callable[[str], Any]) -> bool:
    """Whether Dask has paused all workers, as their memory is short, and none of them is at work.

    Parameters
    ----------
    asked : callable
        Asks the scheduler a question.
    """
    if asked("ncores_running"):
        return False
    told = [worker.get("metrics", {}) for worker in asked("identity")["workers"].values()]
    return not any(metrics.get("task_counts", {}).get("executing") for metrics in told)


def no_worker(seconds: float, *, paused: bool) -> ClusterError:
    """Return the error for a cluster that has had no worker for some seconds, or none that was not paused."""
    if paused:
        return ClusterError(
            f"All workers have been paused for worker_wait={seconds:g} seconds: Dask gives a worker no task while its"
            " memory is nearly used up. Give each at least 1 GB (--memory-limit of dask worker), or start more. A fit"
            " that had begun can be resumed."
        )
    return ClusterError(
        f"The cluster has had no worker for worker_wait={seconds:g} seconds. Start workers, or raise "
        "dask.config dpgb-dask.worker-wait if they are on their way. A fit that had begun can be resumed."
    )


class LoadedAnywhere(WorkerPlugin):
    """A plugin that does nothing on a worker whose Python lacks this library, or has another version of it.

    Dask ends a worker that cannot load a plugin of its scheduler, as it starts. So this one is sent as the text of its
    class, which needs no module of ours, and is compiled there: code that another Python has compiled would crash it.
    What it stands for is loaded on the worker, or is not.

    Parameters
    ----------
    name : str
    packed : bytes
        What it stands for, pickled.
    """

    def __init__(self, name: str, packed: bytes) -> None:
        self.name = name
        self.packed = packed
        self.inner = WorkerPlugin()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        source = "\n".join([IMPORTED, inspect.getsource(LoadedAnywhere)])
        given = {"source": source, "name": self.name, "packed": self.packed}
        return eval, ("[exec(source, globals()), LoadedAnywhere(name, packed)][1]", given)

    def setup(self, worker: Worker) -> Any:
        """Load what it stands for, and set that up."""
        try:
            self.inner = loads(self.packed)
        except Exception:  # whatever a module raises that is missing, or another one
            return None
        return self.inner.setup(worker=worker)

    def teardown(self, worker: Worker) -> Any:
        """Pass on."""
        return self.inner.teardown(worker=worker)

    def transition(self, *args: Any, **options: Any) -> None:
        """Pass on."""
        self.inner.transition(*args, **options)


# what the text of that class needs
IMPORTED = """\
from __future__ import annotations
from pickle import loads
from distributed import WorkerPlugin
"""
