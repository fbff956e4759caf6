"""WebGPU with nothing in between but the package `wgpu` itself.

As a script it prints what an adapter says of itself as one JSON document:
``python benchmarks/bare/webgpu.py Vulkan`` (or ``OpenGL``).
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable
from typing import Any

import wgpu

COPY = """
@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> b: array<vec4<f32>>;
@compute @workgroup_size(4)
fn main(@builtin(global_invocation_id) i: vec3<u32>) { b[i.x] = a[i.x]; }
"""
VALUES = 16


class BareWgpu:
    """A device of the first adapter that uses an API.

    Parameters
    ----------
    api : str
        ``Vulkan`` or ``OpenGL``, as adapters name what lies below them.
    """

    def __init__(self, api: str) -> None:
        found = wgpu.gpu.enumerate_adapters_sync()
        adapters = [a for a in found if a.info["backend_type"].startswith(api)]
        if not adapters:
            raise LookupError(f"no adapter uses {api}")
        self.adapter = adapters[0]
        self.device = self.adapter.request_device_sync()

    def facts(self) -> dict[str, Any]:
        """Return what the adapter says of itself."""
        return dict(self.adapter.info)

    def work(self) -> Callable[[], bytes]:
        """Set up a copy of 16 values; calling the result encodes, submits and reads them back."""
        device, usage = self.device, wgpu.BufferUsage
        data = array("f", range(VALUES)).tobytes()
        source = device.create_buffer_with_data(data=data, usage=usage.STORAGE)
        target = device.create_buffer(size=len(data), usage=usage.STORAGE | usage.COPY_SRC)
        module = device.create_shader_module(code=COPY)
        pipeline = device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "main"}
        )
        entries = [
            {"binding": i, "resource": {"buffer": b, "offset": 0, "size": len(data)}}
            for i, b in enumerate((source, target))
        ]
        layout = pipeline.get_bind_group_layout(0)
        group = device.create_bind_group(layout=layout, entries=entries)

        def run() -> bytes:
            encoder = device.create_command_encoder()
            step = encoder.begin_compute_pass()
            step.set_pipeline(pipeline)
            step.set_bind_group(0, group)
            step.dispatch_workgroups(1)
            step.end()
            device.queue.submit([encoder.finish()])
            return bytes(device.queue.read_buffer(target))

        return run

    def close(self) -> None:
        """Destroy the device."""
        self.device.destroy()


def main(api: str) -> None:
    """Print what the adapter says of itself, and whether its smallest work is right."""
    bare = BareWgpu(api)
    works = bare.work()() == array("f", range(VALUES)).tobytes()
    print(json.dumps(bare.facts() | {"works": works}, default=str))
    bare.close()


if __name__ == "__main__":
    main(sys.argv[1])
