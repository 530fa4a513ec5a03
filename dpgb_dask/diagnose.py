"""The data owner's own check of a schema: it counts rows exactly.

Nothing here is private. A fit under a declared schema never calls this module.
"""
# ruff: noqa: N803 - X is scikit-learn's name

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple, TypeAlias

import dask.dataframe as dd
import numpy as np
import pandas as pd
import xarray as xr
import zarr
from dask.delayed import delayed
from numpy.typing import NDArray

from dpgb_dask.clients import compute
from dpgb_dask.contracts.features import Categorical, Datetime, Grouped, Numeric
from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.plan import weight_bits_for
from dpgb_dask.contracts.schema import Schema, Target
from dpgb_dask.display import exact, one_line
from dpgb_dask.encoding.codes import encode, encode_weight, read_target
from dpgb_dask.encoding.columns import n_rows, numbers, objects, one_column, split_columns
from dpgb_dask.encoding.structure import check_beside, no_table
from dpgb_dask.encoding.times import bounds_of, seconds
from dpgb_dask.errors import SchemaError, in_our_words, listed
from dpgb_dask.matching import Columns, as_dataset, in_order, names_of
from dpgb_dask.private.reading.ingest import Inputs, check_inputs, source_of
from dpgb_dask.private.reading.rows import Source, failed_to_load, line_up
from dpgb_dask.private.reading.units import distinct_names
from dpgb_dask.scalars import python_scalar
from dpgb_dask.values import EXACT, NO_FORM, cells
from dpgb_dask.zarr_arrays import arrays_of

LOUD = (
    "THIS IS NOT PRIVATE. It counts rows of the data exactly and is for the data owner's eyes only: do not publish it,"
    " log it or paste it into a report. It is printed and kept nowhere."
)


MOST_NAMED = 5  # most unknown values that are shown per column …
MOST_KEPT = 10_000  # … out of at most this many distinct ones that are counted per chunk
MOST_CHARACTERS = 40  # most characters of a value that are shown
# bounds at least this many times as wide as the range of the values leave them few bins and much noise
WIDE = 20
# how values of a type are read
FORMS = {
    Numeric: "Numbers are read as 1234.5, or with decimal=',' (--decimal ,) as 1234,5: without marks between thousands,"
    " units and %. Under a decimal comma 1.234, which may be 1234, is no number, and named as 1,234.",
    Datetime: "Dates are read from text as 2024-12-31, and never from numbers.",
}

