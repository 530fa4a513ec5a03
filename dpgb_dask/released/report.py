"""The privacy report: what was asked, what it cost, what was assumed public. Holds released values only."""

import html
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.errors import StructureError

OUTSIDE = (
    "Outside the guarantee: run times, rows per second and task counts (for the operator only); any score computed on"
    " private rows, such as those of GridSearchCV, and whatever is chosen by it."
)
NOT_PRIVATE = (
    "NOT PRIVATE: the noise is seeded, or facts were read from the data (schema='infer').\n"
    "!!! Do not publish this model."
)
ACCOUNTANTS = {
    "pld": "PLD", "rdp": "RDP", "zcdp": "zCDP", "gdp": "GDP", "basic": "basic composition",
}  # fmt: skip
UNVERIFIED = "UNVERIFIED: read from a model file of a format without digests. Nothing shows that it is as written."
EVIDENCE = (
    "This report is no signature: who can write a model file can write another whose digests agree. What a file says is"
    " evidence beside the ledger that was charged: dpgb-dask verify MODEL --ledger URL compares the two."
)
_WIDTH = 78
_LISTS = ("assumptions", "deviations", "signal", "draws", "warnings")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyReport:
    """What a fit released, what it cost, and on which assumptions its guarantee rests.

    Parameters
    ----------
    private : bool
        False for seeded noise or a schema read from the data; nothing below is then a guarantee.
    epsilon, delta : float
        The guarantee that was asked for.
    mu : float
        The same guarantee as one Gaussian number (GDP); prices are shares of its square.
    epsilon_zcdp : float
        ε at the same delta by zero-concentrated accounting, for comparison.
    relation : str
        The condition under which two data sets are neighbours.
    unit : str
        What is protected: "row", or the name of the unit column.
    recipe, source : str
        Name of the method and where it is described.
    fit_id : str
    account : str or None
        Account of the ledger that was charged.
    receipts : tuple of Receipt
        One per release, in order.
    declared, charged : int
        Price charged for the whole fit, and total price of its releases, in units of 2⁻⁶⁴ of μ², or of ε for a pure
        plan.
    slack : float
        Share of delta that covers the discreteness of the noise.
    public : dict
        Facts that were taken as public (JSON values).
    assumptions : tuple of str
        What else has to hold.
    deviations : tuple of str
        Where the recipe departs from its source, so that the proof holds.
    version : str
        Version of the library.
    pure : bool
        Whether the guarantee is pure ε-differential privacy: delta is 0, prices are in ε.
    loss : str
        The loss, and how far one row moves a gradient sum.
    signal : tuple of str
        How large the noise is compared with the signal, from public and released numbers.
    compared : dict of str to float
        ε by accountant ("pld", "rdp", "zcdp", "gdp", "basic") if the same releases were a schedule fixed in advance. A
        comparison, not the guarantee, under which queries may be chosen adaptively. Empty if every accountant finds
        what was charged, as for Gaussian noise on all rows.
    compared_delta : float
        The δ of the comparison: that of the guarantee, or for a pure plan 10⁻⁶, a public constant.
    draws : tuple of (list or None)
        Per receipt: kind, group, low and high of the draw of rows that answered it (`contracts.queries.RowDraw`); None
        for all rows. Empty if all rows answered every query. ``charged`` follows from these and the prices of the
        receipts.
    build : dict of str to str
        What the floats of the fit's post-processing depend on: machine, libraries, and features of the processor.
    unverified : bool
        Whether the report was read from a file of a format without digests.
    stopped : bool
        Whether the fit ended with the start model because its number of rows could not be told from zero.
    warnings : tuple of str
        Reasons to doubt the model, from released numbers.
    shares : dict of str to dict
        Per feature, the released share of rows whose value is "missing", or "other" (no declared category), each with
        the standard deviation of its noise. Empty if no such counts were released, or if there are too few rows.

    Privacy
    -------
    Released. No count, sum or number of rows is part of it.
    """

    private: bool
    epsilon: float
    delta: float
    mu: float
    epsilon_zcdp: float
    relation: str
    unit: str
    recipe: str
    source: str
    fit_id: str
    account: str | None
    receipts: tuple[Receipt, ...]
    declared: int
    charged: int
    slack: float
    public: dict[str, Any]
    assumptions: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    version: str = ""
    pure: bool = False
    loss: str = ""
    signal: tuple[str, ...] = ()
    compared: dict[str, float] = field(default_factory=dict)
    compared_delta: float = 0.0
    draws: tuple[list[Any] | None, ...] = ()
    build: dict[str, str] = field(default_factory=dict)
    unverified: bool = False
    stopped: bool = False
    warnings: tuple[str, ...] = ()
    shares: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    @staticmethod
    def since_digests() -> frozenset[str]:
        """Return the fields that reports did not have before model files had digests."""
        return frozenset({"draws", "build", "unverified", "stopped", "warnings", "shares"})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        out = {item.name: getattr(self, item.name) for item in fields(self)}
        out["receipts"] = [asdict(receipt) for receipt in self.receipts]
        for name in _LISTS:
            out[name] = list(getattr(self, name))
        return out

    @classmethod
    def from_dict(cls, data: Any) -> "PrivacyReport":
        """Build a report from its JSON form.

        Raises
        ------
        StructureError
            If a field is missing or unknown.
        """
        try:
            values = dict(data)
            values["receipts"] = tuple(Receipt(**receipt) for receipt in values["receipts"])
            if "mends" in values:  # what files of version 0.1 call deviations
                values["deviations"] = values.pop("mends")
            for name in _LISTS:  # older reports lack some
                values[name] = _tuple(values.get(name, []))
            compared = values.get("compared", {})
            values["compared"] = {name: float(compared[name]) for name in compared}
            report = cls(**values)
            _check(report)
        except (TypeError, KeyError, ValueError, OverflowError, RecursionError) as error:
            raise StructureError(
                "The privacy report is malformed. Save the model again with this library."
            ) from error
        return report

    def charges(self) -> list[dict[str, Any]]:
        """Return one record per release: label, share of the price in percent, mechanism and noise.

        The noise is given as its standard deviation divided by the most that one row can change the released vector: in
        the L2 norm for Gaussian noise (1/μ of the release), in the L1 norm for Laplace noise (√2/ε of the release). It
        is None for an exponential choice, which adds no noise.
        """
        return [
            {
                "label": receipt.label,
                "share_percent": 100 * receipt.price / max(self.declared, 1),
                "mechanism": receipt.mechanism,
                "noise": _noise(receipt),
            }
            for receipt in self.receipts
        ]

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """Return the table of charges; a stage's releases of the same kind, mechanism and noise share a line.

        If different rows answer different releases, prices do not add up; each line then has the share of one release.
        """
        groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
        for charge in self.charges():
            stage, _, kind = str(charge["label"]).partition(":")
            noise = "–" if charge["noise"] is None else f"{charge['noise']:.4g}"
            key = stage.split(" ")[0], kind, charge["mechanism"], noise
            groups.setdefault(key, []).append(charge)
        adds_up = sum(receipt.price for receipt in self.receipts) <= self.declared
        rows = []
        for (stage, kind, mechanism, noise), members in groups.items():
            first, last = str(members[0]["label"]), str(members[-1]["label"])
            label = first
            if len(members) > 1 and kind:
                label = f"{stage}:{kind} (each of {len(members)})"
            elif len(members) > 1:
                label = f"{first} … {last.rsplit(' ', 1)[-1]} (each of {len(members)})"
            shares = [m["share_percent"] for m in members]
            share = f"{sum(shares):.2f}" if adds_up else f"each {max(shares):.2f}"
            rows.append((label, mechanism, share, noise))
        return rows

    def _head(self) -> tuple[str, str, str, str]:
        return "release", "by", f"share of {'ε' if self.pure else 'μ²'} %", "σ / one row"

    def _spent(self) -> float:
        return 100 * self.charged / max(self.declared, 1)

    def _facts(self) -> list[tuple[str, str]]:
        """Return the head of the report."""
        if self.pure:
            promise = f"({self.epsilon:g}, 0)-differential privacy, pure"
            asked = f"epsilon={self.epsilon:g}; delta is not used  (as μ={self.mu:.6g})"
        else:
            promise = f"({self.epsilon:g}, {self.delta:g})-differential privacy"
            asked = f"epsilon={self.epsilon:g}, delta={self.delta:g}  (μ={self.mu:.6g})"
        gaussian = [
            ("by zCDP", f"epsilon={self.epsilon_zcdp:.4g} at the same delta"),
            ("slack", f"{self.slack:.3g} of delta, for the discreteness of the noise"),
        ]
        if self.stopped:
            spent = f"{self._spent():.2f} % of the price reserved, by the releases below: the fit ended early"
        else:
            spent = f"{self._spent():.2f} % of the price charged, by the releases below"
        return [
            ("guarantee", promise if self.private else "NONE (private=False)"),
            ("asked for", asked),
            *([] if self.pure else gaussian),
            ("relation", self.relation),
            ("unit", self.unit),
            ("recipe", f"{self.recipe} ({self.source})"),
            *([("loss", self.loss)] if self.loss else []),
            ("fit", self.fit_id),
            ("account", self.account if self.account is not None else "none (in-memory ledger)"),
            ("spent", spent),
            *([("compare", self._comparison())] if self.compared else []),
        ]

    def _comparison(self) -> str:
        """Return the prices that other accountants find, the lowest first."""
        least_first = sorted(self.compared.items(), key=lambda item: item[1])
        found = ", ".join(
            f"{value:.3g} by {ACCOUNTANTS.get(name, name)}" for name, value in least_first
        )
        delta = f"delta={self.compared_delta:g}{' (a public constant)' if self.pure else ''}"
        return (
            f"at {delta}, were these releases a schedule fixed in advance: epsilon={found};"
            " not the guarantee, which lets queries follow from answers"
        )

    def _shares(self) -> tuple[str, ...]:
        """Return a line per feature; noise can make a share negative."""
        return tuple(
            f"{name}: "
            + ", ".join(
                f"{what} {100 * share:.2f} ± {100 * sd:.2g} %"
                for what, (share, sd) in found.items()
            )
            for name, found in self.shares.items()
        )

    def _lists(self) -> list[tuple[str, tuple[str, ...]]]:
        return [
            ("Expected signal and noise:", self.signal),
            ("Released shares of rows, ± one standard deviation of the noise:", self._shares()),
            ("Assumed:", self.assumptions),
            ("Deviations from the source:", self.deviations),
        ]

    def __str__(self) -> str:
        lines = ["Privacy report", "=" * _WIDTH]
        if not self.private:
            lines += ["!!! " + NOT_PRIVATE, ""]
        if self.unverified:
            lines += ["!!! " + UNVERIFIED, ""]
        for warning in self.warnings:
            lines += ["!!! " + warning, ""]
        lines += [f"{name:<10} {value}" for name, value in self._facts()]
        label, by, share, noise = self._head()
        lines += ["", f"{label:<39} {by:<8} {share:>14} {noise:>14}", "-" * _WIDTH]
        lines += [f"{a:<39} {b:<8} {c:>14} {d:>14}" for a, b, c, d in self._rows()]
        lines += ["", "Taken as public:"]
        for name, value in self.public.items():
            if isinstance(value, Mapping):
                lines += [
                    f"  {name}:",
                    *(f"    {key}: {_brief(item)}" for key, item in value.items()),
                ]
            else:
                lines.append(f"  {name}: {_brief(value)}")
        for title, items in self._lists():
            if items:
                lines += ["", title, *(f"  - {item}" for item in items)]
        return "\n".join([*lines, "", OUTSIDE, "", EVIDENCE])

    def __repr__(self) -> str:
        mark = "" if self.private else ", private=False"
        mark += ", unverified" if self.unverified else ""
        return f"PrivacyReport(epsilon={self.epsilon:g}, delta={self.delta:g}, recipe={self.recipe!r}{mark})"

    def _repr_html_(self) -> str:
        def table(rows: list[tuple[str, ...]]) -> str:
            cells = (
                "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>"
                for row in rows
            )
            return "<table>" + "".join(cells) + "</table>"

        marks = [
            *([] if self.private else [NOT_PRIVATE]),
            *([UNVERIFIED] if self.unverified else []),
            *self.warnings,
        ]
        loud = "".join(f"<p><strong>{html.escape(mark)}</strong></p>" for mark in marks)
        public = table([(name, _brief(value)) for name, value in self.public.items()])
        notes = "".join(
            f"<p>{html.escape(title)}</p><ul>{_points(items)}</ul>"
            for title, items in self._lists()
            if items
        )
        return (
            f"<div><h4>Privacy report</h4>{loud}{table([*self._facts()])}"
            f"{table([self._head(), *self._rows()])}"
            f"<p>Taken as public</p>{public}{notes}<p>{html.escape(OUTSIDE)}</p>"
            f"<p>{html.escape(EVIDENCE)}</p></div>"
        )


