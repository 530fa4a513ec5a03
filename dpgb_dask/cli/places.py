"""Where a command may write: it never replaces its own inputs, nor files that something else wrote."""

import argparse
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import fsspec

from dpgb_dask import remote
from dpgb_dask.cli.tables import KNOWN_FILES
from dpgb_dask.controller.ledger_files import is_of_ledger
from dpgb_dask.errors import StructureError
from dpgb_dask.io.text import reading
from dpgb_dask.whole_files import folder_of


def check_out(
    path: Path | str, *, overwrite: bool, folder: bool = False, option: str = "--out"
) -> None:
    """Refuse, before any charge, an output that cannot be written, or would replace something.

    Something is written for a try: at a URL an empty file; on this machine beside the output, as all outputs are whole
    before they take its place.

    Parameters
    ----------
    path : Path or str
        A string is a URL.
    overwrite : bool
        Allow replacing a file; if ``folder``, also a folder that holds only Parquet.
    folder : bool
        Whether the output is a folder.
    option : str
        Option that names the output, for errors.
    """
    if str(path) == "-":
        raise StructureError(f"{option} '-': the output is a file and not a stream. Give its name.")
    if isinstance(path, str):
        if remote.is_there(path) and not overwrite:
            raise _exists_already(path, option)
        remote.check_writable(path)
        return
    if not path.absolute().parent.is_dir():
        raise StructureError(
            f"{option} {str(path)!r}: its directory does not exist. Make it first."
        )
    if path.exists():
        if not overwrite:
            raise _exists_already(path, option)
        if path.is_dir() != folder or (folder and not all(map(_is_parquet, path.iterdir()))):
            kind = "a folder of Parquet files alone" if folder else "a file"
            raise StructureError(
                f"{option} {str(path)!r} is not {kind}, and is not replaced. Choose another name."
            )
        if not (folder or path.is_file()):  # a pipe or a device is written to as it is
            return
    try:
        with tempfile.TemporaryFile(dir=folder_of(path)) as file:
            file.write(b"\0")
    except OSError as error:
        raise StructureError(
            f"{option} {str(path)!r} cannot be written ({error.strerror}). Choose a folder that this process may write,"
            " and that has room."
        ) from None


def _exists_already(path: Path | str, option: str) -> StructureError:
    return StructureError(
        f"{option} {str(path)!r} exists already. Choose another name, or give --overwrite."
    )


def check_spared(options: argparse.Namespace, *written: Path | str, option: str = "--out") -> None:
    """Refuse to write over, inside or around anything that the command reads, or over files of a ledger.

    Parameters
    ----------
    options : Namespace
        Options of the command; its ``data``, ``schema`` and ``model``, if it has them, are what it reads.
    *written : Path or str
        The output, and the temporary files that are written before it is complete; a string is a URL.
    option : str
        Option that names the output, for errors.

    Raises
    ------
    StructureError
        If a written path meets one that is read; --overwrite makes no difference.
    """
    names = (getattr(options, name, None) for name in ("data", "schema", "model"))
    given = [str(name) for name in names if name is not None]
    read: list[Path | str] = []
    for name in given:
        read += _local_paths(name) or (name,)
    for path in written:
        for one in read:
            if _meet(path, one):
                raise StructureError(
                    f"{option} {str(written[0])!r} would be written where {str(one)!r} is, which is read. Choose"
                    " another place."
                )
        if isinstance(path, Path) and is_of_ledger(path):
            raise StructureError(
                f"{option} {str(written[0])!r} would be written where a ledger is, and what it holds is never replaced."
                " Choose another place."
            )


def _local_paths(path: str) -> list[Path]:
    """Return the files on this machine that a path, URL or pattern names."""
    if remote.local_path(path) is None:
        return []
    with reading(path, KNOWN_FILES):
        files, root = fsspec.core.url_to_fs(path)
        return [Path(root), *map(Path, files.glob(root))]


def _meet(one: Path | str, other: Path | str) -> bool:
    """Whether two places are the same under any of its names, or one lies inside the other; a string is a URL."""
    if isinstance(one, str) or isinstance(other, str):
        urls = [f"{place}".rstrip("/") + "/" for place in (one, other)]
        return urls[0].startswith(urls[1]) or urls[1].startswith(urls[0])
    with suppress(OSError):
        if one.samefile(other):
            return True
    real, known = (Path(os.path.realpath(path)) for path in (one, other))
    return real.is_relative_to(known) or known.is_relative_to(real)


def _is_parquet(path: Path) -> bool:
    return path.suffix == ".parquet" or path.name in ("_metadata", "_common_metadata")
