"""C2: the value of a leaf, from its released sums. FDP-GBDT §4.4."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components.options import check_positive, check_rate
from dpgb_dask.contracts.part import Part
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import Gradient, label_gradient

LARGEST_STEP = 1e4  # scores are below 2**15; a cast of larger values depends on the processor


@dataclass(frozen=True, eq=False, slots=True)
class LeafSums:
    """Noisy sums of leaves, and the standard deviations of their noise.

    Parameters
    ----------
    grad, hess : (..., n_leaves, n_scores) float64
        The leaves of a tree are on the last axis but one.
    grad_sd, hess_sd : float, or (..., n_leaves, 1) float64
    """

    grad: NDArray[np.float64]
    hess: NDArray[np.float64]
    grad_sd: Any
    hess_sd: Any


class Leaf(Part, ABC):
    """A rule for the values of leaves. Holds options, no state.

    Attributes
    ----------
    counts_bins : bool
        Whether the number of rows in a leaf comes from the released bins, so that only the gradient is queried.
    means : bool
        Whether the value of a leaf is a mean of targets: trees are then independent of each other, and the start score
        is 0.
    """

    __slots__ = ()

    counts_bins: ClassVar[bool] = False
    means: ClassVar[bool] = False

    @abstractmethod
    def gradient(self, shape: Shape) -> Gradient:
        """Return the integer gradient that is summed in each leaf; it decides how much one row can change."""

    @abstractmethod
    def value(
        self, sums: LeafSums, above: LeafSums | None = None, *, kind: str = "binary", batch: int = 1
    ) -> NDArray[np.float64]:
        """Return the values of leaves in score units, in the shape of the sums; for the parameters see `Step.value`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Leaf):
    """What all leaf rules share: a clipped step against the gradient, η · clip(-S / (H + λ), ±β).

    Parameters
    ----------
    learning_rate : float
        η.
    largest : float
        β, the bound of a step before η, in score units.
    ridge : float
        λ.
    clip : float or None
        Bound of a row's gradient. None means 1, or 1/2 for a numeric target (a quarter of its range): few residuals are
        larger, and the noise is halved.
    filtered : bool
        Drop rows above the bound instead of clipping them (DPBoost's gradient-based data filtering).
    prior : float or None
        τ: prior standard deviation of a leaf's step around the step of the node above, or of the whole tree, in score
        units; half as much for a numeric target, which is scaled to [-1, 1]. A leaf that is mostly noise then stays
        near the prior mean. None for no prior.
    """

    learning_rate: float = 0.3
    largest: float = 2.0
    ridge: float = 1.0
    clip: float | None = None
    filtered: bool = False
    prior: float | None = None

    estimator_options: ClassVar[Mapping[str, str]] = {"learning_rate": "learning_rate"}

    def __post_init__(self) -> None:
        """Check the options."""
        check_rate("learning_rate", self.learning_rate)
        check_positive("largest", self.largest)
        if self.largest > LARGEST_STEP:
            raise PlanError(
                f"largest={self.largest!r} must be at most {LARGEST_STEP:g}: scores are 32-bit numbers of 2**-16."
            )
        check_positive("ridge", self.ridge)
        if self.clip is not None:
            check_rate("clip", self.clip)
        if self.prior is not None:
            check_positive("prior", self.prior)

    def bound(self, kind: str) -> float:
        """Return the bound of a row's gradient for this type of target."""
        return self.clip or (0.5 if kind == "numeric" else 1.0)

    def value(
        self, sums: LeafSums, above: LeafSums | None = None, *, kind: str = "binary", batch: int = 1
    ) -> NDArray[np.float64]:
        """Return the values of leaves; without a prior, 0 where the noisy H is not positive.

        Parameters
        ----------
        sums : LeafSums
        above : LeafSums or None
            Sums of the parent nodes, one per two leaves, if they were released too.
        kind : str
            Type of the target.
        batch : int
            Number of trees whose mean is added. The mean averages their noise, so each of them is shrunk less.
        """
        if self.prior is None:
            step = np.zeros(sums.grad.shape)  # in small rounds by `kernels.leaf_steps`, to the bit
            np.divide(-sums.grad, sums.hess + self.ridge, out=step, where=sums.hess > 0)
            return self.learning_rate * np.minimum(np.maximum(step, -self.largest), self.largest)
        scale = 0.5 if kind == "numeric" else 1.0
        spread = self.prior * scale * float(np.sqrt(batch))
        middle = shrunk(whole(sums if above is None else above), 0.0, scale, self.ridge)
        if above is not None:
            middle = np.repeat(shrunk(above, middle, spread, self.ridge), 2, axis=-2)
        step = shrunk(sums, middle, spread, self.ridge)
        clipped = np.minimum(np.maximum(step, -self.largest), self.largest)
        return np.asarray(self.learning_rate * clipped)


