"""`verify`: whether a model file agrees with itself, and with the ledger that its fit charged.

What it is: evidence that shows tampering outside the ledger. The chain of the ledger holds the terms of the fit, its
charge, a digest of the answers that it released, and a digest of its whole model file except the build: schema, model,
report, and the parameters, some of which act in ``predict``. A file that passes holds just these.

What it is not: a signature. Without a ledger, a file is compared with itself alone, and anyone who writes a file can
make its digests agree. With a ledger, everything depends on the ledger: whoever can write it can forge both.
"""

from dataclasses import dataclass
from pathlib import Path

from dpgb_dask.calls import spoken
from dpgb_dask.contracts.plan import Budget
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.controller.ledger import Ledger, no_ledger
from dpgb_dask.controller.ledger_book import Record
from dpgb_dask.errors import DPGBError, LedgerError, ResumeError, VerificationError
from dpgb_dask.estimators import DPGBClassifier, DPGBRegressor, of_file
from dpgb_dask.released.export import bands_to_dict, fit_digest, load, model_to_dict, shares_to_dict
from dpgb_dask.released.report import PrivacyReport
from dpgb_dask.released.statement import EVIDENCE, NOT_PRIVATE
from dpgb_dask.training.build import build
from dpgb_dask.training.cost import account_charge
from dpgb_dask.training.fit import digest, replay


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify`: what agrees, and what could not be compared.

    Parameters
    ----------
    agreed : tuple of str
    open : tuple of str
        What was not compared, with the reason.
    private : bool
        Whether the model is private. If not, it promises nothing, whatever agrees.
    """

    agreed: tuple[str, ...]
    open: tuple[str, ...]
    private: bool = True

    def __str__(self) -> str:
        lines = [] if self.private else [NOT_PRIVATE, ""]
        lines += [f"agrees        {item}" for item in self.agreed]
        lines += [f"not compared  {item}" for item in self.open]
        return "\n".join([*lines, "", EVIDENCE])

    __repr__ = __str__


@spoken
def verify(path: str | Path, ledger: Ledger | None = None) -> Verification:
    """Compare a model file with itself and with the ledger that its fit charged.

    Without a ledger, this checks the digests of the file's parts, and the arithmetic by which ε, δ and μ follow from
    the receipts. With a ledger, it also checks the whole chain of the ledger; that the ledger holds the fit, ended, on
    this account, with these terms and this charge; and that the fit's entry names the digest of this schema, model,
    report and parameters. If the fit's journal is on this machine, and this is the build that the file names, the model
    is computed again from the journal and compared bit for bit; the data are not read. Nothing else tells whether the
    file names the build of the fit, nor, of a fit before format 4 of model files, the order of columns and of groups.

    Parameters
    ----------
    path : str or Path
    ledger : Ledger, optional

    Returns
    -------
    Verification

    Raises
    ------
    StructureError
        If the file cannot be read, or does not agree with itself.
    VerificationError
        If the file has a format without digests, or does not agree with the ledger.
    LedgerError
        If ``ledger`` is none, does not agree with itself, or does not know the fit.

    Notes
    -----
    This shows tampering outside the ledger. It is not a signature: whoever can write a model file can write another one
    whose digests agree, and whoever can write the ledger can forge both.

    Privacy
    -------
    Released and public values only.
    """
    if ledger is not None and not isinstance(ledger, Ledger):
        raise LedgerError(no_ledger(ledger))
    file = load(path)  # refuses a file whose digests do not agree
    model = of_file(file, path)  # refuses a report whose claims do not follow
    report = model.privacy_report_
    if report.unverified:
        raise VerificationError(
            f"Model file {str(path)!r} was read from a format without digests: nothing in it can be compared. Fit"
            " again, or resume the fit from its ledger, and save the model anew."
        )
    agreed = [
        "digests of schema, model, shares, bands, receipts, report and parameters",
        "ε, δ and μ: they follow from the receipts"
        if report.private
        else "the charges: they follow from the receipts, and no guarantee follows from them",
    ]
    if file.edits:
        changes, them = (
            ("the change", "it")
            if len(file.edits) == 1
            else (f"the {len(file.edits)} changes", "them")
        )
        agreed.append(
            f"{changes} after the fit: repeated from its model; the file alone tells of {them}, and no ledger"
        )
    if ledger is None:
        why = "no ledger was given" if report.account is not None else "the fit charged none"
        return Verification(tuple(agreed), (f"the ledger: {why}",), report.private)
    if report.account is None:
        raise VerificationError(
            f"Fit {report.fit_id} charged no ledger, by its report: none can know it. Verify the file without one."
        )
    ledger.verify()
    record = ledger.record(report.fit_id)
    _check_terms(report, record, ledger)
    ordered = record.model == fit_digest(file)
    if not ordered and record.model != fit_digest(file, version=3):
        raise VerificationError(
            f"The ledger's entry of fit {report.fit_id} names another digest: schema, model, report or parameters of"
            f" {str(path)!r} are not those of the fit. (So it is with a model that was saved after"
            " set_params(columns=…), or made again by resume= with parameters in other words, or on another build.)"
        )
    if not report.build:
        raise VerificationError(f"Model file {str(path)!r} names no build: each fit names its own.")
    agreed += [
        "the ledger's chain, accounts and fits",
        "account, terms and charge of the fit",
        "the digest that the ledger names: of schema, model, shares, the whole report (its build aside) and parameters",
    ]
    unlike = _replay(model, record, ledger)
    if unlike:
        left = [f"the model with its journal (the digest alone was): {unlike}"]
        if not ordered:
            left.append(
                "the order of columns and of groups: digests cover it since format 4 of model files"
            )
        return Verification(tuple(agreed), tuple(left))
    return Verification(
        (*agreed, "the model of the fit, bit for bit, computed again from its journal"), ()
    )


def _check_terms(report: PrivacyReport, record: Record, ledger: Ledger) -> None:
    """Refuse a report that differs from the ledger, and name each difference."""
    terms = record.terms
    analysis = ledger.account(record.account).analysis
    charge = account_charge(report, terms.bill, analysis)
    if terms.pure and not terms.bill and analysis == "zcdp":
        # before there were bills, a pure fit cost ε²/2 in ρ, and that charge stands
        price = report.charged if report.stopped else report.declared
        before = -(-price * price // (2 * PRICE_ONE))
        charge = before if record.charge == before else charge
    told = {
        "state": ("RELEASED", record.state),
        "account": (report.account, record.account),
        "epsilon": (report.epsilon, terms.epsilon),
        # a pure report has no delta
        "delta": (report.delta, 0.0 if terms.pure else terms.delta),
        "price": (report.declared, terms.price),
        "pure": (report.pure, terms.pure),
        "version": (report.version, terms.version.partition(",")[0].removeprefix("dpgb_dask ")),
        "seed": (report.public.get("seed of public randomness"), terms.public_seed),
        "charge": (charge, record.charge),
        "private": (report.private, True),
    }
    wrong = [name for name, (said, known) in told.items() if said != known]
    if wrong:
        lines = "".join(
            f"\n  {name}: the file says {told[name][0]}, the ledger {told[name][1]}"
            for name in wrong
        )
        raise VerificationError(
            f"The file and the ledger's entry of fit {report.fit_id} differ:{lines}"
        )


def _replay(model: DPGBClassifier | DPGBRegressor, record: Record, ledger: Ledger) -> str:
    """Compute the model again from the fit's journal and compare; return the reason if that cannot be done, else "".

    Raises
    ------
    VerificationError
        If another model comes out.
    """
    report = model.privacy_report_
    if report.build != build():
        return "this is another build than the file names, which nothing else tells"
    journal = ledger.journal_path(report.fit_id)
    if journal is None or not journal.exists():
        return "the fit's journal is not here"
    try:
        made = model._plans()  # noqa: SLF001 - of this package
        known = [pair for pair in made if digest(*pair).hex() == record.terms.plan_digest]
    except DPGBError:  # of a user's own plan or loss the file holds only the name
        known = []
    if not known:
        return "the plan cannot be made again from the file's parameters"
    plan, shape = known[0]
    budget = Budget(epsilon=record.terms.epsilon, delta=record.terms.delta)
    try:
        again = replay(
            shape=shape,
            plan=plan,
            budget=budget,
            ledger=ledger,
            account=record.account,
            fit_id=report.fit_id,
        )
    except ResumeError:
        return "the fit's journal is not here whole"
    same = {
        "model": model_to_dict(again.model) == model_to_dict(model.model_of_fit_),
        "shares": shares_to_dict(again.shares) == shares_to_dict(model.bin_shares_),
        "bands": bands_to_dict(again.bands) == bands_to_dict(model.bands_),
    }
    if other := [name for name, agrees in same.items() if not agrees]:
        raise VerificationError(
            f"From the journal of fit {report.fit_id} come other parts than the file holds: {', '.join(other)}."
        )
    return ""
