"""Models made to harm whoever reads them, each tried in a process of its own with little memory.

``python hostile_models.py FOLDER`` prints one JSON line per model of `CASES`: what came of it, how
much processor time and memory that took, and which GPU libraries were loaded meanwhile.
"""

from __future__ import annotations

import json
import os
import resource
import select
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from hostile_cases import CASES, Build
from onnx_models import relu

import gpuedge

MEMORY = 2 << 30
"""Address space that a model may take over what the process has at its start, bytes."""

CPU_SECONDS = 30
WALL_S = 90.0
DRIVERS = ("libvulkan", "libEGL", "libwgpu", "libGLES")


def outcome(build: Build, folder: Path) -> dict[str, Any]:
    """Load and run a model; return the code of the error, or the sum of all it computed."""
    found = build(folder)
    before = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(before.ru_utime + before.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (spent + CPU_SECONDS,) * 2)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
    result: dict[str, Any] = {"code": "", "text": ""}
    try:
        # Named, so that a driver would be looked for if the model got that far: there is none.
        gpuedge.Session(found, device="vulkan").close()
    except gpuedge.NoUsableDeviceError:
        result["is_late"] = True
    except gpuedge.GpuEdgeError as error:
        result["code"], result["text"] = error.code, str(error)
    # A device named has the graph made at once; ONNX Runtime alone may do without for a while.
    alone = _ran(found)
    result |= {} if result["code"] else alone
    result["alone"] = alone
    after = resource.getrusage(resource.RUSAGE_SELF)
    maps = Path("/proc/self/maps").read_text(errors="replace")
    result["drivers"] = [name for name in DRIVERS if name in maps]
    result["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result["grown_mb"] = (after.ru_maxrss - before.ru_maxrss) >> 10
    return result


def _ran(model: Any) -> dict[str, Any]:
    """Run a model that can be read on the CPU, with ones for every input."""
    try:
        with gpuedge.Session(model, device="auto") as session:
            feeds = {
                name: np.ones([d if isinstance(d, int) else 2 for d in dims or ()], dtype)
                for name, (dtype, dims) in session.inputs.items()
            }
            outputs = session.run(feeds)
    except gpuedge.GpuEdgeError as error:
        return {"code": error.code, "text": str(error)}
    return {"code": "", "text": str(sum(float(np.sum(o)) for o in outputs.values()))}


def in_a_child(build: Build, folder: Path) -> dict[str, Any]:
    """Return a model's outcome; a process that ended without one is its own code."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        try:
            with os.fdopen(theirs, "w") as out:
                json.dump(_caught(build, folder), out)
        finally:
            os._exit(0)
    os.close(theirs)
    data, until = b"", time.monotonic() + WALL_S
    with os.fdopen(ours, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            part = pipe.read(1 << 16)
            if not part:
                break
            data += part
        else:
            os.kill(child, 9)
    _, status = os.waitpid(child, 0)
    ended = os.waitstatus_to_exitcode(status)
    if ended or not data:
        return {"code": f"ended with {ended}", "text": ""}
    found: dict[str, Any] = json.loads(data)
    return found


def _caught(build: Build, folder: Path) -> dict[str, Any]:
    try:
        return outcome(build, folder)
    except BaseException as error:
        return {"code": f"raised {type(error).__name__}", "text": str(error)[:500]}


def main() -> None:
    """Try every model."""
    folder = Path(sys.argv[1])
    # Everything is loaded once, before any fork.
    onnxruntime.InferenceSession(relu().SerializeToString())
    gpuedge.Session(relu(), device="cpu").close()
    for name, build in CASES.items():
        own = folder / name / "model"
        own.mkdir(parents=True)
        print(json.dumps({"name": name, **in_a_child(build, own)}), flush=True)


if __name__ == "__main__":
    main()
