"""Runs every campaign, one after the other, and keeps what came of them for the docs.

Usage: python tools/release_check.py [--anew] [--list] [CAMPAIGN...]

A campaign is the long tests of one file, or a tool that fills a page of docs/tables/. Each ends by
itself; what each said is kept in out/release-check/CAMPAIGN.log. A campaign that passed at the same
commit is not run again, so that an interrupted run goes on where it ended; --anew runs all. The
page docs/tables/release-check.md is written after each. The exit status is 1 unless all passed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "release-check"
PAGE = ROOT / "docs" / "tables" / "release-check.md"
CHOICE = ("-m", "long or in_turn")
PYTEST = (sys.executable, "-m", "pytest", "-n", "3", "--dist", "worksteal", *CHOICE)
TOOLS = {
    "conformance": ("tools/conformance_table.py", "--resume"),
    "conformance-full": ("tools/conformance_table.py", "--resume", "--full"),
    "onnx-cases": ("tools/onnx_cases.py", "--resume"),
    "webnn-cases": ("tools/webnn_cases.py", "--resume"),
    "networks": ("tools/networks.py", "--run"),
    "mutants": ("tools/kernel_mutants.py", "--resume"),
    "variants": ("benchmarks/variants.py",),
    "bench-power": ("tools/bench_power.py",),
    "arm64": ("tools/arm64.py",),
}
"""Campaigns that are tools, with what they are given."""

PASSED, CHANGED = "passed", "+changes"
INTRODUCTION = """\
# Release check

Made by `make release-check` (tools/release_check.py); do not edit. A campaign is the long tests of
one file, or a tool that fills a page beside this one. The row is of its last run; the time is of a
machine with two processor cores that others use too.
"""


def campaigns() -> dict[str, tuple[str, ...]]:
    """Return the command of each campaign by its name."""
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-qq", *CHOICE],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    files = [line.rpartition(": ")[0] for line in found.splitlines() if ".py: " in line]
    tests = {file: (*PYTEST, file) for file in files}
    return tests | {name: (sys.executable, *words) for name, words in TOOLS.items()}


def commit() -> str:
    """Return the commit that is checked out, with a mark where files differ from it.

    Pages that campaigns write do not count.
    """

    def git(*words: str) -> str:
        command = ["git", *words, "--", ".", ":!docs/tables"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    changes = git("status", "--porcelain")
    return git("log", "-1", "--format=%h").strip() + (CHANGED if changes else "")


def run(name: str, command: Sequence[str]) -> dict[str, Any]:
    """Run a campaign and return its row."""
    log = OUT / f"{name.replace('/', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with log.open("wb") as file:
        done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, check=False)
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(time.monotonic() - start),
        "result": PASSED if done.returncode == 0 else f"failed ({done.returncode})",
        "said": said[-1][:120] if said else "",
    }


def page(names: Iterable[str], rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page of the last results."""
    lines = ["| campaign | result | date | commit | seconds |", "|---|---|---|---|---|"]
    for name in names:
        row = rows.get(name, {"result": "not run yet", "date": "", "commit": "", "seconds": ""})
        cells = (name, *(str(row[key]) for key in ("result", "date", "commit", "seconds")))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([INTRODUCTION, *lines, ""])


def known(text: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a page that this program wrote, so that they outlive the checkout."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 5 and cells[2]:
            rows[cells[0]] = dict(
                zip(("result", "date", "commit", "seconds"), cells[1:], strict=True)
            )
    rows.pop("campaign", None)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaigns that are asked for; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--anew", action="store_true", help="run what passed here before, too")
    parser.add_argument("--list", action="store_true", help="only list the campaigns")
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN")
    chosen = parser.parse_args(arguments)
    everything = campaigns()
    if chosen.list:
        print("\n".join(everything))
        return 0
    unknown = [name for name in chosen.campaigns if name not in everything]
    if unknown:
        parser.error(f"no such campaign: {unknown[0]}; --list lists them")
    rows = known(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    names = chosen.campaigns or list(everything)
    for number, name in enumerate(names, 1):
        row = rows.get(name, {})
        now = commit()
        is_done = (row.get("result"), row.get("commit")) == (PASSED, now) and CHANGED not in now
        if not is_done or chosen.anew:
            print(f"[{number}/{len(names)}] {name} ...", file=sys.stderr, flush=True)
            rows[name] = row = run(name, everything[name])
            PAGE.write_text(page(everything, rows), encoding="utf-8")
        words = json.dumps(row.get("said", "done before"))
        print(f"[{number}/{len(names)}] {name}: {row['result']}, {words}", file=sys.stderr)
    return int(any(rows[name]["result"] != PASSED for name in names))


if __name__ == "__main__":
    sys.exit(main())
