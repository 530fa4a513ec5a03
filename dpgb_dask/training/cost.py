"""The cost of a fit, from its budget and its account alone."""

import math
from dataclasses import dataclass

from dpgb_dask.contracts.plan import Budget
from dpgb_dask.controller import account_units, accounting
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.showing import brief, html_table


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
        Share of what is left in the account; 1 means all of it, None that there is no account.
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
        cls, budget: Budget, *, pure: bool, ledger: Ledger | None, account: str | None
    ) -> "PrivacyCost":
        """Return the cost of a fit with this budget; the account is looked up, and nothing is charged."""
        price = accounting.total_price(budget.epsilon, budget.delta, pure=pure)
        share = None
        if ledger is not None and account is not None:
            known = ledger.account(account)
            charge = account_units.charge(price, pure=pure, analysis=known.analysis)
            share = charge / known.left if known.left else math.inf
        if pure:
            mu = accounting.mu_of_pure(budget.epsilon)
            return cls(budget.epsilon, 0.0, mu, budget.epsilon, account, share, pure)
        mu = accounting.mu_of_price(price)
        zcdp = accounting.zcdp_epsilon(mu, budget.delta)
        return cls(budget.epsilon, budget.delta, mu, zcdp, account, share, pure)

    def __str__(self) -> str:
        text = f"epsilon={self.epsilon:g}, delta={self.delta:g} (μ={self.mu:.6g}; "
        text += "pure)" if self.pure else f"by zCDP epsilon={self.epsilon_zcdp:.4g})"
        if self.share is None:
            return text
        return f"{text}: {100 * self.share:.1f} % of what is left in account {self.account!r}"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [
            ("epsilon", f"{self.epsilon:g}"),
            ("delta", f"{self.delta:g}"),
            ("μ", f"{self.mu:.6g}"),
            ("epsilon by zCDP", f"{self.epsilon_zcdp:.4g}"),
        ]
        if self.share is not None:
            rows.append(
                (f"of what is left in {brief(self.account)!r}", f"{100 * self.share:.1f} %")
            )
        return html_table("Price of a fit", rows)
