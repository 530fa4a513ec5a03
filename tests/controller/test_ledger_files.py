"""Names of a ledger and the files beside it: addresses, second names, heads, copies, files of older versions."""

import contextlib
import errno
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
from controller_parts import query, raw, reserve

from dpgb_dask import cli
from dpgb_dask.contracts.plan import Budget
from dpgb_dask.controller import account_units, ledger_files, release
from dpgb_dask.controller import ledger as ledger_module
from dpgb_dask.controller.accounting import total_price
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.ledger_book import Terms
from dpgb_dask.errors import LedgerError, LedgerUnavailableError, ResumeError
from dpgb_dask.training.fit import open_journal

HERE = Path(__file__).parent
FIT = total_price(1.0, 1e-6)
ROUND = query().price


@pytest.fixture
def elsewhere(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.fixture
def mounting(forks):
    """Run a function of `controller_parts` in a process with mounts of its own."""
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("NO ROOT: nothing can be mounted")
    return lambda *call: forks.run("controller_parts:in_own_mounts", *call)


# ---- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file:%3Amemory%3A?uri=true",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "sqlite:///file:books?mode=memory&cache=shared&uri=true",
        "sqlite:///file:/tmp/books.db?mode=memory&uri=true",
        "sqlite:///file:books?mode=memory",
        "sqlite:///books.db?mode=memory&uri=true",
        "sqlite:///file:",
    ],
)
def test_memory_is_not_called_durable(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = Ledger(address)
    assert not ledger.durable
    assert ledger.directory is None
    ledger.open_account("a", epsilon=3.0, delta=1e-6)
    assert reserve(ledger).account == "a"
    with pytest.raises(LedgerError, match="cannot be sent"):
        ledger.__reduce__()
    assert not list(tmp_path.iterdir())


def test_shared_memory_is_shared():
    address = "sqlite:///file:shared-books?mode=memory&cache=shared&uri=true"
    one, other = Ledger(address), Ledger(address)
    one.open_account("a", epsilon=3.0, delta=1e-6)
    reserve(one)
    assert other.account("a").spent == FIT


@pytest.mark.parametrize(
    "option", ["nolock=1", "immutable=1", "vfs=memdb", "vfs=unix-none", "mode=x"]
)
def test_an_address_without_locks_is_refused(option, path):
    with pytest.raises(LedgerError, match="mode=ro"):
        Ledger(f"sqlite:///file:{path}?{option}&uri=true")


@pytest.mark.parametrize(
    "address",
    ["sqlite:///a\0b.db", "sqlite://host/a.db", "sqlite:///loop/a.db", "sqlite:///a\udce4.db"],
)
def test_an_address_of_no_file_is_refused(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(LedgerError):
        Ledger(address).open_account("a", epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    ("name", "address"),
    [("~no-user", "sqlite:///./~no-user/b.db"), ("100 %?#", "sqlite:///100 %25%3F#/b.db")],
)
def test_a_folder_of_any_name_has_an_address(name, address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    ledger = Ledger(address)
    ledger.open_account("a", epsilon=1.0, delta=1e-6)
    assert (tmp_path / name / "b.db").exists()
    assert len(Ledger(ledger._address.public()).accounts()) == 1
    for cut in (
        "sqlite:///100?/b.db",
        "sqlite:///100?a=1/b.db",
        "sqlite:///100?/b.db&mode=rw",
        "sqlite:///100?mode=rw&/b.db",
        "sqlite:///100?",
        "sqlite:///100?a=",
        "sqlite:///100?uri=true?/b.db",
    ):
        with pytest.raises(LedgerError, match="write %3F for"):
            Ledger(cut)


def test_every_spelling_of_a_file_is_one_ledger(ledger, path, elsewhere, tmp_path, monkeypatch):
    """Keys, journals and the head are found by the id in the database, so a fit is resumed by any spelling."""
    monkeypatch.chdir(tmp_path)
    (elsewhere / "link.db").symlink_to(path)
    (elsewhere / "folder").symlink_to(tmp_path)
    journal = partial(open_journal, ledger)
    fit = reserve(ledger, journal=journal)
    fit.bind(1)
    answer = fit.release(query(), raw()).value
    for spelling in (
        f"sqlite:///{path.name}",
        f"sqlite:///file:{path}?uri=true",
        f"sqlite:///file://localhost{path}?uri=true",
        f"sqlite:///{elsewhere}/link.db",
        f"sqlite:///{elsewhere}/folder/{path.name}",
        f"sqlite:///{elsewhere}/../{path.name}",
    ):
        other = Ledger(spelling)
        assert other.directory == ledger.directory
        resumed = reserve(other, resume=fit.fit_id, journal=partial(open_journal, other))
        assert (resumed.replayed(query(), raw().sensitivity).value == answer).all()
    assert ledger.account("a").spent == FIT


def test_a_file_that_is_renamed_keeps_its_folder(ledger, path):
    fit = reserve(ledger)
    ledger._engine.dispose()
    new = path.rename(path.with_name("new.db"))
    assert Ledger(f"sqlite:///{new}").key_path(fit.fit_id).exists()


# ---- second names ----------------------------------------------------------------------------------------------------


def test_a_hard_link_is_refused_by_both_names(ledger, url, path, elsewhere):
    other = elsewhere / "budget.db"
    other.hardlink_to(path)
    for known in (ledger, Ledger(url), Ledger(f"sqlite:///{other}")):
        for act in (known.accounts, lambda known=known: reserve(known)):
            with pytest.raises(LedgerError, match=r"2 names \(hard links\).*symbolic link"):
                act()
    other.unlink()
    assert ledger.account("a").spent == 0
    reserve(ledger)


def test_a_file_that_is_mounted_alone_is_refused(ledger, path, elsewhere, mounting):
    """As in a container that got a mount of the file and not of its folder."""
    reserve(ledger)
    alone, folder, out = elsewhere / "b.db", elsewhere / "folder", elsewhere / "out"
    alone.touch()
    folder.mkdir()
    mounts = [["--bind", str(path), str(alone)], ["--bind", str(path.parent), str(folder)]]
    for name, told in ((alone, "Mount the folder"), (folder / path.name, str(FIT))):
        assert mounting(mounts, "spent", f"sqlite:///{name}", str(out)) == 0
        assert told in out.read_text()


def test_a_mounted_file_is_known_by_the_table_of_mounts(url, path, tmp_path, monkeypatch):
    line = f"31 22 254:0 /x {str(path).replace(' ', chr(92) + '040')} rw - ext4 /dev/vda rw\n"
    path.touch()
    (tmp_path / "mountinfo").write_text("22 1 254:0 / / rw - ext4 /dev/vda rw\n" + line)
    monkeypatch.setattr(ledger_files, "MOUNTINFO", tmp_path / "mountinfo")
    with pytest.raises(LedgerError, match="Mount the folder"):
        reserve(Ledger(url))


# ---- copies, heads, rollback -----------------------------------------------------------------------------------------


def test_a_copy_of_the_database_alone_has_every_charge(ledger, path, elsewhere):
    """The write-ahead file is folded in after a charge; a copy without the head is refused until it is restored."""
    other = sqlite3.connect(path)  # keeps the write-ahead file alive
    other.execute("SELECT count(*) FROM dpgb_entries").fetchone()
    fits = [reserve(ledger).fit_id for _ in range(3)]
    shutil.copy(path, elsewhere)
    other.close()
    copy = Ledger(f"sqlite:///{elsewhere / path.name}")
    for act in (copy.accounts, copy.verify, lambda: reserve(copy), lambda: copy.settle(fits[0])):
        with pytest.raises(LedgerError, match=r"newest head is not beside it(?s:.*)ledger restore"):
            act()
    assert copy.restore()
    assert copy.account("a").spent == 3 * FIT
    assert [fit.fit_id for fit in copy.fits("a")] == fits
    copy.verify()
    reserve(copy)
    assert not copy.restore()


def test_a_reader_that_stays_is_not_waited_for_as_a_writer_is(ledger, path, monkeypatch):
    """As a program that shows the database may be open for hours; what it saw is folded in by a later charge."""
    monkeypatch.setattr(ledger_module, "FOLD_SECONDS", 0)
    reserve(ledger)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM dpgb_entries").fetchone()
    said = []
    ledger._connections[-1].set_trace_callback(said.append)
    reserve(ledger)
    folding = said[said.index("PRAGMA wal_checkpoint(PASSIVE)") :]
    assert folding[1:] == [
        "PRAGMA busy_timeout=0",
        "PRAGMA wal_checkpoint(FULL)",
        "PRAGMA busy_timeout=60000",
    ]
    reader.close()
    assert ledger.account("a").spent == 2 * FIT


def test_a_restored_copy_gives_nothing_back_and_resumes_nothing(ledger, url, path, elsewhere):
    """Rounds that were opened after the copy was made are not in it."""
    fit = reserve(ledger)
    ended = reserve(ledger)
    ended.finish()
    shutil.copy(path, elsewhere)
    fit.bind(1)
    fit.release(query(), raw())
    lost = reserve(ledger)
    ledger._engine.dispose()
    shutil.copy(elsewhere / path.name, path)
    for known in (ledger, Ledger(url)):
        with pytest.raises(LedgerError, match="older than its newest known head"):
            known.accounts()
    owner = Ledger(url)
    assert owner.restore()
    for fit_id in (fit.fit_id, lost.fit_id):
        with pytest.raises(ResumeError):
            reserve(owner, resume=fit_id)
    assert owner.settle(fit.fit_id) == FIT
    assert owner.settle(ended.fit_id) == FIT
    assert not owner.key_path(lost.fit_id).exists()
    new = reserve(owner)
    new.bind(1)
    price = new.release(query(), raw()).receipt.price
    # a fit that began after the restore is settled as usual
    assert owner.settle(new.fit_id) == price
    owner.verify()
    assert Ledger(url).account("a").spent == 2 * FIT + price


def test_a_head_that_is_not_committed_yet_is_synced_whole(tmp_path, monkeypatch):
    synced, really = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (really(file), synced.append(os.fstat(file).st_size))
    )
    pending = ledger_files.write_head(tmp_path / "head", (3, 64 * "a"), "budget.db")
    assert synced == [pending.stat().st_size]
    assert synced[0] > 64


def test_a_copy_from_before_the_first_account_is_not_restored(url, path):
    known = Ledger(url)
    with known._transaction(making=True):  # an account that was not opened to the end
        pass
    known._disconnect()
    empty = path.read_bytes()
    known.open_account("a", epsilon=3.0, delta=1e-6)
    known._disconnect()
    path.write_bytes(empty)
    with pytest.raises(LedgerError, match="empty: there is nothing to restore"):
        Ledger(url).restore()
    with pytest.raises(LedgerError, match="older than its newest known head"):
        Ledger(url).accounts()


def test_a_lost_head_is_refused_by_all_and_restored_by_the_owner(ledger, url, capsys):
    reserve(ledger)
    (ledger.directory / "head").unlink()
    for known in (ledger, Ledger(url)):
        with pytest.raises(LedgerError, match="restore"):
            reserve(known)
    assert cli.main(["ledger", "verify", url]) == 1
    assert cli.main(["ledger", "restore", url]) == 0
    assert "goes on from this copy" in capsys.readouterr().out
    assert cli.main(["ledger", "restore", url]) == 0
    assert "nothing to restore" in capsys.readouterr().out
    assert cli.main(["ledger", "verify", url]) == 0
    assert "hash chain of 4 entries; 2 accounts and 1 fits" in capsys.readouterr().out


def test_a_ledger_for_which_there_is_no_room_leaves_no_folder(url, path):
    ours, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (33_000, most)
    )  # as a full disk; SQLite's index has 32,768
    try:
        with pytest.raises(LedgerUnavailableError, match="that there is room"):
            Ledger(url).open_account("people", epsilon=3.0, delta=1e-6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (ours, most))
    assert not list(path.parent.glob("ledger-*"))
    Ledger(url).open_account("people", epsilon=3.0, delta=1e-6)
    assert len(list(path.parent.glob("ledger-*"))) == 1


def test_a_folder_without_room_for_its_head_is_not_left(url, path, monkeypatch):
    def full(_file):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as while_full:
        while_full.setattr(os, "fsync", full)
        with pytest.raises(LedgerUnavailableError, match="No space left"):
            Ledger(url).open_account("people", epsilon=3.0, delta=1e-6)
        assert not list(path.parent.glob("ledger-*"))
    ledger = Ledger(url)
    ledger.open_account("people", epsilon=3.0, delta=1e-6)
    with monkeypatch.context() as while_full:
        while_full.setattr(os, "fsync", full)
        with pytest.raises(LedgerUnavailableError, match="No space left"):
            ledger.open_account("more", epsilon=3.0, delta=1e-6)
    assert [file.name for file in ledger.directory.iterdir()] == ["head"]


def test_a_copy_that_fails_leaves_nothing_open(tmp_path, monkeypatch):
    path, made = tmp_path / "budget.db", []
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3,
        "connect",
        lambda *args, **options: made.append(connect(*args, **options)) or made[-1],
    )
    path.write_bytes(b"no database" * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        ledger_files.copy_into_memory(path)
    assert made
    for connection in made:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_a_ledger_that_was_edited_is_not_restored(ledger, url):
    reserve(ledger)
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("UPDATE dpgb_accounts SET spent = '0'")
    connection.commit()
    connection.close()
    (ledger.directory / "head").unlink()
    with pytest.raises(LedgerError, match="changed by hand"):
        Ledger(url).restore()


def test_rounds_lost_with_a_write_ahead_file_stay_charged(ledger, url, path):
    """The head covers charges only; the journal shows that rounds are missing."""
    fit = reserve(ledger, journal=partial(open_journal, ledger))
    fit.bind(1)
    whole = path.read_bytes()  # holds the charge, and the data that the fit is bound to
    fit.release(query(), raw())
    ledger._engine.dispose()
    path.write_bytes(whole)
    assert Ledger(url).settle(fit.fit_id) == FIT


def test_a_fit_whose_data_were_forgotten_is_not_resumed_on_others(ledger, url, path):
    fit = reserve(ledger)
    ledger._disconnect()
    before = path.read_bytes()  # holds the charge, before the fit is bound to its data
    fit.bind(1)
    ledger._disconnect()
    path.write_bytes(before)
    with pytest.raises(LedgerError, match="older than its newest known head"):
        reserve(Ledger(url), resume=fit.fit_id)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"seq": "1", "hash": ""}',
        '{"seq": true, "hash": ""}',
        "{}",
        '{"seq": 0, "hash": "0"}',
        '{"seq": 0, "hash": "%s"}' % ("a" * 64),
        '{"seq": 3, "hash": "a"}',
        '{"seq": -1, "hash": "%s"}' % ("0" * 64),
    ],
)
def test_a_damaged_head_is_refused(ledger, url, text):
    (ledger.directory / "head").write_text(text)
    for known in (ledger, Ledger(url)):
        with pytest.raises(LedgerError, match="damaged"):
            known.accounts()


