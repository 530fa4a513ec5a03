"""The ledger: accounts with a cap, charged before data are touched; refuses to overspend.

What happens to a fit, each arrow one durable transaction and one entry of the hash chain:

    RESERVED ─▶ BOUND ─▶ OPENED ─▶ … ─▶ OPENED ─▶ RELEASED      the normal end; the reserved price stays charged, but
        │         │         │                                   only opened rounds if the fit ended early
        ╰─────────┴─ crash ─┴─▶ LEASED (resume) ─▶ …            no new charge: the same noise is drawn again
                            ╰─▶ SETTLED                         closed for good; only opened rounds stay charged

A RELEASED fit gives its model again from its journal (whose digest the entry holds): nothing is left to open.

Every transaction takes one lock (SQLite: BEGIN IMMEDIATE; PostgreSQL: SELECT … FOR UPDATE on the head), so racing fits
see each other's charges and entries form one chain.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    create_engine,
    event,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from dpgb_dask.contracts.queries import PRICE_ONE, GradientQuery, Query, RowDraw
from dpgb_dask.contracts.spending import Spending
from dpgb_dask.controller import accounting, analyses
from dpgb_dask.controller.noise import erase_key, write_key
from dpgb_dask.errors import BudgetExceededError, LedgerError, LedgerUnavailableError, ResumeError

GENESIS = "0" * 64
WAIT_SECONDS = 60.0  # for another process to leave its transaction
STALE_SECONDS = 3600.0  # an older head that is not renamed was left by a process that was killed
MOUNTINFO = Path("/proc/self/mountinfo")
NETWORK_FILE_SYSTEMS = (
    "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs",
    "fhgfs", "panfs", "wekafs", "orangefs", "pvfs2", "ocfs2", "gfs2", "9p", "davfs", "fuse.sshfs", "fuse.glusterfs",
    "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse", "fuse.blobfuse2", "fuse.rclone", "fuse.mount-s3", "fuse.juicefs",
    "fuse.davfs2",
)  # fmt: skip

_metadata = MetaData()
# Prices are decimal text: they may exceed 64 bits.
_accounts = Table(
    "dpgb_accounts",
    _metadata,
    Column("name", String(200), primary_key=True),
    Column("epsilon", Text, nullable=False),
    Column("delta", Text, nullable=False),
    Column("analysis", String(16), nullable=False),
    Column("cap", Text, nullable=False),
    Column("spent", Text, nullable=False),
    Column("tau", Text, nullable=False),
)
_fits = Table(
    "dpgb_fits",
    _metadata,
    Column("fit_id", String(80), primary_key=True),
    Column("account", String(200), nullable=False),
    Column("state", String(16), nullable=False),
    Column("price", Text, nullable=False),
    Column("terms", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("lease", String(64), nullable=False),
)
_entries = Table(
    "dpgb_entries",
    _metadata,
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
_head = Table(
    "dpgb_head",
    _metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),
)

# Statements of every round, made once: SQLAlchemy takes longer to make one than SQLite to run it.
_LOCK_HEAD = select(_head.c.seq, _head.c.hash).with_for_update()
_SET_HEAD = update(_head)
_ADD_ENTRY = insert(_entries)
_FIND_HASH = select(_entries.c.hash).where(_entries.c.seq == bindparam("seq"))
_FIND_FIT = select(_fits).where(_fits.c.fit_id == bindparam("fit_id"))
_FIND_LEASE = select(_fits.c.account, _fits.c.state, _fits.c.fingerprint, _fits.c.lease).where(
    _fits.c.fit_id == bindparam("fit_id")
)
_NEWEST_OPENED = (
    select(_entries.c.body)
    .where(_entries.c.fit_id == bindparam("fit_id"), _entries.c.kind == "OPENED")
    .order_by(_entries.c.seq.desc())
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class Account:
    """What an account may spend and has spent.

    Parameters
    ----------
    name : str
    epsilon, delta : float
        The cap: everything ever charged to the account is together (epsilon, delta)-private.
    analysis : str
        How charges add up, fixed when the account was opened (analyses.py).
    cap, spent : int
        In units of 2⁻⁶⁴ of the analysis' unit: μ², ρ or ε.
    tau : float
        Distance of all its fits to Gaussian mechanisms; bounded by a share of delta (accounting.SLACK).
    """

    name: str
    epsilon: float
    delta: float
    analysis: str
    cap: int
    spent: int
    tau: float

    @property
    def left(self) -> int:
        """Price units left."""
        return self.cap - self.spent


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the hash chain; timestamps are for the operator."""

    seq: int
    kind: str
    account: str
    fit_id: str
    at: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a fit reserved; nothing in it comes from the data.

    Parameters
    ----------
    epsilon, delta : float
    price : int
        Price of the whole fit, in units of 2⁻⁶⁴ of its currency.
    min_sigma_bits : int
        Noise has at least 2**min_sigma_bits steps.
    tau : float
        Distance to Gaussian mechanisms, at most.
    plan_digest : str
        Hex.
    version : str
        Library and sampler.
    public_seed : int
    commitment : str
        To the fit's key.
    pure : bool
        Whether the currency is ε, or μ².
    facts : mapping of str to str
        Plan, schema and weights in words, so that a resumed fit can be told what differs.
    """

    epsilon: float
    delta: float
    price: int
    min_sigma_bits: int
    tau: float
    plan_digest: str
    version: str
    public_seed: int
    commitment: str
    pure: bool = False  # ledgers of before have no such field
    facts: Mapping[str, str] = field(default_factory=dict)  # nor this one

    def to_json(self) -> dict[str, Any]:
        """Return a JSON form; the price as text."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "price": str(self.price),
            "facts": dict(self.facts),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Build from the JSON form, which a reservation keeps with its charge."""
        known = {name: data[name] for name in cls.__slots__ if name in data}
        return cls(**(known | {"price": int(data["price"])}))


@dataclass(frozen=True, slots=True)
class Fit:
    """What the ledger knows of a fit that can be resumed.

    Parameters
    ----------
    account : str
    terms : Terms
    fingerprint : str
        Keyed hash of the fingerprint of its data; empty before they were read.
    ended : bool
        Whether it is RELEASED: its key is erased, and its journal gives the model again.
    answers : str
        Digest of all it released; empty until it ended.
    """

    account: str
    terms: Terms
    fingerprint: str
    ended: bool
    answers: str


@dataclass(frozen=True, slots=True)
class Record:
    """What the ledger says of a fit, to check by it what is said of the fit elsewhere.

    Parameters
    ----------
    fit_id, account : str
    state : {"RESERVED", "RELEASED", "SETTLED"}
        Whether it is unfinished, ended with a model, or was closed without one.
    terms : Terms
    charge : int
        What stands charged, in units of 2⁻⁶⁴ of the account's unit.
    answers : str
        Digest of all it released; empty until it ended.
    model : str
        Digest of its model; empty until it ended, and if none was given.
    """

    fit_id: str
    account: str
    state: str
    terms: Terms
    charge: int
    answers: str
    model: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A round whose sums were opened: its query id, and a keyed hash by which the same sums are recognised."""

    query_id: str
    seal: str


