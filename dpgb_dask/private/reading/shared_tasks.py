"""Chunks that this process loads: what several need is computed once in a pass, and dropped after its last use.

What Dask makes of all rows (a mean, a shuffle) or of neighbouring chunks (other chunk sizes) would otherwise be
computed for every chunk: reads would grow with the square of the number of chunks.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dask._task_spec import Alias, DataNode
from dask.delayed import Delayed
from dask.local import get_sync

from dpgb_dask.private.reading.graph_fusion import tasks_of
from dpgb_dask.private.reading.rows import Chunk, Rows, line_up

Keys = list[Any]
Compute = Callable[[dict[Any, Any], Keys], Sequence[Any]]  # of a graph and keys in it, their values
SEVERAL = -1  # in place of a chunk's number


class ChunkTasks:
    """The tasks of all chunks, and which of them several chunks need; found once.

    Parameters
    ----------
    chunks : sequence of Chunk
    """

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        delayed = [
            [part for part in _parts(chunk) if isinstance(part, Delayed)] for chunk in chunks
        ]
        self.graph = tasks_of([part for parts in delayed for part in parts])
        self._wanted = [[part.key for part in parts] for parts in delayed]
        users = self._users()
        self._own: list[Keys] = [[] for _ in chunks]  # tasks that no other chunk needs
        for key, number in users.items():
            if number != SEVERAL:
                self._own[number].append(key)
        shared = {key for key, number in users.items() if number == SEVERAL}
        self._needs = {key: self._before(key) & shared for key in shared}
        self.shared: list[set[Any]] = [
            {k for key in own for k in self._before(key) & shared} | shared.intersection(wanted)
            for own, wanted in zip(self._own, self._wanted, strict=True)
        ]

    def __repr__(self) -> str:
        return "<tasks>"

    def uses(self) -> Counter[Any]:
        """Return how many chunks, and tasks that several chunks need, take the value of each such task."""
        return Counter(k for needed in (*self._needs.values(), *self.shared) for k in needed)

    def needs(self, key: Any) -> set[Any]:
        """Return what a task that several chunks need takes of other such tasks."""
        return self._needs[key]

    def given(self, keys: Iterable[Any], values: dict[Any, Any]) -> dict[Any, Any]:
        """Return the graph of some tasks, with values in place of others."""
        graph = {key: DataNode(key, value) for key, value in values.items()}
        ahead = list(keys)
        while ahead:
            key = ahead.pop()
            graph[key] = self.graph[key]
            ahead += [k for k in self._before(key) if k not in graph and self._is_value(k)]
        return graph

    def rows(self, number: int, values: dict[Any, Any]) -> Rows:
        """Return the rows of a chunk, computed in this thread from the values that it shares with others."""
        chunk, wanted = self._chunks[number], self._wanted[number]
        own = [*self._own[number], *filter(self._is_value, wanted)]
        found = iter(get_sync(self.given(own, values), wanted) if wanted else ())
        parts = (next(found) if isinstance(part, Delayed) else part for part in _parts(chunk))
        *x, y, weight, unit = parts
        return line_up(tuple(x) if isinstance(chunk.x, tuple) else x[0], y, weight, unit)

    def _users(self) -> dict[Any, int]:
        """Return the chunk that needs each task, or `SEVERAL`; in time that grows with the graph alone."""
        users: dict[Any, int] = {}
        for number, wanted in enumerate(self._wanted):
            ahead = [(key, number) for key in wanted]
            while ahead:
                key, user = ahead.pop()
                known = users.get(key)
                if known in (user, SEVERAL) or self._is_value(key):
                    continue
                # what a shared task needs is shared too
                users[key] = user if known is None else SEVERAL
                ahead += [(k, users[key]) for k in self._before(key)]
        return users

    def _before(self, key: Any) -> set[Any]:
        return {k for k in self.graph[key].dependencies if k in self.graph}

    def _is_value(self, key: Any) -> bool:
        """Whether a node holds a value, or names one that does: nothing is computed."""
        node = self.graph[key]
        while isinstance(node, Alias) and node.target in self.graph:
            node = self.graph[node.target]
        return isinstance(node, DataNode)


class _Batch:
    """Tasks that one thread computes for all; others wait."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None

    def end(self, error: BaseException | None = None) -> None:
        self._error = error
        self._done.set()

    def wait(self) -> None:
        self._done.wait()
        if self._error is not None:
            raise self._error


class Pass:
    """One pass over the chunks.

    Parameters
    ----------
    tasks : ChunkTasks
    compute : function of (graph, keys)
        Computes what several chunks need.

    Notes
    -----
    A thread takes all tasks that its chunk needs and no thread has taken yet, at once. So what they need was taken
    before, and no two threads wait for each other.
    """

    def __init__(self, tasks: ChunkTasks, compute: Compute = get_sync) -> None:
        self._tasks, self._compute = tasks, compute
        self._lock = threading.Lock()
        self._uses = tasks.uses()  # that are still to come
        self._batches: dict[Any, _Batch] = {}
        self._values: dict[Any, Any] = {}

    def load(self, number: int) -> Rows:
        """Return the rows of a chunk."""
        shared = self._tasks.shared[number]
        values = self._shared(shared) if shared else {}
        return self._tasks.rows(number, values)

    def skip(self, number: int) -> None:
        """Note that a chunk will not be loaded."""
        with self._lock:
            self._used(self._tasks.shared[number])

    def _shared(self, wanted: set[Any]) -> dict[Any, Any]:
        """Return the values of tasks that other chunks need too."""
        own = _Batch()
        with self._lock:
            taken = self._take(wanted, own)
            needed = {k for key in taken for k in self._tasks.needs(key)} | wanted
            others = {self._batches[key] for key in needed} - {own}
        try:
            for batch in others:
                batch.wait()
            self._run(taken)
        except BaseException as error:
            own.end(error)
            raise
        own.end()
        with self._lock:
            values = {key: self._values[key] for key in wanted}
            self._used(wanted)
        return values

    def _take(self, wanted: set[Any], batch: _Batch) -> Keys:
        taken = []
        ahead = list(wanted)
        while ahead:
            key = ahead.pop()
            if key not in self._batches:
                self._batches[key] = batch
                taken.append(key)
                ahead += self._tasks.needs(key)
        return taken

    def _run(self, taken: Keys) -> None:
        if not taken:
            return
        inside = Counter(k for key in taken for k in self._tasks.needs(key))
        with self._lock:
            known = {key: self._values[key] for key in inside if key in self._values}
            kept = [key for key in taken if self._uses[key] > inside[key]]
        values = self._compute(self._tasks.given(taken, known), kept)
        with self._lock:
            self._values.update(zip(kept, values, strict=True))
            for key in taken:
                self._used(self._tasks.needs(key))

    def _used(self, keys: Iterable[Any]) -> None:
        """Count a use of each key, and drop values after their last one; with the lock held."""
        for key in keys:
            self._uses[key] -= 1
            if self._uses[key] <= 0:
                self._values.pop(key, None)


def _parts(chunk: Chunk) -> list[Any]:
    columns = chunk.x if isinstance(chunk.x, tuple) else (chunk.x,)
    return [*columns, chunk.y, chunk.weight, chunk.unit]
