"""Probes that entries demand and that failed: each is tried once more, in a process of its own.

A test fails on a good device now and then, because memory was short or another program had the
driver. What fails twice counts. A process that dies in such a probe is a failure of it, not of the
device: the entry's restrictions apply then, and the probe is not run a third time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuedge.probing.events import demanded
from gpuedge.probing.judge import Transcript
from gpuedge.probing.quirks import CONFIRMED, FAILED, UNFINISHED
from gpuedge.probing.report import ProbeRow

PATIENCE = 1.5
"""Time that a second try is given, in times that the first one took."""


class Retries:
    """What is tried again of one candidate.

    Attributes
    ----------
    answers : dict
        By device, the entries whose probe is not to be run any more, and how it came out.
    rows : dict
        By device, the row that stands if there is no time to try again.
    needs_s : float
        Seconds that trying again takes; 0 where there is nothing to be tried again.
    """

    def __init__(self) -> None:
        self.answers: dict[int, dict[str, bool]] = {}
        self.rows: dict[int, ProbeRow] = {}
        self.needs_s = 0.0
        self._seen: dict[int, frozenset[str]] = {}

    def is_worth(self, left_s: float) -> bool:
        """Say whether there is time to try again what failed, if anything did."""
        return not self.needs_s or left_s > self.needs_s

    def sift(self, rows: Sequence[ProbeRow], transcript: Transcript) -> list[ProbeRow]:
        """Return the rows that stand; the devices of the others are to be tried again."""
        standing = []
        for row in rows:
            if row.index is None or not self._is_doubtful(row, row.index, transcript):
                standing.append(confirmed(row))
        self.needs_s = 0.0 if len(standing) == len(rows) else PATIENCE * transcript.seconds
        return standing

    def _is_doubtful(self, row: ProbeRow, index: int, transcript: Transcript) -> bool:
        has_died = row.status in {"crashed", "timeout"}
        failed = demanded(transcript.events, index) if has_died else failures(row)
        known = self._seen.get(index, frozenset())
        if failed <= known and not (has_died and failed):
            return False
        if failed <= known:  # it died of the same probe twice
            self.answers.setdefault(index, {}).update(dict.fromkeys(sorted(failed), False))
        self._seen[index] = known | failed
        self.rows[index] = row
        return True


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
