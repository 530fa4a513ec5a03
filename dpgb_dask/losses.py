"""Losses as values: which targets they serve, their integer gradients, and the links from scores to predictions."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.errors import PlanError, did_you_mean
from dpgb_dask.gradients import (
    FREE_HESS_SCALE,
    GRAD_BITS,
    GRAD_ONE,
    RATE_SHIFT,
    SOFTMAX_HESS_SCALE,
    TABLE_SHIFT,
    TABLE_SIZE,
    TARGET_BITS,
    Gradient,
    LabelGradient,
    LogisticGradient,
    PoissonGradient,
    SlopeGradient,
    SoftmaxGradient,
    SquaredGradient,
    check_gradient,
    label_gradient,
    logistic_gradient,
    poisson_gradient,
    sigmoid,
    softmax_gradient,
    unpack,
)

__all__ = [
    "FREE_HESS_SCALE", "GRAD_BITS", "GRAD_ONE", "LINKS", "LINKS_OF", "LOSSES", "RATE_SHIFT", "SOFTMAX_HESS_SCALE",
    "TABLE_SHIFT", "TABLE_SIZE", "TARGET_BITS", "AbsoluteError", "Gradient", "Huber", "LabelGradient", "LogLoss",
    "LogisticGradient", "Loss", "Poisson", "PoissonGradient", "Quantile", "SlopeGradient", "SoftmaxGradient",
    "SquaredError", "SquaredGradient", "check_gradient", "check_loss", "clipped_probability", "default_loss",
    "get", "label_gradient", "logistic_gradient", "poisson_gradient", "sigmoid", "softmax_gradient", "unpack",
]  # fmt: skip

HALF = 0.5  # a, over the largest |g|, where nothing is free: adds an eighth to the noise of g
# a slope that changes within ±CORNER (of half the target's range) of the target has the Hessian of a Huber loss there:
# Newton steps then end within a share of CORNER, where steps by count alone would jump past the target for ever
CORNER = 0.1
RESIDUAL_BITS = 16  # a residual step is 2**-16, a gradient step 2**-15
SECOND = ("hessian", "count", "none")


class Loss(Protocol):
    """A loss, as a value: which targets it serves, its integer gradients and its link. Holds options, no state.

    Attributes
    ----------
    name : str
        scikit-learn's name: "log_loss", "squared_error", "absolute_error", "huber", "quantile", "poisson".
    kinds : tuple of str
        Types of target it serves: "binary", "multiclass", "numeric".
    """

    @property
    def name(self) -> str:
        """Name of the loss."""
        ...

    @property
    def kinds(self) -> tuple[str, ...]:
        """Types of target it serves."""
        ...

    @property
    def largest_slope(self) -> float:
        """Largest |g| of one score column without a clip, in natural units."""
        ...

    def link(self, kind: str) -> str:
        """Return the key of `LINKS` that turns its scores into predictions."""
        ...

    def bounded(self, low: float, high: float) -> "Loss":
        """Return the loss for a target with these public bounds; raises `PlanError` if it cannot have them."""
        ...

    def start(self, mean: float) -> float:
        """Return the score that predicts ``mean`` for every row.

        Parameters
        ----------
        mean : float
            Released, or public. Of a numeric target scaled to [-1, 1] by its bounds; the share of a class.
        """
        ...

    def gradient(
        self,
        kind: str,
        n_classes: int,
        *,
        second: str = "hessian",
        clip: float = 1.0,
        filtered: bool = False,
        hess_scale: float | None = None,
    ) -> Gradient:
        """Return the integer gradient.

        Parameters
        ----------
        kind : {"binary", "multiclass", "numeric"}
        n_classes : int
            Score columns.
        second : {"hessian", "count", "none"}
            What stands beside g: a · h, a · 1 (every row), or nothing (0).
        clip : float, in (0, 1]
            Bound of |g| in natural units; numeric targets are scaled to [-1, 1].
        filtered : bool
            Rows with |g| above the bound give (0, 0) instead of being clipped (gradient-based data filtering).
        hess_scale : float or None
            a; None for the largest that is free (log-loss without a clip), else half of the largest |g|, and 1/2 for
            the Hessian of a clipped log-loss. `Gradient.hess_scale` tells what was taken.

        Raises
        ------
        PlanError
            If the loss does not serve ``kind``, or an option is out of range.
        """
        ...


@dataclass(frozen=True, slots=True)
class LogLoss:
    """Log-loss of a binary or multiclass target.

    Without a clip the Hessian is free: released as a · h with a = φ^{5/2} (binary) or 2 (softmax), it costs the
    gradient no noise (docs/privacy.md P2).
    """

    name: str = "log_loss"
    kinds: tuple[str, ...] = ("binary", "multiclass")

    @property
    def largest_slope(self) -> float:
        """Of p - y."""
        return 1.0

    def link(self, kind: str) -> str:
        """Return "logit" or "softmax"."""
        return "softmax" if kind == "multiclass" else "logit"

    def bounded(self, low: float, high: float) -> "LogLoss":  # noqa: ARG002 - classes have no bounds
        """Return the loss as it is."""
        return self

    def start(self, mean: float) -> float:
        """Return the log-odds of a class with this share."""
        share = min(max(mean, 1e-6), 1 - 1e-6)
        return math.log(share / (1 - share))

    def gradient(
        self,
        kind: str,
        n_classes: int,
        *,
        second: str = "hessian",
        clip: float = 1.0,
        filtered: bool = False,
        hess_scale: float | None = None,
    ) -> Gradient:
        """Return the table of a binary target, or the integer softmax; `Loss.gradient` has the options."""
        largest = 4.0 if second == "hessian" else 1.0  # h <= 1/4: a · h stays below 2**15 steps
        _check(self, kind, second, clip, hess_scale, largest)
        free = SOFTMAX_HESS_SCALE if kind == "multiclass" else FREE_HESS_SCALE
        if second == "none":
            a = 1.0
        elif hess_scale is not None:
            a = hess_scale
        else:
            # with a clip below 1 any h beside the largest g adds to the norm
            a = HALF * clip if second == "count" else free if clip == 1 else HALF
        if kind == "multiclass":
            return softmax_gradient(
                n_classes, clip=clip, hess_scale=a, second=second, filtered=filtered
            )
        return logistic_gradient(clip, a, second=second, filtered=filtered)


class _Scaled:
    """What losses share whose score is the prediction of a target scaled to [-1, 1]."""

    __slots__ = ()

    def link(self, kind: str) -> str:  # noqa: ARG002 - one kind
        """Return "identity"."""
        return "identity"

    def bounded(self, low: float, high: float) -> Self:  # noqa: ARG002 - the target is scaled already
        """Return the loss as it is."""
        return self

    def start(self, mean: float) -> float:
        """Return the mean."""
        return mean


@dataclass(frozen=True, slots=True)
class SquaredError(_Scaled):
    """Squared error of a target scaled to [-1, 1]; residuals are clipped at half its range, or where a recipe says."""

    name: str = "squared_error"
    kinds: tuple[str, ...] = ("numeric",)

    @property
    def largest_slope(self) -> float:
        """Of score - y, both in [-1, 1]."""
        return 2.0

    def gradient(
        self,
        kind: str,
        n_classes: int,  # noqa: ARG002 - one score
        *,
        second: str = "hessian",
        clip: float = 1.0,
        filtered: bool = False,
        hess_scale: float | None = None,
    ) -> Gradient:
        """Return clipped residuals; the Hessian is 1 where nothing is clipped."""
        _check(self, kind, second, clip, hess_scale)
        return SquaredGradient(
            max(round(clip * (1 << RESIDUAL_BITS)), 1),
            _second_steps(second, hess_scale, clip),
            second == "count",
            filtered,
        )


@dataclass(frozen=True, slots=True)
class AbsoluteError(_Scaled):
    """Absolute error: the gradient is the sign of score - y, its own bound; there is nothing to clip or filter."""

    name: str = "absolute_error"
    kinds: tuple[str, ...] = ("numeric",)

    @property
    def largest_slope(self) -> float:
        """Of a sign."""
        return 1.0

    def gradient(
        self,
        kind: str,
        n_classes: int,  # noqa: ARG002 - one score
        *,
        second: str = "hessian",
        clip: float = 1.0,
        filtered: bool = False,  # noqa: ARG002 - no row is beyond the bound
        hess_scale: float | None = None,
    ) -> Gradient:
        """Return slopes of ±1; the Hessian, 0 almost everywhere, is that of a corner rounded over ±`CORNER`."""
        _check(self, kind, second, clip, hess_scale)
        curvature = 1 / CORNER if second == "hessian" else 1.0
        return SlopeGradient(GRAD_ONE, GRAD_ONE, _second_steps(second, hess_scale, 1.0), curvature)


@dataclass(frozen=True, slots=True)
class Huber(_Scaled):
    """Huber loss: squared within ``delta`` of the target, linear beyond: the squared error with clipped residuals.

    Parameters
    ----------
    delta : float, in (0, 1]
        Share of half the target's public range.
    """

    delta: float = 0.1
    name: str = "huber"
    kinds: tuple[str, ...] = ("numeric",)

    def __post_init__(self) -> None:
        _check_share("delta", self.delta, inclusive=True)

    @property
    def largest_slope(self) -> float:
        """Of a residual clipped at delta."""
        return self.delta

    def gradient(
        self,
        kind: str,
        n_classes: int,  # noqa: ARG002 - one score
        *,
        second: str = "hessian",
        clip: float = 1.0,
        filtered: bool = False,
        hess_scale: float | None = None,
    ) -> Gradient:
        """Return residuals clipped at ``delta``, or at ``clip`` if that is less; only the latter filters.

        The Hessian is taken as 1 on every row, its largest value: a leaf whose rows are all far off would have none.
        """
        _check(self, kind, second, clip, hess_scale)
        return SquaredGradient(
            max(round(min(self.delta, clip) * (1 << RESIDUAL_BITS)), 1),
            _second_steps(second, hess_scale, min(self.delta, clip)),
            True,
            filtered and clip < self.delta,
        )


@dataclass(frozen=True, slots=True)
class Quantile(_Scaled):
    """Pinball loss: the gradient is 1 - ``quantile`` above the target and -``quantile`` below; nothing to clip.

    Parameters
    ----------
    quantile : float, in (0, 1)
    """

    quantile: float = 0.5
    name: str = "quantile"
    kinds: tuple[str, ...] = ("numeric",)

    def __post_init__(self) -> None:
        _check_share("quantile", self.quantile, inclusive=False)

    @property
    def largest_slope(self) -> float:
        """Of the steeper slope."""
        return max(self.quantile, 1 - self.quantile)

    def gradient(
        self,
        kind: str,
        n_classes: int,  # noqa: ARG002 - one score
        *,
        second: str = "hessian",
        clip: float = 1.0,
        filtered: bool = False,  # noqa: ARG002 - no row is beyond the bound
        hess_scale: float | None = None,
    ) -> Gradient:
        """Return the two slopes; the Hessian, 0 almost everywhere, is that of a corner rounded over ±`CORNER`."""
        _check(self, kind, second, clip, hess_scale)
        below = min(max(round(self.quantile * GRAD_ONE), 1), GRAD_ONE - 1)
        largest = max(self.quantile, 1 - self.quantile)
        curvature = 0.5 / CORNER if second == "hessian" else 1.0
        second_steps = _second_steps(second, hess_scale, largest)
        return SlopeGradient(below, GRAD_ONE - below, second_steps, curvature)


@dataclass(frozen=True, slots=True)
class Poisson:
    """Poisson deviance with a log link; a target is counted in shares of its largest public value.

    The rate is exp(score - 2) times ``high``: score 2 predicts ``high``, score 0 a seventh of it, score -8 a
    twenty-thousandth, and no rate is larger than ``high``. So both rate and target lie in [0, 1] and so does |g|,
    without any row being clipped; a ``clip`` below 1 lessens the noise where most targets are far below ``high``.

    Parameters
    ----------
    low, high : float or None
        Public bounds of the target, 0 <= low < high; None until `bounded` gives those of the schema.
    """

    low: float | None = None
    high: float | None = None
    name: str = "poisson"
    kinds: tuple[str, ...] = ("numeric",)

    @property
    def largest_slope(self) -> float:
        """Of rate - y, both in [0, 1]."""
        return 1.0

    def link(self, kind: str) -> str:  # noqa: ARG002 - one kind
        """Return "log"."""
        return "log"

    def bounded(self, low: float, high: float) -> "Poisson":
        """Return the loss for these bounds; raises `PlanError` if the lower is negative."""
        if not 0 <= low < high:
            raise PlanError(
                f"loss='poisson' needs a target that is never negative: target_bounds=({low:g}, {high:g}). Declare a "
                "lower bound of at least 0, or choose loss='squared_error'."
            )
        return Poisson(low, high)

    def _low_share(self) -> float:
        if self.low is None or self.high is None:
            raise PlanError("loss='poisson' needs the target's bounds. Call bounded(low, high).")
        return self.low / self.high

    def start(self, mean: float) -> float:
        """Return the score whose rate is the mean."""
        base = self._low_share()
        share = base + (1 - base) * (mean + 1) / 2
        return math.log(min(max(share, math.exp(-8 - RATE_SHIFT)), 1.0)) + RATE_SHIFT

    def gradient(
        self,
        kind: str,
        n_classes: int,  # noqa: ARG002 - one score
        *,
        second: str = "hessian",
        clip: float = 1.0,
        filtered: bool = False,
        hess_scale: float | None = None,
    ) -> Gradient:
        """Return clip(rate - y); the Hessian is the rate where nothing is clipped."""
        _check(self, kind, second, clip, hess_scale)
        return poisson_gradient(
            self._low_share(),
            clip=clip,
            hess_scale=HALF * clip if hess_scale is None else hess_scale,
            second=second,
            filtered=filtered,
        )


def _check(
    loss: Loss, kind: str, second: str, clip: float, a: float | None, largest: float = 1.0
) -> None:
    """Check the options of `Loss.gradient`."""
    if kind not in loss.kinds:
        serving = sorted(name for name, other in LOSSES.items() if kind in other.kinds)
        raise PlanError(
            f"loss={loss.name!r} does not serve a {kind} target. Choose one of {serving}."
        )
    if second not in SECOND:
        raise PlanError(f"second={second!r} must be one of {SECOND}.")
    _check_share("clip", clip, inclusive=True)
    if a is not None and not 0 < a <= largest:
        raise PlanError(f"hess_scale={a!r} must be in (0, {largest:g}].")


def _check_share(name: str, value: Any, *, inclusive: bool) -> None:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 < value <= 1 or (value == 1 and not inclusive):
        raise PlanError(f"{name}={value!r} must be in (0, 1{']' if inclusive else ')'}.")


def _second_steps(second: str, hess_scale: float | None, largest_grad: float) -> int:
    if second == "none":
        return 0
    return max(round((HALF * largest_grad if hess_scale is None else hess_scale) * GRAD_ONE), 1)


LOSSES: Mapping[str, Loss] = {
    loss.name: loss
    for loss in (
        LogLoss(), SquaredError(), AbsoluteError(), Huber(), Quantile(), Poisson()
    )
}  # fmt: skip


def get(loss: str | Loss) -> Loss:
    """Return a loss by scikit-learn's name, or as given.

    Raises
    ------
    PlanError
        If there is no such loss, or it is of a class of its own.
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise PlanError(
                f"loss={loss!r} is unknown. Choose one of {sorted(LOSSES)} or give a Loss."
                f"{did_you_mean(loss, LOSSES)}"
            )
        return LOSSES[loss]
    check_loss(loss)
    return loss


