"""The image as a strict cluster runs it: read-only, as a user without rights; no kernel is compiled at run time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from waiting import LONGEST, comes_true

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.datasets import make_census
from dpgb_dask.installed import OWN
from dpgb_dask.testing import SeededNoise

pytestmark = pytest.mark.hpc
RUN = Path(__file__).parents[2] / "ci" / "image" / "run"
USER = 1000
SCRATCH = ("-v", "/scratch")
SCHEMA = Schema({f"f{j}": (0.0, 1.0) for j in range(4)}, classes=[0, 1])


@pytest.fixture(scope="module", autouse=True)
def _image():
    if not Path(os.environ.get("DPGB_IMAGE", "/nowhere"), "dpgb-dask").exists():
        pytest.skip("NO IMAGE: ci/image/check builds one, where root, debootstrap and buildah are")


@pytest.fixture
def volume(tmp_path):
    """What makes a folder that the image's user may write to; it is there for others to look into."""

    def made(name):
        folder = tmp_path / name
        folder.mkdir()
        os.chown(folder, USER, USER)
        return folder

    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder.is_relative_to("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)  # pytest's own are closed to other users
    return made


def config(name="dpgb-dask"):
    return json.loads(Path(os.environ["DPGB_IMAGE"], name, "config.json").read_text("utf-8"))


def start(*words, **how):
    """Start ``ci/image/run`` with options and a command."""
    return subprocess.Popen([sys.executable, RUN, *map(str, words)], text=True, **how)


def run(*words, code=0):
    """Run a command in the image; return what it says."""
    process = start(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = process.communicate()
    assert process.returncode == code, said
    return said


def compiled(cache):
    """The kernels that were compiled at run time, as each is kept in the cache's folder."""
    return sorted(path.name for path in cache.rglob("*.nbc"))


def test_a_command_has_no_rights(record_property, volume):
    told = run(
        *SCRATCH,
        *("-v", f"{volume('cache')}:/cache", "--", "sh", "-c"),
        "id -u; id -g; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; echo $$;"
        "for file in / /tmp /opt/dpgb /home/dpgb /ledger /etc /var/tmp /scratch /cache;"
        " do touch $file/new 2>/dev/null && echo $file; done; true",
    ).split()
    assert told == [
        *("1000", "1000", "CapEff:", "0" * 16, "CapBnd:", "0" * 16),
        *("NoNewPrivs:", "1", "1", "/scratch", "/cache"),
    ]
    record_property("saw", "uid 1000, no capability, writes to /scratch and /cache alone")


def test_its_settings_are_those_of_a_strict_cluster():
    for name in ("dpgb-dask", "dpgb-dask-notebook"):
        told = config(name)
        assert told["User"] == "1000:1000"  # as numbers: runAsNonRoot compares them
        assert told["Labels"]["org.opencontainers.image.version"] in run(
            "-t", name, *SCRATCH, "--", "dpgb-dask", "--version"
        )
        assert told.get("Entrypoint") is None


def test_nothing_of_the_build_is_left_in_it():
    for name in ("dpgb-dask", "dpgb-dask-notebook"):
        root = Path(os.environ["DPGB_IMAGE"], name, "root")
        configuration = root / "etc" / "pip.conf"
        assert not configuration.exists() or not configuration.read_text("utf-8")
        assert not (root / "src").exists()
        assert not any((root / "root").glob(".cache"))


@pytest.mark.parametrize("name", ["dpgb-dask", "dpgb-dask-notebook"])
def test_all_kernels_are_in_it(name, volume, record_property):
    cache = volume("cache")
    said = run("-t", name, *SCRATCH, "-v", f"{cache}:/cache", "--", "dpgb-dask", "warm")
    assert "\n0 versions of kernels compiled" in said
    assert compiled(cache) == []
    record_property("saw", said.splitlines()[-1])


def test_with_words_for_another_processor_kernels_are_compiled_into_the_cache(volume):
    """So an empty cache proves that none was compiled."""
    cache = volume("cache")
    words = "from dpgb_dask.kernels.warming import warm; warm(['labels'])"
    run(
        *(*SCRATCH, "-e", "NUMBA_CPU_NAME=generic", "-v", f"{cache}:/cache"),
        *("--", "python", "-c", words),
    )
    assert compiled(cache)


def test_the_demo_runs(volume, record_property):
    cache, scratch = volume("cache"), volume("scratch")
    said = run(
        *("-v", f"{scratch}:/scratch", "-v", f"{cache}:/cache", "--", "dpgb-dask", "demo"),
        *("--rows", 20_000, "--processes", "--quiet", "--out", "/scratch/demo-model.json"),
    )
    assert compiled(cache) == []
    assert (scratch / "demo-model.json").exists()
    record_property("saw", said.splitlines()[-1])


def rows():
    """Rows that each worker makes again by itself."""
    x = da.random.default_rng(7).random((6000, 4), chunks=(500, 4))
    return x, (x[:, 0] + x[:, 1] > x[:, 2] + 0.5).astype(np.int64)


def model_of(path):
    DPGBClassifier(
        epsilon=4.0, delta=1e-6, schema=SCHEMA, noise=SeededNoise(3), random_state=5
    ).fit(*rows()).save(path)
    return path.read_bytes()


@pytest.fixture
def workers():
    """What starts workers in the image, that join a scheduler of this machine; they end with the test."""
    theirs = run(*SCRATCH, "--", "python", "-c", "from dpgb_dask.installed import OWN; print(OWN)")
    if theirs.splitlines() != [OWN]:
        pytest.skip(f"OTHER VERSIONS in the image: {theirs.strip()}; here {OWN}")
    started = []

    def joined(cluster, cache, *words):
        for _ in range(2):
            arguments = ("--nthreads", 1, "--memory-limit", "1GiB", "--no-dashboard")
            started.append(
                start(
                    *(*SCRATCH, "-v", f"{cache}:/cache", *words, "--", "dask", "worker"),
                    *(cluster.scheduler_address, *arguments),
                )
            )

    yield joined
    for process in started:
        process.kill()
        process.wait()


def test_workers_in_it_join_a_scheduler_outside(workers, volume, tmp_path, record_property):
    with dask.config.set({"dpgb-dask.backend": "local"}):
        local = model_of(tmp_path / "local.json")
    cache = volume("cache")
    with LocalCluster(n_workers=0, dashboard_address=":0") as cluster, Client(cluster) as client:
        workers(cluster, cache)
        client.wait_for_workers(2, timeout=LONGEST)
        where = client.run(lambda: (os.getuid(), sys.prefix))
        there = model_of(tmp_path / "there.json")
    assert set(where.values()) == {(USER, "/opt/dpgb")}
    assert there == local
    assert compiled(cache) == []
    record_property("saw", "2 workers in the image, model equal bit for bit, 0 kernels compiled")


def test_a_job_fits_on_such_workers(workers, volume, tmp_path, record_property):
    """Schema and data are mounted to be read, the ledger to be written; the scheduler is outside."""
    people, schema = make_census(3000)
    people.compute().to_csv(tmp_path / "people.csv", index=False)
    schema.save(tmp_path / "schema.json")
    (tmp_path / "people.csv").chmod(0o644)
    (tmp_path / "schema.json").chmod(0o644)
    cache, folders = volume("cache"), {name: volume(name) for name in ("ledger", "models")}
    data = ("-v", f"{tmp_path}/people.csv:/data/people.csv:ro")
    mounted = (
        *(*SCRATCH, *data, "-v", f"{tmp_path}/schema.json:/config/schema.json:ro"),
        *(word for name in folders for word in ("-v", f"{folders[name]}:/{name}")),
        *("-v", f"{cache}:/cache", "--", "dpgb-dask"),
    )
    book, model = "sqlite:////ledger/budget.db", "/models/model.json"
    run(*mounted, "ledger", "open", book, "people", "--epsilon", 3, "--delta", 1e-6)
    with LocalCluster(n_workers=0, dashboard_address=":0") as cluster, Client(cluster) as client:
        workers(cluster, cache, *data)
        client.wait_for_workers(2, timeout=LONGEST)
        run(
            *(*mounted, "fit", "/data/people.csv", "--schema", "/config/schema.json"),
            *("--epsilon", 2, "--delta", 1e-6, "--ledger", book, "--account", "people"),
            *("--scheduler", cluster.scheduler_address, "--quiet", "--out", model),
        )
        assert comes_true(lambda: len(client.scheduler_info()["workers"]) == 2)
    run(*mounted, "verify", model, "--ledger", book)
    run(*mounted, "ledger", "verify", book)
    assert compiled(cache) == []
    (account,) = json.loads(run(*mounted, "ledger", "show", book, "--json"))
    assert account["epsilon_left"] < account["epsilon"]
    assert len(account["fits"]) == 1
    record_property("saw", f"1 fit, verified, charged once; 0 kernels compiled; {account}")


def test_what_a_deployment_needs_is_in_it():
    run(*SCRATCH, "--", "python", "-c", "import psycopg, s3fs, dask_gateway, bokeh")
    run(*SCRATCH, "--", "dask", "scheduler", "--version")


def test_a_notebook_runs_in_its_image(volume, record_property):
    home = volume("home")
    cell = "import dask_gateway, matplotlib, dpgb_dask; print('version', dpgb_dask.__version__)"
    notebook = {
        "cells": [
            {"cell_type": "code", "id": "one", "execution_count": None, "metadata": {}, "outputs": [], "source": cell}
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }  # fmt: skip
    (home / "one.ipynb").write_text(json.dumps(notebook), "utf-8")
    os.chown(home / "one.ipynb", USER, USER)
    image = ("-t", "dpgb-dask-notebook", *SCRATCH, "-v", "/cache", "-v", f"{home}:/home/dpgb", "--")
    run(*image, "jupyter", "execute", "--inplace", "one.ipynb")
    said = json.loads((home / "one.ipynb").read_text("utf-8"))["cells"][0]["outputs"][0]["text"]
    hub = run(*image, "jupyterhub-singleuser", "--version").split()[-1]
    record_property("saw", f"{' '.join(said).strip()}, JupyterHub {hub}")
