"""The command line: what it prints, what it writes, and its exit codes."""

import json
import re
from argparse import Namespace
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from odd_lines import BAD_LINES, ODD_LINES
from sklearn.metrics import roc_auc_score

from dpgb_dask import DPGBClassifier, Ledger, Schema, __version__, cli, encode
from dpgb_dask.cli import demo_block, demo_data, main
from dpgb_dask.private.units import NO_UNIT, hash_units
from dpgb_dask.testing import SeededNoise


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def client(client):
    """The client of conftest, which dask is told to use."""
    with dask.config.set(scheduler=None):
        yield client


@pytest.fixture
def people(features, labels):
    return features.assign(target=labels)


@pytest.fixture
def place(tmp_path, binary_schema, people):
    """A directory with a schema file and the same rows as Parquet, CSV and Zarr."""
    binary_schema.save(tmp_path / "schema.json")
    people.to_parquet(tmp_path / "people.parquet")
    people.to_csv(tmp_path / "people.csv", index=False)
    group = zarr.create_group(tmp_path / "people.zarr")
    for name in ("x", "z", "age", "target"):
        group.create_array(name, data=people[name].to_numpy(np.float64), chunks=(400,))
    color = people["color"].map({"blue": 0, "green": 1, "red": 2}).fillna(-1).to_numpy(np.float64)
    group.create_array("color", data=color, chunks=(300,))
    return tmp_path


def run(*arguments):
    return main([str(argument) for argument in arguments])


BUDGET = ("--epsilon", 4, "--delta", 1e-6, "--quiet")


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_fit_and_predict_read_tables(place, people, kind, capsys):
    model = place / "model.json"
    data = place / f"people.{kind}"
    assert run("fit", data, "--schema", place / "schema.json", "--out", model, *BUDGET) == 0
    printed = capsys.readouterr()
    assert "(4, 1e-06)-differential privacy" in printed.out
    assert str(model) in printed.out
    assert run("predict", model, data, "--proba", "--out", place / "out.csv") == 0
    table = pd.read_csv(place / "out.csv")
    assert list(table.columns) == ["prediction", "proba_0", "proba_1"]
    assert roc_auc_score(people["target"], table["proba_1"]) > 0.8
    assert run("predict", model, data, "--out", place / "out") == 0
    again = pd.read_parquet(place / "out")
    np.testing.assert_array_equal(again["prediction"], table["prediction"])
    want = DPGBClassifier.load(model).predict(people)
    np.testing.assert_array_equal(table["prediction"], want)


def test_predict_takes_files_with_more_columns_and_keeps_some(place, people, capsys):
    model = place / "model.json"
    run("fit", place / "people.csv", "--schema", place / "schema.json", "--out", model, *BUDGET)
    want = DPGBClassifier.load(model).predict(people)
    more = people.assign(id=[f"p{k:04}" for k in range(len(people))], **{"a, b": 1, "Jane Doe": 2})
    more = more[["id", "x", "Jane Doe", "z", "age", "color", "a, b"]]
    more.to_csv(place / "more.csv", index=False)
    more.to_parquet(place / "more.parquet")
    for data in ("more.csv", "more.parquet"):
        for out in ("p.csv", "p.tsv", "p.csv.gz", "p.parquet", "folder"):
            keep = ("--keep", "id,age", "--keep", "a, b", "--proba", "--overwrite")
            assert run("predict", model, place / data, "--out", place / out, *keep) == 0
            if out.endswith("parquet") or out == "folder":
                got = pd.read_parquet(place / out)
            else:
                got = pd.read_csv(place / out, sep="\t" if "tsv" in out else ",")
            names = ["id", "age", "a, b", "prediction", "proba_0", "proba_1"]
            assert list(got.columns) == names
            np.testing.assert_array_equal(got["prediction"], want)
            assert got["id"].tolist() == more["id"].tolist()
    assert not list(place.glob(".part*"))
    capsys.readouterr()
    for options, words in (
        (("--keep", "nothing"), "'nothing' is no column of the data"),
        (("--keep", "id,nothing"), "'nothing' is no column of the data"),
    ):
        assert run("predict", model, place / "more.csv", "--out", place / "q.csv", *options) == 1
        printed = capsys.readouterr().err
        assert words in printed
        assert "Jane" not in printed
    more.rename(columns={"id": "prediction"}).to_csv(place / "clash.csv", index=False)
    keep = ("--keep", "prediction", "--out", place / "q.csv")
    assert run("predict", model, place / "clash.csv", *keep) == 1
    assert "name of a prediction" in capsys.readouterr().err
    assert not (place / "q.csv").exists()


def test_predictions_of_text_are_parquet_too(place, people):
    facts = json.loads((place / "schema.json").read_text())
    facts["target"]["classes"] = ["no", "yes"]
    (place / "text.json").write_text(json.dumps(facts))
    table = people.assign(target=np.where(people["target"] == 1, "yes", "no"))
    table.to_csv(place / "text.csv", index=False)
    fit = ("--schema", place / "text.json", "--out", place / "m.json", *BUDGET)
    assert run("fit", place / "text.csv", *fit) == 0
    assert run("predict", place / "m.json", place / "text.csv", "--out", place / "p.parquet") == 0
    assert set(pd.read_parquet(place / "p.parquet")["prediction"]) == {"no", "yes"}


def test_predict_keeps_columns_of_zarr(place, people):
    data = Schema.load(place / "schema.json").to_dict()
    data["features"]["color"]["categories"] = [0, 1, 2]
    Schema.from_dict(data).save(place / "numbers.json")
    model = ("--out", place / "model.json", *BUDGET)
    assert run("fit", place / "people.zarr", "--schema", place / "numbers.json", *model) == 0
    source = zarr.open_group(place / "people.zarr", mode="r")
    columns = [source[name][:] for name in ("x", "z", "age", "color")]
    matrix = zarr.create_group(place / "matrix.zarr")
    matrix.create_array("X", data=np.stack(columns, axis=1), chunks=(500, 4))
    matrix.create_array("y", data=source["target"][:], chunks=(400,))
    for data, name in (("people.zarr", "target"), ("matrix.zarr", "y")):
        options = ("--keep", name, "--out", place / "out.csv", "--overwrite")
        assert run("predict", place / "model.json", place / data, *options) == 0
        got = pd.read_csv(place / "out.csv")
        np.testing.assert_array_equal(got[name], people["target"])


