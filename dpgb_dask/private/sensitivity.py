"""Sensitivity: how much one row can change each kind of answer. The code that clips also states the bound."""

import math

from dpgb_dask.contracts.boundary import Sensitivity
from dpgb_dask.contracts.model import SCORE_ONE
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import (
    SHRINK_BITS,
    SLOPE_BITS,
    BinCountsQuery,
    CellCountsQuery,
    ChoiceQuery,
    CountQuery,
    DirectionSumsQuery,
    GradientQuery,
    NodeSumsQuery,
    ProductSumsQuery,
    Query,
    ReferenceSumsQuery,
    ResidualQuery,
    SharedChoiceQuery,
    TargetSumQuery,
    check_query,
)
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels.directions import PRODUCT_BITS, ROOT_HALF


def max_weight_steps(shape: Shape) -> int:
    """Return the largest weight of one row, in weight steps."""
    return shape.max_weight << shape.weight_bits


def sensitivity(query: Query, shape: Shape) -> Sensitivity:
    """Return the exact largest change of the sums when one row (or one unit) is added or removed.

    Raises
    ------
    PlanError
        If the query's weight steps are not those of the rows, its kind is unknown, or it is a choice whose gain has no
        bounded range.

    Privacy
    -------
    Private side. One row of the largest weight W (in steps) adds, in squared L2 norm and in L1 norm
    (docs/privacy.md P1):

    - a count, one residual cell, one class: W² and W;
    - one cell, or bin, of each of m features: m · W² and m · W;
    - a numeric target, scaled to [-1, 1] in steps of 2⁻¹⁶: (2¹⁶ · W)² and 2¹⁶ · W;
    - (g, h) to one cell of each of b = ``n_blocks`` tables: b · ‖(g, h)‖₂² · W² and b · ‖(g, h)‖₁ · W, with the exact
      maxima over what the integer gradient can produce; a row of more than b blocks is shrunk, so that the first bound
      holds as it stands, and the second for what the shrunk row adds in all (docs/privacy.md P14);
    - products of every two of the d numbers of a vector of norm 1 or less, and squares times √½, in steps of 2⁻¹⁶:
      2³¹ · W² and (d - 1 + √2) · 2¹⁵ · W; (g, h) times d such numbers: ‖(g, h)‖₂² · W² and √d · ‖(g, h)‖₁ · W
      (docs/privacy.md P16);
    - with two sides of each of m features: (g, h), or its negative, to one contrast of each, and t times to the node's
      sum: (m + t²) · ‖(g, h)‖₂² · W² and (m + t) · ‖(g, h)‖₁ · W.

    The rows of a unit weigh at most W together, so by the triangle inequality both bounds hold for a unit. A row that
    is not drawn for the query adds nothing.
    """
    check_query(query)
    if query.weight_bits != shape.weight_bits:
        raise PlanError(
            f"weight_bits={query.weight_bits} of the query is not weight_bits={shape.weight_bits} of the rows."
        )
    weight = max_weight_steps(shape)
    choice_range = 0
    match query:
        case CountQuery() | ResidualQuery():
            squared, absolute = 1, 1
        case CellCountsQuery() | BinCountsQuery():
            squared = absolute = len(query.sizes)
        case TargetSumQuery():
            absolute = SCORE_ONE if query.kind == "numeric" else 1
            squared = absolute * absolute
        case ProductSumsQuery():
            squared = 1 << (2 * PRODUCT_BITS - 1)
            absolute = ((len(query.features) - 1) << (PRODUCT_BITS - 1)) + ROOT_HALF
        case GradientQuery():
            squared = query.n_blocks * query.gradient.l2_squared
            absolute = _blocks_of_sum(query) * query.gradient.l1
            if isinstance(query, ChoiceQuery):
                choice_range = _gain_range(query, shape)
            elif isinstance(query, SharedChoiceQuery):
                choice_range = _shared_range(query, weight)
        case _:
            raise PlanError(f"{type(query).__name__} is a query without a stated sensitivity.")
    if (rounded := _rounded_values(query)) and shape.schema.unit_id is not None:
        squared, absolute = _with_rounding(rounded, squared, absolute)
    return Sensitivity(squared * weight * weight, absolute * weight, choice_range)


