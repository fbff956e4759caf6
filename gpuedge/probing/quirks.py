"""What the capability database makes of a device under probe, from lookup to final restrictions.

An entry about crashes or hangs blocks at once; one about wrong numbers is evidence, and asks for
tests that confirm it or clear the device of it. How each entry came out is kept here. Knows nothing
of processes and opens nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuedge.capdb.classes import family
from gpuedge.capdb.identity.host import host_facts
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.judgement import Judgement, lookup
from gpuedge.core.reasons import Reason
from gpuedge.probing.report import ProbeRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuedge.backends.base import Candidate, DeviceInfo
    from gpuedge.capdb.entries import Demand

APPLIES = "applies"
CLEARED = "cleared"
FAILED = "failed"
CONFIRMED = "confirmed"
CUT = "cut"

OUTCOMES = (APPLIES, CLEARED, FAILED, CONFIRMED, CUT)
"""What can become of an entry: it applied without a test; its tests passed; they failed once; they
failed in a second process too; time was over before they were done."""

UNFINISHED = frozenset({FAILED, CUT})
"""Outcomes that another probe may change."""

MOST_WORDS = 200


class Quirks:
    """The entries about one device, and what has come of them so far.

    Parameters
    ----------
    info : DeviceInfo
    level : str
        Name of the backend.
    answers : mapping of str to bool
        Outcomes of required tests that earlier processes found, by entry: they are not run again.
    """

    def __init__(
        self, info: DeviceInfo, level: str, answers: Mapping[str, bool] | None = None
    ) -> None:
        self.level = level
        self.judgement: Judgement = lookup(info.identity)
        self.outcomes = dict.fromkeys(self.judgement.restrictions.entries, APPLIES)
        self.details: dict[str, str] = {}
        asked = {demand.entry for demand in self.demands}
        known = {name: passed for name, passed in (answers or {}).items() if name in asked}
        self.settle({n: (CLEARED if passed else CONFIRMED, "") for n, passed in known.items()})

    @property
    def demands(self) -> tuple[Demand, ...]:
        """Tests that are still to be run."""
        return self.judgement.demands

    def restricted(self, info: DeviceInfo) -> DeviceInfo:
        """Return the device as the backend is to open it."""
        found = self.judgement.restrictions
        return info.replace(disabled=found.features, limits=dict(found.limits))

    def settle(self, found: Mapping[str, tuple[str, str]]) -> None:
        """Note how required tests came out, and why; what did not pass applies from now on."""
        passed = {name: outcome == CLEARED for name, (outcome, _) in found.items()}
        self.judgement = self.judgement.after(passed)
        self.outcomes |= {name: outcome for name, (outcome, _) in found.items()}
        self.details |= {name: why for name, (_, why) in found.items()}

    def settle_all(self, outcome: str, detail: str = "") -> None:
        """Note the same outcome for all tests that are still to be run."""
        self.settle({demand.entry: (outcome, detail) for demand in self.demands})

    def reason(self) -> Reason | None:
        """Return why the level is blocked on this device, None if it is not."""
        names = blocking(self.judgement, self.level)
        return told(self.judgement, names, self.outcomes) if names else None

    def event(self) -> dict[str, Any]:
        """Return the fields of a device's event about restrictions."""
        told = {"reason": self._untested} if self._untested else {}
        return {"restrictions": self.judgement.restrictions.to_dict(), **told}

    @property
    def _untested(self) -> str:
        """Why the level is blocked, where nothing but a lack of time is to blame; empty if not."""
        names = blocking(self.judgement, self.level)
        if not names or any(self.outcomes.get(name) != CUT for name in names):
            return ""
        why = self.details.get(names[0]) or "time was over"
        asked = "asks for tests" if len(names) == 1 else "ask for tests"
        return (
            f"it could not be tested in time, and {', '.join(names)} {asked} ({why}): "
            f"{self._summary(names[0])}"
        )

    def evidence(self) -> dict[str, Any]:
        """Return what the row keeps of the entries; nothing where none came to anything."""
        if not self.outcomes:
            return {}
        rows = [
            {"id": name, "outcome": outcome, "summary": self._summary(name)}
            | ({"detail": self.details[name]} if self.details.get(name) else {})
            for name, outcome in sorted(self.outcomes.items())
        ]
        unfinished = not UNFINISHED.isdisjoint(self.outcomes.values())
        flags = {"is_unfinished": unfinished, "is_untested": bool(self._untested)}
        return {"entries": rows, **{name: True for name, is_set in flags.items() if is_set}}

    def _summary(self, name: str) -> str:
        return _summary(self.judgement, name)


