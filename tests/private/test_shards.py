"""Shards answer the sums of the dullest numpy, whatever they answered before and however rows are cut."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from helpers import (
    naive_add_pair_table,
    naive_add_tables,
    naive_add_trees,
    naive_cells,
    naive_joint_sums,
    naive_logistic,
    naive_pair_sums,
    naive_softmax,
    naive_squared,
    naive_tree_sums,
)
from private.cases import ALL, BINS, KEY, KINDS, model_of, queries_of, rows_of, shape_of

from dpgb_dask.contracts.model import FeatureBins, Trees, no_trees
from dpgb_dask.encode import encode, encode_target, encode_weight
from dpgb_dask.errors import PlanError
from dpgb_dask.losses import SquaredGradient, unpack
from dpgb_dask.private import shards
from dpgb_dask.private.ingest import Rows
from dpgb_dask.private.shards import Shard, encode_rows, merge_pieces
from dpgb_dask.private.survey import Reading

WEIGHT = {"max_weight": 3, "weight_bits": 2}
SHARD_QUERIES = [(k, q) for k, q in ALL if q not in ("count", "coarse", "fine", "target")]


def shard_of(kind, weighted=True, block_rows=1024, n=3000, cuts=1):
    """A shard of random rows, cut in chunks."""
    x, y, weight = rows_of(kind, n)
    shape = shape_of(kind, **WEIGHT) if weighted else shape_of(kind)
    pieces = []
    for k in range(cuts):
        part = slice(k * n // cuts, (k + 1) * n // cuts)
        rows = Rows(x.iloc[part], y[part], weight[part] if weighted else None)
        pieces += encode_rows(rows, Reading(shape, KEY), BINS, block_rows)
    return Shard(merge_pieces(pieces, block_rows), shape, BINS)


def naive_answer(kind, model, query, name, weighted=True):
    """The answer, from the rows by the kernels' oracles."""
    x, y, weight = rows_of(kind)
    schema = shape_of(kind).schema
    label, valid = encode_target(y, schema)
    w = encode_weight(weight, 3, 2) if weighted else np.ones(len(y), np.int32)
    w = np.where(valid, w, 0).astype(np.int32)
    codes = encode(x, schema, BINS)
    score = np.stack(
        [
            naive_add_tables(codes, [t[:, k] for t in model.tables], np.full(len(y), b, np.int32))
            for k, b in enumerate(model.intercept)
        ]
    )
    for p in model.pairs:
        for k, table in enumerate(p.table):
            score[k] = naive_add_pair_table(
                codes[p.i], codes[p.j], p.map_i, p.map_j, table, score[k]
            )
    t = model.trees
    for k, value in enumerate(t.value):
        score[k] = naive_add_trees(codes, t.feature, t.threshold, value, score[k])
    if name == "residual":
        cell = np.searchsorted(query.edges, np.abs(score[0].astype(np.int64) - label))
        return naive_cells(cell, w, query.n_values)
    gradient = query.gradient
    if kind == "binary":
        packed = naive_logistic(score[0], label, w, gradient.table)[None]
    elif kind == "numeric":
        packed = naive_squared(score[0], label, w, gradient.clip_steps, gradient.hess_steps)[None]
    else:
        packed = naive_softmax(score, label, w, gradient.exp_table)
    parts = []
    for row in packed:
        g, h = unpack(row)
        if name == "main":
            leaves = [leaf[c] for leaf, c in zip(query.leaf_of_bin, codes, strict=True)]
            parts.append(naive_joint_sums(leaves, g, h, query.n_leaves))
        elif name == "pairs":
            parts.append(naive_pair_sums(codes, query.pairs, g, h))
        else:
            parts.append(
                naive_tree_sums(codes, query.feature, query.threshold, g, h).reshape(-1, 2)
            )
    return np.stack(parts, axis=1).ravel()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("kind", "name"), SHARD_QUERIES)
def test_answer_is_the_sum_over_rows(kind, name, weighted):
    query = queries_of(kind, 2 if weighted else 0)[name]
    model = model_of(kind)
    answer = shard_of(kind, weighted).answer(model, query)
    assert answer.dtype == np.int64
    assert answer.shape == (query.n_values,)
    np.testing.assert_array_equal(answer, naive_answer(kind, model, query, name, weighted))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("block_rows", "cuts"), [(64, 1), (1024, 7), (4096, 50), (16384, 300)])
def test_answer_is_the_same_for_any_cut(kind, block_rows, cuts):
    query, model = queries_of(kind, 2)["main"], model_of(kind)
    expected = shard_of(kind).answer(model, query)
    shard = shard_of(kind, block_rows=block_rows, cuts=cuts)
    np.testing.assert_array_equal(shard.answer(model, query), expected)
    assert len(shard.pieces) <= 2 * 3000 // block_rows + 1


