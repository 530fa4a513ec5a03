"""The ledger under fire: processes that race and are killed, locks that are held, old copies, full disks."""

import contextlib
import dis
import gc
import itertools
import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from controller_parts import SMALL, ListJournal, ledger_at, query, raw, reserve
from postgres_parts import as_role, new_database
from sqlalchemy import create_engine, text
from waiting import LONGEST, comes_true

from dpgb_dask.controller import ledger as ledger_module
from dpgb_dask.controller import ledger_connections
from dpgb_dask.controller.accounting import total_price
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.errors import BudgetExceededError, LedgerError, LedgerUnavailableError

CAP = total_price(3.0, 1e-6)
PRICE = total_price(SMALL.epsilon, SMALL.delta)
TABLES = ("dpgb_accounts", "dpgb_fits", "dpgb_entries", "dpgb_head")
RACERS = 8
FEW = 3  # fits of each of four that are sure to be killed: the account has room for more
NOP = dis.opmap["NOP"]
ROLES = ("owner", "analyst")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def url(request, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/budget.db"
    else:
        with new_database() as address:
            yield address


@pytest.fixture(params=["sqlite", *(pytest.param(k, marks=pytest.mark.services) for k in ROLES)])
def any_url(request, tmp_path, monkeypatch):
    """An address as `url`, or that of an analyst who may charge the account "a"."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/budget.db"
        return
    roles = [f"{who}_{uuid.uuid4().hex[:8]}" for who in ROLES]
    with new_database(roles) as address:
        owner, analyst = (as_role(address, role) for role in roles)
        if request.param == "owner":
            yield owner
        else:
            ledger_at(owner, str(tmp_path)).grant("analyst", roles[1])
            yield analyst


def told_by(folder):
    return [
        json.loads(line) for path in folder.glob("told*") for line in path.read_text().splitlines()
    ]


def check_books(ledger, told):
    """Check that accounts follow from entries, and that every answer was opened and paid for before it was let out."""
    ledger.verify()
    entries = ledger.history("a")
    reserved = {entry.fit_id for entry in entries if entry.kind == "RESERVED"}
    opened = {entry.fit_id: int(entry.body["price"]) for entry in entries if entry.kind == "OPENED"}
    assert {fit_id for fit_id, _ in told} <= opened.keys() <= reserved
    assert all(opened[fit_id] == price for fit_id, price in told)
    assert ledger.account("a").spent == PRICE * len(reserved) <= CAP
    return reserved


def test_racing_processes_are_granted_the_cap_exactly(forks, any_url, tmp_path):
    """The database does not exist when they start."""
    racers = [
        forks.start(
            "controller_parts:spend_all", any_url, str(tmp_path), str(tmp_path / f"told{k}")
        )
        for k in range(RACERS)
    ]
    (tmp_path / "go").touch()
    assert [forks.wait(pid) for pid in racers] == [0] * RACERS
    told = told_by(tmp_path)
    reserved = check_books(ledger_at(any_url, str(tmp_path)), told)
    assert len(told) == len(reserved) == CAP // PRICE > RACERS
    assert reserved == {fit_id for fit_id, _ in told}  # no grant is lost


def test_a_new_database_that_another_process_is_writing_is_waited_for(tmp_path):
    """SQLite does not wait here by itself, so one of several processes that start together would fail."""
    other = sqlite3.connect(tmp_path / "budget.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, other.execute, ("COMMIT",))
    timer.start()
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("a", epsilon=1.0, delta=1e-6)
    timer.join()
    other.close()
    assert ledger.account("a").spent == 0


def test_processes_killed_in_a_race_leave_no_answer_unpaid(
    forks, any_url, tmp_path, record_property
):
    rng, kills, grants = np.random.default_rng(2), 0, 0
    (tmp_path / "go").touch()
    ledger = ledger_at(any_url, str(tmp_path))
    for attempt in range(6):
        racers = [
            forks.start(
                "controller_parts:spend_all",
                any_url,
                str(tmp_path),
                str(tmp_path / f"told{attempt} {k}"),
                None if attempt else FEW,
            )
            for k in range(4)
        ]
        time.sleep(rng.uniform(0.01, 0.06))
        for pid in racers:
            time.sleep(rng.uniform(0.0, 0.01))
            os.kill(pid, signal.SIGKILL)
        kills += sum(forks.wait(pid) == -signal.SIGKILL for pid in racers)
        reserved = check_books(ledger, told_by(tmp_path))
        if len(reserved) == CAP // PRICE:
            break
        grants = len(reserved)
    assert (
        forks.run("controller_parts:spend_all", any_url, str(tmp_path), str(tmp_path / "told")) == 0
    )
    assert kills
    told = told_by(tmp_path)
    assert len(check_books(ledger, told)) == CAP // PRICE
    for fit_id in check_books(ledger, told):
        ledger.settle(fit_id)  # the charge never falls below what was let out
    ledger.verify()
    assert ledger.account("a").spent >= sum(price for _, price in told)
    record_property(
        "saw", f"{kills} processes killed, {grants} fits charged meanwhile, books right"
    )


def test_a_restored_old_copy_is_refused(url, tmp_path):
    ledger = ledger_at(url, str(tmp_path))
    reserve(ledger, budget=SMALL)
    old = save(url, tmp_path)
    reserve(ledger, budget=SMALL)
    restore(url, tmp_path, old)
    # the process that charged, and another that reads the head kept beside it
    for known in (ledger, Ledger(url)):
        for act in (known.accounts, lambda known=known: reserve(known, budget=SMALL)):
            with pytest.raises(LedgerError, match="older than its newest known head"):
                act()


def save(url, tmp_path):
    """Copy a ledger, as a backup would; return what `restore` needs."""
    if url.startswith("sqlite"):
        shutil.copytree(tmp_path, copy := tmp_path.with_name(tmp_path.name + " copy"))
        return copy
    engine = create_engine(url)
    with engine.begin() as connection:
        for table in TABLES:
            connection.execute(text(f"CREATE TABLE old_{table} AS TABLE {table}"))
    engine.dispose()
    return None


def restore(url, tmp_path, old):
    if old is not None:
        for name in ("budget.db", "budget.db-wal", "budget.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
            if (old / name).exists():
                shutil.copy(old / name, tmp_path / name)
        return
    engine = create_engine(url)
    with engine.begin() as connection:
        for table in TABLES:
            connection.execute(text(f"TRUNCATE {table}"))
            connection.execute(text(f"INSERT INTO {table} SELECT * FROM old_{table}"))
    engine.dispose()


@pytest.mark.slow
def test_a_lock_that_is_held_is_waited_for_and_then_said(forks, url, tmp_path, monkeypatch):
    for module in (ledger_module, ledger_connections):
        monkeypatch.setattr(module, "WAIT_SECONDS", 1.0)
    ledger = ledger_at(url, str(tmp_path))
    fit = reserve(ledger, budget=SMALL)
    fit.bind(1)
    pid = forks.start("controller_parts:hold_lock", url, str(tmp_path))  # it waits for 60 s
    assert comes_true((tmp_path / "holding").exists)
    for act, standing in (
        (lambda: reserve(ledger, budget=SMALL), "Nothing was"),
        (lambda: fit.release(query(), raw()), "what is charged stands"),
        (fit.finish, "what is charged stands"),
    ):
        with pytest.raises(
            LedgerUnavailableError, match=rf"(?s)lock.*{standing}.*no other process"
        ):
            act()
    os.kill(pid, signal.SIGKILL)  # in the middle of its transaction
    forks.wait(pid)
    fit.release(query(), raw())
    fit.finish()
    ledger.verify()
    assert [a.name for a in ledger.accounts()] == ["a"]
    assert ledger.account("a").spent == PRICE


def test_a_process_that_stands_still_loses_its_transaction(tmp_path, monkeypatch):
    """On a server, others would otherwise wait for as long as it stands still."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(ledger_module, "WAIT_SECONDS", 1.0)
    with new_database() as url:
        stopped, other = ledger_at(url, str(tmp_path)), ledger_at(url, str(tmp_path))
        with contextlib.ExitStack() as stack:
            book = stack.enter_context(stopped._transaction())
            book.append("OPEN", "never", "", {})
            assert [a.name for a in other.accounts()] == ["a"]  # who only reads does not wait
            other.open_account("b", epsilon=1.0, delta=1e-6)
            with pytest.raises(LedgerUnavailableError):
                stack.close()
        assert reserve(stopped, budget=SMALL).total == PRICE
        stopped.verify()


test_a_process_that_stands_still_loses_its_transaction.pytestmark = [pytest.mark.services]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a megabyte that can be filled, and made read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("NO ROOT: a file system cannot be mounted")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder):
    """Fill a disk to the last byte; return how to make room."""
    path = folder / "filler"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return path.unlink


