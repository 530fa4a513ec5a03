"""One model from every lazy source: unknown lengths, empty partitions, stores of every layout, files of every size."""

from collections import Counter
from functools import cache
from itertools import pairwise

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from forms import SCHEMA, some_rows
from thinned import thinned

from dpgb_dask import DPGBClassifier, DPGBRegressor, Schema
from dpgb_dask.private.rounds.local import LocalRounds
from dpgb_dask.recipes import RECIPES as EVERY_RECIPE
from dpgb_dask.testing import SeededNoise

# Dask's own, where it reads Parquet
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")

NAMES = list(SCHEMA.names)


def frame_of(x, y):
    return pd.DataFrame(x, columns=NAMES).assign(target=y)


def partitioned(x, y, *bounds):
    """A Dask DataFrame cut at ``bounds``, of unknown divisions; equal bounds make an empty partition."""
    table = frame_of(x, y)
    edges = [0, *bounds, len(table)]
    parts = [table.iloc[start:stop] for start, stop in pairwise(edges)]
    return dd.from_map(lambda k: parts[k], range(len(parts)), meta=table[:0])


def split(table):
    return table[NAMES], table["target"]


def first_partition_empty(x, y, _tmp):
    return split(partitioned(x, y, 0, 0, 900, 900, 3000))


def filtered_frame(x, y, _tmp):
    """Half of the rows and one partition whole are filtered out."""
    twice = frame_of(np.repeat(x, 2, axis=0), np.repeat(y, 2)).assign(
        keep=np.arange(2 * len(x)) % 2
    )
    table = dd.concat([dd.from_pandas(twice.assign(keep=0)[:50]), dd.from_pandas(twice, 6)])
    return split(table[table["keep"] == 1])


def arrays_of_a_frame(x, y, _tmp):
    """Arrays with unknown chunk sizes, of a frame with empty partitions."""
    X, target = split(partitioned(x, y, 0, 1200, 1200))
    return X.to_dask_array(), target.to_dask_array()


def frame_beside_array(x, y, _tmp):
    X, target = split(partitioned(x, y, 700, 700, 2000))
    return X, target.to_dask_array()


def array_beside_frame(x, y, _tmp):
    X, target = split(partitioned(x, y, 700, 700, 2000))
    return X.to_dask_array(), target


def filtered_array(x, y, _tmp):
    """Boolean indexing: chunk sizes are unknown."""
    keep = np.arange(2 * len(x)) % 2 == 1
    both = np.column_stack([np.repeat(x, 2, axis=0), np.repeat(y, 2)])
    table = da.from_array(both, chunks=(800, -1))[da.from_array(keep, chunks=800)]
    return table[:, :4], table[:, 4]


def empty_chunks(x, y, _tmp):
    sizes = (0, 1500, 0, len(x) - 1500, 0)
    return da.from_array(x, chunks=(sizes, (2, 2))), da.from_array(y, chunks=(sizes,))


def parquet_folder(x, y, tmp):
    """Files of many sizes, the first and another empty, several row groups to a file."""
    folder = tmp / "parts"
    folder.mkdir()
    edges = [0, 0, 1, 2000, 2000, 2100, len(x)]
    for k, (start, stop) in enumerate(pairwise(edges)):
        part = frame_of(x, y).iloc[start:stop]
        part.to_parquet(folder / f"{k}.parquet", index=False, row_group_size=300)
    return split(dd.read_parquet(folder, split_row_groups=True))


def sharded_zarr(x, y, tmp):
    options = {"chunks": (100, 2), "shards": (1000, 4)}
    stored = zarr.create_array(tmp / "x.zarr", data=x, **options)
    return stored, zarr.create_array(tmp / "y.zarr", data=y, chunks=(250,), shards=(1000,))


def zarr_group(x, y, tmp):
    group = zarr.create_group(tmp / "g.zarr")
    for k, name in enumerate(NAMES):
        group.create_array(name, data=x[:, k], chunks=(300 + k,))
    return group, zarr.create_array(tmp / "y.zarr", data=y, chunks=(500,))


def xarray_zarr(x, y, tmp):
    columns = {name: ("row", x[:, k]) for k, name in enumerate(NAMES)}
    table = xr.Dataset({**columns, "target": ("row", y)}).chunk(row=900)
    table.to_zarr(tmp / "t.zarr", consolidated=False)
    table = xr.open_zarr(tmp / "t.zarr", consolidated=False)
    return table, table["target"]


SOURCES = {
    source.__name__: source
    for source in (
        first_partition_empty, filtered_frame, arrays_of_a_frame, frame_beside_array, array_beside_frame,
        filtered_array, empty_chunks, parquet_folder, sharded_zarr, zarr_group, xarray_zarr,
    )
}  # fmt: skip


