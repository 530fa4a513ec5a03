"""Tables and trees over codes as trees of thresholds, which are all that runtimes of trees know.

A threshold splits the cells of a column: its bins in order if it is numeric, its categories in declared order and
"other" if not. Missing values are no cell: a node sends them to its left or right child. A table becomes a search tree,
and a set of categories becomes one threshold for each run of categories on the same side.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import FeatureBins, Model, Splits
from dpgb_dask.errors import StructureError

# of one model: a binary file of it has about 140 MB, and takes 20 s and 1.5 GiB to make
MOST_NODES = 1 << 22


@dataclass(frozen=True, eq=False)
class Axis:
    """The cells of one column.

    Parameters
    ----------
    code_of_cell : (n_cells,) intp
    missing_code : int or None
        None if missing values are a cell like others.
    mass : (n_cells + 1,) float64
        Share of rows in each cell, and of missing values at the end; all above 0.
    """

    code_of_cell: NDArray[np.intp]
    missing_code: int | None
    mass: NDArray[np.float64]


def axis_of(bins: FeatureBins, weights: NDArray[np.int64] | None = None) -> Axis:
    """Return the cells of a column, with missing values apart.

    Parameters
    ----------
    bins : FeatureBins
    weights : (n_bins,) int64, optional
        Released shares of the bins; without them all bins weigh the same.
    """
    codes = (
        np.append(np.arange(bins.n_bins - 1), bins.missing_bin)
        if bins.cell_to_bin is None
        else bins.cell_to_bin.astype(np.intp)
    )
    return Axis(codes[:-1], int(codes[-1]), _masses(codes, bins.n_bins, weights))


def axis_of_codes(codes: NDArray[np.intp]) -> Axis:
    """Return codes, in some order, as cells; missing is one of them."""
    return Axis(codes, None, _masses(np.append(codes, 0), len(codes), None))


def ordered_codes(splits: Splits, feature: int, n_bins: int) -> NDArray[np.intp]:
    """Return the codes of a feature, in an order in which its splits divide them into few runs.

    If there is an order in which each split divides them into two, as the forest's splits of categories do, it is that.
    """
    thresholds, masks = splits.of_feature(feature)
    codes = np.arange(n_bins)
    if not len(masks):
        return codes
    right = np.concatenate([codes > thresholds[:, None], masks[:, :n_bins] == 1])
    orders = [codes]
    # seen from an end of that order, each split leaves out the codes beyond its place
    for end in codes:
        beyond = (right != right[:, [end]]).sum(0)
        orders.append(np.argsort(beyond, kind="stable"))
    runs = [np.count_nonzero(np.diff(right[:, order], axis=1)) for order in orders]
    return orders[int(np.argmin(runs))]


def _masses(
    codes: NDArray[np.intp], n_bins: int, weights: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """Divide the share of each bin among its cells; none is 0, as shares of a node are divided by those above it."""
    share = np.ones(n_bins) if weights is None else weights.astype(np.float64) + 1
    return (share / share.sum())[codes] / np.bincount(codes, minlength=n_bins)[codes]


class Span(NamedTuple):
    """The cells ``start`` to ``stop - 1`` of a column, and whether missing values are with them."""

    start: int
    stop: int
    missing: bool


class Region(NamedTuple):
    """A span of each column, and the share of rows in it, as if columns were independent."""

    spans: tuple[Span, ...]
    cover: float


class Labels(NamedTuple):
    """What a column's values are told apart by: a label of each cell and of missing values."""

    of_cell: list[int]
    of_missing: int
    ends: list[int]  # cells whose label differs from that of the cell before


Then: TypeAlias = Callable[[int, Region], int]


@dataclass(eq=False)
class TreeLists:
    """One tree, as lists with one entry for each node. The root comes first; a right child follows its left sibling.

    Parameters
    ----------
    column : list of int
    cut : list of int
        Cells below it go left.
    missing_left : list of bool
    left, right : list of int
        Children; -1 for a leaf.
    leaf : list of int
        Which entry of the table, or which leaf of the tree; -1 for a node with children.
    cover : list of float
        Share of rows, as if columns were independent.
    """

    column: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    missing_left: list[bool] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    leaf: list[int] = field(default_factory=list)
    cover: list[float] = field(default_factory=list)

    def in_order(self) -> "TreeLists":
        """Return the same tree with siblings beside each other, level by level: XGBoost looks for them there."""
        order = [0]
        for node in order:  # which grows meanwhile
            if self.left[node] >= 0:
                order += [self.left[node], self.right[node]]
        at = {node: place for place, node in enumerate(order)}
        moved = TreeLists()
        for node in order:
            moved.column.append(self.column[node])
            moved.cut.append(self.cut[node])
            moved.missing_left.append(self.missing_left[node])
            moved.left.append(at.get(self.left[node], -1))
            moved.right.append(at.get(self.right[node], -1))
            moved.leaf.append(self.leaf[node])
            moved.cover.append(self.cover[node])
        return moved


