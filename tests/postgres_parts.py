"""PostgreSQL for tests: databases and roles of their own on the server that ``DPGB_POSTGRES`` names."""

import contextlib
import os
import uuid

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url


def server():
    """The address of the test server, as its superuser."""
    if "DPGB_POSTGRES" not in os.environ:
        pytest.skip("NO POSTGRESQL: set DPGB_POSTGRES to an address")
    return make_url(os.environ["DPGB_POSTGRES"])


def run(url, *statements):
    """Run statements one by one, outside of a transaction."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def as_role(url, role, **changes):
    """The address with another role."""
    return make_url(url).set(username=role, **changes).render_as_string(hide_password=False)


@contextlib.contextmanager
def new_database(roles=()):
    """Make a database, and roles that are dropped with it; its owner is the first of them, or the superuser."""
    url, name = server(), f"fire_{uuid.uuid4().hex}"
    run(
        url,
        *(f"CREATE ROLE {role} LOGIN PASSWORD 'geheim'" for role in roles),
        f"CREATE DATABASE {name}" + (f" OWNER {roles[0]}" if roles else ""),
    )
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        run(
            url,
            f"DROP DATABASE {name} WITH (FORCE)",
            *(f"DROP ROLE {role}" for role in roles),
        )
