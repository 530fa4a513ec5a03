"""The posterior's kernels beside the matrices that they stand for."""

import numpy as np
import pytest

from dpgb_dask.kernels.posterior import inform, mean

SCALES = np.array([0.0, 0.1, 0.4, 1.6])
SIZES = [(1, 1), (2, 1), (2, 2), (5, 3), (36, 36), (64, 17), (256, 32)]


def table(n, n_leaves):
    """Return leaves in no order, weights, a root, certainties and an earlier precision of rank 2."""
    rng = np.random.default_rng(n)
    leaf = np.append(np.arange(n_leaves), rng.integers(0, n_leaves, n - n_leaves))
    weight, certain = rng.uniform(0.5, 2, n), rng.uniform(0.01, 0.1, n_leaves)
    root, before = rng.normal(size=(n, n)) / np.sqrt(n), rng.normal(size=(2, n))
    return rng.permutation(leaf).astype(np.uint8), weight, root, certain, before.T @ before


def dense(leaf, weight):
    design = np.zeros((leaf.max() + 1, len(leaf)))
    design[leaf, np.arange(len(leaf))] = weight
    return design


@pytest.mark.parametrize("given", [False, True], ids=["new memory", "given memory"])
@pytest.mark.parametrize(("n", "n_leaves"), SIZES)
def test_information_is_that_of_the_matrices(n, n_leaves, given):
    leaf, weight, root, certain, before = table(n, n_leaves)
    certain[0] = 0.0  # as of a leaf that was kept back
    out = np.full((n, n), np.nan) if given else None
    rooted, precision = inform(leaf, weight, root, certain, keep=0.7, precision=before, out=out)
    assert out is None or precision is out
    expected = dense(leaf, weight) @ root
    np.testing.assert_allclose(rooted, expected, atol=1e-12)
    np.testing.assert_allclose(
        precision, 0.7 * before + expected.T @ np.diag(certain) @ expected, atol=1e-12
    )
    np.testing.assert_array_equal(precision, precision.T)


@pytest.mark.parametrize("omitted", [-1, 0])
@pytest.mark.parametrize(("n", "n_leaves"), SIZES)
def test_mean_is_that_of_the_matrices(n, n_leaves, omitted):
    leaf, weight, root, certain, precision = table(n, n_leaves)
    shift = 3 * np.random.default_rng(1).normal(size=n)
    value, evidence, follows = mean(precision, shift, root, SCALES, leaf, weight, certain, omitted)
    parts = [t**2 * np.linalg.inv(np.eye(n) + t**2 * precision) for t in SCALES]
    known = [
        0.5 * shift @ part @ shift - 0.5 * np.linalg.slogdet(np.eye(n) + t**2 * precision)[1]
        for t, part in zip(SCALES, parts, strict=True)
    ]
    odds = np.exp(known - np.max(known))
    spread = np.tensordot(odds / odds.sum(), parts, 1)
    design = dense(leaf, weight)
    moved = design @ root @ spread @ (design @ root).T  # of leaf k's sum by leaf l's noise
    total = design.sum(1)
    against = certain @ (np.diag(moved) / total)
    if omitted >= 0:
        against -= certain @ moved[omitted] / total[omitted]
    np.testing.assert_allclose(value, root @ spread @ shift, rtol=1e-8, atol=1e-9)
    assert evidence == pytest.approx(max(known), abs=1e-9)
    assert follows == pytest.approx(against, rel=1e-8, abs=1e-9)


def test_nothing_known_gives_nothing():
    leaf, weight, root, _, _ = table(5, 3)
    zero = np.zeros((5, 5))
    value, evidence, follows = mean(zero, zero[0], root, SCALES, leaf, weight, np.empty(0), -1)
    np.testing.assert_array_equal(value, 0)
    assert (evidence, follows) == (0, 0)
