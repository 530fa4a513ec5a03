"""Pure recipes are charged by their releases to accounts in μ² and ρ: what their plans say is what their fits ask."""

from collections.abc import Callable
from dataclasses import astuple, dataclass, fields, replace

import numpy as np
import pandas as pd
import pytest
from thinned import thinned

from dpgb_dask import DPGBClassifier, DPGBRegressor, Ledger, Schema, recipes, verify
from dpgb_dask.components.trees.sampling import Ensembles
from dpgb_dask.components.trees.stage import Trees
from dpgb_dask.contracts.plan import Budget, Shape
from dpgb_dask.contracts.queries import PRICE_ONE, RowDraw
from dpgb_dask.controller import account_units, accounting
from dpgb_dask.controller.ledger_book import Terms
from dpgb_dask.errors import BudgetExceededError, PlanError
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training.fit import bill_of

FEATURES = {"x": (0.0, 1.0), "z": (0.0, 1.0), "color": ["blue", "red"]}
SCHEMAS = {
    "binary": Schema(FEATURES, classes=[0, 1]),
    "numeric": Schema(FEATURES, target_bounds=(0.0, 10.0)),
}
PURE = sorted(name for name, plan in recipes.RECIPES.items() if plan.pure)
_PARA = recipes.RECIPES["para"]
# ensembles of two trees, of which the last has one
SMALL = replace(
    _PARA,
    name="small ensembles",
    stages=(*_PARA.stages[:-1], replace(_PARA.stages[-1], rows=Ensembles(size=2))),
)


def rows(n=400):
    rng = np.random.default_rng(4)
    color = rng.choice(["blue", "red"], n)
    return pd.DataFrame({"x": rng.random(n), "z": rng.random(n), "color": color})


def fitted(ledger, kind, **options):
    make = DPGBRegressor if kind == "numeric" else DPGBClassifier
    X = rows()
    est = make(schema=SCHEMAS[kind], random_state=0, ledger=ledger, account="people", **options)
    return est.fit(X, (X["x"] > 0.5).astype(int if kind == "binary" else float))


def charged(recipe, kind, epsilon, analysis, **parameters):
    """Return what a fit of a recipe costs an account: by its bill, and as one release."""
    plan = recipes.get(recipe, kind=kind, **parameters)
    bill = bill_of(plan, Shape(schema=SCHEMAS[kind]), Budget(epsilon=epsilon, delta=0.0))
    price = accounting.total_price(epsilon, 0.0, pure=True)
    return tuple(
        account_units.charge(price, pure=True, analysis=analysis, bill=items)
        for items in (bill, ())
    )


