"""Each row's gradient and Hessian, packed as ``(g << 32) + h`` in integer steps as losses/gradients.py defines them."""

from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable, same_rows, writable
from dpgb_dask.losses import (
    GRAD_BITS,
    GRAD_ONE,
    NORM_SHIFT,
    NORM_SIZE,
    RESIDUAL_SHIFT,
    TABLE_SHIFT,
    TABLE_SIZE,
    TARGET_BITS,
    ClippedSoftmaxGradient,
    FreeSquaredGradient,
    Gradient,
    LabelGradient,
    LogisticGradient,
    PoissonGradient,
    SlopeGradient,
    SoftmaxGradient,
    SquaredGradient,
    TableGradient,
    check_gradient,
)

BLOCK = 2048
CLASS_BLOCK = 512  # rows per inner loop, of several scores: they stay in L1 or L2


@inner
def table_index(
    score: NDArray[np.int32],  # IN (n,)
    label: NDArray[np.uint8],  # IN (n,)
    out: NDArray[np.uint16],  # OUT (n,), index into the flattened table
) -> None:
    """Clamp and shift scores: the part of the look-up that SIMD instructions speed up."""
    for i in range(out.shape[0]):
        k = (score[i] >> TABLE_SHIFT) + TABLE_SIZE // 2
        k = min(max(k, 0), TABLE_SIZE - 1)
        out[i] = k + (TABLE_SIZE if label[i] != 0 else 0)


@kernel
def _logistic(
    score: NDArray[np.int32],  # IN (n,)
    label: NDArray[np.uint8],  # IN (n,)
    table: NDArray[np.int64],  # IN (2 * TABLE_SIZE,)
    out: NDArray[np.int64],  # OUT (n,)
) -> None:
    n = out.shape[0]
    buffer = np.empty(BLOCK, np.uint16)
    for lo in range(0, n, BLOCK):
        hi = min(n, lo + BLOCK)
        index, block = buffer[: hi - lo], out[lo:hi]
        table_index(score[lo:hi], label[lo:hi], index)
        for i in range(block.shape[0]):
            block[i] = table[index[i]]


@kernel
def _weigh(weight: NDArray[np.int32], out: NDArray[np.int64]) -> None:
    """Multiply packed values: w·((g << 32) + h) is (w·g << 32) + w·h."""
    for i in range(out.shape[0]):
        out[i] *= weight[i]


def weigh(weight: NDArray[np.int32] | None, out: NDArray[np.int64]) -> None:
    """Multiply what rows add, ``(g << 32) + h``, by their weights, in place; without weights, do nothing."""
    if weight is not None:
        _weigh(readable("weight", weight, np.int32, 1), out)


