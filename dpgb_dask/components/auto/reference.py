"""Leaves that main effects keep back: a heavy leaf is the total less the others (docs/default-method.md §2)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.components.answers import Sums
from dpgb_dask.contracts.queries import MainSumsQuery, ReferenceSumsQuery
from dpgb_dask.frozen import pieces


def with_reference(query: MainSumsQuery, masses: Sequence[NDArray[np.float64]]) -> MainSumsQuery:
    """Return the query that keeps back the heaviest leaf of every feature in which one holds half of the rows.

    Noise is then added for as many blocks as a row falls into on the average. If that are nearly as many as there are
    features, the query is returned as it is.

    Parameters
    ----------
    query : MainSumsQuery
    masses : sequence of ((n_bins,) float64)
        Noisy rows per bin.
    """
    omitted, blocks = [], 1.0
    for leaf, mass in zip(query.leaf_of_bin, masses, strict=True):
        share = np.bincount(leaf, mass) / mass.sum()
        heaviest = int(share.argmax())
        is_heavy = bool(share[heaviest] >= constants.HEAVY_LEAF)
        omitted.append(heaviest if is_heavy else -1)
        blocks += 1 - float(share[heaviest]) if is_heavy else 1
    if blocks > constants.FEWER_BLOCKS * len(omitted):
        return query
    asked = {field.name: getattr(query, field.name) for field in fields(query)}
    return ReferenceSumsQuery(**asked, omitted=tuple(omitted), most_blocks=round(blocks))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TableSums:
    """Noisy sums of all leaves, table by table, and estimates of the sums over all rows.

    Parameters
    ----------
    grad, hess : tuple of ((n_leaves, n_scores) float64)
        A leaf that was kept back is the total less the others.
    omitted : tuple of int
        The leaf that was kept back, per table; -1 for none.
    grad_totals, hess_totals : (n_estimates, n_scores) float64
    n_summed : (n_estimates,) int64
        Released cells that each estimate adds up.
    """

    grad: tuple[NDArray[np.float64], ...]
    hess: tuple[NDArray[np.float64], ...]
    omitted: tuple[int, ...]
    grad_totals: NDArray[np.float64]
    hess_totals: NDArray[np.float64]
    n_summed: NDArray[np.int64]

    def only(self, tables: Sequence[int]) -> Self:
        """Return the sums of some tables, with the totals of all."""
        grad, hess = (tuple(of[i] for i in tables) for of in (self.grad, self.hess))
        return replace(self, grad=grad, hess=hess, omitted=tuple(self.omitted[i] for i in tables))


def sums_of_leaves(query: MainSumsQuery, answer: Sums) -> TableSums:
    """Return the sums of all leaves from those that were released."""
    if isinstance(query, ReferenceSumsQuery):
        return _completed(query, answer)
    return sums_of_tables(answer, query.n_leaves)


def sums_of_tables(answer: Sums, sizes: Sequence[int]) -> TableSums:
    """Return the sums of tables of which every leaf was released; each table's total is an estimate."""
    grad, hess = (pieces(part, sizes) for part in (answer.grad, answer.hess))
    return TableSums(
        grad=grad,
        hess=hess,
        omitted=(-1,) * len(sizes),
        grad_totals=np.array([np.add.reduce(part) for part in grad]),
        hess_totals=np.array([np.add.reduce(part) for part in hess]),
        n_summed=np.array(sizes),
    )


def _completed(query: ReferenceSumsQuery, answer: Sums) -> TableSums:
    """Return the sums of all leaves; the released total is an estimate of the totals, too."""
    released = query.released

    def completed(values: NDArray[np.float64]) -> NDArray[np.float64]:
        out = np.zeros((len(released), values.shape[1]))
        out[released] = values[1:]
        start = 0
        for leaf, size in zip(query.omitted, query.n_leaves, strict=True):
            if leaf >= 0:
                out[start + leaf] = values[0] - out[start : start + size].sum(0)
            start += size
        return out

    every = Sums(completed(answer.grad), completed(answer.hess), answer.grad_sd, answer.hess_sd)
    plain = sums_of_tables(every, query.n_leaves)
    own = np.array(query.omitted) < 0  # only these totals are more than the released one again
    return TableSums(
        grad=plain.grad,
        hess=plain.hess,
        omitted=query.omitted,
        grad_totals=np.concatenate([answer.grad[:1], plain.grad_totals[own]]),
        hess_totals=np.concatenate([answer.hess[:1], plain.hess_totals[own]]),
        n_summed=np.concatenate([[1], plain.n_summed[own]]),
    )
