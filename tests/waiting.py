"""Waiting for what is sure to come: so long that it comes on a busy machine too; how long proves nothing."""

import gc
import time

from distributed import Status

LONGEST = 240  # seconds; a worker process may take many to start


def pause(client, status):
    """Pause all workers of a cluster, or let them run again, as Dask does by their memory."""
    client.run(lambda dask_worker: setattr(dask_worker, "status", status))
    running = status == Status.running
    assert comes_true(lambda: bool(client.sync(client.scheduler.ncores_running)) == running)


def comes_true(what):
    """Wait until ``what()`` is true; return whether it became so."""
    deadline = time.monotonic() + LONGEST
    while not (true := what()) and time.monotonic() < deadline:
        began = time.monotonic()
        gc.collect()
        # most of the time is for what is waited for: a cluster of this process stands still while garbage is collected
        time.sleep(max(0.02, 5 * (time.monotonic() - began)))
    return bool(true)