@pytest.mark.parametrize("name", ["p.xlsx", "p.json", "p.parquet.gz", "p.gz", "p.feather", "p.txt"])
def test_predict_refuses_suffixes_that_it_does_not_know(place, name, capsys):
    assert run("predict", place / "m.json", place / "people.csv", "--out", place / name) == 1
    printed = capsys.readouterr().err
    assert "is not known. Give *.csv" in printed
    assert not (place / name).exists()


def test_only_what_is_asked_for_is_replaced(place, capsys):
    schema = ("--schema", place / "schema.json")
    fit = ("fit", place / "people.csv", *schema, *BUDGET, "--recipe", "fdp-tr-newton")
    (place / "m.json").write_text("something")
    assert run(*fit, "--out", place / "m.json") == 1
    assert "--overwrite" in capsys.readouterr().err
    assert (place / "m.json").read_text() == "something"
    assert run(*fit, "--out", place / "m.json", "--overwrite") == 0
    predict = ("predict", place / "m.json", place / "people.csv", "--overwrite")
    (place / "home").mkdir()
    (place / "home" / "letter.txt").write_text("dear")
    (place / "file").write_text("kept")
    for name in ("home", "file"):
        assert run(*predict, "--out", place / name) == 1
        assert "is not replaced" in capsys.readouterr().err
    assert run(*fit, "--out", place / "home", "--overwrite") == 1
    assert "is not a file" in capsys.readouterr().err
    for _ in range(2):
        for name in ("out", "out.csv"):
            assert run(*predict, "--out", place / name) == 0
    assert (place / "home" / "letter.txt").read_text() == "dear"
    assert (place / "file").read_text() == "kept"


