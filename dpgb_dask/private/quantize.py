"""How much one row can change each kind of answer: the code that clips states its sensitivity."""

from dpgb_dask.contracts.boundary import Sensitivity
from dpgb_dask.contracts.model import SCORE_ONE
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import (
    CellCountsQuery,
    CountQuery,
    GradientQuery,
    Query,
    ResidualQuery,
    TargetSumQuery,
)
from dpgb_dask.errors import PlanError


def max_weight_steps(shape: Shape) -> int:
    """Return the largest weight of one row, in weight steps."""
    return shape.max_weight << shape.weight_bits


def sensitivity(query: Query, shape: Shape) -> Sensitivity:
    """Return the exact largest change of the answer when one row is added or removed.

    Raises
    ------
    PlanError
        If the query counts weights in other steps than the rows do, or is of an unknown kind.

    Privacy
    -------
    Private side. One row of the largest weight W (in steps) adds, in squared L2 norm:

    - a count, one residual cell, one class: W²;
    - one cell of each of m features: m · W²;
    - a numeric target, scaled to [-1, 1] in steps of 2⁻¹⁶: (2¹⁶ · W)²;
    - (g, h) to one cell of each of ``n_blocks`` tables: n_blocks · ‖(g, h)‖² · W², with the exact maximum of
      ‖(g, h)‖² over what the integer gradient can produce.
    """
    if query.weight_bits != shape.weight_bits:
        raise PlanError(
            f"weight_bits={query.weight_bits} of the query is not weight_bits={shape.weight_bits} of the rows."
        )
    weight = max_weight_steps(shape)
    match query:
        case CountQuery() | ResidualQuery():
            change = 1
        case CellCountsQuery():
            change = len(query.sizes)
        case TargetSumQuery():
            change = SCORE_ONE * SCORE_ONE if query.kind == "numeric" else 1
        case GradientQuery():
            change = query.n_blocks * query.gradient.l2_squared
        case _:
            raise PlanError(f"{type(query).__name__} is a query without a stated sensitivity.")
    return Sensitivity(change * weight * weight)
