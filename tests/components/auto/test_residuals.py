"""What histograms of residuals tell, and the starts that rest on them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich_parts import answered, state_of

from dpgb_dask import DPGBRegressor, Schema
from dpgb_dask.components import constants
from dpgb_dask.components.auto import residuals
from dpgb_dask.components.auto.posterior import AutoFacts, residual_query, with_residual_scale
from dpgb_dask.components.auto.residuals import EDGES, Look, Residuals, edges_for
from dpgb_dask.components.auto.start import Start, rate_posterior
from dpgb_dask.contracts.model import SCORE_ONE
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.testing import SeededNoise

N_ROWS = 5000


def skewed(seed=0):
    """Residuals with a long tail on one side and mean 0."""
    r = np.random.default_rng(seed).lognormal(-3, 1, N_ROWS)
    return r - r.mean()


def histogram(residual):
    cell = np.searchsorted(EDGES, np.rint(residual * SCORE_ONE).astype(np.int64))
    return np.bincount(cell, minlength=len(EDGES) + 1).astype(np.float64)


def look(rows, sd=1e-3, seed=0, start=0.0, edges=EDGES):
    """Return a noisy histogram of ``rows``, the rows in the cells of `EDGES`, in the cells of ``edges``."""
    found = Look(edges=edges, values=np.empty(len(edges) + 1), sd=sd, start=start)
    noise = np.random.default_rng(seed).normal(0, sd, len(edges) + 1)
    return replace(found, values=found.joined(rows) + noise)


def seen(residual, sd=1e-3, seed=0):
    return Residuals.of_target([look(histogram(residual), sd, seed)], len(residual))


def seen_later(rows, sd, seed, before=None):
    return Residuals.of_model(look(rows, sd, seed), N_ROWS, before)


@pytest.mark.parametrize("centre", [0.0, 0.3, -0.02])
def test_without_noise_the_histogram_gives_mean_and_spread(centre):
    r = skewed() + centre
    found = seen(r)
    assert found.share == pytest.approx(histogram(r) / N_ROWS, abs=1e-5)
    assert found.mean == pytest.approx(r.mean(), abs=0.15 * r.std())
    assert found.spread == pytest.approx(r.std(), rel=0.15)
    least = found.quantile(0.8)
    assert np.mean(np.abs(r) <= least) >= 0.8 > np.mean(np.abs(r) <= least / 2**0.25)


@pytest.mark.parametrize("law", ["normal", "zeros", "exponential", "below"])
def test_the_clip_is_wider_where_clipping_would_move_the_mean(law):
    rng = np.random.default_rng(5)
    r = {
        "normal": rng.normal(0, 0.05, N_ROWS),
        "zeros": np.where(rng.random(N_ROWS) < 0.9, 0, rng.gamma(2, 0.1, N_ROWS)),
        "exponential": 0.1 * rng.exponential(1, N_ROWS),
        "below": -0.1 * rng.exponential(1, N_ROWS) ** 1.5,
    }[law]
    r = r - r.mean()
    found = seen_later(histogram(r), 1e-3, 0)
    least, clip = found.quantile(0.8), found.clip(0.8)
    assert (clip > least) == (law != "normal")

    def off(bound):
        return abs(np.clip(r, -bound, bound).mean()) / r.std()

    assert off(clip) < 0.12
    if law != "normal":
        assert off(least) > 0.12
        assert off(clip / 2**0.25) > 0.08  # the least such edge
        assert found.clip(0.8, 0.02) > clip


@pytest.mark.parametrize("far", [0.3, 0.6])
def test_the_clip_is_wider_where_few_rows_far_away_have_most_of_the_variance(far):
    """Rows above and below in equal parts: clipping them moves no mean."""
    rng = np.random.default_rng(6)
    r = rng.normal(0, 0.02, N_ROWS) + far * rng.choice([-1, 0, 1], N_ROWS, p=[0.02, 0.96, 0.02])
    found = seen_later(histogram(r), 1e-3, 0)
    narrow, clip = found.clip(0.8, most_beyond=1.0), found.clip(0.8)
    assert narrow == found.quantile(0.8) < 0.04

    def beyond(bound):
        return np.mean(np.maximum(np.abs(r) - bound, 0) ** 2) / r.var()

    assert beyond(narrow) > 0.7
    assert beyond(clip) < 0.55
    assert beyond(clip / 2**0.25) > 0.45  # the least such edge


def test_the_clip_is_no_wider_where_nearly_all_rows_lie_in_the_cell_in_the_middle():
    r = np.random.default_rng(6).normal(0, residuals.RESOLUTION / 3, N_ROWS)
    for seed in range(20):
        found = seen_later(histogram(r), 5.0, seed)
        assert found.spread < residuals.RESOLUTION
        assert found.clip(0.8) == found.quantile(0.8) == residuals.RESOLUTION


def test_scales_that_are_hardly_possible_do_not_widen_the_clip(monkeypatch):
    """At 13 standard deviations of a cell, a scale of a millionth of the odds has most of the mean law's variance."""
    truth = histogram(np.random.default_rng(6).normal(0, 5e-4, N_ROWS))
    before = np.where(np.arange(len(residuals._SCALES)) < 8, 1.0, 1e-6)
    looks = [seen_later(truth, N_ROWS / 13, seed, before) for seed in range(40)]

    def wider():
        return np.mean([found.clip(0.8) > found.clip(0.8, most_beyond=np.inf) for found in looks])

    assert wider() == 0
    monkeypatch.setattr(constants, "BEYOND_SIGNAL", 0.0)
    assert wider() > 0.1


