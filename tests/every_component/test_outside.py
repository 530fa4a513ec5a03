"""A stage in a file outside the package has all that a shipped one has; the other tests here run on it too."""

import json
import pickle
import subprocess
import sys
from dataclasses import fields, replace
from typing import ClassVar
from unittest import mock

import numpy as np
import pytest
from forms import FORMS, SCHEMA, some_rows
from outside.linear import LINEAR, Slopes, Weights
from outside.tables import TABLES, Tables
from plans import OUTSIDE, PLANS

from dpgb_dask import DPGBClassifier, DPGBRegressor, Ledger, Schema
from dpgb_dask.components.bins import empty_model
from dpgb_dask.components.trees.candidates import with_edges
from dpgb_dask.contracts.plan import Budget, Plan, Shape, State
from dpgb_dask.contracts.queries import PRICE_ONE, RowDraw
from dpgb_dask.errors import PlanError
from dpgb_dask.recipes import RECIPES, get
from dpgb_dask.released.export import model_to_dict
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training.fit import facts

# (a value that every plan which has the parameter takes, one that none takes)
PARAMETERS = {
    "n_estimators": (3, 0),
    "learning_rate": (0.1, 2),
    "max_depth": (2, 0),
    "max_bins": (16, 1),
}


def estimator(name, **options):
    return DPGBClassifier(
        **{
            "epsilon": 4.0,
            "delta": 1e-6,
            "schema": SCHEMA,
            "recipe": PLANS[name],
            "random_state": 0,
        }
        | options
    )


def test_the_stages_lie_outside_the_package():
    for plan in OUTSIDE.values():
        assert plan.name not in RECIPES
        assert any(type(s).__module__.startswith("outside.") for s in plan.stages)
    assert LINEAR.is_random
    assert not TABLES.is_random
    assert TABLES.pure


@pytest.mark.parametrize("name", OUTSIDE)
def test_parameters_of_an_estimator_set_its_options(name, tmp_path):
    x, y = FORMS["numpy"](*some_rows(), tmp_path)
    taken = PLANS[name].parameters()
    few = {key: value for key, (value, _) in PARAMETERS.items() if key in taken}
    assert few.keys() == taken
    plan = get(PLANS[name], kind="binary", **few)
    labels = []
    clf = estimator(
        name, noise=SeededNoise(0), callbacks=[lambda label, *_: labels.append(label)], **few
    ).fit(x, y)
    assert 0 < len(labels) <= plan.demand(Shape(schema=SCHEMA)).n_queries
    if "max_bins" in taken:
        assert len(clf.model_.bins[1].edges) <= 15
    for key, (good, wrong) in PARAMETERS.items():
        bad = wrong if key in taken else good
        told = f"{key}={wrong}" if key in taken else f"{key}={good}: recipe '{name}' does not have"
        with pytest.raises(PlanError, match=told):
            estimator(name, **{key: bad}).fit(x, y)


def test_n_estimators_and_the_short_form_set_the_number_of_rounds():
    shape = Shape(schema=SCHEMA)
    for plan in (LINEAR, TABLES):
        assert get(plan, kind="binary", n_estimators=3).demand(shape).n_queries == 3
        assert plan.brief().demand(shape).n_queries == 2


def test_one_line_of_the_table_gives_it_a_name():
    x, y = some_rows()
    with mock.patch.dict(RECIPES, {LINEAR.name: LINEAR}):
        named = estimator(LINEAR.name, recipe=LINEAR.name, noise=SeededNoise(0)).fit(x, y)
    given = estimator(LINEAR.name, noise=SeededNoise(0)).fit(x, y)
    assert model_to_dict(named.model_) == model_to_dict(given.model_)


@pytest.mark.parametrize("name", OUTSIDE)
def test_it_learns_is_reported_and_charged_as_it_declares(name, tmp_path):
    x, y = FORMS["dask7"](*some_rows(), tmp_path)
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=40.0, delta=1e-5)  # a pure fit costs it more
    clf = estimator(name, ledger=ledger, account="people").fit(x, y)
    report = clf.privacy_report_
    assert report.private
    assert report.recipe == name
    assert 0.98 * report.declared < report.charged <= report.declared
    assert clf.score(*some_rows()) > 0.6  # more than one class alone
    assert clf.fit_id_ in str(ledger.history("people"))


