"""What several chunks need is computed once in a pass, and kept only while one needs it."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from private.cases import KEY, ROWS_KEY, model_of, opened, queries_of, rows_of, shape_of
from thinned import one_of_each

from dpgb_dask import Schema
from dpgb_dask.contracts.plan import Execution
from dpgb_dask.errors import ChunkError
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.reading.rows import Chunk
from dpgb_dask.private.reading.shared_tasks import ChunkTasks, Pass
from dpgb_dask.private.rounds import open_rounds

CHUNKS, ROWS = 12, 50
SCHEMA = Schema({"a": (-3, 3), "b": (0, 1)}, classes=[0, 1], target="y")


class Reads:
    """A reader that counts the parts that it reads."""

    def __init__(self):
        self.count, self._lock, self._id = 0, threading.Lock(), uuid.uuid4().hex

    def __dask_tokenize__(self):
        return self._id

    def frame(self, k):
        with self._lock:
            self.count += 1
        rng = np.random.default_rng(k)
        a = rng.normal(size=ROWS)
        return pd.DataFrame({"a": a, "b": rng.random(ROWS), "y": (a > 0).astype(int)})

    def block(self, k):
        return self.frame(k).to_numpy()


def frames(reads):
    meta = Reads().frame(0)[:0]
    rows = dd.from_map(reads.frame, range(CHUNKS), meta=meta)
    matrix = da.concatenate(
        [da.from_delayed(delayed(reads.block)(k), (ROWS, 3), np.float64) for k in range(CHUNKS)]
    )
    wide = da.concatenate([matrix[:, :1], matrix[:, 1:]], axis=1)
    return {
        "as read": rows,
        "less their mean": rows.assign(a=rows.a - rows.a.mean()),
        "less two means": rows.assign(a=(c := rows.a - rows.a.mean()) / c.std(), b=c),
        "shuffled": rows.shuffle("b"),
        "shuffled by tasks": rows.shuffle("b", shuffle_method="tasks", max_branch=3),
        "divided": rows.set_index("a", drop=False, divisions=[-9, 0, 9]),
        "smaller partitions": rows.repartition(npartitions=3 * CHUNKS),
        "other chunks": (matrix.rechunk((70, 3))[:, :2], matrix.rechunk((70, 3))[:, 2]),
        "chunks of columns": (wide.rechunk((20, 3))[:, :2], wide.rechunk((20, 3))[:, 2]),
        "a matrix": (matrix[:, :2], matrix[:, 2]),
    }


KINDS = list(frames(Reads()))


def source_of(given):
    X, y = given if isinstance(given, tuple) else (given[["a", "b"]], given["y"])
    return read_source(X, y, None, SCHEMA)


def parts_of(rows):
    return [np.asarray(rows.x), np.asarray(rows.y)]


@pytest.mark.parametrize(("kind", "n_threads"), one_of_each(product(KINDS, [1, 4])))
def test_every_part_is_read_once(kind, n_threads):
    given = frames(Reads())[kind]
    X, y = given if isinstance(given, tuple) else (given[["a", "b"]], given["y"])
    want = [np.asarray(part.compute(scheduler="sync")) for part in (X, y)]
    reads = Reads()
    source = source_of(frames(reads)[kind])
    reads.count = 0  # sort_values looks for its divisions before
    here = Pass(ChunkTasks(source.chunks))
    with ThreadPoolExecutor(n_threads) as pool:
        loaded = list(pool.map(here.load, range(len(source.chunks))))
    assert reads.count == CHUNKS
    assert not here._values
    for k in range(2):
        got = np.concatenate([parts_of(rows)[k] for rows in loaded])
        if kind.startswith("shuffled"):  # the order within a partition may differ
            got, want[k] = np.sort(got, axis=0), np.sort(want[k], axis=0)
        np.testing.assert_array_equal(got, want[k])


@pytest.mark.parametrize("room", [None, 1 << 40])
def test_a_fit_reads_every_part_once_in_a_pass(room):
    reads = Reads()
    source = source_of(frames(reads)["less their mean"])
    shape = replace(shape_of("binary"), schema=SCHEMA)
    execution = Execution(backend="local", n_threads=2, memory_limit=room)
    rounds = open_rounds(source, shape, execution, KEY, ROWS_KEY)
    reads.count = 0
    rounds.fingerprint()
    assert reads.count == 2 * CHUNKS  # lengths, then rows
    rounds.close()


@pytest.mark.parametrize("kind", ["as read", "a matrix"])
def test_what_one_chunk_needs_is_its_own(kind):
    assert not any(ChunkTasks(source_of(frames(Reads())[kind]).chunks).shared)


def test_values_in_a_graph_are_not_computed():
    x, y, _ = rows_of("binary")
    x = da.from_array(x.to_numpy(), chunks=(400, 3))
    source = read_source(x, da.from_array(y, chunks=400), None, shape_of("binary").schema)
    assert len(source.chunks) > 2
    assert not any(ChunkTasks(source.chunks).shared)


def test_a_value_is_dropped_after_its_last_chunk():
    source = source_of(frames(Reads())["other chunks"])
    here = Pass(ChunkTasks(source.chunks))
    for number in range(len(source.chunks)):
        here.load(number)
        assert len(here._values) <= 2  # the parts that the next chunk begins with


def test_a_chunk_that_is_not_loaded_keeps_no_value():
    source = source_of(frames(Reads())["less their mean"])
    here = Pass(ChunkTasks(source.chunks))
    here.load(0)
    assert len(here._values) > CHUNKS  # the mean, and what the other chunks begin with
    for number in range(1, CHUNKS):
        here.skip(number)
    assert not here._values


@pytest.mark.parametrize("n_threads", [1, 4])
def test_an_error_reaches_every_chunk_that_needs_the_task(n_threads):
    def fail():
        raise ValueError("salary 123456")

    shared = delayed(fail)()
    frame = delayed(lambda _, k: Reads().frame(k))
    parts = [frame(shared, k) for k in range(4)]
    meta = Reads().frame(0)[:0]
    rows = dd.from_delayed(parts, meta=meta, verify_meta=False)
    here = Pass(ChunkTasks(source_of(rows).chunks))
    for number in range(4):
        with pytest.raises(ValueError, match="123456"):
            here.load(number)
    shape = replace(shape_of("binary"), schema=SCHEMA)
    execution = Execution(backend="local", n_threads=n_threads)
    rounds = open_rounds(source_of(rows), shape, execution, KEY)
    with pytest.raises(ChunkError, match="ValueError") as caught:
        rounds.fingerprint()
    assert "123456" not in str(caught.value)
    rounds.close()


@pytest.mark.parametrize("n_threads", [1, 3])
def test_shared_tasks_give_the_same_sums(n_threads):
    x, y, _ = rows_of("binary")
    shape = shape_of("binary", max_weight=3, weight_bits=2)
    table = dd.from_pandas(x.assign(target=y), npartitions=7)
    table = table.assign(**{name: table[name] + 0 * table[name].sum() for name in x.columns[:1]})
    plain = dd.from_pandas(x.assign(target=y), npartitions=7)
    answers = []
    for frame in (table, plain):
        source = read_source(frame[list(x.columns)], frame["target"], None, shape.schema)
        execution = Execution(backend="local", n_threads=n_threads)
        rounds = open_rounds(source, shape, execution, KEY, ROWS_KEY)
        queries = queries_of("binary", 2)
        answers.append([opened(rounds.ask(model_of("binary"), q)) for q in queries.values()])
        rounds.close()
    for one, other in zip(*answers, strict=True):
        np.testing.assert_array_equal(one, other)


def test_chunks_without_tasks_are_returned_as_they_are():
    chunk = Chunk(np.zeros((3, 2)), np.zeros(3), None)
    assert Pass(ChunkTasks([chunk])).load(0).x is chunk.x
