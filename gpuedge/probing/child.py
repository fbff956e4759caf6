"""The disposable process: runs `main` with a request on standard input, or `work` in a fork.

It opens each device, runs the known answers, and settles what entries of the capability database
ask of it. A device is tried in rounds. In the first it may do all that no entry in force forbids;
where a test that an entry requires fails there, another round follows under the restrictions that
come of it, because numbers are only good for what they were computed with.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from gpuedge import backends, capdb
from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.core.errors import DriverError
from gpuedge.core.reasons import Reason
from gpuedge.core.record import UnfitError
from gpuedge.probing.protocol import (
    CUT,
    FAILED,
    RUNS,
    STATUS_OF,
    reason_of,
    trace,
    verdict,
)
from gpuedge.safety.channel import EventChannel
from gpuedge.safety.contain import contain

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl
    from gpuedge.core.caps import Caps
    from gpuedge.executors.base import Runtime
    from gpuedge.probing.quirks import Quirks
    from gpuedge.probing.trials import Trials

LEAST_SHARE = 0.1
"""Share of the time that required tests leave for closing the device and for another round."""


def main() -> int:
    """Read the request from standard input, do it, and return the exit status."""
    work(json.loads(sys.stdin.buffer.readline()))
    return 0


def work(request: dict[str, Any]) -> None:
    """Probe the candidates of a request in order."""
    ends = request["ends"]
    contain(max(0.0, ends - time.monotonic()))
    channel = EventChannel(request["result"], request["token"])
    channel.step("start")
    for at, record in enumerate(request["candidates"]):
        channel.turn(at)
        level = LevelProbe(
            channel, ends,
            skip=frozenset(record.pop("skip")), runs=record.pop("runs"),
            answers={int(k): v for k, v in record.pop("answers").items()},
        )  # fmt: skip
        level.run(Candidate(**record))
        channel.send("done")


class LevelProbe:
    """The probe of one candidate, but for the devices in `skip`, which have their verdict.

    `answers` has outcomes of required tests that are known already, by device; `runs` is how often
    each known answer is run.
    """

    def __init__(
        self,
        channel: EventChannel,
        ends: float,
        *,
        skip: frozenset[int] = frozenset(),
        answers: Mapping[int, Mapping[str, bool]] | None = None,
        runs: int = RUNS,
    ) -> None:
        self._channel, self._ends = channel, ends
        self._skip, self._answers, self._runs = skip, answers or {}, runs

    def run(self, candidate: Candidate) -> None:
        """Probe all its devices."""
        channel = self._channel
        channel.step("load")
        try:
            backend = backends.load(candidate.backend)
            channel.step("enumerate")
            devices, opener = backend.enumerate(candidate), backend.open
            for info in devices:
                if not isinstance(info, DeviceInfo):
                    raise TypeError(f"it lists {info!r}, which is no device")
        except BaseException as error:
            reason = reason_of(error, "open-failed")
            absent = STATUS_OF.get(reason.code) == "absent"
            channel.send("failed", **verdict(reason), evidence={} if absent else trace(error))
            return
        if not devices:
            channel.send("failed", **verdict(Reason("no-device")))
            return
        channel.step("prepare")
        quirks = self._listed(devices, candidate.backend)
        for info in (info for info in devices if info.index not in self._skip):
            told = quirks[info.index]
            probe = DeviceProbe(info, told, channel, opener, ends=self._ends, runs=self._runs)
            channel.send("device", index=info.index, **probe.run())

    def _listed(self, devices: Sequence[DeviceInfo], level: str) -> dict[int, Quirks]:
        """Look all devices up and list them; a fault of the database ends this process here."""
        # Most drivers of a machine have no device, and numpy is the slowest import of all.
        from gpuedge.probing import quirks

        capdb.load()
        quirks_of = {d.index: quirks.Quirks(d, level, self._answers.get(d.index)) for d in devices}
        judgements = {index: quirks_.judgement for index, quirks_ in quirks_of.items()}
        self._channel.send(
            "devices",
            database=quirks.version(next(iter(judgements.values()))),
            devices=[
                {
                    "index": d.index,
                    "identity": d.identity.to_dict(),
                    "is_software": d.is_software,
                    "model": capdb.model(d.identity),
                }
                for d in devices
            ],
        )
        return quirks_of


class Announcing:
    """A device that announces each step to the launcher before passing the call on."""

    STEPS: ClassVar = {
        "build": "build", "record": "build", "submit": "run", "wait": "run", "read": "read",
    }  # fmt: skip

    def __init__(
        self, device: DeviceImpl, announce: Callable[[str], None], caps: Caps | None = None
    ) -> None:
        self._device, self._announce = device, announce
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
    """The probe of one device, to be over by `ends`."""

    def __init__(
        self,
        info: DeviceInfo,
        quirks: Quirks,
        channel: EventChannel,
        opener: Callable[[DeviceInfo], DeviceImpl],
        *,
        ends: float,
        runs: int = RUNS,
    ) -> None:
        self._info, self._quirks, self._channel, self._opener = info, quirks, channel, opener
        self._ends, self._runs = ends, runs
        self._caps: dict[str, Any] = {}
        self._evidence: dict[str, Any] = {}
        self._step = "open"

    def run(self) -> dict[str, Any]:
        """Open the device, run the tests for it, close it, and return the fields of its event."""
        begin = time.monotonic()
        reason = self._quirks.reason()
        while reason is None:
            reason = self._round()
        return {
            "caps": self._caps,
            "evidence": {**self._evidence, **self._quirks.evidence()},
            "seconds": time.monotonic() - begin,
            "restrictions": self._quirks.judgement.restrictions.to_dict(),
            **verdict(reason),
        }

    def _announce(self, step: str) -> None:
        self._step = step
        self._channel.step(step, self._info.index)

    def _round(self) -> Reason | None:
        """Open, test and close the device; None where what was tested is not what would be used."""
        quirks, start = self._quirks, time.monotonic()
        restrictions = quirks.judgement.restrictions
        disabled, limits = restrictions.features, dict(restrictions.limits)
        self._caps = {}
        device: DeviceImpl | None = None
        try:
            self._announce("open")
            device = self._opener(self._info.replace(disabled=disabled, limits=limits))
            reason = self._tested(device, start)
        except BaseException as error:
            reason = reason_of(error, "open-failed" if self._step == "open" else "kernel-failed")
            self._evidence |= {"step": self._step, **trace(error)}
        if device is not None:
            if reason.code not in ("ok", "quirk"):
                # What entries that still ask for tests would forbid may be what is broken.
                quirks.settle_all(FAILED, reason.sentence)
            reason = self._close(device, reason)
        if quirks.judgement.restrictions == restrictions:
            return reason
        blocked = quirks.reason()
        return reason if blocked is not None and reason.code != "ok" else blocked

    def _tested(self, device: DeviceImpl, start: float) -> Reason:
        from gpuedge.capdb.restrict import apply
        from gpuedge.probing.kat import cases, infinities
        from gpuedge.probing.trials import Trials, known_answers

        if backends.is_executor(self._info.candidate.backend):
            return self._tested_runtime(cast("Runtime", device))
        check_claims(device.caps)
        watched = Announcing(device, self._announce)
        self._caps = watched.caps.to_dict()
        caps = apply(watched.caps, self._quirks.judgement.restrictions)
        self._caps = caps.to_dict()
        trials = Trials(watched.with_caps(replace(caps, is_finite_only=False)), self._announce)
        try:
            finding = known_answers(trials, cases(trials.caps), self._runs, self._evidence)
            if finding is not None:
                self._evidence |= {"step": "read"}
                return Reason(finding.code, finding.detail)
            if caps.is_finite_only:
                wrong = known_answers(trials, infinities(), self._runs, self._evidence)
                self._caps["is_finite_only"] = wrong is not None
                self._evidence |= {} if wrong is None else {"not_kept": wrong.detail}
            if self._quirks.judgement.demands:
                self._settle(trials, start)
            return Reason("ok")
        finally:
            trials.close()

    def _tested_runtime(self, runtime: Runtime) -> Reason:
        """Run the known answers on what takes whole graphs."""
        from gpuedge.executors.plugin import PluginExecutor
        from gpuedge.probing.kat import runtime_cases
        from gpuedge.probing.trials import RuntimeTrials, known_answers

        trials = RuntimeTrials(PluginExecutor(runtime, self._info, "probe"), self._announce)
        try:
            finding = known_answers(trials, runtime_cases(), self._runs, self._evidence)
            if finding is not None:
                self._evidence |= {"step": "read"}
                return Reason(finding.code, finding.detail)
            if not trials.checks:
                return Reason("kernel-failed", f"it runs no known answer: {trials.refusal}")
            return Reason("ok")
        finally:
            trials.close()

    def _settle(self, trials: Trials, start: float) -> None:
        """Run what entries require, in nearly all of the time that is left at most."""
        from gpuedge.probing.trials import required_tests

        quirks, demands = self._quirks, self._quirks.judgement.demands
        left, index = self._ends - start, self._info.index
        ends = self._ends - LEAST_SHARE * left
        if time.monotonic() >= ends:
            quirks.settle_all(CUT, "no time was left after the known answers")
            return
        self._channel.send("demand", index=index, entries=[d.entry for d in demands])
        outcomes = required_tests(trials, demands, ends, self._evidence)
        quirks.settle(outcomes)
        self._channel.send("demand", index=index, entries=[])

    def _close(self, device: DeviceImpl, reason: Reason) -> Reason:
        self._announce("close")
        try:
            device.close()
            _pass_the_linker()
        except BaseException as error:
            if reason.code == "ok":
                self._evidence |= {"step": "close", **trace(error)}
                return reason_of(error, "device-lost")
        return reason


def check_claims(caps: Caps) -> None:
    """Raise DriverError where a device claims what none can have, as that of a plug-in may."""
    try:
        caps.from_dict(caps.to_dict())
    except UnfitError as error:
        raise DriverError("It claims what no device can have.", known=str(error)) from None


_WALK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def _pass_the_linker() -> None:
    """Walk the dynamic linker's list, as loading a library does: hangs where a driver locked it."""
    walk = None if os.name == "nt" else getattr(ctypes.CDLL(None), "dl_iterate_phdr", None)
    if walk is not None:  # not on macOS
        walk(_WALK(lambda *_: 1), None)


if __name__ == "__main__":
    sys.exit(main())
