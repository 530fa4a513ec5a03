"""A round in one loop gives what the four steps that it stands for give."""

import numpy as np
import pytest
from helpers import naive_add_tables, naive_logistic, naive_tree_sums, pack

from dpgb_dask.kernels.table_rounds import BLOCK, MOST_ROWS, table_round
from dpgb_dask.losses import TABLE_SIZE, unpack

N_BINS = np.array([12, 256, 3], np.int64)


def rounds(n, feature, seed=0):
    """Rows, a change of feature 0's table, a gradient's table, and two trees of one feature."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, n, np.uint8) for size in N_BINS])
    label = rng.integers(0, 2, n, np.uint8)
    change = rng.integers(-(1 << 20), 1 << 20, (12, 1), np.int32)
    size = (2, TABLE_SIZE)
    lookup = pack(rng.integers(-(1 << 15), 1 << 15, size), rng.integers(0, 1 << 15, size))
    threshold = rng.integers(0, 256, (2, 7), np.uint8)
    mask_of = rng.integers(-1, 2, (2, 7), np.int32)
    masks = rng.integers(0, 2, (2, 256), np.uint8)
    splits = np.full((2, 7), feature, np.uint16), threshold, mask_of, masks
    score = rng.integers(-(1 << 19), 1 << 19, n, np.int32)
    return codes, label, change, lookup, splits, score


@pytest.mark.parametrize("n", [0, 1, 7, BLOCK + 3])
@pytest.mark.parametrize("feature", [0, 1, 2])
def test_a_round_is_its_steps_one_after_the_other(n, feature):
    codes, label, change, lookup, splits, score = rounds(n, feature, seed=n)
    expected = naive_add_tables(codes, [change, None, None], score[None])
    g, h = unpack(naive_logistic(expected[0], label, np.ones(n, np.int64), lookup))
    sums = np.ones((2, 8, 2), np.int64)
    assert table_round(codes, label, 0, change, lookup, N_BINS, splits, score, sums)
    np.testing.assert_array_equal(score, expected[0])
    np.testing.assert_array_equal(sums, 1 + naive_tree_sums(codes, *splits, g, h))


@pytest.mark.parametrize("n", [3 * BLOCK, MOST_ROWS, MOST_ROWS + 1, 20 * BLOCK + 3])
def test_rows_of_the_largest_gradient_do_not_overflow(n):
    codes, label, change, _, splits, score = rounds(n, 0)
    lookup = np.broadcast_to(pack(-(1 << 15), 1 << 15), (2, TABLE_SIZE)).copy()
    sums = np.zeros((2, 8, 2), np.int64)
    assert table_round(np.zeros_like(codes), label, 0, change, lookup, N_BINS, splits, score, sums)
    assert sums.sum(1).tolist() == [[-n << 15, n << 15]] * 2


@pytest.mark.parametrize(("feature", "threshold"), [(2, 1), (3, 255)])
def test_trees_of_several_features_or_of_one_that_is_not_there_are_left_alone(feature, threshold):
    codes, label, change, lookup, splits, score = rounds(9, 0)
    before, sums = score.copy(), np.zeros((2, 8, 2), np.int64)
    splits[0][1, 3], splits[1][1, 3], splits[2][1, 3] = feature, threshold, -1
    assert not table_round(codes, label, 0, change, lookup, N_BINS, splits, score, sums)
    assert not sums.any()
    np.testing.assert_array_equal(score, before)


@pytest.mark.parametrize("wrong", ["label", "change", "lookup"])
def test_arrays_of_other_shapes_raise(wrong):
    codes, label, change, lookup, splits, score = rounds(9, 0)
    given = {"label": label, "change": change, "lookup": lookup}
    given[wrong] = given[wrong][:-1] if wrong == "label" else given[wrong][:, :-1]
    sums = np.zeros((2, 8, 2), np.int64)
    with pytest.raises(ValueError, match=r"differ in rows|has another shape"):
        table_round(
            codes=codes, changed=0, n_bins=N_BINS, splits=splits, score=score, out=sums, **given
        )
