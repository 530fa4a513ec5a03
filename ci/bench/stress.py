"""Tables on which a default may go wrong: ours beside the constant predictor and beside rivals, and what remains.

    python ci/bench/stress.py --json stress.json
    python ci/bench/stress.py --tables zeros,copies --epsilons 1 --recipe additive
    python ci/bench/stress.py --rivals            # fits what ci/bench/stress_rivals.json lacks
    python ci/bench/stress.py --smoke

A failure is a mean log-loss or RMSE above the constant's (mean or base rate of the training rows, not private) by more
than 1 %, or an AUC or RMSE worse than a rival's by more than two standard errors of the paired difference over seeds
(a log-loss of several classes, and where an AUC would be chance). Every fit is at δ = 1e-6 with secret noise. Rivals'
figures are kept in ``stress_rivals.json``; without ``--rivals`` none is fitted. The exit code is 1 on a failure.
"""

import argparse
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
from datasets import Scores
from fitters import DELTA, fit_constant, installed, method_of, ours
from stress_tables import NOTHING, TABLES

EPSILONS = (0.1, 1.0, 8.0)
SEEDS = 5
RIVALS = ("dp-ebm", "dpgb:dp-ebm-newton", "dpgb:fdp-tr-newton", "dpgb:fdp-tr-newton-ih-ebm")
RIVALS_FILE = Path(__file__).with_name("stress_rivals.json")
ALLOWED = 0.01  # above the constant; a constant that never errs allows .01 nats, or .01 of the target's width
ERRORS = 2.0

Cells = dict[str, Scores]  # by table|method|ε|seed


@cache
def constant_loss(table: str, seed: int) -> float:
    """Return the log-loss or RMSE of the mean or base rate of the training rows."""
    scores = fit_constant(TABLES[table](seed), 0.0, seed)
    return scores.get("rmse", scores.get("log_loss"))


class Failure(NamedTuple):
    table: str
    epsilon: float
    against: str
    words: str


def key(table: str, method: str, epsilon: float, seed: int) -> str:
    return f"{table}|{method}|{epsilon:g}|{seed}"


def fit(table: str, method: str, epsilon: float, seed: int) -> Scores:
    """Fit one method on one table; a rival that refuses the table has no scores."""
    split = TABLES[table](seed)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one class alone an AUC is nan
        try:
            scores = method_of(method)(split, epsilon, seed)
        except Exception as error:
            if method != "dp-ebm":
                raise
            print(f"{method} refuses {table}: {type(error).__name__}")
            return {}
    kept = {name: round(value, 6) for name, value in scores.items() if not math.isnan(value)}
    return kept | {"cpu_s": round(time.process_time() - start, 2)}


def complete(path: Path | None, head: dict[str, object], wanted: Iterator[tuple], old: Cells) -> Cells:  # fmt: skip
    """Fit what is wanted and not among old cells; the file is replaced after every fit."""
    cells = dict(old)
    for cell in wanted:
        if key(*cell) in cells:
            continue
        cells[key(*cell)] = scores = fit(*cell)
        print(key(*cell), " ".join(f"{n}={v:.4f}" for n, v in scores.items()), flush=True)
        if path is not None:
            write(path, head, cells)
    return cells


