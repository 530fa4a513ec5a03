import numpy as np
import pytest
from helpers import naive_add_pair_table, naive_add_tables, naive_add_trees

from dpgb_dask.kernels import predict

SIZES = (33, 2, 3, 256, 1, 33, 4, 4, 3, 200)


def additive(n, seed=0):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, n, np.uint8) for size in SIZES])
    tables = [rng.integers(-(1 << 19), 1 << 19, size, np.int32) for size in SIZES]
    return codes, tables, rng.integers(-100, 100, n, np.int32)


@pytest.mark.parametrize("n", [0, 1, 900])
def test_add_tables_adds_one_entry_per_feature(n):
    codes, tables, score = additive(n)
    tables[3] = None
    tables[5] = np.zeros(33, np.int32)
    for given in (tables, predict.pack_tables(tables)):
        got = score.copy()
        predict.add_tables(codes, given, got)
        np.testing.assert_array_equal(got, naive_add_tables(codes, tables, score))


@pytest.mark.parametrize("tables", [[None] * 10, [np.ones(1, np.int32)] + [None] * 9])
def test_add_tables_takes_none_and_one(tables):
    codes, _, score = additive(20)
    codes[0] = 0
    got = score.copy()
    predict.add_tables(codes, tables, got)
    np.testing.assert_array_equal(got, naive_add_tables(codes, tables, score))


def test_add_tables_over_several_blocks():
    codes, tables, score = additive(2 * predict.BLOCK + 5)
    got = score.copy()
    predict.add_tables(codes, tables, got)
    np.testing.assert_array_equal(got, naive_add_tables(codes, tables, score))


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (256, 3), (256, 256)])
def test_add_pair_table_adds_one_cell(shape):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 40, (2, 500), np.uint8)
    maps = [rng.integers(0, n, 40).astype(np.uint8) for n in shape]
    table = rng.integers(-1000, 1000, shape, np.int32)
    score = rng.integers(-100, 100, 500, np.int32)
    want = naive_add_pair_table(*codes, *maps, table, score)
    predict.add_pair_table(*codes, *maps, table, score)
    np.testing.assert_array_equal(score, want)


def forest(n_trees, depth, n_features, masked):
    """Random trees in which a share of the nodes has a mask."""
    rng = np.random.default_rng(depth)
    shape = (n_trees, (1 << depth) - 1)
    feature = rng.integers(0, n_features, shape, np.uint16)
    threshold = rng.integers(0, 256, shape, np.uint8)
    masks = rng.integers(0, 2, (7, 256), np.uint8)
    mask_of = np.where(rng.random(shape) < masked, rng.integers(0, 7, shape), -1).astype(np.int32)
    value = rng.integers(-1000, 1000, (n_trees, 1 << depth), np.int32)
    return feature, threshold, mask_of, masks, value


@pytest.mark.parametrize("masked", [0.0, 0.5])
@pytest.mark.parametrize("depth", range(11))
@pytest.mark.parametrize("n_trees", [0, 1, 7])
def test_add_trees_adds_one_leaf_per_tree(n_trees, depth, masked):
    rng = np.random.default_rng(depth)
    codes = rng.integers(0, 256, (5, 300), np.uint8)
    trees = forest(n_trees, depth, 5, masked)
    score = rng.integers(-100, 100, 300, np.int32)
    got = score.copy()
    predict.add_trees(codes, *trees, got)
    np.testing.assert_array_equal(got, naive_add_trees(codes, *trees, score))


@pytest.mark.parametrize("depth", [3, 9])
def test_add_trees_over_several_blocks(depth):
    rng = np.random.default_rng(0)
    n = predict.BLOCK + 9
    codes = rng.integers(0, 256, (5, n), np.uint8)
    trees = forest(3, depth, 5, 0.2)
    got = np.zeros(n, np.int32)
    predict.add_trees(codes, *trees, got)
    np.testing.assert_array_equal(got, naive_add_trees(codes, *trees, np.zeros(n, np.int32)))


def test_tables_name_what_does_not_fit():
    codes, tables, score = additive(4)
    with pytest.raises(ValueError, match="differ in features"):
        predict.add_tables(codes, tables[:3], score)
    with pytest.raises(ValueError, match="int32"):
        predict.pack_tables([np.ones(3)])
    with pytest.raises(ValueError, match="score has dtype=int64"):
        predict.add_tables(codes, tables, score.astype(np.int64))
    maps = np.array([0, 1], np.uint8)
    with pytest.raises(ValueError, match="outside the table"):
        predict.add_pair_table(codes[0], codes[1], maps, maps, np.zeros((1, 2), np.int32), score)
    *trees, value = forest(1, 2, 5, 0.0)
    with pytest.raises(ValueError, match="one entry per leaf"):
        predict.add_trees(codes, *trees, value[:, :3].copy(), score)
