"""Queries in SQLite: hostile names and labels, values that are hard to read, what is refused."""

import contextlib
import sqlite3
from dataclasses import replace

import numpy as np
import odd_dates
import pandas as pd
import pytest
from helpers import ROUNDED, raw_scores

from dpgb_dask.contracts.model import BinShares, FeatureBins, Model
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import StructureError
from dpgb_dask.losses.links import LINKS
from dpgb_dask.released.runtimes.content import Content, fold, listed
from dpgb_dask.released.runtimes.sql import to_sql

HOSTILE = ['a"b', "semi;colon -- x", "drop\ntable'", "prediction", "ünï", "?1", "select"]
LABELS = ["it's", 'say "no"', "); DROP TABLE rows; --", "", "NA\n", "ünï", "%s"]


@pytest.fixture
def content(report):
    """Return a function from a model and schema to what is written."""
    return lambda model, schema: Content(model, schema, report, BinShares.of(model.bins, ()))


@pytest.mark.parametrize("number", [7, 1.5, True, 2**53, 10**20, -(2**63)])
def test_the_text_of_a_declared_number_is_listed(number):
    feature = Schema({"a": ["x", number]}, classes=[0, 1]).features["a"]
    assert listed("a", feature, "ONNX").texts[str(number)] == 1


def test_none_among_the_categories_of_an_older_file_stays_a_missing_value():
    feature = {"a": {"type": "categorical", "categories": ["x", None]}}
    target = {"name": "y", "type": "binary", "classes": [0, 1]}
    schema = Schema.of_file({"version": 1, "features": feature, "target": target})
    found = listed("a", schema.features["a"], "ONNX")
    assert found.texts == {"x": 0}
    assert "None" in found.missing


def answer(content, path, rows, columns=None, **options):
    """Write a query, run it in SQLite over rows with a key, and return its result."""
    to_sql(content, path, keep=["key"], has_exp=True, **options)
    given = rows.assign(key=range(len(rows)))
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        given.to_sql(options.get("table", "rows"), connection, index=False, dtype=columns)
        out = pd.read_sql(path.read_text(encoding="utf-8"), connection).sort_values("key")
        left = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    assert left == (1,)
    return out


def test_query_scores_as_the_model(content, model, binary_schema, rows, tmp_path):
    out = answer(content(model, binary_schema), tmp_path / "q.sql", rows)
    scores = raw_scores(model, binary_schema, rows)
    assert (out["score"] * 65536).tolist() == scores[:, 0].tolist()
    want = LINKS[model.link](scores / 65536)
    np.testing.assert_allclose(out[["proba_0", "proba_1"]].to_numpy(), want, atol=1e-12)
    assert out["prediction"].tolist() == (scores[:, 0] > 0).astype(int).tolist()


def test_several_classes_have_one_column_each(
    content, three_score_model, multiclass_schema, rows, tmp_path
):
    for link in ("clipped_softmax", "softmax", "probability"):
        made = replace(three_score_model, link=link)
        out = answer(content(made, multiclass_schema), tmp_path / "q.sql", rows[:200])
        scores = raw_scores(made, multiclass_schema, rows[:200])
        classes = multiclass_schema.target.classes
        np.testing.assert_array_equal(out[[f"score_{c}" for c in classes]] * 65536, scores)
        want = LINKS[link](scores / 65536)
        np.testing.assert_allclose(out[[f"proba_{c}" for c in classes]], want, atol=1e-12)
        assert out["prediction"].tolist() == [classes[k] for k in scores.argmax(axis=1)]


def test_hostile_names_and_labels_are_only_text(content, tmp_path):
    schema = Schema({name: LABELS for name in HOSTILE}, classes=["x'); --", 'y"'], target="t")
    n = len(LABELS) + 2
    bins = tuple(FeatureBins(None, np.arange(n, dtype=np.uint8), n) for _ in HOSTILE)
    rng = np.random.default_rng(0)
    tables = tuple(rng.integers(-9999, 9999, (n, 1)).astype(np.int32) for _ in HOSTILE)
    model = Model(bins, np.zeros(1, np.int32), tables, link="logit")
    values = np.array([*LABELS, "else", None, "NA", "Ünï"], object)
    table = pd.DataFrame({name: rng.choice(values, 300) for name in HOSTILE})
    name = 'ro"ws; --'
    out = answer(content(model, schema), tmp_path / "q.sql", table, table=name)
    scores = raw_scores(model, schema, table)[:, 0]
    assert (out["score"] * 65536).tolist() == scores.tolist()
    assert set(out["prediction"]) == set(schema.target.classes)


