"""A ledger on PostgreSQL whose server stops, fails over, keeps silent, is restored, or stands behind a pool or TLS."""

import os
import pickle
import socket
import subprocess
import threading
from pathlib import Path
from uuid import uuid4

import pytest
from controller_parts import BUDGET, SMALL, ListJournal, query, raw, reserve
from postgres_parts import (
    Cluster,
    as_nobody,
    as_role,
    free_port,
    new_database,
    plain_folder,
    run,
    tool,
)
from sqlalchemy.engine.default import DefaultDialect
from waiting import comes_true

from dpgb_dask.controller import ledger as ledger_module
from dpgb_dask.controller import ledger_connections, release
from dpgb_dask.controller.accounting import total_price
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.ledger_server import ServerBook
from dpgb_dask.errors import BudgetExceededError, LedgerError, LedgerUnavailableError

pytestmark = pytest.mark.services
psycopg = pytest.importorskip("psycopg", reason="NO PSYCOPG: pip install '.[services]'")

HERE = Path(__file__).parent
CAP = total_price(3.0, 1e-6)
FIT = total_price(SMALL.epsilon, SMALL.delta)
ROUNDS = 12


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def folder():
    with plain_folder() as made:
        yield made


@pytest.fixture
def url():
    with new_database() as address:
        yield address


def opened(url):
    ledger = Ledger(url)
    ledger.open_account("a", epsilon=3.0, delta=1e-6)
    return ledger


def whole_fit(ledger, journal, *, resume=None, between=lambda _k: None):
    """Run a fit of `ROUNDS` rounds and return its answers; ``between`` is called before each."""
    fit = reserve(ledger, budget=SMALL, journal=journal, resume=resume)
    if not fit.ended:
        fit.bind(1)
    answers = []
    for k in range(ROUNDS):
        between(k)
        known = fit.replayed(query(f"q {k}"), raw().sensitivity)
        answer = fit.release(query(f"q {k}"), raw()) if known is None else known
        answers.append(answer.value.tolist())
    fit.finish()
    return fit.fit_id, answers


def check_one_charge(ledger, fit_id, n_fits=1):
    """Check that a fit of `whole_fit` is charged once, and each round was opened once."""
    ledger.verify()
    entries = [entry for entry in ledger.history("a") if entry.fit_id == fit_id]
    assert [e.kind for e in entries if e.kind != "LEASED"] == [
        "RESERVED", "BOUND", *["OPENED"] * ROUNDS, "RELEASED",
    ]  # fmt: skip
    assert ledger.account("a").spent == n_fits * FIT


# ---- answers that are lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_whose_answer_is_lost_is_made_once(url, after, monkeypatch, record_property):
    """The connection breaks at every commit that adds an entry, before it took effect or after."""
    ledger, writing, broken = opened(url), [], []
    commit, add = DefaultDialect.do_commit, ServerBook._add

    def adding(book, *asked):
        writing.append(asked)
        add(book, *asked)

    def committing(dialect, connection):
        step = writing and writing.pop()
        if step and step not in broken:
            broken.append(step)
            if after:
                commit(dialect, connection)
            connection.dbapi_connection.close()
        commit(dialect, connection)

    journal = ListJournal()
    with monkeypatch.context() as patches:
        patches.setattr(DefaultDialect, "do_commit", committing)
        patches.setattr(ServerBook, "_add", adding)
        fit_id, answers = whole_fit(ledger, journal)
        left = reserve(ledger, budget=SMALL, journal=ListJournal())
        other = reserve(Ledger(url), budget=SMALL, journal=ListJournal(), resume=left.fit_id)
        assert ledger.settle(other.fit_id) == 0
    check_one_charge(ledger, fit_id)
    assert whole_fit(ledger, journal, resume=fit_id) == (fit_id, answers)
    assert len(broken) == ROUNDS + 6
    record_property("saw", f"{len(broken)} commits broken, one charge, bits equal")


# ---- servers that stop -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["ledger", "analyst"])
def test_a_fit_outlives_restarts_of_its_server(folder, role, record_property):
    with Cluster(folder, "data") as cluster:
        owner = opened(cluster.url)
        run(cluster.url, "CREATE ROLE analyst LOGIN")
        owner.grant("analyst", "analyst")
        ledger = Ledger(as_role(cluster.url, role))
        thread = threading.Thread(target=cluster.start)

        def between(k):
            if k in (3, 7):
                cluster.stop()
            if k == 3:
                cluster.start()
            if k == 7:
                thread.start()  # it comes back while the fit waits

        journal = ListJournal()
        fit_id, answers = whole_fit(ledger, journal, between=between)
        thread.join()
        check_one_charge(owner, fit_id)
        assert whole_fit(Ledger(cluster.url), journal, resume=fit_id) == (fit_id, answers)
    record_property(
        "saw", f"2 restarts in a fit of {ROUNDS} rounds as {role}, one charge, bits equal"
    )


