"""Rows in an object store: data sets, Zarr, Parquet and CSV at s3:// URLs, in this process and on worker processes."""

import gc
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster
from distributed.protocol import pickle
from forms import SCHEMA, some_rows

from dpgb_dask import DPGBClassifier, Ledger, remote, verify
from dpgb_dask.cli import main
from dpgb_dask.errors import StructureError
from dpgb_dask.estimators import load
from dpgb_dask.io import open_dataset, write_dataset
from dpgb_dask.testing import SeededNoise

s3fs = pytest.importorskip("s3fs", reason="NO S3FS: pip install '.[services]'")

pytestmark = [
    pytest.mark.services,
    # of aiobotocore's sessions, which s3fs leaves to the end of the process
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BUCKET = "s3://rows"
UNUSABLE = r"does not exist|does not answer|cannot be used"
KEY, SECRET = "AKIDPGBTESTKEY", "S3cr3tOfTheObjectStore"


@pytest.fixture(scope="module", autouse=True)
def server():
    """Lead this process, and those that it starts, to the store that ci/services/s3 started; return its address."""
    if (address := os.environ.get("DPGB_S3")) is None:
        pytest.skip("NO OBJECT STORE: ci/services/s3 starts one, and runs these tests")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        with suppress(FileExistsError):
            s3fs.S3FileSystem().mkdir("rows")
        yield address
    s3fs.S3FileSystem.clear_instance_cache()
    gc.collect()  # while the filters above hold


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
    options = {"endpoint_url": server, "key": KEY, "secret": SECRET}
    write_dataset(f"{BUCKET}/d.zarr", x, y, schema=SCHEMA, overwrite=True, storage_options=options)
    data = open_dataset(f"{BUCKET}/d.zarr", storage_options=options)
    assert data.X.data.npartitions == 1
    assert model_text(tmp_path, data.X, data.y) == want
    s3fs.S3FileSystem().invalidate_cache()
    assert not [name for name in s3fs.S3FileSystem().find("rows") if ".dpgb-part" in name]
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


def cli(*arguments):
    """Run the command line in a process of its own; return what it prints."""
    command = [sys.executable, "-m", "dpgb_dask", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def all_files(folder):
    """Return what all files below a folder hold."""
    return b"".join(path.read_bytes() for path in Path(folder).rglob("*") if path.is_file())


def all_objects():
    """Return what all objects of the store hold, and their names."""
    files = s3fs.S3FileSystem()
    files.invalidate_cache()
    names = files.find("rows")
    return b"".join([*map(files.cat_file, names), "\n".join(names).encode()])


@pytest.fixture
def sent(monkeypatch):
    """All that this process pickles for others while it is the client and the scheduler."""
    texts = []
    plain = pickle.dumps

    def dumps(*args, **kwargs):
        texts.append(plain(*args, **kwargs))
        return texts[-1]

    monkeypatch.setattr(pickle, "dumps", dumps)
    return texts


def test_a_round_trip_keeps_the_credentials_in_the_environment(
    tmp_path, binary_schema, features, labels, capfd, caplog, sent, record_property
):
    """Convert, open, fit with codes there, save, verify, predict, explain, export: at s3:// alone, on two processes."""
    binary_schema.save(tmp_path / "schema.json")
    features.assign(target=labels).to_parquet(f"{BUCKET}/trip/people.parquet")
    url = f"sqlite:///{tmp_path}/budget.db"
    ledger = Ledger(url)
    ledger.open_account("people", epsilon=4.0, delta=1e-6)
    said = []
    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        LocalCluster(**local, local_directory=tmp_path / "workers") as cluster,
        Client(cluster) as client,
    ):
        data, model = f"{BUCKET}/trip/people.zarr", f"{BUCKET}/trip/model.json"
        schema, on = (
            ("--schema", tmp_path / "schema.json"),
            ("--scheduler", client.scheduler.address),
        )
        said.append(cli("convert", f"{BUCKET}/trip/people.parquet", *schema, "--out", data, *on))
        rows = open_dataset(data)
        clf = DPGBClassifier(
            epsilon=2.0,
            delta=1e-6,
            schema=rows.schema,
            ledger=ledger,
            account="people",
            cache=f"{BUCKET}/trip/codes.zarr",
        ).fit(rows.X, rows.y)
        clf.save(model)
        agreed = verify(model, ledger)
        back = load(model)
        predicted = back.predict(rows.X).compute()
        np.testing.assert_array_equal(predicted, clf.predict(rows.X).compute())
        explained = back.explain_local(rows.X)
        said += map(str, (agreed, agreed.open, rows, back, back.privacy_report_, explained, rows.X))
        said.append(back.explain_global().__repr__())
        assert run("predict", model, data, "--out", tmp_path / "p.csv") == 0
        assert run("export", model, "--to", "python", "--out", f"{BUCKET}/trip/model.py") == 0
        assert run("verify", model, "--ledger", url) == 0
        assert back.privacy_report_.account == "people"
        spent = ledger.account("people").spent
        said.append(cli("fit", data, "--epsilon", 1, "--delta", 1e-6, "--quiet", "--ledger", url,
                        "--account", "people", "--out", f"{BUCKET}/trip/second.json", *on))  # fmt: skip
        assert ledger.account("people").spent > spent > 0
        said.append(str(client.get_worker_logs()) + str(client.get_scheduler_logs()))
        n_workers = len(client.scheduler_info()["workers"])
        with pytest.raises(StructureError, match="exists already"):
            write_dataset(data, rows.X, rows.y, schema=rows.schema)
    printed = capfd.readouterr()
    said += [printed.out, printed.err, caplog.text]
    written = [all_files(tmp_path), all_objects(), *sent, *(text.encode() for text in said)]
    assert sum(map(len, sent)) > 1000
    assert len(written[1]) > 1000
    for told in (SECRET, KEY):
        assert not [text[:300] for text in written if told.encode() in text]
    record_property(
        "saw",
        f"{n_workers} worker processes; 2 fits, 2 charges; codes, model and export at s3://; the credentials in none of"
        f" {sum(map(len, written)) >> 10} KiB of files, objects, messages and prints",
    )


def test_storage_options_that_a_user_hands_over_travel_in_tasks_and_are_never_shown(
    tmp_path, processes, server, caplog, capfd, monkeypatch, sent
):
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    s3fs.S3FileSystem.clear_instance_cache()
    x, y = some_rows()
    options = {"endpoint_url": server, "key": KEY, "secret": SECRET}
    there = {"schema": SCHEMA, "overwrite": True, "storage_options": options}
    write_dataset(f"{BUCKET}/handed.zarr", *in_chunks(x, y), **there)
    data = open_dataset(f"{BUCKET}/handed.zarr", storage_options=options)
    clf = DPGBClassifier(schema=data.schema, epsilon=1.0, delta=1e-6).fit(data.X, data.y)
    clf.save(tmp_path / "model.json")
    assert any(SECRET.encode() in text for text in sent)  # docs/deploy.md says so
    files = s3fs.S3FileSystem(**options)
    files.rm_file(next(name for name in files.find("rows/handed.zarr/X") if "/c/" in name))
    with pytest.raises(StructureError) as lacks:
        open_dataset(f"{BUCKET}/handed.zarr", storage_options=options)
    printed = capfd.readouterr()
    texts = [printed.out, printed.err, caplog.text, repr(data), data.X._repr_html_(), repr(clf)]
    texts += [str(clf.privacy_report_), repr(lacks.value), str(processes.get_worker_logs())]
    texts += [repr(dict(data.X.data.dask)), clf._repr_html_()]
    for told in (SECRET, KEY):
        assert not [text[:300] for text in texts if told in text]
        assert told.encode() not in all_files(tmp_path)


@pytest.mark.parametrize("who", ["a bucket that is not there", "nobody at the address"])
def test_a_store_that_cannot_be_used_is_said_before_the_charge(who, tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/budget.db"
    ledger = Ledger(url)
    ledger.open_account("people", epsilon=4.0, delta=1e-6)
    x, y = some_rows()
    bucket = "s3://no-such-bucket" if who.startswith("a bucket") else BUCKET
    if who.startswith("nobody"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        monkeypatch.setattr(remote, "WAIT_SECONDS", 3.0)
        s3fs.S3FileSystem.clear_instance_cache()
    uses = {
        "codes": lambda: DPGBClassifier(
            epsilon=1.0, delta=1e-6, schema=SCHEMA, ledger=ledger, account="people",
            cache=f"{bucket}/codes.zarr",
        ).fit(x, y),
        "data": lambda: open_dataset(f"{bucket}/people.zarr"),
        "model": lambda: load(f"{bucket}/model.json"),
        "saved": lambda: remote.check_writable(f"{bucket}/model.json"),
    }  # fmt: skip
    try:
        for use in uses.values():
            with pytest.raises(StructureError, match=UNUSABLE):
                use()
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
    assert ledger.account("people").spent == 0
