import math

import numpy as np
import pytest

from dpgb_dask.controller import laplace, words
from dpgb_dask.controller.laplace import (
    FAR,
    LAPLACE_SATURATION,
    MAX_T,
    DiscreteLaplace,
    discrete_laplace,
)
from dpgb_dask.controller.noise import KeyStream
from dpgb_dask.errors import PlanError


def stream(seed=0):
    return KeyStream(seed.to_bytes(32, "little"))


def words_of(stream, n):
    words = np.empty(n, np.uint64)
    stream.read(words)
    return words


def laplace_chi_squared(values, t):
    """Return the statistic of P(z) = tanh(1/2t) exp(-|z|/t) over |z| <= 5t and the tail, and its degrees of freedom."""
    reach = 5 * t
    middle = math.tanh(0.5 / t) * np.exp(-np.abs(np.arange(-reach, reach + 1)) / t)
    expected = np.append(middle, 1 - middle.sum()) * len(values)
    inside = values[np.abs(values) <= reach]
    seen = np.append(
        np.bincount(inside + reach, minlength=2 * reach + 1), len(values) - len(inside)
    )
    return float(((seen - expected) ** 2 / expected).sum()), len(expected) - 1


@pytest.mark.parametrize("t", [1, 2, 3, 10, 16])
@pytest.mark.parametrize("seed", range(2))
def test_discrete_laplace_has_the_exact_distribution(t, seed):
    statistic, freedom = laplace_chi_squared(discrete_laplace(300_000, t, stream(seed)), t)
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)  # p about 3e-5


def test_laplace_chi_squared_sees_a_wrong_distribution():
    rounded = np.rint(np.random.default_rng(0).laplace(0, 2, 300_000)).astype(np.int64)
    statistic, freedom = laplace_chi_squared(rounded, 2)
    assert statistic > freedom + 20 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("t", [1 << 20, (1 << 20) + 1, (1 << 32) + 12345, 1 << 54, MAX_T])
def test_discrete_laplace_is_laplace_at_large_t(t):
    draws = discrete_laplace(50_000, t, stream(8))
    z = np.sort(np.abs(draws)) / t
    cdf = -np.expm1(-z)
    steps = (np.arange(len(z)) + 0.5) / len(z)
    assert np.abs(cdf - steps).max() * math.sqrt(len(z)) < 1.95  # Kolmogorov-Smirnov, p = 0.001
    assert abs(np.mean(draws > 0) - 0.5) < 4 / math.sqrt(4 * len(z))
    low = np.bincount(draws & 15, minlength=16) / len(z)
    assert np.abs(low - 1 / 16).max() < 5 * math.sqrt(1 / 16 / len(z))


@pytest.mark.parametrize("batch", [1, 2, 7, 50, 1000])
@pytest.mark.parametrize("t", [1, 5, (1 << 32) + 1])
def test_discrete_laplace_does_not_depend_on_buffer_ends(batch, t, monkeypatch):
    whole = discrete_laplace(300, t, stream(11))
    monkeypatch.setattr(words, "BATCH_WORDS", batch)
    assert np.array_equal(discrete_laplace(300, t, stream(11)), whole)
    assert np.array_equal(whole[:100], discrete_laplace(100, t, stream(11)))


def test_discrete_laplace_golden_values():
    z = discrete_laplace(6, 1 << 20, KeyStream(bytes(range(32))))
    assert z.tolist() == [-904370, 3118573, -306329, -2104106, 103485, -495087]


def test_discrete_laplace_compiled_and_plain_agree():
    words = words_of(stream(4), 4000)
    for t in (1, 3, MAX_T):
        position = 0
        out = []
        for _ in range(20):
            value, position = laplace._draw_laplace.py_func(
                words, position, np.uint64(t), laplace.mask_of(t)
            )
            out.append(int(value))
        assert out == discrete_laplace(20, t, stream(4)).tolist()


def test_discrete_laplace_stops_at_far(monkeypatch):
    exact = discrete_laplace(500, 300, stream(4))
    monkeypatch.setattr(laplace, "FAR", 1000)
    words, position, mask = words_of(stream(4), 20_000), 0, laplace.mask_of(300)
    for value in exact[:200]:
        seen, position = laplace._draw_laplace.py_func(words, position, np.uint64(300), mask)
        assert seen == np.clip(value, -1000, 1000)
    assert np.abs(exact[:200]).max() > 1000


@pytest.mark.parametrize("sign", [-1, 1])
def test_laplace_noise_of_far_hides_every_sum(monkeypatch, sign):
    monkeypatch.setattr(
        laplace, "discrete_laplace", lambda n, _t, _s: np.full(n, sign * FAR, np.int64)
    )
    sums = np.array([-(1 << 62), -LAPLACE_SATURATION, 0, 7, LAPLACE_SATURATION], np.int64)
    answer = DiscreteLaplace(1 << 50, 0).answer(sums, stream())
    assert (answer == sign * 2 * LAPLACE_SATURATION).all()


@pytest.mark.parametrize("t", [0, -1, MAX_T + 1])
def test_discrete_laplace_refuses_t(t):
    with pytest.raises(PlanError, match=r"t_steps=-?\d+ must be"):
        discrete_laplace(1, t, stream())


@pytest.mark.parametrize("scale_bits", [0, 12])
def test_laplace_answer_is_total(scale_bits):
    ends = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max], np.int64)
    noisy = DiscreteLaplace(1 << 40, scale_bits).answer(ends, stream(2))
    noise = discrete_laplace(2, 1 << 40, stream(2))
    assert np.array_equal(noisy - noise, [-LAPLACE_SATURATION, LAPLACE_SATURATION])
    assert DiscreteLaplace(5, 0).answer(np.empty(0, np.int64), stream()).shape == (0,)


def test_laplace_answer_scales_sums_and_states_its_deviation():
    sums = np.array([5, -3, 0], np.int64)
    mechanism = DiscreteLaplace(1 << 20, 4)
    noise = discrete_laplace(3, 1 << 20, stream(2))
    assert np.array_equal(mechanism.answer(sums, stream(2)), sums * 16 + noise)
    assert mechanism.sigma_steps == round(math.sqrt(2) * 2**20)
