"""Find collections that pandas parses from text, where the type of a column depends on all of its values.

Only the structure of a collection is looked at: which functions make it.
"""

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import dask.array as da
import dask.dataframe as dd
from dask.delayed import Delayed

from dpgb_dask.errors import ParserWarning, level_outside

MODULES = ("pandas", "dask")
READERS = frozenset({
    "read_csv", "_read_csv", "read_table", "read_fwf", "read_json", "read_json_file", "read_json_chunk", "read_excel",
    "read_xml", "read_html",
})  # fmt: skip


def warn_of_parsers(parts: Iterable[Any]) -> None:
    """Warn if pandas parses any part of the input of ``fit`` from text.

    Parameters
    ----------
    parts : iterable
        Dask DataFrames, Series or Arrays, or tuples of them; anything else is ignored.

    Privacy
    -------
    Only tasks are looked at, never a value: the warning depends only on how a collection was made.
    """
    if any(_is_parsed(part) for part in parts):
        warnings.warn(
            "X, y or sample_weight is text that pandas parses, as in dask.dataframe.read_csv: its parser may stop on a"
            " value, which would tell of it, and the types that it infers may lose values. Read such files with"
            " dpgb_dask.io.read_csv, or convert them once: dpgb-dask convert.",
            ParserWarning,
            stacklevel=level_outside(),
        )


def _is_parsed(part: Any) -> bool:
    if isinstance(part, tuple):
        return any(map(_is_parsed, part))
    return any(map(_is_reader, _functions(part)))


def _is_reader(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    name, module = getattr(function, "__name__", ""), getattr(function, "__module__", None)
    return name in READERS and str(module).split(".")[0] in MODULES


def _functions(part: Any) -> Iterator[Callable[..., Any]]:
    """Yield the functions that make a collection."""
    if isinstance(part, dd.DataFrame | dd.Series):
        for node in part.expr.walk():
            for operand in node.operands:
                if isinstance(operand, Delayed):
                    yield from _of_tasks(operand.__dask_graph__())
                elif callable(operand):  # given to from_map, with which Dask reads files
                    yield operand
    elif isinstance(part, da.Array):
        yield from _of_tasks(part.__dask_graph__())


def _of_tasks(graph: Mapping[Any, Any]) -> Iterator[Callable[..., Any]]:
    for task in graph.values():
        if callable(function := getattr(task, "func", None)):
            yield function
            for argument in task.args:  # tasks that Dask has fused into one
                if isinstance(argument, dict):
                    yield from _of_tasks(argument)
