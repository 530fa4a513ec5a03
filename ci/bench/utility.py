"""Utility over data sets, ε and splits, beside the goals; with ``--rivals`` on the same splits, with the same bounds.

    python ci/bench/utility.py --data DIR --json utility.json
    python ci/bench/utility.py --data DIR --sets adult --epsilons .5,1 --rivals
    python ci/bench/utility.py --data DIR --multiclass

Every fit is at δ = 1e-6 with secret noise; figures differ from run to run within their standard error. Cells are
written to the JSON as they end; the same command with ``--resume`` goes on. Rivals: interpret's DP-EBM (types and
bounds declared), xgboost and LightGBM (not private, untuned). ``--multiclass``: cover_type of covtype_93k, joint
against one-against-rest.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score, root_mean_squared_error
from sklearn.model_selection import train_test_split

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema
from dpgb_dask.contracts.features import Categorical
from dpgb_dask.controller.accounting import epsilon_of, mu_of

DELTA = 1e-6
GOAL_EPSILONS = (0.1, 0.5, 1.0, 2.0, 8.0)
GOALS = {  # AUC at least; RMSE at most
    "adult": (0.872, 0.898, 0.906, 0.911, 0.916),
    "credit_default": (0.742, 0.768, 0.772, 0.776, 0.778),
    "give_me_some_credit": (0.842, 0.850, 0.853, 0.855, 0.856),
    "covtype_93k": (0.81, 0.845, 0.855, 0.864, 0.873),
    "census_kdd_150k": (0.912, 0.925, 0.937, 0.943, 0.945),
    "higgs_26k": (0.62, 0.752, 0.760, 0.770, 0.780),
    "wine_quality": (0.88, 0.775, 0.755, 0.735, 0.71),
    "abalone": (3.15, 2.68, 2.55, 2.44, 2.31),
}
REGRESSION = {"wine_quality", "abalone"}
BASES = {  # files of sets with other names
    "cover_type": "covtype_93k",
    "adult_48842": "adult",
    "adult_codes": "adult",
}
COVER_TYPES = tuple(range(1, 8))  # the seven classes of the documentation of Covertype


class Cell(NamedTuple):
    """One fit. ``epsilon`` is 0 for a rival without privacy."""

    data_set: str
    method: str
    epsilon: float
    seed: int

    @property
    def key(self) -> str:
        return "|".join((self.data_set, self.method, f"{self.epsilon:g}", str(self.seed)))


class Split(NamedTuple):
    schema: Schema
    train: pd.DataFrame
    test: pd.DataFrame
    y_train: np.ndarray
    y_test: np.ndarray

    @property
    def regression(self) -> bool:
        return self.schema.target.type == "numeric"


Scores = dict[str, float]


def read(folder: Path, name: str) -> tuple[Schema, pd.DataFrame, np.ndarray]:
    """Read a data set: its public schema, features and target."""
    base = BASES.get(name, name)
    frame = pd.read_parquet(folder / f"{base}.parquet")
    schema = Schema.load(folder / f"{base}.schema.json")
    if name == "adult":
        frame = frame[~frame["is_test"].astype(bool)]
    if name == "give_me_some_credit":
        frame = frame.dropna()
    if name == "cover_type":
        schema = Schema(schema.features, classes=COVER_TYPES, target="cover_type")
    return schema, frame[list(schema.names)], frame[schema.target.name].to_numpy()


def load(folder: Path, name: str, seed: int) -> Split:
    """Read a data set and split it 80/20."""
    if name == "synthetic":
        return synthetic(seed)
    schema, X, y = read(folder, name)
    return Split(schema, *train_test_split(X, y, test_size=0.2, random_state=seed))


def synthetic(seed: int) -> Split:
    """4,000 rows of two features for a machine without the data: shows that the script runs, nothing else."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(-1, 1, 4000), "b": rng.choice(["u", "v"], 4000)})
    y = (rng.random(4000) < 1 / (1 + np.exp(-4 * X["a"].to_numpy()))).astype(np.int8)
    schema = Schema({"a": (-1, 1), "b": ["u", "v"]}, classes=[0, 1])
    return Split(schema, *train_test_split(X, y, test_size=0.2, random_state=seed))


