import numba
import numpy as np
import pytest
from helpers import naive_cells, naive_joint_sums, naive_pair_sums, pack, some_scores

from dpgb_dask.kernels import histogram, pair_tables, predict

SIZES = [
    (3,),
    (33, 3, 33),
    (2, 3, 256, 1, 33, 4, 4, 3, 3, 3, 3, 2, 200),
    (256, 256),
    (250, 90, 256, 200, 128),  # each alone, four of them in a loop
]


def rows_of(n, sizes, max_abs, seed=0):
    rng = np.random.default_rng(seed)
    codes = np.stack(
        [rng.integers(0, size, n, np.uint8, endpoint=False) for size in map(int, sizes)]
    )
    g = rng.integers(-max_abs, max_abs, n, endpoint=True)
    h = rng.integers(0, max_abs, n, endpoint=True)
    return codes, g, h


def random_pairs(n_features, n_pairs, seed=0):
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(n_pairs):
        i, j = rng.integers(0, n_features, 2)
        n_i, n_j = rng.integers(1, 17, 2)
        maps = [rng.integers(0, n, 256, np.uint8) for n in (n_i, n_j)]
        pairs.append(pair_tables.Pair(int(i), int(j), *maps, int(n_i), int(n_j)))
    return [*pairs, *pairs[:2]]


@pytest.mark.parametrize("max_abs", [1, 1 << 15, 1 << 27, (1 << 31) - 1])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("n", [0, 1, 700])
def test_joint_sums_equals_the_dull_sum(n, sizes, max_abs):
    codes, g, h = rows_of(n, sizes, max_abs)
    packed, want = some_scores(lambda g, h: naive_joint_sums(codes, g, h, sizes), g, h)
    got = histogram.joint_sums(codes, packed, max_abs, sizes)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(
        histogram.joint_sums(codes, packed[1:], max_abs, sizes), want[:, 1:]
    )


@pytest.mark.parametrize("max_abs", [1 << 15, 1 << 27])
@pytest.mark.parametrize("n_scores", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "n", [0, 1, 63, 9000]
)  # more than a block, and registers that are not full
def test_joint_sums_of_mapped_codes_are_those_of_their_groups(n, n_scores, max_abs):
    rng = np.random.default_rng(n)
    codes = rng.integers(0, 256, (6, n), np.uint8)
    sizes = (32, 1, 256, 7, 90, 3)  # in groups, and alone
    maps = np.stack([rng.integers(0, size, 256).astype(np.uint8) for size in sizes])
    own = np.take_along_axis(maps, codes, 1)
    g, h = rng.integers(-max_abs, max_abs, n), rng.integers(0, max_abs, n)
    packed, want = some_scores(lambda g, h: naive_joint_sums(own, g, h, sizes), g, h, n_scores)
    got = histogram.joint_sums(codes, packed, max_abs, sizes, maps)
    np.testing.assert_array_equal(got, want)


def test_maps_pay_where_registers_hold_them_and_features_share_cells_then(monkeypatch):
    for registers in (True, False):
        monkeypatch.setattr(histogram, "AVX512_VBMI", registers)
        assert histogram.maps_pay((32,) * 28, (180,) * 28) is registers
        assert histogram.maps_pay((6,) * 5, (180,) * 5) is registers
        assert not histogram.maps_pay((64,) * 28, (180,) * 28)
        assert not histogram.maps_pay((5,) * 28, (6,) * 28)
        assert not histogram.maps_pay((5,), (200,))
        # half of the features share cells anyway
        assert not histogram.maps_pay((32, 2) * 14, (180, 2) * 14)


def test_maps_take_little_memory_or_do_not_pay(monkeypatch):
    monkeypatch.setattr(histogram, "AVX512_VBMI", True)
    paying = [
        m for m in (2, 100, 256, 257, 1000, 4000) if histogram.maps_pay((32,) * m, (180,) * m)
    ]
    assert paying == [2, 100, 256]
    assert max(paying) * histogram.BLOCK <= 2 << 20


def test_maps_of_another_shape_raise():
    codes, packed = np.zeros((2, 3), np.uint8), np.zeros((1, 3), np.int64)
    for shape in ((1, 256), (2, 255)):
        with pytest.raises(ValueError, match=r"maps must be \(n_features, 256\)"):
            histogram.joint_sums(codes, packed, 1, (2, 2), np.zeros(shape, np.uint8))


