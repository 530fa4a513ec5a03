"""Broadcast a message, reduce int64: the back ends of one round, and the choice between them."""

from dpgb_dask.contracts.plan import Execution, Rounds, Shape
from dpgb_dask.errors import PlanError
from dpgb_dask.private.ingest import Source
from dpgb_dask.private.rounds.clients import current_client
from dpgb_dask.private.rounds.local import LocalRounds
from dpgb_dask.private.rounds.tasks import TaskRounds
from dpgb_dask.private.survey import Reading


def open_rounds(source: Source, shape: Shape, execution: Execution, key: bytes) -> Rounds:
    """Return the back end for a source; nothing is computed before the first question.

    Parameters
    ----------
    source : Source
    shape : Shape
    execution : Execution
        ``backend="auto"`` takes the current Dask client for Dask collections, and threads of this process for
        inputs in memory or without a client.
    key : bytes
        32 secret bytes of the fit, for the fingerprint.

    Raises
    ------
    PlanError
        If the back end is unknown, or "tasks" is asked for without a Dask client.

    Privacy
    -------
    Private side. Every back end gives the same sums, bit for bit.
    """
    reading = Reading(shape, key)
    if execution.backend not in ("auto", "local", "tasks"):
        raise PlanError(
            f"backend={execution.backend!r} is unknown. Choose 'auto', 'local' or 'tasks'."
        )
    if execution.backend == "local" or (execution.backend == "auto" and not source.lazy):
        return LocalRounds(source, reading, execution)
    connection = current_client()
    if connection is not None:
        return TaskRounds(source, reading, execution, connection)
    if execution.backend == "tasks":
        raise PlanError("backend='tasks' needs a Dask client. Make one: distributed.Client().")
    return LocalRounds(source, reading, execution)
