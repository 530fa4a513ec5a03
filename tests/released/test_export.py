"""A model file reads back to the same model, and a bad one is refused with a clear error."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dpgb_dask.contracts.model import Splits, Trees
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import SchemaError, StructureError
from dpgb_dask.released.export import ModelFile, load, model_to_dict, save
from dpgb_dask.released.predict import scores


@pytest.fixture
def file(model, binary_schema, report):
    return ModelFile(
        estimator="DPGBClassifier",
        parameters={"epsilon": 1.0},
        schema=binary_schema,
        model=model,
        report=report,
    )


@pytest.fixture
def saved(file, tmp_path):
    path = tmp_path / "model.json"
    save(file, path)
    return path


def test_file_reads_back_bit_for_bit(file, saved, rows, tmp_path):
    back = load(saved)
    assert back.schema == file.schema
    assert back.report == file.report
    assert back.parameters == file.parameters
    np.testing.assert_array_equal(
        scores(back.model, back.schema, rows), scores(file.model, file.schema, rows)
    )
    for got, want in zip(back.model.tables, file.model.tables, strict=True):
        assert got.dtype == want.dtype == np.int32
    again = tmp_path / "again.json"
    save(back, again)
    assert again.read_bytes() == saved.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.json", "model.json"]


def test_multiclass_model_reads_back(three_score_model, multiclass_schema, report, rows, tmp_path):
    path = tmp_path / "m.json"
    save(
        ModelFile(
            estimator="DPGBClassifier",
            parameters={},
            schema=multiclass_schema,
            model=three_score_model,
            report=report,
        ),
        path,
    )
    back = load(path)
    np.testing.assert_array_equal(
        scores(back.model, back.schema, rows), scores(three_score_model, multiclass_schema, rows)
    )


def test_inferred_schema_stays_marked(file, tmp_path):
    schema = Schema(file.schema.features, classes=[0, 1], private=False)
    path = tmp_path / "m.json"
    save(
        ModelFile(
            estimator="DPGBClassifier",
            parameters={},
            schema=schema,
            model=file.model,
            report=file.report,
        ),
        path,
    )
    assert load(path).schema.private is False


def test_numpy_labels_are_written_as_plain_ones(file, tmp_path):
    features = dict(file.schema.features)
    schema = Schema(features, classes=[np.int64(0), np.int64(1)])
    path = tmp_path / "m.json"
    save(
        ModelFile(
            estimator="DPGBClassifier",
            parameters={},
            schema=schema,
            model=file.model,
            report=file.report,
        ),
        path,
    )
    assert load(path).schema.target.classes == (0, 1)


def test_labels_that_json_cannot_hold_are_refused_and_nothing_is_written(file, tmp_path):
    schema = Schema(file.schema.features, classes=[b"a", b"b"])
    path = tmp_path / "m.json"
    with pytest.raises(SchemaError, match="bytes"):
        save(
            ModelFile(
                estimator="DPGBClassifier",
                parameters={},
                schema=schema,
                model=file.model,
                report=file.report,
            ),
            path,
        )
    assert list(tmp_path.iterdir()) == []


def change(saved, edit):
    data = json.loads(saved.read_text())
    edit(data)
    saved.write_text(json.dumps(data))


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.pop("model"),
        lambda d: d.pop("schema"),
        lambda d: d.update(report=None),
        lambda d: d["report"].pop("epsilon"),
        lambda d: d["report"].update(unknown=1),
        lambda d: d["model"].update(intercept=[1.5]),
        lambda d: d["model"].update(intercept=[2**31]),
        lambda d: d["model"].update(intercept=[1, 2]),
        lambda d: d["model"]["bins"][0].update(edges=[3.0, 1.0]),
        lambda d: d["model"]["bins"].pop(),
        lambda d: d["model"]["tables"][0].pop(),
        lambda d: d["model"]["bins"][3].update(cell_to_bin=[0, 1, 2, 9, 3]),
        lambda d: d["model"]["pairs"][0].update(i=7),
        lambda d: d["model"]["pairs"][0].update(map_i=[0, 0, 1, 1, 2, 3]),
        lambda d: d["model"]["trees"].update(feature=[[0, 1, 9]] * 3),
        lambda d: d["model"]["trees"].update(depth=3),
        lambda d: d["model"]["trees"].update(depth=10**9),
        lambda d: d["model"]["trees"].update(depth=0, feature=[[]] * 3, threshold=[[]] * 3),
        lambda d: d["model"]["trees"].update(depth=True),
        lambda d: d["model"]["trees"].update(threshold=[[0, 1, 300]] * 3),
        lambda d: d["model"]["trees"].update(mask_of=[[0, 1, 3]] * 3),
        lambda d: d["model"]["trees"].update(mask_of=[[0, 1, -2]] * 3),
        lambda d: d["model"]["trees"].update(mask_of=[[0, 1, 2]] * 2),
        lambda d: d["model"]["trees"].update(masks=[[0, 256]] * 3),
        lambda d: d["model"]["trees"].update(masks=[[0, -1]] * 3),
        lambda d: d["model"]["trees"].update(masks=[[0, 1]] * 2),
        lambda d: d["model"]["trees"].update(masks=[[[0]], [[1]], [[2]]]),
        lambda d: d["model"].update(link="softmax"),
        lambda d: d["model"].update(link="no such link"),
        lambda d: d["model"].pop("link"),
        lambda d: d["model"]["trees"].update(value=d["model"]["trees"]["value"] * 2),
        lambda d: d["model"]["pairs"][0].update(table=[]),
        lambda d: d["schema"].update(features={}),
    ],
)
def test_malformed_files_are_refused(saved, edit):
    change(saved, edit)
    with pytest.raises(StructureError, match="malformed"):
        load(saved)


def test_newer_and_other_files_are_refused(saved, tmp_path):
    change(saved, lambda d: d.update(version=3))
    with pytest.raises(StructureError, match="newer"):
        load(saved)
    change(saved, lambda d: d.update(format="a poem"))
    with pytest.raises(StructureError, match="not a model file"):
        load(saved)
    saved.write_text("{")
    with pytest.raises(StructureError, match="not JSON"):
        load(saved)
    with pytest.raises(StructureError, match="cannot be read"):
        load(tmp_path / "nowhere.json")


def test_file_holds_no_count(model):
    assert set(model_to_dict(model)) == {"intercept", "bins", "tables", "pairs", "trees", "link"}


def without_masks(model):
    splits = model.trees.splits
    plain = Splits.plain(splits.feature, splits.threshold)
    return replace(model, trees=Trees(plain, model.trees.value))


def test_files_of_version_1_are_read(file, tmp_path, rows):
    """They had no links and no masks: the link follows from the target."""
    old = replace(file, model=without_masks(file.model))
    path = tmp_path / "m.json"
    save(old, path)

    def as_before(data):
        data["version"] = 1
        data["model"].pop("link")
        for name in ("masks", "mask_of"):
            data["model"]["trees"].pop(name)
        for name in ("pure", "loss", "signal"):
            data["report"].pop(name)
        for receipt in data["report"]["receipts"]:
            receipt.pop("mechanism")

    change(path, as_before)
    back = load(path)
    assert back.model.link == "clipped_logit"
    assert not back.report.pure
    np.testing.assert_array_equal(
        scores(back.model, back.schema, rows), scores(old.model, old.schema, rows)
    )


def test_masks_are_written_as_the_bins_sent_right(saved, file):
    trees = json.loads(saved.read_text())["model"]["trees"]
    assert trees["masks"] == [[0, 2], [1, 3], [3, 4, 5]]
    assert trees["mask_of"] == file.model.trees.splits.mask_of.tolist()
