"""The reduction to tridiagonal form, and what is solved in it, beside an eigen-decomposition."""

import numpy as np
import pytest
from helpers import naive_posterior
from thinned import thinned

from dpgb_dask.kernels.tridiagonal import (
    add_shrunk,
    reduce_matrix,
    turn_columns,
    write_log_evidence,
)

SCALES = np.array([0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])


def reduced(matrix):
    n = len(matrix)
    diagonal, beside, reflectors = np.empty(n), np.empty(n - 1), np.array(matrix)
    reduce_matrix(reflectors, diagonal, beside)
    return diagonal, beside, reflectors


def turned(reflectors, columns, *, back):
    out = np.array(columns, order="C")
    turn_columns(reflectors, back, out)
    return out


def log_evidence(diagonal, beside, q, scales):
    out = np.empty((len(scales), q.shape[1]))
    write_log_evidence(diagonal, beside, q, scales, out)
    return out


def shrunk(diagonal, beside, q, scales, share):
    out = np.zeros(q.shape)
    add_shrunk(diagonal, beside, q, scales, share, out)
    return out


def information(n, rank, seed, size=1.0):
    """A positive semi-definite matrix of some rank, and columns as they come from observations."""
    rng = np.random.default_rng(seed)
    rooted = rng.normal(0, 1, (rank, n)) * rng.lognormal(0, 1, (rank, 1))
    matrix = size * rooted.T @ rooted
    return matrix, matrix @ rng.normal(0, 1, (n, 3)) + np.sqrt(size) * rooted.T @ rng.normal(
        size=(rank, 3)
    )


def with_zeros(n, seed):
    """Cells of no mass tell nothing."""
    matrix, q = information(n, n, seed)
    matrix[1::3] = matrix[:, 1::3] = q[1::3] = 0
    return matrix, q


CASES = {
    **{f"{n} cells": information(n, n, n) for n in (1, 2, 3, 4, 5, 8, 9, 36, 250)},
    "1024 cells": information(1024, 200, 0),
    "few leaves": information(40, 3, 1),
    "huge noise": information(30, 30, 2, size=1e-14),
    "little noise": information(30, 30, 3, size=1e4),
    "cells without mass": with_zeros(24, 4),
    "nothing known": (np.zeros((7, 7)), np.zeros((7, 3))),
    "diagonal": (np.diag(np.arange(9.0)), np.ones((9, 3))),
}


@pytest.fixture(params=thinned([*CASES], every=3))
def case(request):
    return CASES[request.param]


def test_the_reduced_matrix_is_the_matrix_again(case):
    matrix, _ = case
    diagonal, beside, reflectors = reduced(matrix)
    n = len(matrix)
    turn = turned(reflectors, np.eye(n), back=True)
    np.testing.assert_allclose(turn @ turn.T, np.eye(n), atol=1e-13)
    np.testing.assert_allclose(turned(reflectors, np.eye(n), back=False), turn.T, atol=1e-13)
    whole = turn @ (np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)) @ turn.T
    np.testing.assert_allclose(whole, matrix, atol=1e-13 * max(np.abs(matrix).max(), 1e-300))


def test_posteriors_are_those_of_an_eigen_decomposition(case):
    matrix, q = case
    diagonal, beside, reflectors = reduced(matrix)
    inside = turned(reflectors, q, back=False)
    means, evidence = naive_posterior(matrix, q, SCALES)
    found = log_evidence(diagonal, beside, inside, SCALES)
    np.testing.assert_allclose(found, evidence, rtol=1e-9, atol=1e-12)
    shares = np.random.default_rng(0).dirichlet(np.ones(len(SCALES)), q.shape[1]).T.copy()
    solved = shrunk(diagonal, beside, inside, SCALES, shares)
    wanted = np.einsum("sc,snc->nc", shares, means)
    got = turned(reflectors, solved, back=True)
    np.testing.assert_allclose(got, wanted, atol=1e-9 * max(np.abs(wanted).max(), 1e-300))


def test_scales_without_a_share_add_nothing():
    matrix, q = CASES["36 cells"]
    diagonal, beside, reflectors = reduced(matrix)
    inside = turned(reflectors, q, back=False)
    shares = np.zeros((len(SCALES), q.shape[1]))
    shares[2:4], shares[4], shares[5, 1] = 0.5, 1e-30, 1e-9
    got = turned(reflectors, shrunk(diagonal, beside, inside, SCALES, shares), back=True)
    wanted = np.einsum("sc,snc->nc", shares, naive_posterior(matrix, q, SCALES)[0])
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-15 * np.abs(wanted).max())


def test_rounding_makes_no_pivot_smaller_than_one():
    rng = np.random.default_rng(0)
    for _ in range(200):  # rank 1 and huge: what is left of a pivot is rounding, of either sign
        v = 1e10 * rng.normal(size=2)
        matrix = np.outer(v, v)
        given = matrix.diagonal().copy(), matrix[0, 1:].copy(), np.zeros((2, 1)), SCALES
        evidence = log_evidence(*given)
        assert (evidence <= 0).all()
        assert np.isfinite(shrunk(*given, np.ones((7, 1)))).all()
