"""What the benches fit on a split: recipes of this library, and rivals."""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from datasets import Scores, Split, of_numbers, of_probabilities

from dpgb_dask import Categorical, DPGBClassifier, DPGBRegressor, Schema
from dpgb_dask.controller.accounting import epsilon_of, mu_of

DELTA = 1e-6


def fit_ours(split: Split, epsilon: float, seed: int, recipe: str = "auto") -> Scores:
    """Fit a recipe of this library, however few rows there are."""
    kind = DPGBRegressor if split.regression else DPGBClassifier
    options = {"epsilon": epsilon, "delta": DELTA, "random_state": seed}
    if "on_few_rows" in inspect.signature(kind).parameters:  # not in an earlier library's
        options["on_few_rows"] = "continue"
    model = kind(schema=split.schema, recipe=recipe, **options).fit(split.train, split.y_train)
    if split.regression:
        return of_numbers(split, model.predict(split.test))
    return of_probabilities(split, np.asarray(model.predict_proba(split.test)))


def fit_one_against_rest(split: Split, epsilon: float, seed: int) -> Scores:
    """K binary fits, each at μ/√K: Σμ² is that of one fit at ``epsilon``."""
    classes = split.schema.target.classes
    each = epsilon_of(mu_of(epsilon, DELTA) / math.sqrt(len(classes)), DELTA)
    schema = Schema(split.schema.features, classes=[0, 1])
    columns = []
    for label in classes:
        model = DPGBClassifier(epsilon=each, delta=DELTA, schema=schema, random_state=seed)
        model.fit(split.train, (split.y_train == label).astype(np.int8))
        columns.append(np.asarray(model.predict_proba(split.test))[:, 1])
    table = np.clip(np.stack(columns, axis=1), 1e-6, None)
    return of_probabilities(split, table / table.sum(axis=1, keepdims=True))


def dp_ebm(schema: Schema, epsilon: float, seed: int, delta: float = DELTA) -> Any:
    """Return interpret's DP-EBM for a schema, with its types and bounds declared, not yet fitted."""
    from interpret.privacy import (  # noqa: PLC0415
        DPExplainableBoostingClassifier,
        DPExplainableBoostingRegressor,
    )

    features = list(schema.features.values())
    options = {
        "epsilon": epsilon,
        "delta": delta,
        "random_state": seed,
        "n_jobs": 1,
        "feature_names": list(schema.names),
        "feature_types": [
            "nominal" if isinstance(f, Categorical) else "continuous" for f in features
        ],
        "privacy_bounds": {
            j: (f.low, f.high) for j, f in enumerate(features) if not isinstance(f, Categorical)
        },
    }
    target = schema.target
    if target.type == "numeric":
        options |= {"privacy_target_min": target.low, "privacy_target_max": target.high}
        return DPExplainableBoostingRegressor(**options)
    return DPExplainableBoostingClassifier(**options)


def fit_dp_ebm(split: Split, epsilon: float, seed: int, delta: float = DELTA) -> Scores:
    train, test = (ebm_frame(table, split.schema) for table in (split.train, split.test))
    model = dp_ebm(split.schema, epsilon, seed, delta).fit(train, split.y_train)
    if split.regression:
        return of_numbers(split, model.predict(test))
    return of_probabilities(split, model.predict_proba(test))


def ebm_frame(table: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """DP-EBM refuses missing values: text gets a category of its own, a number its low bound; values are clipped."""
    columns = {}
    for name, feature in schema.features.items():
        if isinstance(feature, Categorical):
            columns[name] = table[name].astype("string").fillna("(missing)").astype(object)
        else:
            values = table[name].astype(float).fillna(feature.low)
            columns[name] = values.clip(feature.low, feature.high)
    return pd.DataFrame(columns)


def tree_frame(table: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Categories as pandas categories, in the declared order."""
    columns = {
        name: pd.Categorical(table[name], categories=list(feature.categories))
        if isinstance(feature, Categorical)
        else table[name].astype(float).to_numpy()
        for name, feature in schema.features.items()
    }
    return pd.DataFrame(columns, index=table.index)


def fit_xgboost(split: Split, _epsilon: float, seed: int) -> Scores:
    import xgboost  # noqa: PLC0415

    kind = xgboost.XGBRegressor if split.regression else xgboost.XGBClassifier
    model = kind(n_jobs=1, enable_categorical=True, random_state=seed)
    return fit_trees(split, model)


def fit_lightgbm(split: Split, _epsilon: float, seed: int) -> Scores:
    import lightgbm  # noqa: PLC0415

    kind = lightgbm.LGBMRegressor if split.regression else lightgbm.LGBMClassifier
    return fit_trees(split, kind(n_jobs=1, random_state=seed, verbose=-1))


def fit_trees(split: Split, model: object) -> Scores:
    train, test = (tree_frame(table, split.schema) for table in (split.train, split.test))
    if split.regression:
        return of_numbers(split, model.fit(train, split.y_train).predict(test))
    labels = np.searchsorted(np.asarray(split.schema.target.classes), split.y_train)
    return of_probabilities(split, model.fit(train, labels).predict_proba(test))


def fit_constant(split: Split, _epsilon: float, _seed: int) -> Scores:
    """Predict the mean, or the shares of the classes, of the training rows; not private."""
    if split.regression:
        return of_numbers(split, np.full(len(split.y_test), split.y_train.mean()))
    classes = np.asarray(split.schema.target.classes)
    shares = (split.y_train[:, None] == classes).mean(axis=0)
    return of_probabilities(split, np.tile(shares, (len(split.y_test), 1)))


Method = Callable[[Split, float, int], Scores]
METHODS: dict[str, Method] = {
    "dpgb": fit_ours,
    "one-against-rest": fit_one_against_rest,
    "constant": fit_constant,
    "dp-ebm": fit_dp_ebm,
    "xgboost": fit_xgboost,
    "lightgbm": fit_lightgbm,
}
PACKAGE_OF = {"dp-ebm": "interpret", "xgboost": "xgboost", "lightgbm": "lightgbm"}
NOT_PRIVATE = {"constant", "xgboost", "lightgbm"}


def ours(recipe: str) -> str:
    """Return the name of the method that fits a recipe of this library."""
    return "dpgb" if recipe == "auto" else f"dpgb:{recipe}"


def method_of(name: str) -> Method:
    """Return the method of a name: one of ``METHODS``, or ``dpgb:RECIPE``."""
    if name.startswith("dpgb:"):
        return partial(fit_ours, recipe=name.removeprefix("dpgb:"))
    return METHODS[name]


def installed(method: str) -> bool:
    try:
        __import__(PACKAGE_OF[method])
    except ImportError:
        print(
            f"SKIPPED rival {method}: {PACKAGE_OF[method]} is not installed (pip install '.[bench]')"
        )
        return False
    return True
