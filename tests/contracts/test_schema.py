"""The mark of facts that were read from data: no copy, file or edit of a schema loses it."""

import json

import numpy as np
import pandas as pd
import pytest
from mutants import mutants

from dpgb_dask.contracts.features import Categorical, Datetime, Numeric
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import SchemaError

DECLARED = Schema({"a": (0, 1)}, classes=[0, 1])
INFERRED = Schema({"a": (0, 1)}, classes=[0, 1], private=False)


def test_the_mark_of_inferred_facts_survives_json_and_files(tmp_path):
    assert INFERRED.to_dict()["private"] is False
    assert Schema.from_dict(INFERRED.to_dict()) == INFERRED != DECLARED
    INFERRED.save(tmp_path / "s.json")
    assert Schema.load(tmp_path / "s.json").private is False
    assert "private=False" in repr(INFERRED)


def test_a_declared_schema_says_nothing_of_it(tmp_path):
    assert "private" not in DECLARED.to_dict()
    DECLARED.save(tmp_path / "s.json")
    assert Schema.load(tmp_path / "s.json").private
    assert "private" not in repr(DECLARED)


@pytest.mark.parametrize("mark", [None, 0, "no"])
def test_a_mark_that_is_no_truth_value_is_refused(mark):
    data = json.loads(json.dumps(DECLARED.to_dict() | {"private": mark}))
    with pytest.raises(SchemaError, match="private="):
        Schema.from_dict(data)


FULL = {
    "version": 1,
    "features": {
        "age": {"type": "numeric", "low": 0, "high": 90, "integer": True, "missing": False},
        "color": {"type": "categorical", "categories": ["blue", "red", 7], "missing": True},
    },
    "target": {"name": "y", "type": "binary", "classes": ["no", "yes"]},
    "ignore": ["id"],
    "max_weight": 3,
    "unit_id": "person",
    "private": True,
}
KINDS = FULL | {
    "features": {
        "when": {"type": "datetime", "first": "2015-01-01", "last": "2024-12-31", "parts": ["days", "hour"]},
        "zip": {"type": "grouped", "from": {"10115": "Berlin", "01067": "Dresden", "1069": "Dresden"}},
        "shop": {"type": "hashed", "buckets": 100, "missing": True},
        "member": {"type": "bool"},
    },
}  # fmt: skip
NUMERIC = FULL | {"target": {"name": "y", "type": "numeric", "low": -1, "high": 1}}


def written(data):
    """JSON text; of data too deep for a writer, text that is too deep for a reader."""
    try:
        return json.dumps(data)
    except RecursionError:
        return '{"features": ' + "[" * 100_000


@pytest.mark.parametrize("facts", [FULL, NUMERIC, KINDS])
def test_a_mutant_is_read_or_refused_by_an_error_of_ours(facts, tmp_path):
    path = tmp_path / "s.json"
    read, refused = [], []
    for mutant in mutants(facts, 400):
        path.write_text(written(mutant))
        for make, given in ((Schema.from_dict, mutant), (Schema.load, path)):
            try:
                read.append(make(given))
            except SchemaError as error:
                refused.append(str(error))
    assert len(read) > 20
    assert len(refused) > 400
    assert max(map(len, refused)) < 2000
    "".join(refused).encode()
    for schema in read:
        json.dumps(schema.to_dict(), ensure_ascii=False).encode()
        assert Schema.from_dict(schema.to_dict()) == schema
        assert repr(schema)


def change(**changes):
    return json.loads(json.dumps(FULL)) | changes


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (change(version=True), "version=True"),
        (change(version=0), "version=0"),
        (change(version=-1), "version=-1"),
        (change(version="1"), "version='1'"),
        (change(version=2), "newer"),
        (change(ignore=5), "ignore=5"),
        (change(ignore="id"), "ignore='id'"),
        (change(unit_id=5), "unit_id=5"),
        (change(max_weight=10**5000), "max_weight="),
        (change(features={"a": {"type": "categorical", "categories": [[1], [2]]}}), "'a' must be text"),
        (change(features={"a": {"type": "numeric", "low": 0, "high": 10**400}}), "two finite numbers"),
        (change(features={"a": {"type": ["numeric"]}}), "expected"),
        (change(features={"a": {"type": "numeric", "low": 0, "high": 1, "missing": "no"}}), "missing='no'"),
        (change(features={"\ud800": {"type": "numeric", "low": 0, "high": 1}}), "surrogate"),
        (change(features={"a": {"type": "categorical", "categories": ["\udfff"]}}), "surrogate"),
        (change(target={"name": "y", "type": ["binary"], "classes": [0, 1]}), "target type"),
        (change(target={"name": 5, "type": "binary", "classes": [0, 1]}), "name=5"),
        (change(target={"name": "y", "type": "binary", "classes": [[0], [1]]}), "classes must be text"),
        (change(target={"name": "y", "type": "binary", "classes": ["\ud800", "b"]}), "surrogate"),
    ],
)  # fmt: skip
def test_a_malformed_fact_is_named(facts, said):
    with pytest.raises(SchemaError, match=said):
        Schema.from_dict(facts)


def test_a_model_file_is_said_to_be_no_schema():
    facts = {"format": "dpgb_dask model", "version": 3, "schema": DECLARED.to_dict()}
    with pytest.raises(SchemaError, match="This is a model file, and no schema"):
        Schema.from_dict(facts)


