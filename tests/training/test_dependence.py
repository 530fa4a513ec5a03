"""What the screening of pairs tells about dependent features, and what errors of one table do to another by it."""

from dataclasses import replace

import numpy as np
import pytest

from dpgb_dask.components.auto.noise import DRAWS, Filter, Screened
from dpgb_dask.components.auto.smoothing import Seen
from dpgb_dask.contracts.queries import PairCells
from dpgb_dask.training.bands import size_of, through_rounds
from dpgb_dask.training.dependence import Dependence

SHARE = np.array([0.5, 0.3, 0.2])
BINS = np.arange(3, dtype=np.uint8)


def seen(scales=(0.4,)):
    return Seen(
        leaf=BINS,
        weight=SHARE * 1000,
        grad_sd=10.0,
        sampling=0.0,
        keep=0.5,
        n_leaves=3,
        curvature=1.0,
        scales=np.array(scales),
        shift=np.array([30.0, -20.0, -45.0]),
    )


def screened(table, sd):
    """Return the screening of features 1 and 0 with one table of Hessians; feature 2 was not screened."""
    noise = np.random.default_rng(0).normal(0, sd, table.shape)
    cells = PairCells(1, 0, BINS, BINS, 3, 3)
    return Screened(cells=(cells,), hess=((table + noise).reshape(-1, 1),), hess_sd=sd)


def dependence(table, sd):
    return Dependence.of(screened(table, sd), [seen()] * 3, 0)


def test_copies_are_told_to_be_copies():
    found = dependence(1000 * np.diag(SHARE), 1e-3)
    table = np.random.default_rng(1).normal(size=(3, DRAWS))
    nothing = np.zeros_like(table)
    first, second, third = found.carried([table, nothing, nothing], [seen()] * 3)
    np.testing.assert_allclose(second, table - SHARE @ table, atol=1e-3)
    np.testing.assert_allclose(first, 0, atol=1e-9)  # its own errors are the filter's matter
    np.testing.assert_allclose(third, 0, atol=1e-9)


@pytest.mark.parametrize(
    ("table", "sd"),
    [(1000 * np.outer(SHARE, SHARE), 1.0), (1000 * np.diag(SHARE), 1000.0)],
    ids=["independent", "lost in noise"],
)
def test_what_may_be_noise_is_not_told(table, sd):
    np.testing.assert_allclose(dependence(table, sd).excess, 0, atol=1e-9)


def test_what_no_rows_can_have_is_cut_off():
    found = dependence(1000 * (2 * np.diag(SHARE) - np.outer(SHARE, SHARE)), 1e-3)
    copies = dependence(1000 * np.diag(SHARE), 1e-3)  # nothing depends more on each other
    assert np.abs(found.excess).max() < 1.6 * np.abs(copies.excess).max()


def test_errors_of_a_copy_make_tables_move_further():
    centre = np.eye(3) - SHARE
    filters = [Filter(seen=(seen(),) * 8, root=centre)] * 3
    found = dependence(1000 * np.diag(SHARE), 1e-3)
    alone = through_rounds(filters, (0.4,) * 8, np.random.default_rng(2))
    both = through_rounds(filters, (0.4,) * 8, np.random.default_rng(2), found)
    size = [np.sqrt((part**2).mean()) for part in (*alone, *both)]
    assert size[3] > 1.1 * size[0]
    assert size[4] > 1.1 * size[1]
    np.testing.assert_allclose(both[2], alone[2], rtol=0.2, atol=size[2] / 10)


def test_rounds_that_do_not_find_tables_anew_change_little(monkeypatch):
    """The same noise through 20 rounds, each of which finds its posterior means, and not; another noise for scale."""
    centre = np.eye(3) - SHARE
    scales = (0.0, 0.1, 0.4)
    rounds = tuple(replace(seen(scales), keep=1 - 1 / (r + 2)) for r in range(20))
    filters = [Filter(seen=rounds, root=centre)] * 3
    found = dependence(1000 * np.diag(SHARE), 1e-3)

    def sizes(seed):
        tables = through_rounds(filters, (0.4,) * 20, np.random.default_rng(seed), found)
        return np.concatenate([size_of(table) for table in tables])

    some, other = sizes(3), sizes(4)
    monkeypatch.setattr("dpgb_dask.training.bands.EVERY", 1)
    each = sizes(3)
    assert 0 < np.abs(some / each - 1).max() < np.abs(other / each - 1).max() / 3
