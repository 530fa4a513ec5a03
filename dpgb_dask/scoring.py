"""Which rows a score is about, and what it compares: rows count as in a fit, but unknown labels are wrong."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.clients import compute
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.codes import read_target
from dpgb_dask.encoding.columns import category_cells, numbers, one_column
from dpgb_dask.errors import StructureError, short
from dpgb_dask.lazy_decoding import total_whole
from dpgb_dask.private.reading.ingest import as_one_kind, native_column
from dpgb_dask.private.reading.rows import line_up


def compared(
    schema: Schema, predicted: Any, y: Any, sample_weight: Any
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64] | None]:
    """Return targets, predictions and weights of the rows that have a target and weigh something, as in a fit.

    Parameters
    ----------
    schema : Schema
    predicted, y, sample_weight : collections of (n_rows,)
        Dask collections are computed. Without weights, None.

    Returns
    -------
    target, predicted : (n,) integers or float64
        Classes are positions in the schema; a label that is no class is one that no prediction has.
    weight : (n,) float64, or None

    Raises
    ------
    StructureError
        If no row is left, or there are different numbers of rows.
    """
    weight = None if sample_weight is None else native_column(sample_weight, "sample_weight")
    columns = as_one_kind(native_column(predicted, "X"), native_column(y, "y"), weight)
    rows = line_up(*compute(*map(total_whole, columns)))
    target, known, usable = _targets(rows.y, schema)
    if not usable.any():
        raise _no_target(schema)
    found, _ = read_target(rows.x, schema)
    if rows.weight is None:
        return target[known], found[known], None
    weighs = _weights(rows.weight, schema)
    counts = known & (weighs > 0)
    if not (usable & counts).any():
        raise _no_weight()
    return target[counts], found[counts], weighs[counts]


def _targets(y: Any, schema: Schema) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the target of each row, whether it has one, and whether it is a number, or a label of the schema.

    A label that is no class counts, as scikit-learn counts it: left out of the score of a model whose classes are
    spelt otherwise, such as -1 for 0, only hits would be left.
    """
    classes = schema.target.classes
    if classes:
        target: NDArray[Any] = category_cells(one_column(y), classes)
        return target, target <= len(classes), target < len(classes)
    target, known = read_target(y, schema)
    return target, known, known


def _weights(weight: Any, schema: Schema) -> NDArray[np.float64]:
    """Return weights as a fit reads them, NaN if no number, but not clipped: a score is about the rows given.

    Only an infinite one, with which there is no mean, counts as ``max_weight``.
    """
    value = numbers(one_column(weight)).astype(np.float64)
    return np.where(np.isposinf(value), float(schema.max_weight), value)


def _no_weight() -> StructureError:
    return StructureError(
        "No row can be scored: sample_weight has no number above 0 for a row whose y can be read, and other rows are"
        " left out, as in fit. Give weights above 0, or leave sample_weight out."
    )


def _no_target(schema: Schema) -> StructureError:
    classes = schema.target.classes
    what = f"label in y is one of the schema's classes {short(list(classes))}"
    return StructureError(
        f"No row can be scored: no {what if classes else 'value in y is a number'}. Give the targets as fit takes"
        " them; model.schema_.check(X, y) shows what y holds."
    )
