"""Files on this machine that are whole or not there, whatever ends the process that writes them."""

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE


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
