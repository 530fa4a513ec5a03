"""Released answers in natural units."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.plan import Answer
from dpgb_dask.contracts.queries import GradientQuery, Query
from dpgb_dask.losses import GRAD_ONE, Gradient


def step_of(query: Query, released: Answer) -> float:
    """Return one step of an answer in natural units."""
    return 2.0 ** -(query.step_bits + released.receipt.scale_bits)


def natural(query: Query, released: Answer) -> tuple[NDArray[np.float64], float]:
    """Return (values, standard deviation of their noise) in natural units."""
    step = step_of(query, released)
    return np.asarray(released.value * step, np.float64), released.receipt.sigma_steps * step


def l2_norm(gradient: Gradient) -> float:
    """Return the bound of ‖(g, a·h)‖ of one row, in natural units."""
    return float(np.sqrt(gradient.l2_squared)) / GRAD_ONE


def noise_sd(l2: float, price: int, price_one: int) -> float:
    """Return the standard deviation of the noise on a sum of sensitivity ``l2`` that costs ``price`` (σ = Δ / μ)."""
    return l2 / float(np.sqrt(price / price_one))


@dataclass(frozen=True, eq=False, slots=True)
class Sums:
    """Noisy gradient sums per cell.

    Parameters
    ----------
    grad, hess : (n_cells, n_scores) float64, natural units
    grad_sd, hess_sd : float
        Standard deviations of the noise on each.
    """

    grad: NDArray[np.float64]
    hess: NDArray[np.float64]
    grad_sd: float
    hess_sd: float


def sums(query: GradientQuery, released: Answer) -> Sums:
    """Return the answer to a gradient query in natural units."""
    values, sd = natural(query, released)
    table = values.reshape(query.n_cells, query.n_scores, 2)
    a = query.gradient.hess_scale
    return Sums(table[..., 0], table[..., 1] / a, sd, sd / a)
