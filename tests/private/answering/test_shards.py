"""Shards answer the sums that plain numpy computes, whatever they answered before and however rows are cut."""

import gc
import itertools
import math
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from helpers import (
    naive_add_pair_table,
    naive_add_tables,
    naive_cells,
    naive_directions,
    naive_products,
    naive_sums,
)
from private.cases import (
    ALL,
    BINS,
    KEY,
    KINDS,
    N_BINS,
    ROWS_KEY,
    choice_of,
    draw,
    model_of,
    queries_of,
    rows_of,
    shape_of,
    shared_choice_of,
    splits_of,
    upper,
)
from thinned import thinned

from dpgb_dask.contracts.model import (
    MAX_BINS,
    SCORE_ONE,
    FeatureBins,
    Splits,
    TreeEnsemble,
    join_splits,
    no_trees,
)
from dpgb_dask.contracts.queries import SHRINK_BITS, PairCells, RowDraw
from dpgb_dask.encoding.codes import encode, encode_target, encode_weight
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels.directions import PRODUCT_BITS
from dpgb_dask.kernels.draw import draws
from dpgb_dask.kernels.gradient import write
from dpgb_dask.kernels.histogram import HALF
from dpgb_dask.kernels.nodes import JoinedCells
from dpgb_dask.kernels.pair_tables import pair_sums
from dpgb_dask.kernels.predict import add_pair_tables, add_trees
from dpgb_dask.losses import SquaredGradient, unpack
from dpgb_dask.private.answering import shards
from dpgb_dask.private.answering.draws import _between
from dpgb_dask.private.answering.levels import KeptLevel, LevelSums
from dpgb_dask.private.answering.passes import JointCells, Leaves, Scores, Update, open_pass
from dpgb_dask.private.answering.shards import Shard
from dpgb_dask.private.reading.chunks import Reading, encode_rows
from dpgb_dask.private.reading.rows import Piece, Rows, merge_pieces

WEIGHT = {"max_weight": 3, "weight_bits": 2}
CUTS = [(64, 1), (1024, 7), (4096, 50), (16384, 300)]  # rows of a block, chunks
SHARD_QUERIES = [(k, q) for k, q in ALL if q not in ("count", "coarse", "fine", "target")]


