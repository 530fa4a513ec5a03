"""Clients of every kind, and clusters that do not answer or are of another version: refused before any charge."""

import asyncio
import os
import pickle
import pickletools
import subprocess
import sys
import threading

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pytest
from distributed import Client, LocalCluster, Status, Worker
from distributed.protocol.pickle import dumps
from waiting import LONGEST, pause

from dpgb_dask import DPGBClassifier, Ledger, Schema, clients, recipes
from dpgb_dask.diagnose import check
from dpgb_dask.errors import ChunkError, ClusterError, PlanError
from dpgb_dask.io import open_dataset, write_dataset
from dpgb_dask.private import rounds as rounds_package
from dpgb_dask.private.rounds import messages, workers
from dpgb_dask.private.rounds.worker_tasks import FreeRows
from dpgb_dask.testing import SeededNoise

SCHEMA = Schema({f"f{j}": (0.0, 1.0) for j in range(3)}, classes=[0, 1])
CLUSTER = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0"}


def rows():
    x = da.random.default_rng(7).random((600, 3), chunks=(300, 3))
    return x, (x[:, 0] + x[:, 1] > 1.0).astype(np.int64)


def estimator(**options):
    return DPGBClassifier(
        epsilon=4.0,
        delta=1e-6,
        schema=SCHEMA,
        recipe=recipes.get("auto", kind="binary").brief(),
        columns="position",
        random_state=5,
        **options,
    )


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=8.0, delta=1e-5)
    return ledger


def charges(ledger):
    return [entry for entry in ledger.history("people") if entry.kind == "RESERVED"]


def check_refused(ledger, match):
    """A fit is refused, and nothing is charged."""
    before = ledger.remaining("people")
    with pytest.raises(ClusterError, match=match) as caught:
        estimator(ledger=ledger, account="people").fit(*rows())
    assert caught.value.__context__ is None
    assert ledger.remaining("people") == before
    assert not charges(ledger)


class OldWorker(Worker):
    """A worker whose Python has another version of the library, or none."""

    installed: "str | None" = "0.0.1"

    def versions(self, packages=None):
        found = super().versions(packages)
        return found | {"packages": found["packages"] | {"dpgb_dask": self.installed}}


class BareWorker(OldWorker):
    installed = None


@pytest.mark.parametrize(
    ("worker", "said"),
    [(OldWorker, r"dpgb_dask 0\.0\.1, numba"), (BareWorker, "dpgb_dask not at all")],
)
def test_workers_of_another_version_are_refused_before_a_charge(worker, said, ledger):
    with (
        LocalCluster(n_workers=1, worker_class=worker, **CLUSTER) as cluster,
        Client(cluster),
    ):
        check_refused(ledger, f"Workers have Python .*{said}.*; the fit.s own process has .*image")


def test_a_worker_of_another_version_that_comes_in_mid_fit_does_not_answer(monkeypatch, ledger):
    def upgrade(_label, done, _total):
        if done == 3:
            monkeypatch.setattr(messages, "OWN", "Python 3.1, dpgb_dask 9.9")

    packed = messages.Message.packed
    monkeypatch.setattr(
        messages.Message,
        "packed",
        lambda *of: packed(*of).replace(b"dpgb_dask 9.9", b"dpgb_dask 0.9"),
    )
    with (
        LocalCluster(n_workers=1, **CLUSTER) as cluster,
        Client(cluster),
        pytest.raises(ClusterError, match=r"Workers have .*9\.9; the fit.s own .*0\.9"),
    ):
        estimator(ledger=ledger, account="people", callbacks=[upgrade]).fit(*rows())
    assert len(charges(ledger)) == 1