def everything(folder):
    """Each file below a folder, with what is in it."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_overwrite_never_replaces_what_is_read_or_a_ledger(place, people, capsys):
    url = f"sqlite:///{place}/b.db"
    assert run("ledger", "open", url, "people", "--epsilon", 9, "--delta", 1e-6) == 0
    charge = ("--ledger", url, "--account", "people")
    schema = ("--schema", place / "schema.json")
    quick = (*BUDGET, "--recipe", "fdp-tr-newton", "--n-estimators", 1, "--overwrite")
    csv = place / "people.csv"
    assert run("fit", csv, *schema, *quick, "--out", place / "m.json") == 0
    assert run("convert", csv, *schema, "--out", place / "set.zarr") == 0
    folder = place / "parts.parquet"
    folder.mkdir()
    for name in ("a", "b"):
        people.to_parquet(folder / f"{name}.parquet")
    (place / "link.csv").symlink_to(csv)
    (place / "link.parquet").symlink_to(folder)
    (place / "name.csv").hardlink_to(csv)
    (place / ".part-o.csv").write_bytes(csv.read_bytes())
    (place / "o.json.part").write_bytes((place / "schema.json").read_bytes())
    (place / "set.zarr" / "s.json").write_bytes((place / "schema.json").read_bytes())
    (place / "set.zarr" / "in.csv").write_bytes(csv.read_bytes())
    (ledger,) = place.glob("ledger-*")
    model, pattern = place / "m.json", place / "*.csv"
    fit = ("fit", csv, *schema, *quick)
    cases = [
        ("predict", model, csv, "--out", csv, "--overwrite"),
        ("predict", model, f"file://{csv}", "--out", csv, "--overwrite"),
        ("predict", model, csv, "--out", place / "link.csv", "--overwrite"),
        ("predict", model, csv, "--out", place / "name.csv", "--overwrite"),
        ("predict", model, place / "link.csv", "--out", csv, "--overwrite"),
        ("predict", model, pattern, "--out", csv, "--overwrite"),
        ("predict", model, place / ".part-o.csv", "--out", place / "o.csv"),
        ("predict", model, folder, "--out", folder, "--overwrite"),
        ("predict", model, place / "link.parquet", "--out", folder, "--overwrite"),
        ("predict", model, folder / "*.parquet", "--out", folder, "--overwrite"),
        ("predict", model, folder / "a.parquet", "--out", folder, "--overwrite"),
        ("predict", model, folder, "--out", folder / "new.csv"),
        ("predict", model, place / "set.zarr", "--out", place / "set.zarr" / "X.csv"),
        ("predict", model, csv, "--out", ledger / "x.csv"),
        (*fit, "--out", csv),
        (*fit, "--out", place / "schema.json"),
        ("fit", csv, "--schema", place / "o.json.part", *quick, "--out", place / "o.json"),
        ("fit", folder, *schema, *quick, "--out", folder / "a.parquet"),
        (*fit, "--out", folder.parent / "x" / ".." / "people.csv"),
        *((*fit, *charge, "--out", f"{place}/b.db{end}") for end in ("", "-wal", "-shm", "-journal")),
        (*fit, "--out", place / "b.db"),  # nor one of which nobody spoke
        (*fit, "--out", ledger / "head"),
        (*fit, "--out", ledger / "journals" / "x.json"),
        ("convert", csv, "--schema", place / "set.zarr" / "s.json", "--out", place / "set.zarr", "--overwrite"),
        ("convert", place / "set.zarr" / "in.csv", *schema, "--out", place / "set.zarr", "--overwrite"),
        ("convert", place / "set.zarr", "--out", place / "set.zarr", "--overwrite"),
        ("convert", folder, *schema, "--out", folder / "d.zarr"),
        ("convert", csv, *schema, "--out", f"file://{ledger}/d.zarr"),
        ("demo", "--rows", 100, "--out", ledger / "m.json"),
    ]  # fmt: skip
    (place / "x").mkdir()
    (ledger / "journals").mkdir(exist_ok=True)
    before = everything(place)
    capsys.readouterr()
    for case in cases:
        assert run(*case) == 1, case
        assert "would be written where" in capsys.readouterr().err, case
        assert everything(place) == before, case
    (place / "set.zarr" / "in.csv").rename(place / "set.zarr" / "budget.db")
    (place / "set.zarr" / "budget.db").write_bytes((place / "b.db").read_bytes())
    assert run("convert", csv, *schema, "--out", place / "set.zarr", "--overwrite") == 1
    assert "what it holds is never replaced" in capsys.readouterr().err
    # beside them, and over what nobody reads, is allowed
    assert run("predict", model, csv, "--out", place / "y.csv") == 0
    assert run("predict", model, folder, "--out", place / "y.csv", "--overwrite") == 0
    assert run("predict", model, csv, "--out", folder, "--overwrite") == 0


def test_the_demo_replaces_its_own_model_alone(place, capsys):
    for text in ("a letter", "{}", None):
        if text is None:
            run(
                "fit",
                place / "people.csv",
                "--schema",
                place / "schema.json",
                "--out",
                place / "m.json",
                *BUDGET,
            )
        else:
            (place / "m.json").write_text(text)
        kept = (place / "m.json").read_text()
        capsys.readouterr()
        assert run("demo", "--rows", 2000, "--workers", 1, "--out", place / "m.json") == 1
        assert "no model of the demo" in capsys.readouterr().err
        assert (place / "m.json").read_text() == kept
        (place / "m.json").unlink()


def test_misspelt_words_are_recognised(place, capsys):
    for arguments, words in (
        (("ftt", "x"), "Did you mean 'fit'?"),
        (
            ("predict", "m.json", "d.csv", "--out", "o.csv", "--keeep", "id"),
            "Did you mean '--keep'?",
        ),
        (("ledger", "shw", "x"), "Did you mean 'show'?"),
        (
            ("ledger", "open", "u", "a", "--epsilon", 1, "--delta", 1, "--analysis", "zcpd"),
            "'zcdp'?",
        ),
    ):
        with pytest.raises(SystemExit):
            run(*arguments)
        assert words in capsys.readouterr().err
    fit = ("fit", place / "people.csv", "--out", place / "m.json", *BUDGET)
    schema = ("--schema", place / "schema.json")
    facts = json.loads((place / "schema.json").read_text())
    facts["features"]["x"]["hihg"] = facts["features"]["x"].pop("high")
    (place / "typo.json").write_text(json.dumps(facts))
    (place / "broken.json").write_text('{"version": 1,\n "features": oops}')
    (place / "latin.json").write_bytes(b'{"version": "\xe9"}')
    for options, words in (
        ((*schema, "--recipe", "fdp-tr-newtn"), "Did you mean 'fdp-tr-newton'?"),
        ((*schema, "--loss", "logloss"), "Did you mean 'log_loss'?"),
        (("--schema", place / "typo.json"), "Did you mean 'high'?"),
        (("--schema", place / "broken.json"), "is not JSON (line 2, column 14: Expecting value)"),
        (("--schema", place / "latin.json"), "is not JSON (byte 13 is no UTF-8)"),
        (
            (*schema, "--ledger", "budget.db", "--account", "a"),
            "Did you mean 'sqlite:///budget.db'?",
        ),
    ):
        assert run(*fit, *options) == 1
        assert words in capsys.readouterr().err
    assert run("report", place / "broken.json") == 1
    assert "is not JSON (line 2, column 14" in capsys.readouterr().err


def test_predict_does_not_overwrite(place, capsys):
    (place / "out.csv").write_text("kept")
    assert (
        run("predict", place / "model.json", place / "people.csv", "--out", place / "out.csv") == 1
    )
    assert "exists already" in capsys.readouterr().err
    assert (place / "out.csv").read_text() == "kept"


def test_fit_and_predict_join_a_scheduler(place, people, client):
    address = ("--scheduler", client.scheduler.address)
    model = place / "model.json"
    options = ("--schema", place / "schema.json", "--out", model, *BUDGET, *address)
    assert run("fit", place / "people.parquet", *options) == 0
    assert (
        run("predict", model, place / "people.parquet", "--out", place / "out.csv", *address) == 0
    )
    want = DPGBClassifier.load(model).predict(people)
    np.testing.assert_array_equal(pd.read_csv(place / "out.csv")["prediction"], want)


def test_fit_and_predict_read_zarr(place, binary_schema, people):
    data = binary_schema.to_dict()
    data["features"]["color"]["categories"] = [0, 1, 2]
    Schema.from_dict(data).save(place / "numbers.json")
    model = place / "model.json"
    assert (
        run(
            "fit",
            place / "people.zarr",
            "--schema",
            place / "numbers.json",
            "--out",
            model,
            *BUDGET,
        )
        == 0
    )
    assert run("predict", model, place / "people.zarr", "--proba", "--out", place / "out.csv") == 0
    assert roc_auc_score(people["target"], pd.read_csv(place / "out.csv")["proba_1"]) > 0.8
    matrix = zarr.create_group(place / "matrix.zarr")
    source = zarr.open_group(place / "people.zarr", mode="r")
    columns = [source[name][:] for name in binary_schema.names]
    matrix.create_array("X", data=np.stack(columns, axis=1), chunks=(500, 4))
    matrix.create_array("y", data=source["target"][:], chunks=(500,))
    again = place / "again.json"
    assert (
        run(
            "fit",
            place / "matrix.zarr",
            "--schema",
            place / "numbers.json",
            "--out",
            again,
            *BUDGET,
        )
        == 0
    )
    assert run("predict", again, place / "matrix.zarr", "--out", place / "out2.csv") == 0
    assert len(pd.read_csv(place / "out2.csv")) == len(people)


def test_csv_reads_declared_labels_and_missing_marks(tmp_path):
    schema = Schema(
        {"c": ["u", "NA"], "n": [1, 2], "b": [True, False], "x": (0, 1)}, classes=["no", "yes"]
    )
    (tmp_path / "s.csv").write_text(
        "c,n,b,x,target\nNA,1,true,NA,yes\nnull,2.0,False,0.5,no\n,,,,\n"
    )
    options = Namespace(data=str(tmp_path / "s.csv"), delimiter=None, encoding=None)
    got = cli._open_table(options, schema, strict=True)[0].compute()
    values = encode.read_values(got[list(schema.names)], schema)
    assert values.column(0).tolist() == [1, 3, 3]  # NA is declared: a category like any other
    assert values.column(1).tolist() == [0, 1, 3]
    assert values.column(2).tolist() == [0, 1, 3]
    np.testing.assert_array_equal(values.column(3), [np.nan, 0.5, np.nan])
    assert encode.encode_target(got["target"], schema)[1].tolist() == [True, True, False]


@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")
@pytest.mark.parametrize("kind", ["csv", "parquet", "text.parquet", "zarr"])
def test_units_are_read_as_they_stand_in_files(kind, tmp_path):
    """A missing one beside them rounds no other."""
    schema = Schema({"x": (0, 1)}, classes=[0, 1], target="y", unit_id="person")
    ids = [2**60, 2**60 + 1, 2**60, None, 7]
    path = tmp_path / f"people.{kind}"
    table = pd.DataFrame({"x": 0.5, "y": [0, 1, 0, 1, 0], "person": pd.array(ids, "Int64")})
    if kind == "csv":
        table.to_csv(path, index=False)
    elif kind == "zarr":
        group = zarr.create_group(path)
        for name in table:
            group.create_array(
                name, data=table[name].fillna(0).to_numpy("f8" if name == "x" else "i8")
            )
    else:
        table.astype({"person": "str" if kind == "text.parquet" else "Int64"}).to_parquet(path)
    options = Namespace(data=str(path), delimiter=None, encoding=None)
    X = cli._open_table(options, schema, strict=False)[0]
    hashes = hash_units(X["person"].compute(), bytes(32))
    assert hashes[0] == hashes[2]
    assert len(np.unique(hashes)) == 4
    assert (hashes[3] == NO_UNIT) == (kind != "zarr")  # 0 there, a unit like any other


def test_csv_types_come_from_the_schema_not_from_values(place, people, capsys):
    odd = people.astype({"x": object, "age": object}).copy()
    odd.loc[1400, "x"] = "not a number"
    odd.loc[1401, "age"] = ""
    odd.to_csv(place / "odd.csv", index=False)
    assert (
        run(
            "fit",
            place / "odd.csv",
            "--schema",
            place / "schema.json",
            "--out",
            place / "m.json",
            *BUDGET,
        )
        == 0
    )
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", [*BAD_LINES, *ODD_LINES])
def test_no_csv_line_ends_a_fit(place, name, capsys):
    header, *lines = (place / "people.csv").read_bytes().splitlines()
    odd = (BAD_LINES | ODD_LINES)[name]
    (place / "odd.csv").write_bytes(b"\n".join([header, odd, *lines]))
    options = ("--schema", place / "schema.json", "--out", place / "m.json", *BUDGET)
    assert run("fit", place / "odd.csv", *options, "--recipe", "fdp-tr-newton") == 0
    assert run("check", place / "odd.csv", "--schema", place / "schema.json") == 0
    assert capsys.readouterr().err == ""


def test_files_of_text_have_delimiters_and_encodings(place, people, capsys):
    """Whatever the file is like, the rows are the same, and so is the check."""
    schema = ("--schema", place / "schema.json")
    assert run("check", place / "people.csv", *schema) == 0
    want = capsys.readouterr().out
    for name, sep, flags in [
        ("people.tsv", "\t", ()),
        ("people.tsv.gz", "\t", ()),
        ("people.txt", ",", ()),
        ("semicolons.csv", ";", ("--delimiter", ";")),
        ("tabs.csv", "\t", ("--delimiter", "tab")),
        ("latin.TXT", "|", ("--delimiter", "|", "--encoding", "latin-1")),
    ]:
        people.to_csv(place / name, sep=sep, index=False, encoding="latin-1")
        assert run("check", place / name, *schema, *flags) == 0, capsys.readouterr().err
        assert capsys.readouterr().out == want
    for flag in (("--delimiter", ";"), ("--encoding", "latin-1")):
        assert run("check", place / "people.parquet", *schema, *flag) == 1
        assert f"{flag[0]} is for files of text" in capsys.readouterr().err
    assert run("check", place / "people.csv", *schema, "--encoding", "utf-16") == 1
    assert "iconv" in capsys.readouterr().err


def test_predict_leaves_no_csv_line_out(place, people, capsys):
    model = place / "model.json"
    run("fit", place / "people.csv", "--schema", place / "schema.json", "--out", model, *BUDGET)
    want = DPGBClassifier.load(model).predict(people)
    text = (place / "people.csv").read_bytes()
    header, *lines = text.splitlines()
    for name, line in BAD_LINES.items():
        (place / "bad.csv").write_bytes(b"\n".join([header, *lines, line, b""]))
        capsys.readouterr()
        assert run("predict", model, place / "bad.csv", "--out", place / "out.csv") == 1, name
        assert "5 fields" in capsys.readouterr().err
        assert not (place / "out.csv").exists()
    (place / "odd.csv").write_bytes(b"\n".join([header, *ODD_LINES.values(), *lines]))
    assert run("predict", model, place / "odd.csv", "--out", place / "out.csv") == 0
    got = pd.read_csv(place / "out.csv")["prediction"]
    np.testing.assert_array_equal(got[len(ODD_LINES) :], want)
    # a byte order mark, Windows line ends, blank lines
    (place / "windows.csv").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n") + b"\r\n")
    assert run("predict", model, place / "windows.csv", "--out", place / "out2.csv") == 0
    np.testing.assert_array_equal(pd.read_csv(place / "out2.csv")["prediction"], want)


def test_csv_files_of_a_pattern_share_their_header(place, people, capsys):
    options = ("--schema", place / "schema.json", "--out", place / "m.json", *BUDGET)
    people[:800].to_csv(place / "part-1.csv.gz", index=False)
    people[800:].to_csv(place / "part-2.csv.gz", index=False)
    assert run("fit", place / "part-*.csv.gz", *options) == 0
    assert run("predict", place / "m.json", place / "part-*.csv.gz", "--out", place / "out") == 0
    assert len(pd.read_parquet(place / "out")) == len(people)
    swapped = people[["z", "x", "age", "color", "target"]]
    swapped[800:].to_csv(place / "part-2.csv.gz", index=False)
    assert run("fit", place / "part-*.csv.gz", *options) == 1
    assert run("predict", place / "m.json", place / "part-*.csv.gz", "--out", place / "o") == 1
    assert "same first line" in capsys.readouterr().err


@pytest.mark.parametrize("header", ["", "x,x,age,color,target", 'x,"z,age'])
def test_a_csv_file_must_name_its_columns(place, header, capsys):
    (place / "none.csv").write_text(f"{header}\n1,1,50,red,1\n")
    assert run("check", place / "none.csv", "--schema", place / "schema.json") == 1
    assert "must name the columns" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "fate"), [("fit", "weighs nothing"), ("check", "weighs"), ("predict", "an error")]
)
def test_help_says_how_csv_lines_are_read(command, fate, capsys):
    with pytest.raises(SystemExit):
        run(command, "--help")
    text = capsys.readouterr().out
    assert "no line breaks" in text
    assert fate in text


def test_target_and_weight_are_columns(place, people):
    people.rename(columns={"target": "bought"}).assign(times=2.0).to_parquet(
        place / "other.parquet"
    )
    model = place / "model.json"
    options = ("--schema", place / "schema.json", "--out", model, *BUDGET)
    assert (
        run("fit", place / "other.parquet", "--target", "bought", "--weight", "times", *options)
        == 0
    )
    fitted = DPGBClassifier.load(model)
    assert fitted.schema_.target.name == "bought"
    assert "times" in fitted.schema_.ignore
    assert run("predict", model, place / "other.parquet", "--out", place / "out") == 0


def test_report_prints_and_is_json(place, capsys):
    model = place / "model.json"
    run("fit", place / "people.parquet", "--schema", place / "schema.json", "--out", model, *BUDGET)
    capsys.readouterr()
    assert run("report", model) == 0
    assert "add or remove one row" in capsys.readouterr().out
    assert run("report", model, "--json") == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == 4


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_check_says_loudly_that_it_is_not_private(place, people, kind, capsys):
    assert run("check", place / f"people.{kind}", "--schema", place / "schema.json") == 0
    out = capsys.readouterr().out
    assert "NOT PRIVATE" in out
    assert f"z: {people['z'].isna().sum()} missing" in out
    assert "target: 0 unknown" in out


def test_ledger_opens_shows_and_refuses(place, capsys):
    url = f"sqlite:///{place}/budget.db"
    assert run("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6) == 0
    fit = (
        "fit",
        place / "people.parquet",
        "--schema",
        place / "schema.json",
        "--delta",
        1e-6,
        "--quiet",
    )
    charged = ("--ledger", url, "--account", "people")
    assert run(*fit, "--epsilon", 0.9, "--out", place / "a.json", *charged) == 0
    capsys.readouterr()
    assert run("ledger", "show", url) == 0
    shown = capsys.readouterr().out
    assert "people: cap epsilon=1, delta=1e-06" in shown
    assert run(*fit, "--epsilon", 0.9, "--out", place / "b.json", *charged) == 3
    failed = capsys.readouterr()
    assert "\n  would fit   epsilon=" in failed.err  # its lines are lined up
    assert not (place / "b.json").exists()
    assert run("ledger", "show", url, "nobody") == 1
    assert run("ledger", "settle", url, "no-such-fit") == 1
    assert "no-such-fit" in capsys.readouterr().err


def test_ledger_accounts_have_an_analysis(place, capsys):
    """A pure account takes fits of pure recipes alone, and no delta."""
    url = f"sqlite:///{place}/pure.db"
    opened = ("ledger", "open", url, "people", "--epsilon", 3, "--delta", 0)
    assert run(*opened, "--analysis", "pure") == 0
    assert "analysis pure" in capsys.readouterr().out
    assert run(*opened) == 1  # Gaussian noise needs a delta
    with pytest.raises(SystemExit):
        run(*opened, "--analysis", "magic")
    common = ("--schema", place / "schema.json", "--delta", 1e-6, "--epsilon", 1, "--quiet")
    charged = ("--ledger", url, "--account", "people")
    fit = ("fit", place / "people.parquet", *common, *charged, "--out", place / "p.json")
    capsys.readouterr()
    assert run(*fit) == 1
    assert "not ε-differentially private" in capsys.readouterr().err
    trees = ("--recipe", "dpboost", "--max-depth", 3, "--n-estimators", 4, "--learning-rate", 0.3)
    assert run(*fit, *trees, "--loss", "log_loss") == 0
    assert "(1, 0)-differential privacy, pure" in capsys.readouterr().out
    assert run("ledger", "show", url) == 0
    shown = capsys.readouterr().out
    assert "analysis pure" in shown
    assert "66.67 % left" in shown


def test_ledger_settles_an_interrupted_fit(place, monkeypatch, capsys):
    url = f"sqlite:///{place}/budget.db"
    run("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6)

    def stop(*_event):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpgb_dask.progress.Bar.show", stop)
    fit = (
        "fit",
        place / "people.parquet",
        "--schema",
        place / "schema.json",
        "--delta",
        1e-6,
        "--epsilon",
        0.9,
    )
    out = place / "a.json"
    assert run(*fit, "--out", out, "--quiet", "--ledger", url, "--account", "people") == 130
    assert not out.exists()
    left = Ledger(url).remaining("people")
    fit_id = next(e.fit_id for e in Ledger(url).history("people") if e.fit_id)
    monkeypatch.undo()
    options = ("--out", out, "--quiet", "--ledger", url, "--account", "people", "--resume", fit_id)
    assert run(*fit, *options) == 0
    assert Ledger(url).remaining("people") == left
    assert DPGBClassifier.load(out).fit_id_ == fit_id
    capsys.readouterr()


def test_settle_gives_back_what_was_not_opened(place, monkeypatch):
    url = f"sqlite:///{place}/budget.db"
    run("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6)

    def stop(*_event):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpgb_dask.progress.Bar.show", stop)
    fit = (
        "fit",
        place / "people.parquet",
        "--schema",
        place / "schema.json",
        "--delta",
        1e-6,
        "--epsilon",
        0.9,
    )
    assert (
        run(*fit, "--out", place / "a.json", "--quiet", "--ledger", url, "--account", "people")
        == 130
    )
    left = Ledger(url).remaining("people")
    fit_id = next(e.fit_id for e in Ledger(url).history("people") if e.fit_id)
    assert run("ledger", "settle", url, fit_id) == 0
    assert Ledger(url).remaining("people") > left


def test_ledger_shows_fits_in_a_table(place, capsys, monkeypatch):
    url, name = break_off(place, monkeypatch), "people"
    (unfinished,) = {e.fit_id for e in Ledger(url).history(name)} - {""}
    fit = (*fit_people(place), "--recipe", "fdp-tr-newton", "--n-estimators", 1)
    charged = ("--quiet", "--ledger", url, "--account", name)
    assert run(*fit, "--out", place / "a.json", "--epsilon", 0.1, *charged) == 0
    released = DPGBClassifier.load(place / "a.json").fit_id_
    opened = {e.fit_id: e.at for e in Ledger(url).history(name) if e.kind == "RESERVED"}
    share = 100 * (1 - Ledger(url).account(name).left / Ledger(url).account(name).cap)
    capsys.readouterr()
    assert run("ledger", "show", url) == 0
    _, head, *fits, hint = capsys.readouterr().out.splitlines()
    assert head.split() == ["fit", "opened", "(UTC)", "recipe", "state", "charge"]
    told = [[unfinished, "auto", "UNFINISHED"], [released, "fdp-tr-newton", "RELEASED"]]
    charges = 0.0
    for line, (fit_id, recipe, state) in zip(fits, told, strict=True):
        words = line.split()
        assert words[:5] == [fit_id, opened[fit_id][:10], opened[fit_id][11:16], recipe, state]
        assert line.index(state) == head.index("state")
        assert " ".join(words[6:]) == "% of the cap"
        charges += float(words[5])
    assert abs(charges - share) < 0.02
    assert "--resume" in hint
    assert run("ledger", "settle", url, unfinished) == 0
    capsys.readouterr()
    assert run("ledger", "show", url) == 0
    _, _, settled, last = capsys.readouterr().out.splitlines()  # no hint: no fit is unfinished
    assert "SETTLED" in settled
    assert "RELEASED" in last


def model_of(place):
    return ("--schema", place / "schema.json", "--out", place / "m.json", *BUDGET)


@pytest.mark.parametrize("command", ["fit", "check", "convert", "predict"])
@pytest.mark.parametrize("name", ["no.parquet", "no.csv", "no-*.csv", "no.zarr", "no/people.csv"])
def test_data_that_are_not_there_are_said_not_to_exist(place, command, name, capsys):
    run("fit", place / "people.csv", *model_of(place))
    options = {
        "fit": ("--out", place / "o.json", *BUDGET),
        "check": (),
        "convert": ("--out", place / "o.zarr"),
        "predict": ("--out", place / "o.csv"),
    }[command]
    model = (place / "m.json",) if command == "predict" else ()
    schemas = [()] if command == "predict" else [(), ("--schema", place / "schema.json")]
    for schema in schemas:
        capsys.readouterr()
        assert run(command, *model, place / name, *schema, *options) == 1
        printed = capsys.readouterr().err
        assert f"{str(place / name)!r} does not exist. Give" in printed
        assert printed.count("\n") == 1


def test_zarr_that_is_no_data_set(place, people, capsys):
    zarr.create_group(place / "empty.zarr")
    (place / "folder.zarr").mkdir()
    numbers = people[["x", "z", "age"]].assign(color=0).to_numpy(np.float64)
    zarr.create_array(place / "matrix.zarr", data=numbers, chunks=(500, 4))
    for name, words in (
        ("empty.zarr", "holds no arrays"),
        ("folder.zarr", "cannot be read"),
        ("matrix.zarr", "'target' is not in the data"),
    ):
        assert run("fit", place / name, *model_of(place)) == 1
        assert words in capsys.readouterr().err
    assert run("fit", place / "people.csv", *model_of(place)) == 0
    out = place / "out.csv"
    assert run("predict", place / "m.json", place / "matrix.zarr", "--out", out) == 0
    assert len(pd.read_csv(out)) == len(people)


@pytest.mark.parametrize("limit", ["1.5", "-1GiB", "nan", "0", "GiB", "", "many", "True"])
def test_memory_limits_that_are_none_are_refused(place, limit, capsys):
    assert run("fit", place / "people.csv", *model_of(place), f"--memory-limit={limit}") == 1
    assert f"memory_limit={limit!r} must be a whole number of bytes" in capsys.readouterr().err


# ---- the way out, in the words of the command line -------------------------------------------------------------------


def fit_people(place):
    return ("fit", place / "people.parquet", "--schema", place / "schema.json", "--delta", 1e-6)


def break_off(place, monkeypatch):
    """Interrupt a fit of a new account after its first round; return the ledger's URL."""
    url = f"sqlite:///{place}/budget.db"
    run("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6)
    stop = Mock(side_effect=KeyboardInterrupt)
    options = ("--quiet", "--ledger", url, "--account", "people", "--epsilon", 0.5)
    with monkeypatch.context() as patched:
        patched.setattr("dpgb_dask.progress.Bar.show", stop)
        assert run(*fit_people(place), "--out", place / "broken.json", *options) == 130
    return url


def test_errors_name_flags_and_commands(place, monkeypatch, capsys):
    out = ("--schema", place / "schema.json", "--out", place / "d.zarr")
    assert run("convert", place / "people.csv", *out) == 0
    assert run("convert", place / "people.csv", *out) == 1
    assert "--overwrite" in capsys.readouterr().err
    monkeypatch.setattr("dpgb_dask.io._write", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr("dpgb_dask.io._Place.remove", lambda _self: None)
    half = ("--schema", place / "schema.json", "--out", place / "half.zarr")
    assert run("convert", place / "people.csv", *half) == 130
    capsys.readouterr()
    assert run("check", place / "half.zarr") == 1
    assert "not written to its end" in (printed := capsys.readouterr().err)
    assert "--overwrite" in printed


def test_errors_of_the_ledger_name_flags_and_commands(place, monkeypatch, capsys):
    url = break_off(place, monkeypatch)
    (fit_id,) = {e.fit_id for e in Ledger(url).history("people")} - {""}
    assert f"dpgb-dask ledger settle URL {fit_id}" in capsys.readouterr().err
    assert run("ledger", "show", url, "nobody") == 1
    assert "dpgb-dask ledger open" in capsys.readouterr().err
    assert run("ledger", "settle", url, "nothing") == 1
    assert "dpgb-dask ledger show" in capsys.readouterr().err
    fit = (*fit_people(place), "--epsilon", 0.5, "--out", place / "m.json", "--quiet")
    again = ("--ledger", url, "--account", "people", "--resume", fit_id)
    assert run(*fit, "--max-bins", 9, *again) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2  # what differs is on lines of its own
    assert lines[-1].startswith("Resume it with the same settings")


@pytest.mark.parametrize("quiet", [("--quiet",), ()])
def test_a_fit_says_its_id_before_a_row_is_read(place, quiet, monkeypatch, capsys):
    """After kill -9 there is no error that could say it."""
    url = f"sqlite:///{place}/budget.db"
    run("ledger", "open", url, "people", "--epsilon", 1, "--delta", 1e-6)
    told = []

    def read(*_arguments, **_options):
        told.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    options = ("--epsilon", 0.5, *quiet, "--ledger", url, "--account", "people")
    options += ("--out", place / "m.json")
    with monkeypatch.context() as patched:
        patched.setattr("dpgb_dask.training.fit.open_rounds", read)
        assert run(*fit_people(place), *options) == 130
    (fit_id,) = {e.fit_id for e in Ledger(url).history("people")} - {""}
    (line,) = (line for line in told[0].splitlines() if fit_id in line)
    assert line.split("\r")[-1].strip().startswith(f"dpgb-dask: Fit {fit_id} is charged.")
    assert f"--resume {fit_id}" in line
    capsys.readouterr()
    assert run(*fit_people(place), *options, "--resume", fit_id) == 0
    assert f"Fit {fit_id} is charged." in capsys.readouterr().err
    again = ("--resume", fit_id, "--quiet", *options[:-1], place / "again.json")
    assert run(*fit_people(place), *again) == 0  # it ended: there is nothing to resume
    assert fit_id not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("fit", "{}/schema.json", "--schema", "{}/schema.json", "--out", "{}/m.json"),
            "cannot be read",
        ),
        (
            ("fit", "{}/people.parquet", "--schema", "{}/nowhere.json", "--out", "{}/m.json"),
            "cannot be read",
        ),
        (
            ("fit", "{}/people.parquet", "--schema", "{}/schema.json", "--out", "{}/no/m.json"),
            "directory",
        ),
        (
            (
                "fit",
                "{}/people.parquet",
                "--schema",
                "{}/schema.json",
                "--out",
                "{}/m.json",
                "--target",
                "nothing",
            ),
            "'nothing' is not in the data",
        ),
        (
            (
                "fit",
                "{}/people.parquet",
                "--schema",
                "{}/schema.json",
                "--out",
                "{}/m.json",
                "--weight",
                "nothing",
            ),
            "'nothing' is not in the data. Name another with --weight",
        ),
        (
            (
                "fit",
                "{}/people.parquet",
                "--schema",
                "{}/schema.json",
                "--out",
                "{}/m.json",
                "--account",
                "a",
            ),
            "belong together",
        ),
        (
            (
                "fit",
                "{}/people.parquet",
                "--schema",
                "{}/schema.json",
                "--out",
                "{}/m.json",
                "--recipe",
                "magic",
            ),
            "recipe='magic'",
        ),
        (
            (
                *("fit", "{}/people.parquet", "--schema", "{}/schema.json", "--out", "{}/m.json"),
                *("--loss", "huber:0.2"),
            ),
            "loss='huber'",
        ),
        (
            (
                *("fit", "{}/people.parquet", "--schema", "{}/schema.json", "--out", "{}/m.json"),
                *("--loss", "quantile:high"),
            ),
            "must be a number",
        ),
        (
            (
                *("fit", "{}/people.parquet", "--schema", "{}/schema.json", "--out", "{}/m.json"),
                *("--loss", "log_loss:2"),
            ),
            "only ['huber', 'quantile'] have an option",
        ),
        (
            (
                *("fit", "{}/people.parquet", "--schema", "{}/schema.json", "--out", "{}/m.json"),
                *("--max-depth", "40"),
            ),
            "max_depth=40",
        ),
    ],
)
def test_errors_are_one_clear_line(place, arguments, words, capsys):
    assert (
        run(*(a.format(place) for a in arguments), "--epsilon", 1, "--delta", 1e-6, "--quiet") == 1
    )
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.startswith("dpgb-dask: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    assert not (place / "m.json").exists()


def test_wrong_model_files_are_one_clear_line(place, capsys):
    (place / "bad.json").write_text("{}")
    assert run("report", place / "bad.json") == 1
    assert run("predict", place / "bad.json", place / "people.parquet", "--out", place / "o") == 1
    assert capsys.readouterr().err.count("\n") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("fly",),
        ("fit", "x.parquet"),
        ("ledger",),
        ("demo", "--rows", "-1"),
        ("demo", "--rows", "x"),
    ],
)
def test_wrong_usage_exits_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(*arguments)
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("demo",),
        ("fit",),
        ("predict",),
        ("report",),
        ("check",),
        ("ledger", "open"),
        ("ledger", "show"),
    ],
)
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(*command, "--help")
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "example" in out
    assert f"dpgb-dask {command[0] if command else 'demo'}" in out


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        run("--version")
    assert __version__ in capsys.readouterr().out


