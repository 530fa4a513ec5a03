"""Options of ``dpgb-dask report`` and ``dpgb-dask verify``."""

from typing import Any

from dpgb_dask.cli.options import MODEL, command

VERIFY = """\
Without a ledger: the digests of the file's parts, and that ε, δ and μ follow from its receipts. With it, also: the
whole chain of the ledger; account, terms and charge of the fit; the digest that its entry names, of schema, model,
the whole report and the parameters, the build aside; and, where the fit's journal is there and this is the build that
the file names, the model, computed again from the journal and compared bit for bit. The output says what was compared.
Exit code 0 if all of it agrees, else 1.
It shows tampering beside the ledger. It is no signature: who can write a model file can write another that agrees with
itself, and who can write the ledger can write both."""


def add_report(commands: Any) -> None:
    """Add the command ``report``."""
    text = "print the privacy report of a model file, or write it as a page for the screen and for paper"
    example = "dpgb-dask report model.json --html model-report.html"
    report = command(commands, "report", text, "model.run_report", example)
    report.add_argument("model", help=MODEL)
    form = report.add_mutually_exclusive_group()
    form.add_argument("--text", action="store_true", help="as text (default)")
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--html", metavar="FILE", help="as a page of HTML that needs nothing else")
    report.add_argument("--overwrite", action="store_true", help="replace a file at --html")


def add_verify(commands: Any) -> None:
    """Add the command ``verify``."""
    text = "compare a model file with itself, and with the ledger that its fit charged"
    example = "dpgb-dask verify model.json --ledger sqlite:///budget.db"
    verified = command(commands, "verify", text, "model.run_verify", example, VERIFY)
    verified.add_argument("model", help=MODEL)
    verified.add_argument("--ledger", metavar="URL", help="ledger that the fit charged")
