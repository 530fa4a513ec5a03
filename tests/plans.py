"""The plans that the tests of every component run on: recipes, `rich`, and plans whose stages lie outside the package.

A further one of these is a file in `tests/outside/`, and its plan here.
"""

from dataclasses import replace

from outside import linear, tables

from dpgb_dask.components.auto.start import Start
from dpgb_dask.recipes import AUTO, RECIPES

# `auto` as on rich data, whatever the data: few rows of a test would never show its chosen trees
RICH = replace(
    AUTO,
    name="rich",
    stages=tuple(
        Start(rich_from=0.0) if isinstance(stage, Start) else stage for stage in AUTO.stages
    ),
)
# `auto` as on data that are not rich, however many: with pairs
WITH_PAIRS = replace(
    AUTO,
    name="with pairs",
    stages=tuple(
        Start(rich_from=float("inf")) if isinstance(stage, Start) else stage
        for stage in AUTO.stages
    ),
)
OUTSIDE = {plan.name: plan for plan in (linear.LINEAR, tables.TABLES)}
PLANS = {**RECIPES, RICH.name: RICH, **OUTSIDE}