@pytest.mark.parametrize("seed", range(5))
def test_joint_sums_are_the_same_for_any_split_of_the_rows(seed):
    sizes = SIZES[2]
    codes, g, h = rows_of(9000, sizes, 1 << 19, seed)  # a limit of 4095 rows: flushes inside blocks
    packed, want = some_scores(lambda g, h: naive_joint_sums(codes, g, h, sizes), g, h)
    whole = histogram.joint_sums(codes, packed, 1 << 19, sizes)
    np.testing.assert_array_equal(whole, want)
    cuts = np.sort(np.random.default_rng(seed).integers(0, 9000, 3))
    parts = [
        histogram.joint_sums(*map(np.ascontiguousarray, part), 1 << 19, sizes)
        for part in zip(np.split(codes, cuts, axis=1), np.split(packed, cuts, axis=1), strict=True)
    ]
    np.testing.assert_array_equal(sum(parts), whole)


# max_abs, rows of the block: exactly at the bound, one past it, and several bounds in one block
BOUND = [
    (1 << 18, 8191),
    (1 << 18, 8192),
    (1 << 21, 1023),
    (1 << 21, 1024),
    (1 << 21, 5000),
    (1 << 28, 8),
]


# one and two scores are summed one by one, three and four at once, and of five the last by itself
@pytest.mark.parametrize("n_scores", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(("max_abs", "n"), BOUND)
def test_sums_hold_at_the_flush_bound(max_abs, n, sign, n_scores):
    g = np.full(n, sign * max_abs)
    h = np.full(n, max_abs)
    sizes = (3, 33, 2)
    codes = np.ones((3, n), np.uint8)
    packed, want = some_scores(lambda g, h: naive_joint_sums(codes, g, h, sizes), g, h, n_scores)
    np.testing.assert_array_equal(histogram.joint_sums(codes, packed, max_abs, sizes), want)
    ones = np.ones(3, np.uint8)
    pairs = [pair_tables.Pair(0, 1, ones, ones, 2, 2)] * 3
    packed, want = some_scores(lambda g, h: naive_pair_sums(codes, pairs, g, h), g, h, n_scores)
    np.testing.assert_array_equal(pair_tables.pair_sums(codes, pairs, packed, max_abs), want)


@pytest.mark.parametrize("n_scores", [1, 3])
@pytest.mark.parametrize(("max_abs", "n"), [(1 << 18, 8192), (1 << 21, 1024)])
def test_a_flush_one_row_too_late_is_seen(max_abs, n, n_scores, monkeypatch):
    g = np.full(n, max_abs)
    codes = np.ones((1, n), np.uint8)
    pairs = [pair_tables.Pair(0, 0, np.ones(2, np.uint8), np.zeros(2, np.uint8), 2, 1)]
    packed, want = some_scores(lambda g, h: naive_joint_sums(codes, g, h, (2,)), g, g, n_scores)
    monkeypatch.setattr(histogram, "flush_rows", lambda bound: ((1 << 31) - 1) // bound + 1)
    with np.errstate(over="ignore"):
        assert not np.array_equal(histogram.joint_sums(codes, packed, max_abs, (2,)), want)
        assert not np.array_equal(pair_tables.pair_sums(codes, pairs, packed, max_abs), want)


def test_a_code_beyond_its_feature_counts_in_the_last_bin():
    codes = np.array([[0, 9, 255], [4, 4, 4]], np.uint8)
    packed = pack([1, 2, 4], [1, 1, 1])[None]
    got = histogram.joint_sums(codes, packed, 4, (3, 2))  # in one group
    assert got[:, 0].tolist() == [[1, 1], [0, 0], [6, 2], [0, 0], [7, 3]]
    sizes = (200, 210, 220, 230, 240)  # alone, in a loop of four and in one of one
    for beyond in (sizes, [255] * 5):
        alone = np.array([[0, 9, code] for code in beyond], np.uint8)
        for n_scores in (1, 3):
            got = histogram.joint_sums(alone, np.repeat(packed, n_scores, axis=0), 4, sizes)
            for part in np.split(got, np.cumsum(sizes)[:-1]):
                assert part[[0, 9, -1]].tolist() == [
                    [pair] * n_scores for pair in ([1, 1], [2, 1], [4, 1])
                ]


@pytest.mark.parametrize("bound", [0, -1, 1 << 31])
def test_flush_rows_refuses_rows_that_do_not_fit(bound):
    with pytest.raises(ValueError, match=f"max_abs={bound}"):
        histogram.flush_rows(bound)


@pytest.mark.parametrize("bound", [1, 3, 1 << 15, (1 << 31) - 1])
def test_flush_rows_is_the_largest_that_fits(bound):
    rows = histogram.flush_rows(bound)
    assert rows * bound <= 2**31 - 1 < (rows + 1) * bound


@pytest.mark.parametrize("max_abs", [1 << 15, 1 << 22, 1 << 27])
@pytest.mark.parametrize("n_pairs", [1, 5])
@pytest.mark.parametrize("n", [0, 1, 1100])
def test_pair_sums_equals_the_dull_sum(n, n_pairs, max_abs):
    codes, g, h = rows_of(n, (256, 256, 33, 2), max_abs)
    pairs = random_pairs(4, n_pairs)
    packed, want = some_scores(lambda g, h: naive_pair_sums(codes, pairs, g, h), g, h)
    for given in (pairs, pair_tables.pack_pairs(pairs)):
        got = pair_tables.pair_sums(codes, given, packed, max_abs)
        np.testing.assert_array_equal(got, want)


# sums unpacked often, and summed apart; of two scores, the second finds the cells of the first
@pytest.mark.parametrize("max_abs", [1 << 10, 1 << 18, 1 << 27])
@pytest.mark.parametrize("n", [0, 1, 9000])
@pytest.mark.parametrize("n_pairs", [1, 2, 9])
@pytest.mark.parametrize("n_scores", [1, 2, 4])
def test_kept_cells_of_pairs_serve_without_the_codes(n_scores, n_pairs, n, max_abs):
    codes, g, h = rows_of(n, (256, 256, 33, 2), max_abs)
    pairs = pair_tables.pack_pairs(random_pairs(4, n_pairs))
    packed = np.stack([pack(np.roll(g, k), np.roll(h, k)) for k in range(n_scores)])
    want = pair_tables.pair_sums(codes, pairs, packed, max_abs)
    kept = np.full((pairs.n_groups, n), 65535, np.uint16)
    got = pair_tables.pair_sums(codes, pairs, packed, max_abs, kept)
    np.testing.assert_array_equal(got, want)
    for g in range(pairs.n_groups):
        own = pairs.order[pairs.start[g] : pairs.start[g + 1]]
        level = [pairs.map[c, codes[pairs.feature[c]]] for c in own]
        size = pairs.size[pairs.start[g] : pairs.start[g + 1]]
        np.testing.assert_array_equal(kept[g], np.ravel_multi_index(level, size))
    before = kept.copy()
    nothing = np.zeros_like(codes)
    got = pair_tables.pair_sums(nothing, pairs, packed[::-1].copy(), max_abs, kept, known=True)
    np.testing.assert_array_equal(got, want[:, ::-1])
    np.testing.assert_array_equal(kept, before)
    got = pair_tables.pair_sums(codes, pairs, packed, max_abs, known=True)  # nothing that is known
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "cells",
    [
        np.zeros((1, 8), np.uint16),
        np.zeros((2, 9), np.uint16),
        np.zeros((2, 8), np.int16),
        np.zeros((8, 2), np.uint16).T,
    ],
)
def test_cells_that_do_not_fit_the_pairs_are_refused(cells):
    codes, packed = np.zeros((4, 8), np.uint8), np.zeros((1, 8), np.int64)
    level = np.arange(16, dtype=np.uint8)
    some = [pair_tables.Pair(i, j, level, level, 16, 16) for i, j in [(0, 1), (2, 3)]]
    tables = predict.pack_pair_tables(some, [np.ones((1, 16, 16), np.int32)] * 2)
    assert tables.pairs.n_groups == 2
    with pytest.raises(ValueError, match="cells"):
        predict.add_pair_tables(codes, tables, np.zeros((1, 8), np.int32), cells)
    with pytest.raises(ValueError, match="cells"):
        pair_tables.pair_sums(codes, tables.pairs, packed, 1, cells)


@pytest.mark.parametrize("max_abs", [1 << 18, 1 << 27])
@pytest.mark.parametrize("n", [0, 1, 9000])
@pytest.mark.parametrize("n_scores", range(1, 10))
def test_scores_that_are_summed_at_once_have_the_sums_of_each(n_scores, n, max_abs):
    codes, g, h = rows_of(n, SIZES[2], max_abs)
    pairs = random_pairs(4, 5)
    packed = np.stack([pack(np.roll(g, k), np.roll(h, 2 * k)) for k in range(n_scores)])
    for sums in (
        lambda packed: histogram.joint_sums(codes, packed, max_abs, SIZES[2]),
        lambda packed: pair_tables.pair_sums(codes[:4].copy(), pairs, packed, max_abs),
    ):
        each = [sums(packed[k : k + 1]) for k in range(n_scores)]
        np.testing.assert_array_equal(sums(packed), np.concatenate(each, axis=1))


def test_scores_are_summed_one_by_one_where_four_would_take_much_memory(monkeypatch):
    codes, g, h = rows_of(50, SIZES[2], 9)
    pairs = random_pairs(4, 5)
    packed = np.stack([pack(k * g, h) for k in range(5)])
    calls = (
        lambda: histogram.joint_sums(codes, packed, 45, SIZES[2]),
        lambda: pair_tables.pair_sums(codes[:4].copy(), pairs, packed, 45),
    )
    whole = [call() for call in calls]
    monkeypatch.setattr(histogram, "SCORE_CELLS", 1000)
    assert len(histogram.scores_at_once(5, 251)) == 5
    assert len(histogram.scores_at_once(5, 250)) == 2
    for call, want in zip(calls, whole, strict=True):
        np.testing.assert_array_equal(call(), want)


def test_scores_are_taken_once_each_and_four_at_once_if_there_are_three():
    for n in range(1, 40):
        found = histogram.scores_at_once(n)
        several = [np.atleast_1d(np.arange(n)[scores]).tolist() for scores in found]
        assert [k for own in several for k in own] == list(range(n))
        assert all(len(own) in (1, 3, 4) for own in several)
        assert all(
            isinstance(s, int) == (len(own) == 1) for s, own in zip(found, several, strict=True)
        )
        assert len(found) <= n // 4 + 2


def test_groups_of_tables_hold_every_pair_once_and_few_cells():
    rng = np.random.default_rng(0)
    every = tuple((i, j) for i in range(28) for j in range(i))
    some = tuple((int(i), int(j)) for i, j in rng.integers(0, 9, (40, 2)) if i != j)
    for pairs, levels in (
        (every, (6,) * 28),
        (some, tuple(rng.integers(1, 70, 9).tolist())),
        (some[:1], (4096,) * 9),
        ((), ()),
    ):
        groups = pair_tables._groups(pairs, levels)
        assert sorted(pair for _, tables in groups for pair in tables) == list(range(len(pairs)))
        for own, tables in groups:
            assert len(set(own)) == len(own)
            assert all(set(pairs[pair]) <= set(own) for pair in tables)
            cells = np.prod([levels[column] for column in own])
            assert cells <= histogram.GROUP_CELLS or len(own) == 2
    assert len(pair_tables._groups(every, (6,) * 28)) < 80


def test_maps_that_rise_seldom_are_counted_and_others_looked_up():
    """Both give the entry of each code, also of those beyond the map."""
    rises = np.repeat(np.arange(6), 20).astype(np.uint8)
    for map_ in (
        rises,
        rises[::-1].copy(),
        rises[50:],
        np.array([3, 3, 9, 15], np.uint8),
        np.arange(16, dtype=np.uint8),
        np.arange(17, dtype=np.uint8),
        np.zeros(1, np.uint8),
    ):
        pairs = [pair_tables.Pair(0, 0, map_, map_, 17, 15 + 2)]
        with pytest.raises(ValueError, match="256 cells"):
            pair_tables.pack_pairs(pairs)
        packed = pair_tables.pack_pairs(pairs, 17 * 17)
        counted = (np.diff(map_.astype(int)) >= 0).all() and map_[-1] - map_[0] <= 15
        assert ((packed.n_cuts >= 0) == counted).all()
        got = np.empty((2, 300), np.uint8)
        codes = (np.arange(300) % 256).astype(np.uint8)[None]
        _map(codes, packed, got)
        np.testing.assert_array_equal(got, packed.map[:, codes[0]])


@numba.njit
def _map_rows(codes, feature, map_, cut, n_cuts, out):
    pair_tables.map_columns(codes, 0, out.shape[1], feature, map_, cut, n_cuts, out)


def _map(codes, pairs, out):
    _map_rows(codes, pairs.feature, pairs.map, pairs.cut, pairs.n_cuts, out)


def test_pair_sums_of_no_pairs_is_empty():
    codes, g, h = rows_of(3, (2,), 1)
    assert pair_tables.pair_sums(codes, [], pack(g, h)[None], 1).shape == (0, 1, 2)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [0, 1, 6, 803])