@pytest.mark.parametrize("n_threads", [2, 3, 8])
def test_answer_is_the_same_for_any_number_of_threads(n_threads, monkeypatch):
    monkeypatch.setattr(shards, "INLINE_VALUES", 0)
    query, model = queries_of("binary", 2)["trees"], model_of("binary")
    expected = shard_of("binary").answer(model, query)
    with ThreadPoolExecutor(n_threads) as pool:
        shard = shard_of("binary", block_rows=256)
        np.testing.assert_array_equal(shard.answer(model, query, n_threads, pool), expected)


def history(kind):
    """Models as a fit makes them, then some that no fit makes."""
    first = model_of(kind, 0, n_pairs=0, n_trees=0)
    second = replace(model_of(kind, 1, n_pairs=1, n_trees=0), bins=first.bins)
    full = model_of(kind, 2, n_pairs=2, n_trees=3)
    t = full.trees
    fewer = Trees(t.feature[:1], t.threshold[:1], t.value[:, :1])
    return [
        first,
        second,
        replace(full, trees=fewer),
        full,
        full,
        replace(full, tables=second.tables),
        replace(full, pairs=full.pairs[1:]),  # a pair is gone
        replace(full, pairs=full.pairs + full.pairs[:1]),  # a pair is there twice
        replace(full, trees=fewer),  # trees are gone
        replace(full, trees=Trees(t.feature, t.threshold, -t.value)),
        replace(full, trees=no_trees(2, first.n_scores)),
        first,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_catching_up_gives_what_a_new_shard_gives(kind):
    query = queries_of(kind, 2)["main"]
    shard = shard_of(kind)
    for model in history(kind):
        expected = shard_of(kind).answer(model, query)
        np.testing.assert_array_equal(shard.answer(model, query), expected)


def test_scores_wrap_around_the_same_on_every_path():
    query = queries_of("binary", 2)["main"]
    big = replace(model_of("binary"), intercept=np.array([2**31 - 1], np.int32))
    small = replace(big, intercept=np.array([-(2**31)], np.int32))
    shard = shard_of("binary")
    for model in (big, small, big):
        np.testing.assert_array_equal(
            shard.answer(model, query), shard_of("binary").answer(model, query)
        )


def test_a_pickled_shard_answers_the_same_and_carries_no_scores():
    query, model = queries_of("binary", 2)["main"], model_of("binary")
    shard = shard_of("binary")
    expected = shard.answer(model, query)
    copy = pickle.loads(pickle.dumps(shard))
    assert copy._scores == []
    np.testing.assert_array_equal(copy.answer(model, query), expected)
    assert repr(shard) == "<shard>"


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_answer_zero(kind):
    shard = Shard([], shape_of(kind), BINS)
    for name, query in queries_of(kind).items():
        if (kind, name) in SHARD_QUERIES:
            assert not shard.answer(model_of(kind), query).any()


def test_codes_of_a_piece_do_not_keep_the_chunk_alive():
    x, y, _ = rows_of("binary", 100)
    for piece in encode_rows(Rows(x, y, None), Reading(shape_of("binary"), KEY), BINS, 64):
        assert piece.codes.base is None
        assert piece.label.base is None


def test_a_model_of_other_bins_raises():
    other = (*BINS[:2], FeatureBins(None, np.zeros(5, np.uint8), 5))
    with pytest.raises(PlanError, match="other bins"):
        shard_of("binary").answer(
            replace(model_of("binary"), bins=other), queries_of("binary")["main"]
        )


def test_a_query_that_does_not_fit_raises():
    binary, numeric = queries_of("binary"), queries_of("numeric")
    shard = shard_of("binary", weighted=False)
    for query in (numeric["main"], numeric["residual"], binary["count"]):
        with pytest.raises(PlanError):
            shard.answer(model_of("binary"), query)
    with pytest.raises(PlanError, match="n_scores=3"):
        shard.answer(model_of("binary"), queries_of("multiclass")["main"])


def test_a_weight_that_could_overflow_a_packed_sum_raises():
    with pytest.raises(PlanError, match="overflow"):
        shape_of("binary", max_weight=4096, weight_bits=4)
    steep = replace(queries_of("numeric", 3)["main"], gradient=SquaredGradient(1 << 20, 0))
    shape = shape_of("numeric", max_weight=4096, weight_bits=3)
    with pytest.raises(PlanError, match="overflow"):
        Shard([], shape, BINS).answer(model_of("numeric"), steep)
