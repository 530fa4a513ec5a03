"""From a block of rows to uint8 codes, fine cells, labels and weights, by maps that never raise or warn on a value.

The rules are those of docs/design.md §1. A value out of bounds and ±inf fall in the outermost bin; NaN and a value that
cannot be read as a number are missing; an unknown category is "other"; an unknown label or a missing target makes the
row weigh nothing. Only structure (names, dimensions, widths) raises.

"Total map" means: defined for every value.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpgb_dask.contracts.grid import Grid, coarser_cells
from dpgb_dask.contracts.model import SCORE_ONE, FeatureBins
from dpgb_dask.contracts.schema import Categorical, Schema, Target
from dpgb_dask.errors import SchemaError, StructureError
from dpgb_dask.kernels.bin import bin_column, bin_matrix, cell_column, cell_matrix, map_cells
from dpgb_dask.values import (
    MISSING_WORDS,
    NO_FORM,
    UNREADABLE,
    as_text,
    cells,
    is_plain,
    read_numbers,
)

# a tuple holds 1-D columns in schema order
Block: TypeAlias = NDArray[Any] | pd.DataFrame | tuple[Any, ...]
Bins = Sequence[FeatureBins]

# ---- structure -------------------------------------------------------------------------------------------------------


def match_names(names: Iterable[Any], schema: Schema, *, ordered: bool = True) -> tuple[int, ...]:
    """Return the position of every feature among ``names``.

    Parameters
    ----------
    names : iterable
        Column names of a table; ignored columns, the target and the unit column may be among them.
    ordered : bool
        Whether the features must be in schema order; False for a mapping of columns, which has no order.

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
        lacks = [f"missing={missing}"] if missing else []
        has = ["the data have columns that the schema does not declare"] if extra else []
        hint = "; schema.check(X) and dpgb-dask check print them" if extra else ""
        raise SchemaError(
            f"columns do not match the schema: {', and '.join([*lacks, *has])}{hint}. "
            "Rename or add columns, or list those to leave out in 'ignore'."
        )
    features = [name for name in given if name in schema.features]
    once = [*features, *(name for name in given if name == schema.unit_id)]
    if len(once) != len(set(once)):
        twice = sorted({name for name in once if once.count(name) > 1})
        raise SchemaError(f"columns {twice} are there twice. Every feature needs one column.")
    if ordered and tuple(features) != schema.names:
        raise SchemaError(
            f"columns are in another order than the schema:\n  data   {features}\n  schema {list(schema.names)}\n"
            "Reorder one of them."
        )
    return tuple(position[name] for name in schema.names)


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
        return _frame_positions(block, schema)
    if isinstance(block, tuple):
        return _match_width(len(block), schema)
    if getattr(block, "ndim", None) != 2:
        raise StructureError("X must be a table with two dimensions: rows and features.")
    return _match_width(block.shape[1], schema)


def _frame_positions(frame: pd.DataFrame, schema: Schema) -> tuple[int, ...]:
    if is_numbered(frame.columns):  # as if made from an array: match by position, as for arrays
        return _match_width(len(frame.columns), schema)
    return match_names(frame.columns, schema)


def is_numbered(names: Iterable[Any]) -> bool:
    """Return whether all column names are integers, so that columns match by position; tuples and bytes are names."""
    return all(isinstance(name, int | np.integer) and not isinstance(name, bool) for name in names)


def _match_width(width: int, schema: Schema) -> tuple[int, ...]:
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
    labels = {
        name: feature.categories
        for name, feature in schema.features.items()
        if isinstance(feature, Categorical)
    }
    if target.classes:
        labels[target.name] = target.classes
    for name in (*schema.names, target.name):
        if name not in types:
            continue
        role, kind = "target" if name == target.name else "feature", family(types[name])
        if name in labels:
            numeric = any(isinstance(form, float) for form in cells(labels[name]))
            # a column of floats is accepted, as all of its values may be missing
            whole = kind == "number" and getattr(types[name], "kind", "f") in "iub"
            if whole and not numeric:
                raise SchemaError(
                    f"{role} {name!r} is declared with values that are text, but its column holds whole numbers: none"
                    " can match. Convert the column, or declare its values as they are."
                )
        elif kind in ("text", "other"):
            # only the family is printed: a type's name may contain the length of the longest text
            raise SchemaError(
                f"{role} {name!r} is declared numeric but its column is of kind {kind!r}. "
                "Convert the column, or declare its categories."
            )


