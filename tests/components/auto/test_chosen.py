"""Chosen trees: prices, growth from released choices, leaves under a known noise, the stop; and what they find."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich_parts import HESS, N_ROWS, answered, leaf_of, state_of
from sklearn.metrics import roc_auc_score

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema, recipes
from dpgb_dask.components import constants
from dpgb_dask.components.answers import Sums, sums
from dpgb_dask.components.auto import chosen, schedules
from dpgb_dask.components.auto.chosen import ChosenTrees
from dpgb_dask.components.auto.levels import order_of
from dpgb_dask.components.auto.noise import ForestNoise
from dpgb_dask.components.auto.posterior import AutoFacts
from dpgb_dask.components.auto.start import Start
from dpgb_dask.contracts.model import SCORE_ONE, Splits
from dpgb_dask.contracts.queries import PRICE_ONE, SharedChoiceQuery, TreeSumsQuery
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels.splits import NOWHERE
from dpgb_dask.losses import CLASS_CLIP
from dpgb_dask.testing import SeededNoise


def run(stage, state, leaf_grad=500.0):
    """Answer every query: the first candidate, and leaves that have gradients of one size; return state and queries."""
    state, asked = stage.begin(state), []
    while (query := stage.next_query(state)) is not None:
        asked.append(query)
        if isinstance(query, SharedChoiceQuery):
            value = np.zeros(query.n_values)
        elif isinstance(query, TreeSumsQuery):
            n = query.splits.n_leaves * query.n_scores
            hess = 0.5 * HESS * N_ROWS / query.splits.n_leaves
            value = np.stack([np.full(n, leaf_grad), np.full(n, hess)], axis=1)
        else:
            value = np.full(query.n_values, N_ROWS / query.n_values)
        state = stage.update(state, query, answered(query, np.ravel(value)))
    return state, asked


@pytest.mark.parametrize("signal", [1500.0, 9000.0, 90000.0])
@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_prices_sum_exactly_to_the_share_of_the_stage(signal, kind):
    state = state_of(signal, kind)
    _, asked = run(ChosenTrees(), state)
    scale = state.fact(AutoFacts).start_price if kind == "numeric" else 0
    assert sum(query.price for query in asked) == state.fact(AutoFacts).split.chosen + scale
    assert all(query.price > 0 for query in asked)
    assert len(asked) <= ChosenTrees().declare(state.shape).n_queries
    assert {type(query) for query in asked} <= set(ChosenTrees().queries)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_pairs_have_a_part_of_rich_data_where_their_signal_is_clear(kind):
    state, look = state_of(kind=kind), PRICE_ONE // 1000
    state = state.with_fact(replace(state.fact(AutoFacts), start_price=look))

    def split_at(n_rows):
        state_then = Start(rich_from=0.0, chosen_from=0.0)._divide(replace(state, n_rows=n_rows))
        return state_then.fact(AutoFacts).split

    for n_rows, clear in ((100.0, False), (1e6, True)):
        split = split_at(n_rows)
        assert split.rich
        both = split.screen + split.pairs
        rest = both + split.chosen + split.forest
        assert both / rest == pytest.approx(constants.RICH_PAIRS * clear)
        # every stage but the main effects looks at the residuals of a number first, and so do these once
        looks = 3 + clear if kind == "numeric" else 0
        assert split.main + rest == state.left - looks * look


@pytest.mark.parametrize(
    ("kind", "signal", "gate"),
    [
        ("binary", 1499.0, 0.5), ("multiclass", 2199.0, 0.5), ("numeric", 1499.0, 5.0),
        ("binary", 1500.0, 2.0), ("multiclass", 2200.0, 2.0), ("numeric", 1500.0, 50.0),
    ],
)  # fmt: skip
def test_rich_data_have_pairs_where_they_are_likely_or_clear_beside_chosen_trees(
    kind, signal, gate, monkeypatch
):
    monkeypatch.setattr(schedules, "tree_signal", lambda *_: signal)
    for of_pairs, asked in ((0.99 * gate, False), (gate, True)):
        monkeypatch.setattr(schedules, "pair_signal", lambda *_, told=of_pairs: told)
        split = Start()._divide(state_of(kind=kind)).fact(AutoFacts).split
        assert (split.rich, split.screen > 0, split.pairs > 0) == (True, asked, asked)


def test_levels_share_splits_where_there_are_more_nodes_than_groups():
    _, asked = run(ChosenTrees(trees=1), state_of(3000.0))
    choices = [query for query in asked if isinstance(query, SharedChoiceQuery)]
    assert [query.n_groups for query in choices] == [1, 2, 2, 2, 2, 2][: len(choices)]
    assert [query.splits.depth for query in choices] == list(range(len(choices)))
    assert all(list(query.features) == [0, 1, 2] for query in choices)
    assert choices[0].n_levels == (32, 5, 2)


def test_categories_are_split_in_the_order_of_their_released_effects():
    state = state_of()
    _, asked = run(ChosenTrees(trees=1), state)
    query = asked[0]
    assert query.level_of_bin[1].tolist() == [3, 0, 4, 1, 2]
    feature, cut = query.candidates
    pick = int(np.flatnonzero((feature == 1) & (cut == 0))[0])
    level = chosen._level(query, np.array([pick]))
    assert level.masked[0]
    assert level.mask[0, :5].tolist() == [1, 0, 1, 1, 1]  # all but the category of the least effect


def shares(query):
    """Of the odds, by feature and candidate."""
    feature, _ = query.candidates
    return np.bincount(feature, query.odds) / query.odds.sum(), query.odds / query.odds.sum()


def test_candidates_are_likely_by_strength_before_any_tree():
    """Half alike, half by strength; the second feature alone has an effect."""
    _, asked = run(ChosenTrees(trees=1), state_of())
    even, alike = constants.FOREST_EVEN, constants.CHOSEN_EVEN
    expected = alike / 3 + (1 - alike) * (even / 3 + np.array([0, 1 - even, 0]))
    np.testing.assert_allclose(shares(asked[0])[0], expected, rtol=1e-3)
    first = shares(asked[0])[1][:31]  # levels of one bin or two, no effects
    np.testing.assert_allclose(first, first.mean(), rtol=0.3)


def test_places_are_likely_where_the_effect_is_steep():
    state = state_of()
    tables = [table.copy() for table in state.model.tables]
    tables[0][21:, 0] = 9000
    state = replace(state, model=state.model.with_tables(tables))
    _, asked = run(ChosenTrees(trees=1), state)
    first = shares(asked[0])[1][:31]
    assert int(first.argmax()) == asked[0].level_of_bin[0][20]
    by_effect = constants.FOREST_BY_EFFECT
    assert first.max() / first.sum() == pytest.approx(by_effect + (1 - by_effect) / 31, rel=0.05)


def test_features_that_trees_split_on_are_likelier_in_the_next_ones():
    state, asked = run(ChosenTrees(trees=2), state_of())
    choices = [query for query in asked if isinstance(query, SharedChoiceQuery)]
    before, after = choices[0], choices[len(choices) // 2]
    assert after.splits.depth == 0
    splits = state.model.trees.splits.only(np.array([0]))
    split = (splits.threshold != NOWHERE) | (splits.mask_of >= 0)
    seen = np.bincount(splits.feature[split], minlength=3)
    assert seen.sum() == (1 << asked[-1].splits.depth) - 1
    prior = constants.CHOSEN_ODDS
    expected = (seen + prior * shares(before)[0]) / (seen.sum() + prior)
    np.testing.assert_allclose(shares(after)[0], expected, rtol=1e-3)


def test_all_trees_have_one_depth_and_their_leaves_repeat():
    few = replace(state_of(1500.0), n_rows=2000.0)
    state, asked = run(ChosenTrees(trees=2, depth=6), few)
    trees = state.model.trees
    grown = asked[-1].splits.depth
    assert grown < trees.depth == 6
    assert (
        trees.value.reshape(2, 1 << grown, -1) == trees.value.reshape(2, 1 << grown, -1)[..., :1]
    ).all()
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, 42, 99), rng.integers(0, 5, 99), rng.integers(0, 2, 99)])
    assert (leaf_of(trees.splits, codes) >> (6 - grown) == leaf_of(asked[-1].splits, codes)).all()


def test_it_stops_when_trees_gain_nothing():
    stage, state = ChosenTrees(), state_of()
    end, asked = run(stage, state, leaf_grad=0.0)
    assert end.model.trees.n_trees == constants.CHOSEN_PATIENCE < end.memory.n_trees
    assert sum(query.price for query in asked) < state.fact(AutoFacts).split.chosen


def leaves_under(sd, grad, hess=500.0, depth=3):
    n = 1 << depth
    answer = Sums(np.asarray(grad, float).reshape(n, 1), np.full((n, 1), hess), sd, 2 * sd)
    state = replace(state_of(), n_rows=n * hess / HESS)
    step, reach = chosen.leaf_steps(state, answer, depth)
    return step[:, 0], reach[:, 0]


def test_each_score_has_the_steps_of_its_own_sums():
    grad = np.random.default_rng(0).normal(0, 300, (8, 3))
    state = replace(state_of(kind="multiclass"), n_rows=8 * 500 / HESS)
    step, reach = chosen.leaf_steps(state, Sums(grad, np.full((8, 3), 500.0), 9.0, 18.0), 3)
    for k in range(3):
        alone_step, alone_reach = leaves_under(9.0, grad[:, k])
        np.testing.assert_array_equal(step[:, k], alone_step)
        np.testing.assert_array_equal(reach[:, k], alone_reach)


def test_the_gain_of_a_tree_sums_over_the_scores():
    state, hess = state_of(kind="multiclass"), np.full((8, 3), 2500.0)

    def gain(grad):
        return chosen._gain(state, Sums(grad, hess, 3.0, 6.0))

    of_one = [gain(900.0 * np.eye(3)[[k] * 8]) for k in range(3)]
    assert of_one[0] == pytest.approx(of_one[1]) == pytest.approx(of_one[2])
    nothing = gain(np.zeros((8, 3)))
    assert gain(np.full((8, 3), 900.0)) - nothing == pytest.approx(3 * (of_one[0] - nothing))


@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_noise_moves_leaves_as_far_as_is_told(kind):
    """The model's leaves are rate times steps, and so is what a unit of noise does to them."""
    state, asked = run(ChosenTrees(trees=1), state_of(kind=kind))
    query = asked[-1]
    assert isinstance(query, TreeSumsQuery)
    n = query.splits.n_leaves * query.n_scores
    hess = 0.5 * HESS * N_ROWS / query.splits.n_leaves
    answer = sums(
        query, answered(query, np.stack([np.full(n, 500.0), np.full(n, hess)], 1).ravel())
    )
    before = state if kind == "numeric" else state_of(kind=kind)
    step, reach = chosen.leaf_steps(before, answer, query.splits.depth)
    rate = ChosenTrees().learning_rate * (0.5 if kind == "multiclass" else 1.0)
    repeat = 1 << (ChosenTrees().depth - query.splits.depth)
    value = np.clip(step, -constants.LARGEST_LEAF, constants.LARGEST_LEAF)
    for part, told in (
        (reach, state.fact(ForestNoise).gain),
        (value, state.model.trees.value / SCORE_ONE),
    ):
        expected = rate * np.repeat(part, repeat, axis=0).T[:, None]
        np.testing.assert_allclose(told, expected, atol=1 / SCORE_ONE)