def test_python_facts_of_other_types_are_refused():
    for options in (
        {"classes": 5}, {"classes": "ab"}, {"target_bounds": (0, 1, 2)}, {"target_bounds": 5},
        {"target_bounds": (0, 10**400)}, {"classes": [0, 1], "ignore": 5},
    ):  # fmt: skip
        with pytest.raises(SchemaError):
            Schema({"a": (0, 1)}, **options)
    for features in (5, ["a"], {1: (0, 1), "1": (0, 1)}, {"a": (0, [1])}, {"a": Numeric(0, "x")}):
        with pytest.raises(SchemaError):
            Schema(features, classes=[0, 1])


@pytest.mark.parametrize(
    "features", [["age"], "age", pd.DataFrame({"age": [41]}), pd.DataFrame({"age": [41]}).dtypes]
)
def test_what_features_are_instead_of_a_dict_is_said(features):
    kind = type(features).__name__
    with pytest.raises(SchemaError, match=rf"features is a {kind}\. Give a dict.*Schema\.draft"):
        Schema(features, classes=[0, 1])


def test_numbers_of_numpy_are_numbers():
    schema = Schema({"a": (0, 1)}, target_bounds=np.array([0, 9]), max_weight=np.int64(2))
    assert schema == Schema({"a": (0, 1)}, target_bounds=(0, 9), max_weight=2)
    assert json.loads(json.dumps(schema.to_dict())) == schema.to_dict()


def test_a_target_is_no_unit():
    with pytest.raises(SchemaError, match="unit_id='y' is also the target"):
        Schema({"a": (0, 1)}, classes=[0, 1], target="y", unit_id="y")


@pytest.mark.parametrize("kind", [set, frozenset])
def test_classes_in_a_set_are_refused_as_they_have_no_order(kind):
    with pytest.raises(SchemaError, match="classes is a set, and must be a list") as refused:
        Schema({"a": (0, 1)}, classes=kind(["Jane", "Jo"]))
    assert "Jane" not in str(refused.value)


@pytest.mark.parametrize(
    "other",
    [
        Schema({"b": Categorical((1, 0)), "a": (0, 1)}, classes=[0, 1]),
        Schema({"a": (0, 1), "b": Categorical((True, False))}, classes=[0, 1]),
        Schema({"a": (0, 1), "b": Categorical((1, 0))}, classes=[False, True]),
        Schema({"a": (0, 2), "b": Categorical((1, 0))}, classes=[0, 1]),
    ],
)
def test_schemas_are_equal_if_they_read_the_same_rows_alike(other):
    schema = Schema({"a": (0, 1), "b": Categorical((1, 0))}, classes=[0, 1])
    same = Schema({"a": (0.0, 1.0), "b": Categorical((1, 0))}, classes=(0, 1))
    assert schema == same == Schema.from_dict(same.to_dict())
    assert hash(schema) == hash(same)
    assert schema != other
    assert len({schema, same, other}) == 2


def test_a_bound_of_minus_zero_is_zero():
    for low, high in ((0, 1), (-1, 0)):
        bounds, minus = (low, high), (low or -0.0, high or -0.0)
        same = Schema({"a": minus}, target_bounds=minus)
        assert same == Schema({"a": bounds}, target_bounds=bounds)
        assert same.to_dict() == Schema({"a": bounds}, target_bounds=bounds).to_dict()
        assert "-0.0" not in repr(same.features)


def test_more_features_than_trees_can_name_are_refused():
    Schema({f"x{k}": (0, 1) for k in range(65_535)}, classes=[0, 1])
    with pytest.raises(SchemaError, match="more than 65535 features"):
        Schema({f"x{k}": (0, 1) for k in range(65_536)}, classes=[0, 1])


@pytest.mark.parametrize("text", ["[" * 100_000, '{"features": ' * 50_000 + "1" + "}" * 50_000])
def test_deep_nesting_is_refused(tmp_path, text):
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(SchemaError, match="nested too deeply"):
        Schema.load(tmp_path / "s.json")


def test_a_class_that_is_missing_is_refused():
    for label in (None, float("nan")):
        with pytest.raises(SchemaError, match="classes hold a missing value"):
            Schema({"a": (0, 1)}, classes=[label, 1])


def test_files_that_lose_a_fact_are_refused(tmp_path):
    path = tmp_path / "s.json"
    rest = '"target": {"name": "y", "type": "binary", "classes": [0, 1]}}'
    path.write_text(
        '{"features": {"a": {"type": "numeric", "low": 0, "high": 1}, "a": [1]}, ' + rest
    )
    with pytest.raises(SchemaError, match=r"s\.json'?.*key 'a' is there twice"):
        Schema.load(path)
    path.write_text('{"features": {"a": {"type": "numerical", "low": 0, "high": 1}}, ' + rest)
    with pytest.raises(SchemaError, match=r"type='numerical' is unknown.*Did you mean 'numeric'"):
        Schema.load(path)


def test_a_file_may_begin_with_the_mark_of_utf_8(tmp_path):
    schema = Schema({"a": (0, 1)}, classes=[0, 1])
    schema.save(tmp_path / "s.json")
    text = (tmp_path / "s.json").read_text(encoding="utf-8")
    (tmp_path / "s.json").write_text(text, encoding="utf-8-sig")
    assert Schema.load(tmp_path / "s.json") == schema


def test_encoded_columns_fit_16_bits():
    parts = ["days", "year", "month", "weekday", "hour"]
    dates = {f"d{j}": Datetime("2000-01-01", "2020-12-31", parts=parts) for j in range(13_200)}
    with pytest.raises(ValueError, match="more than 65535 features"):
        Schema(dates, classes=[0, 1])
