"""Losses from outside the package, each as short as a user's own would be: a class of options and a table."""

from dataclasses import dataclass

import numpy as np

from dpgb_dask.losses import GradientOptions, Loss, TableGradient, table_gradient, table_points


@dataclass(frozen=True, slots=True)
class Expectile(Loss):
    """Squares weighed by the side: 2 · ``expectile`` below the target, 2 · (1 - ``expectile``) above it."""

    expectile: float = 0.5
    name: str = "expectile"
    kinds: tuple[str, ...] = ("numeric",)

    @property
    def largest_slope(self) -> float:
        """Of a residual of at most 2, on the heavier side."""
        return 4 * max(self.expectile, 1 - self.expectile)

    def integer_gradient(self, asked: GradientOptions) -> TableGradient:
        """Return the weight times the residual, and the weight."""
        residual = table_points("numeric")
        weight = 2 * np.where(residual < 0, self.expectile, 1 - self.expectile)
        return table_gradient(asked, weight * residual, weight)


@dataclass(frozen=True, slots=True)
class Exponential(Loss):
    """The loss of AdaBoost for scores that are log-odds: exp(-score / 2) of class 1, exp(score / 2) of class 0."""

    name: str = "exponential"
    kinds: tuple[str, ...] = ("binary",)

    @property
    def largest_slope(self) -> float:
        """At the end of the table."""
        return float(np.exp(4) / 2)

    def integer_gradient(self, asked: GradientOptions) -> TableGradient:
        """Return the derivatives by the score, for class 0 and class 1."""
        score = table_points("binary")
        side = np.stack([np.exp(score / 2), np.exp(-score / 2)])
        return table_gradient(asked, np.stack([side[0], -side[1]]) / 2, side / 4)


# the tests of losses run on these too: add one of your own, from any file that they can import
OUTSIDE_LOSSES = (Expectile(0.9), Exponential())
