"""``schema="infer"``: public facts read from the data, for public data and for scikit-learn's own checks.

Nothing here is private. A fit under a declared schema never calls this module.
"""
# ruff: noqa: N803, N806 - X is scikit-learn's name

import datetime
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import xarray as xr
import zarr
from dask.base import is_dask_collection
from dask.delayed import delayed
from numpy.typing import NDArray
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_X_y, validate_data

from dpgb_dask.clients import compute
from dpgb_dask.contracts.features import MAX_CATEGORIES, Categorical, Datetime, Numeric
from dpgb_dask.contracts.schema import MAX_WEIGHT, Schema
from dpgb_dask.encoding.columns import numbers, one_column
from dpgb_dask.encoding.kinds import from_arrow, refuse_other_chunks, unknown_kind
from dpgb_dask.encoding.structure import is_numbered
from dpgb_dask.encoding.times import DAY, EPOCH, seconds
from dpgb_dask.errors import (
    PrivacyLeakWarning,
    StructureError,
    UnsupportedCollectionError,
    level_outside,
)
from dpgb_dask.matching import default_names
from dpgb_dask.parameters import no_target
from dpgb_dask.private.reading.ingest import native_column
from dpgb_dask.scalars import python_scalar
from dpgb_dask.values import NO_FORM, as_text, cells
from dpgb_dask.zarr_arrays import lazily


class Inferred(NamedTuple):
    """The inputs of a fit, and the schema that was read from them.

    Parameters
    ----------
    X, y, weight : collections
        If all weights of rows in memory are whole numbers, rows were repeated instead.
    schema : Schema
        With ``private=False``.
    max_weight : int or None
        The largest weight, rounded up; None if there is none.
    names : array of str, or None
        Names of the features that scikit-learn's checks found, as in its ``feature_names_in_``; None without.
    """

    X: Any
    y: Any
    weight: Any
    schema: Schema
    max_weight: int | None
    names: Sequence[str] | None


def read(
    estimator: Any, X: Any, y: Any, sample_weight: Any, *, classification: bool, silent: bool
) -> Inferred:
    """Read the schema from the data, after scikit-learn's own checks.

    Parameters
    ----------
    estimator : estimator
        It stays as it is: what scikit-learn's checks set of it is returned, to be taken over by a fit that succeeds.
    X, y, sample_weight : collections
    classification : bool
    silent : bool
        Whether to suppress the warning, as in tests with seeded noise.

    Warns
    -----
    PrivacyLeakWarning
        Unless ``silent``.

    Privacy
    -------
    None: it leaks extremes, categories and classes.
    """
    if not silent:
        message = "schema='infer' reads bounds, categories and classes from the data: the model is not private."
        warnings.warn(message, PrivacyLeakWarning, stacklevel=level_outside())
    if y is None:
        raise no_target(type(estimator).__name__)
    estimator = copy(estimator)
    X, y = _as_checked(X, "X"), _as_checked(y, "y")
    weight = None if sample_weight is None else _as_checked(sample_weight, "sample_weight")
    most = None
    if is_dask_collection(X) or is_dask_collection(y):
        _check_table(X)
        validate_data(estimator, _head(X), skip_check_array=True)
        y = _one_column(y)
        schema = infer(X, y, classification=classification)
        if weight is not None:
            most = _largest_weight(weight)
        return Inferred(X, y, weight, schema, most, _names_in(estimator))
    X, y = _validated(estimator, X, y, classification=classification)
    if weight is not None:
        weight = np.asarray(compute(weight)[0], np.float64)
        if weight.ndim != 1 or len(weight) != len(X):
            raise StructureError("sample_weight must have one number per row.")
        most = _largest_weight(weight)
        rows, weight = _repetition(weight)
        X = X.iloc[rows] if isinstance(X, pd.DataFrame) else X[rows]
        y = y[rows]
        most = None if weight is None else most
    names = _names_in(estimator)
    schema = infer(X, y, classification=classification, names=names)
    return Inferred(X, y, weight, schema, most, names)


