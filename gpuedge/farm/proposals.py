"""Failures as entries that the capability database could have: for a person to read and decide.

An entry is proposed for each driver that failed cases in its newest run, as ``canary``: it asks for
a test, and forbids nothing that passes it. Entries are written as files of the database with what
these held before, so that a review is a look at differences.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuedge.capdb import source
from gpuedge.capdb.entries import parse
from gpuedge.capdb.identity.subject import Subject, subject
from gpuedge.capdb.identity.texts import folded
from gpuedge.capdb.matching import FALSE, TRUE, result
from gpuedge.conformance.bench import CRASHED, ERROR, FAILED, PASSED, TIMEOUT
from gpuedge.core.errors import InputError
from gpuedge.core.text import counted, encoded, plain
from gpuedge.farm.devices import OWN
from gpuedge.farm.report import BAD, DeviceResult, FarmReport
from gpuedge.plan.library import variants
from gpuedge.safety.paths import data_dir, save_named

EFFECTS = {CRASHED: "crash", TIMEOUT: "hang", FAILED: "wrong_result", ERROR: "feature_broken"}
"""What an entry calls it, worst first; one of several kinds of failures is about the worst."""

VERBS = {"crash": "crashes in", "hang": "hangs in", "wrong_result": "gets wrong",
         "feature_broken": "refuses"}  # fmt: skip
RAW = "vk-raw"
"""The scheme of a version of which nothing is known but its number."""

COMMON = (RAW, "vk-api", "gl-es", "linux-kernel", "macos", "emulator-host")
"""Schemes of versions that tell nothing of one maker's driver."""

MOST_EVIDENCE = 12
REVIEW_DAYS = 180
PAIRS = "fixtures/pairs.json"


@dataclass(frozen=True)
class Proposal:
    """An entry, where it belongs, and its fixture: a device that it matches, and a near miss."""

    entry: dict[str, Any]
    file: str
    pair: dict[str, Any]
    result: DeviceResult
    cases: tuple[str, ...]


def proposed(report: FarmReport, database: str | None = None) -> list[Proposal]:
    """Return an entry for each driver that failed in its newest run.

    Parameters
    ----------
    report : FarmReport
    database : str, optional
        The folder whose ids are taken; by default the packaged one, which has no notes: ids of
        these are known in the source tree only.

    Raises
    ------
    InputError (GE-203)
        `database` cannot be read.
    """
    folder = Path(database) if database else data_dir("capability_db")
    groups: dict[str, list[DeviceResult]] = {}
    for one in report.latest():
        if one.failures:
            who = subject(_record(one), host={})
            groups.setdefault(json.dumps([_api(who, one), _match(who, one)]), []).append(one)
    ids, made = _Ids(folder) if groups else None, []
    for text, alike in groups.items():
        if ids is not None:
            api, match = json.loads(text)
            made += list(_proposal(api, match, alike, ids))
    return made


def _record(one: DeviceResult) -> dict[str, Any]:
    return {name: value for name, value in one.identity.items() if name not in OWN}


def _api(who: Subject, one: DeviceResult) -> str:
    apis = who.apis or frozenset({"any"})
    return one.level if one.level in apis else min(apis)


def _match(who: Subject, one: DeviceResult) -> dict[str, Any]:
    """Return the condition that holds for a driver and as little else as its identity tells."""
    found: dict[str, Any] = {"api": [_api(who, one)], "name": {"exact": [folded(who.name or "")]}}
    if who.vendor:
        found["vendor"] = [who.vendor]
    if who.os:
        found["os"] = [who.os]
    if who.layers:
        found["layer"] = list(who.layers)
    own = sorted(who.versions.keys() - {*COMMON})
    for scheme in [*own, *who.versions.keys() & {RAW}][:1]:
        version = who.versions[scheme]
        after = [*version[:-1], version[-1] + 1]
        found["driver"] = {
            "scheme": scheme, "intervals": [{"from": list(version), "below": after}]
        }  # fmt: skip
    return found


def _proposal(
    api: str, match: dict[str, Any], alike: Sequence[DeviceResult], ids: _Ids
) -> Iterator[Proposal]:
    """Yield the entry, if the condition holds for the device and not for its near miss."""
    bad = {case: one.rows[case] for one in alike for case in one.failures}
    effect = next(EFFECTS[s] for s in EFFECTS if any(r["status"] == s for r in bad.values()))
    vendor = match.get("vendor", ["any"])[0]
    name, first, today = alike[0].name, min(bad), time.strftime("%Y-%m-%d", time.gmtime())
    later = time.strftime("%Y-%m-%d", time.gmtime(time.time() + REVIEW_DAYS * 86_400))
    serials = {serial for one in alike for serial in one.serials}
    evidence = [{"type": "farm_run", "case": case, "seen": alike[0].run.started[:10]}
                for case in sorted(bad)[:MOST_EVIDENCE]]  # fmt: skip
    count = counted(len(bad), "conformance case")
    what = f"{name} with driver {alike[0].driver} {VERBS[effect]} {count}, such as {first}"
    scope = "" if "driver" in match else " It concerns every version of the driver."
    entry_id, vendor = ids.next_of(vendor)
    entry = {
        "id": entry_id, "rev": 1, "state": "canary", "effect": effect,
        "assurance": "reproduced" if len(serials) > 1 else "reported",
        "summary": plain(f"Proposed by a farm: {what}.{scope}", 300),
        "match": [match], "action": _action(alike),
        "probe": {"tests": ["standard", "kernels"], "may": "confirm_and_clear"},
        "evidence": evidence,
        "review": {"owner": "farm", "added": today, "review_by": later, "on_expiry": "probe"},
    }  # fmt: skip
    record = _record(alike[0])
    names = [n for n in ("name", "deviceName", "GL_RENDERER") if n in record]
    near: dict[str, Any] = {n: f"Other {record[n]}" for n in names}
    try:
        parsed = parse(entry, api)
    except ValueError:  # a device without a name
        return
    is_right = result(parsed, subject(record, host={}))[0] is TRUE
    if is_right and result(parsed, subject({**record, **near}, host={}))[0] is FALSE:
        file = f"{source.ENTRIES}/{api}/{vendor}.json"
        yield Proposal(entry, file, {"match": record, "near": near}, alike[0], tuple(sorted(bad)))


