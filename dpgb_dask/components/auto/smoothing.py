"""The posterior update of `auto`: a Gaussian prior over bins, a filter in information form, evidence for prior scales.

The amount of noise on each release is known exactly, so the model can be the posterior mean given all releases
(docs/default-method.md §2). Everything here is post-processing of released numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.frozen import replaced
from dpgb_dask.kernels import nested, posterior, readable

JITTER = 1e-8


def prior(mass: NDArray[np.float64], *, ordered: bool, missing_last: bool) -> NDArray[np.float64]:
    """Return the prior covariance over the bins of a feature, centred on ``mass``.

    Parameters
    ----------
    mass : (n_bins,) float64
        Noisy rows per bin, positive.
    ordered : bool
        Whether neighbouring bins are alike, as for a numeric feature: exponential kernel over noisy ranks.
    missing_last : bool
        Whether the last bin holds missing values and is independent of the rest.
    """
    n_bins = len(mass)
    share = mass / mass.sum()
    if ordered:
        rank = np.cumsum(share) - share / 2
        kernel = np.abs(rank[:, None] - rank)
        kernel /= -constants.LENGTH
        np.exp(kernel, out=kernel)
        kernel *= constants.SMOOTH_SHARE
        kernel.flat[:: n_bins + 1] += 1 - constants.SMOOTH_SHARE
        if missing_last:
            kernel[-1, :-1] = kernel[:-1, -1] = 0
    else:
        kernel = np.eye(n_bins)
    # (I - 1 share') kernel (I - 1 share')', without products of matrices
    mean = kernel @ share
    kernel -= mean + mean[:, None]
    kernel += share @ mean
    return np.asarray(kernel)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Seen:
    """How one round observed a table: all that its noise needs to be told later.

    Parameters
    ----------
    leaf : (n_bins,) uint8
        Leaf of each bin.
    weight : (n_bins,) float64
        Hessian of each bin, as the filter takes it to be.
    grad_sd : float
    sampling : float
        As in `Observation`.
    keep : float
        Share of the earlier information that stays.
    n_leaves : int
    curvature : float
        Σh over all rows, as released in all rounds so far, over that of ``weight``.
    scales : (n_scales,) float64 or None
        Prior scales of the step; None where the table did not move.
    shift : (rank,) float64
        The information after the round, about the coordinates of v that it tells of.
    log_odds : float
        Logarithm of the odds of each scale above 0 beside no effect.
    omitted : int
        The leaf that was kept back; -1 for none.
    """

    leaf: NDArray[np.uint8]
    weight: NDArray[np.float64]
    grad_sd: float
    sampling: float
    keep: float
    n_leaves: int
    curvature: float
    scales: NDArray[np.float64] | None
    shift: NDArray[np.float64]
    log_odds: float = 0.0
    omitted: int = -1

    @property
    def rank(self) -> int:
        """Number of coordinates of v that the rounds so far tell of."""
        return len(self.shift)


UNSEEN = Seen(
    leaf=np.empty(0, np.uint8), weight=np.empty(0), grad_sd=0.0, sampling=0.0, keep=0.0, n_leaves=0,
    curvature=0.0, scales=None, shift=np.empty(0),
)  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TablePosterior:
    """Posterior of one table (the bins of a feature, or the cells of a pair) for one score.

    The table is f = root · v with v ~ N(0, τ²I) a priori; ``precision`` and ``shift`` are the information about v in
    all releases so far. Its rank is the length of ``shift``: of the other coordinates nothing is known, and their part
    of ``precision`` is zero. Coordinates that no release will tell of have the mean 0, and are left out.

    Parameters
    ----------
    mass : (n_bins,) float64
        Noisy rows per bin.
    root : (n_bins, n_coordinates) float64
        Square root of the prior covariance at τ = 1; its first columns, where partitions tell of the others nothing.
    reach : (n_bins,) int64
        Coordinates of v that the sum of a leaf may depend on that begins at the bin.
    precision : (n_coordinates, n_coordinates) float64
    shift : (rank,) float64
    f : (n_bins,) float64, score units
        The values that the model holds now, on the grid of score steps.
    hess : (n_bins,) float64
        Estimate of a row's mean Hessian, per bin.
    log_evidence : float
        Largest log marginal likelihood over the prior scales; 0 means "no effect".
    seen : tuple of Seen
        One per round.
    """

    mass: NDArray[np.float64]
    root: NDArray[np.float64]
    reach: NDArray[np.int64]
    precision: NDArray[np.float64]
    shift: NDArray[np.float64]
    f: NDArray[np.float64]
    hess: NDArray[np.float64]
    log_evidence: float = 0.0
    seen: tuple[Seen, ...] = ()


def square_root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a square root of a covariance."""
    return np.asarray(np.linalg.cholesky(covariance + JITTER * np.eye(len(covariance))))


