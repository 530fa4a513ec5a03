"""Row block → uint8 codes, fine cells, labels and weights: total maps that never raise or warn on a value (DESIGN §1).

Out of bounds and ±inf fall in the outermost bin; NaN and what cannot be read as a number is missing; an unknown
category is "other"; an unknown label or a missing target makes the row weigh nothing. Only structure raises.
"""

import decimal
import math
import numbers as number_types
from collections.abc import Iterable, Sequence
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

Block: TypeAlias = (
    NDArray[Any] | pd.DataFrame | tuple[Any, ...]
)  # a tuple holds 1-D columns in schema order
Bins = Sequence[FeatureBins]

# Types whose equality is exact and agrees with their hash: a set or a parser of such values can confuse no two of them.
# Values of any other type never meet each other, as a foreign __eq__ may claim anything.
PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
UNREADABLE = object()  # stands for a value that fails when it is read from its column


# ---- structure -------------------------------------------------------------------------------------------------------


def match_names(names: Iterable[Any], schema: Schema, *, ordered: bool = True) -> tuple[int, ...]:
    """Return the position of every feature among ``names``.

    Parameters
    ----------
    names : iterable
        Column names of a table; ignored, target and unit columns may be among them.
    ordered : bool
        Whether the features must stand in schema order; a mapping of columns has none.

    Raises
    ------
    SchemaError
        If a feature is missing, out of order or there twice, or a column is not declared.
    """
    given = [str(name) for name in names]
    position = {name: k for k, name in enumerate(given)}
    dropped = {*schema.ignore, schema.target.name}
    if schema.unit_id is not None:
        dropped.add(schema.unit_id)
    missing = [name for name in schema.names if name not in position]
    extra = any(name not in schema.features and name not in dropped for name in given)
    if missing or extra:
        # a name that is not in the schema may be a row's value: of a table without a header, of columns made of values
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
    """Check names, order, width and dtypes of a block or its meta; no value is looked at.

    Parameters
    ----------
    block : ndarray, DataFrame, Series or tuple of 1-D arrays
        Anything with the structure of the data; may be empty.
    target : bool
        The block is the target, not the features.

    Returns
    -------
    tuple of int
        Position of every feature in the block; ``(0,)`` for a target.

    Raises
    ------
    SchemaError
        If columns are missing, renamed, reordered, not declared, or of a type that cannot be what is declared.
    StructureError
        If an array has the wrong number of dimensions or columns.
    """
    if target:
        if getattr(block, "ndim", 1) != 1 and not (block.ndim == 2 and block.shape[1] == 1):
            raise StructureError("The target must be one column.")
        dtype = block.dtype if hasattr(block, "dtype") else block.dtypes.iloc[0]
        if schema.target.type == "numeric":
            _check_numeric(schema.target.name, dtype, "target")
        else:
            _check_labels(schema.target.name, dtype, schema.target.classes, "target")
        return (0,)
    dtypes: Sequence[Any]
    if isinstance(block, pd.DataFrame):
        dtypes = list(block.dtypes)
        positions = _frame_positions(block, schema)
    elif isinstance(block, tuple):
        dtypes = [column.dtype for column in block]
        positions = _match_width(len(block), schema)
    else:
        if getattr(block, "ndim", None) != 2:
            raise StructureError("X must be a table with two dimensions: rows and features.")
        dtypes = [block.dtype] * block.shape[1]
        positions = _match_width(len(dtypes), schema)
    for (name, feature), k in zip(schema.features.items(), positions, strict=True):
        if isinstance(feature, Categorical):
            _check_labels(name, dtypes[k], feature.categories, "feature")
        else:
            _check_numeric(name, dtypes[k], "feature")
    return positions


def _frame_positions(frame: pd.DataFrame, schema: Schema) -> tuple[int, ...]:
    if any(isinstance(name, str) for name in frame.columns):
        return match_names(frame.columns, schema)
    # a frame made from an array has numbers for names: match by position, as for arrays
    return _match_width(len(frame.columns), schema)


def _match_width(width: int, schema: Schema) -> tuple[int, ...]:
    if width != schema.n_features:
        raise StructureError(
            f"X has no column names and another number of columns than the {schema.n_features} features of the schema: "
            "arrays match by position. Give exactly the declared columns."
        )
    return tuple(range(width))


def _check_numeric(name: str, dtype: Any, role: str) -> None:
    # the family alone: a dtype's name may hold the length of the longest text
    if (kind := family(dtype)) in ("text", "other"):
        raise SchemaError(
            f"{role} {name!r} is declared numeric but its column is of kind {kind!r}. "
            "Convert the column, or declare its categories."
        )


