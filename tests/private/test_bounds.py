"""Fields of queries: in range, one row changes the sums within the bound; out of range, the query is refused."""

from dataclasses import dataclass, fields, is_dataclass, replace
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from private.cases import (
    ALL,
    BINS,
    KEY,
    KINDS,
    N_BINS,
    ROWS_KEY,
    choice_of,
    counting_gradient,
    gradient_of,
    model_of,
    opened,
    queries_of,
    rows_of,
    shape_of,
    shared_choice_of,
    splits_of,
    table_of,
)
from thinned import thinned

from dpgb_dask import DPGBClassifier, Schema
from dpgb_dask.components.trees.candidates import PublicBins
from dpgb_dask.contracts.model import FeatureBins, Splits
from dpgb_dask.contracts.plan import Demand, Execution, Plan, Stage
from dpgb_dask.contracts.queries import (
    BinCountsQuery,
    ChoiceQuery,
    ContributionSumsQuery,
    DirectionSumsQuery,
    MainSumsQuery,
    NodeSumsQuery,
    PairCells,
    PairSumsQuery,
    ProductSumsQuery,
    ReferenceSumsQuery,
    ResidualQuery,
    RowDraw,
    SharedChoiceQuery,
    TreeSumsQuery,
)
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels.draw import draws
from dpgb_dask.losses import (
    GRAD_BITS,
    LabelGradient,
    SlopeGradient,
    TableGradient,
    clipped_softmax_gradient,
    logistic_gradient,
    poisson_gradient,
    softmax_gradient,
)
from dpgb_dask.private.reading.chunks import Reading
from dpgb_dask.private.reading.ingest import read_source
from dpgb_dask.private.rounds.local import LocalRounds
from dpgb_dask.private.sensitivity import sensitivity
from dpgb_dask.testing import SeededNoise

MOST = (3, 2)  # largest weight, and weight_bits


def rounds_of(kind, rows, bins=BINS, **options):
    shape = shape_of(kind, *MOST)
    reading = Reading(shape, KEY, rows_key=ROWS_KEY)
    source = read_source(*rows, shape.schema)
    return LocalRounds(source, reading, Execution(n_threads=1, **options), bins)


def random_table(kind, rng):
    """Any table of a user's own: each entry at random, as large as entries may be."""
    shape = (4096,) if kind == "numeric" else (2, 4096)
    most = int(rng.integers(1, 2**15 + 1))
    g, h = rng.integers(-most, most + 1, shape), rng.integers(0, most + 1, shape)
    return TableGradient(kind, (g << 32) + h)


def random_gradient(kind, rng):
    if kind != "multiclass" and rng.random() < 0.3:
        return random_table(kind, rng)
    if rng.random() < 0.3:
        return LabelGradient(kind, 3 if kind == "multiclass" else 1, int(rng.integers(1, 2**15)))
    if kind == "numeric" and rng.random() < 0.5:
        return SlopeGradient(*(int(n) for n in rng.integers(0, 2**15, 3)))
    if kind == "binary":
        return logistic_gradient(float(rng.choice([0.1, 0.5, 1.0])), float(rng.uniform(0.1, 4)))
    if kind == "multiclass" and rng.random() < 0.5:
        clip, scale = float(rng.choice([0.1, 0.85, 2.0])), float(rng.uniform(0.1, 4))
        return clipped_softmax_gradient(3, clip=clip, hess_scale=scale)
    return gradient_of(kind)


