"""Synthetic tables on which a default may go wrong, made anew from a seed; columns x0, x1, … are numbers.

Features are independent, and what the target follows is mild (AUC .8 without noise, a third of a target's variance),
unless a table's line says something else.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from datasets import Split

from dpgb_dask import Schema

ROWS, TEST_ROWS = 10_000, 10_000
NOISE_ROWS = 2000  # with 300 features
GROUPS = ["a", "b", "c", "d", "e"]
BOUNDS = {f"x{j}": (-4.0, 4.0) for j in range(8)} | {"count": (0, 20), "group": GROUPS}

Values = np.ndarray
Bounds = Mapping[str, Any]


def features(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Eight normal columns, a count and a group."""
    table = normal(rng, rows, 8)
    table["count"] = rng.poisson(3, rows).clip(0, 20)
    table["group"] = rng.choice(GROUPS, rows)
    return table


def normal(rng: np.random.Generator, rows: int, columns: int) -> pd.DataFrame:
    values = rng.normal(size=(rows, columns)).clip(-4, 4)
    return pd.DataFrame(values, columns=[f"x{j}" for j in range(columns)])


def uniform(rng: np.random.Generator, rows: int, columns: int) -> pd.DataFrame:
    values = rng.uniform(size=(rows, columns))
    return pd.DataFrame(values, columns=[f"x{j}" for j in range(columns)])


def signal(X: pd.DataFrame) -> Values:
    """Follow six columns: a line, a kink, a wave, a product and a group."""
    group = X["group"].map(dict(zip(GROUPS, (-0.8, -0.4, 0.0, 0.4, 0.8), strict=True)))
    wave = np.sin(2 * X["x2"]) + 0.6 * X["x3"] * X["x4"]
    return (X["x0"] + 0.8 * (X["x1"].abs() - 0.8) + wave + group).to_numpy()


def labels(rng: np.random.Generator, score: Values) -> Values:
    return (rng.random(len(score)) < 1 / (1 + np.exp(-score))).astype(np.int8)


def flipped(rng: np.random.Generator, y: Values) -> Values:
    """Return classes 0 and 1 with one label in ten flipped."""
    flip = rng.random(len(y)) < 0.1
    return np.where(flip, 1 - y, y).astype(np.int8)


def moved(X: pd.DataFrame) -> pd.DataFrame:
    """Return eight columns near ±1,000, in turns."""
    return X.assign(**{f"x{j}": X[f"x{j}"] + 1000 * (-1) ** j for j in range(8)})


def binary(X: pd.DataFrame, y: Values, bounds: Bounds, rows: int = ROWS) -> Split:
    return classes(X, y, bounds, 2, rows)


def classes(X: pd.DataFrame, y: Values, bounds: Bounds, n_classes: int, rows: int) -> Split:
    schema = Schema(bounds, classes=list(range(n_classes)))
    return Split(schema, X[:rows], X[rows:], y[:rows], y[rows:])


def numeric(
    X: pd.DataFrame,
    y: Values,
    bounds: Bounds,
    target: tuple[float, float],
    rows: int = ROWS,
) -> Split:
    y = np.asarray(y, dtype=float).clip(*target)
    return Split(Schema(bounds, target_bounds=target), X[:rows], X[rows:], y[:rows], y[rows:])


def widened(factor: float) -> Bounds:
    return {
        name: tuple(factor * bound for bound in value) if name.startswith("x") else value
        for name, value in BOUNDS.items()
    }


# ---- tables


def plain(seed: int, rows: int = ROWS, factor: float = 1.0) -> Split:
    """Bounds of features are ``factor`` times as wide as the features are."""
    rng = np.random.default_rng(seed)
    X = features(rng, rows + TEST_ROWS)
    return binary(X, labels(rng, signal(X)), widened(factor), rows)


def plain_numeric(seed: int, rows: int = ROWS, factor: float = 1.0, target: float = 1.0) -> Split:
    """Bounds of the target are ``target`` times as wide as it is."""
    rng = np.random.default_rng(seed)
    X = features(rng, rows + TEST_ROWS)
    y = signal(X) + 2 * rng.normal(size=len(X))
    return numeric(X, y, widened(factor), (-10 * target, 10 * target), rows)


def off_centre(seed: int) -> Split:
    """Features of spread 1 lie near ±1,000 within ±2,000."""
    rng = np.random.default_rng(seed)
    X = features(rng, ROWS + TEST_ROWS)
    return binary(moved(X), labels(rng, signal(X)), widened(500))


def off_centre_numeric(seed: int) -> Split:
    """Features as in ``off_centre``; the target is near 900 within ±1,000."""
    rng = np.random.default_rng(seed)
    X = features(rng, ROWS + TEST_ROWS)
    y = 900 + signal(X) + 2 * rng.normal(size=len(X))
    return numeric(moved(X), y, widened(500), (-1000, 1000))


