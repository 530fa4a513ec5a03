"""The same noise key gives the same model file, byte for byte, whatever holds the rows and whoever adds them."""

import os
import signal
from dataclasses import dataclass

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client, LocalCluster

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.components.stages import Bins, Forest, MainEffects, Pairs, Start
from dpgb_dask.contracts.plan import Plan
from dpgb_dask.testing import SeededNoise

SCHEMA = Schema(
    {"age": (0, 80), "income": (0.0, 1e5), "kind": [0, 1, 2, 3], "score": (-5.0, 5.0)},
    classes=[0, 1],
)
SHORT = Plan(
    "short", "a test", (Bins(), Start(), MainEffects(rounds=3), Pairs(rounds=2), Forest(rounds=2))
)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(7)
    n = 4001
    x = np.column_stack(
        [
            rng.integers(0, 80, n),
            np.where(rng.random(n) < 0.3, 0, rng.exponential(2e4, n)),
            rng.integers(0, 5, n),  # 4 is not declared
            rng.normal(0, 2, n),
        ]
    ).astype(np.float64)
    x[rng.random(x.shape) < 0.02] = np.nan
    x[:3, 3] = [np.inf, -np.inf, 99.0]
    logit = 0.05 * (np.nan_to_num(x[:, 0]) - 40) + np.nan_to_num(np.clip(x[:, 3], -5, 5))
    y = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    y[5] = 7  # an unknown label
    return x, y


def in_chunks(n_chunks):
    def make(x, y, _tmp):
        rows = -(-len(x) // n_chunks)
        return da.from_array(x, chunks=(rows, 2)), da.from_array(y, chunks=max(rows // 2, 1))

    return make


def as_frame(x, y, _tmp):
    frame = pd.DataFrame(x, columns=list(SCHEMA.names)).assign(target=y)
    frame = dd.from_pandas(frame, npartitions=5)
    frame = dd.concat([frame, frame.partitions[0].query("age < -1")])  # an empty partition
    return frame[list(SCHEMA.names)], frame["target"]


def as_pandas(x, y, _tmp):
    return pd.DataFrame(x, columns=list(SCHEMA.names)), pd.Series(y)


def as_zarr(x, y, tmp):
    stored = zarr.create_array(tmp / "x.zarr", data=x, chunks=(1500, 4))
    return stored, zarr.create_array(tmp / "y.zarr", data=y, chunks=(1500,))


FORMS = {
    "numpy": lambda x, y, _tmp: (x, y),
    "pandas": as_pandas,
    "dask1": in_chunks(1),
    "dask7": in_chunks(7),
    "dask50": in_chunks(50),
    "frame": as_frame,
    "zarr": as_zarr,
}


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


@pytest.fixture(scope="module", params=[1, 2])
def cluster(request):
    with (
        LocalCluster(
            n_workers=request.param,
            threads_per_worker=2 if request.param == 1 else 1,
            processes=True,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.parametrize("form", ["numpy", "dask1", "dask7", "dask50", "frame", "zarr"])
@pytest.mark.usefixtures("cluster")
def test_model_file_is_the_same_on_a_cluster(form, rows, reference, tmp_path):
    with dask.config.set({"dpgb-dask.backend": "tasks"}):
        assert model_file(form, rows, tmp_path) == reference


@pytest.mark.parametrize("at", [1, 6])
def test_model_file_is_the_same_when_a_worker_is_killed(at, rows, reference, tmp_path):
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        kill = KillWorker(client, at)
        assert model_file("dask7", rows, tmp_path, [kill]) == reference
        assert kill.done
