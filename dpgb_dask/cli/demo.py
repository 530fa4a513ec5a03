"""``dpgb-dask demo``: a private model of made-up census data, beside one without privacy."""
# ruff: noqa: N806 - X is scikit-learn's name

import argparse
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from dpgb_dask.cli.options import command, positive
from dpgb_dask.cli.places import check_out, check_spared
from dpgb_dask.columns import POSITION
from dpgb_dask.contracts.plan import PublicRng
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import DPGBError, StructureError
from dpgb_dask.estimators import DPGBClassifier, load
from dpgb_dask.released.export import part_of

DEMO_SEED = 2026
DEMO_CHUNK = 10_000
HELD_OUT = 1 << 20  # first block of the held-out rows; no fit uses blocks from here on
DEMO_SCHEMA = {
    "version": 1,
    "features": {
        "age": {"type": "numeric", "low": 17, "high": 90, "integer": True},
        "education_years": {"type": "numeric", "low": 0, "high": 20, "integer": True},
        "hours_per_week": {"type": "numeric", "low": 0, "high": 100, "integer": True},
        "capital_gain": {"type": "numeric", "low": 0, "high": 100000},
        "commute_km": {"type": "numeric", "low": 0, "high": 200, "missing": True},
        "tenure_years": {"type": "numeric", "low": 0, "high": 50},
        "household_size": {"type": "numeric", "low": 1, "high": 10, "integer": True},
        "occupation": {"type": "categorical", "categories": list(range(12))},
        "region": {"type": "categorical", "categories": list(range(8))},
        "married": {"type": "categorical", "categories": [0, 1]},
    },
    "target": {"name": "high_income", "type": "binary", "classes": [0, 1]},
}


def add(commands: Any) -> None:
    """Add the command."""
    text = "fit made-up census data on a local cluster, and write the model"
    demo = command(commands, "demo", text, _demo, "dpgb-dask demo --epsilon 0.5")
    demo.add_argument("--epsilon", type=float, default=1.0, help="privacy of the fit (default 1)")
    demo.add_argument("--delta", type=float, default=1e-6, help="(default 1e-6)")
    demo.add_argument(
        "--rows", type=positive, default=120_000, help="rows to make up (default 120000)"
    )
    demo.add_argument("--workers", type=positive, default=2, help="worker processes (default 2)")
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("demo-model.json"),
        help="model file (default ./demo-model.json)",
    )
    demo.add_argument("--quiet", action="store_true", help="no progress bar")


