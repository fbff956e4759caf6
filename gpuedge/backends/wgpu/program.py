"""Building kernels: shader modules, pipelines, shared layouts, one program per specialisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuedge.backends.wgpu import conv
from gpuedge.backends.wgpu.queue import Queue
from gpuedge.core.caps import Caps
from gpuedge.core.errors import DriverError, InputError, KernelLimitError
from gpuedge.core.kernel import KernelBlob, Number

_AXES = ("LX", "LY", "LZ")
PUSH_UNIT = 16
"""The block of extents is a uniform structure, whose size is a multiple of this (WGSL)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Layouts of an interface; `push_bytes` is the size of its block, 0 if it has none."""

    group: Any
    pipeline: Any
    push_bytes: int


@dataclass(slots=True, eq=False)
class WgpuProgram:
    """A pipeline; `users` counts how often it was handed out and not yet released."""

    blob: KernelBlob
    specs: tuple[Number, ...]
    pipeline: Any
    layout: Layout
    users: int = 1


class Programs:
    """The programs of one device."""

    def __init__(self, queue: Queue, caps: Caps) -> None:
        self._queue = queue
        self._api = queue.api
        self._caps = caps
        self._layouts: dict[tuple[tuple[bool, ...], int], Layout] = {}
        self._programs: dict[tuple[str, tuple[Number, ...]], WgpuProgram] = {}

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> tuple[WgpuProgram, bool]:
        """Return the program and whether it had to be compiled."""
        values = _values(blob, specs)
        key = (blob.digest, values)
        known = self._programs.get(key)
        if known is not None:
            known.users += 1
            return known, False
        _check_text(blob)
        check_limits(blob, values, self._caps)
        layout = self._layout(blob)
        made = WgpuProgram(blob, values, self._pipeline(blob, values, layout), layout)
        self._programs[key] = made
        return made, True

    def _layout(self, blob: KernelBlob) -> Layout:
        push_bytes = -(-blob.push_bytes // PUSH_UNIT) * PUSH_UNIT
        key = (tuple(arg.access == "read" for arg in blob.tensors), push_bytes)
        if key not in self._layouts:
            self._layouts[key] = self._new_layout(*key)
        return self._layouts[key]

    def _new_layout(self, reads: tuple[bool, ...], push_bytes: int) -> Layout:
        api, device = self._api, self._queue.device
        entries = []
        kinds = [conv.BINDING_READ_ONLY if read else conv.BINDING_STORAGE for read in reads]
        for binding, kind in enumerate([*kinds, *([conv.BINDING_UNIFORM] if push_bytes else [])]):
            entry = api.make(
                "WGPUBindGroupLayoutEntry", binding=binding, visibility=conv.SHADER_STAGE_COMPUTE
            )
            entry.buffer.type = kind
            entry.buffer.minBindingSize = push_bytes if kind == conv.BINDING_UNIFORM else 0
            entries.append(entry)
        table = api.array("WGPUBindGroupLayoutEntry", entries)
        about = api.make("WGPUBindGroupLayoutDescriptor", entryCount=len(entries), entries=table)
        group = api.lib.wgpuDeviceCreateBindGroupLayout(device, about)
        self._queue.check("wgpuDeviceCreateBindGroupLayout")
        one = api.empty("WGPUBindGroupLayout", 1)
        one[0] = group
        about = api.make(
            "WGPUPipelineLayoutDescriptor", bindGroupLayoutCount=1, bindGroupLayouts=one
        )
        made = api.lib.wgpuDeviceCreatePipelineLayout(device, about)
        self._queue.check("wgpuDeviceCreatePipelineLayout")
        return Layout(group, made, push_bytes)

    def _pipeline(self, blob: KernelBlob, values: tuple[Number, ...], layout: Layout) -> Any:
        api, lib = self._api, self._api.lib
        module = self._module(blob)
        try:
            constants = [
                api.make("WGPUConstantEntry", key=str(spec.spec_id).encode(), value=float(value))
                for spec, value in zip(blob.specs, values, strict=True)
            ]
            table = api.array("WGPUConstantEntry", constants) if constants else api.ffi.NULL
            compute = api.make(
                "WGPUComputeState",
                module=module,
                entryPoint=blob.entry.encode(),
                constantCount=len(constants),
                constants=table,
            )
            about = api.make(
                "WGPUComputePipelineDescriptor", layout=layout.pipeline, compute=compute
            )
            made = lib.wgpuDeviceCreateComputePipeline(self._queue.device, about)
            return self._checked(made, blob, "wgpuDeviceCreateComputePipeline",
                                 lib.wgpuComputePipelineRelease)  # fmt: skip
        finally:
            lib.wgpuShaderModuleRelease(module)

    def _module(self, blob: KernelBlob) -> Any:
        """Compile a text; loops are not counted, since the language has none without end."""
        api, lib = self._api, self._api.lib
        source = api.make("WGPUShaderSourceWGSL", code=blob.code)
        source.chain.sType = getattr(lib, conv.SOURCE_WGSL)
        chain = api.chain(source)
        about = api.make("WGPUShaderModuleDescriptor", nextInChain=chain)
        made = lib.wgpuDeviceCreateShaderModuleTrusted(self._queue.device, about, conv.CHECK_BOUNDS)
        del source
        return self._checked(
            made, blob, "wgpuDeviceCreateShaderModule", lib.wgpuShaderModuleRelease
        )

    def _checked(self, made: Any, blob: KernelBlob, call: str, release: Any) -> Any:
        try:
            self._queue.check(f"{call} for kernel {blob.name!r}")
        except BaseException as error:
            if made != self._api.ffi.NULL:
                release(made)
            if isinstance(error, DriverError):
                error.hint = "report it with the output of: gpuedge info --json"
            raise
        return made

    def release(self, program: WgpuProgram) -> None:
        """Drop one use of a program; its pipeline goes with the last."""
        program.users -= 1
        if program.users == 0:
            self._programs.pop((program.blob.digest, program.specs), None)
            self._api.lib.wgpuComputePipelineRelease(program.pipeline)

    def close(self) -> None:
        """Drop all pipelines and layouts."""
        lib = self._api.lib
        for program in self._programs.values():
            lib.wgpuComputePipelineRelease(program.pipeline)
        for layout in self._layouts.values():
            lib.wgpuPipelineLayoutRelease(layout.pipeline)
            lib.wgpuBindGroupLayoutRelease(layout.group)
        self._programs.clear()
        self._layouts.clear()


def _values(blob: KernelBlob, specs: Mapping[str, Number]) -> tuple[Number, ...]:
    names = {spec.name for spec in blob.specs}
    unknown = sorted(set(specs) - names)
    if unknown:
        raise InputError(
            f"Kernel {blob.name!r} has no specialisation constant {unknown[0]!r}.",
            known=f"it has: {', '.join(sorted(names)) or 'none'}",
        )
    values = ((spec, specs.get(spec.name, spec.default)) for spec in blob.specs)
    return tuple(float(v) if spec.type == "float" else int(v) for spec, v in values)


def _check_text(blob: KernelBlob) -> None:
    """Refuse what is no text: wgpu-native does not look, and ends the process on some of it."""
    try:
        blob.code.decode()
    except UnicodeDecodeError:
        raise InputError(f"Kernel {blob.name!r} is no WGSL text.") from None


def check_limits(blob: KernelBlob, values: tuple[Number, ...], caps: Caps) -> None:
    """Compare what a kernel needs with what a device offers, before any driver sees it.

    Raises
    ------
    KernelLimitError (GE-303)
        Too many invocations, buffers or bytes of extents and params.
    """
    by_name = {spec.name: int(v) for spec, v in zip(blob.specs, values, strict=True)}
    size = [by_name.get(axis, 1) for axis in _AXES]
    needs = [
        ("invocations per workgroup", size[0] * size[1] * size[2], caps.max_invocations),
        *((f"workgroup size {x}", size[i], caps.max_local_size[i]) for i, x in enumerate(_AXES)),
        ("storage buffers", len(blob.tensors), caps.max_storage_buffers),
        ("bytes of extents and params", blob.push_bytes, caps.max_push_bytes),
    ]
    for what, needed, offered in needs:
        if needed > offered:
            raise KernelLimitError(
                f"Kernel {blob.name!r} needs {needed} {what}; this device offers {offered}.",
                known=f"workgroup size {size[0]}x{size[1]}x{size[2]}",
            )
    if min(size) < 1:
        raise KernelLimitError(f"Kernel {blob.name!r} has the workgroup size {size}.")
