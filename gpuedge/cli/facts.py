"""Facts about this installation that several verbs print: versions, tools, folders, settings."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpuedge.core import config
from gpuedge.core.errors import GpuEdgeError
from gpuedge.safety import paths

COMPILERS = ("glslangValidator", "glslang", "glslc")
DATA = ("shaders", "capability_db")


def requirements() -> dict[str, bool]:
    """Return the packages that gpuedge's metadata name, True for those that it cannot do without.

    Empty where gpuedge was not installed but is run from its sources.
    """
    found: dict[str, bool] = {}
    try:
        lines = requires("gpuedge") or []
    except PackageNotFoundError:
        lines = []
    for line in lines:
        name, _, marker = line.partition(";")
        if "python_version" not in marker:  # of another Python
            found[re.split(r"[\s<>=!~\[]", name, maxsplit=1)[0]] = "extra" not in marker
    return found


def package_versions() -> dict[str, str | None]:
    """Return the version of each package, None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in requirements():
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def python() -> dict[str, str]:
    """Return which Python this is and on what."""
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
    }


def glsl_compiler() -> str | None:
    """Return which GLSL compiler users' own kernels would use: ``pyshaderc`` or a path."""
    if find_spec("pyshaderc") is not None:
        return "pyshaderc"
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def folders() -> dict[str, str | None]:
    """Return where gpuedge and its data lie, None where a data folder is missing."""
    found: dict[str, str | None] = {"package": str(Path(paths.__file__).resolve().parent.parent)}
    for name in DATA:
        try:
            found[name] = paths.data_folder(name)
        except GpuEdgeError:
            found[name] = None
    found["cache"] = paths.cache_folder()
    return found


def settings() -> dict[str, dict[str, Any]]:
    """Return each setting with its value and source. Raises ConfigError for one not parsable."""
    rows: dict[str, dict[str, Any]] = {}
    for name, setting in config.SETTINGS.items():
        now = config.get(name)
        value = list(now.value) if isinstance(now.value, tuple) else now.value
        rows[name] = {"value": value, "source": now.source, "variable": setting.variable}
    return rows


def closed_nodes(folder: Path = Path("/dev/dri")) -> list[str]:
    """Return the GPU device files (Linux) that exist but that this user may not open."""
    nodes = sorted(folder.glob("renderD*")) if folder.is_dir() else []
    return [str(n) for n in nodes if not os.access(n, os.R_OK | os.W_OK)]
