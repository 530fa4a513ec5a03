"""Queries in DuckDB and SQLite on real sets, and of every recipe."""

import sqlite3

import numpy as np
import pandas as pd
import pytest
from helpers import raw_scores
from runtimes.cases import kinds_fit, natural, never_falls, scores, steps

from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.model import SCORE_ONE, BinShares, FeatureBins, Model
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import StructureError
from dpgb_dask.released.runtimes.content import Content
from dpgb_dask.released.runtimes.sql import to_sql

duckdb = pytest.importorskip("duckdb")


def rows_of(model, path, rows, dialect):
    """Run a query over rows with a key, and return its result in their order."""
    model.to_sql(path, dialect=dialect, keep=["a key"], has_exp=True)
    features = model.schema_.features.items()
    floats = {name: float for name, feature in features if isinstance(feature, Numeric)}
    table = rows.assign(**{"a key": range(len(rows))}).astype(floats)
    query = path.read_text(encoding="utf-8")
    if dialect == "sqlite":
        connection = sqlite3.connect(":memory:")
        table.to_sql("rows", connection, index=False)
        out = pd.read_sql(query, connection)
        connection.close()
    else:
        connection = duckdb.connect()
        connection.register("given", table)
        connection.execute("CREATE TABLE rows AS SELECT * FROM given")
        out = connection.execute(query).df()
        connection.close()
    return out.sort_values("a key")


def check(model, rows, path, dialect):
    out = rows_of(model, path, rows, dialect)
    found = out[[name for name in out.columns if name.startswith("score")]].to_numpy()
    np.testing.assert_array_equal(steps(model, found), scores(model, rows))
    want = natural(model, rows)
    if model.schema_.target.type == "numeric":
        np.testing.assert_allclose(out[["prediction"]].to_numpy(), want, rtol=1e-9)
    else:
        proba = out[[f"proba_{label}" for label in model.classes_]].to_numpy()
        np.testing.assert_allclose(proba, want, atol=1e-9)
        assert out["prediction"].tolist() == np.asarray(model.predict(rows)).tolist()
    return found


def test_duckdb_tells_numbers_of_single_precision_apart(classifier, tmp_path):
    schema = Schema({"c": [0.1, 0.5, 7]}, classes=[0, 1])
    bins = (FeatureBins(None, np.arange(5, dtype=np.uint8), 5),)
    model = Model(
        bins, np.zeros(1, np.int32), (np.arange(5, dtype=np.int32)[:, None],), link="logit"
    )
    report = classifier.privacy_report_
    content = Content(model, schema, report, BinShares.of(model.bins, ()))
    to_sql(content, tmp_path / "q.sql", dialect="duckdb", keep=["key"])
    query = (tmp_path / "q.sql").read_text(encoding="utf-8")
    for kind in (np.float32, np.float64):
        table = pd.DataFrame({"c": np.array([0.1, 0.5, 7, np.nan, np.inf, 0.3], kind)})
        connection = duckdb.connect()
        connection.register("given", table.assign(key=range(len(table))))
        connection.execute("CREATE TABLE rows AS SELECT * FROM given")
        out = connection.execute(query).df().sort_values("key")
        connection.close()
        want = raw_scores(model, schema, table)[:, 0]
        assert (out["score"] * SCORE_ONE).tolist() == want.tolist()


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
def test_scores_of_real_sets_are_the_same(real, tmp_path, dialect):
    check(*real, tmp_path / "model.sql", dialect)


def test_scores_of_every_recipe_are_the_same(small, tmp_path):
    model, rows = small
    check(model, rows, tmp_path / "model.sql", "sqlite")
    if model.privacy_report_.recipe != "auto":  # whose forest DuckDB plans for seconds, above
        check(model, rows, tmp_path / "model.sql", "duckdb")


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
def test_scores_of_changed_models_are_the_same(changed, tmp_path, dialect):
    assert never_falls(check(*changed, tmp_path / "model.sql", dialect))


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
def test_scores_of_booleans_and_groups_are_the_same(tmp_path, dialect):
    check(*kinds_fit("when", "shop"), tmp_path / "model.sql", dialect)
    with pytest.raises(StructureError, match="'shop' is of kind Hashed"):
        kinds_fit("when")[0].to_sql(tmp_path / "hashed.sql", dialect=dialect)