Counted: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ColumnCheck:
    """Exact counts of what a fit would change in one column. Not private.

    Parameters
    ----------
    name : str
    missing : int
        Missing or unparsable values.
    below, above : int
        Values that would be clipped to the lower and upper bound.
    fractional : int
        Fractional values in a column declared as integer.
    unknown : int
        Values that are no declared category and would count as "other".
    values : tuple of (str, int)
        The most frequent unknown or unparsable values, and how often each occurs.
    seen : (float, float) or None
        The least and the largest number within the bounds, if the bounds are far too wide for them.
    outside : tuple of (str, int)
        The most frequent values below and above the bounds, such as a 9999 that stands for a missing value.
    """

    name: str
    missing: int = 0
    below: int = 0
    above: int = 0
    fractional: int = 0
    unknown: int = 0
    values: Counted = ()
    seen: tuple[float, float] | None = None
    outside: Counted = ()

    def remarks(self) -> list[str]:
        """Return the noteworthy facts, in words."""
        kinds = ("missing", "below", "above", "fractional", "unknown")
        among = {
            "unknown" if self.unknown else "missing": self.values,
            "above" if self.above else "below": self.outside,
        }
        found = [
            f"{getattr(self, kind)} {kind}{_among(among.get(kind, ()))}"
            for kind in kinds
            if getattr(self, kind)
        ]
        if self.seen is not None:
            found.append(_too_wide(self.seen))
        return found

    def __repr__(self) -> str:
        return f"{one_line(self.name)}: {', '.join(self.remarks()) or 'fits'} (NOT PRIVATE)"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """How data fit a schema, counted exactly. Not private.

    Parameters
    ----------
    n_rows : int
    columns : tuple of ColumnCheck
    bad_targets : int or None
        Rows that would get weight 0: unknown labels or missing targets; None without a target.
    usable : int or None
        Rows that contribute to a fit: with a known label and, if the data have weights or units, a weight and a unit.
        None without a target.
    bad_labels : tuple of (str, int)
        The most frequent unknown labels, or target values that are no numbers.
    bad_weights, without_unit : int or None
        Rows that would get weight 0 because of their weight, or because they have no unit; None if the data have no
        weights, or no units.
    large_ids : int
        Of the rows without a unit, those whose id is a number of 2⁵³ or more, or a text that spells one.
    undeclared : tuple of str
        Columns that the schema does not name.
    targets_below, targets_above : int
        Numeric targets that would be clipped to the lower and upper bound.
    targets_seen : (float, float) or None
        The least and the largest target within the bounds, if the bounds are far too wide for them.
    heavy_weights : int
        Weights that would be clipped to the schema's ``max_weight``.
    outside_targets : tuple of (str, int)
        The most frequent targets below and above the bounds.
    unread : int
        Rows of which neither the target nor any feature can be read.
    forms : tuple of str
        How values are read, of each type of which some with a digit could not be.
    """

    n_rows: int
    columns: tuple[ColumnCheck, ...]
    bad_targets: int | None
    usable: int | None = None
    bad_labels: Counted = ()
    bad_weights: int | None = None
    without_unit: int | None = None
    undeclared: tuple[str, ...] = ()
    targets_below: int = 0
    targets_above: int = 0
    targets_seen: tuple[float, float] | None = None
    heavy_weights: int = 0
    outside_targets: Counted = ()
    unread: int = 0
    forms: tuple[str, ...] = ()
    large_ids: int = 0

    def __str__(self) -> str:
        lines = [LOUD, "", f"rows: {self.n_rows}"]
        for column in self.columns:
            remarks = column.remarks()
            lines.append(f"  {one_line(column.name)}: {', '.join(remarks) if remarks else 'fits'}")
        lines.extend(self.forms)
        if self.undeclared:
            lines.append(
                f"not declared, and refused by a fit: {', '.join(map(repr, self.undeclared))}. List them in 'ignore'."
            )
        if self.bad_targets is not None:
            among = _among(self.bad_labels)
            lines.append(
                f"target: {self.bad_targets} unknown or missing (those rows get weight 0){among}"
            )
            outside = (("below", self.targets_below), ("above", self.targets_above))
            if told := [f"{count} {side}" for side, count in outside if count]:
                among = _among(self.outside_targets)
                lines[-1] += f", {', '.join(told)} (those count as the bound){among}"
            if self.targets_seen is not None:
                lines[-1] += f", {_too_wide(self.targets_seen)}"
        if self.bad_weights is not None:
            lines.append(f"weights: {self.bad_weights} rows have none above 0, or none that counts")
            if self.heavy_weights:
                lines[-1] += f", {self.heavy_weights} above max_weight (those count as it)"
        if self.without_unit is not None:
            lines.append(f"units: {self.without_unit} rows have none (those rows get weight 0)")
            if self.large_ids:
                lines[-1] += f", {self.large_ids} of them for {LARGE_IDS}"
        if self.unread:
            lines.append(f"rows: {self.unread} {UNREAD}")
        if self.usable == 0:
            lines.append(f"{NOTHING_USABLE} A fit would be charged, and learn nothing.")
        return "\n".join(lines)

    __repr__ = __str__  # at the end of a cell, too, the counts follow their warning


UNREAD = (
    "without any value that can be read; in a file of text, each line with another number of fields than the first one,"
    " or with an open quote, is one"
)
LARGE_IDS = (
    "an id that is a number of 2**53 or more, or a text that spells one, as 12e34567 does: keep ids as text, and put a"
    " letter before each"
)
OTHER_FORM = " in another Unicode form than declared"
NOTHING_USABLE = (
    "NO ROW IS USABLE: none has a known label, and a weight and a unit where it needs them."
)


