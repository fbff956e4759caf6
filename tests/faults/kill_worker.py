"""An application in steady service on one device, until it is killed: ``kill_worker.py DEVICE``."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import gpuedge
from gpuedge.core.errors import GpuEdgeError


def main(device: str) -> int:
    """Compute the same few things over and over; say once that each of them has run."""
    x, w = np.ones((16, 16), np.float32), np.ones((16, 8), np.float32)

    def work() -> Any:
        gpuedge.add(x, x, device=device)
        return gpuedge.matmul(gpuedge.relu(x, device=device), w, device=device)

    try:
        for _ in range(2):
            assert (work() == 16).all()
    except GpuEdgeError as error:
        os.write(1, f"{error}\n".replace("\n", " ").encode() + b"\n")
        return 3
    os.write(1, b"ready\n")
    while True:
        work()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
