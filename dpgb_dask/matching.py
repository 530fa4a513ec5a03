"""Matching the columns of X to features: by name, or by position if the caller says so.

An array has no column names, so nothing shows that its columns are in another order than the schema's: the fit works,
and the model is silently wrong. So matching by position warns, unless the caller asked for it. A column name that
matches a feature only without its prefix warns too.
"""
# ruff: noqa: N803 - X is scikit-learn's name

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import xarray as xr
import zarr
from numpy.typing import NDArray

from dpgb_dask.cf_decoding import dims_of
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.kinds import from_arrow, refuse_other_chunks, unknown_kind
from dpgb_dask.encoding.structure import is_numbered, match_names, match_width
from dpgb_dask.errors import (
    PlanError,
    PrefixedColumnsWarning,
    SchemaError,
    StructureError,
    UnnamedColumnsWarning,
    in_our_words,
    level_outside,
    listed,
    short,
)
from dpgb_dask.names import POSITION
from dpgb_dask.scalars import is_listing
from dpgb_dask.values import WHOLE
from dpgb_dask.zarr_arrays import arrays_of, from_zarr

SHOWN = 3  # most matches that a warning names
UNNAMED = (np.ndarray, da.Array, zarr.Array, pd.DataFrame, dd.DataFrame, xr.DataArray)

Columns = str | Sequence[str] | None


def default_names(n_features: int) -> tuple[str, ...]:
    """Return the names of the columns of an array: x0, x1 and so on."""
    return tuple(f"x{j}" for j in range(n_features))


def check_choice(columns: Any) -> str | list[str] | None:
    """Check ``columns``, and return None, "position", or a list of names.

    Raises
    ------
    PlanError
        If it is none of these, or names a column twice.
    """
    if columns is None or (isinstance(columns, str) and columns == POSITION):
        return columns
    own = isinstance(columns, np.ndarray | pd.Index | list | tuple) and is_listing(columns)
    names = np.asarray(columns, dtype=object).tolist() if own else None
    if not names or not all(isinstance(name, str) for name in names):
        raise PlanError(
            f"columns={short(columns)} must be None, 'position', or a list of the names of the array's columns."
        )
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise PlanError(f"columns= names {listed(twice)} twice. Name every column once.")
    return [str(name) for name in names]


def in_order(X: Any, schema: Schema, columns: Columns = None, *, beside: bool = False) -> Any:
    """Return X with features that can be found by name, or with its columns in the schema's order.

    Parameters
    ----------
    X : collection of rows
        Data with column names are matched by name, whatever ``columns`` says. A prefix that ends in two underscores, as
        scikit-learn's ``ColumnTransformer`` adds, is removed if only one column can be meant, with a warning:
        ``before__age`` may differ from ``age``. The unit and the target are never matched under a prefix.
    schema : Schema
    columns : None, "position" or list of str
        For an array without names. None matches by position and warns; "position" matches by position; a list gives the
        names of the array's columns, in their order, and without ``beside`` the array may lack those of no feature.
    beside : bool
        Whether the columns of the target and the privacy unit are kept too, if a list names them.

    Returns
    -------
    A collection of the same kind; a DataArray with names if more than features is kept.

    Raises
    ------
    PlanError
        If ``columns`` is none of these choices, or its names do not match the schema.
    SchemaError
        If a prefixed name may mean several features, or several columns may mean one feature; if the names of X and of
        the schema are all numbers, and differ.
    StructureError
        If an array has another number of columns than a list names, or than the schema has features.
    UnsupportedCollectionError
        If X is sparse or of an unknown kind.

    Warns
    -----
    UnnamedColumnsWarning
        If columns are matched by position without ``columns="position"``: every time, by structure alone.
    PrefixedColumnsWarning
        If a feature is found under a prefix: every time, by structure alone.

    Privacy
    -------
    Reads names and widths; no value is looked at. Errors and warnings print names of the schema and of ``columns``.
    """
    chosen = check_choice(columns)
    X = from_arrow(X)  # noqa: N806
    order = _order(chosen, schema) if isinstance(chosen, list) else None
    if isinstance(X, list | tuple):
        X = _table_of(X, len(chosen) if isinstance(chosen, list) else schema.n_features)  # noqa: N806
    elif type(X) is np.matrix:
        X = np.asarray(X)  # noqa: N806
    names = names_of(X)
    if names is not None:
        new = _without_prefix(names, schema)
        if new:
            _warn_of_prefixes(list(new.values()))
        return _renamed(X, new)
    if not isinstance(X, (*UNNAMED, pd.Series, dd.Series)):
        raise unknown_kind(X, "X")
    refuse_other_chunks(X, "X")
    if getattr(X, "ndim", 2) != 2:
        return X  # no table: the reader raises the error
    if order is None:
        match_width(X.shape[1], schema)
    if chosen is None:
        _judge_position(schema, _numbers_of(X, schema.n_features))
    if order is None or not isinstance(chosen, list):
        return X
    features = [name for name in chosen if name in schema.features]
    if not beside and X.shape[1] == len(features):  # rows to predict need no unit and no target
        chosen, order = features, _order(features, schema)
    others = [n for n in (schema.unit_id, schema.target.name) if n in chosen] if beside else []
    return _reordered(X, chosen, order, [str(name) for name in others], schema)


