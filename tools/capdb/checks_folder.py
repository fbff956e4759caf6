"""Rules about a database as a whole: its entries over the stored identities, and its facts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from capdb import corpus
from capdb.rules import Folder, Problem
from gpuedge.capdb.entries import Entry
from gpuedge.capdb.identities import identities
from gpuedge.capdb.identity.subject import Subject, subject
from gpuedge.capdb.matching import FALSE, TRUE, result

BROAD: Final = 0.4
"""Share of an API's identities above which an entry that blocks is broad."""

FIELDS: Final = 4
"""Fields in which a near miss may differ: name, maker and driver of another device are four."""

FEW: Final = 10
"""Identities below which a share says nothing."""


def check(folder: Folder) -> Iterator[Problem]:
    """Yield what is wrong with the folder as a whole."""
    stored = identities(folder.path)
    yield from _fixtures(folder, stored)
    subjects = {name: subject(r) for name, r in stored.items()}
    for file, entry in folder.entries:
        yield from (Problem("over-broad", entry.id, file, t) for t in _broad(entry, subjects))
    yield from _facts(folder)
    until = str(folder.envelope.get("valid_until", ""))[:10]
    if until and until < folder.today:
        yield Problem("stale-database", "", "database.json", f"it was valid until {until}")


def _fixtures(folder: Folder, known: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Compare every entry with a device that it must match, and with one close by."""
    pairs, files = corpus.pairs(folder.path), {e.id: file for file, e in folder.entries}
    for name in sorted(pairs.keys() ^ files.keys()):
        text = "it has none" if name in files else "there is no such entry"
        yield Problem("no-fixture", name, files.get(name, corpus.PAIRS), text)
    for file, entry in folder.entries:
        pair = pairs.get(entry.id)
        if pair is None:
            continue
        match, near = pair["match"], pair["near"]
        record = known.get(match) if isinstance(match, str) else match
        if record is None or not 0 < len(near) <= FIELDS:
            text = f"needs a known device, and a near miss in 1 to {FIELDS} fields"
            yield Problem("no-fixture", entry.id, corpus.PAIRS, text)
            continue
        for rule, device, wanted in (
            ("must-match", record, TRUE), ("must-not-match", {**record, **near}, FALSE),
        ):  # fmt: skip
            value, by = result(entry, subject(device))
            if value is not wanted:
                yield Problem(rule, entry.id, file, f"it is {value.value}, decided by {by}")


def _broad(entry: Entry, subjects: Mapping[str, Subject]) -> Iterator[str]:
    if not entry.action.forbids_a_level:
        return
    apis = {api for match in entry.match for api in match.get("api") or ()}
    peers = [who for who in subjects.values() if not apis or not apis.isdisjoint(who.apis or ())]
    hits = sum(result(entry, who)[0] is TRUE for who in peers)
    if len(peers) >= FEW and hits > BROAD * len(peers):
        yield f"it is true of {hits} of {len(peers)} identities of its APIs"


def _facts(folder: Folder) -> Iterator[Problem]:
    """Compare the facts of entries and notes, and those left out, with the whole collection."""
    notes = corpus.notes(folder.path)
    ids = {row.id: row.file for row in folder.rows}
    for note, file in notes:
        if note["id"] in ids:
            text = f"{ids[note['id']]} has an entry of this id"
            yield Problem("duplicate-id", note["id"], file, text)
    used: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for record, file in [*((row.record, row.file) for row in folder.rows), *notes]:
        evidence = record.get("evidence") if isinstance(record, dict) else None
        for one in evidence if isinstance(evidence, list) else ():
            if isinstance(one, dict) and isinstance(one.get("fact"), str):
                used[one["fact"]].append((str(record.get("id")), file))
    rows = corpus.left_out(folder.path)
    times = Counter(fact for fact, _, _ in rows)
    for fact, reason, file in rows:
        if fact in used:
            entry = used[fact][0][0]
            yield Problem("double-fact", entry, file, f"{fact} is left out ({reason}) and used")
        elif times[fact] > 1:
            yield Problem("double-fact", "", file, f"{fact} is left out {times[fact]} times")
    every = corpus.facts(folder.path)
    missing = [fact for fact in every if fact not in used and fact not in times]
    if missing:
        share = f"{len(missing)} of {len(every)} facts"
        text = f"{share} are in no entry or note and not left out: {', '.join(missing[:12])}"
        yield Problem("missing-fact", "", corpus.LEFT_OUT, text)
