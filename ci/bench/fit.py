"""A whole fit against its rival, interleaved in one run; peak memory of a worker whose rows fit in memory.

    python ci/bench/fit.py --data DIR --json fit.json
    python ci/bench/fit.py --smoke

Cases: ``adult`` (26 K rows, no cluster, warm, against interpret's DP-EBM with declared types), ``regression`` (8
features of house_16h, 22,784 rows, the same at several ε), ``ebm`` (adult with our recipe ``dp-ebm``), ``histograms``
(a tree of ``fdp-hist-newton`` of depth 6 and 250 bins beside one of XGBoost's), ``memory`` (worker's high-water mark
beside the promised bound). Times are CPU seconds of this process and its descendants; the median of the repeats counts.
Fits of millions of rows, rounds and rows beyond memory: ``ci/bench/scale.py``.
"""

import argparse
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import dask
import dask.array as da
import numpy as np
import pandas as pd
import psutil
from datasets import read
from distributed import Client, LocalCluster
from fitters import DELTA, dp_ebm, ebm_frame

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema
from dpgb_dask.components.trees.candidates import PublicBins
from dpgb_dask.components.trees.stage import Trees
from dpgb_dask.contracts.plan import Plan
from dpgb_dask.recipes import RECIPES

EPSILON, EPSILONS = 1.0, (0.1, 0.5, 1.0, 2.0, 8.0)
HOUSE_FEATURES = 8
N_FEATURES = 28
N_BINS = 250
MB = 1 << 20