def check(
    schema: Schema, X: Any, y: Any = None, sample_weight: Any = None, columns: Columns = None
) -> Diagnosis:
    """Count the values that a fit under ``schema`` would clip, treat as missing, or treat as "other".

    Parameters
    ----------
    schema : Schema
    X : any collection that ``fit`` takes
    y, sample_weight : collections, optional
        ``y=None`` means the column of X with the target's name, if there is one.
    columns : "position", list of str, optional
        How the columns of an array without names match the schema, as for ``fit``.

    Returns
    -------
    Diagnosis
        Counts to be printed; they are stored nowhere.

    Raises
    ------
    SchemaError, StructureError
        If the structure of ``X`` does not fit the schema, as in ``fit``; undeclared columns do not raise.

    Privacy
    -------
    None: exact counts. For the data owner alone, never part of a fit.
    """
    X = in_order(X, schema, columns, beside=True)  # noqa: N806
    X, undeclared = _declared_part(X, schema)  # noqa: N806
    inputs, has_target = _inputs(X, y, sample_weight, schema)
    source = source_of(inputs, schema)
    count = _Count(schema, has_target)
    if source.lazy:
        parts = [delayed(count, pure=False)(chunk.parts()) for chunk in source.chunks]
        found: Sequence[_Found] = _computed(parts)
    else:
        found = [count(chunk.parts()) for chunk in source.chunks]
    return _diagnosis(schema, found, has_target, source, undeclared)


@in_our_words(failed_to_load)
def _computed(parts: list[Any]) -> Any:
    return compute(*parts)


def _declared_part(X: Any, schema: Schema) -> tuple[Any, tuple[str, ...]]:
    """Return X without undeclared columns, and the names of these."""
    names = names_of(X)
    units = () if schema.unit_id is None else (schema.unit_id,)  # a column may have None for a name
    known = {*schema.names, *schema.ignore, schema.target.name, *units}
    strange = [] if names is None else [name for name in names if name not in known]
    if isinstance(X, xr.Dataset):
        check_beside(names or (), X.coords, schema)
    missing = [] if names is None else [name for name in schema.names if name not in names]
    if missing:
        others = f", not declared={listed(map(str, strange))}" if strange else ""
        leave_out = ", or list those to leave out in 'ignore'" if strange else ""
        raise SchemaError(
            f"columns do not match the schema: missing={listed(missing)}{others}. Rename or add columns{leave_out}."
        )
    if not strange:
        return X, ()
    told = tuple(map(str, strange))
    if isinstance(X, pd.DataFrame | dd.DataFrame):
        return X[[name for name in X.columns if name in known]], told
    if isinstance(X, xr.Dataset):
        return X.drop_vars(strange), told
    if isinstance(X, zarr.Group):
        kept = {name: array for name, array in arrays_of(X).items() if name in known}
        return as_dataset(kept), told
    places = [k for k, name in enumerate(names or ()) if name in known]
    return X[:, places], told


def _inputs(X: Any, y: Any, weight: Any, schema: Schema) -> tuple[Inputs, bool]:
    """Return the inputs of a fit, and whether they have a target; if not, a feature stands in for it."""
    names = names_of(X)
    if getattr(X, "ndim", 2) != 2:
        raise no_table(X)
    if y is not None or (names is not None and schema.target.name in names):
        return check_inputs(X, y, weight, schema, schema.unit_id), True
    if names is None:
        first = X[X.columns[0]] if isinstance(X, pd.DataFrame | dd.DataFrame) else X[:, 0]
    else:
        name = schema.names[0]
        first = X[:, names.index(name)] if isinstance(X, xr.DataArray) else X[name]
    return check_inputs(X, first, weight, schema, schema.unit_id), False


@dataclass(frozen=True, slots=True)
class _Counts:
    """The counts of one column, or of the target, in some chunks.

    Parameters
    ----------
    missing, below, above, fractional, unknown : int
        As in `ColumnCheck`; of a target, ``missing`` are the rows whose label is missing or unknown.
    values : Counter
        The most frequent of those that are unknown, or that could not be read.
    outside : Counter
        The most frequent of those below and above.
    low, high : float
        Least and largest number within the bounds; inf and -inf if there are none.
    """

    missing: int = 0
    below: int = 0
    above: int = 0
    fractional: int = 0
    unknown: int = 0
    values: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    low: float = np.inf
    high: float = -np.inf

    def __add__(self, other: "_Counts") -> "_Counts":
        return _Counts(
            missing=self.missing + other.missing,
            below=self.below + other.below,
            above=self.above + other.above,
            fractional=self.fractional + other.fractional,
            unknown=self.unknown + other.unknown,
            values=self.values + other.values,
            outside=self.outside + other.outside,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
        )


