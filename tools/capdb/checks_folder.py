"""Rules about a database as a whole: its entries over the stored identities, and its facts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from capdb import corpus
from capdb.rules import Folder, Problem
from gpuedge.capdb.entries import Entry
from gpuedge.capdb.identity.subject import Subject, subject
from gpuedge.capdb.matching import FALSE, TRUE, Truth, result
from gpuedge.capdb.saved import identities

BROAD: Final = 0.4
"""Share of an API's identities above which an entry that blocks is broad."""

FEW: Final = 10
"""Identities below which a share says nothing."""


def check(folder: Folder) -> Iterator[Problem]:
    """Yield what is wrong with the folder as a whole."""
    subjects = {name: subject(r) for name, r in identities(folder.path).items()}
    found = results([entry for _, entry in folder.entries], subjects)
    for file, entry in folder.entries:
        mine = found[entry.id]
        for rule, text in (
            *_fitting(entry, mine),
            *_tests(entry, mine),
            *_broad(entry, mine, subjects),
        ):
            yield Problem(rule, entry.id, file, text)
    yield from _facts(folder)
    until = str(folder.envelope.get("valid_until", ""))[:10]
    if until and until < folder.today:
        yield Problem("stale-database", "", "database.json", f"it was valid until {until}")


def results(entries: list[Entry], subjects: Mapping[str, Subject]) -> dict[str, dict[str, Truth]]:
    """Return what every entry comes to on every identity."""
    found: dict[str, dict[str, Truth]] = defaultdict(dict)
    for name, who in subjects.items():
        for entry in entries:
            found[entry.id][name] = result(entry, who)[0]
    return found


def _fitting(entry: Entry, mine: Mapping[str, Truth]) -> Iterator[tuple[str, str]]:
    hits = [name for name, value in mine.items() if value is TRUE]
    if not entry.is_in_use:
        return
    if not hits and entry.source["tests"].get("no_fixture") is None:
        yield "dead", "no stored identity fits it; say in tests.no_fixture why, if it is alive"
    if hits and entry.source["tests"].get("no_fixture") is not None:
        yield "needless-no-fixture", f"it is true of {', '.join(hits[:5])}"


def _tests(entry: Entry, mine: Mapping[str, Truth]) -> Iterator[tuple[str, str]]:
    for rule, names, wanted in (
        ("must-match", entry.source["tests"]["must_match"], TRUE),
        ("must-not-match", entry.source["tests"]["must_not_match"], FALSE),
    ):
        for name in names:
            if name not in mine:
                yield rule, f"there is no identity {name}"
            elif mine[name] is not wanted:
                yield rule, f"{name} is {mine[name].value}"


def _broad(
    entry: Entry, mine: Mapping[str, Truth], subjects: Mapping[str, Subject]
) -> Iterator[tuple[str, str]]:
    if not entry.is_in_use or not entry.action.forbids_a_level:
        return
    apis = {api for match in entry.match for api in match.get("api") or ()}
    peers = [n for n, who in subjects.items() if not apis or not apis.isdisjoint(who.apis or ())]
    hits = sum(mine[name] is TRUE for name in peers)
    if len(peers) >= FEW and hits > BROAD * len(peers):
        yield "over-broad", f"it is true of {hits} of {len(peers)} identities of its APIs"


def _facts(folder: Folder) -> Iterator[Problem]:
    """Compare the facts that entries rest on, and those left out, with the whole collection."""
    used: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in folder.rows:
        record = row.record if isinstance(row.record, dict) else {}
        evidence = record.get("evidence")
        for one in evidence if isinstance(evidence, list) else ():
            if isinstance(one, dict) and isinstance(one.get("fact"), str):
                used[one["fact"]].append((row.id, row.file))
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
        text = f"{share} are in no entry and not left out: {', '.join(missing[:12])}"
        yield Problem("missing-fact", "", corpus.LEFT_OUT, text)
