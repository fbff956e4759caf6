"""Memory that the application and a worker share, through which tensors travel.

On Linux it is a memory file that can neither shrink nor grow once made, so that no driver can take
pages away under a reader; elsewhere an unlinked temporary file. Its size is address space: only
what is used is reserved, and reserved before it is touched, so that full memory is an error here
and not a signal. Nothing of it has a name, so nothing stays behind whatever is killed.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from contextlib import suppress

from gpuedge.core.errors import OutOfMemoryError
from gpuedge.core.system import is_linux
from gpuedge.safety import paths

TOTAL = 64 << 20
"""Bytes that may be shared with one worker; larger tensors travel in pieces."""

CONTROL = 4096
"""Bytes at the beginning that hold the progress; tensors lie after them."""

PIECE = 16 << 20
"""Most bytes of one piece of a tensor."""

KEPT = 4 << 20
"""Bytes that stay shared when constants have been copied; inferences take more where they must."""

ALIGNMENT = 64
STEP = 1 << 20
"""What is mapped and reserved is a multiple of this."""

_PROGRESS = struct.Struct("<I")
NOTHING = 0xFFFFFFFF
"""Position of a worker that has not begun the work it was sent."""


class Arena:
    """A growing map of the shared memory; `fd` is of what the other side made, None to make it."""

    def __init__(self, fd: int | None = None) -> None:
        self.is_maker = fd is None
        self.fd = _make() if fd is None else fd
        self._map: mmap.mmap | None = None
        self.size = 0
        try:
            self.grow(CONTROL)
        except BaseException:
            self.close()
            raise

    def grow(self, size: int) -> None:
        """Map at least `size` bytes. Raises OutOfMemoryError (GE-402)."""
        if size <= self.size:
            return
        size = min(-(-size // STEP) * STEP, TOTAL)
        try:
            if self.is_maker:
                _reserve(self.fd, self.size, size)
            mapping = mmap.mmap(self.fd, size)
        except (OSError, ValueError) as error:
            raise OutOfMemoryError(
                f"No {size >> 20} MiB of memory can be shared with the device's worker: {error}."
            ) from None
        old, self._map, self.size = self._map, mapping, size
        if old is not None:
            with suppress(BufferError):  # a view of it is still in use; it goes with that
                old.close()

    def trim(self) -> None:
        """Give back what lies beyond `KEPT`; nothing there is in use. Other systems keep it."""
        if self._map is None or self.size <= KEPT or not hasattr(mmap, "MADV_REMOVE"):
            return
        try:
            mapping = mmap.mmap(self.fd, KEPT)
            self._map.madvise(mmap.MADV_REMOVE, KEPT, self.size - KEPT)
        except OSError:  # it stays until the device is closed
            return
        old, self._map, self.size = self._map, mapping, KEPT
        with suppress(BufferError):
            old.close()

    def view(self, place: int, nbytes: int) -> memoryview:
        """Return the bytes at a place. Raises ValueError for one that is not for tensors."""
        if self._map is None or nbytes < 0 or not CONTROL <= place <= self.size - nbytes:
            raise ValueError(f"{nbytes} bytes at {place} of {self.size}")
        return memoryview(self._map)[place : place + nbytes]

    def note(self, position: int) -> None:
        """Note which part of the work has begun, for the other side to see."""
        if self._map is not None:
            _PROGRESS.pack_into(self._map, 0, position)

    def noted(self, most: int) -> int:
        """Return the position noted last, -1 where it is none from 0 to `most`: it may be any."""
        if self._map is None:
            return -1
        (position,) = _PROGRESS.unpack_from(self._map, 0)
        return position if position <= most else -1

    def close(self) -> None:
        """Let go of the memory; may be called twice."""
        if self._map is not None:
            with suppress(BufferError):
                self._map.close()
            self._map, self.size = None, 0
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _make() -> int:
    try:
        if not is_linux() or not hasattr(os, "memfd_create"):  # which Android 11 brought
            return _unlinked()
        import fcntl

        fd = os.memfd_create("gpuedge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, TOTAL)
        seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except OSError as error:
        raise OutOfMemoryError(
            f"No memory can be shared with the device's worker: {error}."
        ) from None
    return fd


def _unlinked() -> int:
    fd, path = tempfile.mkstemp(prefix="gpuedge-", dir=paths.temporary_folder())
    try:
        os.unlink(path)  # noqa: PTH108
        os.ftruncate(fd, TOTAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _reserve(fd: int, begin: int, end: int) -> None:
    """Make the system promise the pages: touching one it does not have would be SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, begin, end - begin)
        return
    for place in range(begin, end, STEP):
        os.pwrite(fd, bytes(min(STEP, end - place)), place)
