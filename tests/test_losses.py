"""Losses by name and value: the targets they serve, where they start, their links, and what they refuse."""

from pathlib import Path

import numpy as np
import pytest

from dpgb_dask import losses
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import (
    CORNER,
    FREE_HESS_SCALE,
    GRAD_ONE,
    LINKS,
    LINKS_OF,
    LOSSES,
    RATE_SHIFT,
    AbsoluteError,
    Huber,
    LogLoss,
    Poisson,
    Quantile,
    SquaredError,
    clipped_probability,
    sigmoid,
)

KINDS = ("binary", "multiclass", "numeric")


def n_scores(kind):
    return 3 if kind == "multiclass" else 1


@pytest.mark.parametrize("name", LOSSES)
def test_losses_have_scikit_learns_names_and_serve_what_they_say(name):
    loss = losses.get(name)
    assert loss.name == name
    assert losses.get(loss) is loss
    assert hash(loss) == hash(losses.get(name))
    for kind in KINDS:
        if kind in loss.kinds:
            bounded = loss.bounded(0.0, 9.0)
            gradient = bounded.gradient(kind, n_scores(kind))
            assert kind in gradient.kinds
            assert bounded.link(kind) in LINKS_OF[kind]
            assert gradient.max_abs <= GRAD_ONE  # contracts/plan.py: packed sums rest on it
        else:
            with pytest.raises(PlanError, match=f"does not serve a {kind} target"):
                loss.gradient(kind, n_scores(kind))


@pytest.mark.parametrize("name", LOSSES)
def test_the_table_of_losses_has_a_row_for_each(name):
    page = Path(__file__).parents[1] / "docs" / "recipes.md"
    rows = [row for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
    made = type(losses.get(name)).__name__
    assert any(f"`{name}`" in row or f"`{made}(" in row for row in rows)


def test_a_loss_by_name_and_option():
    assert losses.parse("huber:0.2") == Huber(0.2)
    assert losses.parse("quantile:0.9") == Quantile(0.9)
    assert losses.parse("poisson") == Poisson()
    for text in ("poisson:1", "nothing:1", "huber:much", "huber:", "huber:2", "nothing"):
        with pytest.raises(PlanError, match=r"loss=|delta="):
            losses.parse(text)


def test_default_losses():
    assert losses.default_loss("binary") == losses.default_loss("multiclass") == LogLoss()
    assert losses.default_loss("numeric") == SquaredError()


@pytest.mark.parametrize("bad", ["log-loss", "", 5, None, object()])
def test_what_is_no_loss_is_refused(bad):
    with pytest.raises(PlanError, match="Choose one of"):
        losses.get(bad)


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: Huber(0.0), lambda: Huber(1.1), lambda: Huber(True), lambda: Huber(float("nan")), lambda: Quantile(0.0),
        lambda: Quantile(1.0), lambda: Quantile("half"),
    ],
)  # fmt: skip
def test_options_of_losses_are_checked_where_they_are_made(make):
    with pytest.raises(PlanError, match="must be in"):
        make()


def test_poisson_needs_a_target_that_is_never_negative():
    with pytest.raises(PlanError, match="never negative"):
        Poisson().bounded(-1.0, 4.0)
    with pytest.raises(PlanError, match="bounds"):
        Poisson().gradient("numeric", 1)
    assert Poisson().bounded(0.0, 4.0).gradient("numeric", 1).base == 0


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


# ---- links


@pytest.mark.parametrize(
    ("kind", "link"), [(k, name) for k, names in LINKS_OF.items() for name in names]
)
def test_links_turn_any_score_into_a_prediction(kind, link):
    score = np.array([-40.0, -8.0, -1.0, 0.0, 0.3, 1.0, 4.0, 9.0, 40.0])
    columns = n_scores(kind)
    table = np.stack([np.roll(score, k) for k in range(columns)], axis=1)
    out = LINKS[link](table)
    assert np.isfinite(out).all()
    if kind == "numeric":
        assert out.shape == score.shape
        return
    assert out.shape == (len(score), max(columns, 2))
    np.testing.assert_allclose(out.sum(axis=1), 1.0)
    assert out.min() >= 0
    if columns == 1:  # larger scores never make the second class less probable
        assert (np.diff(out[:, 1]) >= 0).all()


def test_links_by_formula():
    score = np.linspace(-3, 3, 7)[:, None]
    np.testing.assert_allclose(LINKS["logit"](score)[:, 1], 1 / (1 + np.exp(-score[:, 0])))
    np.testing.assert_array_equal(
        LINKS["clipped_logit"](score)[:, 1], clipped_probability(score[:, 0])
    )
    np.testing.assert_allclose(LINKS["probability"](score)[:, 1], np.clip(score[:, 0], 0, 1))
    two = np.concatenate([np.zeros_like(score), score], axis=1)
    np.testing.assert_allclose(LINKS["softmax"](two)[:, 1], sigmoid(score[:, 0]))
    np.testing.assert_array_equal(LINKS["identity"](score), score[:, 0])
    np.testing.assert_allclose(LINKS["log"](score - 1), np.exp(score[:, 0] - 1 - RATE_SHIFT))
    assert LINKS["log"](np.array([[RATE_SHIFT + 3]])) == 1.0
    np.testing.assert_allclose(LINKS["probability"](np.array([[-1.0, 0.0, -2.0]])), 1 / 3)
    np.testing.assert_allclose(LINKS["probability"](np.array([[2.0, 1.0, -2.0]])), [[0.5, 0.5, 0]])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.4, 1.0])
def test_start_predicts_the_mean(name, share):
    loss = losses.get(name).bounded(2.0, 10.0)
    kind = loss.kinds[0]
    mean = share if kind == "binary" else 2 * share - 1
    score = np.array([[loss.start(mean)]])
    assert np.isfinite(score).all()
    out = LINKS[loss.link(kind)](score)
    if kind == "binary":
        assert out[0, 1] == pytest.approx(share, abs=1e-5)
    elif name == "poisson":  # in shares of the upper bound
        assert 10.0 * out[0] == pytest.approx(2 + 8 * share)
    else:
        assert out[0] == pytest.approx(mean)
