from dataclasses import replace

import numba
import numpy as np
import pytest
from helpers import naive_logistic, naive_residuals, naive_softmax, naive_squared
from outside.expectile import OUTSIDE_LOSSES, Expectile
from thinned import thinned

from dpgb_dask.errors import PlanError
from dpgb_dask.kernels import gradient, warming
from dpgb_dask.losses import (
    GRAD_ONE,
    LOSSES,
    NORM_SHIFT,
    ClippedSoftmaxGradient,
    FreeSquaredGradient,
    Huber,
    LabelGradient,
    LogisticGradient,
    Poisson,
    PoissonGradient,
    Quantile,
    SlopeGradient,
    SoftmaxGradient,
    SquaredGradient,
    TableGradient,
    clipped_softmax_gradient,
    label_gradient,
    logistic_gradient,
    softmax_gradient,
    unpack,
)

EXTREME = np.array(
    [-(2**31), 2**31 - 1, 0, -1, 1, 255, 256, -256, -257, 1 << 19, -(1 << 19), (1 << 19) - 1]
)


def scores(n, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate((EXTREME, rng.integers(-(1 << 20), 1 << 20, n))).astype(np.int32)


def weights(kind, n):
    return (
        None
        if kind is None
        else np.random.default_rng(3).integers(0, kind, n, np.int32, endpoint=True)
    )


@pytest.mark.parametrize("max_weight", [None, 1, 4096])
def test_logistic_looks_up_the_table(max_weight):
    score = scores(2100)
    label = (np.arange(len(score)) % 2).astype(np.uint8)
    weight = weights(max_weight, len(score))
    loss = logistic_gradient(0.5, 0.5)
    out = np.empty(len(score), np.int64)
    gradient.logistic(score, label, weight, loss.table, out)
    np.testing.assert_array_equal(out, naive_logistic(score, label, weight, loss.table))
    g, h = unpack(out)
    assert max(abs(g).max(), h.max()) <= loss.max_abs * (max_weight or 1)
    assert h.min() >= 0


@pytest.mark.parametrize("max_weight", [None, 4096])
@pytest.mark.parametrize("clip_steps", [1, 65537, 131072])
def test_squared_clips_and_halves(clip_steps, max_weight):
    target = np.random.default_rng(1).integers(-65536, 65537, 400).astype(np.int32)
    near = [target[:3] + clip_steps + d for d in (-1, 0, 1)] + [
        target[:3] - clip_steps + d for d in (-1, 0, 1)
    ]
    score = np.concatenate((*near, scores(400)))[:400].astype(np.int32)
    target[:18] = np.tile(target[:3], 6)
    weight = weights(max_weight, 400)
    loss = SquaredGradient(clip_steps, 16384)
    out = np.empty(400, np.int64)
    gradient.squared(score, target, weight, clip_steps, 16384, out)
    np.testing.assert_array_equal(out, naive_squared(score, target, weight, clip_steps, 16384))
    g, h = unpack(out)
    assert max(abs(g).max(), h.max()) <= loss.max_abs * (max_weight or 1)
    assert (g * g + h * h).max() <= loss.l2_squared * (max_weight or 1) ** 2


@pytest.mark.parametrize("max_weight", [None, 1, 4096])
def test_residuals_looks_up_the_table(max_weight):
    """Residuals on either side of every step, far beyond both ends, and of targets as far as int32 goes."""
    target = np.concatenate((EXTREME, np.random.default_rng(1).integers(-65536, 65537, 4097)))
    steps = (np.arange(4097) - 2048) * 64
    for off in (-1, 0, 1):
        far = EXTREME[::-1]
        score = np.concatenate((far, np.clip(target[12:] + steps + off, -(2**31), 2**31 - 1)))
        table = Expectile(0.8).gradient("numeric", 1).table
        check_residuals(score, target, weights(max_weight, len(score)), table)


def check_residuals(score, target, weight, table):
    score, target = score.astype(np.int32), target.astype(np.int32)
    out = np.empty(len(score), np.int64)
    gradient.residuals(score, target, weight, table, out)
    np.testing.assert_array_equal(out, naive_residuals(score, target, weight, table))


@pytest.mark.parametrize("max_weight", [None, 4096])
@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_softmax_is_the_integer_softmax_within_its_bound(n_classes, max_weight):
    score = np.stack([np.roll(scores(150, k), k) for k in range(n_classes)])
    n = score.shape[1]
    label = (np.arange(n) % n_classes).astype(np.uint8)
    weight = weights(max_weight, n)
    loss = softmax_gradient(n_classes)
    out = np.empty((n_classes, n), np.int64)
    gradient.softmax(score, label, weight, loss.exp_table, out)
    np.testing.assert_array_equal(out, naive_softmax(score, label, weight, loss.exp_table))
    g, h = unpack(out)
    assert (g.sum(axis=0) == 0).all()
    assert (g * g + h * h).sum(axis=0).max() <= loss.l2_squared * (max_weight or 1) ** 2
    assert max(abs(g).max(), h.max()) <= loss.max_abs * (max_weight or 1)


def test_a_label_that_does_not_exist_reads_no_other_memory():
    out = np.empty((2, 1), np.int64)
    label = np.array([200], np.uint8)
    gradient.softmax(np.zeros((2, 1), np.int32), label, None, softmax_gradient(2).exp_table, out)
    gradient.logistic(np.zeros(1, np.int32), label, None, logistic_gradient(0.5, 0.5).table, out[0])
    want = np.empty(1, np.int64)
    gradient.logistic(
        np.zeros(1, np.int32), np.ones(1, np.uint8), None, logistic_gradient(0.5, 0.5).table, want
    )
    assert out[0] == want


def test_gradients_name_what_does_not_fit():
    score, label, out = np.zeros(3, np.int32), np.zeros(3, np.uint8), np.empty(3, np.int64)
    table = logistic_gradient(0.5, 0.5).table
    with pytest.raises(ValueError, match="differ in rows"):
        gradient.logistic(score[:2], label, None, table, out)
    with pytest.raises(ValueError, match="table must have shape"):
        gradient.logistic(score, label, None, table[:, :9], out)
    with pytest.raises(ValueError, match="table must have shape"):
        gradient.residuals(score, score, None, table, out)
    with pytest.raises(ValueError, match="score has dtype=int64"):
        gradient.logistic(score.astype(np.int64), label, None, table, out)
    with pytest.raises(ValueError, match="weight has dtype=float64"):
        gradient.squared(score, score, np.ones(3), 1, 1, out)
    with pytest.raises(ValueError, match="differ in classes"):
        gradient.softmax(
            np.zeros((2, 3), np.int32), label, None, table[0], np.empty((3, 3), np.int64)
        )
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        gradient.logistic(score, label, None, table, out)


# ---- every gradient class through `write`: against a row in plain Python, and against its own bounds

CLOSE = 1.25  # a bound that is 30 % too large is not met this closely
SECONDS = {
    "hessian": {},
    "count": {},
    "count 1": {"second": "count", "hess_scale": 1.0},
    "none": {},
}
CLIPS = [(1.0, False), (0.3, False), (0.3, True)]


def losses_of(kind):
    """Losses with their options at several values, and targets with low bounds of several sizes."""
    for loss in LOSSES.values():
        if kind in loss.kinds:
            yield loss.bounded(0.0, 8.0)
    if kind == "numeric":
        yield Huber(0.7)
        yield Quantile(0.9)
        yield Poisson(6.0, 8.0)
    yield from (loss for loss in OUTSIDE_LOSSES if kind in loss.kinds)


def gradients_of(kind, n_scores):
    """Every gradient of a kind: losses by second component, clip and filter; and the target itself."""
    for loss in losses_of(kind):
        for name, options in SECONDS.items():
            for clip, filtered in CLIPS:
                asked = {"second": name} | options | {"clip": clip, "filtered": filtered}
                yield pytest.param(
                    loss.gradient(kind, n_scores, **asked), id=f"{kind} {loss} {asked}"
                )
        if kind != "multiclass":  # clamped to the scores that a model can reach
            g = loss.gradient(kind, n_scores, second="count", hess_scale=1.0)
            yield pytest.param(g.within(-30000, 90000), id=f"{kind} {loss} clamped")
    if kind == "multiclass":
        for clip, a in ((0.85, 0.5), (0.6, 0.5), (1.2, 1.0)):
            made = clipped_softmax_gradient(n_scores, clip=clip, hess_scale=a)
            yield pytest.param(made, id=f"{n_scores} classes, norm {clip}, a {a}")
    if kind == "numeric":
        for clip, a in ((65536, 11469), (65535, 32768), (40001, 7000), (7, 3), (1, 1)):
            yield pytest.param(FreeSquaredGradient(clip, a), id=f"free Hessian {clip}, {a}")
    for average in (True, False):
        made = label_gradient(kind, n_scores, average=average, count_scale=0.5)
        yield pytest.param(made, id=f"{kind} target {average}")


EVERY = [
    case
    for kind, n_scores in (
        ("binary", 1),
        ("multiclass", 2),
        ("multiclass", 3),
        ("multiclass", 6),
        ("numeric", 1),
    )
    for case in gradients_of(kind, n_scores)
]


EVERY_GRADIENT = [case.values[0] for case in EVERY]


def columns_of(g):
    return getattr(g, "n_scores", 1)


def row_of(g, score, label):
    """(g, h) per score column of one row of weight 1, in Python's own integers."""
    second = getattr(g, "hess_steps", 0)
    match g:
        case LogisticGradient():
            index = min(max((score[0] >> 8) + 2048, 0), 4095)
            entry = int(g.table[label, index])
            return [(entry >> 32, entry & 0xFFFFFFFF)]
        case TableGradient():
            at = (score[0] - label) // 64 if g.kind == "numeric" else score[0] // 256
            index = min(max(at + 2048, 0), 4095)
            entry = int(g.table[index] if g.kind == "numeric" else g.table[label, index])
            return [(entry >> 32, entry & 0xFFFFFFFF)]
        case SquaredGradient():
            r = score[0] - label
            kept = min(max(r, -g.clip_steps), g.clip_steps)
            if kept != r and g.filtered:
                return [(0, 0)]
            return [(kept >> 1, second if kept == r or g.always else 0)]
        case FreeSquaredGradient():
            r = score[0] - label
            kept, largest = min(max(r, -g.clip_steps), g.clip_steps), (g.clip_steps + 1) // 2
            half = (abs(r) + 1) // 2
            return [(kept >> 1, second if half * half + second * second <= largest**2 else 0)]
        case SlopeGradient():
            r = score[0] - label
            return [(g.above if r > 0 else -g.below if r < 0 else 0, second)]
        case PoissonGradient():
            rate = int(g.rate[min(max((score[0] >> 8) + 2048, 0), 4095)])
            share = (min(max(label, -65536), 65536) + 65536) * (GRAD_ONE - g.base) // 131072
            r = rate - g.base - share
            kept = min(max(r, -g.clip_steps), g.clip_steps)
            if kept != r and g.filtered:
                return [(0, 0)]
            h = second if g.always else second * rate // GRAD_ONE if kept == r else 0
            return [(kept, h)]
        case SoftmaxGradient():
            e = [int(g.exp_table[min((max(score) - s) >> 8, 4095)]) for s in score]
            p = [v * GRAD_ONE // sum(e) for v in e]
            p[label] += GRAD_ONE - sum(p)
            full = [q - GRAD_ONE * (k == label) for k, q in enumerate(p)]
            if g.filtered and max(map(abs, full)) > g.clip_steps:
                return [(0, 0)] * len(p)
            kept = [min(max(v, -g.clip_steps), g.clip_steps) for v in full]
            hess = [second * q * (GRAD_ONE - q) // GRAD_ONE**2 for q in p]
            return [
                (v, second if g.always else h if v == w else 0)
                for v, w, h in zip(kept, full, hess, strict=True)
            ]
        case ClippedSoftmaxGradient():
            full = row_of(softmax_gradient(g.n_classes, hess_scale=second / GRAD_ONE), score, label)
            w = int(g.shrink[sum(v * v for v, _ in full) >> NORM_SHIFT])
            return [
                ((abs(v) * w // GRAD_ONE) * (1 if v > 0 else -1), h * w // GRAD_ONE)
                for v, h in full
            ]
        case LabelGradient():
            if g.kind == "numeric":
                return [(-(min(max(label, -65536), 65536) >> 1) if g.average else 0, second)]
            own = 0 if g.kind == "binary" else label
            hit = g.average and (label == 1 or g.kind == "multiclass")
            return [(-GRAD_ONE if hit and k == own else 0, second) for k in range(g.n_scores)]


def rows_for(g):
    """Scores and labels at the corners of what a gradient can produce, and random ones."""
    rng = np.random.default_rng(5)
    kind, n = g.kinds[0], columns_of(g)
    if kind == "numeric":
        clip = getattr(g, "clip_steps", 65536)
        label = np.concatenate(
            (
                np.repeat([-65536, 65536, 0, -(2**31), 2**31 - 1, 777], 40),
                rng.integers(-65536, 65537, 800),
            )
        )
        ends = [-clip, clip, -clip - 1, clip + 1, 0, -1, 1, -131072, 131072]
        if isinstance(g, FreeSquaredGradient):
            curved = g.curved_steps
            ends += [curved, -curved, curved + 1, -curved - 1]
        near = rng.choice(ends, len(label)) + label
        if isinstance(g, TableGradient):  # every entry, and far beyond them
            label = np.tile(label, 5)
            near = label + np.resize(np.arange(-2100, 2100) * 64 + 63, len(label))
        if isinstance(g, PoissonGradient):
            near = rng.integers(-(1 << 19), 1 << 19, len(label))  # table range
            near[::3] = rng.choice(
                [-(1 << 19), (2 << 16) + 200, 1 << 19, (1 << 16)], len(near[::3])
            )
        score = np.clip(near, -(2**31), 2**31 - 1)[None]
        return score.astype(np.int32), label.astype(np.int32)
    if kind == "binary":
        grid = (np.arange(4096) - 2048) << 8
        score = np.concatenate((np.tile(grid, 2), scores(100)))
        label = np.resize(np.repeat([0, 1], 4096), len(score))
        return score[None].astype(np.int32), label.astype(np.uint8)
    # softmax: corners of the simplex, its edges' middles, and random points near both
    one = 20 << 16
    corners = [np.where(rng.random(n) < 0.4, one, 0) for _ in range(300)]
    corners += [
        rng.permutation(np.r_[one, np.zeros(n - 1)]) + rng.integers(-600, 600, n) for _ in range(60)
    ]
    # one class against the others at every odds
    for x in np.linspace(-12, 12, 400):
        corners += [
            np.r_[x * 65536, np.zeros(n - 1)],
            np.r_[np.full(min(n, 2), one + x * 65536), np.full(n - min(n, 2), one)],
        ]
    score = np.array(corners).T
    score = np.concatenate((score, rng.integers(-(1 << 18), 1 << 18, (n, 300))), axis=1)
    score = np.concatenate([score] * n, axis=1)
    label = np.repeat(np.arange(n), score.shape[1] // n)
    return score.astype(np.int32), label.astype(np.uint8)


@pytest.mark.parametrize("max_weight", [None, 300])
@pytest.mark.parametrize("g", EVERY)
def test_write_is_the_row_in_plain_integers_and_meets_its_bounds(g, max_weight):
    """Bounds are never exceeded, and a row comes close to each: a bound 30 % off either way fails."""
    score, label = rows_for(g)
    weight = weights(max_weight, len(label))
    out = np.empty(score.shape, np.int64)
    gradient.write(g, score, label, weight, out)
    grad, hess = unpack(out)
    w = np.ones(len(label), np.int64) if weight is None else weight.astype(np.int64)
    for i in np.random.default_rng(6).permutation(len(label))[:200]:
        want = row_of(g, [int(s) for s in score[:, i]], int(label[i]))
        got = [(int(a), int(b)) for a, b in zip(grad[:, i], hess[:, i], strict=True)]
        assert got == [(int(a * w[i]), int(b * w[i])) for a, b in want]
    if max_weight is not None:
        return
    worst = np.maximum(np.abs(grad), hess)
    check_bound(int(worst.max()), g.max_abs)
    check_bound(int(np.abs(grad).max()), g.largest_grad)
    check_bound(int((np.abs(grad) + hess).sum(axis=0).max()), g.l1)
    norm, bound = int((grad**2 + hess**2).sum(axis=0).max()), g.l2_squared
    assert norm <= bound
    assert norm >= bound / CLOSE**2
    width = max(int(grad.max()), 0) - min(int(grad.min()), 0)
    assert width <= g.grad_width
    if isinstance(
        g, LogisticGradient | TableGradient
    ):  # others have the width of their largest |g|
        assert width >= g.grad_width / CLOSE
    if g.counts:
        dropped = (grad == 0).all(axis=0) & (hess == 0).all(axis=0)
        assert ((hess == GRAD_ONE).all(axis=0) | dropped).all()


def check_bound(attained, bound):
    assert attained <= bound
    assert attained >= bound / CLOSE


def test_free_hessian_costs_nothing():
    """Joint norm of (g, φ^{5/2} h) is 1 as that of g alone; a tenth more of a, and it is not (docs/privacy.md P2)."""
    free = LOSSES["log_loss"].gradient("binary", 1)
    assert free.l2_squared <= GRAD_ONE**2 * (1 + 1e-4)
    more = LOSSES["log_loss"].gradient("binary", 1, hess_scale=1.1 * free.hess_scale)
    assert more.l2_squared > 1.03 * GRAD_ONE**2
    softmax = LOSSES["log_loss"].gradient("multiclass", 7)
    assert softmax.l2_squared == 2 * GRAD_ONE**2
    wider = LOSSES["log_loss"].gradient("multiclass", 7, hess_scale=2.6)
    assert wider.l2_squared > 1.1 * 2 * GRAD_ONE**2


def test_rounding_up_or_down_is_inside_the_bound():
    """A residual of exactly the clip halves to one step more on the negative side; the bound holds that step."""
    g = SquaredGradient(7, 3)
    assert g.largest_grad == 4
    out = np.empty((1, 1), np.int64)
    gradient.write(g, np.array([[-7]], np.int32), np.zeros(1, np.int32), None, out)
    assert unpack(out)[0][0, 0] == -4


def test_poisson_gradients_fall_to_zero_at_the_mean():
    """The table's rate is exp(score - 2) of the upper bound, so gradients of a sample cancel at the sample's mean."""
    loss = Poisson(0.0, 50.0)
    y = np.random.default_rng(1).poisson(6.0, 4000).clip(0, 50)
    target = np.rint((y / 25 - 1) * 65536).astype(np.int32)
    score = np.full((1, len(y)), round(loss.start(y.mean() / 25 - 1) * 65536), np.int32)
    out = np.empty(score.shape, np.int64)
    gradient.write(loss.gradient("numeric", 1), score, target, None, out)
    assert abs(unpack(out)[0].mean()) < 0.004 * GRAD_ONE * (6 / 50)
    score += 6554  # a tenth up: 10.5 % of the mean, in shares of the upper bound
    gradient.write(loss.gradient("numeric", 1), score, target, None, out)
    assert unpack(out)[0].mean() / GRAD_ONE == pytest.approx(0.105 * y.mean() / 50, rel=0.03)


def test_write_names_what_does_not_fit():
    g = SlopeGradient(1, 1, 1)
    score = np.zeros((2, 3), np.int32)
    with pytest.raises(ValueError, match="one row per score column of SlopeGradient"):
        gradient.write(g, score, score[0], None, np.empty((2, 3), np.int64))
    with pytest.raises(ValueError, match="one row per score column"):
        gradient.write(g, score[:1], score[0], None, np.empty((2, 3), np.int64))
    for wide in (softmax_gradient(3), label_gradient("multiclass", 3, average=True, count_scale=1)):
        with pytest.raises(ValueError, match=r"one row per score column of (Softmax|Label)"):
            gradient.write(wide, score, np.zeros(3, np.uint8), None, np.empty((2, 3), np.int64))
    with pytest.raises(PlanError, match="rate must be an int64 array"):
        PoissonGradient(np.zeros(3, np.int64), 0, 1, 1)
    made = clipped_softmax_gradient(3, clip=0.85, hess_scale=0.5)
    with pytest.raises(PlanError, match="shrink must be an int64 array"):
        replace(made, shrink=made.shrink[1:])
    with pytest.raises(PlanError, match="largest of shrink"):
        replace(made, shrink=made.shrink + 1)
    with pytest.raises(ValueError, match="shrink must have shape"):
        gradient.clipped_softmax(
            np.zeros((3, 3), np.int32), np.zeros(3, np.uint8), None, made.exp_table, made.shrink[1:], 1,
            np.empty((3, 3), np.int64),
        )  # fmt: skip


def test_a_clip_in_norm_halves_the_sensitivity():
    """.85² + a² Σh² at most, where it was 2; what a row adds comes within 3 % of it (docs/privacy.md P2)."""
    for n_classes in (3, 7):
        made = clipped_softmax_gradient(n_classes, clip=0.85, hess_scale=0.5)
        assert 0.85**2 < made.l2_squared / GRAD_ONE**2 < 0.79
        score, label = rows_for(made)
        out = np.empty(score.shape, np.int64)
        gradient.write(made, score, label, None, out)
        g, h = unpack(out)
        assert (g * g + h * h).sum(axis=0).max() > made.l2_squared / 1.03**2


def test_the_hessian_of_a_number_costs_nothing():
    """The sensitivity is that of the clipped residual alone, and .94 of the clip has the Hessian beside it (P2)."""
    made = FreeSquaredGradient(1 << 14, 2867)  # clip .25 and a = .35
    assert made.l2_squared == (GRAD_ONE // 4) ** 2
    assert made.hess_scale == pytest.approx(0.35 / 4, rel=1e-3)
    assert made.curved_steps / made.clip_steps == pytest.approx((1 - 0.35**2) ** 0.5, rel=1e-3)
    score, target = rows_for(made)
    out = np.empty(score.shape, np.int64)
    gradient.write(made, score, target, None, out)
    g, h = unpack(out)
    assert made.l2_squared * 0.99 < (g * g + h * h)[h > 0].max() <= made.l2_squared
    with pytest.raises(
        PlanError, match=r"hess_steps=5 must be a whole number of steps in \[1, 4\]"
    ):
        FreeSquaredGradient(7, 5)


@pytest.mark.parametrize("case", thinned(EVERY_GRADIENT, every=3))
def test_no_row_exceeds_the_weighted_bound(case):
    score, label = rows_for(case)
    out = np.empty(np.shape(score), np.int64)
    gradient.write(case, score, label, None, out)
    g, h = unpack(out)
    for of_grad, of_second in ((1, 1), (256, -128), (-3, 0), (0, 5)):
        told = (np.abs(of_grad * g) + np.abs(of_second * h)).sum(axis=0)
        assert told.max() <= case.weighted(of_grad, of_second)


def test_the_weighted_bound_of_a_clip_in_norm_is_nearly_attained():
    for n_classes in (3, 7):
        made = clipped_softmax_gradient(n_classes, clip=0.85, hess_scale=0.5)
        score, label = rows_for(made)
        out = np.empty(score.shape, np.int64)
        gradient.write(made, score, label, None, out)
        g, h = unpack(out)
        told = (256 * np.abs(g) + 128 * h).sum(axis=0).max()
        assert told > made.weighted(256, 128) / 1.3


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="looks at compiled versions")
def test_warm_leaves_no_gradient_to_compile():
    warming.warm()
    own = [v for v in vars(gradient).values() if getattr(v, "__module__", "") == gradient.__name__]
    compiled = [value for value in own if hasattr(value, "signatures")]
    assert len(compiled) == 11
    versions = [len(function.signatures) for function in compiled]
    for case in EVERY:
        (g,) = case.values
        score, label = (part[..., :3].copy() for part in rows_for(g))
        for weight in (None, np.ones(3, np.int32)):
            gradient.write(g, score, label, weight, np.empty(score.shape, np.int64))
    assert [len(function.signatures) for function in compiled] == versions
