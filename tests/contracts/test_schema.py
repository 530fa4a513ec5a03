"""The mark of facts that were read from data: no copy, file or edit of a schema loses it."""

import json

import pytest

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