def _tuple(values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise TypeError("not a list")
    return tuple(values)


def _check(report: Any) -> None:
    """Raise TypeError or ValueError unless every field has the type with which it is printed and calculated."""
    texts = ("relation", "unit", "recipe", "source", "fit_id", "version", "loss")
    good = all(isinstance(getattr(report, name), str) for name in texts)
    good &= all(
        isinstance(getattr(report, name), bool)
        for name in ("private", "pure", "unverified", "stopped")
    )
    good &= report.account is None or isinstance(report.account, str)
    numbers = ("epsilon", "delta", "mu", "epsilon_zcdp", "slack", "compared_delta")
    good &= all(_is_number(getattr(report, name)) for name in numbers)
    good &= _is_price(report.declared) and _is_price(report.charged)
    good &= all(map(_is_receipt, report.receipts))
    for name in ("assumptions", "deviations", "signal", "warnings"):
        good &= all(isinstance(item, str) for item in getattr(report, name))
    good &= isinstance(report.public, dict) and _is_fact(report.public, 4)
    good &= all(isinstance(k, str) and _is_number(v) for k, v in report.compared.items())
    good &= all(isinstance(part, str) for pair in report.build.items() for part in pair)
    for name, found in report.shares.items():
        good &= isinstance(name, str) and set(found) <= {"missing", "other"}
        good &= all(len(pair) == 2 and all(map(_is_number, pair)) for pair in found.values())
    good &= all(draw is None or _is_draw(draw) for draw in report.draws)
    if not good:
        raise TypeError("a field of another type")


def _is_number(value: Any) -> bool:
    # an int of 400 digits cannot be printed as a float
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return number and -1e308 < value < 1e308


def _is_price(value: Any) -> bool:
    # below 1000 bits, so that shares of it can be floats
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 1000


def _is_receipt(receipt: Receipt) -> bool:
    texts = (receipt.fit_id, receipt.query_id, receipt.label, receipt.mechanism)
    numbers = (receipt.position, receipt.price, receipt.sigma_steps, receipt.scale_bits)
    return all(isinstance(text, str) for text in texts) and all(map(_is_price, numbers))


def _is_draw(draw: Any) -> bool:
    return (
        isinstance(draw, list)
        and len(draw) == 4
        and isinstance(draw[0], str)
        and all(map(_is_price, draw[1:]))
    )


def _is_fact(value: Any, levels: int) -> bool:
    """Return whether a public fact can be printed: texts and numbers, in lists and objects nested a few levels deep."""
    if isinstance(value, Mapping):
        return levels > 0 and all(
            isinstance(k, str) and _is_fact(v, levels - 1) for k, v in value.items()
        )
    if isinstance(value, list | tuple):
        return levels > 0 and all(_is_fact(v, levels - 1) for v in value)
    return value is None or isinstance(value, str | bool) or _is_number(value)


def _points(items: tuple[str, ...]) -> str:
    return "".join(f"<li>{html.escape(item)}</li>" for item in items)


def _noise(receipt: Receipt) -> float | None:
    """Return the standard deviation of a release's noise divided by the most that one row can change it."""
    if receipt.mechanism == "choice":
        return None
    if not receipt.price:
        return math.inf
    share = PRICE_ONE / receipt.price
    return math.sqrt(2) * share if receipt.mechanism == "laplace" else math.sqrt(share)


def _brief(value: Any) -> str:
    """Return a public fact on one line."""
    if isinstance(value, Mapping):
        text = ", ".join(f"{k} {_brief(v)}" for k, v in value.items())
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(_brief(v) for v in value) + "]"
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 400 else text[:397] + "…"