def model_text(tmp_path, X, y, recipe="auto", schema=SCHEMA):
    settings = {"noise": SeededNoise(0), "random_state": 0, "recipe": recipe}
    settings["on_few_rows"] = "continue"
    if recipe != "auto":
        settings["n_estimators"] = 10
    DPGBClassifier(schema=schema, **settings).fit(X, y).save(tmp_path / "model.json")
    return (tmp_path / "model.json").read_text()


@pytest.fixture(scope="module")
def want(tmp_path_factory):
    """The model of the rows in memory, by a recipe."""
    return cache(lambda recipe: model_text(tmp_path_factory.mktemp("want"), *some_rows(), recipe))


# dpboost draws rows by their position
@pytest.mark.parametrize("recipe", thinned(["dpboost", "auto"], every=2))
@pytest.mark.parametrize("name", thinned(SOURCES, every=2))
def test_every_source_gives_the_same_model(name, recipe, tmp_path, want):
    with dask.config.set(scheduler="sync"):
        X, y = SOURCES[name](*some_rows(), tmp_path)
        assert model_text(tmp_path, X, y, recipe) == want(recipe)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_same_model_on_a_cluster(name, tmp_path, want, client):
    assert client is not None
    X, y = SOURCES[name](*some_rows(), tmp_path)
    assert model_text(tmp_path, X, y, "dpboost") == want("dpboost")


def no_rows_in_memory(_x, _y, _tmp):
    return np.zeros((0, 4)), np.zeros(0)


def no_rows_in_arrays(_x, _y, _tmp):
    return da.zeros((0, 4), chunks=(5, 4)), da.zeros(0, chunks=5)


def no_rows_in_frames(x, y, _tmp):
    return split(partitioned(x[:0], y[:0], 0, 0))


def no_rows_after_a_filter(x, y, tmp):
    X, target = filtered_array(x, y, tmp)
    none = X[:, 0] > 1e9
    return X[none], target[none]


def no_rows_in_files(x, y, tmp):
    for k in range(2):
        frame_of(x[:0], y[:0]).to_parquet(tmp / f"{k}.parquet", index=False)
    return split(dd.read_parquet(tmp, filesystem="fsspec"))


def no_rows_in_zarr(x, y, tmp):
    return sharded_zarr(x[:0], y[:0], tmp)


NOTHING = [
    no_rows_in_memory, no_rows_in_arrays, no_rows_in_frames, no_rows_after_a_filter, no_rows_in_files, no_rows_in_zarr
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::dpgb_dask.FewRowsWarning")
@pytest.mark.parametrize("recipe", ["auto", pytest.param("dpboost", marks=pytest.mark.slow)])
def test_sources_without_rows_give_one_model(recipe, tmp_path):
    models = set()
    with dask.config.set(scheduler="sync"):
        for source in NOTHING:
            (tmp_path / source.__name__).mkdir()
            X, y = source(*some_rows(), tmp_path / source.__name__)
            models.add(model_text(tmp_path, X, y, recipe))
    assert len(models) == 1


# ---- how often a source is read --------------------------------------------------------------------------------------

READS = Counter()  # of each chunk


def counted(block, block_info=None):
    READS[block_info[0]["chunk-location"][0]] += 1
    return block


# their candidates are refined as trees grow (FDP-GBDT, iterative Hessian): each time rows get other bins
REFINED = {"fdp-tr-batch-25", "fdp-tr-batch-100", "fdp-tr-newton-ih", "fdp-tr-newton-ih-ebm"}


@pytest.mark.parametrize("recipe", thinned(sorted(EVERY_RECIPE), every=3))
def test_a_source_is_read_once(recipe, monkeypatch):
    """Whatever bins follow, rows wait for them."""
    encoded = []
    encode = LocalRounds._encode

    def watched(self, bins, **options):
        encoded.append(bins)
        return encode(self, bins, **options)

    monkeypatch.setattr(LocalRounds, "_encode", watched)
    plan = EVERY_RECIPE[recipe]
    schema, kind = SCHEMA, DPGBClassifier
    if "binary" not in plan.kinds:
        schema, kind = Schema(SCHEMA.features, target_bounds=(0, 1)), DPGBRegressor
    x, y = some_rows()
    table = da.from_array(np.column_stack([x, y])[:600], chunks=(200, 5))
    table = table.map_blocks(counted, dtype=np.float64, meta=np.empty((0, 0)))
    READS.clear()
    model = kind(schema=schema, noise=SeededNoise(0), recipe=recipe, epsilon=4.0)
    if "n_estimators" in model.get_params() and recipe != "auto":
        model.set_params(n_estimators=2)
    with dask.config.set(scheduler="sync"):
        model.fit(table[:, :4], table[:, 4])
    assert (len(encoded) > 1) == (recipe in REFINED)
    assert [READS[k] for k in range(3)] == [1] * 3
