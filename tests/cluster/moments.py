"""Faults of a cluster at a moment that its scheduler sees: a transition of one of our tasks, or a broadcast.

`Moments` is a plugin of the scheduler. A test runs a fit once to learn its moments, and again with a fault at one of
them.
"""

import asyncio
import os
import re
import signal
from unittest import mock

import numpy as np
from distributed import SchedulerPlugin
from waiting import LONGEST

HASH = re.compile(
    r".*\d.*|[0-9a-f]{8,}"
)  # a part of a key that differs between fits; rarely, it has no digit


class Moments(SchedulerPlugin):
    """Moments of one fit on a cluster of this process, and a fault at one of them.

    Parameters
    ----------
    cluster : LocalCluster
    fault : coroutine function or None
        Runs in the scheduler's event loop with (cluster, address of a worker). It has to have a result when the fit
        ends: an error is raised, because nothing was disturbed.
    at : tuple or None
        The moment, such as ("dpgb-shard", "waiting", "processing") or ("broadcast", "plugin-add").
    k : int
        How many such moments pass before the fault.
    seed : int
        Chooses the worker that the fault hits if the moment belongs to none, and now and then even if it does.

    Attributes
    ----------
    seen : dict
        How often each moment has occurred.
    victim : str or None
        The worker that the fault hit.
    """

    name = "moments"

    def __init__(self, cluster, fault=None, at=None, k=0, seed=0):
        self.seen, self.victim = {}, None
        self._cluster, self._fault, self._at, self._k = cluster, fault, at, k
        self._rng = np.random.default_rng(seed)
        self._struck = None

    def __enter__(self):
        scheduler = self._cluster.scheduler
        real = scheduler.broadcast

        async def broadcast(*, msg, **options):
            self._moment(("broadcast", msg["op"]), ())
            return await real(msg=msg, **options)

        self._patches = [
            mock.patch.object(scheduler, "broadcast", broadcast),
            mock.patch.dict(scheduler.handlers, broadcast=broadcast),
        ]
        for patch in self._patches:
            patch.start()
        self._cluster.sync(self._join_in)
        return self

    async def _join_in(self):
        self._cluster.scheduler.add_plugin(self)

    def __exit__(self, *_error):
        for patch in self._patches:
            patch.stop()
        self._at = None
        self._cluster.loop.add_callback(self._cluster.scheduler.remove_plugin, self.name)
        if self._struck is not None:
            self._struck.result(LONGEST)

    def transition(self, key, start, finish, *_args, **_options):
        """Note a transition of a task."""
        kind = kind_of(key)
        if kind is None:
            return
        task = self._cluster.scheduler.tasks.get(key)
        own = [] if task is None else [*(task.who_has or ()), task.processing_on]
        self._moment((kind, start, finish), [worker.address for worker in own if worker])

    def _moment(self, moment, own):
        count = self.seen[moment] = self.seen.get(moment, 0) + 1
        if moment != self._at or count != self._k + 1 or self.victim is not None:
            return
        workers = sorted(self._cluster.scheduler.workers)
        if not own or self._rng.random() < 0.2:
            own = workers
        if own:
            self.victim = str(self._rng.choice(sorted(own)))
            self._struck = strike(self._fault, self._cluster, self.victim)


def kind_of(key):
    """Return what one of our tasks does, without the parts that differ between fits; None for a task of the source."""
    name = str(key)
    if not name.startswith("dpgb-"):
        return None
    words = []
    for word in name.split("-"):
        if HASH.fullmatch(word):
            break
        words.append(word)
    return "-".join(words)


def strike(fault, cluster, address):
    """Have a fault in a scheduler's event loop; return its future."""
    return asyncio.run_coroutine_threadsafe(fault(cluster, address), cluster.loop.asyncio_loop)


async def lose(cluster, address):
    """Treat a worker as dead, as when its connection breaks."""
    assert await cluster.scheduler.remove_worker(address=address, stimulus_id="fault") == "OK"


async def retire(cluster, address):
    """Retire a worker: what it holds is moved to other workers first."""
    assert await cluster.scheduler.retire_workers(workers=[address])


async def join(cluster, _address):
    """Start one more worker."""
    cluster.scale(len(cluster.worker_spec) + 1)


async def kill(cluster, address):
    """End a worker's process; its nanny starts it again.

    A worker that has just begun is known to the scheduler a little before its nanny knows its address.
    """
    nannies = []
    while not nannies and address in cluster.scheduler.workers:
        nannies = [one for one in cluster.workers.values() if one.worker_address == address]
        await asyncio.sleep(0.01)
    (nanny,) = nannies
    os.kill(nanny.pid, signal.SIGKILL)
