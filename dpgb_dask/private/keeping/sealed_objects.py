"""A Zarr store whose objects are encrypted and bound to their names and to a key."""

import os
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore, LocalStore, WrapperStore

from dpgb_dask.errors import LostCodesError

NONCE_BYTES = 12


class Sealed(WrapperStore[Store]):
    """A store whose objects are encrypted and bound to their names and to a key.

    Parameters
    ----------
    store : Store
    key : bytes
        32 bytes.
    """

    def __init__(self, store: Store, key: bytes) -> None:
        super().__init__(store)
        self._key = key
        self._seal = AESGCM(key)

    def __repr__(self) -> str:
        return "<sealed store>"

    def _with_store(self, store: Store) -> "Sealed":
        return Sealed(store, self._key)

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

    async def _set_many(self, values: Iterable[tuple[str, Buffer]]) -> None:
        for key, value in values:
            await self.set(key, value)

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        for key, prototype, byte_range in requests:
            yield key, await self.get(key, prototype, byte_range)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Store an object, encrypted, unless one of this name exists."""
        if not await self._store.exists(key):
            await self.set(key, value)


def open_sealed(place: Path | str, key: bytes, *, read_only: bool) -> Sealed:
    """Open a folder, or a URL that fsspec opens, as a store whose objects are encrypted."""
    store: Store
    if isinstance(place, Path):
        store = LocalStore(place, read_only=read_only)
    else:
        store = FsspecStore.from_url(place, read_only=read_only)
    return Sealed(store, key)
