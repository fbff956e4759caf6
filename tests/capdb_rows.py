"""Entries and devices made up for tests of the capability database."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from capdb.seal import seal

from gpuedge.capdb.entries import Entry, parse
from gpuedge.capdb.identity.subject import Subject
from gpuedge.capdb.matching import finding, result

TODAY = "2026-12-01"

ROW: dict[str, Any] = {
    "id": "adreno-0001",
    "rev": 1,
    "state": "active",
    "effect": "wrong_result",
    "assurance": "imported",
    "summary": "Made up for a test: sums are wrong on these drivers.",
    "match": [{"vendor": ["qualcomm"]}],
    "action": {"disable_features": ["fp16"]},
    "evidence": [{"type": "issue", "project": "example"}],
    "review": {
        "owner": "gpuedge",
        "added": "2026-11-21",
        "review_by": "2027-11-21",
        "on_expiry": "probe",
    },
}

PROBE = {"tests": ["standard", "kernels"], "runs": 64, "may": "confirm_and_clear"}


def row(number: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a record; ``except`` is given as `except_`, fields of the review by their names."""
    made = copy.deepcopy(ROW)
    made["id"] = f"adreno-{number:04d}"
    for name in ("review_by", "on_expiry"):
        if name in changes:
            made["review"][name] = changes.pop(name)
    made |= {name.rstrip("_"): value for name, value in changes.items()}
    return made


def entry(number: int = 1, api: str = "any", **changes: Any) -> Entry:
    return parse(row(number, **changes), api)


def adreno(**changes: Any) -> Subject:
    """Return a device of which everything is known that entries ask for."""
    fields: dict[str, Any] = {
        "apis": frozenset({"vulkan"}),
        "level": "vulkan",
        "os": "android",
        "layers": (),
        "vendor": "qualcomm",
        "family": "adreno",
        "model": 630,
        "vendor_id": 0x5143,
        "device_id": 0x6030001,
        "driver_id": 8,
        "is_mesa": False,
        "name": "Adreno (TM) 630",
        "soc": "SDM845",
        "brand": "google",
        "device": "blueline",
        "android_sdk": 30,
        "security_patch": "2021-05-05",
        "process_bits": 64,
        "versions": {"vk-adreno": (490, 0)},
        "builds": frozenset({"0f6d4a8"}),
        "built": "2021-03-02",
    }
    return Subject(**(fields | changes))


def judge(entry: Entry, subject: Subject, today: str = TODAY, *, is_ignored: bool = False) -> Any:
    """Return what one entry means for one device."""
    ignored = {entry.id} if is_ignored else set()
    return finding(entry, subject, result(entry, subject), today, ignored)


def write(
    folder: Path, *records: dict[str, Any], api: str = "vulkan", vendor: str = "qualcomm"
) -> Path:
    """Write a sealed folder of these entries, with the tables of the real one; return the file."""
    real = Path(__file__).resolve().parents[1] / "capability_db"
    for name in ("classes.json", "names.json", "families.json"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((real / name).read_bytes())
    path = folder / "entries" / api / f"{vendor}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "schema": "gpuedge.entries/3",
        "api": api,
        "vendor": vendor,
        "entries": list(records),
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    seal(folder)
    return path


def six(folder: Path) -> Path:
    """Write a folder of five entries about Adreno and one about Mali, in two files."""
    write(folder, *(row(i) for i in range(1, 6)))
    write(folder, row(match=[{"vendor": ["arm"]}], id="mali-0001"), vendor="arm")
    return folder


def entries_of(folder: Path) -> Path:
    """Return the file of the entries about Adreno."""
    return folder / "entries" / "vulkan" / "qualcomm.json"
