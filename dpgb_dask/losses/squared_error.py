"""Squared error of a numeric target."""

from dataclasses import dataclass

from dpgb_dask.losses.contract import RESIDUAL_BITS, GradientOptions, Loss
from dpgb_dask.losses.gradients import Gradient, SquaredGradient


@dataclass(frozen=True, slots=True)
class SquaredError(Loss):
    """Squared error of a target scaled to [-1, 1]; residuals are clipped at half its range, or at a recipe's clip."""

    name: str = "squared_error"
    kinds: tuple[str, ...] = ("numeric",)

    @property
    def largest_slope(self) -> float:
        """Largest |g| without a clip: that of score - y, both in [-1, 1]."""
        return 2.0

    def integer_gradient(self, asked: GradientOptions) -> Gradient:
        """Return clipped residuals; the Hessian is 1 on rows that are not clipped."""
        return SquaredGradient(
            asked.clip_steps(RESIDUAL_BITS),
            asked.second_steps(asked.clip),
            asked.counts,
            asked.filtered,
        )
