"""Integer gradients: what a row adds to a sum, in steps of 2⁻¹⁵, and its exact bound.

No float enters a sum: a row's gradient and second component are looked up in an integer table or computed in integers,
and every bound is a maximum over what those integers can produce (docs/design.md §3).

The second component is used for leaf values. It is ``a · h`` (the Hessian, 0 where g is clipped), ``a · 1`` on every
row (``always``), or 0 (a = 0). With ``filtered``, a row with |g| above the clip adds (0, 0) instead of a clipped g
(gradient-based data filtering, DPBoost §3.1). Either way, what a row adds depends on no other row, so the bounds hold
for adding or removing one row (docs/privacy.md P1).

A released model reaches only some scores. `Bounded.within` clamps a table to them: outside them, the table has the
entry at the nearer end. So its bounds are lower, and still hold for every score there is.

A gradient is either a table that a kernel looks up (`LogisticGradient`, `TableGradient`) or the options of a kernel
that computes it. Its class lists the extremes of what a row can add, and `Bounded` derives every bound from them.

These classes are the only ones that kernels compute. `check_gradient` refuses every other class, also a subclass,
because it could state bounds that no kernel keeps. A loss outside the package returns a `TableGradient`: the table is
data, and its bounds are maxima over its entries, whoever filled it in.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import isqrt
from typing import Any, ClassVar, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.errors import PlanError
from dpgb_dask.frozen import altered, frozen, settle
from dpgb_dask.scalars import finite_float, same_text, whole_number

GRAD_BITS = 15  # one gradient step is 2**-15
GRAD_ONE = 1 << GRAD_BITS
TABLE_SIZE = 4096  # scores in [-8, 8) in steps of 2**-8: at most 3e-4 gradient error per row
TABLE_SHIFT = 8  # score steps (2**-16) >> 8 = table steps (2**-8)
# a table is clamped at multiples of so many steps: a model that grows by little then keeps its table, and with it the
# table's bounds, its hash and the shape of its noise. Up to 3 steps more at each end raise the bound of |g| by what g
# changes over them. A step is 2**-8 of a score: .003 at most for log-loss, whose slope is up to 1/4, and .012 for
# Poisson's rates, with slopes up to 1; for the table of a loss outside the package it is what its entries say
STRIDE = 4
RESIDUAL_SHIFT = 6  # residuals of targets scaled to [-1, 1] in [-2, 2), in steps of 2**-10
SOFTMAX_HESS_SCALE = 2.0  # h is free up to c = 2: sup ‖(g, c·h)‖ stays √2 (docs/privacy.md P2)
# free for log-loss: with u = |p - y|, u²(1 + a²(1 - u)²) <= 1 iff a² <= (1 + u)/(u²(1 - u)), least at u = 1/φ, φ⁵ there
FREE_HESS_SCALE = ((1 + 5**0.5) / 2) ** 2.5  # docs/privacy.md P2
# a rate is exp(score - 2) of the largest target: from e⁻¹⁰ of it at score -8, about a gradient step, to the whole at 2
RATE_SHIFT = 2.0
NORM_SHIFT = 20  # squared norms of a row, at most 2 · 2³⁰, in steps of 2²⁰: .1 % of the norm
NORM_SIZE = (2 << (2 * GRAD_BITS - NORM_SHIFT)) + 1
MOST_EXP = 1 << 20  # 2**20 · 2**15 of 2**10 classes stays below 2**63
TARGET_BITS = 17  # a numeric target, scaled to [-1, 1], spans 2**17 score steps
TARGET_END = 1 << (TARGET_BITS - 1)


Extremes = tuple[NDArray[np.int64], NDArray[np.int64]]


def _check_steps(name: str, value: Any, low: int, high: int) -> int:
    """Return an option as a Python int.

    Raises
    ------
    PlanError
        If it is not a whole number of steps in [low, high], for which the bounds are stated.
    """
    own = whole_number(value)
    if own is None or not low <= own <= high:
        raise PlanError(f"{name}={value!r} must be a whole number of steps in [{low}, {high}].")
    return own


def _settle_steps(owner: Any, low: int, high: int, *names: str) -> None:
    """Check options with `_check_steps`, and convert them to Python ints."""
    for name in names:
        settle(owner, **{name: _check_steps(name, getattr(owner, name), low, high)})


def _settle_flags(owner: Any, *names: str) -> None:
    """Convert options to Python bools, so that bounds and kernels read the same value."""
    settle(owner, **{name: bool(getattr(owner, name)) for name in names})


def _settle_table(owner: Any, name: str, shape: tuple[int, ...]) -> None:
    """Keep a read-only copy of an integer table; raise `PlanError` unless it has the shape that kernels read."""
    given = getattr(owner, name)
    own = frozen(given) if isinstance(given, np.ndarray) else None
    if own is None or own.shape != shape or own.dtype != np.int64:
        raise PlanError(f"{name} must be an int64 array of shape {shape}.")
    settle(owner, **{name: own})


def _settle_scale(owner: Any, name: str) -> None:
    """Convert a factor to a Python float; raise `PlanError` unless it is a finite number above 0."""
    value = getattr(owner, name)
    number = finite_float(value)
    if number is None or number <= 0:
        raise PlanError(f"{name}={value!r} must be a finite number above 0.")
    settle(owner, **{name: number})


def _settle_kind(owner: Any, kinds: tuple[str, ...], why: str = "") -> None:
    """Keep the type of target as a text of our own; raise `PlanError` unless it is one of ``kinds``."""
    kind = same_text(owner.kind, kinds)
    if kind is None:
        raise PlanError(
            f"kind={owner.kind!r} of a {type(owner).__name__} must be one of {kinds}{why}."
        )
    settle(owner, kind=kind)


class _Bounds(NamedTuple):
    """Largest |g|, second component and g² + h² of one score column of one row, and the bound `l1`, in steps."""

    grad: int
    second: int
    l2_squared: int
    l1: int


class Bounded:
    """The bounds of every gradient, derived from the extremes of what one row can add.

    A subclass has ``kinds`` (types of target), `extremes`, ``hess_scale`` (a: the second component is released as a ·
    h; 1 if there is none) and `counts`. The bounds follow from these. A gradient with several score columns overrides
    the bounds of a whole row.
    """

    # found when first asked for; no field, so it is neither pickled nor part of a digest
    __slots__ = ("_found",)

    _found: _Bounds

    def within(self, low: int, high: int) -> Self:  # noqa: ARG002 - most gradients know no scores
        """Return a gradient that is the same at scores from ``low`` to ``high`` (score steps), with bounds for these.

        It is kept by whole strides: up to ``STRIDE`` - 1 steps of its table beyond either end count too. At all other
        scores it has a value that it takes at one of the kept steps, and its bounds are over these, so they hold
        whatever the scores are. Where all g would be 0 there is nothing to bound noise by, and the gradient stays as it
        is.
        """
        return self

    def extremes(self) -> Extremes:
        """Return pairs of |g| and second component, in steps, of one score column: every row is within one of them."""
        raise NotImplementedError

    @property
    def _bounds_found(self) -> _Bounds:
        if not hasattr(self, "_found"):
            g, h = self.extremes()
            grad, second, squared = (int(part.max()) for part in (g, h, g * g + h * h))
            settle(self, _found=_Bounds(grad, second, squared, self.weighted(1, 1)))
        return self._found

    @property
    def max_abs(self) -> int:
        """Largest |g| or second component in one score column of one row, in steps; decides when kernels flush sums."""
        return max(self._bounds_found.grad, self._bounds_found.second)

    @property
    def largest_grad(self) -> int:
        """Largest |g| of one score column, in steps."""
        return self._bounds_found.grad

    def weighted(self, of_grad: int, of_second: int) -> int:
        """Return the bound of Σ(|of_grad · g| + |of_second| · h) of one row over all score columns, in steps."""
        g, h = self.extremes()
        return int((abs(of_grad) * g + abs(of_second) * h).max())

    @property
    def l2_squared(self) -> int:
        """Bound of ‖(g, h)‖² of one row over all score columns, in steps²."""
        return self._bounds_found.l2_squared

    @property
    def l1(self) -> int:
        """Bound of Σ(|g| + h) of one row over all score columns, in steps."""
        return self._bounds_found.l1

    @property
    def grad_width(self) -> int:
        """Width of an interval that holds 0 and the g of every row, in steps; decides the range of a gain."""
        return 2 * self.largest_grad


class _Table(Bounded):
    """A gradient as a packed table, whose bounds are found by looking at every entry."""

    __slots__ = ("_measures",)  # as `Bounded._found`

    table: NDArray[np.int64]
    _measures: NDArray[np.int64]

    @property
    def _measured(self) -> NDArray[np.int64]:
        """The |g|, h, g² + h² and |g| + h of all entries: (4, …)."""
        if not hasattr(self, "_measures"):
            g, h = unpack(self.table)
            g = np.abs(g)
            settle(self, _measures=frozen(np.stack([g, h, g * g + h * h, g + h])))
        return self._measures

    def extremes(self) -> Extremes:
        """Return all entries."""
        return self._measured[0], self._measured[1]

    @property
    def _bounds_found(self) -> _Bounds:
        if not hasattr(self, "_found"):
            found = np.maximum.reduce(self._measured, axis=tuple(range(1, self._measured.ndim)))
            settle(self, _found=_Bounds(*found.tolist()))
        return self._found

    @property
    def grad_width(self) -> int:
        """Width of the least interval that holds 0 and every entry's g."""
        g, _ = unpack(self.table)
        return max(int(g.max()), 0) - min(int(g.min()), 0)

    @property
    def counts(self) -> bool:
        """Whether every row that is not filtered out has h = `GRAD_ONE`."""
        g, h = unpack(self.table)
        return bool(((h == GRAD_ONE) | ((g == 0) & (h == 0))).all() and (h == GRAD_ONE).any())

    def _reached(self, low: int, high: int, shift: int) -> Self:
        """Return the gradient with the entries of these values, by whole strides; unchanged if all their g are 0."""
        made: Self = _table_within(self, *_steps_of(low, high, shift))
        return made

    def _settle(self, shape: tuple[int, ...]) -> None:
        """Keep a copy of the table; raise `PlanError` unless kernels can read it and packed sums hold its entries."""
        _settle_table(self, "table", shape)
        if self.max_abs > GRAD_ONE:
            raise PlanError(
                "table holds steps above 2**15. Clip it, or choose a smaller hess_scale."
            )