def write(path: Path, head: dict[str, object], cells: Cells) -> None:
    """Write one line per cell, in one step."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(cells[name])}" for name in sorted(cells))
    parts = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    draft = path.with_suffix(".tmp")
    draft.write_text("{\n" + ",\n".join([*parts, f' "cells": {{\n{lines}\n }}']) + "\n}\n")
    draft.replace(path)


def values(cells: Cells, table: str, method: str, epsilon: float, metric: str, seeds: range) -> np.ndarray:  # fmt: skip
    """Return a metric by seed; nan where there is none."""
    rows = (cells.get(key(table, method, epsilon, seed), {}) for seed in seeds)
    return np.array([row.get(metric, math.nan) for row in rows])


def judge(table: str, epsilon: float, method: str, cells: Cells, seeds: range) -> list[Failure]:
    """Print a line of one table and ε; returns its failures."""
    split = TABLES[table](0)
    loss = "rmse" if split.regression else "log_loss"
    constant = np.array([constant_loss(table, seed) for seed in seeds])
    mine = values(cells, table, method, epsilon, loss, seeds)
    failures = []
    width = split.schema.target.high - split.schema.target.low if split.regression else 1.0
    allowed = ALLOWED * (constant.mean() if constant.mean() > 1e-6 else width)
    above = mine.mean() - constant.mean()
    if not above <= allowed:
        words = f"{loss} {mine.mean():.4g} against {constant.mean():.4g}"
        failures.append(Failure(table, epsilon, "constant", words))
    of_two = not split.regression and len(split.schema.target.classes) == 2
    metric = "auc" if of_two and table not in NOTHING else loss
    mine = values(cells, table, method, epsilon, metric, seeds)
    sign = -1 if metric == "auc" else 1
    shown = []
    for rival in RIVALS:
        theirs = values(cells, table, rival, epsilon, metric, seeds)
        both = ~np.isnan(theirs)
        shown.append(f"{theirs[both].mean():10.4g}" if both.any() else f"{'–':>10s}")
        if both.sum() < 2:
            continue
        worse = sign * (mine - theirs)[both]
        error = worse.std(ddof=1) / math.sqrt(both.sum())
        if worse.mean() > ERRORS * error:
            small = " (under .5 %)" if worse.mean() < 0.005 * abs(theirs[both].mean()) else ""
            words = (
                f"{metric} {mine[both].mean():.4g} against {theirs[both].mean():.4g}: "
                f"{worse.mean():.2g} ± {error:.1g} worse{small}"
            )
            failures.append(Failure(table, epsilon, rival, words))
    print(
        f"{table:18s} {epsilon:>4g}  {loss:8s} {constant.mean():9.4g} {above + constant.mean():9.4g}  "
        f"{metric:8s} {mine.mean():9.4g} {' '.join(shown)}{'  FAILS' if failures else ''}"
    )
    return failures


def report(options: argparse.Namespace, cells: Cells) -> list[Failure]:
    seeds = range(options.seeds)
    names = " ".join(f"{rival.removeprefix('dpgb:')[-10:]:>10s}" for rival in RIVALS)
    print(f"\n{'table':18s} {'ε':>4s}  {'loss':8s} {'constant':>9s} {'ours':>9s}  "
          f"{'judged':8s} {'ours':>9s} {names}")  # fmt: skip
    failures = []
    for table in options.tables:
        for epsilon in options.epsilons:
            failures += judge(table, epsilon, ours(options.recipe), cells, seeds)
    absent = sum(key(*cell) not in cells for cell in wanted(options, RIVALS))
    if absent:
        print(
            f"\nrivals: {absent} fits are not in {RIVALS_FILE.name}; one alone is shown, not judged"
        )
    judged = len(options.tables) * len(options.epsilons)
    failing = len({failure[:2] for failure in failures})
    print(f"\n{failing} of {judged} tables × ε fail{':' if failures else ''}")
    for failure in failures:
        print(f"  {failure.table} ε={failure.epsilon:g} {failure.against}: {failure.words}")
    return failures


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=lambda t: t.split(","), default=list(TABLES))
    parser.add_argument(
        "--epsilons", type=lambda t: [float(e) for e in t.split(",")], default=list(EPSILONS)
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--recipe", default="auto")
    parser.add_argument("--rivals", action="store_true", help="fit rivals, not ours")
    parser.add_argument("--json", type=Path, help="written after every fit")
    parser.add_argument("--resume", action="store_true", help="keep the cells of --json")
    parser.add_argument("--smoke", action="store_true", help="two small tables, ε = 1")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.tables, options.epsilons, options.seeds = (
            ["all_missing", "rows_200_numeric"],
            [1.0],
            2,
        )
    if options.resume and options.json is None:
        parser.error("--resume needs --json")
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"unknown tables {sorted(unknown)}; known: {', '.join(TABLES)}")
    return options


def wanted(options: argparse.Namespace, methods: tuple[str, ...]) -> Iterator[tuple]:
    """All fits asked for; seeds outermost, so that a stopped run has all tables."""
    for seed in range(options.seeds):
        for table in options.tables:
            for epsilon in options.epsilons:
                for method in methods:
                    yield table, method, epsilon, seed


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    theirs: Cells = json.loads(RIVALS_FILE.read_text())["cells"] if RIVALS_FILE.is_file() else {}
    if options.rivals:
        if not installed("dp-ebm"):
            return 1
        head = {
            "command": "python ci/bench/stress.py --rivals",
            "delta": DELTA,
            "interpret": version("interpret-core"),
        }
        complete(RIVALS_FILE, head, wanted(options, RIVALS), theirs)
        return 0
    old: Cells = {}
    if options.resume and options.json.is_file():
        old = json.loads(options.json.read_text())["cells"]
    mine = complete(
        options.json, {"delta": DELTA}, wanted(options, (ours(options.recipe),)), old
    )  # fmt: skip
    failures = report(options, theirs | mine)
    return 1 if failures and not options.smoke else 0


if __name__ == "__main__":
    sys.exit(main())