class _Found(NamedTuple):
    """The counts of one chunk: of each column, of the target, and of rows, as in `Diagnosis`."""

    columns: list[_Counts]
    target: _Counts
    n_rows: int
    usable: int
    bad_weights: int = 0
    heavy_weights: int = 0
    without_unit: int = 0
    large_ids: int = 0
    unread: int = 0


@dataclass(frozen=True)
class _Count:
    """Count one chunk, using the codes that the encoder itself gives."""

    schema: Schema
    has_target: bool

    @np.errstate(all="ignore")
    def __call__(self, parts: Sequence[Any]) -> _Found:
        schema, rows = self.schema, line_up(*parts)
        columns = split_columns(rows.x, schema)
        bins = _identity_bins(schema)
        codes = encode(rows.x, schema, bins)
        code_of = dict(zip(schema.sources, codes, strict=True))
        counts = [
            self._column(name, column, code_of[name])
            for name, column in zip(schema.names, columns, strict=True)
        ]
        good = np.ones(n_rows(rows.x), bool)
        target = _Counts()
        told: dict[str, int] = {}
        if self.has_target:
            read, valid = read_target(rows.y, schema)
            target = self._target(read, valid, one_column(rows.y))
            good &= valid
            unread = ~valid
            for code, own in zip(codes, bins, strict=True):
                unread &= code == own.missing_bin
            told["unread"] = int(np.sum(unread))
        if rows.weight is not None:
            most = schema.max_weight
            heavy = encode_weight(rows.weight, most, weight_bits_for(most)) > 0
            given = numbers(one_column(rows.weight)).astype(np.float64)
            told |= {"bad_weights": int(np.sum(~heavy)), "heavy_weights": int(np.sum(given > most))}
            good &= heavy
        if rows.unit is not None:
            names, place = distinct_names(rows.unit)
            known = np.array([name is not None for name in names], bool)[place]
            large = np.abs(numbers(one_column(rows.unit)).astype(np.float64)) >= EXACT
            told |= {
                "without_unit": int(np.sum(~known)),
                "large_ids": int(np.sum(large & ~known)),
            }
            good &= known
        return _Found(counts, target, len(good), int(np.sum(good)), **told)

    def _column(self, name: str, column: Any, code: NDArray[np.uint8]) -> _Counts:
        feature = self.schema.features[name]
        if isinstance(feature, Datetime):
            return _of_numbers(seconds(column), *bounds_of(feature), column)
        if not isinstance(feature, Numeric):
            own = self.schema.encoded[name]
            assert isinstance(own, Categorical)
            other, missing = code == len(own.categories), code == len(own.categories) + 1
            return _Counts(
                missing=int(np.sum(missing)),
                unknown=int(np.sum(other)),
                values=_most_frequent(
                    column,
                    other,
                    dict(feature.mapping) if isinstance(feature, Grouped) else own.categories,
                ),
            )
        read = numbers(column).astype(np.float64)
        fractional = np.sum(np.isfinite(read) & (read != np.floor(read))) if feature.integer else 0
        counts = _of_numbers(read, feature.low, feature.high, column)
        return replace(counts, fractional=int(fractional))

    def _target(self, read: NDArray[Any], valid: NDArray[np.bool_], given: NDArray[Any]) -> _Counts:
        target = self.schema.target
        if target.type != "numeric":
            return _Counts(
                missing=int(np.sum(~valid)), values=_most_frequent(given, ~valid, target.classes)
            )
        return _of_numbers(read, target.low, target.high, given)


def _of_numbers(read: NDArray[np.float64], low: float, high: float, column: Any) -> _Counts:
    """Count the numbers of a column that are missing, and below and above its bounds; find the ends of the others."""
    lost, inside = np.isnan(read), read[(read >= low) & (read <= high)]
    return _Counts(
        missing=int(np.sum(lost)),
        below=int(np.sum(read < low)),
        above=int(np.sum(read > high)),
        values=_most_frequent(column, lost),
        outside=_most_frequent(column, (read < low) | (read > high)),
        low=float(inside.min(initial=np.inf)),
        high=float(inside.max(initial=-np.inf)),
    )


