"""How far the forest is scaled by what the gradients of rows say of it."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from components.auto.test_forest_scale import N, by_contribution, complete, gradients, people
from rich_parts import answered
from thinned import one_of_each, thinned

from dpgb_dask.components import constants
from dpgb_dask.components.answers import sums
from dpgb_dask.components.auto.forest import Forest, scaled
from dpgb_dask.components.auto.forest_scale import curvature_at
from dpgb_dask.components.auto.forest_slope import (
    UNKNOWN,
    Slope,
    edges_of,
    mean_hess,
    mixed_curvature,
    numbers_of,
    slope_gradient,
    slope_of,
)
from dpgb_dask.components.auto.posterior import (
    AutoFacts,
    curvature_of,
    gradient_of,
    sampling_variance,
)
from dpgb_dask.contracts.model import SCORE_ONE, TreeEnsemble
from dpgb_dask.contracts.queries import ContributionSumsQuery
from dpgb_dask.contracts.scores import added_by

KINDS = ["binary", "multiclass", "numeric"]


def test_the_factor_is_what_was_known_moved_to_one_less_the_slope():
    exact, vague = 1e-9, 1e9
    assert Slope(0.4, exact, 0.0).factor(1.0) == pytest.approx(0.6)
    assert Slope(-0.7, exact, 0.0).factor(0.2) == pytest.approx(1.7)
    assert Slope(0.4, vague, 0.0).factor(1.2) == pytest.approx(1.2)
    assert UNKNOWN.factor(0.3) == pytest.approx(0.3)
    # as far as it is known
    assert Slope(0.4, constants.SCALE_SD**2, 0.0).factor(1.0) == pytest.approx(0.8)
    assert (Slope(9.0, exact, 0.0).factor(1.0), Slope(-9.0, exact, 0.0).factor(1.0)) == (0, 3)


def test_a_curvature_in_doubt_leaves_the_direction():
    """Sums that ask for more ask for more whatever the curvature is; how much more is in doubt."""
    sure, doubtful = (Slope(-1.0, 0.05, doubt).factor(1.0) for doubt in (0.0, 1.0))
    assert 1.2 < doubtful < sure < 2.0
    assert Slope(0.0, 0.05, 1.0).factor(1.0) == pytest.approx(1.0)


def bent(kind, score):
    """The curvature of the loss of rows along their scores."""
    if kind == "numeric":
        return (score**2).sum()
    p = 1 / (1 + np.exp(-score)) if kind == "binary" else np.exp(score) / np.exp(score).sum(0)
    own = p * score**2
    return (
        (own - p**2 * score**2).sum()
        if kind == "binary"
        else own.sum() - ((p * score).sum(0) ** 2).sum()
    )


def query_of(kind, trees, numbers, scale):
    """What rows are asked about some trees."""
    n_scores = len(trees.value)
    return ContributionSumsQuery(
        label="", price=1, gradient=gradient_of(kind, 10.0, n_scores), n_scores=n_scores,
        trees=numbers, edges=edges_of(added_by(trees.only(numbers), scale.codes)),
    )  # fmt: skip


def with_rows(kind, seed, effect):
    """A state when all trees are there, codes, scores and gradients of the rows that they were fitted to."""
    state = complete(kind, seed, effect=effect, sd=0.5)
    codes, y = people(kind, np.random.default_rng(seed), effect=effect)
    score = added_by(state.model.trees, codes) / SCORE_ONE
    return state, codes, score, *gradients(kind, y, score)


@pytest.mark.parametrize(("kind", "subset"), one_of_each(product(KINDS, [False, True])))
def test_trees_that_are_too_short_or_too_long_are_told(kind, subset, monkeypatch):
    """Trees of signal, nearly without noise, times t: rows tell the step that Newton's method makes along them."""
    monkeypatch.setattr(constants, "SCALE_OPTIMISM", 0.0)
    state = complete(kind, 3, effect=1.5, sd=0.3)
    codes, y = people(kind, np.random.default_rng(3), effect=1.5)
    trees, scale = state.model.trees, state.memory.scale
    every = numbers_of(trees, 0, 1.0)
    assert len(every) == trees.n_trees
    for t in (0.6, 1.0, 1.5):
        own = scaled(trees, 0, t)
        numbers = every[::4] if subset else every
        known = replace(scale, forest=added_by(own, scale.codes))
        whole = added_by(own, codes) / SCORE_ONE
        g, h = gradients(kind, y, whole)
        query = query_of(kind, own, numbers, scale)
        means = tuple(h.mean(1))  # as the stages before know them
        now = replace(state, model=replace(state.model, trees=own), n_rows=float(N))
        facts = now.fact(AutoFacts)
        now = now.with_fact(replace(facts, totals=replace(facts.totals, hess=means)))
        told = by_contribution(query, own, codes, g, h)
        slope = slope_of(now, known, query, sums(query, answered(query, told, sd=1e-3)))
        assert slope.value == pytest.approx((g * whole).sum() / bent(kind, whole), abs=0.12)
        assert slope.variance < 0.05
        assert slope.doubt < 0.01


