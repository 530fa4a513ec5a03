"""The ledger: accounts with a cap, charged before data are touched; it refuses to overspend (docs/privacy.md P11).

The life of a fit; each arrow is one durable transaction and one entry of the hash chain:

    RESERVED ─▶ BOUND ─▶ OPENED ─▶ … ─▶ OPENED ─▶ RELEASED      the normal end; the reserved price stays charged, but
        │         │         │                                   only opened rounds if the fit ended early
        ╰─────────┴─ crash ─┴─▶ LEASED (resume) ─▶ …            no new charge: the same noise is drawn again
                            ╰─▶ SETTLED                         closed for good; only opened rounds stay charged

The model of a RELEASED fit can be computed again from its journal, whose digest the entry holds; nothing is opened.

Every transaction that writes takes one lock (SQLite: BEGIN IMMEDIATE; PostgreSQL: the row of the head), so racing fits
see each other's charges and entries form one chain. The tables are in ledger_tables.py, and what is read and written
there in ledger_book.py; on a server, functions there write (ledger_server.py). ledger_files.py tells which file an
address names, and what lies beside it; ledger_connections.py connects.
"""

import contextlib
import errno
import functools
import math
import os
import sqlite3
import stat
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DataError, IntegrityError, InvalidRequestError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from dpgb_dask.calls import spoken
from dpgb_dask.contracts.queries import ChoiceQuery, GradientQuery, Query, SharedChoiceQuery
from dpgb_dask.contracts.spending import Spending
from dpgb_dask.controller import account_units, accounting
from dpgb_dask.controller.account_units import RoundCosts
from dpgb_dask.controller.ledger_book import (
    Account,
    Book,
    Checked,
    Entry,
    Fit,
    Opened,
    Record,
    Running,
    Tally,
    Terms,
    charge_of,
    epsilon_left,
    terms_of,
)
from dpgb_dask.controller.ledger_connections import (
    OUTAGE_SECONDS,
    close_all,
    forget_shared,
    is_away,
    on_server,
    server_engine,
    sqlite_engine,
)
from dpgb_dask.controller.ledger_files import (
    GENESIS,
    HEAD,
    WAIT_SECONDS,
    Address,
    Head,
    Legacy,
    copy_into_memory,
    deleted,
    folder_name,
    forget_head,
    holds_none,
    name_in_head,
    read_head,
    refuse_copy,
    refuse_network,
    refuse_second_name,
    writable,
    write_head,
)
from dpgb_dask.controller.ledger_server import ServerBook, grant, revoke
from dpgb_dask.controller.ledger_tables import PUT_BACK, digest, prepare, refusing_damage
from dpgb_dask.controller.noise import erase_key, write_key
from dpgb_dask.display import Listing, exact, html_table
from dpgb_dask.errors import (
    AccountError,
    BudgetExceededError,
    DPGBError,
    LargeDeltaWarning,
    LedgerError,
    LedgerLostError,
    LedgerMissingError,
    LedgerUnavailableError,
    ResumeError,
    level_outside,
)
from dpgb_dask.names import ACCOUNT_UNITS
from dpgb_dask.scalars import plain_text

# codes of PostgreSQL's errors: that of ledger_server.sql, and that of a lacking right
REFUSED, NO_RIGHT = "DPGB0", "42501"
# for readers, some of which stay for hours, to let the write-ahead file be folded in
FOLD_SECONDS = 1
_ledgers: weakref.WeakSet["Ledger"] = weakref.WeakSet()
_of_parents: list[Any] = []  # connections that a child process must not close
# for each ledger, by address and id: accounts and fits by the entries that this process has verified
_verified: dict[tuple[str, str], Tally] = {}

P = ParamSpec("P")
T = TypeVar("T")


def no_ledger(given: object) -> str:
    """Return what to say of something else that is given for a ledger, such as its address."""
    return f"ledger is a {type(given).__name__}. Give a dpgb_dask.Ledger, as in Ledger('sqlite:///budget.db')."


def _outlasting(
    method: Callable[Concatenate["Ledger", P], T],
) -> Callable[Concatenate["Ledger", P], T]:
    """Repeat a method of `Ledger` whose server went away, until the server is back or `OUTAGE_SECONDS` are over.

    Each such method may be repeated: where its first commit took effect and only the answer was lost, it finds what it
    would write, and adds nothing.
    """

    @functools.wraps(method)
    def run(ledger: "Ledger", /, *args: P.args, **kwargs: P.kwargs) -> T:
        deadline = time.monotonic() + OUTAGE_SECONDS
        while True:
            try:
                return method(ledger, *args, **kwargs)
            except LedgerLostError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    return run


