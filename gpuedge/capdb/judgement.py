"""What the capability database says of one device: findings, restrictions and demanded probes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from gpuedge.capdb.database import Database, load
from gpuedge.capdb.entries import FAMILIES, Demand
from gpuedge.capdb.identity.subject import Subject, subject
from gpuedge.capdb.identity.versions import show
from gpuedge.capdb.matching import ALL, FALSE, Finding, finding, is_stranger, names_of, result
from gpuedge.capdb.restrict import Restrictions, combine
from gpuedge.core import config
from gpuedge.core.errors import ConfigError
from gpuedge.core.text import nearest

if TYPE_CHECKING:
    from gpuedge.core.identity import Identity

SCHEMA: Final = "gpuedge.db.why/1"


@dataclass(frozen=True)
class Judgement:
    """What the database says of one device.

    Attributes
    ----------
    subject : Subject
        Who the device is.
    restrictions : Restrictions
        What applies now. Actions of entries that demand a probe are not in it; see `after`.
    demands : tuple of Demand
        Probes that entries ask for before the device is used.
    notes : tuple of str
        What else a reader should know, such as ignored ids that name no entry.
    relevant : tuple of Finding
        Of the entries that are, or may be, about this device: the true ones first, by id.
    """

    subject: Subject
    restrictions: Restrictions
    demands: tuple[Demand, ...]
    notes: tuple[str, ...]
    relevant: tuple[Finding, ...] = field(repr=False)
    actions: Mapping[str, Restrictions] = field(repr=False)
    in_force: frozenset[str] = field(repr=False)
    database: Database = field(repr=False, compare=False)
    ignored: frozenset[str]
    today: str

    @property
    def database_version(self) -> int:
        """The number of the database that was asked."""
        return self.database.version

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Of every entry of the database: the true ones first, then unknown, then false; by id."""
        return _sorted(
            finding(e, self.subject, result(e, self.subject), self.today, self.ignored)
            for e in self.database
        )

    def blocking(self, level: str) -> list[str]:
        """Return the ids of the entries that forbid a level (or backend) on this device, sorted."""
        names = names_of(level)
        return [
            name
            for name in sorted(self.in_force)
            if self.actions[name].is_backend_off or not names.isdisjoint(self.actions[name].levels)
        ]

    def blocks(self, level: str) -> str | None:
        """Return the id of the first entry that forbids a level (or backend), or None."""
        return next(iter(self.blocking(level)), None)

    def after(self, outcomes: Mapping[str, bool]) -> Judgement:
        """Return the judgement once probes have run.

        Parameters
        ----------
        outcomes : mapping of str to bool
            Per id of a demanding entry, whether every test passed. A probe that could not run has
            not passed. Demands that are not named stay.
        """
        answered = {d.entry: outcomes[d.entry] for d in self.demands if d.entry in outcomes}
        in_force = self.in_force | {name for name, is_passed in answered.items() if not is_passed}
        return replace(
            self,
            in_force=in_force,
            restrictions=combine(self.actions[name] for name in in_force),
            demands=tuple(d for d in self.demands if d.entry not in answered),
        )

    def without_entries(self) -> Judgement:
        """Return the judgement of something that no entry can be about."""
        return replace(
            self, restrictions=Restrictions(), demands=(), relevant=(), actions={},
            in_force=frozenset(),
        )  # fmt: skip

    def unprobed(self) -> Judgement:
        """Return the judgement where no probe can be run: what is demanded counts as failed."""
        return self.after({d.entry: False for d in self.demands})

    def to_dict(self, *, all: bool = False) -> dict[str, Any]:
        """Return a JSON-ready dictionary; with `all`, every entry of the database is in it."""
        blocking = next((n for n in sorted(self.in_force) if self.actions[n].forbids_a_level), None)
        return {
            "schema": SCHEMA,
            "database": {
                "version": self.database.version,
                "digest": self.database.digest,
                "entries": len(self.database),
            },
            "subject": _plain(self.subject),
            "driver_versions": {
                scheme: {"version": list(version), "text": show(scheme, version)}
                for scheme, version in sorted(self.subject.versions.items())
            },
            "findings": [asdict(f) for f in (self.findings if all else self.relevant)],
            "restrictions": self.restrictions.to_dict(),
            "blocked_by": blocking,
            # a test that passes always takes the action of its entry away
            "demands": [
                {**asdict(d), "tests": list(d.tests), "may_clear": True} for d in self.demands
            ],
            "notes": list(self.notes),
        }


def _plain(subject: Subject) -> dict[str, Any]:
    """Return a subject's fields, JSON-ready; the record it was read from is left out."""
    facts = {f.name: getattr(subject, f.name) for f in fields(subject) if f.name != "raw"}
    return {name: _json(value) for name, value in facts.items()}


