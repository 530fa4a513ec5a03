"""Each kernel against its rival, its naive twin and the roofline, interleaved in one process.

    python ci/bench/kernels.py --rows 1000000 --json kernels.json

Every figure is CPU time of this process on one thread, the best of some repeats in which all contestants take turns;
only ratios have goals. Two data sets: continuous columns alone flatter us, so in the second every other column is
binary and mostly 0. The exit status is 1 if a goal is missed.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numba
import numpy as np
from contest import BLOCK, Contest, M, edges_of, in_blocks, make_values, no_masks

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.components import constants
from dpgb_dask.components.auto import smoothing
from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.grid import FINE, numeric_edges
from dpgb_dask.controller import gaussian
from dpgb_dask.controller.gaussian import discrete_gaussian
from dpgb_dask.controller.noise import KeyStream
from dpgb_dask.controller.release import Controller
from dpgb_dask.kernels import bin as bins
from dpgb_dask.kernels import gradient, histogram, pair_tables, predict, route
from dpgb_dask.losses import logistic_gradient
from dpgb_dask.private.reading.chunks import STRIP_ROWS

try:
    import xgboost
    from interpret.privacy import DPExplainableBoostingClassifier
except ImportError as error:
    sys.exit(f"{error.name} is missing: the rivals come with pip install '.[bench]'.")

EPOCHS = 2, 102  # interpret is fitted twice: in the difference its preparation cancels
DATA = ("continuous", "half binary")
WIDTHS = 28, 100, 300
CELLS = 6_000_000
TYPES = "float32", "float64"
SIGMAS = 1 << 16, (1 << 32) - 5
N_VALUES = 200_000
TABLES = {36: 36, 64: 8, 128: 8, 250: 32}  # bins, and leaves of a round


@numba.njit(nogil=True)
def read_all(words):
    """Sum of all words: the sequential read."""
    total = 0
    for i in range(words.shape[0]):
        total += words[i]
    return total


@numba.njit(nogil=True)
def naive_round(codes, label, score, tables, out):
    """A joint round as one would write it: rows outside, float exponential, float sums."""
    m, n = codes.shape
    for i in range(n):
        for j in range(m):
            score[i] += tables[j, codes[j, i]]
        p = 1 / (1 + np.exp(-score[i]))
        for j in range(m):
            out[j, codes[j, i], 0] += p - label[i]
            out[j, codes[j, i], 1] += p * (1 - p)


@numba.njit(nogil=True)
def naive_trees(codes, feature, threshold, g, h, out):
    """Leaf sums by walking down."""
    n_trees, nodes = feature.shape
    for i in range(codes.shape[1]):
        for t in range(n_trees):
            k = 0
            while k < nodes:
                k = 2 * k + 1 + (codes[feature[t, k], i] > threshold[t, k])
            out[t, k - nodes, 0] += g[i]
            out[t, k - nodes, 1] += h[i]


def enter_binning(contest: Contest, x: np.ndarray, label: np.ndarray) -> None:
    """Binning, ours and xgboost's sketch and bin."""
    n = len(x)
    wide = x.astype(np.float64)
    out = np.empty((M, BLOCK), np.uint8)
    for n_bins in (32, 250):
        edges = edges_of(x, n_bins)
        for values in (x, wide):

            def ours(values: np.ndarray = values, edges: list[np.ndarray] = edges) -> None:
                for rows in in_blocks(n):
                    block = values[rows]
                    bins.bin_matrix(
                        block, edges, out if len(block) == BLOCK else out[:, : len(block)].copy()
                    )

            contest.enter(f"bin {n_bins} {values.dtype}", ours, n * M)

        def theirs(n_bins: int = n_bins) -> None:
            xgboost.QuantileDMatrix(x, label, max_bin=n_bins, nthread=1)

        contest.enter(f"bin {n_bins} xgboost", theirs, n * M)

        def naive(edges: list[np.ndarray] = edges) -> None:
            for j, edge in enumerate(edges):
                np.searchsorted(edge, x[:, j])

        contest.enter(f"bin {n_bins} naive", naive, n * M)


