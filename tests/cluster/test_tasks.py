"""Rounds on a cluster: the same sums as in this process, exactly once, whatever happens to workers."""

import asyncio
import gc
import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from dask.dataframe.utils import clear_known_categories
from distributed import Client, LocalCluster, get_client, rejoin, secede, worker_client
from distributed.diagnostics.plugin import SchedulerPlugin
from forms import labelled
from private.cases import (
    GRID_BINS,
    KEY,
    KINDS,
    ROWS_KEY,
    draw,
    model_of,
    opened,
    queries_of,
    rows_of,
    schema_of,
    shape_of,
    splits_of,
    unit_shape,
    upper,
)
from waiting import LONGEST, comes_true

from dpgb_dask import clients
from dpgb_dask.contracts.plan import Execution, Shape
from dpgb_dask.contracts.queries import CountQuery
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import ChunkError, PlanError, ShardError, StructureError
from dpgb_dask.kernels import cache
from dpgb_dask.private import rounds as rounds_package
from dpgb_dask.private.answering.shards import Shard
from dpgb_dask.private.reading.chunks import Surveyor
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.reading.rows import failed_to_load
from dpgb_dask.private.rounds import open_rounds, tasks, worker_tasks
from dpgb_dask.private.rounds.local import LocalRounds
from dpgb_dask.private.rounds.messages import Sender
from dpgb_dask.private.rounds.tasks import TaskRounds

WEIGHT = {"max_weight": 3, "weight_bits": 2}
CLUSTER = {"threads_per_worker": 1, "dashboard_address": ":0"}


def ask_all(rounds, kind):
    model = model_of(kind)
    return {name: opened(rounds.ask(model, q)) for name, q in queries_of(kind, 2).items()}


def rounds_of(kind, chunks=400, *, refines=False, **execution):
    x, y, w = rows_of(kind)
    if chunks is not None:
        x = da.from_array(x.to_numpy(), chunks=(chunks, 3))
        y, w = da.from_array(y, chunks=chunks), da.from_array(w, chunks=chunks)
    shape = shape_of(kind, **WEIGHT)
    source = read_source(x, y, w, shape.schema)
    return open_rounds(source, shape, Execution(**execution), KEY, ROWS_KEY, refines=refines)


def local_sums(kind):
    rounds = rounds_of(kind, None)
    assert isinstance(rounds, LocalRounds)
    try:
        return ask_all(rounds, kind), rounds.fingerprint()
    finally:
        rounds.close()


def check_same(rounds, kind):
    sums, fingerprint = local_sums(kind)
    for name, answer in ask_all(rounds, kind).items():
        np.testing.assert_array_equal(answer, sums[name], err_msg=name)
    assert rounds.fingerprint() == fingerprint


def cut():
    """Return each way to cut rows with each kind of target; one kind of each way is quick, in turn."""
    for j, ways in enumerate([(3000, 16), (400, 2), (50, 5), (None, 16)]):
        for k, kind in enumerate(KINDS):
            quick = k == j % len(KINDS)
            yield pytest.param(*ways, kind, marks=() if quick else pytest.mark.slow)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(("chunks", "fan_in", "kind"), list(cut()))
def test_sums_are_the_same_as_in_this_process(chunks, fan_in, kind):
    rounds = rounds_of(kind, chunks, fan_in=fan_in, backend="tasks")
    assert isinstance(rounds, TaskRounds)
    check_same(rounds, kind)
    rounds.close()


@pytest.mark.usefixtures("client")
def test_a_frame_with_empty_partitions_gives_the_same_sums():
    x, y, w = rows_of("binary")
    table = dd.from_pandas(x.assign(target=y, w=w), npartitions=5)
    table = dd.concat([table, table.partitions[:1].query("a > 99")])
    shape = shape_of("binary", **WEIGHT)
    source = read_source(table[["a", "b", "c"]], table["target"], table["w"], shape.schema)
    rounds = open_rounds(source, shape, Execution(), KEY, ROWS_KEY)
    check_same(rounds, "binary")
    rounds.close()


@pytest.mark.usefixtures("client")
def test_a_persisted_array_gives_the_same_sums():
    x, y, w = rows_of("binary")
    x = da.from_array(x.to_numpy(), chunks=(500, 3)).persist()
    shape = shape_of("binary", **WEIGHT)
    source = read_source(x, y, w, shape.schema)
    rounds = open_rounds(source, shape, Execution(), KEY, ROWS_KEY)
    check_same(rounds, "binary")
    rounds.close()