def _names_in(estimator: Any) -> Sequence[str] | None:
    """Return the names that scikit-learn's checks set, if X has names."""
    names: Sequence[str] | None = getattr(estimator, "feature_names_in_", None)
    return names


def checked_rows(estimator: Any, X: Any) -> Any:
    """Check rows to predict with scikit-learn's own checks, and return them."""
    X = _as_checked(X, "X")
    if is_dask_collection(X) or (isinstance(X, pd.DataFrame) and _has_text(X)):
        _check_table(X)
        validate_data(estimator, _head(X), reset=False, skip_check_array=True)
        return X
    return validate_data(estimator, X, reset=False, ensure_all_finite="allow-nan")


def _as_checked(given: Any, name: str) -> Any:
    """Return what scikit-learn's checks take: no Arrow table, and no mask, which they would drop.

    An array of xarray's or Zarr's becomes one of Dask's or NumPy's, whose columns have no names.
    """
    given = from_arrow(given)
    if isinstance(given, xr.Dataset | zarr.Group):
        raise UnsupportedCollectionError(
            f"{name} is named arrays of xarray or Zarr, and schema='infer' reads a table. Declare a schema; or make a"
            " table of a data set: to_dataframe(), to_dask_dataframe()."
        )
    if hasattr(type(given), "toarray"):  # sparse, which they refuse
        return given
    readable = isinstance(given, Sequence) or hasattr(type(given), "__array__")
    if not readable or isinstance(given, str | bytes | Mapping | xr.DataTree):
        raise unknown_kind(given, name)
    given = lazily(given)
    given = given.data if isinstance(given, xr.DataArray) else given
    refuse_other_chunks(given, name)
    if not isinstance(given, np.ma.MaskedArray):
        return given
    holder = {"b": float, "i": float, "u": float, "f": given.dtype, "c": given.dtype}
    return np.ma.filled(given.astype(holder.get(given.dtype.kind, object)), np.nan)


def _check_table(X: Any) -> None:
    if X.ndim != 2:
        raise StructureError(
            f"X has ndim={X.ndim}, and must be a table with 2 axes: rows and features. Reshape your data."
        )
    dtypes = X.dtypes if hasattr(X, "dtypes") else [X.dtype]
    if any(getattr(dtype, "kind", "") == "c" for dtype in dtypes):
        raise StructureError(
            "Complex data not supported: X holds complex numbers. Make columns of their parts."
        )


def _head(X: Any) -> Any:
    """Return a table whose names scikit-learn finds: of a Dask DataFrame none of its rows."""
    return X._meta if isinstance(X, dd.DataFrame) else X  # noqa: SLF001 - dask has no public name for it


def _one_column(y: Any) -> Any:
    """Return a target as one column; of a table of one column with a warning, as scikit-learn does."""
    if getattr(y, "ndim", 1) == 1:
        return y
    column = native_column(y, "y")
    warnings.warn(
        "A column-vector y was passed when a 1d array was expected. Give that column alone.",
        DataConversionWarning,
        stacklevel=level_outside(),
    )
    return column


def _validated(estimator: Any, X: Any, y: Any, *, classification: bool) -> tuple[Any, NDArray[Any]]:
    """Run scikit-learn's checks on in-memory input."""
    if np.any(pd.isna(y)):
        raise _no_target_in_rows()
    numeric = not classification
    if isinstance(X, pd.DataFrame) and _has_text(X):
        validate_data(estimator, X, skip_check_array=True)
        for j in np.flatnonzero([not _is_text(dtype) for dtype in X.dtypes]).tolist():
            column = X.iloc[:, j]
            is_complex = getattr(column.dtype, "kind", "") == "c"
            values = column.to_numpy() if is_complex else _numbers(column)
            check_array(values, ensure_2d=False, ensure_all_finite="allow-nan", input_name="X")
        _, y = check_X_y(np.zeros((len(X), 1)), y, y_numeric=numeric, estimator=estimator)
    else:
        X, y = validate_data(estimator, X, y, ensure_all_finite="allow-nan", y_numeric=numeric)
    return X, y


