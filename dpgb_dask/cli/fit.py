"""``dpgb-dask fit``."""
# ruff: noqa: N806 - X is scikit-learn's name

import argparse
import sys

from dpgb_dask import losses
from dpgb_dask.cli.constraints import constraints
from dpgb_dask.cli.messages import aloud, report_text
from dpgb_dask.cli.options import (
    FEW_ROWS,
    OK,
    joined,
    open_ledger,
)
from dpgb_dask.cli.places import check_out, check_spared
from dpgb_dask.cli.tables import beside, open_table, schema_of
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.ledger_book import ENDED
from dpgb_dask.errors import ResumeError, SchemaError
from dpgb_dask.estimators import DPGBClassifier, DPGBRegressor

AUTO = "auto"  # a value of --resume


def run(options: argparse.Namespace) -> int:
    """Fit, save the model and print its report; the exit code says whether the fit stopped early."""
    if (options.ledger is None) != (options.account is None):
        raise SchemaError("--ledger and --account belong together. Give both, or neither.")
    check_out(options.out, overwrite=options.overwrite)
    check_spared(options, options.out)
    schema = schema_of(options)
    X, columns = open_table(options, schema)
    y, weight = beside(options, schema, X, columns)
    ledger = None if options.ledger is None else open_ledger(options.ledger)
    kind = DPGBRegressor if schema.target.type == "numeric" else DPGBClassifier
    estimator = kind(
        epsilon=options.epsilon,
        delta=options.delta,
        schema=schema,
        recipe=options.recipe,
        loss=None if options.loss is None else losses.parse(options.loss),
        n_estimators=options.n_estimators,
        learning_rate=options.learning_rate,
        max_depth=options.max_depth,
        max_bins=options.max_bins,
        **constraints(options),
        columns=options.columns,
        on_few_rows=options.on_few_rows,
        ledger=ledger,
        account=options.account,
        unit_id=options.unit,
        max_rows_per_unit=options.max_rows_per_unit,
        cache=options.cache,
        memory_limit=options.memory_limit,
        random_state=options.random_state,
        verbose=0 if options.quiet else 1,
    )
    with joined(options.scheduler), aloud():
        resume = options.resume
        if resume == AUTO:
            resume = _begun(ledger, options.account)
        estimator.fit(X, y, sample_weight=weight, resume=resume)
    estimator.save(options.out)
    print(report_text(estimator.privacy_report_))
    print(f"\nmodel written to {options.out}")
    return FEW_ROWS if estimator.privacy_report_.stopped else OK


def _begun(ledger: Ledger | None, account: str) -> str | None:
    """Return the fit of an account that was begun on this machine, for a command that is run until it is done.

    The key of a fit is on its disk before the fit is charged, and its journal stays. So a process that was killed at
    any moment has left a file of each fit that it charged, and its successor, with the same folder, charges no second.
    """
    if ledger is None or not ledger.durable:
        raise ResumeError(f"--resume {AUTO} needs --ledger and --account.")
    begun = []
    for fit in ledger.fits(account):
        kept = (ledger.key_path(fit.fit_id), ledger.journal_path(fit.fit_id))
        if fit.state != "SETTLED" and any(path is not None and path.exists() for path in kept):
            begun.append(fit)
    names = [fit.fit_id for fit in begun]
    if len(begun) > 1:
        each = ", ".join(
            f"{fit.fit_id} ({'ended' if fit.state in ENDED else 'unfinished'})" for fit in begun
        )
        raise ResumeError(
            f"--resume {AUTO}: this machine keeps {len(begun)} fits of account {account!r}: {each}. Name"
            " the one to go on with; or give each run a folder of its own (XDG_DATA_HOME, for a ledger on a server)."
        )
    if begun and begun[0].state in ENDED:
        said = f"fit {names[0]} has ended: its model is made again from its journal, and no row is read"
        print(f"dpgb-dask: {said}", file=sys.stderr)
    return names[0] if names else None
