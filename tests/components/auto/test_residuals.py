"""What histograms of residuals tell, and the starts that rest on them."""

import numpy as np
import pandas as pd
import pytest

from dpgb_dask import DPGBRegressor, Schema
from dpgb_dask.components.auto.residuals import EDGES, Residuals
from dpgb_dask.components.auto.start import rate_posterior
from dpgb_dask.contracts.model import SCORE_ONE
from dpgb_dask.losses import sigmoid
from dpgb_dask.testing import SeededNoise

N_ROWS = 5000


def skewed(seed=0):
    """Residuals with a long tail on one side and mean 0."""
    r = np.random.default_rng(seed).lognormal(-3, 1, N_ROWS)
    return r - r.mean()


def histogram(residual):
    cell = np.searchsorted(EDGES, np.rint(residual * SCORE_ONE).astype(np.int64))
    return np.bincount(cell, minlength=len(EDGES) + 1).astype(np.float64)


def seen(residual, sd=1e-3, seed=0):
    noise = np.random.default_rng(seed).normal(0, sd, len(EDGES) + 1)
    return Residuals.of(histogram(residual) + noise, sd, len(residual))


@pytest.mark.parametrize("centre", [0.0, 0.3, -0.02])
def test_without_noise_the_histogram_gives_mean_and_spread(centre):
    r = skewed() + centre
    found = seen(r)
    assert found.share == pytest.approx(histogram(r) / N_ROWS, abs=1e-5)
    assert found.mean == pytest.approx(r.mean(), abs=0.15 * r.std())
    assert found.spread == pytest.approx(r.std(), rel=0.15)
    assert found.quantile(0.85) == pytest.approx(np.quantile(np.abs(r), 0.85), rel=0.15)
    assert found.bias(0.1) == pytest.approx((r - np.clip(r, -0.1, 0.1)).mean(), abs=0.01)


def test_a_noisy_histogram_is_better_than_its_cells():
    r = np.random.default_rng(1).normal(0, 0.05, 3000)
    truth = histogram(r) / len(r)
    error = {"found": [], "cells": []}
    for seed in range(20):
        sd = 150.0
        values = histogram(r) + np.random.default_rng(seed).normal(0, sd, len(truth))
        error["found"].append(np.abs(Residuals.of(values, sd, len(r)).share - truth).sum())
        positive = np.maximum(values, 0)
        error["cells"].append(np.abs(positive / positive.sum() - truth).sum())
    assert np.mean(error["found"]) < 0.7 * np.mean(error["cells"])


def test_noise_alone_tells_no_mean():
    means = []
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(0, 1e4, len(EDGES) + 1)
        means.append(Residuals.of(noise, 1e4, 100.0).mean)
    assert np.abs(means).max() < 0.02


def test_clip_follows_signal():
    long, even = seen(skewed()), seen(np.random.default_rng(2).normal(0, 0.05, N_ROWS))
    assert even.best_clip(1.0, 1e-3) == pytest.approx(even.quantile(0.85))
    assert long.best_clip(10.0, 1e-3) == pytest.approx(long.quantile(0.85))
    precise = long.best_clip(1e-4, 1e-4)
    assert precise > 3 * long.quantile(0.85)
    assert abs(long.bias(precise)) < 0.3 * abs(long.bias(long.quantile(0.85)))


def test_zeros_do_not_set_the_clip():
    r = np.where(np.arange(N_ROWS) % 10 == 0, 0.2, 0.0)
    assert seen(r).quantile(0.85) > 0.1


@pytest.mark.parametrize("rate", [0.003, 0.3, 0.95])
def test_rate_posterior_is_the_rate_where_it_is_precise_and_even_where_noise_decides(rate):
    logit, precision = rate_posterior(1e5 * rate, 10.0, 1e5, 2)
    assert sigmoid(np.array(logit)) == pytest.approx(rate, rel=0.05)
    unsure, loose = rate_posterior(100 * rate, 1e4, 100.0, 2)
    assert unsure == pytest.approx(0, abs=0.1)
    assert loose < precision
    assert sigmoid(np.array(rate_posterior(0.0, 300.0, 1e4, 2)[0])) < 0.03  # at most 600 of 10,000


def error(y, bounds, epsilon):
    """RMSE of a fit over that of the mean."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (N_ROWS, 2))
    target = y(x, rng)
    model = DPGBRegressor(
        epsilon=epsilon,
        delta=1e-6,
        schema=Schema({"a": (-1, 1), "b": (-1, 1)}, target_bounds=bounds),
        noise=SeededNoise(5),
        random_state=0,
    )
    X = pd.DataFrame(x, columns=["a", "b"])
    found = model.fit(X, target).predict(X)
    return np.sqrt(np.mean((target - found) ** 2)) / target.std()


def test_bounds_that_are_far_too_wide_cost_little():
    def line(x, rng):
        return 3 + x[:, 0] + rng.normal(0, 0.3, N_ROWS)

    assert error(line, (-2000, 2000), 2.0) < error(line, (1, 5), 2.0) + 0.1


def test_many_zeros_are_no_worse_than_the_mean():
    def amounts(x, rng):
        return np.where(rng.random(N_ROWS) < 0.1, np.exp(1 + 0.5 * x[:, 0]), 0.0)

    assert error(amounts, (0, 50), 8.0) < 1.01
