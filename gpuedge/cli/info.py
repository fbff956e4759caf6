"""``gpuedge info``: versions, settings with their sources, known devices, folders.

Touches no driver: devices are those of earlier probes in this environment, read from the verdict
store.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gpuedge
from gpuedge import backends
from gpuedge.capdb.database import load
from gpuedge.cli import facts, matrix
from gpuedge.cli.db_why import about, entries_counted
from gpuedge.cli.output import Output
from gpuedge.core import config
from gpuedge.core.errors import GpuEdgeError
from gpuedge.probing import verdicts
from gpuedge.probing.pins import check_pins
from gpuedge.probing.report import ProbeRow, number
from gpuedge.safety import paths

DEADLINE_S = 4.0
"""The default deadline of `gpuedge.probe()`: which hangs it would believe without trying again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb: it has none of its own."""


def run(options: argparse.Namespace, output: Output) -> int:
    """Print what is known without touching any driver."""
    check_pins()
    known = known_devices()
    body = {
        "schema": "gpuedge.info/1",
        "version": gpuedge.__version__,
        "python": facts.python(),
        "packages": facts.package_versions(),
        "glsl_compiler": facts.glsl_compiler(),
        "settings": facts.settings(),
        "database": database_in_use(),
        "devices": [_summary(row) for row in known.rows],
        "not_probed": list(known.unprobed),
        "paths": facts.folders(),
    }
    output.document(body)
    _show(body, known, output)
    return 0


def database_in_use() -> dict[str, Any]:
    """Return which capability database is in use; ``error`` says why none can be."""
    try:
        return about(load())
    except GpuEdgeError as error:
        return {"error": error.known or error.what}


def database_line(found: Mapping[str, Any]) -> str:
    """Return in a few words which database was found."""
    if "error" in found:
        return f"none can be used: {found['error']}"
    return f"version {found['version']}, {entries_counted(found['entries'])}"


class Known(NamedTuple):
    """What earlier probes found on the drivers of this environment, and which they missed."""

    rows: tuple[ProbeRow, ...]
    unprobed: tuple[str, ...]


def known_devices() -> Known:
    """Return what `gpuedge.probe()` would answer now from disk; nothing is started or loaded.

    Device strings count over all drivers, so where a driver was not probed yet those of its
    backend stay without a number.
    """
    keys, store, now = verdicts.Keys(os.environ), verdicts.Store(paths.cache_folder()), time.time()
    rows: list[ProbeRow] = []
    unprobed: list[str] = []
    for backend in config.get("backends").value or backends.PROBED:
        missed, found = [], []
        for candidate in backends.load(backend).candidates(os.environ):
            verdict = store.find(keys(candidate), DEADLINE_S, now)
            if verdict is None:
                missed.append(f"{Path(candidate.key).name} ({backend})")
            found += verdict or []
        rows += [r.replace(device=backend) for r in found] if missed else number(found)
        unprobed += missed
    return Known(tuple(rows), tuple(unprobed))


def _summary(row: ProbeRow) -> dict[str, Any]:
    names = ("device", "name", "status", "code", "reason", "is_software")
    return {name: getattr(row, name) for name in names}


def _show(body: Mapping[str, Any], known: Known, output: Output) -> None:
    here, database = body["python"], body["database"]
    versions = [("gpuedge", body["version"]), ("python", f"{here['version']} on {here['os']}")]
    versions += [(name, found or "not installed") for name, found in body["packages"].items()]
    versions.append(("GLSL compiler", body["glsl_compiler"] or "none"))
    versions.append(("capability database", database_line(database)))
    output.table("Versions", ("what", "version"), versions)
    settings = body["settings"].values()
    rows = [(v["variable"], _value(v["value"]), v["source"]) for v in settings]
    output.table("Settings", ("variable", "value", "from"), rows)
    folders = {**body["paths"], "database in use": database.get("folder")}
    output.table("Folders", ("what", "where"), list(folders.items()))
    cells = [(r.device, r.name, r.status, r.brief) for r in known.rows]
    cells += [("-", name, "-", "not probed yet: run `gpuedge probe`") for name in known.unprobed]
    if cells:
        titles = ("device", "name", "status", "reason")
        output.table("Devices, from earlier probes", titles, cells)
    else:
        output.text("No driver is installed, or no backend is switched on.")
    matrix.show_limits("What they hold", [row for row in known.rows if row.is_usable], output)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(value) or "(empty)"
    return str(value) if value != "" else "(empty)"
