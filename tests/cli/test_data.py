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


def test_check_shows_what_is_no_number_in_a_file_of_text(place, binary_schema, capsys):
    facts = binary_schema.to_dict() | {
        "features": {"size": {"type": "numeric", "low": 0, "high": 9}}
    }
    Schema.from_dict(facts).save(place / "one.json")
    label = binary_schema.target.classes[0]
    (place / "one.csv").write_text(f"size;target\n1,5;{label}\n1,5;{label}\n2.5;{label}\n")
    command = ("check", place / "one.csv", "--schema", place / "one.json", "--delimiter", ";")
    assert run(*command) == 0
    assert "size: 2 missing, among them '1,5' (2 times)" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["parquet", "csv", "zarr"])
def test_check_refuses_data_without_the_target_as_fit_does(place, people, kind, capsys):
    schema = ("--schema", place / "schema.json", "--target", "taget")
    assert run("check", place / f"people.{kind}", *schema) == 1
    said = capsys.readouterr()
    assert "target: column 'taget' is not in the data; a fit refuses this file\n" in said.out
    assert "Name another column with --target." in said.err
    assert run("fit", place / f"people.{kind}", *schema, "--out", place / "m.json", *BUDGET) == 1
    people[["x", "z"]].to_csv(place / "few.csv")
    assert run("check", place / "few.csv", "--schema", place / "schema.json") == 1


def test_check_says_that_rows_cannot_be_read(place, capsys):
    """And no word of the reader's error, which may quote a value."""
    raw = bytearray((place / "people.parquet").read_bytes())
    raw[4:200] = bytes(196)  # the first page
    (place / "people.parquet").write_bytes(raw)
    assert run("check", place / "people.parquet", "--schema", place / "schema.json") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("dpgb-dask: ChunkError: A chunk of the source failed to load:")


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