def test_demo_data_are_chunked_and_repeat():
    X, y = demo_data(25_000)
    assert X.shape == (25_000, 10)
    assert X.chunks == ((10_000, 10_000, 5_000), (10,))
    block = demo_block(5_000, 2)
    np.testing.assert_array_equal(X.blocks[2].compute(), block[:, :10])
    np.testing.assert_array_equal(y.blocks[2].compute(), block[:, 10])
    assert 0.2 < float(y.mean().compute()) < 0.45
    schema = Schema.from_dict(cli.DEMO_SCHEMA)
    diagnosis = schema.check(X, y)
    assert diagnosis.bad_targets == 0
    assert all(c.below == c.above == c.unknown == c.fractional == 0 for c in diagnosis.columns)


def test_demo_writes_a_private_model(tmp_path, capsys):
    out = tmp_path / "demo.json"
    with dask.config.set(scheduler=None):
        assert run("demo", "--rows", 20_000, "--workers", 1, "--out", out, "--quiet") == 0
    printed = capsys.readouterr().out
    for words in (
        "AUC on held-out rows",
        "no privacy",
        "Privacy report",
        "price of the fit",
        str(out),
    ):
        assert words in printed
    assert DPGBClassifier.load(out).privacy_report_.private


def test_fit_never_replaces_a_model(place, capsys):
    (place / "paid.json").write_text("a model that was paid for")
    code = run(
        "fit", place / "people.parquet", "--schema", place / "schema.json", "--out", place / "paid.json", *BUDGET
    )  # fmt: skip
    assert code == 1
    assert "exists already" in capsys.readouterr().err
    assert (place / "paid.json").read_text() == "a model that was paid for"


