"""What reads rows outside the guarantee: the data owner's check of a schema, and ``schema="infer"``.

Nothing here is private. A fit under a declared schema never calls this module.
"""
# ruff: noqa: N803 - X is scikit-learn's name

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import xarray as xr
import zarr
from dask.base import compute
from dask.delayed import delayed
from numpy.typing import NDArray

from dpgb_dask import encode
from dpgb_dask.columns import default_names
from dpgb_dask.contracts.model import FeatureBins
from dpgb_dask.contracts.schema import Categorical, Numeric, Schema
from dpgb_dask.errors import StructureError
from dpgb_dask.stored import from_zarr
from dpgb_dask.values import NO_FORM, cells

LOUD = (
    "THIS IS NOT PRIVATE. It counts rows of the data exactly and is for the data owner's eyes only: do not publish it,"
    " log it or paste it into a report. It is printed and kept nowhere."
)


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
        Values that are no whole numbers in a column declared integer.
    unknown : int
        Values that are in no declared category and would count as "other".
    """

    name: str
    missing: int = 0
    below: int = 0
    above: int = 0
    fractional: int = 0
    unknown: int = 0

    def remarks(self) -> list[str]:
        """Return what is noteworthy, in words."""
        kinds = ("missing", "below", "above", "fractional", "unknown")
        return [f"{getattr(self, kind)} {kind}" for kind in kinds if getattr(self, kind)]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """How data fit a schema, counted exactly. Not private.

    Parameters
    ----------
    n_rows : int
    columns : tuple of ColumnCheck
    bad_targets : int or None
        Rows that would get weight 0: unknown labels or missing targets; None without a target.
    """

    n_rows: int
    columns: tuple[ColumnCheck, ...]
    bad_targets: int | None

    def __str__(self) -> str:
        lines = [LOUD, "", f"rows: {self.n_rows}"]
        for column in self.columns:
            remarks = column.remarks()
            lines.append(f"  {column.name}: {', '.join(remarks) if remarks else 'fits'}")
        if self.bad_targets is not None:
            lines.append(f"target: {self.bad_targets} unknown or missing (those rows get weight 0)")
        return "\n".join(lines)


def check(schema: Schema, X: Any, y: Any = None) -> Diagnosis:
    """Count what a fit under ``schema`` would clip, call missing, or call "other".

    Parameters
    ----------
    schema : Schema
    X : any collection that ``fit`` takes
    y : collection, optional

    Returns
    -------
    Diagnosis
        To be printed; it is stored nowhere.

    Raises
    ------
    SchemaError, StructureError
        If the structure of ``X`` does not fit the schema, as in ``fit``.

    Privacy
    -------
    None: exact counts. For the data owner alone, never part of a fit.
    """
    counts = _on_parts(X, _CountColumns(schema))
    total = np.sum(counts, axis=0)
    columns = []
    for name, row in zip(schema.names, total[:-1], strict=True):
        columns.append(ColumnCheck(name, *(int(value) for value in row)))
    bad = None if y is None else int(sum(_on_parts(y, _CountTargets(schema))))
    return Diagnosis(int(total[-1, 0]), tuple(columns), bad)


@dataclass(frozen=True)
class _CountColumns:
    """Return (n_features + 1, 5) int64 counts of a block; the last line holds the rows."""

    schema: Schema

    def __call__(self, block: Any) -> NDArray[np.int64]:
        schema = self.schema
        encode.check_columns(block, schema)
        codes = encode.encode(block, schema, _identity_bins(schema))
        out = np.zeros((schema.n_features + 1, 5), np.int64)
        for j, (name, feature) in enumerate(schema.features.items()):
            if isinstance(feature, Categorical):
                k = len(feature.categories)
                out[j, 0], out[j, 4] = np.sum(codes[j] == k + 1), np.sum(codes[j] == k)
                continue
            out[j, 0] = np.sum(codes[j] == 1)
            values = _numbers(block[name] if isinstance(block, pd.DataFrame) else block[:, j])
            out[j, 1], out[j, 2] = np.sum(values < feature.low), np.sum(values > feature.high)
            if feature.integer:
                finite = values[np.isfinite(values)]
                out[j, 3] = np.sum(finite != np.floor(finite))
        out[-1, 0] = len(block)
        return out


@dataclass(frozen=True)
class _CountTargets:
    """Return how many targets of a block would get weight 0."""

    schema: Schema

    def __call__(self, block: Any) -> int:
        _, valid = encode.encode_target(block, self.schema)
        return int(np.sum(~np.asarray(valid, bool)))


def _identity_bins(schema: Schema) -> tuple[FeatureBins, ...]:
    """Return bins whose codes are the category itself, "other" or missing, so that the encoder itself decides."""
    bins = []
    for feature in schema.features.values():
        if isinstance(feature, Categorical):
            size = len(feature.categories) + 2
            bins.append(FeatureBins(None, np.arange(size, dtype=np.uint8), size))
        else:
            bins.append(FeatureBins(np.empty(0), None, 2))
    return tuple(bins)


def _numbers(column: Any) -> NDArray[np.float64]:
    """Return a column as the fit reads it."""
    given = column if hasattr(column, "dtype") else np.asarray(column)
    with np.errstate(all="ignore"):
        return encode.numbers(encode.one_column(given)).astype(np.float64)


def _partitions(data: Any) -> list[Any]:
    parts: list[Any] = data.to_delayed()
    return parts


def _on_parts(data: Any, function: Callable[[Any], Any]) -> list[Any]:
    """Run a function over the blocks of a collection and return the list of its results."""
    if isinstance(data, zarr.Array):
        data = from_zarr(data)
    if isinstance(data, xr.DataArray):
        data = data.data
    if isinstance(data, da.Array):
        data = data.rechunk({1: -1}) if data.ndim == 2 and data.numblocks[1] > 1 else data
        return list(compute(*(delayed(function)(p) for p in data.to_delayed().ravel())))
    if isinstance(data, dd.DataFrame | dd.Series):
        return list(compute(*(delayed(function)(part) for part in _partitions(data))))
    return [function(data if isinstance(data, pd.DataFrame | pd.Series) else np.asarray(data))]


@dataclass(frozen=True, slots=True)
class _Facts:
    """Facts of one column of one block; None bounds for no finite value."""

    low: float | None
    high: float | None
    integer: bool
    categories: frozenset[Any] | None


def _column_facts(column: Any) -> _Facts:
    series = pd.Series(column)
    if not (
        pd.api.types.is_numeric_dtype(series.dtype) or pd.api.types.is_bool_dtype(series.dtype)
    ):
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(series.cat.categories.dtype)
        return _Facts(None, None, False, frozenset(series.dropna().unique().tolist()))
    values = np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    values = values[np.isfinite(values)]
    if not len(values):
        return _Facts(None, None, True, None)
    return _Facts(
        float(values.min()), float(values.max()), bool(np.all(values == np.floor(values))), None
    )


def _block_facts(block: Any) -> list[_Facts]:
    if isinstance(block, pd.DataFrame):
        return [_column_facts(block.iloc[:, j]) for j in range(block.shape[1])]
    return [_column_facts(block[:, j]) for j in range(block.shape[1])]


def _distinct(labels: Sequence[Any]) -> list[Any]:
    """Return one label of each normal form: a fit reads the others as that one."""
    first: dict[Any, Any] = {}
    for label, form in zip(labels, cells(labels), strict=True):
        if form is not None and form is not NO_FORM:
            first.setdefault(form, label)
    return list(first.values())


def _merged(parts: list[_Facts]) -> Numeric | Categorical:
    if any(part.categories for part in parts):
        labels = frozenset().union(*(part.categories or () for part in parts))
        ordered = sorted(labels, key=lambda label: (str(type(label)), label))
        return Categorical(tuple(_distinct(ordered)))
    lows = [part.low for part in parts if part.low is not None]
    highs = [part.high for part in parts if part.high is not None]
    return Numeric(
        min(lows, default=0.0), max(highs, default=0.0), all(part.integer for part in parts)
    )


def infer(X: Any, y: Any, *, classification: bool, names: Sequence[str] | None = None) -> Schema:
    """Read a schema from the data: bounds, categories, classes, target bounds.

    Parameters
    ----------
    X : collection with named columns, or (n_rows, n_features) array
    y : collection
    classification : bool
    names : sequence of str, optional
        Names of the features; None for those of ``X``, or x0, x1, …

    Returns
    -------
    Schema
        With ``private=False``.

    Raises
    ------
    StructureError
        If only one class is present.

    Privacy
    -------
    None: it leaks extremes, categories and classes. For public data and for scikit-learn's checks.
    """
    facts = _on_parts(X, _block_facts)
    if names is None:
        names = X.columns if hasattr(X, "columns") else default_names(X.shape[1])
    names = [str(name) for name in names]
    features = {name: _merged([part[j] for part in facts]) for j, name in enumerate(names)}
    target = "target"
    while target in features:
        target += "_"
    if classification:
        classes = _distinct(np.unique(np.concatenate(_on_parts(y, _labels))).tolist())
        if len(classes) < 2:
            raise StructureError("y holds one class only. A classifier needs at least two classes.")
        return Schema(features, classes, target=target, private=False)
    values = np.concatenate(_on_parts(y, _numbers))
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    if low == high:  # a constant target still needs a range to be scaled by
        low, high = low - 1.0, high + 1.0
    return Schema(features, target_bounds=(low, high), target=target, private=False)


def _labels(column: Any) -> NDArray[Any]:
    return np.unique(np.asarray(pd.Series(np.asarray(column)).dropna()))
