"""Pair tables: finer cells where an interaction is clear."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich_parts import N_ROWS, answered, state_of

from dpgb_dask import DPGBRegressor, Schema
from dpgb_dask.components import constants
from dpgb_dask.components.auto.levels import coarsen
from dpgb_dask.components.auto.pairs import Pairs
from dpgb_dask.components.auto.posterior import AutoFacts
from dpgb_dask.testing import SeededNoise

SD = 20.0


def state_with_pairs(kind="binary"):
    state = state_of(kind=kind)
    facts = state.fact(AutoFacts)
    split = replace(facts.split, screen=10**18, pairs=10**18, rich=False)
    return Pairs().begin(state.with_fact(replace(facts, split=split)))


def screened(effect, noise, kind="binary"):
    """Return the states before and after the screening of three pairs.

    Parameters
    ----------
    effect : function of the row and the column of a cell of the pair (b, a), the first
        What the score lacks there.
    noise : float
        Of the sums, in standard deviations of what is said of it.
    """
    state = state_with_pairs(kind)
    query = Pairs().next_query(state)
    hess = state.fact(AutoFacts).totals.hess[0]
    value = []
    for c, cells in enumerate(query.pairs):
        share = np.outer(
            np.bincount(cells.map_i) / len(cells.map_i), np.bincount(cells.map_j) / len(cells.map_j)
        )
        lacks = np.fromfunction(effect, (cells.n_i, cells.n_j)) if c == 0 else 0.0
        h = N_ROWS * share * hess
        both = np.stack([-h * (lacks - (share * lacks).sum()), query.gradient.hess_scale * h], -1)
        value.append(np.repeat(both.reshape(-1, 1, 2), query.n_scores, axis=1))
    value = np.concatenate(value)
    value += noise * SD * np.random.default_rng(0).normal(size=value.shape)
    return state, Pairs().update(state, query, answered(query, value.ravel(), SD))


def checks(i, j):
    return 0.5 * (-1.0) ** (i + j)


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_a_clear_table_has_finer_cells_which_know_what_the_screening_told(kind):
    before, after = screened(checks, 1.0, kind)
    coarse, (fine, *others) = before.memory.cells[0], after.memory.cells
    assert (fine.i, fine.j) == (coarse.i, coarse.j) == (1, 0)
    assert (coarse.n_i, coarse.n_j) == (5, 6)
    assert (fine.n_i, fine.n_j) == (5, 12)  # of five categories there are no more
    assert all(cells in before.memory.cells for cells in others)
    # bands follow all tables of a round together
    assert {len(block.seen) for row in after.memory.blocks for block in row} == {1}
    query = Pairs().next_query(after)
    assert query.pairs == after.memory.cells
    # they were told the sums of the coarse cells
    (seen,) = after.memory.blocks[0][0].seen
    of_fine = np.arange(12) // 2
    assert seen.leaf.reshape(5, 12).tolist() == [[6 * i + j for j in of_fine] for i in range(5)]


@pytest.mark.parametrize("effect", [lambda i, j: 0 * i * j, lambda i, j: 0.01 * (-1.0) ** (i + j)])
def test_other_tables_keep_their_cells(effect):
    before, after = screened(effect, 1.0)
    assert {c.n_j for c in after.memory.cells} <= {c.n_j for c in before.memory.cells}


@pytest.mark.parametrize("categorical", [True, False])
@pytest.mark.parametrize("n_bins", [3, 6, 7, 12, 13, 40, 250])
def test_finer_groups_lie_within_the_coarse_ones(n_bins, categorical):
    assert constants.FINE_CELLS == 2 * constants.PAIR_CELLS
    for seed in range(20):
        rng = np.random.default_rng(seed)
        mass = rng.exponential(10, n_bins) ** 2
        mass -= 5 * (seed % 2)  # noise makes some of them negative
        mass = np.sort(mass)[::-1] if categorical else mass
        if mass.sum() <= 0:
            continue
        coarse, fine = (
            coarsen(mass, categorical, n) for n in (constants.PAIR_CELLS, constants.FINE_CELLS)
        )
        assert all(len(set(coarse[fine == k])) == 1 for k in range(int(fine.max()) + 1))


def test_a_map_of_two_features_is_learnt_in_fine_cells():
    """Four squares a side, between which six groups of equal mass have no edge but the middle."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.random((20_000, 2)), columns=["a", "b"])
    own = (X * 4).astype(int)
    y = 0.5 * np.where((own["a"] + own["b"]) % 2 == 0, 1, -1)
    schema = Schema({"a": (0, 1), "b": (0, 1)}, target_bounds=(-1, 1))
    options = {"schema": schema, "recipe": "additive", "epsilon": 8.0, "delta": 1e-6}
    model = DPGBRegressor(**options, noise=SeededNoise(0)).fit(X, y)
    (pair,) = model.model_.pairs
    assert (pair.n_i, pair.n_j) == (12, 12)
    assert np.sqrt(np.mean((model.predict(X) - y) ** 2)) < 0.2
