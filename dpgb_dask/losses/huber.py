"""Huber loss of a numeric target."""

from dataclasses import dataclass
from typing import ClassVar

from dpgb_dask.calls import spoken_init
from dpgb_dask.losses.contract import RESIDUAL_BITS, GradientOptions, Loss, check_share
from dpgb_dask.losses.gradients import Gradient, SquaredGradient


@spoken_init
@dataclass(frozen=True, slots=True)
class Huber(Loss):
    """Huber loss: squared within ``delta`` of the target and linear beyond, that is, with clipped residuals.

    Parameters
    ----------
    delta : float, in (0, 1]
        As a share of half the target's public range.
    """

    option: ClassVar[str | None] = "delta"

    delta: float = 0.1
    name: str = "huber"
    kinds: tuple[str, ...] = ("numeric",)

    def __post_init__(self) -> None:
        """Check the option."""
        check_share("delta", self.delta, inclusive=True)

    @property
    def largest_slope(self) -> float:
        """Largest |g|: that of a residual clipped at ``delta``."""
        return self.delta

    def integer_gradient(self, asked: GradientOptions) -> Gradient:
        """Return residuals clipped at ``delta``, or at the clip if it is lower; only the clip can filter rows.

        The Hessian is taken as 1, its largest value, on every row; otherwise a leaf whose rows are all far off would
        have Hessian 0.
        """
        return SquaredGradient(
            asked.clip_steps(RESIDUAL_BITS, self.delta),
            asked.second_steps(min(self.delta, asked.clip)),
            True,
            asked.filtered and asked.clip < self.delta,
        )
