"""What the fits of this process that charged no ledger add up to: nothing else counts them.

They are added up in μ², as in an account of a ledger with ``analysis="gdp"`` (account_units.py). Nothing tells here
whether they were on the same rows, so the sum is that of the worst case. It is shown, and decides nothing.
"""

import math
import threading
from collections.abc import Sequence

from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.contracts.spending import Item
from dpgb_dask.controller import accounting
from dpgb_dask.released.report import PrivacyReport
from dpgb_dask.training.cost import account_charge

_lock = threading.Lock()
_charges: list[int] = []  # of each fit, in units of 2⁻⁶⁴ of μ²


def count(report: PrivacyReport, bill: Sequence[Item]) -> None:
    """Add a fit that has just ended, if it is private and charged no account; its bill as in `account_charge`."""
    if report.private and report.account is None:
        charge = account_charge(report, bill, "gdp")
        with _lock:
            _charges.append(charge)


def together(delta: float) -> str:
    """Say what such fits add up to at this δ; "" if there are fewer than two.

    Parameters
    ----------
    delta : float
        0, as in the report of a pure fit, is taken for 10⁻⁶, as the sum is no pure guarantee.
    """
    with _lock:
        charges = tuple(_charges)
    if len(charges) < 2:
        return ""
    delta = delta or 1e-6
    mu = math.sqrt(sum(charges) / PRICE_ONE) * (1 + 1e-12)
    epsilon = accounting.epsilon_of(mu, delta * float(1 - accounting.SLACK))
    return (
        f"{len(charges)} fits of this process charged no ledger: on the same rows they add up to"
        f" epsilon={epsilon:.4g} at delta={delta:g}"
    )
