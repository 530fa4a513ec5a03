"""Tables of every kind that fit and predict read, and that each gives the same model."""

import shutil
from argparse import Namespace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from cli_parts import BUDGET, fitted, model_of, run
from odd_lines import BAD_LINES, ODD_LINES
from sklearn.metrics import roc_auc_score

from dpgb_dask import Datetime, DPGBClassifier, Schema
from dpgb_dask.cli.tables import _whole, open_table
from dpgb_dask.encoding.codes import encode_target, read_values
from dpgb_dask.private.reading.units import NO_UNIT, hash_units


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


def test_fit_and_predict_read_zarr(place, binary_schema, people):
    data = binary_schema.to_dict()
    data["features"]["color"]["categories"] = [0, 1, 2]
    Schema.from_dict(data).save(place / "numbers.json")
    model, common = place / "model.json", ("--schema", place / "numbers.json", *BUDGET)
    assert run("fit", place / "people.zarr", "--out", model, *common) == 0
    assert run("predict", model, place / "people.zarr", "--proba", "--out", place / "out.csv") == 0
    assert roc_auc_score(people["target"], pd.read_csv(place / "out.csv")["proba_1"]) > 0.8
    matrix = zarr.create_group(place / "matrix.zarr")
    source = zarr.open_group(place / "people.zarr", mode="r")
    columns = [source[name][:] for name in binary_schema.names]
    matrix.create_array("X", data=np.stack(columns, axis=1), chunks=(500, 4))
    matrix.create_array("y", data=source["target"][:], chunks=(500,))
    again = place / "again.json"
    assert run("fit", place / "matrix.zarr", "--out", again, *common) == 0
    assert run("predict", again, place / "matrix.zarr", "--out", place / "out2.csv") == 0
    assert len(pd.read_csv(place / "out2.csv")) == len(people)


def test_csv_reads_declared_labels_and_missing_marks(tmp_path):
    schema = Schema(
        {"c": ["u", "NA"], "n": [1, 2], "b": [True, False], "x": (0, 1)}, classes=["no", "yes"]
    )
    (tmp_path / "s.csv").write_text(
        "c,n,b,x,target\nNA,1,true,NA,yes\nnull,2.0,False,0.5,no\n,,,,\n"
    )
    options = Namespace(data=str(tmp_path / "s.csv"), delimiter=None, encoding=None, decimal=None)
    got = open_table(options, schema, strict=True)[0].compute()
    values = read_values(got[list(schema.names)], schema)
    assert values.column(0).tolist() == [1, 3, 3]  # NA is declared: a category like any other
    assert values.column(1).tolist() == [0, 1, 3]
    assert values.column(2).tolist() == [0, 1, 3]
    np.testing.assert_array_equal(values.column(3), [np.nan, 0.5, np.nan])
    assert encode_target(got["target"], schema)[1].tolist() == [True, True, False]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
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
    options = Namespace(data=str(path), delimiter=None, encoding=None, decimal=None)
    X = open_table(options, schema, strict=False)[0]
    hashes = hash_units(X["person"].compute(), bytes(32))
    assert hashes[0] == hashes[2]
    assert len(np.unique(hashes)) == 4
    assert (hashes[3] == NO_UNIT) == (kind != "zarr")  # 0 there, a unit like any other


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("named_by", ["schema", "flag"])
def test_units_beyond_floats_count_whoever_names_them(place, people, named_by, kind, capsys):
    """A schema names the units, or ``--unit``; the check and the fit read the same ones."""
    facts = Schema.load(place / "schema.json").to_dict()
    named = facts | ({"unit_id": "id"} if named_by == "schema" else {"ignore": ["id"]})
    Schema.from_dict(named).save(place / "units.json")
    table = people.assign(id=2**60 + np.arange(len(people)))
    source = place / f"ids.{kind}"
    table.to_csv(source, index=False) if kind == "csv" else table.to_parquet(source)
    flags = ("--schema", place / "units.json", *(("--unit", "id") if named_by == "flag" else ()))
    assert run("check", source, *flags) == 0
    assert run("fit", source, *flags, "--out", place / "m.json", *BUDGET) == 0  # 4: no rows
    model = DPGBClassifier.load(place / "m.json")
    assert model.schema_.unit_id == "id"
    assert "id" not in model.schema_.ignore
    assert run("check", source, *flags, "--unit", "age") == 1
    assert "'age'" in capsys.readouterr().err


