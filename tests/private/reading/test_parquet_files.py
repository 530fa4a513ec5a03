"""Parquet files that differ: refused by their footers, or read without an error, whatever their values."""

import datetime
import json
import pickle
from itertools import product

import dask
import dask.dataframe as dd
import dask.dataframe.dask_expr.io.parquet as dask_parquet
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine
from fsspec.implementations.dirfs import DirFileSystem
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from thinned import thinned

from dpgb_dask import Datetime, DPGBClassifier, Ledger, Schema, StructureError
from dpgb_dask.encoding import frames as total_frames
from dpgb_dask.encoding.columns import feature_cells
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.reading.parquet_files import Options
from dpgb_dask.private.reading.shared_tasks import ChunkTasks, Pass

SCHEMA = Schema({"x": (0, 1), "age": (0, 90)}, classes=[0, 1], target="y")
NO_TEXT = pa.array([b"1", b"\xff", None]).view(pa.string())  # Arrow holds any bytes as text
# of each type values that others cannot hold
COLUMNS = {
    "whole": pa.array([1, 2**62, None]),
    "small": pa.array([1, -7, None], pa.int8()),
    "unsigned": pa.array([1, 2**64 - 1, None], pa.uint64()),
    "float": pa.array([0.5, 1e300, None]),
    "single": pa.array([0.5, np.inf, None], pa.float32()),
    "text": pa.array(["1", "abc", None]),
    "large text": pa.array(["1", "abc", None], pa.large_string()),
    "bytes": pa.array([b"1", b"\xff", None]),
    "nothing": pa.nulls(3),
    "truth": pa.array([True, False, None]),
    "date": pa.array([datetime.date(1, 1, 1), datetime.date(9999, 1, 1), None]),
    "time": pa.array([0, 2**62, None], pa.timestamp("us")),
    "nanoseconds": pa.array([1, 2**62, None], pa.timestamp("ns")),
    "listed": pa.array(["1", "abc", None]).dictionary_encode(),
    "no text": NO_TEXT,
    "listed, no text": NO_TEXT.dictionary_encode(),
}
# how Dask reads: file by file, by fragments of a data set, several files as one table
READERS = {
    "files": {},
    "row groups": {"split_row_groups": True},
    "one partition": {"aggregate_files": True, "blocksize": "1 GB"},
    "filters": {"filters": [("x", ">=", 0)]},
    "arrow": {"filesystem": "arrow"},
}


def written(folder, *columns, hive=False):
    for k, column in enumerate(columns):
        part = folder / f"color={'ab'[k]}" if hive else folder
        part.mkdir(exist_ok=True)
        rest = {} if column is None else {"age": column}
        pq.write_table(pa.table({"x": [0.5] * 3, "y": [0, 1, 1], **rest}), part / f"{k}.parquet")
    return folder


def source_of(folder, schema=SCHEMA, arrays=False, **options):
    table = dd.read_parquet(folder, **options)
    X, y = table[["x", "age"]], table["y"]
    if arrays:
        whole = table[["x", "age", "y"]].to_dask_array()
        X, y = whole[:, :2], whole[:, 2]
    return read_source(X, y, None, schema)


def loaded(source):
    rows = Pass(ChunkTasks(source.chunks))
    return [rows.load(k) for k in range(len(source.chunks))]


@pytest.mark.parametrize("hive", [False, True])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("first", "second"), thinned([*product(COLUMNS, COLUMNS)], every=27), ids=str
)
def test_types_of_files_are_refused_before_they_are_read_or_read(
    tmp_path, first, second, reader, hive
):
    folder = written(tmp_path, COLUMNS[first], COLUMNS[second], hive=hive)
    try:
        source = source_of(folder, **READERS[reader])
    except StructureError as error:
        assert first != second
        assert reader not in ("files", "row groups")  # where each file is read in its own types
        assert "'age'" in str(error)  # noqa: PT017
    else:
        parts = loaded(source)
        assert sum(len(part.y) for part in parts) == 6


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("hive", [False, True])
@pytest.mark.parametrize("reader", READERS)
def test_files_without_a_column_are_refused(tmp_path, reader, hive, arrays):
    for lacking in (0, 1):  # Dask looks at one of the two, and gives a frame of its columns
        columns = [None if k == lacking else COLUMNS["small"] for k in range(2)]
        folder = written(tmp_path, *columns, hive=hive)
        if "age" in dd.read_parquet(folder, **READERS[reader]).columns:
            break
    with pytest.raises(StructureError, match=r"not each has 'age'\.") as caught:
        source_of(folder, arrays=arrays, **READERS[reader])
    assert str(tmp_path) not in str(caught.value)
    assert "color" not in str(caught.value)


