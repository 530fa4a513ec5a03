"""Whole fits and predictions here and at an earlier commit, in turns: CPU seconds of one thread, ε = 1, kernels warm.

    python ci/bench/before.py --json before.json
    python ci/bench/before.py --cases 30000
    python ci/bench/before.py --smoke

The earlier commit is checked out beside (``git worktree``); both use the packages of this Python, each fit in a process
of its own. ``auto`` has got chosen trees and a larger forest on rich data since then: rows "as then" leave both out, so
that the stages are those of the earlier commit. Rows lie in memory, and the model predicts them all as floats. Where
XGBoost is installed, 100 of its trees of depth 6 (``hist``) learn the rows of one case, in turns too. The least time of
each counts; ratios of medians stand beside it.
``--smoke``: once, small, and none of the earlier commit.
"""

import argparse
import gc
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from first_minute import BEFORE, ROOT, earlier

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Case(NamedTuple):
    """A fit, and the largest ratio to the earlier commit that is asked for."""

    rows: int
    features: int
    classes: int
    plan: str  # "auto" or "as then"
    goal: float

    @property
    def name(self) -> str:
        """Of the row in the table."""
        classes = f", {self.classes} classes" if self.classes > 2 else ""
        return f"{self.rows} x {self.features}{classes}, {self.plan}"


FIT, PREDICT = "fit", "predict"
# CPU seconds: of what, of which case, whose library
Times = dict[tuple[str, Case, str], list[float]]

SMALL, LARGE = Case(200_000, 28, 2, "as then", np.inf), Case(1_000_000, 28, 2, "as then", 0.52)
CASES = (
    Case(30_000, 14, 2, "as then", 0.55),
    SMALL,
    LARGE,
    Case(1_000_000, 28, 2, "auto", 1.6),
    Case(1_000_000, 28, 7, "as then", 0.45),
    Case(1_000_000, 300, 2, "as then", 0.5),
)
MARGINAL_GOAL = 0.57
PREDICT_GOAL = 0.5
XGBOOST, XGBOOST_GOAL = "XGBoost", 1 / 6
SMALLEST_REPEATS = 7  # of the first case, whose fits are short beside what a busy machine adds
SMOKE = (Case(3_000, 4, 2, "as then", np.inf), Case(3_000, 4, 3, "auto", np.inf))
MORE_OF = {LARGE, SMOKE[0]}  # of these predictions are told too, and XGBoost is a rival


def main() -> int:
    options = parse()
    if options.child:
        *sizes, plan, who = options.child
        case = Case(*map(int, sizes), plan, np.inf)
        print(json.dumps(boosted(case) if who == XGBOOST else fitted(case)))
        return 0
    every = SMOKE if options.smoke else CASES
    cases = tuple(case for case in every if case.name.startswith(options.cases))
    if not cases:
        sys.exit(f"--cases={options.cases!r} begins none of {[case.name for case in every]}.")
    with (
        tempfile.TemporaryDirectory() as folder,
        nullcontext() if options.smoke else earlier(Path(folder)) as before,
    ):
        code = {"now": ROOT} | ({} if before is None else {BEFORE: before})
        rival = {XGBOOST: ROOT} if find_spec("xgboost") else {}
        times: Times = {}
        for turn in range(1 if options.smoke else max(options.repeats, SMALLEST_REPEATS)):
            for case in cases if turn < options.repeats else set(cases) & {every[0]}:
                for who, root in (code | (rival if case in MORE_OF else {})).items():
                    for what, seconds in measure(case, who, root).items():
                        times.setdefault((what, case, who), []).append(seconds)
    records = report(rows_to_print(cases, times))
    if options.json:
        Path(options.json).write_text(json.dumps(records, indent=1) + "\n")
    return int(not options.smoke and not all(record["met"] for record in records))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help=f"fits of each, of the first case at least {SMALLEST_REPEATS}; the least counts (3)",
    )
    parser.add_argument("--cases", default="", help="rows of the table whose name begins like this")
    parser.add_argument("--json", help="file to write the figures to")
    parser.add_argument("--smoke", action="store_true", help="once, small, here alone")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)  # its case, and whose
    return parser.parse_args()


def measure(case: Case, who: str, root: Path) -> dict[str, float]:
    """Return the CPU seconds of a fit, and of predictions, in a process of its own with the library of a checkout."""
    command = [sys.executable, __file__, "--child", *map(str, case[:4]), who]
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(root)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    seconds, place = json.loads(done.stdout.splitlines()[-1])
    if who != XGBOOST and Path(place).parents[1].resolve() != root.resolve():
        raise RuntimeError(f"The fit imported {place}, not the library of {root}.")
    return seconds


def rows_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(case.rows, case.features)).astype(np.float32)
    score = x[:, 0] + np.sin(2 * x[:, 1]) + x[:, 2] * x[:, 3] + rng.logistic(size=case.rows)
    return x, np.digitize(score, np.quantile(score, np.linspace(0, 1, case.classes + 1)[1:-1]))


