"""A model that does not fit the schema is refused before rows meet it: no row decides whether a fit fails."""

from dataclasses import replace

import numpy as np
import pytest
from outside.tables import Tables
from private.cases import BINS, model_of, rows_of, schema_of, shape_of

from dpgb_dask import DPGBClassifier, Ledger
from dpgb_dask.contracts.model import (
    SHARE_ONE,
    BinShares,
    FeatureBins,
    Splits,
    check_model,
    no_trees,
    whole_shares,
)
from dpgb_dask.contracts.plan import Execution, Plan
from dpgb_dask.contracts.queries import MainSumsQuery
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import logistic_gradient
from dpgb_dask.private.reading.chunks import Reading
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.rounds.local import LocalRounds

N = [b.n_bins for b in BINS]


def bins_with(cells):
    return (*BINS[:2], FeatureBins(None, np.array(cells, np.uint8), max(cells) + 1))


def pair(model, **change):
    return replace(model, pairs=(replace(model.pairs[0], **change), *model.pairs[1:]))


def trees(model, **change):
    return replace(model, trees=replace(model.trees, **change))


def splits(model, **change):
    return trees(model, splits=replace(model.trees.splits, **change))


class OwnArray(np.ndarray):
    """A class that workers do not know."""


BROKEN = {
    "a bin too few": lambda m: replace(m, bins=bins_with(range(N[2] - 1))),
    "a bin too many": lambda m: replace(m, bins=bins_with(range(N[2] + 1))),
    "a feature too few": lambda m: replace(m, bins=m.bins[:2], tables=m.tables[:2]),
    "another kind": lambda m: replace(m, bins=(m.bins[2], *m.bins[1:])),
    "bins of another class": lambda m: replace(m, bins=(None, *m.bins[1:])),
    "intercept": lambda m: replace(m, intercept=np.zeros(2, np.int32)),
    "a table too few": lambda m: replace(m, tables=m.tables[:2]),
    "a table too short": lambda m: replace(m, tables=(m.tables[0][:-1], *m.tables[1:])),
    "a table of int64": lambda m: replace(m, tables=(m.tables[0].astype(int), *m.tables[1:])),
    "an array's class": lambda m: replace(m, intercept=m.intercept.view(OwnArray)),
    "a pair's feature": lambda m: pair(m, i=3),
    "a pair's map": lambda m: pair(m, map_i=m.pairs[0].map_i[:-1]),
    "a pair's cell": lambda m: pair(m, map_j=np.full(N[m.pairs[0].j], 200, np.uint8)),
    "a pair's scores": lambda m: pair(m, table=np.concatenate([m.pairs[0].table] * 2)),
    "leaves": lambda m: trees(m, value=m.trees.value[:, :, :-1]),
    "a tree too few": lambda m: trees(m, value=m.trees.value[:, 1:]),
    "thresholds": lambda m: splits(m, threshold=m.trees.splits.threshold[:, 1:]),
    "a feature": lambda m: splits(m, feature=np.full_like(m.trees.splits.feature, 3)),
    "a mask": lambda m: splits(m, mask_of=np.full_like(m.trees.splits.mask_of, 99)),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("n_rows", [0, 3])
def test_a_model_that_does_not_fit_is_refused_with_and_without_rows(name, n_rows):
    model = model_of("binary")
    check_model(model, schema_of("binary"))
    rows = rows_of("binary", n=3)
    shape = shape_of("binary")
    source = read_source(*(None if part is None else part[:n_rows] for part in rows), shape.schema)
    rounds = LocalRounds(source, Reading(shape, bytes(32)), Execution(n_threads=1))
    query = MainSumsQuery(
        label="",
        price=1,
        gradient=logistic_gradient(0.5, 0.5),
        n_scores=1,
        leaf_of_bin=tuple(np.zeros(n, np.uint8) for n in N),
        n_leaves=(1, 1, 1),
    )
    with pytest.raises(PlanError, match=r"model|bins|cell_to_bin"):
        rounds.ask(BROKEN[name](model), query)
    rounds.close()


@pytest.mark.parametrize("name", BROKEN)
def test_a_model_that_does_not_fit_is_refused_after_one_that_does(name):
    """Only what both models have in common is not looked at again."""
    model, schema = model_of("binary"), schema_of("binary")
    check_model(model, schema)
    check_model(replace(model), schema, model)
    with pytest.raises(PlanError, match=r"model|bins|cell_to_bin"):
        check_model(BROKEN[name](model), schema, model)


@pytest.mark.parametrize(
    ("edges", "cells"),
    [
        ([0.0, np.nan], None), ([0.0, np.inf], None), ([1.0, 0.0], None), ([0.0, 0.0], None),
        (np.zeros((1, 1)), None), (np.arange(2), None), (np.arange(2, dtype=np.float32), None),
        (None, np.array([-1, 0, 1, 2], np.int16)), (None, np.zeros((1, 1), np.uint8)),
    ],
)  # fmt: skip
def test_bins_that_no_kernel_reads_are_refused(edges, cells):
    edges = None if edges is None else np.asarray(edges)
    with pytest.raises(ValueError, match="must be"):
        FeatureBins(edges, cells, 4)


class Forgetful(Tables):
    """Categorical bins without one for missing values."""

    def public_bins(self, shape):
        return tuple(
            b if b.edges is not None else FeatureBins(None, b.cell_to_bin[:-1], b.n_bins)
            for b in super().public_bins(shape)
        )


def test_public_bins_that_do_not_fit_are_refused_before_the_charge(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path}/budget.db")
    ledger.open_account("people", epsilon=4.0, delta=1e-5)
    opened = ledger.history("people")
    plan = Plan("forgetful", "a test", (Forgetful(rounds=2),), pure=True)
    x, y = rows_of("binary", n=50)[:2]
    fit = DPGBClassifier(
        epsilon=1.0, schema=schema_of("binary"), recipe=plan, ledger=ledger, account="people"
    )
    with pytest.raises(PlanError, match="cell_to_bin of"):
        fit.fit(x, y)
    assert ledger.history("people") == opened


def test_shares_sum_to_one_and_differ_from_the_counts_by_less_than_a_step():
    rng = np.random.default_rng(0)
    for n_bins in (1, 2, 5, 256):
        counts = rng.lognormal(3, 3, n_bins)
        shares = whole_shares(counts)
        assert shares.dtype == np.int64
        assert shares.sum() == SHARE_ONE
        assert (np.abs(shares - counts / counts.sum() * SHARE_ONE) < 1).all()
    np.testing.assert_array_equal(whole_shares(np.ones(3)) - SHARE_ONE // 3, [1, 0, 0])


def test_shares_are_equal_where_no_counts_were_released():
    shares = BinShares.of(BINS, [np.arange(1.0, BINS[0].n_bins + 1), np.ones(1)])
    assert shares.released == (True, False, False)
    assert shares.weights[0][0] < shares.weights[0][-1]
    assert all(np.ptp(part) <= 1 for part in shares.weights[1:])
    with pytest.raises(ValueError, match="read-only"):
        shares.weights[0][0] = 1


def test_leaves_lie_in_the_order_that_kernels_need_however_they_were_made():
    value = np.arange(24, dtype=np.int32).reshape(4, 2, 3).T  # 3 scores, 2 trees of 4 leaves
    splits = Splits.plain(np.zeros((2, 3), np.uint16), np.zeros((2, 3), np.uint8))
    once = no_trees(2, 3).with_more(splits, value)
    twice = once.with_more(splits, value)
    assert once.value.flags.c_contiguous
    assert twice.value.flags.c_contiguous
    np.testing.assert_array_equal(twice.value, np.concatenate([value, value], axis=1))
