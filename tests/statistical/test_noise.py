"""Released noise has the scale that was paid for; each check also runs at 0.7 and 1.3 of it and must fail there."""

import math

import numpy as np
import pytest

from dpgb_dask.contracts.boundary import Raw, Sensitivity
from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import PRICE_ONE, ResidualQuery
from dpgb_dask.controller.accounting import delta_of
from dpgb_dask.controller.release import Controller
from dpgb_dask.testing import SeededNoise

N = 20_000
L2_SQUARED = 14


def noise(seed, price):
    """Return noise in units of the scale that ``price`` pays for."""
    controller = Controller.reserve(
        budget=Budget(epsilon=1.0, delta=1e-6),
        plan_digest=b"",
        public_seed=0,
        noise=SeededNoise(seed),
    )
    query = ResidualQuery(label="noise", price=price, edges=np.arange(N - 1))
    released = controller.release(
        query, Raw(np.zeros(N, np.int64), Sensitivity(L2_SQUARED, L2_SQUARED))
    )
    paid = math.sqrt(L2_SQUARED * PRICE_ONE / price) * 2**released.receipt.scale_bits
    return released.value / paid


def check_normal(z):
    """Kolmogorov-Smirnov distance to the standard normal at p = 0.001, and the variance at 5 standard errors."""
    z = np.sort(z)
    cdf = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])
    distance = np.abs(cdf - (np.arange(len(z)) + 0.5) / len(z)).max()
    assert distance * math.sqrt(len(z)) < 1.95
    assert abs(np.mean(z * z) - 1) < 5 * math.sqrt(2 / len(z))


def check_audit(z):
    """Σ of a row's change is told apart no better than (ε, δ) allows, and nearly as well: a two-sided audit.

    The likelihood-ratio test of N(0, 1) against N(μ, 1) at μ = 1: its δ at ε = 1 against the curve.
    """
    mu, epsilon = 1.0, 1.0
    cut = mu / 2 + epsilon / mu
    seen = np.mean(z + mu > cut) - math.exp(epsilon) * np.mean(z > cut)
    error = 5 * math.sqrt((1 + math.exp(2 * epsilon)) * 0.25 / len(z))
    assert abs(seen - delta_of(mu, epsilon)) < error


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("price", [PRICE_ONE // 10**6, PRICE_ONE // 100])
def test_noise_has_the_scale_that_was_paid_for(seed, price):
    check_normal(noise(seed, price))


@pytest.fixture(scope="module")
def long_noise():
    return np.concatenate([noise(seed, PRICE_ONE // 100) for seed in range(50, 60)])


def test_noise_hides_a_row_as_well_as_promised(long_noise):
    check_audit(long_noise)


@pytest.mark.parametrize("factor", [0.7, 1.3])
@pytest.mark.parametrize("check", [check_normal, check_audit])
def test_noise_checks_reject_other_scales(long_noise, factor, check):
    with pytest.raises(AssertionError):
        check(long_noise * factor)


def test_noise_check_rejects_other_shapes():
    laplace = np.random.default_rng(0).laplace(0, math.sqrt(0.5), N)
    with pytest.raises(AssertionError):
        check_normal(laplace)
