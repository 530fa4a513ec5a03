"""The information that a round's sums give about a table, and the mean of the table given all of it: each in one call.

What `components/auto/smoothing.py` says in matrices, without the matrices that hold little but zeros.
"""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable, writable
from dpgb_dask.kernels.tridiagonal import _log_evidence, _reduce, _shrunk, _turn

PANEL = 4  # leaves that are added to the precision at once


@inner
def _sum_leaves(
    leaf: NDArray[np.uint8],  # IN (n,)
    weight: NDArray[np.float64],  # IN (n,)
    root: NDArray[np.float64],  # IN (n, n)
    out: NDArray[np.float64],  # OUT (>= n_leaves, n), added to
) -> None:
    n = len(leaf)
    for b in range(n):
        to, w = out[leaf[b]], weight[b]
        for j in range(n):
            to[j] += w * root[b, j]


@kernel
def _inform(
    leaf: NDArray[np.uint8],  # IN (n,)
    weight: NDArray[np.float64],  # IN (n,)
    root: NDArray[np.float64],  # IN (n, n)
    certain: NDArray[np.float64],  # IN (n_leaves,)
    keep: float,
    before: NDArray[np.float64],  # IN (n, n)
    rooted: NDArray[np.float64],  # OUT (n_leaves up to the next multiple of PANEL, n), zeros
    precision: NDArray[np.float64],  # OUT (n, n)
) -> None:
    n, n_leaves = len(leaf), len(certain)
    _sum_leaves(leaf, weight, root, rooted)
    c = np.zeros(len(rooted))
    for k in range(n_leaves):
        c[k] = certain[k]
    for i in range(n):
        row = precision[i]
        for j in range(i + 1):
            row[j] = keep * before[i, j]
        for k in range(0, len(rooted), PANEL):
            a0, a1 = c[k] * rooted[k, i], c[k + 1] * rooted[k + 1, i]
            a2, a3 = c[k + 2] * rooted[k + 2, i], c[k + 3] * rooted[k + 3, i]
            for j in range(i + 1):
                first = a0 * rooted[k, j] + a1 * rooted[k + 1, j]
                second = a2 * rooted[k + 2, j] + a3 * rooted[k + 3, j]
                row[j] += first + second
    for i in range(n):
        for j in range(i):
            precision[j, i] = precision[i, j]


@inner
def _weigh(
    evidence: NDArray[
        np.float64
    ],  # IN OUT (n_scales, n_columns): logarithms; then the share of each scale
) -> None:
    n_scales, n_columns = evidence.shape
    for c in range(n_columns):
        largest, total = evidence[:, c].max(), 0.0
        for s in range(n_scales):
            evidence[s, c] = np.exp(evidence[s, c] - largest)
            total += evidence[s, c]
        for s in range(n_scales):
            evidence[s, c] /= total


