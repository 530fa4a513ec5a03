"""What released histograms of residuals tell: where a numeric target lies, and how far it spreads."""

from dataclasses import dataclass

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


def _laws() -> NDArray[np.float64]:
    """Return shares of the cells under every prior guess, (n_guesses, n_cells).

    There is one of each scale, on both sides or one, with any of `constants.RESIDUAL_ATOMS` of the rows at 0.
    """
    below = (
        1 - 1 / (1 + (_SIZES / _SIZES[:, None]) ** 2) ** 2
    )  # P(|r| <= edge), with a fairly heavy tail
    inside, beyond = below[:, :1], np.append(np.diff(below), 1 - below[:, -1:], axis=1)
    none = np.zeros_like(beyond)
    both = np.concatenate([beyond[:, ::-1] / 2, inside, beyond / 2], axis=1)
    above = np.concatenate([none, inside, beyond], axis=1)
    spread = np.concatenate([both, above, above[:, ::-1]])
    at_zero = np.zeros(spread.shape[1])
    at_zero[len(_SIZES)] = 1.0
    return np.concatenate([a * at_zero + (1 - a) * spread for a in constants.RESIDUAL_ATOMS])


LAWS = _laws()
ODDS = np.repeat(
    list(constants.RESIDUAL_ATOMS.values()), len(LAWS) // len(constants.RESIDUAL_ATOMS)
)
RESOLUTION = float(_SIZES[0])


def _changes() -> NDArray[np.float64]:
    """Return the odds of each scale at a look (rows) after each scale at the look before (columns)."""
    octaves = np.subtract.outer(_OCTAVES, _OCTAVES)
    (shrinks, least), (grows, jumps) = constants.RESIDUAL_SHRINKS, constants.RESIDUAL_GROWS
    shrunk = np.maximum(shrinks ** np.maximum(-octaves, 0), least)
    return np.where(octaves <= 0, shrunk, np.maximum(grows ** np.maximum(octaves, 0), jumps))


CHANGES = _changes()
_NEAR = 9  # cells that are looked at together


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Residuals:
    """What a noisy histogram tells of the residuals.

    Parameters
    ----------
    share : (n_cells,) float64
        Of the rows, in the cells between `EDGES`.
    scales : (n_scales,) float64
        Probability of each scale that the laws have, four an octave.
    """

    share: NDArray[np.float64]
    scales: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        values: NDArray[np.float64],
        sd: float,
        n_rows: float,
        before: NDArray[np.float64] | None = None,
    ) -> "Residuals":
        """Return the posterior mean of the shares, and the posterior of the scale.

        Parameters
        ----------
        values : (n_cells,) float64
            Noisy rows.
        sd : float
            Standard deviation of the noise on each.
        n_rows : float
            Noisy number of all rows, which is much more precise than their sum.
        before : (n_scales,) float64, or None
            ``scales`` at the look before, if there was one: residuals shrink while a model learns.
        """
        # first which law, then how far the cells deviate from what it would give
        expected = n_rows * LAWS
        fit = (expected @ values - 0.5 * (expected**2).sum(1)) / sd**2
        odds = ODDS * np.exp(fit - fit.max())
        if before is not None:
            odds *= np.tile(CHANGES @ before, len(ODDS) // len(_SIZES))
        scales = odds.reshape(-1, len(_SIZES)).sum(0)
        prior = odds @ expected / odds.sum()
        off = values - prior
        near = np.convolve(off, np.full(_NEAR, _NEAR**-0.5), mode="same")
        far = np.maximum(off**2, near**2) - (constants.RESIDUAL_SD * sd) ** 2
        moved = np.maximum(prior**2, far)
        own = moved / (moved + sd**2)
        share = np.maximum(prior + own * off, 0)
        return cls(share=share / share.sum(), scales=scales / scales.sum())

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
        return float(np.sqrt(self.scales @ (_OCTAVES - self.scales @ _OCTAVES) ** 2))

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
