"""From what a probe process left behind to rows: pure functions, no process, no clock.

The child writes one JSON line per event to a private file, each with the token it was given. Lines
without it (a driver scribbling, a torn last line) are counted and otherwise ignored. Success needs
every device's result, the line ``done``, and a clean end of the process; nothing less.

How an end without ``done`` is judged:

* a signal (or a Windows exception code) at any step: ``crashed`` / ``crashed``;
* an exit, with any status, once the driver was being touched: ``crashed`` / ``exited``, since some
  drivers call ``exit(0)`` when they give up;
* an exit before that, or no event with the right token at all: ``broken`` / ``no-token``;
* killed by us: ``timeout`` / ``deadline``; where the driver was not yet being touched the reason
  says that it was not reached, since nothing can be held against it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuedge.backends.base import Candidate
from gpuedge.core.reasons import SENTENCES, STATUSES, Reason
from gpuedge.probing.report import ProbeRow, is_number

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


@dataclass(frozen=True, slots=True)
class Ending:
    """How a probe process ended: by itself (`code`), by a signal, or by us at the deadline."""

    how: Literal["exit", "signal", "deadline", "not-started"]
    code: int = 0
    what: str = ""


@dataclass(frozen=True, slots=True)
class Transcript:
    """Everything one probe process left behind; `deadline_s` is that of all processes together."""

    events: Sequence[Event]
    junk: int
    ending: Ending
    tail: str
    seconds: float
    skipped: frozenset[int] = frozenset()
    deadline_s: float | None = None

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
        if isinstance(event, dict) and event.get("token") == token and _is_sound(event):
            events.append(event)
        else:
            junk += 1
    return events, junk


def _is_sound(event: dict[str, Any]) -> bool:
    kind, step = event.get("event"), event.get("step")
    if kind in ("device", "failed"):  # not a set: what is no text may not be hashable
        known = event.get("status") in STATUSES and event.get("code") in list(SENTENCES)
        tables = all(isinstance(event.get(k) or {}, dict) for k in ("caps", "evidence"))
        timed = is_number(event.get("seconds") or 0)
        return known and tables and timed and (kind == "failed" or type(event.get("index")) is int)
    if kind == "devices":
        listed = event.get("devices")
        return isinstance(listed, list) and all(map(_is_device, listed))
    return kind == "done" or (kind == "step" and step in list(STEPS))


def _is_device(record: object) -> bool:
    return (
        isinstance(record, dict)
        and type(record.get("index")) is int
        and isinstance(record.get("identity"), dict)
        and isinstance(record.get("is_software"), bool)
    )


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
    if ending.how == "not-started" or (ending.how == "deadline" and step in UNTOUCHED):
        return _not_reached(transcript, step)
    if ending.how == "deadline":
        return _verdict("timeout", "deadline", f"it hung {where}", step)
    if ending.how == "signal":
        return _verdict("crashed", "crashed", f"{ending.what} {where}", step, ending.what)
    if not transcript.events or step in OURS or transcript.is_complete:
        return _verdict("broken", "no-token", _why_no_token(transcript), step)
    return _verdict("crashed", "exited", f"exit status {ending.code} {where}", step)


def _not_reached(transcript: Transcript, step: str) -> Event:
    limit = transcript.deadline_s
    of = "" if limit is None else f" of {limit:g} s"
    reason = f"the driver was not reached before the deadline{of}"
    return {**_verdict("timeout", "deadline", "", step), "reason": reason}


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
        reason=str(verdict.get("reason") or reason.sentence),
        name=str(identity.get("name") or _file_name(candidate.key)),
        identity=identity,
        is_software=bool(device["is_software"]) if device else None,
        caps=dict(verdict.get("caps") or {}),
        key=candidate.key,
        fingerprint=candidate.fingerprint,
        env=dict(candidate.env),
        index=device["index"] if device else None,
        seconds=round(float(verdict.get("seconds") or transcript.seconds), 6),
        evidence=evidence,
    )


def _file_name(key: str) -> str:
    return key.replace("\\", "/").rstrip("/").rpartition("/")[2] or key
