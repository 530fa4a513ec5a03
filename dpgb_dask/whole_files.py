"""Files and folders on this machine that are whole or not there, whatever ends the process that writes them.

What takes the place of something is written beside it, in a folder of its own, `.dpgb-part-…-NAME`, which its writer
keeps locked; a folder that it replaces is called `.dpgb-old-NAME` for the moment between two renames.
"""

import errno
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from stat import S_IMODE
from typing import Any

from dpgb_dask.errors import StructureError, level_outside

# errors of a process that renames where another one does
MET = frozenset({errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY})
# errors of disks on which a file has one name, such as those of some memory cards and network shares; or has others in
# its own folder alone, as on AFS
NO_LINKS = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
)

fcntl: Any = None
with suppress(ImportError):  # POSIX alone has it
    fcntl = import_module("fcntl")


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


def file_of(path: Any) -> Path:
    """Return the path of a file on this machine that a caller gives; raises as `name_of`, and of a URL."""
    name = name_of(path)
    if "://" in name:
        raise StructureError(
            f"path={name!r} is a URL. Give the path of a file on this machine, and copy it from there."
        )
    return path_of(name)


def folder_of(path: Path) -> Path:
    """Return the folder in which a file is written: also where ``path`` is a link, that of the file it names."""
    return Path(os.path.realpath(path)).parent


def write_given(path: object, place: Path, data: bytes) -> None:
    """Write a file as `write_whole` does, at the place that a caller named by ``path``.

    Raises
    ------
    StructureError
        If it cannot be written.
    """
    try:
        write_whole(place, data)
    except OSError as error:
        way_out = {
            errno.ENOENT: "Make its folder first",
            errno.EISDIR: "Name a file in it",
        }.get(error.errno or 0, "Make room")
        raise StructureError(
            f"{str(path)!r} cannot be written: {error.strerror}. {way_out}, or write it elsewhere."
        ) from None


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


@contextmanager
def replacing(place: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a path to write a file or a folder to, which then takes a place; until it is complete what was there stays.

    Parameters
    ----------
    place : Path
        No link; what is there is a folder if what is written is one.
    overwrite : bool
        Whether it may replace what is there. Of several that may, the last one's is there.

    Yields
    ------
    Path
        In a folder beside the place that is closed to other users, and of the place's own name.

    Raises
    ------
    StructureError
        If nothing can be written beside the place; or if another process has put something in place meanwhile, which
        stays.
    OSError
        If it cannot be put there. Nothing incomplete is left.
    """
    folder = place.with_name(part_name(place.name))
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise StructureError(
            f"{str(place)!r} cannot be written ({error.strerror}). Choose a folder that this process may write, and"
            " that has room."
        ) from None
    lock = None
    try:
        with suppress(OSError, AttributeError):  # there may be no locks here
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_SH)  # until this process ends, however it ends
        part = folder / place.name
        yield part
        if not overwrite and os.path.lexists(place):
            raise _taken(place)
        _put_in_place(part, place, overwrite=overwrite)
    finally:
        if lock is not None:
            os.close(lock)
        _remove(folder)


def _put_in_place(part: Path, place: Path, *, overwrite: bool) -> None:
    """Give a place to what was written beside it; raises as `replacing`."""
    try:
        if not overwrite and part.is_file():
            _link(part, place)
        else:
            if overwrite and place.is_dir():  # one folder cannot be renamed over another
                _take_away(place)
            part.replace(place)
    except OSError as error:
        if error.errno not in MET:
            raise
        raise _taken(place) from None
    finally:
        put_back(place)
    _remove(replaced_by(place))


def _link(part: Path, place: Path) -> None:
    """Give a file a place where nothing is; a rename would replace what another process put there meanwhile."""
    try:
        place.hardlink_to(part)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        part.replace(place)


def _take_away(place: Path) -> None:
    """Rename a folder; one of that name is removed only while the place has another, as it may be all there is."""
    old = replaced_by(place)
    try:
        place.rename(old)
    except OSError as error:
        if error.errno not in MET or not os.path.lexists(place):
            raise
        _remove(old)  # of a process that was killed after it had put its own in place
        place.rename(old)


def _taken(place: Path) -> StructureError:
    return StructureError(
        f"{str(place)!r} was written by another process meanwhile, and what is there now stays. Write again, to"
        " another place or, once no other process writes there, to replace it."
    )


def replaced_by(place: Path) -> Path:
    """Return where a folder lies while another one takes its place."""
    return place.parent / f".dpgb-old-{place.name}"


def is_taken_away(place: Path) -> bool:
    """Whether nothing has taken the place of a folder that was taken away; a link is none, which others may plant."""
    old = replaced_by(place)
    return old.is_dir() and not old.is_symlink() and not os.path.lexists(place)


def put_back(place: Path) -> None:
    """Put back a folder that was taken away where nothing has taken its place, as its process was killed."""
    if is_taken_away(place):
        with suppress(FileNotFoundError):  # its process lives, and has ended with it meanwhile
            replaced_by(place).rename(place)


def part_name(name: str) -> str:
    """Return a new name for what is written beside a place of that name."""
    return f".dpgb-part-{secrets.token_hex(8)}-{name}"


def parts_among(names: Iterable[str], name: str) -> list[str]:
    """Return which of the names in a folder are of what was written beside a place of that name."""
    form = re.compile(rf"\.dpgb-part-[0-9a-f]{{16}}-{re.escape(name)}", re.DOTALL)
    return sorted(filter(form.fullmatch, names))


def parts_beside(place: Path) -> list[Path]:
    """Return what writers have beside a place, or left there as they were killed."""
    with suppress(OSError):
        return [place.with_name(name) for name in parts_among(os.listdir(place.parent), place.name)]
    return []


def remove_left(place: Path) -> None:
    """Remove what killed writers left beside a place; warn of what they may have left, where that cannot be known."""
    warn_of_left(str(place), [str(part) for part in parts_beside(place) if not _is_settled(part)])


def _is_settled(part: Path) -> bool:
    """Remove a part if its writer has ended; return whether nothing is left to say of it."""
    lock = None
    try:
        lock = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe has no end
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(part)
    except (BlockingIOError, FileNotFoundError):  # it is being written, or gone
        return True
    except (OSError, AttributeError):  # another user's, or no locks here
        return False
    finally:
        if lock is not None:
            os.close(lock)
    return not part.exists()


def warn_of_left(place: str, parts: list[str]) -> None:
    """Warn of parts beside a place whose writers may have ended."""
    if parts:
        warnings.warn(
            f"Beside {place!r} lies what another write left as it was killed, or is writing: {', '.join(parts)}. It may"
            " hold rows. Remove it, unless a process is writing there.",
            stacklevel=level_outside(),
        )


def _remove(path: Path) -> None:
    """Remove a file or a folder if it exists; of a link, not what it names."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
