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
    assert json.loads(capsys.readouterr().out)["epsilon"] == 4


def test_wrong_model_files_are_one_clear_line(place, capsys):
    (place / "bad.json").write_text("{}")
    assert run("report", place / "bad.json") == 1
    assert run("predict", place / "bad.json", place / "people.parquet", "--out", place / "o") == 1
    assert capsys.readouterr().err.count("\n") == 2
