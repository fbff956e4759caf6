"""The disposable process: runs `main` with a request on standard input, or `work` in a fork.

It opens each device, runs the known answers, and settles what entries of the capability database
ask of it. A device is tried in rounds. In the first it may do all that no entry in force forbids;
where a test that an entry requires fails there, another round follows under the restrictions that
come of it, because numbers are only good for what they were computed with.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from gpuedge import backends, capdb
from gpuedge.backends.base import Candidate
from gpuedge.core.reasons import Reason
from gpuedge.probing.protocol import (
    CUT,
    FAILED,
    RUNS,
    STATUS_OF,
    Channel,
    reason_of,
    trace,
    verdict,
)
from gpuedge.safety.contain import contain

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl, DeviceInfo
    from gpuedge.core.caps import Caps
    from gpuedge.executors.base import Executable
    from gpuedge.probing.kat import Case, Finding
    from gpuedge.probing.quirks import Quirks

NOTHING = frozenset({"bad-manifest", "missing-library", "no-device"})
"""Reasons found while loading a driver that hold for all its levels: they are not asked again."""

LEAST_SHARE = 0.1
"""Share of the time that required tests leave for closing the device and for another round."""

RESERVE = 1.5
"""What runs that clear nothing leave for another round, in rounds of the known answers."""


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
        level = LevelProbe(
            channel,
            ends,
            len(records) - at - 1,
            skip=frozenset(record.pop("skip")),
            answers={int(k): v for k, v in record.pop("answers", {}).items()},
            runs=record.pop("runs", RUNS),
        )
        if nothing is None:
            nothing = level.run(Candidate(**record))
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


class LevelProbe:
    """The probe of one candidate, but for the devices in `skip`, which have their verdict.

    `answers` has outcomes of required tests that are known already, by device; `others` is how many
    levels come after this one, and `runs` how often each known answer is run.
    """

    def __init__(
        self,
        channel: Channel,
        ends: float,
        others: int = 0,
        *,
        skip: frozenset[int] = frozenset(),
        answers: Mapping[int, Mapping[str, bool]] | None = None,
        runs: int = RUNS,
    ) -> None:
        self._channel, self._ends, self._others = channel, ends, others
        self._skip, self._answers, self._runs = skip, answers or {}, runs

    def run(self, candidate: Candidate) -> Reason | None:
        """Probe all its devices; return the reason, if it holds for every level of the driver."""
        channel = self._channel
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
        quirks = self._listed(devices, candidate.backend)
        waiting = [info for info in devices if info.index not in self._skip]
        for i, info in enumerate(waiting):
            others = self._others + len(waiting) - i - 1
            probe = DeviceProbe(
                info, quirks[info.index], channel, backend.open,
                ends=self._ends, others=others, runs=self._runs,
            )  # fmt: skip
            channel.send("device", index=info.index, **probe.run())
        return None

    def _listed(self, devices: Sequence[DeviceInfo], level: str) -> dict[int, Quirks]:
        """Look all devices up and list them; a fault of the database ends this process here."""
        # Most drivers of a machine have no device, and numpy is the slowest import of all.
        from gpuedge.probing import quirks

        capdb.load()
        found = {d.index: quirks.Quirks(d, level, self._answers.get(d.index)) for d in devices}
        judgements = {index: one.judgement for index, one in found.items()}
        self._channel.send(
            "devices",
            database=quirks.version(next(iter(judgements.values()))),
            devices=[
                {
                    "index": d.index,
                    "identity": d.identity.to_dict(),
                    "is_software": d.is_software,
                    "model": capdb.model(d.identity),
                    "valid_until": quirks.valid_until(judgements[d.index]),
                }
                for d in devices
            ],
        )
        return found


class Announcing:
    """A device that announces each step to the launcher before passing the call on."""

    STEPS: ClassVar = {
        "build": "build",
        "record": "build",
        "submit": "run",
        "wait": "run",
        "read": "read",
    }

    def __init__(
        self, device: DeviceImpl, announce: Callable[[str], None], caps: Caps | None = None
    ) -> None:
        self._device = device
        self._announce = announce
        kind = capdb.classify(device.info.identity)
        self.caps = replace(caps or device.caps, device_class=kind)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._device, name)
        step = self.STEPS.get(name)
        if step is None:
            return attribute

        def announced(*args: Any, **kwargs: Any) -> Any:
            self._announce(step)
            return attribute(*args, **kwargs)

        return announced

    def with_caps(self, caps: Caps) -> Announcing:
        """Return the same device with other capabilities."""
        return Announcing(self._device, self._announce, caps)


class DeviceProbe:
    """The probe of one device, to be over by `ends`; `others` come after it in its process."""

    def __init__(
        self,
        info: DeviceInfo,
        quirks: Quirks,
        channel: Channel,
        opener: Callable[[DeviceInfo], DeviceImpl],
        *,
        ends: float,
        others: int = 0,
        runs: int = RUNS,
    ) -> None:
        self._info, self._quirks, self._channel, self._opener = info, quirks, channel, opener
        self._ends, self._others, self._runs = ends, others, runs
        self._start = time.monotonic()
        self._caps: dict[str, Any] = {}
        self._evidence: dict[str, Any] = {}
        self._step = "open"
        self._is_settled = True

    def run(self) -> dict[str, Any]:
        """Open the device, run the tests for it, close it, and return the fields of its event."""
        begin = time.monotonic()
        reason = self._quirks.reason()
        while reason is None:
            self._start, self._caps, self._is_settled = time.monotonic(), {}, True
            reason = self._round()
            if not self._is_settled:  # what was tested is not what would be used
                reason = self._quirks.reason()
        return {
            "caps": self._caps,
            "evidence": {**self._evidence, **self._quirks.evidence()},
            "seconds": time.monotonic() - begin,
            **self._quirks.event(),
            **verdict(reason),
        }

    def _announce(self, step: str) -> None:
        self._step = step
        self._channel.step(step, self._info.index)

    def _round(self) -> Reason:
        """Open, test and close the device; return what came of it."""
        device: DeviceImpl | None = None
        try:
            self._announce("open")
            device = self._opener(self._quirks.restricted(self._info))
            reason = self._tested(device)
        except Exception as error:
            reason = reason_of(error, "open-failed" if self._step == "open" else "kernel-failed")
            self._evidence |= {"step": self._step, **trace(error)}
        if device is not None:
            self._doubt(reason)
            self._announce("close")
            reason = self._close(device, reason)
        return reason

    def _tested(self, device: DeviceImpl) -> Reason:
        from gpuedge.capdb.restrict import apply
        from gpuedge.probing import kat

        quirks = self._quirks
        watched = Announcing(device, self._announce)
        self._caps = watched.caps.to_dict()
        restrictions = quirks.judgement.restrictions
        watched = watched.with_caps(apply(watched.caps, restrictions))
        self._caps = watched.caps.to_dict()
        finding = self._run_tests(watched, kat.cases(watched.caps))
        if finding is not None:
            self._evidence |= {"step": "read"}
            return Reason(finding.code, finding.detail)
        if quirks.demands:
            self._settle(watched)
            self._is_settled = quirks.judgement.restrictions == restrictions
        return Reason("ok")

    def _run_tests(self, device: Announcing, tests: list[Case]) -> Finding | None:
        from gpuedge.executors.gpu import GpuExecutor
        from gpuedge.probing import kat
        from gpuedge.probing.quirks import poisoned_run, times

        checks: list[dict[str, Any]] = []
        self._evidence["checks"] = checks
        executor = GpuExecutor(cast("DeviceImpl", device), "probe")
        executable: Executable | None = None
        graph = None
        try:
            for case in tests:
                # Where no kernel is left for it the product does not run it on the device, either.
                supports = (executor.supports(node, case.graph) for node in case.graph.nodes)
                if device.caps.ruled_out and any(why is not None for why in supports):
                    continue
                if executable is None or case.graph is not graph:
                    self._announce("build")
                    if executable is not None:
                        executable.close()
                    executable, graph = executor.compile(case.graph), case.graph
                count = times(case, self._runs)
                runs = [poisoned_run(executable, case, self._announce) for _ in range(count)]
                finding, check = kat.judge_runs(case, runs)
                checks.append(check)
                if finding is not None:
                    return finding
        finally:
            if executable is not None:
                executable.close()
        return None

    def _settle(self, device: Announcing) -> None:
        """Run what entries require, as far as there is time for it.

        Runs that clear a device of an entry may take nearly all that is left; more of the same only
        a share, as levels and devices that come after this one would have it.
        """
        from gpuedge.probing.quirks import RequiredTests

        quirks, now = self._quirks, time.monotonic()
        ends = self._ends - LEAST_SHARE * (self._ends - self._start)
        share = (self._ends - self._start) / (1 + self._others)
        most = self._start + share - max(RESERVE * (now - self._start), LEAST_SHARE * share)
        if now >= ends:
            quirks.settle_all(CUT, "no time was left after the known answers")
            return
        index = self._info.index
        self._channel.send("demand", index=index, entries=[d.entry for d in quirks.demands])
        tests = RequiredTests(device, quirks.demands, self._announce, ends=ends, most=most)
        outcomes = tests.run()
        self._evidence["required"] = tests.checks
        quirks.settle(outcomes)
        self._channel.send("demand", index=index, entries=[])

    def _doubt(self, reason: Reason) -> None:
        """Where the device fails with entries still asking: try it once more as they would have it.

        What they would forbid may be what is broken.
        """
        if reason.code not in ("ok", "quirk") and self._quirks.demands:
            self._quirks.settle_all(FAILED, reason.sentence)
            self._is_settled = self._quirks.reason() is not None

    def _close(self, device: DeviceImpl, reason: Reason) -> Reason:
        try:
            device.close()
        except Exception as error:
            if reason.code == "ok" and self._is_settled:
                self._evidence |= {"step": "close", **trace(error)}
                return reason_of(error, "device-lost")
        return reason


if __name__ == "__main__":
    sys.exit(main())
