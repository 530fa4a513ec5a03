"""Absolute error of a numeric target."""

from dataclasses import dataclass

from dpgb_dask.losses.contract import CORNER, GradientOptions, Loss
from dpgb_dask.losses.gradients import GRAD_ONE, Gradient, SlopeGradient


@dataclass(frozen=True, slots=True)
class AbsoluteError(Loss):
    """Absolute error: the gradient is the sign of score - y, which is bounded, so nothing is clipped or filtered."""

    name: str = "absolute_error"
    kinds: tuple[str, ...] = ("numeric",)

    @property
    def largest_slope(self) -> float:
        """Largest |g|: that of a sign."""
        return 1.0

    def integer_gradient(self, asked: GradientOptions) -> Gradient:
        """Return slopes of ±1; the Hessian is 0 almost everywhere, so a corner rounded over ±`CORNER` is used."""
        curvature = 1 / CORNER if asked.second == "hessian" else 1.0
        return SlopeGradient(GRAD_ONE, GRAD_ONE, asked.second_steps(1.0), curvature)
