"""Files on this machine that are whole or not there, whatever ends the process that writes them."""

import errno
import os
from contextlib import suppress
from pathlib import Path


def part_of(path: Path) -> Path:
    """Return the path of a file while it is incomplete: beside the file, also where ``path`` is a link to it."""
    real = Path(os.path.realpath(path))
    return real.parent / f"{real.name}.part"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, and put it in place once it is complete and on disk; until then what was there stays.

    Parameters
    ----------
    path : Path
        A link stays, and the file that it names is replaced. A pipe or a device is written to as it is.
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
    part, real = part_of(path), Path(os.path.realpath(path))
    try:
        with part.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        part.replace(real)
        folder = os.open(part.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # otherwise a crash may lose the new name
        finally:
            os.close(folder)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
