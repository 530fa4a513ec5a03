"""A worker's peak memory stays within its promise, with codes in memory and with codes above ``memory_limit``."""

import os
import re
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from private.cases import KEY, gradient_of, opened
from thinned import thinned
from waiting import comes_true

from dpgb_dask.contracts.model import FeatureBins, Model, Splits, TreeEnsemble
from dpgb_dask.contracts.plan import Execution, Shape
from dpgb_dask.contracts.queries import (
    MainSumsQuery,
    NodeSumsQuery,
    TreeSumsQuery,
)
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.rounds import open_rounds
from dpgb_dask.private.rounds.tasks import WarmKernels

N_FEATURES, CHUNK_ROWS, N_CHUNKS = 16, 400_000, 12  # 25 MB of float32 each, 300 MB together
MB = 1 << 20


def chunk(block_info=None):
    rng = np.random.default_rng(block_info[None]["chunk-location"][0])
    return rng.random((CHUNK_ROWS, N_FEATURES), np.float32)


def bytes_on_scratch():
    """Total size of this process's files without a name."""
    files = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sum(f.stat().st_size for f in files if f.is_symlink() and "(deleted)" in os.readlink(f))


def peak():
    """Highest resident memory of this process so far, bytes."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")


@linux
@pytest.mark.slow
@pytest.mark.parametrize("n_threads", [1, 2])
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


LOADING, SEEN = [], []


def slow_chunk(meets):
    """A chunk that counts the chunks that are being loaded at the same time; where two may meet, they wait for it."""
    LOADING.append(1)
    if meets:
        comes_true(lambda: SEEN or len(LOADING) > 1)
    else:
        time.sleep(0.01)
    SEEN.append(len(LOADING))
    LOADING.pop()
    return np.zeros((50, 1))


@pytest.mark.parametrize("backend", thinned(["tasks", "local"], every=2))
@pytest.mark.parametrize("limit", [None, 1 << 40])
def test_a_process_with_a_limit_loads_one_chunk_at_a_time(backend, limit):
    SEEN.clear()
    schema = Schema({"x": (0, 9)}, classes=[0, 1])
    x = da.map_blocks(
        slow_chunk,
        meets=limit is None,
        chunks=((50,) * 12, (1,)),
        dtype=float,
        meta=np.empty((0, 0)),
    )
    source = read_source(x, da.zeros(600, chunks=50), None, schema)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=4, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        execution = Execution(backend=backend, memory_limit=limit, n_threads=4)
        rounds = open_rounds(source, Shape(schema=schema), execution, KEY)
        rounds.fingerprint()
        rounds.close()
    assert len(SEEN) == 12
    assert (max(SEEN) == 1) is (limit is not None)  # without a limit, some were loaded together


WIDE_FEATURES, WIDE_ROWS, WIDE_CHUNKS = (
    100,
    1 << 15,
    245,
)  # 13 MB of float32 each; 800 MB of codes together
LIMIT = 250 * MB


@lru_cache
def wide_rows():
    """Made once in a process, because making them takes longer than everything else."""
    return np.random.default_rng(0).random((WIDE_ROWS, WIDE_FEATURES), np.float32)


def wide_chunk(block_info=None):
    return np.roll(wide_rows(), block_info[None]["chunk-location"][0], axis=0)


def wide_label(block_info=None):
    return np.roll(wide_rows()[:, 0] > 0.5, block_info[None]["chunk-location"][0]).astype(np.int64)


@linux
@pytest.mark.slow
def test_codes_above_the_limit_are_trained_in_an_idle_workers_memory_and_a_little(tmp_path):
    schema = Schema({f"f{j}": (0, 1) for j in range(WIDE_FEATURES)}, classes=[0, 1])
    bins = tuple(FeatureBins(np.linspace(0, 1, 30), None, 32) for _ in range(WIDE_FEATURES))
    tables = tuple(np.zeros((32, 1), np.int32) for _ in range(WIDE_FEATURES))
    model = Model(bins, np.zeros(1, np.int32), tables)
    asked = {"label": "", "price": 1, "gradient": gradient_of("binary"), "n_scores": 1}
    rng = np.random.default_rng(0)
    trees = Splits.plain(
        rng.integers(0, WIDE_FEATURES, (25, 15)).astype(np.uint16),
        rng.integers(4, 28, (25, 15)).astype(np.uint8),
    )
    grown = replace(model, trees=TreeEnsemble(trees, np.ones((1, 25, 16), np.int32)))
    level = {"features": np.arange(WIDE_FEATURES, dtype=np.uint16), "sizes": (32,) * WIDE_FEATURES}
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=True,
            dashboard_address=":0",
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(WarmKernels())
        time.sleep(0.2)
        (idle,) = client.run(peak).values()
        x = da.map_blocks(
            wide_chunk, chunks=((WIDE_ROWS,) * WIDE_CHUNKS, (WIDE_FEATURES,)), dtype=np.float32
        )
        y = da.map_blocks(wide_label, chunks=((WIDE_ROWS,) * WIDE_CHUNKS,), dtype=np.int64)
        source = read_source(x, y, None, schema)
        execution = Execution(memory_limit=idle + LIMIT)
        rounds = open_rounds(source, Shape(schema=schema), execution, KEY, bins=bins)
        sums = [
            opened(rounds.ask(asking, query))
            for asking, query in (
                (model, TreeSumsQuery(**asked, splits=trees)),
                (grown, NodeSumsQuery(**asked, **level, splits=trees.part(0, 1))),
            )
        ]
        (most,) = client.run(peak).values()
        (held,) = client.run(bytes_on_scratch).values()
        rounds.close()
    n_rows = WIDE_ROWS * WIDE_CHUNKS
    assert held > 0.8 * n_rows * WIDE_FEATURES
    assert all(s.any() for s in sums)
    assert most <= idle + LIMIT
