"""Journals: released answers of a running fit, appended and durable before they are used; resume replays them.

A repeated answer is the same answer (docs/privacy.md P10).
"""

import json
import os
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from dpgb_dask.contracts.boundary import Receipt
from dpgb_dask.contracts.journal import JournalEntry
from dpgb_dask.controller.noise import sync_directory
from dpgb_dask.errors import LedgerUnavailableError, ResumeError


class FileJournal:
    """One JSON line per released answer, synced to disk before `append` returns.

    A line is written where the lines before it end, so an append costs the same however long the file is. Two processes
    that resume one fit write the same bytes to the same places, because an answer is a function of the fit's key, the
    query and its sums.

    Parameters
    ----------
    path : Path
        The file; made if it does not exist.

    Raises
    ------
    LedgerUnavailableError
        If the file cannot be made.

    Privacy
    -------
    Released values only, inside the fit's guarantee; still, only the owner of the file can read it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end: int | None = None  # where the lines end that this object has read or written
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists():
                path.touch(mode=0o600)
                sync_directory(path.parent)
        except OSError as error:
            raise self._unwritable(error) from error

    def append(self, answer: JournalEntry) -> None:
        """Write one released answer and sync it.

        Raises
        ------
        LedgerUnavailableError
            If it cannot be written; then the answer must not be used.
        ResumeError
            If another process has written another answer in its place.
        """
        facts = {
            "receipt": asdict(answer.receipt), "value": answer.value.tolist(), "seal": answer.seal
        }  # fmt: skip
        line = json.dumps(facts).encode() + b"\n"
        try:
            descriptor = os.open(self.path, os.O_RDWR)
            try:
                end = self._end
                if end is None:
                    end = _complete(self.path.read_bytes())
                self._put(descriptor, line, end)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unwritable(error) from error
        self._end = end + len(line)

    def _put(self, descriptor: int, line: bytes, end: int) -> None:
        """Write a line after the known ones, unless it is there already."""
        beyond = os.fstat(descriptor).st_size - end
        if beyond:
            tail = os.pread(descriptor, max(beyond, 0), end)
            if tail.startswith(line):  # written by another process that runs, or ran, the same fit
                return
            if beyond < 0 or b"\n" in tail:
                raise ResumeError(
                    f"The journal {str(self.path)!r} was changed while this process fitted: another one may go on with"
                    " the fit. Stop here."
                )
            os.ftruncate(descriptor, end)  # a line that a crash cut short was never used
        written = 0
        while written < len(line):
            written += os.pwrite(descriptor, line[written:], end + written)

    def entries(self) -> list[JournalEntry]:
        """Return what was released so far, in order; a last line that a crash cut short is left out.

        Raises
        ------
        ResumeError
            If the file cannot be read, or a complete line is not an answer.
        """
        try:
            data = self.path.read_bytes()
            self._end = _complete(data)
            return [_answer(line) for line in data[: self._end].splitlines()]
        except (
            OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError,
        ) as error:  # fmt: skip
            raise ResumeError(
                f"The journal {str(self.path)!r} is damaged ({type(error).__name__}). Put the fit's own journal back;"
                " or move it away, and the same answers are drawn again from the rows."
            ) from error

    def _unwritable(self, error: OSError) -> LedgerUnavailableError:
        return LedgerUnavailableError(
            f"The journal {str(self.path)!r} cannot be written ({error.strerror}), so no answer was used. Make room,"
            " or make it writable."
        )


def _complete(data: bytes) -> int:
    """Return the length of the complete lines."""
    return data.rfind(b"\n") + 1


def _answer(line: bytes) -> JournalEntry:
    facts = json.loads(line)
    value, receipt, seal = facts["value"], Receipt(**facts["receipt"]), facts["seal"]
    if not isinstance(value, list) or any(type(number) is not int for number in value):
        raise TypeError("not a vector of integers")
    if any(
        type(fact) not in (int, str)
        for fact in (getattr(receipt, part.name) for part in fields(receipt))
    ) or not isinstance(seal, str):
        raise TypeError("no receipt")
    return JournalEntry(receipt, np.array(value, dtype=np.int64), seal)
