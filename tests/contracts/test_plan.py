"""Plans that would fail after their charge are refused before it."""

from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import pytest

from dpgb_dask import DPGBClassifier
from dpgb_dask.components.auto.chosen import ChosenTrees
from dpgb_dask.components.auto.forest import Forest
from dpgb_dask.components.auto.pairs import Pairs
from dpgb_dask.components.trees.budgets import Shares
from dpgb_dask.components.trees.candidates import PublicBins
from dpgb_dask.components.trees.leaves import GradientStep
from dpgb_dask.components.trees.sampling import Ensembles, PoissonRows
from dpgb_dask.components.trees.splits import ExponentialSplit
from dpgb_dask.components.trees.stage import Trees
from dpgb_dask.contracts.model import MAX_BINS
from dpgb_dask.contracts.plan import (
    Budget,
    Demand,
    Facts,
    Needs,
    NoisyCount,
    Plan,
    PublicRng,
    Shape,
    Stage,
    State,
)
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.controller.accounting import total_price
from dpgb_dask.controller.ledger_book import CHOICES
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels.warming import ALWAYS, GRADIENTS, GROUPS
from dpgb_dask.losses import Gradient
from dpgb_dask.recipes import AUTO, RECIPES
from dpgb_dask.training.fit import facts


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ((PoissonRows(),), {"pure": True}, "draws_rows=True"),
        ((Ensembles(),), {}, "draws_rows=True"),
        ((PoissonRows(),), {"draws_rows": True}, "gain nothing under Gaussian noise"),
        ((PoissonRows(), PoissonRows()), {"draws_rows": True, "pure": True}, "2 stages"),
        ((Ensembles(), PoissonRows()), {"draws_rows": True, "pure": True}, "2 stages"),
    ],
)
def test_draws_that_could_not_be_paid_for_raise(rows, options, message):
    stages = tuple(Trees(n_trees=2, share=0.5, rows=part) for part in rows)
    with pytest.raises(PlanError, match=message):
        Plan("mine", "here", (PublicBins(), *stages), **options)


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (Trees(depth=9, share=0.1), Forest(), "Forest of 'mine' cannot add to trees deeper than 8"),
        (Trees(share=0.1), Trees(share=0.1), "Trees of 'mine' cannot add to trees, .* depth=4"),
        (ChosenTrees(), Trees(share=0.1), "Trees of 'mine' cannot add to trees"),
        (ChosenTrees(), ChosenTrees(), "ChosenTrees of 'mine' cannot add to trees"),
        (Forest(), Trees(), "Trees of 'mine' cannot add to trees"),
        (Forest(), Forest(), "Forest of 'mine' may take the whole budget"),
        (Trees(), Forest(), "Trees of 'mine' may take the whole budget"),
        (Trees(), Pairs(), "Trees of 'mine' may take the whole budget"),
    ],
    ids=str,
)
def test_stages_that_leave_nothing_to_others_or_lose_their_trees_raise(first, then, message):
    bins, *begun = AUTO.stages[:3]
    plan = Plan("mine", "here", (bins, *begun, first, then))
    with pytest.raises(PlanError, match=message):
        plan.demand(Shape(schema=Schema({"a": (0, 1), "b": (0, 1)}, classes=[0, 1])))


def test_a_choice_among_several_scores_raises():
    halves = Shares(candidates=0.0, splits=0.5, leaves=0.5)
    trees = Trees(n_trees=2, split=ExponentialSplit(), leaf=GradientStep(), budget=halves)
    plan = Plan("mine", "here", (PublicBins(), trees))
    plan.demand(Shape(schema=Schema({"a": (0, 1)}, classes=[0, 1])))
    with pytest.raises(PlanError, match="n_scores=3"):
        plan.demand(Shape(schema=Schema({"a": (0, 1)}, classes=[0, 1, 2])))


