"""A collection that pandas parses from text always warns, because of how it was made; no other collection does."""

import functools
import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.delayed import delayed
from thinned import thinned

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.errors import ParserWarning
from dpgb_dask.io import open_dataset, read_csv, write_dataset
from dpgb_dask.testing import SeededNoise

SCHEMA = Schema({"a": (0, 1), "b": (0, 9)}, classes=[0, 1], target="y")


@pytest.fixture(autouse=True)
def one_thread():
    """Read in one thread, Dask's and a fit's: pandas hides warnings of its own in a way that other threads undo."""
    with dask.config.set({"scheduler": "sync", "dpgb-dask.n-threads": 1}):
        yield


@pytest.fixture
def files(tmp_path):
    table = pd.DataFrame({"a": np.arange(60) / 60, "b": np.arange(60) % 10, "y": np.arange(60) % 2})
    for k in range(2):
        part = table[30 * k : 30 * k + 30]
        part.to_csv(tmp_path / f"p{k}.csv", index=False)
        part.to_csv(tmp_path / f"p{k}.tsv", index=False, sep="\t")
        part.to_json(tmp_path / f"p{k}.json", orient="records", lines=True)
        part.to_parquet(tmp_path / f"p{k}.parquet")
    return tmp_path


def fit(X, y):
    model = DPGBClassifier(
        schema=SCHEMA, noise=SeededNoise(0), random_state=0, recipe="fdp-tr-newton", n_estimators=1
    )
    return model.fit(X, y)


def columns(table):
    return table[["a", "b"]], table["y"]


def paths(folder):
    return [str(folder / f"p{k}.csv") for k in range(2)]


PARSED = {
    "read_csv": lambda d: dd.read_csv(d / "p*.csv"),
    "read_table": lambda d: dd.read_table(d / "p*.tsv"),
    "read_json": lambda d: dd.read_json(d / "p*.json"),
    "changed since": lambda d: (
        dd.read_csv(d / "p*.csv").fillna(0).query("a >= 0").repartition(npartitions=1)
    ),
    "joined": lambda d: dd.concat([dd.read_parquet(d / "p0.parquet"), dd.read_csv(d / "p1.csv")]),
    "from_map": lambda d: dd.from_map(pd.read_csv, paths(d)),
    "from_map, partly": lambda d: dd.from_map(functools.partial(pd.read_csv, sep=","), paths(d)),
    "from_delayed": lambda d: dd.from_delayed([delayed(pd.read_csv)(p) for p in paths(d)]),
}


@pytest.mark.parametrize("name", thinned(PARSED, every=4))
@pytest.mark.parametrize("kind", ["frame", "arrays", "target alone"])
def test_what_pandas_parses_warns_every_time(name, kind, files):
    X, y = columns(PARSED[name](files))
    if kind == "arrays":
        y = y.to_dask_array()
    elif kind == "target alone":
        X = dd.from_map(pd.read_parquet, [str(files / f"p{k}.parquet") for k in range(2)])[
            ["a", "b"]
        ]
        if X.npartitions != y.npartitions:
            X = X.repartition(npartitions=y.npartitions)
    for _ in range(2):
        with pytest.warns(ParserWarning, match=r"dpgb_dask\.io\.read_csv") as seen:
            fit(X, y)
        assert [one.filename for one in seen if one.category is ParserWarning] == [__file__]


def test_writing_warns_too(files):
    with pytest.warns(ParserWarning):
        write_dataset(files / "d.zarr", dd.read_csv(files / "p*.csv"), schema=SCHEMA)
    data = open_dataset(files / "d.zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_dataset(files / "e.zarr", data.X, data.y, schema=SCHEMA)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Dask's, where it reads Parquet
def test_nothing_else_warns(files):
    table = pd.read_csv(files / "p0.csv")
    sources = [
        table,
        dd.from_pandas(table, npartitions=2),
        dd.read_parquet(files / "p*.parquet"),
        dd.from_map(pd.read_parquet, [files / "p0.parquet"]),
        read_csv(files / "p*.csv"),
        dd.from_delayed([delayed(pd.read_parquet)(files / "p0.parquet")]),
    ]
    for source in sources:
        fit(*columns(source))
    y = da.from_array(table["y"].to_numpy(), chunks=10)
    fit(dd.from_pandas(table[["a", "b"]], npartitions=3), y)


def test_the_reader_of_this_library_gives_the_same_model(files):
    want = fit(*columns(pd.concat([pd.read_csv(p) for p in paths(files)], ignore_index=True)))
    got = fit(*columns(read_csv(files / "p*.csv")))
    got_tabs = fit(*columns(read_csv(files / "p*.tsv", delimiter="\t")))
    X = pd.read_csv(files / "p0.csv")[["a", "b"]]
    for model in (got, got_tabs):
        np.testing.assert_array_equal(model.predict_proba(X), want.predict_proba(X))
    np.testing.assert_array_equal(
        want.predict(read_csv(files / "p0.csv")[["a", "b"]]), want.predict(X)
    )
