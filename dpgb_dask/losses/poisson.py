"""Poisson deviance of a count."""

import math
from dataclasses import dataclass, replace
from typing import Self

from dpgb_dask.errors import PlanError
from dpgb_dask.losses.contract import HALF, GradientOptions, Loss
from dpgb_dask.losses.gradients import RATE_SHIFT, Gradient, poisson_gradient


@dataclass(frozen=True, slots=True)
class Poisson(Loss):
    """Poisson deviance with a log link; the target is measured in shares of its largest public value.

    The rate is exp(score - 2) times ``high``: score 2 predicts ``high``, score 0 a seventh of it, score -8 a
    twenty-thousandth, and no rate is larger than ``high``. So the rate, the target and |g| lie in [0, 1] without any
    clipping. A ``clip`` below 1 reduces the noise if most targets are far below ``high``.

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
        """Largest |g|: that of rate - y, both in [0, 1]."""
        return 1.0

    def link(self, kind: str) -> str:  # noqa: ARG002 - one kind
        """Return "log"."""
        return "log"

    def bounded(self, low: float, high: float) -> Self:
        """Return the loss for these bounds; raises `PlanError` if the lower is negative."""
        if not 0 <= low < high:
            raise PlanError(
                f"loss='poisson' needs a target that is never negative: target_bounds=({low:g}, {high:g}). Declare a "
                "lower bound of at least 0, or choose loss='squared_error'."
            )
        return replace(self, low=low, high=high)

    def _low_share(self) -> float:
        if self.low is None or self.high is None:
            raise PlanError("loss='poisson' needs the target's bounds. Call bounded(low, high).")
        return self.low / self.high

    def start(self, mean: float) -> float:
        """Return the score at which the rate is the mean."""
        base = self._low_share()
        share = base + (1 - base) * (mean + 1) / 2
        return math.log(min(max(share, math.exp(-8 - RATE_SHIFT)), 1.0)) + RATE_SHIFT

    def integer_gradient(self, asked: GradientOptions) -> Gradient:
        """Return clip(rate - y); the Hessian is the rate on rows that are not clipped."""
        return poisson_gradient(
            self._low_share(),
            clip=asked.clip,
            hess_scale=HALF * asked.clip if asked.hess_scale is None else asked.hess_scale,
            second=asked.second,
            filtered=asked.filtered,
        )
