"""Recording work once: every call with its arguments, only those that change something.

A replay runs down prepared calls. Of the state at its beginning nothing is assumed, for uploads and
other recordings come in between; within it, what is bound is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from gpuedge.backends.base import Binding, Dispatch
from gpuedge.backends.gles import constants as c
from gpuedge.backends.gles.api import Gl
from gpuedge.backends.gles.memory import GlesBuffer, GlesTexture, Textures
from gpuedge.backends.gles.program import GlesProgram, Step, pushed, uniforms
from gpuedge.core.errors import InputError
from gpuedge.core.kernel import TensorArg
from gpuedge.core.texels import fixed16_step


@dataclass(slots=True)
class Launch:
    """One kernel launch: calls that bind, calls that set uniforms unless they are set, the launch.

    `values` is what the uniforms are set to; passes that set a program alike share one object.
    """

    binds: list[Step]
    program: GlesProgram
    values: object
    sets: list[Step]
    call: Any
    args: tuple[Any, ...]


@dataclass(slots=True, eq=False)
class GlesRecording:
    """Recorded work."""

    launches: list[Launch]
    after: list[Step]


class _State:
    """What is bound, as far as a recording has come; calls that change nothing are left out."""

    def __init__(self) -> None:
        self._values: dict[Any, tuple[Any, ...]] = {}
        self.steps: list[Step] = []

    def call(self, key: Any, call: Any, *args: Any) -> bool:
        """Add a call unless the last one under `key` was the same; say whether it was added."""
        if self._values.get(key) == args:
            return False
        self._values[key] = args
        self.steps.append((call, args))
        return True

    def take(self) -> list[Step]:
        """Return the calls since the last time."""
        taken, self.steps = self.steps, []
        return taken


def record_draws(gl: Gl, textures: Textures, dispatches: Sequence[Dispatch]) -> GlesRecording:
    """Record kernels that draw: one triangle over the texels of the output."""
    state, launches = _State(), []
    draw = (gl.DrawArrays, (c.TRIANGLES, 0, 3))
    for dispatch in dispatches:
        program = cast(GlesProgram, dispatch.program)
        reads, writes = _tensors(program, dispatch.bindings)
        _check_loop(program, reads, writes)
        state.call("program", gl.UseProgram, program.name)
        targets = [texture for _, texture, _ in writes]
        frame = textures.frame(targets)
        state.call("frame", gl.BindFramebuffer, c.FRAMEBUFFER, frame)
        width, height = textures.area(targets[0], writes[0][2])
        state.call("viewport", gl.Viewport, 0, 0, width, height)
        for arg, texture, _ in reads:
            unit = program.units.get(arg.name)
            if unit is not None:
                _bind(gl, state, unit, texture)
        values = pushed(program.blob, dispatch.push)
        values += [(f"i_{arg.name}", _about(texture)) for arg, texture, _ in (*reads, *writes)]
        launches.append(_launch(gl, program, state.take(), values, draw))
    return GlesRecording(launches, [])


_Bound = tuple[TensorArg, GlesTexture, int]


def _tensors(
    program: GlesProgram, bindings: Sequence[Binding]
) -> tuple[list[_Bound], list[_Bound]]:
    """Return the tensors that are read and written, with their textures and bytes."""
    reads: list[_Bound] = []
    writes: list[_Bound] = []
    for arg, binding in zip(program.blob.tensors, bindings, strict=True):
        texture = cast(GlesTexture, binding.buffer)
        if binding.offset:
            raise _broken("a texture holds one tensor, at offset 0")
        if texture.storage.kind != arg.storage:
            raise _broken(
                f"{program.blob.name}: {arg.name} was printed for {arg.storage}, "
                f"its texture keeps {texture.storage.kind}"
            )
        (reads if arg.access == "read" else writes).append((arg, texture, binding.nbytes))
    return reads, writes


def _check_loop(program: GlesProgram, reads: list[_Bound], writes: list[_Bound]) -> None:
    written = {texture.name for _, texture, _ in writes}
    if not written:
        raise _broken(f"{program.blob.name}: a kernel writes a tensor")
    if any(texture.name in written for _, texture, _ in reads):
        raise _broken(f"{program.blob.name}: a texture is not read and written by one kernel")


def _broken(rule: str) -> InputError:
    return InputError("A rule of the device seam was broken.", known=rule)


def _bind(gl: Gl, state: _State, unit: int, texture: GlesTexture) -> None:
    if state._values.get(("unit", unit)) == (c.TEXTURE_2D, texture.name):
        return
    state.call("active", gl.ActiveTexture, c.TEXTURE0 + unit)
    state.call(("unit", unit), gl.BindTexture, c.TEXTURE_2D, texture.name)


def _about(texture: GlesTexture) -> tuple[float, ...]:
    storage = texture.storage
    return 1 / texture.width, 1 / texture.height, float(storage.low), fixed16_step(storage)


def _launch(
    gl: Gl,
    program: GlesProgram,
    binds: list[Step],
    values: Sequence[tuple[str, tuple[Any, ...]]],
    launch: Step,
) -> Launch:
    key = tuple(values)
    known = program.known.setdefault(key, key)
    return Launch(binds, program, known, uniforms(gl, program, key), *launch)


def record_dispatches(gl: Gl, dispatches: Sequence[Dispatch]) -> GlesRecording:
    """Record compute kernels on storage buffers."""
    state, launches = _State(), []
    for dispatch in dispatches:
        program = cast(GlesProgram, dispatch.program)
        if dispatch.depends:  # the first one may depend on an earlier submit
            state.steps.append((gl.MemoryBarrier, (c.SHADER_STORAGE_BARRIER,)))
        state.call("program", gl.UseProgram, program.name)
        for arg, binding in zip(program.blob.tensors, dispatch.bindings, strict=True):
            buffer = cast(GlesBuffer, binding.buffer)
            place = (c.SHADER_STORAGE_BUFFER, arg.binding, buffer.name)
            key = ("buffer", arg.binding)
            state.call(key, gl.BindBufferRange, *place, binding.offset, binding.nbytes)
        values = pushed(program.blob, dispatch.push)
        launch = (gl.DispatchCompute, dispatch.groups)
        launches.append(_launch(gl, program, state.take(), values, launch))
    return GlesRecording(launches, [(gl.MemoryBarrier, (c.BUFFER_UPDATE_BARRIER,))])
