"""The one door: charge → open → noise or choose → journal → seal. ``Raw`` becomes ``Released`` here alone."""

import getpass
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.boundary import Raw, Receipt, Released, Sensitivity
from dpgb_dask.contracts.journal import Journal, JournalEntry
from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import PRICE_ONE, ChoiceQuery, Query, SharedChoiceQuery
from dpgb_dask.contracts.spending import Item, Spending
from dpgb_dask.controller import accounting
from dpgb_dask.controller.choices import Choice, SharedChoice
from dpgb_dask.controller.gaussian import MAX_SIGMA, DiscreteGaussian
from dpgb_dask.controller.laplace import MAX_T, DiscreteLaplace
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.ledger_book import Account, Opened, Terms
from dpgb_dask.controller.noise import (
    FitKey,
    NoiseSource,
    SecretNoise,
    canonical,
    read_key,
)
from dpgb_dask.controller.words import SAMPLER_VERSION
from dpgb_dask.errors import (
    BudgetExceededError,
    LedgerError,
    PlanError,
    ResumeError,
    StructureError,
)
from dpgb_dask.installed import VERSIONS

IN_MEMORY_ACCOUNT = "this fit"
MOST_NAMED = 8  # settings that differ, in one message
MOST_CHARACTERS = 60  # of a setting's value in that message
SETTLE = "settle it: ledger.settle(fit_id), or dpgb-dask ledger settle"
CHANGED = "was changed: an answer is not the one that was released"

# a receipt as `json.dumps(..., sort_keys=True)` gives it
_SORTED_FIELDS = tuple(sorted(part.name for part in fields(Receipt)))
_OF_RECEIPT = attrgetter(*_SORTED_FIELDS)
_RECEIPT = "{" + ", ".join(f'"{name}": %s' for name in _SORTED_FIELDS) + "}"
_TEXT = json.encoder.encode_basestring_ascii

Vector = NDArray[np.int64]
Mechanism = DiscreteGaussian | DiscreteLaplace | Choice | SharedChoice


