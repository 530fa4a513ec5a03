"""Models as trees of thresholds: how many nodes they may have."""

import json

import pytest

from dpgb_dask.contracts.model import BinShares
from dpgb_dask.errors import StructureError
from dpgb_dask.released.runtimes import threshold_trees
from dpgb_dask.released.runtimes.content import Content
from dpgb_dask.released.runtimes.xgboost import to_xgboost


def test_more_nodes_than_the_limit_are_refused(model, binary_schema, report, tmp_path, monkeypatch):
    content = Content(model, binary_schema, report, BinShares.of(model.bins, ()))
    path = tmp_path / "model.json"
    to_xgboost(content, path)
    booster = json.loads(path.read_text(encoding="utf-8"))["learner"]["gradient_booster"]["model"]
    n_nodes = sum(len(tree["left_children"]) for tree in booster["trees"])
    path.unlink()
    monkeypatch.setattr(threshold_trees, "MOST_NODES", n_nodes - 1)
    said = rf"more than {n_nodes - 1} thresholds.* XGBoost\. Export to 'python' or 'sql'"
    with pytest.raises(StructureError, match=said):
        to_xgboost(content, path)
    assert not path.exists()
    monkeypatch.setattr(threshold_trees, "MOST_NODES", n_nodes)
    to_xgboost(content, path)