def shard_of(kind, weighted=True, block_rows=1024, n=3000, cuts=1):
    """A shard of random rows, cut in chunks."""
    x, y, weight = rows_of(kind, n)
    shape = shape_of(kind, **WEIGHT) if weighted else shape_of(kind)
    pieces = []
    for k in range(cuts):
        part = slice(k * n // cuts, (k + 1) * n // cuts)
        rows = Rows(x.iloc[part], y[part], weight[part] if weighted else None)
        starts = np.arange(cuts + 1) * n // cuts
        reading = Reading(shape, KEY, rows_key=ROWS_KEY, starts=starts)
        pieces += encode_rows(rows, reading, BINS, block_rows, k)
    return Shard(merge_pieces(pieces, block_rows), shape, BINS, ROWS_KEY)


def naive_leaves(codes, splits, t):
    """Leaf of each row in tree t, found by walking down."""
    nodes = splits.feature.shape[1]
    out = []
    for row in codes.T:
        k = 0
        while k < nodes:
            code, mask = row[splits.feature[t, k]], splits.mask_of[t, k]
            right = code > splits.threshold[t, k] if mask < 0 else splits.masks[mask, code] == 1
            k = 2 * k + 1 + int(right)
        out.append(k - nodes)
    return np.array(out)


def naive_scores(codes, model):
    """Scores of every row."""
    start = np.repeat(model.intercept[:, None], codes.shape[1], axis=1)
    score = naive_add_tables(codes, model.tables, start)
    for p in model.pairs:
        score = naive_add_pair_table(codes[p.i], codes[p.j], p.map_i, p.map_j, p.table, score)
    for t in range(model.trees.n_trees):
        score += model.trees.value[:, t, naive_leaves(codes, model.trees.splits, t)]
    return score


def naive_answer(kind, model, query, name, weighted=True):
    """The answer, computed from the rows in the plainest way."""
    x, y, weight = rows_of(kind)
    label, valid = encode_target(y, shape_of(kind).schema)
    w = encode_weight(weight, 3, 2) if weighted else np.ones(len(y), np.int32)
    w = np.where(valid, w, 0).astype(np.int32)
    codes = encode(x, shape_of(kind).schema, BINS)
    score = naive_scores(codes, model)
    if name == "residual":
        cell = np.searchsorted(query.edges, label - score[0].astype(np.int64))
        return naive_cells(cell, w, query.n_values)
    if name == "bins":
        counts = [
            naive_cells(codes[j], w, n) for j, n in zip(query.features, query.sizes, strict=True)
        ]
        return np.concatenate(counts)
    if name == "products":
        return naive_products(numbers_of(query, codes), query.norm, w)
    if query.rows is not None:
        index = np.stack([np.arange(len(y)), np.zeros(len(y))], axis=1).astype(np.uint64)
        drawn = np.empty(len(y), np.uint32)
        draws(ROWS_KEY, query.rows.group, index, drawn)
        w = np.where((query.rows.low <= drawn) & (drawn < query.rows.high), w, 0).astype(np.int32)
    packed = np.empty((model.n_scores, len(y)), np.int64)
    write(query.gradient, score, label, w, packed)
    if name in ("main", "reference"):
        leaves = [leaf[c] for leaf, c in zip(query.leaf_of_bin, codes, strict=True)]
        keys = list(zip(leaves, query.n_leaves, strict=True))
    elif name == "pairs":
        keys = [
            (p.map_i[codes[p.i]].astype(int) * p.n_j + p.map_j[codes[p.j]], p.n_i * p.n_j)
            for p in query.pairs
        ]
    elif name in ("trees", "part", "one feature", "table"):
        keys = [(naive_leaves(codes, query.splits, t), 8) for t in range(query.splits.n_trees)]
    elif name == "contributions":
        return naive_contributions(codes, model, query, packed)
    elif name == "directions":
        numbers = query.matrix.astype(np.int64) @ numbers_of(query, codes)
        return naive_directions(numbers, query.norm, packed).ravel()
    else:
        return naive_level(codes, query, packed)
    if name == "reference":
        return naive_reference(query, leaves, packed)
    parts = [np.concatenate([naive_sums(k, *unpack(row), n) for k, n in keys]) for row in packed]
    return np.stack(parts, axis=1).ravel()


def numbers_of(query, codes):
    """The number of each feature of a query, (n, n_rows)."""
    chosen = zip(query.features, query.values, strict=True)
    return np.stack([value[codes[j]] for j, value in chosen]).astype(np.int64)


def naive_contributions(codes, model, query, packed):
    """The sums by what trees add, score by score, each with cells of its own."""
    added = np.zeros(packed.shape, np.int64)
    for t in query.trees:
        added += model.trees.value[:, t, naive_leaves(codes, model.trees.splits, t)]
    parts = []
    for row, edges, own in zip(packed, query.edges, added, strict=True):
        cell = (own[:, None] > edges).sum(1)
        parts.append(naive_sums(cell, *unpack(row), query.n_cells))
    return np.stack(parts, axis=1).ravel()


def naive_reference(query, leaves, packed):
    """The totals, and the sums of all leaves that are not kept back, row by row in plain integers."""
    one = 1 << SHRINK_BITS
    cells = {None: 0}  # the totals are first
    for j, size in enumerate(query.n_leaves):
        for leaf in range(size):
            if leaf != query.omitted[j]:
                cells[j, leaf] = len(cells)
    out = np.zeros((len(cells), len(packed), 2), np.int64)
    for i, of_row in enumerate(zip(*leaves, strict=True)):
        blocks = [None, *((j, int(leaf)) for j, leaf in enumerate(of_row) if (j, leaf) in cells)]
        weight = one
        if len(blocks) > query.most_blocks:
            weight = math.floor(math.sqrt(query.most_blocks / len(blocks)) * one)
        for k, row in enumerate(packed):
            g, h = (int(part[i]) for part in unpack(row))
            added = [int(math.copysign(abs(v) * weight // one, v)) for v in (g, h)]
            for block in blocks:
                out[cells[block], k] += added
    return out.ravel()


def naive_contrasts(codes, query, packed, node):
    """The sum of every node, and of every feature right less left, row by row in plain integers."""
    out = np.zeros((query.splits.n_leaves, 1 + len(query.features), len(packed), 2), np.int64)
    starts = np.cumsum([0, *query.sizes])
    for i, k in enumerate(node):
        for s, row in enumerate(packed):
            both = np.array([int(part[i]) for part in unpack(row)])
            out[k, 0, s] += query.total_times * both
            for j, f in enumerate(query.features):
                right = query.sides[k, starts[j] + codes[f, i]] == 1
                out[k, 1 + j, s] += both if right else -both
    return out.ravel()


def naive_level(codes, query, packed):
    """Sums per node, feature and bin, side or level."""
    node = naive_leaves(codes, query.splits, 0)
    sides, levels = getattr(query, "sides", None), getattr(query, "level_of_bin", None)
    if sides is not None:
        return naive_contrasts(codes, query, packed, node)
    out = []
    for k in range(query.splits.n_leaves):
        start = 0
        for j, (f, size) in enumerate(zip(query.features, query.sizes, strict=True)):
            rows = node == k
            cell = codes[f, rows].astype(int)
            n_cells = size
            if levels is not None:
                cell, n_cells = levels[j][cell], query.n_levels[j]
            parts = [naive_sums(cell, *unpack(row[rows]), n_cells) for row in packed]
            out.append(np.stack(parts, axis=1))
            start += size
    return np.concatenate(out).ravel()


def test_every_draw_is_in_one_of_the_parts_that_follow_each_other():
    """At an edge too: a row that served two parts would be paid for once."""
    edges = (0, 1, 1 << 30, (1 << 32) - 1, 1 << 32)
    near = {edge + step for edge in edges for step in (-1, 0)} - {-1, 1 << 32}
    drawn = np.array(sorted(near), np.uint32)
    parts = [_between(drawn, draw(low=low, high=high)) for low, high in itertools.pairwise(edges)]
    assert [drawn[part].tolist() for part in parts] == [
        [0],
        [1, (1 << 30) - 1],
        [1 << 30, (1 << 32) - 2],
        [(1 << 32) - 1],
    ]
    assert np.sum(parts, axis=0).tolist() == [1] * len(drawn)


@pytest.mark.parametrize("weighted", thinned([True, False], every=2))
@pytest.mark.parametrize(("kind", "name"), SHARD_QUERIES)
def test_answer_is_the_sum_over_rows(kind, name, weighted):
    query = queries_of(kind, 2 if weighted else 0)[name]
    model = model_of(kind)
    answer = shard_of(kind, weighted).answer(model, query)
    assert answer.dtype == np.int64
    assert answer.shape == (query.n_sums,)
    np.testing.assert_array_equal(answer, naive_answer(kind, model, query, name, weighted))


@pytest.mark.parametrize("name", ["main", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_leaves_are_summed_alike_by_leaf_and_by_bin(kind, name, monkeypatch):
    """By leaf where registers map codes, by bin elsewhere: whatever this processor has."""
    query, model = queries_of(kind)[name], model_of(kind)
    answers = []
    for pay in (True, False):
        monkeypatch.setattr(shards, "maps_pay", lambda *_, pay=pay: pay)
        answers.append(shard_of(kind, weighted=False).answer(model, query))
        np.testing.assert_array_equal(answers[-1], naive_answer(kind, model, query, name, False))
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize(("kind", "name"), SHARD_QUERIES)
def test_what_is_made_for_a_query_is_freed_with_its_answer(kind, name, monkeypatch):
    made = []

    class Watched(shards._Ask):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(weakref.ref(self))

    monkeypatch.setattr(shards, "_Ask", Watched)
    shard, model, query = shard_of(kind, n=200), model_of(kind), queries_of(kind)[name]
    gc.disable()
    try:
        shard.answer(model, query)
        assert [ask() for ask in made] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("kind", "block_rows", "cuts"),
    thinned([(kind, *cut) for kind in KINDS for cut in CUTS], every=len(CUTS) + 1),
)
def test_answer_is_the_same_for_any_cut(kind, block_rows, cuts):
    queries, model = queries_of(kind, 2), model_of(kind)
    whole, shard = shard_of(kind), shard_of(kind, block_rows=block_rows, cuts=cuts)
    for name in ("main", "nodes", "part", "sample"):
        expected = whole.answer(model, queries[name])
        np.testing.assert_array_equal(shard.answer(model, queries[name]), expected)
    assert len(shard.pieces) <= 2 * 3000 // block_rows + 1


@pytest.mark.parametrize("n_threads", [2, 3, 8])
def test_answer_is_the_same_for_any_number_of_threads(n_threads, monkeypatch):
    monkeypatch.setattr(shards, "INLINE_VALUES", 0)
    queries, model = queries_of("binary", 2), model_of("binary")
    whole, shard = shard_of("binary"), shard_of("binary", block_rows=256)
    with ThreadPoolExecutor(n_threads) as pool:
        for name in ("trees", "part", "root", "nodes", "sample", "choice"):
            expected = whole.answer(model, queries[name])
            got = shard.answer(model, queries[name], n_threads, pool)
            np.testing.assert_array_equal(got, expected)


def history(kind):
    """A sequence of models as in a fit, then changes that no fit makes."""
    first = model_of(kind, 0, n_pairs=0, n_trees=0)
    second = replace(model_of(kind, 1, n_pairs=1, n_trees=0), bins=first.bins)
    full = model_of(kind, 2, n_pairs=2, n_trees=3)
    t = full.trees
    fewer = TreeEnsemble(splits_of(1), t.value[:, :1])
    s = t.splits
    turned = Splits(s.feature, s.threshold, s.mask_of, 1 - s.masks)
    shared = Splits(s.feature, s.threshold, s.mask_of, np.concatenate([s.masks, s.masks[:1]]))
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
        replace(full, trees=TreeEnsemble(s, -t.value)),
        full,
        replace(full, trees=TreeEnsemble(shared, t.value)),  # a mask that no node uses
        replace(full, trees=TreeEnsemble(turned, t.value)),
        replace(full, trees=t.with_more(splits_of(2, seed=11), t.value[:, :2])),
        replace(full, trees=no_trees(2, first.n_scores)),
        first,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_catching_up_gives_what_a_new_shard_gives(kind):
    queries = queries_of(kind, 2)
    shard = shard_of(kind)
    for model in history(kind):
        for name in ("main", "part"):
            expected = shard_of(kind).answer(model, queries[name])
            np.testing.assert_array_equal(shard.answer(model, queries[name]), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change", ["none", "another batch", "masks turned", "no room", "drawn rows"]
)
def test_leaves_found_for_a_query_serve_when_its_trees_join_the_model(kind, change, monkeypatch):
    walked = []
    monkeypatch.setattr(
        "dpgb_dask.private.answering.passes.add_trees",
        lambda codes, *rest: (walked.append(1), add_trees(codes, *rest)),
    )
    if change == "no room":
        monkeypatch.setattr(
            shards, "copies_fit", lambda pieces, size: size < 2 * sum(map(len, pieces))
        )
    model, batch = model_of(kind), splits_of(2, seed=11)
    # joined to others, so that their masks are numbered anew
    trees = model.trees.with_more(batch, model.trees.value[:, :2])
    if change == "another batch":
        trees = model.trees.with_more(splits_of(2, seed=12), model.trees.value[:, :2])
    if change == "masks turned":
        s = trees.splits
        trees = replace(trees, splits=Splits(*s.arrays[:3], 1 - s.masks))
    rows = draw("sample", 9) if change == "drawn rows" else None
    query = replace(queries_of(kind, 2)["trees"], splits=batch, rows=rows)
    shard = shard_of(kind, block_rows=256)
    shard.answer(model, query)
    walked.clear()
    grown = replace(model, trees=trees)
    got = shard.answer(grown, queries_of(kind, 2)["main"])
    assert bool(walked) == (change != "none")
    expected = shard_of(kind).answer(grown, queries_of(kind, 2)["main"])
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "summed", "added"),
    [
        ("none", True, True),
        ("other pairs", False, False),
        ("another order", False, True),  # what is added are the pairs of the query before
        ("a pair that stays", True, False),
        ("another query between", False, False),
        ("drawn rows before", False, False),
        ("drawn rows", False, True),
        ("no room", False, False),
    ],
)
def test_cells_of_pairs_are_kept(kind, change, summed, added, monkeypatch):
    known = {"summed": set(), "added": set()}

    def watched_sums(*given, known, seen=known["summed"]):
        seen.add(known)
        return pair_sums(*given, known=known)

    def watched_add(codes, tables, score, cells):
        known["added"].add(cells is not None)
        add_pair_tables(codes, tables, score, cells)

    monkeypatch.setattr("dpgb_dask.private.answering.passes.pair_sums", watched_sums)
    monkeypatch.setattr("dpgb_dask.private.answering.passes.add_pair_tables", watched_add)
    if change == "no room":
        monkeypatch.setattr(shards, "copies_fit", lambda pieces, size: size < sum(map(len, pieces)))
    queries, grown = queries_of(kind, 2), model_of(kind)
    first = query = queries["pairs"]
    assert len(grown.pairs) == len(query.pairs) == 2
    drawn = replace(query, rows=draw("sample", 9))
    if change == "drawn rows before":
        first = drawn
    shard, model = shard_of(kind, block_rows=256), replace(grown, pairs=())
    shard.answer(model, first)
    assert known == {"summed": {False}, "added": set()}
    if change == "other pairs":
        query = replace(query, pairs=query.pairs[1:])
        grown = replace(grown, pairs=grown.pairs[1:])
    if change == "another order":
        query = replace(query, pairs=query.pairs[::-1])
    if change == "a pair that stays":
        still = replace(grown.pairs[0], table=grown.pairs[0].table * 0)
        grown = replace(grown, pairs=(still, *grown.pairs[1:]))
    if change == "another query between":
        shard.answer(model, queries["main"])
    if change == "drawn rows":
        query = drawn
    known["summed"].clear()
    got = shard.answer(grown, query)
    assert known == {"summed": {summed}, "added": {added}}
    known["summed"].clear()
    again = shard.answer(grown, query)
    assert known["summed"] == {change not in ("drawn rows", "no room")}
    expected = shard_of(kind).answer(grown, query)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize(("n_pairs", "most", "keeps"), [(1, 1, True), (2, 4, True), (2, 3, False)])
def test_cells_of_pairs_take_no_more_than_codes_or_a_few_bytes(n_pairs, most, keeps, monkeypatch):
    """Each pair is a group of its own, and takes two bytes; three features take three."""
    monkeypatch.setattr(shards, "KEPT_BYTES", most)
    first, second = (np.arange(n, dtype=np.uint8) for n in N_BINS[:2])
    pairs = PairCells(0, 1, first, second, 12, 8), PairCells(0, 1, first[::-1], second[::-1], 12, 8)
    shard, model = shard_of("binary", n=200), model_of("binary")
    shard.answer(model, replace(queries_of("binary", 2)["pairs"], pairs=pairs[:n_pairs]))
    assert shard._joint.pairs.n_groups == n_pairs
    assert (shard._joint.take(0) is not None) == keeps


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("name", ["pairs", "trees"])
def test_what_a_query_found_is_freed_before_others_are_found(name, joins, monkeypatch):
    """An update that adds the query's pairs or trees takes what it found block by block; else it is freed at once."""
    alive, held = [], []

    def watched(owner, method):
        find = getattr(owner, method)

        def found(self, *given):
            out = find(self, *given)
            alive.extend(weakref.ref(block) for block in self._of_block.values())
            blocks = {id(block): block for ref in alive if (block := ref()) is not None}
            held.append(sum(block.nbytes for block in blocks.values()))
            return out

        monkeypatch.setattr(owner, method, found)

    watched(JointCells, "sums")
    watched(Leaves, "find")
    full = model_of("binary")
    model = replace(full, pairs=(), trees=no_trees())
    first = query = queries_of("binary", 2)[name]
    if name == "pairs":
        query, grown = replace(first, pairs=first.pairs[::-1]), replace(model, pairs=full.pairs)
    else:
        trees = TreeEnsemble(first.splits, np.ones((1, first.splits.n_trees, 8), np.int32))
        query = replace(first, splits=splits_of(4, seed=12))
        grown = replace(model, trees=trees)
    shard = shard_of("binary", block_rows=256)
    shard.answer(model, first)
    one = held[-1]
    held.clear()
    shard.answer(grown if joins else model, query)
    assert held[-1] == max(held) == one > 0


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
    query, model = queries_of("binary", 2)["sample"], model_of("binary")
    shard = shard_of("binary")
    expected = shard.answer(model, query)
    copy = pickle.loads(pickle.dumps(shard))
    assert copy._scores._memory == copy._draws._draws == {}
    assert copy._level is None
    np.testing.assert_array_equal(copy.answer(model, query), expected)
    assert repr(shard) == "<shard>"
    assert {repr(block) for block in shard._draws._chosen} <= {"<chosen rows>"}


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_answer_zero(kind):
    shard = Shard([], shape_of(kind), BINS, ROWS_KEY)
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


@pytest.mark.parametrize("n_edges", [0, 3, 16, 17, 255])
def test_a_value_on_an_edge_is_in_the_cell_below(n_edges):
    edges = np.sort(np.random.default_rng(n_edges).integers(-(2**33), 2**33, n_edges))
    values = np.concatenate([edges, edges + 1, [-(2**33) - 1, 2**33]])
    np.testing.assert_array_equal(shards._cells(edges, values), np.searchsorted(edges, values))


def test_a_query_that_does_not_fit_raises():
    binary, numeric = queries_of("binary"), queries_of("numeric")
    shard = shard_of("binary", weighted=False)
    for query in (numeric["main"], numeric["residual"], binary["count"]):
        with pytest.raises(PlanError):
            shard.answer(model_of("binary"), query)
    with pytest.raises(PlanError, match="n_scores=3"):
        shard.answer(model_of("binary"), queries_of("multiclass")["main"])
    for features, sizes in (((3,), (5,)), ((0, 1), (12, 9))):
        query = replace(binary["bins"], features=np.array(features, np.uint16), sizes=sizes)
        with pytest.raises(PlanError, match="features and sizes"):
            shard.answer(model_of("binary"), query)


def test_trees_that_the_model_has_not_raise():
    shard, query = shard_of("binary", weighted=False), queries_of("binary")["contributions"]
    shard.answer(model_of("binary"), query)
    with pytest.raises(PlanError, match="go up to 2, but the model has 2"):
        shard.answer(model_of("binary", n_trees=2), query)


def test_a_weight_that_could_overflow_a_packed_sum_raises():
    with pytest.raises(PlanError, match="overflow"):
        shape_of("binary", max_weight=4096, weight_bits=4)
    steep = replace(queries_of("numeric", 3)["main"], gradient=SquaredGradient(1 << 20, 0))
    shape = shape_of("numeric", max_weight=4096, weight_bits=3)
    with pytest.raises(PlanError, match="overflow"):
        Shard([], shape, BINS).answer(model_of("numeric"), steep)


def alike(kind, query, n, most):
    """A shard of n rows that are all the same, with the largest weight and a gradient at its bound, and its model."""
    shape = shape_of(kind, max_weight=most)
    codes = np.repeat(np.array([[4], [2], [1]], np.uint8), n, axis=1)
    numeric = kind == "numeric"
    label = np.full(n, -SCORE_ONE if numeric else 1, np.int32 if numeric else np.uint8)
    piece = Piece(codes, label, np.full(n, most, np.int32))
    intercept = np.array(
        [9, -9, 0][: shape.n_scores] if kind == "multiclass" else [9 if numeric else -9]
    )
    model = replace(model_of(kind), intercept=(intercept * SCORE_ONE).astype(np.int32))
    return Shard([piece], shape, BINS).answer(model, query)


# the largest weight: with the first a packed sum holds some hundred rows, with the second too few for one to be used
@pytest.mark.parametrize("most", [64, 2048])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(k, q) for k, q in SHARD_QUERIES if q not in ("part", "sample", "residual", "bins")],
)
def test_no_number_of_rows_of_the_largest_weight_overflows(kind, name, most):
    """A packed sum is unpacked before it overflows, for gradients at their bound times the largest weight.

    As rows are all the same, the sums of n rows are n times those of one.
    """
    query = queries_of(kind)[name]
    of_row = 1 << (PRODUCT_BITS - 1) if name == "products" else query.gradient.max_abs
    one = alike(kind, query, 1, most)
    assert np.abs(one).max() > 0.6 * most * of_row or "choice" in name
    limit = HALF // (most * of_row)
    for n in (limit, limit + 1, 2 * limit + 1, 9 * limit):
        np.testing.assert_array_equal(alike(kind, query, n, most), n * one)


@pytest.mark.parametrize("sign", [-1, 1])
def test_no_number_of_rows_overflows_the_sum_of_a_node(sign):
    """It is asked for several times over, in one number."""
    query = queries_of("binary")["sides"]
    many = {"features": np.arange(20, dtype=np.uint16), "sizes": (2,) * 20}
    query = replace(query, **many, sides=np.zeros((8, 40), np.uint8))
    level = LevelSums(query, None, 1)
    sums = np.zeros((level.n_nodes, sum(query.sizes), 1, 2), np.int64)
    sums[:, 0] = sign * (1 << 62)
    answer = level.answer(KeptLevel(query, sums)).reshape(level.n_nodes, -1, 1, 2)
    most = (2**63 - 1) // query.total_times
    assert query.total_times > 1
    assert (answer[:, 0] == sign * most * query.total_times).all()


# ---- levels of a tree ------------------------------------------------------------------------------------------------


def level_query(kind, splits, **options):
    query = queries_of(kind, 2)["nodes"]
    return replace(query, splits=splits, **options)


@pytest.fixture
def subtracted(monkeypatch):
    """For each level so far, whether it was summed by subtraction."""
    seen = []
    sums = LevelSums._sums

    def spy(self, deal, only=None):
        seen.append(only is not None and int(only.sum()) == self.n_nodes // 2)
        return sums(self, deal, only)

    monkeypatch.setattr(LevelSums, "_sums", spy)
    return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [None, draw("sample", 9), draw("sample", 9, high=1 << 30)])
def test_a_level_from_the_level_above_is_the_same(kind, rows, subtracted):
    tree, model = splits_of(1, depth=5, seed=12), model_of(kind)
    shard = shard_of(kind, block_rows=256)
    for depth in range(6):
        query = level_query(kind, upper(tree, depth), rows=rows, label=str(depth), price=depth + 1)
        again = replace(model, pairs=model.pairs[::-1])  # the same scores
        got = shard.answer(again if depth % 2 else model, query)
        assert subtracted[-1] == (depth > 0)
        np.testing.assert_array_equal(got, shard_of(kind).answer(model, query))


def test_levels_of_a_shared_choice_come_from_the_level_above(subtracted):
    tree, model = splits_of(1, depth=5, seed=12), model_of("binary")
    shard = shard_of("binary", block_rows=256)
    for depth in range(6):
        query = shared_choice_of("binary", upper(tree, depth), 2)
        got = shard.answer(model, query)
        assert subtracted[-1] == (depth > 0)
        np.testing.assert_array_equal(got, shard_of("binary").answer(model, query))
    # other levels of the same bins are another question, and so is another number of them
    query = replace(query, odds=None)
    first, second = query.level_of_bin
    for other in (
        replace(query, level_of_bin=(first * 0, second)),
        replace(query, n_levels=(query.n_levels[0] + 2, query.n_levels[1])),
        replace(query, n_levels=(query.n_levels[0], query.n_levels[1] + 2)),
        query,
    ):
        np.testing.assert_array_equal(
            shard.answer(model, other), shard_of("binary").answer(model, other)
        )


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("the model", 0),
        ("another level", 12),
        ("another query between", 12),
        ("drawn rows", 12),
        ("no room", 12),
    ],
)
def test_cells_of_a_shared_choice_are_kept(change, found, monkeypatch):
    blocks = []
    join = JoinedCells.join
    monkeypatch.setattr(
        JoinedCells, "join", lambda self, *rest: (blocks.append(1), join(self, *rest))
    )
    if change == "no room":
        monkeypatch.setattr(shards, "copies_fit", lambda pieces, size: size < sum(map(len, pieces)))
    tree, model = splits_of(1, depth=2, seed=12), model_of("binary")
    shard = shard_of("binary", block_rows=256)
    query = shared_choice_of("binary", upper(tree, 0), 2)
    shard.answer(model, query)
    assert len(blocks) == 12
    blocks.clear()
    if change == "another query between":
        shard.answer(model, queries_of("binary", 2)["main"])
    options = {}
    if change == "another level":
        options = {"level_of_bin": (query.level_of_bin[0] * 0, query.level_of_bin[1])}
    if change == "drawn rows":
        options = {"rows": draw("sample", 9, high=1 << 31)}
    query = shared_choice_of("binary", upper(tree, 1), 2, **options)
    model = model_of("binary", seed=1)
    got = shard.answer(model, query)
    assert len(blocks) == found
    np.testing.assert_array_equal(got, shard_of("binary").answer(model, query))


