"""Encoded chunks in a Zarr store that outlives workers: encrypted under a key of the fit, and verified.

A chunk that was stored for other bins or other rows counts as absent. Each chunk of the source has a folder, and in it
each piece has a set of arrays: codes (Zarr chunks are groups of features), label, weight and identity. Only one task at
a time writes to a folder, so no two tasks write the same Zarr chunk; a task that runs twice writes the same rows. The
number of pieces is written last, after all pieces were read back: without it the chunk counts as absent.
"""

import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from numpy.typing import NDArray

from dpgb_dask import remote
from dpgb_dask.errors import LostCodesError, PlanError, ScratchError
from dpgb_dask.private.reading.rows import Piece
from dpgb_dask.whole_files import path_of

OBJECT_BYTES = 4 << 20  # of a group of features: object stores prefer few and large objects
DONE = "done"  # the array that is written last: the number of pieces
UNFINISHED = -1


def is_durable(cache: str) -> bool:
    """Whether ``cache`` names a Zarr store: a URL, or a path that ends in .zarr."""
    return "://" in cache or cache.endswith(".zarr")


def check_protocol(cache: str) -> None:
    """Raise if a URL's file system is unknown or its package is not installed.

    Raises
    ------
    PlanError
    """
    remote.check_no_password(cache)
    protocol = cache.split("://", maxsplit=1)[0] if "://" in cache else "file"
    try:
        fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError):
        raise PlanError(
            f"cache={cache!r}: no installed package opens {protocol}://. Install it (for s3://: "
            "pip install 'dpgb_dask[s3]'), or choose another place."
        ) from None


