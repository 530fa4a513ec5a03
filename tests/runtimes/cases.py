"""Fits that the tests of all runtimes share, and rows that are hard to read."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from helpers import raw_scores

from dpgb_dask import Datetime, DPGBClassifier, DPGBRegressor, Hashed, Schema
from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.model import SCORE_ONE
from dpgb_dask.recipes import RECIPES
from dpgb_dask.testing import SeededNoise

# all sets with two classes or a number to predict, and one of seven classes
REAL = (
    "abalone", "adult", "adult_a9a", "bike", "census_kdd_150k", "covtype_93k", "cpu_act",
    "credit_default", "dry_bean", "gas", "give_me_some_credit", "higgs_26k", "house_16h",
    "kddcup99_10pct", "kr_vs_kp", "magic", "pima", "wine_quality",
)  # fmt: skip
WHOLE = ("house_16h", "magic")  # sets whose fits have pairs and a forest
RICH = ("adult", "covtype_93k")  # sets whose fits have chosen trees and a larger forest
CHANGES = ("edited", "monotonic_cst", "interaction_cst")
SERVED = [(name, kind) for name, plan in sorted(RECIPES.items()) for kind in sorted(plan.kinds)]


def fit(schema, X, y, **options):
    kind = DPGBRegressor if schema.target.type == "numeric" else DPGBClassifier
    options = {"epsilon": 4.0, "noise": SeededNoise(0), "random_state": 0} | options
    return kind(schema=schema, **options).fit(X, y)


@lru_cache
def real_fit(folder: Path, name: str):
    """Return the default model of a real set at ε = 1, magic at 8, and rows to score."""
    schema = Schema.load(folder / f"{name}.schema.json")
    table = pd.read_parquet(folder / f"{name}.parquet").sample(frac=1, random_state=0)[:50_000]
    table = table.reset_index(drop=True)
    names = list(schema.names)
    epsilon = 8.0 if name == "magic" else 1.0  # at 1 it has no pairs
    model = fit(schema, table[names], table[schema.target.name], epsilon=epsilon)
    assert name not in WHOLE or (model.model_.pairs and model.model_.trees.n_trees)
    assert name not in RICH or model.model_.trees.n_trees > 400
    return model, hard_rows(model, table[names][:400])


_small = {}


def changed_fit(change, schema, features, labels):
    """Return an edited or a constrained model, and rows to score; it never falls where ``x`` grows."""
    if change not in _small:
        options = {
            "edited": {},
            "monotonic_cst": {"monotonic_cst": {"x": 1, "age": 1}},
            "interaction_cst": {"interaction_cst": [{"x", "z"}], "monotonic_cst": {"x": 1}},
        }
        model = fit(schema, features, labels, **options[change])
        if change == "edited":
            plain, editor = model, model.edit().clamp("age", -0.5, 0.5, where=(20, 60))
            model = editor.remove("remainder").remove("z").monotone("x").clamp("color", 0.1).done()
            assert not np.array_equal(scores(model, features), scores(plain, features))
        rows = pd.concat([hard_rows(model, features[:200]), rising(features)], ignore_index=True)
        _small[change] = model, rows
    return _small[change]


N_RISING = 50


def rising(features):
    """Return rows that differ in ``x`` alone, which grows."""
    row = features.iloc[[3] * N_RISING].reset_index(drop=True)
    return row.assign(x=np.linspace(-4, 4, N_RISING, dtype=np.float32).astype(float))


def never_falls(score):
    """Return whether the scores of `rising` rows, the last of those of `changed_fit`, never fall, and do rise."""
    last = np.asarray(score)[-N_RISING:, 0]
    return bool((np.diff(last) >= 0).all() and last[-1] > last[0])


CITIES = {"10115": "Berlin", "01067": "Dresden", "01069": "Dresden", "80331": "München"}
KINDS = {
    "when": Datetime("2019-06-01", "2021-05-31", ("days", "month", "hour"), missing=True),
    "shop": Hashed(8),
    "zip": {"from": CITIES},
    "member": bool,
    "age": (0, 100),
}


@lru_cache
def kinds_fit(*left_out):
    """Return a model of features of every kind, some left out, and rows to score."""
    kinds = {name: kind for name, kind in KINDS.items() if name not in left_out}
    schema = Schema(kinds, classes=[0, 1])
    rng, n = np.random.default_rng(3), 1500
    days = rng.integers(-200, 3 * 365, n)
    rows = pd.DataFrame(
        {
            "when": np.datetime64("2019-06-01T01:59:59", "s") + days * np.timedelta64(35, "h"),
            "shop": rng.choice([*(f"shop {k}" for k in range(40)), None], n),
            "zip": rng.choice([*CITIES, "99999", "1067", None], n),
            "member": rng.choice(np.array([True, False, None], object), n),
            "age": rng.integers(-10, 120, n).astype(float),
        }
    )
    rows.loc[::41, "when"] = np.datetime64("NaT", "s")
    chance = np.where(rows["zip"] == "10115", 0.8, np.where(rows["when"].dt.month > 6, 0.6, 0.2))
    model = fit(schema, rows[list(kinds)], (rng.random(n) < chance).astype(int), epsilon=50.0)
    return model, rows[list(kinds)][:300]


def small_fit(recipe, kind, schemas, features, targets):
    """Return a small model of a recipe, and rows to score."""
    if (recipe, kind) not in _small:
        few = {} if recipe == "auto" else {"n_estimators": 3}
        model = fit(schemas[kind], features, targets[kind], recipe=recipe, **few)
        _small[recipe, kind] = model, hard_rows(model, features[:300])
    return _small[recipe, kind]


def hard_rows(model, rows):
    """Return rows with values on edges and beside them, far out of bounds, missing and unknown."""
    out = rows.copy()
    n = len(out)
    for j, (name, feature) in enumerate(model.schema_.features.items()):
        if isinstance(feature, Numeric):
            values = out[name].to_numpy(np.float64, na_value=np.nan).copy()
            edges = model.model_.bins[j].edges
            edges = edges if len(edges) else np.array([0.0])
            near = np.concatenate(
                [edges, np.nextafter(edges, np.inf), np.nextafter(edges, -np.inf)]
            )
            values[: n // 3] = np.resize(near, n // 3)
            values[n // 3 : n // 3 + 4] = [1e30, -1e30, np.nan, -0.0]
            out[name] = np.roll(values, 7 * j)
        else:
            values = out[name].to_numpy(object).copy()
            values[:3] = ["something else", None, None]
            out[name] = np.roll(values, 7 * j)
    return out.copy()  # in one piece again, of whose lack pandas warns


def scores(model, rows):
    """Return the scores of rows in whole steps, (n_rows, n_scores)."""
    return np.asarray(raw_scores(model.model_, model.schema_, rows))


def natural(model, rows):
    """Return what a model predicts in natural units: probabilities or numbers, one column each."""
    if model.schema_.target.type == "numeric":
        return model.predict(rows)[:, None]
    return np.asarray(model.predict_proba(rows))


def steps(model, decision):
    """Return scores in steps from the values of a decision function."""
    even = model.model_.link == "probability" and model.schema_.target.type == "binary"
    return decision * SCORE_ONE + (SCORE_ONE // 2 if even else 0)