def test_a_fit_breaks_off_when_its_server_stays_away_and_is_resumed(folder, monkeypatch):
    monkeypatch.setattr(ledger_module, "OUTAGE_SECONDS", 1.0)
    with Cluster(folder, "data") as cluster:
        ledger, journal = opened(cluster.url), ListJournal()
        with pytest.raises(LedgerUnavailableError, match="did not come back within 1 s") as info:
            whole_fit(ledger, journal, between=lambda k: cluster.stop() if k == 5 else None)
        (fit_id,) = {entry.receipt.fit_id for entry in journal.kept}
        assert len(journal.kept) == 5
        cluster.start()
        assert whole_fit(Ledger(cluster.url), journal, resume=fit_id)[1][:5] == [
            list(entry.value) for entry in journal.kept[:5]
        ]
        check_one_charge(ledger, fit_id)
        assert "psycopg" not in str(info.value).replace("postgresql+psycopg", "")


def test_a_fit_goes_on_at_a_standby_that_is_promoted(folder, record_property):
    sync = "-c synchronous_standby_names=*"
    with Cluster(folder, "first") as first:
        standby = Cluster(folder, "second", of=first)
        first.stop("fast")
        first._options = sync
        with standby, first:
            both = "&".join(f"host=127.0.0.1:{server.port}" for server in (first, standby))
            url = f"postgresql+psycopg://ledger@/postgres?{both}&target_session_attrs=read-write"
            ledger, journal = opened(url), ListJournal()

            def between(k):
                if k == 6:
                    first.stop()
                    standby.control("promote")

            fit_id, answers = whole_fit(ledger, journal, between=between)
            check_one_charge(ledger, fit_id)
            sent = pickle.loads(pickle.dumps(ledger))
            assert whole_fit(sent, journal, resume=fit_id) == (fit_id, answers)
    record_property("saw", f"fail-over in a fit of {ROUNDS} rounds, one charge, bits equal")


def test_a_commit_that_no_standby_takes_is_waited_for_and_then_said(folder, monkeypatch):
    with Cluster(folder, "data") as cluster:
        ledger, journal = opened(cluster.url), ListJournal()

        def waits():
            with psycopg.connect(cluster.url.replace("+psycopg", "")) as connection:
                return connection.execute("SHOW synchronous_standby_names").fetchone() == ("gone",)

        def between(k):
            if k == 5:
                silent = "ALTER SYSTEM SET synchronous_standby_names = 'gone'"
                local = "SET synchronous_commit = local"
                run(cluster.url, local, silent, "SELECT pg_reload_conf()")
                assert comes_true(waits)

        with monkeypatch.context() as patches:
            patches.setattr(ledger_connections, "ANSWER_SECONDS", 3.0)
            patches.setattr(ledger_module, "WAIT_SECONDS", 1.0)
            with pytest.raises(LedgerUnavailableError, match=r"cannot be used: .*lock"):
                whole_fit(ledger, journal, between=between)
        assert len(journal.kept) == 5
        cluster.stop()
        (cluster.data / "postgresql.auto.conf").write_text("")
        cluster.start()
        (fit_id,) = {entry.receipt.fit_id for entry in journal.kept}
        whole_fit(Ledger(cluster.url), journal, resume=fit_id)
        check_one_charge(ledger, fit_id)


# ---- servers that keep silent ----------------------------------------------------------------------------------------


def test_a_server_that_does_not_answer_is_said_after_a_while():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        ledger = Ledger(f"postgresql+psycopg://me:geheim@127.0.0.1:{port}/x?connect_timeout=2")
        with pytest.raises(LedgerUnavailableError, match=r"(?s)timeout.*charged stands") as info:
            reserve(ledger, budget=SMALL)
        assert "geheim" not in str(info.value)


# ---- dumps -----------------------------------------------------------------------------------------------------------


def dump(url, file):
    address = url.replace("+psycopg", "")
    subprocess.run([tool("pg_dump"), "-Fc", "-f", file, address], check=True)


