"""Results for other programs: JUnit XML, TAP 14, LAVA signals and CSV, all from the same rows."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from xml.etree import ElementTree

from gpuedge.conformance.bench import FAILED, FLAKE, PASSED, Row
from gpuedge.conformance.results import (
    BAD,
    QUARANTINED,
    UNSUPPORTED,
    XFAILED,
    XPASSED,
    Results,
    ResultSet,
    flattened,
    outcome,
)

ILLEGAL = re.compile("[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
COLUMNS = (
    "device", "id", "op", "dtype", "shape", "data", "storage", "variant", "status", "outcome",
    "seconds", "worst", "code", "reason", "after",
)  # fmt: skip
"""Of a CSV file."""

SIGNALS = {PASSED: "pass", BAD: "fail", XPASSED: "fail", XFAILED: "skip", UNSUPPORTED: "skip",
           QUARANTINED: "unknown"}  # fmt: skip
"""LAVA's word for each outcome."""


class Judged(NamedTuple):
    """A row with the device that it is of, what it counts as, and why in a line."""

    device: str
    row: Row
    outcome: str
    why: str


def judged(found: ResultSet) -> Iterator[Judged]:
    """Yield all rows, by device and then by id."""
    for part in found:
        for _, row in sorted(part.rows.items()):
            yield Judged(part.device, row, outcome(row), why(row))


def why(row: Row) -> str:
    """Return why a row came to its outcome, with what was expected; empty where it passed."""
    expected, reason = row.get("expectation") or {}, str(row.get("reason", ""))
    came_to = outcome(row)
    if came_to in (XFAILED, QUARANTINED):
        told = " ".join(expected[k] for k in ("reason", "link") if expected.get(k))
        name = "expected to fail" if came_to == XFAILED else f"in quarantine, {row['status']}"
        return f"{name}: {told}" + (f" ({reason})" if reason else "")
    if came_to == XPASSED:
        return f"passed, though it was expected to fail: {expected.get('reason', '')}"
    return reason


