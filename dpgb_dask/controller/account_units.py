"""How charges add up in an account: its unit, its cap, and what a whole fit costs in it (docs/privacy.md P11).

| analysis | unit | a fit with prices in μ² | an ε-private release (docs/privacy.md P8) | a choice of bounded range ε |
| --- | --- | --- | --- | --- |
| gdp | μ² | as it is | (2Φ⁻¹(e^ε/(1+e^ε)))² | (2Φ⁻¹(e^(ε/2)/(1+e^(ε/2))))² |
| zcdp | ρ | μ²/2: a μ-GDP mechanism is (μ²/2)-zCDP (Dong, Roth and Su 2022), and so is the discrete Gaussian itself (Canonne, Kamath and Steinke 2020, theorem 14) | ε tanh(ε/2) | ε²/8 (Cesar and Rogers 2021), or as the release |
| pure | ε | refused | as it is | as it is |

**A pure fit** costs in μ² and ρ the sum over its releases, which is far less than one release of the whole ε. Its plan
says before the fit what it asks at most (`spending.Item`): that is charged, and `RoundCosts` is the filter that its opened
rounds must stay within, in the account's unit, beside the filter in ε. All queries on one sample of rows are together
one mechanism, whose ε is fixed before the fit: it is charged when the first of them is asked, and they must stay within
it. A plan that cannot say what it asks costs as much as one release of the whole ε.

Fits are interactive and may run side by side: filters on each of these units hold for adaptively chosen mechanisms,
also concurrent ones (GDP: Smith and Thakurta 2022; zCDP: Whitehouse et al. 2023; ε: Rogers et al. 2016; concurrent:
Haney et al. 2023, Vadhan and Zhang 2023). The prices of rounds on parts or samples of rows are valid in all three
units: a bound that holds for every draw of a row holds for the mixture over its draws (contracts/spending.py; Rényi
divergences are quasi-convex, van Erven and Harremoës 2014).

**An unfinished fit** costs what its opened rounds cost, in a unit in which rounds add up. Of a pure fit that was charged
as one release, they add up in ε, and cost as much as one release of that sum, which is no less than they cost one by
one: the unit is superadditive in ε (docs/privacy.md P8). Amplification by sampling holds for all queries of a sample
together. So if such a fit opened a round on a sample, it keeps its whole charge: the rounds before that one, charged
one by one, and all the rest, charged as one mechanism, cost no more.

Amounts are in units of 2⁻⁶⁴: charges rounded up, caps down.
"""  # noqa: E501

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Self

from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import PRICE_ONE, RowDraw
from dpgb_dask.contracts.spending import ROUND_UP, Item, Spending
from dpgb_dask.controller import accounting
from dpgb_dask.display import exact
from dpgb_dask.errors import AccountError, LedgerError, PlanError, short
from dpgb_dask.names import ACCOUNT_UNITS
from dpgb_dask.scalars import is_number, plain_text

LARGE_DELTA = 1e-3  # one over the fewest rows that a fit could learn from
SMALLER_DELTA = "Take a constant well below one over the number of people you could ever have"


def large_delta(delta: float) -> tuple[str, ...]:
    """Say that a delta of approximate differential privacy is large by itself."""
    if delta < LARGE_DELTA:
        return ()
    return (
        f"LARGE DELTA: delta={exact(delta)} is the chance that the promise fails outright. A method that publishes each"
        f" row with that chance, as it is, would keep it too. {SMALLER_DELTA}, such as 1e-6, without looking at the"
        " rows.",
    )


def check_account(epsilon: float, delta: float, analysis: str) -> None:
    """Check a cap.

    Raises
    ------
    AccountError
        If the analysis is not known.
    PlanError
        If epsilon or delta is out of range, or no fit could be charged to it.
    """
    if plain_text(analysis) not in ACCOUNT_UNITS:
        raise AccountError(
            f"analysis={short(analysis)} is not available. Use one of {list(ACCOUNT_UNITS)}."
        )
    if is_number(delta) and delta == 0 and analysis != "pure":
        raise PlanError(
            f"delta={delta!r} must be strictly between 0 and 1. Only analysis='pure' can do with 0."
        )
    Budget(epsilon=epsilon, delta=delta)
    if analysis == "gdp":
        accounting.min_sigma_bits_for(epsilon, delta)


def cap(epsilon: float, delta: float, analysis: str) -> int:
    """Return the most that an account may spend, in its unit, rounded down."""
    if analysis == "zcdp":
        mu = accounting.zcdp_mu_of(epsilon, delta)
        return int(Fraction(mu) ** 2 / 2 * PRICE_ONE)
    return accounting.total_price(epsilon, delta, pure=analysis == "pure")


