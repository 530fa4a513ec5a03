import math
from fractions import Fraction
from functools import partial

import controller_parts
import numpy as np
import pytest
from controller_parts import choice_query
from thinned import thinned

from dpgb_dask.contracts.boundary import Sensitivity
from dpgb_dask.controller import words
from dpgb_dask.controller.choices import CAP, MAX_D, Choice
from dpgb_dask.controller.noise import KeyStream
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import GRAD_ONE

G = GRAD_ONE  # |g| <= 1
RANGE = 4 * G * G


def sensitivity(gain_range=RANGE):
    return Sensitivity(2 * G * G, 2 * G, gain_range)


def at(query, epsilon=1.0, gain_range=RANGE):
    return Choice.at(query, sensitivity(gain_range), Fraction(epsilon))


def stream(seed=0):
    return KeyStream(seed.to_bytes(32, "little"))


def histogram(query, rows):
    """Sum rows of (node, bins of all features, g, weight), in natural units, as shards would."""
    sums = np.zeros((query.splits.n_leaves, sum(query.sizes), 2), np.int64)
    offsets = np.concatenate(([0], np.cumsum(query.sizes)))
    for node, bins, g, weight in rows:
        for start, b in zip(offsets[:-1], bins, strict=True):
            sums[node, start + b] += np.array([round(g * G) * weight, G * weight])
    return sums.ravel()


def exact_gains(query, sums):
    """The gains as rationals, by the definition."""
    nodes = sums.reshape(query.splits.n_leaves, sum(query.sizes), 2)
    offsets = np.concatenate(([0], np.cumsum(query.sizes)))
    wb = query.weight_bits
    out = []
    for node in nodes:
        row = []
        for f, b, only in zip(
            query.candidate_feature, query.candidate_bin, query.candidate_only, strict=True
        ):
            cells = node[offsets[f] : offsets[f + 1]]
            gain = Fraction(0)
            for side in (0, 1):
                inside = [
                    c for k, c in enumerate(cells) if ((k == b) if only else (k > b)) == bool(side)
                ]
                s = Fraction(sum(int(c[0]) for c in inside), 1 << wb)
                n = Fraction(sum(int(c[1]) for c in inside), G << wb)
                gain += s * s / (n + Fraction(query.ridge))
            row.append(gain)
        out.append(row)
    return out


def gradient(rng):
    """Draw a gradient, in natural units, often of the largest size."""
    return (float(rng.choice([-1.0, 1.0, rng.uniform(-1, 1)])),)


random_rows = partial(controller_parts.random_rows, sums=gradient)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weight_bits", [0, 3])
def test_scores_are_the_floor_of_the_gains(seed, weight_bits):
    rng = np.random.default_rng(seed)
    query = choice_query(depth=2, sizes=(4, 3), only_last=True, weight_bits=weight_bits)
    choice = at(query)
    sums = histogram(query, random_rows(rng, query, 300))
    unit = Fraction(2) ** choice.unit_bits
    for scores, gains in zip(choice.scores(sums), exact_gains(query, sums), strict=True):
        for score, gain in zip(scores, gains, strict=True):
            assert abs(int(score) - math.floor(gain / unit)) <= 1 + math.ceil(gain / 2**50 / unit)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weight", [1, 5])
def test_neighbours_stay_within_the_charged_range(seed, weight):
    """Scores of D, and of D with one more row, differ by at most R, on data that push the gain to its ends."""
    rng = np.random.default_rng(seed)
    query = choice_query(depth=1, sizes=(5, 2), ridge=0.01)
    choice = at(query, gain_range=RANGE * weight)
    rows = random_rows(rng, query, int(rng.choice([0, 1, 3, 100])), weight)
    if seed % 2:  # all gradients at one bound, and the new one at the other: dG is near -3 g*²
        rows = [(0, bins, 1.0, weight) for _, bins, _, _ in rows for _ in range(50)]
    before = choice.scores(histogram(query, rows))
    widest = 0
    for g in (-1.0, 1.0, 0.3):
        for new in ([0, 0], [4, 1], [2, 0]):
            after = choice.scores(histogram(query, [*rows, (0, new, g, weight)]))
            moved = (after - before)[0]
            widest = max(widest, int(moved.max() - moved.min()), int(np.abs(moved).max()))
            assert not (after - before)[1].any()  # the other node is untouched
    assert widest <= choice._range_in_units()


def worst_neighbours(n=2000):
    """Rows without and with one row that moves the gain of one feature's split by -3 g*², and another's by +1 g*²."""
    rows = [(0, [0, 1], -1.0, 1)] * n + [(0, [1, 0], 1.0, 1)] * n
    return rows, [*rows, (0, [0, 0], 1.0, 1)]


