"""Labels, targets and weights as integers. A row with an unknown label or a missing target has no weight."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import SCORE_ONE
from dpgb_dask.contracts.schema import Schema, Target

# a tuple holds 1-D columns in schema order
from dpgb_dask.encoding.categories import category_cells
from dpgb_dask.encoding.columns import numbers, one_column


@np.errstate(all="ignore")
def encode_target(y: Any, schema: Schema) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the label of each row, and whether it has a valid one.

    Parameters
    ----------
    y : (n,) array or Series, or (n, 1)

    Returns
    -------
    label : (n,) uint8 for classes, or int32 in [-65536, 65536] for a numeric target scaled to [-1, 1]
    valid : (n,) bool
        False for an unknown label or a missing target: the row has no weight.

    Privacy
    -------
    Private side. A total map: never raises or warns on a value; a numeric target is clipped to its public bounds.
    """
    column = one_column(y)
    if schema.target.type != "numeric":
        cell = category_cells(column, schema.target.classes)
        valid = cell < len(schema.target.classes)
        return np.where(valid, cell, 0).astype(np.uint8), valid
    return _target_steps(numbers(column), schema.target)


def _target_steps(y: NDArray[Any], target: Target) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    y = y.astype(np.float64)
    valid = ~np.isnan(y)
    value = np.clip(np.where(valid, y, target.low), target.low, target.high)
    # computed with halves, so that the range of two huge bounds does not overflow
    half = target.high / 2 - target.low / 2
    unit = (value / 2 - target.low / 2) / half  # in [0, 1]
    steps = np.rint((2 * unit - 1) * SCORE_ONE)
    # enforces the bound that the sensitivity states, whatever rounding did above
    return np.clip(steps, -SCORE_ONE, SCORE_ONE).astype(np.int32), valid


@np.errstate(all="ignore")
def encode_weight(
    weight: Any, max_weight: int, weight_bits: int, times: NDArray[np.float64] | None = None
) -> NDArray[np.int32]:
    """Return weights in steps of ``2**-weight_bits``, clipped to [0, max_weight] and rounded down; 0 if not a number.

    Parameters
    ----------
    weight : (n,) or (n, 1) column
    max_weight, weight_bits : int
    times : (n,) float64, optional
        What each weight is multiplied by before it is clipped: the weight of the row's class.

    Privacy
    -------
    Private side. Every sensitivity is multiplied by the bound ``max_weight``.
    """
    value = numbers(one_column(weight)).astype(np.float64)
    if times is not None:
        value = value * times
    steps = np.floor(
        np.clip(np.where(np.isnan(value), 0.0, value), 0.0, max_weight) * 2.0**weight_bits
    )
    return steps.astype(np.int32)
