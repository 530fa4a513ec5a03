"""How far the forest is scaled by what the gradients of rows say of it."""

from dataclasses import replace

import numpy as np
import pytest
from components.auto.test_forest_scale import N, by_contribution, gradients, grown, people
from rich_parts import answered

from dpgb_dask.components import constants
from dpgb_dask.components.answers import sums
from dpgb_dask.components.auto.forest import scaled
from dpgb_dask.components.auto.forest_slope import (
    UNKNOWN,
    Slope,
    added_by,
    edges_of,
    numbers_of,
    slope_of,
)
from dpgb_dask.components.auto.posterior import AutoFacts, gradient_of
from dpgb_dask.contracts.model import SCORE_ONE, TreeEnsemble
from dpgb_dask.contracts.queries import ContributionSumsQuery

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


@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_trees_that_are_too_short_or_too_long_are_told(kind, subset, monkeypatch):
    """Trees of signal, nearly without noise, times t: rows tell the step that Newton's method makes along them."""
    monkeypatch.setattr(constants, "SCALE_OPTIMISM", 0.0)
    scale, state = grown(kind, 3, effect=1.5, sd=0.3)
    codes, y = people(kind, np.random.default_rng(3), effect=1.5)
    trees, value = state.model.trees, scale.forest
    every = numbers_of(trees, 0, 1.0)
    assert len(every) == trees.n_trees
    unscaled = scaled(
        trees, 0, np.abs(value).sum() / np.abs(added_by(trees, every, scale.codes)).sum()
    )
    for t in (0.6, 1.0, 1.5):
        own = scaled(unscaled, 0, t)
        numbers = every[::4] if subset else every
        added = added_by(own, numbers, scale.codes)
        known = replace(scale, forest=added_by(own, every, scale.codes))
        whole = added_by(own, every, codes) / SCORE_ONE
        g, h = gradients(kind, y, whole)
        gradient = gradient_of(kind, 10.0, state.shape.n_scores)
        query = ContributionSumsQuery(
            label="",
            price=1,
            gradient=gradient,
            n_scores=len(g),
            trees=numbers,
            edges=edges_of(added),
        )
        means = tuple(h.mean(1))  # as the stages before know them
        now = replace(state, model=replace(state.model, trees=own), n_rows=float(N))
        facts = now.fact(AutoFacts)
        now = now.with_fact(replace(facts, totals=replace(facts.totals, hess=means)))
        told = by_contribution(query, own, codes, g, h)
        slope = slope_of(now, known, query, sums(query, answered(query, told, sd=1e-3)))
        assert slope.value == pytest.approx((g * whole).sum() / bent(kind, whole), abs=0.12)
        assert slope.variance < 0.05
        assert slope.doubt < 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_noise_of_the_release_is_in_the_error(kind):
    scale, state = grown(kind, 5, effect=1.0, sd=3.0)
    trees = state.model.trees
    numbers = numbers_of(trees, 0, float(N))
    query = ContributionSumsQuery(
        label="", price=1, gradient=gradient_of(kind, 1.0, state.shape.n_scores),
        n_scores=state.shape.n_scores, trees=numbers, edges=edges_of(added_by(trees, numbers, scale.codes)),
    )  # fmt: skip
    rng, sd = np.random.default_rng(0), 5.0
    hess = N / query.n_cells * 0.2 * query.gradient.hess_scale
    values = []
    for _ in range(300):
        told = np.tile([0.0, hess], (query.n_cells * query.n_scores, 1))
        told[:, 0] += rng.normal(0, sd, len(told))
        slopes = slope_of(state, scale, query, sums(query, answered(query, told, sd=sd)))
        values.append(slopes.value)
    quiet = slope_of(state, scale, query, sums(query, answered(query, told, sd=1e-9)))
    noise = np.std(values)
    assert np.sqrt(slopes.variance) > 0.7 * noise
    assert slopes.variance > quiet.variance
    assert slopes.doubt > quiet.doubt


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
    scale, state = grown("binary", 1, effect=1.0, sd=3.0)
    trees = scaled(state.model.trees, 0, 0.0)
    state = replace(state, model=replace(state.model, trees=trees))
    numbers = numbers_of(trees, 0, float(N))
    edges = edges_of(added_by(trees, numbers, scale.codes))
    assert not edges.any()
    query = ContributionSumsQuery(
        label="",
        price=1,
        gradient=gradient_of("binary", 1.0, 1),
        n_scores=1,
        trees=numbers,
        edges=edges,
    )
    answer = sums(query, answered(query, np.ones((query.n_cells, 2))))
    assert slope_of(state, scale, query, answer) == UNKNOWN
