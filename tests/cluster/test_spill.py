"""A worker that is short of memory spills results to disk: a shard on scratch comes back unchanged."""

import gc

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from small_fits import estimator, rows

from dpgb_dask.private.rounds import worker_tasks
from dpgb_dask.testing import SeededNoise

READS: list[int] = []


def read(_, x=None, block_info=None):
    k = block_info[None]["chunk-location"][0]
    READS.append(k)
    return x[k * 200 : (k + 1) * 200]


def spill(dask_worker):
    """Do as Dask does above its memory target: write all results in memory to disk, the oldest first."""
    shards = [key for key in dask_worker.data.fast if str(key).startswith("dpgb-shard")]
    while dask_worker.data.fast:
        dask_worker.data.evict()
    return len(shards)


@pytest.mark.parametrize(
    ("cache", "backend"),
    [
        ("disk", "tasks"),
        pytest.param("memory", "comms", marks=pytest.mark.slow),
        pytest.param("disk", "comms", marks=pytest.mark.slow),
        pytest.param("memory", "tasks", marks=pytest.mark.slow),
    ],
)
def test_a_spilled_shard_comes_back(cache, backend):
    x, y = rows()
    n = len(x)
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    table = da.zeros((n, x.shape[1] + 1), chunks=(200, -1)).map_blocks(
        read, x=np.column_stack([x, y]), dtype=float, meta=np.empty((0, 0))
    )
    seen = []

    def model(*callbacks):
        READS.clear()
        return estimator("auto", noise=SeededNoise(3), cache=cache, callbacks=callbacks).fit(
            table[:, :-1], table[:, -1]
        )

    with (
        dask.config.set({"dpgb-dask.backend": backend}),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address=":0",
            memory_limit="4GiB",
        ) as cluster,
        Client(cluster) as client,
    ):
        calm = model()
        n_reads = len(READS)
        spilled = model(lambda *_: seen.append(sum(client.run(spill).values())))
        assert len(READS) == n_reads  # no row was read again
    assert max(seen) > 0
    gc.collect()
    assert not worker_tasks.SET_ASIDE
    np.testing.assert_array_equal(
        calm.decision_function(x.astype(float)), spilled.decision_function(x.astype(float))
    )
