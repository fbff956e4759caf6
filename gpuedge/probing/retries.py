"""Second chances: what failed on a device is tried once more, in a process of its own.

A good device fails now and then, because memory was short or another program had the driver; what
fails twice counts. That holds for the known answers, for a process that dies, and for probes that
entries demand: one that kills its process is a failure of it, not of the device, so the entry's
restrictions apply then, and the probe is not run a third time. A hang is not tried again: it has
cost the time already. Numbers that were wrong once have to be right in many more runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuedge.core.reasons import Reason
from gpuedge.probing.events import demanded
from gpuedge.probing.judge import Transcript, is_cut_off
from gpuedge.probing.quirks import CONFIRMED, FAILED, UNFINISHED
from gpuedge.probing.report import ProbeRow

PATIENCE = 1.5
"""Time that a second try is given, in times that the first one took."""

HARDER_PATIENCE = 3.0
"""The same where it is to run each kernel many times."""

REFUSALS = frozenset({"open-failed", "kernel-failed", "out-of-memory", "device-lost"})
"""Codes of broken devices that may be whole the next time; the others are missing something."""

SECOND = "on the second attempt"


class Retries:
    """What is tried again of one candidate.

    Attributes
    ----------
    answers : dict
        By device, the entries whose probe is not to be run any more, and how it came out.
    rows : dict
        By device, the row that stands if there is no time to try again.
    waiting : set of int
        Devices that are to be tried again.
    needs_s : float
        Seconds that trying again takes; 0 where there is nothing to be tried again.
    """

    def __init__(self) -> None:
        self.answers: dict[int, dict[str, bool]] = {}
        self.rows: dict[int | None, ProbeRow] = {}
        self.waiting: set[int] = set()
        self.needs_s = 0.0
        self._seen: dict[int, frozenset[str]] = {}
        self._failed: dict[int | None, ProbeRow] = {}
        self._noted: dict[int | None, ProbeRow] = {}

    @property
    def harder(self) -> list[int]:
        """Devices whose numbers were wrong once: the next time they must be right in more runs."""
        first = {**self._noted, **self._failed}
        return sorted(i for i, row in first.items() if i is not None and row.status == "wrong")

    def is_worth(self, left_s: float) -> bool:
        """Say whether there is time to try again what failed, if anything did."""
        return not self.needs_s or left_s > self.needs_s

    def note(self, rows: Sequence[ProbeRow]) -> None:
        """Take failures as first ones that are tried again anyway, since others may be at fault."""
        self._noted |= {row.index: row for row in rows if has_failed(row)}

    def sift(self, rows: Sequence[ProbeRow], transcript: Transcript) -> list[ProbeRow]:
        """Return the rows that stand; the devices of the others are to be tried again."""
        standing = []
        for row in rows:
            asked = row.index is not None and self._is_doubtful(row, row.index, transcript)
            if asked or self._is_first_failure(row):
                self.rows[row.index] = row
                self.waiting |= set() if row.index is None else {row.index}
            else:
                standing.append(confirmed(self._final(row)))
                self.waiting.discard(-1 if row.index is None else row.index)
        is_again = len(standing) < len(rows) or bool(self.waiting)
        times = HARDER_PATIENCE if self.harder else PATIENCE
        self.needs_s = times * transcript.seconds if is_again else 0.0
        return standing

    def left_over(self) -> dict[int | None, ProbeRow]:
        """Return the rows of what was not tried again; those of failures say so."""
        return {i: unfinished(r) if has_failed(r) else r for i, r in self.rows.items()}

    def _is_first_failure(self, row: ProbeRow) -> bool:
        known = row.index in self._failed or row.index in self._noted
        if known or not has_failed(row):
            return False
        self._failed[row.index] = row
        return True

    def _final(self, row: ProbeRow) -> ProbeRow:
        """Return what is said of a device after its second attempt, if it had two."""
        first = self._failed.get(row.index) or self._failed.get(None)
        noted = self._noted.get(row.index)
        if first is None and noted is not None and noted.status == "wrong" and row.is_usable:
            first = noted
        if first is None or row.status == "blocked":
            return row
        if row.is_usable:
            evidence = {**row.evidence, "first_attempt": brief(first)}
            return row.replace(reason=Reason("ok", SECOND).sentence, evidence=evidence)
        if first.index is None and row.index is not None:
            return row
        if is_cut_off(row):
            return unfinished(first)
        return first.replace(evidence={**first.evidence, "second_attempt": brief(row)})

    def _is_doubtful(self, row: ProbeRow, index: int, transcript: Transcript) -> bool:
        has_died = row.status in {"crashed", "timeout"}
        failed = demanded(transcript.events, index) if has_died else failures(row)
        known = self._seen.get(index, frozenset())
        if failed <= known and not (has_died and failed):
            return False
        if failed <= known:  # it died of the same probe twice
            self.answers.setdefault(index, {}).update(dict.fromkeys(sorted(failed), False))
        self._seen[index] = known | failed
        return True


def has_failed(row: ProbeRow) -> bool:
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
    """Return the entries whose probe failed in the process that a row comes from."""
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


def _entries(row: ProbeRow) -> list[Mapping[str, Any]]:
    found = row.evidence.get("entries")
    listed = found if isinstance(found, list) else []
    return [e for e in listed if isinstance(e, dict) and isinstance(e.get("id"), str)]
