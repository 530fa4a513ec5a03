"""Rows in an object store: data sets, Zarr, Parquet and CSV at s3:// URLs, in this process and on worker processes."""

import gc

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster
from forms import SCHEMA, some_rows

from dpgb_dask import DPGBClassifier
from dpgb_dask.cli import main
from dpgb_dask.errors import StructureError
from dpgb_dask.io import open_dataset, write_dataset
from dpgb_dask.testing import SeededNoise

moto = pytest.importorskip("moto.server", reason="NO MOTO: pip install '.[services]'")
s3fs = pytest.importorskip("s3fs", reason="NO S3FS: pip install '.[services]'")

pytestmark = [
    pytest.mark.services,
    # of aiobotocore's sessions, which s3fs leaves to the end of the process
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BUCKET = "s3://rows"


@pytest.fixture(scope="module", autouse=True)
def server():
    """A server that speaks S3, and an environment that leads to it."""
    place = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    place.start()
    host, port = place.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("rows")
        yield f"http://{host}:{port}"
    s3fs.S3FileSystem.clear_instance_cache()
    gc.collect()  # while the filters above hold
    place.stop()


@pytest.fixture(scope="module")
def processes():
    """A client of two worker processes; it stays the current one."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def model_text(tmp_path, X, y, **options):
    options = {"noise": SeededNoise(0), "random_state": 0, **options}
    DPGBClassifier(schema=SCHEMA, **options).fit(X, y).save(tmp_path / "model.json")
    return (tmp_path / "model.json").read_text()


def in_chunks(x, y):
    return da.from_array(x, chunks=(700, 4)), da.from_array(y, chunks=700)


def test_a_data_set_in_an_object_store_gives_the_same_model(tmp_path, server):
    x, y = some_rows()
    want = model_text(tmp_path, x, y)
    write_dataset(f"{BUCKET}/d.zarr", *in_chunks(x, y), schema=SCHEMA, shard_rows=1000)
    data = open_dataset(f"{BUCKET}/d.zarr")
    assert model_text(tmp_path, data.X, data.y) == want
    with pytest.raises(StructureError, match="exists already"):
        write_dataset(f"{BUCKET}/d.zarr", x, y, schema=SCHEMA)
    options = {"endpoint_url": server, "key": "key", "secret": "secret"}
    write_dataset(f"{BUCKET}/d.zarr", x, y, schema=SCHEMA, overwrite=True, storage_options=options)
    data = open_dataset(f"{BUCKET}/d.zarr", storage_options=options)
    assert data.X.data.npartitions == 1
    assert model_text(tmp_path, data.X, data.y) == want
    s3fs.S3FileSystem().rm("rows/d.zarr/X/c/0/0")
    with pytest.raises(StructureError, match="lacks parts"):
        open_dataset(f"{BUCKET}/d.zarr")


def test_worker_processes_write_and_read(tmp_path, processes):
    x, y = some_rows()
    want = model_text(tmp_path, x, y)
    write_dataset(f"{BUCKET}/two.zarr", *in_chunks(x, y), schema=SCHEMA, shard_rows=500)
    data = open_dataset(f"{BUCKET}/two.zarr")
    assert model_text(tmp_path, data.X, data.y) == want
    assert len(processes.nthreads()) == 2


def test_zarr_and_xarray_of_an_object_store_give_the_same_model(tmp_path, processes):
    x, y = some_rows()
    want = model_text(tmp_path, x, y)
    stored = zarr.create_array(f"{BUCKET}/x.zarr", data=x, chunks=(700, 4))
    labels = zarr.create_array(f"{BUCKET}/y.zarr", data=y, chunks=(700,))
    assert model_text(tmp_path, stored, labels) == want
    columns = {name: ("row", x[:, k]) for k, name in enumerate(SCHEMA.names)}
    table = xr.Dataset({**columns, "target": ("row", y)}).chunk(row=900)
    table.to_zarr(f"{BUCKET}/table.zarr", consolidated=False)
    table = xr.open_zarr(f"{BUCKET}/table.zarr", consolidated=False)
    assert model_text(tmp_path, table, table["target"]) == want
    group = zarr.open_group(f"{BUCKET}/table.zarr", mode="r")
    assert model_text(tmp_path, group, group["target"]) == want
    assert len(processes.nthreads()) == 2


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_the_command_line_reads_and_writes_an_object_store(
    tmp_path, binary_schema, features, labels, capsys
):
    binary_schema.save(tmp_path / "schema.json")
    table = features.assign(target=labels)
    table.to_parquet(f"{BUCKET}/people.parquet")
    table.to_csv(f"{BUCKET}/people.csv", index=False)
    schema, budget = ("--schema", tmp_path / "schema.json"), ("--epsilon", 4, "--delta", 1e-6)
    with dask.config.set(scheduler="sync"):
        for k, name in enumerate(("people.parquet", "people.csv")):
            data, out = f"{BUCKET}/{name}", tmp_path / f"{k}.json"
            assert run("fit", data, *schema, *budget, "--quiet", "--out", out) == 0
            assert run("convert", data, *schema, "--out", f"{BUCKET}/{k}.zarr") == 0
            out = tmp_path / f"{k}-set.json"
            assert run("fit", f"{BUCKET}/{k}.zarr", *budget, "--quiet", "--out", out) == 0
            assert run("predict", out, f"{BUCKET}/{k}.zarr", "--out", tmp_path / f"{k}.csv") == 0
        np.testing.assert_array_equal(
            *(open_dataset(f"{BUCKET}/{k}.zarr").X["x"].compute() for k in (0, 1))
        )
        capsys.readouterr()
        assert run("fit", f"{BUCKET}/no.zarr", *budget, "--out", tmp_path / "no.json") == 1
        assert run("fit", "s3://no/no.parquet", *schema, *budget, "--out", tmp_path / "n.json") == 1
    assert "Traceback" not in capsys.readouterr().err


def test_codes_in_an_object_store_give_the_same_model(tmp_path, processes):
    x, y = some_rows()
    want = model_text(tmp_path, x, y)
    assert model_text(tmp_path, *in_chunks(x, y), cache=f"{BUCKET}/codes.zarr") == want
    assert len(processes.nthreads()) == 2