def _no_target_in_rows() -> StructureError:
    return StructureError(
        "Input y contains NaN: rows without a target. Leave them out, or declare a schema, with which they count"
        " nothing."
    )


def _infinite_target() -> StructureError:
    return StructureError("Input y contains infinity. Leave such rows out, or declare a schema.")


def _has_text(frame: pd.DataFrame) -> bool:
    """Return whether a frame has columns that scikit-learn would not convert to numbers."""
    return any(map(_is_text, frame.dtypes))


def _is_text(dtype: Any) -> bool:
    return not (pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype))


def _largest_weight(sample_weight: Any) -> int:
    """Check sample weights, and return the largest, rounded up."""
    ranges = [part for part in _on_parts(sample_weight, _range) if part is not None]
    if not ranges:
        raise StructureError("sample_weight must have one number per row.")
    low, high = np.min(ranges), np.max(ranges)  # NaN if one is
    if not low >= 0 or not np.isfinite(high):
        raise StructureError("sample_weight must be finite and not negative.")
    if high > MAX_WEIGHT:
        raise StructureError(
            f"sample_weight must be at most {MAX_WEIGHT}. Divide all weights by a constant."
        )
    if not high:
        raise StructureError("Sample weights must contain at least one non-zero number.")
    return int(np.ceil(high))


def _range(column: Any) -> tuple[float, float] | None:
    """Return the least and the largest value of a block, NaN if one is; None if there is no row."""
    values = np.asarray(column, np.float64)
    return (float(values.min()), float(values.max())) if values.size else None


def _repetition(weight: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.float64] | None]:
    """Return the rows that weights stand for: whole weights repeat rows, fractional weights are kept."""
    rows = np.flatnonzero(weight)
    if np.all(weight == np.floor(weight)):
        return np.repeat(rows, weight[rows].astype(np.intp)), None
    return rows, weight[rows]


def _numbers(column: Any) -> NDArray[np.float64]:
    """Return a column as numbers, as the fit reads it."""
    given = column if hasattr(column, "dtype") else np.asarray(column)
    with np.errstate(all="ignore"):
        return numbers(one_column(given)).astype(np.float64)


def _partitions(data: Any) -> list[Any]:
    parts: list[Any] = data.to_delayed()
    return parts


def _on_parts(data: Any, function: Callable[[Any], Any]) -> list[Any]:
    """Run a function over the blocks of a collection and return the list of its results."""
    if isinstance(data, da.Array):
        data = data.rechunk({1: -1}) if data.ndim == 2 and data.numblocks[1] > 1 else data
        return list(compute(*(delayed(function)(p) for p in data.to_delayed().ravel())))
    if isinstance(data, dd.DataFrame | dd.Series):
        return list(compute(*(delayed(function)(part) for part in _partitions(data))))
    return [function(data if isinstance(data, pd.DataFrame | pd.Series) else np.asarray(data))]


@dataclass(frozen=True, slots=True)
class _Facts:
    """Facts about one column of one block; the bounds are None if it has no value, or no date."""

    low: float | None
    high: float | None
    integer: bool
    categories: frozenset[Any] | None
    dated: bool = False  # the bounds are then days since 1970
    numbers: bool = True  # whether all categories are, such as decimal ones; the bounds are theirs
    infinite: bool = False  # whether a number is
    readable: bool = True  # whether all of them have a normal form

    @property
    def kind(self) -> str | None:
        """What the block holds; None if it tells nothing, as objects may be numbers or text."""
        if self.categories is not None:
            return None if self.numbers else "text"
        return None if self.low is None else "date" if self.dated else "number"


def _column_facts(column: Any) -> _Facts:
    series = pd.Series(column)
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        days = seconds(series) // DAY
        days = days[np.isfinite(days)]
        low, high = (days.min(), days.max()) if len(days) else (None, None)
        return _Facts(low, high, True, None, dated=True)
    if _is_text(series.dtype):
        return _label_facts(series)
    return _number_facts(np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan)))


