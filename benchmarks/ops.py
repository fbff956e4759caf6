"""Kernels on real layer shapes: each device against the CPU path on the same arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from common import devices, medians, report

import gpuedge

RNG = np.random.default_rng(0)


def noise(*shape: int) -> Any:
    """Return normal float32 values."""
    return RNG.normal(size=shape).astype(np.float32)


def cases() -> dict[str, Callable[[str], Any]]:
    """Return one call per layer, given a device: shapes of ResNet, MobileNet and plain algebra."""
    x56, w56 = noise(1, 64, 56, 56), noise(64, 64, 3, 3)
    x28, w28 = noise(1, 128, 28, 28), noise(128, 128, 1, 1)
    xd, wd = noise(1, 64, 112, 112), noise(64, 1, 3, 3)
    a, b = noise(256, 256), noise(256, 256)
    big = noise(1_000_000)
    chain = gpuedge.elementwise("relu(a * b + c)")
    return {
        "conv 3x3, 64 to 64, 56x56": lambda d: gpuedge.conv2d(x56, w56, padding=1, device=d),
        "conv 1x1, 128 to 128, 28x28": lambda d: gpuedge.conv2d(x28, w28, device=d),
        "depthwise 3x3, 64, 112x112": lambda d: gpuedge.conv2d(
            xd, wd, padding=1, groups=64, device=d
        ),
        "matmul 256": lambda d: gpuedge.matmul(a, b, device=d),
        "relu(a * b + c), 1 M": lambda d: chain(big, big, big, device=d),
    }


def main() -> None:
    """Measure and print."""
    rows = []
    for name, call in cases().items():
        found = medians(
            {d: (lambda d=d, call=call: call(d)) for d in ("cpu", *devices())},
            rounds=5,
            seconds=0.2,
        )
        for device, seconds in found.items():
            ratio = f"{seconds / found['cpu']:.1f}"
            rows.append((name, device, f"{seconds * 1e3:.3f}", ratio))
    report(
        "numpy in, numpy out, milliseconds per call",
        ("layer", "device", "ms", "times the CPU path"),
        rows,
    )


if __name__ == "__main__":
    main()
