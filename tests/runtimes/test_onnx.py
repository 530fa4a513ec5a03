"""ONNX files in onnxruntime: scores are the same whole numbers, predictions agree to 1e-6 and better."""

import builtins
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from runtimes.cases import fit, kinds_fit, natural, never_falls, scores, steps

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.errors import StructureError
from dpgb_dask.released.runtimes.onnx import to_onnx

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def with_parts(rows):
    """Return rows with the parts of the date that is a feature, by the rules of the schema."""
    first, last = np.datetime64("2019-06-01T00:00:00"), np.datetime64("2021-05-31T23:59:59")
    when = rows["when"].clip(first, last).dt
    days = (when.floor("D") - first).dt.days
    parts = {"when.days": days, "when.month": when.month, "when.hour": when.hour}
    return rows.drop(columns="when").assign(**parts)


def run(path, rows):
    """Return the outputs of a session by name."""
    session = runtime.InferenceSession(path)
    given = {}
    for one in session.get_inputs():
        column = rows[one.name]
        if one.type == "tensor(string)":
            values = column.astype(object).where(column.notna(), "").to_numpy(object)
        else:
            values = column.to_numpy(np.float64, na_value=np.nan)
        given[one.name] = values[:, None]
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, given), strict=True))


def check(model, rows, path, prepared=lambda rows: rows):
    model.to_onnx(path)
    rows = rows.copy()
    for name in (n for n, f in model.schema_.features.items() if hasattr(f, "low")):
        rows[name] = rows[name].astype(float)
        rows.iloc[0, rows.columns.get_loc(name)] = np.inf
        rows.iloc[1, rows.columns.get_loc(name)] = -np.inf
        break
    out = run(path, prepared(rows))
    np.testing.assert_array_equal(steps(model, out["output_score"]), scores(model, rows))
    if "output_prediction" in out:
        np.testing.assert_allclose(out["output_prediction"], natural(model, rows), rtol=1e-12)
    else:
        np.testing.assert_allclose(out["output_probability"], natural(model, rows), atol=1e-12)
        assert out["output_label"].tolist() == np.asarray(model.predict(rows)).tolist()
    file = onnx.load(path)
    told = {one.key: one.value for one in file.metadata_props}
    read = {name for node in file.graph.node for name in node.input}
    assert read >= {one.name for one in file.graph.initializer}  # of others every session warns
    assert "Privacy report" in told["dpgb_dask.statement"]
    return out["output_score"]


def test_scores_of_real_sets_are_the_same(real, tmp_path):
    check(*real, tmp_path / "model.onnx")


def test_scores_of_every_recipe_are_the_same(small, tmp_path):
    check(*small, tmp_path / "model.onnx")


def test_scores_of_changed_models_are_the_same(changed, tmp_path):
    assert never_falls(check(*changed, tmp_path / "model.onnx").reshape(-1, 1))


def test_scores_of_features_of_every_kind_but_hashed_are_the_same(tmp_path):
    check(*kinds_fit("shop"), tmp_path / "model.onnx", with_parts)
    with pytest.raises(StructureError, match="'shop' is of kind Hashed"):
        kinds_fit()[0].to_onnx(tmp_path / "hashed.onnx")


def test_a_group_of_a_text_and_a_number_is_read_by_both(tmp_path):
    groups = {"10115": "east", "SW1A": "east", "20095": "north", "M5V": "north"}
    rows = pd.DataFrame({"zip": np.random.default_rng(0).choice([*groups, "none", None], 2000)})
    schema = Schema({"zip": {"from": groups}}, classes=[0, 1])
    y = rows["zip"].isin(["20095", "M5V"]).astype(int)
    model = fit(schema, rows, y, epsilon=50.0, recipe="fdp-tr-newton", n_estimators=3)
    check(model, rows, tmp_path / "model.onnx")
    assert len(np.unique(model.predict_proba(rows)[:, 1])) > 2


@pytest.mark.parametrize(
    ("classes", "told"),
    [
        ([3, -7], [3, -7]),
        (np.array([False, True]), [0, 1]),
        ([0, 2**70], ["0", str(2**70)]),
        ([True, 2], ["True", "2"]),
        ([0.0, 1.0], [0, 1]),
        ([0.0, 1e300], ["0.0", "1e+300"]),
        (np.array([0.1, 0.2], np.float32), ["0.10000000149011612", "0.20000000298023224"]),
    ],
    ids=str,
)
def test_labels_are_those_of_the_saved_model(
    binary_schema, features, labels, classes, told, tmp_path
):
    schema = Schema(binary_schema.features, classes=classes)
    y = np.array(classes, dtype=object)[labels.astype(int)]
    model = fit(schema, features, y, recipe="fdp-tr-newton", n_estimators=3)
    model.save(tmp_path / "model.json")
    for one in (model, DPGBClassifier.load(tmp_path / "model.json")):
        one.to_onnx(tmp_path / "model.onnx")
        assert set(run(tmp_path / "model.onnx", features)["output_label"].tolist()) == set(told)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "without a name"),
        ("dpgb_dask:3", "a part of a file"),
        ("output_label", "an output of a file"),
    ],
)
def test_names_that_no_input_can_have_are_refused(classifier, name, said, tmp_path):
    names = {"x": name}
    features = {names.get(k, k): one for k, one in classifier.schema_.features.items()}
    content = replace(classifier._content(), schema=Schema(features, classes=[0, 1]))
    with pytest.raises(StructureError, match=said):
        to_onnx(content, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_missing_package_is_one_clear_error(classifier, tmp_path, monkeypatch):
    found = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "onnx":
            raise ImportError
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StructureError, match=r"dpgb_dask\[export\]"):
        classifier.to_onnx(tmp_path / "model.onnx")
