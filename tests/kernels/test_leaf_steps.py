"""Steps of leaves and ends of tables, beside NumPy's."""

import numpy as np
import pytest

from dpgb_dask.kernels.leaf_steps import move_ends, newton_steps


@pytest.mark.parametrize("shape", [(8,), (2, 4, 3), (0,)])
def test_steps_are_numpys_to_the_bit(shape):
    rng = np.random.default_rng(3)
    grad, hess = rng.normal(size=shape) * 10, rng.normal(size=shape) * 10
    hess.reshape(-1)[:1], hess.reshape(-1)[1:2] = 0.0, -0.0
    step = np.zeros(shape)
    np.divide(-grad, hess + 0.7, out=step, where=hess > 0)
    expected = 0.3 * np.minimum(np.maximum(step, -2.0), 2.0)
    np.testing.assert_array_equal(newton_steps(grad, hess, 0.7, 2.0, 0.3), expected)
    assert (np.abs(expected) <= 0.6).all()


def test_sums_may_be_parts_of_other_arrays_or_one_for_all_scores():
    table = np.random.default_rng(4).normal(size=(3, 5, 2)) + 2
    grad, hess = table[..., 0], np.broadcast_to(table[:, :1, 1], (3, 5))
    expected = newton_steps(grad.copy(), hess.copy(), 1.0, 2.0, 1.0)
    np.testing.assert_array_equal(newton_steps(grad, hess, 1.0, 2.0, 1.0), expected)


def test_sums_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match="different shapes"):
        newton_steps(np.ones((3, 4)), np.ones((3, 1)), 1.0, 1.0, 1.0)


@pytest.mark.parametrize("n_scores", [1, 3])
def test_ends_move_as_those_of_the_tables(n_scores):
    rng = np.random.default_rng(5)
    whole = np.iinfo(np.int32)
    before, after = rng.integers(whole.min, whole.max, (2, 9, n_scores), np.int32, endpoint=True)
    after[0], before[1] = whole.max, whole.min  # their difference is no int32
    low, high = np.arange(n_scores), np.arange(n_scores) + 7
    expected = (
        low + after.min(0).astype(np.int64) - before.min(0),
        high + after.max(0).astype(np.int64) - before.max(0),
    )
    move_ends(before, after, low, high)
    np.testing.assert_array_equal((low, high), expected)
