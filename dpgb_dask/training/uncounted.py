"""What the fits of this process that charged no ledger add up to: nothing else counts them.

They are added up in μ², as in an account of a ledger with ``analysis="gdp"`` (account_units.py), or pure fits in ε, if
that is less. Nothing tells here whether they were on the same rows, so the sum is that of the worst case. It is shown,
and decides nothing.
"""

import math
import threading
from collections.abc import Sequence

from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.contracts.spending import Item
from dpgb_dask.controller import accounting
from dpgb_dask.display import exact
from dpgb_dask.released.report import PrivacyReport
from dpgb_dask.training.cost import account_charge

_lock = threading.Lock()
# of each fit: its charge in units of 2⁻⁶⁴ of μ², and its ε if it is pure
_charges: list[tuple[int, float | None]] = []


def count(report: PrivacyReport, bill: Sequence[Item]) -> None:
    """Add a fit that has just ended, if it is private and charged no account; its bill as in `account_charge`."""
    if report.private and report.account is None:
        charge = account_charge(report, bill, "gdp")
        with _lock:
            _charges.append((charge, report.epsilon if report.pure else None))


def together(delta: float) -> str:
    """Say what such fits add up to at this δ, at δ = 0 if all are pure; "" if there are fewer than two.

    Parameters
    ----------
    delta : float
        0, as in the report of a pure fit, is taken for 10⁻⁶ if others are not pure.
    """
    with _lock:
        fits = tuple(_charges)
    if len(fits) < 2:
        return ""
    epsilon = math.fsum(own for _, own in fits if own is not None)
    rest = [charge for charge, own in fits if own is None]
    if rest:
        delta = delta or 1e-6
        # ε-private releases and an (ε', δ)-private one are together (ε + ε', δ)-private; both figures hold
        squares = [charge for charge, _ in fits]
        epsilon = min(_epsilon(squares, delta), epsilon + _epsilon(rest, delta))
    else:
        delta = 0.0
    return (
        f"{len(fits)} fits of this process charged no ledger: on the same rows they add up to"
        f" epsilon={epsilon:.4g} at delta={exact(delta)}"
    )


def _epsilon(charges: Sequence[int], delta: float) -> float:
    """Return the ε at this δ of fits that are added up in μ²."""
    mu = math.sqrt(sum(charges) / PRICE_ONE) * (1 + 1e-12)
    return accounting.epsilon_of(mu, delta * float(1 - accounting.SLACK))