def fit_ours(split: Split, epsilon: float, seed: int) -> Scores:
    kind = DPGBRegressor if split.regression else DPGBClassifier
    model = kind(epsilon=epsilon, delta=DELTA, schema=split.schema, random_state=seed)
    model.fit(split.train, split.y_train)
    if split.regression:
        return of_numbers(split, model.predict(split.test))
    return of_probabilities(split, np.asarray(model.predict_proba(split.test)))


def fit_one_against_rest(split: Split, epsilon: float, seed: int) -> Scores:
    """K binary fits, each at μ/√K: Σμ² is that of one fit at ``epsilon``."""
    classes = split.schema.target.classes
    each = epsilon_of(mu_of(epsilon, DELTA) / math.sqrt(len(classes)), DELTA)
    schema = Schema(split.schema.features, classes=[0, 1])
    columns = []
    for label in classes:
        model = DPGBClassifier(epsilon=each, delta=DELTA, schema=schema, random_state=seed)
        model.fit(split.train, (split.y_train == label).astype(np.int8))
        columns.append(np.asarray(model.predict_proba(split.test))[:, 1])
    table = np.clip(np.stack(columns, axis=1), 1e-6, None)
    return of_probabilities(split, table / table.sum(axis=1, keepdims=True))


def fit_dp_ebm(split: Split, epsilon: float, seed: int, delta: float = DELTA) -> Scores:
    from interpret.privacy import (  # noqa: PLC0415
        DPExplainableBoostingClassifier,
        DPExplainableBoostingRegressor,
    )

    features = list(split.schema.features.values())
    options = {
        "epsilon": epsilon,
        "delta": delta,
        "random_state": seed,
        "n_jobs": 1,
        "feature_names": list(split.schema.names),
        "feature_types": [
            "nominal" if isinstance(f, Categorical) else "continuous" for f in features
        ],
        "privacy_bounds": {
            j: (f.low, f.high) for j, f in enumerate(features) if not isinstance(f, Categorical)
        },
    }
    train, test = (ebm_frame(table, split.schema) for table in (split.train, split.test))
    if split.regression:
        target = split.schema.target
        options |= {"privacy_target_min": target.low, "privacy_target_max": target.high}
        model = DPExplainableBoostingRegressor(**options).fit(train, split.y_train)
        return of_numbers(split, model.predict(test))
    model = DPExplainableBoostingClassifier(**options).fit(train, split.y_train)
    return of_probabilities(split, model.predict_proba(test))