@pytest.mark.parametrize("backend", [None, "numpy_nullable", "pyarrow"])
@pytest.mark.parametrize("reader", READERS)
def test_a_text_that_is_no_utf_8_changes_no_other_row(tmp_path, reader, backend):
    """Also where Arrow has the texts of a chunk in a list, of which pandas makes categories; and they stay such."""
    schema = Schema({"x": (0, 1), "age": ["a", "b"]}, classes=[0, 1], target="y")
    for odd, listed in product((b"b", b"Z\xfcrich"), (False, True)):
        text = pa.array([b"a", odd, b"b", None, b"a"] * 20).view(pa.string())
        folder = tmp_path / f"{odd}{listed}"
        folder.mkdir()
        age = text.dictionary_encode() if listed else text
        rows = pa.table({"x": [0.5] * 100, "age": age, "y": [0, 1] * 50})
        pq.write_table(rows, folder / "0.parquet", row_group_size=30)
        table = dd.read_parquet(folder, dtype_backend=backend, **READERS[reader])
        if listed and backend != "pyarrow":  # an operation below which categories have to be such
            assert table["age"].dtype == "category"
            codes = table["age"].map_partitions(lambda own: own.cat.codes, meta=("age", "int8"))
            table = table.assign(x=codes / 9)
        parts = loaded(read_source(table[["x", "age"]], table["y"], None, schema))
        read = [feature_cells(part.x["age"], schema.features["age"]) for part in parts]
        want = [0, 1 if odd == b"b" else 2, 1, 3, 0]
        np.testing.assert_array_equal(np.concatenate(read), want * 20)


def test_files_may_lack_what_is_not_read(tmp_path):
    folder = written(tmp_path, COLUMNS["small"], COLUMNS["small"])
    third = pa.table({"x": [0.5], "age": [3], "y": [1], "note": ["a"]})
    pq.write_table(third, folder / "0.parquet")
    assert sum(len(part.y) for part in loaded(source_of(folder))) == 4


def test_names_that_the_schema_does_not_declare_are_not_shown(tmp_path):
    for k, name in enumerate(["Jane", "age"]):
        table = pa.table({"x": [0.5], name: [3], "y": [1]})
        pq.write_table(table, tmp_path / f"{k}.parquet")
    table = dd.read_parquet(tmp_path).rename(columns={"Jane": "age"})
    with pytest.raises(StructureError, match="columns that the schema does not declare") as caught:
        read_source(table[["x", "age"]], table["y"], None, SCHEMA)
    assert "Jane" not in str(caught.value)


def test_whole_numbers_beside_floats_are_read_file_by_file_or_refused_before_the_charge(
    tmp_path,
):
    """Arrow's reader takes all files for whole numbers, as the first is; its cast to floats fails on large ones."""
    (tmp_path / "people").mkdir()
    folder = written(tmp_path / "people", COLUMNS["whole"], COLUMNS["float"])
    assert len(loaded(source_of(folder))) == 2
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.open_account("people", epsilon=3, delta=1e-6)
    table = dd.read_parquet(folder, filesystem="arrow")
    clf = DPGBClassifier(schema=SCHEMA, epsilon=1, delta=1e-7, ledger=ledger, account="people")
    with pytest.raises(StructureError, match=r"hold others.* 'age'.*filesystem='fsspec'"):
        clf.fit(table[["x", "age"]], table["y"])
    assert list(ledger.fits("people")) == []