@pytest.mark.parametrize(
    ("classes", "written"),
    [
        ([-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        ([0, 2**70], ["0", str(2**70)]),
        ([True, 2], ["True", "2"]),
        (["a", 2.5], ["a", "2.5"]),
        (np.array([0.1, 0.2], np.float32), [float(np.float32(0.1)), float(np.float32(0.2))]),
        ([np.int8(1), 2], [1, 2]),
        (np.array([False, True]), [False, True]),
    ],
    ids=str,
)
def test_labels_are_of_one_type_that_a_column_can_hold(
    content, model, binary_schema, rows, classes, written, tmp_path
):
    made = content(model, Schema(binary_schema.features, classes=classes))
    assert [(type(label), label) for label in made.labels] == [(type(one), one) for one in written]
    to_sql(made, tmp_path / "q.sql")
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        rows.to_sql("rows", connection, index=False)
        read = connection.execute((tmp_path / "q.sql").read_text(encoding="utf-8")).fetchall()
    assert {row[0] for row in read} == set(written)


def test_texts_that_spell_numbers_are_read_as_numbers(content, tmp_path):
    schema = Schema({"x": (0, 10), "c": [7, "blue", True, "None", 0.3, "inf"]}, classes=[0, 1])
    bins = (
        FeatureBins(np.array([0.1, 6.5, 7.0, 2.0**53]), None, 6),
        FeatureBins(None, np.arange(8, dtype=np.uint8), 8),
    )
    tables = tuple(np.arange(n, dtype=np.int32)[:, None] * scale for n, scale in ((6, 1), (8, 100)))
    model = Model(bins, np.zeros(1, np.int32), tables, link="logit")
    values = [
        "7", "007", " 7.0 ", "7e0", "seven", "7 seven", "", "NA", "None", "nan", "true", "inf", "-inf", None, 7, 7.0,
        0.1, np.nextafter(0.1, 1), 2**53 + 1, 2**62, 1, 0, -1e300, 1e300, "blue", "Blue", "BLUE ", 0.3, 0.1 + 0.2,
        "9007199254740991", "9007199254740993", "-9007199254740993", " 9007199254740993 ", "9007199254740993.5",
        "9223372036854775807", "9223372036854775808", "9" * 30, "12abc", "9007199254740993abc", b"7", b"0.3", b"seven",
        b"true", b"-inf", b"",
    ]  # fmt: skip
    if not ROUNDED:
        values.remove("9007199254740993.5")  # beside an edge of bins
    table = pd.DataFrame(
        {"x": pd.Series(values, dtype=object), "c": pd.Series(values, dtype=object)}
    )
    # a column that converts nothing and compares texts without case: neither may show
    kinds = {"x": "BLOB", "c": "BLOB COLLATE NOCASE"}
    out = answer(content(model, schema), tmp_path / "q.sql", table, kinds)
    scores = raw_scores(model, schema, table)[:, 0]
    assert (out["score"] * 65536).tolist() == scores.tolist()


def test_dates_are_read_to_the_second(content, tmp_path):
    """By whole numbers alone, from any text and any bytes of text; what is no text is missing."""
    texts = [
        *odd_dates.many_texts(1000),
        *(text.encode() for text in odd_dates.TEXTS),
        20200101,
        1.5e9,
    ]
    table = pd.DataFrame(dict.fromkeys(odd_dates.DATED.names, pd.Series(texts, dtype=object)))
    model = odd_dates.dated_model()
    out = answer(content(model, odd_dates.DATED), tmp_path / "q.sql", table, "BLOB")
    assert (out["score"] * 65536).tolist() == raw_scores(model, odd_dates.DATED, table)[
        :, 0
    ].tolist()


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_dates_are_read_in_every_encoding_of_a_database(content, tmp_path, encoding):
    """Bytes of such a text hold NULs that are none of its letters."""
    model, schema, path = odd_dates.dated_model(), odd_dates.DATED, tmp_path / "q.sql"
    table = pd.DataFrame(dict.fromkeys(schema.names, pd.Series(odd_dates.TEXTS, dtype=object)))
    to_sql(content(model, schema), path, keep=["key"])
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA encoding = '{encoding}'")
        table.assign(key=range(len(table))).to_sql("rows", connection, index=False)
        out = pd.read_sql(path.read_text(encoding="utf-8"), connection).sort_values("key")
    assert (out["score"] * 65536).tolist() == raw_scores(model, schema, table)[:, 0].tolist()


def test_keep_takes_one_name_as_it_is(content, model, binary_schema, tmp_path):
    texts = []
    for keep in ("key", ["key"]):
        to_sql(content(model, binary_schema), tmp_path / "q.sql", keep=keep)
        texts.append((tmp_path / "q.sql").read_text(encoding="utf-8"))
    assert texts[0] == texts[1]


def test_column_that_is_not_there_is_an_error(content, model, binary_schema, rows, tmp_path):
    with pytest.raises(pd.errors.DatabaseError, match="no such column"):  # and not the text 'age'
        answer(content(model, binary_schema), tmp_path / "q.sql", rows.drop(columns="age"))


def test_without_exp_labels_and_scores_remain(content, model, binary_schema, tmp_path):
    to_sql(content(model, binary_schema), tmp_path / "q.sql")
    text = tmp_path.joinpath("q.sql").read_text()
    assert "exp(" not in text
    assert "proba_" not in text
    assert text.startswith("-- Privacy report")
    to_sql(content(model, binary_schema), tmp_path / "q.sql", has_exp=True)
    assert "exp(" in tmp_path.joinpath("q.sql").read_text()


def test_what_sql_cannot_express_is_named(content, model, binary_schema, tmp_path):
    data = binary_schema.to_dict()
    place = tmp_path / "q.sql"
    for old, new, said in (("z", "X", "differ in case"), ("z", "z\x00", "NUL")):
        features = {new if k == old else k: v for k, v in data["features"].items()}
        schema = Schema.from_dict(data | {"features": features})
        with pytest.raises(StructureError, match=said):
            to_sql(content(model, schema), place)
    nameless = {k.replace("z", ""): v for k, v in data["features"].items()}
    schema = Schema.from_dict(data | {"features": nameless})
    with pytest.raises(StructureError, match="column without a name"):
        to_sql(content(model, schema), place, dialect="duckdb")
    features = dict(data["features"]) | {"color": {"type": "hashed", "buckets": 3}}
    with pytest.raises(StructureError, match="'color' is of kind Hashed"):
        to_sql(content(model, Schema.from_dict(data | {"features": features})), place)
    for options, said in (
        ({"dialect": "oracle"}, "dialect='oracle'"),
        ({"dialect": ["sqlite"]}, "is unknown"),
        ({"keep": None}, "keep=None must be a name"),
        ({"keep": ["id", 5]}, "must be a name"),
        ({"table": 5}, "table=5 must be a name"),
        ({"table": ("main", None)}, "must be a name"),
        ({"table": "dpgb_codes"}, "part of the query"),
        ({"table": "DPGB_dates3"}, "part of the query"),
        ({"table": []}, "names no table"),
        ({"table": ""}, "names no table"),
        ({"table": ("main", "")}, "names no table"),
        ({"keep": ["Score"]}, "name of a prediction"),
    ):
        with pytest.raises(StructureError, match=said):
            to_sql(content(model, binary_schema), place, **options)
    large = replace(model, intercept=np.array([2**31 - 1], np.int32))
    with pytest.raises(StructureError, match="wrap"):
        to_sql(content(large, binary_schema), place)
    assert not place.exists()


def test_trees_of_one_feature_become_part_of_its_table(model, binary_schema, rows):
    splits = model.trees.splits
    feature = splits.feature.copy()
    feature[1] = 3  # masks and a threshold of one feature
    threshold = splits.threshold.copy()
    threshold[2] = 255  # no split at all
    made = replace(
        model,
        trees=replace(model.trees, splits=replace(splits, feature=feature, threshold=threshold)),
    )
    folded = fold(made)
    assert folded.trees.n_trees == 1
    np.testing.assert_array_equal(
        raw_scores(folded, binary_schema, rows), raw_scores(made, binary_schema, rows)
    )