@dataclass(frozen=True, slots=True)
class Silent(Stage):
    """A stage that says nothing but what it must."""

    bins: int = 2

    def declare(self, shape):  # noqa: ARG002
        return Demand(0.0, 0.0, 0)

    def next_query(self, state):  # noqa: ARG002
        return None

    def update(self, state, query, released):  # noqa: ARG002
        return state


SHAPE = Shape(schema=Schema({"a": (0, 1)}, classes=[0, 1]))


@pytest.mark.parametrize("name", RECIPES)
def test_a_stage_that_asks_nothing_may_come_last(name):
    """Post-processing alone, as of a stage of one's own."""
    plan = RECIPES[name]
    asked = plan.demand(SHAPE)
    assert replace(plan, stages=(*plan.stages, Silent())).demand(SHAPE) == asked


def test_a_stage_that_says_nothing_has_the_defaults():
    stage = Silent()
    said = (stage.makes_bins, stage.starts, stage.is_random, stage.refines_bins)
    assert not any(said)
    assert stage.row_draw is None
    assert stage.public_bins(SHAPE) is None
    assert stage.most_bins(SHAPE) == (MAX_BINS,)
    assert stage.needs(SHAPE, (4,)) == Needs()
    assert stage.parameters() == frozenset()
    assert stage.brief() == stage
    with pytest.raises(PlanError, match="makes no bins"):
        Plan("mine", "here", (stage,))
    plan = Plan("mine", "here", (PublicBins(), stage))
    assert [b.n_bins for b in plan.public_bins(SHAPE)] == [33]
    assert plan.parameters() == {"max_bins"}


def test_what_is_no_stage_is_refused():
    class Undeclared(
        Silent.__base__
    ):  # a Stage, but no dataclass: its options would not be in the digest
        declare, next_query, update = Silent.declare, Silent.next_query, Silent.update

    for wrong in (object(), Silent, Undeclared()):
        with pytest.raises(PlanError, match="is no stage of 'mine'"):
            Plan("mine", "here", (PublicBins(), wrong))


def test_a_stage_prints_all_that_the_digest_of_its_plan_should_see():
    @dataclass(frozen=True)
    class Hides(Silent):
        hidden: int = field(default=1, repr=False)

    @dataclass(frozen=True)
    class Says(Silent):
        option: Any = 1

        def __repr__(self):
            return "Says()"

    @dataclass
    class Thaws(Silent.__base__):
        declare, next_query, update = Silent.declare, Silent.next_query, Silent.update

    @dataclass(frozen=True)
    class Holds(Silent):
        option: Any = None

    Plan("mine", "here", (PublicBins(), Holds(Holds())))
    for wrong in (Hides(), Says(), Thaws(), Holds(Says())):
        with pytest.raises(PlanError, match="prints all of its fields"):
            Plan("mine", "here", (PublicBins(), wrong))


def test_a_recipe_is_a_plan_and_no_subclass():
    class Changing(Plan):
        """It could be pure to the report alone."""

    plan = Changing("mine", "here", (PublicBins(), Silent()))
    with pytest.raises(PlanError, match="recipe is a Changing"):
        DPGBClassifier(epsilon=1.0, schema=SHAPE.schema, recipe=plan).fit([[0.5]], [0])


def test_a_parameter_is_set_wherever_it_is_taken_and_named_as_it_was_given():
    plan = Plan("mine", "here", (PublicBins(), Trees(), Trees(n_trees=3)))
    assert plan.parameters() == {"n_estimators", "learning_rate", "max_depth", "max_bins"}
    set_all = plan.with_parameter("n_estimators", 7)
    assert [stage.n_trees for stage in set_all.stages[1:]] == [7, 7]
    assert [s.leaf.learning_rate for s in plan.with_parameter("learning_rate", 0.5).stages[1:]] == [
        0.5,
        0.5,
    ]
    with pytest.raises(PlanError, match=r"^max_bins=1 "):
        plan.with_parameter("max_bins", 1)
    with pytest.raises(PlanError, match=r"^learning_rate=0 "):
        plan.with_parameter("learning_rate", 0)


