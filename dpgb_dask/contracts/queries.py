"""The queries: what may be asked of the rows, as data, and the shape of the answer.

A query is answered by one int64 vector of sums over rows. One natural unit is ``2**step_bits`` steps (weights
included). ``price`` is the cost in units of 2⁻⁶⁴ of the plan's currency: μ² for Gaussian noise, ε for a plan of pure
differential privacy.

The sensitivity of an answer is stated from the query alone: a row hits one leaf of each feature, one cell of each
table. So a query that maps rows to cells that do not exist is refused when it is made (a leaf beyond ``n_leaves`` would
belong to another feature, and the row would count there twice), and `check_query` refuses every class that is not
defined here. A query keeps read-only copies of its arrays, and tuples and plain numbers of its own, so that it cannot
change after these checks.
"""

import hashlib
import json
import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.grid import GRIDS
from dpgb_dask.contracts.model import MAX_BINS, Splits, flaw_of
from dpgb_dask.errors import PlanError
from dpgb_dask.frozen import frozen, frozen_parts, settle
from dpgb_dask.kernels.bin import MAX_EDGES
from dpgb_dask.kernels.directions import MOST, MOST_DIRECTIONS, PRODUCT_BITS, fits
from dpgb_dask.losses import GRAD_BITS, GRADIENTS, Gradient, check_gradient
from dpgb_dask.scalars import finite_float, same_text, whole_number

PRICE_ONE = 1 << 64  # price of μ² = 1, or of ε = 1
DRAW_BITS = 32  # a row's secret draw is a whole number below 2**32
MOST_WEIGHT_BITS = 16  # weights stay below 2**16 steps (contracts.plan)
SHRINK_BITS = 16  # of the weights of rows that fall into too many blocks (`ReferenceSumsQuery`)
SLOPE_BITS = 8  # the slope of a node is a whole number of steps of 2**-8
MOST_ODDS = 1 << 31  # of all candidates of a shared choice, which are proposed by them
KINDS = ("binary", "multiclass", "numeric")


