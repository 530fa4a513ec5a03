"""Faults at the steps that make a fit durable: before, in the middle of and after every write, sync and commit.

`Steps` numbers the steps in order. A test runs a fit once to learn their names, and again with a fault at one of them.
"""

import errno
import os
import signal
import sqlite3
from pathlib import Path
from unittest import mock

from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import OperationalError

from dpgb_dask.controller.ledger_book import Book


def kill(_name):
    """End this process as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(_name):
    """Press Ctrl-C."""
    raise KeyboardInterrupt


def fill_disk(name):
    """Fail as on a full disk; only where something is written."""
    _fail(name, errno.ENOSPC, "database or disk is full")


def forbid_writing(name):
    """Fail as on a file system that became read-only."""
    _fail(name, errno.EROFS, "attempt to write a readonly database")


def _fail(name, number, words):
    if name.startswith("commit"):
        raise OperationalError("COMMIT", None, sqlite3.OperationalError(words))
    raise OSError(number, os.strerror(number))


class Steps:
    """Durable steps of this process, on files of one folder, while the context is open.

    Parameters
    ----------
    folder : Path
    fault : callable
        Called with the name of the step.
    at : int or None
        Number of the step at which it is called; -1 for none, None for each.

    Attributes
    ----------
    names : list of str
        Of the steps so far, such as "commit OPENED, before" or "write journal, half".
    """

    def __init__(self, folder, fault=kill, at=-1):
        self.names = []
        self._folder = folder
        self._fault, self._at = fault, at
        self._kind = ""  # of the newest entry that is not committed yet

    def __enter__(self):
        self._patches = [
            mock.patch.object(os, name, self._around(name, getattr(os, name)))
            for name in ("open", "write", "pwrite", "fsync", "replace", "unlink")
        ]
        self._patches += [
            mock.patch.object(
                DefaultDialect, "do_commit", self._committing(DefaultDialect.do_commit)
            ),
            mock.patch.object(Book, "append", self._appending(Book.append)),
        ]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_error):
        for patch in self._patches:
            patch.stop()

    def _step(self, name):
        self.names.append(name)
        if self._at in (None, len(self.names) - 1):
            self._fault(name)

    def _around(self, name, real):
        def call(target, *args, **options):
            path = _path(target)
            if not path.is_relative_to(self._folder):
                return real(target, *args, **options)
            where = f"{name.removeprefix('p')} {_what(path)}"
            self._step(f"{where}, before")
            if name in ("write", "pwrite"):
                self._step_half(where, real, target, *args)
            result = real(target, *args, **options)
            self._step(f"{where}, after")
            return result

        return call

    def _step_half(self, where, real, target, data, *offset):
        if len(self.names) == self._at:
            real(target, data[: len(data) // 2], *offset)
        self._step(f"{where}, half")

    def _committing(self, real):
        def commit(dialect, connection):
            if not self._kind:  # nothing was written
                real(dialect, connection)
                return
            kind, self._kind = self._kind, ""
            self._step(f"commit {kind}, before")
            real(dialect, connection)
            self._step(f"commit {kind}, after")

        return commit

    def _appending(self, real):
        def append(book, kind, *args):
            real(book, kind, *args)
            self._kind = kind

        return append


def _path(target):
    """Return the path of a file or of an open descriptor."""
    return Path(os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target)


def _what(path):
    """Name a file of the ledger by what it is for."""
    if path.suffix == ".key":
        return "key"
    if path.suffix == ".jsonl":
        return "journal"
    if path.stem == "head":
        return "head"
    return "folder" if path.is_dir() else path.suffix or path.name
