"""Opening a WebGPU device."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Final

from gpuedge.backends import common
from gpuedge.backends.base import Binding, DeviceInfo, Dispatch, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.wgpu import constants as c
from gpuedge.backends.wgpu.memory import Memory
from gpuedge.backends.wgpu.physical import Adapter, Instance
from gpuedge.backends.wgpu.program import Programs
from gpuedge.backends.wgpu.queue import Queue
from gpuedge.backends.wgpu.record import Recorder
from gpuedge.core.errors import BackendUnavailableError, DriverError
from gpuedge.core.kernel import KernelBlob, TensorArg
from gpuedge.core.storage import BUFFER
from gpuedge.core.times import COPY_TIMEOUT_S

_SIZE: Final = KernelBlob(
    name="subgroup size", dialect="wgsl", entry="main", specs=(), push=(), push_bytes=0, digest="",
    tensors=(TensorArg("o", "write", 0),),
    code=b"""
@group(0) @binding(0) var<storage, read_write> o: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) i: u32, @builtin(subgroup_size) size: u32) {
    if (i == 0u) { o[0] = size; }
}
""",
)  # fmt: skip

HALVES: Final = b"""
@group(0) @binding(0) var<storage, read_write> o: array<u32>;
@compute @workgroup_size(1)
fn main() { o[0] = pack2x16float(unpack2x16float(o[0])); }
"""


def open_device(info: DeviceInfo) -> OpenDevice:
    """Open an adapter. Raises DeviceError."""
    instance = Instance(info.candidate)
    queue = Queue(instance.api, info.identity.name)
    parts: list[Any] = [queue]

    def destroy() -> None:
        for part in reversed(parts):
            part.close()
        if queue.lost is not None:
            return  # wgpu-native ends the process for giving back a lost device
        if queue.device is not None:
            instance.api.lib.wgpuDeviceRelease(queue.device)
        instance.close()

    try:
        adapter = common.found_again(info, instance.devices())
        has_half = bool(adapter.caps.has_fp16_arithmetic) and "fp16" not in info.disabled
        queue.attach(_request(instance, adapter, queue, has_half=has_half), instance.handle)
        memory = Memory(queue, adapter.caps.max_allocation_bytes or 0)
        programs, recorder = Programs(queue), Recorder(queue, adapter.uniform_alignment)
        parts.append(programs)
        caps = adapter.caps
        if adapter.has_subgroups:
            caps = replace(caps, subgroup_lanes=_lanes(queue, memory, programs, recorder))
        # wgpu refuses the functions of float16 on Mesa's Vulkan drivers without shader-f16 (seen on
        # lavapipe for arm64), and wgpu-native does not report that.
        if not programs.accepts(HALVES):
            caps = replace(caps, storages=(BUFFER,))
        return OpenDevice(info, caps, (queue, memory, programs, recorder), destroy)
    except BaseException:
        destroy()
        raise


def _request(instance: Instance, adapter: Adapter, queue: Queue, *, has_half: bool) -> Any:
    """Open the adapter with all that it offers; the answer comes within the call."""
    api = instance.api
    wanted = [c.SHADER_F16] if has_half else []
    wanted += [c.SUBGROUPS] if adapter.has_subgroups else []
    features = api.empty("WGPUFeatureName", len(wanted))
    for i, feature in enumerate(wanted):
        features[i] = feature
    answers: list[tuple[int, Any, str]] = []

    def answered(status: int, device: Any, message: Any, _: Any, __: Any) -> None:
        answers.append((status, device, api.text(message)))

    me, mode = api.pointer(queue.number), c.CALLBACK_ALLOW_SPONTANEOUS
    callback = api.callback("WGPURequestDeviceCallbackInfo", answered)
    then = api.make("WGPURequestDeviceCallbackInfo", mode=mode, callback=callback)
    about = api.make(
        "WGPUDeviceDescriptor",
        requiredFeatureCount=len(wanted),
        requiredFeatures=features,
        requiredLimits=adapter.limits,
        deviceLostCallbackInfo=api.make(
            "WGPUDeviceLostCallbackInfo", mode=mode, callback=api.lost_callback, userdata1=me
        ),
        uncapturedErrorCallbackInfo=api.make(
            "WGPUUncapturedErrorCallbackInfo", callback=api.error_callback, userdata1=me
        ),
    )
    api.lib.wgpuAdapterRequestDevice(adapter.handle, about, then[0])
    api.lib.wgpuInstanceProcessEvents(instance.handle)
    status, device, message = answers[0] if answers else (0, None, "no answer")
    if status != c.SUCCESS:
        # All that tells a device without memory from one that refuses is this sentence.
        is_full = c.NO_MEMORY in message
        raise BackendUnavailableError(
            f"WebGPU refuses to open {adapter.identity.name}.",
            asked_by=instance.candidate.key,
            known=" ".join(message.split()),
            reason="out-of-memory" if is_full else "open-failed",
        )
    return device


def _lanes(queue: Queue, memory: Memory, programs: Programs, recorder: Recorder) -> int:
    """Ask a kernel how large subgroups are, which wgpu-native does not report; 0 if it is refused.

    Raises DeviceError.
    """
    try:
        program = programs.build(_SIZE, {})
    except DriverError:
        return 0
    buffer = memory.alloc(4, Usage.OUTPUT)
    work = Dispatch(program, (Binding(buffer, 0, 4),), b"", (1, 1, 1))
    recording = recorder.record([work], [], [buffer])
    queue.wait(recorder.submit(recording), COPY_TIMEOUT_S)
    answer = bytearray(4)
    memory.read(buffer, memoryview(answer), 0)
    recorder.release(recording)
    programs.release(program)
    memory.free(buffer)
    return int.from_bytes(answer, sys.byteorder)
