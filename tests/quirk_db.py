"""Folders of a capability database with a few entries of a test's own, sealed as real ones are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from capdb.seal import seal

from gpuedge.safety import paths

TABLES = ("classes.json", "names.json", "families.json")
RASTERISER = {"api": ["vulkan"], "vendor": ["mesa-software"]}
"""What Mesa's software driver is under Vulkan."""


def entry(number: int, effect: str, action: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an entry about `RASTERISER`; `more` changes or adds fields of it."""
    return {
        "id": f"mesa-{number:04}",
        "rev": 1,
        "state": "active",
        "effect": effect,
        "assurance": "reproduced",
        "summary": f"Entry {number} of a test, about software rasterisers.",
        "match": [RASTERISER],
        "action": action,
        "evidence": [{"type": "farm_run", "case": "test"}],
        "review": {
            "owner": "gpuedge", "added": "2026-01-01", "review_by": "2099-01-01",
            "on_expiry": "keep",
        },
        **more,
    }  # fmt: skip


def demand(*tests: str, runs: int = 4, may: str = "confirm_and_clear") -> dict[str, Any]:
    """Return the field ``probe`` of an entry."""
    return {"tests": list(tests), "runs": runs, "may": may}


def folder(place: Path, *entries: dict[str, Any], api: str = "vulkan") -> Path:
    """Write a database of these entries, unless it is there already; return its folder."""
    where = place / "entries" / api
    where.mkdir(parents=True, exist_ok=True)
    for name in TABLES:
        if not (place / name).is_file():
            shutil.copy(paths.data_dir("capability_db") / name, place / name)
    body = {
        "schema": "gpuedge.entries/3", "api": api, "vendor": "mesa-software",
        "entries": list(entries),
    }  # fmt: skip
    file, text = where / "mesa-software.json", json.dumps(body)
    if not file.is_file() or file.read_text() != text:
        file.write_text(text)
    seal(place)
    return place