def _check_labels(name: str, dtype: Any, declared: tuple[Any, ...], role: str) -> None:
    """Raise if no value of the column's type can be one of the declared categories or classes."""
    text = all(isinstance(value, str) for value in declared)
    no_text = not any(isinstance(value, str) for value in declared)
    # a column of floats may be one that is all missing, so it is let in
    whole = family(dtype) == "number" and getattr(dtype, "kind", "f") in "iub"
    if declared and ((text and whole) or (no_text and family(dtype) == "text")):
        ours, theirs = ("text", "whole numbers") if text else ("numbers", "text")
        raise SchemaError(
            f"{role} {name!r} is declared with values that are {ours}, but its column holds {theirs}: none can match. "
            "Convert the column, or declare its values as they are."
        )


def family(dtype: Any) -> str:
    """Return "number", "text", "object" (untyped: each value decides for itself) or "other" (dates, …) of a dtype."""
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
    """Family of a categorical column's list; a Dask column may not know it yet."""
    if categories is None or len(categories) == 0 or "__UNKNOWN_CATEGORIES__" in categories:
        return "object"
    if pd.api.types.is_object_dtype(categories.dtype):
        return "text" if all(isinstance(value, str) for value in categories) else "object"
    return family(categories.dtype)


# ---- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Values:
    """The features of a block as kernels take them: floats, and the cells of categories.

    Parameters
    ----------
    matrix : (n, m) float32 or float64, or None
        All features, where the block is such a matrix.
    columns : tuple of ((n,) float32, float64 or uint16, or None)
        One per feature; None where the matrix is read.
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
    Private side, or prediction. A total map: never raises or warns on a value, and what is read of a value depends on
    it alone, never on its neighbours.
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
    """Return the codes of a block, as `encode_values` does of its values."""
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
        # one pass over the row-major matrix; categorical columns are skipped and follow below
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
    for cells, edges, b in zip(out, grid.edges, bins, strict=True):
        if b.edges is None:
            assert b.cell_to_bin is not None
            cells[: len(b.cell_to_bin)] = b.cell_to_bin
        elif edges is None or not np.isin(b.edges, edges).all():
            return None
        else:
            cells[: len(edges) + 2] = coarser_cells(edges, b.edges)
    return out


def encode_cells(cells: NDArray[np.uint16], bins_of_cell: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the codes that `encode_values` would give the values that lie in these cells.

    Parameters
    ----------
    cells : (m, n) uint16, C-order
    bins_of_cell : (m, most cells of a feature) uint8
        `bins_of_cells`.

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
    """Return labels and which rows have one.

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
    # halves, so that the range of two huge bounds does not overflow
    half = target.high / 2 - target.low / 2
    unit = (value / 2 - target.low / 2) / half  # in [0, 1]
    steps = np.rint((2 * unit - 1) * SCORE_ONE)
    # the bound that the sensitivity states, whatever the rounding above did
    return np.clip(steps, -SCORE_ONE, SCORE_ONE).astype(np.int32), valid


