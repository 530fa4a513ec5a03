"""Files of a ledger: which file an address names, what must not be done with it, and what is kept beside it.

Beside a SQLite file lies a folder named after the random id inside the database, so that every spelling of the address
finds the same folder. It holds the keys and journals of fits, and the newest head of the chain, by which a restored old
file is noticed. SQLite names its own files beside the database (``-wal``) after the path that it was given. So a file
with a second name (a hard link, or a mount of the file alone) acts as two ledgers that do not see each other's charges.
"""

import contextlib
import hashlib
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import psutil
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from dpgb_dask.errors import LedgerError

WAIT_SECONDS = 60.0  # for another process to leave its transaction
STALE_SECONDS = 3600.0  # a pending head older than this was left by a process that was killed
# whether SQLAlchemy decodes a path, as it does from 2.1 on
DECODED = make_url("sqlite:///%25").database == "%"
MOUNTINFO = Path("/proc/self/mountinfo")
NETWORK_FILE_SYSTEMS = (
    "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs",
    "fhgfs", "panfs", "wekafs", "orangefs", "pvfs2", "ocfs2", "gfs2", "dvs", "9p", "davfs", "fuse.sshfs",
    "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.s3fs", "fuse.gcsfuse", "fuse.blobfuse", "fuse.blobfuse2",
    "fuse.rclone", "fuse.mount-s3", "fuse.goofys", "fuse.geesefs", "fuse.juicefs", "fuse.mfs", "fuse.seaweedfs",
    "fuse.davfs2",
    "virtiofs", "vboxsf", "fuse.vmhgfs-fuse", "fuse.grpcfuse",  # folders that virtual machines share with their host
    "afpfs", "webdav",  # of macOS
)  # fmt: skip
GENESIS = "0" * 64
HASH_FORM = re.compile("[0-9a-f]{64}")
ID_FORM = re.compile("[0-9a-f]{16}")  # of a ledger
HEAD = "head"  # in the ledger's folder
SQLITE = b"SQLite format 3\0"  # how its files begin
BESIDE = ("-wal", "-shm", "-journal", ".head")  # what SQLite and older ledgers keep beside a file

Head = tuple[int, str]  # number and hash of the newest entry


@dataclass(frozen=True, slots=True)
class Address:
    """Where a ledger is.

    Parameters
    ----------
    url : URL
        As given, but with the real, absolute path of a SQLite file: another process may run in another directory.
    path : Path or None
        The SQLite file; None in memory, and for other databases.
    read_only : bool
        Whether the address says ``mode=ro``.
    spelled : Path or None
        The path as given, before links were followed.
    """

    url: URL
    path: Path | None = None
    read_only: bool = False
    spelled: Path | None = None

    @property
    def durable(self) -> bool:
        """Whether the ledger outlives the process."""
        return self.path is not None or self.url.drivername != "sqlite"

    @classmethod
    def read(cls, text: str) -> "Address":
        """Read an address.

        Raises
        ------
        LedgerError
            If it cannot be read, or asks SQLite to go without its locks.
        """
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):
            url = None
        if (
            url is None
            or (url.drivername == "sqlite" and (url.host or url.username))
            or "@" in (url.host or "")  # the rest of a password that holds an @
        ):
            raise LedgerError(
                "The ledger's address cannot be read. Give 'sqlite:///path.db' or 'postgresql+psycopg://user@host/db'."
                f"{_meant_url(text)}{_meant_signs(text)}"
            )
        if url.drivername == "postgresql+psycopg":
            return cls(url)
        if url.drivername != "sqlite":
            # as the consoles of servers print it; the rest of the address may hold a password
            meant = " Did you mean 'postgresql+psycopg://…'?" if _is_postgres(text) else ""
            raise LedgerError(
                f"drivername={url.drivername!r} is not supported. Use 'sqlite' or 'postgresql+psycopg'.{meant}"
            )
        options = dict(url.query)
        mode = options.get("mode", "rwc")
        # at a ? of a name: another file would be opened; SQLAlchemy skips what has no value
        parts = [part for query in text.split("?")[1:] for part in query.split("&")]
        cut = not all(part.partition("=")[2] for part in parts)
        known = options.keys() <= {"uri", "mode", "cache"}
        if cut or not known or mode not in ("ro", "rw", "rwc", "memory"):
            # nolock, immutable and vfs would turn off the locks by which fits see each other's charges
            raise LedgerError(
                f"options={sorted(options)} of the ledger's address: of SQLite's options only mode=ro is of use here."
                " Give 'sqlite:///path.db', or 'sqlite:///file:/path.db?mode=ro&uri=true' to look at it only. In a"
                " name, write %3F for ? and %25 for %."
            )
        database = url.database or ""
        name = _file_name(database if DECODED else unquote(database))
        if name in ("", ":memory:") or mode == "memory":
            if options.get("cache") != "shared":
                return cls(URL.create("sqlite"))
            shared = {"mode": "memory", "cache": "shared", "uri": "true"}
            return cls(URL.create("sqlite", database=f"file:{quote(name)}", query=shared))
        try:
            # a Path would take ./~a for ~a, a user's home
            spelled = Path(os.path.expanduser(name)).absolute()
            path = spelled.resolve()
            str(path).encode()  # as SQLite names it
        except (OSError, RuntimeError, ValueError):  # a loop of links, no home, a null byte
            raise LedgerError(
                "The ledger's address names no file, or one whose name is not UTF-8. Give 'sqlite:///path.db'."
            ) from None
        if mode == "ro":
            query = {"mode": "ro", "uri": "true"}
            url = URL.create("sqlite", database=f"file:{quote(str(path))}", query=query)
            return cls(url, path, True, spelled)
        return cls(URL.create("sqlite", database=str(path)), path, False, spelled)

    @property
    def server(self) -> bool:
        """Whether the ledger is on a server."""
        return self.url.drivername != "sqlite"

    def public(self) -> str:
        """Return the address without its password; libpq finds one in PGPASSWORD or .pgpass."""
        url = self.url  # URL.set(password=None) would keep it
        database = url.database
        if database and not (DECODED or self.server):
            database = quote(database, safe="/: ~")
        public = URL.create(
            url.drivername, url.username, None, url.host, url.port, database, url.query
        )
        return public.difference_update_query(["password", "sslpassword"]).render_as_string(False)


