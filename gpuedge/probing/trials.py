"""Runs cases of `gpuedge.probing.kat` on an open device: the known answers, and required tests.

A known answer has all its runs one after the other: numbers that change from run to run are named
so. Required tests take turns, each case once, then each a second time, and so on: each kernel runs
after every other one, and where time is short every case has had about as many runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final, cast

from gpuedge.capdb.entries import TESTS
from gpuedge.capdb.restrict import with_storages
from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    KernelLimitError,
    UnsupportedOpError,
)
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.probing import kat
from gpuedge.probing.protocol import CLEARED, CUT, FAILED, RUNS, reason_of

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl
    from gpuedge.capdb.entries import Demand
    from gpuedge.executors.gpu import GpuExecutable

MOST_ELEMENTS = 1 << 22
"""Elements of the outputs of all runs of one case: small kernels are run as often as they are to
be, large ones a few times."""

ESSENTIAL: Final = 4
"""Runs of each case, all of them right and alike, that clear a device where time is short, however
many an entry asks for. They are twice as many as every device must pass."""


class CaseTrial:
    """One case on a device, to be run `goal` times in all for `tests`; `check` is the evidence."""

    def __init__(self, case: kat.KnownAnswer) -> None:
        self.case = case
        self.goal = self.runs = 0
        self.tests: list[str] = []
        self.check: dict[str, Any] = {"name": case.name}
        self._first = b""

    def lacks(self, runs: int) -> bool:
        """Say whether so many runs, or as many as are worth their time, were not made."""
        return self.runs < min(self.goal, times(self.case, runs))

    def judge(self, array: Any) -> kat.AnswerFinding | None:
        """Take the output of one more run; return what is wrong, None if nothing is."""
        data, is_first = array.tobytes(), not self.runs
        self.runs += 1
        self.check["runs"] = self.runs
        if data == self._first and not is_first:
            return None
        finding = kat.judge(self.case, array, self.check)
        if is_first:
            self._first = data
        elif finding is None:
            return kat.AnswerFinding("unstable-numbers", self.case.name)
        return finding


class Trials:
    """Trials on one open device. Each graph is compiled once; `close` lets go of all of them.

    Where some are `required`, those that take what the device does not offer are left out.
    """

    def __init__(
        self, device: Any, announce: Callable[[str], None], *, required: bool = False
    ) -> None:
        self._device, self._announce = device, announce
        self._is_lenient = required or bool(device.caps.ruled_out)
        self._trials: dict[tuple[str, str, str], CaseTrial] = {}
        self._built: dict[tuple[int, str, str], GpuExecutable | None] = {}

    def add(self, case: kat.KnownAnswer, runs: int, test: str = "") -> None:
        """Add a case; one that is there already is run for both."""
        storage = case.storage or self._device.caps.storages[0]
        key = (case.name, case.precision.kind, storage)
        trial = self._trials.setdefault(key, CaseTrial(case))
        trial.goal = max(trial.goal, times(case, runs))
        trial.tests.append(test)

    @property
    def trials(self) -> Sequence[CaseTrial]:
        """All of them."""
        return list(self._trials.values())

    @property
    def checks(self) -> list[dict[str, Any]]:
        """What was run, as evidence."""
        return [trial.check for trial in self.trials if trial.runs]

    def run(self, trial: CaseTrial) -> kat.AnswerFinding | None:
        """Run a trial once more on a poisoned output; return what is wrong, None if nothing is."""
        case = trial.case
        executable = self._executable(case)
        if executable is None:
            trial.goal = 0
            return None
        self._announce("run")
        start = time.monotonic()
        executable.poison()
        array = executable.run(case.inputs)[case.output]
        if any(trial.tests):
            kinds = sorted({t.storage.kind for t in executable.plan.tensors.values()})
            seconds = trial.check.get("seconds", 0.0) + time.monotonic() - start
            trial.check |= {
                "test": ", ".join(trial.tests), "storage": ", ".join(kinds),
                "kernels": sorted({one.variant for one in executable.plan.passes}),
                "seconds": round(seconds, 6),
            }  # fmt: skip
        return trial.judge(array)

    def close(self) -> None:
        """Let go of what the cases were run on."""
        for executable in self._built.values():
            if executable is not None:
                executable.close()
        self._built.clear()

    def _executable(self, case: kat.KnownAnswer) -> GpuExecutable | None:
        """Return a case built; None where the device does not offer what it takes."""
        key = (id(case.graph), case.precision.kind, case.storage)
        if key not in self._built:
            self._announce("build")
            device, caps = self._device, self._device.caps
            if case.storage and case.storage != caps.storages[0]:
                others = (kind for kind in caps.storages if kind != case.storage)
                device = device.with_caps(with_storages(caps, (case.storage, *others)))
            try:
                executor = GpuExecutor(cast("DeviceImpl", device), "probe")
                self._built[key] = executor.compile(case.graph, case.precision)
            except (KernelLimitError, UnsupportedOpError):  # so it is for the product, too
                if not self._is_lenient:
                    raise
                self._built[key] = None
        return self._built[key]


def known_answers(
    device: Any, announce: Callable[[str], None], runs: int, evidence: dict[str, Any]
) -> kat.AnswerFinding | None:
    """Run the known answers of every device; return what is wrong, None if nothing is."""
    trials = Trials(device, announce)
    for case in kat.cases(device.caps):
        trials.add(case, runs)
    try:
        for trial in trials.trials:
            while trial.runs < trial.goal:  # at once: what changes from run to run is named so
                if (finding := trials.run(trial)) is not None:
                    return finding
    finally:
        evidence["checks"] = trials.checks
        trials.close()
    return None


def required_tests(
    device: Any,
    announce: Callable[[str], None],
    demands: Sequence[Demand],
    times_over: tuple[float, float],
    evidence: dict[str, Any],
) -> dict[str, tuple[str, str]]:
    """Run what entries require of an open device; return the outcome of each entry, and why.

    `times_over` is when essential runs must be over, and when further ones.
    """
    trials = Trials(device, announce, required=True)
    failed: dict[str, str] = {}
    for test in TESTS:
        runs = max((d.runs for d in demands if test in d.tests), default=0)
        try:
            for case in kat.cases(device.caps, test) if runs else ():
                trials.add(case, runs, test)
        except Exception as error:
            failed[test] = f"{test}: {reason_of(error, 'kernel-failed').sentence}"
    longest = 0.0
    goal = max((trial.goal for trial in trials.trials), default=0)
    try:
        for number, trial in product(range(goal), trials.trials):
            if number >= trial.goal or set(trial.tests) <= failed.keys():
                continue
            start = time.monotonic()
            if start + longest >= times_over[number >= ESSENTIAL]:
                break
            why, is_lost = "", False
            try:
                if (finding := trials.run(trial)) is not None:
                    why = f"{finding.code}, {finding.detail}"
            except Exception as error:
                why = reason_of(error, "kernel-failed").sentence
                is_lost = isinstance(error, (DeviceLostError, DeviceTimeoutError))
            if why:
                about = f"{', '.join(trial.tests)}: {why}"
                failed |= dict.fromkeys(TESTS if is_lost else trial.tests, about)
            longest = max(longest, time.monotonic() - start)
    finally:
        evidence["required"] = trials.checks
        trials.close()
    return {demand.entry: _outcome(demand, trials.trials, failed) for demand in demands}


def _outcome(
    demand: Demand, trials: Sequence[CaseTrial], failed: dict[str, str]
) -> tuple[str, str]:
    for test in TESTS:
        if test in demand.tests and test in failed:
            return FAILED, failed[test]
    asked = [trial for trial in trials if not set(trial.tests).isdisjoint(demand.tests)]
    short = [trial for trial in asked if trial.lacks(demand.runs)]
    if not short:
        return CLEARED, ""
    least = min(short, key=lambda trial: trial.runs)
    if any(trial.lacks(min(demand.runs, ESSENTIAL)) for trial in short):
        return CUT, f"time was over after {least.runs} runs of {least.case.name}"
    return CLEARED, f"passed with {least.runs} of {demand.runs} runs"


def times(case: kat.KnownAnswer, runs: int) -> int:
    """Return how often a case is run: a large one less often, but no less than `RUNS` times."""
    return min(runs, max(RUNS, MOST_ELEMENTS // max(1, case.expected.size)))