@dataclass(frozen=True)
class Width(Facts):
    value: int


@dataclass(frozen=True)
class Height(Facts):
    value: int


def test_records_are_kept_by_their_class():
    state = State.first(SHAPE, 0, Budget(epsilon=1.0, delta=1e-6), PRICE_ONE)
    state = state.with_fact(Width(1)).with_fact(Height(2)).with_fact(Width(3))
    assert (state.fact(Width).value, state.fact(Height).value) == (3, 2)
    assert len(state.facts) == 2
    with pytest.raises(PlanError, match="No stage has given Facts0"):
        state.fact(type("Facts0", (Facts,), {}))


def test_a_plan_names_the_kernels_of_its_queries():
    shape = Shape(schema=Schema({"x": (0, 1)}, classes=[0, 1]))
    stages = "directions", "main sums", "shrunk rows", "pair sums", "levels", "trees"
    auto = (*ALWAYS, *stages, "logistic gradient")
    assert RECIPES["auto"].kernels(shape) == auto
    assert RECIPES["dp-ebm-newton"].kernels(shape) == (*ALWAYS, "trees", "logistic gradient")
    assert "levels" in RECIPES["fdp-hist-newton"].kernels(shape)
    assert "draws" in RECIPES["dpboost"].kernels(shape)
    three = Shape(schema=Schema({"x": (0, 1)}, classes=[0, 1, 2]), max_weight=3)
    of_three = RECIPES["auto"].kernels(three)
    assert {"weights", "clipped softmax gradient", "sums of classes"} <= set(of_three)
    for plan in RECIPES.values():
        kinds = {"binary": shape, "multiclass": three}
        names = plan.kernels(kinds[plan.kinds[0]])
        assert set(names or ()) <= set(GROUPS), plan.name
    assert set(GRADIENTS) == {kind.__name__ for kind in get_args(Gradient)}


def test_a_plan_says_whether_it_asks_for_choices():
    choosing = {name for name, plan in RECIPES.items() if plan.chooses}
    assert choosing == {"auto", "dp-xgboost", "dpboost", "para", "seq"}
    shape = Shape(schema=Schema({"x": (0, 1)}, classes=[0, 1]))
    # in ε a choice costs what it costs, whatever follows
    assert {name for name, plan in RECIPES.items() if CHOICES in facts(plan, shape)} == {"auto"}


def test_a_stage_that_does_not_say_its_queries_has_all_kernels_compiled():
    plan = replace(RECIPES["auto"], stages=(*RECIPES["auto"].stages, Silent()))
    assert plan.kernels(Shape(schema=Schema({"x": (0, 1)}, classes=[0, 1]))) is None


def test_rows_are_few_below_three_standard_deviations_of_their_noise():
    for sd in (1.0, 40.0):
        assert NoisyCount(2.99 * sd, sd).is_few
        assert not NoisyCount(3.01 * sd, sd).is_few


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_budget_of_numpy_scalars_has_the_price_of_their_numbers(kind):
    given = Budget(epsilon=kind(1), delta=kind(0.25))
    assert (type(given.epsilon), type(given.delta)) == (float, float)
    assert total_price(given.epsilon, given.delta) == total_price(1.0, 0.25)
    assert type(Budget(epsilon=1, delta=kind(0)).delta) is float


@pytest.mark.parametrize("seed", [0, 7, (1 << 32) - 1, 1 << 32, 3 << 100])
@pytest.mark.parametrize("label", [(), (0,), ("splits", 4199), ("a", "é and more", 1 << 40)])
def test_a_public_stream_is_that_of_numpys_seed_sequence(seed, label):
    """As of the first release: the trees of a seed are reproducible."""
    numbers = [p if isinstance(p, int) else int.from_bytes(p.encode(), "little") for p in label]
    known = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *numbers])))
    drawn = PublicRng(seed).stream(*label)
    assert (drawn.integers(0, 1 << 60, 8) == known.integers(0, 1 << 60, 8)).all()
