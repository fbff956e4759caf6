"""Small kernels for the OpenGL ES tests, and running them on any device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge import backends
from gpuedge.backends.base import Binding, Buffer, DeviceInfo, Dispatch, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.core.kernel import KernelBlob, Number
from gpuedge.core.storage import READ_AS, Storage
from gpuedge.lang import load, print_kernel

Floats = npt.NDArray[np.float32]

HEAD = "kernel map t;\nin tensor A;\nin tensor B;\nout tensor O;\n"
ADD = HEAD + "vec4 main(ivec4 p) { return load4(A, p) + load4(B, p); }"
COPY = "kernel map t;\nin tensor A;\nout tensor O;\nvec4 main(ivec4 p) { return load4(A, p); }"
SCALE = (
    "kernel map t;\nspec int N = 2;\nspec bool FLAG = false;\nspec float PART = 0.25;\n"
    "param int K;\nparam float G;\nin tensor A;\nout tensor O;\n"
    "vec4 main(ivec4 p) { vec4 v = load4(A, p) * float(N) + float(K) + G;\n"
    "if (FLAG) { v += PART; }\nreturn v; }"
)
SPIN = (
    "kernel map t;\nparam int N;\nout tensor O;\n"
    "vec4 main(ivec4 p) { vec4 v = vec4(float(p.x));\n"
    "for (int i = 0; i < N; i++) { v = v * 0.5 + sqrt(v + 1.0); }\nreturn v; }"
)
REVERSE = (
    "kernel group t;\nin tensor A;\nout tensor O;\nspec int LX = 8;\n"
    "local_size(LX, 1, 1);\nshared vec4 m[LX];\n"
    "void main() {\nint l = local_id().x;\nint g = group_id().x * LX;\n"
    "m[l] = load4(A, ivec4(g + l, 0, 0, 0));\nbarrier();\n"
    "store4(O, ivec4(g + l, 0, 0, 0), m[LX - 1 - l]);\n}"
)


def infos(level: str) -> list[DeviceInfo]:
    """List the devices of a level in this process's environment."""
    backend = backends.load(level)
    found: list[DeviceInfo] = []
    for candidate in backend.candidates(os.environ):
        if Path(candidate.key).is_file():
            found += backend.enumerate(candidate)
    return found


def opened(level: str, **options: Any) -> OpenDevice:
    """Open the first device of a level."""
    device = backends.load(level).open(infos(level)[0], **options)
    assert isinstance(device, OpenDevice)
    return device


def printed(device: OpenDevice, text: str, kinds: Mapping[str, str] | None = None) -> KernelBlob:
    """Print a kernel for a device; tensors without a kind get its default.

    Buffers are of float32, read as texel buffers where `kinds` has it.
    """
    kernel = load(text, filename="t.kern")
    if device.caps.storages[0] == "buffer":
        texels = {n: k for n, k in (kinds or {}).items() if k in READ_AS.values()}
        return print_kernel(kernel, device.caps.dialect, texels)
    named = {t.name: (kinds or {}).get(t.name, device.caps.storages[0]) for t in kernel.tensors}
    return print_kernel(kernel, device.caps.dialect, named)


def tensor(
    device: OpenDevice, texels: int, usage: Usage = Usage.SCRATCH, storage: Storage | None = None
) -> Buffer:
    """Reserve a tensor of so many texels."""
    kind = storage or Storage(device.caps.storages[0])
    return device.alloc(texels * 16, usage, kind)


def uploaded(device: OpenDevice, values: Floats, storage: Storage | None = None) -> Buffer:
    """Make a tensor that holds `values`."""
    made = tensor(device, values.size // 4, Usage.INPUT, storage)
    device.write(made, memoryview(values))
    return made


def downloaded(device: OpenDevice, buffer: Buffer) -> Floats:
    """Return what a tensor holds."""
    into = np.full(buffer.nbytes // 4, np.nan, np.float32)
    device.read(buffer, memoryview(into))
    return into


def launch(
    device: OpenDevice,
    blob: KernelBlob,
    buffers: Sequence[Buffer],
    *,
    params: Mapping[str, Number] | None = None,
    specs: Mapping[str, Number] | None = None,
    texels: int | None = None,
    depends: bool = True,
) -> Dispatch:
    """Build a kernel and launch it over tensors that are one row of texels."""
    count = buffers[-1].nbytes // 16 if texels is None else texels
    sizes = {s.name: 8 for s in blob.specs if s.name == "LX"}
    program = device.build(blob, {**sizes, **(specs or {})})
    bindings = tuple(Binding(b, 0, min(b.nbytes, count * 16)) for b in buffers)
    push = blob.pack_push([(count, 1, 1, 1)] * len(buffers), params)
    return Dispatch(program, bindings, push, (-(-count // 8), 1, 1), depends)


def run(device: OpenDevice, work: Sequence[Dispatch], seconds: float = 60.0) -> None:
    """Record, submit, wait and release."""
    recording = device.record(work)
    device.wait(device.submit(recording), seconds)
    device.release(recording)
