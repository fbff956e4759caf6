"""One device in a disposable process: open it, run known answers, settle what entries ask of it.

A device is tried in rounds. In the first it may do all that no entry in force forbids; where a
probe that an entry demands fails there, another round follows under the restrictions that come of
it, because numbers are only good for what they were computed with.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from gpuedge import capdb
from gpuedge.core.reasons import Reason
from gpuedge.probing.faults import reason_of, trace, verdict
from gpuedge.probing.quirks import CUT, FAILED

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl, DeviceInfo
    from gpuedge.core.caps import Caps
    from gpuedge.executors.base import Executable
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.probing.child import Channel
    from gpuedge.probing.events import Time
    from gpuedge.probing.kat import Case, Finding
    from gpuedge.probing.quirks import Quirks

RUNS = 2
"""Runs of each kernel: a race or stale data shows up as two different answers."""

HARDER_RUNS = 16
"""Runs of each kernel on a device whose numbers were wrong before, and may be wrong now and then:
one that is in one run of ten passes two of them four times in five, and sixteen once in five."""

MOST_ELEMENTS = 1 << 22
"""Elements of the outputs of all runs of one case: small kernels are run as often as they are to
be, large ones a few times."""

EVERY_S = 0.05
"""Between two announcements while a kernel is run over and over."""

RESERVE, LEAST_SHARE = 1.5, 0.1
"""What required tests leave of the time for closing the device, for another round under
restrictions, and for devices that come after it: in rounds of the known answers, and as a share of
the time at least. Essential ones leave the share alone: in most cases no other round follows."""


class Announcing:
    """A device that announces each step to the parent before passing the call on."""

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


class Steps:
    """Announces the steps of one device; `now` is the one under way."""

    def __init__(self, channel: Channel, index: int) -> None:
        self.now = "open"
        self.is_repeating = False
        self._channel = channel
        self._index = index
        self._said = 0.0

    def __call__(self, name: str) -> None:
        """Announce a step; of those that repeat, one now and then."""
        self.now = name
        when = time.monotonic()
        if self.is_repeating and name != "build" and when - self._said < EVERY_S:
            return
        self._said = when
        self._channel.step(name, self._index)

    def demand(self, entries: list[str]) -> None:
        """Announce that what follows is done only because these entries ask for it."""
        self.is_repeating = bool(entries)
        self._channel.send("demand", index=self._index, entries=entries)


@dataclass
class Probe:
    """How one device is to be probed.

    Attributes
    ----------
    opener : callable
        Opens a device.
    tests : callable
        Gives the known answers for some capabilities.
    quirks : Quirks
    time_ : Time
        Required tests are cut off in time before it is over.
    runs : int
        Runs of each known answer.
    """

    opener: Callable[[DeviceInfo], DeviceImpl]
    tests: Callable[[Caps], list[Case]]
    quirks: Quirks
    time_: Time
    runs: int = RUNS

    def run(self, info: DeviceInfo, channel: Channel) -> dict[str, Any]:
        """Open the device, run the tests for it, close it, and return the fields of its event."""
        start = time.monotonic()
        quirks, evidence, caps = self.quirks, dict[str, Any](), dict[str, Any]()
        reason = quirks.reason()
        while reason is None:
            round_ = Round(self, quirks.restricted(info), Steps(channel, info.index))
            reason = round_.run()
            evidence |= round_.evidence
            caps = round_.caps
            if not round_.is_settled:
                reason = quirks.reason()
        return {
            "caps": caps,
            "evidence": {**evidence, **quirks.evidence()},
            "seconds": time.monotonic() - start,
            **quirks.event(),
            **verdict(reason),
        }


class Round:
    """A device, opened once, and what was found of it.

    `is_settled` is false where restrictions changed, which asks for another round: what was tested
    is not what would be used.
    """

    def __init__(self, probe: Probe, info: DeviceInfo, announce: Steps) -> None:
        self.caps: dict[str, Any] = {}
        self.evidence: dict[str, Any] = {}
        self.is_settled = True
        self._start = time.monotonic()
        self._probe = probe
        self._info = info
        self._announce = announce

    def run(self) -> Reason:
        """Open, test and close the device; return what came of it."""
        device: DeviceImpl | None = None
        announce = self._announce
        try:
            announce("open")
            device = self._probe.opener(self._info)
            reason = self._tested(device)
        except Exception as error:
            reason = reason_of(error, "open-failed" if announce.now == "open" else "kernel-failed")
            self.evidence |= {"step": announce.now, **trace(error)}
        if device is not None:
            self._doubt(reason)
            announce("close")
            reason = self._close(device, reason)
        return reason

    def _tested(self, device: DeviceImpl) -> Reason:
        from gpuedge.capdb.restrict import apply

        quirks = self._probe.quirks
        watched = Announcing(device, self._announce)
        self.caps = watched.caps.to_dict()
        restrictions = quirks.judgement.restrictions
        watched = watched.with_caps(apply(watched.caps, restrictions))
        self.caps = watched.caps.to_dict()
        finding = self._run_tests(watched, self._probe.tests(watched.caps))
        if finding is not None:
            self.evidence |= {"step": "read"}
            return Reason(finding.code, finding.detail)
        if quirks.demands:
            self._ask(watched)
            self.is_settled = quirks.judgement.restrictions == restrictions
        return Reason("ok")

    def _run_tests(self, device: Announcing, tests: list[Case]) -> Finding | None:
        from gpuedge.executors.gpu import GpuExecutor
        from gpuedge.probing import kat

        checks: list[dict[str, Any]] = []
        self.evidence["checks"] = checks
        executor = GpuExecutor(cast("DeviceImpl", device), "probe")
        executable: Executable | None = None
        graph = None
        try:
            for case in tests:
                if device.caps.ruled_out and not _is_possible(executor, case):
                    continue
                if executable is None or case.graph is not graph:
                    self._announce("build")
                    if executable is not None:
                        executable.close()
                    executable, graph = executor.compile(case.graph), case.graph
                count = times(case, self._probe.runs)
                runs = [poisoned_run(executable, case, self._announce) for _ in range(count)]
                finding, check = kat.judge_runs(case, runs)
                checks.append(check)
                if finding is not None:
                    return finding
        finally:
            if executable is not None:
                executable.close()
        return None

    def _ask(self, device: Announcing) -> None:
        """Run what entries demand, as far as there is time for it."""
        quirks, announce = self._probe.quirks, self._announce
        names = [demand.entry for demand in quirks.demands]
        now = time.monotonic()
        least, most = self._bounds(now)
        if now >= least:
            quirks.settle_all(CUT, "no time was left after the known answers")
            return
        from gpuedge.probing.required import RequiredTests

        announce.demand(names)
        tests = RequiredTests(device, quirks.demands, announce, least, most)
        tests.run()
        self.evidence["required"] = tests.checks
        if tests.is_partial:
            self.evidence["is_partial"] = True
        quirks.settle(tests.outcomes)
        announce.demand([])

    def _bounds(self, now: float) -> tuple[float, float]:
        """Return when required tests end that are essential, and when the others do.

        Those that clear a device of an entry may take what is left of the whole time, but for the
        known answers of the level's other devices; more runs of the same only a share of it. A
        level that comes too late for that is tried by the next start, which has fewer to try.
        """
        time_, start = self._probe.time_, self._start
        spent, share = RESERVE * (now - start), time_.share(start)
        most = share - max(spent, LEAST_SHARE * (share - start))
        kept = LEAST_SHARE * (time_.ends - start) + spent * time_.devices
        return max(most, time_.ends - kept), most

    def _doubt(self, reason: Reason) -> None:
        """Where the device fails with entries still asking: try it once more as they would have it.

        What they would forbid may be what is broken.
        """
        quirks = self._probe.quirks
        if reason.code not in ("ok", "quirk") and quirks.demands:
            quirks.settle_all(FAILED, reason.sentence)
            self.is_settled = quirks.reason() is not None

    def _close(self, device: DeviceImpl, reason: Reason) -> Reason:
        try:
            device.close()
        except Exception as error:
            if reason.code == "ok" and self.is_settled:
                self.evidence |= {"step": "close", **trace(error)}
                return reason_of(error, "device-lost")
        return reason


def _is_possible(executor: GpuExecutor, case: Case) -> bool:
    """Say whether there is a kernel left for a case where some are ruled out.

    Where there is none the product does not run such operators on the device, either.
    """
    return all(executor.supports(node, case.graph) is None for node in case.graph.nodes)


def times(case: Case, runs: int) -> int:
    """Return how often a case is run: a large one less often, but no less than `RUNS` times."""
    return min(runs, max(RUNS, MOST_ELEMENTS // max(1, case.expected.size)))


def poisoned_run(executable: Executable, case: Case, announce: Callable[[str], None]) -> Any:
    """Run a case with its output filled with `kat.POISON` before, and return a copy of it."""
    announce("run")
    executable.poison()  # type: ignore[attr-defined]  # what GPU executables have besides
    return executable.run(case.inputs)[case.output].copy()