def test_add_cells_adds_to_what_is_there(n, weighted, dtype):
    rng = np.random.default_rng(2)
    cells = rng.integers(0, 200, n, dtype)
    weight = rng.integers(0, 1 << 30, n, np.int32) if weighted else None
    out = np.arange(200)
    histogram.add_cells(cells, weight, out)
    np.testing.assert_array_equal(out, np.arange(200) + naive_cells(cells, weight, 200))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [0, 1, 803])
def test_add_columns_adds_to_the_cells_of_each(n, weighted):
    rng = np.random.default_rng(2)
    offset = np.array([1, 301, 302, 1000])
    cells = np.stack([rng.integers(0, size, n, np.uint16) for size in np.diff(offset).tolist()])
    weight = rng.integers(0, 1 << 30, n, np.int32) if weighted else None
    out = np.arange(1003)
    histogram.add_columns(cells, weight, offset, out)
    want = np.arange(1003)
    for column, start, end in zip(cells, offset, offset[1:], strict=False):
        want[start:end] += naive_cells(column, weight, end - start)
    np.testing.assert_array_equal(out, want)


def test_add_columns_names_what_does_not_fit():
    cells, out = np.zeros((2, 3), np.uint16), np.zeros(5, np.int64)
    for offset in ([0, 2], [2, 1, 3], [-1, 2, 3]):
        with pytest.raises(ValueError, match="where each column"):
            histogram.add_columns(cells, None, np.array(offset), out)
    for offset in ([0, 2, 2], [0, 2, 6]):
        with pytest.raises(ValueError, match="out is too short"):
            histogram.add_columns(cells, None, np.array(offset), out)


