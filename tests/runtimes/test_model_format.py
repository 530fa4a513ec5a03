"""The model file of every recipe is what docs/model-format.schema.json says."""

import json
from pathlib import Path

import pytest

from dpgb_dask import DPGBClassifier
from dpgb_dask.testing import SeededNoise

jsonschema = pytest.importorskip("jsonschema")
FORMAT = Path(__file__).parents[2] / "docs" / "model-format.schema.json"


@pytest.fixture(scope="module")
def check():
    data = json.loads(FORMAT.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(data)
    return jsonschema.Draft202012Validator(data).validate


def test_model_files_fit_the_format(check, small, tmp_path):
    small[0].save(tmp_path / "model.json")
    data = json.loads((tmp_path / "model.json").read_text())
    check(data)
    data["model"]["trees"]["depth"] = 11
    with pytest.raises(jsonschema.ValidationError):
        check(data)


def test_edited_files_fit_the_format(check, features, labels, binary_schema, tmp_path):
    model = DPGBClassifier(epsilon=4.0, schema=binary_schema, noise=SeededNoise(0), random_state=0)
    model.fit(features, labels)
    numeric = next(name for name, f in binary_schema.features.items() if hasattr(f, "low"))
    edited = model.edit().monotone(numeric).clamp(numeric, -1, where=(0, 1)).remove(numeric).done()
    edited.save(tmp_path / "model.json")
    data = json.loads((tmp_path / "model.json").read_text())
    check(data)
    data["edits"][1]["low"] = 0.5
    with pytest.raises(jsonschema.ValidationError):
        check(data)