def random_query(kind, rng):
    """Any query in range: of a random class, with random maps, trees, sides, candidates and rows."""
    n_scores = 3 if kind == "multiclass" else 1
    low, high = sorted(int(n) for n in rng.choice(2**32, 2, replace=False))
    rows = RowDraw(str(rng.choice(["part", "sample"])), int(rng.integers(9)), low, high)
    asked = {
        "label": "",
        "price": 1,
        "weight_bits": MOST[1],
        "gradient": random_gradient(kind, rng),
        "n_scores": n_scores,
        "rows": rows if rng.random() < 0.3 else None,
    }

    def maps(features, most):
        sizes = [int(rng.integers(1, most + 1)) for _ in features]
        return sizes, tuple(
            rng.integers(0, size, N_BINS[j]).astype(np.uint8)
            for j, size in zip(features, sizes, strict=True)
        )

    def level():
        features = rng.integers(0, 3, rng.integers(1, 4))
        return {
            "splits": splits_of(1, int(rng.integers(0, 5)), int(rng.integers(99))),
            "features": features.astype(np.uint16),
            "sizes": tuple(N_BINS[j] for j in features),
        }

    def main():
        sizes, leaves = maps(range(3), 20)
        return MainSumsQuery(**asked, leaf_of_bin=leaves, n_leaves=tuple(sizes))

    def reference():
        whole = main()
        # a leaf's bins are consecutive then
        whole = replace(whole, leaf_of_bin=tuple(map(np.sort, whole.leaf_of_bin)))
        return ReferenceSumsQuery(
            **{field.name: getattr(whole, field.name) for field in fields(whole)},
            omitted=tuple(int(rng.integers(-1, size)) for size in whole.n_leaves),
            most_blocks=int(rng.integers(1, 5)),
        )

    def pairs():
        tables = []
        for _ in range(rng.integers(1, 4)):
            i, j = rng.integers(0, 3, 2).tolist()
            (n_i, n_j), both = maps((i, j), 16)
            tables.append(PairCells(i, j, *both, n_i, n_j))
        return PairSumsQuery(**asked, pairs=tuple(tables))

    def trees():
        depth, seed = rng.integers(1, 6), rng.integers(99)
        return TreeSumsQuery(**asked, splits=splits_of(int(rng.integers(1, 5)), int(depth), seed))

    def contributions():
        edges = rng.integers(-90_000, 90_000, (n_scores, rng.integers(0, 20)), dtype=np.int32)
        trees = np.flatnonzero([True, *(rng.random(2) < 0.5)])
        return ContributionSumsQuery(**asked, trees=trees, edges=np.sort(edges, axis=1))

    def numbers():
        features = rng.permutation(3)[: rng.integers(2, 4)]
        most = int(rng.choice([1, 9, 4000]))
        values = [rng.integers(-most, most + 1, N_BINS[j]).astype(np.int32) for j in features]
        return {
            "features": features.astype(np.uint16),
            "values": tuple(values),
            "norm": int(rng.integers(1, 2 * most + 1)),
        }

    def products():
        return ProductSumsQuery(label="", price=1, weight_bits=MOST[1], **numbers())

    def directions():
        part = numbers()
        size = (int(rng.integers(1, 6)), len(part["features"]))
        matrix = rng.integers(-300, 301, size, dtype=np.int32)
        return DirectionSumsQuery(**asked, **part, matrix=matrix)

    def nodes():
        part = level()
        size = (part["splits"].n_leaves, sum(part["sizes"]))
        sides = rng.integers(0, 2, size, dtype=np.uint8) if rng.random() < 0.5 else None
        return NodeSumsQuery(**asked, **part, sides=sides)

    def choice():
        part = level()
        n = int(rng.integers(1, 9))
        feature = rng.integers(0, len(part["features"]), n)
        where = [rng.integers(part["sizes"][k]) for k in feature]
        counting = {"gradient": counting_gradient(kind)}
        return ChoiceQuery(
            **(asked | counting),
            **part,
            candidate_feature=feature.astype(np.uint16),
            candidate_bin=np.array(where, np.uint8),
            candidate_only=rng.random(n) < 0.5,
            ridge=float(rng.uniform(0.01, 9)),
        )

    def shared_choice():
        part = level()
        n_levels, levels = maps(part["features"], 9)
        n_levels[0] = max(n_levels[0], 2)
        n_nodes = part["splits"].n_leaves
        return SharedChoiceQuery(
            **asked,
            **part,
            level_of_bin=levels,
            n_levels=tuple(n_levels),
            slope=rng.integers(-256, 257, (n_nodes, n_scores)),
            n_groups=1 << int(rng.integers(0, part["splits"].depth + 1)),
            odds=rng.integers(1, 1 << 20, sum(n_levels) - len(n_levels)),
        )

    def residual():
        edges = np.unique(rng.integers(0, 150_000, rng.integers(1, 30)))
        return ResidualQuery(label="", price=1, weight_bits=MOST[1], edges=edges)

    def counts():
        part = level()
        return BinCountsQuery(
            label="", price=1, weight_bits=MOST[1], features=part["features"], sizes=part["sizes"]
        )

    kinds = [main, reference, pairs, trees, contributions, products, directions]
    kinds += [nodes, shared_choice, counts]
    kinds += [] if kind == "multiclass" else [choice]
    kinds += [residual] if kind == "numeric" else []
    return kinds[int(rng.integers(len(kinds)))]()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", thinned(range(4), every=2))
