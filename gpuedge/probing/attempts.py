"""What is known so far of one level of a driver, and what of it is to be tried once more.

Pure: it takes transcripts and gives rows. What failed is tried again, in a process of its own; that
holds for the known answers, for a process that dies, and for tests that entries of the capability
database require. A test that kills its process twice is answered "failed" for the third, under the
entry's restrictions: it is a failure of the test, not of the device. A hang is not tried again, it
has cost the time already, unless other levels ran before it in the same process. Numbers that were
wrong once have to be right in many more runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuedge.backends.base import Candidate
from gpuedge.core.reasons import Reason
from gpuedge.probing.events import required
from gpuedge.probing.judge import Transcript, is_cut_off, judge, unreached
from gpuedge.probing.quirks import CONFIRMED, FAILED, UNFINISHED
from gpuedge.probing.report import ProbeRow
from gpuedge.safety.child import Ending

PATIENCE, HARDER_PATIENCE = 1.5, 3.0
"""Time that a second try is given, in times that the first one took; the latter where it is to run
each kernel many times."""

REFUSALS = frozenset({"open-failed", "kernel-failed", "out-of-memory", "device-lost"})
"""Codes of broken devices that may be whole the next time; the others are missing something."""

FOR_SURE = frozenset({"ok", "absent", "blocked"})
"""Statuses that are no worse for what ran in the same child before."""

SECOND = "on the second attempt"


class Level:
    """One candidate: its rows that stand, and first failures that wait for another try.

    Attributes
    ----------
    candidate : Candidate
    is_alone : bool
        True where it is not to share a child any more.
    took_s : float
        What its last process had.
    """

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.is_alone = False
        self.took_s = 0.0
        self._rows: dict[int | None, ProbeRow] = {}
        self._first: dict[int | None, ProbeRow] = {}
        self._died_of: dict[int | None, frozenset[str]] = {}
        self._answers: dict[int, dict[str, bool]] = {}
        self._again: set[int | None] = set()
        self._listing: Transcript | None = None
        self._pending: list[int] = []
        self._is_begun = self._is_over = False

    @property
    def is_untried(self) -> bool:
        """True if something of it has not been tried at all."""
        return not self._is_over and (not self._is_begun or bool(self._left()))

    @property
    def awaiting(self) -> bool:
        """True if something is to be tried again."""
        return not self._is_over and bool(self._again)

    @property
    def skip(self) -> frozenset[int]:
        """Devices that have their verdict; while others have none also those to be tried again."""
        known = {i for i in self._rows if i is not None} - self._again
        if self._left():
            known |= {i for i in self._again if i is not None}
        return frozenset(i for i in known if i is not None)

    @property
    def harder(self) -> list[int]:
        """Devices whose numbers were wrong once: the next time they must be right in more runs."""
        return sorted(i for i, r in self._first.items() if i is not None and r.status == "wrong")

    def request(self) -> dict[str, Any]:
        """Return what a child is told of it."""
        told = {"skip": sorted(self.skip), "answers": self._answers, "harder": self.harder}
        return {**self.candidate.as_dict(), "env": dict(self.candidate.env), **told}

    def take(self, transcript: Transcript, *, is_shared: bool) -> None:
        """Judge a transcript; `is_shared` where another level may be at fault for its end."""
        self._is_begun, self.took_s = True, transcript.seconds
        outcome = judge(self.candidate, transcript)
        for row in outcome.rows:
            self._again.discard(row.index)
            if self._is_doubtful(row, transcript, is_shared=is_shared):
                self._again.add(row.index)
                self._first.setdefault(row.index, row)
                self.is_alone = True
            else:
                self._rows[row.index] = self._final(row)
        if transcript.first("devices") is not None:
            self._listing, self._pending = transcript, outcome.pending
            self._again.discard(None)  # it is past where it failed
        # One that dies twice before it lists its devices, or has no news, will get no further.
        self._is_over = None in self._rows or not outcome.rows
        self.is_alone = self.is_alone or bool(outcome.pending)

    def rows(self, given_s: float) -> list[ProbeRow]:
        """Return its rows; what it never came to has a row that says so."""
        found = dict(self._rows)
        for index in self._again:
            first = self._first[index]
            found[index] = unfinished(first) if _has_failed(first) else first
        if self._listing is not None:
            for row in unreached(self.candidate, self._listing, self._left()).rows:
                found.setdefault(row.index, row)
        if any(index is not None for index in found):
            found.pop(None, None)
        if not found:
            nothing = Transcript([], 0, Ending("deadline"), "", 0.0, deadline_s=given_s)
            return judge(self.candidate, nothing).rows
        return [row for _, row in sorted(found.items(), key=lambda item: item[0] or 0)]

    def _left(self) -> list[int]:
        """Return the devices that were listed and have not been tried."""
        return [i for i in self._pending if i not in self._rows and i not in self._again]

    def _is_doubtful(self, row: ProbeRow, transcript: Transcript, *, is_shared: bool) -> bool:
        """Say whether a row is to be tried again before it stands."""
        if self._kills_twice(row, transcript):
            return True
        if row.index in self._first:
            return False
        at_fault = row.status not in FOR_SURE if is_shared else _has_failed(row)
        return at_fault or bool(failures(row))

    def _kills_twice(self, row: ProbeRow, transcript: Transcript) -> bool:
        """Note what a device died of; True where a test killed its process for the second time."""
        if row.index is None or row.status not in {"crashed", "timeout"}:
            return False
        died_of = required(transcript.events, row.index)
        before = self._died_of.get(row.index, frozenset())
        self._died_of[row.index] = before | died_of
        twice = (died_of & before) - self._answers.get(row.index, {}).keys()
        if twice:
            self._answers.setdefault(row.index, {}).update(dict.fromkeys(sorted(twice), False))
        return bool(twice)

    def _final(self, row: ProbeRow) -> ProbeRow:
        """Return what is said of a device after its second attempt, if it had two."""
        first = self._first.get(row.index) or self._first.get(None)
        if first is None:
            return row
        if failures(first):
            row = confirmed(row)
        if not _has_failed(first) or row.status == "blocked":
            return row
        if row.is_usable:
            evidence = {**row.evidence, "first_attempt": brief(first)}
            return row.replace(reason=Reason("ok", SECOND).sentence, evidence=evidence)
        if first.index is None and row.index is not None:
            return row
        if is_cut_off(row):
            return unfinished(first)
        return first.replace(evidence={**first.evidence, "second_attempt": brief(row)})


def retry_s(level: Level) -> float:
    """Return the seconds that trying a level again may take."""
    return level.took_s * (HARDER_PATIENCE if level.harder else PATIENCE)


def _has_failed(row: ProbeRow) -> bool:
    """Say whether a row tells of a failure that may not happen again."""
    is_refusal = row.status == "broken" and row.code in REFUSALS and row.index is not None
    return row.status in {"wrong", "crashed"} or is_refusal


def brief(row: ProbeRow) -> dict[str, Any]:
    """Return what is kept of an attempt that does not stand."""
    return {"status": row.status, "code": row.code, "reason": row.reason}


def unfinished(row: ProbeRow) -> ProbeRow:
    """Return a failure for whose second attempt there was no time: it is not believed for long."""
    return row.replace(evidence={**row.evidence, "is_unfinished": True})


def failures(row: ProbeRow) -> frozenset[str]:
    """Return the entries whose test failed in the process that a row comes from."""
    return frozenset(entry["id"] for entry in _entries(row) if entry.get("outcome") == FAILED)


def confirmed(row: ProbeRow) -> ProbeRow:
    """Return a row with what failed again said to be confirmed."""
    if not failures(row):
        return row
    entries = [
        {**entry, "outcome": CONFIRMED} if entry.get("outcome") == FAILED else entry
        for entry in _entries(row)
    ]
    evidence: dict[str, Any] = {**row.evidence, "entries": entries}
    if not any(entry.get("outcome") in UNFINISHED for entry in entries):
        evidence.pop("is_unfinished", None)
    return row.replace(evidence=evidence)


def _entries(row: ProbeRow) -> Sequence[Mapping[str, Any]]:
    found = row.evidence.get("entries")
    listed = found if isinstance(found, list) else []
    return [e for e in listed if isinstance(e, dict) and isinstance(e.get("id"), str)]
