"""The mean error that clipped residuals leave: its price, the clip at which it is asked for, and what it moves."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich_parts import N_ROWS, answered, state_of

from dpgb_dask import DPGBRegressor, Schema
from dpgb_dask.components import constants
from dpgb_dask.components.auto.mean import Mean
from dpgb_dask.components.auto.posterior import AutoFacts, look_signal
from dpgb_dask.components.auto.start import _price_of_mean
from dpgb_dask.contracts.model import SCORE_ONE
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.testing import SeededNoise


def numbers(left=PRICE_ONE, **facts):
    state = state_of(kind="numeric")
    facts = {"spread": 0.2, "reach": 0.7, "mean_price": left} | facts
    return replace(state.with_fact(replace(state.fact(AutoFacts), **facts)), left=left)


def moved(error, sd, state=None):
    """Return how far the intercept moves if rows are off by ``error`` on the average, under noise on their sum."""
    state = Mean().begin(numbers() if state is None else state)
    query = Mean().next_query(state)
    after = Mean().update(state, query, answered(query, [-error * N_ROWS, N_ROWS], sd))
    assert Mean().next_query(after) is None
    return (after.model.intercept - state.model.intercept) / SCORE_ONE


def test_the_error_is_asked_for_once_with_all_that_is_left_and_a_wide_clip():
    state = Mean().begin(numbers(left=12345))
    query = Mean().next_query(state)
    assert (query.price, query.n_cells) == (12345, 1)
    assert query.gradient.clip_steps == round(0.7 * SCORE_ONE)


def test_the_intercept_moves_by_the_posterior_mean():
    prior, sampling = (constants.MEAN_ERROR * 0.2) ** 2, 0.2**2 / N_ROWS
    assert moved(0.03, 1e-3) == pytest.approx(0.03 * prior / (prior + sampling), rel=1e-3)
    hidden = np.sqrt(prior) * N_ROWS  # as much noise as may be there a priori
    assert moved(0.03, hidden) == pytest.approx(0.03 * prior / (2 * prior + sampling), rel=1e-3)
    assert moved(-0.03, 1e-3) == pytest.approx(-moved(0.03, 1e-3), abs=1e-4)


def test_the_intercept_stays_within_the_bounds_of_the_target():
    state = numbers()
    model = replace(state.model, intercept=np.array([0.99 * SCORE_ONE], np.int32))
    assert moved(0.05, 1e-3, replace(state, model=model)) == pytest.approx(0.01, abs=1e-4)


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_classes_are_not_asked(kind):
    state = Mean().begin(state_of(kind=kind))
    assert Mean().next_query(state) is None
    assert Mean().declare(state.shape).n_queries == 0


@pytest.mark.parametrize(
    ("left", "kept", "asks"), [(0.5, 0, True), (1e-4, 0, False), (1e-4, 1e-4, True)]
)
def test_a_little_that_is_left_is_asked_only_if_it_was_kept(left, kept, asks):
    left, kept = (round(share * PRICE_ONE) for share in (left, kept))
    state = Mean().begin(numbers(left=left, mean_price=kept))
    assert (Mean().next_query(state) is not None) == asks


def test_no_more_is_kept_than_the_error_is_worth():
    shares, noise = [], []  # of what is left, and in spreads
    for n_rows in (10.0, 2e3, 3e4, 1e7):
        state = replace(numbers(), n_rows=n_rows)
        price = _price_of_mean(state, 5.0)
        shares.append(price / state.left)
        noise.append(1 / max(look_signal(state, price) * 0.2, 1e-9))
    assert shares == pytest.approx(
        [0, constants.MEAN_SHARE, 2.8e-4, constants.MEAN_LOWEST], rel=0.01
    )
    assert constants.MEAN_SD < noise[1] < constants.MEAN_ERROR / 2
    assert noise[2] == pytest.approx(constants.MEAN_SD, rel=1e-5)


@pytest.mark.parametrize("recipe", ["auto", "additive"])
def test_predictions_of_a_skewed_target_have_its_mean(recipe, monkeypatch):
    """A mean of clipped residuals is 15 % short of it."""
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.uniform(-1, 1, (20_000, 3)), columns=list("abc"))
    y = np.minimum(np.exp(x["a"] + rng.normal(0, 1, len(x))), 60)
    schema = Schema(dict.fromkeys("abc", (-1, 1)), target_bounds=(0, 60))

    def share():
        model = DPGBRegressor(
            schema=schema, epsilon=4.0, delta=1e-6, recipe=recipe, noise=SeededNoise(1), random_state=0
        )  # fmt: skip
        return np.mean(model.fit(x, y).predict(x)) / y.mean()

    assert share() == pytest.approx(1, abs=0.05)
    monkeypatch.setattr(constants, "MEAN_ERROR", 0.0)
    assert share() < 0.9