def check_loss(loss: Any, kind: str | None = None) -> None:
    """Refuse a loss that is not exactly one of those here, whatever name it has.

    What a loss says decides which kernel runs, what a score means and how a fit is reported, so a class that overrides
    one of them is another loss, about which nothing is known.

    Parameters
    ----------
    loss : Any
    kind : {"binary", "multiclass", "numeric"}, optional
        Type of the target that it has to serve.

    Raises
    ------
    PlanError
    """
    known = {type(one): one for one in LOSSES.values()}.get(type(loss))
    if known is None or (loss.name, loss.kinds) != (known.name, known.kinds):
        raise PlanError(
            f"loss={loss!r} is no Loss of this library. Choose one of {sorted(LOSSES)}, or a value of"
            " dpgb_dask.losses, such as Quantile(0.9)."
        )
    if kind is not None and kind not in known.kinds:
        serving = sorted(name for name, other in LOSSES.items() if kind in other.kinds)
        raise PlanError(
            f"loss={known.name!r} does not serve a {kind} target. Choose one of {serving}."
        )


def default_loss(kind: str) -> Loss:
    """Return the loss of a target's type: log-loss, or the squared error."""
    return LOSSES["squared_error" if kind == "numeric" else "log_loss"]


# ---- links: scores (n, n_scores) float64 → (n, n_classes) probabilities of a classifier, or (n,) predictions: of a
# target scaled to [-1, 1] ("identity"), or in shares of its upper bound ("log")


