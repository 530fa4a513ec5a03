"""How many rows a shard holds."""

import numpy as np
import pytest

from dpgb_dask import Schema
from dpgb_dask.io import layout
from dpgb_dask.private.reading.ingest import check_inputs


@pytest.mark.parametrize("width", [1, 28, 5000])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_shards_are_neither_small_nor_large(width, dtype):
    schema = Schema({f"f{j}": (0, 1) for j in range(width)}, classes=[0, 1])
    inputs = check_inputs(np.zeros((0, width), dtype), np.zeros(0), None, schema)
    rows = layout.rows_per_shard(layout.Layout.of(inputs, schema), None)
    assert rows & (rows - 1) == 0
    assert layout.LEAST_ROWS <= rows <= layout.MOST_ROWS
    assert (
        rows == layout.LEAST_ROWS or rows * width * np.dtype(dtype).itemsize <= layout.SHARD_BYTES
    )
    assert (
        rows == layout.MOST_ROWS or 2 * rows * width * np.dtype(dtype).itemsize > layout.SHARD_BYTES
    )
