"""A fit whose released number of rows cannot be told from zero ends with the start model, and charges little."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV
from thinned import one_of_each

from dpgb_dask import (
    DPGBClassifier,
    DPGBRegressor,
    FewRowsWarning,
    PlanError,
    PrivacyLeakWarning,
    PrivacyReport,
    Schema,
    UnreadValuesWarning,
    recipes,
)
from dpgb_dask.cli import main
from dpgb_dask.controller import account_units
from dpgb_dask.estimators import load
from dpgb_dask.released.export import model_to_dict
from dpgb_dask.testing import SeededNoise

FEATURES = {"x": (0.0, 1.0), "color": ["blue", "red"]}
SCHEMAS = {
    "binary": Schema(FEATURES, classes=[0, 1]),
    "multiclass": Schema(FEATURES, classes=[0, 1, 2]),
    "numeric": Schema(FEATURES, target_bounds=(0.0, 10.0)),
}
LABELS = {"binary": [0, 1], "multiclass": [0, 1, 2], "numeric": [1.0, 3.0, 9.0]}
UNKNOWN = {"binary": "yes", "multiclass": "yes", "numeric": None}


def rows(n=800):
    rng = np.random.default_rng(4)
    return pd.DataFrame({"x": rng.random(n), "color": rng.choice(["blue", "red"], n)})


def known(kind, n=800):
    return np.random.default_rng(5).choice(LABELS[kind], n)


def unknown(kind, n=800):
    return pd.Series([UNKNOWN[kind]] * n, dtype=object)


def estimator(kind="binary", **options):
    make = DPGBRegressor if kind == "numeric" else DPGBClassifier
    settings = {"schema": SCHEMAS[kind], "epsilon": 1.0, "random_state": 0} | options
    return make(**settings)


def is_constant(model):
    return (
        not model.pairs
        and not model.trees.n_trees
        and not any(np.any(table) for table in model.tables)
    )


COUNTED = {"auto", "additive", "dp-ebm", "dp-ebm-classic", "ldp", "fdp-tr-newton-quantile"}
SERVED = [
    (name, kind)
    for name, plan in recipes.RECIPES.items()
    for kind in plan.kinds
    if kind != "multiclass" or name in ("auto", "additive")
]


@pytest.mark.parametrize(("name", "kind"), one_of_each(SERVED))
def test_a_fit_on_no_usable_row_stops_or_says_that_nobody_counted(name, kind):
    """Recipes that release a number of rows stop with the start model; the others say that they release none."""
    few = {"n_estimators": 2} if "n_estimators" in recipes.RECIPES[name].parameters() else {}
    est = estimator(kind, recipe=name, noise=SeededNoise(3), **few)
    counts = name in COUNTED or (
        kind == "numeric" and name not in ("dp-rf", "fdp-hist-averaging", "fdp-pr-averaging")
    )
    if not counts:
        report = est.fit(rows(), unknown(kind)).privacy_report_
        assert not report.stopped
        assert "releases no number of rows" in str(report)
        return
    with pytest.warns(
        FewRowsWarning, match=r"number is -?\d+ ± \d+.*below three.*ended with the start model"
    ):
        est.fit(rows(), unknown(kind))
    report = est.privacy_report_
    assert report.stopped
    assert is_constant(est.model_)
    assert "FEW ROWS: their released number is" in str(report)
    assert "the fit ended early" in str(report)
    # bins, and looks at a number that noise hides, which cost up to 5 % each
    assert report.charged < (0.3 if kind == "numeric" else 0.2) * report.declared
    assert PrivacyReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


@pytest.mark.parametrize("kind", sorted(SCHEMAS))
def test_a_fit_on_enough_rows_does_not_stop(kind):
    report = (
        estimator(kind, epsilon=4.0, noise=SeededNoise(3)).fit(rows(), known(kind)).privacy_report_
    )
    assert not report.stopped
    assert report.warnings == ()
    assert "FEW ROWS" not in str(report)
    assert "releases no number of rows" not in str(report)


WEIGHTED = Schema(FEATURES, classes=[0, 1], max_weight=4)
UNITS = Schema(FEATURES, classes=[0, 1], unit_id="person")
# what is in use: options of the estimator, columns beside the features, weights; what the warning names, and the look
CAUSES = {
    "neither": ({}, {}, None, [], r"schema\.check\(X, y\)"),
    "weights of 0": (
        {"schema": WEIGHTED}, {}, np.zeros(800),
        ["sample weights are missing, not above 0", "max_weight=4"], r"schema\.check\(X, y, sample_weight\)",
    ),
    "classes of hardly any weight": (
        {"schema": WEIGHTED, "class_weight": {0: 0, 1: 1e-9}}, {}, None,
        ["sample weights times class_weight are missing"], r"schema\.check\(X, y, sample_weight\)",
    ),
    "units that cannot be read": (
        {"schema": UNITS}, {"person": np.nan}, None,
        ["values of 'person' cannot be read", "or spell numbers of 2**53 or more"], r"model\.schema_\.check\(X, y\)",
    ),
    "one unit": (
        {"unit_id": "person"}, {"person": 7}, None,
        ["few units share the rows", "one 'person' together weigh at most"], r"model\.schema_\.check\(X, y\)",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("few_rows_are_few")
@pytest.mark.parametrize("use", CAUSES)
def test_the_warning_names_the_causes_that_are_possible(use):
    """Labels are fine in all of them but the first; which cause it is would be a fact of the rows, and is not told."""
    options, columns, weight, named, look = CAUSES[use]
    est = estimator(noise=SeededNoise(3), **options)
    y = unknown("binary") if use == "neither" else known("binary")
    with pytest.warns(FewRowsWarning, match=f"{look}, the owner's own look") as caught:
        est.fit(rows().assign(**columns), y, sample_weight=weight)
    (said,) = {str(warning.message) for warning in caught}
    assert est.privacy_report_.warnings == (said,)
    for words in ("few rows for this epsilon", "labels are none of the declared classes", *named):
        assert words in said
    assert ("weights" in said) == bool(weight is not None or "class_weight" in options)
    assert ("person" in said) == bool(columns)


@pytest.mark.usefixtures("few_rows_are_few")
def test_the_warning_of_a_regressor_speaks_of_numbers():
    with pytest.warns(FewRowsWarning, match="or targets are no numbers: schema"):
        estimator("numeric", noise=SeededNoise(3)).fit(rows(), unknown("numeric"))


@pytest.mark.usefixtures("few_rows_are_few")
def test_an_account_is_charged_only_what_was_opened(ledger):
    before = ledger.account("people").left
    est = estimator(ledger=ledger, account="people")
    with pytest.warns(FewRowsWarning, match="only what it had opened is charged"):
        est.fit(rows(), unknown("binary"))
    report, record = est.privacy_report_, ledger.record(est.fit_id_)
    assert record.charge == before - ledger.account("people").left
    assert record.charge == account_units.charge(report.charged, pure=False, analysis="gdp")
    assert 0 < record.charge < 0.2 * report.declared
    assert record.state == "RELEASED"
    ledger.verify()


class BreakError(Exception):
    pass


@pytest.mark.usefixtures("few_rows_are_few")
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_resumed_fit_takes_the_same_way(ledger, after):
    def stop(_label, done, _total):
        if done == after:
            raise BreakError

    with pytest.raises(BreakError):
        estimator(ledger=ledger, account="people", callbacks=[stop]).fit(rows(), unknown("binary"))
    fit_id = ledger.history("people")[-1].fit_id
    again = estimator(ledger=ledger, account="people")
    with pytest.warns(FewRowsWarning):
        again.fit(rows(), unknown("binary"), resume=fit_id)
    left = ledger.account("people").left
    ended = estimator(
        ledger=ledger, account="people"
    )  # it has ended: its journal gives the model again
    with pytest.warns(FewRowsWarning):
        ended.fit(rows(), unknown("binary"), resume=fit_id)
    assert model_to_dict(ended.model_) == model_to_dict(again.model_)
    assert ended.privacy_report_ == again.privacy_report_
    assert ledger.account("people").left == left
    ledger.verify()


def test_a_fit_goes_on_if_asked_and_its_report_says_so(tmp_path):
    est = estimator(noise=SeededNoise(3), on_few_rows="continue", n_estimators=2)
    report = est.fit(
        rows(), unknown("binary")
    ).privacy_report_  # and no warning: warnings are errors here
    assert not report.stopped
    assert "The fit went on all the same" in str(report)
    est.save(tmp_path / "m.json")
    assert load(tmp_path / "m.json").on_few_rows == "continue"


def test_another_way_is_refused_before_anything():
    with pytest.raises(PlanError, match="on_few_rows='ask'"):
        estimator(on_few_rows="ask").privacy_cost()


def test_facts_read_from_the_data_never_stop_a_fit():
    few = rows(20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        est = DPGBClassifier(schema="infer", noise=SeededNoise(0), epsilon=0.1)
        assert not est.fit(few, np.arange(20) % 2).privacy_report_.stopped


def test_a_search_over_few_rows_goes_on_to_its_end():
    est = estimator(epsilon=0.01, noise=SeededNoise(0))
    search = GridSearchCV(est, {"max_bins": [8, 16]}, cv=2)
    with pytest.warns(FewRowsWarning):
        search.fit(rows(), known("binary"))
    assert search.best_estimator_.privacy_report_.stopped


def csv_of(tmp_path, labels):
    table = rows(len(labels)).assign(target=labels)
    table.to_csv(tmp_path / "rows.csv", index=False)
    SCHEMAS["binary"].save(tmp_path / "s.json")
    return [
        "fit", str(tmp_path / "rows.csv"), "--schema", str(tmp_path / "s.json"), "--delta", "1e-6", "--quiet",
    ]  # fmt: skip


@pytest.mark.usefixtures("few_rows_are_few")
def test_text_labels_against_numbers_on_the_command_line(tmp_path, ledger, capsys):
    """yes and no in a CSV, and the classes 0 and 1: no usable row, and formerly the whole charge and exit 0."""
    command = csv_of(tmp_path, ["yes", "no"] * 400)
    account = ["--ledger", f"sqlite:///{tmp_path}/budget.db", "--account", "people"]
    out = ["--epsilon", "1", "--out", str(tmp_path / "m.json")]
    assert main([*command, *account, *out]) == 4
    said = capsys.readouterr()
    assert "dpgb-dask: FewRowsWarning: FEW ROWS: their released number is" in said.err
    assert "!!! FEW ROWS" in said.out
    assert ledger.account("people").left > 0.8 * ledger.account("people").cap
    assert is_constant(load(tmp_path / "m.json").model_)
    out = ["--epsilon", "1", "--out", str(tmp_path / "n.json"), "--on-few-rows", "continue"]
    assert main([*command, *out]) == 0
    assert "The fit went on all the same" in capsys.readouterr().out


# ---- what column types used to tell


def test_the_report_gives_released_shares_of_what_is_unread():
    table = rows(4000)
    table.loc[:399, "x"] = np.nan
    table.loc[::4, "color"] = "violet"
    report = (
        estimator(epsilon=8.0, noise=SeededNoise(1))
        .fit(table, known("binary", 4000))
        .privacy_report_
    )
    x, color = report.shares["x"], report.shares["color"]
    assert list(x) == ["missing"]
    assert list(color) == ["missing", "other"]
    for (share, sd), truth in ((x["missing"], 0.1), (color["other"], 0.25), (color["missing"], 0)):
        assert abs(share - truth) < 4 * sd < 0.02
    assert report.warnings == ()
    for text in (str(report), report._repr_html_()):
        assert "Released shares of rows" in text
        share, sd = x["missing"]
        assert f"x: missing {100 * share:.2f} ± {100 * sd:.2g} %" in text
    assert PrivacyReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


@pytest.mark.slow
def test_the_noise_of_a_share_is_stated():
    """Over many fits, shares miss the truth by about their stated standard deviation."""
    table, y = rows(1000), known("binary", 1000)
    table.loc[table.index % 5 < 2, "color"] = "violet"  # of half of them some noise would warn
    off = []
    for seed in range(30):
        settings = {"recipe": "fdp-tr-newton-quantile", "n_estimators": 1}
        est = estimator(epsilon=4.0, noise=SeededNoise(seed), **settings)
        share, sd = est.fit(table, y).privacy_report_.shares["color"]["other"]
        off.append((share - 0.4) / sd)
    assert 0.7 < np.std(off) < 1.4


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda t: t.assign(color=["#0000ff", "#ff0000"] * 2000),
            r"'color' \((other 9|other 1)\S* ± \S+ %\)",
        ),
        (lambda t: t.assign(x=["unknown"] * 4000), r"'x' \(missing 9|'x' \(missing 1"),
    ],
)
def test_a_feature_that_is_mostly_unread_warns(change, named):
    table = pd.DataFrame(
        {name: column.astype(object) for name, column in change(rows(4000)).items()}
    )
    est = estimator(epsilon=8.0, noise=SeededNoise(1), n_estimators=2)
    with pytest.warns(UnreadValuesWarning, match=named):
        est.fit(table, known("binary", 4000))
    assert "MOSTLY UNREAD" in str(est.privacy_report_)


def test_missing_values_that_are_expected_do_not_warn():
    schema = Schema.from_dict(
        {
            "features": {"x": {"type": "numeric", "low": 0, "high": 1, "missing": True}},
            "target": {"name": "y", "type": "binary", "classes": [0, 1]},
        }
    )
    table = rows(4000)[["x"]]
    table.loc[:2999, "x"] = np.nan
    settings = {"schema": schema, "epsilon": 8.0, "n_estimators": 2, "noise": SeededNoise(1)}
    report = DPGBClassifier(**settings).fit(table, known("binary", 4000)).privacy_report_
    assert report.warnings == ()
    assert report.shares["x"]["missing"][0] > 0.7


def test_recipes_without_released_bins_give_no_shares():
    report = estimator(recipe="fdp-tr-newton", n_estimators=2, noise=SeededNoise(1)).fit(
        rows(), known("binary")
    )
    assert report.privacy_report_.shares == {}
    assert "Released shares" not in str(report.privacy_report_)
