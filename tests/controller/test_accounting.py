import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.controller import accounting
from dpgb_dask.controller.accounting import (
    delta_of,
    epsilon_of,
    mu_of,
    price,
    scale_for,
    sigma_for,
    total_price,
    zcdp_epsilon,
    zcdp_mu_of,
)
from dpgb_dask.errors import PlanError


def integrated_delta(mu, epsilon):
    """δ = ∫ (φ(x-μ) - e^ε φ(x))₊ dx by Simpson's rule: the definition, not the closed form."""
    start = epsilon / mu + mu / 2
    x = np.linspace(start, start + 14 + mu, 400_001)
    y = (np.exp(-((x - mu) ** 2) / 2) - np.exp(epsilon - x * x / 2)) / math.sqrt(2 * math.pi)
    weights = np.ones(len(x))
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return float((weights * y).sum() * (x[1] - x[0]) / 3)


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [(0.2367, 1), (0.0275, 0.1), (1.53, 8), (0.5, 0.0), (3, 2), (0.003, 0.01), (6, 50)],
)
def test_delta_of_is_the_integral(mu, epsilon):
    exact = integrated_delta(mu, epsilon)
    assert delta_of(mu, epsilon) == pytest.approx(exact, rel=1e-7)


PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863"
)


def above(x):
    """Φ(-x) by the series of erf, whose terms are far above their sum: the context has the digits for x up to 12."""
    z = x / Decimal(2).sqrt()
    term = total = z
    k = 0
    while abs(term) > Decimal("1e-70"):
        k += 1
        term *= -z * z / k
        total += term / (2 * k + 1)
    return (1 - 2 * total / PI.sqrt()) / 2


def test_delta_of_is_nowhere_below_the_curve_and_hardly_above():
    with localcontext(prec=80):
        for mu, epsilon in itertools.product(
            (0.05, 0.2367, 0.5, 1.53, 3.0), (0, 0.1, 0.5, 1, 2, 8)
        ):
            a, b = (Decimal(epsilon) / Decimal(mu) + s * Decimal(mu) / 2 for s in (-1, 1))
            if b < 12:
                exact = above(a) - Decimal(epsilon).exp() * above(b)
                found = Decimal(delta_of(mu, float(epsilon)))
                assert exact <= found <= exact + Decimal("2e-12") * above(a), (mu, epsilon)


def test_mu_of_known_values():
    assert mu_of(1.0, 1e-6) == pytest.approx(0.23670438, abs=1e-8)
    # 300 Gaussians at ε = 1, δ = 1e-6 need noise 73.17 each (dp_accounting, notes)
    assert math.sqrt(300) / mu_of(1.0, 1e-6) == pytest.approx(73.17, abs=0.01)
    assert epsilon_of(0.2, 1e-6) == pytest.approx(0.8341, abs=5e-5)
    assert zcdp_epsilon(0.2, 1e-6) == pytest.approx(0.9000, abs=5e-4)
    assert zcdp_epsilon(2 / 3, 1e-6) == pytest.approx(3.3188, abs=5e-4)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 8.0, 50.0, 1e3])
@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-6, 0.3])
def test_curves_round_towards_safety(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert delta_of(mu, epsilon) <= delta < delta_of(mu * (1 + 1e-9), epsilon)
    back = epsilon_of(mu, delta)
    assert back == pytest.approx(epsilon, rel=1e-9)
    assert delta_of(mu, back) <= delta
    if delta < 0.1:
        assert zcdp_epsilon(mu, delta) > back


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-3])
def test_zcdp_keeps_more_than_the_error_of_its_search(epsilon, delta):
    back = zcdp_epsilon(zcdp_mu_of(epsilon, delta), delta)
    assert epsilon * (1 - 2e-9) < back <= epsilon * (1 - 5e-10)


def test_curves_at_the_ends():
    assert delta_of(0.0, 1.0) == 0.0
    assert delta_of(1e4, 0.0) == pytest.approx(1.0)
    assert epsilon_of(0.1, 0.5) == 0.0
    assert zcdp_epsilon(0.0, 1e-6) == 0.0


@pytest.mark.parametrize("l2_squared", [1, 2, 3, 5 * 2**30, 14 * 3**40])
@pytest.mark.parametrize("sigma", [1, 2, 1000, 2**20 + 7, 2**45 + 1])
def test_price_is_rounded_up(l2_squared, sigma):
    exact = Fraction(l2_squared) / (Fraction(sigma) ** 2 - Fraction(1, 12)) * PRICE_ONE
    assert 0 <= price(l2_squared, sigma) - exact < 1