def test_a_misspelt_ledger_makes_no_new_one(place, capsys):
    url = f"sqlite:///{place}/typo.db"
    assert run("ledger", "show", url) == 1
    assert "no ledger" in capsys.readouterr().err
    options = ("--schema", place / "schema.json", "--out", place / "m.json", *BUDGET)
    code = run("fit", place / "people.parquet", *options, "--ledger", url, "--account", "a")
    assert code == 1
    assert not (place / "typo.db").exists()


def test_a_scheduler_out_of_reach_is_one_line(place, capsys):
    options = ("--schema", place / "schema.json", "--out", place / "m.json", *BUDGET)
    assert run("fit", place / "people.parquet", *options, "--scheduler", "nonsense") == 1
    error = capsys.readouterr().err
    assert "tcp://HOST:PORT" in error
    assert "Traceback" not in error


# ---- sources and data sets -------------------------------------------------------------------------------------------


def fitted(place, data, *options, name="fitted.json"):
    """The model file of a fit with seeded noise: the command line has no such option."""
    (place / name).unlink(missing_ok=True)
    assert run("fit", data, "--out", place / name, *BUDGET, "--random-state", 0, *options) == 0
    return (place / name).read_text()


@pytest.fixture
def seeded(monkeypatch):
    """Fits of the command line with noise that repeats."""
    for kind in ("DPGBClassifier", "DPGBRegressor"):
        monkeypatch.setattr(cli, kind, partial(getattr(cli, kind), noise=SeededNoise(0)))


