"""What a run's steps took: as a table, and as a trace for Perfetto or ``chrome://tracing``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

Step = Mapping[str, Any]
"""A row of ``steps`` of `gpuedge.Session.profile`."""

Span = tuple[str, float, float]
"""What was done, when it began and when it ended, in seconds."""

COLUMNS = ("operators", "kernel", "device", "time", "bytes", "share", "nodes")
RUN = "gpuedge run"


def rows(steps: Sequence[Step]) -> list[tuple[str, ...]]:
    """Return table rows, in the order of the run; `share` is that of all steps' time."""
    whole = sum(step["seconds"] for step in steps) or 1.0
    return [
        (
            " ".join(step["ops"]), step["kernel"], step["device"],
            f"{step['seconds'] * 1e3:.3f} ms", f"{step['nbytes']:,}",
            f"{step['seconds'] / whole:.1%}", " ".join(step["nodes"]),
        )
        for step in steps
    ]  # fmt: skip


def summary(steps: Sequence[Step], warm_ms: float | None) -> str:
    """Return in a sentence what the steps took together, and one run where that is known."""
    whole = sum(step["seconds"] for step in steps)
    empty = [s["seconds"] for s in steps if s["ops"] == ["submit"]]
    cost = f", of which {max(empty) * 1e3:.3f} ms each for submitting it" if empty else ""
    run = "" if warm_ms is None else f"; as one run {warm_ms} ms"
    return f"one step at a time {whole * 1e3:.3f} ms{cost}{run} (times of this process's clock)"


def trace(spans: Sequence[Span], steps: Sequence[Step], about: Mapping[str, str]) -> bytes:
    """Return a trace in the JSON trace event format: the command's spans, and a line per device.

    Times are microseconds from the first span's beginning.
    """
    zero = min(begin for _, begin, _ in spans)
    lines = {RUN: 0}
    events = [_event(name, "run", 0, (begin - zero, end - begin)) for name, begin, end in spans]
    for step in steps:
        line = lines.setdefault(step["device"], len(lines))
        args = {name: step[name] for name in ("nodes", "ops", "kernel", "nbytes")}
        when = step["start_s"] - zero, step["seconds"]
        events.append(_event(" ".join(step["ops"]), "step", line, when, args))
    names = [_name("process_name", 0, f"{RUN} {about['model']}")]
    names += [_name("thread_name", line, name) for name, line in lines.items()]
    body = {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": dict(about)}
    return json.dumps(body, indent=1, allow_nan=False).encode()


def _event(
    name: str,
    kind: str,
    line: int,
    when: tuple[float, float],
    args: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    start, length = (round(seconds * 1e6, 3) for seconds in when)
    event = {"name": name, "cat": kind, "ph": "X", "ts": start, "dur": length}
    return {**event, "pid": os.getpid(), "tid": line, "args": dict(args or {})}


def _name(what: str, line: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": os.getpid(), "tid": line, "args": {"name": name}}
