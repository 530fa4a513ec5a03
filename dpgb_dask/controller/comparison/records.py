"""Releases as plain records, and accountants that read records: what a schedule fixed in advance costs.

What they rest on is docs/privacy.md P12.

A record says what a release reveals of one row at worst; an accountant knows records and no algorithm. Fits are not
charged by these accountants: the queries of a fit may be chosen adaptively, and then `Spending` is the valid bound. The
accountants are for frozen schedules: the report compares its charge with theirs (`records_of`; pld.py calls them all).

- `Gaussian`: μ-GDP; also many releases under a filter. (With discrete noise, up to the slack of accounting.py.)
- `Laplace`: noise on any vector whose L1 sensitivity is ε times the scale. Its trade-off curve is no lower than that of
  one coordinate shifted by all of ε: between neighbours lie steps of one coordinate each, steps compose as f₁∘(1 - f₂)
  (Dong, Roth and Su 2022, lemma A.5), and for a location family with monotone likelihood ratio f_s∘(1 - f_t) = f_{s+t}.
  The discrete Laplace of t >= 2**20 steps has errors a·b = e^-ε q/(1+q)², q = e^(-1/t), where the Laplace has e^-ε/4:
  its curve lies above that of ε + `DISCRETE`.
- `Choice`: ε-bounded range; it is also GDP (accounting.py) and ε²/8-zCDP (Cesar and Rogers 2021).
- `Joint`: several releases on one and the same sample. Separate records of that rate would mean a new sample for each
  release; here the worst pair is the mixture of the product of their pairs.

A ``rate`` below 1 means that each release is made on a Poisson sample of the rows, drawn anew for every release;
neighbours add or remove a row. If (P, Q) is the worst pair for the release, (qP + (1-q)Q, Q) and (Q, qP + (1-q)Q) are
the worst pairs on the sample (Zhu, Dong and Wang 2022, theorem 11).

Sources: RDP, Mironov 2017 (Gaussian, Laplace); on samples, Mironov, Talwar and Zhang 2019: at integer orders
E_Q[(1 - q + q P/Q)^α] is a binomial sum, and by their theorem 5 the other direction is no worse if a reflection
exchanges P and Q, as it does for both of our pairs and for their products. RDP to (ε, δ): Canonne, Kamath and Steinke
2020, proposition 12.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.queries import PRICE_ONE, RowDraw
from dpgb_dask.controller.accounting import (
    epsilon_of,
    mu_of_bounded_range,
    mu_of_pure,
    zcdp_epsilon,
)
from dpgb_dask.errors import PlanError

DISCRETE = 2.0**-42  # >= 1/(4t²)
ORDERS = tuple(range(2, 65)) + tuple(range(72, 257, 8)) + tuple(range(288, 1025, 32))
# leading bits of a price that count: prices that differ by rounding alone are equal
PRICE_BITS = 32
FINE_ORDERS = tuple(1 + k / 50 for k in range(1, 50)) + tuple(2 + k / 10 for k in range(100))


@dataclass(frozen=True, slots=True)
class Release:
    """Base of all records: the release was made ``count`` times.

    Parameters
    ----------
    level : float, > 0
        μ of a Gaussian or of joint releases, ε of Laplace noise, bounded range ε of a choice.
    count : int
    rate : float, in (0, 1]
        Rate of the Poisson sample; 1 for all rows.
    """

    level: float
    count: int = 1
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.level < math.inf and self.count >= 1 and 0 < self.rate <= 1):
            raise PlanError(
                f"{self!r} is no record: level above 0, count at least 1, rate in (0, 1]."
            )

    @property
    def served_epsilon(self) -> float:
        """ε of one release at δ = 0, on the rows that serve it; infinite if there is none."""
        return math.inf

    @property
    def pure_epsilon(self) -> float:
        """The same, amplified by the sample: ln(1 + q (e^ε - 1))."""
        if self.served_epsilon > 500:
            return self.served_epsilon
        return math.log1p(self.rate * math.expm1(self.served_epsilon))

    @property
    def mu(self) -> float:
        """μ of one release on the rows that serve it."""
        raise NotImplementedError

    def renyi(self, order: float) -> float:
        """Return the Rényi divergence of an order > 1, of one release on the rows that serve it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Gaussian(Release):
    """μ-GDP releases: D_α = αμ²/2."""

    @property
    def mu(self) -> float:
        """The level."""
        return self.level

    def renyi(self, order: float) -> float:
        """αμ²/2."""
        return order * self.level**2 / 2