class NestedRoot(NamedTuple):
    """The part of a square root of a prior covariance that the partitions of a run tell of.

    Parameters
    ----------
    root : (n_bins, n_coordinates) float64
    reach : (n_bins,) int64
        As in `TablePosterior`.
    """

    root: NDArray[np.float64]
    reach: NDArray[np.int64]


def nested_root(
    covariance: NDArray[np.float64],
    mass: NDArray[np.float64],
    partitions: Sequence[NDArray[np.uint8]],
) -> NestedRoot:
    """Return the square root of a covariance in which the first partitions tell of the first coordinates alone.

    The Hessian of a row is then alike in all bins that no partition has told apart, so sums over leaves are sums over
    cells, by rows. Less is known at first than there are bins, and the linear algebra is as much smaller.

    Parameters
    ----------
    covariance : (n_bins, n_bins) float64
    mass : (n_bins,) float64
        Rows per bin.
    partitions : sequence of ((n_bins,) uint8)
        Leaf of each bin, intervals in order; partition by partition.
    """
    n = len(mass)
    _, begins = np.nonzero(np.diff(partitions, axis=1))  # partition by partition
    every = np.append(begins + 1, np.arange(1, n))
    cuts, first = np.unique(every, return_index=True)
    n_coordinates = 1 + int(np.count_nonzero(first < len(begins)))
    cuts = cuts[np.argsort(first)]
    reach = np.ones(n, np.int64)
    reach[cuts] = np.arange(2, n + 1)
    root = nested.nested_root(covariance + JITTER * np.eye(n), mass, cuts)
    return NestedRoot(np.ascontiguousarray(root[:, :n_coordinates]), reach)


