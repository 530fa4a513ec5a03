"""Arrow tables are read by their names, with their types; sparse and other kinds are one clear error everywhere."""

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
from scipy import sparse

from dpgb_dask import DPGBClassifier, Schema, StructureError, UnsupportedCollectionError
from dpgb_dask.encoding.kinds import from_arrow
from dpgb_dask.testing import SeededNoise

SCHEMA = Schema({"a": (0, 1), "b": (0, 9), "c": ["x", "y"]}, classes=["no", "yes"])
OPTIONS = {"schema": SCHEMA, "noise": SeededNoise(0), "random_state": 0, "n_estimators": 2}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.random(300), "b": rng.integers(0, 10, 300)})
    frame["c"] = rng.choice(["x", "y"], 300)
    return frame


@pytest.fixture(scope="module")
def answers(table):
    return np.where(table["a"] > 0.5, "yes", "no")


def fitted(X, y, weight=None):
    return DPGBClassifier(recipe="fdp-tr-newton", **OPTIONS).fit(X, y, sample_weight=weight)


@pytest.mark.filterwarnings("ignore::dpgb_dask.MaxWeightWarning")
def test_arrow_tables_are_read_as_pandas_frames_are(table, answers):
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    model, ours = fitted(table, answers), fitted(arrow, pa.array(answers), pa.array(np.ones(300)))
    batch = arrow.to_batches()[0]
    for rows in (arrow, batch, arrow.slice(0, 0)):
        expected = model.predict(table)[: rows.num_rows]
        np.testing.assert_array_equal(model.predict(rows), expected)
    assert ours.predict(arrow).shape == (300,)
    assert SCHEMA.check(arrow, pa.chunked_array([answers])).bad_targets == 0
    turned = arrow.select(
        ["b", "a", "c"]
    )  # another order is refused by name, and not read by position
    for call in (model.predict, SCHEMA.check):
        with pytest.raises(ValueError, match="another order"):
            call(turned)


def test_whole_numbers_beside_a_missing_one_stay_exact():
    schema = Schema({"id": [2**53 + 1, 2**53 + 2]}, classes=[0, 1])
    diagnosis = schema.check(pa.table({"id": [2**53 + 1, 2**53 + 2, None]}))
    assert diagnosis.columns[0].unknown == 0


def test_arrow_columns_of_one_name_keep_their_types():
    """pandas takes the type of each by its name, and a fraction would fail as a whole number."""
    columns = [pa.array([0.5, 1]), pa.array([2**53 + 1, None]), pa.array(["a", "b"])]
    schema = Schema({"id": {"buckets": 9}}, classes=[0, 1], ignore=["more"])
    for names in (["more", "id", "more"], ["more", "more", "id"]):
        own = [columns[k] for k in (0, 2, 1)] if names[2] == "id" else columns
        for data in (pa.table(own, names), pa.record_batch(own, names)):
            read = from_arrow(data)
            assert [*read.columns] == names
            assert [*map(str, read.dtypes)] == [f"{one.type}[pyarrow]" for one in own]
            assert schema.check(data).columns[0].missing == 1


class LazyFrame:
    """What polars has for a table that is not computed yet."""

    __module__ = "polars.lazyframe.frame"

    def collect(self):
        raise NotImplementedError

    lazy = collect


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (sparse.csr_matrix, r"X is a scipy\.csr_matrix.*toarray"),
        (sparse.coo_array, r"X is a scipy\.coo_array.*toarray"),
        (lambda x: da.from_array(x).map_blocks(sparse.csr_matrix), "Dask Array of csr_matrix.*toarray"),
        (lambda x: {"a": x[:, 0]}, r"X is a dict\."),
        (lambda _: "people.parquet", r"X is a str.*read_parquet"),
        (lambda x: pa.table({"a": x[:, 0]}).to_reader(), r"RecordBatchReader.*pyarrow\.table\("),
        (lambda x: pd.array(x[:, 0]), r"Array\. .*pandas\.Series\("),
        (lambda x: pd.Index(x[:, 0]), r"Index\. .*pandas\.Series\("),
        (lambda x: xr.DataTree(xr.Dataset({"a": ("row", x[:, 0])})), r"DataTree\. .*X\.to_dataset\(\)"),
        (lambda _: LazyFrame(), r"X is a polars\.LazyFrame\. .*X\.collect\(\)"),
    ],
    ids=["csr", "coo", "dask", "dict", "str", "stream", "extension", "index", "tree", "lazy"],
)  # fmt: skip
def test_other_kinds_are_one_clear_error(make, words, table, answers):
    model = fitted(table, answers)
    X = make(np.ones((300, 3)))
    for call in (lambda: fitted(X, answers), lambda: model.predict(X), lambda: SCHEMA.check(X)):
        with pytest.raises(UnsupportedCollectionError, match=words):
            call()


def test_a_column_of_another_kind_is_named_with_its_package(table):
    column = type("Series", (), {"__module__": "polars.series", "__arrow_c_stream__": None})()
    with pytest.raises(
        UnsupportedCollectionError,
        match=r"y is a polars\.Series\..* Arrow column: pyarrow\.chunked_array\(.*set_output\(",
    ):
        fitted(table, column)


def test_a_single_column_is_no_table(table, answers):
    model = fitted(table, answers)
    for call in (lambda: fitted(table["a"], answers), lambda: model.predict(table["a"])):
        with pytest.raises(StructureError, match="rows and features"):
            call()
    with pytest.raises(StructureError, match="rows and features"):
        SCHEMA.check(table["a"])
    with pytest.raises(StructureError, match=r"rows and features.*pandas\.DataFrame\("):
        fitted(np.asarray(table.to_records(index=False)), answers)
