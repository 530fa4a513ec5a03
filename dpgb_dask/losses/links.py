"""Links: how the scores of a model become predictions.

A link maps scores, (n, n_scores) float64, to the (n, n_classes) probabilities of a classifier, or to (n,) predictions
of a regressor: of the target scaled to [-1, 1] ("identity"), or in shares of its upper bound ("log").
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.losses.gradients import RATE_SHIFT, sigmoid


def clipped_probability(score: NDArray[Any]) -> NDArray[Any]:
    """Invert the clipped link: return the q with q·min(1-p, ½) = (1-q)·min(p, ½), where p = sigmoid(score).

    For score <= 0, q = p / (p + ½); scores above 0 are symmetric (docs/default-method.md §6).
    """
    p = sigmoid(score)
    up, down = np.minimum(1 - p, 0.5), np.minimum(p, 0.5)
    return down / (up + down)


CLASS_CLIP = 0.85  # of the gradient's norm, several classes; above √½, where two classes alone would lose consistency


def clip_multipliers(p: NDArray[Any]) -> NDArray[np.float64]:
    """Return what a gradient p - e_k, clipped in norm, is multiplied by, for every class k: (n, n_classes)."""
    squared = 1 + (p * p).sum(axis=1, keepdims=True) - 2 * p
    return np.asarray(np.minimum(1.0, CLASS_CLIP / np.sqrt(np.maximum(squared, CLASS_CLIP**2))))


def clipped_probabilities(p: NDArray[Any]) -> NDArray[np.float64]:
    """Invert the clipped link of several classes: return the rates at which gradients clipped in norm sum to zero.

    With p = softmax(score) these are q_k ∝ p_k / w_k, w of `clip_multipliers` (docs/default-method.md §6).
    """
    q = p / clip_multipliers(p)
    return np.asarray(q / q.sum(axis=1, keepdims=True))


def _both(p: NDArray[Any]) -> NDArray[np.float64]:
    return np.stack([1 - p, p], axis=1)


def _clipped_logit(score: NDArray[np.float64]) -> NDArray[np.float64]:
    return _both(clipped_probability(score[:, 0]))


def _logit(score: NDArray[np.float64]) -> NDArray[np.float64]:
    return _both(sigmoid(score[:, 0]))


def _softmax(score: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _clipped_softmax(score: NDArray[np.float64]) -> NDArray[np.float64]:
    return clipped_probabilities(_softmax(score))


def _probability(score: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take scores as probabilities: clip them, and normalise those of several classes (if all are 0, all are equal)."""
    p = np.clip(score, 0.0, 1.0)
    if p.shape[1] == 1:
        return _both(p[:, 0])
    total = p.sum(axis=1, keepdims=True)
    return np.where(total > 0, p / np.where(total > 0, total, 1.0), 1.0 / p.shape[1])


def _identity(score: NDArray[np.float64]) -> NDArray[np.float64]:
    return score[:, 0]


def _log(score: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.exp(np.minimum(score[:, 0] - RATE_SHIFT, 0.0)))


LINKS: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "clipped_logit": _clipped_logit,
    "logit": _logit,
    "softmax": _softmax,
    "clipped_softmax": _clipped_softmax,
    "probability": _probability,
    "identity": _identity,
    "log": _log,
}
LINKS_OF: Mapping[str, tuple[str, ...]] = {
    "binary": ("clipped_logit", "logit", "probability"),
    "multiclass": ("clipped_softmax", "softmax", "probability"),
    "numeric": ("identity", "log"),
}
