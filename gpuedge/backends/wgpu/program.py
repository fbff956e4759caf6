"""Building kernels: shader modules, pipelines, shared layouts, one program per specialisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuedge.backends.wgpu import constants as c
from gpuedge.backends.wgpu.queue import Queue
from gpuedge.core.errors import DriverError
from gpuedge.core.kernel import KernelBlob, Number, TensorArg
from gpuedge.core.storage import IMAGE_KINDS, TEXTURE_KINDS

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


def _kind(arg: TensorArg) -> int | str:
    """Return the storage kind of a copy in a texture, or a WGPUBufferBindingType."""
    if arg.storage in TEXTURE_KINDS:
        return arg.storage
    return c.BINDING_READ_ONLY if arg.access == "read" else c.BINDING_STORAGE


class Programs:
    """The programs of one device."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._api = queue.api
        self._layouts: dict[tuple[tuple[int | str, ...], int], Layout] = {}

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> WgpuProgram:
        """Compile a kernel. Raises DriverError."""
        values, layout = blob.values(specs), self._layout(blob)
        return WgpuProgram(blob, self._pipeline(blob, values, layout), layout)

    def _layout(self, blob: KernelBlob) -> Layout:
        push_bytes = -(-blob.push_bytes // PUSH_UNIT) * PUSH_UNIT
        key = (tuple(_kind(arg) for arg in blob.tensors), push_bytes)
        if key not in self._layouts:
            self._layouts[key] = self._new_layout(*key)
        return self._layouts[key]

    def _new_layout(self, kinds: tuple[int | str, ...], push_bytes: int) -> Layout:
        api, queue = self._api, self._queue
        entries = []
        for binding, kind in enumerate([*kinds, *([c.BINDING_UNIFORM] if push_bytes else [])]):
            entry = api.make(
                "WGPUBindGroupLayoutEntry", binding=binding, visibility=c.SHADER_STAGE_COMPUTE
            )
            if kind in IMAGE_KINDS:
                entry.storageTexture.access = c.ACCESS_READ_ONLY
                entry.storageTexture.format = c.TEXTURE_FORMATS[kind]
                entry.storageTexture.viewDimension = c.DIMENSION_2D
            elif kind in TEXTURE_KINDS:
                entry.texture.sampleType = c.UNFILTERABLE_FLOAT
                entry.texture.viewDimension = c.DIMENSION_2D
            else:
                entry.buffer.type = kind
                entry.buffer.minBindingSize = push_bytes if kind == c.BINDING_UNIFORM else 0
            entries.append(entry)
        table = api.array("WGPUBindGroupLayoutEntry", entries)
        about = api.make("WGPUBindGroupLayoutDescriptor", entryCount=len(entries), entries=table)
        group = queue.create("BindGroupLayout", about)
        groups = api.empty("WGPUBindGroupLayout", 1)
        groups[0] = group
        about = api.make(
            "WGPUPipelineLayoutDescriptor", bindGroupLayoutCount=1, bindGroupLayouts=groups
        )
        return Layout(group, queue.create("PipelineLayout", about), push_bytes)

    def _pipeline(self, blob: KernelBlob, values: tuple[Number, ...], layout: Layout) -> Any:
        api, queue = self._api, self._queue
        module = self._module(blob.code)
        try:
            constants = [
                api.make("WGPUConstantEntry", key=str(spec.spec_id).encode(), value=float(value))
                for spec, value in zip(blob.specs, values, strict=True)
            ]
            compute = api.make(
                "WGPUComputeState",
                module=module,
                entryPoint=blob.entry.encode(),
                constantCount=len(constants),
                constants=api.array("WGPUConstantEntry", constants),
            )
            about = api.make(
                "WGPUComputePipelineDescriptor", layout=layout.pipeline, compute=compute
            )
            return queue.create("ComputePipeline", about)
        finally:
            queue.release("ShaderModule", module)

    def accepts(self, text: bytes) -> bool:
        """Tell whether the device takes a kernel's text, which is compiled no further."""
        try:
            self._queue.release("ShaderModule", self._module(text))
        except DriverError:
            return False
        return True

    def _module(self, text: bytes) -> Any:
        """Compile a text; loops are not counted, since the language has none without end."""
        api, lib, queue = self._api, self._api.lib, self._queue
        source = api.make("WGPUShaderSourceWGSL", code=text)
        source.chain.sType = getattr(lib, c.SOURCE_WGSL)
        about = api.make("WGPUShaderModuleDescriptor", nextInChain=api.chain(source))
        module = lib.wgpuDeviceCreateShaderModuleTrusted(queue.device, about, c.CHECK_BOUNDS)
        del source
        return queue.checked(module, "ShaderModule", "wgpuDeviceCreateShaderModule")

    def release(self, program: WgpuProgram) -> None:
        """Drop a program's pipeline."""
        self._queue.release("ComputePipeline", program.pipeline)

    def close(self) -> None:
        """Drop all layouts."""
        for layout in self._layouts.values():
            self._queue.release("PipelineLayout", layout.pipeline)
            self._queue.release("BindGroupLayout", layout.group)
        self._layouts.clear()
