"""Runs cases of `gpuedge.probing.kat` on an open device: the known answers, and required tests.

A known answer has all its runs one after the other: numbers that change from run to run are named
so. Required tests take turns, each case once, then each a second time, and so on: each kernel runs
after every other one, and where time is short every case has had about as many runs. Both share
what was compiled, which is most of what either costs, and runs of the one count for the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final, cast

from gpuedge.capdb.entries import MAX_RUNS, TESTS
from gpuedge.capdb.restrict import with_storages
from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    KernelLimitError,
    UnsupportedOpError,
)
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.plan.planner import plan
from gpuedge.probing import kat
from gpuedge.probing.protocol import CLEARED, CUT, FAILED, RUNS, reason_of

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl
    from gpuedge.capdb.entries import Demand
    from gpuedge.core.caps import Caps
    from gpuedge.executors.gpu import GpuExecutable
    from gpuedge.executors.plugin import PluginExecutable, PluginExecutor
    from gpuedge.graph.ir import Graph

MOST_ELEMENTS = 1 << 22
"""Elements of the outputs of all runs of one case: small kernels are run as often as they are to
be, large ones a few times."""

ESSENTIAL: Final = 4
"""Runs of each case, all of them right and alike, that clear a device, however many an entry asks
for. They are twice as many as every device must pass."""

MORE_S: Final = 0.02
REPEAT_S: Final = 0.25
"""Seconds for further runs, which a launch waits for; and where the test ``repeat`` is asked."""


class CaseTrial:
    """One case on a device, to be run `goal` times in all for `tests`; `check` is the evidence."""

    def __init__(self, case: kat.KnownAnswer) -> None:
        self.case = case
        self.goal = self.runs = 0
        self.last_s = 0.0
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
        finding = kat.compare(self.case, array, self.check)
        if is_first:
            self._first = data
        elif finding is None:
            return kat.AnswerFinding("unstable-numbers", self.case.name)
        return finding


class Trials:
    """Trials on one open device. Each graph is compiled once; `close` lets go of all of them.

    Required ones that take what the device does not offer are left out.
    """

    def __init__(self, device: Any, announce: Callable[[str], None]) -> None:
        self._device, self._announce = device, announce
        self._trials: dict[tuple[str, str, str], CaseTrial] = {}
        self._built: dict[tuple[int, str, str], GpuExecutable | None] = {}
        self._executors: dict[str, GpuExecutor] = {}
        self._kernels: set[str] = set()

    @property
    def caps(self) -> Caps:
        """Capabilities of the device."""
        caps: Caps = self._device.caps
        return caps

    def add(self, case: kat.KnownAnswer, runs: int, test: str = "") -> None:
        """Add a case; one that is there already is run for both."""
        storage = case.storage or self._device.caps.storages[0]
        key = (case.name, case.precision.kind, storage)
        trial = self._trials.setdefault(key, CaseTrial(case))
        trial.goal = max(trial.goal, times(case, runs))
        trial.tests += [test] if test else []

    def brings_a_kernel(self, case: kat.KnownAnswer) -> bool:
        """Say whether a case has a kernel that none before it had."""
        try:
            planned = plan(case.graph, self.caps, frozenset(), case.precision)
        except (KernelLimitError, UnsupportedOpError):  # told when it is compiled
            return True
        before = len(self._kernels)
        self._kernels |= {launch.variant for launch in planned.passes}
        return len(self._kernels) > before

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
        executable = self._executable(case, is_lenient=any(trial.tests))
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
                "kernels": sorted({launch.variant for launch in executable.plan.passes}),
                "seconds": round(seconds, 6),
            }  # fmt: skip
        return trial.judge(array)

    def close(self) -> None:
        """Let go of what the cases were run on."""
        for executable in self._built.values():
            if executable is not None:
                executable.close()
        self._built.clear()

    def _executable(self, case: kat.KnownAnswer, *, is_lenient: bool) -> GpuExecutable | None:
        """Return a case built; None where the device does not offer what it takes."""
        how = f"{case.precision.kind} {case.precision.arithmetic}"
        key = (id(case.graph), how, case.storage)
        if key not in self._built:
            self._announce("build")
            try:
                executor = self._executor(case.storage or self.caps.storages[0])
                self._built[key] = executor.compile(case.graph, case.precision)
            except (KernelLimitError, UnsupportedOpError):  # so it is for the product, too
                if not (is_lenient or self.caps.ruled_out):
                    raise
                self._built[key] = None
        return self._built[key]

    def _executor(self, storage: str) -> GpuExecutor:
        """Return what compiles for a device whose exact storage this is, and keeps its kernels."""
        if storage not in self._executors:
            device = self._device
            if storage != self.caps.storages[0]:
                kinds = (storage, *(kind for kind in self.caps.storages if kind != storage))
                device = device.with_caps(with_storages(self.caps, kinds))
            self._executors[storage] = GpuExecutor(cast("DeviceImpl", device), "probe")
        return self._executors[storage]


class RuntimeTrials(Trials):
    """Trials on a device of another runtime, which takes whole graphs; not what it does not run.

    `refusal` says why it does not run a case.
    """

    def __init__(self, executor: PluginExecutor, announce: Callable[[str], None]) -> None:
        super().__init__(executor, announce)
        self.refusal = ""
        self._made: dict[int, PluginExecutable | None] = {}

    def add(self, case: kat.KnownAnswer, runs: int, test: str = "") -> None:
        """Add a case."""
        trial = self._trials[case.name, "", ""] = CaseTrial(case)
        trial.goal = times(case, runs)

    def run(self, trial: CaseTrial) -> kat.AnswerFinding | None:
        """Run a trial once more; return what is wrong, None if nothing is."""
        graph = trial.case.graph
        if id(graph) not in self._made:
            self._announce("build")
            self._made[id(graph)] = self._compiled(graph)
        executable = self._made[id(graph)]
        if executable is None:
            trial.goal = 0
            return None
        self._announce("run")
        return trial.judge(executable.run(trial.case.inputs)[trial.case.output])

    def _compiled(self, graph: Graph) -> PluginExecutable | None:
        executor: PluginExecutor = self._device
        whys = (executor.supports(node, graph) for node in graph.nodes)
        why = next((why for why in whys if why is not None), None)
        if why is None:
            return executor.compile(graph)
        self.refusal = self.refusal or why
        return None

    def close(self) -> None:
        """Let go of what the cases were run on."""
        for executable in filter(None, self._made.values()):
            executable.close()
        self._made.clear()


def known_answers(
    trials: Trials, cases: Sequence[kat.KnownAnswer], runs: int, evidence: dict[str, Any]
) -> kat.AnswerFinding | None:
    """Run known answers; return what is wrong, None if nothing is."""
    for case in cases:
        trials.add(case, runs)
    try:
        for trial in trials.trials:
            while trial.runs < trial.goal:  # at once: what changes from run to run is named so
                if (finding := trials.run(trial)) is not None:
                    return finding
    finally:
        evidence["checks"] = [dict(check) for check in trials.checks]
    return None


def required_tests(
    trials: Trials, demands: Sequence[Demand], ends: float, evidence: dict[str, Any]
) -> dict[str, tuple[str, str]]:
    """Run what entries require of an open device; return the outcome of each entry, and why.

    Essential runs must be over when time `ends`; further ones have `MORE_S`.
    """
    failed = _add(trials, demands)
    asked = [trial for trial in trials.trials if trial.tests]
    try:
        if _rounds(trials, asked, failed, ESSENTIAL, ends):
            more = REPEAT_S if any("repeat" in demand.tests for demand in demands) else MORE_S
            _rounds(trials, asked, failed, MAX_RUNS, min(ends, time.monotonic() + more))
    finally:
        evidence["required"] = [trial.check for trial in asked if trial.runs]
    return {demand.entry: _outcome(demand, asked, failed) for demand in demands}


def _add(trials: Trials, demands: Sequence[Demand]) -> dict[str, str]:
    """Add the cases that entries ask for; return why tests failed whose cases cannot be made.

    Kernels that the known answers have shown to be good are not compiled a second time.
    """
    failed: dict[str, str] = {}
    for trial in trials.trials:
        trials.brings_a_kernel(trial.case)
    for test in TESTS:
        runs = max((d.runs for d in demands if test in d.tests), default=0)
        try:
            for case in kat.cases(trials.caps, test) if runs else ():
                if test != "kernels" or trials.brings_a_kernel(case):
                    trials.add(case, runs, test)
        except Exception as error:
            failed[test] = f"{test}: {reason_of(error, 'kernel-failed').sentence}"
    return failed


def _rounds(
    trials: Trials, asked: Sequence[CaseTrial], failed: dict[str, str], most: int, ends: float
) -> bool:
    """Run cases in turn until each has had `most` runs or its goal; False where time was over."""
    longest = 0.0
    goal = max((trial.goal for trial in asked), default=0)
    for number, trial in product(range(min(most, goal)), asked):
        if number < trial.runs or number >= trial.goal or set(trial.tests) <= failed.keys():
            continue
        start = time.monotonic()
        if start + (trial.last_s if trial.runs else longest) >= ends:
            return False
        failed |= _failure(trials, trial)
        trial.last_s = time.monotonic() - start
        longest = max(longest, trial.last_s)
    return True


def _failure(trials: Trials, trial: CaseTrial) -> dict[str, str]:
    """Run a trial once more; return the tests that fail by it, and why."""
    why, is_lost = "", False
    try:
        if (finding := trials.run(trial)) is not None:
            why = f"{finding.code}, {finding.detail}"
    except Exception as error:
        why = reason_of(error, "kernel-failed").sentence
        is_lost = isinstance(error, (DeviceLostError, DeviceTimeoutError))
    about = f"{', '.join(trial.tests)}: {why}"
    return dict.fromkeys(TESTS if is_lost else trial.tests, about) if why else {}


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
