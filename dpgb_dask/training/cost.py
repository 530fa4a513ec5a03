"""The cost of a fit, from its budget and its account alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import RowDraw
from dpgb_dask.contracts.spending import Item
from dpgb_dask.controller import account_units, accounting
from dpgb_dask.controller.account_units import RoundCosts
from dpgb_dask.controller.choices import Choice
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.display import brief, exact, html_table
from dpgb_dask.released.report import PrivacyReport


def account_charge(report: PrivacyReport, bill: Sequence[Item], analysis: str) -> int:
    """Return what a fit costs an account of an analysis; one that stopped costs what it opened.

    Parameters
    ----------
    report : PrivacyReport
        Of the fit.
    bill : sequence of Item
        What a pure fit asked at most; empty if its plan does not say.
    analysis : str
    """
    rounds = RoundCosts.of(bill, analysis) if report.stopped else None
    if rounds is None:
        price = report.charged if report.stopped else report.declared
        return account_units.charge(price, pure=report.pure, analysis=analysis, bill=bill)
    draws = report.draws or (None,) * len(report.receipts)
    for receipt, rows in zip(report.receipts, draws, strict=True):
        draw = None if rows is None else RowDraw(*rows)
        cost = rounds.cost(receipt.price, draw, choice=receipt.mechanism == Choice.name)
        rounds = rounds.plus(cost, draw)
    return rounds.spent


@dataclass(frozen=True, slots=True)
class PrivacyCost:
    """The cost of a fit, known before any data are read.

    Parameters
    ----------
    epsilon, delta : float
        delta is 0 for a recipe of pure differential privacy.
    mu : float
        The same guarantee as one Gaussian number (GDP).
    epsilon_zcdp : float
        ε at the same delta by zero-concentrated accounting; for a pure recipe, epsilon itself.
    account : str or None
    share : float or None
        Share of what is left in the account; 1 means all of it, None that there is no account. Without a schema it is
        the most that a pure recipe can cost.
    pure : bool
        Whether the recipe is purely ε-differentially private.
    """

    epsilon: float
    delta: float
    mu: float
    epsilon_zcdp: float
    account: str | None = None
    share: float | None = None
    pure: bool = False

    @classmethod
    def of(
        cls,
        budget: Budget,
        *,
        pure: bool,
        ledger: Ledger | None,
        account: str | None,
        bill: Sequence[Item] = (),
    ) -> "PrivacyCost":
        """Return the cost of a fit; the account is looked up, and nothing is charged.

        Parameters
        ----------
        budget : Budget
        pure : bool
            Whether the recipe is purely ε-differentially private.
        ledger, account : Ledger and str, or None
        bill : sequence of Item
            What a pure recipe asks at most; empty if it does not say.
        """
        price = accounting.total_price(budget.epsilon, budget.delta, pure=pure)
        share = None
        if ledger is not None and account is not None:
            known = ledger.account(account)
            charge = account_units.charge(price, pure=pure, analysis=known.analysis, bill=bill)
            share = charge / known.left if known.left else math.inf
        if pure:
            mu = accounting.mu_of_pure(budget.epsilon)
            return cls(budget.epsilon, 0.0, mu, budget.epsilon, account, share, pure)
        mu = accounting.mu_of_price(price)
        zcdp = accounting.zcdp_epsilon(mu, budget.delta)
        return cls(budget.epsilon, budget.delta, mu, zcdp, account, share, pure)

    def __str__(self) -> str:
        text = f"epsilon={exact(self.epsilon)}, delta={exact(self.delta)} (μ={self.mu:.6g}; "
        text += "pure)" if self.pure else f"by zCDP epsilon={self.epsilon_zcdp:.4g})"
        if self.share is None:
            return text
        return f"{text}: {self._share()} in account {self.account!r}"

    def _share(self) -> str:
        """Return the share of what is left, in words: beyond it a number tells nothing."""
        assert self.share is not None
        return (
            "more than is left" if self.share > 1 else f"{100 * self.share:.1f} % of what is left"
        )

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [
            ("epsilon", exact(self.epsilon)),
            ("delta", exact(self.delta)),
            ("μ", f"{self.mu:.6g}"),
            ("epsilon by zCDP", f"{self.epsilon_zcdp:.4g}"),
        ]
        if self.share is not None:
            rows.append((f"account {brief(self.account)!r}", self._share()))
        return html_table("Price of a fit", rows)
