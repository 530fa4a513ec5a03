"""The price of a fit, before any data are touched."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from dpgb_dask import DPGBClassifier, Ledger, PlanError
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.contracts.spending import Item
from dpgb_dask.controller import account_units
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training.cost import account_charge

SEEDED = {"noise": SeededNoise(0), "random_state": 0}


def test_cost_is_known_before_data(binary_schema, tmp_path):
    cost = DPGBClassifier(epsilon=2.0, delta=1e-6, schema=binary_schema).privacy_cost()
    assert (cost.epsilon, cost.delta, cost.share) == (2.0, 1e-6, None)
    assert cost.epsilon_zcdp > 2
    assert "epsilon=2" in str(cost)
    ledger = Ledger(f"sqlite:///{tmp_path}/b.db")
    ledger.open_account("a", epsilon=2.0, delta=1e-6)
    cost = DPGBClassifier(
        epsilon=2.0, schema=binary_schema, ledger=ledger, account="a"
    ).privacy_cost()
    assert cost.share == pytest.approx(1.0)
    assert "'a'" in str(cost)
    with pytest.raises(PlanError, match="epsilon"):
        DPGBClassifier(epsilon=0).privacy_cost()


@pytest.mark.parametrize(("analysis", "share"), [("pure", 0.5), ("gdp", None), ("zcdp", None)])
def test_cost_of_a_pure_recipe(binary_schema, tmp_path, analysis, share):
    """ε/2 of an account of ε: half of it in ε; in μ² and ρ, what its releases cost, or one of the whole ε at most."""
    ledger = Ledger(f"sqlite:///{tmp_path}/b.db")
    delta = 0.0 if analysis == "pure" else 1e-6
    ledger.open_account("a", epsilon=2.0, delta=delta, analysis=analysis)
    settings = {"recipe": "dpboost", "schema": binary_schema, "ledger": ledger, "account": "a"}
    cost = DPGBClassifier(epsilon=1.0, **settings).privacy_cost()
    assert cost.pure
    assert (cost.epsilon, cost.delta, cost.epsilon_zcdp) == (1.0, 0.0, 1.0)
    assert "pure" in str(cost)
    assert "zCDP" not in str(cost)
    assert cost.mu == pytest.approx(2 * norm.ppf(np.e / (1 + np.e)))
    most = DPGBClassifier(epsilon=1.0, **(settings | {"schema": None})).privacy_cost()
    if share is not None:
        assert cost.share == most.share == pytest.approx(share)
        return
    whole = {"gdp": cost.mu**2, "zcdp": np.tanh(0.5)}[analysis] * PRICE_ONE
    assert most.share == pytest.approx(whole / ledger.account("a").cap)
    # its 50 trees have parts of the rows, so a row pays for one: six choices of ε/12 and one sum of ε/2
    parts = [Item(PRICE_ONE // 12, 6, "choice"), Item(PRICE_ONE // 2, 1, "sums")]
    charge = account_units.charge(0, pure=True, analysis=analysis, bill=parts)
    assert cost.share == pytest.approx(charge / ledger.account("a").cap)
    assert cost.share < 0.3 * most.share


def test_a_pure_fit_that_ended_early_costs_each_of_its_releases():
    tenth, bill = (
        PRICE_ONE // 10,
        [Item(PRICE_ONE // 4, 3, "sums"), Item(PRICE_ONE // 5, 2, "sample")],
    )
    named = ("laplace", "choice", "laplace", "laplace", "laplace")
    receipts = tuple(SimpleNamespace(price=tenth, mechanism=name) for name in named)
    parts = [["part", 0, k, k + 1] for k in range(2)]
    draws = (None, None, *parts, ["sample", 1, 0, 1 << 30])
    report = SimpleNamespace(stopped=True, pure=True, receipts=receipts, draws=draws)
    for analysis in ("gdp", "zcdp"):
        sums = account_units.cost(tenth, analysis)
        chosen = account_units.cost(tenth, analysis, choice=True)
        sample = account_units.cost(PRICE_ONE // 5, analysis)
        assert account_charge(report, bill, analysis) == 2 * sums + chosen + sample


def test_privacy_cost_refuses_what_fit_would(binary_schema):
    for wrong in ({"n_estimators": -1}, {"learning_rate": "x"}, {"loss": "nix"}, {"max_depth": 99}):
        with pytest.raises(PlanError):
            DPGBClassifier(schema=binary_schema, recipe="dp-rf", **wrong).privacy_cost()
