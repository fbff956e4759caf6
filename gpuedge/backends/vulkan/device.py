"""An open Vulkan device: the seam's calls, each handed to the part that does it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from gpuedge.backends import common
from gpuedge.backends.base import (
    FLOAT32,
    Buffer,
    Counters,
    DeviceInfo,
    Dispatch,
    Program,
    Recording,
    Storage,
    Ticket,
    Usage,
)
from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.memory import Pool, VulkanBuffer
from gpuedge.backends.vulkan.physical import (
    FLOAT16_INT8,
    PORTABILITY_SUBSET,
    STORAGE_8BIT,
    STORAGE_16BIT,
    STORAGE_CLASS,
    Instance,
    Physical,
    describe,
)
from gpuedge.backends.vulkan.pipeline_cache import PipelineCache
from gpuedge.backends.vulkan.program import Programs, VulkanProgram
from gpuedge.backends.vulkan.queue import Queue, VulkanTicket
from gpuedge.backends.vulkan.record import Recorder, VulkanRecording
from gpuedge.core.errors import BackendUnavailableError, ClosedError, DriverError

log = logging.getLogger("gpuedge.vulkan")

COPY_CHUNK = 16 << 20
COPY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `VulkanBackend.open`.

    Attributes
    ----------
    staging : bool, optional
        True copies all host data through staging buffers even where memory is shared.
    disk_cache : bool
        Keep compiled pipelines on disk.
    """

    staging: bool | None = None
    disk_cache: bool = True