def _json(value: Any) -> Any:
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    if isinstance(value, Mapping):
        return {str(k): _json(v) for k, v in value.items()}
    return [_json(v) for v in value] if isinstance(value, (tuple, list)) else value


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    order = ("true", "unknown", "false")
    return tuple(sorted(findings, key=lambda f: (order.index(f.result), f.id)))


def lookup(
    record: Mapping[str, Any] | Identity | Subject,
    *,
    database: Database | None = None,
    ignore: Iterable[str] | str | None = None,
    today: str | None = None,
) -> Judgement:
    """Return what the capability database says of a device.

    Parameters
    ----------
    record : mapping, Identity or Subject
        The device, as drivers report it: the keys of `Identity`, or of a saved record.
    database : Database, optional
        The one in use where none is given.
    ignore : iterable of str, or str, optional
        Ids of entries that are not to count, ``all`` for every one; as one text, with commas or
        spaces between them. The setting ``ignore`` where none are given. Case does not matter.
    today : str, optional
        ISO date that reviews are compared with.

    Raises
    ------
    DatabaseError (GE-600)
        The database in use cannot be read.
    ConfigError (GE-101)
        `ignore` holds something else than texts.
    """
    base = load() if database is None else database
    where = base.folder if database is None else None
    who = record if isinstance(record, Subject) else subject(record, place=where)
    words = config.get("ignore").value if ignore is None else _listed(ignore)
    ignored = frozenset(word.lower() for word in words)
    day = today or time.strftime("%Y-%m-%d", time.gmtime())
    findings = _sorted(_found(base, who, ignored, day))
    entries = {f.id: base.entry(f.id) for f in findings if f.becomes in {"applies", "probe"}}
    actions = {name: entry.action for name, entry in entries.items()}
    in_force = frozenset(f.id for f in findings if f.becomes == "applies")
    demands = sorted(f.id for f in findings if f.becomes == "probe")
    return Judgement(
        who, combine(actions[name] for name in in_force),
        tuple(entries[name].demand for name in demands), (*who.notes, *_strangers(base, ignored)),
        findings, actions, in_force, base, ignored, day,
    )  # fmt: skip


def _found(
    base: Database, subject: Subject, ignored: frozenset[str], today: str
) -> Iterator[Finding]:
    """Judge what may be about a device: most entries certainly are not."""
    for entry in base.about(_known(subject)):
        verdict = result(entry, subject)
        if verdict[0] is not FALSE:
            yield finding(entry, subject, verdict, today, ignored)


def _known(subject: Subject) -> dict[str, frozenset[str]]:
    """Return what is known of conditions that ask for one of some words."""
    is_known = subject.vendor is not None or is_stranger(subject)
    is_of_vendor = subject.family is None or FAMILIES.get(subject.family) == subject.vendor
    told = {
        "vendor": (subject.vendor or "",) if is_known and is_of_vendor else None,
        "api": None if subject.apis is None else subject.apis | subject.hidden_apis,
        "os": None if subject.os is None else (subject.os,),
        "layer": None if subject.layers is None else subject.layers or ("native",),
    }
    return {name: frozenset(words) for name, words in told.items() if words is not None}


def _listed(ignore: Iterable[str] | str) -> tuple[str, ...]:
    """Return the ids in an argument. Raises ConfigError where they are none."""
    if isinstance(ignore, str):
        return tuple(ignore.replace(",", " ").split())
    words = tuple(ignore) if isinstance(ignore, Iterable) else (ignore,)
    for word in words:
        if not isinstance(word, str):
            raise ConfigError(
                f"lookup() cannot ignore {word!r}.",
                asked_by="ignore",
                known="ids of entries are texts, such as 'adreno-0001'",
            )
    return words


def unknown_ids() -> dict[str, str]:
    """Return the ids of the setting ``ignore`` that name no entry, and what may help.

    Raises
    ------
    DatabaseError (GE-600)
        The database in use cannot be read.
    """
    words = [word for word in config.get("ignore").value if word.lower() != ALL]
    known = {entry.id for entry in load()} if words else set()
    unknown = sorted(word for word in words if word.lower() not in known)
    return {w: nearest(w.lower(), known) or "gpuedge db show lists them" for w in unknown}


def _strangers(database: Database, ignored: frozenset[str]) -> tuple[str, ...]:
    """Return a note per ignored id that names no entry; it may be one of another version."""
    missing = sorted(word for word in ignored if word != ALL and word not in database)
    return tuple(f"ignored id {word!r} is not in this database" for word in missing)
