"""Integer gradients of the losses: the second component, clips and bounds."""

from dataclasses import replace

import numpy as np
import pytest
from outside.expectile import Expectile, Exponential

from dpgb_dask import losses
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels.gradient import write
from dpgb_dask.losses import (
    CORNER,
    FREE_HESS_SCALE,
    GRAD_ONE,
    LOSSES,
    AbsoluteError,
    Huber,
    LogLoss,
    Poisson,
    Quantile,
    SquaredError,
    gradients,
    unpack,
)


def n_scores(kind):
    return 3 if kind == "multiclass" else 1


@pytest.mark.parametrize(
    "options",
    [
        {"clip": 0}, {"clip": 1.5}, {"clip": float("nan")}, {"clip": True}, {"second": "third"}, {"hess_scale": 0.0},
        {"hess_scale": 9.0}, {"hess_scale": float("nan")}, {"second": "count", "hess_scale": 1.1},
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", LOSSES)
def test_options_out_of_range_are_refused(name, options):
    loss = losses.get(name).bounded(0.0, 1.0)
    with pytest.raises(PlanError, match="must be"):
        loss.gradient(loss.kinds[0], 1, **options)


def test_second_component_scales():
    """A count of every row at a = 1 is what a choice needs; log-loss has its Hessian for free without a clip."""
    assert LogLoss().gradient("binary", 1).hess_scale == pytest.approx(FREE_HESS_SCALE)
    assert pytest.approx(3.3302, abs=1e-4) == FREE_HESS_SCALE
    assert LogLoss().gradient("multiclass", 3).hess_scale == 2.0
    assert LogLoss().gradient("binary", 1, clip=0.5).hess_scale == 0.5
    for name, loss in LOSSES.items():
        for kind in loss.kinds:
            full = loss.bounded(0.0, 3.0).gradient(
                kind, n_scores(kind), second="count", hess_scale=1.0, clip=0.25, filtered=True
            )
            assert full.counts, name
            half = loss.bounded(0.0, 3.0).gradient(kind, n_scores(kind), second="count")
            assert not half.counts
            scale = getattr(half, "curvature", 1.0)
            assert scale == 1.0  # a count stands for itself
            assert half.hess_scale == pytest.approx(half.largest_grad / GRAD_ONE / 2, rel=1e-3)
            none = loss.bounded(0.0, 3.0).gradient(kind, n_scores(kind), second="none")
            assert none.hess_scale == 1.0
            assert not none.counts
            assert none.l1 <= none.largest_grad * 2
    assert gradients.LabelGradient("binary", 1, 0).hess_scale == 1.0  # sums are divided by it


def test_hessian_of_a_corner_is_that_of_a_huber_loss():
    """The released steps are those of the count; what they stand for is 1/δ of slopes -1 and 1 over ±δ."""
    for loss, jump in ((AbsoluteError(), 2.0), (Quantile(0.3), 1.0)):
        second, count = (loss.gradient("numeric", 1, second=name) for name in ("hessian", "count"))
        assert second.hess_steps == count.hess_steps
        assert not second.counts
        assert second.hess_scale * jump / (2 * CORNER) == pytest.approx(count.hess_scale)


def test_clip_bounds_the_gradient_except_of_slopes():
    for loss in (LogLoss(), SquaredError(), Poisson(0.0, 2.0)):
        gradient = loss.gradient(loss.kinds[0], 1, clip=0.25)
        assert gradient.largest_grad == GRAD_ONE // 4
    assert Huber(0.1).gradient("numeric", 1).largest_grad == pytest.approx(0.1 * GRAD_ONE, abs=1)
    assert Huber(0.5).gradient("numeric", 1, clip=0.25).largest_grad == GRAD_ONE // 4
    assert AbsoluteError().gradient("numeric", 1, clip=0.25).largest_grad == GRAD_ONE
    steep = Quantile(0.9).gradient("numeric", 1)
    assert (steep.below, steep.above) == (round(0.9 * GRAD_ONE), GRAD_ONE - round(0.9 * GRAD_ONE))


@pytest.mark.parametrize("name", LOSSES)
def test_largest_slope_is_the_bound_without_a_clip(name):
    loss = losses.get(name).bounded(0.0, 1.0)
    widest = loss.gradient(loss.kinds[0], 1, second="none").largest_grad / GRAD_ONE
    # all are clipped at 1 at least
    assert min(loss.largest_slope, 1) == pytest.approx(widest, rel=1e-3)


def test_a_table_that_does_not_fit_says_why():
    def table(kind, g, h):
        return losses.table_gradient(losses.GradientOptions(kind=kind, n_scores=1), g, h)

    with pytest.raises(PlanError, match="nubmer"):
        losses.table_points("nubmer")
    x = losses.table_points("numeric")
    for kind, g, h, why in (
        ("binary", x, x, "one row per class"),
        ("numeric", x[:7], x[:7], r"table_points\('numeric'\)"),
        ("numeric", x + np.inf, x, "g of a table is not finite"),
        ("numeric", x, x + np.nan, "h of a table is not finite"),
        ("numeric", x, x, "h of a table is negative"),
    ):
        with pytest.raises(PlanError, match=why):
            table(kind, g, h)


def test_a_loss_without_its_methods_says_so():
    loss = type("Empty", (losses.Loss,), {"name": "empty", "kinds": ("numeric",)})()
    with pytest.raises(PlanError, match="'empty' has no integer_gradient"):
        loss.gradient("numeric", 1)
    with pytest.raises(PlanError, match="'empty' has no largest_slope"):
        _ = loss.largest_slope


def rows_at(gradient, kind, score):
    """What rows add at each score with every kind of label, in a row for each label."""
    ends = {"binary": np.array([0, 1], np.uint8), "numeric": np.array([-65536, 0, 65536], np.int32)}
    out = np.empty((len(ends[kind]), len(score)), np.int64)
    for label, line in zip(ends[kind], out, strict=True):
        write(gradient, score[None], np.full(len(score), label), None, line[None])
    return unpack(out)


@pytest.mark.parametrize("kind", ["binary", "numeric"])
@pytest.mark.parametrize("ends", [(-70_000, 30_000), (5_000, 5_000), (-(1 << 40), 1 << 40)])
def test_a_clamped_gradient_is_the_same_within_and_bounded_everywhere(kind, ends):
    low, high = ends
    score = np.random.default_rng(1).integers(-(1 << 20), 1 << 20, 3000)
    score = np.append(score, [-(1 << 31), (1 << 31) - 1, 30_000, -70_000, 5_000]).astype(np.int32)
    inside = (low <= score) & (score <= high)
    assert inside.any()
    for loss in (*LOSSES.values(), Expectile(0.9), Exponential()):
        if kind not in loss.kinds:
            continue
        whole = loss.bounded(0.0, 3.0).gradient(kind, 1)
        clamped = whole.within(low, high)
        g, h = rows_at(clamped, kind, score)
        for part, before in zip((g, h), rows_at(whole, kind, score), strict=True):
            assert (part[:, inside] == before[:, inside]).all()
        assert (g * g + h * h).max() <= clamped.l2_squared <= whole.l2_squared
        assert (np.abs(g) + h).max() <= clamped.l1 <= whole.l1
        assert max(g.max(), 0) - min(g.min(), 0) <= clamped.grad_width <= whole.grad_width


def test_scores_that_a_model_can_reach_bound_a_gradient():
    """At even odds |g| is 1/2; with scores of 25 % to 75 % it is 3/4, and g lies between -3/4 and 3/4.

    Tables are clamped by strides of 4 steps, and have the middles of steps.
    """
    whole = LogLoss().gradient("binary", 1)
    even, odds = whole.within(0, 0), np.log(3)
    wide = whole.within(-round(odds * 65536), round(odds * 65536))
    first = 4 * np.floor(np.array([0, -odds * 64])) + 0.5
    last = 4 * np.floor(np.array([0, odds * 64])) + 3.5
    least, most = 1 / (1 + np.exp(-first / 256)), 1 / (1 + np.exp(-last / 256))
    assert most == pytest.approx([0.5, 0.75], rel=1e-2)
    assert [g.largest_grad / GRAD_ONE for g in (even, wide)] == pytest.approx(most, rel=1e-4)
    width = most + (1 - least)
    assert [g.grad_width / GRAD_ONE for g in (even, wide)] == pytest.approx(width, rel=1e-4)


@pytest.mark.parametrize(
    ("loss", "kind", "step"),
    [
        (LogLoss(), "binary", 256),
        (Expectile(0.9), "numeric", 64),
        (Poisson(0.0, 3.0), "numeric", 256),
    ],
    ids=["log-loss", "residuals", "Poisson"],
)
def test_a_model_that_grows_by_little_keeps_its_table(loss, kind, step):
    """Else every round of small steps would bound, hash and send a table of its own."""
    whole = loss.gradient(kind, 1)
    kept = [whole.within(-score, score) for score in range(1, 64 * step, step)]
    assert len(set(map(id, kept))) <= 16 + 1


@pytest.mark.parametrize(
    ("loss", "most"), [(LogLoss(), 0.003), (Poisson(0.0, 3.0), 0.012)], ids=["log-loss", "Poisson"]
)
def test_strides_raise_the_bound_by_little(loss, most, monkeypatch):
    """By what g changes over 3 steps of 2**-8 of a score: 3/4 of a step for log-loss, 3 for rates."""
    whole = loss.gradient(loss.kinds[0], 1)
    steps = range(
        -600, 600
    )  # both are steepest here: at a probability of 1/2, and below a rate of 1
    even = [whole.within(step << 8, step << 8).largest_grad for step in steps]
    monkeypatch.setattr(gradients, "STRIDE", 1)
    fine = [whole.within(step << 8, step << 8).largest_grad for step in steps]
    raised = np.subtract(even, fine) / GRAD_ONE
    assert raised.min() >= 0
    assert 0.9 * most < raised.max() <= most


@pytest.mark.parametrize("second", ["hessian", "count", "none"])
def test_a_clamped_table_is_bounded_as_if_it_were_made_anew(second):
    whole = LogLoss().gradient("binary", 1, second=second)
    for low, high in ((0, 0), (-70_000, 5_000), (-(1 << 20), 1 << 20), (1 << 19, 1 << 20)):
        clamped = whole.within(low, high)
        anew = replace(clamped, table=clamped.table)
        for bound in ("max_abs", "largest_grad", "l2_squared", "l1", "grad_width", "counts"):
            assert getattr(clamped, bound) == getattr(anew, bound)
        assert clamped.weighted(256, 77) == anew.weighted(256, 77)
        assert whole.within(low + 1, high) is clamped  # of the same steps


def test_a_table_that_was_clamped_before_is_bounded_by_its_entries():
    """A loss may clamp its own; where the bounds are those of steps of the first table, noise is too small."""
    whole = LogLoss().gradient("binary", 1)
    for ends in ((1_000, 30_000), (-(1 << 19), 0), (-(1 << 20), 1 << 20)):
        twice = whole.within(-7 * 65_536, 8 * 65_536).within(*ends)
        anew = replace(twice, table=twice.table)
        for bound in ("max_abs", "largest_grad", "l2_squared", "l1", "grad_width", "counts"):
            assert getattr(twice, bound) == getattr(anew, bound)


def test_a_gradient_of_zero_is_not_clamped_to():
    """Filtered rows at all scores that can be reached would leave nothing that noise could be measured by."""
    filtered = LogLoss().gradient("binary", 1, clip=0.25, filtered=True)
    assert filtered.within(0, 0) is filtered
    assert Poisson(0.0, 3.0).gradient("numeric", 1).within(-1 << 20, -1 << 20).largest_grad > 0