def new_block(
    mass: NDArray[np.float64],
    root: NDArray[np.float64],
    hess: float,
    reach: NDArray[np.int64] | None = None,
) -> TablePosterior:
    """Return the posterior before the first release: the prior; without ``reach`` any sum may depend on all of v."""
    n, n_coordinates = root.shape
    reach = np.full(n, n) if reach is None else reach
    return TablePosterior(
        mass=readable("mass", mass, np.float64, 1),
        root=readable("root", root, np.float64, 2),
        reach=readable("reach", reach, np.int64, 1),
        precision=np.zeros((n_coordinates, n_coordinates)),
        shift=np.zeros(int(reach[0])),
        f=np.zeros(n),
        hess=np.full(n, hess),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """How one round of a stage weights its noisy sums; the same for all tables.

    Parameters
    ----------
    grad_sd, hess_sd : float
        Standard deviations of the noise on a leaf's sums, natural units.
    round : int
        Rounds that the stage has finished.
    sampling : float
        Rounds of the stage times the variance of a row's gradient per unit of Hessian. The factor is there because the
        sampling noise is the same in all rounds.
    hess_low, hess_high : float
        Bounds of the mean Hessian of a row.
    """

    grad_sd: float
    hess_sd: float
    round: int
    sampling: float
    hess_low: float
    hess_high: float


def observe(
    block: TablePosterior,
    leaf: NDArray[np.uint8],
    grad: NDArray[np.float64],
    hess: NDArray[np.float64],
    grad_total: float,
    observed: Observation,
    *,
    hess_total: float,
    scales: NDArray[np.float64] | None,
    log_odds: float = 0.0,
    out: NDArray[np.float64] | None = None,
    omitted: int = -1,
) -> TablePosterior:
    """Add one round's leaf sums to the information of a table.

    Parameters
    ----------
    block : TablePosterior
    leaf : (n_bins,) uint8
        Leaf of each bin.
    grad, hess : (n_leaves,) float64
        Noisy sums.
    grad_total : float
        Noisy Σg over all rows. Each leaf's share of it is subtracted, because the intercept has its own filter.
    observed : Observation
    hess_total : float
        Σh over all rows, as estimated from all rounds so far.
    scales : (n_scales,) float64 or None
        Prior scales of the step that follows; None if none does. Kept for the bands.
    log_odds : float
        Of each scale above 0 beside no effect. Kept for the step and the bands.
    out : (n_coordinates, n_coordinates) float64, written to, or None
        Memory for the new precision.
    omitted : int
        The leaf that was kept back, and is the total less the others; -1 for none.
    """
    # late rounds linearise closer to the optimum, so they count more
    keep = 1 - 1 / (observed.round + 2)
    hess_of_bin, weight, precision, shift = posterior.observe(
        leaf,
        block.mass,
        block.hess,
        block.f,
        block.root,
        block.reach,
        block.precision,
        block.shift,
        (grad, hess),
        grad_total=grad_total,
        sd=(observed.grad_sd, observed.hess_sd),
        done=observed.round,
        sampling=observed.sampling,
        hess_bounds=(observed.hess_low, observed.hess_high),
        omitted=omitted,
        keep=keep,
        out=out,
    )
    told = Seen(
        leaf=leaf,
        weight=weight,
        grad_sd=observed.grad_sd,
        sampling=observed.sampling,
        keep=keep,
        n_leaves=len(grad),
        curvature=hess_total / float(np.add.reduce(weight)),
        scales=scales,
        shift=shift,
        log_odds=log_odds,
        omitted=omitted,
    )
    return replaced(
        block,
        precision=precision,
        shift=shift,
        hess=hess_of_bin,
        seen=(*block.seen, told),
    )


class Mean(NamedTuple):
    """The posterior mean of a table, averaged over prior scales by their evidence.

    Parameters
    ----------
    value : (n_bins,) float64
    log_evidence : float
        The largest over the scales.
    follows_noise : float
        How far the mean moves against the noise of the last sums: −E Σ noise · move over the leaves, for noise of
        variance 1; 0 if no step follows.
    """

    value: NDArray[np.float64]
    log_evidence: float
    follows_noise: float


def posterior_mean(block: TablePosterior, scales: NDArray[np.float64]) -> Mean:
    """Return the posterior mean of a table."""
    last = block.seen[-1] if block.seen else UNSEEN
    return Mean(
        *posterior.mean(
            block.precision,
            block.shift,
            block.root,
            scales,
            last.leaf,
            last.weight,
            log_odds=last.log_odds,
            follows=last.scales is not None,  # a step follows
            grad_sd=last.grad_sd,
            sampling=last.sampling,
            omitted=last.omitted,
            largest=constants.LARGEST_EFFECT,
        )
    )


@dataclass(frozen=True, slots=True)
class Intercept:
    """The same filter for one intercept: information ``precision`` and ``shift``, value ``f`` in score units.

    A priori it is normal around ``centre``; ``prior`` is one over the variance.
    """

    f: float
    centre: float = 0.0
    prior: float = 0.25
    precision: float = 0.0
    shift: float = 0.0

    def step(
        self, grad: float, hess: float, observed: Observation, variance: float, damping: float
    ) -> "Intercept":
        """Add one round's total (Σg with noise variance ``variance``, Σh) and move by a damped step."""
        keep = 1 - 1 / (observed.round + 2)
        told = 1 / (variance + observed.sampling * hess)
        precision = keep * self.precision + hess * hess * told
        shift = keep * self.shift + hess * told * (hess * self.f - grad)
        target = (shift + self.prior * self.centre) / (precision + self.prior)
        move = float(np.clip(damping * (target - self.f), -2, 2))
        return replace(self, f=self.f + move, precision=precision, shift=shift)
