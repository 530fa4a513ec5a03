"""A ledger on a server: its books are written by functions there, and roles say who may call which.

`Book` reads and checks. What it would write itself in a file, here one call of a function of ledger_server.sql writes,
which runs with the rights of the ledger's owner and checks its rules again. So a role needs no right to write a table,
and whoever holds a password of an analyst changes no balance but by a charge, or by ending a fit of their own.
"""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from dpgb_dask.contracts.queries import RowDraw
from dpgb_dask.controller.ledger_book import Account, Book, Terms
from dpgb_dask.controller.ledger_files import Head
from dpgb_dask.controller.ledger_tables import METADATA, OWNER
from dpgb_dask.errors import LedgerError
from dpgb_dask.names import ROLES

_CHARGING = {
    "dpgb_lock": "integer",
    "dpgb_reserve": "text, text, text, numeric, jsonb",
    "dpgb_bind": "text, text, text",
    "dpgb_take": "text, text",
    "dpgb_open": "text, text, integer, text, text, numeric, text, bigint, bigint, bigint, numeric, boolean",
    "dpgb_release": "text, text, numeric, text, text",
    "dpgb_settle": "text, numeric",
}
_OWNING = {"dpgb_open_account": "text, jsonb", "dpgb_restore": "bigint"}


def _call(name: str) -> Any:
    # with its types, as PostgreSQL would else choose among functions of this name
    types = (_CHARGING | _OWNING)[name].split(", ")
    arguments = ", ".join(f"CAST(:a{k} AS {kind})" for k, kind in enumerate(types))
    return text(f"SELECT seq, hash FROM {name}({arguments})")


_CALLS = {name: _call(name) for name in _CHARGING | _OWNING}

# the roles that a role is, or can become by SET ROLE
_BECOMES = "pg_roles AS asked JOIN pg_roles AS other ON pg_has_role(asked.oid, other.oid, 'MEMBER')"
_ONE_OF_THEM = (  # itself last: what it has may come from another
    "(array_agg(quote_ident(other.rolname) ORDER BY other.oid = asked.oid, other.rolname)"
)
# before PostgreSQL 16, CREATEROLE gives membership in every role but a superuser
_RIGHTS = text(
    f"SELECT {_ONE_OF_THEM} FILTER (WHERE other.rolsuper"
    " OR pg_has_role(other.oid, (SELECT relowner FROM pg_class WHERE oid = to_regclass('dpgb_entries')), 'MEMBER')"
    " OR other.rolcreaterole AND current_setting('server_version_num')::integer < 160000"
    " OR other.rolname IN ('pg_execute_server_program', 'pg_write_server_files')))[1] AS owns,"
    " bool_or(has_schema_privilege(other.oid, current_schema(), 'CREATE')"
    " OR has_database_privilege(other.oid, current_database(), 'CREATE')) AS makes,"
    " has_schema_privilege(asked.oid, current_schema(), 'USAGE') AS reaches,"
    " quote_ident(current_schema()) AS place, quote_ident(current_database()) AS base"
    f" FROM {_BECOMES} WHERE asked.rolname = :role GROUP BY asked.oid"
)
_HELD = text(
    f"SELECT {_ONE_OF_THEM})[1] FROM {_BECOMES} WHERE asked.rolname = :role AND ("
    "EXISTS (SELECT 1 FROM unnest(CAST(:tables AS text[])) AS name"
    " WHERE has_table_privilege(other.oid, name, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')"
    " OR has_any_column_privilege(other.oid, name, 'INSERT, UPDATE, REFERENCES'))"
    " OR EXISTS (SELECT 1 FROM unnest(CAST(:functions AS text[])) AS name"
    " WHERE has_function_privilege(other.oid, name, 'EXECUTE')))"
)


