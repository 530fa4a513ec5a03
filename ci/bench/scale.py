"""Scale: rounds, messages, processes, codes out of core, rows far beyond memory, a whole fit against xgboost.dask.

    python ci/bench/scale.py --json scale.json
    python ci/bench/scale.py --cases rounds --large
    python ci/bench/scale.py --cases big --rows 80000000 --scratch /fast/disk
    python ci/bench/scale.py --model
    python ci/bench/scale.py --smoke

Cases:

- ``rounds``: wall and CPU time of an almost empty round, by back end, workers and size of the reply; tasks that the
  scheduler holds. ``--large`` asks 5000, and adds 32 and 64 processes.
- ``messages``: bytes of the message of every round of a default fit on two processes, by kind of query, beside those of
  the model and the query as they are.
- ``scaling``: the same rows, and twice the rows, on two processes instead of one.
- ``outofcore``: rounds on codes in a scratch file, dropped from the page cache before each, beside the same in memory
  and a plain read of as many bytes from the same file system.
- ``big``: generated rows on two workers of ``--memory-limit``; fails if the high-water mark of one is above it.
- ``fit11m``: the default fit, and recipe ``additive``, from Zarr to model on two processes against xgboost.dask, 100
  trees of depth 6; with the AUC of each on other rows.
- ``model`` (``--model``: it alone): what each part of a fit of 10⁹ rows of 100 features takes on more and more workers,
  by constants measured in the same run (`cost_model`), and which part is the first to take longer than the rows' work.

``--rows`` replaces the rows of every case asked for. Goals are those of a quiet machine; the exit status is 1 if one is
missed.
"""

import argparse
import json
import math
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import cost_model
import dask
import dask.array as da
import numpy as np
from contest import BLOCK, Contestant, Facts, Processes
from distributed import Client, wait
from fit import (
    DELTA,
    EPSILON,
    MB,
    Clock,
    Record,
    generated,
    generated_schema,
    high_water,
    import_ours,
    interleave,
    missing,
    processes,
    report,
    signals,
    verdict,
)
from sklearn.metrics import roc_auc_score

from dpgb_dask import DPGBClassifier
from dpgb_dask.components.counts import BaseScore
from dpgb_dask.components.trees.candidates import PublicBins
from dpgb_dask.components.trees.stage import Trees
from dpgb_dask.contracts.model import FeatureBins, Model, Splits, no_trees
from dpgb_dask.contracts.plan import Execution, Shape
from dpgb_dask.contracts.queries import MainSumsQuery, NodeSumsQuery, Query, TreeSumsQuery
from dpgb_dask.losses import logistic_gradient
from dpgb_dask.private.answering.shards import Shard
from dpgb_dask.private.keeping.store import Keeping, store_of
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.reading.rows import Piece
from dpgb_dask.private.rounds import open_rounds
from dpgb_dask.private.rounds.messages import Message, Sender
from dpgb_dask.recipes import RECIPES

KB = 1 << 10
GB = 1 << 30

# ---------------------------------------------------------------- rounds
REPLY_DEPTH = {8 * KB: 1, MB: 8}  # one feature of 256 bins: 4 KB per node of a level
ROUND_GOALS_MS = {"tasks": ((8, 20.0), (32, 60.0)), "comms": ((8, 5.0), (32, 20.0))}
WARM_ROUNDS = 3  # they make the shards and load the kernels
STARTED = 8  # workers that start at a time
# workers, whether each is a process; of 64 processes each takes 130 MB and some seconds of CPU to start
SETUPS = ((2, True), (8, False), (8, True), (32, False), (128, False))
LARGE_SETUPS = ((32, True), (64, True))


