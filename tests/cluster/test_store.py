"""Shards made again and resumed fits read the Zarr store where it is up to date, and the source elsewhere."""

import os
import time
from collections import Counter
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from private.cases import (
    BINS,
    GRID_BINS,
    KEY,
    ROWS_KEY,
    model_of,
    opened,
    queries_of,
    rows_of,
    shape_of,
)
from small_fits import chunked, estimator, rows
from thinned import one_of_each

from cluster.test_faults import open_files
from dpgb_dask.contracts.plan import Execution
from dpgb_dask.errors import ChunkError
from dpgb_dask.private.keeping.store import Store, remove_saved
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.rounds import open_rounds
from dpgb_dask.testing import SeededNoise

N, CHUNK = 3000, 500
READS = Counter()
SHIFT = {0: 0.0}  # a source that changes adds this


@pytest.fixture(scope="module")
def client():
    with (
        # a shard that another worker takes reads the source again
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def counted(_, table=None, block_info=None):
    k = block_info[None]["chunk-location"][0]
    READS[k] += 1
    return table[k * CHUNK : (k + 1) * CHUNK] + SHIFT[0]


def opened_on(table, cache, backend, bins, *, refines=False):
    shape = shape_of("binary")
    rows = da.zeros((N, 4), chunks=(CHUNK, 4)).map_blocks(
        counted, table=table, dtype=float, meta=np.empty((0, 0))
    )
    source = read_source(rows[:, :3], rows[:, 3], None, shape.schema)
    execution = Execution(backend=backend, cache=cache)
    return open_rounds(source, shape, execution, KEY, ROWS_KEY, bins=bins, refines=refines)


def table_of(seed=0):
    x, y, _ = rows_of("binary", N, seed)
    return np.column_stack([x.to_numpy(), y])


def answers(rounds):
    queries, model = queries_of("binary"), model_of("binary")
    return [opened(rounds.ask(model, queries[name])) for name in ("main", "part", "nodes")]


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("backend", "known"),
    [
        ("local", None),
        ("tasks", BINS),
        pytest.param("local", BINS, marks=pytest.mark.slow),
        pytest.param("tasks", None, marks=pytest.mark.slow),
    ],
)
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


# ---- cells that wait for bins ----------------------------------------------------------------------------------------


CELLS_MODEL = replace(model_of("binary"), bins=GRID_BINS)


def answers_from_cells(rounds):
    queries = queries_of("binary")
    return [opened(rounds.ask(CELLS_MODEL, queries[name])) for name in ("main", "part", "nodes")]


def check_answers(rounds):
    expected = opened_on(table_of(), "memory", "local", GRID_BINS)
    reads = READS.copy()
    for got, right in zip(answers_from_cells(rounds), answers_from_cells(expected), strict=True):
        np.testing.assert_array_equal(got, right)
    expected.close()
    rounds.close()
    return [
        READS[k] - reads[k] - 1 for k in range(N // CHUNK)
    ]  # without the reads of the other rounds


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("cache", "room", "n_more", "backend"),
    one_of_each(
        (case, backend)
        for case in (
            ("auto", 1 << 30, 0),
            ("memory", 1 << 30, 0),
            ("auto", 0, 1),
            ("memory", 0, 1),
            ("disk", 0, 0),
            ("{}", 0, 0),
            ("{}/codes.zarr", 0, 0),
        )
        for backend in ("local", "tasks")
    ),
)
def test_rows_are_read_once_while_there_is_room_for_their_cells_or_a_store(
    backend, cache, room, n_more, tmp_path, monkeypatch
):
    monkeypatch.setattr(Store, "_measure_room", lambda *_: room)
    rounds = opened_on(table_of(), cache.format(tmp_path), backend, None)
    rounds.fingerprint()
    assert check_answers(rounds) == [n_more] * (N // CHUNK)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("cache", "room", "n_reads", "backend"),
    one_of_each(
        (case, backend)
        for case in (("auto", 1 << 30, 1), ("disk", 0, 1), ("auto", 0, 3))
        for backend in ("tasks", "local")
    ),
)
def test_rows_are_read_once_for_all_bins_that_follow(backend, cache, room, n_reads, monkeypatch):
    monkeypatch.setattr(Store, "_measure_room", lambda *_: room)
    rounds = opened_on(table_of(), cache, backend, BINS, refines=True)
    expected = answers(opened_on(table_of(), "memory", "local", BINS))
    READS.clear()
    rounds.fingerprint()
    for got, right in zip(answers(rounds), expected, strict=True):
        np.testing.assert_array_equal(got, right)
    check_answers(rounds)  # with other bins; the comparison itself reads the source once
    assert [READS[k] - 1 for k in range(N // CHUNK)] == [n_reads] * (N // CHUNK)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(("room", "by_comms"), [(1 << 30, False), (0, True)])
def test_shards_on_scratch_are_asked_where_they_lie(room, by_comms, monkeypatch):
    monkeypatch.setattr(Store, "_measure_room", lambda *_: room)
    rounds = opened_on(table_of(), "auto", "auto", None)
    answers_from_cells(rounds)
    assert rounds._by_comms is by_comms
    check_answers(rounds)


def test_only_chunks_without_room_are_read_again(monkeypatch):
    monkeypatch.setattr(Store, "_measure_room", lambda *_: 3 * CHUNK * 21)  # for some chunks
    rounds = opened_on(table_of(), "auto", "local", None)
    rounds.fingerprint()
    assert set(check_answers(rounds)) == {0, 1}


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("backend", ["local", "tasks"])
def test_damaged_cells_are_read_again(backend, tmp_path, monkeypatch):
    monkeypatch.setattr(Store, "_measure_room", lambda *_: 0)
    rounds = opened_on(table_of(), str(tmp_path), backend, None)
    rounds.fingerprint()
    for file in open_files(tmp_path):
        os.pwrite(file, b"\x55" * os.fstat(file).st_size, 0)
    assert check_answers(rounds) == [1] * (N // CHUNK)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_cells_of_a_worker_that_left_are_read_again_and_checked(shift, monkeypatch):
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        rounds = opened_on(table_of(), "auto", "tasks", None)
        rounds.fingerprint()
        before = READS.total()
        monkeypatch.setitem(SHIFT, 0, shift)
        cluster.scale(1)
        while len(client.nthreads()) > 1:
            time.sleep(0.02)
        if shift:
            with pytest.raises(ChunkError, match="changed while it was being read"):
                answers_from_cells(rounds)
            rounds.close()
        else:
            check_answers(rounds)
            assert READS.total() - before > N // CHUNK  # more reads than those of the other rounds


class Stop(Exception):
    """An exception of the user's."""


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