class Controller:
    """Charges a fit, then opens its sums one query at a time and lets out noised values only.

    `reserve` makes it. The order of calls is ``reserve`` → ``bind`` → (``replayed`` or ``release``) … → ``finish``. If
    an exception ends the fit, nothing is undone: the charge stands, and the fit can be resumed from a durable ledger.
    A fit that has ended already is replayed to its end, and opens nothing: ``reserve`` → ``replayed`` … → ``finish``.

    Attributes
    ----------
    fit_id : str
    account : str or None
        The account charged; None in memory.
    budget : Budget
    total : int
        Price of the whole fit, in units of 2⁻⁶⁴ of its currency.
    pure : bool
        Whether the currency is ε (pure differential privacy, Laplace noise); else it is μ² (Gaussian noise).
    public_seed : int
        Seed of the public randomness; on resume, the recorded one.
    private : bool
        False with test noise.
    ended : bool
        Whether the fit has ended: all its answers are in the journal, and no rows are needed.
    receipts : tuple of Receipt
        One per released answer, in order.

    Privacy
    -------
    The door between the sides. Everything let out is together μ-GDP with μ² = total, up to the slack of accounting.py,
    so (epsilon, delta)-private; or, in a pure plan, epsilon-private. The filter `Spending` <= total holds whatever the
    queries are (docs/privacy.md P4).
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        account: str | None,
        fit_id: str,
        lease: str,
        terms: Terms,
        key: FitKey | None,
        private: bool,
        journal: Journal | None,
        fingerprint: str = "",
        opened: Sequence[Opened] = (),
        answers: str = "",
    ) -> None:
        self.fit_id = fit_id
        self.account = account
        self.budget = Budget(epsilon=terms.epsilon, delta=terms.delta)
        self.total = terms.price
        self.pure = terms.pure
        self.public_seed = terms.public_seed
        self.private = private
        self._ledger = ledger
        self._lease = lease
        self._terms = terms
        self._key = key
        self._journal = journal
        self._fingerprint = fingerprint
        self._bound = not ledger.durable
        self._opened = tuple(opened)  # before the fit was resumed
        self._journalled = [] if journal is None else journal.entries()
        self._receipts: list[Receipt] = []
        self._spending = Spending(pure=terms.pure)
        self._n_values = 0
        self._pid = os.getpid()
        self._said = hashlib.sha256()  # over all answers, in order
        if key is None:
            self._check_answers(answers)
        else:
            self._check_journal(key)
        self.ended = key is None

    @classmethod
    def reserve(
        cls,
        *,
        budget: Budget,
        ledger: Ledger | None = None,
        account: str | None = None,
        plan_digest: bytes,
        facts: Mapping[str, str] | None = None,
        public_seed: int,
        noise: NoiseSource | None = None,
        journal: Callable[[str], Journal | None] | None = None,
        resume: str | None = None,
        pure: bool = False,
        unit_id: str | None = None,
        bill: Sequence[Item] = (),
    ) -> "Controller":
        """Charge a whole fit in one durable transaction, before its data are touched.

        Parameters
        ----------
        budget : Budget
        ledger, account
            Give both, or neither; without them, a ledger in memory holds this fit alone.
        plan_digest : bytes
            Hash of the plan and all that shapes its queries. A resumed fit must have the same.
        facts : mapping of str to str, optional
            The same settings by name, in words; recorded, so that an error of `resume` can name what differs.
        public_seed : int
            Seed of the public randomness, recorded for resume.
        noise : NoiseSource or None
            None for the secret source. With a ledger it must be None: whoever gives another source may know the key.
        journal : callable or None
            Makes or reopens the journal of a fit id, if it has one; it keeps answers, so that resume need not open sums
            again.
        resume : str or None
            Id of an unfinished fit, whose lease is taken without a charge; or of a fit that ended, which is replayed.
        pure : bool
            Whether the plan's currency is ε; else it is μ². A pure fit does not spend delta.
        unit_id : str or None
            The schema's privacy unit, which an account may demand; None for single rows.
        bill : sequence of Item
            What a pure plan asks at most, for accounts that charge each release by itself; empty if it does not say.

        Raises
        ------
        BudgetExceededError
            If the account has too little left.
        LedgerError, PlanError, ResumeError
            If the arguments contradict each other, or the recorded fit; then nothing is charged.

        Privacy
        -------
        Nothing recorded comes from the data.
        """
        if noise is not None and ledger is not None and resume is None:
            raise LedgerError(
                f"noise={type(noise).__name__} cannot charge a ledger: a key that is not made here may be known to"
                " others. Leave noise=None, or leave the ledger out."
            )
        if resume is not None:
            asked = {
                "account": account,
                "version": _version(),
                "epsilon": float(budget.epsilon),
                "delta": float(budget.delta),
                "currency": _currency(pure),
            }
            told = dict(facts or {})
            return cls._resume(ledger, asked, plan_digest.hex(), told, noise, journal, resume)
        if (ledger is None) != (account is None):
            raise LedgerError("ledger and account belong together: give both, or neither.")
        source = SecretNoise() if noise is None else noise
        secret = source.fit_key()
        key = FitKey(secret)
        price = accounting.total_price(budget.epsilon, budget.delta, pure=pure)
        charged = None if ledger is None or account is None else ledger.account(account)
        bits = _min_sigma_bits(budget, charged, pure=pure)
        terms = Terms(
            epsilon=float(budget.epsilon),
            delta=float(budget.delta),
            price=price,
            min_sigma_bits=bits,
            tau=0.0 if pure else accounting.distance(bits),
            plan_digest=plan_digest.hex(),
            version=_version(),
            public_seed=int(public_seed),
            commitment=key.commitment,
            pure=pure,
            facts=dict(facts or {}),
            unit_id=unit_id,
            who=_who(),
            bill=tuple(bill),
        )
        private = type(source) is SecretNoise  # no other class is trusted to be secret
        fit_id = secrets.token_hex(12) if private else _seeded_id(terms, key)
        book = _ledger_for(budget, pure=pure) if ledger is None else ledger
        lease = secrets.token_hex(16)
        book.reserve(account or IN_MEMORY_ACCOUNT, fit_id, terms, lease, secret)
        try:
            return cls(
                ledger=book,
                account=account,
                fit_id=fit_id,
                lease=lease,
                terms=terms,
                key=key,
                private=private,
                journal=None if journal is None else journal(fit_id),
            )
        except BaseException as error:
            book.note(error, fit_id)
            raise

    @classmethod
    def _resume(
        cls,
        ledger: Ledger | None,
        asked: Mapping[str, object],
        plan_digest: str,
        facts: Mapping[str, str],
        noise: NoiseSource | None,
        journal: Callable[[str], Journal | None] | None,
        fit_id: str,
    ) -> "Controller":
        """Take over a fit, if everything that decides its queries is the same."""
        if ledger is None or not ledger.durable:
            raise ResumeError(
                f"resume={fit_id!r} needs the ledger that the fit was charged to. Give ledger and account."
            )
        if noise is not None:
            raise ResumeError("A resumed fit goes on with its own key. Leave noise=None.")
        fit = ledger.look(fit_id)
        terms = fit.terms
        recorded = {
            "account": fit.account,
            "version": terms.version,
            "epsilon": terms.epsilon,
            "delta": terms.delta,
            "currency": _currency(terms.pure),
        }
        _check_same(
            fit_id, {**recorded, **terms.facts}, {**asked, **(facts if terms.facts else {})}
        )
        if terms.plan_digest != plan_digest:  # a difference that the recorded facts do not show
            _check_same(fit_id, {"plan": terms.plan_digest}, {"plan": plan_digest})
        same: dict[str, Any] = {
            "ledger": ledger,
            "account": fit.account,
            "fit_id": fit_id,
            "lease": secrets.token_hex(16),
            "terms": terms,
            "private": True,
        }
        if fit.ended:
            kept = None if journal is None else journal(fit_id)
            return cls(**same, key=None, journal=kept, answers=fit.answers)
        path = ledger.key_path(fit_id)
        assert path is not None  # the ledger is durable
        secret = read_key(path)
        if len(secret) != 32 or FitKey(secret).commitment != terms.commitment:
            raise ResumeError(
                f"The key {str(path)!r} is not the one that fit_id={fit_id!r} committed to. "
                f"Put the fit's own key back, or {SETTLE}."
            )
        opened = ledger.take(fit_id, same["lease"])
        return cls(
            **same,
            key=FitKey(secret),
            journal=None if journal is None else journal(fit_id),
            # the former holder of the lease may have bound the fit after it was looked at above
            fingerprint=ledger.look(fit_id).fingerprint,
            opened=opened,
        )

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """Receipts of the released answers, in order."""
        return tuple(self._receipts)

    @property
    def spent(self) -> int:
        """Price of the released answers by `Spending`; at most `total`, which is what was charged."""
        return self._spending.spent

    @property
    def mu(self) -> float:
        """The charge as a μ of Gaussian differential privacy, for the report."""
        if self.pure:
            return accounting.mu_of_pure(self.total / PRICE_ONE)
        return accounting.mu_of_price(self.total)

    @property
    def slack(self) -> float:
        """Bound on the part of delta that covers the discrete noise."""
        return accounting.slack(self.budget.epsilon, self._terms.tau)

    @property
    def fingerprint_key(self) -> bytes:
        """32-byte key of the fingerprint's PRF, for the private side."""
        return self._secret().derive("fingerprint")

    @property
    def rows_key(self) -> bytes:
        """16-byte key of the rows' secret draws (`queries.RowDraw`), for the private side."""
        return self._secret().derive("rows")[:16]

    def bind(self, fingerprint: int) -> None:
        """Bind the fit to its data; a resumed fit refuses other data.

        Parameters
        ----------
        fingerprint : int
            Σ over rows of a keyed PRF, mod 2²⁵⁶.

        Raises
        ------
        ResumeError
            If the fit was bound to another fingerprint.

        Privacy
        -------
        Only a keyed hash is recorded, under a key that is erased when the fit ends.
        """
        tag = self._secret().seal("fingerprint", fingerprint.to_bytes(32, "little"))
        if not self._fingerprint:
            self._ledger.bind(self.fit_id, self._lease, tag)
            self._fingerprint = tag
        elif self._fingerprint != tag:
            raise ResumeError(
                f"fit_id={self.fit_id!r} began on other data. Resume it on the same rows, or fit anew and {SETTLE}."
            )
        self._bound = True

    @property
    def answered(self) -> bool:
        """Whether the next answer has to be one from before: `replayed` gives it, and refuses another query."""
        return self.ended or len(self._receipts) < len(self._journalled)

    def replayed(self, query: Query, sensitivity: Sensitivity) -> Released[Vector] | None:
        """Return the journalled answer to the next query of a resumed fit; None if it must be computed from rows.

        Raises
        ------
        ResumeError
            If another query was answered at this position.

        Privacy
        -------
        The answer was released before; giving it again costs nothing and opens nothing.
        """
        position = len(self._receipts)
        if position >= len(self._journalled):
            if self.ended:
                raise ResumeError(_diverged(self.fit_id, position))
            return None
        receipt, _, spending = self._receipt(query, sensitivity)
        recorded = self._journalled[position]
        if recorded.receipt != receipt or recorded.value.shape != (query.n_values,):
            raise ResumeError(_diverged(self.fit_id, position))
        self._count(receipt, query, spending)
        return Released(recorded.value, receipt)

    def release(self, query: Query, raw: Raw[Vector]) -> Released[Vector]:
        """Answer the next query: noise the sums and let them out.

        Parameters
        ----------
        query : Query
            Its price decides the noise.
        raw : Raw of (query.n_sums,) int64
            Sums with the sensitivity stated by the code that clipped.

        Returns
        -------
        Released of (query.n_values,) int64
            ``sums · 2**receipt.scale_bits + noise`` with noise of ``receipt.sigma_steps``; for a choice, one
            candidate per node, or per group of nodes.

        Raises
        ------
        BudgetExceededError
            If the prices of all queries would exceed what was charged. Nothing is opened.
        LedgerError
            If the fit is not bound to its data, has ended, or belongs to another process. Nothing is opened.
        PlanError
            If no mechanism has the noise that the price asks for. Nothing is opened.
        ResumeError
            If a resumed fit asks another query, or gets other sums, than before the interruption.
        StructureError
            If the sums are not the vector that the query declares.

        Privacy
        -------
        Order of effects: price checked → sums opened, their keyed hash and OPENED durable → noise → answer in the
        journal, durable → returned. Noise is a function of (key, query id, sums), so a repetition reveals nothing new
        (docs/privacy.md P10).
        """
        released = self.replayed(query, raw.sensitivity)
        if released is not None:
            return released
        key = self._secret()
        if not self._bound:
            raise LedgerError(
                "The fit is not bound to its data: call bind(fingerprint) before release."
            )
        receipt, mechanism, spending = self._receipt(query, raw.sensitivity)
        query_id = bytes.fromhex(receipt.query_id)
        sums = raw._open(receipt)
        if sums.dtype != np.int64 or sums.shape != (query.n_sums,):
            raise StructureError(
                f"The sums of query {query.label!r} are not the int64 vector that it declares."
            )
        seal = ""  # in memory no round is opened twice
        if self._ledger.durable:
            seal = key.seal("sums", query_id, np.ascontiguousarray(sums).data)
        opened = Opened(receipt.query_id, seal)
        if receipt.position < len(self._opened):  # opened before a crash, answer not journalled
            if self._opened[receipt.position] != opened:
                raise ResumeError(_diverged(self.fit_id, receipt.position))
        else:
            # refuses a round that was opened in this process already, unless it is durable and for the same sums
            self._ledger.open_round(self.fit_id, self._lease, receipt.position, opened, query)
        answer = mechanism.answer(sums, key.stream(query_id, sums))
        if self._journal is not None:
            content = _content(receipt, answer)
            self._journal.append(JournalEntry(receipt, answer, key.seal("answer", content)))
            self._said.update(content)
        self._count(receipt, query, spending)
        return Released(answer, receipt)

    def finish(self, *, model: str = "", only_opened: bool = False) -> None:
        """End the fit: RELEASED, key erased. Nothing can be released after it.

        Parameters
        ----------
        model : str
            Digest of the fit's model, for the ledger (`Ledger.record`).
        only_opened : bool
            Whether the fit ended early, which only released answers may decide, and so only the rounds that it opened
            stay charged.
        """
        if self.ended:
            # the process that ended the fit may have been killed before it erased the key
            self._ledger.erase_key(self.fit_id)
            return
        self._secret()
        answers = self._said.hexdigest()
        self._ledger.finish(self.fit_id, self._lease, answers, model=model, only_opened=only_opened)
        self._key = None  # first: if it cannot be erased, the fit has ended all the same
        self._ledger.erase_key(self.fit_id)

    def note(self, error: BaseException) -> None:
        """Add a note to an error that ends the fit: how to resume or settle it, or to get the model if it has ended."""
        self._ledger.note(error, self.fit_id, ended=self._key is None)

    def _secret(self) -> FitKey:
        if self._key is None:
            raise LedgerError(f"fit_id={self.fit_id!r} has ended and its key is erased.")
        if self._pid != os.getpid():  # a forked child would count its own spending alone
            raise LedgerError(
                f"fit_id={self.fit_id!r} belongs to the process that reserved it. Go on there, or resume it by its id."
            )
        return self._key

    def _receipt(
        self, query: Query, sensitivity: Sensitivity
    ) -> tuple[Receipt, Mechanism, Spending]:
        """Choose what answers the next query; refuse a query that the fit has not paid for.

        Returns
        -------
        receipt : Receipt
        mechanism : Mechanism
        spending : Spending
            Once the query is answered.
        """
        if query.price <= 0:
            raise PlanError(f"price={query.price} of query {query.label!r} must be positive.")
        spending = self._spending.after(query)
        would = spending.spent
        if would > self.total:
            spent = self._spending.spent
            raise BudgetExceededError(
                f"Query {query.label!r} costs more than is left of the fit; nothing was opened.\n"
                f"  requested   {would - spent}\n"
                f"  remaining   {self.total - spent}\n"
                f"  difference  {would - self.total}\n"
                f"Amounts are 2**-64 of {_currency(self.pure)}. A plan must not spend more than it declares."
            )
        mechanism = self._mechanism(query, sensitivity, self.total - would)
        position = len(self._receipts)
        facts = [  # as `json.dumps` gives them; a digest and the name of a mechanism need no escapes
            _TEXT(self.fit_id), str(position), f'"{query.digest().hex()}"',
            str(sensitivity.l2_squared), str(sensitivity.l1), f'"{mechanism.name}"',
            *map(str, mechanism.parameters), str(query.n_values), str(SAMPLER_VERSION),
        ]  # fmt: skip
        receipt = Receipt(
            fit_id=self.fit_id,
            query_id=hashlib.sha256(f"[{', '.join(facts)}]".encode()).hexdigest(),
            position=position,
            label=query.label,
            price=query.price,
            sigma_steps=mechanism.sigma_steps,
            scale_bits=mechanism.scale_bits,
            mechanism=mechanism.name,
        )
        return receipt, mechanism, spending

    def _mechanism(self, query: Query, sensitivity: Sensitivity, after: int) -> Mechanism:
        """Return the mechanism that a query's price buys: a choice, Laplace noise (pure), or Gaussian noise.

        Parameters
        ----------
        query : Query
        sensitivity : Sensitivity
        after : int
            What is left of the fit's charge once the query is answered.
        """
        if isinstance(query, ChoiceQuery | SharedChoiceQuery):
            epsilon = Fraction(query.price, PRICE_ONE)
            if not self.pure:
                after = after if self._terms.chooses else 0
                epsilon = accounting.choice_epsilon(query.price, after)
            if isinstance(query, SharedChoiceQuery):
                return SharedChoice.at(query, sensitivity, epsilon)
            return Choice.at(query, sensitivity, epsilon)
        if self.pure:
            scale, t = accounting.laplace_scale_for(sensitivity.l1, query.price)
            if t > MAX_T:
                raise _too_noisy(query)
            return DiscreteLaplace(t, scale)
        if self._n_values + query.n_values > accounting.MAX_VALUES:
            raise PlanError(
                f"Query {query.label!r} takes the fit above {accounting.MAX_VALUES} released values: the slack is "
                "reserved for no more. Use fewer rounds or smaller tables."
            )
        scale, sigma = accounting.scale_for(
            sensitivity.l2_squared, query.price, self._terms.min_sigma_bits
        )
        if sigma > MAX_SIGMA:
            raise _too_noisy(query)
        return DiscreteGaussian(sigma, scale)

    def _count(self, receipt: Receipt, query: Query, spending: Spending) -> None:
        self._receipts.append(receipt)
        self._spending = spending
        if receipt.mechanism == DiscreteGaussian.name:
            self._n_values += query.n_values

    def _check_journal(self, key: FitKey) -> None:
        """Refuse a journal with rounds that the ledger did not open, or answers that this fit did not release."""
        known = [opened.query_id for opened in self._opened[: len(self._journalled)]]
        if [answer.receipt.query_id for answer in self._journalled] != known:
            raise ResumeError(_foreign(self.fit_id, "holds answers that its ledger does not know"))
        for answer in self._journalled:
            content = _content(answer.receipt, answer.value)
            if answer.seal != key.seal("answer", content):
                raise ResumeError(_foreign(self.fit_id, CHANGED))
            self._said.update(content)

    def _check_answers(self, digest: str) -> None:
        """Refuse a journal that does not hold what the fit released; the key is erased, so the digest is compared."""
        for answer in self._journalled:
            self._said.update(_content(answer.receipt, answer.value))
        if self._said.hexdigest() != digest:
            raise ResumeError(
                f"fit_id={self.fit_id!r} has ended, and its journal is not here whole. Put the fit's own journal back,"
                " or load the model that the fit gave."
            )

    def __repr__(self) -> str:
        return f"Controller(fit_id={self.fit_id!r}, releases={len(self._receipts)}, private={self.private})"


