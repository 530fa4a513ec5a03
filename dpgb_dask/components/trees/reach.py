"""Which scores a released model can reach: bounds from its own numbers, over which gradients are bounded."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.model import Model


class Reach(NamedTuple):
    """Lowest and highest score of any row under a released model, in score steps, over all score columns.

    Sums of the lowest and highest values of its parts: no single row need attain them (docs/privacy.md P1).
    Post-processing.

    Parameters
    ----------
    low, high : (n_scores,) int64
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]

    @classmethod
    def of(cls, model: Model) -> Self:
        """Return the reach of a model."""
        start = model.intercept.astype(np.int64)
        parts = [
            *(table.T for table in model.tables),
            *(pair.table.reshape(model.n_scores, -1) for pair in model.pairs),
            *model.trees.value.swapaxes(0, 1),
        ]
        return cls(start + _ends(parts, np.min), start + _ends(parts, np.max))

    def moved(self, old: Model, new: Model) -> Self:
        """Return the reach of ``new``, which is ``old`` with other tables and with more trees."""
        changed = [
            both for both in zip(old.tables, new.tables, strict=True) if both[0] is not both[1]
        ]
        before, after = ([both[k].T for both in changed] for k in (0, 1))
        low = self.low + _ends(after, np.min) - _ends(before, np.min)
        high = self.high + _ends(after, np.max) - _ends(before, np.max)
        if new.trees is not old.trees and new.trees.n_trees > old.trees.n_trees:
            added = new.trees.value[:, old.trees.n_trees :].astype(np.int64)
            low = low + added.min(axis=2).sum(axis=1)
            high = high + added.max(axis=2).sum(axis=1)
        return type(self)(low, high)

    @property
    def ends(self) -> tuple[int, int]:
        """Lowest and highest score of all columns."""
        return min(self.low.tolist()), max(self.high.tolist())


def _ends(parts: Iterable[NDArray[np.int32]], end: Callable[..., Any]) -> Any:
    """Return the sum of the least or largest values of parts (n_scores, n_values); a row gets one value of each."""
    return sum(end(part, axis=1).astype(np.int64) for part in parts)