def _action(alike: Sequence[DeviceResult]) -> dict[str, Any]:
    """Return the least that avoids the failures: kernels that only fail, else the levels."""
    failing, good = [], set()
    for one in alike:
        for row in one.rows.values():
            kernels = {*row.get("kernels", ()), row.get("variant")}
            if row["status"] in BAD:
                failing.append(kernels)
            elif row["status"] == PASSED:
                good |= kernels
    known = {variant.id for variant in variants()}
    guilty = set.union(*failing) & known - good
    if guilty and all(kernels & guilty for kernels in failing):
        return {"disable_kernels": sorted(guilty)}
    return {"disable_levels": sorted({one.level for one in alike})}


class _Ids:
    """Ids of a database: which are taken, and how those of a maker begin."""

    def __init__(self, folder: Path) -> None:
        try:
            self._pattern = re.compile(
                json.loads(self._text(folder / "entries.schema.json"))["$defs"]["id"]["pattern"]
            )
            files = sorted(folder.glob("*/*/*.json"))
            texts = [self._text(file) for file in (folder / source.FILE, *files)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{folder} is no capability database.", asked_by="--database", known=str(error)
            ) from None
        found = [re.fullmatch(r"(.+)-(\d+)", name) for text in texts
                 for name in re.findall(r'"([a-z]+-\d{4})"', text)]  # fmt: skip
        self._last: dict[str, int] = {}
        for match in filter(None, found):
            self._last[match[1]] = max(self._last.get(match[1], 0), int(match[2]))
        self._begins = {}
        for file, text in zip(files, texts[1:], strict=True):
            if begin := re.search(r'"id": "([a-z]+)-\d{4}"', text):
                self._begins[file.stem] = begin[1]

    @staticmethod
    def _text(file: Path) -> str:
        return file.read_text(encoding="utf-8")

    def next_of(self, vendor: str) -> tuple[str, str]:
        """Return the next free id of a maker, and the file that it belongs to."""
        begin = self._begins.get(vendor, vendor.partition("-")[0])
        if not self._pattern.match(f"{begin}-0000"):
            begin, vendor = "any", "any"
        self._last[begin] = self._last.get(begin, 0) + 1
        return f"{begin}-{self._last[begin]:04d}", vendor


def write(proposals: Sequence[Proposal], database: str | None, folder: str) -> list[str]:
    """Write the files of the database that proposals change, into a folder of the same layout.

    Returns their names. Raises InputError (GE-203) where they cannot be read or written.
    """
    old = Path(database) if database else data_dir("capability_db")
    texts: dict[str, str] = {}

    def add(name: str, end: str, empty: Mapping[str, Any], text: str) -> None:
        before = texts.get(name) or _text_of(old / name, empty)
        start = before.rindex(end)
        comma = "," if before[:start].rstrip()[-1] not in "[{" else ""
        texts[name] = f"{before[:start].rstrip()}{comma}\n{text}\n{before[start:]}"

    try:
        for one in proposals:
            _, api, vendor = one.file.split("/")
            head = {"schema": source.ENTRIES_SCHEMA, "api": api, "vendor": vendor[:-5]}
            body = _indented(json.dumps(one.entry, indent=1, ensure_ascii=False), 2)
            add(one.file, " ]\n}", {**head, "entries": []}, body)
            pair = json.dumps({one.entry["id"]: one.pair}, indent=1, ensure_ascii=False)
            pair = "\n".join(pair.splitlines()[1:-1])
            add(PAIRS, " }\n}", {"schema": "gpuedge.pairs/1", "pairs": {}}, _indented(pair, 1))
        for text in texts.values():
            json.loads(text)
    except (OSError, ValueError) as error:
        raise InputError(
            "The database cannot be added to.", asked_by="--database", known=str(error)
        ) from None
    for name, text in texts.items():
        save_named(Path(folder) / name, encoded(text), "--proposals")
    return sorted(texts)


def _text_of(file: Path, empty: Mapping[str, Any]) -> str:
    """Return a file of the database, or what it is before its first entry."""
    if file.is_file():
        return file.read_text(encoding="utf-8")
    text = json.dumps(empty, indent=1)
    return text.replace("[]", "[\n ]").replace("{}", "{\n }") + "\n"


def _indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.splitlines())