def fitted(case: Case) -> tuple[dict[str, float], str]:
    """Fit and predict twice, first for the kernels; return the CPU seconds of the second time, and the library's place.

    What the first leaves is collected before the second: loading kernels makes so many objects that Python goes through
    all of them, once in a process, in whichever fit the threshold is met.
    """
    import dask  # noqa: PLC0415 - of the checkout that this child is for
    import dask.array as da  # noqa: PLC0415

    import dpgb_dask  # noqa: PLC0415

    dask.config.set({"dpgb-dask.n-threads": 1})
    x, label = rows_of(case)
    chunk = max(1, case.rows // 4)
    rows = da.from_array(x, chunks=(chunk, case.features)), da.from_array(label, chunks=chunk)
    schema = dpgb_dask.Schema(
        {f"x{j}": (-5, 5) for j in range(case.features)}, list(range(case.classes)), target="y"
    )
    options = {"epsilon": 1.0, "delta": 1e-6, "schema": schema, "random_state": 0}
    if "columns" in inspect.signature(dpgb_dask.DPGBClassifier).parameters:
        options["columns"] = "position"
        if case.plan == "as then":
            options["recipe"] = plan_of_then()
    model = dpgb_dask.DPGBClassifier(**options)
    for _ in range(2):
        took = {FIT: seconds_of(lambda: model.fit(*rows))}
        took[PREDICT] = seconds_of(lambda: model.predict_proba(x))
    return took, dpgb_dask.__file__


def seconds_of(call: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    call()
    return time.process_time() - start


def boosted(case: Case) -> tuple[dict[str, float], str]:
    """Return the CPU seconds of XGBoost's trees from floats, and where it lies; it has nothing to compile first."""
    import xgboost  # noqa: PLC0415 - in a process of its own

    x, label = rows_of(case)
    options = {"tree_method": "hist", "max_depth": 6, "objective": "binary:logistic", "nthread": 1}

    def fit() -> None:
        xgboost.train(options, xgboost.QuantileDMatrix(x, label, nthread=1), num_boost_round=100)

    return {FIT: seconds_of(fit)}, xgboost.__file__


def plan_of_then():
    """Return `auto` with the stages of then: none is chosen for rich data, which it did not know."""
    from dataclasses import replace  # noqa: PLC0415

    from dpgb_dask.components.auto.chosen import ChosenTrees  # noqa: PLC0415
    from dpgb_dask.components.auto.start import Start  # noqa: PLC0415
    from dpgb_dask.recipes import RECIPES  # noqa: PLC0415

    auto = RECIPES["auto"]
    stages = tuple(
        replace(stage, rich_from=sys.float_info.max) if isinstance(stage, Start) else stage
        for stage in auto.stages
        if not isinstance(stage, ChosenTrees)
    )
    return replace(auto, name="auto as then", stages=stages)


class Row(NamedTuple):
    """A line of the table: seconds here, and of another, if it ran."""

    name: str
    goal: float
    now: float
    other: str
    then: float | None
    of_medians: float | None


def rows_to_print(cases: tuple[Case, ...], times: Times) -> list[Row]:
    least = {key: min(found) for key, found in times.items()}

    def row(name: str, what: str, case: Case, goal: float, other: str = BEFORE) -> Row:
        here, there = (what, case, "now"), (what, case, other)
        medians = median(times[here]) / median(times[there]) if there in times else None
        return Row(name, goal, least[here], other, least.get(there), medians)

    rows = [row(case.name, FIT, case, case.goal) for case in cases]
    for case in set(cases) & MORE_OF:
        predicted, learnt = (PREDICT_GOAL, XGBOOST_GOAL) if case.goal < np.inf else (np.inf, np.inf)
        rows.append(row(f"{case.name}: predictions", PREDICT, case, predicted))
        if (FIT, case, XGBOOST) in times:
            rows.append(row(f"{case.name}: 100 trees", FIT, case, learnt, XGBOOST))
    if SMALL in cases and LARGE in cases:
        now, then = (
            None
            if (FIT, LARGE, who) not in least
            else (least[FIT, LARGE, who] - least[FIT, SMALL, who]) / 0.8
            for who in ("now", BEFORE)
        )
        name = "a further 1 M rows x 28, as then"
        rows.append(Row(name, MARGINAL_GOAL, now, BEFORE, then, None))
    return rows


def report(rows: list[Row]) -> list[dict]:
    """Print the rows; return them."""
    records = []
    for row in rows:
        ratio = None if row.then is None else row.now / row.then
        met = ratio is None or ratio <= row.goal
        told = "" if ratio is None else f"  {row.other} {row.then:8.2f} s  ratio {ratio:5.2f}"
        if row.of_medians is not None:
            told += f" (of medians {row.of_medians:5.2f})"
        if ratio is not None and row.goal != np.inf:
            told += f"  {'ok' if met else 'MISS'} (asked {row.goal:.2g})"
        print(f"{row.name:36s} now {row.now:8.2f} CPU-s{told}", flush=True)
        goal = None if row.goal == np.inf else row.goal
        records.append(row._asdict() | {"goal": goal, "ratio": ratio, "met": met})
    return records


if __name__ == "__main__":
    sys.exit(main())
