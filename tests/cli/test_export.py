"""``export``: every runtime by name, options of SQL, files that are not replaced."""

import pytest
from cli_parts import run


@pytest.fixture
def saved(classifier, tmp_path):
    classifier.save(tmp_path / "model.json")
    return tmp_path / "model.json"


@pytest.mark.parametrize(
    ("runtime", "begins"), [("python", b"# "), ("xgboost", b'{"version"'), ("sql", b"-- ")]
)
def test_export_writes_each_runtime(saved, capsys, runtime, begins):
    out = saved.with_name("out")
    assert run("export", saved, "--to", runtime, "--out", out) == 0
    assert out.read_bytes().startswith(begins)
    assert b"Privacy report" in out.read_bytes()
    assert run("export", saved, "--to", runtime, "--out", out) == 1
    assert "exists already" in capsys.readouterr().err
    assert (
        run("export", saved, "--to", runtime, "--out", saved, "--overwrite") == 1
    )  # its own model


def test_export_takes_options_of_sql_for_sql_alone(saved, capsys):
    out = saved.with_name("out.sql")
    options = ("--table", "people", "--keep", "id", "--dialect", "duckdb")
    assert run("export", saved, "--to", "sql", "--out", out, *options) == 0
    assert 'FROM "people" AS r' in out.read_text()
    assert run("export", saved, "--to", "python", "--out", saved.with_name("x"), *options) == 2
    assert "--dialect, --table, --keep: for --to sql alone" in capsys.readouterr().err