def asked(state, scale, sd, g, h, codes):
    """The slope that rows tell of all trees, as these are, and the query."""
    trees = state.model.trees
    query = query_of(state.shape.kind, trees, numbers_of(trees, 0, float(N)), scale)
    told = by_contribution(query, trees, codes, g, h)
    return (
        query,
        told,
        lambda noise: slope_of(
            state, scale, query, sums(query, answered(query, told + noise, sd=sd))
        ),
    )


@pytest.mark.parametrize("kind", thinned(KINDS, every=3))
def test_what_trees_follow_of_the_rows_own_noise_is_taken_off_in_part(kind, monkeypatch):
    """Trees of rows that follow nothing: these rows ask for longer ones, others for none."""
    found = []
    for seed in range(4):
        state = complete(kind, seed, effect=0.0, sd=0.5)
        scale = state.memory.scale
        slopes = []
        for rows in (seed, seed + 100):  # those that the trees were fitted to, and others
            codes, y = people(kind, np.random.default_rng(rows), effect=0.0)
            score = added_by(state.model.trees, codes)
            g, h = gradients(kind, y, score / SCORE_ONE)
            tell = asked(state, scale, 1e-3, g, h, codes)[2]
            for optimism in (0.0, 0.5):
                monkeypatch.setattr(constants, "SCALE_OPTIMISM", optimism)
                slopes.append(tell(0.0))
        own, less, fresh, _ = slopes
        assert own.value < less.value
        # what is taken off is in doubt by as much
        assert less.variance - own.variance == pytest.approx((less.value - own.value) ** 2)
        found.append([own.value, less.value, fresh.value])
    own, less, fresh = np.mean(found, axis=0)
    assert own < less < fresh
    assert less - own > 0.15 * (fresh - own)


@pytest.mark.parametrize("kind", thinned(KINDS[::-1], every=3))
def test_noise_of_the_release_and_of_rows_is_the_error(kind, monkeypatch):
    # what optimism takes off changes with the curvature, which depends on the noise
    monkeypatch.setattr(constants, "SCALE_OPTIMISM", 0.0)
    state, codes, score, g, h = with_rows(kind, 5, 1.5)
    scale = state.memory.scale
    rng, sd = np.random.default_rng(0), 8.0
    _, told, tell = asked(state, scale, sd, g, h, codes)
    grad_only = np.array([1.0, 0.0])
    values = [tell(rng.normal(0, sd, told.shape) * grad_only) for _ in range(80)]
    quiet = asked(state, scale, 1e-6, g, h, codes)[2](0.0)
    noise = np.std([one.value for one in values])
    assert values[0].variance - quiet.variance == pytest.approx(noise**2, rel=0.35)
    assert values[0].doubt > quiet.doubt
    of_rows = sampling_variance(state) / bent(kind, score)
    assert quiet.variance == pytest.approx(of_rows, rel=0.25)


