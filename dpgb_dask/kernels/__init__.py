"""Numba loops over rows of integer codes, their common decorator, and the checks of arrays that they are given."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpgb_dask.losses import poisson_gradient

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile a row loop: no GIL, cached on disk; keeps the type hints that ``njit`` drops."""
    return cast(F, numba.njit(nogil=True, cache=True)(function))


def readable(name: str, array: NDArray[Any], dtype: DTypeLike, ndim: int) -> NDArray[Any]:
    """Return an input array as a read-only view.

    Dask sometimes passes read-only memory, for which numba compiles a second version. If every input is
    read-only, there is only one version, and no kernel can write to its inputs.

    Raises
    ------
    ValueError
        If dtype, number of axes or contiguity differ; no length is printed.
    """
    _check(name, array, dtype, ndim)
    view = array.view()
    view.flags.writeable = False
    return view


def writable(name: str, array: NDArray[Any], dtype: DTypeLike, ndim: int) -> NDArray[Any]:
    """Check an array that a kernel writes to, and return it.

    Raises
    ------
    ValueError
        If it is read-only, or its dtype, number of axes or contiguity differ.
    """
    _check(name, array, dtype, ndim)
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only, and is written to. Pass a copy.")
    return array


def _check(name: str, array: NDArray[Any], dtype: DTypeLike, ndim: int) -> None:
    if array.dtype != dtype or array.ndim != ndim:
        raise ValueError(
            f"{name} has dtype={array.dtype} and {array.ndim} axes, not "
            f"dtype={np.dtype(dtype)} and {ndim}. Convert it before the kernel."
        )
    if not array.flags.carray and not array.flags.c_contiguous:
        raise ValueError(f"{name} is not C-contiguous. Pass np.ascontiguousarray({name}).")


def same_rows(**arrays: NDArray[Any] | None) -> None:
    """Check that the last axes have the same length; the message names the arrays and prints no length.

    Raises
    ------
    ValueError
        If two of them differ.
    """
    lengths = {array.shape[-1] for array in arrays.values() if array is not None}
    if len(lengths) > 1:
        raise ValueError(f"{', '.join(arrays)} differ in rows. Pass the same row block of each.")


def warm() -> None:
    """Call every kernel once on tiny arrays of every supported dtype, so that no round waits for a compiler."""
    for part in WARM:
        part()


# the modules of kernels import `kernel` from here, so these functions import them


def _warm_bins() -> None:
    from dpgb_dask.kernels import bin as bins  # noqa: PLC0415

    n = 3
    edges = [
        np.array([0.0]),
        np.arange(40.0),
        np.concatenate((np.geomspace(1e-9, 1e-3, 20), [1.0])),
    ]
    for float_ in (np.float32, np.float64):
        rows = np.zeros((n, len(edges)), float_)
        codes = np.empty((len(edges), n), np.uint8)
        bins.bin_matrix(rows, edges, codes)
        bins.bin_matrix(np.asfortranarray(rows), edges, codes)
        cells = np.empty((len(edges), n), np.uint16)
        bins.cell_matrix(rows, edges, cells)
        bins.cell_matrix(np.asfortranarray(rows), edges, cells)
        bins.map_cells(cells, np.zeros((len(edges), 50), np.uint8), codes)
        for column, edge in enumerate(edges):
            bins.bin_column(rows[:, column], edge, codes[column])
            bins.cell_column(rows[:, column], edge, cells[column])


def _warm_gradients() -> None:
    from dpgb_dask.kernels import draw, gradient, histogram  # noqa: PLC0415

    n = 3
    score = np.zeros((2, n), np.int32)
    label = np.zeros(n, np.uint8)
    packed = np.empty((2, n), np.int64)
    steps = np.ones(4096, np.int64)
    for weight in (None, np.ones(n, np.int32)):
        gradient.logistic(score[0], label, weight, np.stack((steps, steps)), packed[0])
        gradient.squared(score[0], score[1], weight, 1, 1, packed[0])
        gradient.slopes(score[0], score[1], weight, 1, 1, 1, packed[0])
        gradient.residuals(score[0], score[1], weight, steps, packed[0])
        gradient.poisson(score[0], score[1], weight, poisson_gradient(0.0), packed[0])
        gradient.softmax(score, label, weight, steps, packed)
        for dtype in (np.uint8, np.uint16):
            histogram.add_cells(np.zeros(n, dtype), weight, np.zeros(2, np.int64))
    draw.draws(bytes(16), 0, np.zeros((n, 2), np.uint64), np.zeros(n, np.uint32))


def _warm_sums() -> None:
    from dpgb_dask.kernels import histogram, nodes  # noqa: PLC0415

    n = 3
    codes, packed = np.zeros((5, n), np.uint8), np.zeros(n, np.int64)
    half = np.zeros(2, np.uint8)
    pairs = [histogram.Pair(0, 1, half, half, 2, 2)] * 3
    node = np.zeros(n, np.uint16)
    features, sizes = np.arange(5, dtype=np.uint16), (2, 3, 256, 256, 256)
    for max_abs in (1, 1 << 30):  # packed and wide sums
        histogram.joint_sums(codes, packed, max_abs, (256,) * 5)
        histogram.pair_sums(codes, pairs, packed, max_abs)
        for n_nodes in (1, 2):
            nodes.node_sums(codes, features, sizes, node, n_nodes, packed, max_abs)


def _warm_trees() -> None:
    from dpgb_dask.kernels import predict, route  # noqa: PLC0415

    n = 3
    codes, packed = np.zeros((5, n), np.uint8), np.zeros(n, np.int64)
    score = np.zeros(n, np.int32)
    half = np.zeros(2, np.uint8)
    masks = np.zeros((1, 256), np.uint8)
    node = np.zeros(n, np.uint16)
    for depth in (3, route.BYTE_DEPTH + 1):
        shape = 3, (1 << depth) - 1
        splits = (
            np.zeros(shape, np.uint16),
            np.zeros(shape, np.uint8),
            np.full(shape, -1, np.int32),
            masks,
        )
        route.tree_sums(codes, *splits, packed, 1)
        predict.add_trees(codes, *splits, np.zeros((3, 1 << depth), np.int32), score)
        route.find_nodes(codes, splits[0][0], splits[1][0], splits[2][0], masks, node)
    predict.add_tables(codes, [np.ones(256, np.int32)] * 5, score)
    predict.add_pair_table(codes[0], codes[1], half, half, np.zeros((2, 2), np.int32), score)


WARM = (_warm_bins, _warm_gradients, _warm_sums, _warm_trees)