class Clock:
    """CPU seconds of this process and all its living descendants, and wall seconds, of a ``with`` block."""

    def __enter__(self) -> "Clock":
        self._cpu, self._wall = self._now(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self._wall
        self.cpu = self._now() - self._cpu

    @staticmethod
    def _now() -> float:
        # to the nanosecond; that of others is in hundredths of a second
        total = time.process_time()
        for process in psutil.Process().children(recursive=True):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total


Record = dict[str, Any]


def interleave(
    runs: dict[str, Callable[[], object]], repeats: int, *, warm: bool = False
) -> dict[str, dict[str, float]]:
    """Run each once to warm up, unless they are warm, then all in turn; median CPU and wall seconds per name."""
    for run in () if warm else runs.values():
        run()
    times: dict[str, list[Clock]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            with Clock() as clock:
                run()
            times[name].append(clock)
    return {
        name: {"cpu_s": median(c.cpu for c in clocks), "wall_s": median(c.wall for c in clocks)}
        for name, clocks in times.items()
    }


def missing(package: str) -> bool:
    try:
        __import__(package)
    except ImportError:
        print(f"SKIPPED rival {package}: not installed (pip install '.[bench]')")
        return True
    return False


def report(case: str, times: dict[str, dict[str, float]], rows: int, features: int) -> list[Record]:
    records = []
    for name, figures in times.items():
        ratio = figures["cpu_s"] / times["dpgb"]["cpu_s"]
        print(
            f"{case:10s} {name:14s} {rows:>9d} x {features:<3d} CPU {figures['cpu_s']:8.2f} s  "
            f"wall {figures['wall_s']:8.2f} s  {1e9 * figures['cpu_s'] / rows:10.0f} ns/row  {ratio:5.2f} x ours",
            flush=True,
        )
        records.append({"case": case, "name": name, "rows": rows, "features": features} | figures)
    return records


def verdict(text: str, good: bool) -> Record:
    print(f"{'':10s} {'ok  ' if good else 'MISS'} {text}", flush=True)
    return {"goal": text, "met": bool(good)}


def ours(X: Any, y: np.ndarray, schema: Schema, **options: Any) -> Callable[[], object]:
    """Return a fit, of another seed each time."""
    seeds = iter(range(1_000_000))
    kind = DPGBRegressor if schema.target.type == "numeric" else DPGBClassifier
    options = {"epsilon": EPSILON, "delta": DELTA, "columns": "position"} | options

    def fit() -> None:
        kind(schema=schema, random_state=next(seeds), **options).fit(X, y)

    return fit


# ---------------------------------------------------------------- adult
def adult(options: argparse.Namespace) -> list[Record]:
    X, y, schema = adult_data(options)
    runs = {"dpgb": ours(X, y, schema)}
    if not missing("interpret"):
        runs["dp-ebm"] = interpret_ebm(X, y, schema)
    times = interleave(runs, options.repeats)
    records = report("adult", times, len(X), X.shape[1])
    cpu = times["dpgb"]["cpu_s"]
    records.append(verdict(f"adult: {cpu:.2f} s CPU, goal <= 1 s", cpu <= 1))
    if "dp-ebm" in times:
        ratio = times["dp-ebm"]["cpu_s"] / cpu
        records.append(verdict(f"adult: DP-EBM takes {ratio:.2f} x our CPU, goal > 1", ratio > 1))
    return records


# ---------------------------------------------------------------- a regression
def houses(options: argparse.Namespace) -> tuple[pd.DataFrame, np.ndarray, Schema]:
    """The first 8 features of house_16h, 22,784 rows, else a synthetic table of that size."""
    if options.data is not None and not options.smoke:
        schema, X, y = read(options.data, "house_16h")
        names = list(schema.names)[:HOUSE_FEATURES]
        target = schema.target
        schema = Schema(
            {name: schema.features[name] for name in names}, target_bounds=(target.low, target.high)
        )
        return X[names].reset_index(drop=True), y, schema
    n = 2000 if options.smoke else 22_784
    x = np.random.default_rng(0).uniform(size=(n, HOUSE_FEATURES))
    X = pd.DataFrame({f"x{j}": column for j, column in enumerate(x.T)})
    y = np.clip(x[:, 0] + np.sin(6 * x[:, 1]) / 2, 0, 1)
    return X, y, Schema(dict.fromkeys(X.columns, (0.0, 1.0)), target_bounds=(0.0, 1.0))


def regression(options: argparse.Namespace) -> list[Record]:
    """A small regression at several ε: no goal, as DP-EBM does the same work at each, and ours does more at more."""
    X, y, schema = houses(options)
    records: list[Record] = []
    for epsilon in EPSILONS[-1:] if options.smoke else EPSILONS:
        runs = {"dpgb": ours(X, y, schema, epsilon=epsilon)}
        if not missing("interpret"):
            runs["dp-ebm"] = interpret_ebm(X, y, schema, epsilon)
        with dask.config.set({"dpgb-dask.n-threads": 1}):
            times = interleave(runs, options.repeats)
        records += report(f"ε = {epsilon:g}", times, len(X), X.shape[1])
    return records


# ---------------------------------------------------------------- recipes of many rounds
def ebm(options: argparse.Namespace) -> list[Record]:
    """DP-EBM's rounds of one feature, 300 of each: ours beside the authors'."""
    X, y, schema = adult_data(options)
    rounds = 5 if options.smoke else None
    runs = {"dpgb": ours(X, y, schema, recipe="dp-ebm", n_estimators=rounds)}
    if not missing("interpret"):
        runs["dp-ebm"] = interpret_ebm(X, y, schema)
    with dask.config.set({"dpgb-dask.n-threads": 1}):
        times = interleave(runs, options.repeats)
    records = report("ebm", times, len(X), X.shape[1])
    if "dp-ebm" in times:
        ratio = times["dpgb"]["cpu_s"] / times["dp-ebm"]["cpu_s"]
        text = f"recipe dp-ebm takes {ratio:.2f} x DP-EBM's CPU, goal <= 1.5"
        records.append(verdict(text, ratio <= 1.5))
    return records


def histograms(options: argparse.Namespace) -> list[Record]:
    """Trees of released histograms, noise and all, beside XGBoost's: what each tree after the first one costs."""
    if missing("xgboost"):
        return []
    import xgboost  # noqa: PLC0415

    records: list[Record] = []
    few, many = (1, 2) if options.smoke else (1, 11)
    for n, goal in ((2000, 3.0),) if options.smoke else ((200_000, 3.0), (1_000_000, 1.0)):
        x, y = (part.compute() for part in generated(n, options.chunk))
        matrix = xgboost.QuantileDMatrix(x, y, max_bin=N_BINS, nthread=1)
        settings = {"max_depth": 6, "tree_method": "hist", "max_bin": N_BINS, "nthread": 1}
        settings |= {"objective": "binary:logistic", "base_score": 0.5}

        def rival(n_trees: int, matrix: Any = matrix, settings: Any = settings) -> None:
            xgboost.train(settings, matrix, n_trees)

        runs: dict[str, Callable[[], object]] = {}
        for k in (few, many):
            runs[f"dpgb {k}"] = ours(x, y, generated_schema(), recipe=of_histograms(k))
            runs[f"xgboost {k}"] = partial(rival, k)
        with dask.config.set({"dpgb-dask.n-threads": 1}):
            times = interleave(runs, options.repeats)
        tree = {
            name: {
                unit: (times[f"{name} {many}"][unit] - times[f"{name} {few}"][unit]) / (many - few)
                for unit in ("cpu_s", "wall_s")
            }
            for name in ("dpgb", "xgboost")
        }
        records += report("histograms", tree, n, N_FEATURES)
        least = tree["xgboost"]["cpu_s"]  # a difference: of few rows it may be anything
        ratio = tree["dpgb"]["cpu_s"] / least if least > 0 else math.nan
        text = f"a tree of fdp-hist-newton, {n} rows: {ratio:.2f} x XGBoost's CPU, goal <= {goal:g}"
        records.append(verdict(text, ratio <= goal))
    return records


def of_histograms(n_trees: int) -> Plan:
    """Return `fdp-hist-newton` with trees of depth 6 and 250 bins."""
    plan = RECIPES["fdp-hist-newton"]
    stages = []
    for stage in plan.stages:
        if isinstance(stage, PublicBins):
            stages.append(replace(stage, n_bins=N_BINS))
        elif isinstance(stage, Trees):
            stages.append(replace(stage, n_trees=n_trees, depth=6))
        else:
            stages.append(stage)
    return replace(plan, stages=tuple(stages))


def adult_data(options: argparse.Namespace) -> tuple[pd.DataFrame, np.ndarray, Schema]:
    """80 % of adult, else a synthetic table of its size and make-up."""
    if options.data is not None and not options.smoke:
        frame = pd.read_parquet(options.data / "adult.parquet")
        frame = frame[~frame["is_test"].astype(bool)].sample(26049, random_state=0)
        schema = Schema.load(options.data / "adult.schema.json")
        return frame[list(schema.names)].reset_index(drop=True), frame["target"].to_numpy(), schema
    n = 2000 if options.smoke else 26049
    rng = np.random.default_rng(0)
    numbers = {f"x{j}": np.clip(rng.normal(size=n), -4, 4) for j in range(6)}
    texts = {f"c{j}": rng.choice([f"v{k}" for k in range(3 + 5 * j)], n) for j in range(8)}
    X = pd.DataFrame(numbers | texts)
    score = X["x0"] + X["x1"] ** 2 + (X["c0"] == "v0") - 2
    y = (rng.random(n) < 1 / (1 + np.exp(-score))).to_numpy().astype(np.int8)
    features = dict.fromkeys(numbers, (-4.0, 4.0)) | {
        f"c{j}": [f"v{k}" for k in range(3 + 5 * j)] for j in range(8)
    }
    return X, y, Schema(features, classes=[0, 1])


def interpret_ebm(
    X: pd.DataFrame, y: np.ndarray, schema: Schema, epsilon: float = EPSILON
) -> Callable[[], object]:
    """Return a fit of interpret's DP-EBM with declared types."""
    table = ebm_frame(X, schema)

    def fit() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns about its own random state
            dp_ebm(schema, epsilon, seed=0).fit(table, y)

    return fit


# ---------------------------------------------------------------- rows of any number
def generated(n_rows: int, chunk: int, m: int = N_FEATURES) -> tuple[da.Array, da.Array]:
    """Lazy (n, m) float32 and labels; a chunk is a function of its number, so that nothing is ever whole."""

    def block(block_info: Any = None) -> np.ndarray:
        place = block_info[None]
        return signals(place["chunk-location"][0], place["chunk-shape"])

    def label(x: np.ndarray, block_info: Any = None) -> np.ndarray:
        score = x[:, 0] + x[:, 1] * x[:, 2] + np.abs(x[:, 3]) - 0.8
        rng = np.random.default_rng([1, block_info[0]["chunk-location"][0]])
        return (rng.random(len(x)) < 1 / (1 + np.exp(-score))).astype(np.int8)

    sizes = da.core.normalize_chunks(chunk, (n_rows,))[0]
    X = da.map_blocks(
        block, chunks=(sizes, (m,)), dtype=np.float32, meta=np.empty((0, 0), np.float32)
    )
    y = da.map_blocks(
        label, X, drop_axis=1, chunks=(sizes,), dtype=np.int8, meta=np.empty(0, np.int8)
    )
    return X, y


def signals(number: int, shape: tuple[int, int]) -> np.ndarray:
    x = np.random.default_rng([0, number]).standard_normal(shape, dtype=np.float32)
    return np.clip(x, -5, 5, out=x)


def generated_schema(m: int = N_FEATURES) -> Schema:
    return Schema({f"x{j}": (-5.0, 5.0) for j in range(m)}, classes=[0, 1])


@contextmanager
def processes(n_workers: int, **options: Any) -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address=":0", **options
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


# ---------------------------------------------------------------- memory
def resident() -> int:
    return psutil.Process().memory_info().rss


def high_water() -> int:
    """Largest resident size of this process so far, in bytes (``ru_maxrss`` would include the parent's, by fork)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return 1024 * int(line.split()[1])
    raise OSError("no VmHWM in /proc/self/status: the memory case needs Linux")


def import_ours() -> None:
    import dpgb_dask  # noqa: F401, PLC0415
    from dpgb_dask.kernels.warming import warm  # noqa: PLC0415

    warm()


def memory(options: argparse.Namespace) -> list[Record]:
    n_workers = 2
    X, y = generated(options.rows, options.chunk)
    chunk_bytes = options.chunk * (N_FEATURES * 4 + 1)
    with processes(n_workers) as client:
        client.run(import_ours)
        time.sleep(1)
        idle = max(client.run(resident).values())
        before = max(client.run(high_water).values())
        DPGBClassifier(
            epsilon=EPSILON,
            delta=DELTA,
            schema=generated_schema(),
            random_state=0,
            columns="position",
        ).fit(X, y)
        peak = max(client.run(high_water).values())
    rows = math.ceil(options.rows / options.chunk / n_workers) * options.chunk
    bound = idle + 2 * chunk_bytes + rows * (N_FEATURES + 9) + 100 * MB
    text = (
        f"memory of a worker, {options.rows} rows: idle {idle / MB:.0f} MB (high-water {before / MB:.0f}), "
        f"peak {peak / MB:.0f} MB, bound {bound / MB:.0f} MB"
    )
    figures = {"case": "memory", "idle": idle, "peak": peak, "bound": bound, "rows": options.rows}
    return [figures | verdict(text, peak <= bound)]


CASES = {
    "adult": adult,
    "regression": regression,
    "ebm": ebm,
    "histograms": histograms,
    "memory": memory,
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases", type=lambda t: t.split(","), default=list(CASES), help="comma-separated"
    )
    parser.add_argument(
        "--data", type=Path, help="folder of the data sets; default $DPGB_DATA, else synthetic"
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of memory")
    parser.add_argument("--chunk", type=int, default=65_536, help="rows per Dask chunk")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true", help="all cases, tiny")
    options = parser.parse_args(arguments)
    if options.data is None and "DPGB_DATA" in os.environ:
        options.data = Path(os.environ["DPGB_DATA"])
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"unknown cases {sorted(unknown)}; known: {', '.join(CASES)}")
    if options.smoke:
        options.rows, options.chunk, options.repeats = 20_000, 5_000, 1
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    records: list[Record] = []
    for name in options.cases:
        records += CASES[name](options)
        if options.json is not None:
            options.json.write_text(json.dumps(records, indent=1) + "\n")
    met = all(record.get("met", True) for record in records)
    return 0 if met or options.smoke else 1


if __name__ == "__main__":
    sys.exit(main())