def version(judgement: Judgement) -> str:
    """Return the version and digest of the database that was asked.

    >>> from gpuedge.capdb.database import of_entries
    >>> version(lookup({}, database=of_entries([])))
    '0'
    """
    digest = "" if judgement.database is None else judgement.database.digest
    number = str(judgement.database_version)
    return f"{number} {digest}" if digest else number


def valid_until(judgement: Judgement) -> str:
    """Return the first day on which an entry that may be about the device is to be reviewed.

    Entries that stay as they are on that day do not count, nor do those that forbid nothing, nor
    those that were passed over because theirs is gone by.
    """
    database = judgement.database
    if database is None:
        return ""
    counted = {"applies", "probe", "skipped"}
    entries = [database.entry(f.id) for f in judgement.relevant if f.becomes in counted]
    ends = [
        entry.review.review_by
        for entry in entries
        if entry.review.on_expiry != "keep"
        and not entry.action.is_empty
        and entry.review.review_by >= judgement.today
    ]
    return min(ends, default="")


def blocking(judgement: Judgement, level: str) -> list[str]:
    """Return the ids of the entries in force that take a whole level or backend away."""
    names = {level, family(level)}
    return [
        name
        for name in sorted(judgement.in_force)
        if judgement.actions[name].is_backend_off
        or not names.isdisjoint(judgement.actions[name].levels)
    ]


def told(
    judgement: Judgement, names: Iterable[str], outcomes: Mapping[str, str] | None = None
) -> Reason:
    """Return the reason of a blocked device: the ids, and what the first of them is about."""
    names = list(names)
    words = {CONFIRMED: " (confirmed by a test)", FAILED: " (its test failed)",
             CUT: " (no time was left for its test)"}  # fmt: skip
    how = words.get((outcomes or {}).get(names[0], ""), "")
    return Reason("quirk", f"{', '.join(names)}{how}: {_summary(judgement, names[0])}")


def _summary(judgement: Judgement, name: str) -> str:
    for finding in judgement.relevant:
        if finding.id == name:
            return finding.summary[:MOST_WORDS]
    return ""


def barred_row(candidate: Candidate) -> ProbeRow | None:
    """Return the row of a driver that may not even be loaded; None if it may.

    Only entries about crashes at load count, and only where what this machine tells of itself
    makes them true, whatever the driver would say. It is taken to be called without a layer: to
    load a layer is to load the driver under it.
    """
    who = replace(subject({**host_facts(), "api": candidate.backend}), layers=())
    judgement = lookup(who)
    sure = {
        f.id
        for f in judgement.relevant
        if f.result == "true" and f.effect == "crash_at_load" and f.becomes == APPLIES
    }
    names = [name for name in blocking(judgement, candidate.backend) if name in sure]
    if not names:
        return None
    reason = told(judgement, names)
    rows = [{"id": n, "outcome": APPLIES, "summary": _summary(judgement, n)} for n in names]
    return ProbeRow(
        device=candidate.backend,
        backend=candidate.backend,
        status="blocked",
        code=reason.code,
        reason=reason.sentence,
        name=Path(candidate.key).name or candidate.key,
        key=candidate.key,
        fingerprint=candidate.fingerprint,
        env=dict(candidate.env),
        evidence={"entries": rows},
        database=version(judgement),
        valid_until=valid_until(judgement),
    )