def _blocks_of_sum(query: GradientQuery) -> int:
    """Return what a row adds in all, in absolute value, over ‖(g, h)‖₁, rounded up."""
    match query:
        case DirectionSumsQuery():
            return math.isqrt(query.n_cells - 1) + 1
        case ReferenceSumsQuery():  # the largest k · shrink[k] (docs/privacy.md P14)
            return -(-max(k * weight for k, weight in enumerate(query.shrink)) >> SHRINK_BITS)
        case NodeSumsQuery(sides=sides) if sides is not None:
            return query.total_times + len(query.features)
        case _:
            return query.n_blocks


def _rounded_values(query: Query) -> int:
    """Return to how many values a row adds what is rounded after its weight; 0 where weights are whole steps of it."""
    match query:
        case ReferenceSumsQuery():
            return 2 * query.n_scores * (1 + len(query.omitted))
        case ProductSumsQuery() | DirectionSumsQuery():
            return query.n_values
        case _:
            return 0


def _with_rounding(n_values: int, squared: int, absolute: int) -> tuple[int, int]:
    """Return both norms of a weight step with a step of rounding on each value that a row adds to.

    Privacy
    -------
    What a row adds is rounded after its weight, w (docs/privacy.md P14; docs/privacy.md P16). Where a row joins a unit,
    as an account for rows may count, the weights of the unit's R rows move from w to w', and each row's values by
    w - w' times what they are, and by less than 1 more. No more than the weight steps of a unit are such rows, so a
    step for each of them is enough.
    """
    root = math.isqrt(squared - 1) + 1 if squared else 0
    return squared + 2 * root * (math.isqrt(n_values - 1) + 1) + n_values, absolute + n_values


def _gain_range(query: ChoiceQuery, shape: Shape) -> int:
    """Return the range of a gain's change: (max g - min g)² · W, W in natural weights, g in gradient steps.

    Privacy
    -------
    The gain of a candidate is the sum of f(S, n) = S²/(n + λ) over its two children, where n is the sum of the weights
    w_i, S that of w_i g_i, and every g_i and 0 lie in an interval of width ``Bounded.grad_width``. Let a row (g, w)
    join a child: along t in [0, w], with s = S/(n + λ), which lies in the interval too as λ > 0,

        df/dt = 2 s g - s² = g² - (g - s)²  in  [g² - width², g²].

    A row joins one child of each candidate, in one node, and brings the same g to all of them: the changes of any two
    candidates differ by at most width² · W, in an interval that holds 0 (docs/privacy.md P6; DPBoost, lemma 1, has
    3 g*² as a bound in absolute value, whose range is 6 g*²; the width is at most 2 g*). The rows of a unit join one
    after the other, and weigh at most W together. The argument needs n to be the exact weight: h is 1 on every row.
    """
    gradient = query.gradient
    if not gradient.counts:
        raise PlanError(
            f"{type(gradient).__name__} does not count every row beside its gradient, so a gain has no bounded range. "
            "Make it with second='count'."
        )
    if query.n_scores != 1:
        raise PlanError(
            f"n_scores={query.n_scores}: a gain is of one score. Use released histograms for several classes."
        )
    return gradient.grad_width**2 * shape.max_weight


def _shared_range(query: SharedChoiceQuery, weight: int) -> int:
    """Return the range of the change of u: 2 · max Σ|d| · W, in gradient steps · 2**-SLOPE_BITS times weight steps.

    Privacy
    -------
    With A = 2**SLOPE_BITS, u sums |A·G - r_v·S| over the children of the nodes v and over the scores, where G sums w g
    and S sums w s. A row is in one child of each candidate, and changes what stands between the bars there by at most
    w (A|g| + |r_v| s) for each score: by the triangle inequality every u moves by at most the sum of these over the
    scores, up or down. The rows of a unit add up, wherever they
    are, and weigh at most W together. So the changes of any two candidates differ by at most twice that
    (docs/privacy.md P6).
    """
    steepest = max(int(query.slope.max()), -int(query.slope.min()))
    return 2 * query.gradient.weighted(1 << SLOPE_BITS, steepest) * weight
