"""Files on this machine that are whole or not there, whatever ends the process that writes them."""

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from typing import Any

from dpgb_dask.errors import StructureError


def name_of(path: Any) -> str:
    """Return the name that a caller gives, as text.

    Raises
    ------
    TypeError
        If it is no name, but an open file, bytes or a number, whose text would name a file of its own.
    StructureError
        If it names no file.
    """
    text = (
        path if isinstance(path, str) else getattr(type(path), "__fspath__", lambda _: None)(path)
    )
    if not isinstance(text, str):
        raise TypeError(
            f"path is a value of type {type(path).__name__}, and must be a name: give text or a Path."
        )
    if not text or "\0" in text:
        raise StructureError(f"path={text!r} names no file. Give its name.")
    return text


def path_of(name: str | Path) -> Path:
    """Return the path of a file that a caller names; `~` is the user's folder, as it is for Dask and pandas."""
    return Path(os.path.expanduser(name))


def folder_of(path: Path) -> Path:
    """Return the folder in which a file is written: also where ``path`` is a link, that of the file it names."""
    return Path(os.path.realpath(path)).parent


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, and put it in place once it is complete and on disk; until then what was there stays.

    Parameters
    ----------
    path : Path
        A link stays, and the file that it names is replaced; the new one has the old one's permissions. A pipe or a
        device is written to as it is.
    data : bytes

    Raises
    ------
    OSError
        If the file cannot be written. Nothing incomplete is left.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    real = Path(os.path.realpath(path))
    part = real.with_name(f".{secrets.token_hex(8)}.part")  # of this writer alone
    try:
        with part.open("xb") as out:
            if real.exists():
                part.chmod(S_IMODE(real.stat().st_mode))
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        part.replace(real)
        folder = os.open(real.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # otherwise a crash may lose the new name
        finally:
            os.close(folder)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)  # the caller never named the part
        raise