def share_of_looks(truth, sd, is_so):
    """Share of noisy histograms of which something is so."""
    return np.mean([is_so(seen_later(truth, sd, seed)) for seed in range(100)])


@pytest.mark.parametrize(("sides", "signal"), [([-1], 220), ([-1, 1], 400)])
def test_few_rows_far_away_are_seen_though_no_cell_stands_out(sides, signal, monkeypatch):
    rng = np.random.default_rng(6)
    far = rng.random(N_ROWS) < 0.04
    r = np.where(far, 0.5 * rng.choice(sides, N_ROWS), 0) + rng.normal(0, 0.02, N_ROWS)
    truth, sd = histogram(r), N_ROWS / signal
    assert truth[np.abs(np.linspace(-1, 1, len(truth))) > 0.8].max() < 5 * sd

    def hides(found):
        """Whether the clip hides most of them."""
        return np.mean(np.maximum(np.abs(r) - found.clip(0.8), 0) ** 2) > 0.5 * r.var()

    assert share_of_looks(truth, sd, hides) < 0.1
    monkeypatch.setattr(constants, "FAR_ODDS", 1e-300)
    assert share_of_looks(truth, sd, hides) > 0.4


@pytest.mark.parametrize("law", ["normal", "long-tailed"])
def test_noise_is_rarely_taken_for_few_rows_far_away(law, monkeypatch):
    rng = np.random.default_rng(7)
    r = 0.02 * (rng.normal(size=N_ROWS) if law == "normal" else rng.standard_t(3, N_ROWS))
    truth = histogram(np.clip(r, -1, 1))
    for sd in (N_ROWS / 20, N_ROWS / 220, N_ROWS / 2000):
        with monkeypatch.context() as patch:
            patch.setattr(constants, "FAR_ODDS", 1e-300)
            without = [seen_later(truth, sd, seed).clip(0.8) for seed in range(100)]
        clips = [seen_later(truth, sd, seed).clip(0.8) for seed in range(100)]
        assert np.mean(np.array(clips) > without) < 0.06
        assert max(clips) <= 4 * max(without)


def test_a_noisy_histogram_is_better_than_its_cells():
    r = np.random.default_rng(1).normal(0, 0.05, 3000)
    truth = histogram(r) / len(r)
    error = {"found": [], "cells": []}
    for seed in range(20):
        one = look(histogram(r), 150.0, seed)
        error["found"].append(np.abs(Residuals.of_target([one], len(r)).share - truth).sum())
        positive = np.maximum(one.values, 0)
        error["cells"].append(np.abs(positive / positive.sum() - truth).sum())
    assert np.mean(error["found"]) < 0.7 * np.mean(error["cells"])


def test_whole_numbers_around_the_middle_are_not_taken_for_a_target_without_spread(monkeypatch):
    rng = np.random.default_rng(3)
    thirds = rng.choice(np.arange(-3, 4), N_ROWS, p=[0.005, 0.03, 0.33, 0.44, 0.165, 0.025, 0.005])
    truth, sd = histogram(thirds / 3), N_ROWS / 13

    def too_narrow():
        """Share of noisy histograms from which the clip is a tenth of what it should be, or less."""
        clips = [seen_later(truth, sd, seed).clip(0.8, most_beyond=1.0) for seed in range(200)]
        return np.mean(np.array(clips) < 1 / 30)

    assert too_narrow() < 0.2
    monkeypatch.setattr(residuals, "_ODDS_OF_ATOMS", np.array([1.0, 1e-300, 1e-300]))
    assert too_narrow() > 0.35


