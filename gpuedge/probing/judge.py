"""From what a probe process left behind to rows: pure functions, no process, no clock.

A process probes the candidates that one driver offers (its levels), one after the other; what is
said here of a process is said of its part in one candidate, as `parts` cuts it out. The child
writes one JSON line per event to a private file, each with the token it was given. Lines without it
(a driver scribbling, a torn last line) are counted and otherwise ignored. Success needs every
device's result, the line ``done``, and a clean end of the process; nothing less.

How an end without ``done`` is judged:

* a signal (or a Windows exception code) at any step: ``crashed`` / ``crashed``;
* an exit, with any status, once the driver was being touched: ``crashed`` / ``exited``, since some
  drivers call ``exit(0)`` when they give up;
* an exit before that, or no event with the right token at all: ``broken`` / ``no-token``;
* killed by us: ``timeout`` / ``deadline``. Where the driver was not yet being touched, or was still
  working and had had little time, the reason says so and the evidence has ``is_cut_off``: that is
  no verdict on the driver, and is not remembered.

What failed is tried again, in a process of its own (`Level`). That holds for the known answers, for
a process that dies, and for tests that entries of the capability database require. A test that
kills its process twice is answered "failed" for the third, under the entry's restrictions: it is a
failure of the test, not of the device. A hang is not tried again, it has cost the time already,
unless other levels ran before it in the same process. Numbers that were wrong once have to be right
in more runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuedge.backends.base import Candidate
from gpuedge.core.reasons import Reason
from gpuedge.core.text import plain
from gpuedge.probing.protocol import (
    CONFIRMED,
    FAILED,
    HARDER_RUNS,
    RUNS,
    STEPS,
    UNFINISHED,
    Event,
    required,
)
from gpuedge.probing.report import ProbeRow
from gpuedge.safety.child import CLEAN, Ending

OURS = {"start", "prepare"}
"""Steps in which no driver is asked for anything: an exit there is gpuedge's own failure."""

UNTOUCHED = OURS | {"load"}
"""Steps before a driver's own code runs: a hang there is no news about the driver."""

HUNG_S = 1.0
"""A driver that did nothing for so long at the deadline hangs; another is only slow."""

LEAVING_S = 0.5
"""The same for a process that has nothing left to do but to end, which takes some milliseconds."""

FAIR_SHARE = 0.5
"""Share of the deadline after which a driver that is not done is too slow, whatever held it up."""


MOST_NAME, MOST_REASON, MOST_EVIDENCE = 200, 500, 4096
"""Characters that are kept of a driver's text."""

MOST_DEPTH = 8
"""Nesting of evidence; ours has three levels."""

OUT_OF_REACH = {"no-child": ("blocked", "no-child"), "unknown": ("broken", "no-token")}
"""Status and code of endings that say nothing about the driver."""


PATIENCE, HARDER_PATIENCE = 1.5, 3.0
"""Time that a second try is given, in times that the first one took; the latter where it is to run
each kernel many times."""

REFUSALS = frozenset({"open-failed", "kernel-failed", "out-of-memory", "device-lost"})
"""Codes of broken devices that may be whole the next time; the others are missing something."""

FOR_SURE = frozenset({"ok", "absent", "blocked"})
"""Statuses that are no worse for what ran in the same child before."""

SECOND = "on the second attempt"


@dataclass(frozen=True, slots=True)
class Transcript:
    """Everything one probe process left behind; `deadline_s` is that of all processes together.

    `seconds` is how long it had. `idle_s` is for how long at its end it gave no sign of life, did
    not compute, and was not kept from it by others either; `cpu_s` how much processor time it used
    in all. None where not known. `is_stalled`: it was ended early, because others waited for it.
    """

    events: Sequence[Event]
    junk: int
    ending: Ending
    tail: str
    seconds: float
    skipped: frozenset[int] = frozenset()
    deadline_s: float | None = None
    idle_s: float | None = None
    cpu_s: float | None = None
    is_stalled: bool = False

    @property
    def is_hung(self) -> bool:
        """True if it did nothing when it was ended, and for so long that it never would."""
        enough = HUNG_S if self.first("done") is None else LEAVING_S
        return self.idle_s is None or self.idle_s >= enough

    @property
    def used_s(self) -> float:
        """Seconds it had a chance to use: not those it waited for its turn on a busy machine."""
        has_slept = (self.idle_s or 0.0) > FAIR_SHARE * self.seconds
        return self.seconds if has_slept or self.cpu_s is None else min(self.cpu_s, self.seconds)

    @property
    def last_step(self) -> Event:
        """The last step the process announced."""
        return next((e for e in reversed(self.events) if e["event"] == "step"), {"step": "start"})

    def first(self, kind: str) -> Event | None:
        """Return the first event of a kind."""
        return next((e for e in self.events if e["event"] == kind), None)

    @property
    def is_complete(self) -> bool:
        """True if the process wrote ``done`` and then ended well."""
        clean = self.ending.how == "exit" and self.ending.code == 0
        return clean and self.first("done") is not None