def test_a_copy_beside_its_original_is_refused(ledger, path):
    """The copy would use the folder of the original: its head, and the keys of its running fits."""
    fit = reserve(ledger)
    ledger._disconnect()
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    other = Ledger(f"sqlite:///{copy}")
    look = Ledger(f"sqlite:///file:{copy}?mode=ro&uri=true")
    (ledger.directory / "never.key").write_bytes(bytes(32))
    for act in (other.accounts, other.restore, lambda: reserve(other), look.accounts):
        with pytest.raises(LedgerError, match=r"is a copy of .*budget.db.*two fits could spend"):
            act()
    assert ledger.key_path(fit.fit_id).exists()
    assert ledger.key_path("never").exists()  # the key of a fit that only the original may know
    reserve(ledger)
    ledger._disconnect()
    # now the original does not lie beside the copy under the name in the head
    path.rename(path.with_name("archive.db"))
    with pytest.raises(LedgerError, match="older than its newest known head"):
        reserve(other)


@pytest.mark.parametrize("content", ["another ledger", "no ledger"])
def test_a_renamed_ledger_goes_on_beside_another_of_its_old_name(
    ledger, url, path, elsewhere, content
):
    reserve(ledger)
    ledger._disconnect()
    new = path.rename(path.with_name("new.db"))
    if content == "another ledger":
        Ledger(f"sqlite:///{elsewhere}/x.db").open_account("x", epsilon=1.0, delta=1e-6)
        shutil.copy(elsewhere / "x.db", path)
    else:
        with pytest.raises(LedgerError, match="is not there any more"):
            Ledger(url).open_account("a", epsilon=3.0, delta=1e-6)
    reserve(Ledger(f"sqlite:///{new}"))


