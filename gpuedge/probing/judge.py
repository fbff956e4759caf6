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
* killed by us: ``timeout`` / ``deadline``. It hung if it did nothing for a second, and it was too
  slow if it used up its own budget of processor time, `BUDGET_S`. Else the caller's deadline cut it
  off: that is no verdict on the driver, has ``is_unfinished`` as evidence, and is not remembered.

What failed is tried once more, alone in a process of its own (`LevelResult`), and only what fails
twice counts. A hang is not tried again, it has cost the time already, unless other levels ran
before it in the same process. A device that died of a test which an entry of the capability
database requires is tried again without that test, under the entry's restrictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuedge.backends.base import Candidate
from gpuedge.core.reasons import Reason
from gpuedge.core.text import plain
from gpuedge.probing.protocol import HARDER_RUNS, RUNS, STEPS, DeviceTold
from gpuedge.probing.report import MOST_NAME, ProbeRow, driver_row
from gpuedge.safety.channel import ROBBED, Event
from gpuedge.safety.child import CLEAN, Ending

OURS = {"start", "prepare"}
"""Steps in which no driver is asked for anything: what goes wrong there is gpuedge's own doing."""

HUNG_S = 1.0
"""A driver that did nothing for so long at the deadline hangs."""

LEAVING_S = 0.5
"""The same for a process that has nothing left to do but to end, which takes some milliseconds."""

BUDGET_S = 20.0
"""A level that computed for so long and is not done is too slow. Software rasterisers whose cache
of shaders is empty need one or two seconds of a fast processor."""

OUT_OF_REACH = {"no-child": ("blocked", "no-child"), "unknown": ("broken", "no-token")}
"""Status and code of endings that say nothing about the driver."""

MOST_REASON, MOST_EVIDENCE = 500, 4096
"""Characters that are kept of a driver's text."""

MOST_DEPTH = 8
"""Nesting of evidence; ours has three levels."""

FOR_SURE = frozenset({"ok", "absent", "blocked"})
"""Statuses that a second attempt would not change."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """Everything one probe process left behind; `deadline_s` is that of all processes together.

    `seconds` is how long it had. `idle_s` is for how long at its end it gave no sign of life, did
    not compute, and was not kept from it by others either; `cpu_s` how much processor time it used.
    None where not known. `is_stalled`: it was ended early, because others waited for it.
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
        return (self.seconds if self.idle_s is None else self.idle_s) >= enough

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
        return self.ending == CLEAN and self.first("done") is not None


def parts(transcript: Transcript, skipped: Sequence[frozenset[int]]) -> list[Transcript | None]:
    """Cut a process's transcript into one for each of its candidates, None for those not reached.

    `skipped` are the devices left out of each. A candidate whose results were complete while
    another was under way ended well. What ends the process between two of them is the end of the
    one before, and what ends it after all are complete is the end of each.
    """
    events: list[list[Event]] = [[] for _ in skipped]
    for event in transcript.events:
        if 0 <= (at := event.get("at") or 0) < len(events):
            events[at].append(event)
    last = max((i for i, own in enumerate(events) if own), default=0)
    is_over = any(e["event"] == "done" for e in events[-1])
    parts_: list[Transcript | None] = []
    for i, own in enumerate(events):
        if not own and (i > last or transcript.ending == CLEAN):
            parts_.append(None if i else transcript)
            continue
        is_done = any(e["event"] == "done" for e in own)
        died = is_over or (i == last and transcript.ending.how in ("exit", "signal"))
        ending = CLEAN if is_done and not died else transcript.ending
        first: Event = own[0] if own and i else {}
        had_s = transcript.seconds - float(first.get("when") or 0.0)
        used = transcript.cpu_s
        used = None if used is None else used - float(first.get("cpu") or 0.0)
        part = replace(transcript, events=own, ending=ending, skipped=skipped[i], cpu_s=used)
        parts_.append(replace(part, seconds=max(0.0, had_s)))
    return parts_


