"""The place of a data set, a local folder or a URL, and the errors raised if it is not as it was written."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import fsspec
import zarr

from dpgb_dask import remote
from dpgb_dask.errors import StructureError
from dpgb_dask.names import WEIGHT
from dpgb_dask.whole_files import (
    is_taken_away,
    name_of,
    part_name,
    parts_among,
    parts_beside,
    put_back,
    remove_left,
    replaced_by,
    replacing,
    warn_of_left,
)

ATTRIBUTE = "dpgb_dask"
METADATA = "zarr.json"  # metadata file of a group or an array
REPLACE = "overwrite=True (on the command line: --overwrite)"
AGAIN = f"Write it again, with {REPLACE}."
WHOLE_IN = "whole_in"  # a fact of what is being replaced: the new data set's name, beside it
PATTERNS = frozenset("*?[")  # which fsspec takes for other names, too, when it removes


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
            raise self._nothing()
        refused = None
        try:
            return zarr.open_group(self._store, mode=mode, storage_options=self._options or None)
        except OSError as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                if self.folder is not None:
                    raise
                refused = remote.failed(self.path, error)
        except StructureError:
            raise
        except Exception:
            pass
        if refused is not None:
            raise refused
        raise damaged_facts(self.path) if self._is_wreck() else no_data_set(self.path)

    def _nothing(self) -> StructureError:
        if self.folder is not None and is_taken_away(self.folder):
            return StructureError(
                f"path={self.path!r} is being replaced, or was as the process was killed. What was there is now"
                f" {str(replaced_by(self.folder))!r}; the next write to the path puts it back."
            )
        return StructureError(
            f"path={self.path!r} does not exist. Give what write_dataset or dpgb-dask convert wrote."
        )

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
        files, _ = self._files()  # raises a clearer error than Zarr would
        if files.protocol == "dir":
            raise StructureError(
                f"path={self.path!r}: Zarr opens no address of dir://. Give that of the folder itself."
            )
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
        return _sizes(files, f"{root.rstrip('/')}/{name}")

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
        names = {_below(root, path) for path in files.find(root, maxdepth=2)}
        tops = {name.split("/")[0] for name in names}
        parts = {METADATA, *(f"{name}/{METADATA}" for name in ("X", "y"))}
        return parts <= names and tops <= {METADATA, "X", "y", WEIGHT, "unit"}

    @contextmanager
    def to_write(self, id: str, *, overwrite: bool) -> Iterator["Place"]:
        """Give an empty place to write a data set to: another beside this one, but at a URL where nothing is, this one.

        What is written beside takes its place, and that of what was here, once the context ends. If it ends by an
        exception, what was written is removed.

        Parameters
        ----------
        id : str
            That of the data set, by which it is told from one that another process writes here.
        overwrite : bool
            Whether it may replace a data set.

        Raises
        ------
        StructureError
            If something exists and may not be replaced, or the parent folder does not exist. If another process writes
            here meanwhile. If a store fails while a complete data set is moved here; it then says where that one is.
        """
        if self.folder is not None:
            put_back(self.folder)
        elif PATTERNS & set(self._files()[1]):
            raise StructureError(
                f"path={self.path!r} has one of {' '.join(sorted(PATTERNS))}, by which a URL would name other data"
                " sets, too. Choose another name."
            )
        elif "::" in self.path:
            raise StructureError(
                f"path={self.path!r} is a chain of addresses, such as of a cache or an archive, by which data sets are"
                " read and not written. Write to an address of one part."
            )
        if there := self.exists():
            self._check_replaceable(overwrite=overwrite)
        if self.folder is not None or there:
            with self._replacing(overwrite=overwrite) as written:
                yield written
        else:
            try:
                yield self
            except BaseException:
                with suppress(StructureError):  # of a store that is gone
                    if self.id() in ("", id):  # and not another process's
                        self._remove_if_possible()
                raise
        self._see_what_is_left()

    def _check_replaceable(self, *, overwrite: bool) -> None:
        if not overwrite:
            raise StructureError(
                f"path={self.path!r} exists already. Choose another; or replace it, if it is a data set: {REPLACE}."
            )
        if not self.is_ours():
            raise StructureError(
                f"path={self.path!r} is no data set of this library, and is not replaced. Choose another."
            )

    @contextmanager
    def _replacing(self, *, overwrite: bool) -> Iterator["Place"]:
        if self.folder is not None:
            if not self.folder.parent.is_dir():
                raise StructureError(
                    f"path={self.path!r}: the folder around it does not exist. Make it first."
                )
            with replacing(self.folder, overwrite=overwrite) as part:
                part.mkdir(mode=0o700)
                yield Place(str(part), self._options)
            return
        written = self._beside(part_name(self._name()))
        try:
            yield written
        except BaseException:
            written._remove_if_possible()  # noqa: SLF001
            raise
        self._move_here(written)

    def _remove_if_possible(self) -> None:
        with suppress(StructureError, FileNotFoundError):  # of a store that is gone
            self.remove()

    def _name(self) -> str:
        """Return the last part of the path.

        Raises
        ------
        StructureError
            If nothing can lie beside it.
        """
        _, root = self._files()
        name = root.rpartition("/")[2]
        if not name or "/" not in root or not self.path.rstrip("/").endswith(name):
            raise StructureError(
                f"path={self.path!r} is all of a store, or lies in an archive, where no other data set can be written"
                " beside it before it is replaced. Remove it first, or choose another path."
            )
        return name

    def _beside(self, name: str) -> "Place":
        """Return the place of another name at the same URL."""
        around = self.path.rstrip("/").removesuffix(self._name())
        return Place(f"{around}{name}", self._options)

    def _move_here(self, written: "Place") -> None:
        """Move a complete data set of a store here, object by object, as stores cannot rename.

        Until all of it is here it stays complete where it was written, which is said by the attribute of what is here.

        Raises
        ------
        StructureError
            If the store fails. It says where the complete data set is.
        """
        failure = None
        try:
            with remote.saying(self.path):
                self._copy_from(written)
        except StructureError as error:
            failure = StructureError(
                f"path={self.path!r} was being replaced as its store failed. The new data set is complete at"
                f" {written.path!r}: open it there, or write again, with {REPLACE}; then remove it there. {error}"
            )
        if failure is not None:
            raise failure
        written._remove_if_possible()  # noqa: SLF001 - what stays is named afterwards

    def _copy_from(self, written: "Place") -> None:
        (files, root), (_, source) = self._files(), written._files()  # noqa: SLF001
        sizes = _sizes(files, source)
        mark = json.loads(files.cat_file(f"{source}/{METADATA}"))
        mark["attributes"][ATTRIBUTE] = {
            "format": mark["attributes"][ATTRIBUTE]["format"],
            "complete": False,
            WHOLE_IN: source.rpartition("/")[2],
        }
        said = json.dumps(mark).encode()
        files.pipe_file(f"{root}/{METADATA}", said)
        if old := [name for name in _sizes(files, root) if name != METADATA]:
            files.rm([f"{root}/{name}" for name in old])
        _copy(files, source, root, [name for name in sizes if name != METADATA])
        files.invalidate_cache()
        if files.cat_file(f"{root}/{METADATA}") != said:
            raise taken(self.path)
        if {**_sizes(files, root), METADATA: sizes[METADATA]} != sizes:
            raise lacks_parts(self.path)
        _copy(files, source, root, [METADATA])  # and with it the mark of completeness

    def _see_what_is_left(self) -> None:
        """Remove what killed writers left beside this place, or warn of it where it may be in use."""
        if self.folder is not None:
            remove_left(self.folder)
            return
        left: list[str] = []
        with suppress(Exception):  # this process may not list the folder around it
            files, root = self._files()
            listed = files.ls(root.rpartition("/")[0], detail=False)
            names = (name.rstrip("/").rpartition("/")[2] for name in listed)
            left = [self._beside(name).path for name in parts_among(names, self._name())]
        warn_of_left(self.path, left)

    def parts(self) -> list["Place"]:
        """Return where killed writers may have left a data set for this place, which is removed after a write.

        What is closed to this process is another user's, and stays.
        """
        if self.folder is None:
            return []
        return [
            Place(str(part / self.folder.name), self._options)
            for part in parts_beside(self.folder)
            if os.access(part, os.R_OK | os.X_OK)
        ]

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


def _sizes(files: Any, folder: str) -> dict[str, int]:
    """Return the size of every object below a folder, by its name there, from one listing."""
    found = files.find(f"{folder}/", detail=True)
    return {_below(folder, path): int(info["size"]) for path, info in found.items()}


def _below(folder: str, path: str) -> str:
    """Return the name of an object below a folder; a store may begin one of both by a slash."""
    return path.lstrip("/").removeprefix(f"{folder.strip('/')}/")


def _copy(files: Any, source: str, target: str, names: list[str]) -> None:
    """Copy objects within a store; one that cannot copy has them read and written by this process."""
    pairs = [(f"{source}/{name}", f"{target}/{name}") for name in names]
    try:
        files.copy(*map(list, zip(*pairs, strict=True)))
    except NotImplementedError:
        for one, other in pairs:
            files.pipe_file(other, files.cat_file(one))


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


def taken(path: str) -> StructureError:
    """Return the error for a place at which another process has begun to write."""
    return StructureError(
        f"path={path!r} is written by another process, which began after this one, and what that one writes stays."
        f" Write again, to another path or, once no other process writes there, with {REPLACE}."
    )


def lacks_parts(path: str) -> StructureError:
    """Return the error for a data set with missing or shortened objects."""
    return StructureError(
        f"path={path!r} lacks parts that were written once, or parts of parts. {AGAIN}"
    )
