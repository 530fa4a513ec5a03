"""The privacy report: what was asked, what it cost, what was assumed public. Holds released values only."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from dpgb_dask.calls import spoken
from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.display import brief, exact
from dpgb_dask.errors import PlanError, StructureError, short
from dpgb_dask.released.sections import WIDTH, as_html, as_page, as_text
from dpgb_dask.released.statement import MAPPINGS, MARK, promise, sections
from dpgb_dask.scalars import is_number, whole_number

MOST_WIDE = 10_000  # characters of a line
BESIDE = ("digests", "edits")  # fields that a model file holds beside its report, not in it
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

    digests : dict of str to str
        SHA-256 of each part of the model file, and of the fit, which its entry in a ledger names. They cover the
        report, and so are not part of its JSON form in the file, and of no comparison.
    edits : tuple of str
        What was changed in the model after the fit, in words; in the file they lie beside the report.

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
    digests: dict[str, str] = field(default_factory=dict, compare=False)
    edits: tuple[str, ...] = field(default=(), compare=False)

    @staticmethod
    def since_digests() -> frozenset[str]:
        """Return the fields that reports did not have before model files had digests."""
        return frozenset({"draws", "build", "unverified", "stopped", "warnings", "shares"})

    @spoken
    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, as it stands in a model file."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in BESIDE}
        names = [f.name for f in fields(Receipt)]  # of numbers and texts, which need no copy
        out["receipts"] = [{n: getattr(receipt, n) for n in names} for receipt in self.receipts]
        for name in _LISTS:
            out[name] = list(getattr(self, name))
        return out

    @classmethod
    def from_dict(cls, data: Any) -> "PrivacyReport":
        """Build a report from its JSON form.

        Parameters
        ----------
        data : mapping
            As `to_dict` returns it, or as an older version wrote it.

        Raises
        ------
        StructureError
            If a field is missing or unknown.
        """
        try:
            values = dict(data)
            if set(BESIDE) & set(values):
                raise KeyError("a field that is no part of the JSON form")
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

    @spoken
    def to_json(self) -> str:
        """Return the whole report as JSON text, with the promise in words, the digests and the edits."""
        beside = {name: getattr(self, name) for name in BESIDE}
        told = {"promise": promise(self), **self.to_dict(), **beside}
        return json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False)

    @spoken
    def to_html(self) -> str:
        """Return the whole report as one HTML page, for the screen and for paper; names and labels are escaped."""
        return as_page(f"Privacy report of fit {self.fit_id}", sections(self))

    @spoken
    def to_text(self, width: int = WIDTH) -> str:
        """Return the whole report as text.

        Parameters
        ----------
        width : int
            Most characters of a line, but for tables and long words.

        Raises
        ------
        PlanError
            If the width is not a whole number in [1, 10000].
        """
        if not 1 <= (whole_number(width) or 0) <= MOST_WIDE:
            raise PlanError(f"width={short(width)} must be a whole number in [1, {MOST_WIDE}].")
        return as_text("Privacy report", sections(self), width)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        mark = "" if self.private else f", {MARK}"
        mark += ", unverified" if self.unverified else ""
        promise = f"epsilon={exact(self.epsilon)}, delta={exact(self.delta)}"
        return f"PrivacyReport({promise}, recipe={brief(self.recipe)!r}{mark})"

    def _repr_html_(self) -> str:
        return as_html(sections(self))


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
    good &= all(_is_printable(getattr(report, name)) for name in numbers)
    good &= _is_price(report.declared) and _is_price(report.charged)
    good &= all(map(_is_receipt, report.receipts))
    for name in ("assumptions", "deviations", "signal", "warnings"):
        good &= all(isinstance(item, str) for item in getattr(report, name))
    good &= isinstance(report.public, dict) and _is_fact(report.public, 4)
    mappings = report.public.get(MAPPINGS, {})
    good &= isinstance(mappings, dict) and all(isinstance(m, dict) for m in mappings.values())
    good &= all(isinstance(k, str) and _is_printable(v) for k, v in report.compared.items())
    good &= all(isinstance(part, str) for pair in report.build.items() for part in pair)
    for name, found in report.shares.items():
        good &= isinstance(name, str) and set(found) <= {"missing", "other"}
        good &= all(len(pair) == 2 and all(map(_is_printable, pair)) for pair in found.values())
    good &= all(draw is None or _is_draw(draw) for draw in report.draws)
    if not good:
        raise TypeError("a field of another type")


def _is_printable(value: Any) -> bool:
    # an int of 400 digits cannot be printed as a float
    return is_number(value) and -1e308 < value < 1e308


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
    return value is None or isinstance(value, str | bool) or _is_printable(value)


def _noise(receipt: Receipt) -> float | None:
    """Return the standard deviation of a release's noise divided by the most that one row can change it."""
    if receipt.mechanism == "choice":
        return None
    if not receipt.price:
        return math.inf
    share = PRICE_ONE / receipt.price
    return math.sqrt(2) * share if receipt.mechanism == "laplace" else math.sqrt(share)
