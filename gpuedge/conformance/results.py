"""Results on disk: a file of JSON lines that a later run can resume from, and a JUnit report.

The first line of a results file is a header with ``"schema"``; every other line is the row of one
case. Files are replaced in one step, so a run that is killed leaves the last complete state.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpuedge.conformance import SCHEMA
from gpuedge.conformance.bench import (
    CRASHED,
    ERROR,
    FAILED,
    PASSED,
    SKIPPED,
    STATUSES,
    TIMEOUT,
    Row,
    RowFields,
)
from gpuedge.core.errors import InputError
from gpuedge.core.record import UnfitError, checked
from gpuedge.safety.paths import is_stream, read_start, save_named

FLUSH_S = 5.0
"""How often a results file is brought up to date during a run."""

MAX_BYTES = 256 << 20
ILLEGAL = re.compile("[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
LOST = ("GE-401", "GE-403")
"""Codes of a device that was lost or timed out."""


@dataclass
class Results:
    """The rows of a run by their ids, with what they were made on.

    The header has ``schema``, device, profile, shard, identity, caps, versions and times. Both are
    kept in a file where `path` names one.
    """

    header: Row
    rows: dict[str, Row] = field(default_factory=dict)
    path: str | None = field(default=None, compare=False)
    _written: float = field(default_factory=time.monotonic, compare=False)

    def counts(self) -> dict[str, int]:
        """Return how many cases came to each status, and how many there are."""
        found = Counter(row["status"] for row in self.rows.values())
        return {"cases": len(self.rows), **{status: found[status] for status in STATUSES}}

    @property
    def is_good(self) -> bool:
        """Whether every case passed or did not apply."""
        return all(row["status"] in (PASSED, SKIPPED) for row in self.rows.values())

    @property
    def is_lost(self) -> bool:
        """Whether a case lost the device, hung or killed its process."""
        return any(
            row["status"] in (CRASHED, TIMEOUT) or row.get("code") in LOST
            for row in self.rows.values()
        )

    def lines(self) -> bytes:
        """Return the content of a results file."""
        ordered = [self.header, *(self.rows[name] for name in sorted(self.rows))]
        return "".join(json.dumps(row, sort_keys=True) + "\n" for row in ordered).encode()

    def add(self, row: Row) -> None:
        """Take a row; bring the file up to date if the last time was a while ago.

        A file that is a stream takes everything once, by `write`.
        """
        self.rows[row["id"]] = row
        is_due = time.monotonic() - self._written > FLUSH_S
        if is_due and self.path is not None and not is_stream(self.path):
            self.write()

    def write(self) -> None:
        """Bring the file up to date. Raises InputError (GE-203) where it cannot be written."""
        if self.path is not None:
            save_named(Path(self.path), self.lines(), "--jsonl")
        self._written = time.monotonic()


def read(path: str) -> tuple[Results, int]:
    """Return what a results file holds, and how many of its lines are damaged.

    Of a file that is empty or has lost its header there is nothing to go on from: no header and
    no rows.

    Raises
    ------
    InputError (GE-203)
        There is no such file, or it holds something else.
    """
    try:
        lines = read_start(path, MAX_BYTES).splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.", asked_by="--resume") from None
    found = [_parsed(line) for line in lines]
    rows = {row["id"]: row for row in found if row is not None and _is_row(row)}
    header = found[0] if found else None
    if header is not None and header.get("schema") == SCHEMA:
        return Results(header, rows), len(found) - 1 - len(rows)
    if found and not rows:
        raise InputError(
            f"{path} is not a file of conformance results.",
            asked_by="--resume",
            known=f"its first line must be an object with the schema {SCHEMA!r}",
            hint="run without --resume",
        )
    return Results({}), len(found)


def _parsed(line: bytes) -> Row | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _is_row(body: Row) -> bool:
    try:
        checked(RowFields, body)
    except UnfitError:
        return False
    return True


def check_same(old: Results, header: Mapping[str, Any], path: str) -> None:
    """Raise InputError (GE-203) unless results belong to the run that is to go on."""
    theirs, ours = (dict(flattened(one)) for one in (old.header, header))
    names = {"device": "device", "profile": "profile", "versions.gpuedge": "version of gpuedge"}
    names |= {name: "identity" for name in {**theirs, **ours} if name.startswith("identity.")}
    for name, said in names.items():
        before, now = theirs.get(name), ours.get(name)
        if before != now and (before is not None or said == "identity"):
            raise InputError(
                f"{path} holds results of another {said}.",
                asked_by="--resume",
                known=f"there {name} is {before!r}, here {now!r}",
                hint="run without --resume",
            )


def junit(results: Results) -> bytes:
    """Return a JUnit report: a suite with properties, a test case per row, named by its id."""
    counts, header = results.counts(), results.header
    totals = {
        "tests": str(counts["cases"]),
        "failures": str(counts[FAILED]),
        "errors": str(counts[ERROR] + counts[CRASHED] + counts[TIMEOUT]),
        "skipped": str(counts[SKIPPED]),
        "time": f"{sum(float(row.get('seconds', 0)) for row in results.rows.values()):.3f}",
    }
    root = ElementTree.Element("testsuites", totals)
    name = f"gpuedge.conformance.{header.get('device', '')}"
    about = {"name": name, "timestamp": str(header.get("started", ""))}
    suite = ElementTree.SubElement(root, "testsuite", {**about, **totals})
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in flattened(header):
        ElementTree.SubElement(properties, "property", name=key, value=_legal(value))
    for _, row in sorted(results.rows.items()):
        seconds = f"{float(row.get('seconds', 0)):.4f}"
        about = {"name": _legal(row["id"]), "classname": _legal(row["op"]), "time": seconds}
        case = ElementTree.SubElement(suite, "testcase", about)
        kind = {PASSED: "", SKIPPED: "skipped", FAILED: "failure"}.get(row["status"], "error")
        reason = _legal(str(row.get("reason", "")))
        if kind:
            problem = ElementTree.SubElement(case, kind, message=reason)
        if kind not in ("", "skipped"):
            problem.set("type", str(row.get("code", row["status"])))
            problem.text = reason
    ElementTree.indent(root)
    text = ElementTree.tostring(root, "unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def flattened(record: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yield the leaves of nested records as dotted names and texts."""
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flattened(value, f"{name}.")
        elif isinstance(value, (list, tuple)):
            yield name, " ".join(map(str, value))
        elif value is not None:
            yield name, str(value)


