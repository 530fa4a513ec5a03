"""How strong features are by their released main effects, and how likely trees are to split on them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.auto.noise import LinearTables
from dpgb_dask.contracts.model import SCORE_ONE
from dpgb_dask.contracts.plan import State


def feature_strength(
    state: State, tables: Sequence[NDArray[np.int32]] | None = None
) -> NDArray[np.float64]:
    """Return the noisy root-mean-square effect of every feature; by default of the model's tables."""
    if tables is None:
        assert state.model is not None
        tables = state.model.tables
    return np.array(
        [
            np.sqrt((mass @ (table / SCORE_ONE) ** 2).sum() / mass.sum())
            for mass, table in zip(state.counts, tables, strict=True)
        ]
    )


def split_chance(state: State) -> NDArray[np.float64]:
    """Return how likely a split is on each feature: mostly by its released strength.

    Half of this is by what its main effect has beside a linear one: features that tell nearly the same can have steep
    lines that cancel each other, and little more to say.
    """
    strengths = [feature_strength(state)]
    m = len(strengths[0])
    if (linear := state.find(LinearTables)) is not None:
        assert state.model is not None
        pairs = zip(state.model.tables, linear.tables, strict=True)
        strengths.append(feature_strength(state, [both - line for both, line in pairs]))
    shares = [strength / strength.sum() for strength in strengths if strength.sum() > 0]
    chance = np.full(m, 1 / m)
    if shares:
        even = constants.FOREST_EVEN
        chance = even / m + (1 - even) * np.mean(shares, axis=0)
    if (directions := state.shape.directions) is not None:
        # leaves made monotone tree by tree keep steps of noise in one direction, which add up: such a forest is
        # worse than one without these features (docs/constraints-and-edits.md)
        chance = np.where(directions == 0, chance, 0.0)
        chance = chance / chance.sum()
    return chance