@pytest.mark.skipif(os.geteuid() != 0, reason="NO ROOT: there is no other user")
def test_another_user_who_may_write_the_file_looks_at_it_and_is_told_whose_it_is():
    """Its folder is open to the user who made it alone: keys of fits are there."""
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o777)
        path, url = Path(shared, "budget.db"), f"sqlite:///{shared}/budget.db"
        known = Ledger(url)
        known.open_account("a", epsilon=3.0, delta=1e-6)
        known._disconnect()
        path.chmod(0o666)
        os.setresuid(65534, 65534, 0)
        try:
            other = Ledger(url)
            assert [account.name for account in other.accounts()] == ["a"]
            assert other.verify().accounts == 1
            with pytest.raises(
                LedgerUnavailableError, match=f"{known._id}/head.*the user who made"
            ) as told:
                reserve(other)
        finally:
            os.setresuid(0, 0, 0)
        assert "Nothing was charged" in str(told.value)
        assert not known.fits("a")


@pytest.mark.parametrize("mode", ["", "?mode=ro&uri=true"])
@pytest.mark.parametrize("content", ["nothing", "an empty file", "tables of another program"])
def test_only_an_account_makes_a_ledger(tmp_path, content, mode):
    """Whoever looks, verifies or settles makes none, and changes nothing of a file that is another program's."""
    path = tmp_path / "budget.db"
    if content == "an empty file":
        path.touch()
    elif content != "nothing":
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE users (name TEXT)")
    before = path.read_bytes() if path.exists() else None
    url = f"sqlite:///file:{path}{mode}" if mode else f"sqlite:///{path}"
    looks = (
        lambda ledger: ledger.remaining("a"),
        lambda ledger: ledger.verify(),
        lambda ledger: ledger.directory,
        *(
            ()
            if mode
            else (lambda ledger: ledger.restore(), lambda ledger: ledger.settle("x"), reserve)
        ),
    )
    for look in looks:
        with pytest.raises(LedgerError, match=r"There is no ledger at .*ledger open"):
            look(Ledger(url))
    assert Ledger(url).accounts() == ()  # as whoever opens an account unless it is there asks
    assert (path.read_bytes() if path.exists() else None) == before
    assert [file.name for file in tmp_path.iterdir()] == ([] if before is None else ["budget.db"])
    made = Ledger(f"sqlite:///{path}")
    made.open_account("a", epsilon=3.0, delta=1e-6)
    assert len(made.accounts()) == 1


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_keys_of_fits_that_ended_or_never_began_are_swept(ledger, url, tmp_path):
    """Fits settled on another machine, killed between key and charge, or killed after the end with the key left."""
    open_, settled, ended = (reserve(ledger) for _ in range(3))
    keys = {fit.fit_id: ledger.key_path(fit.fit_id) for fit in (open_, settled, ended)}
    kept = tmp_path / "kept"
    shutil.copytree(ledger.directory, kept)
    ledger.settle(settled.fit_id)
    ended.finish()
    for fit in (settled, ended):
        shutil.copy(kept / f"{fit.fit_id}.key", keys[fit.fit_id])
    never = ledger.key_path("never charged")
    never.write_bytes(bytes(32))
    assert Ledger(url).account("a").spent == 2 * FIT
    assert sorted(ledger.directory.glob("*.key")) == [keys[open_.fit_id]]
    reserve(ledger, resume=open_.fit_id)