def _table_of(rows: Sequence[Any], width: int) -> NDArray[np.object_]:
    """Return a list of rows as an array of objects; only a row of another width raises.

    NumPy would infer the type and shape of a list from all of its values. As an object, each value is read by itself,
    whatever its neighbours are.
    """
    parts = ("columns", "__dask_graph__", "key")  # of a frame, of what is lazy, of a future
    if rows and any(hasattr(rows[0], own) for own in parts):
        raise unknown_kind(rows, "X")
    for row in rows:
        is_row = isinstance(row, list | tuple | np.ndarray | pd.Series)
        if not is_row or getattr(row, "ndim", 1) != 1 or len(row) != width:
            raise StructureError(
                f"X is a list, and a row in it is not a list of {width} columns, as the schema declares. Give each row"
                " exactly the declared columns."
            )
    cells = (value for row in rows for value in row)
    return np.fromiter(cells, dtype=object, count=len(rows) * width).reshape(len(rows), width)


def names_of(X: Any) -> list[Any] | None:
    """Return the column names of X; None if it has none, or if they are whole numbers."""
    if isinstance(X, pd.DataFrame | dd.DataFrame):
        found = list(X.columns)
        return None if is_numbered(found) else found
    if isinstance(X, xr.Dataset):
        return list(X.data_vars)
    if isinstance(X, xr.DataArray):
        if X.ndim == 2 and X.dims[1] in X.coords:
            coordinate = X.coords[X.dims[1]]
            if coordinate.dtype.kind in "OUST":
                return list(coordinate.to_index())
        return None
    if isinstance(X, zarr.Group):
        return list(arrays_of(X))
    return None


def _numbers_of(X: Any, width: int) -> list[Any]:
    """Return the column labels of X, which are no names; 0, 1, 2 and so on where it has none."""
    if isinstance(X, pd.DataFrame | dd.DataFrame):
        return list(X.columns)
    if isinstance(X, xr.DataArray) and X.dims[1] in X.coords:
        return list(X.coords[X.dims[1]].to_index())
    return list(range(width))


def _declared(schema: Schema) -> list[str]:
    """Return all names that a schema declares."""
    unit = [] if schema.unit_id is None else [schema.unit_id]
    return [*schema.names, *unit, schema.target.name, *schema.ignore]


def _without_prefix(names: Iterable[Any], schema: Schema) -> dict[Any, str]:
    """Return the new name of each column that is, without its prefix, a feature or an ignored column.

    The unit and the target are matched by their own names only, because they decide whom a row belongs to and its
    label.
    """
    given = list(names)
    known = set(_declared(schema))
    strange = [name for name in given if isinstance(name, str) and name not in known]
    new: dict[Any, str] = {}
    for name in (*schema.names, *schema.ignore):
        if name in given or name in new.values():
            continue
        meant = [other for other in strange if other.endswith(f"__{name}")]
        if len(meant) > 1 or any(other in new for other in meant):
            role = "feature" if name in schema.features else "column"
            raise SchemaError(
                f"{role} {name!r} is no column of X, and names that end in '__{name}' may mean it or another. Name it"
                " as the schema does: verbose_feature_names_out=False of a ColumnTransformer leaves names as they are."
            )
        if meant:
            new[meant[0]] = name
    return new


def _renamed(X: Any, new: dict[Any, str]) -> Any:
    if not new:
        return X
    if isinstance(X, pd.DataFrame | dd.DataFrame):
        return X.rename(columns=new)
    if isinstance(X, xr.Dataset):
        return X.rename(new)
    if isinstance(X, zarr.Group):
        return as_dataset({new.get(key, key): array for key, array in arrays_of(X).items()})
    axis = X.dims[1]
    return X.assign_coords({axis: [new.get(name, name) for name in X.coords[axis].to_index()]})