class Ledger:
    """Privacy accounts in a database.

    Parameters
    ----------
    url : str
        ``sqlite:///path.db`` (absolute: four slashes), ``postgresql+psycopg://user@host/db`` for a team, ``sqlite://``
        for memory (or SQLite's other spellings of it). Nothing is opened until the ledger is used.

    Raises
    ------
    LedgerError
        If the address cannot be read, or names a SQLite file on a network file system, or one that is mounted alone or
        has hard links.

    Privacy
    -------
    Controller side. Holds prices, digests and keyed hashes; no sum, no count, and never a fit's key. Copies and pickles
    carry the address without the password, so all of them charge the same accounts.

    Notes
    -----
    Every method raises `LedgerUnavailableError` if the database cannot be reached or written, and `LedgerError` if what
    it reads was changed by hand.

    Examples
    --------
    >>> ledger = Ledger("sqlite://")
    >>> ledger.open_account("adult-2026", epsilon=3.0, delta=1e-6)
    >>> ledger.remaining("adult-2026")
    3.0
    """

    @spoken
    def __init__(self, url: str) -> None:
        self._address = Address.read(url)
        self._path = self._address.path
        self._name = self._address.public()
        self._lock = threading.RLock()
        self._in_transaction = False
        self._known: Head = (0, GENESIS)  # the newest head that this process has seen
        self._engine: Engine | None = None
        self._connections: list[Any] = []  # of the engine, to be closed whatever happens
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._id = ""
        self._tidied = False
        self._file: tuple[int, int] | None = None
        # fits of a ledger in memory, with their opened rounds
        self._running: dict[str, Running] = {}
        self._tallies = _verified if self.durable else {}
        if self._path is not None:
            refuse_network(self._path)
        _ledgers.add(self)

    @classmethod
    def in_memory(cls) -> "Ledger":
        """Return a new ledger that exists in this process only."""
        return cls("sqlite://")

    @property
    def durable(self) -> bool:
        """Whether charges outlive this process."""
        return self._address.durable

    @property
    def directory(self) -> Path | None:
        """Where keys (``FIT_ID.key``), journals of fits and the newest head live; None in memory.

        Named after the ledger's own id, beside a SQLite file; for PostgreSQL in a directory of this user's data, since
        a key must not leave the machine that draws the noise.
        """
        if not self.durable:
            return None
        if not self._id:
            with self._reading():
                pass
        return self._folder(self._id)

    def key_path(self, fit_id: str) -> Path | None:
        """Return where the key of a running fit is; None in memory.

        Parameters
        ----------
        fit_id : str
        """
        return None if self.directory is None else self.directory / f"{fit_id}.key"

    def journal_path(self, fit_id: str) -> Path | None:
        """Return where the journal of a fit is; None in memory.

        Parameters
        ----------
        fit_id : str
        """
        return None if self.directory is None else self.directory / "journals" / f"{fit_id}.jsonl"

    # -- for people ----------------------------------------------------------------------------------------------

    @spoken
    @_outlasting
    def open_account(
        self,
        name: str,
        *,
        epsilon: float,
        delta: float,
        analysis: str = "gdp",
        unit_id: str | None = None,
    ) -> None:
        """Open an account with a cap; opening it again with the same cap changes nothing.

        Parameters
        ----------
        name : str
            One account per data set: data that share rows must share an account.
        epsilon, delta : float
            Cap on everything ever charged to the account.
        analysis : {"gdp", "zcdp", "pure"}
            How charges add up (account_units.py): in μ², which is tight for Gaussian noise; in ρ, by zero-concentrated
            differential privacy alone; or in ε, for fits of pure differential privacy only, and then delta may be 0.
        unit_id : str, optional
            Column that names the privacy unit: the cap then holds for all rows of one unit together, and only fits with
            this unit can charge the account (with any ``max_rows_per_unit``). None: the cap holds for one row, and fits
            by rows and fits by units can charge the account.

        Raises
        ------
        AccountError
            If the account exists with another cap or unit, its name is none, or the analysis is not known.
        PlanError
            If epsilon or delta is out of range.

        Warns
        -----
        LargeDeltaWarning
            If delta is at least 1e-3, the analysis needs one, and the ledger is not in memory.
        """
        account_units.check_account(epsilon, delta, analysis)
        if not _is_name(name):
            raise AccountError(f"account name {name!r} must be text of 1 to 200 characters.")
        # another account, beside the one that was meant, would double the budget
        if name != name.strip():
            raise AccountError(f"account name {name!r} begins or ends with a blank. Leave it out.")
        # of a fit without a ledger, whose own is in memory, the fit says it
        for text in account_units.large_delta(delta) if self.durable and analysis != "pure" else ():
            warnings.warn(text, LargeDeltaWarning, stacklevel=level_outside())
        if unit_id is not None and not _is_name(unit_id):
            raise AccountError(f"unit_id={unit_id!r} must be text of 1 to 200 characters, or None.")
        body = {
            "epsilon": repr(float(epsilon)),
            "delta": repr(float(delta)),
            "analysis": analysis,
            "cap": str(account_units.cap(float(epsilon), float(delta), analysis)),
        }
        if unit_id is not None:
            body["unit_id"] = unit_id
        with self._transaction(keep_head=True, charging=True, making=True) as book:
            known = book.find_account(name)
            if known is None:
                book.add_account(name, body)
            elif (known.epsilon, known.delta, known.analysis, known.unit_id) != (
                float(epsilon),
                float(delta),
                analysis,
                unit_id,
            ):
                raise AccountError(
                    f"Account {name!r} exists with another cap.\n"
                    f"  in the ledger  epsilon={exact(known.epsilon)}  delta={exact(known.delta)}"
                    f"  analysis={known.analysis}  unit_id={known.unit_id!r}\n"
                    f"  asked for      epsilon={exact(float(epsilon))}  delta={exact(float(delta))}"
                    f"  analysis={analysis}  unit_id={unit_id!r}\n"
                    "A cap never changes. Open an account under another name."
                )

    @spoken
    def remaining(self, name: str) -> float:
        """Return the largest epsilon that one more fit at the account's delta may ask; 0.0 when nothing is left.

        It is meant for a fit with Gaussian noise, or, with ``analysis="pure"``, for one of pure differential privacy.

        Parameters
        ----------
        name : str
            The account.

        Raises
        ------
        LedgerError
            If there is no such account.
        """
        account = self.account(name)
        if account.spent == 0 and account.analysis != "zcdp":
            return account.epsilon
        return epsilon_left(account, account.delta, pure=account.analysis == "pure")

    @spoken
    @_outlasting
    def account(self, name: str) -> Account:
        """Return an account: its cap, and what of it is spent.

        Parameters
        ----------
        name : str
            The account.

        Raises
        ------
        LedgerError
            If there is no such account.
        """
        with self._reading() as book:
            return book.account(name)

    @spoken
    @_outlasting
    def accounts(self) -> Listing[Account]:
        """Return all accounts, by name; none where there is no ledger yet."""
        try:
            with self._reading() as book:
                return book.accounts()
        except LedgerMissingError:
            return Listing()

    @spoken
    @_outlasting
    def history(self, name: str) -> Listing[Entry]:
        """Return the entries of an account, oldest first.

        Parameters
        ----------
        name : str
            The account.

        Raises
        ------
        LedgerError
            If there is no such account, or its entries were changed by hand.
        """
        with self._reading() as book:
            book.account(name)
            return book.history(name)

    @spoken
    @_outlasting
    def fits(self, name: str) -> Listing[Record]:
        """Return the records of the fits of an account, oldest first.

        Parameters
        ----------
        name : str
            The account.

        Raises
        ------
        LedgerError
            If there is no such account, or its entries were changed by hand.
        """
        with self._reading() as book:
            book.account(name)
            return book.records(name)

    @spoken
    @_outlasting
    def settle(self, fit_id: str) -> int:
        """Close an unfinished fit for good, and charge only the rounds it opened.

        Its key is erased if it is on this machine; a key on another machine is erased when that machine next opens the
        ledger. A fit that ended keeps its charge. So does a fit that was unfinished when the ledger was restored, or
        whose journal holds answers that the ledger lacks, because the rounds it opened are not known for sure.

        Parameters
        ----------
        fit_id : str

        Returns
        -------
        int
            The charge that stands, in units of 2⁻⁶⁴ of the account's unit.

        Raises
        ------
        LedgerError
            If there is no such fit, or its entries were changed by hand.
        LedgerUnavailableError
            If the key cannot be erased; the fit is closed all the same.

        Privacy
        -------
        Every released value is a function of rounds whose OPENED entry was durable before their sums were opened; after
        SETTLED no more can be opened, here or by a process still running (it would need the fit's lease in a
        transaction that finds the fit open). So the releases of the fit cost at most the `Spending` of opened rounds,
        and by the account's filter the rest was never used and may be given back (account_units.py, which also says
        why a pure fit that opened a round on a sample keeps its whole charge in μ² and ρ). Choices of a fit in μ² were
        priced beside what would follow; by themselves they cost at most 11/7 as much. The account's promise holds
        either way; so that what it has spent can be said of these releases alone, too, 11/7 of what was opened stays
        (docs/privacy.md P8). The slack τ stays reserved.
        """
        with self._transaction(keep_head=True) as book:
            fit = book.fit(fit_id)
            charge = charge_of(fit)
            if fit["state"] == "RESERVED":
                book.balanced(fit["account"])
                charge = self._opened_charge(book, fit)
                if terms_of(fit).chooses and book.account(fit["account"]).analysis == "gdp":
                    # what its choices counted on is given back: what they cost by themselves
                    charge = min(charge_of(fit), math.ceil(charge * accounting.ALONE))
                book.add_end(fit, "SETTLED", charge, {})
        self._running.pop(fit_id, None)
        self.erase_key(fit_id)
        return charge

    def _opened_charge(self, book: Book, fit: dict[str, str]) -> int:
        """Return what the opened rounds of a fit cost its account (`settle` says why charging them is enough)."""
        # in memory, opened rounds leave no entry: nothing is given back
        if not self.durable or self._lacks_rounds(book, fit["fit_id"]):
            return charge_of(fit)
        return book.tally().opened_charge(fit["fit_id"])

    def _lacks_rounds(self, book: Book, fit_id: str) -> bool:
        """Return whether the journal of a fit holds answers whose OPENED entries were lost with a write-ahead file."""
        journal = self.journal_path(fit_id)
        try:
            answers = 0 if journal is None else journal.read_bytes().count(b"\n")
        except (FileNotFoundError, NotADirectoryError):  # the fit ran on another machine
            return False
        return answers > len(book.opened(fit_id))

    @spoken
    @_outlasting
    def verify(self) -> Checked:
        """Verify the whole chain, compare accounts and fits with it, and compare it with the head beside the ledger.

        Returns
        -------
        Checked
            How much was verified.

        Raises
        ------
        LedgerError
            If an entry was changed, removed or inserted, or a table does not follow from the entries.

        Notes
        -----
        This finds damage, rollbacks and edits by hand. It is no signature: whoever can write the database and the head
        beside it can make another chain that agrees with itself. On a server, the head is then kept here.
        """
        with self._reading() as book:
            checked = replace(book.verify(), head=bool(self._heads(readable_only=True)))
            if self._address.server:
                # an auditor adds no entry, and is to notice an older copy next time
                file = self._folder(self._id) / HEAD
                with contextlib.suppress(OSError):
                    # others may have charged since this transaction began
                    if max(book.head, read_head(file) or book.head) == book.head:
                        self._write_head(book.head).replace(file)
            return checked

    def restore(self) -> bool:
        """Go on with a database that was restored from a copy, or whose newest head is lost; only its owner should.

        Charges that were made after the copy was taken are forgotten, so an owner who knows of such a fit has to count
        it elsewhere. Fits that are unfinished in the copy cannot be resumed, and settling one leaves its whole charge,
        because rounds that it opened may be missing from the copy.

        Returns
        -------
        bool
            False if there was nothing to restore: the newest head is known, and in the chain. True on a server, where
            rounds that other machines opened may be missing: there the owner's word decides.

        Raises
        ------
        LedgerError
            If the database is empty, or does not agree with itself.
        """
        with self._transaction(keep_head=True, restoring=True) as book:
            try:
                heads = self._heads()
            except LedgerError:  # damaged
                heads = []
            if heads and all(map(book.contains, heads)) and not self._address.server:
                return False
            if not book.head[0]:
                raise LedgerError(
                    "The ledger is empty: there is nothing to restore. Put a copy of its file back first."
                )
            book.verify()
            book.add_restored(max(heads)[0] if heads else None)
        return True

    @spoken
    @_outlasting
    def grant(self, kind: str, role: str) -> None:
        """Let a role of the database server use the ledger; only the role that owns the ledger can.

        Parameters
        ----------
        kind : {"analyst", "auditor"}
            An analyst reads the ledger and charges fits; an auditor only reads.
        role : str
            Name of the role, which exists. What it could do with the ledger before is taken from it.

        Raises
        ------
        LedgerError
            If the ledger is a file, there is no such role, or it could change the ledger by other rights.
        """
        with self._owning() as connection:
            grant(connection, kind, role)

    @spoken
    @_outlasting
    def revoke(self, role: str) -> None:
        """Take from a role of the database server all that `grant` gave.

        Parameters
        ----------
        role : str

        Raises
        ------
        LedgerError
            If the ledger is a file, or there is no such role.
        """
        with self._owning() as connection:
            revoke(connection, role)

    @contextlib.contextmanager
    def _owning(self) -> Iterator[Connection]:
        """Run one transaction about rights."""
        if not self._address.server:
            raise LedgerError(
                f"{self!r} has no roles: whoever can write the file can do everything. A ledger on a PostgreSQL server"
                " has."
            )
        with self._lock:
            try:
                with self._begun(self._connect()) as connection:
                    yield connection
            except (SQLAlchemyError, OSError) as error:
                self._disconnect()
                raise self._failed(error, False, False) from error

    # -- for the controller --------------------------------------------------------------------------------------

    @_outlasting
    def reserve(self, name: str, fit_id: str, terms: Terms, lease: str, key: bytes) -> None:
        """Write the key of a fit and charge the whole fit, in one transaction: both or neither.

        Parameters
        ----------
        name : str
            The account.
        fit_id : str
            A new one.
        terms : Terms
            What the fit costs at most, and what it is bound to.
        lease : str
            Known to the process that runs the fit; only its holder can open rounds.
        key : bytes
            The secret from which the noise is drawn. It is written beside the ledger, never into it.

        Raises
        ------
        BudgetExceededError
            If the account has too little left.
        LedgerError
            If the account protects another unit, or does not agree with its entries.
        LedgerUnavailableError
            If the key or the charge cannot be written.

        Privacy
        -------
        The key is durable before the charge, and both are written under the ledger's lock. So a crash between the two
        leaves a key without a charge, which was never used; the next holder of the lock recognises it (`_sweep`). The
        balance decides what may be charged, so it is compared with the account's entries at every charge. Before a
        process adds an entry, it verifies the whole chain, or what others have added since it last did. The terms and
        the state of a fit, too, are trusted only if they agree with its entries (`Book.tally`).
        """
        committing = False
        path: Path | None = None
        try:
            with self._transaction(keep_head=True, charging=True) as book:
                path = self.key_path(fit_id)
                if not book.holds(fit_id, lease):
                    book.balanced(name)
                    book.reserve(name, fit_id, terms, lease)
                if path is not None and not (path.exists() and path.read_bytes() == key):
                    write_key(path, key)
                committing = True
        except BaseException as error:
            # a commit that failed, or was interrupted, may have taken effect
            if committing and self._may_hold(fit_id):
                self.note(error, fit_id)
            elif committing and path is not None:
                with contextlib.suppress(OSError):
                    erase_key(path)
            raise

    def _may_hold(self, fit_id: str) -> bool:
        """Return whether a fit is charged; also true if the ledger cannot be read."""
        try:
            with self._reading() as book:
                return book.find_fit(fit_id) is not None
        except LedgerError:
            return True

    def note(self, error: BaseException, fit_id: str, *, ended: bool = False) -> None:
        """Add a note to an error that ends a fit: how to resume or settle it; none if the ledger is in memory.

        Parameters
        ----------
        error : BaseException
            A `ResumeError` gets no note: its message says what to do.
        fit_id : str
            A fit that is charged.
        ended : bool
            Whether all of its answers are in the journal; the error then came before its model was given out.
        """
        again = f"fit(..., resume={fit_id!r}), or the same command and --resume {fit_id},"
        note = (
            f"Fit {fit_id} is charged and has ended: {again} gives its model from its journal, without a new charge."
            if ended
            else f"Fit {fit_id} is charged and not lost: {again} goes on with it without a new charge;"
            f" ledger.settle({fit_id!r}), or dpgb-dask ledger settle URL {fit_id}, closes it and gives back what it has"
            " not opened."
        )
        known = note in getattr(error, "__notes__", ())
        if self.durable and not known and not isinstance(error, ResumeError):
            error.add_note(note)

    @_outlasting
    def look(self, fit_id: str) -> Fit:
        """Return what is known of a fit that is unfinished, or that ended and can be replayed from its journal.

        Parameters
        ----------
        fit_id : str

        Raises
        ------
        ResumeError
            If there is no such fit, or it was settled.
        """
        with self._reading() as book:
            fit = book.resumable(fit_id, ("RESERVED", "RELEASED"))
            ended = fit["state"] == "RELEASED"
            answers = book.record(fit_id).answers if ended else ""
        return Fit(fit["account"], terms_of(fit), fit["fingerprint"], ended, answers)

    @_outlasting
    def record(self, fit_id: str) -> Record:
        """Return the ledger's record of a fit.

        Parameters
        ----------
        fit_id : str

        Raises
        ------
        LedgerError
            If there is no such fit.
        """
        with self._reading() as book:
            return book.record(fit_id)

    @_outlasting
    def take(self, fit_id: str, lease: str) -> list[Opened]:
        """Take the lease of an unfinished fit; its former holder can open nothing more. Return the opened rounds.

        Parameters
        ----------
        fit_id : str
        lease : str
            The new lease.

        Raises
        ------
        ResumeError
            If there is no such fit, it ended, or the ledger was restored since.
        """
        with self._transaction(keep_head=True) as book:
            fit = book.resumable(fit_id, ("RESERVED",))
            if fit["lease"] != digest(lease):
                book.add_lease(fit, digest(lease))
            entries = book.opened(fit_id)
            with refusing_damage(f"a round of fit_id={fit_id!r}"):
                return [Opened(entry.body["query_id"], entry.body["seal"]) for entry in entries]

    @_outlasting
    def bind(self, fit_id: str, lease: str, fingerprint: str) -> None:
        """Record the keyed hash of the data's fingerprint.

        Parameters
        ----------
        fit_id, lease : str
        fingerprint : str
            Hex; the key is the fit's.

        Raises
        ------
        ResumeError
            If the fit is bound to other data, it ended, or the lease is lost.

        Privacy
        -------
        The new head is also kept outside the database. If this entry could be lost with a write-ahead file, the fit
        could then be resumed on other data, whose answers nobody has paid for.
        """
        with self._transaction(keep_head=True) as book:
            fit = book.leased(fit_id, lease)
            if fit["fingerprint"] == fingerprint:
                return
            if fit["fingerprint"]:
                raise ResumeError(
                    f"fit_id={fit_id!r} is bound to other data by another process. Stop here."
                )
            book.add_binding(fit, fingerprint)

    @_outlasting
    def open_round(
        self, fit_id: str, lease: str, position: int, opened: Opened, query: Query
    ) -> None:
        """Record that a round's sums are opened, before anything is computed from them.

        Recording the newest round again, with the same sums, changes nothing.

        Parameters
        ----------
        fit_id, lease : str
        position : int
            Number of the round, from 0.
        opened : Opened
            Id of the query, and a keyed hash of its sums.
        query : Query
            What is asked; its price and its draw of rows count.

        Raises
        ------
        LedgerError
            If the query has no positive price.
        ResumeError
            If the round does not follow the newest one, or the lease is lost: then another process runs the fit. In
            memory no round is recorded again, as nothing tells whether its sums are the same.
        BudgetExceededError
            If all rounds together would cost more than the fit reserved.

        Privacy
        -------
        This is the filter of contracts/spending.py, enforced where every process sees it: the `Spending` of opened
        rounds is at most what was reserved, and each position has one vector of sums. Price and row draw come from the
        plan, not from the data.
        """
        if query.price <= 0:
            raise LedgerError(f"Release {position} of fit_id={fit_id!r} has no positive price.")
        if not self.durable:
            self._open_in_memory(fit_id, lease, position, query)
            return
        with self._transaction() as book:
            fit = book.leased(fit_id, lease)
            running = book.running(fit_id)
            if position == running.rounds - 1 and opened == running.newest:
                return
            _check_follows(fit_id, position, running.rounds - 1)
            draw = query.rows if isinstance(query, GradientQuery) else None
            after, _, costs = _opening(fit_id, position, query, running)
            body = {
                "position": position,
                "query_id": opened.query_id,
                "seal": opened.seal,
                "price": str(query.price),
                "spent": str(after.spent),
            } | costs
            book.add_round(fit, body, draw)

    def _open_in_memory(self, fit_id: str, lease: str, position: int, query: Query) -> None:
        """Apply the filter without an entry: no other process uses the ledger, and nothing is resumed or read later."""
        with self._lock:
            if fit_id not in self._running:
                with self._transaction() as book:
                    book.leased(fit_id, lease)  # refuses a fit that has ended
                    self._running[fit_id] = replace(book.running(fit_id))
            running = self._running[fit_id]
            _check_follows(fit_id, position, running.rounds - 1)
            after, charged, _ = _opening(fit_id, position, query, running)
            running.spending, running.charged = after, charged
            running.rounds += 1

    @_outlasting
    def finish(
        self, fit_id: str, lease: str, answers: str, *, model: str = "", only_opened: bool = False
    ) -> int:
        """Close a fit whose model is complete; what remains is to erase its key.

        Parameters
        ----------
        fit_id, lease : str
        answers : str
            Digest of all answers that the fit released; it identifies the journal when the key is gone.
        model : str
            Digest of the fit's model; it identifies the model.
        only_opened : bool
            Whether only the rounds that the fit opened stay charged, as in `settle`; else all that it reserved.

        Returns
        -------
        int
            The charge that stands, in units of 2⁻⁶⁴ of the account's unit.

        Privacy
        -------
        Whether a fit ends early must follow from released answers. `settle` says why charging what it opened is enough.
        """
        with self._transaction(keep_head=True) as book:
            fit = book.fit(fit_id)
            charge = charge_of(fit)
            if (fit["state"], fit["lease"]) != ("RELEASED", digest(lease)):
                fit |= book.leased(fit_id, lease)
                if only_opened:
                    book.balanced(fit["account"])
                    charge = self._opened_charge(book, fit)
                book.add_end(fit, "RELEASED", charge, {"answers": answers, "model": model})
        self._running.pop(fit_id, None)
        return charge

    def erase_key(self, fit_id: str) -> None:
        """Erase the key of a fit that ended, if it is on this machine; may be repeated after a crash.

        Parameters
        ----------
        fit_id : str

        Raises
        ------
        LedgerUnavailableError
            If its file cannot be erased.
        """
        path = self.key_path(fit_id)
        if path is not None:
            try:
                erase_key(path)
            except OSError as error:
                raise LedgerUnavailableError(
                    f"The fit is closed, but its key {str(path)!r} could not be erased ({error.strerror}). Delete it."
                ) from error

    def _sweep(self, book: Book) -> None:
        """Erase the keys on this machine whose fits ended, were settled elsewhere, or were never charged.

        Keys are written under the lock that this transaction holds. So a key whose fit is not in the ledger was left by
        a process that stopped before its charge was committed.
        """
        for path in self._folder(self._id).glob("*.key"):
            fit = book.find_fit(path.stem)
            if fit is None or fit["state"] != "RESERVED":
                with contextlib.suppress(OSError):  # another user's
                    erase_key(path)

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
        return Ledger, (self._address.public(),)

    def __repr__(self) -> str:
        return f"Ledger({self._address.public()!r})"

    def _repr_html_(self) -> str:
        """Show where it is, and what shows the rest: a cell that names a ledger neither opens one nor waits for it."""
        if self._address.server:
            kept = "on a server"
        else:
            kept = "in a file" if self.durable else "in memory, and lost with this process"
        looks = [
            ("accounts", "ledger.accounts()"),
            ("fits of an account", "ledger.fits(name)"),
            ("entries of an account", "ledger.history(name)"),
        ]
        return html_table(repr(self), [("kept", kept), *looks])

    def _connect(self, *, making: bool = False) -> Engine:
        """Return this process's engine for the file that is at the path now.

        An open connection would go on with a file that was moved away, and nobody would see the charges made to it.
        With ``making`` a ledger is made where there is none.
        """
        there = self._file_now()
        if self._engine is None or self._file != there:
            self._disconnect()
            if not making:
                self._check_file()
            engine = self._make_engine()
            begun = False
            try:
                with self._begun(engine) as connection:
                    self._id = self._prepared(connection, making)
                    begun = self.durable and self._adopt(Book(connection).head)
            except BaseException:
                if begun and self._path is not None:
                    forget_head(self._folder(self._id) / HEAD, self._path)
                raise
            self._engine, self._file, self._tidied = engine, self._file_now(), False
        return self._engine

    def _check_file(self) -> None:
        """Refuse a SQLite file without a ledger before it is connected to."""
        if self._path is not None and holds_none(self._path):
            self._check_deleted()
            raise self._none_there()

    def _prepared(self, connection: Connection, making: bool = False) -> str:
        """Return the id of the ledger behind a connection; only the first account makes one, unless it is in memory."""
        found = prepare(connection, make=making or not self.durable)
        if not found:
            raise self._none_there()
        return found

    def _none_there(self) -> LedgerMissingError:
        return LedgerMissingError(
            f"There is no ledger at {self._name!r}. Its first account makes it: dpgb-dask ledger open, or"
            " ledger.open_account(name, epsilon=…, delta=…)."
        )

    def _check_deleted(self) -> None:
        """Refuse a new ledger in the place of one whose file is gone."""
        gone = None if self._path is None else deleted(self._path)
        if gone is not None:
            raise LedgerError(
                f"{str(gone)!r} belongs to a ledger whose file {str(self._path)!r} is not there any more, or is"
                " empty: a new one would forget its charges. Put its file back, or give the new ledger another name."
            )

    def _make_engine(self) -> Engine:
        if self._address.server:
            try:
                return server_engine(self._address.url)
            except ModuleNotFoundError as error:
                raise LedgerUnavailableError(
                    f"{self!r} needs the package {error.name!r}. Install dpgb_dask[postgres]."
                ) from error
        connections: list[Any] = []
        self._connections = connections
        self._finalizer = weakref.finalize(self, close_all, connections)
        return sqlite_engine(self._address.url, connections)

    def _begun(
        self, engine: Engine, **options: Any
    ) -> contextlib.AbstractContextManager[Connection]:
        """Begin a transaction, with options of a server's."""
        return on_server(engine, **options) if self._address.server else engine.begin()

    def _adopt(self, head: Head) -> bool:
        """Make the ledger's folder with its newest head, taken from an older version's files if there are any.

        Returns whether it is that of a new ledger. The folder has a head before the first entry is committed. So a
        ledger with entries and no head was restored from a copy, or its file was copied without the folder.
        """
        file = self._folder(self._id) / HEAD
        if file.exists():
            return False
        known = max(filter(None, (read_head(old.head) for old in self._legacy())), default=None)
        if known is None and self._path is not None and head[0] == 0:
            self._check_deleted()
            known = (0, GENESIS)
        if known is not None:
            self._write_head(known).replace(file)
        return known == (0, GENESIS)

    def _refuse_copy(self) -> None:
        """Refuse a copy that lies beside its original: both would use one folder, with one head and the same keys."""
        if self._path is not None:
            name = name_in_head(self._folder(self._id) / HEAD)
            refuse_copy(self._path, name, self._id)

    def _tidy(self, book: Book) -> None:
        """Move an older version's files and erase unused keys, under the lock, when this process opens the ledger."""
        for old in self._legacy():
            old.move(self._folder(self._id))
        self._sweep(book)
        self._tidied = True

    def _write_head(self, head: Head) -> Path:
        """Write a head that is not committed yet; `Path.replace` makes it the newest."""
        name = "" if self._path is None else self._path.name
        return write_head(self._folder(self._id) / HEAD, head, name)

    def _legacy(self) -> list[Legacy]:
        """Return where an older version kept this ledger's files."""
        if self._path is None:
            return [Legacy.at_home(_home(), self._address.public())]
        return [Legacy.beside(path) for path in {self._path, self._address.spelled or self._path}]

    def _folder(self, ledger_id: str) -> Path:
        parent = _home() if self._path is None else self._path.parent
        return parent / folder_name(ledger_id)

    def _file_now(self) -> tuple[int, int] | None:
        """Return which file is at the path of a SQLite ledger now; refuse one that has a second name."""
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        if stat.S_ISREG(found.st_mode) and (self._engine is None or found.st_nlink > 1):
            refuse_second_name(self._path, found.st_nlink)
        return found.st_dev, found.st_ino

    def _disconnect(self) -> None:
        """Close all connections, whatever their state; an open transaction is rolled back."""
        if not self.durable:  # closing would lose a ledger in memory
            for connection in self._connections:
                with contextlib.suppress(Exception):
                    connection.rollback()
            return
        close_all(self._connections)
        if self._finalizer is not None:
            self._finalizer.detach()
        self._connections, self._engine = [], None

    def _hold(self) -> bool:
        """Take the lock once other threads' transactions end, close the connection; return False if time runs out."""
        if not self._lock.acquire(timeout=WAIT_SECONDS):
            return False
        if self._path is not None and not self._in_transaction:
            self._disconnect()
        return True

    def _begin_anew(self) -> None:
        """Give a child process a new lock and no connections; leave the connections that it inherited untouched."""
        _of_parents.append((self._engine, self._connections))
        if self._finalizer is not None:
            self._finalizer.detach()
        self._lock = threading.RLock()
        self._in_transaction = False
        self._engine, self._connections = None, []

    @contextlib.contextmanager
    def _transaction(
        self,
        *,
        keep_head: bool = False,
        charging: bool = False,
        restoring: bool = False,
        making: bool = False,
    ) -> Iterator[Book]:
        """Run one transaction under the ledger's lock; nothing is written if it raises.

        Every exception, Ctrl-C included, rolls it back. Unless the exception is one of ours, the connection is closed
        too, so that nobody waits for its lock.

        With ``keep_head`` the new head is also kept outside the database, so that a restored old file is noticed. It is
        written before the commit under another name, and renamed afterwards: a crash between the two leaves an older
        head, which the chain still contains. Then SQLite's write-ahead file is folded in, so that a copy of the
        database is complete.

        With ``charging`` an error may say that nothing was charged; with ``restoring`` the newest head is not compared;
        with ``making`` a ledger is made where there is none.
        """
        with self._lock:
            if self._in_transaction:  # Ctrl-C came where the last transaction could not be ended
                self._disconnect()
            self._in_transaction = True
            pending: Path | None = None
            committing = False
            try:
                if self._address.read_only:
                    raise PermissionError(errno.EROFS, "the address says mode=ro, readonly")
                with self._begun(self._connect(making=making)) as connection:
                    self._refuse_copy()
                    known = self._tallies.setdefault((self._name, self._id), Tally())
                    options: dict[str, Any] = {
                        "heads": [] if restoring else self._heads(),
                        "head_needed": self._path is not None and not restoring,
                        "known": known,
                    }
                    if self._address.server:
                        book: Book = ServerBook(connection, WAIT_SECONDS, **options)
                    else:
                        book = Book(connection, **options)
                    if self.durable and not self._tidied:
                        self._tidy(book)
                    before = book.head
                    yield book
                    if keep_head and self.durable and book.head != before:
                        pending = self._write_head(book.head)
                    committing = True
                self._known = book.head
                if pending is not None:
                    pending.replace(self._folder(self._id) / HEAD)
                    pending = None
                    self._fold()
            except (SQLAlchemyError, OSError) as error:
                self._disconnect()
                raise self._failed(error, committing, charging) from error
            except DPGBError:
                raise
            except BaseException:
                self._disconnect()
                raise
            finally:
                self._in_transaction = False
                if pending is not None:
                    with contextlib.suppress(OSError):
                        pending.unlink()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Book]:
        """Run one transaction that writes nothing.

        If a file can only be read, for want of permission or of room, it runs on a copy in memory. On a server it takes
        no lock: it sees the tables as they were when it began, and a role that may only read can run it.
        """
        if self._address.server:
            with self._lock:
                try:
                    engine, heads = self._connect(), self._heads()
                    snapshot = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
                    with self._begun(engine, **snapshot) as connection:
                        yield Book(connection, heads)
                except (SQLAlchemyError, OSError) as error:
                    self._disconnect()
                    raise self._failed(error, False, False) from error
            return
        if self._path is None or (writable(self._path) and not self._address.read_only):
            begun = False
            try:
                with self._transaction() as book:
                    begun = True
                    yield book
            except LedgerUnavailableError as error:
                if begun or self._path is None or not _has_no_room(error.__cause__):
                    raise
            else:
                return
        try:
            self._file_now()
            self._check_file()
            if not self._id:  # heads are read before the copy below, which must contain them
                with _copied(self._path) as connection:
                    self._id = self._prepared(connection)
            self._refuse_copy()
            heads, folder = self._heads(readable_only=True), self._folder(self._id)
            needed = not folder.exists() or os.access(folder, os.R_OK | os.X_OK)
            with _copied(self._path) as connection:
                self._prepared(connection)
                yield Book(connection, heads, head_needed=needed)
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise self._failed(error, False, False) from error

    def _fold(self) -> None:
        """Write what is in SQLite's write-ahead file into the database."""
        if self._path is None or not self._connections:
            return
        # if this fails, the entries are durable where they are, and the next transaction folds them in
        with contextlib.suppress(sqlite3.Error):
            run = self._connections[-1].execute
            busy, log, done = run("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if not busy and log == done:
                return
            try:
                run(f"PRAGMA busy_timeout={1000 * FOLD_SECONDS}")
                run("PRAGMA wal_checkpoint(FULL)").fetchone()
            finally:
                run(f"PRAGMA busy_timeout={1000 * WAIT_SECONDS:.0f}")

    def _heads(self, *, readable_only: bool = False) -> list[Head]:
        """Return the newest heads that are known outside the database: to this process, and in files.

        The list is empty if a head file is missing where one should be, whatever this process has seen. With
        ``readable_only`` a head that only the ledger's owner may read is left out.
        """
        kept = []
        if self.durable:
            for file in (self._folder(self._id) / HEAD, *(old.head for old in self._legacy())):
                with contextlib.suppress(*([PermissionError] if readable_only else [])):
                    kept.append(read_head(file))
        heads = [head for head in kept if head is not None]
        if self._path is not None and not heads:
            return []
        return [*heads, self._known] if self._known[0] else heads

    def _failed(
        self, error: SQLAlchemyError | sqlite3.Error | OSError, committing: bool, charging: bool
    ) -> LedgerError:
        """Return what an error of the database means to people."""
        cause = getattr(error, "strerror", None) or getattr(error, "orig", None)
        if isinstance(error, sqlite3.Error):
            cause = error
        lines = str(cause or type(error).__name__).strip().splitlines() or [type(error).__name__]
        if _is_damage(error):
            what = f"what its tables hold cannot be read or added to ({type(cause).__name__})"
            if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                what = f"{str(self._path)!r} is no SQLite database"
            return LedgerError(f"The ledger is damaged: {what}. {PUT_BACK}")
        state = getattr(cause, "sqlstate", None)
        if state == REFUSED:
            return LedgerError(f"The server refuses this, and nothing was changed: {lines[0]}")
        if state == NO_RIGHT:
            return LedgerError(
                f"{self!r} does not let this role do that ({lines[0]}); nothing was changed. An auditor may only read,"
                " an analyst also charge fits; its owner, who may create tables in the database, opens accounts, and"
                " gives rights (dpgb-dask ledger grant)."
            )
        standing = "Nothing was released by this, and what is charged stands."
        if charging:
            standing = "Nothing was charged and nothing released."
        if committing:
            standing = (
                "Nothing was released; whether the last entry was written, ledger.history(account), or dpgb-dask ledger"
                " show, tells."
            )
        text = f"{self!r} cannot be used: {' '.join(lines[:4]) if self._address.server else lines[0]}.\n{standing} "
        if self._address.server and is_away(error, used=bool(self._id)):
            return LedgerLostError(
                f"{text}The server went away, and did not come back within {OUTAGE_SECONDS:g} s."
            )
        way_out = "Check that the address exists and can be written, that there is room, and no other process holds it."
        if self._path is not None and self._path.is_dir():
            way_out = "It is a folder: name a file in it."
        elif self._path is not None and not self._path.parent.is_dir():
            way_out = f"Its folder does not exist: make {str(self._path.parent)!r} first."
        file = getattr(error, "filename", None)  # on this machine
        if file and self._address.server:
            way_out = (
                f"It is {file!r} that cannot be used: the newest head, keys and journals are kept there. Make room, or"
                " name a folder that can be written by XDG_DATA_HOME."
            )
        elif file and isinstance(error, PermissionError):
            way_out = (
                f"It is {str(file)!r} that cannot be used: keys of fits lie there, for the user who made the ledger"
                " alone. Fit as that user; several share a ledger on a server."
            )
        return LedgerUnavailableError(f"{text}{way_out}")


def _has_no_room(error: BaseException | None) -> bool:
    """Return whether SQLite could not make or write a file, as on a full disk, where it needs some even to read."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)
    full = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)  # the low byte; the others say at which step
    return code & 0xFF in full or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def _copied(path: Path) -> Iterator[Connection]:
    """Begin a transaction on a copy in memory of a SQLite file."""
    with contextlib.closing(copy_into_memory(path)) as copy:
        engine = create_engine("sqlite://", creator=lambda: copy, poolclass=StaticPool)
        with engine.begin() as connection:
            yield connection


class _Forks(threading.local):
    """What happens around a fork, by thread: the child gets no held lock, and no connection to a SQLite file.

    A child has none of its parent's other threads, so a lock that one of them held would stay held for ever. And SQLite
    notes in memory what a process has locked; a child inherits these notes without the locks themselves. So a fork
    waits for transactions to end, and closes connections first.
    """

    def __init__(self) -> None:
        self.held: list[Ledger] = []

    def before(self) -> None:
        """Take the lock of every ledger, and close its connections."""
        ledgers = sorted(_living(), key=id)  # in one order: threads may fork at the same time
        self.held = [ledger for ledger in ledgers if ledger._hold()]  # noqa: SLF001

    def in_parent(self) -> None:
        """Release the locks."""
        for ledger in self.held:
            ledger._lock.release()  # noqa: SLF001
        self.held = []

    def in_child(self) -> None:
        """Give every ledger a new lock and no connections."""
        self.held = []
        _verified.clear()
        forget_shared()
        for ledger in list(_ledgers):
            ledger._begin_anew()  # noqa: SLF001


def _living() -> list[Ledger]:
    while True:
        try:
            return list(_ledgers)
        except RuntimeError:  # another thread has just added one
            continue


_forks = _Forks()
os.register_at_fork(
    before=_forks.before, after_in_parent=_forks.in_parent, after_in_child=_forks.in_child
)


def _is_damage(error: Exception) -> bool:
    """Return whether an error of the database is about its contents; else it is about reaching it."""
    cause = getattr(error, "orig", None) or error
    return (
        isinstance(error, (IntegrityError, DataError, InvalidRequestError))
        or getattr(cause, "sqlite_errorcode", None)
        in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        or getattr(cause, "sqlstate", None)
        in ("42P01", "42703", "42883")  # no such table, column, function
    )


def _is_name(value: Any) -> bool:
    """Return whether a value can name an account or a unit."""
    text = plain_text(value)
    return text is not None and 1 <= len(text) <= 200


def _home() -> Path:
    """Return this user's folder for the files of ledgers on servers.

    Raises
    ------
    LedgerError
        If it depends on where the process stands: what is kept there would not be found again.
    """
    given = os.environ.get("XDG_DATA_HOME")
    home = Path(given or os.path.expanduser("~/.local/share"))  # which stays if there is no home
    if not home.is_absolute():
        raise LedgerError(
            f"XDG_DATA_HOME={given!r} and HOME={os.environ.get('HOME')!r} name no folder in which keys and journals of"
            " fits are found again. Give XDG_DATA_HOME a whole path, to a folder that outlives the process."
        )
    return home / "dpgb_dask"


def _check_follows(fit_id: str, position: int, last: int) -> None:
    """Refuse a round that does not follow the newest one."""
    if position != last + 1:
        raise ResumeError(
            f"Release {position} of fit_id={fit_id!r} does not follow the newest one that was opened: another"
            " process goes on with this fit. Stop here."
        )


def _opening(
    fit_id: str, position: int, query: Query, running: Running
) -> tuple[Spending, RoundCosts | None, dict[str, Any]]:
    """Return what a fit spends with one more round, in its currency and in its account's unit; and what is recorded.

    Raises
    ------
    BudgetExceededError
        If the round would take the fit above what it reserved.
    """
    terms, charged = running.terms, running.charged
    draw = query.rows if isinstance(query, GradientQuery) else None
    after = running.spending.plus(query.price, draw)
    currency = "ε" if terms.pure else "μ²"
    _check_reserved(fit_id, position, after.spent, terms.price, currency)
    if charged is None:
        return after, None, {}
    choice = isinstance(query, ChoiceQuery | SharedChoiceQuery)
    cost = charged.cost(query.price, draw, choice=choice)
    now = charged.plus(cost, draw)
    _check_reserved(fit_id, position, now.spent, running.reserved, ACCOUNT_UNITS[charged.analysis])
    if draw is not None and draw.kind == "sample":
        _check_reserved(
            fit_id, position, after.of_group(draw.group), charged.sample, "ε of one sample"
        )
    return after, now, {"cost": str(cost), "choice": choice}


def _check_reserved(fit_id: str, position: int, spent: int, reserved: int, unit: str) -> None:
    """Refuse a round that would take the fit above what it reserved."""
    if spent > reserved:
        raise BudgetExceededError(
            f"Release {position} of fit_id={fit_id!r} would cost more than the fit reserved; nothing was opened.\n"
            f"  reserved   {reserved}\n"
            f"  would be   {spent}\n"
            f"Amounts are 2**-64 of {unit}."
        )
