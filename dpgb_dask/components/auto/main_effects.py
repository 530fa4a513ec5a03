"""The stage `MainEffects`: one shape function per feature (stage 2 of the default method)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.answers import sums
from dpgb_dask.components.auto import schedules, smoothing
from dpgb_dask.components.auto.noise import LinearTables, MainNoise, filters_of
from dpgb_dask.components.auto.posterior import (
    AutoFacts,
    PosteriorMemory,
    current_gradient,
    large_step,
    learn,
    needs_of_blocks,
    observation,
    residual_query,
    round_price,
    sd_of_run,
    set_intercept,
    tables_of,
    with_residual_scale,
    with_totals,
)
from dpgb_dask.components.auto.reference import sums_of_leaves, with_reference
from dpgb_dask.components.options import check_rate, check_whole
from dpgb_dask.contracts.monotone import ordered_table
from dpgb_dask.contracts.plan import Answer, Demand, Needs, Shape, Stage, State
from dpgb_dask.contracts.queries import MainSumsQuery, Query, ReferenceSumsQuery, ResidualQuery


def possible_cuts(mass: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bins after which partitions of a numeric feature may cut, given the rows per bin.

    With many bins these are some that divide them evenly, and those beside bins of many rows, such as round values. The
    last is among them: what follows are the missing values.
    """
    n_cuts = len(mass) - 1
    if n_cuts <= constants.MOST_CUTS:
        return np.arange(n_cuts)
    even = np.rint(np.linspace(0, n_cuts - 1, constants.MOST_CUTS)).astype(np.int64)
    rows = np.maximum(mass[:-1], mass[1:])
    return np.union1d(even, np.flatnonzero(rows > constants.HEAVY_BIN * mass.mean()))