def test_the_key_of_a_fit_that_is_being_charged_is_not_swept(
    forks, ledger, url, elsewhere, monkeypatch
):
    """The key is written before the charge, but under the lock for which a process that sweeps has to wait."""
    sweepers = []
    write = ledger_module.write_key

    def write_and_sweep(path, key):
        write(path, key)
        sweepers.append(forks.start("controller_parts:spent", url, str(elsewhere / "out")))
        time.sleep(0.5)
        assert not (elsewhere / "out").exists()  # it waits

    monkeypatch.setattr(ledger_module, "write_key", write_and_sweep)
    fit = reserve(ledger)
    assert forks.wait(sweepers[0]) == 0
    assert (elsewhere / "out").read_text() == str(FIT)
    assert ledger.key_path(fit.fit_id).exists()


def test_settling_where_the_key_is_not_says_so(ledger, url, capsys):
    here, there, ended = (reserve(ledger).fit_id for _ in range(3))
    ledger.key_path(there).unlink()  # on another machine
    ledger.settle(ended)
    for fit_id, told in ((here, "is erased"), (there, "not on this machine"), (ended, "had ended")):
        assert cli.main(["ledger", "settle", url, fit_id]) == 0
        out = capsys.readouterr().out
        assert told in out
        assert (": its key is erased" in out.replace("\n", ": ")) == (fit_id == here)
    with pytest.raises(ResumeError) as info:
        reserve(ledger, resume=there)
    assert "erased" not in str(info.value)


