"""Fuse the tasks that load a chunk with the task that uses it, so that loaded chunks do not pile up in memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dask._task_spec import Alias, DataNode, NestedContainer, Task, convert_legacy_graph
from dask.base import annotate
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from dpgb_dask.private.reading.load_lock import in_turn

Around = Callable[..., Any]


class _Held:
    """A value that a graph holds, as a task's function: its repr, which Dask writes into logs, shows no row."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __call__(self) -> Any:
        return self._value

    def __repr__(self) -> str:
        return "<rows>"


class _Turns:
    """Priorities by which calls run in their order: of calls that share a task, Dask takes any before any other.

    What is made of a chunk waits until it is added to that of its neighbours; in another order it would pile up.
    """

    __slots__ = ("_place",)

    def __init__(self, keys: Iterable[Any]) -> None:
        self._place = {key: place for place, key in enumerate(keys)}

    def __call__(self, key: Any) -> float:
        """Return the priority of a task: 1 for the first call and for what several share, above 0 for the last."""
        return 1 - self._place.get(key, 0) / len(self._place)


def fuse_calls(
    calls: Sequence[Delayed], *, room: int | None = None, around: Around | None = None
) -> list[Delayed]:
    """Move into each call the tasks, and the values in the graph, that no other call needs: they become one task.

    If a chunk is a task of its own, Dask loads it as soon as a thread is free, even if many loaded chunks still wait:
    the scheduler sends the task that uses a chunk later than the task that loads the next one. A chunk that is loaded
    inside the call that uses it is held no longer than the call.

    Parameters
    ----------
    calls : sequence of Delayed
    room : int or None
        Bytes that the loaded chunks of a process may take together; the process then loads one chunk at a time
        (`load_lock`). None for no such rule.
    around : function of (function, *args, **kwargs), or None
        Calls the function of every task that is left.

    Returns
    -------
    list of Delayed
        With the same keys, to be run in their order. Tasks that several calls need, and results that exist already,
        stay tasks of their own.
    """
    graph = tasks_of(calls)
    needs = [_needs(graph, call.key) for call in calls]
    users = Counter(key for keys in needs for key in keys)
    fused: dict[Any, Any] = {
        key: _within(around, _as_task(graph[key])) for key, n in users.items() if n > 1
    }
    for call, keys in zip(calls, needs, strict=True):
        own = [_as_task(graph[k]) for k in keys if users[k] == 1]
        whole = _within(around, Task.fuse(*own, key=call.key))
        if room is not None:
            whole = Task(call.key, in_turn, room, whole.func, *whole.args, **whole.kwargs)
        fused[call.key] = whole
    if not calls:
        return []
    name = f"dpgb-fused-{calls[0].key}"
    with annotate(priority=_Turns(call.key for call in calls)):
        layer = HighLevelGraph.from_collections(name, fused)
    return [Delayed(call.key, layer, layer=name) for call in calls]


def tasks_of(parts: Sequence[Delayed]) -> dict[Any, Any]:
    """Return all tasks that some parts need, as one graph."""
    merged = dict(HighLevelGraph.merge(*(part.__dask_graph__() for part in parts)))
    graph: dict[Any, Any] = convert_legacy_graph(merged)
    for key, node in graph.items():
        if isinstance(node, Alias) and node.key != key:  # as dask.dataframe.from_delayed makes them
            graph[key] = Alias(key, node.target)
    return graph


def _within(around: Around | None, node: Any) -> Any:
    if around is None or not isinstance(node, Task) or isinstance(node, NestedContainer):
        return node
    return Task(node.key, around, node.func, *node.args, **node.kwargs)


def _as_task(node: Any) -> Any:
    return Task(node.key, _Held(node.value)) if isinstance(node, DataNode) else node


def _needs(graph: dict[Any, Any], key: Any) -> list[Any]:
    """Return the keys of all tasks that a task needs, itself included."""
    found = {key: None}
    ahead = [key]
    while ahead:
        for dependency in graph[ahead.pop()].dependencies:
            if dependency in graph and dependency not in found:
                found[dependency] = None
                ahead.append(dependency)
    return list(found)