@pytest.mark.slow
@pytest.mark.parametrize("name", OUTSIDE)
def test_its_model_is_read_where_its_file_is_not(name, tmp_path):
    x, y = some_rows()
    clf = estimator(name, noise=SeededNoise(0)).fit(x, y)
    clf.save(tmp_path / "model.json")
    np.save(tmp_path / "x.npy", x[:50])
    code = (
        "import json, sys, numpy as np; from dpgb_dask import DPGBClassifier;"
        f"m = DPGBClassifier.load({str(tmp_path / 'model.json')!r}); x = np.load({str(tmp_path / 'x.npy')!r});"
        "print(json.dumps(m.decision_function(x).tolist())); assert 'outside' not in sys.modules"
    )
    out = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(out.stdout) == clf.decision_function(x[:50]).tolist()


@pytest.mark.parametrize("name", OUTSIDE)
def test_its_options_are_words_of_the_fit_and_part_of_its_digest(name):
    plan = PLANS[name]
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert again.digest() == plan.digest()
    words = facts(plan, Shape(schema=SCHEMA))
    own = type(plan.stages[-1]).__name__
    assert own in words["stages"]
    for option in fields(plan.stages[-1]):
        assert f"{option.name} of stage {len(plan.stages)} ({own})" in words
    shape = Shape(schema=SCHEMA)
    rounds = plan.brief().stages[-1].declare(shape).n_queries
    assert rounds <= plan.stages[-1].declare(shape).n_queries


def test_a_regression_is_fitted_too():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (3000, 2))
    y = 2 * x[:, 0] - x[:, 1]
    schema = Schema({"a": (-1, 1), "b": (-1, 1)}, target_bounds=(-3, 3))
    model = DPGBRegressor(
        schema=schema, epsilon=8.0, recipe=LINEAR, noise=SeededNoise(0), columns="position"
    ).fit(x, y)
    assert model.score(x, y) > 0.5


def test_its_record_is_typed_and_there_for_later_stages():
    schema = Schema({"a": (0, 1), "b": ["u", "v"]}, classes=[0, 1])
    state = State.first(Shape(schema=schema), 0, Budget(epsilon=1.0, delta=1e-6), PRICE_ONE)
    for stage in LINEAR.stages:
        state = stage.begin(state)
    assert [w.shape for w in state.fact(Weights).of_features] == [(1, 1), (4, 1)]

    class Reads(Slopes):
        uses = (Weights,)

    Plan("mine", "a test", (*LINEAR.stages, Reads()))
    with pytest.raises(
        PlanError, match=r"Reads of 'mine' uses what no stage before it gives: \['Weights'\]"
    ):
        Plan("mine", "a test", (*LINEAR.stages[:-1], Reads()))


class OtherBins(Tables):
    """A stage that tells the plan of other bins than it makes."""

    __qualname__ = "Tables"  # printed as the honest one: noise is keyed by what a plan prints

    def public_bins(self, shape):
        return Tables(n_bins=3).public_bins(shape)

    def begin(self, state):
        model = empty_model(Tables.public_bins(self, state.shape), state.shape)
        return replace(state, model=model, memory=0)


class FinerBins(Tables):
    """A stage that cuts every bin after its first round, whether it says so or not."""

    __qualname__ = "Tables"
    says: ClassVar[bool] = False

    @property
    def refines_bins(self):
        return self.says

    def update(self, state, query, released):
        state = Tables.update(self, state, query, released)
        model = state.model
        if state.memory == 1:
            for j, bins in enumerate(model.bins):
                if bins.edges is not None:
                    model = with_edges(model, j, (bins.edges[1:] + bins.edges[:-1]) / 2)
        return replace(state, model=model)


class Says(FinerBins):
    __qualname__ = "Tables"
    says = True


@pytest.mark.parametrize(("stage", "honest"), [(OtherBins, Tables), (FinerBins, Says)])
def test_what_a_stage_says_wrongly_of_its_bins_costs_time_and_nothing_else(stage, honest):
    x, y = some_rows()
    models = [
        estimator(
            "outside-tables", noise=SeededNoise(0),
            recipe=Plan("mine", "a test", (kind(rounds=3),), pure=True),
        ).fit(x, y).model_
        for kind in (stage, honest)
    ]  # fmt: skip
    assert model_to_dict(models[0]) == model_to_dict(models[1])


class DrawsInSecret(Tables):
    """A stage that asks samples of rows, and does not say so."""

    def next_query(self, state):
        query = Tables.next_query(self, state)
        return (
            None
            if query is None
            else replace(query, rows=RowDraw("sample", state.memory, 0, 1 << 30))
        )


def test_rows_are_drawn_only_for_a_plan_that_says_so(tmp_path):
    x, y = some_rows()
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=40.0, delta=1e-5)
    plan = Plan("mine", "a test", (DrawsInSecret(),), pure=True)
    with pytest.raises(PlanError, match="draws_rows=True"):
        estimator("outside-tables", recipe=plan, ledger=ledger, account="people").fit(x, y)
    assert "OPENED" not in [entry.kind for entry in ledger.history("people")]
