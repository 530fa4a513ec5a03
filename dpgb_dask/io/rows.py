"""Conversion of rows to the form in which a data set stores them, and back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpgb_dask.contracts.features import (
    Bool,
    Categorical,
    Datetime,
    Feature,
    Grouped,
    Hashed,
    Numeric,
)
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.columns import (
    category_cells,
    feature_cells,
    n_rows,
    numbers,
    one_column,
    split_columns,
)
from dpgb_dask.encoding.times import seconds
from dpgb_dask.errors import StructureError
from dpgb_dask.io.layout import Layout, is_single, list_of
from dpgb_dask.names import WEIGHT
from dpgb_dask.private.reading.rows import Rows
from dpgb_dask.private.reading.units import distinct_names
from dpgb_dask.values import UNREADABLE, ExactId, is_missing


def store_form(rows: Rows, layout: Layout) -> dict[str, NDArray[Any]]:
    """Return rows as they are stored.

    Raises
    ------
    StructureError
        If a column has another type than its collection states, and storing it would lose information.
    """
    schema = layout.schema
    parts = {"X": _features(rows, layout)}
    if layout.target_coded:
        parts["y"] = category_cells(one_column(rows.y), schema.target.classes).astype(np.uint8)
    else:
        parts["y"] = _stored_column(rows.y, layout.target)
    if layout.weight:
        parts[WEIGHT] = _stored_column(rows.weight, layout.weight)
    if layout.unit:
        parts["unit"] = _tagged(rows.unit)
    return parts


def _features(rows: Rows, layout: Layout) -> NDArray[Any]:
    if layout.raw:
        assert isinstance(rows.x, np.ndarray)
        if np.can_cast(rows.x.dtype, layout.dtype, "safe"):
            return _unmasked(rows.x, layout.dtype)
        if layout.dtype != "float64":
            raise _other_type()
    out = np.empty((n_rows(rows.x), layout.schema.n_features), layout.dtype)
    features = layout.schema.features.values()
    for j, (feature, column) in enumerate(
        zip(features, split_columns(rows.x, layout.schema), strict=True)
    ):
        if j in layout.coded:
            assert not isinstance(feature, Numeric | Datetime)
            out[:, j] = feature_cells(column, feature)
            continue
        if isinstance(feature, Datetime):
            out[:, j] = seconds(column)
            continue
        if layout.dtype == "float32" and not is_single(column.dtype):
            raise _other_type()
        with np.errstate(all="ignore"):
            out[:, j] = numbers(column)
        if isinstance(feature, Categorical | Bool):
            # a value that is present and no number is in no list of finite numbers
            out[np.isnan(out[:, j]) & (category_cells(column, ()) == 0), j] = np.inf
    return out


def _stored_column(column: Any, dtype: str) -> NDArray[Any]:
    column = one_column(column)
    if dtype != "float64":
        _check_type(column.dtype, dtype)
        return _unmasked(column, dtype)
    with np.errstate(all="ignore"):
        return numbers(column).astype(np.float64)


def _unmasked(values: Any, dtype: str) -> NDArray[Any]:
    """Return values of a type, NaN for masked ones.

    Raises
    ------
    StructureError
        If a value is masked, and the type has no NaN.
    """
    if not (isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any()):
        return np.ascontiguousarray(np.asarray(values), dtype)
    if np.dtype(dtype).kind != "f":
        raise _other_type()
    return np.ma.filled(values.astype(dtype), np.nan)


def _check_type(given: Any, stored: str) -> None:
    if not np.can_cast(given, stored, "safe"):
        raise _other_type()


def _other_type() -> StructureError:
    return StructureError(
        "A chunk's columns are of other types than its collection says. Convert them first, as with astype."
    )


def _tagged(column: Any) -> NDArray[Any]:
    """Return the names of units, prefixed by "s"; "" for a row without a unit."""
    names, place = distinct_names(column)
    tags = ["" if name is None else f"s{name}" for name in [*names, None]]
    return np.array(tags, dtype=np.dtypes.StringDType())[place]


def _untag(tagged: str) -> Any:
    # older data sets prefix whole numbers by "i"
    return ExactId(tagged[1:]) if tagged else None


def classes_at(places: NDArray[Any], classes: Sequence[Any]) -> NDArray[Any]:
    """Return the classes at stored positions as objects; an unknown or missing label is None."""
    table = np.empty(len(classes) + 2, object)
    table[: len(classes)] = classes
    return table[places]


def weight_name(schema: Schema) -> str:
    """Return a name for the weight column that no other column has."""
    name = WEIGHT
    while name in {*schema.names, schema.target.name}:
        name += "_"
    return name


def frame_of(names: Sequence[str], blocks: Sequence[NDArray[Any]], layout: Layout) -> pd.DataFrame:
    """Return stored rows as a frame."""
    stored = dict(zip(names, blocks, strict=True))
    schema = layout.schema
    columns: dict[str, Any] = {}
    for j, (name, feature) in enumerate(schema.features.items()):
        values = stored["X"][:, j]
        if j in layout.coded:
            columns[name] = _categorical(values.astype(np.int64), list_of(feature), feature)
        elif isinstance(feature, Datetime):
            lost = np.isnan(values)
            whole = np.where(lost, 0, values).astype(np.int64)
            columns[name] = np.where(lost, np.datetime64("NaT", "s"), whole.view("datetime64[s]"))
        else:
            columns[name] = values
    y = stored["y"]
    target = schema.target
    columns[target.name] = (
        _categorical(y.astype(np.int64), target.classes) if layout.target_coded else y
    )
    if layout.weight:
        columns[weight_name(schema)] = stored[WEIGHT]
    if layout.unit == "number":
        columns[str(schema.unit_id)] = stored["unit"]
    elif layout.unit:
        tagged = stored["unit"].tolist()
        units = np.empty(len(tagged), object)
        units[:] = [_untag(value) for value in tagged]
        columns[str(schema.unit_id)] = pd.Series(units, dtype=object)
    return pd.DataFrame(columns)


def _categorical(
    places: NDArray[np.int64], declared: Sequence[Any], feature: Feature | None = None
) -> pd.Categorical:
    """Return the categories at stored positions; an extra category is any other value, and missing stays missing."""
    other: Any = "<other>"
    taken = {value for value, _ in feature.mapping} if isinstance(feature, Grouped) else declared
    while other in taken:
        other += ">"
    if isinstance(feature, Hashed):  # every text has a bucket
        other = UNREADABLE
    known = [k for k, category in enumerate(declared) if not is_missing(category)]
    code = np.full(len(declared) + 2, -1, np.int64)
    code[known] = np.arange(len(known))
    code[len(declared)] = len(known)
    labels = np.empty(len(known) + 1, object)
    labels[:] = [*(declared[k] for k in known), other]
    categories = pd.Index(labels, dtype=object, tupleize_cols=False)
    return pd.Categorical.from_codes(code[places], categories=categories)
