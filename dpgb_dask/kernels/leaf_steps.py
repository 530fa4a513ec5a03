"""What every round of small trees computes from released numbers: the steps of leaves, and the ends of tables.

NumPy's functions give the same bits; for a handful of numbers they take several times as long.
"""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import kernel, readable


@kernel
def _newton_steps(
    grad: NDArray[np.float64],  # IN (n,)
    hess: NDArray[np.float64],  # IN (n,)
    ridge: float,
    largest: float,
    rate: float,
    out: NDArray[np.float64],  # OUT (n,)
) -> None:
    for i in range(out.size):
        step = 0.0
        if hess[i] > 0.0:
            step = -grad[i] / (hess[i] + ridge)
        out[i] = rate * min(max(step, -largest), largest)


def newton_steps(
    grad: NDArray[np.float64],
    hess: NDArray[np.float64],
    ridge: float,
    largest: float,
    rate: float,
) -> NDArray[np.float64]:
    """Return ``rate · clip(-grad / (hess + ridge), ±largest)``; 0 where ``hess`` is not positive.

    Parameters
    ----------
    grad, hess : (...) float64
        Released, of one shape.
    ridge, largest, rate : float

    Returns
    -------
    (...) float64

    Raises
    ------
    ValueError
        If the shapes differ: the kernel would read other memory.
    """
    if grad.shape != hess.shape:
        raise ValueError("grad and hess have different shapes. Broadcast them before the kernel.")
    out = np.empty(grad.shape)
    flat = [
        readable("sums", np.ascontiguousarray(part).reshape(-1), np.float64, 1)
        for part in (grad, hess)
    ]
    _newton_steps(flat[0], flat[1], ridge, largest, rate, out.reshape(-1))
    return out


@kernel
def _move_ends(
    before: NDArray[np.int32],  # IN (n, n_scores)
    after: NDArray[np.int32],  # IN (n, n_scores)
    low: NDArray[np.int64],  # OUT (n_scores,), added to
    high: NDArray[np.int64],  # OUT (n_scores,), added to
) -> None:
    for table, sign in ((before, -1), (after, 1)):
        for k in range(low.size):
            least, most = table[0, k], table[0, k]
            for c in range(1, table.shape[0]):
                least, most = min(least, table[c, k]), max(most, table[c, k])
            low[k] += sign * np.int64(least)
            high[k] += sign * np.int64(most)


def move_ends(
    before: NDArray[np.int32],
    after: NDArray[np.int32],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> None:
    """Add to ``low`` and ``high`` by how much the least and the largest entry of a table moved, for each score.

    Parameters
    ----------
    before, after : (n_bins, n_scores) int32, score steps
        Released.
    low, high : (n_scores,) int64, score steps
        Added to in place.
    """
    _move_ends(
        readable("before", before, np.int32, 2), readable("after", after, np.int32, 2), low, high
    )
