"""The place of a data set, a local folder or a URL, and the errors raised if it is not as it was written."""

import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fsspec
import zarr

from dpgb_dask import remote
from dpgb_dask.errors import StructureError
from dpgb_dask.names import WEIGHT
from dpgb_dask.whole_files import name_of

ATTRIBUTE = "dpgb_dask"
METADATA = "zarr.json"  # metadata file of a group or an array
REPLACE = "overwrite=True (on the command line: --overwrite)"
AGAIN = f"Write it again, with {REPLACE}."


class Place:
    """A local folder or a URL. The driver and every task make their own.

    A link stays, and the folder that it names is the place.
    """

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self.path = path
        self._options = options
        local = remote.local_path(path)
        self.folder = None if local is None else Path(os.path.realpath(local))

    @classmethod
    def named(cls, path: Any, options: Mapping[str, Any] | None) -> "Place":
        """Return the place that a caller names; raises as `name_of` and `remote.options_of`."""
        return cls(name_of(path), remote.options_of(options))

    def __repr__(self) -> str:
        return f"<place {self.path!r}>"  # options may hold a password

    def open(self, mode: Any) -> zarr.Group:
        """Open the group.

        Raises
        ------
        StructureError
            If there is no group.
        """
        if not self.exists():
            raise StructureError(
                f"path={self.path!r} does not exist. Give what write_dataset or dpgb-dask convert wrote."
            )
        refused = None
        try:
            return zarr.open_group(self._store, mode=mode, storage_options=self._options or None)
        except OSError as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                if self.folder is not None:
                    raise
                refused = remote.failed(self.path, error)
        except Exception:
            pass
        if refused is not None:
            raise refused
        raise damaged_facts(self.path) if self._is_wreck() else no_data_set(self.path)

    def create(self, facts: Mapping[str, Any]) -> zarr.Group:
        """Create the group, with its attribute."""
        attributes = {ATTRIBUTE: dict(facts)}
        with nullcontext() if self.folder is not None else remote.saying(self.path):
            return zarr.create_group(
                self._store, attributes=attributes, storage_options=self._options or None
            )

    @property
    def _store(self) -> str | Path:
        if self.folder is not None:
            return self.folder
        self._files()  # raises a clearer error than Zarr would
        return self.path

    def exists(self) -> bool:
        """Whether anything exists here."""
        if self.folder is not None:
            return self.folder.exists()
        return remote.is_there(self.path, self._options)

    def id(self) -> str:
        """Return the id of the data set here, complete or not; "" if there is none."""
        try:
            facts = self.open("r").attrs.get(ATTRIBUTE)
        except StructureError:
            return ""
        return str(facts.get("id", "")) if isinstance(facts, Mapping) else ""

    def sizes(self, name: str) -> dict[str, int]:
        """Return the size of every object below a folder, by its name there, from one listing."""
        files, root = fsspec.core.url_to_fs(str(self.folder)) if self.folder else self._files()
        base = f"{root.rstrip('/')}/{name}/"
        found = files.find(base, detail=True)
        return {path.split(base, 1)[-1]: int(info["size"]) for path, info in found.items()}

    def is_ours(self) -> bool:
        """Whether a data set was begun here, even if it is damaged."""
        try:
            facts = self.open("r").attrs.get(ATTRIBUTE)
        except StructureError:
            return self._is_wreck()
        return is_said(facts)

    def _is_wreck(self) -> bool:
        """Whether a place that cannot be opened as a group holds parts of a data set and nothing else."""
        files, root = fsspec.core.url_to_fs(str(self.folder)) if self.folder else self._files()
        names = {str(Path(path).relative_to(root)) for path in files.find(root, maxdepth=2)}
        tops = {name.split("/")[0] for name in names}
        parts = {METADATA, *(f"{name}/{METADATA}" for name in ("X", "y"))}
        return parts <= names and tops <= {METADATA, "X", "y", WEIGHT, "unit"}

    def take(self, *, overwrite: bool) -> "Place":
        """Return an empty place to write to: this one or, where a local data set is to be replaced, one beside it.

        Raises
        ------
        StructureError
            If something exists and may not be replaced, or the parent folder does not exist.
        """
        self._put_back()
        taken = self
        if self.exists():
            if not overwrite:
                raise StructureError(
                    f"path={self.path!r} exists already. Choose another; or replace it, if it is a data set:"
                    f" {REPLACE}."
                )
            if not self.is_ours():
                raise StructureError(
                    f"path={self.path!r} is no data set of this library, and is not replaced. Choose another."
                )
            if self.folder is None:
                self.remove()
            else:
                beside = f".dpgb-part-{secrets.token_hex(8)}-{self.folder.name}"
                taken = Place(str(self.folder.with_name(beside)), self._options)
        if taken.folder is not None:
            if not taken.folder.parent.is_dir():
                raise StructureError(
                    f"path={self.path!r}: the folder around it does not exist. Make it first."
                )
            taken.folder.mkdir(mode=0o700)
        return taken

    def put(self, written: "Place") -> None:
        """Put a data set, complete and in the place that `take` gave, where it belongs; what was there goes."""
        if written is self:
            return
        assert self.folder is not None
        assert written.folder is not None
        old = self._replaced
        if old.exists():  # of a process that was killed after it had put its own in place
            shutil.rmtree(old)
        try:
            self.folder.rename(old)
            written.folder.rename(self.folder)
        finally:
            self._put_back()
        shutil.rmtree(old, ignore_errors=True)

    @property
    def _replaced(self) -> Path:
        assert self.folder is not None
        return self.folder.with_name(f".dpgb-old-{self.folder.name}")

    def _put_back(self) -> None:
        """Put back what was taken away where nothing has taken its place, as the process was killed."""
        if self.folder is not None and not self.folder.exists() and self._replaced.is_dir():
            self._replaced.rename(self.folder)

    def close(self) -> None:
        """Close every local file to other users; until now only their folder was closed."""
        if self.folder is None:
            return
        for path in self.folder.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)

    def remove(self) -> None:
        """Remove everything here."""
        if self.folder is not None:
            shutil.rmtree(self.folder)
            return
        files, root = self._files()
        with remote.saying(self.path):
            if files.exists(root):
                files.rm(root, recursive=True)

    def _files(self) -> tuple[Any, str]:
        """Return the file system and the path in it; raises as `remote.open_files`."""
        return remote.open_files(self.path, self._options)


def is_said(facts: Any) -> bool:
    """Whether the attribute is that of a data set of any format."""
    return isinstance(facts, Mapping) and "format" in facts


def no_data_set(path: str) -> StructureError:
    """Return the error for a path that holds something else."""
    return StructureError(
        f"path={path!r} is no data set: neither write_dataset nor dpgb-dask convert wrote it. Write one with either;"
        " zarr.open opens other Zarr stores."
    )


def damaged_facts(path: str) -> StructureError:
    """Return the error for a data set whose attribute or metadata were changed."""
    return StructureError(
        f"path={path!r} is damaged: what it says of itself is not what was written. {AGAIN} Or put a copy back."
    )


def lacks_parts(path: str) -> StructureError:
    """Return the error for a data set with missing or shortened objects."""
    return StructureError(
        f"path={path!r} lacks parts that were written once, or parts of parts. {AGAIN}"
    )
