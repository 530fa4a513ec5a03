"""The loop: what is computed once a round, what is taken off, where it ends."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from every_component.test_recipes import answer

from dpgb_dask import DPGBClassifier, Ledger, Schema
from dpgb_dask.contracts.plan import Budget, Shape, State
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.controller.release import Controller
from dpgb_dask.private import rounds as back_ends
from dpgb_dask.private.rounds import sealed
from dpgb_dask.recipes import RECIPES
from dpgb_dask.training import fit as fitting
from dpgb_dask.training import loop

SCHEMA = Schema({"a": (0.0, 1.0), "b": (0.0, 1.0)}, classes=[0, 1])


def first(total=PRICE_ONE):
    return State.first(Shape(schema=SCHEMA), 0, Budget(epsilon=1.0, delta=1e-6), total)


def test_prices_are_taken_off_before_an_answer_is_used():
    plan = RECIPES["auto"].brief()
    left = [PRICE_ONE]

    def ask(stage, state, query):
        assert any(stage is known for known in plan.stages)
        assert state.left == left[-1] - query.price
        left.append(state.left)
        return answer(query, 1e5, np.random.default_rng(0))

    ran = loop.run(plan, first(), ask)
    assert not ran.stopped
    assert ran.state.left == left[-1] >= 0


@pytest.mark.parametrize("stops", [True, False])
def test_it_ends_with_the_start_where_rows_cannot_be_told_from_none(stops):
    plan = replace(RECIPES["auto"].brief(), stops_on_few_rows=stops)
    labels = []

    def ask(_stage, _state, query):
        labels.append(query.label)
        return answer(query, 0.0, np.random.default_rng(0))

    assert loop.run(plan, first(), ask).stopped == stops
    assert any("main effects" in label for label in labels) != stops


def test_what_an_ask_raises_ends_the_run():
    def ask(_stage, _state, _query):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.run(RECIPES["auto"], first(), ask)


def test_a_round_computes_its_sensitivity_and_looks_for_its_answer_once(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.random((200, 2)), rng.integers(0, 2, 200)
    plan = RECIPES["fdp-tr-newton"].brief()
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=3.0, delta=1e-5)
    options = {
        "schema": SCHEMA,
        "epsilon": 1.0,
        "delta": 1e-6,
        "recipe": plan,
        "columns": "position",
    }
    with (
        mock.patch.object(sealed, "sensitivity", wraps=sealed.sensitivity) as stated,
        mock.patch.object(fitting, "sensitivity", wraps=fitting.sensitivity) as again,
        mock.patch.object(Controller, "replayed", autospec=True, side_effect=Controller.replayed) as sought,
        mock.patch.object(back_ends, "find_client", wraps=back_ends.find_client) as looked,
        mock.patch.object(back_ends, "check_limit", wraps=back_ends.check_limit) as checked,
    ):  # fmt: skip
        clf = DPGBClassifier(**options, ledger=ledger, account="people").fit(x, y)
        n = len(clf.privacy_report_.receipts)
        assert n > 0
        assert (stated.call_count, again.call_count, sought.call_count) == (n, 0, n)
        assert looked.call_count <= 1
        assert checked.call_count == 1
        # given again from its journal: no rows are asked
        same = DPGBClassifier(**options, ledger=ledger, account="people").fit(
            x, y, resume=clf.fit_id_
        )
        assert (stated.call_count, again.call_count, sought.call_count) == (n, n, 2 * n)
    np.testing.assert_array_equal(same.decision_function(x), clf.decision_function(x))
