"""``gpuedge info``: versions, settings with their sources, known devices, folders.

Touches no driver: devices are those of earlier probes, read from the verdict store.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gpuedge
from gpuedge.cli import facts
from gpuedge.cli.output import Output
from gpuedge.core import paths
from gpuedge.core.store import load_sealed
from gpuedge.probing import verdicts
from gpuedge.probing.report import ProbeRow, number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb: it has none of its own."""


def run(options: argparse.Namespace, output: Output) -> int:
    """Print what is known without touching any driver."""
    packages, settings, folders = facts.package_versions(), facts.settings(), facts.folders()
    devices = known_devices(paths.cache_dir())
    body = {
        "schema": "gpuedge.info/1",
        "version": gpuedge.__version__,
        "python": facts.python(),
        "packages": packages,
        "glsl_compiler": facts.glsl_compiler(),
        "settings": settings,
        "devices": [_summary(row) for row in devices],
        "paths": folders,
    }
    output.document(body)
    output.table("Versions", ("what", "version"), _versions(packages))
    rows = [(v["variable"], _show(v["value"]), v["source"]) for v in settings.values()]
    output.table("Settings", ("variable", "value", "from"), rows)
    output.table("Folders", ("what", "where"), folders.items())
    if devices:
        cells = [(r.device, r.name, r.status, r.reason) for r in devices]
        output.table("Devices, from earlier probes", ("device", "name", "status", "reason"), cells)
    else:
        output.text("No device is known yet: run `gpuedge probe`.")
    return 0


def known_devices(folder: Path) -> tuple[ProbeRow, ...]:
    """Return the newest stored verdict on each driver; empty if nothing was probed yet."""
    body = load_sealed(folder / verdicts.FILE, verdicts.SCHEMA) or {}
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    entries = body.get("entries", {})
    for entry in sorted(entries.values(), key=lambda e: float(e["when"])):
        newest[(entry["backend"], entry["candidate"])] = entry
    ordered = [newest[key] for key in sorted(newest)]
    return number(ProbeRow.from_dict(row) for entry in ordered for row in entry["rows"])


def _summary(row: ProbeRow) -> dict[str, Any]:
    names = ("device", "name", "status", "code", "reason", "is_software")
    return {name: getattr(row, name) for name in names}


def _versions(packages: Mapping[str, str | None]) -> list[tuple[str, str]]:
    here = facts.python()
    rows = [("gpuedge", gpuedge.__version__), ("python", f"{here['version']} on {here['os']}")]
    rows += [(name, found or "not installed") for name, found in packages.items()]
    return [*rows, ("GLSL compiler", facts.glsl_compiler() or "none")]


def _show(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(value) or "(empty)"
    return str(value) if value != "" else "(empty)"