@kernel
def _mean(
    precision: NDArray[np.float64],  # IN (n, n)
    shift: NDArray[np.float64],  # IN (n,)
    root: NDArray[np.float64],  # IN (n, n)
    scales: NDArray[np.float64],  # IN (n_scales,)
    leaf: NDArray[np.uint8],  # IN (n,)
    weight: NDArray[np.float64],  # IN (n,)
    certain: NDArray[np.float64],  # IN (n_leaves,), or (0,)
    omitted: int,
    value: NDArray[np.float64],  # OUT (n,)
    told: NDArray[np.float64],  # OUT (2,): the largest log evidence; how far the mean follows noise
) -> None:
    n, n_leaves, n_scales = len(shift), len(certain), len(scales)
    matrix, diagonal, beside = precision.copy(), np.empty(n), np.empty(n - 1)
    _reduce(matrix, diagonal, beside)
    q = np.empty((n, 1 + n_leaves))
    if n_leaves:
        rooted = np.zeros((n_leaves, n))
        _sum_leaves(leaf, weight, root, rooted)
        q[:, 1:] = rooted.T
    q[:, 0] = shift
    _turn(matrix, False, q)

    own, evidence = np.empty((n, 1)), np.empty((n_scales, 1))
    own[:, 0] = q[:, 0]
    _log_evidence(diagonal, beside, own, scales, evidence)
    told[0] = evidence.max()
    _weigh(evidence)
    share = np.empty((n_scales, 1 + n_leaves))
    for s in range(n_scales):
        share[s] = evidence[s, 0]
    shrunk = np.zeros((n, 1 + n_leaves))
    # how q makes the mean is also how noise in q does
    _shrunk(diagonal, beside, q, scales, share, shrunk)

    own[:, 0] = shrunk[:, 0]
    _turn(matrix, True, own)
    for i in range(n):
        value[i] = 0.0
        for j in range(n):
            value[i] += root[i, j] * own[j, 0]

    told[1] = 0.0
    per_weight = np.zeros(n_leaves)
    for b in range(n if n_leaves else 0):
        per_weight[leaf[b]] += weight[b]
    for k in range(n_leaves):
        per_weight[k] = 1 / per_weight[k] if per_weight[k] > 0 else 0.0
    for k in range(n_leaves):
        # how the mean of a leaf moves against a unit of the noise on its sum
        own_part, others_part = 0.0, 0.0
        for i in range(n):
            own_part += q[i, 1 + k] * shrunk[i, 1 + k]
        told[1] += certain[k] * per_weight[k] * own_part
        if omitted >= 0:
            # the sum of a leaf that was kept back has the noise of all others, with the other sign
            for i in range(n):
                others_part += q[i, 1 + omitted] * shrunk[i, 1 + k]
            told[1] -= certain[k] * per_weight[omitted] * others_part


@inner
def _averaged(
    diagonal: NDArray[np.float64],  # IN (n,)
    beside: NDArray[np.float64],  # IN (n - 1,)
    q: NDArray[np.float64],  # IN (n, n_columns)
    scales: NDArray[np.float64],  # IN (n_scales,)
    out: NDArray[np.float64],  # OUT (n, n_columns), zeros
) -> None:
    share = np.empty((len(scales), q.shape[1]))
    _log_evidence(diagonal, beside, q, scales, share)
    _weigh(share)
    _shrunk(diagonal, beside, q, scales, share, out)


@kernel
def _moves(
    precision: NDArray[np.float64],  # IN (n, n)
    shift: NDArray[np.float64],  # IN (n,)
    known: NDArray[np.float64],  # IN (n, n_draws)
    scales: NDArray[np.float64],  # IN (n_scales,)
    passed: bool,
    out: NDArray[np.float64],  # OUT (n, n_draws)
) -> None:
    n, n_draws = known.shape
    matrix, diagonal, beside = precision.copy(), np.empty(n), np.empty(n - 1)
    _reduce(matrix, diagonal, beside)
    q = np.empty((n, 1 + n_draws))
    q[:, 0], q[:, 1:] = shift, known
    _turn(matrix, False, q)
    if not passed:
        mean = np.zeros((n, 1))
        _averaged(diagonal, beside, q[:, :1].copy(), scales, mean)
        for i in range(n):
            q[i, 0] = diagonal[i] * mean[i, 0]
            if i > 0:
                q[i, 0] += beside[i - 1] * mean[i - 1, 0]
            if i < n - 1:
                q[i, 0] += beside[i] * mean[i + 1, 0]
    q[:, 1:] += q[:, :1]
    means = np.zeros((n, 1 + n_draws))
    _averaged(diagonal, beside, q, scales, means)
    out[:] = means[:, 1:] - means[:, :1]
    _turn(matrix, True, out)


