"""Every recipe on neighbouring rows, with released answers replayed: no sums change by more than their sensitivity."""

from dataclasses import replace

import numpy as np
import pytest
from neighbours import (
    KINDS,
    SCHEMAS,
    TICKET,
    VALUES_OF_EVERY_KIND,
    check_neighbours,
    drive,
    open_local,
    some_rows,
    with_every_kind,
)
from outside.expectile import Expectile, Exponential
from plans import OUTSIDE, PLANS
from thinned import one_of_each, thinned

from dpgb_dask import recipes
from dpgb_dask.contracts.grid import FINE, Grid
from dpgb_dask.contracts.plan import Shape, weight_bits_for
from dpgb_dask.contracts.queries import (
    SHRINK_BITS,
    CellCountsQuery,
    DirectionSumsQuery,
    ProductSumsQuery,
    ReferenceSumsQuery,
)
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.private import sensitivity as private_bounds
from dpgb_dask.private.answering import shards
from dpgb_dask.private.sensitivity import sensitivity

SERVED = [(name, kind) for name, plan in sorted(PLANS.items()) for kind in sorted(plan.kinds)]
WEIGHTS = [4.0, 1e300, np.inf, np.nan, -1.0, 0.3]


@pytest.mark.parametrize(("name", "kind"), one_of_each(SERVED))
def test_one_row_moves_no_query_of_a_recipe_beyond_its_sensitivity(name, kind):
    plan = recipes.get(PLANS[name], kind=kind).brief()
    assert check_neighbours(plan, kind, Shape(schema=SCHEMAS[kind])) <= 20


@pytest.mark.parametrize(
    "name",
    [
        "auto",
        "dpboost",
        *thinned(["dp-ebm", "fdp-tr-newton", "feverless", "dp-xgboost"], 2),
    ],
)
def test_one_row_of_every_kind_of_feature_moves_no_query_beyond_its_sensitivity(name):
    schema = Schema(KINDS, classes=["no", "yes"])
    x, y = some_rows("binary", 300)
    added = [((0.0, 4.0, "x", *values), "yes") for values in VALUES_OF_EVERY_KIND]
    plan = recipes.get(PLANS[name], kind="binary").brief()
    shape = Shape(schema=schema)
    rows = with_every_kind(x), y
    assert check_neighbours(plan, "binary", shape, rows=rows, added=added) <= 16


def test_dates_count_as_many_features_as_they_have_parts():
    """One row moves one cell of each column; declared price and sensitivity count columns."""
    when = KINDS["when"]
    shape, one = (
        Shape(schema=Schema({"when": replace(when, parts=parts)}, classes=[0, 1]))
        for parts in (when.parts, ("days",))
    )
    assert (shape.n_features, one.n_features) == (3, 1)
    x = np.array([["2020-03-01 10:00"]], object)
    squared = []
    for each in (shape, one):
        query = CellCountsQuery(
            label="", price=1, weight_bits=0, n_uniform=FINE, sizes=Grid.of(each.schema, FINE).sizes
        )
        rounds = open_local(np.repeat(x, 5, axis=0), np.ones(5), each)
        raw = rounds.ask(None, query)
        sums = raw._open(TICKET)
        assert np.count_nonzero(sums) == each.n_features
        assert raw.sensitivity.l2_squared == each.n_features
        squared.append(raw.sensitivity.l2_squared)
        rounds.close()
    assert squared == [3, 1]


@pytest.mark.parametrize(("loss", "kind"), [(Expectile(0.9), "numeric"), (Exponential(), "binary")])
@pytest.mark.parametrize("name", ["fdp-tr-newton", "fdp-tr-gradient", "dp-ebm", "dp-xgboost"])
def test_one_row_moves_no_query_of_an_outside_loss_beyond_its_sensitivity(name, loss, kind):
    plan = recipes.get(name, kind=kind).brief()
    check_neighbours(plan, kind, Shape(schema=SCHEMAS[kind], loss=loss))


