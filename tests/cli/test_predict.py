"""``predict``: what it takes, keeps and writes."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from arrow_types import every_type, three_of
from cli_parts import BUDGET, model_of, run
from odd_lines import BAD_LINES, ODD_LINES

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.cli import predict as commands


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
    assert not list(place.glob(".dpgb-*"))
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


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
def test_a_compressed_file_that_is_cut_short_or_damaged_is_said_to_be(
    suffix, place, people, capsys
):
    model, data = place / "model.json", place / f"people.csv{suffix}"
    run("fit", place / "people.csv", "--schema", place / "schema.json", "--out", model, *BUDGET)
    people.to_csv(data, index=False)
    whole = data.read_bytes()
    middle = len(whole) // 2
    for content in (whole[:middle], whole[:middle] + bytes(64) + whole[middle + 64 :]):
        data.write_bytes(content)
        capsys.readouterr()
        assert run("predict", model, data, "--out", place / "p.csv") == 1
        printed = capsys.readouterr().err
        assert "damaged" in printed or f"{str(data)!r} cannot be read" in printed
        assert not (place / "p.csv").exists()


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


def test_huge_whole_numbers_of_zarr_stay_exact_beside_a_mark(place, people, capsys):
    """As units and as kept columns; in xarray's floats they would be rounded."""
    source = zarr.open_group(place / "people.zarr")
    ids = 2**60 + 3 * np.arange(len(people))
    ids[:2] = -1
    source.create_array("person", data=ids, chunks=(350,), attributes={"_FillValue": -1})
    data = Schema.load(place / "schema.json").to_dict()
    data["features"]["color"]["categories"] = [0, 1, 2]
    data["ignore"] = ["person"]
    Schema.from_dict(data).save(place / "numbers.json")
    named = ("--schema", place / "numbers.json", "--unit", "person")
    assert run("check", place / "people.zarr", *named) == 0
    assert "units: 2 rows have none" in capsys.readouterr().out
    model = place / "model.json"
    assert run("fit", place / "people.zarr", *named, "--out", model, *BUDGET) == 0
    matrix = zarr.create_group(place / "matrix.zarr")
    columns = [source[name][:] for name in ("x", "z", "age", "color")]
    matrix.create_array("X", data=np.stack(columns, axis=1), chunks=(500, 4))
    matrix.create_array("person", data=ids, chunks=(400,), attributes={"_FillValue": -1})
    matrix.create_array("names", data=np.arange(4), attributes={"_FillValue": -1})
    want = [None, None, *ids[2:].tolist()]
    for name in ("people.zarr", "matrix.zarr"):
        for out, read in (
            ("p.csv", partial(pd.read_csv, dtype={"person": "Int64"})),
            ("p", pd.read_parquet),
        ):
            options = ("--keep", "person", "--out", place / out, "--overwrite")
            assert run("predict", model, place / name, *options) == 0
            got = read(place / out)["person"]
            assert got.dtype == "Int64"
            assert [None if value is pd.NA else value for value in got] == want


@pytest.mark.parametrize("name", ["p.xlsx", "p.json", "p.parquet.gz", "p.gz", "p.feather", "p.txt"])
def test_predict_refuses_suffixes_that_it_does_not_know(place, name, capsys):
    assert run("predict", place / "m.json", place / "people.csv", "--out", place / name) == 1
    printed = capsys.readouterr().err
    assert "is not known. Give *.csv" in printed
    assert not (place / name).exists()


@pytest.mark.parametrize("out", ["p.csv", "p.parquet"])
def test_predictions_that_another_process_has_written_meanwhile_stay(
    out, place, capsys, monkeypatch
):
    model = place / "model.json"
    run("fit", place / "people.csv", "--schema", place / "schema.json", "--out", model, *BUDGET)
    command = ("predict", model, place / "people.csv", "--out", place / out)
    real = commands.joined

    def after_the_other(scheduler):
        monkeypatch.setattr(commands, "joined", real)
        assert run(*command, "--proba") == 0
        return real(scheduler)

    monkeypatch.setattr(commands, "joined", after_the_other)
    capsys.readouterr()
    assert run(*command) == 1
    assert f"{str(place / out)!r} was written by another process" in capsys.readouterr().err
    read = pd.read_csv if out == "p.csv" else pd.read_parquet
    assert list(read(place / out).columns) == ["prediction", "proba_0", "proba_1"]
    assert not list(place.glob(".dpgb-*"))


