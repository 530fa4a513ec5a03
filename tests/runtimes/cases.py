"""Fits that the tests of all runtimes share, and rows that are hard to read."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from helpers import raw_scores

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema
from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.model import SCORE_ONE
from dpgb_dask.recipes import RECIPES
from dpgb_dask.testing import SeededNoise

REAL = ("adult", "abalone", "dry_bean")  # binary, numeric, seven classes; pairs and a forest each
SERVED = [(name, kind) for name, plan in sorted(RECIPES.items()) for kind in sorted(plan.kinds)]


def fit(schema, X, y, **options):
    kind = DPGBRegressor if schema.target.type == "numeric" else DPGBClassifier
    options = {"epsilon": 4.0, "noise": SeededNoise(0), "random_state": 0} | options
    return kind(schema=schema, **options).fit(X, y)


@lru_cache
def real_fit(folder: Path, name: str):
    """Return the default model of a real set, and rows to score."""
    schema = Schema.load(folder / f"{name}.schema.json")
    table = pd.read_parquet(folder / f"{name}.parquet").sample(frac=1, random_state=0)[:12_000]
    table = table.reset_index(drop=True)
    names = list(schema.names)
    model = fit(schema, table[names], table[schema.target.name])
    return model, hard_rows(model, table[names][:1500])


_small = {}


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
    return out


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