def log_normal(seed: int) -> Split:
    """The logarithm of the target follows the features: a mean of 2 within 0 and 500."""
    rng = np.random.default_rng(seed)
    X = features(rng, ROWS + TEST_ROWS)
    y = np.exp(0.4 * signal(X) + rng.normal(size=len(X)))
    return numeric(X, y, BOUNDS, (0, 500))


def zeros(seed: int) -> Split:
    """90 % of the targets are 0, the others long-tailed; both follow the features."""
    rng = np.random.default_rng(seed)
    X = features(rng, ROWS + TEST_ROWS)
    positive = rng.random(len(X)) < 1 / (1 + np.exp(2.9 - signal(X)))
    y = np.where(positive, np.exp(1 + 0.3 * signal(X) + 0.7 * rng.normal(size=len(X))), 0)
    return numeric(X, y, BOUNDS, (0, 100))


def outliers(seed: int) -> Split:
    """1 % of the targets lie anywhere within bounds 20 times as wide as the others need."""
    rng = np.random.default_rng(seed)
    X = features(rng, ROWS + TEST_ROWS)
    y = signal(X) + 2 * rng.normal(size=len(X))
    y = np.where(rng.random(len(X)) < 0.01, rng.uniform(-200, 200, len(X)), y)
    return numeric(X, y, BOUNDS, (-200, 200))


def jumps(seed: int) -> Split:
    """2 % of the rows each, which one column tells, are 15 standard deviations of the others above and below."""
    rng = np.random.default_rng(seed)
    X = features(rng, ROWS + TEST_ROWS)
    jump = (X["x5"] > 2).astype(int) - (X["x6"] > 2)
    y = signal(X) + 30 * jump + 2 * rng.normal(size=len(X))
    return numeric(X, y.to_numpy(), BOUNDS, (-60, 60))


def claims(seed: int) -> Split:
    """Counts of which nine in ten are 0."""
    rng = np.random.default_rng(seed)
    X = features(rng, ROWS + TEST_ROWS)
    y = rng.poisson(np.exp(0.5 * signal(X) - 2.5)).clip(0, 10)
    return numeric(X, y, BOUNDS, (0, 10))


def outlier_features(seed: int) -> Split:
    """1 % of each column lie anywhere within bounds 1,000 times as wide as the others need."""
    rng = np.random.default_rng(seed)
    X = features(rng, ROWS + TEST_ROWS)
    y = labels(rng, signal(X))
    for j in range(8):
        far = rng.random(len(X)) < 0.01
        X.loc[far, f"x{j}"] = rng.uniform(-4000, 4000, far.sum())
    return binary(X, y, widened(1000))


def copies(seed: int) -> Split:
    """20 columns are one and the same; the target follows it."""
    rng = np.random.default_rng(seed)
    one = normal(rng, ROWS + TEST_ROWS, 1)["x0"]
    X = pd.DataFrame({f"x{j}": one for j in range(20)})
    y = 2 * one + rng.normal(size=len(X))
    return numeric(X, y, dict.fromkeys(X, (-4, 4)), (-12, 12))


def copies_binary(seed: int) -> Split:
    """20 columns differ by little; the class follows their mean."""
    rng = np.random.default_rng(seed)
    X = normal(rng, ROWS + TEST_ROWS, 20)
    one = rng.normal(size=len(X))
    X = (0.2 * X).add(one, axis=0).clip(-4, 4)
    return binary(X, labels(rng, 1.5 * one), dict.fromkeys(X, (-4, 4)))


