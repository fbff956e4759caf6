"""Small kernels for the Vulkan tests, assembled by glslang: independent of our own language."""

from __future__ import annotations

import subprocess
import tempfile
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt
from seam_kernels import downloaded

from gpuedge.backends.base import Binding, Buffer, DeviceImpl, Dispatch, Usage
from gpuedge.core.kernel import KernelBlob, PushArg, SpecArg, TensorArg

Floats = npt.NDArray[np.float32]

HEAD = "#version 450\nlayout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;\n"
PUSH = "layout(push_constant) uniform Push { int n; float k; };\n"


@lru_cache
def spirv(glsl: str) -> bytes:
    """Assemble GLSL for Vulkan 1.0."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "kernel.comp"), Path(folder, "kernel.spv")
        source.write_text(glsl)
        command = ["glslangValidator", "--target-env", "vulkan1.0", "-V", "-S", "comp"]
        run = subprocess.run(
            [*command, str(source), "-o", str(result)], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stdout
        return result.read_bytes()


def kernel(
    name: str,
    body: str,
    tensors: int,
    *,
    head: str = HEAD,
    code: bytes | None = None,
) -> KernelBlob:
    """Make a kernel of `tensors` float buffers t0, t1, ...; the last one is written."""
    buffers = "".join(
        f"layout(std430, binding = {i}) buffer B{i} {{ float t{i}[]; }};\n" for i in range(tensors)
    )
    made = code or spirv(f"{head}{buffers}{PUSH}void main() {{ {body} }}")
    size = tuple(SpecArg(axis, "int", i, 1) for i, axis in enumerate(("LX", "LY", "LZ")))
    names = [TensorArg(f"t{i}", "read", i) for i in range(tensors - 1)]
    names.append(TensorArg(f"t{tensors - 1}", "write", tensors - 1))
    push = (PushArg("n", "int", 0), PushArg("k", "float", 4))
    digest = sha256(made).hexdigest()
    return KernelBlob(name, "spirv", made, "main", tuple(names), size, push, 8, digest)


INDEX = "int i = int(gl_GlobalInvocationID.x); if (i >= n) return;"
ADD = kernel("add", f"{INDEX} t2[i] = t0[i] + t1[i];", 3)
SCALE = kernel("scale", f"{INDEX} t1[i] = t0[i] * 2.0 + k;", 2)
SPIN = kernel(
    "spin",
    "uint x = gl_GlobalInvocationID.x; for (int j = 0; j < n; ++j)"
    " { x = x * 1664525u + 1013904223u; } t0[gl_GlobalInvocationID.x] = float(x >> 8);",
    1,
)
SPIN_STEPS = 50_000
"""Turns of SPIN's loop: lavapipe ends an invocation's loops after 65535 turns, silently."""
SPIN_WIDTH = 16


def spin(device: DeviceImpl, result: Buffer, groups: int) -> Dispatch:
    """Launch SPIN; it takes time in proportion to `groups`."""
    return dispatch(device, SPIN, [result], SPIN_STEPS, width=SPIN_WIDTH, groups=groups)


def push(n: int, k: float = 0.0) -> bytes:
    """Pack the push constants of every kernel here."""
    return np.int32(n).tobytes() + np.float32(k).tobytes()


def dispatch(
    device: DeviceImpl,
    blob: KernelBlob,
    buffers: list[Buffer],
    n: int,
    *,
    k: float = 0.0,
    width: int = 64,
    depends: bool = True,
    groups: int | None = None,
) -> Dispatch:
    """Build `blob` and launch it over `n` elements of whole buffers."""
    program = device.build(blob, {"LX": width})
    bindings = tuple(Binding(b, 0, b.nbytes) for b in buffers)
    count = (-(-n // width) if groups is None else groups, 1, 1)
    return Dispatch(program, bindings, push(n, k), count, depends)


def upload(device: DeviceImpl, values: Floats, usage: Usage = Usage.INPUT) -> Buffer:
    """Make a buffer holding `values`."""
    made = device.alloc(values.nbytes, usage)
    device.write(made, memoryview(values))
    return made


def run(
    device: DeviceImpl, work: list[Dispatch], inputs: list[Buffer], outputs: list[Buffer]
) -> None:
    """Record, submit, wait and release."""
    recording = device.record(work, inputs, outputs)
    device.wait(device.submit(recording), 60.0)
    device.release(recording)


def add_on(device: DeviceImpl, a: Floats, b: Floats, *, width: int = 64) -> Floats:
    """Add two arrays on a device: `b` as a constant, so that both kinds of upload are used."""
    first, second = upload(device, a), upload(device, b, Usage.CONSTANT)
    result = device.alloc(a.nbytes, Usage.OUTPUT)
    work = dispatch(device, ADD, [first, second, result], a.size, width=width)
    run(device, [work], [first], [result])
    values = downloaded(device, result)
    for buffer in (first, second, result):
        device.free(buffer)
    device.release(work.program)
    return values