def test_one_row_moves_the_sums_of_any_query_in_range_within_its_bound(kind, seed):
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    x, y, w = rows_of(kind, 40, seed)
    more_x, more_y, _ = rows_of(kind, 6, seed + 50)
    fewer = rounds_of(kind, (x, y, w))
    more = [
        rounds_of(
            kind,
            (pd.concat([x, more_x[k : k + 1]]), np.append(y, more_y[k]), np.append(w, np.inf)),
        )
        for k in range(6)
    ]
    model = model_of(kind, seed)
    for _ in range(40):
        query = random_query(kind, rng)
        bound = sensitivity(query, shape_of(kind, *MOST))
        before = opened(fewer.ask(model, query))
        for rounds in more:
            moved = opened(rounds.ask(model, query)) - before
            assert sum(int(d) ** 2 for d in moved) <= bound.l2_squared
            assert sum(abs(int(d)) for d in moved) <= bound.l1
    for rounds in (fewer, *more):
        rounds.close()


def bins_of(*values):
    return np.array(values, np.uint8)


MAIN, PAIRS, TREES, NODES = (queries_of("binary")[k] for k in ("main", "pairs", "trees", "nodes"))
CHOICE = choice_of("binary", splits_of(1))
SHARED = shared_choice_of("binary", splits_of(1))
REFERENCE, ADDED = (queries_of("binary")[k] for k in ("reference", "contributions"))
PRODUCTS, DIRECTIONS = (queries_of("binary")[k] for k in ("products", "directions"))
PAIR = PAIRS.pairs[0]
SPLITS = TREES.splits
OUT_OF_RANGE = {
    # the bin leads to a leaf of the next feature, where a row would then count twice
    "a leaf beyond the last": (
        MAIN,
        {"leaf_of_bin": (*MAIN.leaf_of_bin[:2], bins_of(0, 1, 2, 3, 4))},
    ),
    "a leaf beyond the feature's": (MAIN, {"n_leaves": (5, *MAIN.n_leaves[1:])}),
    "fewer maps than features": (MAIN, {"n_leaves": MAIN.n_leaves[:2]}),
    "leaves that are no number": (MAIN, {"n_leaves": (6.5, 4, 3)}),
    "no leaves": (MAIN, {"n_leaves": (0, 4, 3)}),
    "a map of other numbers": (
        MAIN,
        {"leaf_of_bin": tuple(leaf.astype(np.int64) for leaf in MAIN.leaf_of_bin)},
    ),
    "a map of more bins than codes": (
        MAIN,
        {"leaf_of_bin": (np.zeros(300, np.uint8), *MAIN.leaf_of_bin[1:])},
    ),
    "a leaf kept back that is not there": (REFERENCE, {"omitted": (2, -1, 3)}),
    "a leaf kept back below none": (REFERENCE, {"omitted": (2, -2, 0)}),
    "a leaf kept back that is no number": (REFERENCE, {"omitted": (2, -1, 0.5)}),
    "a leaf kept back in two parts": (
        REFERENCE,
        {"leaf_of_bin": (bins_of(2, 0, 1, 2, 3, 3, 3, 4, 4, 4, 5, 5), *MAIN.leaf_of_bin[1:])},
    ),
    "leaves kept back of fewer features": (REFERENCE, {"omitted": (2, -1)}),
    "rows of no blocks": (REFERENCE, {"most_blocks": 0}),
    "more blocks than there are": (REFERENCE, {"most_blocks": 5}),
    "blocks that are no number": (REFERENCE, {"most_blocks": 2.5}),
    "a cell beyond n_i": (PAIR, {"n_i": 2}),
    "a cell beyond n_j": (PAIR, {"n_j": 2}),
    "too many cells": (PAIR, {"n_i": 17, "n_j": 16}),
    "a negative feature": (PAIR, {"i": -1}),
    "trees that are not complete": (
        TREES,
        {"splits": Splits(*(a[:, :5] for a in SPLITS.arrays[:3]), SPLITS.masks)},
    ),
    "a mask that is not there": (
        TREES,
        {"splits": replace(SPLITS, mask_of=np.full_like(SPLITS.mask_of, 99))},
    ),
    "a negative mask": (TREES, {"splits": replace(SPLITS, mask_of=SPLITS.mask_of - 2)}),
    "a mask of other numbers": (TREES, {"splits": replace(SPLITS, masks=SPLITS.masks + 2)}),
    "a mask of too few codes": (TREES, {"splits": replace(SPLITS, masks=SPLITS.masks[:, :9])}),
    "thresholds of other numbers": (
        TREES,
        {"splits": replace(SPLITS, threshold=SPLITS.threshold.astype(np.int64))},
    ),
    "a negative tree": (ADDED, {"trees": np.array([-1, 0])}),
    "a tree twice": (ADDED, {"trees": np.array([0, 2, 2])}),
    "no trees": (ADDED, {"trees": np.array([], np.int64)}),
    "trees that are no whole numbers": (ADDED, {"trees": np.array([0.0, 2.0])}),
    "edges that fall": (ADDED, {"edges": ADDED.edges[:, ::-1]}),
    "edges of more scores": (ADDED, {"edges": np.repeat(ADDED.edges, 2, axis=0)}),
    "edges of one number": (ADDED, {"edges": ADDED.edges[0]}),
    "more edges than codes": (ADDED, {"edges": np.zeros((1, 256), np.int32)}),
    "numbers of one feature": (
        PRODUCTS,
        {"features": PRODUCTS.features[:1], "values": PRODUCTS.values[:1]},
    ),
    "numbers of more than a kernel adds up": (
        PRODUCTS,
        {"features": np.arange(257, dtype=np.uint16), "values": (np.ones(2, np.int32),) * 257},
    ),
    "a feature's numbers twice": (PRODUCTS, {"features": np.array([0, 1, 1], np.uint16)}),
    "numbers of fewer features": (PRODUCTS, {"values": PRODUCTS.values[:2]}),
    "numbers of no bin": (
        PRODUCTS,
        {"values": (np.ones(0, np.int32), *PRODUCTS.values[1:])},
    ),
    "numbers that are not whole": (
        PRODUCTS,
        {"values": tuple(part / 2 for part in PRODUCTS.values)},
    ),
    "numbers too large to be squared": (
        PRODUCTS,
        {"values": (np.full(12, 1 << 27, np.int32), *PRODUCTS.values[1:])},
    ),
    "a norm of nothing": (PRODUCTS, {"norm": 0}),
    "a norm that is no number": (DIRECTIONS, {"norm": 0.5}),
    "a norm too large to be squared": (DIRECTIONS, {"norm": 1 << 27}),
    "directions of fewer features": (DIRECTIONS, {"matrix": DIRECTIONS.matrix[:, :2]}),
    "no directions": (DIRECTIONS, {"matrix": DIRECTIONS.matrix[:0]}),
    "directions that are no whole numbers": (DIRECTIONS, {"matrix": DIRECTIONS.matrix / 2}),
    "directions too long to be squared": (DIRECTIONS, {"matrix": DIRECTIONS.matrix << 20}),
    "two trees of a level": (NODES, {"splits": splits_of(2)}),
    "sizes of fewer features": (NODES, {"sizes": NODES.sizes[:1]}),
    "a size of no bins": (NODES, {"sizes": (0, NODES.sizes[1])}),
    "a side of three": (NODES, {"sides": np.full((8, sum(NODES.sizes)), 2, np.uint8)}),
    "sides of fewer nodes": (NODES, {"sides": np.zeros((7, sum(NODES.sizes)), np.uint8)}),
    "a candidate of no feature": (CHOICE, {"candidate_feature": np.full(5, 2, np.uint16)}),
    "a candidate of no bin": (CHOICE, {"candidate_bin": np.full(5, 12, np.uint8)}),
    "candidates of different lengths": (CHOICE, {"candidate_bin": np.zeros(4, np.uint8)}),
    "a ridge of nothing": (CHOICE, {"ridge": 0.0}),
    "levels that no byte counts": (SHARED, {"n_levels": (300, SHARED.n_levels[1])}),
    "levels of fewer bins": (SHARED, {"level_of_bin": (bins_of(0, 1), SHARED.level_of_bin[1])}),
    "a level beyond the last": (SHARED, {"n_levels": (3, 3)}),
    "no candidate": (
        SHARED,
        {"level_of_bin": tuple(part * 0 for part in SHARED.level_of_bin), "n_levels": (1, 1)},
    ),
    "a slope beyond the largest": (SHARED, {"slope": SHARED.slope * 9}),
    "slopes of fewer nodes": (SHARED, {"slope": SHARED.slope[1:]}),
    "slopes of more scores": (SHARED, {"slope": np.repeat(SHARED.slope, 2, axis=1)}),
    "slopes that are no whole numbers": (SHARED, {"slope": SHARED.slope / 2}),
    "groups that do not divide the nodes": (SHARED, {"n_groups": 3}),
    "more groups than nodes": (SHARED, {"n_groups": 16}),
    "edges that do not increase": (
        queries_of("numeric")["residual"],
        {"edges": np.array([5, 5, 9])},
    ),
    "edges of other numbers": (queries_of("numeric")["residual"], {"edges": np.array([0.5, 1.5])}),
    "a feature without bins": (queries_of("binary")["bins"], {"sizes": (5, 0)}),
    "bins of no feature": (
        queries_of("binary")["bins"],
        {"features": np.array([], np.uint16), "sizes": ()},
    ),
    "bins of fewer features": (queries_of("binary")["bins"], {"sizes": (5,)}),
    "features that are no whole numbers": (
        queries_of("binary")["bins"],
        {"features": np.array([2.0, 0.0])},
    ),
    "an unknown grid": (queries_of("binary")["coarse"], {"n_uniform": 77}),
    "a feature without cells": (queries_of("binary")["coarse"], {"sizes": (3, 0)}),
    "an unknown target": (queries_of("binary")["target"], {"kind": "mine"}),
    "no scores": (TREES, {"n_scores": 0}),
    "a negative price": (TREES, {"price": -1}),
    "a price that is no number": (TREES, {"price": 0.5}),
    "negative weights": (TREES, {"weight_bits": -1}),
    "weights of too many steps": (TREES, {"weight_bits": 40}),
    "a draw of nothing": (RowDraw("part", 0, 0, 1), {"low": 1}),
    "a draw of more than all": (RowDraw("part", 0, 0, 1), {"high": 2**32 + 1}),
    "a draw of parts of a number": (RowDraw("part", 0, 0, 1), {"high": 0.5}),
    "a draw of another kind": (RowDraw("part", 0, 0, 1), {"kind": "every"}),
}