def enter_cells(contest: Contest, kind: str) -> None:
    """Values to cells of the public grid, as the first pass over the rows makes them, at some widths."""
    rng = np.random.default_rng(2)
    for m in WIDTHS:
        n = -(-CELLS // m // STRIP_ROWS) * STRIP_ROWS
        bounds = rng.uniform(4, 8, m)  # other edges in each column, or their tables would be one
        edges = [numeric_edges(Numeric(-b, b), FINE) for b in bounds]
        out = np.empty((m, STRIP_ROWS), np.uint16)
        rows = make_values(kind, n, rng, m)
        for values in (rows, rows.astype(np.float64)):
            table = bins.edge_table(edges, values.dtype)

            def ours(
                values: np.ndarray = values, table: bins.EdgeTable = table, out: np.ndarray = out
            ) -> None:
                for start in range(0, len(values), STRIP_ROWS):
                    bins.cell_matrix(values[start : start + STRIP_ROWS], table, out)

            contest.enter(f"cells {m} columns {values.dtype}", ours, n * m)


def enter_rounds(
    contest: Contest, codes: list[np.ndarray], label: list[np.ndarray], sizes: tuple[int, ...]
) -> None:
    """Joint rounds, tree passes and pair sums on codes."""
    rng = np.random.default_rng(1)
    n = sum(len(block) for block in label)
    loss = logistic_gradient(0.5, 0.5)
    score = [np.zeros((1, len(block)), np.int32) for block in label]
    packed = [np.empty((1, len(block)), np.int64) for block in label]
    tables = [rng.integers(-100, 100, (size, 1), np.int32) for size in sizes]
    packed_tables = predict.pack_tables(tables)

    def joint() -> None:
        for c, y, s, p in zip(codes, label, score, packed, strict=True):
            predict.add_tables(c, packed_tables, s)
            gradient.logistic(s[0], y, None, loss.table, p[0])
            histogram.joint_sums(c, p, loss.max_abs, sizes)

    contest.enter("joint round", joint, n * M)
    leaves = tuple(min(32, size) for size in sizes)  # which main effects ask about
    to_leaf = np.stack(
        [
            histogram.padded((np.arange(size) * few // size).astype(np.uint8))
            for size, few in zip(sizes, leaves, strict=True)
        ]
    )

    def catch_up() -> None:
        for c, s in zip(codes, score, strict=True):
            predict.add_tables(c, packed_tables, s)

    def by_leaf() -> None:
        for c, p in zip(codes, packed, strict=True):
            histogram.joint_sums(c, p, loss.max_abs, leaves, to_leaf)

    def by_bin() -> None:
        for c, p in zip(codes, packed, strict=True):
            histogram.joint_sums(c, p, loss.max_abs, sizes)

    contest.enter("joint catch-up", catch_up, n * M)
    contest.enter("joint sums by leaf", by_leaf, n * M)
    contest.enter("joint sums by bin", by_bin, n * M)
    steps = np.zeros((M, 256))
    for row, table in zip(steps, tables, strict=True):
        row[: len(table)] = table[:, 0] / 65536
    floats = [np.zeros(len(block)) for block in label]

    def naive_joint() -> None:
        out = np.zeros((M, 256, 2))
        for c, y, s in zip(codes, label, floats, strict=True):
            naive_round(c, y, s, steps, out)

    contest.enter("joint round naive", naive_joint, n * M)

    shape = (15, 31)
    feature = rng.integers(0, M, shape, np.uint16)
    top = np.array(sizes)[feature] - 2
    threshold = rng.integers(0, np.maximum(top, 1)).astype(np.uint8)

    splits = feature, threshold, *no_masks(shape)

    def trees() -> None:
        for c, p in zip(codes, packed, strict=True):
            route.tree_sums(c, *splits, p, loss.max_abs)

    contest.enter("tree pass", trees, n * shape[0])
    grads = [(np.ones(len(block)), np.ones(len(block))) for block in label]

    def naive_pass() -> None:
        out = np.zeros((15, 32, 2))
        for c, (g, h) in zip(codes, grads, strict=True):
            naive_trees(c, feature, threshold, g, h, out)

    contest.enter("tree pass naive", naive_pass, n * shape[0])

    pairs = []
    for _ in range(15):
        i, j = (int(k) for k in rng.choice(M, 2, replace=False))
        maps = [
            (np.arange(sizes[k]) * min(sizes[k], 12) // sizes[k]).astype(np.uint8) for k in (i, j)
        ]
        pairs.append(pair_tables.Pair(i, j, *maps, int(maps[0].max()) + 1, int(maps[1].max()) + 1))
    pair_set = pair_tables.pack_pairs(pairs)

    def pair_pass() -> None:
        for c, p in zip(codes, packed, strict=True):
            pair_tables.pair_sums(c, pair_set, p, loss.max_abs)

    contest.enter("pair pass", pair_pass, n * len(pairs))

    words = [block.reshape(-1)[: block.size // 8 * 8].view(np.int64) for block in codes]
    contest.enter("read codes", lambda: [read_all(block) for block in words], n * M)


def enter_interpret(contest: Contest, x: np.ndarray, label: np.ndarray, kind: str) -> None:
    """Fits of interpret's DP-EBM with declared types, at two numbers of epochs."""
    types = ["nominal" if kind == "half binary" and j % 2 == 0 else "continuous" for j in range(M)]
    table = x.astype(np.float64)
    bounds = {j: (-6.0, 6.0) for j in range(M)}
    for epochs in EPOCHS:

        def fit(epochs: int = epochs) -> None:
            model = DPExplainableBoostingClassifier(
                feature_types=types, privacy_bounds=bounds, max_rounds=epochs, n_jobs=1, random_state=0, epsilon=8.0
            )  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(table, label)

        contest.enter(f"interpret {epochs} epochs", fit, 1)


def enter_prediction(
    contest: Contest,
    x: np.ndarray,
    label: np.ndarray,
    codes: list[np.ndarray],
    sizes: tuple[int, ...],
) -> None:
    """Prediction of an additive model, and of 100 depth-6 trees, against xgboost's 100 depth-6 trees."""
    rng = np.random.default_rng(2)
    n = len(x)
    edges = edges_of(x, 32)
    train = slice(0, min(n, 100_000))
    booster = xgboost.train(
        {
            "max_depth": 6,
            "tree_method": "hist",
            "nthread": 1,
            "objective": "binary:logistic",
            "min_child_weight": 0,
        },
        xgboost.QuantileDMatrix(x[train], label[train], nthread=1),
        100,
    )
    contest.enter("predict xgboost", lambda: booster.inplace_predict(x, predict_type="margin"), n)
    tables = [rng.integers(-1000, 1000, (size, 1), np.int32) for size in sizes]

    def from_codes() -> None:
        packed = predict.pack_tables(tables)
        for block in codes:
            predict.add_tables(block, packed, np.zeros((1, block.shape[1]), np.int32))

    contest.enter("predict codes", from_codes, n)

    def from_floats() -> None:
        packed = predict.pack_tables(tables)
        table = bins.edge_table(edges, np.float32)
        for rows in in_blocks(n):
            block = np.empty((M, len(x[rows])), np.uint8)
            bins.bin_matrix(x[rows], table, block)
            predict.add_tables(block, packed, np.zeros((1, block.shape[1]), np.int32))

    contest.enter("predict floats", from_floats, n)
    feature = rng.integers(0, M, (100, 63), np.uint16)
    threshold = rng.integers(0, 30, feature.shape).astype(np.uint8)
    value = rng.integers(-1000, 1000, (1, 100, 64), np.int32)

    splits = feature, threshold, *no_masks(feature.shape)

    def trees() -> None:
        for block in codes:
            predict.add_trees(block, *splits, value, np.zeros((1, block.shape[1]), np.int32))

    contest.enter("predict 100 trees", trees, n)


def enter_sampler(contest: Contest) -> None:
    """Exact discrete Gaussian, at a power of two and at an awkward large sigma."""
    for sigma in SIGMAS:

        def draw(sigma: int = sigma) -> None:
            discrete_gaussian(N_VALUES, sigma, KeyStream(bytes(32)))

        contest.enter(f"sampler {sigma}", draw, N_VALUES)


def informed(n_bins: int, n_leaves: int) -> smoothing.TablePosterior:
    """A table after some rounds of a stage."""
    rng = np.random.default_rng(0)
    mass = rng.uniform(50, 500, n_bins)
    root = smoothing.square_root(smoothing.prior(mass, ordered=True, missing_last=True))
    block = smoothing.new_block(mass, root, 0.2)
    for t in range(8):
        cuts = np.sort(rng.choice(n_bins - 1, n_leaves - 1, replace=False)) + 1
        leaf = np.searchsorted(cuts, np.arange(n_bins), side="right").astype(np.uint8)
        hess = np.bincount(leaf, mass * 0.2)
        seen = smoothing.Observation(
            grad_sd=8.0, hess_sd=16.0, round=t, sampling=20.0, hess_low=0.01, hess_high=0.25
        )
        grad, scales = rng.normal(0, 30, n_leaves), constants.PRIOR_SCALES
        block = smoothing.observe(
            block, leaf, grad, hess, 0.0, seen, hess_total=hess.sum(), scales=scales
        )
    return block


def eigen_mean(block: smoothing.TablePosterior) -> smoothing.Mean:
    """`smoothing.posterior_mean` by an eigen-decomposition."""
    values, vectors = np.linalg.eigh(block.precision)
    q, t2 = vectors.T @ block.shift, constants.PRIOR_SCALES[:, None] ** 2
    spread = 1 + t2 * np.maximum(values, 0)
    evidence = 0.5 * (t2 * q * q / spread - np.log(spread)).sum(1)
    odds = np.exp(evidence - evidence.max())
    shrink = (odds[:, None] / odds.sum() * t2 / spread).sum(0)
    last = block.seen[-1]
    design = np.zeros((last.n_leaves, len(last.leaf)))
    design[last.leaf, np.arange(len(last.leaf))] = last.weight
    rooted, weight = design @ block.root @ vectors, design.sum(1)
    against = (1 / (last.grad_sd**2 + last.sampling * weight) / weight) @ (rooted**2 @ shrink)
    return smoothing.Mean(
        block.root @ (vectors @ (shrink * q)), float(evidence.max()), float(against)
    )


def enter_posterior(contest: Contest) -> None:
    """The decision about one table between two rounds of `auto`."""
    for n_bins, n_leaves in TABLES.items():
        block, scales = informed(n_bins, n_leaves), constants.PRIOR_SCALES
        ours, theirs = smoothing.posterior_mean(block, scales), eigen_mean(block)
        np.testing.assert_allclose(ours.value, theirs.value, atol=1e-9)
        np.testing.assert_allclose(ours[1:], theirs[1:], rtol=1e-9)

        def solve(block: smoothing.TablePosterior = block) -> None:
            for _ in range(20):
                smoothing.posterior_mean(block, constants.PRIOR_SCALES)

        def decompose(block: smoothing.TablePosterior = block) -> None:
            for _ in range(20):
                eigen_mean(block)

        contest.enter(f"posterior {n_bins}", solve, 20)
        contest.enter(f"posterior {n_bins} eigen", decompose, 20)


def enter_noise_of_a_fit(contest: Contest, repeats: int) -> None:
    """What a released value costs the controller in a fit of histogram trees: its noise, and all of its release."""
    rng = np.random.default_rng(3)
    x = rng.normal(0, 1, (5000, M))
    label = (x[:, 0] > 0).astype(int)
    schema = Schema({f"x{j}": (-4.0, 4.0) for j in range(M)}, classes=[0, 1])
    model = DPGBClassifier(
        epsilon=1.0, delta=1e-6, schema=schema, recipe="fdp-hist-newton", max_depth=6, max_bins=250, n_estimators=2
    )  # fmt: skip
    took: dict[str, list[float]] = {}

    def timed(name: str, inner: Callable, n_values: Callable) -> Callable:
        def run(*args: object) -> object:
            start = time.process_time()
            answer = inner(*args)
            sums = took.setdefault(name, [0.0, 0.0])
            sums[0] += time.process_time() - start
            sums[1] += n_values(*args)
            return answer

        return run

    noise = timed("noise in a fit", discrete_gaussian, lambda n, *_: n)
    release = timed("release in a fit", Controller.release, lambda _, query, __: query.n_values)
    with (
        mock.patch.object(gaussian, "discrete_gaussian", noise),
        mock.patch.object(Controller, "release", release),
    ):
        for _ in range(repeats + 1):
            took.clear()
            model.fit(x, label)
            for name, (seconds, n_values) in took.items():
                contest.entries[name] = (lambda: None), n_values
                contest.best[name] = min(seconds, contest.best.get(name, np.inf))


def run_data(kind: str, n: int, repeats: int) -> Contest:
    """Run all contests on one data set."""
    rng = np.random.default_rng(0)
    x = make_values(kind, n, rng)
    label = (rng.random(n) < 1 / (1 + np.exp(-x[:, :8].sum(axis=1)))).astype(np.uint8)
    edges = edges_of(x, 32)
    sizes = tuple(len(edge) + 2 for edge in edges)
    codes = []
    for rows in in_blocks(n):
        codes.append(np.empty((M, len(x[rows])), np.uint8))
        bins.bin_matrix(x[rows], edges, codes[-1])
    contest = Contest()
    enter_binning(contest, x, label)
    enter_cells(contest, kind)
    enter_rounds(contest, codes, [label[rows] for rows in in_blocks(n)], sizes)
    enter_interpret(contest, x, label, kind)
    enter_prediction(contest, x, label, codes, sizes)
    enter_sampler(contest)
    enter_posterior(contest)
    contest.run(repeats)
    few, many = EPOCHS
    took = contest.best[f"interpret {many} epochs"] - contest.best[f"interpret {few} epochs"]
    contest.best["interpret round"] = took
    contest.entries["interpret round"] = (lambda: None), (many - few) * n * M
    enter_noise_of_a_fit(contest, repeats)
    return contest


def goals(contest: Contest) -> list[tuple[str, float, float, bool]]:
    """Name, ratio, bound, and whether the ratio meets it."""
    ns = contest.ns
    at_most = [
        ("joint round / interpret's feature-round", ns("joint round") / ns("interpret round"), 0.8),
        ("bin 32 float32 / QuantileDMatrix", ns("bin 32 float32") / ns("bin 32 xgboost"), 1 / 20),
        ("bin 32 float64 / QuantileDMatrix", ns("bin 32 float64") / ns("bin 32 xgboost"), 1 / 20),
        (
            "bin 250 float32 / QuantileDMatrix",
            ns("bin 250 float32") / ns("bin 250 xgboost"),
            1 / 20,
        ),
        ("noise in a fit, ns a value", ns("noise in a fit"), 40),
        *((f"cells, 300 columns {t}, ns a value", ns(f"cells 300 columns {t}"), 5) for t in TYPES),
    ]
    at_least = [
        ("xgboost / additive model from codes", ns("predict xgboost") / ns("predict codes"), 40),
        ("xgboost / additive model from floats", ns("predict xgboost") / ns("predict floats"), 3),
        ("naive / joint round", ns("joint round naive") / ns("joint round"), 3),
        ("naive / tree pass", ns("tree pass naive") / ns("tree pass"), 5),
        *(
            (f"sampler, values per second, sigma={s}", 1e9 / ns(f"sampler {s}"), 15e6)
            for s in SIGMAS
        ),
        *(
            (
                f"eigen-decomposition / posterior, {n} bins",
                ns(f"posterior {n} eigen") / ns(f"posterior {n}"),
                1.2,
            )
            for n in TABLES
        ),
    ]
    return [(name, ratio, bound, ratio <= bound) for name, ratio, bound in at_most] + [
        (name, ratio, bound, ratio >= bound) for name, ratio, bound in at_least
    ]


UNITS = {
    "bin": "value",
    "cells": "value",
    "joint": "row and feature",
    "interpret": "row and feature",
    "tree": "row and tree",
    "pair": "row and pair",
    "predict": "row",
    "read": "value",
    "sampler": "value",
    "posterior": "table",
    "noise": "value",
    "release": "value",
}


def show(kind: str, contest: Contest) -> list[tuple[str, float, float, bool]]:
    """Print one data set's table; return its goals."""
    print(f"\n{kind}\n  {'ns (CPU, one thread)':36s}{'':>10s}")
    for name in contest.entries:
        if not name.endswith("epochs"):
            print(f"  {name:36s}{contest.ns(name):10.3f}  per {UNITS[name.split()[0]]}")
    rows = goals(contest)
    print(f"  {'ratio':48s}{'measured':>12s}{'goal':>12s}")
    for name, ratio, bound, met in rows:
        print(f"  {name:48s}{ratio:12.4g}{bound:12.4g}  {'ok' if met else 'MISSED'}")
    return rows


def main() -> int:
    """Run both data sets, print and store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000, help="rows of each data set (500000)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="repeats after one that warms up (3)"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    missed = 0
    stored = {"rows": args.rows, "features": M, "data": {}}
    for kind in DATA:
        contest = run_data(kind, args.rows, args.repeats)
        rows = show(kind, contest)
        missed += sum(not met for *_, met in rows)
        stored["data"][kind] = {
            "ns": {name: contest.ns(name) for name in contest.entries},
            "goals": [
                dict(zip(("name", "ratio", "goal", "met"), map(_plain, row), strict=True))
                for row in rows
            ],
        }
    if args.json:
        args.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 1 if missed else 0


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


if __name__ == "__main__":
    sys.exit(main())
