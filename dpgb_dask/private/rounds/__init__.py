"""The back ends of a round, and the choice between them.

Every back end does the same: it broadcasts a message and reduces int64 arrays.
"""

from dataclasses import dataclass, replace

from dask.system import cpu_count
from distributed import Client

from dpgb_dask.clients import check_held, connect, find_client
from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.plan import NO_NEEDS, Execution, Needs, Rounds, Shape
from dpgb_dask.errors import PlanError, in_our_words
from dpgb_dask.kernels.warming import warm
from dpgb_dask.private.keeping.store import check_limit
from dpgb_dask.private.reading.chunks import Reading
from dpgb_dask.private.reading.rows import Source
from dpgb_dask.private.rounds.local import LocalRounds
from dpgb_dask.private.rounds.tasks import TaskRounds
from dpgb_dask.private.rounds.workers import check_workers, on_a_worker
from dpgb_dask.remote import check_writable, is_url

ON_CLUSTER = ("tasks", "comms")


@dataclass(frozen=True, slots=True)
class Backend:
    """A back end that was chosen, and found to be there.

    Parameters
    ----------
    client : Client or None
        The Dask client to run on; None to run in this process.
    n_threads : int
        Most threads of a process that holds rows.
    """

    client: Client | None
    n_threads: int


def check_backend(source: Source, execution: Execution, needs: Needs = NO_NEEDS) -> Backend:
    """Choose a back end, and raise if it cannot be used, before anything is charged or built.

    Parameters
    ----------
    source : Source
    execution : Execution
        ``backend="auto"`` uses the current Dask client for Dask collections, and threads of this process for
        inputs in memory or if there is no client.
    needs : Needs
        Memory that the plan needs besides the rows.

    Returns
    -------
    Backend

    Raises
    ------
    PlanError
        If the back end is unknown, "tasks" or "comms" is asked for without a Dask client, the client's scheduler runs
        in the event loop that a fit would block or that owes it the rows, or the memory limit is too small.
    ClusterError
        If the scheduler has not answered, or the cluster has had no worker, for ``execution.worker_wait`` seconds; if
        a worker has another version than this process.
    StructureError
        If ``execution.cache`` is a URL that those who hold rows cannot write to.
    """
    if execution.backend not in ("auto", "local", *ON_CLUSTER):
        raise PlanError(
            f"backend={execution.backend!r} is unknown. Choose 'auto', 'local', 'tasks' or 'comms'."
        )
    client = None
    if execution.backend in ON_CLUSTER or (execution.backend == "auto" and source.lazy):
        client = find_client()
    if client is None and execution.backend in ON_CLUSTER:
        raise PlanError(
            f"backend={execution.backend!r} needs a Dask client. Make one: distributed.Client()."
        )
    shape, own = Shape(schema=source.schema), execution.n_threads or cpu_count()
    if client is None:
        check_limit(execution, shape, own, needs)
        if is_url(execution.cache):
            check_writable(execution.cache)
        return Backend(None, own)
    if source.lazy and client.asynchronous:
        check_held(client, [part for chunk in source.chunks for part in chunk.parts()])
    n_threads = check_workers(client, execution.worker_wait)
    check_limit(execution, shape, n_threads, needs, own)
    if is_url(execution.cache):  # the workers may have credentials that this process has not
        on_a_worker(client, check_writable, execution.cache)
    return Backend(client, n_threads)


@in_our_words()
def open_rounds(
    source: Source,
    shape: Shape,
    execution: Execution,
    key: bytes,
    rows_key: bytes | None = None,
    bins: tuple[FeatureBins, ...] | None = None,
    n_rounds: int | None = None,
    *,
    refines: bool = False,
    needs: Needs = NO_NEEDS,
    backend: Backend | None = None,
    kernels: tuple[str, ...] | None = (),
) -> Rounds:
    """Return the back end for a source; nothing is computed before the first query.

    Parameters
    ----------
    source : Source
    shape : Shape
    execution : Execution
    key : bytes
        32 secret bytes of the fit, for the fingerprint.
    rows_key : bytes or None
        16 secret bytes of the fit, for the draws of rows (`queries.RowDraw`); None if the plan draws none.
    bins : tuple of FeatureBins or None
        Bins that follow from the schema alone: rows are then encoded during the survey, and read only once.
    n_rounds : int or None
        Upper bound on the number of rounds; None if unknown.
    refines : bool
        Whether other bins will follow: rows are then kept as values, if there is room, to be encoded again.
    needs : Needs
        Memory that the plan needs besides the rows; it is subtracted from the limit.
    backend : Backend or None
        What `check_backend` returned, if it was called before; None to choose now.
    kernels : tuple of str or None
        Kernels (`Plan.kernels`) to compile before the rows are read, so that workers do not all compile them, and that
        this is said follows from public facts; None for all.

    Raises
    ------
    PlanError, ClusterError
        As `check_backend`, which a fit calls before it charges.

    Privacy
    -------
    Private side. Every back end gives the same sums, bit for bit.
    """
    reading = Reading(shape, key, rows_key=rows_key)
    if backend is None:
        backend = check_backend(source, execution, needs)
    client = backend.client
    if kernels is not None:
        kernels = (*kernels, *source.kernels)
    if execution.memory_limit is not None:
        own = execution.n_threads or cpu_count()
        taken = needs.to_sum(backend.n_threads) + (needs.to_decide(own) if client is None else 0)
        execution = replace(execution, memory_limit=execution.memory_limit - taken)
    if client is None:
        warm(kernels)
        return LocalRounds(source, reading, execution, bins, refines=refines)
    connection = connect(client)
    try:
        return TaskRounds(
            source,
            reading,
            execution,
            connection,
            bins,
            n_rounds,
            refines=refines,
            kernels=kernels,
        )
    except BaseException:
        connection.close()
        raise
