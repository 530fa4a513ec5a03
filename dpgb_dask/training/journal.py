"""Journals: released answers of a running fit, appended and durable before they are used; what resume replays."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np

from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.journal import Answer
from dpgb_dask.errors import LedgerUnavailableError, ResumeError


class MemoryJournal:
    """The journal of a fit whose ledger lives in memory: keeps the order of effects without the disk."""

    def __init__(self) -> None:
        self._entries: list[Answer] = []

    def append(self, answer: Answer) -> None:
        """Keep one released answer."""
        self._entries.append(answer)

    def entries(self) -> list[Answer]:
        """Return what was released so far, in order."""
        return list(self._entries)


class FileJournal:
    """One JSON line per released answer, synced to disk before `append` returns.

    Privacy
    -------
    Released values only, inside the fit's guarantee; the file is its owner's alone all the same.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
        except OSError as error:
            raise LedgerUnavailableError(
                f"The journal {str(path)!r} cannot be written: {error.strerror}. Nothing was released."
            ) from error

    def append(self, answer: Answer) -> None:
        """Write one released answer and sync it."""
        facts = {
            "receipt": asdict(answer.receipt), "value": answer.value.tolist(), "seal": answer.seal
        }  # fmt: skip
        line = json.dumps(facts) + "\n"
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

    def entries(self) -> list[Answer]:
        """Return what was released so far, in order; a last line that a crash cut short is left out.

        Raises
        ------
        ResumeError
            If the file cannot be read, or another line is no answer.
        """
        try:
            data = self.path.read_bytes()
            return [_answer(line) for line in data[: self._complete(data)].splitlines()]
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise ResumeError(
                f"The journal {str(self.path)!r} is damaged ({type(error).__name__}). Put the fit's own journal back;"
                " or move it away, and the same answers are drawn again from the rows."
            ) from error

    @staticmethod
    def _complete(data: bytes) -> int:
        """Return the length of the complete lines."""
        return data.rfind(b"\n") + 1


def _answer(line: bytes) -> Answer:
    facts = json.loads(line)
    value = np.array(facts["value"], dtype=np.int64)
    if value.ndim != 1:
        raise ValueError("not a vector")
    return Answer(Receipt(**facts["receipt"]), value, str(facts["seal"]))
