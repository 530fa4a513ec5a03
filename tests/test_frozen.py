"""Records that are copied with other values of some fields, and arrays in pieces."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from dpgb_dask.frozen import altered, pieces, replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    low: int
    high: int = 3
    kept: tuple[int, ...] = field(default=())

    def __post_init__(self):
        if self.low > self.high:
            raise ValueError("low > high")


def test_a_replaced_record_is_that_of_dataclasses():
    record = Record(low=1, kept=(4, 5))
    assert replaced(record, low=2) == replace(record, low=2)
    assert replaced(record) == record
    assert record == Record(low=1, high=3, kept=(4, 5))


def test_a_replaced_record_is_checked_as_any_other():
    with pytest.raises(ValueError, match="low > high"):
        replaced(Record(low=1), low=4)
    with pytest.raises(AttributeError, match="width"):
        replaced(Record(low=1), width=4)


def test_an_altered_record_is_that_of_dataclasses_without_its_checks():
    record = Record(low=1, kept=(4, 5))
    assert altered(record, high=7) == replace(record, high=7)
    assert altered(record, low=4).low == 4
    assert record == Record(low=1, high=3, kept=(4, 5))


def test_pieces_are_those_of_split():
    joined = np.arange(24).reshape(12, 2)
    for sizes in ([12], [3, 0, 9], [1, 4, 5, 2]):
        parts = pieces(joined, sizes)
        wanted = np.split(joined, np.cumsum(sizes)[:-1])
        assert len(parts) == len(wanted)
        assert all(map(np.array_equal, parts, wanted))
        assert all(np.shares_memory(part, joined) for part in parts if len(part))
