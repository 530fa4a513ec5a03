"""Nothing is written over that is read, that another wrote, or that was not asked for."""

import errno
import os
from argparse import Namespace
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest
from cli_parts import BUDGET, model_of, run

from dpgb_dask import DPGBClassifier
from dpgb_dask.cli.places import check_out, check_spared
from dpgb_dask.errors import StructureError


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
    (place / ".dpgb-old-o.csv").write_bytes(csv.read_bytes())
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
        ("predict", model, place / ".dpgb-old-o.csv", "--out", place / "o.csv"),
        ("predict", model, folder, "--out", folder, "--overwrite"),
        ("predict", model, place / "link.parquet", "--out", folder, "--overwrite"),
        ("predict", model, folder / "*.parquet", "--out", folder, "--overwrite"),
        ("predict", model, folder / "a.parquet", "--out", folder, "--overwrite"),
        ("predict", model, folder, "--out", folder / "new.csv"),
        ("predict", model, place / "set.zarr", "--out", place / "set.zarr" / "X.csv"),
        ("predict", model, csv, "--out", ledger / "x.csv"),
        (*fit, "--out", csv),
        (*fit, "--out", place / "schema.json"),
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


@pytest.mark.parametrize("end", ["", "/", "/part.csv"])
def test_at_a_url_nothing_is_written_where_what_is_read_is(end):
    read, written = "s3://bucket/people.csv", f"s3://bucket/people.csv{end}"
    for one, other in ((read, written), (written, read)):
        with pytest.raises(StructureError, match="would be written where"):
            check_spared(Namespace(data=one), other)
    check_spared(Namespace(data=read), "s3://bucket/people.csv.gz")


def test_nothing_is_made_beside_a_device(monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", Mock(side_effect=OSError(errno.EROFS, "no")))
    check_out(Path(os.devnull), overwrite=True)


def test_predictions_are_replaced_as_a_whole(place, people, monkeypatch):
    """A folder of which a part is left reads as fewer rows."""
    assert run("fit", place / "people.parquet", *model_of(place)) == 0
    csv, out = place / "people.csv", place / "linked"
    out.symlink_to(place / "elsewhere")
    predict = ("predict", place / "m.json", csv, "--out", out, "--overwrite")
    assert run(*predict) == 0

    def break_off(folder, **_):
        for one in list(Path(folder).iterdir())[:1]:
            one.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", break_off)
        assert run(*predict) == 130
    assert len(pd.read_parquet(out)) == len(people)
    assert run(*predict) == 0
    assert out.is_symlink()
    assert not list(place.glob(".dpgb-*"))


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError(28, "no room")], ids=["stop", "error"])
def test_predictions_stay_where_putting_new_ones_in_place_breaks_off(
    place, people, monkeypatch, end
):
    """Of two renames the second one fails; a killed process leaves what the next one puts back."""
    assert run("fit", place / "people.parquet", *model_of(place)) == 0
    out = place / "predicted"
    predict = ("predict", place / "m.json", place / "people.csv", "--out", out, "--overwrite")
    assert run(*predict) == 0
    before = everything(place)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", Mock(side_effect=end))
        assert run(*predict) in (1, 130)
    assert everything(place) == before
    out.rename(place / ".dpgb-old-predicted")
    assert run(*predict[:-1]) == 1  # it is there: --overwrite is asked for, as before
    assert everything(place) == before
    assert run(*predict) == 0
    assert len(pd.read_parquet(out)) == len(people)


@pytest.mark.parametrize("name", ["o.csv", "o.parquet"])
def test_predictions_that_a_killed_command_was_writing_are_removed(place, name, capsys):
    assert run("fit", place / "people.parquet", *model_of(place)) == 0
    csv, part = place / "people.csv", place / f".dpgb-part-00112233aabbccdd-{name}"
    part.mkdir()
    (part / "in.csv").write_bytes(csv.read_bytes())
    predict = ("predict", place / "m.json", "--out", place / name)
    assert run(*predict, part / "in.csv") == 1
    assert "which is read" in capsys.readouterr().err
    assert run(*predict, csv) == 0
    assert not list(place.glob(".dpgb-*"))


def test_fit_never_replaces_a_model(place, capsys):
    (place / "paid.json").write_text("a model that was paid for")
    code = run(
        "fit", place / "people.parquet", "--schema", place / "schema.json", "--out", place / "paid.json", *BUDGET
    )  # fmt: skip
    assert code == 1
    assert "exists already" in capsys.readouterr().err
    assert (place / "paid.json").read_text() == "a model that was paid for"


def test_a_fit_whose_model_could_not_be_saved_does_not_begin(place, capsys, monkeypatch):
    refusal = Mock(side_effect=OSError(errno.EROFS, "Read-only file system"))
    monkeypatch.setattr("tempfile.TemporaryFile", refusal)  # root may write in every folder
    begun = Mock()
    monkeypatch.setattr(DPGBClassifier, "fit", begun)
    people = ("fit", place / "people.csv", "--schema", place / "schema.json", *BUDGET)
    predict = ("predict", place / "paid.json", place / "people.csv")
    (place / "paid.json").write_text("a model")
    for command in (people, ("demo", "--rows", 1000), predict, ("schema", place / "people.csv")):
        assert run(*command, "--out", place / "m.csv") == 1
        assert "cannot be written (Read-only file system)" in capsys.readouterr().err
    assert begun.mock_calls == []
