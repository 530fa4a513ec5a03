"""Labels, targets and weights as integers within their public bounds."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dpgb_dask.contracts.schema import Schema
from dpgb_dask.encoding.target import encode_target, encode_weight
from dpgb_dask.errors import SchemaError

NAN = np.nan


def test_labels_unknown_are_invalid():
    schema = Schema({"x": (0, 1)}, classes=["no", "yes", "maybe"])
    label, valid = encode_target(pd.Series(["yes", "?", None, "maybe"]), schema)
    assert label.dtype == np.uint8
    assert label[valid].tolist() == [1, 2]
    assert valid.tolist() == [True, False, False, True]


@pytest.mark.parametrize("bounds", [(-2.0, 6.0), (-1.7e308, 1.7e308), (0.0, 1e-300)])
def test_numeric_targets_are_clipped_to_public_bounds(bounds):
    schema = Schema({"x": (0, 1)}, target_bounds=bounds)
    low, high = bounds
    y = np.array([low, high, low / 2 + high / 2, np.inf, -np.inf, NAN])
    steps, valid = encode_target(y, schema)
    assert steps.dtype == np.int32
    assert steps[:5].tolist() == [-65536, 65536, 0, 65536, -65536]
    assert valid.tolist() == [True] * 5 + [False]


def test_weights_are_rounded_down_and_clipped():
    w = np.array([0.0, 0.3, 1.0, 2.99, 9.0, np.inf, NAN, -1.0, -np.inf])
    steps = encode_weight(w, 3, 2)
    assert steps.dtype == np.int32
    assert steps.tolist() == [0, 1, 4, 11, 12, 12, 0, 0, 0]


@pytest.mark.parametrize("bounds", [(0, 5e-324), (-5e-324, 5e-324), (1e-310, 2e-310)])
def test_target_bounds_too_close_to_scale_are_refused(bounds):
    with pytest.raises(SchemaError, match="closer"):
        Schema({"x": (0, 1)}, target_bounds=bounds)


@pytest.mark.parametrize("bounds", [(0, 5e-308), (1.0, np.nextafter(1.0, 2)), (-1.7e308, 1.7e308)])
def test_target_steps_never_exceed_their_bound(bounds):
    schema = Schema({"x": (0, 1)}, target_bounds=(0, 1))
    schema.target = replace(schema.target, low=bounds[0], high=bounds[1])
    steps, _ = encode_target(np.array([*bounds, 0, np.inf, -np.inf, 1e300, NAN]), schema)
    assert np.abs(steps.astype(np.int64)).max() <= 65536
