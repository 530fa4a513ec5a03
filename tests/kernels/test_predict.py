import numba
import numpy as np
import pytest
from helpers import naive_add_pair_table, naive_add_tables, naive_add_trees, naive_leaves

from dpgb_dask.contracts.model import PairTable
from dpgb_dask.kernels import predict, route, sides
from dpgb_dask.kernels.pair_tables import Pair, pack_pairs, pair_sums

SIZES = (
    64,
    2,
    3,
    256,
    1,
    33,
    4,
    4,
    3,
    200,
    90,
    91,
    92,
    93,
)  # in groups, and alone by fours and ones


@pytest.fixture(autouse=True, params=[True, False], ids=["planes", "joined"])
def by_planes(request, monkeypatch):
    """Either way of tables, whatever this processor has: without AVX-512, planes are looked up row by row."""
    monkeypatch.setattr(predict, "AVX512_VBMI", request.param)
    return request.param


def additive(n, seed=0):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, n, np.uint8) for size in SIZES])
    tables = [rng.integers(-(1 << 19), 1 << 19, (size, 2), np.int32) for size in SIZES]
    return codes, tables, rng.integers(-100, 100, (2, n), np.int32)


@pytest.mark.parametrize("n", [0, 1, 900])
def test_add_tables_adds_one_entry_per_feature(n):
    codes, tables, score = additive(n)
    tables[3] = None
    tables[5] = np.zeros((33, 2), np.int32)
    for given in (tables, predict.pack_tables(tables)):
        got = score.copy()
        predict.add_tables(codes, given, got)
        np.testing.assert_array_equal(got, naive_add_tables(codes, tables, score))


@pytest.mark.parametrize("tables", [[None] * 14, [np.ones((1, 2), np.int32)] + [None] * 13])
def test_add_tables_takes_none_and_one(tables):
    codes, _, score = additive(20)
    codes[0] = 0
    got = score.copy()
    predict.add_tables(codes, tables, got)
    np.testing.assert_array_equal(got, naive_add_tables(codes, tables, score))


@pytest.mark.parametrize("n_scores", range(1, 10))
def test_scores_that_are_added_at_once_get_what_each_gets(n_scores):
    codes, tables, _ = additive(predict.BLOCK + 5)
    tables = [np.concatenate([k * t for k in range(1, 6)], axis=1)[:, :n_scores] for t in tables]
    got = np.zeros((n_scores, codes.shape[1]), np.int32)
    predict.add_tables(codes, tables, got)
    np.testing.assert_array_equal(got, naive_add_tables(codes, tables, np.zeros_like(got)))


def test_add_tables_over_several_blocks():
    codes, tables, score = additive(2 * predict.BLOCK + 5)
    got = score.copy()
    predict.add_tables(codes, tables, got)
    np.testing.assert_array_equal(got, naive_add_tables(codes, tables, score))


def packed(tables):
    return predict.pack_pair_tables(tables, [t.table for t in tables])


def test_a_code_beyond_its_table_takes_the_last_entry():
    codes = np.array([[0, 199, 255] * 7] * 5, np.uint8)  # a register, and five more
    table = np.arange(200, dtype=np.int32)[:, None]
    # alone, in one or two registers or one group
    for size in (200, 64, 63, 32, 31, 2, 1):
        score = np.zeros((1, 21), np.int32)
        predict.add_tables(codes, [table[:size] + 1] * 5, score)
        assert score.tolist() == [[5, 5 * size, 5 * size] * 7]


@pytest.mark.parametrize("n", [0, 1, predict.BLOCK + 5])
@pytest.mark.parametrize("n_scores", [1, 3, 5])
def test_add_pair_tables_adds_one_cell_of_each(n_scores, n):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 40, (4, n), np.uint8)
    tables = []
    for shape in [(1, 1), (16, 16), (4, 3), (256, 3), (256, 256), (5, 2), (4, 3)]:
        i, j = (int(k) for k in rng.choice(4, 2, replace=False))
        maps = [rng.integers(0, size, 40).astype(np.uint8) for size in shape]
        values = rng.integers(-(1 << 30), 1 << 30, (n_scores, *shape), np.int32)
        tables.append(PairTable(i, j, *maps, values))
    score = rng.integers(-100, 100, (n_scores, n), np.int32)
    want = score
    for t in tables:
        want = naive_add_pair_table(codes[t.i], codes[t.j], t.map_i, t.map_j, t.table, want)
    got = score.copy()
    predict.add_pair_tables(codes, packed(tables), got)
    np.testing.assert_array_equal(got, want)
    predict.add_pair_tables(codes, packed([]), got)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("n", [0, 1, predict.BLOCK + 5])