# ---- without permission to write -------------------------------------------------------------------------------------


@pytest.mark.parametrize("running", [False, True])
def test_show_works_without_permission_to_write(ledger, url, path, mounting, elsewhere, running):
    fit = reserve(ledger)
    reader = sqlite3.connect(path)
    reader.execute("SELECT * FROM dpgb_head").fetchone()
    fit.bind(1)
    fit.release(query(), raw())  # in the write-ahead file
    if not running:
        ledger._engine.dispose()
        reader.close()
    out = elsewhere / "out"
    out.touch()
    folder = str(path.parent)
    mounts = [
        ["--bind", str(elsewhere), "/mnt"],
        ["--bind", folder, folder],
        ["-o", "remount,bind,ro", folder],
    ]
    assert mounting(mounts, "show", url, "/mnt/out") == 0
    told = out.read_text()
    assert fit.fit_id in told
    assert "UNFINISHED" in told
    assert "agrees with itself" in told
    with contextlib.closing(reader):
        ledger.verify()


def test_looking_needs_no_room(ledger, url, path, capsys):
    fit = reserve(ledger)
    ledger._disconnect()
    assert not path.with_name(path.name + "-shm").exists()
    ours, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    # as a full disk; SQLite's index has 32,768 bytes
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, most))
    try:
        codes = [cli.main(["ledger", command, url]) for command in ("show", "verify")]
        told = capsys.readouterr().out
        with pytest.raises(
            LedgerUnavailableError, match=r"(?s)Nothing was charged.* there is room"
        ):
            reserve(Ledger(url))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (ours, most))
    assert codes == [0, 0]
    assert fit.fit_id in told
    assert "agrees with itself" in told
    assert Ledger(url).account("a").spent == FIT