def test_a_look_remembers_the_scale_that_an_earlier_one_told():
    """At 16 standard deviations of a cell, a look by itself takes noise for residuals of a hundred times the scale."""
    rng = np.random.default_rng(4)
    truth, sd = histogram(rng.normal(0, 0.0025, N_ROWS)), N_ROWS / 16

    def spreads(before):
        return np.array([seen_later(truth, sd, seed, before).spread for seed in range(300)])

    assert np.mean(spreads(None) > 0.05) > 0.2
    before = seen_later(truth, sd / 4, 300).scales
    assert np.mean(spreads(before) > 0.05) < 0.02


@pytest.mark.parametrize("now", [0.001, 0.04, 0.6])
def test_what_was_told_before_gives_way_to_what_is_clear_now(now):
    rng = np.random.default_rng(4)
    before = seen(rng.normal(0, 0.05, N_ROWS)).scales
    truth, sd = histogram(rng.normal(0, now, N_ROWS)), N_ROWS / 100
    found = seen_later(truth, sd, 0, before)
    assert abs(np.log2(found.spread / now)) < 1
    assert found.octaves < 0.5


def test_the_scale_is_uncertain_where_noise_hides_it():
    r = np.random.default_rng(4).normal(0, 0.0025, N_ROWS)
    assert seen(r, N_ROWS / 200).octaves < 0.5
    assert np.mean([seen(r, N_ROWS / 3, seed).octaves > 1 for seed in range(50)]) > 0.8


@pytest.mark.parametrize(("sd", "least"), [(1.0, 0.0028), (200.0, 0.06), (1e3, 0.2)])
def test_a_clip_falls_no_further_than_noise_lets_be_seen(sd, least):
    """It was .4, and residuals have scale .002 now; the state has 10⁵ rows."""
    state = state_of(kind="numeric")
    query = residual_query(state, "scale")
    rows = histogram(np.random.default_rng(0).normal(0, 0.002, N_ROWS)) * (1e5 / N_ROWS)
    values = look(rows, 0.0, edges=query.edges).values
    state = with_residual_scale(state, query, answered(query, values, sd))
    assert state.fact(AutoFacts).clip == pytest.approx(least, rel=0.02)


def test_noise_alone_tells_no_mean():
    nothing = np.zeros(len(EDGES) + 1)
    found = [
        Residuals.of_target([look(nothing, 1e4, seed, start)], 100.0)
        for seed in range(20)
        for start in (0.0, -0.003, 0.1)
    ]
    assert max(abs(one.start + one.mean) for one in found) < 0.02


@pytest.mark.parametrize("around", [0, constants.RESIDUAL_NEAR])
def test_noise_in_one_of_many_cells_moves_no_mean(around):
    """One look in a few hundred has noise of 4.5 sd in one of its 122 cells, or in neighbours together."""
    rows, sd = np.zeros(len(EDGES) + 1), 7.0
    middle = len(rows) // 2
    rows[middle - 1 : middle + 2] = 150, 9800, 50  # a target in bounds ten thousand times too wide
    means = []
    for far in (around, 10, 40, 80, 110, len(rows) - 1 - around):
        here = slice(far - around, far + around + 1)
        noisy = rows.copy()
        noisy[here] += 4.5 * sd / (2 * around + 1) ** 0.5
        found = Residuals.of_target([Look(edges=EDGES, values=noisy, sd=sd, start=0.0)], 1e4)
        means.append(abs(found.mean) * SCORE_ONE)
        assert found.spread < 1e-3
    assert max(means) < 4  # the smallest edge


def error_of_mean(spread, starts, sd, edges=EDGES, middle=0.3):
    """Mean distance from the middle of a target after looks from some starts."""
    y = np.random.default_rng(0).normal(middle, spread, N_ROWS)
    errors = []
    for seed in range(30):
        looks = [
            look(histogram(y - start), sd, 10 * seed + k, start, edges)
            for k, start in enumerate(starts)
        ]
        found = Residuals.of_target(looks, N_ROWS)
        errors.append(abs(found.start + found.mean - middle))
    return np.mean(errors)


@pytest.mark.slow
def test_looks_tell_together_nearly_what_one_of_their_common_price_would():
    sd = N_ROWS / 2.5
    alone, dear = error_of_mean(0.01, [0.1], sd), error_of_mean(0.01, [0.1], sd / 2)
    assert dear < 0.4 * alone
    for starts in ([0.1, 0.101, 0.099, 0.1], [0.0, -0.2, 0.5, 0.1]):
        assert error_of_mean(0.01, starts, sd) < 0.6 * alone


