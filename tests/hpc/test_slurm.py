"""A real Slurm, which ci/hpc/slurm starts: jobs end in mid-fit, and the model has the same bits for one charge."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import dask
import pytest
from cluster.test_faults import PRICE, Fault, check, disturbed
from distributed import Client, LocalCluster, Security
from small_fits import SCHEMA, ledger_in, rows
from waiting import LONGEST, comes_true

pytestmark = [
    pytest.mark.hpc,
    # dask-jobqueue leaves the files of its certificates to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROOT = Path(__file__).parents[2]
WAIT = {"worker-wait": LONGEST}


@pytest.fixture(scope="module", autouse=True)
def _slurm():
    """Slurm and dask-jobqueue."""
    if "DPGB_SLURM" not in os.environ:
        pytest.skip("NO SLURM: ci/hpc/slurm starts it")
    pytest.importorskip("dask_jobqueue", reason="NO dask-jobqueue: pip install '.[hpc]'")


def said(*command, **options):
    """Run a command of Slurm and return what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def submitted(folder, *arguments, **options):
    """Submit a batch job whose output goes to the folder; return its number."""
    out = ("--output", f"{folder}/slurm-%j.out")
    return said("sbatch", "--parsable", *out, *arguments, **options).strip()


def state_of(job):
    """Return a job's state in Slurm's words."""
    return re.search(r"JobState=(\w+)", said("scontrol", "show", "job", job))[1]


def worker_command(address):
    """Return the command line of one worker of a scheduler."""
    return (
        f"exec {sys.executable} -m distributed.cli.dask_worker {address} --nthreads 1 --no-dashboard --interface lo"
        " --memory-limit 1GiB --local-directory ${TMPDIR:-/tmp}"
    )


def addresses(client):
    """Return the addresses of all workers by their names, which a cluster gives again when one is gone."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return {str(worker["name"]): address for address, worker in workers.items()}


def are_gone(client, victims):
    """Whether none of these addresses is a worker's."""
    return set(victims).isdisjoint(addresses(client).values())


@contextmanager
def two_jobs(folder, **options):
    """A cluster of dask-jobqueue that keeps two jobs running, of one worker each, with TLS."""
    from dask_jobqueue import SLURMCluster  # noqa: PLC0415 - of an extra

    with (
        # after which a job is missed, and another is submitted
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"}),
        SLURMCluster(
            queue="debug",
            cores=1,
            processes=1,
            memory="1GB",
            walltime="00:10:00",
            interface="lo",
            protocol="tls://",
            security=Security.temporary(),
            local_directory=str(folder),
            log_directory=str(folder),
            shared_temp_directory=str(folder),
            scheduler_options={"dashboard_address": ":0"},
            **options,
        ) as cluster,
        Client(cluster) as client,
    ):
        cluster.adapt(minimum_jobs=2, maximum_jobs=2)
        client.wait_for_workers(2, timeout=LONGEST)
        yield cluster, client


@pytest.fixture(scope="module", autouse=True)
def limited(_slurm, tmp_path_factory):
    """A client of two jobs, and the number of the one whose time is to run out; they begin with the first test."""
    folder = tmp_path_factory.mktemp("limited")
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        wrapped = ("--time=30", "--wrap", worker_command(cluster.scheduler_address))
        short, long = (submitted(folder, *wrapped) for _ in range(2))
        yield client, short
        said("scancel", short, long)


@pytest.mark.parametrize(
    ("n_jobs", "recipe", "backend"), [(1, "fdp-tr-newton", "comms"), (2, "dp-ebm", "tasks")]
)
def test_jobs_are_cancelled(n_jobs, recipe, backend, undisturbed, tmp_path, record_property):
    with two_jobs(tmp_path) as (cluster, client):
        before = {name: job.job_id for name, job in cluster.workers.items()}
        at = addresses(client)
        assert len(before) == len(at) == 2

        def cancel():
            victims = sorted(before.items())[:n_jobs]
            said("scancel", *(job for _, job in victims))
            assert comes_true(lambda: are_gone(client, [at[name] for name, _ in victims]))
            return f"{n_jobs} of 2 jobs cancelled"

        fault = Fault(recipe, cancel)
        disturbed(tmp_path, recipe, backend, fault, **WAIT)
        assert comes_true(lambda: len(addresses(client)) == 2)
        new = {job.job_id for job in cluster.workers.values()} - set(before.values())
        assert len(new) >= n_jobs
    fault.seen += f", {len(new)} came instead"
    check(tmp_path, undisturbed(recipe), fault, record_property)


def test_workers_end_before_their_jobs_do(undisturbed, tmp_path, record_property):
    lifetime = ["--lifetime", "15s", "--lifetime-stagger", "2s"]
    with two_jobs(tmp_path, worker_extra_args=lifetime) as (_cluster, client):
        first = addresses(client).values()

        def outlive():
            assert comes_true(lambda: are_gone(client, first))
            return "all workers reached their --lifetime, jobs came instead"

        fault = Fault("dp-ebm", outlive)
        disturbed(tmp_path, "dp-ebm", "tasks", fault, **WAIT)
    check(tmp_path, undisturbed("dp-ebm"), fault, record_property)


