"""What a round's sums tell of a table, the mean of the table given all of it, and how noise moves that mean.

What docs/default-method.md §2 says in matrices, without the matrices that hold little but zeros. A table of n bins is
root · v, with m coordinates v; the rounds so far tell of the first of them only (`kernels/nested.py`), so many as
``shift`` has, which is the rank of the information: sums over leaves have no weights beyond, and the rest of a
precision is zero.
"""

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import inner, kernel, readable, writable
from dpgb_dask.kernels.tridiagonal import (
    add_shrunk,
    reduce_matrix,
    turn_columns,
    write_log_evidence,
)

PANEL = 4  # leaves that are added to the precision at once
TINY = 1e-300  # what is divided by if it should be 0


@inner
def _certainty(
    leaf: NDArray[np.uint8],  # IN (n,)
    weight: NDArray[np.float64],  # IN (n,)
    grad_sd: float,
    sampling: float,
    omitted: int,
    of_leaf: NDArray[np.float64],  # OUT (n_leaves,): weight of each leaf
    # OUT (>= n_leaves,): inverse variance of its sum, by noise and sampling
    certain: NDArray[np.float64],
) -> None:
    # Where a leaf was kept back, it tells nothing beyond the others and the total, and a leaf's share of the total
    # carries noise of one cell. Otherwise many tables' totals are averaged, and their noise does not count.
    of_leaf[:] = 0
    certain[:] = 0
    for b in range(len(leaf)):
        of_leaf[leaf[b]] += weight[b]
    total = of_leaf.sum()
    for k in range(len(of_leaf)):
        cells = 1.0 if omitted < 0 else 1 + (of_leaf[k] / total) ** 2
        certain[k] = 1 / (grad_sd**2 * cells + sampling * of_leaf[k])
    if omitted >= 0:
        certain[omitted] = 0


@inner
def _sum_leaves(
    leaf: NDArray[np.uint8],  # IN (n,)
    weight: NDArray[np.float64],  # IN (n,)
    root: NDArray[np.float64],  # IN (n, m)
    out: NDArray[np.float64],  # OUT (>= n_leaves, rank), zeros
) -> None:
    for b in range(len(leaf)):
        to, w = out[leaf[b]], weight[b]
        for j in range(out.shape[1]):
            to[j] += w * root[b, j]