def test_an_address_to_look_at_only_is_never_charged(ledger, path):
    reserve(ledger)
    look = Ledger(f"sqlite:///file:{path}?mode=ro&uri=true")
    assert look.account("a").spent == FIT
    look.verify()
    for act in (lambda: reserve(look), lambda: look.open_account("b", epsilon=1.0, delta=1e-6)):
        with pytest.raises(LedgerUnavailableError, match=r"readonly(?s:.*)Nothing was charged"):
            act()
    assert ledger.account("a").spent == FIT


# ---- ledgers of older versions ---------------------------------------------------------------------------------------

ENDED, OPEN, SETTLED = (
    "a5d6ea146f6a169f5ee52999",
    "17584bc13f4f33c4505ec0fe",
    "d99b31a9989ff24353397dc0",
)
OPEN_KEY = bytes.fromhex("edf7b230a40e220e65bdf032ba6fc37e670063fc5df810855020e2a9cb9fcef6")


@pytest.fixture
def before(path, monkeypatch):
    """A ledger of version 1: a fit that ended after two rounds, one unfinished after one, one settled before any."""
    monkeypatch.setattr(release, "_version", lambda: "dpgb_dask 0.1.0, sampler 2")
    monkeypatch.setattr(release, "SAMPLER_VERSION", 2)  # a part of the ids of its rounds
    connection = sqlite3.connect(path)
    connection.executescript((HERE / "ledger-v1.sql").read_text())
    seq, digest = connection.execute("SELECT seq, hash FROM dpgb_head").fetchone()
    connection.close()
    Path(f"{path}.head").write_text(json.dumps({"seq": seq, "hash": digest}))
    journals = Path(f"{path}.fits") / "journals"
    journals.mkdir(parents=True)
    (journals.parent / f"{OPEN}.key").write_bytes(OPEN_KEY)
    for line in (HERE / "ledger-v1.jsonl").read_text().splitlines(keepends=True):
        fit_id = json.loads(line)["receipt"]["fit_id"]
        with (journals / f"{fit_id}.jsonl").open("a") as out:
            out.write(line)
    return path