def test_the_signal_of_several_classes_is_measured_by_their_clip(monkeypatch):
    told = []
    monkeypatch.setattr(schedules, "tree_signal", lambda *asked: told.append(asked) or 0.0)
    for kind in ("binary", "multiclass"):
        Start()._divide(state_of(kind=kind))
    (_, hess, clip, _), (_, hess_of_classes, clip_of_classes, _) = told
    assert (clip, clip_of_classes) == (constants.CLIP, CLASS_CLIP)
    assert (hess, hess_of_classes) == (HESS, pytest.approx(3 * HESS))


def test_categories_of_several_classes_stand_where_their_effects_differ_most():
    """Along one line, in its order (from either end), however rows are spread and whatever they share."""
    place, mass = np.array([3, -1, 0, 7, -5]), np.array([10.0, 20, 0, 30, 5])
    table = (np.array([4, -1, -3]) * place[:, None] + np.array([500, 2, -7])).astype(np.int32)
    order = np.argsort(order_of(table, mass)).tolist()
    assert order in (np.argsort(place).tolist(), np.argsort(-place).tolist())
    one = table[:, :1]
    assert order_of(one, mass) is not None
    np.testing.assert_array_equal(order_of(one, mass), one[:, 0])


def test_leaves_are_newton_steps_without_noise_and_nothing_in_noise():
    grad = 1e5 * np.array([1, -1, 2, 0, -3, 1, 1, 2])
    step, reach = leaves_under(1e-6, grad, hess=1e6)
    assert step.shape == reach.shape == (8,)
    assert step == pytest.approx(-grad / 1e6, rel=0.01, abs=2e-3)
    assert reach == pytest.approx(1e-6, rel=0.01)
    step, _ = leaves_under(1e6, grad / 1e3)
    assert np.abs(step).max() < 0.02


