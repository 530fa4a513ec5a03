"""``dpgb-dask schema``: a file's names and declared types; the other commands refuse what is open."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from cli_parts import fitted, run

from dpgb_dask import Datetime, Schema
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
    told = capsys.readouterr()
    said = told.out
    assert not told.err
    # a Zarr group's columns are in the order of their names, a file's in its own
    first = {"parquet": "'x': low, high", "csv": "'x': type", "zarr": "'age': low, high"}[kind]
    assert f"feature {first}\n" in said
    assert "target: type\n" in said
    draft = out.read_text()
    assert set(json.loads(draft)["features"]) == set(people.columns) - {"target"}
    assert not any(str(value) in draft for value in people["x"][:20])
    assert run("check", data, "--schema", out) == 1
    assert f"facts are open: feature {first}; " in capsys.readouterr().err
    assert filled(out, binary_schema).features == binary_schema.features
    assert run("check", data, "--schema", out) == 0


def test_without_out_the_draft_is_printed(place, capsys):
    assert run("schema", place / "people.parquet") == 0
    said = capsys.readouterr()
    assert "--target COLUMN" in said.err
    facts = json.loads(said.out)
    assert facts["target"]["name"].startswith(FILL_IN)
    assert facts["features"]["color"]["type"] == "categorical"
    assert facts["features"]["color"]["categories"].startswith(FILL_IN)


def test_a_line_that_was_not_split_is_told_from_a_wrong_name(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("age;high_income\n31;0\n")
    assert run("schema", tmp_path / "a.csv", "--target", "high_income") == 1
    assert "It has one column: is it the delimiter of a text, or a title" in capsys.readouterr().err
    assert run("schema", tmp_path / "a.csv") == 0  # a draft of one name; nothing else would tell
    assert "It has one column: is it the delimiter of a text, or a title" in capsys.readouterr().err
    assert run("schema", tmp_path / "a.csv", "--delimiter", ";") == 0
    assert "one column" not in capsys.readouterr().err
    assert run("schema", tmp_path / "a.csv", "--target", "high_incom", "--delimiter", ";") == 1
    assert "Did you mean 'high_income'?" in capsys.readouterr().err


def test_a_file_without_a_header_has_no_draft(tmp_path, capsys):
    """Its first line is a person."""
    path = tmp_path / "h.csv"
    path.write_text("Alice Secret,1987-03-04,51000\nBob Other,1990-01-01,7\n")
    assert run("schema", path) == 1
    said = capsys.readouterr()
    assert "--header" in said.err
    assert not any(word in said.out + said.err for word in ("Alice", "1987", "51000"))
    path.write_text("sep=;\ntown;age\nUlm;1\n")
    assert run("schema", path, "--delimiter", ";") == 1
    assert "may have a title or sep=; there" in capsys.readouterr().err
    path.write_text("town,2019,2020\nUlm,1,2\n")
    assert run("schema", path, "--header") == 0
    draft = json.loads(capsys.readouterr().out)
    assert list(draft["features"]) == ["town", "2019", "2020"]
    assert "check that it is a header and not a person" in " ".join(draft["draft"])


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


@pytest.mark.usefixtures("seeded")
def test_files_of_every_kind_hold_dates_truths_and_many_categories(tmp_path, capsys):
    rng = np.random.default_rng(1)
    n = 300
    people = pd.DataFrame(
        {
            "when": np.datetime64("2019-11-01T05:00:00") + rng.integers(0, 500, n).astype("m8[D]"),
            "zip": rng.choice(["01067", "10115", "99999"], n),
            "member": rng.random(n) < 0.5,
            "y": rng.integers(0, 2, n),
        }
    )
    schema = Schema(
        {
            "when": Datetime("2020-01-01", "2020-12-31", ("month", "hour")),
            "zip": {"from": {"01067": "Dresden", "10115": "Berlin"}},
            "member": bool,
        },
        classes=[0, 1],
        target="y",
    )
    schema.save(tmp_path / "s.json")
    people.to_parquet(tmp_path / "p.parquet")
    people.to_csv(tmp_path / "p.csv", index=False)
    group = zarr.create_group(tmp_path / "p.zarr")
    for name, column in people.items():
        text = name == "zip"
        group.create_array(
            name,
            data=column.to_numpy().astype(np.dtypes.StringDType()) if text else column.to_numpy(),
        )
    given = ("--schema", tmp_path / "s.json")
    assert run("convert", tmp_path / "p.csv", *given, "--out", tmp_path / "d.zarr") == 0
    files = ["p.parquet", "p.csv", "p.zarr", "d.zarr"]
    models = {
        fitted(tmp_path, tmp_path / name, *given, "--recipe", "fdp-tr-newton", "--n-estimators", 2)
        for name in files
    }
    assert len(models) == 1
    said = set()
    for name in files:
        out = tmp_path / f"{name}.csv"
        assert (
            run("predict", tmp_path / "fitted.json", tmp_path / name, "--proba", "--out", out) == 0
        )
        said.add(out.read_text())
    assert len(said) == 1
    capsys.readouterr()
    people.assign(when=1).to_parquet(tmp_path / "bad.parquet")
    assert run("check", tmp_path / "bad.parquet", *given) == 1
    assert (
        "feature 'when' is declared as dates, but its column holds whole numbers"
        in capsys.readouterr().err
    )


def test_zarr_of_xarray_has_the_types_that_it_stands_for_and_no_coordinates(tmp_path):
    rows = pd.DataFrame(
        {"age": [41.0, np.nan], "when": pd.to_datetime(["2020-01-01", "2020-01-03"]), "y": [0, 1]}
    )
    table = xr.Dataset.from_dataframe(rows)
    table.to_zarr(
        tmp_path / "x.zarr",
        encoding={"age": {"dtype": "int8", "_FillValue": -1}},
        consolidated=False,
    )
    assert set(zarr.open_group(tmp_path / "x.zarr", mode="r")) == {"age", "when", "y", "index"}
    assert run("schema", tmp_path / "x.zarr", "--target", "y", "--out", tmp_path / "d.json") == 0
    features = json.loads((tmp_path / "d.json").read_text())["features"]
    types = {name: (feature["type"], feature.get("integer")) for name, feature in features.items()}
    assert types == {"age": ("numeric", False), "when": ("datetime", None)}


@pytest.mark.parametrize("kind", ["parquet", "csv", "zarr"])
def test_a_draft_names_its_unit(kind, place, capsys):
    assert run("schema", place / f"people.{kind}", "--target", "target", "--unit", "color") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["unit_id"] == "color"
    assert "color" not in facts["features"]
    assert run("schema", place / f"people.{kind}", "--unit", "colour") == 1
    assert (
        "--unit='colour' is no column of the data. Did you mean 'color'?" in capsys.readouterr().err
    )
