"""The forest: when it is grown, and trees that begin as chosen ones do."""

import math
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from rich_parts import N_ROWS, answered, leaf_of, state_of

from dpgb_dask.components import constants
from dpgb_dask.components.auto import schedules
from dpgb_dask.components.auto.chosen import ChosenTrees
from dpgb_dask.components.auto.forest import Forest, trees_again
from dpgb_dask.components.auto.newton import newton_steps
from dpgb_dask.components.auto.posterior import AutoFacts
from dpgb_dask.components.auto.random_splits import Places
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
        (99.0, False, "", 4, (20, 20)),
        (100.0, True, "", 4, (20, 20)),
        (199.0, True, "", 4, (28.2, 20)),
        (200.0, True, "", 5, (28.2, 20)),
        (361.0, True, "", 5, (38, 76 / 3)),
        (400.0, True, "", 6, (40, 80 / 3)),
        (1499.0, True, "", 6, (40, 80 / 3)),
        (1500.0, True, "binary numeric", 6, (40, 80 / 3)),
        (2199.0, True, "binary numeric", 6, (40, 80 / 3)),
        (2200.0, True, "binary numeric multiclass", 6, (40, 80 / 3)),
        (6400.0, True, "binary numeric multiclass", 6, (48, 32)),
        (1e5, True, "binary numeric multiclass", 6, (60, 40)),
    ],
)
def test_it_takes_more_of_the_budget_and_more_rounds_as_the_signal_grows(
    signal, rich, chosen, depth, rounds, kind, monkeypatch
):
    chosen = kind in chosen.split()
    monkeypatch.setattr(schedules, "tree_signal", lambda *_: signal)
    state = Start()._divide(state_of(kind=kind))
    split = state.fact(AutoFacts).split
    assert (split.rich, split.chosen > 0) == (rich, chosen)
    looks, of_classes = kind == "numeric", kind == "multiclass"
    for stage, times in ((Forest(), 1), (Forest(rounds=40), 2)):
        trees = stage.begin(state)
        assert trees.model.trees.depth == depth
        assert trees.memory.rounds == int(times * rounds[looks] * (1.5 if of_classes else 1.0))
        may_be_fast = of_classes or chosen  # whether enough trees are chosen is not known yet
        most = int(times * rounds[looks] * (1.5 if may_be_fast else 1.0))
        assert stage.most_queries(state) == most + 1 + looks  # the slope
        assert stage.declare(state.shape).n_queries == times * (90, 60)[looks] + 1 + looks
    if not looks:  # of numbers the first query is the scale
        assert stage.next_query(trees).splits.n_trees == (10 if of_classes else 15)
    total = split.main + split.screen + split.pairs + split.forest + split.chosen
    if rich:
        assert split.main / total == pytest.approx(schedules.main_share(kind, signal))
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
    chosen, turn, batch = state.model.trees.splits, 0, 10 if n_trees > 8 else 15
    assert state.memory.rounds == (85 if n_trees > 8 else 56)
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
            # and there are splits below, where the chosen tree has none, unless nothing is left to divide
            below = slice((1 << TOP) - 1, None)
            is_split = (query.splits.threshold[k, below] != NOWHERE) | (
                query.splits.mask_of[k, below] >= 0
            )
            assert is_split.mean() > 0.5
        sums = np.ones((query.n_cells, 2)) * N_ROWS / 64
        state = stage.update(state, query, answered(query, sums))
    assert turn == 3 * min(math.ceil(max(n_trees - 8, 0) * 10 / 40), 5)


@pytest.mark.parametrize(
    "constraints",
    [Constraints(interactions=PAIRWISE), Constraints(monotonic=(("a", 1),))],
)
def test_no_tree_begins_as_another_under_constraints(constraints):
    state = after_chosen(14)
    state = replace(state, shape=replace(state.shape, constraints=constraints))
    memory = Forest().begin(state).memory
    assert (memory.again, memory.faster, memory.batch) == (0, 1.0, 15)


@pytest.mark.parametrize(("kind", "few", "many"), [("binary", 128, 32), ("multiclass", 64, 16)])
def test_a_feature_is_split_at_fewer_places_where_there_are_many_rows(kind, few, many):
    asked = []
    for n_rows in (1e4, 1e6, 1e6 + 1):
        state = replace(state_of(kind=kind), n_rows=n_rows)
        with patch.object(Places, "of", lambda _, most: asked.append(most)):
            Forest().begin(state)
    assert asked == [few, few, many]
    assert Forest(levels=9)._levels_at(1e9, kind) == 9


