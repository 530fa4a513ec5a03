"""Checks of structure, which alone may raise: names, order, width, and the column types of a file; no values."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpgb_dask.contracts.features import Categorical, Datetime, Feature, Grouped, Numeric
from dpgb_dask.contracts.schema import Schema
from dpgb_dask.errors import SchemaError, StructureError, listed
from dpgb_dask.values import cells

SHOWN = 3  # most columns that a message about dimensions names
# a tuple holds 1-D columns in schema order
SourceBlock: TypeAlias = NDArray[Any] | pd.DataFrame | tuple[Any, ...]


def match_names(
    names: Iterable[Any], schema: Schema, *, ordered: bool = True, aside: Iterable[Any] = ()
) -> tuple[int, ...]:
    """Return the position of every feature among ``names``.

    Parameters
    ----------
    names : iterable
        Column names of a table; ignored columns, the target and the unit column may be among them.
    ordered : bool
        Whether the features must be in schema order; False for a mapping of columns, which has no order.
    aside : iterable
        Names of columns that were left out, of which one may be a feature in another spelling.

    Raises
    ------
    SchemaError
        If a feature is missing, out of order or present twice, or a column is not declared.
    """
    given = [str(name) for name in names]
    position = {name: k for k, name in enumerate(given)}
    dropped = {*schema.ignore, schema.target.name}
    if schema.unit_id is not None:
        dropped.add(schema.unit_id)
    missing = [name for name in schema.names if name not in position]
    extra = any(name not in schema.features and name not in dropped for name in given)
    if missing or extra:
        # a name that is not in the schema may be a row's value, if the table has no header or columns come from values
        lacks = [f"missing={listed(missing)}"] if missing else []
        has = ["the data have columns that the schema does not declare"] if extra else []
        hint = "; schema.check(X) and dpgb-dask check print them" if extra else ""
        way = ", or list those to leave out in 'ignore'" if extra else ""
        raise SchemaError(
            f"columns do not match the schema: {', and '.join([*lacks, *has])}{hint}. Rename or add columns{way}."
            f"{_spelt_otherwise(missing, [*given, *map(str, aside)])}"
        )
    features = [name for name in given if name in schema.features]
    once = [*features, *(name for name in given if name == schema.unit_id)]
    if len(once) != len(set(once)):
        twice = sorted({name for name in once if once.count(name) > 1})
        raise SchemaError(
            f"columns {listed(twice)} are there twice. Every feature needs one column."
        )
    if ordered and tuple(features) != schema.names:
        first = next(k for k, name in enumerate(schema.names) if name != features[k])
        raise SchemaError(
            f"columns are in another order than the schema, from feature {first} on:\n  data  "
            f" {listed(features[first:])}\n  schema {listed(schema.names[first:])}\n"
            "Reorder one of them."
        )
    return tuple(position[name] for name in schema.names)


def _spelt_otherwise(missing: Sequence[str], given: Sequence[str]) -> str:
    """Return a hint if a missing column is there in another spelling, such as after a blank."""
    there = {_bare(name) for name in given}
    near = [name for name in missing if _bare(name) in there]
    if not near:
        return ""
    return (
        f" {listed(near)}: there, but for blanks or for capitals. Names are compared to the letter."
    )


def _bare(name: str) -> str:
    return name.strip("\ufeff \t\xa0").casefold()


def check_beside(names: Iterable[Any], coordinates: Iterable[Any], schema: Schema) -> None:
    """Refuse features that are xarray's coordinates, which are no columns.

    Parameters
    ----------
    names, coordinates : iterable
        Names of the columns, and of what lies beside them.
    schema : Schema

    Raises
    ------
    SchemaError
    """
    beside = {str(name) for name in coordinates} - {str(name) for name in names}
    hidden = [name for name in schema.names if name in beside]
    if hidden:
        raise SchemaError(
            f"features {listed(hidden)} are coordinates of the data, and columns are its data variables alone. Make"
            f" columns of them: data.reset_coords({listed(hidden)}), where data is what xarray.open_zarr opens; if"
            " one is an index, of data.reset_index(dimension), for the dimension of the rows."
        )


def check_one_axis(axes: Mapping[str, tuple[Any, ...]]) -> None:
    """Check that all columns lie along one axis, the rows.

    Parameters
    ----------
    axes : mapping of str to tuple
        By column, the names that xarray gives its dimensions.

    Raises
    ------
    StructureError
        If a column has none or several, or two have different ones: what is a row is not said then.
    """
    kinds: dict[tuple[Any, ...], str] = {}  # the first column along each
    for name, dims in axes.items():
        kinds.setdefault(dims, name)
    row = tuple(dict.fromkeys(axis for dims in kinds for axis in dims))
    if not kinds or (len(kinds) == 1 and len(row) == 1):
        return
    if not row:
        raise StructureError(
            "the columns have no dimension, and need one: rows. If they are one row: data.expand_dims('row')."
        )
    new = "row"
    while new in row:  # xarray stacks along a new dimension alone
        new += "s"
    if len(kinds) == 1:
        raise StructureError(
            f"the columns have the dimensions {row}, and need one: rows. If each point is a row, stack them:"
            f" data.stack({new}={row})."
        )
    shown = [f"{name!r} along {dims}" for dims, name in kinds.items()]
    same = (
        " If values at the same place are a row, give each column the same dimension:"
        f" data.assign({{name: ({new!r}, data[name].data) for name in data}})."
        if all(len(dims) == 1 for dims in kinds)
        else ""
    )
    stack = f".stack({new}={row})" if len(row) > 1 else ""
    raise StructureError(
        f"columns lie along different dimensions: {', '.join(shown[:SHOWN])}{', …' if shown[SHOWN:] else ''}. They need"
        f" one, the rows.{same} If each combination is a row: xarray.broadcast(data)[0]{stack}."
    )


def check_columns(block: Any, schema: Schema, *, target: bool = False) -> tuple[int, ...]:
    """Check names, order and width of a block or of Dask's meta for it; looks at neither values nor types.

    Parameters
    ----------
    block : ndarray, DataFrame, Series or tuple of 1-D arrays
        Anything with the structure of the data; may be empty.
    target : bool
        Whether the block is the target, not the features.

    Returns
    -------
    tuple of int
        Position of every feature in the block; ``(0,)`` for a target.

    Raises
    ------
    SchemaError
        If columns are missing, renamed, reordered or not declared.
    StructureError
        If an array has the wrong number of dimensions or columns.
    """
    if target:
        if getattr(block, "ndim", 1) != 1 and not (block.ndim == 2 and block.shape[1] == 1):
            raise StructureError("The target must be one column.")
        return (0,)
    if isinstance(block, pd.DataFrame):
        return frame_positions(block, schema)
    if isinstance(block, tuple):
        return match_width(len(block), schema)
    if getattr(block, "ndim", None) != 2:
        raise no_table(block)
    return match_width(block.shape[1], schema)


def no_table(data: Any, name: str = "X") -> StructureError:
    """Return the error for rows that have no two dimensions; ``name`` is the argument's."""
    hint = ""
    if getattr(getattr(data, "dtype", None), "names", None) is not None:
        hint = f" Of a structured array, pandas.DataFrame({name}) makes one."
    elif isinstance(data, pd.Series):
        hint = f" Of one row, {name}.to_frame().T makes one; of one column, {name}.to_frame()."
    elif getattr(data, "ndim", None) == 1 and hasattr(data, "reshape"):
        hint = (
            f" Of one row, {name}.reshape(1, -1) makes one; of one column, {name}.reshape(-1, 1)."
        )
    return StructureError(f"{name} must be a table with two dimensions: rows and features.{hint}")