@inner
def _leaves(
    leaf: NDArray[np.uint8],  # IN (n,)
    weight: NDArray[np.float64],  # IN (n,)
    root: NDArray[np.float64],  # IN (n, m)
    n_leaves: int,
    rank: int,
    grad_sd: float,
    sampling: float,
    omitted: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the weight of each leaf, the certainty of its sum, and what its sum weights v by.

    The last two have as many rows as the next multiple of PANEL, zeros beyond the leaves.
    """
    of_leaf, padded = np.empty(n_leaves), -(-n_leaves // PANEL) * PANEL
    certain, rooted = np.empty(padded), np.zeros((padded, rank))
    _certainty(leaf, weight, grad_sd, sampling, omitted, of_leaf, certain)
    _sum_leaves(leaf, weight, root, rooted)
    return of_leaf, certain, rooted


@inner
def _inform(
    rooted: NDArray[np.float64],  # IN (n_leaves up to the next multiple of PANEL, rank)
    certain: NDArray[np.float64],  # IN (as many,), zeros beyond n_leaves
    keep: float,
    before: NDArray[np.float64],  # IN (m, m); may be ``precision``
    precision: NDArray[np.float64],  # OUT (m, m)
) -> None:
    """Write ``keep`` times the earlier precision, and A' diag(certain) A for A = ``rooted``."""
    rank = rooted.shape[1]
    for i in range(rank):
        row = precision[i]
        for j in range(i + 1):
            row[j] = keep * before[i, j]
        for k in range(0, len(rooted), PANEL):
            a0, a1 = certain[k] * rooted[k, i], certain[k + 1] * rooted[k + 1, i]
            a2, a3 = certain[k + 2] * rooted[k + 2, i], certain[k + 3] * rooted[k + 3, i]
            if a0 == a1 == a2 == a3 == 0:  # of cells and a triangular root, half are
                continue
            for j in range(i + 1):
                first = a0 * rooted[k, j] + a1 * rooted[k + 1, j]
                second = a2 * rooted[k + 2, j] + a3 * rooted[k + 3, j]
                row[j] += first + second
        row[rank:] = 0
    for i in range(rank):
        for j in range(i):
            precision[j, i] = precision[i, j]
    precision[rank:] = 0


@kernel
def _observe(
    leaf: NDArray[np.uint8],  # IN (n,)
    mass: NDArray[np.float64],  # IN (n,)
    hess: NDArray[np.float64],  # IN (n,)
    f: NDArray[np.float64],  # IN (n,)
    root: NDArray[np.float64],  # IN (n, m)
    reach: NDArray[np.int64],  # IN (n,)
    precision: NDArray[np.float64],  # IN (m, m)
    shift: NDArray[np.float64],  # IN (rank,)
    grad_sum: NDArray[np.float64],  # IN (n_leaves,)
    hess_sum: NDArray[np.float64],  # IN (n_leaves,)
    grad_total: float,
    grad_sd: float,
    hess_sd: float,
    done: int,
    sampling: float,
    hess_low: float,
    hess_high: float,
    omitted: int,
    keep: float,
    next_hess: NDArray[np.float64],  # OUT (n,)
    weight: NDArray[np.float64],  # OUT (n,)
    next_precision: NDArray[np.float64],  # OUT (m, m)
    next_shift: NDArray[np.float64],  # OUT (m,): zero beyond the rank
) -> int:
    """Return the next rank."""
    n, n_leaves, rank = len(leaf), len(grad_sum), len(shift)
    for b in range(n):
        if b == 0 or leaf[b] != leaf[b - 1]:
            rank = max(rank, reach[b])

    # harmonic average of the Hessian ratios: it moves slowly where noise is large, and is clipped so that one draw
    # cannot flip a leaf
    factor = np.zeros(n_leaves)
    for b in range(n):
        factor[leaf[b]] += mass[b] * hess[b]
    for k in range(n_leaves):
        expected = max(factor[k], TINY)
        # the leaf that was kept back is the total, and all leaves but one
        sd = hess_sd * np.sqrt(n_leaves) if k == omitted else hess_sd
        gain = 1 / (2 + done / 2 + (sd / (0.5 * expected)) ** 2)
        ratio = min(max(hess_sum[k], 0.1 * expected), 10 * expected) / expected
        factor[k] = 1 + gain * (ratio - 1)
    for b in range(n):
        next_hess[b] = min(max(hess[b] * factor[leaf[b]], hess_low), hess_high)
        weight[b] = mass[b] * next_hess[b]

    of_leaf, certain, rooted = _leaves(
        leaf, weight, root, n_leaves, rank, grad_sd, sampling, omitted
    )
    _inform(rooted, certain, keep, precision, next_precision)

    total = of_leaf.sum()
    observed = np.zeros(n_leaves)
    for b in range(n):
        observed[leaf[b]] += weight[b] * f[b]
    next_shift[:] = 0
    for j in range(len(shift)):
        next_shift[j] = keep * shift[j]
    for k in range(n_leaves):
        pull = -(grad_sum[k] - grad_total * of_leaf[k] / total)
        told = certain[k] * (observed[k] + pull)
        for j in range(rank):
            next_shift[j] += told * rooted[k, j]
    return rank


@inner
def _weigh(
    # IN OUT (n_scales, n_columns): logarithms; then the share of each scale
    evidence: NDArray[np.float64],
    scales: NDArray[np.float64],  # IN (n_scales,)
    log_odds: float,
) -> None:
    n_scales, n_columns = evidence.shape
    for c in range(n_columns):
        for s in range(n_scales):
            if scales[s] > 0:
                evidence[s, c] += log_odds
        largest, total = evidence[:, c].max(), 0.0
        for s in range(n_scales):
            evidence[s, c] = np.exp(evidence[s, c] - largest)
            total += evidence[s, c]
        for s in range(n_scales):
            evidence[s, c] /= total


@kernel
def _mean(
    precision: NDArray[np.float64],  # IN (m, m)
    shift: NDArray[np.float64],  # IN (rank,)
    root: NDArray[np.float64],  # IN (n, m)
    scales: NDArray[np.float64],  # IN (n_scales,)
    log_odds: float,
    leaf: NDArray[np.uint8],  # IN (n,)
    weight: NDArray[np.float64],  # IN (n,)
    follows: bool,
    grad_sd: float,
    sampling: float,
    omitted: int,
    largest: float,
    value: NDArray[np.float64],  # OUT (n,)
    told: NDArray[np.float64],  # OUT (2,): the largest log evidence; how far the mean follows noise
) -> None:
    n, rank, n_scales = len(root), len(shift), len(scales)
    n_leaves = leaf.max() + 1 if follows else 0
    matrix, diagonal, beside = precision[:rank, :rank].copy(), np.empty(rank), np.empty(rank - 1)
    reduce_matrix(matrix, diagonal, beside)
    q = np.empty((rank, 1 + n_leaves))
    of_leaf, certain = np.empty(0), np.empty(0)
    if n_leaves:
        of_leaf, certain, rooted = _leaves(
            leaf, weight, root, n_leaves, rank, grad_sd, sampling, omitted
        )
        q[:, 1:] = rooted[:n_leaves].T
    q[:, 0] = shift
    turn_columns(matrix, False, q)

    own, evidence = np.empty((rank, 1)), np.empty((n_scales, 1))
    own[:, 0] = q[:, 0]
    write_log_evidence(diagonal, beside, own, scales, evidence)
    told[0] = evidence.max()
    _weigh(evidence, scales, log_odds)
    share = np.empty((n_scales, 1 + n_leaves))
    for s in range(n_scales):
        share[s] = evidence[s, 0]
    shrunk = np.zeros((rank, 1 + n_leaves))
    # how q makes the mean is also how noise in q does
    add_shrunk(diagonal, beside, q, scales, share, shrunk)

    own[:, 0] = shrunk[:, 0]
    turn_columns(matrix, True, own)
    for i in range(n):
        value[i] = 0.0
        for j in range(rank):
            value[i] += root[i, j] * own[j, 0]
        value[i] = min(max(value[i], -largest), largest)

    told[1] = 0.0
    for k in range(n_leaves):
        # how the mean of a leaf moves against a unit of the noise on its sum
        own_part, others_part = 0.0, 0.0
        for i in range(rank):
            own_part += q[i, 1 + k] * shrunk[i, 1 + k]
        told[1] += certain[k] / max(of_leaf[k], TINY) * own_part
        if omitted >= 0:
            # the sum of a leaf that was kept back has the noise of all others, with the other sign
            for i in range(rank):
                others_part += q[i, 1 + omitted] * shrunk[i, 1 + k]
            told[1] -= certain[k] / max(of_leaf[omitted], TINY) * others_part


@inner
def _averaged(
    diagonal: NDArray[np.float64],  # IN (n,)
    beside: NDArray[np.float64],  # IN (n - 1,)
    q: NDArray[np.float64],  # IN (n, n_columns)
    scales: NDArray[np.float64],  # IN (n_scales,)
    log_odds: float,
    out: NDArray[np.float64],  # OUT (n, n_columns), zeros
) -> None:
    share = np.empty((len(scales), q.shape[1]))
    write_log_evidence(diagonal, beside, q, scales, share)
    _weigh(share, scales, log_odds)
    add_shrunk(diagonal, beside, q, scales, share, out)


@kernel
def _moves(
    precision: NDArray[np.float64],  # IN (m, m)
    shift: NDArray[np.float64],  # IN (rank,)
    known: NDArray[np.float64],  # IN (m, n_draws)
    scales: NDArray[np.float64],  # IN (n_scales,)
    log_odds: float,
    passed: bool,
    out: NDArray[np.float64],  # OUT (rank, n_draws)
) -> None:
    n, n_draws = out.shape
    matrix, diagonal, beside = precision[:n, :n].copy(), np.empty(n), np.empty(n - 1)
    reduce_matrix(matrix, diagonal, beside)
    q = np.empty((n, 1 + n_draws))
    q[:, 0], q[:, 1:] = shift, known[:n]
    turn_columns(matrix, False, q)
    if not passed:
        mean = np.zeros((n, 1))
        _averaged(diagonal, beside, q[:, :1].copy(), scales, log_odds, mean)
        for i in range(n):
            q[i, 0] = diagonal[i] * mean[i, 0]
            if i > 0:
                q[i, 0] += beside[i - 1] * mean[i - 1, 0]
            if i < n - 1:
                q[i, 0] += beside[i] * mean[i + 1, 0]
    q[:, 1:] += q[:, :1]
    means = np.zeros((n, 1 + n_draws))
    _averaged(diagonal, beside, q, scales, log_odds, means)
    out[:] = means[:, 1:] - means[:, :1]
    turn_columns(matrix, True, out)


@kernel
def _add_errors(
    leaf: NDArray[np.uint8],  # IN (n,)
    weight: NDArray[np.float64],  # IN (n,)
    own: float,
    table: NDArray[np.float64],  # IN (n, n_draws)
    other: float,
    others: NDArray[np.float64],  # IN (n, n_draws)
    sums: NDArray[np.float64],  # OUT (n_leaves, n_draws), added to
) -> None:
    for b in range(len(leaf)):
        to, w, v = sums[leaf[b]], weight[b] * own, weight[b] * other
        for c in range(len(to)):
            to[c] += w * table[b, c] + v * others[b, c]


@kernel
def _tell(
    leaf: NDArray[np.uint8],  # IN (n,)
    weight: NDArray[np.float64],  # IN (n,)
    root: NDArray[np.float64],  # IN (n, m)
    sums: NDArray[np.float64],  # IN (n_leaves, n_draws)
    total: NDArray[np.float64],  # IN (n_draws,)
    grad_sd: float,
    sampling: float,
    omitted: int,
    keep: float,
    rank: int,
    precision: NDArray[np.float64],  # IN OUT (m, m)
    known: NDArray[np.float64],  # IN OUT (m, n_draws)
) -> None:
    n_leaves, n_draws = sums.shape
    of_leaf, certain, rooted = _leaves(
        leaf, weight, root, n_leaves, rank, grad_sd, sampling, omitted
    )
    _inform(rooted, certain, keep, precision, precision)
    told, whole = np.empty((n_leaves, n_draws)), of_leaf.sum()
    for k in range(n_leaves):
        for c in range(n_draws):
            told[k, c] = certain[k] * (sums[k, c] - of_leaf[k] / whole * total[c])
    for j in range(rank):
        row = known[j]
        for c in range(n_draws):
            row[c] *= keep
        for k in range(n_leaves):
            if rooted[k, j] == 0:
                continue
            for c in range(n_draws):
                row[c] += rooted[k, j] * told[k, c]


def observe(
    leaf: NDArray[np.uint8],
    mass: NDArray[np.float64],
    hess: NDArray[np.float64],
    f: NDArray[np.float64],
    root: NDArray[np.float64],
    reach: NDArray[np.int64],
    precision: NDArray[np.float64],
    shift: NDArray[np.float64],
    sums: tuple[NDArray[np.float64], NDArray[np.float64]],
    *,
    grad_total: float,
    sd: tuple[float, float],
    done: int,
    sampling: float,
    hess_bounds: tuple[float, float],
    omitted: int,
    keep: float,
    out: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Add a round's sums to what is known of a table.

    Parameters
    ----------
    leaf : (n,) uint8
        Leaf of each bin, below the length of the sums.
    mass, hess, f : (n,) float64
        Rows of each bin, a row's mean Hessian, and the table that the sums were taken at.
    root : (n, m) float64
    reach : (n,) int64
        Coordinates of v that the sum of a leaf may depend on that begins at the bin.
    precision : (m, m) float64
        The earlier one, symmetric.
    shift : (rank,) float64
    sums : pair of ((n_leaves,) float64)
        Noisy Σg and Σh.
    grad_total : float
    sd : pair of float
        Standard deviations of the noise on a leaf's Σg and Σh.
    done : int
        Rounds before.
    sampling : float
        Variance of a leaf's Σg by sampling, per unit of its Σh.
    hess_bounds : pair of float
    omitted : int
        The leaf that was kept back; -1 for none.
    keep : float
        Share of the earlier information that stays.
    out : (m, m) float64, written to, or None
        Memory for the new precision.

    Returns
    -------
    hess, weight : (n,) float64
        A row's mean Hessian, and the Hessian of each bin.
    precision : (m, m) float64
        ``keep`` times the earlier one, and A' diag(c) A, with A what the sum of each leaf weights v by, and c the
        leaves' certainties.
    shift : (rank,) float64
    """
    n = len(leaf)
    next_hess, weight, next_shift = np.empty(n), np.empty(n), np.empty(root.shape[1])
    out = np.empty_like(precision) if out is None else writable("out", out, np.float64, 2)
    rank = _observe(
        readable("leaf", leaf, np.uint8, 1),
        readable("mass", mass, np.float64, 1),
        readable("hess", hess, np.float64, 1),
        readable("f", f, np.float64, 1),
        readable("root", root, np.float64, 2),
        readable("reach", reach, np.int64, 1),
        readable("precision", precision, np.float64, 2),
        readable("shift", shift, np.float64, 1),
        readable("sums", sums[0], np.float64, 1),
        readable("sums", sums[1], np.float64, 1),
        grad_total,
        *sd,
        done,
        sampling,
        *hess_bounds,
        omitted,
        keep,
        next_hess,
        weight,
        out,
        next_shift,
    )
    for array in (next_hess, weight, next_shift):
        array.flags.writeable = False
    return next_hess, weight, out, next_shift[:rank]


def mean(
    precision: NDArray[np.float64],
    shift: NDArray[np.float64],
    root: NDArray[np.float64],
    scales: NDArray[np.float64],
    leaf: NDArray[np.uint8],
    weight: NDArray[np.float64],
    *,
    log_odds: float = 0.0,
    follows: bool,
    grad_sd: float,
    sampling: float,
    omitted: int,
    largest: float,
) -> tuple[NDArray[np.float64], float, float]:
    """Return the posterior mean of a table, averaged over prior scales by their evidence.

    Parameters
    ----------
    precision, shift : (m, m) and (rank,) float64
        The information about v.
    root : (n, m) float64
    scales : (n_scales,) float64
        Prior scales τ: v ~ N(0, τ²I).
    leaf : (n,) uint8
    weight : (n,) float64
        Of the last round, as in `observe`.
    log_odds : float
        Logarithm of the odds of each scale above 0 beside a scale of 0, no effect, a priori.
    follows : bool
        Whether it is asked how far the mean follows the noise of the last round.
    grad_sd, sampling, omitted
        Of the last round, as in `observe`.
    largest : float
        Bound of what is returned.

    Returns
    -------
    value : (n,) float64
    log_evidence : float
        The largest over the scales.
    follows_noise : float
        Σ certainty / weight · A M A' over the leaves, M what makes the mean of the shift; less the part of a leaf kept
        back; 0 if it is not asked.
    """
    value, told = np.empty(len(root)), np.empty(2)
    _mean(
        readable("precision", precision, np.float64, 2),
        readable("shift", shift, np.float64, 1),
        readable("root", root, np.float64, 2),
        readable("scales", scales, np.float64, 1),
        log_odds,
        readable("leaf", leaf, np.uint8, 1),
        readable("weight", weight, np.float64, 1),
        follows,
        grad_sd,
        sampling,
        omitted,
        largest,
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
    log_odds: float = 0.0,
    passed: bool,
) -> NDArray[np.float64]:
    """Return how far changes of the information move the posterior mean of v, (rank, n_draws).

    Parameters
    ----------
    precision, shift, scales, log_odds
        As in `mean`.
    known : (m, n_draws) float64
        Changes of ``shift``; zero beyond its rank.
    passed : bool
        Whether the information itself is taken as the truth that it changes; else what its posterior mean makes of it.
    """
    out = np.empty((len(shift), known.shape[1]))
    _moves(
        readable("precision", precision, np.float64, 2),
        readable("shift", shift, np.float64, 1),
        readable("known", known, np.float64, 2),
        readable("scales", scales, np.float64, 1),
        log_odds,
        passed,
        out,
    )
    return out


def add_errors(
    leaf: NDArray[np.uint8],
    weight: NDArray[np.float64],
    table: NDArray[np.float64],
    sums: NDArray[np.float64],
    *,
    own: float,
    others: NDArray[np.float64] | None = None,
    other: float = 0.0,
) -> None:
    """Add to the sums of leaves what errors of tables add to them.

    Parameters
    ----------
    leaf : (n,) uint8
    weight : (n,) float64
    table : (n, n_draws) float64
        Errors of the table.
    sums : (n_leaves, n_draws) float64, added to
    own : float
        What a unit of error adds per unit of weight.
    others : (n, n_draws) float64 or None
        Errors of other tables, as they show in each bin.
    other : float
        What a unit of them adds.
    """
    table = readable("table", table, np.float64, 2)
    _add_errors(
        readable("leaf", leaf, np.uint8, 1),
        readable("weight", weight, np.float64, 1),
        own,
        table,
        0.0 if others is None else other,
        table if others is None else readable("others", others, np.float64, 2),
        writable("sums", sums, np.float64, 2),
    )


def tell(
    leaf: NDArray[np.uint8],
    weight: NDArray[np.float64],
    root: NDArray[np.float64],
    sums: NDArray[np.float64],
    total: NDArray[np.float64],
    *,
    grad_sd: float,
    sampling: float,
    omitted: int,
    keep: float,
    rank: int,
    precision: NDArray[np.float64],
    known: NDArray[np.float64],
) -> None:
    """Add to the information what draws of a round's sums change in it.

    Parameters
    ----------
    leaf, weight, root, grad_sd, sampling, omitted, keep
        As in `observe`.
    sums : (n_leaves, n_draws) float64
        Changes of the sums of leaves.
    total : (n_draws,) float64
        Changes of the total, of which every leaf's share is taken off.
    rank : int
        After the round.
    precision : (m, m) float64, written to
    known : (m, n_draws) float64, written to
        Changes of the shift.
    """
    _tell(
        readable("leaf", leaf, np.uint8, 1),
        readable("weight", weight, np.float64, 1),
        readable("root", root, np.float64, 2),
        readable("sums", sums, np.float64, 2),
        readable("total", total, np.float64, 1),
        grad_sd,
        sampling,
        omitted,
        keep,
        rank,
        writable("precision", precision, np.float64, 2),
        writable("known", known, np.float64, 2),
    )
