"""Parquet with an index of any kind, and with its columns in any order."""

from argparse import Namespace
from datetime import date
from decimal import Decimal
from itertools import product

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_parts import BUDGET, fitted, model_of, run
from thinned import one_of_each, thinned

from dpgb_dask import Datetime, Ledger, Schema
from dpgb_dask.cli.parquet import read_parquet
from dpgb_dask.cli.tables import open_table
from dpgb_dask.encoding.codes import read_values
from dpgb_dask.encoding.columns import exact_ids
from dpgb_dask.errors import SchemaError, StructureError
from dpgb_dask.private.reading.ingest import check_inputs
from dpgb_dask.values import unit_names

N = 12
TABLE = pd.DataFrame(
    {"age": np.arange(N) * 5 % 7, "job": ["u", "v", "v"] * (N // 3), "y": [0, 1] * (N // 2)}
)
IDS = np.arange(N) * 5 % N  # no range
SCHEMA = Schema({"job": ["u", "v"], "age": (0, 10)}, classes=[0, 1], target="y")
UNITS = Schema.from_dict(SCHEMA.to_dict() | {"unit_id": "pid"})
LEVELS = [IDS, TABLE["job"].tolist()]
INDICES = {
    "none": None,
    "range": pd.RangeIndex(3, N + 3),
    "numbers": pd.Index(IDS),
    "text": pd.Index([f"p{k}" for k in IDS]),
    "levels": pd.MultiIndex.from_arrays(LEVELS),
    "named range": pd.RangeIndex(3, N + 3, name="pid"),
    "named numbers": pd.Index(IDS, name="pid"),
    "named text": pd.Index([f"p{k}" for k in IDS], name="pid"),
    "named days": pd.date_range("2020-01-01", periods=N, name="pid"),
    "named levels": pd.MultiIndex.from_arrays(LEVELS, names=["pid", "visit"]),
    "half named levels": pd.MultiIndex.from_arrays(LEVELS, names=["pid", None]),
}
STORED = {"named numbers", "named text", "named days"}
LOST = {"named range", "named levels", "half named levels"}


def with_index(kind, rows=TABLE):
    return rows if INDICES[kind] is None else rows.set_index(INDICES[kind][: len(rows)])


def write(path, kind, form):
    """Write the table with an index in one of the forms of Parquet that there are."""
    table = with_index(kind)
    if form == "file":
        table.to_parquet(path)
    elif form == "stored":  # a range too
        table.to_parquet(path, index=True)
    elif form == "hive":
        table.to_parquet(path, partition_cols=["job"])
    elif form == "dask":
        dd.from_pandas(table, npartitions=3, sort=False).to_parquet(path)
    else:
        path.mkdir()
        for k, start in enumerate(range(0, N, 5)):
            table[start : start + 5].to_parquet(path / f"{k}.parquet")


def opened(path, schema=SCHEMA, **options):
    names = {"delimiter": None, "encoding": None, "decimal": None} | options
    return open_table(Namespace(data=str(path), **names), schema, strict="keep" in options)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Dask's, where it writes Parquet
@pytest.mark.parametrize(
    ("kind", "form"),
    thinned([*product(INDICES, ["file", "stored", "files", "hive", "dask"])], every=3),
)
def test_an_index_of_any_kind_is_left_out_or_a_column(kind, form, tmp_path):
    if form == "dask" and "levels" in kind:
        pytest.skip("Dask has no index of several levels")
    path = tmp_path / "table.parquet"
    write(path, kind, form)
    x, columns = opened(path)
    assert list(x.columns) == ["job", "age"]  # in the schema's order
    got = x.compute().assign(y=columns["y"].compute())
    order = ["age", "job", "y"]
    want = TABLE.sort_values(order)[order].to_numpy().tolist()
    assert got.astype({"job": str})[order].sort_values(order).to_numpy().tolist() == want
    lost = kind in LOST and (kind, form) not in {("named range", "stored"), ("named range", "dask")}
    if kind in STORED or (kind in LOST and not lost):
        assert len(opened(path, UNITS)[0]["pid"].compute().unique()) == N
        kept = opened(path, keep=["pid"])[1]["pid"].compute()
        assert sorted(map(str, kept)) == sorted(map(str, INDICES[kind]))
    elif lost:
        for schema, options in ((UNITS, {}), (SCHEMA, {"keep": ["age,pid"]})):
            with pytest.raises(ValueError, match=r"'pid': it is an index, .*reset_index\(\)"):
                opened(path, schema, **options)
        opened(path, UNITS, keep=["age"])  # predictions need no units


@pytest.mark.parametrize(("first", "second"), thinned([*product(INDICES, INDICES)], every=11))
def test_files_of_a_folder_may_have_indices_of_different_kinds(first, second, tmp_path):
    for k, kind in enumerate((first, second)):
        with_index(kind).to_parquet(tmp_path / f"{k}.parquet")
    x, columns = opened(tmp_path)
    assert x.compute()["age"].tolist() == [*TABLE["age"], *TABLE["age"]]
    assert columns["y"].compute().tolist() == [*TABLE["y"], *TABLE["y"]]


def test_columns_in_another_order_are_still_read_alone(tmp_path):
    for kind, facts in product(INDICES, (SCHEMA, UNITS)):
        if facts is UNITS and kind not in STORED:
            continue
        schema = Schema.from_dict(facts.to_dict() | {"ignore": ["other"]})
        with_index(kind, TABLE.assign(other=1)).to_parquet(tmp_path / "table.parquet")
        x, columns = opened(tmp_path / "table.parquet", schema)
        inputs = check_inputs(x, columns["y"], None, schema, schema.unit_id)
        nodes = inputs.x.optimize(fuse=False).expr.walk()
        (read,) = {frozenset(node.columns) for node in nodes if not node.dependencies()}
        assert read <= {"age", "job", schema.unit_id}


@pytest.mark.usefixtures("seeded")
def test_every_order_and_every_index_gives_the_same_model(place, people, capsys):
    schema = ("--schema", place / "schema.json")
    want = fitted(place, place / "people.parquet", *schema)
    swapped = people[["target", "color", "z", "age", "x"]]
    swapped.to_csv(place / "swapped.csv", index=False)
    ids = pd.Index(np.arange(len(people)) * 7 % len(people), name="pid")
    for name, table in (
        ("order", swapped),
        ("range", people.set_index(pd.RangeIndex(len(people), name="pid"))),
        ("ids", people.set_index(ids)),
        ("feature", people.set_index("age")),
    ):
        table.to_parquet(place / f"{name}.parquet")
        assert fitted(place, place / f"{name}.parquet", *schema) == want
    assert people["color"].isna().any()
    people.to_parquet(place / "folders", partition_cols=["color"])
    assert fitted(place, place / "folders", *schema) == want
    assert fitted(place, place / "swapped.csv", *schema) == want
    assert run("convert", place / "swapped.csv", *schema, "--out", place / "s.zarr") == 0
    assert fitted(place, place / "s.zarr") == want
    out = ("--overwrite", "--out", place / "p.csv")
    assert run("predict", place / "fitted.json", place / "people.parquet", *out) == 0
    predicted = (place / "p.csv").read_text()
    for name in ("order.parquet", "range.parquet", "feature.parquet", "swapped.csv"):
        assert run("check", place / name, *schema) == 0
        assert run("predict", place / "fitted.json", place / name, *out) == 0
        assert (place / "p.csv").read_text() == predicted
    assert "pid" not in capsys.readouterr().out


@pytest.mark.parametrize("units", [False, True])
def test_a_data_set_may_have_another_order_than_the_schema(place, people, binary_schema, units):
    """As a matrix, and as a frame with units."""
    facts = binary_schema.to_dict() | ({"unit_id": "pid"} if units else {})
    names = [*facts["features"]][::-1]
    other = facts | {"features": {name: facts["features"][name] for name in names}}
    for name, each in (("one", facts), ("other", other)):
        Schema.from_dict(each).save(place / f"{name}.json")
    people.assign(pid=np.arange(len(people))).to_parquet(place / "ids.parquet")
    source = place / ("ids.parquet" if units else "people.parquet")
    data = place / "one.zarr"
    assert run("convert", source, "--schema", place / "one.json", "--out", data) == 0
    fitted(place, source, "--schema", place / "other.json")
    assert fitted(place, data, "--schema", place / "other.json", name="m.json")
    for name, table in (("p", source), ("q", data)):
        assert run("predict", place / "m.json", table, "--out", place / f"{name}.csv") == 0
    assert (place / "p.csv").read_text() == (place / "q.csv").read_text()


def test_an_index_that_is_lost_is_refused_before_a_charge(place, people, capsys):
    people.set_index(pd.RangeIndex(len(people), name="pid")).to_parquet(place / "pid.parquet")
    url = f"sqlite:///{place}/budget.db"
    run("ledger", "open", url, "a", "--epsilon", 9, "--delta", 1e-5)
    fit = ("fit", place / "pid.parquet", "--schema", place / "schema.json", *BUDGET)
    charged = ("--ledger", url, "--account", "a", "--out", place / "m.json")
    assert run(*fit, *charged, "--unit", "pid") == 1
    assert "'pid': it is an index" in capsys.readouterr().err
    assert Ledger(url).account("a").spent == 0
    assert run(*fit, *charged) == 0


def test_a_draft_leaves_an_index_out(tmp_path, capsys):
    for kind in INDICES:
        with_index(kind).to_parquet(tmp_path / "t.parquet")
        assert run("schema", tmp_path / "t.parquet", "--target", "y") == 0
        printed = capsys.readouterr().out
        assert '"age"' in printed
        assert "pid" not in printed
        assert "level" not in printed


def test_a_file_without_metadata_of_pandas_has_no_index(tmp_path):
    table = pa.Table.from_pandas(TABLE).replace_schema_metadata({})
    pq.write_table(table, tmp_path / "t.parquet")
    got = read_parquet(str(tmp_path / "t.parquet"))
    assert list(got.frame.columns) == list(TABLE.columns)
    assert not got.stored | got.lost


FOLDERS = {  # values of a column that names folders, one of which may decide how others are read
    "zeros before": ["01", "1", "2"],
    "nothing": ["u", None, "v"],
    "nothing beside numbers": [1, None, 2],
    "nothing alone": [None, None, None],
    "a word among numbers": ["1", "2", "u"],
    "numbers": [1, 2, 3],
    "large numbers": [2**60 + 1, 2**60 + 2, 3],
    "signs": ["a/b=1", "ä %41", "2"],
    "truths": [True, False, True],
    "dates": ["2020-01-02", None, "2020-03-04"],
}
FEATURES = {
    "number": (0, 5),
    "category": [1, "u", "a/b=1", "ä %41"],
    "bool": bool,
    "date": Datetime("2020-01-01", "2020-12-31"),
}


@pytest.mark.parametrize(("name", "feature"), one_of_each([*product(FOLDERS, FEATURES)]))
def test_names_of_folders_are_read_as_a_column_of_text_is(name, feature, tmp_path):
    part = pd.Series((FOLDERS[name] * N)[:N], dtype=object)
    table = TABLE.assign(age=range(N), part=part.map(str, na_action="ignore"))
    schema = Schema(
        {"age": (0, N), "part": FEATURES[feature]}, classes=[0, 1], target="y", ignore=["job"]
    )
    table.assign(part=part).to_parquet(tmp_path / "folders", partition_cols=["part"])
    x, columns = opened(tmp_path / "folders", schema)
    given = x.compute().assign(y=columns["y"].compute()).sort_values("age")
    got, want = (read_values(one[["age", "part"]], schema) for one in (given, table))
    for j in range(len(want.columns)):
        np.testing.assert_array_equal(got.column(j), want.column(j))
    assert given["y"].tolist() == table["y"].tolist()
    for facts in ({"unit_id": "part"}, {"target": {**SCHEMA.to_dict()["target"], "name": "part"}}):
        other = {"features": {"age": (0, N)}, "ignore": ["job"], **facts}
        whole = Schema.from_dict(SCHEMA.to_dict() | {"ignore": ["job", "y"]} | other)
        x, columns = opened(tmp_path / "folders", whole)
        shown = x.compute().assign(part=columns["part"].compute()).sort_values("age")["part"]
        assert unit_names(exact_ids(shown)) == unit_names(exact_ids(table["part"]))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("listed", [["part"], ["job"], ["job", "part"]])
def test_columns_that_pandas_noted_as_categories_may_be_folders(listed, exact, tmp_path):
    """Dask looks for the categories that pandas noted, and a folder's column is read as text."""
    table = TABLE.assign(part=(["a", "b", None] * N)[:N], age=range(N))
    categories = table.astype(dict.fromkeys(listed, "category"))
    categories.to_parquet(tmp_path / "folders", partition_cols=["part"])
    schema = Schema(
        {"age": (0, N), "job": ["u", "v"], "part": ["a", "b"]}, classes=[0, 1], target="y"
    )
    x, columns = opened(tmp_path / "folders", schema, **({"keep": ["age"]} if exact else {}))
    given = x.compute().assign(y=columns["y"].compute()).sort_values("age")
    got, want = (read_values(one[[*schema.names]], schema) for one in (given, table))
    for j in range(len(want.columns)):
        np.testing.assert_array_equal(got.column(j), want.column(j))
    assert given["y"].tolist() == table["y"].tolist()


ODD_CATEGORIES = {
    "nothing": [None] * N,
    "decimals": [Decimal("1.5"), None, Decimal("2")] * (N // 3),
    "days": [date(2020, 1, 2), None, date(2020, 1, 3)] * (N // 3),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("first", "second"), [*product(ODD_CATEGORIES, ["text"]), ("text", "nothing")]
)
def test_categories_of_which_arrow_makes_none_are_read(tmp_path, first, second, exact):
    schema = Schema({"age": (0, 10), "part": {"buckets": 50}}, classes=[0, 1], target="y")
    values = {**ODD_CATEGORIES, "text": ["a", None, "b"] * (N // 3)}
    for k, name in enumerate((first, second)):
        part = pd.Categorical(pd.Series(values[name], dtype=object))
        TABLE.assign(part=part).drop(columns="job").to_parquet(tmp_path / f"{k}.parquet")
    x, _ = opened(tmp_path, schema, **({"keep": ["age"]} if exact else {}))
    with dask.config.set(scheduler="sync"):
        parts = [part.compute() for part in x.to_delayed()]
    for name, part in zip((first, second), parts, strict=True):
        want = pd.DataFrame({"age": TABLE["age"], "part": pd.Series(values[name], dtype=object)})
        got = read_values(part, schema).column(1)
        np.testing.assert_array_equal(got, read_values(want, schema).column(1))


def test_a_column_that_files_hold_too_is_theirs(tmp_path):
    for k in range(2):
        folder = tmp_path / "folders" / f"age={k}"
        folder.mkdir(parents=True)
        TABLE.assign(age=k + 5).to_parquet(folder / "a.parquet")
    assert sorted({*opened(tmp_path / "folders")[0]["age"].compute()}) == [5, 6]


def test_a_draft_says_no_type_of_the_names_of_folders(tmp_path, capsys):
    printed = set()
    for ages in ([1, 2, 3], ["a", "b", "c"]):
        TABLE.assign(age=ages * 4).to_parquet(tmp_path / str(ages[0]), partition_cols=["age"])
        assert run("schema", tmp_path / str(ages[0]), "--target", "y") == 0
        printed.add(capsys.readouterr().out)
    assert len(printed) == 1


@pytest.mark.parametrize("hive", [False, True])
@pytest.mark.parametrize(
    ("second", "match"),
    [
        (TABLE.assign(age="old"), "'age' is declared numeric but its column is of kind 'text'"),
        (TABLE.assign(age=date(2020, 1, 1)), "'age' is declared numeric but its column is of kind"),
        (
            TABLE.assign(age=[[1]] * 12),
            "'age' is a column of lists or records",
        ),
        (
            TABLE.assign(age=[b"1"] * 12),
            "'age' is declared numeric but its column is of kind 'other'",
        ),
        (TABLE.drop(columns="age"), "not each has 'age'"),
        (TABLE.drop(columns="y"), "not each has 'y'"),
    ],
)
def test_every_file_of_a_folder_is_looked_at_before_the_charge(
    second, match, hive, tmp_path, capsys
):
    schema = Schema({**SCHEMA.features, "n": ["0", "1"]}, target="y", classes=[0, 1])
    schema = schema if hive else SCHEMA
    for k, table in enumerate([TABLE, second]):
        part = tmp_path / "people.parquet" / (f"n={k}" if hive else "")
        part.mkdir(parents=True, exist_ok=True)
        table.to_parquet(part / f"{k}.parquet")
    schema.save(tmp_path / "s.json")
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=1.0, delta=1e-6)
    rest = ["--ledger", f"sqlite:///{tmp_path}/budget.db", "--account", "people"]
    rest += ["--schema", f"{tmp_path}/s.json", "--out", f"{tmp_path}/m.json", *BUDGET]
    assert run("fit", f"{tmp_path}/people.parquet", *rest) != 0
    assert match in capsys.readouterr().err
    assert ledger.remaining("people") == 1.0


@pytest.mark.parametrize("declared", [False, True])
def test_files_of_unlike_folders_are_refused_before_the_charge(declared, tmp_path, capsys):
    facts = {"features": {**SCHEMA.features, "n": ["red"]}} if declared else {"ignore": ["n"]}
    schema = Schema(**{"features": SCHEMA.features, "target": "y", "classes": [0, 1], **facts})
    schema.save(tmp_path / "s.json")
    for part in ("n=red", "blue"):
        (tmp_path / "people.parquet" / part).mkdir(parents=True)
        TABLE.to_parquet(tmp_path / "people.parquet" / part / "0.parquet")
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=1.0, delta=1e-6)
    rest = ["--ledger", f"sqlite:///{tmp_path}/budget.db", "--account", "people", *BUDGET]
    for command in (("fit", "--out", tmp_path / "m.json", *rest), ("check",)):
        name, *options = command
        assert (
            run(name, tmp_path / "people.parquet", "--schema", tmp_path / "s.json", *options) == 1
        )
        said = capsys.readouterr().err
        assert "not each lies below a folder that is named by 'n'" in said
        assert "red" not in said
    assert ledger.remaining("people") == 1.0
    whole = tmp_path / "people.parquet" / "n=red"
    fit = ("--schema", tmp_path / "s.json", "--out", tmp_path / "m.json", *BUDGET)
    assert run("fit", whole, *fit) in (0, 4)
    capsys.readouterr()
    out = ("--out", tmp_path / "out.csv")
    assert run("predict", tmp_path / "m.json", tmp_path / "people.parquet", *out) == 1
    assert "StructureError: Parquet files that are read as one table" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [pa.time32("ms"), pa.time64("us"), pa.time64("ns")], ids=str)
def test_a_time_of_day_that_python_does_not_have_changes_no_other_row(kind, tmp_path):
    """It ended the fit, after the charge."""
    schema = Schema({"x": {"buckets": 250}, "job": ["00:00:00", "a"]}, classes=[0, 1])
    width = f"int{kind.bit_width}"

    def codes(*ticks):
        column = pa.array([0, 36_000 * 10**3, None, *ticks], width).view(kind)
        pq.write_table(pa.table({"x": column, "job": column}), tmp_path / "p.parquet")
        options = Namespace(
            data=str(tmp_path / "p.parquet"), delimiter=None, encoding=None, decimal=None
        )
        read = read_values(open_table(options, schema)[0].compute(), schema)
        return [read.column(j).tolist() for j in range(2)]

    plain = codes()
    odd = codes(-1, 1, np.iinfo(width).max)
    assert [part[:3] for part in odd] == plain
    assert plain[1] == [0, 2, 3]


@pytest.mark.parametrize("leaf", [pa.date32(), pa.time32("s"), pa.timestamp("us")], ids=str)
@pytest.mark.parametrize("form", ["list", "struct"])
def test_a_date_in_a_list_or_struct_that_python_does_not_have_changes_no_other_row(
    form, leaf, tmp_path
):
    """It ended the fit, after the charge; now such a column is no feature, and is read where it is copied alone."""
    kind = pa.list_ if form == "list" else lambda one: pa.struct([("a", one)])
    path = tmp_path / "p.parquet"

    def codes(*ticks):
        values = [
            None if k is None else [k] if form == "list" else {"a": k} for k in (0, None, *ticks)
        ]
        whole = pa.int32() if leaf.bit_width == 32 else pa.int64()
        column = pa.array(values, kind(whole)).cast(kind(leaf))
        job = ["a", "b", *"ab"][: len(values)]
        pq.write_table(pa.table({"x": column, "job": job, "target": [0] * len(job)}), path)
        for feature in ({"buckets": 250}, ["a", "b"], (0, 1)):
            with pytest.raises(SchemaError, match="'x' is a column of lists or records"):
                opened(path, Schema({"x": feature, "job": ["a", "b"]}, classes=[0, 1]))
        schema = Schema({"job": ["a", "b"]}, classes=[0, 1], ignore=["x"])
        rows, columns = opened(path, schema, keep=["x"])
        assert columns["x"].compute().notna().sum() == len(values) - 1
        return read_values(rows[["job"]].compute(), schema).column(0).tolist()

    assert codes() == [0, 1]
    assert codes(-1, 2 ** (leaf.bit_width - 1) - 1) == [0, 1, 0, 1]


HIDDEN = ("_temporary/0/part-0.parquet", ".part-0.parquet", "_delta_log/1.checkpoint.parquet")


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("hive", ["", "n", "_n"])
def test_hidden_files_of_a_folder_hold_no_rows(hive, place, people, capsys):
    """Of a job of Spark that runs or was killed, the same rows once more; of a Delta table, a log."""
    folder, n = place / "parts.parquet", "_n" if hive == "_n" else "n"
    for k in range(3):
        part = folder / (f"{hive}={k}" if hive else "")
        part.mkdir(parents=True, exist_ok=True)
        rows = people[500 * k : 500 * (k + 1)]
        (rows if hive else rows.assign(n=k)).to_parquet(part / f"part-{k}.parquet", index=False)
    facts = Schema.load(place / "schema.json").to_dict() | {"ignore": [n]}
    Schema.from_dict(facts).save(place / "schema.json")
    schema = ("--schema", place / "schema.json")

    def results():
        model = fitted(place, folder, *schema)
        out = ("--out", place / "out.csv", "--overwrite", "--keep", f"age,{n}")
        assert run("predict", place / "fitted.json", folder, *out) == 0
        capsys.readouterr()
        assert run("check", folder, *schema) == 0
        draft = ("--target", "target", "--out", place / "d.json", "--overwrite")
        assert run("schema", folder, *draft) == 0
        return model, (place / "out.csv").read_text(), capsys.readouterr().out

    want = results()
    assert len(want[1].splitlines()) == len(people) + 1
    for name in HIDDEN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        other = name.startswith("_delta_log")
        people[["age"] if other else [*people]].to_parquet(folder / name)
        assert results() == want, name
    (folder / "._part-0.parquet").write_bytes(b"no Parquet")
    assert results() == want


@pytest.mark.parametrize("name", ["age", "aside"])
def test_two_columns_of_one_name_are_said_to_be(name, tmp_path, capsys):
    SCHEMA.save(tmp_path / "s.json")
    table = pa.Table.from_pandas(TABLE)
    folder = tmp_path / "p.parquet"
    folder.mkdir()
    pq.write_table(table, folder / "0.parquet")
    ages = table["age"]
    for _ in range(2):
        table = table.append_column(name, ages)
    pq.write_table(table, folder / "1.parquet")
    for data in (folder, folder / "1.parquet"):
        assert run("check", data, "--schema", tmp_path / "s.json") == 1
        assert "has several columns of one name" in capsys.readouterr().err


def test_a_pattern_may_mean_folders(tmp_path):
    for k in range(3):
        place = tmp_path / f"day-{k}.parquet"
        (place / "_temporary").mkdir(parents=True)
        rows = TABLE[4 * k : 4 * (k + 1)]
        for name in ("part-0.parquet", "_temporary/part-0.parquet", ".part-0.parquet"):
            rows.to_parquet(place / name)
    for pattern in ("day-*.parquet", "day-*.parquet/", "day-*.parquet/*.parquet", "day-[0-2]*"):
        table = read_parquet(f"{tmp_path}/{pattern}")
        frame = table.frame.compute()
        assert frame["age"].tolist() == TABLE["age"].tolist()
        assert list(table.types[0]) == list(TABLE)


def test_patterns_mean_no_hidden_files_unless_they_say_so(tmp_path):
    TABLE.to_parquet(tmp_path / "p0.parquet")
    TABLE[:5].to_parquet(tmp_path / ".p0.parquet")
    for pattern, n in (("*.parquet", N), ("p*", N), (".p*.parquet", 5), (".p0.parquet", 5)):
        assert len(read_parquet(f"{tmp_path}/{pattern}").frame) == n
    for place in (".snapshot", "sub"):
        (tmp_path / place).mkdir()
        TABLE[:3].to_parquet(tmp_path / place / "p0.parquet")
    for pattern, n in (("*/p0.parquet", 3), ("**/p*.parquet", N + 3), (".s*/*", 3)):
        assert len(read_parquet(f"{tmp_path}/{pattern}").frame) == n


def test_a_file_that_is_read_twice_by_a_link_is_refused(tmp_path):
    folder = tmp_path / "day-0.parquet"
    folder.mkdir()
    TABLE.to_parquet(folder / "part-0.parquet")
    (tmp_path / "latest").symlink_to(folder.name)
    assert len(read_parquet(f"{tmp_path}/latest").frame) == N
    (folder / "part-1.parquet").symlink_to("part-0.parquet")
    (tmp_path / "day-1.parquet").symlink_to(folder.name)
    for path in ("day-0.parquet", "day-0.parquet/*.parquet", "day-*.parquet", "latest"):
        with pytest.raises(StructureError, match=r"names a file twice.*Name it once"):
            read_parquet(f"{tmp_path}/{path}")


@pytest.mark.parametrize("hive", [False, True])
@pytest.mark.parametrize("lacks", [0, 1])
def test_predict_names_the_column_that_a_file_of_a_folder_lacks(lacks, hive, tmp_path, capsys):
    SCHEMA.save(tmp_path / "s.json")
    TABLE.to_parquet(tmp_path / "whole.parquet")
    fit = ("--schema", tmp_path / "s.json", "--out", tmp_path / "m.json", *BUDGET)
    assert run("fit", tmp_path / "whole.parquet", *fit) in (0, 4)
    for name, keep in (("age", ()), ("y", ("--keep", "y")), ("y", ())):
        place = tmp_path / f"{name}{len(keep)}.parquet"
        for k in range(2):
            part = place / (f"n={k}" if hive else "")
            part.mkdir(parents=True, exist_ok=True)
            TABLE.drop(columns=[name] if k == lacks else []).to_parquet(part / f"{k}.parquet")
        capsys.readouterr()
        out = ("--out", tmp_path / "out", "--overwrite")
        needed = name == "age" or bool(keep)
        assert run("predict", tmp_path / "m.json", place, *keep, *out) == needed
        said = capsys.readouterr().err
        if needed and lacks:
            assert (
                f"StructureError: Parquet files that are read as one table differ: not each has '{name}'"
                in said
            )
        elif needed:  # Dask looks at the first file alone
            assert f"'{name}'" in said
            assert "Error: an error that is not of dpgb_dask" not in said


def test_bytes_that_pandas_noted_as_text_are_read_whatever_they_are(tmp_path):
    """A value that is no UTF-8 would end a charged fit."""
    noted = pa.Table.from_pandas(TABLE.astype({"job": "str"}), preserve_index=False)
    odd = pa.array([b"\xff", *(job.encode() for job in TABLE["job"][1:])])
    for kind in (pa.binary(), pa.large_binary()):
        rows = noted.set_column(noted.column_names.index("job"), "job", odd.cast(kind))
        pq.write_table(rows, tmp_path / "bytes.parquet")
        read = read_parquet(str(tmp_path / "bytes.parquet")).frame.compute()
        assert read["job"].tolist() == odd.to_pylist()
        places = read_values(read[["job", "age"]], SCHEMA).column(0)
        assert places.tolist() == [2, *(["u", "v"].index(job) for job in TABLE["job"][1:])]


@pytest.mark.parametrize("category", [int, float])
def test_categories_that_are_numbers_are_kept_beside_predictions(
    category, place, people, tmp_path, capsys
):
    fitted(place, place / "people.parquet", "--schema", place / "schema.json")
    group = pd.Series(np.arange(len(people)) % 3).astype(category).astype("category")
    people.assign(group=group.mask(group == 1)).to_parquet(tmp_path / "kept.parquet")
    out = tmp_path / "out.csv"
    command = ("predict", place / "fitted.json", tmp_path / "kept.parquet", "--out", out)
    assert run(*command, "--keep", "group") == 0, capsys.readouterr().err
    kept = pd.read_csv(out, dtype={"group": str})["group"]
    assert kept[:3].fillna("").tolist() == [str(category(0)), "", str(category(2))]


def test_a_type_that_pandas_noted_and_cannot_read_is_named_as_the_cause(place, people, capsys):
    lists = pd.Series([[1]] * len(people), dtype=pd.ArrowDtype(pa.list_(pa.int64())))
    people.assign(color=lists).to_parquet(place / "lists.parquet", index=False)
    assert run("fit", place / "lists.parquet", *model_of(place)) == 1
    assert "replace_schema_metadata(None)" in capsys.readouterr().err