def test_the_whole_range_is_needed():
    query = choice_query(depth=0, sizes=(2, 2), ridge=1e-6)
    choice = at(query)
    before, after = (choice.scores(histogram(query, rows))[0] for rows in worst_neighbours())
    moved = (after - before) * 2.0**choice.unit_bits / (G * G)
    assert moved.min() == pytest.approx(-3, abs=2e-3)
    assert moved.max() == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("ends", [(-0.5, 0.5), (-0.9, 0.25), (-0.05, 0.75), (-1.0, 1.0)])
def test_one_row_moves_gains_within_the_width_of_its_gradients(ends):
    """With g in [low, high], gains move by at most (high - low)², in an interval that holds 0; this is attained."""
    low, high = ends
    width = (high - low) * G
    query = choice_query(depth=0, sizes=(2, 2), ridge=1e-6)
    choice = at(query, gain_range=round(width**2))
    rng = np.random.default_rng(7)
    mixed = [
        (0, [int(rng.integers(2)), int(rng.integers(2))], float(rng.choice(ends)), 1)
        for _ in range(60)
    ]
    opposite = [(0, [0, 1], low, 1)] * 2000 + [(0, [1, 0], high, 1)] * 2000
    widest = 0.0
    for rows in ([], mixed, mixed[:3], opposite):
        before = choice.scores(histogram(query, rows))[0]
        for g in (low, high, 0.3 * low + 0.7 * high):
            for cell in ([0, 0], [0, 1], [1, 0]):
                after = choice.scores(histogram(query, [*rows, (0, cell, g, 1)]))[0]
                moved = (after - before) * 2.0**choice.unit_bits
                # the row brings the same g² to every candidate: what differs is (g - s)²
                assert (moved <= (g * G) ** 2 + 1e-3 * width**2).all()
                assert (moved >= (g * G) ** 2 - 1.001 * width**2).all()
                widest = max(widest, float(np.ptp(moved)))
    assert 0.99 * width**2 < widest <= choice._range_in_units() * 2.0**choice.unit_bits


def test_rounding_costs_almost_nothing():
    for depth in (0, 6):
        choice = at(choice_query(depth=depth))
        natural = choice._range_in_units() * Fraction(2) ** choice.unit_bits
        assert 1 <= natural / RANGE < 1.0003
        assert choice.d == math.ceil(choice._range_in_units())
        # two gains a node, each wrong by the error of floats, and rounded down to a unit
        errors = 4 * Fraction(CAP * RANGE, 1 << 50) * 2**depth
        least = (RANGE + errors) / Fraction(2) ** choice.unit_bits + 2 * 2**depth
        assert choice._range_in_units() >= least


def chances(choice, sums):
    scores = choice.scores(sums)
    weights = np.exp(-(scores.max(axis=1, keepdims=True) - scores) / choice.d)
    return weights / weights.sum(axis=1, keepdims=True)


def chi_squared(seen, expected):
    return float(((seen - expected) ** 2 / expected).sum())


def drawn(choice, sums, n, seed=0):
    """Return n choices of every node; one long stream."""
    words = stream(seed)
    return np.array([choice.answer(sums, words) for _ in range(n)])


@pytest.mark.parametrize("epsilon", thinned([4.0, 0.5, 40.0], every=3))
def test_choices_have_the_exact_law(epsilon):
    query = choice_query(depth=1, sizes=(5,))
    rows = [(0, [b], g, 1) for b, g in enumerate((-1, -0.5, 0, 0.5, 1))] * 3
    rows += [(1, [b], g, 1) for b, g in enumerate((1, 0, -1, -1, 1))]
    sums = histogram(query, rows)
    choice = at(query, epsilon)
    expected = chances(choice, sums)
    n = 20_000
    seen = drawn(choice, sums, n)
    for node in range(2):
        counts = np.bincount(seen[:, node], minlength=4)
        assert chi_squared(counts, expected[node] * n) < 3 + 5 * math.sqrt(6)


@pytest.mark.parametrize("factor", thinned([0.7, 1.3], every=2))
def test_the_check_of_the_law_rejects_other_scales(factor):
    query = choice_query(depth=0, sizes=(5,))
    sums = histogram(query, [(0, [b], g, 1) for b, g in enumerate((-1, -0.5, 0, 0.5, 1))] * 20)
    right, wrong = at(query, 1.0), at(query, factor)
    n = 20_000
    counts = np.bincount(drawn(wrong, sums, n)[:, 0], minlength=4)
    assert chi_squared(counts, chances(right, sums)[0] * n) > 3 + 5 * math.sqrt(6)


def test_empty_nodes_choose_uniformly():
    query = choice_query(depth=1, sizes=(5,))
    choice = at(query, 1000.0)
    counts = np.bincount(drawn(choice, np.zeros(20, np.int64), 5000).ravel(), minlength=4)
    assert chi_squared(counts, np.full(4, 2500.0)) < 3 + 5 * math.sqrt(6)