@pytest.mark.parametrize("n_pairs", [1, 3, 12])  # groups are taken by fours
@pytest.mark.parametrize("n_scores", [1, 2, 5])
def test_cells_that_sums_kept_serve_when_their_pairs_are_added(n_scores, n_pairs, n):
    rng = np.random.default_rng(n_pairs)
    codes = rng.integers(0, 40, (2 * n_pairs, n), np.uint8)
    tables = [
        PairTable(
            2 * k,
            2 * k + 1,
            *(rng.integers(0, 16, 40).astype(np.uint8) for _ in range(2)),
            rng.integers(-1000, 1000, (n_scores, 16, 16), np.int32),
        )
        for k in range(n_pairs)
    ]
    pairs = pack_pairs([Pair(t.i, t.j, t.map_i, t.map_j, 16, 16) for t in tables])
    assert packed(tables).pairs is pairs  # which is what a shard goes by
    cells = np.empty((pairs.n_groups, n), np.uint16)
    pair_sums(codes, pairs, np.zeros((n_scores, n), np.int64), 1, cells)
    want, got = np.zeros((2, n_scores, n), np.int32)
    predict.add_pair_tables(codes, packed(tables), want)
    predict.add_pair_tables(np.zeros_like(codes), packed(tables), got, cells)
    np.testing.assert_array_equal(got, want)


def forest(n_trees, depth, n_features, masked):
    """Random trees in which a share of the nodes has a mask."""
    rng = np.random.default_rng(depth)
    shape = (n_trees, (1 << depth) - 1)
    feature = rng.integers(0, n_features, shape, np.uint16)
    threshold = rng.integers(0, 256, shape, np.uint8)
    masks = rng.integers(0, 2, (7, 256), np.uint8)
    mask_of = np.where(rng.random(shape) < masked, rng.integers(0, 7, shape), -1).astype(np.int32)
    value = rng.integers(-1000, 1000, (2, n_trees, 1 << depth), np.int32)
    return feature, threshold, mask_of, masks, value


@pytest.mark.parametrize("masked", [0.0, 0.5])
@pytest.mark.parametrize("depth", range(11))
@pytest.mark.parametrize("n_trees", [0, 1, 7])
def test_add_trees_adds_one_leaf_per_tree(n_trees, depth, masked):
    rng = np.random.default_rng(depth)
    codes = rng.integers(0, 256, (5, 300), np.uint8)
    trees = forest(n_trees, depth, 5, masked)
    score = rng.integers(-100, 100, (2, 300), np.int32)
    got = score.copy()
    predict.add_trees(codes, *trees, got)
    np.testing.assert_array_equal(got, naive_add_trees(codes, *trees, score))