def clipped_probability(score: NDArray[Any], clip: float = 0.5) -> NDArray[Any]:
    """Invert the clipped link: the q with q·min(1-p, c) = (1-q)·min(p, c), p = sigmoid(score).

    At c = ½ and score <= 0: q = p / (p + ½); symmetric above (docs/default-method.md §5).
    """
    p = sigmoid(score)
    up, down = np.minimum(1 - p, clip), np.minimum(p, clip)
    return down / (up + down)


def _both(p: NDArray[Any]) -> NDArray[np.float64]:
    return np.stack([1 - p, p], axis=1)


def _clipped_logit(score: NDArray[np.float64]) -> NDArray[np.float64]:
    return _both(clipped_probability(score[:, 0]))


def _logit(score: NDArray[np.float64]) -> NDArray[np.float64]:
    return _both(sigmoid(score[:, 0]))


def _softmax(score: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _probability(score: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores are probabilities: clipped, and of several classes normalised (all zero: all alike)."""
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
    "probability": _probability,
    "identity": _identity,
    "log": _log,
}
LINKS_OF: Mapping[str, tuple[str, ...]] = {
    "binary": ("clipped_logit", "logit", "probability"),
    "multiclass": ("softmax", "probability"),
    "numeric": ("identity", "log"),
}
