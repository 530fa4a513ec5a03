"""The Protocol of a fit's journal: released answers, appended and durable before they are used."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.boundary import Receipt


@dataclass(frozen=True, eq=False, slots=True)
class JournalEntry:
    """A released answer as a journal keeps it.

    Parameters
    ----------
    receipt : Receipt
    value : (n,) int64
        Noisy values.
    seal : str
        The controller's keyed hash of both, by which it recognises its own answers.
    """

    receipt: Receipt
    value: NDArray[np.int64]
    seal: str


class Journal(Protocol):
    """Append-only list of the answers of one fit."""

    def append(self, answer: JournalEntry) -> None:
        """Write one released answer and make it durable before returning."""
        ...

    def entries(self) -> list[JournalEntry]:
        """Return what was released so far, in order."""
        ...