def make_read_only(folder):
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    return lambda: subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


@pytest.mark.hpc
@pytest.mark.parametrize("spoil", [fill, make_read_only])
def test_a_disk_that_takes_nothing_lets_nothing_out(small_disk, spoil):
    ledger = Ledger(f"sqlite:///{small_disk}/budget.db")
    ledger.open_account("a", epsilon=3.0, delta=1e-6)
    journal = ListJournal()
    fit = reserve(ledger, budget=SMALL, journal=journal)
    steps = [
        lambda: reserve(ledger, budget=SMALL),
        lambda: fit.bind(1),
        lambda: fit.release(query(), raw()),
        fit.finish,
        lambda: ledger.settle(other.fit_id),
    ]
    other = reserve(ledger, budget=SMALL)
    for step in steps:
        ledger._engine.dispose()  # what is open for writing cannot be made read-only
        mend = spoil(small_disk)
        released = len(journal.kept)
        with pytest.raises(LedgerUnavailableError):
            step()
        assert len(journal.kept) == released
        mend()
        ledger.verify()
        step()
    assert [e.kind for e in ledger.history("a") if e.fit_id == fit.fit_id] == [
        "RESERVED", "BOUND", "OPENED", "RELEASED",
    ]  # fmt: skip
    assert ledger.account("a").spent == 2 * PRICE


