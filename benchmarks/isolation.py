"""What `isolation="process"` adds to one inference: hosted against inline, in the same run.

Software rasterisers must be chosen by their environment, one API at a time, such as
``GPUEDGE_BACKENDS=vulkan VK_DRIVER_FILES=/usr/share/vulkan/icd.d/lvp_icd.x86_64.json``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import medians, report

import gpuedge
from gpuedge import backends
from gpuedge.backends.base import DeviceImpl, DeviceInfo
from gpuedge.executors.gpu import GpuExecutable, GpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.isolation import open_isolated

SIZES = {"64 B": 16, "64 KiB": 1 << 14, "1 MB": 250_000, "16 MiB": 1 << 22}
"""Inputs by their size, in values of four bytes."""

OPENINGS = 5


def relu(size: int) -> Graph:
    """Return one Relu over `size` values: all that costs time is moving them."""
    builder = GraphBuilder()
    builder.output(builder.add("Relu", [builder.input("x", TensorType("float32", (size,)))]))
    return builder.build()


def call(executable: GpuExecutable, x: Any) -> Callable[[], Any]:
    """Return one inference; the first one's answer is checked."""
    (y,) = executable.run({"x": x}).values()
    if not np.array_equal(y, np.maximum(x, 0)):
        raise SystemExit("wrong numbers")
    return lambda: executable.run({"x": x})


def opening(make: Callable[[DeviceInfo], DeviceImpl], info: DeviceInfo) -> float:
    """Return the median seconds of opening a device."""
    found = []
    for _ in range(OPENINGS):
        start = time.perf_counter()
        device = make(info)
        found.append(time.perf_counter() - start)
        device.close()
    return sorted(found)[OPENINGS // 2]


def measure(row: Any) -> list[tuple[str, ...]]:
    """Return the lines of one device."""
    info = row.info()
    inline = backends.load(row.backend).open
    rows = []
    times = opening(inline, info), opening(open_isolated, info)
    rows.append(line(row, "open", *times))
    executors = [GpuExecutor(make(info), row.device) for make in (inline, open_isolated)]
    for name, size in SIZES.items():
        x = np.random.default_rng(1).standard_normal(size).astype(np.float32)
        made = [executor.compile(relu(size)) for executor in executors]
        found = medians({"inline": call(made[0], x), "hosted": call(made[1], x)})
        rows.append(line(row, name, found["inline"], found["hosted"]))
        for executable in made:
            executable.close()
    for executor in executors:
        executor.close()
    return rows


def line(row: Any, what: str, inline: float, hosted: float) -> tuple[str, ...]:
    """Return one line of the table."""
    added = (hosted - inline) * 1e6
    return (
        row.device, row.name[:24], what, f"{inline * 1e6:.0f}", f"{hosted * 1e6:.0f}",
        f"{added:+.0f}", f"{hosted / inline:.2f}",
    )  # fmt: skip


def main() -> None:
    """Measure every usable device and print."""
    rows = [one for row in gpuedge.probe(deadline_s=30.0).devices for one in measure(row)]
    report(
        "one Relu in a process of its own against inline, microseconds",
        ("device", "name", "input", "inline us", "hosted us", "added us", "ratio"),
        rows,
    )


if __name__ == "__main__":
    sys.exit(main())
