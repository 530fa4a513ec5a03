"""The choice of a split that nodes share: its scores, what one row changes in them, and the law of the draw."""

import math
from fractions import Fraction
from functools import partial

import controller_parts
import numpy as np
import pytest
from controller_parts import shared_choice_query
from thinned import thinned

from dpgb_dask.contracts.boundary import Sensitivity
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import SLOPE_BITS
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.controller import choices, words
from dpgb_dask.controller.choices import MAX_D, MOST_SUM, SharedChoice, _draw
from dpgb_dask.controller.noise import KeyStream
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels import gradient
from dpgb_dask.losses import (
    SquaredGradient,
    clipped_softmax_gradient,
    logistic_gradient,
    unpack,
)
from dpgb_dask.private.sensitivity import sensitivity

A = 1 << SLOPE_BITS
CLIP, HESS = 1 << 15, 9000
GRADIENT = SquaredGradient(CLIP, HESS)  # |g| <= 2**14 with the second component 9000
LARGEST = CLIP >> 1
OF_CLASSES = clipped_softmax_gradient(3, clip=0.85, hess_scale=0.5)
SCORES = [1, 3]


def shape(max_weight=1, weight_bits=0):
    schema = Schema({"a": (0, 1)}, target_bounds=(0, 1), max_weight=max_weight)
    return Shape(schema=schema, max_weight=max_weight, weight_bits=weight_bits)


def query_of(depth=2, sizes=(5, 4), slope=None, n_groups=2, n_scores=1, **options):
    """Two groups of two nodes; the slopes differ, and the second feature's bins are in three levels, out of order."""
    if slope is None:
        slope = np.array([[0, 7, -3], [100, -256, 1], [-256, 50, 256], [30, 0, -9]])
        slope = slope[: 1 << depth, :n_scores]
    levels = (np.arange(sizes[0], dtype=np.uint8), np.array([2, 0, 1, 0], np.uint8)[: sizes[1]])
    return shared_choice_query(
        depth, sizes, gradient=GRADIENT if n_scores == 1 else OF_CLASSES, slope=slope, n_groups=n_groups,
        level_of_bin=levels, n_levels=(sizes[0], 3), n_scores=n_scores, **options,
    )  # fmt: skip


def at(query, epsilon=1.0, max_weight=1):
    bound = sensitivity(query, shape(max_weight, query.weight_bits))
    return SharedChoice.at(query, bound, Fraction(epsilon))


def histogram(query, rows):
    """Sum rows of (node, bins of all features, g steps, second steps, weight steps), as shards would.

    g and the second steps are one number, or one for each score.
    """
    sums = np.zeros((query.splits.n_leaves, sum(query.n_levels), query.n_scores, 2), np.int64)
    offsets = np.concatenate(([0], np.cumsum(query.n_levels)))
    for node, bins, g, s, weight in rows:
        for start, b, level in zip(offsets[:-1], bins, query.level_of_bin, strict=True):
            sums[node, start + level[b]] += np.stack(np.atleast_1d(g, s), axis=1) * weight
    return sums.ravel()


def by_the_definition(query, rows):
    """u of every group and candidate, row by row in Python's integers."""
    per_group = query.splits.n_leaves // query.n_groups
    out = []
    for group in range(query.n_groups):
        scores = []
        for j, n in enumerate(query.n_levels):
            for cut in range(n - 1):
                total = 0
                for node in range(group * per_group, (group + 1) * per_group):
                    for k in range(query.n_scores):
                        sides = [0, 0]
                        for where, bins, g, s, weight in rows:
                            if where == node:
                                right = int(query.level_of_bin[j][bins[j]]) > cut
                                own = A * int(np.atleast_1d(g)[k])
                                own -= int(query.slope[node, k]) * int(np.atleast_1d(s)[k])
                                sides[right] += weight * own
                        total += abs(sides[0]) + abs(sides[1])
                scores.append(total)
        out.append(scores)
    return out


def steps(rng):
    """Draw a gradient and a second component in steps, often of the largest size."""
    g = int(rng.choice([-LARGEST, LARGEST, rng.integers(-LARGEST, LARGEST)]))
    return g, int(rng.choice([0, HESS]))


def steps_of_classes(rng):
    """Draw what a row of some class adds to each score, often at odds that make it large."""
    odds = rng.choice([0, 1 << 16, 12 << 16, 40 << 16], 3).astype(np.int32)
    out = np.empty((3, 1), np.int64)
    label = rng.integers(0, 3, 1, dtype=np.uint8)
    gradient.write(OF_CLASSES, odds[:, None].copy(), label, None, out)
    g, h = unpack(out)
    return g[:, 0], h[:, 0]


