"""The Dask client that a call runs on; calls of ours block, even if the user's client is asynchronous."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dask import base, config
from dask.core import flatten
from dask.utils import parse_timedelta
from distributed import Client, Scheduler, Security, Worker, futures_of, get_client, rejoin, secede
from distributed.comm.core import connect as open_comm

from dpgb_dask.errors import ClusterError, PlanError

IN_A_THREAD = "Call it in a thread: await asyncio.to_thread(model.fit, X, y)."


@dataclass(frozen=True, slots=True)
class Connection:
    """A client whose calls block.

    Parameters
    ----------
    client : Client
    owned : bool
        Whether the client was opened for this call, and is closed with it.
    seceded : bool
        Whether the call runs inside a task, which has given its thread back to the worker while it waits.
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
        If the client is asynchronous, and its scheduler or a worker runs in the same event loop, which the call would
        block.
    """
    try:
        client = get_client()
    except ValueError:
        return None
    servers = (*Scheduler._instances, *Worker._instances)  # noqa: SLF001
    if client.asynchronous and any(_runs_here(server) for server in servers):
        raise PlanError(
            f"This call blocks, and the Dask scheduler or worker runs in the event loop that called it. {IN_A_THREAD}"
        )
    return client


def check_held(client: Client, collections: Any) -> None:
    """Refuse collections that an asynchronous client of this event loop holds on the cluster, as ``persist`` does.

    What the client has still to send of them waits for the loop, which the call would block.

    Raises
    ------
    PlanError
    """
    if client.asynchronous and _are_held(base.unpack_collections(collections)[0]):
        raise PlanError(
            "This call blocks the event loop, and the rows are results that an asynchronous client holds (persist)."
            f" {IN_A_THREAD}"
        )


def _are_held(collections: Sequence[Any]) -> bool:
    """Whether a graph has futures, or needs keys that are not in it: what is left of futures in parts of an array."""
    if futures_of(collections):
        return True
    # parts of one array share a graph, which lives as long as it is here
    seen: dict[int, tuple[Any, set[Any]]] = {}
    for part in collections:
        graph = part.__dask_graph__()
        if id(graph) not in seen:
            seen[id(graph)] = graph, set(graph)
            needed = {key for task in graph.values() for key in getattr(task, "dependencies", ())}
            if not seen[id(graph)][1].issuperset(needed):
                return True
        if not seen[id(graph)][1].issuperset(flatten(part.__dask_keys__())):
            return True
    return False


def connect(client: Client) -> Connection:
    """Return a connection to a client's scheduler whose calls block.

    Raises
    ------
    ClusterError
        If the client is asynchronous, and a second one cannot be connected.
    """
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
    if address is None:
        raise unreachable("no scheduler is connected")
    try:
        reach(address, client.security)
        second = Client(address, security=client.security, set_as_default=False)
    except Exception as error:  # Dask raises many kinds
        failed = unreachable(type(error).__name__)
    else:
        return Connection(second, owned=True)
    raise failed  # outside the except block, which would keep the other error as its context


def reach(address: str, security: Security, seconds: float | None = None) -> None:
    """Connect to a scheduler once, and raise if it does not answer: a client of Dask may wait for ever.

    Dask (2026.8) limits the time for a connection, but not for the first words on it, which a process that hangs, or is
    no scheduler, never says.

    Parameters
    ----------
    address : str
    security : Security
    seconds : float or None
        How long to wait for an answer; None for ``distributed.comm.timeouts.connect``.

    Raises
    ------
    TimeoutError
        If it has not answered by then.
    OSError, ValueError, TypeError
        If no connection can be made to such an address, or none without a certificate.
    """
    limit = seconds or parse_timedelta(config.get("distributed.comm.timeouts.connect"))

    async def meet() -> None:
        options = security.get_connection_args("client")
        comm = await asyncio.wait_for(open_comm(address, **options), limit)
        await comm.close()

    with ThreadPoolExecutor(1) as pool:  # this thread may be that of an event loop
        pool.submit(asyncio.run, meet()).result()


def compute(*collections: Any) -> tuple[Any, ...]:
    """Compute collections as `dask.compute` does, also where the current client is asynchronous.

    Raises
    ------
    PlanError
        If the client's event loop runs the cluster too, or owes it the rows; a thread is the way out.
    ClusterError
        If a second connection to the client's scheduler cannot be made.
    """
    lazy = any(base.is_dask_collection(part) for part in base.unpack_collections(collections)[0])
    client = find_client() if lazy else None
    if client is None or not client.asynchronous:
        return base.compute(*collections)
    check_held(client, collections)
    connection = connect(client)
    try:
        with connection.client.as_current():
            return base.compute(*collections)
    finally:
        connection.close()


def unreachable(why: str, seconds: float | None = None) -> ClusterError:
    """Return the error for a scheduler that has not answered, within some seconds, or cannot be reached."""
    answer = "" if seconds is None else f"worker_wait={seconds:g} seconds for an answer, and "
    connecting = config.get("distributed.comm.timeouts.connect")
    return ClusterError(
        f"The cluster's scheduler does not answer ({why}): it has {answer}distributed.comm.timeouts.connect="
        f"{connecting} for a connection. Look whether it runs, or make a client of one that does. A fit that had begun"
        " can be resumed."
    )


def _runs_here(server: Any) -> bool:
    """Whether this code runs in the event loop of a scheduler or worker, as inside an ``async def`` task."""
    try:
        loop = server.loop.asyncio_loop
        return bool(loop is asyncio.get_running_loop())
    except RuntimeError:  # no loop runs in this thread
        return False


def _address(client: Client) -> str | None:
    """Return the address of a client's scheduler; None if it has lost it."""
    return None if client.scheduler is None else str(client.scheduler.address)