def _number_facts(values: NDArray[np.float64]) -> _Facts:
    values = values[~np.isnan(values)]
    if not len(values):
        return _Facts(None, None, True, None)
    low, high = float(values.min()), float(values.max())
    integer = bool(np.all(values == np.floor(values)))
    return _Facts(low, high, integer, None, infinite=bool(np.isinf([low, high]).any()))


def _label_facts(series: pd.Series) -> _Facts:
    """Return the facts of a column that has no type of numbers, though its objects may be some."""
    declared = isinstance(series.dtype, pd.CategoricalDtype)
    given = series.astype(series.cat.categories.dtype) if declared else series
    try:
        values = given.dropna().unique().tolist()
    except TypeError:  # such as for lists
        values = given.tolist()
    held = [pair for pair in zip(values, cells(values), strict=True) if pair[1] is not None]
    labels = frozenset(
        value if pd.api.types.is_hashable(value) else form
        for value, form in held
        if form is not NO_FORM
    )
    numeric = not declared and all(
        isinstance(form, float) and as_text(value) is None for value, form in held
    )
    found = _number_facts(np.array([form for _, form in held], np.float64)) if numeric else None
    facts = found or _Facts(None, None, False, None)
    readable = all(form is not NO_FORM for _, form in held)
    return replace(facts, categories=labels, numbers=numeric, readable=readable)


def _block_facts(block: Any) -> list[_Facts]:
    if isinstance(block, pd.DataFrame):
        return [_column_facts(block.iloc[:, j]) for j in range(block.shape[1])]
    return [_column_facts(block[:, j]) for j in range(block.shape[1])]


def _distinct(labels: Sequence[Any]) -> list[Any]:
    """Return one label of each normal form; a fit reads all labels of the same form as that one.

    What a schema cannot declare, such as dates and infinite numbers, is its text, which has the same form.
    """
    first: dict[Any, Any] = {}
    for label, form in zip(map(python_scalar, labels), cells(labels), strict=True):
        if form is not None and form is not NO_FORM:
            held = isinstance(label, str | int) or (isinstance(label, float) and np.isfinite(label))
            first.setdefault(form, label if held else as_text(label) or str(label))
    return list(first.values())


def _merged(name: str, parts: list[_Facts]) -> Numeric | Categorical | Datetime:
    if not all(part.readable for part in parts):
        raise StructureError(
            f"column {name!r} holds values, such as lists, that are neither numbers, texts nor dates. Make columns of"
            " their parts, or leave it out."
        )
    if len({part.kind for part in parts} - {None}) > 1:
        raise StructureError(
            f"column {name!r} holds text, numbers or dates, by partition. Make them all of one type, such as text, or"
            " declare a schema."
        )
    if any(part.categories and not part.numbers for part in parts):
        labels = frozenset().union(*(part.categories or () for part in parts))
        ordered = sorted(labels, key=lambda label: (str(type(label)), label))
        categories = _distinct(ordered)
        if len(categories) > MAX_CATEGORIES:
            raise StructureError(
                f"column {name!r} has {len(categories)} different values that are no numbers, and a feature at most"
                f" {MAX_CATEGORIES}. Leave it out; or declare a schema: with `Grouped` or `Hashed` for it, with"
                " `Datetime` if they are dates, or with its bounds if they are numbers written as text."
            )
        return Categorical(tuple(categories))
    if any(part.infinite for part in parts):
        raise StructureError(
            f"Input X contains infinity, in column {name!r}. Make such values missing, or declare a schema, whose"
            " bounds clip them."
        )
    lows = [part.low for part in parts if part.low is not None]
    highs = [part.high for part in parts if part.high is not None]
    if any(part.dated for part in parts):
        return Datetime(_day(min(lows, default=0)), _day(max(highs, default=0)))
    return Numeric(
        min(lows, default=0.0), max(highs, default=0.0), all(part.integer for part in parts)
    )


