"""Shard: the rows of one process as uint8 codes, with scores that can be updated to any released model."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import FeatureBins, Model, Splits, TreeEnsemble, grew, same_bins
from dpgb_dask.contracts.plan import Shape
from dpgb_dask.contracts.queries import (
    SHRINK_BITS,
    BinCountsQuery,
    ContributionSumsQuery,
    DirectionSumsQuery,
    GradientQuery,
    LevelQuery,
    MainSumsQuery,
    PairSumsQuery,
    ProductSumsQuery,
    Query,
    ReferenceSumsQuery,
    ResidualQuery,
    RowDraw,
    SharedChoiceQuery,
    TreeSumsQuery,
    check_query,
)
from dpgb_dask.contracts.scores import added_by
from dpgb_dask.errors import PlanError
from dpgb_dask.frozen import frozen
from dpgb_dask.kernels import gradient as gradient_kernels
from dpgb_dask.kernels.bin import cell_column
from dpgb_dask.kernels.directions import add_directions, add_products
from dpgb_dask.kernels.histogram import add_cells, joint_sums, maps_pay, padded
from dpgb_dask.kernels.pair_tables import pack_pairs
from dpgb_dask.kernels.route import only_feature, sums_of_leaves, tree_sums
from dpgb_dask.kernels.shrink import shrink
from dpgb_dask.kernels.table_rounds import table_round
from dpgb_dask.losses import Gradient
from dpgb_dask.private.answering.draws import Draws
from dpgb_dask.private.answering.levels import KeptLevel, LevelCells, LevelSums
from dpgb_dask.private.answering.passes import (
    KEPT_BYTES,
    JointCells,
    Leaves,
    RowBlock,
    Scores,
    Threads,
    Update,
    only_change,
    open_pass,
    split_features,
)
from dpgb_dask.private.keeping.store import Kept, LostPiece, StoredPiece, copies_fit
from dpgb_dask.private.reading.rows import Piece
from dpgb_dask.private.sensitivity import max_weight_steps

Work = Callable[[Iterator[RowBlock]], Any]
Columns = Callable[[], Iterable[int]]
Sums = NDArray[np.int64]

PACKED_MAX = 2**31 - 1  # rows · max_abs of one packed accumulator (docs/design.md §3)
INLINE_VALUES = 1 << 20  # below this many codes a round costs less than waking the threads


class Shard:
    """All rows of one process, in blocks; answers queries given any released model.

    Parameters
    ----------
    pieces : sequence of Kept
        Encoded rows; their arrays are not copied.
    shape : Shape
    bins : sequence of FeatureBins
        Released bins that the codes were made with.
    rows_key : bytes or None
        16 secret bytes, for draws of rows; None if the plan draws none.

    Raises
    ------
    ScratchError
        If scores belong on scratch and there is no room for them.

    Notes
    -----
    The codes never change. Everything else is a cache, computed from the codes and the model alone: the scores, which
    are updated by adding the difference to the model of the last query, or computed from 0; the last draw of rows; the
    sums of a tree's last level; and the leaves, joint cells or levels that were found for the last queries. Therefore a
    shard that was lost and made again, or moved, answers with the same sums. Pickling leaves the caches out. Rows on
    scratch cannot be pickled: their shard then has to be made again.

    Attributes
    ----------
    waited : float
        Seconds that threads have waited for scratch so far, summed over threads. Private.

    Privacy
    -------
    Private side. Answers are exact integer sums; they leave this side only inside `Raw`.
    """

    def __init__(
        self,
        pieces: Sequence[Kept],
        shape: Shape,
        bins: Sequence[FeatureBins],
        rows_key: bytes | None = None,
    ) -> None:
        self.pieces = list(pieces)
        self.shape = shape
        self.bins = tuple(bins)
        self.waited = 0.0
        self._rows_key = rows_key
        self._scores = Scores(self.pieces, shape.n_scores)
        self._applied: Model | None = None
        self._draws = Draws(self.pieces, rows_key)
        self._level: KeptLevel | None = None  # at the scores of the last query
        self._leaves: Leaves | None = None  # in the trees of the last query
        self._joint: JointCells | None = None  # in the pairs of the last query
        self._cells: LevelCells | None = None  # of the last choices
        self._lock = threading.Lock()
        self._n_bins = frozen(np.array([own.n_bins for own in self.bins], np.int64))
        self._inline = sum(len(p) * p.n_features for p in self.pieces) < INLINE_VALUES

    @property
    def on_scratch(self) -> bool:
        """Whether some rows are on this process's scratch, so that the shard cannot be sent."""
        return any(isinstance(p, StoredPiece) and p.in_memory is None for p in self.pieces)

    def __reduce__(self) -> tuple[Any, ...]:
        pieces: list[Kept] = [LostPiece(1)] if self.on_scratch else self.pieces
        return Shard, (pieces, self.shape, self.bins, self._rows_key)

    def __repr__(self) -> str:
        return "<shard>"

    def __sizeof__(self) -> int:
        rows = sum(len(p) for p in self.pieces)
        per_row = 4 * self.shape.n_scores + (0 if self._rows_key is None else 4)
        return sum(p.nbytes for p in self.pieces) + per_row * rows + 1024

    def answer(
        self, model: Model, query: Query, n_threads: int = 1, pool: ThreadPoolExecutor | None = None
    ) -> NDArray[np.int64]:
        """Update the scores to ``model`` and return the sums of a query.

        Parameters
        ----------
        model : Model, released
        query : Query
        n_threads : int
            Number of threads of ``pool`` that share the blocks; any number gives the same bits.
        pool : ThreadPoolExecutor or None
            None to work in the caller's thread.

        Returns
        -------
        (query.n_sums,) int64

        Raises
        ------
        PlanError
            If the bins of the model are not those of the codes, the query does not fit the target or the bins, or one
            row could overflow a packed sum.
        LostCodesError
            If rows on scratch are damaged, or are on another process's scratch: the shard has to be made again.
        ScratchError
            If scores on scratch cannot be written.
        """
        with self._lock:
            return self._answer(model, query, Threads(None if self._inline else pool, n_threads))

    def _answer(self, model: Model, query: Query, threads: Threads) -> NDArray[np.int64]:
        if not same_bins(model.bins, self.bins):
            raise PlanError("The model has other bins than the rows were encoded with.")
        for piece in self.pieces:
            if isinstance(piece, LostPiece):
                piece.load()
        if isinstance(query, TreeSumsQuery):
            found = self._table_round(model, query)
            if found is not None:
                return found
        ask = _Ask(query, self.shape, self.bins, model)
        draw = query.rows if isinstance(query, GradientQuery) else None
        passes = _Passes(self.pieces, self._scores, self._draws, self._catch_up(model), threads)
        self._lend(ask, drawn=draw is not None)
        if draw is not None:
            passes.choose(draw, range(len(self.bins)))
        deal = partial(passes.deal, ask.columns)
        if ask.levels is not None:
            level = self._level = ask.levels.level(deal, self._level)
            sums = ask.levels.answer(level)
        else:
            known = self._from_level(query)
            if known is None:
                self._cells = None
            sums = ask.finish(deal(ask.sums)) if known is None else known
        self.waited += passes.waited
        self._leaves, self._joint = ask.leaves, ask.joint
        self._applied = model
        return sums

    def _lend(self, ask: "_Ask", *, drawn: bool) -> None:
        """Let a query keep what it finds of the rows, if there is room, and take what the last one kept."""
        if ask.leaves is not None and not drawn:
            per_row = ask.leaves.per_row
            ask.leaves.keeps = per_row <= KEPT_BYTES and self._keeps(per_row)
        ask.joint = self._joint_for(ask.joint, drawn=drawn)
        self._leaves = self._joint = None  # an update that takes from them frees what it took
        if ask.levels is not None and isinstance(ask.query, SharedChoiceQuery):
            ask.levels.cells = self._cells_for(ask.query)

    def _table_round(self, model: Model, query: TreeSumsQuery) -> Sums | None:
        """Answer in one loop over rows if one table changed, and the query's trees are of one feature; else do nothing.

        Its sums are those of `_Ask` after `Update`, which take several times as long to prepare.
        """
        lookup, applied = gradient_kernels.score_table(query.gradient), self._applied
        if not self._inline or query.rows is not None or applied is None or lookup is None:
            return None
        changed = only_change(applied, model)
        pieces = [piece for kept in self.pieces if (piece := _unweighted(kept)) is not None]
        known = self._scores.in_memory and len(pieces) == len(self.pieces)
        if changed is None or not known:
            return None
        check_query(query)
        _checked_bound(query, self.shape)
        change = model.tables[changed] - applied.tables[changed]
        out = np.zeros((query.splits.n_trees, query.splits.n_leaves, 2), np.int64)
        self._applied = None  # as in `_catch_up`
        for k, piece in enumerate(pieces):
            score = self._scores.memory(k)[0]
            if not table_round(
                piece.codes, piece.label, changed, change, lookup, self._n_bins, query.splits.arrays, score, out
            ):  # fmt: skip
                self._applied = applied
                return None
        self._level = self._cells = self._leaves = self._joint = None
        self._applied = model
        return out.reshape(-1)

    def _from_level(self, query: Query) -> NDArray[np.int64] | None:
        """Return an answer that follows from the sums of the last level, without a pass; None if there is none."""
        if self._level is None or not isinstance(query, TreeSumsQuery):
            return None
        return self._level.children(query)

    def _cells_for(self, query: SharedChoiceQuery) -> LevelCells:
        """Return the cells that earlier choices found, or an object that finds them."""
        if self._cells is None or not self._cells.serves(query):
            self._cells = LevelCells(query)
            self._cells.keeps = query.rows is None and self._keeps(self._cells.per_row)
        return self._cells

    def _joint_for(self, asked: JointCells | None, *, drawn: bool) -> JointCells | None:
        """Return the joint cells that the last query kept, if they serve; else these, and say whether they are kept."""
        last = self._joint
        if asked is not None and not drawn:
            if last is not None and last.keeps and last.serves(asked.pairs):
                return last
            most = max(KEPT_BYTES, len(self.bins))  # the codes take a byte of each feature
            asked.keeps = asked.per_row <= most and self._keeps(asked.per_row)
        if last is not None:
            last.keeps = False
        return asked

    def _keeps(self, per_row: int) -> bool:
        """Whether so many bytes made of every row may be kept."""
        size = per_row * sum(map(len, self.pieces))
        return self._scores.in_memory and copies_fit(self.pieces, size)

    def _catch_up(self, model: Model) -> Update | None:
        """Return what to add to all scores to update them to ``model``; None if they are up to date."""
        # if something fails before the pass is through, the next answer computes all scores again
        applied, self._applied = self._applied, None
        if applied is None or not grew(applied, model):
            applied = None
            self._scores.start_over()
        update = None if applied is model else Update(applied, model, self._leaves, self._joint)
        if update is None or (applied is not None and update.is_empty):
            return None
        self._level = None
        return update


