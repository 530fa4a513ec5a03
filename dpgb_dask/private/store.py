"""Where a process keeps the encoded rows of a fit."""

import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

from dpgb_dask.private.pieces import Piece

Kept = Piece


@dataclass(frozen=True, slots=True)
class Keeping:
    """How the encoded rows of a fit are kept; the same for all its processes.

    Parameters
    ----------
    cache : str
        "auto", "memory", "disk", a folder, or the URL of a Zarr store.
    memory_limit : int or None
        Bytes of one process, everything included; None for a share of what Dask grants it, or the machine has.
    folder : str or None
        Where scratch goes; None for the worker's own folder, or the folder of temporary files.
    key : bytes
        32 secret bytes of the fit.
    n_scores : int
        Scores of a row: what a shard will hold beside the codes.
    version : bytes
        What durable codes are of: `version_of`; empty if none are read back.
    """

    cache: str
    memory_limit: int | None
    folder: str | None
    key: bytes = field(repr=False)
    n_scores: int = 1
    version: bytes = field(default=b"", repr=False)


class Store:
    """The encoded rows that one process keeps of one fit."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping

    def __repr__(self) -> str:
        return "<store>"

    def keep(self, pieces: Iterable[Piece], number: int) -> tuple[Kept, ...]:  # noqa: ARG002
        """Return the pieces of a chunk as they are kept."""
        return tuple(pieces)


_STORES: weakref.WeakValueDictionary[tuple[str, Keeping], Store] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def store_of(fit: str, keeping: Keeping) -> Store:
    """Return this process's store for a fit: one as long as anything holds it."""
    with _LOCK:
        store = _STORES.get((fit, keeping))
        if store is None:
            store = _STORES[fit, keeping] = Store(keeping)
        return store