@pytest.mark.parametrize("l2_squared", [1, 2, 3, 5 * 2**30, 14 * 3**40])
@pytest.mark.parametrize(
    "affordable", [1, 17, 10**9, PRICE_ONE // 50, PRICE_ONE * 3 + 1, PRICE_ONE * 90]
)
def test_sigma_for_is_the_least(l2_squared, affordable):
    sigma = sigma_for(l2_squared, affordable)
    assert price(l2_squared, sigma) <= affordable
    assert sigma == 1 or price(l2_squared, sigma - 1) > affordable


@pytest.mark.parametrize("l2_squared", [1, 6, 2**31, 2**60 + 1])
@pytest.mark.parametrize("bits", [20, 27])
@pytest.mark.parametrize("affordable", [PRICE_ONE // 10**4, PRICE_ONE, PRICE_ONE * 90])
def test_scale_for_is_the_least(l2_squared, affordable, bits):
    scale, sigma = scale_for(l2_squared, affordable, bits)
    assert sigma >= 1 << bits
    assert price(l2_squared << 2 * scale, sigma) <= affordable
    assert scale == 0 or sigma_for(l2_squared << 2 * (scale - 1), affordable) < 1 << bits


def test_total_price_is_rounded_down_and_keeps_slack():
    mu = mu_of(1.0, 1e-6 * 0.999)
    assert 0 <= Fraction(mu) ** 2 * PRICE_ONE - total_price(1.0, 1e-6) < 1
    assert total_price(1.0, 1e-6) < int(Fraction(mu_of(1.0, 1e-6)) ** 2 * PRICE_ONE)
    with pytest.raises(PlanError, match="larger epsilon"):
        total_price(1e-7, 1e-9)


def test_slack_and_distance_are_rounded_up_and_by_no_more_than_they_say():
    with localcontext(prec=50):
        for epsilon in (0.0, 1e-9, 0.3, 1.0, 7.7, 40.0):
            for tau in (1e-30, 3e-12, 0.1):
                exact = (1 + Decimal(epsilon).exp()) * Decimal(tau)
                assert (
                    exact
                    < Decimal(accounting.slack(epsilon, tau))
                    < exact * Decimal("1.00000000001")
                )
        for bits in (16, 19, 32):
            exact = Decimal(accounting.MAX_VALUES) * Decimal("5e-4") / 2 ** (4 * bits)
            assert exact < Decimal(accounting.distance(bits)) < exact * Decimal("1.00000000001")


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 700.0, 701.0, 1e300])
def test_no_distance_has_no_slack(epsilon):
    """Infinity, for a fit of pure privacy, could be written to no file."""
    assert accounting.slack(epsilon, 0.0) == 0.0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 25.0, 50.0])
def test_min_sigma_keeps_slack_below_a_thousandth(epsilon):
    bits = accounting.min_sigma_bits_for(epsilon, 1e-6)
    assert bits >= 20
    assert accounting.slack(epsilon, accounting.distance(bits)) <= 1e-9


def test_min_sigma_refuses_an_epsilon_it_cannot_prove():
    with pytest.raises(PlanError, match=r"epsilon=100 is too large.*at most epsilon=56") as info:
        accounting.min_sigma_bits_for(100.0, 1e-6)
    assert accounting.min_sigma_bits_for(56.0, 1e-6) == 32, info.value
    with pytest.raises(PlanError, match="Choose a larger delta, or train"):
        accounting.min_sigma_bits_for(4.0, 1e-300)


def total_variation(sigma, variance):
    """Return the distance of the discrete Gaussian to the rounded Gaussian of a given variance."""
    n = np.arange(0, 12 * sigma)
    weights = np.exp(-(n**2) / (2 * sigma**2))
    discrete = weights / (2 * weights.sum() - 1)
    tail = np.array(
        [0.5 * math.erfc((k - 0.5) / math.sqrt(2 * variance)) for k in range(12 * sigma + 1)]
    )
    rounded = tail[:-1] - tail[1:]
    difference = np.abs(discrete - rounded)
    return difference[1:].sum() + difference[0] / 2


def test_distance_is_the_limit_of_large_sigma():
    x = np.linspace(-12, 12, 200_001)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    limit = (np.abs(x**4 - 6 * x**2 + 3) * density).sum() * (x[1] - x[0]) / 5760
    assert limit == pytest.approx(4.863e-4, abs=1e-7)
    assert total_variation(32, 32**2 - 1 / 12) * 32**4 == pytest.approx(limit, rel=1e-3)


@pytest.mark.parametrize("sigma", [4, 5, 8, 16, 32])
def test_discrete_gaussian_is_close_to_a_rounded_one(sigma):
    distance = total_variation(sigma, sigma**2 - 1 / 12) * sigma**4
    assert 4e-4 < distance <= accounting.DISTANCE
    assert total_variation(sigma, sigma**2) * sigma**4 > 2 * accounting.DISTANCE  # without the 1/12
