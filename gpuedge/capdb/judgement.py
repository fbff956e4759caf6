"""What the capability database says of one device: findings, restrictions and demanded probes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from gpuedge.capdb.classes import family
from gpuedge.capdb.database import Database, load
from gpuedge.capdb.entries import FAMILIES, Demand, Entry
from gpuedge.capdb.identity.subject import Subject, subject
from gpuedge.capdb.identity.versions import show
from gpuedge.capdb.matching import (
    FALSE,
    Finding,
    Truth,
    becomes,
    finding,
    is_stranger,
    result,
)
from gpuedge.capdb.restrict import Restrictions, combine
from gpuedge.core import config
from gpuedge.core.errors import ConfigError

if TYPE_CHECKING:
    from gpuedge.core.identity import Identity

SCHEMA: Final = "gpuedge.db.why/1"
ALL: Final = "all"
"""The word of the setting ``ignore`` that stands for every entry."""

_ORDER = {"true": 0, "unknown": 1, "false": 2}


Hit = tuple[Entry, Truth, str, str]
"""An entry that is or may be about a device: the value, what decided it, and what it comes to."""


@dataclass(frozen=True)
class Judgement:
    """What the database says of one device.

    Attributes
    ----------
    subject : Subject
        Who the device is.
    database_version : int
    restrictions : Restrictions
        What applies now. Actions of entries that demand a probe are not in it; see `after`.
    demands : tuple of Demand
        Probes that entries ask for before the device is used.
    notes : tuple of str
        What else a reader should know, such as ignored ids that name no entry.
    """

    subject: Subject
    database_version: int
    restrictions: Restrictions
    demands: tuple[Demand, ...]
    notes: tuple[str, ...] = ()
    hits: tuple[Hit, ...] = field(default=(), repr=False, compare=False)
    actions: Mapping[str, Restrictions] = field(default_factory=dict, repr=False)
    in_force: frozenset[str] = field(default=frozenset(), repr=False)
    database: Database | None = field(default=None, repr=False, compare=False)
    ignored: frozenset[str] = frozenset()
    today: str = ""

    @cached_property
    def relevant(self) -> tuple[Finding, ...]:
        """Of the entries that are, or may be, about this device: the true ones first, by id."""
        return _sorted(finding(*hit) for hit in self.hits)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Of every entry of the database: the true ones first, then unknown, then false; by id."""
        there = {finding.id for finding in self.relevant}
        every = self.database or ()
        others = (entry for entry in every if entry.id not in there)
        hits = (_hit(entry, self.subject, self.ignored, self.today) for entry in others)
        return _sorted((*self.relevant, *(finding(*hit) for hit in hits)))

    def blocks(self, level: str) -> str | None:
        """Return the id of an entry that forbids a level (or backend) on this device, or None."""
        names = _names(level)
        for name in sorted(self.in_force):
            action = self.actions[name]
            if action.is_backend_off or not names.isdisjoint(action.levels):
                return name
        return None

    def after(self, outcomes: Mapping[str, bool]) -> Judgement:
        """Return the judgement once probes have run.

        Parameters
        ----------
        outcomes : mapping of str to bool
            Per id of a demanding entry, whether every test passed. A probe that could not run has
            not passed. Demands that are not named stay.
        """
        answered = {d.entry: outcomes[d.entry] for d in self.demands if d.entry in outcomes}
        failed = frozenset(name for name, is_passed in answered.items() if not is_passed)
        kept = {d.entry for d in self.demands if not d.may_clear}
        in_force = self.in_force | failed | (kept & set(answered))
        return replace(
            self,
            in_force=in_force,
            restrictions=combine(self.actions[name] for name in in_force),
            demands=tuple(d for d in self.demands if d.entry not in answered),
        )

    def unprobed(self) -> Judgement:
        """Return the judgement where no probe can be run: what is demanded counts as failed."""
        return self.after({d.entry: False for d in self.demands})

    def to_dict(self, *, all: bool = False) -> dict[str, Any]:
        """Return a JSON-ready dictionary; with `all`, every entry of the database is in it."""
        blocking = next((n for n in sorted(self.in_force) if self.actions[n].blocks), None)
        return {
            "schema": SCHEMA,
            "database": {
                "version": self.database_version,
                "digest": "" if self.database is None else self.database.digest,
                "entries": 0 if self.database is None else len(self.database),
            },
            "subject": _plain(self.subject),
            "driver_versions": {
                scheme: {"version": list(version), "text": show(scheme, version)}
                for scheme, version in sorted(self.subject.versions.items())
            },
            "findings": [f.to_dict() for f in (self.findings if all else self.relevant)],
            "restrictions": self.restrictions.to_dict(),
            "blocked_by": blocking,
            "demands": [d.to_dict() for d in self.demands],
            "notes": list(self.notes),
        }


