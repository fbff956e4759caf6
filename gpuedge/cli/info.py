"""``gpuedge info``: versions, settings with their sources, known devices, folders.

Touches no driver: devices are those that earlier probes found, read from the verdict store.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpuedge
from gpuedge.capdb.database import load
from gpuedge.cli.db import about, in_words
from gpuedge.cli.output import Output
from gpuedge.core import config
from gpuedge.core.errors import GpuEdgeError
from gpuedge.probing import api
from gpuedge.probing.pins import check_pins
from gpuedge.probing.report import ProbeRow
from gpuedge.probing.show import TITLES, status_of
from gpuedge.safety import machine, paths

COMPILERS = ("glslangValidator", "glslang", "glslc")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb: it has none of its own."""


def run(options: argparse.Namespace, output: Output) -> int:
    """Print what is known without touching any driver."""
    check_pins()
    known = api.latest()
    names = ("device", "name", "status", "code", "reason", "is_software")
    body = {
        "schema": "gpuedge.info/1",
        "version": gpuedge.__version__,
        "python": python(),
        "packages": machine.package_versions(requirements()),
        "glsl_compiler": glsl_compiler(),
        "settings": _settings(),
        "database": database_in_use(),
        "devices": [{name: getattr(row, name) for name in names} for row in known],
        "paths": _folders(),
    }
    output.document(body)
    _show(body, known, output)
    return 0


def requirements() -> dict[str, bool]:
    """Return the packages that gpuedge's metadata name, True for those that it cannot do without.

    Empty where gpuedge was not installed but is run from its sources.
    """
    try:
        lines = [line.partition(";") for line in requires("gpuedge") or []]
    except PackageNotFoundError:
        return {}
    return {
        re.split(r"[\s<>=!~\[]", name, maxsplit=1)[0]: "extra" not in marker
        for name, _, marker in lines
        if "python_version" not in marker  # of another Python
    }


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


def _folders() -> dict[str, str | None]:
    """Return where gpuedge and its data lie, None where a data folder is missing."""
    folders: dict[str, str | None] = {"package": str(Path(gpuedge.__file__).parent)}
    for name in ("shaders", "capability_db"):
        with suppress(GpuEdgeError):
            folders[name] = None
            folders[name] = paths.data_folder(name)
    return {**folders, "cache": paths.cache_folder()}


def _settings() -> dict[str, dict[str, Any]]:
    """Return each setting with its value and source. Raises ConfigError for one not parsable."""
    settings = {name: config.get(name) for name in config.SETTINGS}
    return {
        name: {"value": now.value, "source": now.source, "variable": config.SETTINGS[name].variable}
        for name, now in settings.items()
    }


def database_in_use() -> dict[str, Any]:
    """Return which capability database is in use; ``error`` says why none can be.

    ``line`` says it in a few words.
    """
    try:
        database = about(load())
    except GpuEdgeError as error:
        why = error.known or error.what
        return {"error": why, "line": f"none can be used: {why}"}
    return {**database, "line": in_words(database)}


def _show(body: Mapping[str, Any], known: Sequence[ProbeRow], output: Output) -> None:
    here, database = body["python"], body["database"]
    versions = [("gpuedge", body["version"]), ("python", f"{here['version']} on {here['os']}")]
    versions += [
        (name, installed or "not installed") for name, installed in body["packages"].items()
    ]
    versions.append(("GLSL compiler", body["glsl_compiler"] or "none"))
    versions.append(("capability database", database["line"]))
    output.table("Versions", ("what", "version"), versions)
    settings = body["settings"].values()
    rows = [(v["variable"], _value(v["value"]), v["source"]) for v in settings]
    output.table("Settings", ("variable", "value", "from"), rows)
    folders = {**body["paths"], "database in use": database.get("folder")}
    output.table("Folders", ("what", "where"), list(folders.items()))
    if known:
        cells = [(r.device, r.name, status_of(r), r.brief) for r in known]
        output.table("Devices, from earlier probes", TITLES, cells)
    else:
        output.text("No driver was probed yet: run `gpuedge probe`.")


def _value(value: Any) -> str:
    return (" ".join(value) if isinstance(value, tuple) else str(value)) or "(empty)"