def judge(candidate: Candidate, transcript: Transcript) -> tuple[list[ProbeRow], list[ProbeRow]]:
    """Turn one process's transcript into rows (device strings are given later).

    The second list is of devices that it listed but did not get to.
    """
    failed = transcript.first("failed")
    if failed is not None:
        return [_row(candidate, transcript, failed)], []
    listed = transcript.first("devices")
    if listed is None:
        return [_row(candidate, transcript, _ended(transcript))], []
    results = {e["index"]: e for e in transcript.events if e["event"] == "device"}
    late = bool(results) and transcript.first("done") is not None and not transcript.is_complete
    # Being busy with leaving when time ran out is no fault: the results were there in time.
    late = late and (transcript.ending.how != "deadline" or transcript.is_hung)
    at = transcript.last_step.get("index")
    not_reached = _verdict(
        "timeout", "deadline", "its turn did not come in time", "open", is_unfinished=True
    )
    rows: list[ProbeRow] = []
    pending: list[ProbeRow] = []
    for device in listed["devices"]:
        index = device.index
        if index in transcript.skipped:
            continue
        if index in results and not (late and results[index]["status"] == "ok"):
            rows.append(_row(candidate, transcript, results[index], device))
        elif late or index == at or transcript.is_complete:
            rows.append(_row(candidate, transcript, _ended(transcript), device))
        else:
            pending.append(_row(candidate, transcript, not_reached, device))
    if pending and not rows and at is None:  # died after listing, before the first device
        return [_row(candidate, transcript, _ended(transcript))], []
    return rows, pending


def without_child(
    candidate: Candidate, ending: Ending, deadline_s: float | None = None
) -> list[ProbeRow]:
    """Return the row of a candidate for which there was no process, and why."""
    said = ending.what if ending.how == "exit" else ""  # elsewhere it is in the reason anyhow
    return judge(candidate, Transcript([], 0, ending, said, 0.0, deadline_s=deadline_s))[0]


def _ended(transcript: Transcript) -> Event:
    """Return the verdict on whatever was under way when the process ended."""
    ending = transcript.ending
    step = "exit" if transcript.first("done") is not None else transcript.last_step["step"]
    where = STEPS[step]
    if ending.how == "deadline":
        return _late(transcript, step)
    if ending.how in OUT_OF_REACH:
        return _verdict(*OUT_OF_REACH[ending.how], ending.what, step)
    if ending.how == "signal":
        short = ", which the system sends where memory is short" * (ending.what == "SIGKILL")
        said = f"{ending.what} {where}{short}"
        return _verdict("crashed", "crashed", said, step, signal=ending.what)
    if not transcript.events or step in OURS or transcript.is_complete:
        return _verdict("broken", "no-token", _why_no_token(transcript), step)
    robbed = "it closed files that are not its own"
    what = robbed if ending.code == ROBBED else f"exit status {ending.code}"
    return _verdict("crashed", "exited", f"{what} {where}", step)


def _late(transcript: Transcript, step: str) -> Event:
    """Return the verdict on what was not done in time: it hung, was too slow, or was cut off."""
    limit = transcript.deadline_s
    of = "" if limit is None else f" of {limit:g} s"
    if transcript.is_hung and step not in OURS:
        return _verdict("timeout", "deadline", f"it hung {STEPS[step]}", step)
    if (transcript.cpu_s or 0.0) >= BUDGET_S and step not in OURS:
        slow = f"it computed for {transcript.cpu_s:.0f} s and was at work {STEPS[step]}"
        return _verdict("timeout", "deadline", slow, step)
    if step in {*OURS, "load"}:
        reason = f"the driver was not reached before the deadline{of}"
    else:
        had = f"it had {transcript.seconds:.1f} s and was at work {STEPS[step]}"
        reason = f"the driver was not done before the deadline{of}: {had}"
    cut = _verdict("timeout", "deadline", "", step, is_unfinished=True)
    return {**cut, "reason": reason}


def _verdict(status: str, code: str, detail: str, step: str, **evidence: Any) -> Event:
    return {
        "status": status, "code": code, "detail": detail, "evidence": {"step": step, **evidence},
    }  # fmt: skip


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
    device: DeviceTold | None = None,
) -> ProbeRow:
    evidence: dict[str, Any] = dict(verdict.get("evidence") or {})
    status, code = verdict["status"], verdict["code"]
    if status not in {"ok", "absent"} and transcript.tail:
        evidence["output_tail"] = transcript.tail
    reason = verdict.get("reason") or Reason(code, str(verdict.get("detail") or "")).sentence
    row = driver_row(
        candidate, status, code, plain(str(reason), MOST_REASON),
        caps=dict(verdict.get("caps") or {}),
        seconds=round(float(verdict.get("seconds") or transcript.seconds), 6),
        evidence=_shown(evidence, MOST_DEPTH),
        restrictions=dict(verdict.get("restrictions") or {}),
    )  # fmt: skip
    if device is None:
        return row
    listed = transcript.first("devices") or {}
    identity = dict(device.identity)
    return row.replace(
        name=plain(str(identity.get("name") or row.name), MOST_NAME),
        identity=identity,
        is_software=device.is_software,
        index=device.index,
        model=plain(device.model or "", MOST_NAME),
        database=plain(listed.get("database") or "", MOST_NAME),
    )


