"""Each row's gradient and Hessian, packed as ``(g << 32) + h`` in integer steps (losses.py says which)."""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import kernel, readable, same_rows, writable
from dpgb_dask.losses import GRAD_BITS, GRAD_ONE, TABLE_SHIFT, TABLE_SIZE

BLOCK = 2048


@kernel
def _table_index(
    score: NDArray[np.int32],  # IN (n,)
    label: NDArray[np.uint8],  # IN (n,)
    out: NDArray[np.uint16],  # OUT (n,), index into the flattened table
) -> None:
    """Clamp and shift scores: the SIMD half of the look-up."""
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
        _table_index(score[lo:hi], label[lo:hi], index)
        for i in range(block.shape[0]):
            block[i] = table[index[i]]


@kernel
def _weigh(weight: NDArray[np.int32], out: NDArray[np.int64]) -> None:
    """Multiply packed values: w·((g << 32) + h) is (w·g << 32) + w·h."""
    for i in range(out.shape[0]):
        out[i] *= weight[i]


def _weighted(weight: NDArray[np.int32] | None, out: NDArray[np.int64]) -> None:
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
        0 or 1 (any other is taken as 1: rows without a valid label carry weight 0).
    weight : (n_rows,) int32, or None
        Weight steps, >= 0; None is 1 for every row.
    table : (2, TABLE_SIZE) int64
        `losses.LogisticGradient.table`.
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
            f"table must have shape (2, {TABLE_SIZE}). Make it with losses.logistic_gradient."
        )
    flat = readable("table", table, np.int64, 2).reshape(-1)
    writable("out", out, np.int64, 1)
    _logistic(
        readable("score", score, np.int32, 1), readable("label", label, np.uint8, 1), flat, out
    )
    _weighted(weight, out)


@kernel
def _squared(
    score: NDArray[np.int32],  # IN (n,)
    target: NDArray[np.int32],  # IN (n,)
    clip_steps: int,
    hess_steps: int,
    out: NDArray[np.int64],  # OUT (n,)
) -> None:
    for i in range(out.shape[0]):
        r = np.int64(score[i]) - np.int64(target[i])
        kept = r if r < clip_steps else np.int64(clip_steps)
        kept = kept if kept > -clip_steps else np.int64(-clip_steps)
        h = hess_steps if kept == r else 0
        out[i] = ((kept >> 1) << 32) + h


def squared(
    score: NDArray[np.int32],
    target: NDArray[np.int32],
    weight: NDArray[np.int32] | None,
    clip_steps: int,
    hess_steps: int,
    out: NDArray[np.int64],
) -> None:
    """Write each row's gradient and Hessian of the squared loss with clipped residuals.

    Parameters
    ----------
    score, target : (n_rows,) int32, score steps
        Prediction and target.
    weight : (n_rows,) int32, or None
        Weight steps, >= 0; None is 1 for every row.
    clip_steps, hess_steps : int
        As in `losses.SquaredGradient`. A residual of exactly ``clip_steps`` is not clipped.
    out : (n_rows,) int64
        Written: weight · ((g << 32) + h), g = clip(score - target) >> 1, h = hess_steps where not clipped.

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
        int(hess_steps),
        out,
    )
    _weighted(weight, out)


@kernel
def _softmax(
    score: NDArray[np.int32],  # IN (n_classes, n)
    label: NDArray[np.uint8],  # IN (n,)
    exp_table: NDArray[np.int64],  # IN (n,)
    out: NDArray[np.int64],  # OUT (n_classes, n)
) -> None:
    n_classes, n = out.shape
    e = np.empty(n_classes, np.int64)
    last = exp_table.shape[0] - 1
    for i in range(n):
        best = np.int64(score[0, i])
        for k in range(1, n_classes):
            best = max(best, np.int64(score[k, i]))
        total = np.int64(0)
        for k in range(n_classes):
            e[k] = exp_table[min((best - np.int64(score[k, i])) >> TABLE_SHIFT, last)]
            total += e[k]
        y = min(np.int64(label[i]), n_classes - 1)
        rest = np.int64(GRAD_ONE)
        for k in range(n_classes):
            p = (e[k] << GRAD_BITS) // total
            if k != y:
                rest -= p
                out[k, i] = (p << 32) + ((2 * p * (GRAD_ONE - p)) >> GRAD_BITS)
        # rounding down the others leaves the rest to the true class: g sums to 0 and |g| stays in its bound
        out[y, i] = ((rest - GRAD_ONE) << 32) + ((2 * rest * (GRAD_ONE - rest)) >> GRAD_BITS)


def softmax(
    score: NDArray[np.int32],
    label: NDArray[np.uint8],
    weight: NDArray[np.int32] | None,
    exp_table: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Write each row's gradients and Hessians of the multiclass log-loss, in integers only.

    Parameters
    ----------
    score : (n_classes, n_rows) int32, score steps
    label : (n_rows,) uint8
        Class; one that does not exist is taken as the last (such rows carry weight 0).
    weight : (n_rows,) int32, or None
        Weight steps, >= 0; None is 1 for every row.
    exp_table : (n,) int64
        `losses.SoftmaxGradient.exp_table`.
    out : (n_classes, n_rows) int64
        Written: weight · ((g << 32) + h) with g = p - 1_y and h = 2·p·(1 - p).

    Raises
    ------
    ValueError
        If a dtype, layout or length is wrong; never because of a value.

    Privacy
    -------
    Private side; nothing leaves. Over all classes ‖(g, h)‖ <= √2 · 2¹⁵ times the weight (losses.SoftmaxGradient).
    """
    same_rows(score=score, label=label, weight=weight, out=out)
    if score.shape != out.shape:
        raise ValueError("score and out differ in classes. Both hold one row per class.")
    writable("out", out, np.int64, 2)
    _softmax(
        readable("score", score, np.int32, 2),
        readable("label", label, np.uint8, 1),
        readable("exp_table", exp_table, np.int64, 1),
        out,
    )
    if weight is not None:
        for row in out:
            _weighted(weight, row)
