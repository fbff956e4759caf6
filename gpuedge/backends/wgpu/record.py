"""Recording work once, to be encoded anew for each submit: WebGPU's commands serve one time only.

Everything that can be made once is made here: bind groups, one uniform buffer with the extents and
params of all dispatches, the textures that kernels read copies of tensors in, the list of calls.
What is left per submit is a walk over that list. A copy is made before the first dispatch that
reads it after its buffer was written; those of constants come with the first submit only. It is not
walked once beforehand to find mistakes early: wgpu-native never frees commands that were not
submitted, nor the memory that they use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from gpuedge.backends.base import Dispatch, Usage
from gpuedge.backends.wgpu import constants as c
from gpuedge.backends.wgpu.memory import TextureCopy, WgpuBuffer, create, destroy
from gpuedge.backends.wgpu.program import WgpuProgram
from gpuedge.backends.wgpu.queue import Queue, WgpuTicket
from gpuedge.core.storage import TEXTURE_KINDS

_Place = tuple[WgpuBuffer, int, str]
_Copy = tuple[Any, Any, Any]
_Step = tuple[Any, Any, int, int, int]


@dataclass(slots=True, eq=False)
class WgpuRecording:
    """Work ready to be encoded.

    `passes` has the copies to textures that come before each compute pass, and (pipeline, bind
    group, groups in x, y, z) of each dispatch in it; `once` are copies of constants that come
    before all that, with the first submit. `textures` are its own, by buffer, offset and storage
    kind; `changed` are the outputs that the work may write but does not read back.
    """

    inputs: list[WgpuBuffer]
    outputs: list[WgpuBuffer]
    changed: list[WgpuBuffer]
    stagings: tuple[Any, ...]
    passes: list[tuple[list[_Copy], list[_Step]]] = field(default_factory=list)
    once: list[_Copy] = field(default_factory=list)
    textures: dict[_Place, TextureCopy] = field(default_factory=dict)
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
        recording = WgpuRecording(
            inputs=[b for b in dict.fromkeys(inputs) if b.usage is Usage.INPUT and b.staging],
            outputs=read,
            changed=[b for b in bound if b.usage is Usage.OUTPUT and b not in read],
            stagings=tuple(b.staging for b in read),
        )
        try:
            places = self._write_uniforms(recording, dispatches)
            self._make_textures(recording, dispatches)
            current: dict[_Place, int] = {}
            for dispatch, place in zip(dispatches, places, strict=True):
                copies = _copies(recording, dispatch, current)
                if copies or not recording.passes:
                    recording.passes.append((copies, []))
                program = cast(WgpuProgram, dispatch.program)
                group = self._group(recording, dispatch, program, place)
                recording.passes[-1][1].append((program.pipeline, group, *dispatch.groups))
        except BaseException:
            self.release(recording)
            raise
        return recording

    def _write_uniforms(
        self, recording: WgpuRecording, dispatches: Sequence[Dispatch]
    ) -> list[int]:
        """Put the block of every dispatch into one buffer, and return where each begins."""
        places, data = [], bytearray()
        for dispatch in dispatches:
            block = cast(WgpuProgram, dispatch.program).layout.push_bytes
            places.append(len(data))
            data += dispatch.push.ljust(-(-block // self._align) * self._align, b"\0")
        if not data:
            return places
        recording.uniforms = create(self._queue, len(data), c.UNIFORM | c.COPY_DST)
        source, queue = self._api.ffi.from_buffer(data), self._queue
        self._api.lib.wgpuQueueWriteBuffer(queue.handle, recording.uniforms, 0, source, len(data))
        queue.check("wgpuQueueWriteBuffer")
        return places

    def _make_textures(self, recording: WgpuRecording, dispatches: Sequence[Dispatch]) -> None:
        """Make one texture for each place that is read so, as large as most is read of it."""
        sizes: dict[_Place, int] = {}
        for place, nbytes in (read for each in dispatches for read in _texture_reads(each)):
            sizes[place] = max(sizes.get(place, 0), nbytes)
        for place, nbytes in sizes.items():
            recording.textures[place] = TextureCopy(self._queue, place[2], nbytes)

    def _group(
        self, recording: WgpuRecording, dispatch: Dispatch, program: WgpuProgram, place: int
    ) -> Any:
        api, entries = self._api, []
        for arg, binding in zip(program.blob.tensors, dispatch.bindings, strict=True):
            entry = api.make("WGPUBindGroupEntry", binding=arg.binding)
            buffer = cast(WgpuBuffer, binding.buffer)
            texture = recording.textures.get((buffer, binding.offset, arg.storage))
            if texture is not None:
                entry.textureView = texture.view
            else:
                entry.buffer, entry.offset = buffer.handle, binding.offset
                entry.size = binding.nbytes
            entries.append(entry)
        if program.layout.push_bytes:
            entries.append(
                api.make(
                    "WGPUBindGroupEntry",
                    binding=len(entries),
                    buffer=recording.uniforms,
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
        for copies, steps in ((recording.once, []), *recording.passes):
            for arguments in copies:
                lib.wgpuCommandEncoderCopyBufferToTexture(encoder, *arguments)
            if steps:
                compute = lib.wgpuCommandEncoderBeginComputePass(encoder, null)
                self._dispatch(compute, steps)
                lib.wgpuComputePassEncoderEnd(compute)
                lib.wgpuComputePassEncoderRelease(compute)
        for buffer, staging in zip(recording.outputs, recording.stagings, strict=True):
            copy(encoder, buffer.handle, 0, staging.handle, 0, buffer.size)
        return encoder

    def _dispatch(self, compute: Any, steps: list[_Step]) -> None:
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
        recording.once = []
        return ticket

    def release(self, recording: WgpuRecording) -> None:
        """Free a recording that is not in flight."""
        for _, steps in recording.passes:
            for _, group, *_ in steps:
                self._queue.release("BindGroup", group)
        for texture in recording.textures.values():
            texture.close()
        if recording.uniforms is not None:
            destroy(self._queue, recording.uniforms)


def _texture_reads(dispatch: Dispatch) -> Iterator[tuple[_Place, int]]:
    """Yield the place of each tensor that a dispatch reads of a copy, and its bytes."""
    for arg, binding in zip(dispatch.program.blob.tensors, dispatch.bindings, strict=True):
        if arg.storage in TEXTURE_KINDS:
            buffer = cast(WgpuBuffer, binding.buffer)
            yield (buffer, binding.offset, arg.storage), binding.nbytes


def _copies(
    recording: WgpuRecording, dispatch: Dispatch, current: dict[_Place, int]
) -> list[_Copy]:
    """Return the copies that a dispatch needs before it; those of constants go to `made.once`.

    `current` is how many bytes of each texture are as in its buffer, and is brought up to date.
    """
    current_copies: list[_Copy] = []
    for place, nbytes in _texture_reads(dispatch):
        if current.get(place, 0) < nbytes:
            buffer, offset, _ = place
            copies = recording.textures[place].copies(buffer, offset, nbytes)
            (recording.once if buffer.usage is Usage.CONSTANT else current_copies).extend(copies)
            current[place] = nbytes
    bound = zip(dispatch.program.blob.tensors, dispatch.bindings, strict=True)
    written = {binding.buffer for arg, binding in bound if arg.access == "write"}
    for place in [place for place in current if place[0] in written]:
        del current[place]
    return current_copies
