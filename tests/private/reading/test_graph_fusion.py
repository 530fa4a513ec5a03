"""Calls on chunks absorb the tasks that only they need; nothing else changes."""

import logging
import pickle
import threading
import time

import dask
import dask.array as da
import numpy as np
import pytest
from dask import delayed
from dask._task_spec import Task, TaskRef
from dask.delayed import Delayed
from dask.sizeof import sizeof
from distributed import Client, LocalCluster
from waiting import LONGEST

from dpgb_dask.errors import ChunkError
from dpgb_dask.graph_parts import parts_in, rewritten
from dpgb_dask.private.reading.graph_fusion import Box, _opened, fuse_calls
from dpgb_dask.private.reading.load_lock import OBJECT_BYTES, end_turn


def use(number, x, y, shared):
    return number + int(x.sum()) + int(y.sum()) + shared


def calls_of(n=4):
    """Calls on chunks x and y, where y is made from x, and on a value that all calls share."""
    shared = delayed(lambda: 1000, name="shared")()
    calls = []
    for k in range(n):
        x = delayed(np.arange, name=f"x-{k}")(k + 2)
        y = delayed(np.square, name=f"y-{k}")(x)
        calls.append(delayed(use)(k, x, y, shared, dask_key_name=f"use-{k}"))
    return calls


def tasks_of(call):
    return {str(key) for key in dict(call.__dask_graph__())}


def test_each_call_is_one_task_and_shared_tasks_stay():
    calls = calls_of()
    fused = fuse_calls(calls)
    assert [call.key for call in fused] == [call.key for call in calls]
    kept = tasks_of(fused[0])
    assert {f"use-{k}" for k in range(4)} <= kept
    assert not {key for key in kept if key.startswith(("x-", "y-", "arange", "square"))}
    assert len(kept) == 5
    assert dask.compute(*fused, scheduler="sync") == dask.compute(*calls, scheduler="sync")
    assert fuse_calls([]) == []


def test_values_in_the_graph_are_inside_the_call_and_in_no_log():
    calls = [
        delayed(use)(
            k, delayed(np.full(3, 0.125)), delayed(np.arange(k)), 1, dask_key_name=f"use-{k}"
        )
        for k in range(3)
    ]
    expected = dask.compute(*calls, scheduler="sync")
    fused = fuse_calls(calls)
    graph = dict(fused[0].__dask_graph__())
    assert set(graph) == {"use-0", "use-1", "use-2"}
    assert dask.compute(*fused, scheduler="sync") == expected
    assert "0.125" not in "".join(map(repr, graph["use-0"].args))


def test_a_value_in_the_graph_that_calls_share_is_in_no_log():
    rows = da.from_array(np.full((6, 1), 0.125), 4).rechunk(3)
    fused = fuse_calls([delayed(np.sum)(block) for block in rows.to_delayed().ravel()])
    graph = dict(fused[0].__dask_graph__())
    assert len(graph) == 3  # both new chunks need the first of the old ones
    assert "0.125" not in "".join(f"{task!r} {task.args!r}" for task in graph.values())
    assert dask.compute(*fused, scheduler="sync") == (0.375, 0.375)


TAKEN = []


def take(number, x, shared):
    TAKEN.append(number)
    return number + int(x.sum()) + shared


@pytest.mark.parametrize("is_task", [False, True], ids=["value", "task"])
def test_calls_that_share_something_run_in_their_order(is_task):
    shared = delayed(int)(5) if is_task else delayed(5)
    calls = [
        delayed(take)(k, delayed(np.ones)(k), shared, dask_key_name=f"take-{is_task}-{k}")
        for k in range(60)
    ]
    TAKEN.clear()
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        found = client.gather(client.compute(fuse_calls(calls)))
    assert found == [2 * k + 5 for k in range(60)]
    assert list(range(60)) == TAKEN


LOADING = []


def load():
    LOADING.append(1)
    time.sleep(0.01)
    n = len(LOADING)
    LOADING.pop()
    return n


def use_loaded(n, barrier):
    end_turn()
    barrier.wait(
        LONGEST
    )  # all threads get here, as a thread encodes while the next one has its turn
    return n


def fail_loaded(_):
    raise KeyError


def test_calls_in_turns_load_one_at_a_time():
    barrier = threading.Barrier(3)
    with dask.config.set(scheduler="threads", num_workers=3):
        calls = [delayed(use_loaded)(delayed(load)(), barrier) for _ in range(6)]
        calls.append(delayed(use)(1, delayed(np.arange)(3), np.arange(2), 5))
        assert dask.compute(*fuse_calls(calls, room=1 << 20)) == (*6 * [1], 10)
        with pytest.raises(KeyError):
            dask.compute(*fuse_calls([delayed(fail_loaded)(delayed(load)())], room=1 << 20))
        (again,) = dask.compute(*fuse_calls([delayed(load)()], room=1 << 20))  # the turn is free
    assert again == 1


MADE, MOST, LOCK = [0], [0], threading.Lock()