@pytest.mark.parametrize("what", OUT_OF_RANGE)
def test_what_is_out_of_range_is_refused_as_it_is_made(what):
    good, changes = OUT_OF_RANGE[what]
    replace(good)
    with pytest.raises(PlanError):
        replace(good, **changes)


NOT_OF_THE_ROWS = {
    "bins that a feature does not have": replace(
        MAIN, leaf_of_bin=(np.zeros(13, np.uint8), *MAIN.leaf_of_bin[1:])
    ),
    "fewer features": replace(MAIN, leaf_of_bin=MAIN.leaf_of_bin[:2], n_leaves=MAIN.n_leaves[:2]),
    "a pair of fewer bins": replace(PAIRS, pairs=(replace(PAIR, map_i=bins_of(0, 1)),)),
    "a pair of a feature that is not there": replace(PAIRS, pairs=(replace(PAIR, j=3),)),
    "trees of a feature that is not there": replace(
        TREES, splits=replace(SPLITS, feature=SPLITS.feature + 1)
    ),
    "a level of a feature that is not there": replace(
        NODES, features=np.array([2, 3], np.uint16), sizes=NODES.sizes
    ),
    "a level below a feature that is not there": replace(
        NODES, splits=replace(NODES.splits, feature=NODES.splits.feature + 3)
    ),
    "bins of another number": replace(NODES, sizes=(4, 12)),
    "scores of another target": replace(TREES, gradient=softmax_gradient(2), n_scores=2),
    "a gradient of another target": replace(TREES, gradient=gradient_of("numeric")),
}


