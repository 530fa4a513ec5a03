"""The Protocol of a fit's journal: released answers, appended and durable before they are used."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.boundary import Receipt


class Journal(Protocol):
    """Append-only list of (receipt, noisy values) of one fit."""

    def append(self, receipt: Receipt, value: NDArray[np.int64]) -> None:
        """Write one released answer and make it durable before returning."""
        ...

    def entries(self) -> list[tuple[Receipt, NDArray[np.int64]]]:
        """Return what was released so far, in order."""
        ...
