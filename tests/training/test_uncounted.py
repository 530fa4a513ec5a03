"""Fits without a ledger are added up in the estimator's repr; the report stays what it is."""

import re

import numpy as np
import pytest

from dpgb_dask import DPGBClassifier, Ledger, Schema
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.controller import account_units, accounting
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training import uncounted


@pytest.fixture(autouse=True)
def _none_yet(monkeypatch):
    monkeypatch.setattr(uncounted, "_charges", [])


def fitted(**settings):
    X = np.arange(500.0).reshape(-1, 1) % 100
    schema = Schema({"x": (0, 100)}, classes=[0, 1])
    settings = {"recipe": "fdp-tr-newton", "n_estimators": 1, "columns": "position"} | settings
    return DPGBClassifier(schema=schema, **settings).fit(X, X[:, 0] > 50)


def test_fits_without_a_ledger_are_added_up_in_the_repr():
    first = fitted(epsilon=1.0)
    assert "add up" not in repr(first)
    second = fitted(epsilon=2.0, delta=1e-5)
    report = str(second.privacy_report_)
    squares = accounting.total_price(1.0, 1e-6) + accounting.total_price(2.0, 1e-5)
    for one in (first, second):
        delta = one.privacy_report_.delta
        epsilon = accounting.epsilon_of((squares / PRICE_ONE) ** 0.5, 0.999 * delta)
        said = f"2 fits of this process charged no ledger: on the same rows they add up to epsilon={epsilon:.4g}"
        assert f"# {said} at delta={delta:g}" in repr(one)
        shown = one._repr_mimebundle_()
        assert said in shown["text/plain"]
        assert said in shown["text/html"]
    assert str(second.privacy_report_) == report
    assert "add up" not in repr(DPGBClassifier())


def test_only_fits_that_promise_something_and_are_not_charged_are_added_up():
    ledger = Ledger("sqlite://")
    ledger.open_account("people", epsilon=10.0, delta=1e-6)
    fits = [fitted(), fitted(noise=SeededNoise(0)), fitted(ledger=ledger, account="people")]
    assert not [one for one in fits if "add up" in repr(one)]
    pure = fitted(recipe="dpboost", epsilon=1.0)
    # its tree asks six choices of ε/12 and one sum of ε/2
    squares = accounting.total_price(1.0, 1e-6) / PRICE_ONE + accounting.mu_of_pure(1 / 2) ** 2
    squares += 6 * accounting.mu_of_bounded_range(1 / 12) ** 2
    assert sum(charge for charge, _ in uncounted._charges) / PRICE_ONE == pytest.approx(squares)
    one = accounting.epsilon_of((accounting.total_price(1.0, 1e-6) / PRICE_ONE) ** 0.5, 0.999e-6)
    epsilon = min(accounting.epsilon_of(squares**0.5, 0.999e-6), 1.0 + one)
    said = "2 fits of this process charged no ledger: on the same rows they add up to epsilon="
    assert f"{said}{epsilon:.4g} at delta=1e-06" in repr(pure)
    assert "add up" not in repr(fits[2])


def test_pure_fits_add_up_in_epsilon_and_have_no_delta():
    first, second = (fitted(recipe="dpboost", epsilon=e) for e in (0.75, 0.5))
    for one in (first, second):
        assert "2 fits of this process charged no ledger" in repr(one)
        assert repr(one).endswith("add up to epsilon=1.25 at delta=0")
    other = fitted(epsilon=1.0)
    for one in (first, other):
        told = float(re.search(r"epsilon=(\S+) at delta=1e-06$", repr(one))[1])
        assert 1 < told <= 2.25


@pytest.mark.parametrize("own", [[None, None], [0.01, None], [30.0, None], [0.5] * 9 + [None]])
def test_together_is_the_smaller_of_two_figures_that_hold(own, monkeypatch):
    """Of few pure fits of a large ε their sum is less, of many their sum in μ²."""
    price = accounting.total_price(1.0, 1e-6)
    charges = [price if e is None else account_units.cost(round(e * PRICE_ONE), "gdp") for e in own]
    monkeypatch.setattr(uncounted, "_charges", list(zip(charges, own, strict=True)))
    told = float(re.search(r"epsilon=(\S+) at delta=1e-06$", uncounted.together(1e-6))[1])

    def in_squares(charges):
        return accounting.epsilon_of((sum(charges) / PRICE_ONE) ** 0.5, 0.999e-6)

    rest = [charge for charge, e in zip(charges, own, strict=True) if e is None]
    pure = sum(e for e in own if e is not None)
    assert told == pytest.approx(min(in_squares(charges), pure + in_squares(rest)), rel=1e-3)


def test_the_repr_breaks_its_lines():
    lines = repr(DPGBClassifier(account="a" * 60, unit_id="b" * 60, loss="log_loss")).splitlines()
    assert len(lines) > 1
    assert lines[0].startswith("DPGBClassifier(")
