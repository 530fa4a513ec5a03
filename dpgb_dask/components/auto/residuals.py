"""What released histograms of residuals tell: where a numeric target lies, and how far it spreads."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.components import constants
from dpgb_dask.contracts.model import SCORE_ONE

# four edges an octave, from 2⁻¹⁴ to 2 on either side of 0; a numeric target is scaled to [-1, 1]
_OCTAVES = np.arange(-14, 1.01, 0.25)
_SIZES = 2.0**_OCTAVES
_STEPS = np.rint(_SIZES * SCORE_ONE).astype(np.int64)
EDGES = np.concatenate([-_STEPS[::-1], _STEPS])
_MIDDLES = np.append(np.sqrt(_SIZES[1:] * _SIZES[:-1]), _SIZES[-1])
MIDDLES = np.concatenate([-_MIDDLES[::-1], [0.0], _MIDDLES])
RESOLUTION = float(_SIZES[0])
_SCALES = _SIZES[::2]
_PLACES = np.concatenate([-_SIZES[::-1], [0.0], _SIZES])
_BETWEEN = np.concatenate([_PLACES[:1], (_PLACES[1:] + _PLACES[:-1]) / 2, _PLACES[-1:]])
_ATOMS = np.array(list(constants.RESIDUAL_ATOMS))
_ODDS_OF_ATOMS = np.array(list(constants.RESIDUAL_ATOMS.values()))


def _changes() -> NDArray[np.float64]:
    """Return the odds of each scale at a look (rows) after each scale at the look before (columns)."""
    octaves = np.log2(np.divide.outer(_SCALES, _SCALES))
    (shrinks, least), (grows, jumps) = constants.RESIDUAL_SHRINKS, constants.RESIDUAL_GROWS
    shrunk = np.maximum(shrinks ** np.maximum(-octaves, 0), least)
    return np.where(octaves <= 0, shrunk, np.maximum(grows ** np.maximum(octaves, 0), jumps))


CHANGES = _changes()
_LEAST_SHARE = 1e-12


def edges_for(signal: float) -> NDArray[np.int64]:
    """Return the edges of a histogram in which all rows are ``signal`` standard deviations of the noise on a cell."""
    an_octave = max(n for n, least in constants.LOOK_EDGES.items() if signal >= least)
    kept = _STEPS[:: 4 // an_octave]
    return np.concatenate([-kept[::-1], kept])


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Look:
    """A noisy histogram of the residuals from ``start``.

    Parameters
    ----------
    edges : (n_values - 1,) int64
        Some of `EDGES`.
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
    def an_octave(self) -> int:
        """Edges in an octave."""
        return int((len(self.edges) // 2 - 1) / (_OCTAVES[-1] - _OCTAVES[0]))

    @property
    def first(self) -> NDArray[np.intp]:
        """The first cell of `EDGES` in each of its cells, (n_values,)."""
        return np.append(0, 1 + np.searchsorted(EDGES, self.edges))

    def joined(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add values of the cells of `EDGES`, along the last axis."""
        return np.asarray(np.add.reduceat(values, self.first, axis=-1))


class _Laws:
    """Laws of residuals around some places: symmetric, of every scale, with a fairly heavy tail.

    Parameters
    ----------
    places : (n_places,) float64
        Where the middle of the residuals may be, seen from 0.
    """

    def __init__(self, places: NDArray[np.float64]) -> None:
        seen = np.concatenate([-_SIZES[::-1], _SIZES]) - places[:, None, None]
        tail = 0.5 / (1 + (seen / _SCALES[:, None]) ** 2) ** 2  # of P(|r| > x), half on either side
        below = np.where(seen < 0, tail, 1 - tail)
        # shares of the cells, (n_places, n_scales, n_cells)
        self.share = np.diff(below, axis=2, prepend=0.0, append=1.0)
        self.at = np.searchsorted(EDGES, np.rint(places * SCORE_ONE))  # the cell of each place

    def fit(self, look: Look, n_rows: float) -> NDArray[np.float64]:
        """Return the log-likelihood of a look, (n_atoms, n_places, n_scales); atoms are rows at the place itself."""
        alone = _ATOMS[:, None, None]
        share = look.joined(self.share)
        at = np.searchsorted(look.first, self.at, side="right") - 1
        at_place = np.take_along_axis(share, at[:, None, None], axis=2)[..., 0]
        square = np.einsum("psc,psc->ps", share, share)
        told = alone * look.values[at][:, None] + (1 - alone) * (share @ look.values)
        length = alone**2 + 2 * alone * (1 - alone) * at_place + (1 - alone) ** 2 * square
        return np.asarray(n_rows * (told - 0.5 * n_rows * length) / look.sd**2)

    def mean(self, odds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of the shares of the cells, given odds that sum to 1."""
        of_spread = np.tensordot(odds, 1 - _ATOMS, (0, 0))
        mean = np.tensordot(of_spread, self.share, 2)
        np.add.at(mean, self.at, _ATOMS @ odds.sum(2))
        return np.asarray(mean)


@cache
def _around(places: str) -> _Laws:
    """Return the laws around 0 ("middle"), or around any place of the grid ("anywhere")."""
    return _Laws(_PLACES if places == "anywhere" else np.zeros(1))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Residuals:
    """What noisy histograms tell of the residuals.

    Parameters
    ----------
    share : (n_cells,) float64
        Of the rows, in the cells between `EDGES`.
    scales : (n_scales,) float64
        Probability of each scale that the laws have, two an octave.
    """

    share: NDArray[np.float64]
    scales: NDArray[np.float64]

    @classmethod
    def of_target(cls, looks: Sequence[Look], n_rows: float) -> "Residuals":
        """Return what looks at one target from different starts tell together of the residuals of the last.

        Any place between the bounds is as likely as another as the middle of the targets, apart from the middle of the
        bounds.

        Parameters
        ----------
        looks : sequence of Look
        n_rows : float
            Noisy number of all rows, which is much more precise than the sum of a histogram.
        """
        last = looks[-1]
        laws, places = _around("anywhere"), last.start + _PLACES
        fit = laws.fit(last, n_rows)
        for look in looks[:-1]:
            same = look.start == last.start
            fit += (laws if same else _Laws(places - look.start)).fit(look, n_rows)
        odds = np.diff(np.clip(last.start + _BETWEEN, -1, 1))
        odds *= (1 - constants.MIDDLE) / odds.sum()
        odds[np.argmin(np.abs(places))] += constants.MIDDLE
        return cls._of(last, laws, fit, odds[:, None], n_rows)

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
        laws = _around("middle")
        prior = np.ones(len(_SCALES)) if before is None else CHANGES @ before
        return cls._of(look, laws, laws.fit(look, n_rows), prior, n_rows)

    @classmethod
    def _of(
        cls,
        look: Look,
        laws: _Laws,
        fit: NDArray[np.float64],
        prior: NDArray[np.float64],
        n_rows: float,
    ) -> "Residuals":
        """Return the posterior mean of the shares, and the posterior of the scale.

        First which law, then how far the cells deviate from what it would give.
        """
        with np.errstate(divide="ignore"):  # a place that the bounds exclude has odds of 0
            fit = fit + np.log(_ODDS_OF_ATOMS[:, None, None] * prior)
        odds = np.exp(fit - fit.max())
        odds /= odds.sum()
        mean = np.maximum(laws.mean(odds), _LEAST_SHARE)
        expected = n_rows * look.joined(mean)
        off = look.values - expected
        n_near = 2 * look.an_octave + 1
        near = np.convolve(off, np.full(n_near, n_near**-0.5), mode="same")
        far = np.maximum(off**2, near**2) - (constants.RESIDUAL_SD * look.sd) ** 2
        moved = np.maximum(expected**2, far)
        own = moved / (moved + look.sd**2)
        found = np.maximum(expected + own * off, 0)
        # within a cell of the histogram as the laws have it
        share = mean * np.repeat(found / expected, np.diff(np.append(look.first, len(mean))))
        return cls(share=share / share.sum(), scales=odds.sum((0, 1)))

    @property
    def mean(self) -> float:
        """Mean of the residuals."""
        return float(self.share @ MIDDLES)

    @property
    def spread(self) -> float:
        """Standard deviation of the residuals."""
        return float(np.sqrt(max(self.share @ MIDDLES**2 - self.mean**2, 0)))

    @property
    def octaves(self) -> float:
        """Standard deviation of the scale, in octaves."""
        octaves = np.log2(_SCALES)
        return float(np.sqrt(self.scales @ (octaves - self.scales @ octaves) ** 2))

    @property
    def typical(self) -> float:
        """Standard deviation as it may well be: a law of which little is known has a much larger one on the average."""
        return float(self.spread * np.exp(-((self.octaves * np.log(2)) ** 2)))

    def quantile(self, q: float) -> float:
        """Return the least edge that a share ``q`` of the residuals is within."""
        middle = len(MIDDLES) // 2
        beyond = self.share[middle + 1 :] + self.share[:middle][::-1]
        inside = self.share[middle] + np.append(0.0, np.cumsum(beyond[:-1]))
        return float(_SIZES[min(int(np.searchsorted(inside, q)), len(_SIZES) - 1)])

    def clip(self, q: float, most_bias: float) -> float:
        """Return the least edge from `quantile` of ``q`` on at which clipping hardly moves the mean.

        Parameters
        ----------
        q : float
        most_bias : float
            Standard deviations that residuals clipped at the edge, seen from their mean, may be off on the average.
        """
        seen = MIDDLES - self.mean
        edges = _SIZES[self.quantile(q) <= _SIZES]
        off = np.clip(seen, -edges[:, None], edges[:, None]) @ self.share
        fair = np.abs(off) <= most_bias * self.spread
        return float(edges[np.argmax(fair)] if fair.any() else edges[-1])
