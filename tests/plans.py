"""The plans that the tests of every component run on: all recipes, and those whose stages lie outside the package.

A further one is a file in `tests/outside/`, and its plan here.
"""

from outside import linear, rich, tables

from dpgb_dask.recipes import RECIPES

OUTSIDE = {plan.name: plan for plan in (linear.LINEAR, rich.RICH, tables.TABLES)}
PLANS = {**RECIPES, **OUTSIDE}
