"""``dpgb-dask schema``: a file's names and declared types; the other commands refuse what is open."""

import json

import pytest
from cli_parts import run

from dpgb_dask import Schema
from dpgb_dask.contracts.blanks import FILL_IN


def filled(path, binary_schema):
    """Fill in a draft by hand, with an editor's means: its JSON."""
    facts = json.loads(path.read_text())
    known = binary_schema.to_dict()
    facts["features"] = {name: known["features"][name] for name in facts["features"]}
    facts["target"] |= known["target"]
    path.write_text(json.dumps(facts))
    return Schema.load(path)


@pytest.mark.parametrize("kind", ["parquet", "csv", "zarr"])
def test_a_file_has_a_draft_which_becomes_its_schema(kind, place, people, binary_schema, capsys):
    data, out = place / f"people.{kind}", place / "draft.json"
    assert run("schema", data, "--target", "target", "--out", out) == 0
    said = capsys.readouterr().out
    first = {"parquet": "'x': low, high", "csv": "'x': type", "zarr": "'age': low, high"}[kind]
    assert f"feature {first}\n" in said
    assert "target: type\n" in said
    draft = out.read_text()
    assert set(json.loads(draft)["features"]) == set(people.columns) - {"target"}
    assert not any(str(value) in draft for value in people["x"][:20])
    assert run("check", data, "--schema", out) == 1
    assert f"facts are open: feature {first}; " in capsys.readouterr().err
    if kind != "zarr":  # its group has another order of columns
        assert filled(out, binary_schema).features == binary_schema.features
        assert run("check", data, "--schema", out) == 0


def test_without_out_the_draft_is_printed(place, capsys):
    assert run("schema", place / "people.parquet") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["target"]["name"].startswith(FILL_IN)
    assert facts["features"]["color"]["type"] == "categorical"
    assert facts["features"]["color"]["categories"].startswith(FILL_IN)


def test_what_has_no_draft_is_named(place, capsys):
    run(
        "convert",
        place / "people.csv",
        "--schema",
        place / "schema.json",
        "--out",
        place / "d.zarr",
    )
    (place / "taken.json").touch()
    for options, words in [
        (("d.zarr",), "holds its schema"),
        (("nothing.csv",), "does not exist"),
        (("people.csv", "--target", "targer"), "Did you mean 'target'"),
        (("people.parquet", "--delimiter", ";"), "--delimiter is for files of text"),
        (("people.csv", "--out", place / "taken.json"), "exists already"),
        (("people.csv", "--out", place / "people.csv", "--overwrite"), "people.csv"),
    ]:  # fmt: skip
        assert run("schema", place / options[0], *options[1:]) == 1
        assert words in capsys.readouterr().err
