"""Links from scores to predictions, and the score that a model starts from."""

import numpy as np
import pytest

from dpgb_dask import losses
from dpgb_dask.losses import (
    CLASS_CLIP,
    LINKS,
    LINKS_OF,
    LOSSES,
    RATE_SHIFT,
    clipped_probability,
    sigmoid,
)


def n_scores(kind):
    return 3 if kind == "multiclass" else 1


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


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_clipped_softmax_gives_the_rates_at_which_clipped_gradients_balance(n_classes):
    score = np.random.default_rng(n_classes).normal(0, 3, (2000, n_classes))
    p, q = LINKS["softmax"](score), LINKS["clipped_softmax"](score)
    total = np.zeros_like(p)
    for k in range(n_classes):
        grad = p - np.eye(n_classes)[k]
        norm = np.sqrt((grad**2).sum(axis=1, keepdims=True))
        total += q[:, [k]] * grad * np.minimum(1, CLASS_CLIP / norm)
    np.testing.assert_allclose(total, 0, atol=1e-15)
    # larger scores have larger rates, so a prediction needs the scores alone
    np.testing.assert_array_equal(np.argsort(score, axis=1), np.argsort(q, axis=1))


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
