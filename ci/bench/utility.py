"""Utility over data sets, ε and splits, beside the goals; with ``--rivals`` on the same splits, with the same bounds.

    python ci/bench/utility.py --data DIR --json utility.json
    python ci/bench/utility.py --data DIR --sets adult --epsilons .5,1 --rivals
    python ci/bench/utility.py --data DIR --sets all --rivals
    python ci/bench/utility.py --data DIR --multiclass
    python ci/bench/utility.py --data DIR --development --json now.json --against earlier.json [--same-noise]

Every fit is at δ = 1e-6 with secret noise; figures differ from run to run within their standard error. With
``--same-noise`` it depends on set, ε, split and the release's place in the fit alone, so it is the same in two versions
until they ask for other things: what they differ by is then known to a tenth of what it is between two runs. A set is
NAME.parquet with NAME.schema.json in DIR, so any table will do (``r_tables.py`` makes some); ``all`` are all. Cells are
written to the JSON as they end; the same command with ``--resume`` goes on. Rivals: interpret's DP-EBM (types and
bounds declared), xgboost and LightGBM (not private, untuned). ``--multiclass``: cover_type of covtype_93k, joint
against one-against-rest. ``--development``: the protocol by which the default is judged, with more sets: splits 0 to 4
are there to choose constants, 5 to 9 to report, beside the floors of ``floors.py``; ``--against`` adds paired
differences to the JSON of an earlier run of this script, say with PYTHONPATH at an earlier library.
"""

import argparse
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple
from unittest import mock

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
from datasets import Scores, has_several_classes, load, names_in
from fitters import DELTA, NOT_PRIVATE, PACKAGE_OF, installed, method_of, ours
from floors import (
    DEVELOPMENT,
    EPSILONS,
    GOAL_EPSILONS,
    GOALS,
    SLICES,
    SPLITS,
    Line,
    judge,
    mean_of,
    metric_of,
    sign_of,
)


class Cell(NamedTuple):
    """One fit. ``epsilon`` is 0 for a rival without privacy."""

    data_set: str
    method: str
    epsilon: float
    split: int

    @property
    def key(self) -> str:
        return "|".join((self.data_set, self.method, f"{self.epsilon:g}", str(self.split)))


Cells = dict[str, Scores]  # by the key of a cell


@contextmanager
def same_noise(cell: Cell) -> Iterator[None]:
    """Give this library's fits noise that is no secret: that of another version's fit of the same cell."""
    from dpgb_dask.controller.noise import FitKey, KeyStream  # noqa: PLC0415  # not an early library's

    place = itertools.count()

    def stream(*_release: object) -> KeyStream:
        of_release = f"{cell.data_set}|{cell.epsilon:g}|{cell.split}|{next(place)}"
        return KeyStream(hashlib.sha256(of_release.encode()).digest())

    with mock.patch.object(FitKey, "stream", stream):
        yield


def run(job: tuple[Path, Cell, bool]) -> tuple[Cell, Scores]:
    folder, cell, no_secret = job
    split = load(folder, cell.data_set, cell.split)
    noise = same_noise(cell) if no_secret else nullcontext()
    with warnings.catch_warnings(), noise:
        warnings.simplefilter("ignore")  # rivals warn about their own defaults
        start, wall = time.process_time(), time.perf_counter()
        try:
            scores = method_of(cell.method)(split, cell.epsilon, cell.split)
        except Exception as error:
            if cell.method.startswith("dpgb"):
                raise
            print(f"{cell.method} refuses {cell.data_set}: {type(error).__name__}")
            return cell, {}
    return cell, scores | {
        "cpu_s": round(time.process_time() - start, 3),
        "wall_s": round(time.perf_counter() - wall, 3),
    }