@pytest.mark.parametrize("kind", thinned(["binary", "numeric"], every=2))
@pytest.mark.parametrize(
    "recipe", [*PURE, SMALL], ids=lambda recipe: getattr(recipe, "name", recipe)
)
@pytest.mark.parametrize("n_estimators", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_a_pure_recipe_asks_what_it_bills(tmp_path, recipe, kind, n_estimators):
    """Every release is counted again from the entries; together they cost what was charged, but for rounding."""
    ledger = Ledger(f"sqlite:///{tmp_path}/b.db")
    analysis = "gdp" if n_estimators else "zcdp"
    ledger.open_account("people", epsilon=20.0, delta=1e-6, analysis=analysis)
    options = {"recipe": recipe, "epsilon": 1.0, "n_estimators": n_estimators, "max_depth": 3}
    asked = {"schema": SCHEMAS[kind], "ledger": ledger, "account": "people", **options}
    make = DPGBRegressor if kind == "numeric" else DPGBClassifier
    cost = make(**asked).privacy_cost()
    left = ledger.account("people").left
    est = fitted(ledger, kind, **options, on_few_rows="continue")
    (record,) = ledger.fits("people")
    whole, block = charged(recipe, kind, 1.0, analysis, n_estimators=n_estimators, max_depth=3)
    assert record.charge == ledger.account("people").spent == whole < block / 2
    assert cost.share == whole / left
    opened = [entry.body for entry in ledger.history("people") if entry.kind == "OPENED"]
    rounds = account_units.RoundCosts.of(record.terms.bill, analysis)
    for body, receipt in zip(opened, est.privacy_report_.receipts, strict=True):
        assert body["choice"] == (receipt.mechanism == "choice")
    draws = est.privacy_report_.draws or (None,) * len(opened)
    for body, draw in zip(opened, draws, strict=True):
        found = None if draw is None else RowDraw(*draw)
        assert int(body["cost"]) == rounds.cost(int(body["price"]), found, choice=body["choice"])
        rounds = rounds.plus(int(body["cost"]), found)
    assert (1 - 1e-6) * whole <= rounds.spent <= whole
    ledger.verify()
    est.save(tmp_path / "model.json")
    assert "account, terms and charge of the fit" in verify(tmp_path / "model.json", ledger).agreed


def test_verify_knows_what_a_pure_fit_cost_before_there_were_bills(tmp_path, monkeypatch):
    ledger = Ledger(f"sqlite:///{tmp_path}/b.db")
    ledger.open_account("people", epsilon=20.0, delta=1e-6, analysis="zcdp")
    written = Terms.to_json
    monkeypatch.setattr(
        Terms, "to_json", lambda terms: {k: v for k, v in written(terms).items() if k != "bill"}
    )
    monkeypatch.setattr(
        account_units, "charge", lambda price, **_: -(-price * price // (2 * PRICE_ONE))
    )
    est = fitted(ledger, "binary", recipe="dpboost", epsilon=1.0, n_estimators=2)
    monkeypatch.undo()
    assert ledger.account("people").spent == PRICE_ONE // 2
    est.save(tmp_path / "model.json")
    assert "account, terms and charge of the fit" in verify(tmp_path / "model.json", ledger).agreed


@pytest.mark.parametrize(("name", "times"), [("dp-xgboost", 19), ("seq", 185), ("dpboost", 3.7)])
def test_a_pure_recipe_is_far_cheaper_than_one_release(name, times):
    whole, block = charged(name, "binary", 1.0, "gdp")
    assert block / PRICE_ONE == pytest.approx(1.51791, rel=1e-5)
    assert block / whole > times


@dataclass(frozen=True, slots=True, kw_only=True)
class Lying(Trees):
    """Trees from outside that bill something else than they ask."""

    change: Callable = tuple

    def bill(self, shape, budget, total, left):
        return tuple(self.change(super(Lying, self).bill(shape, budget, total, left)))


LIES = {
    "prices": lambda bill: (replace(item, price=item.price * 7 // 10) for item in bill),
    "times": lambda bill: (replace(item, times=item.times - 1) for item in bill),
    "a kind": lambda bill: (replace(item, kind="choice") for item in bill),
    "an item": lambda bill: bill[:-1],
}


@pytest.mark.parametrize(
    ("name", "lie", "analysis"),
    [
        ("dpboost", "prices", "gdp"),
        ("dpboost", "a kind", "zcdp"),
        ("dpboost", "an item", "gdp"),
        ("dp-xgboost", "prices", "zcdp"),
        ("dp-xgboost", "times", "gdp"),
    ],
)
def test_a_plan_that_bills_too_little_fails_within_its_charge(tmp_path, name, lie, analysis):
    plan = recipes.get(name, kind="binary", n_estimators=6, max_depth=2)
    *earlier, trees = plan.stages
    options = {option.name: getattr(trees, option.name) for option in fields(trees)}
    lying = replace(plan, name="lying", stages=(*earlier, Lying(**options, change=LIES[lie])))
    ledger = Ledger(f"sqlite:///{tmp_path}/b.db")
    ledger.open_account("people", epsilon=20.0, delta=1e-6, analysis=analysis)
    with pytest.raises(BudgetExceededError, match="nothing was opened"):
        fitted(ledger, "binary", recipe=lying, epsilon=1.0, on_few_rows="continue")
    (record,) = ledger.fits("people")
    shape, budget = Shape(schema=SCHEMAS["binary"]), Budget(epsilon=1.0, delta=0.0)
    bill = bill_of(lying, shape, budget)
    price = accounting.total_price(1.0, 0.0, pure=True)
    said = account_units.charge(price, pure=True, analysis=analysis, bill=bill)
    assert ledger.account("people").spent == record.charge == said
    honest = account_units.charge(
        price, pure=True, analysis=analysis, bill=bill_of(plan, shape, budget)
    )
    assert said < honest
    assert ledger.settle(record.fit_id) <= said
    ledger.verify()


def test_a_bill_holds_items():
    plan = recipes.get("dpboost", kind="binary")
    *earlier, trees = plan.stages
    options = {option.name: getattr(trees, option.name) for option in fields(trees)}
    loose = Lying(**options, change=lambda bill: (astuple(item) for item in bill))
    shape, budget = Shape(schema=SCHEMAS["binary"]), Budget(epsilon=1.0, delta=0.0)
    with pytest.raises(PlanError, match="does not bill Items"):
        bill_of(replace(plan, stages=(*earlier, loose)), shape, budget)


def test_a_stage_that_asks_twice_leaves_later_stages_what_it_bills():
    """A numeric target's count and sum have one item; the trees' prices follow from what both leave."""
    options = {"recipe": "dpboost", "epsilon": 1.0, "n_estimators": 1, "max_depth": 3}
    schema = SCHEMAS["numeric"]
    est = DPGBRegressor(schema=schema, noise=SeededNoise(0), random_state=0, **options)
    est.set_params(on_few_rows="continue").fit(rows(), rows()["x"])
    plan = recipes.get("dpboost", kind="numeric", n_estimators=1, max_depth=3)
    bill = bill_of(plan, Shape(schema=schema), Budget(epsilon=1.0, delta=0.0))
    assert [(item.times, item.kind) for item in bill] == [(2, "sums"), (3, "choice"), (1, "sums")]
    asked = sum(receipt.price for receipt in est.privacy_report_.receipts)
    assert sum(item.price * item.times for item in bill) == asked <= PRICE_ONE


def test_a_plan_with_an_earlier_stage_that_may_ask_less_has_no_bill(monkeypatch):
    """Later prices follow from what it leaves."""
    plan = recipes.get("dpboost", kind="numeric")
    asked = Shape(schema=SCHEMAS["numeric"]), Budget(epsilon=1.0, delta=0.0)
    assert bill_of(plan, *asked)
    monkeypatch.setattr(type(plan.stages[0]), "bills_exactly", False)
    assert bill_of(plan, *asked) == ()


class BreakError(Exception):
    pass


@pytest.mark.parametrize("name", thinned(PURE, every=2))
def test_a_fit_that_breaks_off_goes_on_or_is_settled(tmp_path, name):
    ledger = Ledger(f"sqlite:///{tmp_path}/b.db")
    ledger.open_account("people", epsilon=20.0, delta=1e-6)

    def breaks(_label, done, _most):
        if done == 2:
            raise BreakError

    options = {"recipe": name, "epsilon": 1.0, "n_estimators": 4, "max_depth": 2}
    whole, _ = charged(name, "binary", 1.0, "gdp", n_estimators=4, max_depth=2)
    spent = [0]
    for resumes in (True, False):
        with pytest.raises(BreakError):
            fitted(ledger, "binary", **options, callbacks=[breaks])
        fit_id = ledger.fits("people")[-1].fit_id
        assert ledger.account("people").spent == spent[-1] + whole
        if resumes:
            X = rows()
            make = DPGBClassifier(
                schema=SCHEMAS["binary"],
                random_state=0,
                ledger=ledger,
                account="people",
                **options,
            )
            make.fit(X, (X["x"] > 0.5).astype(int), resume=fit_id)
        else:
            stands = ledger.settle(fit_id)
            assert stands < whole
            assert ledger.account("people").spent == spent[-1] + stands
        spent.append(ledger.account("people").spent)
    ledger.verify()
