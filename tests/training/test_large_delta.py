"""A fit says that delta is large: by itself before anything is charged, and beside the released number of rows."""

import warnings

import numpy as np
import pytest
from warning_parts import quick, rows

from dpgb_dask import LargeDeltaWarning, Schema, cli

SCHEMA = Schema({"x": (0.0, 1.0)}, classes=[0, 1], max_weight=4)


class StopError(Exception):
    pass


@pytest.mark.parametrize("delta", [1e-3, 0.1, 0.9])
def test_a_large_delta_is_said_and_reported(delta):
    est = quick(SCHEMA, delta=delta)
    with pytest.warns(LargeDeltaWarning, match=f"delta={delta:g} is the chance .* 1e-6") as caught:
        est.fit(*rows())
    (said,) = caught
    assert said.filename == __file__
    assert est.privacy_report_.warnings == (str(said.message),)
    assert "!!! LARGE DELTA" in str(est.privacy_report_)


def test_a_large_delta_is_said_before_anything_is_charged(ledger):
    est = quick(SCHEMA, delta=0.1, noise=None, ledger=ledger, account="people")
    before = len(ledger.history("people"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LargeDeltaWarning):
            est.fit(*rows())
    assert len(ledger.history("people")) == before


@pytest.mark.parametrize("options", [{"delta": 9.9e-4 / 4}, {"delta": 0.1, "recipe": "dpboost"}])
def test_a_small_delta_or_one_that_is_not_spent_is_not_said(options):
    report = quick(SCHEMA, **options).fit(*rows()).privacy_report_  # warnings are errors here
    assert report.warnings == ()


@pytest.mark.parametrize(
    ("options", "weight", "named"),
    [
        ({}, None, "of rows: by a released number, there are 3"),
        ({"unit_id": "person", "max_rows_per_unit": 2}, None, "of units 'person'"),
        ({}, 4.0, "of rows"),
    ],
    ids=["rows", "units", "weights"],
)
def test_delta_beside_the_released_number_of_rows_is_said(options, weight, named):
    """Just above, and well below, one over the number of rows or units, of the largest weight each."""
    X, y = rows(4000)
    per_unit = options.get("max_rows_per_unit", 1)
    if per_unit > 1:
        X["person"] = np.arange(len(X)) // per_unit
    weights = None if weight is None else np.full(len(X), weight)
    est = quick(SCHEMA, delta=9.9e-4, **options)
    with pytest.warns(LargeDeltaWarning, match=f"not below one over the number {named}"):
        est.fit(X, y, weights)
    assert "drawn at random" in str(est.privacy_report_)
    below = 0.8 * per_unit / len(X)
    assert quick(SCHEMA, delta=below, **options).fit(X, y, weights).privacy_report_.warnings == ()


def test_a_large_delta_is_said_on_the_command_line(tmp_path, capsys):
    X, y = rows()
    X.assign(target=y).to_csv(tmp_path / "rows.csv", index=False)
    SCHEMA.save(tmp_path / "s.json")
    out = ["--out", str(tmp_path / "m.json"), "--quiet", "--n-estimators", "2"]
    command = ["fit", str(tmp_path / "rows.csv"), "--schema", str(tmp_path / "s.json"), *out]
    assert cli.main([*command, "--epsilon", "4", "--delta", "0.01"]) == 0
    said = capsys.readouterr()
    assert "LargeDeltaWarning: LARGE DELTA: delta=0.01" in said.err
    assert "!!! LARGE DELTA" in said.out
