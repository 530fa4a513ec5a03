"""C2: what a leaf says, from its released sums. FDP-GBDT §4.4."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.options import check_positive, check_rate
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.losses import Gradient, label_gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What all leaf rules share: a clipped step against the gradient, η · clip(-S / (H + λ), ±β).

    Parameters
    ----------
    learning_rate : float
        η.
    largest : float
        β, the bound of a step before η, in score units.
    ridge : float
        λ.
    clip : float
        Bound of a row's gradient.
    filtered : bool
        Drop rows above the bound instead of clipping them (DPBoost's gradient-based data filtering).
    shrink : float
        c: λ grows to c standard deviations of the noise on H, so that a leaf of noise stays small.
    """

    learning_rate: float = 0.3
    largest: float = 2.0
    ridge: float = 1.0
    clip: float = 1.0
    filtered: bool = False
    shrink: float = 0.0

    def __post_init__(self) -> None:
        """Check the options."""
        check_rate("learning_rate", self.learning_rate)
        check_positive("largest", self.largest)
        check_positive("ridge", self.ridge)

    def value(
        self, grad: NDArray[np.float64], hess: NDArray[np.float64], hess_sd: float
    ) -> NDArray[np.float64]:
        """Return the values of leaves, of the shape of the sums; 0 where the noisy H is not positive."""
        ridge = max(self.ridge, self.shrink * hess_sd)
        step = np.clip(-grad / (np.maximum(hess, 0) + ridge), -self.largest, self.largest)
        return np.asarray(self.learning_rate * np.where(hess > 0, step, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewtonStep(Step):
    """Gradient over Hessian; for log-loss the Hessian is free (DESIGN §3)."""

    def gradient(self, shape: Shape) -> Gradient:
        """Return the integer gradient."""
        return shape.loss.gradient(
            shape.kind, shape.n_scores, second="hessian", clip=self.clip, filtered=self.filtered
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientStep(Step):
    """Gradient over the number of rows: a step down the mean gradient.

    Parameters
    ----------
    count_scale : float
        a: the count is released as a · n beside the gradient. Less of it leaves the gradient less noise. 1 for the
        gains of an exponential choice.
    """

    count_scale: float = 0.5

    def gradient(self, shape: Shape) -> Gradient:
        """Return the integer gradient with a count."""
        return shape.loss.gradient(
            shape.kind,
            shape.n_scores,
            second="count",
            clip=self.clip,
            filtered=self.filtered,
            hess_scale=self.count_scale,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BinCountStep(Step):
    """Gradient over the rows that the released bins hold: only the gradient is asked. DP-EBM algorithm 2.

    Serves trees of one feature, whose leaves are sets of its bins.
    """

    def gradient(self, shape: Shape) -> Gradient:
        """Return the integer gradient, with nothing beside it."""
        return shape.loss.gradient(
            shape.kind, shape.n_scores, second="none", clip=self.clip, filtered=self.filtered
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """The mean target of a leaf: its class shares, or the mean of a numeric target. Random forests, FDP-GBDT §4.4.1.

    Trees do not look at each other: their mean is the prediction, so all of them are one batch.

    Parameters
    ----------
    count_scale : float
        As in `GradientStep`.
    """

    count_scale: float = 0.5

    learning_rate = 1.0
    clip = 1.0

    def gradient(self, shape: Shape) -> Gradient:
        """Return the label itself as the gradient, with a count."""
        return label_gradient(
            shape.kind, shape.n_scores, average=True, count_scale=self.count_scale
        )

    def value(
        self, grad: NDArray[np.float64], hess: NDArray[np.float64], hess_sd: float
    ) -> NDArray[np.float64]:
        """Return noisy means, between the bounds of the target; where nothing says otherwise, the middle."""
        mean = -grad / np.maximum(hess, max(hess_sd, 1.0))
        return np.asarray(mean)
