"""Queries in DuckDB and SQLite on real sets, and of every recipe."""

import sqlite3

import numpy as np
import odd_dates
import pandas as pd
import pytest
from helpers import raw_scores
from runtimes.cases import kinds_fit, natural, never_falls, scores, steps

from dpgb_dask.contracts.features import Numeric
from dpgb_dask.contracts.model import SCORE_ONE, BinShares, FeatureBins, Model
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.kinds import from_arrow
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


@pytest.mark.parametrize("kind", ["VARCHAR", "BLOB", "ENUM"])
def test_duckdb_reads_numbers_in_texts_of_every_type(classifier, kind, tmp_path):
    """A categorical column of pandas is an ENUM there, whose values are read as any text is."""
    schema = Schema({"x": (-5, 2000), "c": [7, 0, 1000]}, classes=[0, 1])
    edges = np.array([-1.0, 0.0, 0.5, 1.0, 7.0, 999.0])
    bins = (
        FeatureBins(edges, None, 8),
        FeatureBins(None, np.arange(5, dtype=np.uint8), 5),
    )
    tables = (
        np.arange(8, dtype=np.int32)[:, None] * 10,
        np.arange(5, dtype=np.int32)[:, None] * 100,
    )
    model = Model(bins, np.zeros(1, np.int32), tables, link="logit")
    content = Content(model, schema, classifier.privacy_report_, BinShares.of(bins, ()))
    to_sql(content, tmp_path / "q.sql", dialect="duckdb", keep=["key"])
    texts = [
        "7", "007", " 7.0 ", "true", "FALSE", "tRuE", "1_000", "1e3", "seven", "", "NA", "inf", "-inf", "+7", None,
    ]  # fmt: skip
    connection = duckdb.connect()
    connection.register("given", pd.DataFrame({"x": texts, "key": range(len(texts))}))
    type_ = kind
    if kind == "ENUM":
        connection.execute("CREATE TYPE own AS ENUM (SELECT x FROM given WHERE x IS NOT NULL)")
        type_ = "own"
    connection.execute(
        f"CREATE TABLE rows AS SELECT CAST(x AS {type_}) AS x, CAST(x AS {type_}) AS c, key FROM given"
    )
    query = (tmp_path / "q.sql").read_text(encoding="utf-8")
    out = connection.execute(query).df().sort_values("key")
    connection.close()
    want = raw_scores(model, schema, pd.DataFrame({"x": texts, "c": texts}, dtype=object))[:, 0]
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


ODD_DAYS = [
    "2019-06-01",
    "0001-01-01",
    "9999-12-31",
    "1969-12-31",
    "2020-02-29",
    "2300-07-01",
    "1600-02-29",
    None,
]
INFINITE = ["infinity", "-infinity"]
FAR_DAYS = [*ODD_DAYS, *INFINITE, "29999-01-01", "-0044-03-15", "0000-12-31"]
# with one NUL at the end, within, and spelt out, as DuckDB writes bytes
BYTES = ["2020-01-31", r"2020-01-31\x00", r"2020-01-31\x00x", r"2020-01-31\x5Cx00", None]


@pytest.mark.parametrize(
    ("kind", "days"),
    [
        ("VARCHAR", odd_dates.many_texts()), ("BLOB", BYTES), ("ENUM", ["2020-01-31", "0044-03-15 (BC)", None]),
        ("DATE", FAR_DAYS), ("TIMESTAMP", FAR_DAYS), ("TIMESTAMP_S", FAR_DAYS), ("TIMESTAMP_MS", FAR_DAYS),
        ("TIMESTAMP_NS", [*ODD_DAYS[:1], *ODD_DAYS[3:5], *INFINITE]), ("TIMESTAMPTZ", [*FAR_DAYS, "1901-01-01"]),
        ("INTEGER", [20200101, None]),
    ],
)  # fmt: skip
def test_duckdb_reads_dates_to_the_second(classifier, tmp_path, kind, days):
    """Texts, and its own dates, as the library reads them in Arrow: infinite, before our era and in any zone too."""
    model, schema = odd_dates.dated_model(), odd_dates.DATED
    content = Content(model, schema, classifier.privacy_report_, BinShares.of(model.bins, ()))
    to_sql(content, tmp_path / "q.sql", dialect="duckdb", keep=["key"])
    clock = {"DATE": "", "TIMESTAMPTZ": "T00:00:00+01:00"}.get(kind, "T23:59:59")
    own = days
    if kind.startswith(("DATE", "TIMESTAMP")):
        own = [day if day in (None, *INFINITE) else _before_our_era(day + clock) for day in days]
    connection = duckdb.connect()
    # whose offset was 44 minutes and 30 seconds until 1972; most zones had seconds before 1900
    connection.execute("SET TimeZone = 'Africa/Monrovia'")
    connection.execute("CREATE TABLE texts (day VARCHAR, key INTEGER)")
    connection.register("given", pd.DataFrame({"day": own, "key": range(len(own))}))
    connection.execute("INSERT INTO texts SELECT * FROM given")
    if kind == "ENUM":
        kind = "own"
        connection.execute("CREATE TYPE own AS ENUM (SELECT day FROM texts WHERE day IS NOT NULL)")
    columns = ", ".join(f"CAST(day AS {kind}) AS {name}" for name in schema.names)
    connection.execute(f"CREATE TABLE rows AS SELECT {columns}, key FROM texts")
    query = (tmp_path / "q.sql").read_text(encoding="utf-8")
    out = connection.execute(query).df().sort_values("key")
    read = from_arrow(connection.sql("SELECT * FROM rows ORDER BY key").to_arrow_table())
    connection.close()
    want = raw_scores(model, schema, read[list(schema.names)])[:, 0]
    assert (out["score"] * SCORE_ONE).tolist() == want.tolist()


def _before_our_era(text):
    if text[0] not in "-0" or text[:5] == "0001-":
        return text
    year, sign = int(text[:5]) if text[0] == "-" else int(text[:4]), len(text.split("T")[0])
    date, rest = text[:sign].lstrip("-"), text[sign:]
    return f"{1 - year:04}{date[4:]} (BC){rest.replace('T', ' ')}"


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
def test_scores_of_booleans_groups_and_dates_are_the_same(tmp_path, dialect):
    check(*kinds_fit("shop"), tmp_path / "model.sql", dialect)
    with pytest.raises(StructureError, match="'shop' is of kind Hashed"):
        kinds_fit("when")[0].to_sql(tmp_path / "hashed.sql", dialect=dialect)