def test_annotations_around_a_fit_place_none_of_its_tasks(client):
    def annotated():
        with dask.annotate(workers=["tcp://elsewhere:1"], resources={"GPU": 1}):
            rounds = rounds_of("binary")
            check_same(rounds, "binary")
            rounds.close()

    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(annotated).result(LONGEST)
        except TimeoutError:
            client.close()  # the tasks would wait for ever
            raise


@pytest.mark.usefixtures("client")
def test_replies_added_by_tasks_give_the_same_sums(monkeypatch):
    monkeypatch.setattr(tasks, "GATHER_WORKERS", 1)
    monkeypatch.setattr(tasks, "GATHER_BYTES", 0)
    rounds = rounds_of("binary", fan_in=2)
    check_same(rounds, "binary")
    rounds.close()


@pytest.mark.usefixtures("client")
def test_a_large_message_gives_the_same_sums(monkeypatch):
    rounds = rounds_of("binary", None, backend="tasks")
    monkeypatch.setattr(tasks, "GRAPH_BYTES", 0)
    check_same(rounds, "binary")
    rounds.close()


@pytest.mark.usefixtures("client")
def test_a_large_message_is_a_task_of_ours_and_is_sent_without_a_warning(monkeypatch):
    """A closing worker frees what is under our keys; the size of a message is no matter of the caller's."""
    rounds = rounds_of("binary", None, backend="tasks")
    rounds.ask(model_of("binary"), queries_of("binary", 2)["main"])
    monkeypatch.setattr(tasks, "GRAPH_BYTES", 0)
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 kB"}):
        (message,) = rounds._keywords(bytes(200_000)).values()
    assert message.key.startswith("dpgb-")
    assert message.result(LONGEST) == bytes(200_000)
    rounds.close()


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("backend", ["auto", "tasks"])
def test_units_give_the_same_sums(backend):
    x, y, _ = rows_of("binary")
    table = x.assign(target=y, person=np.arange(len(y)) ** 2 % 801)
    shape = unit_shape(schema_of("binary"), 2, 4)
    one = read_source(table, table["target"], None, shape.schema, "person")
    local = open_rounds(one, shape, Execution(backend="local"), KEY, ROWS_KEY)
    if backend == "auto":
        table = dd.from_pandas(table, npartitions=7)
    source = read_source(table, table["target"], None, shape.schema, "person")
    execution = Execution(backend=backend, fan_in=3)
    rounds = open_rounds(source, shape, execution, KEY, ROWS_KEY)
    assert isinstance(rounds, TaskRounds)
    for query in queries_of("binary", 4).values():
        answers = [opened(r.ask(model_of("binary"), query)) for r in (rounds, local)]
        np.testing.assert_array_equal(*answers)
    assert rounds.fingerprint() == local.fingerprint()
    rounds.close()
    local.close()


@pytest.mark.usefixtures("client")
def test_inputs_in_memory_stay_in_this_process():
    rounds = rounds_of("binary", None)
    assert isinstance(rounds, LocalRounds)
    rounds.close()


def test_one_shard_per_worker_and_each_chunk_in_one():
    with (
        # a worker that has nothing to do yet may take both
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        LocalCluster(n_workers=2, processes=False, **CLUSTER) as cluster,
        Client(cluster) as client,
    ):
        rounds = rounds_of("binary", 100)
        ask_all(rounds, "binary")
        shards = list(rounds._shards.values())
        made = client.gather(shards)
        assert [shard.number for shard in made] == [0, 1]
        assert sorted(k for shard in made for k in shard.chunks) == list(range(30))
        holders = client.who_has(shards)
        assert len({worker for workers in holders.values() for worker in workers}) == 2
        rounds.close()


def test_close_leaves_nothing_on_the_cluster(client):
    rounds = rounds_of("binary")
    ask_all(rounds, "binary")
    rounds.close()
    assert comes_true(
        lambda: not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    )


def test_a_closing_worker_holds_nothing_of_ours():
    with (
        LocalCluster(n_workers=1, processes=False, **CLUSTER) as cluster,
        Client(cluster) as client,
    ):
        (worker,) = cluster.workers.values()
        rounds = rounds_of("binary", backend="tasks")
        ask_all(rounds, "binary")
        assert len(worker.data)
        strange = [key for key in worker.data if not str(key).startswith(("dpgb-", "array-"))]
        assert not strange
        rounds.close()
        assert client.status == "running"


