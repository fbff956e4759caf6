"""The events that a probe's child sends: which of them can be meant so, and what they say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gpuedge.core.reasons import SENTENCES, STATUSES
from gpuedge.probing import forbidden
from gpuedge.safety.store import is_number


class Time(NamedTuple):
    """The time of a process, as one of its devices has it.

    Attributes
    ----------
    ends : float
        When it is over for all of them, on the clock of `time.monotonic`.
    others : int
        Devices and levels that come after this one.
    devices : int
        Devices among them that belong to the same level.
    """

    ends: float
    others: int = 0
    devices: int = 0

    def share(self, begin: float) -> float:
        """Return when the time of this one is over that began then, if each takes as much."""
        return begin + (self.ends - begin) / (1 + self.others)


def is_sound(event: Mapping[str, Any], steps: Collection[str]) -> bool:
    """Say whether an event is one that a child sends; drivers can write into its file, too."""
    kind, step = event.get("event"), event.get("step")
    if not is_number(event.get("when") or 0):
        return False
    if kind in ("device", "failed"):
        return _is_verdict(event)
    if kind == "devices":
        listed = event.get("devices")
        told = isinstance(event.get("database", ""), str)
        return told and isinstance(listed, list) and all(map(_is_device, listed))
    if kind == "demand":
        return type(event.get("index")) is int and forbidden.are_words(event.get("entries"))
    return kind in ("done", "robbed") or (kind == "step" and step in list(steps))


def _is_verdict(event: Mapping[str, Any]) -> bool:
    # Not a set: what is not text may not be hashable.
    known = event.get("status") in STATUSES and event.get("code") in list(SENTENCES)
    tables = [event.get(name) or {} for name in ("caps", "evidence", "restrictions")]
    if not known or not all(isinstance(table, dict) for table in tables):
        return False
    timed = is_number(event.get("seconds") or 0)
    placed = event.get("event") == "failed" or type(event.get("index")) is int
    return timed and placed and forbidden.is_sound(tables[-1])


def _is_device(record: object) -> bool:
    return (
        isinstance(record, dict)
        and type(record.get("index")) is int
        and isinstance(record.get("identity"), dict)
        and isinstance(record.get("is_software"), bool)
        and isinstance(record.get("model", ""), str)
        and forbidden.is_day(record.get("valid_until", ""))
    )


def required(events: Sequence[Mapping[str, Any]], index: int | None) -> frozenset[str]:
    """Return the entries whose tests of a device were under way when the events end."""
    found: frozenset[str] = frozenset()
    for event in events:
        if event.get("index") != index:
            continue
        if event["event"] == "demand":
            found = frozenset(event["entries"])
        elif event["event"] == "device":
            found = frozenset()
    return found
