"""A symmetric matrix as Q T Q', T tridiagonal; and linear systems with I + τ²T for many scales τ and right-hand sides.

The reduction is Householder's, from the last row up, so that inner loops run over the beginnings of rows. Q is the
product of I - vv' over the reflectors v. Systems are solved by the LDL' factors of I + τ²T, in time linear in the
order. T is positive semi-definite, so their pivots are at least 1: what rounding takes below 1 is given back.
"""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel

PANEL = 4  # reflectors that are applied to the rest of the matrix at once
# a scale of such a share, times its square, adds nothing to a mean: shares sum to 1
NOTHING = 1e-20


@inner
def _dot(a: NDArray[np.float64], b: NDArray[np.float64], n: int) -> float:
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0  # sums that do not wait for each other
    for i in range(0, n - 3, 4):
        s0 += a[i] * b[i]
        s1 += a[i + 1] * b[i + 1]
        s2 += a[i + 2] * b[i + 2]
        s3 += a[i + 3] * b[i + 3]
    for i in range(n - n % 4, n):
        s0 += a[i] * b[i]
    return (s0 + s1) + (s2 + s3)


@inner
def _subtract(
    out: NDArray[np.float64],  # IN OUT (>= n,)
    s: float,
    a: NDArray[np.float64],  # IN (>= n,)
    t: float,
    b: NDArray[np.float64],  # IN (>= n,)
    n: int,
) -> None:
    for j in range(n):
        out[j] -= s * a[j] + t * b[j]


@inner
def _multiply(
    matrix: NDArray[np.float64],  # IN (>= n, >= n), symmetric
    x: NDArray[np.float64],  # IN (>= n,)
    out: NDArray[np.float64],  # OUT (>= n,)
    n: int,
) -> None:
    for j in range(n):
        out[j] = 0
    # eight rows at once: the sums are read and written an eighth as often
    for i in range(0, n - 7, 8):
        x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        x4, x5, x6, x7 = x[i + 4], x[i + 5], x[i + 6], x[i + 7]
        for j in range(n):
            first = (x0 * matrix[i, j] + x1 * matrix[i + 1, j]) + (
                x2 * matrix[i + 2, j] + x3 * matrix[i + 3, j]
            )
            second = (x4 * matrix[i + 4, j] + x5 * matrix[i + 5, j]) + (
                x6 * matrix[i + 6, j] + x7 * matrix[i + 7, j]
            )
            out[j] += first + second
    for i in range(n - n % 8, n):
        for j in range(n):
            out[j] += x[i] * matrix[i, j]


@inner
def _subtract_panel(
    matrix: NDArray[np.float64],  # IN OUT (>= n, >= n)
    v: NDArray[np.float64],  # IN (PANEL, >= n)
    w: NDArray[np.float64],  # IN (PANEL, >= n)
    n: int,
) -> None:
    for i in range(n):
        v0, v1, v2, v3 = v[0, i], v[1, i], v[2, i], v[3, i]
        w0, w1, w2, w3 = w[0, i], w[1, i], w[2, i], w[3, i]
        for j in range(n):
            first = (v0 * w[0, j] + w0 * v[0, j]) + (v1 * w[1, j] + w1 * v[1, j])
            second = (v2 * w[2, j] + w2 * v[2, j]) + (v3 * w[3, j] + w3 * v[3, j])
            matrix[i, j] -= first + second


@kernel
def reduce_matrix(
    matrix: NDArray[np.float64],  # IN OUT (n, n): symmetric; then row k begins with its reflector
    diagonal: NDArray[np.float64],  # OUT (n,)
    beside: NDArray[np.float64],  # OUT (n - 1,)
) -> None:
    """Write T's diagonal, and the entries beside it."""
    n = matrix.shape[0]
    # with H = I - vv', HAH = A - vw' - wv' for w = Av - ½(v'Av)v. Rows see the reflectors of a panel when their turn
    # comes, all others only once it is full
    v, w = np.zeros((PANEL, n)), np.zeros((PANEL, n))
    for step in range(n):
        k, place = n - 1 - step, step % PANEL
        row = matrix[k]
        for p in range(place):
            _subtract(row, v[p, k], w[p], w[p, k], v[p], k + 1)
        diagonal[k] = row[k]
        if k == 0:
            row[:] = 0
            break
        size = np.sqrt(_dot(row, row, k))
        last = row[k - 1]
        beside[k - 1] = -size if last > 0 else size
        if size > 0:
            row[k - 1] = last - beside[k - 1]  # no cancellation: the signs differ
            part = 1 / np.sqrt(size * abs(row[k - 1]))  # so that |v|² = 2
            for j in range(k):
                row[j] *= part
        image = w[place]
        _multiply(matrix, row, image, k)
        for p in range(place):
            _subtract(image, _dot(w[p], row, k), v[p], _dot(v[p], row, k), w[p], k)
        _subtract(image, 0.5 * _dot(row, image, k), row, 0.0, row, k)
        for j in range(k):
            v[place, j] = row[j]
        for j in range(k, n):
            row[j] = 0
        if place == PANEL - 1:
            _subtract_panel(matrix, v, w, k)


