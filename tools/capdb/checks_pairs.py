"""Rules about two entries: shadowed, duplicate, contradictory, superseded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import Final

from capdb.covering import covers, is_as_strong, overlap
from capdb.rules import Folder, Problem
from gpuedge.capdb.entries import Entry


def check(folder: Folder) -> Iterator[Problem]:
    """Yield what is wrong between entries."""
    for pair in _pairs(list(folder.entries)):
        yield from _between(*pair)
    yield from _superseded(folder)


Filed = tuple[str, Entry]


def _pairs(rows: list[Filed]) -> Iterator[tuple[Filed, Filed]]:
    """Yield the pairs that can have to do with each other: those that share a kind of device."""
    by_kind: dict[str, list[Filed]] = defaultdict(list)
    for row in rows:
        apis = {api for match in row[1].match for api in match.get("api") or ("any",)}
        for api in apis:
            by_kind[api].append(row)
    seen = set()
    for same in by_kind.values():
        for one, other in combinations(same + by_kind.get("any", []), 2):
            key = frozenset((one[1].id, other[1].id))
            if len(key) == 2 and key not in seen:
                seen.add(key)
                yield one, other


def _between(one: Filed, other: Filed) -> Iterator[Problem]:
    first, second = covers(one[1], other[1]), covers(other[1], one[1])
    if first and second:
        yield from _alike(one, other)
    elif first:
        yield from _shadow(one, other)
    elif second:
        yield from _shadow(other, one)


def _alike(one: Filed, other: Filed) -> Iterator[Problem]:
    """Judge two entries about the very same devices."""
    (_, a), (file, b) = sorted((one, other), key=lambda row: row[1].id)
    both = overlap(a.action, b.action)
    if not both:
        return
    shared = ", ".join(both)
    if a.if_true != b.if_true:
        sure, tested = (a.id, b.id) if a.if_true == "applies" else (b.id, a.id)
        text = f"same devices as {a.id}: {sure} forbids {shared} at once, {tested} after a test"
        yield Problem("contradictory", b.id, file, text)
    else:
        yield Problem(
            "duplicate", b.id, file, f"same devices as {a.id}, and both rule out {shared}"
        )


def _shadow(wide: Filed, narrow: Filed) -> Iterator[Problem]:
    (_, a), (file, b) = wide, narrow
    is_decisive = a.if_true == "applies" or (a.if_true == b.if_true and _tests(a, b))
    is_unsure = _STRICT[a.if_unknown] < _STRICT[b.if_unknown]  # where versions are not known
    if is_decisive and not is_unsure and is_as_strong(a.action, b.action):
        text = f"{a.id} is true wherever it is, and does at least as much"
        yield Problem("shadowed", b.id, file, text)


_STRICT: Final = {"skipped": 0, "probe": 1, "applies": 2}


def _tests(wide: Entry, narrow: Entry) -> bool:
    """Say whether one entry's probe asks for all that another one's does."""
    if wide.probe is None or narrow.probe is None:
        return narrow.probe is None
    is_all = set(narrow.probe.tests) <= set(wide.probe.tests)
    return is_all and narrow.probe.runs <= wide.probe.runs


def _superseded(folder: Folder) -> Iterator[Problem]:
    known = {entry.id: entry for _, entry in folder.entries}
    retired = folder.envelope.get("retired_ids")
    gone = set(retired) if isinstance(retired, list) else set()
    for file, entry in folder.entries:
        for name in entry.source.get("supersedes", ()):
            if name not in known and name not in gone:
                text = f"{name} is no entry, and no retired one"
            elif name in known:
                text = f"{name} is still in use"
            else:
                continue
            yield Problem("supersedes", entry.id, file, text)
