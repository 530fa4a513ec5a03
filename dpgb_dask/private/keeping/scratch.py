"""A scratch file without a name. It holds extents; an extent holds parts, each with a checksum.

Buffers to read into are kept here too, and used again.
"""

import bisect
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Sequence

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from dpgb_dask.errors import LostCodesError, ScratchError

MOST_VECTORS = 512  # arrays of one system call; Linux takes 1024
ZEROS = np.zeros(1 << 20, np.uint8)


class Scratch:
    """A file without a name, which belongs to one process: it is gone when the process ends, however that happens.

    Parameters
    ----------
    folder : str or None
        A folder on the file system to write to; None for the folder of temporary files.

    Raises
    ------
    ScratchError
        If no file can be made there.

    Notes
    -----
    The file is made with mode 0600. If the file system allows it, it never has a name; otherwise it is unlinked at
    once. When its last extent is garbage-collected, the file is closed and its space is free again.

    Privacy
    -------
    Private side: it holds rows. Error messages contain the folder and what to do, but no size.
    """

    def __init__(self, folder: str | None) -> None:
        self.folder = folder or tempfile.gettempdir()
        self.bytes_read = 0
        self._lock = threading.Lock()
        self._end = 0
        self._holes: list[tuple[int, int]] = []  # (offset, size), by offset, never adjacent
        # filled by finalizers, which must not wait for a lock
        self._freed: deque[tuple[int, int]] = deque()
        self._buffers: list[NDArray[np.uint8]] = []
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            self._file = tempfile.TemporaryFile(buffering=0, dir=self.folder)  # noqa: SIM115
        except OSError as error:
            raise _failed(self.folder, error) from None
        weakref.finalize(self, self._file.close)

    def __repr__(self) -> str:
        return "<scratch>"

    def write(self, parts: Sequence[NDArray[np.uint8]]) -> "Extent":
        """Write parts one after the other.

        Parameters
        ----------
        parts : sequence of ((size,) uint8)

        Raises
        ------
        ScratchError
            If the disk is full or fails.
        """
        extent = Extent(self, [part.size for part in parts])
        for k, part in enumerate(parts):
            extent.checks[k] = google_crc32c.value(part)
        self._write(extent.offset, [part for part in parts if part.size])
        return extent

    def reserve(self, size: int) -> "Extent":
        """Return an extent of one part, for which space on the disk is allocated: later writes cannot run out of it.

        Raises
        ------
        ScratchError
            If the disk has too little space.
        """
        extent = Extent(self, [size])
        if not hasattr(os, "posix_fallocate"):  # macOS
            for start in range(0, size, len(ZEROS)):
                self._write(extent.offset + start, [ZEROS[: size - start]])
            return extent
        try:
            os.posix_fallocate(self._file.fileno(), extent.offset, max(size, 1))
        except OSError as error:
            raise _failed(self.folder, error) from None
        return extent

    def rewrite(self, extent: "Extent", part: NDArray[np.uint8]) -> None:
        """Overwrite the only part of an extent.

        Raises
        ------
        ScratchError
            If the disk fails.
        """
        extent.checks[0] = google_crc32c.value(part)
        self._write(extent.offset, [part])

    def _write(self, offset: int, parts: list[NDArray[np.uint8]]) -> None:
        try:
            while parts:
                done = os.pwritev(
                    self._file.fileno(), [part.data for part in parts[:MOST_VECTORS]], offset
                )
                offset += done
                while parts and done >= parts[0].size:
                    done -= parts.pop(0).size
                if done:
                    parts[0] = parts[0][done:]
        except OSError as error:
            raise _failed(self.folder, error) from None

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        """Fill ``out`` with the bytes that start at ``offset``.

        Raises
        ------
        LostCodesError
            If they cannot be read.
        """
        self.bytes_read += out.size
        try:
            while out.size:
                done = os.preadv(self._file.fileno(), [out.data], offset)
                if not done:
                    raise lost()
                offset, out = offset + done, out[done:]
        except OSError:
            raise lost() from None

    def borrow(self, size: int) -> NDArray[np.uint8]:
        """Return a buffer of at least ``size`` bytes; give it back when it is no longer needed."""
        with self._lock:
            while self._buffers:
                buffer = self._buffers.pop()
                if buffer.size >= size:
                    return buffer
        return np.empty(size, np.uint8)

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Keep a buffer for the next call of `borrow`."""
        with self._lock:
            self._buffers.append(buffer)

    def allocate(self, size: int) -> int:
        """Return an offset for ``size`` bytes: the first hole that is large enough, or the end of the file."""
        with self._lock:
            while self._freed:
                self._add_hole(*self._freed.popleft())
            for k, (offset, hole) in enumerate(self._holes):
                if hole >= size:
                    self._holes[k : k + 1] = [(offset + size, hole - size)] if hole > size else []
                    return offset
            offset, self._end = self._end, self._end + size
            return offset

    def free(self, offset: int, size: int) -> None:
        """Give bytes back. Called when an extent is garbage-collected, so it takes no lock."""
        self._freed.append((offset, size))

    def _add_hole(self, offset: int, size: int) -> None:
        if not size:
            return
        k = bisect.bisect(self._holes, (offset, size))
        if k < len(self._holes) and self._holes[k][0] == offset + size:
            size += self._holes.pop(k)[1]
        if k and sum(self._holes[k - 1]) == offset:
            offset, more = self._holes.pop(k - 1)
            size += more
            k -= 1
        self._holes.insert(k, (offset, size))


class Extent:
    """Consecutive parts of a scratch file, each with its checksum.

    Parameters
    ----------
    scratch : Scratch
        The file; it lives as long as its extents.
    sizes : sequence of int
        Bytes of each part.
    """

    __slots__ = ("bounds", "checks", "offset", "scratch")

    def __init__(self, scratch: Scratch, sizes: Sequence[int]) -> None:
        self.scratch = scratch
        self.bounds = [0, *np.cumsum(sizes).tolist()]
        self.checks = np.zeros(len(sizes), np.uint32)
        self.offset = scratch.allocate(self.bounds[-1])

    def __repr__(self) -> str:
        return "<extent>"

    def __del__(self) -> None:
        if hasattr(self, "offset"):
            self.scratch.free(self.offset, self.bounds[-1])

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return self.bounds[-1]

    def read(self, wanted: Sequence[int], out: NDArray[np.uint8]) -> None:
        """Read some parts to their places in ``out``; other bytes of it stay as they are.

        Neighbouring parts are read in one call.

        Parameters
        ----------
        wanted : sequence of int, increasing
        out : (size,) uint8

        Raises
        ------
        LostCodesError
            If the bytes cannot be read.
        """
        first = 0
        for k in range(1, len(wanted) + 1):
            if k == len(wanted) or wanted[k] != wanted[k - 1] + 1:
                start, stop = self.bounds[wanted[first]], self.bounds[wanted[k - 1] + 1]
                self.scratch.read(self.offset + start, out[start:stop])
                first = k

    def check(self, wanted: Sequence[int], out: NDArray[np.uint8]) -> None:
        """Compare the checksums of some parts with those of what was written.

        Raises
        ------
        LostCodesError
            If a part is damaged.
        """
        for k in wanted:
            part = out[self.bounds[k] : self.bounds[k + 1]]
            if part.size and google_crc32c.value(part) != self.checks[k]:
                raise lost()


def lost() -> LostCodesError:
    """Return the error for rows that cannot be read back."""
    return LostCodesError(
        "Encoded rows on scratch are damaged or gone. They are made again from the source."
    )


def _failed(folder: str, error: OSError) -> ScratchError:
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return ScratchError(
        f"Scratch in {folder!r} cannot be written: {reason}. Free space there, or choose another folder with cache=, "
        "then resume the fit."
    )