def parquet_folder(people, folder):
    """Many files of several row groups, some empty, the first among them."""
    folder.mkdir()
    bounds = [0, 0, 300, 310, 310, 900, 1500]
    for k, (start, stop) in enumerate(pairwise(bounds)):
        part = people.iloc[start:stop]
        part.to_parquet(folder / f"part-{k}.parquet", index=False, row_group_size=100)
    return folder


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Dask's, where it joins row groups
@pytest.mark.usefixtures("seeded")
def test_every_kind_of_file_gives_the_same_model(place, people):
    schema = ("--schema", place / "schema.json")
    want = fitted(place, place / "people.parquet", *schema)
    data = parquet_folder(people, place / "parts")
    assert fitted(place, data, *schema) == want
    assert fitted(place, place / "people.csv", *schema) == want
    for source in (data, place / "people.csv"):
        out = place / "set.zarr"
        assert run("convert", source, *schema, "--out", out, "--overwrite") == 0
        assert fitted(place, out) == want
        assert fitted(place, out, *schema) == want
    assert run("convert", place / "set.zarr", "--out", place / "again.zarr") == 0
    assert fitted(place, place / "again.zarr") == want
    assert run("predict", place / "fitted.json", place / "set.zarr", "--out", place / "p.csv") == 0
    assert run("predict", place / "fitted.json", data, "--out", place / "q.csv") == 0
    assert (place / "p.csv").read_text() == (place / "q.csv").read_text()


