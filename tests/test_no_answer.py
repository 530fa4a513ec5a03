"""Services that do not answer: a clear error after a stated wait, and nothing is charged for it."""

import asyncio
import socket
from contextlib import contextmanager

import dask
import dask.array as da
import pytest
from cli_parts import run
from distributed import Client, LocalCluster
from forms import SCHEMA, some_rows
from waiting import LONGEST

from dpgb_dask import DPGBClassifier, Ledger, recipes, remote
from dpgb_dask.errors import ClusterError, LedgerUnavailableError, StructureError
from dpgb_dask.estimators import load
from dpgb_dask.io import open_dataset, read_csv
from dpgb_dask.private.rounds import workers

IN_PROCESS = {"threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}


@contextmanager
def silent():
    """The address of a socket that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield "{}:{}".format(*listening.getsockname())


@contextmanager
def closed():
    """An address at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, so that nobody else gets it; it never listens
        yield "{}:{}".format(*taken.getsockname())


PLACES = pytest.mark.parametrize("place", [silent, closed])


@pytest.fixture
def ledger(tmp_path):
    """A ledger with an account, "people"."""
    made = Ledger(f"sqlite:///{tmp_path}/budget.db")
    made.open_account("people", epsilon=4.0, delta=1e-6)
    return made


def estimator(ledger, **options):
    recipe = recipes.get("auto", kind="binary").brief()
    terms = {"epsilon": 1.0, "delta": 1e-6, "schema": SCHEMA, "recipe": recipe}
    return DPGBClassifier(ledger=ledger, account="people", **{**terms, **options})


def lazy_rows():
    x, y = some_rows()
    return da.from_array(x, chunks=(500, -1)), da.from_array(y, chunks=500)


def spent(ledger):
    return ledger.account("people").spent


@PLACES
def test_the_command_line_gives_up_on_a_scheduler(place, ledger, tmp_path, capsys, schema_and_csv):
    schema, csv = schema_and_csv
    told = (
        "--ledger",
        f"sqlite:///{tmp_path}/budget.db",
        "--account",
        "people",
        "--out",
        tmp_path / "m.json",
    )
    with place() as address, dask.config.set({"distributed.comm.timeouts.connect": "0.5s"}):
        budget = ("--epsilon", 1, "--delta", 1e-6)
        code = run(
            "fit", csv, "--schema", schema, *budget, *told, "--scheduler", f"tcp://{address}"
        )
    assert code == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert spent(ledger) == 0


@pytest.fixture
def schema_and_csv(tmp_path):
    """The paths of a schema and of rows that fit it."""
    x, y = some_rows()
    SCHEMA.save(tmp_path / "schema.json")
    lines = [",".join([*SCHEMA.names, SCHEMA.target.name])]
    lines += [",".join(map(str, [*row, label])) for row, label in zip(x[:20], y[:20], strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    return tmp_path / "schema.json", tmp_path / "rows.csv"


async def never(*_args, **_kwargs):
    """Answer nothing, as a process that is stopped."""
    await asyncio.sleep(LONGEST)


@pytest.mark.parametrize("backend", ["tasks", "comms"])
def test_a_scheduler_that_falls_silent_in_mid_fit_ends_the_fit(backend, ledger, monkeypatch):
    def fall_silent(_label, done, _total):
        if done == 2:  # until here a slow machine may take its time
            monkeypatch.setattr(workers, "LEAST_WAIT", 0.5)
            for question in ("ncores", "who_has", "broadcast", "gather"):
                cluster.scheduler.handlers[question] = never
            cluster.scheduler.stream_handlers["update-graph"] = lambda *_args, **_kwargs: None

    with (
        dask.config.set({"dpgb-dask.backend": backend, "dpgb-dask.worker-wait": 0.5}),
        LocalCluster(n_workers=1, **IN_PROCESS) as cluster,
        Client(cluster),
        pytest.raises(ClusterError, match=r"scheduler has not answered for 0\.5 seconds") as info,
    ):
        estimator(ledger, callbacks=[fall_silent]).fit(*lazy_rows())
    (fit,) = ledger.fits("people")
    assert fit.fit_id in str(info.value.__notes__)
    x, y = some_rows()
    before = spent(ledger)
    estimator(ledger).fit(x, y, resume=fit.fit_id)  # in this process; the same charge
    assert spent(ledger) == before


@pytest.mark.services
@PLACES
def test_a_ledger_that_does_not_answer(place):
    pytest.importorskip("psycopg", reason="NO PSYCOPG: pip install '.[services]'")
    with place() as address:
        there = Ledger(f"postgresql+psycopg://ann:SECRET@{address}/ledger?connect_timeout=2")
        with pytest.raises(LedgerUnavailableError) as info:
            estimator(there).fit(*some_rows())
    assert "SECRET" not in str(info.value)


@pytest.mark.services
@PLACES
def test_an_object_store_that_does_not_answer(place, ledger, monkeypatch):
    s3fs = pytest.importorskip("s3fs", reason="NO S3FS: pip install '.[services]'")
    monkeypatch.setattr(remote, "WAIT_SECONDS", 1.0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    x, y = some_rows()
    url = "s3://people/people.zarr"
    uses = {
        "rows": lambda: open_dataset(url),
        "text": lambda: read_csv("s3://people/people.csv"),
        "codes": lambda: estimator(ledger, cache=url).fit(x, y),
        "model": lambda: load("s3://people/model.json"),
        "place of a model": lambda: remote.check_writable("s3://people/model.json"),
    }
    with place() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}")
        s3fs.S3FileSystem.clear_instance_cache()
        for use in uses.values():
            with pytest.raises(StructureError, match=r"said nothing for 1 seconds|cannot be used"):
                use()
    s3fs.S3FileSystem.clear_instance_cache()
    assert spent(ledger) == 0
