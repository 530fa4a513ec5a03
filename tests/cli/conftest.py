"""Rows as files of every kind, for the command line."""

import shutil
from functools import partial

import dask
import numpy as np
import pytest
import zarr

from dpgb_dask.cli import fit
from dpgb_dask.testing import SeededNoise


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def client(client):
    """The client of conftest, which dask is told to use."""
    with dask.config.set(scheduler=None):
        yield client


@pytest.fixture(scope="session")
def people(features, labels):
    return features.assign(target=labels)


@pytest.fixture(scope="session")
def files(tmp_path_factory, binary_schema, people):
    """A directory with a schema file and the same rows as Parquet, CSV and Zarr; not to be changed."""
    folder = tmp_path_factory.mktemp("files")
    binary_schema.save(folder / "schema.json")
    people.to_parquet(folder / "people.parquet")
    people.to_csv(folder / "people.csv", index=False)
    group = zarr.create_group(folder / "people.zarr")
    for name in ("x", "z", "age", "target"):
        group.create_array(name, data=people[name].to_numpy(np.float64), chunks=(400,))
    color = people["color"].map({"blue": 0, "green": 1, "red": 2}).fillna(-1).to_numpy(np.float64)
    group.create_array("color", data=color, chunks=(300,))
    return folder


@pytest.fixture
def place(tmp_path, files):
    """A copy of `files`."""
    return shutil.copytree(files, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def seeded(monkeypatch):
    """Fits of the command line with noise that repeats."""
    for kind in ("DPGBClassifier", "DPGBRegressor"):
        monkeypatch.setattr(fit, kind, partial(getattr(fit, kind), noise=SeededNoise(0)))
