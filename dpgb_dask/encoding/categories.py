"""A block's columns as positions of categories, of groups or of buckets; each value is read by itself. Total maps."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpgb_dask.contracts.features import TRUTHS, Bool, Categorical, Grouped, Hashed
from dpgb_dask.encoding.columns import is_typed_number, numbers, objects
from dpgb_dask.encoding.structure import family
from dpgb_dask.values import MISSING_WORDS, NO_FORM, as_text, cells, form_text, is_plain

KEPT = 64  # most mappings whose index is kept


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
        out = np.full(len(values), self.n, np.uint16)
        if len(self.numbers):
            at = np.minimum(np.searchsorted(self.numbers, values), len(self.numbers) - 1)
            hit = self.numbers[at] == values
            out[hit] = self.cells[at[hit]]
        out[np.isnan(values)] = self.n + 1
        return out


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
    if family(dtype) == "text" and isinstance(values, pd.arrays.ArrowExtensionArray):
        # all values are text, which Arrow compares byte for byte
        codes, uniques = pd.factorize(values)
        return np.append(_find(objects(uniques), index), missing)[codes]
    return _find(objects(column), index)


def _find(values: list[Any], index: Index) -> NDArray[np.uint16]:
    if is_plain(values):  # look each distinct value up once
        distinct = list(set(values))
        table = dict(zip(distinct, index.each(distinct), strict=True))
        return np.fromiter(map(table.__getitem__, values), np.uint16, len(values))
    return np.array(index.each(values), np.uint16)
