"""The report of a fit: what was charged, compared and assumed, and what its releases show."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema
from dpgb_dask.components.counts import BaseScore
from dpgb_dask.components.trees.candidates import PublicBins
from dpgb_dask.components.trees.leaves import GradientStep
from dpgb_dask.components.trees.splits import ExponentialSplit
from dpgb_dask.components.trees.stage import Trees
from dpgb_dask.contracts.plan import NoisyCount, Plan, Unread
from dpgb_dask.controller.comparison.pld import pld
from dpgb_dask.controller.comparison.records import Choice, Joint, Laplace, basic, gdp, rdp, zcdp
from dpgb_dask.estimators import load
from dpgb_dask.losses import GRAD_ONE, Huber
from dpgb_dask.testing import SeededNoise
from dpgb_dask.training.report import _in_digits, _share, _signal_in_words, unread

SEEDED = {"noise": SeededNoise(0), "random_state": 0}


def fit_numbers(schema, features, numbers, **settings):
    return DPGBRegressor(epsilon=20.0, schema=schema, **settings, **SEEDED).fit(features, numbers)


def test_report_says_what_was_charged(classifier, binary_schema):
    report = classifier.privacy_report_
    assert (report.epsilon, report.delta, report.unit) == (4.0, 1e-6, "row")
    assert report.relation == "add or remove one row"
    assert not report.private
    assert report.charged == sum(receipt.price for receipt in report.receipts) <= report.declared
    assert report.charged >= report.declared * (1 - 1e-6)
    assert report.slack < report.delta / 1000
    assert set(report.public["features"]) == set(binary_schema.names)


@pytest.mark.parametrize(
    ("recipe", "unit", "named"),
    [("dpboost", None, True), ("dpboost", "u", False), ("seq", None, False)],
)
def test_report_assumes_an_order_of_rows_where_rows_are_drawn_by_their_place(recipe, unit, named):
    schema = Schema({"a": (0, 1)}, classes=[0, 1], unit_id=unit)
    rows = pd.DataFrame({"a": [0.2, 0.8], "u": ["p", "q"]})[["a"] if unit is None else ["a", "u"]]
    fitted = DPGBClassifier(schema=schema, recipe=recipe, n_estimators=1, **SEEDED).fit(
        rows, [0, 1]
    )
    assert (
        any("place in the source" in line for line in fitted.privacy_report_.assumptions) == named
    )


def test_report_of_a_pure_recipe(binary_schema, features, labels):
    fitted = DPGBClassifier(epsilon=3.0, schema=binary_schema, recipe="dpboost", **SEEDED)
    report = fitted.fit(features, labels).privacy_report_
    assert report.pure
    assert (report.epsilon, report.delta) == (3.0, 0.0)
    assert {receipt.mechanism for receipt in report.receipts} == {"choice", "laplace"}
    assert report.charged <= report.declared
    text = " ".join(str(replace(report, private=True)).split())
    assert "(3, 0)-differential privacy, pure" in text
    assert len(report.deviations) > 0
    for mend in report.deviations:
        assert mend in text
    assert report.loss.startswith("log_loss; a row's gradient is at most ")


@pytest.mark.parametrize(
    ("recipe", "trees", "records"),
    [
        # half of ε = 3 for 6 choices a tree, half for its leaves
        ("seq", 4, [Choice(3 / 48, 24), Laplace(3 / 8, 4)]),
        # all trees are parts of one ensemble: a row serves one
        ("dpboost", 4, [Choice(3 / 12, 6), Laplace(3 / 2)]),
    ],
)
def test_report_compares_a_pure_recipe(recipe, trees, records, binary_schema, features, labels, tmp_path):  # fmt: skip
    settings = {"schema": binary_schema, "recipe": recipe, "n_estimators": trees, **SEEDED}
    fitted = DPGBClassifier(epsilon=3.0, **settings).fit(features, labels)
    report = fitted.privacy_report_
    assert report.compared_delta == 1e-6
    wanted = {"basic": basic(records)} | {
        f.__name__: f(records, 1e-6) for f in (pld, rdp, zcdp, gdp)
    }
    assert report.compared == pytest.approx(wanted, rel=1e-6)
    assert f"{pld(records, 1e-6):.3g} by PLD" in str(report)
    fitted.save(tmp_path / "m.json")
    assert load(tmp_path / "m.json").privacy_report_ == report
    # above ε = 100 nothing is private, whatever an accountant says
    assert not DPGBClassifier(epsilon=1e3, **settings).fit(features, labels).privacy_report_.compared  # fmt: skip


def test_report_compares_a_sampled_recipe(binary_schema, features, labels):
    """A tree's releases share a tenth of the rows, on which they cost ε with ln(1 + .1 (e^ε - 1)) = 1/2."""
    fitted = DPGBClassifier(
        epsilon=1.0, schema=binary_schema, recipe="dp-xgboost", n_estimators=2, **SEEDED
    ).fit(features, labels)
    on_sample = math.log1p(math.expm1(0.5) / 0.1)
    tree = Joint.of([Laplace(on_sample / 3, 2, 0.1), Choice(on_sample / 18, 6, 0.1)])
    found = fitted.privacy_report_.compared
    assert found["basic"] == pytest.approx(1.0)
    assert found["rdp"] == pytest.approx(rdp([replace(tree, count=2)], 1e-6), rel=1e-6)
    assert found["pld"] == pytest.approx(pld([replace(tree, count=2)], 1e-6), rel=1e-6)