def whole(sums: LeafSums) -> LeafSums:
    """Return the sums over each tree's leaves, keeping the axis of leaves."""
    n = np.ones(sums.grad.shape[-2:])[:, :1]
    return LeafSums(
        sums.grad.sum(-2, keepdims=True),
        sums.hess.sum(-2, keepdims=True),
        np.sqrt(((sums.grad_sd * n) ** 2).sum(-2, keepdims=True)),
        np.sqrt(((sums.hess_sd * n) ** 2).sum(-2, keepdims=True)),
    )


def shrunk(sums: LeafSums, middle: Any, spread: float, ridge: float) -> NDArray[np.float64]:
    """Return the posterior mean of a Newton step with prior N(middle, spread²) and the known noise on S.

    -(S + H · middle) / H is the step from the middle, with noise sd / H. The posterior mean keeps the fraction spread²
    / (spread² + sd²/H²) of it. H is taken as at least the standard deviation of its own noise.
    """
    hess = np.maximum(np.maximum(sums.hess, sums.hess_sd), 1e-9)
    ridge = np.maximum(ridge, (sums.grad_sd / spread) ** 2 / hess)
    return np.asarray(middle - (sums.grad + hess * middle) / (hess + ridge))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewtonStep(Step):
    """Gradient over Hessian. For log-loss the Hessian is free (docs/privacy.md P2).

    Parameters
    ----------
    laplace : bool
        Whether the scale of the Hessian is chosen for Laplace noise. For a binary target, with u = |p - y|, |g| + h = u
        + u(1 - u) is at most 1, so h is free in L1 too.
    """

    laplace: bool = False

    def gradient(self, shape: Shape) -> Gradient:
        """Return the integer gradient."""
        return shape.loss.gradient(
            shape.kind,
            shape.n_scores,
            second="hessian",
            clip=self.bound(shape.kind),
            filtered=self.filtered,
            hess_scale=shape.loss.laplace_hess_scale if self.laplace else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientStep(Step):
    """Gradient over the number of rows: a step against the mean gradient.

    Parameters
    ----------
    count_scale : float
        a: the count is released as a · n beside the gradient. A smaller a means less noise on the gradient.
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
            clip=self.bound(shape.kind),
            filtered=self.filtered,
            hess_scale=self.count_scale,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BinCountStep(Step):
    """Gradient over the number of rows in the released bins, so that only the gradient is queried. DP-EBM algorithm 2.

    For trees of one feature, whose leaves are sets of its bins.
    """

    counts_bins = True

    def gradient(self, shape: Shape) -> Gradient:
        """Return the integer gradient without a second component."""
        return shape.loss.gradient(
            shape.kind,
            shape.n_scores,
            second="none",
            clip=self.bound(shape.kind),
            filtered=self.filtered,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging(Leaf):
    """The mean target of a leaf: its class shares, or the mean of a numeric target. Random forests, FDP-GBDT §4.4.1.

    Trees are independent of each other, and their mean is the prediction, so all of them form one batch.

    Parameters
    ----------
    count_scale : float
        As in `GradientStep`.
    """

    count_scale: float = 0.5

    means = True

    def __post_init__(self) -> None:
        """Check the options."""
        check_rate("count_scale", self.count_scale)

    def gradient(self, shape: Shape) -> Gradient:
        """Return the target itself as the gradient, with a count."""
        return label_gradient(
            shape.kind, shape.n_scores, average=True, count_scale=self.count_scale
        )

    def value(
        self,
        sums: LeafSums,
        above: LeafSums | None = None,  # noqa: ARG002 - a mean needs no prior
        *,
        kind: str = "binary",  # noqa: ARG002
        batch: int = 1,  # noqa: ARG002
    ) -> NDArray[np.float64]:
        """Return noisy means; a leaf whose count is mostly noise gets a mean near 0."""
        return np.asarray(-sums.grad / np.maximum(sums.hess, np.maximum(sums.hess_sd, 1.0)))