@dataclass(frozen=True, slots=True)
class Laplace(Release):
    """Laplace noise of scale Δ₁/ε."""

    @property
    def shift(self) -> float:
        """ε of the continuous Laplace mechanism that bounds this discrete one."""
        return self.level + DISCRETE

    @property
    def served_epsilon(self) -> float:
        """The level."""
        return self.level

    @property
    def mu(self) -> float:
        """2Φ⁻¹(e^ε/(1+e^ε))."""
        return mu_of_pure(self.level)

    def renyi(self, order: float) -> float:
        """Mironov 2017, table II: ln(α/(2α-1) e^((α-1)ε) + (α-1)/(2α-1) e^(-αε)) / (α-1)."""
        a, b = order / (2 * order - 1), (order - 1) / (2 * order - 1)
        top = (order - 1) * self.shift
        if top < 1:  # the first orders in ε cancel
            inside = a * math.expm1(top) + b * math.expm1(-order * self.shift)
            return max(math.log1p(inside), 0.0) / (order - 1)
        return (top + math.log(a + b * math.exp(-order * self.shift - top))) / (order - 1)


@dataclass(frozen=True, slots=True)
class Choice(Release):
    """Exponential choices of bounded range ε."""

    @property
    def served_epsilon(self) -> float:
        """The range."""
        return self.level

    @property
    def mu(self) -> float:
        """2Φ⁻¹(e^(ε/2)/(1+e^(ε/2)))."""
        return mu_of_bounded_range(self.level)

    def renyi(self, order: float) -> float:
        """αε²/8; on a sample, that of the Gaussian that bounds the choice, since amplification needs a worst pair."""
        if self.rate < 1:
            return order * self.mu**2 / 2
        return min(order * self.level**2 / 8, self.level)


@dataclass(frozen=True, slots=True)
class Joint(Gaussian):
    """Releases that all use one sample: a Gaussian with μ² = Σμ²; its Rényi divergence is the sum of theirs.

    Parameters
    ----------
    parts : tuple of Release
        The releases; each has the rate of the sample.
    """

    parts: tuple[Release, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Release]) -> Self:
        """Join releases of one rate."""
        mu = math.sqrt(sum(p.count * p.mu**2 for p in parts)) * (1 + 1e-12)
        return cls(mu, rate=parts[0].rate, parts=tuple(parts))

    @property
    def served_epsilon(self) -> float:
        """The sum."""
        return sum(p.count * p.served_epsilon for p in self.parts)

    def renyi(self, order: float) -> float:
        """Return the sum."""
        return sum(p.count * p.renyi(order) for p in self.parts)


def records_of(
    receipts: Sequence[Receipt], draws: Sequence[RowDraw | None], *, pure: bool
) -> tuple[Release, ...] | None:
    """Turn the releases of a fit into records, equal ones counted together; None if that is not sound.

    A row serves one part of a group. Given which part, the releases of the other parts say nothing of the row, and the
    (ε, δ)-curve and Rényi divergences of a mixture are at most those of its worst member. So a group is recorded as the
    part whose releases include those of every other part (by kind and level). If there is no such part, the worst part
    depends on ε, and there are no records. The releases of a group on a sample become one record, since they share the
    sample.

    A choice of a Gaussian fit is priced beside what may follow it (docs/privacy.md P8), and counts as Gaussian noise of
    its price, which also bounds its Rényi divergence. That says nothing where a sample of the rows may follow: such a
    fit has no records.

    Parameters
    ----------
    receipts : sequence of Receipt
    draws : sequence of (RowDraw or None)
        Which rows served each release; None for all rows.
    pure : bool
        Whether prices are in ε; else in μ². They are rounded up to `PRICE_BITS` leading bits.

    Privacy
    -------
    Post-processing: receipts and draws are public or released.
    """
    chooses = any(receipt.mechanism == "choice" for receipt in receipts)
    if chooses and not pure and any(draw is not None and draw.kind == "sample" for draw in draws):
        return None
    schedule: Counter[Release] = Counter()
    groups: dict[int, dict[RowDraw, Counter[Release]]] = {}
    for receipt, draw in zip(receipts, draws, strict=True):
        served = schedule
        if draw is not None:
            served = groups.setdefault(draw.group, {}).setdefault(draw, Counter())
        served[_record(receipt.mechanism, receipt.price, pure)] += 1
    for parts in groups.values():
        draw, most = max(parts.items(), key=lambda part: part[1].total())
        if not all(part <= most for part in parts.values()):
            return None
        rate = 1.0 if draw.kind == "part" else draw.rate
        if rate == 1:
            schedule.update(most)
        else:
            sampled = [replace(r, count=count, rate=rate) for r, count in most.items()]
            schedule[sampled[0] if most.total() == 1 else Joint.of(sampled)] += 1
    return tuple(replace(record, count=count) for record, count in schedule.items())