def test_budget_exceeded_is_no_failure_of_the_ledger(any_url, tmp_path):
    ledger = ledger_at(any_url, str(tmp_path))
    for _ in range(CAP // PRICE):
        reserve(ledger, budget=SMALL)
    with pytest.raises(BudgetExceededError):
        reserve(ledger, budget=SMALL)
    assert not list(tmp_path.rglob("head.*"))
    assert len(list(tmp_path.rglob("*.key"))) == CAP // PRICE


# ---- Ctrl-C and forks ------------------------------------------------------------------------------------------------


def interrupted(act, at):
    """Press Ctrl-C at the ``at``-th line of Python that a call runs; return whether it got that far.

    Lines of Python's `logging` do not count: it takes its one lock a line before the ``try`` that gives it back, and
    Ctrl-C between the two stops every later use of it. Nor do lines that do nothing, as the word ``try``: no Ctrl-C is
    noticed there, and an exception that a tracer raises there passes by the ``with`` around them.

    It runs in a thread of its own: if a line of an exception handler is interrupted, the exception that Python was
    handling stays with the thread, and would become the context of every later error of the tests.
    """
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(_interrupted, act, at).result()


def _interrupted(act, at):
    lines = itertools.count()
    pressed = []

    def trace(frame, event, _argument):
        if frame.f_code.co_filename == logging.__file__:
            return None
        nothing = frame.f_code.co_code[frame.f_lasti] == NOP
        if event == "line" and not nothing and next(lines) == at:
            sys.settrace(None)
            pressed.append(True)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()  # of a debugger, or of coverage
    # what is cut short is left to this thread, which holds its locks: garbage may be found by another, which cannot
    gc.disable()
    try:
        sys.settrace(trace)
        act()
    except KeyboardInterrupt:
        pass
    except (AssertionError, AttributeError) as error:
        # SQLAlchemy's own, over a transaction whose beginning or commit was cut short
        if not any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error)):
            raise
    finally:
        sys.settrace(before)
        gc.collect(0)
        gc.enable()
    return bool(pressed)


