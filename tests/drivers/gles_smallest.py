"""Cases on a device that its limits make as small as its level allows; for `test_gles_smallest`.

Usage: python gles_smallest.py LEVEL
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import op_cases as cases  # noqa: E402
from test_ops_limits import SUBSET  # noqa: E402

from gpuedge import backends  # noqa: E402
from gpuedge.core.caps import Caps  # noqa: E402
from gpuedge.device import Device  # noqa: E402
from gpuedge.executors.gpu import GpuExecutor  # noqa: E402


def smallest(caps: Caps) -> Caps:
    """Return the least that a level may offer (OpenGL ES 3.1 specification, tables 20.43 to 20.46;
    ES 2.0, table 6.20: eight texture units).
    """
    if caps.level == "gles31":
        return replace(
            caps, max_invocations=128, max_local_size=(128, 128, 64), max_shared_bytes=16384,
            max_storage_buffers=4, offset_alignment=256, max_groups=(65535, 65535, 65535),
            max_outputs=4,
        )  # fmt: skip
    return replace(caps, max_storage_buffers=9 if caps.level == "gles20" else 17, max_outputs=1)


def main(level: str) -> None:
    """Run the subset on the first device of a level."""
    backend = backends.load(level)
    candidate = backend.candidates(os.environ)[0]
    os.environ.update(candidate.env)
    impl = backend.open(backend.enumerate(candidate)[0])
    executor = GpuExecutor(impl, f"{level}:0")
    executor.caps = smallest(executor.caps)
    before = impl.counters.submits
    device = Device(executor, "for tests")
    for family, count in SUBSET.values():
        cases.run_cases(family, count, device)
    print(impl.counters.submits - before)
    executor.close()


if __name__ == "__main__":
    main(sys.argv[1])
