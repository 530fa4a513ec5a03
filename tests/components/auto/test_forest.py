"""The forest: when it is grown, and trees that begin as chosen ones do."""

import math
from dataclasses import replace

import numpy as np
import pytest
from rich_parts import N_ROWS, answered, leaf_of, state_of

from dpgb_dask.components import constants
from dpgb_dask.components.auto import schedules
from dpgb_dask.components.auto.chosen import ChosenTrees
from dpgb_dask.components.auto.forest import Forest, trees_again
from dpgb_dask.components.auto.posterior import AutoFacts
from dpgb_dask.components.auto.start import Start
from dpgb_dask.components.trees.splits import NOWHERE
from dpgb_dask.contracts.constraints import PAIRWISE, Constraints
from dpgb_dask.contracts.model import SCORE_ONE, Splits, TreeEnsemble
from dpgb_dask.contracts.queries import PRICE_ONE

DEPTH, TOP = 6, 4


@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_it_is_grown_from_a_small_signal_on_whatever_pairs_get(kind, monkeypatch):
    def split(signal, **options):
        monkeypatch.setattr(schedules, "tree_signal", lambda *_: signal)
        return Start(**options)._divide(state_of(kind=kind)).fact(AutoFacts).split

    for of_pairs in (0.0, 1.0):
        monkeypatch.setattr(schedules, "pair_signal", lambda *_, told=of_pairs: told)
        for signal, grown in ((7.9, False), (8.0, True), (99.0, True)):
            found = split(signal)
            total = found.main + found.screen + found.pairs + found.forest
            assert found.forest / total == pytest.approx(0.3 if grown else 0.0, abs=1e-6)
            assert (found.screen > 0) == (of_pairs > 0)
            assert split(signal, trees=False).forest == 0


@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
@pytest.mark.parametrize(
    ("signal", "rich", "chosen", "depth", "rounds"),
    [
        (99.0, False, False, 5, (20, 20)),
        (100.0, True, False, 5, (20, 20)),
        (361.0, True, False, 5, (38, 25)),
        (400.0, True, False, 6, (40, 26)),
        (1499.0, True, False, 6, (40, 26)),
        (1500.0, True, True, 6, (40, 26)),
        (6400.0, True, True, 6, (48, 32)),
        (1e5, True, True, 6, (60, 40)),
    ],
)
def test_it_takes_more_of_the_budget_and_more_rounds_as_the_signal_grows(
    signal, rich, chosen, depth, rounds, kind, monkeypatch
):
    monkeypatch.setattr(schedules, "tree_signal", lambda *_: signal)
    state = Start()._divide(state_of(kind=kind))
    split = state.fact(AutoFacts).split
    assert (split.rich, split.chosen > 0) == (rich, chosen)
    looks = kind == "numeric"
    for stage, times in ((Forest(), 1), (Forest(rounds=40), 2)):
        trees = stage.begin(state)
        assert trees.model.trees.depth == depth
        assert trees.memory.rounds // times == rounds[looks]
        assert stage.most_queries(state) == trees.memory.rounds + looks
        assert stage.declare(state.shape).n_queries == times * (60, 40)[looks] + looks
    if not looks:  # of numbers the first query is the scale
        assert stage.next_query(trees).splits.n_trees == 15
    total = split.main + split.screen + split.pairs + split.forest + split.chosen
    if rich:
        assert split.main / total == pytest.approx(schedules.main_share(signal))
    else:
        assert split.forest / total == pytest.approx(0.3)


def after_chosen(n_trees):
    """A state after ``n_trees`` chosen trees, whose last two levels are without splits; masks are for categories."""
    rng, nodes = np.random.default_rng(1), (1 << DEPTH) - 1
    feature = rng.choice([0, 1], (n_trees, nodes)).astype(np.uint16)
    threshold = rng.integers(0, 40, (n_trees, nodes)).astype(np.uint8)
    threshold[:, (1 << TOP) - 1 :] = NOWHERE
    masked = (feature == 1) & (threshold != NOWHERE)
    threshold[masked] = NOWHERE
    mask_of = np.full(masked.shape, -1, np.int32)
    mask_of[masked] = rng.permutation(masked.sum())
    masks = np.zeros((masked.sum(), 256), np.uint8)
    masks[:, :5] = rng.integers(0, 2, (masked.sum(), 5))
    trees = TreeEnsemble(
        Splits(feature, threshold, mask_of, masks), np.zeros((1, n_trees, nodes + 1), np.int32)
    )
    state = state_of()
    return replace(state, model=replace(state.model, trees=trees))