def _day(number: float) -> datetime.date:
    """Return the day that is so many days after 1970 began, or the nearest that Python's calendar has."""
    ordinal = int(number) + EPOCH
    return datetime.date.fromordinal(min(max(ordinal, 1), datetime.date.max.toordinal()))


def infer(X: Any, y: Any, *, classification: bool, names: Sequence[str] | None = None) -> Schema:
    """Read a schema from the data: bounds, categories, classes, target bounds.

    Parameters
    ----------
    X : collection with named columns, or (n_rows, n_features) array
    y : collection
    classification : bool
    names : sequence of str, optional
        Names of the features; None for the names in ``X``, or x0, x1, …

    Returns
    -------
    Schema
        With ``private=False``.

    Raises
    ------
    StructureError
        If only one class is present, or a numeric target has no number; if a column is of no one type, or a value of it
        or of the target is one that scikit-learn refuses, or would be read as another.

    Privacy
    -------
    None: it leaks extremes, categories and classes. For public data and for scikit-learn's checks.
    """
    facts = _on_parts(X, _block_facts)
    if names is None:
        named = hasattr(X, "columns") and not is_numbered(X.columns)
        names = X.columns if named else default_names(X.shape[1])
    names = [str(name) for name in names]
    features = {name: _merged(name, [part[j] for part in facts]) for j, name in enumerate(names)}
    target = "target"
    while target in features:
        target += "_"
    if classification:
        classes = _classes(_on_parts(y, _labels))
        if len(classes) < 2:
            raise StructureError("y holds one class only. A classifier needs at least two classes.")
        return Schema(features, classes, target=target, private=False)
    values = np.concatenate(_on_parts(y, _numbers))
    missing = np.isnan(values)
    if missing.all():
        raise StructureError("y holds no number. A regressor needs numbers to predict.")
    if missing.any():
        raise _no_target_in_rows()
    if np.isinf(values).any():
        raise _infinite_target()
    low, high = float(values.min()), float(values.max())
    if low == high:  # a constant target also needs a range to be scaled by
        low, high = low - 1.0, high + 1.0
    return Schema(features, target_bounds=(low, high), target=target, private=False)


def _labels(column: Any) -> NDArray[Any]:
    """Return the labels of a block, each once."""
    labels = pd.Series(np.asarray(column))
    if labels.isna().any():
        raise _no_target_in_rows()
    return np.asarray(labels.drop_duplicates())


def _classes(parts: list[NDArray[Any]]) -> list[Any]:
    """Return the labels of all blocks in order, if they are labels by scikit-learn's rules and read as they are."""
    labels = np.concatenate(parts)
    if labels.dtype == object:
        if len({isinstance(label, str) for label in labels}) > 1:
            raise StructureError(
                "y holds labels of several types, such as text and numbers. Make them all text, or declare a schema."
            )
        labels = np.array(labels.tolist())
    if labels.dtype.kind == "f" and np.isinf(labels).any():
        raise _infinite_target()
    check_classification_targets(labels)
    classes = list(map(python_scalar, np.unique(labels).tolist()))
    if labels.dtype.kind in "mM" or not all(
        isinstance(c, str | bytes | int | float) for c in classes
    ):
        raise StructureError(
            "y holds labels that are neither text nor numbers, such as dates. Make them text, or declare a schema."
        )
    first: dict[Any, Any] = {}
    for label, cell in zip(classes, cells(classes), strict=True):
        # a class may be called "NA" or "None", but NumPy writes a missing number among texts as "nan"
        form = as_text(label) if cell is None else cell
        if form == "nan":
            raise StructureError(
                f"y holds the label {label!r}, which is read as a missing one. Leave such rows out, or rename it."
            )
        if first.setdefault(form, label) is not label:
            raise StructureError(
                f"y holds the labels {first[form]!r} and {label!r}, which are read alike. Rename one of them."
            )
    return classes
