"""A class that the kernels do not know is refused before the charge, whatever recipe it comes through."""

from dataclasses import fields, replace
from itertools import product
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from neighbours import FEATURES, SCHEMAS, some_rows
from plans import PLANS
from private.cases import ALL, KINDS, gradient_of, queries_of, shape_of
from thinned import one_of_each, thinned

from dpgb_dask import DPGBClassifier, DPGBRegressor, losses
from dpgb_dask.components.trees.budgets import Pricing
from dpgb_dask.components.trees.leaves import Leaf
from dpgb_dask.components.trees.stage import Trees
from dpgb_dask.contracts.plan import Budget, Execution, Shape, Stage
from dpgb_dask.contracts.queries import QUERIES, RowDraw
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels import gradient as gradient_kernels
from dpgb_dask.losses import GRADIENTS, LOSSES
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.rounds.local import LocalRounds
from dpgb_dask.private.sensitivity import sensitivity
from dpgb_dask.recipes import RECIPES
from dpgb_dask.training.fit import fit

SERVED = [(name, kind) for name, plan in PLANS.items() for kind in plan.kinds]
WITH_TREES = [name for name, plan in RECIPES.items() if isinstance(plan.stages[-1], Trees)]


class Duck:
    """Anything that another object has, in a class of its own."""

    def __init__(self, known):
        self.known = known

    def __getattr__(self, name):
        return getattr(self.known, name)


def heir(known):
    """A value of a class that inherits all."""
    mine = type(f"My{type(known).__name__}", (type(known),), {})
    return mine(**{field.name: getattr(known, field.name) for field in fields(known)})


FOREIGN = [heir, Duck]


def check_untouched(ledger):
    assert [entry.kind for entry in ledger.history("people")] == ["OPEN"]


def check_refused(ledger, kind, match, **options):
    """A fit on an account raises, and charges nothing."""
    estimator = DPGBRegressor if kind == "numeric" else DPGBClassifier
    asked = {"schema": SCHEMAS[kind], "ledger": ledger, "account": "people", **options}
    with pytest.raises(PlanError, match=match):
        estimator(epsilon=1.0, delta=1e-6, **asked).fit(*some_rows(kind, 30))
    check_untouched(ledger)


@pytest.mark.parametrize(("recipe", "kind", "made"), one_of_each(product(SERVED, FOREIGN)))
def test_a_foreign_loss_is_refused_before_the_charge(recipe, kind, made, ledger):
    loss = made(losses.default_loss(kind))
    check_refused(ledger, kind, "no Loss of this library", recipe=PLANS[recipe], loss=loss)


@pytest.mark.parametrize(("recipe", "made"), one_of_each(product(WITH_TREES, FOREIGN)))
def test_a_foreign_gradient_is_refused_before_the_charge(recipe, made, ledger):
    plan = RECIPES[recipe]
    trees = plan.stages[-1]

    def gradient(self, shape):
        return made(type(trees.leaf).gradient(self, shape))

    leaf = type("MyLeaf", (type(trees.leaf),), {"gradient": gradient})
    asked = {field.name: getattr(trees.leaf, field.name) for field in fields(trees.leaf)}
    mine = replace(plan, stages=(*plan.stages[:-1], replace(trees, leaf=leaf(**asked))))
    check_refused(ledger, "binary", "no gradient that the kernels know", recipe=mine)


@pytest.mark.parametrize("part", ["split", "candidates", "features", "rows"])
@pytest.mark.parametrize("recipe", WITH_TREES)
def test_foreign_parts_of_trees_are_refused(recipe, part):
    trees = RECIPES[recipe].stages[-1]
    with pytest.raises(PlanError, match="no part of trees that they know"):
        replace(trees, **{part: Duck(getattr(trees, part))})


@pytest.mark.parametrize("part", ["leaf", "budget"])
def test_a_rule_that_is_none_is_refused(part):
    trees = RECIPES["fdp-tr-newton"].stages[-1]
    for wrong in (object(), type(getattr(trees, part)), None):
        with pytest.raises(PlanError, match="no part of trees"):
            replace(trees, **{part: wrong})


@pytest.mark.parametrize("base", [Stage, Leaf, Pricing])
def test_a_rule_without_its_methods_cannot_be_made(base):
    with pytest.raises(TypeError, match="abstract"):
        type("Mine", (base,), {})()


@pytest.mark.parametrize("recipe", PLANS)
def test_a_foreign_stage_declares_in_the_known_form(recipe):
    plan = PLANS[recipe]
    with pytest.raises(PlanError, match="no stage"):
        replace(plan, stages=(*plan.stages, object()))
    with pytest.raises(PlanError, match="no stage"):
        replace(plan, stages=(*plan.stages, Trees))

    class Undeclared(type(plan.stages[-1])):
        def declare(self, shape):
            return Duck(super().declare(shape))

    last = plan.stages[-1]
    mine = Undeclared(**{field.name: getattr(last, field.name) for field in fields(last)})
    with pytest.raises(PlanError, match="does not declare a Demand"):
        replace(plan, stages=(*plan.stages[:-1], mine)).demand(Shape(schema=SCHEMAS["binary"]))


