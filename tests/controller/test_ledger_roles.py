"""Roles of a ledger on PostgreSQL: what an owner, an analyst and an auditor can do, and what a hostile one cannot."""

import itertools
import json
import math
from types import SimpleNamespace
from uuid import uuid4

import numpy as np
import pytest
from controller_parts import SMALL, ListJournal, choice_query, query, raw, reserve, tree_query
from postgres_parts import as_role, new_database, run

from dpgb_dask.contracts.boundary import Raw, Sensitivity
from dpgb_dask.contracts.queries import DRAW_BITS, PRICE_ONE, RowDraw
from dpgb_dask.contracts.spending import Item
from dpgb_dask.controller import account_units
from dpgb_dask.controller.accounting import total_price
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.ledger_book import Book
from dpgb_dask.controller.ledger_server import ServerBook
from dpgb_dask.errors import LedgerError

pytestmark = pytest.mark.services
psycopg = pytest.importorskip("psycopg", reason="NO PSYCOPG: pip install '.[services]'")

CAP = total_price(3.0, 1e-6)
FIT = total_price(SMALL.epsilon, SMALL.delta)
TABLES = ("dpgb_meta", "dpgb_accounts", "dpgb_fits", "dpgb_entries", "dpgb_head")


@pytest.fixture
def team(tmp_path, monkeypatch):
    """A ledger with account 'a' of ε = 3, its owner, two analysts (eve, ann) and an auditor (tom), by address."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    mark = uuid4().hex[:8]
    names = {who: f"{who}_{mark}" for who in ("owner", "eve", "ann", "tom")}
    with new_database(tuple(names.values())) as admin:
        urls = {who: as_role(admin, name) for who, name in names.items()}
        ledger = Ledger(urls["owner"])
        ledger.open_account("a", epsilon=3.0, delta=1e-6)
        for who, kind in (("eve", "analyst"), ("ann", "analyst"), ("tom", "auditor")):
            ledger.grant(kind, names[who])
        yield SimpleNamespace(**urls, names=names, admin=admin, ledger=ledger)


def attempt(url, statement):
    """Run a statement as psql would; return the code of the error, "" if it succeeds."""
    address = url.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(address, autocommit=True) as connection:
        try:
            connection.execute(statement)
        except psycopg.Error as error:
            return error.sqlstate
        return ""


def value_of(url, statement):
    """Return the one value that a statement selects."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        return connection.execute(statement).fetchone()[0]


def test_analysts_charge_and_auditors_read(team, record_property):
    eve, tom, journal = Ledger(team.eve), Ledger(team.tom), ListJournal()
    fit = reserve(eve, budget=SMALL, journal=journal)
    fit.bind(1)
    answer = fit.release(query(), raw()).value
    resumed = reserve(Ledger(team.eve), budget=SMALL, journal=journal, resume=fit.fit_id)
    assert (resumed.replayed(query(), raw().sensitivity).value == answer).all()
    resumed.bind(1)
    resumed.finish(model="f" * 64)
    left = reserve(eve, budget=SMALL)
    assert eve.settle(left.fit_id) == 0

    eve.open_account("a", epsilon=3.0, delta=1e-6)  # it is there: nothing to change
    for act in (
        lambda: eve.open_account("b", epsilon=3.0, delta=1e-6),
        lambda: eve.grant("analyst", team.names["tom"]),
        lambda: tom.grant("analyst", team.names["tom"]),
        lambda: reserve(tom, budget=SMALL),
        lambda: tom.settle(fit.fit_id),
    ):
        with pytest.raises(LedgerError, match=r"this role do that|that owns the ledger"):
            act()
    record = tom.record(fit.fit_id)
    assert (record.role, record.state) == (team.names["eve"], "RELEASED")
    assert team.names["eve"] in record.shown()["who"]
    assert tom.verify().fits == eve.verify().fits == 2
    assert tom.account("a").spent == FIT
    team.ledger.revoke(team.names["eve"])
    with pytest.raises(LedgerError, match="permission denied"):
        Ledger(team.eve).accounts()
    record_property("saw", "2 fits of an analyst, 1 settled; 5 acts refused; one charge")