def cells_of(options: argparse.Namespace) -> Iterator[Cell]:
    """All fits asked for; splits outermost, so that a stopped run has all sets."""
    if options.multiclass:
        sets, methods = ["cover_type"], ["dpgb", "one-against-rest"]
    else:
        sets, methods = options.sets, [ours(options.recipe)]
    if options.rivals:
        methods += [name for name in PACKAGE_OF if installed(name)] + ["constant"]
    for split in options.splits:
        for data_set in sets:
            slices = SLICES if data_set == "adult_1000" else 1
            for method in methods:
                if method == "dp-ebm" and has_several_classes(options.data, data_set):
                    continue  # DP-EBM is binary only
                for epsilon in [0.0] if method in NOT_PRIVATE else options.epsilons:
                    for part in range(slices):
                        yield Cell(data_set, method, epsilon, split + 10 * part)
        if options.development and "adult" in sets and options.recipe == "auto":
            for epsilon in (0.5, 1.0, 2.0):
                yield Cell("adult", "dpgb:dpboost", epsilon, split)


def goal(data_set: str, epsilon: float) -> float | None:
    if data_set not in GOALS or epsilon not in GOAL_EPSILONS:
        return None
    return GOALS[data_set][GOAL_EPSILONS.index(epsilon)]


def print_table(results: Cells, order: list[Cell]) -> bool:
    """Print mean ± standard error per set, method and ε; returns whether a goal of ours was missed."""
    groups: dict[tuple[str, str, float], list[dict[str, float]]] = {}
    for cell in order:
        if results.get(cell.key):
            groups.setdefault(cell[:3], []).append(results[cell.key])
    missed = False
    print(f"\n{'set':20s} {'method':17s} {'ε':>5s}  {'metric':8s} {'mean ± s.e.':>17s} {'goal':>8s}  "
          f"{'log-loss':>8s} {'CPU s':>7s} n")  # fmt: skip
    for (data_set, method, epsilon), rows in sorted(
        groups.items(), key=lambda g: ([*GOALS, g[0][0]].index(g[0][0]), g[0][1:])
    ):
        metric = metric_of(rows[0])
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


def print_contests(results: Cells, order: list[Cell]) -> None:
    """Print on how many sets ours is better and worse than each other method, paired by split, of each ε."""
    by_group: dict[tuple[str, str, float], dict[int, Scores]] = {}
    for cell in order:
        if results.get(cell.key):
            by_group.setdefault(cell[:3], {})[cell.split] = results[cell.key]
    counts: dict[tuple[str, str, float], list[int]] = {}
    for (data_set, mine, epsilon), ours_of in by_group.items():
        if not mine.startswith("dpgb"):
            continue
        for (other_set, method, of_epsilon), theirs in by_group.items():
            if other_set != data_set or method.startswith("dpgb") or of_epsilon not in (0, epsilon):
                continue
            if not (shared := sorted(ours_of.keys() & theirs)):
                continue
            metric = metric_of(ours_of[shared[0]])
            change = mean_of([ours_of[k][metric] - theirs[k][metric] for k in shared])
            ahead = -sign_of(metric) * change.value
            place = 0 if ahead > 2 * change.error else 2 if ahead < -2 * change.error else 1
            counts.setdefault((mine, method, epsilon), [0, 0, 0])[place] += 1
    if counts:
        print("\nsets on which the first is better, level (within two s.e.) and worse:")
    for (mine, method, epsilon), (better, level, worse) in sorted(counts.items()):
        print(f"  {mine} and {method:10s} ε = {epsilon:<4g} {better:3d} {level:3d} {worse:3d}")


def lines_of(cells: Cells, earlier: Cells, order: list[Cell]) -> list[Line]:
    """Gather cells by set, method and ε; an earlier run of the default stands in for a recipe that it has not."""
    groups: dict[tuple[str, str, float], list[Cell]] = {}
    for cell in order:
        if cell.key in cells:
            groups.setdefault(cell[:3], []).append(cell)
    lines = []
    for (data_set, method, epsilon), group in sorted(
        groups.items(), key=lambda g: (DEVELOPMENT.index(g[0][0]), g[0][1:])
    ):
        before = {}
        for cell in group:
            default = cell._replace(method="dpgb")
            if then := earlier.get(cell.key) or (
                method.startswith("dpgb") and earlier.get(default.key)
            ):
                before[cell.split] = then
        now = {cell.split: cells[cell.key] for cell in group}
        lines.append(Line(data_set, method, epsilon, now, before))
    return lines


