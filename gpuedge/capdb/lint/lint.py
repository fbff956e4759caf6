"""Finds entries that are valid and yet wrong: each rule is a fault that public lists really had.

>>> from gpuedge.capdb.lint.lint import lint
>>> [problem.rule for problem in lint(folder)]                                # doctest: +SKIP
['dead', 'over-broad']

Names of rules are stable. An error makes ``gpuedge db validate`` fail and a database unfit to be
published; a warning asks for a second look.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpuedge.capdb import source
from gpuedge.capdb.entries import Entry, parse
from gpuedge.capdb.lint.corpus import contents
from gpuedge.capdb.place import bad
from gpuedge.core.errors import DatabaseError

ERROR, WARNING = "error", "warning"

RULES: Final[Mapping[str, tuple[str, str]]] = {
    "refused": (ERROR, "the library would not use the folder as it is"),
    "schema": (ERROR, "a file or entry breaks the schema"),
    "unanchored-pattern": (ERROR, "a pattern does not say where a name begins and ends"),
    "super-linear-pattern": (ERROR, "a pattern cannot be matched in linear time"),
    "hex-without-0x": (ERROR, "an id of a device is not written as hexadecimal"),
    "duplicate-id": (ERROR, "two entries have the same id"),
    "misplaced": (ERROR, "a condition leads out of its file's vendor or API"),
    "dead": (ERROR, "an entry is true of no stored identity and does not say why"),
    "needless-no-fixture": (ERROR, "an entry says that no identity fits it, and one does"),
    "over-broad": (WARNING, "an entry takes levels away from a large share of all identities"),
    "must-match": (ERROR, "an identity that an entry must match is not matched, or not known"),
    "must-not-match": (ERROR, "a near miss is matched or unsure, or not known"),
    "shadowed": (ERROR, "another entry covers the same devices and does at least as much"),
    "duplicate": (ERROR, "two entries restrict the same things on the same devices alike"),
    "contradictory": (ERROR, "conditions exclude each other, or two entries gainsay each other"),
    "overlapping-intervals": (ERROR, "intervals of versions overlap, touch or are out of order"),
    "vendor-scheme": (ERROR, "the condition's devices never speak that version scheme"),
    "summary-differs": (ERROR, "the summary names a device that the condition does not"),
    "missing-evidence": (ERROR, "evidence does not say where it comes from"),
    "expired-review": (ERROR, "an entry is past its review date"),
    "drops-crash": (ERROR, "an entry about a crash or hang lapses with its review"),
    "unknown-kernel": (ERROR, "an entry disables a kernel variant that does not exist"),
    "supersedes": (ERROR, "an entry supersedes one that is not there, or that is still in use"),
    "double-fact": (ERROR, "a fact is left out, and an entry rests on it or it is left out twice"),
    "missing-fact": (ERROR, "a fact is neither in an entry nor among those left out"),
    "stale-database": (WARNING, "the database is past the time it says it is valid until"),
}
"""Severity and meaning of every rule."""


class Problem(NamedTuple):
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
        return {**self._asdict(), "severity": self.severity}

    def __str__(self) -> str:
        place = " ".join(part for part in (self.file, self.entry) if part)
        return f"{place or 'database'}: {self.rule}: {self.text}"


class Row(NamedTuple):
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


def lint(
    folder: Path, *, today: str | None = None, kernels: Collection[str] | None = None
) -> list[Problem]:
    """Return what is wrong with the entries of a folder; it need not be sealed.

    Parameters
    ----------
    folder : Path
    today : str, optional
        ISO date that reviews are compared with.
    kernels : collection of str, optional
        Ids of the kernel variants there are; without them ``unknown-kernel`` finds nothing.

    Raises
    ------
    DatabaseError (GE-600)
        The folder, its identities or its facts cannot be read at all. What is wrong with single
        files of entries is told as problems.
    """
    from gpuedge.capdb.lint import checks_entry, checks_folder, checks_pairs, checks_text

    day = today or time.strftime("%Y-%m-%d", time.gmtime())
    path = Path(folder).absolute()
    rows: list[Row] = []
    problems: list[Problem] = []
    if not path.is_dir():
        raise bad(path, "it is no folder")
    source.state(path)  # sizes first: nothing large is read
    for name in source.names(path):
        if name.startswith(f"{source.ENTRIES}/"):
            try:
                rows += _rows(path, name)
            except DatabaseError as error:
                why = (error.known or error.what).removeprefix(f"{path / name}: ")
                problems.append(Problem("schema", "", name, why))
    known = None if kernels is None else frozenset(kernels)
    about = Folder(path, day, tuple(rows), known, _envelope(path))
    for checks in (checks_text, checks_entry, checks_pairs, checks_folder):
        problems += checks.check(about)
    return sorted(set(problems), key=lambda p: (p.severity, p.rule, p.entry, p.file, p.text))


def _rows(folder: Path, name: str) -> Iterator[Row]:
    path = folder / name
    body = source.document(path, contents(path))
    _, api, file = name.split("/")
    head = {"schema": source.ENTRIES_SCHEMA, "api": api, "vendor": file.removesuffix(".json")}
    listed = body.pop("entries", None)
    if body != head or not isinstance(listed, list):
        raise bad(path, f"besides a list of entries it must hold exactly {head}")
    for record in listed:
        try:
            yield Row(name, api, record, parse(record, api))
        except ValueError as error:
            yield Row(name, api, record, None, str(error))
        except RecursionError:
            yield Row(name, api, record, None, "it is nested too deeply")


def _envelope(folder: Path) -> Mapping[str, Any]:
    path = folder / source.FILE
    try:
        return source.document(path, contents(path))
    except DatabaseError:
        return {}


def fitness(folder: Path, *, kernels: Collection[str] | None = None) -> list[str]:
    """Return the errors as texts: what keeps a database from being published."""
    found = lint(folder, kernels=kernels)
    return [str(problem) for problem in found if problem.severity == ERROR]
