"""A whole model made monotone: ordered everywhere, near to what it was, and unchanged where it is ordered."""

import itertools

import numpy as np
import pytest

from dpgb_dask.contracts.model import (
    SHARE_ONE,
    BinShares,
    FeatureBins,
    Model,
    PairTable,
    Splits,
    TreeEnsemble,
)
from dpgb_dask.released.monotone import monotone_model
from dpgb_dask.released.predict import scorer

BINS = (
    FeatureBins(np.arange(5.0), None, 7),
    FeatureBins(np.arange(2.0), None, 4),
    FeatureBins(None, np.arange(4, dtype=np.uint8), 4),
)
CODES = np.array(list(itertools.product(*(range(b.n_bins) for b in BINS))), np.uint8).T.copy()


def some_model(seed, n_trees=40):
    rng = np.random.default_rng(seed)
    shape = (n_trees, 15)
    feature = rng.integers(0, 3, shape).astype(np.uint16)
    threshold = rng.integers(0, 5, shape).astype(np.uint8)
    mask_of = np.where(rng.random(shape) < 0.2, rng.integers(0, 4, shape), -1).astype(np.int32)
    masks = np.zeros((4, 256), np.uint8)
    masks[:, :7] = rng.integers(0, 2, (4, 7))
    value = rng.integers(-2000, 2000, (1, n_trees, 16)).astype(np.int32)
    trees = TreeEnsemble(Splits(feature, threshold, mask_of, masks), value)
    slope = np.append(np.arange(6) * 20_000, 7)[:, None].astype(np.int32)
    others = [rng.integers(-9999, 9999, (b.n_bins, 1)).astype(np.int32) for b in BINS[1:]]
    maps = (np.array([1, 0, 1, 1]), np.array([0, 0, 1, 1, 2, 2, 2]))
    pair = PairTable(
        2,
        0,
        *(m.astype(np.uint8) for m in maps),
        rng.integers(-9000, 9000, (1, 2, 3)).astype(np.int32),
    )
    model = Model(BINS, np.array([5], np.int32), (slope, *others), (pair,), trees)
    return model, BinShares.of(BINS, [rng.uniform(1, 9, b.n_bins) for b in BINS])


def grid(model):
    return scorer(model)(CODES)[:, 0].astype(np.int64).reshape([b.n_bins for b in BINS])


@pytest.mark.parametrize("directions", [(1, 0, 0), (-1, 0, 0), (1, -1, 0)])
@pytest.mark.parametrize("seed", range(3))
def test_the_whole_model_becomes_monotone(seed, directions):
    model, shares = some_model(seed)
    directions = np.array(directions, np.int8)
    out = monotone_model(model, shares, directions)
    for j in np.flatnonzero(directions):
        values = np.take(grid(out), range(BINS[j].missing_bin), axis=j)
        assert (np.diff(values, axis=j) * directions[j] >= 0).all()
    assert monotone_model(out, shares, directions) is out


def test_a_model_that_nearly_is_monotone_hardly_moves():
    model, shares = some_model(1, n_trees=10)
    before, after = grid(model), grid(monotone_model(model, shares, np.array([1, 0, 0], np.int8)))
    weight = np.einsum("i,j,k->ijk", *(w / SHARE_ONE for w in shares.weights))
    centred = before - (weight * before).sum()
    moved = (weight * (after - before) ** 2).sum() / (weight * centred**2).sum()
    assert 0 < moved < 0.05
    assert abs((weight * (after - before)).sum()) < 20  # the mean stays, but for rounding
