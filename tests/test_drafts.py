"""Drafts of schemas: public structure alone, and blanks that no fit takes."""

import contextlib
import datetime
import decimal
import json

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from mutants import mutants

from dpgb_dask import Datetime, DPGBClassifier, DPGBError, Schema, io
from dpgb_dask.contracts.blanks import FILL_IN
from dpgb_dask.drafts import SchemaDraft
from dpgb_dask.errors import SchemaError, StructureError

SECRET = "secret"
COLUMNS = {
    "age": pa.array([41], pa.int8()),
    "pay": pa.array([1234567.5], pa.float32()),
    "cents": pa.array([decimal.Decimal("7.25")]),
    "whole": pa.array([decimal.Decimal(7)], pa.decimal128(5, 0)),
    "job": pa.array([SECRET]),
    "town": pa.array([SECRET]).dictionary_encode(),
    "when": pa.array([datetime.datetime(2020, 1, 1)], pa.timestamp("us", "UTC")),
    "born": pa.array([datetime.date(1234, 5, 6)]),
    "member": pa.array([True]),
    "list": pa.array([[41]]),
    "clock": pa.array([datetime.time(1)]),
    "nothing": pa.nulls(1),
    "y": pa.array([1]),
}
TABLE = pa.table(COLUMNS)
KINDS = {
    "age": "numeric", "pay": "numeric", "cents": "numeric", "whole": "numeric", "job": "categorical",
    "town": "categorical", "when": "datetime", "born": "datetime", "member": "bool", "list": None, "clock": None,
    "nothing": None,
}  # fmt: skip


def type_of(spec):
    return None if spec["type"].startswith(FILL_IN) else spec["type"]


def test_a_draft_of_declared_types_holds_them_and_no_value():
    draft = Schema.draft(TABLE.schema, target="y")
    features = draft["features"]
    assert {name: type_of(spec) for name, spec in features.items()} == KINDS
    assert [features[name]["integer"] for name in ("age", "pay", "cents", "whole")] == [
        True,
        False,
        False,
        True,
    ]
    said = str(draft) + repr(draft)
    assert not any(text in said for text in (SECRET, "41", "1234", "7.25"))
    assert draft.open == (
        "feature 'age': low, high", "feature 'pay': low, high", "feature 'cents': low, high",
        "feature 'whole': low, high", "feature 'job': categories", "feature 'town': categories",
        "feature 'when': first, last", "feature 'born': first, last", "feature 'list': type", "feature 'clock': type",
        "feature 'nothing': type", "target: type",
    )  # fmt: skip
    assert all(line in repr(draft) for line in draft.open)
    assert "public knowledge" in said


def test_a_draft_says_which_parts_a_date_may_have():
    draft = Schema.draft(TABLE.schema, target="y")
    assert draft["features"]["when"]["parts"] == ["days", "month", "weekday"]
    assert any("days, year, month, weekday, hour" in line for line in draft["draft"])
    assert "parts" in draft_of_memory()["features"]["x"]["type"]


def draft_of_memory():
    return Schema.draft(pd.DataFrame({"x": [1]}))


def test_a_target_of_truth_values_is_binary_and_its_labels_are_explained():
    draft = Schema.draft(TABLE.schema, target="member")
    assert draft["target"]["type"] == "binary"
    assert "[false, true]" in draft["target"]["classes"]
    assert draft.open[-1] == "target: classes"
    filled = {
        **draft,
        "features": {"x": (0, 1)},
        "target": {**draft["target"], "classes": [False, True]},
    }
    assert Schema.from_dict(filled).target.classes == (False, True)


def test_a_draft_names_the_unit_which_is_no_feature():
    draft = Schema.draft(TABLE.schema, target="y", unit_id="job")
    assert draft["unit_id"] == "job"
    assert "job" not in draft["features"]
    assert "unit_id" not in Schema.draft(TABLE.schema, target="y")
    assert '"unit_id": "COLUMN"' in " ".join(Schema.draft(TABLE.schema)["draft"])
    for unit, said in (
        ("jo", "unit_id='jo' is no column of the data"),
        ("y", "is the unit_id too"),
    ):
        with pytest.raises(SchemaError, match=said):
            Schema.draft(TABLE.schema, target="y", unit_id=unit)