def test_csv_types_come_from_the_schema_not_from_values(place, people, capsys):
    odd = people.astype({"x": object, "age": object}).copy()
    odd.loc[1400, "x"] = "not a number"
    odd.loc[1401, "age"] = ""
    odd.to_csv(place / "odd.csv", index=False)
    assert run("fit", place / "odd.csv", *model_of(place)) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", [*BAD_LINES, *ODD_LINES])
def test_no_csv_line_ends_a_fit(place, name, capsys):
    header, *lines = (place / "people.csv").read_bytes().splitlines()
    odd = (BAD_LINES | ODD_LINES)[name]
    (place / "odd.csv").write_bytes(b"\n".join([header, odd, *lines]))
    few = ("--recipe", "fdp-tr-newton", "--n-estimators", 1)
    assert run("fit", place / "odd.csv", *model_of(place), *few) == 0
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
        ("excel.csv", ";", ("--delimiter", ";", "--decimal", ",")),
    ]:
        form = {"decimal": ","} if "--decimal" in flags else {}
        people.to_csv(place / name, sep=sep, index=False, encoding="latin-1", **form)
        assert run("check", place / name, *schema, *flags) == 0, capsys.readouterr().err
        assert capsys.readouterr().out == want
    for flag in (("--delimiter", ";"), ("--encoding", "latin-1"), ("--decimal", ",")):
        assert run("check", place / "people.parquet", *schema, *flag) == 1
        assert f"{flag[0]} is for files of text" in capsys.readouterr().err
    assert run("check", place / "people.csv", *schema, "--encoding", "utf-16") == 1
    assert "iconv" in capsys.readouterr().err
    assert run("check", place / "people.csv", *schema, "--decimal", ",") == 1
    assert "separated by another character, such as ';'" in capsys.readouterr().err


def test_csv_files_of_a_pattern_share_their_columns(place, people, capsys):
    options = model_of(place)
    people[:800].to_csv(place / "part-1.csv.gz", index=False)
    people[800:].to_csv(place / "part-2.csv.gz", index=False)
    assert run("fit", place / "part-*.csv.gz", *options) == 0
    assert run("predict", place / "m.json", place / "part-*.csv.gz", "--out", place / "out") == 0
    assert len(pd.read_parquet(place / "out")) == len(people)
    other = people.rename(columns={"z": "w"})
    other[800:].to_csv(place / "part-2.csv.gz", index=False)
    assert run("fit", place / "part-*.csv.gz", *options, "--overwrite") == 1
    assert run("predict", place / "m.json", place / "part-*.csv.gz", "--out", place / "o") == 1
    assert capsys.readouterr().err.count("must name the same columns") == 2


@pytest.mark.usefixtures("seeded")
def test_csv_files_of_any_order_of_columns_give_the_same_model_and_predictions(place, people):
    schema = ("--schema", place / "schema.json")
    want = fitted(place, place / "people.csv", *schema)
    parts = (people[:0], people[:500], people[500:501], people[501:])
    for k, part in enumerate(parts):
        names = np.random.default_rng(k).permutation(part.columns)
        part[names].to_csv(place / f"part-{k}.csv", index=False)
    (place / "part-00.csv").write_bytes(b"")
    assert fitted(place, place / "part-*.csv", *schema) == want
    for data, out in (("people.csv", "one.csv"), ("part-*.csv", "parts.csv")):
        kept = ("--keep", "age,target", "--proba", "--out", place / out)
        assert run("predict", place / "fitted.json", place / data, *kept) == 0
    assert (place / "one.csv").read_bytes() == (place / "parts.csv").read_bytes()