def junit(found: ResultSet) -> bytes:
    """Return a JUnit report: for each device a suite with properties and a test case per row."""
    root = ElementTree.Element("testsuites", name="gpuedge.conformance")
    sums = dict.fromkeys(("tests", "failures", "errors"), 0)
    for part in found:
        suite = _suite(part, is_alone=len(found.parts) == 1)
        for key in sums:
            sums[key] += int(suite.get(key, "0"))
        root.append(suite)
    for key, total in sums.items():
        root.set(key, str(total))
    root.set("time", f"{sum(_seconds(row) for row in found.rows):.3f}")
    ElementTree.indent(root)
    text = ElementTree.tostring(root, "unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _suite(part: Results, *, is_alone: bool) -> ElementTree.Element:
    kinds = [_kind(row) for row in part.rows.values()]
    about = {
        "name": f"gpuedge.conformance.{part.device}",
        "timestamp": str(part.header.get("started", "")),
        "tests": str(len(kinds)),
        "failures": str(kinds.count("failure")),
        "errors": str(kinds.count("error")),
        "skipped": str(kinds.count("skipped")),
        "time": f"{sum(map(_seconds, part.rows.values())):.3f}",
    }
    if part.header.get("host"):
        about["hostname"] = _legal(str(part.header["host"]))
    suite = ElementTree.Element("testsuite", about)
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in flattened(part.header):
        ElementTree.SubElement(properties, "property", name=_legal(key), value=_legal(value))
    for _, row in sorted(part.rows.items()):
        suite.append(_test(row, "" if is_alone else f"{part.device}."))
    return suite


def _kind(row: Row) -> str:
    """Return JUnit's element for a row; empty where it passed."""
    came_to = outcome(row)
    if came_to == PASSED:
        return ""
    if came_to in (UNSUPPORTED, XFAILED, QUARANTINED):
        return "skipped"
    return "failure" if came_to == XPASSED or row["status"] in (FAILED, FLAKE) else "error"


def _test(row: Row, prefix: str) -> ElementTree.Element:
    about = {"name": row["id"], "classname": prefix + row["op"], "time": f"{_seconds(row):.4f}"}
    case = ElementTree.Element("testcase", {key: _legal(text) for key, text in about.items()})
    kind, said = _kind(row), _legal(why(row))
    if kind:
        problem = ElementTree.SubElement(case, kind, message=said)
        if kind != "skipped":
            came_to = outcome(row)
            problem.set("type", str(row.get("code") or (came_to if came_to != BAD else "")
                                    or row["status"]))  # fmt: skip
            problem.text = said
    return case


def _seconds(row: Row) -> float:
    return float(row.get("seconds") or 0)


def _legal(text: str) -> str:
    """Return text without the characters that XML does not allow: drivers print anything."""
    return ILLEGAL.sub("", text)


def tap(found: ResultSet, not_run: int = 0) -> bytes:
    """Return a TAP 14 document.

    Expected failures and quarantine are ``TODO``, what does not apply is ``SKIP``. Where cases have
    no row, the document bails out at its end.
    """
    rows = list(judged(found))
    lines = ["TAP version 14", f"1..{len(rows)}"]
    for part in found:
        lines.append(f"# {_line(part.device)}: {_line(part.header.get('identity', {}))}")
    for number, (device, row, came_to, said) in enumerate(rows, 1):
        is_ok = came_to in (PASSED, UNSUPPORTED) or (came_to == QUARANTINED and _is_right(row))
        word = {UNSUPPORTED: "SKIP", XFAILED: "TODO", QUARANTINED: "TODO"}.get(came_to)
        text = f"{'ok' if is_ok else 'not ok'} {number} - {_line(device)} {_line(row['id'])}"
        lines.append(text + (f" # {word} {_line(said)}" if word else ""))
        if came_to in (BAD, XPASSED):
            shown = {"message": said, "severity": "fail", "status": row["status"],
                     "after": row.get("after"), "worst": row.get("worst")}  # fmt: skip
            block = [f"  {k}: {json.dumps(v)}" for k, v in shown.items() if v is not None]
            lines += ["  ---", *block, "  ..."]
    if not_run:
        lines.append(f"Bail out! {not_run} cases were not run")
    return ("\n".join(lines) + "\n").encode()


def _is_right(row: Row) -> bool:
    return bool(row["status"] == PASSED)


def _line(value: object) -> str:
    """Return text that neither ends a line of TAP nor begins a directive."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    text = " ".join(_legal(text).encode("utf-8", "replace").decode().split())
    return text.replace("\\", "\\\\").replace("#", "\\#")


def lava(found: ResultSet) -> bytes:
    """Return LAVA's signals: a test set for each device, a test case with its time for each row.

    LAVA refuses ids that come twice in a job, and splits at blanks and ``=``: those of several
    devices begin with the device, and all but letters, digits, ``-``, ``.`` and ``_`` is ``_``.
    """
    lines = []
    is_alone = len(found.parts) == 1
    for part in found:
        name = _word(part.device)
        lines.append(f"<LAVA_SIGNAL_TESTSET START {name}>")
        for row in (part.rows[each] for each in sorted(part.rows)):
            case = _word(row["id"] if is_alone else f"{part.device}/{row['id']}")
            lines.append(
                f"<LAVA_SIGNAL_TESTCASE TEST_CASE_ID={case} RESULT={SIGNALS[outcome(row)]} "
                f"MEASUREMENT={_seconds(row):.4f} UNITS=seconds>"
            )
        lines.append(f"<LAVA_SIGNAL_TESTSET STOP {name}>")
    return "".join(line + "\n" for line in lines).encode()


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def table(found: ResultSet) -> bytes:
    """Return a CSV table with a line for each row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for device, row, came_to, _ in judged(found):
        whole = {**row, "device": device, "outcome": came_to}
        cells = ("" if (cell := whole.get(name)) is None else str(cell) for name in COLUMNS)
        writer.writerow([_legal(cell) for cell in cells])
    return text.getvalue().encode()


FORMATS: dict[str, Callable[[ResultSet], bytes]] = {
    "junit": junit, "tap": tap, "lava": lava, "csv": table,
}  # fmt: skip
"""What writes each, by the name of its option."""
