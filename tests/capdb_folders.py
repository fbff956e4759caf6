"""Small database folders for tests of the tools: two phones, a laptop, and entries about them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

IDENTITIES = [
    {"id": "D001", "api": "vulkan", "deviceName": "Adreno (TM) 620", "vendorID": "0x5143",
     "deviceID": "0x6020001", "driverVersion": 2149490688, "apiVersion": "1.1.128",
     "os": "android"},
    {"id": "D002", "api": "vulkan", "deviceName": "Mali-G76", "vendorID": "0x13b5",
     "driverVersion": 192937984, "os": "android"},
    {"id": "D003", "api": "gles", "GL_VENDOR": "Intel", "os": "linux",
     "GL_RENDERER": "Mesa Intel(R) UHD Graphics 620 (KBL GT2)",
     "GL_VERSION": "OpenGL ES 3.2 Mesa 21.2.6"},
]  # fmt: skip

ENTRY: dict[str, Any] = {
    "id": "adreno-0001",
    "rev": 1,
    "state": "active",
    "effect": "wrong_result",
    "assurance": "imported",
    "summary": "Adreno 620 gives wrong numbers in float16 with every driver that was tried.",
    "match": [
        {"api": ["vulkan"], "vendor": ["qualcomm"], "family": ["adreno"],
         "model": {"from": 620, "below": 621}}
    ],
    "action": {"disable_features": ["fp16"]},
    "evidence": [
        {"type": "imported_rule", "fact": "Q001", "project": "a/b", "commit": "0123456789",
         "path": "src/gpu.cpp"}
    ],
    "review": {"owner": "tests", "added": "2026-11-21", "review_by": "2027-11-21",
               "on_expiry": "probe"},
}  # fmt: skip
"""An entry that nothing is wrong with."""

TODAY = "2026-11-21"


def entry(changes: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return `ENTRY` with other fields; `changes` go into its first match, None removes."""
    made = copy.deepcopy(ENTRY) | fields
    for name, value in (changes or {}).items():
        if value is None:
            made["match"][0].pop(name, None)
        else:
            made["match"][0][name] = value
    return made


def folder(
    place: Path,
    entries: list[dict[str, Any]],
    *,
    file: str = "vulkan/qualcomm",
    facts: list[str] | None = None,
    left_out: list[str] | None = None,
    pairs: dict[str, Any] | None = None,
) -> Path:
    """Write an unsealed folder with one file of entries, by default with the facts of `ENTRY`."""
    api, vendor = file.split("/")
    both = {
        "match": "D001",
        "near": {"deviceName": "Mali-G76", "vendorID": "0x13b5", "deviceID": "0x0"},
    }
    made = pairs or {record["id"]: both for record in entries if isinstance(record, dict)}
    body = {"schema": "gpuedge.entries/3", "api": api, "vendor": vendor, "entries": entries}
    rows = [{"fact": f, "reason": "graphics", "why": "a test"} for f in left_out or ()]
    for name, content in (
        (f"entries/{file}.json", body),
        ("fixtures/identities.json", IDENTITIES),
        ("fixtures/pairs.json", {"schema": "gpuedge.pairs/1", "pairs": made}),
        ("facts.json", {"schema": "gpuedge.facts/1", "facts": facts or ["Q001"]}),
        ("left_out/rows.json", {"schema": "gpuedge.left-out/1", "rows": rows}),
    ):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return place
