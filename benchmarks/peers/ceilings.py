"""What this machine can do at most: ``python -m benchmarks.peers.ceilings cpu|DEVICE``.

On the CPU, a product of numpy's BLAS. On a device, two kernels in the kernel language through the
driver: one that multiplies and adds in registers only, one that copies 64 MiB.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

import gpuedge
from gpuedge import lang
from gpuedge.backends.base import Binding, DeviceImpl, Dispatch, Usage
from gpuedge.core.storage import BUFFER, TEXELS

CHAINS, UNROLLED, STEPS, LANES = 4, 8, 120, 4
RATE = (
    "kernel map rate;\nin tensor A;\nout tensor O;\nparam int N;\n"
    "vec4 main(ivec4 p) {\n    vec4 x = load4(A, p);\n"
    + "".join(f"    vec4 a{i} = x + {i}.0;\n" for i in range(CHAINS))
    + f"    for (int i = 0; i < N; i++) {{\n    unroll for (int k = 0; k < {UNROLLED}; k++) {{\n"
    + "".join(f"        a{i} = a{i} * 0.999 + x;\n" for i in range(CHAINS))
    + "    }\n    }\n    return " + " + ".join(f"a{i}" for i in range(CHAINS)) + ";\n}\n"
)  # fmt: skip
"""Chains of dependent products and sums, enough of them to fill the units, and few turns."""

COPY = "kernel map copy;\nin tensor A;\nout tensor O;\nvec4 main(ivec4 p) { return load4(A, p); }\n"
RATE_EXTENTS = (256, 128, 1, 1)
COPY_EXTENTS = (2048, 2048, 1, 1)
GROUP = 64
"""Invocations of a workgroup, all along a row."""

ROUNDS = 9
TIMEOUT_S = 60.0

Extents = tuple[int, int, int, int]

Times = tuple[float, float]
"""Wall and processor seconds."""


def timed(run: Callable[[], Any]) -> Times:
    """Return the least of `ROUNDS` calls after one that does not count."""
    run()
    samples = []
    for _ in range(ROUNDS):
        begin, busy = time.perf_counter(), time.process_time()
        run()
        samples.append((time.perf_counter() - begin, time.process_time() - busy))
    wall, cpu = zip(*samples, strict=True)
    return min(wall), min(cpu)


def kernel_times(
    impl: DeviceImpl, text: str, extents: Extents, n: int = 0, storage: str = BUFFER
) -> Times:
    """Return how long a kernel that reads A and writes O takes on a device."""
    kernel = lang.load(text, filename="ceiling.kern")
    blob = lang.print_kernel(kernel, impl.caps.dialect, {"A": storage})
    size = 16 * prod(extents)
    with impl.entered():
        program = impl.build(blob, {"LX": GROUP})
        source, target = impl.alloc(size, Usage.INPUT), impl.alloc(size, Usage.SCRATCH)
        impl.write(source, memoryview(np.full(size // 4, 1e-3, np.float32).tobytes()))
        groups = (-(-extents[0] // GROUP), extents[1], extents[2] * extents[3])
        push = blob.pack_push([extents] * 2, {p.name: n for p in kernel.params})
        bindings = (Binding(source, 0, size), Binding(target, 0, size))
        recording = impl.record([Dispatch(program, bindings, push, groups)])
        return timed(lambda: impl.wait(impl.submit(recording), TIMEOUT_S))


def of_device(device: str) -> dict[str, Any]:
    """Return a device's rates: 1e9 operations, and bytes read and written, a second."""
    with gpuedge.open(device, policy=gpuedge.Policy(allow_software=True)) as opened:
        impl: DeviceImpl = opened.executor.impl  # type: ignore[attr-defined]
        rate = kernel_times(impl, RATE, RATE_EXTENTS, STEPS)
        has_texels = impl.caps.max_texel_elements >= prod(COPY_EXTENTS)
        reads = (BUFFER, TEXELS) if has_texels else (BUFFER,)
        copies = [kernel_times(impl, COPY, COPY_EXTENTS, storage=one) for one in reads]
        copy = min(copies, key=lambda times: times[1])
        assert opened.identity is not None
        work = 2.0 * LANES * CHAINS * UNROLLED * STEPS * prod(RATE_EXTENTS)
        moved = 2.0 * 16 * prod(COPY_EXTENTS)
        found = {"device": opened.identity.name, "driver": opened.identity.driverInfo or ""}
        return {**found, **rates("gflops", work, rate),
                **rates("gbytes", moved, copy)}  # fmt: skip


def of_cpu() -> dict[str, Any]:
    """Return the rate of numpy's float32 product of 1024 by 1024, and of its copy of 64 MiB."""
    a = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
    big = np.ones(1 << 24, np.float32)
    into = np.empty_like(big)
    return {"device": "CPU", "driver": "", **rates("gflops", 2.0 * 1024**3, timed(lambda: a @ a)),
            **rates("gbytes", 2.0 * big.nbytes, timed(lambda: np.copyto(into, big)))}  # fmt: skip


def rates(name: str, amount: float, times: Times) -> dict[str, float]:
    """Return a rate per wall second, and per second of a processor."""
    wall, cpu = times
    return {name: amount / wall / 1e9, f"{name}_cpu": amount / max(cpu, 1e-9) / 1e9}


if __name__ == "__main__":
    wanted = sys.argv[1]
    print(json.dumps(of_cpu() if wanted == "cpu" else of_device(wanted)))