def test_choices_and_histograms_share_a_level(subtracted):
    tree, model = splits_of(1, depth=2, seed=12), model_of("binary")
    shard, queries = shard_of("binary"), queries_of("binary", 2)
    choice = choice_of("binary", upper(tree, 0), 2)
    level = {"gradient": choice.gradient, "features": choice.features, "sizes": choice.sizes}
    shard.answer(model, choice)
    sides = np.random.default_rng(0).integers(0, 2, (2, sum(choice.sizes)), dtype=np.uint8)
    sums = replace(queries["nodes"], splits=upper(tree, 1), sides=sides, **level)
    expected = shard_of("binary").answer(model, sums)
    assert subtracted.pop() is False
    np.testing.assert_array_equal(shard.answer(model, sums), expected)
    assert subtracted.pop() is True
    # the same level again, so nothing is summed
    whole = replace(sums, sides=None)
    np.testing.assert_array_equal(
        shard.answer(model, whole), shard.answer(model, choice_of("binary", upper(tree, 1), 2))
    )
    assert subtracted == [False]


def other_tree(tree):
    return Splits(tree.feature, tree.threshold, tree.mask_of, 1 - tree.masks)


@pytest.mark.parametrize(
    "change",
    [
        lambda _, model: (splits_of(1, depth=2, seed=13), model, {}),
        lambda tree, model: (other_tree(tree), model, {}),
        lambda tree, model: (tree, replace(model, intercept=model.intercept + np.int32(1)), {}),
        lambda tree, model: (tree, replace(model, trees=no_trees(3)), {}),
        lambda tree, model: (tree, model, {"rows": draw()}),
        lambda tree, model: (tree, model, {"gradient": choice_of("binary", tree).gradient}),
        lambda tree, model: (
            tree,
            model,
            {"features": np.array([0, 2], np.uint16), "sizes": (N_BINS[0], N_BINS[2])},
        ),
    ],
)
def test_another_level_is_summed_from_nothing(change, subtracted):
    tree, model = splits_of(1, depth=2, seed=12), model_of("binary")
    assert (tree.mask_of[:, 0] >= 0).any()
    shard = shard_of("binary")
    shard.answer(model, level_query("binary", upper(tree, 1)))
    tree, model, options = change(tree, model)
    query = level_query("binary", tree, **options)
    got = shard.answer(model, query)
    assert not any(subtracted)
    np.testing.assert_array_equal(got, shard_of("binary").answer(model, query))