HEAVY = ["auto", "fdp-tr-newton-ih", "feverless", "dpboost", "dp-xgboost", "rich", *OUTSIDE]


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "binary") for name in HEAVY), ("rich", "multiclass")]
)
def test_a_heavy_row_moves_no_query_beyond_its_sensitivity(name, kind):
    plan = recipes.get(PLANS[name], kind=kind).brief()
    shape = Shape(schema=SCHEMAS[kind], max_weight=4, weight_bits=weight_bits_for(4))
    rng = np.random.default_rng(5)
    check_neighbours(plan, kind, shape, lambda n: rng.uniform(0, 5, n), WEIGHTS)


def uniform_weights(n):
    return np.random.default_rng(5).uniform(0, 5, n)


@pytest.mark.parametrize(
    ("name", "weight"),
    one_of_each([(name, w) for name in ("auto", "fdp-tr-newton") for w in (None, uniform_weights)]),
)
def test_a_row_of_a_heavy_class_moves_no_query_beyond_its_sensitivity(name, weight):
    plan = recipes.get(PLANS[name], kind="binary").brief()
    shape = Shape(
        schema=SCHEMAS["binary"],
        max_weight=4,
        weight_bits=weight_bits_for(4),
        class_weight=(0.3, 4.0),
    )
    check_neighbours(plan, "binary", shape, weight, WEIGHTS)


def test_a_row_of_the_heaviest_of_several_classes_moves_no_query_beyond_its_sensitivity():
    plan = recipes.get(PLANS["rich"], kind="multiclass").brief()
    shape = Shape(
        schema=SCHEMAS["multiclass"],
        max_weight=4,
        weight_bits=weight_bits_for(4),
        class_weight=(0.3, 4.0, 1.0),
    )
    check_neighbours(plan, "multiclass", shape, uniform_weights, WEIGHTS)


def ask_beside(name, schema, rows, more, weight, check):
    """Ask some rows, and beside them the same with one more, of either class; check every query's moves."""
    x, y = rows
    shape = Shape(schema=schema)
    if weight is not None:
        shape = Shape(schema=schema, max_weight=4, weight_bits=weight_bits_for(4))
    w = None if weight is None else weight(len(y))
    others = [
        open_local(
            np.vstack([x, row]),
            np.append(y, label),
            shape,
            None if w is None else np.append(w, 1e300),
        )
        for row in more
        for label in ("no", "yes")
    ]

    def check_bound(query, bound, sums, theirs):
        assert bound == sensitivity(query, shape)
        check(query, bound, sums, theirs)

    alone = open_local(x, y, shape, w)
    drive(recipes.get(name, kind="binary").brief(), shape, alone, others, check_bound)
    for rounds in (alone, *others):
        rounds.close()


MANY = Schema({f"f{j}": bool for j in range(12)}, classes=["no", "yes"])


def moved_by_rows_of_many_blocks(weight=None):
    """Ask rows with few flags, and with one row more of no, some or all flags; return moves over their bounds."""
    rng = np.random.default_rng(3)
    x = (rng.random((300, 12)) < 0.05).astype(object) == 1
    y = np.array(["no", "yes"], object)[(rng.random(300) < 0.4).astype(int)]
    squared, absolute = [], []

    def check(query, bound, sums, theirs):
        if isinstance(query, ReferenceSumsQuery):
            assert query.most_blocks <= 3  # of 13
            moves = [[int(d) for d in other - sums] for other in theirs]
            squared.append(max(sum(d * d for d in move) for move in moves) / bound.l2_squared)
            absolute.append(max(sum(map(abs, move)) for move in moves) / bound.l1)

    flags = [np.arange(12) < n_flags for n_flags in (0, 3, 12)]
    ask_beside("auto", MANY, (x, y), flags, weight, check)
    return squared, absolute


@pytest.mark.parametrize("weight", [None, uniform_weights])
def test_a_row_of_many_blocks_moves_no_query_beyond_its_sensitivity(weight):
    squared, absolute = moved_by_rows_of_many_blocks(weight)
    assert len(squared) == 2  # both rounds kept leaves back
    assert 1 / 1.3**2 < max(squared) <= 1
    assert 0.6 < max(absolute) <= 1