@np.errstate(all="ignore")
def encode_weight(weight: Any, max_weight: int, weight_bits: int) -> NDArray[np.int32]:
    """Return weights in steps of ``2**-weight_bits``, rounded down, in [0, max_weight]; a bad weight is 0.

    Privacy
    -------
    Private side. The bound is what every sensitivity is multiplied by.
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

    What a collection says of its columns was checked. Those of one partition may depend on its values, as where columns
    are made of values partition by partition: they are found by name, and one that is not there is missing in each row.
    """
    if isinstance(block, tuple):
        return list(block)
    if isinstance(block, pd.DataFrame):
        names = [str(name) for name in block.columns]
        if not any(isinstance(name, str) for name in block.columns):
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
    """Return values in this machine's byte order: kernels know no other."""
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def objects(column: Any) -> list[Any]:
    """Return a column's values as Python objects: None where masked, `UNREADABLE` where reading one fails."""
    if isinstance(column, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(column).tolist()
        return [None if m else value for value, m in zip(objects(column.data), masked, strict=True)]
    # tolist would make whole numbers of dates
    read = list if getattr(column.dtype, "kind", "") in "Mm" else type(column).tolist
    try:
        return list(read(column))
    except (
        Exception
    ):  # such as an Arrow date beyond Python's calendar: the others are read all the same
        items = column.array if isinstance(column, pd.Series) else column
        return [_item(items, k) for k in range(len(items))]


def _item(items: Any, k: int) -> Any:
    try:
        return items[k]
    except Exception:
        return UNREADABLE


def is_plain(values: Iterable[Any]) -> bool:
    """Whether all values are of exactly the types in `PLAIN`, and text and bytes (whose hashes meet) are not mixed."""
    types = set(map(type, values))
    return types <= PLAIN and not types >= {str, bytes}


def is_missing(value: Any) -> bool:
    """Whether a value is None, NA, NaT or a NaN of any type; False if it cannot be told."""
    try:
        return value is None or value is pd.NA or bool(value != value)  # noqa: PLR0124
    except Exception:
        return False


def is_real(value: Any) -> bool:
    """Whether a value is a real number of Python, NumPy or `decimal`; a time span is not."""
    real = isinstance(value, number_types.Real | decimal.Decimal | np.bool_)
    return real and not isinstance(value, np.timedelta64)


def numbers(column: Any) -> NDArray[Any]:
    """Return a column as float32 or float64; whatever is no number is NaN. Never raises or warns on a value."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        values = np.append(_parse(objects(column.cat.categories)), np.nan)
        out = values[column.cat.codes.to_numpy()]  # code -1 is the NaN at the end
    elif isinstance(column, np.ma.MaskedArray):
        out = numbers(column.data)
        mask = np.ma.getmaskarray(column)
        out = np.where(mask, out.dtype.type(np.nan), out) if mask.any() else out
    elif isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        out = _plain_numbers(column.to_numpy() if isinstance(column, pd.Series) else column)
    elif not isinstance(dtype, np.dtype) and family(dtype) == "number" and not _is_decimal(dtype):
        out = np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    else:
        out = _parse(objects(column))
    return out


def _plain_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return a NumPy column of numbers as float32 or float64."""
    if values.dtype.kind == "f" and values.dtype.itemsize in (4, 8):
        return _native(values)
    return np.asarray(values.astype(np.float64))


def _parse(values: list[Any]) -> NDArray[np.float64]:
    """Read each object as a number, NaN if it is none."""
    if is_plain(values):
        try:
            parsed = np.asarray(pd.to_numeric(np.array(values, dtype=object), errors="coerce"))
            if parsed.dtype.kind in "biuf":
                return parsed.astype(np.float64)
        except Exception:
            pass  # an integer beyond float64: read one by one, by the same rules
    return np.array([_parse_one(value) for value in values], dtype=np.float64)


def _parse_one(value: Any) -> float:
    try:
        if isinstance(value, str | bytes):
            return float(pd.to_numeric(np.array([value], dtype=object), errors="coerce")[0])
        return float(value) if is_real(value) else math.nan
    except OverflowError:  # an integer beyond every float: the bound
        return math.inf if value > 0 else -math.inf
    except Exception:  # a total map: an object may fail in its own way when it is read as a number
        return math.nan


def category_cells(column: Any, categories: Sequence[Any]) -> NDArray[np.uint16]:
    """Return each value's place in ``categories``; K for any other value, K + 1 for a missing one.

    Values match as Python compares them: ``1``, ``1.0`` and ``True`` are the same category. None, NaN and NA are
    missing, also where they are listed as a category.
    """
    n = len(categories)
    place = {
        _text(category): k for k, category in enumerate(categories) if not is_missing(category)
    }
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        table = _places(objects(column.cat.categories), place, n)
        return np.append(table, np.uint16(n + 1))[column.cat.codes.to_numpy()]
    if family(dtype) == "number" and not _is_decimal(dtype):
        return _number_cells(column, categories)
    values = getattr(column, "array", column)
    if family(dtype) == "text" and isinstance(values, pd.arrays.ArrowExtensionArray):
        # text alone, which Arrow compares byte for byte
        codes, uniques = pd.factorize(values)
        return np.append(_places(objects(uniques), place, n), np.uint16(n + 1))[codes]
    return _places(objects(column), place, n)


def _is_decimal(dtype: Any) -> bool:
    return isinstance(dtype, pd.ArrowDtype) and str(dtype.pyarrow_dtype).startswith("decimal")


def _number_cells(column: Any, categories: Sequence[Any]) -> NDArray[np.uint16]:
    """Look numbers up among the categories that are numbers."""
    n = len(categories)
    values = numbers(column).astype(np.float64)
    known = [(_parse_one(c), k) for k, c in enumerate(categories) if is_real(c)]
    known = [(number, k) for number, k in known if not math.isnan(number)]
    out = np.full(len(values), n, np.uint16)
    if known:
        key, cell = (np.array(part) for part in zip(*sorted(known), strict=True))
        at = np.minimum(np.searchsorted(key, values), len(key) - 1)
        hit = key[at] == values
        out[hit] = cell[at[hit]]
    out[np.isnan(values)] = n + 1
    return out


def _places(values: list[Any], place: dict[Any, int], n: int) -> NDArray[np.uint16]:
    """Return the place of each value, by its own comparisons with the categories and no other value's."""
    if is_plain(values):
        table = {value: _place(value, place, n) for value in set(values)}
        return np.fromiter(map(table.__getitem__, values), np.uint16, len(values))
    return np.array([_place(value, place, n) for value in values], dtype=np.uint16)


def _place(value: Any, place: dict[Any, int], n: int) -> int:
    """Place of one value."""
    if is_missing(value):
        return n + 1
    try:
        return place.get(_text(value), n)
    except Exception:  # cannot be hashed or compared, each object in its own way: no category
        return n


def _text(value: Any) -> Any:
    """Read bytes as UTF-8, as fixed-width text in Zarr is; leave anything else."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