def test_a_level_after_another_query_is_the_same():
    tree, model = splits_of(1, depth=2, seed=12), model_of("binary")
    shard = shard_of("binary")
    shard.answer(model, level_query("binary", upper(tree, 1)))
    shard.answer(model, queries_of("binary", 2)["main"])
    query = level_query("binary", tree)
    np.testing.assert_array_equal(
        shard.answer(model, query), shard_of("binary").answer(model, query)
    )


@pytest.fixture
def passes(monkeypatch):
    """The passes over rows so far."""
    seen = []

    def spy(*args, **options):
        seen.append(open_pass(*args, **options))
        return seen[-1]

    monkeypatch.setattr(shards, "open_pass", spy)
    return seen


EVERY = {"features": np.arange(len(N_BINS), dtype=np.uint16), "sizes": tuple(N_BINS)}


def node_query(kind, splits, **options):
    return replace(queries_of(kind, 2)["trees"], splits=splits, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [None, draw("sample", 9)])
def test_sums_of_nodes_follow_from_the_level_above(kind, rows, passes, subtracted):
    tree, model = splits_of(1, depth=4, seed=12), model_of(kind)
    shard = shard_of(kind, block_rows=256)
    for depth in range(4):
        level = level_query(kind, upper(tree, depth), rows=rows, **EVERY)
        shard.answer(model, level)
        assert subtracted[-1] == (depth > 0)  # the nodes' sums are no other question
        nodes = node_query(kind, upper(tree, depth + 1), rows=rows)
        passes.clear()
        got = shard.answer(model, nodes)
        assert not passes
        np.testing.assert_array_equal(got, shard_of(kind).answer(model, nodes))
        assert passes


