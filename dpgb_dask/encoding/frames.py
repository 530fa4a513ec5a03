"""Undo Dask's conversion of object columns to text, so that Dask DataFrames have the values that the user gave."""

from typing import Any

import dask.dataframe as dd

# operations that do not change values
THROUGH = frozenset({
    "Projection", "Drop", "RenameFrame", "RenameSeries", "ColumnsSetter", "Partitions", "Concat", "StackPartition",
    "Repartition", "ResetIndex",
})  # fmt: skip


def as_given(frame: dd.DataFrame | dd.Series) -> Any:
    """Return a frame without Dask's own conversion of objects to text (``dataframe.convert-string``).

    If one odd value makes a column of a partition a column of objects, Dask converts the whole column to ``str(x)``,
    and it raises on a value that is not UTF-8: one row would decide how others are read. The inputs of the user's own
    functions are left as they are.

    Privacy
    -------
    Reads the expression and no value.
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
