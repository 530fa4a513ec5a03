"""A small model with every part, its schema, and rows to score."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.model import (
    MAX_BINS,
    BinShares,
    FeatureBins,
    Model,
    NoiseBands,
    PairTable,
    Splits,
    TreeEnsemble,
)
from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.released.report import PrivacyReport


@pytest.fixture(scope="session")
def model() -> Model:
    """Bins on the four features of `binary_schema`, tables, one pair table and three trees of depth 2, with masks."""
    rng = np.random.default_rng(7)
    bins = (
        FeatureBins(np.array([-1.0, 0.0, 0.5, 2.0]), None, 6),
        FeatureBins(np.array([0.25]), None, 3),
        FeatureBins(np.arange(10, 80, 10) + 0.5, None, 9),
        FeatureBins(None, np.array([0, 1, 2, 1, 3], np.uint8), 4),
    )
    tables = tuple(rng.integers(-90_000, 90_000, (b.n_bins, 1)).astype(np.int32) for b in bins)
    pair = PairTable(
        0,
        3,
        np.array([0, 0, 1, 1, 2, 2], np.uint8),
        np.array([0, 1, 1, 0], np.uint8),
        rng.integers(-40_000, 40_000, (1, 3, 2)).astype(np.int32),
    )
    feature = np.array([[0, 3, 2], [3, 1, 0], [2, 2, 1]], np.uint16)
    threshold = rng.integers(0, 3, (3, 3)).astype(np.uint8)
    mask_of = np.array([[-1, 0, -1], [1, -1, 2], [-1, -1, -1]], np.int32)
    masks = np.zeros((3, MAX_BINS), np.uint8)
    masks[0, [0, 2]] = masks[1, [1, 3]] = masks[2, [3, 4, 5]] = 1
    trees = TreeEnsemble(
        Splits(feature, threshold, mask_of, masks),
        rng.integers(-20_000, 20_000, (1, 3, 4)).astype(np.int32),
    )
    intercept = np.array([12_345], np.int32)
    return Model(bins, intercept, tables, (pair,), trees, link="clipped_logit")


@pytest.fixture(scope="session")
def shares(model: Model) -> BinShares:
    """Shares of the bins of ``model``: of released counts, except those of the second feature."""
    rng = np.random.default_rng(9)
    counts = [rng.uniform(1, 300, b.n_bins) for b in model.bins]
    counts[1] = counts[1][:0]
    return BinShares.of(model.bins, counts)


@pytest.fixture(scope="session")
def bands(model: Model) -> NoiseBands:
    """Standard deviations of the noise in ``model``, made up."""
    rng = np.random.default_rng(10)

    def sds(like):
        return rng.integers(0, 9000, like.shape)

    return NoiseBands(
        mains=tuple(map(sds, model.tables)),
        pairs=tuple(sds(pair.table) for pair in model.pairs),
        leaves=sds(model.trees.value),
    )


@pytest.fixture(scope="session")
def no_bands() -> NoiseBands:
    """Bands of a recipe that knows none."""
    return NoiseBands(why="not known")


@pytest.fixture(scope="session")
def three_score_model(model: Model) -> Model:
    """The same with three score columns."""
    rng = np.random.default_rng(8)
    tables = tuple(
        rng.integers(-90_000, 90_000, (b.n_bins, 3)).astype(np.int32) for b in model.bins
    )
    p, t = model.pairs[0], model.trees
    pair = replace(p, table=rng.integers(-40_000, 40_000, (3, 3, 2)).astype(np.int32))
    trees = replace(t, value=rng.integers(-20_000, 20_000, (3, 3, 4)).astype(np.int32))
    intercept = np.array([1, -2, 3], np.int32)
    return Model(model.bins, intercept, tables, (pair,), trees, link="softmax")


@pytest.fixture(scope="session")
def report() -> PrivacyReport:
    """A report of three releases that fill their price."""
    third = PRICE_ONE // 30
    receipts = tuple(
        Receipt("fit-1", f"{k:02x}", k, label, third, 1 << 21, 6)
        for k, label in enumerate(["bins", "main 1/2", "main 2/2"])
    )
    return PrivacyReport(
        private=True,
        epsilon=1.0,
        delta=1e-6,
        mu=0.25,
        epsilon_zcdp=1.3,
        relation="add or remove one row",
        unit="row",
        recipe="auto",
        source="this project",
        fit_id="fit-1",
        account=None,
        receipts=receipts,
        declared=3 * third,
        charged=3 * third,
        slack=1e-12,
        public={"schema": {"age": [0, 90]}},
        assumptions=("the cluster is trusted",),
        deviations=("candidates come from public bounds",),
        version="0.1.0",
    )


@pytest.fixture(scope="session")
def rows(features: pd.DataFrame) -> pd.DataFrame:
    """Rows to score, with values that no schema expects."""
    table = features.copy()
    table.loc[3, "x"] = np.inf
    table.loc[4, "x"] = -1e300
    table.loc[5, "color"] = "ultraviolet"
    return table
