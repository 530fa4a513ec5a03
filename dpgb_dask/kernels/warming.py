"""Which kernels a fit takes, by what they are for; and how they are compiled, or loaded, before they are needed.

Each group of `GROUPS` calls its kernels once on tiny arrays. A new kernel is added to the group of what needs it, or
gets a group, which the query that it answers names (`contracts.queries.Query.kernels`). A kernel that is in no group
is compiled at its first call: nothing is wrong then, a round is slow once.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import bin as bins
from dpgb_dask.kernels import (
    boxes,
    directions,
    draw,
    fingerprint,
    gradient,
    histogram,
    leaf_steps,
    nested,
    nodes,
    pair_tables,
    posterior,
    predict,
    random_splits,
    route,
    shrink,
    sides,
    splits,
    table_rounds,
)
from dpgb_dask.losses import NORM_SIZE, poisson_gradient

ROWS = 3
WEIGHT = np.ones(ROWS, np.int32)
STEPS = np.ones(4096, np.int64)
HALF = np.zeros(2, np.uint8)
EDGES = [  # of a column for each way of binning
    np.array([0.0]),
    np.arange(40.0),
    np.concatenate((np.geomspace(1e-9, 1e-3, 20), [1.0])),
]


def warm(names: Iterable[str] | None = None) -> None:
    """Compile kernels, or load them from where they are kept.

    Parameters
    ----------
    names : iterable of str, optional
        Keys of `GROUPS`; a name that is not among them is passed over, since another version may have sent it. None for
        all kernels.
    """
    for name in GROUPS if names is None else names:
        if name in GROUPS:
            GROUPS[name]()


def _values(dtype: type[np.floating] = np.float64) -> None:
    rows = np.zeros((ROWS, len(EDGES)), dtype)
    codes = np.empty((len(EDGES), ROWS), np.uint8)
    cells = np.empty((len(EDGES), ROWS), np.uint16)
    columns = np.asfortranarray(rows)
    bins.bin_matrix(columns, EDGES, codes)
    bins.cell_matrix(columns, EDGES, cells)
    bins.map_cells(cells, np.zeros((len(EDGES), 50), np.uint8), codes)
    histogram.add_cells(cells[0], None, np.zeros(2, np.int64))
    histogram.add_columns(cells[:1], None, np.array([0, 2]), np.zeros(2, np.int64))


def _matrix(dtype: type[np.floating] = np.float64) -> None:
    rows = np.zeros((ROWS, len(EDGES)), dtype)
    bins.bin_matrix(rows, EDGES, np.empty((len(EDGES), ROWS), np.uint8))
    words = rows.view(f"u{rows.itemsize}")
    words.flags.writeable = False
    fingerprint.add_rows(words, np.zeros(len(EDGES), np.uint64), np.zeros(ROWS, np.uint64))


def _hashes() -> None:
    words, halves = np.zeros((1, ROWS), np.uint64), np.zeros(2, np.uint64)
    fingerprint.add_siphash(words, np.zeros(2, np.uint64), np.zeros(4, np.uint64), halves)
    cells = np.zeros((1, ROWS), np.uint16)
    cells.flags.writeable = False
    fingerprint.pack_cells(cells, words)
    column = np.zeros(ROWS, np.uint64)
    column.flags.writeable = False
    fingerprint.add_column(column, np.uint64(0), np.zeros(ROWS, np.uint64))


def _weights() -> None:
    gradient.weigh(WEIGHT, np.ones(ROWS, np.int64))
    histogram.add_cells(np.zeros(ROWS, np.uint16), WEIGHT, np.zeros(2, np.int64))


def _labels() -> None:
    for weight in (None, WEIGHT):
        histogram.add_cells(np.zeros(ROWS, np.uint8), weight, np.zeros(2, np.int64))


def _row() -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    return np.zeros(ROWS, np.int32), np.empty(ROWS, np.int64)


def _logistic() -> None:
    score, packed = _row()
    label = np.zeros(ROWS, np.uint8)
    gradient.logistic(score, label, None, np.stack((STEPS, STEPS)), packed)


def _residuals() -> None:
    score, packed = _row()
    gradient.residuals(score, score, None, STEPS, packed)


def _squared() -> None:
    score, packed = _row()
    gradient.squared(score, score, None, 1, 1, packed)


def _slopes() -> None:
    score, packed = _row()
    gradient.slopes(score, score, None, 1, 1, 1, packed)


def _poisson() -> None:
    score, packed = _row()
    gradient.poisson(score, score, None, poisson_gradient(0.0), packed)


def _softmax() -> None:
    score, packed = np.zeros((2, ROWS), np.int32), np.empty((2, ROWS), np.int64)
    gradient.softmax(score, np.zeros(ROWS, np.uint8), None, STEPS, packed)


def _clipped_softmax() -> None:
    score, packed = np.zeros((2, ROWS), np.int32), np.empty((2, ROWS), np.int64)
    label, shrink_ = np.zeros(ROWS, np.uint8), np.ones(NORM_SIZE, np.int64)
    gradient.clipped_softmax(score, label, None, STEPS, shrink_, 1, packed)


def _codes() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return np.zeros((5, ROWS), np.uint8), np.zeros((1, ROWS), np.int64)


def _main_sums() -> None:
    codes, packed = _codes()
    for max_abs in (1, 1 << 30):  # packed and wide sums
        histogram.joint_sums(codes, packed, max_abs, (256,) * 5)
    predict.add_tables(codes, [np.ones((256, 1), np.int32)] * 5, np.zeros((1, ROWS), np.int32))


def _shrunk_rows() -> None:
    codes, packed = _codes()
    ends = np.zeros(1, np.uint8)
    shrink.shrink(codes, np.zeros(1, np.int64), ends, ends, 1, (0, 1, 1), 0, packed)


def _pair_sums() -> None:
    codes, packed = _codes()
    some = [pair_tables.Pair(0, 1, HALF, HALF, 2, 2)] * 3
    pair_tables.pair_sums(codes, some, packed, 1)
    tables = predict.pack_pair_tables(some, [np.zeros((1, 2, 2), np.int32)] * 3)
    predict.add_pair_tables(codes, tables, np.zeros((1, ROWS), np.int32))


def _directions() -> None:
    codes, packed = _codes()
    feature, value = np.arange(2), [np.ones(2, np.int32)] * 2
    directions.add_products(codes, feature, value, 1, WEIGHT, np.zeros(3, np.int64))
    matrix, sums = np.ones((2, 2), np.int32), np.zeros((2, 1, 2), np.int64)
    directions.add_directions(codes, feature, value, matrix, 2, packed, sums)


def _sums_of_classes() -> None:
    codes, score = _codes()[0], np.zeros((3, ROWS), np.int32)
    packed, some = np.zeros(score.shape, np.int64), [pair_tables.Pair(0, 1, HALF, HALF, 2, 2)]
    histogram.joint_sums(codes, packed, 1, (256,) * 5)
    predict.add_tables(codes, [np.ones((256, 3), np.int32)] * 5, score)
    pair_tables.pair_sums(codes, some, packed, 1)
    predict.add_pair_tables(
        codes, predict.pack_pair_tables(some, [np.ones((3, 2, 2), np.int32)]), score
    )


def _splits(
    depth: int,
) -> tuple[NDArray[np.uint16], NDArray[np.uint8], NDArray[np.int32], NDArray[np.uint8]]:
    shape = 3, (1 << depth) - 1
    masks = np.zeros((1, 256), np.uint8)
    return (
        np.zeros(shape, np.uint16),
        np.zeros(shape, np.uint8),
        np.full(shape, -1, np.int32),
        masks,
    )


def _trees(depth: int = 3) -> None:
    codes, packed = _codes()
    splits = _splits(depth)
    route.tree_sums(codes, *splits, packed, 1)
    route.only_feature(*splits[:3])
    route.leaves_of_codes(*splits[1:], 1)
    route.sums_of_leaves(np.zeros((1, 1, 2), np.int64), *splits[1:])
    value, score = np.ones((1, 3, 1 << depth), np.int32), np.zeros((1, ROWS), np.int32)
    predict.add_trees(codes, *splits, value, score)
    predict.add_tables(codes[:3], list(value[0, :, :1, None]), score)
    # rows enough for trees whose nodes have one split
    codes, packed = np.zeros((1, sides.BEGIN), np.uint8), np.zeros((1, sides.BEGIN), np.int64)
    route.tree_sums(codes, *splits, packed, 1)
    predict.add_trees(codes, *splits, value, packed.astype(np.int32))


def _table_rounds() -> None:
    codes, label, change = (
        np.zeros((1, ROWS), np.uint8),
        np.zeros(ROWS, np.uint8),
        np.zeros((1, 1), np.int32),
    )
    score, out = np.zeros(ROWS, np.int32), np.zeros((3, 8, 2), np.int64)
    table_rounds.table_round(
        codes, label, 0, change, np.stack((STEPS, STEPS)), np.ones(1, np.int64), _splits(3), score, out
    )  # fmt: skip


def _deep_trees() -> None:
    _trees(sides.BYTE_DEPTH + 1)


def _levels() -> None:
    codes, packed = _codes()
    node = np.zeros(ROWS, np.uint16)
    feature, threshold, mask_of, masks = _splits(3)
    route.find_nodes(codes, feature[0], threshold[0], mask_of[0], masks, node)
    features, sizes = np.arange(5, dtype=np.uint16), (2, 3, 256, 256, 256)
    nodes.node_sums(codes, features, sizes, node, 2, packed[0], 1)
    nodes.JoinedCells(features[:3], [HALF] * 3, (2, 2, 256)).join(codes, np.empty_like(codes[:2]))


def _draws() -> None:
    draw.draws(bytes(16), 0, np.zeros((ROWS, 2), np.uint64), np.zeros(ROWS, np.uint32))


def _posterior() -> None:
    leaf, each, square = np.zeros(3, np.uint8), np.ones(3), np.eye(3)
    draws = np.zeros((3, 2))
    nested.nested_root(square, each, np.array([1, 2]))
    posterior.observe(
        leaf, each, each, each, square, np.full(3, 3), square, each, (each[:1], each[:1]),
        grad_total=0.0, sd=(1.0, 1.0), done=0, sampling=1.0, hess_bounds=(0.0, 1.0), omitted=-1, keep=1.0,
    )  # fmt: skip
    posterior.mean(
        square,
        each,
        square,
        each[:1],
        leaf,
        each,
        follows=True,
        grad_sd=1.0,
        sampling=1.0,
        omitted=-1,
        largest=1.0,
    )
    posterior.add_errors(leaf, each, draws, draws[:1].copy(), own=1.0)
    posterior.tell(
        leaf, each, square, draws[:1], draws[0], grad_sd=1.0, sampling=1.0, omitted=-1, keep=1.0, rank=3,
        precision=np.eye(3), known=np.zeros((3, 2)),
    )  # fmt: skip
    posterior.moves(square, each, draws, each[:1], passed=False)


def _boxes() -> None:
    width = np.ones((1, 2))
    found = boxes.fill_boxes(np.zeros((1, 1), np.uint16), np.zeros((1, 1, 2), np.uint8), width)
    draws = np.zeros((1, 2, 2), np.float32)
    boxes.forest_moves(*found, width, width[0], draws[0], draws)


def _best_splits() -> None:
    sums, none = np.ones((1, 2, 1)), np.zeros(1, bool)
    cuts = [np.zeros(1, np.int64)]
    splits.best_splits(sums, sums, np.array([2]), cuts, none, none, None, 1.0, 0.0, 0.0)


def _random_splits() -> None:
    left = np.zeros((1, 1), np.int16), np.ones((1, 1), np.int16)
    feature, below, draws = np.zeros(1, np.uint16), np.array([[0.0, 1.0]]), np.zeros((2, 1))
    begun, end = np.zeros(1, bool), np.zeros(1, np.int16)
    random_splits.split_nodes(np.ones(1), below, None, draws, begun, left, feature)
    random_splits.left_below(left, feature, end, end)


def _leaf_steps() -> None:
    options = {"ridge": 1.0, "largest": 1.0, "rate": 1.0, "score_steps": 1.0}
    leaf_steps.leaf_steps(np.ones(4, np.int64), np.empty(0), 1, 1.0, 1.0, **options)
    table, leaf, low = np.zeros((2, 1), np.int32), np.zeros(2, np.uint16), np.zeros(1, np.int64)
    leaf_steps.with_leaves(table, leaf, np.zeros((1, 1, 1), np.int32), 0, low, low.copy())


GROUPS: dict[str, Callable[[], None]] = {
    "hashes": _hashes,
    "values": _values,
    "matrix": _matrix,
    "float32 values": lambda: _values(np.float32),
    "float32 matrix": lambda: _matrix(np.float32),
    "weights": _weights,
    "labels": _labels,
    "logistic gradient": _logistic,
    "residual gradient": _residuals,
    "squared gradient": _squared,
    "slope gradient": _slopes,
    "poisson gradient": _poisson,
    "softmax gradient": _softmax,
    "clipped softmax gradient": _clipped_softmax,
    "main sums": _main_sums,
    "shrunk rows": _shrunk_rows,
    "directions": _directions,
    "pair sums": _pair_sums,
    "sums of classes": _sums_of_classes,
    "trees": _trees,
    "deep trees": _deep_trees,
    "levels": _levels,
    "draws": _draws,
    # of rows in the process that decides: no query names it
    "table rounds": _table_rounds,
    # of that process, at its first round
    "best splits": _best_splits,
    "leaf steps": _leaf_steps,
    "random splits": _random_splits,
    "posterior": _posterior,
    "boxes": _boxes,
}
ALWAYS = ("hashes", "values")  # of every fit
GRADIENTS = {
    "LogisticGradient": ("logistic gradient",),
    "TableGradient": ("logistic gradient", "residual gradient"),
    "SquaredGradient": ("squared gradient",),
    "FreeSquaredGradient": ("squared gradient",),
    "SlopeGradient": ("slope gradient",),
    "PoissonGradient": ("poisson gradient",),
    # `auto` clips that of the loss
    "SoftmaxGradient": ("softmax gradient", "clipped softmax gradient"),
    "ClippedSoftmaxGradient": ("clipped softmax gradient",),
    "LabelGradient": (),
}
