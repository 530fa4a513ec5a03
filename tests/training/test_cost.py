"""The price of a fit, before any data are touched."""

import numpy as np
import pytest
from scipy.stats import norm

from dpgb_dask import DPGBClassifier, Ledger, PlanError
from dpgb_dask.testing import SeededNoise

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


@pytest.mark.parametrize(("analysis", "share"), [("pure", 0.5), ("gdp", None), ("zcdp", 0.25)])
def test_cost_of_a_pure_recipe(binary_schema, tmp_path, analysis, share):
    """ε/2 of an account of ε: half of it in ε, a quarter in ρ = ε²/2; in μ², what the same ε as a GDP number costs."""
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
    if analysis == "zcdp":  # the account's ρ at its delta is below ε²/2
        assert cost.share > share
    else:
        mu = DPGBClassifier(epsilon=2.0).privacy_cost().mu
        assert cost.share == pytest.approx(share or (cost.mu / mu) ** 2)


def test_privacy_cost_refuses_what_fit_would(binary_schema):
    for wrong in ({"n_estimators": -1}, {"learning_rate": "x"}, {"loss": "nix"}, {"max_depth": 99}):
        with pytest.raises(PlanError):
            DPGBClassifier(schema=binary_schema, recipe="dp-rf", **wrong).privacy_cost()
