"""Privacy units: how many rows each has over all chunks, and what weight that leaves to a row.

A unit with R rows gets ``⌊2**r · min(1, K / R)⌋`` steps for each of them, K the largest weight of a unit: all its rows
together weigh at most K. Units are known by keyed hashes of 128 bits, so that no two of them meet.

A row without a unit weighs nothing: rows of several people that counted as one unit would weigh more when one of them
left. So does a row whose unit has no exact name: a unit is a text, a number, a date, a UUID, or a tuple of these.
"""

import datetime
import decimal
import hashlib
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpgb_dask.contracts.plan import Shape
from dpgb_dask.encode import is_missing, is_plain, is_real, objects, one_column

HASH = np.dtype([("high", "<u8"), ("low", "<u8")])
NO_UNIT = np.zeros((), HASH)[
    ()
]  # of rows that weigh nothing; no unit has it, but with probability 2**-128
EXACT = 2.0**53  # whole numbers below are exact as floats
MAX_EXPONENT = 400  # of a decimal: above, its digits as a whole number could fill the memory
TIMES = frozenset(
    {"Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"}
)  # dates that `pd.Timestamp` holds exactly


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
        Private side. Integer division rounds down: R · ⌊K · 2**r / R⌋ <= K · 2**r, the bound of a whole unit. Rows
        without a unit weigh 0, and so do rows of one that was not counted.
        """
        if not len(self.units):
            return np.zeros(len(units), np.int32)
        one, most = 1 << shape.weight_bits, shape.max_weight << shape.weight_bits
        place = np.searchsorted(self.units, units).clip(max=len(self.units) - 1)
        counted = (self.units[place] == units) & (units != NO_UNIT)
        return np.where(counted, np.minimum(one, most // self.rows[place]), 0).astype(np.int32)

    @property
    def mark(self) -> int:
        """The units of all rows as one number of 64 bits: what `mark_units` of the same rows adds up to."""
        rows = self.rows.astype(np.uint64)
        return int((np.ascontiguousarray(self.units["low"]) * rows).sum(dtype=np.uint64))


def hash_units(column: Any, key: bytes) -> NDArray[np.void]:
    """Return a keyed hash of every row's unit, `NO_UNIT` where it has none. Never raises on a value.

    Privacy
    -------
    Private side. A row's hash depends on its own value alone, so integers of 2⁵³ and above in a column of a NumPy type
    are no unit (as text, Arrow or nullable integers they are). Values that Python calls equal (5, 5.0, Decimal(5)) are
    one unit, as are a text and its UTF-8 bytes, and a time in two time zones.
    """
    column = one_column(column)
    values = objects(column)
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":
        # one missing value elsewhere makes NumPy floats of such integers, which rounds them: too large to be told apart
        with np.errstate(all="ignore"):
            exact = np.abs(np.asarray(column, np.float64)) < EXACT
        values = [value if known else None for value, known in zip(values, exact, strict=True)]
    if is_plain(values):
        known = {value: _digest(value, key) for value in set(values)}
        digests = [known[value] for value in values]
    else:
        digests = [_digest(value, key) for value in values]
    return np.frombuffer(b"".join([*digests, NO_UNIT.tobytes()]), HASH)[:-1]


def mark_units(units: NDArray[np.void]) -> int:
    """Return the units of some rows as one number: a sum of keyed hashes modulo 2⁶⁴. Private."""
    return int(np.ascontiguousarray(units["low"]).sum(dtype=np.uint64))


def _digest(value: Any, key: bytes) -> bytes:
    try:
        name = _name(value)
    except Exception:  # a total map: what cannot be written down exactly is no unit
        name = None
    if name is None:
        return bytes(NO_UNIT.tobytes())
    return hashlib.blake2b(name, key=key, digest_size=16, person=b"dpgb-unit").digest()


def _name(value: Any) -> bytes | None:
    """Write a value as bytes that tell it from every other value; None if it is missing or no such bytes are known."""
    if is_missing(value):
        return None
    for kind, write in WRITERS:
        if isinstance(value, kind):
            return write(value)
    return _number_name(value) if is_real(value) else None


def _tuple_name(values: tuple[Any, ...]) -> bytes | None:
    names = [_name(value) for value in values]
    written = [b"%d:" % len(name) + name for name in names if name is not None]
    return b"t" + b"".join(written) if len(written) == len(names) else None


def _date_name(value: Any) -> bytes | None:
    if isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] not in TIMES:
        return None
    stamp = pd.Timestamp(value)
    if stamp.tzinfo is not None:
        stamp = stamp.tz_convert("UTC")
    return b"d" + stamp.isoformat().encode()


def _number_name(value: Any) -> bytes | None:
    """Write a number as a fraction, which is exact for every type."""
    if value in (math.inf, -math.inf):
        return b"+inf" if value > 0 else b"-inf"
    if isinstance(value, decimal.Decimal) and abs(value.adjusted()) > MAX_EXPONENT:
        return None
    exact = value.item() if isinstance(value, np.generic) else value
    parts = exact.as_integer_ratio()
    top, bottom = (
        part.to_bytes(part.bit_length() // 8 + 1, "little", signed=True) for part in parts
    )
    return b"n%d:" % len(top) + top + bottom


WRITERS: tuple[tuple[Any, Callable[[Any], bytes | None]], ...] = (
    (str, lambda text: b"s" + text.encode("utf-8", errors="surrogatepass")),
    (bytes, lambda text: b"s" + text),
    (uuid.UUID, lambda name: b"u" + name.bytes),
    (tuple, _tuple_name),
    ((np.datetime64, datetime.date), _date_name),
)


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