def _far_within(low: float, high: float, bounds: Numeric | Target) -> tuple[float, float] | None:
    """Return the ends of the numbers within the bounds, if the bounds are far too wide for them."""
    wide = low <= high and bounds.high / 2 - bounds.low / 2 >= WIDE * (high / 2 - low / 2)
    return (low, high) if wide else None


def _too_wide(seen: tuple[float, float]) -> str:
    return (
        f"bounds far too wide: all numbers within them are in [{exact(seen[0])}, {exact(seen[1])}]"
    )


def _most_frequent(
    column: Any, chosen: NDArray[np.bool_], declared: Iterable[Any] = ()
) -> Counter[str]:
    """Count the values of some rows, as text, without missing values; say which look like a declared one.

    These have the same characters composed otherwise, such as é of one code point and of two.
    """
    alike = {_composed(value) for value in declared if isinstance(value, str)}
    # not by a series' own selection, which pandas lacks for numbers of another byte order
    given = objects(getattr(column, "array", column)[np.flatnonzero(chosen)])
    forms = cells(given)
    told = (
        _shown(value) + OTHER_FORM * (isinstance(form, str) and _composed(form) in alike)
        if form is not NO_FORM
        else f"<{type(value).__name__}>"  # may be too large
        for value, form in zip(given, forms, strict=True)
        if form is not None
    )
    return Counter(dict(Counter(told).most_common(MOST_KEPT)))


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _shown(value: Any) -> str:
    try:
        # a date of nanoseconds is Python's number of them
        told = isinstance(value, str | np.datetime64)
        text = repr(str(value) if told else python_scalar(value))
    except Exception:  # an object's own conversion to text may fail
        text = f"<{type(value).__name__}>"
    return one_line(text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…")


def _among(values: Counted) -> str:
    told = ", ".join(f"{value} ({count} times)" for value, count in values)
    return f", among them {told}" if told else ""


def _named(values: Counter[str]) -> Counted:
    """Return the values that are shown."""
    return tuple(values.most_common(MOST_NAMED))


def _diagnosis(
    schema: Schema,
    found: Sequence[_Found],
    has_target: bool,
    source: Source,
    undeclared: tuple[str, ...],
) -> Diagnosis:
    """Add up the counts of all chunks."""
    columns = []
    for j, (name, feature) in enumerate(schema.features.items()):
        own = reduce(add, (one.columns[j] for one in found))
        seen = _far_within(own.low, own.high, feature) if isinstance(feature, Numeric) else None
        columns.append(
            ColumnCheck(
                name,
                own.missing,
                own.below,
                own.above,
                own.fractional,
                own.unknown,
                _named(own.values),
                seen,
                _named(own.outside),
            )
        )
    target = reduce(add, (one.target for one in found))
    return Diagnosis(
        n_rows=sum(one.n_rows for one in found),
        columns=tuple(columns),
        bad_targets=target.missing if has_target else None,
        usable=sum(one.usable for one in found) if has_target else None,
        bad_labels=_named(target.values),
        bad_weights=sum(one.bad_weights for one in found) if source.weighted else None,
        without_unit=sum(one.without_unit for one in found) if source.units else None,
        large_ids=sum(one.large_ids for one in found),
        undeclared=undeclared,
        targets_below=target.below,
        targets_above=target.above,
        targets_seen=_far_within(target.low, target.high, schema.target),
        heavy_weights=sum(one.heavy_weights for one in found),
        outside_targets=_named(target.outside),
        unread=sum(one.unread for one in found),
        forms=tuple(
            form
            for kind, form in FORMS.items()
            if any(
                isinstance(feature, kind)
                and any(char.isdigit() for value, _ in own.values for char in value)
                for feature, own in zip(schema.features.values(), columns, strict=True)
            )
        ),
    )


def _identity_bins(schema: Schema) -> tuple[FeatureBins, ...]:
    """Return bins whose codes are the category, "other" or missing, so that the encoder does the classification."""
    bins = []
    for feature in schema.encoded.values():
        if isinstance(feature, Categorical):
            size = len(feature.categories) + 2
            bins.append(FeatureBins(None, np.arange(size, dtype=np.uint8), size))
        else:
            bins.append(FeatureBins(np.empty(0), None, 2))
    return tuple(bins)
