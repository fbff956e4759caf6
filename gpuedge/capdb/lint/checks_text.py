"""Rules about how an entry is written, which hold of entries that break the schema too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpuedge.capdb import patterns
from gpuedge.capdb.lint.lint import Folder, Problem, Row
from gpuedge.capdb.reading import SHAPES


def check(folder: Folder) -> Iterator[Problem]:
    """Yield what is written wrongly."""
    for row in folder.rows:
        found = [*_patterns(row), *_ids(row)]
        yield from found
        if row.refusal and not found:
            yield Problem("schema", row.id, row.file, row.refusal)
    counts = Counter(row.id for row in folder.rows if row.id)
    for row in folder.rows:
        if counts[row.id] > 1:
            others = f"{counts[row.id]} entries have this id"
            yield Problem("duplicate-id", row.id, row.file, others)


def _conditions(row: Row) -> Iterator[dict[str, Any]]:
    if isinstance(row.record, dict):
        for name in ("match", "except"):
            listed = row.record.get(name)
            yield from (
                (m for m in listed or () if isinstance(m, dict)) if isinstance(listed, list) else ()
            )


def _patterns(row: Row) -> Iterator[Problem]:
    for condition in _conditions(row):
        text = condition.get("renderer")
        why = patterns.check(text) if isinstance(text, str) else None
        if why is None or not isinstance(text, str):
            continue
        is_anchored = len(text) > 2 and text[0] == "^" and text[-1] == "$"
        rule = "super-linear-pattern" if is_anchored else "unanchored-pattern"
        yield Problem(rule, row.id, row.file, f"{text[:80]!r}: {why}")


def _ids(row: Row) -> Iterator[Problem]:
    for condition in _conditions(row):
        listed = condition.get("device_ids")
        for one in listed if isinstance(listed, list) else ():
            for text in one.values() if isinstance(one, dict) else (one,):
                if not isinstance(text, str) or not SHAPES["hex32"].fullmatch(text):
                    shown = f"device_ids: {str(text)[:40]!r} is not 0x and lower-case digits"
                    yield Problem("hex-without-0x", row.id, row.file, shown)
