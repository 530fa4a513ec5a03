"""What may be asked of the rows, as data, and the shape of the answer.

A query is answered by one int64 vector of sums over rows. ``step_bits`` says that one natural unit is
``2**step_bits`` steps (weights included), ``price`` what it costs in units of 2⁻⁶⁴ of the plan's currency: μ² for
Gaussian noise, ε for a plan of pure differential privacy.
"""

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import Splits
from dpgb_dask.losses import GRAD_BITS, Gradient

PRICE_ONE = 1 << 64  # price of μ² = 1, or of ε = 1
DRAW_BITS = 32  # a row's secret draw is a whole number below 2**32


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


@dataclass(frozen=True, slots=True)
class RowDraw:
    """Which rows serve a query: those whose secret keyed draw lies in [low, high), of 2³².

    A row's draw is PRF(secret key of the fit, group, position of the row or its unit): independent over rows and
    groups, the same for any chunking, and never released.

    Parameters
    ----------
    kind : {"part", "sample"}
        "part": the intervals of a group are disjoint or the same, so that a row serves one part; parts compose in
        parallel. "sample": one interval per group, a Poisson sample that amplifies the privacy of all its queries.
    group : int
        Every group draws anew.
    low, high : int
        0 <= low < high <= 2³².
    """

    kind: str
    group: int
    low: int
    high: int

    def __post_init__(self) -> None:
        if (
            self.kind not in ("part", "sample")
            or not 0 <= self.low < self.high <= 1 << DRAW_BITS
            or not 0 <= self.group < 1 << 32
        ):
            raise ValueError(
                f"{self!r} is no draw: 0 <= low < high <= 2**32, kind 'part' or 'sample'."
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class Query:
    """Base of all queries.

    Parameters
    ----------
    label : str
        Stage and round, for report and progress ("main 3/20").
    price : int
        Charge in units of 2⁻⁶⁴ of the plan's currency, for a row that serves the query.
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
    def n_sums(self) -> int:
        """Length of the raw sums; the answer itself, unless the controller computes it from them."""
        return self.n_values

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
    rows : RowDraw or None
        None for all rows.
    """

    gradient: Gradient
    n_scores: int
    rows: RowDraw | None = None

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
    """Sums per leaf of several trees, all jointly; the answer is laid out (tree, leaf, score, 2).

    Parameters
    ----------
    splits : Splits
    """

    splits: Splits

    @property
    def n_cells(self) -> int:
        """All leaves, trees first."""
        return self.splits.n_trees * self.splits.n_leaves

    @property
    def n_blocks(self) -> int:
        """One leaf per tree."""
        return self.splits.n_trees


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeSumsQuery(GradientQuery):
    """Sums per node of one level of one tree and per bin of some features, all jointly: greedy growth, bin refinement.

    The answer is laid out (node, feature, bin, score, 2), the bins of all features concatenated; with ``sides``,
    (node, feature, side, score, 2): bins are added to two sides before the noise.

    Parameters
    ----------
    splits : Splits
        One tree; its leaves are the level's nodes. Depth 0 is the root alone.
    features : (n_features_used,) uint16
    sizes : tuple of int
        Bins of each feature used.
    sides : (n_nodes, sum(sizes)) uint8, or None
        0 (left) or 1 (right) per node and bin.
    """

    splits: Splits
    features: NDArray[np.uint16]
    sizes: tuple[int, ...]
    sides: NDArray[np.uint8] | None = None

    @property
    def n_cells(self) -> int:
        """Nodes times bins, or times two sides of every feature."""
        per_node = sum(self.sizes) if self.sides is None else 2 * len(self.features)
        return self.splits.n_leaves * per_node

    @property
    def n_blocks(self) -> int:
        """One node, and in it one bin of each feature used."""
        return len(self.features)


@dataclass(frozen=True, eq=False, kw_only=True)
class ChoiceQuery(GradientQuery):
    """For every node of one level, one candidate split, chosen with chance ∝ exp(ε · gain / range).

    The gain is ΣS²/(n + ridge) over both children, S the sum of gradients and n of weights; there is no parent term,
    threshold or least child, so one row moves it by -3 g*² to g*² times its weight, whatever the rows (notes/privacy
    B3). The controller computes the gains from the opened sums, laid out as in `NodeSumsQuery`, and lets out the
    choices alone: (n_nodes,) positions in the candidates.

    Parameters
    ----------
    splits, features, sizes
        As in `NodeSumsQuery`.
    candidate_feature : (n_candidates,) uint16
        Position in ``features``.
    candidate_bin : (n_candidates,) uint8
    candidate_only : (n_candidates,) bool
        False: codes above the bin go right. True: the bin alone goes right (a category against the others).
    ridge : float
        λ > 0, in natural units of weight.

    Notes
    -----
    Candidates are public or released. The gradient has the Hessian 1 on every row (`Gradient.counts`).
    """

    splits: Splits
    features: NDArray[np.uint16]
    sizes: tuple[int, ...]
    candidate_feature: NDArray[np.uint16]
    candidate_bin: NDArray[np.uint8]
    candidate_only: NDArray[np.bool_]
    ridge: float

    @property
    def n_cells(self) -> int:
        """Nodes times bins."""
        return self.splits.n_leaves * sum(self.sizes)

    @property
    def n_blocks(self) -> int:
        """One node, and in it one bin of each feature used."""
        return len(self.features)

    @property
    def n_sums(self) -> int:
        """The opened histogram."""
        return self.n_cells * self.n_scores * 2

    @property
    def n_values(self) -> int:
        """One choice per node."""
        return self.splits.n_leaves