class Builder:
    """Builds the trees of one model, and counts their nodes.

    Parameters
    ----------
    axes : sequence of Axis
    runtime : str
        For the error.
    """

    def __init__(self, axes: Sequence[Axis], runtime: str) -> None:
        self._axes = axes
        self._runtime = runtime
        self._nodes = 0
        self._below = [[0.0, *np.cumsum(axis.mass[:-1]).tolist()] for axis in axes]
        self._of_missing = [float(axis.mass[-1]) for axis in axes]
        spans = [Span(0, len(axis.code_of_cell), axis.missing_code is not None) for axis in axes]
        self._whole = Region(tuple(spans), 1.0)
        self._shape = TreeLists()

    def table(self, column: int, table: NDArray[np.int32]) -> TreeLists:
        """Return the tree of a table (n_bins, n_scores); its leaves are codes."""
        _, first, same = np.unique(table, axis=0, return_index=True, return_inverse=True)
        # the first code with the same entries stands for all
        labels = self._labels(column, first[same.reshape(-1)])
        return self._tree(lambda region: self._branch(column, labels, region, self._leaf))

    def pair(self, i: int, j: int, map_i: NDArray[np.uint8], map_j: NDArray[np.uint8]) -> TreeLists:
        """Return the tree of a pair table; its leaves are ``row * 256 + column`` of the table."""

        @cache
        def columns(row: int) -> Labels:
            return self._labels(j, row * 256 + map_j.astype(np.intp))

        def down(row: int, region: Region) -> int:
            return self._branch(j, columns(row), region, self._leaf)

        rows = self._labels(i, map_i.astype(np.intp))
        return self._tree(lambda region: self._branch(i, rows, region, down))

    def forest(self, model: Model) -> list[TreeLists]:
        """Return the model's trees; their leaves are counted from the left."""
        return [self._tree_of(model, t) for t in range(model.trees.n_trees)]

    def _tree_of(self, model: Model, t: int) -> TreeLists:
        splits = model.trees.splits
        n_nodes = splits.feature.shape[1]
        feature = splits.feature[t].tolist()

        @cache
        def children(node: int) -> Labels:
            q = splits.mask_of[t, node]
            codes = np.arange(model.bins[feature[node]].n_bins)
            right = codes > splits.threshold[t, node] if q < 0 else splits.masks[q, codes] == 1
            return self._labels(feature[node], 2 * node + 1 + right)

        def down(node: int, region: Region) -> int:
            if node >= n_nodes:
                return self._leaf(node - n_nodes, region)
            return self._branch(feature[node], children(node), region, down)

        return self._tree(lambda region: down(0, region))

    def one_leaf(self) -> TreeLists:
        """Return the tree of a constant."""
        return self._tree(lambda region: self._leaf(0, region))

    def _labels(self, column: int, of_code: NDArray[np.intp]) -> Labels:
        axis = self._axes[column]
        of_cell = of_code[axis.code_of_cell]
        missing = 0 if axis.missing_code is None else int(of_code[axis.missing_code])
        ends = np.flatnonzero(of_cell[1:] != of_cell[:-1]) + 1
        return Labels(of_cell.tolist(), missing, ends.tolist())

    def _tree(self, grow: Callable[[Region], int]) -> TreeLists:
        self._shape = TreeLists()
        grow(self._whole)
        return self._shape.in_order()

    def _leaf(self, label: int, region: Region) -> int:
        return self._add(0, 0, False, label, region)

    def _add(self, column: int, cut: int, missing_left: bool, leaf: int, region: Region) -> int:
        """Add a node without children, and return its number."""
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise StructureError(
                f"The model's splits by sets of categories make more than {MOST_NODES} thresholds, too many leaves for"
                f" a file for {self._runtime}. Export to 'python' or 'sql', which know sets."
            )
        shape = self._shape
        shape.column.append(column)
        shape.cut.append(cut)
        shape.missing_left.append(missing_left)
        shape.left.append(-1)
        shape.right.append(-1)
        shape.leaf.append(leaf)
        shape.cover.append(region.cover)
        return len(shape.leaf) - 1

    def _mass(self, column: int, span: Span) -> float:
        below = self._below[column]
        return below[span.stop] - below[span.start] + span.missing * self._of_missing[column]

    def _branch(self, column: int, labels: Labels, region: Region, then: Then) -> int:
        """Tell apart the labels of a column within a region, and go on with each; return the first node."""
        span = region.spans[column]
        start, stop, missing = span
        low, high = bisect_right(labels.ends, start), bisect_left(labels.ends, stop)
        if low >= high:
            own = labels.of_cell[start] if start < stop else labels.of_missing
            if not missing or own == labels.of_missing:
                return then(own, region)
            cut, goes_left = stop, False  # the right child gets missing values alone
        else:
            cut = labels.ends[(low + high) // 2]
            # where a cell has their label; in neither half, they are told apart further below
            goes_left = labels.of_missing not in labels.of_cell[cut:stop]
        node = self._add(column, cut, missing and goes_left, -1, region)
        left = Span(start, cut, missing and goes_left)
        right = Span(cut, stop, missing and not goes_left)
        shape, whole = self._shape, self._mass(column, span)
        for children, part in ((shape.left, left), (shape.right, right)):
            spans = (*region.spans[:column], part, *region.spans[column + 1 :])
            inside = Region(spans, region.cover * self._mass(column, part) / whole)
            children[node] = self._branch(column, labels, inside, then)
        return node
