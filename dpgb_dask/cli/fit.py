"""``dpgb-dask fit``."""
# ruff: noqa: N806 - X is scikit-learn's name

import argparse

from dpgb_dask import losses
from dpgb_dask.cli.begun import AUTO, CommandLedger, command_of
from dpgb_dask.cli.constraints import constraints
from dpgb_dask.cli.messages import aloud, report_text
from dpgb_dask.cli.options import FEW_ROWS, OK, check_outlasts, joined
from dpgb_dask.cli.places import check_out, check_spared
from dpgb_dask.cli.tables import beside, open_table, schema_of
from dpgb_dask.errors import PlanError
from dpgb_dask.estimators import DPGBClassifier, DPGBRegressor


def run(options: argparse.Namespace) -> int:
    """Fit, save the model and print its report; the exit code says whether the fit stopped early."""
    if (options.ledger is None) != (options.account is None):
        raise PlanError("--ledger and --account belong together. Give both, or neither.")
    check_out(options.out, overwrite=options.overwrite)
    check_spared(options, options.out)
    schema = schema_of(options)
    X, columns = open_table(options, schema)
    y, weight = beside(options, schema, X, columns)
    ledger = None
    if options.ledger is not None:
        ledger = CommandLedger(options.ledger, command_of(options.data, schema, options.out))
        check_outlasts(ledger, options.ledger)
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
            if ledger is None:
                raise PlanError(f"--resume {AUTO} needs --ledger and --account.")
            resume = ledger.begun(options.account)
        estimator.fit(X, y, sample_weight=weight, resume=resume)
    estimator.save(options.out)
    print(report_text(estimator.privacy_report_))
    print(f"\nmodel written to {options.out}")
    return FEW_ROWS if estimator.privacy_report_.stopped else OK