@pytest.mark.parametrize("depth", [3, 9])
def test_add_trees_over_several_blocks(depth):
    rng = np.random.default_rng(0)
    n = predict.BLOCK + 9
    codes = rng.integers(0, 256, (5, n), np.uint8)
    trees = forest(3, depth, 5, 0.2)
    got = np.zeros((2, n), np.int32)
    want = naive_add_trees(codes, *trees, got)
    predict.add_trees(codes, *trees, got)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("depth", "masked", "n"),
    [
        (1, 0.0, sides.UNIT),
        (2, 0.5, 2 * sides.UNIT + 1),  # most of the second block's rows were in the first
        (5, 0.0, sides.BLOCK + 300),
        (5, 0.5, 2 * sides.UNIT - 1),
        (6, 0.0, sides.BLOCK + 300),
        (7, 0.0, sides.UNIT),
        (8, 0.5, 3 * sides.UNIT),
    ],
)
def test_trees_that_share_splits_have_the_same_leaves(depth, masked, n, by_planes, monkeypatch):
    feature, threshold, mask_of, masks, value = forest(23, depth, 5, masked)
    threshold = np.array([0, 90, 254, 255], np.uint8)[threshold // 64]  # beyond 255 lies no code
    trees = feature, threshold, np.minimum(mask_of, 1), masks
    monkeypatch.setattr(sides, "BEGIN", -1)  # stumps, and small trees, share little
    called = []
    own = "_add_trees_by_planes" if by_planes else "_add_sharing_trees"
    add, find = getattr(predict, own), route._sharing_tree_leaves
    monkeypatch.setattr(predict, own, lambda *a: (called.append(1), add(*a)))
    monkeypatch.setattr(route, "_sharing_tree_leaves", lambda *a: (called.append(2), find(*a)))
    codes = np.random.default_rng(n).integers(0, 256, (5, n), np.uint8)
    got = np.ones((2, n), np.int32)
    want = naive_add_trees(codes, *trees, value, got)
    predict.add_trees(codes, *trees, value, got)
    np.testing.assert_array_equal(got, want)
    leaf = np.empty((23, n), np.uint8)
    route.tree_leaves(codes, *trees, leaf)
    for t, tree in enumerate(zip(*trees[:3], strict=True)):
        np.testing.assert_array_equal(leaf[t], naive_leaves(codes, *tree, masks))
    assert called == [1, 2]


def test_splits_are_shared_where_nodes_are_many_and_rows_too():
    feature = np.arange(62, dtype=np.uint16).reshape(2, 31)
    threshold, mask_of = np.zeros((2, 31), np.uint8), np.full((2, 31), -1, np.int32)
    for n_splits, rows, shared in (
        (23, sides.BEGIN, True),  # 3/8 of 62 nodes
        (23, sides.BEGIN - 200, False),
        (24, sides.BEGIN, False),
        (1, sides.UNIT, True),
        (1, sides.UNIT - 1, False),
    ):
        of_few = feature % n_splits
        found = sides.shared_splits(rows, of_few, threshold, mask_of)
        assert (found is not None) == shared
        if found is not None:
            number, node = found
            assert len(node) == n_splits
            np.testing.assert_array_equal(of_few[*node[number].T], of_few.T)


def test_splits_differ_by_feature_threshold_or_mask():
    """However many features and masks there are: no memory holds 2¹⁶ · 10⁶ pairs of them."""
    rng = np.random.default_rng(0)
    feature, kind = np.meshgrid([0, 16, 4093, 65_535], np.arange(512))
    threshold, mask = np.where(kind < 256, kind, 0), np.where(kind < 256, -1, (kind - 256) * 4_000)
    different = np.stack([feature, threshold, mask]).reshape(3, sides.MOST_SPLITS)
    which = rng.permutation(np.resize(np.arange(sides.MOST_SPLITS), 100 * 31)).reshape(100, 31)
    f, t, q = different[:, which]
    q[q < 0] = rng.choice([-1, -9], np.count_nonzero(q < 0))
    trees = [f.astype(np.uint16), t.astype(np.uint8), q.astype(np.int32)]
    number, node = sides.shared_splits(1 << 20, *trees)
    np.testing.assert_array_equal(which[*node[number].T], which.T)
    assert len(node) == sides.MOST_SPLITS
    assert np.count_nonzero(which == which[-1, -1]) > 1
    trees[0][-1, -1] = 7  # one split more, of no other node
    assert sides.shared_splits(1 << 20, *trees) is None


@numba.njit
def leaves_of_sides(side, number, leaf):
    sides.find_leaves_of_sides(side, number, leaf)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="compares with what is compiled")
def test_leaves_of_sides_are_those_that_python_finds():
    rng = np.random.default_rng(0)
    for depth in range(1, 9):
        side = rng.integers(0, 2**64, (30, 24), np.uint64)
        number = rng.integers(0, 30, (1 << depth) - 1, np.int32)
        got, want = np.zeros(128, np.uint64), np.zeros(128, np.uint64)
        leaves_of_sides(side, number, got)
        sides._in_python(side, number, want)
        np.testing.assert_array_equal(got, want)


def test_tables_name_what_does_not_fit():
    codes, tables, score = additive(4)
    with pytest.raises(ValueError, match="differ in features"):
        predict.add_tables(codes, tables[:3], score)
    with pytest.raises(ValueError, match="int32"):
        predict.pack_tables([np.ones((3, 1))])
    with pytest.raises(ValueError, match="Tables differ in scores"):
        predict.pack_tables([np.ones((3, 1), np.int32), np.ones((3, 2), np.int32)])
    with pytest.raises(ValueError, match="values and score differ in scores"):
        predict.add_tables(codes, tables, score[:1].copy())
    with pytest.raises(ValueError, match="score has dtype=int64"):
        predict.add_tables(codes, tables, score.astype(np.int64))
    maps = np.array([0, 1], np.uint8)
    narrow = PairTable(0, 1, maps, maps, np.zeros((2, 1, 2), np.int32))
    with pytest.raises(ValueError, match="below n_i"):
        packed([narrow])
    beyond = PairTable(0, 14, maps, maps, np.zeros((2, 2, 2), np.int32))
    with pytest.raises(ValueError, match="feature that codes"):
        predict.add_pair_tables(codes, packed([beyond]), score)
    with pytest.raises(ValueError, match="n_scores, n_i, n_j"):
        packed([PairTable(0, 1, maps, maps, np.zeros((2, 2, 2)))])
    *trees, value = forest(1, 2, 5, 0.0)
    with pytest.raises(ValueError, match="one entry per leaf"):
        predict.add_trees(codes, *trees, value[:, :, :3].copy(), score)