def _legal(text: str) -> str:
    """Return text without the characters that XML does not allow: drivers print anything."""
    return ILLEGAL.sub("", text)


def families(rows: Iterable[Row]) -> dict[str, Row]:
    """Return for each operation how many cases passed of how many, the worst error and the time.

    The worst error is in units of the bound; cases that are to be exact have none.
    """
    found: dict[str, Row] = {}
    for row in rows:
        one = found.setdefault(
            row["op"], {"passed": 0, "run": 0, "skipped": 0, "worst": None, "seconds": 0.0}
        )
        is_skipped = row["status"] == SKIPPED
        one["skipped"] += is_skipped
        one["run"] += not is_skipped
        one["passed"] += row["status"] == PASSED
        one["seconds"] = round(one["seconds"] + float(row.get("seconds", 0)), 4)
        if isinstance(row.get("worst"), float):
            one["worst"] = max(one["worst"] or 0.0, row["worst"])
    return dict(sorted(found.items()))


def summary(results: Results, not_run: Sequence[str], notes: Sequence[str]) -> Row:
    """Return the document of a run."""
    bad = [row for row in results.rows.values() if row["status"] not in (PASSED, SKIPPED)]
    reasons = Counter(
        str(row.get("reason")) for row in results.rows.values() if row["status"] == SKIPPED
    )
    return {
        **results.header,
        "counts": {**results.counts(), "not_run": len(not_run)},
        "operations": families(results.rows.values()),
        "problems": sorted(bad, key=lambda row: str(row["id"])),
        "skipped": dict(reasons.most_common()),
        "notes": list(notes),
    }