def frame_positions(frame: pd.DataFrame, schema: Schema) -> tuple[int, ...]:
    """Return the position of every feature in a frame: by name, or by position where columns are numbered."""
    if is_numbered(frame.columns):  # as if made from an array: match by position, as for arrays
        return match_width(len(frame.columns), schema)
    return match_names(frame.columns, schema)


def is_numbered(names: Iterable[Any]) -> bool:
    """Return whether all column names are integers, so that columns match by position; tuples and bytes are names."""
    return all(isinstance(name, int | np.integer) and not isinstance(name, bool) for name in names)


def match_width(width: int, schema: Schema) -> tuple[int, ...]:
    """Return the positions of the features in an array without names; refuse one of another width."""
    if width != schema.n_features:
        raise StructureError(
            f"X has no column names and another number of columns than the {schema.n_features} features of the schema: "
            "arrays match by position. Give exactly the declared columns."
        )
    return tuple(range(width))


def check_file_types(types: Mapping[str, Any], schema: Schema) -> None:
    """Check the column types of a Parquet, Arrow or Zarr file, which do not depend on values.

    A type raises nowhere else, because the types of other collections are often inferred from values.

    Parameters
    ----------
    types : mapping of str to dtype
        By column; columns that the schema does not name are ignored.
    schema : Schema

    Raises
    ------
    SchemaError
        If a column's type contradicts the schema.
    """
    target = schema.target
    for name, feature in schema.features.items():
        if name in types:
            _check_file_type(f"feature {name!r}", types[name], feature)
    if target.name in types:
        declared = Categorical(target.classes) if target.classes else Numeric(0, 1)
        _check_file_type(f"target {target.name!r}", types[target.name], declared)


