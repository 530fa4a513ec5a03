"""Privacy loss distributions of frozen schedules: (ε, δ) nearly exact, never underestimated (docs/privacy.md P12).

With (P, Q) the worst pair of a release, its loss L = ln P/Q under P composes by convolution, and
δ(ε) = P(L = ∞) + E[(1 - e^(ε-L))₊] (Koskela, Jälkö and Honkela 2020; Sommer, Meiser and Mohammadi 2019). Adding and
removing a row are two pairs, (qP + (1-q)Q, Q) and (Q, qP + (1-q)Q); the larger δ counts.

Every step errs towards a larger δ:

- **Grid.** The masses of P and Q in a cell of losses go to its two ends so that both are kept (Doroshenko, Ghazi,
  Kamath, Kumar and Manurangsi 2022): δ as a function of e^ε becomes the chord between its values, and it is convex.
  Mass above the grid counts as infinite loss, mass below it as the grid's lowest loss.
- **Choices** are replaced by the Gaussian that bounds them, because a bounded range has no single worst pair (Dong,
  Durfee and Rogers 2020).
- **Convolution** by FFT of masses times e^(θL)/E[e^(θL)], with θ near where Chernoff's bound is best, so that rounding
  errors are small against δ and not only against 1. The window of the transform wraps around: mass above it, bounded by
  Chernoff, counts as infinite loss; mass below it counts as if it lay just above ε. `ROUNDING` bounds the error of the
  transforms: u log₂ N for each of them and for each factor, relative to the norm (Higham 2002, theorem 24.2), and √N
  between norms.

A loss distribution must not decide when a fit stops (Honkela, Koskela, Tran and Räisä 2026): filters add up μ², ρ or ε.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.controller.comparison.records import (
    Choice,
    Gaussian,
    Laplace,
    Release,
    basic,
    best_order,
    gdp,
    rdp,
    renyi,
    zcdp,
)

Vector = NDArray[np.float64]

FINENESS = 0.01  # grid step, in standard deviations of the whole loss over √(releases)
CUT = 1e-9  # mass allowed beyond grids (relative to δ) and windows (relative to the tilted mass)
MOST_POINTS = 1 << 22
# different records up to which `compared` runs rdp and pld: each takes a few hundredths of a second on samples
MOST_RECORDS = 16
LARGEST_LOSS = 500.0  # of one release, so that e^loss does not overflow
LEAST_DELTA = 1e-30
ROUNDING = 64 * 2.0**-53

_SQRT2 = math.sqrt(2.0)
_erfc = np.frompyfunc(math.erfc, 1, 1)


@dataclass(frozen=True, eq=False, slots=True)
class _Losses:
    """Masses of one release at the losses ``(start + i) · step``, and at infinity."""

    start: int
    log_mass: Vector
    infinite: float
    count: int

    def log_moment(self, theta: float, step: float) -> float:
        """Return ln E[e^(θL); L < ∞]."""
        terms = self.log_mass + theta * step * (self.start + np.arange(len(self.log_mass)))
        top = float(terms.max())
        return top + math.log(float(np.exp(terms - top).sum()))


def _gaussian_tails(mu: float, loss: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    """Return P(λ <= l), P(λ > l), Q(λ <= l), Q(λ > l) of the loss λ = μx - μ²/2."""
    x = loss / mu + mu / 2
    return tuple(  # type: ignore[return-value]
        np.asarray(0.5 * _erfc(sign * y / _SQRT2), np.float64)
        for y in (x - mu, x)
        for sign in (-1, 1)
    )


def _laplace_tails(shift: float, loss: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    """Return the same for λ = |x| - |x - ε|, which takes the values ε and -ε with chance ½ and ½e^-ε under P."""
    inside = np.clip(loss, -shift, shift)
    p = 0.5 * np.exp((inside - shift) / 2)
    q = 0.5 * np.exp(-(inside + shift) / 2)
    above, below = loss >= shift, loss < -shift
    p, not_p = np.where(above, 1.0, np.where(below, 0.0, p)), np.where(above, 0.0, 1 - p)
    not_q = np.where(above, 0.0, np.where(below, 1.0, q))
    return p, np.where(below, 1.0, not_p), np.where(below, 0.0, 1 - not_q), not_q


def _cells(below: Vector, above: Vector) -> Vector:
    """Return the mass of each cell, computed from the distribution function or its complement, whichever is smaller."""
    return np.maximum(np.where(below[1:] < above[:-1], np.diff(below), -np.diff(above)), 0.0)


def _losses(record: Release, step: float, cut: float, *, add: bool) -> _Losses:
    """Discretise one release; with ``add``, P is the law with the row."""
    q = record.rate
    widest = _reach(record, cut)
    # the loss of the mixture as a function of the loss λ of the pair: ln(1 - q + q e^λ)
    low = math.log1p(q * math.expm1(-widest)) if q < 1 else -widest
    high = widest + math.log(q + (1 - q) * math.exp(-widest))
    start, stop = math.floor(low / step) - 1, math.ceil(high / step) + 1
    grid = step * np.arange(start, stop + 1)
    inner = np.asarray(grid, np.float64)
    if q < 1:
        with np.errstate(divide="ignore", invalid="ignore"):  # no mass below ln(1 - q)
            inner = np.asarray(np.log((np.expm1(grid) + q) / q), np.float64)
        inner[np.isnan(inner)] = -np.inf
    tails = _laplace_tails if isinstance(record, Laplace) else _gaussian_tails
    level = record.shift if isinstance(record, Laplace) else record.mu
    p_below, p_above, q_below, q_above = tails(level, inner)
    upper = _cells(q * p_below + (1 - q) * q_below, q * p_above + (1 - q) * q_above)
    lower = _cells(q_below, q_above)
    # mass below and above the grid
    under, over = (q * p_below + (1 - q) * q_below)[0], (q * p_above + (1 - q) * q_above)[-1]
    if not add:
        grid, upper, lower = -grid[::-1], lower[::-1], upper[::-1]
        start, under, over = -stop, q_above[-1], q_below[0]
    x = np.exp(grid)
    # P = a + b and Q = a/x₀ + b/x₁
    right = np.clip(x[1:] * (upper - x[:-1] * lower) / np.diff(x), 0.0, upper)
    mass = np.zeros(len(grid))
    mass[1:] += right
    mass[:-1] += upper - right
    mass[0] += under
    with np.errstate(divide="ignore"):
        return _Losses(start, np.log(mass), float(over), record.count)


@dataclass(frozen=True, eq=False, slots=True)
class LossDistribution:
    """Loss of a whole schedule: tilted masses at ``(start + i) · step``, and bounds on the rest.

    Parameters
    ----------
    start : int
    mass : (n,) float64
        Multiplied by e^(θ · loss - log_moment).
    step, theta, log_moment : float
    apart : float
        Mass that counts as infinite loss.
    error : float
        Bound on the rounding error of any sum of masses.
    """

    start: int
    mass: Vector
    step: float
    theta: float
    log_moment: float
    apart: float
    error: float

    def delta(self, epsilon: float) -> float:
        """Return δ(ε) for ε >= 0, rounded up."""
        first = max(math.floor(epsilon / self.step) + 1 - self.start, 0)
        loss = self.step * (self.start + np.arange(first, len(self.mass)))
        untilt = np.exp(np.minimum(self.log_moment - self.theta * loss, 700.0))
        total = float((self.mass[first:] * untilt * -np.expm1(epsilon - loss)).sum())
        # a unit of tilted mass above ε counts at most this much; `CUT` of the tilted mass lies below the window
        heaviest = math.exp(min(self.log_moment - self.theta * epsilon, 700.0))
        return min(1.0, total * (1 + 1e-9) + (self.error + CUT) * heaviest + self.apart)


def _compose(
    records: Sequence[Release], step: float, theta: float, target: float, *, add: bool
) -> LossDistribution:
    """Convolve all records; ``target`` is about the δ of interest."""
    n = sum(r.count for r in records)
    losses = [_losses(r, step, CUT * target / n, add=add) for r in records]

    def log_moment(t: float) -> float:
        return sum(one.count * one.log_moment(t, step) for one in losses)

    whole, reach = log_moment(theta), -math.log(CUT)
    deviation = math.sqrt(sum(one.count * _variance(one, step, theta) for one in losses)) + step
    tries = [k / deviation for k in (0.25, 0.5, 1, 2, 4, 6, 8, 12)]
    top = min((log_moment(theta + s) - whole + reach) / s for s in tries)
    bottom = max(-(log_moment(theta - s) - whole + reach) / s for s in tries)
    start = math.floor(bottom / step)
    size = 1 << (math.ceil(top / step) - start + 1).bit_length()
    spectrum = np.ones(size // 2 + 1, np.complex128)
    for one in losses:
        wrapped = np.zeros(size)
        place = one.start + np.arange(len(one.log_mass))
        tilted = np.exp(one.log_mass + theta * step * place - one.log_moment(theta, step))
        np.add.at(wrapped, place % size, tilted)
        spectrum *= np.fft.rfft(wrapped) ** one.count
    mass = np.maximum(np.fft.irfft(spectrum, size), 0.0)
    mass = np.roll(mass, -(start % size))
    above = math.exp(min(whole - theta * step * (start + size - 1), 700.0)) * CUT
    return LossDistribution(
        start=start,
        mass=mass,
        step=step,
        theta=theta,
        log_moment=whole,
        apart=sum(one.count * one.infinite for one in losses) + above,
        error=ROUNDING * (n + 2) * math.log2(size) * math.sqrt(size),
    )


def _variance(one: _Losses, step: float, theta: float) -> float:
    """Return the variance of the tilted loss."""
    loss = step * (one.start + np.arange(len(one.log_mass)))
    weight = np.exp(one.log_mass + theta * loss - one.log_moment(theta, step))
    mean = float((weight * loss).sum())
    return float((weight * (loss - mean) ** 2).sum())


def _merged(records: Sequence[Release]) -> list[Release]:
    """Replace choices by the Gaussians that bound them, and all Gaussians on all rows by one."""
    whole, rest = 0.0, []
    for r in records:
        gaussian = isinstance(r, Choice | Gaussian)
        if gaussian and r.rate == 1:
            whole += r.count * r.mu**2
        else:
            rest.append(Gaussian(r.mu, r.count, r.rate) if gaussian else r)
    return [*rest, *([Gaussian(math.sqrt(whole) * (1 + 1e-12))] if whole else [])]


def distributions(records: Sequence[Release], delta: float) -> list[LossDistribution]:
    """Return the loss distributions of a schedule for adding and for removing a row, sharpest for δ near ``delta``."""
    merged = _merged(records)
    _, order = best_order(merged, delta)
    n = sum(r.count for r in merged)
    variance = sum(r.count * renyi(r, 2.0) for r in merged)  # exact for Gaussians, else about right
    step = FINENESS * math.sqrt(variance / n)
    widest = max(_reach(r, CUT * delta / n) for r in merged)
    step = max(step, 4 * widest / MOST_POINTS)
    if ends := [_reach(r, 1.0) for r in merged if isinstance(r, Laplace)]:
        # half of the mass of a Laplace loss is at its upper end, so that end is made a point of the grid
        step = max(ends) / math.ceil(max(ends) / step)
    both = any(r.rate < 1 for r in merged)  # else adding and removing a row are mirror images
    return [
        _compose(merged, step, order - 1, delta, add=add)
        for add in ((True, False) if both else (True,))
    ]


def _reach(record: Release, cut: float) -> float:
    """Return a loss that a release, on the rows that serve it, exceeds with chance ``cut`` at most."""
    if isinstance(record, Laplace):
        return record.shift
    return record.mu**2 / 2 + record.mu * math.sqrt(2 * math.log(1 / cut))


def pld(records: Sequence[Release], delta: float) -> float:
    """Return ε at δ, rounded up to 9 digits."""
    both = distributions(records, delta)

    def holds(epsilon: float) -> bool:
        return max(one.delta(epsilon) for one in both) <= delta

    low, high = 0.0, 1.0
    if holds(low):
        return 0.0
    while not holds(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def compared(records: Sequence[Release], delta: float) -> dict[str, float]:
    """Return ε at δ by name of accountant, for all that are fast enough here; each bound holds, so the least one does.

    Privacy
    -------
    Post-processing of records. Which accountants are left out depends on δ and the schedule alone: rdp and pld for more
    than `MOST_RECORDS` different records, and pld also for a loss above `LARGEST_LOSS` or a δ below `LEAST_DELTA`.
    """
    found = {"gdp": gdp(records, delta), "zcdp": zcdp(records, delta)}
    if all(math.isfinite(r.pure_epsilon) for r in records):
        found["basic"] = basic(records)
    if len(records) <= MOST_RECORDS:
        found["rdp"] = rdp(records, delta)
        n = sum(r.count for r in records)
        if delta >= LEAST_DELTA and all(
            _reach(r, CUT * delta / n) <= LARGEST_LOSS for r in _merged(records)
        ):
            found["pld"] = pld(records, delta)
    return found
