"""An application with a driver in a process of its own, then in its own; says what it found.

Run with the environment of one configuration and its device string as argument; prints one line of
JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import gpuedge
from gpuedge import backends
from gpuedge.backends.base import DeviceImpl
from gpuedge.core.errors import DeviceLostError
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.isolation import open_isolated
from gpuedge.probing import kat
from gpuedge.probing.trials import CaseTrial

LIBRARIES = ("vulkan", "libEGL", "libGL", "swiftshader", "swrast", "wgpu", "libGLdispatch")
"""Parts of the names of files that drivers and their loaders consist of."""


def mapped() -> list[str]:
    """Files of drivers that this process has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    files = {line.split()[-1] for line in lines if "/" in line}
    return sorted(f for f in files if any(word in Path(f).name for word in LIBRARIES))


def answers(impl: DeviceImpl, device: str) -> dict[str, Any]:
    """Run the known-answer tests; say what is wrong by them, and give the bytes."""
    executor = GpuExecutor(impl, device)
    findings, found = [], []
    for case in kat.cases(executor.caps):
        executable = executor.compile(case.graph)
        runs = []
        for _ in range(3):
            executable.poison()
            runs.append(executable.run(case.inputs)[case.output].copy())
        finding = next(filter(None, map(CaseTrial(case).judge, runs)), None)
        findings += [] if finding is None else [f"{case.name}: {finding}"]
        found.append(runs[-1].tobytes())
        executable.close()
    counts = impl.counters.snapshot()
    executor.close()
    return {"findings": findings, "bytes": found, "counts": counts}


def survives(info: Any, device: str) -> str:
    """Kill the host between two runs of one kernel; return what the second says."""
    impl = open_isolated(info, deadline_s=60.0)
    executor = GpuExecutor(impl, device)
    case = kat.cases(executor.caps)[0]
    executable = executor.compile(case.graph)
    executable.run(case.inputs)
    os.kill(impl.pid, signal.SIGKILL)
    try:
        executable.run(case.inputs)
    except DeviceLostError as error:
        return f"{error.reason.code if error.reason else None}: {error.known}"
    finally:
        executable.close()
        executor.close()
    return "nothing"


def main() -> None:
    """Compare."""
    row = gpuedge.probe(deadline_s=60.0).best
    if row is None:
        raise SystemExit(f"no usable device: {gpuedge.probe()}")
    info = row.info()
    hosted = answers(open_isolated(info, deadline_s=60.0), row.device)
    lost = survives(info, row.device)
    loaded = mapped()
    inline = answers(backends.load(row.backend).open(info), row.device)
    print(json.dumps({
        "device": row.device,
        "findings": hosted["findings"],
        "cases": len(hosted["bytes"]),
        "is_same": hosted["bytes"] == inline["bytes"],
        "counts": [hosted["counts"], inline["counts"]],
        "lost": lost,
        "loaded": loaded,
        "loaded_inline": mapped(),
    }))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
