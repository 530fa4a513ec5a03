"""The stage `Bins`: which grid the rough count chooses, and how many bins noise leaves."""

import numpy as np
import pytest

from dpgb_dask import Schema
from dpgb_dask.components import constants
from dpgb_dask.components.bins import Bins
from dpgb_dask.contracts.boundary import Receipt, Released
from dpgb_dask.contracts.grid import GRIDS, Grid
from dpgb_dask.contracts.plan import Budget, Shape, State
from dpgb_dask.contracts.queries import PRICE_ONE, CellCountsQuery, CountQuery

N_FEATURES = 20


def released(query, values, sd):
    receipt = Receipt("fit", "query", 0, query.label, query.price, int(sd * 256), 8, "gaussian")
    return Released(np.rint(np.asarray(values) * 256).astype(np.int64), receipt)


def counted(signal, mu=0.5, max_weight=1):
    """A state after the rough count, whose cells will have ``signal`` rows a standard deviation; the next query."""
    schema = Schema({f"x{j}": (0, 1) for j in range(N_FEATURES)}, classes=[0, 1])
    shape = Shape(schema=schema, max_weight=max_weight, weight_bits=0)
    total = int(mu**2 * PRICE_ONE)
    state = State.first(shape, 0, Budget(epsilon=1.0, delta=1e-6), total)
    query = Bins().next_query(state)
    assert isinstance(query, CountQuery)
    n_rows = signal * max_weight / (mu * np.sqrt(constants.BINS_SHARE / N_FEATURES))
    state = Bins().update(state, query, released(query, [n_rows], 1.0))
    query = Bins().next_query(state)
    assert isinstance(query, CellCountsQuery)
    return state, query, n_rows


def test_every_grid_has_a_signal_that_chooses_it():
    assert list(constants.GRID_SIGNALS) == list(GRIDS)
    assert constants.GRID_SIGNALS[min(GRIDS)] == 0
    assert list(constants.GRID_SIGNALS.values()) == sorted(constants.GRID_SIGNALS.values())


@pytest.mark.parametrize("mu", [0.02, 3.0])
@pytest.mark.parametrize("max_weight", [1, 5])
def test_the_grid_is_the_finest_that_the_signal_reaches(mu, max_weight):
    for n_uniform, least in constants.GRID_SIGNALS.items():
        if least:
            assert counted(least * 1.01, mu, max_weight)[1].n_uniform == n_uniform
            assert counted(least * 0.99, mu, max_weight)[1].n_uniform < n_uniform
    assert counted(0.1)[1].n_uniform == min(GRIDS)


def bins_left(signal):
    """Mean number of bins of uniform features, without those of missing values."""
    state, query, n_rows = counted(signal)
    edges = Grid.of(state.shape.schema, query.n_uniform).edges
    cells = [np.append(np.diff(own, prepend=0, append=1), 0) * n_rows for own in edges]
    sd = n_rows / signal
    noise = sd * np.random.default_rng(3).standard_normal(query.n_values)
    state = Bins().update(state, query, released(query, np.concatenate(cells) + noise, sd))
    return np.mean([own.n_bins - 1 for own in state.model.bins])


@pytest.mark.parametrize(
    ("signal", "least"), [(1, 9), (2.5, 12), (10, 4), (20, 8), (42, 18), (90, 36), (250, 55)]
)
def test_noise_leaves_bins_at_any_signal(signal, least):
    """256 cells and 1.5 standard deviations a bin, at any signal from 10 on, leave 2, 2, 4, 15 and 67 bins.

    Below 2.7, with 20 features, counts that noise decides would leave 3 or 4.
    """
    assert bins_left(signal) >= least
