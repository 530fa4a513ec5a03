"""Shards that are made again, and fits that go on, read a Zarr store where it is current, and the source elsewhere."""

from collections import Counter

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from private.cases import BINS, KEY, ROWS_KEY, model_of, opened, queries_of, rows_of, shape_of
from small_fits import chunked, estimator, rows

from dpgb_dask.contracts.plan import Execution
from dpgb_dask.private.ingest import read_source
from dpgb_dask.private.rounds import open_rounds
from dpgb_dask.private.store import remove_saved
from dpgb_dask.testing import SeededNoise

N, CHUNK = 3000, 500
READS = Counter()


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def counted(_, table=None, block_info=None):
    k = block_info[None]["chunk-location"][0]
    READS[k] += 1
    return table[k * CHUNK : (k + 1) * CHUNK]


def opened_on(table, cache, backend, bins):
    shape = shape_of("binary")
    rows = da.zeros((N, 4), chunks=(CHUNK, 4)).map_blocks(
        counted, table=table, dtype=float, meta=np.empty((0, 0))
    )
    source = read_source(rows[:, :3], rows[:, 3], None, shape.schema)
    execution = Execution(backend=backend, cache=cache)
    return open_rounds(source, shape, execution, KEY, ROWS_KEY, bins=bins)


def table_of(seed=0):
    x, y, _ = rows_of("binary", N, seed)
    return np.column_stack([x.to_numpy(), y])


def answers(rounds):
    queries, model = queries_of("binary"), model_of("binary")
    return [opened(rounds.ask(model, queries[name])) for name in ("main", "part", "nodes")]


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("known", [None, BINS])
@pytest.mark.parametrize("backend", ["local", "tasks"])
def test_a_fit_that_goes_on_reads_its_store_in_place_of_the_source(backend, known, tmp_path):
    cache = str(tmp_path / "codes.zarr")
    table = table_of()
    with dask.config.set({"array.chunk-size": "128MiB"}):
        expected = answers(opened_on(table, "auto", backend, None))
        answers(opened_on(table, cache, backend, known))
        READS.clear()
        rounds = opened_on(table, cache, backend, None)
        rounds.fingerprint()
        before = READS.total()
        for got, right in zip(answers(rounds), expected, strict=True):
            np.testing.assert_array_equal(got, right)
        assert READS.total() == before
        changed = table.copy()
        changed[700, 0] += 1.0  # a row of chunk 1
        rounds = opened_on(changed, cache, backend, None)
        rounds.fingerprint()
        before = READS.copy()
        got = answers(rounds)
        assert set(READS - before) == {1}
        for one, right in zip(got, answers(opened_on(changed, "auto", backend, None)), strict=True):
            np.testing.assert_array_equal(one, right)
    remove_saved(cache, KEY)
    assert not list((tmp_path / "codes.zarr").iterdir())


class Stop(Exception):
    """A user's own."""


def stop(_stage, position, _total):
    if position == 5:
        raise Stop


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("lazy", [False, True])
def test_a_fit_that_ends_well_removes_what_it_kept_and_one_that_does_not_keeps_it(lazy, tmp_path):
    x, y = chunked() if lazy else rows()
    place = tmp_path / "codes.zarr"

    def fitted(**changes):
        return estimator("auto", noise=SeededNoise(0), **changes).fit(x, y)

    got, expected = (fitted(cache=cache).predict_proba(x) for cache in (str(place), "memory"))
    np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))
    assert place.is_dir()
    assert not list(place.iterdir())
    with pytest.raises(Stop):
        fitted(cache=str(place), callbacks=[stop])
    assert list(place.rglob("zarr.json"))
