"""The disposable process: runs `main` with a request on standard input, or `work` in a fork.

Tells the parent through a private file, one JSON line per event, each with the request's token:
every step before it is taken, so that a crash or hang can be attributed, and every device's result
as it comes. Standard output is not used: drivers write there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from gpuedge.backends.base import Candidate
from gpuedge.core.reasons import Reason
from gpuedge.probing.events import Time
from gpuedge.probing.faults import STATUS_OF, reason_of, trace, verdict
from gpuedge.safety.contain import contain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuedge.backends.base import DeviceImpl, DeviceInfo
    from gpuedge.core.caps import Caps
    from gpuedge.core.identity import Identity
    from gpuedge.probing.kat import Case
    from gpuedge.probing.quirks import Quirks

NOTHING = frozenset({"bad-manifest", "missing-library", "no-device"})
"""Reasons found while loading a driver that hold for all its levels: they are not asked again."""

PATIENCE_S = 4.0
"""Seconds for a driver where nothing is said: those of `gpuedge.probe()`."""


class Channel:
    """The private result file, open for appending; `at` is the candidate whose turn it is.

    A driver that closes descriptors which are not its own would rob the application of its files,
    or have it write into others. Here it robs this class, which says so and ends the process.
    """

    def __init__(self, path: str, token: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._file = os.fstat(self._fd)
        self._token = token
        self._last: tuple[str, int | None] | None = None
        self._begin = time.monotonic()
        self.at = 0

    def turn(self, at: int) -> None:
        """Go on to another candidate."""
        self.at, self._last = at, None

    def send(self, event: str, **fields: Any) -> None:
        """Write one event; it survives the process from here on."""
        self._require_own()
        self._write(event, **fields)

    def _write(self, event: str, **fields: Any) -> None:
        when = round(time.monotonic() - self._begin, 6)
        line = json.dumps(
            {"token": self._token, "event": event, "at": self.at, "when": when, **fields}
        )
        os.write(self._fd, line.encode() + b"\n")

    def _require_own(self) -> None:
        try:
            is_own = os.path.samestat(os.fstat(self._fd), self._file)
        except OSError:
            is_own = False
        if not is_own:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            self._write("robbed")
            os._exit(1)

    def step(self, name: str, index: int | None = None) -> None:
        """Announce the step about to be taken."""
        if (name, index) != self._last:
            self._last = (name, index)
            self.send("step", step=name, index=index)


def _model(identity: Identity) -> str:
    from gpuedge import capdb

    return capdb.model(identity)


def main() -> int:
    """Read the request from standard input, do it, and return the exit status."""
    work(json.loads(sys.stdin.buffer.readline()))
    return 0


def work(request: dict[str, Any]) -> None:
    """Probe the candidates of a request in order."""
    left_s = float(request["deadline_s"])
    contain(left_s)
    ends = ends_of(left_s, request.get("ends"))
    channel = Channel(request["result"], request["token"])
    channel.step("start")
    nothing: Reason | None = None
    records = request["candidates"]
    for at, record in enumerate(records):
        channel.turn(at)
        skip = frozenset(record.pop("skip"))
        answers = {int(k): v for k, v in record.pop("answers", {}).items()}
        harder = frozenset(record.pop("harder", ()))
        if nothing is None:
            time_ = Time(ends, len(records) - at - 1)
            candidate = Candidate(**record)
            nothing = probe(candidate, skip, channel, answers=answers, harder=harder, time_=time_)
        else:
            channel.send("failed", **verdict(nothing), evidence={})
        channel.send("done")


def ends_of(left_s: float, told: object) -> float:
    """Return when the time of this process is over, on its own clock.

    All processes of a machine have the same clock everywhere that is known; where it turns out not
    to be so the time that it took to start is not counted.
    """
    now = time.monotonic()
    same = isinstance(told, (int, float)) and 0 < told - now <= left_s
    return float(told) if same else now + left_s  # type: ignore[arg-type]  # mypy: see `same`


def probe(
    candidate: Candidate,
    skip: frozenset[int],
    channel: Channel,
    *,
    answers: Mapping[int, Mapping[str, bool]] | None = None,
    harder: frozenset[int] = frozenset(),
    time_: Time | None = None,
) -> Reason | None:
    """Probe all devices of a candidate except those in `skip`, sending events.

    Parameters
    ----------
    candidate : Candidate
    skip : frozenset of int
        Devices that have their verdict.
    channel : Channel
    answers : mapping, optional
        By device, outcomes of required tests that are known already (see `Quirks`).
    harder : frozenset of int, optional
        Devices that must be right in more runs than others.
    time_ : Time, optional
        That of this process; None: `PATIENCE_S` from now.

    Returns
    -------
    Reason or None
        The reason, if it is one that holds forevery level of this driver (`NOTHING`).
    """
    from gpuedge import backends

    channel.step("load")
    try:
        backend = backends.load(candidate.backend)
        channel.step("enumerate")
        devices = backend.enumerate(candidate)
    except Exception as error:
        reason = reason_of(error, "open-failed")
        absent = STATUS_OF.get(reason.code) == "absent"
        channel.send("failed", **verdict(reason), evidence={} if absent else trace(error))
        return reason if reason.code in NOTHING else None
    if not devices:
        reason = Reason("no-device")
        channel.send("failed", **verdict(reason))
        return reason
    channel.step("prepare")
    quirks = _judged(devices, candidate.backend, answers or {}, channel)
    time_ = time_ or Time(time.monotonic() + PATIENCE_S)
    waiting = [info for info in devices if info.index not in skip]
    for i, info in enumerate(waiting):
        after = len(waiting) - i - 1
        own = Time(time_.ends, time_.others + after, after)
        result = _probe_device(
            info, quirks[info.index], own, channel, is_harder=info.index in harder
        )
        channel.send("device", index=info.index, **result)
    return None


def _judged(
    devices: Sequence[DeviceInfo],
    level: str,
    answers: Mapping[int, Mapping[str, bool]],
    channel: Channel,
) -> dict[int, Quirks]:
    """Look all devices up and list them; a fault of the database ends this process here."""
    from gpuedge import capdb
    from gpuedge.probing import quirks

    capdb.load()
    found = {d.index: quirks.Quirks(d, level, answers.get(d.index)) for d in devices}
    judgements = {index: one.judgement for index, one in found.items()}
    channel.send(
        "devices",
        database=quirks.version(next(iter(judgements.values()))),
        devices=[
            {
                "index": d.index,
                "identity": d.identity.to_dict(),
                "is_software": d.is_software,
                "model": _model(d.identity),
                "valid_until": quirks.valid_until(judgements[d.index]),
            }
            for d in devices
        ],
    )
    return found


def _probe_device(
    info: DeviceInfo, quirks: Quirks, time_: Time, channel: Channel, *, is_harder: bool = False
) -> dict[str, Any]:
    from gpuedge import backends
    from gpuedge.probing import device

    def tests(caps: Caps) -> list[Case]:
        # Only now: most drivers of a machine have no device, others are blocked, and numpy is the
        # slowest import of all.
        from gpuedge.probing import kat

        return kat.cases(caps)

    def opened(one: DeviceInfo) -> DeviceImpl:
        return backends.load(one.candidate.backend).open(one)

    runs = device.HARDER_RUNS if is_harder else device.RUNS
    return device.Probe(opened, tests, quirks, time_, runs).run(info, channel)


if __name__ == "__main__":
    sys.exit(main())