class Ledger:
    """Privacy accounts in a database.

    Parameters
    ----------
    url : str
        ``sqlite:///path.db`` (absolute: four slashes), ``postgresql+psycopg://user@host/db`` for a team, ``sqlite://``
        for memory. Nothing is opened until it is used.

    Raises
    ------
    LedgerError
        If the address cannot be read, or names a SQLite file on a network file system.

    Privacy
    -------
    Controller side. Holds prices, digests and keyed hashes; no sum, no count, and never a fit's key. Copies and pickles
    carry the address without the password, so all of them charge the same accounts.

    Examples
    --------
    >>> ledger = Ledger("sqlite://")
    >>> ledger.open_account("adult-2026", epsilon=3.0, delta=1e-6)
    >>> ledger.remaining("adult-2026")
    3.0
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError) as error:
            raise LedgerError(
                "The ledger's address cannot be read. Give 'sqlite:///path.db' or 'postgresql+psycopg://user@host/db'."
            ) from error
        if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
            raise LedgerError(
                f"drivername={parsed.drivername!r} is not supported. Use 'sqlite' or 'postgresql+psycopg'."
            )
        self._path = _sqlite_path(parsed)
        if self._path is not None and parsed.database != str(self._path) and not _is_uri(parsed):
            parsed = parsed.set(
                database=str(self._path)
            )  # another process may run in another directory
        self._url: URL = parsed
        self._lock = threading.RLock()
        self._known = (0, GENESIS)
        self._engine: Engine | None = None
        self._pid = 0
        self._file: tuple[int, int] | None = None
        self._spending: dict[
            str, tuple[int, Spending]
        ] = {}  # newest round of a fit, and all so far
        self._terms: dict[str, Terms] = {}  # of the fits in memory
        if self._path is not None:
            _refuse_network(self._path)

    @classmethod
    def in_memory(cls) -> "Ledger":
        """Return a new ledger that lives in this process only."""
        return cls("sqlite://")

    @property
    def durable(self) -> bool:
        """Whether charges outlive this process."""
        return not (self._url.drivername == "sqlite" and self._path is None)

    @property
    def exists(self) -> bool:
        """Whether there is a ledger at the address; a SQLite file is made when its first account is opened."""
        return self._path is None or self._path.exists()

    @property
    def directory(self) -> Path | None:
        """Where keys (``FIT_ID.key``) and journals of running fits live; None in memory.

        ``<path>.fits`` beside a SQLite file; for PostgreSQL a directory of this user's data, since a key must not
        leave the machine that draws the noise.
        """
        if self._path is not None:
            return self._path.with_name(self._path.name + ".fits")
        if not self.durable:
            return None
        home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
        return (
            home
            / "dpgb_dask"
            / f"ledger-{hashlib.sha256(self._address().encode()).hexdigest()[:16]}"
        )

    def key_path(self, fit_id: str) -> Path | None:
        """Return where the key of a running fit is; None in memory."""
        return None if self.directory is None else self.directory / f"{fit_id}.key"

    # -- for people ----------------------------------------------------------------------------------------------

    def open_account(
        self, name: str, *, epsilon: float, delta: float, analysis: str = "gdp"
    ) -> None:
        """Open an account with a cap; opening it again with the same cap changes nothing.

        Parameters
        ----------
        name : str
            One account per data set: what shares rows must share an account.
        epsilon, delta : float
            Cap on everything ever charged to the account.
        analysis : {"gdp", "zcdp", "pure"}
            How charges add up (analyses.py): in μ², which is tight for Gaussian noise; in ρ, by zero-concentrated
            differential privacy alone; or in ε, for fits of pure differential privacy only, and then delta may be 0.

        Raises
        ------
        LedgerError
            If the account exists with another cap, or the analysis is not known.
        PlanError
            If epsilon or delta is out of range.
        """
        analyses.check_account(epsilon, delta, analysis)
        if not 1 <= len(name) <= 200:
            raise LedgerError(f"account name {name!r} must be text of 1 to 200 characters.")
        body = {
            "epsilon": repr(float(epsilon)),
            "delta": repr(float(delta)),
            "analysis": analysis,
            "cap": str(analyses.cap(float(epsilon), float(delta), analysis)),
        }
        with self._transaction(keep_head=True) as book:
            known = book.find_account(name)
            if known is None:
                book.execute(insert(_accounts).values(name=name, spent="0", tau="0.0", **body))
                book.append("OPEN", name, "", body)
            elif (known.epsilon, known.delta, known.analysis) != (
                float(epsilon),
                float(delta),
                analysis,
            ):
                raise LedgerError(
                    f"Account {name!r} exists with another cap.\n"
                    f"  in the ledger  epsilon={known.epsilon:g}  delta={known.delta:g}  analysis={known.analysis}\n"
                    f"  asked for      epsilon={float(epsilon):g}  delta={float(delta):g}  analysis={analysis}\n"
                    "A cap never changes. Open an account under another name."
                )

    def remaining(self, name: str) -> float:
        """Return the largest epsilon that one more fit at the account's delta may ask; 0.0 when nothing is left.

        A fit with Gaussian noise; in an account with ``analysis="pure"``, one of pure differential privacy.
        """
        account = self.account(name)
        if account.spent == 0 and account.analysis != "zcdp":
            return account.epsilon
        return _epsilon_left(account, account.delta, pure=account.analysis == "pure")

    def account(self, name: str) -> Account:
        """Return an account."""
        with self._transaction() as book:
            return book.account(name)

    def accounts(self) -> tuple[Account, ...]:
        """Return all accounts, by name."""
        with self._transaction() as book:
            return book.accounts()

    def history(self, name: str) -> tuple[Entry, ...]:
        """Return the entries of an account, oldest first."""
        with self._transaction() as book:
            book.account(name)
            return book.entries(_entries.c.account == name)

    def settle(self, fit_id: str) -> int:
        """Close an unfinished fit for good, erase its key, and charge only the rounds it opened.

        A fit that ended keeps its charge; what a crash left of its key is erased.

        Returns
        -------
        int
            The charge that stands, in units of 2⁻⁶⁴ of the account's unit.

        Privacy
        -------
        Every released value is a function of rounds whose OPENED entry was durable before their sums were opened; after
        SETTLED no more can be opened, here or by a process still running (it would need the fit's lease in a
        transaction that finds the fit open). So the releases of the fit cost at most the `Spending` of opened rounds,
        and by the account's filter the rest was never used and may be given back (analyses.py; there, why a pure fit
        that opened a round on a sample keeps its whole charge in μ² and ρ). The slack τ stays reserved.
        """
        with self._transaction(keep_head=True) as book:
            fit = book.fit(fit_id)
            charge = int(fit["price"])
            if fit["state"] == "RESERVED":
                charge = self._opened_charge(book, fit)
                book.charge_instead(fit, "SETTLED", charge)
                book.append("SETTLED", fit["account"], fit_id, {"charge": str(charge)})
        self._terms.pop(fit_id, None)
        self.erase_key(fit_id)
        return charge

    def _opened_charge(self, book: "_Book", fit: dict[str, str]) -> int:
        """Return what the opened rounds of a fit cost its account (`settle` says why that is enough)."""
        charge, terms = int(fit["price"]), _terms(fit)
        account = book.account(fit["account"])
        spending, sampled = book.spending(fit["fit_id"], terms.pure)
        if not self.durable:  # in memory, opened rounds leave no entry: nothing is given back
            return charge
        if account.analysis != "pure" and terms.pure and sampled:
            return charge
        opened = analyses.charge(spending.spent, pure=terms.pure, analysis=account.analysis)
        return min(charge, opened)

    def verify(self) -> None:
        """Walk the whole chain and compare accounts and fits with it.

        Raises
        ------
        LedgerError
            If an entry was changed, removed or inserted, or a table does not follow from the entries.
        """
        with self._transaction() as book:
            book.verify()

    # -- for the controller --------------------------------------------------------------------------------------

    def reserve(self, name: str, fit_id: str, terms: Terms, lease: str, key: bytes) -> None:
        """Write the key of a fit and charge all of it in one transaction; or neither.

        Raises
        ------
        BudgetExceededError
            If the account has too little left.
        LedgerUnavailableError
            If the key or the charge cannot be written.

        Privacy
        -------
        The key comes first: a crash between the two leaves a key that was never used.
        """
        path = self.key_path(fit_id)
        if path is not None:
            write_key(path, key)
        committing = False
        try:
            with self._transaction(keep_head=True) as book:
                _charge_fit(book, name, fit_id, terms, lease)
                committing = True
        except BaseException as error:
            # a commit that failed, or was interrupted, may have been done
            if committing and self._may_hold(fit_id):
                self.note(error, fit_id)
            elif path is not None:
                with contextlib.suppress(OSError):
                    erase_key(path)
            raise

    def _may_hold(self, fit_id: str) -> bool:
        """Return whether a fit is charged, so far as can be told."""
        try:
            with self._transaction() as book:
                return book.find_fit(fit_id) is not None
        except LedgerError:
            return True

    def note(self, error: BaseException, fit_id: str) -> None:
        """Add to an error that ends a fit how to go on with it; nothing where there is no going on.

        Parameters
        ----------
        error : BaseException
            `ResumeError` is left as it is: it says the way out itself.
        fit_id : str
            A fit that is charged.
        """
        note = (
            f"Fit {fit_id} is charged and not lost: fit(..., resume={fit_id!r}), or the same command and"
            f" --resume {fit_id}, goes on with it without a new charge; ledger.settle({fit_id!r}), or dpgb-dask ledger"
            f" settle URL {fit_id}, closes it and gives back what it has not opened."
        )
        known = note in getattr(error, "__notes__", ())
        if self.durable and not known and not isinstance(error, ResumeError):
            error.add_note(note)

    def look(self, fit_id: str) -> Fit:
        """Return what is known of a fit that is unfinished, or that ended and may give its model again.

        Raises
        ------
        ResumeError
            If there is no such fit, or it was settled.
        """
        with self._transaction() as book:
            fit = book.resumable(fit_id, ("RESERVED", "RELEASED"))
            ended = fit["state"] == "RELEASED"
            answers = str(book.end(fit_id).get("answers", "")) if ended else ""
        return Fit(fit["account"], _terms(fit), fit["fingerprint"], ended, answers)

    def record(self, fit_id: str) -> Record:
        """Return what the ledger says of a fit.

        Raises
        ------
        LedgerError
            If there is no such fit.
        """
        with self._transaction() as book:
            fit = book.fit(fit_id)
            end = book.end(fit_id) if fit["state"] == "RELEASED" else {}
        return Record(
            fit_id=fit_id,
            account=fit["account"],
            state=fit["state"],
            terms=_terms(fit),
            charge=int(fit["price"]),
            answers=str(end.get("answers", "")),
            model=str(end.get("model", "")),
        )

    def take(self, fit_id: str, lease: str) -> list[Opened]:
        """Take the lease of an unfinished fit, so that whoever held it can open nothing more; return opened rounds."""
        with self._transaction(keep_head=True) as book:
            fit = book.resumable(fit_id, ("RESERVED",))
            book.execute(update(_fits).where(_fits.c.fit_id == fit_id).values(lease=lease))
            book.append("LEASED", fit["account"], fit_id, {})
            entries = book.entries((_entries.c.fit_id == fit_id) & (_entries.c.kind == "OPENED"))
        return [Opened(entry.body["query_id"], entry.body["seal"]) for entry in entries]

    def bind(self, fit_id: str, lease: str, fingerprint: str) -> None:
        """Record the keyed hash of the data's fingerprint."""
        with self._transaction() as book:
            fit = book.leased(fit_id, lease)
            if fit["fingerprint"] == fingerprint:
                return
            if fit["fingerprint"]:
                raise ResumeError(
                    f"fit_id={fit_id!r} is bound to other data by another process. Stop here."
                )
            book.execute(
                update(_fits).where(_fits.c.fit_id == fit_id).values(fingerprint=fingerprint)
            )
            book.append("BOUND", fit["account"], fit_id, {"fingerprint": fingerprint})

    def open_round(
        self, fit_id: str, lease: str, position: int, opened: Opened, query: Query
    ) -> None:
        """Record that a round's sums are opened, before anything is made of them.

        Recording the newest round once more, with the same sums, changes nothing.

        Raises
        ------
        ResumeError
            If the round does not follow the newest one, or the lease is lost: another process goes on with the fit.
        BudgetExceededError
            If all rounds together would cost more than the fit reserved.

        Privacy
        -------
        The filter of contracts/spending.py, kept where every process sees it: `Spending` of opened rounds <= what was
        reserved, and one vector of sums for each position. Price and row draw are parts of the plan, not of the data.
        """
        if query.price <= 0:
            raise LedgerError(f"Release {position} of fit_id={fit_id!r} has no positive price.")
        if not self.durable:
            self._open_in_memory(fit_id, lease, position, query)
            return
        with self._transaction() as book:
            fit = book.leased(fit_id, lease)
            last = -1
            if (newest := book.newest_opened(fit_id)) is not None:
                last = int(newest["position"])
                if position == last and opened == Opened(newest["query_id"], newest["seal"]):
                    return
            _check_follows(fit_id, position, last)
            terms = self._terms_of(book, fit_id)
            known, before = self._spending.get(fit_id, (-1, Spending(pure=terms.pure)))
            if known != last:  # another process opened the rounds between
                before, _ = book.spending(fit_id, terms.pure)
            draw = query.rows if isinstance(query, GradientQuery) else None
            after = before.plus(query.price, draw)
            _check_reserved(fit_id, position, after, terms)
            body = {
                "position": position,
                "query_id": opened.query_id,
                "seal": opened.seal,
                "price": str(query.price),
                "spent": str(after.spent),
            }
            if draw is not None:
                body["rows"] = [draw.kind, draw.group, draw.low, draw.high]
            book.append("OPENED", fit["account"], fit_id, body)
        self._spending[fit_id] = (position, after)  # only what was committed

    def _open_in_memory(self, fit_id: str, lease: str, position: int, query: Query) -> None:
        """Apply the filter without an entry: there is no other process, and nothing to resume or to read later."""
        with self._lock:
            if fit_id not in self._terms:
                with self._transaction() as book:
                    book.leased(fit_id, lease)  # refuses a fit that has ended
                    self._terms_of(book, fit_id)
            terms = self._terms[fit_id]
            last, before = self._spending.get(fit_id, (-1, Spending(pure=terms.pure)))
            _check_follows(fit_id, position, last)
            after = before.after(query)
            _check_reserved(fit_id, position, after, terms)
            self._spending[fit_id] = (position, after)

    def finish(
        self, fit_id: str, lease: str, answers: str, *, model: str = "", only_opened: bool = False
    ) -> int:
        """Close a fit whose model is complete, and erase its key.

        Parameters
        ----------
        fit_id, lease : str
        answers : str
            Digest of all it released: by it the journal is known again when the key is gone.
        model : str
            Digest of its model: by it the model is known again.
        only_opened : bool
            Whether only what the fit opened stays charged, as in `settle`; else all it reserved.

        Returns
        -------
        int
            The charge that stands, in units of 2⁻⁶⁴ of the account's unit.

        Privacy
        -------
        Whether a fit ends early must follow from released answers. What is charged then is argued in `settle`.
        """
        with self._transaction(keep_head=True) as book:
            book.leased(fit_id, lease)
            fit = book.fit(fit_id)
            charge = self._opened_charge(book, fit) if only_opened else int(fit["price"])
            book.charge_instead(fit, "RELEASED", charge)
            body = {"answers": answers, "charge": str(charge), "model": model}
            book.append("RELEASED", fit["account"], fit_id, body)
        self._spending.pop(fit_id, None)
        self._terms.pop(fit_id, None)
        self.erase_key(fit_id)
        return charge

    def erase_key(self, fit_id: str) -> None:
        """Erase the key of a fit that ended; may be repeated after a crash."""
        path = self.key_path(fit_id)
        if path is not None:
            try:
                erase_key(path)
            except OSError as error:
                raise LedgerUnavailableError(
                    f"The fit is closed, but its key {str(path)!r} could not be erased ({error.strerror}). Delete it."
                ) from error

    def _terms_of(self, book: "_Book", fit_id: str) -> Terms:
        """Return what a fit reserved, read once: terms never change, and may be long."""
        if fit_id not in self._terms:
            self._terms[fit_id] = _terms(book.fit(fit_id))
        return self._terms[fit_id]

    # -- copies, connection --------------------------------------------------------------------------------------

    def __sklearn_clone__(self) -> Self:
        """Return this ledger: a clone of an estimator charges the same account."""
        return self

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[type["Ledger"], tuple[str]]:
        if not self.durable:
            raise LedgerError(
                "A ledger in memory cannot be sent to another process: the copy would start unspent. "
                "Use Ledger('sqlite:///path.db')."
            )
        return Ledger, (self._address(),)

    def __repr__(self) -> str:
        return f"Ledger({self._address()!r})"

    def _address(self) -> str:
        """Return the address without its password; libpq finds one in PGPASSWORD or .pgpass."""
        url = self._url  # URL.set(password=None) would keep it
        public = URL.create(
            url.drivername, url.username, None, url.host, url.port, url.database, url.query
        )
        return public.difference_update_query(["password", "sslpassword"]).render_as_string(False)

    def _connect(self) -> Engine:
        """Return the engine of this process and this file.

        Connections do not survive a fork, and keep to a file that was moved away: charges to it nobody would see.
        """
        if self._engine is not None and self._file != self._file_now():
            self._engine.dispose()
            self._engine = None
        if self._engine is None or self._pid != os.getpid():
            if self._engine is not None:
                self._engine.dispose(close=False)
            options: dict[str, Any] = {"hide_parameters": True}
            if self._url.drivername == "sqlite":
                options["connect_args"] = {"check_same_thread": False, "timeout": WAIT_SECONDS}
                if self._path is None:
                    options["poolclass"] = StaticPool
            else:
                options["pool_pre_ping"] = True  # a server may have restarted since the last fit
            try:
                engine = create_engine(self._url, **options)
            except ModuleNotFoundError as error:
                raise LedgerUnavailableError(
                    f"{self!r} needs the package {error.name!r}. Install dpgb_dask[postgres]."
                ) from error
            if self._url.drivername == "sqlite":
                event.listen(engine, "connect", _configure_sqlite)
                event.listen(engine, "begin", _begin_immediate)
            else:
                event.listen(engine, "connect", _configure_postgresql)
            with engine.begin() as connection:
                if (
                    self._url.drivername != "sqlite"
                ):  # two processes must not make the tables at once
                    connection.execute(text("SELECT pg_advisory_xact_lock(684279)"))
                _metadata.create_all(connection)
                if connection.execute(select(_head.c.id)).first() is None:
                    connection.execute(insert(_head).values(id=1, seq=0, hash=GENESIS))
            self._engine, self._pid, self._file = engine, os.getpid(), self._file_now()
            weakref.finalize(self, engine.dispose)
        return self._engine

    def _file_now(self) -> tuple[int, int] | None:
        """Return which file is at the path of a SQLite ledger now."""
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextlib.contextmanager
    def _transaction(self, *, keep_head: bool = False) -> Iterator["_Book"]:
        """Run one transaction under the ledger's lock; nothing is written if it raises.

        With ``keep_head`` the new head is kept beside a SQLite file too, so that a restored old file is noticed. It is
        written before the commit under another name, and renamed after it: a crash between leaves an older head, which
        the chain still contains.
        """
        with self._lock:
            pending: Path | None = None
            committing = False
            try:
                engine = self._connect()
                with engine.begin() as connection:
                    book = _Book(connection, self._newest_known())
                    yield book
                    if keep_head and self._head_file is not None:
                        pending = _write_head(self._head_file, book.head)
                    committing = True
                self._known = book.head
                if pending is not None and self._head_file is not None:
                    pending.replace(self._head_file)
                    pending = None
            except SQLAlchemyError as error:
                raise LedgerUnavailableError(self._unavailable(error, committing)) from error
            except OSError as error:
                raise LedgerUnavailableError(self._unavailable(error, committing)) from error
            finally:
                if pending is not None:
                    with contextlib.suppress(OSError):
                        pending.unlink()

    @property
    def _head_file(self) -> Path | None:
        """Where the newest head is kept outside the database."""
        if self._path is not None:
            return self._path.with_name(f"{self._path.name}.head")
        return None if self.directory is None else self.directory / "head"

    def _newest_known(self) -> tuple[int, str]:
        """Return the newest head known to this process or kept outside the database."""
        file = self._head_file
        if file is None:
            return self._known
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            known = (int(kept["seq"]), str(kept["hash"]))
        except FileNotFoundError:
            return self._known
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"{str(file)!r} is damaged: the newest head of the ledger is not known."
            ) from error
        return max(known, self._known)

    def _unavailable(self, error: SQLAlchemyError | OSError, committing: bool) -> str:
        cause = getattr(error, "strerror", None) or getattr(error, "orig", None)
        lines = str(cause or type(error).__name__).strip().splitlines()
        standing = "Nothing was charged and nothing released."
        if committing:
            standing = (
                "Nothing was released; whether the last entry was written, ledger.history(account), or dpgb-dask ledger"
                " show, tells."
            )
        return (
            f"{self!r} cannot be used: {lines[0] if lines else type(error).__name__}.\n{standing} Check that the"
            " address exists and can be written, that there is room, and that no other process holds it."
        )


