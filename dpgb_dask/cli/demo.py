"""``dpgb-dask demo``: a private model of made-up census data, beside one without privacy."""
# ruff: noqa: N806 - X is scikit-learn's name

import argparse
import time
from pathlib import Path

from dask.base import compute
from distributed import Client, LocalCluster
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from dpgb_dask.cli.messages import aloud, report_text
from dpgb_dask.cli.options import FEW_ROWS, OK
from dpgb_dask.cli.places import check_out, check_spared
from dpgb_dask.datasets import TARGET, census_schema, make_census
from dpgb_dask.errors import DPGBError, StructureError
from dpgb_dask.estimators import DPGBClassifier, load


def run(options: argparse.Namespace) -> int:
    """Fit and print; the exit code says whether the fit stopped early."""
    # imported here, as no other command needs it
    from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415

    started = time.perf_counter()
    _check_demo_out(options.out)
    check_spared(options, options.out)
    people, schema = make_census(options.rows)
    X, y = people[list(schema.names)], people[TARGET]
    test = make_census(options.rows // 5 + 1, random_state=1)[0].compute()
    X_test, y_test = test[list(schema.names)], test[TARGET]
    print(
        f"made-up census data: {options.rows} rows x {schema.n_features} features in {X.npartitions} Dask partitions"
    )
    workers = {"n_workers": options.workers, "threads_per_worker": 1}
    cluster = LocalCluster(**workers, processes=options.processes, dashboard_address=":0")
    with cluster as local, Client(local):
        kind = "processes" if options.processes else "threads of this process"
        print(f"local cluster: {options.workers} workers, {kind}, dashboard {local.dashboard_link}")
        model = DPGBClassifier(
            epsilon=options.epsilon,
            delta=options.delta,
            schema=schema,
            verbose=0 if options.quiet else 1,
        )
        print(f"price of the fit, before touching data: {model.privacy_cost()}")
        began = time.perf_counter()
        with aloud():
            model.fit(X, y)
        took = time.perf_counter() - began
    # in this process: workers in others need not import all of dask.dataframe for it
    rows = compute(X, y)
    with threadpool_limits(1):  # several threads would wait for each other while other work runs
        rival = HistGradientBoostingClassifier().fit(*rows)
        theirs = roc_auc_score(y_test, rival.predict_proba(X_test)[:, 1])
    ours = roc_auc_score(y_test, model.predict_proba(X_test)[:, 1])
    model.save(options.out)
    print(f"\n{report_text(model.privacy_report_)}\n")
    print("AUC on held-out rows")
    print(
        f"  dpgb_dask, epsilon={options.epsilon:g}, delta={options.delta:g}: {ours:.4f}   (fit {took:.1f} s)"
    )
    print(f"  scikit-learn HistGradientBoosting, no privacy: {theirs:.4f}")
    print(f"\nmodel written to {options.out}; whole demo {time.perf_counter() - started:.0f} s")
    return FEW_ROWS if model.privacy_report_.stopped else OK


def _check_demo_out(path: Path) -> None:
    """Refuse to replace a file that the demo did not write."""
    if path.exists():
        try:
            mine = load(path).schema_ == census_schema()
        except (DPGBError, OSError):
            mine = False
        if not mine:
            raise StructureError(
                f"--out {str(path)!r} exists already, and is no model of the demo. Choose another name."
            )
    check_out(path, overwrite=True)
