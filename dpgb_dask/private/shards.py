"""Shard: the rows of one process as uint8 codes, with scores that catch up to any released model."""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import FeatureBins, Model, PairTable, Trees
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import (
    MainSumsQuery,
    PairSumsQuery,
    Query,
    ResidualQuery,
    TreeSumsQuery,
)
from dpgb_dask.encode import encode, n_rows
from dpgb_dask.errors import PlanError
from dpgb_dask.kernels.gradient import logistic, softmax, squared
from dpgb_dask.kernels.histogram import add_cells, joint_sums, pack_pairs, pair_sums
from dpgb_dask.kernels.predict import add_pair_table, add_tables, add_trees, pack_tables
from dpgb_dask.kernels.route import tree_sums
from dpgb_dask.losses import LogisticGradient, SoftmaxGradient, SquaredGradient
from dpgb_dask.private.ingest import Rows
from dpgb_dask.private.quantize import max_weight_steps
from dpgb_dask.private.survey import Reading, read_labels, slice_block

PACKED_MAX = 2**31 - 1  # rows · max_abs of one packed accumulator (DESIGN §3)
GRADIENT_OF = {
    "binary": LogisticGradient,
    "multiclass": SoftmaxGradient,
    "numeric": SquaredGradient,
}
INLINE_VALUES = 1 << 20  # below this many codes a round costs less than waking the threads


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """Encoded rows. Private.

    Parameters
    ----------
    codes : (n_features, n) uint8, C-order
    label : (n,) uint8, or int32 target steps
    weight : (n,) int32 or None
        In steps; None when every row weighs one step.
    """

    codes: NDArray[np.uint8]
    label: NDArray[Any]
    weight: NDArray[np.int32] | None

    def __repr__(self) -> str:
        return "<piece>"

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return (
            self.codes.nbytes
            + self.label.nbytes
            + (0 if self.weight is None else self.weight.nbytes)
        )


