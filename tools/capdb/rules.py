"""The rules of the lint, and what they look at.

Names of rules are stable. An error makes a database unfit to be published; a warning asks for a
second look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb.entries import Entry

ERROR, WARNING = "error", "warning"

RULES: Final[Mapping[str, tuple[str, str]]] = {
    "refused": (ERROR, "the library would not use the folder as it is"),
    "schema": (ERROR, "a file or entry breaks the schema"),
    "duplicate-id": (ERROR, "two entries have the same id"),
    "misplaced": (ERROR, "a condition leads out of its file's vendor or API"),
    "no-fixture": (ERROR, "an entry has no pair of fixtures, or a pair belongs to no entry"),
    "over-broad": (WARNING, "an entry takes levels away from a large share of all identities"),
    "must-match": (ERROR, "an entry is not true of the device that its fixture says it matches"),
    "must-not-match": (ERROR, "an entry is not false of the near miss of its fixture"),
    "shadowed": (ERROR, "another entry covers the same devices and does at least as much"),
    "duplicate": (ERROR, "two entries restrict the same things on the same devices alike"),
    "contradictory": (ERROR, "conditions exclude each other, or two entries gainsay each other"),
    "overlapping-intervals": (ERROR, "intervals of versions overlap, touch or are out of order"),
    "vendor-scheme": (ERROR, "the condition's devices never speak that version scheme"),
    "summary-differs": (ERROR, "the summary names a device that the condition does not"),
    "missing-evidence": (ERROR, "evidence does not say where it comes from"),
    "expired-review": (ERROR, "an entry is past its review date"),
    "unknown-kernel": (ERROR, "an entry disables a kernel variant that does not exist"),
    "supersedes": (ERROR, "an entry supersedes one that is not there, or that is still in use"),
    "double-fact": (ERROR, "a fact is left out, and used or left out a second time"),
    "missing-fact": (ERROR, "a fact is neither in an entry or note nor among those left out"),
    "stale-database": (WARNING, "the database is past the time it says it is valid until"),
}
"""Severity and meaning of every rule."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a rule found.

    Attributes
    ----------
    rule : str
        Key of `RULES`.
    entry : str
        Id of the entry; empty where it is about a file or the folder.
    file : str
        Path in the folder; empty where it is about the folder.
    text : str
        What is wrong, in words.
    """

    rule: str
    entry: str
    file: str
    text: str

    @property
    def severity(self) -> str:
        """``error`` or ``warning``."""
        return RULES[self.rule][0]

    def to_dict(self) -> dict[str, str]:
        """Return a JSON-ready dictionary."""
        return {**asdict(self), "severity": self.severity}

    def __str__(self) -> str:
        place = " ".join(part for part in (self.file, self.entry) if part)
        return f"{place or 'database'}: {self.rule}: {self.text}"


@dataclass(frozen=True, slots=True)
class Row:
    """One entry as it stands in its file; `entry` is None where it breaks the schema."""

    file: str
    api: str
    record: Any
    entry: Entry | None
    refusal: str = ""

    @property
    def id(self) -> str:
        """The id as written, or the place where there is none."""
        found = self.record.get("id") if isinstance(self.record, dict) else None
        return found if isinstance(found, str) else ""


@dataclass(frozen=True)
class Folder:
    """What the rules look at."""

    path: Path
    today: str
    rows: tuple[Row, ...]
    kernels: frozenset[str] | None = None
    envelope: Mapping[str, Any] = field(default_factory=dict)

    @property
    def entries(self) -> Iterator[tuple[str, Entry]]:
        """Entries that keep to the schema, with their files."""
        return ((row.file, row.entry) for row in self.rows if row.entry is not None)