def test_names_beside_blanks_are_said_to_be(place, people, capsys):
    assert run("fit", place / "people.csv", *model_of(place)) == 0
    people.to_csv(
        place / "blanks.csv", index=False, header=["x", *(f" {n}" for n in people.columns[1:])]
    )
    schema, budget = ("--schema", place / "schema.json"), ("--epsilon", 1, "--delta", 1e-6)
    for command in (
        ("predict", place / "m.json", place / "blanks.csv", "--out", place / "out"),
        (
            "fit",
            place / "blanks.csv",
            *schema,
            *budget,
            "--out",
            place / "n.json",
            "--target",
            " target",
        ),
    ):
        assert run(*command) == 1
        assert "['z', 'age', 'color']: there, but for blanks" in capsys.readouterr().err


@pytest.mark.parametrize("header", ["", "x,x,age,color,target", 'x,"z,age'])
def test_a_csv_file_must_name_its_columns(place, header, capsys):
    (place / "none.csv").write_text(f"{header}\n1,1,50,red,1\n")
    assert run("check", place / "none.csv", "--schema", place / "schema.json") == 1
    assert "must name the columns" in capsys.readouterr().err


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


@pytest.mark.parametrize("command", ["fit", "check", "convert", "predict"])
@pytest.mark.parametrize("name", ["no.parquet", "no.csv", "no-*.csv", "no.zarr", "no/people.csv"])
def test_data_that_are_not_there_are_said_not_to_exist(place, classifier, command, name, capsys):
    options = {
        "fit": ("--out", place / "o.json", *BUDGET),
        "check": (),
        "convert": ("--out", place / "o.zarr"),
        "predict": ("--out", place / "o.csv"),
    }[command]
    model, schemas = (), [(), ("--schema", place / "schema.json")]
    if command == "predict":
        classifier.save(place / "m.json")
        model, schemas = (place / "m.json",), [()]
    for schema in schemas:
        capsys.readouterr()
        assert run(command, *model, place / name, *schema, *options) == 1
        printed = capsys.readouterr().err
        assert f"{str(place / name)!r} does not exist. Give" in printed
        assert printed.count("\n") == 1


@pytest.mark.parametrize("command", ["fit", "check", "convert", "predict", "schema"])
@pytest.mark.parametrize("ending", ["", "/"])
def test_a_folder_of_text_is_named_by_a_pattern(place, classifier, command, ending, capsys):
    classifier.save(place / "m.json")
    (place / "many").mkdir()
    shutil.copy(place / "people.csv", place / "many")
    schema = ("--schema", place / "schema.json")
    options = {
        "fit": (*schema, "--out", place / "o.json", *BUDGET),
        "check": schema,
        "convert": (*schema, "--out", place / "o.zarr"),
        "predict": ("--out", place / "o.csv"),
        "schema": (),
    }[command]
    model = (place / "m.json",) if command == "predict" else ()
    assert run(command, *model, f"{place / 'many'}{ending}", *options) == 1
    printed = capsys.readouterr().err.splitlines()[-1]
    assert printed.endswith(f"such as {str(place / 'many' / '*.csv')!r}.")
    assert "Error)" not in printed  # no name of a foreign error


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


