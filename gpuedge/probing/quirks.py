"""What entries of the capability database ask of a device under probe, and what came of it.

An entry about crashes or hangs blocks at once; one about wrong numbers is evidence, and requires
tests (`gpuedge.probing.trials`) that confirm it or clear the device of it. How each entry came out
is kept here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuedge import backends
from gpuedge.capdb.identity.host import host_facts
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.judgement import Judgement, lookup
from gpuedge.core.reasons import Reason
from gpuedge.probing.protocol import APPLIES, CLEARED, CUT, FAILED
from gpuedge.probing.report import ProbeRow, driver_row

if TYPE_CHECKING:
    from gpuedge.backends.base import Candidate, DeviceInfo

MOST_WORDS = 200

HOW = {FAILED: " (its test failed)", CUT: " (no time was left for its test)"}


class Quirks:
    """The entries about one device, and what has come of them so far.

    `answers` are outcomes of required tests that are known already, by entry: they are not run.
    """

    def __init__(
        self, info: DeviceInfo, level: str, answers: Mapping[str, bool] | None = None
    ) -> None:
        self.level = level
        self.judgement: Judgement = lookup(info.identity)
        if backends.is_executor(level):  # entries are about drivers, not all that runs on a chip
            self.judgement = self.judgement.without_entries()
        self.outcomes = dict.fromkeys(self.judgement.restrictions.entries, APPLIES)
        self._details: dict[str, str] = {}
        asked = {demand.entry for demand in self.judgement.demands}
        known = {name: passed for name, passed in (answers or {}).items() if name in asked}
        self.settle({n: (CLEARED if passed else FAILED, "") for n, passed in known.items()})

    def settle(self, outcomes_of: Mapping[str, tuple[str, str]]) -> None:
        """Note how required tests came out, and why; what did not pass applies from now on."""
        self.judgement = self.judgement.after(
            {n: o == CLEARED for n, (o, _) in outcomes_of.items()}
        )
        self.outcomes |= {name: outcome for name, (outcome, _) in outcomes_of.items()}
        self._details |= {name: why for name, (_, why) in outcomes_of.items() if why}

    def settle_all(self, outcome: str, why: str) -> None:
        """Note the same outcome for all tests that are still to be run."""
        self.settle({demand.entry: (outcome, why) for demand in self.judgement.demands})

    def reason(self) -> Reason | None:
        """Return why the level is blocked on this device, None if it is not."""
        names = self.judgement.blocking(self.level)
        return block_reason(self.judgement, names, self.outcomes) if names else None

    def evidence(self) -> dict[str, Any]:
        """Return what the row keeps of the entries; nothing where none came to anything."""
        if not self.outcomes:
            return {}
        evidence: dict[str, Any] = {"entries": [
            {"id": name, "outcome": outcome, "summary": _summary(self.judgement, name)}
            | ({"detail": self._details[name]} if name in self._details else {})
            for name, outcome in sorted(self.outcomes.items())
        ]}  # fmt: skip
        return evidence | ({"is_unfinished": True} if CUT in self.outcomes.values() else {})


def version(judgement: Judgement) -> str:
    """Return the version and digest of the database that was asked."""
    digest = "" if judgement.database is None else judgement.database.digest
    return f"{judgement.database_version} {digest}".rstrip()


def block_reason(judgement: Judgement, names: Iterable[str], outcomes: Mapping[str, str]) -> Reason:
    """Return the reason of a blocked device: the ids, and what the first of them is about."""
    names = list(names)
    how = HOW.get(outcomes.get(names[0], ""), "")
    return Reason("quirk", f"{', '.join(names)}{how}: {_summary(judgement, names[0])}")


def _summary(judgement: Judgement, name: str) -> str:
    return next((f.summary[:MOST_WORDS] for f in judgement.relevant if f.id == name), "")


def barred_row(candidate: Candidate) -> ProbeRow | None:
    """Return the row of a driver that may not even be loaded; None if it may.

    Only entries about crashes at load count, and only where what this machine tells of itself
    makes them true, whatever the driver would say. It is taken to be called without a layer: to
    load a layer is to load the driver under it.
    """
    if backends.is_executor(candidate.backend):
        return None
    who = replace(subject({**host_facts(), "api": candidate.backend}), layers=())
    judgement = lookup(who)
    sure = {
        f.id
        for f in judgement.relevant
        if f.result == "true" and f.effect == "crash_at_load" and f.becomes == APPLIES
    }
    names = [name for name in judgement.blocking(candidate.backend) if name in sure]
    if not names:
        return None
    reason = block_reason(judgement, names, {})
    rows = [{"id": n, "outcome": APPLIES, "summary": _summary(judgement, n)} for n in names]
    return driver_row(
        candidate, "blocked", reason.code, reason.sentence, evidence={"entries": rows},
        database=version(judgement),
    )  # fmt: skip
