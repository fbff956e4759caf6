"""Entries about drivers: frozen records, and the strict reading of them.

Reading agrees with ``entries.schema.json`` and is stricter where JSON Schema cannot say it: dates
exist, ranges are not empty, patterns are matched in linear time (`gpuedge.capdb.patterns`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, TypeVar

from gpuedge.capdb import patterns
from gpuedge.capdb.fields import (
    APIS,
    EFFECTS,
    FAMILIES,
    FEATURES,
    KINDS_OF_DEVICE,
    LAYERS,
    LEVELS,
    LIMITS,
    OPERATING_SYSTEMS,
    SCHEMES,
    STATES,
    STORAGES,
    TESTS,
    VENDORS,
)
from gpuedge.capdb.parts import Action, Demand, DriverMatch, Match, Probe, Review
from gpuedge.capdb.reading import Reader

__all__ = ["Action", "Demand", "DriverMatch", "Entry", "Match", "Probe", "Review", "parse"]

T = TypeVar("T")

SEVERE: Final = frozenset({"crash_at_load", "crash", "hang", "corrupt_pipeline_cache"})
"""Effects that no probe may be risked for: their entries apply at once."""

MAX_RUNS: Final = 1024
DEFAULT_TESTS: Final = ("standard", "kernels")
DEFAULT_RUNS: Final = 16
"""The probe of an entry that names none, or no number of runs."""


@dataclass(frozen=True)
class Entry:
    """One row of the database. `source` is the record as it was read."""

    id: str
    rev: int
    state: str
    effect: str
    assurance: str
    summary: str
    match: tuple[Match, ...]
    exceptions: tuple[Match, ...]
    on_unknown: str
    action: Action
    probe: Probe | None
    review: Review
    evidence: tuple[Mapping[str, Any], ...]
    must_match: tuple[str, ...]
    must_not_match: tuple[str, ...]
    no_fixture: str | None
    supersedes: tuple[str, ...]
    api: str
    source: Mapping[str, Any]

    @property
    def is_severe(self) -> bool:
        """Whether the effect is a crash, a hang or a cache that ruins later starts."""
        return self.effect in SEVERE

    @cached_property
    def sole(self) -> Match | None:
        """Its conjunction where there is one and no exception, as in most entries; else None."""
        return self.match[0] if len(self.match) == 1 and not self.exceptions else None

    @cached_property
    def demand(self) -> Demand:
        """The probe that it asks for where it asks for one."""
        if self.probe is None:
            return Demand(self.id, DEFAULT_TESTS, DEFAULT_RUNS)
        return Demand(self.id, self.probe.tests, self.probe.runs)

    @cached_property
    def is_note(self) -> bool:
        """Whether it only explains and restricts nothing."""
        return self.action.is_empty

    @cached_property
    def is_in_use(self) -> bool:
        """Whether its state lets it come to anything."""
        return self.state in {"canary", "active"}

    @cached_property
    def if_true(self) -> str:
        """What it comes to on a device that it is about."""
        if self.action.is_empty:
            return "applies"
        if self.state == "canary":
            return "probe"
        may_clear = self.probe is not None and self.probe.may == "confirm_and_clear"
        is_sure = self.is_severe or self.effect == "slow" or not may_clear
        return "applies" if is_sure else "probe"

    @cached_property
    def if_unknown(self) -> str:
        """What it comes to on a device of a known maker that it may or may not be about."""
        if self.on_unknown == "skip" or self.action.is_empty:
            return "skipped"
        if self.on_unknown == "apply":
            return self.if_true
        # A device need not be tested for what it hardly costs to leave out.
        is_cheap = self.probe is None and not self.action.blocks and self.state != "canary"
        return "applies" if is_cheap else "probe"


def parse(record: Any, api: str = "any") -> Entry:
    """Read one entry.

    Parameters
    ----------
    record : mapping
        As in a file of entries.
    api : str
        The API of its file: what conditions ask that name none. ``any`` asks nothing.

    Raises
    ------
    ValueError
        It breaks the schema; the message begins with the path of what is wrong.
    """
    read = Reader(record, "")
    identity = read.text("id", pattern="id")
    effect = read.word("effect", EFFECTS)
    entry = Entry(
        id=identity,
        rev=read.whole("rev", least=1),
        state=read.word("state", STATES),
        effect=effect,
        assurance=read.word(
            "assurance", ("reproduced", "vendor_confirmed", "reported", "imported")
        ),
        summary=read.text("summary", 20, 300),
        match=tuple(_match(r, api) for r in read.records("match", most=64)),
        exceptions=tuple(_match(r, api) for r in read.records("except", most=64, is_optional=True)),
        on_unknown=read.word("on_unknown", ("apply", "probe", "skip"), unknown(effect)),
        action=_one(_action(read.record("action"))),
        probe=_probe(read.optional("probe")),
        review=_review(read.record("review")),
        evidence=tuple(_evidence(r) for r in read.records("evidence")),
        supersedes=read.ids("supersedes"),
        api=api,
        source=record,
        **_tests(read.record("tests")),
    )
    read.done()
    _agree(entry)
    return entry


def unknown(effect: str) -> str:
    """Return what an entry does by default where it cannot be told whether it matches."""
    if effect in SEVERE:
        return "apply"
    return "skip" if effect == "slow" else "probe"


def _agree(entry: Entry) -> None:
    """Refuse what the schema's conditions between fields refuse."""
    if not entry.action.blocks:
        return
    if entry.effect == "slow":
        raise ValueError("action: what is merely slow may not be disabled")
    if entry.effect in {"wrong_result", "unexplained"} and entry.probe is None:
        raise ValueError(f"probe: {entry.effect} may disable nothing whole without a probe")