def numbers(text: str) -> range:
    """Read "5" as 0 to 4, and "5-9" as 5 to 9."""
    first, _, last = text.rpartition("-")
    return range(int(first), int(last) + 1) if first else range(int(last))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("DPGB_DATA"), help="default: $DPGB_DATA"
    )
    parser.add_argument(
        "--sets", type=lambda t: t.split(","), help="comma-separated, or all that DIR holds"
    )
    parser.add_argument("--epsilons", type=lambda t: [float(e) for e in t.split(",")])
    parser.add_argument("--splits", type=numbers, help="a count, or FIRST-LAST (default 5)")
    parser.add_argument("--recipe", default="auto", help="of this library")
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--development", action="store_true", help="all sets, splits 0-9, floors")
    parser.add_argument("--against", type=Path, help="JSON of an earlier run, with --development")
    parser.add_argument(
        "--same-noise", action="store_true", help="to compare two versions: see above"
    )
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
    development = options.development
    options.sets = options.sets or list(DEVELOPMENT if development else GOALS)
    options.epsilons = options.epsilons or list(EPSILONS if development else GOAL_EPSILONS)
    options.splits = options.splits or range(SPLITS if development else 5)
    if options.smoke:
        options.epsilons, options.splits = [1.0], range(1)
        options.sets = ["synthetic"] if options.data is None else ["wine_quality"]
    elif options.data is None:
        parser.error("--data DIR is needed, or DPGB_DATA: the folder that holds adult.parquet")
    if options.data is not None and not Path(options.data).is_dir():
        parser.error(f"--data {options.data} is not a folder")
    if options.resume and options.json is None:
        parser.error("--resume needs --json")
    if options.against is not None and not development:
        parser.error("--against needs --development")
    held = [] if options.data is None else names_in(Path(options.data))
    if options.sets == ["all"]:
        options.sets = held
    own = [] if development else sorted({*held} - {*DEVELOPMENT})
    if unknown := set(options.sets) - {*DEVELOPMENT, *own, "synthetic"}:
        known = ", ".join([*DEVELOPMENT, *own])
        parser.error(f"unknown sets {sorted(unknown)}; known: {known}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    results: Cells = {}
    if options.resume and options.json.is_file():
        results = begun(options.json, same_noise=options.same_noise)
    earlier: Cells = json.loads(options.against.read_text())["cells"] if options.against else {}
    order = list(cells_of(options))
    jobs = [(options.data, cell, options.same_noise) for cell in order if cell.key not in results]
    pool = multiprocessing.get_context("spawn").Pool(options.jobs) if options.jobs > 1 else None
    try:
        for done, (cell, scores) in enumerate(
            pool.imap_unordered(run, jobs) if pool else map(run, jobs), 1
        ):
            results[cell.key] = scores
            shown = " ".join(f"{name}={value:.4f}" for name, value in scores.items())
            print(f"[{done}/{len(jobs)}] {cell.key}: {shown}", flush=True)
            if options.json is not None:
                write(options.json, results, same_noise=options.same_noise)
    finally:
        if pool:
            pool.terminate()
    if options.development:
        return int(judge(lines_of(results, earlier, order)))
    missed = print_table(results, order)
    print_contests(results, order)
    return 1 if missed and not options.smoke else 0


def begun(path: Path, *, same_noise: bool) -> Cells:
    """Return the cells of a run that goes on, if they saw the same kind of noise."""
    found = json.loads(path.read_text())
    if found.get("same_noise", False) != same_noise:
        had, way = ("the same", "with") if not same_noise else ("secret", "without")
        sys.exit(
            f"{path} is of a run with {had} noise: go on {way} --same-noise, or give another --json."
        )
    cells: Cells = found["cells"]
    return cells


def write(path: Path, results: Cells, *, same_noise: bool) -> None:
    """Replace the JSON in one step, so that a stopped run leaves a whole file."""
    draft = path.with_suffix(".tmp")
    whole = {"delta": DELTA, "same_noise": same_noise, "cells": results}
    draft.write_text(json.dumps(whole, indent=1) + "\n")
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
