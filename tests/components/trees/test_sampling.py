"""Which features and rows serve a tree, and how much a tree may cost."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from thinned import thinned

from dpgb_dask.components.trees.sampling import (
    AllFeatures,
    AllRows,
    Cyclic,
    Ensembles,
    PoissonRows,
    RandomFeatures,
)
from dpgb_dask.contracts.queries import DRAW_BITS, PRICE_ONE
from dpgb_dask.contracts.spending import Spending, amplified
from dpgb_dask.errors import PlanError

RNG = np.random.default_rng(0)

# ---- features


@pytest.mark.parametrize("n_features", [1, 3, 10])
@pytest.mark.parametrize("k", [1, 2, 7, 100])
def test_cyclic_takes_turns(k, n_features):
    features = Cyclic(k=k)
    n_used = features.n_used(n_features)
    assert n_used == min(k, n_features)
    seen = np.zeros(n_features, int)
    for t in range(3 * n_features):
        chosen = features.chosen(n_features, t, RNG)
        assert len(set(chosen)) == n_used
        assert list(chosen) == sorted(chosen)
        seen[chosen] += 1
    assert np.all(seen == 3 * n_used)


def test_cyclic_of_one_is_every_feature_in_turn():
    assert [int(Cyclic(k=1).chosen(4, t, RNG)[0]) for t in range(6)] == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("k", [1, 3, 99])
def test_random_features_are_distinct_and_even(k):
    features, rng = RandomFeatures(k=k), np.random.default_rng(0)
    seen = np.zeros(6)
    for t in range(600):
        chosen = features.chosen(6, t, rng)
        assert len(set(chosen)) == features.n_used(6) == min(k, 6)
        assert list(chosen) == sorted(chosen)
        seen[chosen] += 1
    np.testing.assert_allclose(seen / 600, min(k, 6) / 6, atol=0.07)


def test_all_features_are_all():
    assert list(AllFeatures().chosen(4, 9, RNG)) == [0, 1, 2, 3]
    assert AllFeatures().n_used(4) == 4


# ---- rows


@pytest.mark.parametrize("size", thinned([7, 1, 10_000, 2, 50], every=2))
@pytest.mark.parametrize("decay", thinned([0.0, 0.01, 0.1, 0.5, 0.999, 0.9], every=2))
def test_parts_of_an_ensemble_cover_all_draws_once(size, decay):
    rows = Ensembles(size=size, decay=decay)
    few = min(
        size, 300
    )  # intervals of every tree are costly to look at; their ends are made together
    for group in range(2):
        draws = [rows.draw(group * size + t, 2 * size) for t in range(few)]
        assert {d.group for d in draws} == {group}
        assert {d.kind for d in draws} == {"part"}
        assert draws[0].low == 0
        assert all(a.high == b.low for a, b in pairwise(draws))
        assert all(d.low < d.high for d in draws)
        assert rows.draw(group * size + size - 1, 2 * size).high == 1 << DRAW_BITS


@pytest.mark.parametrize("decay", [0.0, 0.01, 0.3])
def test_parts_shrink_as_declared(decay):
    draws = [Ensembles(size=20, decay=decay).draw(t, 20) for t in range(20)]
    width = np.array([d.high - d.low for d in draws]) / 2**DRAW_BITS
    wanted = (1 - decay) ** np.arange(20)
    np.testing.assert_allclose(width, wanted / wanted.sum(), rtol=1e-5)


def test_an_ensemble_is_never_larger_than_the_forest():
    rows = Ensembles(size=50, decay=0.0)
    assert [rows.draw(t, 4).high for t in range(4)] == [(t + 1) << 30 for t in range(4)]
    assert rows.price(PRICE_ONE, 0, 4) == PRICE_ONE


@pytest.mark.parametrize("rows", [Ensembles(size=4, decay=0.2), PoissonRows(rate=0.1), AllRows()])
@pytest.mark.parametrize("n_trees", [1, 3, 4, 9, 40])
@pytest.mark.parametrize("total", [PRICE_ONE, PRICE_ONE // 3 + 7, 50 * PRICE_ONE])
def test_trees_spend_what_there_is_and_no_more(rows, n_trees, total):
    spending = Spending(pure=True)
    for t in range(n_trees):
        spending = spending.plus(rows.price(total, t, n_trees), rows.draw(t, n_trees))
    assert spending.spent <= total
    assert spending.spent == pytest.approx(total, rel=1e-6)
    if isinstance(rows, AllRows):
        assert spending.spent == total


@pytest.mark.parametrize("rate", [2.0**-32, 1e-6, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("share", [PRICE_ONE // 1000, PRICE_ONE, 20 * PRICE_ONE])
def test_a_sample_amplifies_to_at_most_the_share(rate, share):
    rows = PoissonRows(rate=rate)
    draw = rows.draw(3, 10)
    exact = (draw.high - draw.low) / 2**DRAW_BITS
    price = rows.price(10 * share, 3, 10)
    assert draw.kind == "sample"
    assert draw.group == 3
    assert exact == pytest.approx(rate, abs=2**-33)
    assert amplified(price, exact) <= share < amplified(price + price // 1000 + 1, exact)
    assert price >= share


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cyclic(k=0), "k=0"),
        (lambda: RandomFeatures(k=1.5), "k=1.5"),
        (lambda: PoissonRows(rate=0.0), "rate=0.0"),
        (lambda: PoissonRows(rate=1.01), "rate=1.01"),
        (lambda: Ensembles(size=0), "size=0"),
        (lambda: Ensembles(decay=1.0), r"decay=1.0 must be in \[0, 1\)"),
        (lambda: Ensembles(decay=-0.1), "decay=-0.1"),
        (lambda: Ensembles(decay=float("nan")), "decay=nan"),
        (lambda: replace(Ensembles(), size=True), "size=True"),
    ],
)
def test_options_out_of_range_raise(make, message):
    with pytest.raises(PlanError, match=message):
        make()