def test_files_that_are_damaged_are_refused_before_they_are_read(tmp_path):
    folder = written(tmp_path, COLUMNS["small"], COLUMNS["small"])
    (folder / "1.parquet").write_bytes(b"")
    with pytest.raises(StructureError, match=r"no footer that can be read \(ArrowInvalid\)"):
        source_of(folder)


def test_rows_below_folders_are_read_as_without_them(tmp_path):
    """Arrow would read the second file in the types of the first, and round what it holds."""
    flat, deep = tmp_path / "flat", tmp_path / "deep"
    for folder, hive in ((flat, False), (deep, True)):
        folder.mkdir()
        written(folder, COLUMNS["single"], COLUMNS["whole"], hive=hive)
    parts = [np.concatenate([p.x["age"] for p in loaded(source_of(f))]) for f in (flat, deep)]
    np.testing.assert_array_equal(*parts)


PLACES = {
    "beside": ("color=red/0", "blue/0"),
    "above": ("color=red/0", "0"),
    "below": ("color=red/0", "color=red/n=1/0"),
}


def placed(folder, form):
    for place in PLACES[form]:
        path = folder / f"{place}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [0.5] * 3, "age": [1, 2, 3], "y": [0, 1, 1]}), path)
    return folder


@pytest.mark.parametrize("form", PLACES)
@pytest.mark.parametrize("declared", [False, True])
def test_files_of_unlike_folders_are_refused_or_read(tmp_path, form, declared):
    name = "n" if form == "below" else "color"
    schema = Schema({**SCHEMA.features, name: ["1", "red"]}, classes=[0, 1]) if declared else SCHEMA
    folder = placed(tmp_path / "people", form)
    for reader in ({}, READERS["arrow"]):
        table = dd.read_parquet(folder, **reader)
        X = table[["x", "age", *([name] if declared else [])]]
        if reader and not declared:  # Arrow reads only what is asked for
            assert (
                sum(len(part.y) for part in loaded(read_source(X, table["y"], None, schema))) == 6
            )
            continue
        with pytest.raises(StructureError, match="not each lies below a folder") as caught:
            read_source(X, table["y"], None, schema)
        said = str(caught.value)
        assert (f"'{name}'" if declared else "columns that the schema does not declare") in said
        assert not any(word in said for word in ("red", "blue", str(tmp_path)))


def test_folders_in_any_order_are_read(tmp_path):
    for k, place in enumerate(("a=1/b=2", "b=3/a=4")):
        (tmp_path / place).mkdir(parents=True)
        pq.write_table(
            pa.table({"x": [0.5] * 3, "age": [k] * 3, "y": [0, 1, 1]}),
            tmp_path / place / "0.parquet",
        )
    schema = Schema({**SCHEMA.features, "a": ["1", "4"]}, classes=[0, 1])
    table = dd.read_parquet(tmp_path)
    parts = loaded(read_source(table[["x", "age", "a"]], table["y"], None, schema))
    assert sum(len(part.y) for part in parts) == 6


@pytest.mark.parametrize("reader", [{}, {"filesystem": "arrow"}], ids=["fsspec", "arrow"])
@pytest.mark.parametrize("weighted", [False, True])
def test_columns_that_are_read_apart_keep_their_rows(tmp_path, reader, weighted):
    """Dask joins the partitions of a table of which it reads few columns, and more of them for one column than two."""
    for k in range(6):
        values = {"x": [k / 6] * (k + 1), "age": [k] * (k + 1), "y": [k % 2] * (k + 1)}
        pq.write_table(pa.table(values), tmp_path / f"{k}.parquet")
    X, y, weight = (
        dd.read_parquet(tmp_path, columns=columns, **reader) for columns in (["x", "age"], "y", "x")
    )
    with dask.config.set({"dataframe.parquet.minimum-partition-size": 1}):
        parts = loaded(read_source(X, y, weight if weighted else None, SCHEMA))
    assert sum(len(part.y) for part in parts) == 21
    for part in parts:
        assert np.array_equal(np.ravel(part.y), part.x["age"].to_numpy() % 2)
        if weighted:
            assert np.array_equal(np.ravel(part.weight), part.x["x"].to_numpy())


