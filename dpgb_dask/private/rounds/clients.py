"""The Dask client a fit runs on; blocking calls also work where the user's client is asynchronous."""

import asyncio
import time
from dataclasses import dataclass

from distributed import Client, Scheduler, Worker, WorkerPlugin, get_client, rejoin, secede
from distributed.comm.core import CommClosedError

from dpgb_dask.errors import ClusterError, PlanError

TRIES = 5  # to reach all workers with a plugin
PAUSE = 0.2  # seconds between two of them, in which the scheduler notices who is gone


@dataclass(frozen=True, slots=True)
class Connection:
    """A client whose calls block.

    Parameters
    ----------
    client : Client
    owned : bool
        Opened for this fit, and closed with it.
    seceded : bool
        The fit is a task itself, and gave its worker's thread back while it waits.
    """

    client: Client
    owned: bool = False
    seceded: bool = False

    def close(self) -> None:
        """Undo what `connect` did."""
        if self.owned:
            self.client.close()
        if self.seceded:
            rejoin()


def find_client() -> Client | None:
    """Return the current Dask client, or None if there is none; opens nothing and waits for nothing.

    Raises
    ------
    PlanError
        If the client is asynchronous and its scheduler, or a worker, runs in this very event loop, which a fit would
        block.
    """
    try:
        client = get_client()
    except ValueError:
        return None
    if client.asynchronous and (
        any(s.address == _address(client) for s in Scheduler._instances)  # noqa: SLF001
        or any(_runs_here(worker) for worker in Worker._instances)  # noqa: SLF001
    ):
        raise PlanError(
            "fit blocks, and the Dask scheduler or worker runs in the event loop that called it. "
            "Call it in a thread: await asyncio.to_thread(model.fit, X, y)."
        )
    return client


def _runs_here(worker: Worker) -> bool:
    """Whether a worker's event loop is the one that runs this code: an ``async def`` task does."""
    try:
        loop = worker.loop.asyncio_loop  # type: ignore[attr-defined]
        return bool(loop is asyncio.get_running_loop())
    except RuntimeError:  # no loop runs in this thread
        return False


def connect(client: Client) -> Connection:
    """Return a connection to a client's scheduler whose calls block."""
    if not client.asynchronous:
        try:
            secede()  # inside a task: its chunks may need the very thread that would wait for them
        except ValueError:  # not inside a task
            return Connection(client)
        except KeyError:  # the task gave it back itself: worker_client(), or a secede() of its own
            return Connection(client)
        return Connection(client, seceded=True)
    # a notebook's cell runs inside the client's event loop: a second client, whose loop has a thread, may block
    address = _address(client)
    return Connection(Client(address, security=client.security, set_as_default=False), owned=True)


def max_threads(client: Client, seconds: float) -> int:
    """Return the threads of the worker that has most; wait until there is one.

    Raises
    ------
    ClusterError
        If there is none after some seconds.
    """
    if not client.asynchronous and (threads := client.nthreads()):
        return max(threads.values())
    connection = connect(client)
    try:
        connection.client.wait_for_workers(1, timeout=seconds)
        return max(connection.client.nthreads().values(), default=1)
    except TimeoutError:
        failed = no_worker(seconds)
    finally:
        connection.close()
    raise failed  # outside the except block, which would keep Dask's error as its context


def register(client: Client, plugin: WorkerPlugin) -> None:
    """Give a plugin to all workers, and to those that come later; a worker that is lost meanwhile is no obstacle.

    Dask broadcasts it and fails if one worker does, without waiting for the others. The scheduler has it by then, and
    gives it to whoever comes; so all that are left are asked again. If workers go on leaving, the fit goes on without
    an answer: these plugins save time and memory, and decide nothing.

    Raises
    ------
    CommClosedError, OSError
        If the scheduler is gone.
    ClusterError
        If the plugin fails where it was given: Python is another there.
    """
    for _ in range(TRIES):
        try:
            client.register_plugin(plugin)
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


def no_worker(seconds: float) -> ClusterError:
    """Return the error of a cluster that has had no worker for some seconds."""
    return ClusterError(
        f"The cluster has had no worker for worker_wait={seconds:g} seconds. Start workers, or raise "
        "dask.config dpgb-dask.worker-wait if they are on their way. A fit that had begun can be resumed."
    )


def _address(client: Client) -> str:
    assert client.scheduler is not None
    return str(client.scheduler.address)
