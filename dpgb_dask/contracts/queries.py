"""What may be asked of the rows, as data, and the shape of the answer.

A query is answered by one int64 vector of sums over rows. ``step_bits`` says that one natural unit is
``2**step_bits`` steps (weights included), ``price`` what it costs in units of 2⁻⁶⁴ of μ².
"""

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.losses import GRAD_BITS, Gradient

PRICE_ONE = 1 << 64  # price of μ² = 1


def _canonical(value: Any, sink: Any) -> None:
    """Feed one field to a hash, with type and shape, so that different queries never share bytes."""
    if isinstance(value, np.ndarray):
        sink.update(json.dumps([value.dtype.str, value.shape]).encode())
        sink.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, tuple):
        sink.update(b"(%d" % len(value))
        for item in value:
            _canonical(item, sink)
    elif hasattr(value, "__dataclass_fields__"):
        sink.update(type(value).__name__.encode())
        for item in fields(value):
            sink.update(item.name.encode() + b"=")
            _canonical(getattr(value, item.name), sink)
    else:
        sink.update(f"{type(value).__name__}:{value!r};".encode())


@dataclass(frozen=True, eq=False, kw_only=True)
class Query:
    """Base of all queries.

    Parameters
    ----------
    label : str
        Stage and round, for report and progress ("main 3/20").
    price : int
        Charge in units of 2⁻⁶⁴ of μ².
    weight_bits : int
        Weights are integers in steps of 2**-weight_bits; 0 without sample weights.
    """

    label: str
    price: int
    weight_bits: int = 0

    @property
    def n_values(self) -> int:
        """Length of the answer."""
        raise NotImplementedError

    @property
    def step_bits(self) -> int:
        """One natural unit is ``2**step_bits`` steps."""
        return self.weight_bits

    def digest(self) -> bytes:
        """Return a hash of the whole query, the same on every machine."""
        sink = hashlib.sha256()
        _canonical(self, sink)
        return sink.digest()


@dataclass(frozen=True, eq=False, kw_only=True)
class CountQuery(Query):
    """Sum of the weights of all rows: one value. One row adds at most the largest weight."""

    @property
    def n_values(self) -> int:
        """One."""
        return 1


@dataclass(frozen=True, eq=False, kw_only=True)
class CellCountsQuery(Query):
    """Weighted rows in every cell of the public grid, all features jointly: L2 sensitivity √m · weight.

    Parameters
    ----------
    n_uniform : int
        Resolution of the grid, ``grid.COARSE`` or ``grid.FINE``.
    sizes : tuple of int
        Cells per feature.
    """

    n_uniform: int
    sizes: tuple[int, ...]

    @property
    def n_values(self) -> int:
        """All cells."""
        return sum(self.sizes)


@dataclass(frozen=True, eq=False, kw_only=True)
class TargetSumQuery(Query):
    """Weighted sum of the target: per class the rows of it (class 1 only if binary), or Σ y of a numeric target.

    A numeric target is scaled to [-1, 1] by its public bounds and counted in score steps (2⁻¹⁶).
    One row adds at most one natural unit times its weight.
    """

    kind: str  # "binary", "multiclass" or "numeric"
    n_classes: int

    @property
    def n_values(self) -> int:
        """Number of classes for multiclass, else one."""
        return self.n_classes if self.kind == "multiclass" else 1

    @property
    def step_bits(self) -> int:
        """Numeric sums are in score steps."""
        return self.weight_bits + (16 if self.kind == "numeric" else 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class ResidualQuery(Query):
    """Weighted histogram of |score - y| over public edges: cell k counts edges[k-1] < |r| <= edges[k].

    Parameters
    ----------
    edges : (n_edges,) int64, score steps, increasing
    """

    edges: NDArray[np.int64]

    @property
    def n_values(self) -> int:
        """One more than edges."""
        return len(self.edges) + 1


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientQuery(Query):
    """Base of the queries for sums of (g, h); answers are laid out (…, n_scores, 2) and flattened.

    Parameters
    ----------
    gradient : Gradient
        Decides each row's (g, h) and its exact bound.
    n_scores : int
        Score columns (classes for multiclass, else 1).
    """

    gradient: Gradient
    n_scores: int

    @property
    def n_cells(self) -> int:
        """Number of (leaf, …) cells, each with n_scores · 2 values."""
        raise NotImplementedError

    @property
    def n_blocks(self) -> int:
        """Cells that one row falls in: the squared sensitivity is ``n_blocks · l2_squared``."""
        raise NotImplementedError

    @property
    def n_values(self) -> int:
        """n_cells · n_scores · 2."""
        return self.n_cells * self.n_scores * 2

    @property
    def step_bits(self) -> int:
        """Gradient steps times weight steps."""
        return self.weight_bits + GRAD_BITS


@dataclass(frozen=True, eq=False, kw_only=True)
class MainSumsQuery(GradientQuery):
    """Sums per leaf of one partition of every feature, all jointly: a row hits one leaf of each feature.

    Parameters
    ----------
    leaf_of_bin : tuple of ((n_bins,) uint8)
        Leaf of each bin, per feature.
    n_leaves : tuple of int
        Leaves per feature; the answer concatenates features.
    """

    leaf_of_bin: tuple[NDArray[np.uint8], ...]
    n_leaves: tuple[int, ...]

    @property
    def n_cells(self) -> int:
        """All leaves."""
        return sum(self.n_leaves)

    @property
    def n_blocks(self) -> int:
        """One leaf per feature."""
        return len(self.n_leaves)


@dataclass(frozen=True, eq=False, slots=True)
class PairCells:
    """A coarse table over features i and j: cell ``map_i[code_i] * n_j + map_j[code_j]``, in n_i · n_j <= 256 cells."""

    i: int
    j: int
    map_i: NDArray[np.uint8]
    map_j: NDArray[np.uint8]
    n_i: int
    n_j: int


@dataclass(frozen=True, eq=False, kw_only=True)
class PairSumsQuery(GradientQuery):
    """Sums per cell of several pair tables, all jointly; the answer concatenates tables, row-major."""

    pairs: tuple[PairCells, ...]

    @property
    def n_cells(self) -> int:
        """All cells."""
        return sum(p.n_i * p.n_j for p in self.pairs)

    @property
    def n_blocks(self) -> int:
        """One cell per table."""
        return len(self.pairs)


@dataclass(frozen=True, eq=False, kw_only=True)
class TreeSumsQuery(GradientQuery):
    """Sums per leaf of several trees, all jointly.

    Parameters
    ----------
    feature : (n_trees, 2**depth - 1) uint16
    threshold : (n_trees, 2**depth - 1) uint8
        Heap order; ``code > threshold`` goes right.
    """

    feature: NDArray[np.uint16]
    threshold: NDArray[np.uint8]

    @property
    def n_cells(self) -> int:
        """All leaves, trees first."""
        return self.feature.shape[0] * (self.feature.shape[1] + 1)

    @property
    def n_blocks(self) -> int:
        """One leaf per tree."""
        return self.feature.shape[0]
