"""Plain values of what a caller gives: one rule of what a number is, for all options."""

import decimal
import fractions
import math
from pathlib import Path

import numpy as np
import pytest

import dpgb_dask
from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.contracts.plan import Budget
from dpgb_dask.errors import PlanError
from dpgb_dask.scalars import finite_float, is_number, python_scalar, whole_number
from dpgb_dask.testing import SeededNoise

LIMITLESS = [10**400, math.nan, math.inf, np.float64("inf")]
NUMBERS = [0, -3, 2.5, *LIMITLESS, np.int8(1), np.uint64(2**63), np.float32(0.5)]
OTHERS = [
    True,
    np.True_,
    "1",
    None,
    1j,
    np.complex64(1),
    decimal.Decimal(1),
    fractions.Fraction(1, 2),
    [1],
    np.ones(1),
]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda v: repr(v)[:20])
def test_a_number(value):
    assert is_number(value)
    assert (finite_float(value) is None) == any(value is other for other in LIMITLESS)


@pytest.mark.parametrize("value", OTHERS, ids=repr)
def test_no_number(value):
    assert not is_number(value)
    assert finite_float(value) is None
    assert whole_number(value) is None


@pytest.mark.parametrize("value", OTHERS, ids=repr)
def test_options_refuse_what_is_no_number(value):
    """One option of each module that checks numbers."""
    with pytest.raises(PlanError):
        Budget(epsilon=value, delta=1e-6)
    for seed in (value, 1.5):
        with pytest.raises(PlanError, match=r"seed=.* must be a whole number"):
            SeededNoise(seed)
    schema = Schema({"a": (0, 1)}, classes=[0, 1])
    x, y = np.array([[0.0], [1.0]]), [0, 1]
    for option in ({"monotonic_cst": {"a": value}}, {"class_weight": {0: value}}):
        with pytest.raises(PlanError):
            DPGBClassifier(epsilon=1.0, schema=schema, columns="position", **option).fit(x, y)


def test_what_a_number_is_is_said_in_one_place():
    package = Path(dpgb_dask.__file__).parent
    again = "int | float) and not isinstance", "np.number) and not isinstance"
    assert not [
        p.name for p in package.rglob("*.py") if any(text in p.read_text() for text in again)
    ]


def test_a_scalar_of_numpy_becomes_pythons():
    given = [np.int64(3), np.float32(0.5), np.True_, np.str_("a"), 3, "a", None, [np.int64(1)]]
    found = [python_scalar(value) for value in given]
    assert found == [3, 0.5, True, "a", 3, "a", None, [1]]
    assert [type(value) for value in found[:4]] == [int, float, bool, str]
