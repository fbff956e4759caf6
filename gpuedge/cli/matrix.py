"""The matrix of drivers and levels, and what each level that works can hold.

Made from a probe report alone; `gpuedge doctor` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpuedge import backends
from gpuedge.cli.output import Output
from gpuedge.core import text
from gpuedge.probing.report import ProbeReport, ProbeRow

NOTHING = "-"
"""Cell of a level that a driver does not offer, or that has no driver at all."""


@dataclass(frozen=True)
class Line:
    """One line of the matrix: a device with every API route to it, or a driver without one."""

    name: str
    physical: str
    rows: list[ProbeRow] = field(default_factory=list)

    def cell(self, level: str) -> str:
        """Return what stands at a level, such as ``ok :0``, or ``ok :0*`` under restrictions."""
        found: dict[str, str] = {}
        for row in self.rows:
            if row.backend == level:
                place = f" :{row.device.partition(':')[2]}" if ":" in row.device else ""
                mark = "*" if row.restrictions and row.is_usable else ""
                found[row.status] = found.get(row.status, "") + place + mark
        return ", ".join(status + places for status, places in found.items()) or NOTHING


def levels(report: ProbeReport) -> list[str]:
    """Return the columns: every level probed by default here, and what else was probed."""
    return list(dict.fromkeys([*backends.PROBED, *(row.backend for row in report.tried)]))


def lines(report: ProbeReport) -> list[Line]:
    """Return the lines of the matrix: usable devices first, best first, then the rest."""
    made: dict[str, Line] = {}
    places: dict[str, str] = {}
    reached = [r for r in report.tried if r.index is not None and not r.is_usable]
    for row in [*report.devices, *reached]:
        key = row.physical or row.device
        places.setdefault(row.key, key)
        made.setdefault(key, Line(text.plain(row.name), row.physical)).rows.append(row)
    for row in report.tried:
        if row.index is None and row.code != "no-candidates":
            # A driver that reached its device at another level stands in the line of that device.
            key = places.get(row.key) or f"driver {row.key or row.name or row.backend}"
            made.setdefault(key, Line(text.plain(row.name or row.backend), "")).rows.append(row)
    return list(made.values())


def show(report: ProbeReport, output: Output) -> None:
    """Print the matrix, and the limits of the devices that work."""
    columns = levels(report)
    body = [(*(line.cell(level) for level in columns), line.name) for line in lines(report)]
    if body:
        title = "Drivers and levels (ok :0 under gles30 is gles30:0, ok :0* has restrictions)"
        output.table(title, (*columns, "driver or device"), body)
    if found := [limits(row) for row in report.devices if row.caps]:
        title = "What works, and what it holds (the largest tensor, counted as float32)"
        titles = ("device", "tensor", "texture", "bindings", "numbers", "storage, exact one first")
        output.table(title, titles, found)


def limits(row: ProbeRow) -> list[str]:
    """Return how a usable device keeps tensors, and how large they may be."""
    caps = row.caps
    size, side = caps.get("max_storage_buffer_bytes"), caps.get("max_texture_size")
    bindings, outputs = caps.get("max_storage_buffers"), caps.get("max_outputs") or 1
    return [
        row.device,
        NOTHING if size is None else f"{size / 2**20:g} MiB",
        NOTHING if side is None else f"{side}\u00b2",
        str(bindings) if side is None else f"{bindings} ({outputs} out)",
        "finite" if caps.get("is_finite_only") else "all",
        " ".join(caps.get("storages") or ["buffer"]),
    ]


def to_dict(report: ProbeReport) -> dict[str, Any]:
    """Return the matrix and the limits as a JSON-ready dictionary."""
    columns = levels(report)
    facts = ("device", "status", "code", "reason", "route", "restrictions")

    def cells(line: Line, level: str) -> list[dict[str, Any]]:
        return [{n: getattr(r, n) for n in facts} for r in line.rows if r.backend == level]

    return {
        "levels": columns,
        "lines": [
            {
                "name": one.name,
                "physical": one.physical,
                "levels": {c: cells(one, c) for c in columns},
            }
            for one in lines(report)
        ],
        "limits": {row.device: dict(row.caps) for row in report.devices if row.caps},
    }
