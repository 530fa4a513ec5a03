"""Steps of leaves, and tables with trees, beside NumPy's."""

import numpy as np
import pytest

from dpgb_dask.kernels.leaf_steps import leaf_steps, with_leaves

WHOLE = np.iinfo(np.int32)


@pytest.mark.parametrize("number", [float, int, np.int8, np.float16, np.longdouble])
def test_options_may_be_numbers_of_any_type(number):
    options = dict.fromkeys(("ridge", "largest", "rate"), number(1))
    found = leaf_steps(
        np.array([-6, 2, 4, 4]),
        np.empty(0),
        1,
        number(1),
        number(1),
        score_steps=number(1),
        **options,
    )
    np.testing.assert_array_equal(found, [[1, -1]])


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(("n_leaves", "n_scores"), [(8, 1), (12, 3), (0, 1)])
def test_steps_are_numpys_to_the_bit(n_leaves, n_scores, counted):
    rng = np.random.default_rng(3)
    answer = rng.integers(-(1 << 40), 1 << 40, (n_leaves, n_scores, 2))
    answer[:1, :, 1] = 0  # of no row, and many of too few
    rows = rng.normal(size=n_leaves) * 50 if counted else np.empty(0)
    step, hess_step = 2.0**-33, 0.7
    grad, hess = np.moveaxis(answer * step, 2, 0)
    hess = np.repeat(rows[:, None], n_scores, axis=1) if counted else hess / hess_step
    move = np.zeros(grad.shape)
    np.divide(-grad, hess + 0.7, out=move, where=hess > 0)
    expected = np.rint(0.3 * np.minimum(np.maximum(move, -2.0), 2.0) * (65536 / 3))
    found = leaf_steps(
        answer.reshape(-1), rows, n_scores, step, hess_step,
        ridge=0.7, largest=2.0, rate=0.3, score_steps=65536 / 3,
    )  # fmt: skip
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected.T)
    assert (np.abs(found) <= 0.6 * 65536 / 3 + 1).all()


def test_rows_of_other_leaves_are_refused():
    with pytest.raises(ValueError, match="rows needs a number for each leaf"):
        leaf_steps(
            np.ones(8, np.int64), np.ones(3), 1, 1.0, 1.0,
            ridge=1.0, largest=1.0, rate=1.0, score_steps=1.0,
        )  # fmt: skip


@pytest.mark.parametrize("n_scores", [1, 3])
def test_a_table_gets_a_trees_leaves_and_its_ends_move(n_scores):
    rng = np.random.default_rng(5)
    table = rng.integers(WHOLE.min, WHOLE.max, (9, n_scores), np.int32, endpoint=True)
    value = rng.integers(WHOLE.min, WHOLE.max, (n_scores, 2, 4), np.int32, endpoint=True)
    leaf = rng.integers(0, 4, 9).astype(np.uint16)
    table[1], value[:, 1, leaf[1]] = WHOLE.max, 1  # wraps, as NumPy's sums do
    low, high = np.arange(n_scores), np.arange(n_scores) + 7
    expected = table + value[:, 1].T[leaf]
    ends = (
        low + expected.min(0).astype(np.int64) - table.min(0),
        high + expected.max(0).astype(np.int64) - table.max(0),
    )
    before = table.copy()
    np.testing.assert_array_equal(with_leaves(table, leaf, value, 1, low, high), expected)
    np.testing.assert_array_equal((low, high), ends)
    np.testing.assert_array_equal(table, before)


@pytest.mark.parametrize(
    ("n_bins", "n_scores", "n_ends"), [(4, 1, 1), (3, 2, 2), (3, 2, 1), (3, 1, 2)]
)
def test_a_table_of_other_bins_or_scores_is_refused(n_bins, n_scores, n_ends):
    ends = np.zeros(n_ends, np.int64)
    with pytest.raises(ValueError, match="a leaf for each bin of the table"):
        with_leaves(
            np.zeros((n_bins, n_scores), np.int32), np.zeros(3, np.uint16), np.zeros((1, 2, 4), np.int32), 0,
            ends, ends.copy(),
        )  # fmt: skip
