"""Log-loss of classes."""

import math
from dataclasses import dataclass
from typing import ClassVar

from dpgb_dask.losses.contract import HALF, GradientOptions, Loss
from dpgb_dask.losses.gradients import (
    FREE_HESS_SCALE,
    SOFTMAX_HESS_SCALE,
    Gradient,
    logistic_gradient,
    softmax_gradient,
)


@dataclass(frozen=True, slots=True)
class LogLoss(Loss):
    """Log-loss of a binary or multiclass target.

    Without a clip the Hessian is free: released as a · h with a = φ^{5/2} (binary) or 2 (softmax), it costs the
    gradient no noise (docs/privacy.md P2). That is its scale by default; it is 1/2 beside a clipped gradient, and half
    the clip for a count.
    """

    most_hess_scale: ClassVar[float] = 4.0  # h <= 1/4
    laplace_hess_scale: ClassVar[float | None] = 1.0

    name: str = "log_loss"
    kinds: tuple[str, ...] = ("binary", "multiclass")

    @property
    def largest_slope(self) -> float:
        """Of p - y."""
        return 1.0

    def start(self, mean: float) -> float:
        """Return the log-odds of a class with this share."""
        share = min(max(mean, 1e-6), 1 - 1e-6)
        return math.log(share / (1 - share))

    def integer_gradient(self, asked: GradientOptions) -> Gradient:
        """Return the table of a binary target, or the integer softmax."""
        clip, second, filtered = asked.clip, asked.second, asked.filtered
        free = SOFTMAX_HESS_SCALE if asked.kind == "multiclass" else FREE_HESS_SCALE
        if second == "none":
            a = 1.0
        elif asked.hess_scale is not None:
            a = asked.hess_scale
        else:
            # with a clip below 1 any h beside the largest g adds to the norm
            a = HALF * clip if asked.counts else free if clip == 1 else HALF
        if asked.kind == "multiclass":
            return softmax_gradient(
                asked.n_scores, clip=clip, hess_scale=a, second=second, filtered=filtered
            )
        return logistic_gradient(clip, a, second=second, filtered=filtered)