class _Computed(Bounded):
    """Base of gradients whose second component is ``hess_steps``, or a fraction of it."""

    __slots__ = ()

    hess_steps: int

    @property
    def hess_scale(self) -> float:
        """Factor of the second component, which is released as ``hess_scale`` times the Hessian or times 1."""
        return self.hess_steps / GRAD_ONE or 1.0

    @property
    def counts(self) -> bool:
        """Whether every row that is not filtered out has h = `GRAD_ONE`."""
        return self._on_every_row and self.hess_steps == GRAD_ONE

    @property
    def _on_every_row(self) -> bool:
        """Whether the second component is ``hess_steps`` on every row that is not filtered out: a count."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False, slots=True)
class LogisticGradient(_Table):
    """Binary log-loss, as one packed table.

    Parameters
    ----------
    table : (2, TABLE_SIZE) int64
        ``(g << 32) + h`` per label and score, g and h in gradient steps; h is already scaled by ``hess_scale``.
    hess_scale : float
        The Hessian is released as ``hess_scale · h``.
    """

    kinds: ClassVar[tuple[str, ...]] = ("binary",)

    table: NDArray[np.int64]
    hess_scale: float

    def __post_init__(self) -> None:
        """Refuse a table that kernels would not look up, or whose bounds could overflow."""
        self._settle((2, TABLE_SIZE))
        _settle_scale(self, "hess_scale")

    def within(self, low: int, high: int) -> Self:
        """Return the gradient with the columns of these scores, as in `Bounded.within`."""
        return self._reached(low, high, TABLE_SHIFT)


@dataclass(frozen=True, eq=False, slots=True)
class TableGradient(_Table):
    """Any gradient of one score, as one packed table indexed by label and score, or by the residual.

    For a binary target, the index is the label and score >> `TABLE_SHIFT`, as in `LogisticGradient`. For a numeric
    target, it is (score - y) >> `RESIDUAL_SHIFT`: the residual, rounded down to a multiple of 2⁻¹⁰ of half the target's
    range. Values beyond the table have the entry at its end. `table_points` returns the middles of the steps.

    The bounds are exact maxima over all entries, whatever they are; nothing that their author claims is used.

    Parameters
    ----------
    kind : {"binary", "numeric"}
    table : (2, TABLE_SIZE) int64, or (TABLE_SIZE,) int64 if numeric
        ``(g << 32) + h``, g and h in gradient steps; h is already scaled by ``hess_scale``.
    hess_scale : float
        The second component is released as ``hess_scale · h``.
    """

    kind: str
    table: NDArray[np.int64]
    hess_scale: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a table that kernels would not look up, or whose bounds could overflow."""
        _settle_kind(self, ("binary", "numeric"), ": a table has one score")
        self._settle((TABLE_SIZE,) if self.kind == "numeric" else (2, TABLE_SIZE))
        _settle_scale(self, "hess_scale")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The type of target it was made for."""
        return (self.kind,)

    def within(self, low: int, high: int) -> Self:
        """Return the gradient with the entries of these scores, or of their residuals; as in `Bounded.within`."""
        if self.kind == "numeric":  # residuals score - y, with y in ±2**16 score steps
            low, high = low - TARGET_END, high + TARGET_END
            return self._reached(low, high, RESIDUAL_SHIFT)
        return self._reached(low, high, TABLE_SHIFT)


@dataclass(frozen=True, slots=True)
class SquaredGradient(_Computed):
    """Squared loss with clipped residuals: g = clip(score - y, ±clip_steps) >> 1; h = hess_steps on rows not clipped.

    A row can reach |g| = (clip_steps + 1) >> 1, as (-c) >> 1 rounds away from zero, with hess_steps as second
    component.

    Parameters
    ----------
    clip_steps : int
        Bound of the residual in score steps (2⁻¹⁶).
    hess_steps : int
        Second component, in gradient steps (hess_scale · 2¹⁵); 0 for none.
    always : bool
        Whether clipped rows have the second component too.
    filtered : bool
        Rows beyond the bound add (0, 0).
    """

    kinds: ClassVar[tuple[str, ...]] = ("numeric",)

    clip_steps: int
    hess_steps: int
    always: bool = False
    filtered: bool = False

    def __post_init__(self) -> None:
        """Refuse options that the bounds are not stated for."""
        _settle_steps(self, 0, 1 << 30, "clip_steps", "hess_steps")
        _settle_flags(self, "always", "filtered")

    @property
    def curved_steps(self) -> int:
        """Largest residual of a row that is not clipped, and so has a Hessian, in score steps."""
        return self.clip_steps

    def extremes(self) -> Extremes:
        """Return what a row at the clip adds."""
        return _one_row((self.clip_steps + 1) >> 1, self.hess_steps)

    @property
    def _on_every_row(self) -> bool:
        return self.always or self.filtered


@dataclass(frozen=True, slots=True)
class FreeSquaredGradient(_Computed):
    """As `SquaredGradient`, with a Hessian that costs nothing: h = hess_steps on rows up to ``curved_steps``.

    A row has it as long as ‖(g, h)‖ is then at most the largest |g|: every row but those whose residual is above
    √(1 - a²) of the clip, with a the second component over the largest |g| (docs/privacy.md P2).

    Parameters
    ----------
    clip_steps : int, >= 1
        Bound of the residual in score steps (2⁻¹⁶).
    hess_steps : int, >= 1
        Second component, in gradient steps (hess_scale · 2¹⁵); at most (clip_steps + 1) >> 1.
    """

    kinds: ClassVar[tuple[str, ...]] = ("numeric",)
    always: ClassVar[bool] = False
    filtered: ClassVar[bool] = False

    clip_steps: int
    hess_steps: int

    def __post_init__(self) -> None:
        """Refuse options that the bounds are not stated for."""
        _settle_steps(self, 1, 1 << 30, "clip_steps")
        _settle_steps(self, 1, (self.clip_steps + 1) >> 1, "hess_steps")

    @property
    def curved_steps(self) -> int:
        """Largest residual of a row that has the second component, in score steps."""
        largest = (self.clip_steps + 1) >> 1
        return 2 * isqrt(largest**2 - self.hess_steps**2)

    def extremes(self) -> Extremes:
        """Return what a row at the clip adds, and one at the largest residual with a second component."""
        grad = [(self.clip_steps + 1) >> 1, self.curved_steps >> 1]  # an even number
        return np.array(grad, np.int64), np.array([0, self.hess_steps], np.int64)

    @property
    def _on_every_row(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class SlopeGradient(_Computed):
    """Absolute and quantile loss: g = ``above`` if score > y, -``below`` if score < y, 0 if they are equal.

    Their Hessian is 0 almost everywhere, so every row has the same second component, which counts rows.

    Parameters
    ----------
    below, above : int, >= 0
        Slopes, in gradient steps.
    hess_steps : int
        Second component of every row, in gradient steps; 0 for none.
    curvature : float
        The value that one unit of the second component stands for: 1 for a count, more for the Hessian of a rounded
        corner.
    """

    kinds: ClassVar[tuple[str, ...]] = ("numeric",)

    below: int
    above: int
    hess_steps: int
    curvature: float = 1.0

    def __post_init__(self) -> None:
        """Refuse options that the bounds are not stated for."""
        _settle_steps(self, 0, GRAD_ONE, "below", "above", "hess_steps")
        _settle_scale(self, "curvature")

    def extremes(self) -> Extremes:
        """Return the steeper slope."""
        return _one_row(max(self.below, self.above), self.hess_steps)

    @property
    def hess_scale(self) -> float:
        """Factor of the second component, which is released as ``hess_scale`` times ``curvature``."""
        return self.hess_steps / GRAD_ONE / self.curvature or 1.0

    @property
    def _on_every_row(self) -> bool:
        return self.curvature == 1  # otherwise it stands for a Hessian


@dataclass(frozen=True, eq=False, slots=True)
class PoissonGradient(_Computed):
    """Poisson loss with a log link, in shares of the target's largest value: g = clip(rate - y), h = a · rate.

    A target t in [-2¹⁶, 2¹⁶] score steps is y = base + ((t + 2¹⁶)(2¹⁵ - base) >> 17) gradient steps, every whole number
    from ``base`` to 2¹⁵. So at a rate r the largest |g| is max(r - base, 2¹⁵ - r), or the clip, and the bounds are
    maxima over the 4096 rates of the table.

    Parameters
    ----------
    rate : (TABLE_SIZE,) int64
        Rate per score, in gradient steps: 2¹⁵ is the target's largest value.
    base : int
        The target's lowest value, in the same steps.
    clip_steps : int
        Bound of |g|.
    hess_steps : int
        a · 2¹⁵; 0 for no second component.
    always : bool
        Whether the second component is hess_steps on every row, instead of a · rate on rows that are not clipped.
    filtered : bool
        Rows beyond the bound add (0, 0).
    """

    kinds: ClassVar[tuple[str, ...]] = ("numeric",)

    rate: NDArray[np.int64]
    base: int
    clip_steps: int
    hess_steps: int
    always: bool = False
    filtered: bool = False

    def __post_init__(self) -> None:
        """Refuse options that the bounds are not stated for."""
        _settle_table(self, "rate", (TABLE_SIZE,))
        _check_steps("the least of rate", self.rate.min(), 0, GRAD_ONE)
        _check_steps("the largest of rate", self.rate.max(), 0, GRAD_ONE)
        _settle_steps(self, 0, GRAD_ONE, "base", "clip_steps", "hess_steps")
        _settle_flags(self, "always", "filtered")

    def extremes(self) -> Extremes:
        """Return, per rate, the largest |g| and the largest second component."""
        r = self.rate
        # y takes every step of [base, 2**15], so |rate - y| takes every value from `nearest` to the distance of the
        # farther end
        nearest = np.maximum(self.base - r, 0)
        kept = nearest <= self.clip_steps
        g = np.minimum(np.maximum(r - self.base, GRAD_ONE - r), self.clip_steps)
        h = np.full_like(r, self.hess_steps) if self.always else (self.hess_steps * r) >> GRAD_BITS
        if self.filtered:
            return np.where(kept, g, 0), np.where(kept, h, 0)
        return g, h if self.always else np.where(kept, h, 0)

    def within(self, low: int, high: int) -> Self:
        """Return the gradient with the rates of these scores, as in `Bounded.within`."""
        made: Self = _rates_within(self, *_steps_of(low, high, TABLE_SHIFT))
        return made

    @property
    def _on_every_row(self) -> bool:
        return self.always


@dataclass(frozen=True, eq=False, slots=True)
class SoftmaxGradient(_Computed):
    """Multiclass log-loss in integers.

    With e_k = exp_table[(max score - score_k) >> TABLE_SHIFT], p_k = ⌊e_k · 2¹⁵ / Σe⌋ for k ≠ y and p_y = 2¹⁵ - Σ p_k,
    the gradient is g = p - 2¹⁵·1_y, each |g_k| at most ``clip_steps``, and h_k = ⌊a · p_k (1 - p_k)⌋.

    p is exactly on the integer simplex. With u = 2¹⁵ - p_y, a row's squared norm is s(u) + Σ_{k≠y} s(p_k) where
    Σ p_k = u and s is known at each of the 2¹⁵ + 1 whole numbers. For any slope λ this is at most
    max_u (s(u) + λu) + (K - 1) max_p (s(p) - λp); the bound is the least over 128 slopes. Without a clip and with a =
    2, λ = 1 gives 2 in natural units, which p = (1, 0, …) attains: the diagonal Hessian is free (docs/privacy.md P2).

    Parameters
    ----------
    n_classes : int
    exp_table : (TABLE_SIZE,) int64
        round(2²⁰ · exp(-x)), x in steps of 2⁻⁸; at least 1.
    clip_steps : int
        Bound of each |g_k|; 2¹⁵ clips nothing.
    hess_steps : int
        a · 2¹⁵; 0 for no second component.
    always : bool
        Whether the second component is hess_steps in every score column of every row.
    filtered : bool
        Rows with one |g_k| beyond the bound add (0, 0) to every column.
    """

    kinds: ClassVar[tuple[str, ...]] = ("multiclass",)

    n_classes: int
    exp_table: NDArray[np.int64]
    clip_steps: int = GRAD_ONE
    hess_steps: int = round(SOFTMAX_HESS_SCALE * GRAD_ONE)
    always: bool = False
    filtered: bool = False

    def __post_init__(self) -> None:
        """Refuse options that the bounds are not stated for."""
        _settle_steps(self, 2, 1 << 10, "n_classes")
        _settle_table(self, "exp_table", (TABLE_SIZE,))
        _check_steps("the least of exp_table", self.exp_table.min(), 1, MOST_EXP)
        _check_steps("the largest of exp_table", self.exp_table.max(), 1, MOST_EXP)
        _settle_flags(self, "always", "filtered")
        _settle_steps(self, 0, GRAD_ONE, "clip_steps")
        _settle_steps(self, 0, GRAD_ONE if self.always else 4 * GRAD_ONE, "hess_steps")

    @property
    def n_scores(self) -> int:
        """Number of score columns."""
        return self.n_classes

    def extremes(self) -> Extremes:
        """Return the largest |g| and h of one column (p(1 - p) <= 1/4); they need not occur in the same row."""
        hess = self.hess_steps if self.always else self.hess_steps >> 2
        return _one_row(min(self.clip_steps, GRAD_ONE), hess)

    @property
    def l2_squared(self) -> int:
        """Bound of ‖(g, h)‖² of one row over all classes, in steps²."""
        return self._bounds[0]

    def weighted(self, of_grad: int, of_second: int) -> int:
        """Return a bound of Σ(|of_grad · g| + |of_second| · h) of one row over all classes, in steps."""
        return max(abs(of_grad), abs(of_second)) * self._bounds[1]

    @property
    def _bounds(self) -> tuple[int, int]:
        return _softmax_bounds(
            self.n_classes, self.clip_steps, self.hess_steps, self.always, self.filtered
        )

    @property
    def _on_every_row(self) -> bool:
        return self.always


@dataclass(frozen=True, eq=False, slots=True)
class ClippedSoftmaxGradient(_Computed):
    """Multiclass log-loss in integers, with the gradient of a row clipped in norm over all score columns.

    With (g, h) as in `SoftmaxGradient` without a clip, and s = Σ g_k², a row adds (w g, w h) / 2¹⁵, rounded towards
    zero, where w is the table's entry at s >> `NORM_SHIFT`.

    So a row's bounds are maxima over the entries. With s at most the highest value s_i of entry i, Σ (w g)² <= w² s_i.
    All g but that of the row's own class are at least 0 and sum to minus it, so it is at most √(s_i (K - 1)/K), and
    Σ |g| twice that. What h adds is bounded by the slopes of `SoftmaxGradient`, times w (docs/privacy.md P2).

    Parameters
    ----------
    n_classes : int
    exp_table : (TABLE_SIZE,) int64
        As in `SoftmaxGradient`.
    shrink : (NORM_SIZE,) int64
        w, in steps of 2⁻¹⁵: at most 2¹⁵.
    hess_steps : int
        a · 2¹⁵.
    curvature : float
        The value that one unit of the second component stands for.
    """

    kinds: ClassVar[tuple[str, ...]] = ("multiclass",)

    n_classes: int
    exp_table: NDArray[np.int64]
    shrink: NDArray[np.int64]
    hess_steps: int
    curvature: float = 1.0

    def __post_init__(self) -> None:
        """Refuse options that the bounds are not stated for."""
        _settle_steps(self, 2, 1 << 10, "n_classes")
        _settle_table(self, "exp_table", (TABLE_SIZE,))
        _check_steps("the least of exp_table", self.exp_table.min(), 1, MOST_EXP)
        _check_steps("the largest of exp_table", self.exp_table.max(), 1, MOST_EXP)
        _settle_table(self, "shrink", (NORM_SIZE,))
        _check_steps("the least of shrink", self.shrink.min(), 0, GRAD_ONE)
        _check_steps("the largest of shrink", self.shrink.max(), 0, GRAD_ONE)
        _settle_steps(self, 0, 4 * GRAD_ONE, "hess_steps")
        _settle_scale(self, "curvature")

    @property
    def n_scores(self) -> int:
        """Number of score columns."""
        return self.n_classes

    @property
    def hess_scale(self) -> float:
        """Factor of the second component, which is released as ``hess_scale`` times ``curvature`` times p (1 - p)."""
        return self.hess_steps / GRAD_ONE / self.curvature or 1.0

    def _grads(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, per entry, the largest Σ g² before the clip, and the largest |g| of one column after it."""
        squared = np.minimum((np.arange(1, NORM_SIZE + 1) << NORM_SHIFT) - 1, 2 * GRAD_ONE**2)
        # the square root of floats is right to a unit in the last place, far less than a step
        column = np.sqrt(squared * ((self.n_classes - 1) / self.n_classes)).astype(np.int64) + 1
        return squared, (self.shrink * np.minimum(column, GRAD_ONE)) >> GRAD_BITS

    def extremes(self) -> Extremes:
        """Return the largest |g| and h of one column (p(1 - p) <= 1/4); they need not occur in the same row."""
        return _one_row(int(self._grads()[1].max()), self.hess_steps >> 2)

    @property
    def l2_squared(self) -> int:
        """Bound of ‖(g, h)‖² of one row over all classes, in steps²."""
        squared, _ = self._grads()
        most = squared + _hess_bounds(self.n_classes, self.hess_steps)[0]
        return int(((self.shrink**2 * most) >> (2 * GRAD_BITS)).max()) + 1

    def weighted(self, of_grad: int, of_second: int) -> int:
        """Return the bound of Σ(|of_grad · g| + |of_second| · h) of one row over all classes, in steps."""
        of_grad, of_second = abs(of_grad), abs(of_second)
        _, column = self._grads()
        h = (self.shrink * _hess_bounds(self.n_classes, self.hess_steps)[1]) >> GRAD_BITS
        return int((2 * of_grad * column + of_second * h).max()) + 2 * max(of_grad, of_second)

    @property
    def _on_every_row(self) -> bool:
        return False


