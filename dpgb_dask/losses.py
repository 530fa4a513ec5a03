"""Losses as integer tables: gradients in steps of 2⁻¹⁵, their exact bounds, and the links back to probabilities.

No float decides a sum: a row's (gradient, Hessian) is looked up from, or computed in, integers, and the sensitivity is
the exact maximum over what the code can produce (DESIGN §3).
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

GRAD_BITS = 15  # one gradient step is 2**-15
GRAD_ONE = 1 << GRAD_BITS
TABLE_SIZE = 4096  # scores in [-8, 8) in steps of 2**-8: at most 3e-4 gradient error per row
TABLE_SHIFT = 8  # score steps (2**-16) >> 8 = table steps (2**-8)


@dataclass(frozen=True, eq=False, slots=True)
class LogisticGradient:
    """Binary log-loss with clipped gradients, as one packed table.

    Parameters
    ----------
    table : (2, TABLE_SIZE) int64
        ``(g << 32) + h`` per label and score, g and h in gradient steps; h is already scaled by ``hess_scale``.
    hess_scale : float
        The Hessian is released as ``hess_scale · h``.
    """

    table: NDArray[np.int64]
    hess_scale: float

    @property
    def max_abs(self) -> int:
        """Largest |g| or h of one row, in steps: the flush bound."""
        g, h = unpack(self.table)
        return int(max(np.abs(g).max(), h.max()))

    @property
    def l2_squared(self) -> int:
        """Exact largest ‖(g, h)‖² of one row, in steps²."""
        g, h = unpack(self.table)
        return int((g * g + h * h).max())


@dataclass(frozen=True, slots=True)
class SquaredGradient:
    """Squared loss with clipped residuals: g = clip(score - y, ±clip_steps) >> 1, h = hess_steps where not clipped.

    Parameters
    ----------
    clip_steps : int
        Bound of the residual in score steps (2⁻¹⁶).
    hess_steps : int
        Released Hessian of an unclipped row, in gradient steps (hess_scale · 2¹⁵).
    """

    clip_steps: int
    hess_steps: int

    @property
    def max_abs(self) -> int:
        """Largest |g| or h of one row, in steps."""
        return max((self.clip_steps + 1) >> 1, self.hess_steps)  # (-c) >> 1 rounds away from zero

    @property
    def l2_squared(self) -> int:
        """Exact bound on ‖(g, h)‖² of one row, in steps²."""
        g = (self.clip_steps + 1) >> 1
        return g * g + self.hess_steps * self.hess_steps


@dataclass(frozen=True, eq=False, slots=True)
class SoftmaxGradient:
    """Unclipped multiclass log-loss in integers.

    With e_k = exp_table[(max score - score_k) >> TABLE_SHIFT], p_k = ⌊e_k · 2¹⁵ / Σe⌋ for k ≠ y and p_y = 2¹⁵ - Σ p_k,
    the gradient g = p - 2¹⁵·1_y has norm at most √2 · 2¹⁵, and so has (g, 2h), with h_k truncated: p is exactly on the
    simplex, where the bound holds in the reals (vertex; equality at (0, ½, ½)), and truncating h only shrinks it.

    Parameters
    ----------
    n_classes : int
    exp_table : (TABLE_SIZE,) int64
        round(2²⁰ · exp(-x)), x in steps of 2⁻⁸; at least 1.
    """

    n_classes: int
    exp_table: NDArray[np.int64]

    @property
    def max_abs(self) -> int:
        """Largest |g| or 2·h of one row, in steps (h <= 1/4)."""
        return GRAD_ONE

    @property
    def l2_squared(self) -> int:
        """Largest ‖(g, 2h)‖² of one row over all classes, in steps²."""
        return 2 * GRAD_ONE * GRAD_ONE


Gradient = LogisticGradient | SquaredGradient | SoftmaxGradient


def unpack(packed: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split ``(g << 32) + h`` with 0 <= h < 2³² into (g, h)."""
    h = packed & 0xFFFFFFFF
    return (packed - h) >> 32, h


def sigmoid(x: NDArray[Any]) -> NDArray[Any]:
    """Logistic function, without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def logistic_gradient(clip: float, hess_scale: float) -> LogisticGradient:
    """Build the table of gradients clipped at ``clip`` and scaled Hessians (0 where clipped).

    Privacy
    -------
    Entries are rounded to nearest; ``l2_squared`` is the exact maximum over the finite table, so rounding is covered.
    """
    x = (np.arange(TABLE_SIZE) - TABLE_SIZE // 2 + 0.5) * 2.0 ** (TABLE_SHIFT - 16)
    p = sigmoid(x)
    table = np.empty((2, TABLE_SIZE), np.int64)
    for y in (0, 1):
        g = p - y
        h = np.where(np.abs(g) > clip, 0.0, p * (1 - p))
        g_steps = np.rint(np.clip(g, -clip, clip) * GRAD_ONE).astype(np.int64)
        h_steps = np.rint(h * hess_scale * GRAD_ONE).astype(np.int64)
        table[y] = (g_steps << 32) + h_steps
    return LogisticGradient(table, hess_scale)


def softmax_gradient(n_classes: int) -> SoftmaxGradient:
    """Build the integer exponent table."""
    x = np.arange(TABLE_SIZE) * 2.0 ** (TABLE_SHIFT - 16)
    return SoftmaxGradient(
        n_classes, np.maximum(np.rint(np.exp(-x) * (1 << 20)), 1).astype(np.int64)
    )


SOFTMAX_HESS_SCALE = 2.0  # free up to c = 2: sup ‖(g, c·h)‖ stays √2 (notes/privacy B1.3)


def clipped_probability(score: NDArray[Any], clip: float = 0.5) -> NDArray[Any]:
    """Invert the clipped link: the q with q·min(1-p, c) = (1-q)·min(p, c), p = sigmoid(score).

    At c = ½ and score <= 0: q = p / (p + ½); symmetric above (notes/default-method §3, stage 5).
    """
    p = sigmoid(score)
    up, down = np.minimum(1 - p, clip), np.minimum(p, clip)
    return down / (up + down)


class Loss(Protocol):
    """A loss, as a value: which targets it serves, its integer gradients and its link. Holds options, no state.

    Attributes
    ----------
    name : str
        scikit-learn's name: "log_loss", "squared_error", "absolute_error", "huber", "quantile", "poisson".
    kinds : tuple of str
        Types of target it serves: "binary", "multiclass", "numeric".
    """

    @property
    def name(self) -> str:
        """Name of the loss."""
        ...

    @property
    def kinds(self) -> tuple[str, ...]:
        """Types of target it serves."""
        ...

    def link(self, kind: str) -> str:
        """Return the key of `LINKS` that turns its scores into predictions."""
        ...

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
        """Return the integer gradient.

        Parameters
        ----------
        kind : {"binary", "multiclass", "numeric"}
        n_classes : int
            Score columns.
        second : {"hessian", "count", "none"}
            What stands beside g: a · h, a · 1 (every row), or nothing (0).
        clip : float
            Bound of |g| in natural units; numeric targets are scaled to [-1, 1].
        filtered : bool
            Rows with |g| above the bound give (0, 0) instead of being clipped (gradient-based data filtering).
        hess_scale : float or None
            a; None for the largest that is free, or 1/2 for a count.
        """
        ...


def default_loss(kind: str) -> Loss:
    """Return the loss of a target's type: log-loss, or the squared error."""
    raise NotImplementedError
