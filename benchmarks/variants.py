"""The kernel variants that are chosen, each against the map kernel of its operation.

Usage: python benchmarks/variants.py [DEVICE...] [--json FILE]

No chosen variant may be slower than the map kernel, which is always there: the exit status is 1 if
one is. Software drivers compute in this process, so their processor time is taken, which other work
on the machine moves little; of other devices it is the wall time. Shapes are of usual networks and
on both sides of where the choice changes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import devices, report

import gpuedge
from gpuedge.conformance.bench import Bench, Watched
from gpuedge.decide.policy import Policy
from gpuedge.device import Device
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType
from gpuedge.ops import call as ops_call
from gpuedge.plan.library import variants

RNG = np.random.default_rng(0)
ROUNDS = 7
SECONDS = 0.05
"""How long a sample of one side takes at least."""
NOISE = 1.05
"""How much longer a side may seem to take than it does: repeated runs differ by 2 to 4 %."""

Call = Callable[[Device], Any]


def noise(*shape: int) -> Any:
    """Return normal float32 values."""
    return RNG.normal(size=shape).astype(np.float32)


def conv(channels: int, filters: int, size: int, kernel: int, **how: int) -> Call:
    """Return a convolution of a square image, padded to keep its size at stride 1."""
    groups, dilation = how.get("groups", 1), how.get("dilation", 1)
    x, w = noise(1, channels, size, size), noise(filters, channels // groups, kernel, kernel)
    padding = dilation * (kernel // 2)
    return lambda device: gpuedge.conv2d(x, w, padding=padding, device=device, **how)


def constant(channels: int, filters: int, size: int) -> Call:
    """Return a 3x3 convolution of constant weights, whose transform is taken ahead."""
    builder = GraphBuilder(opset=17)
    builder.input("x", TensorType("float32", (1, channels, size, size)))
    builder.constant("w", noise(filters, channels, 3, 3))
    builder.output(builder.add("Conv", ["x", "w"], {"pads": [1, 1, 1, 1]}, output="y"))
    graph, feeds = builder.build(), {"x": noise(1, channels, size, size)}
    compiled: dict[Device, Any] = {}

    def call(device: Device) -> Any:
        if device not in compiled:
            compiled[device] = device.executor.compile(graph)
        return compiled[device].run(feeds)

    return call


def transposed(channels: int, filters: int, size: int, kernel: int, stride: int) -> Call:
    """Return a transposed convolution."""
    x, w = noise(1, channels, size, size), noise(channels, filters, kernel, kernel)
    return lambda device: gpuedge.conv_transpose2d(x, w, stride=stride, device=device)


def product(*shapes: tuple[int, ...]) -> Call:
    """Return a matrix product."""
    a, b = (noise(*shape) for shape in shapes)
    return lambda device: gpuedge.matmul(a, b, device=device)


def shapes() -> dict[str, Call]:
    """Return the calls to measure, by name."""
    return {
        "conv 3x3 64>64 @56": conv(64, 64, 56, 3),
        "conv 3x3 32>32 @128": conv(32, 32, 128, 3),
        "conv 3x3 256>256 @14": conv(256, 256, 14, 3),
        "conv 3x3 512>512 @7": conv(512, 512, 7, 3),
        "conv 3x3 64>64 @56, constant": constant(64, 64, 56),
        "conv 3x3 64>64 @12, constant": constant(64, 64, 12),
        "conv 3x3 256>256 @14, constant": constant(256, 256, 14),
        "conv 3x3 s2 64>128 @56": conv(64, 128, 56, 3, stride=2),
        "conv 3x3 d2 32>32 @32": conv(32, 32, 32, 3, dilation=2),
        "conv 3x3 g4 64>64 @28": conv(64, 64, 28, 3, groups=4),
        "conv 3x3 16>4 @64": conv(16, 4, 64, 3),
        "conv 3x3 16>16 @3": conv(16, 16, 3, 3),
        "conv 3x3 3>32 @112": conv(3, 32, 112, 3),
        "conv 5x5 32>32 @28": conv(32, 32, 28, 5),
        "conv 7x7 s2 3>64 @112": conv(3, 64, 112, 7, stride=2),
        "conv 9x9 3>32 @64": conv(3, 32, 64, 9),
        "conv 9x9 32>3 @64": conv(32, 3, 64, 9),
        "conv 1x1 128>128 @28": conv(128, 128, 28, 1),
        "conv 1x1 512>64 @14": conv(512, 64, 14, 1),
        "conv 1x1 64>256 @7": conv(64, 256, 7, 1),
        "conv 1x1 s2 256>512 @14": conv(256, 512, 14, 1, stride=2),
        "conv 1x1 16>1000 @1": conv(16, 1000, 1, 1),
        "depthwise 3x3 64 @112": conv(64, 64, 112, 3, groups=64),
        "depthwise 3x3 s2 96 @56": conv(96, 96, 56, 3, groups=96, stride=2),
        "depthwise 3x3 512 @7": conv(512, 512, 7, 3, groups=512),
        "depthwise 5x5 96 @28": conv(96, 96, 28, 5, groups=96),
        "depthwise 7x7 96 @28": conv(96, 96, 28, 7, groups=96),
        "transposed 2x2 s2 64>32 @28": transposed(64, 32, 28, 2, 2),
        "transposed 4x4 s2 32>16 @28": transposed(32, 16, 28, 4, 2),
        "transposed 3x3 s1 16>3 @32": transposed(16, 3, 32, 3, 1),
        "product 64": product((64, 64), (64, 64)),
        "product 256": product((256, 256), (256, 256)),
        "product 512": product((512, 512), (512, 512)),
        "product 49x512x512": product((49, 512), (512, 512)),
        "product 1x1024x1024": product((1, 1024), (1024, 1024)),
        "product 1024x1024x1": product((1024, 1024), (1024, 1)),
        "product 4x64x64x64": product((4, 64, 64), (4, 64, 64)),
        "product 16x4096x16": product((16, 4096), (4096, 16)),
    }


@dataclass
class Side:
    """One way to serve a call: with every variant, or with map kernels alone."""

    device: Device
    executor: Watched
    ruled_out: tuple[str, ...]
    samples: list[float]

    def used(self, call: Call) -> str:
        """Return the variants that serve a call, which is compiled for this."""
        self.executor.without(self.ruled_out)
        call(self.device)
        kernels = [k for made in self.executor.made for r in made.rows for k in r.kernel.split("+")]
        return " ".join(k for k in dict.fromkeys(kernels) if k not in MOVING)

    def sample(self, call: Call, clock: Callable[[], float]) -> None:
        """Take the time of a call, once more."""
        count, start = 0, clock()
        while (taken := clock() - start) < SECONDS or not count:
            call(self.device)
            count += 1
        self.samples.append(taken / count)


MOVING = ("pack_map", "pack_quad", "unpack_map", "unpack_quad", "view")
REST = tuple(one.id for one in variants() if not one.id.endswith("_map"))


def opened(name: str, ruled_out: tuple[str, ...]) -> Side:
    """Open a device of its own for one side."""
    executor = Bench(name).executor
    return Side(Device(executor, "for a benchmark", Policy()), executor, ruled_out, [])


def measured(name: str) -> list[tuple[str, ...]]:
    """Return a row of the table for each shape in which something else than a map is chosen."""
    chosen, maps = opened(name, ()), opened(name, REST)
    is_software = (chosen.executor.caps.device_class or "").startswith("cpu-")
    clock = time.process_time if is_software else time.perf_counter
    rows = []
    for words, call in shapes().items():
        used = [side.used(call) for side in (chosen, maps)]
        if used[0] != used[1]:
            for side in (chosen, maps):
                side.samples.clear()
            for _ in range(ROUNDS):
                for side in (chosen, maps):
                    side.sample(call, clock)
            ours, plain = (statistics.median(side.samples) for side in (chosen, maps))
            times = f"{ours * 1e3:.3f}", f"{plain * 1e3:.3f}", f"{plain / ours:.2f}"
            rows.append((name, words, used[0], *times))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
        for side in (chosen, maps):
            ops_call.release(side.executor)
    return rows


def main() -> int:
    """Measure, print, and say whether a choice is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("devices", nargs="*", help="all that have kernels other than maps")
    parser.add_argument("--json")
    rows = [row for name in parser.parse_args().devices or devices() for row in measured(name)]
    report(
        "milliseconds per call: the chosen variant, and map kernels alone",
        ("device", "shape", "chosen", "chosen ms", "maps ms", "times faster"),
        rows,
    )
    slower = [row for row in rows if float(row[-1]) * NOISE < 1]
    for row in slower:
        print(f"SLOWER THAN ITS MAP KERNEL: {'  '.join(row)}")
    return bool(slower)


if __name__ == "__main__":
    sys.exit(main())
