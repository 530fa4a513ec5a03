import numpy as np
import pytest
from helpers import naive_node_sums, pack

from dpgb_dask.kernels import histogram, nodes

SIZES = [
    (3,),
    (256,) * 7,
    (2,) * 9 + (3, 256, 200),
    (33, 2, 3, 256, 1, 33, 4, 4, 3, 129, 256, 256, 200),
]


def rows_of(n, sizes, n_nodes, max_abs, seed=0):
    rng = np.random.default_rng(seed)
    codes = np.stack(
        [rng.integers(0, size, n, np.uint8, endpoint=False) for size in map(int, sizes)]
    )
    node = rng.integers(0, n_nodes, n).astype(np.uint16)
    g = rng.integers(-max_abs, max_abs, n, endpoint=True)
    h = rng.integers(0, max_abs, n, endpoint=True)
    return codes, node, g, h


def every(codes):
    return np.arange(len(codes), dtype=np.uint16)


@pytest.mark.parametrize("max_abs", [1, 1 << 15, 1 << 27, (1 << 31) - 1])
@pytest.mark.parametrize("n_nodes", [1, 2, 5, 40])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("n", [0, 1, 400])
def test_node_sums_equals_the_dull_sum(n, sizes, n_nodes, max_abs):
    codes, node, g, h = rows_of(n, sizes, n_nodes, max_abs)
    some = np.arange(n_nodes) % 3 == 1
    for only in (None, some, ~some):
        got = nodes.node_sums(codes, every(codes), sizes, node, n_nodes, pack(g, h), max_abs, only)
        want = naive_node_sums(codes, every(codes), sizes, node, n_nodes, g, h, only)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("max_abs", [1, 1 << 15, 1 << 27])
@pytest.mark.parametrize("n_nodes", [1, 2, 20])
@pytest.mark.parametrize("sizes", [(16,) * 7, (2, 3, 5, 16, 9, 15, 200, 256), (7,)])
def test_joined_cells_give_the_sums_of_each_feature(sizes, n_nodes, max_abs):
    n = 2 * nodes.JOIN_BLOCK + 7
    codes, node, g, h = rows_of(n, (256,) * (len(sizes) + 1), n_nodes, max_abs)
    rng = np.random.default_rng(1)
    features = (every(sizes)[::-1] + 1).astype(np.uint16)
    # codes reach beyond the maps, which then count as their last bin
    cell_of_bin = [rng.integers(0, size, rng.integers(size, 257), np.uint8) for size in sizes]
    joined = nodes.JoinedCells(features, cell_of_bin, sizes)
    cells = np.empty((joined.n_groups, n), np.uint8)
    joined.join(codes, cells)
    plain = np.stack(
        [m[np.minimum(codes[j], len(m) - 1)] for j, m in zip(features, cell_of_bin, strict=True)]
    )
    for only in (None, np.arange(n_nodes) % 2 == 0):
        sums = nodes.NodeSums(features, sizes, n_nodes, max_abs, only, joined=True)
        for part in (slice(0, 100), slice(100, None)):
            block = np.ascontiguousarray(cells[:, part])
            sums.add(block, node[part], pack(g, h)[part])
        want = naive_node_sums(plain, every(sizes), sizes, node, n_nodes, g, h, only)
        np.testing.assert_array_equal(sums.total(), want)


def test_joined_cells_are_fewer_than_features():
    assert nodes.JoinedCells(every(range(28)), [np.arange(16)] * 28, (16,) * 28).n_groups == 14


def test_joined_cells_name_what_does_not_fit():
    joined = nodes.JoinedCells(
        np.array([0, 2], np.uint16), [np.arange(3, dtype=np.uint8)] * 2, (3, 3)
    )
    with pytest.raises(ValueError, match="feature that codes"):
        joined.join(np.zeros((2, 5), np.uint8), np.empty((1, 5), np.uint8))
    with pytest.raises(ValueError, match="out"):
        joined.join(np.zeros((3, 5), np.uint8), np.empty((2, 5), np.uint8))