def _whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return a field as a Python int.

    Raises
    ------
    PlanError
        If it is not a whole number in [low, high].
    """
    own = whole_number(value)
    if own is None or own < low or (high is not None and own > high):
        most = "" if high is None else f" and at most {high}"
        raise PlanError(
            f"{name}={value!r} of a query must be a whole number, at least {low}{most}."
        )
    return own


def _array(name: str, value: Any, dtype: Any, ndim: int = 1) -> NDArray[Any]:
    """Return a read-only copy of a field.

    Raises
    ------
    PlanError
        If it is not an array of this type and number of dimensions.
    """
    own = frozen(value) if isinstance(value, np.ndarray) else None
    if own is None or own.dtype != dtype or own.ndim != ndim:
        raise PlanError(f"{name} of a query must be a {np.dtype(dtype)} array of ndim={ndim}.")
    return own


def _sizes(sizes: Any, most: int | None = None) -> tuple[int, ...]:
    """Return numbers of cells as Python ints; an empty tuple unless all are whole numbers in [1, most]."""
    own = [number for size in sizes if (number := whole_number(size)) is not None]
    if len(own) < len(sizes):
        return ()
    fits = not own or (min(own) > 0 and (most is None or max(own) <= most))
    return tuple(own) if fits else ()


def _maps(
    name: str, maps: Any, sizes: Any
) -> tuple[tuple[NDArray[np.uint8], ...], tuple[int, ...]]:
    """Return maps from bins to cells as read-only copies, and the number of cells of each.

    Raises
    ------
    PlanError
        Unless each map sends the bins of its feature to whole numbers below its number of cells.
    """
    maps, own = tuple(maps), _sizes(sizes)
    if len(maps) != len(own) or len(own) != len(sizes) or max(own, default=1) > MAX_BINS:
        raise PlanError(
            f"{name} of a query needs 1 to {MAX_BINS} cells, a whole number, for each map."
        )
    if not maps:
        return (), ()
    for part in maps:
        if type(part) is not np.ndarray or part.dtype != np.uint8 or part.ndim != 1:
            raise PlanError(f"{name} of a query must be uint8 arrays of ndim=1.")
    lengths = [len(part) for part in maps]
    if not 1 <= min(lengths) <= max(lengths) <= MAX_BINS:
        raise PlanError(f"{name} of a query must say a cell for each of 1 to {MAX_BINS} bins.")
    joined, parts = frozen_parts(maps)
    # one comparison for all maps, because a round takes milliseconds
    if (joined >= np.repeat(own, lengths)).any():
        raise PlanError(
            f"{name} of a query maps a bin to a cell beyond its feature's: a row would count twice in another one's."
        )
    return parts, own


def checked_splits(splits: Any) -> Splits:
    """Return trees as read-only copies.

    Raises
    ------
    PlanError
        Unless the trees are complete, and the masks that they name exist and hold 0 or 1.
    """
    if type(splits) is not Splits:
        raise PlanError(f"splits of a query is a {type(splits).__name__}, not Splits.")
    if getattr(splits, "checked", False):
        return splits
    feature = _array("splits.feature", splits.feature, np.uint16, 2)
    threshold = _array("splits.threshold", splits.threshold, np.uint8, 2)
    mask_of = _array("splits.mask_of", splits.mask_of, np.int32, 2)
    masks = _array("splits.masks", splits.masks, np.uint8, 2)
    own = Splits(feature, threshold, mask_of, masks)
    if (flaw := flaw_of(own)) is not None:
        raise PlanError(f"splits of a query {flaw}.")
    settle(own, checked=True)
    return own


def _level(splits: Any) -> Splits:
    """Return the splits of one tree as read-only copies.

    Raises
    ------
    PlanError
        If there are several trees, or none.
    """
    own = checked_splits(splits)
    if own.n_trees != 1:
        raise PlanError(f"n_trees={own.n_trees}: a level is of one tree. Ask tree by tree.")
    return own


def _features(features: Any, sizes: Any) -> tuple[NDArray[np.uint16], tuple[int, ...]]:
    """Return the features of a level as a read-only copy, and their sizes.

    Raises
    ------
    PlanError
        Unless every feature has a size.
    """
    own, known = _array("features", features, np.uint16), _sizes(sizes, MAX_BINS)
    if not len(known) == len(own) == len(sizes):
        raise PlanError(f"sizes of a query must be 1 to {MAX_BINS} bins for each of its features.")
    return own, known


def _values(features: Any, values: Any) -> tuple[NDArray[np.uint16], tuple[NDArray[Any], ...]]:
    """Return features, and what number each of their bins stands for, as read-only copies.

    Raises
    ------
    PlanError
        Unless there are two features or more, each named once, with numbers that kernels can multiply.
    """
    own = _array("features", features, np.uint16)
    tables = tuple(_array("values", part, np.int32) for part in values)
    if not 2 <= len(own) == len(tables) <= MOST_DIRECTIONS or len(set(own.tolist())) < len(own):
        raise PlanError(
            f"features of a query must be 2 to {MOST_DIRECTIONS}, each named once, with values for each."
        )
    if not all(1 <= len(part) <= MAX_BINS for part in tables):
        raise PlanError(f"values of a query must be of 1 to {MAX_BINS} bins.")
    return own, tables


def _check_fits(matrix: NDArray[Any], values: tuple[NDArray[Any], ...]) -> None:
    """Raise `PlanError` if a row could have a number in a direction that kernels cannot square."""
    if not fits(matrix, values):
        raise PlanError(
            f"A row could have a number of {MOST} or more in a direction. Use smaller values or factors."
        )


@lru_cache(maxsize=1024)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    return json.dumps([dtype.str, shape]).encode()


@lru_cache(maxsize=1024)
def _names(record: type) -> tuple[tuple[str, bytes], ...]:
    return tuple((item.name, item.name.encode() + b"=") for item in fields(record))


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _plain(value: Any) -> bytes:
    return f"{type(value).__name__}:{value!r};".encode()


def _canonical(value: Any, told: list[Any]) -> None:
    """Append one field as bytes, with its type and shape, so that different queries never give the same bytes."""
    kind: Any = type(value)
    if kind in _PLAIN:
        told.append(_plain(value))
    elif isinstance(value, np.ndarray):
        told += _header(value.dtype, value.shape), np.ascontiguousarray(value)
    elif kind in GRADIENTS:
        told.append(_of_gradient(value))
    elif kind is Splits:
        told.append(told_splits(value))
    elif isinstance(value, tuple):
        told.append(b"(%d" % len(value))
        for item in value:
            _canonical(item, told)
    elif hasattr(value, "__dataclass_fields__"):
        _canonical_fields(value, told)
    else:
        told.append(_plain(value))


def _canonical_fields(record: Any, told: list[Any]) -> None:
    kind: Any = type(record)
    told.append(kind.__name__.encode())
    for name, shown in _names(kind):
        told.append(shown)
        _canonical(getattr(record, name), told)


def told_splits(splits: Splits) -> bytes:
    """Return checked trees as the bytes that go into the digest of a query of them; kept, for those who ask ahead."""
    if not hasattr(splits, "told"):
        told: list[Any] = []
        _canonical_fields(splits, told)
        settle(splits, told=b"".join(told))
    return splits.told


def _digest(*parts: Any) -> bytes:
    """Return a hash of some fields, or of a whole query, the same on every machine."""
    told: list[Any] = []
    for part in parts:
        _canonical(part, told)
    return hashlib.sha256(b"".join(told)).digest()


@lru_cache(maxsize=16)  # a table of 64 KB is hashed once for all rounds that ask by it
def _of_gradient(gradient: Any) -> bytes:
    told: list[Any] = []
    _canonical_fields(gradient, told)
    return hashlib.sha256(b"".join(told)).digest()


@dataclass(frozen=True, slots=True)
class RowDraw:
    """Which rows serve a query: those whose secret keyed draw, a whole number below 2³², lies in [low, high).

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
        kind = same_text(self.kind, ("part", "sample"))
        given = map(whole_number, (self.group, self.low, self.high))
        group, low, high = (-1 if number is None else number for number in given)
        if kind is None or not 0 <= low < high <= 1 << DRAW_BITS or not 0 <= group < 1 << 32:
            raise PlanError(
                f"{self!r} is no draw: 0 <= low < high <= 2**32, kind 'part' or 'sample'."
            )
        settle(self, kind=kind, group=group, low=low, high=high)

    @property
    def rate(self) -> float:
        """Chance that it chooses a row."""
        return (self.high - self.low) / 2**DRAW_BITS


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

    # names in `kernels.warming.GROUPS` of what adds up the answer and adds what comes of it to the scores; compiled
    # before the fit. None: any kernel, the safe default
    kernels: ClassVar[tuple[str, ...] | None] = None

    def __post_init__(self) -> None:
        """Refuse values for which no sensitivity is stated."""
        if not isinstance(self.label, str):
            raise PlanError(f"label={self.label!r} of a query must be a text.")
        settle(
            self,
            label=str.__str__(self.label),  # a plain str: workers do not know the caller's classes
            price=_whole("price", self.price, 0),
            weight_bits=_whole("weight_bits", self.weight_bits, 0, MOST_WEIGHT_BITS),
        )

    @property
    def n_values(self) -> int:
        """Length of the answer."""
        raise NotImplementedError

    @property
    def n_sums(self) -> int:
        """Length of the raw sums; that of the answer, unless the controller computes the answer from the sums."""
        return self.n_values

    @property
    def step_bits(self) -> int:
        """One natural unit is ``2**step_bits`` steps."""
        return self.weight_bits

    def digest(self) -> bytes:
        """Return a hash of the whole query, the same on every machine."""
        return _digest(self)