@lru_cache(maxsize=64)
def _softmax_bounds(
    n_classes: int, clip_steps: int, hess_steps: int, always: bool, filtered: bool
) -> tuple[int, int]:
    """Return bounds of the squared L2 norm and of the L1 norm, by the derivation in `SoftmaxGradient`.

    ``p`` is |g| before clipping: p_k for another class, 1 - p_y for the row's own class. h is the same function of
    both.
    """
    p = np.arange((min(clip_steps, GRAD_ONE) if filtered else GRAD_ONE) + 1, dtype=np.int64)
    g = np.minimum(p, clip_steps)
    if always:
        h = np.full_like(p, hess_steps)
    else:
        h = np.where(p <= clip_steps, (hess_steps * p * (GRAD_ONE - p)) >> (2 * GRAD_BITS), 0)
    return (
        _most(g * g + h * h, n_classes - 1, GRAD_ONE),
        _most(g + h, n_classes - 1, 1),
    )


@lru_cache(maxsize=64)
def _hess_bounds(n_classes: int, hess_steps: int) -> tuple[int, int]:
    """Return bounds of Σ h² and Σ h of one row of a softmax, over all classes."""
    p = np.arange(GRAD_ONE + 1, dtype=np.int64)
    h = (hess_steps * p * (GRAD_ONE - p)) >> (2 * GRAD_BITS)
    return _most(h * h, n_classes - 1, GRAD_ONE), _most(h, n_classes - 1, 1)