@pytest.mark.slow
def test_the_middle_of_the_bounds_is_likely_and_found_from_any_start():
    sd, edges = N_ROWS / 6, edges_for(6.0)
    for start in (0.0, 0.33, 0.77):
        centred = error_of_mean(0.2, [start], sd, edges, middle=0.0)
        assert centred < 0.5 * error_of_mean(0.2, [start], sd, edges, middle=-0.6)
    assert error_of_mean(0.005, [0.77], N_ROWS / 60, edges_for(60.0), middle=0.0) < 0.01


@pytest.mark.parametrize("far", [0.33, 0.77])
def test_a_look_from_afar_takes_nothing_from_what_one_nearby_told(far):
    r = np.random.default_rng(2).normal(0, 0.005, N_ROWS)
    sd, edges = N_ROWS / 60, edges_for(60.0)
    near = look(histogram(r), sd, 0, 0.0, edges)
    both = Residuals.of_target([near, look(histogram(r - far), sd, 1, far, edges)], N_ROWS)
    assert abs(both.start + both.mean) < 0.002
    assert both.spread == pytest.approx(r.std(), rel=0.3)
    assert both.clip(0.8) < 0.01


def test_counts_without_noise_that_fit_no_law_give_shares_all_the_same():
    for n_rows in (1.0, 1e12, 1e15):
        none = look(np.zeros(len(EDGES) + 1), 1e-9, edges=edges_for(1.0))
        for found in (
            Residuals.of_target([none], n_rows), Residuals.of_model(none, n_rows, None)
        ):  # fmt: skip
            assert found.share.sum() == pytest.approx(1)
            assert np.isfinite([found.mean, found.spread, found.typical, found.octaves]).all()


