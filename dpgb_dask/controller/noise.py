"""The secret key of a fit, what is derived from it, and the keyed stream of noise bits."""

import contextlib
import errno
import hashlib
import hmac
import os
import sys
from pathlib import Path
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from dpgb_dask.errors import LedgerUnavailableError, ResumeError

KEY_BYTES = 32
STREAM_BYTES = 1 << 38  # ChaCha20 counts 2**32 blocks of 64 bytes
_WORD = np.dtype("<i8")
_ZEROS = memoryview(bytes(1 << 18))  # encrypted, they are the keystream


class NoiseSource(Protocol):
    """Where the key of a fit comes from.

    With any source other than `SecretNoise` the model is marked as not private, and a ledger is refused: whoever made
    the key may know it.
    """

    def fit_key(self) -> bytes:
        """Return the 32-byte key of one fit."""
        ...


class SecretNoise:
    """The default: 256 bits from the operating system for every fit. There is no seed.

    Privacy
    -------
    Controller side. The guarantee is computational: a keyed stream stands for random bits.
    """

    def fit_key(self) -> bytes:
        """Return 256 fresh bits."""
        return os.urandom(KEY_BYTES)


class KeyStream:
    """ChaCha20 keystream of a 32-byte key, as 64-bit little-endian words; each word is read once.

    Privacy
    -------
    Controller side. The words decide the noise and never leave the controller.
    """

    def __init__(self, key: bytes) -> None:
        # the nonce may be fixed, because a key is used for one stream only: it is bound to a query and its sums
        self._encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
        self._left = STREAM_BYTES

    def read(self, out: NDArray[np.uint64]) -> None:
        """Write the next ``len(out)`` words into ``out``."""
        stream = out.data.cast("B")
        self._left -= len(stream)
        if self._left < 0:
            raise RuntimeError(
                "A keystream of 2**38 bytes is used up: its block counter would repeat."
            )
        for start in range(0, len(stream), len(_ZEROS)):
            part = stream[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(part)], part)
        if sys.byteorder == "big":
            out.byteswap(inplace=True)


class FitKey:
    """The secret key of one fit; everything random or secret in the fit is derived from it.

    Parameters
    ----------
    key : (32,) bytes

    Privacy
    -------
    Controller side. HKDF labels separate the uses, so that one derived key tells nothing about another: the noise
    cannot be computed from the keys that go to workers (`fingerprint`, `rows`). The ledger holds only `commitment`.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"A fit key has {KEY_BYTES} bytes.")
        self._key = key
        self._noise = hmac.new(self.derive("noise"), digestmod="sha256")
        self._sealing = hmac.new(self.derive("seal"), digestmod="sha256")

    def derive(self, label: str) -> bytes:
        """Return the 32-byte key for one use, named by its label."""
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"dpgb_dask/" + label.encode()).derive(
            self._key
        )

    @property
    def commitment(self) -> str:
        """Public commitment to the key, for the ledger."""
        return hashlib.sha256(b"dpgb_dask commitment" + self.derive("commitment")).hexdigest()

    def seal(self, label: str, *content: bytes | memoryview) -> str:
        """Return a keyed hash of private content: it shows whether two contents are equal, and nothing else."""
        mac = self._sealing.copy()
        mac.update(label.encode() + b"\0")
        for part in content:  # which may be too long for one call, and for a copy
            mac.update(part)
        return mac.hexdigest()

    def stream(self, query_id: bytes, sums: NDArray[np.int64]) -> KeyStream:
        """Return the noise stream of one query on one vector of sums.

        Privacy
        -------
        Keyed by PRF(noise key, query id ‖ SHA-256(sums)). The same query on the same sums draws the same noise, so a
        second attempt after a crash reveals nothing new. Other sums draw independent noise: if the query alone were the
        key, two answers would differ by exactly the difference of their sums (docs/privacy.md P10).
        """
        mac = self._noise.copy()
        mac.update(query_id + canonical(sums))
        return KeyStream(mac.digest())

    def __repr__(self) -> str:
        return "FitKey(<secret>)"


def canonical(sums: NDArray[np.int64]) -> bytes:
    """Return SHA-256 of a vector of sums, the same on every machine."""
    digest = hashlib.sha256(b"int64:%d:" % len(sums))
    digest.update(np.ascontiguousarray(sums, _WORD).data)
    return digest.digest()


def write_key(path: Path, key: bytes) -> None:
    """Write a fit key to a new file that only its owner can read, and make it durable.

    Raises
    ------
    LedgerUnavailableError
        If the file cannot be made; nothing is left behind.
    """
    made = False
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        made = True
        try:
            if os.write(descriptor, key) != len(key):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(path.parent)
    except BaseException as error:
        if made:  # a file that was there before is the key of another fit
            with contextlib.suppress(OSError):
                path.unlink()
        if not isinstance(error, OSError):  # Ctrl-C
            raise
        raise LedgerUnavailableError(
            f"The key file {str(path)!r} cannot be written ({error.strerror}), so nothing is charged. "
            "Make room, or its folder writable: beside the ledger's file, or for one on a server below XDG_DATA_HOME."
        ) from error


def read_key(path: Path) -> bytes:
    """Read a fit key back, to resume.

    Raises
    ------
    ResumeError
        If the file is gone: the fit ended or was settled, or it ran on another machine.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ResumeError(
            f"The key {str(path)!r} cannot be read ({error.strerror}): the fit ended, or ran elsewhere. "
            "Resume it where it ran, or settle it: ledger.settle(fit_id), or dpgb-dask ledger settle."
        ) from error


def erase_key(path: Path) -> None:
    """Overwrite a key file and unlink it; a missing file is fine, since erasing may be repeated after a crash.

    Privacy
    -------
    Whoever holds the key can subtract the noise; after this nobody can, as far as the file system overwrites in place.
    """
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.write(descriptor, bytes(KEY_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        path.unlink()
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make new and removed names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
