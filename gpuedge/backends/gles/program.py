"""Building kernels: text with its specs filled in, a program, the places of its uniforms."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuedge.backends.gles import shaders
from gpuedge.backends.gles.gl import Gl
from gpuedge.backends.gles.stack import GlObject, Stack, Step
from gpuedge.core.caps import Caps
from gpuedge.core.errors import DriverError, InputError, KernelLimitError
from gpuedge.core.kernel import KernelBlob, Number, PushArg

_AXES = ("LX", "LY", "LZ")


@dataclass(slots=True, eq=False)
class GlesProgram:
    """A linked program.

    Attributes
    ----------
    blob : KernelBlob
    specs : tuple of int, float or bool
        Values in the order of the blob's specs.
    made : GlObject
    places : dict of str to int
        Locations of the uniforms in use, by name.
    units : dict of str to int
        Texture unit of each tensor that is read, by name.
    applied : object
        The values its uniforms have, one of `known`; uniforms stay set until others are.
    users : int
        How often it was handed out and not yet released.
    """

    blob: KernelBlob
    specs: tuple[Number, ...]
    made: GlObject
    places: dict[str, int]
    units: dict[str, int]
    applied: object = None
    known: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    users: int = 1

    @property
    def name(self) -> int:
        """The program's name in OpenGL."""
        return self.made.name


class Programs:
    """The programs of one device.

    Parameters
    ----------
    gl : Gl
    stack : Stack
    caps : Caps
    row : int, optional
        Physical texels of a row of a texture, where tensors are textures.
    """

    def __init__(self, gl: Gl, stack: Stack, caps: Caps, row: int | None) -> None:
        self._gl = gl
        self._stack = stack
        self._caps = caps
        self._macros = {} if row is None else {"ROW": row}
        self._programs: dict[tuple[str, tuple[Number, ...]], GlesProgram] = {}

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> tuple[GlesProgram, bool]:
        """Return the program and whether it had to be compiled.

        Raises
        ------
        KernelLimitError (GE-303)
            It needs more than the device has.
        DriverError (GE-405)
            The driver refuses it; the error holds what it says.
        """
        values = _values(blob, specs)
        key = (blob.digest, values)
        known = self._programs.get(key)
        if known is not None:
            known.users += 1
            return known, False
        check_limits(blob, values, self._caps)
        given = {s.name: v for s, v in zip(blob.specs, values, strict=True)}
        text = blob.specialised(given, self._macros)
        try:
            if self._caps.level == "gles31":
                made = self._stack.compute(text)
            else:
                made = self._stack.program(shaders.VERTEX[self._caps.level], text)
        except DriverError as error:
            error.asked_by = f"kernel {blob.name!r}"
            error.hint = "report it with the output of: gpuedge info --json"
            raise
        program = self._programs[key] = self._located(blob, values, made)
        return program, True

    def _located(self, blob: KernelBlob, values: tuple[Number, ...], made: GlObject) -> GlesProgram:
        """Find the program's uniforms, and tie each sampler to its unit once for all."""
        gl = self._gl
        reads = [t.name for t in blob.tensors if t.access == "read"]
        wanted = [f"{letter}_{t.name}" for t in blob.tensors for letter in "tdi"]
        wanted += [f"p_{arg.name}" for arg in blob.push if arg.type != "ivec4"]
        found = {w: gl.GetUniformLocation(made.name, w.encode()) for w in wanted}
        places = {w: location for w, location in found.items() if location >= 0}
        units = {}
        if self._caps.level != "gles31":
            units = {name: unit for unit, name in enumerate(reads) if f"t_{name}" in places}
            gl.UseProgram(made.name)
            for name, unit in units.items():
                gl.Uniform1i(places[f"t_{name}"], unit)
        return GlesProgram(blob, values, made, places, units)

    def release(self, program: GlesProgram) -> None:
        """Drop one use of a program; the last one deletes it."""
        program.users -= 1
        if program.users == 0:
            self._programs.pop((program.blob.digest, program.specs), None)
            self._stack.delete(program.made)


def uniforms(gl: Gl, program: GlesProgram, values: tuple[Any, ...]) -> list[Step]:
    """Return the calls that set a program's uniforms; `values` are pairs (name, numbers)."""
    is_float = program.blob.dialect == "essl100"
    steps: list[Step] = []
    for name, numbers in values:
        place = program.places.get(name)
        if place is None:
            continue
        floats = is_float or any(isinstance(n, float) for n in numbers)
        call = getattr(gl, f"Uniform{len(numbers)}{'f' if floats else 'i'}")
        steps.append((call, (place, *numbers)))
    return steps


def pushed(blob: KernelBlob, push: bytes) -> list[tuple[str, tuple[Number, ...]]]:
    """Return the uniforms that a block of pushed values stands for: extents and parameters."""
    return [_pushed(arg, push) for arg in blob.push]


def _pushed(arg: PushArg, push: bytes) -> tuple[str, tuple[Number, ...]]:
    if arg.type == "ivec4":
        return f"d_{arg.name}", struct.unpack_from("<4i", push, arg.offset)
    code = "<i" if arg.type == "int" else "<f"
    return f"p_{arg.name}", struct.unpack_from(code, push, arg.offset)


def _values(blob: KernelBlob, specs: Mapping[str, Number]) -> tuple[Number, ...]:
    names = {spec.name for spec in blob.specs}
    unknown = sorted(set(specs) - names)
    if unknown:
        raise InputError(
            f"Kernel {blob.name!r} has no specialisation constant {unknown[0]!r}.",
            known=f"it has: {', '.join(sorted(names)) or 'none'}",
        )
    kinds = {"int": int, "float": float, "bool": bool}
    return tuple(kinds[s.type](specs.get(s.name, s.default)) for s in blob.specs)


def check_limits(blob: KernelBlob, values: tuple[Number, ...], caps: Caps) -> None:
    """Compare what a kernel needs with what a device offers, before any driver sees it.

    Raises
    ------
    KernelLimitError (GE-303)
        Too many invocations, tensors or outputs.
    """
    if blob.dialect != caps.dialect:
        raise KernelLimitError(
            f"Kernel {blob.name!r} is {blob.dialect}; this device takes {caps.dialect}."
        )
    needs = [
        ("tensors", len(blob.tensors), caps.max_storage_buffers),
        ("outputs", sum(t.access == "write" for t in blob.tensors), caps.max_outputs),
    ]
    size = [1, 1, 1]
    if "group" in caps.forms:
        by_name = {spec.name: int(v) for spec, v in zip(blob.specs, values, strict=True)}
        size = [by_name.get(axis, 1) for axis in _AXES]
        product = size[0] * size[1] * size[2]
        needs.append(("invocations per workgroup", product, caps.max_invocations))
        limits = zip(_AXES, size, caps.max_local_size, strict=True)
        needs += [(f"workgroup size {axis}", n, most) for axis, n, most in limits]
    for what, needed, offered in needs:
        if needed > offered:
            raise KernelLimitError(
                f"Kernel {blob.name!r} needs {needed} {what}; this device offers {offered}.",
                known=f"workgroup size {size[0]}x{size[1]}x{size[2]}",
            )
    if min(size) < 1:
        raise KernelLimitError(f"Kernel {blob.name!r} has the workgroup size {size}.")
