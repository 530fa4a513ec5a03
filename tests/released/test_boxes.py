"""Groups of bins that no tree tells apart, beside a dull twin."""

import numpy as np
import pytest

from dpgb_dask.contracts.model import Splits
from dpgb_dask.released.explain.boxes import groups_of_bins


def one_by_one(splits, n_bins):
    """Return the groups, each bin by the sides on which all nodes of the feature send it."""
    out = []
    for j, n in enumerate(n_bins):
        seen = {}
        nodes = np.argwhere(splits.feature == j)
        group = []
        for code in range(n):
            sides = tuple(
                code > splits.threshold[t, k]
                if splits.mask_of[t, k] < 0
                else splits.masks[splits.mask_of[t, k]][code] == 1
                for t, k in nodes
            )
            group.append(seen.setdefault(sides, len(seen)))
        out.append(group)
    return out


@pytest.mark.parametrize("masked", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_groups_are_those_of_each_bin_by_itself(seed, masked):
    rng, n_bins = np.random.default_rng(seed), [1, 2, 7, 256]
    shape = (int(rng.integers(0, 5)), 7)
    mask_of = np.where(rng.random(shape) < masked, rng.integers(0, 3, shape), -1)
    splits = Splits(
        rng.integers(0, 4, shape).astype(np.uint16),
        rng.integers(0, 256, shape).astype(np.uint8),
        mask_of.astype(np.int32),
        rng.integers(0, 2, (3, 256)).astype(np.uint8),
    )
    found = groups_of_bins(splits, n_bins)
    assert [part.tolist() for part in found] == one_by_one(splits, n_bins)
    assert all(part.dtype == np.uint8 for part in found)
