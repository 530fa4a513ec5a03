"""What a loss is: a class of options with one method, `Loss.integer_gradient`."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.errors import PlanError
from dpgb_dask.losses.gradients import GRAD_ONE, Gradient, TableGradient, packed_table

HALF = 0.5  # a, over the largest |g|, where nothing is free: adds an eighth to the noise of g
# a slope that changes within ±CORNER (of half the target's range) of the target has the Hessian of a Huber loss there:
# Newton steps then end within a share of CORNER, where steps by count alone would jump past the target for ever
CORNER = 0.1
RESIDUAL_BITS = 16  # a residual step is 2**-16, a gradient step 2**-15
SECOND = ("hessian", "count", "none")


def check_share(name: str, value: Any, *, inclusive: bool) -> None:
    """Raise `PlanError` unless an option is a number in (0, 1), or (0, 1] if ``inclusive``."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 < value <= 1 or (value == 1 and not inclusive):
        raise PlanError(f"{name}={value!r} must be in (0, 1{']' if inclusive else ')'}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientOptions:
    """What a stage asks of a loss's gradient; `Loss.gradient` makes and checks it.

    Parameters
    ----------
    kind : {"binary", "multiclass", "numeric"}
    n_scores : int
        Score columns.
    second : {"hessian", "count", "none"}
        What stands beside g: a · h, a · 1 (every row), or nothing (0).
    clip : float, in (0, 1]
        Bound of |g| in natural units; numeric targets are scaled to [-1, 1].
    filtered : bool
        Rows with |g| above the bound give (0, 0) instead of being clipped (gradient-based data filtering).
    hess_scale : float or None
        a; None for what the loss chooses. `Gradient.hess_scale` tells what was taken.
    """

    kind: str
    n_scores: int
    second: str = "hessian"
    clip: float = 1.0
    filtered: bool = False
    hess_scale: float | None = None

    def __post_init__(self) -> None:
        """Refuse options out of range; the range of ``hess_scale`` is the loss's."""
        if self.second not in SECOND:
            raise PlanError(f"second={self.second!r} must be one of {SECOND}.")
        check_share("clip", self.clip, inclusive=True)

    @property
    def counts(self) -> bool:
        """Whether every row has the second component."""
        return self.second == "count"

    def clip_steps(self, bits: int, most: float = 1.0) -> int:
        """Return the bound of |g|, or ``most`` if that is less, in steps of ``2**-bits``."""
        return max(round(min(most, self.clip) * (1 << bits)), 1)

    def second_steps(self, largest_grad: float) -> int:
        """Return the second component in gradient steps: by default half of the largest |g|."""
        if self.second == "none":
            return 0
        a = HALF * largest_grad if self.hess_scale is None else self.hess_scale
        return max(round(a * GRAD_ONE), 1)


class Loss:
    """A loss, as a value: which targets it serves, its integer gradients and its link. Holds options, no state.

    A loss is a frozen dataclass of its options, of which ``name`` and ``kinds`` are the last. It defines
    `largest_slope` and `integer_gradient`, and what differs of the rest.

    Attributes
    ----------
    name : str
        scikit-learn's name, where it has the loss: "log_loss", "squared_error", "quantile".
    kinds : tuple of str
        Types of target it serves: "binary", "multiclass", "numeric".
    option : str or None
        Name of its one number, which the command line sets, as in "quantile:0.9"; None if there is none.
    most_hess_scale : float
        Largest ``hess_scale`` of a Hessian: a · h <= 1.
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
        """Largest |g| of one score column without a clip, in natural units."""
        raise NotImplementedError

    def integer_gradient(self, asked: GradientOptions) -> Gradient:
        """Return the integer gradient with options that `gradient` has checked."""
        raise NotImplementedError

    def link(self, kind: str) -> str:
        """Return the key of `LINKS` that turns its scores into predictions; by default that of the type of target."""
        return {"binary": "logit", "multiclass": "softmax"}.get(kind, "identity")

    def bounded(self, low: float, high: float) -> Self:  # noqa: ARG002 - most losses see a target scaled to [-1, 1]
        """Return the loss for a target with these public bounds; raises `PlanError` if it cannot have them."""
        return self

    def start(self, mean: float) -> float:
        """Return the score that predicts ``mean`` for every row; by default the mean.

        Parameters
        ----------
        mean : float
            Released, or public. Of a numeric target scaled to [-1, 1] by its bounds; the share of a class.
        """
        return mean

    def gradient(
        self,
        kind: str,
        n_classes: int,
        *,
        second: str = "hessian",
        clip: float = 1.0,
        filtered: bool = False,
        hess_scale: float | None = None,
    ) -> Gradient:
        """Return the integer gradient for some options.

        Parameters
        ----------
        kind : {"binary", "multiclass", "numeric"}
        n_classes : int
            Score columns.
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
            n_scores=n_classes,
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
    """Return the gradient of a loss as a table: all that `Loss.integer_gradient` needs, where no kernel is wanted.

    Parameters
    ----------
    asked : GradientOptions
    g, h : float64 arrays, (2, TABLE_SIZE) of a binary target, (TABLE_SIZE,) of a numeric one
        First and second derivative by the score at `table_points`, in natural units, before any clip. Of a binary
        target for class 0 and class 1.

    Raises
    ------
    PlanError
        If the target has several classes, or a table does not fit.

    Privacy
    -------
    Nothing is taken on trust: the bounds of what is returned are maxima over the entries that kernels look up.
    """
    g, h = np.asarray(g, np.float64), np.asarray(h, np.float64)
    if g.shape != h.shape:
        raise PlanError("g and h of a table must have one shape.")
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
