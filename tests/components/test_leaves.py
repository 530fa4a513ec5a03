"""What a leaf says."""

from dataclasses import replace

import numpy as np
import pytest

from dpgb_dask.components.leaves import (
    Averaging,
    BinCountStep,
    GradientStep,
    LeafSums,
    NewtonStep,
)
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import PlanError

SHAPES = {
    "binary": Shape(schema=Schema({"x": (0, 1)}, classes=[0, 1])),
    "multiclass": Shape(schema=Schema({"x": (0, 1)}, classes=[0, 1, 2])),
    "numeric": Shape(schema=Schema({"x": (0, 1)}, target_bounds=(0, 1))),
}
STEPS = [NewtonStep, GradientStep, BinCountStep]
QUIET, LOUD = 1e-9, 1e12  # standard deviations of noise


def sums_of(grad, hess, sd=0.0):
    column = [np.asarray(x, float)[:, None] for x in (grad, hess)]
    return LeafSums(*column, sd, sd)


@pytest.mark.parametrize("step", STEPS)
def test_step_is_a_clipped_step_against_the_gradient(step):
    leaf = step(learning_rate=0.5, largest=2.0, ridge=1.0)
    sums = sums_of([6.0, -6.0, 100.0, -100.0, 0.0], [2.0, 11.0, 4.0, 4.0, 9.0])
    # -6/3; 6/12; ∓100/5, clipped; 0
    np.testing.assert_allclose(leaf.value(sums)[:, 0], [-1.0, 0.25, -1.0, 1.0, 0.0])


@pytest.mark.parametrize("step", STEPS)
def test_step_is_nothing_where_the_noisy_hessian_is_not_positive(step):
    value = step().value(sums_of([5.0, 5.0, -5.0], [0.0, -3.0, -1e9]))
    np.testing.assert_array_equal(value, 0)


def test_steps_of_several_scores_are_taken_one_by_one():
    sums = LeafSums(np.array([[1.0, -2.0]]), np.array([[1.0, 3.0]]), 0.0, 0.0)
    np.testing.assert_allclose(NewtonStep(learning_rate=1.0).value(sums), [[-0.5, 0.5]])


# ---- priors


@pytest.mark.parametrize("ridge", [1e-6, 1.0])
def test_without_noise_a_prior_changes_nothing(ridge):
    grad, hess = [3.0, -1.0, 0.5], [20.0, 7.0, 3.0]
    plain = NewtonStep(ridge=ridge)
    shrunk = replace(plain, prior=1.0)
    np.testing.assert_allclose(
        shrunk.value(sums_of(grad, hess, QUIET)), plain.value(sums_of(grad, hess))
    )


def test_without_noise_leaves_forget_the_node_above():
    sums = sums_of([3.0, -1.0], [20.0, 7.0], QUIET)
    above = sums_of([40.0], [27.0], QUIET)
    leaf = NewtonStep(ridge=1e-9, prior=1.0)
    np.testing.assert_allclose(leaf.value(sums, above), leaf.value(sums), rtol=1e-6)


def test_leaves_of_noise_alone_say_what_the_node_above_says():
    above = sums_of([-9.0, 4.0], [30.0, 20.0], QUIET)
    noise = np.random.default_rng(0).normal(0, 1e3, (4, 1))
    leaf = NewtonStep(learning_rate=1.0, prior=0.5)
    value = leaf.value(LeafSums(noise, np.full((4, 1), 15.0), LOUD, 0.0), above)
    np.testing.assert_allclose(value[:, 0], np.repeat([9 / 31, -4 / 21], 2), rtol=1e-4)


def test_a_root_of_noise_alone_says_nothing():
    value = NewtonStep(prior=1.0).value(sums_of([1e3], [10.0], LOUD))
    np.testing.assert_allclose(value, 0, atol=1e-6)


@pytest.mark.parametrize("sd", [1.0, 5.0, 20.0])
def test_prior_is_the_posterior_mean(sd):
    """A normal step N(0, τ²), seen as G = -H·step + N(0, sd²): the mean keeps τ² / (τ² + sd²/H²) of -G/H."""
    tau, hess, grad = 0.7, 30.0, -12.0
    leaf = NewtonStep(learning_rate=1.0, largest=1e9, ridge=1e-9, prior=tau)
    (value,) = leaf.value(LeafSums(np.array([[grad]]), np.array([[hess]]), sd, 0.0))[0]
    assert value == pytest.approx(-grad / hess * tau**2 / (tau**2 + sd**2 / hess**2))


# ---- averages


def test_averaging_is_the_mean_target():
    # the gradient of averaging is minus the target
    value = Averaging().value(sums_of([-3.0, -0.0, 4.0], [4.0, 9.0, 8.0]))
    np.testing.assert_allclose(value[:, 0], [0.75, 0.0, -0.5])


def test_averaging_of_noise_stays_small():
    value = Averaging().value(LeafSums(np.array([[-5.0]]), np.array([[-40.0]]), 50.0, 100.0))
    np.testing.assert_allclose(value, 0.05)


# ---- gradients


@pytest.mark.parametrize("kind", SHAPES)
def test_gradients_have_what_the_rules_need(kind):
    shape = SHAPES[kind]
    assert GradientStep(count_scale=1.0).gradient(shape).counts
    assert GradientStep(count_scale=0.25).gradient(shape).hess_scale == 0.25
    assert Averaging(count_scale=0.25).gradient(shape).hess_scale == 0.25
    alone = BinCountStep().gradient(shape)
    # nothing beside g: only g sets the norm
    assert alone.l2_squared <= GradientStep().gradient(shape).l2_squared
    assert not alone.counts


@pytest.mark.parametrize("step", [NewtonStep, GradientStep, BinCountStep])
def test_a_smaller_clip_is_a_smaller_gradient(step):
    small, large = (step(clip=c).gradient(SHAPES["binary"]) for c in (0.25, 1.0))
    assert small.largest_grad == pytest.approx(large.largest_grad / 4, rel=1e-3)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", 1.1),
        ("learning_rate", float("nan")),
        ("learning_rate", True),
        ("largest", 0),
        ("largest", float("inf")),
        ("ridge", -1.0),
        ("ridge", "much"),
        ("prior", 0.0),
        ("prior", float("nan")),
    ],
)
@pytest.mark.parametrize("step", STEPS)
def test_options_out_of_range_raise(step, option, value):
    with pytest.raises(PlanError, match=f"{option}={value!r}"):
        step(**{option: value})