def _file_name(database: str) -> str:
    """Return the path in a database name, which may be one of SQLite's URIs: file:x, file:/x, file:///x."""
    if not database.startswith("file:"):
        return database
    name = unquote(database.removeprefix("file:"))
    return re.sub("^//(localhost)?(?=/)", "", name)


# ---- what must not be done with a file -------------------------------------------------------------------------------


def refuse_network(path: Path) -> None:
    """Refuse a file on a network file system, whose locks SQLite cannot rely on."""
    kind = _file_system(path.parent)
    if kind in NETWORK_FILE_SYSTEMS:
        raise LedgerError(
            f"{str(path)!r} is on a network file system ({kind}): SQLite cannot lock it safely, and two fits could "
            "spend the same budget. Use a file on a local disk, or a PostgreSQL server that all machines reach: "
            "'postgresql+psycopg://user@host/db', after: pip install 'dpgb_dask[postgres]'."
        )


def refuse_second_name(path: Path, n_links: int) -> None:
    """Refuse a file that has two names: a process that uses the other name would not see its newest charges."""
    if n_links > 1:
        raise LedgerError(
            f"{str(path)!r} has {n_links} names (hard links): a process that uses another one would not see the charges"
            " made by this one, and two fits could spend the same budget. Keep one name: copy the file instead of"
            " linking it, or use a symbolic link."
        )
    if any(point == str(path) for point, _ in _mounts()):
        raise LedgerError(
            f"{str(path)!r} is mounted as a single file, as 'docker -v budget.db:/…' does: what lies beside it on the"
            " other side is not seen here, and two fits could spend the same budget. Mount the folder that holds it."
        )


def _file_system(directory: Path) -> str:
    """Return the file system type of a directory, empty if it is not known."""
    best, kind = -1, ""
    for point, found in _mounts():
        # later lines hide earlier ones at the same point
        if directory.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), found
    return kind


def _mounts() -> Iterator[tuple[str, str]]:
    """Yield (mount point, file system type) of this process."""
    try:
        lines = MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # no Linux
        for mounted in psutil.disk_partitions(all=True):
            yield mounted.mountpoint, mounted.fstype
        return
    for line in lines:
        mount, _, source = line.partition(" - ")
        yield (
            re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), mount.split()[4]),
            source.split()[0],
        )