@pytest.mark.parametrize("rest", [1, 2])
@pytest.mark.usefixtures("seeded")
def test_a_last_chunk_of_zarr_may_have_one_row(rest, place):
    data = Schema.load(place / "schema.json").to_dict()
    data["features"]["color"]["categories"] = [0, 1, 2]
    Schema.from_dict(data | {"unit_id": "who"}).save(place / "numbers.json")
    rows = {name: array[:] for name, array in zarr.open_group(place / "people.zarr").arrays()}
    n = len(rows["x"])
    rows["who"] = np.arange(n) + 2**60
    for name, chunk in (("want", n), ("rest", n - rest)):
        group = zarr.create_group(place / f"{name}.zarr")
        for key, values in rows.items():
            group.create_array(key, data=values, chunks=(chunk,))
    schema = ("--schema", place / "numbers.json")
    models = {fitted(place, place / f"{name}.zarr", *schema) for name in ("want", "rest")}
    assert len(models) == 1
    told = []
    for name in ("want", "rest"):
        assert run("check", place / f"{name}.zarr", *schema) == 0
        keep = ("--keep", "target", "--keep", "x,who", "--proba", "--overwrite")
        out = place / "out.csv"
        where = ("predict", place / "fitted.json", place / f"{name}.zarr", "--out", out)
        assert run(*where, *keep) == 0
        told.append(pd.read_csv(out, converters={"x": float}))
    pd.testing.assert_frame_equal(*told)
    for name in ("x", "who"):
        np.testing.assert_array_equal(told[0][name], rows[name])


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


NO_COLUMNS = {
    "a number": np.float64(3),
    "a matrix": np.zeros((1000, 2)),
    "a matrix of other rows": np.zeros((3, 2)),
    "other rows": np.zeros(3),
    "no rows": np.zeros(0),
}


def beside_columns(place, people, form, **more):
    """A store of the people with arrays beside them, by Zarr or by xarray, in either format."""
    writer, zarr_format = form
    columns = people.assign(color=people["color"].map({"blue": 0, "green": 1, "red": 2}))
    columns = {name: columns[name].to_numpy(np.float64) for name in columns} | more
    if writer == "zarr":
        group = zarr.create_group(place / "b.zarr", zarr_format=zarr_format, overwrite=True)
        for name, values in columns.items():
            array = np.asarray(values)
            group.create_array(name, data=array, chunks=tuple(max(n, 1) for n in array.shape))
        return
    dims = {
        name: ["row"] if name in people else [f"{name} {k}" for k in range(np.ndim(values))]
        for name, values in columns.items()
    }
    data = xr.Dataset({name: (dims[name], values) for name, values in columns.items()})
    options = {"consolidated": False, "zarr_format": zarr_format}
    data.to_zarr(place / "b.zarr", mode="w", **options)


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("form", [(w, k) for w in ("zarr", "xarray") for k in (2, 3)])
def test_arrays_of_other_shapes_beside_columns_are_none(form, place, people):
    schema = ("--schema", place / "schema.json")
    beside_columns(place, people, form)
    want = fitted(place, place / "b.zarr", *schema)
    for name, values in NO_COLUMNS.items():
        beside_columns(place, people, form, aside=values)
        assert fitted(place, place / "b.zarr", *schema) == want, name
        assert run("check", place / "b.zarr", *schema) == 0
        out = ("--out", place / "out", "--overwrite")
        assert run("predict", place / "fitted.json", place / "b.zarr", *out) == 0
        assert len(pd.read_parquet(place / "out")) == len(people)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", ["age", "target"])
def test_columns_of_another_shape_are_named(name, zarr_format, place, people, capsys):
    assert run("fit", place / "people.zarr", *model_of(place)) == 0
    for values in NO_COLUMNS.values():
        beside_columns(place, people, ("zarr", zarr_format), **{name: values})
        data = (place / "b.zarr", "--schema", place / "schema.json")
        budget = ("--epsilon", 1, "--delta", 1e-6, "--out", place / "none.json")
        for command in (("check", *data), ("fit", *data, *budget)):
            assert run(*command) == 1
            said = capsys.readouterr().err
            # of a number alone the words are those of xarray's
            assert f"[{name!r}] have not one axis" in said or "have no dimension" in said
        given = ("predict", place / "m.json", place / "b.zarr", "--out", place / "out")
        assert run(*given, "--overwrite") == (1 if name == "age" else 0)
        capsys.readouterr()


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


