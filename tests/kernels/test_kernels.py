import numba
import numpy as np
import pytest

from dpgb_dask import kernels
from dpgb_dask.kernels import histogram, predict, route

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="looks at compiled versions")


def test_warm_leaves_nothing_to_compile_for_read_only_blocks():
    kernels.warm()
    compiled = [histogram._joint_sums, route._tree_sums, predict._add_tables]
    versions = [len(function.signatures) for function in compiled]
    codes = np.zeros((2, 5), np.uint8)
    packed = np.ones(5, np.int64)
    trees = np.zeros((1, 1), np.uint16), np.zeros((1, 1), np.uint8)
    for array in (codes, packed, *trees):
        array.flags.writeable = False
    assert histogram.joint_sums(codes, packed, 1, (2, 2)).tolist() == [[0, 5], [0, 0]] * 2
    assert route.tree_sums(codes, *trees, packed, 1).tolist() == [[[0, 5], [0, 0]]]
    predict.add_tables(codes, [np.ones(2, np.int32), None], np.zeros(5, np.int32))
    assert [len(function.signatures) for function in compiled] == versions


def test_kernels_release_the_gil_and_are_cached():
    for function in (histogram._joint_sums, route._tree_sums, predict._add_trees):
        assert function.targetoptions["nogil"]
        assert function.stats is not None
