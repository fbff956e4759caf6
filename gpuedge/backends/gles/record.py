"""Recording work once: every call with its arguments, only those that change something.

The device replays the prepared calls. Of the state at its beginning nothing is assumed, for uploads
and other recordings come in between; within it, what is bound is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from gpuedge.backends.base import Binding, Dispatch
from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.api import Gl
from gpuedge.backends.gles.memory import Buffers, GlesBuffer, GlesTexture, Textures, target_of
from gpuedge.backends.gles.program import GlesProgram, Step, pushed, uniforms
from gpuedge.core.texels import fixed16_step

ReadyCall = Callable[[], Any]
"""A call with its arguments (`Gl.ready`)."""


class Launch(NamedTuple):
    """One kernel launch: calls that bind, calls that set uniforms unless they are set, the launch.

    `values` is what the uniforms are set to; passes that set a program alike share one object.
    """

    binds: list[ReadyCall]
    program: GlesProgram
    values: object
    sets: list[ReadyCall]
    call: ReadyCall


@dataclass(slots=True, eq=False)
class GlesRecording:
    """Recorded work; `textures` over ranges of buffers are its own, by format and range."""

    launches: list[Launch] = field(default_factory=list)
    after: list[ReadyCall] = field(default_factory=list)
    textures: dict[tuple[int, int, int, int], int] = field(default_factory=dict)


class _State:
    """What is bound, as far as a recording has come; calls that change nothing are left out."""

    def __init__(self, gl: Gl) -> None:
        self._gl = gl
        self._values: dict[Any, tuple[Any, ...]] = {}
        self.steps: list[Step] = []

    def call(self, key: Any, *steps: Step) -> None:
        """Add calls unless the last ones under `key` were the same."""
        if self._values.get(key) != steps:
            self._values[key] = steps
            self.steps += steps

    def take(self) -> list[ReadyCall]:
        """Return the calls since the last time, ready to be made."""
        taken, self.steps = self.steps, []
        return [self._gl.ready(call, *args) for call, args in taken]


def record_draws(
    gl: Gl, textures: Textures, dispatches: Sequence[Dispatch], recording: GlesRecording
) -> None:
    """Record kernels that draw: one triangle over the texels of the output."""
    state = _State(gl)
    for dispatch in dispatches:
        program = cast(GlesProgram, dispatch.program)
        state.call("program", (gl.UseProgram, (program.name,)))
        values = [pushed(arg, dispatch.push) for arg in program.blob.push]
        for arg, binding in zip(program.blob.tensors, dispatch.bindings, strict=True):
            texture = cast(GlesTexture, binding.buffer)
            values.append((f"i_{arg.name}", _about(texture)))
            if arg.access == "write":
                frame = textures.frame(texture)
                state.call("frame", (gl.BindFramebuffer, (c.FRAMEBUFFER, frame)))
                area = textures.area(texture, binding.nbytes)
                state.call("viewport", (gl.Viewport, (0, 0, *area)))
            elif (unit := program.units.get(arg.name)) is not None:
                target = target_of(textures.layers)
                state.call(unit, *_sampled(gl, unit, target, texture.name))
        draw = (gl.DrawArrays, (c.TRIANGLES, 0, 3))
        recording.launches.append(_launch(gl, program, state.take(), values, draw))


def _sampled(gl: Gl, unit: int, target: int, texture: int) -> tuple[Step, Step]:
    return (gl.ActiveTexture, (c.TEXTURE0 + unit,)), (gl.BindTexture, (target, texture))


def _about(texture: GlesTexture) -> tuple[float, ...]:
    storage = texture.storage
    return 1 / texture.width, 1 / texture.height, float(storage.low), fixed16_step(storage)


def _launch(
    gl: Gl,
    program: GlesProgram,
    binds: list[ReadyCall],
    values: Sequence[tuple[str, tuple[Any, ...]]],
    launch: Step,
) -> Launch:
    key = tuple(values)
    known = program.known.setdefault(key, key)
    sets = [gl.ready(call, *args) for call, args in uniforms(gl, program, key)]
    return Launch(binds, program, known, sets, gl.ready(launch[0], *launch[1]))


def record_dispatches(gl: Gl, dispatches: Sequence[Dispatch], recording: GlesRecording) -> None:
    """Record compute kernels on storage buffers, some of which they read as texel buffers."""
    state, barriers = _State(gl), c.SHADER_STORAGE_BARRIER
    if any(cast(GlesProgram, each.program).units for each in dispatches):
        # at each barrier: a later dispatch that depends on none before it may fetch, too
        barriers |= c.TEXTURE_FETCH_BARRIER
    for dispatch in dispatches:
        program = cast(GlesProgram, dispatch.program)
        if dispatch.depends:  # the first one may depend on an earlier submit
            state.steps.append((gl.MemoryBarrier, (barriers,)))
        state.call("program", (gl.UseProgram, (program.name,)))
        for arg, binding in zip(program.blob.tensors, dispatch.bindings, strict=True):
            if (form := c.TEXEL_FORMATS.get(arg.storage)) is None:
                name = cast(GlesBuffer, binding.buffer).name
                place = (c.SHADER_STORAGE_BUFFER, arg.binding, name, binding.offset, binding.nbytes)
                state.call(arg.binding, (gl.BindBufferRange, place))
            elif (unit := program.units.get(arg.name)) is not None:
                texture = _texture_over(gl, recording, binding, form)
                state.call(("unit", unit), *_sampled(gl, unit, c.TEXTURE_BUFFER, texture))
        values = [pushed(arg, dispatch.push) for arg in program.blob.push]
        launch = (gl.DispatchCompute, dispatch.groups)
        recording.launches.append(_launch(gl, program, state.take(), values, launch))
    recording.after.append(gl.ready(gl.MemoryBarrier, c.BUFFER_UPDATE_BARRIER))


def _texture_over(gl: Gl, recording: GlesRecording, binding: Binding, form: int) -> int:
    """Return a recording's texture over a range of a buffer."""
    name = cast(GlesBuffer, binding.buffer).name
    place = (form, name, binding.offset, binding.nbytes)
    if place not in recording.textures:
        recording.textures[place] = gl.generate("Textures")
        gl.BindTexture(c.TEXTURE_BUFFER, recording.textures[place])
        cast(Any, gl.tex_buffer_range)(c.TEXTURE_BUFFER, *place)
    return recording.textures[place]


class Recorder:
    """Records work on one device; `submit` starts it."""

    def __init__(
        self, gl: Gl, memory: Textures | Buffers, submit: Callable[[GlesRecording], Any]
    ) -> None:
        self._gl = gl
        self._memory = memory
        self.submit = submit

    def record(
        self, dispatches: Sequence[Dispatch], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> GlesRecording:
        """Record dispatches. OpenGL orders the host's access to `inputs` and `outputs` itself."""
        recording = GlesRecording()
        try:
            if isinstance(self._memory, Textures):
                record_draws(self._gl, self._memory, dispatches, recording)
            else:
                record_dispatches(self._gl, dispatches, recording)
            self._gl.check("recording")
        except BaseException:
            self.release(recording)
            raise
        return recording

    def release(self, recording: GlesRecording) -> None:
        """Delete the textures of a recording; the rest is a list of calls."""
        for texture in recording.textures.values():
            self._gl.delete("Textures", texture)