def family(dtype: Any) -> str:
    """Return the family of a dtype: "number", "text", "object" (each value has its own type) or "other" (dates, …)."""
    if isinstance(dtype, pd.CategoricalDtype):
        return _categories_family(dtype.categories)
    if isinstance(dtype, pd.ArrowDtype) and str(dtype.pyarrow_dtype).startswith("dictionary"):
        dtype = pd.ArrowDtype(dtype.pyarrow_dtype.value_type)
    if pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype):
        return "other" if getattr(dtype, "kind", "f") == "c" else "number"
    if pd.api.types.is_object_dtype(dtype) or str(dtype) == "null[pyarrow]":
        return "object"
    if pd.api.types.is_string_dtype(dtype) or getattr(dtype, "kind", "") in "UST":
        return "text"
    return "other"


def _categories_family(categories: Any) -> str:
    """Return the family of a categorical column's list of categories; in a Dask column it may be unknown."""
    if categories is None or len(categories) == 0 or "__UNKNOWN_CATEGORIES__" in categories:
        return "object"
    if pd.api.types.is_object_dtype(categories.dtype):
        return "text" if all(isinstance(value, str) for value in categories) else "object"
    return family(categories.dtype)


# ---- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Values:
    """The features of a block as kernels take them: floats for numeric features, cells for categorical ones.

    Parameters
    ----------
    matrix : (n, m) float32 or float64, or None
        All features, if the block is such a matrix.
    columns : tuple of ((n,) float32, float64 or uint16, or None)
        One per feature; None if the values of the feature are in the matrix.
    """

    matrix: NDArray[Any] | None
    columns: tuple[NDArray[Any] | None, ...]

    def __repr__(self) -> str:
        return "<values>"

    def __len__(self) -> int:
        return len(self.column(0))

    def column(self, j: int) -> NDArray[Any]:
        """Return the values of feature j."""
        column = self.columns[j]
        if column is not None:
            return column
        assert self.matrix is not None
        return self.matrix[:, j]


@np.errstate(all="ignore")
def read_values(block: Block, schema: Schema) -> Values:
    """Read the features of a block.

    Parameters
    ----------
    block : (n, m) ndarray, DataFrame, or tuple of m (n,) arrays

    Privacy
    -------
    Private side, or prediction. A total map: never raises or warns on a value, and reads each value independently of
    all others.
    """
    matrix = None
    if isinstance(block, np.ndarray) and not isinstance(block, np.ma.MaskedArray):
        is_float = block.dtype.kind == "f" and block.dtype.itemsize in (4, 8)
        matrix = _native(np.asarray(block)) if is_float else None
    columns: list[NDArray[Any] | None] = []
    for feature, column in zip(schema.features.values(), split_columns(block, schema), strict=True):
        if isinstance(feature, Categorical):
            columns.append(category_cells(column, feature.categories))
        else:
            columns.append(None if matrix is not None else numbers(column))
    return Values(matrix, tuple(columns))


def encode(block: Block, schema: Schema, bins: Bins) -> NDArray[np.uint8]:
    """Read the values of a block, and return their codes (`encode_values`)."""
    return encode_values(read_values(block, schema), bins)