@lru_cache(maxsize=1024)  # thousands of rounds at one price
def _record(mechanism: str, price: int, pure: bool) -> Release:
    """Turn one release into a record."""
    spare = max(price.bit_length() - PRICE_BITS, 0)
    price = -(-price >> spare) << spare
    if not pure:
        return Gaussian(math.sqrt(price / PRICE_ONE))
    return (Choice if mechanism == "choice" else Laplace)(price / PRICE_ONE)


def basic(records: Sequence[Release]) -> float:
    """Return Σε with δ = 0; raises `PlanError` if a record has no ε of its own."""
    total = sum(r.count * r.pure_epsilon for r in records)
    if math.isinf(total):
        raise PlanError("Gaussian noise has no epsilon with delta=0. Use gdp, zcdp, rdp or pld.")
    return total


def zcdp(records: Sequence[Release], delta: float) -> float:
    """Return ε at δ from Σρ: μ²/2, ε tanh(ε/2) or ε²/8 (docs/privacy.md P8). Samples lower it as in `gdp`."""
    rho = 0.0
    for r in records:
        own = r.level**2 / 8 if isinstance(r, Choice) else r.mu**2 / 2
        rho += r.count * min(own, r.pure_epsilon * math.tanh(r.pure_epsilon / 2))
    return zcdp_epsilon(math.sqrt(2 * rho), delta)


def gdp(records: Sequence[Release], delta: float) -> float:
    """Return ε at δ from Σμ². A sample lowers it only through a release's pure ε, so Gaussian noise gains nothing."""
    squared = 0.0
    for r in records:
        mu = r.mu
        if r.rate < 1 and math.isfinite(r.pure_epsilon):
            mu = min(mu, mu_of_pure(r.pure_epsilon))
        squared += r.count * mu * mu
    return epsilon_of(math.sqrt(squared) * (1 + 1e-12), delta)


def renyi(record: Release, order: float) -> float:
    """Return the Rényi divergence of one release, sample included.

    On a sample, (α-1)D_α is computed at whole orders; it is convex in α, so chords bound it at orders between.
    """
    if record.rate == 1:
        return record.renyi(order)
    if order != int(order):
        low, high = math.floor(order), math.ceil(order)
        share = order - low
        below = (low - 1) * renyi(record, low) if low > 1 else 0.0
        return ((1 - share) * below + share * (high - 1) * renyi(record, high)) / (order - 1)
    # Σ_k C(α,k) q^k (1-q)^(α-k) e^(m_k) = 1 + the same sum with e^(m_k) - 1, in which m_0 = m_1 = 0
    top_order = int(order)
    k = np.arange(2, top_order + 1)
    faculty = _log_faculties()
    terms = faculty[top_order] - faculty[k] - faculty[top_order - k] + k * math.log(record.rate)
    terms += (order - k) * math.log1p(-record.rate) + _log_moments(record)[: top_order - 1]
    top = float(terms.max())
    above = top + math.log(float(np.exp(terms - top).sum()))
    return float(np.logaddexp(0.0, above)) * (1 + 1e-12) / (order - 1)


@lru_cache(maxsize=1)
def _log_faculties() -> NDArray[np.float64]:
    """Return ln k! for k from 0 to the largest order."""
    return np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, ORDERS[-1] + 1)))))


@lru_cache(maxsize=64)  # `renyi` is called for many orders of one record in a row
def _log_moments(record: Release) -> NDArray[np.float64]:
    """Return ln(E_Q[(P/Q)^k] - 1) for k from 2 to the largest order, without the sample."""
    moments = np.array([(k - 1) * record.renyi(float(k)) for k in range(2, ORDERS[-1] + 1)])
    return np.asarray(moments + np.log(-np.expm1(-moments)), np.float64)


def best_order(records: Sequence[Release], delta: float) -> tuple[float, float]:
    """Return the least ε at δ over all orders, and the order that gives it."""
    best = (math.inf, 2.0)
    for order in FINE_ORDERS + ORDERS:
        total = sum(r.count * renyi(r, order) for r in records)
        epsilon = total + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        best = min(best, (max(epsilon, 0.0), float(order)))
    return best


def rdp(records: Sequence[Release], delta: float) -> float:
    """Return ε at δ from the Rényi divergences of all records, at the best order."""
    return best_order(records, delta)[0]
