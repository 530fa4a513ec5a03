"""Laplace noise, choices and samples as released; each check also runs at 0.7 and 1.3 of the scale and fails there."""

import math

import numpy as np
import pytest
from controller_parts import wide_query
from thinned import thinned

from dpgb_dask.contracts.boundary import Raw, Sensitivity
from dpgb_dask.contracts.model import Splits
from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import PRICE_ONE, ChoiceQuery
from dpgb_dask.contracts.spending import amplified
from dpgb_dask.controller.accounting import total_price
from dpgb_dask.controller.ledger_book import CHOICES
from dpgb_dask.controller.release import Controller
from dpgb_dask.kernels import draw
from dpgb_dask.losses import GRAD_ONE, SquaredGradient
from dpgb_dask.testing import SeededNoise

N = 20_000
L1 = 6


def controller(seed, *, pure=True, facts=None):
    return Controller.reserve(
        budget=Budget(epsilon=100.0 if pure else 20.0, delta=1e-6),
        plan_digest=b"",
        public_seed=0,
        noise=SeededNoise(seed),
        pure=pure,
        facts=facts,
    )


def noise(seed, price, n=N):
    """Return Laplace noise in units of the scale that ``price`` pays for."""
    query = wide_query(n, price)
    # l2 is smaller than l1: a mechanism that took it would be caught
    released = controller(seed).release(query, Raw(np.zeros(n, np.int64), Sensitivity(2, L1)))
    return released.value / (L1 * PRICE_ONE / price * 2**released.receipt.scale_bits)


def check_laplace(z):
    """Kolmogorov-Smirnov distance to the standard Laplace law at p = 0.001, and the mean size at 5 standard errors."""
    z = np.sort(z)
    cdf = np.where(z < 0, 0.5 * np.exp(np.minimum(z, 0)), 1 - 0.5 * np.exp(-np.maximum(z, 0)))
    distance = np.abs(cdf - (np.arange(len(z)) + 0.5) / len(z)).max()
    assert distance * math.sqrt(len(z)) < 1.95
    assert abs(np.mean(np.abs(z)) - 1) < 5 / math.sqrt(len(z))