@pytest.mark.usefixtures("client")
def test_surveys_do_not_wait_with_the_rows():
    rounds = rounds_of("binary")
    rounds.fingerprint()
    for _, part in rounds._unbinned:
        survey = part.result().survey
        assert len(survey.sums) == 0
        assert survey.marks
    rounds.close()


@pytest.mark.usefixtures("client")
def test_a_level_is_the_same_as_in_this_process():
    tree, model = splits_of(1, depth=4, seed=12), model_of("binary")
    rounds, alone = rounds_of("binary"), rounds_of("binary", None)
    query = queries_of("binary", 2)["nodes"]
    for depth in range(5):
        for rows in (None, draw("sample", 7)):
            level = replace(query, splits=upper(tree, depth), rows=rows)
            got, expected = (opened(r.ask(model, level)) for r in (rounds, alone))
            np.testing.assert_array_equal(got, expected)
    alone.close()
    rounds.close()


@pytest.mark.usefixtures("client")
def test_what_encodes_a_chunk_tells_no_length_in_a_log():
    rounds = rounds_of("binary", 1000)
    ask_all(rounds, "binary")
    assert rounds._reading.starts.tolist() == [0, 1000, 2000, 3000]
    assert "1000" not in repr(rounds._job).replace(rounds._job.fit, "a random name")
    rounds.close()


class Made(SchedulerPlugin):
    """Notes the tasks whose results came to be."""

    name = "made"

    def __init__(self):
        self.keys = set()

    def transition(self, key, start, finish, *_, **__):
        if finish == "memory" and start != "memory":
            self.keys.add(key)


def sources(folder, n):
    """The same rows as each kind of collection, in n chunks."""
    x, y, _ = rows_of("binary", 40 * n)
    array, label = da.from_array(x.to_numpy(), (40, 3)), da.from_array(y, 40)
    yield array, label
    array.to_zarr(f"{folder}/x.zarr")
    label.to_zarr(f"{folder}/y.zarr")
    yield da.from_zarr(f"{folder}/x.zarr"), da.from_zarr(f"{folder}/y.zarr")
    frame = dd.from_pandas(x.assign(target=y), npartitions=n)
    yield frame[["a", "b", "c"]], frame["target"]


@pytest.mark.slow
def test_a_chunk_costs_the_scheduler_two_tasks_at_most(client, tmp_path):
    n = 48
    query = queries_of("binary")["count"]
    for k, (x, y) in enumerate(sources(tmp_path, n)):
        rounds = open_rounds(
            read_source(x, y, None, shape_of("binary").schema),
            shape_of("binary"),
            Execution(backend="tasks"),
            KEY,
        )
        made = Made()
        client.cluster.scheduler.add_plugin(made)
        rounds.ask(None, query)
        model = replace(model_of("binary"), bins=GRID_BINS)
        rounds.ask(model, queries_of("binary")["main"])  # from the survey to the first round
        client.cluster.scheduler.remove_plugin("made")
        assert n < len(made.keys) <= 2 * n, (k, len(made.keys) / n)
        rounds.close()


def test_names_of_tasks_hold_no_count(client):
    rounds = rounds_of("binary", 3000)
    ask_all(rounds, "binary")
    names = client.run_on_scheduler(lambda dask_scheduler: " ".join(map(str, dask_scheduler.tasks)))
    ours = [name for name in names.split() if name.startswith("dpgb")]
    assert ours
    assert not any("-3000" in name for name in ours)
    rounds.close()


# ---- graphs ----------------------------------------------------------------------------------------------------------


def unknown_categories(values):
    """One partition whose categories Dask does not know."""
    part = pd.DataFrame({"x": pd.Categorical(values)})
    meta = clear_known_categories(part.iloc[:0])
    return dd.from_delayed([delayed(part)], meta=meta, verify_meta=False)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("values", [["secret", "u", "v"], ["secret", "u", 1], [1.0, 2.0, 3.0]])
