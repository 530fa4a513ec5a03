"""Hosts on a network that is cut, or slow: the model is the same bit for bit, and there is one charge."""

import os
import statistics
import subprocess
import threading
import time
from contextlib import contextmanager
from unittest import mock

import dask
import pytest
from cluster.test_faults import Fault, check, disturbed
from distributed import Client
from hpc.network import MARK, Hosts, cluster_on, lacks, run
from small_fits import fit
from waiting import LONGEST, comes_true

pytestmark = pytest.mark.hpc
NOTICED = {  # how soon Dask may notice; its defaults are 30 s and 5 min
    "distributed.comm.timeouts.tcp": "12s",
    "distributed.comm.timeouts.connect": "12s",
    "distributed.scheduler.worker-ttl": "12s",
}


@pytest.fixture(scope="module", autouse=True)
def _namespaces():
    if reason := lacks():
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _noticed_by_workers(monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP", "12s")
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "12s")


@pytest.fixture
def no_process():
    """The number of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def test_networks_of_others_are_left_alone_and_those_of_a_killed_run_go(no_process):
    with Hosts() as other:  # one of a test that runs beside this one
        run(f"ip link add {MARK}b{no_process} type bridge")
        run(f"ip netns add {MARK}{no_process}n0")
        with mock.patch.object(os, "getpid", return_value=1), Hosts() as hosts:
            assert hosts.network != other.network
            assert other.bridge in run("ip -o link show")
        assert f"{no_process}" not in run("ip -o link show") + run("ip netns list")


@contextmanager
def client_on(hosts, folder):
    """A client of a cluster with a worker on every host, once all are there."""
    with (
        dask.config.set(NOTICED),
        hosts,
        cluster_on(hosts, str(folder)) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(len(hosts.hosts), timeout=LONGEST)
        yield client


class TimedFault(Fault):
    """A fault, and the seconds of every round since."""

    def __init__(self, recipe, happen):
        super().__init__(recipe, happen)
        self.since, self.took = None, []

    def __call__(self, label, done, total):
        if self.since is not None:
            self.took.append(time.monotonic() - self.since)
        super().__call__(label, done, total)
        if done >= self.at:
            self.since = time.monotonic()

    def tell(self, client):
        rounds = ", ".join(f"{seconds:.1f}" for seconds in self.took)
        self.seen += f"; rounds since took {rounds} s; {len(client.nthreads())} workers at the end"


@pytest.mark.parametrize(
    ("recipe", "backend"), [("auto", "comms"), ("fdp-tr-newton", "tasks"), ("dp-ebm", "tasks")]
)
def test_a_worker_is_cut_off(recipe, backend, undisturbed, tmp_path, record_property):
    hosts = Hosts()

    def cut():
        hosts.cut(0)
        return "1 of 2 workers cut off"

    fault = TimedFault(recipe, cut)
    with client_on(hosts, tmp_path) as client:
        disturbed(tmp_path, recipe, backend, fault)
        assert len(client.nthreads()) == 1
        fault.tell(client)
    check(tmp_path, undisturbed(recipe), fault, record_property)


@pytest.mark.parametrize("backend", ["comms", "tasks"])
def test_a_cut_heals(backend, undisturbed, tmp_path, record_property):
    hosts, healed = Hosts(), []

    def cut():
        hosts.cut(0)
        timer = threading.Timer(3.0, lambda: healed.append(hosts.heal(0)))
        timer.start()
        return "1 of 2 workers cut off for 3 s"

    fault = TimedFault("dp-ebm", cut)
    with client_on(hosts, tmp_path) as client:
        disturbed(tmp_path, "dp-ebm", backend, fault)
        assert comes_true(lambda: healed)
        fault.tell(client)
    check(tmp_path, undisturbed("dp-ebm"), fault, record_property)


@pytest.mark.parametrize("backend", ["comms", "tasks"])
def test_two_workers_lose_each_other_and_not_the_scheduler(
    backend, undisturbed, tmp_path, record_property
):
    hosts = Hosts(3)

    def part():
        hosts.part(0, 1)
        return "2 of 3 workers cannot reach each other"

    fault = TimedFault("dp-ebm", part)
    with client_on(hosts, tmp_path) as client:
        disturbed(tmp_path, "dp-ebm", backend, fault)
        fault.tell(client)
    check(tmp_path, undisturbed("dp-ebm"), fault, record_property)


@pytest.mark.parametrize("milliseconds", [0, 5, 50])
def test_rounds_on_a_slow_network(milliseconds, tmp_path, record_property):
    def model_by(backend):
        folder = tmp_path / backend
        folder.mkdir()
        clock = TimedFault("dp-ebm", lambda: None)
        with dask.config.set({"dpgb-dask.backend": backend}):
            fit(folder, "dp-ebm", lazy=True, n_estimators=5, callbacks=[clock])
        took[backend] = 1000 * statistics.median(clock.took)
        return (folder / "model.json").read_bytes()

    hosts, took = Hosts(3, milliseconds / 1000), {}
    expected = model_by("local")
    with client_on(hosts, tmp_path):
        assert model_by("tasks") == expected
        assert model_by("comms") == expected
    rounds = ", ".join(
        f"{took[backend]:.0f} ms a round by {backend}" for backend in ("tasks", "comms")
    )
    saw = f"3 workers, {milliseconds} ms along each cable by {hosts.delayed_by}: {rounds}"
    record_property("saw", f"{saw}; same model file")