def started(*targets, sd):
    """The state of `Start` after looks, each at some target; fewer if it ends before."""
    stage, first = Start(), state_of(kind="numeric")
    state = stage.begin(replace(first, left=PRICE_ONE // 9))
    for k, y in enumerate(targets):
        query = stage.next_query(state)
        if query is None:
            break
        intercept = state.fact(AutoFacts).totals.intercepts[0].f
        rows = histogram(np.asarray(y) - intercept) * (state.n_rows / len(y))
        state = stage.update(
            state, query, answered(query, look(rows, sd, k, 0, query.edges).values, sd)
        )
    return state


def test_start_hears_all_looks_and_forgets_them_at_its_end():
    rng = np.random.default_rng(0)
    here, there = rng.normal(-0.5, 0.01, N_ROWS), rng.normal(0.5, 0.01, N_ROWS)
    # noise of 100,000 / 4: none of two looks that disagree is believed alone
    state = started(here, there, sd=25_000.0)
    assert len(state.memory) == 2
    assert abs(state.fact(AutoFacts).totals.intercepts[0].f) < 0.45
    state = started(here, here, here, here, sd=100.0)
    assert state.memory == "done"
    found = state.fact(AutoFacts)
    assert found.totals.intercepts[0].f == pytest.approx(-0.5, abs=0.005)


def test_effects_of_a_target_whose_spread_noise_hides_are_taken_to_be_small():
    y = np.random.default_rng(0).normal(0, 0.3, N_ROWS)
    clear = started(y, sd=100.0)
    hidden = started(y, y, y, y, sd=300_000.0)
    assert clear.fact(AutoFacts).narrow == pytest.approx(0.3 / constants.USUAL_SPREAD, rel=0.2)
    assert hidden.fact(AutoFacts).narrow < 0.2


def test_edges_follow_the_noise_under_weights():
    state = state_of(kind="numeric")
    found = replace(state.fact(AutoFacts), start_price=PRICE_ONE // 10_000)
    state = state.with_fact(found)
    assert len(residual_query(state, "look").edges) == len(EDGES)  # signal 1,000
    heavy = replace(state, shape=replace(state.shape, max_weight=100))
    assert len(residual_query(heavy, "look").edges) == len(edges_for(10.0))


def test_one_edge_an_octave_shows_more_under_much_noise():
    assert len(edges_for(6.0)) < len(edges_for(150.0)) < len(edges_for(400.0)) == len(EDGES)
    assert set(edges_for(6.0)) < set(edges_for(150.0)) < set(EDGES)
    fine = error_of_mean(0.2, [0.0], N_ROWS / 10)
    assert error_of_mean(0.2, [0.0], N_ROWS / 10, edges_for(10.0)) < 0.6 * fine


def test_coarse_cells_are_divided_as_the_laws_have_it():
    r = np.random.default_rng(1).normal(0, 0.05, N_ROWS)
    coarse = look(histogram(r), edges=edges_for(1.0))
    found = Residuals.of_model(coarse, N_ROWS, None)
    assert found.share.sum() == pytest.approx(1)
    assert coarse.joined(found.share) == pytest.approx(
        coarse.joined(histogram(r)) / N_ROWS, abs=1e-5
    )
    assert np.abs(found.share - histogram(r) / N_ROWS).sum() < 0.15
    assert found.quantile(0.8) == pytest.approx(np.quantile(np.abs(r), 0.8), rel=0.25)


def test_what_little_is_known_of_is_not_typically_as_wide_as_on_the_average():
    r = np.random.default_rng(4).normal(0, 0.0025, N_ROWS)
    assert seen(r).typical == pytest.approx(seen(r).spread, rel=0.01)
    hidden = [seen(r, N_ROWS / 3, seed) for seed in range(20)]
    assert np.median([one.spread for one in hidden]) > 0.1
    assert np.median([one.typical for one in hidden]) < 0.03


@pytest.mark.parametrize("rate", [0.003, 0.3, 0.95])
def test_rate_posterior_is_the_rate_where_it_is_precise_and_even_where_noise_decides(rate):
    assert rate_posterior(1e5 * rate, 10.0, 1e5, 2) == pytest.approx(rate, rel=0.05)
    assert rate_posterior(100 * rate, 1e4, 100.0, 2) == pytest.approx(0.5, abs=0.03)


def test_a_rate_that_noise_hides_is_not_as_small_as_noise_can_make_it():
    assert 0.003 < rate_posterior(-300.0, 300.0, 1e4, 2) < 0.03  # at most 600 of 10,000
    # of several classes, before they are made to sum to 1: all alike
    few, many = rate_posterior(0.0, 1e4, 100.0, 5), rate_posterior(100.0, 1e4, 100.0, 5)
    assert few == pytest.approx(many, rel=0.01)
    assert 0.2 < few < 0.5  # the law is as wide as for two classes


def test_a_skewed_target_in_wide_bounds_is_no_worse_than_its_mean():
    rng = np.random.default_rng(3)
    X = pd.DataFrame(rng.uniform(-1, 1, (N_ROWS, 2)), columns=["a", "b"])
    y = np.exp(X["a"] + 0.7 * rng.normal(size=N_ROWS))
    model = DPGBRegressor(
        epsilon=2.0,
        delta=1e-6,
        schema=Schema({"a": (-1, 1), "b": (-1, 1)}, target_bounds=(0, 1e5)),
        noise=SeededNoise(5),
        random_state=0,
    )
    # with the mean as a sum at full range it was 2.3
    assert np.sqrt(np.mean((y - model.fit(X, y).predict(X)) ** 2)) < 1.1 * y.std()


@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_rows_in_bounds_a_hundred_times_too_wide_are_learnt(seed):
    """When every look was taken by itself, such a model was 50 times worse than the mean in one of some twenty fits."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.uniform(-1, 1, (1000, 3)), columns=["a", "b", "c"])
    y = 2 * X["a"] + rng.normal(size=len(X))
    model = DPGBRegressor(
        epsilon=1.0,
        delta=1e-6,
        schema=Schema(dict.fromkeys(X, (-1, 1)), target_bounds=(-500, 500)),
        noise=SeededNoise(seed),
        random_state=seed,
        on_few_rows="continue",
    ).fit(X, y)
    assert np.sqrt(np.mean((y - model.predict(X)) ** 2)) < y.std()


def test_looks_at_a_target_cost_more_only_where_they_do_not_settle_it():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(-1, 1, (1000, 3)), columns=["a", "b", "c"])
    y = 2 * X["a"] + rng.normal(size=len(X))

    def prices(bound, epsilon):
        """Of the looks at the start, in shares of the budget."""
        model = DPGBRegressor(
            epsilon=epsilon,
            delta=1e-6,
            schema=Schema(dict.fromkeys(X, (-1, 1)), target_bounds=(-bound, bound)),
            noise=SeededNoise(1),
            random_state=0,
            on_few_rows="continue",
        ).fit(X, y)
        receipts = model.privacy_report_.receipts
        total = sum(receipt.price for receipt in receipts)
        return [r.price / total for r in receipts if r.label.startswith("start")]

    assert max(prices(6, 8.0)) < 0.012
    first, *later = prices(600, 1.0)
    assert first < 0.012
    assert later
    assert min(later) > 0.03
    assert sum(later) < constants.START_LOOKS * constants.LOOK_SHARE