@pytest.mark.parametrize("what", NOT_OF_THE_ROWS)
def test_what_does_not_fit_the_rows_is_refused_before_they_are_added(what):
    query = replace(NOT_OF_THE_ROWS[what], weight_bits=MOST[1])
    rounds = rounds_of("binary", rows_of("binary", 40))
    with pytest.raises(PlanError):
        rounds.ask(model_of("binary"), query)
    rounds.close()


# ---- a query cannot change after its checks --------------------------------------------------------------------------


def lent(value, memory):
    """The same value made of lists, NumPy's numbers, and read-only views of memory that its owner may use again."""
    if isinstance(value, np.ndarray):
        memory.append(value.copy())
        view = memory[-1].view()
        view.setflags(write=False)
        return view
    if isinstance(value, tuple):
        return [lent(part, memory) for part in value]
    if is_dataclass(value):
        return type(value)(**{f.name: lent(getattr(value, f.name), memory) for f in fields(value)})
    return np.int64(value) if type(value) is int else value


def check_held(value):
    """Check that nothing in a query can change, and that its numbers are Python's own."""
    if isinstance(value, np.ndarray):
        assert type(value) is np.ndarray
        assert not value.flags.writeable
        assert value.base is None or not value.base.flags.writeable
    elif is_dataclass(value):
        for field in fields(value):
            check_held(getattr(value, field.name))
    elif isinstance(value, tuple):
        for part in value:
            check_held(part)
    else:
        assert value is None or type(value) in (int, float, bool, str)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_a_query_stays_what_it_was_as_its_memory_is_used_again(kind, name):
    query = queries_of(kind)[name]
    memory = []
    same = lent(query, memory)
    for array in memory:
        array[...] = 200 if array.dtype != bool else ~array
    assert same.digest() == query.digest()
    check_held(same)


