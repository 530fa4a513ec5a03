"""Whole fits here and at an earlier commit, in turns: CPU seconds of one thread, ε = 1, rows in memory, kernels warm.

    python ci/bench/before.py --json before.json
    python ci/bench/before.py --cases 30000
    python ci/bench/before.py --smoke

The earlier commit is checked out beside (``git worktree``); both use the packages of this Python, each fit in a process
of its own. ``auto`` has got chosen trees and a larger forest on rich data since then: rows "as then" leave both out, so
that the stages are those of the earlier commit. The least time of each counts; ratios of medians stand beside it.
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
from contextlib import nullcontext
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


Times = dict[tuple[Case, str], list[float]]  # CPU seconds of each fit, by case and whose library

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
SMALLEST_REPEATS = 7  # of the first case, whose fits are short beside what a busy machine adds
SMOKE = (Case(3_000, 4, 2, "as then", np.inf), Case(3_000, 4, 3, "auto", np.inf))


def main() -> int:
    options = parse()
    if options.fit:
        print(json.dumps(fit(Case(*map(int, options.fit[:3]), options.fit[3], np.inf))))
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
        times: Times = {}
        for turn in range(1 if options.smoke else max(options.repeats, SMALLEST_REPEATS)):
            for case in cases if turn < options.repeats else set(cases) & {every[0]}:
                for name, root in code.items():
                    times.setdefault((case, name), []).append(measure(case, root))
    records = report(cases, times)
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
    parser.add_argument("--fit", nargs=4, help=argparse.SUPPRESS)  # a child's case
    return parser.parse_args()


def measure(case: Case, root: Path) -> float:
    """Return the CPU seconds of a fit in a process of its own, with the library of a checkout."""
    command = [sys.executable, __file__, "--fit", *map(str, case[:4])]
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(root)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    seconds, place = json.loads(done.stdout.splitlines()[-1])
    if Path(place).parents[1].resolve() != root.resolve():
        raise RuntimeError(f"The fit imported {place}, not the library of {root}.")
    return float(seconds)


def fit(case: Case) -> tuple[float, str]:
    """Fit twice, the first time for the kernels; return the CPU seconds of the second, and the library's place.

    What the first leaves is collected before the second: loading kernels makes so many objects that Python goes through
    all of them, once in a process, in whichever fit the threshold is met.
    """
    import dask  # noqa: PLC0415 - of the checkout that this child is for
    import dask.array as da  # noqa: PLC0415

    import dpgb_dask  # noqa: PLC0415

    dask.config.set({"dpgb-dask.n-threads": 1})
    rng = np.random.default_rng(0)
    x = rng.normal(size=(case.rows, case.features)).astype(np.float32)
    score = x[:, 0] + np.sin(2 * x[:, 1]) + x[:, 2] * x[:, 3] + rng.logistic(size=case.rows)
    label = np.digitize(score, np.quantile(score, np.linspace(0, 1, case.classes + 1)[1:-1]))
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
    for _ in range(2):
        gc.collect()
        start = time.process_time()
        dpgb_dask.DPGBClassifier(**options).fit(*rows)
        took = time.process_time() - start
    return took, dpgb_dask.__file__


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


def report(cases: tuple[Case, ...], times: Times) -> list[dict]:
    """Print a row per case, and what a further row costs; return them."""
    least = {key: min(fits) for key, fits in times.items()}
    found = {
        case.name: (case.goal, [least.get((case, who)) for who in ("now", BEFORE)])
        for case in cases
    }
    medians = {
        case.name: median(times[case, "now"]) / median(times[case, BEFORE])
        for case in cases
        if (case, BEFORE) in times
    }
    if SMALL in cases and LARGE in cases:
        each = [
            None if (LARGE, who) not in least else (least[LARGE, who] - least[SMALL, who]) / 0.8
            for who in ("now", BEFORE)
        ]
        found["a further 1 M rows x 28, as then"] = (MARGINAL_GOAL, each)
    records = []
    for name, (goal, (now, before)) in found.items():
        ratio = None if before is None else now / before
        met = ratio is None or ratio <= goal
        told = "" if ratio is None else f"  {BEFORE} {before:8.2f} s  ratio {ratio:5.2f}"
        if name in medians:
            told += f" (of medians {medians[name]:5.2f})"
        asked = (
            "" if ratio is None or goal == np.inf else f"  {'ok' if met else 'MISS'} (asked {goal})"
        )
        print(f"{name:36s} now {now:8.2f} CPU-s{told}{asked}", flush=True)
        records.append(
            {
                "case": name,
                "now": now,
                "before": before,
                "of_medians": medians.get(name),
                "goal": None if goal == np.inf else goal,
                "met": met,
            }
        )
    return records


if __name__ == "__main__":
    sys.exit(main())
