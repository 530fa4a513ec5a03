"""Options of ``dpgb-dask ledger``."""

from typing import Any

from dpgb_dask.cli.options import command
from dpgb_dask.names import ACCOUNT_UNITS, ROLES


def add(commands: Any) -> None:
    """Add the command and its actions."""
    text = "open an account, show what is left, settle a fit, verify or restore the ledger"
    ledger = commands.add_parser("ledger", help=text, description=text)
    actions = ledger.add_subparsers(dest="action", required=True, metavar="ACTION")
    url = "such as sqlite:///budget.db"

    text = "open an account with a cap on all of its fits together"
    example = "dpgb-dask ledger open sqlite:///budget.db people --epsilon 3 --delta 1e-6"
    opened = command(actions, "open", text, "ledger.run_open", example)
    opened.add_argument("url", help=url)
    opened.add_argument("account", help="name; one account per data set")
    opened.add_argument("--epsilon", type=float, required=True, help="cap of the account")
    opened.add_argument(
        "--delta", type=float, required=True, help="delta of the cap; may be 0 with --analysis pure"
    )
    opened.add_argument(
        "--analysis",
        choices=sorted(ACCOUNT_UNITS),
        default="gdp",
        help="how charges add up: gdp (default; tight for Gaussian noise), zcdp, or pure, for recipes of pure"
        " differential privacy alone",
    )
    opened.add_argument(
        "--unit",
        metavar="COLUMN",
        help="the cap holds for all rows of one such unit together, and fits with this --unit alone can charge the"
        " account (default: for one row, and fits with and without --unit can)",
    )

    example = "dpgb-dask ledger show sqlite:///budget.db"
    shown = command(actions, "show", "print accounts and their fits", "ledger.run_show", example)
    shown.add_argument("url", help=url)
    shown.add_argument("account", nargs="?", help="one account (default: all)")
    shown.add_argument("--json", action="store_true", help="as JSON, with digests at full length")

    text = "close an interrupted fit for good; what it opened stays charged"
    example = "dpgb-dask ledger settle sqlite:///budget.db FIT_ID"
    settled = command(actions, "settle", text, "ledger.run_settle", example)
    settled.add_argument("url", help=url)
    settled.add_argument("fit_id", help="from: dpgb-dask ledger show")

    text = "go through every entry: nothing changed by hand, nothing missing; exit code 1 if it is not so"
    example = "dpgb-dask ledger verify sqlite:///budget.db"
    verified = command(actions, "verify", text, "ledger.run_verify", example)
    verified.add_argument("url", help=url)

    text = "go on with a ledger that was restored from a copy; charges that are not in the copy are forgotten"
    example = "dpgb-dask ledger restore sqlite:///budget.db"
    restored = command(actions, "restore", text, "ledger.run_restore", example)
    restored.add_argument("url", help=url)

    text = "let a role of the database server charge fits, or only read; what else it could do is taken from it"
    example = "dpgb-dask ledger grant URL --role analyst alice"
    granted = command(actions, "grant", text, "ledger.run_grant", example)
    granted.add_argument("url", help="such as postgresql+psycopg://owner@host/db")
    granted.add_argument("name", help="the role; it exists on the server")
    granted.add_argument(
        "--role",
        choices=ROLES,
        required=True,
        help="an analyst charges fits, an auditor only reads",
    )

    text = "take from a role of the database server all rights on the ledger"
    example = "dpgb-dask ledger revoke URL alice"
    revoked = command(actions, "revoke", text, "ledger.run_revoke", example)
    revoked.add_argument("url", help="such as postgresql+psycopg://owner@host/db")
    revoked.add_argument("name", help="the role")