@np.errstate(all="ignore")
def encode_values(values: Values, bins: Bins) -> NDArray[np.uint8]:
    """Return the codes of values.

    Parameters
    ----------
    values : Values
    bins : sequence of FeatureBins, released

    Returns
    -------
    (m, n) uint8, C-order

    Privacy
    -------
    Private side, or prediction. A total map: each code depends on its value alone.
    """
    codes = np.empty((len(bins), len(values)), np.uint8)
    if values.matrix is not None:
        # one pass over the row-major matrix skips categorical columns, which follow below
        bin_matrix(values.matrix, [b.edges for b in bins], codes)
    for j, b in enumerate(bins):
        if b.cell_to_bin is not None:
            codes[j] = b.cell_to_bin[values.column(j)]
        elif values.matrix is None:
            assert b.edges is not None
            bin_column(values.column(j), b.edges, codes[j])
    return codes


@np.errstate(all="ignore")
def cells_of(values: Values, grid: Grid) -> NDArray[np.uint16]:
    """Return the cell of every value in the public grid, as (m, n) uint16, C-order.

    Privacy
    -------
    Private side. A total map: never raises or warns on a value.
    """
    out = np.empty((len(grid.edges), len(values)), np.uint16)
    if values.matrix is not None:
        cell_matrix(values.matrix, grid.edges, out)
    for j, edges in enumerate(grid.edges):
        if edges is None:
            out[j] = values.column(j)
        elif values.matrix is None:
            cell_column(values.column(j), edges, out[j])
    return out


def bins_of_cells(grid: Grid, bins: Bins) -> NDArray[np.uint8] | None:
    """Return the bin of every cell of the grid, or None if a bin ends inside a cell.

    Parameters
    ----------
    grid : Grid
    bins : sequence of FeatureBins, released

    Returns
    -------
    (m, most cells of a feature) uint8, or None
    """
    out = np.zeros((len(bins), max(grid.sizes)), np.uint8)
    for row, edges, b in zip(out, grid.edges, bins, strict=True):
        if b.edges is None:
            assert b.cell_to_bin is not None
            row[: len(b.cell_to_bin)] = b.cell_to_bin
        elif edges is None or not np.isin(b.edges, edges).all():
            return None
        else:
            row[: len(edges) + 2] = coarser_cells(edges, b.edges)
    return out


