"""The pipeline cache on disk: compiled kernels survive the process, damage never does harm.

Drivers are known to crash on cache data that is not theirs or was cut short, so the file carries
its own header and checksum; anything unexpected is a miss. They also crash on data that is theirs:
a blob is used first in a process that may die of it (`gpuedge.backends.vulkan.proofs`).
"""

from __future__ import annotations

import logging
import struct
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpuedge.backends.vulkan import conv
from gpuedge.backends.vulkan.api import Api
from gpuedge.backends.vulkan.physical import Physical
from gpuedge.backends.vulkan.proofs import Proofs
from gpuedge.safety import paths
from gpuedge.safety.markers import Watch

log = logging.getLogger("gpuedge.vulkan")

MAGIC = b"GEVKPIPE"
VERSION = 1
MAX_BYTES = 256 << 20
SAVE_EVERY = 16
"""New pipelines after which the cache is written before `close()`, in case it is never called."""

_HEADER = struct.Struct("<8s4I16sQ32s")


def pack(physical: Physical, data: bytes) -> bytes:
    """Return the file for cache `data` of a device."""
    header = (MAGIC, VERSION, *_identity(physical), len(data), sha256(data).digest())
    return _HEADER.pack(*header) + data


def unpack(physical: Physical, file: bytes) -> bytes | None:
    """Return the cache data in `file`, or None if it is damaged or another driver's."""
    if len(file) < _HEADER.size:
        return None
    data = file[_HEADER.size :]
    if file[: _HEADER.size] != pack(physical, data)[: _HEADER.size]:
        return None
    return data


def _identity(physical: Physical) -> tuple[int, int, int, bytes]:
    who = physical.identity
    return (who.vendorID or 0, who.deviceID or 0, who.driverVersion or 0, physical.cache_uuid)


def file_for(physical: Physical) -> Path:
    """Return the cache file of a device (which need not exist)."""
    who = physical.identity
    text = repr((*_identity(physical), who.name, who.driverInfo))
    return paths.cache_dir() / "pipelines" / f"{sha256(text.encode()).hexdigest()[:32]}.bin"


class PipelineCache:
    """A VkPipelineCache that is loaded from disk and saved when it grew.

    Parameters
    ----------
    on_disk : bool
        Read and write the file.
    first_use : bool
        This process may die of a blob that has no proof, and gives it to the driver.
    is_off : bool
        Make no VkPipelineCache at all: this driver's are not to be trusted.

    Attributes
    ----------
    handle
        The VkPipelineCache, or NULL where the driver refuses one or none is wanted.
    is_hit : bool
        True if the driver was given data from disk.
    is_trial : bool
        True until a blob without a proof has been used without harm.
    unproven : bool
        True if a blob was left aside because it has no proof.
    """

    def __init__(
        self,
        api: Api,
        device: Any,
        physical: Physical,
        *,
        on_disk: bool,
        first_use: bool = False,
        is_off: bool = False,
    ) -> None:
        self._api = api
        self._device = device
        self._physical = physical
        self._file = file_for(physical) if on_disk and not is_off else None
        limit = _HEADER.size + MAX_BYTES
        self._proofs = Proofs(self._file, _HEADER.size, limit) if self._file is not None else None
        self._unsaved = 0
        self._built = 0
        self._trial: Watch | None = None
        self._digest = ""
        self.is_trial = self.unproven = False
        found = self._admitted(self._load(), first_use)
        self.handle: Any = self._create(found) if found else None
        self.is_hit = self.handle is not None
        if self.handle is None:
            self._end_trial()
            self.handle = (None if is_off else self._create(b"")) or api.ffi.NULL
        # What the driver holds now, not what was given to it: SwiftShader hands back what it was
        # given behind a header of its own, and would grow the file at every start.
        self._known = self._size()

    def _load(self) -> bytes | None:
        if self._file is None:
            return None
        file = paths.read_regular(self._file, _HEADER.size + MAX_BYTES)
        return None if file is None else unpack(self._physical, file)

    def _admitted(self, data: bytes | None, first_use: bool) -> bytes | None:
        """Return the data if the driver may have them in this process, and begin their trial."""
        if data is None or self._proofs is None:
            return None
        self._proofs.collect()
        digest = sha256(data).hexdigest()
        if self._proofs.is_bad(digest):
            return None
        if self._proofs.is_proven(digest):
            return data
        if not first_use:
            self.unproven = True
            return None
        self._digest = digest
        self._trial = self._proofs.begin(digest)
        self._trial.step("open")
        self.is_trial = True
        return data

    def settle(self) -> None:
        """Note that a pipeline of the cache ran: what follows is not the blob's doing any more."""
        self.is_trial = False
        if self._trial is not None:
            self._trial.quiet()

    def _end_trial(self) -> None:
        trial, self._trial = self._trial, None
        self.is_trial = False
        if trial is not None:
            trial.close()

    def _create(self, data: bytes) -> Any:
        """Return a VkPipelineCache, or None if the driver refuses (then kernels still build)."""
        api = self._api
        start = api.ffi.new("char[]", data) if data else api.ffi.NULL
        info = api.make("VkPipelineCacheCreateInfo", initialDataSize=len(data), pInitialData=start)
        made = api.ffi.new("VkPipelineCache *")
        result = api.lib.vkCreatePipelineCache(self._device, info, api.ffi.NULL, made)
        return made[0] if result == conv.SUCCESS else None

    def added(self) -> None:
        """Note one new pipeline."""
        self._unsaved += 1
        self._built += 1
        if self._unsaved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the cache if it grew since it was loaded or saved; failing is not an error."""
        # A blob left aside stays for its proof; what was built without it is not worth more.
        if not self._unsaved or self._file is None or self.unproven:
            return
        size = self._size()
        self._unsaved = 0
        if not self._known < size <= MAX_BYTES:
            return
        data = self._data(size)
        if self._proofs is not None and self._proofs.is_bad(sha256(data).hexdigest()):
            return
        if data and paths.write_atomic(self._file, pack(self._physical, data)):
            self._known = size
            paths.sweep(self._file)
        else:
            log.debug("the pipeline cache %s cannot be written", self._file)

    def _size(self) -> int:
        """Return how many bytes the driver would hand out."""
        api = self._api
        size = api.ffi.new("size_t *")
        if self.handle != api.ffi.NULL:
            api.lib.vkGetPipelineCacheData(self._device, self.handle, size, api.ffi.NULL)
        return int(size[0])

    def _data(self, most: int) -> bytes:
        """Return the driver's data, at most `most` bytes; nothing if it refuses."""
        api = self._api
        size = api.ffi.new("size_t *", most)
        data = api.ffi.new("char[]", most)
        result = api.lib.vkGetPipelineCacheData(self._device, self.handle, size, data)
        return bytes(api.ffi.buffer(data, size[0])) if result == conv.SUCCESS else b""

    def distrust(self) -> None:
        """Let no proof come of this: the device was lost, for whatever reason."""
        self._built = 0

    def close(self) -> None:
        """Destroy the VkPipelineCache; a trial that came this far without harm is the proof."""
        if self._trial is not None:
            self._trial.step("close")
        if self.handle != self._api.ffi.NULL:
            self._api.lib.vkDestroyPipelineCache(self._device, self.handle, self._api.ffi.NULL)
            self.handle = self._api.ffi.NULL
        if self._trial is not None and self._proofs is not None and self._built:
            self._proofs.prove(self._digest)
        self._end_trial()
