"""The pipeline cache on disk: compiled kernels survive the process, damage never does harm.

Drivers are known to crash on cache data that is not theirs or was cut short, so the file begins
with a checksum over the driver's identity and the data; anything unexpected is a miss. They also
crash on data that is theirs, and would at every start. So a file's suffix says what is known of it:

* ``.new``: written, and not given to a driver yet;
* ``.trial``: given to the driver by a process that has not finished any work with it. Nobody reads
  it or tries anything new meanwhile; if that process died, or lost the device, that is for 30 days;
* ``.bin``: a process finished work with it.
"""

from __future__ import annotations

import logging
import os
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.physical import Physical
from gpuedge.backends.vulkan.queue import Queue
from gpuedge.safety import paths

log = logging.getLogger("gpuedge.vulkan")

MAGIC = b"GEVKPIP3"
HEADER_BYTES = len(MAGIC) + 32
MAX_BYTES = 256 << 20
SAVE_EVERY = 16
"""New pipelines after which the cache is written before `close()`, in case it is never called."""

BARRED_S = 30 * 86400.0
"""How long a driver that died of its cache gets no new one."""


def pack(physical: Physical, data: bytes) -> bytes:
    """Return the file for cache `data` of a device."""
    return MAGIC + sha256(_identity(physical) + data).digest() + data


def unpack(physical: Physical, file: bytes) -> bytes | None:
    """Return the cache data in `file`, or None if it is damaged or another driver's."""
    data = file[HEADER_BYTES:]
    return data if data and file == pack(physical, data) else None


def _identity(physical: Physical) -> bytes:
    who = physical.identity
    facts = (who.vendorID, who.deviceID, who.driverVersion, physical.cache_uuid)
    return repr((*facts, who.name, who.driverInfo)).encode()


def file_for(physical: Physical) -> Path:
    """Return the cache file of a device (which need not exist)."""
    name = sha256(_identity(physical)).hexdigest()[:32]
    return paths.cache_dir() / "pipelines" / f"{name}.bin"


def rename(path: Path, suffix: str) -> bool:
    """Give a file another suffix, and the time of now; False where that is not possible."""
    target = path.with_suffix(suffix)
    try:
        path.replace(target)
        os.utime(target)
    except OSError as error:
        log.debug("%s does not become %s: %s", path, suffix, error)
        return False
    return True


class PipelineCache:
    """A VkPipelineCache that is loaded from disk and saved when it grew.

    `is_off` makes none at all, as this driver's are not to be trusted. `handle` is NULL then, and
    where the driver refuses one. `is_trial` says whether no work was finished yet with data that no
    process had used before.
    """

    def __init__(self, queue: Queue, physical: Physical, *, is_off: bool = False) -> None:
        self._queue = queue
        self._api = queue.api
        self._physical = physical
        self._file = file_for(physical)
        self._is_off = is_off
        self._unsaved = 0
        self.is_trial = False
        saved = None if is_off else self._load()
        self.handle: Any = self._create(saved) if saved else None
        if self.handle is None:
            self._end_trial("")  # the driver refused the data
            self.handle = (None if is_off else self._create(b"")) or self._api.ffi.NULL
        # What the driver holds now, not what was given to it: SwiftShader hands back what it was
        # given behind a header of its own, and would grow the file at every start.
        self._known = self._size()

    def _load(self) -> bytes | None:
        """Return the data that the driver may have, and begin a trial if they are new."""
        fresh = self._file.with_suffix(".new")
        data = None if self._is_barred() else self._read(fresh)
        if data is not None and rename(fresh, ".trial"):
            self.is_trial = True
            return data
        return self._read(self._file)

    def _is_barred(self) -> bool:
        """Say whether new data may not be tried: a process is doing that, or one died of it."""
        try:
            age = abs(time.time() - self._file.with_suffix(".trial").stat().st_mtime)
        except OSError:
            return False
        return age <= BARRED_S

    def _read(self, file: Path) -> bytes | None:
        raw = paths.read_regular(file, HEADER_BYTES + MAX_BYTES)
        return None if raw is None else unpack(self._physical, raw)

    def settle(self) -> None:
        """Note that work was finished: the data may be used from now on without a trial."""
        self._end_trial(".bin")

    def _end_trial(self, suffix: str) -> None:
        """Give the file on trial its next suffix; without one, remove it."""
        if not self.is_trial:
            return
        self.is_trial = False
        trial = self._file.with_suffix(".trial")
        if suffix:
            rename(trial, suffix)
        else:
            trial.unlink(missing_ok=True)

    def _create(self, data: bytes) -> Any:
        """Return a VkPipelineCache, or None if the driver refuses (then kernels still build)."""
        api = self._api
        start = api.ffi.new("char[]", data) if data else api.ffi.NULL
        info = api.make("VkPipelineCacheCreateInfo", initialDataSize=len(data), pInitialData=start)
        handle = api.ffi.new("VkPipelineCache *")
        result = api.lib.vkCreatePipelineCache(self._queue.device, info, api.ffi.NULL, handle)
        return handle[0] if result == c.SUCCESS else None

    def added(self) -> None:
        """Note one new pipeline."""
        self._unsaved += 1
        if self._unsaved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the cache if it grew since it was loaded or saved; failing is not an error."""
        if not self._unsaved or self._is_off or self.is_trial:
            return
        size = self._size()
        self._unsaved = 0
        if not self._known < size <= MAX_BYTES or self._is_barred():
            return
        data, fresh = self._data(size), self._file.with_suffix(".new")
        if data and paths.write_atomic(fresh, pack(self._physical, data)):
            self._known = size
            paths.sweep(fresh)

    def _size(self) -> int:
        """Return how many bytes the driver would hand out."""
        api = self._api
        size = api.ffi.new("size_t *")
        if self.handle != api.ffi.NULL:
            api.lib.vkGetPipelineCacheData(self._queue.device, self.handle, size, api.ffi.NULL)
        return int(size[0])

    def _data(self, most: int) -> bytes:
        """Return the driver's data, at most `most` bytes; nothing if it refuses."""
        api = self._api
        size = api.ffi.new("size_t *", most)
        data = api.ffi.new("char[]", most)
        result = api.lib.vkGetPipelineCacheData(self._queue.device, self.handle, size, data)
        return bytes(api.ffi.buffer(data, size[0])) if result == c.SUCCESS else b""

    def close(self, *, is_lost: bool) -> None:
        """Save, and destroy the VkPipelineCache; a lost device says nothing good of its data."""
        if not is_lost:
            self.save()
            self._end_trial(".new")  # no work was done with it: it is as new as before
        if self.handle != self._api.ffi.NULL:
            self._queue.destroy("PipelineCache", self.handle)
            self.handle = self._api.ffi.NULL
