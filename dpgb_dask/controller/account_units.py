"""How charges add up in an account: its unit, its cap, and what a whole fit costs in it (docs/privacy.md P11).

| analysis | unit | a fit with prices in μ² | a pure fit of ε |
| --- | --- | --- | --- |
| gdp | μ² | as it is | (2Φ⁻¹(e^ε/(1+e^ε)))² (accounting.py) |
| zcdp | ρ | μ²/2: a μ-GDP mechanism is (μ²/2)-zCDP (Dong, Roth and Su 2022), and so is the discrete Gaussian itself (Canonne, Kamath and Steinke 2020, theorem 14) | ε²/2 (Bun and Steinke 2016, proposition 1.4) |
| pure | ε | refused | as it is |

Fits are interactive and may run side by side: filters on each of these units hold for adaptively chosen mechanisms,
also concurrent ones (GDP: Smith and Thakurta 2022; zCDP: Whitehouse et al. 2023; ε: Rogers et al. 2016; concurrent:
Haney et al. 2023, Vadhan and Zhang 2023). The prices of rounds on parts or samples of rows are valid in all three
units: a bound that holds for every draw of a row holds for the mixture over its draws (contracts/spending.py; Rényi
divergences are quasi-convex, van Erven and Harremoës 2014).

**An unfinished fit** costs what its opened rounds cost, in a unit in which rounds add up. Rounds of a pure fit add up
in ε. A round of ε alone costs μ(ε)² or ε²/2; both are superadditive in ε, so one block with the sum of the rounds' ε is
charged no less than the rounds cost one by one. Amplification by sampling holds for all queries of a sample together.
So in μ² and ρ a pure fit that opened a round on a sample keeps its whole charge: the rounds before that one, charged
one by one, and all the rest, charged as one mechanism, cost no more.

Amounts are in units of 2⁻⁶⁴: charges rounded up, caps down.
"""  # noqa: E501

import math
from fractions import Fraction

from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.controller import accounting
from dpgb_dask.errors import LedgerError, PlanError

UNITS = {"gdp": "μ²", "zcdp": "ρ", "pure": "ε"}


def check_account(epsilon: float, delta: float, analysis: str) -> None:
    """Check a cap.

    Raises
    ------
    LedgerError
        If the analysis is not known.
    PlanError
        If epsilon or delta is out of range, or no fit could be charged to it.
    """
    if analysis not in UNITS:
        raise LedgerError(f"analysis={analysis!r} is not available. Use one of {list(UNITS)}.")
    if delta == 0 and analysis != "pure":
        raise PlanError(
            f"delta={delta!r} must be strictly between 0 and 1. Only analysis='pure' can do with 0."
        )
    Budget(epsilon=epsilon, delta=delta if delta != 0 else 0.5)
    if analysis == "gdp":
        accounting.min_sigma_bits_for(epsilon, delta)


def cap(epsilon: float, delta: float, analysis: str) -> int:
    """Return the most that an account may spend, in its unit, rounded down."""
    if analysis == "zcdp":
        mu = accounting.zcdp_mu_of(epsilon, delta)
        return int(Fraction(mu) ** 2 / 2 * PRICE_ONE)
    return accounting.total_price(epsilon, delta, pure=analysis == "pure")


def charge(price: int, *, pure: bool, analysis: str) -> int:
    """Return what a fit of ``price`` costs in an account's unit, rounded up.

    Parameters
    ----------
    price : int
        In the fit's currency: ε if ``pure``, else μ².

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
    if analysis == "pure":
        return price
    if analysis == "zcdp":
        return -(-price * price // (2 * PRICE_ONE))
    mu = accounting.mu_of_pure(math.nextafter(price / PRICE_ONE, math.inf)) if price else 0.0
    return math.ceil(Fraction(mu) ** 2 * PRICE_ONE)


def epsilon_within(amount: int, delta: float, *, pure: bool, analysis: str) -> float:
    """Return the largest ε, to 12 digits, of a fit that costs at most ``amount`` in an account's unit; 0 if none."""
    low, high = 0.0, 1.0
    while _fits(high, delta, amount, pure, analysis):
        low, high = high, 2 * high
    while high - low > 1e-12 * high and high > 1e-9:
        middle = (low + high) / 2
        fits = _fits(middle, delta, amount, pure, analysis)
        low, high = (middle, high) if fits else (low, middle)
    return low if low >= 1e-9 else 0.0


def _fits(epsilon: float, delta: float, amount: int, pure: bool, analysis: str) -> bool:
    try:
        price = accounting.total_price(epsilon, delta, pure=pure)
    except PlanError:  # no fit can run at so small an ε; it would cost less than any other
        return amount > 0
    return charge(price, pure=pure, analysis=analysis) <= amount
