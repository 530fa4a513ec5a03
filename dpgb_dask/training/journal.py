"""Journals: released answers of a running fit, appended and durable before they are used; what resume replays."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.errors import LedgerUnavailableError


class MemoryJournal:
    """The journal of a fit whose ledger lives in memory: keeps the order of effects without the disk."""

    def __init__(self) -> None:
        self._entries: list[tuple[Receipt, NDArray[np.int64]]] = []

    def append(self, receipt: Receipt, value: NDArray[np.int64]) -> None:
        """Keep one released answer."""
        self._entries.append((receipt, value.copy()))

    def entries(self) -> list[tuple[Receipt, NDArray[np.int64]]]:
        """Return what was released so far, in order."""
        return list(self._entries)


class FileJournal:
    """One JSON line per released answer, synced to disk before `append` returns.

    Privacy
    -------
    Released values only: the file may be read by whoever may read the model.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            raise LedgerUnavailableError(
                f"The journal {str(path)!r} cannot be written: {error.strerror}. Nothing was released."
            ) from error

    def append(self, receipt: Receipt, value: NDArray[np.int64]) -> None:
        """Write one released answer and sync it."""
        line = json.dumps({"receipt": asdict(receipt), "value": value.tolist()}) + "\n"
        try:
            with self.path.open("r+b") as file:
                file.truncate(
                    self._complete(file.read())
                )  # a line that a crash cut short was never used
                file.seek(0, os.SEEK_END)
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise LedgerUnavailableError(
                f"The journal {str(self.path)!r} cannot be written: {error.strerror}. The answer was not used."
            ) from error

    def entries(self) -> list[tuple[Receipt, NDArray[np.int64]]]:
        """Return what was released so far, in order; a last line that a crash cut short is left out."""
        data = self.path.read_bytes()
        lines = data[: self._complete(data)].splitlines()
        out = []
        for line in lines:
            entry = json.loads(line)
            out.append((Receipt(**entry["receipt"]), np.array(entry["value"], dtype=np.int64)))
        return out

    @staticmethod
    def _complete(data: bytes) -> int:
        """Return the length of the complete lines."""
        return data.rfind(b"\n") + 1
