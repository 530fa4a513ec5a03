import numba
import numpy as np
import pytest

from dpgb_dask.kernels import draw, histogram, nodes, pair_tables, predict, route, sides, warming

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="looks at compiled versions")


def test_warm_leaves_nothing_to_compile_for_read_only_blocks():
    warming.warm()
    compiled = [
        histogram._joint_sums,
        route._tree_leaves,
        route._sharing_tree_leaves,
        route._find_nodes,
        route.one_feature_of,
        route._leaves_of_codes,
        route._sums_of_leaves,
        nodes._add_rows,
        nodes._flush_all,
        pair_tables._pair_sums,
        predict._add_tables,
        predict._add_planes,
        predict._add_pair_tables,
        predict._add_trees,
        predict._add_sharing_trees,
        predict._add_trees_by_planes,
        predict._add_deep_trees,
        sides.number_splits,
        draw._draws,
    ]
    versions = [len(function.signatures) for function in compiled]
    codes = np.zeros((2, 5), np.uint8)
    packed = np.ones((1, 5), np.int64)
    node = np.zeros(5, np.uint16)
    index = np.zeros((5, 2), np.uint64)
    no_mask = np.full((1, 1), -1, np.int32), np.zeros((0, 256), np.uint8)
    trees = np.zeros((1, 1), np.uint16), np.zeros((1, 1), np.uint8), *no_mask
    deep = *(np.repeat(part, 511, axis=1) for part in trees[:3]), trees[3]
    features = np.zeros(1, np.uint16)
    for array in (codes, packed, node, index, features, *trees, *deep):
        array.flags.writeable = False
    sums = histogram.joint_sums(codes, packed, 1, (2, 2))
    assert sums[:, 0].tolist() == [[0, 5], [0, 0]] * 2
    pairs = [pair_tables.Pair(0, 1, np.zeros(2, np.uint8), np.zeros(2, np.uint8), 1, 1)]
    pair_tables.pair_sums(codes, pairs, packed, 1)
    assert route.tree_sums(codes, *trees, packed, 1)[:, :, 0].tolist() == [[[0, 5], [0, 0]]]
    assert route.only_feature(*trees[:3]) == 0
    assert route.leaves_of_codes(*trees[1:], 2).tolist() == [[0, 1]]
    assert route.sums_of_leaves(sums[:2], *trees[1:]).tolist() == [[[[0, 5]], [[0, 0]]]]
    for n_nodes in (1, 3):
        got = nodes.node_sums(codes, features, (2,), node, n_nodes, packed[0], 1)
        assert got[0].tolist() == [[0, 5], [0, 0]]
    route.find_nodes(codes, *(part[0] for part in deep[:3]), deep[3], np.empty(5, np.uint16))
    score = np.zeros((1, 5), np.int32)
    predict.add_tables(codes, [np.ones((2, 1), np.int32), None], score)
    tables = predict.pack_pair_tables(pairs, [np.ones((1, 1, 1), np.int32)])
    predict.add_pair_tables(codes, tables, score)
    predict.add_trees(codes, *trees, np.ones((1, 1, 2), np.int32), score)
    predict.add_trees(codes, *deep, np.ones((1, 1, 512), np.int32), score)
    many, ones = np.zeros((2, sides.BEGIN), np.uint8), np.ones((1, sides.BEGIN), np.int64)
    alike = *(np.repeat(part, 3, axis=0) for part in trees[:3]), trees[3]
    for array in (many, ones, *alike):
        array.flags.writeable = False
    assert route.tree_sums(many, *alike, ones, 1)[:, 0, 0, 1].tolist() == [sides.BEGIN] * 3
    predict.add_trees(many, *alike, np.ones((1, 3, 2), np.int32), ones.astype(np.int32))
    assert score.tolist() == [[4] * 5]
    draw.draws(bytes(16), 0, index, np.empty(5, np.uint32))
    assert [len(function.signatures) for function in compiled] == versions


def test_kernels_release_the_gil_and_are_cached():
    for function in (
        histogram._joint_sums,
        route._tree_leaves,
        nodes._add_rows,
        predict._add_trees,
        draw._draws,
    ):
        assert function.targetoptions["nogil"]
        assert function.stats is not None