def _demo(options: argparse.Namespace) -> None:
    # imported here, as no other command needs it
    from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415

    started = time.perf_counter()
    _check_demo_out(options.out)
    check_spared(options, options.out, part_of(options.out))
    schema = Schema.from_dict(DEMO_SCHEMA)
    X, y = demo_data(options.rows)
    X_test, y_test = compute(*demo_data(options.rows // 5 + 1, HELD_OUT))
    print(
        f"made-up census data: {X.shape[0]} rows x {X.shape[1]} features in {X.numblocks[0]} Dask chunks"
    )
    workers = {"n_workers": options.workers, "threads_per_worker": 1}
    with LocalCluster(**workers, dashboard_address=":0") as local, Client(local):
        print(f"local cluster: {options.workers} workers, dashboard {local.dashboard_link}")
        model = DPGBClassifier(
            epsilon=options.epsilon,
            delta=options.delta,
            schema=schema,
            columns=POSITION,
            verbose=0 if options.quiet else 1,
        )
        print(f"price of the fit, before touching data: {model.privacy_cost()}")
        began = time.perf_counter()
        model.fit(X, y)
        took = time.perf_counter() - began
        rows = compute(X, y)
    with threadpool_limits(1):  # several threads would wait for each other while other work runs
        rival = HistGradientBoostingClassifier().fit(*rows)
    ours = roc_auc_score(y_test, model.predict_proba(X_test)[:, 1])
    theirs = roc_auc_score(y_test, rival.predict_proba(X_test)[:, 1])
    model.save(options.out)
    print(f"\n{model.privacy_report_}\n")
    print("AUC on held-out rows")
    print(
        f"  dpgb_dask, epsilon={options.epsilon:g}, delta={options.delta:g}: {ours:.4f}   (fit {took:.1f} s)"
    )
    print(f"  scikit-learn HistGradientBoosting, no privacy: {theirs:.4f}")
    print(f"\nmodel written to {options.out}; whole demo {time.perf_counter() - started:.0f} s")


def _check_demo_out(path: Path) -> None:
    """Refuse to replace a file that the demo did not write."""
    if path.exists():
        try:
            mine = load(path).schema_ == Schema.from_dict(DEMO_SCHEMA)
        except (DPGBError, OSError):
            mine = False
        if not mine:
            raise StructureError(
                f"--out {str(path)!r} exists already, and is no model of the demo. Choose another name."
            )
    check_out(path, overwrite=True)


def demo_data(n_rows: int, first: int = 0) -> tuple[da.Array, da.Array]:
    """Return (X, y) of the demo as chunked Dask Arrays, from block ``first`` on; nothing is computed."""
    sizes = [DEMO_CHUNK] * (n_rows // DEMO_CHUNK) + (
        [n_rows % DEMO_CHUNK] if n_rows % DEMO_CHUNK else []
    )
    blocks = [
        da.from_delayed(delayed(demo_block)(size, first + k), (size, 11), np.float64)
        for k, size in enumerate(sizes)
    ]
    table = da.concatenate(blocks)
    return table[:, :10], table[:, 10]


def demo_block(n_rows: int, block: int) -> NDArray[np.float64]:
    """Make up census-like rows: the columns of `DEMO_SCHEMA`, then the label. Public data from a public seed.

    Parameters
    ----------
    n_rows : int
    block : int
        Number of the block; a block has the same rows on every machine.

    Returns
    -------
    (n_rows, 11) float64
    """
    rng = PublicRng(DEMO_SEED).stream("demo", block)
    age = np.clip(rng.gamma(6.0, 6.5, n_rows) + 15, 17, 90).round()
    education = np.clip(rng.normal(12, 2.8, n_rows), 0, 20).round()
    hours = np.clip(rng.normal(40, 11, n_rows), 0, 100).round()
    gain = np.where(
        rng.random(n_rows) < 0.09, np.minimum(rng.lognormal(8.3, 1.2, n_rows), 1e5), 0.0
    )
    commute = np.minimum(rng.lognormal(2.3, 0.9, n_rows), 200)
    commute[rng.random(n_rows) < 0.1] = np.nan
    tenure = np.minimum(rng.exponential(6.0, n_rows), np.minimum(age - 16, 50))
    household = np.clip(1 + rng.poisson(1.6, n_rows), 1, 10)
    occupation, region = rng.integers(0, 12, n_rows), rng.integers(0, 8, n_rows)
    married = (rng.random(n_rows) < 1 / (1 + np.exp(-(age - 32) / 9))).astype(float)
    job = np.sin(1.7 * np.arange(12))[occupation]
    prime = np.exp(-(((age - 48) / 16) ** 2))
    score = (
        -4.3
        + 2.2 * prime
        + 0.28 * (education - 12)
        + 0.035 * (hours - 40)
        + 0.9 * np.log1p(gain / 3000)
        + 0.8 * job
        + 0.25 * np.cos(2.1 * np.arange(8))[region]
        + 1.3 * married
        + 0.05 * np.sqrt(tenure)
        + 0.9 * married * (household <= 2)  # two incomes, no children
        + 0.12 * (education - 12) * prime * (job > 0)  # a degree pays in some jobs, in mid-career
        - 0.02 * (hours - 40) * (age > 62)
    )
    label = rng.random(n_rows) < 1 / (1 + np.exp(-score))
    columns = [
        age,
        education,
        hours,
        gain,
        commute,
        tenure,
        household,
        occupation,
        region,
        married,
        label,
    ]
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)