def writable(path: Path) -> bool:
    """Return whether this process may write a SQLite file, the files that SQLite makes beside it, and its folder."""
    try:
        there = path.exists()
    except OSError:
        there = False
    if not os.access(path.parent, os.W_OK) or (there and not os.access(path, os.W_OK)):
        return False
    folder = path.parent / folder_name(_id_of(path) or "") if there else path
    return not folder.exists() or os.access(folder, os.W_OK | os.X_OK)


def copy_into_memory(path: Path) -> sqlite3.Connection:
    """Return a copy in memory of a database that this process may only read.

    SQLite reads a database with a write-ahead log only where it may make files beside it. If there is no log, nobody is
    writing, and the file can be read as it is.
    """
    target = sqlite3.connect(":memory:", check_same_thread=False)
    options = ["mode=ro", "mode=ro&immutable=1"]
    log = path.with_name(path.name + "-wal")
    with contextlib.suppress(OSError):
        if log.stat().st_size:
            options.pop()
    for option in options:
        try:
            with contextlib.closing(
                sqlite3.connect(f"file:{quote(str(path))}?{option}", uri=True, timeout=WAIT_SECONDS)
            ) as source:
                source.backup(target)
            break
        except sqlite3.Error as error:
            if option == options[-1] or not isinstance(error, sqlite3.OperationalError):
                target.close()
                raise
    return target


# ---- the newest head -------------------------------------------------------------------------------------------------


def read_head(file: Path) -> Head | None:
    """Return the newest head kept in a file; None if there is none.

    Raises
    ------
    LedgerError
        If the file is damaged.
    """
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        seq, digest = kept["seq"], kept["hash"]
        sound = type(seq) is int and HASH_FORM.fullmatch(digest) is not None
        sound = sound and (seq > 0 or (seq, digest) == (0, GENESIS))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise LedgerError(f"{str(file)!r} is damaged: the newest head of the ledger is not known.")
    return seq, digest


def write_head(file: Path, head: Head, name: str) -> Path:
    """Write a head that is not committed yet to a pending file that only this thread uses; return that file.

    Parameters
    ----------
    file : Path
        The file that the pending one replaces once the head is committed.
    head : Head
    name : str
        Name of the SQLite file, by which `deleted` notices that the file is gone.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in file.parent.glob(f"{file.name}.*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                left.unlink()
    pending = file.with_name(f"{file.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with pending.open("w", encoding="utf-8") as out:
            json.dump({"seq": head[0], "hash": head[1], "file": name}, out)
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            pending.unlink(missing_ok=True)
            file.parent.rmdir()  # only if nothing is in it: that of a ledger which could not begin
        raise
    return pending


def forget_head(file: Path, path: Path) -> None:
    """Remove the folder of a ledger whose first transaction failed, as on a full disk: its id is in no file."""
    if _id_of(path) == "":
        with contextlib.suppress(OSError):
            file.unlink()
            file.parent.rmdir()


def name_in_head(file: Path) -> str:
    """Return the name of the SQLite file that a head was written for; "" if it is not known."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        kept: Any = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(kept, dict) and isinstance(kept.get("file"), str):
            return str(kept["file"])
    return ""


def refuse_copy(path: Path, name: str, ledger_id: str) -> None:
    """Refuse a copy whose original, the file that the ledger's head names, lies beside it: each would lack charges."""
    if name in ("", path.name) or Path(name).name != name:
        return
    other = path.with_name(name)
    if other.exists() and _id_of(other) in (None, ledger_id):
        raise LedgerError(
            f"{str(path)!r} is a copy of {str(other)!r}, which lies beside it: a process that uses one would not see"
            " the charges made to the other, and two fits could spend the same budget. Use one of them, and keep the"
            " other in a folder of its own."
        )


def _id_of(path: Path) -> str | None:
    """Return the id of the ledger in a SQLite file: "" if it holds no ledger, None if that cannot be determined."""
    try:
        row = _first_row(path, "SELECT ledger FROM dpgb_meta", 5.0)
    except sqlite3.Error as error:
        return "" if "no such table" in str(error) else None
    found = "" if row is None else str(row[0])
    return found if ID_FORM.fullmatch(found) else None


def holds_none(path: Path) -> bool:
    """Return whether a SQLite file has no table of a ledger, or is not in its folder; looking changes nothing of it.

    Connecting would: it makes a file, and switches one of another program to write-ahead logging.
    """
    if not path.exists():
        return path.parent.is_dir()
    try:
        tables = "SELECT 1 FROM sqlite_master WHERE name GLOB 'dpgb_*'"
        return _first_row(path, tables, WAIT_SECONDS) is None
    except sqlite3.Error:
        return False  # whoever connects is told what is wrong