class _Passes:
    """Passes over the rows of a shard that one query is asked of; the first over all blocks also updates the scores."""

    def __init__(
        self,
        pieces: Sequence[Kept],
        scores: Scores,
        draws: Draws,
        update: Update | None,
        threads: Threads,
    ) -> None:
        self.waited = 0.0
        self._pieces = pieces
        self._scores = scores
        self._draws = draws
        self._update = update
        self._threads = threads
        self._of = "all"

    def choose(self, draw: RowDraw, features: Iterable[int]) -> None:
        """Ask a draw of rows alone from here on; ``features`` are all that there are."""
        of_all = partial(self._over_all, lambda: features)
        gathered = self._draws.choose(draw, self._scores, self._threads, of_all)
        self._of = "gathered" if gathered else "masked"
        if gathered and self._update is not None:
            self._over_all(tuple, _skip)

    def deal(self, columns: Columns, work: Work) -> Sums:
        """Return the sums of ``work``, which reads some columns."""
        if self._of == "all":
            parts = self._over_all(columns, work)
        elif self._of == "masked":
            parts = self._over_all(
                columns, lambda blocks: work(self._draws.masked(blocks)), identity=True
            )
        else:
            n = self._draws.n_gathered
            turns = iter(range(n))
            parts = self._threads.run(lambda: work(self._draws.gathered(turns, self._scores)), n)
        return sum_arrays(parts)

    def _over_all(self, columns: Columns, work: Work, *, identity: bool = False) -> list[Any]:
        """Make one pass over all blocks."""
        update, self._update = self._update, None

        def needed() -> list[int]:
            return sorted({*columns(), *(() if update is None else update.columns)})

        blocks = open_pass(
            self._pieces, self._scores, update, needed, self._threads.n, identity=identity
        )
        with blocks:
            parts = self._threads.run(lambda: work(iter(blocks)), len(self._pieces))
        self.waited += blocks.waited
        return parts