def test_fill_keeps_the_unit_of_a_draft():
    frame = pd.DataFrame({"x": [0.5], "who": ["a"], "y": [1]})
    filled = Schema.draft(frame, target="y", unit_id="who").fill({"x": (0, 1)}, classes=[0, 1])
    assert filled == Schema({"x": (0, 1)}, classes=[0, 1], target="y", unit_id="who")


def test_fill_keeps_what_was_edited_in_a_draft():
    frame = pd.DataFrame({"x": [0.5], "note": ["a"], "y": [1]})
    draft = SchemaDraft({**Schema.draft(frame, target="y"), "max_weight": 5, "ignore": ["note"]})
    known, features = {"classes": [0, 1], "target": "y"}, {"x": (0, 1)}
    kept = Schema(features, **known, ignore=["note"], max_weight=5)
    assert draft.fill(features, classes=[0, 1], ignore=["note"]) == kept
    assert draft.fill(features, classes=[0, 1], ignore=["note"], max_weight=2) == Schema(
        features, **known, ignore=["note"], max_weight=2
    )


def in_memory():
    frame = pd.DataFrame({"age": [41, 7], "when": pd.to_datetime(["2020-01-01", None])})
    yield frame
    yield dd.from_pandas(frame, npartitions=1)
    yield pa.Table.from_pandas(frame)
    yield xr.Dataset({name: ("row", column.to_numpy()) for name, column in frame.items()})
    yield xr.DataArray(np.ones((2, 2)), dims=("row", "c"), coords={"c": ["age", "when"]})


@pytest.mark.parametrize("source", [*in_memory()], ids=lambda source: type(source).__name__)
def test_a_draft_of_a_collection_has_names_alone(source):
    draft = Schema.draft(source)
    assert draft.open == ("feature 'age': type", "feature 'when': type", "target: name, type")
    assert "41" not in str(draft)


@pytest.mark.parametrize(
    "source", [np.ones((3, 2)), da.ones((3, 2)), pd.DataFrame(np.ones((3, 2)))]
)
def test_columns_without_names_are_numbered(source):
    assert list(Schema.draft(source)["features"]) == ["x0", "x1"]


LIKE_VALUES = [
    "",
    " ",
    "51000",
    "-1.5e3",
    "1987-03-04",
    "1987-03-04T10:00Z",
    "4.3.1987",
    "03/04/1987",
    "nan",
    "N/A",
    "true",
]


@pytest.mark.parametrize("name", LIKE_VALUES)
def test_a_name_that_looks_like_a_value_is_refused_and_not_printed(name):
    """A file without a header has a person in its first line."""
    frame = pd.DataFrame([[1, 2]], columns=["Alice Secret", name])
    with pytest.raises(StructureError, match="the names may be values") as caught:
        Schema.draft(frame, target="Alice")
    assert "Secret" not in str(caught.value)
    assert list(Schema.draft(frame, header=True)["features"]) == list(frame.columns)


def test_names_of_a_pivoted_table_are_refused():
    rows = pd.DataFrame({"id": [1, 2], "pay": [51000, 62000], "n": [1, 1]})
    with pytest.raises(StructureError, match="pivoted"):
        Schema.draft(rows.pivot(index="id", columns="pay", values="n").reset_index())
    twice = pd.DataFrame([[1, 2]], columns=["clerk", "clerk"])
    for header in (False, True):
        with pytest.raises(StructureError, match="two columns have one name"):
            Schema.draft(twice, header=header)


def test_zarr_declares_types(tmp_path):
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("n", data=np.arange(3, dtype=np.int16))
    group.create_array("t", data=np.array(["a"] * 3, np.dtypes.StringDType()))
    group.create_array("d", data=np.zeros(3, "datetime64[D]"))
    group.create_array("b", data=np.zeros(3, bool))
    draft = Schema.draft(group)
    kinds = {"n": "numeric", "t": "categorical", "d": "datetime", "b": "bool"}
    assert {name: type_of(spec) for name, spec in draft["features"].items()} == kinds
    matrix = zarr.create_array(tmp_path / "x.zarr", data=np.ones((3, 2), np.float32))
    assert Schema.draft(matrix).open[0] == "feature 'x0': low, high"


def test_what_no_fit_takes_has_no_draft():
    for source in ([1, 2], "people.parquet", np.ones(3)):
        with pytest.raises(StructureError):
            Schema.draft(source)
    with pytest.raises(SchemaError, match=r"target='Age' is no column.*Did you mean 'age'"):
        Schema.draft(TABLE.schema, target="Age")


