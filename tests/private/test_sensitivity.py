"""Sensitivities against neighbouring data sets: never exceeded, and attained within 30 %."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from private.cases import (
    ALL,
    BINS,
    KEY,
    N_BINS,
    ROWS_KEY,
    choice_of,
    gradient_of,
    model_of,
    opened,
    queries_of,
    rows_of,
    shape_of,
    splits_of,
    upper,
)
from thinned import thinned

from dpgb_dask import Schema
from dpgb_dask.contracts.model import Model, Splits
from dpgb_dask.contracts.plan import Execution, Shape
from dpgb_dask.contracts.queries import NodeSumsQuery, Query
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import GRAD_ONE, LogLoss, logistic_gradient
from dpgb_dask.private.reading.chunks import Reading
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.rounds.local import LocalRounds
from dpgb_dask.private.sensitivity import _with_rounding, sensitivity

EXECUTION = Execution(n_threads=1)


def read(kind, rows, max_weight, weight_bits):
    shape = shape_of(kind, max_weight, weight_bits)
    reading = Reading(shape, KEY, rows_key=ROWS_KEY)
    return LocalRounds(read_source(*rows, shape.schema), reading, EXECUTION)


def answer(kind, rows, model, query, weight_bits, max_weight):
    rounds = read(kind, rows, max_weight, weight_bits)
    try:
        return opened(rounds.ask(model, query))
    finally:
        rounds.close()


WEIGHTS = [(1, 0), (3, 2)]


@pytest.fixture(scope="module", params=WEIGHTS, ids=["no weights", "weights"])
def neighbours(request):
    """50 rows, and the same with one more, each read once for all queries and models; and how rows weigh."""
    opened_rounds = {}

    def of(kind):
        if kind not in opened_rounds:
            x, y, w = rows_of(kind, 50)
            more = [
                (pd.concat([x, a]), np.append(y, b), np.append(w, c))
                for a, b, c in extra_rows(kind, np.array([np.inf]))
            ]
            opened_rounds[kind] = [read(kind, rows, *request.param) for rows in [(x, y, w), *more]]
        return opened_rounds[kind]

    yield *request.param, of
    for many in opened_rounds.values():
        for rounds in many:
            rounds.close()


def flat_model(kind, score):
    """A model whose score is the same for every row."""
    n_scores = 3 if kind == "multiclass" else 1
    tables = tuple(np.zeros((n, n_scores), np.int32) for n in N_BINS)
    intercept = np.zeros(n_scores, np.int32)
    intercept[0] = score
    trees = model_of(kind).trees
    return Model(BINS, intercept, tables, trees=replace(trees, value=0 * trees.value))


def extreme_models(kind):
    scores = np.array([-60, -1, -0.25, 0, 0.25, 0.6103, 1, 60]) * 65536
    if kind == "numeric":
        scores = np.array([-65536, -20001, -1, 0, 40001, 40002, 65536])
    return [flat_model(kind, int(score)) for score in scores] + [model_of(kind)]


def extra_rows(kind, weight):
    """Rows to add: ordinary, extreme and broken values of everything."""
    targets = [-1.0, 1.0, 3.0, np.inf, np.nan] if kind == "numeric" else [0.0, 1.0, 2.0, np.nan]
    for target in targets:
        for a in (0.0, np.inf, np.nan):
            yield pd.DataFrame({"a": [a], "b": [7.0], "c": [9.0]}), np.array([target]), weight


@pytest.mark.parametrize(("kind", "name"), thinned(ALL, every=2))
def test_sensitivity_is_never_exceeded_and_nearly_attained(kind, name, neighbours):
    max_weight, weight_bits, rounds_of = neighbours
    query = queries_of(kind, weight_bits)[name]
    bound = sensitivity(query, shape_of(kind, max_weight, weight_bits))
    worst, worst_l1 = 0, 0
    for model in extreme_models(kind):
        before, *others = [opened(rounds.ask(model, query)) for rounds in rounds_of(kind)]
        for after in others:
            worst = max(worst, sum(int(d) ** 2 for d in after - before))
            worst_l1 = max(worst_l1, sum(abs(int(d)) for d in after - before))
    assert 0.7**2 * bound.l2_squared < worst <= bound.l2_squared
    assert 0.7 * bound.l1 < worst_l1 <= bound.l1
    assert (bound.choice_range > 0) == name.endswith("choice")


def gains(sums, query, weight_bits):
    """Gain of every candidate at the root, in gradient steps² and natural weights."""
    g, h = (
        Fraction(1, 1 << weight_bits) * sums.reshape(-1, 2)[:, k].astype(object) for k in (0, 1)
    )
    n = h / GRAD_ONE
    out = []
    for f, b, only in zip(
        query.candidate_feature, query.candidate_bin, query.candidate_only, strict=True
    ):
        bins = np.arange(sum(query.sizes))
        start = sum(query.sizes[:f])
        inside = (bins >= start) & (bins < start + query.sizes[f])
        right = inside & ((bins == start + b) if only else (bins > start + b))
        sides = right, inside & ~right
        out.append(
            sum(g[side].sum() ** 2 / (n[side].sum() + Fraction(query.ridge)) for side in sides)
        )
    return out


@pytest.mark.parametrize(("max_weight", "weight_bits"), thinned(WEIGHTS[::-1], every=2))
@pytest.mark.parametrize("kind", ["binary", "clamped", "numeric"])
def test_the_range_of_gains_is_never_exceeded_and_nearly_attained(kind, max_weight, weight_bits):
    root = upper(splits_of(1), 0)
    clamped = {}
    if kind == "clamped":  # to what a model of the start score alone can reach: |g| <= 1/2
        kind = "binary"
        clamped["gradient"] = LogLoss().gradient("binary", 1, second="count", hess_scale=1.0)
        clamped["gradient"] = clamped["gradient"].within(0, 0)
    query = choice_of(kind, root, weight_bits, **clamped)
    bound = sensitivity(query, shape_of(kind, max_weight, weight_bits)).choice_range
    x, y, w = rows_of(kind, 400)
    # feature a sends gradients of one sign to the left, and feature c those of the other sign
    up = np.arange(400) % 2 == 0
    split = x.assign(a=np.where(up, 2.0, -2.0), c=np.where(up, 1.0, 0.0))
    target = np.where(up, -1.0, 3.0) if kind == "numeric" else np.where(up, 0.0, 1.0)
    model = flat_model(kind, 0)
    worst = 0
    for rows in ((x, y, w), (split, target, np.full(400, np.inf))):
        before = gains(
            answer(kind, rows, model, query, weight_bits, max_weight), query, weight_bits
        )
        for value in (-2.0, 2.0, np.nan):
            for category in (0.0, 1.0, np.nan):
                for label in (-1.0, 0.0, 1.0, 3.0):
                    more = pd.DataFrame({"a": [value], "b": [0.0], "c": [category]})
                    joined = [pd.concat([rows[0], more]), np.append(rows[1], label)]
                    joined.append(np.append(rows[2], np.inf))
                    sums = answer(kind, joined, model, query, weight_bits, max_weight)
                    change = [
                        a - b for a, b in zip(gains(sums, query, weight_bits), before, strict=True)
                    ]
                    worst = max(worst, max(change) - min(change))
    assert 0.7 * bound < worst <= bound


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"gradient": gradient_of("binary")}, "second='count'"),
        ({"ridge": 0.0}, "ridge=0.0"),
        ({"ridge": float("nan")}, "ridge=nan"),
        ({"n_scores": 3}, "n_scores=3"),
    ],
)
def test_a_choice_whose_gain_has_no_range_raises(options, match):
    with pytest.raises(PlanError, match=match):
        sensitivity(choice_of("binary", splits_of(1), **options), shape_of("binary"))


def test_a_query_in_other_weight_steps_raises():
    with pytest.raises(PlanError, match="weight_bits=2"):
        sensitivity(queries_of("binary", 2)["count"], shape_of("binary"))


def test_an_unknown_query_has_no_sensitivity():
    with pytest.raises(PlanError, match="without a stated sensitivity"):
        sensitivity(Query(label="", price=1), shape_of("binary"))


@pytest.mark.parametrize("n", [1, 2, 4, 6, 8, 16, 24, 48])
def test_the_rounding_of_weights_is_added_in_whole_steps_and_never_too_little(n):
    """(‖a‖ + ‖b‖)² for a row's values a and a step on each of them, b: the roots of both are rounded up."""
    for squared in (0, 1, 2, 3, 4, 5, 8, 9, 10, 16, 10**12 - 1, 10**12, 10**12 + 1):
        both, absolute = _with_rounding(n, squared, 7)
        assert (both - squared - n) ** 2 >= 4 * squared * n  # in integers: twice ‖a‖ · ‖b‖, squared
        assert both <= squared + n + 2 * (math.isqrt(squared) + 1) * (math.isqrt(n) + 1)
        assert absolute == 7 + n


def test_a_row_adds_to_one_contrast_of_each_feature_and_to_the_total():
    m = 9
    asked = NodeSumsQuery(
        label="q", price=1, gradient=logistic_gradient(0.5, 0.5), n_scores=1,
        splits=Splits.plain(np.zeros((1, 0), np.uint16), np.zeros((1, 0), np.uint8)),
        features=np.arange(m, dtype=np.uint16), sizes=(2,) * m, sides=np.zeros((1, 2 * m), np.uint8),
    )  # fmt: skip
    schema = Schema({f"x{j}": (0, 1) for j in range(m)}, classes=[0, 1])
    assert asked.total_times > 1
    found = sensitivity(asked, Shape(schema=schema))
    assert found.l1 == (m + asked.total_times) * asked.gradient.l1
    assert found.l2_squared == (m + asked.total_times**2) * asked.gradient.l2_squared
