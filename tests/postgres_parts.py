"""PostgreSQL for tests: databases and roles of their own on the server that ``DPGB_POSTGRES`` names."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path

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


def tool(name):
    """Return where one of PostgreSQL's tools is."""
    folder = os.environ.get("DPGB_POSTGRES_BIN", "")
    found = shutil.which(name, path=f"{folder}:{os.environ['PATH']}:/usr/sbin")
    if found is None:
        pytest.skip(f"NO {name.upper()}: set DPGB_POSTGRES_BIN to PostgreSQL's folder")
    return found


def free_port():
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Cluster:
    """A server of one test, which may be stopped, started and promoted.

    Parameters
    ----------
    folder : Path
        Of `plain_folder`.
    name : str
    options : str
        Of ``postgres``, at each start.
    of : Cluster, optional
        The server of which this one is a standby.
    """

    def __init__(self, folder, name, options="", of=None):
        self.data, self.port = folder / name, free_port()
        self._log, self._options = folder / f"{name}.log", options
        if of is None:
            auth = ("-A", "trust", "-E", "UTF8", "--locale=C")
            as_nobody(tool("initdb"), "-D", self.data, "-U", "ledger", *auth)
            line = "host replication all 127.0.0.1/32 trust\n"
            with (self.data / "pg_hba.conf").open("a") as file:
                file.write(line)
        else:
            source = ("-h", "127.0.0.1", "-p", str(of.port), "-U", "ledger", "--checkpoint=fast")
            as_nobody(tool("pg_basebackup"), "-D", self.data, *source, "-R")

    @property
    def url(self):
        return f"postgresql+psycopg://ledger@127.0.0.1:{self.port}/postgres"

    def control(self, *words):
        as_nobody(tool("pg_ctl"), "-D", self.data, *words)

    def start(self):
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.data}"
            f" -c fsync=off {self._options}"
        )
        self.control("-w", "-l", self._log, "-o", options, "start")

    def stop(self, mode="immediate"):
        self.control("-m", mode, "stop")

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_error):
        with contextlib.suppress(subprocess.CalledProcessError):  # stopped before
            self.stop()


def as_nobody(*command):
    """Run a command as a user without rights, as PostgreSQL refuses to run as root."""
    user = ()
    if os.geteuid() == 0:
        user = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
    words = [*user, *map(str, command)]
    # no pipes: a server would keep them open
    subprocess.run(words, check=True, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def plain_folder():
    """Make a folder that PostgreSQL's user may write."""
    folder = Path(tempfile.mkdtemp(prefix="postgres"))
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