def test_groups_hold_every_feature_once_and_stay_small():
    for sizes in SIZES:
        g = histogram.groups_of(sizes)
        assert sorted(g.order) == list(range(len(sizes)))
        assert g.cells.max() <= histogram.GROUP_CELLS
        for k, cells in enumerate(g.cells):
            assert np.prod(g.size[g.start[k] : g.start[k + 1]]) == cells
            assert (g.start[k + 1] - g.start[k] > 1) == (k < g.n_joint)


def test_a_size_above_the_most_cells_is_a_group_of_its_own():
    g = histogram.groups_of((250, 3, 100, 3), most_cells=9)
    assert g.cells.tolist() == [9, 100, 250]
    assert g.n_joint == 1


def test_sums_name_what_does_not_fit():
    codes, g, h = rows_of(4, (3, 3), 1)
    packed = pack(g, h)[None]
    with pytest.raises(ValueError, match="differ in features"):
        histogram.joint_sums(codes, packed, 1, (3,))
    with pytest.raises(ValueError, match="differ in rows"):
        histogram.joint_sums(codes, packed[:, :3].copy(), 1, (3, 3))
    with pytest.raises(ValueError, match="codes is not C-contiguous"):
        histogram.joint_sums(codes[:, ::2], packed[:, :2].copy(), 1, (3, 3))
    with pytest.raises(ValueError, match="packed has dtype=int32"):
        histogram.joint_sums(codes, packed.astype(np.int32), 1, (3, 3))
    with pytest.raises(ValueError, match="packed has dtype=int64 and 1 axes"):
        histogram.joint_sums(codes, packed[0], 1, (3, 3))
    with pytest.raises(ValueError, match=r"outside \[1, 256\]"):
        histogram.joint_sums(codes, packed, 1, (3, 257))
    zeros = np.zeros(3, np.uint8)
    with pytest.raises(ValueError, match="256 cells"):
        pair_tables.pack_pairs([pair_tables.Pair(0, 1, zeros, zeros, 17, 16)])
    with pytest.raises(ValueError, match="map must give"):
        pair_tables.pack_pairs([pair_tables.Pair(0, 1, zeros + 2, zeros, 2, 2)])
    with pytest.raises(ValueError, match="feature that codes"):
        pair_tables.pair_sums(codes, [pair_tables.Pair(0, 2, zeros, zeros, 2, 2)], packed, 1)