def test_noise_of_a_leaf_is_what_the_reach_says():
    """The posterior mean is linear at fixed odds: a small change of one leaf moves it by its reach."""
    grad = np.array([40.0, -60, 20, 10, -30, 90, 5, -5])
    step, reach = leaves_under(5.0, grad)
    moved, _ = leaves_under(5.0, grad + np.eye(8)[2])
    assert step[2] - moved[2] == pytest.approx(reach[2], rel=0.1)


def test_leaves_that_part_late_are_alike():
    step, _ = leaves_under(30.0, [200.0, 200, 200, 0, -200, -200, -200, -200])
    assert step[3] < -0.02  # drawn to the three leaves beside it


@pytest.mark.parametrize("depth", [1, 4])
def test_priors_of_leaves_are_covariances(depth):
    for kernel in chosen.level_kernels(depth):
        assert np.diag(kernel) == pytest.approx(1)
        assert np.linalg.eigvalsh(kernel).min() > -1e-12
        assert (
            kernel[0, len(kernel) // 2 :] == 0
        ).all()  # leaves that part at the root share nothing


@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_slopes_are_within_what_the_query_allows(kind):
    state = state_of(kind=kind)
    gradient, n_scores = chosen.current_gradient(state), state.shape.n_scores
    for grad in (-1e9, 0.0, 1e9):
        hess = np.repeat([[1e4], [-5.0]], n_scores, axis=1)
        answer = Sums(np.full((2, n_scores), grad), hess, 3.0, 6.0)
        slope = chosen._slopes(state, answer, gradient.hess_scale)
        assert np.abs(slope).max() <= 256
        assert (np.sign(slope) == np.sign(grad)).all()


@pytest.mark.parametrize(
    ("option", "value"), [("trees", 0), ("depth", 9), ("learning_rate", 2), ("levels", 1)]
)
def test_options_out_of_range_raise(option, value):
    with pytest.raises(PlanError, match=option):
        ChosenTrees(**{option: value})


# ---- what they find --------------------------------------------------------------------------------------------------


def boxes(n=6_000, seed=0):
    """Three-way interactions that no table of one or two features holds."""
    x = np.random.default_rng(seed).random((n, 6))
    inside = (x[:, 0] > 0.5) ^ (x[:, 1] > 0.5) ^ (x[:, 2] > 0.4)
    return pd.DataFrame(x, columns=list("abcdef")), inside.astype(int)


def without_trees():
    plan = recipes.RECIPES["auto"]
    kept = tuple(stage for stage in plan.stages if not isinstance(stage, ChosenTrees))
    return replace(plan, name="no chosen trees", stages=kept)


@pytest.mark.slow
def test_they_find_what_tables_and_random_trees_do_not():
    """On the average of twenty draws of the noise: one in ten misses a split, and has .9."""
    (x, y), (new_x, new_y) = boxes(), boxes(4000, 1)
    schema = Schema(dict.fromkeys("abcdef", (0, 1)), classes=[0, 1])
    auc = {}
    for name, plan in (("with", "auto"), ("without", without_trees())):
        own = {"schema": schema, "epsilon": 8, "delta": 1e-6, "random_state": 0, "recipe": plan}
        models = [DPGBClassifier(noise=SeededNoise(k), **own).fit(x, y) for k in range(1, 21)]
        auc[name] = np.mean([roc_auc_score(new_y, m.predict_proba(new_x)[:, 1]) for m in models])
    assert auc["with"] > 0.98 > auc["without"] + 0.02


@pytest.mark.slow
def test_they_find_what_parts_several_classes():
    """On the average of eight draws of the noise: in one of twenty or thirty no tree finds how three features act."""

    def classes(n, seed):
        x, y = boxes(n, seed)
        return x, y + 2 * (x["d"] > 0.7).to_numpy()

    (x, y), (new_x, new_y) = classes(9000, 0), classes(2000, 1)
    schema = Schema(dict.fromkeys("abcdef", (0, 1)), classes=[0, 1, 2, 3])
    right = {}
    for name, plan in (("with", "auto"), ("without", without_trees())):
        own = {"schema": schema, "epsilon": 8, "delta": 1e-6, "random_state": 0, "recipe": plan}
        models = [DPGBClassifier(noise=SeededNoise(k), **own).fit(x, y) for k in range(1, 9)]
        right[name] = np.mean([(m.predict(new_x) == new_y).mean() for m in models])
    assert right["with"] > 0.9 > right["without"] + 0.05


def test_the_additive_recipe_spends_all_of_rich_data_on_tables():
    x, y = boxes()
    schema = Schema(dict.fromkeys("abcdef", (0, 1)), classes=[0, 1])
    model = DPGBClassifier(
        recipe="additive", schema=schema, epsilon=8, noise=SeededNoise(1), random_state=0
    ).fit(x, y)
    prices = [receipt.price for receipt in model.privacy_report_.receipts]
    assert sum(prices) > 0.999 * model.privacy_report_.declared
    assert model.model_.trees.n_trees == 0
    assert len(model.model_.pairs) > 0


@pytest.mark.slow
def test_a_rich_fit_explains_exports_and_loads_as_any_other(tmp_path):
    x, y = boxes(20_000)
    schema = Schema(dict.fromkeys("abcdef", (0, 1)), target_bounds=(0, 1))
    model = DPGBRegressor(
        schema=schema, epsilon=8, delta=1e-6, noise=SeededNoise(1), random_state=0
    ).fit(x, y.astype(float))
    labels = [receipt.label for receipt in model.privacy_report_.receipts]
    assert any(label.startswith("chosen tree") for label in labels)
    model.save(tmp_path / "model.json")
    again = DPGBRegressor.load(tmp_path / "model.json")
    assert (again.predict(x[:500]) == model.predict(x[:500])).all()
    overall = model.explain_global()
    assert all(term.lower is not None for term in overall.terms if term.kind == "main")
    told = model.explain_local(x[:20])
    assert told is not None


def test_trees_of_less_depth_stay_as_they_are_when_deepened():
    splits = Splits.plain(np.zeros((1, 1), np.uint16), np.full((1, 1), 3, np.uint8))
    deep = chosen.deepened(splits, 3)
    assert deep.depth == 3
    assert (deep.threshold[0, 1:] == 255).all()
