"""Which fit ``--resume auto`` goes on with: a note beside each fit's key says what the command was that began it."""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from dpgb_dask.contracts.schema import Schema
from dpgb_dask.controller.ledger import Ledger
from dpgb_dask.controller.ledger_book import ENDED, Record, Terms
from dpgb_dask.controller.noise import sync_directory
from dpgb_dask.errors import BudgetExceededError, LedgerUnavailableError, OtherRunError

AUTO = "auto"  # a value of --resume
Command = dict[str, str]


def command_of(data: str, schema: Schema, out: str | Path) -> Command:
    """Return what tells one run's command from another's: digests of its data's address, its schema and ``--out``.

    Privacy
    -------
    Of what is typed and declared: no row is read. Digests, because a URL may hold a password.
    """
    told = {
        "data": _whole(data),
        "schema": json.dumps(schema.to_dict(), sort_keys=True),
        "--out": _whole(str(out)),
    }
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in told.items()}


def _whole(place: str) -> str:
    """Return a path that is the same wherever the command stands; a URL as it is."""
    return place if "://" in place else os.path.abspath(place)


class CommandLedger(Ledger):
    """A ledger that notes of each fit, before its charge, what the command is that begins it.

    Parameters
    ----------
    url : str
    command : mapping of str to str
        As of `command_of`.
    """

    def __init__(self, url: str, command: Command) -> None:
        super().__init__(url)
        self._command = command

    def reserve(self, name: str, fit_id: str, terms: Terms, lease: str, key: bytes) -> None:
        """Write the note, then do as any ledger: a fit that is charged has one, whenever its process was killed."""
        self._write_note(fit_id)
        try:
            super().reserve(name, fit_id, terms, lease, key)
        except BudgetExceededError:  # nothing is charged for sure
            with contextlib.suppress(OSError):
                self._note_path(fit_id).unlink()
            raise

    @property
    def folder_of_one_run(self) -> bool:
        """Whether each run has a folder of its own, as those with a ledger on a server are asked to have."""
        return self._address.server

    def begun(self, account: str) -> str | None:
        """Return the fit of an account that this command began on this machine; None if it is to begin one.

        Raises
        ------
        OtherRunError
            If it cannot be told, or a fit is in the way: then nothing is charged.

        Privacy
        -------
        A process that was killed at any moment has left a file of each fit that it charged (the note and the key are on
        its disk before the charge, and note and journal stay), and its successor, with the same folder, charges no
        second. A fit that ended gives its model without a look at the rows, so the command must be the same.
        """
        here = self._fits_here(account)
        own = [
            fit
            for fit in here
            if fit.account == account and fit.state != "SETTLED" and self._differs(fit.fit_id) == []
        ]
        own = [fit for fit in own if fit.state not in ENDED] or own
        if len(own) > 1:
            raise OtherRunError(
                f"--resume {AUTO}: this machine keeps {len(own)} fits that this command began:{self._listed(own)}\n"
                "Name the one to go on with, --resume FIT_ID; or leave --resume out, and one more is begun and charged."
            )
        if own:
            if own[0].state in ENDED:
                print(
                    f"dpgb-dask: fit {own[0].fit_id} has ended: its model is made again from its journal, and no row is"
                    f" read. For rows that are new, leave --resume {AUTO} out, or give another --out",
                    file=sys.stderr,
                )
            return own[0].fit_id
        if self.folder_of_one_run:
            self._refuse(
                here,
                "A ledger on a server takes a folder for each run, and this one has been used. Give a new run a folder"
                " of its own (XDG_DATA_HOME; in Kubernetes a Job of a new name); or name the fit to go on with,"
                " --resume FIT_ID; or leave --resume out, and another is begun and charged.",
            )
        else:
            self._refuse(
                [fit for fit in here if fit.state not in ENDED],
                "It is charged, and may be running. Go on with it by its own command and --resume FIT_ID; or close it,"
                " dpgb-dask ledger settle; or leave --resume out, and another is begun and charged.",
            )
        return None

    def _refuse(self, fits: list[Record], way_out: str) -> None:
        if fits:
            raise OtherRunError(
                f"--resume {AUTO}: this command did not begin what this machine keeps:{self._listed(fits)}\n{way_out}"
            )

    def _listed(self, fits: Iterable[Record]) -> str:
        """Return a line for each fit: its state, its account, and how its command differs from this one."""
        lines = []
        for fit in fits:
            state = {"RELEASED": "ended", "SETTLED": "settled"}.get(fit.state, "unfinished")
            differs = self._differs(fit.fit_id)
            why = "no note of its command" if differs is None else ""
            if differs:
                why = f"begun with other {' and '.join(differs)}"
            lines.append(", ".join(filter(None, (f"{state}, account {fit.account!r}", why))))
        return "".join(f"\n  {fit.fit_id} ({line})" for fit, line in zip(fits, lines, strict=True))

    def _fits_here(self, account: str) -> list[Record]:
        """Return the fits that were begun in this ledger's folder; of a file, those of the account alone."""
        folder = self.directory
        assert folder is not None  # the ledger is durable
        left = {
            path.stem
            for kind in ("*.key", "journals/*.jsonl", "commands/*.json")
            for path in folder.glob(kind)
        }
        found = [fit for fit in self.fits(account) if fit.fit_id in left]
        left -= {fit.fit_id for fit in found}
        if left and self.folder_of_one_run:
            for other in self.accounts():
                if other.name != account:
                    found += [fit for fit in self.fits(other.name) if fit.fit_id in left]
        return found

    def _note_path(self, fit_id: str) -> Path:
        folder = self.directory
        assert folder is not None  # the ledger is durable
        return folder / "commands" / f"{fit_id}.json"

    def _differs(self, fit_id: str) -> list[str] | None:
        """Return what of a fit's command differs from this one; None where there is no note of it."""
        try:
            noted = json.loads(self._note_path(fit_id).read_bytes())
            return [name for name, told in self._command.items() if noted.get(name) != told]
        except (OSError, ValueError, AttributeError):
            return None

    def _write_note(self, fit_id: str) -> None:
        """Write the note of a fit and make it durable."""
        path = self._note_path(fit_id)
        part = path.with_suffix(".part")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(self._command, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            sync_directory(path.parent)
            sync_directory(path.parent.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise LedgerUnavailableError(
                f"The note {str(path)!r} of what is fitted cannot be written ({error.strerror}), so nothing is charged."
                " Make room, or its folder writable: beside the ledger's file, or for a server's below XDG_DATA_HOME."
            ) from error