def _most(part: NDArray[np.int64], n_others: int, unit: int) -> int:
    """Bound part[u] + Σ part[p_k] over n_others integers p_k >= 0 with Σ p_k = u, by slopes from 0 to 8 ``unit``."""
    p = np.arange(len(part), dtype=np.int64)
    fine = 16  # slopes per unit; 16 · 2**36 · 250 < 2**63
    bounds = []
    for step in range(8 * fine):
        line = step * unit * p
        bounds.append(int((fine * part + line).max()) + n_others * int((fine * part - line).max()))
    return min(bounds) // fine


@dataclass(frozen=True, slots=True)
class LabelGradient(_Computed):
    """The target itself, independent of the score: its sums give the means of leaves (random forests), or just counts.

    g = -1 in the score column of the row's class (for a binary target, in the only column for class 1), or -y for a
    numeric target scaled to [-1, 1]. So -Σg / Σh is a mean. The second component is the same in every score column.

    Parameters
    ----------
    kind : {"binary", "multiclass", "numeric"}
    n_scores : int
    hess_steps : int
        Second component, in gradient steps.
    average : bool
        False: g = 0, so that only rows are counted.
    """

    kind: str
    n_scores: int
    hess_steps: int
    average: bool = True

    def __post_init__(self) -> None:
        """Refuse options that the bounds are not stated for."""
        _settle_kind(self, ("binary", "multiclass", "numeric"))
        _settle_steps(self, 1, 1 << 10 if self.kind == "multiclass" else 1, "n_scores")
        _settle_steps(self, 0, GRAD_ONE, "hess_steps")
        _settle_flags(self, "average")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The type of target it was made for."""
        return (self.kind,)

    def extremes(self) -> Extremes:
        """Return the extreme of the column of the row's class."""
        return _one_row(GRAD_ONE if self.average else 0, self.hess_steps)

    @property
    def l2_squared(self) -> int:
        """Exact largest ‖(g, h)‖² of one row: one column has g, all have h."""
        return self.largest_grad**2 + self.n_scores * self.hess_steps**2

    def weighted(self, of_grad: int, of_second: int) -> int:
        """Return the exact largest Σ(|of_grad · g| + |of_second| · h) of one row."""
        grad = GRAD_ONE if self.average else 0
        return abs(of_grad) * grad + abs(of_second) * self.n_scores * self.hess_steps

    @property
    def hess_scale(self) -> float:
        """Factor of the second component, which is released as ``hess_scale`` times 1."""
        return self.hess_steps / GRAD_ONE or 1.0

    @property
    def _on_every_row(self) -> bool:
        return True