random_rows = partial(controller_parts.random_rows, sums=steps)


def rows_of(rng, query, n, weight=1):
    """Random rows for the scores of a query."""
    drawn = steps if query.n_scores == 1 else steps_of_classes
    return controller_parts.random_rows(rng, query, n, weight, sums=drawn)


@pytest.mark.parametrize("n_scores", SCORES)
@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_the_definition(seed, n_scores):
    rng = np.random.default_rng(seed)
    query = query_of(weight_bits=2, n_scores=n_scores)
    rows = rows_of(rng, query, 80, 4)
    assert at(query).scores(histogram(query, rows)).tolist() == by_the_definition(query, rows)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weight", [1, 3])
def test_a_row_moves_every_score_within_the_charged_range(seed, weight):
    rng = np.random.default_rng(seed)
    query = query_of()
    choice = at(query, max_weight=weight)
    rows = random_rows(rng, query, int(rng.choice([0, 1, 30])), weight)
    before = choice.scores(histogram(query, rows))
    most = 0
    for node in range(4):
        for g in (-LARGEST, LARGEST, 5):
            for s in (0, HESS):
                for bins in ([0, 0], [4, 1], [2, 2]):
                    more = [*rows, (node, bins, g, s, weight)]
                    moved = choice.scores(histogram(query, more)) - before
                    assert not moved[1 - node // 2].any()  # the other group is untouched
                    most = max(most, int(np.abs(moved).max()))
    assert 0 < most <= choice.choice_range // 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weight", [1, 3])
def test_a_row_of_a_class_moves_every_score_within_the_charged_range(seed, weight):
    rng = np.random.default_rng(seed)
    query = query_of(n_scores=3)
    choice = at(query, max_weight=weight)
    rows = rows_of(rng, query, int(rng.choice([0, 1, 30])), weight)
    before = choice.scores(histogram(query, rows))
    most = 0
    for row in rows_of(rng, query, 60):
        moved = choice.scores(histogram(query, [*rows, (*row[:4], weight)])) - before
        assert not moved[1 - row[0] // 2].any()  # the other group is untouched
        most = max(most, int(np.abs(moved).max()))
    assert 0.7 * choice.choice_range / 2 < most <= choice.choice_range // 2


def test_the_range_of_classes_is_the_sum_over_scores():
    """A row of weight 1 has Σ|g| of 2 · .85 · √(2/3) at most, where no class but its own is likelier than another."""
    flat = query_of(n_scores=3, slope=np.zeros((4, 3), np.int64))
    assert at(flat).choice_range / (2 * A * (1 << 15)) == pytest.approx(
        1.7 * (2 / 3) ** 0.5, rel=2e-3
    )
    tilted = at(query_of(n_scores=3)).choice_range
    assert tilted > at(flat).choice_range


@pytest.mark.parametrize("k", range(3))
@pytest.mark.parametrize("steep", [-256, 256])
def test_the_steepest_slope_counts_wherever_it_stands(k, steep):
    for node in range(4):
        slope = np.zeros((4, 3), np.int64)
        slope[node, k] = steep
        most = at(query_of(slope=slope, n_scores=3)).choice_range
        assert most == 2 * OF_CLASSES.weighted(A, 256)


@pytest.mark.parametrize("steep", [-257, 257, np.iinfo(np.int64).min, np.iinfo(np.int64).max])
@pytest.mark.parametrize("place", [(0, 0), (3, 2)])
def test_a_slope_beyond_the_largest_is_refused_wherever_it_stands(steep, place):
    """The absolute value of the least int64 is negative: the range would be stated as that of no slope."""
    slope = np.zeros((4, 3), np.int64)
    slope[place] = steep
    with pytest.raises(PlanError, match="slope"):
        query_of(slope=slope, n_scores=3)


def worst_neighbours(query):
    """One row at the largest |d|, which adds to the side of one candidate, and takes from that of another."""
    node, slope = 2, int(query.slope[2, 0])
    sign = -1 if slope > 0 else 1
    rows = [(node, [0, 0], -sign * LARGEST, 0, 1)] * 3 + [(node, [4, 1], sign * LARGEST, 0, 1)] * 9
    return rows, [*rows, (node, [0, 1], sign * LARGEST, HESS, 1)]


def test_the_whole_range_is_needed():
    query = query_of()
    choice = at(query)
    before, after = (choice.scores(histogram(query, rows))[1] for rows in worst_neighbours(query))
    moved = after - before
    assert moved.max() - moved.min() == choice.choice_range
    assert choice.choice_range == 2 * (A * LARGEST + 256 * HESS)


@pytest.mark.parametrize("n_scores", SCORES)
@pytest.mark.parametrize("weight_bits", [0, 3])
def test_a_unit_of_several_rows_stays_within_the_range(weight_bits, n_scores):
    """Rows of a unit weigh at most W together, and lie in any nodes and groups: their intervals add up."""
    rng = np.random.default_rng(9)
    query = query_of(weight_bits=weight_bits, n_scores=n_scores)
    choice = at(query, max_weight=4)
    rows = rows_of(rng, query, 25)
    before = choice.scores(histogram(query, rows))
    for _ in range(30):
        unit = rows_of(rng, query, 4 << weight_bits)
        moved = choice.scores(histogram(query, rows + unit)) - before
        assert (moved.max(axis=1) - moved.min(axis=1)).sum() <= choice.choice_range


def chances(choice, sums):
    scores = choice.scores(sums)
    weights = np.exp(-(scores.max(axis=1, keepdims=True) - scores) / choice.d)
    if choice.query.odds is not None:
        weights = weights * choice.query.odds
    return weights / weights.sum(axis=1, keepdims=True)


ODDS = np.array([1, 40, 3, 1 << 20, 900, 7])


@pytest.mark.parametrize("odds", [None, ODDS])
@pytest.mark.parametrize("n_scores", SCORES)
def test_shared_choices_are_private_by_enumeration(n_scores, odds):
    rng = np.random.default_rng(3)
    query, epsilon = query_of(n_scores=n_scores, odds=odds), 1.5
    choice = at(query, epsilon)
    for n in (0, 2, 40):
        rows = rows_of(rng, query, n)
        before = np.log(chances(choice, histogram(query, rows)))
        for row in rows_of(rng, query, 30):
            losses = np.log(chances(choice, histogram(query, [*rows, row]))) - before
            assert losses.max() - losses.min() <= epsilon
            assert np.abs(losses).max() <= epsilon


@pytest.mark.parametrize("odds", [None, np.array([9, 1, 1, 1, 1, 9])])
def test_the_worst_neighbours_cost_all_that_is_charged(odds):
    query, epsilon = query_of(odds=odds), 1.5
    choice = at(query, epsilon)
    before, after = (
        np.log(chances(choice, histogram(query, rows))) for rows in worst_neighbours(query)
    )
    losses = (after - before)[1]
    assert 0.98 * epsilon < losses.max() - losses.min() <= epsilon


def drawn(choice, sums, n):
    """Answers drawn one after the other from one stream, (n, n_groups): as of so many copies of the groups."""
    scores, stream = choice.scores(sums), KeyStream(bytes(32))
    copies = _draw(np.tile(scores, (n, 1)), choice.d, stream, choice.query.odds).reshape(n, -1)
    np.testing.assert_array_equal(copies[0], choice.answer(sums, KeyStream(bytes(32))))
    return copies


def chi_squared(seen, expected):
    return float(((seen - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("odds", [None, np.array([1, 4, 2, 3, 1, 9])])
@pytest.mark.parametrize("factor", [1.0, *thinned([0.7, 1.3], every=2)])
def test_choices_have_the_law_that_is_paid_for_and_no_other(factor, odds):
    query = query_of(odds=odds)
    rows = [(v, [b, b % 4], (b - 2) * LARGEST // 2, 0, 1) for b in range(5) for v in range(4)]
    sums = histogram(query, rows)
    n = 20_000
    counts = np.bincount(drawn(at(query, factor), sums, n)[:, 0], minlength=6)
    distance = chi_squared(counts, chances(at(query, 1.0), sums)[0] * n)
    assert (distance < 5 + 5 * math.sqrt(10)) == (factor == 1.0)


@pytest.mark.parametrize("n_scores", SCORES)
def test_choices_are_total(n_scores):
    """Even sums that no data can have raise nothing, and no score overflows."""
    query = query_of(n_groups=1, n_scores=n_scores)
    ends = np.iinfo(np.int64)
    for value in (ends.min, ends.max, 1 << 60, 0, -1):
        choice = at(query, 3.0)
        sums = np.full(query.n_sums, value, np.int64)
        assert (choice.scores(sums) >= 0).all()
        assert (choice.answer(sums, KeyStream(bytes(32))) < 6).all()


@pytest.mark.parametrize("n_scores", SCORES)
def test_the_largest_score_is_the_one_that_is_stated(n_scores):
    """At the end of each node's sums, with the steepest slope against them; one step more would change nothing."""
    query = query_of(slope=np.full((4, n_scores), 256), n_groups=1, n_scores=n_scores)
    sums = np.zeros((4, sum(query.n_levels), n_scores, 2), np.int64)
    # the outer levels of the first feature, on both sides of every cut
    for level, sign in ((0, 1), (4, -1)):
        sums[:, level] = sign * MOST_SUM, -sign * MOST_SUM
    each = MOST_SUM // (4 * n_scores)  # of a node and score
    expected = 2 * 2 * A * each * 4 * n_scores
    assert 0 <= (1 << 62) - expected < 2 * 2 * A * 4 * n_scores
    assert at(query).scores(sums.ravel())[0, :4].tolist() == [expected] * 4


def test_sums_are_clipped_by_the_nodes_of_one_group():
    query = query_of(slope=np.full((4, 3), 256), n_scores=3)
    sums = np.zeros((4, sum(query.n_levels), 3, 2), np.int64)
    for level, sign in ((0, 1), (4, -1)):
        sums[:, level] = sign * MOST_SUM, -sign * MOST_SUM
    expected = 2 * 2 * A * (MOST_SUM // 6) * 6
    assert at(query).scores(sums.ravel())[:, :4].tolist() == [[expected] * 4] * 2


def test_heavy_rows_are_not_clipped():
    """Half a million rows of the largest weight in one group."""
    query = query_of(n_groups=1)
    row = LARGEST << 16
    rows = [(v, [4 * (v % 2), 0], row, HESS << 16, 1 << 17) for v in range(4)]
    assert at(query).scores(histogram(query, rows)).tolist() == by_the_definition(query, rows)


def test_what_has_no_range_is_refused():
    query = query_of()
    with pytest.raises(PlanError, match="uniform"):
        SharedChoice.at(query, sensitivity(query, shape()), Fraction(1, MAX_D))
    with pytest.raises(PlanError, match="uniform"):
        SharedChoice.at(query, Sensitivity(1, 1, 0), Fraction(1))


def test_log_loss_is_bounded_by_its_table():
    """A clipped row has no Hessian, so at |g| = 1/2 the slope adds what a row at the corner has: an eighth of it."""
    own = logistic_gradient(0.5, 0.5)
    g, s = own.extremes()
    assert own.weighted(A, -128) == (A * g + 128 * s).max() < A * (1 << 14) + 128 * (1 << 12) + A


def test_odds_that_are_all_one_are_none():
    rows = rows_of(np.random.default_rng(5), query_of(), 30)
    alike, without = (at(query_of(odds=odds), 2.0) for odds in (np.ones(6, int), None))
    sums = histogram(query_of(), rows)
    for seed in range(20):
        stream = bytes([seed] * 32)
        np.testing.assert_array_equal(
            alike.answer(sums, KeyStream(stream)), without.answer(sums, KeyStream(stream))
        )


@pytest.mark.parametrize(
    "odds",
    [
        np.ones(5, int),
        np.ones((6, 1), int),
        np.array([1, 1, 0, 1, 1, 1]),
        np.array([1, 1, -1, 1, 1, 1]),
        np.full(6, 1 << 29),
        np.full(6, 1 << 62),
        np.full(6, 0.5),
    ],
)
def test_odds_that_no_draw_has_are_refused(odds):
    with pytest.raises(PlanError, match="odds"):
        query_of(odds=odds)


class CountedWords:
    """A stream of words that notes how many are asked for at a time."""

    def __init__(self, seed):
        self._words, self.asked = KeyStream(bytes([seed] * 32)), []

    def read(self, out):
        self.asked.append(len(out))
        self._words.read(out)


@pytest.mark.parametrize("batch", [1, 7, 1 << 16])
def test_choices_by_odds_do_not_depend_on_buffer_ends(batch, monkeypatch):
    scores, odds = np.array([[900, 0, 500], [0, 0, 3]]), np.array([1, 90, 9])
    expected = [_draw(scores, 200, KeyStream(bytes([seed] * 32)), odds) for seed in range(30)]
    monkeypatch.setattr(words, "BATCH_WORDS", batch)
    monkeypatch.setattr(choices, "WORDS_PER_CHOICE", 1)
    found = [_draw(scores, 200, KeyStream(bytes([seed] * 32)), odds) for seed in range(30)]
    np.testing.assert_array_equal(found, expected)


def test_the_words_of_what_is_refused_are_not_kept():
    """The best candidate is proposed once in 2**16 times, and any other is as good as never kept."""
    stream = CountedWords(3)
    found = _draw(np.array([[1 << 20, 0]]), 1000, stream, np.array([1, 1 << 16]))
    assert found == [0]
    assert sum(stream.asked) > 10_000
    assert max(stream.asked) < 1000
