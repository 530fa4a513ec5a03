"""A Zarr store whose objects are encrypted and bound to their names and to a key."""

import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore, LocalStore

from dpgb_dask.errors import LostCodesError

NONCE_BYTES = 12


class Sealed(Store):
    """A store whose objects are encrypted and bound to their names and to a key.

    Parameters
    ----------
    store : Store
    key : bytes
        32 bytes.

    Notes
    -----
    It has what Zarr asks of every store, and nothing else of the one inside: a subclass of ``WrapperStore`` would also
    pass on what later versions of Zarr add, such as a second way to write, past the encryption.
    """

    supports_writes = supports_deletes = supports_listing = True

    def __init__(self, store: Store, key: bytes) -> None:
        super().__init__(read_only=store.read_only)
        self._store = store
        self._key = key
        self._seal = AESGCM(key)

    def __repr__(self) -> str:
        return "<sealed store>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sealed):
            return False
        return self._key == other._key and bool(self._store == other._store)

    def __hash__(self) -> int:
        return hash(self._key)

    def with_read_only(self, read_only: bool = False) -> "Sealed":
        """Return a store of the same objects that may be written to, or not."""
        return Sealed(self._store.with_read_only(read_only), self._key)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return an object, decrypted; always the whole object, as no array here is sharded."""
        assert byte_range is None
        sealed = await self._store.get(key, prototype)
        if sealed is None:
            if self.read_only and "/c/" in key:  # Zarr would read a missing chunk as zeros
                raise LostCodesError("An object of encoded rows is gone.")
            return None
        data = sealed.to_bytes()
        opened = self._seal.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], key.encode())
        return prototype.buffer.from_bytes(opened)

    async def set(self, key: str, value: Buffer) -> None:
        """Store an object, encrypted under a new nonce."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + self._seal.encrypt(nonce, value.to_bytes(), key.encode())
        await self._store.set(key, value.from_bytes(sealed))

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Return objects, decrypted, as `get` does."""
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    # ---- names, which are not secret

    async def exists(self, key: str) -> bool:
        """Return whether there is an object of a name."""
        return await self._store.exists(key)

    async def delete(self, key: str) -> None:
        """Delete an object."""
        await self._store.delete(key)

    async def delete_dir(self, prefix: str) -> None:
        """Delete all objects below a prefix."""
        await self._store.delete_dir(prefix)

    def list(self) -> AsyncIterator[str]:
        """Yield the names of all objects."""
        return self._store.list()

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of all objects below a prefix."""
        return self._store.list_prefix(prefix)

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of what lies directly below a prefix."""
        return self._store.list_dir(prefix)

    def close(self) -> None:
        """Close the store inside."""
        self._store.close()
        super().close()


def open_sealed(place: Path | str, key: bytes, *, read_only: bool) -> Sealed:
    """Open a folder, or a URL that fsspec opens, as a store whose objects are encrypted."""
    store: Store
    if isinstance(place, Path):
        store = LocalStore(place, read_only=read_only)
    else:
        store = FsspecStore.from_url(place, read_only=read_only)
    return Sealed(store, key)
