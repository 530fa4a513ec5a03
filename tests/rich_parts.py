"""A state of `auto` on rich data after its main effects, released answers to it, places, and a walk down a tree."""

from dataclasses import replace

import numpy as np

from dpgb_dask import Schema
from dpgb_dask.components.auto import schedules
from dpgb_dask.components.auto.posterior import AutoFacts, Totals
from dpgb_dask.components.auto.random_splits import Places
from dpgb_dask.components.auto.smoothing import Intercept
from dpgb_dask.contracts.boundary import Receipt, Released
from dpgb_dask.contracts.model import FeatureBins, Model, no_trees
from dpgb_dask.contracts.plan import Budget, Shape, State
from dpgb_dask.contracts.queries import PRICE_ONE, SharedChoiceQuery

N_ROWS, HESS = 1e5, 0.2


def state_of(signal=9000.0, kind="binary"):
    """A state after the main effects, on rich data with three features: numbers, categories, and one of two bins."""
    n_scores = 3 if kind == "multiclass" else 1
    classes = {"classes": list(range(3 if kind == "multiclass" else 2))}
    target = {"target_bounds": (0, 1)} if kind == "numeric" else classes
    schema = Schema({"a": (0, 1), "b": ["x", "y", "z"], "c": (0, 1)}, **target)
    bins = (
        FeatureBins(np.linspace(0, 1, 40), None, 42),
        FeatureBins(None, np.array([0, 1, 2, 3, 4], np.uint8), 5),
        FeatureBins(np.empty(0), None, 2),
    )
    tables = tuple(np.zeros((own.n_bins, n_scores), np.int32) for own in bins)
    tables[1][:, 0] = [5, -9, 7, 0, 0]
    counts = tuple(np.full(own.n_bins, N_ROWS / own.n_bins) for own in bins)
    split = schedules.split_rich(kind, signal, PRICE_ONE // 9, chosen=True, pairs=False)
    hess = 1.0 if kind == "numeric" else HESS
    facts = AutoFacts(
        start_price=1,
        totals=Totals(intercepts=(Intercept(0.0),) * n_scores, hess=(hess,) * n_scores),
        clip=0.4,
        split=split,
    )
    shape = Shape(schema=schema, max_weight=1, weight_bits=0)
    first = State.first(shape, 0, Budget(epsilon=1.0, delta=1e-6), PRICE_ONE)
    model = Model(bins, np.zeros(n_scores, np.int32), tables, (), no_trees(n_scores=n_scores))
    return replace(first, model=model, counts=counts, n_rows=N_ROWS).with_fact(facts)


def places_at(cuts, weights=None):
    """Places of numeric features, at these thresholds and with these weights; without, all alike."""
    weights = weights or [np.ones(len(own)) for own in cuts]
    own = zip(cuts, weights, strict=True)
    return Places.from_ranks([(None, np.array(cut, int), weight) for cut, weight in own])


def answered(query, value, sd=1.0):
    """A released answer with noise of a standard deviation, in natural units."""
    kind = "choice" if isinstance(query, SharedChoiceQuery) else "gaussian"
    step = 1 if kind == "choice" else 2.0**query.step_bits
    receipt = Receipt(
        "fit",
        "query",
        0,
        query.label,
        query.price,
        0 if kind == "choice" else int(sd * step),
        0,
        kind,
    )
    return Released(np.rint(np.asarray(value) * step).astype(np.int64), receipt)


def leaf_of(splits, codes):
    """Leaf of each row in one tree."""
    node = np.zeros(codes.shape[1], int)
    for _ in range(splits.depth):
        code, mask = codes[splits.feature[0, node], np.arange(len(node))], splits.mask_of[0, node]
        right = np.where(
            mask < 0, code > splits.threshold[0, node], splits.masks[np.maximum(mask, 0), code] == 1
            if len(splits.masks) else False,
        )  # fmt: skip
        node = 2 * node + 1 + right
    return node - splits.feature.shape[1]
