"""A block's columns as arrays of numbers, of objects or of category positions; each value is read by itself.

Total maps: they never raise or warn on a value (docs/design.md §1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpgb_dask.contracts.schema import Schema

# a tuple holds 1-D columns in schema order
from dpgb_dask.encoding.structure import SourceBlock, family, frame_positions, is_numbered
from dpgb_dask.values import (
    MISSING_WORDS,
    NO_FORM,
    UNREADABLE,
    as_text,
    cells,
    is_plain,
    read_numbers,
)


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
        names = [str(name) for name in block.columns]
        if is_numbered(block.columns):
            return [block.iloc[:, k] for k in frame_positions(block, schema)]
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


def native(values: NDArray[Any]) -> NDArray[Any]:
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
        return native(values)
    if values.dtype.kind == "c":
        # one complex number makes the whole column complex, but the other values are still real numbers
        return np.where(values.imag == 0, values.real, np.nan).astype(np.float64)
    return np.asarray(values.astype(np.float64))


@dataclass(frozen=True, slots=True)
class Places:
    """An index of a list of categories: the position of each normal form, and of each declared missing word.

    Parameters
    ----------
    of_form : dict of float or str to int
    of_word : dict of str to int
        Declared categories that readers take for missing, such as "None"; only a text matches them.
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
        """Return the position of each value: n for a value that is no category, n + 1 for a missing value."""
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
    """Return each value's position in the K ``categories``; K for any other value, K + 1 for a missing one.

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
