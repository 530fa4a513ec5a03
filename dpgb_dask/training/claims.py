"""Check that the claims of a report follow from its receipts: ε, δ and μ, what was spent, and what is protected.

The accounting that charged the fit is repeated from public and released numbers. So a file whose report was edited into
a smaller ε does not load, even if its digests were made to agree. Nothing here can tell whether a fit took place: that
is for the ledger (`dpgb_dask.verify`).
"""

import math
from collections.abc import Iterator

from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.queries import PRICE_ONE, RowDraw
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.contracts.spending import Spending
from dpgb_dask.controller import accounting
from dpgb_dask.errors import DPGBError, StructureError
from dpgb_dask.released.report import PrivacyReport
from dpgb_dask.released.statement import ONE_ROW

CLOSE = 1e-9  # relative: transcendental functions differ in their last digits between machines
LEAST_DELTA = 0.99  # share of δ that a price uses at least: SLACK is reserved, prices are rounded
MECHANISMS = {True: ("laplace", "choice"), False: ("gaussian", "choice")}


def relation(schema: Schema) -> tuple[str, str]:
    """Return, in words, when two data sets are neighbours and what is protected."""
    if schema.unit_id is None:
        return ONE_ROW, "row"
    return f"add or remove all rows of one {schema.unit_id!r}", schema.unit_id


def check_claims(report: PrivacyReport, schema: Schema) -> None:
    """Refuse a report whose claims do not follow from its receipts.

    The rule, for a report of declared price P, and receipts of prices p and draws r, prices in units of 2⁻⁶⁴:

    - positions count from 0, and all receipts belong to the report's fit and to mechanisms of its currency;
    - ``charged`` is `Spending` of (p, r), and at most P;
    - pure: P = ⌊2⁶⁴ ε⌋, δ = 0, μ = `mu_of_pure` (P), and ε by zCDP is ε;
    - else μ² = P, .99 δ <= δ(ε; μ) <= δ by the exact curve of μ-GDP, the slack is at most δ/1000, and ε by zCDP is that
      of μ at δ;
    - relation and unit are those of the schema; a schema read from data, or test noise, is not private.

    The results of other accountants (``compared``) are not checked: nothing is promised by them.

    Raises
    ------
    StructureError
        If a claim does not follow; the message names it.
    """
    try:
        wrong = next(_wrong(report, schema), None)
    except (DPGBError, ArithmeticError, ValueError):  # numbers that no fit has
        wrong = "a number"
    if wrong is not None:
        raise StructureError(
            f"The privacy report is not that of a fit: {wrong} does not follow from its receipts and its schema. It was"
            " changed after it was written: take the file as it was written."
        )


def _wrong(report: PrivacyReport, schema: Schema) -> Iterator[str]:
    """Yield the names of the claims that do not follow."""
    if not all(_belongs(receipt, k, report) for k, receipt in enumerate(report.receipts)):
        yield "a receipt"
    if (report.relation, report.unit) != relation(schema):
        yield "relation"
    if report.private and (not schema.private or report.fit_id.startswith("seeded-")):
        yield "private"
    # prices are whole numbers, but amplified ones are computed with floats
    if not _close(_spent(report), report.charged) or report.charged > report.declared:
        yield "charged"
    if not report.epsilon > 0 or report.declared <= 0:
        yield "epsilon"
    yield from _wrong_pure(report) if report.pure else _wrong_gaussian(report)


def _belongs(receipt: Receipt, position: int, report: PrivacyReport) -> bool:
    """Return whether a receipt belongs to the report's fit, at this position, in its currency."""
    same = (receipt.position, receipt.fit_id) == (position, report.fit_id)
    return same and receipt.mechanism in MECHANISMS[report.pure] and receipt.price > 0


def _spent(report: PrivacyReport) -> int:
    """Add up the receipts by the draws that served them; raises ValueError if their numbers differ."""
    spending = Spending(pure=report.pure)
    draws = report.draws or [None] * len(report.receipts)
    for receipt, draw in zip(report.receipts, draws, strict=True):
        spending = spending.plus(receipt.price, None if draw is None else RowDraw(*draw))
    return spending.spent


def _wrong_pure(report: PrivacyReport) -> Iterator[str]:
    if report.declared != accounting.total_price(report.epsilon, 0.0, pure=True):
        yield "epsilon"
    if report.delta != 0:
        yield "delta"
    if not _close(report.mu, accounting.mu_of_pure(report.declared / PRICE_ONE)):
        yield "mu"
    if report.epsilon_zcdp != report.epsilon:
        yield "epsilon by zCDP"


def _wrong_gaussian(report: PrivacyReport) -> Iterator[str]:
    mu, delta = accounting.mu_of_price(report.declared), report.delta
    if not _close(report.mu, mu):
        yield "mu"
    if not LEAST_DELTA * delta <= accounting.delta_of(mu, report.epsilon) <= delta < 1:
        yield "epsilon, delta or mu"
    if not 0 <= report.slack <= delta * float(accounting.SLACK):
        yield "slack"
    zcdp = accounting.zcdp_epsilon(mu, delta)
    if not math.isclose(report.epsilon_zcdp, zcdp, rel_tol=1e-6):
        yield "epsilon by zCDP"


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE * max(abs(one), abs(other))