def test_an_array_of_workers_comes_late(undisturbed, tmp_path, record_property):
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        wrapped = ("--wrap", worker_command(cluster.scheduler_address))
        # the first in a moment, so that the fit waits for it; the others when they are let go
        first = submitted(tmp_path, "--begin=now+3", *wrapped)
        others = submitted(tmp_path, "--array=1-3", "--hold", *wrapped)
        assert not addresses(client)

        def come():
            said("scontrol", "release", others)
            assert comes_true(lambda: len(addresses(client)) == 4)
            said("scancel", first)
            assert comes_true(lambda: len(addresses(client)) == 3)
            return "the fit waited for its first worker; an array of 3 came, and the first was cancelled"

        fault = Fault("auto", come)
        disturbed(tmp_path, "auto", "tasks", fault, **WAIT)
        said("scancel", others)
    check(tmp_path, undisturbed("auto"), fault, record_property)


# ---- ci/hpc/submit.sh ------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path):
    """A folder with rows, their schema and a ledger, from which a user submits."""
    x, y = rows()
    lines = [f"{a},{b},{c},{label}" for (a, b, c), label in zip(x, y, strict=True)]
    (tmp_path / "people.csv").write_text("\n".join(["a,b,c,label", *lines]))
    facts = SCHEMA.to_dict()
    facts["target"]["name"] = "label"
    (tmp_path / "people.schema.json").write_text(json.dumps(facts))
    ledger_in(tmp_path).open_account("people", epsilon=3.0, delta=1e-5)
    return tmp_path


def submit(place, *options):
    """Submit the script as a user does; return the job's number."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DPGB_LEDGER": f"sqlite:///{place}/budget.db",
        "DPGB_INTERFACE": "lo",
    }
    fit = (
        "people.csv",
        "--schema",
        "people.schema.json",
        "--epsilon",
        "2",
        "--delta",
        "1e-6",
        "--account",
        "people",
    )
    script = (str(ROOT / "ci/hpc/submit.sh"), *fit, "--out", "model.json", "--quiet", *options)
    return submitted(place, "--ntasks=1", "--mem-per-cpu=1G", *script, cwd=place, env=environment)


def ended(place, job):
    """Wait until a job ends; return what it said."""
    assert comes_true(lambda: state_of(job) not in ("PENDING", "RUNNING", "COMPLETING"))
    return (place / f"slurm-{job}.out").read_text()


def test_a_job_is_requeued(place, record_property):
    job = submit(place, "--recipe", "dp-ebm", "--n-estimators", "50")
    book = sqlite3.connect(place / "budget.db", isolation_level=None, timeout=LONGEST)
    while True:  # a fit that has opened a sum, while it can write nothing more
        book.execute("BEGIN IMMEDIATE")
        opened = book.execute("SELECT count(*) FROM dpgb_entries WHERE kind = 'OPENED'").fetchone()[
            0
        ]
        if opened:
            break
        book.execute("ROLLBACK")
        assert state_of(job) in ("PENDING", "RUNNING"), ended(place, job)
        time.sleep(0.05)
    said("scontrol", "requeue", job)
    assert comes_true(lambda: state_of(job) == "PENDING")
    book.execute("ROLLBACK")
    book.close()
    out = ended(place, job)
    assert state_of(job) == "COMPLETED", out
    assert not (place / f"dpgb-{job}").exists()  # with the key of its connections
    ledger = ledger_in(place)
    ledger.verify()
    (fit,) = ledger.fits("people")
    assert fit.state == "RELEASED"
    assert ledger.account("people").spent == PRICE
    url = f"sqlite:///{place}/budget.db"
    verified = said(
        sys.executable, "-m", "dpgb_dask", "verify", "model.json", "--ledger", url, cwd=place
    )
    assert "bit for bit" in verified
    record_property(
        "saw", f"requeued after {opened} rounds, resumed; 1 charge; computed again: same bits"
    )


def test_a_job_without_a_ledger_is_told_what_to_give(place):
    job = submitted(
        place,
        f"--chdir={place}",
        str(ROOT / "ci/hpc/submit.sh"),
        env=os.environ | {"DPGB_LEDGER": ""},
    )
    out = ended(place, job)
    assert state_of(job) == "FAILED"
    assert "DPGB_LEDGER" in out
    assert "PostgreSQL" in out


# ---- last, as a minute has to pass -----------------------------------------------------------------------------------


def test_a_time_limit_is_reached(limited, undisturbed, tmp_path, record_property):
    client, short = limited
    with client.as_current():
        client.wait_for_workers(2, timeout=LONGEST)

        def end():
            # the shortest that Slurm has: a minute, most of which has passed in other tests
            said("scontrol", "update", f"JobId={short}", "TimeLimit=1")
            assert comes_true(lambda: state_of(short) == "TIMEOUT")
            assert comes_true(lambda: len(addresses(client)) == 1)
            return "Slurm ended one of 2 jobs at its time limit"

        fault = Fault("fdp-tr-newton", end)
        disturbed(tmp_path, "fdp-tr-newton", "comms", fault)
    check(tmp_path, undisturbed("fdp-tr-newton"), fault, record_property)