@pytest.mark.parametrize("recipe", thinned(PLANS, every=2))
@pytest.mark.parametrize("made", FOREIGN)
def test_a_foreign_question_of_a_stage_opens_nothing(recipe, made, ledger):
    """A stage from outside decides what to ask, in the questions that there are: another one reaches no rows."""
    plan = PLANS[recipe]
    first = next(
        k for k, s in enumerate(plan.stages) if s.declare(Shape(schema=SCHEMAS["binary"])).n_queries
    )

    class AsksOther(type(plan.stages[first])):
        def next_query(self, state):
            return made(super().next_query(state))

    stages = list(plan.stages)
    stages[first] = AsksOther(
        **{field.name: getattr(stages[first], field.name) for field in fields(stages[first])}
    )
    asking = DPGBClassifier(
        epsilon=0.3, delta=1e-6, schema=SCHEMAS["binary"], recipe=replace(plan, stages=tuple(stages)),
        ledger=ledger, account="people",
    )  # fmt: skip
    with (
        mock.patch.object(LocalRounds, "_survey", side_effect=AssertionError("rows were asked")),
        mock.patch.object(LocalRounds, "fingerprint", return_value=0),
        pytest.raises(PlanError, match="without a stated sensitivity"),
    ):
        asking.fit(*some_rows("binary", 30))
    assert "OPENED" not in [entry.kind for entry in ledger.history("people")]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_foreign_queries_have_no_sensitivity(kind, name):
    query = queries_of(kind)[name]
    assert type(query) in QUERIES
    for made in FOREIGN:
        with pytest.raises(PlanError, match="without a stated sensitivity"):
            sensitivity(made(query), shape_of(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("made", FOREIGN)
def test_foreign_fields_of_a_query_are_refused(kind, made):
    query = queries_of(kind)["trees"]
    for wrong in (
        {"gradient": made(query.gradient)},
        {"splits": made(query.splits)},
        {"rows": made(RowDraw("part", 0, 0, 1))},
    ):
        with pytest.raises(PlanError):
            replace(query, **wrong)
    pairs = queries_of(kind)["pairs"]
    with pytest.raises(PlanError):
        replace(pairs, pairs=tuple(map(made, pairs.pairs)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("made", FOREIGN)
def test_kernels_leave_no_gradient_unwritten(kind, made):
    gradient = gradient_of(kind)
    assert type(gradient) in GRADIENTS
    n_scores = 3 if kind == "multiclass" else 1
    label = np.zeros(4, np.int32 if kind == "numeric" else np.uint8)
    score, out = np.zeros((n_scores, 4), np.int32), np.zeros((n_scores, 4), np.int64)
    with pytest.raises(PlanError, match="no gradient that the kernels know"):
        gradient_kernels.write(made(gradient), score, label, None, out)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_with_words_of_another_is_refused(name):
    loss = LOSSES[name]
    kind = loss.kinds[0]
    Shape(schema=SCHEMAS["binary"] if kind == "binary" else Schema(FEATURES, target_bounds=(0, 1)))
    for wrong in ({"name": "mine"}, {"kinds": ("binary", "multiclass", "numeric")}):
        with pytest.raises(PlanError, match="no Loss of this library"):
            losses.get(replace(loss, **wrong))
        with pytest.raises(PlanError, match="no Loss of this library"):
            Shape(schema=SCHEMAS[kind], loss=replace(loss, **wrong))


def test_a_loss_for_another_target_is_refused():
    with pytest.raises(PlanError, match="does not serve a binary target"):
        Shape(schema=SCHEMAS["binary"], loss=LOSSES["squared_error"])
    with pytest.raises(PlanError, match="does not serve a numeric target"):
        Shape(schema=SCHEMAS["numeric"], loss=LOSSES["log_loss"])


@pytest.mark.parametrize("named", [True, False])
def test_a_source_has_units_exactly_if_the_schema_names_one(named, ledger):
    schema = Schema({"a": (0.0, 1.0)}, classes=[0, 1], unit_id="person" if named else None)
    other = Schema({"a": (0.0, 1.0)}, classes=[0, 1], unit_id=None if named else "person")
    x = pd.DataFrame({"a": np.linspace(0, 1, 20), "person": np.arange(20) // 2})
    y = np.arange(20) % 2
    given = {
        "plan": RECIPES["fdp-tr-newton"], "budget": Budget(epsilon=1.0, delta=1e-6), "execution": Execution(),
        "ledger": ledger, "account": "people", "seed": 0,
    }  # fmt: skip
    whole = read_source(x if named else x[["a"]], y, None, schema, schema.unit_id)
    bare = read_source(x if not named else x[["a"]], y, None, other, other.unit_id)
    with pytest.raises(PlanError, match="unit_id="):
        fit(replace(bare, schema=schema), shape=Shape(schema=schema), **given)
    with pytest.raises(PlanError, match="another schema"):
        fit(
            replace(
                whole, schema=Schema({"a": (0.0, 2.0)}, classes=[0, 1], unit_id=schema.unit_id)
            ),
            shape=Shape(schema=schema),
            **given,
        )
    check_untouched(ledger)
