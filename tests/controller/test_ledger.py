import contextlib
import copy
import errno
import gc
import math
import os
import pickle
import pwd
import shutil
import sqlite3
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from controller_parts import ListJournal, query, raw, reserve
from faults import Steps, fill_disk, interrupt
from sklearn.base import clone
from thinned import thinned

from dpgb_dask.contracts.plan import Budget
from dpgb_dask.controller import ledger as ledger_module
from dpgb_dask.controller import ledger_book, ledger_connections, ledger_files
from dpgb_dask.controller.accounting import total_price
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.ledger_book import CHOICES, Opened
from dpgb_dask.controller.noise import write_key
from dpgb_dask.errors import (
    BudgetExceededError,
    DPGBError,
    LargeDeltaWarning,
    LedgerError,
    LedgerUnavailableError,
    PlanError,
    ResumeError,
)

FIT = total_price(1.0, 1e-6)
CAP = total_price(3.0, 1e-6)


def backup(url, to):
    """Copy a ledger's database file, as an operator's backup would."""
    source, target = sqlite3.connect(url.removeprefix("sqlite:///")), sqlite3.connect(to)
    source.backup(target)
    source.close()
    target.close()


def change(url, statement):
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_open_account_twice_changes_nothing(ledger):
    reserve(ledger)
    ledger.open_account("a", epsilon=3, delta=1e-6)
    assert ledger.account("a").spent == FIT
    with pytest.raises(LedgerError, match="another cap"):
        ledger.open_account("a", epsilon=4.0, delta=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"delta": 1.0},
        {"delta": 0.0},
        {"epsilon": 1e-9, "delta": 1e-9},
        {"epsilon": 500.0},
    ],
)
def test_open_account_refuses_a_cap(ledger, wrong):
    with pytest.raises(PlanError):
        ledger.open_account("b", **({"epsilon": 1.0, "delta": 1e-6} | wrong))
    assert [a.name for a in ledger.accounts()] == ["a", "pure"]


def test_open_account_refuses_name_and_analysis(ledger):
    with pytest.raises(LedgerError, match="analysis='pld'"):
        ledger.open_account("b", epsilon=1.0, delta=1e-6, analysis="pld")
    with pytest.raises(LedgerError, match="1 to 200"):
        ledger.open_account("", epsilon=1.0, delta=1e-6)


def test_an_account_of_a_large_delta_is_said_to_promise_little(ledger):
    with pytest.warns(LargeDeltaWarning, match=r"delta=0\.1 is the chance"):
        ledger.open_account("large", epsilon=1.0, delta=0.1)
    ledger.open_account("b", epsilon=1.0, delta=0.1, analysis="pure")  # which needs none


@pytest.mark.parametrize("name", [" people", "people ", "people\n"])
def test_no_account_is_one_more_by_a_blank_alone(ledger, name):
    with pytest.raises(LedgerError, match="begins or ends with a blank"):
        ledger.open_account(name, epsilon=1.0, delta=1e-6)


def test_cap_is_rounded_down_and_charged_exactly(ledger):
    assert ledger.account("a").cap == CAP
    assert ledger.remaining("a") == 3.0
    reserve(ledger)
    left = ledger.remaining("a")
    assert left == pytest.approx(2.7708, abs=1e-3)
    assert total_price(left, 1e-6) <= CAP - FIT
    assert ledger.account("a").left == CAP - FIT


