"""Writes what the capability database decides for every stored identity, for review.

    python tools/capdb golden [--check]

A change of the database changes this file. Its differences, and ``python tools/capdb diff``, are
what a reviewer reads. With ``--check`` nothing is written, and the exit code tells whether it
differs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from capdb.diff import decisions
from gpuedge.capdb.check import check_folder
from gpuedge.capdb.identities import identities, title
from gpuedge.core.config import config

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "capability_db"
GOLDEN = ROOT / "tests" / "golden" / "capdb" / "decisions.json"
SCHEMA = "gpuedge.golden-decisions/1"
DAY = "2026-11-21"
"""The date that reviews are compared with: decisions do not change because time passes."""


def made(folder: Path = FOLDER) -> dict[str, Any]:
    """Return the golden file's content."""
    with config(db=str(folder)):
        every = identities(folder)
        found = decisions(check_folder(folder, is_sealed=False), every, DAY)
    rows = {name: {"name": title(every[name]), **levels} for name, levels in found.items()}
    return {"schema": SCHEMA, "today": DAY, "decisions": rows}


def text(content: dict[str, Any]) -> str:
    """Return it as text, with a line for each level, so that differences read well."""
    lines = []
    for name, row in content["decisions"].items():
        inner = [f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in row.items()]
        lines.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(inner) + "\n  }")
    head = "".join(f' "{key}": {json.dumps(content[key])},\n' for key in ("schema", "today"))
    return "{\n" + head + ' "decisions": {\n' + ",\n".join(lines) + "\n }\n}\n"


def write(*, is_check: bool = False) -> bool:
    """Write the file unless it is only to be checked; return whether it differed."""
    new = text(made())
    old = GOLDEN.read_text(encoding="utf-8") if GOLDEN.is_file() else ""
    if not is_check and new != old:
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(new, encoding="utf-8")
    return new != old
