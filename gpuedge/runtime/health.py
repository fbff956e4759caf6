"""The health of a device and of a model on it: what answered, what failed, how long it takes."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from gpuedge.core.text import duration
from gpuedge.safety.watchdog import percentile

if TYPE_CHECKING:
    from gpuedge.core.reasons import Reason

SCHEMA = "gpuedge.health/4"

PENDING, ON_CPU = "pending", "cpu"
OK, RECOVERING, DEMOTED = "ok", "recovering", "demoted"

WINDOW = 1024
"""Requests whose times are kept; percentiles are of the latest ones."""

REMEMBERED = 16
"""Failures that are kept, latest last; all of them are counted."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """How a device is: what the pool, a model that uses it and `Health` say of it.

    Attributes
    ----------
    health : {"ok", "recovering", "demoted", "cpu", "pending"}
        As `Health.state`; a device itself is ``ok``, ``recovering`` or ``demoted``.
    reason : Reason or None
        Why it is not in use.
    """

    health: str = OK
    reason: Reason | None = None

    @property
    def is_ok(self) -> bool:
        """Whether it may be used."""
        return self.health == OK

    @property
    def is_recovering(self) -> bool:
        """Whether it failed and is being opened anew."""
        return self.health == RECOVERING

    @property
    def sentence(self) -> str:
        """Why it is not in use; empty where nothing says."""
        return "" if self.reason is None else self.reason.sentence


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of the device.

    Attributes
    ----------
    code : str
        Reason code (`gpuedge.core.reasons`).
    detail : str
        The specifics.
    age_s : float
        Seconds since it happened.
    """

    code: str
    detail: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a model; a snapshot. Prints as a few lines.

    Attributes
    ----------
    state : {"pending", "ok", "recovering", "demoted", "cpu"}
        ``pending``: nothing has run yet, and nothing is decided. ``ok``: runs on the device that
        was chosen. ``recovering``: the device failed, or does not return from a request that was
        given up; the CPU answers meanwhile. ``demoted``: the device was left for good. ``cpu``:
        the CPU was chosen, in the first place or in service.
    device : str
        The device that was chosen, whatever runs now; the one asked for while nothing is decided.
    isolation : str
        Where its driver lives, ``inline`` or ``process``.
    reason : str
        Why the device is not in use; empty where it is.
    on_device, on_cpu : int
        Requests that the device answered, and those that the CPU did, in whole or in part, instead.
    failed : int
        How often the device failed.
    failures : tuple of Failure
        The latest of them, oldest first.
    crosschecks, crosschecks_failed : int
        Requests that were computed on the CPU as well, and how many of them differed.
    crosschecks_not_compared : int
        How many of them agreed but for what could not be compared, be it all or some of it.
    p50_s, p90_s, p99_s : float or None
        Percentiles of the latest requests, in seconds; None before the first one.
    watchdog_s : float or None
        Seconds after which the next run counts as hung if there is no sign of life and no longer
        run was predicted; None where nothing runs on a device.
    crosscheck_note : str
        What the last cross-check could not compare, and why; empty where it compared everything.
    switches : int
        How often the device in use was changed in service because another one was faster.
    """

    state: str
    device: str
    isolation: str = "inline"
    reason: str = ""
    on_device: int = 0
    on_cpu: int = 0
    failed: int = 0
    failures: tuple[Failure, ...] = ()
    crosschecks: int = 0
    crosschecks_failed: int = 0
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    watchdog_s: float | None = None
    crosscheck_note: str = ""
    switches: int = 0
    crosschecks_not_compared: int = 0

    def plus(self, counts: Counts) -> Health:
        """Return this with what was counted elsewhere: the CPU's answers and the failures."""
        more = counts.figures()
        both = sorted((*self.failures, *more["failures"]), key=lambda failure: -failure.age_s)
        return replace(
            self, on_cpu=self.on_cpu + counts.on_cpu, failed=self.failed + counts.failed,
            failures=tuple(both[-REMEMBERED:]),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {
            "schema": SCHEMA,
            **asdict(self),
            "failures": [asdict(f) for f in self.failures],
        }

    def __str__(self) -> str:
        times = (self.p50_s, self.p90_s, self.p99_s)
        shown = " / ".join("-" if t is None else duration(t * 1e9) for t in times)
        unknown = self.crosschecks_not_compared
        agreed = self.crosschecks - self.crosschecks_failed - unknown
        checks = f"{agreed} agreed, {self.crosschecks_failed} differed, {unknown} not compared"
        rows = [
            ("state", f"{self.state}: {self.reason}" if self.reason else self.state),
            ("device", self.device),
            ("isolation", self.isolation),
            ("requests", f"{self.on_device} on the device, {self.on_cpu} on the CPU"),
            ("p50 / p90 / p99", shown),
            ("watchdog", "-" if self.watchdog_s is None else duration(self.watchdog_s * 1e9)),
            ("cross-checks", checks),
        ]
        if self.crosscheck_note:
            rows.append(("", f"not compared: {self.crosscheck_note}"))
        if self.switches:
            rows.append(("switches", str(self.switches)))
        rows.append(("failures", str(self.failed)))
        rows += [(f"  {f.age_s:.0f} s ago", f"{f.code}: {f.detail}") for f in self.failures]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


class Counts:
    """What is counted for `Health` while requests are answered; whoever answers counts in place.

    Attributes
    ----------
    on_device, on_cpu, failed : int
    crosschecks, crosschecks_failed, crosschecks_not_compared : int
    times : deque of int
        Nanoseconds of the latest requests.
    """

    def __init__(self) -> None:
        self.on_device = self.on_cpu = 0
        self.failed = self.crosschecks = self.crosschecks_failed = 0
        self.crosschecks_not_compared = 0
        self.times: deque[int] = deque(maxlen=WINDOW)
        self._failures: deque[tuple[Reason, float]] = deque(maxlen=REMEMBERED)

    def forget_requests(self) -> None:
        """Begin to count requests anew: those before were not the caller's. Failures stay."""
        self.on_device = self.on_cpu = 0
        self.times.clear()

    def fail(self, reason: Reason) -> None:
        """Count a failure of the device."""
        self.failed += 1
        self._failures.append((reason, monotonic()))

    def compared(self, difference: str | None, note: str) -> None:
        """Count a cross-check: what differs, and what could not be compared."""
        self.crosschecks += 1
        if difference is not None:
            self.crosschecks_failed += 1
        elif note:
            self.crosschecks_not_compared += 1

    def figures(self) -> dict[str, Any]:
        """Return the fields of `Health` that were counted."""
        now, ordered = monotonic(), [ns / 1e9 for ns in sorted(self.times)]
        figures: dict[str, Any] = {
            f"p{share}_s": percentile(ordered, share) if ordered else None for share in (50, 90, 99)
        }
        figures["failures"] = tuple(
            Failure(reason.code, reason.detail, now - when) for reason, when in self._failures
        )
        for name in ("on_device", "on_cpu", "failed", "crosschecks", "crosschecks_failed",
                     "crosschecks_not_compared"):  # fmt: skip
            figures[name] = getattr(self, name)
        return figures


class Times:
    """The first and the latest of some times, in nanoseconds."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.latest: deque[int] = deque(maxlen=WINDOW)

    def note(self, ns: int) -> None:
        """Add a time."""
        if self.first is None:
            self.first = ns
        self.latest.append(ns)

    def summary(self) -> dict[str, Any]:
        """Return count, first, median and 90th percentile in seconds."""
        ordered = [ns / 1e9 for ns in sorted(self.latest)]
        return {
            "count": len(ordered),
            "first_s": None if self.first is None else self.first / 1e9,
            "p50_s": ordered[len(ordered) // 2] if ordered else None,
            "p90_s": ordered[int(len(ordered) * 0.9)] if ordered else None,
        }
