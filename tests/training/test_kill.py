"""The controlling process is killed by ``kill -9`` at any moment: resume gives the same model with one charge."""

import contextlib
import gc
import json
import math
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from distributed import LocalCluster
from small_fits import FIT_ID, ledger_in
from thinned import thinned
from waiting import comes_true

from dpgb_dask.contracts.spending import Spending
from dpgb_dask.controller.accounting import ALONE, total_price

PRICE = total_price(2.0, 1e-6)
RECIPES = ["fdp-tr-newton", "auto", "dp-ebm"]


@pytest.fixture(scope="module", params=thinned(RECIPES, every=3))
def recipe(request):
    return request.param


@pytest.fixture(scope="module")
def undisturbed(recipe, forks, tmp_path_factory):
    """The model of a fit that nothing disturbs, the names of its steps, and the seconds it takes."""
    forks.warm("small_fits:warm", recipe)
    folder = tmp_path_factory.mktemp("undisturbed")
    began = time.monotonic()
    assert forks.run("small_fits:fit", str(folder), recipe) == 0
    seconds = time.monotonic() - began
    steps = json.loads((folder / "steps.json").read_text())
    return (folder / "model.json").read_bytes(), steps, seconds


def journal_of(folder):
    return ledger_in(folder).journal_path(FIT_ID)


def check_account(folder):
    """Check that the account is not below what was released, and return its entries of the fit."""
    ledger = ledger_in(folder)
    ledger.verify()
    entries = [entry for entry in ledger.history("people") if entry.fit_id]
    opened = [entry.body for entry in entries if entry.kind == "OPENED"]
    lines = journal_of(folder).read_text().split("\n")[:-1] if journal_of(folder).exists() else []
    released = [json.loads(line)["receipt"] for line in lines]
    # every answer of the journal is a round that was opened before, and the fit is charged as a whole
    assert [r["query_id"] for r in released] == [o["query_id"] for o in opened][: len(released)]
    assert ledger.account("people").spent == (PRICE if entries else 0)
    return [entry.kind for entry in entries]


def check_settled(folder, recipe):
    """Settle a copy of the fit: it costs what it opened (with choices 11/7 of it) and no more, and its key is gone."""
    copy = folder.with_name(folder.name + " settled")
    shutil.copytree(folder, copy)
    ledger = ledger_in(copy)
    entries = ledger.history("people")
    spending = Spending()
    for entry in entries:
        if entry.kind == "OPENED":
            spending = spending.plus(int(entry.body["price"]), None)
    opened = min(math.ceil(spending.spent * (ALONE if recipe == "auto" else 1)), PRICE)
    charge = ledger.settle(FIT_ID)
    assert charge == (PRICE if entries[-1].kind == "RELEASED" else opened)
    assert ledger.account("people").spent == charge == ledger.settle(FIT_ID)
    assert not list(ledger.directory.glob("*.key"))
    ledger.verify()
    shutil.rmtree(copy)


def check_ended(folder, model):
    """Check that the fit ended with the model of an undisturbed one, on one charge, and left no key."""
    assert (folder / "model.json").read_bytes() == model
    kinds = check_account(folder)
    assert kinds[-1] == "RELEASED"
    assert kinds.count("RESERVED") == kinds.count("RELEASED") == 1
    assert not list(folder.rglob("*.key"))


def kill_and_resume(forks, folder, recipe, at, model):
    """Kill a fit at a step, check what is left, resume it."""
    folder.mkdir()
    assert forks.run("small_fits:fit", str(folder), recipe, at) == -signal.SIGKILL
    if not check_account(folder):  # nothing is charged, so there is nothing to resume
        return "nothing charged"
    check_settled(folder, recipe)
    assert forks.run("small_fits:fit", str(folder), recipe, -1, FIT_ID) == 0
    check_ended(folder, model)
    return "same model, one charge"


