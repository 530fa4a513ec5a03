"""A fit in a process of its own: how much memory it used, and the least limit that the fit accepts.

    python tests/peak.py RECIPE N_FEATURES N_THREADS [N_CLASSES [BACKEND]]

prints both in bytes, as JSON. The machine pretends to have 64 cores, so that code which counts cores is noticed.
"""

import json
import os
import re
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.errors import PlanError
from dpgb_dask.testing import SeededNoise

CHUNK, N_CHUNKS, BLOCK = 1 << 14, 32, 1 << 15  # 16 blocks: work for as many threads
ROUNDS = {"fdp-tr-batch-25": 5, "fdp-tr-batch-100": 5, "dp-ebm": 2, "dp-ebm-classic": 2}


def peak():
    """Highest resident memory of this process so far, bytes."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024


def rows_of(k, n_features, n_classes):
    rng = np.random.default_rng(k)
    x = rng.random((CHUNK, n_features), np.float32)
    y = np.minimum((x[:, 0] + x[:, -1]) * n_classes / 2, n_classes - 1)
    return x, y.astype(np.int64)


def data(n_features, n_classes):
    def part(j):
        return lambda block_info=None: rows_of(
            block_info[None]["chunk-location"][0], n_features, n_classes
        )[j]

    chunks = (CHUNK,) * N_CHUNKS
    x = da.map_blocks(part(0), chunks=(chunks, (n_features,)), dtype=np.float32)
    return x, da.map_blocks(part(1), chunks=(chunks,), dtype=np.int64)


def run(recipe, n_features, n_threads, n_classes=2, backend="local"):
    n_features, n_threads, n_classes = int(n_features), int(n_threads), int(n_classes)
    schema = Schema({f"f{j}": (0, 1) for j in range(n_features)}, classes=list(range(n_classes)))
    options = {"schema": schema, "epsilon": 8.0, "delta": 1e-6, "recipe": recipe, "random_state": 0}
    options |= {"n_estimators": ROUNDS.get(recipe, 2 if recipe != "auto" else 4)}

    def fit(limit):
        model = DPGBClassifier(noise=SeededNoise(0), memory_limit=limit, **options)
        config = {"n-threads": n_threads, "backend": backend, "block-rows": BLOCK}
        with dask.config.set({f"dpgb-dask.{key}": value for key, value in config.items()}):
            model.fit(*data(n_features, n_classes))

    try:
        fit("1MiB")
    except PlanError as error:
        least = int(re.search(r"at least (\d+) ", str(error))[1])
    fit(least)
    return least


if __name__ == "__main__":
    os.cpu_count = lambda: 64
    if "tasks" in sys.argv:
        with (
            LocalCluster(n_workers=1, threads_per_worker=4, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            least = run(*sys.argv[1:])
            peaks = [peak(), *client.run(peak).values()]
    else:
        least = run(*sys.argv[1:])
        peaks = [peak()]
    sys.stdout.write(json.dumps({"least": least, "peak": max(peaks)}) + "\n")
