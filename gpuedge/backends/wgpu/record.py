"""Recording work once, to be encoded anew for each submit: WebGPU's commands serve one time only.

Everything that can be made once is made here: bind groups, one uniform buffer with the extents and
params of all dispatches, the list of calls. What is left per submit is a walk over that list. It is
not walked once beforehand to find mistakes early: wgpu-native never frees commands that were not
submitted, nor the memory that they use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from gpuedge.backends.base import Buffer, Dispatch, Usage
from gpuedge.backends.wgpu import constants as c
from gpuedge.backends.wgpu.memory import WgpuBuffer, create, destroy
from gpuedge.backends.wgpu.program import WgpuProgram
from gpuedge.backends.wgpu.queue import Queue, WgpuTicket
from gpuedge.core.errors import ClosedError


class WgpuRecording:
    """Work ready to be encoded.

    Attributes
    ----------
    steps : list of tuple
        (pipeline, bind group, groups in x, y, z) of each dispatch.
    changed : list of WgpuBuffer
        Outputs that the work may write but does not read back.
    """

    __slots__ = ("buffers", "changed", "groups", "inputs", "is_released", "outputs", "stagings",
                 "steps", "uniforms")  # fmt: skip

    def __init__(self) -> None:
        self.steps: list[tuple[Any, Any, int, int, int]] = []
        self.groups: list[Any] = []
        self.uniforms: Any = None
        self.inputs: list[WgpuBuffer] = []
        self.outputs: list[WgpuBuffer] = []
        self.stagings: tuple[Any, ...] = ()
        self.changed: list[WgpuBuffer] = []
        self.buffers: tuple[WgpuBuffer, ...] = ()
        self.is_released = False


class Recorder:
    """Makes recordings on one device and submits them."""

    def __init__(self, queue: Queue, uniform_alignment: int) -> None:
        self._queue = queue
        self._api = queue.api
        self._align = uniform_alignment
        self._recordings: set[WgpuRecording] = set()
        self._place = self._api.empty("WGPUCommandBuffer", 1)

    def record(
        self, dispatches: Sequence[Dispatch], inputs: Sequence[Buffer], outputs: Sequence[Buffer]
    ) -> WgpuRecording:
        """Prepare dispatches; `outputs` are read back after them."""
        made = WgpuRecording()
        self._recordings.add(made)
        made.inputs = [cast(WgpuBuffer, buffer) for buffer in dict.fromkeys(inputs)]
        made.inputs = [buffer for buffer in made.inputs if buffer.staging is not None]
        made.outputs = [cast(WgpuBuffer, buffer) for buffer in dict.fromkeys(outputs)]
        made.outputs = [b for b in made.outputs if b.staging is not None and b.staging.reads]
        made.stagings = tuple(b.staging for b in made.outputs)
        made.changed = _changed(dispatches, made.outputs)
        bound = [cast(WgpuBuffer, b.buffer) for d in dispatches for b in d.bindings]
        made.buffers = tuple(dict.fromkeys([*bound, *made.inputs, *made.outputs]))
        _check_whole(made)
        try:
            places = self._write_uniforms(made, dispatches)
            for dispatch, place in zip(dispatches, places, strict=True):
                program = cast(WgpuProgram, dispatch.program)
                group = self._group(dispatch, program, made.uniforms, place)
                made.groups.append(group)
                made.steps.append((program.pipeline, group, *dispatch.groups))
        except BaseException:
            self.release(made)
            raise
        return made

    def _write_uniforms(self, made: WgpuRecording, dispatches: Sequence[Dispatch]) -> list[int]:
        """Put the block of every dispatch into one buffer, and return where each begins."""
        places, data = [], bytearray()
        for dispatch in dispatches:
            block = cast(WgpuProgram, dispatch.program).layout.push_bytes
            places.append(len(data))
            data += dispatch.push.ljust(-(-block // self._align) * self._align, b"\0")
        if not data:
            return places
        made.uniforms = create(self._queue, len(data), c.UNIFORM | c.COPY_DST)
        source = self._api.ffi.from_buffer(data)
        queue = self._queue
        self._api.lib.wgpuQueueWriteBuffer(queue.handle, made.uniforms, 0, source, len(data))
        queue.check("wgpuQueueWriteBuffer")
        return places

    def _group(self, dispatch: Dispatch, program: WgpuProgram, uniforms: Any, place: int) -> Any:
        api = self._api
        entries = [
            api.make(
                "WGPUBindGroupEntry",
                binding=i,
                buffer=cast(WgpuBuffer, binding.buffer).handle,
                offset=binding.offset,
                size=binding.nbytes,
            )
            for i, binding in enumerate(dispatch.bindings)
        ]
        if program.layout.push_bytes:
            entries.append(
                api.make(
                    "WGPUBindGroupEntry",
                    binding=len(entries),
                    buffer=uniforms,
                    offset=place,
                    size=program.layout.push_bytes,
                )
            )
        table = api.array("WGPUBindGroupEntry", entries)
        about = api.make(
            "WGPUBindGroupDescriptor",
            layout=program.layout.group,
            entryCount=len(entries),
            entries=table,
        )
        made = api.lib.wgpuDeviceCreateBindGroup(self._queue.device, about)
        try:
            self._queue.check(f"wgpuDeviceCreateBindGroup for kernel {program.blob.name!r}")
        except BaseException:
            if made != api.ffi.NULL:
                api.lib.wgpuBindGroupRelease(made)
            raise
        return made

    def _encode(self, recording: WgpuRecording) -> Any:
        """Return a command buffer: uploads that wait, the dispatches, copies of the outputs."""
        api, lib, null = self._api, self._api.lib, self._api.ffi.NULL
        encoder = lib.wgpuDeviceCreateCommandEncoder(self._queue.device, null)
        copy = lib.wgpuCommandEncoderCopyBufferToBuffer
        for buffer in recording.inputs:
            for offset, size in buffer.writes:
                copy(encoder, buffer.staging.handle, offset, buffer.handle, offset, size)  # type: ignore[union-attr]
        if recording.steps:
            compute = lib.wgpuCommandEncoderBeginComputePass(encoder, null)
            self._dispatch(compute, recording.steps)
            lib.wgpuComputePassEncoderEnd(compute)
            lib.wgpuComputePassEncoderRelease(compute)
        for buffer, staging in zip(recording.outputs, recording.stagings, strict=True):
            copy(encoder, buffer.handle, 0, staging.handle, 0, buffer.size)
        made = lib.wgpuCommandEncoderFinish(encoder, null)
        lib.wgpuCommandEncoderRelease(encoder)
        try:
            self._queue.check("wgpuCommandEncoderFinish")
        except BaseException:
            if made != api.ffi.NULL:
                lib.wgpuCommandBufferRelease(made)
            raise
        return made

    def _dispatch(self, compute: Any, steps: list[tuple[Any, Any, int, int, int]]) -> None:
        lib, null = self._api.lib, self._api.ffi.NULL
        bound: Any = None
        for pipeline, group, x, y, z in steps:
            if pipeline is not bound:
                lib.wgpuComputePassEncoderSetPipeline(compute, pipeline)
                bound = pipeline
            lib.wgpuComputePassEncoderSetBindGroup(compute, 0, group, 0, null)
            lib.wgpuComputePassEncoderDispatchWorkgroups(compute, x, y, z)

    def submit(self, recording: WgpuRecording) -> WgpuTicket:
        """Encode and submit a recording.

        wgpu-native ends the process where it is told to submit to a lost device, or to submit what
        uses memory that is gone, so both are looked for first.
        """
        _check_whole(recording)
        self._queue.poll()
        for staging in recording.stagings:
            staging.unmap()
        commands = self._encode(recording)
        staged = [buffer for buffer in recording.inputs if buffer.writes]
        for buffer in staged:
            buffer.staging.unmap()  # type: ignore[union-attr]
        self._place[0] = commands
        try:
            ticket = self._queue.submit(self._place, 1, recording.stagings)
        finally:
            self._api.lib.wgpuCommandBufferRelease(commands)
        for buffer in staged:
            buffer.writes.clear()
            self._queue.map(buffer.staging, c.MAP_WRITE)
        for buffer in recording.outputs:
            buffer.is_current = True
        for buffer in recording.changed:
            buffer.is_current = False
        return ticket

    def release(self, recording: WgpuRecording) -> None:
        """Free a recording that is not in flight."""
        if recording.is_released:
            return
        recording.is_released = True
        self._recordings.discard(recording)
        for group in recording.groups:
            self._api.lib.wgpuBindGroupRelease(group)
        recording.groups.clear()
        recording.steps.clear()
        if recording.uniforms is not None:
            destroy(self._queue, recording.uniforms)
            recording.uniforms = None

    def close(self) -> None:
        """Free all recordings."""
        for recording in list(self._recordings):
            self.release(recording)


def _check_whole(recording: WgpuRecording) -> None:
    if recording.is_released or any(b.handle is None for b in recording.buffers):
        raise ClosedError("The recorded work was released, or a buffer that it uses was freed.")


def _changed(dispatches: Sequence[Dispatch], outputs: list[WgpuBuffer]) -> list[WgpuBuffer]:
    written = {
        cast(WgpuBuffer, binding.buffer): None
        for dispatch in dispatches
        for arg, binding in zip(dispatch.program.blob.tensors, dispatch.bindings, strict=True)
        if arg.access == "write"
    }
    return [b for b in written if b.usage is Usage.OUTPUT and b not in outputs]
