"""A symmetric matrix as Q T Q', T tridiagonal: what the posterior needs of it, for all prior scales at once.

The reduction costs a fraction of an eigen-decomposition; then every scale is solved in time linear in the order.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.kernels import tridiagonal as kernels


@dataclass(frozen=True, eq=False, slots=True)
class Tridiagonal:
    """A symmetric, positive semi-definite matrix Q T Q'.

    Parameters
    ----------
    diagonal : (n,) float64
        Of T.
    beside : (n - 1,) float64
        Entries of T beside its diagonal.
    reflectors : (n, n) float64
        Whose product is Q.
    """

    diagonal: NDArray[np.float64]
    beside: NDArray[np.float64]
    reflectors: NDArray[np.float64]

    @classmethod
    def of(cls, matrix: NDArray[np.float64]) -> Self:
        """Reduce a symmetric, positive semi-definite matrix."""
        return cls(*kernels.reduced(matrix))

    def into(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Q' times columns, (n, n_columns)."""
        return kernels.turned(self.reflectors, columns, back=False)

    def back(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Q times columns, (n, n_columns)."""
        return kernels.turned(self.reflectors, columns, back=True)

    def times(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return T times columns, (n, n_columns)."""
        out = self.diagonal[:, None] * columns
        out[1:] += self.beside[:, None] * columns[:-1]
        out[:-1] += self.beside[:, None] * columns[1:]
        return out

    def log_evidence(
        self, q: NDArray[np.float64], scales: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return ½ τ² q'(I + τ²T)⁻¹q - ½ log det(I + τ²T) of every scale τ and column of q, (n_scales, n_columns)."""
        return kernels.log_evidence(self.diagonal, self.beside, q, scales)

    def shrunk(
        self, q: NDArray[np.float64], scales: NDArray[np.float64], share: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return Σ share · τ²(I + τ²T)⁻¹ q over the scales τ, column by column, (n, n_columns).

        Parameters
        ----------
        share : (n_scales, n_columns) float64
        """
        return kernels.shrunk(self.diagonal, self.beside, q, scales, share)