def test_weights_of_rows_that_are_too_large_by_30_percent_are_seen(monkeypatch):
    right = ReferenceSumsQuery.shrink.fget

    def too_large(query):
        return tuple(min(1 << SHRINK_BITS, int(1.3 * weight)) for weight in right(query))

    monkeypatch.setattr(ReferenceSumsQuery, "shrink", property(too_large))
    squared, _ = moved_by_rows_of_many_blocks()
    assert max(squared) > 1.5


NUMBERS = Schema({f"x{j}": (0.0, 1.0) for j in range(4)}, classes=["no", "yes"])


def moved_in_directions(weight=None):
    """Ask rows of four numbers, and with one row more that lies far out in all or differs; return moves over bounds."""
    rng = np.random.default_rng(4)
    level = rng.random((900, 1))
    x = np.clip(0.9 * level + 0.1 * rng.random((900, 4)), 0, 1)
    y = np.array(["no", "yes"], object)[(rng.random(900) < level[:, 0]).astype(int)]
    far = [[1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1], [1, 0, 0, 1], [np.nan] * 4]
    moved = {ProductSumsQuery: [], DirectionSumsQuery: []}

    def check(query, bound, sums, theirs):
        if type(query) in moved:
            squared = max(sum(int(d) ** 2 for d in other - sums) for other in theirs)
            moved[type(query)].append(squared / bound.l2_squared)

    ask_beside("additive", NUMBERS, (x, y), far, weight, check)
    return moved


@pytest.mark.parametrize("weight", [None, uniform_weights])
def test_a_row_far_out_moves_no_query_beyond_its_sensitivity(weight):
    moved = moved_in_directions(weight)
    assert [len(part) for part in moved.values()] == [1, 2]
    for part in moved.values():
        assert 1 / 1.3**2 < max(part) <= 1


@pytest.mark.parametrize("query", [ProductSumsQuery, DirectionSumsQuery])
def test_numbers_of_rows_that_are_too_large_by_30_percent_are_seen(monkeypatch, query):
    """As if the kernel did not divide them by enough."""
    name = "add_products" if query is ProductSumsQuery else "add_directions"
    right = getattr(shards, name)

    def too_large(*asked):
        before = asked[-1].copy()
        right(*asked)
        asked[-1][...] = before + (1.3 * (asked[-1] - before)).astype(np.int64)

    monkeypatch.setattr(shards, name, too_large)
    assert max(moved_in_directions()[query]) > 1.2


@pytest.mark.parametrize(
    ("name", "kind", "bound"),
    [
        ("dpboost", "binary", "_gain_range"),
        ("rich", "binary", "_shared_range"),
        ("rich", "multiclass", "_shared_range"),
    ],
)
def test_a_range_of_a_choice_that_is_too_small_by_30_percent_is_seen(
    monkeypatch, name, kind, bound
):
    right = getattr(private_bounds, bound)
    monkeypatch.setattr(private_bounds, bound, lambda *asked: int(right(*asked) / 1.3))
    plan = recipes.get(PLANS[name], kind=kind).brief()
    with pytest.raises(AssertionError, match="splits"):
        check_neighbours(plan, kind, Shape(schema=SCHEMAS[kind]))


def test_a_sensitivity_that_is_too_small_is_seen():
    plan = recipes.get("fdp-tr-newton", kind="binary").brief()
    shape = Shape(schema=SCHEMAS["binary"])
    x, y = some_rows("binary", 300)
    twice = open_local(np.vstack([x, x[:3]]), np.append(y, y[:3]), shape)
    alone = open_local(x, y, shape)
    beyond = []

    def check(_query, bound, sums, theirs):
        beyond.append(sum(int(d) ** 2 for d in theirs[0] - sums) > bound.l2_squared)

    drive(plan, shape, alone, [twice], check)
    assert any(beyond)  # three rows move more than one may
