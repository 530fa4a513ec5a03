"""Explanations add up to the score, and have the layout that they state."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
from helpers import raw_scores

from dpgb_dask.contracts.model import SCORE_ONE, Model
from dpgb_dask.released.explain import explain_global, explain_local


def test_contributions_add_up_to_the_score(model, binary_schema, rows):
    local = explain_local(model, binary_schema, rows)
    assert local["names"] == ("x", "z", "age", "color", "x & color", "forest")
    total = local["scores"].sum(axis=1) + local["intercept"]
    np.testing.assert_allclose(
        total, raw_scores(model, binary_schema, rows)[:, 0] / SCORE_ONE, atol=1e-9
    )


def test_contributions_are_lazy_on_dask(model, binary_schema, rows):
    local = explain_local(model, binary_schema, dd.from_pandas(rows, npartitions=3), scale=2.0)
    assert isinstance(local["scores"], dd.DataFrame)
    assert tuple(local["scores"].columns) == local["names"]
    want = explain_local(model, binary_schema, rows, scale=2.0)["scores"]
    np.testing.assert_array_equal(local["scores"].compute(), want)


def test_contributions_have_one_table_per_class(three_score_model, binary_schema, rows):
    local = explain_local(three_score_model, binary_schema, rows)
    total = np.stack([part.sum(axis=1) for part in local["scores"]], axis=1) + local["intercept"]
    np.testing.assert_allclose(
        total, raw_scores(three_score_model, binary_schema, rows) / SCORE_ONE, atol=1e-9
    )


def test_global_layout_names_every_bin(model, binary_schema):
    parts = explain_global(model, binary_schema)
    x, _, age, color, pair, forest = parts
    assert (x["type"], x["feature"], x["feature_type"]) == ("univariate", "x", "continuous")
    assert x["names"] == [-3.0, -1.0, 0.0, 0.5, 2.0, 3.0]
    assert len(x["scores"]) == len(x["names"]) - 1
    assert x["missing_score"] == model.tables[0][5, 0] / SCORE_ONE
    assert len(age["scores"]) == 8
    assert color["names"] == ["blue", "green", "red", "other"]
    np.testing.assert_array_equal(color["scores"], model.tables[3][[0, 1, 2, 1], 0] / SCORE_ONE)
    assert (pair["type"], pair["features"]) == ("interaction", ("x", "color"))
    assert pair["left_names"] == ["(-3, 0]", "(0, 2]", "(2, 3], missing"]
    assert pair["right_names"] == ["blue, missing", "green, red, other"]
    assert pair["scores"].shape == (3, 2)
    assert forest == {"type": "forest", "n_trees": 3}
    assert not any("density" in part for part in parts)


def test_global_layout_has_a_column_per_class(three_score_model, binary_schema):
    parts = explain_global(three_score_model, binary_schema)
    assert [part["scores"].shape for part in parts[:-1]] == [
        (5, 3),
        (2, 3),
        (8, 3),
        (4, 3),
        (3, 2, 3),
    ]


def test_additive_model_has_no_forest(model: Model, binary_schema, rows):
    additive = Model(model.bins, model.intercept, model.tables)
    assert [part["type"] for part in explain_global(additive, binary_schema)] == ["univariate"] * 4
    local = explain_local(additive, binary_schema, rows[:5])
    assert local["names"] == binary_schema.names
    assert not isinstance(local["scores"], da.Array)