def ebm_frame(table: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """DP-EBM refuses missing values: text gets a category of its own, a number its low bound; values are clipped."""
    columns = {}
    for name, feature in schema.features.items():
        if isinstance(feature, Categorical):
            columns[name] = table[name].astype("string").fillna("(missing)").astype(object)
        else:
            values = table[name].astype(float).fillna(feature.low)
            columns[name] = values.clip(feature.low, feature.high)
    return pd.DataFrame(columns)


def tree_frame(table: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Categories as pandas categories, in the declared order."""
    columns = {
        name: pd.Categorical(table[name], categories=list(feature.categories))
        if isinstance(feature, Categorical)
        else table[name].astype(float).to_numpy()
        for name, feature in schema.features.items()
    }
    return pd.DataFrame(columns, index=table.index)


def fit_xgboost(split: Split, _epsilon: float, seed: int) -> Scores:
    import xgboost  # noqa: PLC0415

    kind = xgboost.XGBRegressor if split.regression else xgboost.XGBClassifier
    model = kind(n_jobs=1, enable_categorical=True, random_state=seed)
    return fit_trees(split, model)


def fit_lightgbm(split: Split, _epsilon: float, seed: int) -> Scores:
    import lightgbm  # noqa: PLC0415

    kind = lightgbm.LGBMRegressor if split.regression else lightgbm.LGBMClassifier
    return fit_trees(split, kind(n_jobs=1, random_state=seed, verbose=-1))


def fit_trees(split: Split, model: object) -> Scores:
    train, test = (tree_frame(table, split.schema) for table in (split.train, split.test))
    if split.regression:
        return of_numbers(split, model.fit(train, split.y_train).predict(test))
    labels = np.searchsorted(np.asarray(split.schema.target.classes), split.y_train)
    return of_probabilities(split, model.fit(train, labels).predict_proba(test))


def of_numbers(split: Split, predicted: np.ndarray) -> Scores:
    return {"rmse": float(root_mean_squared_error(split.y_test, np.asarray(predicted)))}


def of_probabilities(split: Split, table: np.ndarray) -> Scores:
    classes = np.asarray(split.schema.target.classes)
    scores = {
        "accuracy": float(accuracy_score(split.y_test, classes[table.argmax(axis=1)])),
        "log_loss": float(log_loss(split.y_test, table, labels=classes)),
    }
    if len(classes) == 2:
        return {"auc": float(roc_auc_score(split.y_test, table[:, 1]))} | scores
    return scores


METHODS: dict[str, Callable[[Split, float, int], Scores]] = {
    "dpgb": fit_ours,
    "one-against-rest": fit_one_against_rest,
    "dp-ebm": fit_dp_ebm,
    "xgboost": fit_xgboost,
    "lightgbm": fit_lightgbm,
}
PRIVATE = {"dpgb", "one-against-rest", "dp-ebm"}
PACKAGE_OF = {"dp-ebm": "interpret", "xgboost": "xgboost", "lightgbm": "lightgbm"}


def run(job: tuple[Path, Cell]) -> tuple[Cell, dict[str, float]]:
    folder, cell = job
    split = load(folder, cell.data_set, cell.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rivals warn about their own defaults
        start, wall = time.process_time(), time.perf_counter()
        scores = METHODS[cell.method](split, cell.epsilon, cell.seed)
    return cell, scores | {
        "cpu_s": round(time.process_time() - start, 3),
        "wall_s": round(time.perf_counter() - wall, 3),
    }


def cells_of(options: argparse.Namespace) -> Iterator[Cell]:
    """All fits asked for; splits outermost, so that a stopped run has all sets."""
    if options.multiclass:
        sets, methods = ["cover_type"], ["dpgb", "one-against-rest"]
    else:
        sets, methods = options.sets, ["dpgb"]
    if options.rivals:
        methods += [name for name in PACKAGE_OF if installed(name)]
    for seed in range(options.splits):
        for data_set in sets:
            for method in methods:
                if method == "dp-ebm" and data_set == "cover_type":
                    continue  # DP-EBM is binary only
                for epsilon in options.epsilons if method in PRIVATE else [0.0]:
                    yield Cell(data_set, method, epsilon, seed)


def installed(method: str) -> bool:
    try:
        __import__(PACKAGE_OF[method])
    except ImportError:
        print(
            f"SKIPPED rival {method}: {PACKAGE_OF[method]} is not installed (pip install '.[bench]')"
        )
        return False
    return True


def goal(data_set: str, epsilon: float) -> float | None:
    if data_set not in GOALS or epsilon not in GOAL_EPSILONS:
        return None
    return GOALS[data_set][GOAL_EPSILONS.index(epsilon)]


def print_table(results: dict[str, dict[str, float]], order: list[Cell]) -> bool:
    """Print mean ± standard error per set, method and ε; returns whether a goal of ours was missed."""
    groups: dict[tuple[str, str, float], list[dict[str, float]]] = {}
    for cell in order:
        if cell.key in results:
            groups.setdefault(cell[:3], []).append(results[cell.key])
    missed = False
    print(f"\n{'set':20s} {'method':17s} {'ε':>5s}  {'metric':8s} {'mean ± s.e.':>17s} {'goal':>8s}  "
          f"{'log-loss':>8s} {'CPU s':>7s} n")  # fmt: skip
    for (data_set, method, epsilon), rows in sorted(
        groups.items(), key=lambda g: ([*GOALS, g[0][0]].index(g[0][0]), g[0][1:])
    ):
        metric = next(name for name in ("auc", "rmse", "accuracy") if name in rows[0])
        values = np.array([row[metric] for row in rows])
        mean = values.mean()
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        wanted = goal(data_set, epsilon) if method == "dpgb" else None
        mark = ""
        if wanted is not None:
            short = (mean - wanted) if metric == "rmse" else (wanted - mean)
            if short > 2 * error:
                mark, missed = "  BELOW GOAL by more than 2 s.e.", True
            elif short > 0:
                mark = "  below goal, within 2 s.e."
        loss = np.mean([row.get("log_loss", math.nan) for row in rows])
        print(
            f"{data_set:20s} {method:17s} {epsilon or '–':>5}  {metric:8s} {mean:8.4f} ± {error:6.4f} "
            f"{'' if wanted is None else wanted:>8}  {loss:8.4f} "
            f"{np.mean([row['cpu_s'] for row in rows]):7.2f} {len(rows)}{mark}"
        )
    return missed


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("DPGB_DATA"), help="default: $DPGB_DATA"
    )
    parser.add_argument(
        "--sets", type=lambda t: t.split(","), default=list(GOALS), help="comma-separated"
    )
    parser.add_argument(
        "--epsilons", type=lambda t: [float(e) for e in t.split(",")], default=list(GOAL_EPSILONS)
    )
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument(
        "--multiclass", action="store_true", help="cover_type, joint against one-against-rest"
    )
    parser.add_argument("--json", type=Path, help="written after every fit")
    parser.add_argument(
        "--resume", action="store_true", help="keep the cells that --json already has"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--smoke", action="store_true", help="one small fit; synthetic data without --data"
    )
    options = parser.parse_args(arguments)
    if options.smoke:
        options.epsilons, options.splits = [1.0], 1
        options.sets = ["synthetic"] if options.data is None else ["wine_quality"]
    elif options.data is None:
        parser.error("--data DIR is needed, or DPGB_DATA: the folder that holds adult.parquet")
    if options.data is not None and not Path(options.data).is_dir():
        parser.error(f"--data {options.data} is not a folder")
    if options.resume and options.json is None:
        parser.error("--resume needs --json")
    if unknown := set(options.sets) - {*GOALS, "synthetic"}:
        parser.error(f"unknown sets {sorted(unknown)}; known: {', '.join(GOALS)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    results: dict[str, dict[str, float]] = {}
    if options.resume and options.json.is_file():
        results = json.loads(options.json.read_text())["cells"]
    order = list(cells_of(options))
    jobs = [(options.data, cell) for cell in order if cell.key not in results]
    pool = multiprocessing.get_context("spawn").Pool(options.jobs) if options.jobs > 1 else None
    try:
        for done, (cell, scores) in enumerate(
            pool.imap_unordered(run, jobs) if pool else map(run, jobs), 1
        ):
            results[cell.key] = scores
            shown = " ".join(f"{name}={value:.4f}" for name, value in scores.items())
            print(f"[{done}/{len(jobs)}] {cell.key}: {shown}", flush=True)
            if options.json is not None:
                write(options.json, results)
    finally:
        if pool:
            pool.terminate()
    missed = print_table(results, order)
    return 1 if missed and not options.smoke else 0


def write(path: Path, results: dict[str, dict[str, float]]) -> None:
    """Replace the JSON in one step, so that a stopped run leaves a whole file."""
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({"delta": DELTA, "cells": results}, indent=1) + "\n")
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
