"""The words of the privacy report: what is promised to whom, then every fact, nothing left out.

Text and HTML are made from the same sections (sections.py), so that both say the same.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dpgb_dask.display import exact
from dpgb_dask.released.sections import FactRows, Points, Section, Table, Words

OUTSIDE = (
    "Outside the guarantee: run times, rows per second and task counts (for the operator only); any score computed on"
    " private rows, such as those of GridSearchCV, and whatever is chosen by it."
)
NOT_PRIVATE = (
    "NOT PRIVATE: the noise is seeded, or facts were read from the data (schema='infer'). Nothing is promised to"
    " anybody. Do not publish this model."
)
MARK = "private=False"  # on everything that shows a model which is not private
UNVERIFIED = "UNVERIFIED: read from a model file of a format without digests. Nothing shows that it is as written."
EVIDENCE = (
    "This report is no signature: who can write a model file can write another whose digests agree. What a file says is"
    " evidence beside the ledger that was charged: dpgb-dask verify MODEL --ledger URL compares the two."
)
IN_GENERAL = (
    "What holds for people in general is not hidden: the model is made to tell it, and it may be applied to a person"
    " whether or not their data were used."
)
SPREAD = (
    "± one standard deviation of the noise, which can take a share below 0. Explanations show other numbers: there none"
    " is below 0, and the bins of a feature, each with its noise, are divided by their sum."
)
MAPPINGS = "mappings"  # the public facts that are printed last, group by group
MOST_MAPPED = 200  # most values of a mapping that are printed; the schema has all of any
ONE_ROW = "add or remove one row"  # the relation of a fit without a unit column
ACCOUNTANTS = {
    "pld": "PLD", "rdp": "RDP", "zcdp": "zCDP", "gdp": "GDP", "basic": "basic composition",
}  # fmt: skip
TOGETHER = "of the price of the whole fit: all releases of a line together"
EACH = (
    "of the price of the whole fit: one release of the line; different rows answer different releases, so that shares"
    " do not add up"
)
MECHANISMS = {
    "gaussian": "sums of whole numbers, released with discrete Gaussian noise; σ is the standard deviation in each"
    " release, and one row the most that one row (or unit) can change the sums, in the L2 norm",
    "laplace": "sums of whole numbers, released with discrete Laplace noise; σ is the standard deviation in each"
    " release, and one row the most that one row (or unit) can change the sums, in the L1 norm",
    "choice": "one of several candidates, chosen by the exponential mechanism; only the chosen one is released",
}
PARTS = {
    "schema": "schema",
    "model": "model of the fit",
    "shares": "shares of rows per bin",
    "bands": "noise of the shape functions",
    "receipts": "receipts of the releases",
    "report": "this report, as in the file",
    "parameters": "parameters and edits",
    "fit": "the fit, as its ledger names it",
}


def sections(report: Any) -> tuple[Section, ...]:
    """Return the whole report, the promise first.

    Parameters
    ----------
    report : PrivacyReport
        Its class imports this module, and so cannot be named here.
    """
    return (
        Section("What is promised", (*_warnings(report), *_promise(report)), first=True),
        Section("The guarantee", (FactRows(_guarantee(report)),), first=True),
        Section("The fit", (FactRows(_fit(report)),)),
        Section("Every release and its price", (_releases(report), FactRows(_columns(report)))),
        *_listed("Expected signal and noise", report.signal),
        *_missing(report),
        Section("Taken as public", (FactRows(tuple(_public(report.public))),)),
        *_listed("Assumed", report.assumptions),
        *_listed("Deviations from the source", report.deviations or ("none",)),
        *_listed("Changes after the fit", report.edits or ("none",)),
        *_digests(report),
        Section("What this report is not", (Words(OUTSIDE), Words(EVIDENCE))),
        *_mappings(report),
    )


def promise(report: Any) -> tuple[str, ...]:
    """Return what is promised to whom: one sentence or more per paragraph."""
    return tuple(part.text for part in _promise(report))


def _warnings(report: Any) -> list[Words]:
    marks = [UNVERIFIED] if report.unverified else []
    return [Words(text, mark="loud") for text in (*marks, *report.warnings)]


def _promise(report: Any) -> list[Words]:
    if not report.private:
        return [Words(NOT_PRIVATE, mark="loud")]
    if report.relation == ONE_ROW:  # a unit column may be called "row", too
        who, whose = "any one row (any one person, if each has at most one row)", "that row"
    else:
        who = f"any one {report.unit!r} (all rows that have one value in this column)"
        whose = f"that {report.unit!r}"
    unless = "" if report.pure else f", except with a probability of {exact(report.delta)}"
    return [
        Words(
            "Whoever sees this model, its file or this report, whatever else they know and whatever they compute from"
            f" it, can learn no more than this about {who}:",
            mark="promise",
        ),
        Words(
            f"Nothing that they may conclude is more than {_factor(report.epsilon)} times as likely because {whose}"
            f" took part, or because {whose} did not{unless}. Somebody who has to guess whether {whose} took part, and"
            f" takes both for equally likely, is right at most {_guess(report)} % of the time; without the model it is"
            " 50 %.",
            mark="promise",
        ),
        Words(f"{IN_GENERAL} {_others(report)}"),
    ]


def _others(report: Any) -> str:
    if report.account is None:
        return (
            "Whatever else was released from the same rows adds to this; the fit charged no ledger, so that nothing"
            " counts it."
        )
    return (
        "Whatever else was released from the same rows adds to this; the fit was charged to account"
        f" {report.account!r} of a ledger, which counts all fits that are charged to it."
    )


def _factor(epsilon: float) -> str:
    """Return e^ε, rounded up to three digits."""
    if epsilon > 30:
        return f"10^{math.ceil(epsilon / math.log(10))}"
    value = math.exp(epsilon)
    place = 10.0 ** (2 - math.floor(math.log10(value)))
    return f"{math.ceil(value * place) / place:g}"


def _guess(report: Any) -> str:
    """Return the highest success rate in percent of a guess between two equally likely neighbours, rounded up.

    It is half of one plus the total variation, which is 2Φ(μ/2) - 1 for μ-GDP (Dong, Roth and Su 2022, proposition
    2.13 at ε = 0); slack and δ cover the distance of the discrete noise to the Gaussian.
    """
    half = 0.5 * math.erfc(-report.mu / (2 * math.sqrt(2)))
    share = min(1.0, half + report.slack + report.delta)
    return f"{math.ceil(1000 * share - 1e-9) / 10:g}"


def _guarantee(report: Any) -> tuple[tuple[str, str], ...]:
    if report.pure:
        guarantee = f"({exact(report.epsilon)}, 0)-differential privacy, pure"
        asked = f"epsilon={exact(report.epsilon)}; delta is not used  (as μ={report.mu:.6g})"
    else:
        epsilon, delta = exact(report.epsilon), exact(report.delta)
        guarantee = f"({epsilon}, {delta})-differential privacy"
        asked = f"epsilon={epsilon}, delta={delta}  (μ={report.mu:.6g})"
    gaussian = [
        ("by zCDP", f"epsilon={report.epsilon_zcdp:.4g} at the same delta"),
        ("slack", f"{report.slack:.3g} of delta, for the discreteness of the noise"),
    ]
    return (
        ("guarantee", guarantee if report.private else f"NONE ({MARK})"),
        ("asked for", asked),
        *([] if report.pure else gaussian),
        ("relation", report.relation),
        ("unit", report.unit),
        *([("compare", _comparison(report))] if report.compared else []),
    )


def _fit(report: Any) -> tuple[tuple[str, str], ...]:
    spent = f"{100 * report.charged / max(report.declared, 1):.2f} % of the price"
    spent += " reserved, by the releases below: the fit ended early" if report.stopped else (
        " charged, by the releases below"
    )  # fmt: skip
    account = "none (in-memory ledger)" if report.account is None else report.account
    return (
        ("recipe", f"{report.recipe} ({report.source})"),
        *((("loss", report.loss),) if report.loss else ()),
        ("fit", report.fit_id),
        ("account", account),
        ("spent", spent),
        *({"dpgb_dask": report.version} | report.build).items(),
    )


def _comparison(report: Any) -> str:
    """Return the prices that other accountants find, the lowest first."""
    least_first = sorted(report.compared.items(), key=lambda item: item[1])
    found = ", ".join(
        f"{value:.3g} by {ACCOUNTANTS.get(name, name)}" for name, value in least_first
    )
    delta = f"delta={exact(report.compared_delta)}{' (a public constant)' if report.pure else ''}"
    return (
        f"at {delta}, were these releases a schedule fixed in advance: epsilon={found};"
        " not the guarantee, which lets queries follow from answers"
    )


def _releases(report: Any) -> Table:
    """Return the table of charges; a stage's releases of the same kind, mechanism and noise share a line.

    If different rows answer different releases, prices do not add up; each line then has the share of one release.
    """
    groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for charge in report.charges():
        stage, _, kind = str(charge["label"]).partition(":")
        noise = "–" if charge["noise"] is None else f"{charge['noise']:.4g}"
        key = stage.split(" ")[0], kind, charge["mechanism"], noise
        groups.setdefault(key, []).append(charge)
    adds_up = _adds_up(report)
    rows = []
    for (stage, kind, mechanism, noise), members in groups.items():
        first, last = str(members[0]["label"]), str(members[-1]["label"])
        label = first
        if len(members) > 1 and kind:
            label = f"{stage}:{kind} ({len(members)} releases)"
        elif len(members) > 1:
            label = f"{first} … {last.rsplit(' ', 1)[-1]} ({len(members)} releases)"
        shares = [m["share_percent"] for m in members]
        share = f"{sum(shares):.2f}" if adds_up else f"each {max(shares):.2f}"
        rows.append((label, mechanism, share, noise))
    return Table(
        ("release", "by", f"share of {'ε' if report.pure else 'μ²'} %", "σ / one row"), tuple(rows)
    )


def _adds_up(report: Any) -> bool:
    return sum(receipt.price for receipt in report.receipts) <= int(report.declared)


def _columns(report: Any) -> tuple[tuple[str, str], ...]:
    """Return what the columns of the table of charges say: the shares, then each mechanism, with its noise."""
    used = dict.fromkeys(receipt.mechanism for receipt in report.receipts)
    share = TOGETHER if _adds_up(report) else EACH
    return ("share", share), *((name, MECHANISMS[name]) for name in used if name in MECHANISMS)


def _missing(report: Any) -> list[Section]:
    if not report.shares:
        return []
    return [Section("Released shares of rows", (Words(SPREAD), Points(_shares(report))))]


def _shares(report: Any) -> tuple[str, ...]:
    """Return a line per feature; noise can make a share negative."""
    return tuple(
        f"{name}: "
        + ", ".join(
            f"{what} {100 * share:.2f} ± {100 * sd:.2g} %" for what, (share, sd) in found.items()
        )
        for name, found in report.shares.items()
    )


def _listed(title: str, items: tuple[str, ...]) -> list[Section]:
    return [Section(title, (Points(items),))] if items else []


def _digests(report: Any) -> list[Section]:
    rows = tuple((PARTS.get(name, name), digest) for name, digest in report.digests.items())
    return [Section("Digests (SHA-256)", (FactRows(rows),))] if rows else []


def _public(facts: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in facts.items():
        if name == MAPPINGS:
            continue
        if isinstance(value, Mapping):
            yield name, ""
            yield from ((f"  {key}", _fact(item)) for key, item in value.items())
        else:
            yield name, _fact(value)


def _mappings(report: Any) -> list[Section]:
    """Return the public mappings: the values of each group, or of a long one how many there are."""
    rows: list[tuple[str, str]] = []
    for feature, mapping in report.public.get(MAPPINGS, {}).items():
        groups = dict(_grouped(mapping))
        if len(mapping) <= MOST_MAPPED:
            rows += [(f"groups of {feature}", "")]
            rows += [(f"  {group}", ", ".join(own)) for group, own in groups.items()]
            continue
        digest = report.digests.get("schema")
        found = f"{len(mapping):,} values in {len(groups)} groups, which the schema lists"
        rows.append(
            (f"groups of {feature}", found if digest is None else f"{found} (SHA-256 {digest})")
        )
    return [Section("Mappings taken as public", (FactRows(tuple(rows)),))] if rows else []


def _grouped(mapping: Mapping[str, Any]) -> Iterable[tuple[str, list[str]]]:
    """Return the values of each group of a public mapping."""
    groups: dict[str, list[str]] = {}
    for value, group in mapping.items():
        groups.setdefault(str(group), []).append(str(value))
    return groups.items()


def _fact(value: Any) -> str:
    """Return a public fact in words, however long."""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_fact(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_fact(v) for v in value) + "]"
    return exact(value) if isinstance(value, float) else str(value)
