"""Adapters to test WebGPU on, and running one kernel through the seam."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from conftest import lavapipe_candidate, missing, swiftshader_candidate
from required import absent

from gpuedge import lang
from gpuedge.backends import load
from gpuedge.backends.base import (
    Binding,
    Buffer,
    Candidate,
    DeviceImpl,
    DeviceInfo,
    Dispatch,
    Usage,
)
from gpuedge.backends.device import OpenDevice
from gpuedge.core.errors import BackendUnavailableError
from gpuedge.core.kernel import Extents, KernelBlob, Number

Floats = npt.NDArray[np.float32]

DRIVERS = Path(__file__).resolve().parents[2] / ".drivers"
BACKEND = load("wgpu")
MISSING = "is missing: python tools/drivers.py, or GPUEDGE_TEST_DAWN for Dawn's npm package"


def fetch(what: str) -> NoReturn:
    """Skip the test, or fail where drivers are required; say how to get what is missing."""
    absent(f"{what} {MISSING}")


def over_vulkan(manifest: str) -> Candidate:
    """Return the candidate of one Vulkan manifest."""
    return BACKEND.candidates({"VK_DRIVER_FILES": manifest})[0]


def angle_manifest() -> str:
    """Return the manifest of the SwiftShader that comes with ANGLE."""
    path = DRIVERS / "angle" / "vk_swiftshader_icd.json"
    if not path.is_file():
        fetch(str(path))
    return str(path)


def over_gl() -> Candidate:
    """Return the candidate of EGL's driver, Mesa's llvmpipe here."""
    found = next(c for c in BACKEND.candidates(dict(os.environ)) if c.key == "gl")
    try:
        BACKEND.enumerate(found)
    except BackendUnavailableError:
        missing("lavapipe")  # the same package
    return found


ADAPTERS = {
    "lavapipe": lambda: over_vulkan(lavapipe_candidate().key),
    "swiftshader": lambda: over_vulkan(swiftshader_candidate().key),
    "angle-swiftshader": lambda: over_vulkan(angle_manifest()),
    "gl": over_gl,
}
"""Candidates by name; each has one adapter."""


@lru_cache
def info_of(adapter: str) -> DeviceInfo:
    """Return the device of an adapter by name."""
    return BACKEND.enumerate(ADAPTERS[adapter]())[0]


def open_on(adapter: str, **options: float) -> OpenDevice:
    """Open an adapter by name."""
    made = BACKEND.open(info_of(adapter), **options)
    assert isinstance(made, OpenDevice)
    return made


def extents_of(array: Floats) -> Extents:
    """Return (W, H, S, N) of an array of texels."""
    n, s, h, w, _ = array.shape
    return (w, h, s, n)


def upload(device: DeviceImpl, values: Floats, usage: Usage = Usage.INPUT) -> Buffer:
    """Make a buffer holding `values`."""
    made = device.alloc(values.nbytes, usage)
    device.write(made, memoryview(np.ascontiguousarray(values)))
    return made


def run_kernel(
    device: DeviceImpl,
    kernel: lang.Kernel,
    tensors: Mapping[str, Floats],
    out: Extents,
    *,
    specs: Mapping[str, Number] | None = None,
    params: Mapping[str, Number] | None = None,
    groups: tuple[int, int, int] | None = None,
) -> dict[str, Floats]:
    """Run a kernel once and return its out tensors; the first input is a constant."""
    blob: KernelBlob = lang.print_kernel(kernel, device.caps.dialect)
    program = device.build(blob, dict(specs or {}))
    shape = (out[3], out[2], out[1], out[0], 4)
    made, extents, reads, writes = [], [], [], {}
    for arg in blob.tensors:
        if arg.access == "read":
            first = Usage.INPUT if made else Usage.CONSTANT
            made.append(upload(device, tensors[arg.name], first))
            extents.append(extents_of(tensors[arg.name]))
            reads.append(made[-1])
        else:
            poison = np.full(shape, np.nan, np.float32)
            made.append(upload(device, poison, Usage.OUTPUT))
            extents.append(out)
            writes[arg.name] = made[-1]
    size = [int(dict(specs or {}).get(axis, 1)) for axis in ("LX", "LY", "LZ")]
    cells = (out[0], out[1], out[2] * out[3])
    counts = groups or tuple(-(-c // s) for c, s in zip(cells, size, strict=True))
    bindings = tuple(Binding(b, 0, b.nbytes) for b in made)
    work = Dispatch(program, bindings, blob.pack_push(extents, params), counts)  # type: ignore[arg-type]
    recording = device.record([work], reads, list(writes.values()))
    device.wait(device.submit(recording), 60.0)
    results = {}
    for name, buffer in writes.items():
        results[name] = np.empty(shape, np.float32)
        device.read(buffer, memoryview(results[name]))
    device.release(recording)
    device.release(program)
    for buffer in made:
        device.free(buffer)
    return results
