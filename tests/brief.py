"""Recipes cut short for tests: the same parts and questions in at most ten rounds."""

from dataclasses import replace

from dpgb_dask.components.bins import Bins
from dpgb_dask.components.candidates import IterativeHessian
from dpgb_dask.components.forest import Forest
from dpgb_dask.components.main_effects import MainEffects
from dpgb_dask.components.pairs import Pairs
from dpgb_dask.components.sampling import Ensembles, PoissonRows
from dpgb_dask.components.splits import TotallyRandom
from dpgb_dask.components.start import Start
from dpgb_dask.components.trees import Trees
from dpgb_dask.contracts.plan import Plan

AUTO = (Bins(), Start(), MainEffects(rounds=2), Pairs(rounds=2), Forest(rounds=2))


def brief(plan: Plan) -> Plan:
    """Return a plan with few, shallow trees; nothing else of it changes."""
    if plan.name == "auto":
        return replace(plan, stages=AUTO)
    return replace(
        plan,
        stages=tuple(_few(s) if isinstance(s, Trees) else s for s in plan.stages),
    )


def _few(trees: Trees) -> Trees:
    depth = 3 if isinstance(trees.split, TotallyRandom) else 2
    n_trees = 4 if isinstance(trees.split, TotallyRandom) else 2
    options = {"n_trees": n_trees, "per_feature": False, "depth": min(depth, trees.depth)}
    if isinstance(trees.candidates, IterativeHessian):
        options["candidates"] = replace(trees.candidates, rounds=1)
    if isinstance(trees.rows, Ensembles):
        options["rows"] = replace(trees.rows, size=2)
    if isinstance(trees.rows, PoissonRows):
        options["rows"] = PoissonRows(rate=0.8)  # so that a single row is likely to serve
    return replace(trees, **options)
