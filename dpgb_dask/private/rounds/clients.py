"""The Dask client that a fit runs on; its calls block even if the user's client is asynchronous."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import (
    Client,
    Scheduler,
    Security,
    Worker,
    WorkerPlugin,
    get_client,
    rejoin,
    secede,
)
from distributed.comm.core import CommClosedError
from distributed.comm.core import connect as open_comm
from distributed.exceptions import WorkerStartTimeoutError

from dpgb_dask.errors import ClusterError, DPGBError, PlanError

TRIES = 5  # attempts to give a plugin to all workers
PAUSE = 0.2  # seconds between two attempts, in which the scheduler notices workers that are gone


@dataclass(frozen=True, slots=True)
class Connection:
    """A client whose calls block.

    Parameters
    ----------
    client : Client
    owned : bool
        Whether the client was opened for this fit, and is closed with it.
    seceded : bool
        Whether the fit runs inside a task, which has given its thread back to the worker while it waits.
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
    """Return the current Dask client, or None if there is none; opens no connection and does not wait.

    Raises
    ------
    PlanError
        If the client is asynchronous, and its scheduler or a worker runs in the same event loop, which a fit would
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
    """Whether this code runs in a worker's event loop, as inside an ``async def`` task."""
    try:
        loop = worker.loop.asyncio_loop  # type: ignore[attr-defined]
        return bool(loop is asyncio.get_running_loop())
    except RuntimeError:  # no loop runs in this thread
        return False


def connect(client: Client) -> Connection:
    """Return a connection to a client's scheduler whose calls block."""
    if not client.asynchronous:
        try:
            secede()  # inside a task: without this, it would hold the thread that its chunks may need
        except ValueError:  # not inside a task
            return Connection(client)
        except KeyError:  # the task has seceded itself: by worker_client() or secede()
            return Connection(client)
        return Connection(client, seceded=True)
    # a notebook's cell runs in the client's event loop; calls of a second client, with a loop in a thread, may block
    address = _address(client)
    reach(address, client.security)
    return Connection(Client(address, security=client.security, set_as_default=False), owned=True)


def reach(address: str, security: Security) -> None:
    """Connect to a scheduler once, and raise if it does not answer: a client of Dask may wait for ever.

    Dask (2026.8) limits the time for a connection, but not for the first words on it, which a process that hangs, or is
    no scheduler, never says.

    Raises
    ------
    TimeoutError
        If it has not answered after ``distributed.comm.timeouts.connect``.
    OSError, ValueError, TypeError
        If no connection can be made to such an address, or none without a certificate.
    """
    seconds = parse_timedelta(dask.config.get("distributed.comm.timeouts.connect"))

    async def meet() -> None:
        options = security.get_connection_args("client")
        comm = await asyncio.wait_for(open_comm(address, **options), seconds)
        await comm.close()

    with ThreadPoolExecutor(1) as pool:  # this thread may be that of an event loop
        pool.submit(asyncio.run, meet()).result()


def told(client: Client, seconds: float, question: str, **about: Any) -> Any:
    """Return what the scheduler answers; without a time limit, Dask waits for ever for one that stands still.

    Raises
    ------
    TimeoutError
    """
    return client.sync(getattr(client.scheduler, question), **about, callback_timeout=seconds)


def max_threads(client: Client, seconds: float) -> int:
    """Return the largest number of threads of a worker; wait until there is a worker.

    Raises
    ------
    ClusterError
        If there is no worker after ``seconds``, or the scheduler has not answered by then.
    """
    try:
        if not client.asynchronous and (threads := told(client, seconds, "ncores")):
            return max(threads.values())
        connection = connect(client)
        try:
            connection.client.wait_for_workers(1, timeout=seconds)
            return max(told(connection.client, seconds, "ncores").values(), default=1)
        finally:
            connection.close()
    except WorkerStartTimeoutError:
        failed = no_worker(seconds)
    except (
        Exception
    ) as error:  # a time-out, a connection that is closed, one that cannot be made, …
        connecting = dask.config.get("distributed.comm.timeouts.connect")
        failed = ClusterError(
            f"The cluster's scheduler does not answer ({type(error).__name__}): it has worker_wait={seconds:g} seconds"
            f" for an answer, and distributed.comm.timeouts.connect={connecting} for a connection. Look whether it runs"
            ", or make a client of one that does."
        )
    raise failed  # outside the except block, which would keep Dask's error as its context


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

    Raises
    ------
    CommClosedError, OSError
        If the scheduler is gone.
    ClusterError
        If the plugin fails on a worker, as when its Python lacks this version of the library.
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


def silent(seconds: float) -> ClusterError:
    """Return the error for a scheduler that has not answered for some seconds of a fit."""
    return ClusterError(
        f"The cluster's scheduler has not answered for {seconds:g} seconds. Look whether it is overloaded or stopped,"
        " or raise dask.config dpgb-dask.worker-wait. The fit can be resumed, on another cluster too."
    )


def no_worker(seconds: float) -> ClusterError:
    """Return the error for a cluster that has had no worker for some seconds."""
    return ClusterError(
        f"The cluster has had no worker for worker_wait={seconds:g} seconds. Start workers, or raise "
        "dask.config dpgb-dask.worker-wait if they are on their way. A fit that had begun can be resumed."
    )


def _address(client: Client) -> str:
    assert client.scheduler is not None
    return str(client.scheduler.address)