@pytest.mark.parametrize(
    "gradient",
    [
        poisson_gradient(0.1),
        softmax_gradient(3),
        clipped_softmax_gradient(3, clip=0.85, hess_scale=0.5),
        logistic_gradient(0.5, 1.0),
        table_of("numeric"),
    ],
    ids=lambda gradient: type(gradient).__name__,
)
def test_a_gradient_stays_what_it_was_as_its_memory_is_used_again(gradient):
    memory = []
    same = lent(gradient, memory)
    bounds = same.l2_squared, same.l1, same.max_abs
    for array in memory:
        array[...] = 1 << 40
    assert (same.l2_squared, same.l1, same.max_abs) == bounds
    check_held(same)


def test_bins_stay_what_they_were_as_their_memory_is_used_again():
    for bins in BINS:
        memory = []
        same = lent(bins, memory)
        memory[0][...] = 200
        check_held(same)
    with pytest.raises(ValueError, match="a bin that is not there"):
        FeatureBins(None, bins_of(0, 1, 3), 3)


@dataclass(frozen=True)
class ReusedBuffer(Stage):
    """A stage of one round that writes to the maps of its query after handing the query over."""

    def declare(self, _shape):
        return Demand(0.5, 0.9, 1)

    def begin(self, state):
        return replace(state, memory=0)

    def next_query(self, state):
        if state.memory:
            return None
        maps = tuple((np.arange(b.n_bins) % 2).astype(np.uint8) for b in state.model.bins)
        query = MainSumsQuery(
            label="x 1/1",
            price=state.total // 2,
            gradient=logistic_gradient(0.5, 1.0),
            n_scores=1,
            leaf_of_bin=maps,
            n_leaves=(2,) * len(maps),
        )
        maps[0][:] = 2  # leaf 2 of the first feature would be leaf 0 of the second
        maps[1][:] = 0
        return query

    def update(self, state, query, _released):
        assert [leaf.max() for leaf in query.leaf_of_bin] == [1, 1]
        return replace(state, memory=1)


