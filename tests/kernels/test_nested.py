"""The nested square root: it is one, and the cells of the first cuts have the first coordinates alone."""

import numpy as np
import pytest

from dpgb_dask.components.auto import smoothing
from dpgb_dask.kernels.nested import nested_root

SIZES = [1, 2, 3, 9, 64, 250]


def case(n):
    rng = np.random.default_rng(n)
    mass = rng.lognormal(0, 1, n)
    if n > 2:
        mass[[1, -1]] = 1e-9, 1e-7  # bins that hold next to nothing
    prior = smoothing.prior(mass, ordered=True, missing_last=n > 1)
    return prior + smoothing.JITTER * np.eye(n), mass, rng.permutation(np.arange(1, n))


@pytest.mark.parametrize("n", SIZES)
def test_it_is_a_square_root(n):
    covariance, mass, cuts = case(n)
    root = nested_root(covariance, mass, cuts)
    np.testing.assert_allclose(root @ root.T, covariance, atol=1e-12)


@pytest.mark.parametrize("n", SIZES)
def test_cells_of_the_first_cuts_have_the_first_coordinates(n):
    covariance, mass, cuts = case(n)
    root = nested_root(covariance, mass, cuts)
    for k in range(n):
        cell = np.searchsorted(np.sort(cuts[:k]), np.arange(n), side="right")
        sums = np.zeros((k + 1, n))
        np.add.at(sums, cell, mass[:, None] * root)
        np.testing.assert_allclose(sums[:, k + 1 :], 0, atol=1e-12)
        if k:
            assert np.abs(sums[:, k]).max() > 1e-12  # and need the last of them


@pytest.mark.parametrize("n_leaves", [2, 5])
def test_partitions_reach_as_far_as_they_have_cut(n_leaves):
    rng = np.random.default_rng(n_leaves)
    mass = rng.lognormal(0, 1, 30)
    prior = smoothing.prior(mass, ordered=True, missing_last=True)
    cuts = [rng.choice(np.arange(1, 30), n_leaves - 1, replace=False) for _ in range(12)]
    partitions = [
        np.searchsorted(np.sort(own), np.arange(30), side="right").astype(np.uint8) for own in cuts
    ]
    root, reach = smoothing.nested_root(prior, mass, partitions)
    so_far = 1
    for t, own in enumerate(cuts):
        so_far = max(so_far, reach[own].max())
        assert so_far == 1 + len(np.unique(np.concatenate(cuts[: t + 1])))
    assert sorted(reach) == list(range(1, 31))
    # nothing else is needed to say how bins vary with the cells that all partitions leave
    starts = np.unique(np.concatenate(cuts))
    assert root.shape == (30, len(starts) + 1)
    cell = np.searchsorted(starts, np.arange(30), side="right")
    means = np.eye(len(starts) + 1)[cell].T * mass
    means /= means.sum(1, keepdims=True)
    covariance = prior + smoothing.JITTER * np.eye(30)
    np.testing.assert_allclose(root @ (means @ root).T, covariance @ means.T, atol=1e-12)
