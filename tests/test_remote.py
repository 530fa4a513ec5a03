"""Files at URLs, in a store of this process's memory: what goes there and back, and what is refused before a charge."""

import socket
from contextlib import ExitStack
from importlib.util import find_spec

import dask.array as da
import fsspec
import numpy as np
import pytest
from cli_parts import run
from distributed import Client, LocalCluster
from forms import SCHEMA, some_rows

from dpgb_dask import DPGBClassifier, Ledger, recipes, remote, verify
from dpgb_dask.errors import StructureError
from dpgb_dask.estimators import load
from dpgb_dask.io import open_dataset, read_csv, write_dataset
from dpgb_dask.testing import SeededNoise


@pytest.fixture
def store():
    """An empty store in memory, at memory://."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


@pytest.fixture(scope="module")
def model():
    """A small model."""
    recipe = recipes.get("auto", kind="binary").brief()
    return DPGBClassifier(schema=SCHEMA, recipe=recipe, noise=SeededNoise(0)).fit(*some_rows())


class Refusing:
    """A file system whose every request fails."""

    def __init__(self, error):
        self.error = error

    def __getattr__(self, name):
        def fail(*_args, **_kwargs):
            raise self.error

        return (lambda: None) if name == "invalidate_cache" else fail


@pytest.fixture
def refusing(monkeypatch):
    """A function that lets every store fail with an error."""

    def let(error):
        monkeypatch.setattr(
            fsspec.core, "url_to_fs", lambda url, **_: (Refusing(error), url.split("://")[1])
        )

    return let


def test_a_model_goes_to_a_url_and_comes_back(store, model, tmp_path):
    x, _ = some_rows()
    model.save("memory://models/m.json")
    model.save(tmp_path / "m.json")
    assert store.cat_file("/models/m.json") == (tmp_path / "m.json").read_bytes()
    assert store.ls("/models", detail=False) == ["/models/m.json"]
    back = DPGBClassifier.load("memory://models/m.json")
    np.testing.assert_array_equal(back.predict_proba(x), model.predict_proba(x))
    assert "digests" in str(verify("memory://models/m.json"))
    with pytest.raises(StructureError, match=r"no\.json' does not exist"):
        load("memory://models/no.json")
    store.pipe_file("/models/m.json", store.cat_file("/models/m.json")[:-100])
    with pytest.raises(StructureError, match="is not JSON"):
        load("memory://models/m.json")


def test_exports_go_to_a_url(store, model, tmp_path):
    for form in ("python", "xgboost", "sql"):
        getattr(model, f"to_{form}")(f"memory://out/{form}")
        getattr(model, f"to_{form}")(tmp_path / form)
        assert store.cat_file(f"/out/{form}") == (tmp_path / form).read_bytes()


def test_commands_read_and_write_models_at_urls(store, model, tmp_path, capsys):
    url, edited = "memory://models/m.json", "memory://models/edited.json"
    model.save(url)
    assert run("edit", url, "--clamp", f"{SCHEMA.names[0]}=-1:1", "--out", edited) == 0
    assert run("verify", edited) == 0
    assert run("report", edited, "--html", "memory://models/report.html") == 0
    assert run("export", edited, "--to", "python", "--out", "memory://models/m.py") == 0
    assert run("export", edited, "--to", "python", "--out", "memory://models/m.py") == 1
    assert "exists already" in capsys.readouterr().err
    export = ("export", edited, "--to", "python", "--overwrite", "--out")
    assert run(*export, "memory://models/m.py") == 0
    assert run(*export, edited) == 1
    assert "which is read" in capsys.readouterr().err
    names = [path.rsplit("/", 1)[1] for path in store.ls("/models", detail=False)]
    assert sorted(names) == ["edited.json", "m.json", "m.py", "report.html"]
    with pytest.raises(SystemExit):
        run("predict", url, tmp_path, "--out", "memory://models/p.csv")
    assert "copy that there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError("SECRET"), "refuses access.*credentials"),
        (FileNotFoundError("SECRET"), "bucket or folder does not exist"),
        (RuntimeError("SECRET"), r"cannot be used \(RuntimeError\)"),
    ],
)
def test_a_store_that_refuses_is_said_without_its_words(refusing, model, error, said):
    refusing(error)
    url = "memory://people.zarr"
    for use in (
        lambda: model.save("memory://m.json"),
        lambda: load("memory://m.json"),
        lambda: open_dataset(url),
        lambda: write_dataset(url, *some_rows(), schema=SCHEMA),
        lambda: read_csv("memory://people.csv"),
    ):
        with pytest.raises(StructureError, match=said) as info:
            use()
        assert "SECRET" not in f"{info.value!r}{info.value.__cause__!r}{info.value.__context__!r}"


@pytest.mark.parametrize(
    "url",
    [
        "simplecache::s3://K:SECRET@bucket/x.zarr",
        "zip://a.csv::s3://K:SECRET@bucket/x.zip",
        "s3://K:a/SECRET@bucket/x",
        "s3://K:a[SECRET@bucket/x",
        "s3://K:SECRET#x@bucket/y",
        "s3://K:12@bucket/y",
    ],
)
def test_a_password_is_found_wherever_a_url_holds_it(url):
    for use in (remote.check_no_password, lambda url: read_csv(["a.csv", url])):
        with pytest.raises(StructureError, match="holds a password") as info:
            use(url)
        assert "SECRET" not in repr(info.value)


@pytest.mark.parametrize(
    "url",
    ["s3://bucket/a:b@c", "http://host:8080/x@y", "zip://a.csv::s3://bucket/x@y.zip", "a:b@c"],
)
def test_what_is_no_password_passes(url):
    remote.check_no_password(url)


def test_an_archive_that_cannot_be_opened_is_an_error_in_our_words(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"SECRET")
    with pytest.raises(StructureError, match="cannot be used") as info:
        remote.read(f"zip://x::file://{tmp_path}/a.zip")
    assert (info.value.__cause__, info.value.__context__) == (None, None)


@pytest.mark.parametrize("where", ["model", "data", "codes"])
def test_a_url_with_a_password_is_refused_and_not_repeated(where, tmp_path):
    url = "memory://ann:SECRET@host/place.zarr"
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=1.0, delta=1e-6)
    clf = DPGBClassifier(epsilon=1.0, delta=1e-6, schema=SCHEMA, ledger=ledger, account="people")
    uses = {
        "model": lambda: load(url),
        "data": lambda: open_dataset(url),
        "codes": lambda: clf.set_params(cache=url).fit(*some_rows()),
    }
    with pytest.raises(StructureError, match="holds a password") as info:
        uses[where]()
    assert "SECRET" not in repr(info.value)
    assert ledger.account("people").spent == 0


def test_a_store_that_is_silent_is_given_up_after_the_stated_wait(monkeypatch, store):
    """The store's request never returns; the fit, which would write there, is never begun."""
    monkeypatch.setattr(remote, "WAIT_SECONDS", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(type(store), "exists", lambda *_args, **_kwargs: ours.recv(1))
        with pytest.raises(StructureError, match=r"said nothing for 0\.05 seconds"):
            remote.read("memory://m.json")
        theirs.send(b"x")  # the thread that waits ends


@pytest.mark.parametrize("cluster", [False, True], ids=["here", "on a worker"])
def test_codes_at_a_url_that_cannot_be_written_are_refused_before_the_charge(
    refusing, cluster, tmp_path
):
    refusing(PermissionError("SECRET"))
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=1.0, delta=1e-6)
    clf = DPGBClassifier(
        epsilon=1.0,
        delta=1e-6,
        schema=SCHEMA,
        ledger=ledger,
        account="people",
        cache="memory://codes.zarr",
    )
    local = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    x, y = some_rows()
    if cluster:
        x, y = da.from_array(x, chunks=(500, -1)), da.from_array(y, chunks=500)
    with ExitStack() as stack:
        if cluster:
            stack.enter_context(Client(stack.enter_context(LocalCluster(**local))))
        with pytest.raises(StructureError, match="refuses access") as info:
            clf.fit(x, y)
    assert "SECRET" not in repr(info.value)
    assert ledger.account("people").spent == 0


class NoName:
    def __str__(self):
        return "model.json"


@pytest.mark.parametrize("kind", ["open file", "None", "bytes", "number", "object"])
def test_what_is_no_name_is_refused_and_names_no_file(kind, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "open.json").open("w") as file:
        given = {
            "open file": file, "None": None, "bytes": b"m.json", "number": 3, "object": NoName(),
        }[kind]  # fmt: skip
        use = (
            model.save, load, DPGBClassifier.load, verify, model.to_python, model.to_sql,
            model.to_xgboost, read_csv, open_dataset, *([model.to_onnx] if find_spec("onnx") else []),
        )  # fmt: skip
        for call in use:
            with pytest.raises(TypeError, match="must be a name: give text or a Path"):
                call(given)
    assert [path.name for path in tmp_path.iterdir()] == ["open.json"]


@pytest.mark.parametrize("name", ["", ".", "/", "m\0.json"])
def test_a_name_of_no_file_is_an_error_of_ours(name, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in (model.save, load, model.to_python, model.to_sql):
        with pytest.raises(StructureError):
            call(name)
    assert not list(tmp_path.iterdir())