def parts(transcript: Transcript, skipped: Sequence[frozenset[int]]) -> list[Transcript | None]:
    """Cut a process's transcript into one for each of its candidates, None for those not reached.

    `skipped` are the devices left out of each. A candidate whose results were complete while
    another was under way ended well. What ends the process between two of them is the end of the
    one before, and what ends it after all are complete is the end of each.
    """
    events: list[list[Event]] = [[] for _ in skipped]
    for event in transcript.events:
        at = event.get("at", 0)
        if type(at) is int and 0 <= at < len(events):
            events[at].append(event)
    last = max((i for i, own in enumerate(events) if own), default=0)
    is_over = any(e["event"] == "done" for e in events[-1])
    made: list[Transcript | None] = []
    for i, own in enumerate(events):
        if not own and (i > last or transcript.ending == CLEAN):
            made.append(None if i else transcript)
            continue
        is_done = any(e["event"] == "done" for e in own)
        died = is_over or (i == last and transcript.ending.how in ("exit", "signal"))
        ending = CLEAN if is_done and not died else transcript.ending
        begin = float(own[0].get("when") or 0.0) if own and i else 0.0
        made.append(
            replace(
                transcript, events=own, ending=ending, skipped=skipped[i],
                seconds=max(0.0, transcript.seconds - begin),
            )
        )  # fmt: skip
    return made


@dataclass(slots=True)
class Outcome:
    """Rows of one process; `pending` are devices it listed but did not get to."""

    rows: list[ProbeRow]
    pending: list[int] = field(default_factory=list)


def judge(candidate: Candidate, transcript: Transcript) -> Outcome:
    """Turn one process's transcript into rows (device strings are given later)."""
    failed = transcript.first("failed")
    if failed is not None:
        return Outcome([_row(candidate, transcript, failed)])
    listed = transcript.first("devices")
    if listed is None:
        return Outcome([_row(candidate, transcript, _ended(transcript))])
    devices = [d for d in listed["devices"] if d["index"] not in transcript.skipped]
    results = {e["index"]: e for e in transcript.events if e["event"] == "device"}
    late = bool(results) and transcript.first("done") is not None and not transcript.is_complete
    # Being busy with leaving when time ran out is no fault: the results were there in time.
    late = late and (transcript.ending.how != "deadline" or transcript.is_hung)
    at = transcript.last_step.get("index")
    rows: list[ProbeRow] = []
    pending: list[int] = []
    for device in devices:
        index = device["index"]
        if index in results and not (late and results[index]["status"] == "ok"):
            rows.append(_row(candidate, transcript, results[index], device))
        elif late or index == at or transcript.is_complete:
            rows.append(_row(candidate, transcript, _ended(transcript), device))
        else:
            pending.append(index)
    if pending and not rows and at is None:  # died after listing, before the first device
        return Outcome([_row(candidate, transcript, _ended(transcript))])
    return Outcome(rows, pending)


def unreached(candidate: Candidate, transcript: Transcript, indices: Sequence[int]) -> Outcome:
    """Return rows for devices that were listed, but whose turn came too late."""
    listed = transcript.first("devices") or {"devices": []}
    verdict = _verdict("timeout", "deadline", "its turn did not come in time", "open")
    rows = [
        _row(candidate, transcript, verdict, device)
        for device in listed["devices"]
        if device["index"] in indices
    ]
    return Outcome(rows)


def _ended(transcript: Transcript) -> Event:
    """Return the verdict on whatever was under way when the process ended."""
    ending = transcript.ending
    step = transcript.last_step["step"]
    if transcript.first("done") is not None:
        step = "exit"
    where = STEPS[step]
    if ending.how == "deadline":
        return _late(transcript, step)
    if ending.how in OUT_OF_REACH:
        return _verdict(*OUT_OF_REACH[ending.how], ending.what, step)
    if ending.how == "signal":
        return _verdict("crashed", "crashed", f"{ending.what} {where}", step, ending.what)
    if transcript.first("robbed") is not None:
        return _verdict("crashed", "exited", f"it closed files that are not its own {where}", step)
    if not transcript.events or step in OURS or transcript.is_complete:
        return _verdict("broken", "no-token", _why_no_token(transcript), step)
    return _verdict("crashed", "exited", f"exit status {ending.code} {where}", step)


