"""Parts of the stages of `auto` that are plain functions, and what a narrow target does to them."""

import threading
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich_parts import state_of

from dpgb_dask import DPGBRegressor, Schema
from dpgb_dask.components import constants
from dpgb_dask.components.auto import schedules
from dpgb_dask.components.auto.forest import Forest
from dpgb_dask.components.auto.levels import coarsen
from dpgb_dask.components.auto.main_effects import MainEffects, possible_cuts, random_partition
from dpgb_dask.components.auto.posterior import AutoFacts, in_threads, round_price
from dpgb_dask.components.auto.start import Start, binary_start, multiclass_start
from dpgb_dask.components.bins import Bins
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import clipped_probability, sigmoid
from dpgb_dask.losses.links import CLASS_CLIP, LINKS
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training import fit as training


@pytest.mark.parametrize("rate", [1e-4, 0.05, 0.3, 0.5, 0.7, 0.999])
def test_binary_start_balances_clipped_gradients(rate):
    score, hess = binary_start(rate)
    p = sigmoid(score)
    assert rate * np.minimum(1 - p, 0.5) == pytest.approx((1 - rate) * np.minimum(p, 0.5))
    assert clipped_probability(score)[0] == pytest.approx(rate)
    assert 0 < hess <= 0.25


@pytest.mark.parametrize(
    "rate", [[0.2, 0.3, 0.5], [1e-4, 0.4, 0.5999], [0.97, 0.01, 0.01, 0.01], [0.5, 0.5]]
)
def test_multiclass_start_is_where_gradients_clipped_in_norm_sum_to_zero(rate):
    rate = np.array(rate)
    scores, hess = multiclass_start(rate)
    p = np.exp(scores) / np.exp(scores).sum()
    gradient = p - np.eye(len(rate))  # of a row of each class
    length = np.linalg.norm(gradient, axis=1, keepdims=True)
    clipped = gradient * np.minimum(1, CLASS_CLIP / length)
    np.testing.assert_allclose(rate @ clipped, 0, atol=1e-12)
    np.testing.assert_allclose(LINKS["clipped_softmax"](scores[None])[0], rate)
    assert ((hess > 0) & (hess < 0.25)).all()


@pytest.mark.parametrize("n_rounds", [1, 7, 20])
def test_round_prices_sum_exactly(n_rounds):
    price = 10**19 + 3
    prices = [round_price(price, t, n_rounds) for t in range(n_rounds)]
    assert sum(prices) == price
    assert max(prices) - min(prices) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_random_partition_is_ordered_and_complete(seed):
    rng, cuts = np.random.default_rng(seed), np.arange(3, 30, 2)
    leaf = random_partition(40, cuts, 7, rng)
    assert list(np.unique(leaf)) == list(range(7))
    assert np.all(np.diff(leaf.astype(int)) >= 0)
    assert set(np.flatnonzero(np.diff(leaf))) <= set(cuts)
    categories = random_partition(40, None, 7, rng)
    assert list(categories) == list(range(40))


@pytest.mark.parametrize(("kind", "rounds"), [("binary", 20), ("multiclass", 20), ("numeric", 28)])
def test_main_effects_take_more_rounds_of_a_number(kind, rounds):
    schema = {
        "binary": Schema({"a": (0, 1)}, classes=[0, 1]),
        "multiclass": Schema({"a": (0, 1)}, classes=[0, 1, 2]),
        "numeric": Schema({"a": (0, 1)}, target_bounds=(0, 1)),
    }
    shape = Shape(schema=schema[kind])
    assert MainEffects().rounds_of(shape) == rounds
    assert MainEffects(rounds=7).rounds_of(shape) == 7


def test_few_bins_are_cut_everywhere():
    n_bins = constants.MOST_CUTS + 1
    assert list(possible_cuts(np.ones(n_bins))) == list(range(n_bins - 1))