class Durable:
    """The chunks of one fit in a Zarr store.

    Parameters
    ----------
    url : str
        A path, or a URL that fsspec opens.
    key : bytes
        32 secret bytes of the fit.
    version : bytes
        Identifies bins, rows and how they are cut into pieces. Objects of another version cannot be decrypted.

    Notes
    -----
    Every object is encrypted by AES-GCM, under a key derived from the fit's key and the version, and its name is
    authenticated. So an object that can be decrypted was written by this fit, for this version and under this name.
    Anyone who can list the store sees the number and sizes of the objects, and so the number of rows; therefore local
    folders are closed to other users.

    Privacy
    -------
    Private side: it holds rows. Error messages contain the URL and types, and nothing of the content.
    """

    def __init__(self, url: str, key: bytes, version: bytes) -> None:
        self._url = url
        local = url.startswith(("file://", "local://"))
        self._is_local = local or "://" not in url
        path = url.split("://", maxsplit=1)[1] if local else url
        path = str(path_of(path)) if self._is_local else path
        self._root = f"{path.rstrip('/')}/dpgb-{_derive(key, b'folder', b'').hex()[:16]}"
        self._path = f"{self._root}/{_derive(key, b'name', version).hex()[:16]}"
        self._seal = _derive(key, b"seal", version)

    def __repr__(self) -> str:
        return "<durable codes>"

    def save(self, number: int, k: int, piece: Piece) -> None:
        """Write piece k of a chunk and read it back.

        Raises
        ------
        ScratchError
            If the piece cannot be written, or what is read back differs.
        """
        try:
            self._write(f"{number}/{k}", piece)
            same = _equal(self._read(f"{number}/{k}"), piece)
        except Exception as error:
            failed = _failed(self._url, type(error).__name__)
        else:
            if same:
                return
            failed = _failed(self._url, "what is read back is not what was written")
        raise failed

    def begin(self, number: int) -> None:
        """Mark a chunk as incomplete before any piece is written, so that a crash cannot mix pieces of two writes.

        Raises
        ------
        ScratchError
            If the mark cannot be written.
        """
        if self._is_local:  # other users of the machine must not see sizes
            Path(self._root).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.finish(number, UNFINISHED)

    def finish(self, number: int, n_pieces: int) -> None:
        """Mark a chunk as complete.

        Raises
        ------
        ScratchError
            If the mark cannot be written.
        """
        try:
            self._put(f"{number}/{DONE}", np.array([n_pieces]), (1,))
        except Exception as error:
            failed = _failed(self._url, type(error).__name__)
        else:
            return
        raise failed

    def load(self, number: int) -> Iterator[Piece] | None:
        """Return the pieces of a chunk one by one; None if it is absent, incomplete or of another version.

        Raises
        ------
        LostCodesError
            From the iterator, if a piece is damaged.
        """
        try:
            (n_pieces,) = self._get(f"{number}/{DONE}").tolist()
        except Exception:  # absent, or encrypted under another key: errors differ by file system
            return None
        return None if n_pieces == UNFINISHED else self._pieces(number, n_pieces)

    def remove(self) -> None:
        """Remove everything that the fit stored, of any version; warn if it cannot be removed."""
        try:
            files, path = fsspec.core.url_to_fs(self._root)
            if files.exists(path):
                files.rm(path, recursive=True)
        except Exception as error:
            warnings.warn(
                f"What the fit kept in {self._url!r} cannot be removed: {type(error).__name__}. Remove it by hand: it "
                f"is in {self._root!r}, encrypted under a key that is gone.",
                stacklevel=2,
            )

    def _pieces(self, number: int, n_pieces: int) -> Iterator[Piece]:
        for k in range(n_pieces):
            try:
                piece = self._read(f"{number}/{k}")
            except Exception:
                break
            yield piece
        else:
            return
        raise LostCodesError(
            f"Encoded rows in {self._url!r} are damaged or gone. They are made again from the source."
        )

    def _write(self, name: str, piece: Piece) -> None:
        n = len(piece)
        group = max(1, min(len(piece.codes), OBJECT_BYTES // max(n, 1)))
        self._put(f"{name}/codes", piece.codes, (group, n))
        for part in ("label", "weight", "identity"):
            array = getattr(piece, part)
            if array is not None:
                self._put(f"{name}/{part}", array, array.shape)
        parts = np.array([piece.weight is not None, piece.identity is not None])
        self._put(f"{name}/parts", parts, parts.shape)

    def _read(self, name: str) -> Piece:
        weight, identity = self._get(f"{name}/parts").tolist()
        return Piece(
            self._get(f"{name}/codes"),
            self._get(f"{name}/label"),
            self._get(f"{name}/weight") if weight else None,
            self._get(f"{name}/identity") if identity else None,
        )

    def _put(self, name: str, array: NDArray[Any], chunks: tuple[int, ...]) -> None:
        import zarr  # noqa: PLC0415 - workers that keep codes elsewhere do without

        zarr.create_array(
            self._store(),
            name=name,
            data=np.ascontiguousarray(array),
            chunks=chunks,
            compressors=None,
            filters=None,
            overwrite=True,
            config={"write_empty_chunks": True},
        )

    def _get(self, name: str) -> NDArray[Any]:
        import zarr  # noqa: PLC0415

        array = zarr.open_array(self._store(read_only=True), path=name, mode="r")
        return np.ascontiguousarray(array[:])

    def _store(self, *, read_only: bool = False) -> Any:
        from dpgb_dask.private.keeping.sealed_objects import open_sealed  # noqa: PLC0415

        place = Path(self._path) if self._is_local else self._path
        return open_sealed(place, self._seal, read_only=read_only)


def version_of(key: bytes, *parts: bytes) -> bytes:
    """Return a keyed hash that identifies one version of a fit's codes: bins, rows and how they are cut. Private."""
    digest = hashlib.blake2b(key=key, digest_size=32, person=b"dpgb-codes")
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _derive(key: bytes, purpose: bytes, version: bytes) -> bytes:
    return version_of(key, b"derive", purpose, version)


def _equal(a: Piece, b: Piece) -> bool:
    def same(x: NDArray[Any] | None, y: NDArray[Any] | None) -> bool:
        return (x is None) == (y is None) and (
            x is None or y is None or (x.dtype == y.dtype and np.array_equal(x, y))
        )

    names = ("codes", "label", "weight", "identity")
    return all(same(getattr(a, name), getattr(b, name)) for name in names)


def _failed(url: str, reason: str) -> ScratchError:
    return ScratchError(
        f"The store {url!r} cannot be written: {reason}. Free space there or choose another place with cache=, then "
        "resume the fit."
    )