def test_blanks_survive_files_and_no_fit_takes_them(tmp_path):
    draft = Schema.draft(TABLE.select(["age", "job", "y"]).schema, target="y")
    path = tmp_path / "people.schema.json"
    draft.save(path)
    again = SchemaDraft.load(path)
    assert again == draft
    assert repr(again) == repr(draft)
    said = "open: feature 'age': low, high; feature 'job': categories; target: type. Fill them in from public knowledge"
    frame = TABLE.select(["age", "job"]).to_pandas()
    for schema in (draft, again, path, str(path), dict(draft)):
        with pytest.raises(SchemaError, match=said):
            DPGBClassifier(epsilon=1.0, delta=1e-6, schema=schema).fit(frame, [1])
        with pytest.raises(SchemaError, match=said):
            io.write_dataset(tmp_path / "x.zarr", frame, [1], schema=schema)
    with pytest.raises(SchemaError, match=said):
        Schema.load(path)


def test_an_edited_file_is_a_schema_and_names_what_is_left(tmp_path):
    path = tmp_path / "people.schema.json"
    Schema.draft(TABLE.select(["age", "job", "list", "y"]).schema, target="y").save(path)
    facts = json.loads(path.read_text())
    facts["features"]["age"] |= {"low": 17, "high": 90}
    facts["features"]["job"] = {"type": "grouped", "from": None}
    facts["features"]["list"]["type"] = "numeric"
    facts["target"] |= {"type": "binary", "classes": [0, 1]}  # blanks of other types may stay
    path.write_text(json.dumps(facts))
    said = "open: feature 'job': from; feature 'list': low, high. Fill"
    with pytest.raises(SchemaError, match=said):
        Schema.load(path)
    facts["features"]["job"]["from"] = {"clerk": "office"}
    del facts["features"]["list"]
    path.write_text(json.dumps(facts))
    schema = Schema.load(path)
    assert schema == Schema(
        {"age": facts["features"]["age"], "job": {"from": {"clerk": "office"}}},
        classes=[0, 1],
        target="y",
    )
    assert "draft" not in schema.to_dict()


@pytest.mark.parametrize("text", ["[1]", "3", "null", "{}", '{"features": 3, "target": {}}'])
def test_a_file_that_is_no_draft_is_refused_by_name(tmp_path, text):
    (tmp_path / "draft.json").write_text(text)
    with pytest.raises(SchemaError, match=r"Make one with Schema\.draft"):
        SchemaDraft.load(tmp_path / "draft.json")


def test_a_mutant_of_a_draft_is_one_or_is_refused_by_an_error_of_ours(tmp_path):
    frame = pd.DataFrame({"a": [1.0], "b": ["x"], "t": [1], "d": pd.to_datetime(["2020-01-01"])})
    data = json.loads(str(Schema.draft(frame, target="t")))
    read = 0
    for mutant in mutants(data, 400):
        try:
            draft = SchemaDraft(json.loads(json.dumps(mutant)))
        except (DPGBError, RecursionError, ValueError):  # the last two: no JSON that can be read
            continue
        assert repr(draft)
        assert draft._repr_html_()
        draft.save(tmp_path / "draft.json")
        assert SchemaDraft.load(tmp_path / "draft.json").open == draft.open
        with contextlib.suppress(DPGBError):
            draft.fill({"a": (0, 1)}, classes=[0, 1])
        with contextlib.suppress(DPGBError):
            Schema.from_dict(draft)
        read += 1
    assert read > 100


def test_fill_makes_a_schema_of_a_draft():
    frame = TABLE.select(["age", "when", "member", "job", "y"]).to_pandas()
    draft = Schema.draft(frame)
    known = {"age": (17, 90), "when": Datetime("2020-01-01", "2020-12-31"), "member": bool}
    schema = draft.fill(known, classes=[0, 1], target="y", ignore=["job"], max_weight=2)
    assert schema == Schema(known, classes=[0, 1], target="y", ignore=["job"], max_weight=2)
    bounds = draft.fill(known, target_bounds=(0, 9), target="y", unit_id="job")
    assert bounds == Schema(known, target_bounds=(0, 9), target="y", unit_id="job")
    with pytest.raises(
        SchemaError, match=r"open: feature 'job': type; feature 'y': type; target: name, type\."
    ):
        draft.fill(known)
    with pytest.raises(
        SchemaError, match=r"feature 'agee' is no column of the draft. Did you mean 'age'"
    ):
        draft.fill({"agee": (0, 1)})