def test_a_partition_whose_dtype_depends_on_its_values_does_not_raise(values):
    shape = Shape(schema=Schema({"x": (0, 1)}, classes=[0, 1]))
    y = dd.from_pandas(pd.Series([0, 1, 0]), npartitions=1)
    source = read_source(unknown_categories(values), y, None, shape.schema)
    sums = []
    for backend in ("tasks", "local"):
        rounds = open_rounds(source, shape, Execution(backend=backend), KEY)
        sums.append(opened(rounds.ask(None, CountQuery(label="", price=1))))
        rounds.close()
    assert [part.tolist() for part in sums] == [[3], [3]]


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("backend", ["local", "tasks"])
@pytest.mark.parametrize("first", ["fingerprint", "ask"])
def test_what_rows_need_is_compiled_without_a_word(backend, first, monkeypatch):
    """Which kernels they need depends on them; what is named before is compiled before they are read."""
    events = []
    for module in (rounds_package, tasks):
        monkeypatch.setattr(module, "warm", lambda names: events.append(("warm", names)))

    def watched(work):
        def seen(*args, **kwargs):
            events.append(("rows", bool(cache._QUIET)))
            return work(*args, **kwargs)

        return seen

    monkeypatch.setattr(Surveyor, "add_strip", watched(Surveyor.add_strip))
    monkeypatch.setattr(Shard, "answer", watched(Shard.answer))
    x, y, _ = rows_of("binary")
    source, shape = read_source(x, y, None, shape_of("binary").schema), shape_of("binary")
    rounds = open_rounds(source, shape, Execution(backend=backend), KEY, kernels=("main sums",))
    if first == "fingerprint":
        rounds.fingerprint()
    rounds.ask(model_of("binary"), queries_of("binary")["main"])
    rounds.close()
    assert events[0] == ("warm", ("main sums", *source.kernels))
    assert {*events[1:]} == {("rows", True)}
    assert not cache._QUIET


def test_a_worker_looks_for_no_garbage_as_it_ends_however_many_fits_it_served(monkeypatch):
    registered = []
    handlers = SimpleNamespace(
        register=registered.append,
        unregister=lambda function: registered.remove(function) if registered else None,
    )
    monkeypatch.setattr(worker_tasks, "atexit", handlers)
    monkeypatch.setattr(worker_tasks, "warm", lambda _: None)
    for _ in range(3):
        asyncio.run(worker_tasks.WarmKernels(()).setup(None))
    assert registered == [gc.freeze]


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("chunks", [10_000, None])
def test_no_warning_tells_the_size_of_rows_in_a_graph(chunks):
    """The limit is set below the size of the rows; a warning would be an error here."""
    x, y, w = rows_of("binary", 30_000)
    x = x.to_numpy() if chunks is None else da.from_array(x.to_numpy(), chunks=(chunks, 3))
    shape = shape_of("binary", **WEIGHT)
    limit = {"distributed.admin.large-graph-warning-threshold": "200 kB"}
    with dask.config.set(limit):
        source = read_source(x, y, w, shape.schema)
        rounds = open_rounds(source, shape, Execution(backend="tasks"), KEY, ROWS_KEY)
        ask_all(rounds, "binary")
        rounds.close()
        assert dask.config.get(next(iter(limit))) == "200 kB"


@pytest.mark.usefixtures("client")
def test_objects_travel_in_parts_of_their_real_size(monkeypatch):
    monkeypatch.setattr(tasks, "GRAPH_BYTES", 100_000)
    text = np.array([f"{k:05}" * 100 for k in range(1000)], object)
    x = pd.DataFrame({"a": np.zeros(1000), "b": np.zeros(1000), "c": pd.Series(text, dtype=object)})
    shape = shape_of("binary")
    source = read_source(x, np.zeros(1000), None, shape.schema)
    rounds = open_rounds(source, shape, Execution(backend="tasks"), KEY)
    assert 5 <= len(rounds._chunks) <= 8
    rounds.close()


@pytest.mark.usefixtures("client")
def test_columns_under_an_index_of_floats_are_sent_by_position(monkeypatch):
    monkeypatch.setattr(tasks, "GRAPH_BYTES", 10_000)
    x, y, w = rows_of("binary")
    shape = shape_of("binary", **WEIGHT)
    source = read_source(x, labelled(y), labelled(w), shape.schema)
    rounds = open_rounds(source, shape, Execution(backend="tasks"), KEY, ROWS_KEY)
    check_same(rounds, "binary")
    rounds.close()


