"""Recording work once, to be encoded anew for each submit: WebGPU's commands serve one time only.

Everything that can be made once is made here: bind groups, one uniform buffer with the extents and
params of all dispatches, the list of calls. What is left per submit is a walk over that list. It is
not walked once beforehand to find mistakes early: wgpu-native never frees commands that were not
submitted, nor the memory that they use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from gpuedge.backends.base import Dispatch, Usage
from gpuedge.backends.wgpu import constants as c
from gpuedge.backends.wgpu.memory import WgpuBuffer, create, destroy
from gpuedge.backends.wgpu.program import WgpuProgram
from gpuedge.backends.wgpu.queue import Queue, WgpuTicket


@dataclass(slots=True, eq=False)
class WgpuRecording:
    """Work ready to be encoded.

    `steps` has (pipeline, bind group, groups in x, y, z) of each dispatch, `changed` the outputs
    that the work may write but does not read back.
    """

    inputs: list[WgpuBuffer]
    outputs: list[WgpuBuffer]
    changed: list[WgpuBuffer]
    stagings: tuple[Any, ...]
    steps: list[tuple[Any, Any, int, int, int]] = field(default_factory=list)
    uniforms: Any = None


class Recorder:
    """Makes recordings on one device and submits them."""

    def __init__(self, queue: Queue, uniform_alignment: int) -> None:
        self._queue = queue
        self._api = queue.api
        self._align = uniform_alignment

    def record(
        self, dispatches: Sequence[Dispatch], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> WgpuRecording:
        """Prepare dispatches; `outputs` are read back after them."""
        read = [b for b in dict.fromkeys(outputs) if b.usage is Usage.OUTPUT]
        bound = dict.fromkeys(cast(WgpuBuffer, b.buffer) for d in dispatches for b in d.bindings)
        made = WgpuRecording(
            inputs=[b for b in dict.fromkeys(inputs) if b.usage is Usage.INPUT and b.staging],
            outputs=read,
            changed=[b for b in bound if b.usage is Usage.OUTPUT and b not in read],
            stagings=tuple(b.staging for b in read),
        )
        try:
            places = self._write_uniforms(made, dispatches)
            for dispatch, place in zip(dispatches, places, strict=True):
                program = cast(WgpuProgram, dispatch.program)
                group = self._group(dispatch, program, made.uniforms, place)
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
        source, queue = self._api.ffi.from_buffer(data), self._queue
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
        return self._queue.create("BindGroup", about)

    def _encode(self, recording: WgpuRecording) -> Any:
        """Return an encoder: uploads that wait, the dispatches, copies of the outputs."""
        lib, null = self._api.lib, self._api.ffi.NULL
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
        return encoder

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

        wgpu-native ends the process where it is told to submit to a lost device, so that is looked
        for first.
        """
        self._queue.poll()
        for staging in recording.stagings:
            staging.unmap()
        encoder = self._encode(recording)
        staged = [buffer for buffer in recording.inputs if buffer.writes]
        for buffer in staged:
            buffer.staging.unmap()  # type: ignore[union-attr]
        ticket = self._queue.submit(encoder, recording.stagings)
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
        for _, group, *_ in recording.steps:
            self._queue.release("BindGroup", group)
        if recording.uniforms is not None:
            destroy(self._queue, recording.uniforms)