def put_back(url, file):
    address, name = url.replace("+psycopg", ""), url.rpartition("/")[2]
    server = os.environ["DPGB_POSTGRES"]
    run(server, f"DROP DATABASE {name} WITH (FORCE)", f"CREATE DATABASE {name}")
    subprocess.run([tool("pg_restore"), "-d", address, file], check=True)


def test_an_older_dump_is_noticed_where_a_newer_head_is_known(url, tmp_path, monkeypatch):
    ledger, file = opened(url), tmp_path / "dump"
    left = reserve(ledger, budget=SMALL)
    dump(url, file)
    reserve(ledger, budget=SMALL)
    put_back(url, file)
    for known in (ledger, Ledger(url)):
        for act in (known.accounts, lambda known=known: reserve(known, budget=SMALL)):
            with pytest.raises(LedgerError, match="older than its newest known head"):
                act()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "a machine that never saw it"))
    ledger_module._verified.clear()
    stranger = Ledger(url)
    assert not stranger.verify().head
    assert (
        stranger.account("a").spent == FIT
    )  # the second charge is forgotten, and nobody here can know
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    again = Ledger(url)
    assert again.restore()
    assert again.settle(left.fit_id) == FIT  # it may have opened more than the dump knows
    with pytest.raises(LedgerError, match="SETTLED"):
        again.look(left.fit_id)
    reserve(again, budget=SMALL)
    again.verify()


def test_a_dump_that_no_known_head_contradicts_is_restored_all_the_same(url, tmp_path, monkeypatch):
    """Rounds that are opened are in no head, and answers are out; the owner settles on a machine without a journal."""
    ledger, file = opened(url), tmp_path / "dump"
    fit = reserve(ledger, budget=SMALL)
    fit.bind(1)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "the owner's machine"))
    Ledger(url).verify()
    dump(url, file)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    fit.release(query(), raw())
    put_back(url, file)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "the owner's machine"))
    owner = Ledger(url)
    assert owner.verify().head  # nothing contradicts the dump here
    assert owner.restore()
    assert owner.settle(fit.fit_id) == FIT
    owner.verify()


# ---- older versions --------------------------------------------------------------------------------------------------

V2 = """
CREATE TABLE dpgb_meta (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, ledger VARCHAR(16) NOT NULL);
INSERT INTO dpgb_meta VALUES (1, 2, '0123456789abcdef');
ALTER TABLE dpgb_accounts ADD COLUMN unit_id VARCHAR(200)
"""


# leases are digests, and functions have other arguments: they go, and with them the rights on them
V3 = """;
UPDATE dpgb_meta SET version = 3;
UPDATE dpgb_fits SET lease = encode(sha256(convert_to(lease, 'UTF8')), 'hex');
CREATE FUNCTION dpgb_open(p_fit text) RETURNS text LANGUAGE sql AS $$ SELECT p_fit $$
"""


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_ledger_of_before_is_brought_up_to_date_by_its_owner(version, monkeypatch):
    monkeypatch.setattr(release, "_version", lambda: "dpgb_dask 0.1.0, sampler 2")
    owner, eve = (f"{who}_{uuid4().hex[:8]}" for who in ("owner", "eve"))
    script = (HERE / "ledger-v1.sql").read_text() + "".join((V2, V3)[: version - 1])
    with new_database((owner, eve)) as admin:
        url = as_role(admin, owner)
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(script)
            leases = {row[0] for row in connection.execute("SELECT lease FROM dpgb_fits")}
            connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC")
        with pytest.raises(
            LedgerError, match=rf"version {version} .*'{owner}', brings it up to date"
        ):
            Ledger(as_role(admin, eve)).accounts()
        ledger = Ledger(url)
        assert ledger.verify().entries == 12
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            kept = {row[0] for row in connection.execute("SELECT lease FROM dpgb_fits")}
        assert kept == leases if version == 3 else not leases & kept
        with pytest.raises(LedgerError, match="permission denied"):  # rights are given anew
            Ledger(as_role(admin, eve)).accounts()
        unfinished = "17584bc13f4f33c4505ec0fe"
        key = "edf7b230a40e220e65bdf032ba6fc37e670063fc5df810855020e2a9cb9fcef6"
        ledger.key_path(unfinished).parent.mkdir(parents=True, exist_ok=True)
        ledger.key_path(unfinished).write_bytes(bytes.fromhex(key))
        ledger.grant("analyst", eve)
        hers = Ledger(as_role(admin, eve))
        resumed = reserve(
            hers, resume=unfinished, facts={"recipe": "a recipe"}, journal=ListJournal()
        )
        resumed.bind(1)
        assert hers.settle(unfinished) == query().price
        ledger.verify()


