"""Models as trees of thresholds: how many nodes they may have, and in which order codes need few."""

import json

import numpy as np
import pytest

from dpgb_dask.contracts.model import BinShares, Splits
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


def splits_of(right, feature=1):
    """Trees of one split each, which send these codes right; among nodes of another feature, and without a split."""
    n = len(right)
    masks = np.zeros((n, 256), np.uint8)
    masks[:, : right.shape[1]] = right
    return Splits(
        np.array([[feature]] * n + [[0], [0]], np.uint16), np.full((n + 2, 1), 255, np.uint8),
        np.array([[k] for k in range(n)] + [[-1], [-1]], np.int32), masks,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_codes_stand_in_the_order_in_which_splits_divide_them(seed):
    """Whichever side is the right one, and however many of the places between them are split at."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(12)
    places = rng.choice(11, 7, replace=False)
    right = np.argsort(order) > places[:, None]
    right[rng.random(7) < 0.5] ^= True
    found = threshold_trees.ordered_codes(splits_of(right), 1, 12)
    assert sorted(found) == list(range(12))
    np.testing.assert_array_equal(np.count_nonzero(np.diff(right[:, found], axis=1), axis=1), 1)


def test_splits_that_no_order_serves_have_no_more_runs_than_in_the_codes_own():
    rng = np.random.default_rng(0)
    right = rng.random((9, 8)) < 0.5
    found = threshold_trees.ordered_codes(splits_of(right), 1, 8)
    assert sorted(found) == list(range(8))
    assert np.diff(right[:, found], axis=1).sum() <= np.diff(right, axis=1).sum()
    np.testing.assert_array_equal(threshold_trees.ordered_codes(splits_of(right), 0, 8), range(8))
