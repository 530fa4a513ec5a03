"""The stage `LinearEffects`: ranks, directions, shrinkage, when it runs, what it finds and what noise it leaves."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich_parts import N_ROWS, answered, state_of

from dpgb_dask import DPGBRegressor, Schema
from dpgb_dask.components import constants
from dpgb_dask.components.auto import schedules
from dpgb_dask.components.auto.linear_effects import (
    VALUE_ONE,
    Directions,
    LinearEffects,
    centred_ranks,
    curvature,
    shrinkage,
)
from dpgb_dask.components.auto.noise import LinearTables
from dpgb_dask.components.auto.posterior import AutoFacts
from dpgb_dask.components.prices import share_of
from dpgb_dask.contracts.model import SCORE_ONE, FeatureBins
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import PRICE_ONE, DirectionSumsQuery, ProductSumsQuery
from dpgb_dask.kernels.directions import MOST_DIRECTIONS
from dpgb_dask.parameters import constraints_of
from dpgb_dask.recipes import ADDITIVE
from dpgb_dask.testing import SeededNoise

PRICE = PRICE_ONE // 50


def linear_state(kind="binary", main=PRICE, **options):
    """A state in which main effects have a price; features a and c are numbers of some bins."""
    state = state_of(kind=kind)
    bins = (*state.model.bins[:2], FeatureBins(np.linspace(0, 1, 20), None, 22))
    tables = tuple(np.zeros((own.n_bins, state.shape.n_scores), np.int32) for own in bins)
    counts = tuple(np.full(own.n_bins, N_ROWS / own.n_bins) for own in bins)
    state = replace(state, model=replace(state.model, bins=bins, tables=tables), counts=counts)
    split = replace(state.fact(AutoFacts).split, main=main)
    return state.with_fact(replace(state.fact(AutoFacts), split=split, **options))


def run(state, moments, gradient, stage=None, sd=(0.0, 0.0), rng=None):
    """Run the stage on released answers: covariances, and the gradient of the coefficients in natural units."""
    stage = stage or LinearEffects()
    rng = rng or np.random.default_rng(0)
    state, asked = stage.begin(state), []
    while (query := stage.next_query(state)) is not None:
        asked.append(query)
        if isinstance(query, ProductSumsQuery):
            unit = (query.norm / VALUE_ONE) ** 2
            asked_for = moments / np.sqrt(1 + np.eye(len(moments)))  # squares times √½
            exact = asked_for[np.triu_indices(len(moments))] * N_ROWS / unit
            answer = answered(query, exact + rng.normal(0, sd[0], exact.shape), max(sd[0], 1e-6))
        else:
            matrix, unit = query.matrix / VALUE_ONE, query.norm / VALUE_ONE**2
            exact = gradient(matrix, state) * N_ROWS / unit
            exact = np.stack([exact + rng.normal(0, sd[1], exact.shape), 0 * exact], axis=-1)
            answer = answered(query, exact.ravel(), max(sd[1], 1e-6))
        state = stage.update(state, query, answer)
    return state, asked


def slopes_of(state):
    """The slope of each table of a number over its ranks, score 0."""
    memory = state.memory
    found = []
    for j, value in zip(memory.features, memory.values, strict=True):
        own = value / VALUE_ONE
        found.append(own @ state.model.tables[j][:, 0] / SCORE_ONE / (own @ own))
    return np.array(found)


def test_ranks_are_centred_and_missing_values_have_none():
    rows = np.array([10.0, 30.0, 0.0, 60.0, 25.0])
    value = centred_ranks(rows) / VALUE_ONE
    assert value[-1] == 0
    np.testing.assert_allclose(value[:-1] - value[0], [0, 0.4, 0.7, 1.3], atol=0.005)
    assert abs(rows @ value) < 0.005 * rows.sum()


@pytest.mark.parametrize("rows", [np.zeros(4), np.array([0.0, 0, 0, 50]), np.array([7.0, 0])])
def test_ranks_of_no_rows_are_numbers(rows):
    value = centred_ranks(rows)
    assert (np.abs(value) <= 2 * VALUE_ONE).all()


def test_directions_have_variance_1_and_are_independent():
    moments = np.array([[0.33, 0.31, 0.1], [0.31, 0.33, 0.05], [0.1, 0.05, 0.3]])
    found = Directions.of(moments, 1e-5)
    matrix = found.matrix / VALUE_ONE
    np.testing.assert_allclose(matrix @ moments @ matrix.T, np.eye(3), atol=0.02)
    assert found.norm / VALUE_ONE**2 == pytest.approx(np.sqrt(1.5 * 3), rel=1e-3)


@pytest.mark.parametrize("sd", [0.01, 0.1, 1.0])
def test_a_variance_that_noise_hides_counts_as_that_of_the_noise(sd):
    moments = np.array([[0.33, 0.3295], [0.3295, 0.33]])
    matrix = Directions.of(moments, sd).matrix / VALUE_ONE
    hidden = 2 * np.sqrt(2) * sd
    lengths = np.sort((matrix**2).sum(1))
    expected = np.sort([1 / max(0.6595, hidden), 1 / hidden])
    np.testing.assert_allclose(lengths, expected, rtol=0.02)


def test_no_direction_is_longer_than_a_bound():
    matrix = Directions.of(np.full((5, 5), 0.33), 0.0).matrix / VALUE_ONE
    assert (matrix**2).sum(1).max() <= 1.01 / constants.LINEAR_SPREAD


def test_what_is_kept_is_near_1_of_effects_and_near_0_of_noise():
    rng = np.random.default_rng(3)
    effect = np.r_[rng.normal(0, 1, 20), np.zeros(180)][:, None]
    told = effect + rng.normal(0, 0.1, (200, 1))
    kept = shrinkage(told, np.full((200, 1), 0.01), 5.0)
    assert ((kept >= 0) & (kept <= 1)).all()
    assert ((kept * told - effect) ** 2).mean() < 0.35 * 0.01
    assert kept[np.abs(told) > 1].min() > 0.95
    # larger estimates keep more, and the sign does not matter
    order = np.argsort(np.abs(told[:, 0]))
    assert (np.diff(kept[order, 0]) > -1e-12).all()
    np.testing.assert_allclose(shrinkage(-told, np.full((200, 1), 0.01), 5.0), kept)


def test_noise_alone_is_hardly_kept():
    rng = np.random.default_rng(4)
    told = rng.normal(0, 0.1, (40, 3))
    kept = shrinkage(told, np.full((40, 3), 0.01), 5.0)
    assert ((kept * told) ** 2).mean() < 0.1 * 0.01


@pytest.mark.parametrize("told", [np.zeros((3, 1)), np.full((3, 1), 1e9)])
def test_what_is_kept_is_a_number_at_the_ends(told):
    kept = shrinkage(told, np.full(told.shape, 1e-30), 0.5)
    assert ((kept >= 0) & (kept <= 1)).all()


@pytest.mark.parametrize("kind", ["binary", "numeric"])
def test_it_finds_slopes_that_cancel_each_other(kind):
    """Features a and c tell nearly the same, and their difference matters."""
    state = linear_state(kind, clip=0.4)
    v = LinearEffects().begin(state).memory.variance
    both = 0.98 * np.sqrt(v[0] * v[1])
    moments = np.array([[v[0], both], [both, v[1]]])
    wanted = np.array([0.5, -0.4])
    hess = curvature(state)[0]

    def gradient(matrix, now):
        return hess * matrix @ moments @ (slopes_of(now) - wanted)[:, None]

    state, asked = run(state, moments, gradient)
    assert [type(query) for query in asked] == [ProductSumsQuery] + 4 * [DirectionSumsQuery]
    np.testing.assert_allclose(slopes_of(state), wanted, atol=0.05)
    assert not state.model.tables[1].any()  # categories have no line
    linear = state.fact(LinearTables)
    for table, own in zip(state.model.tables, linear.tables, strict=True):
        np.testing.assert_array_equal(table, own)


def test_all_of_its_price_is_asked():
    _, asked = run(linear_state(), np.eye(2) / 3, lambda matrix, _: 0 * matrix[:, :1])
    assert sum(query.price for query in asked) == price_of(PRICE)
    assert asked[0].price == share_of(price_of(PRICE), constants.LINEAR_PRODUCTS)
    assert len({query.price for query in asked[1:]}) <= 2


def test_steps_of_several_classes_add_up_to_nothing():
    state = linear_state("multiclass")

    def gradient(matrix, _):
        return -matrix @ np.ones((2, 1)) * np.array([[0.02, 0.01, 0.0]])

    state, _ = run(state, np.eye(2) / 3, gradient)
    assert np.abs(state.model.tables[0].sum(1)).max() <= 3
    assert np.abs(state.model.tables[0]).max() > 1000


def test_the_noise_in_the_tables_is_what_it_says():
    """Over many runs, their spread is that of the draws for bands; 30 % more or less noise would show."""
    moments, effect = np.array([[0.3, 0.1], [0.1, 0.25]]), np.array([0.9, -0.4])
    hess, tables, rng = 0.2, [], np.random.default_rng(7)

    def gradient(matrix, now):
        return hess * matrix @ moments @ (slopes_of(now) - effect)[:, None]

    for _ in range(150):
        state, _ = run(linear_state(), moments, gradient, sd=(0.0, 300.0), rng=rng)
        tables.append(state.model.tables[0][0, 0] / SCORE_ONE)
    drawn = [np.zeros((len(table), 4000)) for table in state.model.tables]
    state.fact(LinearTables).add_noise(drawn, 0, rng)
    assert np.std(drawn[0][0]) / np.std(tables) == pytest.approx(1, abs=0.2)
    assert not drawn[1].any()


@pytest.mark.parametrize(
    ("n_numeric", "n_rows", "runs"),
    [
        (8, 1e5, True),
        (MOST_DIRECTIONS, 1e6, True),
        (MOST_DIRECTIONS + 1, 1e9, False),
        (1, 1e9, False),
        (8, 100, False),
        (8, 0, False),
    ],
)
def test_it_runs_where_there_is_something_to_find(n_numeric, n_rows, runs):
    price = schedules.linear_price(n_numeric, 2 * n_numeric, n_rows, PRICE_ONE // 20)
    assert price == (share_of(PRICE_ONE // 20, constants.LINEAR_SHARE / 2) if runs else 0)


def price_of(main):
    return share_of(main, constants.LINEAR_SHARE * 2 / 3)  # two of three features are numbers


def test_its_price_is_a_part_of_that_of_the_main_effects():
    state = linear_state()
    begun = LinearEffects().begin(state)
    assert begun.memory.price == price_of(PRICE)
    before, after = (each.fact(AutoFacts).split for each in (state, begun))
    assert after.main == PRICE - begun.memory.price
    assert replace(after, main=PRICE) == before


def test_it_does_not_run_under_monotone_constraints():
    state = linear_state()
    constraints = constraints_of({"a": 1}, None, state.shape.schema)
    state = replace(state, shape=Shape(schema=state.shape.schema, constraints=constraints))
    stage = LinearEffects()
    assert stage.most_queries(state) == 0
    assert stage.next_query(stage.begin(state)) is None


def test_without_a_price_it_asks_nothing():
    stage, state = LinearEffects(), linear_state(main=0)
    assert stage.most_queries(state) == 0
    assert stage.next_query(stage.begin(state)) is None
    assert stage.most_queries(linear_state()) == 5


@pytest.mark.parametrize(("hess", "runs"), [(0.2, True), (0.002, True), (0.0002, False)])
def test_it_does_not_run_where_noise_is_more_than_the_largest_coefficient(hess, runs):
    """Of a rare class rows have little curvature, and noise moves coefficients by more."""
    state = linear_state()
    totals = replace(state.fact(AutoFacts).totals, hess=(hess,))
    state = state.with_fact(replace(state.fact(AutoFacts), totals=totals))
    assert LinearEffects().most_queries(state) == (5 if runs else 0)


def test_features_whose_variance_noise_hides_have_no_line():
    """The noise of counts makes up rows of a constant feature; their products tell that there are none."""
    state, asked = run(linear_state(), np.diag([0.3, 0.001]), None, sd=(2000.0, 0.0))
    assert len(asked) == 1
    assert state.fact(AutoFacts).split.main == PRICE - asked[0].price
    assert not any(table.any() for table in state.model.tables)


def test_what_errors_of_covariances_make_of_other_coefficients_counts_as_noise():
    """A direction that hardly varies seems to have a part of what the others explain."""
    directions = Directions.of(np.diag([0.3, 0.3, 0.001]), 0.01)
    coefficients = np.array([[0.0], [2.0], [1.0]])
    a, b, c = directions.unsure
    np.testing.assert_allclose(
        directions.variance_by(coefficients)[:, 0], [a * (4 * b + c), b * c, c * 4 * b]
    )
    assert a == pytest.approx(1 / (2 * np.sqrt(3)))  # its variance counts as what noise can be
    assert b == c == pytest.approx(0.01 / 0.3)


def test_features_of_one_value_have_no_line():
    state = linear_state()
    flat = np.zeros(42)
    flat[3] = N_ROWS
    state = replace(state, counts=(flat, *state.counts[1:]))
    stage = LinearEffects()
    after = stage.begin(state)
    assert stage.next_query(after) is None
    assert after.fact(AutoFacts).split == state.fact(AutoFacts).split


def test_a_difference_of_features_that_are_nearly_alike_is_learnt():
    """Lines bring most of what main effects need many more rounds for."""
    rng = np.random.default_rng(0)
    n = 6000
    level = rng.random(n)
    x = np.stack([level, np.clip(level + rng.normal(0, 0.04, n), 0, 1)], axis=1)
    y = np.clip(10 * (x[:, 0] - x[:, 1]) + rng.normal(0, 0.1, n), -1.5, 1.5)
    x = pd.DataFrame(x, columns=["a", "b"])
    schema = Schema({"a": (0, 1), "b": (0, 1)}, target_bounds=(-1.5, 1.5))
    stages = tuple(stage for stage in ADDITIVE.stages if not isinstance(stage, LinearEffects))
    left = []
    for plan in (ADDITIVE, replace(ADDITIVE, name="without", stages=stages)):
        model = DPGBRegressor(
            schema=schema, epsilon=8, delta=1e-6, random_state=0, recipe=plan, noise=SeededNoise(0)
        ).fit(x[:4000], y[:4000])
        left.append(np.std(y[4000:] - np.asarray(model.predict(x[4000:]))))
    assert left[0] < 0.6 * left[1]