@pytest.mark.usefixtures("client")
def test_units_under_an_index_of_floats_are_sent_by_position(monkeypatch):
    monkeypatch.setattr(tasks, "GRAPH_BYTES", 10_000)
    x, y, _ = rows_of("binary")
    source = read_source(x, y, None, shape_of("binary").schema)
    (chunk,) = source.chunks
    names = labelled(np.arange(len(y)))
    monkeypatch.setattr(tasks.TaskRounds, "_hold_part", lambda _, rows, __: rows)
    rounds = open_rounds(source, shape_of("binary"), Execution(backend="tasks"), KEY)
    held, _ = rounds._hold_rows([chunk.__class__(chunk.x, chunk.y, None, names)])
    assert len(held) > 1
    np.testing.assert_array_equal(np.concatenate([part.x.unit for part in held]), names.to_numpy())


class Unsendable:
    """A value that cannot be pickled."""

    def __reduce__(self):
        raise PoisonError("secret-value-4711")


@pytest.mark.usefixtures("client")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("lazy", [False, True])
def test_a_value_that_cannot_be_sent_is_not_told(lazy, caplog, capfd):
    x, y, _ = rows_of("binary", 10)
    x["a"] = 1.234567890123
    x["c"] = pd.Series([Unsendable()] * 10, dtype=object)
    shape = shape_of("binary")
    if lazy:
        x = da.from_array(x.to_numpy(), chunks=(5, 3))
    with caplog.at_level(logging.DEBUG), pytest.raises(ChunkError) as caught:
        open_rounds(
            read_source(x, y, None, shape.schema), shape, Execution(backend="tasks"), KEY
        ).fingerprint()
    assert "4711" not in str(caught.value)
    assert caught.value.__context__ is None
    assert "4711" not in caplog.text
    assert "1.234567890123" not in caplog.text
    told = "".join(capfd.readouterr())  # logging itself prints what it fails to write
    assert "4711" not in told
    assert "1.234567890123" not in told


# ---- exactly once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [[0, 0, 1], [0], [0, 0], []])
def test_a_shard_twice_or_not_at_all_is_refused(client, wrong):
    rounds = rounds_of("binary")
    model, query = model_of("binary"), queries_of("binary", 2)["main"]
    rounds.ask(model, query)
    shards = list(rounds._shards.values())
    rounds.client = Wrong(client, [shards[k] for k in wrong], shards)
    with pytest.raises(ShardError, match="missing from the sums, or is in them twice"):
        rounds.ask(model, query)
    rounds.client = client
    rounds.close()


class Wrong:
    """A client that maps over other shards than those it is told to."""

    status = "running"

    def __init__(self, client, wrong, right):
        self.client, self.wrong, self.right = client, wrong, right

    def map(self, function, shards, **kwargs):
        assert shards == self.right
        return self.client.map(function, self.wrong, **kwargs)

    def gather(self, futures):
        return self.client.gather(futures)

    def as_current(self):
        return self.client.as_current()


def asked(client, rounds):
    """Return a message and the reply of each shard to it, which are as they should be."""
    model, query = model_of("binary"), queries_of("binary", 2)["main"]
    rounds.ask(model, query)
    message = Sender().message(model, query)
    replies = client.gather(
        [client.submit(tasks.answer_round, s, m=message.packed()) for s in rounds._shards.values()]
    )
    rounds._checked(replies, message)
    return message, replies


def test_a_chunk_twice_is_refused(client):
    rounds = rounds_of("binary")
    message, replies = asked(client, rounds)
    twice = [replies[0], replies[1]._replace(chunks=replies[1].chunks[:-1] + replies[0].chunks[:1])]
    with pytest.raises(ShardError):
        rounds._checked(twice, message)
    rounds.close()


@pytest.mark.parametrize("which", [0, 1])
def test_a_shard_of_other_rows_than_were_surveyed_is_refused(which, client):
    rounds = rounds_of("binary")
    message, replies = asked(client, rounds)
    replies[which] = replies[which]._replace(mark=replies[which].mark ^ 1)
    with pytest.raises(ChunkError, match="changed while it was being read"):
        rounds._checked(replies, message)
    rounds.close()


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("client")
def test_a_cluster_that_fails_is_named_without_its_words(monkeypatch):
    rounds = rounds_of("binary")
    monkeypatch.setattr(rounds.client, "gather", lambda _: poisoned_gather())
    with pytest.raises(ChunkError, match=r"PoisonError\.$") as caught:
        rounds.fingerprint()
    assert caught.value.__context__ is None
    monkeypatch.undo()
    rounds.close()