class ServerBook(Book):
    """The tables on a server inside one transaction, under the ledger's lock.

    Parameters
    ----------
    connection : Connection
    wait_seconds : float
        For another process to leave its transaction.
    options
        As of `Book`.
    """

    def __init__(self, connection: Connection, wait_seconds: float, **options: Any) -> None:
        self._wait = round(1000 * wait_seconds)
        super().__init__(connection, **options)

    def _take_head(self) -> Head:
        return self._call("dpgb_lock", self._wait)

    def _call(self, name: str, *arguments: Any) -> Head:
        values = {f"a{k}": value for k, value in enumerate(arguments)}
        return self._read_head(self._connection.execute(_CALLS[name], values))

    def _add(self, name: str, *arguments: Any) -> None:
        """Have an entry added to the chain, once this process has verified the chain."""
        self.tally()
        self.head = self._call(name, *arguments)

    def add_account(self, name: str, body: dict[str, Any]) -> None:
        """Write an account."""
        self._add("dpgb_open_account", name, json.dumps(body))

    def add_fit(
        self, account: Account, fit_id: str, terms: Terms, lease: str, charge: int, tau: float
    ) -> None:
        """Write a reserved fit; the server adds up what its account has spent."""
        del tau
        asked = json.dumps(terms.to_json())
        self._add("dpgb_reserve", account.name, fit_id, lease, charge, asked)

    def add_binding(self, fit: Mapping[str, str], fingerprint: str) -> None:
        """Write the keyed hash of a fit's data."""
        self._add("dpgb_bind", fit["fit_id"], fit["lease"], fingerprint)

    def add_lease(self, fit: Mapping[str, str], lease: str) -> None:
        """Write the digest of a fit's new lease."""
        self._add("dpgb_take", fit["fit_id"], lease)

    def add_round(self, fit: Mapping[str, str], body: dict[str, Any], draw: RowDraw | None) -> None:
        """Write a round that is opened; the server adds up what the fit has spent."""
        rows = (None,) * 4 if draw is None else (draw.kind, draw.group, draw.low, draw.high)
        asked = (body["position"], body["query_id"], body["seal"], body["price"])
        charged = (body.get("cost"), body.get("choice"))
        self._add("dpgb_open", fit["fit_id"], fit["lease"], *asked, *rows, *charged)

    def add_end(
        self, fit: Mapping[str, str], state: str, charge: int, digests: dict[str, str]
    ) -> None:
        """Write that an unfinished fit is RELEASED or SETTLED, and that only ``charge`` of what it reserved stands."""
        if state == "SETTLED":
            self._add("dpgb_settle", fit["fit_id"], charge)
        else:
            ended = (digests["answers"], digests["model"])
            self._add("dpgb_release", fit["fit_id"], fit["lease"], charge, *ended)

    def add_restored(self, newest_known: int | None) -> None:
        """Write that the ledger goes on from a copy."""
        self._add("dpgb_restore", newest_known)


def grant(connection: Connection, kind: str, role: str) -> None:
    """Let a role of the database read the ledger, and charge fits if it is an analyst; take what else it had.

    Raises
    ------
    LedgerError
        If there is no such role, it could change the ledger anyway, or the caller does not own the ledger.
    """
    if kind not in ROLES:
        raise LedgerError(f"role kind {kind!r} is not available. Use one of {list(ROLES)}.")
    _check_owner(connection)
    found: Any = connection.execute(_RIGHTS, {"role": role}).first()
    if found is None:
        raise LedgerError(
            f"The server has no role {role!r}. Make one first: CREATE ROLE … LOGIN PASSWORD …."
        )
    if found.owns:
        raise LedgerError(
            f"The role {role!r} is, or can become, {found.owns}, which could change everything anyway. Give a role that"
            " is not the ledger's owner, a superuser, or one that can make itself either."
        )
    if found.makes:
        raise LedgerError(
            f"The role {role!r} can make tables in the ledger's schema {found.place}, or schemas in its database, and"
            " so deceive whoever reads it. Take this from it first, or from PUBLIC:"
            f" REVOKE CREATE ON SCHEMA {found.place} FROM …, REVOKE CREATE ON DATABASE {found.base} FROM …."
        )
    revoke(connection, role)
    _check_no_other_way(connection, kind, role)
    name = _quoted(connection, role)
    if not found.reaches:
        _run(connection, f"GRANT USAGE ON SCHEMA {found.place} TO {name}")
    _run(connection, f"GRANT SELECT ON {', '.join(METADATA.tables)} TO {name}")
    if kind == "analyst":
        _run(connection, f"GRANT EXECUTE ON FUNCTION {_signatures(_CHARGING)} TO {name}")


def _check_no_other_way(connection: Connection, kind: str, role: str) -> None:
    """Refuse a role that has no rights of its own left, and can still write: by PUBLIC, or as another role."""
    functions = [f"{name}({types})" for name, types in _CHARGING.items()]
    held: Any = connection.execute(
        _HELD,
        {
            "role": role,
            "tables": list(METADATA.tables),
            "functions": functions if kind == "auditor" else [],
        },
    ).scalar()
    if held is not None:
        raise LedgerError(
            f"The role {role!r} could still write the ledger, by rights of {held} or of PUBLIC. Take these rights"
            " first, or the membership."
        )


def revoke(connection: Connection, role: str) -> None:
    """Take from a role all rights on the ledger.

    Raises
    ------
    LedgerError
        If there is no such role, or the caller does not own the ledger.
    """
    _check_owner(connection)
    name = _quoted(connection, role)
    try:
        _run(connection, f"REVOKE ALL ON {', '.join(METADATA.tables)} FROM {name}")
        _run(connection, f"REVOKE ALL ON FUNCTION {_signatures(_CHARGING | _OWNING)} FROM {name}")
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == "42704":
            raise LedgerError(f"The server has no role {role!r}.") from None
        raise


def _check_owner(connection: Connection) -> None:
    """Refuse a role that does not own the ledger: its GRANT would change nothing, and PostgreSQL only warn."""
    owner: Any = connection.execute(OWNER).one()
    if not owner.here:
        raise LedgerError(
            f"Only {owner.name!r}, the role that owns the ledger, gives and takes rights on it."
        )


def _signatures(functions: Mapping[str, str]) -> str:
    return ", ".join(f"{name}({types})" for name, types in functions.items())


def _quoted(connection: Connection, role: str) -> str:
    return connection.dialect.identifier_preparer.quote_identifier(role)


def _run(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
