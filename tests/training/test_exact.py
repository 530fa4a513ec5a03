"""The same noise key gives the same model file, byte for byte, whatever the form of the rows and the back end."""

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass

import dask
import pytest
from distributed import Client, LocalCluster
from forms import FORMS, SCHEMA, some_rows
from thinned import thinned
from waiting import LONGEST

from dpgb_dask import DPGBClassifier
from dpgb_dask.components.auto.forest import Forest
from dpgb_dask.components.auto.main_effects import MainEffects
from dpgb_dask.components.auto.pairs import Pairs
from dpgb_dask.components.auto.start import Start
from dpgb_dask.components.bins import Bins
from dpgb_dask.contracts.plan import Plan
from dpgb_dask.testing import SeededNoise

SHORT = Plan(
    "short", "a test", (Bins(), Start(), MainEffects(rounds=3), Pairs(rounds=2), Forest(rounds=2))
)


@pytest.fixture(scope="module")
def rows():
    return some_rows()


@dataclass
class KillWorker:
    """Kill one worker process in the middle of a fit."""

    client: Client
    at: int
    done: bool = False

    def __call__(self, _label, n_done, _total):
        if n_done == self.at:
            pids = sorted(self.client.run(os.getpid).values())
            os.kill(pids[0], signal.SIGKILL)
            self.done = True


def model_file(form, rows, tmp, callbacks=None):
    x, y = FORMS[form](*rows, tmp)
    clf = DPGBClassifier(
        epsilon=4.0,
        delta=1e-6,
        schema=SCHEMA,
        recipe=SHORT,
        noise=SeededNoise(3),
        random_state=5,
        callbacks=callbacks,
    ).fit(x, y)
    clf.save(tmp / "model.json")
    return (tmp / "model.json").read_bytes()


@pytest.fixture(scope="module")
def reference(rows, tmp_path_factory):
    with dask.config.set({"dpgb-dask.backend": "local", "dpgb-dask.n-threads": 1}):
        return model_file("numpy", rows, tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize(
    ("form", "threads", "block_rows"),
    [
        ("pandas", 1, 1 << 14),
        ("numpy", 2, 1 << 14),
        ("numpy", 2, 333),
        ("dask1", 2, 1 << 14),
        ("dask7", 1, 500),
        ("dask50", 2, 1 << 14),
        ("frame", 1, 100),
        ("zarr", 2, 1 << 14),
    ],
)
def test_model_file_is_the_same_in_this_process(
    form, threads, block_rows, rows, reference, tmp_path
):
    settings = {"backend": "local", "n-threads": threads, "block-rows": block_rows}
    with dask.config.set({f"dpgb-dask.{k}": v for k, v in settings.items()}):
        assert model_file(form, rows, tmp_path) == reference


@contextmanager
def processes(n_workers, threads):
    with LocalCluster(
        n_workers=n_workers,
        threads_per_worker=threads,
        processes=True,
        dashboard_address=":0",
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two_processes():
    with processes(2, 1) as cluster:
        yield cluster


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.slow), 2], scope="module")
def cluster(request):
    if request.param == 2:
        yield request.getfixturevalue("two_processes")
    else:
        with processes(1, 2) as cluster:
            yield cluster


@pytest.mark.parametrize(
    "form", thinned(["dask7", "dask1", "numpy", "frame", "dask50", "zarr"], every=6)
)
def test_model_file_is_the_same_on_a_cluster(form, cluster, rows, reference, tmp_path):
    with Client(cluster), dask.config.set({"dpgb-dask.backend": "tasks"}):
        assert model_file(form, rows, tmp_path) == reference


@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_model_file_is_the_same_when_a_worker_is_killed(
    at, two_processes, rows, reference, tmp_path
):
    with Client(two_processes) as client:
        client.wait_for_workers(2, timeout=LONGEST)  # one that was killed is started again
        kill = KillWorker(client, at)
        assert model_file("dask7", rows, tmp_path, [kill]) == reference
        assert kill.done