def _min_sigma_bits(budget: Budget, charged: Account | None, *, pure: bool) -> int:
    """Return how finely a fit draws its noise: enough for its own budget, and for that of the account charged."""
    if pure:  # Laplace noise needs no slack
        return 0
    bits = accounting.min_sigma_bits_for(budget.epsilon, budget.delta)
    if charged is None or charged.analysis != "gdp":
        return bits
    # the slack counts at the account's epsilon too
    return max(bits, accounting.min_sigma_bits_for(charged.epsilon, charged.delta))


def _seeded_id(terms: Terms, key: FitKey) -> str:
    """Return the id of a fit with test noise: of the same fit the same, so that its model file is, to the byte.

    However its facts are worded and whoever runs it; its unit and its bill follow from the digest and the price.
    """
    words = ("facts", "unit_id", "who", "bill")
    known = {name: value for name, value in terms.to_json().items() if name not in words}
    return "seeded-" + key.seal("fit id", json.dumps(known, sort_keys=True).encode())[:24]


def _ledger_for(budget: Budget, *, pure: bool) -> Ledger:
    """Return a ledger in memory for a single fit."""
    book = Ledger.in_memory()
    book.open_account(
        IN_MEMORY_ACCOUNT,
        epsilon=budget.epsilon,
        delta=budget.delta,
        analysis="pure" if pure else "gdp",
    )
    return book


