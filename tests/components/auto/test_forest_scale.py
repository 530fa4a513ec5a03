"""How far the forest is scaled when it is complete."""

from dataclasses import replace

import numpy as np
import pytest
from rich_parts import answered, leaf_of, state_of

from dpgb_dask.components import constants
from dpgb_dask.components.auto import forest_scale
from dpgb_dask.components.auto.forest import Forest, scaled
from dpgb_dask.components.auto.forest_scale import ForestScale
from dpgb_dask.components.auto.noise import ForestNoise
from dpgb_dask.components.auto.posterior import AutoFacts
from dpgb_dask.contracts.model import SCORE_ONE, TreeEnsemble
from dpgb_dask.contracts.queries import ContributionSumsQuery
from dpgb_dask.contracts.scores import added_by

N = 4000
# with a place between any two bins, as the rows follow one
STAGE = Forest(rounds=10, levels=64)


def people(kind, rng, *, effect):
    """Codes of rows, and classes or numbers that follow two of their features together, or nothing."""
    codes = np.stack([rng.integers(0, size, N) for size in (42, 5, 2)]).astype(np.uint8)
    score = effect * np.where((codes[0] < 21) == (codes[2] == 0), 1.0, -1.0)
    if kind == "numeric":
        return codes, 0.1 * (score + rng.normal(size=N))
    chance = 1 / (1 + np.exp(-score))
    y = (rng.random(N) < chance).astype(int)
    return codes, np.where(rng.random(N) < 0.3, 2, y) if kind == "multiclass" else y


def gradients(kind, y, score):
    """(g, h) of rows, (n_scores, n) each."""
    if kind == "numeric":
        return score - y, np.ones((1, N))
    if kind == "binary":
        p = 1 / (1 + np.exp(-score))
        return p - y, p * (1 - p)
    p = np.exp(score)
    p /= p.sum(0)
    return p - (y == np.arange(3)[:, None]), constants.CLASS_CURVATURE * p * (1 - p)


def complete(kind, seed, *, effect, sd):
    """A state when all trees are there, which made-up people's sums with noise of a standard deviation made."""
    rng = np.random.default_rng(seed)
    codes, y = people(kind, rng, effect=effect)
    state, stage = state_of(kind=kind), STAGE
    counts = tuple(
        np.bincount(code, minlength=own.n_bins).astype(float)
        for code, own in zip(codes, state.model.bins, strict=True)
    )
    state = stage.begin(replace(state, counts=counts, n_rows=float(N)))
    # what rows follow is drawn as often as what they do not, however often features without strength are drawn
    memory = replace(state.memory, rescaled=True, chance=np.full(3, 1 / 3))
    state = replace(state, memory=memory)
    facts = state.fact(AutoFacts)
    if kind == "numeric":  # as a look at the residuals would have told
        state = state.with_fact(replace(facts, clip=0.1 * constants.NORMAL_SPREAD))
    score = np.zeros((state.shape.n_scores, N))
    while not isinstance(query := stage.next_query(state), ContributionSumsQuery):
        g, h = gradients(kind, y, score)
        a, parts, leaves = query.gradient.hess_scale, [], []
        for t in range(query.splits.n_trees):
            leaf = leaf_of(query.splits.part(t, t + 1), codes)
            parts.append(
                [
                    [np.bincount(leaf, part, query.splits.n_leaves) for part in own]
                    for own in (g, a * h)
                ]
            )
            leaves.append(leaf)
        sums = np.array(parts).transpose(0, 3, 2, 1)  # (tree, leaf, score, 2)
        sums += rng.normal(0, sd, sums.shape)
        known, last = state.model.trees.n_trees, state.memory
        state = stage.update(state, query, answered(query, sums.reshape(-1, 2), sd=sd))
        for t, leaf in enumerate(leaves):
            score += state.model.trees.value[:, known + t, leaf] / SCORE_ONE
    assert last.round + 1 == last.rounds
    return state


def grown(kind, seed, *, effect, sd):
    """The scale of such a forest, and its state when rows have been asked."""
    state, stage = complete(kind, seed, effect=effect, sd=sd), STAGE
    codes, y = people(kind, np.random.default_rng(seed), effect=effect)
    trees, query = state.model.trees, stage.next_query(state)
    score = added_by(trees, codes) / SCORE_ONE
    sums = by_contribution(query, trees, codes, *gradients(kind, y, score))
    sums += np.random.default_rng([seed, 1]).normal(0, sd, sums.shape)
    last = stage.update(state, query, answered(query, sums, sd=sd))
    assert stage.next_query(last) is None
    return state.memory.scale, last


