"""The matrix of drivers and levels, and what each level that works can hold.

Made from a probe report alone; `gpuedge doctor` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuedge import backends
from gpuedge.core.text import Table, plain
from gpuedge.probing.report import ProbeReport, ProbeRow

NOTHING = "-"
"""Cell of a level that a driver does not offer, or that has no driver at all."""

FACTS = ("device", "status", "code", "reason", "route", "restrictions")
"""What the document says of each cell."""


def to_dict(report: ProbeReport) -> dict[str, Any]:
    """Return the matrix and the limits as a JSON-ready dictionary.

    Its ``levels`` are every level probed by default here, and what else was probed.
    """
    levels = list(dict.fromkeys([*backends.PROBED, *(row.backend for row in report.tried)]))
    lines = []
    for routes in _lines(report):
        cells: dict[str, list[dict[str, Any]]] = {level: [] for level in levels}
        for row in routes:
            cells[row.backend].append({fact: getattr(row, fact) for fact in FACTS})
        first = routes[0]
        physical = first.physical if first.index is not None else ""
        name = plain(first.name or first.backend)
        lines.append({"name": name, "physical": physical, "levels": cells})
    caps = {row.device: dict(row.caps) for row in report.devices if row.caps}
    return {"levels": levels, "lines": lines, "limits": caps}


def _lines(report: ProbeReport) -> list[list[ProbeRow]]:
    """Return the lines of the matrix: usable devices first, best first, then the rest.

    A line has the rows of a device with every API route to it, or of a driver without one.
    """
    grouped: dict[str, list[ProbeRow]] = {}
    places: dict[str, str] = {}
    reached = [r for r in report.tried if r.index is not None and not r.is_usable]
    for row in [*report.devices, *reached]:
        key = row.physical or row.device
        places.setdefault(row.key, key)
        grouped.setdefault(key, []).append(row)
    for row in report.tried:
        if row.index is None and row.code != "no-candidates":
            # A driver that reached its device at another level stands in the line of that device.
            key = places.get(row.key) or f"driver {row.key or row.name or row.backend}"
            grouped.setdefault(key, []).append(row)
    return list(grouped.values())


def tables(matrix: Mapping[str, Any]) -> Iterator[Table]:
    """Yield what `to_dict` returned as tables."""
    levels = matrix["levels"]
    yield Table(
        "Drivers and levels (ok :0 under gles30 is gles30:0, ok :0* has restrictions)",
        (*levels, "driver or device"),
        [
            (*(_cell(line["levels"][level]) for level in levels), line["name"])
            for line in matrix["lines"]
        ],
    )
    yield Table(
        "What works, and what it holds (the largest tensor, counted as float32)",
        ("device", "tensor", "texture", "bindings", "numbers", "storage, exact one first"),
        [_limits(device, caps) for device, caps in matrix["limits"].items()],
    )


def _cell(routes: Sequence[Mapping[str, Any]]) -> str:
    """Return what stands at a level, such as ``ok :0``, or ``ok :0*`` under restrictions."""
    places_by_status: dict[str, str] = {}
    for route in routes:
        status, (_, colon, number) = route["status"], route["device"].partition(":")
        place = f" :{number}" if colon else ""
        mark = "*" if route["restrictions"] and status == "ok" else ""
        places_by_status[status] = places_by_status.get(status, "") + place + mark
    return ", ".join(status + places for status, places in places_by_status.items()) or NOTHING


def _limits(device: str, caps: Mapping[str, Any]) -> list[str]:
    """Return how a usable device keeps tensors, and how large they may be."""
    size, side = caps.get("max_storage_buffer_bytes"), caps.get("max_texture_size")
    bindings, outputs = caps.get("max_storage_buffers"), caps.get("max_outputs") or 1
    return [
        device,
        NOTHING if size is None else f"{size / 2**20:g} MiB",
        NOTHING if side is None else f"{side}\u00b2",
        str(bindings) if side is None else f"{bindings} ({outputs} out)",
        "finite" if caps.get("is_finite_only") else "all",
        " ".join(caps.get("storages") or ["buffer"]),
    ]
