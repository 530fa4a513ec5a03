"""A fit with sample weights says, before its charge, that they count up to the schema's ``max_weight`` if it is 1."""

import warnings

import numpy as np
import pytest
from warning_parts import quick, rows

from dpgb_dask import MaxWeightWarning, Schema, cli

FEATURES = {"x": (0.0, 1.0)}
SCHEMA = Schema(FEATURES, classes=[0, 1])
WAY_OUT = "max_weight=1 of the schema.*Declare the largest weight as max_weight"


@pytest.mark.parametrize("weight", [0.5, 500.0, np.nan])
def test_weights_of_any_size_are_said_to_count_up_to_one(weight):
    X, y = rows()
    X[:100] = 0.25
    with pytest.warns(MaxWeightWarning, match=WAY_OUT) as caught:
        quick(SCHEMA, on_few_rows="continue").fit(
            X, y, np.r_[[weight] * 100, [1.0] * (len(X) - 100)]
        )
    (said,) = caught
    assert said.filename == __file__


@pytest.mark.parametrize(
    ("schema", "weighted"),
    [
        (SCHEMA, False),
        (Schema(FEATURES, classes=[0, 1], max_weight=2), True),
    ],
    ids=["none", "declared"],
)
def test_nothing_is_said_of_weights(schema, weighted):
    X, y = rows()
    quick(schema).fit(X, y, np.ones(len(X)) if weighted else None)  # warnings are errors here


def test_it_is_said_before_anything_is_charged(ledger):
    est = quick(SCHEMA, noise=None, ledger=ledger, account="people")
    before = len(ledger.history("people"))
    X, y = rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MaxWeightWarning):
            est.fit(X, y, np.ones(len(X)))
    assert len(ledger.history("people")) == before


def test_it_is_said_on_the_command_line(tmp_path, capsys):
    X, y = rows()
    X.assign(target=y, times=10.0).to_csv(tmp_path / "rows.csv", index=False)
    SCHEMA.save(tmp_path / "s.json")
    out = ["--out", str(tmp_path / "m.json"), "--quiet", "--n-estimators", "2"]
    command = ["fit", str(tmp_path / "rows.csv"), "--schema", str(tmp_path / "s.json"), *out]
    assert cli.main([*command, "--epsilon", "4", "--delta", "1e-6", "--weight", "times"]) == 0
    assert capsys.readouterr().err.startswith("dpgb-dask: MaxWeightWarning: WEIGHTS COUNT UP TO 1")


@pytest.mark.filterwarnings("ignore::dpgb_dask.MaxWeightWarning")
def test_the_report_says_whether_a_column_weighs_the_rows():
    X, y = rows()
    weighted = quick(SCHEMA).fit(X, y, np.ones(len(X))).privacy_report_
    assert weighted.public["weighted by a column"] == "yes"
    assert "weighted by a column" not in quick(SCHEMA).fit(X, y).privacy_report_.public
