"""The plans that the tests of every component run on: all recipes, and two whose stages lie outside the package."""

from outside.linear import LINEAR
from outside.tables import TABLES

from dpgb_dask.recipes import RECIPES

OUTSIDE = {plan.name: plan for plan in (LINEAR, TABLES)}
PLANS = {**RECIPES, **OUTSIDE}
