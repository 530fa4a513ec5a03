import numpy as np
import pytest
from helpers import naive_logistic, naive_softmax, naive_squared

from dpgb_dask.kernels import gradient
from dpgb_dask.losses import SquaredGradient, logistic_gradient, softmax_gradient, unpack

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