def _names(level: str) -> set[str]:
    """Return a level as entries may name it: of a device string, its backend too."""
    return {level, family(level)}


def _is_elsewhere(action: Restrictions, who: Subject) -> bool:
    """Say whether an action takes away levels only, and not the one that is asked about."""
    return who.level is not None and action.is_only_about_others(_names(who.level))


def _plain(subject: Subject) -> dict[str, Any]:
    """Return a subject's fields, JSON-ready; the record it was read from is left out."""
    found = {f.name: getattr(subject, f.name) for f in fields(subject) if f.name != "raw"}
    return {name: _json(value) for name, value in found.items()}


def _json(value: Any) -> Any:
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    if isinstance(value, Mapping):
        return {str(k): _json(v) for k, v in value.items()}
    return [_json(v) for v in value] if isinstance(value, (tuple, list)) else value


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: (_ORDER[f.result], f.id)))


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
    who = record if isinstance(record, Subject) else subject(record)
    words = config.get("ignore").value if ignore is None else _listed(ignore)
    ignored, day = frozenset(word.lower() for word in words), today or _today()
    hits = tuple(_hits(base, who, ignored, day))
    actions = {e.id: e.action for e, _, _, comes_to in hits if comes_to in {"applies", "probe"}}
    in_force = frozenset(
        e.id for e, _, _, comes_to in hits if comes_to == "applies" and not e.action.is_empty
    )
    demands = sorted((e.demand for e, *_, to in hits if to == "probe"), key=lambda d: d.entry)
    return Judgement(
        who, base.version, combine(actions[name] for name in in_force), tuple(demands),
        (*who.notes, *_strangers(base, ignored)), hits, actions, in_force, base, ignored, day,
    )  # fmt: skip


def _hits(base: Database, subject: Subject, ignored: frozenset[str], today: str) -> Iterator[Hit]:
    is_known = subject.vendor is not None or is_stranger(subject)
    is_of_vendor = subject.family is None or FAMILIES.get(subject.family) == subject.vendor
    for entry in base.about(subject.vendor or "") if is_known and is_of_vendor else base:
        hit = _hit(entry, subject, ignored, today)
        if hit[1] is not FALSE:
            yield hit


def _hit(entry: Entry, subject: Subject, ignored: frozenset[str], today: str) -> Hit:
    value, by = result(entry, subject)
    is_ignored = ALL in ignored or entry.id in ignored
    comes_to = becomes(entry, value, subject, today, is_ignored=is_ignored)
    if comes_to in {"applies", "probe"} and _is_elsewhere(entry.action, subject):
        comes_to = "none"
    return entry, value, by, comes_to


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


def _strangers(database: Database, ignored: frozenset[str]) -> tuple[str, ...]:
    """Return a note per ignored id that names no entry; it may be one of another version."""
    missing = sorted(word for word in ignored if word != ALL and word not in database)
    return tuple(f"ignored id {word!r} is not in this database" for word in missing)


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