@pytest.mark.slow
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


@pytest.fixture
def encoded(tmp_path):
    """A store that xarray wrote, with scaled hours, dates, an index and a coordinate of another length; its schema."""
    rng = np.random.default_rng(0)
    n = 900
    rows = pd.DataFrame(
        {
            "hours": np.round(np.where(np.arange(n) < 100, np.nan, rng.uniform(0, 100, n)), 2),
            "when": np.datetime64("2020-01-01", "ns") + rng.integers(0, 700, n).astype("m8[D]"),
            "y": rng.integers(0, 2, n),
        },
        index=pd.Index(np.arange(n) + 7, name="person"),
    )
    schema = Schema(
        {"hours": (0, 100), "when": Datetime("2020-01-01", "2021-12-31")},
        classes=[0, 1],
        target="y",
    )
    schema.save(tmp_path / "s.json")
    table = xr.Dataset.from_dataframe(rows).assign_coords(cell=np.arange(3))
    hours = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -9999, "chunks": (400,)}
    table.to_zarr(tmp_path / "cf.zarr", encoding={"hours": hours}, consolidated=False)
    rows.reset_index(drop=True).to_parquet(tmp_path / "cf.parquet")
    return tmp_path


@pytest.mark.usefixtures("seeded")
def test_zarr_of_xarray_is_read_as_xarray_reads_it(encoded, capsys):
    place, given = encoded, ("--schema", encoded / "s.json")
    recipe = ("--recipe", "fdp-tr-newton", "--n-estimators", 2)
    told, out = {}, {}
    for kind in ("parquet", "zarr"):
        data = place / f"cf.{kind}"
        model = fitted(place, data, *given, *recipe)
        capsys.readouterr()
        assert run("check", data, *given) == 0
        told[kind] = model, capsys.readouterr().out
        to = place / f"{kind}.csv"
        assert run("predict", place / "fitted.json", data, "--proba", "--out", to) == 0
        out[kind] = to.read_text()
    assert told["zarr"] == told["parquet"]
    assert out["zarr"] == out["parquet"]
    assert run("convert", place / "cf.zarr", *given, "--out", place / "d.zarr") == 0
    assert fitted(place, place / "d.zarr", *recipe) == told["zarr"][0]


def test_a_coordinate_of_rows_may_be_kept_beside_predictions(encoded):
    fitted(encoded, encoded / "cf.zarr", "--schema", encoded / "s.json")
    to = encoded / "p.csv"
    keep = ("--keep", "person,hours")
    assert run("predict", encoded / "fitted.json", encoded / "cf.zarr", *keep, "--out", to) == 0
    kept = pd.read_csv(to)
    assert list(kept) == ["person", "hours", "prediction"]
    assert kept["person"].tolist() == list(range(7, 907))
    assert kept["hours"].isna().sum() == 100


def test_a_single_array_of_zarr_is_decoded(tmp_path, capsys):
    stored = np.array([[-9999, 100], [50, 200]], np.int16)
    told = {"scale_factor": 0.01, "_FillValue": -9999}
    zarr.create_array(tmp_path / "m.zarr", data=stored, attributes=told)
    schema = Schema({"a": (0, 1), "b": (0, 2)}, classes=[0, 1], target="y")
    options = Namespace(data=str(tmp_path / "m.zarr"), delimiter=None, encoding=None, decimal=None)
    X, columns = open_table(options, schema)
    np.testing.assert_array_equal(X.compute(), [[np.nan, 1.0], [0.5, 2.0]])
    assert not columns
    assert capsys.readouterr().err == ""


def test_whole_numbers_of_zarr_without_a_sign_have_none_beside_a_mark(tmp_path):
    data, mark = np.array([2**64 - 1, 0, 5], np.uint64), {"_FillValue": 5}
    array = zarr.create_array(tmp_path / "n.zarr", data=data, chunks=(2,), attributes=mark)
    found = _whole({"n": None}, {"n": array}, (2, 1))["n"].compute()
    assert found.dtype == "UInt64"
    assert found.tolist() == [2**64 - 1, 0, pd.NA]


