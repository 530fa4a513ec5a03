"""``dpgb-dask fit``."""
# ruff: noqa: N806 - X is scikit-learn's name

import argparse
import sys
from typing import Any

from dpgb_dask import losses
from dpgb_dask.cli.aloud import aloud
from dpgb_dask.cli.constraints import add_constraints, constraints
from dpgb_dask.cli.options import (
    FEW_ROWS,
    MODEL_OUT,
    OK,
    TEXT_FIT,
    add_data,
    command,
    joined,
    open_ledger,
    positive,
)
from dpgb_dask.cli.places import check_out, check_saved, check_spared
from dpgb_dask.cli.tables import beside, open_table, schema_of
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.ledger_book import ENDED
from dpgb_dask.errors import ResumeError, SchemaError
from dpgb_dask.estimators import DPGBClassifier, DPGBRegressor
from dpgb_dask.parameters import FEW_ROWS as FEW_ROWS_WAYS
from dpgb_dask.recipes import RECIPES
from dpgb_dask.remote import path_or_url

AUTO = "auto"  # a value of --resume


def add(commands: Any) -> None:
    """Add the command."""
    example = "dpgb-dask fit people.parquet --schema people.schema.json --epsilon 1 --delta 1e-6 --out model.json"
    text = "fit a model on Parquet, CSV or Zarr"
    fit = command(commands, "fit", text, _fit, example, TEXT_FIT)
    add_data(fit)
    fit.add_argument("--epsilon", type=float, required=True, help="privacy of the whole fit")
    fit.add_argument(
        "--delta", type=float, required=True, help="a constant chosen in advance, such as 1e-6"
    )
    fit.add_argument("--out", type=path_or_url, required=True, help=MODEL_OUT)
    fit.add_argument("--overwrite", action="store_true", help="replace a file at --out")
    fit.add_argument("--weight", help="column of sample weights, up to the schema's max_weight")
    fit.add_argument(
        "--unit", help="column that names the privacy unit, such as a person with several rows"
    )
    fit.add_argument(
        "--max-rows-per-unit", type=positive, default=1, help="rows that count in full (default 1)"
    )
    fit.add_argument(
        "--recipe",
        default="auto",
        metavar="NAME",
        help=f"method (default auto): {', '.join(sorted(RECIPES))}",
    )
    fit.add_argument(
        "--loss",
        metavar="NAME",
        help=f"{', '.join(sorted(losses.LOSSES))}; an option is set as in {losses.options_in_words()} (default: "
        "log_loss, or squared_error for a number)",
    )
    fit.add_argument("--n-estimators", type=int, help="trees or rounds (default: the recipe's)")
    fit.add_argument("--learning-rate", type=float, help="step of one (default: the recipe's)")
    fit.add_argument("--max-depth", type=int, help="depth of a tree (default: the recipe's)")
    fit.add_argument("--max-bins", type=int, help="bins of a feature (default: the recipe's)")
    add_constraints(fit)
    fit.add_argument(
        "--on-few-rows",
        choices=FEW_ROWS_WAYS,
        default="stop",
        help="where the released number of rows cannot be told from none: stop with the start model, charge what was"
        " opened, exit code 4 (default), or continue",
    )
    fit.add_argument(
        "--ledger", metavar="URL", help="ledger to charge, such as sqlite:///budget.db"
    )
    fit.add_argument("--account", metavar="NAME", help="account in the ledger")
    fit.add_argument(
        "--resume",
        metavar="FIT_ID",
        help="go on with an interrupted fit, without a new charge; auto: with the one fit of the account that this"
        " machine keeps a key or a journal of, and begin one if there is none",
    )
    fit.add_argument(
        "--memory-limit", metavar="BYTES", help="most that each process may hold, such as 4GiB"
    )
    fit.add_argument(
        "--cache",
        default="auto",
        metavar="PLACE",
        help="where binned rows are kept: auto (default), memory, disk, a folder, or the URL of a Zarr store",
    )
    fit.add_argument(
        "--random-state", type=int, help="seed of public randomness; it never seeds noise"
    )
    fit.add_argument("--quiet", action="store_true", help="no progress bar")


def _fit(options: argparse.Namespace) -> int:
    if (options.ledger is None) != (options.account is None):
        raise SchemaError("--ledger and --account belong together. Give both, or neither.")
    check_out(options.out, overwrite=options.overwrite)
    check_spared(options, options.out)
    check_saved(options.out)
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
    print(estimator.privacy_report_)
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
        raise ResumeError(
            f"--resume {AUTO}: this machine keeps {len(begun)} fits of account {account!r}: {', '.join(names)}. Name"
            " the one to go on with; or give each run a folder of its own (XDG_DATA_HOME, for a ledger on a server)."
        )
    if begun and begun[0].state in ENDED:
        said = f"fit {names[0]} has ended: its model is made again from its journal, and no row is read"
        print(f"dpgb-dask: {said}", file=sys.stderr)
    return names[0] if names else None