@pytest.mark.parametrize("n_trees", [0, constants.CHOSEN_PATIENCE, 14, 30])
def test_some_trees_begin_as_the_chosen_ones_in_turn(n_trees):
    stage, rng = Forest(), np.random.default_rng(0)
    state = stage.begin(after_chosen(n_trees))
    codes = np.stack([rng.integers(0, 42, 99), rng.integers(0, 5, 99), rng.integers(0, 2, 99)])
    chosen, turn, batch = state.model.trees.splits, 0, constants.FOREST_BATCH
    for _ in range(3):
        query = stage.next_query(state)
        assert query.splits.n_trees == batch
        for k in range(query.splits.n_trees):
            here = leaf_of(query.splits.part(k, k + 1), codes)
            alike = [
                (here >> DEPTH - TOP == leaf_of(chosen.part(t, t + 1), codes) >> DEPTH - TOP).all()
                for t in range(n_trees)
            ]
            begins = k < trees_again(n_trees, batch)
            assert np.flatnonzero(alike).tolist() == ([turn % n_trees] if begins else [])
            turn += begins
            # and there are splits below, where the chosen tree has none
            assert (query.splits.threshold[k, (1 << TOP) - 1 :] != NOWHERE).all()
        sums = np.ones((query.n_cells, 2)) * N_ROWS / 64
        state = stage.update(state, query, answered(query, sums))
    assert turn == 3 * min(math.ceil(max(n_trees - 8, 0) * 15 / 40), 7)


@pytest.mark.parametrize(
    "constraints",
    [Constraints(interactions=PAIRWISE), Constraints(monotonic=(("a", 1),))],
)
def test_no_tree_begins_as_another_under_constraints(constraints):
    state = after_chosen(14)
    state = replace(state, shape=replace(state.shape, constraints=constraints))
    assert Forest().begin(state).memory.again == 0


@pytest.mark.parametrize(("n_trees", "times"), [(0, 1.0), (8, 1.0), (9, constants.AGAIN_RATE)])
def test_steps_are_larger_where_trees_begin_as_chosen_ones(n_trees, times):
    stage = Forest()
    state = stage.begin(after_chosen(n_trees))
    query = stage.next_query(state)
    grad, hess = 50.0, 400.0
    answer = np.tile([-grad, hess * query.gradient.hess_scale], (query.n_cells, 1))
    state = stage.update(state, query, answered(query, answer, sd=1e-3))
    value = state.model.trees.value[0, n_trees:] / 2.0**16
    assert value == pytest.approx(times * stage.learning_rate * grad / hess, rel=1e-3)


@pytest.mark.parametrize(("stage", "n_trees"), [(Forest(), 0), (Forest(), 4), (ChosenTrees(), 4)])
def test_residuals_are_clipped_further_out_from_the_chosen_trees_on(stage, n_trees):
    """Of a hundred rows 84 lie at 0, and eight far off on either side, past one quantile and within the other."""
    numeric = state_of(kind="numeric")
    fine = replace(numeric.fact(AutoFacts), start_price=PRICE_ONE // 10_000)
    numeric = replace(numeric, model=after_chosen(n_trees).model).with_fact(fine)
    state = stage.begin(numeric)
    query = stage.next_query(state)
    rows = np.zeros(len(query.edges) + 1)
    cells = np.searchsorted(query.edges, np.array([-0.51, 0.0, 0.51]) * SCORE_ONE)
    rows[cells] = np.array([0.08, 0.84, 0.08]) * N_ROWS
    state = stage.update(state, query, answered(query, rows))
    assert (state.fact(AutoFacts).clip >= 0.5) == (n_trees > 0)