def check_loss(z):
    """Two neighbours are told apart exactly as well as ε = 1 allows: their odds at a cut are e, no more, no less."""
    seen = np.mean(z + 1 > 1) / np.mean(z > 1)
    error = 5 * seen * math.sqrt(1 / np.sum(z > 1) + 1 / np.sum(z + 1 > 1))
    assert abs(seen - math.e) < error


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("price", [PRICE_ONE // 10**6, PRICE_ONE // 100, 3 * PRICE_ONE])
def test_laplace_noise_has_the_scale_that_was_paid_for(seed, price):
    check_laplace(noise(seed, price))


@pytest.fixture(scope="module")
def long_noise():
    return noise(50, PRICE_ONE // 100, 10 * N)


def test_laplace_noise_hides_a_row_as_well_as_promised(long_noise):
    check_loss(long_noise)


@pytest.mark.parametrize("factor", [0.7, 1.3])
@pytest.mark.parametrize("check", [check_laplace, check_loss])
def test_laplace_checks_reject_other_scales(long_noise, factor, check):
    with pytest.raises(AssertionError):
        check(long_noise * factor)


DEPTH = 10
NODES = 1 << DEPTH
GAINS = (0.0, 1.0, 2.0, 3.0)


def choices(seed, price, *, pure, range_factor=1, facts=None):
    """Return NODES · 10 released choices among four splits whose gains, in units of the range, are 0, 1, 2 and 3.

    Each has S in one child and -S in the other, at weight 0 and ridge 1: its gain is 2S².
    """
    sizes = (2,) * len(GAINS)
    gain_range = 4 * GRAD_ONE * GRAD_ONE * range_factor
    sums = np.zeros((NODES, 2 * len(GAINS), 2), np.int64)
    for b, gain in enumerate(GAINS):
        s = round(math.sqrt(gain / 2 * 4) * GRAD_ONE)
        sums[:, 2 * b, 0], sums[:, 2 * b + 1, 0] = s, -s
    shape = (1, NODES - 1)
    query = ChoiceQuery(
        label="c", price=price, gradient=SquaredGradient(1 << 16, GRAD_ONE), n_scores=1, ridge=1.0,
        splits=Splits.plain(np.zeros(shape, np.uint16), np.zeros(shape, np.uint8)),
        features=np.arange(len(GAINS), dtype=np.uint16), sizes=sizes,
        candidate_feature=np.arange(len(GAINS), dtype=np.uint16),
        candidate_bin=np.zeros(len(GAINS), np.uint8), candidate_only=np.zeros(len(GAINS), bool),
    )  # fmt: skip
    door = controller(seed, pure=pure, facts=facts)
    raw = Raw(sums.ravel(), Sensitivity(1, 1, gain_range))
    return np.concatenate([door.release(query, raw).value for _ in range(10)])


def check_choices(seen, epsilon):
    """χ² of the choices against ∝ exp(ε · gain/range) at p = 0.0001."""
    weights = np.exp(epsilon * np.array(GAINS))
    expected = weights / weights.sum() * len(seen)
    counts = np.bincount(seen, minlength=len(GAINS))
    assert ((counts - expected) ** 2 / expected).sum() < 21.1


@pytest.mark.parametrize("seed", thinned(range(3), every=3))
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_choices_have_the_epsilon_that_was_paid_for(seed, epsilon):
    check_choices(choices(seed, round(epsilon * PRICE_ONE), pure=True), epsilon)


def test_choices_of_a_gaussian_plan_have_the_bounded_range_of_their_price():
    # μ = 0.25 buys L(μ/2) = ε/2 with Φ(0.125) = 0.549738
    epsilon = 2 * math.log(0.5497382 / (1 - 0.5497382))
    check_choices(choices(4, PRICE_ONE // 16, pure=False), epsilon)


def test_choices_of_a_fit_cost_less_beside_what_follows():
    # of μ² = 10.5 at ε = 20 ten choices of 1/16 leave over a hundred times that: ε² is nearly 4 times the price
    seen = choices(4, PRICE_ONE // 16, pure=False, facts={CHOICES: "any"})
    total = total_price(20.0, 1e-6) / PRICE_ONE
    check_choices(seen, 2 * math.sqrt(1 / (16 + 1 / (total - 5.5 / 16))))
    for factor in (0.8, 1.3):
        with pytest.raises(AssertionError):
            check_choices(seen, factor * 0.5)


@pytest.mark.parametrize("factor", thinned([0.7, 1.3], every=2))
def test_check_of_choices_rejects_other_scales(factor):
    seen = choices(5, round(factor * PRICE_ONE), pure=True)
    with pytest.raises(AssertionError):
        check_choices(seen, 1.0)


def test_check_of_choices_rejects_another_range():
    """The papers' range of 6 g*² for 4 g*², and half of it."""
    for factor, epsilon in ((2, 0.5), (1, 1.0)):
        check_choices(choices(6, PRICE_ONE, pure=True, range_factor=factor), epsilon)
    with pytest.raises(AssertionError):
        check_choices(choices(6, PRICE_ONE, pure=True, range_factor=2), 1.0)


RATE = 0.1


def sampled(seed, n, rate=RATE):
    """Return n noisy answers about one row that serves with chance ``rate``, drawn as the shards draw; ε = 1 inside."""
    door = controller(seed)
    member = np.empty(n, np.uint32)
    identity = np.zeros((n, 2), np.uint64)
    identity[:, 0] = np.arange(n)
    draw.draws(door.rows_key, 7, identity, member)
    sums = (member < int(rate * 2**32)).astype(np.int64)
    released = door.release(wide_query(n, PRICE_ONE), Raw(sums, Sensitivity(1, 1)))
    return released.value / 2**released.receipt.scale_bits


def check_amplified(with_row, without_row):
    """The odds at a cut are e^ε' with ε' = ln(1 + q (e - 1)), the price of the sample; a two-sided audit."""
    claimed = math.exp(amplified(PRICE_ONE, int(RATE * 2**32) / 2**32) / PRICE_ONE)
    above, below = np.sum(with_row >= 1), np.sum(without_row >= 1)
    seen = above / below
    assert abs(seen - claimed) < 4 * seen * math.sqrt(1 / above + 1 / below)


def test_a_sample_amplifies_as_charged():
    check_amplified(sampled(1, 400_000), sampled(2, 400_000, rate=0.0))


@pytest.mark.parametrize("rate", [0.07, 0.13])
def test_check_of_samples_rejects_other_rates(rate):
    with pytest.raises(AssertionError):
        check_amplified(sampled(1, 400_000, rate), sampled(2, 400_000, rate=0.0))
