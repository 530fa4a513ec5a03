"""Schedules, which are public rules."""

import numpy as np
import pytest
from rich_parts import state_of

from dpgb_dask.components import constants
from dpgb_dask.components.auto import schedules
from dpgb_dask.components.auto.main_effects import MainEffects
from dpgb_dask.components.auto.start import Start
from dpgb_dask.components.bins import Bins


@pytest.mark.parametrize("forest", [False, True])
@pytest.mark.parametrize(
    ("signal", "pairs"), [(0.0, False), (0.1, False), (1.0, True), (100.0, True)]
)
def test_split_budget_spends_exactly_what_is_left(signal, pairs, forest):
    split = schedules.split_budget(signal, 10**18 + 7, forest=forest)
    prices = split.main, split.screen, split.pairs, split.forest
    assert sum(prices) == 10**18 + 7
    assert [price > 0 for price in prices] == [True, pairs, pairs, forest]


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
def test_split_of_rich_data_spends_exactly_what_is_left(chosen, pairs):
    left = 10**18 + 7
    split = schedules.split_rich("binary", 2000.0, left, chosen=chosen, pairs=pairs)
    prices = split.main, split.screen, split.pairs, split.chosen, split.forest
    assert sum(prices) == left
    assert [price > 0 for price in prices] == [True, pairs, pairs, chosen, True]


def test_pair_signal_grows_with_rows_and_budget():
    few = schedules.pair_signal("binary", 91, 1e4, 0.1, 0.5, 0.01)
    assert schedules.pair_signal("binary", 91, 2e4, 0.1, 0.5, 0.01) == pytest.approx(4 * few)
    assert schedules.pair_signal("binary", 91, 1e4, 0.1, 0.5, 0.02) == pytest.approx(2 * few)
    assert schedules.pair_signal("binary", 0, 1e4, 0.1, 0.5, 0.01) == 0


@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_more_pairs_are_candidates_only_while_their_signal_stays_clear(kind):
    usual, clear = constants.MAX_CANDIDATES, constants.PAIR_CLEAR[kind]
    assert schedules.most_candidates(kind, 0.0) == usual
    assert schedules.most_candidates(kind, 1e9) == constants.MOST_CANDIDATES
    signal = 1.25 * clear  # of the usual number; of a quarter more it is `clear`
    assert schedules.most_candidates(kind, signal) == usual * 5 // 4


def test_leaves_per_partition_is_bounded():
    assert schedules.leaves_per_partition(1.0, 0.1, 100.0, 1.0) == constants.MIN_LEAVES
    assert schedules.leaves_per_partition(1e9, 0.1, 1.0, 1.0) == constants.MAX_LEAVES
    assert np.isfinite(schedules.leaves_per_partition(1.0, 0.25, 1e-300, 1.0))


@pytest.mark.parametrize(
    ("kind", "least", "middle"),
    [("binary", 0.6, 0.45), ("multiclass", 0.6, 0.45), ("numeric", 0.7, 0.5)],
)
def test_main_effects_have_less_of_rich_data_the_stronger_the_signal(kind, least, middle):
    shares = {
        0.0: least,
        100.0: least,
        (100.0 * 1500.0) ** 0.5: middle,
        1500.0: 0.3,
        (1500.0 * 10_000.0) ** 0.5: 0.2,
        10_000.0: 0.1,
        np.inf: 0.1,
    }
    assert {signal: schedules.main_share(kind, signal) for signal in shares} == shares


@pytest.mark.parametrize(
    ("kind", "chosen", "forest"),
    [("binary", 0.612, 0.153), ("multiclass", 0.3825, 0.3825), ("numeric", 0.3825, 0.3825)],
)
def test_chosen_trees_have_half_or_more_of_what_main_effects_and_pairs_leave(kind, chosen, forest):
    split = schedules.split_rich(kind, 1e4, 10**18, chosen=True, pairs=True)
    parts = split.main, split.screen, split.pairs, split.chosen, split.forest
    assert np.array(parts) / 10**18 == pytest.approx([0.1, 0.027, 0.108, chosen, forest])


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("binary", (1, 11, 30, 40, 40, 89)),
        ("multiclass", (1, 15, 40, 40, 40, 89)),
        ("numeric", (1, 15, 40, 40, 40, 89)),
    ],
)
def test_more_trees_are_chosen_the_stronger_the_signal(kind, wanted):
    signals = 0.0, 1500.0, 10_000.0, 17_778.0, 22_400.0, 50_000.0
    assert tuple(schedules.chosen_trees(kind, signal, 1e4) for signal in signals) == wanted


def test_chosen_trees_have_a_limit_and_another_for_many_rows():
    by_rows = {1e4: 120, 5e5: 120, 6e5: 100, 1e6: 60, 2e6: 30, 1e9: 30}
    assert {n: schedules.chosen_trees("binary", 1e9, n) for n in by_rows} == by_rows


def test_many_chosen_trees_learn_slower():
    """Of k times √signal/5 trees each moves 1/√k of the rate; fewer do not move further."""
    rates = [schedules.chosen_rate(10_000.0, n) for n in (5, 20, 40, 80)]
    assert rates == pytest.approx([1, 1, 0.5**0.5, 0.5])


def test_the_signal_of_trees_is_that_of_what_main_effects_leave_where_it_is_strong():
    assert schedules.tree_signal(1000.0, 0.2, 0.5, 0.01) == pytest.approx(400 * (0.7 * 0.01) ** 0.5)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_main_effects_declare_no_more_than_they_have_at_the_strongest_signal(kind):
    """Where all features are numeric, and bins and start take all that they may."""
    shape = state_of(kind=kind).shape
    before = sum(stage.declare(shape).at_most for stage in (Bins(), Start()))
    least = constants.LEAST_MAIN * (1 - constants.LINEAR_SHARE) * (1 - before)
    assert 0 < MainEffects().declare(shape).at_least <= least
