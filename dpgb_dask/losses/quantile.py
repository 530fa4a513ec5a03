"""Pinball loss of a numeric target."""

from dataclasses import dataclass
from typing import ClassVar

from dpgb_dask.calls import spoken_init
from dpgb_dask.losses.contract import CORNER, GradientOptions, Loss, check_share
from dpgb_dask.losses.gradients import GRAD_ONE, Gradient, SlopeGradient


@spoken_init
@dataclass(frozen=True, slots=True)
class Quantile(Loss):
    """Pinball loss: the gradient is 1 - ``quantile`` above the target and -``quantile`` below; nothing is clipped.

    Parameters
    ----------
    quantile : float, in (0, 1)
    """

    option: ClassVar[str | None] = "quantile"

    quantile: float = 0.5
    name: str = "quantile"
    kinds: tuple[str, ...] = ("numeric",)

    def __post_init__(self) -> None:
        """Check the option."""
        check_share("quantile", self.quantile, inclusive=False)

    @property
    def largest_slope(self) -> float:
        """Largest |g|: the steeper of the two slopes."""
        return max(self.quantile, 1 - self.quantile)

    def integer_gradient(self, asked: GradientOptions) -> Gradient:
        """Return the two slopes; the Hessian is 0 almost everywhere, so a corner rounded over ±`CORNER` is used."""
        below = min(max(round(self.quantile * GRAD_ONE), 1), GRAD_ONE - 1)
        curvature = 0.5 / CORNER if asked.second == "hessian" else 1.0
        second_steps = asked.second_steps(self.largest_slope)
        return SlopeGradient(below, GRAD_ONE - below, second_steps, curvature)
