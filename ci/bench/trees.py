"""Trees against their rivals: a grown tree, totally random trees, prediction; interleaved, each in its own process.

    python ci/bench/trees.py --json trees.json
    python ci/bench/trees.py --large
    python ci/bench/trees.py --smoke

Every figure is CPU time of the contestant's process on one thread, the best of some turns that all take one after
another, at equal rows, columns, bins (256) and depth. Each has a process of its own, as a user's would be: in a shared
one, what a rival's allocator leaves behind (fragments, smaller pages) made the others up to a tenth slower, some more
than others. A grown tree is all of it: gradients, six levels of histograms, choice of the splits, leaf values and the
update of the scores; what a private fit adds to it (noise, the ledger) is left out, as the rivals have none.
``--large`` is 1e7 x 28 alone. The exit status is 1 if a goal is missed, or if the contestants did not do the same work.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
from contest import Contestant, Facts, Processes, edges_of, in_blocks, make_values, no_masks

from dpgb_dask.kernels import bin as bins
from dpgb_dask.kernels import gradient, kernel, nodes, predict, route
from dpgb_dask.losses import GRAD_ONE, logistic_gradient

BINS = 255  # and one for missing values: 256 codes
RATE, RIDGE, LEAST_CHILD = 0.3, 1.0, 1.0  # as the rivals' defaults
SCORE_ONE = 1 << 16
RANDOM_DEPTH = 4
BATCHES = 1, 25
RANDOM_TREES = 25
N_PREDICT = 300
DEPTH = 6
ROWS, LARGE_ROWS, SMOKE_ROWS = 1_000_000, 10_000_000, 20_000
PREDICT_ROWS = 200_000
# how alike contestants must learn, and how many of our leaves they must grow
SAME_LOSS, SAME_LEAVES = 0.02, 0.9
Goal = tuple[str, float, float, bool]


@kernel
def best_splits(
    sums: np.ndarray,  # IN (n_nodes, n_cells, 2)
    start: np.ndarray,  # IN (n_features,)
    stop: np.ndarray,  # IN (n_features,)
    least: float,
    ridge: float,
    feature: np.ndarray,  # OUT (n_nodes,)
    threshold: np.ndarray,  # OUT (n_nodes,)
    children: np.ndarray,  # OUT (n_nodes, 2, 2)
) -> None:
    """The rivals choose in compiled code, and so does what stands for a choice here."""
    for k in range(sums.shape[0]):
        total_g = total_h = 0.0
        for cell in range(start[0], stop[0]):
            total_g += sums[k, cell, 0]
            total_h += sums[k, cell, 1]
        best = -1.0
        children[k, 0, 0], children[k, 0, 1] = total_g, total_h
        children[k, 1] = 0.0
        threshold[k] = 255
        for j in range(start.shape[0]):
            g = h = 0.0
            for cell in range(start[j], stop[j] - 1):
                g += sums[k, cell, 0]
                h += sums[k, cell, 1]
                other_g, other_h = total_g - g, total_h - h
                if h < least or other_h < least:
                    continue
                gain = g * g / (h + ridge) + other_g * other_g / (other_h + ridge)
                if gain > best:
                    best = gain
                    feature[k], threshold[k] = j, cell - start[j]
                    children[k, 0, 0], children[k, 0, 1] = g, h
                    children[k, 1, 0], children[k, 1, 1] = other_g, other_h


class Forest:
    """Boosting on codes with the library's kernels, as a shard calls them; the best gain stands for a private choice.

    Parameters
    ----------
    codes : list of ((n_features, n) uint8)
    label : list of ((n,) uint8)
    sizes : tuple of int
        Bins per feature.
    """

    def __init__(
        self, codes: list[np.ndarray], label: list[np.ndarray], sizes: tuple[int, ...]
    ) -> None:
        self.codes, self.label, self.sizes = codes, label, sizes
        self.gradient = logistic_gradient(1.0, 1.0)
        self.max_abs = self.gradient.max_abs
        self.score = [np.zeros((1, len(block)), np.int32) for block in label]
        self.packed = [np.empty((1, len(block)), np.int64) for block in label]
        self.node = [np.empty(len(block), np.uint16) for block in label]
        self.features = np.arange(len(sizes), dtype=np.uint16)
        self.stop = np.cumsum(sizes)
        self.start = self.stop - sizes
        self.n_leaves = 0

    def write_gradients(self) -> None:
        """Gradients of all blocks at the current scores."""
        for score, label, packed in zip(self.score, self.label, self.packed, strict=True):
            gradient.write(self.gradient, score, label, None, packed)

    def histogram(self, n_nodes: int, only: np.ndarray | None) -> np.ndarray:
        """Sums of one level."""
        sums = nodes.NodeSums(self.features, self.sizes, n_nodes, self.max_abs, only)
        for codes, node, packed in zip(self.codes, self.node, self.packed, strict=True):
            sums.add(codes, node, packed[0])
        return sums.total()

    def level(
        self, feature: np.ndarray, threshold: np.ndarray, above: np.ndarray, hess: np.ndarray
    ) -> np.ndarray:
        """Sums of the level below some splits: those of the siblings of less h, and of the others by subtraction."""
        n_nodes = 2 * len(above)
        splits = feature, threshold, *no_masks(feature.shape)
        for codes, node in zip(self.codes, self.node, strict=True):
            route.find_nodes(codes, *splits, node)
        left = hess[0::2] <= hess[1::2]
        only = np.stack([left, ~left], axis=1).ravel()
        sums = self.histogram(n_nodes, only)
        for k, parent in enumerate(above):
            small = 2 * k + 1 - int(left[k])
            np.subtract(parent, sums[small], out=sums[small ^ 1])
        return sums

    def split(self, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Best feature and threshold of every node, and (g, h) of its two children."""
        n_nodes = len(sums)
        feature, threshold = np.zeros(n_nodes, np.uint16), np.zeros(n_nodes, np.uint8)
        children = np.empty((n_nodes, 2, 2))
        best_splits(
            sums, self.start, self.stop, LEAST_CHILD * GRAD_ONE, RIDGE * GRAD_ONE,
            feature, threshold, children,
        )  # fmt: skip
        return feature, threshold, children.reshape(2 * n_nodes, 2).T

    def grow(self) -> None:
        """Grow one tree of depth `DEPTH` and add it to the scores."""
        self.write_gradients()
        for node in self.node:
            node[:] = 0
        sums = self.histogram(1, None)
        feature, threshold, children = self.split(sums)
        for _ in range(DEPTH - 1):
            sums = self.level(feature, threshold, sums, children[1])
            more_feature, more_threshold, children = self.split(sums)
            feature = np.concatenate([feature, more_feature])
            threshold = np.concatenate([threshold, more_threshold])
        self.n_leaves += 1 + int(np.count_nonzero(threshold < 255))
        step = children[0] / (children[1] + RIDGE * GRAD_ONE)
        value = np.rint(-RATE * SCORE_ONE * step).astype(np.int32)
        self.add(feature[None], threshold[None], value[None])

    def add(self, feature: np.ndarray, threshold: np.ndarray, value: np.ndarray) -> None:
        """Add trees to the scores."""
        splits = feature, threshold, *no_masks(feature.shape)
        for codes, score in zip(self.codes, self.score, strict=True):
            predict.add_trees(codes, *splits, value[None], score)

    def random_round(self, feature: np.ndarray, threshold: np.ndarray, value: np.ndarray) -> None:
        """One round of totally random trees, block by block: scores, gradients, leaf sums."""
        splits = feature, threshold, *no_masks(feature.shape)
        out = np.zeros((*value.shape, 2), np.int64)
        for codes, score, label, packed in zip(
            self.codes, self.score, self.label, self.packed, strict=True
        ):
            predict.add_trees(codes, *splits, value[None], score)
            gradient.write(self.gradient, score, label, None, packed)
            out += route.tree_sums(codes, *splits, packed, self.max_abs)[:, :, 0]


