"""A block's columns as numbers, or as positions of categories, of groups or of buckets; each value is read by itself.

Total maps: they never raise or warn on a value (docs/design.md §1).
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_extension_array_dtype

from dpgb_dask.contracts.features import TRUTHS, Bool, Categorical, Grouped, Hashed
from dpgb_dask.contracts.schema import Schema

# a tuple holds 1-D columns in schema order
from dpgb_dask.encoding.structure import SourceBlock, family, is_numbered
from dpgb_dask.kernels.bin import MAX_EDGES, cell_column
from dpgb_dask.values import (
    MISSING_WORDS,
    NO_FORM,
    UNREADABLE,
    as_text,
    cells,
    exact_id,
    form_text,
    is_missing,
    is_plain,
    read_numbers,
)

ARROW_FLOATS = frozenset({"float[pyarrow]", "double[pyarrow]"})
OF_PANDAS = "extension<pandas."  # how Arrow's types of pandas' periods and intervals begin
KEPT = 64  # most mappings whose index is kept


# ---- columns and numbers ---------------------------------------------------------------------------------------------


def n_rows(block: SourceBlock) -> int:
    """Return the number of rows of a block. Private."""
    return len(block[0]) if isinstance(block, tuple) else len(block)


def split_columns(block: SourceBlock, schema: Schema) -> list[Any]:
    """Return the feature columns of a block in schema order, without copying.

    The columns of the whole collection were checked, but a partition may have other ones, if they are made from values
    partition by partition. So columns are found by name, and all values of an absent column are missing.
    """
    if isinstance(block, tuple):
        return list(block)
    if isinstance(block, pd.DataFrame):
        if is_numbered(block.columns) and len(block.columns) == schema.n_features:
            return [block.iloc[:, k] for k in range(schema.n_features)]
        names = [str(name) for name in block.columns]
        place = {name: k for k, name in reversed(list(enumerate(names)))}
        return [
            block.iloc[:, place[name]] if name in place else np.full(len(block), np.nan)
            for name in schema.names
        ]
    return [block[:, k] for k in range(block.shape[1])]


def existing(part: pd.DataFrame, columns: list[Any]) -> pd.DataFrame:
    """Return those of some columns that a partition has."""
    return part[[column for column in columns if column in part.columns]]


def as_columns(block: SourceBlock, schema: Schema) -> SourceBlock:
    """Return a frame as a tuple of its feature columns, and any other block as it is, without copying.

    Whoever takes rows strip by strip calls it first: cutting and naming a frame's columns costs more than reading them.
    Columns of NumPy's types, and Arrow's floats that none is missing of, become arrays over the same memory.
    """
    if not isinstance(block, pd.DataFrame):
        return block
    return tuple(_bare(column) for column in split_columns(block, schema))


def _bare(column: Any) -> Any:
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "biufc":
        return column.to_numpy() if isinstance(column, pd.Series) else column
    values = _arrow_floats(column)
    if values is None or values.null_count or values.num_chunks != 1:
        return column
    return values.chunk(0).to_numpy()


def _arrow_floats(column: Any) -> Any:
    """Return the Arrow array, in chunks, of a column of Arrow's float32 or float64; None for any other column."""
    is_one = isinstance(column, pd.Series) and str(column.dtype) in ARROW_FLOATS
    return column.array.__arrow_array__() if is_one else None


def one_column(y: Any) -> Any:
    """Return a one-dimensional column from (n,) or (n, 1)."""
    if isinstance(y, pd.DataFrame):
        return y.iloc[:, 0]
    return y[:, 0] if y.ndim == 2 else y


