"""The tables of a ledger: how they are made and brought up to date, and how an entry is hashed."""

import contextlib
import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    insert,
    inspect,
    select,
    text,
    update,
)

from dpgb_dask.controller.ledger_files import GENESIS, ID_FORM
from dpgb_dask.errors import DPGBError, LedgerError

VERSION = 4  # 1 had no `dpgb_meta` and no units, 1 and 2 held leases as they are, 3 had no bills
PUT_BACK = "Put the newest sound file back."
# on a server: the role that owns the tables, and whether the role that asks is, or is a member of, this one
OWNER = text(
    "SELECT pg_get_userbyid(relowner) AS name, pg_has_role(relowner, 'USAGE') AS here FROM pg_class"
    " WHERE oid = to_regclass('dpgb_entries')"
)
_SERVER = Path(__file__).with_name("ledger_server.sql")

METADATA = MetaData()
META = Table(
    "dpgb_meta",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("ledger", String(16), nullable=False),
)
# Prices are stored as decimal text, because they may exceed 64 bits.
ACCOUNTS = Table(
    "dpgb_accounts",
    METADATA,
    Column("name", String(200), primary_key=True),
    Column("epsilon", Text, nullable=False),
    Column("delta", Text, nullable=False),
    Column("analysis", String(16), nullable=False),
    Column("cap", Text, nullable=False),
    Column("spent", Text, nullable=False),
    Column("tau", Text, nullable=False),
    Column("unit_id", String(200)),
)
FITS = Table(
    "dpgb_fits",
    METADATA,
    Column("fit_id", String(80), primary_key=True),
    Column("account", String(200), nullable=False),
    Column("state", String(16), nullable=False),
    Column("price", Text, nullable=False),
    Column("terms", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("lease", String(64), nullable=False),  # its SHA-256: who reads a dump opens nothing
)
ENTRIES = Table(
    "dpgb_entries",
    METADATA,
    Column(
        "seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False
    ),
    Column("kind", String(16), nullable=False),
    Column("account", String(200), nullable=False),
    Column("fit_id", String(80), nullable=False),
    Column("at", String(40), nullable=False),
    Column("body", Text, nullable=False),
    Column("prev", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    Index("dpgb_entries_of_fit", "fit_id"),
    Index("dpgb_entries_of_account", "account"),
)
HEAD = Table(
    "dpgb_head",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),
)


def prepare(connection: Connection, *, make: bool) -> str:
    """Bring tables of an older version up to date, make them if that is asked for; return the ledger's id.

    On a server, whoever makes them owns them, and only the owner can bring them up to date. The id is "" if there are
    none, and none are made.

    Raises
    ------
    LedgerError
        If a newer version of the library wrote them, or they are another role's and of an older version.
    """
    version = _version(connection)
    if version != VERSION:
        server = connection.dialect.name != "sqlite"
        if server:  # two processes must not make the tables at once
            connection.execute(text("SELECT pg_advisory_xact_lock(684279)"))
            version = _version(connection)
        if version == 0 and not make:
            return ""
        if version == 0:
            _make(connection)
        elif version < VERSION:
            _bring_up_to_date(connection, version)
        if server and version != VERSION:
            _install(connection)
    with refusing_damage("its id"):
        ledger_id = str(connection.execute(select(META.c.ledger)).scalar_one())
    if not ID_FORM.fullmatch(ledger_id):
        raise LedgerError(f"The ledger is damaged: its id cannot be read. {PUT_BACK}")
    return ledger_id


def _version(connection: Connection) -> int:
    """Return the version of the tables; 0 if there are none."""
    there = inspect(connection)
    ours = set(there.get_table_names()) & set(METADATA.tables)
    if not ours:
        return 0
    old = META.name not in ours
    if missing := set(METADATA.tables) - ours - ({META.name} if old else set()):
        raise LedgerError(f"The ledger is damaged: {min(missing)} is not there. {PUT_BACK}")
    if old:
        if any(c["name"] == "unit_id" for c in there.get_columns(ACCOUNTS.name)):
            raise LedgerError(f"The ledger is damaged: {META.name} is not there. {PUT_BACK}")
        return 1
    version: Any = connection.execute(select(META.c.version)).scalar()
    if version is None:
        raise LedgerError(f"The ledger is damaged: its version cannot be read. {PUT_BACK}")
    if version not in range(2, VERSION + 1):
        raise LedgerError(
            f"The ledger has version {version!r} and this library reads {VERSION}. Install the version of"
            " dpgb_dask that wrote it."
        )
    return int(version)


def _make(connection: Connection) -> None:
    METADATA.create_all(connection)
    connection.execute(insert(HEAD).values(id=1, seq=0, hash=GENESIS))
    connection.execute(insert(META).values(id=1, version=VERSION, ledger=secrets.token_hex(8)))


def _bring_up_to_date(connection: Connection, version: int) -> None:
    if connection.dialect.name != "sqlite":
        owner: Any = connection.execute(OWNER).one()
        if not owner.here:
            raise LedgerError(
                f"The ledger has version {version} and this library writes {VERSION}. The role that owns it,"
                f" {owner.name!r}, brings it up to date by opening it once: dpgb-dask ledger verify URL."
            )
    if version == 1:
        METADATA.create_all(connection)
        connection.execute(text("ALTER TABLE dpgb_accounts ADD COLUMN unit_id VARCHAR(200)"))
        connection.execute(insert(META).values(id=1, version=VERSION, ledger=secrets.token_hex(8)))
    if version < 3:
        for fit_id, lease in connection.execute(select(FITS.c.fit_id, FITS.c.lease)).all():
            change = update(FITS).where(FITS.c.fit_id == fit_id)
            connection.execute(change.values(lease=digest(lease)))
    connection.execute(update(META).values(version=VERSION))


def _install(connection: Connection) -> None:
    """Install the functions by which a ledger on a server is written; nobody but the owner may use or change it yet."""
    encoding, schema = connection.execute(
        text("SELECT current_setting('server_encoding'), quote_ident(current_schema())")
    ).one()
    if encoding != "UTF8":
        raise LedgerError(
            f"The database has encoding {encoding}; a ledger hashes UTF8. Make a database with ENCODING 'UTF8'."
        )
    functions = _SERVER.read_text(encoding="utf-8").replace("SCHEMA.", f"{schema}.")
    connection.exec_driver_sql(functions, execution_options={"no_parameters": True})


@contextlib.contextmanager
def refusing_damage(what: str) -> Iterator[None]:
    """Turn failures to read something of a ledger into a `LedgerError`: it is damaged, or was changed by hand."""
    try:
        yield
    except DPGBError:
        raise
    except (
        LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError,
    ) as error:  # fmt: skip
        raise LedgerError(
            f"The ledger is damaged: {what} cannot be read ({type(error).__name__}). {PUT_BACK}"
        ) from None


def canonical(body: dict[str, Any]) -> str:
    """Return the text of an entry's body."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def digest(words: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(words.encode()).hexdigest()


def chained(previous: str, row: Mapping[str, Any]) -> str:
    """Return the hash of an entry that follows the one with hash ``previous``."""
    values = {name: row[name] for name in ("seq", "kind", "account", "fit_id", "at", "body")}
    return hashlib.sha256(f"{previous}\n{canonical(values)}".encode()).hexdigest()
