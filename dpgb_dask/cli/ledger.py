"""``dpgb-dask ledger``: accounts, and the fits that were charged to them."""

import argparse
import json
from typing import Any

from dpgb_dask.cli.options import open_ledger
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.ledger_book import ENDED, Account
from dpgb_dask.display import exact, floored, seen
from dpgb_dask.errors import LedgerError


def run_open(options: argparse.Namespace) -> None:
    """Open an account."""
    ledger = open_ledger(options.url)
    known = {account.name for account in ledger.accounts()}
    ledger.open_account(
        options.account,
        epsilon=options.epsilon,
        delta=options.delta,
        analysis=options.analysis,
        unit_id=options.unit,
    )
    cap = (
        f"epsilon={exact(options.epsilon)}, delta={exact(options.delta)}, analysis {options.analysis}, for"
        f" {_relation(options.unit)}"
    )
    if options.account not in known:
        print(f"account {options.account!r} opened: {cap}")
        return
    left = _left(ledger, ledger.account(options.account))
    print(f"account {options.account!r} exists already, and nothing changed: {cap}; {left}")


def _left(ledger: Ledger, account: Account) -> str:
    """Return in words what is left of an account."""
    epsilon, share = floored(ledger.remaining(account.name), 4), account.left / account.cap
    return f"one more fit at this delta may ask epsilon={epsilon} ({100 * share:.2f} % left)"


def _share(charge: int, cap: int) -> str:
    """Return a charge in words."""
    return f"{100 * charge / cap:.2f} % of the cap"


def _relation(unit_id: str | None) -> str:
    """Return in words what an account protects."""
    return "one row" if unit_id is None else f"all rows of one {unit_id!r}"


def run_show(options: argparse.Namespace) -> None:
    """Print accounts and their fits."""
    ledger = open_ledger(options.url)
    accounts = ledger.accounts() if options.account is None else (ledger.account(options.account),)
    if not accounts:
        raise LedgerError(
            f"There is no ledger at {options.url!r}, or no account in it. Open one with: dpgb-dask ledger open"
        )
    if options.json:
        told = [_as_json(ledger, account) for account in accounts]
        print(json.dumps(told, indent=1, ensure_ascii=False))
        return
    for account in accounts:
        cap = (
            f"cap epsilon={exact(account.epsilon)}, delta={exact(account.delta)}, analysis {account.analysis}, for"
            f" {_relation(account.unit_id)}"
        )
        print(f"{seen(account.name)}: {cap}; {_left(ledger, account)}")
        _print_fits(ledger, account)


def _as_json(ledger: Ledger, account: Account) -> dict[str, Any]:
    """Return an account with its fits, the oldest first."""
    return {
        "account": account.name,
        "epsilon": account.epsilon,
        "delta": account.delta,
        "analysis": account.analysis,
        "unit_id": account.unit_id,
        "share_left": account.left / account.cap,
        "epsilon_left": ledger.remaining(account.name),
        "fits": [
            {
                "fit_id": fit.fit_id,
                "opened": fit.at,
                "who": fit.terms.who or None,  # old ledgers record neither this nor the recipe
                "role": fit.role or None,
                "recipe": fit.terms.facts.get("recipe"),
                "epsilon": fit.terms.epsilon,
                "delta": 0.0 if fit.terms.pure else fit.terms.delta,
                "unit_id": fit.terms.unit_id,
                "state": fit.state if fit.state in ENDED else "UNFINISHED",
                "share_of_cap": fit.charge / account.cap,
                "version": fit.terms.version,
                "model": fit.model or None,
            }
            for fit in ledger.fits(account.name)
        ],
    }


def _print_fits(ledger: Ledger, account: Account) -> None:
    """Print a table of an account's fits, the oldest first."""
    fits = [
        fit.shown() | {"charge": _share(fit.charge, account.cap)}
        for fit in ledger.fits(account.name)
    ]
    if not fits:
        return
    table = [list(fits[0]), *(list(map(str, fit.values())) for fit in fits)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"  {'  '.join(cells).rstrip()}")
    if any(fit["state"] == "UNFINISHED" for fit in fits):
        print(
            "  An UNFINISHED fit is running, or broke off: dpgb-dask fit … --resume FIT goes on with it, and dpgb-dask"
            " ledger settle closes it."
        )


def run_settle(options: argparse.Namespace) -> None:
    """Close a fit."""
    ledger = open_ledger(options.url)
    fit = ledger.record(options.fit_id)
    ended = fit.state in ENDED
    cap = ledger.account(fit.account).cap
    key = ledger.key_path(fit.fit_id)
    here = key is not None and key.exists()
    charge = ledger.settle(fit.fit_id)
    print(
        f"fit {fit.fit_id} had ended before: its charge stands ({_share(charge, cap)})"
        if ended
        else f"fit {fit.fit_id} is settled, and cannot be resumed: {_share(charge, cap)} stays charged, of"
        f" {_share(fit.charge, cap)} that it had reserved"
    )
    if here:
        print("its key is erased")
    elif not ended:
        print(
            "its key is not on this machine: it is erased when the machine that has it opens the ledger the next time"
        )


def run_verify(options: argparse.Namespace) -> None:
    """Print whether the ledger agrees with itself."""
    checked = open_ledger(options.url).verify()
    print(
        f"the ledger agrees with itself: hash chain of {checked.entries} entries; {checked.accounts} accounts and"
        f" {checked.fits} fits follow from them"
    )
    print(
        "the newest head that is kept outside the database is in the chain: this is no older copy than that"
        if checked.head
        else "no newest head is known on this machine, so an older copy would not be noticed"
    )
    print("this finds damage, old copies and edits by hand; it is no signature")


def run_restore(options: argparse.Namespace) -> None:
    """Go on with a restored copy."""
    if not open_ledger(options.url).restore():
        print("nothing to restore: the ledger holds its newest known head")
        return
    print(
        "the ledger goes on from this copy. Charges that are not in it are forgotten: what such fits gave is counted no"
        " more. Fits that are UNFINISHED here cannot be resumed, and keep their whole charge when settled"
    )


def run_grant(options: argparse.Namespace) -> None:
    """Give a role its rights."""
    open_ledger(options.url).grant(options.role, options.name)
    may = (
        "charge fits to its accounts, and read it" if options.role == "analyst" else "only read it"
    )
    print(f"{options.name!r} is {options.role} of the ledger: it may {may}")


def run_revoke(options: argparse.Namespace) -> None:
    """Take a role all rights."""
    open_ledger(options.url).revoke(options.name)
    print(f"{options.name!r} has no rights on the ledger any more")