@dataclass(frozen=True, eq=False, kw_only=True)
class CountQuery(Query):
    """Sum of the weights of all rows: one value. One row adds at most the largest weight."""

    kernels: ClassVar[tuple[str, ...] | None] = ()

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
        Resolution of the grid, one of ``grid.GRIDS``.
    sizes : tuple of int
        Cells per feature.
    """

    kernels: ClassVar[tuple[str, ...] | None] = ()

    n_uniform: int
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse a resolution or sizes that no grid has."""
        Query.__post_init__(self)
        n_uniform = whole_number(self.n_uniform)
        if n_uniform not in GRIDS:
            raise PlanError(f"n_uniform={self.n_uniform!r} of a query must be one of {GRIDS}.")
        sizes = tuple(_whole("a size", size, 1) for size in self.sizes)
        settle(self, n_uniform=n_uniform, sizes=sizes)

    @property
    def n_values(self) -> int:
        """All cells."""
        return sum(self.sizes)


@dataclass(frozen=True, eq=False, kw_only=True)
class BinCountsQuery(Query):
    """Weighted rows in every bin of some features, jointly: L2 sensitivity √(number of features) · weight.

    Parameters
    ----------
    features : (n,) uint16
        Features of the model's bins.
    sizes : tuple of int
        Their numbers of bins.
    """

    # adds up bytes, as "labels" does; it is rare, and compiled when it comes
    kernels: ClassVar[tuple[str, ...] | None] = ()

    features: NDArray[np.uint16]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse features without a size."""
        Query.__post_init__(self)
        features, sizes = _features(self.features, self.sizes)
        if not sizes:
            raise PlanError("features of the query must be at least one.")
        settle(self, features=features, sizes=sizes)

    @property
    def n_values(self) -> int:
        """All bins."""
        return sum(self.sizes)


@dataclass(frozen=True, eq=False, kw_only=True)
class TargetSumQuery(Query):
    """Weighted sum of the target: the rows of each class (of class 1 only if binary), or Σ y of a numeric target.

    A numeric target is scaled to [-1, 1] by its public bounds and counted in score steps (2⁻¹⁶).
    One row adds at most one natural unit times its weight.
    """

    kernels: ClassVar[tuple[str, ...] | None] = ()

    kind: str  # "binary", "multiclass" or "numeric"
    n_classes: int

    def __post_init__(self) -> None:
        """Refuse an unknown type of target."""
        Query.__post_init__(self)
        kind = same_text(self.kind, KINDS)
        if kind is None:
            raise PlanError(f"kind={self.kind!r} of a query must be one of {KINDS}.")
        least = 0 if kind == "numeric" else 1
        settle(self, kind=kind, n_classes=_whole("n_classes", self.n_classes, least))

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
    """Weighted histogram of r = y - score over public edges: cell k counts edges[k-1] < r <= edges[k].

    Parameters
    ----------
    edges : (n_edges,) int64, score steps, increasing
        At most `kernels.bin.MAX_EDGES`.
    """

    kernels: ClassVar[tuple[str, ...] | None] = ()

    edges: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Refuse edges that do not increase, or are too many."""
        Query.__post_init__(self)
        settle(self, edges=_array("edges", self.edges, np.int64))
        if len(self.edges) > MAX_EDGES:
            raise PlanError(
                f"edges of a query must be at most {MAX_EDGES}: cells are numbered by uint16."
            )
        if (self.edges[1:] <= self.edges[:-1]).any():
            raise PlanError("edges of a query must increase.")

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

    def __post_init__(self) -> None:
        """Refuse a gradient or a draw of a class that the private side does not know, or another number of scores."""
        Query.__post_init__(self)
        settle(self, n_scores=_whole("n_scores", self.n_scores, 1))
        check_gradient(self.gradient, self.n_scores)
        if self.rows is not None and type(self.rows) is not RowDraw:
            raise PlanError(f"rows of a query is a {type(self.rows).__name__}, not a RowDraw.")

    def row_digest(self) -> bytes:
        """Return a hash of what decides, with the scores, which rows are summed and each row's (g, h)."""
        return _digest(self.gradient, self.n_scores, self.rows, self.weight_bits)

    @property
    def n_cells(self) -> int:
        """Number of (leaf, …) cells, each with n_scores · 2 values."""
        raise NotImplementedError

    @property
    def n_blocks(self) -> int:
        """Cells that one row falls in: the squared sensitivity is ``n_blocks · l2_squared``."""
        raise NotImplementedError

    @property
    def cell_share(self) -> float | None:
        """Average share of the rows that one cell is summed over; None if cells are no leaves."""
        return self.n_blocks / self.n_cells

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

    kernels: ClassVar[tuple[str, ...] | None] = ("main sums",)

    leaf_of_bin: tuple[NDArray[np.uint8], ...]
    n_leaves: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse leaves that do not exist."""
        GradientQuery.__post_init__(self)
        maps, sizes = _maps("leaf_of_bin", self.leaf_of_bin, self.n_leaves)
        settle(self, leaf_of_bin=maps, n_leaves=sizes)

    @property
    def n_cells(self) -> int:
        """All leaves."""
        return sum(self.n_leaves)

    @property
    def n_blocks(self) -> int:
        """One leaf per feature."""
        return len(self.n_leaves)


@dataclass(frozen=True, eq=False, kw_only=True)
class ReferenceSumsQuery(MainSumsQuery):
    """As `MainSumsQuery`, but some features keep one leaf back, and the totals are asked for once, before all leaves.

    A row falls into k blocks: the totals, and every feature but those in whose kept-back leaf it is. What it adds is
    multiplied by ``shrink[k]``, so that its squared norm is that of ``most_blocks`` blocks at most (docs/privacy.md
    P14). The leaf that is kept back is the total less the others.

    Parameters
    ----------
    omitted : tuple of int
        Per feature, the leaf that is kept back, whose bins are consecutive; -1 for none.
    most_blocks : int
        K: a row of more blocks weighs √(K/k).
    """

    kernels: ClassVar[tuple[str, ...] | None] = ("main sums", "shrunk rows")

    omitted: tuple[int, ...]
    most_blocks: int

    def __post_init__(self) -> None:
        """Refuse leaves that do not exist, and a bound that no row, or more than every row, can have."""
        MainSumsQuery.__post_init__(self)
        own = tuple(whole_number(leaf) for leaf in self.omitted)
        known = tuple(-1 if leaf is None else leaf for leaf in own)
        fit = len(own) == len(self.n_leaves) > 0 and all(
            leaf is not None and -1 <= leaf < size
            for leaf, size in zip(own, self.n_leaves, strict=True)
        )
        if not fit:
            raise PlanError("omitted of a query must be a leaf, or -1, for each of its features.")
        for leaf, kept_back in zip(self.leaf_of_bin, known, strict=True):
            bins = np.flatnonzero(leaf == kept_back)
            if (np.diff(bins) != 1).any():
                raise PlanError("omitted of a query names a leaf whose bins are not consecutive.")
        most = _whole("most_blocks", self.most_blocks, 1, len(own) + 1)
        settle(self, omitted=known, most_blocks=most)

    @property
    def n_cells(self) -> int:
        """The totals, and all leaves but those kept back."""
        return 1 + int(self.released.sum())

    @property
    def n_blocks(self) -> int:
        """The bound of a row's squared norm, in blocks."""
        return self.most_blocks

    @property
    def released(self) -> NDArray[np.bool_]:
        """Which of all leaves are released, (sum(n_leaves),)."""
        leaves = [
            np.arange(size) != leaf for size, leaf in zip(self.n_leaves, self.omitted, strict=True)
        ]
        return np.concatenate(leaves)

    @property
    def shrink(self) -> tuple[int, ...]:
        """Weight of a row by its number of blocks, 0 to m + 1, in steps of 2**-SHRINK_BITS; rounded down."""
        one = 1 << SHRINK_BITS
        blocks = range(1, len(self.omitted) + 2)
        return one, *(min(one, math.isqrt(self.most_blocks * one * one // k)) for k in blocks)


@dataclass(frozen=True, eq=False, slots=True)
class PairCells:
    """A coarse table over features i and j: cell ``map_i[code_i] * n_j + map_j[code_j]``, in n_i · n_j <= 256 cells."""

    i: int
    j: int
    map_i: NDArray[np.uint8]
    map_j: NDArray[np.uint8]
    n_i: int
    n_j: int

    def __post_init__(self) -> None:
        """Refuse cells that do not exist."""
        maps, sizes = _maps("map_i and map_j", (self.map_i, self.map_j), (self.n_i, self.n_j))
        settle(self, i=_whole("i", self.i, 0), j=_whole("j", self.j, 0))
        settle(self, map_i=maps[0], map_j=maps[1], n_i=sizes[0], n_j=sizes[1])
        if self.n_i * self.n_j > MAX_BINS:
            raise PlanError(
                f"n_i={self.n_i} times n_j={self.n_j} of a query is above {MAX_BINS}: cells are numbered by uint8."
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class PairSumsQuery(GradientQuery):
    """Sums per cell of several pair tables, all jointly; the answer concatenates tables, row-major."""

    kernels: ClassVar[tuple[str, ...] | None] = ("pair sums",)

    pairs: tuple[PairCells, ...]

    def __post_init__(self) -> None:
        """Refuse pairs that are not `PairCells`."""
        GradientQuery.__post_init__(self)
        settle(self, pairs=tuple(self.pairs))
        if not all(type(pair) is PairCells for pair in self.pairs):
            raise PlanError("pairs of a query must be PairCells.")

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

    kernels: ClassVar[tuple[str, ...] | None] = ("trees",)

    splits: Splits

    def __post_init__(self) -> None:
        """Refuse trees that could not be walked."""
        GradientQuery.__post_init__(self)
        settle(self, splits=checked_splits(self.splits))

    @property
    def n_cells(self) -> int:
        """All leaves, trees first."""
        n_trees, n_nodes = self.splits.feature.shape  # read many times in each round
        return n_trees * (n_nodes + 1)

    @property
    def n_blocks(self) -> int:
        """One leaf per tree."""
        return self.splits.n_trees


@dataclass(frozen=True, eq=False, kw_only=True)
class ContributionSumsQuery(GradientQuery):
    """Sums per cell of what some trees of the model add to a row's scores; the answer is laid out (cell, score, 2).

    For each score a row is in one cell, by what the trees add to that score, and brings there the (g, h) of that score
    alone: each of its numbers counts once, as in the leaves of one tree (docs/privacy.md P1).

    Parameters
    ----------
    trees : (n_trees,) int64
        Numbers of the trees in the model, increasing.
    edges : (n_scores, n_cells - 1) int32, score steps
        Per score, not falling: cell k holds rows to which the trees add more than edges[k - 1], and edges[k] at most.
    """

    kernels: ClassVar[tuple[str, ...] | None] = ("trees", "main sums")

    trees: NDArray[np.int64]
    edges: NDArray[np.int32]

    def __post_init__(self) -> None:
        """Refuse trees that no model has or that are named twice, and edges that fall or are not of all scores."""
        GradientQuery.__post_init__(self)
        trees = _array("trees", self.trees, np.int64)
        edges = _array("edges", self.edges, np.int32, 2)
        settle(self, trees=trees, edges=edges)
        if not len(trees) or trees[0] < 0 or (trees[1:] <= trees[:-1]).any():
            raise PlanError(
                "trees of a query must be numbers of trees that increase, at least one."
            )
        if len(edges) != self.n_scores or self.n_cells > MAX_BINS:
            raise PlanError(
                f"edges of a query must be at most {MAX_BINS - 1} for each of its scores: cells are numbered by uint8."
            )
        if (edges[:, 1:] < edges[:, :-1]).any():
            raise PlanError("edges of a query must not fall.")

    @property
    def n_cells(self) -> int:
        """One more than edges of a score."""
        return self.edges.shape[1] + 1

    @property
    def n_blocks(self) -> int:
        """One cell for each score, which has that score's (g, h)."""
        return 1

    @property
    def cell_share(self) -> None:
        """None."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ProductSumsQuery(Query):
    """Weighted sums of the products of every two of a row's numbers, one for each of some features, by its bin.

    A row's numbers are divided by ``norm``, or by their own norm if that is larger. So their products, with squares
    times √½, have a squared norm of at most ½, whatever the row is (docs/privacy.md P16). The answer is laid out
    (0, 0), (0, 1), …, (1, 1), (1, 2), ….

    Parameters
    ----------
    features : (n,) uint16
    values : tuple of ((n_bins,) int32)
        The number of each bin, per feature.
    norm : int
        In the unit of the values.
    """

    kernels: ClassVar[tuple[str, ...] | None] = ("directions",)

    features: NDArray[np.uint16]
    values: tuple[NDArray[np.int32], ...]
    norm: int

    def __post_init__(self) -> None:
        """Refuse features without numbers, and numbers that a kernel could not square."""
        Query.__post_init__(self)
        features, values = _values(self.features, self.values)
        norm = _whole("norm", self.norm, 1, MOST - 1)
        _check_fits(np.eye(len(features), dtype=np.int32), values)
        settle(self, features=features, values=values, norm=norm)

    @property
    def n_values(self) -> int:
        """Every feature with itself and with each later one."""
        return len(self.features) * (len(self.features) + 1) // 2

    @property
    def step_bits(self) -> int:
        """Steps of a product times weight steps."""
        return self.weight_bits + PRODUCT_BITS


@dataclass(frozen=True, eq=False, kw_only=True)
class DirectionSumsQuery(GradientQuery):
    """Sums of (g, h) times a row's numbers in some directions; the answer is laid out (direction, score, 2).

    A row's number in a direction is a combination of those that its bins stand for. Together they are divided by
    ``norm``, or by their own norm if that is larger. So what a row adds has the norm of its (g, h) at most, however
    many directions there are (docs/privacy.md P16).

    Parameters
    ----------
    features, values
        As in `ProductSumsQuery`.
    matrix : (n_directions, n) int32
        How much of each feature's number is in each direction.
    norm : int
        In the unit of the values times that of the matrix.
    """

    kernels: ClassVar[tuple[str, ...] | None] = ("directions", "main sums")

    features: NDArray[np.uint16]
    values: tuple[NDArray[np.int32], ...]
    matrix: NDArray[np.int32]
    norm: int

    def __post_init__(self) -> None:
        """Refuse features without numbers, and directions in which numbers would be too large."""
        GradientQuery.__post_init__(self)
        features, values = _values(self.features, self.values)
        matrix = _array("matrix", self.matrix, np.int32, 2)
        if not len(matrix) or matrix.shape[1] != len(features):
            raise PlanError(
                "matrix of a query must have a factor for each of its features, for a direction or more."
            )
        norm = _whole("norm", self.norm, 1, MOST - 1)
        _check_fits(matrix, values)
        settle(self, features=features, values=values, matrix=matrix, norm=norm)

    @property
    def n_cells(self) -> int:
        """All directions."""
        return len(self.matrix)

    @property
    def n_blocks(self) -> int:
        """One, as all directions together have the norm of one cell."""
        return 1

    @property
    def cell_share(self) -> None:
        """None."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LevelQuery(GradientQuery):
    """A query about one level of one tree: what it needs is summed per node, and bin of some features.

    Parameters
    ----------
    splits : Splits
        One tree; its leaves are the level's nodes. Depth 0 is the root alone.
    features : (n_features_used,) uint16
    sizes : tuple of int
        Bins of each feature used.
    """

    kernels: ClassVar[tuple[str, ...] | None] = ("levels", "trees")

    splits: Splits
    features: NDArray[np.uint16]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse splits of more than one tree, and features without sizes."""
        GradientQuery.__post_init__(self)
        features, sizes = _features(self.features, self.sizes)
        settle(self, splits=_level(self.splits), features=features, sizes=sizes)

    @property
    def n_blocks(self) -> int:
        """One node, and in it one bin of each feature used."""
        return len(self.features)

    def cells_digest(self) -> bytes:
        """Return a hash of what decides the cells of a node that a row falls in."""
        return _digest(*self._cells)

    @property
    def _cells(self) -> tuple[Any, ...]:
        return self.features, self.sizes


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeSumsQuery(LevelQuery):
    """Sums per node of one level of one tree and per bin of some features, all jointly: greedy growth, bin refinement.

    The answer is laid out (node, feature, bin, score, 2), with the bins of all features concatenated. With ``sides``
    it is laid out (node, 1 + feature, score, 2): first the sum of the node, `total_times` times, then for each feature
    the sum of its right side less that of its left. Such contrasts tell the sides apart with half of the noise's
    variance that two sums have (docs/privacy.md P1).

    Parameters
    ----------
    splits, features, sizes
        As in `LevelQuery`.
    sides : (n_nodes, sum(sizes)) uint8, or None
        0 (left) or 1 (right) per node and bin.
    """

    sides: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        """Refuse splits of more than one tree, and sides other than left and right."""
        LevelQuery.__post_init__(self)
        if self.sides is None:
            return
        settle(self, sides=_array("sides", self.sides, np.uint8, 2))
        if self.sides.shape != (self.splits.n_leaves, sum(self.sizes)) or (self.sides > 1).any():
            raise PlanError("sides of a query must hold one side, 0 or 1, per node and bin.")
        if not self.sizes:
            raise PlanError(
                "sides of a query must be of at least one feature: they hold the node's sum."
            )

    @property
    def cell_share(self) -> float | None:
        """Of contrasts, a node's share: each is over all of its rows."""
        return super().cell_share if self.sides is None else 1 / self.splits.n_leaves

    @property
    def total_times(self) -> int:
        """How often a node's sum is counted: √√m for m contrasts, at which the sum of a side has the least noise."""
        return max(1, round(len(self.features) ** 0.25))

    @property
    def n_blocks(self) -> int:
        """One node, and in it one bin of each feature used; of contrasts, one of each, and the node's sum."""
        of_total = 0 if self.sides is None else self.total_times**2
        return len(self.features) + of_total

    @property
    def n_cells(self) -> int:
        """Nodes times bins, or times contrasts and the node's sum."""
        per_node = sum(self.sizes) if self.sides is None else 1 + len(self.features)
        return self.splits.n_leaves * per_node


@dataclass(frozen=True, eq=False, kw_only=True)
class ChoiceQuery(LevelQuery):
    """For every node of one level, one candidate split, chosen with chance ∝ exp(ε · gain / range).

    The gain is ΣS²/(n + ridge) over both children, with S the sum of gradients and n of weights. It has no parent term,
    no threshold and no least child, so one row moves all candidates' within (max g - min g)² times its weight, whatever
    the other rows (docs/privacy.md P6). The controller computes the gains from the opened sums, which are laid out as
    in `NodeSumsQuery`, and lets out the choices alone: (n_nodes,) positions in the candidates.

    Parameters
    ----------
    splits, features, sizes
        As in `LevelQuery`.
    candidate_feature : (n_candidates,) uint16
        Position in ``features``.
    candidate_bin : (n_candidates,) uint8
    candidate_only : (n_candidates,) bool
        False: codes above the bin go right. True: only the bin itself goes right (one category against the others).
    ridge : float
        λ > 0, in natural units of weight.

    Notes
    -----
    Candidates are public or released. The gradient has the Hessian 1 on every row (`Gradient.counts`).
    """

    candidate_feature: NDArray[np.uint16]
    candidate_bin: NDArray[np.uint8]
    candidate_only: NDArray[np.bool_]
    ridge: float

    def __post_init__(self) -> None:
        """Refuse candidates that do not exist, and a ridge at which the gain of an empty child has no bound."""
        LevelQuery.__post_init__(self)
        feature = _array("candidate_feature", self.candidate_feature, np.uint16)
        bins = _array("candidate_bin", self.candidate_bin, np.uint8)
        only = _array("candidate_only", self.candidate_only, np.bool_)
        settle(self, candidate_feature=feature, candidate_bin=bins, candidate_only=only)
        fit = (
            len(feature) == len(bins) == len(only) > 0
            and (feature < len(self.sizes)).all()
            and (bins < np.array(self.sizes)[feature]).all()
        )
        if not fit:
            raise PlanError(
                "candidates of the query must be bins of its features, and at least one."
            )
        ridge = finite_float(self.ridge)
        if ridge is None or ridge <= 0:
            raise PlanError(
                f"ridge={self.ridge!r} must be a finite number above 0: the gain of an empty child is 0 / ridge."
            )
        settle(self, ridge=ridge)

    @property
    def n_cells(self) -> int:
        """Nodes times bins."""
        return self.splits.n_leaves * sum(self.sizes)

    @property
    def n_sums(self) -> int:
        """The opened histogram."""
        return self.n_cells * self.n_scores * 2

    @property
    def n_values(self) -> int:
        """One choice per node."""
        return self.splits.n_leaves


@dataclass(frozen=True, eq=False, kw_only=True)
class SharedChoiceQuery(LevelQuery):
    """For every group of nodes of one level, one split that its nodes share, by odds times exp(ε · u / range).

    u = Σ over the group's nodes v and the scores of |D_left| + |D_right|, where D is a child's sum of d = g - r_v·s for
    one score, with s the second component of the gradient: how far the children's gradients are from what the slopes
    r_v of their node explain. A row is in one child of each candidate, so it moves every u by at most the largest Σ|d|
    over the scores, times its weight (docs/privacy.md P6). The controller computes u from the opened sums, which are
    laid out as in `NodeSumsQuery`, with levels for bins, and lets out the choices alone: (n_groups,) positions in
    `candidates`.

    Parameters
    ----------
    splits, features, sizes
        As in `LevelQuery`.
    level_of_bin : tuple of ((n_bins,) uint8)
        Level of each bin, per feature used. A candidate sends the bins above a level right.
    n_levels : tuple of int
        Levels per feature used.
    slope : (n_nodes, n_scores) int64
        r_v in steps of 2**-SLOPE_BITS, at most 1 in absolute value; public or released.
    n_groups : int
        Nodes are divided into this many runs of equal length.
    odds : (n_candidates,) int64, or None
        How likely each candidate is before the rows are asked: whole numbers from 1 on, below 2**31 in all; public or
        released. None for candidates that are alike.
    """

    level_of_bin: tuple[NDArray[np.uint8], ...]
    n_levels: tuple[int, ...]
    slope: NDArray[np.int64]
    n_groups: int = 1
    odds: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Refuse candidates that do not exist, and slopes or groups that do not fit the nodes."""
        LevelQuery.__post_init__(self)
        maps, n_levels = _maps("level_of_bin", self.level_of_bin, self.n_levels)
        settle(self, level_of_bin=maps, n_levels=n_levels)
        if [len(part) for part in maps] != list(self.sizes) or max(n_levels, default=1) < 2:
            raise PlanError(
                "level_of_bin of a query must map the bins of each of its features, and one to two levels or more."
            )
        settle(self, slope=_array("slope", self.slope, np.int64, 2))
        n_nodes = self.splits.n_leaves
        fits, most = self.slope.shape == (n_nodes, self.n_scores), 1 << SLOPE_BITS
        # not by its absolute value: that of the least int64 is negative
        if not fits or (self.slope > most).any() or (self.slope < -most).any():
            raise PlanError(
                f"slope of a query must hold at most 2**{SLOPE_BITS} for each node and score."
            )
        settle(self, n_groups=_whole("n_groups", self.n_groups, 1, n_nodes))
        if n_nodes % self.n_groups:
            raise PlanError(f"n_groups={self.n_groups} of a query must divide {n_nodes} nodes.")
        if self.odds is not None:
            settle(self, odds=_array("odds", self.odds, np.int64))
            # one by one first, as a sum of larger ones may overflow
            each = (self.odds >= 1) & (self.odds < MOST_ODDS)
            fits = len(self.odds) == len(self.candidates[0]) and bool(each.all())
            if not fits or int(self.odds.sum()) >= MOST_ODDS:
                raise PlanError(
                    "odds of a query must be a whole number from 1 on for each of its candidates, below 2**31 in all."
                )

    @property
    def _cells(self) -> tuple[Any, ...]:
        return *super()._cells, self.n_levels, self.level_of_bin

    @property
    def candidates(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Position in ``features`` and level of every candidate: all levels of a feature but its highest."""
        cuts = np.array(self.n_levels) - 1
        feature = np.repeat(np.arange(len(cuts)), cuts)
        return feature, np.arange(len(feature)) - (np.cumsum(cuts) - cuts)[feature]

    @property
    def n_cells(self) -> int:
        """Nodes times levels."""
        return self.splits.n_leaves * sum(self.n_levels)

    @property
    def n_sums(self) -> int:
        """The opened histogram."""
        return self.n_cells * self.n_scores * 2

    @property
    def n_values(self) -> int:
        """One choice per group."""
        return self.n_groups


QUERIES = frozenset(
    (
        CountQuery,
        CellCountsQuery,
        BinCountsQuery,
        TargetSumQuery,
        ResidualQuery,
        MainSumsQuery,
        ReferenceSumsQuery,
        PairSumsQuery,
        TreeSumsQuery,
        ContributionSumsQuery,
        ProductSumsQuery,
        DirectionSumsQuery,
        NodeSumsQuery,
        ChoiceQuery,
        SharedChoiceQuery,
    )
)


def check_query(query: Any) -> None:
    """Refuse a query whose class is not one of `QUERIES`: a subclass could declare sizes that its sums do not have.

    Raises
    ------
    PlanError
    """
    if type(query) not in QUERIES:
        raise PlanError(f"{type(query).__name__} is a query without a stated sensitivity.")