class VulkanDevice:
    """An open device; see `gpuedge.backends.base.DeviceImpl` for what each call promises."""

    def __init__(self, info: DeviceInfo, options: Options) -> None:
        self.info = info
        self.counters = Counters()
        self._options = options
        self._handle: Any = None
        self._closed = False
        self._instance = Instance(info.candidate)
        try:
            self._open()
        except BaseException:
            if self._handle is not None:
                self._api.lib.vkDestroyDevice(self._handle, self._api.ffi.NULL)
            self._instance.close()
            raise

    def _open(self) -> None:
        self._api = self._instance.api
        physical = self._find()
        self.physical = physical
        self.caps = physical.caps
        family = physical.compute_family()
        if family is None:
            raise BackendUnavailableError(
                f"{physical.identity.name} has no compute queue.", reason="no-compute"
            )
        self._handle = self._create(physical, family)
        api, handle = self._api, self._handle
        self._queue = Queue(api, handle, family, physical.identity.name)
        off = self.info.disabled
        staging = True if "mapped-device-memory" in off else self._options.staging
        self.memory = Pool(api, handle, physical, staging)
        self._recorder = Recorder(api, handle, self._queue, family)
        self.cache = PipelineCache(
            api, handle, physical, on_disk=self._options.disk_cache, is_off="pipeline-cache" in off
        )
        self._programs = Programs(api, handle, self._queue, self.cache.handle)

    def _find(self) -> Physical:
        handles = self._instance.physical_devices()
        common.check_place(self.info, len(handles))
        found = describe(self._instance, handles[self.info.index], self.info.index)
        common.check_same(self.info, found.identity)
        return found

    def _create(self, physical: Physical, family: int) -> Any:
        api = self._api
        priorities = api.ffi.new("float[1]", [1.0])
        queue = api.make(
            "VkDeviceQueueCreateInfo",
            queueFamilyIndex=family,
            queueCount=1,
            pQueuePriorities=priorities,
        )
        extensions = self._extensions(physical)
        info = api.make(
            "VkDeviceCreateInfo",
            pNext=self._features(physical),
            queueCreateInfoCount=1,
            pQueueCreateInfos=queue,
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=api.strings(extensions),
        )
        made = api.ffi.new("VkDevice *")
        result = api.lib.vkCreateDevice(physical.handle, info, api.ffi.NULL, made)
        if result != c.SUCCESS:
            raise c.error_for(result, "vkCreateDevice", physical.identity.name)
        return made[0]

    def _extensions(self, physical: Physical) -> list[str]:
        """Return what to enable: only what an older API version lacks in its core."""
        wanted = [PORTABILITY_SUBSET] if PORTABILITY_SUBSET in physical.extensions else []
        if physical.version < (1, 1):
            if STORAGE_CLASS not in physical.extensions:
                raise DriverError(
                    f"{physical.identity.name} is a Vulkan 1.0 device without {STORAGE_CLASS}.",
                    known="kernels keep their tensors in that storage class",
                )
            wanted.append(STORAGE_CLASS)
            wanted += [STORAGE_16BIT] if physical.features.storage_16bit else []
        if physical.version < (1, 2):
            wanted += [STORAGE_8BIT] if physical.features.storage_8bit else []
            float16 = physical.features.float16 or physical.features.int8
            wanted += [FLOAT16_INT8] if float16 else []
        return [name for name in wanted if name in physical.extensions]

    def _features(self, physical: Physical) -> Any:
        """Return the chain that enables every optional feature kernels may use.

        A feature that is disabled is not even asked for: enabling it may be what goes wrong.
        """
        have, off = physical.features, self.info.disabled
        chain: Any = None
        if have.storage_16bit and "fp16-storage" not in off:
            name = "VkPhysicalDevice16BitStorageFeatures"
            chain = self._api.make(name, pNext=chain, storageBuffer16BitAccess=1)
        if have.storage_8bit and "int8-storage" not in off:
            name = "VkPhysicalDevice8BitStorageFeatures"
            chain = self._api.make(name, pNext=chain, storageBuffer8BitAccess=1)
        float16 = int(bool(have.float16) and "fp16" not in off)
        int8 = int(bool(have.int8) and "int8" not in off)
        if float16 or int8:
            name = "VkPhysicalDeviceShaderFloat16Int8Features"
            chain = self._api.make(name, pNext=chain, shaderFloat16=float16, shaderInt8=int8)
        return chain

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("This Vulkan device was closed.", known=self.info.identity.name)
        if self._queue.lost is not None:
            self._queue.check_lost()

    # --- memory ---------------------------------------------------------------------------------

    def entered(self) -> AbstractContextManager[None]:
        """Nothing to bind: Vulkan's objects belong to no thread."""
        return nullcontext()

    def alloc(self, nbytes: int, usage: Usage, _: Storage = FLOAT32) -> Buffer:
        """Reserve device memory; contents are undefined. Raises OutOfMemoryError."""
        self._check_open()
        made = self.memory.buffer(nbytes, usage)
        self.counters.allocations += 1
        return made

    def free(self, buffer: Buffer) -> None:
        """Give memory back; the buffer must not be in flight."""
        if not self._closed:
            self.memory.free(cast(VulkanBuffer, buffer))

    def write(self, buffer: Buffer, data: memoryview, offset: int = 0) -> None:
        """Copy contiguous host bytes into a buffer."""
        self._check_open()
        target = cast(VulkanBuffer, buffer)
        size = data.nbytes
        if target.host is not None:
            self._put(target, data, offset, size)
            return
        if target.staging is not None:
            self._put(target.staging, data, offset, size)
        if target.usage is not Usage.INPUT:
            self._upload(target, data, offset, size)

    def _put(self, target: VulkanBuffer, data: memoryview, offset: int, size: int) -> None:
        self._api.ffi.memmove(target.host + offset, data, size)
        if not target.block.is_coherent:
            self.memory.flush(target, offset, size)

    def _upload(self, target: VulkanBuffer, data: memoryview, offset: int, size: int) -> None:
        """Copy through a temporary staging buffer, piece by piece, and wait."""
        flat = data.cast("B") if data.ndim != 1 or data.format != "B" else data
        for start in range(0, size, COPY_CHUNK):
            piece = flat[start : start + COPY_CHUNK]
            staging = self.memory.host_buffer(piece.nbytes, download=False)
            self._put(staging, piece, 0, piece.nbytes)
            self._copy(staging, target, (0, offset + start, piece.nbytes))
            self.memory.free(staging)

    def _copy(self, source: VulkanBuffer, target: VulkanBuffer, places: tuple[int, ...]) -> None:
        recording = self._recorder.copy_once(source, target, places)
        ticket = self._queue.submit(recording.submit_info)
        self._queue.wait(ticket, COPY_TIMEOUT_S)
        self._recorder.release(recording)

    def read(self, buffer: Buffer, into: memoryview, offset: int = 0) -> None:
        """Copy bytes of an OUTPUT buffer to the host; other buffers work too, more slowly."""
        self._check_open()
        source = cast(VulkanBuffer, buffer)
        size = into.nbytes
        visible = source.staging or source
        if visible.host is not None:
            self._get(visible, into, offset, size)
            return
        staging = self.memory.host_buffer(size, download=True)
        self._copy(source, staging, (offset, 0, size))
        self._get(staging, into, 0, size)
        self.memory.free(staging)

    def _get(self, source: VulkanBuffer, into: memoryview, offset: int, size: int) -> None:
        if not source.block.is_coherent:
            self.memory.invalidate(source, offset, size)
        self._api.ffi.memmove(into, source.host + offset, size)

    # --- kernels and work -----------------------------------------------------------------------

    def build(self, blob: Any, specs: Mapping[str, Any]) -> Program:
        """Compile a kernel; its workgroup size is the specs LX, LY, LZ."""
        self._check_open()
        made = self._programs.build(blob, specs)
        self.counters.compilations += 1
        self.cache.added()
        return made

    def record(
        self,
        dispatches: Sequence[Dispatch],
        inputs: Sequence[Buffer] = (),
        outputs: Sequence[Buffer] = (),
    ) -> Recording:
        """Record work once; see `gpuedge.backends.vulkan.record`."""
        self._check_open()
        made = self._recorder.record(dispatches, inputs, outputs)
        self.counters.recordings += 1
        return made

    def submit(self, recording: Recording) -> Ticket:
        """Start recorded work. Raises DeviceLostError, OutOfMemoryError."""
        if self._closed:
            self._check_open()
        self.counters.submits += 1
        return self._queue.submit(cast(VulkanRecording, recording).submit_info)

    def wait(self, ticket: Ticket, timeout_s: float) -> None:
        """Wait until the work is done. Raises DeviceTimeoutError or DeviceLostError."""
        if self._closed:
            self._check_open()
        self._queue.wait(cast(VulkanTicket, ticket), timeout_s)
        if self.cache.is_trial:
            self.cache.settle()

    def release(self, thing: Recording | Program) -> None:
        """Drop a recording or program that is not in flight."""
        if self._closed:
            return
        if isinstance(thing, VulkanRecording):
            self._recorder.release(thing)
        elif isinstance(thing, VulkanProgram):
            self._programs.release(thing)

    def close(self) -> None:
        """Free everything; may be called twice, and after the device was lost.

        Work that is still running when the time is up keeps what it uses: freeing it would crash
        the driver, so it is left to the end of the process.
        """
        if self._closed:
            return
        self._closed = True
        if not self._queue.drain(common.CLOSE_TIMEOUT_S):
            log.error("%s is still busy; its memory is not freed", self.info.identity.name)
            return
        self.cache.close(is_lost=self._queue.lost is not None)
        for part in (self._recorder, self._programs, self.memory, self._queue):
            part.close()
        self._api.lib.vkDestroyDevice(self._handle, self._api.ffi.NULL)
        self._instance.close()
