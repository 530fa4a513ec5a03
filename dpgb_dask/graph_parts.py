"""The nodes of a Dask graph, and what they hold, also those that Dask has fused into others; and its expressions."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dask._expr import Expr
from dask._task_spec import NestedContainer, Task
from dask.base import tokenize
from dask.delayed import Delayed, delayed


def sent_once(value: Any, name: str) -> Delayed:
    """Return a value as a key of its own in a graph: it goes to a worker once, and not with every task."""
    return delayed(value, name=f"dpgb-{name}-{tokenize(value)}", traverse=False)


def parts_in(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield every node of a graph, also those that Dask has fused into others, and every argument of a task."""
    ahead = list(nodes)
    while ahead:
        node = ahead.pop()
        yield node
        if isinstance(node, Task):
            ahead += _fused_into(node).values()
            ahead += node.args
            ahead += node.kwargs.values()


def rewritten(node: Any, change: Callable[[Any], Any]) -> Any:
    """Return a node of a graph, in which every node and argument is changed, also those that Dask has fused into it."""
    if not isinstance(node, Task):
        return change(node)
    args = [rewritten(given, change) for given in node.args]
    if isinstance(node, NestedContainer):
        return type(node)(*args)
    if inner := _fused_into(node):
        args[0] = {key: rewritten(part, change) for key, part in inner.items()}
    kwargs = {name: rewritten(given, change) for name, given in node.kwargs.items()}
    return change(Task(node.key, node.func, *args, **kwargs))


def rebuilt(node: Any, change: Callable[[Any], Any]) -> Any:
    """Return an expression in which every one that it is made of is changed; the same one if none is."""
    operands = [change(op) if isinstance(op, Expr) else op for op in node.operands]
    same = all(new is old for new, old in zip(operands, node.operands, strict=True))
    return node if same else type(node)(*operands)


def _fused_into(task: Task) -> dict[Any, Any]:
    """Return the graph that is a task's first argument; any other dict among its arguments is the caller's."""
    return task.args[0] if task.has_subgraph() else {}
