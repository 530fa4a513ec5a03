"""C2: what a leaf says, from its released sums. FDP-GBDT §4.4."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.options import check_positive, check_rate
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.losses import Gradient, label_gradient


@dataclass(frozen=True, eq=False, slots=True)
class LeafSums:
    """Noisy sums of leaves, and the noise on them.

    Parameters
    ----------
    grad, hess : (n_leaves, n_scores) float64
    grad_sd, hess_sd : float, or (n_leaves, 1) float64
    """

    grad: NDArray[np.float64]
    hess: NDArray[np.float64]
    grad_sd: Any
    hess_sd: Any


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
    prior : float or None
        τ: standard deviation of a step around that of the node above (0 for the root), in score units; None for no
        prior. A leaf that is mostly noise then stays near what is known of it.
    """

    learning_rate: float = 0.3
    largest: float = 2.0
    ridge: float = 1.0
    clip: float = 1.0
    filtered: bool = False
    prior: float | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        check_rate("learning_rate", self.learning_rate)
        check_positive("largest", self.largest)
        check_positive("ridge", self.ridge)
        check_rate("clip", self.clip)
        if self.prior is not None:
            check_positive("prior", self.prior)

    def value(self, sums: LeafSums, above: LeafSums | None = None) -> NDArray[np.float64]:
        """Return the values of leaves, (n_leaves, n_scores); 0 where the noisy H is not positive.

        Parameters
        ----------
        sums : LeafSums
        above : LeafSums or None
            Sums of the nodes above, one per two leaves, where they were released too.
        """
        if self.prior is None:
            step = np.where(
                sums.hess > 0, -sums.grad / (np.maximum(sums.hess, 0) + self.ridge), 0.0
            )
        else:
            middle = 0.0 if above is None else np.repeat(self._shrunk(above, 0.0), 2, axis=0)
            step = self._shrunk(sums, middle)
        return np.asarray(self.learning_rate * np.clip(step, -self.largest, self.largest))

    def _shrunk(self, sums: LeafSums, middle: Any) -> NDArray[np.float64]:
        """Return the posterior mean of a Newton step with prior N(middle, τ²) and the known noise on S.

        -(S + H · middle) / H is the step from the middle with noise sd / H: the mean keeps the part τ² / (τ² + sd²/H²).
        """
        assert self.prior is not None
        hess = np.maximum(sums.hess, sums.hess_sd)
        ridge = np.maximum(self.ridge, (sums.grad_sd / self.prior) ** 2 / np.maximum(hess, 1e-9))
        return np.asarray(middle - (sums.grad + hess * middle) / (hess + ridge))


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

    def __post_init__(self) -> None:
        """Check the options."""
        Step.__post_init__(self)
        check_rate("count_scale", self.count_scale)

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

    def __post_init__(self) -> None:
        """Check the options."""
        check_rate("count_scale", self.count_scale)

    def gradient(self, shape: Shape) -> Gradient:
        """Return the label itself as the gradient, with a count."""
        return label_gradient(
            shape.kind, shape.n_scores, average=True, count_scale=self.count_scale
        )

    def value(self, sums: LeafSums, above: LeafSums | None = None) -> NDArray[np.float64]:  # noqa: ARG002
        """Return noisy means; a leaf whose count is noise gives a mean near 0."""
        return np.asarray(-sums.grad / np.maximum(sums.hess, np.maximum(sums.hess_sd, 1.0)))