def test_sums_of_nodes_follow_from_levels_that_their_splits_keep_whole(passes):
    model, shard = model_of("binary"), shard_of("binary")
    root_level = shared_choice_of("binary", upper(splits_of(1, depth=1, seed=0), 0), 2)
    level_of_bin = root_level.level_of_bin[1]
    shard.answer(model, root_level)
    for right, follows in (
        (level_of_bin > 1, True),
        (np.arange(len(level_of_bin)) % 2 == 1, False),
    ):
        mask = np.zeros((1, MAX_BINS), np.uint8)
        mask[0, : len(right)] = right
        splits = Splits(
            np.full((1, 1), root_level.features[1]),
            np.zeros((1, 1), np.uint8),
            np.zeros((1, 1), np.int32),
            mask,
        )
        nodes = node_query("binary", splits, gradient=root_level.gradient)
        passes.clear()
        got = shard.answer(model, nodes)
        assert bool(passes) != follows
        np.testing.assert_array_equal(got, shard_of("binary").answer(model, nodes))


@pytest.mark.parametrize(
    "change",
    [
        lambda _, model: (splits_of(1, depth=2, seed=13), model, {}),
        lambda _, model: (splits_of(2, depth=2, seed=12), model, {}),
        lambda tree, model: (other_tree(tree), model, {}),
        lambda tree, model: (tree, replace(model, intercept=model.intercept + np.int32(1)), {}),
        lambda tree, model: (tree, model, {"rows": draw()}),
        lambda tree, model: (tree, model, {"gradient": choice_of("binary", tree).gradient}),
    ],
)
def test_sums_of_other_nodes_need_a_pass(change, passes):
    tree, model = splits_of(1, depth=2, seed=12), model_of("binary")
    shard = shard_of("binary")
    shard.answer(model, level_query("binary", upper(tree, 1), **EVERY))
    tree, model, options = change(tree, model)
    nodes = node_query("binary", tree, **options)
    passes.clear()
    got = shard.answer(model, nodes)
    assert passes
    np.testing.assert_array_equal(got, shard_of("binary").answer(model, nodes))