def test_many_bins_are_cut_evenly_beside_round_values_and_before_missing_values():
    mass = np.full(250, 100.0)
    mass[[41, 180]], mass[-1] = 900.0, 0.1
    cuts = possible_cuts(mass)
    assert {0, 40, 41, 179, 180, 248} <= set(cuts)
    assert len(cuts) <= constants.MOST_CUTS + 4
    assert np.all((np.diff(cuts) >= 1) & (np.diff(cuts) <= 3))


@pytest.mark.parametrize("categorical", [True, False])
def test_coarsen_is_monotone(categorical):
    mass = np.sort(np.random.default_rng(0).exponential(10, 50))[::-1]
    level = coarsen(mass, categorical, 6)
    assert np.all(np.diff(level.astype(int)) >= 0)
    assert level.min() == 0
    assert level.max() <= 5
    assert list(coarsen(mass[:4], categorical, 6)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("stage", "option", "value"),
    [
        (Bins, "max_bins", 1),
        (Bins, "max_bins", 251),
        (MainEffects, "rounds", 0),
        (MainEffects, "damping", float("nan")),
        (Forest, "depth", 9),
        (Forest, "learning_rate", 0),
    ],
)
def test_options_out_of_range_raise(stage, option, value):
    with pytest.raises(PlanError, match=option):
        stage(**{option: value})


@pytest.mark.parametrize("n", [0, 1, 5, 9])
@pytest.mark.parametrize("n_threads", [1, 2, 4, 20])
def test_threads_give_every_result_in_order(n, n_threads):
    seen = set()

    def square(j):
        seen.add(threading.current_thread() is threading.main_thread())
        return j * j

    assert in_threads(square, n, n_threads) == [j * j for j in range(n)]
    assert not n or seen == {min(n, n_threads) == 1}


def narrow_fit(width, monkeypatch):
    """Fit a target of spread 1 in bounds of some width; return its share of the variance, and how narrow it was."""
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.uniform(-1, 1, (8000, 4)), columns=list("abcd"))
    y = (1.2 * x["a"] + np.sin(3 * x["b"])).to_numpy()
    facts = []
    ran = training.run

    def noted(*asked):
        end = ran(*asked)
        facts.append(end.state.fact(AutoFacts))
        return end

    monkeypatch.setattr(training, "run", noted)
    model = DPGBRegressor(
        schema=Schema(dict.fromkeys("abcd", (-1, 1)), target_bounds=(-width, width)),
        epsilon=1.0, delta=1e-6, recipe="additive", noise=SeededNoise(3), random_state=0,
    ).fit(x, y + 0.5 * rng.normal(size=len(y)))  # fmt: skip
    explained = 1 - np.mean((model.predict(x) - y) ** 2) / y.var()
    return explained, facts[0].narrow


def test_bounds_far_too_wide_cost_little(monkeypatch):
    """With the prior scales of a target that fills its bounds, .84 is explained in place of .99."""
    told = {width: narrow_fit(width, monkeypatch) for width in (4.0, 200.0)}
    # a spread of 1.1 in half a range of 4, or 200; the histogram's cells have four edges an octave
    for width, (_, narrow) in told.items():
        assert narrow == pytest.approx(1.1 / width / constants.USUAL_SPREAD, rel=0.4)
    assert told[200.0][0] > told[4.0][0] - 0.01 > 0.97
    for name in ("USUAL_SPREAD", "WIDE_SPREAD"):
        monkeypatch.setattr(constants, name, 1e-9)
    assert narrow_fit(200.0, monkeypatch)[0] < told[200.0][0] - 0.05


@pytest.mark.parametrize(("clip", "spread", "taken"), [(0.3, 1.0, 0.3), (0.001, 0.004, 0.2)])
def test_a_narrow_target_has_pairs_at_no_smaller_signal(clip, spread, taken, monkeypatch):
    """By its clip alone an interaction worth finding would be half its spread, and tables would show noise."""
    asked = []
    monkeypatch.setattr(schedules, "pair_signal", lambda *of: asked.append(of) or 0.0)
    state = state_of(kind="numeric")
    Start()._divide(state.with_fact(replace(state.fact(AutoFacts), clip=clip, spread=spread)))
    assert asked[0][4] == pytest.approx(taken)
