"""The stage `Pairs`: interactions of two features (stage 3 of the default method)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.answers import sums
from dpgb_dask.components.auto import smoothing
from dpgb_dask.components.auto.levels import coarsen
from dpgb_dask.components.auto.noise import PairNoise, Screened, filters_of
from dpgb_dask.components.auto.posterior import (
    AutoFacts,
    PosteriorMemory,
    current_gradient,
    fresh_totals,
    learn,
    needs_of_blocks,
    observation,
    residual_query,
    round_price,
    set_intercept,
    split_of,
    tables_of,
    with_residual_scale,
    with_totals,
)
from dpgb_dask.components.auto.reference import TableSums, sums_of_tables
from dpgb_dask.components.auto.smoothing import Observation, TablePosterior
from dpgb_dask.components.auto.stepping import Step
from dpgb_dask.components.auto.strength import feature_strength
from dpgb_dask.contracts.model import PairTable
from dpgb_dask.contracts.monotone import order_of_cells, ordered_pair
from dpgb_dask.contracts.plan import Answer, Demand, Needs, Shape, Stage, State
from dpgb_dask.contracts.queries import PairCells, PairSumsQuery, Query, ResidualQuery
from dpgb_dask.frozen import pieces


def candidate_pairs(state: State) -> list[tuple[int, int]]:
    """Return all pairs that may interact; if there are too many, only those of the strongest main effects."""
    m, interactions = state.shape.n_features, state.shape.interactions
    most = state.fact(AutoFacts).most_candidates
    features = np.arange(m)
    if state.shape.n_pairs > most:
        n_kept = int((1 + np.sqrt(1 + 8 * most)) / 2)
        features = np.sort(np.argsort(-feature_strength(state), kind="stable")[:n_kept])
    may = None if interactions is None else interactions.may_pair()
    return [
        (int(i), int(j)) for i in features for j in features if j < i and (may is None or may[i, j])
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs(Stage):
    """Interactions of two features: one release screens the candidate tables, then rounds update all that were kept.

    Parameters
    ----------
    rounds : int
    damping : float
    """

    rounds: int = constants.PAIR_ROUNDS
    damping: float = constants.DAMPING

    gives = (Screened, PairNoise)
    uses = (AutoFacts,)
    keeps_monotonic = True
    keeps_interactions = True

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask."""
        return PairSumsQuery, ResidualQuery

    def declare(self, shape: Shape) -> Demand:
        """Declare between nothing (the gate is closed) and half of what the forest leaves."""
        return Demand(
            0.0, constants.PAIR_SHARES[-1][1], self.rounds + 1 + (shape.kind == "numeric")
        )

    def _rounds(self, state: State) -> int:
        """Return the number of rounds: a third where the data are rich, as trees follow."""
        rich = state.fact(AutoFacts).split.rich
        return max(self.rounds // constants.RICH_FEWER_ROUNDS, 1) if rich else self.rounds

    def most_queries(self, state: State) -> int:
        """Return the most queries that it asks: none if the gate is closed, or no two features make a pair."""
        split = split_of(state)
        if split is None:
            return self.declare(state.shape).n_queries
        closed = split.screen == 0 or state.shape.n_features < 2
        return 0 if closed else self._rounds(state) + 1 + (state.shape.kind == "numeric")

    def brief(self) -> Self:
        """Return the stage with two rounds, for tests."""
        return replace(self, rounds=2)

    def needs(self, shape: Shape, most_bins: Sequence[int]) -> Needs:
        """Return the memory of the posteriors of all candidate tables, and of their filters."""
        m, most = len(most_bins), max(most_bins)
        n_tables = min(m * (m - 1) // 2, constants.MOST_CANDIDATES)
        cells, finer = (min(n, most) ** 2 for n in (constants.PAIR_CELLS, constants.FINE_CELLS))
        sizes = n_tables * [cells] + min(n_tables, m) * [finer]
        return needs_of_blocks(shape.n_scores, sizes, self.rounds)

    def begin(self, state: State) -> State:
        """Build the candidate tables, if the gate is open."""
        found = state.fact(AutoFacts)
        split = found.split
        if split.screen == 0 or state.shape.n_features < 2:
            return replace(state, memory=None)
        assert state.model is not None
        totals = fresh_totals(found.totals)
        cells, blocks = _tables(state, candidate_pairs(state), constants.PAIR_CELLS, totals.hess)
        memory = PosteriorMemory(
            blocks=blocks,
            totals=totals,
            round=-1,
            price=split.pairs,
            cells=cells,
            rescaled=state.shape.kind != "numeric",
            step=Step(reach=constants.PAIR_STEP[state.shape.kind]),
        )
        return replace(state, memory=memory)

    def next_query(self, state: State) -> Query | None:
        """Ask for the residual scale, for all candidate tables, and then for the kept tables in each round."""
        memory: PosteriorMemory | None = state.memory
        rounds = self._rounds(state)
        if memory is None or not memory.blocks or memory.round >= rounds:
            return None
        if not memory.rescaled:
            return residual_query(state, "pairs scale")
        t = memory.round
        screening = t < 0
        return PairSumsQuery(
            label="pair screening" if screening else f"pairs {t + 1}/{rounds}",
            price=state.fact(AutoFacts).split.screen
            if screening
            else round_price(memory.price, t, rounds),
            weight_bits=state.shape.weight_bits,
            gradient=current_gradient(state),
            n_scores=state.shape.n_scores,
            pairs=memory.cells,
        )

    @staticmethod
    def _kept(memory: PosteriorMemory, most: int) -> list[int]:
        """Return the candidates with the largest evidence, if it is positive: the gate of each table."""
        evidence = np.array([_evidence(blocks) for blocks in memory.blocks])
        order = np.argsort(-evidence, kind="stable")[:most]
        return [int(i) for i in order if evidence[i] > 0]

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Keep the tables with positive evidence; in later rounds move them towards their posterior mean."""
        memory: PosteriorMemory = state.memory
        if isinstance(query, ResidualQuery):
            state = with_residual_scale(state, query, released)
            return replace(state, memory=replace(memory, rescaled=True))
        assert isinstance(query, PairSumsQuery)
        assert state.model is not None
        answer = sums(query, released)
        every_cell = tuple(np.arange(c.n_i * c.n_j, dtype=np.uint8) for c in memory.cells)
        screening = memory.round < 0
        n_rounds = 1 if screening else self._rounds(state)
        observed = observation(state, answer, max(memory.round, 0), n_rounds, pair=True)
        before = memory
        told = sums_of_tables(answer, [len(cells) for cells in every_cell])
        memory = learn(
            memory,
            every_cell,
            told,
            state,
            observed,
            damping=self.damping,
            move=not screening,
            ordered=_ordered(state, memory),
        )
        if screening:
            kept = self._kept(memory, state.shape.n_features)
            memory = _with_finer(memory, kept, before, told, state, observed)
            memory = replace(
                memory,
                blocks=tuple(memory.blocks[i] for i in kept),
                cells=tuple(memory.cells[i] for i in kept),
                totals=replace(fresh_totals(memory.totals), intercepts=before.totals.intercepts),
            )
            found = Screened(
                cells=query.pairs,
                hess=pieces(answer.hess, [len(cell) for cell in every_cell]),
                hess_sd=answer.hess_sd,
            )
            return replace(state, memory=memory).with_fact(found)
        pairs = tuple(
            PairTable(
                c.i, c.j, c.map_i, c.map_j, np.ascontiguousarray(table.T).reshape(-1, c.n_i, c.n_j)
            )
            for c, table in zip(memory.cells, tables_of(memory), strict=True)
        )
        model = replace(set_intercept(state.model, memory.totals), pairs=pairs)
        state = with_totals(replace(state, model=model, memory=memory), memory.totals)
        if memory.round < self._rounds(state):
            return state
        filters = filters_of(memory.blocks)
        return state.with_fact(PairNoise(filters=filters, dampings=memory.dampings))


def _tables(
    state: State, pairs: Iterable[tuple[int, int]], n: int, hess: Sequence[float]
) -> tuple[tuple[PairCells, ...], tuple[tuple[TablePosterior, ...], ...]]:
    """Return a table of each pair, with at most ``n`` groups of each feature, before anything is known of it."""
    assert state.model is not None
    bins = state.model.bins

    @cache
    def side(j: int) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.float64]]:
        """Return the group of each bin, and the mass and prior covariance of the groups."""
        level = coarsen(state.counts[j], bins[j].categorical, n)
        mass = np.bincount(level, state.counts[j]).astype(np.float64)
        ordered = not bins[j].categorical
        return level, mass, smoothing.prior(mass, ordered=ordered, missing_last=False)

    cells, blocks = [], []
    for i, j in pairs:
        (level_i, mass_i, prior_i), (level_j, mass_j, prior_j) = side(i), side(j)
        cells.append(PairCells(i, j, level_i, level_j, len(mass_i), len(mass_j)))
        # rows per cell as if the features were independent; the measured Hessian corrects it
        mass = np.outer(mass_i, mass_j).ravel() / state.n_rows
        root = smoothing.square_root(_kron(prior_i, prior_j))
        blocks.append(tuple(smoothing.new_block(mass, root, h) for h in hess))
    return tuple(cells), tuple(blocks)


def _evidence(blocks: tuple[TablePosterior, ...]) -> float:
    return sum(block.log_evidence for block in blocks)


def _with_finer(
    screened: PosteriorMemory,
    kept: Sequence[int],
    before: PosteriorMemory,
    told: TableSums,
    state: State,
    observed: Observation,
) -> PosteriorMemory:
    """Return the candidates with finer cells for the clear ones of those kept, which are told their sums again."""
    clear = [i for i in kept if _evidence(screened.blocks[i]) >= constants.FINE_EVIDENCE]
    if not clear:
        return screened
    coarse = [before.cells[i] for i in clear]
    pairs = [(cells.i, cells.j) for cells in coarse]
    fine, blocks = _tables(state, pairs, constants.FINE_CELLS, before.totals.hess)
    finer = learn(
        replace(before, cells=fine, blocks=blocks),
        tuple(_within(*both) for both in zip(fine, coarse, strict=True)),
        told.only(clear),
        state,
        observed,
        damping=0.0,
        move=False,
    )
    every_cell, every_block = list(screened.cells), list(screened.blocks)
    for i, own, row in zip(clear, fine, finer.blocks, strict=True):
        every_cell[i], every_block[i] = own, row
    return replace(screened, cells=tuple(every_cell), blocks=tuple(every_block))


def _within(fine: PairCells, coarse: PairCells) -> NDArray[np.uint8]:
    """Return which coarse cell each fine one lies in, as `coarsen` to twice as many groups divides those of fewer."""
    one, other = (np.empty(n, np.uint8) for n in (fine.n_i, fine.n_j))
    one[fine.map_i], other[fine.map_j] = coarse.map_i, coarse.map_j
    return (one[:, None] * np.uint8(coarse.n_j) + other).ravel()


def _kron(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Kronecker product of two square matrices, as `numpy.kron` does, in a fifth of its time."""
    n = len(a) * len(b)
    return (a[:, None, :, None] * b[:, None, :]).reshape(n, n)


def _ordered(
    state: State, memory: PosteriorMemory
) -> Callable[[int, NDArray[np.float64]], NDArray[np.float64]] | None:
    """Return what makes a table monotone in its constrained features; None if no feature is constrained."""
    directions = state.shape.directions
    if directions is None:
        return None

    def ordered(k: int, f: NDArray[np.float64]) -> NDArray[np.float64]:
        c = memory.cells[k]
        rows, columns = (
            order_of_cells(cell_of_bin, int(directions[j])) if directions[j] else None
            for j, cell_of_bin in ((c.i, c.map_i), (c.j, c.map_j))
        )
        if rows is None and columns is None:
            return f
        shape = (c.n_i, c.n_j)
        mass = memory.blocks[k][0].mass.reshape(shape)
        return ordered_pair(f.reshape(shape), mass, rows, columns).ravel()

    return ordered
