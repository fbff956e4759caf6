"""An open WebGPU device: the seam's calls, each handed to the part that does it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from gpuedge.backends.wgpu import constants as c
from gpuedge.backends.wgpu.memory import Memory, WgpuBuffer
from gpuedge.backends.wgpu.physical import Adapter, Instance
from gpuedge.backends.wgpu.program import Programs, WgpuProgram
from gpuedge.backends.wgpu.queue import Queue, WgpuTicket
from gpuedge.backends.wgpu.record import Recorder, WgpuRecording
from gpuedge.core.errors import BackendUnavailableError, ClosedError
from gpuedge.core.kernel import KernelBlob, Number

log = logging.getLogger("gpuedge.wgpu")


class WgpuDevice:
    """An open device; see `gpuedge.backends.base.DeviceImpl` for what each call promises."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self.counters = Counters()
        self._closed = False
        self._handle: Any = None
        self._instance = Instance(info.candidate)
        self._api = self._instance.api
        self._queue = Queue(self._api, info.identity.name)
        try:
            adapter = self._find()
            self.caps = adapter.caps
            self._handle = self._request(adapter)
            self._queue.attach(self._handle, self._instance.handle)
            self.memory = Memory(self._queue, self.caps)
            self._programs = Programs(self._queue)
            self._recorder = Recorder(self._queue, adapter.uniform_alignment)
        except BaseException:
            self._release()
            raise

    def _find(self) -> Adapter:
        found = self._instance.adapters()
        common.check_place(self.info, len(found))
        adapter = found[self.info.index]
        common.check_same(self.info, adapter.identity)
        return adapter

    def _request(self, adapter: Adapter) -> Any:
        """Open the adapter with all that it offers; the answer comes within the call."""
        api, answers = self._api, []

        def answered(status: int, device: Any, message: Any, _: Any, __: Any) -> None:
            answers.append((status, device, api.text(message)))

        me = api.pointer(self._queue.number)
        mode = c.CALLBACK_ALLOW_SPONTANEOUS
        callback = api.callback("WGPURequestDeviceCallbackInfo", answered)
        then = api.make("WGPURequestDeviceCallbackInfo", mode=mode, callback=callback)
        lost = api.make(
            "WGPUDeviceLostCallbackInfo", mode=mode, callback=api.lost_callback, userdata1=me
        )
        failed = api.make(
            "WGPUUncapturedErrorCallbackInfo", callback=api.error_callback, userdata1=me
        )
        # A feature that is disabled is not even asked for: enabling it may be what goes wrong.
        features = () if {"fp16", "fp16-storage"} & self.info.disabled else adapter.features
        about = api.make(
            "WGPUDeviceDescriptor",
            requiredLimits=adapter.limits,
            requiredFeatureCount=len(features),
            requiredFeatures=api.numbers("WGPUFeatureName", features),
            deviceLostCallbackInfo=lost,
            uncapturedErrorCallbackInfo=failed,
        )
        api.lib.wgpuAdapterRequestDevice(adapter.handle, about, then[0])
        api.lib.wgpuInstanceProcessEvents(self._instance.handle)
        status, device, message = answers[0] if answers else (0, None, "no answer")
        if status != c.SUCCESS:
            # All that tells a device without memory from one that refuses is this sentence.
            is_full = c.NO_MEMORY in message
            raise BackendUnavailableError(
                f"WebGPU refuses to open {adapter.identity.name}.",
                asked_by=self.info.candidate.key,
                known=" ".join(message.split()),
                reason="out-of-memory" if is_full else "open-failed",
            )
        return device

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("This WebGPU device was closed.", known=self.info.identity.name)
        if self._queue.lost is not None:
            self._queue.check("")

    def entered(self) -> AbstractContextManager[None]:
        """Nothing to bind: WebGPU's objects belong to no thread."""
        return nullcontext()

    # --- memory ---------------------------------------------------------------------------------
    def alloc(self, nbytes: int, usage: Usage, _: Storage = FLOAT32) -> Buffer:
        """Reserve device memory; contents are undefined. Raises OutOfMemoryError."""
        self._check_open()
        made = self.memory.alloc(nbytes, usage)
        self.counters.allocations += 1
        return made

    def free(self, buffer: Buffer) -> None:
        """Give memory back; the buffer must not be in flight."""
        if not self._closed:
            self.memory.free(cast(WgpuBuffer, buffer))

    def write(self, buffer: Buffer, data: memoryview, offset: int = 0) -> None:
        """Copy contiguous host bytes into a buffer."""
        self._check_open()
        self.memory.write(cast(WgpuBuffer, buffer), data, offset)

    def read(self, buffer: Buffer, into: memoryview, offset: int = 0) -> None:
        """Copy bytes of an OUTPUT buffer to the host; other buffers work too, more slowly."""
        self._check_open()
        self.memory.read(cast(WgpuBuffer, buffer), into, offset)

    # --- kernels and work -----------------------------------------------------------------------
    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> Program:
        """Compile a kernel; its workgroup size is the specs LX, LY, LZ."""
        self._check_open()
        made = self._programs.build(blob, specs)
        self.counters.compilations += 1
        return made

    def record(
        self,
        dispatches: Sequence[Dispatch],
        inputs: Sequence[Buffer] = (),
        outputs: Sequence[Buffer] = (),
    ) -> Recording:
        """Record work once; see `gpuedge.backends.wgpu.record`."""
        self._check_open()
        made = self._recorder.record(dispatches, inputs, outputs)
        self.counters.recordings += 1
        return made

    def submit(self, recording: Recording) -> Ticket:
        """Start recorded work. Raises DeviceLostError, OutOfMemoryError."""
        self._check_open()
        self.counters.submits += 1
        return self._recorder.submit(cast(WgpuRecording, recording))

    def wait(self, ticket: Ticket, timeout_s: float) -> None:
        """Wait until the work is done. Raises DeviceTimeoutError or DeviceLostError."""
        self._check_open()
        self._queue.wait(cast(WgpuTicket, ticket), timeout_s)

    def release(self, thing: Recording | Program) -> None:
        """Drop a recording or program that is not in flight."""
        if self._closed:
            return
        if isinstance(thing, WgpuRecording):
            self._recorder.release(thing)
        elif isinstance(thing, WgpuProgram):
            self._programs.release(thing)

    def close(self) -> None:
        """Free everything; may be called twice, and after the device was lost.

        Work that is still running when the time is up keeps what it uses: freeing it could crash
        the driver, so it is left to the end of the process.
        """
        if self._closed:
            return
        self._closed = True
        if not self._queue.drain(common.CLOSE_TIMEOUT_S):
            log.error("%s is still busy; its memory is not freed", self.info.identity.name)
            return
        for part in (self._recorder, self._programs, self.memory):
            part.close()
        self._release()

    def _release(self) -> None:
        """Give the device back, but for a lost one: wgpu-native ends the process for that."""
        self._queue.close()
        if self._queue.lost is not None:
            return
        if self._handle is not None:
            self._api.lib.wgpuDeviceRelease(self._handle)
            self._handle = None
        self._instance.close()
