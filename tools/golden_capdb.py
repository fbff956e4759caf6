"""Writes what the capability database decides for every stored identity, for review.

    python tools/golden_capdb.py [--check]

A change of the database changes this file. Its differences, and `gpuedge db diff OLD NEW`, are what
a reviewer reads. With ``--check`` nothing is written, and the exit code tells whether it differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gpuedge.capdb.database import read_unsealed
from gpuedge.capdb.lint import corpus
from gpuedge.capdb.lint.diff import decisions, title
from gpuedge.core.config import config

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "capability_db"
GOLDEN = ROOT / "tests" / "golden" / "capdb" / "decisions.json"
SCHEMA = "gpuedge.golden-decisions/1"
DAY = "2026-11-21"
"""The date that reviews are compared with: decisions do not change because time passes."""


def made(folder: Path = FOLDER) -> dict[str, Any]:
    """Return the golden file's content."""
    with config(db=str(folder)):
        identities = corpus.identities(folder)
        found = decisions(read_unsealed(folder), identities, DAY)
    rows = {name: {"name": title(identities[name]), **levels} for name, levels in found.items()}
    return {"schema": SCHEMA, "today": DAY, "decisions": rows}


def text(content: dict[str, Any]) -> str:
    """Return it as text, with a line for each level, so that differences read well."""
    lines = []
    for name, row in content["decisions"].items():
        inner = [f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in row.items()]
        lines.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(inner) + "\n  }")
    head = "".join(f' "{key}": {json.dumps(content[key])},\n' for key in ("schema", "today"))
    return "{\n" + head + ' "decisions": {\n' + ",\n".join(lines) + "\n }\n}\n"


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    new = text(made())
    old = GOLDEN.read_text(encoding="utf-8") if GOLDEN.is_file() else ""
    if not options.check and new != old:
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(new, encoding="utf-8")
    print("unchanged" if new == old else "changed")
    return 1 if options.check and new != old else 0


if __name__ == "__main__":
    sys.exit(main())
