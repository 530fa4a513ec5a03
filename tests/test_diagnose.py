"""The data owner's check: the values that a fit would change, counted exactly, for every collection that fit takes."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
import zarr

from dpgb_dask import Datetime, Schema
from dpgb_dask.cli import main
from dpgb_dask.diagnose import ColumnCheck
from dpgb_dask.errors import PlanError, SchemaError, UnnamedColumnsWarning
from dpgb_dask.io import open_dataset, write_dataset

NAMES = ["age", "job", "pay"]
SCHEMA = Schema(
    {"age": {"type": "numeric", "low": 0, "high": 100, "integer": True}, "job": [0, 1, 2], "pay": (-1e6, 1e6)},
    classes=[0, 1],
)  # fmt: skip


def rows():
    table = np.array(
        [
            [20, 0, 1.0], [30.5, 1, -2.0], [-5, 7, 3.0], [120, 7, np.nan], [np.nan, 9, 0.5], [44, np.nan, 2.5],
        ]
    )  # fmt: skip
    return table, np.array([0.0, 1, 1, 5, 5, np.nan])


TABLE, Y = rows()
FRAME = pd.DataFrame(TABLE, columns=NAMES)
COLLECTIONS = {
    "pandas": lambda: (FRAME, Y),
    "objects": lambda: (FRAME.astype(object), Y.astype(object)),
    "NumPy's values": lambda: ([list(row) for row in TABLE], list(Y)),
    "another byte order": lambda: (FRAME.astype(">f8"), pd.Series(Y).astype(">f8")),
    "Arrow": lambda: (FRAME.astype("double[pyarrow]"), pd.Series(Y, dtype="double[pyarrow]")),
    "sparse": lambda: (FRAME.astype("Sparse[float64]"), pd.Series(Y, dtype="Sparse[float64]")),
    "NumPy": lambda: (TABLE, Y),
    "list": lambda: (TABLE.tolist(), Y.tolist()),
    "Dask Array": lambda: (da.from_array(TABLE, chunks=(4, 2)), da.from_array(Y, chunks=2)),
    "Dask DataFrame": lambda: (
        dd.from_pandas(FRAME, npartitions=2), dd.from_pandas(pd.Series(Y), npartitions=2),
    ),
    "DataArray": lambda: (
        xr.DataArray(TABLE, dims=("row", "feature"), coords={"feature": NAMES}), Y,
    ),
    "Dataset": lambda: (xr.Dataset({name: ("row", FRAME[name].to_numpy()) for name in NAMES}), Y),
    "Zarr": lambda: (zarr.create_array({}, data=TABLE, chunks=(4, 3)), Y),
    "Zarr group": lambda: (group(), Y),
    "target inside": lambda: (FRAME.assign(target=Y), None),
}  # fmt: skip


def group():
    store = zarr.create_group({})
    for name in NAMES:
        store.create_array(name, data=FRAME[name].to_numpy())
    return store


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_check_counts_the_same_in_every_collection(kind):
    X, y = COLLECTIONS[kind]()
    found = SCHEMA.check(X, y, columns="position")
    age, job, pay = found.columns
    assert (found.n_rows, found.bad_targets, found.usable) == (6, 3, 3)
    assert (age.missing, age.below, age.above, age.fractional) == (1, 1, 1, 1)
    assert (job.missing, job.unknown) == (1, 3)
    assert job.values == (("7.0", 2), ("9.0", 1))
    assert found.bad_labels == (("5.0", 2),)
    assert pay.missing == 1
    assert pay.seen == (-2.0, 3.0)
    assert age.seen is None
    assert {value for value, _ in age.outside} == {"-5.0", "120.0"}
    text = str(found)
    assert "NOT PRIVATE" in text
    assert "7.0 (2 times), 9.0 (1 times)" in text
    assert "bounds far too wide: all numbers within them are in [-2, 3]" in text


def test_check_names_a_column_whose_name_is_none():
    frame = pd.DataFrame([[1, 3], [2, 4]], columns=pd.Index(["age", None], dtype=object))
    assert Schema({"age": (0, 20)}, classes=[0, 1]).check(frame).undeclared == ("None",)


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_check_shows_dates_of_every_unit_as_dates(unit):
    schema = Schema({"when": Datetime("2020-01-01", "2020-12-31")}, classes=[0, 1])
    (column,) = schema.check(
        np.full((2, 1), np.datetime64("1999-12-31"), f"M8[{unit}]"), columns="position"
    ).columns
    assert column.outside[0][0].startswith("'1999-12-31")


def test_check_names_values_and_columns_that_a_fit_would_not():
    frame = pd.DataFrame(
        {"job": ["x", "secret", "y"], "age": ["12", "old", "7"], "more": 1, "id": 2}
    )
    schema = Schema({"job": ["x", "y"], "age": (0, 20)}, classes=["no", "yes"], ignore=["id"])
    found = schema.check(frame, pd.Series(["no", "Yes", None]))
    assert found.undeclared == ("more",)
    assert found.columns[0].values == (("'secret'", 1),)
    assert found.columns[1].values == (("'old'", 1),)
    assert found.bad_labels == (("'Yes'", 1),)
    assert found.usable == 1
    assert "'more'" in str(found)
    with pytest.raises(SchemaError, match=r"missing=\['age'\], not declared=\['more'\]"):
        schema.check(frame.drop(columns="age"))


def test_check_tells_what_stands_beyond_the_bounds_and_how_values_are_read():
    """Codes of missing values count as the bound; a German table is missing values; a wrong line is a whole row."""
    frame = pd.DataFrame(
        {
            "age": ["9999", "-", "9999", None, "-1"],
            "on": ["31.12.2024", "x", "2024-01-01", None, "."],
        }
    )
    facts = {"type": "datetime", "first": "2024-01-01", "last": "2024-12-31"}
    schema = Schema({"age": (0, 100), "on": facts}, target_bounds=(0, 5))
    found = schema.check(frame, pd.Series([1.0, 9, 9, None, None]))
    assert found.columns[0].outside == (("'9999'", 2), ("'-1'", 1))
    assert (found.outside_targets, found.unread) == ((("9.0", 2),), 1)
    text = str(found)
    assert (
        "2 missing, among them '-' (1 times), 1 below, 2 above, among them '9999' (2 times)" in text
    )
    assert "2 above (those count as the bound), among them 9.0 (2 times)" in text
    assert "rows: 1 without any value that can be read; in a file of text" in text
    assert "Dates are read from text as 2024-12-31" in text
    assert "Numbers are read" not in text
    money = Schema({"pay": (0, 5000)}, classes=[0, 1])
    told = str(money.check(pd.DataFrame({"pay": ["1.234,50 €"]}), [1]))
    assert "Numbers are read as 1234.5, or with decimal=',' (--decimal ,)" in told
    assert "without any value" not in told


def test_only_the_most_frequent_values_are_shown():
    job = [f"job {k}" for k in range(9) for _ in range(k + 1)] + ["x" * 500]
    found = Schema({"job": ["x"]}, classes=[0, 1]).check(pd.DataFrame({"job": job}))
    assert [count for _, count in found.columns[0].values] == [9, 8, 7, 6, 5]
    long = Schema({"job": ["x"]}, classes=[0, 1]).check(pd.DataFrame({"job": ["x" * 500]}))
    assert len(long.columns[0].values[0][0]) < 60
    assert found.usable is None
    assert found.bad_targets is None


@pytest.mark.parametrize("lazy", [False, True])
def test_check_counts_targets_out_of_bounds_and_weights_above_the_largest(lazy):
    X, y = pd.DataFrame({"a": np.linspace(0, 1, 1000)}), pd.Series(np.linspace(-50, 100, 1000))
    weight = pd.Series(np.where(np.arange(1000) < 300, 7.0, 1.0))
    weight[0] = np.inf
    if lazy:
        X, y, weight = (dd.from_pandas(part, npartitions=3) for part in (X, y, weight))
    found = Schema({"a": (0, 1)}, target_bounds=(0, 10)).check(X, y, weight)
    assert (found.targets_below, found.targets_above, found.bad_targets) == (333, 600, 0)
    assert (found.heavy_weights, found.bad_weights) == (300, 0)
    assert found.targets_seen is None
    assert "0 unknown or missing (those rows get weight 0), 333 below, 600 above (" in str(found)
    assert "300 above max_weight (those count as it)" in str(found)
    wide = Schema({"a": (0, 1)}, target_bounds=(-1e6, 1e6)).check(X, y)
    assert wide.targets_seen == (-50, 100)
    assert "weight 0), bounds far too wide: all numbers within them are in [-50, 100]" in str(wide)
    classes = Schema({"a": (0, 1)}, classes=[-50, 100]).check(X, y)
    assert (classes.targets_below, classes.targets_above, classes.targets_seen) == (0, 0, None)


def test_bounds_as_wide_as_floats_are_not_called_too_wide_for_what_fills_them():
    ends = [-1.7e308, 1.7e308]
    found = Schema({"a": (0, 1)}, target_bounds=ends).check(pd.DataFrame({"a": [0, 1]}), ends)
    assert found.targets_seen is None


def test_values_below_the_bounds_are_named_where_none_is_above():
    column = ColumnCheck("age", below=3, outside=(("-999", 2),))
    assert column.remarks() == ["3 below, among them -999 (2 times)"]


def test_a_text_of_forty_characters_with_its_quotes_is_shown_whole():
    frame = pd.DataFrame({"job": ["a" * 38, "b" * 39]})
    (found,) = Schema({"job": ["x", "y"]}, classes=[0, 1]).check(frame).columns
    assert [text for text, _ in found.values] == [f"'{'a' * 38}'", f"'{'b' * 39}…"]


def test_check_shows_itself_after_its_warning_and_commands_no_terminal():
    frame = pd.DataFrame({"a\x1b[2J": [0.5, 3], "\x9bmore": 0})
    found = Schema({"a\x1b[2J": (0, 1)}, classes=[0, 1]).check(frame, [0, 1])
    assert repr(found) == str(found)
    assert repr(found).startswith("THIS IS NOT PRIVATE")
    assert "NOT PRIVATE" in repr(found.columns[0])
    assert repr(found).replace("\n", "").isprintable()


@pytest.mark.parametrize("lazy", [False, True])
def test_check_counts_weights_and_units(lazy):
    frame = FRAME.assign(person=["a", "a", None, "b", "c", "d"])
    weight = pd.Series([1.0, np.nan, 1.0, 0.0, 1.0, 2.0])
    heavy = Schema(SCHEMA.features, classes=[0, 1], max_weight=3, ignore=["person"])
    units = Schema(SCHEMA.features, classes=[0, 1], unit_id="person")
    y = pd.Series(Y)
    if lazy:
        frame, weight, y = (dd.from_pandas(part, npartitions=2) for part in (frame, weight, y))
    found = heavy.check(frame, y, weight)
    assert (found.bad_weights, found.without_unit, found.usable) == (2, None, 2)
    found = units.check(frame, y)
    assert (found.bad_weights, found.without_unit, found.usable) == (None, 1, 2)
    with pytest.raises(PlanError, match="unit_id"):
        units.check(frame, y, weight)


@pytest.mark.parametrize(
    "feature", [["Zürich", "Bern"], {"from": {"Zürich": "east", "Bern": "west"}}]
)
def test_check_says_that_a_text_is_in_another_unicode_form(feature):
    towns = ["Zu\u0308rich", "Zurich", "Bern"]
    schema = Schema({"town": feature}, classes=["ä", "b"])
    found = schema.check(pd.DataFrame({"town": towns}), ["a\u0308", "b", "c"])
    (told,) = [line for line in str(found).splitlines() if "town" in line]
    assert "rich' in another Unicode form than declared (1 times)" in told
    assert "'Zurich' (1 times)" in told
    assert found.bad_labels == (("'a\u0308' in another Unicode form than declared", 1), ("'c'", 1))


BIG = 2**53 + 1
LARGE_IDS = {
    "int64": np.array([BIG, BIG + 1, 7, 8]),
    "floats": np.array([BIG, np.inf, np.nan, 8.0]),
    "nullable": pd.array([BIG, BIG + 1, None, 8], dtype="Int64"),
    "Arrow": pd.array([BIG, BIG + 1, None, 8], dtype=pd.ArrowDtype(pa.int64())),
    "objects": np.array([BIG, BIG + 1, None, 8], object),
    "digits": [str(BIG), f"-{BIG}", None, "8"],
    "hexadecimal": ["12e34567", "1e234567", None, "12f34567"],
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("ids", LARGE_IDS.values(), ids=LARGE_IDS)
def test_check_counts_ids_that_are_large_numbers_apart(ids, lazy):
    frame = pd.DataFrame({"x": 0.5, "person": ids})
    y = pd.Series([0, 1, 0, 1])
    if lazy:
        frame, y = (dd.from_pandas(part, npartitions=2) for part in (frame, y))
    found = Schema({"x": (0, 1)}, classes=[0, 1], unit_id="person").check(frame, y)
    assert found.large_ids == 2
    assert ", 2 of them for an id that is a number of 2**53 or more" in str(found)


def test_ids_with_a_letter_before_them_are_units():
    ids = pd.Series(LARGE_IDS["hexadecimal"], dtype="string")
    frame = pd.DataFrame({"x": 0.5, "person": "p" + ids})
    found = Schema({"x": (0, 1)}, classes=[0, 1], unit_id="person").check(frame, [0, 1, 0, 1])
    assert (found.without_unit, found.large_ids) == (1, 0)  # one is missing, and stays so


def test_the_command_keeps_large_whole_numbers_as_ids(tmp_path, capsys):
    Schema({"x": (0, 1)}, classes=[0, 1], target="y", unit_id="id").save(tmp_path / "s.json")
    (tmp_path / "d.csv").write_text(f"x,y,id\n0,0,{BIG}\n0,1,{BIG + 1}\n1,1,12e34567\n")
    assert main(["check", str(tmp_path / "d.csv"), "--schema", str(tmp_path / "s.json")]) == 0
    assert "units: 0 rows have none" in capsys.readouterr().out


def test_check_takes_columns_as_fit_does(tmp_path):
    with pytest.warns(UnnamedColumnsWarning):
        SCHEMA.check(TABLE, Y)
    order = ["pay", "age", "job"]
    found = SCHEMA.check(FRAME[order].to_numpy(), Y, columns=order)
    assert found.columns == SCHEMA.check(FRAME, Y).columns
    write_dataset(tmp_path / "d.zarr", FRAME, Y, schema=SCHEMA)
    data = open_dataset(tmp_path / "d.zarr")
    assert SCHEMA.check(data.X, data.y).columns == found.columns


def test_check_of_no_rows():
    found = SCHEMA.check(FRAME[:0], Y[:0])
    assert (found.n_rows, found.usable) == (0, 0)


def test_the_command_ends_with_1_where_nothing_is_usable(tmp_path, capsys):
    Schema({"age": (0, 100)}, classes=[0, 1], target="rich").save(tmp_path / "s.json")
    (tmp_path / "d.csv").write_text("age,rich,more\n20,yes,1\n30,no,2\n40,yes,3\n")
    run = ["check", str(tmp_path / "d.csv"), "--schema", str(tmp_path / "s.json")]
    assert main(run) == 1
    printed = capsys.readouterr()
    assert "'yes' (2 times), 'no' (1 times)" in printed.out
    assert "NO ROW IS USABLE" in printed.out
    assert "'more'" in printed.out
    assert "No row is usable" in printed.err
    (tmp_path / "d.csv").write_text("age,rich,more,who\n20,yes,1,a\n30,1,2,\n40,0,0,b\n")
    assert main(run) == 0
    assert "NO ROW" not in capsys.readouterr().out
    assert main([*run, "--weight", "more", "--unit", "who"]) == 2  # not both, as for fit
    capsys.readouterr()
    assert main([*run, "--unit", "who"]) == 0
    assert "units: 1 rows have none" in capsys.readouterr().out
    (tmp_path / "d.csv").write_text("age,rich,more,who\n20,1,0,a\n")
    assert main([*run, "--weight", "more"]) == 1