def random_partition(
    n_bins: int, cuts: NDArray[np.int64] | None, k: int, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Return the leaf of each bin: k ordered random intervals, or one leaf per bin where nothing can be cut.

    Parameters
    ----------
    n_bins : int
    cuts : (n_cuts,) int64 or None
        Bins after which it may cut; None for a categorical feature.
    k : int
    rng : numpy.random.Generator
    """
    if cuts is None or n_bins <= k:
        return np.arange(n_bins, dtype=np.uint8)
    begins = np.zeros(n_bins, np.uint8)
    begins[rng.choice(cuts, k - 1, replace=False) + 1] = 1
    return np.cumsum(begins, dtype=np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class MainEffects(Stage):
    """One shape function per feature: each round releases sums over random partitions of all features and updates them.

    Parameters
    ----------
    rounds : int, optional
        By default 20, and 28 for a numeric target.
    damping : float
        The most that a round moves towards the posterior mean, as a fraction of the distance (the learning rate).
    """

    rounds: int | None = None
    damping: float = constants.DAMPING

    gives = (MainNoise,)
    uses = (AutoFacts,)
    is_random = True
    keeps_monotonic = True
    keeps_interactions = True  # a table has one feature
    estimator_options: ClassVar[Mapping[str, str]] = {
        "n_estimators": "rounds",
        "learning_rate": "damping",
    }

    def __post_init__(self) -> None:
        """Check the options."""
        if self.rounds is not None:
            check_whole("rounds", self.rounds, 1, 10_000)
        check_rate("damping", self.damping)

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Classes of the queries that it may ask."""
        return MainSumsQuery, ReferenceSumsQuery, ResidualQuery

    def declare(self, shape: Shape) -> Demand:
        """Declare what pairs and forest leave of the remaining budget; a numeric target is also asked for its scale."""
        return Demand(0.04, 0.95, self.rounds_of(shape) + (shape.kind == "numeric"))

    def rounds_of(self, shape: Shape) -> int:
        """Return the number of rounds."""
        return self.rounds or constants.MAIN_ROUNDS[shape.kind]

    def brief(self) -> Self:
        """Return the stage with two rounds, for tests."""
        return replace(self, rounds=2)

    def needs(self, shape: Shape, most_bins: Sequence[int]) -> Needs:
        """Return the memory of the posteriors of all features, and of their filters."""
        return needs_of_blocks(shape.n_scores, most_bins, self.rounds_of(shape))

    def begin(self, state: State) -> State:
        """Choose how many leaves a partition has, draw the partitions, and build the prior of every feature."""
        assert state.model is not None
        found = state.fact(AutoFacts)
        totals = found.totals
        price = found.split.main
        gradient = current_gradient(state)
        noise = sd_of_run(gradient, len(state.model.bins), price, state.shape.max_weight)
        n_leaves = schedules.leaves_per_partition(
            state.n_rows, float(np.mean(totals.hess)), noise, large_step(state)
        )
        cuts = [
            None if bins.categorical else possible_cuts(mass)
            for bins, mass in zip(state.model.bins, state.counts, strict=True)
        ]
        partitions = tuple(
            tuple(
                random_partition(bins.n_bins, own, n_leaves, rng)
                for bins, own in zip(state.model.bins, cuts, strict=True)
            )
            for rng in (state.rng.stream("main", t) for t in range(self.rounds_of(state.shape)))
        )
        blocks = []
        for bins, mass, *own in zip(state.model.bins, state.counts, *partitions, strict=True):
            ordered = not bins.categorical
            prior = smoothing.prior(mass, ordered=ordered, missing_last=ordered)
            root, reach = (
                smoothing.nested_root(prior, mass, own)
                if ordered
                else (smoothing.square_root(prior), None)
            )
            blocks.append(tuple(smoothing.new_block(mass, root, h, reach) for h in totals.hess))
        memory = PosteriorMemory(
            blocks=tuple(blocks), totals=totals, round=0, price=price, partitions=partitions
        )
        return replace(state, memory=memory)

    def next_query(self, state: State) -> Query | None:
        """Ask for a random partition of every feature; after a third of the rounds, for the residual scale again."""
        memory: PosteriorMemory = state.memory
        t, rounds = memory.round, self.rounds_of(state.shape)
        if t >= rounds:
            return None
        if state.shape.kind == "numeric" and t == rounds // 3 and not memory.rescaled:
            return residual_query(state, "main scale")
        leaves = memory.partitions[t]
        query = MainSumsQuery(
            label=f"main effects {t + 1}/{rounds}",
            price=round_price(memory.price, t, rounds),
            weight_bits=state.shape.weight_bits,
            gradient=current_gradient(state),
            n_scores=state.shape.n_scores,
            leaf_of_bin=leaves,
            n_leaves=tuple(int(leaf.max()) + 1 for leaf in leaves),
        )
        return with_reference(query, state.counts)

    def update(self, state: State, query: Query, released: Answer) -> State:
        """Move every shape function towards its posterior mean."""
        memory: PosteriorMemory = state.memory
        if isinstance(query, ResidualQuery):
            state = with_residual_scale(state, query, released)
            return replace(state, memory=replace(memory, rescaled=True))
        assert isinstance(query, MainSumsQuery)
        assert state.model is not None
        answer = sums(query, released)
        t, rounds = memory.round, self.rounds_of(state.shape)
        observed = observation(state, answer, t, rounds, pair=False)
        directions, masses = state.shape.directions, [scores[0].mass for scores in memory.blocks]

        def ordered(j: int, f: NDArray[np.float64]) -> NDArray[np.float64]:
            assert directions is not None
            return ordered_table(f, masses[j], int(directions[j])) if directions[j] else f

        memory = learn(
            memory,
            query.leaf_of_bin,
            sums_of_leaves(query, answer),
            state,
            observed,
            damping=self.damping,
            evidence=t >= 2,
            ordered=None if directions is None else ordered,
        )
        tables = tables_of(memory)
        if (linear := state.find(LinearTables)) is not None:
            tables = tuple(own + line for own, line in zip(tables, linear.tables, strict=True))
        model = replace(set_intercept(state.model, memory.totals), tables=tables)
        state = with_totals(replace(state, model=model, memory=memory), memory.totals)
        if memory.round < rounds:
            return state
        filters = filters_of(memory.blocks)
        return state.with_fact(MainNoise(filters=filters, dampings=memory.dampings))