def encode_cells(cells: NDArray[np.uint16], bins_of_cell: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the codes of values from their cells: the same codes as `encode_values` gives.

    Parameters
    ----------
    cells : (m, n) uint16, C-order
    bins_of_cell : (m, most cells of a feature) uint8
        From `bins_of_cells`.

    Returns
    -------
    (m, n) uint8, C-order

    Privacy
    -------
    Private side. A total map.
    """
    codes = np.empty(cells.shape, np.uint8)
    map_cells(cells, bins_of_cell, codes)
    return codes


@np.errstate(all="ignore")
def encode_target(y: Any, schema: Schema) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the label of each row, and whether it has a valid one.

    Parameters
    ----------
    y : (n,) array or Series, or (n, 1)

    Returns
    -------
    label : (n,) uint8 for classes, or int32 in [-65536, 65536] for a numeric target scaled to [-1, 1]
    valid : (n,) bool
        False for an unknown label or a missing target: the row weighs nothing.

    Privacy
    -------
    Private side. A total map: never raises or warns on a value; a numeric target is clipped to its public bounds.
    """
    column = one_column(y)
    if schema.target.type != "numeric":
        cell = category_cells(column, schema.target.classes)
        valid = cell < len(schema.target.classes)
        return np.where(valid, cell, 0).astype(np.uint8), valid
    return _target_steps(numbers(column), schema.target)


def _target_steps(y: NDArray[Any], target: Target) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    y = y.astype(np.float64)
    valid = ~np.isnan(y)
    value = np.clip(np.where(valid, y, target.low), target.low, target.high)
    # with halves, the range of two huge bounds does not overflow
    half = target.high / 2 - target.low / 2
    unit = (value / 2 - target.low / 2) / half  # in [0, 1]
    steps = np.rint((2 * unit - 1) * SCORE_ONE)
    # enforces the bound that the sensitivity states, whatever the rounding above did
    return np.clip(steps, -SCORE_ONE, SCORE_ONE).astype(np.int32), valid


@np.errstate(all="ignore")
def encode_weight(weight: Any, max_weight: int, weight_bits: int) -> NDArray[np.int32]:
    """Return weights in steps of ``2**-weight_bits``, clipped to [0, max_weight] and rounded down; 0 if not a number.

    Privacy
    -------
    Private side. Every sensitivity is multiplied by the bound ``max_weight``.
    """
    value = numbers(one_column(weight)).astype(np.float64)
    steps = np.floor(
        np.clip(np.where(np.isnan(value), 0.0, value), 0.0, max_weight) * 2.0**weight_bits
    )
    return steps.astype(np.int32)


# ---- columns ---------------------------------------------------------------------------------------------------------


def n_rows(block: Block) -> int:
    """Return the number of rows of a block. Private."""
    return len(block[0]) if isinstance(block, tuple) else len(block)


def split_columns(block: Block, schema: Schema) -> list[Any]:
    """Return the feature columns of a block in schema order, without copying.

    The columns of the whole collection were checked, but a partition may have other ones, if they are made from values
    partition by partition. So columns are found by name, and all values of an absent column are missing.
    """
    if isinstance(block, tuple):
        return list(block)
    if isinstance(block, pd.DataFrame):
        names = [str(name) for name in block.columns]
        if is_numbered(block.columns):
            return [block.iloc[:, k] for k in _frame_positions(block, schema)]
        place = {name: k for k, name in reversed(list(enumerate(names)))}
        return [
            block.iloc[:, place[name]] if name in place else np.full(len(block), np.nan)
            for name in schema.names
        ]
    return [block[:, k] for k in range(block.shape[1])]


def one_column(y: Any) -> Any:
    """Return a one-dimensional column from (n,) or (n, 1)."""
    if isinstance(y, pd.DataFrame):
        return y.iloc[:, 0]
    return y[:, 0] if y.ndim == 2 else y


def _native(values: NDArray[Any]) -> NDArray[Any]:
    """Return values in this machine's byte order, which kernels require."""
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def objects(column: Any) -> list[Any]:
    """Return a column's values as Python objects: None for a masked value, `UNREADABLE` if reading a value fails."""
    if isinstance(column, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(column).tolist()
        return [None if m else value for value, m in zip(objects(column.data), masked, strict=True)]
    # tolist would turn dates into integers
    read = list if getattr(column.dtype, "kind", "") in "Mm" else type(column).tolist
    try:
        return list(read(column))
    except Exception:  # such as an Arrow date beyond Python's calendar: then read values one by one
        items = column.array if isinstance(column, pd.Series) else column
        return [_item(items, k) for k in range(len(items))]


def _item(items: Any, k: int) -> Any:
    try:
        return items[k]
    except Exception:
        return UNREADABLE


def numbers(column: Any) -> NDArray[Any]:
    """Return a column as float32 or float64, with NaN for values that are not numbers. Never raises or warns."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        values = np.append(read_numbers(objects(column.cat.categories)), np.nan)
        out = values[column.cat.codes.to_numpy()]  # code -1, missing, takes the NaN at the end
    elif isinstance(column, np.ma.MaskedArray):
        out = numbers(column.data)
        mask = np.ma.getmaskarray(column)
        out = np.where(mask, out.dtype.type(np.nan), out) if mask.any() else out
    elif isinstance(dtype, np.dtype) and dtype.kind in "biufc":
        out = _plain_numbers(column.to_numpy() if isinstance(column, pd.Series) else column)
    elif _is_typed_number(dtype):
        out = np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    else:
        out = read_numbers(objects(column))
    return out


def _is_typed_number(dtype: Any) -> bool:
    """Whether a type holds only real numbers and missing values, which pandas converts to floats as they are."""
    if family(dtype) != "number" or isinstance(dtype, pd.CategoricalDtype):
        return False
    # not decimals, which are rounded one by one, and not an Arrow dictionary, which is read through its list
    arrow = str(dtype.pyarrow_dtype) if isinstance(dtype, pd.ArrowDtype) else ""
    return not arrow.startswith(("decimal", "dictionary"))


def _plain_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return a NumPy column of numbers as float32 or float64."""
    if values.dtype.kind == "f" and values.dtype.itemsize in (4, 8):
        return _native(values)
    if values.dtype.kind == "c":
        # one complex number makes the whole column complex, but the other values are still real numbers
        return np.where(values.imag == 0, values.real, np.nan).astype(np.float64)
    return np.asarray(values.astype(np.float64))


@dataclass(frozen=True, slots=True)
class Places:
    """An index of a list of categories: the place of each normal form, and of each missing word that is declared.

    Parameters
    ----------
    of_form : dict of float or str to int
    of_word : dict of str to int
        Declared categories that readers take for missing, such as "None": only a value that is text matches them.
    n : int
    """

    of_form: dict[Any, int]
    of_word: dict[str, int]
    n: int

    @classmethod
    def of(cls, categories: Sequence[Any]) -> "Places":
        """Index a list of declared categories, whose normal forms are distinct."""
        forms = enumerate(cells(categories))
        words = {str(as_text(c)): k for k, c in enumerate(categories) if as_text(c) is not None}
        # without "nan", which NumPy writes for a missing number in an array of text
        declared = (MISSING_WORDS - {"nan"}) & words.keys()
        return cls(
            {form: k for k, form in forms if form is not None and form is not NO_FORM},
            {word: words[word] for word in declared},
            len(categories),
        )

    def find(self, values: list[Any]) -> NDArray[np.uint16]:
        """Return the place of each value: n for a value that is no category, n + 1 for a missing value."""
        if is_plain(values):  # look each distinct value up once
            distinct = list(set(values))
            table = dict(zip(distinct, self._each(distinct), strict=True))
            return np.fromiter(map(table.__getitem__, values), np.uint16, len(values))
        return np.array(self._each(values), np.uint16)

    def _each(self, values: list[Any]) -> list[int]:
        places = [self._place(form) for form in cells(values)]
        if self.of_word:
            for k, text in enumerate(map(as_text, values)):
                if text in self.of_word:
                    places[k] = self.of_word[text]
        return places

    def _place(self, form: Any) -> int:
        return self.n + 1 if form is None else self.of_form.get(form, self.n)


@np.errstate(all="ignore")
def category_cells(column: Any, categories: Sequence[Any]) -> NDArray[np.uint16]:
    """Return each value's place in the K ``categories``; K for any other value, K + 1 for a missing one.

    Values match by their normal forms: ``1``, ``1.0``, ``True``, ``"1"`` and ``"01"`` are the same category. None, NaN
    and NA are missing, even if they are listed as a category.
    """
    places = Places.of(categories)
    missing = np.uint16(places.n + 1)
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        table = places.find(objects(column.cat.categories))
        return np.append(table, missing)[column.cat.codes.to_numpy()]
    if (isinstance(dtype, np.dtype) and dtype.kind in "biuf") or _is_typed_number(dtype):
        return _number_cells(column, places)
    values = getattr(column, "array", column)
    if family(dtype) == "text" and isinstance(values, pd.arrays.ArrowExtensionArray):
        # all values are text, which Arrow compares byte for byte
        codes, uniques = pd.factorize(values)
        return np.append(places.find(objects(uniques)), missing)[codes]
    return places.find(objects(column))


def _number_cells(column: Any, places: Places) -> NDArray[np.uint16]:
    """Look numbers up among the categories that are numbers."""
    values = numbers(column).astype(np.float64)
    known = sorted((form, k) for form, k in places.of_form.items() if isinstance(form, float))
    out = np.full(len(values), places.n, np.uint16)
    if known:
        key, cell = (np.array(part) for part in zip(*known, strict=True))
        at = np.minimum(np.searchsorted(key, values), len(key) - 1)
        hit = key[at] == values
        out[hit] = cell[at[hit]]
    out[np.isnan(values)] = places.n + 1
    return out