def test_a_name_that_dask_takes_for_others_is_refused_before_any_work(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    (place / "fol*der").mkdir()
    for out in ("a*.parquet", "a*", "fol*der/a.parquet"):
        assert run("predict", "no-model.json", "people.csv", "--out", out) == 1
        assert f"--out {out!r}: in the name of a Parquet folder" in capsys.readouterr().err
    assert run("predict", "no-model.json", "people.csv", "--out", "/", "--overwrite") == 1
    assert "--out '/' is not a folder of Parquet files alone" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["schema", "demo", "warm"])
def test_a_file_of_this_machine_is_written_to_no_url(command, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    option = "--cache-dir" if command == "warm" else "--out"
    data = ("people.csv",) if command == "schema" else ()
    with pytest.raises(SystemExit):
        run(command, *data, option, "memory://there")
    assert "'memory://there' is a URL: write to a file" in capsys.readouterr().err
    assert not (place / "memory:").exists()


def test_predict_does_not_overwrite(place, capsys):
    (place / "out.csv").write_text("kept")
    assert (
        run("predict", place / "model.json", place / "people.csv", "--out", place / "out.csv") == 1
    )
    assert "exists already" in capsys.readouterr().err
    assert (place / "out.csv").read_text() == "kept"


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


def texts_of(table):
    return [["" if pd.isna(value) else str(value) for value in table[name]] for name in table]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_kept_columns_are_as_they_stand_in_the_file(place, people, suffix):
    """Features, the target, ids beyond floats beside one that is missing, dates."""
    facts = Schema.load(place / "schema.json").to_dict() | {
        "unit_id": "id",
        "ignore": ["day", "code"],
    }
    Schema.from_dict(facts).save(place / "units.json")
    schema = ("--schema", place / "units.json")
    ids = pd.array([2**60 + k for k in range(len(people))], "Int64")
    ids[3] = None
    table = people.assign(id=ids, day="2020-01-31", code="007")
    model = place / "model.json"
    keep = ("--keep", "age,target,id", "--keep", "day,code")
    names = ["age", "target", "id", "day", "code"]
    source, out = place / f"more.{suffix}", place / "kept.csv"
    table.to_csv(source, index=False) if suffix == "csv" else table.to_parquet(source)
    assert run("fit", source, *schema, "--out", model, *BUDGET) == 0
    assert run("predict", model, source, "--out", out, *keep) == 0
    got = pd.read_csv(out, dtype=str, keep_default_na=False)
    assert texts_of(got[names]) == texts_of(table[names])
    assert run("predict", model, source, "--out", place / "alone.csv") == 0
    assert pd.read_csv(place / "alone.csv")["prediction"].equals(got["prediction"].astype(int))
    assert run("predict", model, source, "--out", place / "kept.parquet", *keep) == 0
    kept = pd.read_parquet(place / "kept.parquet", dtype_backend="numpy_nullable")
    assert texts_of(kept[names]) == texts_of(table[names])


def kept(place, source, names):
    """What `predict` writes of some columns, in a file of text and in Parquet."""
    keep = [part for name in names for part in ("--keep", name)]
    for out in ("out.csv", "out"):
        assert run("predict", place / "m.json", source, "--out", place / out, *keep) == 0
    text = pd.read_csv(place / "out.csv", dtype=str, keep_default_na=False)
    return text[names], pq.read_table(place / "out").select(names)


NO_COLUMN = ("list_view", "union", "run_end", "month")  # of Parquet, or of pandas


def test_columns_of_every_type_of_arrow_are_kept(place, people):
    assert run("fit", place / "people.csv", *model_of(place)) == 0
    kinds = [kind for kind in every_type() if not any(part in str(kind) for part in NO_COLUMN)]
    inside = {"view", "list"}  # of a dictionary, Parquet has none
    columns = {
        f"{k} {str(kind)[:9]}": three_of(kind)
        for k, kind in enumerate(kinds)
        if not (pa.types.is_dictionary(kind) and any(part in str(kind) for part in inside))
    }
    far = pa.array([4_000_000, None, 0], pa.int32()).cast(pa.date32())
    columns |= {"far": far, "far of a list": far.dictionary_encode()}
    columns["odd"] = pa.array([b"\xff", None, "é".encode()])
    columns["digest"] = pa.array([b"\xff\x00a", None, b"\xfe\x00a"], pa.binary(3))
    columns["narrow"] = pa.array([0.1, None, 1], "f4")
    columns["half"] = pa.array([np.float16(0.1), None, np.float16(1)], "f2")
    columns["category"] = pa.array(pd.Categorical(["a", None, "b"]))
    if hasattr(pa, "uuid"):  # by the version of Arrow
        columns["uuid"] = pa.array([b"0123456789abcdef", None, b"\xff" * 16], pa.uuid())
    more = {"month": pa.array(pd.period_range("2020-01", periods=3, freq="M"))}
    more["nan"] = pa.array([0.1, None, np.nan])
    table = pa.Table.from_pandas(people[:3], preserve_index=False)
    for name, values in (columns | more).items():
        table = table.append_column(name, values)
    pq.write_table(table, place / "every.parquet", row_group_size=2)
    text, parquet = kept(place, place / "every.parquet", list(columns | more))
    pd.read_parquet(place / "out")  # which notes types by names, and knows not each again
    for name, values in columns.items():
        kind, got = values.type, parquet[name]
        want = pq.read_table(place / "every.parquet", columns=[name])[name]
        if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
            assert got.type == pa.large_string()
        else:
            assert got.cast(want.type).equals(want)
        if pa.types.is_decimal(kind):
            assert got.type == kind
        if kind in (pa.string(), pa.large_string(), pa.binary(2)):
            assert text[name].tolist() == ["aa", "", "aa"]
    for name in ("far", "far of a list"):
        assert text[name].tolist() == ["12921-08-18", "", "1970-01-01"]
    assert text["odd"].tolist() == ["b'\\xff'", "", "é"]
    if "uuid" in columns:
        ids = ["30313233-3435-3637-3839-616263646566", None, "ffffffff-ffff-ffff-ffff-ffffffffffff"]
        assert text["uuid"].tolist() == [ids[0], "", ids[2]]
        assert parquet["uuid"].to_pylist() == ids
    assert text["narrow"].tolist() == text["half"].tolist() == ["0.1", "", "1.0"]
    assert text["nan"].tolist() == ["0.1", "", ""]
    assert text["month"].tolist() == ["2020-01", "2020-02", "2020-03"]
    assert str(pd.read_parquet(place / "out", columns=["month"])["month"].dtype) == "period[M]"
    assert text["category"].tolist() == ["a", "", "b"]


def test_columns_of_zarr_of_every_type_are_kept(place, people):
    """Bytes are text, of which some is no UTF-8; Arrow has neither another byte order nor complex numbers."""
    assert run("fit", place / "people.csv", *model_of(place)) == 0
    group = zarr.create_group(place / "every.zarr", zarr_format=2)
    for name in ("x", "z", "age"):
        group.create_array(name, data=people[name].to_numpy()[:3])
    group.create_array("color", data=people["color"].to_numpy()[:3].astype("S8"))
    numbers = {kind: np.array([1, 2, 3], kind) for kind in (">f4", ">f8", ">i2", ">i8", "<u4")}
    columns = numbers | {
        "date": np.array([1, 2, 3], ">M8[s]"),
        "bytes": np.array([b"red", b"\xff", b"\xc3\xa9"]),
        "complex": np.array([1, 2j, 3]),
    }
    for name, values in columns.items():
        group.create_array(name, data=values, chunks=(2,))
    text, parquet = kept(place, place / "every.zarr", list(columns))
    for name in numbers:
        assert parquet[name].to_pylist() == [1, 2, 3]
        assert text[name].astype(float).tolist() == [1, 2, 3]
    assert text["date"].str[-2:].tolist() == ["01", "02", "03"]
    assert [date.second for date in parquet["date"].to_pylist()] == [1, 2, 3]
    assert text["bytes"].tolist() == parquet["bytes"].to_pylist() == ["red", "b'\\xff'", "é"]
    assert text["complex"].tolist() == parquet["complex"].to_pylist() == ["(1+0j)", "2j", "(3+0j)"]


def test_whole_numbers_with_gaps_are_kept_from_files_of_others(place, people):
    """Without the metadata of pandas, NumPy would make floats of them."""
    model, out = place / "model.json", place / "kept.csv"
    assert run("fit", place / "people.csv", *model_of(place)) == 0
    (place / "m.json").rename(model)
    ids = [None, *(2**60 + k for k in range(1, len(people)))]
    table = pa.Table.from_pandas(people).append_column("id", pa.array(ids, pa.int64()))
    pq.write_table(table.replace_schema_metadata({}), place / "other.parquet")
    assert run("predict", model, place / "other.parquet", "--keep", "id", "--out", out) == 0
    lines = out.read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:4]] == ["", str(2**60 + 1), str(2**60 + 2)]
