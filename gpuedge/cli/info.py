"""``gpuedge info``: versions, settings with their sources, known devices, folders.

Touches no driver: devices are those that earlier probes found, read from the verdict store.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuedge.cli.machine import Machine
from gpuedge.cli.output import Output
from gpuedge.core import config
from gpuedge.core.text import Table
from gpuedge.probing import api
from gpuedge.probing.pins import check_pins
from gpuedge.probing.report import ProbeRow
from gpuedge.probing.show import TITLES, status_of

FACTS = ("version", "python", "packages", "glsl_compiler", "settings", "database", "paths")
"""What the document says of the machine."""

FACTS_OF_DEVICES = ("device", "name", "status", "code", "reason", "is_software")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb: it has none of its own."""


def run(options: argparse.Namespace, output: Output) -> int:
    """Print what is known without touching any driver."""
    config.check_environment()
    check_pins()
    api.warn_of_ids()
    here, rows = Machine(), api.latest()
    devices = [{fact: getattr(row, fact) for fact in FACTS_OF_DEVICES} for row in rows]
    facts = {fact: getattr(here, fact) for fact in FACTS}
    output.show({"schema": "gpuedge.info/1", **facts, "devices": devices}, _parts(facts, rows))
    return 0


def _parts(facts: Mapping[str, Any], devices: Sequence[ProbeRow]) -> Iterator[str | Table]:
    python, database = facts["python"], facts["database"]
    versions = {
        "gpuedge": facts["version"],
        "python": f"{python['version']} on {python['os']}",
        **{name: version or "not installed" for name, version in facts["packages"].items()},
        "GLSL compiler": facts["glsl_compiler"] or "none",
        "capability database": database["line"],
    }
    yield Table("Versions", ("what", "version"), [*versions.items()])
    settings = [
        (s["variable"], _value(s["value"]), s["source"]) for s in facts["settings"].values()
    ]
    yield Table("Settings", ("variable", "value", "from"), settings)
    folders = {**facts["paths"], "database in use": database.get("folder")}
    yield Table("Folders", ("what", "where"), [*folders.items()])
    cells = [(row.device, row.name, status_of(row), row.brief) for row in devices]
    yield Table("Devices, from earlier probes", TITLES, cells)
    if not devices:
        yield "No driver was probed yet: run `gpuedge probe`."


def _value(value: Any) -> str:
    return (" ".join(value) if isinstance(value, tuple) else str(value)) or "(empty)"
