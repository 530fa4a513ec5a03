"""A worker is cut off the network without notice: the fit goes on, and its model is the same bit for bit."""

import os
import subprocess
import time
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from hpc.network import MARK, Hosts, cluster_on, lacks, run
from waiting import LONGEST

from dpgb_dask import DPGBClassifier, Ledger, Schema, recipes
from dpgb_dask.testing import SeededNoise

pytestmark = pytest.mark.hpc
SCHEMA = Schema({f"f{j}": (0.0, 1.0) for j in range(4)}, classes=[0, 1])
NOTICED = {  # how soon Dask may notice; its defaults are 30 s and 5 min
    "distributed.comm.timeouts.tcp": "12s",
    "distributed.comm.timeouts.connect": "12s",
    "distributed.scheduler.worker-ttl": "12s",
}


@pytest.fixture(scope="module", autouse=True)
def _namespaces():
    if reason := lacks():
        pytest.skip(reason)


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


def rows():
    """Rows that each worker makes again by itself: nothing has to come from the one that is gone."""
    x = da.random.default_rng(7).random((6000, 4), chunks=(500, 4))
    return x, (x[:, 0] + x[:, 1] > x[:, 2] + 0.5).astype(np.int64)


def model_of(recipe, folder, *callbacks):
    clf = DPGBClassifier(
        epsilon=4.0,
        delta=1e-6,
        schema=SCHEMA,
        recipe=recipes.get(recipe, kind="binary").brief(),
        noise=SeededNoise(3),
        random_state=5,
        callbacks=callbacks,
    ).fit(*rows())
    clf.save(folder / "model.json")
    return (folder / "model.json").read_bytes()


@pytest.mark.parametrize("backend", ["tasks", "comms"])
@pytest.mark.parametrize("recipe", ["auto", "fdp-tr-newton", "dp-ebm"])
def test_a_worker_is_cut_off(recipe, backend, tmp_path, record_property, monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP", "12s")  # of the workers
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "12s")
    with dask.config.set({"dpgb-dask.backend": "local"}):
        undisturbed = model_of(recipe, tmp_path)
    seen = {}
    with (
        dask.config.set(NOTICED | {"dpgb-dask.backend": backend}),
        Hosts() as hosts,
        cluster_on(hosts, str(tmp_path)) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=LONGEST)

        def cut(_label, done, _total):
            if done == 3:
                hosts.cut(0)
                seen["cut"] = time.monotonic()
            elif done == 4:
                seen["next round"] = f"{time.monotonic() - seen['cut']:.0f} s after the cut"

        disturbed = model_of(recipe, tmp_path, cut)
        seen["workers at the end"] = len(client.scheduler_info()["workers"])
    del seen["cut"]
    record_property("saw", str(seen))
    assert seen["workers at the end"] == 1
    assert disturbed == undisturbed


def test_a_cut_fit_is_charged_once(tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP", "12s")
    charged = []
    for name, at in (("calm", 0), ("cut", 3)):
        ledger = Ledger(f"sqlite:///{tmp_path}/{name}.db")
        ledger.open_account("people", epsilon=3.0, delta=1e-6)
        with (
            dask.config.set(NOTICED),
            Hosts() as hosts,
            cluster_on(hosts, str(tmp_path)) as cluster,
            Client(cluster) as client,
        ):
            client.wait_for_workers(2, timeout=LONGEST)
            DPGBClassifier(
                epsilon=1.0,
                delta=1e-6,
                schema=SCHEMA,
                recipe=recipes.get("auto", kind="binary").brief(),
                ledger=ledger,
                account="people",
                callbacks=[lambda _label, done, _total: hosts.cut(1) if done == at else None],  # noqa: B023
            ).fit(*rows())
        charged.append((ledger.account("people").spent, [e.kind for e in ledger.history("people")]))
    assert charged[0] == charged[1]
