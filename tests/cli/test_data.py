"""``check`` and ``convert``."""

import pytest
from cli_parts import BUDGET, run

from dpgb_dask import Schema


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_check_says_loudly_that_it_is_not_private(place, people, kind, capsys):
    assert run("check", place / f"people.{kind}", "--schema", place / "schema.json") == 0
    out = capsys.readouterr().out
    assert "NOT PRIVATE" in out
    assert f"z: {people['z'].isna().sum()} missing" in out
    assert "target: 0 unknown" in out


def test_convert_says_what_is_wrong(place, binary_schema, capsys):
    schema = ("--schema", place / "schema.json")
    for options, words in [
        (("people.parquet", "--out", place / "d.zarr"), "holds no schema"),
        (("people.zarr", "--out", place / "d.zarr"), "holds no schema"),
        (("people.parquet", *schema, "--out", place / "d"), "must end in .zarr"),
        (("people.parquet", *schema, "--out", place / "no" / "d.zarr"), "does not exist. Make it"),
        (("people.parquet", *schema, "--out", place / "people.zarr"), "exists already"),
        (
            ("people.parquet", *schema, "--out", place / "people.zarr", "--overwrite"),
            "not replaced",
        ),
        (("nothing.parquet", *schema, "--out", place / "d.zarr"), "does not exist"),
    ]:
        assert run("convert", place / options[0], *options[1:]) == 1
        assert words in capsys.readouterr().err
        assert not (place / "d.zarr").exists()
    assert run("convert", place / "people.parquet", *schema, "--out", place / "d.zarr") == 0
    facts = binary_schema.to_dict()
    facts["features"]["other"] = facts["features"].pop("x")
    Schema.from_dict(facts).save(place / "other.json")
    options = ("--schema", place / "other.json", "--out", place / "m.json", *BUDGET)
    assert run("fit", place / "d.zarr", *options) == 1
    assert "other features" in capsys.readouterr().err