@lru_cache(maxsize=1 << 12)
def cost(price: int, analysis: str, *, choice: bool = False) -> int:
    """Return what one ε-private release, or choice of bounded range ε, costs in an account's unit, rounded up.

    docs/privacy.md P8 has the proofs.

    Parameters
    ----------
    price : int
        ε.
    analysis : str
    choice : bool
    """
    if analysis == "pure" or price == 0:
        return price
    epsilon = math.nextafter(price / PRICE_ONE, math.inf)
    if analysis == "zcdp":
        rho = math.ceil(price * Fraction(math.tanh(epsilon / 2) * ROUND_UP))
        return min(rho, -(-price * price // (8 * PRICE_ONE))) if choice else rho
    mu = accounting.mu_of_bounded_range(epsilon) if choice else accounting.mu_of_pure(epsilon)
    return math.ceil(Fraction(mu) ** 2 * PRICE_ONE)


def charge(price: int, *, pure: bool, analysis: str, bill: Sequence[Item] = ()) -> int:
    """Return what a fit of ``price`` costs in an account's unit, rounded up.

    Parameters
    ----------
    price : int
        In the fit's currency: ε if ``pure``, else μ².
    pure : bool
    analysis : str
    bill : sequence of Item
        What a pure fit asks at most; empty if that is not known.

    Raises
    ------
    LedgerError
        If a fit with Gaussian noise is to charge an account of pure differential privacy.
    """
    if not pure:
        if analysis == "pure":
            raise LedgerError(
                "A fit with Gaussian noise is not ε-differentially private, so it cannot charge an account with "
                "analysis='pure'. Choose a recipe of pure differential privacy, or an account with analysis='gdp'."
            )
        return price if analysis == "gdp" else -(-price // 2)
    if is_itemised(bill, analysis):
        return sum(
            item.times * cost(item.price, analysis, choice=item.kind == "choice") for item in bill
        )
    return cost(price, analysis)


def is_itemised(bill: Sequence[Item], analysis: str) -> bool:
    """Return whether an account charges the releases of a fit one by one; in ε they cost no less than all together."""
    return bool(bill) and analysis != "pure"


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What the opened rounds of a pure fit cost an account in μ² or ρ, each by itself: a filter (docs/privacy.md P11).

    Parameters
    ----------
    analysis : str
    sample : int
        ε of all queries on one sample, amplified; 0 if the fit asks none.
    spending : Spending
        In the account's unit: parts compose in parallel, and for a sample its first query pays.
    """

    analysis: str
    sample: int = 0
    spending: Spending = field(default_factory=Spending)

    @classmethod
    def of(cls, bill: Sequence[Item], analysis: str) -> Self | None:
        """Return the filter of a fit that has opened nothing; None if it is not charged by items."""
        if not is_itemised(bill, analysis):
            return None
        return cls(analysis, max((item.price for item in bill if item.kind == "sample"), default=0))

    @property
    def spent(self) -> int:
        """Return the cost of the rounds so far."""
        return self.spending.spent

    def cost(self, price: int, draw: RowDraw | None, *, choice: bool) -> int:
        """Return what the next round costs, as one of its group."""
        if draw is None or draw.kind != "sample":
            return cost(price, self.analysis, choice=choice)
        return 0 if draw.group in self.spending.groups else cost(self.sample, self.analysis)

    def plus(self, cost: int, draw: RowDraw | None) -> Self:
        """Return the filter after a round of this cost."""
        return replace(self, spending=self.spending.plus(cost, draw))


def epsilon_within(
    amount: int,
    delta: float,
    *,
    pure: bool,
    analysis: str,
    bill: Sequence[Item] = (),
    billed: int = 1,
) -> float:
    """Return the largest ε, to 12 digits, of a fit that costs at most ``amount`` in an account's unit; 0 if none.

    Parameters
    ----------
    amount : int
    delta : float
    pure : bool
    analysis : str
    bill : sequence of Item
        What such a fit asks at most when its price is ``billed``; its prices grow with the fit's.
    billed : int
    """

    def fits(epsilon: float) -> bool:
        try:
            price = accounting.total_price(epsilon, delta, pure=pure)
        except PlanError:  # no fit can run at so small an ε; it would cost less than any other
            return amount > 0
        scaled = [replace(item, price=-(-item.price * price // billed)) for item in bill]
        return charge(price, pure=pure, analysis=analysis, bill=scaled) <= amount

    low, high = 0.0, 1.0
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1e-12 * high and high > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low if low >= 1e-9 else 0.0