def test_node_sums_of_1024_nodes():
    codes, node, g, h = rows_of(3000, (2, 2, 256, 30), 1024, 1 << 15)
    got = nodes.node_sums(codes, every(codes), (2, 2, 256, 30), node, 1024, pack(g, h), 1 << 15)
    want = naive_node_sums(codes, every(codes), (2, 2, 256, 30), node, 1024, g, h)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("features", [[], [2], [3, 1], [1, 1, 0]])
def test_node_sums_of_some_features(features):
    sizes = (4, 256, 7, 30)
    codes, node, g, h = rows_of(300, sizes, 3, 9)
    features = np.array(features, np.uint16)
    used = tuple(sizes[j] for j in features)
    got = nodes.node_sums(codes, features, used, node, 3, pack(g, h), 9)
    if len(features):
        want = naive_node_sums(codes, features, used, node, 3, g, h)
        np.testing.assert_array_equal(got, want)
    assert got.shape == (3, sum(used), 2)


@pytest.mark.parametrize("seed", range(5))
def test_children_add_up_to_their_parent_for_any_split_of_the_rows(seed):
    sizes = SIZES[3]
    codes, node, g, h = rows_of(4000, sizes, 8, 1 << 19, seed)
    packed = pack(g, h)
    whole = nodes.node_sums(codes, every(codes), sizes, node // 2, 4, packed, 1 << 19)
    small = np.tile([True, False], 4)
    cuts = np.sort(np.random.default_rng(seed).integers(0, 4000, 3))
    for only in (small, ~small):
        sums = nodes.NodeSums(every(codes), sizes, 8, 1 << 19, only)
        for c, k, p in zip(
            np.split(codes, cuts, axis=1), np.split(node, cuts), np.split(packed, cuts), strict=True
        ):
            sums.add(np.ascontiguousarray(c), k, p)
        one, other = sums.total()[only], whole
        np.testing.assert_array_equal(
            other - one,
            nodes.node_sums(codes, every(codes), sizes, node, 8, packed, 1 << 19)[~only],
        )


def test_node_sums_over_several_blocks():
    n = 2 * nodes.BLOCK + 7
    sizes = (2, 256, 256, 256, 256)
    codes, node, g, h = rows_of(n, sizes, 2, 1 << 15)
    for n_nodes, where in ((1, node * np.uint16(0)), (2, node)):
        got = nodes.node_sums(codes, every(codes), sizes, where, n_nodes, pack(g, h), 1 << 15)
        want = naive_node_sums(codes, every(codes), sizes, where, n_nodes, g, h)
        np.testing.assert_array_equal(got, want)


# max_abs, rows: exactly at the bound, one past it, and several bounds in one block
BOUND = [
    (1 << 18, 8191),
    (1 << 18, 8192),
    (1 << 21, 1023),
    (1 << 21, 1024),
    (1 << 21, 5000),
    (1 << 28, 8),
]


def all_equal(n, max_abs, n_nodes, sign=1):
    """Rows that all hit one bin of one node, at the bound."""
    sizes = (3, 2, 256)
    codes = np.ones((3, n), np.uint8)
    node = np.full(n, n_nodes - 1, np.uint16)
    g, h = np.full(n, sign * max_abs), np.full(n, max_abs)
    want = np.zeros((n_nodes, sum(sizes), 2), np.int64)
    want[-1, [1, 4, 6]] = sign * max_abs * n, max_abs * n
    return (codes, every(codes), sizes, node, n_nodes, pack(g, h), max_abs), want


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("n_nodes", [1, 3])
@pytest.mark.parametrize(("max_abs", "n"), BOUND)
def test_node_sums_hold_at_the_flush_bound(max_abs, n, n_nodes, sign):
    rows, want = all_equal(n, max_abs, n_nodes, sign)
    np.testing.assert_array_equal(nodes.node_sums(*rows), want)
    only = np.arange(n_nodes) == n_nodes - 1
    np.testing.assert_array_equal(nodes.node_sums(*rows, only), want)


@pytest.mark.parametrize("n_nodes", [1, 3])
@pytest.mark.parametrize(("max_abs", "n"), [(1 << 18, 8192), (1 << 21, 1024)])
def test_a_flush_one_row_too_late_is_seen(max_abs, n, n_nodes, monkeypatch):
    rows, want = all_equal(n, max_abs, n_nodes)
    monkeypatch.setattr(histogram, "flush_rows", lambda bound: ((1 << 31) - 1) // bound + 1)
    with np.errstate(over="ignore"):
        assert not np.array_equal(nodes.node_sums(*rows), want)


@pytest.mark.parametrize("n_nodes", [1, 3])
def test_the_bound_holds_over_blocks_that_are_added_one_by_one(n_nodes):
    (codes, features, sizes, node, _, packed, max_abs), want = all_equal(700, 1 << 21, n_nodes)
    sums = nodes.NodeSums(features, sizes, n_nodes, max_abs)
    for _ in range(3):
        sums.add(codes, node, packed)
    np.testing.assert_array_equal(sums.total(), 3 * want)
    sums.add(codes, node, packed)
    np.testing.assert_array_equal(sums.total(), 4 * want)


@pytest.mark.parametrize("n_nodes", [1, 2])
def test_codes_and_nodes_beyond_their_range_count_in_the_last(n_nodes):
    codes = np.array([[0, 9, 255], [4, 4, 4], [200, 100, 199]], np.uint8)
    node = np.array([0, 0, 700], np.uint16)
    got = nodes.node_sums(
        codes, every(codes), (3, 2, 200), node, n_nodes, pack([1, 2, 4], [1, 1, 1]), 4
    )
    total = got.sum(axis=0)
    assert total[:5].tolist() == [[1, 1], [0, 0], [6, 2], [0, 0], [7, 3]]
    assert total[[105, 204]].tolist() == [[2, 1], [5, 2]]
    assert got[-1, 2].tolist() == ([6, 2] if n_nodes == 1 else [4, 1])


@pytest.mark.parametrize("n_cells", [201, 256])
@pytest.mark.parametrize("n_nodes", [1, 2, 20])
def test_codes_beyond_their_range_count_in_the_last_bin_of_four_features_per_loop(n_nodes, n_cells):
    sizes = (200,) * 4
    codes, node, g, h = rows_of(500, (n_cells,) * 4, n_nodes, 9)
    got = nodes.node_sums(codes, every(codes), sizes, node, n_nodes, pack(g, h), 9)
    clamped = np.minimum(codes, 199)
    want = naive_node_sums(clamped, every(codes), sizes, node, n_nodes, g, h)
    np.testing.assert_array_equal(got, want)


def test_node_sums_name_what_does_not_fit():
    codes, node, g, h = rows_of(4, (3, 3), 2, 1)
    packed, features = pack(g, h), every(codes)
    with pytest.raises(ValueError, match="n_nodes=0"):
        nodes.node_sums(codes, features, (3, 3), node, 0, packed, 1)
    with pytest.raises(ValueError, match="n_nodes=1025"):
        nodes.node_sums(codes, features, (3, 3), node, 1025, packed, 1)
    with pytest.raises(ValueError, match="differ in length"):
        nodes.node_sums(codes, features, (3,), node, 2, packed, 1)
    with pytest.raises(ValueError, match="differ in rows"):
        nodes.node_sums(codes, features, (3, 3), node[:3], 2, packed, 1)
    with pytest.raises(ValueError, match="feature that codes"):
        nodes.node_sums(codes, features + np.uint16(1), (3, 3), node, 2, packed, 1)
    with pytest.raises(ValueError, match="one entry per node"):
        nodes.node_sums(codes, features, (3, 3), node, 2, packed, 1, np.ones(3, bool))
    with pytest.raises(ValueError, match="max_abs=0"):
        nodes.node_sums(codes, features, (3, 3), node, 2, packed, 0)
    with pytest.raises(ValueError, match="node has dtype=int64"):
        nodes.node_sums(codes, features, (3, 3), node.astype(np.int64), 2, packed, 1)
