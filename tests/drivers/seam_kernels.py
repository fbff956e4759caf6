"""Small kernels in our own language, and running them on an open device of any API."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge import backends
from gpuedge.backends.base import (
    Binding,
    Buffer,
    DeviceImpl,
    DeviceInfo,
    Dispatch,
    Recording,
    Usage,
)
from gpuedge.backends.device import OpenDevice
from gpuedge.core.kernel import KernelBlob, Number
from gpuedge.core.storage import READ_ONLY, TEXELS, Storage
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


def info_of(level: str) -> DeviceInfo:
    """Return the first device of the first driver of a level in this process's environment."""
    backend = backends.load(level)
    keys = (c for c in backend.candidates(os.environ) if "/" not in c.key or Path(c.key).is_file())
    return backend.enumerate(next(keys))[0]


def opened(level: str, **options: Any) -> OpenDevice:
    """Open the first device of a level."""
    device = backends.load(level).open(info_of(level), **options)
    assert isinstance(device, OpenDevice)
    return device


def printed(device: DeviceImpl, text: str, kinds: Mapping[str, str] | None = None) -> KernelBlob:
    """Print a kernel for a device; tensors without a kind get its default.

    Buffers are of float32, read as what `kinds` has that is only read.
    """
    kernel = load(text, filename="t.kern")
    if device.caps.storages[0] == "buffer":
        read = {n: k for n, k in (kinds or {}).items() if k in READ_ONLY}
        return print_kernel(kernel, device.caps.dialect, read)
    named = {t.name: (kinds or {}).get(t.name, device.caps.storages[0]) for t in kernel.tensors}
    return print_kernel(kernel, device.caps.dialect, named)


def tensor(
    device: DeviceImpl, texels: int, usage: Usage = Usage.SCRATCH, storage: Storage | None = None
) -> Buffer:
    """Reserve a tensor of so many texels."""
    kind = storage or Storage(device.caps.storages[0])
    return device.alloc(texels * 16, usage, kind)


def uploaded(
    device: DeviceImpl,
    values: Floats,
    storage: Storage | None = None,
    usage: Usage = Usage.INPUT,
) -> Buffer:
    """Make a tensor that holds `values`."""
    made = tensor(device, values.size // 4, usage, storage)
    device.write(made, memoryview(values))
    return made


def downloaded(device: DeviceImpl, buffer: Buffer) -> Floats:
    """Return what a tensor holds."""
    into = np.full(buffer.nbytes // 4, np.nan, np.float32)
    device.read(buffer, memoryview(into))
    return into


def launch(
    device: DeviceImpl,
    blob: KernelBlob,
    buffers: Sequence[Buffer],
    *,
    params: Mapping[str, Number] | None = None,
    specs: Mapping[str, Number] | None = None,
    texels: int | None = None,
    depends: bool = True,
    width: int = 64,
) -> Dispatch:
    """Build a kernel and launch it over tensors that are one row of texels."""
    count = buffers[-1].nbytes // 16 if texels is None else texels
    sizes = {s.name: width for s in blob.specs if s.name == "LX"}
    program = device.build(blob, {**sizes, **(specs or {})})
    bindings = tuple(Binding(b, 0, min(b.nbytes, count * 16)) for b in buffers)
    push = blob.pack_push([(count, 1, 1, 1)] * len(buffers), params)
    return Dispatch(program, bindings, push, (-(-count // width), 1, 1), depends)


def finish(device: DeviceImpl, recording: Recording) -> None:
    """Run recorded work to its end."""
    device.wait(device.submit(recording), 60.0)


def run(
    device: DeviceImpl,
    work: Sequence[Dispatch],
    inputs: Sequence[Buffer] = (),
    outputs: Sequence[Buffer] = (),
) -> None:
    """Record, submit, wait and release."""
    recording = device.record(work, inputs, outputs)
    finish(device, recording)
    device.release(recording)


def add(device: DeviceImpl, texels: int = 64) -> None:
    """Use every part of a device once, and leave nothing behind on it."""
    ones = np.ones(texels * 4, np.float32)
    first, second = uploaded(device, ones), uploaded(device, 2 * ones, usage=Usage.CONSTANT)
    result = tensor(device, texels, Usage.OUTPUT)
    kinds = {"A": TEXELS} if device.caps.max_texel_buffers else None
    work = launch(device, printed(device, ADD, kinds), [first, second, result])
    run(device, [work], [first], [result])
    np.testing.assert_array_equal(downloaded(device, result), 3 * ones)
    for buffer in (first, second, result):
        device.free(buffer)
    device.release(work.program)