@in_our_words(
    lambda kind: StructureError(
        f"The arrays of a Zarr group are no columns of one table: {kind}. Give each one axis, of as many rows."
    )
)
def as_dataset(arrays: Mapping[str, Any]) -> xr.Dataset:
    """Return arrays of a Zarr group as the columns of an xarray Dataset; an axis keeps its name."""
    axes = {name: dims_of(array) for name, array in arrays.items()}
    unnamed = None in axes.values()
    dims = {
        name: [f"axis {k}" for k in range(array.ndim)] if unnamed else axes[name]
        for name, array in arrays.items()
    }
    return xr.Dataset({name: (dims[name], from_zarr(array)) for name, array in arrays.items()})


def _order(columns: Sequence[str], schema: Schema) -> list[int]:
    """Return the position of each feature among named columns.

    Raises
    ------
    PlanError
        If a feature is missing, or a name is not declared.
    """
    missing = [name for name in schema.names if name not in columns]
    extra = [name for name in columns if name not in _declared(schema)]
    if missing or extra:
        lacks = f": missing={listed(missing)}." if missing else "."
        strange = " It has names that the schema does not declare." if extra else ""
        raise PlanError(
            f"columns= does not match the schema{lacks}{strange} Name every feature; other columns"
            " must be in the schema's 'ignore', or be its unit or target."
        )
    return [columns.index(name) for name in schema.names]


def _judge_position(schema: Schema, numbers: list[Any]) -> None:
    """Warn of a match by position, unless it can be meant; refuse numbers that are other names than the schema's.

    Raises
    ------
    SchemaError
        If columns have other numbers for names than the schema, or in another order.
    """
    misnumbered = numbers != list(range(len(numbers)))
    expected = not schema.private or schema.names == default_names(schema.n_features)
    if (expected and not misnumbered) or schema.names == tuple(map(str, numbers)):
        return
    if misnumbered and all(WHOLE.fullmatch(name) for name in schema.names):
        match_names(numbers, schema)
    pairs = [f"column {j} → {name!r}" for j, name in enumerate(schema.names[:SHOWN])]
    more = ", …" if schema.n_features > SHOWN else ""
    what = (
        "X has numbers for column names, other than 0, 1, 2 and so on in order: its columns are matched to the schema"
        " by position, whatever their numbers"
        if misnumbered
        else "X has no column names: its columns are matched to the schema by position"
    )
    warnings.warn(
        f"{what}, {', '.join(pairs)}{more}. If that is right, say columns='position'; if the columns are in another"
        " order, give it, as columns=[names]. Or give X with names: scikit-learn's transformers keep them after"
        " set_output(transform='pandas').",
        UnnamedColumnsWarning,
        stacklevel=level_outside(),
    )


def _warn_of_prefixes(names: Sequence[str]) -> None:
    shown = ", ".join(f"{name!r} from a name that ends in '__{name}'" for name in names[:SHOWN])
    more = ", …" if len(names) > SHOWN else ""
    warnings.warn(
        f"Columns of X are taken for the schema's under a prefix: {shown}{more}. If they are another thing, the model"
        " is wrong. Name columns as the schema does: verbose_feature_names_out=False of a"
        " ColumnTransformer leaves names as they are.",
        PrefixedColumnsWarning,
        stacklevel=level_outside(),
    )


def _reordered(
    X: Any, columns: list[str], order: list[int], others: list[str], schema: Schema
) -> Any:
    """Return the features of an array in the schema's order; with further columns, as a DataArray with names."""
    if X.shape[1] != len(columns):
        raise StructureError(
            f"X has no column names and another number of columns than the {len(columns)} that columns= names. Name all"
            " columns of X there, in their order, and no others."
        )
    names = [*schema.names, *others]
    keep = [*order, *map(columns.index, others)]
    whole = keep == list(range(len(columns)))
    if isinstance(X, pd.DataFrame | dd.DataFrame):
        part = X.iloc[:, keep] if isinstance(X, pd.DataFrame) else X[[X.columns[k] for k in keep]]
        return part.rename(columns=dict(zip(part.columns, names, strict=True)))
    if isinstance(X, zarr.Array):
        X = from_zarr(X)  # noqa: N806
    X = X if whole else X[:, keep]  # noqa: N806
    if not others:
        return X
    values = X.data if isinstance(X, xr.DataArray) else X
    return xr.DataArray(values, dims=("row", "column"), coords={"column": names})
