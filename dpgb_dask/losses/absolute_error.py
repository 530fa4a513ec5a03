"""Absolute error of a numeric target."""

from dataclasses import dataclass

from dpgb_dask.losses.contract import CORNER, GradientOptions, Loss
from dpgb_dask.losses.gradients import GRAD_ONE, Gradient, SlopeGradient


@dataclass(frozen=True, slots=True)
class AbsoluteError(Loss):
    """Absolute error: the gradient is the sign of score - y, its own bound; there is nothing to clip or filter."""

    name: str = "absolute_error"
    kinds: tuple[str, ...] = ("numeric",)

    @property
    def largest_slope(self) -> float:
        """Of a sign."""
        return 1.0

    def integer_gradient(self, asked: GradientOptions) -> Gradient:
        """Return slopes of ±1; the Hessian, 0 almost everywhere, is that of a corner rounded over ±`CORNER`."""
        curvature = 1 / CORNER if asked.second == "hessian" else 1.0
        return SlopeGradient(GRAD_ONE, GRAD_ONE, asked.second_steps(1.0), curvature)