def test_budget_exceeded_says_what_would_fit(ledger):
    for _ in range(CAP // FIT):
        reserve(ledger)
    before = ledger.history("a")
    with pytest.raises(BudgetExceededError) as info:
        reserve(ledger)
    lines = [line.split() for line in str(info.value).splitlines()]
    amounts = {line[0]: float(line[1]) for line in lines[1:4]}
    assert amounts["requested"] - amounts["remaining"] == pytest.approx(
        amounts["difference"], abs=2e-9
    )
    assert "'a'" in str(info.value)
    fits = float(lines[4][2].removeprefix("epsilon="))
    assert fits == pytest.approx(ledger.remaining("a"), rel=1e-5)
    assert ledger.history("a") == before
    reserve(ledger, budget=type(reserve().budget)(epsilon=fits * 0.9999, delta=1e-6))


def test_unknown_account_and_fit(ledger):
    with pytest.raises(LedgerError, match=r"'b' is not in the ledger. It has: \['a', 'pure'\]"):
        ledger.remaining("b")
    with pytest.raises(LedgerError, match="fit_id='x' is not"):
        ledger.settle("x")


@pytest.mark.parametrize("name", [2026, 2026.0, np.int64(2026), ["2026"], ("2026",), b"2026", None])
def test_what_is_no_text_names_no_account_and_no_fit(ledger, name):
    """SQLite finds an account for a number; its entries then seem to be missing, as after a change by hand."""
    ledger.open_account("2026", epsilon=3.0, delta=1e-6)
    for call in (ledger.account, ledger.remaining, ledger.history, ledger.fits):
        with pytest.raises(LedgerError, match=r"is not in the ledger. It has: \['2026', "):
            call(name)
    if name is not None:
        with pytest.raises(LedgerError, match=r"is not in the ledger\. It has"):
            reserve(ledger, account=name)
    for call in (ledger.record, ledger.settle):
        with pytest.raises(LedgerError, match=r"fit_id=.* is not in the ledger"):
            call(name)
    with pytest.raises(LedgerError, match="must be text"):
        ledger.open_account(name, epsilon=3.0, delta=1e-6)
    if name is not None:
        with pytest.raises(LedgerError, match="must be text"):
            ledger.open_account("units", epsilon=3.0, delta=1e-6, unit_id=name)
    assert ledger.verify()


@pytest.mark.parametrize("shared", [True, False])
def test_racing_threads_are_granted_the_cap_exactly(ledger, url, shared):
    barrier = threading.Barrier(8)
    granted, refused, other = [], [], []

    def race():
        mine = ledger if shared else Ledger(url)
        barrier.wait()
        for _ in range(2):
            try:
                granted.append(reserve(mine).fit_id)
            except BudgetExceededError:
                refused.append(1)
            except Exception as error:
                other.append(error)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not other
    assert len(granted) == CAP // FIT == 7
    assert len(refused) == 9
    assert ledger.account("a").spent == 7 * FIT
    ledger.verify()


@pytest.mark.slow
def test_two_processes_share_one_account(ledger, url):
    code = (
        "import sys; from controller_parts import reserve\n"
        "from dpgb_dask.controller.ledger import Ledger\n"
        "reserve(Ledger(sys.argv[1]))"
    )
    root = Path(__file__).parents[1]  # controller_parts.py
    path = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-P", "-c", code, url], check=True, env=path)
    reserve(ledger)
    assert ledger.account("a").spent == 2 * FIT
    ledger.verify()


def test_crash_after_reserve_leaves_the_charge(ledger, url):
    reserve(ledger)
    gc.collect()
    assert Ledger(url).account("a").spent == FIT


def test_settle_charges_opened_rounds_only(ledger):
    controller = reserve(ledger)
    controller.bind(1)
    price = controller.release(query(), raw()).receipt.price
    key = ledger.key_path(controller.fit_id)
    assert key.exists()
    assert ledger.settle(controller.fit_id) == price
    assert not key.exists()
    assert ledger.account("a").spent == price
    assert ledger.settle(controller.fit_id) == price  # may be repeated
    with pytest.raises(LedgerError, match="SETTLED"):
        controller.release(query("q 2"), raw())
    with pytest.raises(LedgerError, match="SETTLED"):
        controller.finish()
    ledger.verify()


@pytest.mark.parametrize("facts", [{CHOICES: "any"}, {}])
def test_a_settled_fit_keeps_what_its_choices_cost_by_themselves(ledger, facts):
    """They were priced beside what would follow, which is given back."""
    controller = reserve(ledger, facts=facts)
    controller.bind(1)
    price = controller.release(query(), raw()).receipt.price
    stands = math.ceil(price * Fraction(11, 7)) if facts else price
    assert ledger.settle(controller.fit_id) == stands == ledger.account("a").spent
    most = reserve(ledger, facts=facts)
    most.bind(1)
    most.release(query(price=most.total * 9 // 10), raw())
    assert ledger.settle(most.fit_id) == (most.total if facts else most.total * 9 // 10)
    ledger.verify()


def test_a_fit_keeps_the_data_it_was_bound_to(ledger):
    controller = reserve(ledger)
    lease = controller._lease
    ledger.bind(controller.fit_id, lease, "tag of one data set")
    ledger.bind(controller.fit_id, lease, "tag of one data set")  # binding again changes nothing
    with pytest.raises(ResumeError, match="other data"):
        ledger.bind(controller.fit_id, lease, "tag of another")
    ledger.verify()


def test_a_round_without_a_price_is_not_opened(ledger):
    controller = reserve(ledger)
    with pytest.raises(LedgerError, match="price"):
        ledger.open_round(
            controller.fit_id,
            controller._lease,
            0,
            Opened("q", "s"),
            query(price=0),
        )


def test_a_round_is_opened_once_whoever_asks(ledger):
    """A forked controller has the same lease and key, but counts its own spending only."""
    controller = reserve(ledger)
    controller.bind(1)

    def opened(position, seal="s", price=1):
        ledger.open_round(
            controller.fit_id,
            controller._lease,
            position,
            Opened(f"q {position}", seal),
            query(price=price),
        )

    opened(0)
    opened(1)
    before = ledger.history("a")
    opened(1)  # the same sums again: nothing new is opened
    assert ledger.history("a") == before
    for position, seal in ((1, "other"), (0, "s"), (3, "s")):
        with pytest.raises(LedgerError, match="does not follow the newest"):
            opened(position, seal)
    with pytest.raises(BudgetExceededError, match="more than the fit reserved"):
        opened(2, price=FIT - 1)
    assert ledger.history("a") == before
    opened(2, price=FIT - 2)
    ledger.verify()
    assert ledger.settle(controller.fit_id) == FIT


def test_verify_sees_rounds_that_were_not_paid_for(ledger):
    controller = reserve(ledger)
    controller.bind(1)
    body = {"position": 0, "query_id": "q", "seal": "s", "price": str(FIT), "spent": str(FIT)}
    with ledger._transaction(keep_head=True) as book:  # as a program without the check would write
        book.append("OPENED", "a", controller.fit_id, body)
        book.append("OPENED", "a", controller.fit_id, body)
    with pytest.raises(LedgerError, match="opened a round twice"):
        ledger.verify()


def test_nothing_is_left_of_an_account_that_is_spent(ledger):
    controller = reserve(ledger, budget=Budget(epsilon=3.0, delta=1e-6))
    assert controller.total == CAP
    assert ledger.remaining("a") == 0.0


def test_settle_of_a_released_fit_changes_nothing(ledger):
    controller = reserve(ledger)
    controller.finish()
    assert ledger.settle(controller.fit_id) == FIT
    assert ledger.account("a").spent == FIT
    ledger.verify()


def test_record_tells_what_is_known_of_a_fit(ledger):
    controller = reserve(ledger)
    controller.bind(1)
    record = ledger.record(controller.fit_id)
    assert (record.account, record.state, record.charge) == ("a", "RESERVED", FIT)
    assert (record.terms, record.answers, record.model) == (controller._terms, "", "")
    controller.release(query(), raw())
    controller.finish(model="digest")
    record = ledger.record(controller.fit_id)
    assert (record.state, record.charge, record.model) == ("RELEASED", FIT, "digest")
    assert record.answers == ledger.look(controller.fit_id).answers != ""
    with pytest.raises(LedgerError, match="fit_id='x' is not"):
        ledger.record("x")


def test_a_fit_that_ends_early_is_charged_what_it_opened(ledger):
    controller = reserve(ledger, journal=(journal := ListJournal()))
    controller.bind(1)
    price = controller.release(query(), raw()).receipt.price
    controller.finish(only_opened=True)
    record = ledger.record(controller.fit_id)
    assert (record.state, record.charge) == ("RELEASED", price)
    assert ledger.account("a").spent == price
    assert ledger.settle(controller.fit_id) == price
    ledger.verify()
    again = reserve(ledger, resume=controller.fit_id, journal=journal)
    assert again.replayed(query(), raw().sensitivity) is not None
    again.finish(only_opened=True)
    assert ledger.account("a").spent == price


def test_copies_charge_the_same_account(ledger):
    for same in (copy.copy(ledger), copy.deepcopy({"x": [ledger]})["x"][0], clone(ledger)):
        assert same is ledger
    sent = pickle.loads(pickle.dumps(ledger))
    reserve(sent)
    assert ledger.account("a").spent == FIT
    with pytest.raises(LedgerError, match="cannot be sent"):
        pickle.dumps(Ledger.in_memory())


def test_copies_and_repr_carry_no_password():
    for address in (
        "postgresql+psycopg://me:geheim@db.example/privacy",
        "postgresql+psycopg://me@db.example/privacy?password=geheim",
    ):
        ledger = Ledger(address)
        assert "geheim" not in repr(ledger)
        assert b"geheim" not in pickle.dumps(ledger)
        assert "me@db.example/privacy" in repr(ledger)
        assert ledger.durable


def test_relative_path_does_not_depend_on_the_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = Ledger("sqlite:///here.db")
    ledger.open_account("a", epsilon=1.0, delta=1e-6)
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(ledger)).remaining("a") == 1.0
    assert ledger.directory.parent == tmp_path


def test_restored_old_ledger_is_refused(ledger, url, tmp_path):
    backup(url, tmp_path / "old.db")
    reserve(ledger)
    ledger._engine.dispose()
    path = Path(url.removeprefix("sqlite:///"))
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    (tmp_path / "old.db").replace(path)
    for known in (
        ledger,
        Ledger(url),
    ):  # the process that charged, and another that reads the kept head
        with pytest.raises(LedgerError, match="older than its newest known head"):
            known.accounts()
        with pytest.raises(LedgerError, match="older than its newest known head"):
            reserve(known)


def test_deleted_ledger_is_refused(ledger, url):
    ledger._engine.dispose()
    for file in Path(url.removeprefix("sqlite:///")).parent.glob("budget.db*"):
        if file.is_file() and file.suffix != ".head":
            file.unlink()
    with pytest.raises(LedgerError, match="is not there any more"):
        Ledger(url).open_account("a", epsilon=3.0, delta=1e-6)
    Ledger(f"{url}.new").open_account("a", epsilon=3.0, delta=1e-6)  # under another name


def test_damaged_head_file_is_refused(ledger):
    (ledger.directory / "head").write_text("{")
    with pytest.raises(LedgerError, match="damaged"):
        ledger.accounts()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE dpgb_entries SET body = replace(body, '1.0', '0.1') WHERE kind = 'RESERVED'",
        "DELETE FROM dpgb_entries WHERE seq = 2",
        "UPDATE dpgb_accounts SET spent = '0'",
        "UPDATE dpgb_accounts SET cap = '9' || cap",
        "UPDATE dpgb_accounts SET tau = '0.0'",
        "UPDATE dpgb_fits SET terms = replace(terms, '\"public_seed\":5', '\"public_seed\":6')",
        "UPDATE dpgb_fits SET fingerprint = 'ff' WHERE state = 'RESERVED'",
        "UPDATE dpgb_fits SET price = '1'",
        "DELETE FROM dpgb_fits",
        "DELETE FROM dpgb_entries WHERE seq = (SELECT max(seq) FROM dpgb_entries)",
    ],
)
def test_verify_sees_changes_by_hand(ledger, url, statement):
    reserve(ledger).finish()
    controller = reserve(ledger)
    controller.bind(1)
    controller.release(query(), raw())
    ledger.verify()
    change(url, statement)
    with pytest.raises(LedgerError):
        ledger.verify()


def test_unreachable_ledger_is_clear(tmp_path):
    (tmp_path / "file").write_text("")
    for address in (
        f"sqlite:///{tmp_path}/none/x.db",
        f"sqlite:///{tmp_path}/file/x.db",
        f"sqlite:///{tmp_path}",
    ):
        with pytest.raises(
            LedgerUnavailableError, match=r"(?s)cannot be used: .*Nothing was charged"
        ):
            Ledger(address).open_account("a", epsilon=1.0, delta=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_read_only_ledger_is_clear_and_unchanged(ledger, url):
    read_only = Ledger(url.replace("sqlite:///", "sqlite:///file:") + "?mode=ro&uri=true")
    history = ledger.history("a")
    with pytest.raises(LedgerUnavailableError, match="readonly"):
        reserve(read_only)
    assert ledger.history("a") == history
    assert not list(ledger.directory.glob("*.key"))


def test_file_that_is_no_database_is_clear(tmp_path):
    (tmp_path / "notes.db").write_text("dear diary, " * 200)
    with pytest.raises(LedgerError, match=r"damaged: .* is no SQLite database\. Put the newest"):
        Ledger(f"sqlite:///{tmp_path}/notes.db").accounts()


def test_an_unwritable_key_charges_nothing(ledger, monkeypatch):
    really_open = os.open

    def refuse(path, *options):
        if str(path).endswith(".key"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return really_open(path, *options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(LedgerUnavailableError, match="key file"):
        reserve(ledger)
    assert ledger.account("a").spent == 0


@pytest.mark.parametrize("address", ["nonsense", "mysql://x/y", "sqlite+aiosqlite:///x.db", ""])
def test_other_addresses_are_refused(address):
    with pytest.raises(LedgerError):
        Ledger(address)


@pytest.mark.parametrize(
    ("address", "asked"),
    [(3, ""), (None, ""), (b"sqlite://", ""), (["a.db"], ""), (Path("a.db"), "'sqlite:///a.db'?")],
)
def test_what_is_no_text_is_no_address(address, asked):
    with pytest.raises(LedgerError, match="address cannot be read") as raised:
        Ledger(address)
    assert str(raised.value).endswith(asked or "host/db'.")


def test_an_at_sign_in_a_password_is_not_taken_for_the_host():
    with pytest.raises(LedgerError, match="cannot be read") as info:
        Ledger("postgresql+psycopg://alice:p@SECRET@host/db")
    assert "SECRET" not in repr(info.value)


@pytest.mark.parametrize("password", ["p@SECRET", "p@SECRET:1", "@SECRET", "SECRET@"])
@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgres"])
def test_an_at_sign_in_a_password_is_said_how_to_write(driver, password):
    with pytest.raises(LedgerError, match=r" Write %40 for an @ .* PGPASSWORD\.$") as info:
        Ledger(f"{driver}://alice:{password}@host/db")
    assert "SECRET" not in repr(info.value)
    written = Ledger(f"postgresql+psycopg://alice:{password.replace('@', '%40')}@host/db")
    assert written._address.url.password == password


@pytest.mark.parametrize("driver", ["postgresql", "postgres", "postgresql+psycopg2"])
def test_an_address_of_another_driver_of_postgresql_is_asked_about(driver):
    with pytest.raises(LedgerError, match=r" Did you mean 'postgresql\+psycopg://…'\?$") as info:
        Ledger(f"{driver}://alice:SECRET@host/db")
    assert "SECRET" not in repr(info.value)
    with pytest.raises(LedgerError, match=r"Use 'sqlite' or 'postgresql\+psycopg'\.$"):
        Ledger("mysql://alice:SECRET@host/db")


MOUNTS = """\
22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:40 / /mnt/team\\040share rw,relatime shared:1 - {} server:/x rw
31 30 0:41 / /mnt/team\\040share/local rw - xfs /dev/vdb rw
"""


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """Make the ledger see a file system of some type at ``/mnt/team share``."""

    def mount(kind):
        (tmp_path / "mountinfo").write_text(MOUNTS.format(kind))
        monkeypatch.setattr(ledger_files, "MOUNTINFO", tmp_path / "mountinfo")

    return mount


@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "lustre", "cifs", "gpfs", "fuse.sshfs", "fuse.ceph-fuse", "9p", "virtiofs"],
)
def test_network_file_system_is_refused_with_the_way_out(mounted, kind):
    mounted(kind)
    with pytest.raises(LedgerError) as info:
        Ledger("sqlite:////mnt/team share/budget.db")
    for told in (
        f"network file system ({kind})",
        "two fits could spend the same budget",
        "local disk",
        "postgresql+psycopg://user@host/db",
        "dpgb_dask[postgres]",
    ):
        assert told in str(info.value)


def test_a_link_to_a_network_file_system_is_refused(mounted, tmp_path):
    mounted("nfs4")
    (tmp_path / "budget.db").symlink_to("/mnt/team share/budget.db")
    (tmp_path / "folder").symlink_to("/mnt/team share")
    for path in ("budget.db", "folder/budget.db"):
        with pytest.raises(LedgerError, match="nfs4"):
            Ledger(f"sqlite:///{tmp_path}/{path}")


def test_a_network_file_system_of_macos_is_refused(monkeypatch, tmp_path):
    """It has no table of mounts to read."""
    mounts = [SimpleNamespace(mountpoint="/", fstype="apfs")]
    monkeypatch.setattr(ledger_files, "MOUNTINFO", tmp_path / "none")
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    Ledger("sqlite:////mnt/team share/budget.db")
    mounts.append(SimpleNamespace(mountpoint="/mnt/team share", fstype="smbfs"))
    with pytest.raises(LedgerError, match="smbfs"):
        Ledger("sqlite:////mnt/team share/budget.db")


@pytest.mark.parametrize("home", [{"XDG_DATA_HOME": "state"}, {"HOME": None}])
def test_a_home_that_depends_on_where_a_process_stands_is_refused(home, monkeypatch):
    """A user of a container may have neither HOME nor a name."""
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    for name, value in home.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    with pytest.raises(LedgerError, match="XDG_DATA_HOME"):
        Ledger("postgresql+psycopg://me@db.example/privacy")._folder("id")


def test_a_home_that_cannot_be_written_is_named_beside_a_server(tmp_path, monkeypatch):
    """Homes are read-only on the nodes of some clusters; the server is well."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    ledger = Ledger("postgresql+psycopg://me@db.example/privacy")
    with pytest.raises(OSError, match="Not a directory") as caught:
        ledger._write_head((1, 64 * "a"))
    told = str(ledger._failed(caught.value, committing=False, charging=True))
    assert str(tmp_path / "file") in told
    assert "XDG_DATA_HOME" in told
    with pytest.raises(LedgerUnavailableError, match="XDG_DATA_HOME"):
        write_key(tmp_path / "file" / "key", bytes(32))


@pytest.mark.parametrize(
    ("fault", "error"), [(fill_disk, LedgerUnavailableError), (interrupt, KeyboardInterrupt)]
)
def test_a_key_that_could_not_be_written_is_not_left(fault, error, tmp_path):
    path = tmp_path / "not" / "there" / "fit.key"
    with Steps(tmp_path) as steps:
        write_key(path, bytes(32))
    with pytest.raises(LedgerUnavailableError, match="key file"):
        write_key(path, bytes(32))
    assert path.read_bytes() == bytes(32)  # another fit's
    made = steps.names.index("open key, after") + 1
    for at in range(made, len(steps.names)):
        path.unlink(missing_ok=True)
        with Steps(tmp_path, fault, at), pytest.raises(error):
            write_key(path, bytes(32))
        assert not path.exists(), steps.names[at]
    assert len(steps.names) - made > 4


def test_what_is_beside_a_network_file_system_is_not_refused(mounted, tmp_path, monkeypatch):
    mounted("nfs4")
    Ledger("sqlite:////mnt/team share/local/budget.db")
    Ledger("sqlite:////mnt/team/budget.db")
    Ledger("postgresql+psycopg://me@db.example/privacy")
    monkeypatch.setattr(ledger_files, "MOUNTINFO", tmp_path / "none")  # not Linux
    Ledger("sqlite:////mnt/team share/budget.db")


def test_slack_of_an_account_is_bounded(ledger, monkeypatch):
    reserve(ledger)
    once = ledger.account("a").tau
    monkeypatch.setattr(ledger_book.accounting, "slack", lambda _, tau: 1e-6 * (tau > once))
    with pytest.raises(BudgetExceededError, match="slack"):
        reserve(ledger)


def test_memory_ledger_is_shared_by_threads():
    ledger = Ledger("sqlite://")
    ledger.open_account("a", epsilon=3.0, delta=1e-6)
    threads = [threading.Thread(target=reserve, args=(ledger,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.account("a").spent == 5 * FIT
    assert not ledger.durable
    assert ledger.directory is None


def test_a_ledger_in_memory_keeps_the_filter_without_entries():
    ledger = Ledger.in_memory()
    ledger.open_account("a", epsilon=3.0, delta=1e-6)
    controller = reserve(ledger)
    controller.release(query(), raw())
    seal = Opened("q", "s")
    with pytest.raises(LedgerError, match="does not follow"):  # a copy of the controller, say
        ledger.open_round(controller.fit_id, controller._lease, 0, seal, query())
    with pytest.raises(BudgetExceededError, match="more than the fit reserved"):
        ledger.open_round(controller.fit_id, controller._lease, 1, seal, query(price=FIT))
    # no entry tells what was opened, so nothing is given back
    assert ledger.settle(controller.fit_id) == FIT
    with pytest.raises(LedgerError):
        ledger.open_round(controller.fit_id, controller._lease, 0, seal, query())


def test_a_finished_fit_in_memory_opens_no_round():
    ledger = Ledger.in_memory()
    ledger.open_account("a", epsilon=3.0, delta=1e-6)
    controller = reserve(ledger)
    lease = controller._lease
    controller.finish()
    with pytest.raises(LedgerError):
        ledger.open_round(controller.fit_id, lease, 0, Opened("q", "s"), query())


# ---- relations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [None, "household"])
def test_a_unit_account_takes_fits_of_its_unit_only(ledger, unit):
    ledger.open_account("people", epsilon=3.0, delta=1e-6, unit_id="person")
    with pytest.raises(LedgerError, match=r"unit_id='person'.*Nothing was charged"):
        reserve(ledger, account="people", unit_id=unit)
    assert ledger.account("people").spent == 0
    assert not list(ledger.directory.glob("*.key"))
    fit = reserve(ledger, account="people", unit_id="person")
    assert ledger.account("people").spent == FIT
    assert ledger.record(fit.fit_id).terms.unit_id == "person"
    ledger.verify()


def test_a_row_account_takes_fits_by_rows_and_by_units(ledger):
    reserve(ledger)
    reserve(ledger, unit_id="person")
    assert ledger.account("a").spent == 2 * FIT
    ledger.verify()


def test_an_account_keeps_its_unit(ledger):
    ledger.open_account("people", epsilon=3.0, delta=1e-6, unit_id="person")
    ledger.open_account("people", epsilon=3.0, delta=1e-6, unit_id="person")
    assert (ledger.account("people").unit_id, ledger.account("a").unit_id) == ("person", None)
    for name, unit in (("people", None), ("people", "household"), ("a", "person")):
        with pytest.raises(LedgerError, match="unit_id"):
            ledger.open_account(name, epsilon=3.0, delta=1e-6, unit_id=unit)
    with pytest.raises(LedgerError, match="1 to 200"):
        ledger.open_account("b", epsilon=3.0, delta=1e-6, unit_id="")


# ---- balances --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE dpgb_accounts SET spent = '0' WHERE name = 'a'",
        "UPDATE dpgb_accounts SET tau = '0.0' WHERE name = 'a'",
        "UPDATE dpgb_accounts SET cap = cap || '0' WHERE name = 'a'",
        "UPDATE dpgb_accounts SET delta = '1e-05' WHERE name = 'a'",
        "UPDATE dpgb_accounts SET unit_id = 'person' WHERE name = 'a'",
        "UPDATE dpgb_entries SET body = replace(body, '\"charge\":\"1', '\"charge\":\"') WHERE kind = 'RESERVED'",
        "UPDATE dpgb_entries SET kind = 'NOTHING' WHERE kind = 'RESERVED'",
        "DELETE FROM dpgb_entries WHERE kind = 'RESERVED'",
    ],
)
@pytest.mark.parametrize("new", [False, True])
def test_an_edited_balance_grants_nothing(ledger, url, statement, new):
    """Not even to a process that verified the whole chain before the edit."""
    fit = reserve(ledger)
    change(url, statement)
    if new:
        ledger_module._verified.clear()
    for act in (lambda: reserve(ledger), lambda: ledger.settle(fit.fit_id)):
        with pytest.raises(LedgerError, match=r"by hand|does not follow|damaged"):
            act()
    assert len(list(ledger.directory.glob("*.key"))) == 1


def test_a_new_process_goes_through_the_whole_chain(ledger, url):
    """No balance shows the edit, which is of an opened round."""
    fit = reserve(ledger)
    fit.bind(1)
    fit.release(query(), raw())
    change(
        url, "UPDATE dpgb_entries SET body = replace(body, 'seal', 'sael') WHERE kind = 'OPENED'"
    )
    ledger_module._verified.clear()
    for _ in range(2):
        with pytest.raises(LedgerError, match="chain"):
            reserve(Ledger(url))


@pytest.mark.parametrize("act", ["reserve", "settle"])
def test_a_round_that_was_removed_is_missed_by_a_process_that_has_verified_it(ledger, url, act):
    """No balance shows it, and its entry is not read again."""
    fit = reserve(ledger)
    fit.bind(1)
    fit.release(query(), raw())
    ledger.open_account("later", epsilon=1.0, delta=1e-6)
    ledger.record(fit.fit_id)
    change(url, "DELETE FROM dpgb_entries WHERE kind = 'OPENED'")
    with pytest.raises(LedgerError, match=r"Entries of account 'a' are missing.* by hand"):
        reserve(ledger) if act == "reserve" else ledger.settle(fit.fit_id)
    assert len(list(ledger.directory.glob("*.key"))) == 1


AGAIN = "UPDATE dpgb_accounts SET spent = '0', tau = '0.0' WHERE name = 'a'"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM dpgb_entries WHERE kind = 'RESERVED'",
        "UPDATE dpgb_entries SET account = 'pure' WHERE kind = 'RESERVED'",
        "UPDATE dpgb_entries SET kind = 'reserved' WHERE kind = 'RESERVED'",
        "UPDATE dpgb_entries SET seq = 99 WHERE kind = 'RESERVED'",
    ],
)
@pytest.mark.parametrize("then", [True, False])
def test_an_entry_that_was_moved_away_grants_nothing(ledger, url, statement, then):
    """Not even to the process that wrote the entry, whether or not other entries follow."""
    reserve(ledger)
    if then:
        ledger.open_account("b", epsilon=1.0, delta=1e-6)
        ledger.open_account("c", epsilon=1.0, delta=1e-6)
    for edit in (statement, AGAIN):
        change(url, edit)
        with pytest.raises(LedgerError, match="hand"):
            reserve(Ledger(url))


def test_an_edited_copy_in_another_folder_grants_nothing(ledger, path, tmp_path_factory):
    """Although this process has verified the chain of a ledger with the same id."""
    reserve(ledger)
    ledger.open_account("b", epsilon=3.0, delta=1e-6)
    reserve(ledger, account="b")
    ledger._disconnect()
    copy = tmp_path_factory.mktemp("copy") / "ledger"
    shutil.copytree(path.parent, copy)
    url = f"sqlite:///{copy / path.name}"
    change(url, "UPDATE dpgb_entries SET body = replace(body, '1', '2') WHERE account = 'a'")
    with pytest.raises(LedgerError, match="hand"):
        reserve(Ledger(url), account="b")


def test_nothing_is_added_to_a_chain_that_breaks(ledger, url):
    reserve(ledger)
    change(url, "UPDATE dpgb_entries SET body = replace(body, '3.0', '4.0') WHERE seq = 1")
    ledger_module._verified.clear()
    for _ in range(2):
        with pytest.raises(LedgerError, match="hand"):
            Ledger(url).open_account("b", epsilon=1.0, delta=1e-6)


def acts_on_a_fit(url, fit):
    """Yield everything that opens, resumes, ends or describes a fit."""
    yield lambda: Ledger(url).look(fit.fit_id)
    yield lambda: Ledger(url).record(fit.fit_id)
    yield lambda: Ledger(url).fits("a")
    yield lambda: Ledger(url).take(fit.fit_id, "lease")
    yield lambda: Ledger(url).settle(fit.fit_id)
    yield lambda: Ledger(url).finish(fit.fit_id, fit._lease, "answers")
    yield lambda: reserve(Ledger(url), resume=fit.fit_id)


OF_ROWS = [
    'UPDATE dpgb_fits SET terms = replace(terms, \'"price":"\', \'"price":"9\')',
    "UPDATE dpgb_fits SET terms = replace(terms, '\"epsilon\":1.0', '\"epsilon\":5.0')",
    "UPDATE dpgb_fits SET account = 'pure'",
    "UPDATE dpgb_fits SET fingerprint = ''",
]
OF_ENTRIES = [
    "UPDATE dpgb_entries SET body = replace(body, '\"price\":\"', '\"price\":\"9') WHERE kind = 'RESERVED'",
    "UPDATE dpgb_entries SET body = replace(body, '\"price\":\"', '\"price\":\"0') WHERE kind = 'OPENED'",
    "DELETE FROM dpgb_entries WHERE kind = 'OPENED'",
    "UPDATE dpgb_entries SET fit_id = 'x' WHERE kind = 'OPENED'",
]


@pytest.mark.parametrize(
    ("statement", "new"),
    [(edit, new) for edit in OF_ROWS for new in (False, True)]
    + [(edit, True) for edit in OF_ENTRIES],
)
def test_an_edited_fit_opens_nothing(ledger, url, statement, new):
    """A fit may open what was charged: its terms are those of the entry of its charge, whatever its row says."""
    fit = reserve(ledger)
    fit.bind(1)
    fit.release(query(), raw())
    ledger.record(fit.fit_id)  # this process has verified it
    change(url, statement)
    for act in acts_on_a_fit(url, fit):
        if new:
            ledger_module._verified.clear()
        with pytest.raises(LedgerError, match="hand"):
            act()
    if new:  # otherwise the terms are known already, and no row is read
        with pytest.raises(LedgerError, match="hand"):
            ledger.open_round(fit.fit_id, fit._lease, 1, Opened("q", "s"), query())
    assert len(list(ledger.directory.glob("*.key"))) == 1


@pytest.mark.parametrize("statement", OF_ENTRIES)
def test_entries_edited_later_do_not_change_a_fit_that_runs(ledger, url, statement):
    """They were verified before the edit; a process that takes the fit over reads its rounds again, and refuses."""
    fit = reserve(ledger)
    fit.bind(1)
    fit.release(query(), raw())
    terms = ledger.look(fit.fit_id).terms
    ledger.open_account("later", epsilon=1.0, delta=1e-6)
    ledger.record(fit.fit_id)
    change(url, statement)
    assert ledger.look(fit.fit_id).terms == terms
    with pytest.raises(BudgetExceededError):
        fit.release(query("q 2", price=FIT), raw())
    if "OPENED" in statement:
        with pytest.raises(LedgerError, match="hand"):
            ledger.take(fit.fit_id, "lease")


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("end", ["settle", "finish"])
def test_a_fit_that_ended_is_not_opened_again_by_its_state(ledger, url, end, new, tmp_path):
    """Nor is it opened by a process that still runs it: others may have spent what was given back."""
    fit = reserve(ledger)
    fit.bind(1)
    fit.release(query(), raw())
    key = ledger.key_path(fit.fit_id)
    shutil.copy(key, tmp_path / "kept")
    other = Ledger(url)
    if end == "settle":
        other.settle(fit.fit_id)
    else:
        other.finish(fit.fit_id, fit._lease, "answers", only_opened=True)
    change(url, "UPDATE dpgb_fits SET state = 'RESERVED'")
    shutil.copy(tmp_path / "kept", key)
    for act in (*acts_on_a_fit(url, fit), lambda: fit.release(query("q 2"), raw())):
        if new:
            ledger_module._verified.clear()
        with pytest.raises(LedgerError, match="hand"):
            act()


def test_a_fit_bound_to_data_is_not_bound_to_others_by_its_row(ledger, url):
    fit = reserve(ledger)
    fit.bind(1)
    change(url, "UPDATE dpgb_fits SET fingerprint = ''")
    with pytest.raises(LedgerError, match="hand"):
        reserve(Ledger(url), resume=fit.fit_id).bind(2)


def test_entries_are_gone_through_once(ledger, monkeypatch):
    """A round reads the entries since the last round; a charge also reads, without parsing, those of its balance."""
    added = []
    add = ledger_book.Tally.add
    monkeypatch.setattr(
        ledger_book.Tally, "add", lambda tally, row: (added.append(row["seq"]), add(tally, row))
    )
    fit = reserve(ledger)
    fit.bind(1)
    for k in range(5):
        fit.release(query(f"q {k}"), raw())
    fit.finish()
    reserve(ledger)
    assert sorted(added) == sorted(set(added))
    assert len(added) >= 8


# ---- damage ----------------------------------------------------------------------------------------------------------

DEEP = "[" * 10**5
ODD = [
    "",
    "{",
    "[]",
    "null",
    "1",
    '"x"',
    "{}",
    DEEP,
    '{"price": []}',
    '{"price": "x"}',
    '{"a": ' + DEEP,
    "\x00",
    "NaN",
]
ODD += [
    '{"price": {}, "position": []}',
    '{"charge": "1e3"}',
    '{"rows": 5, "price": "1", "position": 0}',
]


def acts(ledger, fit_id):
    """Yield everything that reads what may be damaged."""
    yield ledger.accounts
    yield lambda: ledger.account("a")
    yield lambda: ledger.remaining("a")
    yield lambda: ledger.history("a")
    yield lambda: ledger.fits("a")
    yield lambda: ledger.record(fit_id)
    yield lambda: ledger.look(fit_id)
    yield ledger.verify
    yield lambda: reserve(ledger)
    yield lambda: reserve(ledger, resume=fit_id)
    yield lambda: ledger.settle(fit_id)


@pytest.mark.parametrize(
    "statement",
    [
        *(f"DELETE FROM {table}" for table in ("dpgb_meta", "dpgb_head", "dpgb_accounts")),
        *(f"DROP TABLE {table}"
          for table in ("dpgb_meta", "dpgb_head", "dpgb_entries", "dpgb_accounts", "dpgb_fits")),
        "ALTER TABLE dpgb_entries DROP COLUMN body",
        "ALTER TABLE dpgb_fits DROP COLUMN terms",
    ],
)  # fmt: skip
@pytest.mark.parametrize("new", [False, True])
def test_tables_that_lack_something_are_damage(ledger, url, statement, new):
    """They are reported as damage, not as a lack of room."""
    fit = reserve(ledger)
    change(url, statement)
    known = Ledger(url) if new else ledger
    if "meta" in statement:  # read when the file is opened
        known._disconnect()
    for act in (lambda: reserve(known), lambda: known.settle(fit.fit_id), known.verify):
        with pytest.raises(LedgerError, match=r"damaged|by hand|not in the ledger") as info:
            act()
        assert not isinstance(info.value, LedgerUnavailableError)
        assert "room" not in str(info.value)


@pytest.mark.parametrize(
    ("table", "column"),
    thinned([
        ("dpgb_entries", "body"), ("dpgb_entries", "fit_id"), ("dpgb_entries", "kind"), ("dpgb_entries", "hash"),
        ("dpgb_fits", "terms"), ("dpgb_fits", "price"), ("dpgb_fits", "state"), ("dpgb_accounts", "spent"),
        ("dpgb_accounts", "epsilon"), ("dpgb_accounts", "cap"), ("dpgb_head", "seq"), ("dpgb_head", "hash"),
        ("dpgb_meta", "version"), ("dpgb_meta", "ledger"),
    ], every=3),
)  # fmt: skip
def test_a_damaged_ledger_is_refused_clearly(ledger, path, table, column, tmp_path_factory):
    """No error is one of JSON's, or a KeyError; what the damage does not touch may go on."""
    fit = reserve(ledger)
    fit.bind(1)
    fit.release(query(), raw())
    ledger._disconnect()
    refused, first = 0, len(table + column)
    for odd in (DEEP, *(ODD + ODD)[first % len(ODD) :: 5][:3]):
        copy = tmp_path_factory.mktemp("damaged") / "ledger"
        shutil.copytree(path.parent, copy)
        ledger_module._verified.clear()
        with contextlib.closing(sqlite3.connect(copy / path.name)) as connection:
            connection.execute(f"UPDATE {table} SET {column} = ?", (odd,))
            connection.commit()
        for act in acts(Ledger(f"sqlite:///{copy / path.name}"), fit.fit_id):
            try:
                act()
            except DPGBError:
                refused += 1
    assert refused >= 3


def test_a_later_ledger_compiles_no_statement_anew():
    """Or each small fit without a ledger would compile those of its ledger in memory."""

    def use():
        ledger = Ledger.in_memory()
        ledger.open_account("team", epsilon=1.0, delta=1e-6)
        reserve(ledger=ledger, account="team").finish()
        return set(ledger_connections._compiled)

    use()
    known = use()
    assert known
    assert use() == known


def test_what_another_machine_may_have_computed_is_never_nothing():
    assert [ledger_book._within_digits(least) for least in (0, 1, 2, 3)] == [0, 1, 1, 2]


def test_slack_of_an_account_is_a_thousandth_of_delta(ledger, monkeypatch):
    reserve(ledger)
    once = ledger.account("a").tau
    for slack, fits in ((0.999e-9, True), (1.001e-9, False)):
        monkeypatch.setattr(
            ledger_book.accounting, "slack", lambda _, tau, own=slack, last=once: own * (tau > last)
        )
        if fits:
            reserve(ledger)
            once = ledger.account("a").tau
        else:
            with pytest.raises(BudgetExceededError, match="slack"):
                reserve(ledger)


def test_a_fit_is_bound_to_data_once(ledger):
    fit = reserve(ledger)
    fit.bind(1)
    with ledger._transaction(keep_head=True) as book:
        book.add_binding(book.fit(fit.fit_id), 64 * "f")
    with pytest.raises(LedgerError, match="does not follow from those before"):
        ledger.verify()