def _skip(blocks: Iterator[RowBlock]) -> None:
    for _ in blocks:
        pass


def sum_arrays(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the sum of int64 arrays; any order gives the same bits."""
    if len(parts) == 1:
        return parts[0]
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def _unweighted(kept: Kept) -> Piece | None:
    """Return a piece that is in memory, and whose rows weigh one step each; else None."""
    piece = kept.in_memory if isinstance(kept, StoredPiece) else kept
    return piece if isinstance(piece, Piece) and piece.weight is None else None


def _as_is(sums: NDArray[np.int64]) -> NDArray[np.int64]:
    return sums


class _Ask:
    """One query, prepared once for all blocks: adds each block to the sums, and turns the sums into the answer.

    Nothing that it holds refers to it, so that it is freed with its round, not by the garbage collector later.
    """

    def __init__(
        self, query: Query, shape: Shape, bins: Sequence[FeatureBins], model: Model
    ) -> None:
        self.query = query
        self.shape = shape
        self.finish: Callable[[NDArray[np.int64]], NDArray[np.int64]] = _as_is
        self.levels: LevelSums | None = None
        self.leaves: Leaves | None = None
        self.joint: JointCells | None = None
        self._trees: TreeEnsemble | None = None
        self._sums_of: Callable[[NDArray[np.uint8], NDArray[np.int64]], NDArray[np.int64]]
        self._shrink: Callable[[NDArray[np.uint8], NDArray[np.int64]], None] | None = None
        if not isinstance(query, GradientQuery):
            self._n_sums = query.n_values
            _check_counts(query, shape, bins)
            return
        check_query(query)
        self.gradient = query.gradient
        max_abs = self._max_abs = _checked_bound(query, shape)
        n_cells = query.n_cells
        match query:
            case MainSumsQuery():
                _check_bins("leaf_of_bin", list(enumerate(query.leaf_of_bin)), bins)
                if len(query.leaf_of_bin) != len(bins):
                    raise PlanError("leaf_of_bin of the query must have one map for each feature.")
                sizes, maps = tuple(map(len, query.leaf_of_bin)), None
                if maps_pay(query.n_leaves, sizes):
                    sizes, maps = query.n_leaves, np.stack([*map(padded, query.leaf_of_bin)])
                self._sums_of = lambda codes, packed: joint_sums(
                    codes, packed, max_abs, sizes, maps
                )
                n_cells = sum(sizes)
                self.finish = partial(_to_leaves, query, by_bin=maps is None)
                if isinstance(query, ReferenceSumsQuery):
                    self._shrink = _shrinking(query)
            case PairSumsQuery():
                both = [m for p in query.pairs for m in ((p.i, p.map_i), (p.j, p.map_j))]
                _check_bins("pairs", both, bins)
                self.joint = JointCells(pack_pairs(query.pairs))
            case TreeSumsQuery():
                _check_walk(query.splits, bins)
                n_cells = self._walking(query, bins, max_abs)
            case ContributionSumsQuery():
                self._trees = _trees_of(query, model)
                self._sums_of = lambda cells, packed: joint_sums(
                    cells, packed, max_abs, (query.n_cells,)
                )
            case DirectionSumsQuery():
                _check_values(query, bins)
            case LevelQuery():
                _check_level(query, bins)
                self.levels = LevelSums(query, partial(_packed, query.gradient), max_abs)
            case _:
                raise PlanError(f"{type(query).__name__} is a query that shards do not know.")
        self._n_sums = n_cells * shape.n_scores * 2

    def _walking(self, query: TreeSumsQuery, bins: Sequence[FeatureBins], max_abs: int) -> int:
        """Set what sums a block per leaf, or per bin if leaves are sums of bins; return how many there are."""
        s = query.splits  # copies of the query's own, in C's order
        j = only_feature(s.feature, s.threshold, s.mask_of)
        if j is not None:
            row, size = slice(j, j + 1), bins[j].n_bins
            self._sums_of = lambda codes, packed: joint_sums(codes[row], packed, max_abs, (size,))
            self.finish = lambda sums: sums_of_leaves(
                sums.reshape(-1, query.n_scores, 2), s.threshold, s.mask_of, s.masks
            ).ravel()
            return size
        if Leaves.can_hold(s):
            self.leaves = Leaves(s)
            sizes = (s.n_leaves,) * s.n_trees
            self._sums_of = lambda leaf, packed: joint_sums(leaf, packed, max_abs, sizes)
        else:
            self._sums_of = lambda codes, packed: tree_sums(codes, *s.arrays, packed, max_abs)
        return query.n_cells

    def columns(self) -> Iterable[int]:
        """Return the features whose codes the query reads."""
        query = self.query
        match query:
            case MainSumsQuery():
                return range(len(query.n_leaves))
            case PairSumsQuery():
                return [j for pair in query.pairs for j in (pair.i, pair.j)]
            case TreeSumsQuery():
                return split_features(query.splits)
            case LevelQuery():
                return [*query.features.tolist(), *split_features(query.splits)]
            case BinCountsQuery() | ProductSumsQuery() | DirectionSumsQuery():
                return query.features.tolist()
            case _:
                return () if self._trees is None else split_features(self._trees.splits)

    def sums(self, blocks: Iterator[RowBlock]) -> NDArray[np.int64]:
        """Return the sums over some blocks."""
        sums = np.zeros(self._n_sums, np.int64)
        for block in blocks:
            match self.query:
                case ResidualQuery():
                    self._add_residuals(block, sums)
                case BinCountsQuery():
                    self._add_counts(block, sums)
                case ContributionSumsQuery():
                    self._add_by_contribution(block, sums)
                case ProductSumsQuery():
                    self._add_products(block, sums)
                case DirectionSumsQuery():
                    self._add_directions(block, sums)
                case _:
                    self._add_gradients(block, sums)
        return sums

    def _add_residuals(self, block: RowBlock, sums: NDArray[np.int64]) -> None:
        _, piece, score = block
        assert isinstance(self.query, ResidualQuery)
        residual = piece.label - score[0].astype(np.int64)
        add_cells(_cells(self.query.edges, residual), piece.weight, sums)

    def _add_counts(self, block: RowBlock, sums: NDArray[np.int64]) -> None:
        _, piece, _ = block
        assert isinstance(self.query, BinCountsQuery)
        ends = np.cumsum(self.query.sizes)
        for j, size, end in zip(self.query.features, self.query.sizes, ends, strict=True):
            add_cells(piece.codes[j], piece.weight, sums[end - size : end])

    def _add_gradients(self, block: RowBlock, sums: NDArray[np.int64]) -> None:
        number, piece, score = block
        packed = self._pack(piece, score)
        if self.joint is not None:
            part = self.joint.sums(number, piece.codes, packed, self._max_abs)
        else:
            codes = piece.codes if self.leaves is None else self.leaves.find(number, piece.codes)
            part = self._sums_of(codes, packed)
        sums += part.reshape(-1)

    def _add_by_contribution(self, block: RowBlock, sums: NDArray[np.int64]) -> None:
        _, piece, score = block
        query, trees = self.query, self._trees
        assert isinstance(query, ContributionSumsQuery)
        assert trees is not None
        added = added_by(trees, piece.codes)
        packed = self._pack(piece, score)
        own = sums.reshape(query.n_cells, query.n_scores, 2)
        for k, edges in enumerate(query.edges):
            cell = _cells(edges, added[k]).astype(np.uint8)
            own[:, k : k + 1] += self._sums_of(cell[None], packed[k : k + 1])

    def _add_products(self, block: RowBlock, sums: NDArray[np.int64]) -> None:
        _, piece, _ = block
        query = self.query
        assert isinstance(query, ProductSumsQuery)
        feature = query.features.astype(np.int64)
        add_products(piece.codes, feature, query.values, query.norm, piece.weight, sums)

    def _add_directions(self, block: RowBlock, sums: NDArray[np.int64]) -> None:
        _, piece, score = block
        query = self.query
        assert isinstance(query, DirectionSumsQuery)
        add_directions(
            piece.codes, query.features.astype(np.int64), query.values, query.matrix, query.norm,
            self._pack(piece, score), sums.reshape(query.n_cells, query.n_scores, 2),
        )  # fmt: skip

    def _pack(self, piece: Piece, score: NDArray[np.int32]) -> NDArray[np.int64]:
        packed = _packed(self.gradient, piece, score)
        if self._shrink is not None:
            self._shrink(piece.codes, packed)
        return packed


def _cells(edges: NDArray[np.integer[Any]], values: NDArray[np.integer[Any]]) -> NDArray[np.uint16]:
    """Return the number of edges below each value; float64 holds them all. A tenth of `numpy.searchsorted`'s time."""
    cells = np.empty(len(values), np.uint16)
    cell_column(values.astype(np.float64), edges.astype(np.float64), cells)
    return cells


def _packed(gradient: Gradient, piece: Piece, score: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return each row's (g, h), packed, (n_scores, n)."""
    packed = np.empty(score.shape, np.int64)
    gradient_kernels.write(gradient, score, piece.label, piece.weight, packed)
    return packed


def _to_leaves(query: MainSumsQuery, sums: NDArray[np.int64], *, by_bin: bool) -> NDArray[np.int64]:
    """Return sums of leaves, of a `ReferenceSumsQuery` the totals and the leaves not kept back; first add up bins."""
    out = sums.reshape(-1, query.n_scores, 2)
    if by_bin:
        starts = np.concatenate(([0], np.cumsum(query.n_leaves)[:-1]))
        leaf = np.concatenate(
            [
                start + part.astype(np.int64)
                for start, part in zip(starts, query.leaf_of_bin, strict=True)
            ]
        )
        out = np.zeros((sum(query.n_leaves), query.n_scores, 2), np.int64)
        np.add.at(out, leaf, sums.reshape(-1, query.n_scores, 2))
    if isinstance(query, ReferenceSumsQuery):
        # every row is in one leaf of the first feature
        total = out[: query.n_leaves[0]].sum(0, keepdims=True)
        out = np.concatenate([total, out[query.released]])
    return out.ravel()


def _shrinking(query: ReferenceSumsQuery) -> Callable[[NDArray[np.uint8], NDArray[np.int64]], None]:
    """Return what gives the rows of a block their weights.

    Privacy
    -------
    Private side. A row's count is the number of blocks that it falls into: the totals, the features that keep no leaf
    back, and, of the others, those in whose released leaves it is (docs/privacy.md P14). The sums read its codes in the
    same way: a code that a feature does not have counts as its last.
    """
    feature = np.array([j for j, leaf in enumerate(query.omitted) if leaf >= 0], np.int64)
    low, high = np.ones(len(feature), np.uint8), np.zeros(len(feature), np.uint8)  # no code
    for k, j in enumerate(feature):
        codes = np.flatnonzero(padded(query.leaf_of_bin[j]) == query.omitted[j])
        if len(codes):
            low[k], high[k] = codes[0], codes[-1]
    first = 1 + len(query.omitted) - len(feature)
    weight = query.shrink
    return lambda codes, packed: shrink(
        codes, feature, low, high, first, weight, SHRINK_BITS, packed
    )


def _check_counts(query: Query, shape: Shape, bins: Sequence[FeatureBins]) -> None:
    """Raise unless a query without gradients fits the target or the bins."""
    match query:
        case ResidualQuery():
            if shape.kind != "numeric":
                raise PlanError("A residual query needs a numeric target.")
        case BinCountsQuery():
            _check_sizes(query, bins)
        case ProductSumsQuery():
            _check_values(query, bins)
        case _:
            raise PlanError(f"{type(query).__name__} is a query that shards do not know.")


def _checked_bound(query: GradientQuery, shape: Shape) -> int:
    """Return the bound on |g| and h of one row, weights included.

    Raises
    ------
    PlanError
        If the gradient does not fit the target, or one row could overflow a packed sum.
    """
    if query.n_scores != shape.n_scores:
        raise PlanError(
            f"n_scores={query.n_scores} of the query is not n_scores={shape.n_scores} of the target."
        )
    if shape.kind not in query.gradient.kinds:
        raise PlanError(f"{type(query.gradient).__name__} does not fit a {shape.kind} target.")
    max_abs = query.gradient.max_abs * max_weight_steps(shape)
    if max_abs > PACKED_MAX:
        raise PlanError(
            f"max_weight={shape.max_weight} with weight_bits={shape.weight_bits} lets one row overflow a packed sum. "
            "Choose a smaller max_weight."
        )
    return max_abs


def _trees_of(query: ContributionSumsQuery, model: Model) -> TreeEnsemble:
    """Return the trees of the model that a query names.

    Raises
    ------
    PlanError
        If the model has no such trees.
    """
    if query.trees[-1] >= model.trees.n_trees:
        raise PlanError(
            f"trees of the query go up to {query.trees[-1]}, but the model has {model.trees.n_trees}."
        )
    return model.trees.only(query.trees)


def _check_level(query: LevelQuery, bins: Sequence[FeatureBins]) -> None:
    """Raise if a level's query does not fit the bins: kernels do not check the sizes again."""
    _check_walk(query.splits, bins)
    _check_sizes(query, bins)


def _check_sizes(query: LevelQuery | BinCountsQuery, bins: Sequence[FeatureBins]) -> None:
    """Raise unless the features of a query exist and have as many bins as it says."""
    _check_features(query.features, query.sizes, bins)


def _check_values(
    query: ProductSumsQuery | DirectionSumsQuery, bins: Sequence[FeatureBins]
) -> None:
    """Raise unless the features of a query exist, and each of their bins has a value."""
    _check_features(query.features, [len(part) for part in query.values], bins)


def _check_features(
    features: NDArray[np.uint16], sizes: Sequence[int], bins: Sequence[FeatureBins]
) -> None:
    known = [b.n_bins for b in bins]
    if any(f >= len(known) for f in features.tolist()) or list(sizes) != [
        known[f] for f in features.tolist()
    ]:
        raise PlanError("features and sizes of the query are not those of the model's bins.")


def _check_walk(splits: Splits, bins: Sequence[FeatureBins]) -> None:
    """Raise if trees split by a feature that does not exist."""
    if splits.feature.size and np.maximum.reduce(splits.feature, axis=None) >= len(bins):
        raise PlanError("splits of the query name a feature that the rows do not have.")


def _check_bins(
    name: str, maps: Sequence[tuple[int, NDArray[np.uint8]]], bins: Sequence[FeatureBins]
) -> None:
    """Raise unless each map is for a feature that exists, and has a cell for each of the feature's bins."""
    if any(j >= len(bins) or len(cells) != bins[j].n_bins for j, cells in maps):
        raise PlanError(f"{name} of the query are not those of the model's bins.")
