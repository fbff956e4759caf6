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
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from gpuedge.backends.base import Candidate, DeviceImpl, DeviceInfo
from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DeviceTimeoutError,
    OutOfMemoryError,
)
from gpuedge.core.reasons import Reason
from gpuedge.probing.contain import contain

if TYPE_CHECKING:
    from gpuedge.core.caps import Caps
    from gpuedge.core.identity import Identity
    from gpuedge.executors.base import Executable
    from gpuedge.probing.kat import Case, Finding

RUNS = 2
"""Runs of each kernel: a race or stale data shows up as two different answers."""

NOTHING = frozenset({"bad-manifest", "missing-library", "no-device"})
"""Reasons found while loading a driver that hold for all its levels: they are not asked again."""

STATUS_OF = {
    "ok": "ok",
    "no-loader": "absent",
    "no-candidates": "absent",
    "no-device": "absent",
    "no-context": "absent",
    "no-format": "absent",
    "no-highp": "absent",
    "no-compute": "absent",
    "untouched-output": "wrong",
    "wrong-numbers": "wrong",
    "unstable-numbers": "wrong",
    "deadline": "timeout",
}
"""Status of each reason code the child can give; every other code is ``broken``."""


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


class Announcing:
    """A device that announces each step to the parent before passing the call on."""

    STEPS: ClassVar = {
        "build": "build",
        "record": "build",
        "submit": "run",
        "wait": "run",
        "read": "read",
    }

    def __init__(self, device: DeviceImpl, announce: Callable[[str], None]) -> None:
        self._device = device
        self._announce = announce
        self.caps = replace(device.caps, device_class=_device_class(device))

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._device, name)
        step = self.STEPS.get(name)
        if step is None:
            return attribute

        def announced(*args: Any, **kwargs: Any) -> Any:
            self._announce(step)
            return attribute(*args, **kwargs)

        return announced


def _model(identity: Identity) -> str:
    from gpuedge import capdb

    return capdb.model(identity)


def _device_class(device: DeviceImpl) -> str:
    from gpuedge import capdb

    return capdb.classify(device.info.identity)


def main() -> int:
    """Read the request from standard input, do it, and return the exit status."""
    work(json.loads(sys.stdin.buffer.readline()))
    return 0


def work(request: dict[str, Any]) -> None:
    """Probe the candidates of a request in order."""
    contain(float(request["deadline_s"]))
    known = set(sys.path)
    sys.path += [p for p in request["path"] if p not in known]
    channel = Channel(request["result"], request["token"])
    channel.step("start")
    nothing: Reason | None = None
    for at, record in enumerate(request["candidates"]):
        channel.turn(at)
        skip = frozenset(record.pop("skip"))
        if nothing is None:
            nothing = probe(Candidate(**record), skip, channel)
        else:
            channel.send("failed", **_verdict(nothing), evidence={})
        channel.send("done")