def _shown(value: Any, depth: int) -> Any:
    """Return evidence with what drivers wrote into it as it can be shown."""
    if isinstance(value, str):
        return plain(value, MOST_EVIDENCE, lines=True)
    if isinstance(value, dict) and depth:
        return {plain(str(k)): _shown(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list) and depth:
        return [_shown(v, depth - 1) for v in value]
    return None if isinstance(value, (dict, list)) else value


class LevelResult:
    """One candidate: what is said of its devices so far (None is the driver), and what is left.

    Devices are untried, doubtful (they failed once), or have their verdict. `took_s` is what the
    last process had.
    """

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.is_begun = False
        self.took_s = 0.0
        self._rows: dict[int | None, ProbeRow] = {}
        self._first: dict[int | None, ProbeRow] = {}
        self._untried: set[int | None] = set()
        self._doubtful: set[int | None] = set()
        self._answers: dict[int, dict[str, bool]] = {}

    @property
    def is_untried(self) -> bool:
        """True if something of it has not been tried at all."""
        return not self.is_begun or bool(self._untried)

    @property
    def is_doubtful(self) -> bool:
        """True if something of it failed once."""
        return bool(self._doubtful)

    @property
    def skip(self) -> frozenset[int]:
        """Devices that the next process is to leave out."""
        wanted = self._untried or self._doubtful
        return frozenset(i for i in self._rows if i is not None and i not in wanted)

    def request(self) -> dict[str, Any]:
        """Return what a child is told of it."""
        was_wrong = any(row.status == "wrong" for row in self._first.values())
        told = {"skip": sorted(self.skip), "answers": self._answers}
        runs = HARDER_RUNS if was_wrong else RUNS
        own = {"env": dict(self.candidate.env), "runs": runs}
        return {**self.candidate.as_dict(), **told, **own}

    def take(self, transcript: Transcript, *, is_shared: bool) -> None:
        """Judge a transcript; `is_shared` where another level may be at fault for its end."""
        self.is_begun, self.took_s = True, transcript.seconds
        rows, pending = judge(self.candidate, transcript)
        is_over = not rows
        for row in rows:
            self._untried.discard(row.index)
            may_pass = row.status not in FOR_SURE and (is_shared or row.status != "timeout")
            if may_pass and row.index not in self._first:
                self._first[row.index] = row
                self._doubtful.add(row.index)
                self._note_death(row, transcript)
                self._rows[row.index] = _unfinished(row)
            else:
                self._doubtful.discard(row.index)
                self._rows[row.index] = self._final(row)
                is_over = is_over or row.index is None
        new = {row.index: row for row in pending if row.index not in self._rows}
        self._rows |= new
        self._untried |= new.keys()
        if self._rows.keys() - {None}:
            self._doubtful.discard(None)
        if is_over:  # died twice before it listed its devices, or had no news: it gets no further
            self._untried, self._doubtful = set(), set()

    def rows(self, given_s: float) -> list[ProbeRow]:
        """Return its rows; what it never came to has a row that says so."""
        rows_of = dict(self._rows)
        if len(rows_of) > 1:
            rows_of.pop(None, None)
        if not rows_of:
            return without_child(self.candidate, Ending("deadline"), given_s)
        return [row for _, row in sorted(rows_of.items(), key=lambda item: item[0] or 0)]

    def _note_death(self, row: ProbeRow, transcript: Transcript) -> None:
        """Count a required test that its process died of as failed: it is not run again."""
        if row.index is None or row.status not in {"crashed", "timeout"}:
            return
        for event in transcript.events:
            if event.get("index") == row.index and event["event"] == "demand":
                self._answers[row.index] = dict.fromkeys(event["entries"], False)

    def _final(self, row: ProbeRow) -> ProbeRow:
        """Return what is said of a device after its second attempt, if it had two."""
        first = self._first.get(row.index) or self._first.get(None)
        if first is None:
            return row
        if row.is_starved:
            return _unfinished(first)
        told = {"status": first.status, "code": first.code, "reason": first.reason}
        row = row.replace(evidence={**row.evidence, "first_attempt": told})
        again = Reason("ok", "on the second attempt").sentence
        return row.replace(reason=again) if row.is_usable else row


def _unfinished(row: ProbeRow) -> ProbeRow:
    """Return a failure for whose second attempt there was no time; one hang is enough to count."""
    if row.status == "timeout":
        return row
    return row.replace(evidence={**row.evidence, "is_unfinished": True})
