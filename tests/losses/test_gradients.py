"""Integer gradients of the losses: the second component, clips and bounds."""

import numpy as np
import pytest

from dpgb_dask import losses
from dpgb_dask.errors import PlanError
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