def _first_row(path: Path, query: str, seconds: float) -> Any:
    """Return the first row of a query of a SQLite file, None if there is none; waits so long for who has locked it."""
    uri = f"file:{quote(str(path))}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=seconds)) as connection:
        return connection.execute(query).fetchone()


def folder_name(ledger_id: str) -> str:
    """Return the name of a ledger's folder."""
    return f"ledger-{ledger_id}"


def deleted(path: Path) -> Path | None:
    """Return the folder of a ledger whose file was at this path and is gone; None if there was none."""
    for file in path.parent.glob(f"{folder_name('*')}/{HEAD}"):
        with contextlib.suppress(OSError, LedgerError):
            if name_in_head(file) == path.name and (read_head(file) or (0, ""))[0] != 0:
                return file.parent
    return None


def is_of_ledger(path: Path) -> bool:
    """Return whether a path may belong to a ledger.

    That is a SQLite file, a file that is kept beside one, a ledger's folder and all in it, or a folder with one of
    these directly in it.
    """
    real = Path(os.path.realpath(path))
    within = real.iterdir() if real.is_dir() else ()
    if any(map(_is_kept, (real, *within))):
        return True
    return any(map(_is_ledger_folder, real.parents))


def _is_kept(path: Path) -> bool:
    """Return whether a path is a SQLite file, has the name of a file kept beside one, or is a ledger's folder."""
    names = [path.name, *(path.name.removesuffix(end) for end in BESIDE if path.name != end)]
    return _is_ledger_folder(path) or any(_is_sqlite(path.with_name(name)) for name in names)


def _is_sqlite(file: Path) -> bool:
    if not file.is_file():  # opening a pipe would wait for whoever writes to it
        return False
    try:
        with file.open("rb") as content:
            return content.read(len(SQLITE)) == SQLITE
    except OSError:
        return False


def _is_ledger_folder(path: Path) -> bool:
    return path.name.startswith(folder_name("")) and (path / HEAD).exists()


# ---- files of ledgers without an id ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Legacy:
    """Where older versions kept a ledger's files, under names made from the address.

    Parameters
    ----------
    folder, head : Path
        Folder of keys and journals; file of the newest head, for PostgreSQL inside that folder.
    """

    folder: Path
    head: Path

    @classmethod
    def beside(cls, path: Path) -> "Legacy":
        """Return the places for a SQLite file, or a link to one."""
        return cls(path.with_name(f"{path.name}.fits"), path.with_name(f"{path.name}.head"))

    @classmethod
    def at_home(cls, home: Path, address: str) -> "Legacy":
        """Return the places for a ledger on a server."""
        name = hashlib.sha256(address.encode()).hexdigest()[:16]
        return cls(home / f"ledger-{name}", home / f"ledger-{name}" / HEAD)

    def move(self, folder: Path) -> None:
        """Move keys and journals into a ledger's folder, which has the head already; may be repeated after a crash."""
        if self.folder.is_dir():
            for file in sorted(self.folder.rglob("*")):
                new = folder / file.relative_to(self.folder)
                if file.is_file() and file != self.head and not new.exists():
                    new.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    file.replace(new)
        if (folder / HEAD).exists():
            self.head.unlink(missing_ok=True)
        for left in (self.folder / "journals", self.folder):
            with contextlib.suppress(OSError):
                left.rmdir()  # a folder that is not empty stays


def _meant_url(text: object) -> str:
    """Return the question whether a path was meant as a SQLite address; "" for what is none, or may hold a password."""
    name = os.fspath(text) if isinstance(text, str | os.PathLike) else ""
    if isinstance(name, str):  # two slashes, where a host would follow
        name = name.removeprefix("sqlite://")
    if not isinstance(name, str) or not name or ":" in name or "@" in name:
        return ""
    return f" Did you mean 'sqlite:///{name}'?"


def _is_postgres(text: object) -> bool:
    """Return whether an address is one of PostgreSQL, by whatever driver."""
    return isinstance(text, str) and re.match(r"postgres(ql)?(\+\w+)?://", text) is not None


def _meant_signs(text: object) -> str:
    """Return how to write the @ of a password, which PostgreSQL's address seems to hold; "" if it does not."""
    if not _is_postgres(text) or str(text).count("@") < 2:
        return ""
    return (
        " Write %40 for an @ in a user's name or a password, or leave the password to PGPASSWORD."
    )