def test_report_compares_no_gaussian_fits(classifier, binary_schema, features, labels):
    """A choice counts as Gaussian noise of its price, and so every accountant says what GDP says, or more."""
    assert classifier.privacy_report_.compared == {}
    assert "compare " not in str(classifier.privacy_report_)
    leaf = GradientStep(count_scale=1.0)
    stage = Trees(n_trees=2, depth=2, split=ExponentialSplit(), leaf=leaf)
    plan = Plan(name="chooses", source="a test", stages=(PublicBins(n_bins=8), BaseScore(), stage))
    fitted = DPGBClassifier(epsilon=2.0, schema=binary_schema, recipe=plan, **SEEDED)
    report = fitted.fit(features, labels).privacy_report_
    assert {receipt.mechanism for receipt in report.receipts} == {"choice", "gaussian"}
    assert report.compared == {}


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            None,
            "squared_error; a row's gradient is at most 0.5 of half the target's range, by a clip (2 without)",
        ),
        (
            "absolute_error",
            "absolute_error; a row's gradient is at most 1 of half the target's range",
        ),
        (Huber(0.2), "huber; a row's gradient is at most 0.2 of half the target's range"),
    ],
)
def test_report_states_the_gradients_bound(regression_schema, features, numbers, loss, words):
    fitted = fit_numbers(regression_schema, features, numbers, recipe="dp-ebm-newton", loss=loss)
    assert fitted.privacy_report_.loss == words


def test_report_states_the_clip_of_auto(classifier, regressor):
    assert classifier.privacy_report_.loss == (
        "log_loss; a row's gradient is at most 0.5, by a clip (1 without)"
    )
    assert "squared_error" in regressor.privacy_report_.loss
    running = "by a clip or the scores that the model can reach (2 without)"
    assert running in regressor.privacy_report_.loss


def test_the_expected_signal_of_a_forest_is_that_of_its_leaves(binary_schema, features, labels):
    """Not that of the cells, with less noise, in which rows are asked for the slope."""
    fitted = DPGBClassifier(epsilon=8.0, schema=binary_schema, **SEEDED).fit(features, labels)
    report = fitted.privacy_report_
    rounds = [r for r in report.receipts if r.label.startswith("forest") and "/" in r.label]
    assert any(r.label == "forest slope" for r in report.receipts)
    rows = min(r.sigma_steps / 2**r.scale_bits for r in rounds) / (0.5 * GRAD_ONE)
    (said,) = [line for line in report.signal if line.startswith("forest")]
    assert said.startswith(
        f"forest: the noise on the sum of one leaf weighs as much as {rows:.3g} rows"
    )
    assert f"in each of {len(rounds)} releases" in said


@pytest.mark.parametrize(
    ("value", "said"),
    [(4.26, "4.3"), (130.0, "130"), (4321.0, "4,300"), (88_765.0, "89,000"), (3e15, "3e+15"), (math.inf, "inf")],
)  # fmt: skip
def test_numbers_of_rows_are_read_without_exponents(value, said):
    assert _in_digits(value, 2) == said


def test_report_states_the_expected_signal(binary_schema, features, labels):
    """The noise on one leaf, in rows, is σ over the largest gradient: here from the receipts and the clip of 1/2."""
    settings = {"schema": binary_schema, **SEEDED}
    fitted = DPGBClassifier(epsilon=8.0, **settings).fit(features, labels)
    report = fitted.privacy_report_
    main = next(r for r in report.receipts if r.label.startswith("main"))
    rows = main.sigma_steps / 2**main.scale_bits / (0.5 * GRAD_ONE)
    said = report.signal[0]
    assert said.startswith(
        f"main: the noise on the sum of one leaf weighs as much as {rows:.3g} rows"
    )
    assert "in each of 20 releases" in said
    assert "THIS FIT HAS FEWER" not in said
    for epsilon in (0.01, 1e-4):
        drowned = DPGBClassifier(epsilon=epsilon, on_few_rows="continue", **settings)
        drowned.fit(features, labels)
        (said,) = [line for line in drowned.privacy_report_.signal if line.startswith("main")]
        assert "noise drowns the leaves. THIS FIT HAS FEWER, by its released number of rows" in said
        assert np.isfinite(drowned.predict_proba(features)).all()


def test_noise_hides_leaves_by_the_root_of_the_number_of_releases():
    """And by the least noise and the largest leaves of a stage."""
    receipts = [
        SimpleNamespace(mechanism="gaussian", label=f"trees {k}/4", sigma_steps=sd, scale_bits=2)
        for k, sd in enumerate([1600, 400, 400, 400])
    ]
    asked = [
        SimpleNamespace(largest_grad=10, cell_share=share) for share in (0.25, 0.25, 0.25, 0.1)
    ]
    (said, _) = _signal_in_words(receipts, asked, None)
    assert "as much as 10 rows that all pull one way in each of 4 releases" in said
    assert "with fewer than about 200 rows in all" in said


def test_the_noise_of_a_share_is_that_of_its_cell_over_that_of_all_of_them():
    rng = np.random.default_rng(0)
    cells = rng.normal([500.0, 300.0, 150.0, 50.0], 3, (20_000, 4))
    share, sd = _share(500.0, Unread(500.0, None, sd=3.0, n_cells=4), NoisyCount(1000.0, 6.0))
    assert share == 0.5
    assert sd == pytest.approx(np.std(cells[:, 0] / cells.sum(axis=1)), rel=0.05)


def test_a_share_warns_if_noise_alone_does_not_explain_it():
    schema = Schema({"x": (0, 1)}, classes=[0, 1])
    for sd, suspect in ((30.0, False), (3.0, True)):
        found = SimpleNamespace(
            count=NoisyCount(1000.0, sd), unread=[Unread(550.0, None, sd=sd, n_cells=9)]
        )
        assert bool(unread(found, schema)) is suspect