def probe(candidate: Candidate, skip: frozenset[int], channel: Channel) -> Reason | None:
    """Probe all devices of a candidate except those in `skip`, sending events.

    Returns the reason, if it is one that holds for every level of this driver (`NOTHING`).
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
        channel.send("failed", **_verdict(reason), evidence={} if absent else _trace(error))
        return reason if reason.code in NOTHING else None
    if not devices:
        reason = Reason("no-device")
        channel.send("failed", **_verdict(reason))
        return reason
    from gpuedge import capdb

    channel.step("prepare")
    capdb.load()  # a fault of the database ends this process here, not as a driver's verdict
    channel.send(
        "devices",
        devices=[
            {
                "index": d.index,
                "identity": d.identity.to_dict(),
                "is_software": d.is_software,
                "model": _model(d.identity),
            }
            for d in devices
        ],
    )
    # Only now: most drivers of a machine have no device, and numpy is the slowest import of all.
    from gpuedge.probing import kat

    for info in devices:
        if info.index not in skip:
            result = probe_device(backends.open_disposable, info, kat.cases, channel)
            channel.send("device", index=info.index, **result)
    return None


def probe_device(
    opener: Callable[[DeviceInfo], DeviceImpl],
    info: DeviceInfo,
    tests: Callable[[Caps], list[Case]],
    channel: Channel,
) -> dict[str, Any]:
    """Open a device, run the tests for it, close it, and return the fields of its event."""
    start = time.monotonic()
    caps: dict[str, Any] = {}
    evidence: dict[str, Any] = {}
    step = "open"

    def announce(name: str) -> None:
        nonlocal step
        step = name
        channel.step(name, info.index)

    device: DeviceImpl | None = None
    try:
        announce("open")
        device = opener(info)
        watched = Announcing(device, announce)
        caps |= watched.caps.to_dict()
        finding = _run_tests(watched, tests(watched.caps), evidence, announce)
        reason = Reason("ok") if finding is None else Reason(finding.code, finding.detail)
        evidence |= {} if finding is None else {"step": "read"}
    except Exception as error:
        reason = reason_of(error, "open-failed" if step == "open" else "kernel-failed")
        evidence |= {"step": step, **_trace(error)}
    if device is not None:
        announce("close")
        reason = _close(device, reason, evidence)
    seconds = time.monotonic() - start
    return {"caps": caps, "evidence": evidence, "seconds": seconds, **_verdict(reason)}


def _close(device: DeviceImpl, reason: Reason, evidence: dict[str, Any]) -> Reason:
    try:
        device.close()
    except Exception as error:
        if reason.code == "ok":
            evidence |= {"step": "close", **_trace(error)}
            return reason_of(error, "device-lost")
    return reason


def _run_tests(
    device: Announcing, tests: list[Case], evidence: dict[str, Any], announce: Callable[[str], None]
) -> Finding | None:
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.probing import kat

    checks: list[dict[str, Any]] = []
    evidence["checks"] = checks
    executor = GpuExecutor(cast(DeviceImpl, device), "probe")
    executable: Executable | None = None
    graph = None
    try:
        for case in tests:
            if executable is None or case.graph is not graph:
                announce("build")
                if executable is not None:
                    executable.close()
                executable, graph = executor.compile(case.graph), case.graph
            runs = [_poisoned_run(executable, case, announce) for _ in range(RUNS)]
            finding, check = kat.judge_runs(case, runs)
            checks.append(check)
            if finding is not None:
                return finding
    finally:
        if executable is not None:
            executable.close()
    return None


def _poisoned_run(executable: Executable, case: Case, announce: Callable[[str], None]) -> Any:
    announce("run")
    executable.poison()  # type: ignore[attr-defined]  # what GPU executables have besides
    return executable.run(case.inputs)[case.output].copy()


def reason_of(error: Exception, fallback: str) -> Reason:
    """Return the reason code of an exception, with what it says as the detail.

    A backend's own errors may carry a `reason` that knows better than their class.
    """
    given = getattr(error, "reason", None)
    if isinstance(given, Reason):
        return given if given.detail else Reason(given.code, _words(error, brief=True))
    for kind, code in (
        (OutOfMemoryError, "out-of-memory"),
        (DeviceLostError, "device-lost"),
        (DeviceTimeoutError, "deadline"),
        (BackendUnavailableError, "no-device"),
    ):
        if isinstance(error, kind):
            return Reason(code, _words(error))
    return Reason(fallback, _words(error))


def _words(error: Exception, *, brief: bool = False) -> str:
    """Return what an error says; `brief` leaves out what its reason code says already."""
    known = getattr(error, "known", None)
    what = getattr(error, "what", None) or str(error) or type(error).__name__
    parts = [known] if known and brief else [what, known]
    text = "; ".join(str(part).strip().rstrip(".") for part in parts if part)
    return text.replace("\n", " ")[:300]


def _trace(error: Exception) -> dict[str, Any]:
    import traceback

    return {"error": "".join(traceback.format_exception(error))[-2000:]}


def _verdict(reason: Reason) -> dict[str, Any]:
    status = STATUS_OF.get(reason.code, "broken")
    return {"status": status, "code": reason.code, "detail": reason.detail}


if __name__ == "__main__":
    sys.exit(main())