@inner
def _along(
    v: NDArray[np.float64],  # IN (>= n,)
    u: NDArray[np.float64],  # IN (>= n,)
    columns: NDArray[np.float64],  # IN (>= n, n_columns)
    n: int,
    out: NDArray[np.float64],  # OUT (2, n_columns)
) -> None:
    out[:] = 0
    for i in range(0, n - 1, 2):
        v0, v1, u0, u1 = v[i], v[i + 1], u[i], u[i + 1]
        for c in range(out.shape[1]):
            x0, x1 = columns[i, c], columns[i + 1, c]
            out[0, c] += v0 * x0 + v1 * x1
            out[1, c] += u0 * x0 + u1 * x1
    if n % 2:
        for c in range(out.shape[1]):
            out[0, c] += v[n - 1] * columns[n - 1, c]
            out[1, c] += u[n - 1] * columns[n - 1, c]


@kernel
def turn_columns(
    reflectors: NDArray[np.float64],  # IN (n, n), as `reduce_matrix` leaves them
    back: bool,
    columns: NDArray[np.float64],  # IN OUT (n, n_columns)
) -> None:
    """Multiply columns by Q'; if ``back``, by Q."""
    n, n_columns = columns.shape
    along = np.empty((2, n_columns))
    # two at once: (I - uu')(I - vv')X = X - v v'X - u (u'X - u'v v'X). If n is odd, the first row is left out: it is 0
    for step in range(0, n - n % 2, 2):
        first = n % 2 + step if back else n - 1 - step
        second = first + 1 if back else first - 1
        v, u, most = reflectors[first], reflectors[second], max(first, second)
        _along(v, u, columns, most, along)
        both = _dot(v, u, most)
        for c in range(n_columns):
            along[1, c] -= both * along[0, c]
        for i in range(most):
            v0, u0 = v[i], u[i]
            for c in range(n_columns):
                columns[i, c] -= v0 * along[0, c] + u0 * along[1, c]


@kernel
def write_log_evidence(
    diagonal: NDArray[np.float64],  # IN (n,)
    beside: NDArray[np.float64],  # IN (n - 1,)
    q: NDArray[np.float64],  # IN (n, n_columns)
    scales: NDArray[np.float64],  # IN (n_scales,)
    out: NDArray[np.float64],  # OUT (n_scales, n_columns)
) -> None:
    """Write ½ τ² q'(I + τ²T)⁻¹q - ½ log det(I + τ²T) of every scale τ and column of q."""
    n, n_columns = q.shape
    y = np.empty(n_columns)
    for s in range(scales.shape[0]):
        t2 = scales[s] * scales[s]
        pivot = 1 + t2 * diagonal[0]
        log_det, part = np.log(pivot), t2 / pivot
        for c in range(n_columns):
            y[c] = q[0, c]
            out[s, c] = part * y[c] * y[c]
        for i in range(1, n):
            left = t2 * beside[i - 1] / pivot
            pivot = max(1.0, 1 + t2 * (diagonal[i] - left * beside[i - 1]))
            log_det += np.log(pivot)
            part = t2 / pivot
            for c in range(n_columns):
                y[c] = q[i, c] - left * y[c]
                out[s, c] += part * y[c] * y[c]
        for c in range(n_columns):
            out[s, c] = 0.5 * (out[s, c] - log_det)


@kernel
def add_shrunk(
    diagonal: NDArray[np.float64],  # IN (n,)
    beside: NDArray[np.float64],  # IN (n - 1,)
    q: NDArray[np.float64],  # IN (n, n_columns)
    scales: NDArray[np.float64],  # IN (n_scales,)
    share: NDArray[np.float64],  # IN (n_scales, n_columns)
    out: NDArray[np.float64],  # OUT (n, n_columns), added to
) -> None:
    """Add Σ share · τ²(I + τ²T)⁻¹ q over the scales τ, column by column."""
    n, n_columns = q.shape
    y, x = np.empty((n, n_columns)), np.empty(n_columns)
    pivot, left = np.empty(n), np.zeros(n + 1)
    for s in range(scales.shape[0]):
        t2 = scales[s] * scales[s]
        if t2 * share[s].max() < NOTHING:
            continue
        pivot[0] = 1 + t2 * diagonal[0]
        for c in range(n_columns):
            y[0, c] = t2 * share[s, c] * q[0, c]
        for i in range(1, n):
            left[i] = t2 * beside[i - 1] / pivot[i - 1]
            pivot[i] = max(1.0, 1 + t2 * (diagonal[i] - left[i] * beside[i - 1]))
            for c in range(n_columns):
                y[i, c] = t2 * share[s, c] * q[i, c] - left[i] * y[i - 1, c]
        for c in range(n_columns):
            x[c] = 0
        for i in range(n - 1, -1, -1):
            one = 1 / pivot[i]
            for c in range(n_columns):
                x[c] = one * y[i, c] - left[i + 1] * x[c]
                out[i, c] += x[c]
