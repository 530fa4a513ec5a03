"""Connections of ledgers: one for each SQLite file that a ledger uses, a few that share a server."""

import atexit
import contextlib
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Dialect, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import StaticPool

from dpgb_dask.controller.ledger_files import WAIT_SECONDS

CONNECT_SECONDS = 10  # for a server to take a connection, unless the address says connect_timeout
ANSWER_SECONDS = 300.0  # for a whole transaction on a server
OUTAGE_SECONDS = 60.0  # for a server that went away to come back
POOL_SIZE = 4  # connections of this process to one server; more threads wait for each other

# what a server says that stops, starts, or is a standby that is not promoted yet
_AWAY = ("57P01", "57P02", "57P03", "25006")
_shared: dict[URL, Engine] = {}
_compiled: dict[Any, Any] = {}  # statements of SQLite, by dialect and what they say
_dialects: dict[str, Dialect] = {}  # of the first connection; others know the same statements
_of_parents: list[dict[URL, Engine]] = []  # whose connections a child process must not close


def server_engine(url: URL) -> Engine:
    """Return the engine of a server, which all ledgers of this process at this address share.

    Connections hold no state of their own, so that a pool in front of the server may hand them on after a transaction.
    """
    if url not in _shared:
        options: dict[str, Any] = {"prepare_threshold": None}
        if "connect_timeout" not in url.query:
            options["connect_timeout"] = CONNECT_SECONDS
        engine = create_engine(
            url, hide_parameters=True, connect_args=options, pool_size=POOL_SIZE, max_overflow=0,
            pool_timeout=ANSWER_SECONDS,
        )  # fmt: skip
        _shared.setdefault(url, engine)
    return _shared[url]


@atexit.register
def _close_shared() -> None:
    for engine in _shared.values():
        engine.dispose()


def forget_shared() -> None:
    """Give a child process no connections of its parent; they stay as they are."""
    _of_parents.append(dict(_shared))
    _shared.clear()


@contextlib.contextmanager
def on_server(engine: Engine, **options: Any) -> Iterator[Connection]:
    """Run a transaction on a server; if it fails, its connection is closed.

    A server that takes no answer back, as one whose synchronous standby is gone takes no commit, is waited for
    `ANSWER_SECONDS`; libpq would wait for ever.
    """
    with engine.connect() as connection:
        connection.execution_options(**options)
        raw: Any = connection.connection.dbapi_connection
        timer = threading.Timer(ANSWER_SECONDS, _cut, (raw,))
        timer.daemon = True
        timer.start()
        try:
            with connection.begin():
                yield connection
        except BaseException:
            connection.invalidate()
            raise
        finally:
            timer.cancel()


def _cut(raw: Any) -> None:
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(raw.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def is_away(error: Exception, *, used: bool) -> bool:
    """Return whether an error says that a server went away that was there: it may come back, or a standby in its place.

    Parameters
    ----------
    error : Exception
    used : bool
        Whether the ledger has used it before; else a server that takes no connection is one that cannot be reached.
    """
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    refused = isinstance(error, OperationalError) and state is None
    return error.connection_invalidated or state in _AWAY or (used and refused)


def sqlite_engine(url: URL, connections: list[Any]) -> Engine:
    """Return an engine for a SQLite file, or for memory, with one connection, which is added to a list.

    Statements are compiled once per process: a fit without a ledger has one of its own, in memory, and compiling for
    each was a tenth of a small fit.
    """
    engine = create_engine(
        url,
        hide_parameters=True,
        poolclass=StaticPool,  # one transaction at a time, under the ledger's lock
        connect_args={
            "check_same_thread": False,
            "timeout": WAIT_SECONDS,
            "factory": _SQLiteConnection,
        },
        execution_options={"compiled_cache": _compiled},
    )
    engine.dialect = _dialects.get(engine.dialect.name, engine.dialect)

    def connected(connection: Any, _record: Any) -> None:
        connections.append(connection)
        _configure_sqlite(connection)

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", _begin_immediate)
    return engine


class _SQLiteConnection(sqlite3.Connection):
    """A connection that ends its transaction when it is closed.

    SQLite keeps a closed connection, and its lock, for as long as one of its statements is unfinished. After Ctrl-C in
    the middle of a statement, that is for as long as the traceback is kept.
    """

    def close(self) -> None:
        """Roll back, and close."""
        self.rollback()
        super().close()

    def rollback(self) -> None:
        """Roll back; nothing happens if the connection is closed already."""
        with contextlib.suppress(sqlite3.Error):
            super().rollback()


def close_all(connections: list[Any]) -> None:
    """Close connections, whatever their state."""
    for connection in connections:
        with contextlib.suppress(Exception):
            connection.close()


def _configure_sqlite(connection: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own
    cursor = connection.cursor()
    _write_ahead(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _write_ahead(cursor: Any) -> None:
    """Switch a new database to write-ahead logging.

    While another process is about to write its first pages, SQLite refuses this at once, whatever the time-out.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _begin_immediate(connection: Connection) -> None:
    # its connection is made, so it is whole
    _dialects.setdefault(connection.dialect.name, connection.dialect)
    connection.exec_driver_sql("BEGIN IMMEDIATE")