def test_sums_of_nodes_need_a_pass_if_their_feature_was_not_summed(passes):
    tree, model = splits_of(1, depth=1, seed=12), model_of("binary")
    others = np.flatnonzero(EVERY["features"] != tree.feature[0, 0])
    level = {"features": others.astype(np.uint16), "sizes": tuple(N_BINS[j] for j in others)}
    shard = shard_of("binary")
    shard.answer(model, level_query("binary", upper(tree, 0), **level))
    nodes = node_query("binary", tree)
    passes.clear()
    got = shard.answer(model, nodes)
    assert passes
    np.testing.assert_array_equal(got, shard_of("binary").answer(model, nodes))


def test_masks_in_another_order_are_the_same_tree(subtracted):
    tree, model = splits_of(1, depth=2, seed=12), model_of("binary")
    shard = shard_of("binary")
    shard.answer(model, level_query("binary", upper(tree, 1)))
    more = join_splits(splits_of(2, depth=2, seed=14), tree).part(2)
    got = shard.answer(model, level_query("binary", more))
    assert subtracted == [False, True]
    np.testing.assert_array_equal(
        got, shard_of("binary").answer(model, level_query("binary", tree))
    )


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_upper_levels_of_trees_are_trees(depth):
    query, model = queries_of("binary", 2)["trees"], model_of("binary")
    splits = upper(query.splits, depth)
    copy = Splits(
        *(
            np.ascontiguousarray(p)
            for p in (splits.feature, splits.threshold, splits.mask_of, splits.masks)
        )
    )
    got = shard_of("binary").answer(model, replace(query, splits=splits))
    np.testing.assert_array_equal(
        got, shard_of("binary").answer(model, replace(query, splits=copy))
    )
    deep = shard_of("binary").answer(model, query).reshape(4, 1 << depth, -1, 2).sum(axis=2)
    np.testing.assert_array_equal(got, deep.ravel())


