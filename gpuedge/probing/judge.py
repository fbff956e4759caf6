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
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuedge.backends.base import Candidate
from gpuedge.core.reasons import Reason
from gpuedge.core.text import plain
from gpuedge.probing.events import is_sound
from gpuedge.probing.report import ProbeRow
from gpuedge.safety.child import CLEAN, Ending

Event = Mapping[str, Any]

OURS = {"start", "prepare"}
"""Steps in which no driver is asked for anything: an exit there is gpuedge's own failure."""

UNTOUCHED = OURS | {"load"}
"""Steps before a driver's own code runs: a hang there is no news about the driver."""

STEPS = {
    "start": "before the driver was loaded",
    "load": "while loading the API",
    "enumerate": "while loading the driver and listing its devices",
    "prepare": "before the device was opened",
    "open": "while opening the device",
    "build": "while building a kernel",
    "run": "while running a kernel",
    "read": "while reading results back",
    "close": "while closing the device",
    "exit": "while leaving the process, after its results were complete",
}
"""Steps of a probe, in order, as they stand in ``evidence["step"]``, and how to say them."""


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


def read_events(data: bytes, token: str) -> tuple[list[Event], int]:
    """Return the events that carry `token`, and how many lines did not."""
    events: list[Event] = []
    junk = 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict) and event.get("token") == token and is_sound(event, STEPS):
            events.append(event)
        else:
            junk += 1
    return events, junk


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
