"""Where 8-bit products are computed: ONNX Runtime on several processors, and every level."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from farm import FARM, cache, environment_of

CHILD = Path(__file__).with_name("products_child.py")
HIDING = Path(__file__).with_name("no_vnni.c")
CPUINFO = Path("/proc/cpuinfo")

PROCESSORS = ("this processor", "saturating")
HIDDEN = "VNNI hidden"
"""ONNX Runtime as it is, where CPUID can be made to say that the processor has no VNNI."""

LEVELS = ("vulkan-lavapipe", "gles31-llvmpipe", "gles30-llvmpipe", "gles20-llvmpipe")


def can_hide() -> bool:
    """Tell whether this processor can be told to fault on CPUID, and has AVX2."""
    flags = CPUINFO.read_text().partition("\n\n")[0].split() if CPUINFO.exists() else []
    return {"cpuid_fault", "avx2"} <= set(flags)


def places() -> tuple[str, ...]:
    """Return the names of all of them, on this machine."""
    return (*PROCESSORS, *((HIDDEN,) if can_hide() else ()), *LEVELS)


def computed(name: str, folder: Path) -> dict[str, Any]:
    """Return what the child prints; `folder` takes a processor's cache."""
    environ, device, how = {**os.environ, "GPUEDGE_CACHE_DIR": str(folder)}, "cpu", list[str]()
    if name in FARM:
        environ = environment_of(name) | {"GPUEDGE_CACHE_DIR": str(cache(name))}
        device = FARM[name].device
    elif name == HIDDEN:
        library = folder / "no_vnni.so"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, HIDING], check=True)
        environ["LD_PRELOAD"] = str(library)
    elif name != PROCESSORS[0]:
        how = [name]
    command = [sys.executable, str(CHILD), device, *how]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found