def rounds(options: argparse.Namespace) -> list[Record]:
    """Overhead of a round; that of the local back end is the work of one shard itself."""
    setups, n_rounds = SETUPS, 30
    if options.smoke:
        setups, n_rounds = SETUPS[:2], 5
    elif options.large:
        setups = SETUPS + LARGE_SETUPS
    print(
        f"{'rounds':10s} {'back end':9s} {'workers':26s} {'reply':>7s} {'wall ms':>8s} {'90 %':>8s} {'CPU ms':>8s}"
        f"{'own':>8s}"
    )
    records = []
    for size, depth in REPLY_DEPTH.items():
        figures, _ = round_figures(Execution(backend="local", n_threads=1), 1, depth, n_rounds)
        records.append(show_round("local", "one shard, no cluster", 1, size, figures))
    for n_workers, apart in setups:
        kind = f"{n_workers} {'processes' if apart else 'in this process'}"
        # no limit: workers of one process would each count the memory of all, and spill
        with processes(min(STARTED, n_workers), processes=apart, memory_limit=0) as client:
            for n_started in range(STARTED, n_workers + 1, STARTED):
                client.cluster.scale(n_started)
                client.wait_for_workers(n_started)
            for backend in ("tasks", "comms"):
                execution = Execution(backend=backend)
                for size, depth in REPLY_DEPTH.items():
                    figures, _ = round_figures(execution, n_workers, depth, n_rounds)
                    records.append(show_round(backend, kind, n_workers, size, figures))
                if n_workers == 2:
                    n = 5000 if options.large else 3 * n_rounds
                    figures, held = round_figures(execution, n_workers, 1, n, client)
                    text = f"{backend}: tasks held by the scheduler over {n} rounds: {held}, goal: no growth"
                    # the last replies may not be released yet
                    flat = held[-1] <= held[0] + n_workers
                    records.append(
                        {"case": "rounds", "backend": backend, "rounds": n, "tasks_held": held}
                        | figures
                        | verdict(text, flat)
                    )
    return records


def show_round(
    backend: str, kind: str, n_workers: int, size: int, figures: dict[str, float]
) -> Record:
    """Print one line; the goal is that of replies of 8 KB."""
    reply = f"{size // MB} MB" if size >= MB else f"{size // KB} KB"
    # more processes than cores wait for each other
    more = kind.endswith("processes") and n_workers > len(os.sched_getaffinity(0))
    bounds = () if more or size >= MB else ROUND_GOALS_MS.get(backend, ())
    goal = next((ms for most, ms in bounds if n_workers <= most), None)
    verdict_of = (
        ""
        if goal is None
        else f"  goal {goal:g}: {'ok' if figures['wall_ms'] <= goal else 'MISSED'}"
    )
    print(
        f"{'':10s} {backend:9s} {kind:26s} {reply:>7s} {figures['wall_ms']:8.2f} {figures['wall_90_ms']:8.2f} "
        f"{figures['cpu_ms']:8.2f}{figures['own_ms']:8.2f}{verdict_of}",
        flush=True,
    )
    record = {
        "case": "rounds",
        "backend": backend,
        "workers": n_workers,
        "kind": kind,
        "bytes": size,
    } | figures
    return record if goal is None else record | {"goal_ms": goal, "met": figures["wall_ms"] <= goal}


def round_figures(
    execution: Execution, n_shards: int, depth: int, n_rounds: int, client: Client | None = None
) -> tuple[dict[str, float], list[int]]:
    """Wall (median, 90 %) and mean CPU of rounds over a few rows; with a client, tasks its scheduler held meanwhile.

    ``own_ms`` is the CPU of this process: the fit's own part and the scheduler, and workers that are not processes.
    """
    n_features = 4
    schema = generated_schema(n_features)
    model = empty_model((256,) * n_features)
    nodes = (1 << depth) - 1
    query = NodeSumsQuery(
        label="bench",
        price=1,
        gradient=logistic_gradient(0.5, 0.5),
        n_scores=1,
        splits=Splits.plain(np.zeros((1, nodes), np.uint16), np.zeros((1, nodes), np.uint8)),
        features=np.zeros(1, np.uint16),
        sizes=(256,),
    )
    X, y = generated(64 * n_shards, 64, n_features)
    source = read_source(X, y, None, schema)
    back_end = open_rounds(source, Shape(schema=schema), execution, bytes(32))
    walls, held = [], []
    try:
        for _ in range(WARM_ROUNDS):
            back_end.ask(model, query)
        own = time.process_time()
        with Clock() as clock:
            for number in range(n_rounds):
                if client is not None and number % -(-n_rounds // 5) == 0:
                    held.append(tasks_held(client))
                start = time.perf_counter()
                back_end.ask(model, query)
                walls.append(1000 * (time.perf_counter() - start))
        own = time.process_time() - own
        if client is not None:
            held.append(tasks_held(client))
    finally:
        back_end.close()
    worst = sorted(walls)[math.ceil(0.9 * len(walls)) - 1]
    cpu = 1000 * clock.cpu / n_rounds
    figures = {"wall_ms": median(walls), "wall_90_ms": worst, "cpu_ms": cpu}
    return figures | {"own_ms": 1000 * own / n_rounds}, held


def tasks_held(client: Client) -> int:
    """Tasks in the scheduler's memory."""
    return client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))


