"""ONNX files in onnxruntime: scores are the same whole numbers, predictions agree to 1e-6 and better."""

import builtins

import numpy as np
import pytest
from runtimes.cases import natural, scores, steps

from dpgb_dask.errors import StructureError

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


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


def check(model, rows, path):
    model.to_onnx(path)
    rows = rows.copy()
    name = next(n for n, f in model.schema_.features.items() if hasattr(f, "low"))
    rows[name] = rows[name].astype(float)
    rows.iloc[-1, rows.columns.get_loc(name)] = np.inf
    rows.iloc[-2, rows.columns.get_loc(name)] = -np.inf
    out = run(path, rows)
    np.testing.assert_array_equal(steps(model, out["output_score"]), scores(model, rows))
    if "output_prediction" in out:
        np.testing.assert_allclose(out["output_prediction"], natural(model, rows), rtol=1e-12)
    else:
        np.testing.assert_allclose(out["output_probability"], natural(model, rows), atol=1e-12)
        assert out["output_label"].tolist() == np.asarray(model.predict(rows)).tolist()
    told = {one.key: one.value for one in onnx.load(path).metadata_props}
    assert "Privacy report" in told["dpgb_dask.statement"]


def test_scores_of_real_sets_are_the_same(real, tmp_path):
    check(*real, tmp_path / "model.onnx")


def test_scores_of_every_recipe_are_the_same(small, tmp_path):
    check(*small, tmp_path / "model.onnx")


def test_missing_package_is_one_clear_error(classifier, tmp_path, monkeypatch):
    found = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "onnx":
            raise ImportError
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StructureError, match=r"dpgb_dask\[export\]"):
        classifier.to_onnx(tmp_path / "model.onnx")