def test_zarr_whose_columns_are_no_rows_is_refused(tmp_path, capsys):
    schema = Schema({"age": (0, 90), "pay": (0, 100)}, classes=[0, 1], target="y")
    schema.save(tmp_path / "s.json")
    grid = ("lat", "lon")
    point = np.zeros((2, 3))
    for k, (table, words) in enumerate(
        [
            ({"age": ("a", point[0]), "pay": ("b", point[0])}, "along different dimensions"),
            ({"age": (grid, point), "pay": (grid, point)}, "data.stack(row=('lat', 'lon'))"),
        ]
    ):
        data = tmp_path / f"{k}.zarr"
        xr.Dataset(table).to_zarr(data, consolidated=False)
        assert run("check", data, "--schema", tmp_path / "s.json") == 1
        assert words in capsys.readouterr().err
    beside = xr.Dataset({"age": ("row", point[0])}, {"pay": ("row", point[0])})
    beside.to_zarr(tmp_path / "c.zarr", consolidated=False)
    assert run("check", tmp_path / "c.zarr", "--schema", tmp_path / "s.json") == 1
    assert "features ['pay'] are coordinates" in capsys.readouterr().err


# arguments and attributes of pandas, Dask and xarray, words of SQL and of Python, and what has to be quoted
NAMES = """self cls frame columns index dtype values shape X y data func meta variables coords attrs drop row unit
weight level_0 __index__ class def order group from
where True None a.b a/b a;b a'b a`b a[b] a<b> {b} %s a|b * ? #h -d é a,b"""


@pytest.mark.usefixtures("seeded")
def test_columns_may_have_any_name(tmp_path):
    rng, names, n = np.random.default_rng(0), NAMES.split(), 60
    numbers = {name: rng.integers(0, 5, n) for name in names[::2]}
    texts = {name: rng.choice(["u", "v"], n) for name in names[1::2]}
    rows = pd.DataFrame({**numbers, **texts, "the target": rng.integers(0, 2, n)})
    features = {name: (0, 4) for name in numbers} | {name: ["u", "v"] for name in texts}
    Schema(features, classes=[0, 1], target="the target").save(tmp_path / "s.json")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.to_csv(tmp_path / "rows.tsv", index=False, sep="\t", decimal=",")
    rows.to_parquet(tmp_path / "rows.parquet")
    options = ("--schema", tmp_path / "s.json", "--recipe", "dp-ebm-newton", "--n-estimators", 2)
    csv, *others = [
        fitted(tmp_path, tmp_path / f"rows.{kind}", *options, *more, name=f"{kind}.json")
        for kind, *more in (("csv",), ("tsv", "--decimal", ","), ("parquet",))
    ]
    assert others == [csv, csv]
    for kind in ("csv", "parquet"):
        out = tmp_path / f"{kind}.tsv"
        given = (tmp_path / "csv.json", tmp_path / f"rows.{kind}", "--keep", "self", "--out", out)
        assert run("predict", *given) == 0
        np.testing.assert_array_equal(pd.read_csv(out, sep="\t")["self"], rows["self"])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_unit_named_self_is_refused(tmp_path, kind, capsys):
    rows = pd.DataFrame({"self": [1, 2], "x": [0, 1], "target": [0, 1]})
    getattr(rows, f"to_{kind}")(tmp_path / f"rows.{kind}", index=False)
    Schema({"x": (0, 1)}, classes=[0, 1], target="target", unit_id="self").save(tmp_path / "s.json")
    options = ("--schema", tmp_path / "s.json", "--out", tmp_path / "m.json", *BUDGET)
    assert run("fit", tmp_path / f"rows.{kind}", *options, "--max-rows-per-unit", 1) == 1
    assert "Rename it" in capsys.readouterr().err