@pytest.mark.usefixtures("seeded")
def test_a_converted_weight_gives_the_same_model(place, people, binary_schema):
    data = binary_schema.to_dict() | {"max_weight": 3}
    Schema.from_dict(data).save(place / "w.json")
    people.assign(w=np.arange(len(people)) % 4).to_parquet(place / "w.parquet")
    options = ("--schema", place / "w.json", "--weight", "w")
    want = fitted(place, place / "w.parquet", *options)
    assert run("convert", place / "w.parquet", *options, "--out", place / "w.zarr") == 0
    assert fitted(place, place / "w.zarr", "--weight", "sample_weight") == want
    assert fitted(place, place / "w.zarr") != want


def test_files_without_rows_can_be_fitted(place, people, capsys):
    (place / "none").mkdir()
    for k in range(2):
        people[:0].astype({"x": "f8"}).to_parquet(place / "none" / f"{k}.parquet")
    schema = ("--schema", place / "schema.json")
    budget = (*BUDGET, "--on-few-rows", "continue")
    assert run("fit", place / "none", *schema, "--out", place / "m.json", *budget) == 0
    assert run("convert", place / "none", *schema, "--out", place / "none.zarr") == 0
    assert run("fit", place / "none.zarr", "--out", place / "m2.json", *budget) == 0
    assert capsys.readouterr().err == ""


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