def log_loss(label: np.ndarray, score: np.ndarray) -> float:
    """Mean loss, to show that all contestants learn alike."""
    return float(np.mean(np.logaddexp(0, score) - label * score))


def encode(x: np.ndarray) -> tuple[list[np.ndarray], tuple[int, ...]]:
    """Codes in blocks, and the bins of each column, missing included."""
    edges = edges_of(x, BINS)
    table = bins.edge_table(edges, np.float32)
    codes = []
    for rows in in_blocks(len(x)):
        codes.append(np.empty((x.shape[1], len(x[rows])), np.uint8))
        bins.bin_matrix(x[rows], table, codes[-1])
    return codes, tuple(len(edge) + 2 for edge in edges)


def make_rows(kind: str, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels with some signal in a few columns."""
    rng = np.random.default_rng(0)
    x = make_values(kind, n, rng, m)
    logit = x[:, 1] * x[:, 3] + x[:, 0] + 0.5 * x[:, 5] - 0.5 * (x[:, 7] > 0) * x[:, 2]
    return x, (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.uint8)


# ---- contestants: each function runs in the process of its contestant, which alone imports a rival


def grow_ours(kind: str, n: int, m: int, n_trees: int) -> Contestant:
    """Our trees of depth 6."""
    x, label = make_rows(kind, n, m)
    codes, sizes = encode(x)
    del x
    labels = [label[rows] for rows in in_blocks(n)]
    forest = Forest(codes, labels, sizes)

    def run() -> None:
        nonlocal forest
        forest = Forest(codes, labels, sizes)
        for _ in range(n_trees):
            forest.grow()

    def look() -> Facts:
        score = np.concatenate(forest.score, axis=1)[0] / SCORE_ONE
        return {"log_loss": log_loss(label, score), "leaves": forest.n_leaves}

    return Contestant(run, look)


def grow_xgboost(kind: str, n: int, m: int, n_trees: int) -> Contestant:
    """Its trees of depth 6 by histograms."""
    import xgboost  # noqa: PLC0415

    x, label = make_rows(kind, n, m)
    matrix = xgboost.QuantileDMatrix(x, label, max_bin=BINS + 1, nthread=1)
    del x
    options = {"max_depth": DEPTH, "tree_method": "hist", "max_bin": BINS + 1, "nthread": 1}
    options |= {"objective": "binary:logistic", "base_score": 0.5, "learning_rate": RATE}
    booster = xgboost.Booster(options, [matrix])

    def run() -> None:
        nonlocal booster
        booster = xgboost.Booster(options, [matrix])
        for k in range(n_trees):
            booster.update(matrix, k)

    def look() -> Facts:
        loss = log_loss(label, booster.predict(matrix, output_margin=True))
        return {"log_loss": loss, "leaves": leaves_of_xgboost(booster)}

    return Contestant(run, look)


def grow_lightgbm(kind: str, n: int, m: int, n_trees: int, layout: str) -> Contestant:
    """Its trees of depth 6, by columns or by rows."""
    import lightgbm  # noqa: PLC0415

    x, label = make_rows(kind, n, m)
    options = {
        "objective": "binary", "max_depth": DEPTH, "num_leaves": 1 << DEPTH, "max_bin": BINS, "num_threads": 1,
        "learning_rate": RATE, "boost_from_average": False, f"force_{layout}_wise": True, "verbosity": -1,
        "lambda_l2": RIDGE, "min_sum_hessian_in_leaf": LEAST_CHILD, "min_data_in_leaf": 1,
    }  # fmt: skip
    data = lightgbm.Dataset(x, label, params=options, free_raw_data=True).construct()
    del x
    booster = lightgbm.Booster(options, data)

    def run() -> None:
        nonlocal booster
        booster = lightgbm.Booster(options, data)
        for _ in range(n_trees):
            booster.update()

    def look() -> Facts:
        trees = booster.dump_model()["tree_info"]
        leaves = sum(tree["num_leaves"] for tree in trees)
        return {"log_loss": booster.eval_train()[0][2], "leaves": leaves}

    return Contestant(run, look)


def random_trees(kind: str, n: int, m: int, batch: int) -> Contestant:
    """Totally random trees, one or many per round."""
    x, label = make_rows(kind, n, m)
    codes, sizes = encode(x)
    del x
    forest = Forest(codes, [label[rows] for rows in in_blocks(n)], sizes)
    feature, threshold, value = some_trees(sizes, batch, RANDOM_DEPTH, seed=1)

    def run() -> None:
        for _ in range(RANDOM_TREES // batch):
            forest.random_round(feature, threshold, value)

    return Contestant(run)


def predict_xgboost(kind: str, n: int, m: int) -> Contestant:
    """Its prediction by 300 trees of depth 6, from floats."""
    import xgboost  # noqa: PLC0415

    x, label = predict_rows(kind, n, m)
    train = slice(0, len(x) // 4)
    booster = xgboost.train(
        {"max_depth": DEPTH, "tree_method": "hist", "nthread": 1, "objective": "binary:logistic"},
        xgboost.QuantileDMatrix(x[train], label[train], nthread=1),
        N_PREDICT,
    )  # fmt: skip
    score = np.empty(0)

    def run() -> None:
        nonlocal score
        score = booster.inplace_predict(x, predict_type="margin")

    return Contestant(run, lambda: {"rows": len(score)})


def predict_ours(kind: str, n: int, m: int, source: str) -> Contestant:
    """Our prediction by 300 trees of depth 6, from codes or from floats."""
    x, _ = predict_rows(kind, n, m)
    codes, sizes = encode(x)
    table = bins.edge_table(edges_of(x, BINS), np.float32)
    feature, threshold, value = some_trees(sizes, N_PREDICT, DEPTH, seed=2)
    splits = feature, threshold, *no_masks(feature.shape)
    scores: list[np.ndarray] = []

    def run() -> None:
        scores.clear()
        for k, rows in enumerate(in_blocks(len(x))):
            if source == "codes":
                block = codes[k]
            else:
                block = np.empty((m, len(x[rows])), np.uint8)
                bins.bin_matrix(x[rows], table, block)
            scores.append(np.zeros((1, block.shape[1]), np.int32))
            predict.add_trees(block, *splits, value[None], scores[-1])

    return Contestant(run, lambda: {"rows": sum(part.shape[1] for part in scores)})


def predict_rows(kind: str, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to predict for."""
    return make_rows(kind, min(n, PREDICT_ROWS), m)


def some_trees(
    sizes: tuple[int, ...], n_trees: int, depth: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, thresholds and leaf values of random trees."""
    rng = np.random.default_rng(seed)
    shape = n_trees, (1 << depth) - 1
    feature = rng.integers(0, len(sizes), shape, np.uint16)
    threshold = rng.integers(0, np.array(sizes)[feature] - 1).astype(np.uint8)
    return feature, threshold, rng.integers(-1000, 1000, (n_trees, 1 << depth), np.int32)


def leaves_of_xgboost(booster: object) -> int:
    """Leaves of all its trees."""
    return sum(tree.count("leaf=") for tree in booster.get_dump())


# ---- contests


def enter_growth(contest: Processes, kind: str, n: int, m: int, n_trees: int) -> None:
    """Ours, xgboost's and LightGBM's trees of depth 6 on the same rows."""
    rows = kind, n, m, n_trees
    units = n * n_trees
    contest.enter("grow ours", grow_ours, *rows, units=units)
    contest.enter("grow xgboost", grow_xgboost, *rows, units=units)
    for layout in ("col", "row"):
        contest.enter(f"grow lightgbm {layout}", grow_lightgbm, *rows, layout, units=units)


def enter_random(contest: Processes, kind: str, n: int, m: int) -> None:
    """Totally random trees, one and many per round."""
    for batch in BATCHES:
        units = n * (RANDOM_TREES // batch) * batch
        name = f"random depth {RANDOM_DEPTH}, batch {batch}"
        contest.enter(name, random_trees, kind, n, m, batch, units=units)


def enter_prediction(contest: Processes, kind: str, n: int, m: int) -> None:
    """Prediction by 300 trees of depth 6, from codes and from floats."""
    units = min(n, PREDICT_ROWS)
    contest.enter("predict xgboost", predict_xgboost, kind, n, m, units=units)
    for source in ("codes", "floats"):
        contest.enter(f"predict {source}", predict_ours, kind, n, m, source, units=units)


def differences(contest: Processes) -> list[str]:
    """Say where contestants did not do the same work."""
    lines = []
    learnt = grown(contest)
    for name, facts in learnt.items():
        if abs(facts["log_loss"] / learnt["ours"]["log_loss"] - 1) > SAME_LOSS:
            lines.append(f"{name}: log-loss {facts['log_loss']:.5f}")
        if facts["leaves"] < SAME_LEAVES * learnt["ours"]["leaves"]:
            lines.append(f"{name}: {facts['leaves']} leaves")
    predicted = [name for name in contest.names if name.startswith("predict ")]
    if len({contest.facts(name)["rows"] for name in predicted}) > 1:
        lines.append("predictions of different rows")
    return lines


def growth_goals(contest: Processes, bound: float) -> list[Goal]:
    """Ratios of a grown tree; of LightGBM's two layouts the faster counts."""
    ours = contest.ns("grow ours")
    light = min(contest.ns("grow lightgbm col"), contest.ns("grow lightgbm row"))
    rivals = ("xgboost", contest.ns("grow xgboost")), ("LightGBM", light)
    return [
        (f"{name} / ours, tree of depth 6", t / ours, bound, t >= bound * ours)
        for name, t in rivals
    ]


def random_goals(contest: Processes) -> list[Goal]:
    """ns per row and tree of totally random trees."""
    rows = []
    for batch, bound in zip(BATCHES, (4.0, 1.6), strict=True):
        name = f"random depth {RANDOM_DEPTH}, batch {batch}"
        ns = contest.ns(name)
        rows.append((f"{name}: ns per row and tree", ns, bound, ns <= bound))
    return rows


def predict_goals(contest: Processes) -> list[Goal]:
    """Ratios of prediction."""
    rows = []
    for source, bound in (("codes", 5.0), ("floats", 3.5)):
        ratio = contest.ns("predict xgboost") / contest.ns(f"predict {source}")
        rows.append((f"xgboost / ours, predict from {source}", ratio, bound, ratio >= bound))
    return rows


def grown(contest: Processes) -> dict[str, Facts]:
    """What came out of growing, by contestant."""
    names = [name for name in contest.names if name.startswith("grow ")]
    return {name.removeprefix("grow "): contest.facts(name) for name in names}


def show(title: str, contest: Processes, goals: list[Goal]) -> None:
    """Print one data set's table."""
    print(f"\n{title}\n  {'ns (CPU, one thread)':44s}")
    for name in contest.names:
        unit = "row" if name.startswith("predict") else "row and tree"
        print(f"  {name:44s}{contest.ns(name):10.2f}  per {unit}")
    learnt = (
        f"{name} {f['log_loss']:.5f}, {f['leaves']:.0f}" for name, f in grown(contest).items()
    )
    print("  log-loss and leaves: " + "; ".join(learnt))
    print(f"  {'':44s}{'measured':>10s}{'goal':>10s}")
    for name, ratio, bound, met in goals:
        print(f"  {name:44s}{ratio:10.3g}{bound:10.3g}  {'ok' if met else 'MISSED'}", flush=True)


def cases(args: argparse.Namespace) -> list[tuple[str, int, int, float, int]]:
    """(kind, rows, columns, goal of a grown tree, trees) of each data set."""
    if args.large:
        return [("continuous", args.rows or LARGE_ROWS, 28, 2.2, 2)]
    n = SMOKE_ROWS if args.smoke else args.rows or ROWS
    return [
        ("continuous", n, 28, 1.8, 5),
        ("continuous", n, 100, 1.8, 3),
        ("half binary", n, 28, 1.4, 5),
    ]


def main() -> int:
    """Run all data sets, print and store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, help=f"rows of each data set ({ROWS})")
    parser.add_argument(
        "--repeats", type=int, default=3, help="repeats after one that warms up (3)"
    )
    parser.add_argument("--large", action="store_true", help=f"{LARGE_ROWS} rows")
    parser.add_argument(
        "--smoke", action="store_true", help="a few rows, once; goals are not judged"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    for rival in ("xgboost", "lightgbm"):
        if find_spec(rival) is None:
            sys.exit(f"{rival} is missing: the rivals come with pip install '.[bench]'.")
    missed = 0
    stored = []
    for k, (kind, n, m, bound, n_trees) in enumerate(cases(args)):
        parts: list[Callable[[Processes], list[Goal]]] = [lambda c, b=bound: growth_goals(c, b)]
        with Processes() as contest:
            enter_growth(contest, kind, n, m, n_trees)
            if k == 0:
                enter_random(contest, kind, n, m)
                enter_prediction(contest, kind, n, m)
                parts += [random_goals, predict_goals]
            contest.run(1 if args.smoke else args.repeats)
        goals = [goal for part in parts for goal in part(contest)]
        show(f"{kind}, {n} x {m}", contest, goals)
        if unlike := differences(contest):
            sys.exit("The contestants did not do the same work: " + "; ".join(unlike))
        missed += sum(not met for *_, met in goals)
        stored.append(
            {
                "kind": kind,
                "rows": n,
                "columns": m,
                "ns": {name: float(contest.ns(name)) for name in contest.names},
                "log_loss": {name: facts["log_loss"] for name, facts in grown(contest).items()},
                "leaves": {name: facts["leaves"] for name, facts in grown(contest).items()},
                "goals": [
                    {"name": name, "ratio": float(ratio), "goal": bound, "met": bool(met)}
                    for name, ratio, bound, met in goals
                ],
            }
        )
    if args.json:
        args.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 1 if missed and not args.smoke else 0


if __name__ == "__main__":
    sys.exit(main())