@pytest.mark.parametrize(("n_trees", "times"), [(0, 1.0), (8, 1.0), (9, 1.5)])
def test_steps_are_larger_where_trees_begin_as_chosen_ones(n_trees, times):
    stage = Forest()
    state = stage.begin(after_chosen(n_trees))
    query = stage.next_query(state)
    grad, hess = 50.0, 400.0
    answer = np.tile([-grad, hess * query.gradient.hess_scale], (query.n_cells, 1))
    state = stage.update(state, query, answered(query, answer, sd=1e-3))
    value = state.model.trees.value[0, n_trees:] / 2.0**16
    assert value == pytest.approx(times * stage.learning_rate * grad / hess, rel=1e-3)


def softmax_hess(p):
    return np.diag(p) - np.outer(p, p)


@pytest.mark.parametrize("ridge", [1e-4, 0.1, 30.0])
@pytest.mark.parametrize("p", [[0.5, 0.5, 0.0], [1 / 3] * 3, [0.2, 0.8], [0.0] * 3, [1 / 7] * 7])
def test_a_step_of_several_classes_is_by_their_joint_hessian(p, ridge):
    """Exact for two classes, and for classes that are alike."""
    p, rng = np.array(p), np.random.default_rng(0)
    hess, grad = 100 * softmax_hess(p), rng.normal(size=len(p)) * 20
    centre = np.eye(len(p)) - 1 / len(p)
    own = np.diag(hess)
    step, reach = newton_steps(grad[None], own[None], ridge)
    expected = np.linalg.inv(hess + ridge * np.eye(len(p))) @ centre
    np.testing.assert_allclose(step[0], -expected @ grad, rtol=1e-3)
    np.testing.assert_allclose(reach[0], np.sqrt((expected**2).sum(1)), rtol=1e-3)


@pytest.mark.parametrize("n_classes", [3, 7, 26])
def test_no_step_of_several_classes_is_much_too_long(n_classes):
    """Along no direction more than 1.25 times: with 1.5 of a batch that is below 2, where steps begin to grow."""
    rng = np.random.default_rng(0)
    every = [rng.dirichlet(np.full(n_classes, a)) for a in (0.03, 0.1, 0.3, 1.0, 10.0) * 40]
    for most in (0.5, 0.8, 0.94, 0.97, 0.99):
        rest = np.full(n_classes - 1, (1 - most) / (n_classes - 1))
        every += [np.append(most, rest)]
    for p in every:
        hess = 1000 * softmax_hess(p)
        step, _ = newton_steps(hess, np.tile(np.diag(hess), (n_classes, 1)), 1e-6)
        assert np.abs(np.linalg.eigvals(step)).max() < 1.25


@pytest.mark.parametrize("ridge", [1e-9, 1.0])
def test_noise_in_hessians_makes_no_step_that_is_not_finite(ridge):
    rng = np.random.default_rng(1)
    hess = np.maximum(rng.normal(size=(500, 5)), 0) * rng.choice([0, 1e-12, 1, 1e9], (500, 1))
    step, reach = newton_steps(rng.normal(size=(500, 5)), hess, ridge)
    assert np.isfinite(step).all()
    assert np.isfinite(reach).all()


def gradient_and_hess(kind, score):
    """What a row adds on average where features tell nothing of the target, and the loss grows from 0."""
    if kind == "numeric":
        return score - 0.3, np.ones(1)
    if kind == "binary":
        p = 1 / (1 + np.exp(-score))
        return p - 0.3, p * (1 - p)
    p = np.exp(score - score.max())
    p /= p.sum()
    return p - [0.55, 0.44, 0.01], constants.CLASS_CURVATURE * p * (1 - p)


@pytest.mark.parametrize("n_trees", [0, 30])
@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_trees_of_a_batch_do_not_overshoot_what_they_share(kind, n_trees):
    """All trees of a batch see what is the same in all rows: round by round less of it is left."""
    state = state_of(kind=kind)
    trees = after_chosen(n_trees).model.trees
    none = np.zeros((state.shape.n_scores, *trees.value.shape[1:]), np.int32)
    model = replace(state.model, trees=replace(trees, value=none))
    stage, score, before = Forest(), np.zeros(state.shape.n_scores), np.inf
    state = stage.begin(replace(state, model=model))
    state = replace(state, memory=replace(state.memory, rescaled=True))
    for _ in range(12):
        query = stage.next_query(state)
        grad, hess = gradient_and_hess(kind, score)
        left = np.abs(grad).max()
        assert left < max(0.8 * before, 1e-5)
        of_row = np.stack([grad, hess * query.gradient.hess_scale], axis=-1)
        sums = np.tile(of_row, (query.n_cells, 1)) * N_ROWS / 64
        known = state.model.trees.n_trees
        state = stage.update(state, query, answered(query, sums, sd=1e-3))
        score += state.model.trees.value[:, known:, 0].sum(1) / SCORE_ONE
        before = left


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
