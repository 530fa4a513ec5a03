"""The books of a ledger: what may be read and written in its tables inside one transaction.

Entries form a hash chain, and accounts and fits follow from the entries: `Tally` adds the entries up again, and
`Book.verify` and every charge compare the tables with it. Each entry's hash covers the hash before it (as in Haber and
Stornetta 1991). So, if SHA-256 has no collisions, a chain that ends in a known head holds all entries that were ever
written before that head, unchanged.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self

from sqlalchemy import Connection, bindparam, func, insert, select, update

from dpgb_dask.contracts.queries import PRICE_ONE, RowDraw
from dpgb_dask.contracts.spending import KINDS, Item, Spending
from dpgb_dask.controller import account_units, accounting
from dpgb_dask.controller.account_units import RoundCosts
from dpgb_dask.controller.ledger_files import GENESIS, Head
from dpgb_dask.controller.ledger_tables import (
    ACCOUNTS,
    ENTRIES,
    FITS,
    HEAD,
    PUT_BACK,
    canonical,
    chained,
    digest,
    refusing_damage,
)
from dpgb_dask.display import Listing, brief, exact, floored, html_table, one_line
from dpgb_dask.errors import BudgetExceededError, LedgerError, ResumeError
from dpgb_dask.names import ACCOUNT_UNITS
from dpgb_dask.scalars import plain_text

RESTORE = (
    "Put the newest file and its folder back; if there is none, the owner may go on with this one: ledger.restore(), or"
    " dpgb-dask ledger restore URL."
)
# what an entry shows of its body
TELLING = ("epsilon", "delta", "analysis", "who", "position", "model")
ENDED = ("RELEASED", "SETTLED")  # states of a fit that opens nothing more
CHANGES_BALANCE = ("OPEN", "RESERVED", "RELEASED", "SETTLED")
_DIGITS = 28  # bits in which costs agree that two machines compute in double precision
CHOICES = "choices"  # the fact that a fit's choices are priced beside what it may spend after them
BY_HAND = f"the ledger was changed by hand. {PUT_BACK}"

# Statements that every round runs are made once: SQLAlchemy takes longer to make one than SQLite to run it.
_READ_HEAD = select(HEAD.c.seq, HEAD.c.hash)
_SET_HEAD = update(HEAD)
_ADD_ENTRY = insert(ENTRIES)
_FIND_HASH = select(ENTRIES.c.hash).where(ENTRIES.c.seq == bindparam("seq"))
_FIND_FIT = select(FITS).where(FITS.c.fit_id == bindparam("fit_id"))
_FIND_LEASE = select(
    FITS.c.fit_id, FITS.c.account, FITS.c.state, FITS.c.fingerprint, FITS.c.lease
).where(FITS.c.fit_id == bindparam("fit_id"))
_FROM = select(ENTRIES).where(ENTRIES.c.seq >= bindparam("seq")).order_by(ENTRIES.c.seq)


@dataclass(frozen=True, slots=True)
class Account:
    """How much an account may spend and has spent.

    Parameters
    ----------
    name : str
    epsilon, delta : float
        The cap: everything ever charged to the account is together (epsilon, delta)-private.
    analysis : str
        How charges add up, fixed when the account was opened (account_units.py).
    cap, spent : int
        In units of 2⁻⁶⁴ of the analysis' unit: μ², ρ or ε.
    tau : float
        Distance of all its fits to Gaussian mechanisms; bounded by a share of delta (accounting.SLACK).
    unit_id : str or None
        Column of the privacy unit: neighbouring data differ by all rows of one unit. None: they differ by one row.
    """

    name: str
    epsilon: float
    delta: float
    analysis: str
    cap: int
    spent: int
    tau: float
    unit_id: str | None = None

    @property
    def left(self) -> int:
        """Price units left."""
        return self.cap - self.spent

    def shown(self) -> dict[str, object]:
        """Return the cells of its row in a table."""
        share = 100 * self.left / self.cap if self.cap else 0.0
        return {
            "account": self.name,
            "epsilon": exact(self.epsilon),
            "delta": exact(self.delta),
            "analysis": self.analysis,
            "for": "one row" if self.unit_id is None else f"all rows of one {self.unit_id!r}",
            "left": f"{share:.2f} %",
        }

    def __repr__(self) -> str:
        told = self.shown()
        unit = "" if self.unit_id is None else f", unit_id={brief(self.unit_id)!r}"
        return (
            f"Account({brief(self.name)!r}, epsilon={told['epsilon']}, delta={told['delta']},"
            f" analysis={self.analysis!r}{unit}; {told['left']} left)"
        )

    def _repr_html_(self) -> str:
        return html_table("Account", list(self.shown().items()))


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the hash chain; timestamps are for the operator."""

    seq: int
    kind: str
    account: str
    fit_id: str
    at: str
    body: dict[str, Any]

    def shown(self) -> dict[str, object]:
        """Return the cells of its row in a table."""
        return {
            "entry": self.seq,
            "kind": self.kind,
            "at (UTC)": self.at[:19].replace("T", " "),
            "fit": self.fit_id,
            "what": self._what(),
        }

    def _what(self) -> str:
        """Return the most telling facts of its body; the rest of it is long."""
        told = (f"{name}={brief(self.body[name], 16)}" for name in TELLING if name in self.body)
        return ", ".join(told)

    def __repr__(self) -> str:
        what = self._what()
        return (
            f"Entry({self.seq}, {self.kind!r}, account={brief(self.account)!r}, fit_id={brief(self.fit_id)!r},"
            f" at={brief(self.at)!r}{what and f', {what}'})"
        )

    def _repr_html_(self) -> str:
        return html_table("Entry", list({"account": self.account, **self.shown()}.items()))


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
        Bound on the distance to Gaussian mechanisms.
    plan_digest : str
        Hex.
    version : str
        Library and sampler.
    public_seed : int
    commitment : str
        Commitment to the fit's key.
    pure : bool
        Whether the currency is ε; else it is μ².
    facts : mapping of str to str
        Plan, schema and weights in words, so that an error of `resume` can name what differs.
    unit_id : str or None
        The schema's privacy unit; None for single rows.
    who : str
        User and machine of the process that reserved the fit, as the machine calls them, for the operator; this proves
        nothing, and is in no model file.
    bill : tuple of Item
        What a pure fit asks at most; an account in μ² or ρ is charged for it. Empty if its plan does not say: then the
        fit is charged as one release.
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
    # older ledgers lack these fields
    pure: bool = False
    facts: Mapping[str, str] = field(default_factory=dict, repr=False)
    unit_id: str | None = None
    who: str = ""
    bill: tuple[Item, ...] = ()

    @property
    def chooses(self) -> bool:
        """Whether choices of the fit cost less because of what it may spend after them (docs/privacy.md P8)."""
        return not self.pure and CHOICES in self.facts

    def to_json(self) -> dict[str, Any]:
        """Return a JSON form; the price as text."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "price": str(self.price),
            "facts": dict(self.facts),
            "bill": [[str(item.price), item.times, item.kind] for item in self.bill],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Build from the JSON form, in which a reservation is stored, with its charge.

        Raises
        ------
        KeyError, TypeError, ValueError
            If a field is missing or of another type.
        """
        known = {name: data[name] for name in cls.__slots__ if name in data}
        items = [(int(price), times, kind) for price, times, kind in data.get("bill", ())]
        if not all(
            price > 0 and type(times) is int and times > 0 and kind in KINDS
            for price, times, kind in items
        ):
            raise TypeError("an item of another form")
        bill = tuple(Item(price, times, kind) for price, times, kind in items)
        terms = cls(**(known | {"price": int(data["price"]), "bill": bill}))
        words = (
            terms.plan_digest, terms.version, terms.commitment, terms.who, *terms.facts.values()
        )  # fmt: skip
        numbers = (terms.epsilon, terms.delta, terms.tau)
        integers = (terms.price, terms.min_sigma_bits, terms.public_seed)
        if not (
            all(isinstance(word, str) for word in (*words, terms.unit_id or ""))
            and all(type(number) in (int, float) for number in numbers)
            and all(type(integer) is int for integer in integers)
            and isinstance(terms.pure, bool)
        ):
            raise TypeError("a field of another type")
        # a server writes 1.0 as 1
        epsilon, delta, tau = map(float, numbers)
        return replace(terms, epsilon=epsilon, delta=delta, tau=tau)


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
        Whether it is RELEASED: its key is erased, and its model can be computed again from its journal.
    answers : str
        Digest of all answers that it released; empty until it ended.
    """

    account: str
    terms: Terms
    fingerprint: str
    ended: bool
    answers: str


@dataclass(frozen=True, slots=True)
class Record:
    """The ledger's record of a fit, by which statements made elsewhere can be checked.

    Parameters
    ----------
    fit_id, account : str
    state : {"RESERVED", "RELEASED", "SETTLED"}
        The fit is unfinished, ended with a model, or was closed without one.
    terms : Terms
    charge : int
        The charge that stands, in units of 2⁻⁶⁴ of the account's unit.
    answers : str
        Digest of all answers that it released; empty until it ended.
    model : str
        Digest of its model; empty until it ended, or if none was given.
    at : str
        Time of the reservation, for the operator.
    role : str
        The role for which the database server reserved it; empty for a file.
    """

    fit_id: str
    account: str
    state: str
    terms: Terms
    charge: int
    answers: str
    model: str
    at: str
    role: str = ""

    def shown(self) -> dict[str, object]:
        """Return the cells of its row in a table."""
        return {
            "fit": self.fit_id,
            "opened (UTC)": self.at[:16].replace("T", " "),
            # old ledgers record neither this nor the recipe
            "who": one_line(self.terms.who or "?") + (f" as {self.role}" if self.role else ""),
            "recipe": one_line(self.terms.facts.get("recipe", "?")),
            "epsilon": exact(self.terms.epsilon),
            "delta": "–" if self.terms.pure else exact(self.terms.delta),
            "state": self.state if self.state in ENDED else "UNFINISHED",
            "model": one_line(self.model[:12]) or "–",
        }

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={brief(value)}" for name, value in self.shown().items())
        return f"Record({told})"

    def _repr_html_(self) -> str:
        return html_table("Fit", list({"account": self.account, **self.shown()}.items()))


@dataclass(frozen=True, slots=True)
class Opened:
    """A round whose sums were opened: its query id, and a keyed hash that recognises the same sums."""

    query_id: str
    seal: str


@dataclass(frozen=True, slots=True)
class Checked:
    """How much `Ledger.verify` has verified.

    Parameters
    ----------
    entries, accounts, fits : int
    head : bool
        Whether a head outside the database was there to compare with.
    """

    entries: int
    accounts: int
    fits: int
    head: bool = False


class Book:
    """The tables inside one transaction, under the ledger's lock.

    Parameters
    ----------
    connection : Connection
    heads : sequence of (int, str)
        Newest heads known outside the database; all have to be in the chain.
    head_needed : bool
        Whether a ledger with entries and no such head is refused.
    known : Tally, optional
        Tally of the entries that this process has verified; it is brought up to date where a decision depends on it.
    """

    def __init__(
        self,
        connection: Connection,
        heads: Sequence[Head] = (),
        *,
        head_needed: bool = False,
        known: "Tally | None" = None,
    ) -> None:
        self._connection = connection
        self.head = self._take_head()
        self._begin = self.head  # entries after it are not committed yet
        self._known = Tally() if known is None else known
        self._up_to_date = False
        if head_needed and not heads and self.head[0]:
            raise LedgerError(
                "The ledger has entries, and its newest head is not beside it: it is a copy, or was restored from one,"
                f" and may lack charges that were made since. {RESTORE}"
            )
        if not all(head == self.head or self.contains(head) for head in heads):
            raise LedgerError(
                "The ledger is older than its newest known head: it was restored from a copy, or changed by hand. "
                f"Charges made since would be forgotten. {RESTORE}"
            )

    def _take_head(self) -> Head:
        return self._read_head(self._connection.execute(_READ_HEAD))

    def _read_head(self, result: Any) -> Head:
        row = result.first()
        with refusing_damage("its head"):
            return int(row.seq), str(row.hash)

    def contains(self, known: Head) -> bool:
        """Return whether a head belongs to this chain."""
        if known[0] == 0:
            return True
        found = self._connection.execute(_FIND_HASH, {"seq": known[0]}).scalar()
        return self.head[0] >= known[0] and found == known[1]

    def execute(self, statement: Any, values: Mapping[str, Any] | None = None) -> None:
        """Run a statement that returns nothing."""
        self._connection.execute(statement, values)

    def append(self, kind: str, account: str, fit_id: str, body: dict[str, Any]) -> None:
        """Add an entry to the chain, once this process has verified the chain."""
        self.tally()
        seq, previous = self.head[0] + 1, self.head[1]
        at = datetime.now(UTC).isoformat(timespec="seconds")
        values = {
            "seq": seq,
            "kind": kind,
            "account": account,
            "fit_id": fit_id,
            "at": at,
            "body": canonical(body),
        }
        found = chained(previous, values)
        self.execute(_ADD_ENTRY, {"prev": previous, "hash": found, **values})
        self.execute(_SET_HEAD, {"seq": seq, "hash": found})
        self.head = (seq, found)

    # -- accounts ------------------------------------------------------------------------------------------------

    def find_account(self, name: str) -> Account | None:
        """Return an account; None if there is none with this name.

        Nothing but text is a name: SQLite finds ``"2026"`` for the number, and the account's entries then do not.
        """
        if plain_text(name) is None:
            return None
        row = self._connection.execute(select(ACCOUNTS).where(ACCOUNTS.c.name == name)).first()
        return None if row is None else _account(row)

    def account(self, name: str) -> Account:
        """Return an account, which has to exist."""
        account = self.find_account(name)
        if account is None:
            raise LedgerError(
                f"Account {name!r} is not in the ledger. It has: {[a.name for a in self.accounts()]}. "
                "Open one with ledger.open_account(name, epsilon=…, delta=…), or dpgb-dask ledger open."
            )
        return account

    def accounts(self) -> Listing[Account]:
        """Return all accounts, by name."""
        rows = self._connection.execute(select(ACCOUNTS).order_by(ACCOUNTS.c.name))
        return Listing(_account(row) for row in rows)

    def add_account(self, name: str, body: dict[str, Any]) -> None:
        """Write an account."""
        self.append("OPEN", name, "", body)
        self.execute(insert(ACCOUNTS).values(name=name, spent="0", tau="0.0", **body))

    def balanced(self, name: str) -> Account:
        """Return an account after comparing its balance with the sum of its entries.

        The sum is `tally`'s, over the entries that this process has verified. That these entries still exist and match
        their hashes is checked here, without adding them up again.

        Raises
        ------
        LedgerError
            If balance and sum differ, or an entry is missing or does not match its hash.
        """
        account, tally = self.account(name), self.tally()
        of_account = (ENTRIES.c.account == name) & ENTRIES.c.kind.in_(CHANGES_BALANCE)
        n_entries = self._connection.execute(select(func.count()).select_from(ENTRIES)).scalar()
        if (
            sum(1 for _ in self._rows(of_account)) != tally.n_balanced.get(name)
            or n_entries != self.head[0]
        ):
            raise LedgerError(f"Entries of account {name!r} are missing: {BY_HAND}")
        if tally.accounts.get(name) != _facts(account):
            raise LedgerError(
                f"The balance of account {name!r} is not the sum of its entries: {BY_HAND}"
            )
        return account

    def reserve(self, name: str, fit_id: str, terms: Terms, lease: str) -> None:
        """Charge a fit to an account, if the account has enough left.

        Privacy
        -------
        A unit account composes statements about one unit: a fit by rows bounds what one row changes, not all rows of a
        unit, so it is refused. A row account takes fits by units too: a row that joins a unit of R rows of weight w_R,
        R·w_R <= K·2^r, moves their weights to w_{R+1} <= w_R, so a sum of terms of norm <= 1 changes by at most
        R·(w_R - w_{R+1}) + w_{R+1} <= R·w_R <= K·2^r (R >= 1), which is the fit's sensitivity.
        """
        account = self.account(name)
        if account.unit_id is not None and terms.unit_id != account.unit_id:
            asked = "single rows" if terms.unit_id is None else f"unit_id={terms.unit_id!r}"
            raise LedgerError(
                f"Account {name!r} protects all rows of one unit together (unit_id={account.unit_id!r}); the fit"
                f" protects {asked}. Nothing was charged. Fit with unit_id={account.unit_id!r}, or charge another"
                " account."
            )
        charge = account_units.charge(
            terms.price, pure=terms.pure, analysis=account.analysis, bill=terms.bill
        )
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
        self.add_fit(account, fit_id, terms, digest(lease), charge, tau)

    def add_fit(
        self, account: Account, fit_id: str, terms: Terms, lease: str, charge: int, tau: float
    ) -> None:
        """Write a reserved fit, and what its account has spent with it; of its lease the digest."""
        body = terms.to_json() | {"charge": str(charge)}
        changed = update(ACCOUNTS).where(ACCOUNTS.c.name == account.name)
        self.execute(changed.values(spent=str(account.spent + charge), tau=repr(tau)))
        row = {
            "fit_id": fit_id, "account": account.name, "state": "RESERVED", "price": str(charge),
            "terms": canonical(body), "fingerprint": "", "lease": lease,
        }  # fmt: skip
        self.execute(insert(FITS).values(**row))
        self.append("RESERVED", account.name, fit_id, body)

    # -- fits ----------------------------------------------------------------------------------------------------

    def add_binding(self, fit: Mapping[str, str], fingerprint: str) -> None:
        """Write the keyed hash of a fit's data."""
        self._set(fit["fit_id"], fingerprint=fingerprint)
        self.append("BOUND", fit["account"], fit["fit_id"], {"fingerprint": fingerprint})

    def add_lease(self, fit: Mapping[str, str], lease: str) -> None:
        """Write the digest of a fit's new lease."""
        self._set(fit["fit_id"], lease=lease)
        self.append("LEASED", fit["account"], fit["fit_id"], {})

    def add_round(self, fit: Mapping[str, str], body: dict[str, Any], draw: RowDraw | None) -> None:
        """Write a round that is opened; ``cost`` and ``choice`` are in its body where it is charged by itself."""
        rows = {} if draw is None else {"rows": [draw.kind, draw.group, draw.low, draw.high]}
        self.append("OPENED", fit["account"], fit["fit_id"], body | rows)

    def add_end(
        self, fit: Mapping[str, str], state: str, charge: int, digests: dict[str, str]
    ) -> None:
        """Write that an unfinished fit is RELEASED or SETTLED, and that only ``charge`` of what it reserved stands."""
        account = self.account(fit["account"])
        spent = str(account.spent - charge_of(fit) + charge)
        self.execute(update(ACCOUNTS).where(ACCOUNTS.c.name == account.name).values(spent=spent))
        self._set(fit["fit_id"], state=state, price=str(charge))
        self.append(state, account.name, fit["fit_id"], digests | {"charge": str(charge)})

    def add_restored(self, newest_known: int | None) -> None:
        """Write that the ledger goes on from a copy."""
        self.append("RESTORED", "", "", {"newest_known": newest_known})

    def _set(self, fit_id: str, **changes: str) -> None:
        self.execute(update(FITS).where(FITS.c.fit_id == fit_id).values(**changes))

    def find_fit(self, fit_id: str) -> dict[str, str] | None:
        """Return the row of a fit; None if there is none with this id, which is text."""
        if plain_text(fit_id) is None:
            return None
        row = self._connection.execute(_FIND_FIT, {"fit_id": fit_id}).mappings().first()
        return None if row is None else dict(row)

    def holds(self, fit_id: str, lease: str) -> bool:
        """Return whether a fit with this lease is reserved already: a charge is repeated whose answer was lost."""
        fit = self.find_fit(fit_id)
        return fit is not None and fit["lease"] == digest(lease)

    def fit(self, fit_id: str) -> dict[str, str]:
        """Return the row of a fit, which has to exist, after comparing it with the fit's entries.

        Raises
        ------
        LedgerError
            If there is no fit with this id, or its row does not follow from its entries.
        """
        fit = self.find_fit(fit_id)
        if fit is None:
            raise LedgerError(
                f"fit_id={fit_id!r} is not in the ledger. ledger.history(account), or dpgb-dask ledger show, lists the"
                " fits of an account."
            )
        with refusing_damage(f"fit_id={fit_id!r}"):
            told = _fit_facts(fit)
        self._check_fit(fit_id, told)
        return fit

    def _check_fit(self, fit_id: str, told: Mapping[str, Any]) -> None:
        """Refuse what a row says of a fit if the fit's entries say something else."""
        proven = self.tally().fits.get(fit_id)
        if proven is None or any(proven[name] != value for name, value in told.items()):
            raise LedgerError(
                f"What the ledger says of fit_id={fit_id!r} does not follow from its entries: {BY_HAND}"
            )

    def running(self, fit_id: str) -> "Running":
        """Return what the entries say of an unfinished fit."""
        return self.tally().running[fit_id]

    def resumable(self, fit_id: str, states: tuple[str, ...]) -> dict[str, str]:
        """Return the row of a fit that has to be in one of the given states."""
        if self.find_fit(fit_id) is None:
            auto = "'auto' is for dpgb-dask fit --resume alone; here, name the fit. "
            raise ResumeError(
                f"fit_id={fit_id!r} is not in the ledger. {auto if fit_id == 'auto' else ''}ledger.history(account), or"
                " dpgb-dask ledger show, lists the fits of an account."
            )
        fit = self.fit(fit_id)
        if fit["state"] not in states:
            raise ResumeError(_ended(fit_id, fit["state"]))
        if fit["state"] == "RESERVED" and self.tally().restored_since(fit_id):
            raise ResumeError(
                f"fit_id={fit_id!r} was unfinished when the ledger was restored: which rounds it opened, on which data,"
                " is not known for sure. Settle it, which leaves its whole charge: ledger.settle(fit_id), or dpgb-dask"
                " ledger settle. Then fit anew."
            )
        return fit

    def leased(self, fit_id: str, lease: str) -> dict[str, str]:
        """Return an unfinished fit without its terms, with the lease that the caller has to hold."""
        row = self._connection.execute(_FIND_LEASE, {"fit_id": fit_id}).mappings().first()
        if row is None:
            raise LedgerError(f"fit_id={fit_id!r} is not in the ledger.")
        if row["state"] != "RESERVED":
            raise ResumeError(_ended(fit_id, row["state"]))
        if row["lease"] != digest(lease):
            raise ResumeError(
                f"fit_id={fit_id!r} was resumed by another process, which goes on with it. Stop here."
            )
        told = {name: row[name] for name in ("account", "state", "fingerprint")}
        self._check_fit(fit_id, told)
        return {**row, "lease": lease}

    def record(self, fit_id: str) -> Record:
        """Return the record of a fit."""
        fit = self.fit(fit_id)
        entries = {
            entry.kind: entry
            for entry in self.entries(
                (ENTRIES.c.fit_id == fit_id) & ENTRIES.c.kind.in_(CHANGES_BALANCE)
            )
        }
        with refusing_damage(f"the entry of fit_id={fit_id!r}"):
            end = entries["RELEASED"].body if fit["state"] == "RELEASED" else {}
            return Record(
                fit_id=fit_id,
                account=fit["account"],
                state=fit["state"],
                terms=terms_of(fit),
                charge=charge_of(fit),
                answers=str(end.get("answers", "")),  # older entries lack this and the model
                model=str(end.get("model", "")),
                at=entries["RESERVED"].at,
                role=str(entries["RESERVED"].body.get("role", "")),
            )

    def records(self, account: str) -> Listing[Record]:
        """Return the records of an account's fits, oldest first."""
        reserved = self.entries((ENTRIES.c.account == account) & (ENTRIES.c.kind == "RESERVED"))
        return Listing(self.record(entry.fit_id) for entry in reserved)

    # -- entries -------------------------------------------------------------------------------------------------

    def _rows(self, where: Any = None) -> Iterator[Mapping[str, Any]]:
        statement = select(ENTRIES).order_by(ENTRIES.c.seq)
        if where is not None:
            statement = statement.where(where)
        return self._sound(statement)

    def _sound(
        self, statement: Any, values: Mapping[str, Any] | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """Yield entries, each after comparing it with its hash."""
        for row in map(dict, self._connection.execute(statement, values).mappings()):
            with refusing_damage("an entry"):
                if row["hash"] != chained(row["prev"], row):
                    raise LedgerError(
                        f"Entry {row['seq']} of the hash chain of the ledger was changed by hand. {PUT_BACK}"
                    )
            yield row

    def entries(self, where: Any) -> tuple[Entry, ...]:
        """Return the entries that a condition selects, oldest first."""
        with refusing_damage("an entry"):
            return tuple(
                Entry(r["seq"], r["kind"], r["account"], r["fit_id"], r["at"], loads(r["body"]))
                for r in self._rows(where)
            )

    def history(self, account: str) -> Listing[Entry]:
        """Return the entries of an account, oldest first."""
        return Listing(self.entries(ENTRIES.c.account == account))

    def opened(self, fit_id: str) -> tuple[Entry, ...]:
        """Return the rounds that an unfinished fit opened."""
        opened = self.entries((ENTRIES.c.fit_id == fit_id) & (ENTRIES.c.kind == "OPENED"))
        if len(opened) != self.running(fit_id).rounds:
            raise LedgerError(f"Entries of fit_id={fit_id!r} are missing: {BY_HAND}")
        return opened

    def tally(self) -> "Tally":
        """Return the accounts and fits that follow from the entries before this transaction.

        Entries that this process has verified before are not read again. The first time, all entries are read, and all
        accounts and fits are compared with them.

        Raises
        ------
        LedgerError
            If the chain breaks, or does not end in the head.
        """
        if not self._up_to_date:
            try:
                if self._extend(self._known):
                    self._compare(self._known)
            except BaseException:
                self._known.clear()
                raise
            self._up_to_date = True
        return self._known

    def _extend(self, tally: "Tally") -> bool:
        """Add the newer entries to a tally; return whether it started from the first entry."""
        rows = self._sound(_FROM, {"seq": tally.head[0]})
        if tally.head[0]:
            last = next(rows, None)
            if last is None or (last["seq"], last["hash"]) != tally.head:  # restored from a copy
                tally.clear()
                rows = self._sound(_FROM, {"seq": 0})
        anew = tally.head[0] == 0
        with refusing_damage("an entry"):
            for row in rows:
                if row["seq"] > self._begin[0]:
                    break
                if row["seq"] != tally.head[0] + 1 or row["prev"] != tally.head[1]:
                    raise LedgerError(
                        f"The hash chain of the ledger breaks at entry {row['seq']}: it was changed by hand."
                    )
                tally.add(row)
        if tally.head != self._begin:
            raise LedgerError(f"The hash chain of the ledger does not end in its head: {BY_HAND}")
        return anew

    def _compare(self, tally: "Tally") -> None:
        """Refuse accounts and fits that do not follow from the entries."""
        accounts = {account.name: _facts(account) for account in self.accounts()}
        with refusing_damage("a fit"):
            fits = {
                row["fit_id"]: _fit_facts(row)
                for row in self._connection.execute(select(FITS)).mappings()
            }
        if accounts != tally.accounts or fits != tally.fits:
            raise LedgerError(
                f"The balance of an account, or a fit, does not follow from the entries: {BY_HAND}"
            )

    def verify(self) -> Checked:
        """Recompute every hash, and accounts and fits from the entries."""
        tally = Tally()
        self._extend(tally)
        self._compare(tally)
        return Checked(entries=tally.head[0], accounts=len(tally.accounts), fits=len(tally.fits))


@dataclass(slots=True)
class Running:
    """What the entries say of an unfinished fit.

    Attributes
    ----------
    seq : int
        Number of the entry that reserved it.
    terms : Terms
    reserved : int
        What its account was charged.
    spending : Spending
        What its opened rounds cost.
    rounds : int
        Number of rounds that it opened.
    newest : Opened or None
        The newest of these rounds.
    sampled : bool
        Whether one of these rounds was on a sample of rows.
    charged : RoundCosts or None
        What its opened rounds cost the account, if it is charged by its bill.
    """

    seq: int
    terms: Terms
    reserved: int
    spending: Spending
    rounds: int = 0
    newest: Opened | None = None
    sampled: bool = False
    charged: RoundCosts | None = None


class Tally:
    """Accounts and fits computed from the entries alone.

    Attributes
    ----------
    head : (int, str)
        Number and hash of the last entry that was added.
    accounts : dict of str to dict
        What `_facts` returns for each account.
    n_balanced : dict of str to int
        How many entries changed the balance of each account.
    fits : dict of str to dict
        What `_fit_facts` returns for each fit.
    running : dict of str to Running
        Fits that are unfinished.
    restored : int
        Number of the newest entry that says the ledger was restored; 0 if there is none.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all entries."""
        self.head: Head = (0, GENESIS)
        self.accounts: dict[str, dict[str, Any]] = {}
        self.n_balanced: dict[str, int] = {}
        self.fits: dict[str, dict[str, Any]] = {}
        self.running: dict[str, Running] = {}
        self.restored = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Add an entry.

        Raises
        ------
        LedgerError
            If no ledger would write such an entry after the earlier ones.
        KeyError, TypeError, ValueError
            If the entry lacks a field, or a field has another form.
        """
        kind, name, fit_id, body = row["kind"], row["account"], row["fit_id"], loads(row["body"])
        sound = True
        if kind == "OPEN":
            sound = name not in self.accounts
            self.accounts[name] = {
                "epsilon": body["epsilon"], "delta": body["delta"], "analysis": body["analysis"], "cap": body["cap"],
                "unit_id": body.get("unit_id"), "spent": 0, "tau": 0.0,
            }  # fmt: skip
        elif kind == "RESERVED":
            sound = self._reserve(row, Terms.from_json(body), _reserved_charge(body))
        elif kind == "BOUND":
            fit = self.fits[fit_id]
            sound = fit["state"] == "RESERVED" and not fit["fingerprint"]
            fit["fingerprint"] = body["fingerprint"]
        elif kind == "OPENED":
            running = self.running[fit_id]
            sound = body["position"] == running.rounds
            draw = RowDraw(*body["rows"]) if "rows" in body else None
            running.spending = running.spending.plus(int(body["price"]), draw)
            running.sampled |= draw is not None and draw.kind == "sample"
            if running.charged is not None:
                sound &= self._charge_round(running, body, draw)
            running.newest = Opened(body["query_id"], body["seal"])
            running.rounds += 1
            if not sound or running.spending.spent > running.terms.price + _rounding(running):
                raise LedgerError(
                    f"fit_id={fit_id!r} opened a round twice, or more than it reserved, or counted less, at entry"
                    f" {row['seq']}."
                )
        elif kind in ("RELEASED", "SETTLED"):
            fit = self.fits[fit_id]
            charge = int(body.get("charge", fit["price"]))  # older RELEASED entries have none
            least = _within_digits(self.opened_charge(fit_id))
            sound = fit["account"] == name and least <= charge <= fit["price"]
            self.accounts[name]["spent"] += charge - fit["price"]
            fit |= {"state": kind, "price": charge}
            del self.running[fit_id]
        elif kind == "RESTORED":
            self.restored = row["seq"]
        else:
            sound = kind == "LEASED"
        if not sound:
            raise LedgerError(
                f"Entry {row['seq']} of the ledger does not follow from those before."
            )
        if kind in CHANGES_BALANCE:
            self.n_balanced[name] = self.n_balanced.get(name, 0) + 1
        self.head = (row["seq"], row["hash"])

    def restored_since(self, fit_id: str) -> bool:
        """Return whether the ledger was restored after an unfinished fit was reserved: its entries may be lost."""
        return self.restored > self.running[fit_id].seq

    def opened_charge(self, fit_id: str) -> int:
        """Return what the opened rounds of an unfinished fit cost its account: the least that stands once it ends.

        `account_units` says why a pure fit that opened a round on a sample keeps its whole charge; so does a fit whose
        ledger was restored since it was reserved: entries of its rounds may be lost.
        """
        running = self.running[fit_id]
        analysis = self.accounts[self.fits[fit_id]["account"]]["analysis"]
        if self.restored_since(fit_id):
            return running.reserved
        if running.charged is not None:
            return min(running.reserved, running.charged.spent)
        if running.terms.pure and running.sampled and analysis != "pure":
            return running.reserved
        opened = account_units.charge(
            running.spending.spent, pure=running.terms.pure, analysis=analysis
        )
        return min(running.reserved, opened)

    @staticmethod
    def _charge_round(running: Running, body: Mapping[str, Any], draw: RowDraw | None) -> bool:
        """Add a round to what its fit costs the account; return whether it is counted, and within what was charged."""
        assert running.charged is not None
        cost, before = int(body["cost"]), running.charged
        least = before.cost(int(body["price"]), draw, choice=body["choice"] is True)
        running.charged = before.plus(cost, draw)
        sound = cost >= _within_digits(least)
        sound &= running.charged.spent <= running.reserved
        if draw is not None and draw.kind == "sample":
            sound &= running.spending.of_group(draw.group) <= before.sample + _rounding(running)
        return sound

    def _reserve(self, row: Mapping[str, Any], terms: Terms, charge: int) -> bool:
        name, fit_id = row["account"], row["fit_id"]
        account = self.accounts[name]
        account["spent"] += charge
        if terms.tau:
            account["tau"] = math.nextafter(account["tau"] + terms.tau, math.inf)
        sound = fit_id not in self.fits and charge >= 0
        sound &= account["spent"] <= int(account["cap"]) and _covers_slack(account, terms)
        self.fits[fit_id] = {
            "account": name, "state": "RESERVED", "price": charge, "terms": digest(row["body"]), "fingerprint": "",
        }  # fmt: skip
        charged = RoundCosts.of(terms.bill, account["analysis"]) if terms.pure else None
        if charged is None:  # else its rounds must stay within the charge, each by itself
            least = account_units.charge(terms.price, pure=terms.pure, analysis=account["analysis"])
            sound &= _within_digits(least) <= charge
        self.running[fit_id] = Running(
            row["seq"], terms, charge, Spending(pure=terms.pure), charged=charged
        )
        return sound and account["unit_id"] in (None, terms.unit_id)


def _covers_slack(account: Mapping[str, Any], terms: Terms) -> bool:
    """Return whether a fit states the slack of its noise, and an account has room for that of all its fits."""
    if account["analysis"] != "gdp":
        return True
    if not terms.pure and terms.tau < accounting.distance(terms.min_sigma_bits) * (1 - 1e-9):
        return False
    used = accounting.slack(float(account["epsilon"]), account["tau"])
    return used <= float(account["delta"]) * float(accounting.SLACK) * (1 + 1e-9)


def _within_digits(least: int) -> int:
    """Return the least that another machine, or a server, may have computed: it rounds up, but in other arithmetic.

    That may be a unit less, but never 0.
    """
    return max(least - (least >> _DIGITS) - 1, min(least, 1))


def loads(body: str) -> dict[str, Any]:
    """Read a JSON object."""
    read = json.loads(body)
    if not isinstance(read, dict):
        raise TypeError("not an object")
    return read


def terms_of(fit: Mapping[str, str]) -> Terms:
    """Return what a fit reserved, from its row."""
    with refusing_damage("the terms of a fit"):
        return Terms.from_json(loads(fit["terms"]))


def charge_of(fit: Mapping[str, str]) -> int:
    """Return the charge that stands for a fit, from its row."""
    with refusing_damage("the charge of a fit"):
        return int(fit["price"])


def _rounding(running: Running) -> int:
    """Return how much what a server counts for queries on samples may lie below `Spending`.

    `spending.amplified` rounds up by 1e-12; the server computes it in other arithmetic, and up by a little less.
    """
    sampled = running.sampled and running.terms.pure
    return (running.terms.price >> 40) + 2 * len(running.spending.groups) if sampled else 0


def _account(row: Any) -> Account:
    with refusing_damage("an account"):
        return Account(
            row.name,
            float(row.epsilon),
            float(row.delta),
            row.analysis,
            int(row.cap),
            int(row.spent),
            float(row.tau),
            row.unit_id,
        )


def _facts(account: Account) -> dict[str, Any]:
    """Return an account in the form that `Tally` uses."""
    return {
        "epsilon": repr(account.epsilon), "delta": repr(account.delta), "analysis": account.analysis,
        "cap": str(account.cap), "unit_id": account.unit_id, "spent": account.spent, "tau": account.tau,
    }  # fmt: skip


def _fit_facts(row: Any) -> dict[str, Any]:
    """Return a fit in the form that `Tally` uses; the terms, which are long, as a digest."""
    return {
        "account": row["account"], "state": row["state"], "price": int(row["price"]),
        "terms": digest(row["terms"]), "fingerprint": row["fingerprint"],
    }  # fmt: skip


def _ended(fit_id: str, state: str) -> str:
    way_out = (
        "it was settled, so nothing of it can be opened any more. Fit anew"
        if state == "SETTLED"
        else "it ended, and its key is erased. Resuming it (resume=…, --resume) gives its model again from the journal"
    )
    return f"fit_id={fit_id!r} is {state}: {way_out}."


def _reserved_charge(body: dict[str, Any]) -> int:
    """Return what a reservation charged; an entry from before there were other analyses charged its price."""
    return int(body.get("charge", body["price"]))


def epsilon_left(
    account: Account, delta: float, *, pure: bool, terms: Terms | None = None
) -> float:
    """Return the largest ε that one more fit may ask of an account; with ``terms``, one with its bill."""
    bill, billed = ((), 1) if terms is None else (terms.bill, terms.price)
    return account_units.epsilon_within(
        account.left, delta, pure=pure, analysis=account.analysis, bill=bill, billed=billed
    )


def _shortfall(account: Account, terms: Terms, charge: int) -> str:
    """Return the error text of an account with too little left: its amounts lined up, in the unit that adds up."""
    fits = epsilon_left(account, terms.delta, pure=terms.pure, terms=terms)
    one = PRICE_ONE
    would = (
        f"epsilon={floored(fits, 6)} at delta={exact(terms.delta)}"
        if fits >= 1e-6
        else "nothing: the account is spent"
    )
    way_out = " Fits of pure differential privacy cost least in an account with analysis='pure'."
    return (
        f"Account {account.name!r} has too little left; nothing was charged.\n"
        f"  requested   {charge / one:.9f}  (epsilon={exact(terms.epsilon)}, delta={exact(terms.delta)})\n"
        f"  remaining   {account.left / one:.9f}  of {account.cap / one:.9f} "
        f"(epsilon={exact(account.epsilon)}, delta={exact(account.delta)})\n"
        f"  difference  {(charge - account.left) / one:.9f}\n"
        f"  would fit   {would}\n"
        f"Amounts are {ACCOUNT_UNITS[account.analysis]}, which adds up over fits."
        + (way_out if terms.pure and not terms.bill and account.analysis != "pure" else "")
    )
