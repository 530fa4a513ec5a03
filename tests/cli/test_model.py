"""``report``, and model files that are none."""

import json
import sys

import pytest
from cli_parts import BUDGET, run

from dpgb_dask.cli.messages import report_text
from dpgb_dask.released.sections import WIDTH


def test_report_prints_and_is_json(place, capsys):
    model = place / "model.json"
    run("fit", place / "people.parquet", "--schema", place / "schema.json", "--out", model, *BUDGET)
    capsys.readouterr()
    assert run("report", model) == 0
    assert "add or remove one row" in capsys.readouterr().out
    assert run("report", model, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["epsilon"] == 4
    assert told["digests"] == json.loads(model.read_text())["digests"]
    page = place / "report.html"
    assert run("report", model, "--html", page) == 0
    assert told["digests"]["fit"] in page.read_text(encoding="utf-8")
    assert run("report", model, "--html", page) == 1  # it replaces nothing unless told to
    assert run("report", model, "--html", page, "--overwrite") == 0
    capsys.readouterr()
    assert run("report", model, "--html", model, "--overwrite") == 1
    assert f"--html {str(model)!r} would be written where" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("terminal", "columns", "widest"),
    [(True, "50", 50), (True, "10", 40), (True, "300", WIDTH), (False, "50", WIDTH)],
)
def test_a_report_is_as_wide_as_a_narrow_terminal(
    classifier, monkeypatch, terminal, columns, widest
):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert report_text(classifier.privacy_report_).splitlines()[1] == "=" * widest


def test_wrong_model_files_are_one_clear_line(place, capsys):
    (place / "bad.json").write_text("{}")
    assert run("report", place / "bad.json") == 1
    assert run("predict", place / "bad.json", place / "people.parquet", "--out", place / "o") == 1
    assert capsys.readouterr().err.count("\n") == 2