def test_choices_are_private_by_enumeration():
    """By the exact chances of all choices on neighbours, the loss is at most ε, and so is its range."""
    rng = np.random.default_rng(3)
    query = choice_query(depth=0, sizes=(4, 3), ridge=0.1)
    epsilon = 1.5
    choice = at(query, epsilon)
    for n in (0, 1, 2, 50, 500):
        rows = [(0, [0, 2], 1.0, 1)] * n + [(0, [3, 0], -1.0, 1)] * (n // 2)
        rows += random_rows(rng, query, n // 10)
        before = np.log(chances(choice, histogram(query, rows))[0])
        for g in (-1.0, 1.0):
            for bins in ([0, 0], [3, 2], [1, 1], [0, 2], [3, 0]):
                after = np.log(chances(choice, histogram(query, [*rows, (0, bins, g, 1)]))[0])
                losses = after - before
                assert np.abs(losses).max() <= epsilon
                assert losses.max() - losses.min() <= epsilon
    query = choice_query(depth=0, sizes=(2, 2), ridge=1e-6)
    choice = at(query, epsilon)
    before, after = (chances(choice, histogram(query, rows))[0] for rows in worst_neighbours())
    losses = np.log(after) - np.log(before)
    assert (
        0.98 * epsilon < losses.max() - losses.min() <= epsilon
    )  # any smaller range would be caught


@pytest.mark.parametrize("batch", [1, 2, 7, 50, 1000])
def test_choices_do_not_depend_on_buffer_ends(batch, monkeypatch):
    query = choice_query(depth=2, sizes=(6, 5))
    rows = random_rows(np.random.default_rng(1), query, 400)
    choice = at(query, 20.0)
    sums = histogram(query, rows)
    whole = choice.answer(sums, stream(5))
    assert np.array_equal(whole, choice.answer(sums, stream(5)))
    monkeypatch.setattr(words, "BATCH_WORDS", batch)
    assert np.array_equal(whole, choice.answer(sums, stream(5)))


def test_choices_are_total():
    """Even sums that no data can have raise nothing."""
    query = choice_query(depth=1, sizes=(5,))
    ends = np.iinfo(np.int64)
    for value in (ends.min, ends.max, 0, -1):
        out = at(query, 3.0).answer(np.full(20, value, np.int64), stream())
        assert ((out >= 0) & (out < 4)).all()


def test_gains_of_huge_nodes_are_clipped():
    query = choice_query(depth=0, sizes=(3,))
    sums = np.array([[1 << 62, 1 << 62], [0, 0], [0, 0]], np.int64).ravel()
    choice = at(query)
    assert choice.scores(sums).max() * 2.0**choice.unit_bits == CAP * RANGE


def test_a_negative_bin_or_category_is_on_the_right_side():
    """`only`: the bin alone goes right."""
    query = choice_query(depth=0, sizes=(3,), only_last=True, ridge=1e-9)
    rows = [(0, [0], 1.0, 1)] * 50 + [(0, [1], -1.0, 1)] * 50 + [(0, [2], 1.0, 1)] * 50
    choice = at(query, 1e4)
    picked = int(choice.answer(histogram(query, rows), stream())[0])
    assert bool(query.candidate_only[picked])
    assert query.candidate_bin[picked] == 1


@pytest.mark.parametrize(
    ("changes", "gain_range", "named"),
    [
        ({}, 0, "bounded range"),
        ({"n_scores": 3}, RANGE, "n_scores=3"),
        ({"ridge": 0.0}, RANGE, "ridge=0.0"),
        ({"ridge": float("nan")}, RANGE, "ridge=nan"),
        ({"candidate_feature": np.array([], np.uint16)}, RANGE, "at least one"),
        ({"candidate_bin": np.array([9], np.uint8)}, RANGE, "bins of its features"),
        ({"candidate_feature": np.array([1], np.uint16)}, RANGE, "bins of its features"),
    ],
)
def test_choices_refuse_queries(changes, gain_range, named):
    one = {
        "candidate_feature": np.array([0], np.uint16),
        "candidate_bin": np.array([0], np.uint8),
        "candidate_only": np.array([False] * (0 if "at least" in named else 1), bool),
    }
    if "at least" in named:
        one["candidate_bin"] = np.array([], np.uint8)
    with pytest.raises(PlanError, match=named):
        at(choice_query(depth=0, sizes=(5,), **(one | changes)), gain_range=gain_range)


def test_choices_refuse_a_price_of_nothing():
    with pytest.raises(PlanError, match="uniform"):
        at(choice_query(), Fraction(1, MAX_D))