class _Book:
    """The tables inside one transaction."""

    def __init__(self, connection: Connection, known: tuple[int, str]) -> None:
        self._connection = connection
        row = connection.execute(_LOCK_HEAD).one()
        self.head: tuple[int, str] = (int(row.seq), str(row.hash))
        if self.head != known and not self._contains(known):
            raise LedgerError(
                "The ledger is older than its newest known head: it was restored from a copy, or changed by hand. "
                "Charges made since would be forgotten. Put the newest file back."
            )

    def _contains(self, known: tuple[int, str]) -> bool:
        if known[0] == 0:
            return True
        found = self._connection.execute(_FIND_HASH, {"seq": known[0]}).scalar()
        return self.head[0] >= known[0] and found == known[1]

    def execute(self, statement: Any, values: Mapping[str, Any] | None = None) -> None:
        self._connection.execute(statement, values)

    def append(self, kind: str, account: str, fit_id: str, body: dict[str, Any]) -> None:
        """Add an entry to the chain."""
        seq, previous = self.head[0] + 1, self.head[1]
        at = datetime.now(UTC).isoformat(timespec="seconds")
        values = {
            "seq": seq,
            "kind": kind,
            "account": account,
            "fit_id": fit_id,
            "at": at,
            "body": _canonical(body),
        }
        digest = _chain(previous, values)
        self.execute(_ADD_ENTRY, {"prev": previous, "hash": digest, **values})
        self.execute(_SET_HEAD, {"seq": seq, "hash": digest})
        self.head = (seq, digest)

    def find_account(self, name: str) -> Account | None:
        row = self._connection.execute(select(_accounts).where(_accounts.c.name == name)).first()
        return None if row is None else _account(row)

    def account(self, name: str) -> Account:
        account = self.find_account(name)
        if account is None:
            raise LedgerError(
                f"Account {name!r} is not in the ledger. It has: {[a.name for a in self.accounts()]}. "
                "Open one with ledger.open_account(name, epsilon=…, delta=…), or dpgb-dask ledger open."
            )
        return account

    def accounts(self) -> tuple[Account, ...]:
        rows = self._connection.execute(select(_accounts).order_by(_accounts.c.name))
        return tuple(_account(row) for row in rows)

    def charge_instead(self, fit: dict[str, str], state: str, charge: int) -> None:
        """End an open fit in a state, and let only ``charge`` of what it reserved stand."""
        account = self.account(fit["account"])
        spent = str(account.spent - int(fit["price"]) + charge)
        self.execute(update(_accounts).where(_accounts.c.name == account.name).values(spent=spent))
        changes = {"state": state, "price": str(charge)}
        self.execute(update(_fits).where(_fits.c.fit_id == fit["fit_id"]).values(**changes))

    def find_fit(self, fit_id: str) -> dict[str, str] | None:
        row = self._connection.execute(_FIND_FIT, {"fit_id": fit_id}).mappings().first()
        return None if row is None else dict(row)

    def fit(self, fit_id: str) -> dict[str, str]:
        fit = self.find_fit(fit_id)
        if fit is None:
            raise LedgerError(
                f"fit_id={fit_id!r} is not in the ledger. ledger.history(account), or dpgb-dask ledger show, lists the"
                " fits of an account."
            )
        return fit

    def resumable(self, fit_id: str, states: tuple[str, ...]) -> dict[str, str]:
        """Return a fit in one of some states."""
        try:
            fit = self.fit(fit_id)
        except LedgerError as error:
            raise ResumeError(str(error)) from error
        if fit["state"] not in states:
            raise ResumeError(_ended(fit_id, fit["state"]))
        return fit

    def leased(self, fit_id: str, lease: str) -> dict[str, str]:
        """Return what may change of an open fit that the caller holds the lease of."""
        row = self._connection.execute(_FIND_LEASE, {"fit_id": fit_id}).mappings().first()
        if row is None:
            raise LedgerError(f"fit_id={fit_id!r} is not in the ledger.")
        if row["state"] != "RESERVED":
            raise ResumeError(_ended(fit_id, row["state"]))
        if row["lease"] != lease:
            raise ResumeError(
                f"fit_id={fit_id!r} was resumed by another process, which goes on with it. Stop here."
            )
        return dict(row)

    def end(self, fit_id: str) -> dict[str, Any]:
        """Return the body of the RELEASED entry of a fit that ended; older ones hold less."""
        (entry,) = self.entries((_entries.c.fit_id == fit_id) & (_entries.c.kind == "RELEASED"))
        return entry.body

    def entries(self, where: Any) -> tuple[Entry, ...]:
        rows = self._connection.execute(select(_entries).where(where).order_by(_entries.c.seq))
        return tuple(
            Entry(r.seq, r.kind, r.account, r.fit_id, r.at, json.loads(r.body)) for r in rows
        )

    def newest_opened(self, fit_id: str) -> dict[str, Any] | None:
        """Return the body of a fit's newest OPENED entry; it holds the sum of prices so far."""
        body = self._connection.execute(_NEWEST_OPENED, {"fit_id": fit_id}).scalar()
        return None if body is None else dict(json.loads(body))

    def spending(self, fit_id: str, pure: bool) -> tuple[Spending, bool]:
        """Return what the opened rounds of a fit cost, and whether one was on a sample of rows."""
        spending, sampled = Spending(pure=pure), False
        for entry in self.entries((_entries.c.fit_id == fit_id) & (_entries.c.kind == "OPENED")):
            spending = _spend(spending, entry.body)
            sampled |= entry.body.get("rows", [""])[0] == "sample"
        return spending, sampled

    def verify(self) -> None:
        """Recompute every hash, and accounts and fits from the entries."""
        seq, digest = 0, GENESIS
        accounts: dict[str, dict[str, Any]] = {}
        fits: dict[str, dict[str, Any]] = {}
        opened: dict[str, tuple[int, Spending]] = {}  # rounds and what they cost
        for row in self._connection.execute(select(_entries).order_by(_entries.c.seq)).mappings():
            values = {
                name: row[name] for name in ("seq", "kind", "account", "fit_id", "at", "body")
            }
            if (
                row["seq"] != seq + 1
                or row["prev"] != digest
                or row["hash"] != _chain(digest, values)
            ):
                raise LedgerError(
                    f"The hash chain of the ledger breaks at entry {row['seq']}: it was changed by hand."
                )
            seq, digest = row["seq"], row["hash"]
            kind, name, fit_id, body = (
                row["kind"],
                row["account"],
                row["fit_id"],
                json.loads(row["body"]),
            )
            if kind == "OPEN":
                accounts[name] = body | {"spent": 0, "tau": 0.0}
            elif kind == "RESERVED":
                account, charge = accounts[name], _charge(body)
                account["spent"] += charge
                if body["tau"]:
                    account["tau"] = math.nextafter(account["tau"] + body["tau"], math.inf)
                fits[fit_id] = {
                    "account": name, "state": kind, "price": charge, "terms": row["body"], "fingerprint": "",
                }  # fmt: skip
                opened[fit_id] = (0, Spending(pure=body.get("pure", False)))
            elif kind == "BOUND":
                fits[fit_id]["fingerprint"] = body["fingerprint"]
            elif kind == "OPENED":
                rounds, spending = opened[fit_id]
                spending = _spend(spending, body)
                reserved = int(json.loads(fits[fit_id]["terms"])["price"])
                if body["position"] != rounds or spending.spent > reserved:
                    raise LedgerError(
                        f"fit_id={fit_id!r} opened a round twice, or more than it reserved, at entry {seq}."
                    )
                opened[fit_id] = (rounds + 1, spending)
            elif kind in ("RELEASED", "SETTLED"):
                charge = int(body.get("charge", fits[fit_id]["price"]))
                accounts[name]["spent"] += charge - fits[fit_id]["price"]
                fits[fit_id] |= {"state": kind, "price": charge}
        told = {
            a.name: {
                "epsilon": repr(a.epsilon), "delta": repr(a.delta), "analysis": a.analysis, "cap": str(a.cap),
                "spent": a.spent, "tau": a.tau,
            }
            for a in self.accounts()
        }  # fmt: skip
        rows = {
            r.fit_id: {
                "account": r.account, "state": r.state, "price": int(r.price), "terms": r.terms,
                "fingerprint": r.fingerprint,
            }
            for r in self._connection.execute(select(_fits))
        }  # fmt: skip
        if (seq, digest) != self.head or told != accounts or rows != fits:
            raise LedgerError(
                "Accounts or fits do not follow from the entries: the ledger was changed by hand."
            )


