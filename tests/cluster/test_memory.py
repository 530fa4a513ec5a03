"""A worker's peak memory stays within its promise (issue 2, "What it must show")."""

import re
import time
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from private.cases import KEY, gradient_of, opened

from dpgb_dask.contracts.model import FeatureBins, Model
from dpgb_dask.contracts.plan import Execution, Shape
from dpgb_dask.contracts.queries import MainSumsQuery
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.private.ingest import read_source
from dpgb_dask.private.rounds import open_rounds
from dpgb_dask.private.rounds.tasks import WarmKernels

N_FEATURES, CHUNK_ROWS, N_CHUNKS = 16, 400_000, 12  # 25 MB of float32 each, 300 MB together
MB = 1 << 20


def chunk(block_info=None):
    rng = np.random.default_rng(block_info[None]["chunk-location"][0])
    return rng.random((CHUNK_ROWS, N_FEATURES), np.float32)


def peak():
    """Highest resident memory of this process so far, bytes."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("n_threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_peak_memory_of_a_worker_is_bounded(n_threads):
    schema = Schema({f"f{j}": (0, 1) for j in range(N_FEATURES)}, classes=[0, 1])
    bins = tuple(FeatureBins(np.linspace(0, 1, 30), None, 32) for _ in range(N_FEATURES))
    tables = tuple(np.zeros((32, 1), np.int32) for _ in range(N_FEATURES))
    model = Model(bins, np.zeros(1, np.int32), tables)
    query = MainSumsQuery(
        label="",
        price=1,
        gradient=gradient_of("binary"),
        n_scores=1,
        leaf_of_bin=tuple((np.arange(32) // 8).astype(np.uint8) for _ in range(N_FEATURES)),
        n_leaves=(4,) * N_FEATURES,
    )
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=n_threads, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(WarmKernels())
        time.sleep(0.2)
        (idle,) = client.run(peak).values()
        x = da.map_blocks(chunk, chunks=((CHUNK_ROWS,) * N_CHUNKS, (N_FEATURES,)), dtype=np.float32)
        source = read_source(x, (x[:, 0] > 0.5).astype(np.int64), None, schema)
        rounds = open_rounds(source, Shape(schema=schema), Execution(), KEY)
        opened(rounds.ask(model, query))
        (most,) = client.run(peak).values()
        rounds.close()
    n_rows = CHUNK_ROWS * N_CHUNKS
    source_chunk = 4 * CHUNK_ROWS * N_FEATURES
    promise = 2 * n_threads * source_chunk + n_rows * N_FEATURES + 9 * n_rows + 100 * MB
    assert most - idle < promise