def test_a_verification_does_not_forget_what_is_charged_meanwhile(team, monkeypatch):
    kept = team.ledger.directory / "head"
    verified = Book.verify

    def slow(book):
        found = verified(book)
        reserve(Ledger(team.eve), budget=SMALL)
        return found

    monkeypatch.setattr(Book, "verify", slow)
    before = json.loads(kept.read_text())["seq"]
    assert team.ledger.verify().fits == 0
    assert json.loads(kept.read_text())["seq"] == before + 1


@pytest.mark.parametrize(
    ("setting", "used"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")],
)
def test_a_charge_is_on_disk_whatever_a_database_or_role_has_set(team, monkeypatch, setting, used):
    seen, added = [], ServerBook.add_fit

    def noting(book, *given):
        seen.append(book._connection.exec_driver_sql("SHOW synchronous_commit").scalar())
        added(book, *given)

    monkeypatch.setattr(ServerBook, "add_fit", noting)
    run(team.admin, f"ALTER ROLE {team.names['eve']} SET synchronous_commit = {setting}")
    reserve(Ledger(team.eve), budget=SMALL)
    assert seen == [used]


def test_who_looks_into_an_empty_database_makes_no_ledger_and_owns_none(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with new_database() as empty:
        assert Ledger(empty).accounts() == ()
        for look in (Ledger.verify, lambda ledger: ledger.grant("auditor", "tom")):
            with pytest.raises(LedgerError, match="There is no ledger at"):
                look(Ledger(empty))
        assert value_of(empty, "SELECT count(*) FROM pg_class WHERE relname LIKE 'dpgb%'") == 0
        Ledger(empty).open_account("a", epsilon=3.0, delta=1e-6)
        assert Ledger(empty).verify().accounts == 1


def test_a_fit_is_ended_by_its_role_or_the_owner(team):
    fit = reserve(Ledger(team.ann), budget=SMALL)
    for act in (Ledger(team.eve).settle, lambda fit_id: Ledger(team.eve).take(fit_id, "mine")):
        with pytest.raises(LedgerError, match="of another role"):
            act(fit.fit_id)
    assert Ledger(team.owner).settle(fit.fit_id) == 0


def test_rights_are_given_only_where_they_hold(team):
    for kind, role, why in (
        ("analyst", "nobody there", "no role 'nobody there'"),
        ("boss", team.names["eve"], "Use one of"),
        ("analyst", team.names["owner"], "could change everything"),
    ):
        with pytest.raises(LedgerError, match=why):
            team.ledger.grant(kind, role)
    run(team.owner, "GRANT CREATE ON SCHEMA public TO PUBLIC")
    with pytest.raises(LedgerError, match="REVOKE CREATE ON SCHEMA public"):
        team.ledger.grant("analyst", team.names["eve"])
    run(team.owner, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with pytest.raises(LedgerError, match="no role"):
        team.ledger.revoke("nobody there")
    with pytest.raises(LedgerError, match="has no roles"):
        Ledger("sqlite://").grant("analyst", "x")


BACK_DOORS = (  # each with how to close it
    ("ALTER ROLE {tom} CREATEROLE", "ALTER ROLE {tom} NOCREATEROLE", "can become"),
    ("GRANT {owner} TO {tom}", "REVOKE {owner} FROM {tom}", "can become"),
    ("GRANT pg_write_all_data TO {tom}", "REVOKE pg_write_all_data FROM {tom}", "of pg_write_all_data"),
    ("GRANT {eve} TO {tom}", "REVOKE {eve} FROM {tom}", "of eve_"),
    ("GRANT INSERT (seq) ON dpgb_entries TO PUBLIC", "REVOKE ALL ON dpgb_entries FROM PUBLIC", "of PUBLIC"),
    ("GRANT CREATE ON DATABASE {base} TO {tom}", "REVOKE CREATE ON DATABASE {base} FROM {tom}", "CREATE ON DATABASE"),
)  # fmt: skip


@pytest.mark.parametrize(("opened", "closed", "why"), BACK_DOORS)
def test_a_role_with_a_back_door_is_given_nothing(team, opened, closed, why):
    """What an auditor could do by other rights than those of the ledger's own; closed, the role is as good as any."""
    server = int(value_of(team.admin, "SHOW server_version_num"))
    if "CREATEROLE" in opened and server >= 160000:
        pytest.skip(
            "since PostgreSQL 16, CREATEROLE makes nobody a member of roles that it has not made"
        )
    words = {**team.names, "base": team.admin.rpartition("/")[2]}
    run(team.admin, opened.format(**words))
    with pytest.raises(LedgerError, match=why):
        team.ledger.grant("auditor", team.names["tom"])
    run(team.admin, closed.format(**words))
    team.ledger.grant("auditor", team.names["tom"])


def test_rights_from_before_the_functions_end_with_them(team):
    """Without functions everybody who charged wrote the tables; default privileges may still say so."""
    mine, tables = team.names["eve"], ", ".join(TABLES)
    functions = value_of(
        team.admin,
        "SELECT string_agg(oid::regprocedure::text, ', ') FROM pg_proc WHERE starts_with(proname, 'dpgb_')",
    )
    run(team.admin, f"DROP FUNCTION {functions}")
    run(team.admin, f"GRANT ALL ON {tables} TO {mine} WITH GRANT OPTION")
    run(team.eve, f"GRANT ALL ON {tables} TO {team.names['ann']}")
    run(team.owner, f"ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO {mine}")
    run(team.admin, "UPDATE dpgb_meta SET version = 2")
    Ledger(team.owner).verify()
    for url in (team.eve, team.ann):
        for asked in ("UPDATE dpgb_accounts SET spent = '0'", "SELECT dpgb_lock(1000)"):
            assert attempt(url, asked) == "42501", asked


TERMS = {
    "epsilon": 0.5, "delta": 1e-6, "price": str(FIT), "min_sigma_bits": 20, "tau": 1.2e-19, "plan_digest": "00",
    "version": "v", "public_seed": 5, "commitment": "c", "pure": False, "facts": {"recipe": "x"}, "unit_id": None,
    "who": "eve", "bill": [],
}  # fmt: skip


def reserving(charge=FIT, account="a", fit="new", lease="0" * 64, **changes):
    terms = json.dumps(TERMS | changes)
    return f"SELECT dpgb_reserve('{account}', '{fit}', '{lease}', {charge}, $terms${terms}$terms$)"


def opening(
    fit, lease, position=1, price=7, rows="NULL, NULL, NULL, NULL", cost="NULL", choice="NULL"
):
    return f"SELECT dpgb_open('{fit}', '{lease}', {position}, 'q', 's', {price}, {rows}, {cost}, {choice})"


RIGHTS = [
    *(f"UPDATE {table} SET {column}" for table, column in (
        ("dpgb_accounts", "spent = '0'"), ("dpgb_accounts", "cap = '9' || cap"), ("dpgb_fits", "lease = ''"),
        ("dpgb_entries", "body = '{}'"), ("dpgb_head", "seq = 0"), ("dpgb_meta", "ledger = '0000000000000000'"),
    )),
    *(f"{verb} {table}" for table in TABLES for verb in ("DELETE FROM", "TRUNCATE", "DROP TABLE")),
    *(f"INSERT INTO {table} SELECT * FROM {table}" for table in TABLES),
    *(f"ALTER TABLE {table} DISABLE TRIGGER ALL" for table in TABLES),
    *(f"BEGIN; LOCK TABLE {table} IN EXCLUSIVE MODE" for table in TABLES),
    "SELECT * FROM dpgb_head FOR UPDATE",
    "CREATE TABLE dpgb_mine (x int)",
    "CREATE FUNCTION public.sha256(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT NULL::bytea'",
    "CREATE FUNCTION public.dpgb_require(boolean, text) RETURNS void LANGUAGE sql AS 'SELECT'",
    "CREATE OPERATOR public.<= (LEFTARG = numeric, RIGHTARG = numeric, FUNCTION = numeric_ge)",
    "CREATE OR REPLACE FUNCTION dpgb_require(p_holds boolean, p_rule text) RETURNS void LANGUAGE sql AS 'SELECT'",
    "ALTER FUNCTION dpgb_settle(text, numeric) RESET search_path",
    "DROP FUNCTION dpgb_settle(text, numeric)",
    "CREATE TRIGGER t BEFORE UPDATE ON dpgb_head FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE RULE r AS ON UPDATE TO dpgb_accounts DO INSTEAD NOTHING",
    "SET ROLE {owner}",
    "SET SESSION AUTHORIZATION {owner}",
    "SET session_replication_role = replica",
    "GRANT {owner} TO {eve}",
    "SELECT dpgb_open_account('b', '{}')",
    "SELECT dpgb_restore(0)",
    "SELECT dpgb_append('OPEN', 'b', '', '{}')",
    "SELECT dpgb_end(f, 0, 'SETTLED', '{}') FROM dpgb_fits f",
    "SELECT dpgb_unfinished('{fit}', NULL)",
    "SELECT dpgb_json('x')",
]  # fmt: skip
FORGED = [
    reserving(charge=FIT - 1),
    reserving(charge=0),
    reserving(charge=-FIT),
    reserving(charge="'NaN'"),
    reserving(charge="NULL"),
    reserving(charge=f"{FIT}.5"),
    reserving(charge=CAP + 1),
    reserving(charge=1, price="-5"),
    reserving(charge=1, price="1e-3"),
    reserving(charge=1, price="NaN"),
    reserving(charge="1e90", price="1e90"),
    reserving(account="none"),
    reserving(fit="../../x"),
    reserving(fit="{fit}"),
    reserving(lease="short"),
    reserving(price=None),
    reserving(epsilon="NaN"),
    reserving(epsilon=-1),
    reserving(delta=2),
    reserving(tau=-1),
    reserving(tau=0),  # less than its noise has
    reserving(tau=1e-19),
    reserving(tau=1e-3),
    reserving(tau=1e-300),
    reserving(facts=[]),
    reserving(facts={"x": 1}),
    reserving(facts=None),
    reserving(min_sigma_bits=1.5),
    reserving(min_sigma_bits=10**30),
    reserving(pure=None),
    reserving(who=None),
    reserving(pure=True, price=str(PRICE_ONE), charge=PRICE_ONE),  # μ(1)² = 1.52
    reserving(charge=1, bill=[["7", 1, "sums"]]),  # of a fit in μ² it is nothing
    *(reserving(pure=True, charge=7, bill=bill) for bill in (
        None, {}, "x", [7], [[]], [["7", 1]], [["7", 1, "sums", 1]], [[7, 1, "sums"]], [["-7", 1, "sums"]],
        [["7", 1.5, "sums"]], [["7", "1", "sums"]], [["7", 0, "sums"]], [["7", 1, "x"]], [["7", 1, None]],
        [["7", 1, "sums"], None],
    )),
    opening("{fit}", "{lease}", cost=7, choice="false"),  # of a fit in μ² the price is the cost
    "SELECT dpgb_reserve('a', 'new', repeat('0', 64), 5, '[]')",
    "SELECT dpgb_reserve('a', 'new', repeat('0', 64), 5, '{5')",
    "SELECT dpgb_reserve(NULL, NULL, NULL, NULL, NULL)",
    opening("{fit}", "wrong"),
    opening("{other}", "{lease}"),
    opening("none", "{lease}"),
    "SELECT dpgb_open('{other}', NULL, 0, 'q', 's', 7, NULL, NULL, NULL, NULL, NULL, NULL)",
    opening("{fit}", "{lease}", position=0),
    opening("{fit}", "{lease}", position=2),
    opening("{fit}", "{lease}", position=-1),
    opening("{fit}", "{lease}", position="NULL"),
    opening("{fit}", "{lease}", price=0),
    opening("{fit}", "{lease}", price=-7),
    opening("{fit}", "{lease}", price="NULL"),
    opening("{fit}", "{lease}", price="'NaN'"),
    opening("{fit}", "{lease}", price="0.5"),
    opening("{fit}", "{lease}", price=FIT),
    opening("{fit}", "{lease}", price=10**60),
    opening("{fit}", "{lease}", rows="'all', 0, 0, 5"),
    opening("{fit}", "{lease}", rows="'part', 0, 5, 5"),
    opening("{fit}", "{lease}", rows="'part', 0, 0, 5000000000"),
    opening("{fit}", "{lease}", rows="'part', -1, 0, 5"),
    opening("{fit}", "{lease}", rows="'part', NULL, 0, 5"),
    "SELECT dpgb_open('{fit}', '{lease}', 1, repeat('q', 999), 's', 7, NULL, NULL, NULL, NULL, NULL, NULL)",
    "SELECT dpgb_open('{fit}', '{lease}', 1, NULL, 's', 7, NULL, NULL, NULL, NULL, NULL, NULL)",
    "SELECT dpgb_bind('{fit}', '{lease}', 'other data')",
    "SELECT dpgb_bind('{other}', NULL, 'x')",
    "SELECT dpgb_bind('{other}', '{lease}', 'x')",
    "SELECT dpgb_take('{other}', repeat('0', 64))",
    "SELECT dpgb_take('{fit}', 'short')",
    "SELECT dpgb_take('{fit}', NULL)",
    "SELECT dpgb_settle('{other}', 0)",
    "SELECT dpgb_settle('{fit}', {opened} - 1)",
    "SELECT dpgb_settle('{fit}', -1)",
    "SELECT dpgb_settle('{fit}', NULL)",
    "SELECT dpgb_settle('{fit}', 'NaN')",
    "SELECT dpgb_settle('{fit}', {opened} + 0.5)",
    f"SELECT dpgb_settle('{{fit}}', {FIT + 1})",
    "SELECT dpgb_settle('none', 0)",
    "SELECT dpgb_release('{fit}', '{lease}', {opened} - 1, 'x', 'x')",
    "SELECT dpgb_release('{fit}', 'wrong', {opened}, 'x', 'x')",
    "SELECT dpgb_release('{fit}', NULL, {opened}, 'x', 'x')",
    "SELECT dpgb_release('{fit}', '{lease}', {opened}, NULL, 'x')",
    "SELECT dpgb_release('{other}', NULL, 0, 'x', 'x')",
]  # fmt: skip


def test_a_hostile_analyst_changes_nothing(team, record_property):
    ann, eve = (reserve(Ledger(url), budget=SMALL) for url in (team.ann, team.eve))
    eve.bind(1)
    price = eve.release(query(), raw()).receipt.price
    words = {
        "fit": eve.fit_id, "other": ann.fit_id, "lease": eve._lease, "opened": price,
        "owner": team.names["owner"], "eve": team.names["eve"],
    }  # fmt: skip
    before = team.ledger.history("a"), team.ledger.accounts(), team.ledger.fits("a")

    def asked_of(statement):
        for word, value in words.items():
            statement = statement.replace(f"{{{word}}}", str(value))
        return statement

    for asked in map(asked_of, RIGHTS):
        for url in (team.eve, team.tom):
            assert attempt(url, asked) == "42501", asked
    for asked in map(asked_of, FORGED):
        code = attempt(team.eve, asked)
        assert code == "DPGB0" or code[:2] == "22", (code, asked)
        assert attempt(team.tom, asked) in ("42501", "22P02"), (
            asked
        )  # the second if it is no JSON at all
    assert (team.ledger.history("a"), team.ledger.accounts(), team.ledger.fits("a")) == before
    team.ledger.verify()
    # none of them was refused for its form alone
    assert attempt(team.eve, opening(eve.fit_id, eve._lease)) == ""
    assert attempt(team.eve, reserving()) == ""
    assert attempt(team.eve, f"SELECT dpgb_settle('{eve.fit_id}', {price + 7})") == ""
    team.ledger.verify()
    assert team.ledger.account("a").spent == 2 * FIT + price + 7
    record_property(
        "saw", f"{len(RIGHTS)} acts without a right and {len(FORGED)} forged calls refused"
    )


def test_what_a_caller_can_make_or_set_changes_nothing(team):
    """Objects of her own session, and settings that change how texts and numbers are written."""
    reserve(Ledger(team.eve), budget=SMALL)
    with psycopg.connect(team.eve.replace("+psycopg", ""), autocommit=True) as hers:
        for statement in (
            "CREATE TEMP TABLE dpgb_accounts AS TABLE public.dpgb_accounts",
            "CREATE TEMP TABLE dpgb_head AS TABLE public.dpgb_head",
            "UPDATE pg_temp.dpgb_accounts SET spent = '0', cap = '9' || cap",
            "CREATE FUNCTION pg_temp.dpgb_require(boolean, text) RETURNS void LANGUAGE sql AS 'SELECT'",
            "CREATE FUNCTION pg_temp.sha256(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT NULL::bytea'",
            "SET search_path = pg_temp, public",
            "SET extra_float_digits = -15",
            "SET standard_conforming_strings = off",
            "SET TimeZone = 'Asia/Tokyo'",
            "SET DateStyle = 'German'",
            "SET transform_null_equals = on",
            "SET bytea_output = 'escape'",
            "SET client_encoding = 'LATIN1'",
            "SET default_transaction_isolation = 'serializable'",
        ):
            hers.execute(statement)
        hers.execute(reserving(fit="hers", who='É\\\\u0041\\\\"', tau=1.2345678901234567e-19))
        with pytest.raises(psycopg.Error, match="too little left"):
            hers.execute(reserving(fit="more", charge=CAP - FIT))
    team.ledger.verify()
    assert team.ledger.account("a").spent == 2 * FIT


ODD = (
    '\x7f\x01\t\n"\\/',
    "Ärger–人",
    "🌳\U0010ffff",
    "'; DROP TABLE dpgb_fits; --",
    "%s %(x)s :x {0}",
)


def test_the_server_writes_the_chain_that_the_client_verifies(team):
    """Names and facts with every kind of character, and the prices of parts and samples in each kind of account."""
    for name in ODD:
        team.ledger.open_account(name, epsilon=3.0, delta=1e-6, unit_id=name)
        fit = reserve(
            Ledger(team.eve), account=name, unit_id=name, budget=SMALL, facts={name: name}
        )
        fit.bind(1)
        fit.release(query(name), raw())
        fit.finish(model=name[:5])
        assert team.ledger.record(fit.fit_id).terms.facts[name] == name
    assert team.ledger.verify().entries == 1 + 5 * len(ODD)


DRAWS = [
    None,
    RowDraw("part", 0, 0, 4),
    RowDraw("part", 0, 4, 1 << DRAW_BITS),
    RowDraw("sample", 1, 0, 1 << (DRAW_BITS - 2)),
    RowDraw("sample", 1, 0, 1 << (DRAW_BITS - 2)),
    RowDraw("sample", 2, 5, 1 << (DRAW_BITS - 9)),
    None,
]


@pytest.mark.parametrize(
    ("analysis", "pure"),
    [("gdp", False), ("gdp", True), ("zcdp", False), ("zcdp", True), ("pure", True)],
)
def test_what_was_opened_is_what_both_sides_compute(team, analysis, pure):
    delta = 0.0 if analysis == "pure" else 1e-6
    team.ledger.open_account("u", epsilon=20.0, delta=delta, analysis=analysis)
    eve, charged = Ledger(team.eve), 0
    for n_rounds in (1, 3, len(DRAWS)):
        fit = reserve(eve, account="u", budget=SMALL, pure=pure)
        fit.bind(1)
        part = fit.total // 10
        for k, draw in enumerate(DRAWS[:n_rounds]):
            if draw is None:
                fit.release(query(f"q {k}", price=part), raw())
            else:
                sums = Raw(np.zeros(2, np.int64), Sensitivity(1, 1))
                fit.release(tree_query(part, draw), sums)
        counted = int(team.ledger.history("u")[-1].body["spent"])
        assert 0 <= fit.spent - counted <= fit.total >> 40
        sampled = pure and analysis != "pure" and n_rounds > 3
        known = fit.total if sampled else fit.spent
        least = account_units.charge(known, pure=pure, analysis=analysis)
        # what is computed in double precision is checked to 1e-9
        below = least - max(1 << 20, least >> 25)
        assert attempt(team.eve, f"SELECT dpgb_settle('{fit.fit_id}', {below})") == "DPGB0"
        assert eve.settle(fit.fit_id) == least
        charged += least
        assert team.ledger.account("u").spent == charged
    team.ledger.verify()


def of(thousandths, analysis, *, choice=False):
    """Return what a release of thousandths of ε costs an account."""
    return account_units.cost(PRICE_ONE * thousandths // 1000, analysis, choice=choice)


@pytest.mark.parametrize("analysis", ["gdp", "zcdp"])
def test_fits_that_are_charged_by_their_releases(team, analysis):
    """Sums, choices, parts and samples: both sides count the same, and the server takes no less."""
    team.ledger.open_account("u", epsilon=20.0, delta=1e-6, analysis=analysis)
    eve = Ledger(team.eve)
    items = [(100, 2, "sums"), (60, 1, "choice"), (80, 2, "sample")]
    bill = [Item(PRICE_ONE * price // 1000, times, kind) for price, times, kind in items]
    fit = reserve(eve, account="u", pure=True, bill=bill)
    fit.bind(1)
    sums, expected = Raw(np.zeros(2, np.int64), Sensitivity(1, 1)), 0
    tenth = (1 << 32) // 10

    def refuses(price, cost, choice="false", rows="NULL, NULL, NULL, NULL"):
        position = len(fit.receipts)
        asked = opening(fit.fit_id, fit._lease, position, price, rows, cost, choice)
        assert attempt(team.eve, asked) == "DPGB0"

    price = PRICE_ONE // 10
    for cost in ("NULL", -1, "0.5", "'NaN'", 0, of(100, analysis) * 7 // 10):
        refuses(price, cost)
    refuses(price, of(100, analysis, choice=True))
    refuses(price, of(100, analysis), "NULL")
    fit.release(query("all", price=price), raw())
    expected += of(100, analysis)
    chosen = choice_query(price=PRICE_ONE * 60 // 1000)
    refuses(chosen.price, of(60, analysis, choice=True) * 7 // 10, "true")
    fit.release(chosen, Raw(np.zeros(chosen.n_sums, np.int64), Sensitivity(1, 1, 1)))
    expected += of(60, analysis, choice=True)
    for k, thousandths in enumerate((100, 30, 99)):
        draw = RowDraw("part", 0, k, k + 1)
        fit.release(tree_query(PRICE_ONE * thousandths // 1000, draw), sums)
    expected += of(100, analysis)
    refuses(PRICE_ONE // 1000, 0, rows="'part', 0, 0, 1")  # a part pays for each of its queries
    for group in (1, 2):
        drawn = f"'sample', {group}, 0, {tenth}"
        refuses(PRICE_ONE // 10, of(80, analysis) * 7 // 10, rows=drawn)
        for _ in range(2):
            fit.release(tree_query(PRICE_ONE // 10, RowDraw("sample", group, 0, tenth)), sums)
        refuses(PRICE_ONE * 46 // 100, 0, rows=drawn)  # amplified, all of it costs 0.089
        expected += of(80, analysis)
    # above what was charged
    refuses(1, of(80, analysis), rows=f"'sample', 3, 0, {tenth}")
    refuses(price, of(100, analysis), rows="'part', 0, 0, 1")
    assert int(team.ledger.history("u")[-1].body["charged"]) == expected
    assert team.ledger.account("u").spent == expected
    assert attempt(team.eve, f"SELECT dpgb_settle('{fit.fit_id}', {expected - 1})") == "DPGB0"
    assert eve.settle(fit.fit_id) == expected
    fit = reserve(eve, account="u", pure=True, bill=bill[:2])
    fit.bind(1)
    for cost in (0, of(80, analysis)):  # no sample is in its bill
        refuses(7, cost, rows=f"'sample', 1, 0, {tenth}")
    team.ledger.verify()


@pytest.mark.parametrize(
    ("analysis", "price"),
    [("zcdp", 1 << 33), ("gdp", math.ceil(2**32 * math.sqrt(2 * 308 / math.pi)) + 10)],
)
def test_the_least_cost_that_the_server_takes_breaks_no_ledger(team, analysis, price):
    """The client's is a unit more, for it rounds up what it computes in double precision; nobody could charge again."""
    team.ledger.open_account("u", epsilon=20.0, delta=1e-6, analysis=analysis)
    fit = reserve(Ledger(team.eve), account="u", pure=True, bill=[Item(price, 3, "sums")])
    fit.bind(1)
    least = account_units.cost(price, analysis)

    def asked(cost):
        return opening(fit.fit_id, fit._lease, 0, price, cost=cost, choice="false")

    assert attempt(team.eve, asked(least - 2)) == "DPGB0"
    assert attempt(team.eve, asked(least - 1)) == ""
    team.ledger.verify()
    assert team.ledger.settle(fit.fit_id) == least - 1


def test_pure_fits_of_every_size_are_charged(team):
    """Costs as the client computes them are what the server accepts, and a little less is not."""
    for epsilon in (1e-15, 1e-5, 1e-3, 0.3, 1.0, 5.0, 20.0, 49.0):
        price = int(epsilon * PRICE_ONE)
        for analysis, choice in itertools.product(("gdp", "zcdp"), (False, True)):
            charge = account_units.cost(price, analysis, choice=choice)
            covers = f"dpgb_covers({{}}, {price}, true, '{analysis}')"
            if choice:
                covers = f"dpgb_covers_choice({{}}, {price}, '{analysis}')"
            covers = f"SELECT 1 / {covers}::integer"
            assert attempt(team.owner, covers.format(charge)) == ""
            less = max(0, int(charge * (1 - 1e-7)) - 2)
            assert attempt(team.owner, covers.format(less)) == "22012"