def logistic(
    score: NDArray[np.int32],
    label: NDArray[np.uint8],
    weight: NDArray[np.int32] | None,
    table: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Look up each row's gradient and Hessian of the (clipped) binary log-loss.

    Parameters
    ----------
    score : (n_rows,) int32, score steps
    label : (n_rows,) uint8
        0 or 1 (any other label is taken as 1; rows without a valid label have weight 0).
    weight : (n_rows,) int32, or None
        Weight steps, >= 0; None is 1 for every row.
    table : (2, TABLE_SIZE) int64
        `gradients.LogisticGradient.table`.
    out : (n_rows,) int64
        Written: weight · ((g << 32) + h).

    Raises
    ------
    ValueError
        If a dtype, layout or length is wrong; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. A row's entry is one of the table's times its weight, so the table's exact maximum
    is the row's bound.
    """
    same_rows(score=score, label=label, weight=weight, out=out)
    if table.shape != (2, TABLE_SIZE):
        raise ValueError(
            f"table must have shape (2, {TABLE_SIZE}). Make it with gradients.logistic_gradient."
        )
    flat = readable("table", table, np.int64, 2).reshape(-1)
    writable("out", out, np.int64, 1)
    _logistic(
        readable("score", score, np.int32, 1), readable("label", label, np.uint8, 1), flat, out
    )
    weigh(weight, out)


@kernel
def _residuals(
    score: NDArray[np.int32],  # IN (n,)
    target: NDArray[np.int32],  # IN (n,)
    table: NDArray[np.int64],  # IN (TABLE_SIZE,)
    out: NDArray[np.int64],  # OUT (n,)
) -> None:
    for i in range(out.shape[0]):
        # in int64: two int32 may be 2**32 apart
        r = (np.int64(score[i]) - np.int64(target[i])) >> RESIDUAL_SHIFT
        k = min(max(r, np.int64(-TABLE_SIZE // 2)), np.int64(TABLE_SIZE // 2 - 1))
        out[i] = table[k + TABLE_SIZE // 2]


def residuals(
    score: NDArray[np.int32],
    target: NDArray[np.int32],
    weight: NDArray[np.int32] | None,
    table: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Look up each row's gradient and Hessian by its residual.

    Parameters
    ----------
    score, target : (n_rows,) int32, score steps
        Prediction and target.
    weight : (n_rows,) int32, or None
        Weight steps, >= 0; None is 1 for every row.
    table : (TABLE_SIZE,) int64
        `gradients.TableGradient.table` of a numeric target.
    out : (n_rows,) int64
        Written: weight · ((g << 32) + h), from the table's entry for (score - target) >> RESIDUAL_SHIFT, or at the
        nearer end.

    Raises
    ------
    ValueError
        If a dtype, layout or length is wrong; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. A row's entry is one of the table's times its weight, so the table's exact maximum
    is the row's bound.
    """
    same_rows(score=score, target=target, weight=weight, out=out)
    if table.shape != (TABLE_SIZE,):
        raise ValueError(f"table must have shape ({TABLE_SIZE},). Make it with table_gradient.")
    writable("out", out, np.int64, 1)
    _residuals(
        readable("score", score, np.int32, 1),
        readable("target", target, np.int32, 1),
        readable("table", table, np.int64, 1),
        out,
    )
    weigh(weight, out)


@kernel
def _squared(
    score: NDArray[np.int32],  # IN (n,)
    target: NDArray[np.int32],  # IN (n,)
    clip_steps: int,
    curved_steps: int,  # a larger residual has the second component of a clipped one
    hess_steps: int,
    beyond_hess: int,  # second component of a row beyond curved_steps
    beyond_grad: int,  # 1: a clipped row keeps its clipped gradient; 0: it adds none
    out: NDArray[np.int64],  # OUT (n,)
) -> None:
    for i in range(out.shape[0]):
        r = np.int64(score[i]) - np.int64(target[i])
        kept = r if r < clip_steps else np.int64(clip_steps)
        kept = kept if kept > -clip_steps else np.int64(-clip_steps)
        h = hess_steps if -curved_steps <= r <= curved_steps else beyond_hess
        g = kept >> 1 if kept == r else (kept >> 1) * beyond_grad
        out[i] = (g << 32) + h


def squared(
    score: NDArray[np.int32],
    target: NDArray[np.int32],
    weight: NDArray[np.int32] | None,
    clip_steps: int,
    hess_steps: int,
    out: NDArray[np.int64],
    *,
    always: bool = False,
    filtered: bool = False,
    curved_steps: int | None = None,
) -> None:
    """Write each row's gradient and Hessian of the squared loss with clipped residuals.

    Parameters
    ----------
    score, target : (n_rows,) int32, score steps
        Prediction and target.
    weight : (n_rows,) int32, or None
        Weight steps, >= 0; None is 1 for every row.
    clip_steps, hess_steps : int
        As in `gradients.SquaredGradient`. A residual of exactly ``clip_steps`` is not clipped.
    out : (n_rows,) int64
        Written: weight · ((g << 32) + h), g = clip(score - target) >> 1, h = hess_steps up to ``curved_steps``.
    always, filtered : bool
        Whether h = hess_steps on clipped rows too; whether rows that would be clipped get (0, 0) instead.
    curved_steps : int or None
        As in `gradients.FreeSquaredGradient`: |score - target| beyond which h = 0, but for ``always``. None is
        ``clip_steps``.

    Raises
    ------
    ValueError
        If a dtype, layout or length is wrong; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. |g| <= (clip_steps + 1) >> 1 and 0 <= h <= hess_steps, times the weight.
    """
    same_rows(score=score, target=target, weight=weight, out=out)
    writable("out", out, np.int64, 1)
    _squared(
        readable("score", score, np.int32, 1),
        readable("target", target, np.int32, 1),
        int(clip_steps),
        int(clip_steps if curved_steps is None else curved_steps),
        int(hess_steps),
        int(hess_steps) if always and not filtered else 0,
        int(not filtered),
        out,
    )
    weigh(weight, out)


@kernel
def _slopes(
    score: NDArray[np.int32],  # IN (n,)
    target: NDArray[np.int32],  # IN (n,)
    below: int,
    above: int,
    hess_steps: int,
    out: NDArray[np.int64],  # OUT (n,)
) -> None:
    for i in range(out.shape[0]):
        g = above if score[i] > target[i] else (-below if score[i] < target[i] else 0)
        out[i] = (np.int64(g) << 32) + hess_steps


def slopes(
    score: NDArray[np.int32],
    target: NDArray[np.int32],
    weight: NDArray[np.int32] | None,
    below: int,
    above: int,
    hess_steps: int,
    out: NDArray[np.int64],
) -> None:
    """Write each row's slope of the absolute or quantile loss.

    Parameters
    ----------
    score, target : (n_rows,) int32, score steps
    weight : (n_rows,) int32, or None
        Weight steps, >= 0; None is 1 for every row.
    below, above, hess_steps : int
        As in `gradients.SlopeGradient`.
    out : (n_rows,) int64
        Written: weight · ((g << 32) + hess_steps).

    Raises
    ------
    ValueError
        If a dtype, layout or length is wrong; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. -below <= g <= above, times the weight.
    """
    same_rows(score=score, target=target, weight=weight, out=out)
    writable("out", out, np.int64, 1)
    _slopes(
        readable("score", score, np.int32, 1),
        readable("target", target, np.int32, 1),
        int(below),
        int(above),
        int(hess_steps),
        out,
    )
    weigh(weight, out)


@kernel
def _poisson(
    score: NDArray[np.int32],  # IN (n,)
    target: NDArray[np.int32],  # IN (n,)
    rate: NDArray[np.int64],  # IN (TABLE_SIZE,)
    base: int,
    clip_steps: int,
    hess_steps: int,
    always: bool,
    filtered: bool,
    out: NDArray[np.int64],  # OUT (n,)
) -> None:
    half = np.int64(1) << (TARGET_BITS - 1)
    span = GRAD_ONE - base
    for i in range(out.shape[0]):
        k = min(max((score[i] >> TABLE_SHIFT) + TABLE_SIZE // 2, 0), TABLE_SIZE - 1)
        t = min(max(np.int64(target[i]), -half), half)
        g = rate[k] - base - (((t + half) * span) >> TARGET_BITS)
        kept = min(max(g, np.int64(-clip_steps)), np.int64(clip_steps))
        h = np.int64(hess_steps) if always else (hess_steps * rate[k]) >> GRAD_BITS
        if kept != g:
            if filtered:
                kept = np.int64(0)
            if filtered or not always:
                h = np.int64(0)
        out[i] = (kept << 32) + h


def poisson(
    score: NDArray[np.int32],
    target: NDArray[np.int32],
    weight: NDArray[np.int32] | None,
    gradient: PoissonGradient,
    out: NDArray[np.int64],
) -> None:
    """Write each row's gradient and Hessian of the Poisson loss, in integers only.

    Parameters
    ----------
    score, target : (n_rows,) int32, score steps
        Targets beyond ±2¹⁶ are clipped to ±2¹⁶.
    weight : (n_rows,) int32, or None
        Weight steps, >= 0; None is 1 for every row.
    gradient : PoissonGradient
    out : (n_rows,) int64
        Written: weight · ((g << 32) + h).

    Raises
    ------
    ValueError
        If a dtype, layout or length is wrong; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. Rate and target are among the whole numbers that `gradients.PoissonGradient` bounds.
    """
    same_rows(score=score, target=target, weight=weight, out=out)
    writable("out", out, np.int64, 1)
    _poisson(
        readable("score", score, np.int32, 1),
        readable("target", target, np.int32, 1),
        readable("rate", gradient.rate, np.int64, 1),
        gradient.base,
        gradient.clip_steps,
        gradient.hess_steps,
        gradient.always,
        gradient.filtered,
        out,
    )
    weigh(weight, out)


@inner
def _shares(
    score: NDArray[np.int32],  # IN (n_classes, n)
    lo: int,
    exp_table: NDArray[np.int32],  # IN (n,)
    total: NDArray[np.int32],  # scratch (rows of the block,)
    label: NDArray[np.int32],  # IN (rows of the block,): of rows from lo on, classes that exist
    share: NDArray[np.int32],  # OUT (n_classes, >= rows of the block)
) -> None:
    """Write p of rows, class by class, so that an instruction takes several rows.

    The other classes are rounded down and the true class gets the rest, so p sums to 1 in every row.
    """
    n_classes, n = score.shape[0], label.shape[0]
    top, shift = np.uint32(exp_table.shape[0] - 1), np.uint32(TABLE_SHIFT)
    best = total
    best[:] = score[0, lo : lo + n]
    for k in range(1, n_classes):
        own = score[k, lo : lo + n]
        for i in range(n):
            best[i] = max(best[i], own[i])
    for k in range(n_classes):
        own, index = score[k, lo : lo + n], share[k, :n]
        for i in range(n):
            # the difference may need 32 bits, and is not negative
            index[i] = min(np.uint32(np.uint32(best[i] - own[i]) >> shift), top)
    total[:] = 0  # at most 2**20 of 2**10 classes: `gradients.MOST_EXP`
    for k in range(n_classes):
        own = share[k, :n]
        for i in range(n):
            own[i] = exp_table[own[i]]
            total[i] += own[i]
    for k in range(n_classes):
        own = share[k, :n]
        for i in range(n):
            # exactly ⌊e · 2¹⁵ / total⌋: a quotient below 2¹⁵ that is not whole is 2⁻³⁰ away from the next whole number
            # at least, and is rounded by 2⁻³⁸ at most. Four are divided at once, where whole numbers are one by one
            own[i] = np.int32(np.divide(np.float64(own[i]) * GRAD_ONE, np.float64(total[i])))
    rest = total
    rest[:] = GRAD_ONE
    for k in range(n_classes):
        own = share[k, :n]
        for i in range(n):
            rest[i] -= own[i]
    for i in range(n):
        share[label[i], i] += rest[i]


@inner
def _class_of(
    label: NDArray[np.uint8],  # IN (n,)
    n_classes: int,
    out: NDArray[np.int32],  # OUT (n,)
) -> None:
    for i in range(out.shape[0]):
        out[i] = min(np.int32(label[i]), np.int32(n_classes - 1))


@kernel
def _softmax(
    score: NDArray[np.int32],  # IN (n_classes, n)
    label: NDArray[np.uint8],  # IN (n,)
    exp_table: NDArray[np.int64],  # IN (n,)
    clip_steps: int,
    hess_steps: int,
    always: bool,
    filtered: bool,
    out: NDArray[np.int64],  # OUT (n_classes, n)
) -> None:
    n_classes, n = out.shape
    table, share = exp_table.astype(np.int32), np.empty((n_classes, CLASS_BLOCK), np.int32)
    spare = np.empty((3, CLASS_BLOCK), np.int32)
    clip, one = np.int64(clip_steps), np.int64(GRAD_ONE)
    for lo in range(0, n, CLASS_BLOCK):
        hi = min(n, lo + CLASS_BLOCK)
        of, total, largest = spare[0, : hi - lo], spare[1, : hi - lo], spare[2, : hi - lo]
        _class_of(label[lo:hi], n_classes, of)
        _shares(score, lo, table, total, of, share)
        largest[:] = 0
        for k in range(n_classes if filtered else 0):
            own_share = share[k, : hi - lo]
            for i in range(hi - lo):
                g = own_share[i] - (GRAD_ONE if of[i] == k else 0)
                largest[i] = max(largest[i], abs(g))
        for k in range(n_classes):
            own_share, own = share[k, : hi - lo], out[k, lo:hi]
            for i in range(hi - lo):
                p = np.int64(own_share[i])
                g = p - one if of[i] == k else p
                kept = min(max(g, -clip), clip)
                h = np.int64(hess_steps)
                if not always:
                    h = (h * p * (one - p)) >> (2 * GRAD_BITS) if kept == g else np.int64(0)
                own[i] = np.int64(0) if largest[i] > clip else (kept << 32) + h


def softmax(
    score: NDArray[np.int32],
    label: NDArray[np.uint8],
    weight: NDArray[np.int32] | None,
    exp_table: NDArray[np.int64],
    out: NDArray[np.int64],
    *,
    clip_steps: int = GRAD_ONE,
    hess_steps: int = 2 * GRAD_ONE,
    always: bool = False,
    filtered: bool = False,
) -> None:
    """Write each row's gradients and Hessians of the multiclass log-loss, in integers only.

    Parameters
    ----------
    score : (n_classes, n_rows) int32, score steps
    label : (n_rows,) uint8
        Class; a class that does not exist is taken as the last one (such rows have weight 0).
    weight : (n_rows,) int32, or None
        Weight steps, >= 0; None is 1 for every row.
    exp_table : (n,) int64
        `gradients.SoftmaxGradient.exp_table`: 1 to 2²⁰.
    out : (n_classes, n_rows) int64
        Written: weight · ((g << 32) + h) with g = p - 1_y and h = a·p·(1 - p).
    clip_steps, hess_steps, always, filtered
        As in `gradients.SoftmaxGradient`; by default nothing is clipped and a = 2.

    Raises
    ------
    ValueError
        If a dtype, layout or length is wrong; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. p is on the integer simplex over which `gradients.SoftmaxGradient` bounds a row: by
    default ‖(g, h)‖ <= √2 · 2¹⁵ over all classes, times the weight.
    """
    same_rows(score=score, label=label, weight=weight, out=out)
    if score.shape != out.shape:
        raise ValueError("score and out differ in classes. Both hold one row per class.")
    writable("out", out, np.int64, 2)
    _softmax(
        readable("score", score, np.int32, 2),
        readable("label", label, np.uint8, 1),
        readable("exp_table", exp_table, np.int64, 1),
        int(clip_steps),
        int(hess_steps),
        bool(always),
        bool(filtered),
        out,
    )
    if weight is not None:
        for row in out:
            weigh(weight, row)


@kernel
def _clipped_softmax(
    score: NDArray[np.int32],  # IN (n_classes, n)
    label: NDArray[np.uint8],  # IN (n,)
    exp_table: NDArray[np.int64],  # IN (n,)
    shrink: NDArray[np.int64],  # IN (NORM_SIZE,)
    hess_steps: int,
    out: NDArray[np.int64],  # OUT (n_classes, n)
) -> None:
    n_classes, n = out.shape
    table, share = exp_table.astype(np.int32), np.empty((n_classes, CLASS_BLOCK), np.int32)
    spare, squares = np.empty((3, CLASS_BLOCK), np.int32), np.empty(CLASS_BLOCK, np.int64)
    scale, one = np.int64(hess_steps), np.int32(GRAD_ONE)
    for lo in range(0, n, CLASS_BLOCK):
        hi = min(n, lo + CLASS_BLOCK)
        of, total, weight = spare[0, : hi - lo], spare[1, : hi - lo], spare[2, : hi - lo]
        squared = squares[: hi - lo]
        _class_of(label[lo:hi], n_classes, of)
        _shares(score, lo, table, total, of, share)
        squared[:] = 0
        for k in range(n_classes):
            own = share[k, : hi - lo]
            for i in range(hi - lo):
                g = np.int64(own[i] - (one if of[i] == k else np.int32(0)))
                squared[i] += g * g
        for i in range(hi - lo):
            # rows of a softmax are within the table; the clamp keeps any other row from reading beyond it
            weight[i] = shrink[min(squared[i] >> NORM_SHIFT, shrink.shape[0] - 1)]
        for k in range(n_classes):
            own, to = share[k, : hi - lo], out[k, lo:hi]
            for i in range(hi - lo):
                p, w = own[i], weight[i]
                # |g|, h and w are 2¹⁵ at most: their products have 32 bits
                size = np.int32(np.int32((one - p if of[i] == k else p) * w) >> GRAD_BITS)
                g = -np.int64(size) if of[i] == k else np.int64(size)
                h = (scale * np.int64(np.int32(p * np.int32(one - p)))) >> (2 * GRAD_BITS)
                to[i] = (g << 32) + ((h * w) >> GRAD_BITS)


def clipped_softmax(
    score: NDArray[np.int32],
    label: NDArray[np.uint8],
    weight: NDArray[np.int32] | None,
    exp_table: NDArray[np.int64],
    shrink: NDArray[np.int64],
    hess_steps: int,
    out: NDArray[np.int64],
) -> None:
    """Write each row's gradients and Hessians of the multiclass log-loss, clipped in norm, in integers only.

    Parameters
    ----------
    score, label, weight, exp_table
        As in `softmax`.
    shrink : (NORM_SIZE,) int64
        `gradients.ClippedSoftmaxGradient.shrink`.
    hess_steps : int
        a · 2¹⁵.
    out : (n_classes, n_rows) int64
        Written: weight · w · ((g << 32) + h), each rounded towards zero; the clip is of a row of weight 1.

    Raises
    ------
    ValueError
        If a dtype, layout or length is wrong; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. Rounding is towards zero, so no row is longer than `gradients.ClippedSoftmaxGradient`
    states (docs/privacy.md P2).
    """
    same_rows(score=score, label=label, weight=weight, out=out)
    if score.shape != out.shape:
        raise ValueError("score and out differ in classes. Both hold one row per class.")
    if shrink.shape != (NORM_SIZE,):
        raise ValueError(f"shrink must have shape ({NORM_SIZE},). Make it with gradients.")
    writable("out", out, np.int64, 2)
    _clipped_softmax(
        readable("score", score, np.int32, 2),
        readable("label", label, np.uint8, 1),
        readable("exp_table", exp_table, np.int64, 1),
        readable("shrink", shrink, np.int64, 1),
        int(hess_steps),
        out,
    )
    if weight is not None:
        for row in out:
            weigh(weight, row)


def score_table(gradient: Gradient) -> NDArray[np.int64] | None:
    """Return the table that `logistic` reads by label and score; None if the gradient is found in another way."""
    if isinstance(gradient, LogisticGradient) or (
        isinstance(gradient, TableGradient) and gradient.kind != "numeric"
    ):
        return gradient.table
    return None


def write(
    gradient: Gradient,
    score: NDArray[np.int32],
    label: NDArray[np.uint8] | NDArray[np.int32],
    weight: NDArray[np.int32] | None,
    out: NDArray[np.int64],
) -> None:
    """Write what each row adds under any gradient; it and `score_table` alone tell the classes of gradients apart.

    Parameters
    ----------
    gradient : Gradient
    score : (n_scores, n_rows) int32, score steps
    label : (n_rows,) uint8 classes, or int32 targets in score steps
    weight : (n_rows,) int32, or None
        Weight steps, >= 0; None is 1 for every row.
    out : (n_scores, n_rows) int64
        Written: weight · ((g << 32) + h).

    Raises
    ------
    PlanError
        If the gradient has another class: ``out`` would keep whatever the memory held.
    ValueError
        If a dtype, layout or length is wrong; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. Each row's vector is within the gradient's own bounds, times the weight.
    """
    check_gradient(gradient)
    columns = getattr(gradient, "n_scores", 1)  # all others have one score
    if score.shape != out.shape or len(score) != columns:
        raise ValueError(
            f"score and out need one row per score column of {type(gradient).__name__}."
        )
    match gradient:
        case LogisticGradient() | TableGradient():
            by_score = score_table(gradient)
            if by_score is None:
                residuals(score[0], label, weight, gradient.table, out[0])  # type: ignore[arg-type]
            else:
                logistic(score[0], label, weight, by_score, out[0])  # type: ignore[arg-type]
        case SquaredGradient() | FreeSquaredGradient():
            squared(
                score[0],
                label,  # type: ignore[arg-type]  # the kernels check dtypes
                weight,
                gradient.clip_steps,
                gradient.hess_steps,
                out[0],
                always=gradient.always,
                filtered=gradient.filtered,
                curved_steps=gradient.curved_steps,
            )
        case SlopeGradient():
            below, above = gradient.below, gradient.above
            slopes(score[0], label, weight, below, above, gradient.hess_steps, out[0])  # type: ignore[arg-type]
        case PoissonGradient():
            poisson(score[0], label, weight, gradient, out[0])  # type: ignore[arg-type]
        case SoftmaxGradient():
            softmax(
                score,
                label,  # type: ignore[arg-type]
                weight,
                gradient.exp_table,
                out,
                clip_steps=gradient.clip_steps,
                hess_steps=gradient.hess_steps,
                always=gradient.always,
                filtered=gradient.filtered,
            )
        case ClippedSoftmaxGradient():
            clipped_softmax(
                score,
                label,  # type: ignore[arg-type]
                weight,
                gradient.exp_table,
                gradient.shrink,
                gradient.hess_steps,
                out,
            )
        case LabelGradient():
            same_rows(score=score, label=label, weight=weight, out=out)
            for k, column in enumerate(out):
                _labels(gradient, k, label, column)
                weigh(weight, column)
        case _:
            assert_never(gradient)


def _labels(
    gradient: LabelGradient,
    k: int,
    label: NDArray[np.uint8] | NDArray[np.int32],
    out: NDArray[np.int64],  # OUT (n,)
) -> None:
    """Write minus the target of score column ``k``, and the second component."""
    out[:] = gradient.hess_steps
    if not gradient.average:
        return
    if gradient.kind == "numeric":
        # targets are in [-2**16, 2**16]; a target beyond is clipped, so that it adds no more than the bound
        half = 1 << (TARGET_BITS - 1)
        out -= (np.clip(label.astype(np.int64), -half, half) >> 1) << 32
    else:
        own = label == k if gradient.kind == "multiclass" else label != 0
        out[own] -= GRAD_ONE << 32
