"""What a sequence of queries costs: the composition theorems by which the controller charges and plans set prices.

All prices are in units of 2⁻⁶⁴ of the plan's currency, μ² (GDP) or ε (pure differential privacy). Queries, prices and
draws may be chosen adaptively, in any order: groups may interleave with each other and with queries on all rows.

- Queries on **all rows** add up, in both currencies (docs/privacy.md P4; μ²: Smith and Thakurta 2022, ε: Rogers et al.
  2016).
- **Parts.** Rows join part a(i) of a group by independent secret draws. A group costs its most expensive part. Proof:
  couple the draws of the other rows of D and D ∪ {x}, and fix those of x. Then x serves the queries on all rows and
  those of one part of each group, whose prices sum to at most `Spending.spent`: the filter bounds this composition.
  The law on D ∪ {x} is the mixture over the draws of x, that on D does not depend on them, and (ε, δ)-curves are
  jointly convex, so the bound holds for the mixtures too (docs/privacy.md P7). This needs draws that depend on no other
  row: fixed sizes would break it.
- **Samples.** A row serves all queries of a group with chance q, independently and in secret. Queries that are
  together ε-DP on the sample cost ln(1 + q (e^ε - 1)), for adding or removing one row (Li, Qardaji and Su 2012; Balle,
  Barthe and Gaboardi 2018, theorem 8). Proof for a sequence in which they interleave with others: given the draws of
  all other rows and the parts of x, the chances of a transcript with and without x differ by the factor
  Π over groups (1 - q + q r), times the factors of all other queries; r, the factor of a group's queries if x is in
  the sample, lies in [e^-ε, e^ε], and 1 - q + q e^-ε >= 1/(1 - q + q e^ε). In the currency μ² a group costs the sum of
  its prices, whatever the sample (fix the draw, as for parts): no amplification is claimed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from dpgb_dask.contracts.queries import PRICE_ONE, GradientQuery, Query, RowDraw
from dpgb_dask.errors import PlanError
from dpgb_dask.frozen import settle
from dpgb_dask.scalars import same_text, whole_number

KINDS = ("sums", "choice", "sample")  # of an `Item`
ROUND_UP = 1 + 1e-12  # far above the error of a few operations in double precision


@dataclass(frozen=True, slots=True)
class Item:
    """Queries of one kind that a pure plan asks at most, for one row; accounts charge them (docs/privacy.md P11).

    Parameters
    ----------
    price : int
        Of each, in units of 2⁻⁶⁴ of ε. For "sample", what all queries on one sample cost together, amplified.
    times : int
        How many of them serve one row; of parts, those of one part of each group.
    kind : {"sums", "choice", "sample"}
        "choice": of bounded range; "sample": all queries on one sample of rows count as one mechanism.
    """

    price: int
    times: int
    kind: str

    def __post_init__(self) -> None:
        """Refuse what is no bill; whole numbers of NumPy, which overflow, become Python's."""
        price, times = whole_number(self.price), whole_number(self.times)
        kind = same_text(self.kind, KINDS)
        if price is None or price <= 0 or times is None or times <= 0 or kind is None:
            raise PlanError(
                f"{self!r}: price and times are whole numbers above 0, kind is one of {KINDS}."
            )
        settle(self, price=price, times=times, kind=kind)


@lru_cache(maxsize=1 << 14)  # every query of a fit asks for the same groups again
def amplified(price: int, rate: float) -> int:
    """Return what queries of ``price`` (units of ε) on a Poisson sample cost, rounded up; never more than ``price``."""
    epsilon = price / PRICE_ONE
    if epsilon > 500:
        return price
    return min(price, math.ceil(PRICE_ONE * math.log1p(rate * math.expm1(epsilon)) * ROUND_UP) + 1)


def price_on_sample(affordable: int, rate: float) -> int:
    """Return the largest price on a Poisson sample that costs at most ``affordable`` once amplified."""
    low, high = affordable, 2 * affordable + 2
    while amplified(high, rate) <= affordable:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if amplified(middle, rate) <= affordable else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class Spending:
    """What has been asked so far, by groups of rows; `spent` bounds the privacy loss of every row.

    Parameters
    ----------
    pure : bool
        Whether prices are in ε; else in μ².
    on_all : int
        Sum of prices of queries on all rows.
    groups : mapping of int to dict
        For each group, the price of each interval of draws.
    """

    pure: bool = False
    on_all: int = 0
    groups: Mapping[int, Mapping[RowDraw, int]] = field(default_factory=dict)

    @property
    def spent(self) -> int:
        """Return what the queries so far cost a row in the worst case."""
        if not self.groups:  # of most fits; read in every round
            return self.on_all
        return self.on_all + sum(map(self._cost, self.groups.values()))

    def of_group(self, group: int) -> int:
        """Return what the queries of a group cost a row in the worst case; 0 if there were none."""
        parts = self.groups.get(group)
        return 0 if parts is None else self._cost(parts)

    def _cost(self, parts: Mapping[RowDraw, int]) -> int:
        draw = next(iter(parts))
        if any(drawn.high <= drawn.low for drawn in parts):
            raise PlanError(f"{draw!r} is no interval of draws: low < high.")
        if draw.kind == "part":
            return max(parts.values())
        (price,) = parts.values()
        return amplified(price, draw.rate) if self.pure else price

    def after(self, query: Query) -> "Spending":
        """Return the spending with one more query; raises `PlanError` as `plus` does."""
        draw = query.rows if isinstance(query, GradientQuery) else None
        return self.plus(query.price, draw, query.label)

    def plus(self, price: int, draw: RowDraw | None, label: str = "") -> "Spending":
        """Return the spending with one more query of ``price`` on the rows of ``draw``; None for all rows.

        Raises
        ------
        PlanError
            If the intervals of a group overlap, or its queries differ in kind.
        """
        if draw is None:
            return type(self)(self.pure, self.on_all + price, self.groups)
        parts = dict(self.groups.get(draw.group, {}))
        for other in parts:
            overlap = other.low < draw.high and draw.low < other.high
            if other != draw and (other.kind != draw.kind or draw.kind == "sample" or overlap):
                raise PlanError(
                    f"{draw!r} of query {label!r} does not go with {other!r}: the parts of a group are disjoint,"
                    " a sample is one interval."
                )
        parts[draw] = parts.get(draw, 0) + price
        return replace(self, groups={**self.groups, draw.group: parts})