def by_contribution(query, trees, codes, g, h):
    """The sums of rows by what trees add to them, (n_cells · n_scores, 2)."""
    added = added_by(trees.only(query.trees), codes)
    own = (g, query.gradient.hess_scale * h)
    sums = np.zeros((query.n_cells, len(added), 2))
    for k, edges in enumerate(query.edges):
        cell = np.searchsorted(edges, added[k])
        for j, part in enumerate(own):
            sums[:, k, j] = np.bincount(cell, part[k], query.n_cells)
    return sums.reshape(-1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_a_forest_of_noise_is_taken_back_and_one_of_signal_kept(kind):
    sd = 6.0 if kind == "numeric" else 30.0
    of_noise = [grown(kind, seed, effect=0.0, sd=sd)[0].factor() for seed in range(4)]
    of_signal = [grown(kind, seed, effect=1.5, sd=sd)[0].factor() for seed in range(4)]
    assert np.mean(of_noise) < 0.75
    assert np.mean(of_signal) > 0.9
    assert np.mean(of_signal) - np.mean(of_noise) > 0.25


def test_trees_are_multiplied_when_rows_have_been_asked():
    scale, state = grown("numeric", 0, effect=0.0, sd=6.0)
    value = state.model.trees.value
    made = scale.forest[0].astype(float)  # as they were in the rounds
    ends = sum(
        value[0, t, leaf_of(state.model.trees.splits.part(t, t + 1), scale.codes)]
        for t in range(state.model.trees.n_trees)
    )
    noise = state.fact(ForestNoise)
    (factor,) = set(noise.scales)
    assert abs(factor - 1) > 0.2
    np.testing.assert_allclose(ends, factor * made, atol=len(value[0]))


def test_only_trees_from_a_number_on_are_multiplied():
    value = np.arange(24, dtype=np.int32).reshape(1, 3, 8)
    trees = TreeEnsemble(None, value)
    assert scaled(trees, 1, 0.5).value.tolist() == [
        [*value[:, :1].tolist()[0], *np.rint(value[0, 1:] / 2).tolist()]
    ]


def scale_of(told=0.0, followed=0.0, curved=1.0, variance=0.0):
    empty = np.zeros((1, 0), np.int32)
    return ForestScale(
        empty.astype(np.uint8),
        empty,
        empty.astype(float),
        empty,
        empty,
        told,
        followed,
        curved,
        variance,
    )


def test_the_factor_is_one_less_the_slope_as_far_as_it_is_known():
    sd, of_noise = constants.SCALE_SD, constants.SCALE_OPTIMISM
    assert scale_of(curved=0.0, told=5.0).factor() == 1
    assert scale_of(told=0.4).factor() == pytest.approx(0.6)
    assert scale_of(told=-0.3).factor() == pytest.approx(1.3)
    assert scale_of(told=4.0, curved=10.0).factor() == pytest.approx(0.6)
    as_unsure = scale_of(told=4.0, curved=10.0, variance=(sd * 10) ** 2)
    assert as_unsure.factor() == pytest.approx(0.8)
    assert scale_of(told=4.0, curved=10.0, variance=1e12).factor() == pytest.approx(1)
    assert scale_of(followed=-0.4).factor() == pytest.approx(1 - of_noise * 0.4)
    assert scale_of(told=9.0).factor() == 0
    assert scale_of(told=-9.0).factor() == constants.LARGEST_SCALE


def test_made_up_rows_have_the_released_shares():
    state = state_of()
    counts = (np.arange(42.0) ** 2, np.array([0.0, 3.0, 1.0, 0.0, 4.0]), np.array([2.0, 0.0]))
    made = ForestScale.begin(replace(state, counts=counts), np.random.default_rng(0))
    for code, mass in zip(made.codes, counts, strict=True):
        share = np.bincount(code, minlength=len(mass)) / made.codes.shape[1]
        np.testing.assert_allclose(share, mass / mass.sum(), atol=1.01 / made.codes.shape[1])
    assert abs(np.corrcoef(made.codes[0], made.codes[1])[0, 1]) < 0.05
    assert made.before[0].tolist() == np.array([5, -9, 7, 0, 0])[made.codes[1]].tolist()


@pytest.mark.parametrize("kind", ["binary", "multiclass", "numeric"])
def test_noise_of_rows_has_their_curvature_as_its_covariance(kind):
    rng, n = np.random.default_rng(0), 100_000
    score = np.array([[-0.5], [0.3], [1.2]]) if kind == "multiclass" else np.array([[0.7]])
    score = np.tile(np.rint(score * SCORE_ONE).astype(np.int32), n)
    bend = forest_scale.curvature_at(kind, score)
    dense = np.stack(
        [bend(np.eye(len(score))[:, [k]] * np.ones(n))[:, 0] for k in range(len(score))]
    )
    if kind == "multiclass":
        p = np.exp(score[:, 0] / SCORE_ONE)
        p /= p.sum()
        np.testing.assert_allclose(dense, np.diag(p) - np.outer(p, p))
    else:
        p = 1 / (1 + np.exp(-score[0, 0] / SCORE_ONE))
        assert dense == pytest.approx(1.0 if kind == "numeric" else p * (1 - p))
    assert bend.mean_hess == pytest.approx(np.trace(dense))
    noise = forest_scale.noise_of(kind, score, rng)
    np.testing.assert_allclose(noise @ noise.T / n, dense, atol=0.01)
    np.testing.assert_allclose(noise.mean(1), 0, atol=0.01)


def test_sums_of_made_up_rows_are_those_of_every_leaf():
    rng, state = np.random.default_rng(1), state_of(kind="multiclass")
    splits = Forest().next_query(Forest().begin(state)).splits
    leaf = rng.integers(0, splits.n_leaves, (splits.n_trees, 500)).astype(np.uint8)
    columns = [rng.normal(size=(3, 500)), 20 * rng.normal(size=(3, 500))]
    halves = [forest_scale._summed(leaf, splits, half, columns) for half in (0, 1)]
    for half, (rows, *sums) in enumerate(halves):
        own = slice(half * 250, half * 250 + 250)
        for t in range(splits.n_trees):
            for k in range(splits.n_leaves):
                here = leaf[t, own] == k
                assert rows[t, k, 0] == here.sum()
                for part, column in zip(sums, columns, strict=True):
                    most = forest_scale.LARGEST / SCORE_ONE
                    want = column[:, own].clip(-most, most)[:, here].sum(1)
                    np.testing.assert_allclose(part[t, k], want, atol=250 / SCORE_ONE)
