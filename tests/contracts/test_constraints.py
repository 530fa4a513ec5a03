"""Constraints in scikit-learn's forms: what they say by feature, and what is refused before any charge."""

import itertools

import numpy as np
import pytest

from dpgb_dask.contracts.constraints import Constraints, Interactions
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import PlanError
from dpgb_dask.parameters import constraints_of

FEATURES = {"a": (0, 1), "b": (0, 1), "c": ["x", "y"], "d": (0, 1)}
SCHEMA = Schema(FEATURES, classes=[0, 1])


@pytest.mark.parametrize(
    "given",
    [[1, 0, 0, -1], np.array([1, 0, 0, -1]), (1.0, 0, 0, -1.0), {"d": -1, "a": 1}, {"a": np.int64(1), "b": 0, "d": -1}],
)  # fmt: skip
def test_directions_are_an_array_or_a_dict(given):
    found = constraints_of(given, None, SCHEMA)
    assert found.monotonic == (("a", 1), ("d", -1))
    np.testing.assert_array_equal(found.directions(SCHEMA), [1, 0, 0, -1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 0], "2 entries for 4 features"),
        ([2, 0, 0, 0], "give -1, 0 or 1"),
        ({"e": 1}, r"unexpected feature names: \['e'\]"),
        ({"a": "up"}, "'up': give -1, 0 or 1"),
        ({"a": True}, "give -1, 0 or 1"),
        ("a", "must be None, an array"),
        (7, "must be None, an array"),
        ([0, 0, 1, 0], "'c', which is no numeric feature"),
    ],
)
def test_a_direction_that_cannot_be_kept_raises(given, message):
    with pytest.raises(PlanError, match=message):
        Shape(schema=SCHEMA, constraints=constraints_of(given, None, SCHEMA))


def test_several_classes_have_no_direction():
    schema = Schema(FEATURES, classes=[0, 1, 2])
    with pytest.raises(PlanError, match="not supported for more than two classes"):
        Shape(schema=schema, constraints=constraints_of([1, 0, 0, 0], None, schema))


def test_groups_are_positions_or_names_and_the_rest_is_one_more():
    for given in ([{0, 1}], (["a", "b"],), [("b", 0, "a")], [np.array([1, 0])]):
        found = constraints_of(None, given, SCHEMA)
        assert found.interactions == (("a", "b"), ("c", "d"))
    assert constraints_of(None, "no_interactions", SCHEMA).interactions == tuple(map(tuple, "abcd"))
    assert constraints_of(None, "pairwise", SCHEMA).interactions == "pairwise"
    assert not constraints_of(None, None, SCHEMA)
    assert not constraints_of([0, 0, 0, 0], None, SCHEMA)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("none", "must be None, 'pairwise'"),
        ([1, 2], "sequence of groups"),
        ([[4]], "holds 4: give names"),
        ([["e"]], "holds 'e'"),
        ([[-1]], "holds -1"),
        ([[True]], "holds True"),
    ],
)
def test_groups_of_other_forms_raise(given, message):
    with pytest.raises(PlanError, match=message):
        constraints_of(None, given, SCHEMA)


def test_a_shape_refuses_constraints_of_another_schema():
    for wrong in (
        Constraints(monotonic=(("e", 1),)),
        Constraints(monotonic=(("a", 3),)),
        Constraints(interactions=(("a", "b"),)),
        Constraints(interactions=(("a", "b", "c", "d"), ())),
    ):
        with pytest.raises(PlanError):
            Shape(schema=SCHEMA, constraints=wrong)


@pytest.mark.parametrize(
    "groups", [[{0, 1}], [{0, 1}, {1, 2, 3}], "pairwise", "no_interactions", [{0, 1, 2, 3}]]
)
def test_what_may_follow_are_the_groups_that_hold_what_was_used(groups):
    found = constraints_of(None, groups, SCHEMA)
    rule = Interactions.of(found, SCHEMA)
    sets = found.interactions
    if sets == "pairwise":
        sets = itertools.combinations("abcd", 2)
    sets = [{"abcd".index(name) for name in group} for group in sets]
    paths = [
        path
        for path in map(set, itertools.product(range(4), repeat=3))
        if any(path <= s for s in sets)
    ]
    used = np.array([[k in path for k in range(4)] for path in [set(), *paths]])
    for row, path in zip(rule.allowed(used), [set(), *paths], strict=True):
        assert set(np.flatnonzero(row)) == set().union(*(s for s in sets if path <= s))
    may = Shape(schema=SCHEMA, constraints=found)
    pairs = sum(
        {i, j} <= s
        for i, j in itertools.combinations(range(4), 2)
        for s in [set().union(*(s for s in sets if {i, j} <= s))]
    )
    assert may.n_pairs == pairs
