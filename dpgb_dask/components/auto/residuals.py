"""What released histograms of residuals tell: where a numeric target lies, and how far it spreads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.contracts.model import SCORE_ONE

# the finest cells: four edges an octave, from 2⁻¹⁴ to 2 on either side of 0; a numeric target is scaled to [-1, 1]
_FINEST = 4
_SIZES = 2.0 ** np.arange(-14, 1.01, 1 / _FINEST)
_STEPS = np.rint(_SIZES * SCORE_ONE).astype(np.int64)
EDGES = np.concatenate([-_STEPS[::-1], _STEPS])
_ABOVE = np.append(np.sqrt(_SIZES[1:] * _SIZES[:-1]), _SIZES[-1])
_CENTRES = np.concatenate([-_ABOVE[::-1], [0.0], _ABOVE])  # of the finest cells
RESOLUTION = float(_SIZES[0])

_SCALES = _SIZES[::2]
_AROUND = np.concatenate([-_SIZES[::-1], [0.0], _SIZES])  # places around a start
_ATOMS = np.array(list(constants.RESIDUAL_ATOMS))
_ODDS_OF_ATOMS = np.array(list(constants.RESIDUAL_ATOMS.values()))
_LEAST_SHARE = 1e-12
_BLOCK = 8  # places whose laws are found at a time, so that what is between stays in the cache


def _far_places() -> NDArray[np.float64]:
    """Return how few rows far away may spread over the finest cells, (n_places, n_cells).

    Around one cell and its neighbours; then half of them there, and half as far on the other side of the start.
    """
    here = np.eye(len(_CENTRES))
    around = here / 2 + np.roll(here, 1, axis=1) / 4 + np.roll(here, -1, axis=1) / 4
    return np.concatenate([around, (around + around[:, ::-1]) / 2])


_FAR = _far_places()


def _changes() -> NDArray[np.float64]:
    """Return the odds of each scale at a look (rows) after each scale at the look before (columns)."""
    octaves = np.log2(np.divide.outer(_SCALES, _SCALES))
    (shrinks, least), (grows, jumps) = constants.RESIDUAL_SHRINKS, constants.RESIDUAL_GROWS
    shrunk = np.maximum(shrinks ** np.maximum(-octaves, 0), least)
    return np.where(octaves <= 0, shrunk, np.maximum(grows ** np.maximum(octaves, 0), jumps))


_CHANGES = _changes()


def edges_for(signal: float) -> NDArray[np.int64]:
    """Return the edges of a histogram in which all rows are ``signal`` standard deviations of the noise on a cell."""
    an_octave = max(n for n, least in constants.LOOK_EDGES.items() if signal >= least)
    kept = _STEPS[:: _FINEST // an_octave]
    return np.concatenate([-kept[::-1], kept])


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Look:
    """A noisy histogram of the residuals from ``start``.

    Parameters
    ----------
    edges : (n_values - 1,) int64
        Those of `edges_for` some signal.
    values : (n_values,) float64
        Noisy rows between them.
    sd : float
        Standard deviation of the noise on each.
    start : float
        What the model said, score units.
    """

    edges: NDArray[np.int64]
    values: NDArray[np.float64]
    sd: float
    start: float

    @property
    def _first(self) -> NDArray[np.intp]:
        """The first of the finest cells in each of its cells, (n_values,)."""
        return np.append(0, 1 + np.searchsorted(EDGES, self.edges))

    def joined(self, finest: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add values of the finest cells to those of its own."""
        return np.add.reduceat(finest, self._first)

    def divided(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, for each of the finest cells, the value of its own cell."""
        return np.repeat(own, np.diff(np.append(self._first, len(EDGES) + 1)))

    def shares(self, places: NDArray[np.float64], edges: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what the laws around some places have between edges, (n_places, n_scales, n_edges + 1)."""
        seen = edges / SCORE_ONE + self.start - places[:, None, None]
        tail = 0.5 / (1 + (seen / _SCALES[:, None]) ** 2) ** 2  # of P(|r| > x), half on either side
        below = np.where(seen < 0, tail, 1 - tail)
        return np.diff(below, axis=2, prepend=0.0, append=1.0)

    def cells_of(self, places: NDArray[np.float64], edges: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the cells between edges in which some places are."""
        return np.searchsorted(edges, np.rint((places - self.start) * SCORE_ONE))

    def fit(self, places: NDArray[np.float64], n_rows: float) -> NDArray[np.float64]:
        """Return the log-likelihood of laws, (n_atoms, n_places, n_scales); atoms are rows at the place itself."""
        starts = range(0, len(places), _BLOCK)
        parts = [self._fit_few(places[start : start + _BLOCK], n_rows) for start in starts]
        return np.concatenate(parts, axis=1)

    def _fit_few(self, places: NDArray[np.float64], n_rows: float) -> NDArray[np.float64]:
        alone = _ATOMS[:, None, None]
        share, at = self.shares(places, self.edges), self.cells_of(places, self.edges)
        at_place = np.take_along_axis(share, at[:, None, None], axis=2)[..., 0]
        square = np.einsum("psc,psc->ps", share, share)
        told = alone * self.values[at][:, None] + (1 - alone) * (share @ self.values)
        length = alone**2 + 2 * alone * (1 - alone) * at_place + (1 - alone) ** 2 * square
        return np.asarray(n_rows * (told - 0.5 * n_rows * length) / self.sd**2)

    def mean_law(
        self, places: NDArray[np.float64], odds: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the mean of the shares of the finest cells, given the odds of the laws, which sum to 1."""
        mean = np.tensordot(np.tensordot(1 - _ATOMS, odds, 1), self.shares(places, EDGES), 2)
        np.add.at(mean, self.cells_of(places, EDGES), _ATOMS @ odds.sum(2))
        return np.maximum(mean, _LEAST_SHARE)

    def with_far_rows(
        self, law: NDArray[np.float64], middle: float, width: float, n_rows: float
    ) -> NDArray[np.float64]:
        """Return a law of the finest cells, with few rows far away besides if that is likelier than not.

        No cell by itself stands out of over a hundred; the likelihood of rows around a distance may. Its odds fall with
        the distance, and faster than the harm of noise that is taken for rows rises.

        Parameters
        ----------
        law : (n_finest,) float64
        middle, width : float
            Of the law, score units.
        n_rows : float
        """
        octaves = np.log2(np.abs(_CENTRES - middle) / (constants.FAR_FROM * width) + _LEAST_SHARE)
        odds = np.where(octaves >= 0, constants.FAR_DECAY**octaves, 0.0)
        odds[[0, -1]] = 0.0  # beyond the last edges
        odds = np.tile(odds, 2)
        there = np.flatnonzero(odds)
        if not len(there):
            return law
        shares = np.array(constants.FAR_ROWS)
        rows = n_rows * shares
        prior = constants.FAR_ODDS * odds[there] / odds.sum()
        spread = np.add.reduceat(_FAR[there], self._first, axis=1)
        told = spread @ (self.values - n_rows * self.joined(law))
        length = np.einsum("pc,pc->p", spread, spread)
        fit = (np.outer(told, rows) - np.outer(length, rows**2) / 2) / self.sd**2
        fit += np.log(prior / len(shares))[:, None]
        top = max(float(fit.max()), 0.0)
        likely = np.exp(fit - top)
        likely /= likely.sum() + np.exp(-top)  # the other part: no such rows
        if likely.sum() < 0.5:
            return law
        law = law + likely @ shares @ _FAR[there]
        return law / law.sum()


def _places(starts: Sequence[float]) -> NDArray[np.float64]:
    """Return places where the middle of a target may be: the middle of its bounds, and others, dense around starts."""
    centres = np.unique([0.0, *starts])
    around = centres[:, None] + _AROUND
    closest = np.abs(around[..., None] - centres).argmin(2)
    places = around[closest == np.arange(len(centres))[:, None]]
    return np.unique(places[np.abs(places) <= 1])


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Residuals:
    """What noisy histograms tell of the residuals from ``start``.

    Parameters
    ----------
    start : float
        What the model said, score units.
    share : (n_cells,) float64
        Of the rows, in the cells between `EDGES`.
    scales : (n_scales,) float64
        Probability of each scale that the laws have, two an octave.
    signal : float
        All rows, in standard deviations of the noise on a cell.
    """

    start: float
    share: NDArray[np.float64]
    scales: NDArray[np.float64]
    signal: float

    @classmethod
    def of_target(cls, looks: Sequence[Look], n_rows: float) -> "Residuals":
        """Return what looks at one target tell together of the residuals from the start of one of them.

        The middle of the targets is likely to be that of the bounds; other places between them share the rest evenly.

        Parameters
        ----------
        looks : sequence of Look
        n_rows : float
            Noisy number of all rows, which is much more precise than the sum of a histogram.
        """
        places = _places([look.start for look in looks])
        between = np.concatenate([[-1.0], (places[1:] + places[:-1]) / 2, [1.0]])
        prior = np.diff(between) / 2 * (1 - constants.MIDDLE_ODDS)
        prior[np.searchsorted(places, 0.0)] += constants.MIDDLE_ODDS
        fits = [look.fit(places, n_rows) for look in looks]
        odds = _posterior(np.sum(fits, axis=0), prior[:, None])
        middle, width = _middle_and_width(places, odds)
        # the last look, which is the dearest, unless its cells are wide there and another's are not
        best = min(reversed(looks), key=lambda look: max(abs(look.start - middle), width))
        return cls._of(best, places, odds, n_rows)

    @classmethod
    def of_model(cls, look: Look, n_rows: float, before: NDArray[np.float64] | None) -> "Residuals":
        """Return what a look tells of the residuals of a model, whose middle is 0.

        Parameters
        ----------
        look : Look
        n_rows : float
        before : (n_scales,) float64, or None
            ``scales`` at the look before, if there was one: residuals shrink while a model learns.
        """
        here = np.array([look.start])
        prior = np.ones(len(_SCALES)) if before is None else _CHANGES @ before
        return cls._of(look, here, _posterior(look.fit(here, n_rows), prior), n_rows)

    @classmethod
    def _of(
        cls, look: Look, places: NDArray[np.float64], odds: NDArray[np.float64], n_rows: float
    ) -> "Residuals":
        """Return the shares: what laws and few rows far away give, then how far the cells of a look deviate from it."""
        likely = odds.sum((0, 2)) > _LEAST_SHARE
        law = look.mean_law(places[likely], odds[:, likely])
        middle, width = _middle_and_width(places, odds)
        law = look.with_far_rows(law, middle - look.start, width, n_rows)
        expected = n_rows * look.joined(law)
        off = look.values - expected
        n_near = 2 * int(constants.RESIDUAL_NEAR * len(look.edges) / len(EDGES)) + 1
        near = np.convolve(off, np.full(n_near, n_near**-0.5), mode="same")
        far = np.maximum(off**2, near**2) - (constants.RESIDUAL_SD * look.sd) ** 2
        moved = np.maximum(expected**2, far)
        own = moved / (moved + look.sd**2)
        found = np.maximum(expected + own * off, _LEAST_SHARE * expected)
        share = law * look.divided(found / expected)
        return cls(
            start=look.start,
            share=share / share.sum(),
            scales=odds.sum((0, 1)),
            signal=n_rows / look.sd,
        )

    @property
    def mean(self) -> float:
        """Mean of the residuals."""
        return float(self.share @ _CENTRES)

    @property
    def spread(self) -> float:
        """Standard deviation of the residuals."""
        return float(np.sqrt(max(self.share @ _CENTRES**2 - self.mean**2, 0)))

    @property
    def octaves(self) -> float:
        """Standard deviation of the scale, in octaves."""
        octaves = np.log2(_SCALES)
        return float(np.sqrt(self.scales @ (octaves - self.scales @ octaves) ** 2))

    @property
    def typical(self) -> float:
        """Median of the standard deviation: where little is known of it, its mean square is much larger."""
        return float(self.spread * np.exp(-((self.octaves * np.log(2)) ** 2)))

    def quantile(self, q: float) -> float:
        """Return the least edge that a share ``q`` of the residuals is within."""
        middle = len(_CENTRES) // 2
        beyond = self.share[middle + 1 :] + self.share[:middle][::-1]
        inside = self.share[middle] + np.append(0.0, np.cumsum(beyond[:-1]))
        return float(_SIZES[min(int(np.searchsorted(inside, q)), len(_SIZES) - 1)])

    def clip(
        self,
        q: float,
        most_bias: float = constants.CLIP_BIAS,
        most_beyond: float = constants.CLIP_BEYOND,
    ) -> float:
        """Return the least edge from `quantile` of ``q`` on that hardly moves the mean, nor hides most of the spread.

        Parameters
        ----------
        q : float
        most_bias : float
            Standard deviations that residuals clipped at the edge, seen from their mean, may be off on the average.
        most_beyond : float
            Of their variance, what may lie beyond the edge: the mean square of what clipping takes off. Where a look
            tells little, that is of scales that are hardly possible, and no limit.
        """
        seen = _CENTRES - self.mean
        edges = _SIZES[self.quantile(q) <= _SIZES]
        clipped = np.clip(seen, -edges[:, None], edges[:, None])
        fair = np.abs(clipped @ self.share) <= most_bias * self.spread
        if self.signal >= constants.BEYOND_SIGNAL:
            # rows of the cell in the middle may lie anywhere in it
            variance = self.spread**2 + RESOLUTION**2
            fair &= (seen - clipped) ** 2 @ self.share <= most_beyond * variance
        return float(edges[np.argmax(fair)] if fair.any() else edges[-1])

    def reach(self, least: float, signal: float) -> float:
        """Return the edge from ``least`` on at which a noisy mean of clipped residuals is closest to the mean.

        Parameters
        ----------
        least : float
        signal : float
            All rows, in standard deviations of the noise on a sum of residuals, were they clipped at 1.
        """
        if signal == 0:
            return 1.0
        edges = np.append(_SIZES[(least < _SIZES) & (_SIZES < 1)], 1.0)
        beyond = _CENTRES - np.clip(_CENTRES, -edges[:, None], edges[:, None])
        return float(edges[np.argmin((beyond @ self.share) ** 2 + (edges / signal) ** 2)])


def _middle_and_width(
    places: NDArray[np.float64], odds: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the mean of the laws' places, and the geometric mean of their scales, by their odds."""
    return float(odds.sum((0, 2)) @ places), float(2 ** (odds.sum((0, 1)) @ np.log2(_SCALES)))


def _posterior(fit: NDArray[np.float64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of laws, (n_atoms, n_places, n_scales), from log-likelihoods and the odds before."""
    fit = fit + np.log(_ODDS_OF_ATOMS[:, None, None] * prior)
    odds = np.exp(fit - fit.max())
    return np.asarray(odds / odds.sum())