def empty_model(sizes: tuple[int, ...]) -> Model:
    """Return a model of some bins per feature that says 0 to every row."""
    bins = tuple(FeatureBins(np.linspace(-4, 4, size - 2), None, size) for size in sizes)
    return Model(
        bins, np.zeros(1, np.int32), tuple(np.zeros((size, 1), np.int32) for size in sizes)
    )


# ---------------------------------------------------------------- messages
MOST_BYTES = 25_000  # of a message at 100 features


def messages(options: argparse.Namespace) -> list[Record]:
    """Bytes that a message carries; the first round, when workers have nothing yet, stands apart."""
    n, n_features = (options.rows or 300_000), N_COLUMNS
    if options.smoke:
        n, n_features = 2_000, 5
    X, y = generated(n, max(1, n // 4), n_features)
    by_comms = dask.config.set({"dpgb-dask.backend": "comms"})  # tasks carry the same
    with processes(2) as client, client.as_current(), by_comms, noted() as found:
        default_fit(generated_schema(n_features)).fit(X, y)
    print(
        f"{'messages':10s} {'a round of':24s}{'rounds':>8s}{'mean KB':>9s}{'most KB':>9s}{'as it is KB':>13s}"
    )
    groups = {"the first round": found[:1]}
    for note in found[1:]:
        groups.setdefault(note[0], []).append(note)
    records = []
    for name, notes in groups.items():
        _, sent, whole = zip(*notes, strict=True)
        figures = {
            "rounds": len(notes), "mean": float(np.mean(sent)), "most": max(sent), "as_it_is": float(np.mean(whole))
        }  # fmt: skip
        print(
            f"{'':10s} {name:24s}{len(notes):8d}{figures['mean'] / 1e3:9.1f}{figures['most'] / 1e3:9.1f}"
            f"{figures['as_it_is'] / 1e3:13.1f}",
            flush=True,
        )
        records.append({"case": "messages", "name": name, "columns": n_features} | figures)
    most = max(sent for _, sent, _ in found)
    text = f"most of a round: {most / 1e3:.1f} KB, goal <= {MOST_BYTES / 1e3:.0f}"
    return [*records, {"case": "messages", "most": most} | verdict(text, most <= MOST_BYTES)]


@contextmanager
def noted() -> Iterator[list[tuple[str, int, int]]]:
    """List for every message the kind of its query, its bytes, and those of model and query as they are."""
    found: list[tuple[str, int, int]] = []
    make, pack = Sender.message, Sender.packed
    asked: list[tuple[str, int]] = []

    def message(sender: Sender, model: Model, query: Query) -> Message:
        asked[:] = [(type(query).__name__, len(pickle.dumps((model, query))))]
        return make(sender, model, query)

    def packed(sender: Sender, message: Message) -> bytes:
        content = pack(sender, message)
        ((kind, whole),) = asked
        found.append((kind, len(content), whole))
        return content

    with mock.patch.object(Sender, "message", message), mock.patch.object(Sender, "packed", packed):
        yield found


# ---------------------------------------------------------------- scaling
def scaling(options: argparse.Namespace) -> list[Record]:
    """A default fit of rows that lie in the workers' memory, on one process and on two."""
    n = options.rows or (20_000 if options.smoke else 2_000_000)
    schema = generated_schema()
    with processes(1) as one, processes(2) as two:
        runs: dict[str, Callable[[], object]] = {}
        for name, client, rows in (
            ("1 process", one, n),
            ("2 processes, the same rows", two, n),
            ("2 processes, twice the rows", two, 2 * n),
        ):
            with client.as_current():
                X, y = client.persist(generated(rows, max(1, rows // 16)))
                wait([X, y])

            def run(client: Client = client, X: da.Array = X, y: da.Array = y) -> None:
                with client.as_current():
                    default_fit(schema).fit(X, y)

            runs[name] = run
        times = interleave(runs, options.repeats)
    alone, same, twice = (times[name]["wall_s"] for name in runs)
    records = []
    for name, figures in times.items():
        print(
            f"{'scaling':10s} {name:30s} wall {figures['wall_s']:7.2f} s  CPU {figures['cpu_s']:7.2f} s"
        )
        records.append({"case": "scaling", "name": name, "rows": n} | figures)
    strong, weak = alone / same / 2, alone / twice
    print(f"{'':10s} efficiency of two processes: strong {strong:.0%}, weak {weak:.0%}", flush=True)
    return [*records, {"case": "scaling", "strong": strong, "weak": weak, "rows": n}]


def default_fit(schema: Any, **options: Any) -> DPGBClassifier:
    """Return the estimator of all fits here."""
    return DPGBClassifier(
        epsilon=EPSILON, delta=DELTA, schema=schema, random_state=0, columns="position", **options
    )


# ---------------------------------------------------------------- out of core
N_COLUMNS = 100
N_BINS = 32
TREE_DEPTH = 4
BATCH = 25
MOST_IN_MEMORY, MOST_READS = 2.5, 1.3
# name, whether it has the goal: one tree needs few columns and no arithmetic to speak of
WORK = (
    (f"{BATCH} random trees", True),
    ("additive, all features", True),
    ("level of 16 nodes, all features", True),
    ("1 random tree", False),
)


def outofcore(options: argparse.Namespace) -> list[Record]:
    """Rounds on codes on disk beside rounds in memory and a plain read, each in a process of its own."""
    n = options.rows or (4 * BLOCK if options.smoke else 8_000_000)
    n_blocks = -(-n // BLOCK)
    size = n_blocks * BLOCK * N_COLUMNS
    print(
        f"{'outofcore':10s} {n_blocks * BLOCK} x {N_COLUMNS}: {size / GB:.2f} GB of codes, cold before every round"
    )
    print(
        f"{'':10s} {'':32s}{'in memory':>10s}{'scratch':>9s}{'waiting':>9s}{'CPU':>7s}{'read':>7s}"
        f"{'/ memory':>9s}{'/ read':>8s}{'peak MB':>9s}"
    )
    records = []
    for name, judged in WORK[:1] if options.smoke else WORK:
        with Processes() as contest:
            folder = str(options.scratch)
            contest.enter("memory", shard_rounds, name, "memory", folder, n_blocks, units=size)
            contest.enter("scratch", shard_rounds, name, "disk", folder, n_blocks, units=size)
            contest.enter("read", plain_read, folder, n_blocks, units=size)
            contest.run(options.repeats)
        memory, scratch, read = (
            median(turn.wall for turn in contest.turns[k]) for k in ("memory", "scratch", "read")
        )
        cpu = median(turn.cpu for turn in contest.turns["scratch"])
        waited = median(turn.facts["waited"] for turn in contest.turns["scratch"])
        peak = contest.facts("scratch")["peak"]
        allowed = max(MOST_IN_MEMORY * memory, MOST_READS * read)
        met = scratch <= allowed
        mark = "" if not judged else "  ok" if met else "  MISSED"
        print(
            f"{'':10s} {name:32s}{memory:9.2f}s{scratch:8.2f}s{waited:8.2f}s{cpu:6.2f}s{read:6.2f}s"
            f"{scratch / memory:9.2f}{scratch / read:8.2f}{peak / MB:9.0f}{mark}",
            flush=True,
        )
        record = {
            "case": "outofcore", "name": name, "rows": n_blocks * BLOCK, "columns": N_COLUMNS, "memory_s": memory,
            "scratch_s": scratch, "waited_s": waited, "scratch_cpu_s": cpu, "read_s": read, "peak": peak,
            "idle": contest.facts("read")["peak"],
        }  # fmt: skip
        records.append(record | {"met": met} if judged else record)
    text = f"goal: at most the larger of {MOST_IN_MEMORY} x in memory and {MOST_READS} x the plain read"
    print(f"{'':10s} {text}", flush=True)
    return records


def shard_rounds(name: str, cache: str, folder: str, n_blocks: int) -> Contestant:
    """Return rounds of a shard whose codes are made here and kept by a store; each asks what the last one did not."""
    schema = generated_schema(N_COLUMNS)
    sizes = (N_BINS,) * N_COLUMNS
    model = empty_model(sizes)
    store = store_of("bench", Keeping(cache=cache, memory_limit=None, folder=folder, key=bytes(32)))
    kept = [piece for k in range(n_blocks) for piece in store.keep([some_piece(k)], k)]
    shard = Shard(kept, Shape(schema=schema), model.bins)
    del kept
    rng = np.random.default_rng(0)
    waited = 0.0

    def prepare() -> None:
        nonlocal waited
        waited = shard.waited
        drop_scratch(folder)

    def run() -> None:
        nonlocal model
        model, query = next_round(name, model, sizes, rng)
        shard.answer(model, query)

    def look() -> Facts:
        return {"waited": shard.waited - waited, "peak": high_water()}

    return Contestant(run, look, prepare)


def some_piece(number: int) -> Piece:
    """Return a block of random codes."""
    rng = np.random.default_rng([2, number])
    codes = np.frombuffer(rng.bytes(N_COLUMNS * BLOCK), np.uint8) & (N_BINS - 1)
    return Piece(codes.reshape(N_COLUMNS, BLOCK), codes[:BLOCK] & 1, None)


def next_round(
    name: str, model: Model, sizes: tuple[int, ...], rng: np.random.Generator
) -> tuple[Model, Query]:
    """Return a model that has learnt from the last round, and the next question."""
    common: dict[str, Any] = {
        "label": "bench", "price": 1, "gradient": logistic_gradient(0.5, 0.5), "n_scores": 1
    }  # fmt: skip
    if name.startswith("additive"):
        tables = tuple(rng.integers(-50, 50, (size, 1), np.int32) for size in sizes)
        leaves = tuple(np.arange(size, dtype=np.uint8) for size in sizes)
        return replace(model, tables=tables), MainSumsQuery(
            **common, leaf_of_bin=leaves, n_leaves=sizes
        )
    if name.startswith("level"):
        features = np.arange(len(sizes), dtype=np.uint16)
        splits = random_splits(1, rng)
        return model, NodeSumsQuery(**common, splits=splits, features=features, sizes=sizes)
    batch = BATCH if name.startswith(str(BATCH)) else 1
    value = rng.integers(-50, 50, (1, batch, 1 << TREE_DEPTH), np.int32)
    trees = model.trees if model.trees.n_trees else no_trees(TREE_DEPTH)
    grown = replace(model, trees=trees.with_more(random_splits(batch, rng), value))
    return grown, TreeSumsQuery(**common, splits=random_splits(batch, rng))


def random_splits(n_trees: int, rng: np.random.Generator) -> Splits:
    """Return complete trees that split at random."""
    shape = n_trees, (1 << TREE_DEPTH) - 1
    feature = rng.integers(0, N_COLUMNS, shape, np.uint16)
    return Splits.plain(feature, rng.integers(0, N_BINS - 1, shape, np.uint8))


def drop_scratch(folder: str) -> None:
    """Write this process's scratch to disk and drop it from the page cache; it has no name, but it is open."""
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if path.startswith(folder):
            forget(int(name))


def forget(file: int) -> None:
    """Drop an open file from the page cache."""
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read(folder: str, n_blocks: int) -> Contestant:
    """Return a read of a file of as many bytes as the codes, block by block into one buffer."""
    file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
    for k in range(n_blocks):
        file.write(some_piece(k).codes)
    buffer = np.empty(N_COLUMNS * BLOCK, np.uint8)

    def run() -> None:
        file.seek(0)
        for _ in range(n_blocks):
            file.readinto(buffer)

    return Contestant(run, lambda: {"peak": high_water()}, lambda: forget(file.fileno()))


# ---------------------------------------------------------------- rows beyond memory
# a plan and how much of it: few rounds for a look at memory; bins of trees are public, so that the rows are read once
BIG_RECIPES: dict[str, dict[str, Any]] = {
    "auto": {"recipe": "auto", "n_estimators": 4},
    "trees": {
        "recipe": replace(
            RECIPES["fdp-tr-newton"],
            name=f"random trees in batches of {BATCH}",
            stages=(PublicBins(n_bins=N_BINS), BaseScore(), Trees(n_trees=4 * BATCH, batch=0.25)),
        )
    },
}


def big(options: argparse.Namespace) -> list[Record]:
    """Fits of rows that are never whole anywhere, on two workers of little memory."""
    n = options.rows or (100_000 if options.smoke else 80_000_000)
    limit = options.memory_limit
    import_ours()  # compiled here once: a worker that compiles holds 200 MB for it ever after
    schema = generated_schema(N_COLUMNS)
    X, y = generated(n, options.chunk, N_COLUMNS)
    test = signals(n, (100_000, N_COLUMNS))  # no chunk has this number
    logit = test[:, 0] + test[:, 1] * test[:, 2] + np.abs(test[:, 3]) - 0.8
    records = []
    recipes = ["auto"] if options.smoke else options.recipes
    for recipe in recipes:
        with processes(2, memory_limit=limit, local_directory=str(options.scratch)) as client:
            client.run(import_ours)
            idle, before = client.run(resident_high_water), set(client.run(os.getpid).values())
            print(
                f"{'big':10s} {recipe}: {n} x {N_COLUMNS}, {n * N_COLUMNS / GB:.1f} GB of codes, on 2 workers of "
                f"{limit} that hold {max(idle.values()) / MB:.0f} MB when idle",
                flush=True,
            )
            with watching(client, options.scratch) as note, Clock() as clock:
                model = default_fit(
                    schema, memory_limit=limit, callbacks=[note], **BIG_RECIPES[recipe]
                ).fit(X, y)
            peaks = client.run(resident_high_water)
            restarted = len(before - set(client.run(os.getpid).values()))
        corr = np.corrcoef(model.decision_function(test), logit)[0, 1]
        most = dask.utils.parse_bytes(limit)
        peak = max(peaks.values())
        text = (
            f"{recipe}: wall {clock.wall:.0f} s, CPU {clock.cpu:.0f} s; high-water marks "
            f"{', '.join(f'{p / MB:.0f}' for p in peaks.values())} MB, goal <= {most / MB:.0f}; workers lost: "
            f"{restarted}; correlation with the truth {corr:.2f}"
        )
        figures = {
            "case": "big", "recipe": recipe, "rows": n, "columns": N_COLUMNS, "memory_limit": most,
            "peaks": list(peaks.values()), "idle": list(idle.values()), "restarted": restarted,
            "wall_s": clock.wall, "cpu_s": clock.cpu, "correlation": corr,
        }  # fmt: skip
        records.append(figures | verdict(text, peak <= most and not restarted))
    return records


def resident_high_water() -> int:
    """High-water mark of a worker."""
    return high_water()


@contextmanager
def watching(client: Client, folder: Path) -> Iterator[Callable[[str, int, int], None]]:
    """Print every half minute how a fit goes on: its last round, memory and disk."""
    start = time.perf_counter()
    done = threading.Event()
    last = "reading the rows"

    def note(stage: str, position: int, total: int) -> None:
        nonlocal last
        last = f"{stage}, round {position} of at most {total}"

    def watch() -> None:
        while not done.wait(30):
            peaks = client.run(resident_high_water).values()
            print(
                f"{'':10s} {time.perf_counter() - start:6.0f} s  {last}; high-water "
                f"{', '.join(f'{p / MB:.0f}' for p in peaks)} MB, {shutil.disk_usage(folder).free / GB:.1f} GB of disk "
                "free",
                flush=True,
            )

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield note
    finally:
        done.set()
        thread.join()


# ---------------------------------------------------------------- a whole fit against xgboost.dask
FIT_GOALS = {"dpgb": 3.0, "additive": 5.5}  # times XGBoost's CPU and wall time


def fit11m(options: argparse.Namespace) -> list[Record]:
    """From Zarr to model, ours and xgboost's, on one cluster of two processes."""
    n = options.rows or (50_000 if options.smoke else 11_000_000)
    n_trees = 5 if options.smoke else 100
    runs: dict[str, Callable[[], object]] = {}
    auc: dict[str, float] = {}
    with processes(2) as client:
        for url, rows in (("warm.zarr", 20_000), ("rows.zarr", n)):
            X, y = generated(rows, options.chunk)
            da.to_zarr(X, str(options.scratch / url), component="x")
            da.to_zarr(y, str(options.scratch / url), component="y")
        # chunks of other numbers are other rows
        held_out, labels = (part[n:].compute() for part in generated(n + 100_000, options.chunk))

        def read(url: str) -> tuple[da.Array, da.Array]:
            return tuple(da.from_zarr(str(options.scratch / url), component=k) for k in "xy")

        def ours(recipe: str, url: str = "rows.zarr") -> None:
            options = {} if recipe == "dpgb" else {"recipe": recipe}
            model = default_fit(generated_schema(), **options).fit(*read(url))
            auc[recipe] = float(roc_auc_score(labels, model.predict_proba(held_out)[:, 1]))

        for recipe in FIT_GOALS:
            ours(recipe, "warm.zarr")
            runs[recipe] = partial(ours, recipe)
        if not missing("xgboost"):
            import xgboost  # noqa: PLC0415
            import xgboost.dask as dxgb  # noqa: PLC0415

            parameters = {
                "objective": "binary:logistic", "tree_method": "hist", "max_depth": 6, "verbosity": 0
            }  # fmt: skip

            def theirs(url: str = "rows.zarr") -> None:
                table = dxgb.DaskQuantileDMatrix(client, *read(url))
                found = dxgb.train(client, parameters, table, num_boost_round=n_trees)
                scores = found["booster"].predict(xgboost.DMatrix(held_out))
                auc["xgboost.dask"] = float(roc_auc_score(labels, scores))

            theirs("warm.zarr")
            runs["xgboost.dask"] = theirs
        times = interleave(runs, options.repeats, warm=True)
    records = report("fit11m", times, n, X.shape[1])
    print("AUC on 100,000 other rows: " + ", ".join(f"{k} {v:.4f}" for k, v in auc.items()))
    records.append({"case": "fit11m", "auc": auc})
    if "xgboost.dask" in times:
        for recipe, goal in FIT_GOALS.items():
            for unit, name in (("wall_s", "wall"), ("cpu_s", "CPU")):
                ratio = times["xgboost.dask"][unit] / times[recipe][unit]
                text = f"{n} rows: xgboost.dask takes {ratio:.2f} x {recipe}'s {name} time, goal >= {goal}"
                records.append(
                    {"case": "fit11m", "recipe": recipe, unit: ratio} | verdict(text, ratio >= goal)
                )
    return records


# ---------------------------------------------------------------- model
MODEL_ROWS, MODEL_FEATURES, MODEL_WORKERS = 10**9, 100, (1, 10, 100, 1000, 10_000)
CHUNK_BYTES = 128 << 20  # Dask's default


def model(options: argparse.Namespace) -> list[Record]:
    """Measure the constants, and print the terms of a fit by the number of workers."""
    n, m = options.rows or MODEL_ROWS, MODEL_FEATURES
    few, many, chunks = (4_000, 8_000, 60) if options.smoke else (100_000, 400_000, 600)
    fits = [
        cost_model.whole_fit(lambda x, y: default_fit(generated_schema(m)).fit(x, y), m, size)
        for size in (few, few, many)  # the first one warms up
    ][1:]
    read = cost_model.reading_row(m)
    (work_few, *_), (work, total, n_rounds, down, up) = fits
    figures = {}
    for workers in (2, 8):
        with processes(workers, processes=False, memory_limit=0) as client:
            client.wait_for_workers(workers)
            for backend in ("tasks", "comms"):
                execution = Execution(backend=backend)
                figures[backend, workers], _ = round_figures(execution, workers, 1, 30)
            if workers == 2:
                chunk = cost_model.chunk_cost(4, chunks // 3, chunks)
    slope = (figures["tasks", 8]["wall_ms"] - figures["tasks", 2]["wall_ms"]) / 6000
    constants = cost_model.Constants(
        row=max(work - work_few, 0.0) / (many - few),
        read=read,
        controller=total - work - read * many,
        rounds=n_rounds,
        bytes_down=down,
        bytes_up=up,
        task_worker=slope,
        task_round=figures["tasks", 2]["wall_ms"] / 1000 - 2 * slope,
        hop=figures["comms", 8]["wall_ms"] / 2000,
        chunk=chunk,
    )
    chunk_rows = CHUNK_BYTES // (4 * m)

    def at(workers: int) -> dict[str, float]:
        return cost_model.terms(constants, n, chunk_rows, options.gbit * 1e9 / 8, workers)

    print(f"measured: {constants}")
    print(
        f"{n:.0e} rows x {m}, {math.ceil(n / chunk_rows)} chunks, {options.gbit:g} Gbit/s, seconds with"
    )
    print(f"{'workers':20s}" + "".join(f"{w:>11d}" for w in MODEL_WORKERS) + f"{'breaks at':>12s}")
    shared, breaks = ("row work", "reading"), {}
    for name in at(1):
        if name not in shared:
            breaks[name] = cost_model.breaks_at(name, at)
        row = "".join(f"{at(workers)[name]:11.3g}" for workers in MODEL_WORKERS)
        print(f"{name:20s}{row}{breaks.get(name) or '':>12}")
    # rounds go by comms where tasks are slower (backend="auto")
    first = min(
        (name for name, most in breaks.items() if most and not name.endswith("by tasks")),
        key=lambda name: breaks[name],
    )
    print(f"first to take longer than the rows' work: {first}, at {breaks[first]} workers")
    terms = {workers: at(workers) for workers in MODEL_WORKERS}
    return [{"case": "model", "constants": asdict(constants), "terms": terms, "breaks": breaks}]


CASES = {
    "rounds": rounds,
    "messages": messages,
    "scaling": scaling,
    "outofcore": outofcore,
    "big": big,
    "fit11m": fit11m,
    "model": model,
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases", type=lambda t: t.split(","), default=list(CASES), help="comma-separated"
    )
    parser.add_argument("--rows", type=int, help="rows of each case (its own number)")
    parser.add_argument(
        "--model", dest="cases", action="store_const", const=["model"], help="the case model alone"
    )
    parser.add_argument(
        "--gbit", type=float, default=10, help="of a worker's network in model (10)"
    )
    parser.add_argument("--chunk", type=int, default=65_536, help="rows per Dask chunk")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each contestant (3)")
    parser.add_argument("--memory-limit", default="1GiB", help="of a worker in big (1GiB)")
    parser.add_argument(
        "--recipes",
        type=lambda t: t.split(","),
        default=list(BIG_RECIPES),
        help=f"of big ({','.join(BIG_RECIPES)})",
    )
    parser.add_argument(
        "--scratch",
        type=Path,
        default=tempfile.gettempdir(),
        help="a folder is made in it, and removed",
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument(
        "--large", action="store_true", help="5000 rounds, and 32 and 64 processes, in rounds"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="all cases, tiny; goals are not judged"
    )
    options = parser.parse_args(arguments)
    for name, known in (("cases", CASES), ("recipes", BIG_RECIPES)):
        if unknown := set(getattr(options, name)) - set(known):
            parser.error(f"unknown {name} {sorted(unknown)}; known: {', '.join(known)}")
    if options.smoke:
        options.repeats = 1
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the cases, print and store."""
    options = parse(arguments)
    records: list[Record] = []
    for name in options.cases:
        with tempfile.TemporaryDirectory(prefix="dpgb-scale-", dir=options.scratch) as folder:
            here = argparse.Namespace(**{**vars(options), "scratch": Path(folder)})
            records += CASES[name](here)
        if options.json is not None:
            options.json.write_text(json.dumps(records, indent=1) + "\n")
    met = all(record.get("met", True) for record in records)
    return 0 if met or options.smoke else 1


if __name__ == "__main__":
    sys.exit(main())
