"""Privacy units: how many rows each has over all chunks, and what weight that leaves to a row.

A unit with R rows gets ``⌊2**r · min(1, K / R)⌋`` steps for each of them, K the largest weight of a unit: all its rows
together weigh at most K. Units are known by keyed hashes of 128 bits, so that no two of them meet.
"""

import datetime
import decimal
import hashlib
import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpgb_dask.contracts.plan import Shape
from dpgb_dask.encode import one_column

NUMBER: tuple[type, ...] = (numbers.Real, decimal.Decimal, np.bool_)
HASH = np.dtype([("high", "<u8"), ("low", "<u8")])


@dataclass(frozen=True, eq=False, slots=True)
class UnitCounts:
    """Rows of every unit. Private.

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
        """Return the weight of a row of each of ``units``, in steps.

        Privacy
        -------
        Private side. Integer division rounds down: R · ⌊K · 2**r / R⌋ <= K · 2**r, the bound of a whole unit.
        """
        rows = self.rows[np.searchsorted(self.units, units)]
        one, most = 1 << shape.weight_bits, shape.max_weight << shape.weight_bits
        return np.minimum(one, most // rows).astype(np.int32)


def hash_units(column: Any, key: bytes) -> NDArray[np.void]:
    """Return a keyed hash of every row's unit; all rows without a unit are one unit. Never raises on a value."""
    column = one_column(column)
    try:
        codes, uniques = pd.factorize(column if isinstance(column, np.ndarray) else column.array)
        values = np.asarray(uniques, dtype=object)
    except Exception:  # something that cannot be hashed is in the column
        values = np.asarray(column, dtype=object)
        codes = np.arange(len(values))
    digests = [_digest(value, key) for value in values] + [_digest(None, key)]  # code -1: missing
    return np.frombuffer(b"".join(digests), HASH)[codes]


def _digest(value: Any, key: bytes) -> bytes:
    try:
        name = _canonical(value)
    except Exception:  # a total map: what cannot even be written down is one unit
        name = b"o"
    return hashlib.blake2b(name, key=key, digest_size=16, person=b"dpgb-unit").digest()


def _canonical(value: Any) -> bytes:
    """Write a value as bytes that do not depend on its type: equal values (5, 5.0, Decimal(5)) are one unit."""
    if isinstance(value, str | bytes):
        return b"s" + (value if isinstance(value, bytes) else _utf8(value))
    if value is None or value is pd.NA or bool(value != value):  # noqa: PLR0124
        return b"m"
    if isinstance(value, np.datetime64 | datetime.date):
        return b"d" + _utf8(pd.Timestamp(value).isoformat())
    if isinstance(value, complex) and value.imag == 0:
        value = value.real
    if isinstance(value, NUMBER) and not isinstance(value, np.timedelta64):
        return _number_name(value)
    return b"o" + _utf8(str(value))


def _number_name(value: Any) -> bytes:
    if math.isfinite(value) and value == int(value):
        return b"n%d" % int(value)
    return b"f" + _utf8(float(value).hex())


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogatepass")


def count_units(column: Any, key: bytes) -> UnitCounts:
    """Count the rows of each unit of one chunk. Private."""
    units, rows = np.unique(hash_units(column, key), return_counts=True)
    return UnitCounts(units, rows.astype(np.int64))


def add_unit_counts(parts: list[UnitCounts]) -> UnitCounts:
    """Add counts of several chunks; integers, so any order gives the same bits."""
    units, place = np.unique(np.concatenate([part.units for part in parts]), return_inverse=True)
    rows = np.zeros(len(units), np.int64)
    np.add.at(rows, place, np.concatenate([part.rows for part in parts]))
    return UnitCounts(units, rows)