def inform(
    leaf: NDArray[np.uint8],
    weight: NDArray[np.float64],
    root: NDArray[np.float64],
    certain: NDArray[np.float64],
    *,
    keep: float,
    precision: NDArray[np.float64],
    out: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Add a round's sums to the precision of v, where the table is root · v.

    Parameters
    ----------
    leaf : (n,) uint8
        Leaf of each bin, below the length of ``certain``.
    weight : (n,) float64
    root : (n, n) float64
    certain : (n_leaves,) float64
        Inverse variance of each leaf's sum.
    keep : float
        Share of the earlier information that stays.
    precision : (n, n) float64
        The earlier one, symmetric.
    out : (n, n) float64, written to, or None
        Memory for the new one.

    Returns
    -------
    rooted : (n_leaves, n) float64
        What the sum of each leaf weights v by, A = D · root, where D sums the bins of a leaf by weight.
    precision : (n, n) float64
        ``keep`` times the earlier one, and A' diag(certain) A.
    """
    n, n_leaves = len(leaf), len(certain)
    rooted = np.zeros((-(-n_leaves // PANEL) * PANEL, n))
    out = np.empty((n, n)) if out is None else writable("out", out, np.float64, 2)
    _inform(
        readable("leaf", leaf, np.uint8, 1),
        readable("weight", weight, np.float64, 1),
        readable("root", root, np.float64, 2),
        readable("certain", certain, np.float64, 1),
        keep,
        readable("precision", precision, np.float64, 2),
        rooted,
        out,
    )
    return rooted[:n_leaves], out


def mean(
    precision: NDArray[np.float64],
    shift: NDArray[np.float64],
    root: NDArray[np.float64],
    scales: NDArray[np.float64],
    leaf: NDArray[np.uint8],
    weight: NDArray[np.float64],
    certain: NDArray[np.float64],
    omitted: int,
) -> tuple[NDArray[np.float64], float, float]:
    """Return the posterior mean of a table, averaged over prior scales by their evidence.

    Parameters
    ----------
    precision, shift : (n, n) and (n,) float64
        The information about v.
    root : (n, n) float64
    scales : (n_scales,) float64
        Prior scales τ: v ~ N(0, τ²I).
    leaf : (n,) uint8
    weight : (n,) float64
        Of the last round, as in `inform`.
    certain : (n_leaves,) float64
        Of the last round; empty if nobody asks how far the mean follows its noise.
    omitted : int
        The leaf that was kept back; -1 for none.

    Returns
    -------
    value : (n,) float64
    log_evidence : float
        The largest over the scales.
    follows_noise : float
        Σ certain / weight · A M A' over the leaves, M what makes the mean of the shift; less the part of a leaf kept
        back; 0 without leaves.
    """
    value, told = np.empty(len(shift)), np.empty(2)
    _mean(
        readable("precision", precision, np.float64, 2),
        readable("shift", shift, np.float64, 1),
        readable("root", root, np.float64, 2),
        readable("scales", scales, np.float64, 1),
        readable("leaf", leaf, np.uint8, 1),
        readable("weight", weight, np.float64, 1),
        readable("certain", certain, np.float64, 1),
        omitted,
        value,
        told,
    )
    return value, float(told[0]), float(told[1])


def moves(
    precision: NDArray[np.float64],
    shift: NDArray[np.float64],
    known: NDArray[np.float64],
    scales: NDArray[np.float64],
    *,
    passed: bool,
) -> NDArray[np.float64]:
    """Return how far changes of the information move the posterior mean of v, (n, n_draws).

    Parameters
    ----------
    precision, shift, scales
        As in `mean`.
    known : (n, n_draws) float64
        Changes of ``shift``.
    passed : bool
        Whether the information itself is taken as the truth that it changes; else what its posterior mean makes of it.
    """
    out = np.empty(known.shape)
    _moves(
        readable("precision", precision, np.float64, 2),
        readable("shift", shift, np.float64, 1),
        readable("known", known, np.float64, 2),
        readable("scales", scales, np.float64, 1),
        passed,
        out,
    )
    return out
