"""Where a command may write: it never replaces its own inputs, nor files that something else wrote."""

import argparse
import os
from contextlib import suppress
from pathlib import Path

import fsspec

from dpgb_dask.cli.tables import KNOWN_FILES
from dpgb_dask.controller.ledger_files import is_of_ledger
from dpgb_dask.errors import StructureError
from dpgb_dask.io.place import local_path
from dpgb_dask.io.text import reading


def check_out(path: Path, *, overwrite: bool, folder: bool = False, option: str = "--out") -> None:
    """Refuse, before any charge, an output that cannot be written, or would replace something.

    Parameters
    ----------
    path : Path
    overwrite : bool
        Allow replacing a file; if ``folder``, also a folder that holds only Parquet.
    folder : bool
        Whether the output is a folder.
    option : str
        Option that names the output, for errors.
    """
    if not path.absolute().parent.is_dir():
        raise StructureError(
            f"{option} {str(path)!r}: its directory does not exist. Make it first."
        )
    if not path.exists():
        return
    if not overwrite:
        raise StructureError(
            f"{option} {str(path)!r} exists already. Choose another name, or give --overwrite."
        )
    if path.is_dir() != folder or (folder and not all(map(_is_parquet, path.iterdir()))):
        kind = "a folder of Parquet files alone" if folder else "a file"
        raise StructureError(
            f"{option} {str(path)!r} is not {kind}, and is not replaced. Choose another name."
        )


def check_spared(options: argparse.Namespace, *written: Path, option: str = "--out") -> None:
    """Refuse to write over, inside or around anything that the command reads, or over files of a ledger.

    Parameters
    ----------
    options : Namespace
        Options of the command; its ``data``, ``schema`` and ``model``, if it has them, are what it reads.
    *written : Path
        The output, and the temporary files that are written before it is complete.
    option : str
        Option that names the output, for errors.

    Raises
    ------
    StructureError
        If a written path meets one that is read; --overwrite makes no difference.
    """
    given = [getattr(options, name, None) for name in ("data", "schema", "model")]
    read = [path for name in given if name is not None for path in _local_paths(str(name))]
    for path in written:
        for one in read:
            if _meet(path, one):
                raise StructureError(
                    f"{option} {str(written[0])!r} would be written where {str(one)!r} is, which is read. Choose"
                    " another place."
                )
        if is_of_ledger(path):
            raise StructureError(
                f"{option} {str(written[0])!r} would be written where a ledger is, and what it holds is never replaced."
                " Choose another place."
            )


def _local_paths(path: str) -> list[Path]:
    """Return the files on this machine that a path, URL or pattern names."""
    if local_path(path) is None:
        return []
    with reading(path, KNOWN_FILES):
        files, root = fsspec.core.url_to_fs(path)
        return [Path(root), *map(Path, files.glob(root))]


def _meet(one: Path, other: Path) -> bool:
    """Whether two paths are the same place under any of its names, or one lies inside the other."""
    with suppress(OSError):
        if one.samefile(other):
            return True
    real, known = (Path(os.path.realpath(path)) for path in (one, other))
    return real.is_relative_to(known) or known.is_relative_to(real)


def _is_parquet(path: Path) -> bool:
    return path.suffix == ".parquet" or path.name in ("_metadata", "_common_metadata")
