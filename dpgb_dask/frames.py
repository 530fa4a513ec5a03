"""Dask DataFrames as they were given: without the text that Dask makes of columns of objects."""

from typing import Any

import dask.dataframe as dd

# operations that hand values on as they are
THROUGH = frozenset({
    "Projection", "Drop", "RenameFrame", "RenameSeries", "ColumnsSetter", "Partitions", "Concat", "StackPartition",
    "Repartition", "ResetIndex",
})  # fmt: skip


def as_given(frame: dd.DataFrame | dd.Series) -> Any:
    """Return a frame without Dask's own conversion of objects to text (``dataframe.convert-string``).

    Dask writes ``str(x)`` into every column of a partition that one odd value made a column of objects, and stops on a
    value that is no UTF-8: so one row would decide how others are read. Below functions of the user's own nothing is
    changed: what they get is theirs to say.

    Privacy
    -------
    Reads the expression; no value is looked at.
    """
    return type(frame)(_given(frame.expr))


def _given(node: Any) -> Any:
    name = type(node).__name__
    if name == "ArrowStringConversion":
        return _given(node.frame)
    if name.startswith("FromPandas"):
        return node.substitute_parameters({"pyarrow_strings_enabled": False})
    if name in THROUGH:
        for below in node.dependencies():
            node = node.substitute(below, _given(below))
    return node