def test_a_curvature_is_what_is_told_as_far_as_noise_allows():
    ratio, spread = constants.MADE_CURVATURE
    assert mixed_curvature(told=3.0, variance=1e-12, made=8.0) == pytest.approx((3.0, 0.0))
    expected = pytest.approx((8.0 * ratio, spread**2))
    assert mixed_curvature(told=-1e3, variance=1e12, made=8.0) == expected
    between, doubt = mixed_curvature(told=2.0, variance=(8 * ratio * spread) ** 2, made=8.0)
    assert between == pytest.approx((2 + 8 * ratio) / 2)
    assert doubt == pytest.approx((8 * ratio * spread) ** 2 / 2 / between**2)
    # below 0, or smaller than its error: no less than that, and wholly in doubt
    for told in (-5.0, 0.0, 0.001):
        curved, doubt = mixed_curvature(told=told, variance=0.01, made=8.0)
        assert curved == pytest.approx(0.1, rel=0.05)
        assert doubt == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_hessian_is_that_after_the_forest(kind):
    """Of the answer where its noise is small; else of the stages before, as rows that are made up changed since."""
    state, codes, _, g, h = with_rows(kind, 2, 3.0)
    scale = state.memory.scale
    times = curvature_of(kind)
    bend = curvature_at(kind, scale.before + scale.forest)
    query, told, _ = asked(state, scale, 1.0, g, h, codes)
    known = sum(state.fact(AutoFacts).totals.hess) / times
    change = bend.mean_hess / curvature_at(kind, scale.before).mean_hess
    for sd, expected in ((1e-3, h.mean(1).sum() / times), (1e9, known * change)):
        answer = sums(query, answered(query, told, sd=sd))
        found = mean_hess(state, scale, query, answer, bend)
        assert found == pytest.approx(expected, rel=0.01)


def test_many_rows_are_asked_about_fewer_trees():
    trees = TreeEnsemble(type("S", (), {"n_trees": 910})(), None)
    assert numbers_of(trees, 10, 30_000.0).tolist() == list(range(10, 910))
    few = numbers_of(trees, 10, 1e9)
    assert len(few) == constants.SLOPE_TREES
    assert (few[0], few[-1]) == (10, 909)
    assert np.diff(few).max() - np.diff(few).min() <= 1
    some = numbers_of(trees, 10, constants.SLOPE_WORK / 200)
    assert len(some) == 200


def test_a_forest_without_steps_has_no_slope():
    state = complete("binary", 1, effect=1.0, sd=3.0)
    scale = state.memory.scale
    trees = scaled(state.model.trees, 0, 0.0)
    state = replace(state, model=replace(state.model, trees=trees))
    query = query_of("binary", trees, numbers_of(trees, 0, float(N)), scale)
    assert not query.edges.any()
    answer = sums(query, answered(query, np.ones((query.n_cells, 2))))
    assert slope_of(state, scale, query, answer) == UNKNOWN


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clip", [0.01, 0.2, 0.7])
def test_residuals_of_a_number_are_clipped_widely(kind, clip):
    state = complete(kind, 1, effect=1.0, sd=3.0)
    state = state.with_fact(replace(state.fact(AutoFacts), clip=clip))
    asked = Forest(rounds=10).next_query(state).gradient
    wide = min(constants.SLOPE_CLIP * clip, 1.0)
    assert asked == slope_gradient(state) == gradient_of(kind, wide, state.shape.n_scores)
    assert kind != "numeric" or wide > clip


def test_a_multiple_fits_the_mean_of_a_skewed_target(monkeypatch):
    """One row in ten lies eleven times as far out as the trees say, so the mean is twice what they say."""
    monkeypatch.setattr(constants, "SCALE_OPTIMISM", 0.0)
    state = complete("numeric", 3, effect=1.5, sd=0.3)
    rng, scale = np.random.default_rng(3), state.memory.scale
    codes, _ = people("numeric", rng, effect=1.5)
    trees = state.model.trees
    score = added_by(trees, codes) / SCORE_ONE
    y = score * np.where(rng.random(N) < 0.1, 11, 1) + 0.02 * rng.normal(size=N)
    told = {}
    for clip in (0.05, 4.0):
        off = score - y
        g, h = np.clip(off, -clip, clip), (np.abs(off) < clip).astype(float)
        query = query_of("numeric", trees, numbers_of(trees, 0, 1.0), scale)
        sums_of = by_contribution(query, trees, codes, g, h)
        told[clip] = slope_of(state, scale, query, sums(query, answered(query, sums_of, sd=1e-3)))
    assert told[4.0].value == pytest.approx(-1, abs=0.2)
    assert told[0.05].value > -0.5