def poisoned_gather():
    raise PoisonError("secret-value-4711")


class PoisonError(Exception):
    """An error whose message holds a row's value."""


def poisoned(block, block_info=None):
    if block_info and block_info[0]["chunk-location"][0] == 2:
        raise PoisonError("secret-value-4711")
    return block


@pytest.mark.usefixtures("client")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_chunk_that_fails_to_load_is_named_without_its_values():
    x, y, _ = rows_of("binary")
    x = da.from_array(x.to_numpy(), chunks=(500, 3)).map_blocks(
        poisoned, dtype=float, meta=np.empty((0, 0))
    )
    shape = shape_of("binary")
    source = read_source(x, da.from_array(y, chunks=500), None, shape.schema)
    rounds = open_rounds(source, shape, Execution(), KEY)
    with pytest.raises(ChunkError) as caught:
        rounds.fingerprint()
    assert str(caught.value) == str(failed_to_load("PoisonError"))
    assert caught.value.__context__ is None
    with pytest.raises(ChunkError) as caught:
        rounds._encode(model_of("binary").bins)
    assert str(caught.value) == str(failed_to_load("PoisonError"))
    rounds.close()


def unread_once(block, tried, block_info=None):
    if block_info and block_info[0]["chunk-location"][0] == 2:
        with open(tried, "a+") as file:
            file.write("x")
            file.seek(0)
            if file.read() == "x":
                raise OSError
    return block


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("around", ["rows", "fit"])
def test_a_chunk_that_cannot_be_read_is_tried_once_whatever_retries_are_asked_for(around, tmp_path):
    retries = {what: dask.annotate(retries=3 if what == around else 0) for what in ("rows", "fit")}
    x, y, _ = rows_of("binary")
    with retries["rows"]:
        x = da.from_array(x.to_numpy(), chunks=(500, 3)).map_blocks(
            unread_once, tmp_path / "tried", dtype=float, meta=np.empty((0, 0))
        )
    source = read_source(x, da.from_array(y, chunks=500), None, shape_of("binary").schema)
    rounds = open_rounds(source, shape_of("binary"), Execution(), KEY)
    with retries["fit"], pytest.raises(ChunkError, match="OSError"):
        rounds.fingerprint()
    assert (tmp_path / "tried").read_text() == "x"
    assert rounds.fingerprint()  # as where the fit is resumed
    rounds.close()


@pytest.mark.usefixtures("client")
def test_chunks_of_unequal_length_raise_and_log_no_value(caplog):
    x, y, _ = rows_of("binary")
    x.iloc[:9] = 1.234567890123
    left = da.from_array(x.to_numpy(), chunks=((1000, 2000), 3))
    right = da.from_array(y, chunks=((1001, 1999),))
    left, right = (
        da.Array(a.dask, a.name, ((np.nan, np.nan), *a.chunks[1:]), dtype=a.dtype)
        for a in (left, right)
    )
    shape = shape_of("binary")
    rounds = open_rounds(read_source(left, right, None, shape.schema), shape, Execution(), KEY)
    with caplog.at_level(logging.DEBUG, logger="distributed"), pytest.raises(StructureError):
        rounds.fingerprint()
    assert "1.234567890123" not in caplog.text
    rounds.close()


@pytest.mark.usefixtures("client")
def test_an_error_of_ours_reaches_the_caller():
    rounds = rounds_of("binary")
    with pytest.raises(PlanError, match="n_scores=3"):
        rounds.ask(model_of("binary"), queries_of("multiclass", 2)["main"])
    check_same(rounds, "binary")
    rounds.close()


@pytest.mark.slow
def test_a_killed_worker_changes_no_sum(processes):
    rounds = rounds_of("binary", 300)
    queries = queries_of("binary", 2)
    models = [model_of("binary", seed, n_trees=seed) for seed in range(4)]
    alone = rounds_of("binary", None)
    for k, model in enumerate(models):
        if k == 2:
            kill_one(processes)
        for name in ("main", "part", "root", "sample", "nodes"):
            got, expected = (opened(r.ask(model, queries[name])) for r in (rounds, alone))
            np.testing.assert_array_equal(got, expected)
    alone.close()
    rounds.close()


