"""How far all tables move at once: the curvature along their last move, and what it does for features that agree."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich_parts import state_of

from dpgb_dask import DPGBRegressor, Schema
from dpgb_dask.components import constants
from dpgb_dask.components.answers import Sums
from dpgb_dask.components.auto import schedules
from dpgb_dask.components.auto.pairs import Pairs
from dpgb_dask.components.auto.posterior import AutoFacts
from dpgb_dask.components.auto.reference import sums_of_tables
from dpgb_dask.components.auto.stepping import Step, averaged, noise_along
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.recipes import RECIPES
from dpgb_dask.testing import SeededNoise

SIZES = (5, 3, 4)


@pytest.fixture
def quadratic():
    """A loss ½ f'Hf whose diagonal is what the tables see of themselves, a point, and a move."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(sum(SIZES), sum(SIZES)))
    return root @ root.T, rng.normal(size=sum(SIZES)), rng.normal(size=sum(SIZES))


def step_along(quadratic, sd):
    curved, point, move = quadratic
    before = Step(moved=move[:, None], slope=float(curved @ point @ move))
    grad, hess = curved @ (point + move), np.diag(curved)
    sums = sums_of_tables(Sums(grad[:, None], hess[:, None], sd, sd), SIZES)
    return before.seen(sums, move[:, None], sd)


def test_curvature_is_that_of_the_loss_along_the_move(quadratic):
    curved, _, move = quadratic
    step = step_along(quadratic, sd=1e-6)
    assert step.joint == pytest.approx(move @ curved @ move)
    assert step.own == pytest.approx(np.diag(curved) @ move**2)
    rate = constants.STEP * step.own / step.joint
    anything = np.ones((sum(SIZES), 1))
    assert step.damping(anything, anything, 1.0, n_tables=3, most=1.0) == pytest.approx(
        min(rate, 1.0)
    )
    assert step.damping(anything, anything, 1.0, n_tables=3, most=rate / 2) == rate / 2
    shorter = replace(step, reach=step.reach / 4)
    assert shorter.damping(anything, anything, 1.0, n_tables=3, most=1.0) == pytest.approx(rate / 4)


def test_curvature_that_may_be_noise_changes_nothing(quadratic):
    curved, _, move = quadratic
    sd = move @ curved @ move / np.sqrt(2 * move @ move) / constants.STEP_SD
    assert step_along(quadratic, sd=0.9 * sd).joint > 0
    assert step_along(quadratic, sd=1.1 * sd).joint == 0


def test_the_first_move_of_copies_explains_no_more_than_there_is():
    rng = np.random.default_rng(1)
    effect, rows, n_tables = rng.normal(size=(6, 1)), rng.uniform(1, 9, (6, 1)), 30
    whole, weight = np.tile(effect, (n_tables, 1)), np.tile(rows, (n_tables, 1))
    rate = Step().damping(whole, weight, 20.0, n_tables=n_tables, most=1.0)
    moved = n_tables * rate * effect  # of a row, by all copies together
    assert (rows * moved**2).sum() == pytest.approx(constants.FIRST_STEP * 20.0)
    assert Step().damping(whole, weight, 1e9, n_tables=n_tables, most=0.4) == 0.4
    assert Step().damping(0 * effect, rows, 20.0, n_tables=1, most=0.4) == 0.4


@pytest.mark.parametrize("omitted", [(-1, -1, -1), (4, -1, 0), (1, 2, 3)])
def test_noise_along_a_move_is_that_of_the_released_sums(omitted):
    """Each released sum is a coordinate; a leaf that was kept back is the total less the others."""
    moved, sizes = np.random.default_rng(2).normal(size=(sum(SIZES), 2)), list(SIZES)
    expected = 0.0
    for along in moved.T:
        of_sums, of_total, start = along.copy(), 0.0, 0
        for leaf, size in zip(omitted, sizes, strict=True):
            if leaf >= 0:
                of_total += along[start + leaf]
                of_sums[start : start + size] -= along[start + leaf]
            start += size
        expected += (of_sums**2).sum() + of_total**2
    assert noise_along(moved, sizes, omitted) == pytest.approx(expected)


def test_moves_are_averaged_over_the_bins_of_a_leaf():
    values, weight = np.array([[1.0], [3.0], [8.0]]), np.array([[3.0], [1.0], [2.0]])
    assert averaged(values, weight, np.array([0, 0, 1])).ravel() == pytest.approx([1.5, 8.0])


def test_copies_of_a_feature_do_not_add_up():
    rng = np.random.default_rng(0)
    y = rng.random(2000)
    x = y[:, None] + 0.02 * rng.random((2000, 30))  # each tells the target
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(30)])
    schema = Schema(dict.fromkeys(frame.columns, (0, 1.02)), target_bounds=(0, 1))
    additive = RECIPES["additive"]
    tables = replace(additive, name="main effects", stages=additive.stages[:-1])
    model = DPGBRegressor(
        recipe=tables, schema=schema, epsilon=30, delta=1e-6, noise=SeededNoise(1), random_state=0
    ).fit(frame, y)
    assert np.sqrt(np.mean((model.predict(frame) - y) ** 2)) < 0.2 * y.std()


@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_pairs_of_several_classes_move_half_as_far(kind):
    state = state_of(kind=kind)
    found = state.fact(AutoFacts)
    split = schedules.split_rich(kind, 9000.0, PRICE_ONE // 9, chosen=True, pairs=True)
    memory = Pairs().begin(state.with_fact(replace(found, split=split))).memory
    assert memory.step.reach == (1.0 if kind == "multiclass" else 2.0)
