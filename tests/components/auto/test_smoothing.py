"""The posterior update against textbook Bayesian regression, written out densely."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dpgb_dask.components import constants
from dpgb_dask.components.auto import smoothing
from dpgb_dask.components.auto.main_effects import possible_cuts, random_partition
from dpgb_dask.components.auto.posterior import effect_odds
from dpgb_dask.components.auto.smoothing import Intercept, Observation
from dpgb_dask.kernels.posterior import moves


@pytest.fixture
def mass():
    return np.array([50.0, 200.0, 10.0, 400.0, 90.0, 250.0])


def informed_block(mass, seed, n_rounds=3):
    """A block that has seen a few rounds, and the dense J, e of the same rounds in the space of f."""
    rng = np.random.default_rng(seed)
    covariance = smoothing.prior(mass, ordered=True, missing_last=False)
    block = smoothing.new_block(mass, smoothing.square_root(covariance), 0.2)
    dense_j, dense_e = np.zeros((len(mass), len(mass))), np.zeros(len(mass))
    for t in range(n_rounds):
        leaf = np.sort(rng.integers(0, 3, len(mass)))
        leaf = np.unique(leaf, return_inverse=True)[1].astype(np.uint8)
        n_leaves = leaf.max() + 1
        grad = rng.normal(0, 30, n_leaves)
        hess = np.bincount(leaf, mass * 0.2) + rng.normal(0, 5, n_leaves)
        seen = Observation(
            grad_sd=8.0, hess_sd=16.0, round=t, sampling=3.0, hess_low=0.01, hess_high=0.25
        )
        block = smoothing.observe(
            block, leaf, grad, hess, 1.5, seen, hess_total=mass.sum() * 0.2, scales=None
        )
        design = np.array([(leaf == k) * mass * block.hess for k in range(n_leaves)])
        weight = design.sum(1)
        pull = -(grad - 1.5 * weight / weight.sum())
        noise = np.diag(1 / (8.0**2 + 3.0 * weight))
        keep = 1 - 1 / (t + 2)
        dense_j = keep * dense_j + design.T @ noise @ design
        dense_e = keep * dense_e + design.T @ noise @ (design @ block.f + pull)
    return block, covariance + smoothing.JITTER * np.eye(len(mass)), dense_j, dense_e


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [0.05, 0.4, 1.6])
def test_posterior_mean_is_bayesian_regression(mass, seed, scale):
    block, covariance, dense_j, dense_e = informed_block(mass, seed)
    mean = smoothing.posterior_mean(block, np.array([scale])).value
    wanted = np.linalg.solve(np.linalg.inv(scale**2 * covariance) + dense_j, dense_e)
    np.testing.assert_allclose(mean, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_evidence_is_the_log_likelihood_ratio(mass, seed):
    scale = 0.4
    block, covariance, dense_j, dense_e = informed_block(mass, seed)
    evidence = smoothing.posterior_mean(block, np.array([scale])).log_evidence
    posterior = np.linalg.inv(np.linalg.inv(scale**2 * covariance) + dense_j)
    _, logdet = np.linalg.slogdet(np.eye(len(mass)) + scale**2 * covariance @ dense_j)
    assert evidence == pytest.approx(0.5 * dense_e @ posterior @ dense_e - 0.5 * logdet, rel=1e-6)


@pytest.mark.parametrize("log_odds", [0.0, -1.5])
def test_a_mean_weighs_scales_by_evidence_and_odds(mass, log_odds):
    block, *_ = informed_block(mass, 0)
    block = replace(block, seen=(replace(block.seen[-1], log_odds=log_odds),))
    alone = [smoothing.posterior_mean(block, np.array([s])) for s in constants.PRIOR_SCALES]
    told = np.array([mean.log_evidence for mean in alone])
    odds = np.exp(told + np.where(constants.PRIOR_SCALES > 0, log_odds, 0))
    expected = odds @ np.array([mean.value for mean in alone]) / odds.sum()
    mean = smoothing.posterior_mean(block, constants.PRIOR_SCALES)
    np.testing.assert_allclose(mean.value, expected, rtol=1e-9)
    assert mean.log_evidence == pytest.approx(told.max())  # the gate of a table, whatever its odds


def test_as_many_features_are_expected_to_have_an_effect_however_many_there_are():
    def odds(m):
        return effect_odds(SimpleNamespace(n_features=m))

    assert odds(1) == odds(28) == 0
    assert 300 * np.exp(odds(300)) == pytest.approx(28)


@pytest.mark.parametrize("log_odds", [0.0, -2.0])
@pytest.mark.parametrize("passed", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_moves_are_differences_of_posterior_means(mass, seed, passed, log_odds):
    block, *_ = informed_block(mass, seed)
    block = replace(block, seen=(replace(block.seen[-1], log_odds=log_odds),))
    changes = np.random.default_rng(seed).normal(0, np.abs(block.shift).max() / 9, (len(mass), 4))

    def mean(shift):
        value = smoothing.posterior_mean(replace(block, shift=shift), constants.PRIOR_SCALES).value
        assert np.abs(value).max() < constants.LARGEST_EFFECT
        return value

    truth = block.shift
    if not passed:
        truth = block.precision @ np.linalg.solve(block.root, mean(block.shift))
    found = moves(
        block.precision,
        block.shift,
        changes,
        constants.PRIOR_SCALES,
        log_odds=log_odds,
        passed=passed,
    )
    for change, move in zip(changes.T, (block.root @ found).T, strict=True):
        np.testing.assert_allclose(move, mean(truth + change) - mean(truth), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("omitted", [-1, 1])
def test_a_mean_follows_the_noise_of_the_last_sums_as_far_as_it_says(mass, omitted):
    leaf, weight = np.array([0, 0, 1, 1, 1, 2], np.uint8), mass * 0.2
    seen = Observation(
        grad_sd=8.0, hess_sd=16.0, round=3, sampling=3.0, hess_low=0.01, hess_high=0.25
    )
    block, *_ = informed_block(mass, 0)
    scales = np.array([0.4])

    def mean_after(noise):
        told = smoothing.observe(
            block,
            leaf,
            np.array([3.0, -7.0, 5.0]) + noise,
            np.bincount(leaf, weight),
            1.5,
            seen,
            hess_total=weight.sum(),
            scales=scales,
            omitted=omitted,
        )
        mean, own = smoothing.posterior_mean(told, scales), told.seen[-1].weight
        return np.bincount(leaf, own * mean.value) / np.bincount(leaf, own), mean.follows_noise

    (start, told), against = mean_after(np.zeros(3)), 0.0
    for k in set(range(3)) - {omitted}:
        noise = np.eye(3)[k]
        if omitted >= 0:
            noise[omitted] = -1.0
        against -= noise @ (mean_after(noise)[0] - start)
    assert told == pytest.approx(against)
    assert told > 0


@pytest.mark.parametrize("n_leaves", [3, 12])
def test_coordinates_that_no_partition_tells_of_may_be_left_out(n_leaves):
    """A table of 250 bins, cut at few places, is learnt as with the whole square root of its prior."""
    rng = np.random.default_rng(n_leaves)
    mass, n_rounds = rng.lognormal(5, 0.3, 250), 4
    cuts = possible_cuts(mass)
    partitions = [random_partition(len(mass), cuts, n_leaves, rng) for _ in range(n_rounds)]
    covariance = smoothing.prior(mass, ordered=True, missing_last=True)
    root, reach = smoothing.nested_root(covariance, mass, partitions)
    few = smoothing.new_block(mass, root, 0.2, reach)
    every = smoothing.new_block(mass, smoothing.square_root(covariance), 0.2)
    n_cells = 1 + len(np.unique(np.nonzero(np.diff(partitions, axis=1))[1]))
    assert few.precision.shape == (n_cells, n_cells)
    assert n_cells <= 1 + min(n_rounds * (n_leaves - 1), constants.MOST_CUTS)
    for t, leaf in enumerate(partitions):
        grad, hess = rng.normal(0, 300, n_leaves), np.bincount(leaf, 0.2 * mass)
        seen = Observation(
            grad_sd=50.0, hess_sd=50.0, round=t, sampling=4.0, hess_low=0.01, hess_high=0.25
        )
        few, every = (
            smoothing.observe(
                block, leaf, grad, hess, 9.0, seen, hess_total=hess.sum(), scales=None
            )
            for block in (few, every)
        )
        own, wanted = (
            smoothing.posterior_mean(block, constants.PRIOR_SCALES) for block in (few, every)
        )
        np.testing.assert_allclose(own.value, wanted.value, atol=1e-6 * np.abs(wanted.value).max())
        assert own.log_evidence == pytest.approx(wanted.log_evidence, rel=1e-6)


def test_posterior_mean_without_information_is_zero(mass):
    root = smoothing.square_root(smoothing.prior(mass, ordered=True, missing_last=False))
    mean, evidence, _ = smoothing.posterior_mean(
        smoothing.new_block(mass, root, 0.2), constants.PRIOR_SCALES
    )
    assert np.all(mean == 0)
    assert evidence == 0


def test_prior_is_centred_on_the_rows(mass):
    for ordered in (True, False):
        covariance = smoothing.prior(mass, ordered=ordered, missing_last=ordered)
        np.testing.assert_allclose(covariance @ mass, 0, atol=1e-9)
        assert np.linalg.eigvalsh(covariance).min() > -1e-9


def test_observe_learns_the_hessian_slowly_under_noise(mass):
    root = np.eye(len(mass))
    block = smoothing.new_block(mass, root, 0.2)
    leaf = np.arange(len(mass), dtype=np.uint8)
    truth = mass * 0.05
    gains = []
    for hess_sd in (0.01, 1e4):
        seen = Observation(
            grad_sd=1.0, hess_sd=hess_sd, round=0, sampling=1.0, hess_low=0.0, hess_high=0.25
        )
        told = smoothing.observe(
            block, leaf, np.zeros(len(mass)), truth, 0.0, seen, hess_total=truth.sum(), scales=None
        )
        gains.append(np.abs(told.hess - 0.2).max())
        held = mass @ told.hess  # by the filter
        assert told.seen[-1].curvature == pytest.approx(truth.sum() / held)
    assert gains[0] > 0.05  # half of the way from .2 to .05
    assert gains[1] < 1e-3


def test_intercept_converges_to_the_root():
    seen = dict(grad_sd=1.0, hess_sd=1.0, sampling=1.0, hess_low=0.0, hess_high=0.25)
    intercept = Intercept(0.0)
    for t in range(30):  # Σg = 100 (f - 0.7), Σh = 100
        intercept = intercept.step(
            100 * (intercept.f - 0.7), 100.0, Observation(round=t, **seen), 1.0, 0.4
        )
    assert intercept.f == pytest.approx(0.7, abs=0.01)