def kill_one(client):
    """Kill a worker process; its scheduler may not know yet."""
    (victim, *_) = client.run(os.getpid).values()
    os.kill(victim, signal.SIGKILL)


def test_a_worker_that_leaves_for_good_changes_no_sum(client):
    rounds = rounds_of("binary")
    ask_all(rounds, "binary")
    (worker, *_) = client.scheduler_info(n_workers=-1)["workers"]
    client.retire_workers([worker])
    check_same(rounds, "binary")
    rounds.close()


# ---- clients ---------------------------------------------------------------------------------------------------------


def fit_inside():
    rounds = rounds_of("binary", 1000)
    assert isinstance(rounds, TaskRounds)
    sums = ask_all(rounds, "binary")
    rounds.close()
    return sums


def test_a_fit_inside_a_task_does_not_wait_for_itself():
    with (
        LocalCluster(n_workers=1, processes=False, **CLUSTER) as cluster,
        Client(cluster) as client,
    ):
        sums = client.submit(fit_inside, pure=False).result(timeout=LONGEST)
    np.testing.assert_array_equal(sums["main"], local_sums("binary")[0]["main"])


def fit_inside_worker_client():
    with worker_client():
        return fit_inside()


def fit_inside_two_worker_clients():
    with worker_client(), worker_client():
        return fit_inside()


def fit_inside_without_another_thread():
    with worker_client(separate_thread=False):
        return fit_inside()


def fit_after_secede():
    secede()
    return fit_inside()


def fit_after_rejoin():
    secede()
    rejoin()
    return fit_inside()


@pytest.mark.parametrize(
    "work",
    [
        fit_inside_worker_client,
        fit_inside_two_worker_clients,
        fit_inside_without_another_thread,
        fit_after_secede,
        fit_after_rejoin,
    ],
)
def test_a_fit_inside_a_task_that_gave_its_thread_back_works(work):
    with (
        LocalCluster(n_workers=1, processes=False, **CLUSTER) as cluster,
        Client(cluster) as client,
    ):
        sums = client.submit(work, pure=False).result(timeout=LONGEST)
        # the pool still has its one thread
        assert client.submit(sum, (1, 2)).result(timeout=LONGEST) == 3
    np.testing.assert_array_equal(sums["main"], local_sums("binary")[0]["main"])


async def fit_in_the_loop_of_a_worker():
    return fit_inside()


def test_a_fit_in_the_event_loop_of_a_worker_is_refused(monkeypatch):
    # as if the scheduler ran in another process, as on a cluster of machines
    monkeypatch.setattr(clients, "Scheduler", type("Scheduler", (), {"_instances": ()}))
    with (
        LocalCluster(n_workers=1, processes=False, **CLUSTER) as cluster,
        Client(cluster) as client,
    ):
        task = client.submit(fit_in_the_loop_of_a_worker, pure=False)
        with pytest.raises(PlanError, match="to_thread"):
            task.result(timeout=LONGEST)


@pytest.mark.slow
def test_an_asynchronous_client_of_a_cluster_elsewhere_works(monkeypatch, two_processes):
    async def cell(address):
        async with Client(address, asynchronous=True):
            assert get_client().asynchronous
            rounds = rounds_of("binary")
            assert isinstance(rounds, TaskRounds)
            sums = ask_all(rounds, "binary")
            rounds.close()
            return sums

    two_processes.wait_for_workers(2, timeout=LONGEST)
    # the scheduler runs in an event loop of its own thread, like one on another machine
    elsewhere = type("Scheduler", (), {"_instances": ()})
    monkeypatch.setattr(clients, "Scheduler", elsewhere)
    sums = asyncio.run(cell(two_processes.scheduler_address))
    np.testing.assert_array_equal(sums["main"], local_sums("binary")[0]["main"])


def test_an_asynchronous_cluster_in_this_loop_is_refused_and_works_in_a_thread():
    async def cell():
        async with (
            LocalCluster(n_workers=1, processes=False, asynchronous=True, **CLUSTER) as cluster,
            Client(cluster, asynchronous=True),
        ):
            with pytest.raises(PlanError, match="to_thread"):
                rounds_of("binary")
            return await asyncio.to_thread(fit_inside)

    sums = asyncio.run(cell())
    np.testing.assert_array_equal(sums["main"], local_sums("binary")[0]["main"])
