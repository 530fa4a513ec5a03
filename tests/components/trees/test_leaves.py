"""Leaf rules: the value of a leaf."""

from dataclasses import replace

import numpy as np
import pytest

from dpgb_dask.components.trees.leaves import (
    Averaging,
    BinCountStep,
    GradientStep,
    LeafSums,
    NewtonStep,
    whole,
)
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import FREE_HESS_SCALE, GRAD_ONE, unpack

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


def test_without_noise_and_ridge_a_prior_changes_nothing():
    grad, hess = [3.0, -1.0, 0.5], [20.0, 7.0, 3.0]
    plain = NewtonStep(ridge=1e-9)
    shrunk = replace(plain, prior=1.0)
    np.testing.assert_allclose(
        shrunk.value(sums_of(grad, hess, QUIET)), plain.value(sums_of(grad, hess)), rtol=1e-6
    )


def test_with_a_prior_the_ridge_draws_leaves_to_their_tree():
    # the tree's step is -6/(29 + 1) = -0.2, to which each leaf's own step has H/(H + 1) of the way
    leaf = NewtonStep(learning_rate=1.0, prior=1.0, ridge=1.0)
    value = leaf.value(sums_of([4.0, 0.0, 2.0], [19.0, 4.0, 6.0], QUIET))[:, 0]
    steps, kept = np.array([-4 / 19, 0, -2 / 6]), np.array([19 / 20, 4 / 5, 6 / 7])
    np.testing.assert_allclose(value, -0.2 + kept * (steps + 0.2))


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
    tree = 5 / 51  # the ridge of 1 draws the tree to 0, and its nodes to the tree
    wanted = [tree + (9 - 30 * tree) / 31, tree + (-4 - 20 * tree) / 21]
    np.testing.assert_allclose(value[:, 0], np.repeat(wanted, 2), rtol=1e-4)


def test_leaves_of_noise_alone_say_what_their_tree_says():
    """One loud leaf of each tree; trees do not look at each other."""
    grad = np.array([[[-6.0], [-2.0], [0.0]], [[3.0], [1.0], [0.0]]])
    hess = np.array([[[10.0], [10.0], [1e-9]], [[20.0], [12.0], [1e-9]]])
    sums = LeafSums(grad, hess, np.array([[1e-6], [1e-6], [1e-3]]), QUIET)
    leaf = NewtonStep(learning_rate=1.0, ridge=1e-9, prior=0.5)
    value = leaf.value(sums)
    assert value.shape == (2, 3, 1)
    np.testing.assert_allclose(value[:, 2, 0], [8 / 20, -4 / 32], rtol=1e-4)
    np.testing.assert_allclose(value[:, :2], -grad[:, :2] / hess[:, :2], rtol=1e-4)


@pytest.mark.parametrize("n_scores", [1, 3])
def test_the_whole_of_a_tree_adds_its_leaves_and_their_noise(n_scores):
    rng = np.random.default_rng(0)
    grad, hess = rng.normal(size=(2, 4, 8, n_scores))
    sd = rng.uniform(1, 2, (8, 1))
    trees = whole(LeafSums(grad, hess, sd, 3.0))
    np.testing.assert_allclose(trees.grad, grad.sum(1)[:, None])
    np.testing.assert_allclose(trees.hess, hess.sum(1)[:, None])
    assert np.broadcast_to(trees.grad_sd, (4, 1, 1)).ravel() == pytest.approx(
        np.full(4, np.sqrt((sd**2).sum()))
    )
    assert np.broadcast_to(trees.hess_sd, (4, 1, 1)).ravel() == pytest.approx(
        np.full(4, 3.0 * np.sqrt(8))
    )


def test_a_root_of_noise_alone_says_nothing():
    value = NewtonStep(prior=1.0).value(sums_of([1e3], [10.0], LOUD))
    np.testing.assert_allclose(value, 0, atol=1e-6)


def posterior_mean(step, noise, middle, tau):
    """Mean of a step with prior N(middle, τ²), seen with N(0, noise²)."""
    return middle + (step - middle) * tau**2 / (tau**2 + noise**2)


@pytest.mark.parametrize("sd", [1.0, 5.0, 20.0])
@pytest.mark.parametrize(
    ("kind", "scale"), [("binary", 1.0), ("multiclass", 1.0), ("numeric", 0.5)]
)
@pytest.mark.parametrize("batch", [1, 9])
def test_prior_is_the_posterior_mean(sd, kind, scale, batch):
    """A normal step is seen as G = -H·step + N(0, sd²). The tree's own prior, N(0, 1), is as wide in any batch."""
    tau, grad, hess = 0.7, np.array([-12.0, 9.0]), np.array([30.0, 20.0])
    leaf = NewtonStep(learning_rate=1.0, largest=1e4, ridge=1e-9, prior=tau)
    tree = posterior_mean(3 / 50, np.sqrt(2) * sd / 50, 0.0, scale)
    spread = tau * scale * np.sqrt(batch)
    wanted = posterior_mean(-grad / hess, sd / hess, tree, spread)
    sums = LeafSums(grad[:, None], hess[:, None], sd, 0.0)
    np.testing.assert_allclose(leaf.value(sums, kind=kind, batch=batch)[:, 0], wanted)
    # leaves of a node: the tree, then the node, then the leaf
    above = LeafSums(np.array([[-4.0]]), np.array([[45.0]]), sd / 2, 0.0)
    tree = posterior_mean(4 / 45, sd / 2 / 45, 0.0, scale)
    node = posterior_mean(4 / 45, sd / 2 / 45, tree, spread)
    wanted = posterior_mean(-grad / hess, sd / hess, node, spread)
    np.testing.assert_allclose(leaf.value(sums, above, kind=kind, batch=batch)[:, 0], wanted)


def test_a_wider_batch_shrinks_less_and_only_with_a_prior():
    sums = LeafSums(np.array([[-12.0], [12.0]]), np.full((2, 1), 30.0), 20.0, 0.0)
    sizes = [abs(NewtonStep(prior=0.5).value(sums, batch=b)[0, 0]) for b in (1, 4, 100)]
    assert sizes == sorted(sizes)
    assert sizes[2] > 1.3 * sizes[0]
    plain = NewtonStep()
    np.testing.assert_array_equal(plain.value(sums, batch=100), plain.value(sums))


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


def test_the_hessian_of_a_binary_target_is_free_under_laplace_noise():
    """|g| + h = u + u(1 - u) <= 1, where the scale that is free in L2 costs 2/5 more."""
    chosen = NewtonStep(laplace=True).gradient(SHAPES["binary"])
    assert chosen.hess_scale == 1.0
    assert GRAD_ONE <= chosen.l1 <= GRAD_ONE + 1
    g, h = unpack(chosen.table)
    u = np.abs(g) / GRAD_ONE
    np.testing.assert_allclose(h / GRAD_ONE, u * (1 - u), atol=1e-4)
    free = NewtonStep().gradient(SHAPES["binary"])
    assert free.hess_scale == FREE_HESS_SCALE
    # u + a·u(1 - u) is largest at (1 + a)/2a
    assert free.l1 / GRAD_ONE == pytest.approx(
        (1 + FREE_HESS_SCALE) ** 2 / (4 * FREE_HESS_SCALE), rel=1e-3
    )
    assert 1.35 < free.l1 / GRAD_ONE < 1.45


def test_laplace_leaves_other_losses_as_they_are():
    shape = SHAPES["numeric"]
    plain, chosen = NewtonStep().gradient(shape), NewtonStep(laplace=True).gradient(shape)
    assert plain == chosen


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
        ("largest", 2e4),
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
