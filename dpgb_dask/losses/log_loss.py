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

    Without a clip the Hessian is free: released as a · h with a = φ^{5/2} (binary) or 2 (softmax), it adds no noise to
    the gradient (docs/privacy.md P2). This is the default scale a; with a clipped gradient it is 1/2, and for a count
    half the clip.
    """

    most_hess_scale: ClassVar[float] = 4.0  # h <= 1/4
    laplace_hess_scale: ClassVar[float | None] = 1.0

    name: str = "log_loss"
    kinds: tuple[str, ...] = ("binary", "multiclass")

    @property
    def largest_slope(self) -> float:
        """Largest |g|: that of p - y."""
        return 1.0

    def start(self, mean: float) -> float:
        """Return the log-odds of a class that has this share."""
        share = min(max(mean, 1e-6), 1 - 1e-6)
        return math.log(share / (1 - share))

    def integer_gradient(self, asked: GradientOptions) -> Gradient:
        """Return the table for a binary target, or the integer softmax for several classes."""
        clip, second, filtered = asked.clip, asked.second, asked.filtered
        free = SOFTMAX_HESS_SCALE if asked.kind == "multiclass" else FREE_HESS_SCALE
        if second == "none":
            a = 1.0
        elif asked.hess_scale is not None:
            a = asked.hess_scale
        else:
            # with a clip below 1, any h beside the largest g increases the norm
            a = HALF * clip if asked.counts else free if clip == 1 else HALF
        if asked.kind == "multiclass":
            return softmax_gradient(
                asked.n_scores, clip=clip, hess_scale=a, second=second, filtered=filtered
            )
        return logistic_gradient(clip, a, second=second, filtered=filtered)