def unstartable(candidate: Candidate, why: str) -> list[ProbeRow]:
    """Return the row of a candidate for which no process can be had."""
    return judge(candidate, Transcript([], 0, Ending("no-child", 0, why), "", 0.0)).rows


def is_cut_off(row: ProbeRow) -> bool:
    """Say whether a row tells only of this attempt, which ran out of time before the driver did."""
    return row.evidence.get("is_cut_off") is True


def _late(transcript: Transcript, step: str) -> Event:
    """Return the verdict on what was not done in time: it hung, it was slow, or never had a chance.

    Only the first, and what had its fair share of the time, is a fact about the driver.
    """
    limit = transcript.deadline_s
    of = "" if limit is None else f" of {limit:g} s"
    if step in UNTOUCHED:
        reason = f"the driver was not reached before the deadline{of}"
    elif transcript.is_hung:
        return _verdict("timeout", "deadline", f"it hung {STEPS[step]}", step)
    else:
        had = f"it had {transcript.seconds:.1f} s and was at work {STEPS[step]}"
        reason = f"the driver was not done before the deadline{of}: {had}"
    verdict = {**_verdict("timeout", "deadline", "", step), "reason": reason}
    had_time = limit is not None and transcript.used_s >= FAIR_SHARE * limit
    if step in OURS or not had_time:
        verdict["evidence"] = {**verdict["evidence"], "is_cut_off": True}
    return verdict


def _verdict(status: str, code: str, detail: str, step: str, signal: str = "") -> Event:
    evidence = {"step": step, "signal": signal} if signal else {"step": step}
    return {"status": status, "code": code, "detail": detail, "evidence": evidence}


def _why_no_token(transcript: Transcript) -> str:
    if transcript.junk:
        return f"{transcript.junk} lines of its result do not carry the token"
    said = transcript.tail.strip().splitlines()
    text = f"exit status {transcript.ending.code}"
    return f"{text}, last words: {said[-1][:200]}" if said else text


def _row(
    candidate: Candidate,
    transcript: Transcript,
    verdict: Event,
    device: Mapping[str, Any] | None = None,
) -> ProbeRow:
    evidence: dict[str, Any] = dict(verdict.get("evidence") or {})
    status = verdict["status"]
    if status not in {"ok", "absent"} and transcript.tail:
        evidence["output_tail"] = transcript.tail
    identity = dict(device["identity"]) if device else {}
    reason = Reason(verdict["code"], str(verdict.get("detail") or ""))
    return ProbeRow(
        device=candidate.backend,
        backend=candidate.backend,
        status=status,
        code=verdict["code"],
        reason=plain(str(verdict.get("reason") or reason.sentence), MOST_REASON),
        name=plain(str(identity.get("name") or _file_name(candidate.key)), MOST_NAME),
        identity=identity,
        is_software=bool(device["is_software"]) if device else None,
        caps=dict(verdict.get("caps") or {}),
        key=candidate.key,
        fingerprint=candidate.fingerprint,
        env=dict(candidate.env),
        index=device["index"] if device else None,
        seconds=round(float(verdict.get("seconds") or transcript.seconds), 6),
        evidence=_shown(evidence, MOST_DEPTH),
        model=plain(str(device.get("model") or ""), MOST_NAME) if device else "",
        restrictions=dict(verdict.get("restrictions") or {}),
        database=_database(transcript) if device else "",
        valid_until=str(device.get("valid_until") or "") if device else "",
    )


def _database(transcript: Transcript) -> str:
    listed = transcript.first("devices")
    return plain(str(listed.get("database") or ""), MOST_NAME) if listed else ""


def _shown(value: Any, depth: int) -> Any:
    """Return evidence with what drivers wrote into it as it can be shown."""
    if isinstance(value, str):
        return plain(value, MOST_EVIDENCE, lines=True)
    if isinstance(value, dict) and depth:
        return {plain(str(k)): _shown(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list) and depth:
        return [_shown(v, depth - 1) for v in value]
    return None if isinstance(value, (dict, list)) else value


def _file_name(key: str) -> str:
    return key.replace("\\", "/").rstrip("/").rpartition("/")[2] or key


class Level:
    """One candidate: its rows that stand, and first failures that wait for another try.

    One that `is_alone` is not to share a child any more; `took_s` is what its last process had.
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
    def was_wrong(self) -> bool:
        """True if numbers were wrong once: the next time they must be right in more runs."""
        return any(row.status == "wrong" for row in self._first.values())

    def request(self) -> dict[str, Any]:
        """Return what a child is told of it."""
        runs = HARDER_RUNS if self.was_wrong else RUNS
        told = {"skip": sorted(self.skip), "answers": self._answers, "runs": runs}
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
    return level.took_s * (HARDER_PATIENCE if level.was_wrong else PATIENCE)


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