def native(values: NDArray[Any]) -> NDArray[Any]:
    """Return values in this machine's byte order, which kernels require."""
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def objects(column: Any) -> list[Any]:
    """Return a column's values as Python objects: None for a masked value, `UNREADABLE` if reading a value fails."""
    if isinstance(column, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(column).tolist()
        return [None if m else value for value, m in zip(objects(column.data), masked, strict=True)]
    kind = str(getattr(column.dtype, "pyarrow_dtype", ""))
    if kind.startswith(OF_PANDAS):
        return _of_pandas(getattr(column, "array", column).__arrow_array__())
    # of Python's last hours, as New York's clocks tell them, pandas makes no value in New York's time
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        column = getattr(column, "array", column).tz_convert("UTC")
    # of listed dates pandas makes Python's, which end in the year 9999
    if kind.startswith("dictionary<values=timestamp"):
        values = getattr(column, "array", column).__arrow_array__()
        return objects(pd.arrays.ArrowExtensionArray(values.cast(values.type.value_type)))
    if kind.startswith("timestamp"):
        values = getattr(column, "array", column).__arrow_array__()
        column = values.cast(kind.split(",", maxsplit=1)[0].removesuffix("]") + "]").to_numpy()
    if getattr(column.dtype, "kind", "") == "U" and column.dtype.itemsize:
        column = _in_unicode(native(np.asarray(column)))
    # tolist would turn dates into integers
    read = list if getattr(column.dtype, "kind", "") in "Mm" else type(column).tolist
    try:
        return list(read(column))
    except Exception:  # such as an Arrow date beyond Python's calendar: then read values one by one
        items = column.array if isinstance(column, pd.Series) else column
        return [_item(items, k) for k in range(len(items))]


def _in_unicode(texts: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return texts with marks for numbers that no character has: NumPy makes text of them that Python fails on."""
    characters = np.ascontiguousarray(texts).view(np.uint32)
    beyond = characters > sys.maxunicode
    if not beyond.any():
        return texts
    return np.where(beyond, np.uint32(0xFFFD), characters).view(texts.dtype).reshape(texts.shape)


def _of_pandas(values: Any) -> list[Any]:
    """Return Arrow values of a type of pandas, of which Arrow itself knows what they are made of alone."""
    made = values.type.to_pandas_dtype()
    if isinstance(made, pd.IntervalDtype):
        return [value for chunk in values.chunks for value in _intervals(chunk, made)]
    return list(made.__from_arrow__(values))


def _intervals(chunk: Any, made: pd.IntervalDtype) -> list[Any]:
    """Return intervals, each by its own ends: an array of pandas rounds whole numbers beside an end that is missing."""
    ends = chunk.storage.flatten()
    there = np.array([end.is_valid() for end in ends], bool)
    whole, some = np.logical_and(*there), np.logical_or(*there)
    # with NumPy's numbers, as pandas has them
    left, right = (end.filter(whole).to_pandas().array for end in ends)
    read = (_interval(*both, made.closed) for both in zip(left, right, strict=True))
    return [
        next(read) if both else UNREADABLE if one else None
        for both, one in zip(whole, some, strict=True)
    ]


def _interval(left: Any, right: Any, closed: Any) -> Any:
    if is_missing(left) and is_missing(right):
        return None
    try:
        return pd.Interval(left, right, closed)
    except Exception:  # such as one that ends before it begins
        return UNREADABLE


def _item(items: Any, k: int) -> Any:
    try:
        return items[k]
    except Exception:
        return UNREADABLE


def series_of(variable: Any) -> pd.Series | None:
    """Return a variable of xarray as a series if it is in memory and of a type of pandas; None for any other."""
    return pd.Series(variable.data) if is_extension_array_dtype(variable.dtype) else None


def as_array(column: Any) -> NDArray[Any]:
    """Return a column in memory as an array: of some types of pandas, pandas itself has no conversion."""
    if not is_extension_array_dtype(column.dtype) or is_typed_number(column.dtype):
        return np.asarray(column)
    return np.fromiter(objects(column), object, len(column))


def exact_ids(column: pd.Series) -> pd.Series:
    """Return the ids of a column as the readers of this library do: text and whole numbers as `ExactId`, unrounded.

    Parameters
    ----------
    column : (n,) Series
        As it stands in the file: text, or integers whose type the file declares. If a reader inferred the type, ids may
        have been rounded already.

    Returns
    -------
    (n,) Series of objects

    Privacy
    -------
    Private side. Each id depends on its own value alone.
    """
    out = np.empty(len(column), object)
    out[:] = [exact_id(value) for value in objects(column)]
    return pd.Series(out, index=column.index, name=column.name, dtype=object)


def with_read(
    frame: pd.DataFrame, names: Iterable[Any], read: Callable[[pd.Series], Any]
) -> pd.DataFrame:
    """Return a frame with some of its columns read: `DataFrame.assign` takes no column named self."""
    frame = frame.copy(deep=False)
    for name in names:
        frame[name] = read(frame[name])
    return frame


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
    elif (floats := _arrow_floats(column)) is not None:
        # whatever the chunks, of Arrow's own type: a mark covers the bits; in one chunk without null no copy
        out = (floats.chunk(0) if floats.num_chunks == 1 else floats).to_numpy(zero_copy_only=False)
    elif is_typed_number(dtype):
        out = np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    else:
        out = read_numbers(objects(column))
    return out


def is_typed_number(dtype: Any) -> bool:
    """Whether a type holds only real numbers and missing values, which pandas converts to floats as they are."""
    if family(dtype) != "number" or isinstance(dtype, pd.CategoricalDtype):
        return False
    # not decimals, which are rounded one by one, and not an Arrow dictionary, which is read through its list
    arrow = str(dtype.pyarrow_dtype) if isinstance(dtype, pd.ArrowDtype) else ""
    return not arrow.startswith(("decimal", "dictionary"))


def _plain_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return a NumPy column of numbers as float32 or float64."""
    if values.dtype.kind == "f" and values.dtype.itemsize in (4, 8):
        return native(values)
    if values.dtype.kind == "c":
        # one complex number makes the whole column complex, but the other values are still real numbers
        return np.where(values.imag == 0, values.real, np.nan).astype(np.float64)
    return np.asarray(values.astype(np.float64))


# ---- categories ------------------------------------------------------------------------------------------------------


class Index(Protocol):
    """What finds the cell of a value: one of ``n`` cells, n for any other value, n + 1 for a missing one."""

    @property
    def n(self) -> int:
        """Number of cells, without "other" and missing."""

    def each(self, values: list[Any]) -> list[int]:
        """Return the cell of each value, which has its own type."""

    def of_numbers(self, values: NDArray[np.float64]) -> NDArray[np.uint16]:
        """Return the cell of each number; NaN is missing."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """An index of declared values: the cell of each normal form, and of each declared missing word.

    Parameters
    ----------
    of_form : dict of float or str to int
    of_word : dict of str to int
        Declared values that readers take for missing, such as "None"; only a text matches them.
    n : int
    numbers, cells : (n_numbers,) float64 and uint16
        The declared numbers, ascending, and their cells.
    """

    of_form: dict[Any, int]
    of_word: dict[str, int]
    n: int
    numbers: NDArray[np.float64]
    cells: NDArray[np.uint16]

    @classmethod
    def of(cls, values: Sequence[Any], place: Sequence[int] | None = None) -> "Places":
        """Index declared values, whose normal forms are distinct; ``place`` is the cell of each, if not its own."""
        at = range(len(values)) if place is None else place
        forms = zip(cells(values), at, strict=True)
        of_form = {form: k for form, k in forms if form is not None and form is not NO_FORM}
        known = sorted((form, k) for form, k in of_form.items() if isinstance(form, float))
        words = {
            str(as_text(v)): k for v, k in zip(values, at, strict=True) if as_text(v) is not None
        }
        # without "nan", which NumPy writes for a missing number in an array of text
        declared = (MISSING_WORDS - {"nan"}) & words.keys()
        return cls(
            of_form,
            {word: words[word] for word in declared},
            max(at, default=-1) + 1,
            np.array([number for number, _ in known], np.float64),
            np.array([k for _, k in known], np.uint16),
        )

    def each(self, values: list[Any]) -> list[int]:
        """Return the cell of each value, which has its own type."""
        places = [self._place(form) for form in cells(values)]
        if self.of_word:
            for k, text in enumerate(map(as_text, values)):
                if text in self.of_word:
                    places[k] = self.of_word[text]
        return places

    def _place(self, form: Any) -> int:
        return self.n + 1 if form is None else self.of_form.get(form, self.n)

    def of_numbers(self, values: NDArray[np.float64]) -> NDArray[np.uint16]:
        """Return the cell of each number; NaN is missing."""
        at = _count_below(values, self.numbers)
        # a value beyond all numbers, or a missing one, is none of them
        known = np.append(self.numbers, [np.nan, np.nan])[at] == values
        out = np.where(known, np.append(self.cells, np.zeros(2, np.uint16))[at], np.uint16(self.n))
        out[np.isnan(values)] = self.n + 1
        return out


def _count_below(
    values: NDArray[np.float64], numbers: NDArray[np.float64]
) -> NDArray[np.integer[Any]]:
    """Return how many of some ascending numbers are below each value; for a missing one, all or one more."""
    if len(numbers) > MAX_EDGES:
        return np.searchsorted(numbers, values)
    count = np.empty(len(values), np.uint16)
    cell_column(values, numbers, count)
    return count


@dataclass(frozen=True, slots=True)
class Buckets:
    """The bucket of every value, by a hash of its normal form (docs/schema.md §4)."""

    n: int

    def each(self, values: list[Any]) -> list[int]:
        """Return the bucket of each value, which has its own type."""
        return [self._bucket(form) for form in cells(values)]

    def _bucket(self, form: Any) -> int:
        if form is None or form is NO_FORM:
            return self.n + (form is None)
        return bucket_of(form, self.n)

    def of_numbers(self, values: NDArray[np.float64]) -> NDArray[np.uint16]:
        """Return the bucket of each number; NaN is missing."""
        distinct, at = np.unique(values, return_inverse=True)
        forms = (None if number != number else number for number in distinct.tolist())  # noqa: PLR0124 - NaN
        return np.array([self._bucket(form) for form in forms], np.uint16)[at]


def bucket_of(form: float | str, n: int) -> int:
    """Return the bucket of a normal form, the same in every process and version: SHA-256 of its text, modulo n."""
    text = form_text(form).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") % n


def feature_cells(
    column: Any, feature: Categorical | Bool | Grouped | Hashed
) -> NDArray[np.uint16]:
    """Return the cell of each value of a feature: its category, group or bucket; then "other" and missing."""
    match feature:
        case Categorical(categories):
            return category_cells(column, categories)
        case Bool():
            return category_cells(column, TRUTHS)
        case Grouped():
            return cells_by(column, _mapped(feature))
        case Hashed(buckets):
            return cells_by(column, Buckets(buckets))


@lru_cache(maxsize=KEPT)
def _mapped(feature: Grouped) -> Places:
    """Return the index of a mapping, which may have thousands of values; it serves many blocks."""
    place = {group: k for k, group in enumerate(feature.groups)}
    values = [value for value, _ in feature.mapping]
    return Places.of(values, [place[group] for _, group in feature.mapping])


def category_cells(column: Any, categories: Sequence[Any]) -> NDArray[np.uint16]:
    """Return each value's position in the K ``categories``; K for any other value, K + 1 for a missing one.

    Values match by their normal forms: ``1``, ``1.0``, ``True``, ``"1"`` and ``"01"`` are the same category. None, NaN
    and NA are missing, even if they are listed as a category.
    """
    return cells_by(column, Places.of(categories))


@np.errstate(all="ignore")
def cells_by(column: Any, index: Index) -> NDArray[np.uint16]:
    """Return the cell of each value of a column. Never raises or warns."""
    missing = np.uint16(index.n + 1)
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        table = _find(objects(column.cat.categories), index)
        return np.append(table, missing)[column.cat.codes.to_numpy()]
    if (isinstance(dtype, np.dtype) and dtype.kind in "biuf") or is_typed_number(dtype):
        return index.of_numbers(numbers(column).astype(np.float64))
    values = getattr(column, "array", column)
    if str(getattr(dtype, "pyarrow_dtype", "")).startswith("dictionary"):
        return np.concatenate([*_listed_cells(values, index), np.empty(0, np.uint16)])
    if family(dtype) == "text" and isinstance(values, pd.arrays.ArrowExtensionArray):
        # all values are text, which Arrow compares byte for byte
        codes, uniques = pd.factorize(values)
        return np.append(_find(objects(uniques), index), missing)[codes]
    return _find(objects(column), index)


def _listed_cells(values: Any, index: Index) -> Iterator[NDArray[np.uint16]]:
    """Yield the cells of each chunk of an Arrow dictionary, by its list: Arrow joins none of which one holds a null."""
    for chunk in values.__arrow_array__().chunks:
        listed = objects(pd.arrays.ArrowExtensionArray(chunk.dictionary))
        table = np.append(_find(listed, index), np.uint16(index.n + 1))
        yield table[chunk.indices.cast("int64").fill_null(len(listed)).to_numpy()]


def _find(values: list[Any], index: Index) -> NDArray[np.uint16]:
    if is_plain(values):  # look each distinct value up once
        distinct = list(set(values))
        table = dict(zip(distinct, index.each(distinct), strict=True))
        return np.fromiter(map(table.__getitem__, values), np.uint16, len(values))
    return np.array(index.each(values), np.uint16)