def encode_rows(
    rows: Rows, reading: Reading, bins: Sequence[FeatureBins], block_rows: int
) -> tuple[Piece, ...]:
    """Return one chunk as pieces of at most ``block_rows`` rows; rows that weigh nothing are left out.

    Privacy
    -------
    Private side. Deterministic in the rows and the released bins; a row's value never raises or warns.
    """
    label, weight, keep = read_labels(rows, reading)
    n = n_rows(rows.x)
    n_pieces = -(-n // block_rows)
    pieces = []
    for k in range(n_pieces):
        part = slice(k * n // n_pieces, (k + 1) * n // n_pieces)
        codes, chosen = encode(slice_block(rows.x, part), reading.shape.schema, bins), keep[part]
        y, w = label[part], None if weight is None else weight[part]
        if not chosen.all():
            codes, y = np.ascontiguousarray(codes[:, chosen]), y[chosen]
            w = None if w is None else w[chosen]
        # copies: a view would keep the chunk's whole label and weight alive
        pieces.append(Piece(codes, y.copy(), None if w is None else w.copy()))
    return tuple(pieces)


def merge_pieces(pieces: Iterable[Piece], block_rows: int) -> list[Piece]:
    """Join neighbours shorter than half a block, so that small chunks cost no more kernel calls than large ones."""
    merged: list[Piece] = []
    group: list[Piece] = []
    total = 0

    def flush() -> None:
        if len(group) == 1:
            merged.append(group[0])
        elif group:
            weights = [p.weight for p in group if p.weight is not None]
            merged.append(
                Piece(
                    np.concatenate([p.codes for p in group], axis=1),
                    np.concatenate([p.label for p in group]),
                    np.concatenate(weights) if weights else None,
                )
            )
        group.clear()

    for piece in pieces:
        if not len(piece.label):
            continue
        if group and total + len(piece.label) > block_rows:
            flush()
            total = 0
        group.append(piece)
        total += len(piece.label)
        if total > block_rows // 2:
            flush()
            total = 0
    flush()
    return merged


class _Update:
    """What to add to scores at model ``old`` so that they are the scores of model ``new``."""

    def __init__(self, old: Model | None, new: Model) -> None:
        self.intercept = new.intercept if old is None else new.intercept - old.intercept
        self.tables = [
            None if not any(table is not None for table in part) else pack_tables(part)
            for part in (_table_deltas(old, new, k) for k in range(new.n_scores))
        ]
        self.pairs = _pair_deltas(() if old is None else old.pairs, new.pairs)
        start = 0 if old is None else old.trees.n_trees
        trees = new.trees
        self.trees = Trees(
            trees.feature[start:],
            trees.threshold[start:],
            np.ascontiguousarray(trees.value[:, start:]),
        )

    def add(self, codes: NDArray[np.uint8], score: NDArray[np.int32]) -> None:
        """Add to the scores of one block, (n_scores, n), in place; int32 wraps around, the same on every path."""
        for k, tables in enumerate(self.tables):
            if self.intercept[k]:
                score[k] += self.intercept[k]
            if tables is not None:
                add_tables(codes, tables, score[k])
        for pair in self.pairs:
            for table, column in zip(pair.table, score, strict=True):
                add_pair_table(codes[pair.i], codes[pair.j], pair.map_i, pair.map_j, table, column)
        if self.trees.n_trees:
            for value, column in zip(self.trees.value, score, strict=True):
                add_trees(codes, self.trees.feature, self.trees.threshold, value, column)


def _table_deltas(old: Model | None, new: Model, k: int) -> list[NDArray[np.int32] | None]:
    deltas: list[NDArray[np.int32] | None] = []
    for j, table in enumerate(new.tables):
        delta = table[:, k] if old is None else table[:, k] - old.tables[j][:, k]
        deltas.append(np.ascontiguousarray(delta) if delta.any() else None)
    return deltas


def _pair_deltas(old: tuple[PairTable, ...], new: tuple[PairTable, ...]) -> list[PairTable]:
    """Return tables to add, matching pairs by their features and maps; a pair that is gone is subtracted."""
    sums: dict[tuple[Any, ...], PairTable] = {}
    for sign, pairs in ((-1, old), (1, new)):
        for pair in pairs:
            key = (pair.i, pair.j, pair.map_i.tobytes(), pair.map_j.tobytes())
            table = pair.table if sign > 0 else -pair.table
            if key in sums:
                table = sums[key].table + table
            sums[key] = PairTable(pair.i, pair.j, pair.map_i, pair.map_j, table)
    return [pair for pair in sums.values() if pair.table.any()]


def same_bins(a: Sequence[FeatureBins], b: Sequence[FeatureBins]) -> bool:
    """Whether two sets of bins give the same codes."""

    def same(x: NDArray[Any] | None, y: NDArray[Any] | None) -> bool:
        return x is y or (x is not None and y is not None and np.array_equal(x, y))

    return a is b or (
        len(a) == len(b)
        and all(
            same(x.edges, y.edges) and same(x.cell_to_bin, y.cell_to_bin)
            for x, y in zip(a, b, strict=True)
        )
    )


def _grew(old: Model, new: Model) -> bool:
    """Whether scores at ``old`` can be brought to ``new`` by adding: its trees are the first of the new ones."""
    a, b = old.trees, new.trees
    n = a.n_trees
    return old.n_scores == new.n_scores and (
        n == 0
        or (
            n <= b.n_trees
            and a.depth == b.depth
            and np.array_equal(a.feature, b.feature[:n])
            and np.array_equal(a.threshold, b.threshold[:n])
            and np.array_equal(a.value, b.value[:, :n])
        )
    )


class Shard:
    """All rows of one process, in blocks; answers queries at the scores of any released model.

    Parameters
    ----------
    pieces : sequence of Piece
        Encoded rows; arrays are kept, not copied.
    shape : Shape
    bins : sequence of FeatureBins
        Released bins that the codes were made with.

    Notes
    -----
    The codes never change. The scores are a cache: a pure function of the model, brought up to date by adding what the
    model gained since the last query, or from nothing. So a shard that was lost, made again or moved answers the same
    sums. Pickling leaves the cache out.

    Privacy
    -------
    Private side. Answers are exact integer sums; they leave this side only inside `Raw`.
    """

    def __init__(self, pieces: Sequence[Piece], shape: Shape, bins: Sequence[FeatureBins]) -> None:
        self.pieces = list(pieces)
        self.shape = shape
        self.bins = tuple(bins)
        self._scores: list[NDArray[np.int32]] = []
        self._applied: Model | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Shard, (self.pieces, self.shape, self.bins)

    def __repr__(self) -> str:
        return "<shard>"

    def __sizeof__(self) -> int:
        rows = sum(len(p.label) for p in self.pieces)
        return sum(p.nbytes for p in self.pieces) + 4 * rows * self.shape.n_scores + 1024

    def answer(
        self, model: Model, query: Query, n_threads: int = 1, pool: ThreadPoolExecutor | None = None
    ) -> NDArray[np.int64]:
        """Bring scores up to ``model`` and return the sums of a query.

        Parameters
        ----------
        model : Model, released
        query : Query
        n_threads : int
            Blocks are dealt to this many threads of ``pool``; any number gives the same bits.

        Returns
        -------
        (query.n_values,) int64

        Raises
        ------
        PlanError
            If the model has other bins than the codes, or one row could overflow a packed sum.
        """
        with self._lock:
            return self._answer(model, query, n_threads, pool)

    def _answer(
        self, model: Model, query: Query, n_threads: int, pool: ThreadPoolExecutor | None
    ) -> NDArray[np.int64]:
        if not same_bins(model.bins, self.bins):
            raise PlanError("The model has other bins than the rows were encoded with.")
        ask = _Ask(query, self.shape)
        applied = self._applied
        if applied is None or not _grew(applied, model):
            applied = None
            self._scores = [np.zeros((model.n_scores, len(p.label)), np.int32) for p in self.pieces]
        update = None if applied is model else _Update(applied, model)
        self._applied = None  # if a thread fails half-way, the next answer starts from nothing

        def work(first: int, step: int) -> NDArray[np.int64]:
            sums = np.zeros(ask.n_sums, np.int64)
            for piece, score in zip(
                self.pieces[first::step], self._scores[first::step], strict=True
            ):
                if update is not None:
                    update.add(piece.codes, score)
                ask.add(piece, score, sums)
            return sums

        small = sum(p.codes.size for p in self.pieces) < INLINE_VALUES
        if pool is None or n_threads == 1 or small:
            total = work(0, 1)
        else:
            total = sum_arrays(list(pool.map(lambda t: work(t, n_threads), range(n_threads))))
        self._applied = model
        return ask.finish(total)


def sum_arrays(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Add int64 vectors; any order gives the same bits."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def _as_is(sums: NDArray[np.int64]) -> NDArray[np.int64]:
    return sums


class _Ask:
    """One query, prepared once for all blocks: how a block adds to the sums, and how the sums become the answer."""

    def __init__(self, query: Query, shape: Shape) -> None:
        self.query = query
        self.shape = shape
        self.finish: Callable[[NDArray[np.int64]], NDArray[np.int64]] = _as_is
        self.max_abs = 0
        self._per_score: Callable[[NDArray[np.uint8], NDArray[np.int64]], NDArray[np.int64]]
        match query:
            case ResidualQuery():
                if shape.kind != "numeric":
                    raise PlanError("A residual query needs a numeric target.")
                self.n_sums = query.n_values
                self.add = self._add_residuals
                return
            case MainSumsQuery():
                sizes = tuple(len(leaf) for leaf in query.leaf_of_bin)
                self._per_score = lambda codes, packed: joint_sums(
                    codes, packed, self.max_abs, sizes
                )
                n_cells = sum(sizes)
                self.finish = self._to_leaves
            case PairSumsQuery():
                pairs = pack_pairs(query.pairs)
                self._per_score = lambda codes, packed: pair_sums(
                    codes, pairs, packed, self.max_abs
                )
                n_cells = query.n_cells
            case TreeSumsQuery():
                feature, threshold = query.feature, query.threshold
                self._per_score = lambda codes, packed: tree_sums(
                    codes, feature, threshold, packed, self.max_abs
                ).reshape(-1, 2)
                n_cells = query.n_cells
            case _:
                raise PlanError(f"{type(query).__name__} is a query that shards do not know.")
        if query.n_scores != shape.n_scores:
            raise PlanError(
                f"n_scores={query.n_scores} of the query is not n_scores={shape.n_scores} of the target."
            )
        if not isinstance(query.gradient, GRADIENT_OF[shape.kind]):
            raise PlanError(f"{type(query.gradient).__name__} does not fit a {shape.kind} target.")
        self.gradient = query.gradient
        self.max_abs = query.gradient.max_abs * max_weight_steps(shape)
        if self.max_abs > PACKED_MAX:
            raise PlanError(
                f"max_weight={shape.max_weight} with weight_bits={shape.weight_bits} lets one row overflow a packed "
                "sum. Choose a smaller max_weight."
            )
        self.n_sums = n_cells * shape.n_scores * 2
        self.add = self._add_gradients

    def _add_residuals(
        self, piece: Piece, score: NDArray[np.int32], sums: NDArray[np.int64]
    ) -> None:
        assert isinstance(self.query, ResidualQuery)
        residual = np.abs(score[0].astype(np.int64) - piece.label)
        cell = np.searchsorted(self.query.edges, residual, side="left").astype(np.uint16)
        add_cells(cell, piece.weight, sums)

    def _add_gradients(
        self, piece: Piece, score: NDArray[np.int32], sums: NDArray[np.int64]
    ) -> None:
        n_scores = self.shape.n_scores
        packed = np.empty(score.shape, np.int64)
        label, weight, gradient = piece.label, piece.weight, self.gradient
        if isinstance(gradient, LogisticGradient):
            logistic(score[0], label, weight, gradient.table, packed[0])
        elif isinstance(gradient, SquaredGradient):
            squared(score[0], label, weight, gradient.clip_steps, gradient.hess_steps, packed[0])
        else:
            assert isinstance(gradient, SoftmaxGradient)
            softmax(score, label, weight, gradient.exp_table, packed)
        out = sums.reshape(-1, n_scores, 2)
        for k in range(n_scores):
            out[:, k] += self._per_score(piece.codes, packed[k])

    def _to_leaves(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Add the bins of each leaf."""
        query = self.query
        assert isinstance(query, MainSumsQuery)
        starts = np.concatenate(([0], np.cumsum(query.n_leaves)[:-1]))
        leaf = np.concatenate(
            [
                start + part.astype(np.int64)
                for start, part in zip(starts, query.leaf_of_bin, strict=True)
            ]
        )
        out = np.zeros((query.n_cells, query.n_scores, 2), np.int64)
        np.add.at(out, leaf, sums.reshape(-1, query.n_scores, 2))
        return out.ravel()
