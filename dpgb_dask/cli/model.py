"""``dpgb-dask report``, which prints a model file's report, and ``verify``, which checks the file."""

import argparse

from dpgb_dask.cli.messages import report_text
from dpgb_dask.cli.options import open_ledger
from dpgb_dask.cli.places import check_out, check_spared
from dpgb_dask.estimators import load
from dpgb_dask.remote import path_or_url, put
from dpgb_dask.verification import verify


def run_report(options: argparse.Namespace) -> None:
    """Print the report, or write it as a page."""
    report = load(options.model).privacy_report_
    if options.html is None:
        print(report.to_json() if options.json else report_text(report))
        return
    page = path_or_url(options.html)
    check_spared(options, page, option="--html")
    check_out(page, overwrite=options.overwrite, option="--html")
    put(page, report.to_html())
    print(f"the privacy report is in {options.html}")


def run_verify(options: argparse.Namespace) -> None:
    """Print what was compared."""
    ledger = None if options.ledger is None else open_ledger(options.ledger)
    print(verify(options.model, ledger))
