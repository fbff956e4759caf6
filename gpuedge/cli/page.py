"""Conformance results as one HTML page: no scripts, no other files, pictures within it."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuedge.conformance.formats import Judged, judged
from gpuedge.conformance.results import (
    BAD,
    QUARANTINED,
    XFAILED,
    XPASSED,
    Results,
    ResultSet,
    families,
    flattened,
    reasons,
)
from gpuedge.conformance.templates import rendered
from gpuedge.core.text import Table

TEMPLATE = Path(__file__).with_name("page.html")

SHOWN = 300
"""Cases of a device shown with their reasons and pictures; the others are counted."""

LEVELS = (
    "f3f6f9", "cfe3f5", "ffe9a8", "ffd06b", "fbab4e", "f27f45", "de5140", "b92d46", "7f1d4e",
    "2b0b3f",
)  # fmt: skip
"""Colours of the levels of an error map (`gpuedge.conformance.maps`): blue is within the bound."""

LEGEND = ("exact", "within the bound", "over 1 bound", "10", "100", "10^3", "10^4", "10^5", "10^6",
          "10^7 bounds, or no number")  # fmt: skip

COUNTED = (
    ("executed", "executed"), ("passed", "passed"), ("failed", "failed"), ("error", "refused"),
    ("crashed", "crashed"), ("timeout", "timed out"), ("flake", "flakes"),
    ("xpassed", "unexpected passes"), ("xfailed", "expected failures"),
    ("quarantined", "in quarantine"), ("unsupported", "do not apply"), ("not_run", "not run"),
)  # fmt: skip
"""Counts of a device and what they are called."""

ALWAYS = ("executed", "passed", "failed", "unsupported", "quarantined")
"""Counts that are shown though they are zero."""


def page(
    found: ResultSet, not_run: Mapping[str, int] | None = None, notes: Sequence[str] = (),
    tables: Sequence[Table] = (), title: str = "gpuedge conformance",
) -> bytes:  # fmt: skip
    """Return the page; `not_run` is how many cases of a device have no row.

    `tables` stand above what is said of the devices.
    """
    devices = [_device(part, (not_run or {}).get(part.device, 0)) for part in found]
    legend = list(zip(LEVELS, LEGEND, strict=True))
    text = rendered(
        TEMPLATE, "--html", devices=devices, notes=notes, legend=legend, tables=tables, title=title
    )
    return text.encode("utf-8", "replace")


def _device(part: Results, not_run: int) -> dict[str, Any]:
    header, rows = part.header, list(judged(ResultSet([part])))
    counts = {**part.counts(), "not_run": not_run}
    bad = [each for each in rows if each.outcome in (BAD, XPASSED)]
    facts = ("profile", "only", "shard", "shuffle", "started", "seconds", "host", "serial",
             "labels", "expectations", "versions")  # fmt: skip
    database = header.get("database") or {}
    return {
        "name": part.device,
        "title": str((header.get("identity") or {}).get("name", "")),
        "came_to": "failed" if not part.is_good else "incomplete" if not_run else "passed",
        "error": header.get("error"),
        "counts": [(n, told) for key, told in COUNTED if (n := counts[key]) or key in ALWAYS],
        "operations": families(part.rows.values()),
        "bad": [_case(each) for each in bad[:SHOWN]],
        "more": len(bad) - len(bad[:SHOWN]),
        "expected": [
            (each.row["id"], each.why) for each in rows if each.outcome in (XFAILED, QUARANTINED)
        ][:SHOWN],
        "reasons": reasons(part.rows.values()),
        "entries": database.get("entries", ()),
        "database": f"version {database.get('version')}, {str(database.get('digest', ''))[:12]}",
        "tables": [
            ("Identity", _flat(header, ["identity"])), ("Run", _flat(header, facts)),
            ("Limits and abilities", _flat(header, ["caps"])),
        ],
    }  # fmt: skip


def _flat(header: Mapping[str, Any], names: Iterable[str]) -> list[tuple[str, str]]:
    kept = {name: header[name] for name in names if header.get(name) not in (None, {}, ())}
    if len(kept) == 1 and isinstance(whole := next(iter(kept.values())), Mapping):
        kept = dict(whole)
    return list(flattened(kept))


def _case(one: Judged) -> dict[str, Any]:
    row = one.row
    rows = row.get("map") or ()
    worst = row.get("worst")
    return {
        "id": row["id"],
        "status": "unexpected pass" if one.outcome == XPASSED else row["status"],
        "why": one.why,
        "worst": None if worst is None else f"{worst:.3g}",
        "kernels": ", ".join(row.get("kernels") or ()),
        "again": row.get("again"),
        "picture": picture(rows) if rows else None,
        "size": len(rows[0]) * max(4, min(12, 192 // max(len(rows), len(rows[0])))) if rows else 0,
    }


def picture(rows: Sequence[str]) -> str:
    """Return an error map as the address of a PNG within the page."""
    width, height = len(rows[0]), len(rows)
    lines = b"".join(b"\0" + bytes(int(c) for c in row.ljust(width, "0")) for row in rows)
    data = b"\x89PNG\r\n\x1a\n" + b"".join((
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        _chunk(b"PLTE", bytes.fromhex("".join(LEVELS))),
        _chunk(b"IDAT", zlib.compress(lines, 9)),
        _chunk(b"IEND", b""),
    ))  # fmt: skip
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