@pytest.mark.parametrize("reader", [{}, {"filesystem": "arrow"}], ids=["fsspec", "arrow"])
def test_one_path_of_two_stores_is_two_files(tmp_path, reader):
    """As of two buckets of one name at two providers."""
    frames = []
    for name, column in (("a", COLUMNS["small"]), ("b", COLUMNS["text"])):
        place = tmp_path / name
        (place / "table").mkdir(parents=True)
        written(place / "table", column, column, hive=True)
        store = DirFileSystem(str(place))
        if reader:
            store = SubTreeFileSystem(str(place), LocalFileSystem())
        frames.append(dd.read_parquet("table", filesystem=store))
    for order in (frames, frames[::-1]):
        both = dd.concat([frame[["x", "age", "y"]] for frame in order])
        assert ages_of(both) == [age for frame in order for age in ages_of(frame)]


def ages_of(table):
    """In the order of the rows: how many small files Dask reads as one partition is its own affair."""
    parts = loaded(read_source(table[["x", "age"]], table["y"], None, SCHEMA))
    return [str(age) for part in parts for age in part.x["age"]]


@pytest.mark.parametrize("reader", READERS)
def test_dates_are_refused_where_they_would_be_read_as_pythons(tmp_path, reader):
    """Whose calendar ends in the year 9999: a later date would end a charged fit."""
    column = pa.array([4_000_000, 0, None], pa.date32())
    folder = written(tmp_path, column, column)
    schema = Schema(
        {"x": (0, 1), "age": Datetime("1970-01-01", "2000-01-01")}, classes=[0, 1], target="y"
    )
    with dask.config.set({"dataframe.convert-string": False}):
        with pytest.raises(StructureError, match=r"are read as Python's.* 'age'.*dtype_backend"):
            source_of(folder, schema, **READERS[reader])
        table = dd.read_parquet(folder, dtype_backend="pyarrow", **READERS[reader])
        loaded(read_source(table[["x", "age"]], table["y"], None, schema))