def _causes(error):
    """All that Python was handling when an error was raised."""
    while (error := error.__context__) is not None:
        yield error


def lines_of_sqlalchemy(test):
    """Leave what SQLAlchemy says of a commit that is cut short in its own lines, and what is lost in a callback."""
    for ignored in (
        "ignore:transaction already deassociated",
        "ignore::pytest.PytestUnraisableExceptionWarning",
    ):
        test = pytest.mark.filterwarnings(ignored)(test)
    return test


def check_unlocked(ledger, path):
    """Check that neither another process nor another thread, nor this one, has to wait for a ledger."""
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.close()
    thread = threading.Thread(target=ledger.accounts, daemon=True)
    thread.start()
    thread.join(LONGEST)
    assert not thread.is_alive()
    # a new thread may have the number of one that has ended, and would pass for it
    assert ledger._lock.acquire(timeout=LONGEST)
    ledger._lock.release()


@lines_of_sqlalchemy
@pytest.mark.parametrize(
    ("first", "step"),
    [
        (False, 212),
        (True, 524),
        pytest.param(False, 53, marks=pytest.mark.slow),
        pytest.param(True, 131, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_anywhere_leaves_no_lock(tmp_path, first, step):
    """Ctrl-C at lines all over a transaction that writes, also of the first one, which opens the ledger."""
    path = tmp_path / "budget.db"
    ledger = ledger_at(f"sqlite:///{path}", str(tmp_path))
    names = iter(range(10**6))

    def act():
        opened = Ledger(f"sqlite:///{path}") if first else ledger
        opened.open_account(f"account {next(names)}", epsilon=1.0, delta=1e-6)

    act()
    seen, at = 0, 0
    while interrupted(act, at):
        check_unlocked(ledger, path)
        seen, at = seen + 1, at + step
    assert seen > 4
    ledger.verify()
    assert not list(tmp_path.rglob("head.*"))


@lines_of_sqlalchemy
@pytest.mark.parametrize("step", [701, pytest.param(151, marks=pytest.mark.slow)])
def test_ctrl_c_while_a_fit_is_charged_charges_once_or_not_at_all(tmp_path, step):
    path = tmp_path / "budget.db"
    ledger = ledger_at(f"sqlite:///{path}", str(tmp_path))
    reserve(ledger, budget=SMALL)
    fits, at = 1, 0
    while interrupted(lambda: reserve(ledger, budget=SMALL), at):
        check_unlocked(ledger, path)
        charged, fits = ledger.account("a").spent - fits * PRICE, len(ledger.fits("a"))
        assert charged in (0, PRICE)
        if fits == CAP // PRICE:
            break
        at += step
    assert fits > 1 or step > 200  # only the last 900 lines or so are behind the charge
    assert at > 4 * step
    ledger.verify()
    kept = {file.stem for file in Ledger(f"sqlite:///{path}").directory.glob("*.key")}
    assert kept == {fit.fit_id for fit in ledger.fits("a")}


def test_a_fork_while_another_thread_holds_the_ledger_goes_on(forks, any_url, tmp_path):
    """The child does not have that thread, so nobody would ever release the lock."""
    assert forks.run("controller_parts:fork_while_held", any_url, str(tmp_path)) == 0
    assert len(Ledger(any_url).fits("a")) == 3
