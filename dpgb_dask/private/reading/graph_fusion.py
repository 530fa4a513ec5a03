"""Fuse the tasks that load a chunk with the task that uses it, so that loaded chunks do not pile up in memory."""

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any

import cloudpickle
from dask._task_spec import Alias, DataNode, NestedContainer, Task, TaskRef, convert_legacy_graph
from dask.base import annotate
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.sizeof import sizeof

from dpgb_dask.errors import kind_of
from dpgb_dask.private.reading.load_lock import OBJECT_BYTES, bytes_of, in_turn
from dpgb_dask.private.reading.rows import failed_to_load

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


class Box:
    """A value that several tasks need, as it is kept on a worker: Dask would add up the sizes of what values hold.

    Of a tuple that holds another twice, which holds another twice, and so on, that would never end.

    Parameters
    ----------
    value : any
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<rows>"

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """Return what another worker makes it of: if its value cannot be sent, a box that says so.

        Dask would log the error, which may hold a value, and ask for it again and again.
        """
        buffers: list[PickleBuffer] = []  # large arrays, which are sent beside the rest
        try:
            packed = _dumps(self.value, buffers)
        except Exception as error:
            return Box, (_Unsendable(kind_of(error)),)
        return _unpacked, (packed, buffers)


@dataclass(frozen=True, slots=True)
class _Unsendable:
    """Stands for a value that cannot be pickled; ``kind`` is the type of the error."""

    kind: str


def _dumps(value: Any, buffers: list[PickleBuffer]) -> bytes:
    try:
        return pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except Exception:  # functions of the caller's
        buffers.clear()
        packed: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        return packed


def _unpacked(packed: bytes, buffers: list[Any]) -> Box:
    return Box(pickle.loads(packed, buffers=buffers))


@sizeof.register(Box)  # type: ignore[untyped-decorator]
def _size(box: Box) -> int:
    """Return an estimate of the bytes of arrays, columns and frames, also in containers; no value is looked into."""
    total, seen, ahead = 0, set(), [box.value]
    while ahead:
        part = ahead.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            ahead += part.values()
        elif isinstance(part, list | tuple):
            ahead += part
        else:
            try:
                total += bytes_of(part)
            except Exception:  # of no array
                total += OBJECT_BYTES
    return total


def _boxed(work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Box:
    return Box(work(*args, **kwargs))


def _opened(box: Box) -> Any:
    if isinstance(box.value, _Unsendable):
        raise failed_to_load(box.value.kind)
    return box.value


def _itself(value: Any) -> Any:
    return value


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
        With the same keys, to be run in their order. What several calls need stays a task of its own, which makes a
        `Box`; results that exist already stay as they are.
    """
    graph = tasks_of(calls)
    needs = [_needs(graph, call.key) for call in calls]
    users = Counter(key for keys in needs for key in keys)
    nodes = {key: _as_task(key, graph[key]) for key in users}
    several = [key for key, n in users.items() if n > 1]
    boxes = {key: _box_of(key) for key in several if _is_made(nodes[key], graph)}

    def joined(keys: Iterable[Any], key: Any) -> Any:
        """Return some tasks as one, which opens what it needs of others."""
        own = {k: nodes[k] for k in keys}
        needed = {k: None for node in own.values() for k in node.dependencies if k in boxes}
        opened = [Task(k, _opened, TaskRef(boxes[k])) for k in needed if k not in own]
        return Task.fuse(*opened, *own.values(), key=key)

    fused: dict[Any, Any] = {key: nodes[key] for key in several if key not in boxes}
    for key, box in boxes.items():
        whole = joined([key], box)
        made = Task(box, _boxed, whole.func, *whole.args, **whole.kwargs)
        fused[box] = _within(around, made)
    for call, keys in zip(calls, needs, strict=True):
        whole = _within(around, joined((k for k in keys if users[k] == 1), call.key))
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


def _within(around: Around | None, task: Task) -> Task:
    if around is None:
        return task
    return Task(task.key, around, task.func, *task.args, **task.kwargs)


def _as_task(key: Any, node: Any) -> Any:
    """Return a node of a graph as a task, or an alias."""
    if isinstance(node, DataNode):
        return Task(key, _Held(node.value))
    return Task(key, _itself, node) if isinstance(node, NestedContainer) else node


def _is_made(node: Any, graph: dict[Any, Any]) -> bool:
    """Return whether a task makes a value; what names a result that exists already does not."""
    while isinstance(node, Alias):
        if node.target not in graph:
            return False
        node = graph[node.target]
    return True


def _box_of(key: Any) -> Any:
    first, *rest = key if isinstance(key, tuple) else (key,)
    return (f"boxed-{first}", *rest) if rest else f"boxed-{first}"


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