@pytest.mark.parametrize(
    "options",
    [
        {"candidate_feature": np.array([0, 0, 0, 1, 2], np.uint16)},
        {"candidate_bin": np.array([0, 0, 0, 0, N_BINS[2]], np.uint8)},
        {"candidate_bin": np.array([0], np.uint8)},
        dict.fromkeys(
            ("candidate_feature", "candidate_bin", "candidate_only"), np.empty(0, np.uint8)
        ),
    ],
)
def test_candidates_that_do_not_exist_raise(options):
    with pytest.raises(PlanError, match="candidate"):
        choice_of("binary", splits_of(1), 2, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"splits": splits_of(2)},
        {"features": np.array([2, 3], np.uint16)},
        {"sizes": (N_BINS[2], N_BINS[0] - 1)},
        {"sizes": (N_BINS[2],)},
        {"sides": np.zeros((8, 3), np.uint8)},
    ],
)
def test_a_level_that_does_not_fit_raises(options):
    with pytest.raises(PlanError):
        shard_of("binary").answer(
            model_of("binary"), replace(queries_of("binary", 2)["nodes"], **options)
        )


# ---- draws of rows ---------------------------------------------------------------------------------------------------


def test_the_parts_of_a_group_are_disjoint_and_cover_all_rows():
    model, query = model_of("binary"), queries_of("binary", 2)["trees"]
    shard = shard_of("binary", block_rows=256)
    cuts = [0, 1, 1 << 20, 1 << 30, 3 << 30, 1 << 32]
    parts = [RowDraw("part", 5, low, high) for low, high in itertools.pairwise(cuts)]
    sums = [shard.answer(model, replace(query, rows=part)) for part in parts]
    np.testing.assert_array_equal(sum(sums), shard.answer(model, query))
    whole = replace(query, rows=RowDraw("sample", 5, 0, 1 << 32))
    np.testing.assert_array_equal(shard.answer(model, whole), shard.answer(model, query))