# ---- pools and TLS ---------------------------------------------------------------------------------------------------


def race(url, n_threads=8):
    """Charge fits from threads with ledgers of their own until the account is spent; return how many were granted."""
    granted, failed = [], []

    def charge():
        try:
            granted.append(reserve(Ledger(url), budget=BUDGET).fit_id)
        except BudgetExceededError:
            pass
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=charge) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    return len(granted)


def n_connections(url):
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        return connection.execute(asked).fetchone()[0] - 1


def test_ledgers_of_one_process_share_few_connections(url, record_property):
    opened(url)
    assert race(url) == CAP // total_price(BUDGET.epsilon, BUDGET.delta) == 7
    assert 1 <= n_connections(url) <= ledger_connections.POOL_SIZE
    record_property("saw", f"8 threads, {n_connections(url)} connections, 7 fits granted of 7")


def test_a_pool_in_front_of_the_server_may_hand_connections_on(url, folder, record_property):
    name, port, server = url.rpartition("/")[2], free_port(), os.environ["DPGB_POSTGRES"]
    target = server.rpartition("@")[2].partition("/")[0]
    (folder / "users").write_text('"ledger" ""\n')
    (folder / "config").write_text(f"""
[databases]
{name} = host={target.partition(":")[0]} port={target.partition(":")[2]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 2
logfile = {folder}/log
pidfile = {folder}/pid
""")
    as_nobody(tool("pgbouncer"), "-d", folder / "config")
    try:
        assert comes_true(lambda: listens(port))
        pooled = f"postgresql+psycopg://ledger@127.0.0.1:{port}/{name}"
        opened(pooled)
        assert race(pooled) == 7
        assert n_connections(url) <= 2
        ledger = Ledger(pooled)
        ledger.settle(ledger.fits("a")[0].fit_id)
        journal = ListJournal()
        fit_id, answers = whole_fit(ledger, journal)
        assert whole_fit(Ledger(url), journal, resume=fit_id) == (fit_id, answers)
        ledger.verify()
    finally:
        os.kill(int((folder / "pid").read_text()), 15)
        assert comes_true(lambda: not (folder / "pid").exists())  # it removes it as it ends
    record_property(
        "saw", "pgbouncer by transactions, 2 connections: 7 of 7 fits granted, bits equal"
    )


def listens(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def certificate(folder, name, *options):
    words = (
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    )
    files = ("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt")
    as_nobody(tool("openssl"), *words, "-subj", f"/CN={name}", *files, *options)


def test_tls_to_the_server_is_verified_and_passwords_stay_secret(folder):
    for name in ("server", "another"):
        certificate(folder, name, "-addext", "subjectAltName=DNS:localhost")
    tls = f"-c ssl=on -c ssl_cert_file={folder}/server.crt -c ssl_key_file={folder}/server.key"
    with Cluster(folder, "data", tls) as cluster:
        run(cluster.url, "ALTER ROLE ledger PASSWORD 'geheim'")
        (cluster.data / "pg_hba.conf").write_text("hostssl all all all scram-sha-256\n")
        cluster.control("reload")

        def address(password="geheim", trusted="server", host="localhost", **more):
            options = (
                f"sslmode={more.get('mode', 'verify-full')}&sslrootcert={folder}/{trusted}.crt"
            )
            return (
                f"postgresql+psycopg://ledger:{password}@{host}:{cluster.port}/postgres?{options}"
            )

        def refused():
            try:
                Ledger(cluster.url + "?sslmode=disable").accounts()
            except LedgerUnavailableError as error:
                return "no encryption" in str(error)
            return False

        assert comes_true(refused)
        ledger = opened(address())
        fit = reserve(ledger, budget=SMALL)
        fit.finish()
        ledger.verify()
        for wrong, why in (
            (address(trusted="another"), "certificate verify failed"),
            (address(host="127.0.0.1"), "does not match host name"),
            (address(password="falsch"), "password authentication failed"),
        ):
            with pytest.raises(LedgerUnavailableError, match=why) as info:
                Ledger(wrong).accounts()
            assert not {"geheim", "falsch"} & set(str(info.value).replace("@", ":").split(":"))
        told = [repr(ledger), repr(ledger._engine), pickle.dumps(ledger).decode("latin1")]
        assert not [text for text in told if "geheim" in text]