def _content(receipt: Receipt, value: Vector) -> bytes:
    """Return an answer as bytes, for its keyed hash."""
    parts = [_TEXT(part) if type(part) is str else str(part) for part in _OF_RECEIPT(receipt)]
    return (_RECEIPT % tuple(parts)).encode() + canonical(value)


def _who() -> str:
    """Return the user and the machine of this process, for the operator's list of fits."""
    try:
        user = os.environ.get("JUPYTERHUB_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _check_same(fit_id: str, recorded: Mapping[str, object], asked: Mapping[str, object]) -> None:
    """Refuse to resume under other settings, and name those that differ; all of them are public."""
    names = [name for name in {**asked, **recorded} if recorded.get(name) != asked.get(name)]
    if not names:
        return
    lines = []
    for name in names[:MOST_NAMED]:
        before, now = _apart(str(recorded.get(name, "(none)")), str(asked.get(name, "(none)")))
        lines.append(f"  {name}: recorded {before}, asked {now}\n")
    more = f"  and {len(names) - MOST_NAMED} more\n" if len(names) > MOST_NAMED else ""
    raise ResumeError(
        f"fit_id={fit_id!r} was reserved with other settings:\n{''.join(lines)}{more}"
        f"Resume it with the same settings, or {SETTLE}."
    )


def _apart(one: str, other: str) -> tuple[str, str]:
    """Return two texts; if one is long, both are cut to the part around their first difference."""
    if max(len(one), len(other)) <= MOST_CHARACTERS:
        return one, other
    pairs = enumerate(zip(one, other, strict=False))
    same = next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, same - MOST_CHARACTERS // 3)
    return _cut(one, start), _cut(other, start)


def _cut(text: str, start: int) -> str:
    end = start + MOST_CHARACTERS
    return f"{'…' if start else ''}{text[start:end]}{'…' if len(text) > end else ''}"


def _foreign(fit_id: str, problem: str) -> str:
    return (
        f"The journal of fit_id={fit_id!r} {problem}. Put the fit's own journal back; or move it away, and the same"
        " answers are drawn again from the rows."
    )


def _version() -> str:
    return f"dpgb_dask {VERSIONS['dpgb_dask']}, sampler {SAMPLER_VERSION}"


def _currency(pure: bool) -> str:
    return "ε" if pure else "μ²"


def _too_noisy(query: Query) -> PlanError:
    return PlanError(
        f"Query {query.label!r} needs noise of more than 2**56 steps. "
        "Choose a larger epsilon or a smaller max_weight."
    )


def _diverged(fit_id: str, position: int) -> str:
    return (
        f"fit_id={fit_id!r} does not repeat itself at release {position}: another query or other data than before it "
        f"broke off. Resume it on the same rows with the same settings, or {SETTLE}."
    )
