"""Privacy units: count the rows of each unit over all chunks, and derive a row's weight (docs/privacy.md P9).

Each row of a unit with R rows gets a weight of ``⌊2**r · min(1, K / R)⌋`` steps, where K is the largest weight of a
unit: all rows of a unit together weigh at most K. Units are identified by keyed hashes of 128 bits, so that two units
do not collide.

A unit consists of all rows whose ids have the same normal form (`values.cell`): 7, 7.0, "7" and "007" are one unit.
Some rows weigh nothing:

- a row without a unit: if rows of several people counted as one unit, they would weigh more when one of them left;
- a row whose id has no exact form; texts, numbers, dates, times, UUIDs and tuples of these have one;
- a row whose id is a number of 2⁵³ or above, or a text that spells one: readers round such numbers if another value of
  the column is missing. Only a reader of this library keeps them as they stand in the file.
"""

import hashlib
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.plan import Shape
from dpgb_dask.encoding.columns import numbers, objects, one_column
from dpgb_dask.values import is_plain, number_name, unit_names

HASH = np.dtype([("high", "<u8"), ("low", "<u8")])
# the hash of rows without a unit, which weigh nothing; a unit has it with probability 2**-128
NO_UNIT = np.zeros((), HASH)[()]
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?", re.ASCII)
MOST_CHARACTERS = 4000  # of a name that is read as a number: Python refuses much longer ones


@dataclass(frozen=True, eq=False, slots=True)
class UnitCounts:
    """Number of rows of every unit. Private.

    Parameters
    ----------
    units : (n_units,) HASH, increasing
    rows : (n_units,) int64
    """

    units: NDArray[np.void]
    rows: NDArray[np.int64]

    def __repr__(self) -> str:
        return "<unit counts>"

    def __sizeof__(self) -> int:
        return self.units.nbytes + self.rows.nbytes + 64

    def weights(self, units: NDArray[np.void], shape: Shape) -> NDArray[np.int32]:
        """Return the weight in steps of each row, given the units of the rows.

        Privacy
        -------
        Private side. Integer division rounds down: R · ⌊K · 2**r / R⌋ <= K · 2**r, the bound of a whole unit. Rows
        without a unit weigh 0, and so do rows of a unit that was not counted.
        """
        if not len(self.units):
            return np.zeros(len(units), np.int32)
        one, most = 1 << shape.weight_bits, shape.max_weight << shape.weight_bits
        place = np.searchsorted(self.units, units).clip(max=len(self.units) - 1)
        counted = (self.units[place] == units) & (units != NO_UNIT)
        return np.where(counted, np.minimum(one, most // self.rows[place]), 0).astype(np.int32)

    @property
    def mark(self) -> int:
        """A hash of the units of all rows, in 64 bits: the sum of `mark_units` over the same rows."""
        rows = self.rows.astype(np.uint64)
        return int((np.ascontiguousarray(self.units["low"]) * rows).sum(dtype=np.uint64))


def hash_units(column: Any, key: bytes) -> NDArray[np.void]:
    """Return a keyed hash of every row's unit, `NO_UNIT` for a row without one. Never raises on a value.

    Privacy
    -------
    Private side. A row's hash depends on its own value alone, not on the type of its column: all values of the same
    normal form (5, 5.0, Decimal(5), "5", "05"; a text and its UTF-8 bytes; a time in two time zones) are one unit.
    Numbers of 2⁵³ and above are no unit, unless a reader of this library kept them as `ExactId`.
    """
    names, place = distinct_names(column)
    none = bytes(NO_UNIT.tobytes())
    digests = [none if name is None else _digest(name, key) for name in names]
    return np.frombuffer(b"".join([*digests, none]), HASH)[:-1][place]


def distinct_names(column: Any) -> tuple[list[str | None], NDArray[np.intp]]:
    """Return the names of units, and for each row the index of its unit's name. Never raises on a value. Private.

    A name that is stored as `ExactId` and read back stays the same.
    """
    column = one_column(column)
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            values = numbers(column).astype(np.float64)
            distinct, place = np.unique(values, return_inverse=True)
        return [number_name(number) for number in distinct.tolist()], place
    given = objects(column)
    if not is_plain(given):
        return unit_names(given), np.arange(len(given))
    known = {value: k for k, value in enumerate(dict.fromkeys(given))}
    place = np.fromiter(map(known.__getitem__, given), np.intp, len(given))
    return unit_names(list(known)), place


def _digest(name: str, key: bytes) -> bytes:
    return hashlib.blake2b(_bytes(name), key=key, digest_size=16, person=b"dpgb-unit").digest()


def _bytes(name: str) -> bytes:
    """Return a name as bytes, different for different names: a number is written as a fraction, which is exact."""
    if len(name) > MOST_CHARACTERS or not NUMBER.fullmatch(name):
        return b"s" + name.encode()
    number: int | float = int(name) if name.lstrip("-").isdecimal() else float(name)
    if number in (math.inf, -math.inf):
        return b"s" + name.encode()
    top, bottom = (
        part.to_bytes(part.bit_length() // 8 + 1, "little", signed=True)
        for part in number.as_integer_ratio()
    )
    return b"n%d:" % len(top) + top + bottom


def mark_units(units: NDArray[np.void]) -> int:
    """Return a hash of the units of some rows: the sum of their keyed hashes modulo 2⁶⁴. Private."""
    return int(np.ascontiguousarray(units["low"]).sum(dtype=np.uint64))


def count_units(column: Any, key: bytes) -> UnitCounts:
    """Count the rows of each unit of one chunk. Private."""
    units, rows = np.unique(hash_units(column, key), return_counts=True)
    return UnitCounts(units, rows.astype(np.int64))


def add_unit_counts(parts: list[UnitCounts]) -> UnitCounts:
    """Add the counts of several chunks; they are integers, so any order gives the same bits."""
    units, place = np.unique(np.concatenate([part.units for part in parts]), return_inverse=True)
    rows = np.zeros(len(units), np.int64)
    np.add.at(rows, place, np.concatenate([part.rows for part in parts]))
    return UnitCounts(units, rows)