def test_a_ledger_of_before_goes_on(before, url):
    ledger = Ledger(url)
    account = ledger.account("a")
    assert (account.spent, account.unit_id) == (2 * FIT, None)
    assert [fit.state for fit in ledger.fits("a")] == ["RELEASED", "RESERVED", "SETTLED"]
    ledger.verify()
    assert sorted(file.name for file in before.parent.glob("budget.db.*")) == []

    facts = {"recipe": "a recipe"}
    resume = partial(reserve, ledger, facts=facts, journal=partial(open_journal, ledger))
    ended = resume(resume=ENDED)
    assert ended.replayed(query(), raw().sensitivity) is not None
    assert ended.replayed(query("q 2"), raw().sensitivity) is not None
    ended.finish()
    resumed = resume(resume=OPEN)
    resumed.bind(1)
    answer = resumed.release(query(), raw()).value.tolist()
    assert answer == [1469473, -490287, 3075962]
    assert ledger.settle(OPEN) == ROUND
    assert not list(before.parent.rglob("*.key"))
    fit = reserve(ledger, unit_id="person")
    assert ledger.account("a").spent == FIT + ROUND + FIT
    ledger.settle(fit.fit_id)
    ledger.verify()


@pytest.mark.parametrize("by_link", [False, True])
def test_an_unfinished_fit_of_before_is_settled(before, url, elsewhere, by_link):
    """Its files lie beside the name that was used, which is that of the file or of a link to it."""
    address = url
    if by_link:
        address = f"sqlite:///{elsewhere}/link.db"
        (elsewhere / "link.db").symlink_to(before)
        for kind in ("head", "fits"):
            Path(f"{before}.{kind}").rename(elsewhere / f"link.db.{kind}")
    ledger = Ledger(address)
    assert ledger.settle(OPEN) == ROUND
    assert not list(before.parent.rglob("*.key"))
    assert ledger.settle(ENDED) == FIT
    assert ledger.account("a").spent == FIT + ROUND
    ledger.verify()


