"""Huber loss of a numeric target."""

from dataclasses import dataclass
from typing import ClassVar

from dpgb_dask.losses.contract import RESIDUAL_BITS, GradientOptions, Loss, check_share
from dpgb_dask.losses.gradients import Gradient, SquaredGradient


@dataclass(frozen=True, slots=True)
class Huber(Loss):
    """Huber loss: squared within ``delta`` of the target, linear beyond: the squared error with clipped residuals.

    Parameters
    ----------
    delta : float, in (0, 1]
        Share of half the target's public range.
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
        """Of a residual clipped at delta."""
        return self.delta

    def integer_gradient(self, asked: GradientOptions) -> Gradient:
        """Return residuals clipped at ``delta``, or at the clip if that is less; only the latter filters.

        The Hessian is taken as 1 on every row, its largest value: a leaf whose rows are all far off would have none.
        """
        return SquaredGradient(
            asked.clip_steps(RESIDUAL_BITS, self.delta),
            asked.second_steps(min(self.delta, asked.clip)),
            True,
            asked.filtered and asked.clip < self.delta,
        )
