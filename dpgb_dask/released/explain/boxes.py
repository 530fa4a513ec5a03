"""The leaves of a forest as boxes: what they add to a score on average, given one feature or two.

Features are taken as independent of each other, with the released shares of their bins. A leaf is reached if every
feature on its path lies in a set of bins. Its indicator is then a product over features, and so are all its conditional
means (functional ANOVA; docs/explanations.md §1). With p_j the share of the set A_j of feature j, a leaf of value v
adds

    v · Π p                                         to the mean,
    v · Π_{k≠j} p_k · (1[x_j in A_j] - p_j)         to the main effect of j,
    v · Π_{k≠i,j} p_k · (1[x_i in A_i] - p_i) · (1[x_j in A_j] - p_j)     to the pair (i, j).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import BinShares, Splits
from dpgb_dask.kernels.boxes import fill_boxes


def groups_of_bins(splits: Splits, n_bins: list[int]) -> list[NDArray[np.uint8]]:
    """Return, per feature, the group of each bin: no tree tells two bins of a group apart.

    Groups are numbered by their first bin.
    """
    out = []
    for j, n in enumerate(n_bins):
        code = np.arange(n)
        thresholds, masks = splits.of_feature(j)
        interval = np.searchsorted(thresholds, code).astype(np.uint8)
        if not len(masks):
            out.append(interval)
            continue
        sides = np.array([interval, *masks[:, :n]])
        _, first, group = np.unique(sides, axis=1, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.uint8)
        rank[np.argsort(first)] = np.arange(len(first))
        out.append(rank[group.reshape(-1)])
    return out


def shares_of_groups(
    groups: list[NDArray[np.uint8]], shares: BinShares
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Return the share of rows in each group of each feature, and all of them in one array, padded with 0."""
    weights = [
        np.bincount(group, part) / part.sum()
        for group, part in zip(groups, shares.weights, strict=True)
    ]
    width = np.zeros((len(weights), max(map(len, weights))))
    for j, part in enumerate(weights):
        width[j, : len(part)] = part
    return weights, width


@dataclass(frozen=True, eq=False, slots=True)
class Sides:
    """The leaves whose path has one feature.

    Parameters
    ----------
    leaf : (n,) int64
        In order.
    inside : (n, n_groups) bool
        Which groups of bins of the feature lie in the box.
    share : (n,) float64
        Share of rows in ``inside``.
    others : (n,) float64
        Product of the shares of the other features of the path.
    """

    leaf: NDArray[np.int64]
    inside: NDArray[np.bool_]
    share: NDArray[np.float64]
    others: NDArray[np.float64]

    @property
    def effect(self) -> NDArray[np.float64]:
        """What a value of 1 adds to the main effect of the feature: (n, n_groups)."""
        return np.asarray((self.inside - self.share[:, None]) * self.others[:, None])


@dataclass(frozen=True, eq=False, slots=True)
class Boxes:
    """The leaves of all trees, one row each.

    Parameters
    ----------
    feature : (n_leaves, depth) int32
        Features of a leaf's path, each once; ``UNUSED`` elsewhere.
    inside : (n_leaves, depth, n_groups) bool
        Which groups of bins of the feature lie in the box.
    share : (n_leaves, depth) float64
        Share of rows in ``inside``; 1 where there is no feature.
    groups : list of ((n_bins,) uint8)
        Group of each bin of each feature.
    weights : list of ((n_groups of the feature,) float64)
        Share of rows in each group.
    """

    feature: NDArray[np.int32]
    inside: NDArray[np.bool_]
    share: NDArray[np.float64]
    groups: list[NDArray[np.uint8]]
    weights: list[NDArray[np.float64]]

    @classmethod
    def of(cls, splits: Splits, shares: BinShares) -> "Boxes":
        """Return the boxes of trees, under the released shares of bins."""
        n_bins = [len(part) for part in shares.weights]
        groups = groups_of_bins(splits, n_bins)
        weights, width = shares_of_groups(groups, shares)
        bin_of = np.zeros(width.shape, np.uint8)  # the first bin of each group
        for j, (group, part) in enumerate(zip(groups, weights, strict=True)):
            bin_of[j, : len(part)] = np.unique(group, return_index=True)[1]
        code = bin_of[splits.feature]
        right = (code > splits.threshold[:, :, None]).view(np.uint8)
        masked = splits.mask_of >= 0
        rows = splits.mask_of[masked]
        right[masked] = np.take_along_axis(splits.masks[rows], code[masked].astype(np.intp), 1) == 1
        return cls(*fill_boxes(splits.feature, right, width), groups, weights)

    def _others(self, *levels: int) -> NDArray[np.float64]:
        """Return the product of the shares of all features of a path but those at some levels."""
        rest = [k for k in range(self.share.shape[1]) if k not in levels]
        return self.share[:, rest].prod(1)

    def mean(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean score: (n_scores,) of leaf values (n_scores, n_leaves)."""
        return np.asarray(value @ self._others())

    def sides(self) -> list[Sides]:
        """Return the leaves whose path has a feature, for each feature."""
        others = np.empty_like(self.share)
        for k in range(others.shape[1]):
            others[:, k] = self._others(k)
        found = []
        for j, part in enumerate(self.weights):
            leaf, level = np.nonzero(self.feature == j)
            inside = self.inside[leaf, level, : len(part)]
            share, rest = self.share[leaf, level], others[leaf, level]
            found.append(Sides(leaf, inside, share, rest))
        return found

    def mains(self, value: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return the main effects: per feature (n_groups, n_scores)."""
        return [side.effect.T @ value[:, side.leaf].T for side in self.sides()]

    def _centred(
        self, leaf: NDArray[np.int64], level: NDArray[np.int64], n: int
    ) -> NDArray[np.float64]:
        return np.asarray(self.inside[leaf, level, :n] - self.share[leaf, level, None])

    def pairs(
        self, value: NDArray[np.float64], power: int = 1
    ) -> Iterator[tuple[int, int, NDArray[np.float64]]]:
        """Yield the pure effect of every pair of features that share a leaf's path.

        Parameters
        ----------
        value : (n_scores, n_leaves) float64
        power : int
            1 for effects of values; 2 for the variances of these, of variances of values that vary independently.

        Yields
        ------
        i, j : int
            Features, i < j.
        effect : (n_scores, n_groups of i, n_groups of j) float64
        """
        m = len(self.weights)
        found = []
        for b in range(1, self.feature.shape[1]):
            for a in range(b):
                (leaf,) = np.nonzero((self.feature[:, a] >= 0) & (self.feature[:, b] >= 0))
                first, second = self.feature[leaf, a], self.feature[leaf, b]
                turned = first > second
                key = np.where(turned, second * m + first, first * m + second)
                low, high = np.where(turned, b, a), np.where(turned, a, b)
                found.append((key, leaf, low, high, self._others(a, b)[leaf]))
        if not found:
            return
        key, leaf, low, high, others = (np.concatenate(part) for part in zip(*found, strict=True))
        order = np.argsort(key, kind="stable")
        keys, starts = np.unique(key[order], return_index=True)
        for pair, rows in zip(keys, np.split(order, starts)[1:], strict=True):
            i, j = divmod(int(pair), m)
            left = self._centred(leaf[rows], low[rows], len(self.weights[i]))
            right = self._centred(leaf[rows], high[rows], len(self.weights[j]))
            part = value[:, leaf[rows]] * others[rows] ** power
            left, right = left**power, right**power
            yield i, j, np.stack([(left * own[:, None]).T @ right for own in part])