def test_a_worker_without_the_library_starts_on_a_scheduler_that_has_seen_a_fit(tmp_path):
    """Dask ends a worker that cannot load a plugin, and the scheduler keeps those of a fit."""
    (tmp_path / "dpgb_dask.py").write_text("raise ImportError('not installed')")
    options = CLUSTER | {"protocol": "tcp://"}
    with LocalCluster(n_workers=1, **options) as cluster, Client(cluster) as client:
        estimator().fit(*rows())
        kept = client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.worker_plugins])
        assert sum(name.startswith("dpgb-") for name in kept) >= 2
        command = ["-m", "distributed.cli.dask_worker", cluster.scheduler_address, "--no-nanny"]
        bare = subprocess.Popen(
            [sys.executable, "-P", *command, "--no-dashboard", "--name", "bare"],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        try:
            client.wait_for_workers(2, timeout=LONGEST)
            assert client.submit(sum, [1, 2], workers=["bare"]).result(LONGEST) == 3
        finally:
            bare.kill()
            bare.wait()


def test_a_plugin_is_sent_as_text_that_every_python_compiles_itself():
    """Code that another minor version of Python compiled would crash a worker as it starts."""
    sent = dumps(workers.LoadedAnywhere("one", dumps(FreeRows())))
    asked = [argument for operation, argument, _ in pickletools.genops(sent) if argument]
    assert not any("cloudpickle" in str(argument) for argument in asked)
    read = "import pickle, sys; sys.modules['dpgb_dask'] = None; p = pickle.loads(sys.stdin.buffer.read())"
    then = (
        "print(p.name, p.setup(worker=None), p.transition('a', 'b', 'c'), p.teardown(worker=None))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{read}; {then}"],
        input=sent,
        capture_output=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (b"one None None None\n", b"")
    here = pickle.loads(sent)
    here.setup(worker=None)
    assert isinstance(here.inner, FreeRows)


def test_a_scheduler_that_does_not_answer_is_told_after_a_stated_wait(monkeypatch, ledger):
    monkeypatch.setattr(workers, "LEAST_WAIT", 0.3)

    async def never(**_):
        await asyncio.sleep(LONGEST)

    with LocalCluster(n_workers=1, **CLUSTER) as cluster, Client(cluster):
        cluster.scheduler.handlers["versions"] = never
        with dask.config.set({"dpgb-dask.worker-wait": 0.3}):
            check_refused(ledger, r"scheduler does not answer \(TimeoutError\): .*worker_wait=0\.3")


def test_workers_that_never_come_are_told_after_a_stated_wait(ledger):
    with (
        LocalCluster(n_workers=0, **CLUSTER) as cluster,
        Client(cluster),
        dask.config.set({"dpgb-dask.worker-wait": 0.3}),
    ):
        check_refused(ledger, r"no worker for worker_wait=0\.3 seconds")


def test_workers_that_are_paused_are_told_after_a_stated_wait(ledger):
    # without a limit Dask does not look at the memory, and lets none run again
    with LocalCluster(n_workers=2, memory_limit=0, **CLUSTER) as cluster, Client(cluster) as client:
        pause(client, Status.paused)
        with dask.config.set({"dpgb-dask.worker-wait": 0.3}):
            check_refused(ledger, r"All workers have been paused for worker_wait=0\.3 seconds")
        pause(client, Status.running)
        estimator(ledger=ledger, account="people").fit(*rows())


def test_a_fit_whose_client_is_closed_is_charged_once_and_resumed(ledger):
    with LocalCluster(n_workers=1, **CLUSTER) as cluster:
        client = Client(cluster)

        def close(_label, done, _total):
            if done == 3:
                client.close()

        with pytest.raises(ClusterError, match="can be resumed"):
            estimator(ledger=ledger, account="people", callbacks=[close]).fit(*rows())
        (charge,) = charges(ledger)
        left = ledger.remaining("people")
        with Client(cluster):
            resumed = estimator(ledger=ledger, account="people")
            resumed.fit(*rows(), resume=charge.fit_id)
    assert ledger.remaining("people") == left
    assert resumed.fit_id_ == charge.fit_id


@pytest.mark.parametrize("held_by", ["another cluster", "a client that was closed"])
def test_rows_that_a_cluster_does_not_hold_are_loaded_again_and_the_fit_resumed(held_by, ledger):
    with (
        LocalCluster(n_workers=1, **CLUSTER) as first,
        LocalCluster(n_workers=1, **CLUSTER) as second,
    ):
        client = Client(first)
        held = client.persist(rows())
        if held_by == "a client that was closed":
            client.close()
        with Client(second if held_by == "another cluster" else first):
            with pytest.raises(ClusterError, match=f"persisted.* {held_by}"):
                estimator(ledger=ledger, account="people").fit(*held)
            (charge,) = charges(ledger)
            resumed = estimator(ledger=ledger, account="people")
            resumed.fit(*rows(), resume=charge.fit_id)
        client.close()
    assert [entry.fit_id for entry in charges(ledger)] == [resumed.fit_id_]


def in_a_loop(cell):
    """Run a cell as a notebook does: in the event loop of an asynchronous client of a cluster elsewhere."""

    async def run(address):
        async with Client(address, asynchronous=True) as client:
            return await cell(client)

    with LocalCluster(n_workers=1, **CLUSTER) as cluster:  # in a thread with a loop of its own
        return asyncio.run(run(cluster.scheduler_address))


def test_in_the_loop_of_an_asynchronous_client_every_call_computes_on_the_cluster(tmp_path):
    async def cell(client):
        x, y = rows()
        model = estimator(noise=SeededNoise(3)).fit(x, y)
        write_dataset(tmp_path / "rows.zarr", x, y, schema=SCHEMA, columns="position")
        explained = model.explain_local(x).compute()
        await client.compute(model.predict(x))  # Dask's own way, for what is lazy
        frame = dd.from_dask_array(x, columns=[f"f{j}" for j in range(3)])
        assert model.score(frame, dd.from_dask_array(y)) == model.score(x, y)
        return (
            (model.model_.tables, model.score(x, y), explained.steps[0]),
            str(check(SCHEMA, x, y, columns="position")),
        )

    (tables, score, steps), told = in_a_loop(cell)
    x, y = rows()
    with dask.config.set(scheduler="sync"):
        local = estimator(noise=SeededNoise(3)).fit(x, y)
        np.testing.assert_equal(local.model_.tables, tables)
        assert local.score(x, y) == score
        np.testing.assert_array_equal(local.explain_local(x).compute().steps[0], steps)
        assert str(check(SCHEMA, x, y, columns="position")) == told
        np.testing.assert_array_equal(open_dataset(tmp_path / "rows.zarr").X, x)


def test_rows_that_an_asynchronous_client_holds_are_refused_in_its_loop_and_work_in_a_thread(
    ledger,
):
    async def cell(client):
        x, y = client.persist(list(rows()))
        model = estimator(ledger=ledger, account="people")
        for call in (model.fit, clients.compute):
            with pytest.raises(PlanError, match="to_thread"):
                call(x, y)
        with pytest.raises(PlanError, match="to_thread"):
            clients.compute(dd.from_dask_array(x).sum())
        assert not charges(ledger)
        return await asyncio.to_thread(model.fit, x, y)

    assert in_a_loop(cell).fit_id_ == charges(ledger)[0].fit_id


def test_a_connection_of_our_own_is_closed_where_rows_cannot_be_sent(monkeypatch):
    connections = []

    def spy(client):
        connections.append(clients.connect(client))
        return connections[-1]

    async def cell(_client):
        x = np.empty((10, 3), object)
        x[:] = 0.5
        x[3, 1] = threading.Lock()  # cannot be pickled
        with (
            dask.config.set({"dpgb-dask.backend": "tasks"}),
            pytest.raises(ChunkError, match="TypeError"),
        ):
            estimator(noise=SeededNoise(0)).fit(x, np.zeros(10))

    monkeypatch.setattr(rounds_package, "connect", spy)
    in_a_loop(cell)
    (connection,) = connections
    assert connection.owned
    assert connection.client.status == "closed"