def noise(seed: int) -> Split:
    """300 features, and classes that follow none."""
    rng = np.random.default_rng(seed)
    X = uniform(rng, NOISE_ROWS + TEST_ROWS // 2, 300)
    y = (rng.random(len(X)) < 0.35).astype(np.int8)
    return binary(X, y, dict.fromkeys(X, (0, 1)), NOISE_ROWS)


def noise_numeric(seed: int) -> Split:
    """300 features, and a target that follows none."""
    rng = np.random.default_rng(seed)
    X = uniform(rng, NOISE_ROWS + TEST_ROWS // 2, 300)
    return numeric(X, rng.normal(size=len(X)), dict.fromkeys(X, (0, 1)), (-5, 5), NOISE_ROWS)


def rare(seed: int) -> Split:
    """.2 % of the rows are positive; the logit follows the features."""
    rng = np.random.default_rng(seed)
    X = features(rng, 2 * ROWS + TEST_ROWS)
    return binary(X, labels(rng, signal(X) - 7.4), BOUNDS, 2 * ROWS)


def constant_target(seed: int) -> Split:
    """Every target is 3 within 0 and 10."""
    X = features(np.random.default_rng(seed), ROWS + TEST_ROWS)
    return numeric(X, np.full(len(X), 3.0), BOUNDS, (0, 10))


def one_class(seed: int) -> Split:
    """Every label is 0."""
    X = features(np.random.default_rng(seed), ROWS + TEST_ROWS)
    return binary(X, np.zeros(len(X), np.int8), BOUNDS)


def all_missing(seed: int) -> Split:
    """Every value of every feature is missing."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(np.nan, index=range(ROWS + TEST_ROWS), columns=[f"x{j}" for j in range(8)])
    y = (rng.random(len(X)) < 0.35).astype(np.int8)
    return binary(X, y, dict.fromkeys(X, (-4, 4)))


def parity(seed: int) -> Split:
    """The class is the parity of three columns of ten, with one label in ten flipped: no column or pair shows it."""
    rng = np.random.default_rng(seed)
    X = uniform(rng, ROWS + TEST_ROWS, 10).round()
    y = X[["x0", "x1", "x2"]].sum(axis=1).to_numpy() % 2
    return binary(X, flipped(rng, y), dict.fromkeys(X, (0, 1)))


def checkerboard(seed: int) -> Split:
    """The class is the colour of a field of four by four, with one label in ten flipped: no single column shows it."""
    rng = np.random.default_rng(seed)
    X = uniform(rng, ROWS + TEST_ROWS, 5)
    y = ((4 * X["x0"]).astype(int) + (4 * X["x1"]).astype(int)).to_numpy() % 2
    return binary(X, flipped(rng, y), dict.fromkeys(X, (0, 1)))


def nothing(seed: int, n_classes: int) -> Split:
    """The class follows nothing; some are more frequent."""
    rng = np.random.default_rng(seed)
    X = features(rng, ROWS + TEST_ROWS)
    share = np.arange(n_classes, 0, -1.0)
    y = rng.choice(n_classes, len(X), p=share / share.sum())
    return classes(X, y, BOUNDS, n_classes, ROWS)


def nothing_numeric(seed: int) -> Split:
    """The target follows nothing."""
    rng = np.random.default_rng(seed)
    X = features(rng, ROWS + TEST_ROWS)
    return numeric(X, 2 * rng.normal(size=len(X)), BOUNDS, (-10, 10))


def ordered_classes(seed: int) -> Split:
    """Five classes are parts of one noisy number."""
    rng = np.random.default_rng(seed)
    X = features(rng, ROWS + TEST_ROWS)
    y = signal(X) + rng.logistic(size=len(X))
    return classes(X, np.digitize(y, [-2.0, -0.6, 0.6, 2.0]), BOUNDS, 5, ROWS)


def lines_classes(seed: int) -> Split:
    """The score of each of three classes is a sum of lines."""
    rng = np.random.default_rng(seed)
    X = features(rng, ROWS + TEST_ROWS)
    score = X[[f"x{j}" for j in range(8)]].to_numpy() @ (0.5 * rng.normal(size=(8, 3)))
    return classes(X, (score + rng.gumbel(size=score.shape)).argmax(1), BOUNDS, 3, ROWS)


def separable(seed: int, rows: int) -> Split:
    """One step of one column of five separates the classes."""
    rng = np.random.default_rng(seed)
    X = uniform(rng, rows + TEST_ROWS, 5)
    return binary(X, (X["x0"] > 0.6).to_numpy(np.int8), dict.fromkeys(X, (0, 1)), rows)


TABLES: dict[str, Callable[[int], Split]] = {
    "plain": plain,
    "plain_numeric": plain_numeric,
    "bounds_1e2": partial(plain, factor=1e2),
    "bounds_1e4": partial(plain, factor=1e4),
    "bounds_1e2_numeric": partial(plain_numeric, factor=1e2),
    "bounds_1e4_numeric": partial(plain_numeric, factor=1e4),
    "target_1e2": partial(plain_numeric, target=1e2),
    "target_1e4": partial(plain_numeric, target=1e4),
    "off_centre": off_centre,
    "off_centre_numeric": off_centre_numeric,
    "log_normal": log_normal,
    "zeros": zeros,
    "outliers": outliers,
    "jumps": jumps,
    "claims": claims,
    "outlier_features": outlier_features,
    "copies": copies,
    "copies_binary": copies_binary,
    "noise_300": noise,
    "noise_300_numeric": noise_numeric,
    "nothing": partial(nothing, n_classes=2),
    "nothing_numeric": nothing_numeric,
    "nothing_classes": partial(nothing, n_classes=4),
    "lines_classes": lines_classes,
    "ordered_classes": ordered_classes,
    "rare": rare,
    "rows_200": partial(plain, rows=200),
    "rows_200_numeric": partial(plain_numeric, rows=200),
    "rows_1000": partial(plain, rows=1000),
    "rows_1000_numeric": partial(plain_numeric, rows=1000),
    "constant_target": constant_target,
    "one_class": one_class,
    "all_missing": all_missing,
    "parity": parity,
    "checkerboard": checkerboard,
    "separable_1000": partial(separable, rows=1000),
    "separable_16000": partial(separable, rows=16_000),
    "separable_100000": partial(separable, rows=100_000),
}
NOTHING = {
    "noise_300",
    "nothing",
    "one_class",
    "all_missing",
}  # no row tells classes apart: an AUC is chance