def _canonical(body: dict[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def _chain(previous: str, values: dict[str, Any]) -> str:
    return hashlib.sha256(f"{previous}\n{_canonical(values)}".encode()).hexdigest()


def _account(row: Any) -> Account:
    return Account(
        row.name,
        float(row.epsilon),
        float(row.delta),
        row.analysis,
        int(row.cap),
        int(row.spent),
        float(row.tau),
    )


def _terms(fit: dict[str, str]) -> Terms:
    return Terms.from_json(json.loads(fit["terms"]))


def _ended(fit_id: str, state: str) -> str:
    way_out = (
        "it was settled, and its key is erased. Fit anew"
        if state == "SETTLED"
        else "it ended, and its key is erased. Resuming it (resume=…, --resume) gives its model again from the journal"
    )
    return f"fit_id={fit_id!r} is {state}: {way_out}."


def _charge_fit(book: _Book, name: str, fit_id: str, terms: Terms, lease: str) -> None:
    """Charge a fit to an account, if it has enough left."""
    account = book.account(name)
    charge = analyses.charge(terms.price, pure=terms.pure, analysis=account.analysis)
    if charge > account.left:
        raise BudgetExceededError(_shortfall(account, terms, charge))
    tau = math.nextafter(account.tau + terms.tau, math.inf) if terms.tau else account.tau
    allowed = account.delta * float(accounting.SLACK)
    # zCDP holds for discrete Gaussians by itself, without slack
    used = accounting.slack(account.epsilon, tau) if account.analysis == "gdp" else 0.0
    if used > allowed:
        raise BudgetExceededError(
            f"Account {name!r}: the slack of its fits would be {used:.3g}, more than delta/1000={allowed:.3g}. "
            "Nothing was charged. Open an account with a smaller epsilon or a larger delta."
        )
    body = terms.to_json() | {"charge": str(charge)}
    spent = str(account.spent + charge)
    book.execute(
        update(_accounts).where(_accounts.c.name == name).values(spent=spent, tau=repr(tau))
    )
    row = {
        "fit_id": fit_id, "account": name, "state": "RESERVED", "price": str(charge),
        "terms": _canonical(body), "fingerprint": "", "lease": lease,
    }  # fmt: skip
    book.execute(insert(_fits).values(**row))
    book.append("RESERVED", name, fit_id, body)


def _charge(body: dict[str, Any]) -> int:
    """Return what a reservation charged; before there were other analyses, its price."""
    return int(body.get("charge", body["price"]))


def _check_follows(fit_id: str, position: int, last: int) -> None:
    """Refuse a round that does not follow the newest one."""
    if position != last + 1:
        raise ResumeError(
            f"Release {position} of fit_id={fit_id!r} does not follow the newest one that was opened: another"
            " process goes on with this fit. Stop here."
        )


def _check_reserved(fit_id: str, position: int, after: Spending, terms: Terms) -> None:
    """Refuse a round that would take the fit above what it reserved."""
    if after.spent > terms.price:
        raise BudgetExceededError(
            f"Release {position} of fit_id={fit_id!r} would cost more than the fit reserved; nothing was opened.\n"
            f"  reserved   {terms.price}\n"
            f"  would be   {after.spent}\n"
            f"Amounts are 2**-64 of {'ε' if terms.pure else 'μ²'}."
        )


def _spend(spending: Spending, body: dict[str, Any]) -> Spending:
    """Add an OPENED entry."""
    rows = body.get("rows")
    return spending.plus(int(body["price"]), None if rows is None else RowDraw(*rows))


def _epsilon_left(account: Account, delta: float, *, pure: bool) -> float:
    return analyses.epsilon_within(account.left, delta, pure=pure, analysis=account.analysis)


def _shortfall(account: Account, terms: Terms, charge: int) -> str:
    """Say what is missing, both sides lined up, in the unit that adds up."""
    fits = _epsilon_left(account, terms.delta, pure=terms.pure)
    one = PRICE_ONE
    would = (
        f"epsilon={fits:.6g} at delta={terms.delta:g}"
        if fits >= 1e-6
        else "nothing: the account is spent"
    )
    way_out = " Fits of pure differential privacy cost least in an account with analysis='pure'."
    return (
        f"Account {account.name!r} has too little left; nothing was charged.\n"
        f"  requested   {charge / one:.9f}  (epsilon={terms.epsilon:g}, delta={terms.delta:g})\n"
        f"  remaining   {account.left / one:.9f}  of {account.cap / one:.9f} "
        f"(epsilon={account.epsilon:g}, delta={account.delta:g})\n"
        f"  difference  {(charge - account.left) / one:.9f}\n"
        f"  would fit   {would}\n"
        f"Amounts are {analyses.UNITS[account.analysis]}, which adds up over fits."
        + (way_out if terms.pure and account.analysis != "pure" else "")
    )


def _configure_sqlite(connection: Any, _record: Any) -> None:
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


def _configure_postgresql(connection: Any, _record: Any) -> None:
    # who waits gives up in the end; who is stopped inside a transaction loses it before that
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {round(1000 * WAIT_SECONDS)}")
        cursor.execute(f"SET idle_in_transaction_session_timeout = {round(500 * WAIT_SECONDS)}")
    connection.commit()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _is_uri(url: URL) -> bool:
    return (url.database or "").startswith("file:")


def _sqlite_path(url: URL) -> Path | None:
    """Return the absolute path of a SQLite file; None for memory and other databases."""
    name = re.sub("^file:", "", url.database or "")
    if url.drivername != "sqlite" or name in ("", ":memory:"):
        return None
    return Path(name).expanduser().absolute()


def _write_head(file: Path, head: tuple[int, str]) -> Path:
    """Write a head that is not committed yet, under a name of this thread only."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in file.parent.glob(f"{file.name}.*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                left.unlink()
    pending = file.with_name(f"{file.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with pending.open("w", encoding="utf-8") as out:
            json.dump({"seq": head[0], "hash": head[1]}, out)
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            pending.unlink()
        raise
    return pending


def _refuse_network(path: Path) -> None:
    """Refuse a file on a network file system, whose locks SQLite cannot rely on."""
    kind = _file_system(path.resolve().parent)
    if kind in NETWORK_FILE_SYSTEMS:
        raise LedgerError(
            f"{str(path)!r} is on a network file system ({kind}): SQLite cannot lock it safely, and two fits could "
            "spend the same budget. Use a file on a local disk, or a PostgreSQL server that all machines reach: "
            "'postgresql+psycopg://user@host/db', after: pip install 'dpgb_dask[postgres]'."
        )


def _file_system(directory: Path) -> str:
    """Return the file system type of a directory, empty if it is not known (no Linux)."""
    try:
        lines = MOUNTINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        mount, _, source = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), mount.split()[4])
        # later lines hide earlier ones at the same point
        if directory.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), source.split()[0]
    return kind