OWN_WAYS = {
    "none": (None, "date", True),
    "Python's": ({"date_as_object": True}, "date", True),
    "own types": ({"types_mapper": {pa.string(): pd.StringDtype("pyarrow")}.get}, "date", True),
    "NumPy's": ({"date_as_object": False}, "date", False),
    "Arrow's": ({"types_mapper": pd.ArrowDtype}, "date", False),
    "nanoseconds": ({"coerce_temporal_nanoseconds": True}, "time", True),
    "times as Python's": ({"timestamp_as_object": True}, "time", True),
    "times": ({"split_blocks": True}, "time", False),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("way", OWN_WAYS)
def test_dates_of_a_callers_own_way_are_refused_if_it_cannot_make_all(tmp_path, reader, way):
    options, kind, refused = OWN_WAYS[way]
    column = pa.array([40_000, 0, None], pa.date32())
    column = column if kind == "date" else column.cast(pa.timestamp("ms"))
    folder = written(tmp_path, column, column)
    schema = Schema(
        {"x": (0, 1), "age": Datetime("1970-01-01", "2000-01-01")}, classes=[0, 1], target="y"
    )
    with dask.config.set({"dataframe.convert-string": False}):
        # Dask changes what it is given
        table = dd.read_parquet(
            folder, arrow_to_pandas=options and dict(options), **READERS[reader]
        )
        if refused:
            with pytest.raises(StructureError, match=r"calendar ends.* 'age'.*arrow_to_pandas"):
                read_source(table[["x", "age"]], table["y"], None, schema)
        else:
            loaded(read_source(table[["x", "age"]], table["y"], None, schema))


@pytest.mark.parametrize("odd", [b"a", b"\xff", 10**17])
def test_no_task_of_statistics_fails(tmp_path, odd, monkeypatch):
    """A worker would log what it says, with the first or last value of a file."""
    kind = pa.string() if isinstance(odd, bytes) else pa.timestamp("ms")
    values = pa.array([odd, odd, odd], pa.binary() if isinstance(odd, bytes) else pa.int64())
    folder = written(tmp_path, values.view(kind), values.view(kind))
    table = dd.read_parquet(folder, filesystem="arrow")

    def refuse(_frags):
        raise AssertionError

    monkeypatch.setattr(dask_parquet, "_gather_statistics", refuse)
    monkeypatch.setattr(dask_parquet, "_STATS_CACHE", {})
    monkeypatch.setattr(total_frames, "_STATS_CACHE", dask_parquet._STATS_CACHE)
    schema = Schema({"x": (0, 1), "age": ["a", "b"]}, classes=[0, 1], target="y")
    for changed in (table, table.assign(x=table["x"] / table.shape[0])):
        loaded(read_source(changed[["x", "age"]], changed["y"], None, schema))
    assert len(dask_parquet._STATS_CACHE) == (2 if odd == b"a" else 0)


LENGTHS = {
    "shape": lambda f: f.assign(x=f["x"] / f.shape[0]),
    "size": lambda f: f.assign(x=f["x"] / f["x"].size),
    "count": lambda f: f.assign(x=f["x"] / f["x"].count()),
    "mean": lambda f: f.assign(x=f["x"] / f["x"].mean()),
    "sample": lambda f: f.sample(frac=0.5, random_state=1),
    "repartition": lambda f: f.repartition(npartitions=2),
    "concat": lambda f: dd.concat([f, f]),
    "set_index": lambda f: f.set_index("x", drop=False, divisions=[0, 1]).reset_index(drop=True),
    "merge": lambda f: f.merge(f[["x"]].drop_duplicates(), on="x"),
    "plain": lambda f: f,
}


@pytest.mark.parametrize("change", LENGTHS)
def test_a_date_that_python_does_not_have_ends_no_fit(tmp_path, change):
    """Dask reads lengths, and how many files to join, from statistics that hold the first and the last date."""
    sizes = []
    for far in (10**17, 10**3):
        folder = tmp_path / str(far)
        folder.mkdir()
        for k in range(3):
            dates = pa.array([-far, far, 0, 1], pa.timestamp("ms"))
            columns = {"x": [0.5] * 4, "y": [0, 1, 0, 1], "age": [1, 2, 3, 4], "when": dates}
            pq.write_table(pa.table(columns), folder / f"{k}.parquet")
        schema = Schema({"x": (0, 1), "when": Datetime("1970-01-01", "2000-01-01")}, classes=[0, 1])
        table = LENGTHS[change](dd.read_parquet(folder, filesystem="arrow"))
        parts = loaded(read_source(table[["x", "when"]], table["y"], None, schema))
        sizes.append(sorted(np.concatenate([part.x["x"] for part in parts])))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("noted", ["str", "string", "object"])
@pytest.mark.parametrize("reader", READERS)
def test_bytes_that_pandas_noted_as_text_are_refused_where_they_would_be_read_as_it(
    tmp_path, reader, noted
):
    """Of which one that is no UTF-8 would end a charged fit."""
    schema = Schema({"x": (0, 1), "age": ["1", "2"]}, classes=[0, 1], target="y")
    rows = pd.DataFrame({"x": [0.5] * 3, "age": pd.Series(["1", "2", "1"], dtype=noted), "y": 1})
    table = pa.Table.from_pandas(rows, preserve_index=False)
    for k, value in enumerate([b"1", b"\xff"]):
        odd = pa.array([b"2", value, None])
        pq.write_table(table.set_column(1, "age", odd), tmp_path / f"{k}.parquet")
    loaded(source_of(tmp_path, schema, dtype_backend="pyarrow", **READERS[reader]))
    if rows["age"].dtype == object:  # as "str" is for older versions of pandas
        loaded(source_of(tmp_path, schema, **READERS[reader]))
        return
    with pytest.raises(StructureError, match=r"read as text.*'age'.*dtype_backend='pyarrow'"):
        source_of(tmp_path, schema, **READERS[reader])


ELSE = {
    "whole numbers": (pa.float64(), "Int64", 1.0, 1.5),
    "small numbers": (pa.int64(), "int8[pyarrow]", 1, 1 << 40),
    "categories": (pa.dictionary(pa.int32(), pa.int64()), "Int8", 1, 1 << 40),
    "bytes of one width": (pa.binary(1), "string", b"1", b"\xff"),
    "dates of a zone": (pa.timestamp("us", "UTC"), "datetime64[ns, UTC]", 1, 1 << 60),
    "dates": (pa.timestamp("ms"), "timestamp[ns][pyarrow]", 1, 1 << 50),
}


@pytest.mark.parametrize("made", ELSE)
def test_columns_that_pandas_noted_as_another_type_are_refused_where_one_value_would_end_a_fit(
    tmp_path, made
):
    kind, noted, value, odd = ELSE[made]
    schema = Schema({"x": (0, 1), "age": ["1", "2"]}, classes=[0, 1], target="y")
    facts = {"name": "age", "field_name": "age", "pandas_type": "", "numpy_type": noted}
    told = {"pandas": json.dumps({"columns": [facts], "index_columns": [], "column_indexes": []})}
    for k, last in enumerate([value, odd]):
        columns = {"x": [0.5] * 2, "age": pa.array([value, last], kind), "y": [0, 1]}
        pq.write_table(pa.table(columns).replace_schema_metadata(told), tmp_path / f"{k}.parquet")
    with pytest.raises(StructureError, match=r"'age'.*dtype_backend='pyarrow'"):
        source_of(tmp_path, schema)
    loaded(source_of(tmp_path, schema, dtype_backend="pyarrow"))


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("subtype", ["int64", "float64", "datetime64[us]"])
def test_intervals_of_pandas_are_refused_where_one_value_would_end_a_fit(tmp_path, subtype, noted):
    spans = pd.arrays.IntervalArray.from_breaks(np.arange(4).astype(subtype))
    schema = Schema({"x": (0, 1), "age": {"buckets": 9}}, classes=[0, 1], target="y")
    rows = pa.Table.from_pandas(pd.DataFrame({"x": 0.5, "age": spans, "y": [0, 1, 1]}))
    odd = pa.array([{"left": 2, "right": 1}] * 3, rows["age"].type.storage_type)
    odd = pa.ExtensionArray.from_storage(rows["age"].type, odd)
    for k, table in enumerate([rows, rows.set_column(1, "age", odd)]):
        told = table if noted else table.replace_schema_metadata(None)
        pq.write_table(told, tmp_path / f"{k}.parquet")
    with pytest.raises(StructureError, match=r"'age'.*dtype_backend='pyarrow'"):
        source_of(tmp_path, schema)
    loaded(source_of(tmp_path, schema, dtype_backend="pyarrow"))


TIMES = (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("kind", TIMES, ids=str)
def test_times_of_day_are_refused_where_one_value_would_end_a_fit(tmp_path, kind, noted):
    schema = Schema({"x": (0, 1), "age": {"buckets": 9}}, classes=[0, 1], target="y")
    day = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    rows = pa.Table.from_pandas(pd.DataFrame({"x": 0.5, "age": 1, "y": [0, 1, 1]}))
    rows = rows if noted else rows.replace_schema_metadata(None)
    width = f"int{kind.bit_width}"
    for k, ticks in enumerate(([0, day // 2, None], [-1, day, np.iinfo(width).max])):
        table = rows.set_column(1, "age", pa.array(ticks, width).view(kind))
        pq.write_table(table, tmp_path / f"{k}.parquet")
    with pytest.raises(StructureError, match=r"times of day.*'age'.*dtype_backend='pyarrow'"):
        source_of(tmp_path, schema)
    loaded(source_of(tmp_path, schema, dtype_backend="pyarrow"))


@pytest.mark.parametrize("column", ["age", "aside"])
def test_a_later_file_whose_types_pandas_noted_and_cannot_read_is_refused(tmp_path, column):
    """pandas writes such names of dictionaries and lists of Arrow; columns that are not read count as well."""
    schema = Schema({"x": (0, 1), "age": ["u", "v"]}, classes=[0, 1], target="y", ignore=["aside"])
    rows = pd.DataFrame({"x": 0.5, "age": ["u", "v"], "aside": ["u", "v"], "y": [0, 1]})
    rows = rows.astype({"age": "category", "aside": "category"})
    rows.to_parquet(tmp_path / "0.parquet", index=False)
    listed = pa.array(["u", "v"]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
    odd = rows.assign(**{column: pd.Series(pd.arrays.ArrowExtensionArray(listed))})
    odd.to_parquet(tmp_path / "1.parquet", index=False)
    with pytest.raises(StructureError, match=f"cannot read: '{column}'.*replace_schema_metadata"):
        source_of(tmp_path, schema)
    table = pq.read_table(tmp_path / "1.parquet").replace_schema_metadata(None)
    pq.write_table(table, tmp_path / "1.parquet")
    loaded(source_of(tmp_path, schema))


@pytest.mark.parametrize("backend", [None, "numpy_nullable", "pyarrow"])
@pytest.mark.parametrize("reader", READERS)
def test_categories_of_which_all_are_missing_end_no_fit(tmp_path, reader, backend):
    """pandas writes no values of any type, and notes that they are categories."""
    nothing = pd.Categorical(pd.Series([None] * 3, dtype=object))
    schema = Schema({"x": (0, 1), "age": ["a", "b"]}, classes=[0, 1], target="y")
    rows = pd.DataFrame({"x": [0.5] * 3, "age": nothing, "y": [0, 1, 1]})
    for others in (False, True):
        if others:
            if reader not in ("files", "row groups"):  # where each file is read in its own types
                return
            rows.assign(age=pd.Categorical(["a", None, "b"])).to_parquet(tmp_path / "1.parquet")
        rows.to_parquet(tmp_path / "0.parquet")
        parts = loaded(source_of(tmp_path, schema, dtype_backend=backend, **READERS[reader]))
        read = [feature_cells(part.x["age"], schema.features["age"]) for part in parts]
        assert sorted(map(list, read)) == [[0, 3, 1], [3, 3, 3]][not others :]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("reader", [{}, {"filesystem": "arrow"}], ids=["fsspec", "arrow"])
def test_columns_that_arrow_cannot_filter_are_refused_before_the_charge(tmp_path, reader, kind):
    rows = pa.table({"x": [0.5] * 3, "age": pa.array(["1", None, "2"]).cast(kind), "y": [0, 1, 1]})
    pq.write_table(rows, tmp_path / "0.parquet")
    loaded(source_of(tmp_path, **reader))
    with pytest.raises(StructureError, match=r"filters.*'age'"):
        source_of(tmp_path, filters=[("x", ">=", 0)], **reader)


@pytest.mark.parametrize(
    "noted",
    ["Int8", "UInt64", "Float32", "boolean", "int8[pyarrow]", "float16", "uint64"],
)
def test_what_pandas_writes_is_read_as_it_is_noted(tmp_path, noted):
    rows = pd.DataFrame({"x": 0.5, "age": pd.Series([1, 0]).astype(noted), "y": [0, 1]})
    rows.to_parquet(tmp_path / "0.parquet", index=False)
    schema = Schema({"x": (0, 1), "age": ["1", "0"]}, classes=[0, 1], target="y")
    for options in ({}, {"dtype_backend": "numpy_nullable"}, {"dtype_backend": "pyarrow"}):
        loaded(source_of(tmp_path, schema, **options))


FORMS = {
    "list": pa.list_,
    "large list": pa.large_list,
    "list of two": lambda leaf: pa.list_(leaf, 2),
    "struct": lambda leaf: pa.struct([("of", pa.int64()), ("at", leaf)]),
    "map": lambda leaf: pa.map_(pa.string(), leaf),
    "list of structs": lambda leaf: pa.list_(pa.struct([("at", leaf)])),
}
IN_FORM = {
    "list": lambda leaf: [leaf],
    "large list": lambda leaf: [leaf],
    "list of two": lambda leaf: [leaf, leaf],
    "struct": lambda leaf: {"of": 1, "at": leaf},
    "map": lambda leaf: [("k", leaf)],
    "list of structs": lambda leaf: [{"at": leaf}],
}
DAY_OF_MS = 86_400_000
LEAVES = (pa.date32(), pa.date64(), *TIMES, pa.timestamp("ms"), pa.timestamp("us"))


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_dates_in_nested_columns_end_no_fit(tmp_path, form, leaf):
    """They are refused before the charge where an odd one would, or every value is read."""
    schema = Schema({"x": (0, 1), "age": {"buckets": 9}}, classes=[0, 1], target="y")
    whole = pa.int32() if leaf.bit_width == 32 else pa.int64()
    most = np.iinfo(whole.to_pandas_dtype()).max
    values = [IN_FORM[form](tick) for tick in (0, -DAY_OF_MS, most - most % DAY_OF_MS, None)]
    column = pa.array(values, FORMS[form](whole)).cast(FORMS[form](leaf))
    rows = pa.table({"x": [0.5] * 4, "age": column, "y": [0, 1, 1, 0]})
    pq.write_table(rows, tmp_path / "0.parquet")
    loaded(source_of(tmp_path, schema, dtype_backend="pyarrow"))
    try:
        source = source_of(tmp_path, schema)
    except StructureError as error:
        refused = str(error)
    else:
        loaded(source)
        return
    assert "'age'" in refused
    assert "dtype_backend='pyarrow'" in refused


@pytest.mark.parametrize("form", FORMS)
def test_text_in_nested_columns_ends_no_fit(tmp_path, form):
    schema = Schema({"x": (0, 1), "age": {"buckets": 9}}, classes=[0, 1], target="y")
    values = [*(IN_FORM[form](text) for text in (b"a", b"\xff", b"b")), None]
    column = pa.array(values, FORMS[form](pa.binary())).view(FORMS[form](pa.string()))
    rows = pa.table({"x": [0.5] * 4, "age": column, "y": [0, 1, 1, 0]})
    pq.write_table(rows, tmp_path / "0.parquet")
    loaded(source_of(tmp_path, schema, dtype_backend="pyarrow"))
    with pytest.raises(StructureError, match=r"text of theirs: 'age'.*dtype_backend='pyarrow'"):
        source_of(tmp_path, schema)


def test_dates_in_rare_nested_columns_end_no_fit(tmp_path):
    """Lists as views, and maps whose keys are nested: to make odd values of them failed."""
    schema = Schema({"x": (0, 1), "age": {"buckets": 9}}, classes=[0, 1], target="y")
    odd = pa.array([0, 2**31 - 1], pa.int32()).view(pa.date32())
    keys = pa.array([{"a": 1}, {"a": 2}])
    views = pa.ListViewArray.from_arrays(
        pa.array([0, 1], pa.int32()), pa.array([1, 1], pa.int32()), odd
    )
    for k, column in enumerate([views, pa.MapArray.from_arrays([0, 1, 2], keys, odd)]):
        folder = tmp_path / str(k)
        folder.mkdir()
        rows = pa.table({"x": [0.5, 0.5], "age": column, "y": [0, 1]})
        pq.write_table(rows, folder / "0.parquet")
        with pytest.raises(StructureError, match=r"'age'.*dtype_backend='pyarrow'"):
            source_of(folder, schema)


@pytest.mark.parametrize("tell", [Options, lambda mapper: {"types_mapper": mapper}])
def test_what_arrow_is_told_stays_as_it_is_for_any_number_of_partitions(tell):
    """Dask writes what it makes of that into it, for every partition anew: they would call each other."""
    told = pickle.loads(pickle.dumps(tell({pa.int8(): pd.Int8Dtype()}.get)))
    table = pa.table({"x": [0.5], "age": pa.array([1], pa.int8())})

    def read():
        for _ in range(1200):
            frame = ArrowDatasetEngine._arrow_table_to_pandas(table, None, arrow_to_pandas=told)
        return frame

    if tell is Options:
        assert read()["age"].dtype == pd.Int8Dtype()
    else:
        with pytest.raises(RecursionError):
            read()


def test_a_fit_reads_a_thousand_partitions_by_a_callers_own_way(tmp_path):
    rows = pa.table({"x": [0.5] * 1200, "age": pa.nulls(1200, pa.int8()), "y": [0, 1] * 600})
    pq.write_table(rows, tmp_path / "0.parquet", row_group_size=1)
    told = {"split_row_groups": 1, "arrow_to_pandas": {"split_blocks": True}}
    assert len(loaded(source_of(tmp_path, **told))) == 1200