class Counted:
    """A chunk that counts how many chunks exist."""

    def __init__(self):
        with LOCK:
            MADE[0] += 1
            MOST[0] = max(MOST[0], MADE[0])

    def __del__(self):
        with LOCK:
            MADE[0] -= 1


def look(chunk):
    return isinstance(chunk, Counted)


def test_no_more_chunks_than_threads_are_there_at_once_and_results_may_be_futures():
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        calls = [delayed(look)(delayed(Counted)(), dask_key_name=f"look-{k}") for k in range(40)]
        assert all(client.gather(client.compute(fuse_calls(calls))))
        assert MOST[0] <= 4  # of each thread one may be collected late
        held = client.submit(np.arange, 5)
        calls = [delayed(use)(k, held, held, 7, dask_key_name=f"held-{k}") for k in range(3)]
        assert client.gather(client.compute(fuse_calls(calls))) == [27, 28, 29]
        blocks = client.persist(da.ones(6, chunks=3)).blocks[:].blocks[:]
        graph = dict(blocks.__dask_graph__())  # names of names of results
        first = Delayed((blocks.name, 0), graph)
        calls = [delayed(use)(k, first, first, 7, dask_key_name=f"name-{k}") for k in range(3)]
        assert client.gather(client.compute(fuse_calls(calls))) == [13, 14, 15]


def named(x, **told):
    return x, told


@pytest.mark.parametrize("room", [None, 1 << 20])
@pytest.mark.parametrize("of_several", [False, True], ids=["own", "of several"])
def test_keyword_arguments_of_a_task_stay_whatever_their_names(room, of_several):
    told = {"work": 1, "room": 2, "node": 3, "args": 4, "kwargs": 5, "x_": 6}
    part = delayed(named)(7, **told)
    calls = [delayed(named)(part, **told) for _ in range(2)] if of_several else [part]
    expected = dask.compute(*calls, scheduler="sync")
    assert dask.compute(*fuse_calls(calls, room=room), scheduler="sync") == expected


def keys_in(nodes):
    return [part.key for part in parts_in(nodes) if isinstance(part, Task)]


def test_a_dict_of_the_caller_is_no_graph():
    """It may hold itself, or be of a class of its own: only what Dask has fused is looked into."""
    own = {}
    own["me"] = own
    seen = []

    def change(part):
        seen.extend([part.key] if isinstance(part, Task) else [])
        return part

    lone = Task("lone", named, own, told=own)
    fused = Task.fuse(
        Task("below", int), Task("above", named, TaskRef("below"), told=own), key="fused"
    )
    assert keys_in([lone]) == ["lone"]
    assert set(keys_in([fused])) == {"fused", "below", "above"}
    assert rewritten(lone, change).args[0] is own
    rewritten(fused, change)
    assert seen == ["lone", "below", "above", "fused"]


def sent(box):
    """What another worker makes of a box, large arrays beside the rest."""
    beside = []
    packed = pickle.dumps(box, protocol=5, buffer_callback=beside.append)
    return pickle.loads(packed, buffers=beside), len(packed)


def test_a_box_is_sent_as_its_value_is():
    array = np.arange(10_000.0)
    received, size = sent(Box((array, lambda: 7)))
    got, function = _opened(received)
    np.testing.assert_array_equal(got, array)
    assert function() == 7
    assert size < 5000  # the array is not copied


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [threading.Lock(), nested(100_000)], ids=["lock", "nested"])
def test_a_box_that_cannot_be_sent_says_so_where_it_is_opened(value, caplog):
    """Dask would log the error, and ask for it again and again: the fit would never end."""
    column = np.array([value, "secret-4711"], dtype=object)
    with caplog.at_level(logging.DEBUG):
        received, _ = sent(Box(column))
        with pytest.raises(
            ChunkError, match=r"failed to load: (TypeError|RecursionError|Pickling)"
        ):
            _opened(received)
    assert "4711" not in caplog.text


def test_what_calls_share_is_boxed_and_no_value_is_looked_into():
    deep = ("x",)
    for _ in range(60):
        deep = (deep, deep)
    column = np.empty(2, object)
    column[:] = [deep, 1]
    assert sizeof(Box({"a": [column, (column, np.zeros(4))], "b": 1})) < 1000
    assert sizeof(Box(deep)) == OBJECT_BYTES
    assert sizeof(Box(np.zeros(1000))) == 8000
    assert repr(Box(column)) == "<rows>"
    shared = delayed(lambda: column)()
    below = delayed(len)(delayed(list)(shared))
    calls = [
        delayed(lambda a, b, c: (a[1], b, c[0][1]))(shared, below, [shared, k]) for k in range(3)
    ]
    fused = fuse_calls(calls, around=lambda work, *args, **told: work(*args, **told))
    assert dask.compute(*fused, scheduler="sync") == ((1, 2, 1),) * 3
    made = dask.get(dict(fused[0].__dask_graph__()), [f"boxed-{shared.key}"])
    assert isinstance(made[0], Box)
