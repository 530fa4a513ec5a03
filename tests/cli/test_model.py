"""``report``, and model files that are none."""

import json

from cli_parts import BUDGET, run


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


def test_wrong_model_files_are_one_clear_line(place, capsys):
    (place / "bad.json").write_text("{}")
    assert run("report", place / "bad.json") == 1
    assert run("predict", place / "bad.json", place / "people.parquet", "--out", place / "o") == 1
    assert capsys.readouterr().err.count("\n") == 2
