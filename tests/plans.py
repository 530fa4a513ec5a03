"""The plans that the tests of every component run on: recipes, `rich`, and plans whose stages lie outside the package.

A further one of these is a file in `tests/outside/`, and its plan here.
"""

from dataclasses import replace

from outside import linear, tables

from dpgb_dask.components.auto.start import Start
from dpgb_dask.recipes import AUTO, RECIPES


def _rich_from(name, signal):
    """Return `auto`, which takes data to be rich, and chooses trees, from a signal on."""
    stages = tuple(
        replace(stage, rich_from=signal, chosen_from=signal) if isinstance(stage, Start) else stage
        for stage in AUTO.stages
    )
    return replace(AUTO, name=name, stages=stages)


# `auto` as on rich data, whatever the data: few rows of a test would never show its chosen trees
RICH = _rich_from("rich", 0.0)
# `auto` as on data that are not rich, however many: with pairs
WITH_PAIRS = _rich_from("with pairs", float("inf"))
OUTSIDE = {plan.name: plan for plan in (linear.LINEAR, tables.TABLES)}
PLANS = {**RECIPES, RICH.name: RICH, **OUTSIDE}
# names of those that have a stage or a part of their own: every stage of `additive` is in `auto`
DISTINCT = [name for name in sorted(PLANS) if name != "additive"]