@lru_cache(maxsize=1 << 14)
def _one(part: T) -> T:
    """Return the first part that was equal to this one: what is one object is judged once."""
    return part


def _match(read: Reader, api: str) -> Match:
    read.require_any()
    found = {name: _READ[name](read, name) for name in read.source if name in _READ}
    read.done()
    if api != "any":
        found.setdefault("api", frozenset({api}))
    made: Match = _one(Match(**found))
    return made


def _renderer(read: Reader, name: str) -> patterns.Pattern:
    return read.made(patterns.compile, name, read.text(name, 3, patterns.MAX_PATTERN))


_READ: Final[Mapping[str, Callable[[Reader, str], Any]]] = {
    "api": lambda read, name: read.words(name, APIS),
    "level": lambda read, name: read.words(name, LEVELS),
    "os": lambda read, name: read.words(name, OPERATING_SYSTEMS),
    "android_sdk": Reader.span,
    "security_patch": Reader.dates,
    "layer": lambda read, name: read.words(name, LAYERS),
    "soc": Reader.folded,
    "brand": Reader.folded,
    "device": Reader.folded,
    "vendor": lambda read, name: read.words(name, VENDORS),
    "driver_id": Reader.numbers,
    "mesa": Reader.truth,
    "family": lambda read, name: read.words(name, FAMILIES),
    "model": Reader.span,
    "device_ids": Reader.device_ids,
    "renderer": _renderer,
    "driver": lambda read, name: _driver(read.record(name)),
    "without_feature": lambda read, name: read.any_words(name, FEATURES),
    "device_type": lambda read, name: read.any_words(name, KINDS_OF_DEVICE),
}


def _driver(read: Reader) -> DriverMatch:
    read.require_any(2)
    made = DriverMatch(
        scheme=read.word("scheme", SCHEMES),
        intervals=tuple(
            r.versions() for r in read.records("intervals", most=1024, is_optional=True)
        ),
        builds=read.folded("builds") or frozenset(),
        built=read.dates("built"),
    )
    read.done()
    return made


def _action(read: Reader) -> Action:
    read.require_any()
    none: frozenset[str] = frozenset()
    limits = read.optional("limits")
    made = Action(
        disable_backend=read.only_true("disable_backend"),
        disable_levels=read.words("disable_levels", LEVELS) or none,
        disable_features=read.words("disable_features", FEATURES) or none,
        disable_kernels=read.words("disable_kernels", None) or none,
        disable_storages=read.words("disable_storages", STORAGES) or none,
        limits=() if limits is None else _limits(limits),
        demote=read.only_true("demote"),
        note=read.text("note", 10, 300, is_optional=True) or "",
    )
    read.done()
    return made


def _limits(read: Reader) -> tuple[tuple[str, int], ...]:
    read.require_any()
    found = tuple((name, read.whole(name, least=1)) for name in LIMITS if read.has(name))
    read.done()
    return found


def _probe(read: Reader | None) -> Probe | None:
    if read is None:
        return None
    tests = read.texts("tests", words=TESTS)
    runs = read.whole("runs", least=2, most=MAX_RUNS) if read.has("runs") else DEFAULT_RUNS
    made = Probe(tests or (), runs, read.word("may", ("confirm", "confirm_and_clear")))
    read.done()
    return made


def _review(read: Reader) -> Review:
    made = Review(
        owner=read.text("owner"),
        added=read.text("added", pattern="date"),
        review_by=read.text("review_by", pattern="date"),
        on_expiry=read.word("on_expiry", ("keep", "probe", "drop")),
        last_reproduced=read.text("last_reproduced", pattern="date", is_optional=True),
    )
    read.done()
    return made


def _evidence(read: Reader) -> Mapping[str, Any]:
    kinds = ("imported_rule", "issue", "conformance_case", "farm_run", "vendor_note")
    read.word("type", kinds)
    read.text("fact", pattern="fact", is_optional=True)
    read.text("commit", pattern="commit", is_optional=True, is_nullable=True)
    read.text("path", 0, 400, is_optional=True, is_nullable=True)
    for name in ("project", "rule", "case"):
        read.text(name, is_optional=True)
    if read.has("bugs"):
        read.free_texts("bugs", shortest=1, longest=400)
    read.text("seen", pattern="date", is_optional=True)
    read.done()
    return read.source


def _tests(read: Reader) -> dict[str, Any]:
    found = {
        "must_match": read.free_texts("must_match"),
        "must_not_match": read.free_texts("must_not_match", least=1),
        "no_fixture": read.text("no_fixture", is_optional=True),
    }
    read.done()
    return found