def some_of(recipe, steps):
    """Number steps to try by default: of one recipe every fourth kind of step once, of the others one."""
    if recipe == "fdp-tr-newton":
        kinds = {name: at for at, name in enumerate(steps) if not name.startswith("open")}
        return sorted(kinds.values())[::4]
    return [len(steps) // 2]


def test_killed_at_a_durable_step(forks, recipe, undisturbed, tmp_path, record_property):
    model, steps, _ = undisturbed
    for at in some_of(recipe, steps):
        seen = kill_and_resume(forks, tmp_path / str(at), recipe, at, model)
        record_property("saw", f"{recipe}: killed at {steps[at]!r}, {at} of {len(steps)}: {seen}")


@pytest.mark.slow
def test_killed_at_every_kind_of_durable_step(
    forks, recipe, undisturbed, tmp_path, record_property
):
    model, steps, _ = undisturbed
    kinds = {name: at for at, name in enumerate(steps)}
    # a query repeats its nine steps: every fourth one meets each of them
    tried = sorted({*kinds.values(), *range(0, len(steps), 14 if recipe == "auto" else 4)})
    seen = [kill_and_resume(forks, tmp_path / str(at), recipe, at, model) for at in tried]
    record_property(
        "saw", f"{recipe}: killed at {len(seen)} of {len(steps)} steps, every kind: {set(seen)}"
    )


def test_killed_again_and_again(forks, recipe, undisturbed, tmp_path, record_property):
    """Each attempt goes on where the last one was killed, at a step that is new to it."""
    model, steps, _ = undisturbed
    at, kills, resume = 17, 0, None
    while (code := forks.run("small_fits:fit", str(tmp_path), recipe, at, resume)) != 0:
        assert code == -signal.SIGKILL
        check_account(tmp_path)
        resume, kills, at = FIT_ID, kills + 1, 5 + len(steps) // 5 + 2 * kills
    check_ended(tmp_path, model)
    assert kills >= 3
    record_property("saw", f"{recipe}: killed {kills} times in a row: same model, one charge")


def kill_at_random_times(forks, folder, recipe, seconds, rng):
    """Kill attempts after random times until one ends; return how many were killed."""
    ledger_in(folder).open_account("people", epsilon=3.0, delta=1e-5)
    kills, resume = 0, None
    while True:
        pid = forks.start("small_fits:fit", str(folder), recipe, -1, resume)
        if kills < 6:
            time.sleep(rng.uniform(0.2, 1.0) * seconds)
            os.kill(
                pid, signal.SIGKILL
            )  # of a process that ended: not waited for yet, so still ours
        if (code := forks.wait(pid)) == 0:
            return kills
        assert code == -signal.SIGKILL
        kills += 1
        resume = FIT_ID if check_account(folder) else None


def kill_fits_at_random_times(forks, folder, recipe, seconds, n_kills, seed):
    """Run fits that are killed at random times, until some were: sooner where a fit ended before its time came."""
    rng, kills = np.random.default_rng(seed), 0
    for trial in range(20):
        own = folder / str(trial)
        own.mkdir()
        killed = kill_at_random_times(forks, own, recipe, seconds, rng)
        yield own
        kills += killed
        if kills >= n_kills:
            return
        seconds *= 1.0 if killed else 0.6
    raise AssertionError(f"{kills} kills in 20 fits")


def test_killed_at_random_times(forks, recipe, undisturbed, tmp_path, record_property):
    model, _, seconds = undisturbed
    for folder in kill_fits_at_random_times(forks, tmp_path, recipe, seconds, 1, seed=7):
        check_ended(folder, model)
    record_property("saw", f"{recipe}: killed at random: same model, one charge")


@pytest.mark.slow
def test_killed_at_many_random_times(forks, recipe, undisturbed, tmp_path, record_property):
    model, _, seconds = undisturbed
    for folder in kill_fits_at_random_times(forks, tmp_path, recipe, seconds, 20, seed=11):
        check_ended(folder, model)
    record_property("saw", f"{recipe}: killed 20 times at random: same model, one charge")


def test_a_fit_that_ended_gives_its_model_again(forks, recipe, undisturbed, tmp_path):
    """The process was killed when the fit had ended, and before its model was saved."""
    model, steps, _ = undisturbed
    at = steps.index("commit RELEASED, after")
    assert forks.run("small_fits:fit", str(tmp_path), recipe, at) == -signal.SIGKILL
    for _ in range(2):
        assert forks.run("small_fits:fit", str(tmp_path), recipe, -1, FIT_ID) == 0
        check_ended(tmp_path, model)
        (tmp_path / "model.json").unlink()
    # nothing more is written: a key is looked for, and gone
    assert json.loads((tmp_path / "steps.json").read_text()) == ["open key, before"]


@pytest.mark.parametrize("limit", thinned([1 << 15, 1 << 12, 3 << 15, 5 << 15], every=4))
def test_a_full_disk(forks, recipe, limit, undisturbed, tmp_path, record_property):
    """SQLite, journal and head find no room, wherever that happens to be; resumed once there is."""
    model, _, _ = undisturbed
    ledger_in(tmp_path).open_account("people", epsilon=3.0, delta=1e-5)
    assert forks.run("small_fits:fit_on_full_disk", str(tmp_path), recipe, limit) == 0
    entries = check_account(tmp_path)
    seen = "the fit ended"
    if not (tmp_path / "model.json").exists():
        told = (tmp_path / "refused.txt").read_text()
        assert (f"resume='{FIT_ID}'" in told) == bool(entries)
        resume = FIT_ID if entries else None
        assert forks.run("small_fits:fit", str(tmp_path), recipe, -1, resume) == 0
        seen = f"refused with {len(entries)} entries, then the same model"
    assert seen != "the fit ended" or limit > 1 << 15
    check_ended(tmp_path, model)
    record_property("saw", f"{recipe}: files of at most {limit} bytes: {seen}")


@pytest.mark.parametrize("together", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_processes_that_resume_one_fit_together(
    forks, recipe, together, undisturbed, tmp_path, record_property
):
    """The last to take the lease ends the fit; the others stop, and what they wrote is the same."""
    model, steps, _ = undisturbed
    at = steps.index("commit BOUND, after")
    assert forks.run("small_fits:fit", str(tmp_path), recipe, at) == -signal.SIGKILL
    call = ("small_fits:fit", str(tmp_path), recipe, -1, FIT_ID)
    codes = [forks.wait(pid) for pid in [forks.start(*call) for _ in range(together)]]
    assert set(codes) <= {0, 1}
    assert 0 in codes
    check_ended(tmp_path, model)
    assert forks.run(*call) == 0  # the journal is whole
    check_ended(tmp_path, model)
    record_property("saw", f"{recipe}: resumed by {together} at once: {codes.count(0)} ended it")


@pytest.fixture
def cluster(tmp_path):
    """A scheduler and two workers in this process, which outlive the processes that fit on them."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        dashboard_address=":0",
        local_directory=str(tmp_path / "workers"),
    ) as started:
        yield started


def held_by(cluster, folder):
    """Return what a cluster holds for its clients: tasks, data of the workers, open scratch files."""
    gc.collect()
    tasks = len(cluster.scheduler.tasks)
    data = sum(len(worker.data) for worker in cluster.workers.values())
    scratch = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            target = os.readlink(link)  # a scratch file has no name
            scratch += target.startswith(str(folder / "workers")) and target.endswith("(deleted)")
    return tasks, data, scratch


@pytest.mark.slow
def test_killed_beside_a_cluster_that_lives_on(
    forks, recipe, undisturbed, cluster, tmp_path, record_property
):
    """The cluster lets go of all that the dead fit held there, and serves the resumed one, by either back end."""
    model, steps, _ = undisturbed
    call = ("small_fits:fit_on_cluster", str(tmp_path), recipe, cluster.scheduler_address)
    seen = []
    # dp-ebm has codes once its bins are released: in a fit as short as this one that is after its middle
    first = 3 * len(steps) // 5 if recipe == "dp-ebm" else len(steps) // 2
    for backend, at, resume in (("tasks", first, None), ("comms", len(steps) // 3, FIT_ID)):
        pid = forks.start(*call, backend, at, resume)
        assert comes_true((tmp_path / "still").exists)
        # what the workers were told before the fit stood still may be on its way
        assert comes_true(lambda: all(held_by(cluster, tmp_path)))
        seen.append(held_by(cluster, tmp_path))
        os.kill(pid, signal.SIGKILL)
        assert forks.wait(pid) == -signal.SIGKILL
        (tmp_path / "still").unlink()
        check_account(tmp_path)
        assert comes_true(lambda: not any(held_by(cluster, tmp_path)))
    assert forks.run(*call, "tasks", -1, FIT_ID) == 0
    check_ended(tmp_path, model)
    record_property(
        "saw",
        f"{recipe}: controller killed while the cluster held {seen} (tasks, data, scratch files), then"
        " nothing: same model, one charge",
    )