@pytest.mark.usefixtures("seeded")
def test_a_given_schema_wins_where_the_data_set_kept_what_it_asks(place, binary_schema, capsys):
    table = place / "people.parquet"
    assert run("convert", table, "--schema", place / "schema.json", "--out", place / "d.zarr") == 0
    facts = binary_schema.to_dict()
    facts["features"]["color"]["categories"] = ["red", "blue"]
    facts["features"]["age"]["high"] = 60
    Schema.from_dict(facts).save(place / "fewer.json")
    fewer = ("--schema", place / "fewer.json")
    want = fitted(place, table, *fewer)
    assert fitted(place, place / "d.zarr", *fewer) == want
    assert want != fitted(place, place / "d.zarr")
    facts["features"]["color"]["categories"] = ["red", "yellow"]
    Schema.from_dict(facts).save(place / "yellow.json")
    yellow = ("--schema", place / "yellow.json")
    capsys.readouterr()
    assert run("fit", place / "d.zarr", *yellow, "--out", place / "m.json", *BUDGET) == 1
    printed = capsys.readouterr().err
    assert "SchemaError" in printed
    assert "'color' would be misread" in printed
    fitted(place, table, *yellow, name="yellow-model.json")
    out = ("--out", place / "p.csv")
    assert run("predict", place / "yellow-model.json", place / "d.zarr", *out) == 1
    assert "'color' would be misread" in capsys.readouterr().err


def test_help_says_that_a_given_schema_wins(capsys):
    with pytest.raises(SystemExit):
        run("fit", "--help")
    assert "wins" in " ".join(capsys.readouterr().out.split())


def test_the_schema_file_of_the_readme_serves(tmp_path, capsys):
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```json\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "s.json").write_text(text)
    (tmp_path / "d.csv").write_text("age,hours,job,high_income\n40,8,office,1\n")
    assert run("check", tmp_path / "d.csv", "--schema", tmp_path / "s.json") == 0
    assert "job: fits" in capsys.readouterr().out


def test_ledger_open_fixes_what_an_account_protects(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/budget.db"
    opened = ("ledger", "open", url, "people", "--epsilon", "3", "--delta", "1e-6")
    assert cli.main([*opened, "--unit", "person"]) == 0
    assert "for all rows of one 'person'" in capsys.readouterr().out
    assert cli.main(list(opened)) == 1
    assert "unit_id='person'" in capsys.readouterr().err
    assert cli.main(["ledger", "show", url]) == 0
    assert "for all rows of one 'person'" in capsys.readouterr().out
    assert cli.main(["ledger", "verify", url]) == 0
    assert "it is no signature" in capsys.readouterr().out