def test_a_stage_that_uses_its_buffer_again_asks_what_was_checked():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (300, 2))
    y = (X[:, 0] > 0.5).astype(int)
    plan = Plan(name="mine", source="a test", stages=(PublicBins(n_bins=8), ReusedBuffer()))
    told = []
    ask = LocalRounds.ask

    def noted(rounds, model, query):
        raw = ask(rounds, model, query)
        told.append(opened(raw))
        return raw

    with mock.patch.object(LocalRounds, "ask", noted):
        DPGBClassifier(
            schema=Schema({"x0": (0, 1), "x1": (0, 1)}, classes=[0, 1], target="y"),
            epsilon=1,
            delta=1e-6,
            recipe=plan,
            noise=SeededNoise(1),
        ).fit(X, y)
    sums = told[-1].reshape(2, 2, 2)
    assert (sums[0].sum(axis=0) == sums[1].sum(axis=0)).all()  # each row once per feature
    assert sums.any(axis=2).all()


# ---- draws of rows ---------------------------------------------------------------------------------------------------


def positions_drawn(n, draw):
    """Return which positions of the source a draw chooses."""
    index = np.zeros((n, 2), np.uint64)
    index[:, 0] = np.arange(n)
    drawn = np.empty(n, np.uint32)
    draws(ROWS_KEY, draw.group, index, drawn)
    return (draw.low <= drawn) & (drawn < draw.high)


@pytest.mark.parametrize("high", [1 << 29, 3 << 30])  # few rows are gathered; many rows are masked
@pytest.mark.parametrize("bins", [BINS, None])
@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_rows_are_drawn_by_their_position_and_by_nothing_in_them(high, bins, cache):
    n = 600
    draw = RowDraw("sample", 4, 0, high)
    chosen = positions_drawn(n, draw)
    query = replace(
        choice_of("binary", splits_of(1, 0), MOST[1]),
        gradient=counting_gradient("binary"),
        rows=draw,
    )
    rng = np.random.default_rng(0)
    labels = {"one": np.zeros(n), "other": np.ones(n), "both": rng.integers(0, 2, n)}
    weights = {"one": np.ones(n), "more": rng.integers(1, 4, n)}
    values = {"equal": np.zeros(n), "all different": np.linspace(-2, 2, n)}
    for y in labels.values():
        for w in weights.values():
            for a in values.values():
                x = pd.DataFrame({"a": a, "b": np.zeros(n), "c": np.zeros(n)})
                rounds = rounds_of("binary", (x, y, w), bins, cache=cache)
                sums = opened(rounds.ask(model_of("binary"), query)).reshape(-1, 2)
                rounds.close()
                weight = int(sums[: N_BINS[0], 1].sum()) >> (GRAD_BITS + MOST[1])
                assert weight == w[chosen].sum()
