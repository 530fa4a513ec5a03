"""What is found from the codes of a shard's rows, and kept: leaves of trees, cells of levels and of pairs."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

C = TypeVar("C", np.uint8, np.uint16)


class KeptCells(Generic[C]):
    """Some numbers of every row, by block, and whether they are kept. Private.

    Parameters
    ----------
    per_row : int
        Bytes.

    Attributes
    ----------
    keeps : bool
        Whether what is found is kept; not at first.

    Notes
    -----
    Only one thread at a time works on a block, so there are no locks.
    """

    def __init__(self, per_row: int) -> None:
        self.per_row = per_row
        self.keeps = False
        self._of_block: dict[int, NDArray[C]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class KeptBytes(KeptCells[np.uint8], ABC):
    """Some bytes of every row, found block by block from its codes, and kept if there is room. Private."""

    @abstractmethod
    def write(self, codes: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Write the bytes of rows with these codes, (per_row, n)."""

    def find(self, k: int, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the bytes of block number ``k``, (per_row, n), and keep them if this object ``keeps``."""
        found = self._of_block.get(k)
        if found is None:
            found = np.empty((self.per_row, codes.shape[1]), np.uint8)
            self.write(codes, found)
            if self.keeps:
                self._of_block[k] = found
        return found

    def take(self, k: int) -> NDArray[np.uint8] | None:
        """Return the bytes of a block and forget them; None if they are not kept."""
        return self._of_block.pop(k, None)
