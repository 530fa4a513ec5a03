"""Records that are copied with other values of some fields."""

from dataclasses import dataclass, field, replace

import pytest

from dpgb_dask.frozen import replaced


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
    with pytest.raises(TypeError, match="width"):
        replaced(Record(low=1), width=4)