def _check_file_type(which: str, dtype: Any, feature: Feature) -> None:
    if _is_nested(dtype):
        raise SchemaError(
            f"{which} is a column of lists or records, of which none is a value. Write each part as a column of its"
            " own, or leave the column out of the schema."
        )
    kind = family(dtype)
    # a column of floats is accepted wherever numbers are none, as all of its values may be missing
    whole = kind == "number" and getattr(dtype, "kind", "f") in "iub"
    match feature:
        case Numeric() if kind in ("text", "other"):
            # only the family is printed: a type's name may contain the length of the longest text
            raise SchemaError(
                f"{which} is declared numeric but its column is of kind {kind!r}. Convert the column, or declare its"
                " categories."
            )
        case Datetime() if whole:
            raise SchemaError(
                f"{which} is declared as dates, but its column holds whole numbers: none is a date. Convert the column,"
                " or declare it as what it is."
            )
        case Categorical(declared) if whole and not _any_number(declared):
            raise SchemaError(
                f"{which} is declared with values that are text, but its column holds whole numbers: none can match."
                " Convert the column, or declare its values as they are."
            )
        case Grouped(mapping) if whole and not _any_number([value for value, _ in mapping]):
            raise SchemaError(
                f"{which} maps values that are text, but its column holds whole numbers: none can match. Convert the"
                " column, or map its values as they are."
            )


# how Arrow calls them; a type of an extension is what it stands for, such as pandas' intervals
NESTED = ("list", "large_list", "fixed_size_list", "struct", "map")


def _is_nested(dtype: Any) -> bool:
    if isinstance(dtype, pd.ArrowDtype):
        return str(dtype.pyarrow_dtype).startswith(NESTED)
    return getattr(dtype, "names", None) is not None


def _any_number(declared: Sequence[Any]) -> bool:
    return any(isinstance(form, float) for form in cells(declared))


def family(dtype: Any) -> str:
    """Return the family of a dtype: "number", "text", "object" (each value has its own type) or "other" (dates, …)."""
    if isinstance(dtype, pd.CategoricalDtype):
        return _categories_family(dtype.categories)
    if isinstance(dtype, pd.SparseDtype):
        dtype = dtype.subtype
    if isinstance(dtype, pd.ArrowDtype):
        dtype = _known(dtype)
    if pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype):
        return "other" if getattr(dtype, "kind", "f") == "c" else "number"
    if pd.api.types.is_object_dtype(dtype) or str(dtype) == "null[pyarrow]":
        return "object"
    if pd.api.types.is_string_dtype(dtype) or getattr(dtype, "kind", "") in "UST":
        return "text"
    return "other"


def _known(dtype: pd.ArrowDtype) -> Any:
    """Return a type of an Arrow type's family that pandas tells about; of a dictionary, that of its values.

    Views of bytes, intervals, unions and run-end encoding, whose values pandas reads one by one alone, are objects.
    """
    arrow = dtype.pyarrow_dtype
    if str(arrow).startswith("dictionary"):
        arrow = arrow.value_type
    if str(arrow) == "string_view":
        return np.dtype("U")
    inner = pd.ArrowDtype(arrow)
    try:
        told = inner.type is not None and not str(arrow).startswith("run_end_encoded")
    except NotImplementedError:
        told = False
    return inner if told else np.dtype(object)


def _categories_family(categories: Any) -> str:
    """Return the family of a categorical column's list of categories; in a Dask column it may be unknown."""
    if categories is None or len(categories) == 0 or "__UNKNOWN_CATEGORIES__" in categories:
        return "object"
    if pd.api.types.is_object_dtype(categories.dtype):
        return "text" if all(isinstance(value, str) for value in categories) else "object"
    return family(categories.dtype)