Gradient = (
    LogisticGradient
    | TableGradient
    | SquaredGradient
    | FreeSquaredGradient
    | SlopeGradient
    | PoissonGradient
    | SoftmaxGradient
    | ClippedSoftmaxGradient
    | LabelGradient
)
GRADIENTS = frozenset(get_args(Gradient))


def check_gradient(gradient: Any, n_scores: int | None = None) -> None:
    """Refuse a gradient of a class that the kernels do not compute, or of another number of score columns.

    Parameters
    ----------
    gradient : Any
    n_scores : int, optional
        Score columns of the query or target that it is for.

    Raises
    ------
    PlanError
        If its class is not exactly one of those here; a subclass could state bounds that the kernel does not keep.
    """
    if type(gradient) not in GRADIENTS:
        known = sorted(known.__name__ for known in GRADIENTS)
        raise PlanError(
            f"{type(gradient).__name__} is no gradient that the kernels know. Choose one of {known}."
        )
    made = getattr(gradient, "n_scores", 1)  # all others have one score
    if n_scores is not None and made != n_scores:
        raise PlanError(
            f"{type(gradient).__name__} has n_scores={made}, where n_scores={n_scores} was asked."
        )


def unpack(packed: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split ``(g << 32) + h`` with 0 <= h < 2³² into (g, h)."""
    return packed >> 32, packed & 0xFFFFFFFF


def _steps_of(low: int, high: int, shift: int) -> tuple[int, int]:
    """Return the first and the last step of a table that values from ``low`` to ``high`` look up, by whole strides."""
    first, last = (low >> shift) + TABLE_SIZE // 2, (high >> shift) + TABLE_SIZE // 2
    first, last = first - first % STRIDE, last - last % STRIDE + STRIDE - 1
    return min(max(first, 0), TABLE_SIZE - 1), min(max(last, 0), TABLE_SIZE - 1)


def _clamped(table: NDArray[np.int64], first: int, last: int) -> NDArray[np.int64]:
    """Return a table with, at each step, the entry of the nearest step from ``first`` to ``last``."""
    out = table.copy()
    out[..., :first] = table[..., first, None]
    out[..., last + 1 :] = table[..., last, None]
    return out


# in most rounds of small steps, the model reaches the steps that it reached before
@lru_cache(maxsize=16)
def _table_within(gradient: Any, first: int, last: int) -> Any:
    """Return a gradient with its table clamped to these steps; unchanged if all its g would be 0.

    Every entry is one of the gradient's, which were checked when it was made, and every step from ``first`` to ``last``
    has its own: the bounds are maxima over these.
    """
    table = _clamped(gradient.table, first, last)
    table.setflags(write=False)
    measured = gradient._measured  # noqa: SLF001 - of this file
    if measured.shape[-1] < TABLE_SIZE:  # of a clamped table: not of every step
        made = altered(gradient, table=table)
    else:
        made = altered(gradient, table=table, _measures=measured[..., first : last + 1])
    return made if made.largest_grad else gradient


@lru_cache(maxsize=16)  # as `_table_within`
def _rates_within(gradient: Any, first: int, last: int) -> Any:
    """Return a gradient with its rates clamped to these steps; unchanged if all its g would be 0."""
    made = replace(gradient, rate=_clamped(gradient.rate, first, last))
    return made if made.largest_grad else gradient


def _one_row(g: int, h: int) -> Extremes:
    return np.array([g], np.int64), np.array([h], np.int64)


def sigmoid(x: NDArray[Any]) -> NDArray[Any]:
    """Return the logistic function, without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def table_points(kind: str) -> NDArray[np.float64]:
    """Return the points at which a loss computes its table, the middles of its steps.

    Parameters
    ----------
    kind : {"binary", "numeric"}
        Type of the target.

    Returns
    -------
    (TABLE_SIZE,) float64
        For two classes scores, from -8 to 8; for a number residuals, score - y, of a target scaled to [-1, 1]: from
        -2 + 2⁻¹¹ to 2 - 2⁻¹¹.

    Raises
    ------
    PlanError
        If the kind is another one.
    """
    if kind not in ("binary", "numeric"):
        raise PlanError(f"table_points({kind!r}): a table is of one of {('binary', 'numeric')}.")
    steps = np.arange(TABLE_SIZE, dtype=np.float64)
    shift = RESIDUAL_SHIFT if kind == "numeric" else TABLE_SHIFT
    return (steps - TABLE_SIZE // 2 + 0.5) * 2.0 ** (shift - 16)


def packed_table(
    g: NDArray[np.float64],
    h: NDArray[np.float64],
    clip: float,
    hess_scale: float,
    *,
    second: str,
    filtered: bool,
) -> NDArray[np.int64]:
    """Return the packed table, in steps, of (g, h) in natural units at the points of a table.

    Parameters
    ----------
    g, h : float64 arrays of one shape
    clip : float
        g is clipped to ±clip.
    hess_scale : float
        a: the second component is a · h, or a · 1.
    second : {"hessian", "count", "none"}
        The Hessian is 0 where g is clipped; a count is 1 everywhere.
    filtered : bool
        Entries with |g| > clip are (0, 0).

    Raises
    ------
    PlanError
        If an entry is not a finite number, a Hessian is negative, or an entry has too many steps for a packed sum.

    Privacy
    -------
    Entries are rounded to the nearest step. The bounds are exact maxima over the rounded table, so they cover rounding.
    """
    if not (np.isfinite(g).all() and np.isfinite(h).all() and (h >= 0).all()):
        raise PlanError("A table of gradients holds finite numbers, and no Hessian below 0.")
    beyond = np.abs(g) > clip
    if second != "hessian":
        h = np.full(g.shape, 1.0 if second == "count" else 0.0)
    if filtered or second == "hessian":
        h = np.where(beyond, 0.0, h)
    if filtered:
        g = np.where(beyond, 0.0, g)
    if (h * hess_scale).max() > 1:
        raise PlanError(
            f"hess_scale={hess_scale!r} must be at most one over the largest Hessian, {h.max():g}."
        )
    g_steps = np.rint(np.clip(g, -clip, clip) * GRAD_ONE).astype(np.int64)
    h_steps = np.rint(h * hess_scale * GRAD_ONE).astype(np.int64)
    return (g_steps << 32) + h_steps


@lru_cache(maxsize=16)
def logistic_gradient(
    clip: float, hess_scale: float, *, second: str = "hessian", filtered: bool = False
) -> LogisticGradient:
    """Build the table of gradients clipped (or filtered) at ``clip``, by `packed_table`."""
    p = sigmoid(table_points("binary"))
    g = np.stack([p - y for y in (0, 1)])
    h = np.stack([p * (1 - p)] * 2)
    table = packed_table(g, h, clip, hess_scale, second=second, filtered=filtered)
    return LogisticGradient(table, hess_scale)


@lru_cache(maxsize=16)
def softmax_gradient(
    n_classes: int,
    *,
    clip: float = 1.0,
    hess_scale: float = SOFTMAX_HESS_SCALE,
    second: str = "hessian",
    filtered: bool = False,
) -> SoftmaxGradient:
    """Build the integer table of exponentials; options as in `logistic_gradient`."""
    x = np.arange(TABLE_SIZE) * 2.0 ** (TABLE_SHIFT - 16)
    return SoftmaxGradient(
        n_classes,
        np.maximum(np.rint(np.exp(-x) * (1 << 20)), 1).astype(np.int64),
        round(clip * GRAD_ONE),
        0 if second == "none" else round(hess_scale * GRAD_ONE),
        second == "count",
        filtered,
    )


@lru_cache(maxsize=16)
def clipped_softmax_gradient(
    n_classes: int, *, clip: float, hess_scale: float, curvature: float = 1.0
) -> ClippedSoftmaxGradient:
    """Build the tables of exponentials and of the clip in norm.

    Parameters
    ----------
    clip : float
        A longer gradient is shortened to this norm.
    hess_scale : float
        a: the second component is a · w · p (1 - p).
    curvature : float
        The Hessian is taken to be this times w · p (1 - p).
    """
    # of each entry's highest norm, so that no row is longer than the clip
    norm = np.sqrt(np.arange(1, NORM_SIZE + 1) * float(1 << NORM_SHIFT)) / GRAD_ONE
    return ClippedSoftmaxGradient(
        n_classes,
        softmax_gradient(n_classes).exp_table,
        np.floor(np.minimum(clip / norm, 1.0) * GRAD_ONE).astype(np.int64),
        round(hess_scale * GRAD_ONE),
        curvature,
    )


@lru_cache(maxsize=16)
def poisson_gradient(
    low_share: float,
    *,
    clip: float = 1.0,
    hess_scale: float = 0.5,
    second: str = "hessian",
    filtered: bool = False,
) -> PoissonGradient:
    """Build the integer table of rates; ``low_share`` is the target's lowest value over its largest."""
    rate = np.minimum(np.exp(table_points("binary") - RATE_SHIFT), 1.0)
    return PoissonGradient(
        np.rint(rate * GRAD_ONE).astype(np.int64),
        min(round(low_share * GRAD_ONE), GRAD_ONE),
        max(round(clip * GRAD_ONE), 1),
        0 if second == "none" else round(hess_scale * GRAD_ONE),
        second == "count",
        filtered,
    )


def label_gradient(kind: str, n_scores: int, *, average: bool, count_scale: float) -> LabelGradient:
    """Return the gradient that is the target itself, or 0, with ``count_scale`` times a count beside it."""
    return LabelGradient(kind, n_scores, max(round(count_scale * GRAD_ONE), 1), average)
