"""Structure of a block and of a file: names, order, width and declared types raise; values never do."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpgb_dask.contracts.features import Categorical, Datetime, Hashed, Numeric
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.structure import check_columns, check_file_types, check_one_axis
from dpgb_dask.errors import SchemaError, StructureError

SCHEMA = Schema(
    {"x": Numeric(0, 1), "c": Categorical(("a", "b"))}, classes=[0, 1], target="y", ignore=["id"]
)


def frame_of(**columns):
    return pd.DataFrame({name: pd.Series(values) for name, values in columns.items()})


def test_declared_columns_that_are_no_features_may_stay():
    frame = frame_of(id=[1], x=[0.5], y=[1], c=["a"])
    assert check_columns(frame, SCHEMA) == (1, 3)


@pytest.mark.parametrize(
    ("frame", "match"),
    [
        (frame_of(x=[0.5]), r"missing=\['c'\]\. Rename or add columns\.$"),
        (
            frame_of(x=[0.5], c=["a"], d=[1]),
            r"schema: the data have columns that .* does not declare; schema.check",
        ),
        (
            frame_of(X=[0.5], c=["a"]),
            r"missing=\['x'\], and the data have columns that the schema does",
        ),
        (frame_of(X=[0.5], c=["a"]), r"\['x'\]: there, but for blanks or for capitals"),
        (frame_of(x=[0.5], **{"\xa0c ": ["a"]}), r"\['c'\]: there, but for blanks"),
        (frame_of(x=[0.5], cc=["a"]), r"list those to leave out in 'ignore'\.$"),
        (frame_of(c=["a"], x=[0.5]), "another order"),
        (pd.concat([frame_of(x=[0.5], c=["a"]), frame_of(x=[1.0])], axis=1), "twice"),
    ],
)
def test_columns_that_do_not_match_raise(frame, match):
    with pytest.raises(SchemaError, match=match):
        check_columns(frame, SCHEMA)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(
            pd.Series(["1"]).array,
            marks=pytest.mark.skipif(pd.__version__ < "3", reason="pandas 2 makes it objects"),
        ),
        pd.array(["1"], "string"),
        pd.array(["1"], pd.ArrowDtype(pa.string())),
        pd.array(["1"], pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))),
        pd.Categorical(["1"]),
        pd.Categorical(pd.Index(["1"], dtype=object)),
        np.array(["2020-01-01"], "datetime64[s]"),
        np.array([1j]),
    ],
    ids=lambda v: str(v.dtype),
)
def test_a_type_that_is_no_number_raises_in_files_alone(values):
    frame = frame_of(x=values, c=["a"])
    check_columns(frame, SCHEMA)
    with pytest.raises(SchemaError, match="'x' is declared numeric"):
        check_file_types(dict(frame.dtypes), SCHEMA)


@pytest.mark.parametrize("dtype", ["U3", "S3", np.dtypes.StringDType()])
def test_text_of_numpy_raises_in_files_alone(dtype):
    block = np.zeros((3, 2)).astype(dtype)
    check_columns(block, SCHEMA)
    with pytest.raises(SchemaError, match="'x' is declared numeric"):
        check_file_types({"x": block.dtype}, SCHEMA)


def test_untyped_columns_are_allowed_in_files():
    for column in (pd.Series(["1"], dtype=object), pd.array([None], pd.ArrowDtype(pa.null()))):
        frame = frame_of(x=column, c=["a"])
        check_columns(frame, SCHEMA)
        check_file_types(dict(frame.dtypes), SCHEMA)


def test_arrays_match_by_position_and_width():
    assert check_columns(np.zeros((0, 2)), SCHEMA) == (0, 1)
    assert check_columns(pd.DataFrame(np.zeros((3, 2))), SCHEMA) == (0, 1)
    with pytest.raises(StructureError, match="another number of columns"):
        check_columns(np.zeros((4, 3)), SCHEMA)
    with pytest.raises(StructureError, match="two dimensions"):
        check_columns(np.zeros(4), SCHEMA)


def test_a_text_target_raises_where_a_file_declares_it_and_the_schema_a_number():
    schema = Schema({"x": (0, 1)}, target_bounds=(0, 1))
    check_columns(np.zeros(3), schema, target=True)
    check_columns(np.array(["a"]), schema, target=True)
    check_file_types({"target": np.dtype(float)}, schema)
    with pytest.raises(SchemaError, match="target 'target' is declared numeric"):
        check_file_types({"target": np.array(["a"]).dtype}, schema)


@pytest.mark.parametrize(
    ("dtype", "nested"),
    [
        (np.dtype([("p", "f8"), ("q", "i4")]), True),
        (pd.ArrowDtype(pa.struct([("p", pa.int64())])), True),
        (pd.ArrowDtype(pa.list_(pa.string())), True),
        (pd.ArrowDtype(pa.map_(pa.string(), pa.int64())), True),
        (
            pd.ArrowDtype(pa.dense_union([pa.field("n", pa.int64()), pa.field("s", pa.string())])),
            False,
        ),
        (pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string())), False),
        (np.dtype(object), False),
    ],
)
def test_lists_and_records_raise_in_files_alone(dtype, nested):
    """No value of theirs has a normal form, so each would be an unknown category."""
    schema = Schema(
        {"c": ["a", "b"], "h": Hashed(8), "d": Datetime("2020-01-01", "2021-01-01")},
        classes=["u", "v"],
    )
    for name in (*schema.names, schema.target.name):
        if nested:
            with pytest.raises(SchemaError, match=f"'{name}' is a column of lists or records"):
                check_file_types({name: dtype}, schema)
        else:
            check_file_types({name: dtype}, schema)


def test_messages_name_the_kind_of_a_column_not_its_length():
    text = np.full((3, 2), "secret-4711")
    with pytest.raises(SchemaError, match="kind 'text'") as caught:
        check_file_types({"x": text.dtype}, SCHEMA)
    assert "11" not in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "column", "good"),
    [
        (["a", "b"], pd.Series([0, 1]), False),
        (["a", "b"], pd.Series([True, False]), False),
        (["a", "b"], pd.Series([np.nan, np.nan]), True),
        (["a", "1"], pd.Series([0, 1]), True),
        ([0, 1], pd.Series(["0", "1"], dtype="str"), True),
        (["0", "1"], pd.Series([0, 1]), True),
        ([0, "a"], pd.Series(["0", "a"], dtype="str"), True),
        ([0, 1], pd.Series([0.0, 1.0]), True),
        (["a", "b"], pd.Series(["a", "b"], dtype="category"), True),
    ],
)
def test_labels_of_a_type_that_can_never_match_raise_in_files_alone(declared, column, good):
    feature = Schema({"f": declared}, classes=[0, 1])
    target = Schema({"x": (0, 1)}, classes=declared, target="f")
    check_columns(column.to_frame("f"), feature)
    check_columns(column, target, target=True)
    for schema in (feature, target):
        if good:
            check_file_types({"f": column.dtype}, schema)
        else:
            with pytest.raises(SchemaError, match="none can match"):
                check_file_types({"f": column.dtype}, schema)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        (["a", "b", "c"], r"'2' along \('c',\)\. They need"),
        (["a", "b", "c", "d"], r"'2' along \('c',\), …\. They need"),
        (["row", "rows"], r"\('rowss', data\[name\]\.data\).*stack\(rowss=\('row', 'rows'\)\)"),
    ],
    ids=["three", "four", "taken"],
)
def test_some_axes_are_named_and_a_new_one_that_is_none_of_them(axes, words):
    with pytest.raises(StructureError, match=words):
        check_one_axis({str(k): (axis,) for k, axis in enumerate(axes)})