def test_every_group_draws_anew_and_at_its_rate():
    shard = shard_of("binary", weighted=False)
    model = model_of("binary")
    query = replace(
        queries_of("binary")["root"], gradient=choice_of("binary", splits_of(1)).gradient
    )
    n = len(shard.pieces) and sum(len(p) for p in shard.pieces)
    rows = []
    for group in range(20):
        sums = shard.answer(model, replace(query, rows=RowDraw("sample", group, 0, 1 << 30)))
        rows.append(int(sums.reshape(-1, 2)[: query.sizes[0], 1].sum()) >> 15)
    assert len(set(rows)) > 10
    # the mean of 20 binomials, within five standard deviations
    assert abs(np.mean(rows) - n / 4) < 5 * np.sqrt(n * 3 / 16 / 20)


def test_draws_do_not_depend_on_what_was_asked_before():
    model, queries = model_of("binary"), queries_of("binary", 2)
    asked = [
        replace(queries["nodes"], rows=RowDraw("part", g, k << 30, k + 1 << 30))
        for g in (1, 2)
        for k in (0, 2)
    ]
    shard = shard_of("binary", block_rows=128)
    for query in asked + asked[::-1]:
        np.testing.assert_array_equal(
            shard.answer(model, query), shard_of("binary").answer(model, query)
        )


def test_a_draw_without_a_key_raises():
    shard = shard_of("binary")
    bare = Shard(shard.pieces, shard.shape, BINS)
    with pytest.raises(PlanError, match="needs a key for draws"):
        bare.answer(model_of("binary"), queries_of("binary", 2)["part"])


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (LevelSums, "_sums"),
        (shards, "Update"),
        (Scores, "start_over"),
        (Update, "add"),
        (shards, "open_pass"),
        (shards, "joint_sums"),
    ],
)
def test_a_failed_answer_leaves_nothing_behind(place, name, monkeypatch):
    model, queries = model_of("binary"), queries_of("binary", 2)
    shard = shard_of("binary")
    shard.answer(model, queries["root"])
    with monkeypatch.context() as patch:
        patch.setattr(place, name, fail)
        with pytest.raises(RuntimeError):
            shard.answer(model_of("binary", 4), queries["nodes" if name == "_sums" else "main"])
    for name in ("nodes", "part", "main"):
        expected = shard_of("binary").answer(model, queries[name])
        np.testing.assert_array_equal(shard.answer(model, queries[name]), expected)


def other_tables(model, features, seed):
    """The model with another table of a feature, or of several."""
    rng = np.random.default_rng(seed)
    tables = list(model.tables)
    for k in np.atleast_1d(features):
        tables[k] = rng.integers(-60000, 60000, tables[k].shape, dtype=np.int32)
    return replace(model, tables=tuple(tables))


@pytest.mark.parametrize("cuts", [1, 7])
def test_rounds_of_one_table_give_what_a_new_shard_gives(cuts, monkeypatch):
    """Between them come rounds that take another path; each leaves the scores as the others expect them."""
    looped, real = [], shards.table_round

    def watched(*given):
        looped.append(real(*given))
        return looped[-1]

    monkeypatch.setattr(shards, "table_round", watched)
    weighted = shard_of("binary", weighted=False, block_rows=256, cuts=cuts).pieces
    pieces = [replace(piece, weight=None) for piece in weighted]
    shape, queries = shape_of("binary"), queries_of("binary")
    shard, model = Shard(pieces, shape, BINS, ROWS_KEY), model_of("binary")
    rounds = [
        ("one feature", 0),  # the first is no update
        ("one feature", 1),
        ("root", 2),
        ("one feature", 2),
        ("trees", 1),
        ("one feature", [0, 2]),
        ("main", 0),
        ("one feature", 0),
        ("pairs", 0),
        ("one feature", 1),
        ("part", 1),
        ("one feature", 1),
    ]
    for seed, (name, changed) in enumerate(rounds):
        model = other_tables(model, changed, seed)
        got = shard.answer(model, queries[name])
        fresh = Shard(pieces, shape, BINS, ROWS_KEY)
        np.testing.assert_array_equal(got, fresh.answer(model, queries[name]))
        assert (shard._joint is not None) == (name == "pairs")
    assert sorted(looped) == [False] + [True] * 5 * len(pieces)  # not "trees"


def fail(*_args, **_options):
    raise RuntimeError


def test_an_update_names_the_features_that_it_reads():
    """Of rows on scratch no other codes are read."""
    model = model_of("binary", n_trees=0)
    old = replace(model, pairs=model.pairs[1:])
    first = model.pairs[0]
    assert Update(old, model).columns == {first.i, first.j}
    tables = (model.tables[0] + 1, *model.tables[1:])
    assert Update(model, replace(model, tables=tables)).columns == {0}
    assert Update(model, model).columns == frozenset()
