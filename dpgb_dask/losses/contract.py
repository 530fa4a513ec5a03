"""What a loss is: a class of options with one method, `Loss.integer_gradient`."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.errors import PlanError
from dpgb_dask.losses.gradients import GRAD_ONE, TABLE_SIZE, Gradient, TableGradient, packed_table
from dpgb_dask.scalars import is_number

HALF = 0.5  # a over the largest |g|, where h is not free: adds an eighth to the noise on g
# a gradient that jumps at the target is taken to change linearly within ±CORNER of it (in halves of the target's
# range), as in a Huber loss. With this Hessian, Newton steps settle within a fraction of CORNER; steps by count alone
# would jump past the target forever
CORNER = 0.1
RESIDUAL_BITS = 16  # a residual step is 2**-16, a gradient step 2**-15
SECOND = ("hessian", "count", "none")


def check_share(name: str, value: Any, *, inclusive: bool) -> None:
    """Raise `PlanError` unless an option is a number in (0, 1), or (0, 1] if ``inclusive``."""
    if not is_number(value) or not 0 < value <= 1 or (value == 1 and not inclusive):
        raise PlanError(f"{name}={value!r} must be in (0, 1{']' if inclusive else ')'}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientOptions:
    """The options with which a stage asks a loss for its gradient; `Loss.gradient` makes and checks them.

    Parameters
    ----------
    kind : {"binary", "multiclass", "numeric"}
    n_scores : int
        Score columns.
    second : {"hessian", "count", "none"}
        The second component, beside g: a · h, a · 1 (on every row), or 0.
    clip : float, in (0, 1]
        Bound of |g| in natural units; numeric targets are scaled to [-1, 1].
    filtered : bool
        Whether rows with |g| above the bound contribute (0, 0) instead of being clipped (gradient-based data
        filtering).
    hess_scale : float or None
        a; None for the loss's own choice, which `Gradient.hess_scale` tells.
    """

    kind: str
    n_scores: int
    second: str = "hessian"
    clip: float = 1.0
    filtered: bool = False
    hess_scale: float | None = None

    def __post_init__(self) -> None:
        """Refuse options out of range; the loss itself checks ``hess_scale``."""
        if self.second not in SECOND:
            raise PlanError(f"second={self.second!r} must be one of {SECOND}.")
        check_share("clip", self.clip, inclusive=True)

    @property
    def counts(self) -> bool:
        """Whether the second component counts every row."""
        return self.second == "count"

    def clip_steps(self, bits: int, most: float = 1.0) -> int:
        """Return the bound of |g| as a whole number of steps, at least 1.

        Parameters
        ----------
        bits : int
            A step is ``2**-bits``.
        most : float
            A bound of the loss's own, in natural units; the lower of it and ``clip`` counts.
        """
        return max(round(min(most, self.clip) * (1 << bits)), 1)

    def second_steps(self, largest_grad: float) -> int:
        """Return the second component where it is the same on every row, in gradient steps; 0 if none is asked for.

        Parameters
        ----------
        largest_grad : float
            The largest |g| in natural units; half of it is taken if ``hess_scale`` is None.
        """
        if self.second == "none":
            return 0
        a = HALF * largest_grad if self.hess_scale is None else self.hess_scale
        return max(round(a * GRAD_ONE), 1)


class Loss:
    """A loss, as a value: the targets that it serves, its integer gradients and its link. Holds options, no state.

    A loss is a frozen dataclass; its fields are its options, then ``name`` and ``kinds``. It defines `largest_slope`
    and `integer_gradient`, and overrides the other methods only where it differs.

    Attributes
    ----------
    name : str
        The name in scikit-learn, if the loss exists there: "log_loss", "squared_error", "quantile".
    kinds : tuple of str
        Types of target that it serves: "binary", "multiclass", "numeric".
    option : str or None
        Name of the one numeric option that the command line can set, as in "quantile:0.9"; None if there is none.
    most_hess_scale : float
        Largest ``hess_scale`` for a Hessian, such that a · h <= 1.
    laplace_hess_scale : float or None
        The ``hess_scale`` at which the Hessian is free in L1; None if there is none.
    """

    __slots__ = ()

    option: ClassVar[str | None] = None
    most_hess_scale: ClassVar[float] = 1.0
    laplace_hess_scale: ClassVar[float | None] = None

    name: str
    kinds: tuple[str, ...]

    @property
    def largest_slope(self) -> float:
        """Largest |g| of one score column if nothing is clipped, in natural units; the report tells it.

        Raises
        ------
        PlanError
            If the class of the loss does not define it.
        """
        raise PlanError(
            f"loss={self.name!r} has no largest_slope: define it, as the largest |g| without a clip."
        )

    def integer_gradient(self, asked: GradientOptions) -> Gradient:  # noqa: ARG002 - a loss defines it
        """Return the integer gradient for options that `gradient` has checked; a loss of your own defines this.

        Parameters
        ----------
        asked : GradientOptions
            The type of target, the number of scores, and what the stage wants beside the gradient.

        Returns
        -------
        Gradient
            From `table_gradient`, or of another class of `dpgb_dask.losses.GRADIENTS`, which compute their own bounds.

        Raises
        ------
        PlanError
            If the loss has no such gradient, or its class does not define this method.
        """
        raise PlanError(
            f"loss={self.name!r} has no integer_gradient: define it, with table_gradient(asked, g, h)."
        )

    def link(self, kind: str) -> str:
        """Return the name of the link, which turns scores into predictions.

        Parameters
        ----------
        kind : {"binary", "multiclass", "numeric"}
            Type of the target.

        Returns
        -------
        str
            One of `dpgb_dask.losses.LINKS`: by default "logit" for two classes, "softmax" for several, and "identity"
            for a number.
        """
        return {"binary": "logit", "multiclass": "softmax"}.get(kind, "identity")

    def bounded(self, low: float, high: float) -> Self:  # noqa: ARG002 - most losses see a target scaled to [-1, 1]
        """Return the loss for a numeric target with these public bounds; by default the loss as it is.

        Parameters
        ----------
        low, high : float
            In units of the target.

        Raises
        ------
        PlanError
            If the loss does not allow such a target.
        """
        return self

    def start(self, mean: float) -> float:
        """Return the score that predicts ``mean`` for every row; by default the mean itself.

        Parameters
        ----------
        mean : float
            The mean of a numeric target scaled to [-1, 1] by its bounds, or the share of a class; released or public.
        """
        return mean

    def gradient(
        self,
        kind: str,
        n_scores: int,
        *,
        second: str = "hessian",
        clip: float = 1.0,
        filtered: bool = False,
        hess_scale: float | None = None,
    ) -> Gradient:
        """Check the options and return the integer gradient.

        Parameters
        ----------
        kind : {"binary", "multiclass", "numeric"}
        n_scores : int
        second, clip, filtered, hess_scale
            As in `GradientOptions`.

        Raises
        ------
        PlanError
            If the loss does not serve ``kind``, or an option is out of range.
        """
        if kind not in self.kinds:
            raise PlanError(
                f"loss={self.name!r} does not serve a {kind} target, only {self.kinds}."
            )
        asked = GradientOptions(
            kind=kind,
            n_scores=n_scores,
            second=second,
            clip=clip,
            filtered=filtered,
            hess_scale=hess_scale,
        )
        most = self.most_hess_scale if second == "hessian" else 1.0
        if hess_scale is not None and not 0 < hess_scale <= most:
            raise PlanError(f"hess_scale={hess_scale!r} must be in (0, {most:g}].")
        return self.integer_gradient(asked)


def table_gradient(asked: GradientOptions, g: NDArray[Any], h: NDArray[Any]) -> TableGradient:
    """Return the gradient of a loss as a table; all that `Loss.integer_gradient` needs if the loss has no kernel.

    Parameters
    ----------
    asked : GradientOptions
    g, h : float64 arrays, (2, TABLE_SIZE) for a binary target, (TABLE_SIZE,) for a numeric one
        First and second derivative by the score at `table_points`, in natural units, before any clip; for a binary
        target, of class 0 and of class 1.

    Raises
    ------
    PlanError
        If the target is multiclass, or a table does not fit.

    Privacy
    -------
    Nothing is taken on trust: the bounds of the returned gradient are maxima over the entries that kernels look up.
    """
    g, h = np.asarray(g, np.float64), np.asarray(h, np.float64)
    if g.shape != h.shape:
        raise PlanError("g and h of a table must have one shape.")
    if asked.kind == "binary" and g.ndim == 1:
        raise PlanError("A table of a binary target has one row per class: np.stack([class 0, 1]).")
    if asked.kind != "multiclass" and g.shape[-1:] != (TABLE_SIZE,):
        raise PlanError(
            f"A table has {TABLE_SIZE} entries a row: compute it at table_points({asked.kind!r})."
        )
    for name, part in (("g", g), ("h", h)):
        if not np.isfinite(part).all():
            raise PlanError(f"{name} of a table is not finite everywhere.")
    if (h < 0).any():
        raise PlanError("h of a table is negative somewhere: a Hessian must not be.")
    a = asked.hess_scale
    if asked.second == "none":
        a = 1.0
    elif a is None:
        kept = h[np.abs(g) <= asked.clip]
        largest = float(kept.max()) if asked.second == "hessian" and kept.size else 1.0
        grad = min(float(np.abs(g).max()), asked.clip)
        a = HALF * grad / (largest or 1.0)
    table = packed_table(g, h, asked.clip, a, second=asked.second, filtered=asked.filtered)
    return TableGradient(asked.kind, table, a)
