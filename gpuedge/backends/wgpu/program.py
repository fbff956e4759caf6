"""Building kernels: shader modules, pipelines, shared layouts, one program per specialisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuedge.backends.wgpu import constants as c
from gpuedge.backends.wgpu.queue import Queue
from gpuedge.core.errors import DriverError, InputError
from gpuedge.core.kernel import KernelBlob, Number

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
    """A kernel's pipeline."""

    blob: KernelBlob
    pipeline: Any
    layout: Layout


class Programs:
    """The programs of one device."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._api = queue.api
        self._layouts: dict[tuple[tuple[bool, ...], int], Layout] = {}
        self._programs: set[WgpuProgram] = set()

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> WgpuProgram:
        """Compile a kernel. Raises InputError for what is not WGSL text, DriverError."""
        _check_text(blob)
        layout = self._layout(blob)
        made = WgpuProgram(blob, self._pipeline(blob, blob.values(specs), layout), layout)
        self._programs.add(made)
        return made

    def _layout(self, blob: KernelBlob) -> Layout:
        push_bytes = -(-blob.push_bytes // PUSH_UNIT) * PUSH_UNIT
        key = (tuple(arg.access == "read" for arg in blob.tensors), push_bytes)
        if key not in self._layouts:
            self._layouts[key] = self._new_layout(*key)
        return self._layouts[key]

    def _new_layout(self, reads: tuple[bool, ...], push_bytes: int) -> Layout:
        api, device = self._api, self._queue.device
        entries = []
        kinds = [c.BINDING_READ_ONLY if read else c.BINDING_STORAGE for read in reads]
        for binding, kind in enumerate([*kinds, *([c.BINDING_UNIFORM] if push_bytes else [])]):
            entry = api.make(
                "WGPUBindGroupLayoutEntry", binding=binding, visibility=c.SHADER_STAGE_COMPUTE
            )
            entry.buffer.type = kind
            entry.buffer.minBindingSize = push_bytes if kind == c.BINDING_UNIFORM else 0
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
        source.chain.sType = getattr(lib, c.SOURCE_WGSL)
        chain = api.chain(source)
        about = api.make("WGPUShaderModuleDescriptor", nextInChain=chain)
        made = lib.wgpuDeviceCreateShaderModuleTrusted(self._queue.device, about, c.CHECK_BOUNDS)
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
        """Drop a program's pipeline; doing it twice does nothing."""
        if program in self._programs:
            self._programs.discard(program)
            self._api.lib.wgpuComputePipelineRelease(program.pipeline)

    def close(self) -> None:
        """Drop all pipelines and layouts."""
        lib = self._api.lib
        for program in self._programs:
            lib.wgpuComputePipelineRelease(program.pipeline)
        for layout in self._layouts.values():
            lib.wgpuPipelineLayoutRelease(layout.pipeline)
            lib.wgpuBindGroupLayoutRelease(layout.group)
        self._programs.clear()
        self._layouts.clear()


def _check_text(blob: KernelBlob) -> None:
    """Refuse what is not text: wgpu-native does not look, and ends the process on some of it."""
    try:
        blob.code.decode()
    except UnicodeDecodeError:
        raise InputError(f"Kernel {blob.name!r} is not WGSL text.") from None