def test_an_old_copy_of_a_ledger_of_before_is_refused(before, url):
    Path(f"{before}.head").write_text(json.dumps({"seq": 13, "hash": "f" * 64}))
    for _ in range(2):
        with pytest.raises(LedgerError, match="older than its newest known head"):
            Ledger(url).accounts()
    assert Ledger(url).restore()
    assert Ledger(url).account("a").spent == 2 * FIT


def test_a_ledger_of_before_without_a_head_is_refused(before, url):
    Path(f"{before}.head").unlink()
    for _ in range(2):
        with pytest.raises(LedgerError, match="newest head is not beside it"):
            Ledger(url).accounts()


def test_a_ledger_of_before_is_shown_without_permission_to_write(before):
    Ledger_ = f"sqlite:///file:{before}?mode=ro&uri=true"
    assert Ledger(Ledger_).account("a").spent == 2 * FIT
    assert Path(f"{before}.head").exists()


def test_a_pure_fit_of_version_3_is_charged_as_it_was(path, url, monkeypatch):
    """Its terms name no bill, so it is one release of all its ε; its lease is a digest already."""
    written = Terms.to_json
    monkeypatch.setattr(
        Terms, "to_json", lambda terms: {k: v for k, v in written(terms).items() if k != "bill"}
    )
    ledger = Ledger(url)
    ledger.open_account("a", epsilon=3.0, delta=1e-6)
    journal = partial(open_journal, ledger)
    settings = {"pure": True, "budget": Budget(epsilon=0.4, delta=1e-6)}
    fit = reserve(ledger, **settings, journal=journal)
    fit.bind(1)
    fit.release(query(price=fit.total // 3), raw())
    whole, price = ledger.account("a").spent, fit.total // 3
    monkeypatch.undo()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE dpgb_meta SET version = 3")
    connection.commit()
    connection.close()
    later = Ledger(url)
    resumed = reserve(later, **settings, resume=fit.fit_id, journal=partial(open_journal, later))
    resumed.bind(1)
    assert resumed.replayed(query(price=price), raw().sensitivity) is not None
    resumed.release(query("q 2", price=price), raw())
    assert later.account("a").spent == whole == account_units.cost(fit.total, "gdp")
    assert later.settle(fit.fit_id) == account_units.cost(2 * price, "gdp")
    later.verify()


def test_a_ledger_of_a_newer_version_is_refused(ledger, url):
    reserve(ledger)
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("UPDATE dpgb_meta SET version = 5")
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match="version 5 and this library reads 4"):
        Ledger(url).accounts()


@pytest.mark.parametrize("wrong", ["../../x", "", "0" * 17])
def test_an_id_that_is_no_id_is_refused(ledger, url, wrong):
    reserve(ledger)
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("UPDATE dpgb_meta SET ledger = ?", (wrong,))
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match="id cannot be read"):
        Ledger(url).accounts()


def test_files_beside_a_ledger_are_its_owners(ledger):
    fit = reserve(ledger)
    assert ledger.directory.stat().st_mode & 0o077 == 0
    assert ledger.key_path(fit.fit_id).stat().st_mode & 0o077 == 0
    assert os.path.samefile(ledger.journal_path("x").parent.parent, ledger.directory)


def test_a_fit_that_had_done_nothing_before_a_restore_keeps_its_charge(ledger):
    fit = reserve(ledger)
    charged = ledger.account("a").spent
    (ledger.directory / "head").unlink()
    assert ledger.restore()
    with pytest.raises(ResumeError, match="when the ledger was restored"):
        reserve(ledger, resume=fit.fit_id)
    assert ledger.settle(fit.fit_id) == charged
